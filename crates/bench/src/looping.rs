//! Tasks that take and give back a lock over and over, whatever the lock.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Barrier;

use crate::context::{Amount, Context, Played, System};
use crate::sample::Sample;

/// One task with its lock.
pub trait Worker: Send + Sync + 'static {
    type Hold: Send;
    fn lock(&self) -> impl Future<Output = Self::Hold> + Send;
    fn unlock(&self, hold: Self::Hold) -> impl Future<Output = ()> + Send;

    /// Whether others that read may be in the section beside it.
    fn reads(&self) -> bool {
        false
    }
}

/// What is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timed {
    /// Taking and giving back, of a lock that nobody else wants.
    Pair,
    /// The call of lock, until it returns.
    Wait,
}

/// A counter that loses additions if two tasks are in the section together. Those that read see that it stays
/// as it is.
#[derive(Debug, Default)]
pub struct Section {
    counter: AtomicU64,
    /// Another task has its chance in the middle of an addition.
    yields: bool,
    /// The same counter at the server, for sections of more than one process.
    shared: Option<Shared>,
}

#[derive(Debug)]
pub struct Shared {
    pub connection: redis::aio::MultiplexedConnection,
    pub key: String,
}

impl Section {
    pub fn new(yields: bool, shared: Option<Shared>) -> Self {
        Self {
            counter: AtomicU64::new(0),
            yields,
            shared,
        }
    }

    async fn enter(&self, reads: bool) {
        let before = self.counter.load(Ordering::Relaxed);
        if let Some(Shared { connection, key }) = &self.shared {
            let mut connection = connection.clone();
            let mut command = redis::cmd("GET");
            let value: u64 = command
                .arg(key)
                .query_async(&mut connection)
                .await
                .expect("answered");
            let mut command = redis::cmd("SET");
            command
                .arg(key)
                .arg(value + 1)
                .exec_async(&mut connection)
                .await
                .expect("answered");
        }
        if self.yields {
            tokio::task::yield_now().await;
        }
        if reads {
            let now = self.counter.load(Ordering::Relaxed);
            assert_eq!(now, before, "a writer was beside a reader");
            return;
        }
        self.counter.store(before + 1, Ordering::Relaxed);
    }
}

/// Has every worker lock and unlock until the time is over, and at least once.
pub async fn run<W: Worker>(
    workers: &[Arc<W>],
    amount: Amount,
    timed: Timed,
    section: Option<Section>,
) -> (Vec<Vec<u64>>, Duration) {
    let section = Arc::new(section);
    let total = Arc::new(AtomicU64::new(0));
    let barrier = Arc::new(Barrier::new(workers.len() + 1));
    let tasks: Vec<_> = workers
        .iter()
        .map(|worker| {
            let (worker, section) = (Arc::clone(worker), Arc::clone(&section));
            let (total, barrier) = (Arc::clone(&total), Arc::clone(&barrier));
            tokio::spawn(async move {
                let mut nanos = Vec::with_capacity(1 << 12);
                barrier.wait().await;
                let begin = Instant::now();
                loop {
                    let before = Instant::now();
                    let hold = worker.lock().await;
                    let locked = before.elapsed();
                    if let Some(section) = &*section {
                        section.enter(worker.reads()).await;
                    }
                    worker.unlock(hold).await;
                    nanos.push(match timed {
                        Timed::Pair => before.elapsed(),
                        Timed::Wait => locked,
                    });
                    let all = total.fetch_add(1, Ordering::Relaxed) + 1;
                    let elapsed = begin.elapsed();
                    if elapsed >= LONGEST || (elapsed >= amount.time && all >= amount.at_least) {
                        return nanos;
                    }
                }
            })
        })
        .collect();
    barrier.wait().await;
    let begin = Instant::now();
    let mut times = Vec::with_capacity(tasks.len());
    for task in tasks {
        let nanos = task.await.expect("the task does not panic");
        times.push(
            nanos
                .iter()
                .map(Duration::as_nanos)
                .map(|n| n as u64)
                .collect(),
        );
    }
    let took = begin.elapsed();
    if let Some(section) = &*section {
        let alone = workers.iter().zip(&times).filter(|(one, _)| !one.reads());
        let alone: usize = alone.map(|(_, nanos): (_, &Vec<u64>)| nanos.len()).sum();
        let counted = section.counter.load(Ordering::Relaxed);
        assert_eq!(
            counted, alone as u64,
            "two tasks were in the section together"
        );
    }
    check(&times, workers.len());
    (times, took)
}

/// Every task has had the lock.
pub fn check(times: &[Vec<u64>], tasks: usize) {
    assert_eq!(times.len(), tasks);
    let idle = times.iter().filter(|nanos| nanos.is_empty()).count();
    assert_eq!(idle, 0, "tasks that never had the lock");
}

/// A slow machine ends a round before it has its acquisitions.
const LONGEST: Duration = Duration::from_secs(60);

/// Workers of one kind as a system.
pub struct Looping<W> {
    pub name: &'static str,
    pub workers: Vec<Arc<W>>,
    pub timed: Timed,
    /// Whether all of them take the same lock.
    pub one_lock: bool,
}

impl<W: Worker> Looping<W> {
    /// Workers that each have a lock of their own.
    pub fn apart(name: &'static str, workers: Vec<W>) -> Box<dyn System> {
        Self::boxed(name, workers, Timed::Pair, false)
    }

    /// Workers that take the same lock.
    pub fn contending(name: &'static str, workers: Vec<W>) -> Box<dyn System> {
        Self::boxed(name, workers, Timed::Wait, true)
    }

    fn boxed(name: &'static str, workers: Vec<W>, timed: Timed, one_lock: bool) -> Box<dyn System> {
        let workers = workers.into_iter().map(Arc::new).collect();
        Box::new(Self {
            name,
            workers,
            timed,
            one_lock,
        })
    }
}

impl<W: Worker> System for Looping<W> {
    fn play<'a>(&'a self, context: &'a Context, amount: Amount) -> Played<'a> {
        Box::pin(async move {
            let section = self
                .one_lock
                .then(|| Section::new(context.is_checked(), None));
            let (before, cpu) = (context.scripts(), context.cpu());
            let (times, took) = run(&self.workers, amount, self.timed, section).await;
            let [client, server] = context.cpu_since(cpu);
            let calls = context.scripts() - before;
            let readers = self.workers.iter().filter(|one| one.reads()).count();
            let sample = Sample::of_readers(readers, times, took)
                .with_scripts(calls)
                .with_cpu(client, server, took);
            vec![(self.name, sample)]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use test_support::tokio;

    struct NoLock {
        reads: bool,
    }

    impl Worker for NoLock {
        type Hold = ();

        async fn lock(&self) {}

        async fn unlock(&self, (): ()) {}

        fn reads(&self) -> bool {
            self.reads
        }
    }

    fn workers(count: usize) -> Vec<Arc<NoLock>> {
        (0..count)
            .map(|_| Arc::new(NoLock { reads: false }))
            .collect()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[should_panic(expected = "two tasks were in the section together")]
    async fn a_lock_that_does_not_exclude_is_seen() {
        let amount = Amount::time(Duration::from_millis(20));
        let section = Some(Section::new(true, None));
        run(&workers(8), amount, Timed::Wait, section).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[should_panic(expected = "a writer was beside a reader")]
    async fn a_reader_beside_a_writer_is_seen() {
        let amount = Amount::time(Duration::from_millis(20));
        let parts = [true, true, true, false].map(|reads| Arc::new(NoLock { reads }));
        let section = Some(Section::new(true, None));
        run(&parts, amount, Timed::Wait, section).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn readers_beside_each_other_are_right() {
        let amount = Amount::time(Duration::from_millis(20));
        let readers: Vec<_> = (0..8).map(|_| Arc::new(NoLock { reads: true })).collect();
        let section = Some(Section::new(true, None));
        let (times, _) = run(&readers, amount, Timed::Wait, section).await;
        assert_eq!(times.len(), 8);
    }

    #[tokio::test]
    async fn everybody_has_it_once_and_all_have_it_as_often_as_was_wanted() {
        let amount = Amount {
            time: Duration::ZERO,
            at_least: 100,
        };
        let (times, _) = run(&workers(3), amount, Timed::Pair, None).await;
        assert!(times.iter().all(|nanos| !nanos.is_empty()));
        assert!(times.iter().map(Vec::len).sum::<usize>() >= 100);
    }
}

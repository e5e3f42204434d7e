//! One read-write lock: tasks that read over and over, and a few that write.

use std::sync::Arc;

use redisson_lock::{Lock, LockGuard};
use test_support::ms;

use crate::bare::{Argument, BareFred, Scripts, Which};
use crate::context::{Amount, Context, Form, Played, System};
use crate::jvm::{self, Redisson};
use crate::looping::{Section, Timed, Worker, run};
use crate::sample::{self, Sample};
use crate::scenario::{OURS, own};
use crate::workers::{LEASE_MS, connect, owner, text};

/// All of them with this many tasks of one client each. The floor has no writers.
pub async fn systems(context: &Context, readers: usize, writers: usize) -> Vec<Box<dyn System>> {
    let client = connect(&context.server.url()).await;
    let lock = client.rw_lock(NAME);
    let part = |nth: usize| match nth < readers {
        true => Part {
            lock: lock.read(),
            reads: true,
        },
        false => Part {
            lock: lock.write(),
            reads: false,
        },
    };
    let ours = (0..readers + writers).map(part);
    let mut systems = vec![Sections::boxed(OURS, ours.collect())];
    if let Some(peer) = context.jvm(1, ms(30_000)).await {
        let tasks = readers + writers;
        let redisson = Redisson::looping(peer, &own(NAME, "jvm"), 1, tasks, false);
        let redisson = redisson.of_kind("read-write").with_readers(readers);
        systems.push(Box::new(InJvm(redisson)));
    }
    let fred = BareFred::connect(context).await;
    let bare = (0..readers).map(|task| BareReader::new(&fred, &own(NAME, "fred"), task));
    systems.push(Sections::boxed(ALONE, bare.collect()));
    systems
}

/// A task of this crate with the face of a lock that it takes.
struct Part {
    lock: Lock,
    reads: bool,
}

impl Worker for Part {
    type Hold = LockGuard;

    async fn lock(&self) -> LockGuard {
        self.lock.lock().await.expect("the server answers")
    }

    async fn unlock(&self, hold: LockGuard) {
        hold.unlock().await.expect("held until now");
    }

    fn reads(&self) -> bool {
        self.reads
    }
}

/// The two scripts of a reader, and nothing else.
struct BareReader<S> {
    scripts: Arc<S>,
    owner: String,
    keys: [String; 2],
    channel: String,
}

impl<S: Scripts> BareReader<S> {
    fn new(scripts: &Arc<S>, key: &str, task: usize) -> Self {
        let owner = owner(task);
        let first = format!("{{{key}}}:{owner}:rwlock_timeout:1");
        Self {
            scripts: Arc::clone(scripts),
            owner,
            keys: [key.to_owned(), first],
            channel: format!("redisson_rwlock:{{{key}}}"),
        }
    }

    async fn call(&self, which: Which, arguments: &[Argument<'_>]) -> i64 {
        let keys = self.keys.each_ref().map(String::as_str);
        self.scripts.call(which, &keys, arguments).await
    }
}

impl<S: Scripts> Worker for BareReader<S> {
    type Hold = ();

    async fn lock(&self) {
        let arguments = [text(&self.owner), Argument::Number(1), LEASE_MS];
        let answer = self.call(Which::ReadAcquire, &arguments).await;
        assert_eq!(answer, 2, "taken by an owner that does not write");
    }

    async fn unlock(&self, (): ()) {
        let (none, channel, way) = (Argument::Number(0), text(&self.channel), text("publish"));
        let arguments = [text(&self.owner), none, Argument::Number(1), channel, way];
        let answer = self.call(Which::ReadRelease, &arguments).await;
        assert!(answer >= 1, "released");
    }

    fn reads(&self) -> bool {
        true
    }
}

/// From the latencies of each task, the readers' first.
fn sample(mut times: Vec<Vec<u64>>, readers: usize, took: std::time::Duration) -> Sample {
    let all = Sample::of_tasks(times.clone(), took);
    let writes = times.split_off(readers);
    let [read, write] = [times, writes].map(|times| Sample::of_tasks(times, took).figures);
    let mut figures = all.figures;
    figures.remove(sample::FAIRNESS);
    figures.extend([
        (sample::READS, read[sample::PER_SECOND]),
        (sample::READ_P50, read[sample::P50]),
        (sample::READ_P99, read[sample::P99]),
    ]);
    if write[sample::PER_SECOND] > 0.0 {
        figures.extend([
            (sample::WRITES, write[sample::PER_SECOND]),
            (sample::WRITE_P50, write[sample::P50]),
            (sample::WRITE_P99, write[sample::P99]),
            (sample::LONGEST_WRITE, write[sample::LONGEST]),
        ]);
    }
    Sample { figures, ..all }
}

struct Sections<W> {
    name: &'static str,
    workers: Vec<Arc<W>>,
}

impl<W: Worker> Sections<W> {
    fn boxed(name: &'static str, workers: Vec<W>) -> Box<dyn System> {
        let workers = workers.into_iter().map(Arc::new).collect();
        Box::new(Self { name, workers })
    }
}

impl<W: Worker> System for Sections<W> {
    fn play<'a>(&'a self, context: &'a Context, amount: Amount) -> Played<'a> {
        Box::pin(async move {
            let section = Section::new(context.is_checked(), None);
            let readers = self.workers.iter().filter(|one| one.reads()).count();
            let (before, cpu) = (context.scripts(), context.cpu());
            let (times, took) = run(&self.workers, amount, Timed::Wait, Some(section)).await;
            let [client, server] = context.cpu_since(cpu);
            let sample = sample(times, readers, took)
                .with_scripts(context.scripts() - before)
                .with_cpu(client, server, took);
            vec![(self.name, sample)]
        })
    }
}

struct InJvm(Redisson);

impl System for InJvm {
    fn play<'a>(&'a self, context: &'a Context, amount: Amount) -> Played<'a> {
        Box::pin(async move {
            let before = context.scripts();
            let report = self.0.report(context, amount).await;
            let sample = sample(report.times, self.0.readers, report.took);
            let sample = sample.with_scripts(context.scripts() - before);
            vec![(jvm::NAME, sample)]
        })
    }

    fn warm(&self, form: Form) -> std::time::Duration {
        form.warm_jvm()
    }
}

pub const ALONE: &str = "floor: two scripts of each reader, no writer (fred)";

const NAME: &str = "readers";

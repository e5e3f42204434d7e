//! What a hundred thousand waiters cost, and four thousand tasks of one owner. Measures time:
//! `cargo xtask test` runs this file by itself.
//!
//! The server is the fake one, inside the process: what is measured is the client. Figures that
//! compare are taken in paused time, so that no pause is among them.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redisson_lock::{LockClient, LockGuard};
use redisson_lock_test::FakeRedis;
use test_support::test;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// One of these tests at a time, however the test runner is called.
static ALONE: Mutex<()> = Mutex::new(());

const MANY: usize = 100_000;
const FEW: usize = 1_000;

/// The longest of some times, in microseconds.
#[derive(Default)]
struct Longest(AtomicU64);

impl Longest {
    fn note(&self, time: Duration) {
        self.0.fetch_max(time.as_micros() as u64, Ordering::Relaxed);
    }

    fn get(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Waits until this many wait. `false`: not until then.
async fn all_wait(client: &LockClient, waiters: usize, until: Instant) -> bool {
    while client.stats().waiting < waiters && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Instant::now() < until
}

/// How a hundred thousand waiters gave up at one moment.
struct GivenUp {
    /// For how long a task that sleeps a millisecond at a time was not served.
    stood_still: Duration,
    longest_poll: Duration,
    /// From the deadline until the last one had its answer.
    took: Duration,
}

const STANDS_STILL_MAX: Duration = Duration::from_millis(250);

#[test]
fn a_hundred_thousand_that_give_up_together_do_not_stop_the_runtime() {
    let _alone = ALONE.lock();
    // Another program may want the processor at that moment. It does not do so each time.
    for wait in [4, 8, 16].map(Duration::from_secs) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build();
        let given_up = runtime
            .expect("a runtime")
            .block_on(async { tokio::spawn(give_up_together(wait)).await });
        let Some(GivenUp {
            stood_still,
            longest_poll,
            took,
        }) = given_up.expect("no panic")
        else {
            println!("not all of them waited after {wait:?}");
            continue;
        };
        println!(
            "{MANY} waiters gave up within {took:?}; a ticker of 1 ms stood still for \
             {stood_still:?}, the longest poll took {longest_poll:?}"
        );
        if stood_still.max(longest_poll) <= STANDS_STILL_MAX {
            return;
        }
    }
    panic!("the runtime stood still for more than {STANDS_STILL_MAX:?}, each time");
}

/// `None`: the wait was over before all of them waited.
async fn give_up_together(wait: Duration) -> Option<GivenUp> {
    let fake = FakeRedis::start();
    let other = fake.taken_by_another("stock");
    let client = fake.client().await;
    let deadline = Instant::now() + wait;
    let longest_poll = Arc::new(Longest::default());
    let took = Arc::new(Longest::default());
    let mut calls = JoinSet::new();
    for _ in 0..MANY {
        let lock = client.lock("stock");
        let (longest_poll, took) = (Arc::clone(&longest_poll), Arc::clone(&took));
        calls.spawn(async move {
            let mut call = pin!(lock.try_lock_until(deadline));
            let answer = poll_fn(|context| {
                let start = Instant::now();
                let polled = call.as_mut().poll(context);
                longest_poll.note(start.elapsed());
                polled
            });
            let answer = answer.await;
            took.note(deadline.elapsed());
            answer
        });
    }
    if !all_wait(&client, MANY, deadline).await {
        return None;
    }
    let stood_still = Arc::new(Longest::default());
    let ticker = tokio::spawn({
        let stood_still = Arc::clone(&stood_still);
        async move {
            loop {
                let start = Instant::now();
                tokio::time::sleep(Duration::from_millis(1)).await;
                stood_still.note(start.elapsed());
            }
        }
    });
    while let Some(call) = calls.join_next().await {
        let taken = call.expect("no panic").expect("asked");
        assert!(taken.is_none(), "another one holds it");
    }
    // One tick more: a gap that is not over yet counts.
    tokio::time::sleep(Duration::from_millis(5)).await;
    ticker.abort();
    assert_eq!(client.stats().waiting, 0);
    other.release();
    Some(GivenUp {
        stood_still: stood_still.get(),
        longest_poll: longest_poll.get(),
        took: took.get(),
    })
}

/// A lock with this many waiters. Each that gets it hands its guard over.
struct Queue {
    client: LockClient,
    guard: Option<LockGuard>,
    guards: mpsc::UnboundedReceiver<LockGuard>,
    taken: mpsc::UnboundedSender<LockGuard>,
    waiters: JoinSet<()>,
}

impl Queue {
    async fn with(waiters: usize) -> Self {
        let client = FakeRedis::start().client().await;
        let guard = client.lock("stock").lock().await.expect("free");
        let (taken, guards) = mpsc::unbounded_channel();
        let mut queue = Self {
            client,
            guard: Some(guard),
            guards,
            taken,
            waiters: JoinSet::new(),
        };
        let limit = Instant::now() + Duration::from_secs(30);
        for _ in 0..waiters {
            queue.join();
            tokio::task::yield_now().await;
            assert!(Instant::now() < limit, "to queue takes too long");
        }
        assert!(all_wait(&queue.client, waiters, limit).await);
        queue
    }

    fn join(&mut self) {
        let (lock, taken) = (self.client.lock("stock"), self.taken.clone());
        self.waiters.spawn(async move {
            let guard = lock.lock().await.expect("free in the end");
            taken.send(guard).expect("it is wanted");
        });
    }

    /// From an unlock until the next waiter has the lock. Another one takes its place in the queue.
    async fn hand_off(&mut self) -> Duration {
        let guard = self.guard.take().expect("it is held");
        let start = Instant::now();
        guard.unlock().await.expect("held");
        self.guard = self.guards.recv().await;
        let took = start.elapsed();
        self.waiters.join_next().await;
        self.join();
        tokio::task::yield_now().await;
        took
    }
}

#[test]
fn a_hand_off_costs_the_same_however_many_wait() {
    let _alone = ALONE.lock();
    paused().block_on(async {
        let mut few = Queue::with(FEW).await;
        let mut many = Queue::with(MANY).await;
        let (mut with_few, mut with_many) = (Vec::new(), Vec::new());
        // By turns, so that both have the same machine.
        for _ in 0..1_000 {
            with_few.push(few.hand_off().await);
            with_many.push(many.hand_off().await);
        }
        assert_eq!(few.client.stats().waiting, FEW);
        assert_eq!(many.client.stats().waiting, MANY);
        let (with_few, with_many) = (median(with_few), median(with_many));
        println!(
            "a hand-off takes {with_few:?} with {FEW} waiters, {with_many:?} with {MANY}: {:.2}",
            with_many.as_secs_f64() / with_few.as_secs_f64()
        );
        assert!(with_many <= with_few * 3, "{with_few:?}, {with_many:?}");
    });
}

/// How long this many tasks of one owner take to acquire that lock, nest once, and unlock both.
async fn nest(tasks: usize) -> Duration {
    let client = FakeRedis::start().client().await;
    let owner = client.owner();
    let mut running = JoinSet::new();
    let start = Instant::now();
    for _ in 0..tasks {
        let lock = client.lock("stock").owned_by(&owner);
        running.spawn(async move {
            let outer = lock.lock().await.expect("free, or its own");
            let inner = lock.lock().await.expect("its own");
            inner.unlock().await.expect("held");
            outer.unlock().await.expect("held");
        });
    }
    running.join_all().await;
    let took = start.elapsed();
    assert_eq!(client.stats().held, 0);
    took
}

#[test]
fn tasks_of_one_owner_are_served_in_linear_time() {
    let _alone = ALONE.lock();
    paused().block_on(async {
        // The quickest of three, by turns: other programs only make it slower.
        let (mut few, mut many) = (Duration::MAX, Duration::MAX);
        for _ in 0..3 {
            few = few.min(nest(1_000).await);
            many = many.min(nest(4_000).await);
        }
        println!(
            "1000 tasks of one owner take {few:?}, 4000 take {many:?}: {:.2}",
            many.as_secs_f64() / few.as_secs_f64()
        );
        // Four times would be linear, sixteen quadratic.
        assert!(many <= few * 10, "{few:?}, {many:?}");
    });
}

/// A runtime whose time passes when every task waits.
fn paused() -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build();
    runtime.expect("a runtime")
}

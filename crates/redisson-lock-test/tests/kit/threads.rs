//! One fake for many threads and runtimes.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use redisson_lock::{Error, LockClient};
use redisson_lock_test::{FakeRedis, OtherHolder};
use tokio::task::JoinSet;

use crate::{current_thread, free, ms, paused, quick, two_workers};

/// What a user may move to another thread, or keep in a static.
#[test]
fn everything_can_be_shared() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<FakeRedis>();
    shared::<OtherHolder>();
}

#[test]
fn a_fake_outlives_the_runtimes_of_its_clients() {
    static FAKE: LazyLock<FakeRedis> = LazyLock::new(FakeRedis::start);
    for runtime in [current_thread(), two_workers(), current_thread()] {
        runtime.block_on(async {
            let client = FAKE.client().await;
            let guard = client.lock("a").lock().await.unwrap();
            guard.unlock().await.unwrap();
        });
    }
}

#[test]
fn clients_of_two_runtimes_exclude_each_other() {
    let fake = FakeRedis::start();
    let (one, other) = (two_workers(), current_thread());
    let guard = one.block_on(async { fake.client().await.lock("a").lock().await.unwrap() });
    other.block_on(async {
        let client = fake.client().await;
        assert!(client.lock("a").try_lock().await.unwrap().is_none());
        one.spawn(async move {
            tokio::time::sleep(ms(50)).await;
            guard.unlock().await.unwrap();
        });
        let woken = client.lock("a").try_lock_for(ms(10_000)).await.unwrap();
        woken.unwrap().unlock().await.unwrap();
    });
}

/// Controls from a thread of their own while clients work: nothing hangs, nothing panics, and
/// afterwards all is well.
#[test]
fn controls_may_come_at_any_moment_from_any_thread() {
    let fake = FakeRedis::start();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let (fake, over) = (&fake, &over);
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed);
                while !over.load(Ordering::Relaxed) {
                    harm(fake, &mut rng);
                    std::thread::sleep(ms(rng.u64(0..20)));
                }
            });
        }
        // Also after a panic: the scope waits for its threads.
        let _ends = SetOnDrop(&over);
        let done = two_workers().block_on(work_side_by_side(&fake));
        assert!(done > 20, "only {done} sections");
    });
    fake.resume();
    current_thread().block_on(async {
        for name in ["a", "b"] {
            fake.expire(name);
            free(&fake, name).await;
            let client = quick(&fake).await;
            let guard = client.lock(name).lock().await.unwrap();
            guard.unlock().await.unwrap();
        }
    });
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

async fn work_side_by_side(fake: &FakeRedis) -> u32 {
    let mut workers = JoinSet::new();
    for nth in 0..6 {
        // Pauses and cuts may also come while it connects.
        let client = loop {
            match fake.connect(fake.builder()).await {
                Ok(client) => break client,
                Err(Error::NoAnswer { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        };
        workers.spawn(async move { work(&client, nth).await });
    }
    workers.join_all().await.into_iter().sum()
}

async fn work(client: &LockClient, nth: u64) -> u32 {
    let end = tokio::time::Instant::now() + ms(3_000);
    let mut rng = fastrand::Rng::with_seed(nth);
    let mut done = 0;
    while tokio::time::Instant::now() < end {
        let lock = client.lock(["a", "b"][rng.usize(0..2)]);
        match lock.try_lock_for(ms(200)).await {
            Ok(Some(guard)) => {
                done += 1;
                drop(guard);
            }
            Ok(None) | Err(Error::NoAnswer { .. } | Error::Lost { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    done
}

fn harm(fake: &FakeRedis, rng: &mut fastrand::Rng) {
    let name = ["a", "b"][rng.usize(0..2)];
    match rng.u8(0..40) {
        0 => fake.cut(),
        1 => fake.wipe(),
        2 => _ = fake.expire(name),
        3 => {
            fake.pause();
            std::thread::sleep(ms(rng.u64(0..5)));
            fake.resume();
        }
        4 => {
            let other = fake.taken_by_another(name);
            std::thread::sleep(ms(1));
            other.release();
        }
        _ => _ = fake.holder(name),
    }
}

#[test]
fn controls_need_no_runtime() {
    let fake = FakeRedis::start();
    let runtime = current_thread();
    let (client, guard) = runtime.block_on(async {
        let client = fake.client().await;
        let guard = client.lock("a").lock().await.unwrap();
        (client, guard)
    });
    assert!(fake.holder("a").is_some());
    fake.pause();
    fake.resume();
    fake.cut();
    fake.wipe();
    assert!(fake.taken_by_another("a").release());
    drop(guard);
    runtime.block_on(async {
        let guard = client.lock("a").lock().await.unwrap();
        guard.unlock().await.unwrap();
    });
}

/// Guards, locks and clients may be left to the end of a test.
#[test]
fn a_runtime_may_end_with_locks_held() {
    for runtime in [paused(), current_thread(), two_workers()] {
        let fake = FakeRedis::start();
        let kept = fake.clone();
        runtime.block_on(async move {
            let client = fake.client().await;
            let guard = client.lock("a").lock().await.unwrap();
            tokio::spawn(async move {
                let _kept = (guard, fake);
                std::future::pending::<()>().await;
            });
            tokio::time::sleep(ms(500)).await;
            let waiting = client.clone();
            tokio::spawn(async move { waiting.lock("a").lock().await });
            tokio::time::sleep(ms(500)).await;
        });
        drop(runtime);
        assert_eq!(kept.holder("a").unwrap().hold_count, 1);
    }
}

//! Real threads at one lock, each delayed at random between a step of the core and its effects.
//!
//! The explorer goes through every order of a few steps; here the mutex, the clock and the registry
//! of the timers are the real ones.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use redisson_lock::test_util;
use redisson_lock_test::FakeRedis;
use test_support::test;

const THREADS: usize = 4;

/// `delay`: at most this many microseconds between a step and its effects.
fn on_threads(delay: u64, test: impl Future<Output = ()>) {
    test_util::delay_effects(delay);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(test);
}

/// The same work by as many tasks as there are threads.
async fn together<F: Future<Output = ()> + Send + 'static>(work: impl Fn(usize) -> F) {
    let tasks: Vec<_> = (0..THREADS).map(|nth| tokio::spawn(work(nth))).collect();
    for task in tasks {
        task.await.expect("no panic");
    }
}

/// Two steps, whose effects change places: the first one's must not put back what it saw.
#[test]
fn a_timer_is_set_to_what_is_due_when_it_is_set() {
    on_threads(0, async {
        let fake = FakeRedis::start();
        let client = fake.client().await;
        let owner = client.owner();
        let lock = client.lock("stock").owned_by(&owner);
        let outer = lock.lock().await.expect("free");
        let fixed = |secs| lock.lease(Duration::from_secs(secs));
        let first = fixed(5).lock().await.expect("held by itself");
        let second = fixed(7).lock().await.expect("held by itself");
        let (stepped, has_stepped) = mpsc::channel();
        let (overtaken, is_overtaken) = mpsc::channel::<()>();
        let slow = std::thread::spawn(move || {
            test_util::before_next_effects(move || {
                stepped.send(()).expect("somebody waits");
                is_overtaken.recv().expect("somebody is quicker");
            });
            // Due is the end of the second one from here on.
            drop(first);
        });
        has_stepped.recv().expect("it steps");
        // And from here on the next renewal.
        drop(second);
        overtaken.send(()).expect("it waits");
        slow.join().expect("no panic");
        assert!(test_util::is_timer_right(&outer));
        outer.unlock().await.expect("held");
    });
}

#[test]
fn one_is_inside_and_nothing_is_left_whatever_is_dropped_when() {
    on_threads(300, async {
        let fake = FakeRedis::start();
        let client = fake.client().await;
        let inside = Arc::new(AtomicUsize::new(0));
        together(|nth| {
            let (client, inside) = (client.clone(), Arc::clone(&inside));
            async move {
                for round in 0..60 {
                    let owner = client.owner();
                    let lock = client.lock("stock").owned_by(&owner);
                    let limit = Duration::from_micros(((nth * 31 + round * 17) % 40) as u64 * 100);
                    // A third of the calls is dropped on its way.
                    let guard = match round % 3 {
                        0 => tokio::time::timeout(limit, lock.lock())
                            .await
                            .ok()
                            .map(|got| got.expect("free")),
                        1 => lock.try_lock().await.expect("asked"),
                        _ => Some(lock.lock().await.expect("free in the end")),
                    };
                    let Some(guard) = guard else { continue };
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "one is inside");
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    if round % 2 == 0 {
                        drop(guard);
                    } else {
                        guard.unlock().await.expect("held");
                    }
                }
            }
        })
        .await;
        while client.stats().releasing > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        test_util::check(&client);
        assert_eq!((client.stats().entries, client.stats().waiting), (0, 0));
        assert!(fake.holder("stock").is_none());
    });
}

#[test]
fn a_detached_hold_is_found_again_by_whoever_asks_for_it() {
    on_threads(300, async {
        let fake = FakeRedis::start();
        let client = fake.client().await;
        together(|nth| {
            let client = client.clone();
            async move {
                let owner = client.owner();
                let lock = client.lock(format!("job {nth}")).owned_by(&owner);
                for _ in 0..100 {
                    lock.lock().await.expect("free").detach();
                    lock.unlock().await.expect("it is remembered");
                }
            }
        })
        .await;
        assert_eq!(client.stats().held, 0);
    });
}

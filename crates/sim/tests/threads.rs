//! Real threads at one lock, each delayed at random between a step of the core and its effects.
//!
//! The explorer goes through every order of a few steps; here the mutex, the clock and the registry
//! of the timers are the real ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redisson_lock::{HoldState, LockClient, Owner, test_util};
use redisson_lock_test::FakeRedis;

const THREADS: usize = 4;

fn on_threads(test: impl Future<Output = ()>) {
    test_util::delay_effects(300);
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

/// Nested holds of one owner, taken and released on all threads: every one of them moves the timer.
async fn nest(client: LockClient, owner: Owner, nth: usize) {
    let lock = client.lock("stock").owned_by(&owner);
    for round in 0..40 {
        let lease = Duration::from_millis(5_000 + (nth * 997 + round * 131) as u64 % 4_000);
        let guard = lock.lease(lease).lock().await.expect("held by itself");
        if round % 3 == 0 {
            drop(guard);
        } else {
            guard.unlock().await.expect("held");
        }
    }
}

#[test]
fn a_timer_is_set_to_what_is_due_when_it_is_set() {
    on_threads(async {
        let fake = FakeRedis::start();
        for _ in 0..10 {
            let client = fake.client().await;
            let owner = client.owner();
            let outer = client
                .lock("stock")
                .owned_by(&owner)
                .lock()
                .await
                .expect("free");
            together(|nth| nest(client.clone(), owner.clone(), nth)).await;
            // The jobs of the dropped guards, and the effects of their last steps.
            while client.stats().releasing > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(test_util::is_timer_right(&test_util::handle(&outer)));
            assert_eq!(outer.state(), HoldState::Held);
            outer.unlock().await.expect("held");
            test_util::check(&client);
        }
    });
}

#[test]
fn one_is_inside_and_nothing_is_left_whatever_is_dropped_when() {
    on_threads(async {
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
    on_threads(async {
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

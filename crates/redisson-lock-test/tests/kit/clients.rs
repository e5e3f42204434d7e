//! Clients of a fake: many, dropped, closed, on several fakes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use redisson_lock::{Error, LossReason};
use redisson_lock_test::FakeRedis;
use test_support::tokio;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::{everywhere, free, ms};

#[tokio::test(start_paused = true)]
async fn connecting_never_fails_in_paused_time() {
    let fake = FakeRedis::start();
    let real = std::time::Instant::now();
    let start = Instant::now();
    for nth in 0..200 {
        let client = fake.connect(fake.builder()).await;
        let client = client.unwrap_or_else(|error| panic!("{nth}: {error}"));
        drop(client);
    }
    println!(
        "200 clients: {:?} of paused time, {:?} of real time",
        start.elapsed(),
        real.elapsed()
    );
    assert!(start.elapsed() < ms(10_000), "nobody waited for a timeout");
}

#[test]
fn connecting_never_fails_in_real_time_either() {
    everywhere(|fake| async move {
        for _ in 0..200 {
            drop(fake.client().await);
        }
    });
}

/// Paused time runs ahead whenever all tasks wait. The shortest timeout leaves the least room.
#[tokio::test(start_paused = true)]
async fn connecting_side_by_side_never_fails_in_paused_time() {
    let fake = FakeRedis::start();
    let mut connecting = JoinSet::new();
    for nth in 0..200 {
        let fake = fake.clone();
        connecting.spawn(async move {
            tokio::time::sleep(ms(nth % 7)).await;
            let builder = fake.builder().connections(1 + nth as usize % 16);
            let client = fake.connect(builder.command_timeout(ms(5))).await?;
            client.lock(format!("{nth}")).lock().await?.unlock().await
        });
    }
    for done in connecting.join_all().await {
        done.unwrap();
    }
}

#[test]
fn clients_exclude_each_other() {
    everywhere(|fake| async move {
        let inside = Arc::new(AtomicUsize::new(0));
        let mut workers = JoinSet::new();
        for _ in 0..8 {
            let (client, inside) = (fake.client().await, Arc::clone(&inside));
            workers.spawn(async move {
                for _ in 0..10 {
                    let guard = client.lock("a").lock().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    tokio::time::sleep(ms(1)).await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.unlock().await.unwrap();
                }
            });
        }
        workers.join_all().await;
        assert!(fake.holder("a").is_none());
    });
}

#[test]
fn a_waiter_is_woken_by_the_unlock_of_another_client() {
    everywhere(|fake| async move {
        let (one, other) = (fake.client().await, fake.client().await);
        let guard = one.lock("a").lock().await.unwrap();
        assert!(other.lock("a").try_lock().await.unwrap().is_none());
        let waiting = tokio::spawn(async move { other.lock("a").lock().await });
        tokio::time::sleep(ms(100)).await;
        assert!(!waiting.is_finished());
        let start = Instant::now();
        guard.unlock().await.unwrap();
        waiting.await.unwrap().unwrap().unlock().await.unwrap();
        assert!(start.elapsed() < ms(10_000), "{:?}", start.elapsed());
    });
}

#[test]
fn a_dropped_guard_is_released() {
    everywhere(|fake| async move {
        let client = fake.client().await;
        drop(client.lock("a").lock().await.unwrap());
        free(&fake, "a").await;
        // Also by the last handle of its client.
        let guard = client.lock("a").lock().await.unwrap();
        drop(client);
        assert!(fake.holder("a").is_some());
        drop(guard);
        free(&fake, "a").await;
    });
}

#[test]
fn a_hundred_locks_are_held_at_once() {
    everywhere(|fake| async move {
        let client = fake.client().await;
        let mut guards = Vec::new();
        for nth in 0..100 {
            guards.push(client.lock(format!("lock {nth}")).lock().await.unwrap());
        }
        for nth in 0..100 {
            assert_eq!(fake.holder(&format!("lock {nth}")).unwrap().hold_count, 1);
        }
        for guard in guards {
            guard.unlock().await.unwrap();
        }
        assert_eq!(format!("{fake:?}"), "FakeRedis { locks: [] }");
    });
}

#[tokio::test(start_paused = true)]
async fn a_hundred_locks_are_renewed_for_an_hour() {
    let fake = FakeRedis::start();
    let client = fake.client().await;
    let mut guards = Vec::new();
    for nth in 0..100 {
        guards.push(client.lock(format!("lock {nth}")).lock().await.unwrap());
    }
    tokio::time::sleep(ms(3_600_000)).await;
    for guard in guards {
        guard.unlock().await.unwrap();
    }
}

#[test]
fn two_fakes_know_nothing_of_each_other() {
    everywhere(|one| async move {
        let other = FakeRedis::start();
        let (a, b) = (one.client().await, other.client().await);
        let held = a.lock("a").lock().await.unwrap();
        let also = b.lock("a").lock().await.unwrap();
        one.pause();
        one.cut();
        other.wipe();
        assert!(one.holder("a").is_some() && other.holder("a").is_none());
        b.lock("b").lock().await.unwrap().unlock().await.unwrap();
        one.resume();
        held.unlock().await.unwrap();
        drop(also);
    });
}

#[test]
fn a_closed_client_has_released_everything_and_leaves_no_task() {
    everywhere(|fake| async move {
        let client = fake.client().await;
        drop(client.lock("a").lock().await.unwrap());
        let report = client.close(ms(1_000)).await;
        assert!(fake.holder("a").is_none(), "{report:?}");
        assert!(matches!(client.lock("a").lock().await, Err(Error::Closed)));
        drop(client);
        no_task_but_this().await;
    });
}

#[test]
fn a_dropped_client_leaves_no_task() {
    everywhere(|fake| async move {
        let client = fake.client().await;
        client
            .lock("a")
            .lock()
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap();
        drop(client);
        no_task_but_this().await;
    });
}

async fn no_task_but_this() {
    for _ in 0..500 {
        if Handle::current().metrics().num_alive_tasks() == 1 {
            return;
        }
        tokio::time::sleep(ms(10)).await;
    }
    panic!("{} tasks", Handle::current().metrics().num_alive_tasks());
}

/// Each attempt takes a little time, so paused time goes on.
#[tokio::test(start_paused = true)]
async fn a_caller_that_tries_without_a_pause_does_not_stop_the_clock() {
    let fake = FakeRedis::start();
    let (one, other) = (fake.client().await, fake.client().await);
    let guard = one.lock("a").lock().await.unwrap();
    tokio::spawn(async move {
        tokio::time::sleep(ms(1_000)).await;
        guard.unlock().await.unwrap();
    });
    let mut attempts = 0;
    let guard = loop {
        attempts += 1;
        assert!(attempts < 10_000, "time stands still");
        if let Some(guard) = other.lock("a").try_lock().await.unwrap() {
            break guard;
        }
    };
    assert!(attempts > 100, "{attempts}");
    guard.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_body_is_dropped_when_its_lock_is_lost() {
    let fake = FakeRedis::start();
    let client = fake.client().await;
    let lock = client.lock("a");
    let body = lock.run(|_held| async {
        fake.expire("a");
        std::future::pending::<Result<(), Error>>().await
    });
    match body.await {
        Err(Error::Lost { reason, .. }) => assert_eq!(reason, LossReason::Gone),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_missing_here_and_a_check_changes_nothing() {
    let fake = FakeRedis::start();
    let named = fake.builder().client_name("orders");
    let client = fake.connect(named).await.unwrap();
    let guard = client.lock("held").lock().await.unwrap();
    for name in ["held", "free"] {
        let held = || Some((fake.holder(name)?.owner, fake.holder(name)?.hold_count));
        let before = held();
        let missing = client.check(name).await.unwrap();
        assert!(missing.is_empty(), "{missing:?}");
        assert_eq!(held(), before);
    }
    guard.unlock().await.unwrap();
}

/// Their attempts come one after the other, each with a command timeout of its own.
#[tokio::test(start_paused = true)]
async fn retry_for_ends_for_each_of_many_callers() {
    let fake = FakeRedis::start();
    let client = super::quick(&fake).await;
    fake.pause();
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..12 {
        let lock = client.lock("a").retry_for(ms(8_000));
        calls.spawn(async move { lock.lock().await.map(drop) });
    }
    let all = tokio::time::timeout(ms(120_000), calls.join_all()).await;
    let all = all.expect("they end");
    assert!(all.iter().all(Result::is_err), "{all:?}");
    // As long as it takes: it is still there when the outage is over.
    let endless = client.lock("a").retry_for(std::time::Duration::MAX);
    let call = tokio::spawn(async move { endless.lock().await.map(drop) });
    tokio::time::sleep(ms(600_000)).await;
    assert!(!call.is_finished());
    fake.resume();
    call.await.unwrap().unwrap();
}

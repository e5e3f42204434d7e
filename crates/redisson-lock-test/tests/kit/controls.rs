//! What can befall the server and its connections.

use redisson_lock::{Error, LossReason};
use redisson_lock_test::FakeRedis;
use test_support::tokio;
use tokio::time::Instant;

use crate::{everywhere, free, ms, quick};

#[test]
fn a_lost_reply_costs_a_connection_and_no_hold() {
    everywhere(|fake| async move {
        let client = quick(&fake).await;
        let lock = client.lock("a");
        lock.lock().await.unwrap().unlock().await.unwrap();

        fake.lose_reply();
        let guard = lock.lock().await.unwrap();
        assert_eq!(client.stats().reconnects_total, 1, "the reply was lost");
        assert_eq!(fake.holder("a").unwrap().hold_count, 1, "once");

        fake.lose_reply();
        guard.unlock().await.unwrap();
        assert_eq!(client.stats().reconnects_total, 2);
        assert!(fake.holder("a").is_none());

        lock.lock().await.unwrap().unlock().await.unwrap();
        assert_eq!(
            client.stats().reconnects_total,
            2,
            "only the next reply is lost"
        );
    });
}

#[test]
fn a_script_whose_reply_is_lost_is_executed_immediately() {
    everywhere(|fake| async move {
        let client = quick(&fake).await;
        fake.lose_reply();
        let lock = client.lock("a");
        let locking = tokio::spawn(async move { lock.lock().await });
        while fake.holder("a").is_none() {
            tokio::time::sleep(ms(1)).await;
        }
        assert!(!locking.is_finished(), "held, and nobody knows yet");
        locking.await.unwrap().unwrap().unlock().await.unwrap();
    });
}

#[test]
fn two_replies_are_lost_after_two_calls() {
    everywhere(|fake| async move {
        let client = quick(&fake).await;
        fake.lose_reply();
        fake.lose_reply();
        // The resend has no reply either, and there is no third attempt.
        let failed = client.lock("a").lock().await;
        assert!(matches!(failed, Err(Error::NoAnswer { .. })), "{failed:?}");
        free(&fake, "a").await;
    });
}

#[test]
fn a_release_in_the_background_is_repeated_too() {
    everywhere(|fake| async move {
        let client = fake.client().await;
        let guard = client.lock("a").lock().await.unwrap();
        fake.lose_reply();
        drop(guard);
        let again = client.lock("a").lock().await.unwrap();
        assert_eq!(fake.holder("a").unwrap().hold_count, 1);
        again.unlock().await.unwrap();
    });
}

#[test]
fn a_cut_replaces_connections_and_ends_no_hold() {
    everywhere(|fake| async move {
        let client = quick(&fake).await;
        let guard = client.lock("a").lock().await.unwrap();
        for nth in 1..=5 {
            fake.cut();
            while client.stats().reconnects_total < nth {
                tokio::time::sleep(ms(5)).await;
            }
            assert_eq!(fake.holder("a").unwrap().hold_count, 1);
        }
        let before = fake.holder("a").unwrap();
        assert_eq!(before.owner, guard.owner().to_string());
        guard.unlock().await.unwrap();
        assert!(fake.holder("a").is_none());
    });
}

#[test]
fn a_waiter_is_woken_after_a_cut() {
    everywhere(|fake| async move {
        let (one, other) = (fake.client().await, fake.client().await);
        let guard = one.lock("a").lock().await.unwrap();
        let waiting = tokio::spawn(async move { other.lock("a").lock().await });
        tokio::time::sleep(ms(50)).await;
        fake.cut();
        tokio::time::sleep(ms(500)).await;
        assert!(!waiting.is_finished());
        let start = Instant::now();
        guard.unlock().await.unwrap();
        waiting.await.unwrap().unwrap().unlock().await.unwrap();
        assert!(start.elapsed() < ms(10_000), "{:?}", start.elapsed());
    });
}

#[test]
fn a_paused_server_does_not_answer_and_a_resumed_one_does() {
    everywhere(|fake| async move {
        let client = quick(&fake).await;
        fake.pause();
        let start = Instant::now();
        let failed = client.lock("a").lock().await;
        assert!(matches!(failed, Err(Error::NoAnswer { .. })), "{failed:?}");
        assert!(start.elapsed() >= ms(900), "after the command timeout");
        assert!(fake.holder("a").is_none(), "nothing was executed");
        assert!(matches!(
            fake.connect(fake.builder().command_timeout(ms(100))).await,
            Err(Error::NoAnswer { .. })
        ));

        fake.resume();
        let guard = client.lock("b").lock().await.unwrap();
        guard.unlock().await.unwrap();
        // What was sent during the pause may have been executed, and is then undone.
        free(&fake, "a").await;
    });
}

#[test]
fn a_call_outlives_a_pause_that_is_shorter_than_its_patience() {
    everywhere(|fake| async move {
        let client = quick(&fake).await;
        let lock = client.lock("a");
        lock.lock().await.unwrap().unlock().await.unwrap();
        fake.pause();
        let locking = tokio::spawn(async move { lock.lock().await });
        tokio::time::sleep(ms(200)).await;
        assert!(!locking.is_finished() && fake.holder("a").is_none());
        fake.resume();
        assert!(fake.holder("a").is_some(), "executed by the time of return");
        locking.await.unwrap().unwrap().unlock().await.unwrap();
    });
}

#[test]
fn a_hold_survives_a_short_pause_and_not_a_long_one() {
    everywhere(|fake| async move {
        let client = quick(&fake).await;
        let guard = client.lock("a").lock().await.unwrap();
        fake.pause();
        tokio::time::sleep(ms(1_500)).await;
        fake.resume();
        tokio::time::sleep(ms(2_500)).await;
        assert!(fake.holder("a").is_some(), "it is renewed again");

        fake.pause();
        let start = Instant::now();
        assert_eq!(guard.lost().await, LossReason::NotRenewed);
        assert!(start.elapsed() <= ms(8_000), "{:?}", start.elapsed());
        tokio::time::sleep(ms(1_100)).await;
        assert!(fake.holder("a").is_none(), "leases run out during a pause");
    });
}

/// On one thread, so that no client acts between two lines.
#[tokio::test(start_paused = true)]
async fn what_a_cut_connection_had_not_delivered_is_never_executed() {
    let fake = FakeRedis::start();
    let client = fake.client().await;
    let known = client.lock("known").lock().await.unwrap();
    known.unlock().await.unwrap();
    for nth in 0..20 {
        let name = format!("{nth}");
        fake.pause();
        let lock = client.lock(&name);
        let locking = tokio::spawn(async move { lock.try_lock().await });
        tokio::time::sleep(ms(10)).await;
        fake.cut();
        fake.resume();
        // It is not sent again yet.
        assert!(fake.holder(&name).is_none(), "{name}");
        let guard = locking.await.unwrap().unwrap().unwrap();
        assert_eq!(fake.holder(&name).unwrap().hold_count, 1);
        guard.unlock().await.unwrap();
    }
}

#[test]
fn wiped_locks_are_gone() {
    everywhere(|fake| async move {
        let client = quick(&fake).await;
        let (a, b) = (
            client.lock("a").lock().await.unwrap(),
            client.lock("b").lock().await.unwrap(),
        );
        fake.wipe();
        assert!(fake.holder("a").is_none() && fake.holder("b").is_none());
        assert_eq!(
            (a.lost().await, b.lost().await),
            (LossReason::Gone, LossReason::Gone)
        );
        // The names can be locked again by others.
        let other = quick(&fake).await;
        other
            .lock("a")
            .lock()
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap();
    });
}

#[test]
fn an_expired_lock_is_gone_and_others_are_not() {
    everywhere(|fake| async move {
        let client = quick(&fake).await;
        let (a, b) = (
            client.lock("a").lock().await.unwrap(),
            client.lock("b").lock().await.unwrap(),
        );
        assert!(fake.expire("a"));
        assert!(!fake.expire("a"), "it is not held any more");
        assert!(!fake.expire("c"));
        assert_eq!(a.lost().await, LossReason::Gone);
        b.unlock().await.unwrap();
    });
}

#[test]
fn the_holder_is_shown_as_it_is() {
    everywhere(|fake| async move {
        assert!(fake.holder("shop:a").is_none());
        let builder = fake.builder().key_prefix("shop:");
        let client = fake.connect(builder).await.unwrap();
        let lock = client.lock("a").lease(ms(60_000));
        let outer = lock.lock().await.unwrap();
        let inner = lock.lock().await.unwrap();
        let holder = fake.holder("shop:a").unwrap();
        assert_eq!(holder.owner, outer.owner().to_string());
        assert_eq!(holder.hold_count, 2);
        let left = holder.lease_left.unwrap();
        assert!(left <= ms(60_000) && left > ms(58_000), "{left:?}");
        assert_eq!(format!("{fake:?}"), r#"FakeRedis { locks: ["shop:a"] }"#);

        tokio::time::sleep(ms(1_000)).await;
        let less = fake.holder("shop:a").unwrap().lease_left.unwrap();
        assert!(less + ms(990) <= left, "time passes: {left:?}, {less:?}");
        inner.unlock().await.unwrap();
        assert_eq!(fake.holder("shop:a").unwrap().hold_count, 1);
        outer.unlock().await.unwrap();
        assert!(fake.holder("shop:a").is_none());
    });
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_passes_immediately() {
    let fake = FakeRedis::start();
    let client = fake.client().await;
    let real = std::time::Instant::now();
    let guard = client.lock("a").lease(ms(30_000)).lock().await.unwrap();
    let start = Instant::now();
    assert_eq!(guard.lost().await, LossReason::LeaseOver);
    let took = start.elapsed();
    // A little before the server, so that the holder stops first.
    assert!(took >= ms(29_000) && took <= ms(30_000), "{took:?}");
    tokio::time::sleep(ms(1_000)).await;
    assert!(fake.holder("a").is_none());
    assert!(real.elapsed() < ms(10_000), "in no time");
}

//! Every way to miss the message of an unlock, by hand: the waiter has the lock within seconds, not
//! within a lease.

use std::time::Duration;

use redisson_lock::{Error, LockGuard};
use sim::oracle::channel;
use sim::workload::ms;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::fixture::{Fixture, JAVA, KEY, begin, end, lock, play};

type Waiting = JoinHandle<Result<LockGuard, Error>>;

/// Java holds, with a lease of 30 s, and a task of ours waits for it.
async fn waiting(fixture: &Fixture) -> Waiting {
    assert!(fixture.java_locks(JAVA));
    let waiting = begin(lock(&fixture.task(0))).await;
    tokio::time::sleep(ms(50)).await;
    assert_eq!(fixture.client.stats().subscriptions, 1);
    waiting
}

fn java_unlocks(fixture: &Fixture) {
    fixture.java_unlocks();
    fixture.world.publish(&channel(KEY));
}

async fn has_it_within(limit: Duration, waiting: Waiting) {
    let start = Instant::now();
    let guard = end(waiting).await.expect("it is free");
    assert!(start.elapsed() <= limit, "after {:?}", start.elapsed());
    guard.unlock().await.expect("held");
}

#[test]
fn a_message_wakes() {
    play(true, async |fixture| {
        let waiting = waiting(&fixture).await;
        java_unlocks(&fixture);
        has_it_within(ms(20), waiting).await;
    });
}

#[test]
fn an_unlock_before_the_subscription_is_noticed() {
    play(true, async |fixture| {
        assert!(fixture.java_locks(JAVA));
        fixture.world.hold_subscriptions(0, true);
        let waiting = begin(lock(&fixture.task(0))).await;
        tokio::time::sleep(ms(50)).await;
        java_unlocks(&fixture);
        fixture.world.hold_subscriptions(0, false);
        has_it_within(ms(20), waiting).await;
    });
}

#[test]
fn an_unlock_while_an_attempt_is_on_its_way_is_noticed() {
    play(true, async |fixture| {
        let waiting = waiting(&fixture).await;
        fixture.world.delay(0, ms(100));
        // A needless message makes it attempt again; its answer is "busy".
        fixture.world.publish(&channel(KEY));
        tokio::time::sleep(ms(150)).await;
        java_unlocks(&fixture);
        has_it_within(ms(220), waiting).await;
    });
}

#[test]
fn an_unlock_while_the_connection_is_away_is_noticed() {
    play(true, async |fixture| {
        let waiting = waiting(&fixture).await;
        fixture.world.cut(0, true);
        java_unlocks(&fixture);
        has_it_within(ms(200), waiting).await;
    });
}

#[test]
fn a_connection_that_fell_silent_is_found_out() {
    play(true, async |fixture| {
        let waiting = waiting(&fixture).await;
        fixture.world.cut(0, false);
        java_unlocks(&fixture);
        // A heartbeat every command timeout, of which each has half as long for its answer.
        has_it_within(ms(1_600), waiting).await;
    });
}

#[test]
fn a_waiter_that_leaves_passes_the_wake_up_on() {
    play(true, async |fixture| {
        let first = waiting(&fixture).await;
        let second = begin(lock(&fixture.task(1))).await;
        java_unlocks(&fixture);
        first.abort();
        has_it_within(ms(50), second).await;
    });
}

/// The command timeout is a second.
#[test]
fn a_call_that_comes_to_a_silent_connection_waits_on_its_replacement() {
    play(true, async |fixture| {
        assert!(fixture.java_locks(JAVA));
        fixture.world.cut(0, false);
        let waiting = begin(lock(&fixture.task(0))).await;
        tokio::time::sleep(ms(1_500)).await;
        assert!(!waiting.is_finished(), "{:?}", end(waiting).await.map(drop));
        java_unlocks(&fixture);
        has_it_within(ms(20), waiting).await;
    });
}

#[test]
fn answers_that_take_longer_than_half_the_command_timeout_confirm() {
    play(true, async |fixture| {
        assert!(fixture.java_locks(JAVA));
        fixture.world.delay(0, ms(700));
        let waiting = begin(lock(&fixture.task(0))).await;
        tokio::time::sleep(ms(15_000)).await;
        assert!(!waiting.is_finished(), "{:?}", end(waiting).await.map(drop));
        assert_eq!(
            fixture.client.stats().reconnects_total,
            0,
            "it is slow, not dead"
        );
        java_unlocks(&fixture);
        has_it_within(ms(1_450), waiting).await;
    });
}

#[test]
fn a_waiter_whose_channel_is_refused_after_a_reconnect_is_told_the_right() {
    play(true, async |fixture| {
        let waiting = waiting(&fixture).await;
        // As in Redis, that ends the connection.
        fixture.world.acl(0, "resetchannels");
        let start = Instant::now();
        let reported = end(waiting).await.map(drop);
        assert!(
            start.elapsed() < ms(200),
            "after {:?}: {reported:?}",
            start.elapsed()
        );
        let named = matches!(&reported, Err(Error::PermissionDenied { permission, .. }) if permission.starts_with('&'));
        assert!(named, "{reported:?}");
        assert_eq!(fixture.client.stats().subscriptions, 0);
    });
}

#[test]
fn a_waiter_whose_channel_was_refused_once_is_woken_by_an_unlock() {
    play(true, async |fixture| {
        let waiting = waiting(&fixture).await;
        fixture.world.deny(0, "subscribe", true);
        fixture.world.hold_scripts(0, true);
        fixture.world.cut(0, true);
        // Refused, and its attempt is on its way: by the time of the answer it may subscribe again.
        tokio::time::sleep(ms(100)).await;
        assert_eq!(fixture.client.stats().subscriptions, 0);
        fixture.world.deny(0, "subscribe", false);
        fixture.world.hold_scripts(0, false);
        tokio::time::sleep(ms(100)).await;
        java_unlocks(&fixture);
        has_it_within(ms(20), waiting).await;
    });
}

#[test]
fn a_refused_heartbeat_is_a_sign_of_life() {
    play(true, async |fixture| {
        fixture.world.deny(0, "ping", true);
        let before = connected(&fixture);
        let waiting = waiting(&fixture).await;
        tokio::time::sleep(ms(5_000)).await;
        assert_eq!(connected(&fixture), before);
        java_unlocks(&fixture);
        has_it_within(ms(20), waiting).await;
    });
}

#[test]
fn a_subscription_that_was_under_way_when_its_connection_ended_is_asked_for_again() {
    play(true, async |fixture| {
        assert!(fixture.java_locks(JAVA));
        fixture.world.hold_subscriptions(0, true);
        let waiting = begin(lock(&fixture.task(0))).await;
        fixture.world.cut(0, true);
        fixture.world.hold_subscriptions(0, false);
        // The end may have been caused by what was under way: a pause comes first.
        tokio::time::sleep(ms(100)).await;
        assert!(
            fixture.world.channels().contains(&channel(KEY)),
            "nobody listens"
        );
        java_unlocks(&fixture);
        has_it_within(ms(20), waiting).await;
    });
}

#[test]
fn a_waiter_that_comes_while_its_channel_is_being_unsubscribed_is_subscribed() {
    play(true, async |fixture| {
        assert!(fixture.java_locks(JAVA));
        assert!(
            fixture
                .task(0)
                .try_lock_for(ms(50))
                .await
                .expect("answered")
                .is_none()
        );
        fixture.world.hold_subscriptions(0, true);
        // The channel lingers for a second after its last waiter; then UNSUBSCRIBE is on its way.
        tokio::time::sleep(ms(1_050)).await;
        assert!(
            fixture.world.channels().contains(&channel(KEY)),
            "it has not arrived"
        );
        let waiting = begin(lock(&fixture.task(0))).await;
        fixture.world.hold_subscriptions(0, false);
        tokio::time::sleep(ms(50)).await;
        assert!(
            fixture.world.channels().contains(&channel(KEY)),
            "nobody listens"
        );
        java_unlocks(&fixture);
        has_it_within(ms(20), waiting).await;
    });
}

#[test]
fn a_connection_that_served_is_replaced_without_a_pause() {
    play(true, async |fixture| {
        let waiting = waiting(&fixture).await;
        for nth in 0..10 {
            fixture.world.cut(0, true);
            tokio::time::sleep(ms(20)).await;
            assert!(
                fixture.world.channels().contains(&channel(KEY)),
                "nobody listens after cut {nth}"
            );
        }
        java_unlocks(&fixture);
        has_it_within(ms(20), waiting).await;
    });
}

#[test]
fn while_the_server_is_away_attempts_to_connect_get_rarer() {
    play(true, async |fixture| {
        let waiting = waiting(&fixture).await;
        let before = connected(&fixture);
        fixture.world.down_for(ms(5_000));
        tokio::time::sleep(ms(5_000)).await;
        // 20 ms and twice as long each time up to a second.
        let attempts = connected(&fixture) - before;
        assert!((8..14).contains(&attempts), "{attempts} attempts in 5 s");
        tokio::time::sleep(ms(1_100)).await;
        java_unlocks(&fixture);
        has_it_within(ms(20), waiting).await;
    });
}

/// How many times the client has tried to connect.
fn connected(fixture: &Fixture) -> u64 {
    fixture.world.attempts_to_connect(0)
}

/// Its pauses grow to 128 ms, and never past the lease of the holder.
#[test]
fn a_caller_that_pauses_attempts_when_the_lease_is_over() {
    play(true, async |fixture| {
        for lease in [400, 777, 1_300] {
            let words = [
                vec![
                    "hincrby".to_owned(),
                    KEY.to_owned(),
                    "java:1".to_owned(),
                    "1".to_owned(),
                ],
                vec!["pexpire".to_owned(), KEY.to_owned(), lease.to_string()],
            ];
            fixture.world.with_keyspace(|keyspace| {
                for words in words {
                    keyspace.call(&words).expect("allowed");
                }
            });
            let start = Instant::now();
            let guard = fixture.client.spin_lock(KEY).lock().await.expect("free");
            let waited = start.elapsed();
            // A lease lasts to the end of its last millisecond; an attempt takes its round trip.
            let late = waited.saturating_sub(ms(lease));
            assert!(
                waited >= ms(lease) && late <= ms(10),
                "{lease} ms: {waited:?}"
            );
            guard.unlock().await.expect("held");
        }
    });
}

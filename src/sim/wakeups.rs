//! Every way to miss the message of an unlock, by hand: the waiter has the lock within seconds, not
//! within a lease.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::actors::ms;
use super::java::channel;
use super::stage::{JAVA, KEY, Stage, begin, end, lock, play};
use crate::error::Error;
use crate::guard::LockGuard;
use crate::redis::Role;

type Waiting = JoinHandle<Result<LockGuard, Error>>;

/// Java holds, with a lease of 30 s, and a task of ours waits for it.
async fn waiting(stage: &Stage) -> Waiting {
    assert!(stage.java_locks(JAVA));
    let waiting = begin(lock(&stage.task(0))).await;
    tokio::time::sleep(ms(50)).await;
    assert_eq!(stage.client.stats().subscriptions, 1);
    waiting
}

fn java_unlocks(stage: &Stage) {
    stage.java_unlocks();
    stage.world.publish(&channel(KEY));
}

async fn has_it_within(limit: Duration, waiting: Waiting) {
    let start = Instant::now();
    let guard = end(waiting).await.expect("it is free");
    assert!(start.elapsed() <= limit, "after {:?}", start.elapsed());
    guard.unlock().await.expect("held");
}

#[test]
fn a_message_wakes() {
    play(true, async |stage| {
        let waiting = waiting(&stage).await;
        java_unlocks(&stage);
        has_it_within(ms(20), waiting).await;
    });
}

#[test]
fn an_unlock_before_the_subscription_is_noticed() {
    play(true, async |stage| {
        assert!(stage.java_locks(JAVA));
        stage.world.hold_subscriptions(0, true);
        let waiting = begin(lock(&stage.task(0))).await;
        tokio::time::sleep(ms(50)).await;
        java_unlocks(&stage);
        stage.world.hold_subscriptions(0, false);
        has_it_within(ms(20), waiting).await;
    });
}

#[test]
fn an_unlock_while_an_attempt_is_on_its_way_is_noticed() {
    play(true, async |stage| {
        let waiting = waiting(&stage).await;
        stage.world.hold_answers(0, true);
        // A needless message makes it attempt again; its answer is "busy".
        stage.world.publish(&channel(KEY));
        tokio::time::sleep(ms(50)).await;
        java_unlocks(&stage);
        tokio::time::sleep(ms(50)).await;
        stage.world.hold_answers(0, false);
        has_it_within(ms(20), waiting).await;
    });
}

#[test]
fn an_unlock_while_the_subscriber_is_away_is_noticed() {
    play(true, async |stage| {
        let waiting = waiting(&stage).await;
        stage.world.cut(0, Role::Messages, true);
        java_unlocks(&stage);
        has_it_within(ms(200), waiting).await;
    });
}

#[test]
fn a_subscriber_that_fell_silent_is_found_out() {
    play(true, async |stage| {
        let waiting = waiting(&stage).await;
        stage.world.cut(0, Role::Messages, false);
        java_unlocks(&stage);
        // A heartbeat every command timeout, of which each has half as long for its answer.
        has_it_within(ms(1_600), waiting).await;
    });
}

#[test]
fn a_lagging_message_stream_wakes() {
    play(true, async |stage| {
        let waiting = waiting(&stage).await;
        stage.world.deafen(0, ms(100));
        java_unlocks(&stage);
        tokio::time::sleep(ms(200)).await;
        stage.world.lag(0);
        has_it_within(ms(20), waiting).await;
    });
}

#[test]
fn a_waiter_that_leaves_passes_the_wake_up_on() {
    play(true, async |stage| {
        let first = waiting(&stage).await;
        let second = begin(lock(&stage.task(1))).await;
        java_unlocks(&stage);
        first.abort();
        has_it_within(ms(50), second).await;
    });
}

/// The command timeout is a second.
#[test]
fn a_call_that_comes_to_a_silent_subscriber_waits_on_its_replacement() {
    play(true, async |stage| {
        assert!(stage.java_locks(JAVA));
        stage.world.cut(0, Role::Messages, false);
        let waiting = begin(lock(&stage.task(0))).await;
        tokio::time::sleep(ms(1_500)).await;
        assert!(!waiting.is_finished(), "{:?}", end(waiting).await.map(drop));
        java_unlocks(&stage);
        has_it_within(ms(20), waiting).await;
    });
}

#[test]
fn answers_that_take_longer_than_half_the_command_timeout_confirm_from_the_second_call_on() {
    play(true, async |stage| {
        assert!(stage.java_locks(JAVA));
        stage.world.delay_subscriber(0, ms(700));
        // The first call finds out that they are slow.
        let _ = stage.task(0).try_lock_for(ms(2_000)).await;
        let waiting = begin(lock(&stage.task(0))).await;
        tokio::time::sleep(ms(5_000)).await;
        assert!(!waiting.is_finished(), "{:?}", end(waiting).await.map(drop));
        let connections = connected(&stage, Role::Messages);
        tokio::time::sleep(ms(10_000)).await;
        assert_eq!(
            connected(&stage, Role::Messages),
            connections,
            "it is slow, not dead"
        );
        java_unlocks(&stage);
        has_it_within(ms(720), waiting).await;
    });
}

#[test]
fn a_waiter_whose_channel_is_refused_after_a_reconnect_is_told_the_right() {
    play(true, async |stage| {
        let waiting = waiting(&stage).await;
        stage.world.deny(0, "subscribe", true);
        stage.world.cut(0, Role::Messages, true);
        let start = Instant::now();
        let told = end(waiting).await.map(drop);
        assert!(
            start.elapsed() < ms(200),
            "after {:?}: {told:?}",
            start.elapsed()
        );
        let named = matches!(&told, Err(Error::PermissionDenied { permission, .. }) if permission.starts_with('&'));
        assert!(named, "{told:?}");
        assert_eq!(stage.client.stats().subscriptions, 0);
    });
}

#[test]
fn a_waiter_whose_channel_was_refused_once_is_woken_by_an_unlock() {
    play(true, async |stage| {
        let waiting = waiting(&stage).await;
        stage.world.deny(0, "subscribe", true);
        stage.world.hold_scripts(0, true);
        stage.world.cut(0, Role::Messages, true);
        // Refused, and its attempt is on its way: by the time of the answer it may subscribe again.
        tokio::time::sleep(ms(100)).await;
        assert_eq!(stage.client.stats().subscriptions, 0);
        stage.world.deny(0, "subscribe", false);
        stage.world.hold_scripts(0, false);
        tokio::time::sleep(ms(100)).await;
        java_unlocks(&stage);
        has_it_within(ms(20), waiting).await;
    });
}

#[test]
fn without_the_right_to_ping_callers_are_told_so_and_connections_get_rarer() {
    play(true, async |stage| {
        assert!(stage.java_locks(JAVA));
        stage.world.deny(0, "ping", true);
        let before = connected(&stage, Role::Messages);
        let start = Instant::now();
        while start.elapsed() < ms(10_000) {
            let told = stage.task(0).lock().await.map(drop);
            let named = matches!(&told, Err(Error::PermissionDenied { permission, .. }) if permission == "+ping");
            assert!(named, "after {:?}: {told:?}", start.elapsed());
        }
        let connections = connected(&stage, Role::Messages) - before;
        assert!(
            (10..20).contains(&connections),
            "{connections} connections in 10 s"
        );
        // Granted: the next session serves.
        stage.world.deny(0, "ping", false);
        tokio::time::sleep(ms(1_100)).await;
        let waiting = begin(lock(&stage.task(0))).await;
        tokio::time::sleep(ms(50)).await;
        java_unlocks(&stage);
        has_it_within(ms(20), waiting).await;
    });
}

#[test]
fn a_waiter_is_told_when_the_right_to_ping_is_taken_away() {
    play(true, async |stage| {
        let waiting = waiting(&stage).await;
        stage.world.deny(0, "ping", true);
        let start = Instant::now();
        let told = end(waiting).await.map(drop);
        // With the next heartbeat.
        assert!(
            start.elapsed() < ms(1_200),
            "after {:?}: {told:?}",
            start.elapsed()
        );
        assert!(
            matches!(&told, Err(Error::PermissionDenied { permission, .. }) if permission == "+ping"),
            "{told:?}"
        );
    });
}

#[test]
fn a_subscription_that_was_under_way_when_its_connection_ended_is_asked_for_again() {
    play(true, async |stage| {
        assert!(stage.java_locks(JAVA));
        stage.world.hold_subscriptions(0, true);
        let waiting = begin(lock(&stage.task(0))).await;
        stage.world.cut(0, Role::Messages, true);
        tokio::time::sleep(ms(50)).await;
        assert!(
            stage.world.channels().contains(&channel(KEY)),
            "nobody listens"
        );
        java_unlocks(&stage);
        has_it_within(ms(20), waiting).await;
    });
}

#[test]
fn a_waiter_that_comes_while_its_channel_is_being_unsubscribed_is_subscribed() {
    play(true, async |stage| {
        assert!(stage.java_locks(JAVA));
        assert!(
            stage
                .task(0)
                .try_lock_for(ms(50))
                .await
                .expect("answered")
                .is_none()
        );
        stage.world.hold_subscriptions(0, true);
        // The channel lingers for a second after its last waiter; then UNSUBSCRIBE is on its way.
        tokio::time::sleep(ms(1_050)).await;
        assert!(
            stage.world.channels().contains(&channel(KEY)),
            "it has not arrived"
        );
        let waiting = begin(lock(&stage.task(0))).await;
        stage.world.hold_subscriptions(0, false);
        tokio::time::sleep(ms(50)).await;
        assert!(
            stage.world.channels().contains(&channel(KEY)),
            "nobody listens"
        );
        java_unlocks(&stage);
        has_it_within(ms(20), waiting).await;
    });
}

#[test]
fn a_subscriber_connection_that_served_is_replaced_without_a_pause() {
    play(true, async |stage| {
        let waiting = waiting(&stage).await;
        for nth in 0..10 {
            stage.world.cut(0, Role::Messages, true);
            tokio::time::sleep(ms(10)).await;
            assert!(
                stage.world.channels().contains(&channel(KEY)),
                "nobody listens after cut {nth}"
            );
        }
        java_unlocks(&stage);
        has_it_within(ms(20), waiting).await;
    });
}

#[test]
fn a_subscriber_that_is_told_to_move_listens_on_a_new_connection_and_wakes_everyone() {
    play(true, async |stage| {
        let waiting = waiting(&stage).await;
        let before = connected(&stage, Role::Messages);
        // The unlock was told on another server.
        stage.java_unlocks();
        stage.client.handle.shared.redis.moved.notify_one();
        has_it_within(ms(50), waiting).await;
        assert_eq!(connected(&stage, Role::Messages) - before, 1);
        assert!(stage.world.channels().contains(&channel(KEY)));
    });
}

#[test]
fn a_subscriber_that_is_told_to_move_again_and_again_does_so_ever_more_seldom() {
    play(true, async |stage| {
        let before = connected(&stage, Role::Messages);
        let start = Instant::now();
        while start.elapsed() < ms(5_000) {
            stage.client.handle.shared.redis.moved.notify_one();
            tokio::time::sleep(ms(1)).await;
        }
        let connections = connected(&stage, Role::Messages) - before;
        assert!(
            (8..14).contains(&connections),
            "{connections} connections in 5 s"
        );
    });
}

#[test]
fn while_the_server_is_away_attempts_to_connect_get_rarer() {
    play(true, async |stage| {
        let waiting = waiting(&stage).await;
        let roles = [Role::Commands, Role::Messages];
        let before = roles.map(|role| connected(&stage, role));
        stage.world.down_for(ms(5_000));
        tokio::time::sleep(ms(5_000)).await;
        for (role, before) in roles.into_iter().zip(before) {
            // 20 ms and twice as long each time up to a second.
            let attempts = connected(&stage, role) - before;
            assert!(
                (8..14).contains(&attempts),
                "{attempts} attempts in 5 s: {role:?}"
            );
        }
        tokio::time::sleep(ms(1_100)).await;
        java_unlocks(&stage);
        has_it_within(ms(20), waiting).await;
    });
}

/// How many times the client has tried to connect.
fn connected(stage: &Stage, role: Role) -> u64 {
    stage
        .world
        .state
        .lock()
        .opened
        .get(&(0, role))
        .copied()
        .unwrap_or_default()
}

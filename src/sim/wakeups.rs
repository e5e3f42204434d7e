//! Every way to miss the message of an unlock, by hand: the waiter has the lock within seconds, not within a lease.

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
        // A heartbeat every command timeout, of which each has as long for its answer.
        has_it_within(ms(2_200), waiting).await;
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

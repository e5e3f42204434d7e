//! The traces of `traces.rs` that hand the lock from one task to the next, and what is lost or dropped
//! in the middle of that.

use redisson_lock::{Error, LockGuard, LossReason};
use sim::workload::ms;
use tokio::task::JoinHandle;

use crate::fixture::{Fixture, begin, end, lock, play};

/// The field that a task of our client has.
fn field_of(fixture: &Fixture, nth: i64) -> String {
    format!("{}:{}", fixture.client.id(), -1 - nth)
}

fn holder(fixture: &Fixture) -> Option<String> {
    fixture.server().map(|(field, _)| field)
}

/// Task 0 hands the lock to task 1: executed, and not answered. With the unlock of the one and the call
/// of the other.
async fn passing(
    fixture: &Fixture,
) -> (
    JoinHandle<Result<(), Error>>,
    JoinHandle<Result<LockGuard, Error>>,
) {
    let first = fixture.task(0).lock().await.expect("free");
    let next = begin(lock(&fixture.task(1))).await;
    fixture.world.hold_answers(0, true);
    let unlock = begin(first.unlock()).await;
    assert_eq!(holder(fixture), Some(field_of(fixture, 1)));
    (unlock, next)
}

#[test]
fn v02_a_late_pass_does_not_rob_its_sender() {
    play(true, async |fixture| {
        let first = fixture.task(0).lock().await.expect("free");
        let next = begin(lock(&fixture.task(1))).await;
        fixture.hold_commands();
        let unlock = begin(first.unlock()).await;
        fixture.lose_connection();
        end(unlock).await.expect("sent again");
        let second = end(next).await.expect("handed over");
        let back = begin(lock(&fixture.task(0))).await;
        second.unlock().await.expect("held");
        let third = end(back).await.expect("handed back");
        fixture.believe(&third);
        fixture.world.execute_late_now(0);
        assert_eq!(holder(&fixture), Some(field_of(&fixture, 0)));
        fixture.nobody_is_wrong();
        assert_eq!(
            fixture.client.stats().passes_total,
            3,
            "one of them is the fixture's"
        );
        third.unlock().await.expect("held");
    });
}

#[test]
fn v10_a_receiver_that_calls_again_waits_for_the_pass() {
    play(true, async |fixture| {
        let (unlock, next) = passing(&fixture).await;
        next.abort();
        let again = begin(lock(&fixture.task(1))).await;
        fixture.world.hold_answers(0, false);
        end(unlock).await.expect("passed");
        let guard = end(again).await.expect("released first, then taken");
        fixture.believe(&guard);
        assert_eq!(fixture.count(), 1);
        fixture.nobody_is_wrong();
        guard.unlock().await.expect("held");
        fixture.rest().await;
        assert_eq!(fixture.server(), None);
    });
}

#[test]
fn v11_a_pass_without_an_answer_leaves_no_field_behind() {
    play(true, async |fixture| {
        let (unlock, next) = passing(&fixture).await;
        next.abort();
        fixture.world.down_for(ms(1_500));
        let unlocked = end(unlock).await;
        assert!(
            matches!(unlocked, Err(Error::NoAnswer { .. })),
            "{unlocked:?}"
        );
        fixture.rest().await;
        assert_eq!(fixture.server(), None);
    });
}

#[test]
fn a_receiver_of_a_pass_without_an_answer_gets_the_lock_in_the_end() {
    play(true, async |fixture| {
        let lost = fixture.client.stats().lost_total;
        let (unlock, next) = passing(&fixture).await;
        fixture.world.down_for(ms(1_050));
        let unlocked = end(unlock).await;
        assert!(
            matches!(unlocked, Err(Error::NoAnswer { .. })),
            "{unlocked:?}"
        );
        let guard = end(next).await.expect("its turn");
        fixture.believe(&guard);
        assert_eq!(holder(&fixture), Some(field_of(&fixture, 1)));
        fixture.nobody_is_wrong();
        guard.unlock().await.expect("held");
        assert_eq!(fixture.client.stats().lost_total, lost);
    });
}

#[test]
fn a_pass_of_what_was_taken_away_is_a_loss_for_the_giver_alone() {
    play(true, async |fixture| {
        let first = fixture.task(0).lock().await.expect("free");
        let next = begin(lock(&fixture.task(1))).await;
        fixture.java_unlocks();
        let unlocked = first.unlock().await;
        let gone = LossReason::Gone;
        assert!(
            matches!(&unlocked, Err(Error::Lost { reason, .. }) if *reason == gone),
            "{unlocked:?}"
        );
        let guard = end(next).await.expect("it is free");
        fixture.believe(&guard);
        fixture.nobody_is_wrong();
        guard.unlock().await.expect("held");
    });
}

/// A receiver that waits for its subscription is handed the lock as well.
#[test]
fn a_receiver_that_is_not_subscribed_yet_gets_the_lock() {
    play(true, async |fixture| {
        fixture.world.confirm_nothing(0);
        fixture.world.hold_answers(0, true);
        let task = fixture.task(2);
        let taking = begin(async move { task.try_lock().await }).await;
        let first = begin(lock(&fixture.task(0))).await;
        let next = begin(lock(&fixture.task(1))).await;
        fixture.world.hold_answers(0, false);
        let guard = end(taking).await.expect("answered").expect("it is free");
        guard.unlock().await.expect("held");
        let guard = tokio::time::timeout(ms(500), first)
            .await
            .expect("immediately");
        let guard = guard.expect("no panic").expect("its turn");
        fixture.believe(&guard);
        fixture.nobody_is_wrong();
        guard.unlock().await.expect("held");
        let guard = tokio::time::timeout(ms(500), next)
            .await
            .expect("immediately");
        guard
            .expect("no panic")
            .expect("its turn")
            .unlock()
            .await
            .expect("held");
    });
}

//! Passes: whom the lock is handed to, what an answer makes of it, and what happens without one.

mod streaks;

use std::sync::Arc;
use std::time::Duration;

use crate::HandOff;
use crate::LossReason;
use crate::input::{
    CallClaims, OwnerLost, PassNotExecuted, ReleaseDropped, ReleaseSent, TimePasses,
};
use crate::tests::{A, B, C, Fixture, GONE, RULES, TERMS, Unlock};
use crate::{
    Admission, Ending, HoldId, Order, OwnerKey, ReleaseSend, Terms, Total, Untaken, WaiterId,
};

fn handing_over(bounds: HandOff) -> Fixture {
    let mut fixture = Fixture::new();
    Arc::make_mut(&mut fixture.core.rules).handoff = bounds;
    fixture
}

fn queues(fixture: &mut Fixture, waiter: WaiterId) {
    assert_eq!(fixture.admit(waiter), Admission::Queued);
}

/// `A` holds, and the others wait in this order.
fn held_by_a(bounds: HandOff, others: &[OwnerKey]) -> (Fixture, HoldId, Vec<WaiterId>) {
    let mut fixture = handing_over(bounds);
    let hold = fixture.lock(A);
    let wait = |owner: &OwnerKey| {
        let waiter = fixture.call(*owner, Order::Queued);
        queues(&mut fixture, waiter);
        waiter
    };
    let waiters = others.iter().map(wait).collect();
    (fixture, hold, waiters)
}

/// The unlock of `A` is handed to the connection as a pass.
fn passing(fixture: &mut Fixture, hold: HoldId) -> Unlock {
    let unlock = fixture.unlock(A, hold);
    assert!(sends_pass(fixture, A));
    unlock
}

fn sends_pass(fixture: &mut Fixture, owner: OwnerKey) -> bool {
    let said = fixture.sends_release(owner, true);
    matches!(said, ReleaseSend::Pass { .. })
}

fn is_granted(fixture: &mut Fixture, waiter: WaiterId) {
    assert_eq!(fixture.admit(waiter), Admission::Granted);
}

/// The call takes what it was handed, and returns.
fn picks_up(fixture: &mut Fixture, waiter: WaiterId) -> HoldId {
    is_granted(fixture, waiter);
    let claimed = fixture.step(CallClaims { call: waiter });
    leave(fixture, waiter);
    claimed.expect("wanted").hold
}

/// The call takes the lock by itself, and returns.
fn takes(fixture: &mut Fixture, waiter: WaiterId) -> HoldId {
    let (permit, sent_at) = (fixture.permit(waiter), fixture.now);
    let taken = fixture.takes_at(&permit, sent_at);
    leave(fixture, waiter);
    taken.expect("wanted").0
}

fn leave(fixture: &mut Fixture, waiter: WaiterId) {
    fixture.leaves(waiter);
}

#[test]
fn an_unlock_hands_the_lock_to_the_first_that_waits() {
    let (mut fixture, hold, waiters) = held_by_a(HandOff::default(), &[B, C]);
    let unlock = passing(&mut fixture, hold);
    assert_eq!(fixture.admit(waiters[0]), Admission::Sent);
    assert_eq!(fixture.unlocked(&unlock, 0, None), Ok(()));
    assert_eq!(fixture.out.woken[..], [waiters[0]]);
    let totals = [(Total::Released, 1), (Total::Passed, 1)];
    assert_eq!(fixture.out.totals[..], totals);
    is_granted(&mut fixture, waiters[0]);
    let claimed = fixture.step(CallClaims { call: waiters[0] });
    let claimed = claimed.expect("wanted");
    assert_eq!(claimed.target, 1);
    leave(&mut fixture, waiters[0]);
    assert!(fixture.out.sends.is_empty());
    assert_eq!(fixture.core.counts().held, 1);
}

#[test]
fn nobody_else_attempts_while_the_lock_is_handed_over() {
    let (mut fixture, hold, waiters) = held_by_a(HandOff::default(), &[B, C]);
    let unlock = passing(&mut fixture, hold);
    queues(&mut fixture, waiters[1]);
    fixture.unlocked(&unlock, 0, None).expect("passed");
    queues(&mut fixture, waiters[1]);
}

#[test]
fn a_guard_that_is_dropped_hands_the_lock_over_as_well() {
    let (mut fixture, hold, waiters) = held_by_a(HandOff::default(), &[B]);
    let job = fixture.drop_hold(A, hold);
    fixture.next_of(A, job);
    assert!(sends_pass(&mut fixture, A));
    fixture.answered(A, 0, None);
    assert_eq!(fixture.out.woken[..], [waiters[0]]);
    is_granted(&mut fixture, waiters[0]);
}

#[test]
fn an_outer_hold_that_stays_is_not_handed_over() {
    let (mut fixture, _, _) = held_by_a(HandOff::default(), &[B]);
    let inner = fixture.lock(A);
    fixture.unlock(A, inner);
    assert_eq!(fixture.release_sent(A), 1);
}

/// Two concurrent sections: the one that keeps running after its limit, and the receiver's.
#[test]
fn nothing_is_handed_over_from_under_a_section_that_runs_on() {
    let mut fixture = handing_over(HandOff::default());
    let limit = Some(Duration::from_secs(1));
    let outer = fixture.lock_with(A, Terms { limit, ..TERMS });
    let inner = fixture.lock(A);
    let waiter = fixture.call(B, Order::Queued);
    fixture.admit(waiter);
    fixture.now = fixture.now + Duration::from_secs(1);
    fixture.step(TimePasses {});
    let lost = Ending::Lost(LossReason::MaxHold);
    assert_eq!(fixture.out.ended[..], [(outer, lost)]);
    let job = fixture.out.sends[0].1;
    assert_eq!(fixture.job_sends(A, job).0, 1);
    fixture.answered(A, 1, None);
    fixture.next_of(A, job);
    let unlock = fixture.unlock(A, inner);
    assert_eq!(fixture.release_sent(A), 1, "its section may be running");
    assert_eq!(fixture.unlocked(&unlock, 1, None), Ok(()));
    // Its guard goes: now it is the receiver's.
    fixture.drop_hold(A, outer);
    assert!(sends_pass(&mut fixture, A));
}

/// Its owner may never have had the lock.
#[test]
fn what_undoes_an_attempt_hands_nothing_over() {
    let mut fixture = handing_over(HandOff::default());
    let attempt = fixture.call(A, Order::Immediate);
    let permit = fixture.permit(attempt);
    fixture.untaken(&permit, Untaken::Unknown);
    let job = fixture.out.sends[0].1;
    let waiter = fixture.call(B, Order::Queued);
    fixture.admit(waiter);
    assert_eq!(fixture.job_sends(A, job).0, 0);
}

/// While another owner of this client may have the lock, a release has none to hand over.
#[test]
fn nothing_is_handed_over_beside_another_owner_that_may_hold() {
    let mut fixture = handing_over(HandOff::default());
    let hold = fixture.lock(A);
    // The lease of A was cut short, and both think that they hold.
    fixture.lock(B);
    let waiter = fixture.call(C, Order::Queued);
    fixture.admit(waiter);
    fixture.unlock(A, hold);
    assert_eq!(fixture.release_sent(A), 0);
}

/// Another task of this client forces the lock open while the answer is on its way to the giver.
#[test]
fn a_receiver_that_has_left_keeps_nobody_waiting_when_the_lock_is_forced_open() {
    let (mut fixture, hold, waiters) = held_by_a(HandOff::default(), &[B, C]);
    let unlock = passing(&mut fixture, hold);
    leave(&mut fixture, waiters[0]);
    let reason = LossReason::Gone;
    fixture.step(OwnerLost {
        owner: B,
        generation: None,
        reason,
    });
    assert_eq!(fixture.unlocked(&unlock, 0, None), Ok(()));
    let totals = [(Total::Released, 1)];
    assert_eq!(fixture.out.totals[..], totals, "it was handed to nobody");
    let (owner, job) = fixture.out.sends[0];
    assert_eq!(owner, B);
    fixture.next_of(B, job);
    assert!(sends_pass(&mut fixture, B), "to the next");
}

/// Another task of this client forces the lock open that this call is about to pick up.
#[test]
fn a_lock_that_is_forced_open_is_not_picked_up() {
    for forced_first in [true, false] {
        let (mut fixture, hold, waiters) = held_by_a(HandOff::default(), &[B]);
        let unlock = passing(&mut fixture, hold);
        let force = |fixture: &mut Fixture| {
            let reason = LossReason::Gone;
            fixture.step(OwnerLost {
                owner: B,
                generation: None,
                reason,
            });
        };
        if forced_first {
            force(&mut fixture);
            assert_eq!(fixture.admit(waiters[0]), Admission::Sent);
            fixture.unlocked(&unlock, 0, None).expect("passed");
        } else {
            fixture.unlocked(&unlock, 0, None).expect("passed");
            force(&mut fixture);
        }
        assert!(fixture.out.woken.contains(&waiters[0]));
        assert!(fixture.out.events.is_empty() && fixture.out.sends.is_empty());
        fixture.permit(waiters[0]);
    }
}

#[test]
fn a_receiver_that_left_has_nothing_to_release_if_nothing_was_moved() {
    let (mut fixture, hold, waiters) = held_by_a(HandOff::default(), &[B]);
    let unlock = passing(&mut fixture, hold);
    leave(&mut fixture, waiters[0]);
    assert_eq!(fixture.unlocked(&unlock, 0, GONE), Err(LossReason::Gone));
    assert!(fixture.out.sends.is_empty(), "{:?}", fixture.out);
    assert!(!fixture.core.keeps_itself());
}

/// A send of a release that is over.
#[test]
fn a_release_that_is_over_says_nothing() {
    let (mut fixture, hold, waiters) = held_by_a(HandOff::default(), &[B]);
    let over = fixture.drop_hold(A, hold);
    fixture.step(ReleaseDropped { owner: A, op: over });
    let said = fixture.step(ReleaseSent {
        owner: A,
        op: over,
        may_pass: true,
    });
    assert_eq!(said, None);
    leave(&mut fixture, waiters[0]);
    let hold = fixture.lock(A);
    let waiter = fixture.call(B, Order::Queued);
    fixture.admit(waiter);
    fixture.unlock(A, hold);
    assert!(sends_pass(&mut fixture, A), "another one");
    let said = fixture.step(ReleaseSent {
        owner: A,
        op: over,
        may_pass: true,
    });
    assert_eq!(said, None, "it is not the one under way");
    fixture.step(PassNotExecuted { owner: A, op: over });
    assert!(fixture.core.pass_under_way(A).is_some());
}

#[test]
fn a_call_of_the_same_owner_is_not_handed_the_lock() {
    let mut fixture = handing_over(HandOff::default());
    let hold = fixture.lock(A);
    let own = fixture.call(A, Order::Queued);
    fixture.unlock(A, hold);
    assert_eq!(fixture.admit(own), Admission::OwnerBusy);
    assert_eq!(fixture.release_sent(A), 0);
}

/// The answer of the pass took long, and its receiver has as long to pick the lock up.
#[test]
fn behind_a_call_that_was_handed_the_lock_another_of_its_owner_waits_for_a_command_timeout() {
    let (mut fixture, hold, waiters) = held_by_a(HandOff::default(), &[B, B]);
    let unlock = passing(&mut fixture, hold);
    fixture.now = fixture.now + RULES.command_timeout;
    fixture.unlocked(&unlock, 0, None).expect("passed");
    assert_eq!(fixture.admit(waiters[1]), Admission::OwnerBusy);
    let limit = fixture.now + RULES.command_timeout;
    assert_eq!(fixture.core.timer(OwnerKey::QUEUE), Some(limit));
}

#[test]
fn without_a_fence_the_lock_is_freed() {
    let (mut fixture, hold, _) = held_by_a(HandOff::default(), &[B]);
    fixture.unlock(A, hold);
    let said = fixture.sends_release(A, false);
    assert!(matches!(said, ReleaseSend::Count { target: 0, .. }));
}

/// V11: a pass without an answer is not undone for the giver alone.
#[test]
fn a_pass_without_an_answer_is_released_for_both() {
    let (mut fixture, hold, waiters) = held_by_a(HandOff::default(), &[B]);
    passing(&mut fixture, hold);
    let op = fixture.release_of(A);
    fixture.unanswered(A);
    let jobs = fixture.out.sends.iter().map(|(owner, _)| *owner);
    assert!(jobs.eq([A, B]));
    assert_eq!(fixture.job_sends(A, op).0, 0, "no other pass");
    assert_eq!(
        fixture.admit(waiters[0]),
        Admission::OwnerBusy,
        "its release comes first"
    );
}

#[test]
fn a_receiver_that_leaves_has_the_lock_released_when_the_answer_comes() {
    let (mut fixture, hold, waiters) = held_by_a(HandOff::default(), &[B]);
    let unlock = passing(&mut fixture, hold);
    leave(&mut fixture, waiters[0]);
    assert!(fixture.out.sends.is_empty(), "not known yet");
    assert_eq!(fixture.unlocked(&unlock, 0, None), Ok(()));
    assert_eq!(fixture.out.sends[0].0, B);
}

#[test]
fn a_receiver_that_leaves_with_the_lock_in_hand_has_it_released() {
    let (mut fixture, hold, waiters) = held_by_a(HandOff::default(), &[B]);
    let unlock = passing(&mut fixture, hold);
    fixture.unlocked(&unlock, 0, None).expect("passed");
    leave(&mut fixture, waiters[0]);
    assert_eq!(fixture.out.sends[0].0, B);
}

/// V10: what is known of the pass is known of the receiver's acquire.
#[test]
fn a_field_that_is_gone_is_a_loss_for_the_giver_and_nothing_for_the_receiver() {
    let (mut fixture, hold, waiters) = held_by_a(HandOff::default(), &[B]);
    let unlock = passing(&mut fixture, hold);
    assert_eq!(fixture.unlocked(&unlock, 0, GONE), Err(LossReason::Gone));
    assert!(fixture.out.woken.contains(&waiters[0]));
    assert!(matches!(fixture.admit(waiters[0]), Admission::Sent));
}

#[test]
fn a_pass_that_is_refused_becomes_a_release() {
    let (mut fixture, hold, waiters) = held_by_a(HandOff::default(), &[B]);
    let unlock = passing(&mut fixture, hold);
    let op = fixture.release_of(A);
    fixture.step(PassNotExecuted { owner: A, op });
    queues(&mut fixture, waiters[0]);
    let said = fixture.sends_release(A, false);
    assert!(matches!(said, ReleaseSend::Count { target: 0, .. }));
    assert_eq!(fixture.unlocked(&unlock, 0, None), Ok(()));
    assert!(matches!(fixture.admit(waiters[0]), Admission::Sent));
}

#[test]
fn a_repetition_says_the_same() {
    let (mut fixture, hold, _) = held_by_a(HandOff::default(), &[B]);
    let unlock = passing(&mut fixture, hold);
    assert!(sends_pass(&mut fixture, A));
    // The first copy may have been executed, and the receiver's hold have been forced open since.
    assert_eq!(fixture.unlocked(&unlock, 0, GONE), Ok(()));
}

#[test]
fn a_call_that_is_not_polled_does_not_keep_the_lock() {
    let (mut fixture, hold, waiters) = held_by_a(HandOff::default(), &[B]);
    let unlock = passing(&mut fixture, hold);
    fixture.unlocked(&unlock, 0, None).expect("passed");
    fixture.now = fixture.core.timer(B).expect("it is watched");
    assert_eq!(fixture.now.since_start(), RULES.command_timeout);
    fixture.step(TimePasses {});
    assert_eq!(fixture.out.sends[0].0, B);
    let job = fixture.out.sends[0].1;
    fixture.next_of(B, job);
    assert_eq!(fixture.release_sent(B), 0);
    fixture.answered(B, 0, None);
    fixture.next_of(B, job);
    // It is not handed the lock again before it is polled.
    let hold = fixture.lock(A);
    let unlock = fixture.unlock(A, hold);
    assert_eq!(fixture.release_sent(A), 0);
    fixture.unlocked(&unlock, 0, None).expect("released");
    assert!(!fixture.out.woken.contains(&waiters[0]));
    fixture.asks_when_polled(waiters[0]);
    assert!(matches!(fixture.admit(waiters[0]), Admission::Sent));
}

#[test]
fn neither_end_of_a_pass_is_a_loss() {
    let (mut fixture, hold, waiters) = held_by_a(HandOff::default(), &[B]);
    let unlock = fixture.unlock(A, hold);
    assert!(sends_pass(&mut fixture, A));
    fixture.unlocked(&unlock, 0, None).expect("passed");
    assert_eq!(fixture.out.ended[..], [(hold, Ending::Released)]);
    assert!(fixture.out.events.is_empty());
    is_granted(&mut fixture, waiters[0]);
    assert!(fixture.out.events.is_empty());
}

/// A kind whose acquisitions have a value each: what one pass has written may still be released in the background.
#[test]
fn a_field_is_passed_once() {
    let (mut fixture, hold, waiters) = held_by_a(HandOff::default(), &[B]);
    let unlock = passing(&mut fixture, hold);
    assert!(
        fixture
            .core
            .queue
            .get(waiters[0])
            .expect("it waits")
            .field
            .is_none()
    );
    fixture.unlocked(&unlock, 0, None).expect("passed");
}

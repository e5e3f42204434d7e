//! Passes in a streak: how many, for how long, and when a streak ends.

use super::*;

const ONCE: HandOff = HandOff {
    passes: 1,
    longest: Duration::from_millis(50),
};

/// `A` had the lock, `B` has it now, and `C` waits.
fn passed_to_b(bounds: HandOff) -> (Fixture, HoldId, Vec<WaiterId>) {
    let (mut fixture, hold, waiters) = held_by_a(bounds, &[B, C]);
    let unlock = passing(&mut fixture, hold);
    fixture.unlocked(&unlock, 0, None).expect("passed");
    let hold = picks_up(&mut fixture, waiters[0]);
    (fixture, hold, waiters)
}

fn is_released_beside_listeners(fixture: &mut Fixture, unlock: &Unlock) {
    fixture.others_listen = true;
    fixture.unlocked(unlock, 0, None).expect("released");
    fixture.others_listen = false;
}

/// A streak of passes ends with the lock: a later one has all its passes and all its time.
#[test]
fn a_pass_that_moved_nothing_begins_no_row() {
    let (mut fixture, hold, waiters) = held_by_a(HandOff::default(), &[B, C]);
    let unlock = passing(&mut fixture, hold);
    assert_eq!(fixture.unlocked(&unlock, 0, GONE), Err(LossReason::Gone));
    let hold = takes(&mut fixture, waiters[0]);
    fixture.now = fixture.now + Duration::from_millis(51);
    fixture.unlock(B, hold);
    assert!(sends_pass(&mut fixture, B));
}

#[test]
fn a_lock_that_is_taken_anew_begins_a_new_row() {
    let (mut fixture, hold, waiters) = passed_to_b(HandOff::default());
    // Its field is gone, so that nothing is freed.
    let unlock = fixture.unlock(B, hold);
    assert!(sends_pass(&mut fixture, B));
    assert_eq!(fixture.unlocked(&unlock, 0, GONE), Err(LossReason::Gone));
    let hold = takes(&mut fixture, waiters[1]);
    let last = fixture.call(A, Order::Queued);
    fixture.admit(last);
    fixture.now = fixture.now + Duration::from_millis(51);
    fixture.unlock(C, hold);
    assert!(sends_pass(&mut fixture, C));
}

#[test]
fn a_nested_call_ends_no_row() {
    let (mut fixture, outer, _) = passed_to_b(ONCE);
    let inner = fixture.lock(B);
    let unlock = fixture.unlock(B, inner);
    assert_eq!(fixture.release_sent(B), 1);
    fixture.unlocked(&unlock, 1, None).expect("released");
    fixture.unlock(B, outer);
    assert_eq!(fixture.release_sent(B), 0);
}

#[test]
fn passes_in_a_row_are_bounded_by_their_number() {
    let (mut fixture, hold, waiters) = passed_to_b(ONCE);
    let unlock = fixture.unlock(B, hold);
    assert_eq!(fixture.release_sent(B), 0, "the second one is a release");
    is_released_beside_listeners(&mut fixture, &unlock);
    queues(&mut fixture, waiters[1]);
    // Others go first.
    fixture.timer_of_the_queue_fires_after(Duration::from_millis(5));
    assert!(fixture.is_woken_to_ask(waiters[1]), "{:?}", fixture.out);
    assert!(matches!(fixture.admit(waiters[1]), Admission::Sent));
}

#[test]
fn passes_in_a_row_are_bounded_by_their_time() {
    let (mut fixture, hold, waiters) = passed_to_b(HandOff::default());
    fixture.now = fixture.now + Duration::from_millis(51);
    let unlock = fixture.unlock(B, hold);
    assert_eq!(fixture.release_sent(B), 0);
    // No other client listens: there is none to stand back for.
    assert_eq!(fixture.unlocked(&unlock, 0, None), Ok(()));
    assert!(matches!(fixture.admit(waiters[1]), Admission::Sent));
}

/// Whatever keeps the last release of a streak from being a pass: others go first behind it.
#[test]
fn a_bound_ends_the_row_also_while_somebody_else_is_at_work() {
    let (mut fixture, hold, _) = passed_to_b(ONCE);
    let attempt = fixture.call(C, Order::Immediate);
    let permit = fixture.permit(attempt);
    fixture.untaken(&permit, Untaken::Unknown);
    let unlock = fixture.unlock(B, hold);
    assert_eq!(fixture.release_sent(B), 0);
    is_released_beside_listeners(&mut fixture, &unlock);
    let after = fixture.now + Duration::from_millis(5);
    assert_eq!(fixture.core.queue.yields_until, Some(after));
}

/// Every other waiter has waited for the streak before.
#[test]
fn a_row_behind_a_release_that_others_heard_is_half_as_long() {
    const TWICE: HandOff = HandOff {
        passes: 2,
        longest: Duration::from_millis(50),
    };
    let (mut fixture, hold, _) = held_by_a(TWICE, &[]);
    let unlock = fixture.unlock(A, hold);
    is_released_beside_listeners(&mut fixture, &unlock);
    let passes_of_a_row = |fixture: &mut Fixture| {
        let mut hold = fixture.lock(A);
        let mut owners = [A, B, C, A].windows(2);
        let mut passes = 0;
        while let Some([giver, receiver]) = owners.next() {
            let waiter = fixture.call(*receiver, Order::Queued);
            fixture.admit(waiter);
            let unlock = fixture.unlock(*giver, hold);
            let is_pass = sends_pass(fixture, *giver);
            fixture.unlocked(&unlock, 0, None).expect("held");
            if !is_pass {
                let hold = takes(fixture, waiter);
                let unlock = fixture.unlock(*receiver, hold);
                fixture.release_sent(*receiver);
                fixture.unlocked(&unlock, 0, None).expect("held");
                break;
            }
            passes += 1;
            hold = picks_up(fixture, waiter);
        }
        passes
    };
    assert_eq!(passes_of_a_row(&mut fixture), 1);
    assert_eq!(
        passes_of_a_row(&mut fixture),
        2,
        "nobody else heard the last one"
    );
}

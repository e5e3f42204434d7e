//! Whose turn it is in the server's queue, and the place of a call that is over.

use super::*;
use crate::input::{CallJoins, MessageArrives, TimePasses};

const TIMEOUT: Duration = RULES.command_timeout;

impl Fixture {
    /// Its attempt has no answer, so it is over, and may have left a place. What it has taken is released.
    fn ends_without_an_answer(&mut self, owner: OwnerKey) -> WaiterId {
        let waiter = self.call(owner, Order::Queued);
        let permit = self.permit(waiter);
        self.untaken(&permit, Untaken::Unknown);
        let job = self.job();
        assert_eq!(self.sends(owner, job), (0, false), "it may ask again");
        self.release_is_answered(owner, job, GONE);
        assert_eq!(self.next_of(owner, job), ReleaseStep::Done);
        assert!(self.has_place(owner));
        assert_eq!(self.core.woken(waiter), Woken::Nothing);
        waiter
    }

    fn is_told(&mut self, owner: OwnerKey) {
        self.step(MessageArrives { next: Some(owner) });
    }
}

/// It need not be polled for that.
#[test]
fn an_owner_that_is_told_of_its_turn_asks_and_no_other_one() {
    let mut fixture = Fixture::fair();
    let [first, told] = [A, B].map(|owner| fixture.queued_up(owner));
    fixture.is_told(B);
    assert_eq!(fixture.out.woken[..], [told]);
    assert!(fixture.is_woken_to_ask(told));
    assert_eq!(fixture.core.woken(first), Woken::Nothing);
    let permit = fixture.permit(told);
    assert!(permit.queues_up);
    fixture.takes(&permit).expect("wanted");
    assert!(fixture.has_place(A) && !fixture.has_place(B));
}

#[test]
fn an_owner_that_is_told_keeps_its_place_if_it_was_too_early() {
    let mut fixture = Fixture::fair();
    let waiter = fixture.queued_up(A);
    fixture.is_told(A);
    let permit = fixture.permit(waiter);
    fixture.untaken(&permit, Untaken::Busy);
    fixture.now = fixture.now + TIMEOUT * 2;
    fixture.step(TimePasses {});
    assert!(fixture.out.sends.is_empty() && fixture.has_place(A));
    // A message for an owner without a place is late.
    fixture.is_told(B);
    assert!(fixture.out.woken.is_empty(), "{:?}", fixture.out);
}

/// Its call may make another attempt, and comes before those that came later.
#[test]
fn a_call_that_is_over_keeps_its_place_for_another_attempt() {
    let mut fixture = Fixture::fair();
    let waiter = fixture.ends_without_an_answer(A);
    fixture.now = fixture.now + TIMEOUT * 2 - Duration::from_nanos(1);
    fixture.step(TimePasses {});
    assert!(fixture.out.sends.is_empty(), "{:?}", fixture.out);
    fixture.asks_when_polled(waiter);
    let permit = fixture.permit(waiter);
    fixture.untaken(&permit, Untaken::Busy);
    fixture.now = fixture.now + TIMEOUT * 2;
    fixture.step(TimePasses {});
    assert!(fixture.out.sends.is_empty() && fixture.has_place(A));
}

/// Owners of other clients wait for it.
#[test]
fn a_call_that_is_over_and_is_not_polled_gives_its_place_up() {
    let mut fixture = Fixture::fair();
    let waiter = fixture.ends_without_an_answer(A);
    fixture.timer_of_the_queue_fires_after(TIMEOUT * 2);
    let job = fixture.job();
    assert_eq!(fixture.sends(A, job), (0, true));
    fixture.release_is_answered(A, job, GONE);
    assert_eq!(fixture.next_of(A, job), ReleaseStep::Done);
    assert!(!fixture.has_place(A) && !fixture.core.keeps_itself());
    assert_eq!(fixture.core.timer(OwnerKey::QUEUE), None);
    // It queues up again if it is polled.
    assert_eq!(fixture.core.woken(waiter), Woken::Nothing);
    fixture.asks_when_polled(waiter);
    assert!(fixture.permit(waiter).queues_up);
}

/// Whatever has ended it.
#[test]
fn a_call_that_is_over_gives_its_place_up_when_it_leaves() {
    for ends_by in ["its attempt", "a hold of its owner"] {
        let mut fixture = Fixture::fair();
        let waiter = fixture.call(A, Order::Queued);
        let permit = fixture.permit(waiter);
        fixture.untaken(&permit, Untaken::Busy);
        match ends_by {
            "its attempt" => {
                fixture.is_told(A);
                let permit = fixture.permit(waiter);
                fixture.untaken_then(&permit, Untaken::NotExecuted, Then::Ends);
            }
            _ => {
                let alone = Terms {
                    reentrant: false,
                    ..TERMS
                };
                fixture.lock_with(A, alone);
                assert_eq!(fixture.rejected(waiter), Rejected::AlreadyHeld);
                assert!(!fixture.has_place(A), "it was used");
                continue;
            }
        }
        assert!(fixture.has_place(A) && fixture.out.sends.is_empty());
        fixture.leaves(waiter);
        let job = fixture.job();
        assert_eq!(fixture.sends(A, job), (0, true), "{ends_by}");
    }
}

/// Whether it is polled or not.
#[test]
fn a_call_past_its_deadline_gives_its_place_up() {
    let mut fixture = Fixture::fair();
    let deadline = Some(fixture.now + TIMEOUT);
    let waiter = fixture.step(CallJoins {
        owner: A,
        order: Order::Queued,
        terms: TERMS,
        deadline,
    });
    let permit = fixture.permit(waiter);
    fixture.untaken(&permit, Untaken::Busy);
    fixture.timer_of_the_queue_fires_after(TIMEOUT);
    assert!(fixture.is_woken_to_ask(waiter), "{:?}", fixture.out);
    assert_eq!(fixture.rejected(waiter), Rejected::NotInTime);
    let job = fixture.job();
    assert_eq!(fixture.sends(A, job), (0, true));
}

/// The other call waits for its turn.
#[test]
fn a_call_that_is_over_leaves_the_place_of_its_owner_to_another_one() {
    let mut fixture = Fixture::fair();
    let over = fixture.queued_up(A);
    let waiter = fixture.queued_up(A);
    fixture.is_told(A);
    assert_eq!(fixture.out.woken[..], [over, waiter]);
    let permit = fixture.permit(over);
    assert_eq!(fixture.admit(waiter), Admission::OwnerBusy);
    fixture.untaken_then(&permit, Untaken::NotExecuted, Then::Ends);
    assert!(fixture.is_woken_to_ask(waiter), "{:?}", fixture.out);
    let permit = fixture.permit(waiter);
    fixture.untaken(&permit, Untaken::Busy);
    fixture.now = fixture.now + TIMEOUT * 2;
    fixture.step(TimePasses {});
    assert!(fixture.out.sends.is_empty() && fixture.has_place(A));
    fixture.leaves(waiter);
    assert_eq!(fixture.out.sends.len(), 1, "no call wants it any more");
}

/// The one that is over does not ask for the other one.
#[test]
fn a_call_is_woken_for_its_owner_behind_one_that_is_over() {
    let mut fixture = Fixture::fair();
    let over = fixture.ends_without_an_answer(A);
    let waiter = fixture.call(A, Order::Queued);
    let permit = fixture.permit(waiter);
    fixture.untaken(&permit, Untaken::Busy);
    let attempt = fixture.call(A, Order::Immediate);
    let permit = fixture.permit(attempt);
    fixture.takes(&permit).expect("wanted");
    assert_eq!(fixture.core.woken(over), Woken::Nothing);
    assert!(fixture.is_woken_to_ask(waiter), "{:?}", fixture.out);
    assert_eq!(fixture.permit(waiter).target, 2);
}

/// A place that may be there is asked for by the call that waits.
#[test]
fn a_call_asks_whether_its_owner_has_a_place_behind_one_that_is_over() {
    let mut fixture = Fixture::fair();
    let over = fixture.ends_without_an_answer(A);
    let waiter = fixture.call(A, Order::Queued);
    let permit = fixture.permit(waiter);
    fixture.untaken(&permit, Untaken::Busy);
    let attempt = fixture.call(A, Order::Immediate);
    let permit = fixture.permit(attempt);
    fixture.untaken(&permit, Untaken::Unknown);
    let job = fixture.job();
    fixture.sends(A, job);
    fixture.release_is_answered(A, job, GONE);
    assert_eq!(fixture.core.woken(over), Woken::Nothing);
    assert!(fixture.is_woken_to_ask(waiter), "{:?}", fixture.out);
    assert!(fixture.permit(waiter).queues_up);
}

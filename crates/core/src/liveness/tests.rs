//! A call that is not polled when it has a reason to go on.

use std::time::Duration;

use crate::tests::{A, B, C, Fixture, RULES, TERMS};
use crate::{
    Admission, Effects, HoldId, LeaseKind, LockCore, LossReason, Order, OwnerKey, Permit, Rejected,
    Taking, Terms, Time, Token, Untaken, WaiterId,
};

const TIMEOUT: Duration = RULES.command_timeout;

impl Fixture {
    /// The acquire has taken the lock.
    pub(crate) fn granted(&mut self, permit: &Permit) -> Taking {
        let taken = (self.now, None);
        self.step(|core, now, out| core.acquired(now, permit, taken, false, out))
    }

    /// The acquire takes the lock, and its call claims it.
    pub(crate) fn takes_at(
        &mut self,
        permit: &Permit,
        sent_at: Time,
    ) -> Result<(HoldId, Option<Token>), Rejected> {
        self.claims(permit, sent_at, false)
    }

    pub(crate) fn claims(
        &mut self,
        permit: &Permit,
        sent_at: Time,
        is_outside: bool,
    ) -> Result<(HoldId, Option<Token>), Rejected> {
        let acquired = |core: &mut LockCore, now, out: &mut Effects| {
            core.acquired(now, permit, (sent_at, None), is_outside, out)
        };
        if self.step(acquired) == Taking::TooLate {
            return Err(Rejected::TooLate);
        }
        let waiter = permit.waiter;
        let claim = |core: &mut LockCore, now, out: &mut Effects| core.claim(now, waiter, out);
        let claimed = self.step(claim)?;
        Ok((claimed.hold, claimed.token))
    }

    /// An attempt of this call finds the lock held by another process.
    fn finds_it_held(&mut self, waiter: WaiterId) {
        let permit = self.permit(waiter);
        self.step(|core, now, out| core.untaken(now, &permit, Untaken::Busy, out));
    }

    fn waits(&mut self, waiter: WaiterId, time: Duration) {
        let until = self.now + time;
        self.step(|core, now, out| core.waits(now, waiter, until, out));
    }

    fn timer_of_the_queue_fires_after(&mut self, time: Duration) {
        assert_eq!(self.core.timer(OwnerKey::QUEUE), Some(self.now + time));
        self.now = self.now + time;
        self.step(|core, now, out| core.timer_fired(now, OwnerKey::QUEUE, out));
    }
}

#[test]
fn a_head_that_does_not_subscribe_is_passed_over_until_it_asks() {
    let mut fixture = Fixture::new();
    let head = fixture.call(A, Order::Queued);
    fixture.finds_it_held(head);
    let next = fixture.call(B, Order::Queued);
    fixture.admit(next);
    fixture.timer_of_the_queue_fires_after(TIMEOUT);
    assert_eq!(fixture.out.woken[..], [next]);
    assert!(fixture.core.has_reason_to_retry(head));
    fixture.finds_it_held(next);
    fixture.finds_it_held(head);
}

/// It makes no attempt, so nothing but this takes it back.
#[test]
fn a_place_that_was_passed_over_is_back_when_it_asks() {
    let mut fixture = Fixture::new();
    let place = fixture.call(A, Order::Queued);
    let next = fixture.call(B, Order::Queued);
    for place in [place, next] {
        fixture.step(|core, now, out| core.poll_turn(now, place, out));
    }
    assert!(fixture.core.has_turn(fixture.now, place));
    fixture.timer_of_the_queue_fires_after(TIMEOUT);
    assert!(!fixture.core.has_turn(fixture.now, place));
    assert!(fixture.core.has_turn(fixture.now, next));
    assert!(fixture.step(|core, now, out| core.poll_turn(now, place, out)));
    assert!(
        !fixture.core.has_turn(fixture.now, next),
        "it is back at its place"
    );
}

#[test]
fn a_head_that_waits_is_passed_over_when_it_does_not_hear_what_there_is() {
    let minute = Duration::from_secs(60);
    for is_message in [true, false] {
        let mut fixture = Fixture::new();
        let head = fixture.call(A, Order::Queued);
        fixture.finds_it_held(head);
        let next = fixture.call(B, Order::Queued);
        fixture.waits(head, minute);
        assert!(fixture.core.timer(OwnerKey::QUEUE) > Some(fixture.now));
        if is_message {
            fixture.now = fixture.now + Duration::from_secs(1);
            fixture.step(|core, now, out| core.note_change(now, None, out));
        }
        let until = fixture.now
            + if is_message {
                TIMEOUT
            } else {
                minute + TIMEOUT
            };
        while let Some(at) = fixture.core.timer(OwnerKey::QUEUE) {
            assert!(at <= until, "its turn ends");
            fixture.now = at;
            fixture.step(|core, now, out| core.timer_fired(now, OwnerKey::QUEUE, out));
            assert_eq!(at == until, fixture.out.woken.contains(&next));
        }
    }
}

#[test]
fn nobody_is_passed_over_while_this_client_holds_the_lock_or_nobody_else_queues() {
    let mut fixture = Fixture::new();
    let hold = fixture.lock(C);
    let head = fixture.call(A, Order::Queued);
    let next = fixture.call(B, Order::Queued);
    fixture.now = fixture.now + TIMEOUT;
    fixture.step(|core, now, out| core.tick(now, out));
    let unlock = fixture.unlock(C, hold);
    fixture.unlocked(&unlock, 0, None).expect("released");
    assert_eq!(fixture.out.woken[..], [head]);
    fixture.step(|core, now, out| core.leave(now, next, out));
    assert_eq!(fixture.core.timer(OwnerKey::QUEUE), None);
    let permit = fixture.permit(head);
    fixture.now = fixture.now + TIMEOUT;
    fixture.step(|core, now, out| core.tick(now, out));
    assert!(fixture.core.is_attempting(&permit));
}

/// It belongs to a call that does not claim it: the call is passed over until it asks, and the next one gets the lock.
#[test]
fn a_lock_that_is_granted_and_not_claimed_is_given_back() {
    for order in [Order::Queued, Order::Immediate] {
        let mut fixture = Fixture::new();
        let unpolled = fixture.call(A, order);
        let permit = fixture.permit(unpolled);
        let next = fixture.call(B, Order::Queued);
        if order == Order::Queued {
            fixture.admit(next);
        }
        // However long its answer takes, its connection keeps the time.
        fixture.now = fixture.now + TIMEOUT * 5;
        assert_eq!(fixture.granted(&permit), Taking::Granted);
        assert!(fixture.out.woken.contains(&unpolled), "{:?}", fixture.out);
        assert_eq!(fixture.core.timer(A), Some(fixture.now + TIMEOUT));
        assert!(matches!(fixture.admit(next), Admission::Queued { .. }));
        fixture.now = fixture.now + TIMEOUT;
        fixture.step(|core, now, out| core.timer_fired(now, A, out));
        let (owner, job) = fixture.out.sends[0];
        assert_eq!((owner, fixture.job_sends(A, job).0), (A, 0));
        fixture.answered(A, 0, None);
        assert!(fixture.out.woken.contains(&next), "{:?}", fixture.out);
        fixture.permit(next);
        let claimed = fixture.step(|core, now, out| core.claim(now, unpolled, out));
        assert_eq!(claimed, Err(Rejected::GivenBack));
    }
}

/// What is released meanwhile is released with it.
#[test]
fn a_nested_lock_that_is_not_claimed_keeps_no_outer_hold() {
    let mut fixture = Fixture::new();
    let outer = fixture.lock(A);
    let unpolled = fixture.call(A, Order::Queued);
    let permit = fixture.permit(unpolled);
    assert_eq!(fixture.granted(&permit), Taking::Granted);
    fixture.step(|core, now, out| core.drop_hold(now, A, outer, out));
    assert!(fixture.out.sends.is_empty(), "its call may claim it");
    fixture.now = fixture.now + TIMEOUT;
    fixture.step(|core, now, out| core.timer_fired(now, A, out));
    let (_, job) = fixture.out.sends[0];
    assert_eq!(fixture.job_sends(A, job).0, 0);
}

/// A copy that has entered a connection may have been executed.
#[test]
fn an_acquire_whose_call_leaves_is_undone_if_it_was_sent() {
    for is_sent in [true, false] {
        let mut fixture = Fixture::new();
        let call = fixture.call(A, Order::Queued);
        fixture.admit(call);
        let (owner, op) = fixture.out.sends[0];
        if is_sent {
            fixture.sent_acquire();
        }
        fixture.step(|core, now, out| core.leave(now, call, out));
        let undone: Vec<_> = fixture.out.sends.iter().map(|(owner, _)| *owner).collect();
        assert_eq!(undone, if is_sent { vec![A] } else { vec![] });
        assert_eq!(fixture.core.acquire_says(owner, op), None);
        assert!(
            !fixture.core.acquire_enters(owner, op),
            "no copy comes later"
        );
    }
}

/// It has kept the field at the server, so the release that frees it late, and whose answer is lost, has lost nothing.
#[test]
fn a_nested_lock_that_is_not_claimed_makes_no_loss_of_an_outer_hold() {
    let mut fixture = Fixture::new();
    let short = Terms {
        lease: TIMEOUT,
        kind: LeaseKind::Fixed,
        ..TERMS
    };
    let outer = fixture.lock_with(A, short);
    let unpolled = fixture.call(A, Order::Queued);
    let permit = fixture.permit(unpolled);
    assert_eq!(fixture.granted(&permit), Taking::Granted);
    let unlock = fixture.unlock(A, outer);
    fixture.now = fixture.now + TIMEOUT * 2;
    fixture.step(|core, now, out| core.timer_fired(now, A, out));
    fixture.release_sent(A);
    fixture.unanswered(A);
    let gone = Some(LossReason::Gone);
    assert_eq!(fixture.unlocked(&unlock, 0, gone), Ok(()));
}

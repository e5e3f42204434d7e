//! What a waiting call hears, when it asks again, and which call is passed over because it is not polled.

mod waiting;

use std::time::Duration;

use crate::input::{
    AcquireEnds, AcquireEnters, AcquireTakes, CallClaims, CallLeaves, CallPolled, HoldDropped,
    PlaceJoins, PlacePolled, TimePasses, TimerFires,
};
use crate::tests::{A, B, C, Fixture, RULES, TERMS};
use crate::{
    Admission, HoldId, LeaseKind, LockCore, LossReason, Order, OwnerKey, Permit, Rejected, Taking,
    Terms, Then, Time, Token, Untaken, WaiterId, Woken,
};

const TIMEOUT: Duration = RULES.command_timeout;

impl Fixture {
    /// The acquire has taken the lock.
    pub(crate) fn granted(&mut self, permit: &Permit) -> Taking {
        let taken = (self.now, None);
        self.step(AcquireTakes {
            permit: permit.clone(),
            sent_at: taken.0,
            token: taken.1,
            is_outside: false,
        })
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
        let acquired = AcquireTakes {
            permit: permit.clone(),
            sent_at,
            token: None,
            is_outside,
        };
        if self.step(acquired) == Taking::TooLate {
            return Err(Rejected::TooLate);
        }
        let call = permit.waiter;
        let claimed = self.step(CallClaims { call })?;
        Ok((claimed.hold, claimed.token))
    }

    /// An acquire has brought no lock. A call that queues waits for another process for one lease, one that found a read hold
    /// of its owner asks again, and each other call is over.
    pub(crate) fn untaken(&mut self, permit: &Permit, outcome: Untaken) {
        let waiter = self.core.queue.get(permit.waiter);
        let queues = waiter.is_some_and(|waiter| waiter.order == Order::Queued);
        let then = match outcome {
            Untaken::Busy if queues => self.waits_for(TERMS.lease),
            Untaken::OwnRead => Then::AsksAgain,
            _ => Then::Ends,
        };
        self.untaken_then(permit, outcome, then);
    }

    pub(crate) fn untaken_then(&mut self, permit: &Permit, outcome: Untaken, then: Then) {
        self.step(AcquireEnds {
            permit: permit.clone(),
            untaken: outcome,
            then,
        });
    }

    pub(crate) fn waits_for(&self, time: Duration) -> Then {
        let (until, subscribed) = (self.now + time, true);
        Then::Waits { until, subscribed }
    }

    /// An attempt of this call finds the lock held by another process.
    fn finds_it_held(&mut self, waiter: WaiterId) {
        let permit = self.permit(waiter);
        self.untaken(&permit, Untaken::Busy);
    }

    pub(crate) fn leaves(&mut self, waiter: WaiterId) {
        self.step(CallLeaves { call: waiter });
    }

    /// A place in the queue, which never asks for the lock.
    pub(crate) fn place(&mut self, owner: OwnerKey) -> WaiterId {
        self.step(PlaceJoins {
            owner,
            terms: TERMS,
        })
    }

    /// A place is polled. Returns whether it has its turn.
    pub(crate) fn polls_turn(&mut self, place: WaiterId) -> bool {
        self.step(PlacePolled { call: place })
    }

    /// A call is polled that was passed over or has ended, and asks.
    pub(crate) fn asks_when_polled(&mut self, waiter: WaiterId) {
        assert!(self.core.wants_poll(waiter));
        self.step(CallPolled { call: waiter });
        assert!(self.is_woken_to_ask(waiter), "{:?}", self.out);
        assert!(!self.core.wants_poll(waiter));
    }

    /// The latest step has woken this call, and it asks.
    pub(crate) fn is_woken_to_ask(&mut self, waiter: WaiterId) -> bool {
        self.out.woken.contains(&waiter) && self.core.woken(waiter) == Woken::Asks
    }

    pub(crate) fn timer_of_the_queue_fires_after(&mut self, time: Duration) {
        assert_eq!(self.core.timer(OwnerKey::QUEUE), Some(self.now + time));
        self.now = self.now + time;
        self.step(TimerFires {
            owner: OwnerKey::QUEUE,
        });
    }
}

/// It makes no attempt, so nothing but this takes it back.
#[test]
fn a_place_that_was_passed_over_is_back_when_it_is_polled() {
    let mut fixture = Fixture::new();
    let [place, next] = [A, B].map(|owner| fixture.place(owner));
    assert!(fixture.polls_turn(place) && !fixture.polls_turn(next));
    fixture.timer_of_the_queue_fires_after(TIMEOUT);
    assert!(fixture.out.woken.contains(&next), "{:?}", fixture.out);
    assert_eq!(fixture.core.woken(next), Woken::Call);
    assert!(!fixture.core.has_turn(fixture.now, place));
    assert!(fixture.core.has_turn(fixture.now, next));
    assert!(fixture.polls_turn(place));
    assert!(
        !fixture.core.has_turn(fixture.now, next),
        "it is back at its place"
    );
}

/// However late it is polled for the first time after its turn has begun.
#[test]
fn a_place_has_a_command_timeout_from_the_beginning_of_its_turn_on() {
    let mut fixture = Fixture::new();
    let hold = fixture.lock(C);
    let place = fixture.place(A);
    assert!(!fixture.polls_turn(place));
    let next = fixture.call(B, Order::Queued);
    assert_eq!(fixture.admit(next), Admission::Queued);
    fixture.now = fixture.now + TIMEOUT * 5;
    let unlock = fixture.unlock(C, hold);
    fixture.unlocked(&unlock, 0, None).expect("released");
    assert_eq!(fixture.out.woken[..], [place]);
    assert_eq!(fixture.core.woken(place), Woken::Call);
    fixture.now = fixture.now + TIMEOUT - Duration::from_nanos(1);
    fixture.step(TimePasses {});
    assert!(fixture.core.has_turn(fixture.now, place));
    fixture.now = fixture.now + Duration::from_nanos(1);
    fixture.step(TimePasses {});
    assert!(fixture.is_woken_to_ask(next), "{:?}", fixture.out);
    fixture.permit(next);
}

#[test]
fn no_place_is_passed_over_while_this_client_holds_the_lock() {
    let mut fixture = Fixture::new();
    let hold = fixture.lock(C);
    let place = fixture.place(A);
    assert!(!fixture.polls_turn(place));
    let next = fixture.call(B, Order::Queued);
    assert_eq!(fixture.admit(next), Admission::Queued);
    fixture.now = fixture.now + TIMEOUT;
    fixture.step(TimePasses {});
    let unlock = fixture.unlock(C, hold);
    fixture.unlocked(&unlock, 0, None).expect("released");
    assert_eq!(fixture.out.woken[..], [place]);
    assert!(fixture.core.has_turn(fixture.now, place));
}

/// Its call is not polled, and need not be.
#[test]
fn a_head_whose_acquire_is_under_way_is_not_passed_over() {
    let mut fixture = Fixture::new();
    let head = fixture.call(A, Order::Queued);
    let permit = fixture.permit(head);
    let next = fixture.call(B, Order::Queued);
    assert_eq!(fixture.admit(next), Admission::Queued);
    assert_eq!(fixture.core.timer(OwnerKey::QUEUE), None);
    fixture.now = fixture.now + TIMEOUT;
    fixture.step(TimePasses {});
    assert!(fixture.core.is_attempting(&permit));
    assert!(!fixture.out.woken.contains(&next), "{:?}", fixture.out);
    assert_eq!(fixture.admit(next), Admission::Queued);
}

/// It belongs to a call that does not claim it: the call is passed over until it is polled, and the next one gets the lock.
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
        assert_eq!(fixture.core.woken(unpolled), Woken::Call);
        assert_eq!(fixture.core.timer(A), Some(fixture.now + TIMEOUT));
        assert_eq!(fixture.admit(next), Admission::Queued);
        fixture.now = fixture.now + TIMEOUT;
        fixture.step(TimerFires { owner: A });
        let (owner, job) = fixture.out.sends[0];
        assert_eq!((owner, fixture.job_sends(A, job).0), (A, 0));
        fixture.answered(A, 0, None);
        assert!(fixture.is_woken_to_ask(next), "{:?}", fixture.out);
        assert_eq!(fixture.core.woken(unpolled), Woken::Nothing);
        fixture.permit(next);
        let claimed = fixture.step(CallClaims { call: unpolled });
        assert_eq!(claimed, Err(Rejected::GivenBack));
    }
}

/// It queues for longer than those behind it.
#[test]
fn a_call_that_did_not_claim_is_back_at_its_place_when_it_is_polled() {
    let mut fixture = Fixture::new();
    let unpolled = fixture.call(A, Order::Queued);
    let permit = fixture.permit(unpolled);
    let next = fixture.call(B, Order::Queued);
    assert_eq!(fixture.admit(next), Admission::Queued);
    assert_eq!(fixture.granted(&permit), Taking::Granted);
    fixture.now = fixture.now + TIMEOUT;
    fixture.step(TimerFires { owner: A });
    let (_, job) = fixture.out.sends[0];
    fixture.asks_when_polled(unpolled);
    assert_eq!(fixture.admit(unpolled), Admission::OwnerBusy);
    fixture.job_sends(A, job);
    fixture.answered(A, 0, None);
    assert!(fixture.is_woken_to_ask(unpolled), "{:?}", fixture.out);
    assert_eq!(fixture.admit(next), Admission::Queued);
    fixture.permit(unpolled);
}

/// What is released meanwhile is released with it.
#[test]
fn a_nested_lock_that_is_not_claimed_keeps_no_outer_hold() {
    let mut fixture = Fixture::new();
    let outer = fixture.lock(A);
    let unpolled = fixture.call(A, Order::Queued);
    let permit = fixture.permit(unpolled);
    assert_eq!(fixture.granted(&permit), Taking::Granted);
    fixture.step(HoldDropped {
        owner: A,
        hold: outer,
    });
    assert!(fixture.out.sends.is_empty(), "its call may claim it");
    fixture.now = fixture.now + TIMEOUT;
    fixture.step(TimerFires { owner: A });
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
        fixture.step(CallLeaves { call });
        let undone: Vec<_> = fixture.out.sends.iter().map(|(owner, _)| *owner).collect();
        assert_eq!(undone, if is_sent { vec![A] } else { vec![] });
        assert_eq!(fixture.core.acquire_says(owner, op), None);
        assert!(
            !fixture.step(AcquireEnters { owner, op }),
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
    fixture.step(TimerFires { owner: A });
    fixture.release_sent(A);
    fixture.unanswered(A);
    let gone = Some(LossReason::Gone);
    assert_eq!(fixture.unlocked(&unlock, 0, gone), Ok(()));
}

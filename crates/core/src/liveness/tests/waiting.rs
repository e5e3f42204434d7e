//! A call that waits: for another process, for a subscription, for its deadline.

use super::*;
use crate::Listens;
use crate::input::{CallJoins, MessageArrives, SubscriptionKnown, TimePasses};

const LEASE: Duration = TERMS.lease;

impl Fixture {
    fn hears(&mut self, next: Option<OwnerKey>) {
        self.step(MessageArrives { next });
    }

    fn listens(&mut self, ids: &[WaiterId], how: Listens) {
        self.step(SubscriptionKnown {
            calls: ids.to_vec(),
            how,
        });
    }

    /// An attempt of this call finds the lock held, and the client does not hear of it yet.
    fn subscribes(&mut self, waiter: WaiterId) {
        let permit = self.permit(waiter);
        let until = self.now + LEASE;
        let subscribed = false;
        self.untaken_then(&permit, Untaken::Busy, Then::Waits { until, subscribed });
    }

    fn call_within(&mut self, owner: OwnerKey, order: Order, time: Duration) -> WaiterId {
        let deadline = Some(self.now + time);
        self.step(CallJoins {
            owner,
            order,
            terms: TERMS,
            deadline,
        })
    }

    /// An immediate attempt of its owner gets the lock, which another process has freed without a message.
    fn nests_into_a_hold(&mut self, waiter: WaiterId) {
        let attempt = self.call(A, Order::Immediate);
        let (permit, sent_at) = (self.permit(attempt), self.now);
        self.takes_at(&permit, sent_at).expect("wanted");
        assert!(self.is_woken_to_ask(waiter), "{:?}", self.out);
        assert_eq!(self.permit(waiter).target, 2);
    }

    /// Whether a call is in the queue.
    fn is_there(&self, waiter: WaiterId) -> bool {
        self.core.queue.get(waiter).is_some()
    }
}

#[test]
fn a_call_that_waits_asks_again_when_its_time_has_come() {
    let mut fixture = Fixture::new();
    let waiter = fixture.call(A, Order::Queued);
    fixture.finds_it_held(waiter);
    assert_eq!(fixture.core.woken(waiter), Woken::Nothing);
    fixture.timer_of_the_queue_fires_after(LEASE);
    assert!(fixture.is_woken_to_ask(waiter), "{:?}", fixture.out);
    fixture.finds_it_held(waiter);
    // Not at each step from then on.
    fixture.step(TimePasses {});
    assert!(fixture.out.woken.is_empty(), "{:?}", fixture.out);
}

#[test]
fn a_message_has_those_that_wait_ask_again() {
    let mut fixture = Fixture::new();
    let head = fixture.call(A, Order::Queued);
    fixture.finds_it_held(head);
    let next = fixture.call(B, Order::Queued);
    assert_eq!(fixture.admit(next), Admission::Queued);
    fixture.hears(None);
    assert_eq!(fixture.out.woken[..], [head], "the other one comes later");
    assert!(fixture.is_woken_to_ask(head));
    fixture.finds_it_held(head);
}

/// The message may be older than the answer, or younger: one more attempt tells.
#[test]
fn a_message_while_an_acquire_is_under_way_leads_to_another_attempt() {
    for subscribed in [true, false] {
        let mut fixture = Fixture::new();
        let waiter = fixture.call(A, Order::Queued);
        let permit = fixture.permit(waiter);
        fixture.hears(None);
        assert!(fixture.core.is_attempting(&permit));
        assert_eq!(fixture.core.woken(waiter), Woken::Nothing);
        let until = fixture.now + LEASE;
        let then = Then::Waits { until, subscribed };
        fixture.untaken_then(&permit, Untaken::Busy, then);
        assert!(fixture.is_woken_to_ask(waiter), "{:?}", fixture.out);
        assert!(fixture.out.subscribes.is_empty(), "it does not wait");
        // It is heard once.
        fixture.finds_it_held(waiter);
        assert_eq!(fixture.core.woken(waiter), Woken::Nothing);
    }
}

/// It is the turn of another owner in the server's queue, or the attempt does not wait.
#[test]
fn a_message_for_others_leads_to_no_other_attempt() {
    let mut fixture = Fixture {
        core: LockCore::new(crate::Discipline::Fair, RULES, crate::Life::Open),
        ..Fixture::new()
    };
    let [sent, waiting] = [A, B].map(|owner| fixture.call(owner, Order::Queued));
    fixture.finds_it_held(waiting);
    let permit = fixture.permit(sent);
    fixture.hears(Some(C));
    assert!(fixture.out.woken.is_empty(), "{:?}", fixture.out);
    fixture.untaken(&permit, Untaken::Busy);
    for waiter in [sent, waiting] {
        assert_eq!(fixture.core.woken(waiter), Woken::Nothing);
    }
    let mut fixture = Fixture::new();
    let attempt = fixture.call(A, Order::Immediate);
    let permit = fixture.permit(attempt);
    fixture.hears(None);
    fixture.untaken(&permit, Untaken::Busy);
    assert!(!fixture.is_there(attempt));
}

#[test]
fn a_call_asks_again_if_its_attempt_says_so() {
    let mut fixture = Fixture::new();
    let waiter = fixture.call(A, Order::Queued);
    let permit = fixture.permit(waiter);
    fixture.untaken_then(&permit, Untaken::NotExecuted, Then::AsksAgain);
    assert!(fixture.is_woken_to_ask(waiter), "{:?}", fixture.out);
    fixture.permit(waiter);
}

#[test]
fn a_call_waits_until_the_client_hears_of_the_lock_and_then_its_time() {
    let mut fixture = Fixture::new();
    let waiter = fixture.call(A, Order::Queued);
    fixture.subscribes(waiter);
    let subscribes = fixture.out.subscribes.iter();
    assert!(subscribes.map(|(owner, _)| *owner).eq([A]));
    assert_eq!(fixture.core.woken(waiter), Woken::Nothing);
    let limit = fixture.now + TIMEOUT;
    assert_eq!(fixture.core.timer(OwnerKey::QUEUE), Some(limit));
    fixture.now = fixture.now + Duration::from_secs(1);
    fixture.listens(&[waiter], Listens::Unchanged);
    assert!(fixture.out.woken.is_empty(), "{:?}", fixture.out);
    assert!(fixture.core.subscribing(None).is_empty());
    // Its timer fires too early, and again.
    fixture.timer_of_the_queue_fires_after(TIMEOUT - Duration::from_secs(1));
    assert!(fixture.out.woken.is_empty(), "{:?}", fixture.out);
    fixture.timer_of_the_queue_fires_after(LEASE - TIMEOUT);
    assert!(fixture.is_woken_to_ask(waiter), "{:?}", fixture.out);
    fixture.permit(waiter);
}

#[test]
fn a_call_asks_again_if_something_may_have_been_missed_before_a_subscription() {
    for is_message in [true, false] {
        let mut fixture = Fixture::new();
        let waiter = fixture.call(A, Order::Queued);
        fixture.subscribes(waiter);
        match is_message {
            true => fixture.hears(None),
            false => fixture.listens(&[waiter], Listens::Changed),
        }
        assert!(fixture.is_woken_to_ask(waiter), "{:?}", fixture.out);
        fixture.finds_it_held(waiter);
        // What is said of the subscription later is said of none that it waits for.
        fixture.listens(&[waiter], Listens::Refused);
        assert!(fixture.out.woken.is_empty(), "{:?}", fixture.out);
    }
}

#[test]
fn a_refused_subscription_ends_the_calls_that_wait_for_it() {
    let mut fixture = Fixture {
        core: LockCore::new(crate::Discipline::Fair, RULES, crate::Life::Open),
        ..Fixture::new()
    };
    let [first, second, other] = [A, A, B].map(|owner| fixture.call(owner, Order::Queued));
    for waiter in [first, second] {
        fixture.subscribes(waiter);
    }
    fixture.finds_it_held(other);
    let waiting = fixture.core.subscribing(Some(A));
    assert_eq!(waiting, [first, second]);
    assert_eq!(fixture.core.subscribing(None), waiting);
    assert!(fixture.core.subscribing(Some(B)).is_empty());
    fixture.listens(&waiting, Listens::Refused);
    for waiter in waiting {
        assert!(fixture.is_woken_to_ask(waiter), "{:?}", fixture.out);
    }
    for waiter in [first, second] {
        assert_eq!(fixture.rejected(waiter), Rejected::Unconfirmed);
    }
    assert_eq!(fixture.core.woken(other), Woken::Nothing);
    assert!(fixture.core.subscribing(None).is_empty());
}

#[test]
fn a_subscription_that_is_not_confirmed_ends_its_call_after_a_command_timeout() {
    let mut fixture = Fixture::new();
    let waiter = fixture.call(A, Order::Queued);
    fixture.subscribes(waiter);
    let next = fixture.call(B, Order::Queued);
    assert_eq!(fixture.admit(next), Admission::Queued);
    fixture.timer_of_the_queue_fires_after(TIMEOUT);
    assert!(fixture.is_woken_to_ask(waiter), "{:?}", fixture.out);
    assert_eq!(fixture.rejected(waiter), Rejected::Unconfirmed);
    assert!(!fixture.is_there(waiter));
    assert!(fixture.is_woken_to_ask(next), "{:?}", fixture.out);
}

/// There is nothing left to wait for.
#[test]
fn a_call_that_waits_for_a_subscription_nests_into_a_hold_of_its_owner() {
    let mut fixture = Fixture::new();
    let waiter = fixture.call(A, Order::Queued);
    fixture.subscribes(waiter);
    fixture.nests_into_a_hold(waiter);
}

/// In the step that ends it, whether it is polled or not.
#[test]
fn a_call_that_is_over_is_in_the_way_of_none() {
    let mut fixture = Fixture::new();
    let [first, next] = [A, B].map(|owner| fixture.call(owner, Order::Queued));
    let permit = fixture.permit(first);
    assert_eq!(fixture.admit(next), Admission::Queued);
    fixture.untaken_then(&permit, Untaken::NotExecuted, Then::Ends);
    assert!(!fixture.is_there(first) && !fixture.core.wants_poll(first));
    assert!(fixture.is_woken_to_ask(next), "{:?}", fixture.out);
    fixture.permit(next);
}

#[test]
fn a_call_asks_once_however_late_it_is() {
    for order in [Order::First, Order::Immediate, Order::Queued] {
        let mut fixture = Fixture::new();
        let waiter = fixture.call_within(A, order, Duration::ZERO);
        fixture.permit(waiter);
    }
}

/// Whatever it waits for.
#[test]
fn a_call_whose_deadline_has_come_makes_no_other_attempt() {
    let second = Duration::from_secs(1);
    for waits_for in ["another owner", "its owner", "a subscription", "a process"] {
        let mut fixture = Fixture::new();
        let owner = if waits_for == "its owner" { A } else { B };
        if matches!(waits_for, "another owner" | "its owner") {
            let before = fixture.call(A, Order::Queued);
            fixture.permit(before);
        }
        let waiter = fixture.call_within(owner, Order::Queued, second);
        match waits_for {
            "another owner" => assert_eq!(fixture.admit(waiter), Admission::Queued),
            "its owner" => assert_eq!(fixture.admit(waiter), Admission::OwnerBusy),
            "a subscription" => fixture.subscribes(waiter),
            _ => fixture.finds_it_held(waiter),
        }
        fixture.timer_of_the_queue_fires_after(second);
        assert!(fixture.is_woken_to_ask(waiter), "{waits_for}");
        assert_eq!(fixture.rejected(waiter), Rejected::NotInTime, "{waits_for}");
        assert!(!fixture.is_there(waiter));
    }
}

/// What was sent before has an answer, which counts.
#[test]
fn an_attempt_that_is_under_way_at_the_deadline_is_the_last_one() {
    let second = Duration::from_secs(1);
    for is_taken in [true, false] {
        let mut fixture = Fixture::new();
        let waiter = fixture.call_within(A, Order::Queued, second);
        let permit = fixture.permit(waiter);
        fixture.now = fixture.now + second * 2;
        fixture.step(TimePasses {});
        assert!(fixture.core.is_attempting(&permit));
        if is_taken {
            let sent_at = fixture.now;
            fixture.takes_at(&permit, sent_at).expect("wanted");
            continue;
        }
        fixture.untaken(&permit, Untaken::Busy);
        fixture.now = fixture.core.timer(OwnerKey::QUEUE).expect("set");
        fixture.now = fixture.now + second * 2;
        fixture.step(TimePasses {});
        assert!(fixture.is_woken_to_ask(waiter), "{:?}", fixture.out);
        assert_eq!(fixture.rejected(waiter), Rejected::NotInTime);
    }
}

/// The one before it would be woken for both, and is not polled.
#[test]
fn a_call_nests_into_a_hold_of_its_owner_behind_a_place_that_is_not_polled() {
    let mut fixture = Fixture::new();
    fixture.place(A);
    let waiter = fixture.call(A, Order::Queued);
    assert_eq!(fixture.admit(waiter), Admission::Queued);
    fixture.nests_into_a_hold(waiter);
}

#[test]
fn a_call_nests_into_a_hold_of_its_owner_behind_one_that_was_passed_over() {
    let mut fixture = Fixture::new();
    let unpolled = fixture.call(A, Order::Queued);
    let permit = fixture.permit(unpolled);
    fixture.granted(&permit);
    fixture.now = fixture.now + TIMEOUT;
    fixture.step(TimePasses {});
    let (_, job) = fixture.out.sends[0];
    fixture.job_sends(A, job);
    fixture.answered(A, 0, None);
    let waiter = fixture.call(A, Order::Queued);
    fixture.finds_it_held(waiter);
    fixture.nests_into_a_hold(waiter);
}

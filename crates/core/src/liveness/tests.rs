//! A call that is not polled when it has a reason to go on.

use std::time::Duration;

use crate::tests::{A, B, C, Fixture, RULES};
use crate::{Order, OwnerKey, Rejected, Untaken, WaiterId};

const TIMEOUT: Duration = RULES.command_timeout;

impl Fixture {
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
fn an_attempt_whose_answer_is_not_applied_is_undone_and_its_call_asks_again() {
    let mut fixture = Fixture::new();
    let head = fixture.call(A, Order::Queued);
    let permit = fixture.permit(head);
    let next = fixture.call(B, Order::Queued);
    fixture.admit(next);
    fixture.timer_of_the_queue_fires_after(TIMEOUT);
    assert!(!fixture.core.is_attempting(&permit));
    let (owner, job) = fixture.out.sends[0];
    assert_eq!(owner, A);
    let sent_at = fixture.now;
    let taken = fixture.step(|core, now, out| core.taken(now, &permit, sent_at, out));
    assert_eq!(taken, Err(Rejected::TakenOver));
    fixture.job_sends(A, job);
    fixture.answered(A, 0, None);
    assert_eq!(fixture.out.woken[..], [next]);
    fixture.permit(next);
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

/// Its answer may be there: its call has not applied it.
#[test]
fn an_acquire_that_is_not_polled_is_undone_when_others_wait_for_its_end() {
    for is_nested in [true, false] {
        let mut fixture = Fixture::new();
        let outer = is_nested.then(|| fixture.lock(A));
        let unpolled = fixture.call(A, Order::Immediate);
        let permit = fixture.permit(unpolled);
        let queued = fixture.call(B, Order::Queued);
        match is_nested {
            true => _ = fixture.admit(queued),
            false => {
                fixture.finds_it_held(queued);
                fixture.waits(queued, Duration::from_secs(60));
            }
        }
        if let Some(outer) = outer {
            fixture.step(|core, now, out| core.drop_hold(now, A, outer, out));
            assert!(fixture.out.sends.is_empty(), "its release waits");
        }
        fixture.timer_of_the_queue_fires_after(TIMEOUT * 2);
        assert!(!fixture.core.is_attempting(&permit));
        let (owner, job) = fixture.out.sends[0];
        assert_eq!(owner, A);
        assert_eq!(fixture.job_sends(A, job).0, 0);
        fixture.answered(A, 0, None);
        let mut woken = fixture.out.woken.to_vec();
        fixture.next_of(A, job);
        woken.extend(&fixture.out.woken);
        assert!(woken.contains(&queued), "{woken:?}");
        fixture.permit(queued);
        let sent_at = fixture.now;
        let taken = fixture.step(|core, now, out| core.taken(now, &permit, sent_at, out));
        assert_eq!(taken, Err(Rejected::TakenOver));
    }
}

#[test]
fn a_release_alone_waits_no_longer_for_an_acquire_that_is_not_polled() {
    let mut fixture = Fixture::new();
    let outer = fixture.lock(A);
    let unpolled = fixture.call(A, Order::Queued);
    fixture.permit(unpolled);
    assert_eq!(fixture.core.timer(OwnerKey::QUEUE), None, "nothing waits");
    fixture.step(|core, now, out| core.drop_hold(now, A, outer, out));
    fixture.timer_of_the_queue_fires_after(TIMEOUT * 2);
    let (_, job) = fixture.out.sends[0];
    assert_eq!(fixture.job_sends(A, job).0, 0);
}

/// Its owner has had the lock for long: its time begins with the acquire.
#[test]
fn an_acquire_that_begins_late_has_as_long_as_any() {
    let mut fixture = Fixture::new();
    let outer = fixture.lock(A);
    fixture.now = fixture.now + TIMEOUT * 5;
    let nested = fixture.call(A, Order::Immediate);
    let permit = fixture.permit(nested);
    fixture.step(|core, now, out| core.drop_hold(now, A, outer, out));
    let limit = fixture.now + TIMEOUT * 2;
    fixture.now = limit - Duration::from_millis(1);
    fixture.step(|core, now, out| core.tick(now, out));
    assert!(fixture.core.is_attempting(&permit));
    fixture.now = limit;
    fixture.step(|core, now, out| core.tick(now, out));
    assert!(!fixture.core.is_attempting(&permit));
}

//! Fair locks: what becomes of an owner's place in the server's queue.

mod places;
mod read_write;

use std::sync::Arc;
use std::time::Duration;

use crate::input::{CallAsks, LifeChanges, OwnerLost, ReleaseAnswered, ReleaseDropped};
use crate::tests::{A, B, C, Fixture, GONE, RULES, TERMS};
use crate::{
    Admission, Discipline, Life, LockCore, OpId, Order, OwnerKey, Permit, Rejected, ReleaseAnswer,
    ReleaseSend, ReleaseStep, Terms, Then, ThreadId, Untaken, WaiterId, Woken,
};
use crate::{Effects, LossReason};

impl Fixture {
    fn fair() -> Self {
        Self {
            core: LockCore::new(Discipline::Fair, RULES, Life::Open),
            ..Self::new()
        }
    }

    /// How often a connection was replaced without a fence, as each call of the owner reports it.
    fn reconnected(&mut self, times: u64) {
        self.out = Effects::default();
        let now = self.now;
        self.core.step(now, &mut self.out, |core, out| {
            core.note_reconnects(now, Some((A, times)), out);
        });
    }

    /// A call whose attempt has left its owner a place.
    fn queued_up(&mut self, owner: OwnerKey) -> WaiterId {
        let waiter = self.call(owner, Order::Queued);
        let permit = self.permit(waiter);
        assert!(permit.queues_up);
        self.untaken(&permit, Untaken::Busy);
        assert!(self.has_place(owner));
        waiter
    }

    fn has_place(&self, owner: OwnerKey) -> bool {
        let own = self.core.owners.get(owner);
        own.is_some_and(|own| own.has_place())
    }

    /// The job that began with the latest step.
    fn job(&self) -> OpId {
        assert_eq!(self.out.sends.len(), 1, "{:?}", self.out);
        self.out.sends[0].1
    }

    /// The next send of a job: the count, and whether the owner gives its place up.
    fn sends(&mut self, owner: OwnerKey, job: OpId) -> (u32, bool) {
        let step = self.next_of(owner, job);
        assert!(matches!(step, ReleaseStep::Send { .. }), "{step:?}");
        match self.sends_release(owner, true) {
            ReleaseSend::Count { target, leaves, .. } => (target, leaves.is_some()),
            ReleaseSend::Pass { to, .. } => panic!("the lock is handed to {to}"),
        }
    }

    fn release_is_answered(&mut self, owner: OwnerKey, job: OpId, gone: Option<LossReason>) {
        let answer = ReleaseAnswer {
            gone,
            sent_at: self.now,
            others_listen: false,
            token: None,
        };
        self.step(ReleaseAnswered {
            owner,
            op: job,
            answer,
        });
    }

    fn takes(&mut self, permit: &Permit) -> Result<(), Rejected> {
        let sent_at = self.now;
        self.takes_at(permit, sent_at).map(drop)
    }
}

#[test]
fn a_busy_reply_leaves_a_place_which_the_last_call_gives_up() {
    let mut fixture = Fixture::fair();
    let waiter = fixture.queued_up(A);
    assert!(fixture.out.sends.is_empty());
    assert!(fixture.core.keeps_itself(), "its field stays the same");
    fixture.leaves(waiter);
    let job = fixture.job();
    assert_eq!(fixture.core.counts().releasing, 1);
    assert_eq!(fixture.sends(A, job), (0, true));
    fixture.release_is_answered(A, job, GONE);
    assert_eq!(fixture.next_of(A, job), ReleaseStep::Done);
    assert!(!fixture.core.keeps_itself());
}

#[test]
fn the_place_is_gone_with_each_answer_of_a_release_that_gives_it_up() {
    for gone in [
        None,
        GONE,
        Some(LossReason::Taken),
        Some(LossReason::Changed),
    ] {
        let mut fixture = Fixture::fair();
        let waiter = fixture.queued_up(A);
        fixture.leaves(waiter);
        let job = fixture.job();
        fixture.sends(A, job);
        fixture.release_is_answered(A, job, gone);
        assert!(!fixture.has_place(A) && !fixture.core.keeps_itself());
        assert!(fixture.out.events.is_empty(), "nothing was lost");
    }
}

#[test]
fn an_attempt_that_does_not_queue_up_leaves_no_place() {
    let mut fixture = Fixture::fair();
    let attempt = fixture.call(A, Order::Immediate);
    let permit = fixture.permit(attempt);
    assert!(!permit.queues_up);
    fixture.untaken(&permit, Untaken::Busy);
    assert!(!fixture.core.keeps_itself());
    fixture.leaves(attempt);
    assert!(fixture.out.sends.is_empty());
}

#[test]
fn an_attempt_that_was_not_executed_leaves_the_place_as_it_was() {
    let mut fixture = Fixture::fair();
    let waiter = fixture.call(A, Order::Queued);
    let permit = fixture.permit(waiter);
    fixture.untaken(&permit, Untaken::NotExecuted);
    assert!(!fixture.has_place(A));
    fixture.asks_when_polled(waiter);
    let permit = fixture.permit(waiter);
    fixture.untaken(&permit, Untaken::Busy);
    let permit = fixture.permit(waiter);
    fixture.untaken(&permit, Untaken::NotExecuted);
    assert!(fixture.has_place(A));
}

#[test]
fn an_owner_of_any_number_has_a_lane_of_its_own() {
    for thread in [i64::MIN + 1, -1, 0, 2, 8, 1 << 62] {
        let mut fixture = Fixture::fair();
        fixture.queued_up(A);
        let waiter = fixture.queued_up(OwnerKey::only(ThreadId(thread)));
        fixture.leaves(waiter);
        assert!(fixture.has_place(A), "{thread}");
    }
}

/// Without a fence a late command may free what is taken under a field that was used before a reconnect.
#[test]
fn a_place_is_given_up_while_its_call_queues_if_its_field_is_older_than_a_reconnect() {
    for (is_answered, before) in [(true, 0), (false, 0), (true, 1)] {
        let mut fixture = Fixture::fair();
        let waiter = fixture.queued_up(A);
        fixture.reconnected(before);
        fixture.reconnected(before + 1);
        let job = fixture.job();
        let field: Arc<str> = "another".into();
        let admission = fixture.step(CallAsks {
            call: waiter,
            field: field.clone(),
            reconnects: None,
        });
        assert_eq!(admission, Ok(Admission::OwnerBusy));
        assert_eq!(fixture.sends(A, job), (0, true));
        match is_answered {
            true => fixture.release_is_answered(A, job, GONE),
            // It ends by itself, under a field that is not used any more.
            false => fixture.step(ReleaseDropped { owner: A, op: job }),
        }
        assert!(!fixture.has_place(A) && !fixture.core.keeps_itself());
        let admission = fixture.step(CallAsks {
            call: waiter,
            field: field.clone(),
            reconnects: None,
        });
        assert_eq!(admission, Ok(Admission::Sent));
        let permit = fixture.sent_acquire();
        assert_eq!((permit.field, permit.queues_up), (field, true));
    }
}

/// Its field is older than the reconnect, so the call would attempt in vain for ever.
#[test]
fn a_place_is_given_up_that_an_attempt_before_a_reconnect_may_have_left() {
    let mut fixture = Fixture::fair();
    let waiter = fixture.call(A, Order::Queued);
    let permit = fixture.permit(waiter);
    fixture.reconnected(0);
    fixture.reconnected(1);
    fixture.untaken(&permit, Untaken::Unknown);
    let job = fixture.job();
    fixture.sends(A, job);
    fixture.release_is_answered(A, job, GONE);
    assert_eq!(fixture.next_of(A, job), ReleaseStep::Done);
    fixture.reconnected(1);
    let job = fixture.job();
    assert_eq!(fixture.sends(A, job), (0, true));
}

/// The permit of a dropped call ends before its waiter leaves: the job may send in between.
#[test]
fn an_attempt_without_an_answer_may_have_left_a_place() {
    let mut fixture = Fixture::fair();
    let waiter = fixture.call(A, Order::Queued);
    let permit = fixture.permit(waiter);
    fixture.untaken(&permit, Untaken::Unknown);
    let job = fixture.job();
    assert_eq!(fixture.sends(A, job), (0, false), "the call still queues");
    fixture.leaves(waiter);
    assert!(fixture.out.sends.is_empty(), "one job");
    fixture.release_is_answered(A, job, GONE);
    assert_eq!(fixture.sends(A, job), (0, true));
    fixture.release_is_answered(A, job, GONE);
    assert_eq!(fixture.next_of(A, job), ReleaseStep::Done);
    assert!(!fixture.core.keeps_itself());
}

#[test]
fn a_release_for_an_attempt_without_an_answer_keeps_the_place_of_a_call_that_queues() {
    let mut fixture = Fixture::fair();
    let waiter = fixture.call(A, Order::Queued);
    let permit = fixture.permit(waiter);
    fixture.untaken(&permit, Untaken::Unknown);
    let job = fixture.job();
    assert_eq!(fixture.sends(A, job), (0, false));
    fixture.release_is_answered(A, job, GONE);
    assert_eq!(fixture.next_of(A, job), ReleaseStep::Done);
    assert!(fixture.has_place(A));
    fixture.asks_when_polled(waiter);
    fixture.permit(waiter);
}

#[test]
fn an_owner_that_has_the_lock_has_no_place() {
    let mut fixture = Fixture::fair();
    let waiter = fixture.queued_up(A);
    let permit = fixture.permit(waiter);
    fixture.takes(&permit).expect("wanted");
    assert!(!fixture.has_place(A));
    fixture.leaves(waiter);
    assert!(fixture.out.sends.is_empty());
}

/// Its lease is over when the reply is read, so a job undoes it.
#[test]
fn an_owner_that_had_the_lock_has_no_place() {
    let mut fixture = Fixture::fair();
    let lease = RULES.command_timeout;
    let terms = Terms { lease, ..TERMS };
    let waiter = fixture.call_with(A, Order::Queued, terms);
    let permit = fixture.permit(waiter);
    fixture.untaken(&permit, Untaken::Busy);
    let permit = fixture.permit(waiter);
    let sent_at = fixture.now;
    fixture.now = fixture.now + lease;
    let taken = fixture.takes_at(&permit, sent_at);
    assert_eq!(taken, Err(Rejected::TooLate));
    let job = fixture.job();
    assert!(!fixture.has_place(A));
    fixture.leaves(waiter);
    assert_eq!(fixture.sends(A, job), (0, false));
}

#[test]
fn an_attempt_that_is_under_way_when_the_client_closes_leaves_no_place() {
    let mut fixture = Fixture::fair();
    let waiter = fixture.call(A, Order::Queued);
    let permit = fixture.permit(waiter);
    assert!(permit.queues_up);
    fixture.step(LifeChanges {
        life: Life::Closing,
    });
    let job = fixture.job();
    assert_eq!(fixture.sends(A, job).0, 0);
    fixture.leaves(waiter);
    fixture.release_is_answered(A, job, GONE);
    let step = fixture.next_of(A, job);
    let again = matches!(step, ReleaseStep::Send { leaves: true, .. });
    assert!(again || !fixture.has_place(A), "{step:?}");
}

#[test]
fn a_nested_call_queues_up_nowhere() {
    let mut fixture = Fixture::fair();
    fixture.lock(A);
    let nested = fixture.call(A, Order::Queued);
    let permit = fixture.permit(nested);
    assert!(!permit.queues_up);
    fixture.untaken(&permit, Untaken::Unknown);
    assert!(!fixture.has_place(A));
    let job = fixture.job();
    fixture.leaves(nested);
    assert_eq!(fixture.sends(A, job), (1, false));
}

#[test]
fn the_place_of_an_owner_stays_while_one_of_its_calls_queues() {
    let mut fixture = Fixture::fair();
    let first = fixture.queued_up(A);
    let second = fixture.call(A, Order::Queued);
    fixture.leaves(first);
    assert!(fixture.out.sends.is_empty());
    fixture.leaves(second);
    let job = fixture.job();
    // A call that joins before the send keeps it.
    let third = fixture.call(A, Order::Queued);
    assert_eq!(fixture.admit(third), Admission::OwnerBusy);
    assert_eq!(fixture.sends(A, job), (0, false));
    fixture.release_is_answered(A, job, GONE);
    assert!(fixture.has_place(A) && fixture.out.woken.contains(&third));
    fixture.permit(third);
}

#[test]
fn a_call_that_joins_after_the_send_has_lost_the_place() {
    let mut fixture = Fixture::fair();
    let waiter = fixture.queued_up(A);
    fixture.leaves(waiter);
    let job = fixture.job();
    assert_eq!(fixture.sends(A, job), (0, true));
    let next = fixture.call(A, Order::Queued);
    fixture.release_is_answered(A, job, GONE);
    assert!(!fixture.has_place(A));
    let permit = fixture.permit(next);
    assert!(permit.queues_up);
}

#[test]
fn a_place_is_given_up_after_the_acquire_that_is_under_way() {
    for outcome in [Untaken::Busy, Untaken::NotExecuted, Untaken::Unknown] {
        let mut fixture = Fixture::fair();
        let waiter = fixture.queued_up(A);
        let attempt = fixture.call(A, Order::Immediate);
        let permit = fixture.permit(attempt);
        fixture.leaves(waiter);
        assert!(fixture.out.sends.is_empty());
        assert_eq!(fixture.core.counts().releasing, 1);
        fixture.untaken(&permit, outcome);
        let job = fixture.job();
        assert_eq!(fixture.sends(A, job), (0, true));
    }
}

/// It may have used the place: the call that queues asks again, and gives up what may be left if it does not.
#[test]
fn an_immediate_attempt_without_an_answer_may_have_left_the_place() {
    for asks in [true, false] {
        let mut fixture = Fixture::fair();
        let waiter = fixture.queued_up(A);
        let attempt = fixture.call(A, Order::Immediate);
        let permit = fixture.permit(attempt);
        fixture.untaken(&permit, Untaken::Unknown);
        let job = fixture.job();
        assert_eq!(fixture.sends(A, job), (0, false), "a call queues");
        fixture.release_is_answered(A, job, GONE);
        assert_eq!(fixture.next_of(A, job), ReleaseStep::Done);
        assert_eq!(fixture.core.woken(waiter), Woken::Asks);
        if asks {
            let permit = fixture.permit(waiter);
            fixture.untaken(&permit, Untaken::Busy);
            assert_eq!(fixture.core.woken(waiter), Woken::Nothing);
        }
        fixture.leaves(waiter);
        let job = fixture.job();
        assert_eq!(fixture.sends(A, job), (0, true));
    }
}

#[test]
fn a_loss_does_not_end_the_release_of_a_place() {
    let lose = |fixture: &mut Fixture| {
        fixture.step(OwnerLost {
            owner: A,
            generation: None,
            reason: LossReason::Gone,
        });
    };
    let mut fixture = Fixture::fair();
    let waiter = fixture.queued_up(A);
    let attempt = fixture.call(A, Order::Immediate);
    let permit = fixture.permit(attempt);
    fixture.leaves(waiter);
    lose(&mut fixture);
    fixture.untaken(&permit, Untaken::Busy);
    let job = fixture.job();
    lose(&mut fixture);
    assert_eq!(fixture.sends(A, job), (0, true));
}

#[test]
fn a_place_that_is_not_given_up_in_time_ends_by_itself() {
    let mut fixture = Fixture::fair();
    let waiter = fixture.queued_up(A);
    fixture.leaves(waiter);
    let job = fixture.job();
    let until = fixture.now + RULES.fair_wait + RULES.watchdog_timeout;
    assert!(matches!(fixture.next_of(A, job), ReleaseStep::Send { .. }));
    assert_eq!(fixture.gives_up_at(A), until);
    fixture.step(ReleaseDropped { owner: A, op: job });
    assert!(!fixture.core.keeps_itself());
}

/// No call gets the lock any more, so a place is given up before its call has seen that.
#[test]
fn a_closing_client_gives_its_places_up_and_a_closed_one_none() {
    let mut fixture = Fixture::fair();
    let [waiting, leaving] = [A, B].map(|owner| fixture.queued_up(owner));
    fixture.step(LifeChanges {
        life: Life::Closing,
    });
    let jobs = fixture.out.sends.to_vec();
    assert_eq!(jobs.len(), 2, "{:?}", fixture.out);
    assert_eq!(fixture.core.counts().releasing, 2, "`close` waits for them");
    fixture.leaves(leaving);
    assert!(fixture.out.sends.is_empty(), "one job an owner");
    fixture.step(LifeChanges { life: Life::Closed });
    for (owner, job) in jobs {
        assert_eq!(fixture.next_of(owner, job), ReleaseStep::Done);
    }
    fixture.leaves(waiting);
    assert!(fixture.out.sends.is_empty());
    assert!(!fixture.has_place(A) && !fixture.has_place(B));
}

#[test]
fn every_owner_attempts_and_none_lets_another_go_first() {
    let mut fixture = Fixture::fair();
    fixture.queued_up(A);
    let waiter = fixture.call(B, Order::Queued);
    let beside = fixture.permit(waiter);
    let attempt = fixture.call(C, Order::Immediate);
    fixture.permit(attempt);
    fixture.untaken(&beside, Untaken::Busy);
    assert!(fixture.core.has_turn(fixture.now, waiter));
}

#[test]
fn a_release_hands_nothing_over_and_wakes_no_other_owner() {
    let mut fixture = Fixture::fair();
    let hold = fixture.lock(A);
    let waiter = fixture.queued_up(B);
    let until = fixture.now + TERMS.lease;
    assert_eq!(fixture.core.timer(OwnerKey::QUEUE), Some(until));
    let job = fixture.drop_hold(A, hold);
    assert_eq!(fixture.sends(A, job), (0, false));
    fixture.release_is_answered(A, job, None);
    assert!(!fixture.out.woken.contains(&waiter), "{:?}", fixture.out);
    assert_eq!(fixture.core.woken(waiter), Woken::Nothing);
}

/// Its place was used by an immediate attempt of its owner, which has unlocked before the call could nest.
#[test]
fn a_call_whose_place_was_used_attempts_again() {
    let mut fixture = Fixture::fair();
    let waiter = fixture.queued_up(A);
    assert_eq!(fixture.core.woken(waiter), Woken::Nothing);
    let hold = fixture.lock(A);
    assert!(!fixture.has_place(A));
    let job = fixture.drop_hold(A, hold);
    fixture.sends(A, job);
    fixture.release_is_answered(A, job, None);
    assert!(fixture.is_woken_to_ask(waiter), "{:?}", fixture.out);
    assert!(fixture.permit(waiter).queues_up);
}

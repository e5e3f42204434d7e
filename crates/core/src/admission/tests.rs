//! Who may go on when, who is woken for it, and what the life of the client changes.

use std::sync::Arc;
use std::time::Duration;

use crate::LossReason;
use crate::input::{
    CallAsks, ClientEnds, HoldDetached, HoldDropped, LifeChanges, OwnerLost, ReleaseDropped,
    RenewalEnds, ReplicasAnswer, ServerChanges, TimePasses, TimerFires,
};
use crate::tests::{A, B, C, Fixture, RULES, TERMS};
use crate::{
    Admission, Effects, Event, Life, LockCore, Order, OwnerKey, Rejected, RenewOutcome, RenewalAsk,
    Rules, Terms, Time, Total, Untaken, WaiterId, Woken,
};

const FIXED: Terms = Terms {
    lease: Duration::from_secs(10),
    kind: crate::LeaseKind::Fixed,
    ..TERMS
};

impl Fixture {
    pub(crate) fn at(&mut self, secs: u64) {
        self.now = Time::START + Duration::from_secs(secs);
    }

    fn tick(&mut self) {
        self.step(TimePasses {});
    }

    /// Others come first. When it asks again, if nothing happens before.
    fn queued(&mut self, waiter: WaiterId) -> Option<Time> {
        assert_eq!(self.admit(waiter), Admission::Queued);
        self.core.queue.get(waiter).expect("it waits").due
    }

    /// It waits for an operation of its owner, for up to this time.
    fn waits_behind(&mut self, waiter: WaiterId, time: Duration) {
        assert_eq!(self.admit(waiter), Admission::OwnerBusy);
        let due = self.core.queue.get(waiter).expect("it waits").due;
        assert_eq!(due, Some(self.now + time));
        let timer = self.core.timer(OwnerKey::QUEUE);
        assert!(timer.is_some_and(|at| Some(at) <= due), "{timer:?}");
    }

    fn queue_timer_fires(&mut self) {
        self.step(TimerFires {
            owner: OwnerKey::QUEUE,
        });
    }

    /// Its owner has had no answer until now.
    fn has_no_answer(&mut self, waiter: WaiterId) {
        assert_eq!(self.core.woken(waiter), Woken::Asks);
        assert_eq!(self.rejected(waiter), Rejected::NoAnswer);
        assert!(self.core.queue.get(waiter).is_none(), "it is over");
    }

    pub(crate) fn rejected(&mut self, waiter: WaiterId) -> Rejected {
        let field: Arc<str> = "f".into();
        self.step(CallAsks {
            call: waiter,
            field,
            reconnects: None,
        })
        .expect_err("rejected")
    }

    /// Whether a call that waits for another process has a reason to attempt again.
    pub(crate) fn retries(&self, waiter: WaiterId) -> bool {
        self.core.has_reason_to_retry(waiter)
    }
}

/// The lock was just released, and a call of another owner is at the head of the queue.
fn freed_before_its_head() -> (Fixture, WaiterId) {
    let mut fixture = Fixture::new();
    let hold = fixture.lock(A);
    let head = fixture.call(B, Order::Queued);
    assert_eq!(fixture.queued(head), None);
    let unlock = fixture.unlock(A, hold);
    fixture.unlocked(&unlock, 0, None).expect("released");
    (fixture, head)
}

#[test]
fn it_keeps_itself_while_there_is_an_owner_to_remember_and_a_client() {
    let mut fixture = Fixture::new();
    assert!(!fixture.core.keeps_itself());
    fixture.lock(A);
    assert!(fixture.core.keeps_itself());
    fixture.step(LifeChanges {
        life: Life::Closing,
    });
    assert!(fixture.core.keeps_itself());
    fixture.step(LifeChanges { life: Life::Gone });
    assert!(!fixture.core.keeps_itself());
}

#[test]
fn the_life_of_the_client_is_looked_at_by_every_call() {
    for (life, expected) in [
        (Life::Closing, Rejected::Closed),
        (Life::Gone, Rejected::NoRuntime),
        (Life::Closed, Rejected::Closed),
    ] {
        let mut fixture = Fixture::new();
        let waiter = fixture.call(A, Order::Queued);
        fixture.step(LifeChanges { life });
        assert_eq!(fixture.out.woken[..], [waiter]);
        assert!(fixture.is_woken_to_ask(waiter) && fixture.retries(waiter));
        assert_eq!(fixture.rejected(waiter), expected);
        assert_eq!(fixture.core.counts().waiting, 0, "it has left");
    }
}

#[test]
fn a_hold_is_over_at_its_end_and_not_before() {
    let mut fixture = Fixture::new();
    let hold = fixture.lock_with(A, FIXED);
    let snapshot = fixture.core.snapshot(fixture.now, A, hold);
    let ends = snapshot.expect("held").ends.expect("fixed");
    fixture.now = ends - Duration::from_nanos(1);
    fixture.tick();
    assert!(fixture.core.snapshot(fixture.now, A, hold).is_some());
    fixture.now = ends;
    fixture.tick();
    assert_eq!(fixture.core.snapshot(fixture.now, A, hold), None);
    let lost = crate::Ending::Lost(LossReason::LeaseOver);
    assert_eq!(fixture.out.ended[..], [(hold, lost)]);
    assert!(fixture.out.totals.contains(&(Total::Lost, 1)));
}

#[test]
fn all_that_is_held_is_lost_at_once_and_counted() {
    let mut fixture = Fixture::new();
    fixture.lock(A);
    assert_eq!(fixture.out.totals[..], [], "leaving counts nothing");
    fixture.lock(A);
    let counts = fixture.core.counts();
    assert_eq!((counts.held, counts.guarded), (2, 2));
    let fields = fixture.step(ClientEnds {
        reason: LossReason::Closed,
    });
    assert_eq!(fields.len(), 1);
    assert_eq!(fixture.out.totals[..], [(Total::Lost, 2)]);
    assert_eq!(fixture.out.ended.len(), 2);
    let lost = |event: &Event| matches!(event, Event::Lost { .. });
    assert_eq!(
        fixture
            .out
            .events
            .iter()
            .filter(|event| lost(event))
            .count(),
        1
    );
    let again = fixture.step(ClientEnds {
        reason: LossReason::Closed,
    });
    assert!(again.is_empty() && fixture.out == Effects::default());
}

#[test]
fn a_loss_of_nothing_is_not_reported() {
    let mut fixture = Fixture::new();
    let hold = fixture.lock(A);
    fixture.drop_hold(A, hold);
    fixture.step(OwnerLost {
        owner: A,
        generation: None,
        reason: LossReason::Gone,
    });
    assert!(fixture.out.events.is_empty() && fixture.out.totals.is_empty());
}

#[test]
fn a_call_that_joins_does_not_wake_itself_but_whoever_can_go_on() {
    let mut fixture = Fixture::new();
    let hold = fixture.lock_with(A, FIXED);
    fixture.step(HoldDetached { owner: A, hold });
    let head = fixture.call(B, Order::Queued);
    assert!(fixture.out.woken.is_empty());
    assert_eq!(fixture.queued(head), None);
    fixture.at(11);
    fixture.tick();
    let (owner, job) = fixture.out.sends[0];
    fixture.at(12);
    fixture.job_sends(owner, job);
    fixture.answered(owner, 0, None);
    assert!(fixture.out.woken.contains(&head), "{:?}", fixture.out);
    fixture.call(C, Order::Queued);
    assert!(fixture.out.woken.is_empty());
    assert_eq!(fixture.core.counts().waiting, 2);
}

#[test]
fn a_step_that_changes_nothing_wakes_nobody() {
    let mut fixture = Fixture::new();
    fixture.lock(A);
    let waiter = fixture.call(A, Order::Immediate);
    assert!(fixture.out.woken.is_empty());
    fixture.tick();
    fixture.step(HoldDetached {
        owner: A,
        hold: crate::HoldId(99),
    });
    assert!(!fixture.out.woken.contains(&waiter), "{:?}", fixture.out);
}

#[test]
fn an_immediate_attempt_does_not_overtake_other_owners() {
    let (mut fixture, head) = freed_before_its_head();
    assert!(fixture.out.woken.contains(&head));
    let stranger = fixture.call(C, Order::Immediate);
    assert_eq!(fixture.admit(stranger), Admission::Busy);
    let of_the_head = fixture.call(B, Order::Immediate);
    fixture.permit(of_the_head);
}

#[test]
fn a_place_whose_turn_is_not_taken_is_passed_over_by_immediate_attempts_too() {
    let mut fixture = Fixture::new();
    let place = fixture.place(B);
    assert!(fixture.polls_turn(place));
    let stranger = fixture.call(C, Order::Immediate);
    assert_eq!(fixture.admit(stranger), Admission::Busy);
    assert_eq!(fixture.core.counts().waiting, 1, "it is over");
    fixture.now = fixture.now + RULES.command_timeout;
    fixture.queue_timer_fires();
    let stranger = fixture.call(C, Order::Immediate);
    fixture.permit(stranger);
}

#[test]
fn a_reentry_never_lets_anybody_go_first() {
    let mut fixture = Fixture::new();
    fixture.lock(A);
    let other = fixture.call(B, Order::Queued);
    assert_eq!(fixture.queued(other), None);
    let inner = fixture.lock(A);
    for order in [Order::Immediate, Order::Queued] {
        let waiter = fixture.call(A, order);
        let permit = fixture.permit(waiter);
        assert_eq!(permit.target, 3);
        fixture.untaken(&permit, Untaken::NotExecuted);
    }
    fixture.unlock(A, inner);
}

#[test]
fn behind_its_own_operation_a_call_waits_for_a_command_timeout() {
    let mut fixture = Fixture::new();
    let first = fixture.call(A, Order::Immediate);
    let permit = fixture.permit(first);
    let others = [Order::Queued, Order::Immediate].map(|order| fixture.call(A, order));
    for waiter in others {
        fixture.waits_behind(waiter, RULES.command_timeout);
    }
    fixture.now = fixture.now + RULES.command_timeout;
    fixture.queue_timer_fires();
    assert_eq!(fixture.out.woken[..], others);
    for waiter in others {
        fixture.has_no_answer(waiter);
    }
    assert!(fixture.core.is_attempting(&permit), "it is waited for");
}

/// Each of those before it may take as long.
#[test]
fn behind_another_call_of_its_own_that_may_go_on_it_waits_for_a_command_timeout_too() {
    let mut fixture = Fixture::new();
    let first = fixture.call(A, Order::Immediate);
    let permit = fixture.permit(first);
    let others = [Order::Queued, Order::Queued].map(|order| fixture.call(A, order));
    for waiter in others {
        fixture.waits_behind(waiter, RULES.command_timeout);
    }
    fixture.now = fixture.now + RULES.command_timeout / 2;
    fixture.untaken(&permit, Untaken::NotExecuted);
    assert!(fixture.is_woken_to_ask(others[0]), "{:?}", fixture.out);
    let permit = fixture.permit(others[0]);
    fixture.now = fixture.now + RULES.command_timeout / 2;
    fixture.queue_timer_fires();
    assert_eq!(fixture.out.woken[..], [others[1]]);
    fixture.waits_behind(others[1], RULES.command_timeout / 2);
    fixture.now = fixture.now + RULES.command_timeout / 2;
    fixture.queue_timer_fires();
    assert_eq!(fixture.out.woken[..], [others[1]]);
    fixture.has_no_answer(others[1]);
    assert!(fixture.core.is_attempting(&permit));
}

/// However long the operation took that has ended.
#[test]
fn an_operation_that_ends_at_the_last_moment_fails_no_call_behind_it() {
    let mut fixture = Fixture::new();
    let first = fixture.call(A, Order::Immediate);
    let permit = fixture.permit(first);
    let others = [Order::Queued, Order::Queued].map(|order| fixture.call(A, order));
    for waiter in others {
        fixture.waits_behind(waiter, RULES.command_timeout);
    }
    fixture.now = fixture.now + RULES.command_timeout;
    fixture.untaken(&permit, Untaken::NotExecuted);
    for waiter in others {
        assert!(fixture.is_woken_to_ask(waiter), "{:?}", fixture.out);
    }
    fixture.permit(others[0]);
    fixture.waits_behind(others[1], RULES.command_timeout);
}

/// One that joined before it began to wait for its owner later, so its time is not over.
#[test]
fn an_operation_that_ends_at_the_last_moment_fails_no_call_that_has_waited_for_longest() {
    let mut fixture = Fixture::new();
    let hold = fixture.lock(B);
    let head = fixture.call(A, Order::Queued);
    assert_eq!(fixture.queued(head), None);
    let attempt = fixture.call(A, Order::Immediate);
    let permit = fixture.permit(attempt);
    let last = fixture.call(A, Order::Queued);
    fixture.waits_behind(last, RULES.command_timeout);
    fixture.now = fixture.now + RULES.command_timeout / 2;
    let unlock = fixture.unlock(B, hold);
    fixture.unlocked(&unlock, 0, None).expect("released");
    fixture.waits_behind(head, RULES.command_timeout);
    fixture.now = fixture.now + RULES.command_timeout / 2;
    fixture.untaken(&permit, Untaken::Busy);
    assert_eq!(fixture.out.woken[..2], [last, head], "in this order");
    assert_eq!(fixture.admit(last), Admission::OwnerBusy);
    fixture.permit(head);
}

#[test]
fn behind_a_release_it_waits_for_a_command_timeout_from_its_beginning_and_from_its_end() {
    let mut fixture = Fixture::new();
    fixture.lock(A);
    let inner = fixture.lock(A);
    let calls = [Order::Queued, Order::Queued].map(|order| fixture.call(A, order));
    fixture.now = fixture.now + RULES.command_timeout;
    let release = fixture.drop_hold(A, inner);
    for waiter in calls {
        fixture.waits_behind(waiter, RULES.command_timeout);
    }
    fixture.now = fixture.now + RULES.command_timeout;
    fixture.step(ReleaseDropped {
        owner: A,
        op: release,
    });
    fixture.waits_behind(calls[1], RULES.command_timeout);
    fixture.permit(calls[0]);
    fixture.now = fixture.now + RULES.command_timeout;
    fixture.queue_timer_fires();
    assert_eq!(fixture.out.woken[..], [calls[1]]);
    fixture.has_no_answer(calls[1]);
}

/// The time of the others goes on.
#[test]
fn the_end_of_a_call_behind_its_owner_lets_the_next_one_go_on() {
    let mut fixture = Fixture::new();
    fixture.lock(B);
    let first = fixture.call(A, Order::Immediate);
    let permit = fixture.permit(first);
    let others = [Order::Immediate, Order::Queued].map(|order| fixture.call(A, order));
    for waiter in others {
        fixture.waits_behind(waiter, RULES.command_timeout);
    }
    fixture.untaken(&permit, Untaken::Busy);
    assert!(fixture.is_woken_to_ask(others[0]), "{:?}", fixture.out);
    fixture.leaves(others[0]);
    assert!(fixture.is_woken_to_ask(others[1]), "{:?}", fixture.out);
    assert_eq!(fixture.queued(others[1]), None);
}

#[test]
fn an_immediate_attempt_does_not_keep_the_head_from_attempting() {
    let mut fixture = Fixture::new();
    let attempt = fixture.call(A, Order::Immediate);
    fixture.permit(attempt);
    let head = fixture.call(B, Order::Queued);
    fixture.permit(head);
}

#[test]
fn an_attempt_whose_outer_hold_was_dropped_does() {
    let mut fixture = Fixture::new();
    let hold = fixture.lock(A);
    let attempt = fixture.call(A, Order::Immediate);
    let permit = fixture.permit(attempt);
    fixture.step(HoldDropped { owner: A, hold });
    let head = fixture.call(B, Order::Queued);
    assert_eq!(fixture.queued(head), None);
    fixture.untaken(&permit, Untaken::NotExecuted);
    assert_eq!(fixture.out.sends.len(), 1, "the drop is still to be said");
}

/// One of two calls of one owner attempts; its end wakes the other one.
#[test]
fn when_its_owner_gets_the_lock_a_sleeping_call_is_woken() {
    let mut fixture = Fixture::new();
    fixture.lock(B);
    let (attempting, asleep) = (
        fixture.call(A, Order::Immediate),
        fixture.call(A, Order::Queued),
    );
    fixture.queued(asleep);
    let permit = fixture.permit(attempting);
    assert!(!fixture.retries(asleep));
    let sent_at = fixture.now;
    fixture.takes_at(&permit, sent_at).expect("wanted");
    assert!(fixture.out.woken.contains(&asleep), "{:?}", fixture.out);
    assert!(fixture.retries(asleep), "it may nest");
}

#[test]
fn a_waiter_has_reason_to_retry_when_its_turn_has_come() {
    let mut fixture = Fixture::new();
    let hold = fixture.lock(A);
    let (head, second) = (
        fixture.call(B, Order::Queued),
        fixture.call(C, Order::Queued),
    );
    assert!(!fixture.retries(head) && !fixture.retries(second));
    let unlock = fixture.unlock(A, hold);
    fixture.unlocked(&unlock, 0, None).expect("released");
    assert!(fixture.retries(head) && !fixture.retries(second));
    fixture.leaves(second);
    assert_eq!(fixture.core.woken(second), Woken::Nothing, "it has left");
}

#[test]
fn a_loss_is_a_reason_to_retry() {
    let mut fixture = Fixture::new();
    fixture.lock(A);
    let nested = fixture.call(A, Order::Queued);
    fixture.step(OwnerLost {
        owner: A,
        generation: None,
        reason: LossReason::Gone,
    });
    assert!(fixture.out.woken.contains(&nested));
    assert!(fixture.retries(nested));
    assert_eq!(fixture.rejected(nested), Rejected::Lost(LossReason::Gone));
}

/// A failed look at what another server has taken over is repeated in time for the loss to be told.
#[test]
fn a_renewal_that_failed_is_repeated_within_a_second_however_long_the_lease_is() {
    let mut fixture = Fixture::new();
    let watchdog_timeout = Duration::from_secs(600);
    let rules = Rules {
        watchdog_timeout,
        ..RULES
    };
    fixture.core = LockCore::new(crate::Discipline::Plain, rules, Life::Open);
    fixture.lock(A);
    fixture.at(7);
    let mut requests = fixture.step(ServerChanges {});
    let (_, request) = requests.pop().expect("it is held");
    fixture.step(RenewalEnds {
        owner: A,
        generation: request.generation,
        outcome: RenewOutcome::Unknown,
    });
    let due = fixture.core.timer(A).expect("it is repeated");
    let second = Duration::from_secs(1);
    assert!(due > fixture.now, "not as fast as it is refused");
    assert!(due <= fixture.now + second, "{due:?}");
}

#[test]
fn the_watchdog_asks_for_what_it_renews_and_warns_once() {
    let mut fixture = Fixture::new();
    let hold = fixture.lock(A);
    let snapshot = fixture.core.snapshot(fixture.now, A, hold).expect("held");
    let risk = Time::START + RULES.watchdog_timeout * 2 / 3;
    assert_eq!(snapshot.at_risk_from, Some(risk));
    let due = fixture.core.timer(A).expect("renewed");
    let period = RULES.watchdog_timeout / 3;
    assert!(due <= Time::START + period && due + RULES.slack() >= Time::START + period);
    fixture.now = due;
    let request = fixture.step(TimerFires { owner: A }).expect("due");
    assert_eq!(request.asked, RenewalAsk::Extend(RULES.watchdog_timeout));
    fixture.step(RenewalEnds {
        owner: A,
        generation: request.generation,
        outcome: RenewOutcome::Unknown,
    });
    let overdue = |fixture: &Fixture| {
        let is = |event: &&Event| matches!(event, Event::RenewalOverdue { .. });
        fixture.out.events.iter().filter(is).count()
    };
    for (secs, warnings) in [(15, 0), (20, 1), (21, 0), (22, 0)] {
        fixture.at(secs);
        fixture.step(TimerFires { owner: A });
        assert_eq!(overdue(&fixture), warnings, "{secs} s");
        let generation = request.generation;
        fixture.step(RenewalEnds {
            owner: A,
            generation,
            outcome: RenewOutcome::Unknown,
        });
        let timer = fixture.core.timer(A).expect("watched");
        assert!(timer > fixture.now, "{secs} s: it would fire without end");
    }
}

/// The warning is of one outage, and not of a hold.
#[test]
fn a_renewal_that_is_overdue_again_is_said_again() {
    let mut fixture = Fixture::new();
    fixture.lock(A);
    let mut warnings = Vec::new();
    for (secs, is_answered) in [
        (10, false),
        (20, true),
        (39, false),
        (40, false),
        (41, false),
    ] {
        fixture.at(secs);
        let request = fixture.step(TimerFires { owner: A });
        let is = |event: &&Event| matches!(event, Event::RenewalOverdue { .. });
        warnings.push(fixture.out.events.iter().filter(is).count());
        let Some(request) = request else { continue };
        let (asked, sent_at) = (request.asked, fixture.now);
        let outcome = match is_answered {
            true => RenewOutcome::Held {
                sent_at,
                asked,
                acknowledged: 0,
            },
            false => RenewOutcome::Unknown,
        };
        fixture.step(RenewalEnds {
            owner: A,
            generation: request.generation,
            outcome,
        });
    }
    assert_eq!(warnings, [0, 1, 0, 1, 0]);
}

#[test]
fn a_fixed_lease_is_looked_at_and_never_renewed() {
    let mut fixture = Fixture::new();
    let long = Terms {
        lease: Duration::from_secs(60),
        ..FIXED
    };
    let hold = fixture.lock_with(A, long);
    let snapshot = fixture.core.snapshot(fixture.now, A, hold).expect("held");
    assert_eq!(snapshot.at_risk_from, None);
    fixture.at(10);
    let request = fixture.step(TimerFires { owner: A });
    assert_eq!(request.expect("due").asked, RenewalAsk::Check);
    let leased = (fixture.now, Duration::from_secs(90));
    fixture.step(ReplicasAnswer {
        owner: A,
        hold,
        leased,
        acknowledged: 0,
    });
    let moved = fixture.core.snapshot(fixture.now, A, hold).expect("held");
    assert!(moved.ends > snapshot.ends && moved.deadline > snapshot.deadline);
    let other = crate::HoldId(99);
    let before = fixture.core.clone();
    let leased = (leased.0, leased.1 * 2);
    fixture.step(ReplicasAnswer {
        owner: A,
        hold: other,
        leased,
        acknowledged: 0,
    });
    assert_eq!(fixture.core, before, "a hold that has ended moves nothing");
}

#[test]
fn totals_say_what_happened_and_how_often() {
    let mut fixture = Fixture::new();
    let waiter = fixture.call_with(A, Order::Immediate, TERMS);
    let permit = fixture.permit(waiter);
    let sent_at = fixture.now;
    let hold = fixture.takes_at(&permit, sent_at);
    assert_eq!(fixture.out.totals[..], [(Total::Acquired, 1)]);
    let unlock = fixture.unlock(A, hold.expect("wanted").0);
    assert_eq!(fixture.out.totals[..], [], "its outcome is not known");
    fixture.unlocked(&unlock, 0, None).expect("released");
    assert_eq!(fixture.out.totals[..], [(Total::Released, 1)]);
}

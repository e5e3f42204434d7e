//! Steps of one core by hand, each as the shortest trace that once went wrong.

mod fixture;

use std::time::Duration;

use super::*;
use crate::input::{
    ClientEnds, DetachedClaimed, ExtendBegins, HoldDetached, HoldDropped, HoldUnlocked, Input,
    LifeChanges, OwnerLost, ReleaseUnwritten, TimePasses,
};
pub(super) use fixture::{A, B, C, Fixture, GONE, RULES, TERMS, Unlock};

/// What is there once for each of many thousand locks.
#[test]
fn a_lock_that_is_only_held_has_no_room_for_a_queue() {
    let mut fixture = Fixture::new();
    let hold = fixture.lock(A);
    assert!(!fixture.core.queue.is_apart(), "it is held");
    let waiter = fixture.call(B, Order::Queued);
    assert!(fixture.core.queue.is_apart(), "a call waits");
    fixture.leaves(waiter);
    assert!(!fixture.core.queue.is_apart(), "it has left");
    let released = fixture.step(HoldUnlocked { owner: A, hold });
    assert!(released.expect("held") && !fixture.core.queue.is_apart());
}

/// Two calls that queue and an immediate attempt, behind an operation of their owner.
#[test]
fn a_call_that_has_to_queue_wakes_the_next_of_its_owner() {
    let mut fixture = Fixture::new();
    fixture.lock(B);
    let busy = fixture.call(A, Order::Immediate);
    let permit = fixture.permit(busy);
    let calls = [Order::Queued, Order::Queued, Order::Immediate];
    let [first, second, attempt] = calls.map(|order| {
        let waiter = fixture.call(A, order);
        let admission = fixture.admit(waiter);
        assert_eq!(admission, Admission::OwnerBusy);
        waiter
    });
    fixture.untaken(&permit, Untaken::Busy);
    assert!(fixture.out.woken.contains(&first));
    assert_eq!(fixture.admit(first), Admission::Queued);
    assert!(fixture.out.woken.contains(&second), "{:?}", fixture.out);
    assert_eq!(fixture.admit(second), Admission::Queued);
    assert!(fixture.out.woken.contains(&attempt), "{:?}", fixture.out);
    // The head is a call of its own owner.
    fixture.permit(attempt);
}

#[test]
fn a_detached_hold_that_has_ended_is_not_held() {
    let mut fixture = Fixture::new();
    let short = Terms {
        lease: Duration::from_secs(1),
        kind: LeaseKind::Fixed,
        ..TERMS
    };
    let hold = fixture.lock_with(A, short);
    fixture.step(HoldDetached { owner: A, hold });
    let claimed = fixture.step(DetachedClaimed { owner: A });
    assert_eq!(claimed, Some(hold));
    fixture.now = fixture.now + short.lease;
    fixture.step(TimePasses {});
    fixture.answered(A, 0, GONE);
    let waiter = fixture.call(A, Order::Queued);
    fixture.permit(waiter);
    let begun = fixture.step(HoldUnlocked { owner: A, hold });
    assert_eq!(begun, Ok(false));
}

/// The nested acquire may be executed: the unlock goes to Redis when its outcome is known.
#[test]
fn an_unlock_during_an_acquire_is_sent_when_that_has_ended() {
    for nested in [true, false] {
        let mut fixture = Fixture::new();
        let outer = fixture.lock(A);
        let waiter = fixture.call(A, Order::Queued);
        let permit = fixture.permit(waiter);
        let unlock = fixture.unlock(A, outer);
        assert!(fixture.out.sends.is_empty() && fixture.outcome(&unlock).is_none());
        let sent_at = fixture.now;
        if nested {
            fixture.takes_at(&permit, sent_at).expect("wanted");
        } else {
            fixture.untaken(&permit, Untaken::NotExecuted);
        }
        assert_eq!(fixture.out.sends.len(), 1);
        assert_eq!(fixture.unlocked(&unlock, u32::from(nested), None), Ok(()));
    }
}

#[test]
fn a_release_that_frees_nothing_is_no_reason_for_a_gone_field() {
    let mut fixture = Fixture::new();
    let (outer, inner) = (fixture.lock(A), fixture.lock(A));
    let job = fixture.drop_hold(A, inner);
    assert_eq!(fixture.job_sends(A, job).0, 1);
    fixture.unanswered(A);
    let unlock = fixture.unlock(A, outer);
    assert_eq!(fixture.release_sent(A), 0);
    assert_eq!(
        fixture.unlocked(&unlock, 0, GONE),
        Err(LossReason::Gone),
        "the first send has only lowered the count: another client has freed the lock"
    );
}

#[test]
fn a_release_that_frees_the_lock_is_why_its_repetition_finds_nothing() {
    let mut fixture = Fixture::new();
    let hold = fixture.lock(A);
    let unlock = fixture.unlock(A, hold);
    assert_eq!(fixture.release_sent(A), 0);
    assert_eq!(fixture.release_sent(A), 0, "again: the first was lost");
    assert_eq!(fixture.unlocked(&unlock, 0, GONE), Ok(()));

    let hold = fixture.lock(A);
    let unlock = fixture.unlock(A, hold);
    assert_eq!(fixture.release_sent(A), 0);
    assert_eq!(fixture.unlocked(&unlock, 0, GONE), Err(LossReason::Gone));

    let hold = fixture.lock(A);
    let unlock = fixture.unlock(A, hold);
    assert_eq!(fixture.release_sent(A), 0);
    let op = fixture.release_of(A);
    fixture.step(ReleaseUnwritten { owner: A, op });
    assert_eq!(
        fixture.release_sent(A),
        0,
        "again: the first was never written"
    );
    assert_eq!(fixture.unlocked(&unlock, 0, GONE), Err(LossReason::Gone));
}

/// It joins while the send of the first is under way: the next send is its own.
#[test]
fn an_unlock_that_joins_has_its_outcome_with_the_next_send() {
    let mut fixture = Fixture::new();
    let (outer, inner) = (fixture.lock(A), fixture.lock(A));
    let first = fixture.unlock(A, inner);
    let op = fixture.release_of(A);
    assert_eq!(fixture.release_sent(A), 1);
    let second = fixture.unlock(A, outer);
    assert!(fixture.out.sends.is_empty(), "one job");
    assert_eq!(fixture.unlocked(&first, 1, None), Ok(()));
    assert_eq!(fixture.outcome(&second), None);
    assert_eq!(fixture.job_sends(A, op).0, 0);
    assert_eq!(fixture.unlocked(&second, 0, None), Ok(()));
    assert_eq!(fixture.next_of(A, op), ReleaseStep::Done);
    assert!(!fixture.core.keeps_itself());
}

/// However long the send before has taken.
#[test]
fn an_unlock_that_joins_has_a_command_timeout_from_the_answer_before_its_send() {
    let mut fixture = Fixture::new();
    let (outer, inner) = (fixture.lock(A), fixture.lock(A));
    let first = fixture.unlock(A, inner);
    let op = fixture.release_of(A);
    assert_eq!(fixture.job_sends(A, op).0, 1);
    fixture.unlock(A, outer);
    fixture.now = fixture.now + RULES.command_timeout;
    assert_eq!(fixture.unlocked(&first, 1, None), Ok(()));
    match fixture.next_of(A, op) {
        ReleaseStep::Send { awaited, .. } => assert_eq!(awaited, Some(fixture.now)),
        ReleaseStep::Done => panic!("the second is not sent"),
    }
}

/// The one that joined has not been sent: its time begins with the next attempt.
#[test]
fn an_attempt_that_fails_fails_only_the_unlocks_that_were_part_of_it() {
    let mut fixture = Fixture::new();
    let (outer, inner) = (fixture.lock(A), fixture.lock(A));
    let first = fixture.unlock(A, inner);
    let op = fixture.release_of(A);
    assert_eq!(fixture.job_sends(A, op).0, 1);
    let second = fixture.unlock(A, outer);
    fixture.now = fixture.now + RULES.command_timeout;
    fixture.unanswered(A);
    assert_eq!(fixture.out.unlocked[..], [(first.hold, Unlocked::Failed)]);
    let awaited = match fixture.next_of(A, op) {
        ReleaseStep::Send { awaited, .. } => awaited,
        ReleaseStep::Done => panic!("the second is not sent"),
    };
    assert_eq!(awaited, Some(fixture.now));
    assert_eq!(fixture.unlocked(&second, 0, None), Ok(()));
}

/// The attempt of the first waits for a connection: its send includes the second, whose time has only begun.
#[test]
fn an_unlock_that_joins_an_attempt_which_is_built_late_has_one_of_its_own() {
    let mut fixture = Fixture::new();
    let (outer, inner) = (fixture.lock(A), fixture.lock(A));
    let first = fixture.unlock(A, inner);
    let op = fixture.release_of(A);
    assert!(matches!(fixture.next_of(A, op), ReleaseStep::Send { .. }));
    let second = fixture.unlock(A, outer);
    assert_eq!(fixture.release_sent(A), 0);
    fixture.unanswered(A);
    assert_eq!(fixture.out.unlocked[..], [(first.hold, Unlocked::Failed)]);
    assert_eq!(fixture.job_sends(A, op).0, 0);
    assert_eq!(
        fixture.unlocked(&second, 0, GONE),
        Ok(()),
        "freed by the send before"
    );
}

/// The server was away for longer than a command timeout, and a background release has failed meanwhile.
#[test]
fn an_unlock_that_joins_a_failing_release_has_a_command_timeout_of_its_own() {
    let mut fixture = Fixture::new();
    let (outer, inner) = (fixture.lock(A), fixture.lock(A));
    let op = fixture.drop_hold(A, inner);
    assert_eq!(fixture.job_sends(A, op).0, 1);
    fixture.now = fixture.now + RULES.command_timeout;
    fixture.unanswered(A);
    assert!(fixture.out.sends.is_empty(), "it pauses");
    fixture.now = fixture.now + RULES.command_timeout;
    fixture.unlock(A, outer);
    assert_eq!(fixture.out.sends[..], [(A, op)], "it is sent immediately");
    match fixture.next_of(A, op) {
        ReleaseStep::Send { awaited, .. } => assert_eq!(awaited, Some(fixture.now)),
        ReleaseStep::Done => panic!("the unlock is not sent"),
    }
}

#[test]
fn unlocks_that_find_nothing_report_the_loss() {
    let mut fixture = Fixture::new();
    let (outer, inner) = (fixture.lock(A), fixture.lock(A));
    let (first, second) = (fixture.unlock(A, inner), fixture.unlock(A, outer));
    assert_eq!(fixture.unlocked(&first, 0, GONE), Err(LossReason::Gone));
    assert_eq!(fixture.outcome(&second), Some(Err(LossReason::Gone)));
    assert_eq!(fixture.out.totals[..], [(Total::Lost, 2)]);
    assert_eq!(fixture.out.events.len(), 1);
}

/// A send is refused, and another client deletes the key.
#[test]
fn a_release_that_was_not_executed_is_no_reason_for_a_gone_field() {
    let mut fixture = Fixture::new();
    let (outer, inner) = (fixture.lock(A), fixture.lock(A));
    let first = fixture.unlock(A, inner);
    fixture.drop_hold_too(A, outer);
    let op = fixture.release_of(A);
    assert_eq!(fixture.job_sends(A, op).0, 0);
    fixture.fails(A, false, None);
    assert_eq!(fixture.out.unlocked[..], [(first.hold, Unlocked::Failed)]);
    assert_eq!(fixture.job_sends(A, op).0, 0);
    let release = fixture.core.owners.get(A).expect("known").op.release();
    assert!(!release.expect("under way").maybe_freed);
}

/// The server may have the long lease.
#[test]
fn a_job_goes_on_behind_an_extend_without_an_answer() {
    let mut fixture = Fixture::new();
    let fixed = Terms {
        lease: Duration::from_secs(5),
        kind: LeaseKind::Fixed,
        ..TERMS
    };
    let hold = fixture.lock_with(A, fixed);
    let hour = Duration::from_secs(3600);
    let known = fixture.step(ExtendBegins {
        owner: A,
        hold,
        lease: hour,
    });
    assert!(known);
    let job = fixture.drop_hold(A, hold);
    let until = fixture.now + hour;
    assert_eq!(fixture.job_sends(A, job), (0, until));
    let ended = fixture.step(ExtendBegins {
        owner: A,
        hold,
        lease: hour,
    });
    assert!(!ended);
}

/// A hold that is released while the job works was renewed until then.
#[test]
fn a_job_goes_on_for_a_lease_from_the_last_release_on() {
    let mut fixture = Fixture::new();
    let (outer, inner) = (fixture.lock(A), fixture.lock(A));
    let job = fixture.drop_hold(A, inner);
    let first = (1, fixture.now + RULES.watchdog_timeout);
    assert_eq!(fixture.job_sends(A, job), first);
    fixture.unanswered(A);
    fixture.now = fixture.now + Duration::from_secs(2);
    let unlock = fixture.unlock(A, outer);
    let later = (0, fixture.now + RULES.watchdog_timeout);
    assert_eq!(fixture.job_sends(A, job), later);
    fixture.unlocked(&unlock, 0, None).expect("released");
    assert_eq!(fixture.next_of(A, job), ReleaseStep::Done);
    assert!(!fixture.core.keeps_itself());
}

#[test]
fn a_guard_dropped_during_an_acquire_needs_no_release_behind_a_loss() {
    let mut fixture = Fixture::new();
    let outer = fixture.lock(A);
    let waiter = fixture.call(A, Order::Queued);
    let permit = fixture.permit(waiter);
    fixture.step(HoldDropped {
        owner: A,
        hold: outer,
    });
    assert_eq!(fixture.core.counts().releasing, 1);
    fixture.step(OwnerLost {
        owner: A,
        generation: None,
        reason: LossReason::Gone,
    });
    assert_eq!(fixture.core.counts().releasing, 0);
    fixture.untaken(&permit, Untaken::OuterGone);
    assert!(fixture.out.sends.is_empty(), "{:?}", fixture.out);
}

/// A guard is dropped while a nested acquire whose call is not polled is under way, and the client is closed.
#[test]
fn closing_ends_what_was_released_and_has_no_answer() {
    let mut fixture = Fixture::new();
    let outer = fixture.lock(A);
    let waiter = fixture.call(A, Order::Queued);
    fixture.permit(waiter);
    fixture.step(HoldDropped {
        owner: A,
        hold: outer,
    });
    assert!(fixture.out.ended.is_empty(), "not known yet");
    fixture.step(LifeChanges {
        life: Life::Closing,
    });
    fixture.step(ClientEnds {
        reason: LossReason::Closed,
    });
    assert_eq!(fixture.out.ended[..], [(outer, Ending::Released)]);
}

/// A release takes it out before its end is known, and a loss by the server comes before the deadline.
#[test]
fn a_hold_that_is_over_was_valid_until_its_deadline_or_until_then() {
    let fixed = Terms {
        lease: Duration::from_secs(10),
        kind: LeaseKind::Fixed,
        ..TERMS
    };
    let ends = Time::START + Duration::from_secs(10) - Duration::from_millis(102);
    for (after, over) in [(5, Time::START + Duration::from_secs(5)), (20, ends)] {
        for step in ["unlock", "drop", "lose"] {
            let mut fixture = Fixture::new();
            let (hold, other) = (fixture.lock_with(A, fixed), fixture.lock(A));
            fixture.now = Time::START + Duration::from_secs(after);
            let input: Input = match step {
                "unlock" => HoldUnlocked { owner: A, hold }.into(),
                "drop" => HoldDropped { owner: A, hold }.into(),
                _ => OwnerLost {
                    owner: A,
                    generation: None,
                    reason: LossReason::Gone,
                }
                .into(),
            };
            fixture.step(input);
            let (of_hold, rest) = fixture.out.over.split_first().expect("it is over");
            assert_eq!(*of_hold, (hold, over), "{step} after {after} s");
            let is_lost = step == "lose";
            assert_eq!(rest.iter().any(|(hold, _)| *hold == other), is_lost);
        }
    }
}

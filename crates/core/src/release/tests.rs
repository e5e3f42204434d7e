//! What becomes of detached holds, of limits, and of releases that are given up.

use std::time::Duration;

use crate::LossReason;
use crate::input::{
    DetachedClaimed, DetachedDropped, HoldDetached, LifeChanges, ReleaseBegins, ReleaseDropped,
    ReleaseHasRoom, ReleaseWaits, TimePasses,
};
use crate::tests::{A, Fixture, GONE, RULES, TERMS};
use crate::{Event, LeaseKind, Life, ReleaseStep, Terms, Total};

const LIMITED: Terms = Terms {
    limit: Some(Duration::from_secs(5)),
    ..TERMS
};

#[test]
fn detached_holds_are_dropped_together_and_counted() {
    let mut fixture = Fixture::new();
    let (outer, inner) = (fixture.lock(A), fixture.lock(A));
    fixture.lock(A);
    for hold in [outer, inner] {
        fixture.step(HoldDetached { owner: A, hold });
    }
    let counts = fixture.core.counts();
    assert_eq!((counts.held, counts.guarded), (3, 1));
    assert_eq!(fixture.step(DetachedDropped {}), 2);
    assert_eq!(fixture.core.counts().held, 1);
    assert_eq!(fixture.step(DetachedDropped {}), 0);
}

#[test]
fn a_section_that_reached_its_limit_keeps_the_field_until_its_guard_is_gone() {
    let mut fixture = Fixture::new();
    let hold = fixture.lock_with(A, LIMITED);
    fixture.now = fixture.now + Duration::from_secs(5);
    fixture.step(TimePasses {});
    assert!(fixture.out.sends.is_empty(), "nothing is freed under it");
    assert_eq!(fixture.target(A), 1);
    let job = fixture.drop_hold(A, hold);
    assert_eq!(fixture.job_sends(A, job).0, 0);
}

#[test]
fn a_detached_hold_that_reached_its_limit_keeps_nothing() {
    let mut fixture = Fixture::new();
    let hold = fixture.lock_with(A, LIMITED);
    fixture.step(HoldDetached { owner: A, hold });
    fixture.now = fixture.now + Duration::from_secs(5);
    fixture.step(TimePasses {});
    assert!(!fixture.core.keeps_itself());
    assert_eq!(fixture.target(A), 0);
}

#[test]
fn a_fixed_lease_that_ends_at_the_limit_has_reached_the_limit() {
    let mut fixture = Fixture::new();
    let at_the_limit = Terms {
        lease: Duration::from_secs(5),
        kind: LeaseKind::Fixed,
        ..LIMITED
    };
    let hold = fixture.lock_with(A, at_the_limit);
    fixture.now = fixture.now + Duration::from_secs(5);
    let over = fixture
        .core
        .snapshot(fixture.now, A, hold)
        .expect("there")
        .over;
    assert_eq!(over, Some(LossReason::MaxHold));
}

#[test]
fn a_detached_lease_that_has_run_out_is_no_news() {
    let lease = Duration::from_secs(5);
    let fixed = Terms {
        lease,
        kind: LeaseKind::Fixed,
        ..TERMS
    };
    for (terms, detached, lost) in [(fixed, true, 0), (fixed, false, 1), (LIMITED, true, 1)] {
        let mut fixture = Fixture::new();
        let hold = fixture.lock_with(A, terms);
        if detached {
            fixture.step(HoldDetached { owner: A, hold });
        }
        fixture.now = fixture.now + lease;
        fixture.step(TimePasses {});
        assert_eq!(fixture.out.events.len(), lost);
        let counted = fixture.out.totals.contains(&(Total::Lost, 1));
        assert_eq!(counted, lost == 1);
    }
}

#[test]
fn everything_that_an_owner_releases_counts_as_one_release() {
    let mut fixture = Fixture::new();
    let (outer, inner) = (fixture.lock(A), fixture.lock(A));
    fixture.unlock(A, inner);
    assert_eq!(fixture.core.counts().releasing, 1);
    fixture.drop_hold_too(A, outer);
    assert_eq!(fixture.core.counts().releasing, 1);
}

#[test]
fn a_job_that_is_gone_leaves_the_rest_to_the_lease() {
    let mut fixture = Fixture::new();
    let hold = fixture.lock(A);
    let job = fixture.drop_hold(A, hold);
    let unknown = crate::OpId(99);
    fixture.step(ReleaseDropped {
        owner: A,
        op: unknown,
    });
    assert!(fixture.core.keeps_itself(), "another one is meant");
    fixture.step(ReleaseDropped { owner: A, op: job });
    let totals = [(Total::GaveUp, 1), (Total::Released, 1)];
    assert_eq!(fixture.out.totals[..], totals);
    assert!(!fixture.core.keeps_itself());
    assert_eq!(fixture.next_of(A, job), ReleaseStep::Done);
}

/// It was counted as under way for ever.
#[test]
fn a_release_without_room_ends_with_its_runtime() {
    let mut fixture = Fixture::new();
    let hold = fixture.lock(A);
    let job = fixture.drop_hold(A, hold);
    fixture.step(LifeChanges { life: Life::Gone });
    assert_eq!(
        fixture.core.counts().releasing,
        1,
        "its task says how it ends"
    );
    fixture.step(ReleaseWaits { owner: A, op: job });
    assert_eq!(fixture.core.counts().releasing, 0);
}

/// Seed 89568: behind a long outage the count stayed too high.
#[test]
fn a_job_does_not_give_up_while_the_lock_is_held() {
    let mut fixture = Fixture::new();
    fixture.lock(A);
    let inner = fixture.lock(A);
    let job = fixture.drop_hold(A, inner);
    fixture.now = fixture.now + RULES.watchdog_timeout / 2;
    let carrier = Some((0, 0));
    for _ in 0..5 {
        assert_eq!(fixture.job_sends(A, job).0, 1);
        fixture.fails(A, false, carrier);
        fixture.now = fixture.now + RULES.watchdog_timeout / 3;
        fixture.timer_fires(A);
    }
    assert!(fixture.now >= fixture.gives_up_at(A));
    assert_eq!(fixture.job_sends(A, job).0, 1);
}

/// The server begins its lease when it comes to what was sent.
#[test]
fn a_job_does_not_give_up_while_what_was_sent_before_may_still_be_executed() {
    let mut fixture = Fixture::new();
    let hold = fixture.lock(A);
    let job = fixture.drop_hold(A, hold);
    let lease = RULES.watchdog_timeout;
    let (first, next) = (Some((0, 0)), Some((0, 1)));
    let sends = |fixture: &mut Fixture, carrier| {
        let step = fixture.step(ReleaseBegins {
            owner: A,
            op: job,
            carrier,
        });
        let is_sent = matches!(step, ReleaseStep::Send { .. });
        is_sent.then(|| {
            fixture.release_sent(A);
            fixture.gives_up_at(A).since(fixture.now)
        })
    };
    assert_eq!(sends(&mut fixture, first), Some(lease));
    fixture.fails(A, true, first);
    fixture.now = fixture.now + lease * 3;
    assert_eq!(
        sends(&mut fixture, first),
        Some(lease),
        "it may be executed only now"
    );
    fixture.fails(A, true, first);
    assert_eq!(
        sends(&mut fixture, next),
        Some(lease),
        "it counts from then"
    );
    fixture.fails(A, true, next);
    fixture.now = fixture.now + lease;
    assert_eq!(sends(&mut fixture, next), None);
    let gave_up = |event: &Event| matches!(event, Event::GaveUp { .. });
    assert!(fixture.out.events.iter().any(gave_up), "{:?}", fixture.out);
    assert!(!fixture.core.keeps_itself());
}

/// Each pause is twice as long as the one before, up to fifty times the first; then the next send is made.
#[test]
fn a_release_whose_sends_fail_pauses_longer_and_longer() {
    let mut fixture = Fixture::new();
    fixture.lock(A);
    let inner = fixture.lock(A);
    let job = fixture.drop_hold(A, inner);
    for pause in [20, 40, 80, 160, 320, 640, 1_000, 1_000] {
        fixture.job_sends(A, job);
        fixture.unanswered(A);
        assert!(fixture.out.sends.is_empty());
        let due = fixture.core.timer(A).expect("it goes on");
        assert_eq!(due.since(fixture.now), Duration::from_millis(pause));
        fixture.timer_fires(A);
        assert!(fixture.out.sends.is_empty(), "too early");
        fixture.now = due;
        fixture.timer_fires(A);
        assert_eq!(fixture.out.sends[..], [(A, job)]);
    }
    fixture.job_sends(A, job);
    fixture.answered(A, 1, None);
    let count = 1;
    assert!(fixture.out.events.contains(&Event::Reconciled {
        field: "f".into(),
        count
    }));
    assert!(fixture.core.counts().releasing == 0);
}

/// There is room for it later, or it is sent without, because a caller waits.
#[test]
fn a_release_without_room_waits_for_it_or_for_a_caller() {
    for joins in [false, true] {
        let mut fixture = Fixture::new();
        let (outer, inner) = (fixture.lock(A), fixture.lock(A));
        let job = fixture.drop_hold(A, inner);
        fixture.next_of(A, job);
        fixture.step(ReleaseWaits { owner: A, op: job });
        if joins {
            fixture.unlock(A, outer);
            assert_eq!(fixture.out.sends[..], [(A, job)]);
        }
        let room = ReleaseHasRoom { owner: A, op: job };
        assert_eq!(fixture.step(room.clone()), !joins);
        assert!(!fixture.step(room), "it does not wait any more");
    }
}

/// Nothing wakes it any more.
#[test]
fn what_waits_before_its_next_send_ends_with_the_runtime() {
    let mut fixture = Fixture::new();
    let held = fixture.lock(A);
    let job = fixture.drop_hold(A, held);
    fixture.job_sends(A, job);
    fixture.unanswered(A);
    fixture.step(LifeChanges { life: Life::Gone });
    assert_eq!(fixture.core.counts().releasing, 0);
    assert_eq!(
        fixture.out.totals[..],
        [(Total::GaveUp, 1), (Total::Released, 1)]
    );
}

/// A send at the very deadline may have come after the lease, or have freed the lock if a renewal without an answer was
/// executed.
#[test]
fn what_was_first_sent_at_the_deadline_is_said_to_have_expired() {
    let mut fixture = Fixture::new();
    let hold = fixture.lock(A);
    let deadline = fixture
        .core
        .snapshot(fixture.now, A, hold)
        .expect("held")
        .deadline;
    let unlock = fixture.unlock(A, hold);
    fixture.now = deadline;
    fixture.release_sent(A);
    fixture.release_sent(A);
    let outcome = fixture.unlocked(&unlock, 0, GONE);
    assert_eq!(outcome, Err(LossReason::LeaseOver));
}

/// It was counted as released, and nothing said that it was lost.
#[test]
fn a_loss_that_an_unlock_finds_is_counted_once_and_reported() {
    let lost = |fixture: &Fixture| {
        let events = fixture.out.events.iter();
        let reported = events.filter(|event| matches!(event, Event::Lost { .. }));
        (fixture.out.totals.to_vec(), reported.count())
    };
    let mut fixture = Fixture::new();
    let hold = fixture.lock(A);
    let unlock = fixture.unlock(A, hold);
    assert_eq!(lost(&fixture), (vec![], 0));
    fixture.release_sent(A);
    assert_eq!(fixture.unlocked(&unlock, 0, GONE), Err(LossReason::Gone));
    assert_eq!(lost(&fixture), (vec![(Total::Lost, 1)], 1));
    // Without an answer it is no loss.
    let hold = fixture.lock(A);
    fixture.unlock(A, hold);
    let op = fixture.release_of(A);
    fixture.job_sends(A, op);
    fixture.unanswered(A);
    assert_eq!(lost(&fixture), (vec![(Total::Released, 1)], 0));
}

/// Two threads may unlock without a guard at the same moment: between this step and the unlock the mutex is free.
#[test]
fn a_detached_hold_is_claimed_once() {
    let mut fixture = Fixture::new();
    let holds = [fixture.lock(A), fixture.lock(A)];
    for hold in holds {
        fixture.step(HoldDetached { owner: A, hold });
    }
    let claimed = [(); 3].map(|()| fixture.step(DetachedClaimed { owner: A }));
    assert_eq!(claimed.iter().flatten().count(), 2, "{claimed:?}");
    assert_ne!(claimed[0], claimed[1]);
}

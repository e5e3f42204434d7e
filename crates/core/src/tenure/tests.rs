//! Deadlines, expiry and renewals of one owner.

use super::*;
use crate::HandOff;
use crate::RenewalAsk;

const RULES: Rules = Rules {
    watchdog_timeout: Duration::from_secs(30),
    command_timeout: Duration::from_secs(3),
    handoff: HandOff::off(),
    fair_wait: Duration::from_secs(300),
    release_pause: Duration::from_millis(20),
};

const NOW: Time = Time::START;

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn tenure_of(policies: &[LeasePolicy]) -> (Tenure, Vec<HoldId>) {
    tenure_with(policies, 0)
}

fn tenure_with(policies: &[LeasePolicy], replicas: u32) -> (Tenure, Vec<HoldId>) {
    let mut ids = crate::values::Ids::default();
    let mut tenure = Tenure::new(NOW, false);
    let holds = policies.iter().map(|policy| {
        let id = ids.hold();
        tenure.add(id, *policy, NOW, LEASE, replicas, &RULES);
        id
    });
    let holds: Vec<_> = holds.collect();
    if replicas > 0 {
        tenure.confirmed(holds[0], NOW, LEASE, replicas, &RULES);
    }
    (tenure, holds)
}

const LEASE: Duration = RULES.watchdog_timeout;
const WATCHDOG: LeasePolicy = LeasePolicy::Watchdog { limit: None };

fn reasons(losses: &[Loss]) -> Vec<LossReason> {
    losses.iter().map(|loss| loss.reason).collect()
}

#[test]
fn the_deadline_lies_before_the_servers_and_only_moves_forward() {
    let (mut tenure, _) = tenure_of(&[WATCHDOG]);
    assert_eq!(tenure.deadline, NOW + Duration::from_millis(29_698));
    assert!(tenure.promise(NOW, secs(1), 0, &RULES));
    assert_eq!(tenure.deadline, NOW + Duration::from_millis(29_698));
}

#[test]
fn a_fixed_hold_ends_by_itself_while_the_others_live_on() {
    let until = NOW + secs(1);
    let (mut tenure, _) = tenure_of(&[WATCHDOG, LeasePolicy::Fixed { until, limit: None }]);
    assert!(tenure.expire(NOW).is_empty());
    assert_eq!(reasons(&tenure.expire(until)), [LossReason::LeaseOver]);
    assert_eq!((tenure.count(), tenure.lost()), (1, None));
    assert_eq!(
        reasons(&tenure.expire(tenure.deadline)),
        [LossReason::NotRenewed]
    );
    assert_eq!(tenure.lost(), Some(LossReason::NotRenewed));
    assert!(
        !tenure.is_spent(),
        "the guards of lost holds are still open"
    );
}

#[test]
fn short_nested_holds_do_not_put_off_the_renewal() {
    let (mut tenure, holds) = tenure_of(&[WATCHDOG]);
    let due = tenure.due_at(&RULES);
    let (later, lease) = (NOW + secs(9), Duration::from_millis(10));
    let fixed = LeasePolicy::Fixed {
        until: later + lease,
        limit: None,
    };
    tenure.add(holds[0], fixed, later, lease, 0, &RULES);
    assert_eq!(tenure.due_at(&RULES), due);
    tenure.add(holds[0], WATCHDOG, later, LEASE, 0, &RULES);
    assert_eq!(
        tenure.due_at(&RULES),
        later + secs(10),
        "this one has renewed it"
    );
}

#[test]
fn a_limit_cuts_the_lease_that_a_renewal_asks_for() {
    let limit = NOW + secs(40);
    let (mut tenure, _) = tenure_of(&[LeasePolicy::Watchdog { limit: Some(limit) }]);
    assert_eq!(tenure.renewal_lease(NOW, &RULES), Some(secs(30)));
    let later = NOW + secs(20);
    let lease = tenure.renewal_lease(later, &RULES).expect("renewed");
    assert!(lease > secs(20) && lease < Duration::from_millis(20_300));
    tenure.renewed(later, later, RenewalAsk::Extend(lease), 0, &RULES);
    assert!(tenure.deadline >= limit, "the limit comes first");
    assert_eq!(tenure.due_at(&RULES), later + secs(10));
    assert_eq!(tenure.expires_at(), Some(limit));
    assert_eq!(reasons(&tenure.expire(limit)), [LossReason::MaxHold]);
}

#[test]
fn what_is_promised_is_the_longest_of_the_holds_that_are_left() {
    let until = NOW + secs(90);
    let (mut tenure, holds) = tenure_of(&[WATCHDOG, LeasePolicy::Fixed { until, limit: None }]);
    assert_eq!(tenure.promised(NOW, &RULES), secs(90));
    assert!(tenure.take_out(holds[1]).is_some());
    assert_eq!(tenure.promised(NOW, &RULES), secs(30));
    assert!(
        tenure.take_out(holds[1]).is_none(),
        "a hold is released once"
    );
}

#[test]
fn a_snapshot_says_what_is_over_and_changes_nothing() {
    let until = NOW + secs(1);
    let (tenure, holds) = tenure_of(&[LeasePolicy::Fixed { until, limit: None }]);
    let before = tenure.clone();
    let over = |now| tenure.snapshot(now, holds[0], &RULES).expect("there").over;
    assert_eq!(
        (over(NOW), over(until)),
        (None, Some(LossReason::LeaseOver))
    );
    assert_eq!(tenure, before);
}

/// The rule of the module, for everything that may raise a lease.
#[test]
fn only_a_lease_that_enough_replicas_have_confirmed_moves_the_deadline() {
    let later = NOW + secs(5);
    let confirmed = local_deadline(later, LEASE);
    type Raises = fn(&mut Tenure, HoldId, Time, u32);
    let renewed: Raises = |tenure, _, at, acknowledged| {
        let asked = RenewalAsk::Extend(LEASE);
        tenure.renewed(at, at, asked, acknowledged, &RULES);
    };
    let extended: Raises = |tenure, hold, at, acknowledged| {
        let moves = tenure.confirmed(hold, at, LEASE, acknowledged, &RULES);
        assert_eq!(moves, acknowledged >= tenure.replicas);
    };
    let nested: Raises = |tenure, hold, at, acknowledged| {
        tenure.add(hold, WATCHDOG, at, LEASE, acknowledged, &RULES);
    };
    for (raises, acknowledged, moves) in [
        (renewed, 0, false),
        (renewed, 1, false),
        (renewed, 2, true),
        (extended, 1, false),
        (extended, 2, true),
        // It asks for replicas, which says nothing about them.
        (nested, 2, false),
    ] {
        let (mut tenure, holds) = tenure_with(&[WATCHDOG], 2);
        let (first, due) = (tenure.deadline, tenure.due_at(&RULES));
        assert!(tenure.begin_renewal(NOW + secs(10), &RULES).is_some());
        raises(&mut tenure, holds[0], later, acknowledged);
        let deadline = if moves { confirmed } else { first };
        assert_eq!(tenure.deadline, deadline, "{acknowledged}");
        assert_eq!(
            (tenure.expire(first).is_empty(), tenure.lost()),
            (moves, (!moves).then_some(LossReason::NotRenewed))
        );
        if moves {
            assert_eq!(tenure.due_at(&RULES), due + secs(5));
        }
    }
}

#[test]
fn a_renewal_that_too_few_replicas_confirm_is_repeated() {
    let (mut tenure, _) = tenure_with(&[WATCHDOG], 1);
    let at = tenure.due_at(&RULES);
    let asked = tenure.begin_renewal(at, &RULES).expect("due");
    tenure.renewed(at + secs(3), at, asked, 0, &RULES);
    let again = at + secs(4);
    assert_eq!(tenure.due_at(&RULES), again);
    let asked = tenure.begin_renewal(again, &RULES).expect("due");
    tenure.renewed(again, again, asked, 1, &RULES);
    assert_eq!(tenure.deadline, local_deadline(again, LEASE));
    assert_eq!(tenure.due_at(&RULES), again + secs(10));
}

/// Its call may not be polled any more.
#[test]
fn a_hold_that_its_call_has_not_confirmed_is_not_renewed() {
    let mut tenure = Tenure::new(NOW, false);
    let hold = crate::values::Ids::default().hold();
    tenure.add(hold, WATCHDOG, NOW, LEASE, 1, &RULES);
    assert_eq!(tenure.begin_renewal(NOW + secs(20), &RULES), None);
    let end = tenure.deadline;
    assert_eq!(reasons(&tenure.expire(end)), [LossReason::NotRenewed]);
}

/// Another server takes over during that: it is only asked whether the hold is there.
#[test]
fn nor_after_a_failover() {
    let mut tenure = Tenure::new(NOW, false);
    let hold = crate::values::Ids::default().hold();
    tenure.add(hold, WATCHDOG, NOW, LEASE, 1, &RULES);
    let (end, mut at) = (tenure.deadline, NOW + secs(1));
    let mut asked = tenure.recheck(at, &RULES);
    while let Some(ask) = asked.take() {
        assert_eq!(ask, RenewalAsk::Check);
        match at < NOW + secs(5) {
            true => tenure.not_renewed(at, &RULES),
            false => tenure.renewed(at, at, ask, 1, &RULES),
        }
        at = at + secs(2);
        asked = tenure.begin_renewal(at, &RULES);
    }
    assert_eq!(tenure.deadline, end);
    assert_eq!(reasons(&tenure.expire(end)), [LossReason::NotRenewed]);
}

/// A nested hold has raised the deadline and is gone: the server that takes over may have the shorter lease from before.
#[test]
fn a_failover_leaves_no_deadline_behind_the_servers() {
    let until = local_deadline(NOW, secs(600));
    let (mut tenure, mut ids) = (Tenure::new(NOW, false), crate::values::Ids::default());
    tenure.add(ids.hold(), WATCHDOG, NOW, LEASE, 0, &RULES);
    let nested = LeasePolicy::Fixed { until, limit: None };
    let inner = ids.hold();
    tenure.add(inner, nested, NOW, secs(600), 0, &RULES);
    assert_eq!(tenure.take_out(inner), Some(until));
    let at = NOW + secs(1);
    let Some(RenewalAsk::Extend(lease)) = tenure.recheck(at, &RULES) else {
        panic!("it restores nothing");
    };
    assert!(local_deadline(at, lease) >= until, "{lease:?}");
    // Without an answer it is asked for again; with one only the watchdog's lease is.
    tenure.not_renewed(at, &RULES);
    let (at, again) = (at + secs(2), tenure.begin_renewal(at + secs(2), &RULES));
    let Some(asked @ RenewalAsk::Extend(lease)) = again else {
        panic!("it restores nothing: {again:?}");
    };
    assert!(local_deadline(at, lease) >= until, "{lease:?}");
    tenure.renewed(at, at, asked, 0, &RULES);
    let asked = tenure.begin_renewal(at + secs(11), &RULES);
    assert_eq!(asked, Some(RenewalAsk::Extend(LEASE)));
}

/// Its guard is in the hands of a caller, whatever becomes of the call that was first.
#[test]
fn a_nested_hold_is_renewed_beside_one_that_is_not_confirmed_and_after_it() {
    let (mut tenure, mut ids) = (Tenure::new(NOW, false), crate::values::Ids::default());
    let outer = ids.hold();
    tenure.add(outer, WATCHDOG, NOW, LEASE, 1, &RULES);
    tenure.add(ids.hold(), WATCHDOG, NOW + secs(1), LEASE, 0, &RULES);
    let asked = tenure.begin_renewal(NOW + secs(11), &RULES);
    assert!(matches!(asked, Some(RenewalAsk::Extend(_))), "{asked:?}");
    tenure.not_renewed(NOW + secs(11), &RULES);
    assert!(tenure.take_out(outer).is_some());
    let at = NOW + secs(13);
    let asked = tenure.begin_renewal(at, &RULES).expect("due");
    tenure.renewed(at, at, asked, 1, &RULES);
    assert_eq!(tenure.deadline, local_deadline(at, LEASE));
    assert_eq!(tenure.due_at(&RULES), at + secs(10));
}

/// At first only the primary has what a nested hold asked for. Replicas are asked about it before the short lease
/// of the outer one is over, and then as rarely as ever.
#[test]
fn what_a_nested_hold_asks_for_is_confirmed_in_time() {
    let (short, limit) = (local_deadline(NOW, secs(5)), Some(NOW + secs(20)));
    let fixed = |until| LeasePolicy::Fixed { until, limit: None };
    let later = NOW + secs(2);
    for (nested, end) in [
        (WATCHDOG, local_deadline(later, LEASE)),
        (fixed(NOW + secs(600)), NOW + secs(600)),
        (LeasePolicy::Watchdog { limit }, NOW + secs(20)),
    ] {
        let (mut tenure, mut ids) = (Tenure::new(NOW, false), crate::values::Ids::default());
        let outer = ids.hold();
        tenure.add(outer, fixed(short), NOW, secs(5), 1, &RULES);
        tenure.confirmed(outer, NOW, secs(5), 1, &RULES);
        assert_eq!(tenure.due_at(&RULES), NOW + secs(10));
        tenure.add(ids.hold(), nested, later, LEASE, 1, &RULES);
        assert_eq!(tenure.deadline, short);
        let asked = tenure.begin_renewal(later, &RULES).expect("due");
        tenure.renewed(later, later, asked, 1, &RULES);
        assert!(tenure.deadline >= end, "{nested:?}");
        assert_eq!(tenure.due_at(&RULES), later + secs(10), "{nested:?}");
        assert_eq!(reasons(&tenure.expire(short)), [LossReason::LeaseOver]);
        assert!(tenure.is_held());
    }
}

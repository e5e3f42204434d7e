//! Deadlines, expiry and renewals of one owner.

use super::*;
use crate::core::HandOver;
use crate::core::RenewalAsk;

const RULES: Rules = Rules {
    watchdog_timeout: Duration::from_secs(30),
    command_timeout: Duration::from_secs(3),
    handover: HandOver::off(),
};

const NOW: Time = Time::START;

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn tenure_of(policies: &[LeasePolicy]) -> (Tenure, Vec<HoldId>) {
    let mut ids = crate::core::values::Ids::default();
    let mut tenure = Tenure::new(NOW);
    let holds = policies.iter().map(|policy| {
        let id = ids.hold();
        tenure.add(id, *policy, NOW, RULES.watchdog_timeout, &RULES);
        id
    });
    let holds = holds.collect();
    (tenure, holds)
}

const WATCHDOG: LeasePolicy = LeasePolicy::Watchdog { limit: None };

fn reasons(losses: &[Loss]) -> Vec<LossReason> {
    losses.iter().map(|loss| loss.reason).collect()
}

#[test]
fn the_deadline_lies_before_the_servers_and_only_moves_forward() {
    let (mut tenure, _) = tenure_of(&[WATCHDOG]);
    assert_eq!(tenure.deadline, NOW + Duration::from_millis(29_698));
    tenure.promise(NOW, secs(1));
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
    tenure.add(holds[0], fixed, later, lease, &RULES);
    assert_eq!(tenure.due_at(&RULES), due);
    tenure.add(holds[0], WATCHDOG, later, RULES.watchdog_timeout, &RULES);
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
    tenure.renewed(later, RenewalAsk::Extend(lease));
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
    assert!(tenure.take_out(holds[1]));
    assert_eq!(tenure.promised(NOW, &RULES), secs(30));
    assert!(!tenure.take_out(holds[1]), "a hold is released once");
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

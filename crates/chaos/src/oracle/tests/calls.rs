//! Calls that fail or hang, and runs in which too little happens.

use redisson_lock::RefusedKind;

use super::*;

/// A call that fails at 2,000 ms; something of hash slot 7 was broken from 1,000 to `until`.
fn failed(lock: usize, reason: Reason, broken: Broken, until: u64) -> usize {
    let mut played = Played::new();
    played.broken(broken, 7..=7, 1_000, until);
    let now = played.at(2_000);
    played.oracle.failed(lock, reason, "no".to_owned(), now);
    let played = played.judged(60_000);
    let sums = played.oracle.sums;
    let failed = usize::from(sums.no_answer + sums.refused + sums.too_few_replicas == 0);
    assert_eq!(played.oracle.violations().len(), failed);
    failed
}

#[test]
fn an_error_needs_an_outage_of_its_servers() {
    let no_answer = |broken| failed(PLAIN, Reason::NoAnswer, broken, 3_000);
    assert_eq!(no_answer(Broken::Primary), 0);
    assert_eq!(no_answer(Broken::Cluster), 0);
    assert_eq!(no_answer(Broken::Move), 0);
    assert_eq!(no_answer(Broken::Replicas), 1);
}

#[test]
fn an_error_comes_during_an_outage_or_soon_behind_it_and_where_it_is() {
    let at = |time: u64, slots: RangeInclusive<u16>| {
        let mut played = Played::new();
        played.broken(Broken::Primary, slots, 1_000, 2_000);
        let now = played.at(time);
        let text = String::new();
        played.oracle.failed(PLAIN, Reason::NoAnswer, text, now);
        played.judged(60_000).counts().2
    };
    assert_eq!(at(900, 7..=7), 1);
    assert_eq!(at(1_100, 7..=7), 0);
    assert_eq!(at(5_600, 7..=7), 0, "two commands and two seconds");
    assert_eq!(at(5_700, 7..=7), 1);
    assert_eq!(at(1_100, 8..=9), 1);
}

#[test]
fn some_errors_nothing_explains() {
    for reason in [
        Reason::Other,
        Reason::Refused(RefusedKind::Cluster),
        Reason::Refused(RefusedKind::Other),
        Reason::Refused(RefusedKind::NoSuchDatabase),
        Reason::Refused(RefusedKind::OutOfMemory),
        Reason::Refused(RefusedKind::TooManyClients),
    ] {
        for broken in [
            Broken::Primary,
            Broken::Cluster,
            Broken::Move,
            Broken::Replicas,
        ] {
            assert_eq!(failed(PLAIN, reason, broken, 3_000), 1, "{reason:?}");
        }
    }
}

#[test]
fn a_refusal_fits_what_is_broken() {
    let down = Reason::Refused(RefusedKind::ClusterDown);
    let read_only = Reason::Refused(RefusedKind::ReadOnly);
    assert_eq!(failed(PLAIN, down, Broken::Cluster, 3_000), 0);
    assert_eq!(failed(PLAIN, down, Broken::Replicas, 3_000), 1);
    assert_eq!(failed(PLAIN, read_only, Broken::Primary, 3_000), 0);
    assert_eq!(failed(PLAIN, read_only, Broken::Move, 3_000), 1);
}

#[test]
fn replicas_are_missed_by_those_who_want_them() {
    let few = Reason::TooFewReplicas;
    assert_eq!(failed(SYNCED, few, Broken::Replicas, 3_000), 0);
    assert_eq!(failed(SYNCED, few, Broken::Replicas, 1_001), 0);
    assert_eq!(failed(PLAIN, few, Broken::Replicas, 3_000), 1);
}

#[test]
fn a_nested_call_fails_by_a_loss_only_if_its_section_is_lost() {
    let nested = |ending: Ending| {
        let mut played = Played::new();
        played.took_over(500, 1_000, 0..=10, true);
        let id = played.begins(PLAIN, "a", 100);
        let now = played.at(1_500);
        let reason = Reason::Lost(id);
        played.oracle.failed(PLAIN, reason, String::new(), now);
        let mut played = played.judged(1_600);
        assert_eq!(played.counts(), (0, 0, 0), "it may be reported yet");
        played.ends(id, ending, 1_700);
        played.released(id, Release::Clean, 1_705);
        played.judged(1_800).counts()
    };
    assert_eq!(nested(Ending::Lost(LossReason::Gone)), (0, 0, 0));
    assert_eq!(nested(Ending::Released), (0, 0, 1));
}

/// A call at 1,000 ms that has not returned at 60,000. `a` was inside until `left`.
fn hangs(left: u64, is_nested: bool, whole: bool) -> usize {
    let mut played = Played::new();
    let a = played.begins(PLAIN, "a", 500);
    let now = played.at(1_000);
    let call = played.oracle.calls(PLAIN, is_nested, now);
    if !whole {
        played.oracle.outage(now, true);
        let until = played.at(45_000);
        played.oracle.outage(until, false);
    }
    if left < 60_000 {
        played.ends(a, Ending::Released, left);
    }
    let mut played = played.judged(60_000);
    let violations = played.oracle.violations().len();
    assert_eq!(played.oracle.pending().len(), 1);
    played.oracle.returned(call);
    assert_eq!(played.oracle.pending().len(), 0);
    violations
}

#[test]
fn a_call_returns_when_its_lock_is_free_and_everything_whole() {
    assert_eq!(hangs(2_000, false, true), 1);
    assert_eq!(hangs(50_000, false, true), 0, "not for long enough");
    assert_eq!(hangs(60_000, false, true), 0, "somebody is inside");
    assert_eq!(hangs(60_000, true, true), 1, "its own section");
    assert_eq!(hangs(2_000, false, false), 0, "it was not whole");
}

#[test]
fn a_run_in_which_little_happens_shows_nothing() {
    let missing = |sections: u64, is_long: bool, redirections: Option<u64>| {
        let mut played = Played::new();
        for nth in 0..sections {
            for lock in [PLAIN, SYNCED] {
                let id = played.begins(lock, "a", nth);
                played.ends(id, Ending::Released, nth);
            }
        }
        let needed = Needed {
            contended: 1,
            missing: vec!["Kill".to_owned()],
            is_long,
            redirections,
        };
        let now = played.at(20_000);
        played.oracle.too_little(&needed, now)
    };
    assert_eq!(
        missing(0, false, None),
        [
            "0 sections of plain, of at least 10",
            "0 sections of synced, of at least 1",
            "no section was compared with the servers"
        ]
    );
    assert_eq!(
        missing(10, false, None),
        ["no section was compared with the servers"]
    );
    assert_eq!(
        missing(10, true, Some(0))[1..],
        [
            "nothing of the kind Kill befell the servers",
            "no server has taken over",
            "no client was sent on to another server"
        ]
    );
    assert_eq!(missing(10, true, Some(1)).len(), 3);
}

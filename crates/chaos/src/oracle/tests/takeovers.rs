//! What a server that takes over explains, and what it does not.

use super::*;

/// `a` and `b` are inside of the plain lock at these times and release it so; a takeover at 3,000 ms.
fn both(a: (u64, u64, Release), b: (u64, u64, Release), former_until: u64) -> Played {
    let mut played = Played::new();
    played.took_over(1_000, 3_000, 0..=10, true);
    let (since, until) = (played.at(1_000), played.at(former_until));
    played.oracle.former_until(since, until);
    let mut steps: Vec<(u64, usize, bool)> = Vec::new();
    for (nth, (begin, end, _)) in [a, b].into_iter().enumerate() {
        steps.extend([(begin, nth, true), (end, nth, false)]);
    }
    steps.sort_unstable();
    let mut ids = [0; 2];
    for (time, nth, begins) in steps {
        if begins {
            ids[nth] = played.begins(PLAIN, ["a", "b"][nth], time);
        } else {
            played.ends(ids[nth], Ending::Released, time);
            let release = [a.2, b.2][nth];
            played.released(ids[nth], release, time + 5);
        }
    }
    played.judged(60_000)
}

#[test]
fn both_let_in_by_the_new_primary_is_a_violation() {
    let played = both(
        (3_400, 3_600, Release::Lost),
        (3_500, 3_700, Release::Clean),
        3_000,
    );
    assert_eq!(played.counts(), (0, 1, 1));
    let shown = &played.oracle.violations()[0];
    assert!(shown.contains("by the new primary"), "{shown}");
}

#[test]
fn both_let_in_before_the_switch_is_a_violation() {
    let played = both(
        (1_400, 3_600, Release::Lost),
        (1_500, 3_700, Release::Clean),
        3_000,
    );
    assert_eq!(played.counts(), (0, 1, 1));
    let shown = &played.oracle.violations()[0];
    assert!(shown.contains("by one primary"), "{shown}");
}

#[test]
fn two_clean_releases_are_a_violation_unless_the_former_primary_executed_one() {
    let clean = |former_until| {
        both(
            (2_000, 4_000, Release::Clean),
            (3_500, 4_500, Release::Clean),
            former_until,
        )
    };
    let played = clean(3_000);
    assert_eq!(played.counts(), (0, 1, 1));
    let shown = &played.oracle.violations()[0];
    assert!(shown.contains("nobody was informed"), "{shown}");
    let played = clean(4_000);
    assert_eq!(played.counts(), (1, 0, 0));
    assert_eq!(played.oracle.sums.released_before, 1);
}

#[test]
fn a_release_that_reports_the_loss_or_whose_answer_nobody_has_is_enough() {
    for release in [Release::Lost, Release::Unknown] {
        let played = both(
            (2_000, 4_000, release),
            (3_500, 4_500, Release::Clean),
            3_000,
        );
        assert_eq!(played.counts(), (1, 0, 0), "{release:?}");
        let losses = u64::from(release == Release::Lost);
        assert_eq!(played.oracle.sums.with_a_loss, losses);
    }
}

#[test]
fn a_release_under_way_is_waited_for() {
    let mut played = Played::new();
    played.took_over(1_000, 3_000, 0..=10, true);
    let a = played.begins(PLAIN, "a", 2_000);
    let b = played.begins(PLAIN, "b", 3_500);
    played.ends(b, Ending::Released, 3_600);
    played.released(b, Release::Clean, 3_605);
    played.ends(a, Ending::Released, 4_000);
    let mut played = played.judged(4_100);
    assert_eq!(played.counts(), (0, 0, 0));
    played.released(a, Release::Clean, 4_200);
    assert_eq!(played.judged(4_300).counts(), (0, 1, 1));
}

#[test]
fn what_the_new_primary_let_in_is_not_lost() {
    let lost = |begin: u64| {
        let mut played = Played::new();
        played.took_over(1_000, 3_000, 0..=10, true);
        let a = played.begins(PLAIN, "a", begin);
        played.ends(a, Ending::Lost(LossReason::Gone), 4_000);
        played.judged(5_000).counts()
    };
    assert_eq!(lost(2_900), (0, 0, 0));
    assert_eq!(lost(3_300), (0, 0, 1));
}

#[test]
fn a_loss_does_not_come_before_the_switch() {
    let mut played = Played::new();
    played.took_over(1_000, 3_000, 0..=10, true);
    let a = played.begins(PLAIN, "a", 500);
    played.ends(a, Ending::Lost(LossReason::Gone), 2_000);
    assert_eq!(played.judged(5_000).counts(), (0, 0, 1));
}

#[test]
fn a_release_from_before_the_switch_is_answered_by_the_new_primary() {
    let answered = |time: u64| {
        let mut played = Played::new();
        played.took_over(1_000, 3_000, 0..=10, true);
        let a = played.begins(PLAIN, "a", 500);
        played.ends(a, Ending::Released, 2_600);
        let now = played.at(time);
        played.oracle.was_lost(a, PLAIN, LossReason::Gone, now);
        played.judged(5_000).counts()
    };
    assert_eq!(answered(3_200), (0, 0, 0));
    assert_eq!(answered(2_700), (0, 0, 1));
}

#[test]
fn a_loss_that_a_release_reports_very_late_is_judged() {
    let mut played = Played::new();
    let a = played.begins(PLAIN, "a", 500);
    played.ends(a, Ending::Released, 1_000);
    let b = played.begins(SYNCED, "b", 1_000);
    played.ends(b, Ending::Released, 60_000);
    let now = played.at(61_000);
    played.oracle.was_lost(a, PLAIN, LossReason::Gone, now);
    assert_eq!(played.judged(62_000).counts(), (0, 0, 1));
}

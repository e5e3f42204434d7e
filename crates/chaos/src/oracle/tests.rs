//! Planted overlaps, and allowed ones.

mod calls;
mod takeovers;

use std::ops::RangeInclusive;

use super::*;
use test_support::ms;

const PLAIN: usize = 0;
const SYNCED: usize = 1;

fn oracle(start: Instant) -> Oracle {
    let terms = Terms {
        watchdog_timeout: ms(12_000),
        command_timeout: ms(800),
        reported_within: ms(2_000),
    };
    let lock = |name: &str, synced| Judged {
        name: name.to_owned(),
        slot: 7,
        synced,
    };
    Oracle::new(
        terms,
        vec![lock("plain", false), lock("synced", true)],
        start,
    )
}

/// At milliseconds from the start.
struct Played {
    oracle: Oracle,
    start: Instant,
}

impl Played {
    fn new() -> Self {
        let start = Instant::now();
        Self {
            oracle: oracle(start),
            start,
        }
    }

    fn at(&self, time: u64) -> Instant {
        self.start + ms(time)
    }

    fn begins(&mut self, lock: usize, owner: &str, time: u64) -> u64 {
        let now = self.at(time);
        let valid_until = now + ms(12_000);
        self.oracle
            .begins(lock, owner.into(), false, valid_until, now)
    }

    fn ends(&mut self, id: u64, ending: Ending, time: u64) {
        let now = self.at(time);
        self.oracle.ends(id, ending, now);
    }

    fn took_over(&mut self, from: u64, at: u64, slots: RangeInclusive<u16>, may_lose: bool) {
        let (from, at) = (self.at(from), self.at(at));
        self.oracle.took_over(Takeover {
            from,
            at,
            former_until: at,
            slots: vec![slots],
            may_lose,
        });
    }

    fn broken(&mut self, broken: Broken, slots: RangeInclusive<u16>, from: u64, until: u64) {
        let (from, until) = (self.at(from), Some(self.at(until)));
        let outage = Outage::new(broken, &vec![slots], from, until);
        self.oracle.broken(outage);
    }

    fn released(&mut self, id: u64, release: Release, time: u64) {
        let now = self.at(time);
        self.oracle.released(id, release, now);
    }

    /// `a` takes the lock at 500 ms, `b` at 3,200, and `a` is informed of its loss at `reported`.
    fn lost(mut self, lock: usize, reported: u64) -> Self {
        let a = self.begins(lock, "a", 500);
        let b = self.begins(lock, "b", 3_200);
        self.ends(a, Ending::Lost(LossReason::Gone), reported);
        self.ends(b, Ending::Released, reported + 50);
        self.judged(60_000)
    }

    fn judged(mut self, time: u64) -> Self {
        let now = self.at(time);
        self.oracle.judge(now);
        self
    }

    /// Overlaps allowed and not, and violations.
    fn counts(&self) -> (u64, u64, usize) {
        let sums = self.oracle.sums;
        let violations = self.oracle.violations().len();
        (sums.overlaps_allowed, sums.overlaps_not_allowed, violations)
    }
}

#[test]
fn sections_one_after_the_other_do_not_overlap() {
    let mut played = Played::new();
    for nth in 0..100 {
        let id = played.begins(PLAIN, "a", nth * 10);
        played.ends(id, Ending::Released, nth * 10 + 10);
    }
    let played = played.judged(2_000);
    assert_eq!(played.counts(), (0, 0, 0));
    assert_eq!(played.oracle.sums.sections, 100);
}

#[test]
fn a_planted_overlap_is_found_and_shown() {
    let mut played = Played::new();
    let a = played.begins(PLAIN, "a", 100);
    let b = played.begins(PLAIN, "b", 150);
    played.ends(a, Ending::Released, 160);
    played.ends(b, Ending::Released, 200);
    let played = played.judged(300);
    assert_eq!(played.counts(), (0, 1, 1));
    let shown = &played.oracle.violations()[0];
    assert!(shown.contains("a is inside (section 1)"), "{shown}");
    assert!(shown.contains("inside together for 10ms"), "{shown}");
}

#[test]
fn one_that_never_ends_is_found() {
    let mut played = Played::new();
    played.took_over(1_000, 3_000, 0..=10, true);
    played.begins(PLAIN, "a", 500);
    played.begins(PLAIN, "b", 3_500);
    let played = played.judged(4_000);
    assert_eq!(played.counts(), (0, 0, 0), "it may be told yet");
    assert_eq!(played.judged(5_001).counts(), (0, 1, 1));
}

#[test]
fn what_a_takeover_loses_is_allowed_until_its_report_is_due() {
    let mut played = Played::new();
    played.took_over(1_000, 3_000, 0..=10, true);
    let played = played.lost(PLAIN, 4_900);
    assert_eq!(played.counts(), (1, 0, 0));
    assert_eq!(
        (played.oracle.sums.lost, played.oracle.sums.longest),
        (1, ms(1_900))
    );
    let mut late = Played::new();
    late.took_over(1_000, 3_000, 0..=10, true);
    assert_eq!(late.lost(PLAIN, 5_100).counts(), (0, 1, 2), "reported late");
}

#[test]
fn a_machine_that_stood_still_has_as_much_more_time() {
    let mut played = Played::new();
    played.took_over(1_000, 3_000, 0..=10, true);
    let ended = played.at(4_000);
    played.oracle.stalled(ended, ms(200));
    let played = played.lost(PLAIN, 5_100);
    assert_eq!(played.counts(), (1, 0, 0));
    assert_eq!(played.oracle.sums.credit, ms(100));
}

#[test]
fn what_a_busy_machine_does_all_the_time_is_no_credit() {
    let mut played = Played::new();
    played.took_over(1_000, 3_000, 0..=10, true);
    for nth in 0..100 {
        let ended = played.at(3_000 + nth * 20);
        played.oracle.stalled(ended, ms(20));
    }
    assert_eq!(played.lost(PLAIN, 5_100).counts(), (0, 1, 2));
}

#[test]
fn a_machine_that_stood_still_is_believed_for_a_second() {
    let mut played = Played::new();
    played.took_over(1_000, 3_000, 0..=10, true);
    for nth in 1..5 {
        let ended = played.at(3_000 + nth * 400);
        played.oracle.stalled(ended, ms(390));
    }
    assert_eq!(played.lost(PLAIN, 6_100).counts(), (0, 1, 2));
}

#[test]
fn a_machine_that_did_not_run_at_all_is_believed() {
    let mut played = Played::new();
    played.took_over(1_000, 3_000, 0..=10, true);
    let ended = played.at(5_500);
    played.oracle.stalled(ended, ms(2_400));
    assert_eq!(played.lost(PLAIN, 6_100).counts(), (1, 0, 0));
}

#[test]
fn no_takeover_or_one_that_has_nothing_to_do_with_it_explains_nothing() {
    assert_eq!(Played::new().lost(PLAIN, 4_000).counts(), (0, 1, 2));
    let mut elsewhere = Played::new();
    elsewhere.took_over(1_000, 3_000, 8..=10, true);
    assert_eq!(elsewhere.lost(PLAIN, 4_000).counts(), (0, 1, 2));
    let mut planned = Played::new();
    planned.took_over(1_000, 3_000, 0..=10, false);
    assert_eq!(planned.lost(PLAIN, 4_000).counts(), (0, 1, 2));
}

#[test]
fn what_all_replicas_have_is_lost_by_nothing() {
    let mut played = Played::new();
    played.took_over(1_000, 3_000, 0..=10, true);
    assert_eq!(played.lost(SYNCED, 4_000).counts(), (0, 1, 2));
}

#[test]
fn the_clock_ends_a_hold_before_its_owner_has_run() {
    for ending in [Ending::Lost(LossReason::LeaseOver), Ending::Released] {
        let mut played = Played::new();
        let (begun, over) = (played.at(100), played.at(400));
        let a = played.oracle.begins(PLAIN, "a".into(), true, over, begun);
        let b = played.begins(PLAIN, "b", 410);
        played.ends(a, ending, 420);
        played.ends(b, Ending::Released, 430);
        assert_eq!(played.judged(500).counts(), (0, 0, 0));
    }
}

#[test]
fn a_release_may_come_when_the_lease_is_over_and_not_before() {
    let released = |answered: u64| {
        let mut played = Played::new();
        let (begun, over) = (played.at(100), played.at(400));
        let a = played.oracle.begins(PLAIN, "a".into(), true, over, begun);
        played.ends(a, Ending::Released, 390);
        let answered = played.at(answered);
        let gone = LossReason::Gone;
        played.oracle.was_lost(a, PLAIN, gone, answered);
        played.judged(500).counts()
    };
    assert_eq!(released(405), (0, 0, 0));
    assert_eq!(released(395), (0, 0, 1));
}

#[test]
fn a_renewal_that_fails_needs_an_outage_of_its_primary() {
    let lost_at = |lock: usize, broken: Broken, slots: RangeInclusive<u16>, until: u64| {
        let mut played = Played::new();
        let (fault, whole) = (played.at(1_000), played.at(14_000));
        played.oracle.outage(fault, true);
        played.oracle.outage(whole, false);
        played.broken(broken, slots, 3_000, until);
        let a = played.begins(lock, "a", 100);
        played.ends(a, Ending::Lost(LossReason::NotRenewed), 12_100);
        played.judged(20_000).counts()
    };
    let lost = |broken, slots, until| lost_at(PLAIN, broken, slots, until);
    assert_eq!(lost(Broken::Primary, 7..=7, 9_000), (0, 0, 0));
    assert_eq!(lost(Broken::Cluster, 0..=9, 9_000), (0, 0, 0));
    assert_eq!(lost(Broken::Primary, 7..=7, 8_900), (0, 0, 1), "too short");
    assert_eq!(lost(Broken::Primary, 8..=9, 14_000), (0, 0, 1), "of others");
    assert_eq!(lost(Broken::Replicas, 7..=7, 14_000), (0, 0, 1));
    assert_eq!(lost(Broken::Move, 7..=7, 14_000), (0, 0, 1));
    // Without them nobody confirms it.
    let unconfirmed = |broken, until| lost_at(SYNCED, broken, 7..=7, until);
    assert_eq!(unconfirmed(Broken::Replicas, 9_000), (0, 0, 0));
    assert_eq!(unconfirmed(Broken::Replicas, 8_900), (0, 0, 1));
    assert_eq!(unconfirmed(Broken::Move, 9_000), (0, 0, 0));
}

#[test]
fn outages_at_the_same_time_count_once() {
    let mut played = Played::new();
    played.broken(Broken::Primary, 7..=7, 3_000, 6_500);
    played.broken(Broken::Cluster, 0..=9, 3_500, 6_900);
    let a = played.begins(PLAIN, "a", 100);
    played.ends(a, Ending::Lost(LossReason::NotRenewed), 12_100);
    assert_eq!(played.judged(20_000).counts(), (0, 0, 1));
}

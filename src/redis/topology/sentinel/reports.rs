//! The reports of the sentinels, and the primary that follows from them. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::redis::node::endpoint::ServerId;
use crate::redis::settings::address::Address;

/// A sentinel's report of the primary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) epoch: u64,
    pub(super) primary: Address,
    pub(super) down_after: Option<Duration>,
}

/// Who the primary is. Of one epoch there is one primary.
#[derive(Clone)]
struct Believed {
    epoch: u64,
    primary: Address,
}

/// A sentinel as it was seen last.
struct SeenSentinel {
    /// Its identity, if it reports one: it may be known by two addresses.
    id: Option<ServerId>,
    /// Named by the user, and not learned from another sentinel.
    named: bool,
    /// Whether it has ever responded.
    has_responded: bool,
    /// Its last answer, unless it did not respond after that.
    latest: Option<Report>,
    /// Since when it does not respond.
    silent_since: Instant,
}

/// All that was reported so far.
#[derive(Default)]
pub(super) struct SentinelReports {
    sentinels: BTreeMap<Address, SeenSentinel>,
    believed: Option<Believed>,
    /// Another primary than that, which all report that respond, and since when they do.
    instead: Option<(Address, Instant)>,
}

impl SentinelReports {
    pub(super) fn new(named: &[Address], now: Instant) -> Self {
        let mut reports = Self::default();
        for address in named {
            reports.add(address, None, true, now);
        }
        reports
    }

    fn add(&mut self, address: &Address, id: Option<ServerId>, named: bool, now: Instant) {
        let seen = SeenSentinel {
            id,
            named,
            has_responded: false,
            latest: None,
            silent_since: now,
        };
        self.sentinels.insert(address.clone(), seen);
    }

    /// A sentinel that another one knows. Returns whether it is new, and therefore to be asked.
    pub(super) fn learn(&mut self, address: &Address, id: Option<ServerId>, now: Instant) -> bool {
        // One that is gone for good may have come back at this address.
        let is_there = |seen: &&SeenSentinel| {
            seen.latest.is_some() || now - seen.silent_since < FORGOTTEN_AFTER
        };
        let there = self.sentinels.values().filter(is_there);
        let mut ids = there.filter_map(|seen| seen.id.as_ref());
        let is_known = self.sentinels.contains_key(address)
            || id.as_ref().is_some_and(|id| ids.any(|known| known == id));
        if is_known || self.sentinels.len() >= SENTINELS_MAX {
            return false;
        }
        self.add(address, id, false, now);
        true
    }

    pub(super) fn addresses(&self) -> Vec<Address> {
        self.sentinels.keys().cloned().collect()
    }

    /// The sentinel at this address has reported who it is. If it did not, what another one has reported of it
    /// stays.
    pub(super) fn identified(&mut self, address: &Address, id: Option<ServerId>) {
        if let Some(seen) = self.sentinels.get_mut(address)
            && id.is_some()
        {
            seen.id = id;
        }
    }

    /// A sentinel did not respond. Returns whether it is asked again: one that was learned and does not
    /// respond any more may be gone for good.
    pub(super) fn silent(&mut self, address: &Address, now: Instant) -> bool {
        let Some(seen) = self.sentinels.get_mut(address) else {
            return false;
        };
        if seen.latest.take().is_some() {
            seen.silent_since = now;
        }
        let is_kept = seen.named || now - seen.silent_since < FORGOTTEN_AFTER;
        if !is_kept {
            self.sentinels.remove(address);
        }
        is_kept
    }

    /// The sentinels that count: those that respond, and those that have been silent for less than a minute. One
    /// that has two addresses counts once. One that was learned counts only after its first answer: it may be
    /// a sentinel that counts already, under an address that only the other sentinels reach.
    fn voters(&self, now: Instant) -> Vec<Option<&Report>> {
        let counts = |seen: &&SeenSentinel| {
            let is_known = seen.named || seen.has_responded;
            seen.latest.is_some() || is_known && now - seen.silent_since < FORGOTTEN_AFTER
        };
        let mut seen: Vec<_> = self.sentinels.values().filter(counts).collect();
        // One that responds by one of its addresses does respond.
        seen.sort_by_key(|seen| seen.latest.is_none());
        let mut ids = BTreeSet::new();
        seen.retain(|seen| seen.id.as_ref().is_none_or(|id| ids.insert(id)));
        seen.iter().map(|seen| seen.latest.as_ref()).collect()
    }

    /// Who the primary is by what a sentinel has just reported. A lower epoch than one that was believed is
    /// stale, even if most sentinels report it: they learn of a failover one after the other. Only when all of
    /// them report it they were set up again, or when all that respond keep reporting it.
    pub(super) fn primary(
        &mut self,
        sentinel: &Address,
        report: Report,
        now: Instant,
    ) -> Option<Address> {
        if let Some(seen) = self.sentinels.get_mut(sentinel) {
            seen.latest = Some(report);
            seen.has_responded = true;
        }
        let voters = self.voters(now);
        let all = voters.iter().all(Option::is_some);
        let reports = voters.into_iter().flatten();
        let newest = reports.max_by_key(|report| report.epoch)?.clone();
        let is_news = match &self.believed {
            None => true,
            Some(believed) if newest.epoch < believed.epoch && all => true,
            Some(believed) => newest.epoch > believed.epoch,
        };
        if is_news || self.is_agreed(&newest.primary, now) {
            self.instead = None;
            self.believed = Some(Believed {
                epoch: newest.epoch,
                primary: newest.primary,
            });
        }
        let believed = self.believed.as_ref();
        believed.map(|believed| believed.primary.clone())
    }

    /// Whether an operator has given the sentinels this primary: its epoch is no higher than before, perhaps
    /// the first one still, but most of them respond and none of those reports another one, for longer than
    /// they need to hear of a failover from each other.
    fn is_agreed(&mut self, primary: &Address, now: Instant) -> bool {
        let voters = self.voters(now);
        let reports: Vec<_> = voters.iter().flatten().collect();
        let believed = self.believed.as_ref();
        let is_agreed = believed.is_some_and(|believed| believed.primary != *primary)
            && reports.len() * 2 > voters.len()
            && reports.iter().all(|report| report.primary == *primary);
        if !is_agreed {
            self.instead = None;
            return false;
        }
        match &self.instead {
            Some((instead, since)) if instead == primary => now - *since >= AGREED_FOR,
            _ => {
                self.instead = Some((primary.clone(), now));
                false
            }
        }
    }
}

/// All that respond report another primary for this long before it is believed. They talk to each other every
/// two seconds.
const AGREED_FOR: Duration = Duration::from_secs(5);

/// A sentinel that does not respond for this long counts in no majority, and is not asked any more unless the
/// user has named it.
pub(super) const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// More are not asked.
const SENTINELS_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn report(epoch: u64, port: u16) -> Report {
        Report {
            epoch,
            primary: Address::new("10.0.0.1", port),
            down_after: None,
        }
    }

    fn sentinel(nth: u16) -> Address {
        Address::new("10.0.1.1", nth)
    }

    /// Sentinels, and what they report at which second.
    struct Scene {
        reports: SentinelReports,
        start: Instant,
    }

    impl Scene {
        fn new(sentinels: u16) -> Self {
            let start = Instant::now();
            let named: Vec<_> = (0..sentinels).map(sentinel).collect();
            Self {
                reports: SentinelReports::new(&named, start),
                start,
            }
        }

        fn at(&self, secs: u64) -> Instant {
            self.start + Duration::from_secs(secs)
        }

        fn reports(&mut self, nth: u16, secs: u64, report: Report) -> Option<u16> {
            let now = self.at(secs);
            let primary = self.reports.primary(&sentinel(nth), report, now);
            primary.map(|address| address.port)
        }

        fn silent(&mut self, nth: u16, secs: u64) -> bool {
            let now = self.at(secs);
            self.reports.silent(&sentinel(nth), now)
        }
    }

    #[test]
    fn the_highest_epoch_is_believed_and_a_stale_one_is_not() {
        let mut scene = Scene::new(3);
        assert_eq!(scene.reports(0, 0, report(1, 1)), Some(1));
        assert_eq!(scene.reports(1, 0, report(2, 2)), Some(2));
        assert_eq!(scene.reports(0, 0, report(1, 1)), Some(2), "it is stale");
        let same_epoch = scene.reports(0, 0, report(2, 3));
        assert_eq!(same_epoch, Some(2), "of one epoch there is one primary");
        (0..3).for_each(|nth| _ = scene.silent(nth, 0));
        scene.reports(0, 0, report(1, 1));
        let most = scene.reports(2, 0, report(1, 1));
        assert_eq!(most, Some(2), "the one that knows more does not respond");
        let all = scene.reports(1, 0, report(1, 1));
        assert_eq!(all, Some(1), "all report it: they were set up again");
    }

    #[test]
    fn another_primary_in_no_higher_epoch_is_believed_when_all_that_respond_keep_reporting_it() {
        let mut scene = Scene::new(3);
        for nth in 0..3 {
            assert_eq!(scene.reports(nth, 0, report(5, 1)), Some(1));
        }
        // The same epoch, one after the other.
        assert_eq!(scene.reports(0, 1, report(5, 2)), Some(1));
        let third = scene.reports(1, 9, report(5, 2));
        assert_eq!(third, Some(1), "the third reports otherwise");
        let moment = scene.reports(2, 10, report(5, 2));
        assert_eq!(moment, Some(1), "it may be a mistake of a moment");
        let early = scene.reports(0, 14, report(5, 2));
        assert_eq!(early, Some(1), "not for long enough");
        assert_eq!(scene.reports(1, 15, report(5, 2)), Some(2));
        // Not while one of them reports the former.
        assert_eq!(scene.reports(0, 20, report(5, 1)), Some(2));
        assert_eq!(scene.reports(1, 20, report(5, 1)), Some(2));
        let third = scene.reports(0, 59, report(5, 1));
        assert_eq!(third, Some(2), "the third reports otherwise");
    }

    /// There is one sentinel, so that no other one contradicts it in between.
    #[test]
    fn another_primary_is_waited_for_from_its_own_first_report_on() {
        let mut scene = Scene::new(1);
        assert_eq!(scene.reports(0, 0, report(5, 1)), Some(1));
        assert_eq!(scene.reports(0, 1, report(5, 2)), Some(1));
        let third = scene.reports(0, 6, report(5, 3));
        assert_eq!(third, Some(1), "it is a third one");
        assert_eq!(scene.reports(0, 11, report(5, 3)), Some(3));
        assert_eq!(scene.reports(0, 12, report(6, 1)), Some(1));
        let again = scene.reports(0, 13, report(6, 3));
        assert_eq!(again, Some(1), "what was reported before has been believed");
        assert_eq!(scene.reports(0, 18, report(6, 3)), Some(3));
    }

    #[test]
    fn one_that_reports_otherwise_is_enough_whichever_it_is() {
        for nth in 0..3 {
            let mut scene = Scene::new(3);
            (0..3).for_each(|nth| _ = scene.reports(nth, 0, report(5, 1)));
            for secs in [1, 9] {
                assert_eq!(scene.reports(nth, secs, report(5, 2)), Some(1));
            }
        }
    }

    #[test]
    fn the_same_primary_in_a_lower_epoch_is_no_news() {
        let mut scene = Scene::new(3);
        (0..3).for_each(|nth| _ = scene.reports(nth, 0, report(5, 1)));
        scene.silent(2, 0);
        for (nth, secs) in [(0, 1), (1, 1), (0, 9)] {
            assert_eq!(scene.reports(nth, secs, report(3, 1)), Some(1));
        }
        let stale = scene.reports(0, 10, report(4, 2));
        assert_eq!(stale, Some(1), "the fifth epoch is still the last");
    }

    #[test]
    fn most_of_those_that_responded_within_a_minute_have_to_agree() {
        let mut scene = Scene::new(3);
        for nth in 0..3 {
            scene.reports(nth, 0, report(5, 1));
        }
        (0..3).for_each(|nth| _ = scene.silent(nth, 0));
        for secs in [1, 2, 30] {
            let alone = scene.reports(0, secs, report(3, 2));
            assert_eq!(alone, Some(1), "one of three");
        }
        assert_eq!(scene.reports(1, 31, report(4, 2)), Some(1));
        assert_eq!(scene.reports(0, 35, report(4, 2)), Some(1));
        // It begins again with every other answer.
        assert_eq!(scene.reports(1, 36, report(4, 3)), Some(1));
        assert_eq!(scene.reports(1, 37, report(4, 2)), Some(1));
        assert_eq!(scene.reports(0, 41, report(4, 2)), Some(1));
        assert_eq!(scene.reports(0, 42, report(4, 2)), Some(2));
        let higher = scene.reports(2, 43, report(5, 1));
        assert_eq!(higher, Some(1), "a higher epoch is believed immediately");
    }

    /// Two of three are gone for good, and the third was set up again.
    #[test]
    fn a_sentinel_that_is_gone_for_a_minute_counts_in_no_majority() {
        let mut scene = Scene::new(3);
        for nth in 0..3 {
            scene.reports(nth, 0, report(5, 1));
        }
        assert!(
            scene.silent(1, 1) && scene.silent(2, 1),
            "named by the user"
        );
        assert_eq!(scene.reports(0, 60, report(1, 2)), Some(1));
        let alone = scene.reports(0, 61, report(1, 2));
        assert_eq!(alone, Some(2), "all that count report it");
    }

    /// Others report it under an address that this client cannot reach, and its identity is unknown.
    #[test]
    fn a_sentinel_that_was_learned_counts_only_after_its_first_answer() {
        let mut scene = Scene::new(1);
        assert_eq!(scene.reports(0, 0, report(5, 1)), Some(1));
        let now = scene.at(10);
        for nth in 1..3 {
            assert!(scene.reports.learn(&sentinel(nth), None, now));
            assert!(scene.silent(nth, 11));
        }
        assert_eq!(scene.reports(0, 12, report(5, 2)), Some(1));
        let alone = scene.reports(0, 17, report(5, 2));
        assert_eq!(alone, Some(2), "it is the only one that ever answered");
        // From its first answer on it counts.
        assert_eq!(scene.reports(1, 18, report(5, 2)), Some(2));
        assert!(scene.silent(1, 19));
        for secs in [20, 30] {
            let half = scene.reports(0, secs, report(5, 3));
            assert_eq!(half, Some(2), "one of two");
        }
    }

    #[test]
    fn sentinels_are_learned_once_and_forgotten_when_they_are_gone() {
        let mut scene = Scene::new(1);
        let (now, id) = (scene.start, |id: &str| Some(ServerId::from(id)));
        scene.reports.identified(&sentinel(0), id("a"));
        assert!(!scene.reports.learn(&sentinel(0), None, now), "named");
        let renamed = Address::new("sentinel.example", 0);
        assert!(!scene.reports.learn(&renamed, id("a"), now), "the same");
        assert!(scene.reports.learn(&sentinel(1), id("b"), now));
        scene.reports.identified(&sentinel(1), None);
        let renamed = Address::new("sentinel.example", 1);
        assert!(!scene.reports.learn(&renamed, id("b"), now), "the same");
        assert!(!scene.reports.learn(&sentinel(1), id("b"), now), "known");
        scene.reports(1, 1, report(1, 1));
        assert!(scene.silent(1, 2) && scene.silent(1, 61));
        assert!(!scene.silent(1, 62), "gone for good");
        assert!(!scene.silent(1, 62), "known no more");
        assert_eq!(scene.reports.addresses(), [sentinel(0)]);
        assert!(scene.silent(0, 9_999), "named by the user");
        let late = scene.at(9_999);
        assert!(scene.reports.learn(&renamed, id("a"), late), "it has moved");
        let again = Address::new("sentinel.example", 2);
        assert!(!scene.reports.learn(&again, id("a"), late), "the same");
        for nth in 1..100 {
            scene.reports.learn(&sentinel(nth), None, now);
        }
        assert_eq!(scene.reports.addresses().len(), SENTINELS_MAX);
    }

    #[test]
    fn a_sentinel_that_responds_is_not_learned_by_another_address_however_late() {
        let mut scene = Scene::new(1);
        let id = Some(ServerId::from("a"));
        scene.reports.identified(&sentinel(0), id.clone());
        scene.reports(0, 99, report(1, 1));
        let (renamed, now) = (Address::new("sentinel.example", 0), scene.at(99));
        assert!(!scene.reports.learn(&renamed, id, now));
    }

    /// Of two addresses of one sentinel the one that responds counts.
    #[test]
    fn a_sentinel_with_two_addresses_counts_once() {
        let mut scene = Scene::new(4);
        let ids = ["a", "a", "b", "c"];
        for (nth, id) in (0..).zip(ids) {
            let id = Some(ServerId::from(id));
            scene.reports.identified(&sentinel(nth), id);
            scene.reports(nth, 0, report(5, 1));
        }
        // Both of its addresses, and no other sentinel.
        scene.silent(2, 1);
        scene.silent(3, 1);
        for secs in [2, 9] {
            assert_eq!(scene.reports(0, secs, report(5, 2)), Some(1));
            assert_eq!(scene.reports(1, secs, report(5, 2)), Some(1));
        }
        scene.silent(0, 10);
        assert_eq!(scene.reports(2, 10, report(5, 2)), Some(1));
        assert_eq!(scene.reports(1, 15, report(5, 2)), Some(2), "two of three");
    }
}

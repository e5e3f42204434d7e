//! One hold: its lease, who releases it, and how it ended; the open holds of one owner; and the margins
//! between a lease and its local deadline.

use std::collections::BTreeSet;
use std::time::Duration;

use smallvec::SmallVec;

use super::values::{HoldId, LossReason, Rules, Time};

/// How long a hold is promised to its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LeasePolicy {
    /// The watchdog renews it, at most until `limit`.
    Watchdog { limit: Option<Time> },
    /// It ends by itself; only `extend` moves the end, at most to `limit`.
    Fixed { until: Time, limit: Option<Time> },
}

impl LeasePolicy {
    /// When the hold is over whatever the server says.
    pub(super) fn ends(&self) -> Option<Time> {
        match *self {
            Self::Watchdog { limit } => limit,
            Self::Fixed { until, .. } => Some(until),
        }
    }

    pub(super) fn is_renewed(&self) -> bool {
        matches!(self, Self::Watchdog { .. })
    }

    /// The lease that this hold still needs.
    pub(super) fn left(&self, now: Time, rules: &Rules) -> Duration {
        match *self {
            Self::Watchdog { limit: None } => rules.watchdog_timeout,
            Self::Watchdog { limit: Some(limit) } => {
                lease_for_deadline(limit.since(now)).min(rules.watchdog_timeout)
            }
            Self::Fixed { until, .. } => until.since(now),
        }
    }
}

/// Who will see to the end of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Keeper {
    Guard,
    /// No guard: the owner unlocks without one.
    Detached,
    /// An unlock without a guard that is under way.
    Unlock,
    /// Nobody: it stays for its lease, also when its client has ended.
    Lease,
}

impl Keeper {
    pub(super) fn is_detached(self) -> bool {
        self != Self::Guard
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct HoldRecord {
    pub(super) id: HoldId,
    pub(super) policy: LeasePolicy,
    pub(super) keeper: Keeper,
}

impl HoldRecord {
    fn is_guarded(&self) -> bool {
        self.keeper == Keeper::Guard
    }

    pub(super) fn valid_until(&self, deadline: Time) -> Time {
        earlier(self.policy.ends(), deadline)
    }

    /// Why it is over by the clock, if it is.
    pub(super) fn over(&self, deadline: Time, now: Time) -> Option<LossReason> {
        match self.policy {
            policy if policy.ends().is_some_and(|ends| ends <= now) => Some(match policy {
                LeasePolicy::Watchdog { .. } => LossReason::MaxHold,
                LeasePolicy::Fixed { until, limit } if limit == Some(until) => LossReason::MaxHold,
                LeasePolicy::Fixed { .. } => LossReason::LeaseOver,
            }),
            _ if deadline <= now => Some(LossReason::NotRenewed),
            _ => None,
        }
    }
}

/// A lost hold that its owner has not seen the end of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct LostHold {
    pub(super) id: HoldId,
    pub(super) reason: LossReason,
    pub(super) keeper: Keeper,
    /// It had an end of its own.
    pub(super) bounded: bool,
}

impl LostHold {
    /// A detached hold with an end of its own is left to it: no unlock needs to follow.
    pub(super) fn is_forgotten(&self) -> bool {
        self.keeper.is_detached() && self.bounded
    }

    /// A section that reached its limit and may still be running.
    pub(super) fn section_may_run(&self) -> bool {
        !self.keeper.is_detached() && self.reason == LossReason::MaxHold
    }
}

/// The lost holds of one owner. There is nearly never one, so the list is apart.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
#[allow(clippy::box_collection, reason = "it takes no room while it is empty")]
pub(super) struct LostHolds(Option<Box<Vec<LostHold>>>);

impl LostHolds {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &LostHold> {
        self.0.iter().flat_map(|lost| lost.iter())
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut LostHold> {
        self.0.iter_mut().flat_map(|lost| lost.iter_mut())
    }

    pub(super) fn push(&mut self, hold: LostHold) {
        self.0.get_or_insert_default().push(hold);
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&LostHold) -> bool) {
        let lost = self.0.as_mut();
        lost.into_iter().for_each(|lost| lost.retain(&keep));
        self.0.take_if(|lost| lost.is_empty());
    }
}

/// The public state of a hold that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldSnapshot {
    /// The server keeps the lock at least until here.
    pub deadline: Time,
    /// Without a renewal by then the hold is at risk.
    pub at_risk_from: Option<Time>,
    /// When the hold is over whatever the server says.
    pub ends: Option<Time>,
    /// It is over by the clock, and no step has ended it yet.
    pub over: Option<LossReason>,
    pub policy: LeasePolicy,
    /// How many replicas must confirm its lease.
    pub replicas: u32,
}

impl HoldSnapshot {
    /// The earlier of deadline and end.
    pub fn valid_until(&self) -> Time {
        earlier(self.ends, self.deadline)
    }
}

fn earlier(ends: Option<Time>, deadline: Time) -> Time {
    ends.map_or(deadline, |ends| ends.min(deadline))
}

/// A hold that was just lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Loss {
    pub(super) id: HoldId,
    pub(super) reason: LossReason,
    /// It was valid until then, or until it was lost, if that is earlier.
    pub(super) valid_until: Time,
    /// Its owner had counted on it: a detached lease that has run out did what it was taken for.
    pub(super) is_news: bool,
}

/// The local deadline of a lease: before the server's own expiry.
pub fn local_deadline(sent_at: Time, lease: Duration) -> Time {
    sent_at + on_another_clock(lease)
}

/// A span as another clock is to measure it, less a margin for the drift of the two.
pub fn on_another_clock(span: Duration) -> Duration {
    span.saturating_sub(span / 100 + Duration::from_millis(2))
}

/// The lease whose local deadline is this far away: what the margin takes off is put on.
pub(super) fn lease_for_deadline(left: Duration) -> Duration {
    (left + Duration::from_millis(2)) * 100 / 99 + Duration::from_millis(1)
}

/// What a renewal asks of Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RenewalAsk {
    /// The lease from now on, at least.
    Extend(Duration),
    /// Nothing is renewed: whether the lock is still there.
    Check,
}

/// How a renewal ended. Unknown is not lost: only the local deadline makes it so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RenewOutcome {
    Held {
        sent_at: Time,
        asked: RenewalAsk,
        /// How many replicas have confirmed it.
        acknowledged: u32,
    },
    Lost(LossReason),
    Unknown,
}

/// The holds of one owner that have not ended, in the order in which they began, with what is asked of
/// all of them at each step. There may be thousands, one for each task of the owner, so the answers are
/// kept. One hold, and the lease that an acquire or a release has to say, are looked for among all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Holds {
    holds: SmallVec<[HoldRecord; 1]>,
    /// While there is more than one. A single one is looked at itself.
    index: Option<Box<HoldIndex>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct HoldIndex {
    /// How many have a guard.
    guarded: u32,
    /// How many the watchdog renews.
    renewed: u32,
    /// Those that have an end of their own.
    ends: BTreeSet<(Time, HoldId)>,
}

impl HoldIndex {
    fn of(holds: &[HoldRecord]) -> Self {
        let mut index = Self::default();
        holds.iter().for_each(|hold| index.add(hold));
        index
    }

    fn add(&mut self, hold: &HoldRecord) {
        self.guarded += u32::from(hold.is_guarded());
        self.renewed += u32::from(hold.policy.is_renewed());
        let ends = hold.policy.ends();
        self.ends.extend(ends.map(|at| (at, hold.id)));
    }

    fn remove(&mut self, hold: &HoldRecord) {
        self.guarded -= u32::from(hold.is_guarded());
        self.renewed -= u32::from(hold.policy.is_renewed());
        let ends = hold.policy.ends();
        ends.map(|at| self.ends.remove(&(at, hold.id)));
    }
}

impl Holds {
    pub(super) fn iter(&self) -> std::slice::Iter<'_, HoldRecord> {
        self.holds.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.holds.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }

    /// How many have a guard.
    pub(super) fn guarded(&self) -> u32 {
        match &self.index {
            Some(index) => index.guarded,
            None => self.iter().map(|hold| u32::from(hold.is_guarded())).sum(),
        }
    }

    /// Whether the watchdog renews any of them.
    pub(super) fn any_renewed(&self) -> bool {
        match &self.index {
            Some(index) => index.renewed > 0,
            None => self.iter().any(|hold| hold.policy.is_renewed()),
        }
    }

    /// The earliest end of those that have one of their own.
    pub(super) fn first_end(&self) -> Option<Time> {
        match &self.index {
            Some(index) => index.ends.first().map(|(at, _)| *at),
            None => self.iter().find_map(|hold| hold.policy.ends()),
        }
    }

    /// Whether one of them may still be wanted after this instant.
    pub(super) fn outlast(&self, at: Time) -> bool {
        match &self.index {
            Some(index) => {
                let latest = index.ends.last();
                index.ends.len() < self.len() || latest.is_some_and(|(end, _)| *end > at)
            }
            None => {
                let mut ends = self.iter().map(|hold| hold.policy.ends());
                ends.any(|end| end.is_none_or(|end| end > at))
            }
        }
    }

    pub(super) fn get(&self, id: HoldId) -> Option<&HoldRecord> {
        self.position(id).map(|at| &self.holds[at])
    }

    pub(super) fn push(&mut self, hold: HoldRecord) {
        if let Some(index) = &mut self.index {
            index.add(&hold);
        }
        self.holds.push(hold);
        if self.index.is_none() && self.len() > 1 {
            self.index = Some(Box::new(HoldIndex::of(&self.holds)));
        }
    }

    pub(super) fn remove(&mut self, id: HoldId) -> Option<HoldRecord> {
        let hold = self.holds.remove(self.position(id)?);
        if let Some(index) = &mut self.index {
            index.remove(&hold);
        }
        self.index.take_if(|_| self.holds.len() < 2);
        Some(hold)
    }

    /// Changes one of them. `false`: it is not there.
    pub(super) fn change(&mut self, id: HoldId, change: impl FnOnce(&mut HoldRecord)) -> bool {
        let Some(at) = self.position(id) else {
            return false;
        };
        let hold = &mut self.holds[at];
        match &mut self.index {
            Some(index) => {
                index.remove(hold);
                change(hold);
                index.add(hold);
            }
            None => change(hold),
        }
        true
    }

    /// The inner holds end first, so they are looked for from the end.
    fn position(&self, id: HoldId) -> Option<usize> {
        self.holds.iter().rposition(|hold| hold.id == id)
    }
}

impl FromIterator<HoldRecord> for Holds {
    fn from_iter<I: IntoIterator<Item = HoldRecord>>(holds: I) -> Self {
        let mut all = Self::default();
        holds.into_iter().for_each(|hold| all.push(hold));
        all
    }
}

impl IntoIterator for Holds {
    type Item = HoldRecord;
    type IntoIter = smallvec::IntoIter<[HoldRecord; 1]>;

    fn into_iter(self) -> Self::IntoIter {
        self.holds.into_iter()
    }
}

#[cfg(feature = "test-util")]
impl Holds {
    /// Checks that values which are kept twice agree.
    pub(super) fn check(&self) {
        assert_eq!(*self, self.iter().cloned().collect());
    }
}

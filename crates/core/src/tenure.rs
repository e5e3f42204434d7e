//! The holds of one owner: how long each is promised, when the next renewal is due, which were lost.
//!
//! Invariant I1: `deadline` precedes the server's expiry of the lock, and only moves forward.
//!
//! The deadline of holds that need replicas moves only to a lease that this many replicas have confirmed;
//! a lease that only the primary has, as a nested acquire leaves it, does not move it.

mod renewal;

use std::time::Duration;

use super::hold::{
    HoldRecord, HoldSnapshot, Holds, Keeper, LeasePolicy, Loss, LostHold, LostHolds,
    lease_for_deadline, local_deadline,
};
use super::values::{HoldId, LossReason, Nanos, Rules, Time};

/// Where the renewal of an owner stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum RenewalState {
    Waiting,
    InFlight,
    /// The last one has no answer; the next is due then.
    RetryAt(Time),
}

/// Where an owner stands in the server's queue, if the lock has one: it has one place, whatever the number of its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum QueueSlot {
    None,
    /// It may have one, or it was used: the next answer of a call that queues decides.
    Unknown,
    /// It has one.
    Queued,
    /// It has one under a field that it may not use any more.
    Stale,
}

/// No call of the owner has said yet how often a connection was replaced: only those of fair locks do. No `Option`, because
/// each held lock has one of these.
pub(super) const NOT_COUNTED: u16 = u16::MAX;

/// All holds of one owner.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Tenure {
    holds: Holds,
    lost: LostHolds,
    /// The reason of the latest loss.
    lost_reason: LossReason,
    /// How often a connection had been replaced without a fence when the owner got its field, as far as 16 bits say it.
    pub(super) reconnects: u16,
    deadline: Time,
    /// How many replicas must confirm a lease: what the first of these holds asked for. The others share its
    /// lease.
    replicas: u32,
    /// They have confirmed the deadline.
    confirmed: bool,
    /// The call of the first hold still waits for them: its caller does not have it.
    pending: bool,
    /// Others may be added to the hold that is there.
    pub(super) reentrant: bool,
    /// Of an owner that holds nothing. Kept beside the other small fields, where it takes no room of its own.
    pub(super) place: QueueSlot,
    /// In milliseconds, see [`place_wait`](Self::place_wait).
    place_wait: u32,
    /// Before the send of the last command that confirmed the lease.
    renewed_at: Time,
    /// The longest lease ever asked for: the server frees the lock after it by itself.
    lease_max: Nanos,
    /// When a renewal that has no answer is repeated.
    retry_at: Option<Time>,
    in_flight: bool,
    /// Renewal is overdue, and that was said.
    warned: bool,
    /// Another server has taken over, which may have an older expiry than was promised.
    behind: bool,
    /// Others hold the lock too, and may shorten its lease: nothing is certain for longer than the watchdog's timeout after
    /// the last confirmation, and fixed leases are raised again as if they were renewed.
    shared: bool,
}

impl Tenure {
    pub(super) fn new(now: Time, shared: bool) -> Self {
        Self {
            holds: Holds::default(),
            lost: LostHolds::default(),
            lost_reason: LossReason::Gone,
            reconnects: NOT_COUNTED,
            deadline: now,
            replicas: 0,
            confirmed: true,
            pending: false,
            reentrant: true,
            place: QueueSlot::None,
            place_wait: 0,
            renewed_at: now,
            lease_max: Nanos::ZERO,
            retry_at: None,
            in_flight: false,
            warned: false,
            behind: false,
            shared,
        }
    }

    /// An acquire begins that may leave a place which counts for `wait` after its turn has come. An owner has one place for
    /// all its calls: it counts for the longest of them.
    pub(super) fn asks_for_place(&mut self, wait: Duration) {
        // Rounded up, as on the wire.
        let wait = wait.as_nanos().div_ceil(1_000_000);
        let wait = u32::try_from(wait).unwrap_or(u32::MAX).max(1);
        self.place_wait = match self.place {
            QueueSlot::None => wait,
            _ => self.place_wait.max(wait),
        };
    }

    /// For how long the owner's place counts after its turn has come.
    pub(super) fn place_wait(&self) -> Duration {
        Duration::from_millis(self.place_wait.into())
    }

    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.holds.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn guarded(&self) -> u32 {
        self.holds.guarded()
    }

    pub(super) fn is_held(&self) -> bool {
        !self.holds.is_empty()
    }

    /// Neither held nor lost with an owner that has yet to see it.
    pub(super) fn is_spent(&self) -> bool {
        self.holds.is_empty() && self.lost.is_empty()
    }

    pub(super) fn lost_reason(&self) -> LossReason {
        self.lost_reason
    }

    /// Why an outer hold is no more, while its guard is still open and nothing else is held.
    pub(super) fn lost(&self) -> Option<LossReason> {
        (self.holds.is_empty() && !self.lost.is_empty()).then_some(self.lost_reason)
    }

    pub(super) fn lease_max(&self) -> Duration {
        self.lease_max.into()
    }

    pub(super) fn deadline(&self) -> Time {
        self.deadline
    }

    pub(super) fn replicas(&self) -> u32 {
        self.replicas
    }

    /// Whether as many replicas as it needs have confirmed the deadline.
    pub(super) fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    /// The count that a release goes to. A section whose hold reached its limit may still be running,
    /// and nothing is unlocked under it: until its guard is gone the field stays.
    pub(super) fn target(&self) -> u32 {
        self.count()
            .max(u32::from(self.lost.iter().any(LostHold::section_may_run)))
    }

    /// A lease may be at the server for which there is no answer.
    pub(super) fn note_possible_lease(&mut self, lease: Duration) {
        self.lease_max = self.lease_max.max(lease.into());
    }

    /// Adds a hold whose lease counts from `sent_at`.
    pub(super) fn add(
        &mut self,
        id: HoldId,
        policy: LeasePolicy,
        sent_at: Time,
        lease: Duration,
        replicas: u32,
        rules: &Rules,
    ) {
        if self.holds.is_empty() {
            self.renewed_at = sent_at;
            self.set_renewal(RenewalState::Waiting);
            self.replicas = replicas;
            // Its caller gets it only if they confirm this lease.
            self.confirm(sent_at, lease, replicas, rules);
            self.confirmed = replicas == 0;
            self.pending = replicas > 0;
        } else {
            self.confirm(sent_at, lease, 0, rules);
        }
        self.holds.push(HoldRecord {
            id,
            policy,
            keeper: Keeper::Guard,
        });
    }

    /// The server has confirmed at least `lease` from `sent_at` on, for an acquire or an `extend`, and so
    /// have `acknowledged` replicas. `false`: those are too few.
    fn confirm(
        &mut self,
        sent_at: Time,
        lease: Duration,
        acknowledged: u32,
        rules: &Rules,
    ) -> bool {
        // A shorter lease than a renewal asks for must not put the renewal off: short nested holds
        // would keep it from ever coming.
        let renews = self
            .renewal_lease(sent_at, rules)
            .is_none_or(|asked| lease >= asked);
        let promised = self.promise(sent_at, lease, acknowledged, rules);
        if promised && renews {
            self.confirmed_at(sent_at);
        }
        promised
    }

    /// Moves the deadline to this lease if enough replicas have confirmed it. Nothing else moves it.
    pub(super) fn promise(
        &mut self,
        sent_at: Time,
        lease: Duration,
        acknowledged: u32,
        rules: &Rules,
    ) -> bool {
        self.note_possible_lease(lease);
        if acknowledged < self.replicas {
            return false;
        }
        let certain = self.certain(lease, rules);
        self.deadline = self.deadline.max(local_deadline(sent_at, certain));
        self.confirmed = true;
        true
    }

    /// For how much of a lease nothing that others do ends it.
    pub(super) fn certain(&self, lease: Duration, rules: &Rules) -> Duration {
        match self.shared {
            true => lease.min(rules.watchdog_timeout),
            false => lease,
        }
    }

    /// Some hold may be wanted for longer than replicas have confirmed: a nested acquire has raised the lease
    /// on the primary.
    fn is_ahead(&self) -> bool {
        self.replicas > 0 && self.holds.outlast(self.deadline)
    }

    /// The server had what it should have at `sent_at`: the next renewal is a period away.
    fn confirmed_at(&mut self, sent_at: Time) {
        self.renewed_at = self.renewed_at.max(sent_at);
        self.warned = false;
        self.retry_at = None;
    }

    /// Replicas have confirmed what was taken, or a fixed lease was extended: the end of the hold moves,
    /// never back. `false`: it has ended, or those replicas are too few.
    pub(super) fn confirmed(
        &mut self,
        id: HoldId,
        sent_at: Time,
        lease: Duration,
        acknowledged: u32,
        rules: &Rules,
    ) -> bool {
        if !self.has(id) || !self.confirm(sent_at, lease, acknowledged, rules) {
            return false;
        }
        self.hand_out(id);
        self.holds.change(id, |hold| {
            if let LeasePolicy::Fixed { until, .. } = &mut hold.policy {
                *until = (*until).max(local_deadline(sent_at, lease));
            }
        })
    }

    /// The call that has taken this hold returns it to its caller.
    pub(super) fn hand_out(&mut self, id: HoldId) {
        self.pending &= self.first() != Some(id);
    }

    fn first(&self) -> Option<HoldId> {
        self.holds.iter().next().map(|hold| hold.id)
    }

    /// Nothing is held but what a call waits with for replicas. It may not be polled any more, so its hold is
    /// not kept beyond its lease.
    fn only_pending(&self) -> bool {
        self.pending && self.count() == 1
    }

    /// Takes a hold out because its owner releases it. Returns until when it would be valid; `None`: it has ended before.
    pub(super) fn take_out(&mut self, id: HoldId) -> Option<Time> {
        self.hand_out(id);
        let hold = self.holds.remove(id)?;
        Some(hold.valid_until(self.deadline))
    }

    /// Whether a hold has not ended.
    pub(super) fn has(&self, id: HoldId) -> bool {
        self.holds.get(id).is_some()
    }

    /// Why a hold was lost that its owner has not seen the end of.
    pub(super) fn loss_of(&self, id: HoldId) -> Option<LossReason> {
        self.lost
            .iter()
            .find(|lost| lost.id == id)
            .map(|lost| lost.reason)
    }

    /// The owner has seen that a hold was lost. `true` if the last section that ran on behind its
    /// limit ended with that: the field need not stay any longer.
    pub(super) fn acknowledge(&mut self, id: HoldId) -> bool {
        let before = self.target();
        self.lost.retain(|lost| lost.id != id);
        self.target() != before
    }

    pub(super) fn detach(&mut self, id: HoldId) {
        self.holds.change(id, |hold| hold.keeper = Keeper::Detached);
        for lost in self.lost.iter_mut().filter(|lost| lost.id == id) {
            lost.keeper = Keeper::Detached;
        }
        self.lost.retain(|lost| !lost.is_forgotten());
    }

    /// Leaves a hold to its lease.
    pub(super) fn leave(&mut self, id: HoldId) {
        self.detach(id);
        self.holds.change(id, |hold| hold.keeper = Keeper::Lease);
    }

    pub(super) fn is_left_to_its_lease(&self) -> bool {
        self.holds.iter().all(|hold| hold.keeper == Keeper::Lease)
    }

    /// The latest detached hold that no unlock is at yet, or a lost one that no unlock has asked for.
    pub(super) fn claim_detached(&mut self) -> Option<HoldId> {
        let mut latest = self.holds.iter().rev();
        let held = latest.find(|hold| hold.keeper == Keeper::Detached);
        if let Some(id) = held.map(|hold| hold.id) {
            self.holds.change(id, |hold| {
                hold.keeper = Keeper::Unlock;
            });
            return Some(id);
        }
        self.lost
            .iter()
            .find(|lost| lost.keeper.is_detached())
            .map(|lost| lost.id)
    }

    pub(super) fn detached(&self) -> Vec<HoldId> {
        let is_left =
            |hold: &&HoldRecord| hold.keeper.is_detached() && hold.keeper != Keeper::Lease;
        self.holds
            .iter()
            .filter(is_left)
            .map(|hold| hold.id)
            .collect()
    }

    pub(super) fn lose(&mut self, reason: LossReason) -> Vec<Loss> {
        self.lose_if(|_| Some(reason))
    }

    /// Ends the holds that are over by the clock.
    pub(super) fn expire(&mut self, now: Time) -> Vec<Loss> {
        let deadline = self.deadline;
        self.lose_if(|hold| hold.over(deadline, now))
    }

    fn lose_if(&mut self, mut reason: impl FnMut(&HoldRecord) -> Option<LossReason>) -> Vec<Loss> {
        let (mut losses, first) = (Vec::new(), self.first());
        for hold in std::mem::take(&mut self.holds) {
            let Some(reason) = reason(&hold) else {
                self.holds.push(hold);
                continue;
            };
            let valid_until = hold.valid_until(self.deadline);
            let HoldRecord { id, policy, keeper } = hold;
            let is_news = !(keeper.is_detached() && reason == LossReason::LeaseOver);
            losses.push(Loss {
                id,
                reason,
                valid_until,
                is_news,
            });
            self.lost_reason = reason;
            let lost = LostHold {
                id,
                reason,
                keeper,
                bounded: policy.ends().is_some(),
            };
            if !lost.is_forgotten() {
                self.lost.push(lost);
            }
        }
        self.pending &= self.first() == first;
        losses
    }

    /// When the next hold is over if nothing happens.
    pub(super) fn expires_at(&self) -> Option<Time> {
        let ends = self.holds.first_end().into_iter();
        self.is_held().then(|| ends.fold(self.deadline, Time::min))
    }

    /// The longest time still promised to the holds that are left.
    pub(super) fn promised(&self, now: Time, rules: &Rules) -> Duration {
        let left = self.holds.iter().map(|hold| self.left(hold, now, rules));
        left.fold(LEASE_MIN, Duration::max)
    }

    /// The lease that a hold still needs.
    fn left(&self, hold: &HoldRecord, now: Time, rules: &Rules) -> Duration {
        let left = hold.policy.left(now, rules);
        match hold.policy {
            // What is said lowers a lease that is shared.
            LeasePolicy::Fixed { .. } if self.shared => lease_for_deadline(left),
            LeasePolicy::Fixed { .. } | LeasePolicy::Watchdog { .. } => left,
        }
    }

    /// Whether a hold is looked at from time to time.
    fn is_renewed(&self, policy: LeasePolicy) -> bool {
        self.shared || policy.is_renewed()
    }

    pub(super) fn snapshot(&self, now: Time, id: HoldId, rules: &Rules) -> Option<HoldSnapshot> {
        let hold = self.holds.get(id)?;
        Some(HoldSnapshot {
            deadline: self.deadline,
            at_risk_from: self
                .at_risk_from(rules)
                .filter(|_| self.is_renewed(hold.policy)),
            ends: hold.policy.ends(),
            over: hold.over(self.deadline, now),
            policy: hold.policy,
            replicas: self.replicas,
        })
    }
}

#[cfg(feature = "test-util")]
impl Tenure {
    pub(super) fn check(&self) {
        self.holds.check();
    }
}

/// The lease to send when next to nothing is promised any more.
const LEASE_MIN: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests;

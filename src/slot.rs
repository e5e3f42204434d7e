//! What one owner has of one lock: its holds, its lease, and the operation that is under way for
//! it.
//!
//! Plain data and whole transitions, always called under the mutex of the entry; no I/O, no
//! waiting.
//!
//! Invariants (numbers as in `docs/architecture.md`):
//! I1  `deadline` lies before the server's expiry of the lock, and only moves forward.
//! I2  At most one acquire is under way, and none while a release is.
//! I3  When nothing is under way, the count in Redis is `target()`, unless the lease has ended it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::error::LossReason;
use crate::hold::{Ending, Hold, HoldStatus, LeasePolicy, LostHold};

/// One owner of one lock.
#[derive(Debug)]
pub(crate) struct Slot {
    /// The field in Redis; without a fence it may differ from the owner's own.
    pub(crate) field: Arc<str>,
    /// Tells this taking of the lock from every other one of this client.
    pub(crate) generation: u64,
    pub(crate) holds: Vec<Hold>,
    /// The server keeps the lock at least until here.
    pub(crate) deadline: Instant,
    /// Before the send of the last command that confirmed the lease.
    pub(crate) renewed_at: Instant,
    /// The longest lease ever asked for: when a release is given up, the server frees the lock by
    /// itself.
    pub(crate) lease_max: Duration,
    /// Lost holds whose guard is still open, or that were detached and nobody has asked for yet.
    lost_open: Vec<LostHold>,
    pub(crate) lost_reason: LossReason,
    /// How often holds were lost: an acquire that sees it move had its outer hold taken away.
    pub(crate) losses: u64,
    /// A renewal is under way.
    pub(crate) looking: bool,
    /// A renewal that brought no answer is repeated then.
    pub(crate) retry_at: Option<Instant>,
    /// Renewal is overdue, and that was said.
    pub(crate) overdue: bool,

    /// An acquire is under way.
    pub(crate) acquiring: bool,
    /// It is an attempt past the queue, which keeps nobody from attempting as well.
    pub(crate) past_queue: bool,
    /// Unlocks that are under way.
    pub(crate) releasing: u32,
    /// Changes when the background takes over the unlocks that are under way: whoever began one
    /// earlier has no part in the slot any more.
    pub(crate) epoch: u64,
    /// When an operation of this owner last began or ended: what comes after it waits from then on.
    pub(crate) moved_at: Instant,
    /// The background releaser works on this slot.
    pub(crate) background: bool,
    /// Releases were under way at once: the order in which the server got them is not known, and
    /// the one that finds the field gone was served by another.
    pub(crate) overlapped: bool,
    /// The count in Redis is known to be `holds.len()`.
    pub(crate) in_sync: bool,
    /// Told when an operation of this slot ends.
    pub(crate) place: Arc<Notify>,
}

impl Slot {
    pub(crate) fn new(field: Arc<str>, epoch: u64, now: Instant) -> Self {
        Self {
            field,
            generation: 0,
            holds: Vec::new(),
            deadline: now,
            renewed_at: now,
            lease_max: Duration::ZERO,
            lost_open: Vec::new(),
            lost_reason: LossReason::Gone,
            losses: 0,
            looking: false,
            retry_at: None,
            overdue: false,
            acquiring: false,
            past_queue: false,
            releasing: 0,
            epoch,
            moved_at: now,
            background: false,
            overlapped: false,
            in_sync: true,
            place: Arc::default(),
        }
    }

    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.holds.len()).unwrap_or(u32::MAX)
    }

    /// The count that a release goes to. A section whose hold reached its limit may still be
    /// running, and nothing is unlocked under it: until its guard is gone the field stays.
    pub(crate) fn target(&self) -> u32 {
        let runs_on = |lost: &LostHold| {
            !lost.detached && lost.status.ending() == Some(Ending::Lost(LossReason::MaxHold))
        };
        self.count()
            .max(u32::from(self.lost_open.iter().any(runs_on)))
    }

    pub(crate) fn is_held(&self) -> bool {
        !self.holds.is_empty()
    }

    /// Nothing is under way that could change what Redis has of this owner.
    pub(crate) fn is_free(&self) -> bool {
        !self.acquiring && self.releasing == 0 && !self.background
    }

    /// Whether this owner keeps the head of the queue from attempting: it has the lock, or may be
    /// about to give it up.
    pub(crate) fn keeps_others_waiting(&self) -> bool {
        let attempting =
            self.acquiring && self.past_queue && self.releasing == 0 && !self.background;
        self.is_held() || !(self.is_free() || attempting)
    }

    /// Unlocks are under way and nothing has happened since `limit` ago: their callers do not poll
    /// them.
    pub(crate) fn is_stuck_in_release(&self, now: Instant, limit: Duration) -> bool {
        self.releasing > 0 && !self.background && !self.acquiring && self.moved_at + limit <= now
    }

    /// Nothing is left to remember.
    pub(crate) fn is_spent(&self) -> bool {
        !self.is_held() && self.is_free() && self.lost_open.is_empty()
    }

    /// Why an outer hold of this owner is no more, while its guard is still open and nothing else
    /// is held.
    pub(crate) fn lost(&self) -> Option<LossReason> {
        (!self.is_held() && !self.lost_open.is_empty()).then_some(self.lost_reason)
    }

    /// An acquire is under way from now on.
    pub(crate) fn begin_acquire(&mut self, past_queue: bool, now: Instant) {
        self.acquiring = true;
        self.past_queue = past_queue;
        self.moved_at = now;
    }

    /// Adds a hold whose lease counts from `sent_at`.
    pub(crate) fn add(
        &mut self,
        hold: Hold,
        sent_at: Instant,
        lease: Duration,
        watchdog_timeout: Duration,
    ) {
        if !self.is_held() {
            self.renewed_at = sent_at;
        }
        self.confirm(sent_at, lease, watchdog_timeout);
        self.holds.push(hold);
    }

    /// The server has confirmed at least `lease` from `sent_at` on, to somebody who took or
    /// extended a hold.
    pub(crate) fn confirm(
        &mut self,
        sent_at: Instant,
        lease: Duration,
        watchdog_timeout: Duration,
    ) {
        // A shorter lease than a renewal asks for must not put the renewal off: short nested holds
        // would keep it from ever coming.
        let renews = self
            .renewal(sent_at, watchdog_timeout)
            .is_none_or(|asked| lease >= asked);
        self.promise(sent_at, lease);
        if renews {
            self.looked_at(sent_at);
        }
    }

    /// The server keeps the lock for at least `lease` from `sent_at` on.
    pub(crate) fn promise(&mut self, sent_at: Instant, lease: Duration) {
        self.deadline = self.deadline.max(local_deadline(sent_at, lease));
        self.lease_max = self.lease_max.max(lease);
    }

    /// The server was asked at `sent_at` and has what it should have: the next look is a period
    /// away.
    pub(crate) fn looked_at(&mut self, sent_at: Instant) {
        self.renewed_at = self.renewed_at.max(sent_at);
        self.overdue = false;
        self.retry_at = None;
    }

    /// Takes a hold out because its owner gives it back.
    pub(crate) fn give_back(&mut self, status: &Arc<HoldStatus>) -> bool {
        let Some(nth) = self
            .holds
            .iter()
            .position(|hold| Arc::ptr_eq(&hold.status, status))
        else {
            return false;
        };
        self.holds.remove(nth).status.end(Ending::Released);
        self.in_sync = false;
        true
    }

    /// The latest detached hold that nobody is giving back yet, or a lost one that nobody has asked
    /// for.
    pub(crate) fn claim_detached(&mut self) -> Option<Arc<HoldStatus>> {
        let held = self
            .holds
            .iter_mut()
            .rev()
            .find(|hold| hold.detached && !hold.claimed);
        if let Some(hold) = held {
            hold.claimed = true;
            return Some(Arc::clone(&hold.status));
        }
        self.lost_open
            .iter()
            .find(|lost| lost.detached)
            .map(|lost| Arc::clone(&lost.status))
    }

    pub(crate) fn detach(&mut self, status: &Arc<HoldStatus>) {
        for hold in &mut self.holds {
            hold.detached |= Arc::ptr_eq(&hold.status, status);
        }
        for lost in &mut self.lost_open {
            lost.detached |= Arc::ptr_eq(&lost.status, status);
        }
        self.lost_open.retain(|lost| !lost.is_forgotten());
    }

    /// The owner has seen that this hold was lost. Answers whether that was the last section that
    /// ran on behind its limit, so that the field need not stay any longer.
    pub(crate) fn acknowledge(&mut self, status: &Arc<HoldStatus>) -> bool {
        let before = self.target();
        self.lost_open
            .retain(|lost| !Arc::ptr_eq(&lost.status, status));
        self.target() != before
    }

    /// Ends every hold, and answers how many there were.
    pub(crate) fn lose(&mut self, reason: LossReason) -> usize {
        self.lose_if(|_| Some(reason))
    }

    /// Ends the holds whose promise is over; answers the reasons, and whether the hold was
    /// detached.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<(LossReason, bool)> {
        let deadline = self.deadline;
        let mut reasons = Vec::new();
        self.lose_if(|hold| {
            let reason = match hold.mode {
                mode if mode.ends().is_some_and(|ends| ends <= now) => match mode {
                    LeasePolicy::Watchdog { .. } => LossReason::MaxHold,
                    LeasePolicy::Fixed { until, limit } if limit == Some(until) => {
                        LossReason::MaxHold
                    }
                    LeasePolicy::Fixed { .. } => LossReason::LeaseOver,
                },
                _ if deadline <= now => LossReason::NotRenewed,
                _ => return None,
            };
            reasons.push((reason, hold.detached));
            Some(reason)
        });
        reasons
    }

    fn lose_if(&mut self, mut reason: impl FnMut(&Hold) -> Option<LossReason>) -> usize {
        let before = self.holds.len();
        let mut kept = Vec::with_capacity(before);
        for hold in self.holds.drain(..) {
            match reason(&hold) {
                None => kept.push(hold),
                Some(reason) => {
                    hold.status.end(Ending::Lost(reason));
                    self.lost_reason = reason;
                    let bounded = hold.mode.ends().is_some();
                    let lost = LostHold {
                        status: hold.status,
                        detached: hold.detached,
                        bounded,
                    };
                    if !lost.is_forgotten() {
                        self.lost_open.push(lost);
                    }
                }
            }
        }
        self.holds = kept;
        let lost = before - self.holds.len();
        if lost > 0 {
            self.losses += 1;
            self.in_sync = false;
        }
        lost
    }

    /// The longest time still promised to the holds that are left.
    pub(crate) fn promised(&self, now: Instant, watchdog_timeout: Duration) -> Duration {
        self.holds
            .iter()
            .map(|hold| left(hold.mode, now, watchdog_timeout))
            .max()
            .unwrap_or(LEASE_MIN)
            .max(LEASE_MIN)
    }

    /// The lease a renewal asks for; `None` if no hold is renewed.
    pub(crate) fn renewal(&self, now: Instant, watchdog_timeout: Duration) -> Option<Duration> {
        self.holds
            .iter()
            .filter(|hold| matches!(hold.mode, LeasePolicy::Watchdog { .. }))
            .map(|hold| left(hold.mode, now, watchdog_timeout))
            .max()
            .map(|lease| lease.max(LEASE_MIN))
    }

    /// Without a renewal since then, a watchdog hold is at risk.
    pub(crate) fn at_risk_from(&self, watchdog_timeout: Duration) -> Option<Instant> {
        let renewed = self
            .holds
            .iter()
            .any(|hold| matches!(hold.mode, LeasePolicy::Watchdog { .. }));
        renewed.then(|| self.renewed_at + watchdog_timeout * 2 / 3)
    }

    /// When the renewal registry has to look at this slot again, whatever is under way.
    pub(crate) fn watched_at(&self, watchdog_timeout: Duration) -> Instant {
        let ends = self.holds.iter().filter_map(|hold| hold.mode.ends()).min();
        let risk = self
            .at_risk_from(watchdog_timeout)
            .filter(|_| !self.overdue);
        [ends, risk]
            .into_iter()
            .flatten()
            .fold(self.deadline, Instant::min)
    }

    /// When the next renewal is due.
    pub(crate) fn due_at(&self, watchdog_timeout: Duration) -> Instant {
        self.retry_at
            .unwrap_or_else(|| self.renewed_at + watchdog_timeout / 3)
    }
}

/// The local end of a lease: before the server's own expiry, by a margin for the drift of two
/// clocks.
pub(crate) fn local_deadline(sent_at: Instant, lease: Duration) -> Instant {
    sent_at + lease.saturating_sub(lease / 100 + Duration::from_millis(2))
}

/// The lease whose local end is this far away: what the margin takes off is put on.
fn lease_for_deadline(left: Duration) -> Duration {
    (left + Duration::from_millis(2)) * 100 / 99 + Duration::from_millis(1)
}

fn left(mode: LeasePolicy, now: Instant, watchdog_timeout: Duration) -> Duration {
    match mode {
        LeasePolicy::Watchdog { limit: None } => watchdog_timeout,
        LeasePolicy::Watchdog { limit: Some(limit) } => {
            lease_for_deadline(limit.saturating_duration_since(now)).min(watchdog_timeout)
        }
        LeasePolicy::Fixed { until, .. } => until.saturating_duration_since(now),
    }
}

/// What is sent when next to nothing is promised any more.
const LEASE_MIN: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    const WATCHDOG: Duration = Duration::from_secs(30);

    fn hold(mode: LeasePolicy) -> Hold {
        Hold {
            status: Arc::default(),
            mode,
            detached: false,
            claimed: false,
        }
    }

    fn slot_of(modes: &[LeasePolicy], now: Instant) -> Slot {
        let mut slot = Slot::new("c:1".into(), 1, now);
        for &mode in modes {
            slot.add(hold(mode), now, WATCHDOG, WATCHDOG);
        }
        slot
    }

    #[tokio::test(start_paused = true)]
    async fn the_deadline_lies_before_the_servers_and_only_moves_forward() {
        let now = Instant::now();
        let mut slot = slot_of(&[LeasePolicy::Watchdog { limit: None }], now);
        assert_eq!(slot.deadline, now + Duration::from_millis(29_698));
        slot.promise(now, Duration::from_secs(1));
        assert_eq!(slot.deadline, now + Duration::from_millis(29_698));
    }

    #[tokio::test(start_paused = true)]
    async fn a_fixed_hold_ends_by_itself_while_the_others_live_on() {
        let now = Instant::now();
        let until = now + Duration::from_secs(1);
        let fixed = LeasePolicy::Fixed { until, limit: None };
        let mut slot = slot_of(&[LeasePolicy::Watchdog { limit: None }, fixed], now);
        assert!(slot.expire(now).is_empty());
        assert_eq!(slot.expire(until), [(LossReason::LeaseOver, false)]);
        assert_eq!((slot.count(), slot.lost()), (1, None));
        assert_eq!(
            slot.expire(slot.deadline),
            [(LossReason::NotRenewed, false)]
        );
        assert_eq!(slot.lost(), Some(LossReason::NotRenewed));
        assert!(!slot.is_spent(), "the guards of lost holds are still open");
    }

    #[tokio::test(start_paused = true)]
    async fn short_nested_holds_do_not_put_off_the_renewal() {
        let now = Instant::now();
        let mut slot = slot_of(&[LeasePolicy::Watchdog { limit: None }], now);
        let due = slot.due_at(WATCHDOG);
        let later = now + Duration::from_secs(9);
        let until = later + Duration::from_millis(10);
        slot.add(
            hold(LeasePolicy::Fixed { until, limit: None }),
            later,
            Duration::from_millis(10),
            WATCHDOG,
        );
        assert_eq!(slot.due_at(WATCHDOG), due);
        slot.add(
            hold(LeasePolicy::Watchdog { limit: None }),
            later,
            WATCHDOG,
            WATCHDOG,
        );
        assert_eq!(
            slot.due_at(WATCHDOG),
            later + WATCHDOG / 3,
            "this one has renewed it"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_cuts_the_lease_that_a_renewal_asks_for() {
        let now = Instant::now();
        let limit = Some(now + Duration::from_secs(40));
        let mut slot = slot_of(&[LeasePolicy::Watchdog { limit }], now);
        assert_eq!(slot.renewal(now, WATCHDOG), Some(WATCHDOG));
        let later = now + Duration::from_secs(20);
        let lease = slot.renewal(later, WATCHDOG).expect("renewed");
        assert!(lease > Duration::from_secs(20) && lease < Duration::from_millis(20_300));
        slot.promise(later, lease);
        slot.looked_at(later);
        assert!(
            slot.deadline >= now + Duration::from_secs(40),
            "the limit comes first"
        );
        assert_eq!(slot.due_at(WATCHDOG), later + WATCHDOG / 3);
        assert_eq!(slot.watched_at(WATCHDOG), now + Duration::from_secs(40));
        assert_eq!(
            slot.expire(now + Duration::from_secs(40))[0],
            (LossReason::MaxHold, false)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_promised_is_the_longest_of_the_holds_that_are_left() {
        let now = Instant::now();
        let long = LeasePolicy::Fixed {
            until: now + Duration::from_secs(90),
            limit: None,
        };
        let mut slot = slot_of(&[LeasePolicy::Watchdog { limit: None }, long], now);
        assert_eq!(slot.promised(now, WATCHDOG), Duration::from_secs(90));
        let status = Arc::clone(&slot.holds[1].status);
        assert!(slot.give_back(&status));
        assert_eq!(status.ending(), Some(Ending::Released));
        assert_eq!(slot.promised(now, WATCHDOG), WATCHDOG);
        assert!(!slot.give_back(&status), "a hold is given back once");
    }
}

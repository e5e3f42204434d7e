//! What the oracle is told, and its sums.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redisson_lock::LossReason;

/// What `docs/guarantees.md` promises, and with which settings the clients run.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    pub watchdog_timeout: Duration,
    /// A loss is reported so long behind the switch.
    pub reported_within: Duration,
}

/// A lock that is judged.
#[derive(Debug, Clone)]
pub struct Judged {
    pub name: String,
    pub slot: u16,
    /// Taken only with all replicas: no takeover may lose it.
    pub synced: bool,
}

/// How a section ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Released,
    Lost(LossReason),
}

/// One stay of an owner inside of a lock.
#[derive(Debug, Clone)]
pub struct Section {
    pub id: u64,
    pub lock: usize,
    /// The field in the lock's hash.
    pub owner: Arc<str>,
    pub begin: Instant,
    pub leased: bool,
    /// As last seen.
    pub valid_until: Instant,
    pub(super) end: Option<(Instant, Ending)>,
}

impl Section {
    /// Until when its owner had reason to believe that it was inside.
    pub(super) fn until(&self, now: Instant) -> Instant {
        let over = self.valid_until.max(self.begin);
        match self.end {
            None => now.min(over),
            // `state()` compares with the clock, however late a task is woken.
            Some((at, _)) if self.leased => at.min(over),
            Some((at, Ending::Lost(LossReason::NotRenewed))) => at.min(over),
            Some((at, _)) => at,
        }
    }
}

/// Another server has taken over some locks.
#[derive(Debug, Clone)]
pub struct Takeover {
    /// When what led to it began.
    pub from: Instant,
    /// When it was the primary, or in the case of Sentinel announced as such.
    pub at: Instant,
    pub slots: Vec<RangeInclusive<u16>>,
    /// Whether holds may be lost by it: not by a planned one in a cluster.
    pub may_lose: bool,
}

/// Sums for the last line.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sums {
    pub sections: u64,
    pub overlaps_allowed: u64,
    pub overlaps_not_allowed: u64,
    pub failovers: u64,
    /// Holds that a takeover lost.
    pub lost: u64,
    /// Of those, the longest time from the switch to the report.
    pub longest: Duration,
    /// Holds that an outage outlasted: reported at their local deadline.
    pub not_renewed: u64,
}

//! What the oracle is told, and its sums.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redisson_lock::{LossReason, RefusedKind};

/// What `docs/guarantees.md` promises, and with which settings the clients run.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    pub watchdog_timeout: Duration,
    pub command_timeout: Duration,
    /// How long after the switch a loss is reported, at most.
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

/// What became of the release of a section that ended without a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    Clean,
    Lost,
    /// No answer, or nobody waited for one.
    Unknown,
}

/// Why a call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    NoAnswer,
    Refused(RefusedKind),
    TooFewReplicas,
    /// A nested call in this section: its hold was lost.
    Lost(u64),
    /// Nothing that servers do leads to it.
    Other,
}

/// What does not work for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// The primary is dead, stands still, or is being replaced.
    Primary,
    /// A primary says that the cluster is down.
    Cluster,
    /// A hash slot is on its way.
    Move,
    /// A replica is away, or has not caught up.
    Replicas,
}

/// What does not work, and for which hash slots.
#[derive(Debug, Clone)]
pub struct Outage {
    pub broken: Broken,
    pub slots: Slots,
    pub from: Instant,
    /// `None`: until everything is whole.
    pub until: Option<Instant>,
}

impl Outage {
    pub fn new(broken: Broken, slots: &Slots, from: Instant, until: Option<Instant>) -> Self {
        let slots = slots.clone();
        Self {
            broken,
            slots,
            from,
            until,
        }
    }
}

pub type Slots = Vec<RangeInclusive<u16>>;

pub fn all_slots() -> Slots {
    vec![0..=u16::MAX]
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
    /// And when its answer came.
    pub(super) release: Option<(Instant, Release)>,
}

impl Section {
    /// When its owner went out: of itself, or because it was informed of the loss.
    pub(super) fn left(&self) -> Instant {
        self.end.map_or(self.begin, |(at, _)| at)
    }

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
    /// Until when the former primary may have granted and released: `at`, if it was dead by then.
    pub former_until: Instant,
    pub slots: Slots,
    /// Whether holds may be lost by it: not by a planned one in a cluster.
    pub may_lose: bool,
}

/// Sums for the last line.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sums {
    pub sections: u64,
    pub overlaps_allowed: u64,
    /// Of those, how many had a side that was informed of its loss,
    pub with_a_loss: u64,
    /// and a release that the former primary had executed. Of the others it is not known.
    pub released_before: u64,
    pub overlaps_not_allowed: u64,
    pub failovers: u64,
    /// Holds that a takeover lost.
    pub lost: u64,
    /// Of those, the longest time from the switch to the report.
    pub longest: Duration,
    /// Holds that an outage outlasted: reported at their local deadline.
    pub not_renewed: u64,
    /// Calls that failed, each explained by an outage: without an answer, refused, without their replicas.
    pub no_answer: u64,
    pub refused: u64,
    pub too_few_replicas: u64,
    /// The longest time from the end of such an outage to the error.
    pub failed_behind: Duration,
    /// Open sections that were compared with the servers.
    pub compared: u64,
    /// The longest time that something was late for which the machine was blamed.
    pub credit: Duration,
}

//! One hold: how long it is promised, and whether and how it has ended. Plain data.

use std::sync::{Arc, OnceLock};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::LossReason;

/// How long a hold is promised to its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeasePolicy {
    /// The watchdog renews it, at most until `limit`.
    Watchdog { limit: Option<Instant> },
    /// It ends by itself; only `extend` moves the end, at most to `limit`.
    Fixed {
        until: Instant,
        limit: Option<Instant>,
    },
}

impl LeasePolicy {
    /// When the hold is over whatever the server says.
    pub(crate) fn ends(&self) -> Option<Instant> {
        match *self {
            Self::Watchdog { limit } => limit,
            Self::Fixed { until, .. } => Some(until),
        }
    }
}

/// How a hold ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Released,
    Lost(LossReason),
}

/// What a hold and its guard share: whether and how the hold ended. It ends once.
#[derive(Debug, Default)]
pub(crate) struct HoldStatus {
    ending: OnceLock<Ending>,
    ended: CancellationToken,
}

impl HoldStatus {
    pub(crate) fn ending(&self) -> Option<Ending> {
        self.ending.get().copied()
    }

    /// Cancelled when the hold has ended, in whichever way.
    pub(crate) fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    pub(crate) fn end(&self, ending: Ending) {
        let first = self.ending.set(ending).is_ok();
        debug_assert!(first, "a hold ends once");
        self.ended.cancel();
    }
}

/// One successful taking of the lock.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) status: Arc<HoldStatus>,
    pub(crate) mode: LeasePolicy,
    pub(crate) detached: bool,
    /// Detached, and somebody is giving it back.
    pub(crate) claimed: bool,
}

/// A hold that was lost.
#[derive(Debug)]
pub(crate) struct LostHold {
    pub(crate) status: Arc<HoldStatus>,
    pub(crate) detached: bool,
    /// It had an end of its own.
    pub(crate) bounded: bool,
}

impl LostHold {
    /// A hold that was detached with an end of its own is left to it: nobody needs to come back for
    /// it.
    pub(crate) fn is_forgotten(&self) -> bool {
        self.detached && self.bounded
    }
}

//! What the server has last said of a lock.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::time::Instant;

/// What became of the latest attempt of any call of this client, so that a call which was never sent can tell a holder
/// from an outage.
#[derive(Default)]
pub(crate) struct LatestAnswer {
    at: Mutex<Option<Instant>>,
    has_failed: AtomicBool,
}

impl LatestAnswer {
    /// The server has said whether the lock is held.
    pub(crate) fn answered(&self) {
        *self.at.lock() = Some(Instant::now());
        self.has_failed.store(false, Ordering::Relaxed);
    }

    /// An attempt was not answered, or refused for a while.
    pub(crate) fn failed(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
    }

    /// When it has last said so.
    pub(crate) fn answered_at(&self) -> Option<Instant> {
        *self.at.lock()
    }

    /// Whether it has since then.
    pub(crate) fn answered_since(&self, then: Instant) -> bool {
        self.answered_at().is_some_and(|at| then <= at)
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }
}

//! What the server has last said of a lock.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// What became of the latest attempt of any call of this client, so that a call which was never sent can tell a holder
/// from an outage.
#[derive(Default)]
pub(crate) struct LatestAnswer {
    /// How many answers there were.
    answers: AtomicU32,
    has_failed: AtomicBool,
}

impl LatestAnswer {
    /// The server has said whether the lock is held.
    pub(crate) fn answered(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
        self.has_failed.store(false, Ordering::Relaxed);
    }

    /// An attempt was not answered, or refused for a while.
    pub(crate) fn failed(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
    }

    /// How many answers there were: more than before, and a failure is over.
    pub(crate) fn answers(&self) -> u32 {
        self.answers.load(Ordering::Relaxed)
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }
}

//! What a hold and its guard share: whether and how the hold has ended.

use std::sync::OnceLock;

use tokio_util::sync::CancellationToken;

use crate::core::Ending;

/// The end of one hold. It ends once.
#[derive(Debug, Default)]
pub(crate) struct HoldStatus {
    ending: OnceLock<Ending>,
    ended: CancellationToken,
}

impl HoldStatus {
    pub(crate) fn ending(&self) -> Option<Ending> {
        self.ending.get().copied()
    }

    /// Cancelled after the hold has ended, in whichever way.
    pub(crate) fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    /// Writes down how it ended. Nobody is woken by that: it is done under the mutex of the lock.
    pub(crate) fn set_ending(&self, ending: Ending) {
        let first = self.ending.set(ending).is_ok();
        debug_assert!(first, "I5: a hold ends once");
    }

    /// Wakes those who wait for the end, when the mutex is free.
    pub(crate) fn wake(&self) {
        self.ended.cancel();
    }
}

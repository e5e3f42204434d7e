//! How one hold has ended, and who waits for that.

use std::sync::OnceLock;
use std::sync::atomic::{Ordering, fence};

use tokio_util::sync::CancellationToken;

use crate::core::Ending;

/// What a hold and its guard share: whether and how the hold has ended. It ends once.
#[derive(Debug, Default)]
pub(crate) struct HoldStatus {
    ending: OnceLock<Ending>,
    /// Made for the first who waits for the end: nearly nobody does.
    ended: OnceLock<CancellationToken>,
}

impl HoldStatus {
    pub(crate) fn ending(&self) -> Option<Ending> {
        self.ending.get().copied()
    }

    /// Cancelled after the hold has ended, in whichever way.
    pub(crate) fn ended(&self) -> &CancellationToken {
        let ended = self.ended.get_or_init(CancellationToken::new);
        // Of the two who write one thing and read the other's, this one and `wake`, at least one sees
        // what the other has written.
        fence(Ordering::SeqCst);
        if self.ending.get().is_some() {
            ended.cancel();
        }
        ended
    }

    /// Writes down how it ended. Nobody is woken by that: it is done under the mutex of the lock.
    pub(crate) fn set_ending(&self, ending: Ending) {
        let first = self.ending.set(ending).is_ok();
        debug_assert!(first, "I5: a hold ends once");
    }

    /// Wakes those who wait for the end, when the mutex is free.
    pub(crate) fn wake(&self) {
        fence(Ordering::SeqCst);
        if let Some(ended) = self.ended.get() {
            ended.cancel();
        }
    }
}

//! Owners that leave the queue of a fair lock together.

use std::sync::Arc;

use redisson_lock_core::{OpId, OwnerKey, ReleaseAnswer};
use tokio::sync::oneshot;

use super::Entry;
use crate::error::Error;

/// A release of an owner that has to leave the queue.
pub(crate) struct Leaver {
    pub(crate) owner: OwnerKey,
    pub(crate) op: OpId,
    /// Dropped without an answer, it has to be asked for again.
    pub(crate) answer: oneshot::Sender<Left>,
}

/// `Ok(None)`: it is not to leave any more. The error says whether the call may have been executed.
pub(crate) type Left = Result<Option<ReleaseAnswer>, (Error, bool)>;

/// The right to send for the owners that leave the queue of this lock.
pub(crate) struct Sending {
    entry: Arc<Entry>,
    is_over: bool,
}

impl Sending {
    pub(super) fn new(entry: &Arc<Entry>) -> Self {
        Self {
            entry: Arc::clone(entry),
            is_over: false,
        }
    }

    pub(crate) fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// The next of them. `None`: there are no more, and the next one that joins sends.
    pub(crate) fn take(&mut self, max: usize) -> Option<Vec<Leaver>> {
        let mut leavers = self.entry.locks.leavers.lock();
        let waiting = leavers.get_mut(&self.entry.address())?;
        if waiting.is_empty() {
            leavers.remove(&self.entry.address());
            self.is_over = true;
            return None;
        }
        let rest = waiting.split_off(max.min(waiting.len()));
        Some(std::mem::replace(waiting, rest))
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        // Its runtime has ended. Those that are left see it.
        if !self.is_over {
            let mut leavers = self.entry.locks.leavers.lock();
            let left = leavers.remove(&self.entry.address());
            drop(leavers);
            drop(left);
        }
    }
}

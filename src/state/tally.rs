//! Sums over all locks of a client, for its statistics and for `close`.

use std::sync::atomic::{AtomicU64, Ordering};

use redisson_lock_core::{Counts, Total};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// The sum over all locks of a client. It is written where a lock changes, under that lock's mutex,
/// so that no caller has to count, and `close` misses nothing.
#[derive(Default)]
pub(crate) struct Tally {
    sum: Mutex<Sum>,
    progress: Notify,
}

#[derive(Default)]
struct Sum {
    counts: Counts,
    /// Releases whose first send has begun so far, and acquires and releases that have ended.
    moves: u64,
}

impl Tally {
    pub(crate) fn counts(&self) -> Counts {
        self.sum.lock().counts
    }

    /// Releases whose first send has begun so far, and acquires and releases that have ended: whether it grows tells slow from stuck.
    pub(crate) fn moves(&self) -> u64 {
        self.sum.lock().moves
    }

    /// A send of a release begins. Thousands that are begun together keep the runtime busy before the first is answered. That
    /// one is sent again is no move.
    pub(crate) fn release_moves(&self, is_first: bool) {
        self.sum.lock().moves += u64::from(is_first);
    }

    /// Ready when something has become less after this call.
    pub(crate) fn progress(&self) -> Notified<'_> {
        self.progress.notified()
    }

    /// Replaces the part of one lock. Answers whether something has become less, for
    /// [`announce`](Self::announce).
    pub(crate) fn change(&self, before: Counts, after: Counts) -> bool {
        let Sum { counts, moves } = &mut *self.sum.lock();
        counts.replace(before, after);
        let acquires = before.acquiring.saturating_sub(after.acquiring);
        let releases = before.releasing.saturating_sub(after.releasing);
        *moves += u64::from(acquires + releases);
        acquires + releases > 0 || after.guarded < before.guarded
    }

    /// Wakes those who wait until something has become less, when the lock's mutex is free.
    pub(crate) fn announce(&self) {
        self.progress.notify_waiters();
    }
}

/// Running totals for [`ClientStats`](crate::ClientStats).
#[derive(Debug, Default)]
pub(crate) struct Totals([AtomicU64; Total::COUNT]);

impl Totals {
    pub(crate) fn count(&self, total: Total, amount: u64) {
        self.0[total as usize].fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn of(&self, total: Total) -> u64 {
        self.0[total as usize].load(Ordering::Relaxed)
    }
}

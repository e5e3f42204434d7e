//! What was heard of a channel: a count that those who listen compare.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::error::Cause;

#[derive(Default)]
pub(super) struct Signal {
    /// When the latest message came, or what may have hidden one, a confirmation too. `None`: there was none.
    pub(super) changed_at: Mutex<Option<Instant>>,
    /// The server has confirmed the subscription, and it has not ended since.
    pub(super) is_confirmed: AtomicBool,
    /// It was confirmed once.
    pub(super) was_confirmed: AtomicBool,
    pub(super) refused: OnceLock<Cause>,
    /// Why the server has not confirmed it, by its last refusal.
    pub(super) problem: Mutex<Option<Box<Cause>>>,
    /// Several locks may have one channel: `a` and `{a}`.
    pub(super) observers: Mutex<SmallVec<[Observer; 1]>>,
}

/// With the thread id of the owner that messages on this channel are for, if there is exactly one.
pub(super) type Observer = (Weak<dyn ChannelObserver>, Option<i64>);

/// A lock, which hears of a channel whether or not its waiting calls are polled.
pub(crate) trait ChannelObserver: Send + Sync {
    /// `next`: it may be the turn of the owner with this thread id.
    fn note_change(self: Arc<Self>, next: Option<i64>);
}

impl Signal {
    pub(super) fn bump(&self) {
        // First: who looks at it before is told below.
        *self.changed_at.lock() = Some(Instant::now());
        let observers: SmallVec<[_; 1]> = {
            let observers = self.observers.lock();
            let alive = |(observer, next): &Observer| Some((observer.upgrade()?, *next));
            observers.iter().filter_map(alive).collect()
        };
        for (observer, next) in observers {
            observer.note_change(next);
        }
    }

    /// The server has confirmed the subscription. Those who listen attempt again: a message may have been missed before.
    pub(super) fn confirm(&self) {
        *self.problem.lock() = None;
        self.was_confirmed.store(true, Ordering::Release);
        self.bump();
    }
}

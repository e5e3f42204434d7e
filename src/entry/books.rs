//! The books of one lock under their mutex, and the client's running sum over those of all its
//! locks.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::state::State;

/// Numbers for [`ClientStats`](crate::ClientStats), and for whoever waits until a client is wait_until.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) held: usize,
    pub(crate) guarded: usize,
    pub(crate) waiting: usize,
    pub(crate) acquiring: usize,
    pub(crate) releasing: usize,
}

/// The sum over all locks of a client. It is kept up to date where the books change, so that nobody
/// has to count.
#[derive(Default)]
pub(crate) struct Tally {
    sum: Mutex<Sum>,
    /// Told when something has become less.
    progress: Notify,
}

#[derive(Default)]
struct Sum {
    counts: Counts,
    /// Acquires and releases that have ended so far.
    ended: u64,
}

impl Tally {
    pub(crate) fn counts(&self) -> Counts {
        self.sum.lock().counts
    }

    /// Acquires and releases that have ended so far: whether it moves tells slow from stuck.
    pub(crate) fn ended(&self) -> u64 {
        self.sum.lock().ended
    }

    /// Ready when something has become less after this call.
    pub(crate) fn progress(&self) -> Notified<'_> {
        self.progress.notified()
    }

    fn change(&self, before: Counts, after: Counts) {
        {
            let Sum { counts, ended } = &mut *self.sum.lock();
            let change =
                |sum: &mut usize, before: usize, after: usize| *sum = *sum + after - before;
            change(&mut counts.held, before.held, after.held);
            change(&mut counts.guarded, before.guarded, after.guarded);
            change(&mut counts.waiting, before.waiting, after.waiting);
            change(&mut counts.acquiring, before.acquiring, after.acquiring);
            change(&mut counts.releasing, before.releasing, after.releasing);
            *ended += before.acquiring.saturating_sub(after.acquiring) as u64;
            *ended += before.releasing.saturating_sub(after.releasing) as u64;
        }
        if after.guarded < before.guarded
            || after.acquiring < before.acquiring
            || after.releasing < before.releasing
        {
            self.progress.notify_waiters();
        }
    }
}

/// The state of a lock, and the tally that it is part of.
pub(super) struct Books {
    state: Mutex<State>,
    tally: Arc<Tally>,
}

impl Books {
    pub(super) fn new(tally: Arc<Tally>) -> Self {
        Self {
            state: Mutex::default(),
            tally,
        }
    }

    pub(super) fn lock(&self) -> OpenBooks<'_> {
        OpenBooks {
            state: self.state.lock(),
            tally: &self.tally,
            touched: false,
        }
    }
}

/// The state while its mutex is held. Closed after a change, it brings the tally up to date.
pub(super) struct OpenBooks<'a> {
    state: MutexGuard<'a, State>,
    tally: &'a Tally,
    touched: bool,
}

impl Deref for OpenBooks<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for OpenBooks<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.touched = true;
        &mut self.state
    }
}

impl Drop for OpenBooks<'_> {
    fn drop(&mut self) {
        if !self.touched {
            return;
        }
        let after = self.state.counts();
        let before = std::mem::replace(&mut self.state.counted, after);
        if before != after {
            self.tally.change(before, after);
        }
    }
}

//! The books of one lock under their mutex, and the client's running sum over those of all its
//! locks.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::state::State;

/// Numbers for [`ClientStats`](crate::ClientStats), and for whoever waits until a client is quiet.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Census {
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
    quieter: Notify,
}

#[derive(Default)]
struct Sum {
    census: Census,
    /// Acquires and releases that have ended so far.
    ended: u64,
}

impl Tally {
    pub(crate) fn census(&self) -> Census {
        self.sum.lock().census
    }

    /// Acquires and releases that have ended so far: whether it moves tells slow from stuck.
    pub(crate) fn ended(&self) -> u64 {
        self.sum.lock().ended
    }

    /// Ready when something has become less after this call.
    pub(crate) fn quieter(&self) -> Notified<'_> {
        self.quieter.notified()
    }

    fn change(&self, before: Census, after: Census) {
        {
            let Sum { census, ended } = &mut *self.sum.lock();
            let change =
                |sum: &mut usize, before: usize, after: usize| *sum = *sum + after - before;
            change(&mut census.held, before.held, after.held);
            change(&mut census.guarded, before.guarded, after.guarded);
            change(&mut census.waiting, before.waiting, after.waiting);
            change(&mut census.acquiring, before.acquiring, after.acquiring);
            change(&mut census.releasing, before.releasing, after.releasing);
            *ended += before.acquiring.saturating_sub(after.acquiring) as u64;
            *ended += before.releasing.saturating_sub(after.releasing) as u64;
        }
        if after.guarded < before.guarded
            || after.acquiring < before.acquiring
            || after.releasing < before.releasing
        {
            self.quieter.notify_waiters();
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
        let after = self.state.census();
        let before = std::mem::replace(&mut self.state.counted, after);
        if before != after {
            self.tally.change(before, after);
        }
    }
}

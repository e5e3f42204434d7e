//! The connection of a lane as senders see it, and what is counted of it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::error::Cause;
use crate::redis::answers::Misfits;
use crate::redis::fence::ConnectionFence;
use crate::redis::link::{Link, SendError};

/// The connection of a lane as senders see it. The longest waiter is notified first.
pub(super) struct Current {
    pub(super) state: Mutex<State>,
    pub(super) changed: Notify,
}

impl Current {
    pub(super) fn set(&self, state: State) {
        *self.state.lock() = state;
        self.changed.notify_waiters();
    }

    /// `None`: there is no connection at the moment.
    pub(super) fn now(&self) -> Option<Result<Arc<Link>, SendError>> {
        match &*self.state.lock() {
            State::Up(link) if !link.ended.is_cancelled() => Some(Ok(Arc::clone(link))),
            State::Up(_) | State::Down(_) => None,
            State::Stopped => Some(Err(SendError::Closed)),
            State::Gone => Some(Err(SendError::NoRuntime)),
        }
    }

    pub(super) async fn wait(&self) -> Result<Arc<Link>, SendError> {
        loop {
            let mut changed = pin!(self.changed.notified());
            // Registered before the check, so that no change is missed in between.
            changed.as_mut().enable();
            if let Some(link) = self.now() {
                return link;
            }
            changed.await;
        }
    }
}

/// A supervisor dropped without a stop was dropped with its runtime.
pub(super) struct GoneOnDrop(pub(super) Arc<Current>);

impl Drop for GoneOnDrop {
    fn drop(&mut self) {
        if !matches!(*self.0.state.lock(), State::Stopped) {
            self.0.set(State::Gone);
        }
    }
}

#[derive(Default)]
pub(super) struct LaneStats {
    pub(super) reconnects: AtomicU64,
    pub(super) fence: Mutex<ConnectionFence>,
    pub(super) misfits: Arc<Misfits>,
}

pub(super) enum State {
    Up(Arc<Link>),
    /// There is no connection; with the reason if the server refused one.
    Down(Option<Box<Cause>>),
    Stopped,
    Gone,
}

//! The connection of a lane as senders see it, what is counted of it, and what all lanes share.

use std::pin::pin;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::base::runtime::{Lately, Runtime, Tasks, isolated};
use crate::error::Cause;
use crate::redis::channels::{Channels, LaneId};
use crate::redis::connection::answers::ImpossibleReplies;
use crate::redis::node::endpoint::Endpoint;
use crate::redis::node::fence::{ConnectionFence, Fences};
use crate::redis::node::hearing::Hearing;
use crate::redis::node::link::{Link, SendError};
use crate::redis::reports::Reports;

/// Where the lanes of a client live, and whom they tell.
#[derive(Clone)]
pub(in crate::redis) struct ConnectionContext {
    pub(in crate::redis) stop: CancellationToken,
    pub(in crate::redis) tasks: Tasks,
    /// Notified when another server may have taken over: a connection is gone, or leads to the wrong one.
    pub(in crate::redis) outdated: Arc<Notify>,
    /// Notified when a server does not answer in time: it may hang, and another one may take over from it.
    pub(in crate::redis) doubted: Arc<Notify>,
    /// Whether the client holds a lock or waits for one, once it can have any.
    pub(in crate::redis) in_use: Arc<OnceLock<InUse>>,
    pub(in crate::redis) fences: Arc<Fences>,
    pub(in crate::redis) reports: Arc<Reports>,
    pub(in crate::redis) channels: Arc<Channels>,
    pub(in crate::redis) lately: Arc<Lately>,
}

pub(in crate::redis) type InUse = Box<dyn Fn() -> bool + Send + Sync>;

impl ConnectionContext {
    pub(in crate::redis) fn new(runtime: &Runtime) -> Self {
        Self {
            stop: CancellationToken::new(),
            tasks: Tasks::new(runtime.clone()),
            outdated: Arc::default(),
            doubted: Arc::default(),
            in_use: Arc::default(),
            fences: Arc::default(),
            reports: Arc::default(),
            channels: Arc::default(),
            lately: Arc::default(),
        }
    }

    /// Adds reports of changes, for this many connections.
    pub(in crate::redis) fn with_reports(self, lanes: usize) -> Self {
        let reports = Arc::new(Reports::new(lanes));
        Self { reports, ..self }
    }

    pub(in crate::redis) fn is_in_use(&self) -> bool {
        self.in_use.get().is_some_and(|in_use| in_use())
    }

    /// Starts something that goes on until the end.
    pub(in crate::redis) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = work => {}
            }
        });
    }

    /// Ends every connection without waiting.
    pub(in crate::redis) fn end(&self) {
        self.stop.cancel();
        self.tasks.close();
    }
}

/// Where a lane leads, and what for.
#[derive(Clone)]
pub(in crate::redis) struct LanePlace {
    pub(in crate::redis) endpoint: Arc<Endpoint>,
    pub(in crate::redis) id: LaneId,
    pub(in crate::redis) purpose: Purpose,
    pub(in crate::redis) hearing: Arc<Hearing>,
}

/// What goes over a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::redis) enum Purpose {
    /// Scripts, and the channels of their locks.
    Scripts,
    /// Questions about replicas.
    Replicas,
    /// Channels, where no connection can carry them beside scripts.
    Messages,
}

/// The connection of a lane as senders see it. The longest waiter is notified first.
pub(super) struct Current {
    pub(super) state: Mutex<LaneState>,
    pub(super) changed: Notify,
}

impl Current {
    pub(super) fn set(&self, state: LaneState) {
        *self.state.lock() = state;
        isolated(|| self.changed.notify_waiters());
    }

    /// `None`: there is no connection at the moment.
    pub(super) fn now(&self) -> Option<Result<Arc<Link>, SendError>> {
        match &*self.state.lock() {
            LaneState::Up(link) if !link.has_ended() => Some(Ok(Arc::clone(link))),
            LaneState::Opening | LaneState::Up(_) | LaneState::Down(_) => None,
            LaneState::Stopped => Some(Err(SendError::Closed)),
            LaneState::Gone => Some(Err(SendError::NoRuntime)),
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
        if !matches!(*self.0.state.lock(), LaneState::Stopped) {
            self.0.set(LaneState::Gone);
        }
    }
}

#[derive(Default)]
pub(super) struct LaneStats {
    pub(super) reconnects: AtomicU64,
    pub(super) fence: Mutex<ConnectionFence>,
    pub(super) misfits: Arc<ImpossibleReplies>,
}

pub(super) enum LaneState {
    /// None was wanted until now, and opening one has not failed.
    Opening,
    Up(Arc<Link>),
    /// There is no connection; with the reason if the server refused one.
    Down(Option<Box<Cause>>),
    Stopped,
    Gone,
}

//! A lane: one command connection at a time, replaced when its task ends, fenced before it is used
//! again.
//!
//! Invariant: a script is handed to a connection only after every predecessor of that connection
//! was killed at the server (or the connection fence is known not to be active). A command left
//! unanswered on a lost connection can therefore not be executed after its resend.

mod current;
mod opening;
mod supervisor;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::endpoint::Endpoint;
use super::fence::ConnectionFence;
use super::link::{Link, SendError};
use crate::base::backoff::Backoff;
use crate::error::Cause;
use crate::redis::transport::ConnectionError;

pub(in crate::redis) use current::{ConnectionContext, LanePlace, Purpose};
use current::{Current, GoneOnDrop, LaneState, LaneStats};
use supervisor::{Connected, Supervisor};

pub(in crate::redis) struct Lane {
    endpoint: Arc<Endpoint>,
    current: Arc<Current>,
    stats: Arc<LaneStats>,
    wanted: watch::Sender<bool>,
}

impl Lane {
    /// Connects once, and starts the task that replaces the connection from then on.
    pub(in crate::redis) async fn open(
        place: LanePlace,
        context: &ConnectionContext,
    ) -> Result<Self, ConnectionError> {
        let (lane, mut supervisor) = Self::new(place, context);
        let opened = supervisor.open().await?;
        let first = supervisor.take_over(opened).await?;
        lane.spawn(supervisor, Some(first), context);
        Ok(lane)
    }

    /// Starts the task that connects, and replaces the connection from then on.
    pub(in crate::redis) fn start(place: LanePlace, context: &ConnectionContext) -> Self {
        let (lane, supervisor) = Self::new(place, context);
        lane.spawn(supervisor, None, context);
        lane
    }

    fn new(place: LanePlace, context: &ConnectionContext) -> (Self, Supervisor) {
        let stats = Arc::new(LaneStats::default());
        let (wanted, is_wanted) = watch::channel(true);
        let endpoint = Arc::clone(&place.endpoint);
        let supervisor = Supervisor {
            endpoint: Arc::clone(&endpoint),
            nth: place.id.nth,
            place,
            in_vain: (0, Backoff::new(endpoint.settings().is_scattered())),
            ended_soon: 0,
            stats: Arc::clone(&stats),
            context: context.clone(),
            predecessor: None,
            next_misfit: Instant::now(),
            wanted: is_wanted,
        };
        let current = Arc::new(Current {
            state: Mutex::new(LaneState::Opening),
            changed: Notify::new(),
        });
        let lane = Self {
            endpoint,
            current,
            stats,
            wanted,
        };
        (lane, supervisor)
    }

    fn spawn(&self, supervisor: Supervisor, first: Option<Connected>, context: &ConnectionContext) {
        let current = GoneOnDrop(Arc::clone(&self.current));
        context.tasks.spawn(supervisor.run(first, current));
    }

    /// Whether there is to be a connection. Without one the commands under way have no answer; the next
    /// connection is fenced from the last, however much later it comes.
    pub(in crate::redis) fn set_wanted(&self, wanted: bool) {
        self.wanted
            .send_if_modified(|was| std::mem::replace(was, wanted) != wanted);
    }

    /// Whether there is to be a connection.
    pub(in crate::redis) fn is_wanted(&self) -> bool {
        *self.wanted.borrow()
    }

    pub(in crate::redis) fn reconnects(&self) -> u64 {
        self.stats.reconnects.load(Ordering::Relaxed)
    }

    pub(in crate::redis) fn fence(&self) -> ConnectionFence {
        *self.stats.fence.lock()
    }

    /// Whether scripts can be sent now.
    pub(in crate::redis) fn is_up(&self) -> bool {
        self.now().is_some()
    }

    /// The connection over which scripts can be sent now.
    pub(in crate::redis) fn now(&self) -> Option<Arc<Link>> {
        self.current.now()?.ok()
    }

    /// The current connection, waiting for one until `limit`.
    pub(in crate::redis) async fn ready(&self, limit: Instant) -> Result<Arc<Link>, SendError> {
        if let Some(link) = self.current.now() {
            return link;
        }
        Box::pin(tokio::time::timeout_at(limit, self.current.wait()))
            .await
            .unwrap_or_else(|_| Err(self.not_ready()))
    }

    /// Why no script can be sent now, if none can and that is no matter of a moment; or that the server has been silent since
    /// then, if that is too long. Such a connection is in doubt.
    pub(in crate::redis) fn problem(&self, is_long: impl Fn(Instant) -> bool) -> Option<SendError> {
        if matches!(*self.current.state.lock(), LaneState::Opening) {
            return None;
        }
        match self.current.now() {
            None => Some(self.not_ready()),
            Some(Err(error)) => Some(error),
            Some(Ok(link)) => link
                .silent_since()
                .filter(|since| is_long(*since))
                .map(|_| {
                    link.doubt.notify_one();
                    SendError::Unknown(link.cause("the server is silent"))
                }),
        }
    }

    fn not_ready(&self) -> SendError {
        match &*self.current.state.lock() {
            LaneState::Down(Some(cause)) => SendError::NotAccepted(cause.clone()),
            _ => {
                let settings = self.endpoint.settings();
                let cause = Cause::at(&settings.address, "not connected");
                SendError::NotSent(cause.announced(settings.expected.announced_by()))
            }
        }
    }
}

//! A call that wants a lock: what its acquires say beside the core, and what it is told.

use std::sync::Arc;

use parking_lot::Mutex;
use redisson_lock_core::{Claimed, Face, Order, OwnerKey, Rejected};
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::Span;

use super::Entry;
use crate::base::backoff::Backoff;
use crate::base::runtime::InSpan;
use crate::error::{Error, HeldBy, Operation};
use crate::names::owner::Owner;
use crate::redis::{ReplicaProbe, ReplicaRoute};
use crate::script;
use crate::state::hold_status::HoldStatus;

/// A call that wants the lock. It has one of these for all of its attempts.
pub(crate) struct WaitingCall {
    /// Notified when the lock is granted to it, and when it is over.
    pub(crate) notify: Notify,
    pub(crate) deadline: Option<Instant>,
    pub(crate) owner: Owner,
    pub(crate) face: Face,
    pub(crate) order: Order,
    /// The owner that it takes the lock over from, as it is named in Redis.
    pub(crate) from: Option<Arc<str>>,
    /// If replicas must confirm what it takes.
    pub(crate) replicas: Option<Arc<ReplicaLink>>,
    span: Option<Arc<Span>>,
    attempts: Mutex<Attempts>,
}

/// What has become of the attempts of a call.
#[derive(Default)]
pub(crate) struct Attempts {
    /// How many there were.
    pub(crate) asked: u32,
    /// When it was its turn to ask the server, the last time.
    pub(crate) asked_at: Option<Instant>,
    /// The server has answered, and no attempt has failed since.
    pub(crate) was_answered: bool,
    /// The holder that the latest attempt found.
    pub(crate) found: Option<Box<HeldBy>>,
    /// It was no holder, but the owner whose turn it is.
    pub(crate) found_free: bool,
    /// The server had a read hold of the owner that is to write, and this client none.
    pub(crate) has_found_own_read: bool,
    /// Instead of messages, if the kind of lock has none.
    pub(crate) pauses: Option<Box<Backoff>>,
    /// Between looks at a free lock while it is another owner's turn.
    pub(crate) looks: Option<Box<Backoff>>,
    /// Its future wakes up by itself, if it waits for long.
    pub(crate) has_timer: bool,
    /// How it has ended, until its future is polled.
    end: Option<Box<CallEnd>>,
}

/// How a call has ended without the lock.
pub(crate) enum CallEnd {
    /// The server has said that another owner has the lock, and it does not wait.
    Busy,
    /// Others of this client come first, and it does not wait.
    Queued,
    Rejected(Rejected),
    Failed(Error),
}

/// What a call finds that is polled.
pub(crate) enum CallFinds {
    Hold(Claimed, Arc<HoldStatus>),
    Ended(CallEnd),
    /// It goes on. `is_asking`: an acquire of it is under way.
    Nothing {
        is_asking: bool,
    },
}

impl WaitingCall {
    pub(crate) fn new(
        (owner, face): (Owner, Face),
        (order, deadline): (Order, Option<Instant>),
    ) -> Self {
        Self {
            notify: Notify::new(),
            deadline,
            owner,
            face,
            order,
            from: None,
            replicas: None,
            span: None,
            attempts: Mutex::default(),
        }
    }

    /// `from`: the owner that it takes the lock over from. `span`: what is logged about it is logged inside of this.
    pub(crate) fn of(
        self,
        from: Option<&Arc<str>>,
        replicas: Option<Arc<ReplicaLink>>,
        span: Option<&Arc<Span>>,
    ) -> Self {
        Self {
            from: from.cloned(),
            replicas,
            span: span.cloned(),
            ..self
        }
    }

    pub(crate) fn key(&self) -> OwnerKey {
        self.owner.key(self.face)
    }

    /// What has become of its attempts so far. Nothing else is locked meanwhile.
    pub(crate) fn attempts<T>(&self, look: impl FnOnce(&mut Attempts) -> T) -> T {
        look(&mut self.attempts.lock())
    }

    /// Logs inside of its span.
    pub(crate) fn logs(&self, log: impl FnOnce()) {
        let _inside = InSpan::enter(self.span.as_deref());
        log();
    }

    /// An attempt begins.
    pub(super) fn asks(&self, now: Instant) {
        self.attempts(|attempts| {
            attempts.asked += 1;
            attempts.asked_at = Some(now);
        });
    }

    pub(super) fn sleeps_without_timer(&self) -> bool {
        self.attempts(|attempts| !attempts.has_timer)
    }

    /// It is over. It is woken when the lock's mutex is free.
    pub(super) fn ends(&self, end: CallEnd) {
        let end = Box::new(end);
        self.attempts(|attempts| _ = attempts.end.get_or_insert(end));
    }

    pub(super) fn take_end(&self) -> Option<CallEnd> {
        self.attempts(|attempts| attempts.end.take())
            .map(|end| *end)
    }
}

/// The connection on which replicas are asked. One that is opened behind a taking may lead to another server.
pub(crate) struct ReplicaLink {
    replicas: u32,
    probe: Mutex<Option<ReplicaProbe>>,
}

impl ReplicaLink {
    pub(crate) fn new(replicas: u32) -> Arc<Self> {
        let probe = Mutex::default();
        Arc::new(Self { replicas, probe })
    }

    pub(crate) fn route<'a>(&self, entry: &'a Entry) -> ReplicaRoute<'a> {
        entry.route().waiting_for(self.replicas)
    }

    pub(crate) fn probe(&self) -> Option<ReplicaProbe> {
        self.probe.lock().clone()
    }

    /// Whether it leads to the server that has the lock now.
    pub(crate) fn is_current(&self, entry: &Entry) -> bool {
        let probe = self.probe();
        probe.is_some_and(|probe| probe.is_current(self.route(entry)))
    }

    /// Opens one, if there is none.
    pub(crate) async fn prepare(&self, entry: &Entry) -> Result<(), Error> {
        if self.is_current(entry) {
            return Ok(());
        }
        let limit = Instant::now() + entry.shared().command_timeout();
        let opened = self.route(entry).confirmer(limit).await;
        let send_error = |error| script::send_error(error, Operation::Acquiring);
        let opened = opened.map_err(send_error)?;
        *self.probe.lock() = Some(opened);
        Ok(())
    }
}

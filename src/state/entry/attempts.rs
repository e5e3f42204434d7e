//! What a call that wants a lock is told, and what its acquires say beside the core.

use std::sync::Arc;

use redisson_lock_core::{Admission, Claimed};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::error::{Error, HeldBy};
use crate::names::owner::Owner;
use crate::state::hold_status::HoldStatus;

/// A call that wants the lock.
pub(super) struct CallCells {
    pub(super) call: Arc<WaitingCall>,
    /// How its latest acquire ended, until the call has seen it.
    pub(super) end: Option<Box<AttemptEnd>>,
}

/// What does not change of a call, and what its acquires say of that beside what the core does.
pub(crate) struct WaitingCall {
    /// Notified when it may be able to go on.
    pub(crate) notify: Notify,
    pub(crate) deadline: Option<Instant>,
    pub(crate) owner: Owner,
    /// The owner that it takes the lock over from, as it is named in Redis.
    pub(crate) from: Option<Arc<str>>,
}

impl WaitingCall {
    pub(crate) fn new(
        deadline: Option<Instant>,
        owner: Owner,
        from: Option<&Arc<str>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            notify: Notify::new(),
            deadline,
            owner,
            from: from.cloned(),
        })
    }
}

/// How an acquire ended that has not brought the lock.
pub(crate) enum AttemptEnd {
    Busy(Busy),
    /// The server has a read hold of the owner, which has none here: it is released, and the call asks again.
    OwnRead,
    /// Its field was used before: the call asks again, with another one.
    AsksAgain,
    Failed(Error),
}

/// The answer to an attempt that did not take the lock.
pub(crate) struct Busy {
    pub(crate) holder: Box<HeldBy>,
    /// The lock is free, and it is the turn of that owner.
    pub(crate) is_free: bool,
    /// Its slot is on its way to another node.
    pub(crate) is_on_the_way: bool,
    pub(crate) sent_at: Instant,
}

impl Busy {
    /// The holder, whether the lock is free and its slot on its way, and when it was asked.
    pub(crate) fn into_parts(self) -> (Box<HeldBy>, (bool, bool), Instant) {
        (
            self.holder,
            (self.is_free, self.is_on_the_way),
            self.sent_at,
        )
    }
}

/// What a call finds that asks.
pub(crate) enum CallFinds {
    /// The lock.
    Hold(Claimed, Arc<HoldStatus>),
    Ended(AttemptEnd),
    Admission(Admission),
}

//! What the server is asked, and what it answers.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use redisson_lock_core::{ThreadId, Token};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Holder {
    Ours(Field),
    /// Another process.
    Foreign,
}

/// What a hold has in Redis: the field of its owner, or one of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Field {
    pub owner: ThreadId,
    /// Of one acquisition alone, if it is not 0.
    pub taking: u64,
}

impl Field {
    /// The one that a text of [`Field::text`] is of.
    pub fn of(text: &str) -> Self {
        Self::found(text).expect("`text` made it")
    }

    pub fn found(text: &str) -> Option<Self> {
        let (owner, taking) = text.split_once('.').unwrap_or((text, "0"));
        Some(Self {
            owner: ThreadId(owner.parse().ok()?),
            taking: taking.parse().ok()?,
        })
    }

    /// As the core has it.
    pub fn text(self) -> Arc<str> {
        let Self { owner, taking } = self;
        match taking {
            0 => owner.0.to_string().into(),
            taking => format!("{}.{taking}", owner.0).into(),
        }
    }
}

/// As the core has it.
impl Hash for Field {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text().hash(state);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Script {
    /// Raise the count of the field to `target`, and the lease to at least `lease`.
    Acquire {
        field: Field,
        target: u32,
        lease: Duration,
        /// A busy reply leaves a place in the queue.
        queues_up: bool,
    },
    /// Lower the count of the field to `target`, and keep at least `lease`; the last one publishes.
    Release {
        field: Field,
        target: u32,
        lease: Duration,
        /// And take the owner out of the queue.
        leaves: bool,
    },
    /// Replace the field by that of another owner, with a lease of its own.
    Pass {
        field: Field,
        to: Field,
        lease: Duration,
    },
    /// Raise the lease to at least `lease`.
    Renew {
        field: Field,
        lease: Option<Duration>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reply {
    Done {
        /// Of the holder, if it has one: an acquire and a pass answer it.
        token: Option<Token>,
    },
    /// There is no lock.
    Gone,
    /// Another field has it.
    Taken,
    /// Taken for reading, and the same owner does not write.
    Outside,
    /// The same owner reads, and would wait for itself.
    OwnRead,
    /// Another one has it, for this time.
    Busy { left: Duration },
    /// The server does not run it, and never will.
    Refused,
}

/// Who hears of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    None,
    Only(ThreadId),
    All,
}

pub const DONE: Reply = Reply::Done { token: None };

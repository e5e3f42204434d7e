//! In which order owners get a lock, as far as a client has a say in it.

use super::queue::QueueLane;
use super::values::{Face, OwnerKey};

/// In which order owners get a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Discipline {
    /// The calls of this client are served first come, first served. Among clients the first at the server gets the
    /// lock.
    Plain,
    /// The server has a queue of all owners of all clients, in the order in which their first attempts arrived. Each
    /// owner attempts by itself, and a busy reply leaves it one place there.
    Fair,
    /// Two lanes: of owners that read, and of those that write. A queued writer attempts alone. A reader attempts while no
    /// writer of this client is in its way, and beside others as soon as one of this client reads.
    ReadWrite,
}

impl Discipline {
    /// The lane of an owner's calls: one for all of them, one for each face, or one for each owner.
    pub(super) fn lane(self, owner: OwnerKey) -> QueueLane {
        match (self, owner.face) {
            (Self::Plain, _) => QueueLane::ALL,
            (Self::Fair, _) => QueueLane::of(owner.thread),
            (Self::ReadWrite, Face::Read) => QueueLane::READERS,
            (Self::ReadWrite, Face::Only | Face::Write) => QueueLane::WRITERS,
        }
    }

    /// The lanes of which only the head attempts: its turn begins and ends with what other owners of this client do.
    /// Where there are none, each owner attempts whatever the others do.
    pub(super) fn shared_lanes(self) -> &'static [QueueLane] {
        match self {
            Self::Plain => &[QueueLane::ALL],
            Self::Fair => &[],
            Self::ReadWrite => &[QueueLane::WRITERS, QueueLane::READERS],
        }
    }

    /// Whether the local queue has a head, without whose turn a call that queues does not attempt.
    pub(super) fn has_local_queue(self) -> bool {
        !self.shared_lanes().is_empty()
    }

    /// Whether owners of this lane hold the lock beside each other.
    pub(super) fn is_shared(self, lane: QueueLane) -> bool {
        self == Self::ReadWrite && lane == QueueLane::READERS
    }

    /// Whether a busy reply leaves a queued call's owner a place in the server's queue.
    pub(super) fn keeps_places(self) -> bool {
        self == Self::Fair
    }

    /// Whether an owner may hand the lock to another one of this client: not past the server's queue, and not where
    /// others may hold it too.
    pub(super) fn hands_over(self) -> bool {
        self == Self::Plain
    }
}

#[cfg(test)]
mod tests;

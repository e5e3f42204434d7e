//! In which order owners get a lock, as far as a client has a say in it.

use super::queue::Lane;
use super::values::OwnerKey;

/// In which order owners get a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Discipline {
    /// The calls of this client are served first come, first served. Among clients the first at the server gets the
    /// lock.
    Plain,
    /// The server has a queue of all owners of all clients, in the order in which their first attempts arrived. Each
    /// owner attempts by itself, and a busy reply leaves it one place there.
    Fair,
}

impl Discipline {
    /// The lane of an owner's calls: one for all of them, or one for each owner.
    pub(super) fn lane(self, owner: OwnerKey) -> Lane {
        match self.keeps_places() {
            false => Lane::ALL,
            true => Lane::of(owner.thread),
        }
    }

    /// The lane of which only the head attempts: its turn begins and ends with what other owners of this client do.
    /// `None`: each owner attempts whatever the others do.
    pub(super) fn front(self) -> Option<Lane> {
        (!self.keeps_places()).then_some(Lane::ALL)
    }

    /// Whether a busy reply leaves a queued call's owner a place in the server's queue.
    pub(super) fn keeps_places(self) -> bool {
        self != Self::Plain
    }

    /// Whether an owner may hand the lock to another one of this client: not past the server's queue.
    pub(super) fn hands_over(self) -> bool {
        !self.keeps_places()
    }
}

#[cfg(test)]
mod tests;

//! In which order owners get a lock, as far as a client has a say in it.

use super::queue::Lane;
use super::values::OwnerKey;

/// In which order owners get a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Discipline {
    /// This client's calls are served first come, first served. Among clients the first at the server gets the
    /// lock.
    Plain,
}

impl Discipline {
    /// The lane of an owner's calls.
    pub(super) fn lane(self, _: OwnerKey) -> Lane {
        match self {
            Self::Plain => Lane::ALL,
        }
    }

    /// The lane of which only the head attempts: its turn begins and ends with what other owners of this client do.
    pub(super) fn front(self) -> Option<Lane> {
        match self {
            Self::Plain => Some(Lane::ALL),
        }
    }

    /// Whether an owner may hand the lock to another one of this client.
    pub(super) fn hands_over(self) -> bool {
        match self {
            Self::Plain => true,
        }
    }
}

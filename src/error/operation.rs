//! The operation that got no answer, and what that means for the lock.

use std::fmt;

/// The operation that got no answer.
///
/// # Examples
///
/// ```
/// use redisson_lock::Operation;
/// assert_eq!(Operation::Unlocking.to_string(), "unlocking");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Opening a connection.
    Connecting,
    /// Acquiring a lock. The caller holds nothing new; if the lock was taken after all, that is rolled back in the
    /// background, no later than its lease ends.
    Acquiring,
    /// Subscribing to the channel of a lock that another owner holds. The caller holds nothing new.
    Subscribing,
    /// Renewing a lock, in the background. It is held until the lease is over, or confirmed again.
    Renewing,
    /// Extending a fixed lease. The lock is held; the lease ends when it did before, or later.
    Extending,
    /// Unlocking. The release continues in the background; the lock is free no later than the end of
    /// its lease.
    Unlocking,
    /// Releasing in the background a hold that was dropped, or that an unlock has left.
    Releasing,
    /// Asking for the holder of a lock, or for permissions. Nothing was changed.
    Inspecting,
    /// Force-unlocking. The holder may or may not have lost the lock.
    Forcing,
    /// Running a [guarded write](crate::HoldHandle::eval). It may or may not have run. The lock is held as before.
    Writing,
    /// Pinging the server.
    Pinging,
}

impl Operation {
    /// The consequence for the lock, and what to do.
    pub(super) fn consequence(self) -> &'static str {
        match self {
            Self::Pinging => "check that the server is reachable",
            Self::Connecting => "check the URL, and that the server is reachable",
            Self::Acquiring | Self::Subscribing => {
                "nothing new is held, check that the server is reachable"
            }
            Self::Renewing => "the lock is held until its lease is over",
            Self::Extending => "the lock is held, and its lease ends when it did before or later",
            Self::Releasing => "the lock is free no later than the end of its lease",
            Self::Unlocking => {
                "the release continues in the background, and the lock is free no later than the end of its lease"
            }
            Self::Inspecting => "nothing was changed, check that the server is reachable",
            Self::Writing => "it ran, or it did not: ask the guard whether it still has the lock",
            Self::Forcing => "its holder may have lost it or not, ask again who holds it",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connecting => "connecting",
            Self::Acquiring => "acquiring",
            Self::Subscribing => "subscribing",
            Self::Renewing => "renewing",
            Self::Extending => "extending",
            Self::Unlocking => "unlocking",
            Self::Releasing => "releasing",
            Self::Inspecting => "inspecting",
            Self::Forcing => "force-unlocking",
            Self::Writing => "running a guarded write",
            Self::Pinging => "pinging",
        })
    }
}

//! The outcome of an attempt that may find the lock held.

use crate::error::HeldBy;

/// The result of [`Lock::try_lock_or_holder`](crate::Lock::try_lock_or_holder).
///
/// # Examples
///
/// ```no_run
/// # async fn run(lock: redisson_lock::Lock) -> Result<(), redisson_lock::Error> {
/// use redisson_lock::TryLock;
/// if let TryLock::Acquired(guard) = lock.try_lock_or_holder().await? {
///     guard.unlock().await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "a guard that is dropped releases the lock"]
pub enum TryLock<G> {
    /// The lock was acquired.
    Acquired(G),
    /// The lock was not acquired.
    Busy {
        /// The holder. `None`: it is free, but other callers of this client queue for it, or other owners for a fair
        /// lock.
        holder: Option<HeldBy>,
    },
}

impl<G> TryLock<G> {
    pub(crate) fn acquired(self) -> Option<G> {
        match self {
            Self::Acquired(taken) => Some(taken),
            Self::Busy { .. } => None,
        }
    }

    #[cfg(feature = "blocking")]
    pub(crate) fn map<H>(self, guard: impl FnOnce(G) -> H) -> TryLock<H> {
        match self {
            Self::Acquired(taken) => TryLock::Acquired(guard(taken)),
            Self::Busy { holder } => TryLock::Busy { holder },
        }
    }
}

//! `take_over`: moves a lock from the owner that has it to another one, in one script.

use std::sync::Arc;

use redisson_lock_core::Face;

use super::{CallStage, Holder, Lock, LockGuard, Wait};
use crate::error::Error;

impl<K> Lock<K> {
    /// Takes the lock over from `holder`, as [`inspect`](Self::inspect) returned it, and holds it with a new lease: after
    /// a restart, or from a process that is known to be dead, whose lease would otherwise have to run out. Returns `None`
    /// if that owner no longer has the lock.
    ///
    /// One script moves the hold, so no other caller gets the lock in between, in this client or another.
    /// All holds of the former owner end. A client of this crate reports the loss within two round trips, or at its
    /// next renewal, within a third of its watchdog timeout; Redisson throws at the next `unlock`.
    ///
    /// Until then a former holder that is still alive runs on beside the new one: a [fenced
    /// lock](crate::LockClient::fenced_lock) has a new, larger token, by which a store can refuse the former holder's
    /// writes. An owner that has released the lock and acquired it again since it was inspected loses the later hold.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`try_lock`](Self::try_lock), and [`Error::AlreadyHeld`] if the calling owner has the lock.
    /// [`Error::Misuse`] for the read part of a read-write lock, and for a holder of this very client: release its
    /// guard, or use [`force_unlock`](Self::force_unlock). A write hold whose owner also reads is not taken over (`None`).
    ///
    /// # Cancel safety
    ///
    /// See [`lock`](Self::lock): if the hold has moved, it is released in the background, and the lock is free.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(lock: redisson_lock::Lock) -> Result<(), redisson_lock::Error> {
    /// # fn is_dead(owner: &str) -> bool { true }
    /// if let Some(holder) = lock.inspect().await?
    ///     && is_dead(&holder.owner)
    ///     && let Some(guard) = lock.take_over(&holder).await?
    /// {
    ///     guard.unlock().await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn take_over(&self, holder: &Holder) -> Result<Option<LockGuard<K>>, Error> {
        if self.kind.face() == Face::Read {
            let problem = "several owners may read: lock the reading part instead";
            return Err(Error::Misuse { problem });
        }
        let client = holder.owner.strip_prefix(&*self.client.shared().client_id);
        if client.is_some_and(|thread| thread.starts_with(':')) {
            let problem =
                "the holder is an owner of this client: release its guard, or use `force_unlock`";
            return Err(Error::Misuse { problem });
        }
        let from: Arc<str> = holder.owner.as_str().into();
        let taken = self
            .acquire_from(Wait::Never(None), CallStage::Only, Some(&from))
            .await?;
        Ok(taken.acquired())
    }
}

//! `downgrade`: a write hold becomes a read hold.

use std::pin::pin;
use std::sync::Arc;

use super::acquire::pick_up;
use super::waiter::{Wait, Waiter};
use super::{Lock, LockGuard};
use crate::core::{Face, LossReason, Order};
use crate::error::Error;
use crate::kind::LockKind;

impl<K> LockGuard<K> {
    /// Makes this write hold of a [read-write lock](crate::RwLock) a read hold of the same owner, so that other readers
    /// get in, and no writer in between. The read hold has the write hold's lease and limit.
    ///
    /// One script does both. If the owner has other holds of the lock, or the client has no [connection
    /// fence](crate::ConnectionFence), it takes the read hold first and then releases the write hold, in two scripts.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`unlock`](Self::unlock) and [`try_lock`](Lock::try_lock), and [`Error::Misuse`] if this is
    /// no write hold. The hold has then ended, as with `unlock`, and nothing is read.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases what there is in the background.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn publish() {}
    /// # async fn run(report: redisson_lock::RwLock) -> Result<(), redisson_lock::Error> {
    /// let writes = report.write().lock().await?;
    /// let reads = writes.downgrade().await?;
    /// publish().await; // others may read too
    /// reads.unlock().await
    /// # }
    /// ```
    pub async fn downgrade(self) -> Result<Self, Error> {
        if self.face != Face::Write {
            let problem = "only a write hold of a read-write lock becomes a read hold";
            return Err(Error::Misuse { problem });
        }
        let entry = Arc::clone(&self.entry);
        let moving = pin!(self.into_read());
        entry.shared().on_client_runtime(moving).await
    }

    async fn into_read(self) -> Result<Self, Error> {
        let (entry, owner) = (Arc::clone(&self.entry), self.owner.clone());
        let (write, now) = (owner.key(Face::Write), entry.shared().clock.now());
        let terms = entry.peek(|core| core.downgrade_terms(now, write, self.id));
        let read = Lock::<K>::new(
            self.client(),
            LockKind::Read,
            entry.name.given().to_string(),
        );
        let Some(terms) = terms.filter(|_| entry.route().is_fenced()) else {
            self.not_lost()?;
            let reads = read.owned_by(&owner).try_lock().await?;
            let reads = reads.ok_or_else(|| self.lost_by_now())?;
            self.unlock().await?;
            return Ok(reads);
        };
        // Dropped after the release: what was handed to it is released too.
        let wait = (Wait::Forever, Order::Queued);
        let mut waiter = Waiter::new(&entry, (&owner, Face::Read), terms, wait);
        self.hand_to(waiter.id()).await?;
        let taken = pick_up(&entry, &mut waiter).await?;
        let taken = taken.ok_or_else(|| entry.lost(write, LossReason::Gone))?;
        Ok(read.guard(&entry, (owner, Face::Read), taken))
    }
}

//! `downgrade`: a write hold becomes a read hold.

use std::pin::pin;
use std::sync::Arc;

use redisson_lock_core::{Face, LeaseKind, Order, Terms};

use super::waiter::Waiter;
use super::{Lock, LockGuard};
use crate::error::{Error, Operation};
use crate::kind::LockKind;
use crate::redis::SyncReplicas;
use crate::state::bounds::LEASE_MIN;
use crate::state::entry::WaitingCall;

impl<K> LockGuard<K> {
    /// Makes this write hold of a [read-write lock](crate::RwLock) a read hold of the same owner, so that other readers
    /// get in, and no writer in between. The read hold has the write hold's lease and limit.
    ///
    /// One script does both. If the owner has other holds of the lock, replicas confirm the hold
    /// ([`sync_replicas`](Lock::sync_replicas)), or the client has no [connection fence](crate::ConnectionFence), it takes
    /// the read hold first and then releases the write hold, in two scripts. Replicas have the client's time for them, or
    /// the command timeout.
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
            let problem = "`downgrade` needs a write hold; this hold was released";
            return Err(Error::Misuse { problem });
        }
        let entry = Arc::clone(&self.entry);
        let moving = pin!(self.into_read());
        entry.shared().on_client_runtime(moving).await
    }

    async fn into_read(self) -> Result<Self, Error> {
        let (entry, owner) = (Arc::clone(&self.entry), self.owner.clone());
        let (write, now) = (owner.key(Face::Write), entry.shared().clock.now());
        let (terms, in_one_step) = entry.peek(|core| {
            let terms = core.rest_of(now, write, self.id);
            (terms, core.may_downgrade(write, self.id))
        });
        let terms = terms.ok_or_else(|| self.lost_by_now())?;
        let read = self.read_lock(&terms);
        if !in_one_step || !entry.route().is_fenced() {
            self.not_lost()?;
            let reads = read.try_lock().await?;
            let reads = reads.ok_or_else(|| self.lost_by_now())?;
            self.unlock().await?;
            return Ok(reads);
        }
        // Dropped after the release: what was handed to it is released too.
        let call = WaitingCall::new((owner.clone(), Face::Read), (Order::Queued, None));
        let waiter = Waiter::receiver(&entry, &Arc::new(call), terms);
        self.hand_to(waiter.id()).await?;
        let Some((claimed, status)) = waiter.received().await? else {
            // It was released in the meantime: the client closes.
            let text = "the write hold could only be released";
            let error = entry.route().no_answer(Operation::Acquiring, text);
            return Err(error.about(entry.name.given()));
        };
        let taken = (claimed.hold, status);
        Ok(read.guard(&entry, (owner, Face::Read), taken))
    }

    /// The read part of the lock, for the owner and on the terms of this hold.
    fn read_lock(&self, terms: &Terms) -> Lock<K> {
        let (name, shared) = (self.entry.name.given(), self.entry.shared());
        let within = shared.config.replicas.map(|wanted| wanted.within);
        let replicas = (terms.replicas > 0).then(|| SyncReplicas {
            replicas: terms.replicas,
            within: within.unwrap_or_else(|| shared.command_timeout()),
        });
        Lock {
            lease: (terms.kind == LeaseKind::Fixed).then(|| terms.lease.max(LEASE_MIN)),
            max_hold: terms.limit.map(|limit| limit.max(LEASE_MIN)),
            owner: Some(self.owner.clone()),
            replicas,
            ..Lock::new(self.client(), LockKind::Read, name.to_string())
        }
    }
}

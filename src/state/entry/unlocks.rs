//! Unlocks that are under way, and the jobs of their releases that wait.

use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::{Notify, oneshot};

use super::{Entry, HoldCells, Locks, Outcome};
use crate::core::{Effects, HoldId, LockCore, LossReason, OpId, OwnerKey, Time, WaiterId};
use crate::redis::Unflushed;

/// An unlock that has begun. `Ok(None)`: the hold was released before.
pub(crate) type BegunUnlock = Result<Option<PendingUnlock>, LossReason>;

pub(crate) struct PendingUnlock {
    pub(crate) outcome: Outcome,
    /// Its release, or an acquire before that, was under way already.
    pub(crate) has_joined: bool,
}

/// A task of a client.
pub(crate) type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

type EnterRelease =
    fn(&Arc<Entry>, (&mut LockCore, Time, &mut Effects), OwnerKey, OpId) -> Option<Unflushed>;

/// How a release is sent that has begun.
#[derive(Clone, Copy)]
pub(crate) struct Releases {
    /// Enters it into its connection, under the lock's mutex. `None`: it takes a job.
    pub(crate) enter: EnterRelease,
    pub(crate) job: fn(Arc<Entry>, OwnerKey, OpId) -> Job,
}

impl Entry {
    pub(crate) fn unlock(self: &Arc<Self>, owner: OwnerKey, hold: HoldId) -> BegunUnlock {
        self.begin_unlock(owner, hold, |core, now, out| {
            core.unlock(now, owner, hold, out)
        })
    }

    /// The same, and this call of the owner, which waits to read, gets the lock.
    pub(crate) fn downgrade(
        self: &Arc<Self>,
        owner: OwnerKey,
        hold: HoldId,
        to: WaiterId,
    ) -> BegunUnlock {
        self.begin_unlock(owner, hold, |core, now, out| {
            core.downgrade(now, owner, hold, to, out)
        })
    }

    fn begin_unlock(
        self: &Arc<Self>,
        owner: OwnerKey,
        hold: HoldId,
        unlock: impl FnOnce(&mut LockCore, Time, &mut Effects) -> Result<bool, LossReason>,
    ) -> BegunUnlock {
        let unlock = self.step_with(|state, now, out| {
            if !unlock(&mut state.core, now, out)? {
                return Ok(None);
            }
            // Its cell is there before the mutex is free, so that no outcome can be missed.
            let (cell, outcome) = oneshot::channel();
            let cells = state.holds.get_or_insert_with(hold, HoldCells::default);
            cells.unlock = Some(cell);
            let has_joined = !out.jobs.iter().any(|(of, _)| *of == owner);
            Ok(Some(PendingUnlock {
                outcome,
                has_joined,
            }))
        })?;
        if unlock.as_ref().is_some_and(|unlock| unlock.has_joined) {
            let waiting = self.locks.waiting_jobs.lock();
            let job = waiting.get(&(self.address(), owner)).cloned();
            drop(waiting);
            job.iter().for_each(|job| job.notify_one());
        }
        Ok(unlock)
    }

    /// Waits until a caller waits for the release of this owner that is under way. Only its job asks.
    pub(crate) async fn joined(&self, owner: OwnerKey) {
        let key = (self.address(), owner);
        let _registered = WaitingJob {
            locks: &self.locks,
            key,
        };
        let joined = Arc::new(Notify::new());
        self.locks
            .waiting_jobs
            .lock()
            .insert(key, Arc::clone(&joined));
        // Registered before it looks, so that no caller is missed.
        while !self.peek(|core| core.is_awaited(owner)) {
            joined.notified().await;
        }
    }
}

/// A job that waits, until it is dropped.
struct WaitingJob<'a> {
    locks: &'a Locks,
    key: (usize, OwnerKey),
}

impl Drop for WaitingJob<'_> {
    fn drop(&mut self) {
        self.locks.waiting_jobs.lock().remove(&self.key);
    }
}

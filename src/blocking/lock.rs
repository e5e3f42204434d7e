//! The blocking methods of a lock by its name, in addition to those of every lock.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::guard::LockGuard;
use super::own_runtime::Running;
use super::verbs::Blocking;
use crate::error::Error;
use crate::kind::{LockKind, Unfenced};
use crate::lock::hold_handle::Hold;
use crate::lock::verbs::{Lockable, settled};
use crate::lock::{Holder, QueuedOwner};
use crate::names::try_lock::TryLock;

/// A lock by its name. Cheap to clone, does no I/O by itself, and stores no hold.
///
/// Without [`lease`](Blocking::lease) the watchdog renews a hold: its lease is the client's watchdog
/// timeout and is renewed at every third of it, by the client's own thread, until the hold is
/// released. The lock is reentrant by thread; see the [module](super).
///
/// # Examples
///
/// ```no_run
/// # fn run(client: redisson_lock::blocking::LockClient) -> Result<(), redisson_lock::Error> {
/// let stock = client.lock("stock:42");
/// let outer = stock.lock()?;
/// let inner = stock.lock()?; // the same thread: hold count 2
/// inner.unlock()?;
/// outer.unlock()
/// # }
/// ```
pub type Lock<K = Unfenced> = Blocking<crate::Lock<K>>;

impl<K> Blocking<crate::Lock<K>> {
    pub(super) fn new(lock: crate::Lock<K>, running: &Arc<Running>) -> Self {
        let running = [Arc::clone(running)].into();
        Self { lock, running }
    }

    /// Returns the kind of this lock; see the async [`kind`](crate::Lock::kind).
    pub fn kind(&self) -> LockKind {
        self.lock.kind()
    }

    /// Returns the name as given; see the async [`name`](crate::Lock::name).
    pub fn name(&self) -> &str {
        self.lock.name()
    }

    /// Returns this lock with a limit on each hold; see the async [`max_hold`](crate::Lock::max_hold).
    #[must_use]
    pub fn max_hold(&self, limit: Duration) -> Self {
        self.with(self.lock.max_hold(limit))
    }

    /// Returns this lock for calls that do not nest; see the async [`non_reentrant`](crate::Lock::non_reentrant).
    #[must_use]
    pub fn non_reentrant(&self) -> Self {
        self.with(self.lock.non_reentrant())
    }

    /// Returns this lock with a retry limit; see the async [`retry_for`](crate::Lock::retry_for).
    #[must_use]
    pub fn retry_for(&self, retry_for: Duration) -> Self {
        self.with(self.lock.retry_for(retry_for))
    }

    /// Returns this lock, counted under this class; see the async [`class`](crate::Lock::class).
    #[cfg(feature = "metrics")]
    #[must_use]
    pub fn class(&self, class: &'static str) -> Self {
        self.with(self.lock.class(class))
    }

    /// Returns this lock with a replication requirement; see the async [`sync_replicas`](crate::Lock::sync_replicas).
    #[must_use]
    pub fn sync_replicas(&self, replicas: u32, within: Duration) -> Self {
        self.with(self.lock.sync_replicas(replicas, within))
    }

    /// Releases one detached hold of this thread; see the async [`unlock`](crate::Lock::unlock).
    pub fn unlock(&self) -> Result<(), Error> {
        self.wait(self.of_caller().unlock())
    }

    /// Frees the lock, no matter who holds it; see the async [`force_unlock`](crate::Lock::force_unlock).
    pub fn force_unlock(&self) -> Result<bool, Error> {
        self.wait(self.of_caller().force_unlock())
    }

    /// Returns whether the lock is held, by any owner; see the async [`is_locked`](crate::Lock::is_locked).
    pub fn is_locked(&self) -> Result<bool, Error> {
        self.wait(self.of_caller().is_locked())
    }

    /// Returns whether this thread, or the lock's given owner, holds the lock; see the async
    /// [`is_held`](crate::Lock::is_held).
    pub fn is_held(&self) -> Result<bool, Error> {
        self.wait(self.of_caller().is_held())
    }

    /// Returns the hold count of this thread, or of the lock's given owner; see the async
    /// [`hold_count`](crate::Lock::hold_count).
    pub fn hold_count(&self) -> Result<u32, Error> {
        self.wait(self.of_caller().hold_count())
    }

    /// Returns the time left on the lease; see the async [`lease_left`](crate::Lock::lease_left).
    pub fn lease_left(&self) -> Result<Option<Duration>, Error> {
        self.wait(self.of_caller().lease_left())
    }

    /// Returns the permissions that the client's user lacks for this lock; see the async [`check`](crate::Lock::check).
    pub fn check(&self) -> Result<Vec<String>, Error> {
        self.wait(self.of_caller().check())
    }

    /// Returns the owners that wait for a fair lock; see the async [`queue`](crate::Lock::queue).
    pub fn queue(&self) -> Result<Vec<QueuedOwner>, Error> {
        self.wait(self.of_caller().queue())
    }

    /// Returns the holder of the lock; see the async [`inspect`](crate::Lock::inspect).
    pub fn inspect(&self) -> Result<Option<Holder>, Error> {
        self.wait(self.of_caller().inspect())
    }

    /// Acquires like [`try_lock`](Self::try_lock), and names the holder; see the async
    /// [`try_lock_or_holder`](crate::Lock::try_lock_or_holder).
    pub fn try_lock_or_holder(&self) -> Result<TryLock<LockGuard<K>>, Error> {
        let taken = self.wait(self.of_caller().try_lock_or_holder())?;
        Ok(taken.map(|guard| self.guard(guard)))
    }

    /// Takes the lock over from an owner of another client; see the async [`take_over`](crate::Lock::take_over).
    pub fn take_over(&self, holder: &Holder) -> Result<Option<LockGuard<K>>, Error> {
        let taken = self.wait(self.of_caller().take_over(holder))?;
        Ok(taken.map(|guard| self.guard(guard)))
    }

    /// Runs `body` on this thread unless a process has started it within the last `period`; see the async
    /// [`once_per`](crate::Lock::once_per).
    ///
    /// A loss does not stop the body, as with [`run`](Self::run): its value is discarded, and the call returns
    /// [`Error::Lost`]. If it panics, the panic goes on and the lock stays for its period.
    ///
    /// # Errors
    ///
    /// Returns the errors of `body` and of the async method.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn clean_up() -> Result<(), redisson_lock::Error> { Ok(()) }
    /// # fn run(client: redisson_lock::blocking::LockClient) -> Result<(), redisson_lock::Error> {
    /// let job = client.lock("jobs:clean-up");
    /// if job.once_per(Duration::from_secs(60), |_held| clean_up())?.is_none() {
    ///     println!("another instance has run it");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn once_per<T, E, F>(&self, period: Duration, body: F) -> Result<Option<T>, E>
    where
        K: Send + Sync + 'static,
        E: From<Error>,
        F: FnOnce(&Hold) -> Result<T, E>,
    {
        let lock = self.lock.clone();
        let (begins, began) = oneshot::channel();
        let (ends, ended) = oneshot::channel::<Infallible>();
        let job = self.wait(async {
            // It extends the lease while this thread runs the body.
            Ok(tokio::spawn(async move {
                let waiting = |held| async move {
                    let _ = begins.send(held);
                    let _ = ended.await;
                    Ok::<_, Error>(())
                };
                lock.once_per(period, waiting).await
            }))
        })?;
        let held = self.wait(async { Ok(began.await.ok()) })?;
        // Dropped by a panic too, which ends the wait of the other side.
        let value = held.map(|held| {
            let _ends = ends;
            body(&held)
        });
        let kept = self.wait(async { job.await.unwrap_or(Err(Error::NoRuntime)) });
        match value {
            None => Ok(kept.map(|_| None)?),
            Some(value) => settled(value, kept.map(drop)).map(Some),
        }
    }

    /// The lock with the owner of this call.
    fn of_caller(&self) -> crate::Lock<K> {
        self.lock.of_this_thread()
    }
}

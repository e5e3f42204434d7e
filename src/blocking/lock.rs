//! The methods of a lock that wait on the calling thread.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::guard::LockGuard;
use super::own_runtime::Running;
use crate::base::runtime::{InSpan, span};
use crate::error::Error;
use crate::kind::{LockKind, Unfenced};
use crate::lock::{Holder, Lock as AsyncLock, QueuedOwner};
use crate::names::owner::Owner;
use crate::names::try_lock::TryLock;

/// A lock by its name. Cheap to clone, does no I/O by itself, and stores no hold.
///
/// Without [`lease`](Self::lease) the watchdog renews a hold: its lease is the client's watchdog
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
pub struct Lock<K = Unfenced> {
    pub(super) lock: AsyncLock<K>,
    pub(super) running: Arc<Running>,
}

impl<K> Clone for Lock<K> {
    fn clone(&self) -> Self {
        Self {
            lock: self.lock.clone(),
            running: Arc::clone(&self.running),
        }
    }
}

impl<K> Lock<K> {
    pub(super) fn new(lock: AsyncLock<K>, running: Arc<Running>) -> Self {
        Self { lock, running }
    }

    /// The kind of this lock; see the async [`kind`](crate::Lock::kind).
    pub fn kind(&self) -> LockKind {
        self.lock.kind()
    }

    /// The name as given; see the async [`name`](crate::Lock::name).
    pub fn name(&self) -> &str {
        self.lock.name()
    }

    /// Returns this lock with a fixed lease; see the async [`lease`](crate::Lock::lease).
    #[must_use]
    pub fn lease(&self, lease: Duration) -> Self {
        Self {
            lock: self.lock.lease(lease),
            ..self.clone()
        }
    }

    /// Returns this lock with a limit on each hold; see the async [`max_hold`](crate::Lock::max_hold).
    #[must_use]
    pub fn max_hold(&self, limit: Duration) -> Self {
        Self {
            lock: self.lock.max_hold(limit),
            ..self.clone()
        }
    }

    /// Returns this lock for calls that do not nest; see the async [`non_reentrant`](crate::Lock::non_reentrant).
    #[must_use]
    pub fn non_reentrant(&self) -> Self {
        Self {
            lock: self.lock.non_reentrant(),
            ..self.clone()
        }
    }

    /// Returns this lock for a given owner, whichever thread calls it; see the async
    /// [`owned_by`](crate::Lock::owned_by).
    #[must_use]
    pub fn owned_by(&self, owner: &Owner) -> Self {
        Self {
            lock: self.lock.owned_by(owner),
            ..self.clone()
        }
    }

    /// Returns this lock with a retry limit; see the async [`retry_for`](crate::Lock::retry_for).
    #[must_use]
    pub fn retry_for(&self, retry_for: Duration) -> Self {
        Self {
            lock: self.lock.retry_for(retry_for),
            ..self.clone()
        }
    }

    /// Returns this lock, counted under this class; see the async [`class`](crate::Lock::class).
    #[cfg(feature = "metrics")]
    #[must_use]
    pub fn class(&self, class: &'static str) -> Self {
        let mut lock = self.clone();
        lock.lock = self.lock.class(class);
        lock
    }

    /// Acquires the lock, waiting while another owner holds it; see the async [`lock`](crate::Lock::lock).
    pub fn lock(&self) -> Result<LockGuard<K>, Error> {
        let lock = self.of_caller();
        let guard = self.wait(lock.lock())?;
        Ok(self.guard(guard))
    }

    /// Acquires the lock if it is free now; see the async [`try_lock`](crate::Lock::try_lock).
    pub fn try_lock(&self) -> Result<Option<LockGuard<K>>, Error> {
        let lock = self.of_caller();
        let guard = self.wait(lock.try_lock())?;
        Ok(guard.map(|guard| self.guard(guard)))
    }

    /// Acquires the lock, waiting at most this long; see the async [`try_lock_for`](crate::Lock::try_lock_for).
    pub fn try_lock_for(&self, wait: Duration) -> Result<Option<LockGuard<K>>, Error> {
        let lock = self.of_caller();
        let guard = self.wait(lock.try_lock_for(wait))?;
        Ok(guard.map(|guard| self.guard(guard)))
    }

    /// Acquires the lock, waiting until `deadline`; see the async [`try_lock_until`](crate::Lock::try_lock_until).
    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<LockGuard<K>>, Error> {
        let lock = self.of_caller();
        let guard = self.wait(lock.try_lock_until(deadline))?;
        Ok(guard.map(|guard| self.guard(guard)))
    }

    /// Runs `body` on this thread with the lock held.
    ///
    /// A loss does not stop the body: a thread cannot be stopped from outside, and an async body,
    /// which would be dropped, this is not. A body that must not act after a loss checks
    /// [`is_lost`](crate::Hold::is_lost) before each step, or writes with [`eval`](LockGuard::eval). If the lock
    /// is lost before the body begins, it does not begin. Otherwise it runs to its end; if the lock was lost by
    /// then, its value is discarded for [`Error::Lost`].
    ///
    /// The body's value is returned if the lock was still held at its end: a failed unlock does not
    /// discard the value of a completed body, unless it reports a loss. If the body fails or panics, the
    /// lock is released in the background, and its error or the panic goes on.
    ///
    /// # Errors
    ///
    /// The body's; those of [`lock`](Self::lock); [`Error::Lost`] if the lock was lost before the body
    /// had ended.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: redisson_lock::blocking::LockClient) -> Result<(), redisson_lock::Error> {
    /// # use redisson_lock::Error;
    /// let sold = client.lock("stock:42").run(|held| {
    ///     Ok::<_, Error>((0..10).take_while(|_| !held.is_lost()).count())
    /// })?;
    /// # Ok(()) }
    /// ```
    pub fn run<T, E, F>(&self, body: F) -> Result<T, E>
    where
        E: From<Error>,
        F: FnOnce(&LockGuard<K>) -> Result<T, E>,
    {
        section(self.lock()?, body)
    }

    /// Runs `body` if the lock is free now; see [`run`](Self::run) and the async [`try_run`](crate::Lock::try_run).
    pub fn try_run<T, E, F>(&self, body: F) -> Result<Option<T>, E>
    where
        E: From<Error>,
        F: FnOnce(&LockGuard<K>) -> Result<T, E>,
    {
        let guard = self.try_lock()?;
        guard.map(|guard| section(guard, body)).transpose()
    }

    /// Runs `body` when the lock is free, waiting at most `wait`; see [`run`](Self::run) and the async
    /// [`try_run_for`](crate::Lock::try_run_for).
    pub fn try_run_for<T, E, F>(&self, wait: Duration, body: F) -> Result<Option<T>, E>
    where
        E: From<Error>,
        F: FnOnce(&LockGuard<K>) -> Result<T, E>,
    {
        let guard = self.try_lock_for(wait)?;
        guard.map(|guard| section(guard, body)).transpose()
    }

    /// Releases one detached hold of this thread; see the async [`unlock`](crate::Lock::unlock).
    pub fn unlock(&self) -> Result<(), Error> {
        self.wait(self.of_caller().unlock())
    }

    /// Frees the lock, no matter who holds it; see the async [`force_unlock`](crate::Lock::force_unlock).
    pub fn force_unlock(&self) -> Result<bool, Error> {
        self.wait(self.of_caller().force_unlock())
    }

    /// Whether the lock is held, by any owner; see the async [`is_locked`](crate::Lock::is_locked).
    pub fn is_locked(&self) -> Result<bool, Error> {
        self.wait(self.of_caller().is_locked())
    }

    /// Whether this thread, or the lock's given owner, holds the lock; see the async [`is_held`](crate::Lock::is_held).
    pub fn is_held(&self) -> Result<bool, Error> {
        self.wait(self.of_caller().is_held())
    }

    /// The hold count of this thread, or of the lock's given owner; see the async
    /// [`hold_count`](crate::Lock::hold_count).
    pub fn hold_count(&self) -> Result<u32, Error> {
        self.wait(self.of_caller().hold_count())
    }

    /// Time left on the lease; see the async [`lease_left`](crate::Lock::lease_left).
    pub fn lease_left(&self) -> Result<Option<Duration>, Error> {
        self.wait(self.of_caller().lease_left())
    }

    /// The permissions that the client's user lacks for this lock; see the async [`check`](crate::Lock::check).
    pub fn check(&self) -> Result<Vec<String>, Error> {
        self.wait(self.of_caller().check())
    }

    /// The owners that wait for a fair lock; see the async [`queue`](crate::Lock::queue).
    pub fn queue(&self) -> Result<Vec<QueuedOwner>, Error> {
        self.wait(self.of_caller().queue())
    }

    /// The holder of the lock; see the async [`inspect`](crate::Lock::inspect).
    pub fn inspect(&self) -> Result<Option<Holder>, Error> {
        self.wait(self.of_caller().inspect())
    }

    /// Acquires like [`try_lock`](Self::try_lock), and names the holder; see the async
    /// [`try_lock_or_holder`](crate::Lock::try_lock_or_holder).
    pub fn try_lock_or_holder(&self) -> Result<TryLock<LockGuard<K>>, Error> {
        let taken = self.wait(self.of_caller().try_lock_or_holder())?;
        Ok(taken.map(|guard| self.guard(guard)))
    }

    /// The lock with the owner of this call.
    fn of_caller(&self) -> AsyncLock<K> {
        self.lock.of_this_thread()
    }

    fn wait<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.running.wait(call)
    }

    fn guard(&self, guard: crate::lock::LockGuard<K>) -> LockGuard<K> {
        LockGuard::new(guard, Arc::clone(&self.running))
    }
}

impl<K> fmt::Debug for Lock<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock.fmt(f)
    }
}

/// Runs the body with the hold, and releases it.
fn section<K, T, E: From<Error>>(
    guard: LockGuard<K>,
    body: impl FnOnce(&LockGuard<K>) -> Result<T, E>,
) -> Result<T, E> {
    let span = span!("run", lock = %guard.name(), owner = %guard.owner(), kind = guard.kind().unless_plain());
    let body = |guard: &LockGuard<K>| {
        let _inside = InSpan::enter(span.as_deref());
        body(guard)
    };
    super::section(guard, |guard| guard.not_lost(), LockGuard::unlock, body)
}

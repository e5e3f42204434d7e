//! The verbs of a lock that wait on the calling thread. Those that inspect a lock are in `inspect`.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::guard::LockGuard;
use super::own_runtime::Running;
use crate::error::Error;
use crate::hold_handle::{HoldHandle, HoldState};
use crate::lock::Lock as AsyncLock;
use crate::owner::Owner;
use crate::runtime::{InSpan, span};

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
#[derive(Clone)]
pub struct Lock {
    lock: AsyncLock,
    /// Whether an owner was given; otherwise it is the calling thread's.
    has_owner: bool,
    running: Arc<Running>,
}

impl Lock {
    pub(super) fn new(lock: AsyncLock, running: Arc<Running>) -> Self {
        Self {
            lock,
            has_owner: false,
            running,
        }
    }

    /// The name as given, without the key prefix.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: redisson_lock::blocking::LockClient) {
    /// assert_eq!(client.lock("stock:42").name(), "stock:42");
    /// # }
    /// ```
    pub fn name(&self) -> &str {
        self.lock.name()
    }

    /// The same lock with a fixed lease instead of the watchdog: 10 milliseconds to ten years.
    ///
    /// The hold ends with the lease, however long the section takes; see the async
    /// [`lease`](crate::Lock::lease).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn run(client: redisson_lock::blocking::LockClient) -> Result<(), redisson_lock::Error> {
    /// let guard = client.lock("stock:42").lease(Duration::from_secs(10)).lock()?;
    /// # guard.unlock() }
    /// ```
    #[must_use]
    pub fn lease(&self, lease: Duration) -> Self {
        Self {
            lock: self.lock.lease(lease),
            ..self.clone()
        }
    }

    /// The same lock with a limit on each hold, counted from its acquisition: 10 milliseconds to
    /// ten years; default: the client's
    /// [`max_hold`](super::LockClientBuilder::max_hold).
    ///
    /// At the limit the hold is lost; see the async [`max_hold`](crate::Lock::max_hold).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn run(client: redisson_lock::blocking::LockClient) {
    /// let lock = client.lock("stock:42").max_hold(Duration::from_secs(300));
    /// # }
    /// ```
    #[must_use]
    pub fn max_hold(&self, limit: Duration) -> Self {
        Self {
            lock: self.lock.max_hold(limit),
            ..self.clone()
        }
    }

    /// The same lock for a given owner, whichever thread calls it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: redisson_lock::blocking::LockClient) -> Result<(), redisson_lock::Error> {
    /// let owner = client.owner();
    /// let guard = client.lock("stock:42").owned_by(&owner).lock()?;
    /// # guard.unlock() }
    /// ```
    #[must_use]
    pub fn owned_by(&self, owner: &Owner) -> Self {
        Self {
            lock: self.lock.owned_by(owner),
            has_owner: true,
            running: Arc::clone(&self.running),
        }
    }

    /// Returns this lock with a retry limit: [`lock`](Self::lock) tries again for up to `retry_for`;
    /// see the async [`retry_for`](crate::Lock::retry_for).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn run(client: redisson_lock::blocking::LockClient) {
    /// let lock = client.lock("stock:42").retry_for(Duration::from_secs(60));
    /// # }
    /// ```
    #[must_use]
    pub fn retry_for(&self, retry_for: Duration) -> Self {
        Self {
            lock: self.lock.retry_for(retry_for),
            ..self.clone()
        }
    }

    /// The same lock, counted as one of this class; see the async [`class`](crate::Lock::class).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: redisson_lock::blocking::LockClient) {
    /// let lock = client.lock("stock:42").class("checkout");
    /// # }
    /// ```
    #[cfg(feature = "metrics")]
    #[must_use]
    pub fn class(&self, class: &'static str) -> Self {
        let mut lock = self.clone();
        lock.lock = self.lock.class(class);
        lock
    }

    /// Acquires the lock, waiting while another owner holds it, however long that is.
    ///
    /// If this thread already holds it, one more hold is added at once. Waiting costs one
    /// subscription for the whole process and no polling.
    /// [`LockClient::close`](super::LockClient::close) ends the wait.
    ///
    /// # Errors
    ///
    /// Those of a failed attempt: [`Error::NoAnswer`] (the caller holds nothing),
    /// [`Error::Refused`], [`Error::PermissionDenied`], [`Error::Auth`], [`Error::NotALock`];
    /// [`Error::Lost`] if an outer hold of this thread was lost and its guard is still open;
    /// [`Error::TooDeep`]; [`Error::InvalidName`], [`Error::InvalidDuration`],
    /// [`Error::InvalidConfig`]; [`Error::Closed`], [`Error::InsideRuntime`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: redisson_lock::blocking::LockClient) -> Result<(), redisson_lock::Error> {
    /// let guard = client.lock("stock:42").lock()?;
    /// guard.unlock()
    /// # }
    /// ```
    pub fn lock(&self) -> Result<LockGuard, Error> {
        let lock = self.of_caller();
        let guard = self.wait(lock.lock())?;
        Ok(self.guard(guard))
    }

    /// Acquires the lock if it is free now, in one attempt. Returns `None` if it is held, or if callers of this
    /// client queue for it: then Redis is not asked.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: redisson_lock::blocking::LockClient) -> Result<(), redisson_lock::Error> {
    /// match client.lock("stock:42").try_lock()? {
    ///     Some(guard) => guard.unlock()?,
    ///     None => println!("held by someone else"),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn try_lock(&self) -> Result<Option<LockGuard>, Error> {
        let lock = self.of_caller();
        let guard = self.wait(lock.try_lock())?;
        Ok(guard.map(|guard| self.guard(guard)))
    }

    /// Acquires the lock, waiting at most this long. Returns `None` if the lock could not be
    /// acquired in time.
    ///
    /// See the async [`try_lock_for`](crate::Lock::try_lock_for).
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn run(client: redisson_lock::blocking::LockClient) -> Result<(), redisson_lock::Error> {
    /// if let Some(guard) = client.lock("stock:42").try_lock_for(Duration::from_secs(2))? {
    ///     guard.unlock()?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn try_lock_for(&self, wait: Duration) -> Result<Option<LockGuard>, Error> {
        let lock = self.of_caller();
        let guard = self.wait(lock.try_lock_for(wait))?;
        Ok(guard.map(|guard| self.guard(guard)))
    }

    /// Acquires the lock, waiting until `deadline`. Returns `None` if the lock could not be
    /// acquired in time.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::{Duration, Instant};
    /// # fn run(client: redisson_lock::blocking::LockClient) -> Result<(), redisson_lock::Error> {
    /// let deadline = Instant::now() + Duration::from_secs(2);
    /// let guard = client.lock("stock:42").try_lock_until(deadline)?;
    /// # Ok(()) }
    /// ```
    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<LockGuard>, Error> {
        let lock = self.of_caller();
        let guard = self.wait(lock.try_lock_until(deadline))?;
        Ok(guard.map(|guard| self.guard(guard)))
    }

    /// Runs `body` on this thread with the lock held.
    ///
    /// A loss does not stop the body: a thread cannot be stopped from outside, and an async body,
    /// which would be dropped, this is not. A body that must not act after a loss checks
    /// [`HoldHandle::is_lost`] before each step. It always runs to its end; if the lock was lost by
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
        F: FnOnce(HoldHandle) -> Result<T, E>,
    {
        section(self.lock()?, body)
    }

    /// Runs `body` if the lock is free now. Returns `None` if it is held, and the body does not run.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn sweep() -> Result<(), redisson_lock::Error> { Ok(()) }
    /// # fn run(client: redisson_lock::blocking::LockClient) -> Result<(), redisson_lock::Error> {
    /// client.lock("sweep").try_run(|_held| sweep())?;
    /// # Ok(()) }
    /// ```
    pub fn try_run<T, E, F>(&self, body: F) -> Result<Option<T>, E>
    where
        E: From<Error>,
        F: FnOnce(HoldHandle) -> Result<T, E>,
    {
        let guard = self.try_lock()?;
        guard.map(|guard| section(guard, body)).transpose()
    }

    /// Runs `body` when the lock is free, waiting at most `wait` for it. Returns `None` if it could not be
    /// acquired in time, and the body does not run.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn sell() -> Result<(), redisson_lock::Error> { Ok(()) }
    /// # fn run(client: redisson_lock::blocking::LockClient) -> Result<(), redisson_lock::Error> {
    /// client.lock("stock:42").run_for(Duration::from_secs(2), |_held| sell())?;
    /// # Ok(()) }
    /// ```
    pub fn run_for<T, E, F>(&self, wait: Duration, body: F) -> Result<Option<T>, E>
    where
        E: From<Error>,
        F: FnOnce(HoldHandle) -> Result<T, E>,
    {
        let guard = self.try_lock_for(wait)?;
        guard.map(|guard| section(guard, body)).transpose()
    }

    /// Releases one [detached](LockGuard::detach) hold of this thread.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] if this thread has no detached hold; otherwise as [`LockGuard::unlock`],
    /// except that [`Error::InsideRuntime`] leaves the hold as it was.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(lock: redisson_lock::blocking::Lock) -> Result<(), redisson_lock::Error> {
    /// lock.lock()?.detach();
    /// lock.unlock()
    /// # }
    /// ```
    pub fn unlock(&self) -> Result<(), Error> {
        self.wait(self.of_caller().unlock())
    }

    /// The lock with the owner of this call.
    pub(super) fn of_caller(&self) -> AsyncLock {
        if self.has_owner {
            return self.lock.clone();
        }
        let owner = Owner::of_thread(self.running.client.id());
        self.lock.owned_by(&owner)
    }

    pub(super) fn wait<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.running.wait(call)
    }

    pub(super) fn guard(&self, guard: crate::lock::LockGuard) -> LockGuard {
        LockGuard::new(guard, Arc::clone(&self.running))
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock.fmt(f)
    }
}

/// Runs the body with the hold, and releases it.
fn section<T, E: From<Error>>(
    guard: LockGuard,
    body: impl FnOnce(HoldHandle) -> Result<T, E>,
) -> Result<T, E> {
    let span = span!("run", lock = %guard.name(), owner = %guard.owner());
    let value = {
        let _inside = InSpan::enter(span.as_deref());
        body(guard.handle())?
    };
    if let HoldState::Lost(reason) = guard.state() {
        return Err(Error::lost(guard.name(), reason).into());
    }
    match guard.unlock() {
        Err(error @ Error::Lost { .. }) => Err(error.into()),
        Ok(()) | Err(_) => Ok(value),
    }
}

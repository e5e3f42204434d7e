//! One lock across several servers, without a runtime.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::lock::Lock;
use super::own_runtime::Running;
use crate::api::red::{RedGuard as AsyncGuard, RedHold, RedLock as AsyncRedLock};
use crate::core::LossReason;
use crate::error::Error;
use crate::names::owner::Owner;

/// One lock across several independent servers; see the async [`RedLock`](crate::RedLock), which begins with what it
/// does not promise.
///
/// # Examples
///
/// ```no_run
/// # fn run(clients: Vec<redisson_lock::blocking::LockClient>) -> Result<(), redisson_lock::Error> {
/// use redisson_lock::blocking::RedLock;
/// let lock = RedLock::new(clients.iter().map(|client| client.lock("billing")))?;
/// let guard = lock.lock()?;
/// guard.unlock()
/// # }
/// ```
#[derive(Clone)]
pub struct RedLock {
    lock: AsyncRedLock,
    running: Vec<Arc<Running>>,
}

impl RedLock {
    /// These locks as one; see the async [`new`](crate::RedLock::new).
    pub fn new(members: impl IntoIterator<Item = Lock>) -> Result<Self, Error> {
        let members = members
            .into_iter()
            .map(|member| (member.lock, member.running));
        let (locks, running): (Vec<_>, Vec<_>) = members.unzip();
        let lock = AsyncRedLock::new(locks)?;
        Ok(Self { lock, running })
    }

    /// Returns this lock with a fixed lease; see the async [`lease`](crate::RedLock::lease).
    #[must_use]
    pub fn lease(&self, lease: Duration) -> Self {
        Self {
            lock: self.lock.lease(lease),
            ..self.clone()
        }
    }

    /// Returns this lock with another limit for the answers; see the async
    /// [`member_timeout`](crate::RedLock::member_timeout).
    #[must_use]
    pub fn member_timeout(&self, member_timeout: Duration) -> Self {
        Self {
            lock: self.lock.member_timeout(member_timeout),
            ..self.clone()
        }
    }

    /// Returns this lock for a given owner; see the async [`owned_by`](crate::RedLock::owned_by).
    #[must_use]
    pub fn owned_by(&self, owner: &Owner) -> Self {
        Self {
            lock: self.lock.owned_by(owner),
            ..self.clone()
        }
    }

    /// Acquires the lock; see the async [`lock`](crate::RedLock::lock).
    pub fn lock(&self) -> Result<RedGuard, Error> {
        let guard = self.running[0].wait(self.lock.of_this_thread().lock())?;
        Ok(self.guard(guard))
    }

    /// Acquires the lock in one round; see the async [`try_lock`](crate::RedLock::try_lock).
    pub fn try_lock(&self) -> Result<Option<RedGuard>, Error> {
        let guard = self.running[0].wait(self.lock.of_this_thread().try_lock())?;
        Ok(guard.map(|guard| self.guard(guard)))
    }

    /// Acquires the lock, waiting at most this long; see the async [`try_lock_for`](crate::RedLock::try_lock_for).
    pub fn try_lock_for(&self, wait: Duration) -> Result<Option<RedGuard>, Error> {
        let guard = self.running[0].wait(self.lock.of_this_thread().try_lock_for(wait))?;
        Ok(guard.map(|guard| self.guard(guard)))
    }

    /// Acquires the lock, waiting until `deadline`; see the async [`try_lock_until`](crate::RedLock::try_lock_until).
    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<RedGuard>, Error> {
        let guard = self.running[0].wait(self.lock.of_this_thread().try_lock_until(deadline))?;
        Ok(guard.map(|guard| self.guard(guard)))
    }

    /// Runs `body` on this thread with the lock held; see the blocking [`Lock::run`], which says what a loss does, and
    /// the async [`run`](crate::RedLock::run).
    pub fn run<T, E, F>(&self, body: F) -> Result<T, E>
    where
        E: From<Error>,
        F: FnOnce(&RedGuard) -> Result<T, E>,
    {
        section(self.lock()?, body)
    }

    /// Runs `body` if the lock is free now; see the async [`try_run`](crate::RedLock::try_run).
    pub fn try_run<T, E, F>(&self, body: F) -> Result<Option<T>, E>
    where
        E: From<Error>,
        F: FnOnce(&RedGuard) -> Result<T, E>,
    {
        let guard = self.try_lock()?;
        guard.map(|guard| section(guard, body)).transpose()
    }

    fn guard(&self, guard: AsyncGuard) -> RedGuard {
        RedGuard {
            guard,
            running: self.running.clone(),
        }
    }
}

impl fmt::Debug for RedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock.fmt(f)
    }
}

/// A [`RedLock`] that is held; see the async [`RedGuard`](crate::RedGuard).
///
/// # Examples
///
/// ```no_run
/// # fn run(lock: redisson_lock::blocking::RedLock) -> Result<(), redisson_lock::Error> {
/// let guard = lock.lock()?;
/// println!("until {:?}", guard.valid_until());
/// guard.unlock()
/// # }
/// ```
#[must_use = "dropping a guard releases the lock immediately"]
pub struct RedGuard {
    // Dropped in this order: the releases are started before the last handles wait for them.
    guard: AsyncGuard,
    running: Vec<Arc<Running>>,
}

impl RedGuard {
    /// Releases the lock; see the async [`unlock`](crate::RedGuard::unlock).
    pub fn unlock(self) -> Result<(), Error> {
        let Self { guard, running } = self;
        running[0].wait(guard.unlock())
    }

    /// Waits for a loss of the quorum, at most this long; see the async [`lost`](crate::RedHold::lost).
    pub fn lost_within(&self, wait: Duration) -> Result<Option<LossReason>, Error> {
        let lost = self.guard.lost();
        self.running[0].wait(async { Ok(tokio::time::timeout(wait, lost).await.ok()) })
    }

    /// Extends a fixed lease; see the async [`extend`](crate::RedGuard::extend).
    pub fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.running[0].wait(self.guard.extend(lease))
    }
}

impl Deref for RedGuard {
    type Target = RedHold;

    fn deref(&self) -> &RedHold {
        &self.guard
    }
}

impl fmt::Debug for RedGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(f)
    }
}

/// Runs the body with the lock, and releases it.
fn section<T, E: From<Error>>(
    guard: RedGuard,
    body: impl FnOnce(&RedGuard) -> Result<T, E>,
) -> Result<T, E> {
    super::section(
        guard,
        |guard| guard.guard.not_lost(),
        RedGuard::unlock,
        body,
    )
}

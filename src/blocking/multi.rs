//! Several locks as one, without a runtime.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::lock::Lock;
use super::own_runtime::Running;
use crate::api::multi::{
    MemberLoss, MultiGuard as AsyncGuard, MultiHold, MultiLock as AsyncMultiLock,
};
use crate::error::Error;
use crate::names::owner::Owner;

/// Several locks that are taken together: all of them, or none; see the async [`MultiLock`](crate::MultiLock).
///
/// # Examples
///
/// ```no_run
/// # fn run(client: redisson_lock::blocking::LockClient) -> Result<(), redisson_lock::Error> {
/// use redisson_lock::blocking::MultiLock;
/// let both = MultiLock::new([client.lock("account:1"), client.lock("account:2")])?;
/// let guard = both.lock()?;
/// guard.unlock()
/// # }
/// ```
#[derive(Clone)]
pub struct MultiLock {
    lock: AsyncMultiLock,
    running: Vec<Arc<Running>>,
}

impl MultiLock {
    /// These locks as one; see the async [`new`](crate::MultiLock::new).
    pub fn new(members: impl IntoIterator<Item = Lock>) -> Result<Self, Error> {
        let members = members
            .into_iter()
            .map(|member| (member.lock, member.running));
        let (locks, running): (Vec<_>, Vec<_>) = members.unzip();
        let lock = AsyncMultiLock::new(locks)?;
        Ok(Self { lock, running })
    }

    /// Returns these locks with a fixed lease; see the async [`lease`](crate::MultiLock::lease).
    #[must_use]
    pub fn lease(&self, lease: Duration) -> Self {
        Self {
            lock: self.lock.lease(lease),
            running: self.running.clone(),
        }
    }

    /// Returns these locks for a given owner; see the async [`owned_by`](crate::MultiLock::owned_by).
    #[must_use]
    pub fn owned_by(&self, owner: &Owner) -> Self {
        Self {
            lock: self.lock.owned_by(owner),
            running: self.running.clone(),
        }
    }

    /// Acquires all of them; see the async [`lock`](crate::MultiLock::lock).
    pub fn lock(&self) -> Result<MultiGuard, Error> {
        let guard = self.running[0].wait(self.lock.of_this_thread().lock())?;
        Ok(self.guard(guard))
    }

    /// Acquires all of them if they are free now; see the async [`try_lock`](crate::MultiLock::try_lock).
    pub fn try_lock(&self) -> Result<Option<MultiGuard>, Error> {
        let guard = self.running[0].wait(self.lock.of_this_thread().try_lock())?;
        Ok(guard.map(|guard| self.guard(guard)))
    }

    /// Acquires all of them, waiting at most this long; see the async [`try_lock_for`](crate::MultiLock::try_lock_for).
    pub fn try_lock_for(&self, wait: Duration) -> Result<Option<MultiGuard>, Error> {
        let guard = self.running[0].wait(self.lock.of_this_thread().try_lock_for(wait))?;
        Ok(guard.map(|guard| self.guard(guard)))
    }

    /// Acquires all of them, waiting until `deadline`; see the async [`try_lock_until`](crate::MultiLock::try_lock_until).
    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<MultiGuard>, Error> {
        let guard = self.running[0].wait(self.lock.of_this_thread().try_lock_until(deadline))?;
        Ok(guard.map(|guard| self.guard(guard)))
    }

    /// Runs `body` on this thread with all of them held; see the blocking [`Lock::run`], which says what a loss does, and
    /// the async [`run`](crate::MultiLock::run).
    pub fn run<T, E, F>(&self, body: F) -> Result<T, E>
    where
        E: From<Error>,
        F: FnOnce(&MultiGuard) -> Result<T, E>,
    {
        section(self.lock()?, body)
    }

    /// Runs `body` if all of them are free now; see the async [`try_run`](crate::MultiLock::try_run).
    pub fn try_run<T, E, F>(&self, body: F) -> Result<Option<T>, E>
    where
        E: From<Error>,
        F: FnOnce(&MultiGuard) -> Result<T, E>,
    {
        let guard = self.try_lock()?;
        guard.map(|guard| section(guard, body)).transpose()
    }

    fn guard(&self, guard: AsyncGuard) -> MultiGuard {
        MultiGuard {
            guard,
            running: self.running.clone(),
        }
    }
}

impl fmt::Debug for MultiLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock.fmt(f)
    }
}

/// Several locks that are held together; see the async [`MultiGuard`](crate::MultiGuard).
///
/// # Examples
///
/// ```no_run
/// # fn run(both: redisson_lock::blocking::MultiLock) -> Result<(), redisson_lock::Error> {
/// let guard = both.lock()?;
/// println!("until {:?}", guard.valid_until());
/// guard.unlock()
/// # }
/// ```
#[must_use = "dropping a guard releases the locks immediately"]
pub struct MultiGuard {
    // Dropped in this order: the releases are started before the last handles wait for them.
    guard: AsyncGuard,
    running: Vec<Arc<Running>>,
}

impl MultiGuard {
    /// Releases all of them; see the async [`unlock`](crate::MultiGuard::unlock).
    pub fn unlock(self) -> Result<(), Error> {
        let Self { guard, running } = self;
        running[0].wait(guard.unlock())
    }

    /// Waits for a loss, at most this long: the first as soon as one of them is lost, `None` if all are still
    /// held after `wait`. See the async [`lost`](crate::MultiHold::lost).
    pub fn lost_within(&self, wait: Duration) -> Result<Option<MemberLoss>, Error> {
        let lost = self.guard.lost();
        self.running[0].wait(async { Ok(tokio::time::timeout(wait, lost).await.ok()) })
    }

    /// Extends each fixed lease; see the async [`extend`](crate::MultiGuard::extend).
    pub fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.running[0].wait(self.guard.extend(lease))
    }
}

impl Deref for MultiGuard {
    type Target = MultiHold;

    fn deref(&self) -> &MultiHold {
        &self.guard
    }
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(f)
    }
}

/// Runs the body with all holds, and releases them.
fn section<T, E: From<Error>>(
    guard: MultiGuard,
    body: impl FnOnce(&MultiGuard) -> Result<T, E>,
) -> Result<T, E> {
    super::section(guard, |guard| guard.not_lost(), MultiGuard::unlock, body)
}

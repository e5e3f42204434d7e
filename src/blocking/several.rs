//! Constructors of several locks as one, and of one lock across several servers.

use std::sync::Arc;
use std::time::Duration;

use super::lock::Lock;
use super::own_runtime::Running;
use super::verbs::{Blocking, BlockingGuard};
use crate::error::Error;

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
pub type MultiLock = Blocking<crate::MultiLock>;

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
pub type MultiGuard = BlockingGuard<crate::MultiGuard>;

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
pub type RedLock = Blocking<crate::RedLock>;

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
pub type RedGuard = BlockingGuard<crate::RedGuard>;

impl Blocking<crate::MultiLock> {
    /// Combines these locks into one; see the async [`new`](crate::MultiLock::new).
    pub fn new(members: impl IntoIterator<Item = Lock>) -> Result<Self, Error> {
        let (locks, running) = taken_apart(members);
        let lock = crate::MultiLock::new(locks)?;
        Ok(Self { lock, running })
    }
}

impl Blocking<crate::RedLock> {
    /// Combines these locks into one; see the async [`new`](crate::RedLock::new).
    pub fn new(members: impl IntoIterator<Item = Lock>) -> Result<Self, Error> {
        let (locks, running) = taken_apart(members);
        let lock = crate::RedLock::new(locks)?;
        Ok(Self { lock, running })
    }

    /// Returns this lock with a limit for the servers' responses; see the async
    /// [`member_timeout`](crate::RedLock::member_timeout).
    #[must_use]
    pub fn member_timeout(&self, member_timeout: Duration) -> Self {
        self.with(self.lock.member_timeout(member_timeout))
    }
}

/// The locks, and all their clients.
fn taken_apart(members: impl IntoIterator<Item = Lock>) -> (Vec<crate::Lock>, Arc<[Arc<Running>]>) {
    let mut running = Vec::new();
    let locks = members.into_iter().map(|member| {
        running.extend(member.running.iter().cloned());
        member.lock
    });
    (locks.collect(), running.into())
}

//! The two parts of a read-write lock.

use std::fmt;
use std::sync::Arc;

use super::lock::Lock;
use super::own_runtime::Running;
use crate::error::Error;
use crate::lock::{RwHolders, RwLock as AsyncRwLock};

/// A lock that any number of threads read, or one writes; see the async [`RwLock`](crate::RwLock).
///
/// # Examples
///
/// ```no_run
/// # fn run(client: redisson_lock::blocking::LockClient) -> Result<(), redisson_lock::Error> {
/// let report = client.rw_lock("report");
/// report.read().lock()?.unlock()?;
/// report.write().lock()?.unlock()
/// # }
/// ```
#[derive(Clone)]
pub struct RwLock {
    lock: AsyncRwLock,
    running: Arc<Running>,
}

impl RwLock {
    pub(super) fn new(lock: AsyncRwLock, running: Arc<Running>) -> Self {
        Self { lock, running }
    }

    /// Returns the part that any number of owners hold; see the async [`read`](crate::RwLock::read).
    pub fn read(&self) -> Lock {
        Lock::new(self.lock.read(), &self.running)
    }

    /// Returns the part that one owner holds alone; see the async [`write`](crate::RwLock::write).
    pub fn write(&self) -> Lock {
        Lock::new(self.lock.write(), &self.running)
    }

    /// Returns the name as given; see the async [`name`](crate::RwLock::name).
    pub fn name(&self) -> &str {
        self.lock.name()
    }

    /// Returns all holders of both parts; see the async [`inspect`](crate::RwLock::inspect).
    pub fn inspect(&self) -> Result<Option<RwHolders>, Error> {
        self.running.wait(self.lock.inspect())
    }
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.lock, f)
    }
}

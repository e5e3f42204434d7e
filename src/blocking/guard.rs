//! The methods that only the guard of a single lock has.

use std::future::IntoFuture;
use std::time::Duration;

use super::verbs::BlockingGuard;
use crate::error::Error;
use crate::kind::{Fenced, Unfenced};
use crate::lock::guarded::{Once, Script, Value};

/// One hold of a lock; see the async [`LockGuard`](crate::LockGuard).
///
/// # Examples
///
/// ```no_run
/// # fn run(lock: redisson_lock::blocking::Lock) -> Result<(), redisson_lock::Error> {
/// let guard: redisson_lock::blocking::LockGuard = lock.lock()?;
/// guard.unlock()
/// # }
/// ```
pub type LockGuard<K = Unfenced> = BlockingGuard<crate::LockGuard<K>>;

impl BlockingGuard<crate::LockGuard<Fenced>> {
    /// Returns the token of the hold; see the async [`token`](crate::HoldHandle::token).
    pub fn token(&self) -> u64 {
        self.guard.token()
    }
}

impl<K> BlockingGuard<crate::LockGuard<K>> {
    /// Runs a script only while this hold has the lock; see the async [`eval`](crate::HoldHandle::eval).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(guard: redisson_lock::blocking::LockGuard) -> Result<(), redisson_lock::Error> {
    /// let sell = redisson_lock::Script::new("return redis.call('decrby', KEYS[1], ARGV[1])")?;
    /// let left = guard.eval(&sell, &["left"], &["3"])?;
    /// # Ok(()) }
    /// ```
    pub fn eval(
        &self,
        script: &Script,
        keys: &[&str],
        args: &[impl AsRef<[u8]>],
    ) -> Result<Value, Error> {
        let write = self.guard.eval(script, keys, args);
        self.running[0].wait(write.into_future())
    }

    /// Runs a script at most once under an id; see the async [`once`](crate::GuardedWrite::once).
    pub fn eval_once(
        &self,
        script: &Script,
        keys: &[&str],
        args: &[impl AsRef<[u8]>],
        id: impl Into<String>,
        keep: Duration,
    ) -> Result<Once, Error> {
        let write = self.guard.eval(script, keys, args).once(id, keep);
        self.running[0].wait(write.into_future())
    }

    /// Makes a write hold a read hold of the same owner; see the async [`downgrade`](crate::LockGuard::downgrade).
    pub fn downgrade(self) -> Result<Self, Error> {
        let Self { guard, running } = self;
        let guard = running[0].wait(guard.downgrade())?;
        Ok(Self { guard, running })
    }

    /// Consumes the guard without releasing the hold; see the async [`detach`](crate::LockGuard::detach).
    pub fn detach(self) {
        self.guard.detach();
    }
}

//! A hold as its owner sees it, without a runtime: releasing, extending and detaching it.

use std::fmt;
use std::future::IntoFuture;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::own_runtime::Running;
use crate::core::LossReason;
use crate::error::Error;
use crate::kind::{Fenced, Unfenced};
use crate::lock::LockGuard as AsyncGuard;
use crate::lock::guarded::{Once, Script, Value};
use crate::lock::hold_handle::Hold;

/// One hold of a lock. Release it with [`unlock`](Self::unlock), or drop it to release it in the
/// background.
///
/// A guard remembers its owner: sent to another thread, it is released there as a hold of the thread
/// that acquired it. It protects nothing by itself: a holder that must not act after the lock is lost
/// checks [`is_lost`](Hold::is_lost) before each step.
///
/// # Dropping
///
/// The hold counts as released from the moment of the drop. A release is sent in the background and
/// retried until Redis confirms it, at most until the lease ends. Dropping does not wait and never
/// panics. Only if this is the client's last handle, it waits as [`LockClient`](super::LockClient)
/// says. A forgotten guard (`mem::forget`) keeps its lock, and its client, until the process ends.
///
/// # Examples
///
/// ```no_run
/// # fn step() {}
/// # fn run(lock: redisson_lock::blocking::Lock) -> Result<(), redisson_lock::Error> {
/// let guard = lock.lock()?;
/// for _ in 0..10 {
///     if guard.is_lost() {
///         break;
///     }
///     step();
/// }
/// guard.unlock() // `Error::Lost`, if it was
/// # }
/// ```
#[must_use = "dropping a guard releases the lock immediately"]
pub struct LockGuard<K = Unfenced> {
    // Dropped in this order: the release is started before the last handle waits for it.
    guard: AsyncGuard<K>,
    running: Arc<Running>,
}

impl LockGuard<Fenced> {
    /// The token of the hold; see the async [`token`](crate::HoldHandle::token).
    pub fn token(&self) -> u64 {
        self.guard.token()
    }
}

impl<K> LockGuard<K> {
    pub(super) fn new(guard: AsyncGuard<K>, running: Arc<Running>) -> Self {
        Self { guard, running }
    }

    /// Releases this hold, and reports whether it was held until now; see the async [`unlock`](crate::LockGuard::unlock).
    pub fn unlock(self) -> Result<(), Error> {
        let Self { guard, running } = self;
        running.wait(guard.unlock())
    }

    /// Waits for a loss, at most this long: the reason as soon as the hold is lost, `None` if it is
    /// still held after `wait`.
    ///
    /// # Errors
    ///
    /// [`Error::InsideRuntime`].
    ///
    /// # Examples
    ///
    /// Do something every second for as long as the lock is held:
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn step() {}
    /// # fn run(guard: redisson_lock::blocking::LockGuard) -> Result<(), redisson_lock::Error> {
    /// while guard.lost_within(Duration::from_secs(1))?.is_none() {
    ///     step();
    /// }
    /// # Ok(()) }
    /// ```
    pub fn lost_within(&self, wait: Duration) -> Result<Option<LossReason>, Error> {
        let lost = self.guard.lost();
        self.running
            .wait(async { Ok(tokio::time::timeout(wait, lost).await.ok()) })
    }

    /// Extends a fixed lease; see the async [`extend`](crate::LockGuard::extend).
    pub fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.running.wait(self.guard.extend(lease))
    }

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
        self.running.wait(write.into_future())
    }

    /// Runs it at most once under an id; see the async [`once`](crate::GuardedWrite::once).
    pub fn eval_once(
        &self,
        script: &Script,
        keys: &[&str],
        args: &[impl AsRef<[u8]>],
        id: impl Into<String>,
        keep: Duration,
    ) -> Result<Once, Error> {
        let write = self.guard.eval(script, keys, args).once(id, keep);
        self.running.wait(write.into_future())
    }

    /// Consumes the guard without releasing the hold; see the async [`detach`](crate::LockGuard::detach).
    pub fn detach(self) {
        self.guard.detach();
    }
}

impl<K> Deref for LockGuard<K> {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.guard
    }
}

impl<K> fmt::Debug for LockGuard<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(f)
    }
}

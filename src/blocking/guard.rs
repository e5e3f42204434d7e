//! A hold as its owner sees it, without a runtime: releasing, extending and detaching it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::own_runtime::Running;
use crate::core::LossReason;
use crate::error::Error;
use crate::hold_handle::{HoldHandle, HoldState};
use crate::lock::LockGuard as AsyncGuard;
use crate::owner::Owner;

/// One hold of a lock. Release it with [`unlock`](Self::unlock), or drop it to release it in the
/// background.
///
/// A guard remembers its owner: sent to another thread, it is released there as a hold of the thread
/// that acquired it. It protects nothing by itself: a holder that must not act after the lock is lost
/// checks [`is_lost`](Self::is_lost) before each step.
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
#[must_use = "dropping a guard releases the lock at once"]
pub struct LockGuard {
    // Dropped in this order: the release is started before the last handle waits for it.
    guard: AsyncGuard,
    running: Arc<Running>,
}

impl LockGuard {
    pub(super) fn new(guard: AsyncGuard, running: Arc<Running>) -> Self {
        Self { guard, running }
    }

    /// Releases this hold, and reports whether it was held until now. Waits for Redis' answer, at
    /// most for the command timeout.
    ///
    /// The guard is consumed in every case: a hold whose release has no answer is no longer
    /// renewed, and its release continues in the background.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the hold had already ended; [`Error::NoAnswer`], [`Error::Refused`] and
    /// [`Error::PermissionDenied`] if Redis did not confirm the release: the lock is then free no
    /// later than the end of its lease, unless an outer hold of the owner keeps it;
    /// [`Error::Closed`]; [`Error::InsideRuntime`]: the hold is released in the background.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(lock: redisson_lock::blocking::Lock) -> Result<(), redisson_lock::Error> {
    /// let guard = lock.lock()?;
    /// guard.unlock()
    /// # }
    /// ```
    pub fn unlock(self) -> Result<(), Error> {
        let Self { guard, running } = self;
        running.wait(guard.unlock())
    }

    /// Whether the hold was lost, from local information; no network round trip.
    ///
    /// The loss is shown by [`valid_until`](Self::valid_until), which precedes the server-side
    /// expiry.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(guard: redisson_lock::blocking::LockGuard) {
    /// assert!(!guard.is_lost());
    /// # }
    /// ```
    pub fn is_lost(&self) -> bool {
        self.guard.is_lost()
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

    /// Current state of the hold, from local information; no network round trip.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(guard: redisson_lock::blocking::LockGuard) {
    /// assert_eq!(guard.state(), redisson_lock::HoldState::Held);
    /// # }
    /// ```
    pub fn state(&self) -> HoldState {
        self.guard.state()
    }

    /// The instant up to which the hold is guaranteed without another renewal; always before the
    /// server-side expiry.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(guard: redisson_lock::blocking::LockGuard) {
    /// let left = guard.valid_until().saturating_duration_since(std::time::Instant::now());
    /// # }
    /// ```
    pub fn valid_until(&self) -> Instant {
        self.guard.valid_until()
    }

    /// The owner of this hold.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(guard: redisson_lock::blocking::LockGuard) {
    /// println!("held by {}", guard.owner());
    /// # }
    /// ```
    pub fn owner(&self) -> &Owner {
        self.guard.owner()
    }

    /// Extends a fixed lease to at least `lease` from now; never shortens it.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the hold has ended; [`Error::InvalidConfig`] if the watchdog renews it;
    /// [`Error::InvalidDuration`] if `lease` is out of bounds (10 ms to ten years) or reaches past
    /// the hold's [`max_hold`](super::Lock::max_hold); [`Error::NoAnswer`] and the server's
    /// refusals: the lease then ends when it did before, or later; [`Error::InsideRuntime`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn run(lock: redisson_lock::blocking::Lock) -> Result<(), redisson_lock::Error> {
    /// let guard = lock.lease(Duration::from_secs(10)).lock()?;
    /// guard.extend(Duration::from_secs(60))?;
    /// # guard.unlock() }
    /// ```
    pub fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.running.wait(self.guard.extend(lease))
    }

    /// Consumes the guard without releasing the hold: unless it has a fixed lease, it is renewed
    /// until [`Lock::unlock`](super::Lock::unlock) by the same owner,
    /// [`LockClient::close`](super::LockClient::close), or the drop of the client's last handle
    /// releases it.
    ///
    /// The owner is the thread that acquired it: another thread cannot unlock it, unless both name
    /// one owner with [`Lock::owned_by`](super::Lock::owned_by). The async
    /// [`LockGuard::detach`](crate::LockGuard::detach) says what follows from a loss or a fixed
    /// lease.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(lock: redisson_lock::blocking::Lock) -> Result<(), redisson_lock::Error> {
    /// lock.lock()?.detach();
    /// lock.unlock()
    /// # }
    /// ```
    pub fn detach(self) {
        self.guard.detach();
    }

    /// The name of the lock, without the key prefix.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(guard: redisson_lock::blocking::LockGuard) {
    /// println!("{} is held by {}", guard.name(), guard.owner());
    /// # }
    /// ```
    pub fn name(&self) -> &str {
        self.guard.name()
    }

    pub(super) fn handle(&self) -> HoldHandle {
        self.guard.handle()
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(f)
    }
}

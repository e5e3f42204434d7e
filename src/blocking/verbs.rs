//! All locks, with calls that wait on the calling thread: their common methods, and their guard.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redisson_lock_core::LossReason;

use super::own_runtime::Running;
use crate::base::runtime::InSpan;
use crate::error::Error;
use crate::lock::Wait;
use crate::lock::hold_handle::HoldState;
use crate::lock::verbs::{Adjustable, Held, note_released, settled};
use crate::names::owner::Owner;

/// A lock whose calls wait on the calling thread: [`Lock`](super::Lock), [`MultiLock`](super::MultiLock) and
/// [`RedLock`](super::RedLock) are this type over their async counterparts.
///
/// # Examples
///
/// ```no_run
/// # fn run(client: redisson_lock::blocking::LockClient) -> Result<(), redisson_lock::Error> {
/// use redisson_lock::blocking::{Blocking, Lock};
/// let stock: Blocking<redisson_lock::Lock> = client.lock("stock:42");
/// let same: Lock = stock;
/// same.lock()?.unlock()
/// # }
/// ```
#[derive(Clone)]
pub struct Blocking<L> {
    pub(super) lock: L,
    /// Those of its clients, the first of which has its timers.
    pub(super) running: Arc<[Arc<Running>]>,
}

impl<L> Blocking<L> {
    pub(super) fn with(&self, lock: L) -> Self {
        let running = Arc::clone(&self.running);
        Self { lock, running }
    }

    pub(super) fn wait<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.running[0].wait(call)
    }

    pub(super) fn guard<G>(&self, guard: G) -> BlockingGuard<G> {
        let running = Arc::clone(&self.running);
        BlockingGuard { guard, running }
    }
}

impl<L: Adjustable> Blocking<L> {
    /// Returns this lock with a fixed lease; see the async [`lease`](crate::Lock::lease).
    #[must_use]
    pub fn lease(&self, lease: Duration) -> Self {
        self.with(self.lock.leased(lease))
    }

    /// Returns this lock for a given owner, whichever thread calls it; see the async
    /// [`owned_by`](crate::Lock::owned_by).
    #[must_use]
    pub fn owned_by(&self, owner: &Owner) -> Self {
        self.with(self.lock.with_owner(owner))
    }

    /// Acquires the lock, waiting while another owner holds it; see the async [`lock`](crate::Lock::lock).
    pub fn lock(&self) -> Result<BlockingGuard<L::Guard>, Error> {
        self.acquire(Wait::Forever)?.ok_or(Error::Closed)
    }

    /// Acquires the lock if it is free now; see the async [`try_lock`](crate::Lock::try_lock).
    pub fn try_lock(&self) -> Result<Option<BlockingGuard<L::Guard>>, Error> {
        self.acquire(Wait::Never(None))
    }

    /// Acquires the lock, waiting for at most `wait`; see the async [`try_lock_for`](crate::Lock::try_lock_for).
    pub fn try_lock_for(&self, wait: Duration) -> Result<Option<BlockingGuard<L::Guard>>, Error> {
        self.acquire(Wait::of(wait))
    }

    /// Acquires the lock, waiting until `deadline`; see the async [`try_lock_until`](crate::Lock::try_lock_until).
    pub fn try_lock_until(
        &self,
        deadline: Instant,
    ) -> Result<Option<BlockingGuard<L::Guard>>, Error> {
        self.acquire(Wait::by(deadline))
    }

    /// Runs `body` on this thread with the lock held.
    ///
    /// A loss does not stop the body, because a thread cannot be stopped from outside as an async body can, by dropping
    /// it. A body that must not act after a loss checks [`is_lost`](crate::Hold::is_lost) before each step, or writes
    /// with [`eval`](BlockingGuard::eval). If the lock is lost before the body starts, the body does not run. Otherwise
    /// it runs to its end; if the lock was lost by then, its value is discarded and the call returns [`Error::Lost`].
    ///
    /// Returns the body's value if the lock was still held at its end: a failed unlock does not discard the value of a
    /// completed body, unless it reports a loss. If the body fails or panics, the lock is released in the background,
    /// and the error is returned or the panic resumed.
    ///
    /// # Errors
    ///
    /// Returns the errors of `body` and of [`lock`](Self::lock), and [`Error::Lost`] if the lock was lost before the
    /// body ended.
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
        F: FnOnce(&BlockingGuard<L::Guard>) -> Result<T, E>,
    {
        section(self.lock()?, body)
    }

    /// Runs `body` if the lock is free now; see [`run`](Self::run) and the async [`try_run`](crate::Lock::try_run).
    pub fn try_run<T, E, F>(&self, body: F) -> Result<Option<T>, E>
    where
        E: From<Error>,
        F: FnOnce(&BlockingGuard<L::Guard>) -> Result<T, E>,
    {
        let guard = self.try_lock()?;
        guard.map(|guard| section(guard, body)).transpose()
    }

    /// Runs `body` when the lock is free, waiting at most `wait`; see [`run`](Self::run) and the async
    /// [`try_run_for`](crate::Lock::try_run_for).
    pub fn try_run_for<T, E, F>(&self, wait: Duration, body: F) -> Result<Option<T>, E>
    where
        E: From<Error>,
        F: FnOnce(&BlockingGuard<L::Guard>) -> Result<T, E>,
    {
        let guard = self.try_lock_for(wait)?;
        guard.map(|guard| section(guard, body)).transpose()
    }

    /// Leader election: acquires the lock, runs `body` on this thread, and repeats both until a body returns without a
    /// loss of the lock; see the async [`lead`](crate::Lock::lead).
    ///
    /// A loss does not stop the body: it must check [`is_lost`](crate::Hold::is_lost) before each step, or wait with
    /// [`lost_within`](BlockingGuard::lost_within), and return. Its result after a loss is discarded, even an error,
    /// and it runs again when this process is the leader again.
    ///
    /// # Errors
    ///
    /// Returns the errors of `body`, and those of [`lock`](Self::lock) that are not temporary
    /// ([`Error::is_retryable`]).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn bill_the_next() {}
    /// # fn run(client: redisson_lock::blocking::LockClient) -> Result<(), redisson_lock::Error> {
    /// client.lock("billing:leader").lead(|held| {
    ///     while held.lost_within(Duration::from_secs(1))?.is_none() {
    ///         bill_the_next();
    ///     }
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn lead<T, E, F>(&self, mut body: F) -> Result<T, E>
    where
        E: From<Error>,
        F: FnMut(&BlockingGuard<L::Guard>) -> Result<T, E>,
    {
        loop {
            let guard = self.acquire(Wait::Standby)?.ok_or(Error::Closed)?;
            let span = guard.guard.span(true);
            let ended = {
                let _inside = InSpan::enter(span.as_deref());
                body(&guard)
            };
            let is_kept = guard.guard.not_lost().is_ok();
            // Answered, or left to the background: the next acquire of this owner waits for that.
            let _ = guard.unlock();
            if is_kept {
                return ended;
            }
        }
    }

    fn acquire(&self, wait: Wait) -> Result<Option<BlockingGuard<L::Guard>>, Error> {
        let lock = self.lock.of_this_thread();
        let acquired = self.wait(lock.acquire(wait))?;
        Ok(acquired.map(|guard| self.guard(guard)))
    }
}

impl<L: fmt::Debug> fmt::Debug for Blocking<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock.fmt(f)
    }
}

/// Runs the body with a guard, and releases it.
fn section<G: Held, T, E: From<Error>>(
    guard: BlockingGuard<G>,
    body: impl FnOnce(&BlockingGuard<G>) -> Result<T, E>,
) -> Result<T, E> {
    // A body whose lock is lost already does not begin.
    guard.guard.not_lost()?;
    let span = guard.guard.span(false);
    let value = {
        let _inside = InSpan::enter(span.as_deref());
        body(&guard)?
    };
    guard.guard.not_lost()?;
    let lock = guard.guard.lock_name().to_owned();
    let released = guard.unlock();
    note_released(&lock, &released);
    settled(Ok(value), released)
}

/// The guard of a lock: one hold, those of a [`MultiLock`](super::MultiLock), or a quorum. Release it with
/// [`unlock`](Self::unlock), or drop it to release it in the background.
///
/// A guard remembers its owner: sent to another thread, it is released there as a hold of the thread
/// that acquired it. It protects nothing by itself: a holder that must not act after the lock is lost
/// checks [`is_lost`](crate::Hold::is_lost) before each step.
///
/// # Dropping
///
/// The hold counts as released from the moment of the drop. A release is sent in the background and retried until Redis
/// confirms it, at most until the lease ends. Dropping never panics, and waits only if this is the client's last
/// handle, as described in [`LockClient`](super::LockClient). A forgotten guard (`mem::forget`) keeps its lock, and its
/// client, until the process ends.
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
pub struct BlockingGuard<G> {
    // Dropped in this order: the releases are started before the last handles wait for them.
    pub(super) guard: G,
    pub(super) running: Arc<[Arc<Running>]>,
}

impl<G: Held> BlockingGuard<G> {
    /// Releases the lock, and reports whether it was held until now; see the async
    /// [`unlock`](crate::LockGuard::unlock).
    pub fn unlock(self) -> Result<(), Error> {
        let Self { guard, running } = self;
        running[0].wait(guard.release())
    }

    /// Waits for a loss, for at most `wait`. Returns the loss as soon as the lock is lost, or `None` if it is still
    /// held after `wait`.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InsideRuntime`] inside a tokio runtime.
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
    pub fn lost_within(&self, wait: Duration) -> Result<Option<G::Loss>, Error> {
        let lost = self.guard.until_lost();
        self.running[0].wait(async { Ok(tokio::time::timeout(wait, lost).await.ok()) })
    }

    /// Extends a fixed lease; see the async [`extend`](crate::LockGuard::extend).
    pub fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.running[0].wait(self.guard.extended(lease))
    }
}

impl<G: Held> Deref for BlockingGuard<G> {
    type Target = G::Known;

    fn deref(&self) -> &G::Known {
        self.guard.known()
    }
}

impl<G: fmt::Debug> fmt::Debug for BlockingGuard<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(f)
    }
}

/// A blocking lock of any type, for code that does not care which; see the async
/// [`DistributedLock`](crate::DistributedLock).
///
/// # Examples
///
/// ```no_run
/// use redisson_lock::Error;
/// use redisson_lock::blocking::{DistributedLock, HeldLock};
///
/// fn count(lock: &impl DistributedLock) -> Result<(), Error> {
///     let guard = lock.lock()?;
///     println!("{} is {:?}", guard.name(), guard.state());
///     guard.unlock()
/// }
/// ```
pub trait DistributedLock: Send + Sync + 'static {
    /// Holds the lock until it is unlocked or dropped.
    type Guard: HeldLock;

    /// Returns the name as given, or the names of several locks, separated by commas.
    fn name(&self) -> &str;

    /// Acquires the lock, waiting while another owner holds it.
    fn lock(&self) -> Result<Self::Guard, Error>;

    /// Acquires the lock if it is free now.
    fn try_lock(&self) -> Result<Option<Self::Guard>, Error>;

    /// Acquires the lock, waiting for at most `wait`. Returns `None` if another owner had it.
    fn try_lock_for(&self, wait: Duration) -> Result<Option<Self::Guard>, Error>;
}

/// The guard of any blocking lock; see the async [`HeldLock`](crate::HeldLock).
///
/// # Examples
///
/// ```no_run
/// # use std::time::Duration;
/// use redisson_lock::blocking::HeldLock;
///
/// fn is_lost_within_a_second(guard: &impl HeldLock) -> bool {
///     matches!(guard.lost_within(Duration::from_secs(1)), Ok(Some(_)))
/// }
/// ```
pub trait HeldLock: Send + Sync + 'static {
    /// Returns the name of its lock.
    fn name(&self) -> &str;

    /// Returns the current state of the hold, from local information.
    fn state(&self) -> HoldState;

    /// Waits for a loss, for at most `wait`.
    fn lost_within(&self, wait: Duration) -> Result<Option<LossReason>, Error>;

    /// Releases the lock, and reports whether it was held until now.
    fn unlock(self) -> Result<(), Error>;
}

impl<L> DistributedLock for Blocking<L>
where
    L: Adjustable + Send + Sync + 'static,
    L::Guard: Send + Sync + 'static,
{
    type Guard = BlockingGuard<L::Guard>;

    fn name(&self) -> &str {
        self.lock.lock_name()
    }

    fn lock(&self) -> Result<Self::Guard, Error> {
        self.lock()
    }

    fn try_lock(&self) -> Result<Option<Self::Guard>, Error> {
        self.try_lock()
    }

    fn try_lock_for(&self, wait: Duration) -> Result<Option<Self::Guard>, Error> {
        self.try_lock_for(wait)
    }
}

impl<G: Held + Send + Sync + 'static> HeldLock for BlockingGuard<G> {
    fn name(&self) -> &str {
        self.guard.lock_name()
    }

    fn state(&self) -> HoldState {
        self.guard.hold_state()
    }

    fn lost_within(&self, wait: Duration) -> Result<Option<LossReason>, Error> {
        Ok(self.lost_within(wait)?.map(G::reason))
    }

    fn unlock(self) -> Result<(), Error> {
        self.unlock()
    }
}

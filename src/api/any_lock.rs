//! Any lock, for application code: the traits that all locks and guards implement, and a type-erased lock.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use redisson_lock_core::LossReason;

use crate::error::Error;
use crate::lock::Wait;
use crate::lock::hold_handle::HoldState;
use crate::lock::verbs::{Held, Lockable};

/// A lock of any type, for code that does not care which: [`Lock`](crate::Lock) of each kind,
/// [`MultiLock`](crate::MultiLock), [`RedLock`](crate::RedLock), [`AnyLock`], and test doubles.
///
/// Its methods do the same as the types' own methods of the same names, which need no import. Your own type may
/// implement it, for example to count calls; the crate `redisson-lock-test` has a double, `FakeLock`. For locks without
/// a runtime see [`blocking::DistributedLock`](crate::blocking::DistributedLock).
///
/// # Errors
///
/// See [`Lock::lock`](crate::Lock::lock) and the lock's own methods. A lock that another owner holds is not an error.
///
/// # Cancel safety
///
/// Dropping the future of a call leaves no hold: see [`Lock::lock`](crate::Lock::lock). Your own implementation must
/// guarantee the same.
///
/// # Examples
///
/// ```no_run
/// use redisson_lock::{DistributedLock, Error, HeldLock};
///
/// struct Stock<L> {
///     lock: L,
/// }
///
/// impl<L: DistributedLock> Stock<L> {
///     async fn count(&self) -> Result<(), Error> {
///         let guard = self.lock.lock().await?;
///         println!("{} is {:?}", guard.name(), guard.state());
///         guard.unlock().await
///     }
/// }
/// ```
pub trait DistributedLock: Send + Sync + 'static {
    /// Holds the lock until it is unlocked or dropped.
    type Guard: HeldLock;

    /// Returns the name as given, or the names of several locks, separated by commas.
    fn name(&self) -> &str;

    /// Acquires the lock, waiting while another owner holds it.
    fn lock(&self) -> impl Future<Output = Result<Self::Guard, Error>> + Send;

    /// Acquires the lock if it is free now.
    fn try_lock(&self) -> impl Future<Output = Result<Option<Self::Guard>, Error>> + Send;

    /// Acquires the lock, waiting for at most `wait`. Returns `None` if another owner had it.
    fn try_lock_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<Self::Guard>, Error>> + Send;
}

/// The guard of any lock. Dropping it releases the lock in the background.
///
/// # Cancel safety
///
/// Dropping the future of [`unlock`](Self::unlock) releases the lock in the background; dropping that of
/// [`lost`](Self::lost) changes nothing.
///
/// # Examples
///
/// ```no_run
/// use redisson_lock::HeldLock;
///
/// async fn stops<G: HeldLock>(guard: &G) {
///     println!("{}: {}", guard.name(), guard.lost().await);
/// }
/// ```
pub trait HeldLock: Send + Sync + 'static {
    /// Returns the name of its lock.
    fn name(&self) -> &str;

    /// Returns the current state of the hold, from local information.
    fn state(&self) -> HoldState;

    /// Resolves with the reason when the lock is lost, and never after a normal unlock.
    fn lost(&self) -> impl Future<Output = LossReason> + Send + use<Self>;

    /// Releases the lock, and reports whether it was held until now.
    fn unlock(self) -> impl Future<Output = Result<(), Error>> + Send;
}

impl<L: Lockable + Send + Sync + 'static> DistributedLock for L
where
    L::Guard: Send + Sync + 'static,
{
    type Guard = L::Guard;

    fn name(&self) -> &str {
        self.lock_name()
    }

    async fn lock(&self) -> Result<L::Guard, Error> {
        self.acquire(Wait::Forever).await?.ok_or(Error::Closed)
    }

    fn try_lock(&self) -> impl Future<Output = Result<Option<L::Guard>, Error>> + Send {
        self.acquire(Wait::Never(None))
    }

    async fn try_lock_for(&self, wait: Duration) -> Result<Option<L::Guard>, Error> {
        self.acquire(Wait::of(wait)).await
    }
}

impl<G: Held + Send + Sync + 'static> HeldLock for G {
    fn name(&self) -> &str {
        self.lock_name()
    }

    fn state(&self) -> HoldState {
        self.hold_state()
    }

    fn lost(&self) -> impl Future<Output = LossReason> + Send + use<G> {
        let lost = self.until_lost();
        async move { G::reason(lost.await) }
    }

    fn unlock(self) -> impl Future<Output = Result<(), Error>> + Send {
        self.release()
    }
}

/// A type-erased lock, for code that is handed "a lock" where it would take a `dyn` object. Cheap to clone.
///
/// # Examples
///
/// ```no_run
/// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
/// use redisson_lock::{AnyLock, DistributedLock, HeldLock};
/// let locks = [AnyLock::new(client.lock("stock:42")), AnyLock::new(client.fair_lock("till"))];
/// for lock in &locks {
///     lock.lock().await?.unlock().await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct AnyLock {
    lock: Arc<dyn ErasedLock>,
}

impl AnyLock {
    /// Erases the type of a lock.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: redisson_lock::LockClient) {
    /// let lock = redisson_lock::AnyLock::new(client.lock("stock:42"));
    /// # }
    /// ```
    pub fn new(lock: impl DistributedLock) -> Self {
        Self {
            lock: Arc::new(lock),
        }
    }
}

impl DistributedLock for AnyLock {
    type Guard = AnyGuard;

    fn name(&self) -> &str {
        self.lock.name()
    }

    fn lock(&self) -> impl Future<Output = Result<AnyGuard, Error>> + Send {
        self.lock.lock()
    }

    fn try_lock(&self) -> impl Future<Output = Result<Option<AnyGuard>, Error>> + Send {
        self.lock.try_lock()
    }

    fn try_lock_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<AnyGuard>, Error>> + Send {
        self.lock.try_lock_for(wait)
    }
}

impl fmt::Debug for AnyLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyLock")
            .field("name", &self.lock.name())
            .finish()
    }
}

/// The guard of an [`AnyLock`].
///
/// # Examples
///
/// ```no_run
/// # async fn run(lock: redisson_lock::AnyLock) -> Result<(), redisson_lock::Error> {
/// use redisson_lock::{DistributedLock, HeldLock};
/// let guard: redisson_lock::AnyGuard = lock.lock().await?;
/// guard.unlock().await
/// # }
/// ```
#[must_use = "dropping a guard releases the lock immediately"]
pub struct AnyGuard {
    guard: Box<dyn ErasedGuard>,
}

impl AnyGuard {
    fn new(guard: impl HeldLock) -> Self {
        Self {
            guard: Box::new(guard),
        }
    }
}

impl HeldLock for AnyGuard {
    fn name(&self) -> &str {
        self.guard.name()
    }

    fn state(&self) -> HoldState {
        self.guard.state()
    }

    fn lost(&self) -> impl Future<Output = LossReason> + Send + use<> {
        self.guard.lost()
    }

    fn unlock(self) -> impl Future<Output = Result<(), Error>> + Send {
        self.guard.unlock()
    }
}

impl fmt::Debug for AnyGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyGuard")
            .field("lock", &self.guard.name())
            .field("state", &self.guard.state())
            .finish()
    }
}

/// [`DistributedLock`] with its futures on the heap.
trait ErasedLock: Send + Sync {
    fn name(&self) -> &str;
    fn lock(&self) -> BoxFuture<'_, Result<AnyGuard, Error>>;
    fn try_lock(&self) -> BoxFuture<'_, Result<Option<AnyGuard>, Error>>;
    fn try_lock_for(&self, wait: Duration) -> BoxFuture<'_, Result<Option<AnyGuard>, Error>>;
}

impl<L: DistributedLock> ErasedLock for L {
    fn name(&self) -> &str {
        DistributedLock::name(self)
    }

    fn lock(&self) -> BoxFuture<'_, Result<AnyGuard, Error>> {
        Box::pin(async { DistributedLock::lock(self).await.map(AnyGuard::new) })
    }

    fn try_lock(&self) -> BoxFuture<'_, Result<Option<AnyGuard>, Error>> {
        Box::pin(async { Ok(DistributedLock::try_lock(self).await?.map(AnyGuard::new)) })
    }

    fn try_lock_for(&self, wait: Duration) -> BoxFuture<'_, Result<Option<AnyGuard>, Error>> {
        Box::pin(async move {
            let acquired = DistributedLock::try_lock_for(self, wait).await?;
            Ok(acquired.map(AnyGuard::new))
        })
    }
}

/// [`HeldLock`] with its futures on the heap.
trait ErasedGuard: Send + Sync {
    fn name(&self) -> &str;
    fn state(&self) -> HoldState;
    fn lost(&self) -> BoxFuture<'static, LossReason>;
    fn unlock(self: Box<Self>) -> BoxFuture<'static, Result<(), Error>>;
}

impl<G: HeldLock> ErasedGuard for G {
    fn name(&self) -> &str {
        HeldLock::name(self)
    }

    fn state(&self) -> HoldState {
        HeldLock::state(self)
    }

    fn lost(&self) -> BoxFuture<'static, LossReason> {
        Box::pin(HeldLock::lost(self))
    }

    fn unlock(self: Box<Self>) -> BoxFuture<'static, Result<(), Error>> {
        Box::pin(async move { HeldLock::unlock(*self).await })
    }
}

//! A lock without a server, for tests of code that is handed a lock.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redisson_lock::test_util::no_answer;
use redisson_lock::{DistributedLock, Error, HeldLock, HoldState, LockKind, LossReason};
use tokio::sync::{Notify, watch};

/// A lock without a client or a server: a double for code that takes any
/// [`DistributedLock`], or an [`AnyLock`](redisson_lock::AnyLock). Its clones are one lock. With the feature `blocking` it
/// is a double for code that takes any `blocking::DistributedLock`; call that on a thread that runs no async code.
///
/// It excludes: a call waits while a guard is open, or while [another owner](Self::take) has it. It does not nest. Time
/// takes nothing from it; a test takes it away, or has its calls [fail](Self::fail), as during an [outage](Self::disconnect).
///
/// # Examples
///
/// ```
/// use redisson_lock::{AnyLock, DistributedLock, HeldLock, LossReason};
/// use redisson_lock_test::FakeLock;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), redisson_lock::Error> {
/// let fake = FakeLock::new("stock:42");
/// let handed = AnyLock::new(fake.clone());
///
/// let guard = handed.lock().await?;
/// assert!(fake.is_held());
/// fake.take();
/// assert_eq!(guard.lost().await, LossReason::Taken);
/// assert!(handed.try_lock().await?.is_none());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct FakeLock {
    lock: Arc<Inside>,
}

struct Inside {
    name: String,
    state: Mutex<State>,
    /// Another call may acquire it, or fail.
    changed: Notify,
}

#[derive(Default)]
struct State {
    /// The hold that has it.
    held: Option<watch::Sender<HoldState>>,
    is_taken: bool,
    failure: Option<Box<dyn Fn() -> Error + Send>>,
}

impl FakeLock {
    /// A free lock of this name.
    pub fn new(name: impl Into<String>) -> Self {
        let lock = Inside {
            name: name.into(),
            state: Mutex::default(),
            changed: Notify::new(),
        };
        Self {
            lock: Arc::new(lock),
        }
    }

    /// Another owner has it from now on, until [`free`](Self::free). An open guard has lost it, with
    /// [`LossReason::Taken`].
    pub fn take(&self) {
        self.lose(LossReason::Taken);
        self.lock.state.lock().is_taken = true;
    }

    /// The other owner releases it: the next call acquires it.
    pub fn free(&self) {
        self.lock.state.lock().is_taken = false;
        self.lock.changed.notify_waiters();
    }

    /// Ends the hold of an open guard, for this reason. The lock is free then.
    pub fn lose(&self, reason: LossReason) {
        if let Some(held) = self.lock.state.lock().held.take() {
            held.send_replace(HoldState::Lost(reason));
        }
        self.lock.changed.notify_waiters();
    }

    /// Has each call fail with such an error from now on, those that wait too, until [`recover`](Self::recover). Open
    /// guards keep their hold.
    pub fn fail(&self, error: impl Fn() -> Error + Send + 'static) {
        self.lock.state.lock().failure = Some(Box::new(error));
        self.lock.changed.notify_waiters();
    }

    /// Has each call fail with [`Error::NoAnswer`], as while the server cannot be reached, until
    /// [`recover`](Self::recover). Open guards keep their hold.
    ///
    /// # Examples
    ///
    /// ```
    /// # use redisson_lock::DistributedLock;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let fake = redisson_lock_test::FakeLock::new("stock:42");
    /// fake.disconnect();
    /// let failed = fake.lock().await.expect_err("there is no server");
    /// assert!(failed.is_retryable());
    /// # }
    /// ```
    pub fn disconnect(&self) {
        let name = self.lock.name.clone();
        self.fail(move || no_answer(&name));
    }

    /// No call fails any more.
    pub fn recover(&self) {
        self.lock.state.lock().failure = None;
    }

    /// Whether a guard holds it.
    pub fn is_held(&self) -> bool {
        self.lock.state.lock().held.is_some()
    }

    fn attempt(&self) -> Result<Option<FakeGuard>, Error> {
        let mut state = self.lock.state.lock();
        if let Some(failure) = &state.failure {
            return Err(failure());
        }
        if state.is_taken || state.held.is_some() {
            return Ok(None);
        }
        let (held, hold) = watch::channel(HoldState::Held);
        state.held = Some(held);
        let lock = self.clone();
        Ok(Some(FakeGuard { lock, hold }))
    }
}

impl DistributedLock for FakeLock {
    type Guard = FakeGuard;

    fn name(&self) -> &str {
        &self.lock.name
    }

    async fn lock(&self) -> Result<FakeGuard, Error> {
        loop {
            let changed = self.lock.changed.notified();
            if let Some(guard) = self.attempt()? {
                return Ok(guard);
            }
            changed.await;
        }
    }

    async fn try_lock(&self) -> Result<Option<FakeGuard>, Error> {
        self.attempt()
    }

    async fn try_lock_for(&self, wait: Duration) -> Result<Option<FakeGuard>, Error> {
        match tokio::time::timeout(wait, self.lock()).await {
            Ok(acquired) => acquired.map(Some),
            Err(_) => Ok(None),
        }
    }
}

impl fmt::Debug for FakeLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeLock")
            .field("name", &self.lock.name)
            .field("is_held", &self.is_held())
            .finish()
    }
}

/// The guard of a [`FakeLock`].
#[must_use = "dropping a guard releases the lock immediately"]
pub struct FakeGuard {
    lock: FakeLock,
    hold: watch::Receiver<HoldState>,
}

impl FakeGuard {
    /// Whether it was held until now.
    fn end(&self) -> Result<(), Error> {
        match self.state() {
            HoldState::Lost(reason) => Err(Error::Lost {
                lock: self.name().to_owned(),
                kind: LockKind::Plain,
                reason,
            }),
            HoldState::Held => {
                let held = self.lock.lock.state.lock().held.take();
                held.inspect(|held| _ = held.send_replace(HoldState::Released));
                self.lock.lock.changed.notify_waiters();
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl HeldLock for FakeGuard {
    fn name(&self) -> &str {
        &self.lock.lock.name
    }

    fn state(&self) -> HoldState {
        *self.hold.borrow()
    }

    fn lost(&self) -> impl Future<Output = LossReason> + Send + use<> {
        let mut hold = self.hold.clone();
        async move {
            let is_lost = |state: &HoldState| matches!(state, HoldState::Lost(_));
            let lost = hold.wait_for(is_lost).await.map(|state| *state);
            match lost {
                Ok(HoldState::Lost(reason)) => reason,
                // It was released: nothing is left to lose.
                _ => std::future::pending().await,
            }
        }
    }

    async fn unlock(self) -> Result<(), Error> {
        self.end()
    }
}

impl Drop for FakeGuard {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl fmt::Debug for FakeGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeGuard")
            .field("lock", &self.lock.lock.name)
            .field("state", &self.state())
            .finish()
    }
}

#[cfg(feature = "blocking")]
mod on_threads {
    use std::future::Future;
    use std::time::Duration;

    use redisson_lock::{Error, HeldLock, HoldState, LossReason, blocking};
    use tokio::runtime::Builder;

    use super::{FakeGuard, FakeLock};

    impl blocking::DistributedLock for FakeLock {
        type Guard = FakeGuard;

        fn name(&self) -> &str {
            &self.lock.name
        }

        fn lock(&self) -> Result<FakeGuard, Error> {
            wait(redisson_lock::DistributedLock::lock(self))
        }

        fn try_lock(&self) -> Result<Option<FakeGuard>, Error> {
            self.attempt()
        }

        fn try_lock_for(&self, limit: Duration) -> Result<Option<FakeGuard>, Error> {
            wait(redisson_lock::DistributedLock::try_lock_for(self, limit))
        }
    }

    impl blocking::HeldLock for FakeGuard {
        fn name(&self) -> &str {
            HeldLock::name(self)
        }

        fn state(&self) -> HoldState {
            HeldLock::state(self)
        }

        fn lost_within(&self, limit: Duration) -> Result<Option<LossReason>, Error> {
            wait(async { Ok(tokio::time::timeout(limit, self.lost()).await.ok()) })
        }

        fn unlock(self) -> Result<(), Error> {
            self.end()
        }
    }

    fn wait<T>(call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let runtime = Builder::new_current_thread().enable_time().build();
        runtime.map_err(|_| Error::NoRuntime)?.block_on(call)
    }
}

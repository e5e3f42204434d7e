//! The blocking client: creates locks, and shuts everything down.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::lock::Lock;
use super::own_runtime::Running;
use crate::client::ClientStats;
use crate::client_handle::CloseReport;
use crate::error::Error;
use crate::owner::Owner;

/// A connection to Redis that creates locks. Cheap to clone; all clones are one client.
///
/// It has one thread of its own, for any number of locks. Dropping its last handle (the last of its
/// clients, locks and guards) waits until the releases that were started are answered; it gives up when
/// none was answered for two command timeouts (6 s by default), and after the watchdog timeout (30 s
/// by default) in any case. Inside of a tokio runtime the drop does not wait; the end is then left to
/// another thread.
///
/// # Examples
///
/// ```no_run
/// # fn run() -> Result<(), redisson_lock::Error> {
/// use redisson_lock::blocking::LockClient;
/// let client = LockClient::connect("redis://127.0.0.1:6379")?;
/// let guard = client.lock("stock:42").lock()?;
/// guard.unlock()
/// # }
/// ```
#[derive(Clone)]
pub struct LockClient {
    running: Arc<Running>,
}

impl LockClient {
    pub(super) fn new(running: Arc<Running>) -> Self {
        Self { running }
    }

    /// The client id: a UUID, the first half of every owner's field.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: redisson_lock::blocking::LockClient) {
    /// assert_eq!(client.id().len(), 36);
    /// # }
    /// ```
    pub fn id(&self) -> &str {
        self.running.client.id()
    }

    /// A lock by its name. Does no I/O; the lock's first operation reports an invalid name.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: redisson_lock::blocking::LockClient) {
    /// let stock = client.lock("stock:42");
    /// # }
    /// ```
    pub fn lock(&self, name: impl Into<String>) -> Lock {
        Lock::new(self.running.client.lock(name), Arc::clone(&self.running))
    }

    /// A new owner, different from every other, for [`Lock::owned_by`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: redisson_lock::blocking::LockClient) {
    /// assert_ne!(client.owner(), client.owner());
    /// # }
    /// ```
    pub fn owner(&self) -> Owner {
        self.running.client.owner()
    }

    /// The owner with this thread id, for callers that need a fixed number on the wire.
    ///
    /// This crate assigns ids from 2^62 up: choose another range, unless you mean to share such an
    /// owner.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: redisson_lock::blocking::LockClient) {
    /// let owner = client.owner_with_id(-7);
    /// assert!(owner.to_string().ends_with(":-7"));
    /// # }
    /// ```
    pub fn owner_with_id(&self, thread_id: i64) -> Owner {
        self.running.client.owner_with_id(thread_id)
    }

    /// Client statistics from local information, with running totals since the client was created.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: redisson_lock::blocking::LockClient) {
    /// println!("{} locks lost so far", client.stats().lost_total);
    /// # }
    /// ```
    pub fn stats(&self) -> ClientStats {
        self.running.client.stats()
    }

    /// Whether every command connection is up, from local information; see the async
    /// [`is_connected`](crate::LockClient::is_connected).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: redisson_lock::blocking::LockClient) {
    /// let status = if client.is_connected() { 200 } else { 503 };
    /// # }
    /// ```
    pub fn is_connected(&self) -> bool {
        self.running.client.is_connected()
    }

    /// Asks the server for an answer on every command connection; answers how long that took.
    ///
    /// # Errors
    ///
    /// Those of the async [`ping`](crate::LockClient::ping); [`Error::InsideRuntime`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: redisson_lock::blocking::LockClient) -> Result<(), redisson_lock::Error> {
    /// println!("answered after {:?}", client.ping()?);
    /// # Ok(()) }
    /// ```
    pub fn ping(&self) -> Result<Duration, Error> {
        self.running.wait(self.running.client.ping())
    }

    /// Returns the permissions that the client's user lacks for this lock; see the async
    /// [`check`](crate::LockClient::check).
    ///
    /// # Errors
    ///
    /// Those of the async call; [`Error::InsideRuntime`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: redisson_lock::blocking::LockClient) -> Result<(), redisson_lock::Error> {
    /// let missing = client.check("stock:42")?;
    /// assert!(missing.is_empty(), "missing permissions: {}", missing.join(" "));
    /// # Ok(()) }
    /// ```
    pub fn check(&self, name: impl Into<String>) -> Result<Vec<String>, Error> {
        self.running.wait(self.running.client.check(name))
    }

    /// Closes the client: no new holds, a `grace` period for open guards, then the shutdown. Returns
    /// when that is done.
    ///
    /// As the async [`LockClient::close`](crate::LockClient::close): new calls, and threads that
    /// wait for a lock, get [`Error::Closed`] at once. Open guards have `grace` to be released and
    /// are renewed meanwhile; what is then still open is lost with
    /// [`LossReason::Closed`](crate::LossReason::Closed), and reported. Releases in flight have
    /// the same `grace`, and at least the command timeout; after that `close` waits until none has
    /// ended for a command timeout. Closing a closed client does nothing.
    ///
    /// # Errors
    ///
    /// [`Error::InsideRuntime`]: nothing was closed.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn run(client: redisson_lock::blocking::LockClient) -> Result<(), redisson_lock::Error> {
    /// let report = client.close(Duration::from_secs(5))?;
    /// if !report.abandoned.is_empty() {
    ///     eprintln!("still held: {:?}", report.abandoned);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn close(&self, grace: Duration) -> Result<CloseReport, Error> {
        let closing = async { Ok(self.running.client.close(grace).await) };
        self.running.wait(closing)
    }
}

impl fmt::Debug for LockClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockClient")
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}

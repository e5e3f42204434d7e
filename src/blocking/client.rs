//! The blocking client: creates locks, and shuts everything down.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "fred")]
use fred::interfaces::ClientLike;

use super::lock::Lock;
use super::own_runtime::Running;
use super::rw::RwLock;
use crate::api::builder::LockClientBuilder;
use crate::api::client::ClientStats;
use crate::api::find::FoundLock;
use crate::error::Error;
use crate::kind::{Fenced, LockKind};
use crate::names::owner::Owner;
use crate::state::client_handle::CloseReport;

/// A connection to Redis that creates locks. Cheap to clone; all clones are one client.
///
/// It has its own thread, for any number of locks. Dropping its last handle (the last of its clients, locks and guards)
/// waits until Redis has answered the releases that were started. It gives up when none was answered for two command
/// timeouts (6 s by default), and after the watchdog timeout (30 s by default) in any case. Inside a tokio runtime the
/// drop does not wait, and another thread ends the client.
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

impl LockClientBuilder {
    /// Connects like [`connect`](Self::connect), and returns a client whose calls wait on the calling thread.
    ///
    /// # Errors
    ///
    /// See [`connect`](Self::connect). Also [`Error::NoAnswer`] if the client's thread cannot be started, and
    /// [`Error::InsideRuntime`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run() -> Result<(), redisson_lock::Error> {
    /// let builder = redisson_lock::LockClient::builder().key_prefix("shop:");
    /// let client = builder.connect_blocking("redis://127.0.0.1:6379")?;
    /// # Ok(()) }
    /// ```
    pub fn connect_blocking(self, url: &str) -> Result<LockClient, Error> {
        Running::start(self.connect(url)).map(|running| LockClient { running })
    }

    /// Connects like [`from_fred`](Self::from_fred), and returns a client whose calls wait on the calling thread.
    ///
    /// # Errors
    ///
    /// See [`connect_blocking`](Self::connect_blocking).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: fred::prelude::Client) -> Result<(), redisson_lock::Error> {
    /// let client = redisson_lock::LockClient::builder().from_fred_blocking(&client)?;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "fred")]
    pub fn from_fred_blocking(self, client: &impl ClientLike) -> Result<LockClient, Error> {
        Running::start(self.from_fred(client)).map(|running| LockClient { running })
    }
}

impl LockClient {
    /// Connects with default settings; see the async [`connect`](crate::LockClient::connect).
    pub fn connect(url: &str) -> Result<Self, Error> {
        LockClientBuilder::new().connect_blocking(url)
    }

    /// Returns the client id; see the async [`id`](crate::LockClient::id).
    pub fn id(&self) -> &str {
        self.running.client.id()
    }

    /// Returns a lock by its name; see the async [`lock`](crate::LockClient::lock).
    pub fn lock(&self, name: impl Into<String>) -> Lock {
        self.lock_of(LockKind::Plain, name)
    }

    /// Returns a fenced lock; see the async [`fenced_lock`](crate::LockClient::fenced_lock).
    pub fn fenced_lock(&self, name: impl Into<String>) -> Lock<Fenced> {
        let lock = self.running.client.fenced_lock(name);
        Lock::new(lock, &self.running)
    }

    /// Returns a spin lock; see the async [`spin_lock`](crate::LockClient::spin_lock).
    pub fn spin_lock(&self, name: impl Into<String>) -> Lock {
        self.lock_of(LockKind::Spin, name)
    }

    /// Returns a string lock; see the async [`string_lock`](crate::LockClient::string_lock).
    pub fn string_lock(&self, name: impl Into<String>) -> Lock {
        self.lock_of(LockKind::String, name)
    }

    /// Returns a fair lock; see the async [`fair_lock`](crate::LockClient::fair_lock).
    pub fn fair_lock(&self, name: impl Into<String>) -> Lock {
        self.lock_of(LockKind::Fair, name)
    }

    /// Returns a read-write lock; see the async [`rw_lock`](crate::LockClient::rw_lock).
    pub fn rw_lock(&self, name: impl Into<String>) -> RwLock {
        let lock = self.running.client.rw_lock(name);
        RwLock::new(lock, Arc::clone(&self.running))
    }

    /// Returns a lock of this kind; see the async [`lock_of`](crate::LockClient::lock_of).
    pub fn lock_of(&self, kind: LockKind, name: impl Into<String>) -> Lock {
        let lock = self.running.client.lock_of(kind, name);
        Lock::new(lock, &self.running)
    }

    /// Returns a new owner; see the async [`owner`](crate::LockClient::owner).
    pub fn owner(&self) -> Owner {
        self.running.client.owner()
    }

    /// Returns the owner with this thread id; see the async [`owner_with_id`](crate::LockClient::owner_with_id).
    pub fn owner_with_id(&self, thread_id: i64) -> Owner {
        self.running.client.owner_with_id(thread_id)
    }

    /// Returns statistics; see the async [`stats`](crate::LockClient::stats).
    pub fn stats(&self) -> ClientStats {
        self.running.client.stats()
    }

    /// Returns whether every command connection is up; see the async [`is_connected`](crate::LockClient::is_connected).
    pub fn is_connected(&self) -> bool {
        self.running.client.is_connected()
    }

    /// Pings the server on every command connection; see the async [`ping`](crate::LockClient::ping).
    pub fn ping(&self) -> Result<Duration, Error> {
        self.running.wait(self.running.client.ping())
    }

    /// Returns the locks that are held and whose names match; see the async
    /// [`find_held`](crate::LockClient::find_held).
    pub fn find_held(&self, pattern: &str) -> Result<Vec<FoundLock>, Error> {
        self.running.wait(self.running.client.find_held(pattern))
    }

    /// Returns the permissions that the client's user lacks for this lock; see the async
    /// [`check`](crate::LockClient::check).
    pub fn check(&self, name: impl Into<String>) -> Result<Vec<String>, Error> {
        self.running.wait(self.running.client.check(name))
    }

    /// Closes the client, and returns when that is done; see the async [`close`](crate::LockClient::close).
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

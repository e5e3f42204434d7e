//! The settings of a blocking client, and its construction.

use std::time::Duration;

use fred::interfaces::ClientLike;

use super::client::LockClient;
use super::own_runtime::Running;
use crate::builder::LockClientBuilder as AsyncBuilder;
use crate::error::Error;

/// Settings of a client. The defaults suit most uses.
///
/// # Examples
///
/// ```no_run
/// # use std::time::Duration;
/// # fn run() -> Result<(), redisson_lock::Error> {
/// let client = redisson_lock::blocking::LockClient::builder()
///     .key_prefix("shop:")
///     .command_timeout(Duration::from_secs(1))
///     .connect("redis://127.0.0.1:6379")?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until it connects"]
pub struct LockClientBuilder {
    settings: AsyncBuilder,
}

/// The same settings, read from a configuration perhaps, for a blocking client.
impl From<AsyncBuilder> for LockClientBuilder {
    fn from(settings: AsyncBuilder) -> Self {
        Self { settings }
    }
}

impl LockClient {
    /// Connects with default settings; [`crate::LockClient::connect`] lists the forms that an address may have.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] for an address that cannot be used; [`Error::NoAnswer`] if no server
    /// answers there within the command timeout (3 s), or the client's thread cannot be started;
    /// [`Error::Tls`], [`Error::Auth`], [`Error::Refused`]; [`Error::InsideRuntime`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run() -> Result<(), redisson_lock::Error> {
    /// let client = redisson_lock::blocking::LockClient::connect("redis://127.0.0.1:6379")?;
    /// # Ok(()) }
    /// ```
    pub fn connect(url: &str) -> Result<Self, Error> {
        Self::builder().connect(url)
    }

    /// Settings to change before connecting.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn run() -> Result<(), redisson_lock::Error> {
    /// let client = redisson_lock::blocking::LockClient::builder()
    ///     .watchdog_timeout(Duration::from_secs(10))
    ///     .connect("redis://127.0.0.1:6379")?;
    /// # Ok(()) }
    /// ```
    pub fn builder() -> LockClientBuilder {
        LockClientBuilder::new()
    }

    /// Connects with the settings of a fred client: address, credentials, TLS, protocol version.
    ///
    /// Connections of its own are opened; the given client is never used, reconnected or quit, and
    /// it need not be connected. A credential provider of its settings is asked for each connection, also to the nodes of a
    /// cluster and to sentinels.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(pool: fred::prelude::Pool) -> Result<(), redisson_lock::Error> {
    /// let client = redisson_lock::blocking::LockClient::from_fred(&pool)?;
    /// # Ok(()) }
    /// ```
    pub fn from_fred(client: &impl ClientLike) -> Result<Self, Error> {
        Self::builder().from_fred(client)
    }
}

impl LockClientBuilder {
    pub(super) fn new() -> Self {
        Self {
            settings: AsyncBuilder::new(),
        }
    }

    /// The lease of a hold without a fixed lease; it is renewed at every third of this. Default 30
    /// s, as Redisson's `lockWatchdogTimeout`; 300 ms to one day.
    ///
    /// A crashed holder blocks others for at most this long.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// let builder = redisson_lock::blocking::LockClient::builder().watchdog_timeout(Duration::from_secs(10));
    /// ```
    pub fn watchdog_timeout(self, watchdog_timeout: Duration) -> Self {
        Self {
            settings: self.settings.watchdog_timeout(watchdog_timeout),
        }
    }

    /// Time limit for a command, including one resend. Default 3 s; above zero, and below a third
    /// of the watchdog timeout.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// let builder = redisson_lock::blocking::LockClient::builder().command_timeout(Duration::from_secs(1));
    /// ```
    pub fn command_timeout(self, command_timeout: Duration) -> Self {
        Self {
            settings: self.settings.command_timeout(command_timeout),
        }
    }

    /// Number of command connections; all commands of one lock use the same one. Default 1; 1 to
    /// 16.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// let builder = redisson_lock::blocking::LockClient::builder().connections(2);
    /// ```
    pub fn connections(self, connections: usize) -> Self {
        Self {
            settings: self.settings.connections(connections),
        }
    }

    /// Whether to `CLIENT KILL` a lost connection before using its replacement. Default on.
    ///
    /// Needs `+client|info +client|kill`. Switch it off behind a proxy that shares connections
    /// between clients; the page of guarantees lists the risks without it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// let builder = redisson_lock::blocking::LockClient::builder().connection_fence(false);
    /// ```
    pub fn connection_fence(self, connection_fence: bool) -> Self {
        Self {
            settings: self.settings.connection_fence(connection_fence),
        }
    }

    /// A prefix for every lock name, the counterpart of Redisson's `NameMapper`. Default none.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// let builder = redisson_lock::blocking::LockClient::builder().key_prefix("shop:");
    /// ```
    pub fn key_prefix(self, key_prefix: impl Into<String>) -> Self {
        Self {
            settings: self.settings.key_prefix(key_prefix),
        }
    }

    /// The [`max_hold`](super::Lock::max_hold) of every lock that does not set its own. Default
    /// none; 10 ms to ten years.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// let builder = redisson_lock::blocking::LockClient::builder().max_hold(Duration::from_secs(3600));
    /// ```
    pub fn max_hold(self, max_hold: Duration) -> Self {
        Self {
            settings: self.settings.max_hold(max_hold),
        }
    }

    /// The name of this client's connections in `CLIENT LIST`. Default none. Printable ASCII without
    /// spaces; needs `+client|setname`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// let builder = redisson_lock::blocking::LockClient::builder().client_name("orders-7");
    /// ```
    pub fn client_name(self, client_name: impl Into<String>) -> Self {
        Self {
            settings: self.settings.client_name(client_name),
        }
    }

    /// The [`retry_for`](super::Lock::retry_for) of every lock. Default: none, so that
    /// [`lock`](super::Lock::lock) fails with its first attempt, after the command timeout at the latest.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// let builder = redisson_lock::blocking::LockClient::builder().retry_for(Duration::from_secs(60));
    /// ```
    pub fn retry_for(self, retry_for: Duration) -> Self {
        Self {
            settings: self.settings.retry_for(retry_for),
        }
    }

    /// Whether an unlock hands the lock to the next caller of this client instead of freeing it. Default on, for at most
    /// 32 hand-offs or 50 ms in a row, whichever comes first; half of that while other clients listen.
    ///
    /// Needs `+hdel` and the connection fence; without either, every release frees the lock.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// let builder = redisson_lock::blocking::LockClient::builder().handoff(false);
    /// ```
    pub fn handoff(self, handoff: bool) -> Self {
        Self {
            settings: self.settings.handoff(handoff),
        }
    }

    /// Connects to an address; [`crate::LockClient::connect`] lists the forms that it may have.
    ///
    /// # Errors
    ///
    /// As [`LockClient::connect`]; [`Error::InvalidConfig`] and [`Error::InvalidDuration`] for a
    /// setting out of bounds.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run() -> Result<(), redisson_lock::Error> {
    /// let client = redisson_lock::blocking::LockClient::builder().connect("redis://127.0.0.1:6379")?;
    /// # Ok(()) }
    /// ```
    pub fn connect(self, url: &str) -> Result<LockClient, Error> {
        Running::start(self.settings.connect(url)).map(LockClient::new)
    }

    /// Connects with the settings of a fred client; see [`LockClient::from_fred`].
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: fred::prelude::Client) -> Result<(), redisson_lock::Error> {
    /// let client = redisson_lock::blocking::LockClient::builder().from_fred(&client)?;
    /// # Ok(()) }
    /// ```
    pub fn from_fred(self, client: &impl ClientLike) -> Result<LockClient, Error> {
        Running::start(self.settings.from_fred(client)).map(LockClient::new)
    }
}

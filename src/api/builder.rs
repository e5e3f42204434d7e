//! The settings of a client, their bounds, and the construction of a client.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "fred")]
use fred::interfaces::ClientLike;
use redisson_lock_core::{HandOff, RELEASE_PAUSE, Rules};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::api::client::LockClient;
use crate::base::backoff::Backoff;
use crate::base::runtime::{Runtime, event, has_timers};
use crate::error::Error;
use crate::lock::SENDS;
use crate::lock::renewal;
use crate::names::wire::Announce;
use crate::redis::{
    AddressMap, Credentials, CredentialsProvider, Redis, Settings, SyncReplicas, Tls,
};
use crate::state::bounds::{check_lease, check_replicas, check_timeouts};
use crate::state::client_handle::ClientHandle;
use crate::state::entry::Locks;
use crate::state::measure;
use crate::state::shared::{Config, Shared};

/// Settings of a client. The defaults suit most uses.
///
/// # Examples
///
/// ```no_run
/// # async fn run() -> Result<(), redisson_lock::Error> {
/// let builder = redisson_lock::LockClient::builder().key_prefix("shop:").connections(2);
/// let client = builder.connect("redis://127.0.0.1:6379").await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until it connects"]
pub struct LockClientBuilder {
    watchdog_timeout: Duration,
    command_timeout: Option<Duration>,
    connections: usize,
    connection_fence: bool,
    tracking: bool,
    key_prefix: String,
    client_name: Option<String>,
    max_hold: Option<Duration>,
    retry_for: Option<Duration>,
    connect_for: Option<Duration>,
    fair_wait: Duration,
    pub(crate) handoff: HandOff,
    pub(crate) close_grace: Option<Duration>,
    sentinel_credentials: Option<Credentials>,
    credentials_provider: Option<Arc<dyn CredentialsProvider>>,
    announce: Announce,
    address_map: Option<AddressMap>,
    sync_replicas: Option<SyncReplicas>,
    tls: Option<Tls>,
}

impl LockClient {
    /// Connects with default settings.
    ///
    /// | URL | leads to |
    /// |---|---|
    /// | `redis://[user:password@]host[:port][/database]` | one server; port 6379 and database 0 unless given |
    /// | `redis+unix://[user:password@localhost]/path/to/socket` | one server through a Unix socket |
    /// | `redis-cluster://[user:password@]host[:port][?node=host:port&…]` | a cluster, port 6379; `node` names another of its nodes |
    /// | `redis-sentinel://[user:password@]host[:port][/database]?sentinelServiceName=name[&node=host:port&…][&sentinelUsername=user][&sentinelPassword=password]` | the primary that the sentinels know by this name; host, port (26379) and `node` are sentinels |
    ///
    /// `valkey` may replace `redis`. `rediss://` and `valkeys://`, also with `-cluster` and `-sentinel`, connect over
    /// TLS (feature `tls-rustls`). Nodes and sentinels may also be hosts separated by commas,
    /// `redis-cluster://host:port,host:port`. The sentinels' name may also be the path,
    /// `redis-sentinel://host/name/database`, and the database `?db=`. Parameters may come in any order. Any other
    /// parameter is refused; for those of other clients the error names the replacement. Blanks, quotes and `NAME=` around a URL are ignored. Special characters must be percent-encoded (`@` as
    /// `%40`, `%` as `%25`), and an IPv6 address needs brackets. Without a user the password is the default user's. A
    /// builder's [`sentinel_credentials`](LockClientBuilder::sentinel_credentials) take precedence.
    ///
    /// Needs a tokio runtime with timers and sockets (`enable_all`). Without either it fails with [`Error::NoRuntime`],
    /// or aborts a program built with `panic = "abort"`, because tokio reports what a runtime lacks only by a panic. No
    /// other call of this crate raises a panic, not even one that it catches.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] for a URL that cannot be used, [`Error::NoAnswer`] if no
    /// server answers there within the command timeout, [`Error::Tls`], [`Error::Auth`], [`Error::Refused`],
    /// [`Error::NoRuntime`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connections that it has opened.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run() -> Result<(), redisson_lock::Error> {
    /// let client = redisson_lock::LockClient::connect("redis://127.0.0.1:6379").await?;
    /// # Ok(()) }
    /// ```
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder().connect(url).await
    }

    /// Returns a builder, for changing settings before connecting.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// let builder = redisson_lock::LockClient::builder().key_prefix("shop:");
    /// ```
    pub fn builder() -> LockClientBuilder {
        LockClientBuilder::new()
    }

    /// Connects with the settings of a fred client: address, credentials and TLS.
    ///
    /// The lock client opens its own connections. The given client is never used, reconnected or quit, and need not be
    /// connected. If its settings have a credential provider, each connection asks it, including those to cluster nodes
    /// and sentinels.
    ///
    /// # Errors
    ///
    /// See [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connections that it has opened.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(pool: fred::prelude::Pool) -> Result<(), redisson_lock::Error> {
    /// let client = redisson_lock::LockClient::from_fred(&pool).await?;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "fred")]
    pub async fn from_fred(client: &impl ClientLike) -> Result<Self, Error> {
        Self::builder().from_fred(client).await
    }
}

impl LockClientBuilder {
    /// Sets the number of command connections; all commands of one lock use the same one. Default 1; 1 to 16.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// let builder = redisson_lock::LockClient::builder().connections(2);
    /// ```
    pub fn connections(self, connections: usize) -> Self {
        self.with(|builder| builder.connections = connections)
    }

    /// Sets whether to `CLIENT KILL` a lost connection before using its replacement. Default on.
    ///
    /// Needs `+client|info +client|kill`. Turn it off behind a proxy that shares connections between clients; the
    /// guarantees page lists the risks without it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// let builder = redisson_lock::LockClient::builder().connection_fence(false);
    /// ```
    pub fn connection_fence(self, connection_fence: bool) -> Self {
        self.with(|builder| builder.connection_fence = connection_fence)
    }

    /// Sets whether servers report changes that others make to held locks (`CLIENT TRACKING`). Default on.
    ///
    /// A lock that another client deletes or force-unlocks is then reported as lost within two round trips, instead of
    /// at its next renewal. Needs `+client|tracking`. If the permission or command is missing, one event reports it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// let builder = redisson_lock::LockClient::builder().tracking(false);
    /// ```
    pub fn tracking(self, tracking: bool) -> Self {
        self.with(|builder| builder.tracking = tracking)
    }

    /// Sets the name of the client's connections in `CLIENT LIST`: printable ASCII without spaces. Default none; needs
    /// `+client|setname`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// let builder = redisson_lock::LockClient::builder().client_name("orders-7");
    /// ```
    pub fn client_name(self, client_name: impl Into<String>) -> Self {
        self.with(|builder| builder.client_name = Some(client_name.into()))
    }

    /// Sets the channels on which the clients of a cluster publish that a lock is free. Default [`Announce::Auto`];
    /// ignored outside a cluster.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use redisson_lock::{Announce, LockClient};
    /// let builder = LockClient::builder().announce(Announce::Sharded);
    /// ```
    pub fn announce(self, announce: Announce) -> Self {
        self.with(|builder| builder.announce = announce)
    }

    /// Sets how many replicas, 1 to 8, must acknowledge every lock that does not set its own
    /// [`sync_replicas`](crate::Lock::sync_replicas), and within how long: 10 ms to the command timeout. Default:
    /// the client waits for none.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// let builder = redisson_lock::LockClient::builder().sync_replicas(2, Duration::from_millis(100));
    /// ```
    pub fn sync_replicas(self, replicas: u32, within: Duration) -> Self {
        self.with(|builder| builder.sync_replicas = Some(SyncReplicas { replicas, within }))
    }

    /// Sets the trusted CAs, the client certificate and other TLS options for a URL that begins with `rediss://` or
    /// `valkeys://`; see [`Tls`]. Default: its defaults.
    ///
    /// Connecting fails with [`Error::InvalidConfig`](crate::Error::InvalidConfig) if they are invalid, if the URL does
    /// not ask for TLS, or with a fred client, which has its own TLS settings.
    ///
    /// # Examples
    ///
    /// ```
    /// use redisson_lock::{LockClient, Tls};
    /// let builder = LockClient::builder().tls(Tls::new().ca_file("/etc/redis/ca.pem"));
    /// ```
    #[cfg(feature = "tls-rustls")]
    pub fn tls(self, tls: Tls) -> Self {
        self.with(|builder| builder.tls = Some(tls))
    }

    /// Sets the credentials for the sentinels, which have their own users: a user, or `None` for the default one, and a
    /// password. Default: `sentinelUsername` and `sentinelPassword` of the URL, or none. The user and password before
    /// the host are for the primary and its replicas.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// let builder = redisson_lock::LockClient::builder().sentinel_credentials(None, "secret");
    /// ```
    pub fn sentinel_credentials(self, user: Option<&str>, password: impl Into<String>) -> Self {
        let credentials = Credentials::new(user, password);
        self.with(|builder| builder.sentinel_credentials = Some(credentials))
    }

    /// Has each connection ask for its credentials, those to cluster nodes and sentinels included. They take the place of
    /// those in the URL, and of [`sentinel_credentials`](Self::sentinel_credentials). Default: none.
    ///
    /// # Examples
    ///
    /// ```
    /// # use redisson_lock::{CredentialsProvider, LockClient, LockClientBuilder};
    /// fn with_vault(vault: impl CredentialsProvider) -> LockClientBuilder {
    ///     LockClient::builder().credentials_provider(vault)
    /// }
    /// ```
    pub fn credentials_provider(self, provider: impl CredentialsProvider) -> Self {
        self.with(|builder| builder.credentials_provider = Some(Arc::new(provider)))
    }

    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    pub(crate) fn new() -> Self {
        Self {
            watchdog_timeout: Duration::from_secs(30),
            command_timeout: None,
            connections: 1,
            connection_fence: true,
            tracking: true,
            key_prefix: String::new(),
            client_name: None,
            max_hold: None,
            retry_for: None,
            connect_for: None,
            fair_wait: FAIR_WAIT,
            handoff: HandOff::default(),
            close_grace: None,
            sentinel_credentials: None,
            credentials_provider: None,
            announce: Announce::default(),
            address_map: None,
            sync_replicas: None,
            tls: None,
        }
    }

    /// Sets the lease of holds without a fixed lease, which are renewed at every third of it. Default 30 s, as
    /// Redisson's `lockWatchdogTimeout`; 300 ms to one day. If a holder crashes, others wait for up to this long.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// let builder = redisson_lock::LockClient::builder().watchdog_timeout(Duration::from_secs(10));
    /// ```
    pub fn watchdog_timeout(self, watchdog_timeout: Duration) -> Self {
        self.with(|builder| builder.watchdog_timeout = watchdog_timeout)
    }

    /// Sets the time limit for a command, including one resend. Default 3 s, or a sixth of the watchdog timeout if that
    /// is shorter; above zero, and below a third of the watchdog timeout. It also limits how long the confirmation of a
    /// waiter's subscription may take: with a watchdog timeout of 600 ms that is 100 ms, so set both for a server that
    /// is far away. If a round trip takes more than half of it, no subscription is ever confirmed, and waiters retry
    /// only when the holder's lease ends.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// let builder = redisson_lock::LockClient::builder().command_timeout(Duration::from_secs(1));
    /// ```
    pub fn command_timeout(self, command_timeout: Duration) -> Self {
        self.with(|builder| builder.command_timeout = Some(command_timeout))
    }

    /// Sets a prefix for every lock name, the counterpart of Redisson's `NameMapper`. Default none.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// let builder = redisson_lock::LockClient::builder().key_prefix("shop:");
    /// ```
    pub fn key_prefix(self, key_prefix: impl Into<String>) -> Self {
        self.with(|builder| builder.key_prefix = key_prefix.into())
    }

    /// Sets the [`max_hold`](crate::Lock::max_hold) of every lock that does not set its own. Default none; 10 ms to ten
    /// years.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// let builder = redisson_lock::LockClient::builder().max_hold(Duration::from_secs(3600));
    /// ```
    pub fn max_hold(self, max_hold: Duration) -> Self {
        self.with(|builder| builder.max_hold = Some(max_hold))
    }

    /// Sets the [`retry_for`](crate::Lock::retry_for) of each lock of the client. Default: none, so [`lock`](crate::Lock::lock)
    /// fails with its first attempt, after the command timeout at the latest. For connecting, see
    /// [`connect_for`](Self::connect_for).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// let builder = redisson_lock::LockClient::builder().retry_for(Duration::from_secs(60));
    /// ```
    pub fn retry_for(self, retry_for: Duration) -> Self {
        self.with(|builder| builder.retry_for = Some(retry_for))
    }

    /// Sets for how long connecting is retried after a temporary error ([`Error::is_retryable`]), such as a server that
    /// has not started yet. Default: no retries. The pauses grow to 1 s, and the last error is returned.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// let builder = redisson_lock::LockClient::builder().connect_for(Duration::from_secs(30));
    /// ```
    pub fn connect_for(self, connect_for: Duration) -> Self {
        self.with(|builder| builder.connect_for = Some(connect_for))
    }

    /// Sets how long an owner keeps its place in the queue of a [fair lock](LockClient::fair_lock) after its turn has
    /// come. Default 300 s, as in Redisson since 3.13.3; 1 s to one day.
    ///
    /// A call that waits for a shorter time keeps its place for that time only. A new place lasts longer by the lease
    /// that its owner sees. A waiting client renews the places of longer calls three times in this period, so an
    /// attempt that takes two thirds of it to reach the server may cost its owner the place. Each place of a process
    /// that died delays the others for this period. A shorter one is for fleets without JVMs: beside these, which count
    /// with 300 s, it can cost a waiter its place. Beside Redisson before 3.13.3, which counts with 5 s, use 5 s.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// let builder = redisson_lock::LockClient::builder().fair_wait(Duration::from_secs(30));
    /// ```
    pub fn fair_wait(self, fair_wait: Duration) -> Self {
        self.with(|builder| builder.fair_wait = fair_wait)
    }

    /// Sets whether an unlock hands the lock to the next caller of this client instead of freeing it. Default on, for
    /// at most 32 hand-offs in a row or 50 ms, whichever comes first, and half of that while other clients are
    /// subscribed.
    ///
    /// Needs `+hdel` and the connection fence; without either, every release frees the lock.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// let builder = redisson_lock::LockClient::builder().handoff(false);
    /// ```
    pub fn handoff(self, handoff: bool) -> Self {
        self.with(|builder| builder.handoff = handoff.into())
    }

    /// Connects to a URL in one of the forms that [`LockClient::connect`] lists.
    ///
    /// # Errors
    ///
    /// See [`LockClient::connect`]. Also [`Error::InvalidConfig`] or [`Error::InvalidDuration`] for a setting out of
    /// bounds.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connections that it has opened.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run() -> Result<(), redisson_lock::Error> {
    /// let client = redisson_lock::LockClient::builder().connect("redis://127.0.0.1:6379").await?;
    /// # Ok(()) }
    /// ```
    pub async fn connect(self, url: &str) -> Result<LockClient, Error> {
        self.check()?;
        let settings = Settings::from_url(
            url,
            self.tls.as_ref(),
            self.command_timeout_or_default(),
            self.connection_fence,
        )?;
        self.open(settings).await
    }

    /// Connects with the settings of a fred client; see [`LockClient::from_fred`].
    ///
    /// # Errors
    ///
    /// See [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connections that it has opened.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(client: fred::prelude::Client) -> Result<(), redisson_lock::Error> {
    /// let client = redisson_lock::LockClient::builder().from_fred(&client).await?;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "fred")]
    pub async fn from_fred(self, client: &impl ClientLike) -> Result<LockClient, Error> {
        self.check()?;
        let settings = Settings::from_fred(
            client,
            self.tls.as_ref(),
            self.command_timeout_or_default(),
            self.connection_fence,
        )?;
        self.open(settings).await
    }

    /// Connects over a transport in the place of real connections.
    #[cfg(feature = "test-util")]
    pub(crate) async fn open_over(
        self,
        transport: Arc<dyn crate::redis::transport::Transport>,
    ) -> Result<LockClient, Error> {
        self.check()?;
        let settings = Settings::over(
            transport,
            self.command_timeout_or_default(),
            self.connection_fence,
        );
        self.open(settings).await
    }

    async fn open(self, settings: Settings) -> Result<LockClient, Error> {
        let mut pauses = Backoff::new(settings.is_scattered());
        let began = Instant::now();
        loop {
            let error = match self.clone().open_once(settings.clone()).await {
                Err(error) if error.is_retryable() => error,
                opened => return opened,
            };
            let left = self
                .connect_for
                .and_then(|all| all.checked_sub(began.elapsed()));
            let Some(left) = left.filter(|left| !left.is_zero()) else {
                return Err(error);
            };
            event!(INFO, %error, "not connected yet, trying again");
            tokio::time::sleep(pauses.next().min(left)).await;
        }
    }

    async fn open_once(self, settings: Settings) -> Result<LockClient, Error> {
        let runtime = Runtime::current().ok_or(Error::NoRuntime)?;
        if !has_timers() {
            return Err(Error::NoRuntime);
        }
        let settings = settings
            .with_client_name(self.client_name.as_deref())
            .with_sentinel_credentials(self.sentinel_credentials.clone())
            .with_provider(self.credentials_provider.clone())
            .with_tracking(self.tracking)
            .with_announce(self.announce)
            .with_address_map(self.address_map.as_ref())?;
        let redis = Redis::connect(&Arc::new(settings), self.connections, &runtime).await?;
        let rules = Arc::new(Rules {
            watchdog_timeout: self.watchdog_timeout,
            command_timeout: self.command_timeout_or_default(),
            handoff: self.handoff,
            fair_wait: self.fair_wait,
            release_pause: RELEASE_PAUSE,
        });
        let config = Config {
            key_prefix: self.key_prefix.into(),
            rules,
            max_hold: self.max_hold,
            retry_for: self.retry_for,
            replicas: self.sync_replicas,
        };
        let id: Arc<str> = Uuid::new_v4().to_string().into();
        let shared = Shared::new(id, config, runtime, redis);
        let locks = Arc::new(Locks::new(Arc::new(shared), SENDS));
        let stop = CancellationToken::new();
        // Cancel safety: from here on dropping the handle closes what was opened.
        let handle = Arc::new(ClientHandle {
            locks,
            stop: stop.clone(),
        });
        let shared = handle.shared();
        let locks = Arc::downgrade(&handle.locks);
        let in_use = move || locks.upgrade().is_some_and(|locks| locks.len() > 0);
        shared.redis.set_in_use(in_use);
        let locks = Arc::downgrade(&handle.locks);
        let note = move |key: &str| locks.upgrade().is_some_and(|locks| locks.note_report(key));
        shared.redis.reports().set_filter(note);
        shared.runtime.spawn(renewal::run(&handle.locks, stop));
        measure::describe();
        Ok(LockClient { handle })
    }

    pub(crate) fn command_timeout_or_default(&self) -> Duration {
        let derived = || COMMAND_TIMEOUT.min(self.watchdog_timeout / 6);
        self.command_timeout.unwrap_or_else(derived)
    }

    fn check(&self) -> Result<(), Error> {
        check_timeouts(self.watchdog_timeout, self.command_timeout_or_default())?;
        if !FAIR_WAITS.contains(&self.fair_wait) {
            return Err(Error::InvalidDuration {
                what: "fair_wait",
                given: self.fair_wait,
                problem: "it must be at least one second and at most one day",
            });
        }
        if !(1..=CONNECTIONS_MAX).contains(&self.connections) {
            let (what, given) = ("connections", self.connections);
            let problem = format!("{given} is not between 1 and {CONNECTIONS_MAX}");
            return Err(Error::InvalidConfig { what, problem });
        }
        let timeout = self.command_timeout_or_default();
        let replicas = self.sync_replicas;
        replicas.map_or(Ok(()), |wanted| check_replicas(wanted, timeout))?;
        let mut client_name = self.client_name.iter().flat_map(|name| name.bytes());
        if !client_name.all(|byte| byte.is_ascii_graphic()) {
            let problem = "Redis takes printable ASCII without spaces".to_owned();
            return Err(Error::InvalidConfig {
                what: "client_name",
                problem,
            });
        }
        self.max_hold
            .map_or(Ok(()), |max_hold| check_lease("max_hold", max_hold))
    }
}

const COMMAND_TIMEOUT: Duration = Duration::from_secs(3);
const CONNECTIONS_MAX: usize = 16;

/// As Redisson has it.
const FAIR_WAIT: Duration = Duration::from_secs(300);
const FAIR_WAITS: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(24 * 60 * 60);

mod addresses;
#[cfg(feature = "serde")]
mod serde;
#[cfg(test)]
mod tests;

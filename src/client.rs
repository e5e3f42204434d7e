//! The client: identity, settings, connections; makes locks, and ends them all.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fred::interfaces::ClientLike;
use tokio::runtime::Handle;

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::entry::{Census, Entries};
use crate::error::{Error, LossReason};
use crate::lock::{Lock, check_lease};
use crate::owner::Owner;
use crate::redis::{FenceState, Redis, Settings};
use crate::renewal;
use crate::shared::{Config, Phase, Shared};
use crate::wait::Waits;

/// A connection to Redis that makes locks. Cheap to clone; all clones are one client.
///
/// A client is one half of every owner: its id stands in each lock hash it writes. It has one command connection
/// (more with [`connections`](LockClientBuilder::connections)) and one subscriber connection, however many locks.
/// When the last client, lock and guard of it are dropped, its tasks end and its sockets close within a second.
///
/// # Examples
///
/// ```no_run
/// # async fn run() -> Result<(), redisson_lock::Error> {
/// use redisson_lock::LockClient;
/// let client = LockClient::connect("redis://127.0.0.1:6379").await?;
/// let guard = client.lock("stock:42").lock().await?;
/// guard.unlock().await
/// # }
/// ```
#[derive(Clone)]
pub struct LockClient {
    handle: Arc<ClientHandle>,
}

/// What keeps a client running: clients, locks and guards have one, background tasks do not.
pub(crate) struct ClientHandle {
    pub(crate) shared: Arc<Shared>,
    stop: CancellationToken,
}

impl Drop for ClientHandle {
    fn drop(&mut self) {
        let (shared, stop) = (Arc::clone(&self.shared), self.stop.clone());
        // On a runtime that is gone this does nothing, and nothing is left to do.
        self.shared.runtime.spawn(async move {
            shared.enter_phase(Phase::Closing);
            let _ = tokio::time::timeout(LAST_WORK, quiet(&shared, |census| census.releasing == 0)).await;
            end(&shared, &stop).await;
        });
    }
}

impl LockClient {
    /// Connects with default settings.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] for an address that cannot be used, [`Error::NoAnswer`] if no server answers there
    /// within the command timeout, [`Error::Auth`], [`Error::Refused`], [`Error::NoRuntime`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes what was opened.
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

    /// Settings to change before connecting.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn run() -> Result<(), redisson_lock::Error> {
    /// let client = redisson_lock::LockClient::builder()
    ///     .watchdog_timeout(Duration::from_secs(10))
    ///     .connect("redis://127.0.0.1:6379")
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn builder() -> LockClientBuilder {
        LockClientBuilder::new()
    }

    /// Connects with the settings of a fred client: address, credentials, TLS, protocol version.
    ///
    /// Connections of its own are opened; the given client is never used, reconnected or quit, and it need not be
    /// connected.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes what was opened.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(pool: fred::prelude::Pool) -> Result<(), redisson_lock::Error> {
    /// let client = redisson_lock::LockClient::from_fred(&pool).await?;
    /// # Ok(()) }
    /// ```
    pub async fn from_fred(client: &impl ClientLike) -> Result<Self, Error> {
        Self::builder().from_fred(client).await
    }

    /// The client id: a UUID, the first half of every owner's field.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: redisson_lock::LockClient) {
    /// assert_eq!(client.id().len(), 36);
    /// # }
    /// ```
    pub fn id(&self) -> &str {
        &self.handle.shared.client_id
    }

    /// A lock by its name. Does no I/O; a bad name is the error of the first verb.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: redisson_lock::LockClient) {
    /// let stock = client.lock("stock:42");
    /// # }
    /// ```
    pub fn lock(&self, name: impl Into<String>) -> Lock {
        Lock::new(Arc::clone(&self.handle), name.into())
    }

    /// A new owner, different from every other.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: redisson_lock::LockClient) {
    /// assert_ne!(client.owner(), client.owner());
    /// # }
    /// ```
    pub fn owner(&self) -> Owner {
        Owner::fresh(&self.handle.shared.client_id)
    }

    /// The owner with this thread id, for callers that need a fixed number on the wire.
    ///
    /// Task ids count up from 1, and ids from 2^62 on are given out by the crate: choose another range (negative
    /// numbers are free) unless you mean to share such an owner.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: redisson_lock::LockClient) {
    /// let owner = client.owner_with_id(-7);
    /// assert!(owner.to_string().ends_with(":-7"));
    /// # }
    /// ```
    pub fn owner_with_id(&self, thread_id: i64) -> Owner {
        Owner::with_id(&self.handle.shared.client_id, thread_id)
    }

    /// What the client holds and does, by local knowledge, with running totals since it was made.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: redisson_lock::LockClient) {
    /// println!("{} locks lost so far", client.stats().lost_total);
    /// # }
    /// ```
    pub fn stats(&self) -> ClientStats {
        let shared = &self.handle.shared;
        let census = census(shared);
        let total = |total: &std::sync::atomic::AtomicU64| total.load(Ordering::Relaxed);
        ClientStats {
            held: census.held,
            waiting: census.waiting,
            subscriptions: shared.waits.len(),
            renewals: shared.renewals.len(),
            releasing: census.releasing,
            fence: shared.redis.fence(),
            acquired_total: total(&shared.totals.acquired),
            released_total: total(&shared.totals.released),
            lost_total: total(&shared.totals.lost),
            contended_total: total(&shared.totals.contended),
            renewed_total: total(&shared.totals.renewed),
            reconciled_total: total(&shared.totals.reconciled),
            given_up_total: total(&shared.totals.gave_up),
            reconnects_total: shared.redis.reconnects(),
        }
    }

    /// Closes the client: no new holds, `grace` for the guards that are open, then the end.
    ///
    /// New calls and waiters get [`Error::Closed`] at once. Open guards have `grace` to be given back and are
    /// renewed meanwhile; after it detached holds are released, and holds with an open guard are *not* taken away
    /// from under their section: they become lost with [`LossReason::Closed`] and end with their lease. The report
    /// names them. Closing a closed client does nothing.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the client closing: it takes no new holds, and ends when it is closed again or
    /// its last handle is dropped.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn run(client: redisson_lock::LockClient) {
    /// let report = client.close(Duration::from_secs(5)).await;
    /// if !report.abandoned.is_empty() {
    ///     eprintln!("still held: {:?}", report.abandoned);
    /// }
    /// # }
    /// ```
    pub async fn close(&self, grace: Duration) -> CloseReport {
        let shared = &self.handle.shared;
        let closing = async {
            shared.enter_phase(Phase::Closing);
            for entry in Entries::all(shared) {
                entry.tell_all();
            }
            // No more waiting than anybody waits for.
            let grace = grace.min(FOREVER);
            let _ = tokio::time::timeout(grace, quiet(shared, |census| census.guarded == 0)).await;

            let mut report = CloseReport::default();
            if !shared.is_closed() {
                for entry in Entries::all(shared) {
                    report.released += entry.release_detached();
                }
                let patience = shared.config.command_timeout;
                let done =
                    tokio::time::timeout(patience, quiet(shared, |census| census.releasing == 0)).await;
                report.unconfirmed = if done.is_ok() { 0 } else { census(shared).releasing };
            }
            for entry in Entries::all(shared) {
                let lock = entry.name.given().to_string();
                let owners = entry.lose_all(LossReason::Closed).into_iter();
                report.abandoned.extend(
                    owners.map(|owner| AbandonedHold { lock: lock.clone(), owner: owner.to_string() }),
                );
            }
            end(shared, &self.handle.stop).await;
            Ok(report)
        };
        // Without a runtime there is nothing left to close.
        shared.drive(closing).await.unwrap_or_default()
    }
}

impl fmt::Debug for LockClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockClient").field("id", &self.id()).finish_non_exhaustive()
    }
}

/// Waits until the census is as wished.
async fn quiet(shared: &Arc<Shared>, wished: impl Fn(&Census) -> bool) {
    loop {
        let quieter = shared.quieter.notified();
        if wished(&census(shared)) {
            return;
        }
        quieter.await;
    }
}

/// Ends every task and connection.
async fn end(shared: &Arc<Shared>, stop: &CancellationToken) {
    shared.enter_phase(Phase::Closed);
    stop.cancel();
    shared.redis.shut_down().await;
    for entry in Entries::all(shared) {
        entry.lose_all(LossReason::Closed);
        entry.tell_all();
    }
}

fn census(shared: &Arc<Shared>) -> Census {
    let mut sum = Census::default();
    for entry in Entries::all(shared) {
        let census = entry.census();
        sum.held += census.held;
        sum.guarded += census.guarded;
        sum.waiting += census.waiting;
        sum.releasing += census.releasing;
    }
    sum
}

/// Settings of a client. Each has a default that suits most.
///
/// # Examples
///
/// ```no_run
/// # use std::time::Duration;
/// # async fn run() -> Result<(), redisson_lock::Error> {
/// let client = redisson_lock::LockClient::builder()
///     .key_prefix("shop:")
///     .command_timeout(Duration::from_secs(1))
///     .connect("redis://127.0.0.1:6379")
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until it connects"]
pub struct LockClientBuilder {
    watchdog_timeout: Duration,
    command_timeout: Duration,
    connections: usize,
    fence: bool,
    key_prefix: String,
    max_hold: Option<Duration>,
}

impl LockClientBuilder {
    fn new() -> Self {
        Self {
            watchdog_timeout: Duration::from_secs(30),
            command_timeout: Duration::from_secs(3),
            connections: 1,
            fence: true,
            key_prefix: String::new(),
            max_hold: None,
        }
    }

    /// The lease of a hold without a fixed one; it is renewed every third of this. Default 30 s, as Redisson's
    /// `lockWatchdogTimeout`; 300 ms to one day.
    ///
    /// A crashed holder keeps others waiting for at most this long.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// let builder = redisson_lock::LockClient::builder().watchdog_timeout(Duration::from_secs(10));
    /// ```
    pub fn watchdog_timeout(self, watchdog_timeout: Duration) -> Self {
        Self { watchdog_timeout, ..self }
    }

    /// How long a command may take, one re-send included. Default 3 s; above zero, and below a third of the
    /// watchdog timeout.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// let builder = redisson_lock::LockClient::builder().command_timeout(Duration::from_secs(1));
    /// ```
    pub fn command_timeout(self, command_timeout: Duration) -> Self {
        Self { command_timeout, ..self }
    }

    /// Command connections; all commands of one lock use the same one. Default 1; 1 to 16.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// let builder = redisson_lock::LockClient::builder().connections(2);
    /// ```
    pub fn connections(self, connections: usize) -> Self {
        Self { connections, ..self }
    }

    /// Whether a lost connection is killed at the server before its replacement is used. Default on.
    ///
    /// Needs `+client|info +client|kill`. Switch it off behind a proxy that shares connections between clients;
    /// `docs/guarantees.md` says what remains without it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// let builder = redisson_lock::LockClient::builder().fence(false);
    /// ```
    pub fn fence(self, fence: bool) -> Self {
        Self { fence, ..self }
    }

    /// What is put in front of every name, as Redisson's `NameMapper` would. Default nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// let builder = redisson_lock::LockClient::builder().key_prefix("shop:");
    /// ```
    pub fn key_prefix(self, key_prefix: impl Into<String>) -> Self {
        Self { key_prefix: key_prefix.into(), ..self }
    }

    /// The [`max_hold`](Lock::max_hold) of every lock that does not say otherwise. Default none; 10 ms to ten
    /// years.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// let builder = redisson_lock::LockClient::builder().max_hold(Duration::from_secs(3600));
    /// ```
    pub fn max_hold(self, max_hold: Duration) -> Self {
        Self { max_hold: Some(max_hold), ..self }
    }

    /// Connects to `redis://[user:password@]host[:port][/database]`.
    ///
    /// # Errors
    ///
    /// As [`LockClient::connect`]; [`Error::InvalidConfig`] and [`Error::InvalidDuration`] for a setting out of
    /// bounds.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes what was opened.
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
        let settings = Settings::from_url(url, self.command_timeout, self.fence)?;
        self.open(settings).await
    }

    /// Connects with the settings of a fred client; see [`LockClient::from_fred`].
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes what was opened.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(client: fred::prelude::Client) -> Result<(), redisson_lock::Error> {
    /// let client = redisson_lock::LockClient::builder().from_fred(&client).await?;
    /// # Ok(()) }
    /// ```
    pub async fn from_fred(self, client: &impl ClientLike) -> Result<LockClient, Error> {
        self.check()?;
        let settings = Settings::from_fred(client, self.command_timeout, self.fence)?;
        self.open(settings).await
    }

    async fn open(self, settings: Settings) -> Result<LockClient, Error> {
        let Ok(runtime) = Handle::try_current() else { return Err(Error::NoRuntime) };
        let settings = Arc::new(settings);
        let waits = Arc::new(Waits::default());
        let redis = Redis::connect(&settings, self.connections).await?;
        let config = Config {
            key_prefix: self.key_prefix.into(),
            watchdog_timeout: self.watchdog_timeout,
            command_timeout: self.command_timeout,
            max_hold: self.max_hold,
        };
        let id: Arc<str> = Uuid::new_v4().to_string().into();
        let shared = Arc::new(Shared::new(id, config, runtime, redis, Arc::clone(&waits)));
        let stop = CancellationToken::new();
        // Cancel safety: from here on dropping the handle closes what was opened.
        let handle = Arc::new(ClientHandle { shared, stop: stop.clone() });
        handle.shared.redis.subscribe_with(&settings, waits).await?;
        let gone = handle.shared.gone.clone().drop_guard();
        handle.shared.runtime.spawn(renewal::run(Arc::downgrade(&handle.shared), stop, gone));
        Ok(LockClient { handle })
    }

    fn check(&self) -> Result<(), Error> {
        let out_of_bounds = |what, given, problem| Err(Error::InvalidDuration { what, given, problem });
        if !(WATCHDOG_MIN..=WATCHDOG_MAX).contains(&self.watchdog_timeout) {
            let problem = "it must be at least 300 milliseconds and at most one day";
            return out_of_bounds("watchdog_timeout", self.watchdog_timeout, problem);
        }
        if self.command_timeout.is_zero() || self.command_timeout >= self.watchdog_timeout / 3 {
            let problem = "it must be above zero and below a third of the watchdog timeout";
            return out_of_bounds("command_timeout", self.command_timeout, problem);
        }
        if !(1..=CONNECTIONS_MAX).contains(&self.connections) {
            return Err(Error::InvalidConfig {
                what: "connections",
                problem: format!("{} is not between 1 and {CONNECTIONS_MAX}", self.connections),
            });
        }
        self.max_hold.map_or(Ok(()), |max_hold| check_lease("max_hold", max_hold))
    }
}

/// What a client holds and does.
///
/// # Examples
///
/// ```no_run
/// # fn run(client: redisson_lock::LockClient) {
/// let stats: redisson_lock::ClientStats = client.stats();
/// println!("{} held, {} waiting, fence {}", stats.held, stats.waiting, stats.fence);
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientStats {
    /// Holds now, nested ones counted.
    pub held: usize,
    /// Calls that want a lock now.
    pub waiting: usize,
    /// Channels listened to now; one lingers for a second after its last waiter.
    pub subscriptions: usize,
    /// Owners whose holds are renewed or looked at now.
    pub renewals: usize,
    /// Releases under way now, in the background or by an unlock.
    pub releasing: usize,
    /// Whether commands of a lost connection are known to be over before its replacement is used.
    pub fence: FenceState,
    /// Holds taken.
    pub acquired_total: u64,
    /// Holds given back.
    pub released_total: u64,
    /// Holds lost.
    pub lost_total: u64,
    /// Calls that found the lock held and went to wait.
    pub contended_total: u64,
    /// Renewals answered, one for each lock.
    pub renewed_total: u64,
    /// Outcomes that were unknown at first and were reconciled in the background.
    pub reconciled_total: u64,
    /// Background releases that were given up; the lease freed the lock.
    pub given_up_total: u64,
    /// Command connections that were replaced.
    pub reconnects_total: u64,
}

/// What [`LockClient::close`] found.
///
/// # Examples
///
/// ```no_run
/// # use std::time::Duration;
/// # async fn run(client: redisson_lock::LockClient) {
/// let report: redisson_lock::CloseReport = client.close(Duration::ZERO).await;
/// # }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CloseReport {
    /// Detached holds that were released.
    pub released: usize,
    /// Releases that Redis had not confirmed by the end; those locks are freed by their leases.
    pub unconfirmed: usize,
    /// Owners that still held with an open guard. Their leases go on for up to the watchdog timeout, or their
    /// fixed lease.
    pub abandoned: Vec<AbandonedHold>,
}

/// A lock that was still held when its client was closed.
///
/// # Examples
///
/// ```no_run
/// # fn run(hold: redisson_lock::AbandonedHold) {
/// println!("{} is still held by {}", hold.lock, hold.owner);
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AbandonedHold {
    /// The lock's name.
    pub lock: String,
    /// The owner's field.
    pub owner: String,
}

const WATCHDOG_MIN: Duration = Duration::from_millis(300);
const WATCHDOG_MAX: Duration = Duration::from_secs(24 * 60 * 60);
const CONNECTIONS_MAX: usize = 16;

/// How long releases may go on after the last handle was dropped.
const LAST_WORK: Duration = Duration::from_millis(700);

/// A grace that nobody outwaits.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

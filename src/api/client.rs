//! The client: its id, settings and connections; creates locks and shuts everything down.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use redisson_lock_core::Total;
use tokio::time::Instant;

use crate::error::{Error, Operation};
use crate::kind::LockKind;
use crate::lock::{FencedLock, Lock, RwLock};
use crate::names::owner::Owner;
use crate::redis::{ConnectionFence, Limit};
use crate::script::send_error;
use crate::state::client_handle::{ClientHandle, CloseReport};

/// A connection to Redis that creates locks. Cheap to clone; all clones are one client.
///
/// A client is one half of every owner: its id is part of each lock hash it writes. It has one
/// connection to a server (more with [`connections`](crate::LockClientBuilder::connections)), for
/// any number of locks and waiters. When its last client handle, lock and guard are dropped, its
/// tasks end and its sockets close within a second.
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
    pub(crate) handle: Arc<ClientHandle>,
}

impl LockClient {
    /// Returns the client id: a UUID, the first half of every owner's field.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: redisson_lock::LockClient) {
    /// assert_eq!(client.id().len(), 36);
    /// # }
    /// ```
    pub fn id(&self) -> &str {
        &self.handle.shared().client_id
    }

    /// Returns a lock by its name. Does no I/O; the lock's first operation reports an invalid name.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: redisson_lock::LockClient) {
    /// let stock = client.lock("stock:42");
    /// # }
    /// ```
    pub fn lock(&self, name: impl Into<String>) -> Lock {
        self.lock_of(LockKind::Plain, name)
    }

    /// Returns a fenced lock by its name: Redisson's `getFencedLock`, a plain lock whose holders have a token.
    ///
    /// The token is in the key `redisson_lock_token:{name}`, which has no expiry and must not be deleted.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// let guard = client.fenced_lock("ledger").lock().await?;
    /// println!("{}", guard.token());
    /// # guard.unlock().await }
    /// ```
    pub fn fenced_lock(&self, name: impl Into<String>) -> FencedLock {
        Lock::new(Arc::clone(&self.handle), LockKind::Fenced, name.into())
    }

    /// Returns a spin lock by its name: Redisson's `getSpinLock`, the hash of a plain lock without messages.
    ///
    /// Waiters retry after pauses of up to 128 ms, one of each client at a time. It needs no subscription and no
    /// permission for a channel. Its release does not wake a caller that waits for the same key as a plain lock, in
    /// Rust or Java: that caller retries when the lease is over.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// let guard = client.spin_lock("stock:42").lock().await?;
    /// # guard.unlock().await }
    /// ```
    pub fn spin_lock(&self, name: impl Into<String>) -> Lock {
        self.lock_of(LockKind::Spin, name)
    }

    /// Returns a string lock by its name: a key with a unique value for each acquisition and an expiry, deleted only if
    /// it has that value. It excludes redis-py's `Lock`, redsync, and other programs that write `SET key value NX PX`.
    ///
    /// It is not reentrant ([`Error::AlreadyHeld`]). Waiters pause as those of a [spin lock](Self::spin_lock) do. A key
    /// without expiry stays locked until its program or [`force_unlock`](Lock::force_unlock) deletes it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// if let Some(guard) = client.string_lock("nightly").try_lock().await? {
    ///     guard.unlock().await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn string_lock(&self, name: impl Into<String>) -> Lock {
        self.lock_of(LockKind::String, name)
    }

    /// Returns a fair lock by its name: Redisson's `getFairLock`, a plain lock that owners of all clients, in Rust and
    /// Java, get in the order in which their first attempts reached the server.
    ///
    /// Each waiting owner has a place in a queue in Redis (`redisson_lock_queue:{name}`) and its own subscription.
    /// [`try_lock`](Lock::try_lock) always asks the server, takes no place, and overtakes no waiting owner. A dropped
    /// call gives up its place in the background, so a `select!` loop that makes a new `lock()` future in each round
    /// starts at the end of the queue each time: pin one future outside the loop, or use
    /// [`try_lock_for`](Lock::try_lock_for).
    ///
    /// The places of a process that died delay the others for as long as its calls would have waited, each for at most
    /// one [`fair_wait`](crate::LockClientBuilder::fair_wait). Clients that use the name as another kind of lock
    /// overtake the queue and do not wake it. The names `x` and `{x}` share one queue, as in Redisson: do not use both.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// let guard = client.fair_lock("checkout").lock().await?;
    /// # guard.unlock().await }
    /// ```
    pub fn fair_lock(&self, name: impl Into<String>) -> Lock {
        self.lock_of(LockKind::Fair, name)
    }

    /// Returns a read-write lock by its name: Redisson's `getReadWriteLock`. Any number of owners hold its
    /// [read](RwLock::read) part, or one holds its [write](RwLock::write) part.
    ///
    /// Besides the lock, each read hold has its own key, `{name}:clientId:threadId:rwlock_timeout:1`, which ends with
    /// it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// let guard = client.rw_lock("report").read().lock().await?;
    /// # guard.unlock().await }
    /// ```
    pub fn rw_lock(&self, name: impl Into<String>) -> RwLock {
        let name = name.into();
        let write = self.lock_of(LockKind::Write, name.clone());
        RwLock::new(self.lock_of(LockKind::Read, name), write)
    }

    /// Returns a lock of this kind, without tokens in its type, for programs that read the kind from their
    /// configuration.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// let kind = "spin".parse()?;
    /// let lock = client.lock_of(kind, "stock:42");
    /// # Ok(()) }
    /// ```
    pub fn lock_of(&self, kind: LockKind, name: impl Into<String>) -> Lock {
        Lock::new(Arc::clone(&self.handle), kind, name.into())
    }

    /// Returns a new owner, different from every other.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: redisson_lock::LockClient) {
    /// assert_ne!(client.owner(), client.owner());
    /// # }
    /// ```
    pub fn owner(&self) -> Owner {
        Owner::fresh(&self.handle.shared().client_id)
    }

    /// Returns the owner with this thread id, for callers that need a fixed number on the wire.
    ///
    /// Task ids count up from 1, and this crate assigns ids from 2^62 up: choose another range
    /// (negative numbers are free) unless you mean to share such an owner.
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
        Owner::with_id(&self.handle.shared().client_id, thread_id)
    }

    /// Returns client statistics from local information, with running totals since the client was created.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: redisson_lock::LockClient) {
    /// println!("{} locks lost so far", client.stats().lost_total);
    /// # }
    /// ```
    pub fn stats(&self) -> ClientStats {
        let shared = self.handle.shared();
        let counts = shared.tally.counts();
        let servers = shared.redis.nodes();
        ClientStats {
            held: counts.held as usize,
            waiting: counts.waiting as usize,
            subscriptions: shared.redis.channels().len(),
            renewals: self.handle.locks.timers.len(),
            releasing: counts.releasing as usize,
            entries: self.handle.locks.len(),
            connected: self.is_connected(),
            connection_fence: shared.redis.connection_fence(),
            acquired_total: shared.totals.of(Total::Acquired),
            released_total: shared.totals.of(Total::Released),
            passes_total: shared.totals.of(Total::Passed),
            lost_total: shared.totals.of(Total::Lost),
            contended_total: shared.totals.of(Total::Contended),
            renewed_total: shared.totals.of(Total::Renewals),
            reconciled_total: shared.totals.of(Total::Reconciled),
            given_up_total: shared.totals.of(Total::GaveUp),
            reconnects_total: shared.redis.reconnects(),
            nodes: servers.nodes,
            redirects_total: servers.redirects,
            failovers_total: servers.failovers,
        }
    }

    /// Returns whether every command connection is up, from local information. While one is being replaced, calls wait
    /// for it, up to the command timeout.
    ///
    /// Use it for a readiness probe; [`ping`](Self::ping) asks the server.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: redisson_lock::LockClient) {
    /// let status = if client.is_connected() { 200 } else { 503 };
    /// # }
    /// ```
    pub fn is_connected(&self) -> bool {
        let shared = self.handle.shared();
        !shared.is_closed() && shared.redis.is_connected()
    }

    /// Pings the server on every command connection and returns the elapsed time.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoAnswer`] if a connection gets no response within the command timeout, [`Error::Auth`] or
    /// [`Error::Refused`] if the server does not accept a new connection, [`Error::Closed`], or [`Error::NoRuntime`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// println!("answered after {:?}", client.ping().await?);
    /// # Ok(()) }
    /// ```
    pub async fn ping(&self) -> Result<Duration, Error> {
        let shared = self.handle.shared();
        let pinging = async {
            let (start, timeout) = (Instant::now(), shared.command_timeout());
            let limit = Limit {
                until: start + timeout,
                silence: timeout / 2,
            };
            let answered = shared.redis.ping(limit).await;
            answered.map_err(|error| send_error(error, Operation::Pinging))?;
            Ok(start.elapsed())
        };
        shared.on_client_runtime(pin!(pinging)).await
    }

    /// Returns the permissions that the client's user lacks for this lock, as `ACL SETUSER` takes them: `+publish`,
    /// `~stock:42`, `&redisson_lock__channel:{stock:42}`. Empty if nothing is missing.
    ///
    /// Call it when a service starts: otherwise a missing permission shows only at the first call that needs it,
    /// perhaps with a lock already held. One run names everything missing for the commands of this client, including
    /// those that its connections send when they open, but `+rpush` of a fair lock only once `+lrem` is granted. A missing
    /// key or channel shows only through a permitted command: if no command that uses it is permitted, only the
    /// commands are listed.
    ///
    /// It sends every command once by itself, and those that scripts call once in a script, in a form that has no
    /// effect on the lock, held or not. It opens up to six connections for this and closes them again. Commands that
    /// the server lacks, or does not allow in scripts, are also listed. A lock works without `+client|…`, `+time`,
    /// `+info` and `+hdel`: [`guide::operations`](crate::guide::operations) lists what is missing then. The server
    /// records what it refuses in its `ACL LOG`.
    ///
    /// In a cluster it asks the primary that has the lock, according to the client's [`Announce`](crate::Announce).
    /// Each node has its own users, so check one name for each primary. `+wait` is needed with
    /// [`sync_replicas`](crate::LockClientBuilder::sync_replicas), `+select` with a database in the URL. Permissions on
    /// the sentinels are not checked.
    ///
    /// # Errors
    ///
    /// [`Error::NoAnswer`] if a reply takes longer than the command timeout; [`Error::InvalidName`], [`Error::Auth`],
    /// [`Error::Refused`], [`Error::Closed`], [`Error::NoRuntime`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// let missing = client.check("stock:42").await?;
    /// assert!(missing.is_empty(), "missing permissions: {}", missing.join(" "));
    /// # Ok(()) }
    /// ```
    pub async fn check(&self, name: impl Into<String>) -> Result<Vec<String>, Error> {
        self.lock(name).check().await
    }

    /// Closes the client: no new holds, a `grace` period for open guards, then the shutdown.
    ///
    /// New calls and waiters get [`Error::Closed`](crate::Error::Closed) immediately. Open guards have `grace` to be
    /// released, and are renewed until then. After that, detached holds are released. Holds with an open guard are
    /// *not* released under a running critical section: they are lost with
    /// [`LossReason::Closed`](crate::LossReason::Closed) and end with their lease. The report lists them. Closing a
    /// closed client does nothing.
    ///
    /// Releases in flight have the same `grace`, and at least the command timeout. After that, `close` waits while they
    /// make progress, until none has ended for a command timeout.
    ///
    /// `tracing` events also report what is left, one for each lock: `lock lost`, with the reason `the client was
    /// closed`; or `the client was closed without an answer to a release: the lease frees the lock`.
    ///
    /// Outside a runtime, or after the client's runtime has ended, nothing can be sent: all holds are abandoned
    /// immediately, and reported.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the client closing: it accepts no new holds, and shuts down when
    /// it is closed again or its last handle is dropped.
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
        let handle = &self.handle;
        let closing = async { Ok(handle.close(grace).await) };
        let closed = handle.shared().on_client_runtime(pin!(closing)).await;
        closed.unwrap_or_else(|_| handle.close_without_runtime())
    }

    /// Runs `future` with this client as the default for `#[locked]` functions without
    /// `client = …`.
    ///
    /// It covers everything polled inside, except a nested `as_default` with another client.
    /// `tokio::spawn` does not inherit it: wrap the spawned future too.
    ///
    /// Needs the feature `macros`.
    ///
    /// # Cancel safety
    ///
    /// It is as cancel safe as `future`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// use redisson_lock::{Error, locked};
    ///
    /// #[locked(name = "stock:{id}")]
    /// async fn sell(id: u64) -> Result<(), Error> {
    ///     Ok(())
    /// }
    ///
    /// client.as_default(async { sell(42).await }).await
    /// # }
    /// ```
    #[cfg(feature = "macros")]
    pub async fn as_default<F: Future>(&self, future: F) -> F::Output {
        DEFAULT.scope(self.clone(), future).await
    }

    /// The client of the innermost [`as_default`](Self::as_default) around this call.
    #[cfg(feature = "macros")]
    pub(crate) fn of_this_task() -> Result<Self, Error> {
        DEFAULT
            .try_with(Self::clone)
            .map_err(|_| Error::Misuse {
                problem: "this task has no default client; run the call inside `client.as_default(…)`, or name a client \
                          with `#[locked(client = …)]`",
            })
    }
}

#[cfg(feature = "macros")]
tokio::task_local! {
    static DEFAULT: LockClient;
}

impl fmt::Debug for LockClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockClient")
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}

/// Client statistics.
///
/// # Examples
///
/// ```no_run
/// # fn run(client: redisson_lock::LockClient) {
/// let stats: redisson_lock::ClientStats = client.stats();
/// println!("{} held, {} waiting, fence {}", stats.held, stats.waiting, stats.connection_fence);
/// # }
/// ```
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientStats {
    /// Current holds, counting nested ones.
    pub held: usize,
    /// Calls currently waiting for a lock.
    pub waiting: usize,
    /// Channels currently subscribed; one lingers for a second after its last waiter.
    pub subscriptions: usize,
    /// Owners whose holds are currently renewed or checked.
    pub renewals: usize,
    /// Releases currently in flight, in the background or by an unlock.
    pub releasing: usize,
    /// Locks that the client currently tracks: held, waited for, being released, or lost with a
    /// guard still open.
    pub entries: usize,
    /// Whether every command connection is up.
    pub connected: bool,
    /// Whether lost connections are killed on the server before their replacements are used. With several servers in
    /// use, the weakest fence.
    pub connection_fence: ConnectionFence,
    /// Holds acquired.
    pub acquired_total: u64,
    /// Holds released.
    pub released_total: u64,
    /// Locks handed from one caller of this client to the next without being freed in between.
    pub passes_total: u64,
    /// Holds lost.
    pub lost_total: u64,
    /// Calls that found the lock held in Redis and waited for its release. A call that only waits behind others
    /// of this client is not counted: see [`waiting`](Self::waiting).
    pub contended_total: u64,
    /// Renewals answered, counted per lock.
    pub renewed_total: u64,
    /// Outcomes that were unknown at first and were reconciled in the background.
    pub reconciled_total: u64,
    /// Background releases that gave up; the lease freed the lock.
    pub given_up_total: u64,
    /// Command connections that were replaced.
    pub reconnects_total: u64,
    /// Servers that have locks: 1, or the number of a cluster's primaries with slots.
    pub nodes: usize,
    /// Commands that a cluster node redirected to another one.
    pub redirects_total: u64,
    /// Servers that another one has replaced in a failover.
    pub failovers_total: u64,
}

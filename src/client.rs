//! The client: its id, settings and connections; creates locks and shuts everything down.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fred::interfaces::ClientLike;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::builder::LockClientBuilder;
use crate::entry::{Counts, Entries};
use crate::error::{Error, LossReason};
use crate::lock::Lock;
use crate::owner::Owner;
use crate::shared::{Phase, Shared};
use crate::stats::{AbandonedHold, ClientStats, CloseReport};

/// A connection to Redis that creates locks. Cheap to clone; all clones are one client.
///
/// A client is one half of every owner: its id is part of each lock hash it writes. It has one
/// command connection (more with [`connections`](LockClientBuilder::connections)) and one
/// subscriber connection, for any number of locks. When its last client handle, lock and guard are
/// dropped, its tasks end and its sockets close within a second.
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

/// Keeps a client running: clients, locks and guards share it, background tasks do not.
pub(crate) struct ClientHandle {
    pub(crate) shared: Arc<Shared>,
    pub(crate) stop: CancellationToken,
}

impl Drop for ClientHandle {
    fn drop(&mut self) {
        let (shared, stop) = (Arc::clone(&self.shared), self.stop.clone());
        // On a runtime that is gone this does nothing, and nothing is left to do.
        self.shared.runtime.spawn(async move {
            shared.enter_phase(Phase::Closing);
            // No handle is left that could release a detached hold.
            for entry in Entries::all(&shared) {
                entry.release_detached();
            }
            let in_sync = |counts: &Counts| counts.acquiring + counts.releasing == 0;
            let _ = tokio::time::timeout(LAST_WORK, wait_until(&shared, in_sync)).await;
            end(&shared, &stop).await;
        });
    }
}

impl LockClient {
    /// Connects with default settings.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] for an address that cannot be used, [`Error::NoAnswer`] if no
    /// server answers there within the command timeout, [`Error::Auth`], [`Error::Refused`],
    /// [`Error::NoRuntime`].
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
    /// The lock client opens its own connections; the given client is never used, reconnected or
    /// quit, and need not be connected.
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

    /// A lock by its name. Does no I/O; the lock's first operation reports an invalid name.
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
        Owner::with_id(&self.handle.shared.client_id, thread_id)
    }

    /// Client statistics from local information, with running totals since the client was created.
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
        let counts = shared.tally.counts();
        let total = |total: &AtomicU64| total.load(Ordering::Relaxed);
        ClientStats {
            held: counts.held,
            waiting: counts.waiting,
            subscriptions: shared.subscriptions.len(),
            renewals: shared.renewals.len(),
            releasing: counts.releasing,
            entries: shared.entries.len(),
            connection_fence: shared.redis.connection_fence(),
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

    /// Closes the client: no new holds, a `grace` period for open guards, then the shutdown.
    ///
    /// New calls and waiters get [`Error::Closed`] at once. Open guards have `grace` to be released
    /// and are renewed meanwhile. After that, detached holds are released; holds with an open guard
    /// are *not* released under a running section: they become lost with [`LossReason::Closed`] and
    /// end with their lease. The report lists them. Closing a closed client does nothing.
    ///
    /// Releases in flight have the same `grace`, and at least the command timeout. After that,
    /// `close` waits while they make progress: until none has ended for a command timeout.
    ///
    /// Where nothing can be sent (outside a runtime, or when nothing drives the client's), all
    /// holds are abandoned at once, and reported.
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
        let shared = &self.handle.shared;
        let closing = async {
            shared.enter_phase(Phase::Closing);
            for entry in Entries::all(shared) {
                entry.tell_all();
            }
            // Bounded, so that the addition cannot overflow.
            let grace = Instant::now() + grace.min(FOREVER);
            let _ =
                tokio::time::timeout_at(grace, wait_until(shared, |counts| counts.guarded == 0))
                    .await;

            let mut report = CloseReport::default();
            if !shared.is_closed() {
                for entry in Entries::all(shared) {
                    report.released += entry.release_detached();
                }
                report.unconfirmed = settle(shared, grace).await;
            }
            report.abandoned = abandon(shared);
            end(shared, &self.handle.stop).await;
            Ok(report)
        };
        match shared.on_client_runtime(pin!(closing)).await {
            Ok(report) => report,
            // Nothing can be sent, here or by the client's own tasks.
            Err(_) => {
                shared.enter_phase(Phase::Closing);
                CloseReport {
                    abandoned: abandon(shared),
                    ..CloseReport::default()
                }
            }
        }
    }
}

impl fmt::Debug for LockClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockClient")
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}

/// Ends every hold that is still open, and reports it.
fn abandon(shared: &Arc<Shared>) -> Vec<AbandonedHold> {
    let mut abandoned = Vec::new();
    for entry in Entries::all(shared) {
        let lock = entry.name.given().to_string();
        let owners = entry.lose_all(LossReason::Closed).into_iter();
        abandoned.extend(owners.map(|owner| AbandonedHold {
            lock: lock.clone(),
            owner: owner.to_string(),
        }));
        entry.tell_all();
    }
    abandoned
}

/// Waits until the counts satisfy `wished`.
async fn wait_until(shared: &Arc<Shared>, wished: impl Fn(&Counts) -> bool) {
    loop {
        let progress = shared.tally.progress();
        if wished(&shared.tally.counts()) {
            return;
        }
        progress.await;
    }
}

/// Waits for operations in flight: until `grace`, and longer while something ends in each command
/// timeout. Returns how many were left.
async fn settle(shared: &Arc<Shared>, grace: Instant) -> usize {
    // An acquire in flight may still take the lock although no caller wants it any more: it is
    // undone too.
    let under_way = |counts: &Counts| counts.acquiring + counts.releasing;
    let mut limit = Instant::now() + shared.config.command_timeout;
    loop {
        let before = shared.tally.ended();
        let in_sync = wait_until(shared, |counts| under_way(counts) == 0);
        if tokio::time::timeout_at(limit, in_sync).await.is_ok() {
            return 0;
        }
        let now = Instant::now();
        limit = now + shared.config.command_timeout;
        if shared.tally.ended() == before {
            if now >= grace {
                return under_way(&shared.tally.counts());
            }
            limit = limit.min(grace);
        }
    }
}

/// Ends every task and connection.
async fn end(shared: &Arc<Shared>, stop: &CancellationToken) {
    shared.enter_phase(Phase::Closed);
    stop.cancel();
    shared.redis.shut_down().await;
    shared.subscriptions.end();
    for entry in Entries::all(shared) {
        entry.lose_all(LossReason::Closed);
        entry.tell_all();
    }
}

/// How long releases may take after the last handle was dropped.
const LAST_WORK: Duration = Duration::from_millis(700);

/// Longer than any grace period that matters.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

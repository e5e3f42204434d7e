//! The public methods of a lock. The loop that acquires it is in `acquire`.

pub(crate) mod acquire;
mod attempt;
mod context;
mod downgrade;
mod force;
mod found;
mod guard;
pub(crate) mod guarded;
pub(crate) mod hold_handle;
mod inspect;
mod leave;
mod member;
mod once_per;
pub(crate) mod release;
pub(crate) mod renewal;
mod replicas;
mod rw;
mod stray;
mod take_over;
pub(crate) mod verbs;
mod waiter;

use std::fmt;
use std::marker::PhantomData;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::kind::{Fenced, LockKind, Unfenced};
use crate::names::owner::Owner;
use crate::names::try_lock::TryLock;
use crate::names::wire::LockName;
use crate::redis::SyncReplicas;
use crate::state::client_handle::ClientHandle;
use crate::state::measure::Class;
use redisson_lock_core::input::DetachedClaimed;

pub(crate) use attempt::SENDS;
pub(crate) use context::CallStage;
pub(crate) use guard::at_risk;
pub use guard::{FencedGuard, LockGuard};
use hold_handle::HoldHandle;
pub use inspect::{Holder, QueuedOwner};
pub(crate) use member::{MemberPlace, Retry, extend_hold};
use release::OpenHold;
pub use rw::{RwHolders, RwLock};
use verbs::verbs;
pub(crate) use waiter::{NOT_IN_TIME, Wait, has_time};

/// A lock by its name. Cheap to clone, does no I/O by itself, and stores no hold.
///
/// Without [`lease`](Self::lease) the watchdog renews a hold: its lease is the client's watchdog
/// timeout and is renewed at every third of it, until the hold is released. The lock is reentrant
/// by [`Owner`].
///
/// Do not use it for mutual exclusion that must survive the failover of a primary whose replicas lack the lock (see
/// [`sync_replicas`](Self::sync_replicas)), or for a resource that cannot tolerate two writers even briefly; see the
/// [guarantees](crate#what-is-promised).
///
/// # Examples
///
/// ```no_run
/// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
/// let stock = client.lock("stock:42");
/// let outer = stock.lock().await?;
/// let inner = stock.lock().await?; // the same task: hold count 2
/// inner.unlock().await?;
/// outer.unlock().await
/// # }
/// ```
pub struct Lock<K = Unfenced> {
    client: Arc<ClientHandle>,
    kind: LockKind,
    /// `Err`: the name is invalid, and the methods that use it fail.
    name: Result<Arc<LockName>, Arc<str>>,
    lease: Option<Duration>,
    max_hold: Option<Duration>,
    owner: Option<Owner>,
    retry_for: Option<Duration>,
    replicas: Option<SyncReplicas>,
    /// `false`: an owner holds it once at a time, because of its kind or of [`non_reentrant`](Self::non_reentrant).
    reentrant: bool,
    class: Class,
    marker: PhantomData<fn() -> K>,
}

/// A [`Lock`] whose holders have a [token](crate::HoldHandle::token), like Redisson's `RFencedLock`.
///
/// An owner keeps the same token for as long as it holds the lock. The token of the next owner is larger, in Rust or
/// Java. A resource that stores the largest token it has seen, *and its owner*, can refuse a holder that lost the lock
/// without knowing it: it accepts a larger token, or the same one from the same owner.
///
/// The owner matters because Redis may lose writes: after a failover without replication, or a flush, two holders
/// may have the same token.
///
/// # Examples
///
/// ```no_run
/// # async fn write(row: &str, token: u64) -> Result<(), redisson_lock::Error> { Ok(()) }
/// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
/// let guard = client.fenced_lock("ledger").lock().await?;
/// write("row", guard.token()).await?;
/// guard.unlock().await
/// # }
/// ```
pub type FencedLock = Lock<Fenced>;

impl<K> Clone for Lock<K> {
    fn clone(&self) -> Self {
        self.again()
    }
}

/// For code that takes locks of every kind.
impl From<FencedLock> for Lock {
    fn from(lock: FencedLock) -> Self {
        lock.again()
    }
}

impl<K> Lock<K> {
    pub(crate) fn new(client: Arc<ClientHandle>, kind: LockKind, name: String) -> Self {
        let config = &client.shared().config;
        let valid = client.shared().lock_name(kind, &name);
        Self {
            name: valid.map(Arc::new).map_err(|_| name.into()),
            max_hold: config.max_hold,
            retry_for: config.retry_for,
            replicas: config.replicas,
            reentrant: kind.is_reentrant(),
            client,
            kind,
            lease: None,
            owner: None,
            class: Class::default_of(kind),
            marker: PhantomData,
        }
    }

    fn again<M>(&self) -> Lock<M> {
        Lock {
            client: Arc::clone(&self.client),
            kind: self.kind,
            name: self.name.clone(),
            lease: self.lease,
            max_hold: self.max_hold,
            owner: self.owner.clone(),
            retry_for: self.retry_for,
            replicas: self.replicas,
            reentrant: self.reentrant,
            class: self.class,
            marker: PhantomData,
        }
    }

    /// Returns the kind of this lock.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: redisson_lock::LockClient) {
    /// assert_eq!(client.lock("stock:42").kind(), redisson_lock::LockKind::Plain);
    /// # }
    /// ```
    pub fn kind(&self) -> LockKind {
        self.kind
    }

    /// Returns the name as given, without the key prefix.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: redisson_lock::LockClient) {
    /// assert_eq!(client.lock("stock:42").name(), "stock:42");
    /// # }
    /// ```
    pub fn name(&self) -> &str {
        match &self.name {
            Ok(name) => name.given(),
            Err(invalid) => invalid,
        }
    }

    /// Returns this lock with a fixed lease instead of the watchdog: 10 milliseconds to ten years.
    ///
    /// The hold ends with the lease, however long the critical section takes. The lock is then released, and the guard
    /// is lost with [`LossReason::LeaseOver`](crate::LossReason::LeaseOver). The first operation reports an invalid
    /// lease.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// let guard = client.lock("stock:42").lease(Duration::from_secs(10)).lock().await?;
    /// # guard.unlock().await }
    /// ```
    #[must_use]
    pub fn lease(&self, lease: Duration) -> Self {
        Self {
            lease: Some(lease),
            ..self.clone()
        }
    }

    /// Returns this lock with a limit on each hold, counted from its acquisition: 10 milliseconds to
    /// ten years; default: the client's [`max_hold`](crate::LockClientBuilder::max_hold).
    ///
    /// The watchdog renews up to the limit, at which the hold is lost with
    /// [`LossReason::MaxHold`](crate::LossReason::MaxHold). A running critical section is not unlocked: the key stays
    /// until the guard is gone, or until the lease ends.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn run(client: redisson_lock::LockClient) {
    /// let lock = client.lock("stock:42").max_hold(Duration::from_secs(300));
    /// # }
    /// ```
    #[must_use]
    pub fn max_hold(&self, limit: Duration) -> Self {
        Self {
            max_hold: Some(limit),
            ..self.clone()
        }
    }

    /// Returns this lock for a given owner, whichever task calls it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// let owner = client.owner();
    /// let guard = client.lock("stock:42").owned_by(&owner).lock().await?;
    /// # guard.unlock().await }
    /// ```
    #[must_use]
    pub fn owned_by(&self, owner: &Owner) -> Self {
        Self {
            owner: Some(owner.clone()),
            ..self.clone()
        }
    }

    /// Returns this lock for calls that do not nest: such a call fails with [`Error::AlreadyHeld`] while its owner
    /// holds the lock, and so does every call of an owner whose hold was acquired in this way. The failed call sends
    /// nothing.
    ///
    /// The branches of one `join!` are one owner, so the second fails instead of entering; to make it wait, give each
    /// its own owner. Only this client enforces this: in Redis the hold is an ordinary one, as with Redisson's
    /// `getNonReentrantLock`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// let stock = client.lock("stock:42").non_reentrant();
    /// let guard = stock.lock().await?;
    /// assert!(matches!(stock.try_lock().await, Err(redisson_lock::Error::AlreadyHeld { .. })));
    /// # guard.unlock().await }
    /// ```
    #[must_use]
    pub fn non_reentrant(&self) -> Self {
        Self {
            reentrant: false,
            ..self.clone()
        }
    }

    /// Returns this lock with a retry limit: after an attempt that Redis did not answer, or refused temporarily
    /// ([`Error::is_retryable`]), [`lock`](Self::lock) tries again for up to `retry_for`. Default: the client's
    /// [`retry_for`](crate::LockClientBuilder::retry_for).
    ///
    /// Before the next attempt the client rolls back an attempt without a response, or a lock that too few replicas had
    /// ([`sync_replicas`](Self::sync_replicas)). The pauses grow to 1 s.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// let lock = client.lock("stock:42").retry_for(Duration::from_secs(60));
    /// let guard = lock.lock().await?; // also through a restart of Redis
    /// # guard.unlock().await }
    /// ```
    #[must_use]
    pub fn retry_for(&self, retry_for: Duration) -> Self {
        Self {
            retry_for: Some(retry_for),
            ..self.clone()
        }
    }

    /// Returns this lock with the class under which its calls and holds are counted: `checkout`, `nightly jobs`.
    /// Default `default`, whose locks also have a label `kind` unless they are plain.
    ///
    /// The label of the [metrics](crate::guide::operations#statistics) is the class, never the name of a lock. Needs
    /// the feature `metrics`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// let guard = client.lock("stock:42").class("checkout").lock().await?;
    /// # guard.unlock().await }
    /// ```
    #[cfg(feature = "metrics")]
    #[must_use]
    pub fn class(&self, class: &'static str) -> Self {
        Self {
            class: Class::named(class),
            ..self.clone()
        }
    }

    /// Acquires like [`try_lock`](Self::try_lock), and names the holder if the lock is held. If callers of this client
    /// queue for the lock, the call only reads it; for a fair lock it always makes an attempt.
    ///
    /// # Errors
    ///
    /// See [`lock`](Self::lock).
    ///
    /// # Cancel safety
    ///
    /// See [`lock`](Self::lock).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// use redisson_lock::TryLock;
    /// match client.lock("stock:42").try_lock_or_holder().await? {
    ///     TryLock::Acquired(guard) => guard.unlock().await?,
    ///     TryLock::Busy { holder: Some(by) } => println!("held by {}", by.owner),
    ///     TryLock::Busy { holder: None } => println!("free, but others are ahead in the queue"),
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn try_lock_or_holder(&self) -> Result<TryLock<LockGuard<K>>, Error> {
        Ok(
            match self
                .acquire_or_find(Wait::Never(None), CallStage::Only)
                .await?
            {
                TryLock::Busy { holder: None } => TryLock::Busy {
                    holder: self.held_by().await?,
                },
                answer => answer,
            },
        )
    }

    /// Releases one [detached](LockGuard::detach) hold of the current owner.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NotHeld`] if this owner has no detached hold; otherwise see [`LockGuard::unlock`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the hold in the background, exactly once. Dropping it before its first poll does
    /// nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(lock: redisson_lock::Lock) -> Result<(), redisson_lock::Error> {
    /// lock.lock().await?.detach();
    /// lock.unlock().await
    /// # }
    /// ```
    pub async fn unlock(&self) -> Result<(), Error> {
        let shared = self.client.shared();
        let unlocking = async {
            let owner = self.current_owner()?.key(self.kind.face());
            let entry = self.entry()?;
            let hold = entry.step(DetachedClaimed { owner });
            let Some(hold) = hold else {
                return Err(if shared.is_closed() {
                    Error::Closed
                } else {
                    Error::not_held(self.name(), &shared.client_id, owner.thread.0)
                });
            };
            let status = entry.status(hold);
            // Cancel safety: there is no guard whose drop would release the hold.
            OpenHold::new(entry, owner, hold).unlock(status).await
        };
        shared.on_client_runtime(pin!(unlocking)).await
    }
}

verbs! {
    impl[K] Lock<K>: LockGuard<K>, HoldHandle<K>; "redisson_lock::Lock";

    /// Acquires the lock, waiting while another owner holds it.
    ///
    /// If this owner already holds it, the call adds a hold without waiting for others; on a string lock and with
    /// [`non_reentrant`](Self::non_reentrant) it fails. All waiters of a client share one subscription for the lock
    /// (those of a fair lock have one each), and do not poll. Waiters of spin and string locks poll at intervals of up
    /// to 128 ms.
    ///
    /// # Errors
    ///
    /// Returns the error of a failed attempt: [`Error::NoAnswer`] (the call added no hold), [`Error::Refused`],
    /// [`Error::PermissionDenied`], [`Error::Auth`], [`Error::Tls`], [`Error::NotALock`], [`Error::UnexpectedReply`];
    /// with [`sync_replicas`](Self::sync_replicas) [`Error::TooFewReplicas`]. [`Error::Lost`] if an outer hold of this
    /// owner was lost and its guard is still open; [`Error::AlreadyHeld`], [`Error::TooDeep`]; [`Error::OtherKind`];
    /// [`Error::InvalidName`], [`Error::InvalidDuration`], [`Error::Misuse`]; [`Error::Closed`], [`Error::NoRuntime`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no hold, no subscription and no timer. An attempt in flight is rolled back as soon as
    /// the connection allows it; until then others find the lock taken, and this owner's next call waits for it. The
    /// place in the queue is lost.
    ///
    /// Poll or drop a waiting future. If it is kept without being polled, the client's later callers wait for up to the
    /// command timeout each time it could proceed, and other owners' [`try_lock`](Self::try_lock) makes no attempt.
    /// Then it is skipped until it is polled again and returns to its place in the queue. In the queue of a fair lock
    /// it delays all clients: for up to two command timeouts after a release, and until its place ends after an expiry
    /// ([`fair_wait`](crate::LockClientBuilder::fair_wait)). Then it starts at the end.
    lock;

    /// Acquires the lock if it is free now, in one attempt. Returns `None` if it is held or, without asking Redis, if
    /// callers of this client queue for it. For a fair lock the call always asks Redis, and also returns `None` while
    /// another owner is first in its queue.
    ///
    /// An owner that holds the lock, or is the first in the queue with another call, does not wait for others.
    ///
    /// # Errors
    ///
    /// See [`lock`](Self::lock). Also [`Error::NoAnswer`] if the latest attempt of the queued callers failed.
    ///
    /// # Cancel safety
    ///
    /// See [`lock`](Self::lock).
    try_lock;

    /// Acquires the lock, waiting for at most `wait`. Returns `None` if another owner had it the whole time.
    ///
    /// An attempt that fails temporarily ([`Error::is_retryable`]) is repeated until then. The call ends at the
    /// deadline whatever the server does: an attempt in flight is rolled back in the background, and a lock that is
    /// being handed off at that moment goes to the next in the queue. However short `wait` is, the call waits up to 40
    /// ms for the response to its first attempt. A wait of zero makes one attempt and does not queue, like
    /// [`try_lock`](Self::try_lock), which has a command timeout for it instead. A wait of more than ten years ends
    /// after ten.
    ///
    /// # Errors
    ///
    /// See [`lock`](Self::lock). At the deadline the call returns `None` only if the server's latest response about
    /// this lock was that another owner has it, or if another owner of this client has it. Otherwise it returns
    ///
    /// - the error of the latest attempt, if that failed after the latest answer;
    /// - [`Error::NoAnswer`] if the server has not answered this call or, if the call has only queued behind others of
    ///   this client, has not answered theirs;
    /// - the same if there is no connection at the deadline;
    /// - [`Error::TooFewReplicas`] if the lock was taken, and too few replicas have confirmed it by then
    ///   ([`sync_replicas`](Self::sync_replicas)).
    ///
    /// While an attempt in flight has not failed, the response before it still counts.
    ///
    /// # Cancel safety
    ///
    /// See [`lock`](Self::lock).
    try_lock_for;
}

impl<K> fmt::Debug for Lock<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("name", &self.name())
            .field("kind", &self.kind)
            .field("lease", &self.lease)
            .field("max_hold", &self.max_hold)
            .field("owner", &self.owner)
            .finish()
    }
}

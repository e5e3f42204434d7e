//! Several locks as one: all of them or none, through the methods of each.

mod guard;
mod rule;
mod take;

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::time::Instant;

use crate::base::runtime::{by_deadline, in_span, span};
use crate::error::Error;
use crate::lock::verbs::{Lockable, verbs};
use crate::lock::{Lock, Wait};
use crate::names::owner::Owner;

pub use guard::{MemberLoss, MultiGuard, MultiHold, MultiLost};

/// Several locks that are taken together: all of them, or none. Cheap to clone, and stores no hold.
///
/// The locks may be of any kind, of several clients and on several servers. In Redis each of them is an ordinary hold,
/// as with Redisson's `RedissonMultiLock`. Each lock keeps its own settings: its `max_hold`, `retry_for`,
/// `sync_replicas`.
///
/// # Order and deadlocks
///
/// A call takes the locks in the order of their keys, whatever order they were given in, so calls for the same locks
/// queue for the same one. It never waits for a lock while it holds another of them: it releases what it has, and
/// starts again with the busy one. So there is no deadlock, whatever order other callers use, in Rust or Java. Other
/// clients may briefly see some of the locks taken. Locks that the owner held before the call are not covered: a
/// program that takes these locks while it holds others can still deadlock.
///
/// A call that finds one of the locks busy with other callers of that lock's client queues with them: at the same time
/// for each lock that callers of its client hold or wait for, and after a second of busy locks for all of them. It
/// holds none in the meantime, and takes all when it is first in every queue, so it does not starve next to callers
/// that always queue, whatever the lengths of the queues. It keeps a first place for up to two command timeouts, while
/// it is not first everywhere and while it tries the locks, and later callers of that client wait. Then they pass it,
/// and it is first again when the other queues have reached it. Fair locks queue in Redis, where a call takes no place
/// before it waits: next to owners that always queue for several of them it may starve.
///
/// There is no `try_lock_or_holder`: call [`Lock::inspect`] on each lock instead.
///
/// # The same lock twice
///
/// Two of the locks cannot be the same key in the same database of one server. [`new`](Self::new) checks the locks of
/// one client. If two clients' locks have the same key, the first acquisition asks the servers for their identity
/// (`INFO server`). A client whose user may not ask counts as connected to a separate server: if it is not, such a call
/// waits for itself until its deadline, or forever.
///
/// # Examples
///
/// ```no_run
/// # async fn transfer() -> Result<(), redisson_lock::Error> { Ok(()) }
/// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
/// use redisson_lock::MultiLock;
/// let both = MultiLock::new([client.lock("account:1"), client.fenced_lock("account:2").into()])?;
/// let guard = both.lock().await?;
/// transfer().await?;
/// guard.unlock().await
/// # }
/// ```
#[derive(Clone)]
pub struct MultiLock {
    members: Vec<Lock>,
    /// Those of all, as one.
    name: Arc<str>,
    lease: Option<Duration>,
    /// Whether the servers were asked if two of the locks are the same.
    checked: Arc<AtomicBool>,
}

impl MultiLock {
    /// Combines these locks into one.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidConfig`] without a lock, or with one twice.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// let accounts = [1, 2, 3].map(|id| client.lock(format!("account:{id}")));
    /// let all = redisson_lock::MultiLock::new(accounts)?;
    /// # Ok(()) }
    /// ```
    pub fn new(members: impl IntoIterator<Item = Lock>) -> Result<Self, Error> {
        let members: Vec<Lock> = members.into_iter().collect();
        if members.is_empty() {
            return Err(invalid("it needs a lock at least".to_owned()));
        }
        for (one, other) in same_keys(&members) {
            if one.is_of_client_of(other) {
                return Err(twice(one));
            }
        }
        let names: Vec<&str> = members.iter().map(Lock::name).collect();
        Ok(Self {
            name: names.join(", ").into(),
            members,
            lease: None,
            checked: Arc::default(),
        })
    }

    /// Returns these locks with a fixed lease instead of the watchdog: 10 milliseconds to ten years. When all are
    /// taken, the earlier leases are extended, so that none ends before the lease of the lock that was taken last. A
    /// lease whose extension would exceed its lock's `max_hold` stays as it is.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn run(both: redisson_lock::MultiLock) -> Result<(), redisson_lock::Error> {
    /// let guard = both.lease(Duration::from_secs(10)).lock().await?;
    /// # guard.unlock().await }
    /// ```
    #[must_use]
    pub fn lease(&self, lease: Duration) -> Self {
        Self {
            lease: Some(lease),
            ..self.with(|lock| lock.lease(lease))
        }
    }

    /// Returns these locks with a given owner for those of its client, whichever task calls them. Locks of other
    /// clients keep their owners. If none belongs to that client, each call fails with [`Error::Misuse`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(client: redisson_lock::LockClient, both: redisson_lock::MultiLock) -> Result<(), redisson_lock::Error> {
    /// let owner = client.owner();
    /// let guard = both.owned_by(&owner).lock().await?;
    /// # guard.unlock().await }
    /// ```
    #[must_use]
    pub fn owned_by(&self, owner: &Owner) -> Self {
        let known = self.members.iter().any(|lock| lock.knows(owner));
        self.with(|lock| match lock.knows(owner) || !known {
            true => lock.owned_by(owner),
            false => lock.clone(),
        })
    }

    /// Returns these locks with other settings.
    fn with(&self, change: impl Fn(&Lock) -> Lock) -> Self {
        Self {
            members: self.members.iter().map(change).collect(),
            name: Arc::clone(&self.name),
            lease: self.lease,
            checked: Arc::clone(&self.checked),
        }
    }
}

impl Lockable for MultiLock {
    type Guard = MultiGuard;

    fn lock_name(&self) -> &str {
        &self.name
    }

    async fn acquire(&self, wait: Wait) -> Result<Option<MultiGuard>, Error> {
        let span = span!("acquire_all", locks = self.members.len());
        let acquiring = pin!(async {
            // Looked up once: without a task each call has an owner of its own.
            let members: Result<Vec<Lock>, Error> =
                self.members.iter().map(Lock::of_this_call).collect();
            let members = members?;
            if !self.checked.load(Ordering::Relaxed) {
                check(&members, wait).await?;
                self.checked.store(true, Ordering::Relaxed);
            }
            let taken = take::take(&members, wait, self.lease).await?;
            let named = |guards| MultiGuard::new(guards, Arc::clone(&self.name));
            Ok(taken.map(named))
        });
        in_span(span.as_deref(), acquiring).await
    }

    #[cfg(feature = "blocking")]
    fn of_this_thread(&self) -> Self {
        self.with(Lock::of_this_thread)
    }
}

verbs! {
    impl[] MultiLock: MultiGuard, MultiHold; "redisson_lock::MultiLock";

    /// Acquires all of them, waiting while another owner holds one.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidConfig`] if two of them are the same lock. Otherwise returns the error of the first lock
    /// that fails (see [`Lock::lock`]), with its name ([`Error::lock`]), and releases the others in the background
    /// without waiting for that. Also [`Error::Lost`] if one of them ended before all were taken. A call that retries
    /// after errors takes all of them again, for up to the [`retry_for`](Lock::retry_for) of the failing lock, counted
    /// from its first failure until its server grants the lock or reports it busy, or, after a loss, until a round
    /// finds a lock busy.
    ///
    /// # Cancel safety
    ///
    /// See [`Lock::lock`]. Locks that were already taken are released in the background.
    lock;

    /// Acquires all of them if they are free now. Returns `None` if one is not: see [`Lock::try_lock`].
    ///
    /// # Errors
    ///
    /// See [`lock`](Self::lock).
    ///
    /// # Cancel safety
    ///
    /// See [`lock`](Self::lock).
    try_lock;

    /// Acquires all of them, waiting for at most `wait`. Returns `None` if another owner held one of them in the latest
    /// round.
    ///
    /// An attempt that fails temporarily ([`Error::is_retryable`]) is repeated until then. As with
    /// [`Lock::try_lock_for`], the call ends at the deadline or after 40 ms, whichever is later, whatever the servers
    /// do. Locks that it has taken, or that are in flight, are released in the background.
    ///
    /// # Errors
    ///
    /// See [`lock`](Self::lock). At the deadline also returns the error of the latest round, if that failed, and
    /// [`Error::NoAnswer`] if no round has ended, or a server never responded about a lock that the call was about to
    /// take: see [`Lock::try_lock_for`].
    ///
    /// # Cancel safety
    ///
    /// See [`lock`](Self::lock).
    try_lock_for;
}

impl fmt::Debug for MultiLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiLock")
            .field("members", &self.members)
            .finish()
    }
}

/// Asks the servers whether two locks of several clients are the same, each as often as a call for its lock tries again
/// that waits so.
async fn check(members: &[Lock], wait: Wait) -> Result<(), Error> {
    let answered_by = wait.answered_by(Instant::now());
    let places = members.iter().map(|lock| async move {
        let is_asked =
            same_keys(members).any(|(one, other)| ptr::eq(one, lock) || ptr::eq(other, lock));
        if !is_asked {
            return Ok(None);
        }
        let mut retry = lock.retry(wait);
        let asking = async {
            let in_time = {
                let asking = pin!(async {
                    loop {
                        match lock.location().await {
                            Ok(place) => return Ok(place),
                            Err(error) => retry.failed(error).await?,
                        }
                    }
                });
                by_deadline(answered_by, asking).await
            };
            in_time?.ok_or_else(|| {
                let failure = retry.take_failure();
                failure.unwrap_or_else(|| lock.not_in_time())
            })
        };
        let place = lock.on_runtime(asking).await;
        place.map_err(|error| error.about(lock.name()))
    });
    let places = try_join_all(places).await?;
    let place = |lock: &Lock| {
        let nth = members.iter().position(|member| ptr::eq(member, lock));
        nth.and_then(|nth| places[nth].as_ref())
    };
    for (one, other) in same_keys(members) {
        let (there, other) = (place(one), place(other));
        if there.is_some() && there == other {
            return Err(twice(one));
        }
    }
    Ok(())
}

/// Every two locks with one key.
fn same_keys(members: &[Lock]) -> impl Iterator<Item = (&Lock, &Lock)> {
    let numbered = members.iter().enumerate();
    let pairs =
        numbered.flat_map(|(nth, other)| members[..nth].iter().map(move |one| (one, other)));
    pairs.filter(|(one, other)| one.key().is_some() && one.key() == other.key())
}

fn twice(lock: &Lock) -> Error {
    let name = lock.name();
    invalid(format!("lock `{name}` is listed twice, or under two names"))
}

fn invalid(problem: String) -> Error {
    Error::InvalidConfig {
        what: "multi lock",
        problem,
    }
}

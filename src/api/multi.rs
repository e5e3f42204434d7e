//! Several locks as one: all of them or none, by the methods of each.

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
/// The locks may be of any kind, of several clients and at several servers; in Redis each of them is an ordinary hold,
/// as with Redisson's `RedissonMultiLock`. The settings of each lock stay in force: its `max_hold`,
/// `retry_for`, `sync_replicas`.
///
/// # Order and deadlocks
///
/// A call takes the locks by the order of their keys, whatever order they were given in, so that calls for the same locks
/// queue for the same one. It never waits for a lock while it holds another of them: it gives back what it has, and begins
/// with the one that was busy. So there is no deadlock, whatever orders other callers have, in Rust or Java. Others may see some
/// of the locks taken for a moment. What the owner held before the call counts for nothing here: a program that takes
/// these locks while it holds others can still make a deadlock.
///
/// A call that has found one of the locks busy with other callers of that lock's client queues with them, at the same time
/// for each of the locks that callers of its client hold or wait for, and after a second of busy locks for all of them. It
/// holds none meanwhile, and takes all when it is the first in every queue: so it does not starve beside callers that always
/// queue, whatever the lengths of the queues. It keeps a first place for up to two command timeouts,
/// while it is not the first everywhere and while it tries the locks: later callers of that client wait meanwhile. Then
/// they pass it, and it is the first again when the other queues have come to it. Fair locks have their queue in Redis, in
/// which it takes no place before it waits: beside owners that always queue for several of them it may starve.
///
/// A call that finds the lock busy does not name a holder, as [`Lock::try_lock_or_holder`] does: [`Lock::inspect`] of each
/// lock does.
///
/// # The same lock twice
///
/// Two of the locks cannot be one key of one database at one server. Of one client that is seen by [`new`](Self::new). Of
/// several clients the first acquisition asks the servers who they are (`INFO server`), if two keys are the same. A
/// client whose user may not ask is taken to be at a server of its own: then such a call waits for itself until its
/// deadline, or for ever.
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
    /// These locks as one.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] without a lock, or with one twice.
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
    /// taken, the earlier leases are extended: none ends before the lease of the lock that was taken last. A lease whose
    /// extension would pass its lock's `max_hold` stays as it is.
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

    /// Returns these locks for a given owner, whichever task calls them: those of the owner's client. Locks of
    /// other clients keep their owners; if none is of that client, each call fails with [`Error::Misuse`].
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
    /// [`Error::InvalidConfig`] if two of them are the same lock; otherwise those of [`Lock::lock`]: the error of
    /// the first lock that fails, with its name ([`Error::lock`]). The others are released in the background; the
    /// call does not wait for that. [`Error::Lost`] also if one of them ended before all were taken. A call that tries
    /// again after errors takes all of them again, for up to the [`retry_for`](Lock::retry_for) of the lock that fails,
    /// from its first failure on: until its server has granted it or said that it is busy, or, after a loss, until a round
    /// finds a lock busy.
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::lock`]: what is taken already is released in the background.
    lock;

    /// Acquires all of them if they are free now. Returns `None` if one is not: see [`Lock::try_lock`].
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    try_lock;

    /// Acquires all of them, waiting at most this long. Returns `None` if the latest round has found one of them held by
    /// another owner.
    ///
    /// An attempt that fails for a reason that passes ([`Error::is_retryable`]) is repeated until then. The call ends at
    /// the deadline whatever the servers do, or after 40 ms, whichever is later, as [`Lock::try_lock_for`]; what it has
    /// taken, and what is in flight, is released in the background.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock). At the deadline also the error of the latest round, if that has failed, and
    /// [`Error::NoAnswer`] if no round has ended, or a lock that it was about to take was never answered for: see
    /// [`Lock::try_lock_for`].
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
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
        place.map_err(|error| error.about(lock.given_name()))
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
    invalid(format!("lock `{name}` is in it twice, or under two names"))
}

fn invalid(problem: String) -> Error {
    Error::InvalidConfig {
        what: "multi lock",
        problem,
    }
}

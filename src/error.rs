//! What can go wrong, as something a caller can handle. Contention is not in here: it is `None`.

use std::error::Error as StdError;
use std::fmt;

/// Why a lock operation failed. A lock that somebody else holds is not a failure: see
/// [`Lock::try_lock`](crate::Lock::try_lock).
///
/// # Examples
///
/// ```no_run
/// # async fn run(lock: redisson_lock::Lock) -> Result<(), redisson_lock::Error> {
/// use redisson_lock::Error;
/// match lock.lock().await {
///     Ok(guard) => guard.unlock().await?,
///     Err(Error::NoAnswer { .. }) => { /* Redis is away: nothing is held, try later */ }
///     Err(Error::Lost { reason, .. }) => eprintln!("an outer hold of this task ended: {reason}"),
///     Err(other) => return Err(other),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This owner does not hold the lock, or holds it only through guards. Nothing changed.
    #[error(
        "lock `{lock}` has no detached hold of {owner}: unlock its guard, or unlock as the owner that detached it"
    )]
    NotHeld {
        /// The lock.
        lock: String,
        /// Who asked.
        owner: String,
    },

    /// The hold ended before; nothing is held. Whoever needed it must take the lock again and start
    /// over.
    #[error("the hold of lock `{lock}` was lost: {reason}")]
    Lost {
        /// The lock.
        lock: String,
        /// What ended the hold.
        reason: LossReason,
    },

    /// The lock's name cannot be used. Nothing was sent.
    #[error("invalid lock name `{name}`: {problem}")]
    InvalidName {
        /// The name, shortened if it is endless.
        name: String,
        /// What is wrong, and what is allowed.
        problem: &'static str,
    },

    /// A duration is out of bounds. Nothing was sent.
    #[error("invalid {what} of {given:?}: {problem}")]
    InvalidDuration {
        /// Which duration.
        what: &'static str,
        /// The value given.
        given: std::time::Duration,
        /// What is wrong, and what is allowed.
        problem: &'static str,
    },

    /// A setting, an address or an owner cannot be used. Nothing was sent.
    #[error("invalid {what}: {problem}")]
    InvalidConfig {
        /// Which setting.
        what: &'static str,
        /// What is wrong, and what is allowed.
        problem: String,
    },

    /// Redis could not be reached, or did not answer in time. The caller holds nothing; if the
    /// command took effect after all, it is undone in the background, at the latest when its lease
    /// ends.
    #[error(
        "no answer from Redis while {while_doing}; nothing is held, check that the server is reachable"
    )]
    NoAnswer {
        /// What was being done.
        while_doing: &'static str,
        /// What the connection said.
        #[source]
        source: Source,
    },

    /// The server said no. Nothing changed.
    #[error("Redis refused: {kind}")]
    Refused {
        /// Why.
        kind: RefusedKind,
        /// The server's words.
        #[source]
        source: Source,
    },

    /// The server did not accept the credentials. Nothing changed.
    #[error("Redis did not accept the credentials: check user and password of the client")]
    Auth {
        /// The server's words, which never contain a password.
        #[source]
        source: Source,
    },

    /// The user of the connection lacks a permission. Nothing changed.
    #[error("the Redis user lacks permission `{permission}`: grant it with ACL SETUSER")]
    PermissionDenied {
        /// The permission, as `ACL SETUSER` writes it.
        permission: String,
        /// The server's words.
        #[source]
        source: Source,
    },

    /// The key holds something else than a plain lock. Nothing changed.
    #[error("key `{key}` is not a lock but {found}: use another name, or delete the key")]
    NotALock {
        /// The key, with its prefix.
        key: String,
        /// What was found.
        found: String,
    },

    /// A script gave an answer that it never gives, or an error that is no refusal of Redis.
    /// Treated like a missing answer: what may have been executed is undone in the background.
    #[error("script `{script}` answered {reply}; is another program answering for Redis?")]
    UnexpectedReply {
        /// The script.
        script: &'static str,
        /// The answer, cut to 200 bytes.
        reply: String,
    },

    /// The lock is nested deeper than a hold count reaches. Nothing changed.
    #[error(
        "lock `{lock}` is already held {depth} times by this owner: unlock before taking it again"
    )]
    TooDeep {
        /// The lock.
        lock: String,
        /// The hold count.
        depth: u32,
    },

    /// The client was closed. Nothing was sent.
    #[error("the lock client is closed: make a new one")]
    Closed,

    /// There is no tokio runtime here, or it has no timers or no sockets; or the one the client was
    /// made on has ended, or nobody drives it: for a caller on another runtime that is so when it
    /// has run no task for about two command timeouts. Nothing is held; what was on its way then is
    /// undone when that runtime goes on, or ends with its lease.
    #[error(
        "no tokio runtime: call from within one that has time and I/O enabled, and keep the runtime that made the \
         client running"
    )]
    NoRuntime,
}

impl Error {
    pub(crate) fn lost(lock: &str, reason: LossReason) -> Self {
        Self::Lost {
            lock: lock.to_owned(),
            reason,
        }
    }

    pub(crate) fn no_answer(while_doing: &'static str, source: impl Into<Source>) -> Self {
        Self::NoAnswer {
            while_doing,
            source: source.into(),
        }
    }
}

/// The cause of an error, for people and logs.
pub(crate) type Source = Box<dyn StdError + Send + Sync>;

/// What ended a hold that its owner did not give back.
///
/// # Examples
///
/// ```
/// use redisson_lock::LossReason;
/// assert_eq!(LossReason::LeaseOver.to_string(), "its lease is over");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// The fixed lease has run out.
    LeaseOver,
    /// Redis did not confirm a renewal in time, so the lease may have run out.
    NotRenewed,
    /// The key is gone: deleted, flushed, forced open, or expired.
    Gone,
    /// Another owner holds the lock.
    Taken,
    /// The key holds something else now.
    Changed,
    /// The limit set with [`Lock::max_hold`](crate::Lock::max_hold) was reached.
    MaxHold,
    /// The client was closed, or the runtime that it was made on has ended, while the hold was
    /// open.
    Closed,
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LeaseOver => "its lease is over",
            Self::NotRenewed => "it could not be renewed in time",
            Self::Gone => "its key is gone (deleted, flushed, forced open or expired)",
            Self::Taken => "another owner has taken it",
            Self::Changed => "its key holds something else now",
            Self::MaxHold => "it was held for the longest time allowed",
            Self::Closed => "the client was closed",
        })
    }
}

/// Why the server said no.
///
/// # Examples
///
/// ```
/// use redisson_lock::RefusedKind;
/// assert_eq!(RefusedKind::ReadOnly.to_string(), "it is a read-only replica; connect to the primary");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusedKind {
    /// `READONLY`
    ReadOnly,
    /// `OOM`
    OutOfMemory,
    /// `NOREPLICAS`
    NotEnoughReplicas,
    /// `LOADING`
    Loading,
    /// `BUSY`
    Busy,
    /// `MASTERDOWN`
    MasterDown,
    /// `MISCONF`
    Misconf,
    /// `max number of clients reached`
    TooManyClients,
    /// `CLUSTERDOWN`, `MOVED`, `ASK`, `CROSSSLOT`, `TRYAGAIN`
    Cluster,
}

impl fmt::Display for RefusedKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReadOnly => "it is a read-only replica; connect to the primary",
            Self::OutOfMemory => "it is out of memory; raise maxmemory or free keys",
            Self::NotEnoughReplicas => "too few replicas are attached for min-replicas-to-write",
            Self::Loading => "it is still loading its data; try again",
            Self::Busy => "another script is running; try again, or SCRIPT KILL it",
            Self::MasterDown => "it is a replica that lost its primary",
            Self::Misconf => "it cannot persist its data; see its log",
            Self::TooManyClients => "maxclients is reached; raise it or close connections",
            Self::Cluster => {
                "it is a cluster node that does not serve this key; clusters are not supported yet"
            }
        })
    }
}

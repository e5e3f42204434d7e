//! The errors, one variant for each case a caller handles differently. Contention is not an error:
//! it is `None`.

mod category;
mod cause;
mod held_by;
mod kind;
mod operation;
mod refusal;
mod refused;
mod sentences;
mod tls;

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use redisson_lock_core::LossReason;

use crate::kind::LockKind;

pub use category::ErrorKind;
pub use held_by::HeldBy;
pub use operation::Operation;
pub use refused::RefusedKind;
pub(crate) use tls::tls_problem;

pub(crate) use cause::{Cause, Quorum};
use cause::{Source, refusal};
pub(crate) use refusal::{
    Denied, RefusalKind, is_from_server, is_of_a_replica, line_in_script, missing_channel,
    pattern_of,
};
use sentences::{auth, denied, no_answer, redis, refused};

/// Why a lock operation failed. A lock held by another owner is not a failure: see
/// [`Lock::try_lock`](crate::Lock::try_lock).
///
/// # Examples
///
/// ```no_run
/// # async fn run(lock: redisson_lock::Lock) -> Result<(), redisson_lock::Error> {
/// use redisson_lock::Error;
/// match lock.lock().await {
///     Ok(guard) => guard.unlock().await?,
///     Err(Error::NoAnswer { .. }) => { /* Redis is unreachable: nothing is held, retry later */ }
///     Err(Error::Lost { reason, .. }) => eprintln!("an outer hold of this task ended: {reason}"),
///     Err(other) => return Err(other),
/// }
/// # Ok(()) }
/// ```
///
/// "Nothing changed" and "Nothing was sent" refer to a call's last attempt. An earlier attempt whose reply was lost
/// with its connection may have been executed; an acquisition is then rolled back.
///
/// The message of an error about a server names it: by host and port or the path of its socket, and with all nodes that
/// were tried for a connection. No message has a password or a URL with its parameters, or repeats the error's source,
/// such as the message of the server or of the operating system. `Debug` prints both in one line, for logs, `unwrap`
/// and a `main` that returns an error:
///
/// ```
/// use redisson_lock::Error;
/// assert_eq!(format!("{:?}", Error::Closed), Error::Closed.to_string());
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This owner does not hold the lock, or holds it only through guards. Nothing changed.
    #[error(
        "owner {owner} has no detached hold of lock `{lock}`: unlock its guard, or unlock as the owner that detached it"
    )]
    NotHeld {
        /// The lock.
        lock: String,
        /// The caller's owner.
        owner: String,
    },

    /// The hold had already ended; nothing is held. Callers that need the lock must acquire it
    /// again and start over.
    #[error("the {}hold of lock `{lock}` was lost: {reason}", kind.part())]
    Lost {
        /// The lock.
        lock: String,
        /// The kind of the lock; for a read-write lock, the part whose hold was lost.
        kind: LockKind,
        /// The reason why the hold ended.
        reason: LossReason,
    },

    /// The lock's name cannot be used. Nothing was sent.
    #[error("invalid lock name `{name}`: {problem}")]
    InvalidName {
        /// The name, shortened if it is very long.
        name: String,
        /// The problem, and the allowed values.
        problem: &'static str,
    },

    /// A duration is out of bounds. Nothing was sent.
    #[error("invalid {what} of {given:?}: {problem}")]
    InvalidDuration {
        /// Which duration.
        what: &'static str,
        /// The value given.
        given: std::time::Duration,
        /// The problem, and the allowed values.
        problem: &'static str,
    },

    /// The call cannot be made like this. Nothing was sent.
    #[error("{problem}")]
    Misuse {
        /// The problem, and what to do instead.
        problem: &'static str,
    },

    /// A setting, a URL or a script cannot be used. Nothing was sent.
    #[error("invalid {what}: {problem}")]
    InvalidConfig {
        /// Which setting.
        what: &'static str,
        /// The problem, and the allowed values.
        problem: String,
    },

    /// Redis could not be reached, or did not answer in time. What that means for the lock depends on
    /// the operation: see [`Operation`].
    #[error("{}", no_answer(*while_doing, source))]
    NoAnswer {
        /// The operation in progress.
        while_doing: Operation,
        /// The cause that the connection reported.
        #[source]
        source: Source,
    },

    /// The server refused the command. Nothing changed.
    #[error("{} refused: {}", redis(source), refused(*kind, source))]
    Refused {
        /// Why.
        kind: RefusedKind,
        /// The server's message.
        #[source]
        source: Source,
    },

    /// The server did not accept the credentials. Nothing changed.
    #[error("{}", auth(source))]
    Auth {
        /// The server's message, which never contains a password.
        #[source]
        source: Source,
    },

    /// There is no TLS connection, because the server cannot prove its identity or does not accept the client. Nothing
    /// was sent.
    #[error("no TLS connection to {}: {problem}", redis(source))]
    Tls {
        /// Why, and what to do.
        problem: &'static str,
        /// The cause that the TLS library, or the server, reported.
        #[source]
        source: Source,
    },

    /// The user of the connection lacks a permission. Nothing changed.
    #[error("{}", denied(permission, source))]
    PermissionDenied {
        /// The permission, as `ACL SETUSER` writes it.
        permission: String,
        /// The server's message.
        #[source]
        source: Source,
    },

    /// The key holds something other than a lock of this kind. Nothing changed.
    #[error(
        "key `{key}` is not a lock but {found}: use another name, or delete the key if no other program uses it"
    )]
    NotALock {
        /// The key, with its prefix.
        key: String,
        /// The type or content that was found.
        found: String,
    },

    /// A script returned an unknown reply, even on a new connection, or an error that is not Redis' own. It is treated
    /// like a missing reply: whatever may have been executed is rolled back in the background.
    #[error("script `{script}` replied {reply}; is another program answering for Redis?")]
    UnexpectedReply {
        /// The script.
        script: &'static str,
        /// The reply, cut to 200 bytes.
        reply: String,
    },

    /// The lock is nested deeper than a hold count can represent. Nothing changed.
    #[error(
        "lock `{lock}` is already held {depth} times by this owner: unlock before acquiring it again"
    )]
    TooDeep {
        /// The lock.
        lock: String,
        /// The hold count.
        depth: u32,
    },

    /// The owner already holds the lock, and the call or that hold does not nest: it is of a string lock, or was made
    /// with [`non_reentrant`](crate::Lock::non_reentrant). Nothing was sent.
    #[error(
        "lock `{lock}` is already held by this owner and is not reentrant here: unlock it first, or use another owner"
    )]
    AlreadyHeld {
        /// The name as given.
        lock: String,
    },

    /// The owner holds the read part of a [read-write lock](crate::RwLock), and would wait for itself to get the write
    /// part. Nothing changed.
    #[error(
        "this owner holds the read lock of `{lock}`, so waiting for the write lock would deadlock: release the read \
         guard first, or take the write lock from the start"
    )]
    WouldDeadlock {
        /// The name as given.
        lock: String,
    },

    /// This client uses the name as another kind of lock, in a call, a guard, a handle, a hold or a release in
    /// progress. Nothing was sent.
    #[error(
        "this client already uses `{lock}` as a `{in_use}` lock, not `{kind}`: use another name"
    )]
    OtherKind {
        /// The name as given.
        lock: String,
        /// The kind of the call.
        kind: LockKind,
        /// The kind for which this client uses the name.
        in_use: LockKind,
    },

    /// A function with `#[locked(wait = "…")]` did not get its lock in time. It did not run, and
    /// nothing is held.
    #[cfg(feature = "macros")]
    #[error("lock `{lock}` was not free within {waited:?}{}: try again later, or wait longer", held_by(found.as_deref()))]
    Busy {
        /// The lock.
        lock: String,
        /// The limit of the wait.
        waited: std::time::Duration,
        /// The holder that this call's latest attempt found. `None` if it made none, because other calls of this client
        /// were first or Redis did not answer.
        found: Option<Box<HeldBy>>,
    },

    /// Too few replicas had the lock in time, or none could be asked; see
    /// [`Lock::sync_replicas`](crate::Lock::sync_replicas). It is released again, and nothing new is held.
    #[error("only {acknowledged} of {wanted} replicas acknowledged lock `{lock}`: {}", refused::said(*released))]
    TooFewReplicas {
        /// The lock.
        lock: String,
        /// How many replicas must have it.
        wanted: u32,
        /// How many have acknowledged it; also 0 if they could not be asked on the server that granted it.
        acknowledged: u32,
        /// Whether Redis has confirmed its release; otherwise its lease frees it at the latest.
        released: bool,
    },

    /// The script of a [guarded write](crate::HoldHandle::eval) failed. What it had written before stays; the lock is
    /// held.
    #[error("the script of a guarded write under lock `{lock}` failed: {message}")]
    ScriptFailed {
        /// The lock.
        lock: String,
        /// The server's message.
        message: String,
    },

    /// In a cluster, a key of a [guarded write](crate::HoldHandle::eval) is not in the lock's slot. Nothing was sent.
    #[error("key `{key}` is in another slot than lock `{lock}`: give both names the same {{tag}}")]
    OtherSlot {
        /// The lock.
        lock: String,
        /// The key.
        key: String,
    },

    /// The client was closed. Nothing was sent.
    #[error("the lock client is closed: create a new one")]
    Closed,

    /// There is no tokio runtime here, it lacks timers or sockets, or the runtime that created the client has ended.
    /// Nothing is held; a command in flight ends with its lease. A call from another runtime waits while nothing drives
    /// the runtime that created the client.
    #[error(
        "no tokio runtime: call from within one that has time and I/O enabled, and keep the runtime that created the \
         client running; without tokio use the feature `blocking`"
    )]
    NoRuntime,

    /// A call of a [blocking](crate#features) client was made where tokio polls a future, and would have blocked the
    /// tasks of that thread. Nothing was sent.
    #[error(
        "blocking call inside a tokio runtime: use the async LockClient there, or make the call in \
         tokio::task::spawn_blocking or on a thread of its own"
    )]
    InsideRuntime,
}

impl Error {
    /// A copy for one more of the callers that it concerns.
    pub(crate) fn for_another_caller(&self, while_doing: Operation) -> Self {
        let again = |source: &Source| -> Source {
            match cause::cause(source) {
                Some(cause) => Box::new(cause.clone()),
                None => source.to_string().into(),
            }
        };
        match self {
            Self::Refused { kind, source } => Self::Refused {
                kind: *kind,
                source: again(source),
            },
            Self::Auth { source } => Self::Auth {
                source: again(source),
            },
            Self::PermissionDenied { permission, source } => Self::PermissionDenied {
                permission: permission.clone(),
                source: again(source),
            },
            Self::NoAnswer { source, .. } => Self::NoAnswer {
                while_doing,
                source: again(source),
            },
            Self::UnexpectedReply { script, reply } => Self::UnexpectedReply {
                script,
                reply: reply.clone(),
            },
            Self::NotALock { key, found } => Self::not_a_lock(key, found),
            Self::Closed => Self::Closed,
            Self::NoRuntime => Self::NoRuntime,
            other => Self::NoAnswer {
                while_doing,
                source: other.to_string().into(),
            },
        }
    }

    pub(crate) fn not_held(lock: &str, client_id: &str, thread_id: i64) -> Self {
        let owner = format!("{client_id}:{thread_id}");
        Self::NotHeld {
            lock: lock.to_owned(),
            owner,
        }
    }

    /// Whether trying a release again cannot help.
    pub(crate) fn is_final(&self) -> bool {
        use Error::{Closed, NoRuntime, PermissionDenied};
        matches!(self, PermissionDenied { .. } | Closed | NoRuntime)
    }

    pub(crate) fn not_a_lock(key: &str, found: &str) -> Self {
        Self::NotALock {
            key: key.to_owned(),
            found: found.to_owned(),
        }
    }

    pub(crate) fn script_failed(lock: &str, message: impl fmt::Display) -> Self {
        Self::ScriptFailed {
            lock: lock.to_owned(),
            message: message.to_string(),
        }
    }

    pub(crate) fn lost(lock: &str, kind: LockKind, reason: LossReason) -> Self {
        Self::Lost {
            lock: lock.to_owned(),
            kind,
            reason,
        }
    }

    /// Returns the name of the lock that the error is about, if it names one. That of a call which acquires or releases
    /// a lock does.
    ///
    /// # Examples
    ///
    /// ```
    /// use redisson_lock::Error;
    /// assert_eq!(Error::Closed.lock(), None);
    /// ```
    pub fn lock(&self) -> Option<&str> {
        match self {
            Self::NotHeld { lock, .. }
            | Self::Lost { lock, .. }
            | Self::TooDeep { lock, .. }
            | Self::AlreadyHeld { lock }
            | Self::WouldDeadlock { lock }
            | Self::OtherKind { lock, .. }
            | Self::ScriptFailed { lock, .. }
            | Self::OtherSlot { lock, .. }
            | Self::TooFewReplicas { lock, .. } => Some(lock),
            Self::InvalidName { name, .. } => Some(name),
            Self::NoAnswer { source, .. }
            | Self::Refused { source, .. }
            | Self::Auth { source }
            | Self::Tls { source, .. }
            | Self::PermissionDenied { source, .. } => cause::lock(source),
            #[cfg(feature = "macros")]
            Self::Busy { lock, .. } => Some(lock),
            _ => None,
        }
    }

    /// Adds the name of the lock.
    pub(crate) fn about(self, lock: &str) -> Self {
        self.with_source(|source| cause::about(source, lock))
    }

    /// The error of several servers that were asked together. `others`: those of the other servers that have not answered.
    pub(crate) fn of_quorum(self, quorum: Quorum, others: impl IntoIterator<Item = Self>) -> Self {
        let others = others.into_iter().filter_map(|mut other| {
            let cause = cause::cause(other.server_source()?)?;
            Some((Arc::clone(cause.server.as_ref()?), cause.text.clone()))
        });
        let others = others.collect();
        self.with_source(|source| cause::known(source).of_quorum(quorum, others))
    }

    /// Changes the source of an error about a server.
    fn with_source(mut self, change: impl FnOnce(Source) -> Source) -> Self {
        if let Some(source) = self.server_source() {
            let anonymous: Source = Cause::new(None, "");
            *source = change(std::mem::replace(source, anonymous));
        }
        self
    }

    fn server_source(&mut self) -> Option<&mut Source> {
        match self {
            Self::NoAnswer { source, .. }
            | Self::Refused { source, .. }
            | Self::Auth { source }
            | Self::Tls { source, .. }
            | Self::PermissionDenied { source, .. } => Some(source),
            _ => None,
        }
    }

    /// Marks the error as that of a sentinel.
    pub(crate) fn at_sentinel(mut self) -> Self {
        if let Self::Auth { source } = &mut self
            && let Some(cause) = source.downcast_mut::<Cause>()
        {
            cause.is_sentinel = true;
        }
        self
    }

    pub(crate) fn no_answer(while_doing: Operation, source: Box<Cause>) -> Self {
        Self::NoAnswer {
            while_doing,
            source,
        }
    }

    /// The error for a refusal. `permission` names what is denied.
    pub(crate) fn refused(source: Box<Cause>, permission: impl FnOnce(&Denied) -> String) -> Self {
        match &source.refusal {
            Some(RefusalKind::NoPassword | RefusalKind::WrongPassword) => Self::Auth { source },
            Some(RefusalKind::NoPermission(denied) | RefusalKind::NoPermissionInScript(denied)) => {
                let permission = permission(denied);
                Self::PermissionDenied { permission, source }
            }
            refusal => {
                let kind = refusal
                    .as_ref()
                    .map_or(RefusedKind::Other, RefusalKind::shown);
                Self::Refused { kind, source }
            }
        }
    }

    /// The error for a connection, or a subscription, that could not be made. `permission` is what it needs, if
    /// the server does not name a command.
    pub(crate) fn of_connection(
        while_doing: Operation,
        permission: &str,
        mut source: Box<Cause>,
    ) -> Self {
        if source.refusal.is_some() {
            return Self::refused(source, |denied| match denied {
                Denied::Command(command) => command.clone(),
                _ => permission.to_owned(),
            });
        }
        match tls_problem(&source.text) {
            Some(problem) => {
                source.text = tls::tls_cause(&source.text).to_owned();
                Self::Tls { problem, source }
            }
            None => Self::no_answer(while_doing, source),
        }
    }

    /// The kind of a refusal.
    pub(crate) fn refused_as(&self) -> Option<RefusedKind> {
        match self {
            Self::Refused { kind, .. } => Some(*kind),
            _ => None,
        }
    }

    /// The server's message, if it refused.
    pub(crate) fn refusal(&self) -> Option<&RefusalKind> {
        match self {
            Self::Refused { source, .. } => refusal(source),
            _ => None,
        }
    }
}

/// The sentence, and the causes that it does not repeat.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        let mut causes = std::iter::successors(StdError::source(self), |&cause| cause.source());
        causes.try_for_each(|cause| write!(f, ": {cause}"))
    }
}

#[cfg(feature = "macros")]
fn held_by(found: Option<&HeldBy>) -> String {
    found.map_or_else(String::new, |found| format!(", held by {}", found.owner))
}

/// Cuts the text to 200 bytes, on a character boundary.
pub(crate) fn shorten(text: &str) -> String {
    let mut end = text.len().min(SHOWN_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

const SHOWN_BYTES_MAX: usize = 200;

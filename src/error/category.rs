//! What an error means for the caller, in a few kinds.

use super::{Error, RefusedKind};

/// What an error means for its caller, in the few kinds that a service distinguishes: see [`Error::kind`].
///
/// # Examples
///
/// An HTTP status for each:
///
/// ```
/// use redisson_lock::{Error, ErrorKind};
///
/// fn status(error: &Error) -> u16 {
///     match error.kind() {
///         ErrorKind::Busy => 409,
///         ErrorKind::Unavailable | ErrorKind::Closed => 503,
///         _ => 500,
///     }
/// }
/// assert_eq!(status(&Error::Closed), 503);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Redis did not answer, or cannot serve the call now. The same call may succeed later.
    Unavailable,
    /// Another owner had the lock for as long as the call could wait.
    Busy,
    /// The hold ended before its release: the critical section may have run at the same time as another owner's.
    Lost,
    /// The server does not accept this client, or does not permit the call: credentials, certificates, permissions, the
    /// kind of server.
    Denied,
    /// The key, or a reply, is not what it should be, or the caller's script failed.
    Data,
    /// The call cannot be made like this: a name, a setting, or a state of the caller.
    Usage,
    /// The client, or its runtime, has ended.
    Closed,
}

impl Error {
    /// Returns what the error means for the caller. A lock held by another owner is not an error, except for
    /// `#[locked]`.
    ///
    /// # Examples
    ///
    /// ```
    /// use redisson_lock::{Error, ErrorKind};
    /// assert_eq!(Error::Closed.kind(), ErrorKind::Closed);
    /// ```
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoAnswer { .. } | Self::TooFewReplicas { .. } => ErrorKind::Unavailable,
            Self::Refused { kind, .. } => match kind {
                RefusedKind::Cluster | RefusedKind::NoSuchDatabase | RefusedKind::Other => {
                    ErrorKind::Denied
                }
                _ => ErrorKind::Unavailable,
            },
            #[cfg(feature = "macros")]
            Self::Busy { .. } => ErrorKind::Busy,
            Self::Lost { .. } => ErrorKind::Lost,
            Self::Auth { .. } | Self::Tls { .. } | Self::PermissionDenied { .. } => {
                ErrorKind::Denied
            }
            Self::NotALock { .. } | Self::UnexpectedReply { .. } | Self::ScriptFailed { .. } => {
                ErrorKind::Data
            }
            Self::NotHeld { .. }
            | Self::InvalidName { .. }
            | Self::InvalidDuration { .. }
            | Self::Misuse { .. }
            | Self::InvalidConfig { .. }
            | Self::TooDeep { .. }
            | Self::AlreadyHeld { .. }
            | Self::WouldDeadlock { .. }
            | Self::OtherKind { .. }
            | Self::OtherSlot { .. }
            | Self::InsideRuntime => ErrorKind::Usage,
            Self::Closed | Self::NoRuntime => ErrorKind::Closed,
        }
    }

    /// Returns whether the same call may succeed later without intervention: the server was away, loading, busy,
    /// failing over or full, or the lock was not free in time for `#[locked]`.
    ///
    /// # Examples
    ///
    /// ```
    /// use redisson_lock::Error;
    /// assert!(!Error::Closed.is_retryable());
    /// ```
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind(), ErrorKind::Unavailable | ErrorKind::Busy)
    }
}

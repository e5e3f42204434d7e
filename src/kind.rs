//! The kinds of locks, as data: what each does differently is read here.

use std::fmt;

/// A kind of lock. Every kind has the same methods; see
/// [`lock_of`](crate::LockClient::lock_of) for a kind that the program reads from its configuration.
///
/// One name is of one kind: while a client uses it as one, calls that use it as another fail with
/// [`Error::OtherKind`](crate::Error::OtherKind). [`inspect`](crate::Lock::inspect) and what stands on it only look.
///
/// # Examples
///
/// ```
/// use redisson_lock::LockKind;
/// let kind: LockKind = "string".parse()?;
/// assert_eq!((kind, kind.to_string().as_str()), (LockKind::String, "string"));
/// # Ok::<(), redisson_lock::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum LockKind {
    /// Redisson's `getLock`: a hash, and a message for those who wait.
    #[default]
    Plain,
    /// Redisson's `getSpinLock`: the hash of a plain lock without messages.
    Spin,
    /// Redisson's `getFencedLock`: a plain lock whose holder has a token, a number larger than those of all holders
    /// before.
    Fenced,
    /// A string with an expiry, as `SET NX PX` writes it: the lock of redis-py, redsync and many programs.
    String,
}

impl LockKind {
    pub(crate) const ALL: [(Self, &str); 4] = [
        (Self::Plain, "plain"),
        (Self::Spin, "spin"),
        (Self::Fenced, "fenced"),
        (Self::String, "string"),
    ];

    /// As a field of a span: nothing for a plain lock, which has no need to say so.
    pub(crate) fn unless_plain(self) -> Option<&'static str> {
        let named = Self::ALL.iter().find(|(kind, _)| *kind == self);
        named.map(|(_, name)| *name).filter(|_| self != Self::Plain)
    }

    /// Whether a release is announced on a channel, to which callers that wait subscribe. Otherwise they pause.
    pub(crate) const fn announces(self) -> bool {
        matches!(self, Self::Plain | Self::Fenced)
    }

    /// Whether an owner may hold it several times.
    pub(crate) const fn is_reentrant(self) -> bool {
        !matches!(self, Self::String)
    }

    /// Whether a holder has a token.
    pub(crate) const fn has_token(self) -> bool {
        matches!(self, Self::Fenced)
    }

    /// Whether each acquisition has a value of its own in Redis, and not that of its owner.
    pub(crate) const fn has_value_per_hold(self) -> bool {
        matches!(self, Self::String)
    }
}

impl fmt::Display for LockKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Self::ALL.iter().find(|(kind, _)| kind == self);
        f.write_str(named.map_or("", |(_, name)| name))
    }
}

/// The marker of locks whose holders have no token.
#[derive(Debug)]
pub enum Unfenced {}

/// The marker of locks whose holders have a token: see [`FencedLock`](crate::FencedLock).
#[derive(Debug)]
pub enum Fenced {}

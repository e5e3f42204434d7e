//! The kinds of locks, as data: a row for each. A kind's scripts are listed in `script/files.rs`, its channel in
//! `script/args.rs`, and its commands in `redis/permissions.rs`. Its name is parsed in `error/`, a layer above.

use std::fmt;

use redisson_lock_core::Face;

/// A kind of lock. Every kind has the same methods; see
/// [`lock_of`](crate::LockClient::lock_of) for a kind that the program reads from its configuration.
///
/// A name belongs to one kind: while a client uses it as one, calls that use it as another fail with
/// [`Error::OtherKind`](crate::Error::OtherKind). [`inspect`](crate::Lock::inspect) and the methods based on it only
/// read.
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
    /// Redisson's `getLock`: a hash, and a message for waiters.
    #[default]
    Plain,
    /// Redisson's `getSpinLock`: the hash of a plain lock without messages.
    Spin,
    /// Redisson's `getFencedLock`: a plain lock whose holder has a token, a number larger than those of all earlier
    /// holders.
    Fenced,
    /// A string with an expiry, as `SET NX PX` writes it: the lock of redis-py, redsync and many programs.
    String,
    /// Redisson's `getFairLock`: a plain lock that owners of all clients get in the order of their requests.
    Fair,
    /// The read part of Redisson's `getReadWriteLock`: any number of owners can hold it at the same time, see
    /// [`RwLock`](crate::RwLock).
    Read,
    /// The write part, which one owner holds alone. Both parts of a lock have the same name.
    Write,
}

/// The properties of a kind.
struct Row {
    name: &'static str,
    announces: bool,
    is_reentrant: bool,
    has_token: bool,
    has_value_per_hold: bool,
    has_queue: bool,
    face: Face,
}

impl LockKind {
    pub(crate) const ALL: [Self; 7] = [
        Self::Plain,
        Self::Spin,
        Self::Fenced,
        Self::String,
        Self::Fair,
        Self::Read,
        Self::Write,
    ];

    const fn row(self) -> Row {
        const PLAIN: Row = Row {
            name: "plain",
            announces: true,
            is_reentrant: true,
            has_token: false,
            has_value_per_hold: false,
            has_queue: false,
            face: Face::Only,
        };
        match self {
            Self::Plain => PLAIN,
            Self::Spin => Row {
                name: "spin",
                announces: false,
                ..PLAIN
            },
            Self::Fenced => Row {
                name: "fenced",
                has_token: true,
                ..PLAIN
            },
            Self::String => Row {
                name: "string",
                announces: false,
                is_reentrant: false,
                has_value_per_hold: true,
                ..PLAIN
            },
            Self::Fair => Row {
                name: "fair",
                has_queue: true,
                ..PLAIN
            },
            Self::Read => Row {
                name: "read",
                face: Face::Read,
                ..PLAIN
            },
            Self::Write => Row {
                name: "write",
                face: Face::Write,
                ..PLAIN
            },
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        self.row().name
    }

    /// As a field of a span: nothing for a plain lock, which has no need to say so.
    pub(crate) fn unless_plain(self) -> Option<&'static str> {
        (self != Self::Plain).then(|| self.name())
    }

    /// The part of a read-write lock, as the sentence of an error begins with it; nothing for other kinds.
    pub(crate) fn part(self) -> &'static str {
        match self {
            Self::Read => "read ",
            Self::Write => "write ",
            _ => "",
        }
    }

    /// Whether a release is announced on a channel, to which callers that wait subscribe. Otherwise they pause.
    pub(crate) const fn announces(self) -> bool {
        self.row().announces
    }

    /// Whether an owner may hold it several times.
    pub(crate) const fn is_reentrant(self) -> bool {
        self.row().is_reentrant
    }

    /// Whether a holder has a token.
    pub(crate) const fn has_token(self) -> bool {
        self.row().has_token
    }

    /// Whether the server has a queue of its owners.
    pub(crate) const fn has_queue(self) -> bool {
        self.row().has_queue
    }

    /// Which part of a lock its holds are of.
    pub(crate) const fn face(self) -> Face {
        self.row().face
    }

    /// Whether a lock has two parts, of which this is one. Both have one name.
    pub(crate) const fn has_faces(self) -> bool {
        !matches!(self.face(), Face::Only)
    }

    /// The kind of that part.
    pub(crate) const fn with_face(self, face: Face) -> Self {
        match face {
            Face::Read => Self::Read,
            Face::Write => Self::Write,
            Face::Only => self,
        }
    }

    /// Whether locks of both kinds may have one name.
    pub(crate) fn shares_names_with(self, other: Self) -> bool {
        self == other || self.has_faces() && other.has_faces()
    }

    /// Whether each acquisition has a value of its own in Redis, and not that of its owner.
    pub(crate) const fn has_value_per_hold(self) -> bool {
        self.row().has_value_per_hold
    }
}

impl fmt::Display for LockKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The marker of locks whose holders have no token.
#[derive(Debug)]
pub enum Unfenced {}

/// The marker of locks whose holders have a token: see [`FencedLock`](crate::FencedLock).
#[derive(Debug)]
pub enum Fenced {}

#[cfg(test)]
mod tests {
    use super::*;

    /// The derived code knows every variant, also one that `ALL` lacks.
    #[cfg(feature = "serde")]
    #[test]
    fn every_kind_is_listed_with_the_name_that_a_configuration_has() {
        use serde::Deserialize;
        use serde::de::IntoDeserializer;
        use serde::de::value::{Error, StrDeserializer};

        let wrong: StrDeserializer<'_, Error> = "?".into_deserializer();
        let error = LockKind::deserialize(wrong).expect_err("no kind");
        let names = LockKind::ALL.map(|kind| format!("`{}`", kind.name()));
        let wanted = format!("unknown variant `?`, expected one of {}", names.join(", "));
        assert_eq!(error.to_string(), wanted);
    }

    #[test]
    fn no_two_kinds_have_one_name() {
        let names: std::collections::BTreeSet<_> = LockKind::ALL.map(LockKind::name).into();
        assert_eq!(names.len(), LockKind::ALL.len());
    }
}

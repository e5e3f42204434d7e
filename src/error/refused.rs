//! Why a server refused, and what to do about it.

use std::fmt;

/// Why the server refused a command.
///
/// # Examples
///
/// ```
/// let kind = redisson_lock::RefusedKind::Loading;
/// assert_eq!(kind.to_string(), "it is still loading its data; try again");
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
    /// `CLUSTERDOWN`, `TRYAGAIN`; or `MOVED` and `ASK` to a node that was not reached in time.
    ClusterDown,
    /// `MOVED`, `ASK`, `CROSSSLOT`: from a cluster node, or a cluster's proxy, to which the client connected as a single
    /// server.
    Cluster,
    /// `ERR DB index is out of range`: the number after the `/` of the URL.
    NoSuchDatabase,
    /// Anything else: the source has the server's message. If the server is unexpectedly not a cluster node, not a
    /// sentinel, or a sentinel, the error's own message says so.
    Other,
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
            Self::NoSuchDatabase => {
                "it has no database with this number (see its `databases` setting)"
            }
            Self::Other => "its message says why",
            Self::ClusterDown => "its cluster does not serve this lock at the moment; try again",
            Self::Cluster => "it is a node of a cluster; connect with redis-cluster://",
        })
    }
}

/// Says whether a lock that too few replicas had was released, and what to do.
pub(super) fn said(released: bool) -> &'static str {
    match released {
        true => "it was released again; try again, or look at the replicas",
        false => {
            "Redis has not confirmed its release, and its lease frees it at the latest; try again, or look at the replicas"
        }
    }
}

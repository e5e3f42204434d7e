//! A script call as plain data: what is sent, and how its reply is read.

use std::sync::{Arc, LazyLock};

use smallvec::SmallVec;

use super::transport::{Arg, Reply};
use crate::names::wire::Announce;

/// A script and its SHA-1, which is its name in Redis.
#[derive(Debug)]
pub(crate) struct ServerScript {
    pub(crate) name: &'static str,
    pub(crate) source: &'static str,
    pub(crate) sha: LazyLock<String>,
}

impl ServerScript {
    pub(super) fn sha_word(&'static self) -> Arg {
        Arg::Fixed(&self.sha)
    }

    pub(super) fn source_word(&self) -> Arg {
        Arg::Fixed(self.source)
    }
}

/// In place for all calls but renewals, and releases in a cluster.
pub(crate) type Args = SmallVec<[Arg; 4]>;

/// Why a guarded write is not sent, or not again.
pub(crate) const OUTDATED: &str = "the hold ended before a copy was answered";

/// Whether there is still a reason for a call.
pub(crate) trait Still: Send + Sync {
    /// Calls `enter` if there is, while nothing can change that: what ends the reason is sent after the call. `enter` waits
    /// for nothing. Returns whether it was called.
    fn if_wanted(&self, enter: &mut dyn FnMut()) -> bool;
}

impl<F: Fn(&mut dyn FnMut()) -> bool + Send + Sync> Still for F {
    fn if_wanted(&self, enter: &mut dyn FnMut()) -> bool {
        self(enter)
    }
}

/// One script call, not yet sent.
pub(crate) struct Call<T> {
    pub(crate) script: &'static ServerScript,
    /// In place for all calls but those of many keys.
    pub(crate) keys: SmallVec<[Arc<str>; 1]>,
    /// Sent after them, if the script also decides by keys that depend on what the lock has. `None`: it does not.
    pub(crate) others: Option<Vec<Arg>>,
    pub(crate) args: Args,
    /// The channel on which it says that the lock is free, if that may be a sharded one, and how.
    pub(crate) announced: Option<(Arc<str>, Announce)>,
    /// Asked at each send, the first and those after a refusal: whether there is still a reason for the call.
    pub(crate) still: Option<Arc<dyn Still>>,
    /// Its server does not know the script: it is sent with its text.
    pub(crate) is_unknown: bool,
    pub(crate) reads: Reads<T>,
}

/// How the replies to a script are read. Both of these are the same function, see [`reads`].
pub(crate) struct Reads<T> {
    /// What a reply says to a call with this many keys; `None`: the script cannot have given it.
    pub(crate) decode: fn(&Reply, usize) -> Option<T>,
    /// Whether it can have given it: for the connection, which has calls of all types.
    pub(super) fits: fn(&Reply, usize) -> bool,
}

impl<T> Reads<T> {
    pub(crate) fn new(
        decode: fn(&Reply, usize) -> Option<T>,
        fits: fn(&Reply, usize) -> bool,
    ) -> Self {
        Self { decode, fits }
    }
}

/// Reads replies with this function.
macro_rules! reads {
    ($decode:expr) => {
        $crate::redis::Reads::new($decode, |reply, keys| {
            let decode: fn(&$crate::redis::Reply, usize) -> Option<_> = $decode;
            decode(reply, keys).is_some()
        })
    };
}
pub(crate) use reads;

/// The keys that a script wants to be given before it decides. It has changed nothing.
pub(crate) fn wanted_in(reply: &Reply) -> Option<Vec<Arg>> {
    let Reply::List(items) = reply else {
        return None;
    };
    let [Reply::Number(-7), keys @ ..] = items.as_slice() else {
        return None;
    };
    let keys: Option<Vec<Arg>> = keys.iter().map(|key| key.bytes().map(Arg::Bytes)).collect();
    keys.filter(|keys| !keys.is_empty())
}

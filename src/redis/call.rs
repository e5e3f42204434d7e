//! A script call as plain data: what is sent, and how its reply is read.

use std::sync::{Arc, LazyLock};

use smallvec::SmallVec;

use super::transport::{Arg, Reply};
use crate::wire::Announce;

/// A script and its SHA-1, which is its name in Redis.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) name: &'static str,
    pub(crate) source: &'static str,
    pub(crate) sha: LazyLock<String>,
}

impl Script {
    pub(crate) fn sha(&'static self) -> &'static str {
        &self.sha
    }
}

/// A script that has a text of the user's in it.
#[derive(Debug)]
pub(crate) struct MadeScript {
    pub(crate) name: &'static str,
    pub(crate) source: Arc<str>,
    pub(crate) sha: Arc<str>,
    /// Where the text of this crate begins, which comes after the user's.
    pub(crate) own_from: usize,
}

/// The script of a call.
#[derive(Debug, Clone)]
pub(crate) enum ScriptRef {
    Fixed(&'static Script),
    Made(Arc<MadeScript>),
}

impl ScriptRef {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Fixed(script) => script.name,
            Self::Made(script) => script.name,
        }
    }

    pub(crate) fn source(&self) -> &str {
        match self {
            Self::Fixed(script) => script.source,
            Self::Made(script) => &script.source,
        }
    }

    /// The text without that of the user.
    pub(crate) fn own_source(&self) -> &str {
        match self {
            Self::Fixed(script) => script.source,
            Self::Made(script) => &script.source[script.own_from..],
        }
    }

    pub(super) fn sha_word(&self) -> Arg {
        match self {
            Self::Fixed(script) => Arg::Fixed(script.sha()),
            Self::Made(script) => Arg::Text(Arc::clone(&script.sha)),
        }
    }

    pub(super) fn source_word(&self) -> Arg {
        match self {
            Self::Fixed(script) => Arg::Fixed(script.source),
            Self::Made(script) => Arg::Text(Arc::clone(&script.source)),
        }
    }
}

impl From<&'static Script> for ScriptRef {
    fn from(script: &'static Script) -> Self {
        Self::Fixed(script)
    }
}

/// In place for all calls but renewals, and releases in a cluster.
pub(crate) type Args = SmallVec<[Arg; 4]>;

/// One script call, not yet sent.
pub(crate) struct Call<T> {
    pub(crate) script: ScriptRef,
    /// In place for all calls but those of many keys.
    pub(crate) keys: SmallVec<[Arc<str>; 1]>,
    pub(crate) args: Args,
    /// The channel on which it says that the lock is free, if that may be a sharded one, and how.
    pub(crate) announced: Option<(Arc<str>, Announce)>,
    /// What a reply says to a call with this many keys; `None`: the script cannot have given it.
    pub(crate) decode: fn(&Reply, usize) -> Option<T>,
}

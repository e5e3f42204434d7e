//! The files in `lua/` as typed calls: one function per file, with the header's replies as its
//! result.
//!
//! Only this module knows the meaning of KEYS, ARGV and raw replies. A call is plain data until
//! [`call`] sends it; `call` is also the only place where a script is resent. Milliseconds exist
//! only in this file and on the wire.

mod call;

use std::sync::Arc;
use std::sync::LazyLock;
use std::time::Duration;

use smallvec::{SmallVec, smallvec};

use crate::core::{LossReason, RenewalAsk};
use crate::redis::{Arg, Reply};
use crate::wire::{Announce, LockName};

pub(crate) use call::{Answer, CallError, RetryPolicy, call, call_noting, unsent};

/// A script and its SHA-1, which is its name in Redis.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) name: &'static str,
    pub(crate) source: &'static str,
    sha: LazyLock<String>,
}

impl Script {
    pub(crate) fn sha(&'static self) -> &'static str {
        &self.sha
    }
}

macro_rules! scripts {
    ($($const:ident = $name:literal;)*) => {
        $(static $const: Script = Script {
            name: $name,
            source: include_str!(concat!("../lua/", $name, ".lua")),
            sha: LazyLock::new(|| sha1_smol::Sha1::from($const.source).digest().to_string()),
        };)*
        #[cfg(test)]
        pub(crate) static ALL: &[&Script] = &[$(&$const),*];
    };
}

scripts! {
    ACQUIRE = "acquire";
    RELEASE = "release";
    PASS = "pass";
    RENEW = "renew";
    FORCE_UNLOCK = "force_unlock";
    INSPECT = "inspect";
    TOUCH = "touch";
}

/// In place, but for renewals, and for releases in a cluster.
type Args = SmallVec<[Arg; 4]>;

/// One script call, not yet sent.
pub(crate) struct Call<T> {
    pub(crate) script: &'static Script,
    /// In place for all calls but those of many keys.
    pub(crate) keys: SmallVec<[Arc<str>; 1]>,
    pub(crate) args: Args,
    /// The channel on which it says that the lock is free, if that may be a sharded one, and how.
    pub(crate) announced: Option<(Arc<str>, Announce)>,
    pub(crate) decode: fn(&Reply) -> Option<T>,
}

/// What `acquire.lua` returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Acquired {
    Taken,
    /// The outer hold is gone, so there was nothing to nest in.
    Lost,
    Busy {
        /// `None`: the key has no expiry.
        left: Option<Duration>,
        /// Its field, with invalid UTF-8 replaced.
        holder: String,
    },
    NotALock(String),
}

pub(crate) fn acquire(
    name: &LockName,
    field: &Arc<str>,
    target: u32,
    lease: Duration,
) -> Call<Acquired> {
    Call {
        script: &ACQUIRE,
        keys: smallvec![Arc::clone(name.key())],
        args: smallvec![text(field), Arg::Number(target.into()), millis(lease)],
        announced: None,
        decode: |reply| match reply {
            Reply::Number(1) => Some(Acquired::Taken),
            Reply::Number(0) => Some(Acquired::Lost),
            Reply::List(items) => match items.as_slice() {
                [Reply::Number(-3), Reply::Text(found)] => Some(Acquired::NotALock(found.clone())),
                [Reply::Number(left), holder] => {
                    let holder = String::from_utf8_lossy(&holder.bytes()?).into_owned();
                    Some(Acquired::Busy {
                        left: duration(*left),
                        holder,
                    })
                }
                _ => None,
            },
            _ => None,
        },
    }
}

/// What `release.lua` and `pass.lua` return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Released {
    /// The count is the target now, or was already; or the receiver has the lock.
    Done {
        /// How many connections have heard that the lock is free; 0 for a pass.
        receivers: u32,
    },
    /// There is no lock any more.
    Gone,
    /// Others hold the lock.
    Taken,
    /// The key has something else than a lock.
    NotALock,
}

pub(crate) fn release(
    name: &LockName,
    field: &Arc<str>,
    target: u32,
    lease: Duration,
    announce: Announce,
) -> Call<Released> {
    Call {
        script: &RELEASE,
        keys: smallvec![Arc::clone(name.key())],
        args: announced_by(
            announce,
            smallvec![
                text(field),
                Arg::Number(target.into()),
                millis(lease),
                text(name.channel()),
            ],
        ),
        announced: sharded(name, announce).filter(|_| target == 0),
        decode: |reply| match reply {
            Reply::Number(-3) => Some(Released::NotALock),
            reply => released(reply),
        },
    }
}

/// Hands the lock from its holder to another owner of this client.
pub(crate) fn pass(
    name: &LockName,
    from: &Arc<str>,
    to: &Arc<str>,
    lease: Duration,
    announce: Announce,
) -> Call<Released> {
    Call {
        script: &PASS,
        keys: smallvec![Arc::clone(name.key())],
        args: announced_by(
            announce,
            smallvec![text(from), text(to), millis(lease), text(name.channel())],
        ),
        announced: sharded(name, announce),
        decode: released,
    }
}

fn released(reply: &Reply) -> Option<Released> {
    match reply {
        Reply::Number(-1) => Some(Released::Taken),
        Reply::Number(0) => Some(Released::Gone),
        Reply::Number(done) => {
            let receivers = u32::try_from(*done - 1).ok()?;
            Some(Released::Done { receivers })
        }
        _ => None,
    }
}

/// One key of a renewal.
#[derive(Clone)]
pub(crate) struct RenewalKey {
    pub(crate) key: Arc<str>,
    pub(crate) field: Arc<str>,
    pub(crate) asked: RenewalAsk,
}

/// Renews each key; returns for each whether it is held, or why not.
pub(crate) fn renew(batch: &[RenewalKey]) -> Call<Vec<Result<(), LossReason>>> {
    let words = |renewal: &RenewalKey| {
        let lease = match renewal.asked {
            RenewalAsk::Extend(lease) => millis(lease),
            RenewalAsk::Check => Arg::Number(0),
        };
        [text(&renewal.field), lease]
    };
    Call {
        script: &RENEW,
        keys: batch
            .iter()
            .map(|renewal| Arc::clone(&renewal.key))
            .collect(),
        args: batch.iter().flat_map(words).collect(),
        announced: None,
        decode: |reply| match reply {
            Reply::List(items) => items
                .iter()
                .map(|item| match item {
                    Reply::Number(1) => Some(Ok(())),
                    Reply::Number(0) => Some(Err(LossReason::Gone)),
                    Reply::Number(-1) => Some(Err(LossReason::Taken)),
                    Reply::Number(-2) => Some(Err(LossReason::Changed)),
                    _ => None,
                })
                .collect(),
            _ => None,
        },
    }
}

/// Frees the lock if `field` still holds it; returns whether it did.
pub(crate) fn force_unlock(name: &LockName, field: &Arc<[u8]>, announce: Announce) -> Call<bool> {
    Call {
        script: &FORCE_UNLOCK,
        keys: smallvec![Arc::clone(name.key())],
        args: announced_by(
            announce,
            smallvec![Arg::Bytes(Arc::clone(field)), text(name.channel())],
        ),
        announced: sharded(name, announce),
        decode: |reply| match reply {
            Reply::Number(1) => Some(true),
            Reply::Number(0) => Some(false),
            _ => None,
        },
    }
}

/// What `inspect.lua` returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Inspected {
    Free,
    Held {
        /// `None`: the key has no expiry.
        left: Option<Duration>,
        /// Any bytes, because another program may have written it.
        field: Arc<[u8]>,
        count: u32,
    },
    NotALock(String),
}

pub(crate) fn inspect(name: &LockName) -> Call<Inspected> {
    Call {
        script: &INSPECT,
        keys: smallvec![Arc::clone(name.key())],
        args: SmallVec::new(),
        announced: None,
        decode: |reply| match reply {
            Reply::Nil => Some(Inspected::Free),
            Reply::List(items) => match items.as_slice() {
                [Reply::Number(-3), Reply::Text(found)] => Some(Inspected::NotALock(found.clone())),
                [Reply::Number(left), field, Reply::Text(count)] => Some(Inspected::Held {
                    left: duration(*left),
                    field: field.bytes()?,
                    // Only another program can have written such a count: it is shown as the
                    // maximum.
                    count: count.parse().unwrap_or(u32::MAX),
                }),
                _ => None,
            },
            _ => None,
        },
    }
}

/// Writes something about one of these keys that is held by the owner with this field; returns whether one is.
pub(crate) fn touch<'a>(holds: impl Iterator<Item = (&'a Arc<str>, &'a Arc<str>)>) -> Call<bool> {
    let (keys, args) = holds
        .map(|(key, field)| (Arc::clone(key), text(field)))
        .unzip();
    Call {
        script: &TOUCH,
        keys,
        args,
        announced: None,
        decode: |reply| match reply {
            Reply::Number(1) => Some(true),
            Reply::Number(0) => Some(false),
            _ => None,
        },
    }
}

fn sharded(name: &LockName, announce: Announce) -> Option<(Arc<str>, Announce)> {
    announce
        .hears_sharded()
        .then(|| (Arc::clone(name.channel()), announce))
}

/// The arguments with the word for the way; without one a script uses classic channels, which is all that there
/// is outside of clusters.
fn announced_by(announce: Announce, mut args: Args) -> Args {
    let way = match announce {
        Announce::Classic => return args,
        Announce::Sharded => "spublish",
        Announce::Both => "both",
        Announce::Auto => "auto",
    };
    args.push(Arg::Fixed(way));
    args
}

fn text(value: &Arc<str>) -> Arg {
    Arg::Text(Arc::clone(value))
}

/// Rounded up, so that a lease on the wire is never shorter than requested.
fn millis(duration: Duration) -> Arg {
    let ms = duration.as_nanos().div_ceil(1_000_000);
    Arg::Number(i64::try_from(ms).unwrap_or(i64::MAX))
}

fn duration(ms: i64) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}

#[cfg(test)]
mod tests;

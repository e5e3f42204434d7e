//! The files in `lua/` as typed calls: one function per purpose, with the replies in the header as its result. The lock's
//! kind chooses the file.
//!
//! Only this module knows what KEYS, ARGV and replies mean, but for the reply of `touch.lua`, which
//! `redis/replicas.rs` reads on its way to `WAIT`. A call is plain data until [`call`] sends it; `call` is
//! also the only place where a script is resent. Callers give and get durations; this module converts them
//! from and to the milliseconds of the scripts.

mod args;
mod call;
mod files;
mod guarded;
mod inspect;
mod place;
mod queue;
mod refused;

use std::sync::Arc;
use std::time::Duration;

use redisson_lock_core::{Face, LossReason, RenewalAsk, Token};
use smallvec::smallvec;

use crate::kind::LockKind;
use crate::names::wire::{self, Announce, LockName};
use crate::redis::{Arg, Args, Call, Reply, reads};

use args::{announced_by, duration, millis, sharded, text};
pub(crate) use call::{
    CallError, RetryPolicy, ScriptAnswer, SendOutcome, call, call_after, call_once, call_there,
    send_error,
};
use files::Scripts;
#[cfg(test)]
pub(crate) use files::{ALL, of_kind};
pub(crate) use guarded::{Guarded, guarded};
pub(crate) use inspect::{Inspected, Seen, inspect, inspect_with_token};
pub(crate) use place::QueuePlace;
use place::{keys, keys_to_free, millis_or_none, read_keys, with_first_read};
pub(crate) use queue::{Queued, inspect_queue, leave};
#[cfg(test)]
pub(crate) use refused::commands;

/// What tells apart which locks can be renewed in one call.
pub(crate) fn renewed_by(kind: LockKind) -> &'static str {
    Scripts::of(kind).renew.name
}

/// What `acquire.lua` returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Acquired {
    /// With the token, if the kind has one.
    Taken(Option<Token>),
    /// Taken to read, by an owner that does not write.
    Outside,
    /// Not taken to write, because the server has a read hold of this owner.
    OwnRead,
    /// The outer hold is gone, so there was nothing to nest in.
    Lost,
    Busy {
        /// `None`: the key has no expiry.
        left: Option<Duration>,
        /// Its field, with invalid UTF-8 replaced.
        holder: String,
        is_free: bool, // And the turn of that owner.
    },
    NotALock(String),
    /// The type of the token's key instead.
    NoToken(String),
}

pub(crate) fn acquire(
    name: &LockName,
    field: &Arc<str>,
    target: u32,
    lease: Duration,
    (place, announce): (QueuePlace, Announce),
) -> Call<Acquired> {
    let counted_in = Arg::Text(name.counted_in(field));
    let mut args: Args = smallvec![counted_in, Arg::Number(target.into()), millis(lease)];
    if name.kind().has_queue() {
        args.extend([millis(place.wait), millis_or_none(place.stays)]);
        args = announced_by(name, announce, args);
    }
    Call {
        script: Scripts::of(name.kind()).acquire,
        keys: with_first_read(name, field, keys(name)),
        others: read_keys(name.kind().face() == Face::Read, || {
            // It is to be made, so a call without it would only be answered with its name.
            let nested = (target > 1).then(|| name.nth_read(field, target));
            nested.flatten()
        }),
        args,
        announced: None,
        still: None,
        is_unknown: false,
        reads: match (name.kind().face(), name.kind().has_token(), target > 1) {
            (Face::Read, _, true) => reads!(acquired_by::<READS, true>),
            (Face::Read, _, false) => reads!(acquired_by::<READS, false>),
            (Face::Write, _, true) => reads!(acquired_by::<WRITES, true>),
            (Face::Write, _, false) => reads!(acquired_by::<WRITES, false>),
            (Face::Only, true, true) => reads!(acquired_by::<HAS_TOKEN, true>),
            (Face::Only, true, false) => reads!(acquired_by::<HAS_TOKEN, false>),
            (Face::Only, false, true) => reads!(acquired_by::<WHOLE, true>),
            (Face::Only, false, false) => reads!(acquired_by::<WHOLE, false>),
        },
    }
}

/// Takes the lock over from the owner that is named so in Redis. `None`: several owners may hold a lock of this kind.
pub(crate) fn take_over(
    name: &LockName,
    field: &Arc<str>,
    lease: Duration,
    place: (QueuePlace, Announce),
    from: &Arc<str>,
) -> Option<Call<Acquired>> {
    let script = Scripts::of(name.kind()).take_over?;
    let mut call = acquire(name, field, 1, lease, place);
    call.script = script;
    call.args.push(text(from));
    Some(call)
}

/// The arguments of a kind's script.
const WHOLE: u8 = 0;
const HAS_TOKEN: u8 = 1;
const READS: u8 = 2;
const WRITES: u8 = 3;

/// Only what the script of such a kind can answer to a re-entry, or to another acquire: an impossible reply belongs to
/// another call.
fn acquired_by<const TAKES: u8, const REENTERS: bool>(
    reply: &Reply,
    _keys: usize,
) -> Option<Acquired> {
    let acquired = acquired(reply)?;
    let is_possible = match acquired {
        Acquired::Taken(token) => token.is_some() == (TAKES == HAS_TOKEN),
        Acquired::NoToken(_) => TAKES == HAS_TOKEN,
        Acquired::Outside => TAKES == READS,
        Acquired::OwnRead => TAKES == WRITES && !REENTERS,
        Acquired::Lost => REENTERS,
        Acquired::Busy { .. } | Acquired::NotALock(_) => true,
    };
    is_possible.then_some(acquired)
}

fn acquired(reply: &Reply) -> Option<Acquired> {
    match reply {
        Reply::Number(1) => Some(Acquired::Taken(None)),
        Reply::Number(2) => Some(Acquired::Outside),
        Reply::Text(token) => Some(Acquired::Taken(Some(token.parse().ok()?))),
        Reply::Number(0) => Some(Acquired::Lost),
        Reply::List(items) => match items.as_slice() {
            [Reply::Number(-3), Reply::Text(found)] => Some(Acquired::NotALock(found.clone())),
            [Reply::Number(-4), Reply::Text(found)] => Some(Acquired::NoToken(found.clone())),
            [Reply::Number(-6), Reply::Number(_)] => Some(Acquired::OwnRead),
            // The turn of another owner, or held; and how many are before this one.
            [
                Reply::Number(-5),
                Reply::Number(left),
                holder,
                Reply::Number(_),
            ]
            | [Reply::Number(left), holder, Reply::Number(_)]
            | [Reply::Number(left), holder] => {
                let holder = shown(&holder.bytes()?);
                Some(Acquired::Busy {
                    left: duration(*left),
                    holder,
                    is_free: items.first() == Some(&Reply::Number(-5)),
                })
            }
            _ => None,
        },
        _ => None,
    }
}

/// Who holds a lock. What another program has written need not be UTF-8: then all of it is escaped, so that no two of
/// them look alike.
pub(crate) fn shown(holder: &[u8]) -> String {
    let text = std::str::from_utf8(holder).map(str::to_owned);
    text.unwrap_or_else(|_| holder.escape_ascii().to_string())
}

/// What `release.lua` and `pass.lua` return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Released {
    /// The count is the target now, or was already; or the receiver has the lock.
    Done {
        /// How many connections have heard that the lock is free; 0 for a pass.
        receivers: u32,
        /// Of the receiver of a pass, if the kind has one.
        token: Option<Token>,
    },
    /// There is no lock any more.
    Gone,
    /// Others hold the lock.
    Taken,
    /// The key has something else than a lock.
    NotALock,
    /// The receiver of a pass can have no token: nothing was moved.
    NoToken,
}

/// `leaves`: with which wait the place was taken that the owner gives up in the queue of a fair lock, if it does.
pub(crate) fn release(
    name: &LockName,
    field: &Arc<str>,
    target: u32,
    lease: Duration,
    (leaves, announce): (Option<Duration>, Announce),
) -> Call<Released> {
    let counted_in = Arg::Text(name.counted_in(field));
    let args = smallvec![counted_in, Arg::Number(target.into()), millis(lease)];
    let mut args = announced_by(name, announce, args);
    if name.kind().has_queue() {
        args.push(millis_or_none(leaves));
    }
    Call {
        script: Scripts::of(name.kind()).release,
        keys: with_first_read(name, field, keys_to_free(name)),
        others: read_keys(name.kind().face() == Face::Read, || None),
        args,
        announced: sharded(name, announce).filter(|_| target == 0),
        still: None,
        is_unknown: false,
        reads: reads!(|reply, _| match reply {
            Reply::Number(-3) => Some(Released::NotALock),
            reply => released(reply).filter(|released| !released.is_of_a_token()),
        }),
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
    let mut keys = keys(name);
    if name.kind().face() == Face::Write {
        // Who writes hands the lock to its own other face.
        keys.push(name.first_read_of(to));
    }
    Call {
        script: Scripts::of(name.kind()).pass,
        keys,
        others: None,
        args: announced_by(
            name,
            announce,
            smallvec![Arg::Text(name.counted_in(from)), text(to), millis(lease)],
        ),
        announced: sharded(name, announce),
        still: None,
        is_unknown: false,
        reads: match name.kind().has_token() {
            true => reads!(|reply, _| {
                let moved = |released: &Released| matches!(released, Released::Done { .. });
                released(reply).filter(|released| released.is_of_a_token() || !moved(released))
            }),
            false => {
                reads!(|reply, _| released(reply).filter(|released| !released.is_of_a_token()))
            }
        },
    }
}

impl Released {
    fn is_of_a_token(self) -> bool {
        let has_token = matches!(self, Self::Done { token, .. } if token.is_some());
        has_token || self == Self::NoToken
    }
}

fn released(reply: &Reply) -> Option<Released> {
    match reply {
        Reply::Number(-1) => Some(Released::Taken),
        Reply::Number(0) => Some(Released::Gone),
        Reply::Number(-4) => Some(Released::NoToken),
        Reply::Number(done) => {
            let receivers = u32::try_from(done.checked_sub(1)?).ok()?;
            let token = None;
            Some(Released::Done { receivers, token })
        }
        Reply::Text(token) => {
            let token = Some(token.parse().ok()?);
            let receivers = 0;
            Some(Released::Done { receivers, token })
        }
        _ => None,
    }
}

/// One key of a renewal.
#[derive(Clone)]
pub(crate) struct RenewalKey {
    pub(crate) kind: LockKind,
    pub(crate) key: Arc<str>,
    /// In the lock's hash.
    pub(crate) field: Arc<str>,
    pub(crate) asked: RenewalAsk,
}

impl RenewalKey {
    pub(crate) fn new(name: &LockName, field: &Arc<str>, asked: RenewalAsk) -> Self {
        Self {
            kind: name.kind(),
            key: Arc::clone(name.key()),
            field: name.counted_in(field),
            asked,
        }
    }

    /// Those of its call.
    fn keys(&self) -> impl Iterator<Item = Arc<str>> + use<> {
        let reads = self.kind.face() == Face::Read;
        let first_read = reads.then(|| wire::first_read(&self.key, &self.field));
        std::iter::once(Arc::clone(&self.key)).chain(first_read)
    }
}

/// Renews each key; returns for each whether it is held, or why not. All are renewed by one script
/// ([`renewed_by`]).
pub(crate) fn renew<'a>(
    batch: impl Iterator<Item = &'a RenewalKey> + Clone,
) -> Call<Vec<Result<(), LossReason>>> {
    let first = batch.clone().next();
    let kind = first.map_or(LockKind::Plain, |first| first.kind);
    let words = |renewal: &RenewalKey| {
        let lease = match renewal.asked {
            RenewalAsk::Extend(lease) => millis(lease),
            RenewalAsk::Check => Arg::Number(0),
        };
        [text(&renewal.field), lease]
    };
    Call {
        script: Scripts::of(kind).renew,
        keys: batch.clone().flat_map(RenewalKey::keys).collect(),
        others: read_keys(kind.face() == Face::Read, || None),
        args: batch.flat_map(words).collect(),
        announced: None,
        still: None,
        is_unknown: false,
        reads: match kind.face() {
            Face::Read => reads!(|reply, keys| renewed(reply, keys / 2)),
            Face::Only | Face::Write => reads!(renewed),
        },
    }
}

fn renewed(reply: &Reply, locks: usize) -> Option<Vec<Result<(), LossReason>>> {
    let Reply::List(items) = reply else {
        return None;
    };
    let renewed = items.iter().map(|item| match item {
        Reply::Number(1) => Some(Ok(())),
        Reply::Number(0) => Some(Err(LossReason::Gone)),
        Reply::Number(-1) => Some(Err(LossReason::Taken)),
        Reply::Number(-2) => Some(Err(LossReason::Changed)),
        _ => None,
    });
    renewed
        .collect::<Option<_>>()
        .filter(|_| items.len() == locks)
}

/// What `force_unlock.lua` returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forced {
    Freed,
    /// Those that were meant do not hold it any more, and others do.
    Removed,
    /// The holder that was meant has released it.
    NotHeld,
    /// It was executed after its limit, and did nothing.
    TooLate,
}

/// Frees the lock if `field` still holds it, and takes it from the `others` too, until the server's clock shows `limit`.
pub(crate) fn force_unlock(
    name: &LockName,
    field: &Arc<[u8]>,
    others: impl Iterator<Item = Arc<[u8]>>,
    limit: Option<Duration>,
    announce: Announce,
) -> Call<Forced> {
    let mut args = announced_by(
        name,
        announce,
        smallvec![
            Arg::Bytes(Arc::clone(field)),
            limit.map_or(Arg::Number(0), millis),
        ],
    );
    args.extend(others.map(Arg::Bytes));
    Call {
        script: Scripts::of(name.kind()).force_unlock,
        keys: keys_to_free(name),
        others: read_keys(name.kind().has_faces(), || None),
        args,
        announced: sharded(name, announce),
        still: None,
        is_unknown: false,
        reads: match name.kind().has_faces() {
            true => reads!(|reply, _| match reply {
                Reply::Number(2) => Some(Forced::Removed),
                reply => forced(reply),
            }),
            false => reads!(|reply, _| forced(reply)),
        },
    }
}

fn forced(reply: &Reply) -> Option<Forced> {
    match reply {
        Reply::Number(1) => Some(Forced::Freed),
        Reply::Number(0) => Some(Forced::NotHeld),
        Reply::Number(-1) => Some(Forced::TooLate),
        _ => None,
    }
}

/// Writes something about one of these keys that is held by the owner with this field; returns whether one is.
pub(crate) fn touch<'a>(
    kind: LockKind,
    holds: impl Iterator<Item = (&'a Arc<str>, &'a Arc<str>)>,
) -> Call<bool> {
    let (keys, args) = holds
        .map(|(key, field)| (Arc::clone(key), text(field)))
        .unzip();
    Call {
        script: Scripts::of(kind).touch,
        keys,
        others: None,
        args,
        announced: None,
        still: None,
        is_unknown: false,
        reads: reads!(|reply, _| match reply {
            Reply::Number(1) => Some(true),
            Reply::Number(0) => Some(false),
            _ => None,
        }),
    }
}

#[cfg(test)]
mod tests;

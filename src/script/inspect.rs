//! The state of a lock on its server.

use std::sync::Arc;
use std::time::Duration;

use redisson_lock_core::Token;
use smallvec::{SmallVec, smallvec};

use super::args::duration;
use super::files::Scripts;
use super::place::{keys, read_keys};
use crate::names::wire::LockName;
use crate::redis::{Arg, Call, Reply, reads};

/// What `inspect.lua` returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Inspected {
    Free,
    Held {
        /// The first is the one to name: a writer before readers.
        holders: SmallVec<[Seen; 1]>,
        /// The server's time, since 1970. `None`: it was not asked for, or may not be read.
        clock: Option<Duration>,
        /// If it was asked for, and there is one.
        token: Option<Token>,
    },
    NotALock(String),
}

/// A holder that was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Any bytes, because another program may have written it.
    pub(crate) field: Arc<[u8]>,
    pub(crate) count: u32,
    /// `None`: there is no expiry.
    pub(crate) left: Option<Duration>,
}

impl Inspected {
    /// How often the lock is held under a field.
    pub(crate) fn count_of(&self, own: &[u8]) -> u32 {
        let holders = match self {
            Self::Held { holders, .. } => holders.as_slice(),
            Self::Free | Self::NotALock(_) => &[],
        };
        let own = holders.iter().find(|holder| *holder.field == *own);
        own.map_or(0, |holder| holder.count)
    }
}

/// Reads the holder, and the server's clock too if it is wanted.
pub(crate) fn inspect(name: &LockName, with_clock: bool) -> Call<Inspected> {
    Call {
        script: Scripts::of(name.kind()).inspect,
        keys: smallvec![Arc::clone(name.key())],
        others: read_keys(name.kind().has_faces(), || None),
        args: with_clock
            .then_some(Arg::Fixed("time"))
            .into_iter()
            .collect(),
        announced: None,
        still: None,
        is_unknown: false,
        reads: match name.kind().has_faces() {
            true => reads!(|reply, _| match reply {
                Reply::List(items) if !matches!(items.len(), 2 | 6) => None,
                reply => inspected(reply),
            }),
            false => reads!(|reply, _| match reply {
                Reply::List(items) if items.len() > 4 => None,
                reply => inspected(reply),
            }),
        },
    }
}

/// Reads the holder and its token. `None`: a lock of this kind has no token.
///
/// Of two keys: refused while a slot migrates that has one of them at each side.
pub(crate) fn inspect_with_token(name: &LockName) -> Option<Call<Inspected>> {
    let script = Scripts::of(name.kind()).inspect_with_token?;
    Some(Call {
        script,
        keys: keys(name),
        others: None,
        args: SmallVec::new(),
        announced: None,
        still: None,
        is_unknown: false,
        reads: reads!(|reply, _| match reply {
            Reply::List(items) if items.len() == 4 => None,
            reply => inspected(reply),
        }),
    })
}

fn inspected(reply: &Reply) -> Option<Inspected> {
    let items = match reply {
        Reply::Nil => return Some(Inspected::Free),
        Reply::List(items) => items.as_slice(),
        _ => return None,
    };
    match items {
        [Reply::Number(-3), Reply::Text(found)] => Some(Inspected::NotALock(found.clone())),
        [
            Reply::Number(left),
            field,
            Reply::Text(count),
            Reply::Number(clock),
            more @ ..,
        ] => Some(Inspected::Held {
            holders: match more {
                [Reply::Text(_), Reply::List(holders)] => holders_of(holders, &field.bytes()?)?,
                _ => smallvec![Seen {
                    field: field.bytes()?,
                    count: shown_count(count),
                    left: duration(*left),
                }],
            },
            clock: duration(*clock),
            token: match more {
                [] | [Reply::Nil] | [_, _] => None,
                // Another program may have written anything there.
                [Reply::Text(token)] => token.parse().ok(),
                _ => return None,
            },
        }),
        _ => None,
    }
}

/// Only another program can have written one that is too large: it is shown as the maximum.
fn shown_count(count: &str) -> u32 {
    count.parse().unwrap_or(u32::MAX)
}

/// The holders of a lock with two parts, the one to name before the others. Of a reader without a key nothing is left.
fn holders_of(items: &[Reply], first: &[u8]) -> Option<SmallVec<[Seen; 1]>> {
    let holders = items.chunks(3).map(|holder| match holder {
        [field, Reply::Text(count), Reply::Number(left)] => Some(Seen {
            field: field.bytes()?,
            count: shown_count(count),
            left: match left {
                -2 => Some(Duration::ZERO),
                left => duration(*left),
            },
        }),
        _ => None,
    });
    let mut holders: SmallVec<[Seen; 1]> = holders.collect::<Option<_>>()?;
    let named = holders.iter().position(|holder| *holder.field == *first)?;
    holders.swap(0, named);
    Some(holders)
}

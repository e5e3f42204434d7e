//! The calls that only a fair lock has.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::args::{announced_by, millis, sharded, text};
use super::files::{FAIR_LEAVE, Scripts};
use super::place::{keys, keys_to_free};
use super::{Released, released, shown};
use crate::names::wire::{Announce, LockName};
use crate::redis::{Call, Reply, reads};

/// Takes owners of a fair lock, each once and with the wait of its place, out of the queue, and frees the lock if one of
/// them has it.
pub(crate) fn leave(
    name: &LockName,
    leaving: &[(Arc<str>, Duration)],
    announce: Announce,
) -> Call<Vec<Released>> {
    let mut args = announced_by(name, announce, SmallVec::new());
    args.extend(
        leaving
            .iter()
            .flat_map(|(field, wait)| [text(field), millis(*wait)]),
    );
    Call {
        script: &FAIR_LEAVE,
        keys: keys_to_free(name),
        others: None,
        args,
        announced: sharded(name, announce),
        still: None,
        is_unknown: false,
        reads: reads!(|reply, _| match reply {
            Reply::List(items) => items.iter().map(left).collect::<Option<Vec<_>>>(),
            _ => None,
        }),
    }
}

fn left(reply: &Reply) -> Option<Released> {
    match reply {
        Reply::Number(-1..=1) => released(reply),
        _ => None,
    }
}

/// An owner that waits, and what is left of its place, below 0 if that has ended. `None`: it has no score.
pub(crate) type Queued = (String, Option<i64>);

/// Reads the queue. `None`: a lock of this kind has none.
pub(crate) fn inspect_queue(name: &LockName) -> Option<Call<Result<Vec<Queued>, String>>> {
    let script = Scripts::of(name.kind()).inspect_queue?;
    Some(Call {
        script,
        keys: keys(name),
        others: None,
        args: SmallVec::new(),
        announced: None,
        still: None,
        is_unknown: false,
        reads: reads!(|reply, _| match reply {
            Reply::Nil => Some(Ok(Vec::new())),
            Reply::List(items) => match items.as_slice() {
                [Reply::Number(-3), Reply::Text(found)] => Some(Err(found.clone())),
                [_, _, _, Reply::Number(_), Reply::List(queue)] => queue
                    .chunks(2)
                    .map(|place| match place {
                        [owner, Reply::Number(left)] => Some((shown(&owner.bytes()?), Some(*left))),
                        [owner, Reply::Nil] => Some((shown(&owner.bytes()?), None)),
                        _ => None,
                    })
                    .collect::<Option<_>>()
                    .map(Ok),
                _ => None,
            },
            _ => None,
        }),
    })
}

//! The scripts that inspect a lock from outside and force-unlock it.

use std::sync::Arc;
use std::time::Duration;

use super::{Call, FORCE_UNLOCK, INSPECT, duration, text};
use crate::redis::{Arg, Reply};
use crate::wire::LockName;

/// Frees the lock if `field` still holds it; returns whether it did.
pub(crate) fn force_unlock(name: &LockName, field: &Arc<[u8]>) -> Call<bool> {
    Call {
        script: &FORCE_UNLOCK,
        keys: vec![Arc::clone(name.key())],
        args: vec![Arg::Bytes(Arc::clone(field)), text(name.channel())],
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
        keys: vec![Arc::clone(name.key())],
        args: Vec::new(),
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

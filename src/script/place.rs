//! The keys of a lock's scripts, and what a call says about its owner's place in the queue of a fair lock.

use std::sync::Arc;
use std::time::Duration;

use smallvec::{SmallVec, smallvec};

use super::args::millis;
use crate::names::wire::LockName;
use crate::redis::Arg;

/// The keys of a script that takes a lock, or hands it over.
pub(super) fn keys(name: &LockName) -> SmallVec<[Arc<str>; 1]> {
    let mut keys = keys_to_free(name);
    if let Some(token) = name.token() {
        keys.insert(1, Arc::clone(token));
    }
    keys
}

/// Those of one that frees it.
pub(super) fn keys_to_free(name: &LockName) -> SmallVec<[Arc<str>; 1]> {
    let mut keys = smallvec![Arc::clone(name.key())];
    for key in name.queue().into_iter().flatten() {
        keys.push(Arc::clone(key));
    }
    keys
}

/// Those of a call about an owner with this field: where it reads, the key that covers its first hold follows that of
/// the lock.
pub(super) fn with_first_read(
    name: &LockName,
    field: &str,
    mut keys: SmallVec<[Arc<str>; 1]>,
) -> SmallVec<[Arc<str>; 1]> {
    if let Some(first_read) = name.first_read(field) {
        keys.push(first_read);
    }
    keys
}

/// Of a script that reads the keys of read holds: those that are known to be needed.
pub(super) fn read_keys(reads: bool, known: impl FnOnce() -> Option<Arc<str>>) -> Option<Vec<Arg>> {
    reads.then(|| known().map(Arg::Text).into_iter().collect())
}

/// What an acquire says about its owner's place in the queue of a fair lock. Locks of other kinds have none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueuePlace {
    /// For how long it counts after its turn has come.
    pub(crate) wait: Duration,
    /// For how long from then on the call needs it. `None`: it wants none.
    pub(crate) stays: Option<Duration>,
}

/// `None` is 0.
pub(super) fn millis_or_none(time: Option<Duration>) -> Arg {
    time.map_or(Arg::Number(0), millis)
}

//! How what the core sends gets to its server: into its connection under the lock's mutex, or on a longer way.

use super::attempt::{self, AcquireWay};
use super::release::{LongWay, entered};
use crate::state::entry::Sends;

/// How acquires and releases are sent.
pub(crate) const SENDS: Sends = Sends {
    enter: |entry, (core, now, out), call, (owner, op)| match core.acquire_says(owner, op) {
        Some(permit) => attempt::enter(entry, core, call, permit),
        None => entered::enter(entry, (core, now, out), owner, op),
    },
    long_way: |entry, owner, op| match entry.says(owner, op) {
        Some((permit, call)) => Box::pin(AcquireWay::new(entry, permit, call).run(None)),
        None => Box::pin(LongWay::new(entry, owner, op).run(None)),
    },
};

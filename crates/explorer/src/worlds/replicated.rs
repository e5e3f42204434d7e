//! Worlds in which replicas must confirm a lease.

use super::super::Verb::{Drop, Extend, Lock, LockFixed, Unlock};
use super::super::{Verb, World};
use super::handed_over::handing_over;
use super::{NOTHING, world};

pub(super) fn replicated() -> Vec<World> {
    let section: &[Verb] = &[Lock, Unlock];
    let handed_over = world(
        "replicas lag while a lock is handed over",
        &[(1, section), (2, &[Lock])],
        NOTHING.lags(1),
    );
    let worlds = vec![
        world(
            "replicas lag",
            &[(1, &[Lock, Lock, Unlock, Drop])],
            NOTHING.lags(2).ticks(2),
        ),
        world(
            "replicas lag behind branches of one owner",
            &[(1, section), (1, &[Lock, Drop])],
            NOTHING.lags(1).cancels(1),
        ),
        world(
            "replicas lag behind fixed leases",
            &[(1, &[LockFixed, Extend, Lock])],
            NOTHING.lags(1).ticks(2),
        ),
        handing_over(handed_over),
    ];
    let replicated = |world| World {
        replicas: 1,
        ..world
    };
    worlds.into_iter().map(replicated).collect()
}

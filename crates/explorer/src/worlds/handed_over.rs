//! Worlds in which owners hand the lock to each other.

use std::time::Duration;

use redisson_lock_core::HandOff;

use super::super::Verb::{Drop, Lock, LockFixed, LockLimited, LockWithin, TryLock, Unlock};
use super::super::{Verb, World};
use super::{NOTHING, world};

pub(super) fn handed_over() -> Vec<World> {
    let worlds = [beside_each_other(), with_trouble()].concat();
    worlds.into_iter().map(handing_over).collect()
}

/// Who hands the lock to whom.
fn beside_each_other() -> Vec<World> {
    let section: &[Verb] = &[Lock, Unlock];
    let dropped: &[Verb] = &[Lock, Drop];
    vec![
        world(
            "handed over, with a loss",
            &[(1, section), (2, section)],
            NOTHING.losses(1),
        ),
        world(
            "handed over, with a cancelled call",
            &[(1, section), (2, &[Lock])],
            NOTHING.cancels(1),
        ),
        world(
            "handed over by a drop",
            &[(1, dropped), (2, &[Lock])],
            NOTHING.losses(1).cancels(1),
        ),
        world(
            "handed on and on",
            &[(1, section), (2, section), (3, &[Lock])],
            NOTHING,
        ),
        world(
            "handed back",
            &[(1, &[Lock, Unlock, Lock, Unlock]), (2, section)],
            NOTHING.losses(1),
        ),
        world(
            "handed over to a nested call",
            &[(1, section), (2, &[Lock, Lock, Drop])],
            NOTHING.cancels(1),
        ),
        world(
            "handed over to branches of one owner",
            &[(1, section), (2, section), (2, &[TryLock])],
            NOTHING,
        ),
        world(
            "handed over to branches of one owner, dropped",
            &[(1, &[Lock]), (2, &[Lock]), (2, &[TryLock, Drop])],
            NOTHING,
        ),
    ]
}

/// Time, other processes, refusals, and the end of the client.
fn with_trouble() -> Vec<World> {
    let section: &[Verb] = &[Lock, Unlock];
    let dropped: &[Verb] = &[Lock, Drop];
    vec![
        world(
            "handed over in time",
            &[(1, dropped), (2, &[LockFixed])],
            NOTHING.ticks(1),
        ),
        world(
            "handed over behind a limit",
            &[(1, &[LockLimited, Lock, Unlock]), (2, &[Lock])],
            NOTHING.ticks(1),
        ),
        world(
            "handed over to a call that gives up",
            &[(1, section), (2, &[LockWithin])],
            NOTHING.ticks(2),
        ),
        world(
            "handed over beside another process",
            &[(1, section), (2, section)],
            NOTHING.foreign(1).wipes(1),
        ),
        world(
            "a pass is refused",
            &[(1, section), (2, dropped)],
            NOTHING.refusals(2),
        ),
        world(
            "a pass is forced open",
            &[(1, section), (2, &[Lock])],
            NOTHING.forces(1).losses(1),
        ),
        world(
            "handed over while the client closes",
            &[(1, section), (2, dropped)],
            NOTHING.closes(4),
        ),
        world(
            "handed over while the runtime ends",
            &[(1, section), (2, dropped)],
            NOTHING.ends(1),
        ),
    ]
}

pub(super) fn handing_over(world: World) -> World {
    World {
        handoff: HandOff {
            passes: 2,
            longest: Duration::from_secs(60),
        },
        ..world
    }
}

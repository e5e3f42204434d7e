//! Worlds of fair locks.
//!
//! Their owners attempt beside each other, so there are many more orders than with one head: two owners, and one budget
//! at a time. What takes longer in time is for the simulator.

use redisson_lock_core::Discipline;

use super::super::Verb::{Drop, Lock, LockWithin, TryLock, Unlock};
use super::super::{Verb, World};
use super::{NOTHING, world};

const SECTION: &[Verb] = &[Lock, Unlock];

pub(super) fn fair() -> Vec<World> {
    let worlds = [beside_each_other(), in_time(), ended()].concat();
    worlds.into_iter().map(of_fair).collect()
}

fn of_fair(world: World) -> World {
    World {
        discipline: Discipline::Fair,
        ..world
    }
}

/// Owners, calls and losses, while no time passes.
fn beside_each_other() -> Vec<World> {
    vec![
        world("fair: two owners", &[(1, SECTION), (2, SECTION)], NOTHING),
        world(
            "fair: two owners, with a cancelled call",
            &[(1, SECTION), (2, SECTION)],
            NOTHING.cancels(1),
        ),
        world(
            "fair: two owners, with a loss",
            &[(1, SECTION), (2, SECTION)],
            NOTHING.losses(1),
        ),
        world(
            "fair: nested beside another",
            &[(1, &[Lock, Lock, Unlock, Drop]), (2, &[Lock])],
            NOTHING.cancels(1),
        ),
        world(
            "fair: branches of one owner, with a cancelled call",
            &[(1, &[Lock]), (2, &[Lock]), (2, &[Lock])],
            NOTHING.cancels(1),
        ),
        world(
            "fair: an immediate attempt of an owner that waits",
            &[(1, &[Lock]), (2, &[Lock]), (2, &[TryLock, Drop])],
            NOTHING,
        ),
        world(
            "fair: an immediate attempt of an owner that waits, with cancelled calls",
            &[(1, &[Lock]), (2, &[Lock]), (2, &[TryLock])],
            NOTHING.cancels(2),
        ),
    ]
}

/// Calls that end, and calls that are not polled.
fn in_time() -> Vec<World> {
    vec![world(
        "fair: a call that gives up",
        &[(1, &[Lock]), (2, &[LockWithin])],
        NOTHING.ticks(1),
    )]
}

/// Refusals, and the end of the client.
fn ended() -> Vec<World> {
    vec![
        world(
            "fair: closing",
            &[(1, SECTION), (2, &[Lock])],
            NOTHING.closes(1),
        ),
        world(
            "fair: closed",
            &[(1, &[Lock]), (2, &[Lock])],
            NOTHING.closes(4),
        ),
        world(
            "fair: the runtime ends",
            &[(1, &[Lock]), (2, &[Lock])],
            NOTHING.ends(1),
        ),
        world(
            "fair: refused",
            &[(1, &[Lock]), (2, &[Lock])],
            NOTHING.refusals(1).cancels(1),
        ),
        world(
            "fair: forced",
            &[(1, SECTION), (2, &[Lock])],
            NOTHING.forces(1),
        ),
    ]
}

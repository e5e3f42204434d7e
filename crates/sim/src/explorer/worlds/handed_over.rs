//! Worlds in which owners hand the lock to each other.

use std::time::Duration;

use redisson_lock::HandOver;

use super::super::Verb::{Drop, Lock, LockFixed, LockLimited, LockWithin, TryLock, Unlock};
use super::super::{Budget, Verb, World};
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
            Budget {
                losses: 1,
                ..NOTHING
            },
        ),
        world(
            "handed over, with a cancelled call",
            &[(1, section), (2, section)],
            Budget {
                cancels: 1,
                ..NOTHING
            },
        ),
        world(
            "handed over by a drop",
            &[(1, dropped), (2, dropped)],
            Budget {
                losses: 1,
                cancels: 1,
                ..NOTHING
            },
        ),
        world(
            "handed on and on",
            &[(1, section), (2, section), (3, dropped)],
            NOTHING,
        ),
        world(
            "handed back",
            &[(1, &[Lock, Unlock, Lock, Unlock]), (2, section)],
            Budget {
                losses: 1,
                ..NOTHING
            },
        ),
        world(
            "handed over to a nested call",
            &[(1, section), (2, &[Lock, Lock, Unlock, Drop])],
            Budget {
                cancels: 1,
                ..NOTHING
            },
        ),
        world(
            "handed over to branches of one owner",
            &[(1, section), (2, section), (2, &[TryLock, Drop])],
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
            &[(1, section), (2, &[LockFixed, Unlock])],
            Budget {
                ticks: 1,
                ..NOTHING
            },
        ),
        world(
            "handed over behind a limit",
            &[(1, &[LockLimited, Lock, Unlock, Drop]), (2, section)],
            Budget {
                ticks: 1,
                ..NOTHING
            },
        ),
        world(
            "handed over to a call that gives up",
            &[(1, section), (2, &[LockWithin])],
            Budget {
                ticks: 2,
                ..NOTHING
            },
        ),
        world(
            "handed over beside another process",
            &[(1, section), (2, section)],
            Budget {
                foreign: 1,
                wipes: 1,
                ..NOTHING
            },
        ),
        world(
            "a pass is refused",
            &[(1, section), (2, dropped)],
            Budget {
                refusals: 2,
                ..NOTHING
            },
        ),
        world(
            "a pass is forced open",
            &[(1, section), (2, section)],
            Budget {
                forces: 1,
                losses: 1,
                ..NOTHING
            },
        ),
        world(
            "handed over while the client closes",
            &[(1, section), (2, dropped)],
            Budget {
                closes: 4,
                losses: 1,
                ..NOTHING
            },
        ),
        world(
            "handed over while the runtime ends",
            &[(1, section), (2, dropped)],
            Budget { ends: 1, ..NOTHING },
        ),
    ]
}

/// The larger ones.
pub(super) fn deep() -> Vec<World> {
    let section: &[Verb] = &[Lock, Unlock];
    let much = Budget {
        losses: 1,
        cancels: 1,
        ..NOTHING
    };
    let worlds = vec![
        world(
            "handed over beside an attempt at once",
            &[(1, section), (2, &[Lock]), (4, &[TryLock])],
            Budget {
                cancels: 1,
                ..NOTHING
            },
        ),
        world(
            "handed over, much trouble",
            &[(1, section), (2, section)],
            much,
        ),
        world(
            "handed over to a nested call, much trouble",
            &[(1, section), (2, &[Lock, Lock, Unlock, Drop])],
            much,
        ),
        world(
            "handed on and on, with a loss",
            &[(1, section), (2, section), (3, &[Lock, Drop])],
            Budget {
                losses: 1,
                ..NOTHING
            },
        ),
    ];
    worlds.into_iter().map(handing_over).collect()
}

fn handing_over(world: World) -> World {
    World {
        handover: HandOver {
            passes: 2,
            for_at_most: Duration::from_secs(60),
        },
        ..world
    }
}

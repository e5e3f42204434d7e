//! Calls of every kind, each beside what it can meet: limits, attempts at once, detached holds,
//! waiting calls that give up, refusals, and the end of the client.

use super::super::Verb::{
    Detach, Drop, Extend, Lock, LockFixed, LockLimited, LockWithin, TryLock, Unlock, UnlockDetached,
};
use super::super::{Budget, Verb, World};
use super::{NOTHING, world};

const SECTION: &[Verb] = &[Lock, Unlock];
const NESTED: &[Verb] = &[Lock, Lock, Unlock, Drop];

pub(super) fn kinds() -> Vec<World> {
    [
        of_one_owner(),
        limited(),
        detached(),
        ended(),
        pairs(),
        pairs_at_the_end(),
    ]
    .concat()
}

/// Calls of one owner beside each other, of which one attempts at once.
fn of_one_owner() -> Vec<World> {
    vec![
        world(
            "an unlock joins a job",
            &[(1, &[Lock, Lock, Drop, Unlock]), (2, SECTION)],
            Budget {
                losses: 1,
                cancels: 1,
                ..NOTHING
            },
        ),
        world(
            "three deep from two calls",
            &[(1, &[Lock, Lock, Drop, Unlock]), (1, &[Lock, Drop])],
            Budget {
                losses: 1,
                wipes: 1,
                ..NOTHING
            },
        ),
        world(
            "an attempt at once beside a queued call",
            &[(1, SECTION), (1, &[TryLock, Drop]), (2, SECTION)],
            NOTHING,
        ),
        world(
            "a nested attempt at once",
            &[(1, &[LockFixed, TryLock, Drop, Unlock])],
            Budget {
                losses: 1,
                cancels: 1,
                ticks: 1,
                ..NOTHING
            },
        ),
        world(
            "attempts at once in time",
            &[(1, SECTION), (2, &[TryLock, Unlock])],
            Budget {
                ticks: 1,
                ..NOTHING
            },
        ),
        world(
            "overlapping unlocks in time",
            &[(1, &[Lock, Lock, Unlock, Drop]), (1, &[Lock, Unlock])],
            Budget {
                ticks: 1,
                ..NOTHING
            },
        ),
    ]
}

/// Holds that have an end, and calls that do.
fn limited() -> Vec<World> {
    vec![
        world(
            "max_hold",
            &[(1, &[LockLimited, Unlock]), (2, &[Lock])],
            Budget {
                ticks: 2,
                ..NOTHING
            },
        ),
        world(
            "max_hold under a nested call",
            &[(1, &[LockLimited, Lock, Unlock, Drop])],
            Budget {
                ticks: 3,
                ..NOTHING
            },
        ),
        world(
            "a call that gives up",
            &[(1, SECTION), (2, &[LockWithin, Unlock])],
            Budget {
                ticks: 2,
                ..NOTHING
            },
        ),
        world(
            "a call that gives up on another process",
            &[(1, &[LockWithin, Unlock]), (1, SECTION)],
            Budget {
                ticks: 1,
                foreign: 1,
                ..NOTHING
            },
        ),
        world(
            "extended",
            &[(1, &[LockFixed, Extend, Unlock]), (1, &[LockFixed])],
            Budget {
                ticks: 1,
                losses: 1,
                wipes: 1,
                ..NOTHING
            },
        ),
    ]
}

/// Detached holds, and what takes holds away.
fn detached() -> Vec<World> {
    vec![
        world(
            "claims",
            &[
                (1, &[Lock, Detach, UnlockDetached]),
                (1, &[Lock, Detach, UnlockDetached]),
            ],
            Budget {
                losses: 1,
                cancels: 1,
                ..NOTHING
            },
        ),
        world(
            "claims of what was lost",
            &[
                (1, &[Lock, LockFixed, Detach, UnlockDetached, Drop]),
                (1, &[UnlockDetached]),
            ],
            Budget {
                ticks: 1,
                wipes: 1,
                ..NOTHING
            },
        ),
        world(
            "refused",
            &[(1, NESTED), (2, SECTION)],
            Budget {
                refusals: 2,
                losses: 1,
                ..NOTHING
            },
        ),
        world(
            "forced",
            &[(1, NESTED), (1, SECTION)],
            Budget {
                forces: 1,
                ..NOTHING
            },
        ),
    ]
}

/// The end of the client, by `close` and with its runtime.
fn ended() -> Vec<World> {
    let detaching: &[Verb] = &[Lock, Lock, Detach, Unlock];
    vec![
        world(
            "closed",
            &[(1, detaching), (1, &[Lock, Drop, UnlockDetached])],
            Budget {
                closes: 5,
                ..NOTHING
            },
        ),
        world(
            "closed beside another",
            &[(1, SECTION), (2, &[TryLock, Unlock])],
            Budget {
                closes: 5,
                ..NOTHING
            },
        ),
        world(
            "the runtime ends",
            &[(1, NESTED), (1, &[Lock])],
            Budget {
                ends: 1,
                ticks: 1,
                ..NOTHING
            },
        ),
        world(
            "the runtime ends while the client closes",
            &[(1, &[Lock, Detach, Lock, Drop]), (2, &[TryLock])],
            Budget {
                closes: 5,
                ends: 1,
                ..NOTHING
            },
        ),
    ]
}

/// Small ones, for what has to meet in one owner.
fn pairs() -> Vec<World> {
    vec![
        world(
            "unlocks of three calls",
            &[
                (1, &[Lock, Lock, Unlock]),
                (1, SECTION),
                (1, &[TryLock, Drop]),
            ],
            NOTHING,
        ),
        world(
            "claims three deep",
            &[
                (1, &[Lock, Lock, Drop, Unlock]),
                (1, &[Lock, Detach, UnlockDetached]),
            ],
            Budget {
                wipes: 1,
                ..NOTHING
            },
        ),
        world(
            "limits that meet",
            &[
                (1, &[LockLimited, TryLock, Drop, Unlock]),
                (1, &[LockFixed]),
            ],
            Budget {
                ticks: 1,
                ..NOTHING
            },
        ),
    ]
}

/// And what has to meet there while the client closes.
fn pairs_at_the_end() -> Vec<World> {
    vec![
        world(
            "attempts at once of one owner",
            &[(1, &[Lock, TryLock, Drop, Unlock]), (1, &[TryLock, Drop])],
            Budget {
                closes: 3,
                forces: 1,
                ..NOTHING
            },
        ),
        world(
            "claims beside a nested call",
            &[(1, &[Lock, Detach, Lock, Unlock]), (1, &[UnlockDetached])],
            Budget {
                closes: 5,
                losses: 1,
                ..NOTHING
            },
        ),
        world(
            "extended beside another call",
            &[(1, &[LockFixed, Extend, Drop]), (1, &[Lock, Unlock])],
            Budget {
                wipes: 1,
                closes: 5,
                ..NOTHING
            },
        ),
        world(
            "renewals while the client closes",
            &[(1, NESTED)],
            Budget {
                closes: 2,
                ticks: 1,
                losses: 1,
                wipes: 1,
                ..NOTHING
            },
        ),
        world(
            "refused while the client closes",
            &[(1, NESTED), (1, SECTION)],
            Budget {
                closes: 1,
                refusals: 1,
                ..NOTHING
            },
        ),
        world(
            "stuck while the client closes",
            &[(1, SECTION), (1, &[Lock])],
            Budget {
                closes: 4,
                ticks: 1,
                ..NOTHING
            },
        ),
    ]
}

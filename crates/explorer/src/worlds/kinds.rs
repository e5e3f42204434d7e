//! Calls of every kind, each beside what it can meet: limits, immediate attempts, detached holds,
//! waiting calls that give up, refusals, and the end of the client.

use super::super::Verb::{
    Detach, Drop, Extend, Lock, LockAlone, LockFixed, LockLimited, LockWithin, TryLock, Unlock,
    UnlockDetached,
};
use super::super::{Verb, World};
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

/// Calls of one owner beside each other, of which one attempts immediately.
fn of_one_owner() -> Vec<World> {
    vec![
        world(
            "three deep from two calls",
            &[(1, &[Lock, Lock, Unlock]), (1, &[Lock, Drop])],
            NOTHING.losses(1).wipes(1),
        ),
        world(
            "a nested immediate attempt",
            &[(1, &[LockFixed, TryLock, Drop])],
            NOTHING.losses(1).cancels(1).ticks(1),
        ),
        world(
            "overlapping unlocks in time",
            &[(1, &[Lock, Lock, Unlock, Drop]), (1, &[Lock, Unlock])],
            NOTHING.ticks(1),
        ),
        world(
            "branches that do not nest",
            &[(1, &[LockAlone, Unlock]), (1, &[LockAlone, Unlock])],
            NOTHING.losses(1).cancels(1).ticks(1),
        ),
        world(
            "a branch that nests beside one that does not",
            &[(1, &[LockAlone, Lock, Drop]), (1, &[Lock, Unlock])],
            NOTHING.losses(1).cancels(1),
        ),
    ]
}

/// Holds that have an end, and calls that do.
fn limited() -> Vec<World> {
    vec![
        world(
            "max_hold under a nested call",
            &[(1, &[LockLimited, Lock, Unlock, Drop])],
            NOTHING.ticks(1),
        ),
        world(
            "max_hold under a nested call, with a loss",
            &[(1, &[LockLimited, Lock])],
            NOTHING.ticks(2).losses(1),
        ),
        world(
            "a call that gives up",
            &[(1, SECTION), (2, &[LockWithin])],
            NOTHING.ticks(2),
        ),
        world(
            "a call that gives up on another process",
            &[(1, &[LockWithin, Unlock]), (1, SECTION)],
            NOTHING.ticks(1),
        ),
        world(
            "extended",
            &[(1, &[LockFixed, Extend]), (1, &[LockFixed])],
            NOTHING.ticks(1),
        ),
    ]
}

/// Detached holds, and what takes holds away.
fn detached() -> Vec<World> {
    vec![
        world(
            "claims of what was lost",
            &[
                (1, &[Lock, LockFixed, Detach, UnlockDetached, Drop]),
                (1, &[UnlockDetached]),
            ],
            NOTHING.ticks(1).wipes(1),
        ),
        world(
            "refused",
            &[(1, SECTION), (2, SECTION)],
            NOTHING.refusals(2).losses(1),
        ),
        world("forced", &[(1, NESTED), (1, SECTION)], NOTHING.forces(1)),
    ]
}

/// The end of the client, by `close` and with its runtime.
fn ended() -> Vec<World> {
    vec![
        world(
            "closed",
            &[
                (1, &[Lock, Lock, Detach, Unlock]),
                (1, &[Lock, Drop, UnlockDetached]),
            ],
            NOTHING.closes(4),
        ),
        world(
            "the runtime ends",
            &[(1, NESTED), (1, &[Lock])],
            NOTHING.ends(1).ticks(1),
        ),
        world(
            "the runtime ends while the client closes",
            &[(1, &[Lock, Detach]), (2, &[TryLock])],
            NOTHING.closes(5).ends(1),
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
            &[(1, &[Lock, Lock, Drop, Unlock]), (1, &[Lock, Detach])],
            NOTHING.wipes(1),
        ),
        world(
            "limits that meet",
            &[
                (1, &[LockLimited, TryLock, Drop, Unlock]),
                (1, &[LockFixed]),
            ],
            NOTHING.ticks(1),
        ),
    ]
}

/// And what has to meet there while the client closes.
fn pairs_at_the_end() -> Vec<World> {
    vec![
        world(
            "immediate attempts of one owner",
            &[(1, &[Lock, TryLock, Drop, Unlock]), (1, &[TryLock])],
            NOTHING.closes(3).forces(1),
        ),
        world(
            "claims beside a nested call",
            &[(1, &[Lock, Detach, Lock, Unlock]), (1, &[UnlockDetached])],
            NOTHING.closes(5),
        ),
        world(
            "extended beside another call",
            &[(1, &[LockFixed, Extend]), (1, SECTION)],
            NOTHING.wipes(1).closes(5),
        ),
        world(
            "renewals while the client closes",
            &[(1, NESTED)],
            NOTHING.closes(1).ticks(1).losses(1),
        ),
        world(
            "refused while the client closes",
            &[(1, NESTED), (1, SECTION)],
            NOTHING.closes(1).refusals(1),
        ),
        world(
            "stuck while the client closes",
            &[(1, SECTION), (1, &[Lock])],
            NOTHING.closes(4).ticks(1),
        ),
    ]
}

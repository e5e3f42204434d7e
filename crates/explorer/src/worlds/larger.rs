//! The larger worlds, for `cargo xtask explore --deep`: longer calls, more of them, more that goes wrong.

use super::super::Verb::{
    Detach, Drop, Extend, Lock, LockFixed, LockLimited, LockWithin, TryLock, Unlock, UnlockDetached,
};
use super::super::{Budget, Verb, World};
use super::handed_over::handing_over;
use super::{NOTHING, of_kind, world};

const SECTION: &[Verb] = &[Lock, Unlock];
const DROPPED: &[Verb] = &[Lock, Drop];
const NESTED: &[Verb] = &[Lock, Lock, Unlock, Drop];
const ONCE_EACH: Budget = NOTHING.losses(1).cancels(1);

pub fn deep() -> Vec<World> {
    let handed_over = handed_over().into_iter().map(handing_over).collect();
    let worlds = [
        plain(),
        longer(),
        kinds(),
        ended(),
        handed_over,
        of_kind::longer(),
    ];
    worlds.concat()
}

/// Owners beside each other, and what can come to them from outside.
fn plain() -> Vec<World> {
    vec![
        world(
            "nested beside another, longer",
            &[(1, NESTED), (2, SECTION)],
            NOTHING.losses(1).cancels(1),
        ),
        world(
            "three owners, longer",
            &[(1, SECTION), (2, SECTION), (3, &[Lock, Drop])],
            NOTHING.cancels(1),
        ),
        world(
            "branches of one owner, longer",
            &[(1, SECTION), (1, SECTION), (2, SECTION)],
            NOTHING.cancels(1),
        ),
        world(
            "immediate attempts, longer",
            &[(1, SECTION), (2, &[TryLock, Drop]), (3, SECTION)],
            NOTHING,
        ),
        world(
            "an outer hold ends under a nested call, longer",
            &[(1, &[LockFixed, Lock, Drop, Drop])],
            NOTHING.ticks(3).losses(1),
        ),
        world(
            "another process, longer",
            &[(1, SECTION), (2, SECTION)],
            NOTHING.foreign(1).cancels(1).ticks(1),
        ),
        world(
            "wiped, longer",
            &[(1, NESTED), (2, SECTION)],
            NOTHING.wipes(1).ticks(1),
        ),
        world(
            "closing, longer",
            &[(1, SECTION), (2, SECTION)],
            NOTHING.closes(1).cancels(1).losses(1),
        ),
    ]
}

/// Time, and owners with nested holds.
fn longer() -> Vec<World> {
    vec![
        world(
            "leases, longer",
            &[(1, &[Lock, LockFixed, Unlock, Drop])],
            NOTHING.losses(1).ticks(5),
        ),
        world(
            "expiry, longer",
            &[(1, &[LockFixed, Unlock]), (2, SECTION)],
            NOTHING.ticks(3),
        ),
        world(
            "max_hold, longer",
            &[(1, &[LockLimited, Unlock]), (2, SECTION)],
            NOTHING.ticks(3),
        ),
        world(
            "immediate attempts in time, longer",
            &[(1, SECTION), (2, &[TryLock, Unlock])],
            NOTHING.ticks(2),
        ),
        world("two owners, nested", &[(1, NESTED), (2, NESTED)], ONCE_EACH),
        world(
            "two owners in time",
            &[(1, SECTION), (2, SECTION)],
            ONCE_EACH.ticks(1).foreign(1),
        ),
        world(
            "three owners with a loss",
            &[(1, SECTION), (2, SECTION), (3, SECTION)],
            ONCE_EACH,
        ),
    ]
}

/// Calls of every kind.
fn kinds() -> Vec<World> {
    vec![
        world(
            "an unlock joins a job",
            &[(1, &[Lock, Lock, Drop, Unlock]), (2, SECTION)],
            NOTHING.losses(1).cancels(1),
        ),
        world(
            "three deep from two calls, longer",
            &[(1, &[Lock, Lock, Drop, Unlock]), (1, &[Lock, Drop])],
            NOTHING.losses(1).wipes(1),
        ),
        world(
            "an immediate attempt beside a queued call",
            &[(1, SECTION), (1, &[TryLock, Drop]), (2, SECTION)],
            NOTHING,
        ),
        world(
            "a nested immediate attempt, longer",
            &[(1, &[LockFixed, TryLock, Drop, Unlock])],
            NOTHING.losses(1).cancels(1).ticks(1),
        ),
        world(
            "max_hold under a nested call, longer",
            &[(1, &[LockLimited, Lock, Unlock, Drop])],
            NOTHING.ticks(3),
        ),
        world(
            "a call that gives up, longer",
            &[(1, SECTION), (2, &[LockWithin, Unlock])],
            NOTHING.ticks(2),
        ),
        world(
            "a call that gives up on another process, longer",
            &[(1, &[LockWithin, Unlock]), (1, SECTION)],
            NOTHING.ticks(1).foreign(1),
        ),
        world(
            "extended, longer",
            &[(1, &[LockFixed, Extend, Unlock]), (1, &[LockFixed])],
            NOTHING.ticks(1).losses(1).wipes(1),
        ),
        world(
            "claims",
            &[
                (1, &[Lock, Detach, UnlockDetached]),
                (1, &[Lock, Detach, UnlockDetached]),
            ],
            NOTHING.losses(1).cancels(1),
        ),
    ]
}

/// Refusals, and the end of the client.
fn ended() -> Vec<World> {
    vec![
        world(
            "refused, longer",
            &[(1, NESTED), (2, SECTION)],
            NOTHING.refusals(2).losses(1),
        ),
        world(
            "closed, longer",
            &[
                (1, &[Lock, Lock, Detach, Unlock]),
                (1, &[Lock, Drop, UnlockDetached]),
            ],
            NOTHING.closes(5),
        ),
        world(
            "closed beside another",
            &[(1, SECTION), (2, &[TryLock, Unlock])],
            NOTHING.closes(5),
        ),
        world(
            "the runtime ends while the client closes, longer",
            &[(1, &[Lock, Detach, Lock, Drop]), (2, &[TryLock])],
            NOTHING.closes(5).ends(1),
        ),
        world(
            "claims three deep, longer",
            &[
                (1, &[Lock, Lock, Drop, Unlock]),
                (1, &[Lock, Detach, UnlockDetached]),
            ],
            NOTHING.wipes(1),
        ),
        world(
            "immediate attempts of one owner, longer",
            &[(1, &[Lock, TryLock, Drop, Unlock]), (1, &[TryLock, Drop])],
            NOTHING.closes(3).forces(1),
        ),
        world(
            "claims beside a nested call, longer",
            &[(1, &[Lock, Detach, Lock, Unlock]), (1, &[UnlockDetached])],
            NOTHING.closes(5).losses(1),
        ),
        world(
            "extended beside another call, longer",
            &[(1, &[LockFixed, Extend, Drop]), (1, &[Lock, Unlock])],
            NOTHING.wipes(1).closes(5),
        ),
        world(
            "renewals while the client closes, longer",
            &[(1, NESTED)],
            NOTHING.closes(2).ticks(1).losses(1).wipes(1),
        ),
    ]
}

/// Owners that hand the lock to each other.
fn handed_over() -> Vec<World> {
    vec![
        world(
            "handed over, with a cancelled call, longer",
            &[(1, SECTION), (2, SECTION)],
            NOTHING.cancels(1),
        ),
        world(
            "handed over by a drop, longer",
            &[(1, DROPPED), (2, DROPPED)],
            NOTHING.losses(1).cancels(1),
        ),
        world(
            "handed on and on, longer",
            &[(1, SECTION), (2, SECTION), (3, DROPPED)],
            NOTHING,
        ),
        world(
            "handed over to a nested call, longer",
            &[(1, SECTION), (2, &[Lock, Lock, Unlock, Drop])],
            NOTHING.cancels(1),
        ),
        world(
            "handed over to branches of one owner, longer",
            &[(1, SECTION), (2, SECTION), (2, &[TryLock, Drop])],
            NOTHING,
        ),
        world(
            "handed over in time, longer",
            &[(1, SECTION), (2, &[LockFixed, Unlock])],
            NOTHING.ticks(1),
        ),
        world(
            "handed over behind a limit, longer",
            &[(1, &[LockLimited, Lock, Unlock, Drop]), (2, SECTION)],
            NOTHING.ticks(1),
        ),
        world(
            "a pass is forced open, longer",
            &[(1, SECTION), (2, SECTION)],
            NOTHING.forces(1).losses(1),
        ),
        world(
            "handed over while the client closes, longer",
            &[(1, SECTION), (2, DROPPED)],
            NOTHING.closes(4).losses(1),
        ),
        world(
            "handed over beside an immediate attempt",
            &[(1, SECTION), (2, &[Lock]), (4, &[TryLock])],
            NOTHING.cancels(1),
        ),
        world(
            "handed over, with a loss and a cancelled call",
            &[(1, SECTION), (2, SECTION)],
            ONCE_EACH,
        ),
        world(
            "handed over to a nested call, with a loss",
            &[(1, SECTION), (2, &[Lock, Lock, Unlock, Drop])],
            ONCE_EACH,
        ),
        world(
            "handed on and on, with a loss",
            &[(1, SECTION), (2, SECTION), (3, &[Lock, Drop])],
            NOTHING.losses(1),
        ),
    ]
}

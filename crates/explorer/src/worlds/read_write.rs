//! Worlds of read-write locks: what `Lock` and its like are in others is to write here.

use redisson_lock_core::Discipline;

use super::super::Verb::{
    Drop, DropFirst, Lock, LockFixed, Read, ReadFixed, TryLock, TryRead, Unlock, UnlockFirst,
};
use super::super::{Verb, World};
use super::{NOTHING, world};

const WRITES: &[Verb] = &[Lock, Unlock];
const READS: &[Verb] = &[Read, Unlock];
const DOWNGRADES: &[Verb] = &[Lock, Read, UnlockFirst, Unlock];

pub(super) fn read_write() -> Vec<World> {
    let worlds = [beside_each_other(), of_one_owner(), with_others(), ended()].concat();
    worlds.into_iter().map(of_read_write).collect()
}

fn of_read_write(world: World) -> World {
    World {
        discipline: Discipline::ReadWrite,
        ..world
    }
}

/// Readers and writers of several owners.
fn beside_each_other() -> Vec<World> {
    vec![
        world(
            "read-write: two readers",
            &[(1, READS), (2, READS)],
            NOTHING.losses(1),
        ),
        world(
            "read-write: a reader and a writer",
            &[(1, READS), (2, WRITES)],
            NOTHING.losses(1).cancels(1),
        ),
        world(
            "read-write: two readers and a writer",
            &[(1, READS), (2, READS), (3, &[Lock])],
            NOTHING,
        ),
        world(
            "read-write: immediate attempts",
            &[(1, WRITES), (2, &[TryRead, Drop]), (3, &[TryLock])],
            NOTHING,
        ),
        world(
            "read-write: downgrade beside a writer",
            &[(1, &[Lock, Read, UnlockFirst, Drop]), (2, WRITES)],
            NOTHING,
        ),
        world(
            "read-write: downgrade by a drop beside a reader",
            &[(1, &[Lock, Read, DropFirst, Unlock]), (2, READS)],
            NOTHING,
        ),
    ]
}

/// Both faces of one owner, and its branches.
fn of_one_owner() -> Vec<World> {
    vec![
        world(
            "read-write: downgrade, with losses",
            &[(1, DOWNGRADES)],
            NOTHING.losses(2).cancels(1),
        ),
        world(
            "read-write: a read inside of a write, in branches",
            &[(1, &[Lock, Drop]), (1, &[Read, Drop])],
            NOTHING.losses(1).cancels(1),
        ),
        world(
            "read-write: branches that attempt immediately",
            &[(1, &[TryLock, Drop]), (1, &[TryRead, Drop])],
            NOTHING.losses(1),
        ),
        world(
            "read-write: nested reads inside of a write",
            &[(1, &[Lock, Read, Read, UnlockFirst, Drop, Unlock])],
            NOTHING.losses(1).cancels(1),
        ),
        world(
            "read-write: a write beside an own read",
            &[(1, &[Read, Lock, Drop]), (2, READS)],
            NOTHING.cancels(1),
        ),
        world(
            "read-write: leases of both faces",
            &[(1, &[LockFixed, Read])],
            NOTHING.ticks(2),
        ),
        world(
            "read-write: a renewed read inside of a fixed one",
            &[(1, &[ReadFixed, Read, Unlock])],
            NOTHING.ticks(2).losses(1),
        ),
    ]
}

/// Other processes, and what takes a lock away.
fn with_others() -> Vec<World> {
    vec![
        world(
            "read-write: another process",
            &[(1, READS), (2, WRITES)],
            NOTHING.foreign(1),
        ),
        world(
            "read-write: wiped",
            &[(1, DOWNGRADES), (2, &[Read])],
            NOTHING.wipes(1),
        ),
        world(
            "read-write: wiped in time",
            &[(1, &[Lock, Read, Unlock])],
            NOTHING.wipes(1).ticks(1),
        ),
    ]
}

/// Refusals, and the end of the client.
fn ended() -> Vec<World> {
    vec![
        world(
            "read-write: refused",
            &[(1, &[Lock, Read, UnlockFirst]), (2, &[Read])],
            NOTHING.refusals(1),
        ),
        world(
            "read-write: a read whose release is refused",
            &[(1, &[Read, Drop, Lock, Unlock])],
            NOTHING.refusals(2).losses(1),
        ),
        world(
            "read-write: closed",
            &[(1, &[Lock, Read]), (2, &[Read])],
            NOTHING.closes(4),
        ),
        world(
            "read-write: the runtime ends",
            &[(1, &[Lock, Read]), (2, &[Read])],
            NOTHING.ends(1),
        ),
    ]
}

//! The worlds that are explored to their end.

mod handed_over;
mod kinds;

use redisson_lock::HandOver;

use super::Verb::{Detach, Drop, Lock, LockFixed, LockLimited, TryLock, Unlock};
use super::coverage::Reached;
use super::{Budget, Verb, World};

const NOTHING: Budget = Budget {
    losses: 0,
    cancels: 0,
    ticks: 0,
    foreign: 0,
    wipes: 0,
    closes: 0,
    refusals: 0,
    forces: 0,
    ends: 0,
};

fn world(name: &'static str, callers: &[(i64, &[Verb])], budget: Budget) -> World {
    let callers = callers
        .iter()
        .map(|(owner, verbs)| (*owner, verbs.to_vec()))
        .collect();
    World {
        name,
        callers,
        budget,
        handover: HandOver::off(),
        reached: Reached::leaked(),
    }
}

/// What CI explores, together in two or three minutes.
pub fn all() -> Vec<World> {
    [
        beside_each_other(),
        in_time(),
        with_others(),
        kinds::kinds(),
        handed_over::handed_over(),
    ]
    .concat()
}

/// Owners, calls and losses, while no time passes.
fn beside_each_other() -> Vec<World> {
    let nested: &[Verb] = &[Lock, Lock, Unlock, Drop];
    let section: &[Verb] = &[Lock, Unlock];
    vec![
        world(
            "nested",
            &[(1, nested)],
            Budget {
                losses: 2,
                cancels: 2,
                ..NOTHING
            },
        ),
        world(
            "two owners",
            &[(1, section), (2, section)],
            Budget {
                losses: 1,
                cancels: 1,
                ..NOTHING
            },
        ),
        world(
            "nested beside another",
            &[(1, nested), (2, section)],
            Budget {
                losses: 1,
                cancels: 1,
                ..NOTHING
            },
        ),
        world(
            "three owners",
            &[(1, section), (2, section), (3, &[Lock, Drop])],
            Budget {
                cancels: 1,
                ..NOTHING
            },
        ),
        world(
            "branches of one owner",
            &[(1, section), (1, section), (2, section)],
            Budget {
                cancels: 1,
                ..NOTHING
            },
        ),
        world(
            "attempts at once",
            &[(1, section), (2, &[TryLock, Drop]), (3, section)],
            NOTHING,
        ),
        world(
            "unlocks that overlap",
            &[(1, &[Lock, Lock, Unlock]), (1, &[Lock, Unlock])],
            NOTHING,
        ),
        world(
            "a drop and an unlock that overlap",
            &[(1, &[Lock, Lock, Unlock]), (1, &[Lock, Drop])],
            NOTHING,
        ),
    ]
}

/// Leases that end, and renewals.
fn in_time() -> Vec<World> {
    let section: &[Verb] = &[Lock, Unlock];
    vec![
        world(
            "leases",
            &[(1, &[Lock, LockFixed, Unlock, Drop])],
            Budget {
                losses: 1,
                ticks: 3,
                ..NOTHING
            },
        ),
        world(
            "expiry",
            &[(1, &[LockFixed, Unlock]), (2, section)],
            Budget {
                ticks: 2,
                ..NOTHING
            },
        ),
        world(
            "an outer hold ends under a nested call",
            &[(1, &[LockFixed, Lock, Drop, Drop])],
            Budget {
                ticks: 3,
                losses: 1,
                ..NOTHING
            },
        ),
        world(
            "a renewal that comes too late",
            &[(1, &[Lock, Unlock, Lock, Unlock])],
            Budget {
                ticks: 1,
                losses: 1,
                ..NOTHING
            },
        ),
    ]
}

/// Other processes, detached holds, and the end of the client.
fn with_others() -> Vec<World> {
    let nested: &[Verb] = &[Lock, Lock, Unlock, Drop];
    let section: &[Verb] = &[Lock, Unlock];
    vec![
        world(
            "another process",
            &[(1, section), (2, section)],
            Budget {
                foreign: 1,
                cancels: 1,
                ticks: 1,
                ..NOTHING
            },
        ),
        world(
            "wiped",
            &[(1, nested), (2, section)],
            Budget {
                wipes: 1,
                ticks: 1,
                ..NOTHING
            },
        ),
        world(
            "detached",
            &[(1, &[Lock, Detach, Lock, Drop]), (2, section)],
            Budget {
                losses: 1,
                ..NOTHING
            },
        ),
        world(
            "closing",
            &[(1, section), (2, section)],
            Budget {
                closes: 1,
                cancels: 1,
                losses: 1,
                ..NOTHING
            },
        ),
    ]
}

/// The larger ones.
pub fn deep() -> Vec<World> {
    let nested: &[Verb] = &[Lock, Lock, Unlock, Drop];
    let section: &[Verb] = &[Lock, Unlock];
    let once_each = Budget {
        losses: 1,
        cancels: 1,
        ..NOTHING
    };
    let mut worlds = vec![
        world(
            "leases, longer",
            &[(1, &[Lock, LockFixed, Unlock, Drop])],
            Budget {
                losses: 1,
                ticks: 5,
                ..NOTHING
            },
        ),
        world(
            "expiry, longer",
            &[(1, &[LockFixed, Unlock]), (2, section)],
            Budget {
                ticks: 3,
                ..NOTHING
            },
        ),
        world(
            "max_hold, longer",
            &[(1, &[LockLimited, Unlock]), (2, section)],
            Budget {
                ticks: 3,
                ..NOTHING
            },
        ),
        world(
            "attempts at once in time, longer",
            &[(1, section), (2, &[TryLock, Unlock])],
            Budget {
                ticks: 2,
                ..NOTHING
            },
        ),
        world("two owners, nested", &[(1, nested), (2, nested)], once_each),
        world(
            "two owners in time",
            &[(1, section), (2, section)],
            Budget {
                ticks: 1,
                foreign: 1,
                ..once_each
            },
        ),
        world(
            "three owners with a loss",
            &[(1, section), (2, section), (3, section)],
            once_each,
        ),
    ];
    worlds.extend(handed_over::deep());
    worlds
}

//! The worlds that are explored to their end.

mod fair;
mod handed_over;
mod kinds;
mod larger;
mod of_kind;
mod read_write;
mod replicated;

use redisson_lock_core::{Discipline, HandOff};

pub use larger::deep;

use super::Verb::{Detach, Drop, Lock, LockFixed, TryLock, Unlock};
use super::coverage::Reached;
use super::{Budget, Traits, Verb, World};

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
    lags: 0,
    crowds: 0,
};

macro_rules! at_most {
    ($($what:ident),*) => {
        impl Budget {
            $(const fn $what(self, $what: u8) -> Self {
                Self { $what, ..self }
            })*
        }
    };
}

at_most!(
    losses, cancels, ticks, foreign, wipes, closes, refusals, forces, ends, lags, crowds
);

fn world(name: &'static str, callers: &[(i64, &[Verb])], budget: Budget) -> World {
    let callers = callers
        .iter()
        .map(|(owner, verbs)| (*owner, verbs.to_vec()))
        .collect();
    World {
        name,
        kind: Traits::PLAIN,
        discipline: Discipline::Plain,
        callers,
        budget,
        handoff: HandOff::off(),
        replicas: 0,
        has_fence: true,
        reached: Reached::leaked(),
    }
}

/// What CI explores, together in half a minute. Whatever can come while whatever is under way, comes in
/// one of them.
pub fn all() -> Vec<World> {
    [
        beside_each_other(),
        in_time(),
        released(),
        with_others(),
        kinds::kinds(),
        handed_over::handed_over(),
        replicated::replicated(),
        of_kind::of_kind(),
        fair::fair(),
        read_write::read_write(),
    ]
    .concat()
}

/// Owners, calls and losses, while no time passes.
fn beside_each_other() -> Vec<World> {
    let nested: &[Verb] = &[Lock, Lock, Unlock, Drop];
    let section: &[Verb] = &[Lock, Unlock];
    vec![
        world("nested", &[(1, nested)], NOTHING.losses(2).cancels(2)),
        world(
            "two owners",
            &[(1, section), (2, section)],
            NOTHING.losses(1).cancels(1),
        ),
        world(
            "nested beside another",
            &[(1, nested), (2, section)],
            NOTHING,
        ),
        world(
            "three owners",
            &[(1, section), (2, section), (3, &[Lock, Drop])],
            NOTHING,
        ),
        world(
            "branches of one owner",
            &[(1, section), (1, section)],
            NOTHING.cancels(1).losses(1),
        ),
        world(
            "immediate attempts",
            &[(1, section), (2, &[TryLock, Drop])],
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
    vec![
        world(
            "leases",
            &[(1, &[Lock, LockFixed, Unlock, Drop])],
            NOTHING.ticks(2),
        ),
        world(
            "expiry",
            &[(1, &[LockFixed]), (2, &[Lock])],
            NOTHING.ticks(2),
        ),
        world(
            "an outer hold ends under a nested call",
            &[(1, &[LockFixed, Lock, Drop])],
            NOTHING.ticks(2).losses(1),
        ),
        world(
            "a renewal that comes too late",
            &[(1, &[Lock, Unlock, Lock, Unlock])],
            NOTHING.ticks(1).losses(1),
        ),
    ]
}

/// Releases whose sends fail, or for which there is no room.
fn released() -> Vec<World> {
    vec![
        world(
            "no room for a release",
            &[(1, &[Lock, Lock, Drop, Unlock]), (2, &[Lock, Drop])],
            NOTHING.crowds(2),
        ),
        world(
            "no room, and no connection",
            &[(1, &[Lock, Lock, Drop, Unlock])],
            NOTHING.crowds(1).losses(2).ticks(1),
        ),
        world(
            "a release that gives up",
            &[(1, &[Lock, Drop]), (2, &[Lock])],
            NOTHING.losses(2).ticks(2),
        ),
        world(
            "unlocks behind a release that fails",
            &[(1, &[Lock, Lock, Drop, Unlock]), (1, &[Lock, Unlock])],
            NOTHING.losses(2).refusals(1),
        ),
        world(
            "the end beside a release that waits",
            &[(1, &[Lock, Lock, Drop, Unlock])],
            NOTHING.crowds(1).losses(1).ends(1),
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
            NOTHING.foreign(1),
        ),
        world("wiped", &[(1, nested), (2, &[Lock])], NOTHING.wipes(1)),
        world(
            "detached",
            &[(1, &[Lock, Detach, Lock, Drop]), (2, section)],
            NOTHING.losses(1),
        ),
        world(
            "closing",
            &[(1, section), (2, &[Lock])],
            NOTHING.closes(1).cancels(1),
        ),
    ]
}

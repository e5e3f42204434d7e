//! Worlds of spin, fenced and string locks, where they differ from plain ones. And of connections that are replaced
//! without a fence, for all of them.

use std::time::Duration;

use redisson_lock_core::HandOff;

use super::super::Verb::{Drop, Lock, LockFixed, TryLock, Unlock};
use super::super::{Traits, Verb, World};
use super::handed_over::handing_over;
use super::{NOTHING, world};

const SECTION: &[Verb] = &[Lock, Unlock];
const NESTED: &[Verb] = &[Lock, Lock, Unlock, Drop];

pub(super) fn of_kind() -> Vec<World> {
    let kinds = [
        (Traits::SPIN, spin()),
        (Traits::FENCED, fenced()),
        (Traits::STRING, string()),
    ];
    let worlds = kinds
        .into_iter()
        .flat_map(|(kind, worlds)| worlds.into_iter().map(move |world| World { kind, ..world }));
    worlds.chain(late()).collect()
}

/// Without messages: a caller that found the lock held attempts again whenever its pause may be over.
fn spin() -> Vec<World> {
    vec![
        world(
            "spin: two owners",
            &[(1, SECTION), (2, SECTION)],
            NOTHING.losses(1),
        ),
        world(
            "spin: nested beside another",
            &[(1, NESTED), (2, SECTION)],
            NOTHING,
        ),
        world(
            "spin: another process",
            &[(1, SECTION), (2, SECTION)],
            NOTHING.foreign(1),
        ),
        handing_over(world(
            "spin: handed over, with a loss",
            &[(1, SECTION), (2, SECTION)],
            NOTHING.losses(1),
        )),
    ]
}

/// With a token: that of each new holder is larger than all before.
fn fenced() -> Vec<World> {
    vec![
        world(
            "fenced: nested beside another",
            &[(1, NESTED), (2, SECTION)],
            NOTHING.losses(1),
        ),
        world(
            "fenced: branches of one owner",
            &[(1, SECTION), (1, SECTION)],
            NOTHING.losses(1).cancels(1),
        ),
        world(
            "fenced: a lease ends",
            &[(1, &[LockFixed]), (2, &[TryLock])],
            NOTHING.ticks(1),
        ),
        world(
            "fenced: wiped",
            &[(1, &[TryLock, Unlock]), (2, &[TryLock])],
            NOTHING.wipes(1),
        ),
        handing_over(world(
            "fenced: handed over, with a loss",
            &[(1, SECTION), (2, SECTION)],
            NOTHING.losses(1),
        )),
        handing_over(world(
            "fenced: handed on and on",
            &[(1, SECTION), (2, SECTION), (3, &[Lock])],
            NOTHING,
        )),
        handing_over(world(
            "fenced: handed over to a nested call",
            &[(1, SECTION), (2, &[Lock, Lock, Drop])],
            NOTHING.cancels(1),
        )),
        handing_over(world(
            "fenced: a pass is refused beside another process",
            &[(1, SECTION), (2, &[Lock])],
            NOTHING.foreign(1).refusals(1),
        )),
    ]
}

/// With a value for each acquisition, nothing nested, and no messages.
fn string() -> Vec<World> {
    vec![
        world(
            "string: nested beside another",
            &[(1, NESTED), (2, SECTION)],
            NOTHING.losses(1),
        ),
        world(
            "string: branches of one owner",
            &[(1, SECTION), (1, SECTION)],
            NOTHING.losses(1).cancels(1),
        ),
        world(
            "string: a lease ends",
            &[(1, &[LockFixed]), (2, &[TryLock])],
            NOTHING.ticks(1),
        ),
        handing_over(world(
            "string: handed over, with a loss",
            &[(1, SECTION), (2, SECTION)],
            NOTHING.losses(1),
        )),
        handing_over(world(
            "string: handed over by a drop",
            &[(1, &[Lock, Drop]), (2, &[Lock])],
            NOTHING.cancels(1).forces(1),
        )),
        handing_over(world(
            "string: handed back",
            &[(1, &[Lock, Unlock, Lock, Unlock]), (2, SECTION)],
            NOTHING,
        )),
        handing_over(world(
            "string: a pass is refused beside another process",
            &[(1, SECTION), (2, &[Lock])],
            NOTHING.foreign(1).refusals(1),
        )),
    ]
}

/// A connection is lost, and what was on it is executed later.
fn late() -> Vec<World> {
    let kinds = [
        (Traits::PLAIN, "a release that is late"),
        (Traits::FENCED, "fenced: a release that is late"),
        (Traits::STRING, "string: a release that is late"),
    ];
    let late = |(kind, name)| World {
        kind,
        has_fence: false,
        ..world(
            name,
            &[(1, &[Lock, Unlock, Lock, Unlock]), (2, &[TryLock])],
            NOTHING.losses(1),
        )
    };
    kinds.map(late).into()
}

/// Larger ones, for `cargo xtask explore --deep`.
pub(super) fn longer() -> Vec<World> {
    let streak = world(
        "spin: stands back after a streak",
        &[(1, SECTION), (2, SECTION), (3, &[Lock])],
        NOTHING.ticks(1),
    );
    let fenced = world(
        "fenced: branches of one owner, longer",
        &[(1, SECTION), (1, SECTION)],
        NOTHING.losses(1).cancels(1).ticks(1),
    );
    let string = world(
        "string: handed back, longer",
        &[(1, &[Lock, Unlock, Lock, Unlock]), (2, SECTION)],
        NOTHING.losses(1).cancels(1),
    );
    let late = world(
        "string: a release that is late, longer",
        &[(1, &[Lock, Unlock, Lock, Unlock]), (2, SECTION)],
        NOTHING.losses(1).cancels(1),
    );
    vec![
        World {
            kind: Traits::SPIN,
            handoff: HandOff {
                passes: 1,
                longest: Duration::from_secs(60),
            },
            ..streak
        },
        World {
            kind: Traits::FENCED,
            ..fenced
        },
        World {
            kind: Traits::STRING,
            ..handing_over(string)
        },
        World {
            kind: Traits::STRING,
            has_fence: false,
            ..late
        },
    ]
}

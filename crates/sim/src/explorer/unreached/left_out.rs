//! What can be, and is left out: each is a step that other worlds take beside something else.

use super::super::coverage::{Input as I, Row as R};
use super::Unreached;

pub(super) const LEFT_OUT: &[Unreached] = &[
    (
        &[R::NestedThenRelease, R::AloneThenRelease],
        &[I::JoinsAtOnce, I::AsksAtOnce],
        NO_WORLD,
    ),
    (
        &[R::NestedThenRelease, R::Unlocks],
        &[I::Leaves, I::RenewUnknown],
        NO_WORLD,
    ),
    (&[R::AloneThenRelease], &[I::Leaves], NO_WORLD),
    (&[R::NestedAtOnce, R::Unlocks], &[I::UnlockLost], NO_WORLD),
    (
        &[
            R::Acquire,
            R::AtOnce,
            R::Nested,
            R::NestedAtOnce,
            R::NestedThenRelease,
            R::Alone,
            R::Unlock,
            R::Unlocks,
        ],
        &[I::UnlockNothing],
        NO_WORLD,
    ),
    (&[R::NestedAtOnce], &[I::DropEnded], NO_WORLD),
    (
        &[R::NestedAtOnce, R::NestedThenRelease],
        &[I::Detach, I::Claim],
        NO_WORLD,
    ),
    (
        &[
            R::Nested,
            R::NestedAtOnce,
            R::NestedThenRelease,
            R::AloneThenRelease,
            R::Unlock,
            R::LastUnlock,
            R::Unlocks,
            R::Job,
            R::UnlockAndJob,
        ],
        &[I::DetachLost],
        NO_WORLD,
    ),
    (
        &[R::Alone, R::AloneThenRelease, R::UnlockAndJob],
        &[I::ClaimLost],
        NO_WORLD,
    ),
    (
        &[R::AtOnce, R::NestedAtOnce, R::Unlocks],
        &[I::ClaimNothing],
        NO_WORLD,
    ),
    (
        &[
            R::AtOnce,
            R::NestedAtOnce,
            R::NestedThenRelease,
            R::Alone,
            R::AloneThenRelease,
            R::Unlocks,
            R::LastUnlocks,
            R::UnlockAndJob,
            R::UnlockAndJobInSync,
        ],
        &[I::UnlockLate],
        NO_WORLD,
    ),
    (
        &[
            R::AtOnce,
            R::NestedAtOnce,
            R::NestedThenRelease,
            R::AloneThenRelease,
            R::Unlocks,
            R::LastUnlocks,
            R::UnlockAndJob,
            R::UnlockAndJobInSync,
        ],
        &[I::UnlockUnknownLate],
        NO_WORLD,
    ),
    (&[R::AtOnce], &[I::TimerFires], NO_WORLD),
    (
        &[R::NestedAtOnce, R::NestedThenRelease, R::Unlocks],
        &[I::RenewLost],
        NO_WORLD,
    ),
    (
        &[
            R::AtOnce,
            R::NestedAtOnce,
            R::NestedThenRelease,
            R::Alone,
            R::AloneThenRelease,
            R::Unlocks,
        ],
        &[I::RenewLate],
        NO_WORLD,
    ),
    (
        &[
            R::NestedAtOnce,
            R::NestedThenRelease,
            R::Unlocks,
            R::LastUnlocks,
            R::JobRaced,
            R::UnlockAndJob,
            R::UnlockAndJobInSync,
        ],
        &[I::ExtendBegins, I::Extended],
        NO_WORLD,
    ),
    (
        &[
            R::NestedAtOnce,
            R::NestedThenRelease,
            R::Unlocks,
            R::JobRaced,
            R::UnlockAndJob,
            R::UnlockAndJobInSync,
        ],
        &[I::ExtendLost],
        NO_WORLD,
    ),
    (&[R::Gone, R::Closed], &[I::Forced], NO_WORLD),
    (
        &[R::NestedThenRelease, R::Unlocks, R::Gone, R::Closed],
        &[I::ForcedLate],
        NO_WORLD,
    ),
    (
        &[R::NestedThenRelease, R::Closing, R::Gone],
        &[I::LeaseOver],
        NO_WORLD,
    ),
    (
        &[R::NestedAtOnce, R::UnlockAndJobInSync],
        &[I::NotRenewed],
        NO_WORLD,
    ),
    (
        &[
            R::Unlocks,
            R::JobRaced,
            R::UnlockAndJob,
            R::UnlockAndJobInSync,
            R::Closing,
            R::Gone,
        ],
        &[I::MaxHold],
        NO_WORLD,
    ),
    (
        &[
            R::AtOnce,
            R::NestedThenRelease,
            R::AloneThenRelease,
            R::Unlocks,
            R::Passes,
            R::JobPasses,
            R::Receives,
            R::ReceivesThenRelease,
            R::Given,
        ],
        &[I::AcquireLate],
        NO_WORLD,
    ),
    (
        &[R::NestedAtOnce, R::Alone, R::Unlocks],
        &[I::RuntimeEnds],
        NO_WORLD,
    ),
];

pub(super) const NO_WORLD: &str = "no small world has them meet";

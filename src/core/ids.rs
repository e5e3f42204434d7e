//! Numbers that mean one thing each, and instants without a clock.

use std::num::NonZeroU64;
use std::ops::{Add, Sub};
use std::time::Duration;

/// Tells the owners of one client apart; the second half of the hash field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadId(pub i64);

/// A call that wants the lock. Smaller ones came first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId(pub(super) u64);

/// One hold, from its acquisition until its owner has seen its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HoldId(pub(super) u64);

/// An unbroken time in which one owner holds the lock: what a renewal's answer is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub(super) u64);

/// One operation of one owner. An answer that comes for another one is too late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub(super) u64);

/// Hands out all of these numbers for one lock.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Ids {
    last: u64,
}

impl Ids {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub(super) fn waiter(&mut self) -> WaiterId {
        WaiterId(self.next())
    }

    pub(super) fn hold(&mut self) -> HoldId {
        HoldId(self.next())
    }

    pub(super) fn generation(&mut self) -> Generation {
        Generation(self.next())
    }

    pub(super) fn op(&mut self) -> OpId {
        OpId(self.next())
    }
}

/// An instant, as the time since the client was made, in nanoseconds: enough for five centuries. One
/// more than that, so that an instant which may be missing takes no more room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(NonZeroU64);

impl Time {
    pub const START: Self = Self(NonZeroU64::MIN);

    pub fn after_start(since: Duration) -> Self {
        Self::START + since
    }

    pub fn since_start(self) -> Duration {
        self.since(Self::START)
    }

    /// Zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.get().saturating_sub(earlier.0.get()))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(nanos(time)))
    }
}

impl Sub<Duration> for Time {
    type Output = Self;

    fn sub(self, time: Duration) -> Self {
        let nanos = self.0.get().saturating_sub(nanos(time));
        NonZeroU64::new(nanos).map_or(Self::START, Self)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Goes through every number and every instant of a core, for the explorer: states that differ only
/// in those are the same to it.
#[cfg(feature = "test-util")]
pub trait Visitor {
    fn id(&mut self, id: &mut u64);

    /// The last number that was handed out.
    fn last_id(&mut self, id: &mut u64);

    fn time(&mut self, time: &mut Time);
}

#[cfg(feature = "test-util")]
impl Ids {
    pub(super) fn visit(&mut self, visitor: &mut impl Visitor) {
        visitor.last_id(&mut self.last);
    }
}

macro_rules! visited {
    ($($id:ident),*) => {
        $(#[cfg(feature = "test-util")]
        impl $id {
            pub fn visit(&mut self, visitor: &mut impl Visitor) {
                visitor.id(&mut self.0);
            }
        })*
    };
}

visited!(WaiterId, HoldId, Generation, OpId);

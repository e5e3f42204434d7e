//! Numbers that mean one thing each, and instants without a clock.

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

/// An instant, as the time since the client was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(Duration);

impl Time {
    pub const START: Self = Self(Duration::ZERO);

    pub fn after_start(since: Duration) -> Self {
        Self(since)
    }

    pub fn since_start(self) -> Duration {
        self.0
    }

    /// Zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }
}

impl Sub<Duration> for Time {
    type Output = Self;

    fn sub(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(time))
    }
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

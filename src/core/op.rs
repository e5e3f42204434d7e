//! The operation that is under way for one owner of a lock.
//!
//! | in | when | goes to |
//! |---|---|---|
//! | `Idle` | admitted; another owner passes the lock on | `Acquire` |
//! | | unlock | `Release { direct: 1 }`, with a `pass` if its send hands the lock on |
//! | | guard dropped | `Release { job }` |
//! | `Acquire` | answered: has the count that was asked for, refused, busy | `Idle` |
//! | | answered too late or unwanted; no answer; future dropped | `Release { job }` |
//! | | guard dropped | `Acquire { then_release }`, whose end is `Release { job }` |
//! | | unlock | stays; the unlock waits |
//! | `Release { direct: n }` | unlock | `Release { direct: n + 1 }` |
//! | | one of them is answered | `Release { direct: n - 1 }`; `Idle` behind the last |
//! | | the last is answered, sends overlapped, holds stay | `Release { job }` |
//! | | no answer; future dropped | `Release { direct: n - 1, job }` |
//! | | futures not polled while others wait | `Release { job }`, under another id |
//! | | guard dropped | `Release { direct: n, job }` |
//! | `Release { direct: n, job }` | as without the job, and | |
//! | | Redis has the count, or the lease is over | `Release { direct: n }`; `Idle` if n is 0 |
//!
//! An unlock that comes during `Acquire` waits, outside of the core, until that has ended. A guard
//! that is dropped meanwhile does not: the acquire is marked (`then_release`).
//!
//! Invariants: I2 (at most one acquire, and none while a release is under way) holds by
//! construction. I3: in `Idle` Redis has the count that `Tenure::target` says, unless the lease has
//! ended it, or Redis refuses releases for good (a missing permission).

use std::sync::Arc;
use std::time::Duration;

use super::queue::Order;
use super::values::{OpId, ThreadId, Time, WaiterId};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Op {
    Idle,
    Acquire(Acquire),
    Release(Release),
}

/// An acquire that may have been sent.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Acquire {
    pub(super) id: OpId,
    /// The call that it is made for. When another owner passes the lock on, it has a hold only when it has
    /// picked the lock up: until then it is not renewed.
    pub(super) waiter: WaiterId,
    pub(super) order: Order,
    /// The count to go to.
    pub(super) target: u32,
    /// What is asked for: if the outcome stays unknown, the server frees the lock after this.
    pub(super) lease: Duration,
    /// How often the owner had lost holds when it began.
    pub(super) losses: u64,
    /// A hold was dropped or lost meanwhile, or its caller left: a job has to follow.
    pub(super) then_release: bool,
    /// It is another owner's pass that takes the lock.
    pub(super) grant: Option<Grant>,
}

/// An attempt of one that queues, by an owner that holds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Attempt {
    pub(super) waiter: WaiterId,
    pub(super) owner: ThreadId,
    pub(super) op: OpId,
}

#[cfg(feature = "test-util")]
impl Attempt {
    pub(super) fn visit(&mut self, visitor: &mut impl super::Visitor) {
        self.waiter.visit(visitor);
        self.op.visit(visitor);
    }
}

/// A lock that is handed to a waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Grant {
    /// The pass has no answer yet.
    Awaited,
    /// It has none, and the field that it has moved was taken away again.
    Forced,
    /// The field is there. Whoever has not picked it up by `until` does not poll its call.
    Given {
        sent_at: Time,
        until: Time,
    },
    PickedUp,
}

/// Releases that are under way: by callers who wait for the answer, by a job in the background, or
/// by both.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Release {
    pub(super) id: OpId,
    /// Unlocks whose callers wait.
    pub(super) direct: u32,
    pub(super) job: Option<Job>,
    /// Sends were under way at once: in which order the server executed them is not known.
    pub(super) raced: bool,
    /// Sends that said 0, less those that are known to have freed nothing: they were answered that the
    /// field was gone, refused, or not sent. One of the others may have freed the lock.
    pub(super) freeing_sends: u32,
    /// Its sends do not free the lock but hand it to another owner.
    pub(super) pass: Option<Pass>,
    /// It began behind an acquire that has no answer: there may be nothing to hand over.
    pub(super) undoes: bool,
}

/// A pass that is under way. It occupies both owners: the receiver with an acquire.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Pass {
    pub(super) to: ThreadId,
    /// The acquire of the receiver.
    pub(super) op: OpId,
}

impl Release {
    /// Nobody is at it yet.
    pub(super) fn new(id: OpId) -> Self {
        Self {
            id,
            direct: 0,
            job: None,
            raced: false,
            freeing_sends: 0,
            pass: None,
            undoes: false,
        }
    }

    /// Nothing that it has sent can have freed the lock, and nobody else is at it.
    pub(super) fn is_first_send(&self) -> bool {
        let at_it = self.direct + u32::from(self.job.is_some());
        self.freeing_sends == 0 && !self.raced && at_it == 1
    }
}

/// An unlock that is under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Unlock {
    pub owner: ThreadId,
    pub op: OpId,
    pub field: Arc<str>,
    /// The local deadline when it began.
    pub deadline: Time,
}

/// The background job of an owner. It knows no history: each of its sends says the count of its
/// moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Job {
    /// The count in Redis is known to be the target.
    pub(super) in_sync: bool,
    /// The longest lease after the job was last asked for, or a hold taken out: by then the server has
    /// freed what is left.
    pub(super) give_up_at: Time,
}

impl Op {
    pub(super) fn acquire(&self) -> Option<&Acquire> {
        match self {
            Self::Acquire(acquire) => Some(acquire),
            Self::Idle | Self::Release(_) => None,
        }
    }

    pub(super) fn acquire_mut(&mut self) -> Option<&mut Acquire> {
        match self {
            Self::Acquire(acquire) => Some(acquire),
            Self::Idle | Self::Release(_) => None,
        }
    }

    pub(super) fn release(&self) -> Option<&Release> {
        match self {
            Self::Release(release) => Some(release),
            Self::Idle | Self::Acquire(_) => None,
        }
    }

    pub(super) fn release_mut(&mut self) -> Option<&mut Release> {
        match self {
            Self::Release(release) => Some(release),
            Self::Idle | Self::Acquire(_) => None,
        }
    }

    pub(super) fn job_mut(&mut self) -> Option<&mut Job> {
        self.release_mut()?.job.as_mut()
    }

    /// A lock that was handed to this owner, and when that is over if it is not picked up.
    pub(super) fn given(&self) -> Option<(WaiterId, Time)> {
        let acquire = self.acquire()?;
        match acquire.grant? {
            Grant::Given { until, .. } => Some((acquire.waiter, until)),
            Grant::Awaited | Grant::Forced | Grant::PickedUp => None,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self, Self::Idle)
    }

    /// An attempt past the queue that changes nothing for those who queue.
    pub(super) fn is_attempt_at_once(&self) -> bool {
        self.acquire()
            .is_some_and(|acquire| acquire.order == Order::AtOnce && !acquire.then_release)
    }

    /// Something is on its way that may lower the count.
    pub(super) fn releases(&self) -> bool {
        match self {
            Self::Idle => false,
            Self::Acquire(acquire) => acquire.then_release,
            Self::Release(_) => true,
        }
    }

    /// Acquires and releases under way, as `close` counts them.
    pub(super) fn under_way(&self) -> (u32, u32) {
        match self {
            Self::Idle => (0, 0),
            Self::Acquire(acquire) => (1, u32::from(acquire.then_release)),
            Self::Release(release) => (0, release.direct + u32::from(release.job.is_some())),
        }
    }
}

#[cfg(feature = "test-util")]
impl Op {
    pub(super) fn visit(&mut self, visitor: &mut impl super::Visitor) {
        match self {
            Self::Idle => {}
            Self::Acquire(acquire) => {
                acquire.id.visit(visitor);
                acquire.waiter.visit(visitor);
                if let Some(Grant::Given { sent_at, until }) = &mut acquire.grant {
                    visitor.time(sent_at);
                    visitor.time(until);
                }
            }
            Self::Release(release) => {
                release.id.visit(visitor);
                let pass = release.pass.iter_mut();
                pass.for_each(|pass| pass.op.visit(visitor));
                // The core only passes it on.
                let job = release.job.iter_mut();
                job.for_each(|job| job.give_up_at = Time::START);
            }
        }
    }
}

/// What is under way for an owner, for the explorer: it counts which inputs come while what is.
#[cfg(feature = "test-util")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnderWay {
    Nothing,
    Acquire {
        order: Order,
        target: u32,
        then_release: bool,
        /// It is another owner's pass: whether that was answered, and the lock picked up.
        grant: Option<Granted>,
    },
    Release {
        direct: u32,
        /// A job is at it; whether it has nothing left to do.
        in_sync: Option<bool>,
        raced: bool,
        passes: bool,
    },
}

/// How far a pass to an owner has come.
#[cfg(feature = "test-util")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Granted {
    Awaited,
    Given,
    PickedUp,
}

#[cfg(feature = "test-util")]
impl Op {
    /// Every field is named: a new one is to be told apart too, or left out on purpose.
    pub(super) fn view(&self) -> UnderWay {
        match self {
            Self::Idle => UnderWay::Nothing,
            Self::Acquire(Acquire {
                id: _,
                waiter: _,
                order,
                target,
                lease: _,
                losses: _,
                then_release,
                grant,
            }) => UnderWay::Acquire {
                order: *order,
                target: *target,
                then_release: *then_release,
                grant: grant.map(|grant| match grant {
                    Grant::Awaited | Grant::Forced => Granted::Awaited,
                    Grant::Given { .. } => Granted::Given,
                    Grant::PickedUp => Granted::PickedUp,
                }),
            },
            Self::Release(Release {
                id: _,
                direct,
                job,
                raced,
                freeing_sends: _,
                pass,
                undoes: _,
            }) => UnderWay::Release {
                direct: *direct,
                in_sync: job.as_ref().map(
                    |Job {
                         in_sync,
                         give_up_at: _,
                     }| *in_sync,
                ),
                raced: *raced,
                passes: pass.is_some(),
            },
        }
    }
}

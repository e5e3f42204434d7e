//! The operation that is under way for one owner of a lock.
//!
//! | in | when | goes to |
//! |---|---|---|
//! | `Idle` | admitted; another owner passes the lock on | `Acquire` |
//! | | unlock; guard dropped | `Release` |
//! | `Acquire` | answered: refused, busy; claimed by its call, to which the lock was granted | `Idle` |
//! | | answered too late or unwanted; no answer; its call has left, or does not claim it | `Release` |
//! | | unlock; guard dropped | `Acquire { then_release }`, whose end is `Release` |
//! | `Release` | unlock; guard dropped | stays; the next send includes it |
//! | | Redis has the count and each unlock its outcome; the lease is over | `Idle` |
//!
//! A release has at most one send under way. Each says the count of its moment, so a later release is never undone by a late
//! one, and whatever happened before is included. A send that fails is followed by the next after a pause, or as soon as a
//! caller waits for the outcome. The release ends when Redis has confirmed the count or refused it for good, when the lease
//! is over and has done its work, or with the client or its runtime.
//!
//! Invariants: I2 (at most one acquire, and none while a release is under way) holds by
//! construction. I3: in `Idle` Redis has the count that `Tenure::target` says, unless the lease has
//! ended it, or Redis refuses releases for good (a missing permission).

use super::queue::Order;
use std::sync::Arc;
use std::time::Duration;

use super::values::{Carrier, LossReason, Nanos, OpId, OwnerKey, Time, Token, WaiterId};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Op {
    Idle,
    Acquire(Acquire),
    Release(Release),
}

/// An acquire. It is sent by the step that admits its call, or on its long way; its answer grants the lock to the call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Acquire {
    pub(super) id: OpId,
    /// The call that it is made for. It has a hold only when it has claimed the lock: until then it is not renewed.
    pub(super) waiter: WaiterId,
    /// A copy of it has entered a connection.
    pub(super) is_sent: bool,
    /// It is another owner's pass that takes the lock.
    pub(super) is_passed: bool,
    pub(super) order: Order,
    /// The count to go to.
    pub(super) target: u32,
    /// What is asked for: if the outcome stays unknown, the server frees the lock after this.
    pub(super) lease: Nanos,
    /// Holds of its owner were lost meanwhile.
    pub(super) has_lost: bool,
    /// A hold was released meanwhile, or its caller left: a release has to follow.
    pub(super) then_release: bool,
    /// Others have changed the lock meanwhile, after it was acquired perhaps.
    pub(super) is_reported: bool,
    /// A busy reply leaves its owner a place in the server's queue.
    pub(super) queues_up: bool,
    /// The owner's hold with the face that writes, if it is to read.
    pub(super) around: EnclosingWrite,
    /// What its call gets. `None`: an acquire of its own has no answer yet.
    pub(super) grant: Option<Grant>,
}

/// The write hold of the same owner, if it reads inside of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum EnclosingWrite {
    None,
    /// It had one when the acquire began, and has not lost it since.
    Held,
    Lost(LossReason),
}

/// A lock that a call gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Grant {
    /// The pass has no answer yet.
    Awaited,
    /// No reply yet, but the field that it has moved was removed again by a forced unlock.
    Revoked,
    /// The field is there. A call that has not claimed it by `until` is not polled.
    Given {
        sent_at: Time,
        until: Time,
        token: Option<Token>,
    },
}

/// A release that is under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Release {
    pub(super) id: OpId,
    /// The count in Redis is known to be the target.
    pub(super) in_sync: bool,
    /// The longest lease after the release was last asked for: by then the server has freed what is left.
    pub(super) give_up_at: Time,
    /// The latest send, until it is answered or known to be lost.
    pub(super) sent: Option<Sent>,
    /// A send that said 0 has no answer, and may have freed the lock before the lease was over: a field that
    /// is gone is no loss then.
    pub(super) maybe_freed: bool,
    /// Its next send may hand the lock to another owner. Not after an acquire without an answer, when there
    /// may be nothing to hand over, nor after a send without one.
    pub(super) may_pass: bool,
    /// Its send does not free the lock but hands it to another owner.
    pub(super) pass: Option<Pass>,
    pub(super) stage: ReleaseStage,
    /// A send of it has begun.
    pub(super) has_begun: bool,
    /// Since a send has failed. Nearly no release has room for it.
    pub(super) failing: Option<Box<Failing>>,
}

/// What a release does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ReleaseStage {
    /// Its send is under way, or the shell finds the way for it.
    Sending,
    /// The latest send has failed. The next is made then, or as soon as a caller waits for the outcome.
    Paused { until: Time },
    /// Too many releases are under way. The next send is made when there is room, or as soon as a caller waits for the outcome.
    NoRoom,
}

/// What is known of a release whose sends fail.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Failing {
    /// How long the next pause is.
    pub(super) pause: Duration,
    /// How the latest send has failed, in the words of the shell.
    pub(super) text: Arc<str>,
    pub(super) before: Before,
}

/// What was sent before a release, for its owner: an acquire without an answer, or a hand-off. It is executed when the server
/// comes to it, however late, and its lease begins then. So no clock ends the release while it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Before {
    /// The connection that may carry it still, when the release has failed first.
    carrier: Option<Carrier>,
    /// All of it has been answered.
    is_answered: bool,
    is_over: bool,
}

impl Before {
    fn new(carrier: Option<Carrier>) -> Self {
        Self {
            carrier,
            is_answered: false,
            is_over: false,
        }
    }

    /// Whether it may have been executed, or may still be, since this was asked last. `carrier`: the connection that carries
    /// the commands now.
    pub(super) fn may_run(&mut self, carrier: Option<Carrier>) -> bool {
        let may_run = !self.is_over;
        if may_run {
            self.is_over = self.is_answered || carrier.is_some() && carrier != self.carrier;
        }
        may_run
    }
}

/// A send that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Sent {
    pub(super) target: u32,
    /// It was built before the lease was over.
    pub(super) in_time: bool,
    /// It gives the owner's place in the server's queue up.
    pub(super) leaves: bool,
}

/// A pass that is under way. It occupies both owners: the receiver with an acquire.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Pass {
    pub(super) to: OwnerKey,
    /// The acquire of the receiver.
    pub(super) op: OpId,
}

/// The outcome of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Passed {
    /// The receiver has the field.
    Moved {
        sent_at: Time,
        token: Option<Token>,
    },
    NotExecuted,
    Unknown,
}

/// A hold that was released, and of which no answer says whether it was still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Unlock {
    pub(super) progress: Unlocking,
    /// A caller waits for it. Otherwise a guard was dropped: it fails with no attempt, but with the release.
    pub(super) awaited: bool,
}

/// How far an unlock has come that has no outcome yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Unlocking {
    /// It has joined the release during an attempt, or waits for an acquire.
    Joined,
    /// A send of the attempt under way includes it, but the attempt had begun before.
    Sent,
    /// The attempt under way is made for it: it has its outcome with that.
    Attempted,
}

impl Release {
    pub(super) fn new(id: OpId, give_up_at: Time) -> Self {
        Self {
            id,
            in_sync: false,
            give_up_at,
            sent: None,
            maybe_freed: false,
            may_pass: true,
            pass: None,
            stage: ReleaseStage::Sending,
            has_begun: false,
            failing: None,
        }
    }

    /// A send has failed, so. A refusal over a connection is the answer to all that was sent over it before, unless it is that
    /// of the next connection. Returns how long to wait before the next one.
    pub(super) fn note_failed(
        &mut self,
        text: &Arc<str>,
        is_refusal: bool,
        carrier: Option<Carrier>,
        first_pause: Duration,
    ) -> Duration {
        let failing = self.failing.get_or_insert_with(|| {
            Box::new(Failing {
                pause: first_pause,
                text: Arc::clone(text),
                before: Before::new(carrier),
            })
        });
        failing.text = Arc::clone(text);
        failing.before.is_answered |= is_refusal && carrier.is_some();
        let pause = failing.pause;
        failing.pause = (pause * 2).min(first_pause * 50);
        pause
    }

    /// Its send has no answer, and another one follows, or none.
    pub(super) fn note_unanswered(&mut self) {
        if let Some(sent) = self.sent.take() {
            self.maybe_freed |= sent.target == 0 && sent.in_time;
            self.may_pass = false;
        }
    }
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

    /// When a release makes its next send, if it waits for that.
    pub(super) fn paused_until(&self) -> Option<Time> {
        match self.release()?.stage {
            ReleaseStage::Paused { until } => Some(until),
            ReleaseStage::Sending | ReleaseStage::NoRoom => None,
        }
    }

    /// A lock that was granted to a call of this owner, and when that is over if it is not claimed.
    pub(super) fn given(&self) -> Option<(WaiterId, Time)> {
        let acquire = self.acquire()?;
        match acquire.grant? {
            Grant::Given { until, .. } => Some((acquire.waiter, until)),
            Grant::Awaited | Grant::Revoked => None,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self, Self::Idle)
    }

    /// An attempt that does not queue, and changes nothing for those that do.
    pub(super) fn is_immediate_attempt(&self) -> bool {
        self.acquire().is_some_and(|acquire| {
            acquire.order != Order::Queued && !acquire.then_release && acquire.grant.is_none()
        })
    }

    /// Something is on its way that may lower the count.
    #[cfg(any(debug_assertions, feature = "test-util"))]
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
            Self::Release(_) => (0, 1),
        }
    }
}

#[cfg(feature = "test-util")]
impl Op {
    /// What is under way for an owner, in the words of the explorer: it counts which inputs come while what is.
    /// Every field is named: a new one is to be told apart too, or left out on purpose.
    pub(super) fn words(&self, held: bool, lost: bool, has_place: bool) -> &'static str {
        match self {
            Self::Idle if has_place => "nothing, and it has a place in the server's queue",
            Self::Release(_) if has_place => "a release, it has a place in the server's queue",
            Self::Idle if held => "nothing, and it holds",
            Self::Idle if lost => "nothing, and its hold was lost",
            Self::Idle => "nothing, and it holds nothing",
            Self::Acquire(Acquire {
                id: _,
                waiter: _,
                order,
                target,
                lease: _,
                has_lost: _,
                then_release,
                is_reported: _,
                queues_up: _,
                around,
                grant,
                is_sent: _,
                is_passed: _,
            }) => match (grant, *target > 1, held, then_release, order) {
                (Some(Grant::Given { .. }), ..) => "a lock that was granted to it",
                (_, false, ..) if *around != EnclosingWrite::None => "a read inside of a write",
                (Some(Grant::Awaited | Grant::Revoked), _, _, false, _) => {
                    "a lock being handed to it"
                }
                (Some(Grant::Awaited | Grant::Revoked), _, _, true, _) => {
                    "the same, its call has left"
                }
                (_, false, _, _, Order::Queued) => "an acquire from the queue",
                (_, false, ..) => "an immediate attempt",
                (_, true, true, true, _) => "a nested acquire, a release to follow",
                (_, true, true, false, Order::Queued) => "a nested acquire",
                (_, true, true, false, _) => "a nested immediate attempt",
                (_, true, false, false, _) => "a nested acquire, nothing held any more",
                (_, true, false, true, _) => "the same, a release to follow",
            },
            Self::Release(Release {
                id: _,
                in_sync,
                give_up_at: _,
                sent: _,
                maybe_freed: _,
                may_pass: _,
                pass,
                stage,
                has_begun: _,
                failing: _,
            }) => match (pass, in_sync, held) {
                _ if *stage != ReleaseStage::Sending => "a release that waits before its next send",
                (Some(_), ..) => "a release that hands the lock on",
                (None, true, _) => "a release with nothing left to do",
                (None, false, true) => "a release, others are held",
                (None, false, false) => "a release, nothing held any more",
            },
        }
    }
}

//! What a step of the core leaves to be done when the mutex is free.
//!
//! What is done with it may come late, twice, or in another order than it was produced. What may not
//! is a fact, and stands in the core or is written down under the mutex: how a hold ended, when a timer
//! is due, what is under way.

use std::sync::Arc;

use smallvec::SmallVec;

use super::hold::Ending;
use super::ids::{HoldId, OpId, ThreadId, WaiterId};
use crate::error::LossReason;

/// The effects of one step, by kind. Timers are set first; the others follow in the order of the fields.
#[derive(Debug, Default, Clone, PartialEq, Eq, Hash)]
pub struct Effects {
    /// Holds that have ended. How is a fact: the shell writes it down before it frees the mutex, and
    /// wakes those who wait for it afterwards.
    pub ended: SmallVec<[(HoldId, Ending); 1]>,
    /// Owners whose timer has changed. When it is due is read when the timer is set.
    pub timers: SmallVec<[ThreadId; 2]>,
    /// Waiters that may be able to go on.
    pub woken: SmallVec<[WaiterId; 2]>,
    /// Owners whose acquire has ended, for unlocks that wait for that.
    pub acquires_ended: SmallVec<[ThreadId; 1]>,
    /// Release jobs to spawn.
    pub jobs: Vec<(ThreadId, OpId)>,
    pub events: Vec<Event>,
    pub totals: SmallVec<[(Total, u64); 1]>,
}

/// Something that is logged.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    Lost { field: Arc<str>, reason: LossReason },
    RenewalOverdue { field: Arc<str> },
}

/// A running total of [`ClientStats`](crate::ClientStats).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Total {
    Acquired,
    Released,
    Lost,
    GaveUp,
    Passed,
}

impl Effects {
    pub(super) fn wake(&mut self, waiter: WaiterId) {
        self.woken.push(waiter);
    }

    pub(super) fn count(&mut self, total: Total, amount: usize) {
        if amount > 0 {
            self.totals.push((total, amount as u64));
        }
    }
}

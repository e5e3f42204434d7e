//! Unlocks that are under way, and how acquires and releases are sent.

use std::sync::Arc;

use redisson_lock_core::input::{Happens, HoldDowngraded, HoldUnlocked};
use redisson_lock_core::{
    Effects, HoldId, LockCore, LossReason, OpId, OwnerKey, Time, Unlocked, WaiterId,
};
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::{Entry, HoldCells, Outcome, WaitingCall};
use crate::base::runtime::{Job, isolated};
use crate::error::{Error, Operation};
use crate::redis::Unflushed;

/// An unlock that has begun. `Ok(None)`: the hold was released before.
pub(crate) type BegunUnlock = Result<Option<Outcome>, LossReason>;

/// The call of an acquire.
pub(crate) type CallOf<'a> = &'a dyn Fn(WaiterId) -> Option<&'a Arc<WaitingCall>>;

type EnterSend =
    fn(&Arc<Entry>, (&mut LockCore, Time, &mut Effects), CallOf<'_>, (OwnerKey, OpId)) -> SendWay;

/// How acquires and releases are sent.
#[derive(Clone, Copy)]
pub(crate) struct Sends {
    /// Enters a send into its connection, under the lock's mutex.
    pub(crate) enter: EnterSend,
    /// Finds the way for one that could not be entered.
    pub(crate) long_way: fn(Arc<Entry>, OwnerKey, OpId) -> Job,
}

/// What became of a send that was to be entered.
pub(crate) enum SendWay {
    Short(Unflushed),
    /// A task finds the way for it.
    Long,
    /// There is nothing to send.
    Nothing,
}

impl Entry {
    pub(crate) fn unlock(self: &Arc<Self>, owner: OwnerKey, hold: HoldId) -> BegunUnlock {
        self.begin_unlock(hold, HoldUnlocked { owner, hold })
    }

    /// The same, and this call of the owner, which waits to read, gets the lock.
    pub(crate) fn downgrade(
        self: &Arc<Self>,
        owner: OwnerKey,
        hold: HoldId,
        to: WaiterId,
    ) -> BegunUnlock {
        self.begin_unlock(hold, HoldDowngraded { owner, hold, to })
    }

    fn begin_unlock(
        self: &Arc<Self>,
        hold: HoldId,
        unlock: impl Happens<Answer = Result<bool, LossReason>>,
    ) -> BegunUnlock {
        self.step_with(|state, now, out| {
            if !state.core.tell(now, unlock, out)? {
                return Ok(None);
            }
            // Its cell is there before the mutex is free, so that no outcome can be missed.
            let (cell, outcome) = oneshot::channel();
            let cells = state.holds.get_or_insert_with(hold, HoldCells::default);
            cells.unlock = Some(cell);
            Ok(Some(outcome))
        })
    }

    /// Tells the core of something by which unlocks fail, and says why to their callers. Returns whether one of them has heard
    /// it, too.
    pub(crate) fn fail_unlocks<I: Happens>(
        self: &Arc<Self>,
        error: &Error,
        input: I,
    ) -> (bool, I::Answer) {
        let (answer, failed) = self.step_with(|state, now, out| {
            let answer = state.core.tell(now, input, out);
            let failed = out.unlocked.drain(..);
            let failed: SmallVec<[_; 1]> = failed
                .filter_map(|(hold, outcome)| {
                    debug_assert_eq!(outcome, Unlocked::Failed);
                    state.take_of(hold, |cells| cells.unlock.take())
                })
                .collect();
            (answer, failed)
        });
        let mut reported = false;
        for unlock in failed {
            let error = error.for_another_caller(Operation::Unlocking);
            // Its future may be dropped by now.
            isolated(|| reported |= unlock.send(Err(error)).is_ok());
        }
        (reported, answer)
    }
}

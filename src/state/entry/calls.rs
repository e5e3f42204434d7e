//! Calls that want a lock: they join, ask and leave, and hear how their acquires ended.

use std::sync::Arc;

use redisson_lock_core::{
    Admission, Claimed, Effects, LockCore, OpId, Order, OwnerKey, Permit, Rejected, Terms, Time,
    Untaken, WaiterId,
};

use super::{AttemptEnd, CallCells, CallFinds, Entry, Facts, HoldCells, WaitingCall};
use crate::state::hold_status::HoldStatus;

impl Facts {
    fn begin_hold(&mut self, id: WaiterId, claimed: Claimed) -> CallFinds {
        let status = Arc::new(HoldStatus::new(claimed.token));
        let cells = HoldCells {
            status: Some(Arc::clone(&status)),
            ..HoldCells::default()
        };
        self.holds.insert(claimed.hold, cells);
        // Its call has another reference to what is in there, so nothing of it is dropped here.
        self.calls.remove(&id);
        CallFinds::Hold(claimed, status)
    }
}

impl Entry {
    /// Joins the queue.
    pub(crate) fn enqueue(
        self: &Arc<Self>,
        owner: OwnerKey,
        order: Order,
        terms: Terms,
        call: &Arc<WaitingCall>,
    ) -> WaiterId {
        let (call, end) = (Arc::clone(call), None);
        self.step_with(|state, now, _| {
            let id = state.core.enqueue(now, owner, order, terms);
            state.calls.insert(id, CallCells { call, end });
            id
        })
    }

    pub(crate) fn leave(self: &Arc<Self>, id: WaiterId) {
        // A call that has its hold has left with that.
        if self.state.lock().calls.get(&id).is_none() {
            return;
        }
        // What it leaves behind is dropped when the mutex is free.
        let _left = self.step_with(|state, now, out| {
            state.core.leave(now, id, out);
            state.calls.remove(&id)
        });
    }

    /// A call asks: it gets the lock that was granted to it, and has left the queue then; or how its acquire ended, or what it
    /// may do. The status of a hold is there before anything can end it.
    pub(crate) fn ask(
        self: &Arc<Self>,
        id: WaiterId,
        admit: impl FnOnce(&mut LockCore, Time, &mut Effects) -> Result<Admission, Rejected>,
    ) -> Result<CallFinds, Rejected> {
        self.step_with(|state, now, out| {
            if state.core.is_granted(id) {
                match state.core.claim(now, id, out) {
                    Ok(claimed) => return Ok(state.begin_hold(id, claimed)),
                    // In this very step: it asks again.
                    Err(Rejected::GivenBack) => {}
                    Err(rejected) => return Err(rejected),
                }
            }
            let cells = state.calls.get_mut(&id);
            match cells.and_then(|cells| cells.end.take()) {
                Some(end) => {
                    _ = state.core.poll_turn(now, id, out);
                    Ok(CallFinds::Ended(*end))
                }
                None => admit(&mut state.core, now, out).map(CallFinds::Admission),
            }
        })
    }

    /// An acquire has ended without the lock. Its call finds how, unless it has left.
    pub(crate) fn end_attempt(
        self: &Arc<Self>,
        permit: &Permit,
        untaken: Untaken,
        end: impl FnOnce(Rejected) -> AttemptEnd,
    ) {
        // What nobody finds is dropped when the mutex is free.
        let _unseen = self.step_with(|state, now, out| {
            if !state.core.is_attempting(permit) {
                return None;
            }
            let rejected = state.core.untaken(now, permit, untaken, out);
            let end = Box::new(end(rejected));
            match state.calls.get_mut(&permit.waiter) {
                Some(cells) => {
                    out.wake(permit.waiter);
                    cells.end.replace(end)
                }
                None => Some(end),
            }
        });
    }

    /// A step by which the lock is granted to a call, unless it returns what its call finds instead.
    pub(crate) fn take(
        self: &Arc<Self>,
        permit: &Permit,
        run: impl FnOnce(&mut LockCore, Time, &mut Effects) -> Option<AttemptEnd>,
    ) {
        let _unseen = self.step_with(|state, now, out| {
            let end = run(&mut state.core, now, out).map(Box::new)?;
            match state.calls.get_mut(&permit.waiter) {
                Some(cells) => cells.end.replace(end),
                None => Some(end),
            }
        });
    }

    /// What an acquire says now. `None`: it is not under way any more, or has its answer.
    pub(crate) fn says(&self, owner: OwnerKey, op: OpId) -> Option<(Permit, Arc<WaitingCall>)> {
        let state = self.state.lock();
        let permit = state.core.acquire_says(owner, op)?;
        let call = Arc::clone(&state.calls.get(&permit.waiter)?.call);
        Some((permit, call))
    }
}

//! Calls that want a lock: they join, go on by themselves, claim what was granted to them, and leave.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use redisson_lock_core::input::{
    AcquireEnds, AcquireTakes, CallAsks, CallClaims, CallJoins, CallLeaves, CallPolled, PlaceJoins,
};
use redisson_lock_core::{
    Admission, Claimed, Effects, LockCore, OpId, OwnerKey, Permit, Rejected, Taking, Terms, Then,
    Time, Untaken, WaiterId, Woken,
};
use tokio::time::Instant;

use super::attempts::{CallEnd, CallFinds, WaitingCall};
use super::{Deferred, Entry, Facts, HoldCells};
use crate::names::owner::next_own_id;
use crate::names::wire;
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

/// What a call does whose acquire has brought no lock.
pub(crate) enum AfterAttempt {
    /// It waits for up to this time, unless it hears of the lock before.
    Waits(Duration),
    AsksAgain,
    /// The outer hold is gone: the core says why.
    Lost,
    Ends(CallEnd),
}

impl Entry {
    /// Joins the queue, and asks.
    pub(crate) fn register(self: &Arc<Self>, call: &Arc<WaitingCall>, terms: Terms) -> WaiterId {
        let deadline = call.deadline.map(|at| self.shared().clock.time(at));
        self.step_with(|state, now, out| {
            let joins = CallJoins {
                owner: call.key(),
                order: call.order,
                terms,
                deadline,
            };
            let id = state.core.tell(now, joins, out);
            state.calls.insert(id, Arc::clone(call));
            let admission = self.admit(&mut state.core, now, (id, call), out);
            // It is about to be polled.
            _ = call.goes_on(admission, self.shared().clock.instant(now));
            id
        })
    }

    /// Joins the queue without asking for the lock.
    pub(crate) fn register_place(
        self: &Arc<Self>,
        call: &Arc<WaitingCall>,
        terms: Terms,
    ) -> WaiterId {
        let owner = call.key();
        self.step_with(|state, now, out| {
            let id = state.core.tell(now, PlaceJoins { owner, terms }, out);
            state.calls.insert(id, Arc::clone(call));
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
            state.core.tell(now, CallLeaves { call: id }, out);
            let call = state.calls.remove(&id)?;
            let unused = state.take_unused(self, call.key());
            Some((call, unused))
        });
    }

    /// A call is polled, because it was woken or not: it gets the lock that was granted to it, and has left the queue then; or how
    /// it has ended. The status of a hold is there before anything can end it.
    pub(crate) fn poll(
        self: &Arc<Self>,
        (id, call): (WaiterId, &WaitingCall),
        is_woken: bool,
    ) -> Result<CallFinds, Rejected> {
        if let Some(end) = call.take_end() {
            return Ok(CallFinds::Ended(end));
        }
        if !is_woken {
            // What there is for it by now has woken it, or will.
            let is_asking = self.peek(|core| core.has_acquire(id));
            return Ok(CallFinds::Nothing { is_asking });
        }
        let (finds, _unused) = self.step_with(|state, now, out| {
            if state.core.is_granted(id) {
                match state.core.tell(now, CallClaims { call: id }, out) {
                    Ok(claimed) => {
                        self.latest.answered(now);
                        let hold = state.begin_hold(id, claimed);
                        return (Ok(hold), state.take_unused(self, call.key()));
                    }
                    // In this very step: it asks again.
                    Err(Rejected::GivenBack) => {}
                    Err(rejected) => return (Err(rejected), None),
                }
            }
            state.core.tell(now, CallPolled { call: id }, out);
            let is_asking = state.core.awaits_answer(id);
            (Ok(CallFinds::Nothing { is_asking }), None)
        });
        finds
    }

    /// A call makes another attempt.
    pub(crate) fn ask_again(self: &Arc<Self>, call: WaiterId) {
        self.step(CallPolled { call });
    }

    /// Calls that a step has woken ask, in the same step.
    pub(super) fn drive(self: &Arc<Self>, state: &mut Facts, now: Time, deferred: &mut Deferred) {
        let mut asked = 0;
        let out = &mut deferred.effects;
        while !out.woken.is_empty() {
            for id in std::mem::take(&mut out.woken) {
                // The others go on in another step.
                if asked == ASKED_MAX {
                    deferred.left.push(id);
                    continue;
                }
                let Some(call) = state.calls.get(&id).map(Arc::clone) else {
                    continue;
                };
                match state.core.woken(id) {
                    Woken::Nothing => {}
                    Woken::Call => deferred.woken.push(call),
                    Woken::Asks => {
                        asked += 1;
                        let admission = self.admit(&mut state.core, now, (id, &call), out);
                        if call.goes_on(admission, self.shared().clock.instant(now)) {
                            continue;
                        }
                        deferred.woken.push(call);
                    }
                }
            }
        }
    }

    /// Calls that a step has woken, and that have not asked in it, ask. A thousand do here. If there are more, a task goes on,
    /// which lets others run in between.
    pub(super) fn ask_next(self: &Arc<Self>, calls: Vec<WaiterId>) {
        let mut left = CallsToAsk {
            entry: Arc::clone(self),
            calls: calls.into(),
        };
        for _ in 0..STEPS_MAX {
            if left.calls.is_empty() {
                return;
            }
            left.step();
        }
        self.shared().runtime.spawn(async move {
            while !left.calls.is_empty() {
                left.step();
                tokio::task::yield_now().await;
            }
        });
    }

    fn admit(
        &self,
        core: &mut LockCore,
        now: Time,
        (id, call): (WaiterId, &WaitingCall),
        out: &mut Effects,
    ) -> Result<Admission, Rejected> {
        // Before the field is chosen: one that was used before a later reconnect counts as older than that.
        let reconnects = self.route().unfenced();
        let field = self.next_field(call);
        let asks = CallAsks {
            call: id,
            field,
            reconnects: self.name.kind().has_queue().then_some(reconnects),
        };
        core.tell(now, asks, out)
    }

    /// The field under which a hold of the owner of this call would appear in Redis.
    ///
    /// After a reconnect without a fence a late send of an earlier hold may still be executed, so every
    /// hold begun since then has a field of its own. A kind whose acquisitions have a value each has a new one whenever a
    /// call asks: an earlier one may still be released in the background.
    fn next_field(&self, call: &WaitingCall) -> Arc<str> {
        if self.name.kind().has_value_per_hold() || self.route().unfenced() > 0 {
            wire::field(&self.shared().client_id, next_own_id())
        } else {
            Arc::clone(call.owner.field())
        }
    }

    /// An acquire has ended without the lock.
    pub(crate) fn end_attempt(
        self: &Arc<Self>,
        permit: &Permit,
        untaken: Untaken,
        after: impl FnOnce() -> AfterAttempt,
    ) {
        self.step_and_wake(|state, now, out| {
            if !state.core.is_attempting(permit) {
                return None;
            }
            let waiter = permit.waiter;
            let (then, end) = match after() {
                AfterAttempt::Waits(time) => {
                    let subscribed = state.listens_for(self, permit.owner);
                    let until = now + time;
                    (Then::Waits { until, subscribed }, None)
                }
                AfterAttempt::AsksAgain => (Then::AsksAgain, None),
                AfterAttempt::Lost => (Then::Ends, None),
                AfterAttempt::Ends(end) => (Then::Ends, Some(end)),
            };
            let ended = AcquireEnds {
                permit: permit.clone(),
                untaken,
                then,
            };
            let rejected = state.core.tell(now, ended, out);
            let call = state.calls.get(&waiter)?;
            match then {
                Then::Ends => call.ends(end.unwrap_or(CallEnd::Rejected(rejected))),
                // It has to see to it that it does not wait for too long.
                Then::Waits { .. } if call.sleeps_without_timer() => {}
                Then::Waits { .. } | Then::AsksAgain => return None,
            }
            Some(Arc::clone(call))
        });
    }

    /// An acquire was answered: the server has given the lock to its owner.
    pub(crate) fn take(self: &Arc<Self>, taken: AcquireTakes) {
        let waiter = taken.permit.waiter;
        self.step_and_wake(|state, now, out| {
            if state.core.tell(now, taken, out) != Taking::TooLate {
                return None;
            }
            let call = state.calls.get(&waiter)?;
            call.ends(CallEnd::Rejected(Rejected::TooLate));
            Some(Arc::clone(call))
        });
    }

    /// What an acquire says now. `None`: it is not under way any more, or has its answer.
    pub(crate) fn says(&self, owner: OwnerKey, op: OpId) -> Option<(Permit, Arc<WaitingCall>)> {
        let state = self.state.lock();
        let permit = state.core.acquire_says(owner, op)?;
        let call = Arc::clone(state.calls.get(&permit.waiter)?);
        Some((permit, call))
    }
}

impl WaitingCall {
    /// Whether a call that asks is not to be woken now.
    fn goes_on(&self, admission: Result<Admission, Rejected>, now: Instant) -> bool {
        match admission {
            Ok(Admission::Sent) => self.asks(now),
            Ok(Admission::Queued | Admission::OwnerBusy) => {}
            Ok(Admission::Granted) => return false,
            Ok(Admission::Busy) => {
                self.ends(CallEnd::Queued);
                return false;
            }
            Err(rejected) => {
                self.ends(CallEnd::Rejected(rejected));
                return false;
            }
        }
        true
    }
}

/// Calls that a step has woken, and that have not asked in it. They do in the steps that follow, also if this is dropped.
struct CallsToAsk {
    entry: Arc<Entry>,
    calls: VecDeque<WaiterId>,
}

impl CallsToAsk {
    fn step(&mut self) {
        let mut deferred = Deferred::default();
        let portion = self.calls.len().min(ASKED_MAX);
        let (entry, asking) = (&self.entry, self.calls.drain(..portion));
        entry.locked_step(&mut deferred, |_, _, out| out.woken.extend(asking));
        entry.apply(&mut deferred);
        self.calls.extend(deferred.left.drain(..));
    }
}

impl Drop for CallsToAsk {
    fn drop(&mut self) {
        while !self.calls.is_empty() {
            self.step();
        }
    }
}

/// How many calls ask at most while the mutex is held. All readers of a lock may go on together.
const ASKED_MAX: usize = 100;

/// How many steps follow each other where many calls ask.
const STEPS_MAX: usize = 10;

//! Who may talk to Redis next, and what comes of an acquire.
//!
//! Invariant I4: the head of the queue contends only while no owner of this client holds the lock and
//! no operation is under way that can still change that, immediate attempts excepted: they do not begin
//! while callers of other owners queue. A re-entry never queues.

use std::sync::Arc;
use std::time::Duration;

use super::LockCore;
use super::hold::local_deadline;
#[cfg(feature = "test-util")]
use super::op::Op;
use super::op::{Acquire, EnclosingWrite, Grant};
use super::owner_state::{AfterAcquire, OwnerState};
use super::queue::{HeadAttempt, Order, QueueLane, QueuedCall, Terms, Turn};
use super::tenure::NOT_COUNTED;
use super::values::{
    Effects, HoldId, Life, LossReason, OpId, OwnerKey, Time, Token, Total, WaiterId,
};

/// The step that a call may take right now.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Admission {
    Permit(Permit),
    /// Another owner of this client has handed the lock over, with a pass sent then.
    Granted(Permit, Time),
    /// Others come first. It is time to ask again at `again`, whatever happens.
    Queued {
        again: Option<Time>,
    },
    /// Others come first, and the call does not wait.
    Busy,
    /// An earlier operation of this owner is not over; the last of them began or ended then.
    OwnerBusy {
        since: Time,
    },
}

/// The right to run one acquire for one owner.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Permit {
    pub waiter: WaiterId,
    pub owner: OwnerKey,
    pub op: OpId,
    pub field: Arc<str>,
    /// The count to go to.
    pub target: u32,
    /// A busy reply leaves the owner a place in the server's queue.
    pub queues_up: bool,
    /// For how long that counts after its turn has come.
    pub place_wait: Duration,
    pub terms: Terms,
}

/// Why a call gets no lock, or has to give it up again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rejected {
    Closed,
    NoRuntime,
    /// An outer hold of the owner is gone.
    Lost(LossReason),
    TooDeep(u32),
    /// The owner holds the lock, and this call or that hold does not nest.
    AlreadyHeld,
    /// The owner reads, and would wait for itself to write.
    OwnRead,
    /// The answer came when the lease was already over.
    TooLate,
    /// Its call was not polled when it came, and others wait: a release undoes it, and the call asks again.
    TakenOver,
}

/// How an acquire ended that brought no lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Untaken {
    /// Another owner has the lock, or comes first.
    Busy,
    /// The server refused it, or it was never sent.
    NotExecuted,
    /// The server has a read hold of the owner, which has none here: it is released, and the call may ask again.
    OwnRead,
    /// The outer hold is gone, so there was nothing to nest into.
    OuterGone,
    /// No answer, or no call waits for it any more: it may have been executed, or may be still.
    Unknown,
}

impl LockCore {
    /// Joins the queue.
    pub fn enqueue(
        &mut self,
        now: Time,
        owner: OwnerKey,
        order: Order,
        terms: Terms,
        out: &mut Effects,
    ) -> WaiterId {
        let id = self.ids.waiter();
        let lane = self.discipline.lane(owner);
        self.step(now, out, |core, _| {
            core.queue.add(id, (owner, lane), order, terms, now);
        });
        // It asks immediately; being woken for that would make it ask twice.
        out.woken.retain(|woken| *woken != id);
        id
    }

    /// Leaves the queue, whatever came of it.
    pub fn leave(&mut self, now: Time, id: WaiterId, out: &mut Effects) {
        self.step(now, out, |core, out| core.leave_now(now, id, out));
    }

    fn leave_now(&mut self, now: Time, id: WaiterId, out: &mut Effects) {
        let Some(waiter) = self.queue.remove(id) else {
            return;
        };
        let owner = waiter.owner;
        self.leave_place(now, owner, out);
        if self.owners.get(owner).is_some_and(OwnerState::is_granted) {
            self.change(now, owner, out, |own, cx| own.refuse_grant(id, cx));
        }
        // Being woken for its owner came too late for this one, and must not end here.
        if self.is_idle(owner) {
            let own = [
                self.queue.first_blocked(owner),
                self.queue.first_ready(owner),
            ];
            for next in own.into_iter().flatten() {
                out.wake(next);
            }
        }
    }

    pub(super) fn note_reconnects(
        &mut self,
        now: Time,
        owner: OwnerKey,
        reconnects: u64,
        out: &mut Effects,
    ) {
        let reconnects = u16::try_from(reconnects % u64::from(NOT_COUNTED)).unwrap_or_default();
        self.change(now, owner, out, |own, cx| {
            own.note_reconnects(reconnects, cx)
        });
    }

    /// What a waiter may do right now. `field` is the one under which a new hold of its owner would
    /// appear in Redis.
    pub fn admit(
        &mut self,
        now: Time,
        id: WaiterId,
        field: &Arc<str>,
        out: &mut Effects,
    ) -> Result<Admission, Rejected> {
        let admission = self.step(now, out, |core, out| core.admit_now(now, id, field, out));
        // What it was woken for in this very step it has just seen.
        out.woken.retain(|woken| *woken != id);
        admission
    }

    /// Admits a call where the server has the queue. `reconnects`: how often a connection to the lock's server was replaced
    /// without a fence, read before the field was chosen. A place under a field that is older than the latest is given up.
    pub fn admit_to_place(
        &mut self,
        now: Time,
        (id, owner): (WaiterId, OwnerKey),
        field: &Arc<str>,
        reconnects: u64,
        out: &mut Effects,
    ) -> Result<Admission, Rejected> {
        let admission = self.step(now, out, |core, out| {
            core.note_reconnects(now, owner, reconnects, out);
            let admission = core.admit_now(now, id, field, out);
            // What was made by this has the field that was chosen after the count was read.
            core.note_reconnects(now, owner, reconnects, out);
            admission
        });
        out.woken.retain(|woken| *woken != id);
        admission
    }

    fn admit_now(
        &mut self,
        now: Time,
        id: WaiterId,
        field: &Arc<str>,
        out: &mut Effects,
    ) -> Result<Admission, Rejected> {
        let waiter = match (self.life, self.queue.get(id)) {
            (Life::Open, Some(waiter)) => waiter.clone(),
            (Life::Gone, _) => return Err(Rejected::NoRuntime),
            (Life::Open | Life::Closing | Life::Closed, _) => return Err(Rejected::Closed),
        };
        let owner = waiter.owner;
        self.note_polled(now, id, out);
        self.queue.clear_wake(id);
        self.queue.set_field(id, field);
        if let Some(admission) = self.pick_up(now, id, &waiter, out) {
            return Ok(admission);
        }
        // An owner is one caller to the server. What one of its faces does, a call for the other one waits for.
        let faces = self.faces(owner).into_iter().flatten();
        let since = faces.clone().map(|own| own.op_changed_at);
        let op_changed_at = since.fold(waiter.since, Time::max);
        let lost = faces.filter_map(|own| own.tenure.lost()).next();
        let (idle, held, around) = (self.is_idle(owner), self.holds(owner), self.around(owner));
        // Those that queue wait for this owner: if it waited for them in turn, nothing would go on.
        let needs_no_queue = held || around != EnclosingWrite::None;
        let stands_back = self.queue.yields_until.filter(|until| *until > now);
        let contends = self.may_contend(now, id, &waiter)
            && (waiter.order != Order::Queued || stands_back.is_none());
        if contends && waiter.order == Order::Queued {
            // The others may follow.
            self.freed.remove(waiter.lane());
        }
        // The call that came first may not be polled any more; it is not waited for longer than for a
        // command.
        let patient = op_changed_at + self.rules.command_timeout > now;
        let behind = !idle || patient && self.queue.is_behind_another(id, owner);
        let was_behind = self.queue.set_blocked_by_own_op(id, behind);
        if behind {
            return Ok(Admission::OwnerBusy {
                since: op_changed_at,
            });
        }
        // The sections of lost holds may still run, and that of a new hold would run beside them: their guards go
        // first.
        match lost {
            Some(reason) => Err(Rejected::Lost(reason)),
            None if !held && self.reads(owner) => Err(Rejected::OwnRead),
            None if needs_no_queue && !self.may_nest(&waiter) => Err(Rejected::AlreadyHeld),
            None if needs_no_queue || contends => self.permit(now, id, waiter, field, out),
            None => {
                // It may have to queue now; the next of its owner need not wait for that.
                let next = self.queue.first_blocked(owner).filter(|_| was_behind);
                next.into_iter().for_each(|next| out.wake(next));
                if waiter.order != Order::Queued {
                    return Ok(Admission::Busy);
                }
                // Among calls of one owner one may begin an operation and not be polled any more.
                let others = self
                    .queue
                    .has_others(owner, id)
                    .then(|| now + self.rules.command_timeout);
                let limits = [others, stands_back];
                let again = limits.into_iter().flatten().min();
                Ok(Admission::Queued { again })
            }
        }
    }

    fn permit(
        &mut self,
        now: Time,
        id: WaiterId,
        waiter: QueuedCall,
        field: &Arc<str>,
        out: &mut Effects,
    ) -> Result<Admission, Rejected> {
        let lane = waiter.lane();
        let QueuedCall {
            owner,
            order,
            terms,
            is_woken,
            ..
        } = waiter;
        let depth = self.owners.get(owner).map_or(0, |own| own.tenure.count());
        if depth >= DEPTH_MAX {
            return Err(Rejected::TooDeep(depth));
        }
        let around = self.around(owner);
        let needs_no_queue = depth > 0 || around != EnclosingWrite::None;
        let has_local_queue = self.discipline.has_local_queue();
        debug_assert!(
            needs_no_queue || order != Order::Queued || !has_local_queue || !self.is_blocked(lane),
            "I4: only the head contends, and only while no owner of this client is in its way"
        );
        self.ensure_face(now, owner, field);
        let begun = self.change(now, owner, out, |own, cx| {
            let acquire = own.begin_acquire(id, order, terms, around, cx);
            let place_wait = own.tenure.place_wait();
            (acquire, Arc::clone(&own.field), place_wait)
        });
        let (acquire, field, place_wait) =
            begun.unwrap_or_else(|| unreachable!("it was put in above"));
        let Acquire {
            id: op,
            target,
            queues_up,
            ..
        } = acquire;
        // Where the others of its lane may attempt too, its turn is not waited for.
        let is_open = is_woken || self.is_open(lane);
        if order == Order::Queued && !needs_no_queue && has_local_queue && !is_open {
            let (attempt, turn) = (Some(HeadAttempt { waiter: id, op }), self.turn(lane));
            self.set_turn(lane, Turn { attempt, ..turn });
        }
        Ok(Admission::Permit(Permit {
            waiter: id,
            owner,
            op,
            field,
            target,
            queues_up,
            place_wait,
            terms,
        }))
    }

    /// The lock was taken: the hold goes into the books, unless it is over or unwanted by now. Then
    /// a release undoes it. Its call leaves the queue. Returns the token too, if the lock was handed over with one.
    pub fn taken(
        &mut self,
        now: Time,
        permit: &Permit,
        sent_at: Time,
        out: &mut Effects,
    ) -> Result<(HoldId, Option<Token>), Rejected> {
        self.step(now, out, |core, out| {
            let (life, rules, terms) = (core.life, Arc::clone(&core.rules), permit.terms);
            // A release undoes what it took, or has done so.
            let not_its_own = match life {
                Life::Open => Rejected::TakenOver,
                Life::Gone => Rejected::NoRuntime,
                Life::Closing | Life::Closed => Rejected::Closed,
            };
            let taken = core.change(now, permit.owner, out, |own, cx| {
                let Some(acquire) = own.op.acquire().filter(|acquire| acquire.id == permit.op)
                else {
                    return Err(not_its_own);
                };
                // Neither handed over nor nested: whatever streak of passes there was is over.
                let by_itself = acquire.grant.is_none() && acquire.target == 1;
                // Holds of this owner were lost while the attempt was under way: what it has nested into had ended by
                // then.
                let lost_meanwhile = acquire.losses != own.tenure.losses() && !own.tenure.is_held();
                // Less than the lease where other clients may shorten it, as those that read beside this one may.
                let certain = own.tenure.certain(terms.lease, &rules);
                let rejected = match (life, acquire.around) {
                    // No task is left that would signal its loss.
                    (Life::Gone, _) => Some(Rejected::NoRuntime),
                    (Life::Closing | Life::Closed, _) => Some(Rejected::Closed),
                    _ if lost_meanwhile => Some(Rejected::Lost(own.tenure.lost_reason())),
                    (_, EnclosingWrite::Lost(reason)) => Some(Rejected::Lost(reason)),
                    _ if local_deadline(sent_at, certain) <= now => Some(Rejected::TooLate),
                    _ => None,
                };
                if let Some(rejected) = rejected {
                    own.end_acquire(AfterAcquire::Unwanted, cx);
                    return Err(rejected);
                }
                if !own.tenure.is_held() {
                    // Answers to renewals that were sent for an earlier hold say nothing of this one.
                    own.generation = cx.ids.generation();
                    own.tenure.reentrant = terms.reentrant;
                }
                let token = match acquire.grant {
                    Some(Grant::PickedUp { token }) => token,
                    _ => None,
                };
                let hold = cx.ids.hold();
                let Terms {
                    lease, replicas, ..
                } = terms;
                let policy = terms.policy(sent_at);
                own.tenure
                    .add(hold, policy, sent_at, lease, replicas, &rules);
                own.end_acquire(AfterAcquire::Applied, cx);
                cx.out.count(Total::Acquired, 1);
                Ok((hold, token, by_itself))
            });
            let (hold, token, by_itself) = taken.unwrap_or(Err(not_its_own))?;
            // Whichever call took it, there is nothing left to go first for.
            core.queue.yields_until = None;
            if by_itself {
                core.queue.streak = None;
            }
            core.leave_now(now, permit.waiter, out);
            Ok((hold, token))
        })
    }

    /// The attempt brought no lock. Whatever may be in Redis of it is undone by a release.
    pub fn untaken(
        &mut self,
        now: Time,
        permit: &Permit,
        outcome: Untaken,
        out: &mut Effects,
    ) -> Rejected {
        let reason = self.step(now, out, |core, out| {
            core.note_polled(now, permit.waiter, out);
            let around = core.acquire_of(permit).map(|acquire| acquire.around);
            let reason = core.change(now, permit.owner, out, |own, cx| {
                if own
                    .op
                    .acquire()
                    .is_none_or(|acquire| acquire.id != permit.op)
                {
                    return None;
                }
                // It nests only into a field that is there, so the server has just said that the hold is lost.
                if outcome == Untaken::OuterGone {
                    own.lose(LossReason::Gone, cx);
                }
                own.end_acquire(
                    match outcome {
                        Untaken::Busy => AfterAcquire::Busy,
                        Untaken::NotExecuted | Untaken::OuterGone | Untaken::OwnRead => {
                            AfterAcquire::NotExecuted
                        }
                        Untaken::Unknown => AfterAcquire::Unknown,
                    },
                    cx,
                );
                own.tenure.lost()
            });
            match (outcome, around) {
                (Untaken::Busy, Some(EnclosingWrite::Held)) => {
                    core.lose_write_around(now, permit.owner, LossReason::Taken, out);
                }
                (Untaken::OwnRead, Some(_)) => core.release_unknown_read(now, permit, out),
                _ => {}
            }
            reason
        });
        Rejected::Lost(reason.flatten().unwrap_or(LossReason::Gone))
    }

    /// Whether a call of an owner that holds the lock may add a hold.
    fn may_nest(&self, waiter: &QueuedCall) -> bool {
        let faces = self.faces(waiter.owner).into_iter().flatten();
        let mut held = faces.filter(|own| own.tenure.is_held());
        waiter.terms.reentrant && held.all(|own| own.tenure.reentrant)
    }

    /// Whether an immediate attempt of the owner of this waiter would be made now: the waiter is the first in the queue and
    /// no owner holds the lock, or its own does. An attempt is also made to learn that the client is closed.
    pub fn has_turn(&self, now: Time, id: WaiterId) -> bool {
        let Some(waiter) = self.queue.get(id).filter(|_| self.life == Life::Open) else {
            return true;
        };
        let mut faces = self.faces(waiter.owner).into_iter().flatten();
        faces.any(|own| own.tenure.is_held())
            || !self.discipline.has_local_queue()
            || self.goes_first(id, waiter.lane()) && !self.overtakes(now, waiter.owner)
    }

    /// Whether a call of this owner that queues now would not attempt: other owners of this client are in its way.
    pub fn is_contended(&self, owner: OwnerKey) -> bool {
        let lane = self.discipline.lane(owner);
        let mut faces = self.faces(owner).into_iter().flatten();
        let head = self.queue.head(lane).and_then(|head| self.queue.get(head));
        self.discipline.has_local_queue()
            && !faces.any(|own| own.tenure.is_held())
            && !self.is_open(lane)
            && (self.is_blocked(lane) || head.is_some_and(|head| head.owner != owner))
    }

    /// A waiter is the first of its lane, or the first is in no other's way; and so is no owner of this client.
    fn goes_first(&self, id: WaiterId, lane: QueueLane) -> bool {
        !self.is_blocked(lane) && (self.is_open(lane) || self.queue.head(lane) == Some(id))
    }

    /// Its lane was open when it was called. That those who held the lock have released since is no reason to go in one by
    /// one: each would open the lane for all, and close it before they are polled.
    fn follows_call(&self, waiter: &QueuedCall) -> bool {
        waiter.is_woken && !self.is_blocked(waiter.lane())
    }

    /// Whether this attempt is still its call's.
    pub fn is_attempting(&self, permit: &Permit) -> bool {
        self.is_under_way(permit.owner, permit.op)
    }

    /// Of an owner that holds nothing. An immediate attempt does not overtake the callers of other owners that queue.
    fn may_contend(&self, now: Time, id: WaiterId, waiter: &QueuedCall) -> bool {
        if !self.discipline.has_local_queue() {
            return true;
        }
        match waiter.order {
            Order::First => true,
            Order::Queued => self.goes_first(id, waiter.lane()) || self.follows_call(waiter),
            Order::Immediate => {
                let head = self.queue.head(waiter.lane());
                let head = head.and_then(|head| self.queue.get(head));
                self.is_open(waiter.lane())
                    || head.is_none_or(|head| head.owner == waiter.owner)
                        && !self.overtakes(now, waiter.owner)
            }
        }
    }

    /// What is under way for an owner, in the words of the explorer, and whether it holds the lock.
    #[cfg(feature = "test-util")]
    pub fn under_way(&self, owner: OwnerKey) -> (&'static str, bool) {
        let Some(own) = self.owners.get(owner) else {
            return (Op::Idle.words(false, false, false), false);
        };
        let (held, lost) = (own.tenure.is_held(), own.tenure.lost().is_some());
        (own.op.words(held, lost, own.has_place()), held)
    }

    /// Whether a waiter queues. `None`: it has left.
    #[cfg(feature = "test-util")]
    pub fn order(&self, id: WaiterId) -> Option<Order> {
        self.queue.get(id).map(|waiter| waiter.order)
    }

    /// Whether a waiter that found the lock held by another client has a reason to attempt again: its
    /// owner got or lost the lock, or may have no place in the server's queue any more, another one of this client has
    /// just freed it, or it was passed over.
    pub fn has_reason_to_retry(&self, id: WaiterId) -> bool {
        let Some(waiter) = self.queue.get(id).filter(|_| self.life == Life::Open) else {
            return true;
        };
        let mut faces = self.faces(waiter.owner).into_iter().flatten();
        waiter.passed_over
            || self.lacks_place(id)
            || faces.any(|own| {
                own.tenure.is_held() || own.tenure.lost().is_some() || own.op.given().is_some()
            })
            || self.follows_call(waiter)
            || self.freed.have(waiter.lane())
                && (!self.discipline.has_local_queue() || self.goes_first(id, waiter.lane()))
    }
}

/// Guards that nest deeper than this are leaking.
const DEPTH_MAX: u32 = 10_000;

#[cfg(test)]
mod tests;

//! Who may talk to Redis next, and what comes of an acquire.
//!
//! Invariant I4: the head of the queue contends only while no owner of this client holds the lock and
//! no operation is under way that can still change that, immediate attempts excepted: they do not begin
//! while callers of other owners queue. A re-entry never queues.

use std::sync::Arc;

use super::LockCore;
use super::op::EnclosingWrite;
#[cfg(feature = "test-util")]
use super::op::Op;
use super::queue::{Order, QueueLane, QueuedCall, Terms};
use super::tenure::NOT_COUNTED;
use super::values::{Effects, Life, LossReason, OwnerKey, Time, WaiterId};

/// The step that a call may take right now.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Admission {
    /// An acquire of its own is under way, from this step on perhaps. Its call is woken when it is answered.
    Sent,
    /// The lock is its own, by an acquire or another owner's pass: it is to be claimed now.
    Granted,
    /// Others come first. It is time to ask again at `again`, whatever happens.
    Queued { again: Option<Time> },
    /// Others come first, and the call does not wait.
    Busy,
    /// An earlier operation of this owner is not over; the last of them began or ended then.
    OwnerBusy { since: Time },
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
    /// It was given back before its call has claimed it.
    GivenBack,
}

impl LockCore {
    /// Joins the queue. No step by itself: the call asks immediately.
    pub fn enqueue(&mut self, now: Time, owner: OwnerKey, order: Order, terms: Terms) -> WaiterId {
        let id = self.ids.waiter();
        let lane = self.discipline.lane(owner);
        self.queue.add(id, (owner, lane), order, terms, now);
        id
    }

    /// Leaves the queue, whatever came of it.
    pub fn leave(&mut self, now: Time, id: WaiterId, out: &mut Effects) {
        self.step(now, out, |core, out| core.leave_now(now, id, out));
    }

    pub(super) fn leave_now(&mut self, now: Time, id: WaiterId, out: &mut Effects) {
        let Some(owner) = self.queue.get(id).map(|waiter| waiter.owner) else {
            return;
        };
        self.change(now, owner, out, |own, cx| own.abandon(id, cx));
        self.queue.remove(id);
        self.leave_place(now, owner, out);
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
        if let Some(admission) = self.found_by(id, &waiter) {
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
            ..
        } = waiter;
        let depth = self.owners.get(owner).map_or(0, |own| own.tenure.count());
        if depth >= DEPTH_MAX {
            return Err(Rejected::TooDeep(depth));
        }
        // An owner that has the lock has nothing to take over.
        if order == Order::First && depth > 0 {
            return Err(Rejected::AlreadyHeld);
        }
        let around = self.around(owner);
        let needs_no_queue = depth > 0 || around != EnclosingWrite::None;
        let has_local_queue = self.discipline.has_local_queue();
        debug_assert!(
            needs_no_queue || order != Order::Queued || !has_local_queue || !self.is_blocked(lane),
            "I4: only the head contends, and only while no owner of this client is in its way"
        );
        self.ensure_face(now, owner, field);
        self.change(now, owner, out, |own, cx| {
            let acquire = own.begin_acquire(id, order, terms, around, cx);
            cx.out.sends.push((owner, acquire.id));
        });
        Ok(Admission::Sent)
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

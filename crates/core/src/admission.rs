//! Who may talk to Redis next, and what comes of an acquire.
//!
//! Invariant I4: the head of the queue contends only while no owner of this client holds the lock and
//! no operation is under way that can still change that, immediate attempts excepted: they do not begin
//! while callers of other owners queue. A re-entry never queues.

use std::sync::Arc;

use super::LockCore;
#[cfg(feature = "test-util")]
use super::op::Op;
use super::op::{EnclosingWrite, Grant};
use super::queue::{Order, QueueLane, QueuedCall, Stage, Terms};
use super::tenure::NOT_COUNTED;
use super::values::{Effects, Life, LossReason, OwnerKey, Time, WaiterId};

/// What a call has come to that asks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Admission {
    /// An acquire of its own is under way, from this step on perhaps, or another owner's pass to it.
    Sent,
    /// The lock is its own, by an acquire or another owner's pass: its call is to claim it.
    Granted,
    /// Others come first.
    Queued,
    /// Others come first, and the call does not wait: it is over.
    Busy,
    /// An earlier operation of this owner is not over.
    OwnerBusy,
}

/// What is to be done for a call that a step has woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// Nothing: it goes on by itself, has left, or is not polled.
    Nothing,
    /// It asks: see [`CallAsks`](super::input::CallAsks).
    Asks,
    /// The lock was granted to it, or it is a place that has its turn.
    Call,
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
    /// An earlier operation of its owner has had no answer for a command timeout.
    NoAnswer,
    /// The server has not confirmed a subscription in time.
    Unconfirmed,
    /// Its deadline has come.
    NotInTime,
}

impl LockCore {
    /// Joins the queue. No step by itself: the call asks immediately. It makes no other attempt after its deadline.
    pub(super) fn enqueue(
        &mut self,
        owner: OwnerKey,
        order: Order,
        terms: Terms,
        deadline: Option<Time>,
    ) -> WaiterId {
        self.add_call(owner, (order, Stage::New), (terms, deadline))
    }

    /// Joins the queue without ever asking for the lock.
    pub(super) fn enqueue_place(&mut self, owner: OwnerKey, terms: Terms) -> WaiterId {
        self.add_call(owner, (Order::Queued, Stage::Place), (terms, None))
    }

    fn add_call(
        &mut self,
        owner: OwnerKey,
        stage: (Order, Stage),
        terms: (Terms, Option<Time>),
    ) -> WaiterId {
        let id = self.ids.waiter();
        let lane = self.discipline.lane(owner);
        self.queue.add(id, (owner, lane), stage, terms);
        id
    }

    /// Leaves the queue, whatever came of it.
    pub(super) fn leave(&mut self, now: Time, id: WaiterId, out: &mut Effects) {
        self.step(now, out, |core, out| core.leave_now(now, id, out));
    }

    pub(super) fn leave_now(&mut self, now: Time, id: WaiterId, out: &mut Effects) {
        let Some(owner) = self.queue.get(id).map(|waiter| waiter.owner) else {
            return;
        };
        self.change(now, owner, out, |own, cx| own.abandon(id, cx));
        self.queue.remove(id);
        self.leave_place(now, owner, out);
        self.wake_next_of(owner, out);
    }

    /// A call of this owner is over. Being woken for its owner came too late for it, and must not end there.
    fn wake_next_of(&mut self, owner: OwnerKey, out: &mut Effects) {
        if self.is_idle(owner) {
            let blocked = self.queue.first_blocked(owner);
            let ready = self.queue.first_ready(owner);
            for next in ready.into_iter().chain([blocked]).flatten() {
                out.wake(next);
            }
        }
    }

    pub(super) fn note_reconnects(
        &mut self,
        now: Time,
        of: Option<(OwnerKey, u64)>,
        out: &mut Effects,
    ) {
        let Some((owner, reconnects)) = of else {
            return;
        };
        let reconnects = u16::try_from(reconnects % u64::from(NOT_COUNTED)).unwrap_or_default();
        self.change(now, owner, out, |own, cx| {
            own.note_reconnects(reconnects, cx)
        });
    }

    /// What is to be done for a call that a step has woken.
    pub fn woken(&self, id: WaiterId) -> Woken {
        let Some(waiter) = self.queue.get(id) else {
            return Woken::Nothing;
        };
        if self.life != Life::Open {
            return match waiter.stage {
                Stage::Place => Woken::Call,
                _ => Woken::Asks,
            };
        }
        let own = self.owners.get(waiter.owner);
        let acquire = own.and_then(|own| own.op.acquire());
        if let Some(acquire) = acquire.filter(|acquire| acquire.waiter == id) {
            return match acquire.grant {
                Some(Grant::Given { .. }) => Woken::Call,
                Some(Grant::Awaited | Grant::Revoked) | None => Woken::Nothing,
            };
        }
        match waiter.stage {
            Stage::Place => Woken::Call,
            Stage::Ended => Woken::Nothing,
            _ if waiter.passed_over => Woken::Nothing,
            // Of a subscription that was refused, or is late.
            Stage::Subscribing { .. } if waiter.due.is_none() => Woken::Asks,
            Stage::Waiting | Stage::Subscribing { .. } if !self.has_reason_to_retry(id) => {
                Woken::Nothing
            }
            Stage::New
            | Stage::Behind { .. }
            | Stage::Queued
            | Stage::Sent { .. }
            | Stage::Subscribing { .. }
            | Stage::Waiting => Woken::Asks,
        }
    }

    /// A call asks: because it has just joined the queue, or because a step has woken it. `field` is the one under which a new
    /// hold of its owner would appear in Redis. `reconnects`, where the server has the queue: how often a connection to it was
    /// replaced without a fence, read before the field was chosen. A place under a field that is older than the latest is given
    /// up. With an error, and if it is busy, the call is over.
    pub(super) fn admit(
        &mut self,
        now: Time,
        id: WaiterId,
        field: &Arc<str>,
        reconnects: Option<u64>,
        out: &mut Effects,
    ) -> Result<Admission, Rejected> {
        let owner = self.queue.get(id).map(|waiter| waiter.owner);
        let counted = owner.zip(reconnects);
        self.step(now, out, |core, out| {
            core.note_reconnects(now, counted, out);
            let admission = core.admit_now(now, id, field, out);
            // What was made by this has the field that was chosen after the count was read.
            core.note_reconnects(now, counted, out);
            admission
        })
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
            (life, _) => {
                self.end_call(now, id, out);
                return Err(match life {
                    Life::Gone => Rejected::NoRuntime,
                    Life::Open | Life::Closing | Life::Closed => Rejected::Closed,
                });
            }
        };
        self.queue.note_asking(id, field);
        if let Some(admission) = self.found_by(id, &waiter) {
            return Ok(admission);
        }
        let admission = self.admission(now, (id, waiter), field, out);
        match admission {
            // No other attempt follows.
            Err(Rejected::NotInTime) => self.leave_now(now, id, out),
            Ok(Admission::Busy) | Err(_) => self.end_call(now, id, out),
            Ok(_) => {}
        }
        admission
    }

    fn admission(
        &mut self,
        now: Time,
        (id, waiter): (WaiterId, QueuedCall),
        field: &Arc<str>,
        out: &mut Effects,
    ) -> Result<Admission, Rejected> {
        let owner = waiter.owner;
        let is_over = waiter.deadline.is_some_and(|deadline| deadline <= now);
        if is_over && waiter.stage != Stage::New {
            return Err(Rejected::NotInTime);
        }
        if matches!(waiter.stage, Stage::Subscribing { .. }) && waiter.due.is_none() {
            return Err(Rejected::Unconfirmed);
        }
        // An owner is one caller to the server. What one of its faces does, a call for the other one waits for.
        if !self.is_idle(owner) || self.queue.is_behind_another(id, owner) {
            return self.waits_behind(now, (id, waiter));
        }
        let faces = self.faces(owner).into_iter().flatten();
        let lost = faces.filter_map(|own| own.tenure.lost()).next();
        let (held, around) = (self.holds(owner), self.around(owner));
        // Those that queue wait for this owner: if it waited for them in turn, nothing would go on.
        let needs_no_queue = held || around != EnclosingWrite::None;
        let stands_back = self.queue.yields_until.filter(|until| *until > now);
        let contends = self.may_contend(now, id, &waiter)
            && (waiter.order != Order::Queued || stands_back.is_none());
        if contends && waiter.order == Order::Queued {
            // The others may follow.
            self.freed.remove(waiter.lane());
        }
        // The sections of lost holds may still run, and that of a new hold would run beside them: their guards go
        // first.
        match lost {
            Some(reason) => Err(Rejected::Lost(reason)),
            None if !held && self.reads(owner) => Err(Rejected::OwnRead),
            None if needs_no_queue && !self.may_nest(&waiter) => Err(Rejected::AlreadyHeld),
            None if needs_no_queue || contends => self.permit(now, id, waiter, field, out),
            None => {
                let was_behind = matches!(waiter.stage, Stage::Behind { .. });
                let due = stands_back.into_iter().chain(waiter.deadline).min();
                self.queue.set_stage(id, Stage::Queued, due);
                // It may have to queue now; the next of its owner need not wait for that.
                let next = was_behind.then(|| self.queue.first_blocked(owner));
                next.flatten().into_iter().for_each(|next| out.wake(next));
                match waiter.order {
                    Order::Queued => Ok(Admission::Queued),
                    Order::First | Order::Immediate => Ok(Admission::Busy),
                }
            }
        }
    }

    /// The earlier operation waits for Redis: that is waited for as long as a command is. However many there are before this
    /// one, each has as long.
    fn waits_behind(
        &mut self,
        now: Time,
        (id, waiter): (WaiterId, QueuedCall),
    ) -> Result<Admission, Rejected> {
        let since = match waiter.stage {
            Stage::Behind { since } => since,
            _ => now,
        };
        let latest = match self.is_idle(waiter.owner) {
            // That of an earlier call is to begin.
            true => now,
            false => {
                let faces = self.faces(waiter.owner).into_iter().flatten();
                faces.map(|own| own.op_changed_at).fold(since, Time::max)
            }
        };
        let limit = latest + self.rules.command_timeout;
        if limit <= now {
            return Err(Rejected::NoAnswer);
        }
        let due = waiter
            .deadline
            .map_or(limit, |deadline| deadline.min(limit));
        self.queue.set_stage(id, Stage::Behind { since }, Some(due));
        Ok(Admission::OwnerBusy)
    }

    /// A call is over, whether it is polled or not. Where the server has the queue it keeps its place for another attempt.
    pub(super) fn end_call(&mut self, now: Time, id: WaiterId, out: &mut Effects) {
        let is_queued = |waiter: &QueuedCall| waiter.order == Order::Queued;
        let keeps = self.discipline.keeps_places() && self.life == Life::Open;
        if !keeps || !self.queue.get(id).is_some_and(is_queued) {
            return self.leave_now(now, id, out);
        }
        let until = now + self.rules.command_timeout * 2;
        self.queue.set_stage(id, Stage::Ended, Some(until));
        if let Some(owner) = self.queue.get(id).map(|ended| ended.owner) {
            self.wake_next_of(owner, out);
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
        self.queue
            .set_stage(id, Stage::Sent { is_heard: false }, None);
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

    /// Whether a waiter waits for another process.
    #[cfg(feature = "test-util")]
    pub fn waits_for_others(&self, id: WaiterId) -> bool {
        let waiter = self.queue.get(id);
        waiter.is_some_and(|waiter| {
            matches!(waiter.stage, Stage::Waiting | Stage::Subscribing { .. })
        })
    }

    /// Whether the queue lets other processes go first.
    #[cfg(feature = "test-util")]
    pub fn stands_back(&self, now: Time) -> bool {
        self.queue.yields_until.is_some_and(|until| until > now)
    }

    /// Whether a waiter that found the lock held by another client has a reason to attempt again: its
    /// owner got or lost the lock, or may have no place in the server's queue any more, or another one of this client has
    /// just freed it.
    fn has_reason_to_retry(&self, id: WaiterId) -> bool {
        let Some(waiter) = self.queue.get(id).filter(|_| self.life == Life::Open) else {
            return true;
        };
        let mut faces = self.faces(waiter.owner).into_iter().flatten();
        self.lacks_place(id)
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

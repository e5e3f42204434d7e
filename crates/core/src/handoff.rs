//! Hand-off: the last hold of an owner ends, another owner of this client is first in the queue, and
//! one script moves the field from the one to the other.
//!
//! A pass is one operation of both owners, with one answer. For the giver it is a release that is under
//! way, for the receiver an acquire that another owner sends. If it is answered, the receiver has the
//! field, but no hold before its call picks the lock up: a hold that no caller knows of is not renewed.
//! If it is not answered, each owner has a release of what it may have: whichever of the two
//! fields is there goes, and no send of the pass comes later, because all of them went over the same
//! connection before.
//!
//! Other processes hear nothing of a pass (but of a lease that it shortens), so passes in a streak are bounded by number and time. After
//! the last a real release announces the lock as free, and if others listen, the head of this client's
//! queue lets them go first for a moment.

use std::sync::Arc;
use std::time::Duration;

use super::LockCore;
use super::admission::Admission;
use super::op::{EnclosingWrite, Grant, Pass, Passed};
use super::owner_state::{AfterAcquire, Context, OwnerState};
use super::queue::{Order, PassStreak, QueueLane, QueuedCall, Terms};

use super::values::{Effects, Life, OpId, OwnerKey, ReleaseSend, Time, WaiterId};

impl LockCore {
    /// A repetition of a pass says the same again.
    pub(super) fn pass_under_way(&self, owner: OwnerKey) -> Option<ReleaseSend> {
        let pass = self.owners.get(owner)?.op.release()?.pass.as_ref()?;
        let receiver = self.owners.get(pass.to)?;
        let acquire = receiver
            .op
            .acquire()
            .filter(|acquire| acquire.id == pass.op)?;
        Some(ReleaseSend::Pass {
            to: Arc::clone(&receiver.field),
            lease: acquire.lease.into(),
        })
    }

    /// Occupies giver and receiver, if the next send of a release may be a pass: only for an owner that
    /// has the lock, and has no use for it any more. A section that runs on after its limit has.
    pub(super) fn begin_pass(
        &mut self,
        now: Time,
        owner: OwnerKey,
        out: &mut Effects,
    ) -> Option<ReleaseSend> {
        let own = self.owners.get(owner)?;
        let release = own.op.release().filter(|release| release.may_pass)?;
        debug_assert!(release.pass.is_none());
        let bounds = self.rules.handoff.beside(self.others_listen);
        if !self.discipline.hands_over() {
            return None;
        }
        // What is left of a nested hold stays with its owner, and a client that closes frees what it has.
        if own.tenure.target() > 0 || self.life != Life::Open || bounds.passes == 0 {
            return None;
        }
        let head = self.queue.head(QueueLane::ALL)?;
        // No other process hears of a pass. The release that ends the streak publishes that the lock is free.
        if let Some(streak) = self.queue.streak
            && (streak.passes >= bounds.passes || streak.since + bounds.longest < now)
        {
            let over = true;
            self.queue.streak = Some(PassStreak { over, ..streak });
            return None;
        }
        if self.owners.others_block(owner) {
            // A command of theirs is under way, or a section runs on after its limit.
            return None;
        }
        let waiter = self.receiver(head)?;
        let (to, terms) = (waiter.owner, waiter.terms);
        let field = waiter.field?;
        let generation = self.ids.generation();
        let receiver = || OwnerState::new(Arc::clone(&field), generation, false, now);
        self.owners.ensure(to, receiver);
        // The value of a string lock is used once: for another pass the call names a field when it asks again.
        self.queue.consume_field(head);
        let op = self.change(now, to, out, |own, cx| own.begin_grant(head, terms, cx))?;
        self.change(now, owner, out, |own, _| {
            if let Some(release) = own.op.release_mut() {
                release.pass = Some(Pass { to, op });
            }
        });
        self.pass_under_way(owner)
    }

    /// Who gets the lock when its owner has no use for it any more: not that owner, whose release is
    /// under way.
    fn receiver(&self, head: WaiterId) -> Option<QueuedCall> {
        let waiter = self.queue.get(head).filter(|waiter| waiter.is_ready())?;
        let own = self.owners.get(waiter.owner);
        let is_free = own.is_none_or(|own| {
            own.op.is_idle() && !own.tenure.is_held() && own.tenure.lost().is_none()
        });
        is_free.then(|| waiter.clone())
    }

    /// The pass of an owner, if one is under way: it is over now. Its receiver is told by `end_pass`.
    pub(super) fn take_pass(
        &mut self,
        now: Time,
        owner: OwnerKey,
        out: &mut Effects,
    ) -> Option<Pass> {
        self.owners.get(owner)?.op.release()?.pass.as_ref()?;
        self.change(now, owner, out, |own, _| own.op.release_mut()?.pass.take())
            .flatten()
    }

    /// The receiver's part of the end of a pass.
    pub(super) fn end_pass(&mut self, now: Time, pass: &Pass, passed: Passed, out: &mut Effects) {
        let limit = now + self.rules.command_timeout;
        // Counted whether or not its call takes it: for other processes the lock was not free.
        if let Passed::Moved { sent_at, .. } = passed
            && self.discipline.hands_over()
        {
            let streak = self.queue.streak.get_or_insert(PassStreak {
                passes: 0,
                since: sent_at,
                over: false,
            });
            streak.passes += 1;
        }
        let own = self.owners.get(pass.to);
        let acquire = own.and_then(|own| own.op.acquire());
        let Some(acquire) = acquire.filter(|acquire| acquire.id == pass.op) else {
            return;
        };
        let waiter = acquire.waiter;
        let is_there = self.queue.get(waiter).is_some();
        self.change(now, pass.to, out, |own, cx| match passed {
            Passed::Moved { sent_at, token } if is_there => own.give((sent_at, token), limit, cx),
            // Its call has left meanwhile: a release of the receiver frees what it got.
            Passed::Moved { .. } => own.end_acquire(AfterAcquire::Unwanted, cx),
            Passed::Unknown => own.end_acquire(AfterAcquire::Unknown, cx),
            Passed::NotExecuted => own.end_acquire(AfterAcquire::NotExecuted, cx),
        });
        if is_there {
            out.wake(waiter);
        }
    }

    /// What a waiter finds that the lock is granted to, or for which an acquire is under way. `None`: there is none.
    pub(super) fn found_by(&self, id: WaiterId, waiter: &QueuedCall) -> Option<Admission> {
        let acquire = self.owners.get(waiter.owner)?.op.acquire();
        let acquire = acquire.filter(|acquire| acquire.waiter == id)?;
        Some(match acquire.grant {
            None | Some(Grant::Awaited | Grant::Revoked) => Admission::Sent,
            Some(Grant::Given { .. }) => Admission::Granted,
        })
    }

    /// The lock is free for every client: the streak of passes ends. If a bound ended it, and others listen,
    /// they go first.
    pub(super) fn end_streak(&mut self, now: Time, others_listen: bool) {
        self.others_listen = others_listen;
        // Nothing is written where nothing changes: a queue that is empty would be made for it.
        if let Some(streak) = self.queue.streak {
            self.queue.streak = None;
            self.queue.yields_until = (streak.over && others_listen).then(|| now + YIELD_TIME);
        } else if self.queue.yields_until.is_some() {
            self.queue.yields_until = None;
        }
    }
}

impl OwnerState {
    /// The lock is being handed to this owner.
    pub(super) fn begin_grant(
        &mut self,
        waiter: WaiterId,
        terms: Terms,
        cx: &mut Context<'_>,
    ) -> OpId {
        let around = EnclosingWrite::None;
        let acquire = self.begin_acquire(waiter, Order::Queued, terms, around, cx);
        let id = acquire.id;
        if let Some(acquire) = self.op.acquire_mut() {
            (acquire.grant, acquire.is_passed) = (Some(Grant::Awaited), true);
        }
        id
    }
}

/// How long the queue of this client stands back for other processes behind a streak of passes.
const YIELD_TIME: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests;

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
use super::admission::{Admission, Permit};
use super::hold::local_deadline;
use super::op::{EnclosingWrite, Grant, Pass, Passed};
use super::owner_state::{AfterAcquire, Context, OwnerState};
use super::queue::{Order, PassStreak, QueueLane, QueuedCall, Terms};

use super::values::{Effects, Life, OpId, OwnerKey, ReleaseSend, Time, Token, Total, WaiterId};

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

    /// What a waiter finds that the lock is handed to. `None`: it is not.
    pub(super) fn pick_up(
        &mut self,
        now: Time,
        id: WaiterId,
        waiter: &QueuedCall,
        out: &mut Effects,
    ) -> Option<Admission> {
        let found = self.change(now, waiter.owner, out, |own, _| {
            Some((own.pick_up(id)?, Arc::clone(&own.field)))
        });
        Some(match found.flatten()? {
            (PickUp::Awaited, _) => Admission::Queued { again: None },
            (PickUp::Given(op, sent_at), field) => {
                let permit = Permit {
                    waiter: id,
                    owner: waiter.owner,
                    op,
                    field,
                    target: 1,
                    queues_up: false,
                    place_wait: waiter.terms.wait,
                    terms: waiter.terms,
                };
                Admission::Granted(permit, sent_at)
            }
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

    /// A lock was handed to a call that has not picked it up in time: it is not polled.
    pub(super) fn expire_grant(&mut self, now: Time, owner: OwnerKey) {
        let given = self.owners.get(owner).and_then(|own| own.op.given());
        if let Some((waiter, _)) = given.filter(|(_, until)| *until <= now) {
            self.queue.pass_over(waiter);
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
            acquire.grant = Some(Grant::Awaited);
        }
        id
    }

    /// The field is this owner's. Its call has until `limit` to pick the lock up.
    fn give(&mut self, (sent_at, token): (Time, Option<Token>), limit: Time, cx: &mut Context<'_>) {
        let Some(acquire) = self.op.acquire_mut() else {
            return;
        };
        let until = limit.min(local_deadline(sent_at, acquire.lease.into()));
        // The loss was heard of before the answer of the pass: there is nothing to give, nor to release.
        if acquire.grant == Some(Grant::Revoked) {
            self.end_acquire(AfterAcquire::NotExecuted, cx);
        } else if acquire.then_release || until <= cx.now {
            self.end_acquire(AfterAcquire::Unwanted, cx);
        } else if let Some(grant) = &mut acquire.grant {
            *grant = Grant::Given {
                sent_at,
                until,
                token,
            };
            self.op_changed_at = cx.now;
            cx.out.count(Total::Passed, 1);
        }
    }

    /// The lock that is handed to this owner was taken away before its call has it.
    pub(super) fn lose_grant(&mut self, cx: &mut Context<'_>) {
        let Some(acquire) = self.op.acquire_mut() else {
            return;
        };
        match acquire.grant {
            Some(Grant::Awaited) => acquire.grant = Some(Grant::Revoked),
            Some(Grant::Given { .. }) => {
                cx.out.wake(acquire.waiter);
                self.end_acquire(AfterAcquire::NotExecuted, cx);
            }
            Some(Grant::Revoked | Grant::PickedUp { .. }) | None => {}
        }
    }

    /// The lock that was handed to this call of the owner, or is being handed to it.
    pub(super) fn pick_up(&mut self, id: WaiterId) -> Option<PickUp> {
        let acquire = self.op.acquire_mut().filter(|own| own.waiter == id)?;
        match acquire.grant? {
            Grant::Awaited | Grant::Revoked => Some(PickUp::Awaited),
            Grant::Given { sent_at, token, .. } => {
                acquire.grant = Some(Grant::PickedUp { token });
                Some(PickUp::Given(acquire.id, sent_at))
            }
            Grant::PickedUp { .. } => None,
        }
    }

    /// Whether it is handed the lock, or will be.
    pub(super) fn is_granted(&self) -> bool {
        let acquire = self.op.acquire();
        acquire.is_some_and(|acquire| acquire.grant.is_some())
    }

    /// The call that the lock is handed to has left.
    pub(super) fn refuse_grant(&mut self, id: WaiterId, cx: &mut Context<'_>) {
        // While the pass has no answer, its end finds that the call has left. One that has picked the lock up
        // decides what becomes of it.
        if self.op.given().is_some_and(|(waiter, _)| waiter == id) {
            self.end_acquire(AfterAcquire::Unwanted, cx);
        }
    }
}

/// The outcome for a waiter that the lock is handed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PickUp {
    Awaited,
    Given(OpId, Time),
}

/// How long the queue of this client stands back for other processes behind a streak of passes.
const YIELD_TIME: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests;

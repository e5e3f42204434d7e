//! An acquire: what it says, what comes of its answer, and the call that claims the lock.
//!
//! The step that admits a call has its acquire sent. The task that reads the answer applies it, whether the call is polled or
//! not: the lock is granted to the call, or the call finds why not.

use std::sync::Arc;
use std::time::Duration;

use super::LockCore;
use super::admission::Rejected;
use super::hold::local_deadline;
use super::liveness::Then;
use super::op::{Acquire, EnclosingWrite, Grant};
use super::owner_state::{AfterAcquire, Context, OwnerState};
use super::queue::{Stage, Terms};
use super::values::{
    Effects, HoldId, Life, LossReason, OpId, OwnerKey, Rules, Time, Token, Total, WaiterId,
};

/// What one acquire for one owner says.
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

/// A hold that has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Claimed {
    pub hold: HoldId,
    /// If the lock has one.
    pub token: Option<Token>,
    /// Before the send that has taken it, for this lease and to this count.
    pub sent_at: Time,
    pub lease: Duration,
    pub target: u32,
}

/// What became of a lock that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Taking {
    /// Its call has a command timeout to claim it.
    Granted,
    /// The answer came when the lease was already over: it is released.
    TooLate,
    /// No call wants it: it is released.
    Unwanted,
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
    /// What a copy of an acquire says. `None`: it is not under way any more, or has its answer.
    pub fn acquire_says(&self, owner: OwnerKey, op: OpId) -> Option<Permit> {
        let own = self.owners.get(owner)?;
        let acquire = own.op.acquire().filter(|acquire| acquire.id == op)?;
        let waiter = self.queue.get(acquire.waiter)?;
        acquire.grant.is_none().then(|| Permit {
            waiter: acquire.waiter,
            owner,
            op,
            field: Arc::clone(&own.field),
            target: acquire.target,
            queues_up: acquire.queues_up,
            place_wait: own.tenure.place_wait(),
            terms: waiter.terms,
        })
    }

    /// A copy of an acquire enters its connection. Returns whether it is still wanted.
    pub(super) fn acquire_enters(&mut self, owner: OwnerKey, op: OpId) -> bool {
        // Nothing that is kept elsewhere follows from it.
        let own = self.owners.get_mut(owner);
        let acquire = own.and_then(|own| own.op.acquire_mut());
        acquire.is_some_and(|acquire| {
            acquire.is_sent |= acquire.id == op;
            acquire.id == op && acquire.grant.is_none()
        })
    }

    /// An acquire was answered: its owner has the lock. Its call gets it, unless the lease is over or the call has left by now;
    /// then a release undoes it. `is_outside`: the server says that the owner, which is to read, does not write. If it holds
    /// the lock for writing here, that was lost.
    pub(super) fn acquired(
        &mut self,
        now: Time,
        permit: &Permit,
        (sent_at, token): (Time, Option<Token>),
        is_outside: bool,
        out: &mut Effects,
    ) -> Taking {
        self.step(now, out, |core, out| {
            let Some(acquire) = core.acquire_of(permit) else {
                return Taking::Unwanted;
            };
            if is_outside && acquire.around == EnclosingWrite::Held {
                // The read has made the hash, unless it has joined a hold of its own.
                let reason = match permit.target {
                    1 => LossReason::Gone,
                    _ => LossReason::Taken,
                };
                core.lose_write_around(now, permit.owner, reason, out);
            }
            let (is_wanted, rules) = (core.life == Life::Open, Arc::clone(&core.rules));
            let limit = now + rules.command_timeout;
            let taking = core.change(now, permit.owner, out, |own, cx| {
                // Less than the lease where other clients may shorten it, as those that read beside this one may.
                let certain = own.tenure.certain(permit.terms.lease, &rules);
                let is_late = local_deadline(sent_at, certain) <= now;
                if is_late || !is_wanted {
                    own.end_acquire(AfterAcquire::Unwanted, cx);
                } else {
                    own.note_lease_of_nested(permit, sent_at, &rules);
                    own.give((sent_at, token), limit, cx);
                }
                match (is_wanted, is_late) {
                    (false, _) => Taking::Unwanted,
                    (true, true) => Taking::TooLate,
                    (true, false) => Taking::Granted,
                }
            });
            if taking == Some(Taking::TooLate) {
                core.end_call(now, permit.waiter, out);
            }
            out.wake(permit.waiter);
            taking.unwrap_or(Taking::Unwanted)
        })
    }

    /// A call claims the lock that was granted to it: the hold goes into the books, unless it is over or unwanted by now. Then
    /// a release undoes it. Its call leaves the queue.
    pub(super) fn claim(
        &mut self,
        now: Time,
        id: WaiterId,
        out: &mut Effects,
    ) -> Result<Claimed, Rejected> {
        self.step(now, out, |core, out| {
            let given_back = core.given_back();
            let waiter = core.queue.get(id).ok_or(given_back)?;
            let (owner, terms) = (waiter.owner, waiter.terms);
            let (life, rules) = (core.life, Arc::clone(&core.rules));
            let taken = core.change(now, owner, out, |own, cx| {
                let acquire = own.op.acquire().filter(|acquire| acquire.waiter == id);
                let Some((acquire, Grant::Given { sent_at, token, .. })) =
                    acquire.and_then(|acquire| Some((acquire, acquire.grant?)))
                else {
                    return Err(given_back);
                };
                let target = acquire.target;
                // Neither handed over nor nested: whatever streak of passes there was is over.
                let by_itself = !acquire.is_passed && acquire.target == 1;
                // Holds of this owner were lost while the attempt was under way: what it has nested into had ended by
                // then.
                let lost_meanwhile = acquire.has_lost && !own.tenure.is_held();
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
                let hold = cx.ids.hold();
                let (lease, replicas) = (terms.lease, terms.replicas);
                let policy = terms.policy(sent_at);
                own.tenure
                    .add(hold, policy, sent_at, lease, replicas, &rules);
                own.end_acquire(AfterAcquire::Applied, cx);
                cx.out.count(Total::Acquired, 1);
                let claimed = Claimed {
                    hold,
                    token,
                    sent_at,
                    lease,
                    target,
                };
                Ok((claimed, by_itself))
            });
            let taken = taken.unwrap_or(Err(given_back));
            if matches!(taken, Err(rejected) if rejected != Rejected::GivenBack) {
                core.end_call(now, id, out);
            }
            let (claimed, by_itself) = taken?;
            // Whichever call took it, there is nothing left to go first for.
            core.queue.yields_until = None;
            if by_itself {
                core.queue.streak = None;
            }
            core.leave_now(now, id, out);
            Ok(claimed)
        })
    }

    /// Whether an acquire of this call is under way, or a pass to it, or the lock is granted to it. It finds out no more than that.
    pub fn has_acquire(&self, id: WaiterId) -> bool {
        self.acquire_of_call(id).is_some()
    }

    /// The same, before it is answered.
    pub fn awaits_answer(&self, id: WaiterId) -> bool {
        let acquire = self.acquire_of_call(id);
        acquire.is_some_and(|acquire| !matches!(acquire.grant, Some(Grant::Given { .. })))
    }

    /// Whether the lock is granted to this call, and not claimed yet.
    pub fn is_granted(&self, id: WaiterId) -> bool {
        let acquire = self.acquire_of_call(id);
        acquire.is_some_and(|acquire| matches!(acquire.grant, Some(Grant::Given { .. })))
    }

    fn acquire_of_call(&self, id: WaiterId) -> Option<&Acquire> {
        let owner = self.queue.get(id)?.owner;
        let acquire = self.owners.get(owner)?.op.acquire()?;
        (acquire.waiter == id).then_some(acquire)
    }

    /// Why a call does not get what was granted to it.
    fn given_back(&self) -> Rejected {
        match self.life {
            Life::Open => Rejected::GivenBack,
            Life::Gone => Rejected::NoRuntime,
            Life::Closing | Life::Closed => Rejected::Closed,
        }
    }

    /// The attempt brought no lock. Whatever may be in Redis of it is undone by a release, and its call goes on so.
    pub(super) fn untaken(
        &mut self,
        now: Time,
        permit: &Permit,
        (outcome, then): (Untaken, Then),
        out: &mut Effects,
    ) -> Rejected {
        let reason = self.step(now, out, |core, out| {
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
            if around.is_some() {
                core.go_on(now, permit.waiter, then, out);
            }
            reason
        });
        Rejected::Lost(reason.flatten().unwrap_or(LossReason::Gone))
    }

    /// Whether this attempt is under way, and has no answer yet.
    pub fn is_attempting(&self, permit: &Permit) -> bool {
        let acquire = self.acquire_of(permit);
        acquire.is_some_and(|acquire| acquire.grant.is_none())
    }

    /// A lock was granted to a call that has not claimed it in time: it is not polled.
    pub(super) fn expire_grant(&mut self, now: Time, owner: OwnerKey) {
        let given = self.owners.get(owner).and_then(|own| own.op.given());
        if let Some((waiter, _)) = given.filter(|(_, until)| *until <= now) {
            let stage = self.queue.get(waiter).map(|waiter| waiter.stage);
            if matches!(stage, Some(Stage::Sent { .. })) {
                self.queue.set_stage(waiter, Stage::Queued, None);
            }
            self.queue.pass_over(waiter);
        }
    }
}

impl OwnerState {
    /// The server has the lease that a nested lock was granted for, whether its call claims it or not: what is released until
    /// then is not gone because a lease was over.
    fn note_lease_of_nested(&mut self, permit: &Permit, sent_at: Time, rules: &Rules) {
        let acquire = self.op.acquire();
        if permit.target > 1 && acquire.is_some_and(|acquire| !acquire.has_lost) {
            self.tenure.promise(sent_at, permit.terms.lease, 0, rules);
        }
    }

    /// The field is this owner's. Its call has until `limit` to claim the lock.
    pub(super) fn give(
        &mut self,
        (sent_at, token): (Time, Option<Token>),
        limit: Time,
        cx: &mut Context<'_>,
    ) {
        let Some(acquire) = self.op.acquire_mut() else {
            return;
        };
        let until = limit.min(local_deadline(sent_at, acquire.lease.into()));
        // The loss was heard of before the answer of the pass: there is nothing to give, nor to release.
        if acquire.grant == Some(Grant::Revoked) {
            return self.end_acquire(AfterAcquire::NotExecuted, cx);
        }
        // Who is handed a lock holds nothing else that could have been released meanwhile.
        if acquire.is_passed && acquire.then_release || until <= cx.now {
            return self.end_acquire(AfterAcquire::Unwanted, cx);
        }
        let is_passed = acquire.is_passed;
        acquire.grant = Some(Grant::Given {
            sent_at,
            until,
            token,
        });
        self.op_changed_at = cx.now;
        if is_passed {
            cx.out.count(Total::Passed, 1);
        }
    }

    /// The lock that is granted to this owner was taken away before its call has it.
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
            Some(Grant::Revoked) | None => {}
        }
    }

    /// The call of an acquire has left: what it has taken, or may have, is given up.
    pub(super) fn abandon(&mut self, id: WaiterId, cx: &mut Context<'_>) {
        let Some(acquire) = self.op.acquire().filter(|acquire| acquire.waiter == id) else {
            return;
        };
        match acquire.grant {
            Some(Grant::Given { .. }) => self.end_acquire(AfterAcquire::Unwanted, cx),
            None if acquire.is_sent => self.end_acquire(AfterAcquire::Unknown, cx),
            None => self.end_acquire(AfterAcquire::NotExecuted, cx),
            // While a pass has no answer, its end finds that the call has left.
            Some(Grant::Awaited | Grant::Revoked) => {}
        }
    }
}

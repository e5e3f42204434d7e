//! Unlocks, dropped guards, and what the background has to do.
//!
//! Every send says the count of its moment, so that whatever happened before is included, and a later
//! release is never undone by a late one.

use std::sync::Arc;

use super::LockCore;
use super::handover::Passed;
use super::op::{Release, Unlock};
use super::owner_state::{Context, OwnerState};
use super::values::{Effects, HoldId, Life, LossReason, OpId, ThreadId, Time, Total};

/// How an unlock begins.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ReleaseStart {
    Send(Unlock),
    /// An acquire of the same owner is under way since then; its end is announced.
    OwnerBusy {
        since: Time,
    },
    /// Somebody else released the same detached hold in between.
    NotHeld,
}

/// What a release was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReleaseAnswer {
    /// The count that the answered send went to.
    pub target: u32,
    /// `None`: the count is what was asked for. Else why the field is not there any more.
    pub gone: Option<LossReason>,
    /// Before the very first send of this unlock or job step.
    pub first_sent_at: Time,
    /// Before the answered send.
    pub sent_at: Time,
    /// The message was heard by others than this client.
    pub others_listen: bool,
}

impl ReleaseAnswer {
    /// What the receiver of a pass makes of it.
    fn passed(&self) -> Passed {
        match self.gone {
            None => Passed::Moved {
                sent_at: self.sent_at,
            },
            Some(_) => Passed::NotExecuted,
        }
    }
}

/// What becomes of a release without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NoReply {
    GoOn,
    /// It cannot succeed: the lease frees the lock.
    GiveUp,
}

/// What a job does next.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum JobStep {
    /// It sends, and goes on trying until `give_up_at`, which is read anew before each try. While a hold
    /// is left it is always ahead; behind the last one it is when the lease is over.
    Send { field: Arc<str>, give_up_at: Time },
    /// Redis has the count, or the job has ended before.
    Done,
}

impl LockCore {
    /// Takes a hold out of the books, and occupies its owner with the release. `Err`: it was lost.
    pub fn begin_unlock(
        &mut self,
        now: Time,
        owner: ThreadId,
        hold: HoldId,
        out: &mut Effects,
    ) -> Result<ReleaseStart, LossReason> {
        let start = self.step(now, out, |core, out| {
            core.change(now, owner, out, |own, cx| {
                if let Some(reason) = own.tenure.loss_of(hold) {
                    own.acknowledge(hold, cx);
                    return Err(reason);
                }
                if !own.tenure.has(hold) {
                    return Ok(ReleaseStart::NotHeld);
                }
                if own.op.acquire().is_some() {
                    return Ok(ReleaseStart::OwnerBusy {
                        since: own.moved_at,
                    });
                }
                if !own.take_out(hold, cx) {
                    return Ok(ReleaseStart::NotHeld);
                }
                Ok(ReleaseStart::Send(own.join_release(cx)))
            })
        });
        start.unwrap_or(Ok(ReleaseStart::NotHeld))
    }

    /// A guard was dropped: the hold counts as released from here on, and a job does the rest.
    pub fn drop_hold(&mut self, now: Time, owner: ThreadId, hold: HoldId, out: &mut Effects) {
        self.step(now, out, |core, out| core.drop_now(now, owner, hold, out));
    }

    fn drop_now(&mut self, now: Time, owner: ThreadId, hold: HoldId, out: &mut Effects) {
        self.change(now, owner, out, |own, cx| {
            if own.take_out(hold, cx) {
                cx.out.count(Total::Released, 1);
                own.release_in_background(cx);
            } else {
                own.acknowledge(hold, cx);
            }
        });
    }

    /// Drops every detached hold; answers how many.
    pub fn drop_detached(&mut self, now: Time, out: &mut Effects) -> usize {
        self.step(now, out, |core, out| {
            let detached = core
                .owners
                .iter()
                .map(|(owner, own)| (owner, own.tenure.detached()));
            let detached: Vec<_> = detached.collect();
            for (owner, hold) in detached
                .iter()
                .flat_map(|(owner, holds)| holds.iter().map(|hold| (*owner, *hold)))
            {
                core.drop_now(now, owner, hold, out);
            }
            detached.iter().map(|(_, holds)| holds.len()).sum()
        })
    }

    pub fn detach(&mut self, now: Time, owner: ThreadId, hold: HoldId, out: &mut Effects) {
        self.step(now, out, |core, out| {
            core.change(now, owner, out, |own, _| own.tenure.detach(hold));
        });
    }

    /// A detached hold of this owner, for the caller to release.
    pub fn claim_detached(
        &mut self,
        now: Time,
        owner: ThreadId,
        out: &mut Effects,
    ) -> Option<HoldId> {
        self.step(now, out, |core, out| {
            core.change(now, owner, out, |own, _| own.tenure.claim_detached())
                .flatten()
        })
    }

    /// Has jobs go on with unlocks whose callers have not polled them for longer than a command may
    /// take: others wait for them.
    pub(super) fn take_over_stuck(&mut self, now: Time, out: &mut Effects) {
        while let Some((since, owner)) = self.owners.first_unlock() {
            if since + self.rules.command_timeout > now {
                return;
            }
            self.abandon_pass(now, owner, out);
            self.change(now, owner, out, OwnerState::take_over_unlocks);
        }
    }

    /// Whether a job has taken this unlock over: a send would not be in order with its own any more.
    pub fn is_taken_over(&self, unlock: &Unlock) -> bool {
        !self.is_at_release(unlock.owner, unlock.op)
    }

    /// The count that a release of this owner goes to.
    #[cfg(feature = "test-util")]
    pub fn release_target(&self, owner: ThreadId) -> u32 {
        self.owners.get(owner).map_or(0, |own| own.tenure.target())
    }

    /// An unlock was answered. `Err`: the hold had ended before.
    pub fn unlocked(
        &mut self,
        now: Time,
        unlock: &Unlock,
        answer: ReleaseAnswer,
        out: &mut Effects,
    ) -> Result<(), LossReason> {
        // Another send that said 0 may have freed the lock: an earlier one of this unlock, or one of
        // another release of the same owner. Then it is no loss. If a job has taken the unlock over,
        // there is nobody left to ask.
        let own = self.owners.get(unlock.owner);
        let may_be_freed = own
            .and_then(|own| own.op.release())
            .filter(|release| release.id == unlock.op)
            .is_none_or(|release| release.freeing_sends > u32::from(answer.target == 0));
        let freed_before = may_be_freed && answer.first_sent_at < unlock.deadline;
        let lost = match answer.gone {
            Some(LossReason::Gone | LossReason::Taken) if freed_before => None,
            gone => gone,
        };
        self.end_unlock(now, unlock, Some(answer), out, |own, cx| {
            own.count_unlock(lost, cx);
            own.apply(answer, cx);
        });
        lost.map_or(Ok(()), Err)
    }

    /// An unlock has no answer, or nobody waits for it any more.
    pub fn not_unlocked(&mut self, now: Time, unlock: &Unlock, then: NoReply, out: &mut Effects) {
        self.end_unlock(now, unlock, None, out, |own, cx| {
            own.count_unlock(None, cx);
            match then {
                NoReply::GoOn => own.release_in_background(cx),
                NoReply::GiveUp => {
                    own.mark_in_sync();
                    cx.out.count(Total::GaveUp, 1);
                }
            }
        });
    }

    /// Ends an unlock, if it is not taken over, with what changes because of it.
    fn end_unlock(
        &mut self,
        now: Time,
        unlock: &Unlock,
        answer: Option<ReleaseAnswer>,
        out: &mut Effects,
        change: impl FnOnce(&mut OwnerState, &mut Context<'_>),
    ) {
        self.step(now, out, |core, out| {
            if core.is_taken_over(unlock) {
                return;
            }
            core.end_send(now, unlock.owner, answer, out, |own, cx| {
                if let Some(release) = own.op.release_mut() {
                    release.direct -= 1;
                }
                change(own, cx);
                own.end_release_if_over(cx);
            });
        });
    }

    /// A send of a release was answered, or will not be: for its owner, for the receiver of a pass, and
    /// for those who wait until the lock is free.
    fn end_send(
        &mut self,
        now: Time,
        owner: ThreadId,
        answer: Option<ReleaseAnswer>,
        out: &mut Effects,
        change: impl FnOnce(&mut OwnerState, &mut Context<'_>),
    ) {
        let pass = self.take_pass(now, owner, out);
        self.change(now, owner, out, |own, cx| {
            own.moved_at = cx.now;
            change(own, cx);
        });
        match (pass, answer) {
            (Some(pass), Some(answer)) => self.end_pass(now, &pass, answer.passed(), out),
            (Some(pass), None) => self.end_pass(now, &pass, Passed::Unknown, out),
            (None, Some(answer)) if answer.target == 0 && answer.gone.is_none() => {
                self.freed_at = Some(now);
                self.end_row(now, answer.others_listen);
            }
            (None, _) => {}
        }
    }

    /// What is left to do for the job of an owner.
    pub fn job_step(
        &mut self,
        now: Time,
        owner: ThreadId,
        job: OpId,
        out: &mut Effects,
    ) -> JobStep {
        let step = self.step(now, out, |core, out| {
            // Its last send has no answer.
            core.abandon_pass_of_job(now, owner, job, out);
            core.change(now, owner, out, |own, cx| own.next_of_job(job, cx))
        });
        step.unwrap_or(JobStep::Done)
    }

    /// The send of a job was answered.
    pub fn job_answered(
        &mut self,
        now: Time,
        owner: ThreadId,
        job: OpId,
        answer: ReleaseAnswer,
        out: &mut Effects,
    ) {
        self.step(now, out, |core, out| {
            if core.is_at_release(owner, job) {
                core.end_send(now, owner, Some(answer), out, |own, cx| {
                    own.apply(answer, cx)
                });
            }
        });
    }

    /// A job gives up, could not be spawned, or was dropped with its runtime: the lease frees the
    /// lock.
    pub fn job_gone(&mut self, now: Time, owner: ThreadId, job: OpId, out: &mut Effects) {
        self.step(now, out, |core, out| {
            core.abandon_pass_of_job(now, owner, job, out);
            core.change(now, owner, out, |own, cx| {
                let Some(release) = own.op.release_mut().filter(|release| release.id == job) else {
                    return;
                };
                if release.job.take().is_some() {
                    cx.out.count(Total::GaveUp, 1);
                }
                own.end_release_if_over(cx);
            });
        });
    }
}

impl OwnerState {
    fn take_over_unlocks(&mut self, cx: &mut Context<'_>) {
        // Under another id: those who began them have no part in it any more.
        let id = cx.ids.op();
        let Some(release) = self.op.release_mut() else {
            return;
        };
        let unlocks = std::mem::take(&mut release.direct);
        release.id = id;
        cx.out.count(Total::Released, unlocks as usize);
        self.release_in_background(cx);
        // If the client is closed, no job has begun.
        self.end_release_if_over(cx);
    }

    /// A send that said `target` is none of those that may have freed the lock.
    pub(super) fn has_freed_nothing(&mut self, target: u32) {
        if let Some(release) = self.op.release_mut().filter(|_| target == 0) {
            release.freeing_sends = release.freeing_sends.saturating_sub(1);
        }
    }

    /// What a release was answered changes what is known of the count.
    fn apply(&mut self, answer: ReleaseAnswer, cx: &mut Context<'_>) {
        if answer.gone.is_some() {
            self.has_freed_nothing(answer.target);
        }
        match answer.gone {
            None if answer.target == self.tenure.target() => self.mark_in_sync(),
            None => {}
            Some(reason) => self.lose(reason, cx),
        }
    }

    fn next_of_job(&mut self, job: OpId, cx: &mut Context<'_>) -> JobStep {
        let (held, closed) = (self.tenure.is_held(), cx.life == Life::Closed);
        let release = self.op.release_mut().filter(|release| release.id == job);
        let Some(Release {
            direct, job, raced, ..
        }) = release
        else {
            return JobStep::Done;
        };
        let Some(at) = job else { return JobStep::Done };
        if *raced && *direct == 0 {
            // Overlapping sends may have been executed in another order than they were built. For
            // holds that stay the count is said once more, now that nobody else is under way.
            *raced = false;
            at.in_sync &= !held;
        }
        if at.in_sync || closed {
            *job = None;
            self.end_release_if_over(cx);
            return JobStep::Done;
        }
        // What is still held may be renewed or extended: no lease makes up for a count that is too high.
        let give_up_at = if held {
            cx.now + self.tenure.lease_max()
        } else {
            at.give_up_at
        };
        JobStep::Send {
            field: Arc::clone(&self.field),
            give_up_at,
        }
    }
}

#[cfg(test)]
mod tests;

//! The release that brings Redis to the count that is left.

use std::sync::Arc;

use super::LockCore;
use super::op::{Op, Passed, ReleaseStage, Sent, Unlock, Unlocking};
use super::owner_state::{Context, OwnerState};
use super::tenure::QueueSlot;
use super::values::{
    Carrier, Effects, Event, FailedSend, Life, LossReason, OpId, OwnerKey, ReleaseAnswer,
    ReleaseSend, ReleaseStep, Rules, Time, Total, Unlocked,
};

impl ReleaseAnswer {
    /// What the receiver of a pass makes of it.
    fn passed(&self) -> Passed {
        match self.gone {
            None => Passed::Moved {
                sent_at: self.sent_at,
                token: self.token,
            },
            Some(_) => Passed::NotExecuted,
        }
    }
}

impl LockCore {
    /// The count that a release of this owner goes to.
    #[cfg(feature = "test-util")]
    pub fn release_target(&self, owner: OwnerKey) -> u32 {
        self.owners.get(owner).map_or(0, |own| own.tenure.target())
    }

    /// Whether callers wait for the outcome of a release of this owner.
    pub fn is_awaited(&self, owner: OwnerKey) -> bool {
        let own = self.owners.get(owner);
        own.is_some_and(OwnerState::is_awaited)
    }

    /// A send of a release begins, over this connection if it goes immediately. What was sent before it and has no answer may
    /// still be executed there.
    pub(super) fn release_step(
        &mut self,
        now: Time,
        owner: OwnerKey,
        op: OpId,
        carrier: Option<Carrier>,
        out: &mut Effects,
    ) -> ReleaseStep {
        let step = self.step(now, out, |core, out| {
            let [_, other] = core.faces(owner);
            let kept = other.and_then(|other| other.may_last_until(now));
            core.change(now, owner, out, |own, cx| {
                own.next_of_release(op, carrier, kept, cx)
            })
        });
        step.unwrap_or(ReleaseStep::Done)
    }

    /// A release is about to be sent. Returns what it has to say at this moment. `None`: it is over.
    /// `may_pass`: the connection allows for a hand-off.
    pub(super) fn release_sent(
        &mut self,
        now: Time,
        owner: OwnerKey,
        op: OpId,
        may_pass: bool,
        out: &mut Effects,
    ) -> Option<ReleaseSend> {
        let rules = Arc::clone(&self.rules);
        self.step(now, out, |core, out| {
            if !core.is_at_release(owner, op) {
                return None;
            }
            core.change(now, owner, out, |own, _| {
                own.op.release_mut()?.note_unanswered();
                Some(())
            });
            // A copy of a pass moves the same lock to the same receiver. Another receiver, or a release in its place,
            // would free what the first copy may have given away.
            let pass = match core.pass_under_way(owner) {
                None if may_pass => core.begin_pass(now, owner, out),
                pass => pass,
            };
            core.change(now, owner, out, |own, cx| {
                let (target, leaves) = (own.tenure.target(), own.leaves(cx));
                // After its lease the field may be gone for that reason alone, so this send explains no missing field.
                let in_time = now < own.tenure.deadline();
                if let Some(release) = own.op.release_mut() {
                    release.sent = Some(Sent {
                        target,
                        in_time,
                        leaves,
                    });
                }
                own.moves_unlocks(Unlocking::Joined, Unlocking::Sent);
                pass.unwrap_or_else(|| ReleaseSend::Count {
                    target,
                    lease: own.tenure.promised(now, &rules),
                    leaves: leaves.then(|| own.tenure.place_wait()),
                })
            })
        })
    }

    /// The last send of a release was never written: it is not why the next one finds nothing.
    pub(super) fn release_unwritten(
        &mut self,
        now: Time,
        owner: OwnerKey,
        op: OpId,
        out: &mut Effects,
    ) {
        self.step(now, out, |core, out| {
            core.change(now, owner, out, |own, _| {
                let release = own.op.release_mut().filter(|release| release.id == op);
                release.map(|release| release.sent = None)
            });
        });
    }

    /// A pass was certainly not executed: it was refused, or never sent. A release that frees the lock follows.
    pub(super) fn release_not_executed(
        &mut self,
        now: Time,
        owner: OwnerKey,
        op: OpId,
        out: &mut Effects,
    ) {
        self.step(now, out, |core, out| {
            core.end_send(now, owner, op, Passed::NotExecuted, out, |own, _| {
                if let Some(release) = own.op.release_mut() {
                    release.sent = None;
                }
            });
        });
    }

    /// There are too many releases under way for this one.
    pub(super) fn release_waits(
        &mut self,
        now: Time,
        owner: OwnerKey,
        op: OpId,
        out: &mut Effects,
    ) {
        self.step(now, out, |core, out| {
            core.change(now, owner, out, |own, _| {
                let release = own.op.release_mut().filter(|release| release.id == op);
                release.map(|release| release.stage = ReleaseStage::NoRoom)
            });
            // No task is left that would hear of room.
            if core.life >= Life::Gone {
                core.release_gone_now(now, owner, op, out);
            }
        });
    }

    /// There is room for it. Returns whether it has waited for that until now.
    pub(super) fn release_has_room(
        &mut self,
        now: Time,
        owner: OwnerKey,
        op: OpId,
        out: &mut Effects,
    ) -> bool {
        let has_waited = self.step(now, out, |core, out| {
            core.change(now, owner, out, |own, _| {
                let release = own.op.release_mut().filter(|release| release.id == op);
                let release = release.filter(|found| found.stage == ReleaseStage::NoRoom)?;
                release.stage = ReleaseStage::Sending;
                Some(())
            })
        });
        has_waited.flatten().is_some()
    }

    /// The send of a release was answered.
    pub(super) fn release_answered(
        &mut self,
        now: Time,
        owner: OwnerKey,
        op: OpId,
        answer: ReleaseAnswer,
        out: &mut Effects,
    ) {
        self.step(now, out, |core, out| {
            if !core.is_at_release(owner, op) {
                return;
            }
            let mut freed = false;
            let passed = core.end_send(now, owner, op, answer.passed(), out, |own, cx| {
                freed = own.answered(answer.gone, cx);
            });
            // Both faces are in one hash.
            core.lose_other_face(now, owner, answer.gone, Some(op), out);
            // Where the server has the queue, it tells the next one.
            if freed && !passed && core.discipline.has_local_queue() {
                core.note_freed();
                core.end_streak(now, answer.others_listen);
            }
            if core.is_at_release(owner, op) {
                out.sends.push((owner, op));
            }
        });
    }

    /// A send of a release has no answer, was refused, or could not be made. The unlocks that were part of it fail; the next
    /// send is made after a pause, or now, if callers wait who have joined.
    pub(super) fn release_failed(
        &mut self,
        now: Time,
        owner: OwnerKey,
        op: OpId,
        failed: &FailedSend,
        out: &mut Effects,
    ) {
        let rules = Arc::clone(&self.rules);
        self.end_failed_send(now, owner, op, failed.maybe_executed, out, |own, cx| {
            own.pause(failed, &rules, cx);
        });
    }

    /// The server will always refuse it. The unlocks that were part of it fail, and so does the release, unless callers wait
    /// who have joined: those have a send of their own. Returns whether it has ended.
    pub(super) fn release_refused(
        &mut self,
        now: Time,
        owner: OwnerKey,
        op: OpId,
        maybe_executed: bool,
        out: &mut Effects,
    ) -> bool {
        self.end_failed_send(now, owner, op, maybe_executed, out, |own, cx| {
            if own.is_awaited() {
                cx.out.sends.push((owner, op));
            } else {
                cx.out.count(Total::GaveUp, 1);
                own.end_release(cx);
            }
        });
        !self.is_at_release(owner, op)
    }

    /// A send was refused, and goes on in another form. The unlocks that were part of it fail.
    pub(super) fn release_changes(
        &mut self,
        now: Time,
        owner: OwnerKey,
        op: OpId,
        out: &mut Effects,
    ) {
        self.end_failed_send(now, owner, op, false, out, |_, _| {});
    }

    fn end_failed_send(
        &mut self,
        now: Time,
        owner: OwnerKey,
        op: OpId,
        maybe_executed: bool,
        out: &mut Effects,
        next: impl FnOnce(&mut OwnerState, &mut Context<'_>),
    ) {
        let passed = match maybe_executed {
            true => Passed::Unknown,
            false => Passed::NotExecuted,
        };
        self.step(now, out, |core, out| {
            core.end_send(now, owner, op, passed, out, |own, cx| {
                own.failed(maybe_executed, cx);
                next(own, cx);
            });
        });
    }

    /// The send of a release could not be spawned, or was dropped with its runtime: the lease frees the lock.
    pub(super) fn release_gone(&mut self, now: Time, owner: OwnerKey, op: OpId, out: &mut Effects) {
        self.step(now, out, |core, out| {
            core.release_gone_now(now, owner, op, out)
        });
    }

    fn release_gone_now(&mut self, now: Time, owner: OwnerKey, op: OpId, out: &mut Effects) {
        self.end_send(now, owner, op, Passed::Unknown, out, |own, cx| {
            cx.out.count(Total::GaveUp, 1);
            own.end_release(cx);
        });
    }

    /// The client sends nothing any more: releases that wait before their next send have ended.
    pub(super) fn end_waiting_releases(&mut self, now: Time, out: &mut Effects) {
        let releases = self.owners.iter();
        let waiting = releases.filter_map(|(owner, own)| {
            let release = own.op.release()?;
            (release.stage != ReleaseStage::Sending).then_some((owner, release.id))
        });
        for (owner, op) in waiting.collect::<Vec<_>>() {
            self.release_gone_now(now, owner, op, out);
        }
    }

    /// A send of this release is over, for its owner and for the receiver of a pass. Returns whether it was
    /// a pass.
    fn end_send(
        &mut self,
        now: Time,
        owner: OwnerKey,
        op: OpId,
        passed: Passed,
        out: &mut Effects,
        change: impl FnOnce(&mut OwnerState, &mut Context<'_>),
    ) -> bool {
        if !self.is_at_release(owner, op) {
            return false;
        }
        let pass = self.take_pass(now, owner, out);
        self.change(now, owner, out, change);
        if let Some(pass) = &pass {
            self.end_pass(now, pass, passed, out);
        }
        pass.is_some()
    }

    /// Whether this release of an owner is under way.
    fn is_at_release(&self, owner: OwnerKey, op: OpId) -> bool {
        let release = self.owners.get(owner).and_then(|own| own.op.release());
        release.is_some_and(|release| release.id == op)
    }
}

impl OwnerState {
    /// The latest send was answered. Returns whether it has freed the lock.
    fn answered(&mut self, gone: Option<LossReason>, cx: &mut Context<'_>) -> bool {
        let Some(release) = self.op.release_mut() else {
            return false;
        };
        let Some(Sent {
            target,
            in_time,
            leaves,
        }) = release.sent.take()
        else {
            return false;
        };
        if leaves {
            self.tenure.place = QueueSlot::None;
        }
        let gone = match gone {
            // Sent after the lease: that may be why, or an earlier send as late, after a renewal without an answer.
            Some(LossReason::Gone | LossReason::Taken) if !in_time => Some(LossReason::LeaseOver),
            gone => gone,
        };
        if release.failing.take().is_some() {
            cx.out.count(Total::Reconciled, 1);
            let field = Arc::clone(&self.field);
            let count = target;
            cx.out.events.push(Event::Reconciled { field, count });
        }
        let outcome = match gone {
            // An earlier send that said 0 may have freed it.
            Some(LossReason::Gone | LossReason::Taken | LossReason::LeaseOver)
                if release.maybe_freed =>
            {
                Unlocked::Released
            }
            Some(reason) => Unlocked::Lost(reason),
            None => Unlocked::Released,
        };
        self.op_changed_at = cx.now;
        // Without the field there is nothing to send for those that have joined.
        let ends_all = gone.is_some() && !self.tenure.is_held();
        let ends = |unlock: Unlock| ends_all || unlock.progress != Unlocking::Joined;
        self.end_unlocks(ends, outcome, cx);
        match gone {
            None if target == self.tenure.target() => self.mark_in_sync(),
            None => {}
            Some(reason) => self.lose(reason, cx),
        }
        if self.is_release_over(cx) {
            self.end_release(cx);
        }
        gone.is_none() && target == 0
    }

    fn failed(&mut self, maybe_executed: bool, cx: &mut Context<'_>) {
        let Some(release) = self.op.release_mut() else {
            return;
        };
        if maybe_executed {
            release.note_unanswered();
        }
        release.sent = None;
        let attempted = |unlock: Unlock| unlock.awaited && unlock.progress == Unlocking::Attempted;
        self.end_unlocks(attempted, Unlocked::Failed, cx);
        self.moves_unlocks(Unlocking::Sent, Unlocking::Joined);
        self.moves_unlocks(Unlocking::Attempted, Unlocking::Joined);
        if self.is_awaited() {
            // Their time begins with the next attempt.
            self.op_changed_at = cx.now;
        }
    }

    /// `kept`: until when the owner's other face may keep the hash, with all that is in it.
    fn next_of_release(
        &mut self,
        op: OpId,
        carrier: Option<Carrier>,
        kept: Option<Time>,
        cx: &mut Context<'_>,
    ) -> ReleaseStep {
        let longest = cx.now + self.may_last(cx);
        let release = self.op.release_mut().filter(|release| release.id == op);
        let Some(release) = release else {
            return ReleaseStep::Done;
        };
        debug_assert!(release.sent.is_none(), "one send at a time");
        // What was sent before it may still be executed, so its lease has yet to begin.
        let failing = release.failing.as_mut();
        let may_run = failing.is_none_or(|failing| failing.before.may_run(carrier));
        let kept = kept.max(may_run.then_some(longest));
        release.give_up_at = release.give_up_at.max(kept.unwrap_or(release.give_up_at));
        if cx.life == Life::Closed || self.is_release_over(cx) {
            self.end_release(cx);
            return ReleaseStep::Done;
        }
        if let Some(text) = self.gives_up(cx) {
            cx.out.count(Total::GaveUp, 1);
            let field = Arc::clone(&self.field);
            cx.out.events.push(Event::GaveUp { field, text });
            self.end_release(cx);
            return ReleaseStep::Done;
        }
        self.moves_unlocks(Unlocking::Joined, Unlocking::Attempted);
        let release = self.op.release_mut();
        let has_begun = release.is_some_and(|own| std::mem::replace(&mut own.has_begun, true));
        ReleaseStep::Send {
            is_first: !has_begun,
            field: Arc::clone(&self.field),
            awaited: self.is_awaited().then_some(self.op_changed_at),
            leaves: self.leaves(cx) && self.tenure.target() == 0 && self.unlocks.is_empty(),
        }
    }

    /// Why a release makes no other send, if the lease is over and no caller waits: how the latest one has failed. What is
    /// still held may be renewed or extended, so no lease makes up for a count that is too high.
    fn gives_up(&self, cx: &Context<'_>) -> Option<Arc<str>> {
        let release = self.op.release()?;
        let failing = release.failing.as_ref()?;
        let is_over = release.give_up_at <= cx.now && !self.tenure.is_held() && !self.is_awaited();
        is_over.then(|| Arc::clone(&failing.text))
    }

    /// The latest send has failed so.
    fn pause(&mut self, failed: &FailedSend, rules: &Rules, cx: &mut Context<'_>) {
        if cx.life >= Life::Gone {
            // Nothing would wake it.
            return self.end_release(cx);
        }
        let (owner, is_awaited, is_held) = (cx.owner, self.is_awaited(), self.tenure.is_held());
        let Some(release) = self.op.release_mut() else {
            return;
        };
        let FailedSend {
            is_refusal,
            text,
            carrier,
            ..
        } = failed;
        let pause = release.note_failed(text, *is_refusal, *carrier, rules.release_pause);
        if is_awaited {
            cx.out.sends.push((owner, release.id));
            return;
        }
        let until = cx.now + pause;
        let until = match is_held {
            true => until,
            false => until.min(release.give_up_at),
        };
        release.stage = ReleaseStage::Paused { until };
    }

    fn moves_unlocks(&mut self, from: Unlocking, to: Unlocking) {
        let unlocks = self.unlocks.values_mut();
        let unlocks = unlocks.filter(|unlock| unlock.progress == from);
        unlocks.for_each(|unlock| unlock.progress = to);
    }

    /// Redis has the count, each unlock its outcome, and the owner no place that no call wants.
    fn is_release_over(&self, cx: &Context<'_>) -> bool {
        let release = self.op.release();
        let in_sync = release.is_some_and(|release| release.in_sync);
        in_sync && self.unlocks.is_empty() && !self.leaves(cx)
    }

    fn end_release(&mut self, cx: &mut Context<'_>) {
        self.end_unlocks(|_| true, Unlocked::Failed, cx);
        // What a release that ends early leaves there ends by itself.
        if !cx.queues || self.tenure.place == QueueSlot::Stale {
            self.tenure.place = QueueSlot::None;
        }
        self.op = Op::Idle;
        self.op_changed_at = cx.now;
    }
}

#[cfg(test)]
mod tests;

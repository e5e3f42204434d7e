//! The way to the server and back: what is executed, answered, published and lost.

use std::time::Duration;

use redisson_lock_core::LossReason;
use redisson_lock_core::input::{
    AcquireEnds, AcquireTakes, CallClaims, HoldHandedOut, OwnerLost, PassNotExecuted,
    ReleaseAnswered, ReleaseFailed, ReleaseRefused, RenewalEnds, ReplicasAnswer,
};
use redisson_lock_core::{
    Claimed, FailedSend, Generation, HoldId, OpId, Order, OwnerKey, Permit, Rejected,
    ReleaseAnswer, RenewOutcome, RenewalAsk, Taking, Then, Time, Untaken, WaiterId, local_deadline,
};

use super::LONGEST;
use super::coverage::Case;
use super::script::{Reply, Script, Told};
use super::state::{At, Deferred, Guard, Sender, Sent, State};

impl State {
    pub(super) fn execute(&mut self) {
        let Some(sent) = self.wire.pop_front() else {
            return;
        };
        let reply = self.run_script(&sent);
        if sent.sender != Sender::Nobody {
            self.answers.push((sent, reply));
        }
    }

    /// The next script of a connection that was replaced, and that the server has not ended.
    pub(super) fn execute_late(&mut self) {
        if let Some(sent) = self.late.pop_front() {
            self.run_script(&sent);
        }
    }

    fn run_script(&mut self, sent: &Sent) -> Reply {
        let before = self.server.field();
        // For its owner the lease is over a little before: a release that is sent then cannot tell whether it has ended.
        let ends = self.server.ends();
        let is_nearly_over = |ends: Time| {
            let for_its_owner = ends - self.late_by;
            for_its_owner.since(sent.sent_at) <= LONGEST / 50
        };
        self.has_expired |=
            matches!(sent.script, Script::Release { .. }) && ends.is_some_and(is_nearly_over);
        let (reply, told) = self.server.run(self.now, sent.face, sent.script);
        if self.server.ends() != ends {
            self.late_by = self.now.since(sent.sent_at);
        }
        self.note_holder(before);
        if !self.server.is_free() {
            self.expired = false;
        }
        self.publish(told);
        reply
    }

    /// The lock is free, or its lease shorter: which is announced, if the kind of lock has messages.
    pub(super) fn publish(&mut self, told: Told) {
        if told == Told::None {
            return;
        }
        self.expired = false;
        if !self.kind.announces {
            return;
        }
        let heard = |channel: &OwnerKey| match told {
            Told::Only(thread) => *channel == OwnerKey::only(thread),
            Told::All | Told::None => true,
        };
        let channels = self.subscribed.iter().filter(|channel| heard(channel));
        let heard = channels.copied().map(Deferred::Hears);
        self.deferred.extend(heard);
    }

    /// `in_time`: replicas confirm a renewal or an `extend` in time.
    pub(super) fn deliver_nth(&mut self, nth: usize, in_time: bool) {
        self.budget.lags -= u8::from(!in_time);
        let (sent, reply) = self.answers.remove(nth);
        self.deliver(&sent, reply, in_time);
    }

    fn deliver(&mut self, sent: &Sent, reply: Reply, in_time: bool) {
        if reply == Reply::Refused && self.replaces_pass(sent) {
            return;
        }
        match sent.sender {
            Sender::Acquire(owner, op) => self.attempted(owner, op, sent, reply),
            Sender::Caller(nth) => match self.callers[nth].at.clone() {
                At::Extending { hold, lease } => {
                    let leased = (sent.sent_at, lease);
                    self.extend_answered(nth, hold, leased, reply, in_time);
                }
                at => unreachable!("nothing was sent by {at:?}"),
            },
            Sender::Release(owner, op) if reply == Reply::Refused => {
                let maybe_executed = sent.repeats.is_some();
                let refused = ReleaseRefused {
                    owner,
                    op,
                    maybe_executed,
                };
                self.step(owner, Case::ReleaseRefused, refused);
            }
            Sender::Release(owner, op) => {
                let answer = self.released(sent, reply);
                let case = match answer.gone {
                    None => Case::ReleaseDone,
                    Some(_) if sent.repeats.is_some() => Case::ReleaseGoneRepeated,
                    Some(_) => Case::ReleaseGone,
                };
                self.step(owner, case, ReleaseAnswered { owner, op, answer });
            }
            Sender::Renewal(owner, generation) => {
                let Script::Renew { lease, .. } = sent.script else {
                    return;
                };
                let asked = lease.map_or(RenewalAsk::Check, RenewalAsk::Extend);
                let acknowledged = match reply {
                    Reply::Done { .. } if lease.is_some() => self.acknowledged(owner, in_time),
                    _ => 0,
                };
                self.renewed(
                    owner,
                    generation,
                    match reply {
                        Reply::Done { .. } => RenewOutcome::Held {
                            sent_at: sent.sent_at,
                            asked,
                            acknowledged,
                        },
                        Reply::Gone => RenewOutcome::Lost(LossReason::Gone),
                        Reply::Taken | Reply::Busy { .. } | Reply::Outside | Reply::OwnRead => {
                            RenewOutcome::Lost(LossReason::Taken)
                        }
                        Reply::Refused => RenewOutcome::Unknown,
                    },
                );
            }
            Sender::Nobody => {}
        }
    }

    /// A pass that was refused has moved nothing, and becomes the release that it replaced: returns whether it
    /// has.
    fn replaces_pass(&mut self, sent: &Sent) -> bool {
        let (Script::Pass { .. }, Sender::Release(owner, op), None) =
            (sent.script, sent.sender, sent.repeats)
        else {
            return false;
        };
        // A part of the step after it, which is noted.
        let rows = self.rows();
        self.run_step(&rows, PassNotExecuted { owner, op });
        self.send_release_as(owner, op, false);
        true
    }

    /// The connection is lost: the release goes on later; the unlocks that were part of this send do not.
    pub(super) fn release_failed(&mut self, owner: OwnerKey, op: OpId) {
        let failed = FailedSend {
            maybe_executed: true,
            is_refusal: false,
            text: "".into(),
            carrier: None,
        };
        self.step(
            owner,
            Case::ReleaseUnknown,
            ReleaseFailed { owner, op, failed },
        );
    }

    pub(super) fn renewed(
        &mut self,
        owner: OwnerKey,
        generation: Generation,
        outcome: RenewOutcome,
    ) {
        let is_late = self.generation(owner) != Some(generation);
        let case = match outcome {
            _ if is_late => Case::RenewLate,
            RenewOutcome::Held {
                asked: RenewalAsk::Extend(_),
                acknowledged,
                ..
            } if acknowledged < self.replicas => Case::RenewUnknown,
            RenewOutcome::Held { .. } => Case::RenewHeld,
            RenewOutcome::Lost(_) => Case::RenewLost,
            RenewOutcome::Unknown => Case::RenewUnknown,
        };
        let ended = RenewalEnds {
            owner,
            generation,
            outcome,
        };
        self.step(owner, case, ended);
    }

    /// An acquire was answered, which is applied whether its call is polled or not.
    fn attempted(&mut self, owner: OwnerKey, op: OpId, sent: &Sent, reply: Reply) {
        let Some(permit) = self.core.acquire_says(owner, op) else {
            let rows = self.rows();
            return self.note_of(owner, &rows, Case::AcquireLate);
        };
        let (untaken, then) = match reply {
            Reply::Done { .. } | Reply::Outside => {
                return self.granted(&permit, sent.sent_at, reply);
            }
            Reply::Gone | Reply::Taken => (Untaken::OuterGone, Then::Ends),
            // The first send may have been executed.
            Reply::Refused if sent.repeats.is_some() => (Untaken::Unknown, Then::Ends),
            Reply::Refused => (Untaken::NotExecuted, Then::Ends),
            Reply::Busy { left } => (Untaken::Busy, self.waits(&permit, left)),
            Reply::OwnRead => (Untaken::OwnRead, Then::AsksAgain),
        };
        self.ends_attempt(&permit, untaken, then);
    }

    fn granted(&mut self, permit: &Permit, sent_at: Time, reply: Reply) {
        let is_over = local_deadline(sent_at, permit.terms.lease) <= self.now;
        let case = match is_over {
            true => Case::TakenLate,
            false => Case::Taken,
        };
        let (token, is_outside) = match reply {
            Reply::Done { token } => (token, false),
            _ => (None, true),
        };
        let taken = AcquireTakes {
            permit: permit.clone(),
            sent_at,
            token,
            is_outside,
        };
        let taking = self.step(permit.owner, case, taken);
        if taking == Taking::TooLate {
            self.ends_call(permit.waiter);
        }
    }

    /// What a call does that found the lock held.
    fn waits(&self, permit: &Permit, left: Duration) -> Then {
        if self.core.order(permit.waiter) != Some(Order::Queued) {
            return Then::Ends;
        }
        let channel = self.channel_of(permit.owner);
        Then::Waits {
            until: self.until_retry(left),
            subscribed: !self.kind.announces || self.subscribed.contains(&channel),
        }
    }

    /// An acquire has ended without the lock.
    pub(super) fn ends_attempt(&mut self, permit: &Permit, outcome: Untaken, then: Then) {
        let case = match outcome {
            Untaken::Busy | Untaken::NotExecuted | Untaken::OwnRead => Case::NotExecuted,
            Untaken::OuterGone => Case::OuterGone,
            Untaken::Unknown => Case::AcquireUnknown,
        };
        let ended = AcquireEnds {
            permit: permit.clone(),
            untaken: outcome,
            then,
        };
        self.step(permit.owner, case, ended);
        if then == Then::Ends {
            self.ends_call(permit.waiter);
        }
    }

    fn ends_call(&mut self, waiter: WaiterId) {
        let mut callers = self.callers.iter_mut();
        let caller = callers.find(|caller| caller.waiter() == Some(waiter));
        caller.into_iter().for_each(|caller| caller.is_over = true);
    }

    /// A call claims what was granted to it. Answers with a hold that it is handed only when replicas have confirmed it.
    pub(super) fn claims(&mut self, nth: usize, waiter: WaiterId) -> Result<Option<At>, Rejected> {
        let owner = self.callers[nth].owner;
        let lost = self.faces_of(owner).any(|face| self.is_lost(face));
        let field = self.field(owner).expect("it is granted");
        let claimed = self.step(owner, Case::Claims, CallClaims { call: waiter });
        let Claimed {
            hold,
            token,
            sent_at,
            lease,
            ..
        } = claimed?;
        self.note_token(field, token);
        let guard = Guard { owner, hold, token };
        let snapshot = self.core.snapshot(self.now, owner, hold);
        if snapshot.is_none_or(|found| found.over.is_some()) {
            self.wrong = Some("a hold is given to its caller when its lease is over");
        }
        if lost {
            self.wrong = Some("V14: a lock that was lost is back before its owner has seen it");
        }
        if self.core.is_confirmed(owner) {
            let rows = self.rows();
            self.run_step(&rows, HoldHandedOut { owner, hold });
            self.callers[nth].guards.push(guard);
            return Ok(None);
        }
        let leased = (sent_at, lease);
        Ok(Some(At::Confirming { guard, leased }))
    }

    fn extend_answered(
        &mut self,
        nth: usize,
        hold: HoldId,
        leased: (Time, Duration),
        reply: Reply,
        in_time: bool,
    ) {
        let owner = self.callers[nth].owner;
        let is_open = self.core.snapshot(self.now, owner, hold).is_some();
        match reply {
            Reply::Done { .. } => {
                let acknowledged = self.acknowledged(owner, in_time);
                let answered = ReplicasAnswer {
                    owner,
                    hold,
                    leased,
                    acknowledged,
                };
                self.step(owner, Case::Extended, answered);
            }
            Reply::Refused => {}
            _ if is_open => {
                let lost = OwnerLost {
                    owner,
                    generation: None,
                    reason: LossReason::Gone,
                };
                self.step(owner, Case::ExtendLost, lost);
            }
            _ => {}
        }
        self.leave(nth);
    }

    /// The owner holds nothing, and has a guard whose hold was lost.
    pub(super) fn is_lost(&self, owner: OwnerKey) -> bool {
        if self.core.under_way(owner).1 {
            return false;
        }
        let guards = self.callers.iter().flat_map(|caller| &caller.guards);
        let mut guards = guards.filter(|guard| guard.owner == owner).peekable();
        guards.peek().is_some() && guards.all(|guard| self.ended.contains(&guard.hold))
    }

    /// Nothing that was on the connection arrives any more, if the server has killed it before the next
    /// one is used. A call is sent again, a release and a renewal later.
    pub(super) fn lose(&mut self) {
        if !self.has_fence {
            self.is_unfenced = true;
            let late = self.wire.iter().cloned();
            let late = late.map(|sent| Sent {
                sender: Sender::Nobody,
                ..sent
            });
            self.late.extend(late);
        }
        let answers = std::mem::take(&mut self.answers)
            .into_iter()
            .map(|(sent, _)| sent);
        let lost = answers
            .chain(std::mem::take(&mut self.wire))
            .collect::<Vec<_>>();
        for sent in lost {
            match sent.sender {
                Sender::Caller(_) if sent.repeats.is_none() => {
                    self.send(sent.sender, sent.script);
                    self.mark_repeated(&sent);
                }
                Sender::Caller(nth) => self.cancel(nth),
                Sender::Acquire(owner, op) => self.acquire_lost(owner, op, &sent),
                // While a caller waits it is sent again.
                Sender::Release(owner, op) if sent.repeats.is_none() && self.is_awaited(owner) => {
                    self.send_release_as(owner, op, true);
                    self.mark_repeated(&sent);
                }
                Sender::Release(owner, op) => self.release_failed(owner, op),
                Sender::Renewal(owner, generation) => {
                    self.renewed(owner, generation, RenewOutcome::Unknown);
                }
                Sender::Nobody => {}
            }
        }
    }

    /// It is sent again, once.
    fn acquire_lost(&mut self, owner: OwnerKey, op: OpId, sent: &Sent) {
        let Some(permit) = self.core.acquire_says(owner, op) else {
            return;
        };
        if sent.repeats.is_some() {
            return self.ends_attempt(&permit, Untaken::Unknown, Then::Ends);
        }
        if !self.leaves_a_used_field(&permit, true) {
            self.send(sent.sender, sent.script);
            self.mark_repeated(sent);
        }
    }

    fn is_awaited(&self, owner: OwnerKey) -> bool {
        let mut own = self.callers.iter().filter(|caller| caller.owner == owner);
        own.any(|caller| matches!(caller.at, At::Unlocking { .. }))
    }

    pub(super) fn mark_repeated(&mut self, first: &Sent) {
        if let Some(last) = self.outbox.last_mut() {
            last.repeats = Some(first.sent_at);
        }
    }

    fn released(&self, sent: &Sent, reply: Reply) -> ReleaseAnswer {
        let (gone, token) = match reply {
            Reply::Done { token } => (None, token),
            Reply::Gone => (Some(LossReason::Gone), None),
            Reply::Outside | Reply::OwnRead => unreachable!("no release has this reply"),
            Reply::Taken | Reply::Busy { .. } | Reply::Refused => (Some(LossReason::Taken), None),
        };
        ReleaseAnswer {
            gone,
            sent_at: sent.sent_at,
            // Without messages no client knows who waits. With them no world stands back: the time until others have
            // gone first changes nothing but the order.
            others_listen: !self.kind.announces,
            token,
        }
    }
}

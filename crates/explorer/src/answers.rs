//! The way to the server and back: what is executed, answered, published and lost.

use std::time::Duration;

use redisson_lock_core::LossReason;
use redisson_lock_core::{
    FailedSend, Generation, HoldId, OpId, Order, OwnerKey, Permit, ReleaseAnswer, RenewOutcome,
    RenewalAsk, Time, Untaken, WaiterId, local_deadline,
};

use super::coverage::Input;
use super::script::{Reply, Script, Told};
use super::state::{At, Guard, Sender, Sent, State};

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
        let (reply, told) = self.server.run(self.now, sent.face, sent.script);
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
        for caller in &mut self.callers {
            let hears = told == Told::All || told == Told::Only(caller.owner.thread);
            caller.received |= caller.subscribed && hears;
        }
        // A message reaches the core of a client that listens.
        let told = match told {
            Told::Only(thread) => Some(OwnerKey::only(thread)),
            Told::All | Told::None => None,
        };
        let told = told.filter(|owner| self.hears(*owner));
        let rows = self.rows();
        self.run_step(&rows, |core, now, out| core.note_change(now, told, out));
    }

    fn hears(&self, owner: OwnerKey) -> bool {
        let mut callers = self.callers.iter();
        callers.any(|caller| caller.owner == owner && caller.subscribed)
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
            Sender::Caller(nth) => match self.callers[nth].at.clone() {
                At::Attempting { .. } => self.attempted(nth, sent, reply),
                At::Extending { hold, lease } => {
                    let leased = (sent.sent_at, lease);
                    self.extend_answered(nth, hold, leased, reply, in_time);
                }
                at => unreachable!("nothing was sent by {at:?}"),
            },
            Sender::Release(owner, job) if reply == Reply::Refused => {
                let maybe_executed = sent.repeats.is_some();
                self.step(owner, Input::ReleaseRefused, |core, now, out| {
                    core.release_refused(now, owner, job, maybe_executed, out);
                });
            }
            Sender::Release(owner, job) => {
                let answer = self.released(sent, reply);
                let input = match answer.gone {
                    None => Input::ReleaseDone,
                    Some(_) if sent.repeats.is_some() => Input::ReleaseGoneRepeated,
                    Some(_) => Input::ReleaseGone,
                };
                self.step(owner, input, |core, now, out| {
                    core.release_answered(now, owner, job, answer, out);
                });
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
        self.run_step(&rows, |core, now, out| {
            core.release_not_executed(now, owner, op, out);
        });
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
        self.step(owner, Input::ReleaseUnknown, |core, now, out| {
            core.release_failed(now, owner, op, &failed, out);
        });
    }

    pub(super) fn renewed(
        &mut self,
        owner: OwnerKey,
        generation: Generation,
        outcome: RenewOutcome,
    ) {
        let is_late = self.generation(owner) != Some(generation);
        let input = match outcome {
            _ if is_late => Input::RenewLate,
            RenewOutcome::Held {
                asked: RenewalAsk::Extend(_),
                acknowledged,
                ..
            } if acknowledged < self.replicas => Input::RenewUnknown,
            RenewOutcome::Held { .. } => Input::RenewHeld,
            RenewOutcome::Lost(_) => Input::RenewLost,
            RenewOutcome::Unknown => Input::RenewUnknown,
        };
        self.step(owner, input, |core, now, out| {
            core.renewed(now, owner, generation, outcome, out);
        });
    }

    pub(super) fn attempted(&mut self, nth: usize, sent: &Sent, reply: Reply) {
        let At::Attempting { permit } = self.callers[nth].at.clone() else {
            return;
        };
        let untaken = match reply {
            Reply::Done { .. } | Reply::Outside => {
                let is_late = !self.core.is_attempting(&permit);
                let unconfirmed = self.taken(nth, &permit, sent.sent_at, Some(reply));
                if !is_late {
                    self.leave(nth);
                    return self.waits_for_replicas(nth, unconfirmed);
                }
                return self.ask_again(nth, permit.waiter);
            }
            Reply::Gone | Reply::Taken => Untaken::OuterGone,
            // The first send may have been executed.
            Reply::Refused if sent.repeats.is_some() => Untaken::Unknown,
            Reply::Busy { .. } => Untaken::Busy,
            Reply::OwnRead => Untaken::OwnRead,
            Reply::Refused => Untaken::NotExecuted,
        };
        self.untaken(&permit, untaken);
        if reply == Reply::OwnRead {
            return self.ask_again(nth, permit.waiter);
        }
        let Reply::Busy { left } = reply else {
            return self.leave(nth);
        };
        if self.kind.announces && !self.callers[nth].subscribed && self.queues(nth) {
            // Attempt again after subscribing: an unlock in between was announced to nobody.
            let waiter = permit.waiter;
            let caller = &mut self.callers[nth];
            (caller.at, caller.subscribed) = (
                At::Queued {
                    waiter,
                    limit: None,
                },
                true,
            );
            self.admit(nth);
        } else if self.queues(nth) {
            let (waiter, limit) = (permit.waiter, self.until_retry(nth, left));
            self.callers[nth].at = At::Listening { waiter, limit };
            let rows = self.rows();
            self.run_step(&rows, |core, now, out| core.waits(now, waiter, limit, out));
        } else {
            self.leave(nth);
        }
    }

    /// Answers with a hold that its caller is handed only when replicas have confirmed it.
    /// `reply`: that of an acquire, if it was one.
    pub(super) fn taken(
        &mut self,
        nth: usize,
        permit: &Permit,
        sent_at: Time,
        reply: Option<Reply>,
    ) -> Option<At> {
        let lost = self.faces_of(permit.owner).any(|face| self.is_lost(face));
        let is_over = local_deadline(sent_at, permit.terms.lease) <= self.now;
        let input = if !self.core.is_attempting(permit) {
            Input::AcquireLate
        } else if is_over {
            Input::TakenLate
        } else {
            Input::Taken
        };
        let owner = permit.owner;
        let taken = self.step(owner, input, |core, now, out| match reply {
            Some(Reply::Outside) => core.taken_outside(now, permit, sent_at, out),
            _ => core.taken(now, permit, sent_at, out),
        });
        let (hold, handed_over) = taken.ok()?;
        let token = match reply {
            Some(Reply::Done { token: Some(token) }) => Some(token),
            _ => handed_over,
        };
        self.note_token(permit, token);
        let guard = Guard { owner, hold, token };
        let snapshot = self.core.snapshot(self.now, permit.owner, hold);
        if snapshot.is_none_or(|found| found.over.is_some()) {
            self.wrong = Some("a hold is given to its caller when its lease is over");
        }
        if lost {
            self.wrong = Some("V14: a lock that was lost is back before its owner has seen it");
        }
        if self.core.is_confirmed(permit.owner) {
            let rows = self.rows();
            self.run_step(&rows, |core, now, out| {
                core.handed_out(now, permit.owner, hold, out);
            });
            self.callers[nth].guards.push(guard);
            return None;
        }
        let leased = (sent_at, permit.terms.lease);
        Some(At::Confirming { guard, leased })
    }

    pub(super) fn untaken(&mut self, permit: &Permit, outcome: Untaken) {
        let input = match outcome {
            _ if !self.core.is_attempting(permit) => Input::AcquireLate,
            Untaken::Busy | Untaken::NotExecuted | Untaken::OwnRead => Input::NotExecuted,
            Untaken::OuterGone => Input::OuterGone,
            Untaken::Unknown => Input::AcquireUnknown,
        };
        self.step(permit.owner, input, |core, now, out| {
            core.untaken(now, permit, outcome, out)
        });
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
                self.step(owner, Input::Extended, |core, now, out| {
                    core.confirmed(now, owner, hold, leased, acknowledged, out);
                });
            }
            Reply::Refused => {}
            _ if is_open => self.step(owner, Input::ExtendLost, |core, now, out| {
                core.lose_owner(now, owner, None, LossReason::Gone, out);
            }),
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

    pub(super) fn queues(&self, nth: usize) -> bool {
        match &self.callers[nth].at {
            At::Attempting { permit } => self.core.order(permit.waiter) == Some(Order::Queued),
            _ => false,
        }
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
                Sender::Caller(nth) if sent.repeats.is_none() => self.repeat(nth, &sent),
                Sender::Caller(nth) => self.cancel(nth),
                // While a caller waits it is sent again.
                Sender::Release(owner, job) if sent.repeats.is_none() && self.is_awaited(owner) => {
                    self.send_release_as(owner, job, true);
                    self.mark_repeated(&sent);
                }
                Sender::Release(owner, job) => self.release_failed(owner, job),
                Sender::Renewal(owner, generation) => {
                    self.renewed(owner, generation, RenewOutcome::Unknown);
                }
                Sender::Nobody => {}
            }
        }
    }

    pub(super) fn repeat(&mut self, nth: usize, sent: &Sent) {
        match self.callers[nth].at.clone() {
            At::Attempting { permit } if !self.core.is_attempting(&permit) => {
                self.ask_again(nth, permit.waiter);
            }
            _ if self.leaves_a_used_field(nth, true) => {}
            _ => {
                self.send(sent.sender, sent.script);
                self.mark_repeated(sent);
            }
        }
    }

    fn is_awaited(&self, owner: OwnerKey) -> bool {
        let mut own = self.callers.iter().filter(|caller| caller.owner == owner);
        own.any(|caller| matches!(caller.at, At::Unlocking { .. }))
    }

    /// A job has taken its attempt over.
    pub(super) fn ask_again(&mut self, nth: usize, waiter: WaiterId) {
        let limit = None;
        self.callers[nth].at = At::Queued { waiter, limit };
        self.admit(nth);
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

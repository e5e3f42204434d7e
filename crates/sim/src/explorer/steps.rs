//! What happens: the shell of the core, as small as it can be said.

use redisson_lock::LossReason;
use redisson_lock::test_util::core::{
    Admission, Generation, JobStep, Life, NoReply, Order, ReleaseAnswer, ReleaseStart,
    RenewOutcome, RenewalAsk, ThreadId, Time, Untaken,
};

use super::server::{Holder, Reply, Script};
use super::state::{At, Deferred, Sender, Sent, State, lease_of};
use super::{Action, LONGEST, RULES, Verb, World};

impl State {
    pub fn act(&mut self, action: Action, world: &World) {
        match action {
            Action::Run(nth) => self.run(nth, world),
            Action::Cancel(nth) => {
                self.budget.cancels -= 1;
                self.cancel(nth);
            }
            Action::Execute => self.execute(),
            Action::HandOver(nth) => {
                let sent = self.outbox.remove(nth);
                self.wire.push_back(sent);
            }
            Action::Deliver(nth) => {
                let (sent, reply) = self.answers.remove(nth);
                self.deliver(&sent, reply);
            }
            Action::Lose => {
                self.budget.losses -= 1;
                self.lose();
            }
            Action::Apply(deferred) => self.apply(deferred),
            Action::TimerFires(owner) => {
                self.timers.remove(&owner);
                if let Some(request) = self.step(|core, now, out| core.timer_fired(now, owner, out))
                {
                    let sender = Sender::Renewal(owner, request.generation);
                    self.send(
                        sender,
                        Script::Renew {
                            owner,
                            lease: lease_of(request.asked),
                        },
                    );
                }
            }
            Action::JobSends(owner) => self.job_sends(owner),
            Action::Tick => {
                self.budget.ticks -= 1;
                self.now = self.next_due().unwrap_or(self.now);
                let before = self.server.lock.is_some();
                self.server.expire(self.now);
                self.expired |= before && self.server.lock.is_none();
                self.has_expired |= self.expired;
            }
            Action::ForeignTakes => {
                self.budget.foreign -= 1;
                self.server.lock = Some((Holder::Foreign, 1, self.now + LONGEST));
            }
            Action::ForeignReleases => {
                self.server.lock = None;
                self.publish();
            }
            Action::Wipe => {
                self.budget.wipes -= 1;
                (self.server.lock, self.robbed) = (None, true);
            }
            Action::Close => {
                self.budget.closes -= 1;
                self.step(|core, now, out| core.set_life(now, Life::Closing, out));
            }
        }
    }

    pub fn foreign_actions(&self, actions: &mut Vec<Action>) {
        match &self.server.lock {
            None if self.budget.foreign > 0 => actions.push(Action::ForeignTakes),
            Some((Holder::Foreign, ..)) => actions.push(Action::ForeignReleases),
            Some(_) if self.budget.wipes > 0 => actions.push(Action::Wipe),
            Some(_) | None => {}
        }
        if self.budget.closes > 0 {
            actions.push(Action::Close);
        }
    }

    /// The next instant at which something is due.
    pub fn next_due(&self) -> Option<Time> {
        let limits = self.callers.iter().filter_map(|caller| match &caller.at {
            At::Queued { limit, .. } => *limit,
            At::Listening { limit, .. } => Some(*limit),
            At::Ready | At::Attempting { .. } | At::Waiting { .. } | At::Unlocking { .. } => None,
        });
        let lease = self.server.lock.map(|(_, _, until)| until);
        let due = self.timers.values().copied().chain(limits).chain(lease);
        due.filter(|at| *at > self.now).min()
    }

    pub fn can_run(&self, nth: usize, world: &World) -> bool {
        let caller = &self.callers[nth];
        match &caller.at {
            At::Ready => caller.next < world.callers[nth].1.len(),
            At::Queued { limit, .. } => {
                caller.woken || limit.is_some_and(|limit| limit <= self.now)
            }
            At::Listening { limit, .. } => caller.woken || caller.received || *limit <= self.now,
            At::Waiting { acquire_ended, .. } => *acquire_ended,
            At::Attempting { .. } | At::Unlocking { .. } => false,
        }
    }

    fn run(&mut self, nth: usize, world: &World) {
        let caller = &self.callers[nth];
        let (owner, verb) = (caller.owner, world.callers[nth].1.get(caller.next).copied());
        match caller.at.clone() {
            At::Ready => match verb {
                Some(verb @ (Verb::Lock | Verb::TryLock | Verb::LockFixed)) => {
                    let (order, terms) = verb.terms();
                    let waiter =
                        self.step(|core, now, out| core.enqueue(now, owner, order, terms, out));
                    self.callers[nth].at = At::Queued {
                        waiter,
                        limit: None,
                    };
                    self.admit(nth);
                }
                Some(verb) => self.end_hold(nth, verb),
                None => {}
            },
            At::Queued { .. } => self.admit(nth),
            At::Listening { waiter, limit } => {
                let woken = std::mem::take(&mut self.callers[nth].woken);
                let reason = woken && self.core.has_reason_to_retry(waiter);
                if reason || self.callers[nth].received || limit <= self.now {
                    self.admit(nth);
                }
            }
            At::Waiting { hold, .. } => self.unlock(nth, hold),
            At::Attempting { .. } | At::Unlocking { .. } => {}
        }
    }

    /// A waiter asks what it may do.
    fn admit(&mut self, nth: usize) {
        let caller = &mut self.callers[nth];
        caller.woken = false;
        let (owner, Some(waiter)) = (caller.owner, caller.waiter()) else {
            return;
        };
        let too_late = |state: &Self, since: Time| since + RULES.command_timeout <= state.now;
        let field = owner.0.to_string().into();
        match self.step(|core, now, out| core.admit(now, waiter, &field, out)) {
            Ok(Admission::Permit(permit)) => {
                let (target, lease) = (permit.target, permit.terms.lease);
                let caller = &mut self.callers[nth];
                (caller.at, caller.received) = (At::Attempting { permit }, false);
                self.send(
                    Sender::Caller(nth),
                    Script::Acquire {
                        owner,
                        target,
                        lease,
                    },
                );
            }
            Ok(Admission::Queued { again }) => {
                self.callers[nth].at = At::Queued {
                    waiter,
                    limit: again,
                };
            }
            Ok(Admission::OwnerBusy { since }) if too_late(self, since) => self.leave(nth),
            Ok(Admission::OwnerBusy { since }) => {
                let limit = Some(since + RULES.command_timeout);
                self.callers[nth].at = At::Queued { waiter, limit };
            }
            Err(_) => self.leave(nth),
        }
    }

    /// The call is over.
    fn leave(&mut self, nth: usize) {
        if let Some(waiter) = self.callers[nth].waiter() {
            self.callers[nth].at = At::Ready;
            self.step(|core, now, out| core.leave(now, waiter, out));
        }
        let caller = &mut self.callers[nth];
        (caller.at, caller.woken, caller.subscribed, caller.received) =
            (At::Ready, false, false, false);
        caller.next += 1;
    }

    fn end_hold(&mut self, nth: usize, verb: Verb) {
        let owner = self.callers[nth].owner;
        let Some(hold) = self.callers[nth].guards.pop() else {
            return self.leave(nth);
        };
        self.ended.remove(&hold);
        match verb {
            Verb::Unlock => self.unlock(nth, hold),
            Verb::Drop => {
                self.step(|core, now, out| core.drop_hold(now, owner, hold, out));
                self.leave(nth);
            }
            _ => {
                self.step(|core, now, out| core.detach(now, owner, hold, out));
                self.leave(nth);
            }
        }
    }

    fn unlock(&mut self, nth: usize, hold: redisson_lock::test_util::core::HoldId) {
        let owner = self.callers[nth].owner;
        match self.step(|core, now, out| core.begin_unlock(now, owner, hold, out)) {
            Ok(ReleaseStart::Send(unlock)) => {
                self.callers[nth].at = At::Unlocking { unlock };
                self.send_release(Sender::Caller(nth), owner);
            }
            Ok(ReleaseStart::OwnerBusy { .. }) => {
                self.callers[nth].at = At::Waiting {
                    hold,
                    acquire_ended: false,
                };
            }
            Ok(ReleaseStart::NotHeld) => self.leave(nth),
            Err(reason) => {
                let by_the_server = matches!(reason, LossReason::Gone | LossReason::Taken);
                if by_the_server && !self.robbed && !self.has_expired {
                    self.wrong = Some("FL: a hold is lost that nobody took away");
                }
                self.leave(nth);
            }
        }
    }

    fn send_release(&mut self, sender: Sender, owner: ThreadId) {
        let (target, lease) = self.core.release_target(self.now, owner);
        self.send(
            sender,
            Script::Release {
                owner,
                target,
                lease,
            },
        );
    }

    fn job_sends(&mut self, owner: ThreadId) {
        let Some(job) = self.jobs.iter().find(|(other, _)| *other == owner).copied() else {
            return;
        };
        self.jobs.remove(&job);
        match self.step(|core, now, out| core.job_step(now, owner, job.1, out)) {
            JobStep::Send { .. } => self.send_release(Sender::Job(owner, job.1), owner),
            JobStep::Done => {}
        }
    }

    fn cancel(&mut self, nth: usize) {
        let owner = self.callers[nth].owner;
        match self.callers[nth].at.clone() {
            At::Attempting { permit } => {
                let unsent = self
                    .outbox
                    .iter()
                    .any(|sent| sent.sender == Sender::Caller(nth) && sent.repeats.is_none());
                let untaken = if unsent {
                    Untaken::NotExecuted
                } else {
                    Untaken::Unknown
                };
                self.step(|core, now, out| core.untaken(now, &permit, untaken, out));
            }
            At::Unlocking { unlock } => {
                self.step(|core, now, out| core.not_unlocked(now, &unlock, NoReply::GoOn, out));
            }
            At::Waiting { hold, .. } => {
                self.step(|core, now, out| core.drop_hold(now, owner, hold, out));
            }
            At::Ready | At::Queued { .. } | At::Listening { .. } => {}
        }
        self.nobody_waits(Sender::Caller(nth));
        self.leave(nth);
    }

    /// What a dropped future has handed over is executed. What it has not is not sent any more.
    fn nobody_waits(&mut self, sender: Sender) {
        self.outbox.retain(|sent| sent.sender != sender);
        for sent in self.wire.iter_mut().filter(|sent| sent.sender == sender) {
            sent.sender = Sender::Nobody;
        }
        self.answers.retain(|(sent, _)| sent.sender != sender);
    }

    fn execute(&mut self) {
        let Some(sent) = self.wire.pop_front() else {
            return;
        };
        let (reply, published) = self.server.run(self.now, sent.script);
        if sent.sender != Sender::Nobody {
            self.answers.push((sent, reply));
        }
        if self.server.lock.is_some() {
            self.expired = false;
        }
        if published {
            self.publish();
        }
    }

    fn publish(&mut self) {
        self.expired = false;
        for caller in &mut self.callers {
            caller.received |= caller.subscribed;
        }
    }

    fn deliver(&mut self, sent: &Sent, reply: Reply) {
        match sent.sender {
            Sender::Caller(nth) => match self.callers[nth].at.clone() {
                At::Attempting { .. } => self.attempted(nth, sent.sent_at, reply),
                At::Unlocking { unlock } => {
                    let answer = released(sent, reply);
                    let reported =
                        self.step(|core, now, out| core.unlocked(now, &unlock, answer, out));
                    if reported.is_err() && !self.robbed && !self.has_expired {
                        self.wrong = Some("FL: an unlock reports a loss, and nothing was lost");
                    }
                    self.leave(nth);
                }
                at => unreachable!("nothing was sent by {at:?}"),
            },
            Sender::Job(owner, job) => {
                let answer = released(sent, reply);
                self.step(|core, now, out| core.job_answered(now, owner, job, answer, out));
                self.jobs.insert((owner, job));
            }
            Sender::Renewal(owner, generation) => {
                let Script::Renew { lease, .. } = sent.script else {
                    return;
                };
                let asked = lease.map_or(RenewalAsk::Check, RenewalAsk::Extend);
                self.renewed(
                    owner,
                    generation,
                    match reply {
                        Reply::Done => RenewOutcome::Held {
                            sent_at: sent.sent_at,
                            asked,
                        },
                        Reply::Gone => RenewOutcome::Lost(LossReason::Gone),
                        Reply::Taken | Reply::Busy { .. } => RenewOutcome::Lost(LossReason::Taken),
                    },
                );
            }
            Sender::Nobody => {}
        }
    }

    fn renewed(&mut self, owner: ThreadId, generation: Generation, outcome: RenewOutcome) {
        self.step(|core, now, out| core.renewed(now, owner, generation, outcome, out));
    }

    fn attempted(&mut self, nth: usize, sent_at: Time, reply: Reply) {
        let At::Attempting { permit } = self.callers[nth].at.clone() else {
            return;
        };
        let untaken = match reply {
            Reply::Done => {
                let lost = self.is_lost(permit.owner);
                if let Ok(hold) = self.step(|core, now, out| core.taken(now, &permit, sent_at, out))
                {
                    self.callers[nth].guards.push(hold);
                    if lost {
                        self.wrong =
                            Some("V14: a lock that was lost is back before its owner has seen it");
                    }
                }
                return self.leave(nth);
            }
            Reply::Gone | Reply::Taken => Untaken::OuterGone,
            Reply::Busy { .. } => Untaken::NotExecuted,
        };
        self.step(|core, now, out| core.untaken(now, &permit, untaken, out));
        let Reply::Busy { left } = reply else {
            return self.leave(nth);
        };
        if !self.callers[nth].subscribed && self.queues(nth) {
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
            let limit = self.now + left.min(RULES.watchdog_timeout);
            self.callers[nth].at = At::Listening {
                waiter: permit.waiter,
                limit,
            };
        } else {
            self.leave(nth);
        }
    }

    /// The owner holds nothing, and has a guard whose hold was lost.
    fn is_lost(&self, owner: ThreadId) -> bool {
        let own = self.callers.iter().filter(|caller| caller.owner == owner);
        let mut guards = own.flat_map(|caller| &caller.guards).peekable();
        guards.peek().is_some() && guards.all(|hold| self.ended.contains(hold))
    }

    fn queues(&self, nth: usize) -> bool {
        match &self.callers[nth].at {
            At::Attempting { permit } => self.core.order(permit.waiter) == Some(Order::Queued),
            _ => false,
        }
    }

    /// Nothing that was on the connection arrives any more; the server has killed it before the next
    /// one is used. A call is sent once more, a job and a renewal later.
    fn lose(&mut self) {
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
                Sender::Job(owner, job) => {
                    self.jobs.insert((owner, job));
                }
                Sender::Renewal(owner, generation) => {
                    self.renewed(owner, generation, RenewOutcome::Unknown);
                }
                Sender::Nobody => {}
            }
        }
    }

    fn repeat(&mut self, nth: usize, sent: &Sent) {
        match self.callers[nth].at.clone() {
            At::Unlocking { unlock } if self.core.is_taken_over(&unlock) => self.cancel(nth),
            At::Unlocking { unlock } => {
                self.send_release(Sender::Caller(nth), unlock.owner);
                self.mark_repeated(sent);
            }
            _ => {
                self.send(sent.sender, sent.script);
                self.mark_repeated(sent);
            }
        }
    }

    fn mark_repeated(&mut self, first: &Sent) {
        if let Some(last) = self.outbox.last_mut() {
            last.repeats = Some(first.sent_at);
        }
    }

    fn apply(&mut self, deferred: Deferred) {
        self.deferred.remove(&deferred);
        match deferred {
            // Read now, and not when the step asked for it.
            Deferred::Timer(owner) => match self.core.timer(owner) {
                Some(at) => {
                    self.timers.insert(owner, at);
                }
                None => {
                    self.timers.remove(&owner);
                }
            },
            Deferred::Wake(waiter) => {
                let asleep = self
                    .callers
                    .iter_mut()
                    .find(|caller| caller.waiter() == Some(waiter));
                asleep.into_iter().for_each(|caller| caller.woken = true);
            }
            Deferred::AcquireEnded(owner) => {
                for caller in self
                    .callers
                    .iter_mut()
                    .filter(|caller| caller.owner == owner)
                {
                    if let At::Waiting { acquire_ended, .. } = &mut caller.at {
                        *acquire_ended = true;
                    }
                }
            }
            Deferred::Job(owner, job) => {
                self.jobs.insert((owner, job));
            }
        }
    }
}

fn released(sent: &Sent, reply: Reply) -> ReleaseAnswer {
    let Script::Release { target, .. } = sent.script else {
        unreachable!("a release was sent")
    };
    ReleaseAnswer {
        target,
        gone: match reply {
            Reply::Done => None,
            Reply::Gone => Some(LossReason::Gone),
            Reply::Taken | Reply::Busy { .. } => Some(LossReason::Taken),
        },
        repeated: sent.repeats.is_some(),
        first_sent_at: sent.repeats.unwrap_or(sent.sent_at),
    }
}

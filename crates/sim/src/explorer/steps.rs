//! What happens: the shell of the core, as small as it can be said.

use redisson_lock::LossReason;
use redisson_lock::test_util::core::{
    Admission, HoldId, JobStep, Life, NoReply, ReleaseStart, ThreadId, Time, Untaken,
};

use super::server::{Holder, Script};
use super::state::{At, Deferred, Sender, State, lease_of};
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

    pub(super) fn run(&mut self, nth: usize, world: &World) {
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
    pub(super) fn admit(&mut self, nth: usize) {
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
    pub(super) fn leave(&mut self, nth: usize) {
        if let Some(waiter) = self.callers[nth].waiter() {
            self.callers[nth].at = At::Ready;
            self.step(|core, now, out| core.leave(now, waiter, out));
        }
        let caller = &mut self.callers[nth];
        (caller.at, caller.woken, caller.subscribed, caller.received) =
            (At::Ready, false, false, false);
        caller.next += 1;
    }

    pub(super) fn end_hold(&mut self, nth: usize, verb: Verb) {
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

    pub(super) fn unlock(&mut self, nth: usize, hold: HoldId) {
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

    pub(super) fn send_release(&mut self, sender: Sender, owner: ThreadId) {
        let (target, lease) = self.step(|core, now, out| core.release_sent(now, owner, out));
        self.send(
            sender,
            Script::Release {
                owner,
                target,
                lease,
            },
        );
    }

    pub(super) fn job_sends(&mut self, owner: ThreadId) {
        let Some(job) = self.jobs.iter().find(|(other, _)| *other == owner).copied() else {
            return;
        };
        self.jobs.remove(&job);
        match self.step(|core, now, out| core.job_step(now, owner, job.1, out)) {
            JobStep::Send { .. } => self.send_release(Sender::Job(owner, job.1), owner),
            JobStep::Done => {}
        }
    }

    pub(super) fn cancel(&mut self, nth: usize) {
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
    pub(super) fn nobody_waits(&mut self, sender: Sender) {
        self.outbox.retain(|sent| sent.sender != sender);
        for sent in self.wire.iter_mut().filter(|sent| sent.sender == sender) {
            sent.sender = Sender::Nobody;
        }
        self.answers.retain(|(sent, _)| sent.sender != sender);
    }

    pub(super) fn apply(&mut self, deferred: Deferred) {
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

//! How the client ends: by `close`, or with its runtime. And what is forced or refused.

use redisson_lock_core::LossReason;
use redisson_lock_core::input::{
    ClientEnds, DetachedDropped, LifeChanges, OwnerLost, ReleaseDropped,
};
use redisson_lock_core::{Face, Generation, Life, OpId, OwnerKey, Then, Untaken};

use super::Action;
use super::coverage::Case;
use super::script::{Holder, Reply, Told};
use super::state::{Deferred, Sender, State};

impl State {
    /// Nobody sends anything any more, and nobody is answered.
    pub fn has_ended(&self) -> bool {
        self.life >= Life::Gone
    }

    pub(super) fn end_actions(&self, actions: &mut Vec<Action>) {
        if self.budget.closes > 0 && self.life != Life::Gone {
            actions.push(Action::Close);
        }
        if self.budget.ends > 0 && self.life != Life::Closed {
            actions.push(Action::RuntimeEnds);
        }
        if self.budget.refusals > 0 && !self.wire.is_empty() {
            actions.push(Action::Refuse);
        }
        let ours = matches!(self.server.lock, Some((Holder::Ours(_), ..)));
        if self.budget.forces > 0 && ours {
            actions.push(Action::Force);
        }
    }

    /// The next step of `close`.
    pub(super) fn close(&mut self) {
        self.budget.closes -= 1;
        self.closing += 1;
        match self.closing {
            1 => self.enter(Life::Closing, Case::Close),
            2 => {
                self.step_all(Case::DropDetached, DetachedDropped {});
            }
            4 => {
                self.enter(Life::Closed, Case::Closed);
                for sender in self.disconnect() {
                    match sender {
                        Sender::Release(owner, op) => self.release_failed(owner, op),
                        Sender::Acquire(owner, op) => _ = self.drop_acquire(owner, op),
                        Sender::Caller(_) | Sender::Renewal(..) | Sender::Nobody => {}
                    }
                }
            }
            _ => self.lose_all(),
        }
    }

    /// The holds end in a step of their own, and each send that is on its way says by itself that it was dropped.
    pub(super) fn end_runtime(&mut self) {
        self.budget.ends -= 1;
        self.enter(Life::Gone, Case::RuntimeEnds);
        let sends = self.disconnect();
        let sends = sends.into_iter().filter_map(|sender| match sender {
            Sender::Acquire(owner, op) | Sender::Release(owner, op) => Some((owner, op)),
            Sender::Caller(_) | Sender::Renewal(..) | Sender::Nobody => None,
        });
        let sends = sends.chain(std::mem::take(&mut self.sends));
        let dropped = sends.map(|(owner, op)| Deferred::Dropped(owner, op));
        self.deferred.extend(dropped);
        self.deferred.insert(Deferred::LoseAll);
    }

    fn enter(&mut self, life: Life, case: Case) {
        self.step_all(case, LifeChanges { life });
        self.life = self.life.max(life);
    }

    /// What is lost this way is not released any more.
    pub(super) fn lose_all(&mut self) {
        self.given_up = true;
        let reason = LossReason::Closed;
        self.step_all(Case::LosesAll, ClientEnds { reason });
    }

    /// What was handed over may be executed still; nobody hears of it. Answers with those that had
    /// a send under way.
    fn disconnect(&mut self) -> Vec<Sender> {
        self.timers.clear();
        self.without_room.clear();
        let answers = std::mem::take(&mut self.answers);
        let sent = answers.iter().map(|(sent, _)| sent);
        let sent = sent.chain(&self.outbox).chain(&self.wire);
        let senders = sent.map(|sent| sent.sender).collect();
        for sent in &mut self.wire {
            sent.sender = Sender::Nobody;
        }
        // A call knows that it was not sent.
        self.outbox
            .retain(|sent| matches!(sent.sender, Sender::Caller(_)));
        senders
    }

    pub(super) fn drop_send(&mut self, owner: OwnerKey, op: OpId) {
        if self.drop_acquire(owner, op) {
            return;
        }
        self.given_up = true;
        self.step(owner, Case::ReleaseGaveUp, ReleaseDropped { owner, op });
    }

    /// Whether this was an acquire that is under way.
    fn drop_acquire(&mut self, owner: OwnerKey, op: OpId) -> bool {
        let permit = self.core.acquire_says(owner, op);
        let ended = permit.map(|permit| self.ends_attempt(&permit, Untaken::Unknown, Then::Ends));
        ended.is_some()
    }

    /// The server refuses the next script.
    pub(super) fn refuse(&mut self) {
        self.budget.refusals -= 1;
        if let Some(sent) = self.wire.pop_front()
            && sent.sender != Sender::Nobody
        {
            self.answers.push((sent, Reply::Refused));
        }
    }

    /// Somebody forces the lock open, and says so later to the one whose it was.
    pub(super) fn force(&mut self) {
        self.budget.forces -= 1;
        if let Some((Holder::Ours(field), ..)) = self.server.lock.take() {
            let held = self.core.owner_of(&field.text(), Face::Only);
            let forced = held.map(|(owner, generation)| Deferred::Forced(owner, generation));
            self.deferred.extend(forced);
            self.robbed = true;
            let told = match self.server.queue {
                Some(_) => self.server.tells_the_head(),
                None => Told::All,
            };
            self.publish(told);
        }
    }

    pub(super) fn forced(&mut self, owner: OwnerKey, generation: Generation) {
        let is_late = self.generation(owner) != Some(generation);
        let case = if is_late {
            Case::ForcedLate
        } else {
            Case::Forced
        };
        let (generation, reason) = (Some(generation), LossReason::Gone);
        let lost = OwnerLost {
            owner,
            generation,
            reason,
        };
        self.step(owner, case, lost);
    }
}

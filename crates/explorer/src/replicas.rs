//! What replicas have, and what they confirm.
//!
//! They have no more than they have confirmed: what reached them by chance is not relied on.

use redisson_lock_core::input::ReplicasAnswer;
use redisson_lock_core::{OwnerKey, Time};

use super::Action;
use super::script::{Holder, Script};
use super::state::{At, Sender, State};

impl State {
    pub(super) fn replica_actions(&self, actions: &mut Vec<Action>) {
        let callers = self.callers.iter().enumerate();
        let waits = |at: &At| matches!(at, At::Confirming { .. });
        let waiting = callers.filter(|(_, caller)| waits(&caller.at) && !self.has_ended());
        let waiting: Vec<_> = waiting.map(|(nth, _)| nth).collect();
        actions.extend(waiting.iter().copied().map(Action::Confirm));
        if self.budget.lags == 0 {
            return;
        }
        actions.extend(waiting.into_iter().map(Action::DoNotConfirm));
        let answers = self.answers.iter().enumerate();
        let asked = answers.filter(|(_, (sent, _))| {
            matches!(sent.script, Script::Renew { lease: Some(_), .. })
                && matches!(sent.sender, Sender::Renewal(..) | Sender::Caller(_))
        });
        actions.extend(asked.map(|(nth, _)| Action::DeliverUnconfirmed(nth)));
    }

    /// How many replicas confirm what was executed so far, if they do in time. They are asked with a write to the
    /// lock, which its owner has to hold.
    pub(super) fn acknowledged(&mut self, owner: OwnerKey, in_time: bool) -> u32 {
        let is_held = matches!(self.server.lock, Some((Holder::Ours(field), ..)) if field.owner == owner.thread);
        if self.replicas == 0 || !in_time || !is_held {
            return 0;
        }
        self.server.replica = self.server.lock;
        self.replicas
    }

    /// A call that has taken the lock waits for the replicas.
    pub(super) fn waits_for_replicas(&mut self, nth: usize, unconfirmed: Option<At>) {
        if let Some(at) = unconfirmed {
            self.callers[nth].at = at;
        }
    }

    pub(super) fn confirm(&mut self, nth: usize, in_time: bool) {
        let owner = self.callers[nth].owner;
        let At::Confirming { guard, leased } = self.callers[nth].at else {
            return;
        };
        let hold = guard.hold;
        self.budget.lags -= u8::from(!in_time);
        let acknowledged = self.acknowledged(owner, in_time);
        // A part of the step before it, which was noted.
        let rows = self.rows();
        let answered = ReplicasAnswer {
            owner,
            hold,
            leased,
            acknowledged,
        };
        self.run_step(&rows, answered);
        self.callers[nth].at = At::Ready;
        if acknowledged >= self.replicas {
            self.callers[nth].guards.push(guard);
        } else {
            // Its unlock is a part of the same call.
            self.callers[nth].next -= 1;
            self.unlock(nth, hold);
        }
    }

    /// Whether replicas have the lock of an owner until then, if they must.
    pub(super) fn is_replicated(&self, owner: OwnerKey, until: Time) -> bool {
        let has = |(holder, _, expires)| {
            matches!(holder, Holder::Ours(field) if field.owner == owner.thread) && until <= expires
        };
        self.replicas == 0 || self.server.replica.is_some_and(has)
    }
}

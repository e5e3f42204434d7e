//! What the core is told: each step, the pair that it is of, and its effects, which are put aside and done later.

use redisson_lock_core::LossReason;
use redisson_lock_core::input::Happens;
use redisson_lock_core::{Effects, Event, HoldId, Life, OwnerKey, Total, Unlocked};

use super::coverage::{Case, Row};
use super::script::Field;
use super::state::{At, Deferred, State};

impl State {
    /// Runs a step of the core that is about one owner, and puts its effects aside.
    pub fn step<I: Happens>(&mut self, owner: OwnerKey, case: Case, input: I) -> I::Answer {
        self.step_as(owner, input, |_, _| case)
    }

    /// The same, where only the answer shows what it was that the core was told.
    pub fn step_as<I: Happens>(
        &mut self,
        owner: OwnerKey,
        input: I,
        case: impl FnOnce(&Self, &I::Answer) -> Case,
    ) -> I::Answer {
        let rows = self.rows();
        let answer = self.run_step(&rows, input);
        let case = case(self, &answer);
        self.note_of(owner, &rows, case);
        answer
    }

    /// A step that is about every owner.
    pub fn step_all<I: Happens>(&mut self, case: Case, input: I) -> I::Answer {
        let rows = self.rows();
        self.note(rows.iter(), case);
        self.run_step(&rows, input)
    }

    /// Something happened that the core is not told of as such.
    pub fn note_all(&self, case: Case) {
        self.note(self.rows().iter(), case);
    }

    pub(super) fn note_of(&self, owner: OwnerKey, rows: &[(OwnerKey, Row)], case: Case) {
        self.note(rows.iter().filter(|(other, _)| *other == owner), case);
    }

    fn note<'a>(&self, rows: impl Iterator<Item = &'a (OwnerKey, Row)>, case: Case) {
        for (_, row) in rows {
            self.reached.note(*row, case);
        }
        if let Some(row) = Row::of_life(self.life) {
            self.reached.note(row, case);
        }
    }

    /// What is under way for each owner.
    pub fn rows(&self) -> Vec<(OwnerKey, Row)> {
        let mut rows: Vec<(OwnerKey, Row)> = Vec::with_capacity(self.callers.len());
        let owners = self.callers.iter().map(|caller| caller.owner);
        for owner in owners.flat_map(|owner| self.faces_of(owner)) {
            if rows.iter().all(|(other, _)| *other != owner) {
                rows.push((owner, Row::of(self.core.under_way(owner).0)));
            }
        }
        rows
    }

    pub fn run_step<I: Happens>(&mut self, rows: &[(OwnerKey, Row)], input: I) -> I::Answer {
        let mut effects = Effects::default();
        let answer = self.core.tell(self.now, input, &mut effects);
        self.finish(rows, effects);
        answer
    }

    /// Calls that were woken ask, and the effects are put aside.
    pub(super) fn finish(&mut self, rows: &[(OwnerKey, Row)], mut effects: Effects) {
        self.drive(&mut effects);
        for event in &effects.events {
            let Event::Lost {
                field,
                face,
                reason,
            } = event
            else {
                continue;
            };
            let case = match reason {
                LossReason::LeaseOver => Case::LeaseOver,
                LossReason::NotRenewed => Case::NotRenewed,
                LossReason::MaxHold => Case::MaxHold,
                _ => continue,
            };
            let lost = OwnerKey::of(Field::of(field).owner, *face);
            self.note_of(lost, rows, case);
        }
        self.put_aside(effects);
    }

    fn put_aside(&mut self, effects: Effects) {
        for (hold, _) in effects.ended {
            let mut callers = self.callers.iter();
            if callers.any(|caller| caller.guards.iter().any(|guard| guard.hold == hold)) {
                self.ended.insert(hold);
            }
        }
        for owner in effects.timers {
            match owner {
                // One that is set late is as one that fires late.
                OwnerKey::QUEUE => self.set_timer(owner),
                owner => _ = self.deferred.insert(Deferred::Timer(owner)),
            }
        }
        let channels = effects.subscribes.into_iter();
        let channels: Vec<_> = channels.map(|(owner, _)| self.channel_of(owner)).collect();
        self.deferred
            .extend(channels.into_iter().map(Deferred::Listens));
        self.given_up |= effects
            .totals
            .iter()
            .any(|(total, _)| *total == Total::GaveUp);
        match self.life {
            Life::Gone => {
                let dropped = effects.sends.into_iter();
                self.deferred
                    .extend(dropped.map(|(owner, op)| Deferred::Dropped(owner, op)));
            }
            Life::Open | Life::Closing | Life::Closed => self.sends.extend(effects.sends),
        }
        for (hold, outcome) in effects.unlocked {
            self.unlocked(hold, outcome);
        }
    }

    /// The caller may have left.
    fn unlocked(&mut self, hold: HoldId, outcome: Unlocked) {
        let lost = matches!(outcome, Unlocked::Lost(_));
        if lost && !self.robbed && !self.has_expired {
            self.wrong = Some("FL: an unlock reports a loss, and nothing was lost");
        }
        let mut callers = self.callers.iter();
        let at = At::Unlocking { hold };
        if let Some(nth) = callers.position(|caller| caller.at == at) {
            self.leave(nth);
        }
    }

    /// It is due when that is read, and not when the step asked for it.
    fn set_timer(&mut self, owner: OwnerKey) {
        // None is set any more.
        if self.has_ended() {
            return;
        }
        match self.core.timer(owner) {
            Some(at) => _ = self.timers.insert(owner, at),
            None => _ = self.timers.remove(&owner),
        }
    }

    pub(super) fn apply(&mut self, deferred: Deferred) {
        self.deferred.remove(&deferred);
        match deferred {
            Deferred::Timer(owner) => self.set_timer(owner),
            // What was published before is not heard.
            Deferred::Listens(channel) => {
                self.subscribed.insert(channel);
                self.hears(channel);
            }
            Deferred::Hears(channel) => self.hears(channel),
            Deferred::Dropped(owner, op) => self.drop_send(owner, op),
            Deferred::Forced(owner, generation) => self.forced(owner, generation),
            Deferred::LoseAll => self.lose_all(),
        }
    }
}

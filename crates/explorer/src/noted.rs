//! What the core is told: each step, the pair that it is of, and its effects, which are put aside and done later.

use redisson_lock_core::LossReason;
use redisson_lock_core::{Effects, Event, HoldId, Life, LockCore, OwnerKey, Time, Total, Unlocked};

use super::coverage::{Input, Row};
use super::script::Field;
use super::state::{At, Deferred, State};

impl State {
    /// Runs a step of the core that is about one owner, and puts its effects aside.
    pub fn step<T>(
        &mut self,
        owner: OwnerKey,
        input: Input,
        run: impl FnOnce(&mut LockCore, Time, &mut Effects) -> T,
    ) -> T {
        self.step_as(owner, run, |_, _| input)
    }

    /// The same, where only the answer shows what it was that the core was told.
    pub fn step_as<T>(
        &mut self,
        owner: OwnerKey,
        run: impl FnOnce(&mut LockCore, Time, &mut Effects) -> T,
        input: impl FnOnce(&Self, &T) -> Input,
    ) -> T {
        let rows = self.rows();
        let answer = self.run_step(&rows, run);
        let input = input(self, &answer);
        self.note(rows.iter().filter(|(other, _)| *other == owner), input);
        answer
    }

    /// A step that is about every owner.
    pub fn step_all<T>(
        &mut self,
        input: Input,
        run: impl FnOnce(&mut LockCore, Time, &mut Effects) -> T,
    ) -> T {
        let rows = self.rows();
        self.note(rows.iter(), input);
        self.run_step(&rows, run)
    }

    /// Something happened that the core is not told of as such.
    pub fn note_all(&self, input: Input) {
        self.note(self.rows().iter(), input);
    }

    pub(super) fn note<'a>(&self, rows: impl Iterator<Item = &'a (OwnerKey, Row)>, input: Input) {
        for (_, row) in rows {
            self.reached.note(*row, input);
        }
        if let Some(row) = Row::of_life(self.life) {
            self.reached.note(row, input);
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

    pub fn run_step<T>(
        &mut self,
        rows: &[(OwnerKey, Row)],
        run: impl FnOnce(&mut LockCore, Time, &mut Effects) -> T,
    ) -> T {
        let mut effects = Effects::default();
        let answer = run(&mut self.core, self.now, &mut effects);
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
            let input = match reason {
                LossReason::LeaseOver => Input::LeaseOver,
                LossReason::NotRenewed => Input::NotRenewed,
                LossReason::MaxHold => Input::MaxHold,
                _ => continue,
            };
            let lost = OwnerKey::of(Field::of(field).owner, *face);
            let of_owner = |(owner, _): &&(OwnerKey, Row)| *owner == lost;
            self.note(rows.iter().filter(of_owner), input);
        }
        self.put_aside(effects);
        answer
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

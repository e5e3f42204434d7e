//! What a waiting call hears and when it asks again, and who is passed over.
//!
//! Nothing here waits for a poll. A call that waits for another process asks again when something is heard of the lock, when
//! its time has come, or when another call of this client changes something. The step that says so also says that it asks.
//!
//! Two things wait for a poll, for a command timeout: a lock that was granted, and the turn of a place in the queue, which
//! takes no lock by itself. A call that was passed over is back at its place when it is polled.

use super::LockCore;
use super::owner_state::OwnerState;
use super::queue::{QueueLane, Stage};
use super::values::{Effects, OwnerKey, Time, WaiterId};

/// What becomes of a call whose acquire has brought no lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Then {
    /// It waits until then, or until something is heard of the lock. If the client does not hear of it yet, it waits for that
    /// first.
    Waits {
        until: Time,
        subscribed: bool,
    },
    AsksAgain,
    /// It is over.
    Ends,
}

/// What is known of a subscription that calls wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Listens {
    /// It was confirmed before their acquires were sent, and nothing was heard since: they wait as if they had found it so.
    Unchanged,
    /// It is confirmed, and something may have been missed.
    Changed,
    /// The server refuses it.
    Refused,
}

impl LockCore {
    /// What a call does whose acquire has just ended without the lock.
    pub(super) fn go_on(&mut self, now: Time, id: WaiterId, then: Then, out: &mut Effects) {
        let Some(waiter) = self.queue.get(id) else {
            return;
        };
        let (owner, deadline, field) = (waiter.owner, waiter.deadline, waiter.field.clone());
        let is_heard = waiter.stage == Stage::Sent { is_heard: true };
        let by_deadline = |at: Time| deadline.map_or(at, |deadline| deadline.min(at));
        let (stage, due) = match then {
            Then::Ends => return self.end_call(now, id, out),
            Then::Waits { until, subscribed } if !is_heard => match subscribed {
                true => (Stage::Waiting, Some(by_deadline(until))),
                false => {
                    // Its owner may be forgotten, if nothing is left of it.
                    let field = self.field(owner).or(field);
                    out.subscribes.extend(field.map(|field| (owner, field)));
                    let limit = now + self.rules.command_timeout;
                    (Stage::Subscribing { until }, Some(by_deadline(limit)))
                }
            },
            Then::Waits { .. } | Then::AsksAgain => (Stage::Queued, None),
        };
        self.queue.set_stage(id, stage, due);
        // Nothing else may wake it for what is there already.
        out.wake(id);
    }

    /// Something is known of the subscription that these calls wait for.
    pub(super) fn listens(&mut self, now: Time, ids: &[WaiterId], how: Listens, out: &mut Effects) {
        self.step(now, out, |core, out| {
            for id in ids {
                let Some(waiter) = core.queue.get(*id) else {
                    continue;
                };
                let Stage::Subscribing { until } = waiter.stage else {
                    continue;
                };
                let (stage, deadline) = (waiter.stage, waiter.deadline);
                match how {
                    Listens::Unchanged => {
                        let due = deadline.map_or(until, |limit| limit.min(until));
                        core.queue.set_stage(*id, Stage::Waiting, Some(due));
                    }
                    Listens::Changed => core.ask_again(*id, out),
                    Listens::Refused => {
                        core.queue.set_stage(*id, stage, None);
                        out.wake(*id);
                    }
                }
            }
        });
    }

    /// Those that wait until the client hears of the lock: of one owner, or all.
    pub fn subscribing(&self, owner: Option<OwnerKey>) -> Vec<WaiterId> {
        let subscribes = |id: &WaiterId| {
            let waiter = self.queue.get(*id);
            waiter.is_some_and(|waiter| matches!(waiter.stage, Stage::Subscribing { .. }))
        };
        match owner {
            Some(owner) => {
                let calls = self.queue.in_lane(self.discipline.lane(owner));
                calls.filter(subscribes).collect()
            }
            None => self.queue.listening().filter(subscribes).collect(),
        }
    }

    /// Whether any call of this owner wants the lock.
    pub fn has_calls(&self, owner: OwnerKey) -> bool {
        self.queue.has_calls(owner)
    }

    /// Another process may have freed the lock. `next`: only this owner hears of it, whose turn it is in the server's queue.
    pub(super) fn note_change(&mut self, now: Time, next: Option<OwnerKey>, out: &mut Effects) {
        self.step(now, out, |core, out| {
            let listening: Vec<_> = match next {
                Some(owner) => core.queue.in_lane(core.discipline.lane(owner)).collect(),
                None => core.queue.listening().collect(),
            };
            for id in listening {
                match core.queue.get(id).map(|waiter| waiter.stage) {
                    Some(Stage::Sent { .. }) => core.queue.mark_heard(id),
                    Some(Stage::Waiting | Stage::Subscribing { .. }) => core.ask_again(id, out),
                    _ => {}
                }
            }
        });
    }

    fn ask_again(&mut self, id: WaiterId, out: &mut Effects) {
        self.queue.set_stage(id, Stage::Queued, None);
        out.wake(id);
    }

    /// A call is polled: if it was passed over, or makes another attempt, it asks at its place.
    pub(super) fn poll(&mut self, now: Time, id: WaiterId, out: &mut Effects) {
        self.step(now, out, |core, out| {
            let waiter = core.queue.get(id);
            let stage = waiter.map(|waiter| (waiter.passed_over, waiter.stage));
            match stage {
                Some((true, Stage::Place)) => core.queue.take_back(id),
                Some((true, _) | (_, Stage::Ended)) => {
                    core.queue.take_back(id);
                    core.ask_again(id, out);
                }
                Some(_) | None => {}
            }
        });
    }

    /// Whether a call is to be polled for anything else than what was granted to it.
    #[cfg(test)]
    pub(super) fn wants_poll(&self, id: WaiterId) -> bool {
        let waiter = self.queue.get(id);
        waiter.is_some_and(|waiter| waiter.passed_over || waiter.stage == Stage::Ended)
    }

    /// A place is polled. Returns whether it has its turn.
    pub(super) fn poll_turn(&mut self, now: Time, id: WaiterId, out: &mut Effects) -> bool {
        self.step(now, out, |core, _| {
            core.queue.take_back(id);
            core.begin_turn(now, id);
        });
        self.has_turn(now, id)
    }

    /// If a place is the first, it has a command timeout to be polled.
    pub(super) fn begin_turn(&mut self, now: Time, id: WaiterId) {
        let place = self.queue.get(id);
        let place = place.filter(|place| place.stage == Stage::Place);
        if place.is_some_and(|place| self.queue.head(place.lane()) == Some(id)) {
            let limit = now + self.rules.command_timeout;
            self.queue.set_stage(id, Stage::Place, Some(limit));
        }
    }

    /// Whether a waiter has no place in the server's queue where it should have one, or may have none.
    pub(super) fn lacks_place(&self, id: WaiterId) -> bool {
        let own = self
            .queue
            .get(id)
            .map(|waiter| self.owners.get(waiter.owner));
        self.discipline.keeps_places()
            && own.is_some_and(|own| own.is_none_or(OwnerState::lacks_place))
    }

    /// Ends the stages that are over.
    pub(super) fn end_stages(&mut self, now: Time, out: &mut Effects) {
        while let Some((_, id)) = self.queue.first_due().filter(|(at, _)| *at <= now) {
            let Some(waiter) = self.queue.get(id) else {
                return;
            };
            let (owner, stage, lane) = (waiter.owner, waiter.stage, waiter.lane());
            self.queue.set_stage(id, stage, None);
            match stage {
                Stage::Place => self.end_turn(lane, id, out),
                Stage::Ended => {
                    self.queue.pass_over(id);
                    self.leave_place(now, owner, out);
                }
                Stage::Waiting => self.ask_again(id, out),
                Stage::New
                | Stage::Behind { .. }
                | Stage::Queued
                | Stage::Sent { .. }
                | Stage::Subscribing { .. } => out.wake(id),
            }
        }
    }

    /// The turn of a place that was not polled, or could not use it: the older head of another lane came first. Where the
    /// others may attempt too, it is in the way of none. It is woken, so that one that is polled asks for its turn again:
    /// nothing else tells it that the other head has gone.
    fn end_turn(&mut self, lane: QueueLane, id: WaiterId, out: &mut Effects) {
        let is_in_the_way = self.queue.head(lane) == Some(id)
            && self.discipline.has_local_queue()
            && !self.is_blocked(lane)
            && !self.is_open(lane);
        if is_in_the_way {
            self.queue.pass_over(id);
            out.wake(id);
        }
    }

    /// A call of this owner does not queue any more: with the last one the owner's place in the server's queue goes.
    pub(super) fn leave_place(&mut self, now: Time, owner: OwnerKey, out: &mut Effects) {
        if self.discipline.keeps_places() {
            self.change(now, owner, out, OwnerState::leave_place);
        }
    }

    /// When a stage ends. The timer may be early: it is moved when it fires.
    pub(super) fn set_timer(&mut self, out: &mut Effects) {
        let first = self.queue.first_due().map(|(at, _)| at);
        // To move it back at each step would cost each pair of lock and unlock: it fires early, and is set again.
        let kept = self.queue.timer.filter(|_| first.is_some());
        let timer = kept.into_iter().chain(first).min();
        if timer != self.queue.timer {
            self.queue.timer = timer;
            out.timers.push(OwnerKey::QUEUE);
        }
    }

    pub(super) fn queue_timer_fired(&mut self, owner: OwnerKey) {
        // An empty queue has none, and a write would make room for it.
        if owner == OwnerKey::QUEUE && self.queue.timer.is_some() {
            self.queue.timer = None;
        }
    }
}

#[cfg(test)]
mod tests;

//! Whose turn it is in the queue, and who is passed over because its call is not polled.
//!
//! The head has a reason to go on when its turn begins: it became the head, or what kept it from
//! attempting is gone. While it waits for another process it has one at the instant when its wait is
//! over, or as soon as something is heard of the lock. If it has not asked for a command timeout from
//! then on, or has not applied the answer of its attempt, its call is not polled. It is passed over: the
//! next one has its turn, and a release undoes the attempt. When it asks, it is back at its place. An immediate
//! attempt passes over a head in the same way, one with an attempt under way after two command timeouts.
//!
//! Any other acquire under way is ended in the same way, a nested one too, if other calls or a release of
//! its owner wait: it has a command timeout for its answer, and one more to apply it.
//!
//! Where the server has the queue, an owner that is told to be first there has as long: then its calls are passed over,
//! and its place goes to the next one.

use super::LockCore;
use super::owner_state::{AfterAcquire, OwnerState};
use super::queue::{QueueLane, Turn};
use super::values::{Effects, OpId, OwnerKey, Time, WaiterId};

impl LockCore {
    /// An attempt of this waiter found the lock held, and it attempts again then, unless it hears of the
    /// lock before.
    pub fn waits(&mut self, now: Time, id: WaiterId, until: Time, out: &mut Effects) {
        self.step(now, out, |core, out| {
            core.note_polled(now, id, out);
            core.queue.set_waits_until(id, Some(until));
            // A release took its attempt over, and gave the place up.
            if core.lacks_place(id) {
                out.wake(id);
            }
        });
    }

    /// Another process may have freed the lock. `next`: it is the turn of this owner in the server's queue.
    pub fn note_change(&mut self, now: Time, next: Option<OwnerKey>, out: &mut Effects) {
        self.step(now, out, |core, out| {
            if let Some(owner) = next {
                core.change(now, owner, out, OwnerState::notify_turn);
            }
            for lane in core.discipline.shared_lanes() {
                let waiting = core.queue.head(*lane).filter(|head| {
                    let waiter = core.queue.get(*head);
                    waiter.is_some_and(|waiter| waiter.waits_until.is_some())
                });
                if let Some(head) = waiting {
                    core.begin_turn(now, (*lane, head), true);
                }
            }
        });
    }

    /// A call that only has a place is polled. Returns whether it has its turn.
    pub fn poll_turn(&mut self, now: Time, id: WaiterId, out: &mut Effects) -> bool {
        self.step(now, out, |core, out| core.note_polled(now, id, out));
        self.has_turn(now, id)
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

    pub(super) fn is_under_way(&self, owner: OwnerKey, op: OpId) -> bool {
        let acquire = self.owners.get(owner).and_then(|own| own.op.acquire());
        acquire.is_some_and(|acquire| acquire.id == op)
    }

    /// Whether another one than that waits for its turn to end.
    fn others_wait(&self, id: WaiterId) -> bool {
        let mut shared_lanes = self.discipline.shared_lanes().iter();
        shared_lanes.any(|lane| self.queue.has_another_queued(*lane, id))
    }

    /// The shared lanes, of which none has a head or a turn while the queue is empty.
    fn lanes_with_turns(&self) -> &'static [QueueLane] {
        match self.queue.is_apart() {
            true => self.discipline.shared_lanes(),
            false => &[],
        }
    }

    pub(super) fn turn(&self, lane: QueueLane) -> Turn {
        match self.discipline.is_shared(lane) {
            true => self.queue.readers_turn,
            false => self.queue.turn,
        }
    }

    pub(super) fn set_turn(&mut self, lane: QueueLane, turn: Turn) {
        // Nothing is written where nothing changes: a queue that is empty would be made for it.
        if self.turn(lane) == turn {
            return;
        }
        match self.discipline.is_shared(lane) {
            true => self.queue.readers_turn = turn,
            false => self.queue.turn = turn,
        }
    }

    /// A waiter is polled.
    pub(super) fn note_polled(&mut self, now: Time, id: WaiterId, out: &mut Effects) {
        self.queue.take_back(id);
        let told = self.discipline.keeps_places().then(|| self.queue.get(id));
        if let Some(owner) = told.flatten().map(|waiter| waiter.owner) {
            self.change(now, owner, out, |own, _| own.note_polled());
        }
        for lane in self.discipline.shared_lanes() {
            let turn = self.turn(*lane);
            let is_its_turn = match turn.attempt {
                Some(attempt) => attempt.waiter == id,
                None => self.queue.head(*lane) == Some(id),
            };
            if is_its_turn {
                let since = Some(now);
                self.set_turn(*lane, Turn { since, ..turn });
            }
        }
    }

    /// The head of a lane has a reason to go on. `ends_wait`: before the instant until which it waits.
    pub(super) fn begin_turn(
        &mut self,
        now: Time,
        (lane, head): (QueueLane, WaiterId),
        ends_wait: bool,
    ) {
        let (since, turn) = (Some(now), self.turn(lane));
        self.set_turn(lane, Turn { since, ..turn });
        if ends_wait {
            self.queue.set_waits_until(head, None);
        }
    }

    /// When the turn of a waiter that does not take it ends.
    fn turn_ends(&self, lane: QueueLane) -> Option<Time> {
        let Turn { since, attempt } = self.turn(lane);
        let since = since?;
        let limit = self.rules.command_timeout;
        if let Some(attempt) = attempt {
            let others_wait = self.others_wait(attempt.waiter);
            return others_wait.then_some(since + limit);
        }
        let head = self.queue.get(self.queue.head(lane)?)?;
        // A head that sleeps until another client's lease is over has nothing to do before.
        let since = head.waits_until.map_or(since, |until| until.max(since));
        // Where the others may attempt too, it is in the way of none.
        let keeps_others = !self.is_blocked(lane) && !self.is_open(lane);
        keeps_others.then_some(since + limit)
    }

    /// Each step asks. Nearly no turn is old enough, whatever the rest says.
    fn is_turn_over(&self, now: Time, lane: QueueLane) -> bool {
        let limit = self.rules.command_timeout;
        let since = self.turn(lane).since;
        since.is_some_and(|since| since + limit <= now)
            && self.turn_ends(lane).is_some_and(|at| at <= now)
    }

    pub(super) fn pass_over_the_unpolled(&mut self, now: Time, out: &mut Effects) {
        for lane in self.lanes_with_turns().iter().copied() {
            while self.is_turn_over(now, lane) {
                let attempt = self.turn(lane).attempt;
                self.set_turn(lane, Turn::default());
                let unpolled = attempt.map(|attempt| attempt.waiter);
                if let Some(waiter) = unpolled.or_else(|| self.queue.head(lane)) {
                    self.queue.pass_over(waiter);
                }
                let attempting = unpolled.and_then(|waiter| self.queue.get(waiter));
                if let Some(owner) = attempting.map(|waiter| waiter.owner) {
                    // Its answer may have come, and may have brought the lock: nothing has applied it. So a release undoes
                    // it, and the call finds that when it is polled.
                    self.change(now, owner, out, |own, cx| {
                        own.end_acquire(AfterAcquire::Unknown, cx);
                    });
                }
                self.set_turn(lane, Turn::default());
                // A head of the other lane may have waited for it.
                for other in self.discipline.shared_lanes().iter().copied() {
                    let since = self.queue.head(other).map(|_| now);
                    let attempt = self.turn(other).attempt;
                    if attempt.is_none() {
                        self.set_turn(other, Turn { since, attempt });
                    }
                }
            }
        }
        while let Some((_, owner)) = self.first_unpolled().filter(|(at, _)| *at <= now) {
            let waiter = self.change(now, owner, out, |own, cx| {
                own.note_polled();
                let waiter = own.op.acquire().map(|acquire| acquire.waiter);
                own.end_acquire(AfterAcquire::Unknown, cx);
                waiter
            });
            match waiter.flatten() {
                Some(waiter) => self.queue.pass_over(waiter),
                None => self.queue.pass_over_all(self.discipline.lane(owner)),
            }
            self.leave_place(now, owner, out);
        }
    }

    /// A call of this owner does not queue any more: with the last one the owner's place in the server's queue goes.
    pub(super) fn leave_place(&mut self, now: Time, owner: OwnerKey, out: &mut Effects) {
        if self.discipline.keeps_places() {
            self.change(now, owner, out, OwnerState::leave_place);
        }
    }

    /// When the acquire that is under way for longest counts as one whose call is not polled, if anything
    /// waits for its end; or the calls of an owner that is first in the server's queue.
    fn first_unpolled(&self) -> Option<(Time, OwnerKey)> {
        let (since, owner) = self.owners.first_unpolled()?;
        let others_wait = |own: &OwnerState| own.op.releases() || own.op.is_idle();
        let own = self.owners.get(owner);
        // Owners of other clients wait for a place at the server, which this client does not see.
        let is_waited_for =
            self.queue.len() > 1 || self.discipline.keeps_places() || own.is_some_and(others_wait);
        is_waited_for.then_some((since + self.rules.command_timeout * 2, owner))
    }

    /// What a step has left of the turn. The timer may be early: it is moved when it fires.
    pub(super) fn end_turn_step(&mut self, out: &mut Effects) {
        let (mut turn_ends, mut others_wait) = (None, false);
        for lane in self.lanes_with_turns().iter().copied() {
            let Turn { since, attempt } = self.turn(lane);
            let attempt = attempt.filter(|attempt| {
                let waiter = self.queue.get(attempt.waiter);
                waiter.is_some_and(|waiter| self.is_under_way(waiter.owner, attempt.op))
            });
            let head = self.queue.head(lane);
            let waiter = attempt.map(|attempt| attempt.waiter).or(head);
            let since = since.filter(|_| waiter.is_some());
            self.set_turn(lane, Turn { since, attempt });
            if waiter.is_some_and(|waiter| self.others_wait(waiter)) {
                others_wait = true;
                turn_ends = turn_ends.into_iter().chain(self.turn_ends(lane)).min();
            }
        }
        let unpolled = self.first_unpolled().map(|(at, _)| at);
        // While there is a reason for a timer, it is only set earlier.
        let kept = self
            .queue
            .timer
            .filter(|_| others_wait || unpolled.is_some());
        // To move it back at each step would cost each pair of lock and unlock: it fires early, and is set again.
        let timer = [kept, turn_ends, unpolled].into_iter().flatten().min();
        if timer != self.queue.timer {
            self.queue.timer = timer;
            out.timers.push(OwnerKey::QUEUE);
        }
    }

    pub(super) fn turn_timer_fired(&mut self, owner: OwnerKey) {
        // An empty queue has none, and a write would make room for it.
        if owner == OwnerKey::QUEUE && self.queue.timer.is_some() {
            self.queue.timer = None;
        }
    }
}

#[cfg(test)]
mod tests;

//! Whose turn it is in the queue, and who is passed over because its call is not polled.
//!
//! The head has a reason to go on when its turn begins: it became the head, or what kept it from
//! attempting is gone. While it waits for another process it has one at the instant when its wait is
//! over, or as soon as something is heard of the lock. If it has not asked for a command timeout from
//! then on, its call is not polled. It is passed over: the next one has its turn. When it asks, it is back at its place. An
//! attempt needs nobody who polls: its answer is applied by the task that reads it, and a lock that is granted by that is given
//! back if it is not claimed.
//!
//! Where the server has the queue, an owner that is told to be first there has as long: then its calls are passed over,
//! and its place goes to the next one.

use super::LockCore;
use super::owner_state::OwnerState;
use super::queue::QueueLane;
use super::values::{Effects, OwnerKey, Time, WaiterId};

impl LockCore {
    /// An attempt of this waiter found the lock held, and it attempts again then, unless it hears of the
    /// lock before.
    pub fn waits(&mut self, now: Time, id: WaiterId, until: Time, out: &mut Effects) {
        self.step(now, out, |core, out| {
            core.note_polled(now, id, out);
            core.queue.set_waits_until(id, Some(until));
            // A release gave the place up.
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

    fn turn(&self, lane: QueueLane) -> Option<Time> {
        match self.discipline.is_shared(lane) {
            true => self.queue.readers_turn,
            false => self.queue.turn,
        }
    }

    fn set_turn(&mut self, lane: QueueLane, since: Option<Time>) {
        // Nothing is written where nothing changes: a queue that is empty would be made for it.
        if self.turn(lane) == since {
            return;
        }
        match self.discipline.is_shared(lane) {
            true => self.queue.readers_turn = since,
            false => self.queue.turn = since,
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
            if self.queue.head(*lane) == Some(id) {
                self.set_turn(*lane, Some(now));
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
        self.set_turn(lane, Some(now));
        if ends_wait {
            self.queue.set_waits_until(head, None);
        }
    }

    /// When the turn of a waiter that does not take it ends.
    fn turn_ends(&self, lane: QueueLane) -> Option<Time> {
        let since = self.turn(lane)?;
        let head = self.queue.get(self.queue.head(lane)?)?;
        // A head that sleeps until another client's lease is over has nothing to do before.
        let since = head.waits_until.map_or(since, |until| until.max(since));
        // Where the others may attempt too, it is in the way of none.
        let keeps_others = !self.is_blocked(lane) && !self.is_open(lane);
        keeps_others.then_some(since + self.rules.command_timeout)
    }

    /// Each step asks. Nearly no turn is old enough, whatever the rest says.
    fn is_turn_over(&self, now: Time, lane: QueueLane) -> bool {
        let since = self.turn(lane);
        since.is_some_and(|since| since + self.rules.command_timeout <= now)
            && self.turn_ends(lane).is_some_and(|at| at <= now)
    }

    pub(super) fn pass_over_the_unpolled(&mut self, now: Time, out: &mut Effects) {
        for lane in self.lanes_with_turns().iter().copied() {
            while self.is_turn_over(now, lane) {
                if let Some(head) = self.queue.head(lane) {
                    self.queue.pass_over(head);
                }
                self.set_turn(lane, None);
                // A head of the other lane may have waited for it.
                for other in self.discipline.shared_lanes().iter().copied() {
                    let since = self.queue.head(other).map(|_| now);
                    self.set_turn(other, since);
                }
            }
        }
        while let Some((_, owner)) = self.first_unpolled().filter(|(at, _)| *at <= now) {
            self.change(now, owner, out, |own, _| own.note_polled());
            self.queue.pass_over_all(self.discipline.lane(owner));
            self.leave_place(now, owner, out);
        }
    }

    /// A call of this owner does not queue any more: with the last one the owner's place in the server's queue goes.
    pub(super) fn leave_place(&mut self, now: Time, owner: OwnerKey, out: &mut Effects) {
        if self.discipline.keeps_places() {
            self.change(now, owner, out, OwnerState::leave_place);
        }
    }

    /// When the calls of an owner that is the first in the server's queue count as not polled. Owners of other clients wait
    /// for its place, which this client does not see.
    fn first_unpolled(&self) -> Option<(Time, OwnerKey)> {
        let (since, owner) = self.owners.first_unpolled()?;
        Some((since + self.rules.command_timeout * 2, owner))
    }

    /// What a step has left of the turn. The timer may be early: it is moved when it fires.
    pub(super) fn end_turn_step(&mut self, out: &mut Effects) {
        let (mut turn_ends, mut others_wait) = (None, false);
        for lane in self.lanes_with_turns().iter().copied() {
            let head = self.queue.head(lane);
            let since = self.turn(lane).filter(|_| head.is_some());
            self.set_turn(lane, since);
            if head.is_some_and(|head| self.others_wait(head)) {
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

//! What happens: the shell of the core, as small as it can be said.

use std::time::Duration;

use redisson_lock_core::input::{
    AcquireEnters, CallAsks, CallJoins, CallLeaves, CallPolled, ReleaseBegins, ReleaseHasRoom,
    ReleaseSent, ReleaseWaits, TimerFires,
};
use redisson_lock_core::{
    Admission, Effects, Face, OpId, Order, OwnerKey, Permit, Rejected, ReleaseSend, ReleaseStep,
    Then, Time, Untaken, WaiterId, Woken,
};

use super::coverage::Case;
use super::read_write::Faces;
use super::script::{Field, Holder, Script, Told};
use super::state::{At, Sender, State, lease_of};
use super::{Action, LONGEST, Verb, World};

impl State {
    pub fn act(&mut self, action: Action, world: &World) {
        self.happens(action, world);
        // A call that is over is polled, whatever has woken it.
        for caller in &mut self.callers {
            caller.woken &= !caller.is_over;
        }
    }

    fn happens(&mut self, action: Action, world: &World) {
        match action {
            Action::Run(nth) => self.run(nth, world),
            Action::Cancel(nth) => {
                if !self.has_ended() {
                    self.budget.cancels -= 1;
                }
                self.cancel(nth);
            }
            Action::Execute => self.execute(),
            Action::ExecuteLate => self.execute_late(),
            Action::HandOff(nth) => self.hand_off(nth),
            Action::Deliver(nth) => self.deliver_nth(nth, true),
            Action::DeliverUnconfirmed(nth) => self.deliver_nth(nth, false),
            Action::Confirm(nth) => self.confirm(nth, true),
            Action::DoNotConfirm(nth) => self.confirm(nth, false),
            Action::Lose => {
                self.budget.losses -= 1;
                self.lose();
            }
            Action::Apply(deferred) => self.apply(deferred),
            Action::PauseEnds => self.hears(OwnerKey::QUEUE),
            Action::TimerFires(owner) => self.timer_fires(owner),
            Action::Sends(owner) => self.sends(owner),
            Action::NoRoom(owner) => self.has_no_room(owner),
            Action::Room(owner) => self.has_room(owner),
            Action::Tick => {
                self.budget.ticks -= 1;
                self.note_all(Case::TimePasses);
                self.now = self.next_due().unwrap_or(self.now);
                let before = !self.server.is_free();
                self.server.expire(self.now);
                self.expired |= before && self.server.is_free();
                self.has_expired |= self.expired;
            }
            Action::ForeignTakes => {
                self.budget.foreign -= 1;
                let until = self.now + LONGEST;
                match &mut self.server.faces {
                    Some(faces) => faces.take_foreign(Face::Write, until),
                    None => self.server.lock = Some((Holder::Foreign, 1, until)),
                }
                self.server.raise();
            }
            Action::ForeignReads => {
                self.budget.foreign -= 1;
                let faces = self.server.faces.iter_mut();
                faces.for_each(|faces| faces.take_foreign(Face::Read, self.now + LONGEST));
            }
            Action::ForeignReleases => {
                let published = match &mut self.server.faces {
                    Some(faces) => faces.release_foreign(self.now),
                    None => true,
                };
                self.server.lock = None;
                self.publish(if published { Told::All } else { Told::None });
            }
            Action::Wipe => {
                self.budget.wipes -= 1;
                self.server.clear();
                self.robbed = true;
            }
            Action::Close => self.close(),
            Action::RuntimeEnds => self.end_runtime(),
            Action::Refuse => self.refuse(),
            Action::Force => self.force(),
        }
    }

    fn timer_fires(&mut self, owner: OwnerKey) {
        self.timers.remove(&owner);
        let request = self.step(owner, Case::TimerFires, TimerFires { owner });
        if let Some(request) = request {
            let sender = Sender::Renewal(owner, request.generation);
            let (field, lease) = (Field::of(&request.field), lease_of(request.asked));
            self.send(sender, Script::Renew { field, lease });
        }
    }

    fn hand_off(&mut self, nth: usize) {
        let sent = self.outbox.remove(nth);
        // Whether it is still wanted is seen when it enters its connection.
        if let Sender::Acquire(owner, op) = sent.sender {
            let Some(permit) = self.core.acquire_says(owner, op) else {
                return;
            };
            if self.leaves_a_used_field(&permit, sent.repeats.is_some()) {
                return;
            }
            let enters = AcquireEnters { owner, op };
            self.core.tell(self.now, enters, &mut Effects::default());
        }
        self.wire.push_back(sent);
    }

    pub fn foreign_actions(&self, actions: &mut Vec<Action>) {
        let server = &self.server;
        if server.has_foreign() {
            actions.push(Action::ForeignReleases);
            return;
        }
        match server.is_free() {
            true if self.budget.foreign > 0 => actions.push(Action::ForeignTakes),
            false if self.budget.wipes > 0 => actions.push(Action::Wipe),
            true | false => {}
        }
        let faces = server.faces.as_ref();
        let may_read = |faces: &Faces| faces.is_read() || faces.is_free();
        if self.budget.foreign > 0 && faces.is_some_and(may_read) {
            actions.push(Action::ForeignReads);
        }
    }

    /// The next instant at which something is due.
    pub fn next_due(&self) -> Option<Time> {
        let lease = self.server.ends();
        let places = self.server.queue.iter().flatten();
        let ends = lease.into_iter().chain(places.map(|place| place.until));
        let due = self.timers.values().copied().chain(ends);
        due.filter(|at| *at > self.now).min()
    }

    pub fn can_run(&self, nth: usize, world: &World) -> bool {
        let caller = &self.callers[nth];
        match &caller.at {
            At::Ready => caller.next < world.callers[nth].1.len(),
            At::Calling { .. } => caller.woken || caller.is_over,
            At::Unlocking { .. } | At::Confirming { .. } | At::Extending { .. } => false,
        }
    }

    pub(super) fn run(&mut self, nth: usize, world: &World) {
        let caller = &self.callers[nth];
        let verb = world.callers[nth].1.get(caller.next).copied();
        match caller.at.clone() {
            At::Ready => match verb {
                Some(Verb::UnlockDetached) => self.unlock_detached(nth),
                Some(Verb::Extend) => self.extend(nth),
                Some(
                    verb @ (Verb::Unlock
                    | Verb::UnlockFirst
                    | Verb::Drop
                    | Verb::DropFirst
                    | Verb::Detach),
                ) => self.end_hold(nth, verb),
                Some(verb) => self.call(nth, verb),
                None => {}
            },
            At::Calling { waiter } => self.poll(nth, waiter),
            At::Unlocking { .. } | At::Confirming { .. } | At::Extending { .. } => {}
        }
    }

    /// A call that wants the lock.
    fn call(&mut self, nth: usize, verb: Verb) {
        self.callers[nth].turns_to(verb.face());
        let owner = self.callers[nth].owner;
        let (order, terms) = verb.terms(self.replicas, self.kind.is_reentrant);
        let case = match order {
            Order::First | Order::Immediate => Case::JoinsImmediately,
            Order::Queued => Case::JoinsQueue,
        };
        let deadline = (verb == Verb::LockWithin).then(|| self.now + PATIENCE);
        let (rows, mut effects) = (self.rows(), Effects::default());
        let joins = CallJoins {
            owner,
            order,
            terms,
            deadline,
        };
        let waiter = self.core.tell(self.now, joins, &mut effects);
        self.callers[nth].at = At::Calling { waiter };
        // It asks immediately.
        effects.wake(waiter);
        self.finish(&rows, effects);
        self.note_of(owner, &rows, case);
    }

    /// The future of a call is polled.
    fn poll(&mut self, nth: usize, waiter: WaiterId) {
        if self.callers[nth].is_over {
            return self.leave(nth);
        }
        self.callers[nth].woken = false;
        if self.core.is_granted(waiter) {
            match self.claims(nth, waiter) {
                Err(Rejected::GivenBack) => {}
                claimed => {
                    self.leave(nth);
                    return self.waits_for_replicas(nth, claimed.unwrap_or_default());
                }
            }
        }
        let rows = self.rows();
        self.run_step(&rows, CallPolled { call: waiter });
    }

    /// Calls that a step has woken ask, in the same step.
    pub(super) fn drive(&mut self, effects: &mut Effects) {
        let mut nth = 0;
        while let Some(waiter) = effects.woken.get(nth).copied() {
            nth += 1;
            let found = self
                .callers
                .iter()
                .position(|caller| caller.waiter() == Some(waiter));
            let (Some(caller), woken) = (found, self.core.woken(waiter)) else {
                continue;
            };
            let is_over = match woken {
                Woken::Nothing => continue,
                Woken::Call => false,
                Woken::Asks => match self.admit(caller, waiter, effects) {
                    Ok(Admission::Busy) | Err(_) => true,
                    Ok(Admission::Granted) => false,
                    Ok(Admission::Sent | Admission::Queued | Admission::OwnerBusy) => continue,
                },
            };
            self.callers[caller].woken = true;
            self.callers[caller].is_over |= is_over;
        }
    }

    /// A call asks what it may do.
    fn admit(
        &mut self,
        nth: usize,
        waiter: WaiterId,
        effects: &mut Effects,
    ) -> Result<Admission, Rejected> {
        let owner = self.callers[nth].owner;
        let field = self.next_field(owner).text();
        let case = match self.core.order(waiter) {
            Some(Order::First | Order::Immediate) => Case::AsksImmediately,
            Some(Order::Queued) | None => Case::AsksQueued,
        };
        let rows = self.rows();
        self.note_of(owner, &rows, case);
        let asks = CallAsks {
            call: waiter,
            field,
            reconnects: None,
        };
        self.core.tell(self.now, asks, effects)
    }

    /// The call is over.
    pub(super) fn leave(&mut self, nth: usize) {
        if let Some(waiter) = self.callers[nth].waiter() {
            self.callers[nth].at = At::Ready;
            let owner = self.callers[nth].owner;
            self.step(owner, Case::Leaves, CallLeaves { call: waiter });
        }
        let caller = &mut self.callers[nth];
        caller.at = At::Ready;
        (caller.woken, caller.is_over) = (false, false);
        caller.turns_to(Face::Write);
        caller.next += 1;
        self.unsubscribe();
    }

    pub(super) fn send_release_as(&mut self, owner: OwnerKey, op: OpId, may_pass: bool) {
        let may_pass = may_pass && self.has_fence;
        // A part of the step before it, which was noted.
        let rows = self.rows();
        let sent = ReleaseSent {
            owner,
            op,
            may_pass,
        };
        let said = self.run_step(&rows, sent);
        let said = said.expect("it is under way");
        if matches!(said, ReleaseSend::Pass { .. }) && self.core.release_target(owner) > 0 {
            self.wrong = Some("a lock is handed over from under a section");
        }
        let field = self.field(owner).expect("it is under way");
        self.send(
            Sender::Release(owner, op),
            match said {
                ReleaseSend::Count {
                    target,
                    lease,
                    leaves,
                } => Script::Release {
                    field,
                    target,
                    lease,
                    leaves: leaves.is_some(),
                },
                ReleaseSend::Pass { to, lease } => Script::Pass {
                    field,
                    to: Field::of(&to),
                    lease,
                },
            },
        );
    }

    fn sends(&mut self, owner: OwnerKey) {
        if let Some((op, ReleaseStep::Send { .. })) = self.begin_send(owner) {
            self.send_release_as(owner, op, true);
        }
    }

    /// An acquire enters its connection, now or on its long way.
    fn send_acquire(&mut self, permit: Permit) {
        if self.has_ended() {
            return self.ends_attempt(&permit, Untaken::NotExecuted, Then::Ends);
        }
        if self.leaves_a_used_field(&permit, false) {
            return;
        }
        let Permit {
            owner,
            op,
            target,
            queues_up,
            terms,
            ..
        } = permit;
        let field = Field::of(&permit.field);
        let lease = terms.lease;
        self.send(
            Sender::Acquire(owner, op),
            Script::Acquire {
                field,
                target,
                lease,
                queues_up,
            },
        );
        self.hand_off(self.outbox.len() - 1);
    }

    fn begin_send(&mut self, owner: OwnerKey) -> Option<(OpId, ReleaseStep)> {
        let found = self.sends.iter().find(|(other, _)| *other == owner);
        let (_, op) = *found?;
        self.sends.remove(&(owner, op));
        if let Some(permit) = self.core.acquire_says(owner, op) {
            self.send_acquire(permit);
            return None;
        }
        // Each loss is followed by another connection.
        let carrier = Some((0, u64::from(self.budget.losses)));
        let begins = ReleaseBegins { owner, op, carrier };
        let step = self.step(owner, Case::ReleaseSteps, begins);
        Some((op, step))
    }

    /// There are too many releases under way.
    fn has_no_room(&mut self, owner: OwnerKey) {
        self.budget.crowds -= 1;
        if let Some((op, ReleaseStep::Send { awaited: None, .. })) = self.begin_send(owner) {
            self.step(owner, Case::NoRoom, ReleaseWaits { owner, op });
            self.without_room.insert((owner, op));
        }
    }

    fn has_room(&mut self, owner: OwnerKey) {
        let found = self.without_room.iter().find(|(other, _)| *other == owner);
        let Some((_, op)) = found.copied() else {
            return;
        };
        self.without_room.remove(&(owner, op));
        let has_waited = self.step(owner, Case::Room, ReleaseHasRoom { owner, op });
        if has_waited {
            self.sends.insert((owner, op));
        }
    }

    pub(super) fn cancel(&mut self, nth: usize) {
        let owner = self.callers[nth].owner;
        match self.callers[nth].at.clone() {
            // Its call is counted already.
            At::Confirming { guard, .. } => {
                self.drop_hold(owner, guard.hold);
                self.callers[nth].at = At::Ready;
                self.callers[nth].turns_to(Face::Write);
                return;
            }
            At::Ready | At::Calling { .. } | At::Unlocking { .. } | At::Extending { .. } => {}
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
}

/// How long a call waits that gives up.
const PATIENCE: Duration = Duration::from_secs(5);

//! What must not be.

use std::collections::BTreeSet;

use redisson_lock_core::{Face, OwnerKey, Time};

use super::World;
use super::read_write::Faces;
use super::script::{Field, Holder};
use super::state::{At, Caller, State};

impl State {
    /// What is wrong with this state, if anything is.
    pub fn problem(&self, world: &World) -> Option<String> {
        self.core.check();
        self.wrong
            .map(str::to_owned)
            .or_else(|| self.believed())
            .or_else(|| self.queued_holder())
            .or_else(|| {
                if self.is_at_rest(world) {
                    self.at_rest()
                } else {
                    None
                }
            })
    }

    /// A hold that its owner believes in is there, for as long as it believes in it.
    fn believed(&self) -> Option<String> {
        if self.robbed {
            return None;
        }
        let mut owners = BTreeSet::new();
        for caller in &self.callers {
            for guard in &caller.guards {
                let owner = guard.owner;
                let snapshot = self.core.snapshot(self.now, owner, guard.hold);
                let Some(found) = snapshot.filter(|found| found.over.is_none()) else {
                    continue;
                };
                owners.insert(owner);
                if guard.token != self.server.token {
                    return Some(format!(
                        "{owner:?} has {:?} for its hold, the server has {:?}",
                        guard.token, self.server.token
                    ));
                }
                let until = found
                    .ends
                    .map_or(found.deadline, |ends| ends.min(found.deadline));
                match self.lasts(owner) {
                    Some(expires) => {
                        if expires < until {
                            return Some(format!(
                                "I1: {owner:?} believes until {until:?}, the server says {expires:?}"
                            ));
                        }
                        if !self.is_replicated(owner, until) {
                            return Some(format!(
                                "{owner:?} believes until {until:?}, the replicas have {:?}",
                                self.server.replica
                            ));
                        }
                    }
                    None => {
                        return Some(format!(
                            "{owner:?} believes that it holds; the server has {:?}",
                            self.server
                        ));
                    }
                }
            }
        }
        // Readers may, and beside a writer its own ones.
        let beside = |owner: &OwnerKey, other: &OwnerKey| {
            owner.face == Face::Read && other.face == Face::Read || owner.thread == other.thread
        };
        let together = |owner| owners.iter().all(|other| beside(owner, other));
        let all_together = owners.iter().all(together);
        (!all_together).then(|| format!("{owners:?} hold at the same time"))
    }

    /// Until when the server has the hold of an owner.
    fn lasts(&self, owner: OwnerKey) -> Option<Time> {
        let own = self.field(owner)?;
        if let Some(faces) = &self.server.faces {
            return faces.of(owner, own)?.1;
        }
        match self.server.lock {
            Some((Holder::Ours(field), _, expires)) => (field == own).then_some(expires),
            Some((Holder::Foreign, ..)) | None => None,
        }
    }

    /// A call waits, and no acquire of it is under way.
    fn sleeps(&self, caller: &Caller) -> bool {
        let waiter = caller.waiter().filter(|_| !caller.is_over);
        waiter.is_some_and(|waiter| !self.core.has_acquire(waiter))
    }

    /// A call waits for what its own owner holds.
    fn waits_for_itself(&self) -> Option<String> {
        let mut callers = self.callers.iter().filter(|caller| self.sleeps(caller));
        let found = callers.find(|caller| {
            let mut faces = self.faces_of(caller.owner);
            faces.any(|face| self.is_certain(face))
        })?;
        Some(format!("{:?} waits for itself", found.owner))
    }

    /// A reader waits although there is no writer, and nothing will wake it.
    fn sleeping_reader(&self) -> Option<String> {
        let is_read = self.server.faces.as_ref().is_some_and(Faces::is_read);
        let mut callers = self.callers.iter();
        let asleep = callers.find(|caller| caller.owner.face == Face::Read && self.sleeps(caller));
        let asleep = asleep.filter(|_| is_read && !self.robbed && !self.has_expired)?;
        Some(format!(
            "a lost wake-up: {:?} sleeps beside readers: {:?}",
            asleep.owner, asleep.at
        ))
    }

    /// I8: the owner that has the lock is not in the server's queue.
    fn queued_holder(&self) -> Option<String> {
        let holder = self.server.field()?;
        let place = self.server.place_of(holder)?;
        Some(format!("I8: {holder:?} has the lock, and place {place}"))
    }

    /// I9: a place whose owner has no call that waits. The end of the client, and of a job, leave it to its own end.
    fn abandoned(&self) -> Option<Field> {
        let waits = |field: Field| {
            let mut callers = self.callers.iter();
            callers.any(|caller| caller.owner.thread == field.owner && caller.waiter().is_some())
        };
        let mut places = self.server.queue.iter().flatten();
        let found = places.find(|place| !waits(place.field))?;
        Some(found.field)
    }

    /// Nothing is under way, and nothing is due.
    fn is_at_rest(&self, world: &World) -> bool {
        let busy = (0..self.callers.len()).any(|nth| {
            let caller = &self.callers[nth];
            // A call that has not begun may never begin.
            let is_idle = caller.at == At::Ready;
            let is_asking = |waiter| self.core.awaits_answer(waiter);
            matches!(caller.at, At::Confirming { .. } | At::Extending { .. })
                || caller.waiter().is_some_and(is_asking)
                || !is_idle && self.can_run(nth, world)
        });
        !busy
            && self.outbox.is_empty()
            && self.wire.is_empty()
            && self.late.is_empty()
            && self.answers.is_empty()
            && self.deferred.is_empty()
            && self.sends.is_empty()
            && self.without_room.is_empty()
            && self.timers.values().all(|at| *at > self.now)
    }

    /// I3, no orphaned hold, and no lost wake-up.
    fn at_rest(&self) -> Option<String> {
        let mut callers = self.callers.iter();
        let unlocks = callers.any(|caller| matches!(caller.at, At::Unlocking { .. }));
        if unlocks || self.core.counts().releasing > 0 {
            return Some("an unlock without an outcome, or a release that nothing ends".to_owned());
        }
        // After the end of the client the leases free what is left.
        let owners = self.callers.iter().map(|caller| caller.owner);
        for owner in owners.flat_map(|owner| self.faces_of(owner)) {
            if self.has_ended() {
                break;
            }
            let expected = self.core.release_target(owner);
            let (field, found) = self.count(owner);
            let is_orphan = field.is_some() && field != self.field(owner);
            let expected = if is_orphan { 0 } else { expected };
            // One that a late acquire has left is freed by its lease, or by this client when it finds it.
            let is_excused = self.robbed
                || self.expired
                || self.given_up
                || found == 0
                || is_orphan && self.is_unfenced;
            if found != expected && !is_excused {
                return Some(format!(
                    "I3: {owner:?} has {found} at the server, and {expected} here"
                ));
            }
            if found == 0 && expected > 0 && !self.robbed && self.is_certain(owner) {
                return Some(format!(
                    "I3: {owner:?} has nothing at the server, and {expected} here"
                ));
            }
        }
        let abandoned = self.abandoned();
        if let Some(field) = abandoned.filter(|_| !(self.has_ended() || self.given_up)) {
            return Some(format!("I9: {field:?} has a place that no call wants"));
        }
        let asleep = self.waits_for_itself().or_else(|| self.sleeping_reader());
        if let Some(problem) = asleep.filter(|_| !self.has_ended()) {
            return Some(problem);
        }
        // Its turn ends, and then the next one comes.
        let free = self.server.is_free() && abandoned.is_none();
        let listens = |caller: &Caller| {
            let waiter = caller.waiter();
            waiter.is_some_and(|waiter| self.core.waits_for_others(waiter))
        };
        let asleep = self.callers.iter().find(|caller| {
            let may_listen = self.expired || self.robbed || !self.kind.announces;
            self.sleeps(caller) && !(listens(caller) && may_listen)
        });
        let asleep = asleep.filter(|_| free)?;
        // The head sleeps until the lease that it was told of is over, or its pause, or lets others go first.
        let waits = (self.expired || !self.kind.announces) && self.callers.iter().any(listens);
        if waits || !self.kind.announces && self.core.stands_back(self.now) {
            return None;
        }
        let holds = self.callers.iter().any(|caller| !caller.guards.is_empty());
        (!holds).then(|| {
            format!(
                "a lost wake-up: {:?} sleeps beside a free lock: {:?}",
                asleep.owner, asleep.at
            )
        })
    }

    /// What the server has of an owner.
    fn count(&self, owner: OwnerKey) -> (Option<Field>, u32) {
        if let Some(faces) = &self.server.faces {
            let field = Field {
                owner: owner.thread,
                taking: 0,
            };
            let found = faces.of(owner, field);
            return (found.map(|_| field), found.map_or(0, |(count, _)| count));
        }
        match self.server.lock {
            Some((Holder::Ours(field), count, _)) if field.owner == owner.thread => {
                (Some(field), count)
            }
            _ => (None, 0),
        }
    }

    fn is_certain(&self, owner: OwnerKey) -> bool {
        let mut guards = self.callers.iter().flat_map(|caller| &caller.guards);
        guards.any(|guard| {
            let snapshot = self.core.snapshot(self.now, owner, guard.hold);
            snapshot.is_some_and(|found| found.over.is_none())
        })
    }
}

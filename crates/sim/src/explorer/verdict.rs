//! What must not be.

use std::collections::BTreeSet;

use redisson_lock::test_util::core::ThreadId;

use super::World;
use super::server::Holder;
use super::state::{At, State};

impl State {
    /// What is wrong with this state, if anything is.
    pub fn problem(&self, world: &World) -> Option<String> {
        self.core.check();
        self.wrong
            .map(str::to_owned)
            .or_else(|| self.believed())
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
            for hold in &caller.guards {
                let snapshot = self.core.snapshot(self.now, caller.owner, *hold);
                let Some(found) = snapshot.filter(|found| found.over.is_none()) else {
                    continue;
                };
                owners.insert(caller.owner);
                let until = found
                    .ends
                    .map_or(found.deadline, |ends| ends.min(found.deadline));
                match self.server.lock {
                    Some((Holder::Ours(owner), _, expires)) if owner == caller.owner => {
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
                    found => {
                        return Some(format!(
                            "{:?} believes that it holds; the server has {found:?}",
                            caller.owner
                        ));
                    }
                }
            }
        }
        (owners.len() > 1).then(|| format!("{owners:?} hold at once"))
    }

    /// Nothing is under way, and nothing is due.
    fn is_at_rest(&self, world: &World) -> bool {
        let busy = (0..self.callers.len()).any(|nth| {
            let caller = &self.callers[nth];
            let wants_a_lock = caller.at == At::Ready;
            matches!(
                caller.at,
                At::Attempting { .. } | At::Confirming { .. } | At::Extending { .. }
            ) || !wants_a_lock && self.can_run(nth, world)
        });
        !busy
            && self.outbox.is_empty()
            && self.wire.is_empty()
            && self.answers.is_empty()
            && self.deferred.is_empty()
            && self.jobs.is_empty()
            && self.timers.values().all(|at| *at > self.now)
    }

    /// I3, no orphaned hold, and no lost wake-up.
    fn at_rest(&self) -> Option<String> {
        let mut callers = self.callers.iter();
        if callers.any(|caller| matches!(caller.at, At::Unlocking { .. })) {
            return Some("an unlock without an outcome".to_owned());
        }
        // After the end of the client the leases free what is left.
        for owner in self.callers.iter().map(|caller| caller.owner) {
            if self.has_ended() {
                break;
            }
            let expected = self.core.release_target(owner);
            let expected = if self.core.field(owner).is_some() {
                expected
            } else {
                0
            };
            let found = self.count(owner);
            if found != expected && !(self.robbed || self.expired || self.given_up || found == 0) {
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
        let free = self.server.lock.is_none();
        let asleep = self.callers.iter().find(|caller| match caller.at {
            At::Queued { .. } => true,
            At::Listening { .. } => !self.expired && !self.robbed,
            At::Ready
            | At::Attempting { .. }
            | At::Unlocking { .. }
            | At::Confirming { .. }
            | At::Extending { .. } => false,
        });
        let asleep = asleep.filter(|_| free)?;
        if self.expired
            && self
                .callers
                .iter()
                .any(|caller| matches!(caller.at, At::Listening { .. }))
        {
            // The head sleeps until the lease that it was told of is over.
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

    fn count(&self, owner: ThreadId) -> u32 {
        match self.server.lock {
            Some((Holder::Ours(holder), count, _)) if holder == owner => count,
            _ => 0,
        }
    }

    fn is_certain(&self, owner: ThreadId) -> bool {
        let guards = self.callers.iter().filter(|caller| caller.owner == owner);
        guards.flat_map(|caller| &caller.guards).any(|hold| {
            let snapshot = self.core.snapshot(self.now, owner, *hold);
            snapshot.is_some_and(|found| found.over.is_none())
        })
    }
}

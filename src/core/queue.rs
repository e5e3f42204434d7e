//! The calls of this client that want one lock: first come, first served, but for attempts at once.
//!
//! Nothing in here looks through all waiters. Whoever may be able to go on is woken by its id.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::hold::{LeasePolicy, local_deadline};
use super::ids::{ThreadId, Time, WaiterId};

/// Whether a call queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Order {
    /// One attempt at once, past the queue.
    AtOnce,
    Queued,
}

/// What a call asks for, and what becomes of its hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Terms {
    pub lease: Duration,
    pub kind: LeaseKind,
    pub limit: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LeaseKind {
    /// Renewed by the watchdog.
    Watchdog,
    /// Never renewed.
    Fixed,
}

impl Terms {
    pub(super) fn policy(&self, sent_at: Time) -> LeasePolicy {
        let limit = self.limit.map(|limit| local_deadline(sent_at, limit));
        match self.kind {
            LeaseKind::Watchdog => LeasePolicy::Watchdog { limit },
            LeaseKind::Fixed => LeasePolicy::Fixed {
                until: local_deadline(sent_at, self.lease),
                limit,
            },
        }
    }
}

/// A call that wants the lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Waiter {
    pub(super) owner: ThreadId,
    pub(super) order: Order,
    pub(super) terms: Terms,
    pub(super) since: Time,
    /// The field that its hold would have, since it first asked.
    pub(super) field: Option<Arc<str>>,
    /// It waits for an operation of its own owner.
    behind_own: bool,
    /// It did not ask when it could have attempted: nobody lets it go first until it does.
    pub(super) absent: bool,
}

impl Waiter {
    /// Nothing but the lock is missing, and its call is polled.
    pub(super) fn is_ready(&self) -> bool {
        !self.behind_own && !self.absent
    }
}

/// Passes without a real release in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Row {
    pub(super) passes: u32,
    pub(super) since: Time,
    /// A bound was reached.
    pub(super) over: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Queue {
    waiters: BTreeMap<WaiterId, Waiter>,
    /// Those that queue, in order.
    queued: BTreeSet<WaiterId>,
    by_owner: BTreeMap<ThreadId, OwnWaiters>,
    /// Attempts at once that let the head of the queue go first.
    yielding: BTreeSet<WaiterId>,
}

/// The waiters of one owner.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct OwnWaiters {
    /// All but those that are behind their own.
    free: BTreeSet<WaiterId>,
    /// Those that wait for an operation of their owner; they are served in their order.
    behind: BTreeSet<(Order, WaiterId)>,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(super) fn add(
        &mut self,
        id: WaiterId,
        owner: ThreadId,
        order: Order,
        terms: Terms,
        now: Time,
    ) {
        let waiter = Waiter {
            owner,
            order,
            terms,
            since: now,
            field: None,
            behind_own: false,
            absent: false,
        };
        self.waiters.insert(id, waiter);
        self.by_owner.entry(owner).or_default().free.insert(id);
        if order == Order::Queued {
            self.queued.insert(id);
        }
    }

    pub(super) fn remove(&mut self, id: WaiterId) -> Option<Waiter> {
        let waiter = self.waiters.remove(&id)?;
        self.queued.remove(&id);
        self.yielding.remove(&id);
        if let Some(own) = self.by_owner.get_mut(&waiter.owner) {
            own.free.remove(&id);
            own.behind.remove(&(waiter.order, id));
            if own.free.is_empty() && own.behind.is_empty() {
                self.by_owner.remove(&waiter.owner);
            }
        }
        Some(waiter)
    }

    pub(super) fn get(&self, id: WaiterId) -> Option<&Waiter> {
        self.waiters.get(&id)
    }

    pub(super) fn set_field(&mut self, id: WaiterId, field: &Arc<str>) {
        if let Some(waiter) = self.waiters.get_mut(&id) {
            waiter.field = Some(Arc::clone(field));
        }
    }

    pub(super) fn set_absent(&mut self, id: WaiterId, absent: bool) {
        if let Some(waiter) = self.waiters.get_mut(&id) {
            waiter.absent = absent;
        }
    }

    /// Puts a waiter behind the others of its owner, or takes it from there. Answers whether it was.
    pub(super) fn set_behind_own(&mut self, id: WaiterId, behind: bool) -> bool {
        let Some(waiter) = self.waiters.get_mut(&id) else {
            return false;
        };
        let was = std::mem::replace(&mut waiter.behind_own, behind);
        if was != behind
            && let Some(own) = self.by_owner.get_mut(&waiter.owner)
        {
            let key = (waiter.order, id);
            if behind {
                own.free.remove(&id);
                own.behind.insert(key);
            } else {
                own.behind.remove(&key);
                own.free.insert(id);
            }
        }
        was
    }

    /// Has an attempt at once let the head go first.
    pub(super) fn set_yielding(&mut self, id: WaiterId) {
        self.yielding.insert(id);
    }

    pub(super) fn take_yielding(&mut self) -> BTreeSet<WaiterId> {
        std::mem::take(&mut self.yielding)
    }

    /// The first waiter that queues.
    pub(super) fn head(&self) -> Option<WaiterId> {
        self.queued.first().copied()
    }

    /// Whether another call of the same owner came first and waits for the same thing.
    pub(super) fn is_behind_another(&self, id: WaiterId, owner: ThreadId) -> bool {
        self.first_behind(owner).is_some_and(|first| first < id)
    }

    /// Whether other calls of this owner want the lock too.
    pub(super) fn has_others(&self, owner: ThreadId) -> bool {
        self.by_owner
            .get(&owner)
            .is_some_and(|own| own.free.len() + own.behind.len() > 1)
    }

    /// The first of those that wait for an operation of this owner.
    pub(super) fn first_behind(&self, owner: ThreadId) -> Option<WaiterId> {
        let behind = &self.by_owner.get(&owner)?.behind;
        let queued = behind.range((Order::Queued, WaiterId(0))..).next();
        [behind.first(), queued]
            .into_iter()
            .flatten()
            .map(|(_, id)| *id)
            .min()
    }

    /// The first waiter of this owner that is not behind another one. None of them is making an attempt
    /// while nothing is under way for the owner.
    pub(super) fn first_free(&self, owner: ThreadId) -> Option<WaiterId> {
        self.by_owner.get(&owner)?.free.first().copied()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = WaiterId> + '_ {
        self.waiters.keys().copied()
    }

    /// What is kept twice agrees.
    #[cfg(feature = "test-util")]
    pub(super) fn check(&self) {
        let mut owners = 0;
        for (owner, own) in &self.by_owner {
            owners += own.free.len() + own.behind.len();
            for id in own.free.iter().chain(own.behind.iter().map(|(_, id)| id)) {
                assert_eq!(
                    self.waiters[id].owner, *owner,
                    "{id:?} is listed under its owner"
                );
            }
        }
        assert_eq!(owners, self.waiters.len(), "every waiter is listed once");
        let queued = self
            .waiters
            .iter()
            .filter(|(_, waiter)| waiter.order == Order::Queued);
        assert!(
            queued.map(|(id, _)| id).eq(self.queued.iter()),
            "those that queue are in the queue"
        );
        assert!(
            self.yielding
                .iter()
                .all(|id| self.waiters[id].order == Order::AtOnce)
        );
    }
}

#[cfg(feature = "test-util")]
impl Queue {
    pub(super) fn visit(&mut self, visitor: &mut impl super::Visitor) {
        let mut visited = |mut id: WaiterId| {
            id.visit(visitor);
            id
        };
        self.queued = self.queued.iter().map(|id| visited(*id)).collect();
        self.yielding = self.yielding.iter().map(|id| visited(*id)).collect();
        for own in self.by_owner.values_mut() {
            own.free = own.free.iter().map(|id| visited(*id)).collect();
            own.behind = own
                .behind
                .iter()
                .map(|(order, id)| (*order, visited(*id)))
                .collect();
        }
        let waiters = std::mem::take(&mut self.waiters);
        self.waiters = waiters
            .into_iter()
            .map(|(id, waiter)| (visited(id), waiter))
            .collect();
        self.waiters
            .values_mut()
            .for_each(|waiter| visitor.time(&mut waiter.since));
    }
}

//! The calls of this client that want one lock: first come, first served. An immediate attempt does not wait.
//!
//! Nothing in here looks through all waiters. A waiter that may be able to go on is woken by its id.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use super::apart::Empty;
use super::hold::{LeasePolicy, local_deadline};
use super::values::{Face, OwnerKey, ThreadId, Time, WaiterId};
use crate::small_map::{SmallMap, SmallSet};

/// Whether a call queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Order {
    /// One attempt, before all that queue.
    First,
    /// One attempt, or none if callers of other owners queue.
    Immediate,
    Queued,
}

/// The terms of a call, and of its hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Terms {
    pub lease: Duration,
    pub kind: LeaseKind,
    pub limit: Option<Duration>,
    /// How many replicas must confirm its lease.
    pub replicas: u32,
    /// Whether its hold may be one of several of its owner.
    pub reentrant: bool,
    /// For how long a place in the queue of a fair lock counts after its turn has come.
    pub wait: Duration,
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

/// A part of the queue, with a head of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct QueueLane(i64);

impl QueueLane {
    /// The only one.
    pub(super) const ALL: Self = Self(0);

    /// Of a read-write lock.
    pub(super) const WRITERS: Self = Self(0);
    pub(super) const READERS: Self = Self(1);

    /// That of an owner, where each has one.
    pub(super) fn of(thread: ThreadId) -> Self {
        Self(thread.0)
    }
}

/// Some of the lanes that have a head.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Lanes(u8);

impl Lanes {
    pub(super) fn have(self, lane: QueueLane) -> bool {
        self.0 & Self::bit(lane) != 0
    }

    pub(super) fn add(&mut self, lane: QueueLane) {
        self.0 |= Self::bit(lane);
    }

    pub(super) fn remove(&mut self, lane: QueueLane) {
        self.0 &= !Self::bit(lane);
    }

    /// None for the lane of an owner, which has no head.
    fn bit(lane: QueueLane) -> u8 {
        let nth = u32::try_from(lane.0).ok();
        nth.and_then(|nth| 1_u8.checked_shl(nth)).unwrap_or(0)
    }
}

/// A call that wants the lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct QueuedCall {
    pub(super) owner: OwnerKey,
    /// The lane is that of its owner.
    has_own_lane: bool,
    pub(super) order: Order,
    pub(super) terms: Terms,
    pub(super) since: Time,
    /// The field that its hold would have, since it first asked.
    pub(super) field: Option<Arc<str>>,
    /// It waits for an operation of its own owner.
    waits_for_own_op: bool,
    /// Its attempt found the lock held, and it attempts again then, unless something happens before.
    pub(super) waits_until: Option<Time>,
    /// It did not ask when it had a reason to: it is out of the queue until it does.
    pub(super) passed_over: bool,
    /// Its lane was opened to all since it asked.
    pub(super) is_woken: bool,
}

impl QueuedCall {
    /// Not stored as such: each waiter would need room for it.
    pub(super) fn lane(&self) -> QueueLane {
        match self.owner.face {
            _ if self.has_own_lane => QueueLane::of(self.owner.thread),
            Face::Read => QueueLane::READERS,
            Face::Only | Face::Write => QueueLane::WRITERS,
        }
    }

    /// Nothing but the lock is missing.
    pub(super) fn is_ready(&self) -> bool {
        !self.waits_for_own_op
    }
}

/// Passes without a real release in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PassStreak {
    pub(super) passes: u32,
    pub(super) since: Time,
    /// A bound was reached.
    pub(super) over: bool,
}

/// The calls, and whose turn it is: what a lock that is only held has no room for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Queue {
    waiters: SmallMap<WaiterId, QueuedCall>,
    /// Those that queue, in the order of their lane, but for those that were passed over.
    queued: SmallSet<(QueueLane, WaiterId)>,
    /// The first of them, for which each step asks several times.
    first: Option<(QueueLane, WaiterId)>,
    /// All of them again, by owner.
    owned: SmallSet<Owned>,
    /// The latest reason of its head to go on, or sign of life. `None`: there is no head.
    pub(super) turn: Option<Time>,
    /// That of the lane of readers.
    pub(super) readers_turn: Option<Time>,
    pub(super) streak: Option<PassStreak>,
    /// The queue lets other processes go first until then.
    pub(super) yields_until: Option<Time>,
    /// When the timer of the queue has to fire.
    pub(super) timer: Option<Time>,
}

impl Empty for Queue {
    const EMPTY: &'static Self = &Self {
        waiters: SmallMap::EMPTY,
        queued: SmallMap::EMPTY,
        first: None,
        owned: SmallMap::EMPTY,
        turn: None,
        readers_turn: None,
        streak: None,
        yields_until: None,
        timer: None,
    };

    fn is_empty(&self) -> bool {
        // The other collections list the same waiters again.
        self.waiters.is_empty()
            && self.turn.is_none()
            && self.readers_turn.is_none()
            && self.streak.is_none()
            && self.yields_until.is_none()
            && self.timer.is_none()
    }
}

/// A waiter as one of its owner's. Calls for different faces are served in one order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Owned {
    thread: ThreadId,
    /// `None`: it does not wait for an operation of its owner. Those that do are served in this order.
    behind: Option<Order>,
    id: WaiterId,
}

impl Owned {
    fn new(owner: OwnerKey, behind: Option<Order>, id: WaiterId) -> Self {
        let thread = owner.thread;
        Self { thread, behind, id }
    }

    fn of(waiter: &QueuedCall, id: WaiterId) -> Self {
        Self::new(
            waiter.owner,
            waiter.waits_for_own_op.then_some(match waiter.order {
                Order::First | Order::Immediate => Order::Immediate,
                Order::Queued => Order::Queued,
            }),
            id,
        )
    }

    fn first(owner: OwnerKey, behind: Option<Order>) -> Self {
        Self::new(owner, behind, WaiterId(0))
    }
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(super) fn add(
        &mut self,
        id: WaiterId,
        (owner, lane): (OwnerKey, QueueLane),
        order: Order,
        terms: Terms,
        now: Time,
    ) {
        let waiter = QueuedCall {
            owner,
            has_own_lane: lane == QueueLane::of(owner.thread),
            order,
            terms,
            since: now,
            field: None,
            waits_for_own_op: false,
            waits_until: None,
            passed_over: false,
            is_woken: false,
        };
        self.owned.insert(Owned::of(&waiter, id), ());
        self.waiters.insert(id, waiter);
        if order == Order::Queued {
            self.queue_up((lane, id));
        }
    }

    pub(super) fn remove(&mut self, id: WaiterId) -> Option<QueuedCall> {
        let waiter = self.waiters.remove(&id)?;
        self.leave_queue((waiter.lane(), id));
        self.owned.remove(&Owned::of(&waiter, id));
        Some(waiter)
    }

    fn queue_up(&mut self, place: (QueueLane, WaiterId)) {
        self.queued.insert(place, ());
        self.first = self
            .first
            .map_or(Some(place), |first| Some(first.min(place)));
    }

    fn leave_queue(&mut self, place: (QueueLane, WaiterId)) {
        self.queued.remove(&place);
        if self.first == Some(place) {
            self.first = self.queued.first().copied();
        }
    }

    pub(super) fn get(&self, id: WaiterId) -> Option<&QueuedCall> {
        self.waiters.get(&id)
    }

    pub(super) fn set_field(&mut self, id: WaiterId, field: &Arc<str>) {
        if let Some(waiter) = self.waiters.get_mut(&id) {
            waiter.field = Some(Arc::clone(field));
        }
    }

    /// Its field is used by a pass: there is none for another before it asks again.
    pub(super) fn consume_field(&mut self, id: WaiterId) {
        if let Some(waiter) = self.waiters.get_mut(&id) {
            waiter.field = None;
        }
    }

    /// A waiter asks: it is in the queue, at its place.
    pub(super) fn take_back(&mut self, id: WaiterId) {
        let Some(waiter) = self.waiters.get_mut(&id) else {
            return;
        };
        waiter.waits_until = None;
        if std::mem::take(&mut waiter.passed_over) {
            let place = (waiter.lane(), id);
            self.queue_up(place);
        }
    }

    pub(super) fn pass_over(&mut self, id: WaiterId) {
        if let Some(waiter) = self.waiters.get_mut(&id)
            && waiter.order == Order::Queued
        {
            waiter.passed_over = true;
            let place = (waiter.lane(), id);
            self.leave_queue(place);
        }
    }

    pub(super) fn pass_over_all(&mut self, lane: QueueLane) {
        while let Some(head) = self.head(lane) {
            self.pass_over(head);
        }
    }

    pub(super) fn set_waits_until(&mut self, id: WaiterId, until: Option<Time>) {
        if let Some(waiter) = self.waiters.get_mut(&id) {
            waiter.waits_until = until;
        }
    }

    /// Whether another one than that queues in this lane.
    pub(super) fn has_another_queued(&self, lane: QueueLane, id: WaiterId) -> bool {
        // Each step asks, and one of the two at the ends says so without a search, unless there are several lanes.
        let is_another = |(of, other): &(QueueLane, WaiterId)| *of == lane && *other != id;
        self.first.as_ref().is_some_and(is_another)
            || self.queued.last().is_some_and(is_another)
            || self.head(lane).is_some_and(|head| head != id)
            || self.first_in(lane, WaiterId(id.0 + 1)).is_some()
    }

    /// All that queue in this lane may attempt, and are told so.
    pub(super) fn wake_all_readers(&mut self, lane: QueueLane) -> Vec<WaiterId> {
        let mut called = Vec::new();
        let mut next = self.head(lane);
        while let Some(id) = next {
            if let Some(waiter) = self.waiters.get_mut(&id) {
                waiter.is_woken = true;
            }
            called.push(id);
            next = self.first_in(lane, WaiterId(id.0 + 1));
        }
        called
    }

    /// A waiter that was told so has asked.
    pub(super) fn clear_wake(&mut self, id: WaiterId) {
        if let Some(waiter) = self.waiters.get_mut(&id) {
            waiter.is_woken = false;
        }
    }

    /// Puts a waiter after the others of its owner, or takes it from there. Answers whether it was.
    pub(super) fn set_blocked_by_own_op(&mut self, id: WaiterId, behind: bool) -> bool {
        let Some(waiter) = self.waiters.get_mut(&id) else {
            return false;
        };
        let before = Owned::of(waiter, id);
        let was = std::mem::replace(&mut waiter.waits_for_own_op, behind);
        if was != behind {
            let after = Owned::of(waiter, id);
            self.owned.remove(&before);
            self.owned.insert(after, ());
        }
        was
    }

    /// The first waiter that queues in this lane.
    pub(super) fn head(&self, lane: QueueLane) -> Option<WaiterId> {
        let (first, id) = self.first?;
        match first.cmp(&lane) {
            Ordering::Less => self.first_in(lane, WaiterId(0)),
            Ordering::Equal => Some(id),
            Ordering::Greater => None,
        }
    }

    /// The first from there on, of the same lane.
    fn first_in(&self, lane: QueueLane, from: WaiterId) -> Option<WaiterId> {
        let (found, id) = *self.queued.first_from((lane, from))?;
        (found == lane).then_some(id)
    }

    /// Whether another call of the same owner came first and waits for the same thing.
    pub(super) fn is_behind_another(&self, id: WaiterId, owner: OwnerKey) -> bool {
        self.first_blocked(owner).is_some_and(|first| first < id)
    }

    /// Whether other calls of this owner than that one want the lock too.
    pub(super) fn has_others(&self, owner: OwnerKey, id: WaiterId) -> bool {
        // Its calls are side by side, so one of the first two is another one.
        let from = Owned::first(owner, None);
        let mut own = self
            .owned
            .keys_from(from)
            .take_while(|own| own.thread == from.thread);
        own.any(|own| own.id != id)
    }

    /// The first of those that wait for an operation of this owner.
    pub(super) fn first_blocked(&self, owner: OwnerKey) -> Option<WaiterId> {
        let from = Owned::first(owner, Some(Order::Immediate));
        let first = self.owned.first_from(from)?;
        if first.thread != from.thread {
            return None;
        }
        // Those that do not queue stand first, whenever they came.
        let queued = (first.behind == from.behind)
            .then(|| self.first_owned(Owned::first(owner, Some(Order::Queued))));
        queued.flatten().into_iter().chain([first.id]).min()
    }

    /// The first waiter of this owner that is not behind another one. None of them is making an attempt
    /// while nothing is under way for the owner.
    pub(super) fn first_ready(&self, owner: OwnerKey) -> Option<WaiterId> {
        self.first_owned(Owned::first(owner, None))
    }

    /// The first from there on, of the same owner and kind.
    fn first_owned(&self, from: Owned) -> Option<WaiterId> {
        let found = self.owned.first_from(from)?;
        let is_same = (found.thread, found.behind) == (from.thread, from.behind);
        is_same.then_some(found.id)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = WaiterId> + '_ {
        self.waiters.keys().copied()
    }

    /// Checks that values which are kept twice agree.
    #[cfg(feature = "test-util")]
    pub(super) fn check(&self) {
        let waiters = self.waiters.iter();
        let owned = waiters.map(|(id, waiter)| (Owned::of(waiter, *id), ()));
        assert_eq!(self.owned, owned.collect(), "every waiter is its owner's");
        let queued = self
            .waiters
            .iter()
            .filter(|(_, waiter)| waiter.order == Order::Queued && !waiter.passed_over);
        assert!(
            queued
                .map(|(id, waiter)| ((waiter.lane(), *id), ()))
                .collect::<SmallSet<_>>()
                == self.queued,
            "those that queue are in the queue"
        );
        assert_eq!(self.first, self.queued.first().copied());
    }
}

#[cfg(feature = "test-util")]
impl Queue {
    pub(super) fn visit(&mut self, visitor: &mut impl super::Visitor) {
        let mut visited = |mut id: WaiterId| {
            id.visit(visitor);
            id
        };
        let queued = self.queued.keys();
        let queued = queued.map(|(lane, id)| ((*lane, visited(*id)), ()));
        self.queued = queued.collect();
        self.first = self.queued.first().copied();
        let owned = std::mem::take(&mut self.owned).into_iter();
        let owned = owned.map(|(own, ())| {
            (
                Owned {
                    id: visited(own.id),
                    ..own
                },
                (),
            )
        });
        self.owned = owned.collect();
        let waiters = std::mem::take(&mut self.waiters).into_iter();
        self.waiters = waiters.map(|(id, waiter)| (visited(id), waiter)).collect();
        let waiters = self.waiters.values_mut();
        waiters.for_each(|waiter| {
            let field = waiter.field.iter_mut();
            field.for_each(|field| visitor.field(field));
            visitor.time(&mut waiter.since);
            let until = waiter.waits_until.iter_mut();
            until.for_each(|at| visitor.time(at));
        });
        let turns = self.turn.iter_mut().chain(&mut self.readers_turn);
        turns.for_each(|at| visitor.time(at));
        let streak = self.streak.iter_mut();
        streak.for_each(|streak| visitor.time(&mut streak.since));
        let until = self.yields_until.iter_mut().chain(&mut self.timer);
        until.for_each(|at| visitor.time(at));
    }
}

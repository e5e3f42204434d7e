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

/// How far a call has come that wants the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// It asks in this very step.
    New,
    /// It waits for an operation of its own owner, since then.
    Behind { since: Time },
    /// Others come first.
    Queued,
    /// Its acquire is under way, or the lock is granted to it. `is_heard`: another process may have freed the lock since the
    /// acquire was sent.
    Sent { is_heard: bool },
    /// Another process holds the lock, and it is not known yet that the client hears of its release. Once that is, it waits until
    /// then.
    Subscribing { until: Time },
    /// Another process holds the lock.
    Waiting,
    /// It was told how it has ended, and keeps its place for another attempt.
    Ended,
    /// It queues, and takes no lock.
    Place,
}

/// A call that wants the lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct QueuedCall {
    pub(super) owner: OwnerKey,
    /// The lane is that of its owner.
    has_own_lane: bool,
    pub(super) order: Order,
    pub(super) terms: Terms,
    /// No other attempt begins after it.
    pub(super) deadline: Option<Time>,
    /// The field that its hold would have, since it first asked.
    pub(super) field: Option<Arc<str>>,
    pub(super) stage: Stage,
    /// When its stage ends, if nothing happens before.
    pub(super) due: Option<Time>,
    /// It did not claim what was granted to it, or a place did not take its turn: it is out of the queue until it is polled.
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

    fn is_behind(&self) -> bool {
        matches!(self.stage, Stage::Behind { .. })
    }

    /// Nothing but the lock is missing.
    pub(super) fn is_ready(&self) -> bool {
        !matches!(self.stage, Stage::Behind { .. } | Stage::Ended)
    }

    /// A message about the lock is about it.
    fn listens(&self) -> bool {
        self.order == Order::Queued
            && matches!(
                self.stage,
                Stage::Sent { .. } | Stage::Subscribing { .. } | Stage::Waiting
            )
    }

    /// Until when it waits for another process.
    pub(super) fn waits_until(&self) -> Option<Time> {
        self.due.filter(|_| self.stage == Stage::Waiting)
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
    /// All of them again, by owner. Calls for different faces are served in one order.
    owned: SmallMap<ThreadId, SmallSet<Owned>>,
    /// Those whose stage ends then.
    due: SmallSet<(Time, WaiterId)>,
    /// Those that a message is about.
    listening: SmallSet<WaiterId>,
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
        due: SmallMap::EMPTY,
        listening: SmallMap::EMPTY,
        streak: None,
        yields_until: None,
        timer: None,
    };

    fn is_empty(&self) -> bool {
        // The other collections list the same waiters again.
        self.waiters.is_empty()
            && self.streak.is_none()
            && self.yields_until.is_none()
            && self.timer.is_none()
    }
}

/// A waiter as one of its owner's. Those that wait for an operation of their owner, `Some`, are served in this order.
type Owned = (Option<Order>, WaiterId);

impl QueuedCall {
    fn owned(&self, id: WaiterId) -> Owned {
        let behind = self.is_behind().then_some(match self.order {
            Order::First | Order::Immediate => Order::Immediate,
            Order::Queued => Order::Queued,
        });
        (behind, id)
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
        (order, stage): (Order, Stage),
        (terms, deadline): (Terms, Option<Time>),
    ) {
        let waiter = QueuedCall {
            owner,
            has_own_lane: lane == QueueLane::of(owner.thread),
            order,
            terms,
            deadline,
            field: None,
            stage,
            due: None,
            passed_over: false,
            is_woken: false,
        };
        let owned = self
            .owned
            .get_or_insert_with(owner.thread, SmallSet::default);
        owned.insert(waiter.owned(id), ());
        self.waiters.insert(id, waiter);
        if order == Order::Queued {
            self.queue_up((lane, id));
        }
    }

    pub(super) fn remove(&mut self, id: WaiterId) -> Option<QueuedCall> {
        let waiter = self.waiters.remove(&id)?;
        self.leave_queue((waiter.lane(), id));
        let thread = waiter.owner.thread;
        if let Some(owned) = self.owned.get_mut(&thread) {
            owned.remove(&waiter.owned(id));
            if owned.is_empty() {
                self.owned.remove(&thread);
            }
        }
        self.listening.remove(&id);
        if let Some(at) = waiter.due {
            self.due.remove(&(at, id));
        }
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

    /// A waiter asks, with this field: it has heard that it was told to.
    pub(super) fn note_asking(&mut self, id: WaiterId, field: &Arc<str>) {
        if let Some(waiter) = self.waiters.get_mut(&id) {
            waiter.is_woken = false;
            let is_same = |known: &Arc<str>| Arc::ptr_eq(known, field);
            if !waiter.field.as_ref().is_some_and(is_same) {
                waiter.field = Some(Arc::clone(field));
            }
        }
    }

    /// Its field is used by a pass: there is none for another before it asks again.
    pub(super) fn consume_field(&mut self, id: WaiterId) {
        if let Some(waiter) = self.waiters.get_mut(&id) {
            waiter.field = None;
        }
    }

    /// A waiter is polled: it is in the queue, at its place.
    pub(super) fn take_back(&mut self, id: WaiterId) {
        let Some(waiter) = self.waiters.get_mut(&id) else {
            return;
        };
        if std::mem::take(&mut waiter.passed_over) && waiter.order == Order::Queued {
            let place = (waiter.lane(), id);
            self.queue_up(place);
        }
    }

    pub(super) fn pass_over(&mut self, id: WaiterId) {
        if let Some(waiter) = self.waiters.get_mut(&id) {
            waiter.passed_over = true;
            let place = (waiter.lane(), id);
            self.leave_queue(place);
        }
    }

    /// What it has come to, and until when if nothing happens before.
    pub(super) fn set_stage(&mut self, id: WaiterId, stage: Stage, due: Option<Time>) {
        let Some(waiter) = self.waiters.get_mut(&id) else {
            return;
        };
        let (owned, listened, before) = (waiter.owned(id), waiter.listens(), waiter.due);
        (waiter.stage, waiter.due) = (stage, due);
        let (owned_now, listens) = (waiter.owned(id), waiter.listens());
        if owned != owned_now
            && let Some(all) = self.owned.get_mut(&waiter.owner.thread)
        {
            all.remove(&owned);
            all.insert(owned_now, ());
        }
        match (listened, listens) {
            (false, true) => _ = self.listening.insert(id, ()),
            (true, false) => _ = self.listening.remove(&id),
            (true, true) | (false, false) => {}
        }
        if before != due {
            before.map(|at| self.due.remove(&(at, id)));
            due.map(|at| self.due.insert((at, id), ()));
        }
    }

    /// Another process may have freed the lock since its acquire was sent.
    pub(super) fn mark_heard(&mut self, id: WaiterId) {
        if let Some(waiter) = self.waiters.get_mut(&id)
            && let Stage::Sent { is_heard } = &mut waiter.stage
        {
            *is_heard = true;
        }
    }

    /// The first whose stage ends, and when.
    pub(super) fn first_due(&self) -> Option<(Time, WaiterId)> {
        self.due.first().copied()
    }

    /// Those that a message is about.
    pub(super) fn listening(&self) -> impl Iterator<Item = WaiterId> + '_ {
        self.listening.keys().copied()
    }

    /// Those that queue in this lane, in their order.
    pub(super) fn in_lane(&self, lane: QueueLane) -> impl Iterator<Item = WaiterId> + '_ {
        let next = move |id: &WaiterId| self.first_in(lane, WaiterId(id.0 + 1));
        std::iter::successors(self.head(lane), next)
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

    /// Whether any call of this owner wants the lock.
    pub(super) fn has_calls(&self, owner: OwnerKey) -> bool {
        self.owned.get(&owner.thread).is_some()
    }

    /// The first of those that wait for an operation of this owner.
    pub(super) fn first_blocked(&self, owner: OwnerKey) -> Option<WaiterId> {
        let owned = self.owned.get(&owner.thread)?;
        let &(behind, first) = owned.first_from((Some(Order::Immediate), WaiterId(0)))?;
        // Those that do not queue stand first, whenever they came.
        let queued = (behind == Some(Order::Immediate))
            .then(|| owned.first_from((Some(Order::Queued), WaiterId(0))));
        let queued = queued.flatten().map(|(_, id)| *id);
        queued.into_iter().chain([first]).min()
    }

    /// The first waiter of this owner that asks when it is woken and is not behind another one, and the first place. None of
    /// them is making an attempt while nothing is under way for the owner.
    pub(super) fn first_ready(&self, owner: OwnerKey) -> [Option<WaiterId>; 2] {
        let mut found = [None; 2];
        let owned = self.owned.get(&owner.thread);
        let owned = owned.into_iter().flat_map(|owned| owned.keys());
        for &(_, id) in owned.take_while(|(behind, _)| behind.is_none()) {
            let waiter = self.waiters.get(&id);
            let nth = match waiter.map(|waiter| (waiter.stage, waiter.passed_over)) {
                Some((Stage::Place, _)) => Some(1),
                Some((Stage::Ended, _) | (_, true)) | None => None,
                Some(_) => Some(0),
            };
            if let Some(nth) = nth {
                found[nth].get_or_insert(id);
            }
            if found[0].is_some() {
                break;
            }
        }
        found
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = WaiterId> + '_ {
        self.waiters.keys().copied()
    }

    /// Checks that values which are kept twice agree.
    #[cfg(feature = "test-util")]
    pub(super) fn check(&self) {
        let mut owned = SmallMap::<_, SmallSet<_>>::default();
        for (id, waiter) in self.waiters.iter() {
            let of = owned.get_or_insert_with(waiter.owner.thread, SmallSet::default);
            of.insert(waiter.owned(*id), ());
        }
        assert_eq!(self.owned, owned, "every waiter is its owner's");
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
        let due = self.in_stages(|id, waiter| Some(((waiter.due?, id), ())));
        assert_eq!(due, self.due, "each stage that ends is known by its end");
        let listening = self.in_stages(|id, waiter| waiter.listens().then_some((id, ())));
        assert_eq!(
            listening, self.listening,
            "messages find those they are about"
        );
    }
}

#[cfg(feature = "test-util")]
impl Queue {
    /// A collection that follows from the waiters.
    fn in_stages<K: Ord>(
        &self,
        of: impl Fn(WaiterId, &QueuedCall) -> Option<(K, ())>,
    ) -> SmallSet<K> {
        let waiters = self.waiters.iter();
        waiters.filter_map(|(id, waiter)| of(*id, waiter)).collect()
    }
}

//! What is known of one lock: its owners, and who wants it next. Plain data and the rules of the
//! local queue.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::books::Counts;
use crate::slot::Slot;

/// What is under the mutex of an entry.
#[derive(Default)]
pub(super) struct State {
    pub(super) slots: BTreeMap<i64, Slot>,
    /// Callers that want the lock, first come first.
    pub(super) queue: VecDeque<Arc<Caller>>,
    /// When an owner of this client freed the lock, until it is taken or the head of the queue
    /// attempts to.
    pub(super) freed_at: Option<Instant>,
    /// What the client's tally has of these books.
    pub(super) counted: Counts,
}

/// A call that wants the lock.
pub(super) struct Caller {
    pub(super) owner: i64,
    /// It makes one attempt at once, past the queue.
    pub(super) past_queue: bool,
    pub(super) since: Instant,
    /// It waits for an operation of its own owner. Such callers are served in their order.
    pub(super) waits_for_own: AtomicBool,
    /// It did not look when it could have attempted: nobody lets it go first until it does.
    pub(super) absent: AtomicBool,
    pub(super) notify: Notify,
}

impl State {
    /// Has everybody look again whom a change of this owner may concern: the head of the queue, the
    /// owner's other callers, and whoever waits for its place.
    pub(super) fn tell(&self, owner: i64) {
        if let Some(head) = self.head() {
            head.notify.notify_one();
        }
        let mut next_of_owner = true;
        for caller in &self.queue {
            let waits = caller.waits_for_own.load(Ordering::Relaxed);
            let concerned = if caller.owner != owner {
                caller.past_queue
            } else {
                // Of those that wait for their own owner one can go on.
                !waits || std::mem::replace(&mut next_of_owner, false)
            };
            if concerned {
                caller.notify.notify_one();
            }
        }
        if let Some(slot) = self.slots.get(&owner) {
            slot.place.notify_waiters();
        }
    }

    /// Forgets the owner if nothing is left to remember, and tells.
    pub(super) fn tidy(&mut self, owner: i64) {
        self.tell(owner);
        if self.slots.get(&owner).is_some_and(Slot::is_spent) {
            self.slots.remove(&owner);
        }
    }

    pub(super) fn counts(&self) -> Counts {
        let mut counts = Counts {
            waiting: self.queue.len(),
            ..Counts::default()
        };
        for slot in self.slots.values() {
            counts.held += slot.holds.len();
            counts.guarded += slot.holds.iter().filter(|hold| !hold.detached).count();
            counts.acquiring += usize::from(slot.acquiring);
            counts.releasing += usize::from(slot.background) + slot.releasing as usize;
        }
        counts
    }

    /// Invariant I4: the head contends only while no owner of this client holds the lock, and no
    /// operation that is under way can still change that, but for attempts past the queue: they may
    /// be as frequent as they like.
    pub(super) fn may_contend(&self, caller: &Arc<Caller>) -> bool {
        let is_head = || self.head().is_some_and(|head| Arc::ptr_eq(head, caller));
        caller.past_queue || is_head() && !self.slots.values().any(Slot::keeps_others_waiting)
    }

    /// Whether another call of the same owner came first and waits for the same thing.
    pub(super) fn is_behind_its_own(&self, caller: &Arc<Caller>) -> bool {
        let before = self
            .queue
            .iter()
            .take_while(|other| !Arc::ptr_eq(other, caller));
        before
            .into_iter()
            .any(|other| other.owner == caller.owner && other.waits_for_own.load(Ordering::Relaxed))
    }

    /// The first caller that queues.
    pub(super) fn head(&self) -> Option<&Arc<Caller>> {
        self.queue.iter().find(|caller| !caller.past_queue)
    }

    /// Until when an attempt past the queue lets the head go first. All share one connection, on
    /// which the first attempt behind a release gets the lock: with pollers enough that would never
    /// be the head's.
    pub(super) fn head_goes_first_until(&self, owner: i64, limit: Duration) -> Option<Instant> {
        self.head()
            .filter(|head| head.owner != owner && !head.absent.load(Ordering::Relaxed))?;
        let being_freed = |(&other, slot): (&i64, &Slot)| {
            let frees =
                other != owner && !slot.is_held() && (slot.releasing > 0 || slot.background);
            frees.then_some(slot.moved_at)
        };
        self.slots
            .iter()
            .filter_map(being_freed)
            .chain(self.freed_at)
            .max()
            .map(|since| since + limit)
    }

    /// When the next of the unlocks that are under way counts as stuck.
    pub(super) fn next_stuck(&self, limit: Duration) -> Option<Instant> {
        let releasing = self
            .slots
            .values()
            .filter(|slot| slot.releasing > 0 && !slot.background);
        releasing.map(|slot| slot.moved_at + limit).min()
    }

    /// Has the next caller look again that waits for this owner.
    pub(super) fn tell_next_of(&self, owner: i64) {
        let waits = |caller: &&Arc<Caller>| {
            caller.owner == owner && caller.waits_for_own.load(Ordering::Relaxed)
        };
        if let Some(next) = self.queue.iter().find(waits) {
            next.notify.notify_one();
        }
    }

    /// A head that has not looked for so long after a release is not polled: pollers would wait for
    /// it each time.
    pub(super) fn note_absence(&self, caller: &Caller, now: Instant, limit: Duration) {
        caller.absent.store(false, Ordering::Relaxed);
        if caller.past_queue
            && self.freed_at.is_some_and(|since| since + limit <= now)
            && let Some(head) = self.head()
        {
            head.absent.store(true, Ordering::Relaxed);
        }
    }
}

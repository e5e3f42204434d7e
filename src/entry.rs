//! One lock as this client sees it: its owners, its local queue, and who may talk to Redis next.
//!
//! An entry is one mutex around plain data. Every method here is a whole transition: it locks,
//! changes, tells who has to look again, and unlocks; nothing waits under the mutex. The entry
//! exists while somebody refers to it or an owner has something left in it.

mod books;
mod release;
mod renew;
mod state;
mod turn;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::error::LossReason;
use crate::hold::{HoldStatus, LeasePolicy};
use crate::owner::Owner;
use crate::shared::{Shared, Totals};
use crate::slot::{Slot, local_deadline};
use crate::wire::LockName;

pub(crate) use books::{Counts, Tally};
pub(crate) use release::{Begun, Release, Step};
pub(crate) use renew::RenewalOutcome;
pub(crate) use turn::{Place, sleep_until};

use books::Books;
use state::State;

/// Every entry of a client, by key.
#[derive(Default)]
pub(crate) struct Entries {
    /// With the number of references to each. Ordered, here and below, so that what goes through
    /// all of them does so in the same order in every run.
    by_key: Mutex<BTreeMap<Arc<str>, Counted>>,
    numbers: AtomicU64,
}

type Counted = (Arc<Entry>, usize);

impl Entries {
    /// The entry of a lock, made if there is none.
    pub(crate) fn get(shared: &Arc<Shared>, name: &LockName) -> EntryRef {
        let mut by_key = shared.entries.by_key.lock();
        let (entry, users) = by_key.entry(Arc::clone(name.key())).or_insert_with(|| {
            let lane = shared.redis.lane_of(name.key());
            let state = Books::new(Arc::clone(&shared.tally));
            (
                Arc::new(Entry {
                    name: name.clone(),
                    lane,
                    state,
                }),
                0,
            )
        });
        *users += 1;
        EntryRef {
            shared: Arc::clone(shared),
            entry: Arc::clone(entry),
        }
    }

    /// A number that was not given out before: for generations and epochs.
    fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The entry of a key, if there is one.
    pub(crate) fn find(shared: &Arc<Shared>, key: &str) -> Option<EntryRef> {
        let mut by_key = shared.entries.by_key.lock();
        let (entry, users) = by_key.get_mut(key)?;
        *users += 1;
        Some(EntryRef {
            shared: Arc::clone(shared),
            entry: Arc::clone(entry),
        })
    }

    /// Locks that are remembered: those that somebody refers to, or that an owner has something
    /// left in.
    pub(crate) fn len(&self) -> usize {
        self.by_key.lock().len()
    }

    /// All entries, for closing and for statistics.
    pub(crate) fn all(shared: &Arc<Shared>) -> Vec<EntryRef> {
        let mut by_key = shared.entries.by_key.lock();
        by_key
            .values_mut()
            .map(|(entry, users)| {
                *users += 1;
                EntryRef {
                    shared: Arc::clone(shared),
                    entry: Arc::clone(entry),
                }
            })
            .collect()
    }
}

/// One lock of this client.
pub(crate) struct Entry {
    pub(crate) name: LockName,
    /// The connection that carries every command of this lock.
    pub(crate) lane: usize,
    state: Books,
}

/// A counted reference to an entry.
pub(crate) struct EntryRef {
    pub(crate) shared: Arc<Shared>,
    entry: Arc<Entry>,
}

impl Deref for EntryRef {
    type Target = Entry;

    fn deref(&self) -> &Entry {
        &self.entry
    }
}

impl Clone for EntryRef {
    fn clone(&self) -> Self {
        Entries::get(&self.shared, &self.entry.name)
    }
}

impl Drop for EntryRef {
    fn drop(&mut self) {
        let mut by_key = self.shared.entries.by_key.lock();
        let key = self.entry.name.key();
        let Some((_, users)) = by_key.get_mut(key) else {
            return;
        };
        *users -= 1;
        if *users == 0 {
            let state = self.entry.state.lock();
            if state.slots.is_empty() && state.queue.is_empty() {
                drop(state);
                by_key.remove(key);
            }
        }
    }
}

/// What a slot looks like from outside.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View {
    pub(crate) deadline: Instant,
    pub(crate) at_risk_from: Option<Instant>,
    pub(crate) ends: Option<Instant>,
}

impl EntryRef {
    /// Ends the holds of one owner whose promise is over by the local clock.
    fn expire(&self, state: &mut State, owner: i64, now: Instant) {
        let Some(slot) = state.slots.get_mut(&owner) else {
            return;
        };
        let reasons = slot.expire(now);
        if reasons.is_empty() {
            return;
        }
        for &(reason, detached) in &reasons {
            // A lease that was detached and has run out did what it was taken for.
            if !(detached && reason == LossReason::LeaseOver) {
                self.say_lost(slot, reason);
                Totals::add(&self.shared.totals.lost, 1);
            }
        }
        // A hold that reached its limit is not taken away from under its section; its lease ends by
        // itself.
        if slot.is_held()
            || reasons
                .iter()
                .any(|&(reason, _)| reason != LossReason::MaxHold)
        {
            self.release_in_background(slot, owner);
        } else {
            slot.in_sync = true;
        }
        self.set_timer(slot, owner);
        state.tidy(owner);
    }

    /// Ends every hold of a slot whose field is not there any more. There is nothing to release.
    fn lose(&self, slot: &mut Slot, reason: LossReason) {
        let lost = slot.lose(reason);
        slot.in_sync = true;
        if lost > 0 {
            self.say_lost(slot, reason);
            Totals::add(&self.shared.totals.lost, lost);
            self.shared.renewals.remove(slot.generation);
        }
    }

    /// Ends every hold of an owner, if the books still mean the same taking of the lock.
    pub(crate) fn lose_owner(&self, owner: i64, generation: Option<u64>, reason: LossReason) {
        let mut state = self.state.lock();
        let Some(slot) = state.slots.get_mut(&owner) else {
            return;
        };
        if slot.is_held() && generation.is_none_or(|generation| generation == slot.generation) {
            self.lose(slot, reason);
            state.tidy(owner);
        }
    }

    /// Which owner of this client has this field, and for which taking of the lock.
    pub(crate) fn taking_of(&self, field: &str) -> Option<(i64, u64)> {
        let state = self.state.lock();
        let taking = state.slots.iter().find(|(_, slot)| *slot.field == *field);
        taking.map(|(&owner, slot)| (owner, slot.generation))
    }

    fn say_lost(&self, slot: &Slot, reason: LossReason) {
        tracing::warn!(
            target: "redisson_lock",
            lock = %self.name.given(), owner = %slot.field, %reason,
            "lock lost"
        );
    }

    /// What a guard shows. `None`: the hold has ended; its status says how.
    pub(crate) fn view(&self, owner: i64, status: &Arc<HoldStatus>) -> Option<View> {
        self.expire(&mut self.state.lock(), owner, Instant::now());
        self.peek(owner, status)
    }

    /// The same without a look at the clock: what was last written down.
    pub(crate) fn peek(&self, owner: i64, status: &Arc<HoldStatus>) -> Option<View> {
        let state = self.state.lock();
        let slot = state.slots.get(&owner)?;
        let hold = slot
            .holds
            .iter()
            .find(|hold| Arc::ptr_eq(&hold.status, status))?;
        Some(View {
            deadline: slot.deadline,
            at_risk_from: match hold.mode {
                LeasePolicy::Watchdog { .. } => {
                    slot.at_risk_from(self.shared.config.watchdog_timeout)
                }
                LeasePolicy::Fixed { .. } => None,
            },
            ends: hold.mode.ends(),
        })
    }

    /// The field and mode of an open hold.
    pub(crate) fn hold(
        &self,
        owner: i64,
        status: &Arc<HoldStatus>,
    ) -> Option<(Arc<str>, LeasePolicy)> {
        let state = self.state.lock();
        let slot = state.slots.get(&owner)?;
        let hold = slot
            .holds
            .iter()
            .find(|hold| Arc::ptr_eq(&hold.status, status))?;
        Some((Arc::clone(&slot.field), hold.mode))
    }

    /// A fixed lease was extended: the hold's end moves, never back.
    pub(crate) fn extended(
        &self,
        owner: i64,
        status: &Arc<HoldStatus>,
        sent_at: Instant,
        lease: Duration,
    ) {
        let mut state = self.state.lock();
        let Some(slot) = state.slots.get_mut(&owner) else {
            return;
        };
        let Some(hold) = slot
            .holds
            .iter_mut()
            .find(|hold| Arc::ptr_eq(&hold.status, status))
        else {
            return;
        };
        if let LeasePolicy::Fixed { until, .. } = &mut hold.mode {
            *until = (*until).max(local_deadline(sent_at, lease));
        }
        slot.confirm(sent_at, lease, self.shared.config.watchdog_timeout);
        self.set_timer(slot, owner);
    }

    pub(crate) fn detach(&self, owner: i64, status: &Arc<HoldStatus>) {
        let mut state = self.state.lock();
        if let Some(slot) = state.slots.get_mut(&owner) {
            slot.detach(status);
        }
        state.tidy(owner);
    }

    /// A detached hold of this owner, for the caller to give back.
    pub(crate) fn claim_detached(&self, owner: i64) -> Option<Arc<HoldStatus>> {
        let mut state = self.state.lock();
        self.expire(&mut state, owner, Instant::now());
        state.slots.get_mut(&owner)?.claim_detached()
    }

    /// The field under which this owner appears in Redis.
    pub(crate) fn field_in_redis(&self, owner: &Owner) -> Arc<str> {
        let state = self.state.lock();
        let slot = state.slots.get(&owner.thread_id());
        slot.map_or_else(|| owner.field(), |slot| Arc::clone(&slot.field))
    }

    /// Has every caller look again.
    pub(crate) fn tell_all(&self) {
        let state = self.state.lock();
        for caller in &state.queue {
            caller.notify.notify_one();
        }
        for slot in state.slots.values() {
            slot.place.notify_waiters();
        }
    }

    /// Gives back every detached hold in the background; answers how many.
    pub(crate) fn release_detached(&self) -> usize {
        let detached: Vec<_> = {
            let state = self.state.lock();
            let of = |(&owner, slot): (&i64, &Slot)| {
                let statuses = slot.holds.iter().filter(|hold| hold.detached);
                statuses
                    .map(|hold| (owner, Arc::clone(&hold.status)))
                    .collect::<Vec<_>>()
            };
            state.slots.iter().flat_map(of).collect()
        };
        for (owner, status) in &detached {
            self.drop_hold(*owner, status);
        }
        detached.len()
    }

    /// Ends every hold that is still open, because the client is closed. Answers the owners.
    pub(crate) fn lose_all(&self, reason: LossReason) -> Vec<Arc<str>> {
        let mut state = self.state.lock();
        let owners: Vec<i64> = state.slots.keys().copied().collect();
        let mut ended = Vec::new();
        for owner in owners {
            if let Some(slot) = state.slots.get_mut(&owner).filter(|slot| slot.is_held()) {
                ended.push(Arc::clone(&slot.field));
                self.lose(slot, reason);
            }
            state.tidy(owner);
        }
        ended
    }
}

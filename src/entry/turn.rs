//! Taking: the local queue, whose turn it is, and the right to run one acquire.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::EntryRef;
use super::state::Caller;
use crate::error::{Error, LossReason};
use crate::hold::{Hold, HoldStatus, LeasePolicy};
use crate::owner::{Origin, Owner, next_own_id};
use crate::script::Answer;
use crate::shared::Totals;
use crate::slot::{Slot, local_deadline};
use crate::wait::Subscription;
use crate::wire;

/// A place in the local queue of a lock.
pub(crate) struct Turn {
    entry: EntryRef,
    caller: Arc<Caller>,
    owner: Owner,
    lease: Duration,
    since: Instant,
    told: bool,
}

impl Turn {
    /// Waits until this caller may talk to Redis. `None`: the deadline came first.
    pub(crate) async fn next(&mut self, deadline: Option<Instant>) -> Result<Option<Place>, Error> {
        let mut waits_since = None;
        loop {
            let (limit, own) = match self.entry.look(&self.caller, &self.owner, self.lease)? {
                Look::Place(place) => return Ok(Some(place)),
                Look::Queue { again } => {
                    waits_since = None;
                    (again, false)
                }
                // The earlier operation waits for Redis: that is waited for as long as a command
                // is. However many there are before this one, each has as long.
                Look::OwnPlace { since } => {
                    let since = since.max(*waits_since.get_or_insert_with(Instant::now));
                    (Some(since + self.entry.shared.config.command_timeout), true)
                }
            };
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Ok(None);
            }
            if own && limit.is_some_and(|limit| limit <= Instant::now()) {
                let source = "an earlier operation of this owner on this lock has no answer yet";
                return Err(Error::no_answer("acquiring", source));
            }
            self.notified([limit, deadline]).await;
        }
    }

    /// Waits until something changed in this process, or one of the limits is reached.
    async fn notified(&mut self, limits: [Option<Instant>; 2]) {
        let long = self.since + self.entry.shared.config.watchdog_timeout;
        let limit = limits.into_iter().flatten().min();
        tokio::select! {
            biased;
            () = self.caller.notify.notified() => {}
            () = sleep_until(limit) => {}
            () = tokio::time::sleep_until(long), if !self.told => self.say_long(),
        }
    }

    /// Waits, after an attempt found the lock held, until another one makes sense: more was heard
    /// on the channel than `before`, `limit` is reached, or this owner itself got or lost the lock.
    pub(crate) async fn until_retry(
        &mut self,
        subscription: &Subscription,
        before: u64,
        limit: Instant,
    ) {
        loop {
            let stuck = self.entry.next_stuck();
            tokio::select! {
                biased;
                () = subscription.changed_since(before) => return,
                () = tokio::time::sleep_until(limit) => break,
                // An unlock of this client is not polled any more; looking again has the background
                // take it over.
                () = sleep_until(stuck) => return,
                () = self.caller.notify.notified() => {
                    // Its own attempts are among what it is told of; they are no news.
                    if !self.entry.shared.is_open() || self.entry.concerns(&self.caller) {
                        return;
                    }
                }
            }
        }
        self.say_long();
    }

    /// Says once that this caller has been waiting for long.
    fn say_long(&mut self) {
        if !self.told && self.since.elapsed() >= self.entry.shared.config.watchdog_timeout {
            self.told = true;
            tracing::warn!(
                target: "redisson_lock",
                lock = %self.entry.name.given(), owner = %self.owner, waited = ?self.since.elapsed(),
                "waiting long for a lock"
            );
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.entry.state.lock();
        // Whoever leaves is at the front in nearly every case.
        if let Some(nth) = state
            .queue
            .iter()
            .position(|caller| Arc::ptr_eq(caller, &self.caller))
        {
            state.queue.remove(nth);
        }
        // A notification that came too late for this caller must not end here.
        state.tell(self.caller.owner);
    }
}

/// The right to run one acquire for one owner. Whatever happens to it, the owner's place is given
/// up in order: dropped after its script was sent, it leaves the rest to the background.
pub(crate) struct Place {
    entry: EntryRef,
    owner: i64,
    pub(crate) field: Arc<str>,
    /// The count to go to.
    pub(crate) target: u32,
    /// What is asked for: if the outcome stays unknown, the server frees the lock after this at the
    /// latest.
    lease: Duration,
    losses: u64,
    pub(crate) sent: AtomicBool,
    open: bool,
}

impl Place {
    /// The server said no, or somebody else holds the lock: nothing of ours is there.
    pub(crate) fn leave(mut self) {
        self.end(false);
    }

    /// No answer. If the script may have been executed, the background brings the count back.
    pub(crate) fn leave_unknown(mut self, maybe_executed: bool) {
        self.end(maybe_executed);
    }

    /// The outer hold is gone.
    pub(crate) fn leave_lost(mut self) -> Error {
        self.entry.lose_owner(self.owner, None, LossReason::Gone);
        self.end(false);
        let state = self.entry.state.lock();
        let reason = state.slots.get(&self.owner).and_then(Slot::lost);
        Error::lost(self.entry.name.given(), reason.unwrap_or(LossReason::Gone))
    }

    /// The lock was taken: the hold goes into the books, unless it is over or unwanted by now.
    pub(crate) fn take<T>(
        mut self,
        answer: &Answer<T>,
        lease: Duration,
        mode: impl FnOnce(Instant) -> LeasePolicy,
    ) -> Result<Arc<HoldStatus>, Error> {
        let entry = self.entry.clone();
        let mode = mode(answer.sent_at);
        let now = Instant::now();
        let mut state = entry.state.lock();
        let refusal = match state.slots.get_mut(&self.owner) {
            None => Some(Error::Closed),
            Some(_) if !entry.shared.is_open() => Some(Error::Closed),
            // Nobody is left who would tell of its loss.
            Some(_) if entry.shared.gone.is_cancelled() => Some(Error::NoRuntime),
            Some(slot) if slot.losses != self.losses && !slot.is_held() => {
                let reason = slot.lost_reason;
                Some(Error::lost(entry.name.given(), reason))
            }
            Some(_) if local_deadline(answer.sent_at, lease) <= now => Some(Error::no_answer(
                "acquiring",
                "the answer came when the lease was already over",
            )),
            Some(slot) => {
                let first = !slot.is_held();
                let status = Arc::<HoldStatus>::default();
                if first {
                    slot.generation = entry.shared.entries.next_number();
                    slot.looking = false;
                }
                let hold = Hold {
                    status: Arc::clone(&status),
                    mode,
                    detached: false,
                    claimed: false,
                };
                slot.add(
                    hold,
                    answer.sent_at,
                    lease,
                    entry.shared.config.watchdog_timeout,
                );
                slot.acquiring = false;
                slot.moved_at = now;
                slot.in_sync = slot.count() == self.target;
                debug_assert!(
                    slot.in_sync || slot.background,
                    "a count that is off is being corrected"
                );
                entry.set_timer(slot, self.owner);
                self.open = false;
                Totals::add(&entry.shared.totals.acquired, 1);
                // Whoever took it, there is nothing left to go first for.
                state.freed_at = None;
                state.tidy(self.owner);
                return Ok(status);
            }
        };
        drop(state);
        self.end(true);
        Err(refusal.unwrap_or(Error::Closed))
    }

    fn end(&mut self, maybe_executed: bool) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        let mut state = self.entry.state.lock();
        let Some(slot) = state.slots.get_mut(&self.owner) else {
            return;
        };
        slot.acquiring = false;
        slot.moved_at = Instant::now();
        if maybe_executed {
            slot.lease_max = slot.lease_max.max(self.lease);
            self.entry.release_in_background(slot, self.owner);
        }
        state.tidy(self.owner);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Cancel safety: a script that was handed over is executed although nobody waits for it any
        // more.
        let sent = self.sent.load(Ordering::Acquire);
        self.end(sent);
    }
}

impl EntryRef {
    /// Joins the queue; the turn leaves it when it is dropped.
    pub(crate) fn queue_up(&self, owner: &Owner, lease: Duration, past_queue: bool) -> Turn {
        let caller = Arc::new(Caller {
            owner: owner.thread_id(),
            past_queue,
            since: Instant::now(),
            waits_for_own: AtomicBool::new(false),
            absent: AtomicBool::new(false),
            notify: Notify::new(),
        });
        self.state.lock().queue.push_back(Arc::clone(&caller));
        Turn {
            entry: self.clone(),
            caller,
            owner: owner.clone(),
            lease,
            since: Instant::now(),
            told: false,
        }
    }

    /// What a caller may do right now.
    fn look(&self, caller: &Arc<Caller>, owner: &Owner, lease: Duration) -> Result<Look, Error> {
        if !self.shared.is_open() {
            return Err(Error::Closed);
        }
        let now = Instant::now();
        let id = caller.owner;
        let mut state = self.state.lock();
        self.expire(&mut state, id, now);
        self.take_over_stuck(&mut state, now);
        let limit = self.shared.config.command_timeout;
        state.note_absence(caller, now, limit);
        if caller.past_queue
            && state
                .slots
                .get(&id)
                .is_none_or(|slot| slot.is_free() && !slot.is_held())
            && let Some(until) = state
                .head_goes_first_until(id, limit)
                .filter(|until| *until > now)
        {
            return Ok(Look::Queue { again: Some(until) });
        }
        let may_contend = state.may_contend(caller);
        if may_contend && !caller.past_queue && state.freed_at.take().is_some() {
            // The others may follow.
            state.tell(id);
        }
        let queue = Look::Queue {
            again: state.next_stuck(limit),
        };
        let slot = state.slots.get(&id);
        let since = slot.map_or(caller.since, |slot| slot.moved_at.max(caller.since));
        // Whoever came first may not be polled any more; it is not waited for longer than for a
        // command.
        let behind = since + limit > now && state.is_behind_its_own(caller);
        let own_first = behind || slot.is_some_and(|slot| !slot.is_free());
        let waited = caller.waits_for_own.swap(own_first, Ordering::Relaxed);
        if own_first {
            return Ok(Look::OwnPlace { since });
        }
        if waited {
            // It may have to queue now; the next of its owner need not wait for that.
            state.tell_next_of(id);
        }
        match state.slots.get_mut(&id) {
            None if may_contend => {
                let mut slot =
                    Slot::new(self.field_of(owner), self.shared.entries.next_number(), now);
                slot.begin_acquire(caller.past_queue, now);
                let place = self.place(id, &slot, 1, lease);
                state.slots.insert(id, slot);
                Ok(Look::Place(place))
            }
            None => Ok(queue),
            Some(slot) if slot.is_held() => {
                if slot.count() >= DEPTH_MAX {
                    return Err(Error::TooDeep {
                        lock: self.name.given().to_string(),
                        depth: slot.count(),
                    });
                }
                if owner.origin() == Origin::Task {
                    tracing::debug!(
                        target: "redisson_lock",
                        lock = %self.name.given(), %owner,
                        "re-entry by task id alone: branches of one join! or select! share it, see Owner::scope"
                    );
                }
                slot.begin_acquire(caller.past_queue, now);
                Ok(Look::Place(self.place(id, slot, slot.count() + 1, lease)))
            }
            Some(slot) => match slot.lost() {
                Some(reason) => Err(Error::lost(self.name.given(), reason)),
                None if may_contend => {
                    slot.begin_acquire(caller.past_queue, now);
                    Ok(Look::Place(self.place(id, slot, 1, lease)))
                }
                None => Ok(queue),
            },
        }
    }

    fn next_stuck(&self) -> Option<Instant> {
        self.state
            .lock()
            .next_stuck(self.shared.config.command_timeout)
    }

    /// Whether the owner of this caller has holds, or lost ones, in this entry, or another one has
    /// just freed the lock.
    fn concerns(&self, caller: &Arc<Caller>) -> bool {
        let state = self.state.lock();
        let slot = state.slots.get(&caller.owner);
        slot.is_some_and(|slot| slot.is_held() || slot.lost().is_some())
            || state.freed_at.is_some() && state.may_contend(caller)
    }

    fn place(&self, owner: i64, slot: &Slot, target: u32, lease: Duration) -> Place {
        Place {
            entry: self.clone(),
            owner,
            field: Arc::clone(&slot.field),
            target,
            lease,
            losses: slot.losses,
            sent: AtomicBool::new(false),
            open: true,
        }
    }

    /// After a reconnect without a fence a late copy of an earlier hold may still be executed, so
    /// every hold begun since then has a field of its own.
    fn field_of(&self, owner: &Owner) -> Arc<str> {
        if self.shared.redis.unfenced(self.lane) == 0 {
            owner.field()
        } else {
            wire::field(&self.shared.client_id, next_own_id())
        }
    }

    /// Whether some owner of this client holds, or works with, this field.
    pub(crate) fn knows_field(&self, field: &str) -> bool {
        self.state
            .lock()
            .slots
            .values()
            .any(|slot| *slot.field == *field)
    }
}

enum Look {
    Place(Place),
    /// Others come first. It is time to look again at `again`, whatever happens.
    Queue {
        again: Option<Instant>,
    },
    /// An earlier operation of this owner is not over; the last of them began or ended then.
    OwnPlace {
        since: Instant,
    },
}

/// Sleeps until then, or for ever.
pub(crate) async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Guards that nest deeper than this are leaking.
const DEPTH_MAX: u32 = 10_000;

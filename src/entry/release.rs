//! Giving back: unlocks, dropped guards, and what the background releaser still has to do.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::futures::OwnedNotified;
use tokio::time::Instant;

use super::EntryRef;
use super::state::State;
use crate::error::LossReason;
use crate::hold::{Ending, HoldStatus};
use crate::releaser;
use crate::script::{Answer, Released};
use crate::shared::Totals;
use crate::slot::Slot;

impl EntryRef {
    /// Takes a hold out of the books and occupies the owner's place with its release.
    ///
    /// `Begun::Wait`: an acquire of the same owner is under way, and its end is told. `Err`: the
    /// hold was lost.
    pub(crate) fn begin_release(
        &self,
        owner: i64,
        status: &Arc<HoldStatus>,
    ) -> Result<Begun, LossReason> {
        let now = Instant::now();
        let mut state = self.state.lock();
        self.expire(&mut state, owner, now);
        if let Some(Ending::Lost(reason)) = status.ending() {
            if let Some(slot) = state.slots.get_mut(&owner) {
                self.acknowledge(slot, owner, status);
            }
            state.tidy(owner);
            return Err(reason);
        }
        // Somebody else gave the same detached hold back in between.
        let Some(slot) = state
            .slots
            .get_mut(&owner)
            .filter(|_| status.ending().is_none())
        else {
            return Ok(Begun::NotHeld);
        };
        if slot.acquiring {
            return Ok(Begun::Wait {
                place: Arc::clone(&slot.place).notified_owned(),
                since: slot.moved_at,
            });
        }
        let given_back = slot.give_back(status);
        debug_assert!(given_back, "a hold that has not ended is in the books");
        slot.overlapped |= slot.releasing > 0 || slot.background;
        slot.releasing += 1;
        slot.moved_at = now;
        Totals::add(&self.shared.totals.released, 1);
        let release = Release {
            entry: self.clone(),
            owner,
            field: Arc::clone(&slot.field),
            deadline: slot.deadline,
            epoch: slot.epoch,
            open: true,
        };
        if !slot.is_held() {
            self.shared.renewals.remove(slot.generation);
        }
        if let Some(head) = state.head() {
            // It waits no longer for this release than a command may take.
            head.notify.notify_one();
        }
        Ok(Begun::Release(release))
    }

    /// A guard was dropped: the hold counts as given back from here on, and the background does the
    /// rest.
    pub(crate) fn drop_hold(&self, owner: i64, status: &Arc<HoldStatus>) {
        let mut state = self.state.lock();
        self.expire(&mut state, owner, Instant::now());
        let Some(slot) = state.slots.get_mut(&owner) else {
            return;
        };
        if slot.give_back(status) {
            Totals::add(&self.shared.totals.released, 1);
            if !slot.is_held() {
                self.shared.renewals.remove(slot.generation);
            }
            self.release_in_background(slot, owner);
        } else {
            self.acknowledge(slot, owner, status);
        }
        state.tidy(owner);
    }

    /// The owner has seen that a hold was lost. If its section ran on behind its limit, the field
    /// can go now.
    fn acknowledge(&self, slot: &mut Slot, owner: i64, status: &Arc<HoldStatus>) {
        if slot.acknowledge(status) {
            self.release_in_background(slot, owner);
        }
    }

    /// Has the background go on with unlocks whose callers have not polled them for longer than a
    /// command may take: others wait for them.
    pub(super) fn take_over_stuck(&self, state: &mut State, now: Instant) {
        let limit = self.shared.config.command_timeout;
        for (&owner, slot) in &mut state.slots {
            if slot.is_stuck_in_release(now, limit) {
                slot.releasing = 0;
                slot.epoch = self.shared.entries.next_number();
                self.release_in_background(slot, owner);
            }
        }
    }

    /// Has the releaser bring Redis to the count of the slot, unless it is at it already.
    pub(super) fn release_in_background(&self, slot: &mut Slot, owner: i64) {
        if self.shared.is_closed() {
            return;
        }
        slot.in_sync = false;
        slot.overlapped |= slot.releasing > 0;
        if !slot.background {
            slot.background = true;
            slot.moved_at = Instant::now();
            releaser::start(self.clone(), owner);
        }
    }

    /// What the next copy of a release has to say: field, count, lease still promised.
    pub(crate) fn release_target(&self, owner: i64) -> (u32, Duration) {
        let state = self.state.lock();
        state
            .slots
            .get(&owner)
            .map_or((0, Duration::from_millis(1)), |slot| {
                let promised = slot.promised(Instant::now(), self.shared.config.watchdog_timeout);
                (slot.target(), promised)
            })
    }

    /// The releaser's view: what is left to do for this owner.
    pub(crate) fn releaser_step(&self, owner: i64) -> Step {
        let mut state = self.state.lock();
        let Some(slot) = state.slots.get_mut(&owner) else {
            return Step::Done;
        };
        if slot.acquiring {
            return Step::Wait(Arc::clone(&slot.place).notified_owned());
        }
        if slot.overlapped && slot.releasing == 0 {
            // The copies of releases that overlapped may have been executed in another order than
            // they were built. For holds that stay, the count is said once more, now that nobody
            // else is under way.
            slot.overlapped = false;
            slot.in_sync &= !slot.is_held();
        }
        if slot.in_sync || self.shared.is_closed() {
            slot.background = false;
            state.tidy(owner);
            return Step::Done;
        }
        Step::Send {
            field: Arc::clone(&slot.field),
            lease_max: slot.lease_max,
        }
    }

    /// The releaser's copy was answered.
    pub(crate) fn released(&self, owner: i64, target: u32, answer: Released) {
        let mut state = self.state.lock();
        if let Some(slot) = state.slots.get_mut(&owner) {
            slot.moved_at = Instant::now();
            self.apply(slot, target, answer);
            if target == 0 && answer == Released::Done {
                state.freed_at = Some(Instant::now());
            }
            state.tidy(owner);
        }
    }

    fn apply(&self, slot: &mut Slot, target: u32, answer: Released) {
        match loss(answer) {
            None => slot.in_sync |= target == slot.target(),
            Some(reason) => self.lose(slot, reason),
        }
    }

    /// The releaser gives up: the lease frees the lock.
    pub(crate) fn abandon(&self, owner: i64) {
        if let Some(slot) = self.state.lock().slots.get_mut(&owner) {
            slot.in_sync = true;
        }
        Totals::add(&self.shared.totals.gave_up, 1);
    }
}

/// What the releaser does next.
pub(crate) enum Step {
    Wait(OwnedNotified),
    Send {
        field: Arc<str>,
        lease_max: Duration,
    },
    Done,
}

/// How giving back begins.
pub(crate) enum Begun {
    Release(Release),
    NotHeld,
    /// An acquire of the same owner is under way since then.
    Wait {
        place: OwnedNotified,
        since: Instant,
    },
}

/// A release that is under way. Dropped before it is answered, it leaves the rest to the
/// background.
pub(crate) struct Release {
    pub(crate) entry: EntryRef,
    pub(crate) owner: i64,
    pub(crate) field: Arc<str>,
    /// The local deadline when the release began.
    pub(crate) deadline: Instant,
    /// That of the slot when it began.
    epoch: u64,
    open: bool,
}

impl Release {
    /// Polls `future`, but not any more when the background has taken this release over: a copy
    /// that is sent then would not be in order with whatever came after. `None`: it was taken over.
    pub(crate) async fn unless_taken_over<F: Future>(
        &self,
        mut future: Pin<&mut F>,
    ) -> Option<F::Output> {
        std::future::poll_fn(|context| {
            if self.is_taken_over() {
                return Poll::Ready(None);
            }
            future.as_mut().poll(context).map(Some)
        })
        .await
    }

    fn is_taken_over(&self) -> bool {
        let state = self.entry.state.lock();
        state
            .slots
            .get(&self.owner)
            .is_none_or(|slot| slot.epoch != self.epoch)
    }

    /// The release was answered; `Err` if the hold had ended before.
    pub(crate) fn answered(
        mut self,
        target: u32,
        answer: &Answer<Released>,
    ) -> Result<(), LossReason> {
        // If it was taken over meanwhile, there is nobody left to ask.
        let mut all_given_back = true;
        let freed = target == 0 && answer.value == Released::Done;
        let overlapped = self.end(freed, |entry, slot| {
            all_given_back = !slot.is_held();
            entry.apply(slot, target, answer.value);
        });
        // An earlier copy may have done it, or another release of the same owner that went further
        // and was quicker: then it is no loss.
        let by_a_copy = answer.repeated && target == 0;
        let by_another = overlapped && all_given_back;
        let done_before = (by_a_copy || by_another) && answer.first_sent_at < self.deadline;
        match loss(answer.value) {
            None => Ok(()),
            Some(LossReason::Gone | LossReason::Taken) if done_before => Ok(()),
            Some(reason) => Err(reason),
        }
    }

    /// The release has no answer, or was refused: the background goes on, or the lease ends it.
    pub(crate) fn unanswered(mut self, go_on: bool) {
        let owner = self.owner;
        self.end(false, |entry, slot| {
            if go_on {
                entry.release_in_background(slot, owner);
            } else {
                slot.in_sync = true;
                Totals::add(&entry.shared.totals.gave_up, 1);
            }
        });
    }

    /// Gives the place up, together with what the answer changes. Answers whether releases
    /// overlapped.
    fn end(&mut self, freed: bool, change: impl FnOnce(&EntryRef, &mut Slot)) -> bool {
        if !std::mem::take(&mut self.open) {
            return false;
        }
        let mut state = self.entry.state.lock();
        let Some(slot) = state.slots.get_mut(&self.owner) else {
            return true;
        };
        if slot.epoch != self.epoch {
            return true;
        }
        slot.releasing -= 1;
        slot.moved_at = Instant::now();
        let overlapped = slot.overlapped;
        change(&self.entry, slot);
        if slot.releasing == 0
            && !slot.background
            && std::mem::take(&mut slot.overlapped)
            && slot.is_held()
        {
            // As in the releaser: the last of several says the count once more.
            self.entry.release_in_background(slot, self.owner);
        }
        if freed {
            state.freed_at = Some(Instant::now());
        }
        state.tidy(self.owner);
        overlapped
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        // Cancel safety: whatever was sent so far, the background brings the count to what is left.
        let owner = self.owner;
        self.end(false, |entry, slot| {
            entry.release_in_background(slot, owner)
        });
    }
}

/// What a release that found the field gone says about the hold.
fn loss(answer: Released) -> Option<LossReason> {
    match answer {
        Released::Done => None,
        Released::Gone => Some(LossReason::Gone),
        Released::Taken => Some(LossReason::Taken),
        Released::NotALock => Some(LossReason::Changed),
    }
}

//! Giving back: unlocks, dropped guards, and what the background releaser still has to do.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::futures::OwnedNotified;
use tokio::time::Instant;

use super::EntryRef;
use crate::error::LossReason;
use crate::hold::{Ending, Ticket};
use crate::releaser;
use crate::script::{Answer, Released};
use crate::shared::Totals;
use crate::slot::Slot;

impl EntryRef {
    /// Takes a hold out of the books and occupies the owner's place with its release.
    ///
    /// `Begun::Wait`: an acquire of the same owner is under way, and its end is told. `Err`: the hold was lost.
    pub(crate) fn begin_release(&self, owner: i64, ticket: &Arc<Ticket>) -> Result<Begun, LossReason> {
        let now = Instant::now();
        let mut state = self.state.lock();
        self.expire(&mut state, owner, now);
        if let Some(Ending::Lost(reason)) = ticket.ending() {
            if let Some(slot) = state.slots.get_mut(&owner) {
                slot.acknowledge(ticket);
            }
            state.tidy(owner);
            return Err(reason);
        }
        // Somebody else gave the same detached hold back in between.
        let Some(slot) = state.slots.get_mut(&owner).filter(|_| ticket.ending().is_none()) else {
            return Ok(Begun::NotHeld);
        };
        if slot.acquiring {
            return Ok(Begun::Wait(Arc::clone(&slot.place).notified_owned()));
        }
        let given_back = slot.give_back(ticket);
        debug_assert!(given_back, "a hold that has not ended is in the books");
        slot.overlapped |= slot.releasing > 0 || slot.background;
        slot.releasing += 1;
        Totals::add(&self.shared.totals.released, 1);
        let release = Release {
            entry: self.clone(),
            owner,
            field: Arc::clone(&slot.field),
            deadline: slot.deadline,
            open: true,
        };
        if !slot.is_held() {
            self.shared.renewals.remove(slot.generation);
        }
        Ok(Begun::Release(release))
    }

    /// A guard was dropped: the hold counts as given back from here on, and the background does the rest.
    pub(crate) fn drop_hold(&self, owner: i64, ticket: &Arc<Ticket>) {
        let mut state = self.state.lock();
        self.expire(&mut state, owner, Instant::now());
        let Some(slot) = state.slots.get_mut(&owner) else { return };
        if slot.give_back(ticket) {
            Totals::add(&self.shared.totals.released, 1);
            if !slot.is_held() {
                self.shared.renewals.remove(slot.generation);
            }
            self.release_in_background(slot, owner);
        } else {
            slot.acknowledge(ticket);
        }
        state.tidy(owner);
    }

    /// Has the releaser bring Redis to the count of the slot, unless it is at it already.
    pub(super) fn release_in_background(&self, slot: &mut Slot, owner: i64) {
        if self.shared.is_closed() {
            return;
        }
        slot.settled = false;
        slot.overlapped |= slot.releasing > 0;
        if !slot.background {
            slot.background = true;
            releaser::start(self.clone(), owner);
        }
    }

    /// What the next copy of a release has to say: field, count, lease still promised.
    pub(crate) fn release_target(&self, owner: i64) -> (u32, Duration) {
        let state = self.state.lock();
        state.slots.get(&owner).map_or((0, Duration::from_millis(1)), |slot| {
            let promised = slot.promised(Instant::now(), self.shared.config.watchdog_timeout);
            (slot.count(), promised)
        })
    }

    /// The releaser's view: what is left to do for this owner.
    pub(crate) fn releaser_step(&self, owner: i64) -> Step {
        let mut state = self.state.lock();
        let Some(slot) = state.slots.get_mut(&owner) else { return Step::Done };
        if slot.acquiring {
            return Step::Wait(Arc::clone(&slot.place).notified_owned());
        }
        if slot.overlapped && slot.releasing == 0 {
            // The copies of releases that overlapped may have been executed in another order than they were built.
            // For holds that stay, the count is said once more, now that nobody else is under way.
            slot.overlapped = false;
            slot.settled &= !slot.is_held();
        }
        if slot.settled || self.shared.is_closed() {
            slot.background = false;
            state.tidy(owner);
            return Step::Done;
        }
        Step::Send { field: Arc::clone(&slot.field), lease_max: slot.lease_max }
    }

    /// The releaser's copy was answered.
    pub(crate) fn released(&self, owner: i64, target: u32, answer: Released) {
        let mut state = self.state.lock();
        if let Some(slot) = state.slots.get_mut(&owner) {
            self.apply(slot, target, answer);
            state.tidy(owner);
        }
    }

    fn apply(&self, slot: &mut Slot, target: u32, answer: Released) {
        match loss(answer) {
            None => slot.settled |= target == slot.count(),
            Some(reason) => self.lose(slot, reason),
        }
    }

    /// The releaser gives up: the lease frees the lock.
    pub(crate) fn abandon(&self, owner: i64) {
        if let Some(slot) = self.state.lock().slots.get_mut(&owner) {
            slot.settled = true;
        }
        Totals::add(&self.shared.totals.gave_up, 1);
    }
}

/// What the releaser does next.
pub(crate) enum Step {
    Wait(OwnedNotified),
    Send { field: Arc<str>, lease_max: Duration },
    Done,
}

/// How giving back begins.
pub(crate) enum Begun {
    Release(Release),
    NotHeld,
    Wait(OwnedNotified),
}

/// A release that is under way. Dropped before it is answered, it leaves the rest to the background.
pub(crate) struct Release {
    pub(crate) entry: EntryRef,
    pub(crate) owner: i64,
    pub(crate) field: Arc<str>,
    /// The local deadline when the release began.
    pub(crate) deadline: Instant,
    open: bool,
}

impl Release {
    /// The release was answered; `Err` if the hold had ended before.
    pub(crate) fn answered(mut self, target: u32, answer: &Answer<Released>) -> Result<(), LossReason> {
        let mut all_given_back = false;
        let overlapped = self.end(|entry, slot| {
            all_given_back = !slot.is_held();
            entry.apply(slot, target, answer.value);
        });
        // An earlier copy may have done it, or another release of the same owner that went further and was quicker:
        // then it is no loss.
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
        self.end(|entry, slot| {
            if go_on {
                entry.release_in_background(slot, owner);
            } else {
                slot.settled = true;
                Totals::add(&entry.shared.totals.gave_up, 1);
            }
        });
    }

    /// Gives the place up, together with what the answer changes. Answers whether releases overlapped.
    fn end(&mut self, change: impl FnOnce(&EntryRef, &mut Slot)) -> bool {
        if !std::mem::take(&mut self.open) {
            return false;
        }
        let mut state = self.entry.state.lock();
        let Some(slot) = state.slots.get_mut(&self.owner) else { return false };
        slot.releasing -= 1;
        let overlapped = slot.overlapped;
        change(&self.entry, slot);
        if slot.releasing == 0 && !slot.background && std::mem::take(&mut slot.overlapped) && slot.is_held() {
            // As in the releaser: the last of several says the count once more.
            self.entry.release_in_background(slot, self.owner);
        }
        state.tidy(self.owner);
        overlapped
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        // Cancel safety: whatever was sent so far, the background brings the count to what is left.
        let owner = self.owner;
        self.end(|entry, slot| entry.release_in_background(slot, owner));
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

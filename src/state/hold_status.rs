//! How a hold has ended, which its guard and its handles share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use redisson_lock_core::{Ending, HoldId, LossReason, Time, Token};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// A hold that was just taken.
pub(crate) type Taken = (HoldId, Arc<HoldStatus>);

/// How many holds were lost.
static LOSSES: AtomicU32 = AtomicU32::new(0);

/// The state that a hold and its guard share: whether and how the hold has ended. It ends once.
#[derive(Debug, Default)]
pub(crate) struct HoldStatus {
    token: Option<Token>,
    end: Mutex<End>,
}

#[derive(Debug, Default)]
struct End {
    ending: Option<Ending>,
    /// Of a hold that its owner does not have any more.
    valid_until: Option<Time>,
    /// Of a loss: its number among those of the process. Smaller than the time.
    nth: u32,
    /// Made for the first who waits for the end: hardly any call does.
    reported: Option<CancellationToken>,
}

impl HoldStatus {
    pub(crate) fn new(token: Option<Token>) -> Self {
        Self {
            token,
            ..Self::default()
        }
    }

    /// The token that a fenced lock has given to the hold.
    pub(crate) fn token(&self) -> Option<Token> {
        self.token
    }

    pub(crate) fn ending(&self) -> Option<Ending> {
        self.end.lock().ending
    }

    /// Until when it was valid, once its owner does not have it any more: an instant that has passed.
    pub(crate) fn valid_until(&self) -> Time {
        self.end.lock().valid_until.unwrap_or(Time::START)
    }

    /// Why it was lost, and the number of that loss: one that was seen later has a larger one.
    pub(crate) fn loss(&self) -> Option<(LossReason, u32)> {
        let end = self.end.lock();
        match end.ending {
            Some(Ending::Lost(reason)) => Some((reason, end.nth)),
            Some(Ending::Released) | None => None,
        }
    }

    /// Cancelled after the hold has ended, in whichever way.
    pub(crate) fn ended(&self) -> CancellationToken {
        let mut end = self.end.lock();
        let reported = end.reported.get_or_insert_default().clone();
        let has_ended = end.ending.is_some();
        drop(end);
        if has_ended {
            reported.cancel();
        }
        reported
    }

    pub(crate) fn set_valid_until(&self, valid_until: Time) {
        self.end.lock().valid_until = Some(valid_until);
    }

    /// Writes down how it ended. It wakes no task: it is done under the mutex of the lock.
    pub(crate) fn set_ending(&self, ending: Ending) {
        let mut end = self.end.lock();
        debug_assert!(end.ending.is_none(), "I5: a hold ends once");
        if end.ending.is_none() {
            end.ending = Some(ending);
            if matches!(ending, Ending::Lost(_)) {
                end.nth = LOSSES.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Wakes those who wait for the end, when the mutexes are free.
    pub(crate) fn wake(&self) {
        let reported = self.end.lock().reported.clone();
        if let Some(reported) = reported {
            reported.cancel();
        }
    }
}

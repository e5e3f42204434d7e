//! A call that found the lock held: how long it waits, if it hears nothing of the lock.

use std::time::Duration;

use redisson_lock_core::{Order, Total};

use crate::base::runtime::event;
use crate::error::HeldBy;
use crate::state::entry::{AfterAttempt, Attempts, CallEnd, Entry, WaitingCall};

/// The answer to an attempt that did not take the lock.
pub(super) struct FoundBusy {
    pub(super) holder: HeldBy,
    /// The lock is free, and it is the turn of that owner.
    pub(super) is_free: bool,
    /// Its slot is on its way to another node.
    pub(super) is_on_the_way: bool,
}

impl FoundBusy {
    /// What the call does.
    pub(super) fn seen_by(self, entry: &Entry, call: &WaitingCall) -> AfterAttempt {
        entry.note_answer();
        self.log(entry, call);
        call.attempts(|attempts| {
            attempts.was_answered = true;
            attempts.found_free = self.is_free;
            let time = (call.order == Order::Queued).then(|| self.longest_wait(entry, attempts));
            let former = attempts.found.replace(Box::new(self.holder));
            if time.is_some() && former.is_none() {
                entry.shared().totals.count(Total::Contended, 1);
            }
            match time {
                Some(time) => AfterAttempt::Waits(time),
                None => AfterAttempt::Ends(CallEnd::Busy),
            }
        })
    }

    fn log(&self, entry: &Entry, call: &WaitingCall) {
        let HeldBy {
            owner: holder,
            lease_left,
        } = &self.holder;
        let (lock, is_free) = (entry.name.given(), self.is_free);
        let has_no_expiry = lease_left.is_none()
            && call.attempts(|attempts| {
                let found = attempts.found.as_deref();
                found.is_none_or(|found| found.lease_left.is_some())
            });
        call.logs(|| {
            event!(TRACE, %holder, ?lease_left, is_free, "lock busy");
            if has_no_expiry && entry.shared().no_expiry.is_news(lock) {
                event!(WARN, %lock, owner = %call.owner, holder = holder.as_str(), "waiting for a lock whose key has no expiry");
            }
        });
    }

    fn longest_wait(&self, entry: &Entry, attempts: &mut Attempts) -> Duration {
        let (shared, kind) = (entry.shared(), entry.name.kind());
        let watchdog_timeout = shared.watchdog_timeout();
        let left = self.holder.lease_left;
        let lease_over = left.map_or(watchdog_timeout, |left| left + MILLISECOND);
        let mut longest = lease_over.min(watchdog_timeout);
        // It may be taken and lost again without a message.
        attempts.looks.take_if(|_| !self.is_free);
        if self.is_free {
            let looks = attempts
                .looks
                .get_or_insert_with(|| Box::new(shared.redis.looks()));
            longest = longest.min(looks.next() + MILLISECOND);
        }
        // A message published on the target of a moving slot may not arrive here.
        if self.is_on_the_way {
            longest = longest.min(ON_THE_WAY);
        }
        if kind.has_queue() {
            // Each look prolongs its place.
            longest = longest.min(shared.config.rules.fair_wait / 3);
        }
        if !kind.announces() {
            let pauses = attempts
                .pauses
                .get_or_insert_with(|| Box::new(shared.redis.pauses()));
            longest = longest.min(pauses.next());
        }
        longest
    }
}

/// A lease that the server says in whole milliseconds is over with the next one.
const MILLISECOND: Duration = Duration::from_millis(1);

/// For how long at most a lock is waited for whose slot is on its way to another node.
const ON_THE_WAY: Duration = Duration::from_secs(1);

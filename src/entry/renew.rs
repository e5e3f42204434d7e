//! Keeping: what the renewal registry asks an entry, and what it reports back.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::EntryRef;
use crate::error::LossReason;
use crate::slot::Slot;

impl EntryRef {
    pub(super) fn set_timer(&self, slot: &Slot, owner: i64) {
        let (renewals, watchdog_timeout) =
            (&self.shared.renewals, self.shared.config.watchdog_timeout);
        if !slot.is_held() {
            renewals.remove(slot.generation);
            return;
        }
        let watched = slot.watched_at(watchdog_timeout);
        let at = if !slot.looking {
            watched.min(renewals.on_beat(slot.due_at(watchdog_timeout)))
        } else if watched <= Instant::now() + self.shared.config.command_timeout * 2 {
            watched
        } else {
            // The renewal under way is answered, or given up, long before there is anything to see.
            return;
        };
        renewals.set(slot.generation, at, || (Arc::clone(self.name.key()), owner));
    }

    /// The timer of a slot has fired: ends what is over, and answers what is to be renewed or
    /// looked at.
    pub(crate) fn due(
        &self,
        owner: i64,
        generation: u64,
        now: Instant,
        slack: Duration,
    ) -> Option<DueRenewal> {
        let watchdog_timeout = self.shared.config.watchdog_timeout;
        let mut state = self.state.lock();
        self.expire(&mut state, owner, now);
        let slot = state
            .slots
            .get_mut(&owner)
            .filter(|slot| slot.generation == generation)?;
        if !slot.is_held() {
            return None;
        }
        if !slot.overdue
            && slot
                .at_risk_from(watchdog_timeout)
                .is_some_and(|from| from <= now)
        {
            slot.overdue = true;
            tracing::warn!(
                target: "redisson_lock",
                lock = %self.name.given(), owner = %slot.field,
                "renewal overdue: the lock is at risk"
            );
        }
        let renewal = (!slot.looking && slot.due_at(watchdog_timeout) <= now + slack).then(|| {
            slot.looking = true;
            DueRenewal {
                field: Arc::clone(&slot.field),
                lease: slot.renewal(now, watchdog_timeout),
            }
        });
        self.set_timer(slot, owner);
        renewal
    }

    /// A renewal was answered, or has no answer.
    pub(crate) fn renewed(&self, owner: i64, generation: u64, outcome: RenewalOutcome) {
        let mut state = self.state.lock();
        let slot = state
            .slots
            .get_mut(&owner)
            .filter(|slot| slot.generation == generation);
        let Some(slot) = slot.filter(|slot| slot.is_held()) else {
            return;
        };
        slot.looking = false;
        match outcome {
            RenewalOutcome::Renewed { sent_at, lease } => {
                if let Some(lease) = lease {
                    slot.promise(sent_at, lease);
                }
                slot.looked_at(sent_at);
                self.set_timer(slot, owner);
            }
            RenewalOutcome::Lost(reason) => {
                self.lose(slot, reason);
                state.tidy(owner);
            }
            RenewalOutcome::Unknown => {
                slot.retry_at = Some(Instant::now() + self.shared.config.watchdog_timeout / 30);
                self.set_timer(slot, owner);
            }
        }
    }
}

/// A renewal that is due.
pub(crate) struct DueRenewal {
    pub(crate) field: Arc<str>,
    pub(crate) lease: Option<Duration>,
}

/// How a renewal ended. Unknown is not lost: only the local deadline makes it so.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RenewalOutcome {
    Renewed {
        sent_at: Instant,
        lease: Option<Duration>,
    },
    Lost(LossReason),
    Unknown,
}

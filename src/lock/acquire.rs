//! The one acquire loop: attempt, subscribe and have it confirmed, attempt again, wait.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::time::Instant;

use super::inspect::not_a_lock;
use super::{LEASE_MAX, Lock, check_lease};
use crate::entry::{EntryRef, Place, sleep_until};
use crate::error::Error;
use crate::guard::LockGuard;
use crate::hold::LeasePolicy;
use crate::owner::Owner;
use crate::script::{self, Acquired};
use crate::server_error;
use crate::shared::{Shared, Totals};
use crate::slot::local_deadline;
use crate::wait::Subscription;
use crate::wire;

impl Lock {
    pub(super) async fn acquire(&self, wait: Wait) -> Result<Option<LockGuard>, Error> {
        // The owner is the caller's, so it is looked up before the client's own runtime is entered.
        let owner = self.current_owner();
        self.client
            .shared
            .on_client_runtime(pin!(self.acquire_as(owner, wait)))
            .await
    }

    /// Takes the lock for `owner`. `None`: the deadline came first.
    async fn acquire_as(
        &self,
        owner: Result<Owner, Error>,
        wait: Wait,
    ) -> Result<Option<LockGuard>, Error> {
        let owner = owner?;
        let (lease, _) = self.terms()?;
        let entry = self.entry()?;
        let deadline = wait.deadline();
        let mut turn = entry.queue_up(&owner, lease, matches!(wait, Wait::Never));
        let mut subscription: Option<Subscription> = None;
        loop {
            let Some(place) = turn.next(deadline).await? else {
                return Ok(None);
            };
            // Read before the attempt: whatever is heard from here on puts a "busy" out of date.
            let seen = subscription.as_ref().map_or(0, Subscription::version);
            let left = match self.attempt(&entry, &owner, place).await? {
                Attempt::Taken(guard) => return Ok(Some(guard)),
                Attempt::Busy { .. } if matches!(wait, Wait::Never) => return Ok(None),
                Attempt::Busy { left } => left,
            };
            let Some(listening) = subscription
                .as_ref()
                .filter(|listening| !listening.is_refused())
            else {
                // Attempt again after subscribing: an unlock between the attempt above and the
                // subscription was told to nobody.
                Totals::add(&self.client.shared.totals.contended, 1);
                match Box::pin(self.subscribe(&entry, deadline)).await? {
                    Some(confirmed) => subscription = Some(confirmed),
                    None => return Ok(None),
                }
                continue;
            };
            let watchdog_timeout = self.client.shared.config.watchdog_timeout;
            let lease_over = left.map_or(watchdog_timeout, |left| left + Duration::from_millis(1));
            let again = Instant::now() + lease_over.min(watchdog_timeout);
            let limit = deadline.map_or(again, |deadline| deadline.min(again));
            turn.until_retry(listening, seen, limit).await;
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Ok(None);
            }
        }
    }

    /// One run of `acquire.lua`, one more if a ghost of this client stood in the way.
    async fn attempt(
        &self,
        entry: &EntryRef,
        owner: &Owner,
        place: Place,
    ) -> Result<Attempt, Error> {
        let shared = &self.client.shared;
        let (lease, mode) = self.terms()?;
        let mut strays = 0;
        loop {
            let answer = script::call(
                &shared.redis,
                entry.lane,
                "acquiring",
                shared.patience(),
                &place.sent,
                || script::acquire(&entry.name, &place.field, place.target, lease),
            )
            .await;
            let answer = match answer {
                Ok(answer) => answer,
                Err(unanswered) => {
                    place.leave_unknown(unanswered.maybe_executed);
                    return Err(unanswered.error);
                }
            };
            match &answer.value {
                Acquired::Taken => {
                    let status =
                        place.take(&answer, lease, |sent_at| mode.begin(sent_at, lease))?;
                    let client = Arc::clone(&self.client);
                    let guard = LockGuard::new(client, entry.clone(), owner.clone(), status);
                    return Ok(Attempt::Taken(guard));
                }
                Acquired::Lost => return Err(place.leave_lost()),
                Acquired::NotALock(found) => {
                    place.leave();
                    return Err(not_a_lock(entry, found));
                }
                Acquired::Busy { holder, .. }
                    if strays == 0 && is_stray_hold(shared, entry, holder) =>
                {
                    strays += 1;
                    Box::pin(self.release_stray_hold(entry, holder)).await;
                }
                Acquired::Busy { left, .. } => {
                    let left = *left;
                    place.leave();
                    return Ok(Attempt::Busy { left });
                }
            }
        }
    }

    /// Frees the lock from a field of this client that nobody holds: a late copy from a connection
    /// that was replaced without a fence.
    async fn release_stray_hold(&self, entry: &EntryRef, holder: &str) {
        let shared = &self.client.shared;
        let field: Arc<str> = holder.into();
        let sent = AtomicBool::new(false);
        let patience = shared.patience();
        let released = script::call(
            &shared.redis,
            entry.lane,
            "releasing",
            patience,
            &sent,
            || script::release(&entry.name, &field, 0, Duration::from_millis(1)),
        );
        let released = released.await.is_ok();
        tracing::info!(
            target: "redisson_lock",
            lock = %self.given, owner = holder, released,
            "outcome reconciled: a late copy of an earlier hold was given back"
        );
    }

    /// Subscribes and has it confirmed. `None`: the deadline came first.
    async fn subscribe(
        &self,
        entry: &EntryRef,
        deadline: Option<Instant>,
    ) -> Result<Option<Subscription>, Error> {
        let shared = &self.client.shared;
        let timeout = Instant::now() + shared.config.command_timeout;
        let refused = |text: &str| {
            let right = format!("&{}", entry.name.channel());
            server_error::of_connection("subscribing", &right, text)
        };
        let subscription = shared.subscriptions.subscribe(entry.name.channel());
        tokio::select! {
            biased;
            confirmed = subscription.confirmed() => match confirmed {
                Ok(()) => {}
                Err(text) => return Err(refused(&text)),
            },
            // Nobody is left to confirm it.
            () = shared.gone.cancelled() => return Err(Error::Closed),
            () = sleep_until(deadline) => return Ok(None),
            () = tokio::time::sleep_until(timeout) => {
                let problem = shared.subscriptions.problem();
                return Err(refused(problem.as_deref().unwrap_or("the subscription was not confirmed")));
            }
        }
        Ok(Some(subscription))
    }

    /// The lease to ask for, and what becomes of the hold.
    pub(super) fn terms(&self) -> Result<(Duration, Terms), Error> {
        let watchdog_timeout = self.client.shared.config.watchdog_timeout;
        let limit = self.max_hold;
        if let Some(limit) = limit {
            check_lease("max_hold", limit)?;
        }
        let (lease, fixed) = match self.lease {
            Some(lease) => {
                check_lease("lease", lease)?;
                (lease, true)
            }
            None => (watchdog_timeout, false),
        };
        Ok((
            limit.map_or(lease, |limit| limit.min(lease)),
            Terms { fixed, limit },
        ))
    }
}

/// How long a caller is ready to wait.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wait {
    Never,
    Until(Instant),
    Forever,
}

impl Wait {
    /// Long before the end of the clock's range, where timers cannot be made any more, a wait is
    /// one without end.
    pub(super) fn of(wait: Duration) -> Self {
        match wait {
            Duration::ZERO => Self::Never,
            wait if wait < LEASE_MAX => Self::Until(Instant::now() + wait),
            _ => Self::Forever,
        }
    }

    fn deadline(self) -> Option<Instant> {
        match self {
            Self::Until(deadline) => Some(deadline),
            Self::Never | Self::Forever => None,
        }
    }
}

enum Attempt {
    Taken(LockGuard),
    Busy { left: Option<Duration> },
}

/// What becomes of a hold after it was taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    fixed: bool,
    limit: Option<Duration>,
}

impl Terms {
    fn begin(self, sent_at: Instant, lease: Duration) -> LeasePolicy {
        let limit = self.limit.map(|limit| local_deadline(sent_at, limit));
        if self.fixed {
            LeasePolicy::Fixed {
                until: local_deadline(sent_at, lease),
                limit,
            }
        } else {
            LeasePolicy::Watchdog { limit }
        }
    }
}

/// Whether a busy lock is held by a field of this client that nobody holds or works with.
fn is_stray_hold(shared: &Shared, entry: &EntryRef, holder: &str) -> bool {
    shared.redis.unfenced(entry.lane) > 0
        && wire::is_field_of(&shared.client_id, holder)
        && !entry.knows_field(holder)
}

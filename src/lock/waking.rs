//! How a waiting call is woken: by a subscription, which is requested and then confirmed by the server, or by pauses.

use std::sync::{Arc, Weak};
use std::time::Duration;

use redisson_lock_core::{OwnerKey, ThreadId, Total};
use tokio::time::Instant;

use super::waiter::Waiter;
use crate::base::backoff::Backoff;
use crate::error::{Cause, Error, Operation, missing_channel};
use crate::kind::LockKind;
use crate::redis::channels::{ChannelObserver, Subscription};
use crate::state::entry::Entry;
use crate::state::shared::Shared;

/// By what a call that waits is woken.
#[derive(Default)]
pub(super) struct Waking {
    subscription: Option<Box<Subscription>>,
    /// Instead of a subscription, if the kind of lock has no messages.
    pauses: Option<Box<Backoff>>,
    /// Between looks at a free lock while it is another owner's turn.
    looks: Option<Box<Backoff>>,
}

impl Waking {
    pub(super) fn version(&self) -> u64 {
        let subscription = self.subscription.as_deref();
        subscription.map_or(0, Subscription::version)
    }

    /// Its owner may have got another field, which has a channel of its own.
    pub(super) fn listens_to(&mut self, channel: impl FnOnce() -> Arc<str>) {
        self.subscription.take_if(|known| !known.is_of(&channel()));
    }

    /// Subscribes for a call whose attempt, sent then, has found the lock held. Returns the version that has to change before
    /// it attempts again. `None`: it attempts again now, because an unlock after the attempt may not have been heard.
    pub(super) async fn subscribe(
        &mut self,
        entry: &Arc<Entry>,
        waiter: &Waiter,
        sent_at: Instant,
    ) -> Result<Option<u64>, Error> {
        entry.shared().totals.count(Total::Contended, 1);
        let joined = join(entry, waiter);
        // A subscription outlives its last waiter for a while, and may have been there all along.
        let version = joined.unchanged_since(sent_at);
        let confirmed = match version {
            Some(_) => Some(joined),
            None => Box::pin(confirm(entry, waiter, joined)).await?,
        };
        self.subscription = confirmed.map(Box::new);
        Ok(version)
    }

    pub(super) fn listening(&self) -> Option<&Subscription> {
        let subscription = self.subscription.as_deref();
        subscription.filter(|found| !found.is_refused())
    }

    /// When to look again at a lock that is free, but another owner's turn: it may take it and lose it without a message. And
    /// at one whose slot is on its way to another node: a message that is published there may not arrive here.
    pub(super) fn looks_soon(
        &mut self,
        shared: &Shared,
        is_free: bool,
        is_on_the_way: bool,
    ) -> Option<Duration> {
        self.looks.take_if(|_| !is_free);
        let new = || Box::new(shared.redis.looks());
        let soon = is_free.then(|| self.looks.get_or_insert_with(new).next());
        let most = is_on_the_way.then_some(ON_THE_WAY);
        soon.into_iter().chain(most).min()
    }

    /// How long to wait at most after an attempt that found the lock held for what is `left`. `None`: the call has to
    /// subscribe first.
    pub(super) fn longest_wait(
        &mut self,
        shared: &Shared,
        kind: LockKind,
        left: Option<Duration>,
    ) -> Option<Duration> {
        let watchdog_timeout = shared.watchdog_timeout();
        let lease_over = left.map_or(watchdog_timeout, |left| left + MILLISECOND);
        let mut longest = lease_over.min(watchdog_timeout);
        if kind.has_queue() {
            // Each look prolongs its place.
            longest = longest.min(shared.config.rules.fair_wait / 3);
        }
        if kind.announces() {
            return self.listening().map(|_| longest);
        }
        let pauses = self.pauses.get_or_insert_with(|| {
            shared.totals.count(Total::Contended, 1);
            Box::new(shared.redis.pauses())
        });
        Some(longest.min(pauses.next()))
    }
}

/// For how long at most a lock is waited for whose slot is on its way to another node.
const ON_THE_WAY: Duration = Duration::from_secs(1);

/// A lease that the server says in whole milliseconds is over with the next one.
const MILLISECOND: Duration = Duration::from_millis(1);

impl ChannelObserver for Entry {
    fn note_change(self: Arc<Self>, next: Option<i64>) {
        let next = next.map(|thread| OwnerKey::only(ThreadId(thread)));
        self.step(|core, now, out| core.note_change(now, next, out));
    }
}

/// Requests the subscription.
fn join(entry: &Arc<Entry>, waiter: &Waiter) -> Subscription {
    let subscription = entry.route().subscribe(&waiter.channel());
    let observer: Weak<dyn ChannelObserver> = Arc::<Entry>::downgrade(entry);
    let next = entry.name.kind().has_queue().then(|| waiter.thread());
    subscription.report_to(&observer, next);
    subscription
}

/// Has it confirmed. `None`: another caller of this client hands the lock over, or has just freed it.
async fn confirm(
    entry: &Entry,
    waiter: &Waiter,
    subscription: Subscription,
) -> Result<Option<Subscription>, Error> {
    let timeout = Instant::now() + entry.shared().command_timeout();
    tokio::select! {
        biased;
        confirmed = confirmed(entry, &subscription) => confirmed?,
        () = waiter.until_reason() => return Ok(None),
        () = tokio::time::sleep_until(timeout) => return Err(unconfirmed(entry, &subscription)),
    }
    Ok(Some(subscription))
}

/// Waits until the server has confirmed the subscription; fails if it refuses it.
async fn confirmed(entry: &Entry, subscription: &Subscription) -> Result<(), Error> {
    tokio::select! {
        biased;
        confirmed = subscription.confirmed() => {
            confirmed.map_err(|cause| not_subscribed(entry, cause))
        }
        // No task is left to confirm it.
        () = entry.shared().gone.cancelled() => Err(Error::Closed),
    }
}

/// Why it was not confirmed in time.
fn unconfirmed(entry: &Entry, subscription: &Subscription) -> Error {
    let cause = subscription.problem();
    not_subscribed(entry, cause.unwrap_or_else(|| entry.route().deafness()))
}

fn not_subscribed(entry: &Entry, cause: Box<Cause>) -> Error {
    let name = &entry.name;
    let permission = missing_channel(name.channel(), name.kind().has_queue());
    Error::of_connection(Operation::Subscribing, &permission, cause)
}

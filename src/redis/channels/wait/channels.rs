//! The channels of a client, classic and sharded: a cluster has both, and a waiter may have to listen to
//! both.

use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use tokio::sync::futures::Notified;
use tokio::time::Instant;

use super::{ChannelObserver, Listener, Subscriptions};
use crate::error::Cause;
use crate::names::wire::Announce;

/// The registries that are in use, one for each kind.
pub(crate) struct Channels {
    pub(crate) classic: Option<Arc<Subscriptions>>,
    pub(crate) sharded: Option<Arc<Subscriptions>>,
}

impl Channels {
    pub(crate) fn new(announce: Announce) -> Self {
        Self {
            classic: announce.hears_classic().then(Arc::default),
            sharded: announce.hears_sharded().then(Arc::default),
        }
    }

    fn each(&self) -> impl Iterator<Item = &Arc<Subscriptions>> {
        self.classic.iter().chain(&self.sharded)
    }

    /// Joins the channel of each kind; requests the subscription unless that was already done.
    pub(crate) fn subscribe(&self, name: &Arc<str>) -> Subscription {
        let join = |kind: &Option<Arc<Subscriptions>>| {
            let subscriptions = kind.as_ref()?;
            Some(subscriptions.subscribe(name))
        };
        Subscription {
            classic: join(&self.classic),
            sharded: join(&self.sharded).map(Box::new),
        }
    }

    /// How many of those who hear of a release this client is itself.
    pub(crate) fn own_listeners(&self, name: &str) -> u32 {
        let listening = self.each().filter(|kind| kind.is_confirmed(name));
        listening.map(|_| 1).sum()
    }

    /// Channels with waiters, lingering ones included.
    pub(crate) fn len(&self) -> usize {
        self.each().map(|kind| kind.len()).max().unwrap_or(0)
    }

    /// Messages may have been missed on these channels.
    pub(crate) fn missed_of(&self, is_one: impl Fn(&str) -> bool) {
        self.each().for_each(|kind| kind.missed_of(&is_one));
    }

    /// The client is closed: unused channels are dropped, and none lingers from now on.
    pub(crate) fn end(&self) {
        self.each().for_each(|kind| kind.end());
    }
}

/// The channels of a waiter; dropping it leaves them.
pub(crate) struct Subscription {
    classic: Option<Listener>,
    /// Boxed: outside of a cluster there is none.
    sharded: Option<Box<Listener>>,
}

impl Subscription {
    fn each(&self) -> impl Iterator<Item = &Listener> {
        self.classic.iter().chain(self.sharded.as_deref())
    }

    pub(crate) fn is_of(&self, channel: &str) -> bool {
        self.each().all(|part| *part.name == *channel)
    }

    /// Has a lock observe these channels; `next`: the thread id of the owner that their messages are for, if there is exactly
    /// one.
    pub(crate) fn report_to(&self, observer: &Weak<dyn ChannelObserver>, next: Option<i64>) {
        for part in self.each() {
            let mut observers = part.signal.observers.lock();
            observers
                .retain(|(known, _)| known.strong_count() > 0 && !Weak::ptr_eq(known, observer));
            observers.push((Weak::clone(observer), next));
        }
    }

    /// Waits until the server has confirmed every part; `Err` has the server's refusal of one.
    pub(crate) async fn confirmed(&self) -> Result<(), Box<Cause>> {
        self.until(|this| {
            if let Some(cause) = this.each().find_map(|part| part.signal.refused.get()) {
                return Some(Err(Box::new(cause.clone())));
            }
            this.each().all(is_confirmed).then_some(Ok(()))
        })
        .await
    }

    /// Why it is not confirmed at the moment, as far as that is known.
    pub(crate) fn problem(&self) -> Option<Box<Cause>> {
        let mut silent = self.each().filter(|part| !is_confirmed(part));
        silent.find_map(|part| part.subscriptions.problem())
    }

    /// Whether the server refused a channel, possibly on a later connection: not every message will
    /// arrive here.
    pub(crate) fn is_refused(&self) -> bool {
        self.each().any(|part| part.signal.refused.get().is_some())
    }

    /// The version so far. Read before an attempt, it shows whether the attempt's reply is stale.
    pub(crate) fn version(&self) -> u64 {
        let version = |part: &Listener| part.signal.version.load(Ordering::Acquire);
        self.each().map(version).sum()
    }

    /// The version, if every part was confirmed before that instant and has heard nothing since: an answer to what was
    /// sent then is not out of date.
    pub(crate) fn unchanged_since(&self, sent_at: Instant) -> Option<u64> {
        // First: what changes from here on makes another version, whatever is found below.
        let version = self.version();
        let is_unchanged = |part: &Listener| {
            let changed_at = *part.signal.changed_at.lock();
            part.subscriptions.is_confirmed(&part.name) && changed_at.is_some_and(|at| at < sent_at)
        };
        (!self.is_refused() && self.each().all(is_unchanged)).then_some(version)
    }

    /// Waits until the version differs from `before`.
    pub(crate) async fn changed_since(&self, before: u64) {
        let (Some(part), None) = (&self.classic, &self.sharded) else {
            let is_new = |this: &Self| (this.version() != before).then_some(());
            return Box::pin(self.until(is_new)).await;
        };
        // As in `until`, in less room: those who wait outside of a cluster keep it.
        loop {
            let mut notified = pin!(part.signal.notify.notified());
            notified.as_mut().enable();
            if part.signal.version.load(Ordering::Acquire) != before {
                return;
            }
            notified.await;
        }
    }

    /// Waits until there is an answer.
    async fn until<T>(&self, answer: impl Fn(&Self) -> Option<T>) -> T {
        loop {
            let parts = (self.classic.as_ref(), self.sharded.as_deref());
            let mut classic = pin!(parts.0.map(|part| part.signal.notify.notified()));
            let mut sharded = pin!(parts.1.map(|part| part.signal.notify.notified()));
            // Registered before the check, so that nothing is missed in between.
            for part in [&mut classic, &mut sharded] {
                if let Some(part) = part.as_mut().as_pin_mut() {
                    part.enable();
                }
            }
            if let Some(answer) = answer(self) {
                return answer;
            }
            tokio::select! {
                () = ready(classic) => {}
                () = ready(sharded) => {}
            }
        }
    }
}

fn is_confirmed(part: &Listener) -> bool {
    part.signal.confirmed.load(Ordering::Acquire) > 0
}

/// Never, if there is nothing to wait for.
async fn ready(notified: Pin<&mut Option<Notified<'_>>>) {
    match notified.as_pin_mut() {
        Some(notified) => notified.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
impl From<Listener> for Subscription {
    fn from(classic: Listener) -> Self {
        Self {
            classic: Some(classic),
            sharded: None,
        }
    }
}

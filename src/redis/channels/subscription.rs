//! The channels of one who listens.

use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use smallvec::SmallVec;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use super::registry::{ChannelPart, ChannelRequest, ChannelRoute, Channels};
use super::signal::{ChannelObserver, Signal};
use crate::error::Cause;
use crate::redis::transport::Delivery;

/// The channels of a waiter, classic and sharded: a cluster has both, and it may have to listen to both. Dropping it leaves
/// them.
pub(crate) struct Subscription {
    classic: Option<Listener>,
    /// Boxed: outside of a cluster there is none.
    sharded: Option<Box<Listener>>,
}

/// One waiter's share of a channel; dropping it leaves the channel.
struct Listener {
    channels: Arc<Channels>,
    part: ChannelPart,
    signal: Arc<Signal>,
}

impl Channels {
    /// Joins a channel in each of its deliveries. Those that are new are returned too: the caller asks for them.
    pub(in crate::redis) fn join(
        self: &Arc<Self>,
        name: &Arc<str>,
        route: ChannelRoute,
    ) -> (Subscription, SmallVec<[ChannelRequest; 2]>) {
        let announce = self.announce();
        let mut wanted = SmallVec::new();
        let mut join = |delivery| {
            let part = ChannelPart {
                delivery,
                name: Arc::clone(name),
            };
            let (signal, request) = self.join_part(&part, route);
            wanted.extend(request);
            Listener {
                channels: Arc::clone(self),
                part,
                signal,
            }
        };
        let subscription = Subscription {
            classic: announce.hears_classic().then(|| join(Delivery::Classic)),
            sharded: announce
                .hears_sharded()
                .then(|| Box::new(join(Delivery::Sharded))),
        };
        (subscription, wanted)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.channels.leave(&self.part, &self.signal);
    }
}

impl Listener {
    fn is_confirmed(&self) -> bool {
        self.signal.is_confirmed.load(Ordering::Acquire)
    }

    fn was_confirmed(&self) -> bool {
        self.signal.was_confirmed.load(Ordering::Acquire)
    }
}

impl Subscription {
    fn each(&self) -> impl Iterator<Item = &Listener> {
        self.classic.iter().chain(self.sharded.as_deref())
    }

    pub(crate) fn is_of(&self, channel: &str) -> bool {
        self.each().all(|listener| *listener.part.name == *channel)
    }

    /// Has a lock observe these channels; `next`: the thread id of the owner that their messages are for, if there is exactly
    /// one.
    pub(crate) fn report_to(&self, observer: &Weak<dyn ChannelObserver>, next: Option<i64>) {
        for listener in self.each() {
            let mut observers = listener.signal.observers.lock();
            observers
                .retain(|(known, _)| known.strong_count() > 0 && !Weak::ptr_eq(known, observer));
            observers.push((Weak::clone(observer), next));
        }
    }

    /// Waits until the server has confirmed every channel; `Err` has the server's refusal of one.
    pub(crate) async fn confirmed(&self) -> Result<(), Box<Cause>> {
        self.until(|this| {
            if let Some(cause) = this
                .each()
                .find_map(|listener| listener.signal.refused.get())
            {
                return Some(Err(Box::new(cause.clone())));
            }
            this.each().all(Listener::was_confirmed).then_some(Ok(()))
        })
        .await
    }

    /// Why it is not confirmed, if the server has said so.
    pub(crate) fn problem(&self) -> Option<Box<Cause>> {
        let mut silent = self.each().filter(|listener| !listener.was_confirmed());
        silent.find_map(|listener| listener.signal.problem.lock().clone())
    }

    /// Whether the server refused a channel, possibly on a later connection: not every message will
    /// arrive here.
    pub(crate) fn is_refused(&self) -> bool {
        self.each()
            .any(|listener| listener.signal.refused.get().is_some())
    }

    /// The version so far. Read before an attempt, it shows whether the attempt's reply is stale.
    pub(crate) fn version(&self) -> u64 {
        let version = |listener: &Listener| listener.signal.version.load(Ordering::Acquire);
        self.each().map(version).sum()
    }

    /// The version, if every channel was confirmed before that instant and has heard nothing since: an answer to what was
    /// sent then is not out of date.
    pub(crate) fn unchanged_since(&self, sent_at: Instant) -> Option<u64> {
        // First: what changes from here on makes another version, whatever is found below.
        let version = self.version();
        let is_unchanged = |listener: &Listener| {
            let changed_at = *listener.signal.changed_at.lock();
            listener.is_confirmed() && changed_at.is_some_and(|at| at < sent_at)
        };
        (!self.is_refused() && self.each().all(is_unchanged)).then_some(version)
    }

    /// Waits until the version differs from `before`.
    pub(crate) async fn changed_since(&self, before: u64) {
        let (Some(listener), None) = (&self.classic, &self.sharded) else {
            let is_new = |this: &Self| (this.version() != before).then_some(());
            return Box::pin(self.until(is_new)).await;
        };
        // As in `until`, in less room: those who wait outside of a cluster keep it.
        loop {
            let mut notified = pin!(listener.signal.notify.notified());
            notified.as_mut().enable();
            if listener.signal.version.load(Ordering::Acquire) != before {
                return;
            }
            notified.await;
        }
    }

    /// Waits until there is an answer.
    async fn until<T>(&self, answer: impl Fn(&Self) -> Option<T>) -> T {
        loop {
            let parts = (self.classic.as_ref(), self.sharded.as_deref());
            let mut classic = pin!(parts.0.map(|listener| listener.signal.notify.notified()));
            let mut sharded = pin!(parts.1.map(|listener| listener.signal.notify.notified()));
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
                biased;
                () = ready(classic) => {}
                () = ready(sharded) => {}
            }
        }
    }
}

/// Never, if there is nothing to wait for.
async fn ready(notified: Pin<&mut Option<Notified<'_>>>) {
    match notified.as_pin_mut() {
        Some(notified) => notified.await,
        None => std::future::pending().await,
    }
}

pub(crate) const UNCONFIRMED: &str = "the subscription was not confirmed";

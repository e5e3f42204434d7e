//! The channels of one who listens.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use smallvec::SmallVec;
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

    /// Whether the server has confirmed every channel, once at least.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.each().all(Listener::was_confirmed)
    }

    /// Why it is not confirmed, if the server has said so.
    pub(crate) fn problem(&self) -> Option<Box<Cause>> {
        let refused = self
            .each()
            .find_map(|listener| listener.signal.refused.get());
        let problem = || {
            let mut silent = self.each().filter(|listener| !listener.was_confirmed());
            silent.find_map(|listener| listener.signal.problem.lock().clone())
        };
        refused
            .map(|cause| Box::new(cause.clone()))
            .or_else(problem)
    }

    /// Whether the server refused a channel, possibly on a later connection: not every message will
    /// arrive here.
    pub(crate) fn is_refused(&self) -> bool {
        self.each()
            .any(|listener| listener.signal.refused.get().is_some())
    }

    /// Whether every channel was confirmed before that instant and has heard nothing since: an answer to what was sent then is
    /// not out of date.
    pub(crate) fn is_unchanged_since(&self, sent_at: Instant) -> bool {
        let is_unchanged = |listener: &Listener| {
            let changed_at = *listener.signal.changed_at.lock();
            listener.is_confirmed() && changed_at.is_some_and(|at| at < sent_at)
        };
        !self.is_refused() && self.each().all(is_unchanged)
    }
}

pub(crate) const UNCONFIRMED: &str = "the subscription was not confirmed";

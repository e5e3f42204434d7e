//! Which unlock channels have waiters, and what arrived on them. Plain data; the subscriber
//! connection acts on it.
//!
//! The first waiter makes a channel wanted; the subscription lingers for a while after the last
//! waiter left, because a contended lock is likely to be contended again soon. A message only
//! increments a counter: it is a hint, which no waiter consumes.

mod channels;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::base::runtime::isolated;
use crate::error::Cause;
use crate::redis::connection::MessageSink;
use crate::redis::transport::PubSubEvent;

pub(crate) use channels::{Channels, Subscription};

/// The registry of the channels of one kind.
#[derive(Default)]
pub(crate) struct Subscriptions {
    channels: Mutex<ByName>,
    /// Something became wanted, or unwanted.
    changed: Notify,
    /// The client is closed: no channel lingers.
    over: AtomicBool,
    /// The only server that confirms these channels at the moment, if there is one.
    server: Mutex<Option<Arc<str>>>,
    /// Why nothing can be confirmed at the moment, if known.
    problem: Mutex<Option<Box<Cause>>>,
}

/// The channels, and those that the subscriber has to act on: it asks for them after each change, and there may be
/// thousands of others.
#[derive(Default)]
struct ByName {
    all: BTreeMap<Arc<str>, Channel>,
    /// Those in [`Phase::Wanted`].
    wanted: BTreeSet<Arc<str>>,
    /// Those without a user, by the time when the last one left.
    idle: BTreeSet<(Instant, Arc<str>)>,
    /// When the subscriber looks for those. It stays when one of them is used again: the next comes soon, and need not wake
    /// the subscriber.
    looks_at: Option<Instant>,
}

struct Channel {
    phase: Phase,
    users: usize,
    /// When the last user left.
    idle_since: Option<Instant>,
    signal: Arc<Signal>,
}

impl ByName {
    /// Joins a channel, which may be new.
    fn join(&mut self, name: &Arc<str>) -> &Channel {
        let channel = self.all.entry(Arc::clone(name)).or_insert_with(|| {
            self.wanted.insert(Arc::clone(name));
            Channel {
                phase: Phase::Wanted,
                users: 0,
                idle_since: None,
                signal: Arc::default(),
            }
        });
        channel.users += 1;
        if let Some(since) = channel.idle_since.take() {
            self.idle.remove(&(since, Arc::clone(name)));
        }
        channel
    }

    fn remove(&mut self, name: &str) -> Option<Channel> {
        let (name, channel) = self.all.remove_entry(name)?;
        self.wanted.remove(&name);
        if let Some(since) = channel.idle_since {
            self.idle.remove(&(since, name));
        }
        Some(channel)
    }

    /// The server does not have this subscription any more: it is wanted again if it is in use.
    fn forgotten(&mut self, name: Arc<str>) {
        match self.all.get_mut(&name) {
            Some(channel) if channel.users > 0 => {
                channel.phase = Phase::Wanted;
                self.wanted.insert(name);
            }
            Some(_) => _ = self.remove(&name),
            None => {}
        }
    }

    fn remove_unused(&mut self) {
        for (_, name) in std::mem::take(&mut self.idle) {
            self.wanted.remove(&name);
            self.all.remove(&name);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Wanted,
    Asked,
    Confirmed,
}

#[derive(Default)]
struct Signal {
    /// Counts messages, and everything that may have hidden one.
    version: AtomicU64,
    /// When the latest of those was counted, a confirmation too. `None`: there was none.
    changed_at: Mutex<Option<Instant>>,
    confirmed: AtomicU64,
    refused: OnceLock<Cause>,
    notify: Notify,
    /// Several locks may have one channel: `a` and `{a}`.
    observers: Mutex<SmallVec<[Observer; 1]>>,
}

/// With the thread id of the owner that messages on this channel are for, if there is exactly one.
type Observer = (Weak<dyn ChannelObserver>, Option<i64>);

/// A lock, which hears of a channel whether or not its waiting calls are polled.
pub(crate) trait ChannelObserver: Send + Sync {
    /// `next`: it may be the turn of the owner with this thread id.
    fn note_change(self: Arc<Self>, next: Option<i64>);
}

impl Signal {
    fn bump(&self) {
        // First: who still sees the old version is woken by the new one.
        *self.changed_at.lock() = Some(Instant::now());
        self.version.fetch_add(1, Ordering::AcqRel);
        let observers: SmallVec<[_; 1]> = {
            let observers = self.observers.lock();
            let alive = |(observer, next): &Observer| Some((observer.upgrade()?, *next));
            observers.iter().filter_map(alive).collect()
        };
        for (observer, next) in observers {
            observer.note_change(next);
        }
        isolated(|| self.notify.notify_waiters());
    }
}

impl Subscriptions {
    /// Joins the channel; requests the subscription unless that was already done.
    pub(crate) fn subscribe(self: &Arc<Self>, name: &Arc<str>) -> Listener {
        let mut channels = self.channels.lock();
        let channel = channels.join(name);
        let listener = Listener {
            subscriptions: Arc::clone(self),
            name: Arc::clone(name),
            signal: Arc::clone(&channel.signal),
        };
        if channel.phase == Phase::Wanted {
            self.changed.notify_one();
        }
        listener
    }

    /// Whether the server has confirmed this client's own subscription to a channel.
    pub(crate) fn is_confirmed(&self, name: &str) -> bool {
        let channels = self.channels.lock();
        let channel = channels.all.get(name);
        channel.is_some_and(|channel| channel.phase == Phase::Confirmed)
    }

    /// Channels in the registry, lingering ones included.
    pub(crate) fn len(&self) -> usize {
        self.channels.lock().all.len()
    }

    /// Waits until a channel becomes wanted, or unwanted.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    pub(crate) fn take_wanted(&self, max: usize) -> Vec<Arc<str>> {
        let mut channels = self.channels.lock();
        let mut taken = Vec::new();
        while taken.len() < max
            && let Some(name) = channels.wanted.pop_first()
        {
            if let Some(channel) = channels.all.get_mut(&name) {
                channel.phase = Phase::Asked;
            }
            taken.push(name);
        }
        taken
    }

    pub(crate) fn take_unwanted(&self, max: usize) -> Vec<Arc<str>> {
        let now = Instant::now();
        let mut channels = self.channels.lock();
        let idle = channels.idle.iter();
        let unwanted: Vec<_> = idle
            .take_while(|(since, _)| *since + LINGER <= now)
            .take(max)
            .map(|(_, name)| Arc::clone(name))
            .collect();
        for name in &unwanted {
            channels.remove(name);
        }
        unwanted
    }

    /// When the first unused subscription ends: the subscriber sleeps until then, or until it is notified.
    pub(crate) fn next_unwanted(&self) -> Option<Instant> {
        let mut channels = self.channels.lock();
        channels.looks_at = channels.idle.first().map(|(since, _)| *since + LINGER);
        channels.looks_at
    }

    /// The server confirmed the subscription. Every waiter attempts again: a message may have been
    /// missed before.
    pub(crate) fn subscribed(&self, name: &str) {
        let confirmed = {
            let mut channels = self.channels.lock();
            let channel = channels.all.get_mut(name);
            channel
                .filter(|channel| channel.phase == Phase::Asked)
                .map(|channel| {
                    channel.phase = Phase::Confirmed;
                    channel.signal.confirmed.fetch_add(1, Ordering::AcqRel);
                    Arc::clone(&channel.signal)
                })
        };
        confirmed.iter().for_each(|signal| signal.bump());
    }

    /// The server refused the subscription: its waiters get the reason.
    pub(crate) fn refused(&self, name: &str, cause: &Cause) {
        let removed = self.channels.lock().remove(name);
        if let Some(channel) = removed {
            let _ = channel.signal.refused.set(cause.clone());
            channel.signal.bump();
        }
    }

    /// What a connection tells of what it hears.
    pub(crate) fn hearing(self: &Arc<Self>) -> MessageSink {
        let this = Arc::clone(self);
        Arc::new(move |event| match event {
            PubSubEvent::Message(channel) => this.message(&channel),
            // The server says so of sharded channels alone.
            PubSubEvent::Unsubscribed(_) => {}
            #[cfg(feature = "test-util")]
            PubSubEvent::Missed(_) => this.missed_of(|_| true),
            #[cfg(feature = "test-util")]
            PubSubEvent::End => {}
        })
    }

    pub(crate) fn message(&self, name: &str) {
        let signal = self.signals(|channels| channels.get(name).map(Channel::signal));
        signal.iter().for_each(|signal| signal.bump());
    }

    /// Messages may have been missed on these channels.
    pub(crate) fn missed_of(&self, is_one: impl Fn(&str) -> bool) {
        let signals: Vec<_> = self.signals(|channels| {
            let these = channels.iter().filter(|(name, _)| is_one(name));
            these.map(|(_, channel)| channel.signal()).collect()
        });
        signals.iter().for_each(|signal| signal.bump());
    }

    /// Signals are taken out of the registry, and their waiters woken when its mutex is free: a waker
    /// is not our code.
    fn signals<T>(&self, take: impl FnOnce(&BTreeMap<Arc<str>, Channel>) -> T) -> T {
        take(&self.channels.lock().all)
    }

    /// The client is closed: unused channels are dropped, and none lingers from now on.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Release);
        self.channels.lock().remove_unused();
    }

    /// Why nothing can be confirmed at the moment, as far as that is known.
    fn problem(&self) -> Option<Box<Cause>> {
        let problem = self.problem.lock().clone();
        problem.or_else(|| Some(Cause::at(self.server.lock().as_ref()?, UNCONFIRMED)))
    }

    pub(crate) fn set_problem(&self, problem: Option<Box<Cause>>) {
        *self.problem.lock() = problem;
    }

    pub(crate) fn set_server(&self, server: &Arc<str>) {
        *self.server.lock() = Some(Arc::clone(server));
    }

    /// The server has forgotten these channels, or another one has taken them over: those in use are wanted
    /// again, the rest is forgotten.
    pub(crate) fn forgotten(&self, names: impl IntoIterator<Item = Arc<str>>) {
        let mut channels = self.channels.lock();
        for name in names {
            channels.forgotten(name);
        }
        self.changed.notify_one();
    }

    /// The connection is gone: channels in use are wanted again, the rest is forgotten.
    pub(crate) fn disconnected(&self) {
        let mut channels = self.channels.lock();
        channels.remove_unused();
        let ByName { all, wanted, .. } = &mut *channels;
        for (name, channel) in all {
            channel.phase = Phase::Wanted;
            wanted.insert(Arc::clone(name));
        }
    }
}

impl Channel {
    fn signal(&self) -> Arc<Signal> {
        Arc::clone(&self.signal)
    }
}

/// One waiter's share of a channel; dropping it leaves the channel.
pub(crate) struct Listener {
    subscriptions: Arc<Subscriptions>,
    name: Arc<str>,
    signal: Arc<Signal>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut channels = self.subscriptions.channels.lock();
        let Some(channel) = channels.all.get_mut(&self.name) else {
            return;
        };
        // A refused channel may have been replaced by a new one of the same name.
        if !Arc::ptr_eq(&channel.signal, &self.signal) {
            return;
        }
        channel.users -= 1;
        if channel.users > 0 {
            return;
        }
        if self.subscriptions.over.load(Ordering::Acquire) {
            channels.remove(&self.name);
        } else {
            let now = Instant::now();
            channel.idle_since = Some(now);
            channels.idle.insert((now, Arc::clone(&self.name)));
            if channels.looks_at.is_none() {
                channels.looks_at = Some(now + LINGER);
                self.subscriptions.changed.notify_one();
            }
        }
    }
}

pub(crate) const UNCONFIRMED: &str = "the subscription was not confirmed";

/// How long a subscription outlives its last waiter.
const LINGER: Duration = Duration::from_secs(1);

/// The subscription of one waiter to this kind alone.
#[cfg(test)]
fn subscribe(subscriptions: &Arc<Subscriptions>, name: &Arc<str>) -> Subscription {
    subscriptions.subscribe(name).into()
}

#[cfg(test)]
mod rules;

#[cfg(test)]
mod tests;

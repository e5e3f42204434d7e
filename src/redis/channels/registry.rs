//! Which channels have listeners, and where each is subscribed to.
//!
//! The first listener makes a channel wanted; the subscription lingers for a while after the last one has left, because a
//! contended lock is likely to be contended again soon. A message only increases a count, so every waiter sees it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, ReentrantMutex, ReentrantMutexGuard};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::signal::Signal;
use crate::error::Cause;
use crate::names::wire::Announce;
use crate::redis::transport::Delivery;

/// The channels of a client.
#[derive(Default)]
pub(crate) struct Channels {
    /// How releases are announced, once that is known.
    announce: OnceLock<Announce>,
    /// How long a server elsewhere has for its confirmation.
    elsewhere_max: OnceLock<Duration>,
    /// Held while a command about a channel is written: none overtakes another. A waker that is called meanwhile may come
    /// back here.
    writing: ReentrantMutex<()>,
    pub(super) listed: Mutex<Listed>,
    /// There is something to do for the task that subscribes and unsubscribes.
    pub(super) changed: Notify,
    /// The client is closed: no channel lingers.
    over: AtomicBool,
}

/// A channel, and how its messages are delivered.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::redis) struct ChannelPart {
    pub(in crate::redis) delivery: Delivery,
    pub(in crate::redis) name: Arc<str>,
}

/// The way of the scripts of a channel's lock: the slot in a cluster, and the number of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::redis) struct ChannelRoute {
    pub(in crate::redis) group: u16,
    pub(in crate::redis) lane: usize,
}

/// A connection of a client: the number of its server, and its number among those to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::redis) struct LaneId {
    pub(in crate::redis) node: u16,
    pub(in crate::redis) nth: usize,
}

/// A channel that is to be subscribed to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::redis) struct ChannelRequest {
    pub(in crate::redis) part: ChannelPart,
    pub(in crate::redis) route: ChannelRoute,
    /// At another server than its lock's, which counts who listens.
    pub(in crate::redis) is_elsewhere: bool,
}

#[derive(Default)]
pub(super) struct Listed {
    classic: BTreeMap<Arc<str>, Channel>,
    sharded: BTreeMap<Arc<str>, Channel>,
    /// Those in [`Phase::Wanted`].
    pub(super) wanted: BTreeSet<ChannelPart>,
    /// There may be some that can be asked for now.
    pub(super) is_due: bool,
    /// When the first of those is to be asked for again.
    pub(super) again_at: Option<Instant>,
    /// Those without a listener, by the time when the last one left.
    pub(super) idle: BTreeSet<(Instant, ChannelPart)>,
    /// When the task looks for those. It stays when one of them is used again: the next comes soon, and need not wake the task.
    pub(super) looks_at: Option<Instant>,
    /// Those that are wanted elsewhere and not confirmed, by the time since when.
    pub(super) elsewhere: BTreeSet<(Instant, ChannelPart)>,
    /// How many times a channel was asked for.
    requests: u64,
}

pub(super) struct Channel {
    route: ChannelRoute,
    pub(super) phase: Phase,
    listeners: usize,
    /// When the last listener left.
    idle_since: Option<Instant>,
    pub(super) is_elsewhere: bool,
    /// Before it is asked for again, if it is refused for a moment again.
    pause: Duration,
    /// Since when it waits for a server elsewhere.
    pub(super) elsewhere_since: Option<Instant>,
    signal: Arc<Signal>,
}

#[derive(Clone, Copy)]
pub(super) enum Phase {
    /// Not to be asked for before this.
    Wanted(Option<Instant>),
    Asked {
        lane: LaneId,
        number: u64,
    },
    Confirmed(LaneId),
    /// The command that ends the subscription is about to be sent. Those who come meanwhile want it again afterwards.
    Leaving,
}

impl Phase {
    pub(super) fn lane(self) -> Option<LaneId> {
        match self {
            Self::Asked { lane, .. } | Self::Confirmed(lane) => Some(lane),
            Self::Wanted(_) | Self::Leaving => None,
        }
    }
}

impl Listed {
    fn all(&mut self, delivery: Delivery) -> &mut BTreeMap<Arc<str>, Channel> {
        match delivery {
            Delivery::Classic => &mut self.classic,
            Delivery::Sharded => &mut self.sharded,
        }
    }

    pub(super) fn get(&mut self, part: &ChannelPart) -> Option<&mut Channel> {
        self.all(part.delivery).get_mut(&part.name)
    }

    /// All of them.
    pub(super) fn each(&self) -> impl Iterator<Item = (ChannelPart, &Channel)> {
        let part = |delivery| {
            move |name: &Arc<str>| ChannelPart {
                delivery,
                name: Arc::clone(name),
            }
        };
        let (classic, sharded) = (part(Delivery::Classic), part(Delivery::Sharded));
        let classic = self
            .classic
            .iter()
            .map(move |(name, it)| (classic(name), it));
        classic.chain(
            self.sharded
                .iter()
                .map(move |(name, it)| (sharded(name), it)),
        )
    }

    /// The channels at this connection.
    fn at(&self, lane: LaneId) -> Vec<ChannelPart> {
        let there = self.each().filter(|(_, it)| it.phase.lane() == Some(lane));
        there.map(|(part, _)| part).collect()
    }

    pub(super) fn request(&mut self, part: &ChannelPart) -> Option<ChannelRequest> {
        let channel = self.get(part)?;
        let (route, is_elsewhere) = (channel.route, channel.is_elsewhere);
        Some(ChannelRequest {
            part: part.clone(),
            route,
            is_elsewhere,
        })
    }

    fn want(&mut self, part: &ChannelPart, not_before: Option<Instant>) {
        let now = Instant::now();
        let Some(channel) = self.get(part) else {
            return;
        };
        channel.phase = Phase::Wanted(not_before);
        channel.signal.is_confirmed.store(false, Ordering::Release);
        let is_new = channel.is_elsewhere && channel.elsewhere_since.is_none();
        if is_new {
            channel.elsewhere_since = Some(now);
            self.elsewhere.insert((now, part.clone()));
        }
        self.wanted.insert(part.clone());
        if let Some(at) = not_before {
            self.again_at = Some(self.again_at.map_or(at, |known| known.min(at)));
        }
    }

    /// It is not subscribed to any more: it is wanted again if it is in use.
    pub(super) fn forgotten(&mut self, part: &ChannelPart, not_before: Option<Instant>) {
        match self.get(part).map(|channel| channel.listeners) {
            Some(0) => _ = self.remove(part),
            Some(_) => {
                self.is_due |= not_before.is_none();
                self.want(part, not_before);
            }
            None => {}
        }
    }

    pub(super) fn remove(&mut self, part: &ChannelPart) -> Option<Channel> {
        let channel = self.all(part.delivery).remove(&part.name)?;
        self.wanted.remove(part);
        if let Some(since) = channel.idle_since {
            self.idle.remove(&(since, part.clone()));
        }
        self.not_elsewhere(part, channel.elsewhere_since);
        Some(channel)
    }

    fn not_elsewhere(&mut self, part: &ChannelPart, since: Option<Instant>) {
        if let Some(since) = since {
            self.elsewhere.remove(&(since, part.clone()));
        }
    }
}

impl Channels {
    /// From now on releases are announced so.
    pub(in crate::redis) fn set_announce(&self, announce: Announce, command_timeout: Duration) {
        // They are set once.
        _ = self.announce.set(announce);
        _ = self
            .elsewhere_max
            .set(ELSEWHERE_MAX.min(command_timeout / 4));
    }

    /// How long a server elsewhere has for its confirmation.
    pub(super) fn elsewhere_max(&self) -> Duration {
        self.elsewhere_max.get().copied().unwrap_or(ELSEWHERE_MAX)
    }

    /// From here on commands about channels are written by this thread alone, until this is dropped.
    pub(in crate::redis) fn writing(&self) -> ReentrantMutexGuard<'_, ()> {
        self.writing.lock()
    }

    /// How releases are announced.
    pub(crate) fn announce(&self) -> Announce {
        self.announce.get().copied().unwrap_or(Announce::Classic)
    }

    /// Joins a channel. If it is new, the caller asks for it.
    pub(super) fn join_part(
        &self,
        part: &ChannelPart,
        route: ChannelRoute,
    ) -> (Arc<Signal>, Option<ChannelRequest>) {
        let mut listed = self.listed.lock();
        let is_elsewhere = self.is_elsewhere(part.delivery);
        let mut is_new = false;
        let channel = listed.all(part.delivery).entry(Arc::clone(&part.name));
        let channel = channel.or_insert_with(|| {
            is_new = true;
            Channel {
                route,
                phase: Phase::Wanted(None),
                listeners: 0,
                idle_since: None,
                is_elsewhere,
                pause: AGAIN_AFTER,
                elsewhere_since: None,
                signal: Arc::default(),
            }
        });
        channel.listeners += 1;
        let (signal, idle_since) = (Arc::clone(&channel.signal), channel.idle_since.take());
        if let Some(since) = idle_since {
            listed.idle.remove(&(since, part.clone()));
        }
        if !is_new {
            return (signal, None);
        }
        listed.want(part, None);
        if is_elsewhere && listed.elsewhere.len() == 1 {
            // Its server may be silent.
            self.changed.notify_one();
        }
        (signal, listed.request(part))
    }

    /// Whether a channel is subscribed to at another server than its lock's: who releases asks that one whether anyone
    /// listens, and publishes to all of a cluster only then. This client hears of it by the sharded channel.
    pub(super) fn is_elsewhere(&self, delivery: Delivery) -> bool {
        delivery == Delivery::Classic && self.announce() == Announce::Auto
    }

    /// A listener leaves.
    pub(super) fn leave(&self, part: &ChannelPart, signal: &Arc<Signal>) {
        let mut listed = self.listed.lock();
        let Some(channel) = listed.get(part) else {
            return;
        };
        // A refused channel may have been replaced by a new one of the same name.
        if !Arc::ptr_eq(&channel.signal, signal) {
            return;
        }
        channel.listeners -= 1;
        if channel.listeners > 0 {
            return;
        }
        if self.over.load(Ordering::Acquire) {
            listed.remove(part);
            return;
        }
        let now = Instant::now();
        channel.idle_since = Some(now);
        listed.idle.insert((now, part.clone()));
        if listed.looks_at.is_none() {
            listed.looks_at = Some(now + LINGER);
            self.changed.notify_one();
        }
    }

    /// A channel is about to be asked for over this connection. Returns the number of the request. `None`: it is not
    /// wanted any more, or was asked for by another.
    pub(in crate::redis) fn asked(&self, part: &ChannelPart, lane: LaneId) -> Option<u64> {
        let mut listed = self.listed.lock();
        let number = listed.requests + 1;
        let channel = listed.get(part)?;
        if !matches!(channel.phase, Phase::Wanted(_)) {
            return None;
        }
        if channel.listeners == 0 {
            listed.remove(part);
            return None;
        }
        channel.phase = Phase::Asked { lane, number };
        listed.requests = number;
        listed.wanted.remove(part);
        Some(number)
    }

    /// The server has confirmed what was asked for with this number.
    pub(in crate::redis) fn confirmed(&self, part: &ChannelPart, number: u64) {
        let signal = {
            let mut listed = self.listed.lock();
            let Some(channel) = listed.get(part).filter(|channel| channel.is_asked(number)) else {
                return;
            };
            if let Phase::Asked { lane, .. } = channel.phase {
                channel.phase = Phase::Confirmed(lane);
            }
            channel.pause = AGAIN_AFTER;
            channel.signal.is_confirmed.store(true, Ordering::Release);
            let (signal, since) = (Arc::clone(&channel.signal), channel.elsewhere_since.take());
            listed.not_elsewhere(part, since);
            signal
        };
        signal.confirm();
    }

    /// The server refuses what was asked for with this number: those who listen get the reason.
    pub(in crate::redis) fn refused(&self, part: &ChannelPart, number: u64, cause: Cause) {
        let removed = {
            let mut listed = self.listed.lock();
            let is_it = listed
                .get(part)
                .is_some_and(|channel| channel.is_asked(number));
            is_it.then(|| listed.remove(part)).flatten()
        };
        if let Some(channel) = removed {
            channel.signal.is_confirmed.store(false, Ordering::Release);
            _ = channel.signal.refused.set(cause);
            channel.signal.bump();
        }
    }

    /// What was asked for with this number was not confirmed, and may be another time.
    pub(in crate::redis) fn failed(
        &self,
        part: &ChannelPart,
        number: u64,
        problem: Option<Box<Cause>>,
    ) {
        let mut listed = self.listed.lock();
        let Some(channel) = listed.get(part).filter(|channel| channel.is_asked(number)) else {
            return;
        };
        if problem.is_some() {
            *channel.signal.problem.lock() = problem;
        }
        let pause = channel.pause;
        channel.pause = AGAIN_MAX.min(2 * pause);
        listed.forgotten(part, Some(Instant::now() + pause));
        self.changed.notify_one();
    }

    /// The connection over which it was asked for with this number has ended so.
    pub(in crate::redis) fn unanswered(
        &self,
        part: &ChannelPart,
        number: u64,
        problem: Box<Cause>,
    ) {
        let mut listed = self.listed.lock();
        if let Some(channel) = listed.get(part).filter(|channel| channel.is_asked(number)) {
            *channel.signal.problem.lock() = Some(problem);
        }
    }

    /// The server has ended the subscription to a sharded channel. `false`: it was this client that did.
    pub(in crate::redis) fn ended(&self, lane: LaneId, name: &str) -> bool {
        let mut listed = self.listed.lock();
        let part = ChannelPart {
            delivery: Delivery::Sharded,
            name: name.into(),
        };
        let is_it =
            |channel: &mut Channel| matches!(channel.phase, Phase::Confirmed(at) if at == lane);
        let is_lost = listed.get(&part).is_some_and(is_it);
        if is_lost {
            // Its slot has another server, as the map is about to hear.
            listed.forgotten(&part, Some(Instant::now() + AGAIN_AFTER));
            self.changed.notify_one();
        }
        is_lost
    }

    /// A connection has ended, and with it what was subscribed to over it.
    pub(in crate::redis) fn lane_lost(&self, lane: LaneId) {
        let mut listed = self.listed.lock();
        for part in listed.at(lane) {
            if let Some(channel) = listed.get(&part) {
                channel.is_elsewhere = self.is_elsewhere(part.delivery);
            }
            listed.forgotten(&part, None);
        }
        self.changed.notify_one();
    }

    /// There is a new connection.
    pub(in crate::redis) fn lane_up(&self) {
        let mut listed = self.listed.lock();
        if listed.wanted.is_empty() {
            return;
        }
        // What the last connection has cost need not wait.
        for part in listed.wanted.clone() {
            if let Some(channel) = listed.get(&part) {
                channel.phase = Phase::Wanted(None);
            }
        }
        listed.is_due = true;
        self.changed.notify_one();
    }

    /// Whether channels are subscribed to over a connection, or about to be.
    pub(in crate::redis) fn uses(&self, lane: LaneId) -> bool {
        let listed = self.listed.lock();
        let mut all = listed.each();
        all.any(|(_, channel)| channel.phase.lane() == Some(lane))
    }

    /// There is a message on a channel.
    pub(in crate::redis) fn message(&self, delivery: Delivery, name: &str) {
        let signal = {
            let mut listed = self.listed.lock();
            let channel = listed.all(delivery).get(name);
            channel.map(|channel| Arc::clone(&channel.signal))
        };
        // Those who listen are woken when the registry is free: a waker is not this crate's code.
        if let Some(signal) = signal {
            signal.bump();
        }
    }

    /// Messages may have been missed on these channels.
    pub(crate) fn missed_of(&self, is_one: impl Fn(&str) -> bool) {
        let signals: Vec<_> = {
            let listed = self.listed.lock();
            let these = listed.each().filter(|(part, _)| is_one(&part.name));
            these
                .map(|(_, channel)| Arc::clone(&channel.signal))
                .collect()
        };
        signals.iter().for_each(|signal| signal.bump());
    }

    /// How many of those who hear of a release this client is itself, outside of a cluster.
    pub(crate) fn own_listeners(&self, name: &str) -> u32 {
        let listed = self.listed.lock();
        let channel = listed.classic.get(name);
        let is_confirmed = |channel: &Channel| matches!(channel.phase, Phase::Confirmed(_));
        channel.is_some_and(is_confirmed).into()
    }

    /// Channels with listeners, lingering ones included.
    pub(crate) fn len(&self) -> usize {
        let listed = self.listed.lock();
        listed.classic.len().max(listed.sharded.len())
    }

    /// The client is closed: unused channels are dropped, and none lingers from now on.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Release);
        let mut listed = self.listed.lock();
        for (_, part) in std::mem::take(&mut listed.idle) {
            listed.remove(&part);
        }
    }
}

impl Channel {
    fn is_asked(&self, by: u64) -> bool {
        matches!(self.phase, Phase::Asked { number, .. } if number == by)
    }

    /// It is being unsubscribed from, where it is subscribed to. `None`: nowhere.
    pub(super) fn leaves(&mut self) -> Option<LaneId> {
        let lane = self.phase.lane()?;
        self.phase = Phase::Leaving;
        self.signal.is_confirmed.store(false, Ordering::Release);
        Some(lane)
    }
}

/// How long a subscription outlives its last listener.
pub(super) const LINGER: Duration = Duration::from_secs(1);

/// Before a channel that was refused for a moment, or whose slot has moved, is asked for again.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// The pause doubles up to this.
const AGAIN_MAX: Duration = Duration::from_secs(1);

/// A server that has not confirmed by then a channel that could be subscribed to at another one may hang.
const ELSEWHERE_MAX: Duration = Duration::from_millis(250);

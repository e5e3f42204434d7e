//! The network in front of the simulated server: pipes of commands and answers, events, and what is
//! late.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use redisson_lock::test_util::Reply;
use tokio::time::Instant;

use super::cluster::Cluster;
use super::command::Command;
use super::connection::Arrived;
use super::keyspace::Stored;
use super::lua::Interpreter;
use super::rights::{self, Rights};
use super::server::APPLIED_LATE_MS;

/// How long things take on the way, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub struct Latency {
    pub least: u64,
    pub usual: u64,
    pub seldom: u64,
    /// Of a hundred.
    pub seldom_percent: u8,
}

impl Latency {
    pub(super) fn roll(self, rng: &mut Rng) -> Duration {
        let most = if rng.u8(0..100) < self.seldom_percent {
            self.seldom
        } else {
            self.usual
        };
        Duration::from_millis(rng.u64(self.least..=most))
    }
}

/// Everything between the clients and the data.
pub(super) struct Network {
    /// One for each server.
    pub(super) lua: Vec<Interpreter>,
    /// Of several servers.
    pub(super) cluster: Option<Cluster>,
    pub(super) latency: Latency,
    pub(super) wires: BTreeMap<u64, Wire>,
    pub(super) events: BinaryHeap<Reverse<(Instant, u32, u64, Event)>>,
    pub(super) rng: Rng,
    pub(super) serials: u64,
    /// Ids start again when the server does.
    pub(super) next_id: i64,
    /// How often each client has connected.
    pub(super) opened: BTreeMap<usize, u64>,
    /// Clients whose scripts stay on their way, whatever the connection.
    pub(super) scripts_held: BTreeSet<usize>,
    /// Clients whose changes of channels stay on their way, and with them what is behind.
    pub(super) subscriptions_held: BTreeSet<usize>,
    /// Clients whose changes of channels are not answered any more.
    pub(super) unconfirmed: BTreeSet<usize>,
    /// Late commands are executed when a trace says so.
    pub(super) by_hand: bool,
    /// What a lost connection had not delivered is never executed.
    pub(super) nothing_is_late: bool,
    /// The server does nothing until it is resumed, and its connections stay.
    pub(super) paused: bool,
    /// How many of the next scripts cost their connection instead of being answered.
    pub(super) replies_to_lose: u32,
    /// The server does nothing before this, and its connections stay.
    pub(super) frozen_until: Instant,
    /// Nobody gets a connection to this server before this.
    pub(super) down_until: Vec<Instant>,
    /// How many of a hundred answers their callers find late, each by itself.
    pub(super) late_percent: u8,
    /// Of each client; all of them, if it has no entry.
    pub(super) rights: BTreeMap<usize, Rights>,
    /// How many replicas have what was written.
    pub(super) replicas: u32,
    /// What comes to this client takes so much longer.
    pub(super) delayed: BTreeMap<usize, Duration>,
    /// The next acquire or guarded write of this client, if it comes by then, is handed over so much later.
    pub(super) suspended: BTreeMap<usize, (Instant, Duration)>,
    /// Messages to this client are lost until then.
    pub(super) deaf_until: BTreeMap<usize, Instant>,
    /// Connections may ask for reports of changes.
    pub(super) reports: bool,
    /// Servers know the older version of the protocol alone.
    pub(super) is_old: bool,
    /// What a connection publishes it hears after the reply, as from newer servers, and not before.
    pub(super) own_is_last: bool,
    /// The connection whose command is executed, and what it hears after the reply.
    pub(super) executing: Option<u64>,
    pub(super) deferred: Vec<What>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// The next command of a connection reaches the server.
    Execute(u64),
    /// The next answer or message of a connection reaches its client.
    Deliver(u64),
    /// A late command is executed.
    Late(u64, u64),
}

/// One connection.
pub(super) struct Wire {
    pub(super) client: usize,
    /// The server that it leads to.
    pub(super) node: usize,
    /// The next command is about a slot that its server takes over.
    pub(super) asking: bool,
    /// It speaks the newer version of the protocol.
    pub(super) is_new: bool,
    pub(super) id: i64,
    pub(super) address: String,
    /// The client's end is open, and it would be told if it were not.
    pub(super) connected: bool,
    /// Bytes pass in both directions.
    pub(super) passes: bool,
    /// Commands, or answers, stay where they are: a trace says when they go on.
    pub(super) commands_held: bool,
    pub(super) answers_held: bool,
    pub(super) commands: VecDeque<Written>,
    pub(super) answers: VecDeque<Outgoing>,
    /// Commands of a cut connection, by number: they may be executed until the connection is
    /// killed.
    pub(super) late: BTreeMap<u64, Written>,
    pub(super) channels: BTreeSet<String>,
    pub(super) shard_channels: BTreeSet<String>,
    pub(super) arrived: Arc<Arrived>,
    pub(super) rng: Rng,
    /// Each key that it has read, as it was then. `None`: it gets no reports of changes.
    pub(super) tracking: Option<BTreeMap<String, Option<Stored>>>,
}

/// A connection as its client gets it.
pub(super) struct Opened {
    pub(super) serial: u64,
    pub(super) arrived: Arc<Arrived>,
}

pub(super) type Answered = Result<Reply, String>;

pub(super) struct Written {
    pub(super) command: Command,
    pub(super) arrives_at: Instant,
}

pub(super) struct Outgoing {
    pub(super) what: What,
    pub(super) arrives_at: Instant,
}

pub(super) enum What {
    Answer(Answered),
    Push(Vec<Reply>),
}

/// A push about a channel.
pub(super) fn about(kind: &str, channel: &str, last: Reply) -> What {
    let text = |text: &str| Reply::Text(text.to_owned());
    What::Push(vec![text(kind), text(channel), last])
}

impl Network {
    pub(super) fn schedule(&mut self, at: Instant, event: Event) {
        self.serials += 1;
        let tie = self.rng.u32(..);
        self.events.push(Reverse((at, tie, self.serials, event)));
    }

    pub(super) fn may_call(&self, serial: u64, command: &str) -> bool {
        let rights = self.rights.get(&self.wires[&serial].client);
        rights.is_none_or(|rights| rights.may_call(command))
    }

    /// The reply to PING: a list beside channels, in the older version of the protocol.
    pub(super) fn pong(&self, serial: u64, text: String) -> Reply {
        let wire = &self.wires[&serial];
        let listens = !wire.channels.is_empty() || !wire.shard_channels.is_empty();
        match listens && !wire.is_new {
            true => Reply::List(vec![Reply::Text("pong".to_owned()), Reply::Text(text)]),
            false => Reply::Text(text),
        }
    }

    /// What a node of a cluster says of it.
    pub(super) fn of_cluster(
        &self,
        serial: u64,
        said: impl Fn(&Cluster, usize) -> Reply,
    ) -> Answered {
        match &self.cluster {
            Some(cluster) => Ok(said(cluster, self.wires[&serial].node)),
            None => Err("ERR This instance has cluster support disabled".to_owned()),
        }
    }

    /// Whether a server has been taken over from, and does not know it.
    pub(super) fn is_stale(&self, node: usize, keys: &[String]) -> bool {
        let Some(cluster) = &self.cluster else {
            return false;
        };
        keys.iter().any(|key| !cluster.counts(node, key))
    }

    pub(super) fn answer(&mut self, serial: u64, answered: Answered) {
        self.send(serial, What::Answer(answered), Duration::ZERO);
    }

    pub(super) fn send(&mut self, serial: u64, what: What, after: Duration) {
        let latency = self.latency;
        let Some(wire) = self
            .wires
            .get_mut(&serial)
            .filter(|wire| wire.connected && wire.passes)
        else {
            return;
        };
        let delay = self.delayed.get(&wire.client).copied().unwrap_or_default();
        let arrives_at = Instant::now() + latency.roll(&mut wire.rng) + delay + after;
        wire.answers.push_back(Outgoing { what, arrives_at });
        if wire.answers.len() == 1 {
            self.schedule(arrives_at, Event::Deliver(serial));
        }
    }

    /// How many connections to a server are subscribed to each channel, and to each sharded one.
    pub(super) fn listeners(&self, node: usize) -> [BTreeMap<String, i64>; 2] {
        let mut counts = [BTreeMap::new(), BTreeMap::new()];
        for wire in self.wires.values().filter(|wire| wire.node == node) {
            for (counts, channels) in counts
                .iter_mut()
                .zip([&wire.channels, &wire.shard_channels])
            {
                for channel in channels {
                    *counts.entry(channel.clone()).or_default() += 1;
                }
            }
        }
        counts
    }

    /// Every server hears it.
    pub(super) fn publish(&mut self, channel: &str) {
        self.tell("message", channel, |wire| wire.channels.contains(channel));
    }

    /// Those who listen at this server hear it.
    pub(super) fn publish_in_shard(&mut self, node: usize, channel: &str) {
        self.tell("smessage", channel, |wire| {
            wire.node == node && wire.shard_channels.contains(channel)
        });
    }

    pub(super) fn tell(&mut self, kind: &str, channel: &str, hears: impl Fn(&Wire) -> bool) {
        let now = Instant::now();
        let deaf = |client: usize| {
            self.deaf_until
                .get(&client)
                .is_some_and(|&until| now < until)
        };
        let listening: Vec<u64> = self
            .wires
            .iter()
            .filter(|(_, wire)| hears(wire) && !deaf(wire.client))
            .map(|(&serial, _)| serial)
            .collect();
        for serial in listening {
            let message = about(kind, channel, Reply::Text("0".to_owned()));
            match self.own_is_last && self.executing == Some(serial) {
                true => self.deferred.push(message),
                false => self.send(serial, message, Duration::ZERO),
            }
        }
    }

    /// SUBSCRIBE, UNSUBSCRIBE, and their sharded forms.
    pub(super) fn change_channel(&mut self, serial: u64, name: &str, channel: String) {
        if let Some(text) = self.refused_change(serial, name, &channel) {
            return self.answer(serial, Err(text));
        }
        let Some(wire) = self.wires.get_mut(&serial) else {
            return;
        };
        let channels = match name {
            "subscribe" | "unsubscribe" => &mut wire.channels,
            _ => &mut wire.shard_channels,
        };
        match name {
            "subscribe" | "ssubscribe" => _ = channels.insert(channel.clone()),
            _ => _ = channels.remove(&channel),
        }
        let count = Reply::Number(channels.len() as i64);
        if !self.unconfirmed.contains(&wire.client) {
            self.send(serial, about(name, &channel, count), Duration::ZERO);
        }
    }

    /// A server that has given a slot away ends the subscriptions to its sharded channels, and says so.
    pub(super) fn end_subscriptions(&mut self) {
        let Some(cluster) = &self.cluster else { return };
        let mut ended = Vec::new();
        for (&serial, wire) in &mut self.wires {
            let node = wire.node;
            wire.shard_channels.retain(|channel| {
                let stays = cluster.elsewhere(node, channel).is_none();
                if !stays {
                    ended.push((serial, channel.clone()));
                }
                stays
            });
        }
        for (serial, channel) in ended {
            let ended = about("sunsubscribe", &channel, Reply::Number(0));
            self.send(serial, ended, Duration::ZERO);
        }
    }

    fn refused_change(&self, serial: u64, name: &str, channel: &str) -> Option<String> {
        if !self.may_call(serial, name) {
            return Some(rights::no_command(name));
        }
        let wire = &self.wires[&serial];
        let rights = self.rights.get(&wire.client);
        // What was subscribed to was permitted.
        let begins = ["subscribe", "ssubscribe"].contains(&name);
        if begins && rights.is_some_and(|rights| !rights.may_use(channel)) {
            return Some(rights::no_channel());
        }
        let is_sharded = ["ssubscribe", "sunsubscribe"].contains(&name);
        let cluster = self.cluster.as_ref().filter(|_| is_sharded)?;
        cluster.elsewhere(wire.node, channel)
    }

    /// How late a reader finds what has arrived.
    pub(super) fn read_late(&mut self) -> Duration {
        let is_late = self.late_percent > 0 && self.rng.u8(0..200) < self.late_percent;
        let late = if is_late {
            self.rng.u64(0..APPLIED_LATE_MS)
        } else {
            0
        };
        Duration::from_millis(late)
    }

    /// CLIENT KILL: nothing of that connection is executed any more.
    pub(super) fn kill(&mut self, id: i64, address: &str) -> i64 {
        let meant = |wire: &Wire| wire.id == id && (address.is_empty() || wire.address == address);
        let Some(serial) = self
            .wires
            .iter()
            .find(|(_, wire)| meant(wire))
            .map(|(&serial, _)| serial)
        else {
            return 0;
        };
        self.cut(serial, true);
        self.wires.remove(&serial);
        1
    }

    pub(super) fn cut_all(&mut self) {
        let serials: Vec<u64> = self.wires.keys().copied().collect();
        for serial in serials {
            self.cut(serial, true);
        }
    }

    pub(super) fn cut(&mut self, serial: u64, reported: bool) {
        let Some(wire) = self.wires.get_mut(&serial) else {
            return;
        };
        wire.passes = false;
        wire.answers.clear();
        wire.channels.clear();
        wire.shard_channels.clear();
        if reported {
            wire.connected = false;
            wire.arrived.end();
        }
        for written in std::mem::take(&mut wire.commands) {
            self.make_late(serial, written);
        }
        self.wires
            .retain(|_, wire| wire.connected || !wire.late.is_empty());
    }

    /// From now on it is executed at some moment, or never.
    pub(super) fn make_late(&mut self, serial: u64, written: Written) {
        if self.nothing_is_late {
            return;
        }
        let roll = if self.by_hand { 2 } else { self.rng.u8(0..8) };
        let wait = match roll {
            0 | 1 => return,
            2 => 0,
            3 | 4 => self.rng.u64(0..50),
            5 | 6 => self.rng.u64(0..2_000),
            _ => self.rng.u64(0..20_000),
        };
        self.serials += 1;
        let number = self.serials;
        if let Some(wire) = self.wires.get_mut(&serial) {
            wire.late.insert(number, written);
            if self.by_hand {
                return;
            }
            self.schedule(
                Instant::now() + Duration::from_millis(wait),
                Event::Late(serial, number),
            );
        }
    }
}

//! Several nodes of one cluster: who has which slot, who has not heard of it yet, where a key is, and
//! how all that changes.

mod changes;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use redisson_lock::test_util::{self, Reply};
use tokio::time::Instant;

use super::keyspace::Keyspace;

/// Who has which slot, as somebody sees it.
#[derive(Debug, Clone)]
pub(super) struct Slots {
    epoch: u64,
    /// Where each range begins, and who has it.
    starts: BTreeMap<u16, usize>,
}

impl Slots {
    fn owner(&self, slot: u16) -> usize {
        let before = self.starts.range(..=slot).next_back();
        *before.expect("there is a first range").1
    }

    fn set(&mut self, slot: u16, node: usize) {
        if slot < LAST {
            let next = self.owner(slot + 1);
            self.starts.entry(slot + 1).or_insert(next);
        }
        self.starts.insert(slot, node);
    }

    /// As `CLUSTER SLOTS` answers.
    fn shown(&self) -> Reply {
        let ends = self.starts.keys().skip(1).map(|start| start - 1);
        let ranges = self.starts.iter().zip(ends.chain([LAST]));
        let range = |((&first, &node), last): ((&u16, &usize), u16)| {
            let (host, port) = address(node);
            let server = vec![
                Reply::Text(host),
                Reply::Number(port.into()),
                Reply::Text(id(node)),
            ];
            Reply::List(vec![
                Reply::Number(first.into()),
                Reply::Number(last.into()),
                Reply::List(server),
            ])
        };
        Reply::List(ranges.map(range).collect())
    }
}

/// Where a node listens.
pub(super) fn address(node: usize) -> (String, u16) {
    ("node".to_owned(), FIRST_PORT + node as u16)
}

/// The identity of a node.
fn id(node: usize) -> String {
    format!("{node:040}")
}

/// Which node listens there.
pub(super) fn node_at(port: u16) -> usize {
    usize::from(port - FIRST_PORT)
}

/// What the nodes of a cluster agree on, and who has not heard of it.
pub(super) struct Cluster {
    slots: Slots,
    /// What a node still sees, and until when.
    behind: BTreeMap<usize, (Instant, Slots)>,
    /// A slot that moves key by key, and where to.
    moving: Option<(u16, usize)>,
    /// Nodes that once had a slot. It does not come back: a copy that is still on its way there would be
    /// executed, which is a documented limit.
    past: BTreeSet<(u16, usize)>,
    /// What the replica of a node has, from the moment it was cut off.
    replica: Option<(usize, Keyspace)>,
    /// No slot is served before this.
    down_until: Instant,
}

/// A lock whose server was taken over from: field and count before and after, and when each runs out.
#[derive(Debug)]
pub struct Promoted {
    pub key: String,
    pub before: Option<(String, i64)>,
    pub after: Option<(String, i64)>,
    pub expiry_before: Option<u64>,
    pub expiry_after: Option<u64>,
}

impl Cluster {
    /// Two primaries, and a node without slots.
    pub(super) fn new() -> Self {
        let slots = Slots {
            epoch: 1,
            starts: BTreeMap::from([(0, 0), (SECOND, 1)]),
        };
        Self {
            slots,
            behind: BTreeMap::new(),
            moving: None,
            past: BTreeSet::new(),
            replica: None,
            down_until: Instant::now(),
        }
    }

    fn seen_by(&self, node: usize) -> &Slots {
        match self.behind.get(&node) {
            Some((until, slots)) if Instant::now() < *until => slots,
            Some(_) | None => &self.slots,
        }
    }

    /// Whether what a node has of a key is what counts.
    pub(super) fn counts(&self, node: usize, key: &str) -> bool {
        let slot = test_util::slot_of(key);
        self.slots.owner(slot) == node || self.moving == Some((slot, node))
    }

    /// What a node answers to a command with these keys instead of executing it.
    pub(super) fn refuses(
        &self,
        node: usize,
        keys: &[String],
        asking: bool,
        has: impl Fn(&str) -> bool,
    ) -> Option<String> {
        if Instant::now() < self.down_until {
            return Some("CLUSTERDOWN The cluster is down".to_owned());
        }
        let first = test_util::slot_of(keys.first()?);
        if keys.iter().any(|key| test_util::slot_of(key) != first) {
            return Some("CROSSSLOT Keys in request don't hash to the same slot".to_owned());
        }
        let owner = self.seen_by(node).owner(first);
        let target = self.moving.filter(|(slot, _)| *slot == first);
        let there = |word: &str, node: usize| {
            let (host, port) = address(node);
            Some(format!("{word} {first} {host}:{port}"))
        };
        match target {
            _ if owner != node && target != Some((first, node)) => there("MOVED", owner),
            Some((_, to)) if to == node && !asking => there("MOVED", owner),
            Some((_, to)) if to != node => {
                let missing = keys.iter().filter(|key| !has(key)).count();
                match missing {
                    0 => None,
                    _ if missing == keys.len() => there("ASK", to),
                    _ => Some("TRYAGAIN Multiple keys request during rehashing of slot".to_owned()),
                }
            }
            // It does not know what is still to come.
            Some(_)
                if keys
                    .iter()
                    .any(|key| *key != keys[0] && !(has(key) && has(&keys[0]))) =>
            {
                Some("TRYAGAIN Multiple keys request during rehashing of slot".to_owned())
            }
            Some(_) | None => None,
        }
    }

    /// What a node answers about a sharded channel whose slot it does not have.
    pub(super) fn elsewhere(&self, node: usize, channel: &str) -> Option<String> {
        if Instant::now() < self.down_until {
            return Some("CLUSTERDOWN The cluster is down".to_owned());
        }
        let slot = test_util::slot_of(channel);
        let owner = self.seen_by(node).owner(slot);
        let (host, port) = address(owner);
        (owner != node).then(|| format!("MOVED {slot} {host}:{port}"))
    }

    /// `CLUSTER INFO`.
    pub(super) fn info(&self, node: usize) -> Reply {
        let state = match Instant::now() < self.down_until {
            true => "fail",
            false => "ok",
        };
        let epoch = self.seen_by(node).epoch;
        Reply::Text(format!(
            "cluster_state:{state}\r\ncluster_current_epoch:{epoch}\r\n"
        ))
    }

    /// `CLUSTER MYID`.
    pub(super) fn id(&self, node: usize) -> Reply {
        Reply::Text(id(node))
    }

    /// `CLUSTER SLOTS`.
    pub(super) fn shown(&self, node: usize) -> Reply {
        self.seen_by(node).shown()
    }

    /// Whether nothing else is changing.
    fn is_settled(&self) -> bool {
        let now = Instant::now();
        let behind = self.behind.values().any(|(until, _)| now < *until);
        self.moving.is_none() && self.replica.is_none() && !behind
    }

    fn may_take(&self, slot: u16, node: usize) -> bool {
        self.slots.owner(slot) != node && !self.past.contains(&(slot, node))
    }

    fn give(&mut self, slot: u16, to: usize, gossip: Gossip) {
        let from = self.slots.owner(slot);
        self.past.insert((slot, from));
        let before = self.slots.clone();
        self.slots.set(slot, to);
        self.slots.epoch += u64::from(gossip.new_epoch);
        for node in (0..NODES).filter(|node| ![from, to].contains(node)) {
            let until = Instant::now() + gossip.within;
            self.behind.insert(node, (until, before.clone()));
        }
    }
}

/// How the other nodes hear of a slot's new owner.
#[derive(Debug, Clone, Copy)]
pub struct Gossip {
    pub within: Duration,
    /// The new owner begins an epoch, unless it was in the newest one already.
    pub new_epoch: bool,
}

/// Two primaries and the one that may take over from either.
pub const NODES: usize = 3;

const SPARE: usize = NODES - 1;

const FIRST_PORT: u16 = 7_000;

const LAST: u16 = 16_383;

/// The first slot of the second primary, between those of the simulator's two locks.
const SECOND: u16 = 2_048;

//! What befalls servers: drawn from a seed, done to whichever topology there is.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use fastrand::Rng;
use test_support::Server;

use crate::oracle::{Broken, Outage, Slots};
use crate::watch::{Ear, Node, Switch};

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A primary is killed, and started again when another has taken over.
    Kill,
    /// The same, with replicas that have not heard of the last holds.
    KillUnreplicated,
    /// A primary stands still for a while, shorter or longer than a failover takes.
    Stop,
    /// An operator has a replica take over.
    PlannedFailover,
    /// Primaries lose the connections to their replicas.
    CutReplicas,
    /// A replica stands still for a while.
    StopReplica,
    /// A hash slot goes to another primary with all that is in it.
    MoveAtOnce,
    /// The same, key by key under load.
    MoveByKey,
    /// A sentinel stands still, and lies behind afterwards.
    StopSentinel,
}

/// A fault with everything that chance has a say in.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    pub kind: Kind,
    /// Says which server or hash slot is meant, modulo how many there are.
    pub target: usize,
    pub other: usize,
    /// For how long it lasts, where that is not up to the servers.
    pub length: Duration,
    /// Until the next one.
    pub pause: Duration,
}

/// Deals the faults of a topology: each kind once, in another order each time.
pub struct Schedule {
    rng: Rng,
    kinds: &'static [Kind],
    deck: Vec<Kind>,
}

impl Schedule {
    pub fn new(seed: u64, kinds: &'static [Kind]) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            kinds,
            deck: Vec::new(),
        }
    }

    pub fn next(&mut self) -> Fault {
        if self.deck.is_empty() {
            self.deck.extend(self.kinds);
            self.rng.shuffle(&mut self.deck);
        }
        let kind = self.deck.pop().unwrap_or(Kind::Kill);
        Fault {
            kind,
            target: self.rng.usize(..1 << 20),
            other: self.rng.usize(..1 << 20),
            // Every third one is too short for a failover.
            length: Duration::from_millis(match self.rng.u32(..3) {
                0 => self.rng.u64(100..900),
                _ => self.rng.u64(900..4_500),
            }),
            pause: Duration::from_millis(self.rng.u64(300..1_500)),
        }
    }
}

/// What a fault has come to.
#[derive(Default)]
pub struct Done {
    /// In words.
    pub what: String,
    /// Who has taken over as was to be expected.
    pub switch: Option<Switch>,
    /// Whether that must not lose anything.
    pub loses_nothing: bool,
    /// A server to be started again when the takeover has been judged.
    pub dead: Option<Node>,
    pub outages: Vec<Outage>,
}

/// A primary with its replicas.
pub struct Shard {
    pub primary: Node,
    pub replicas: Vec<Node>,
    pub slots: Slots,
}

impl Shard {
    pub fn lacks(&self, broken: Broken, from: Instant, until: Option<Instant>) -> Outage {
        Outage::new(broken, &self.slots, from, until)
    }
}

/// Servers that are made to fail.
pub trait Servers: Send {
    fn url(&self) -> String;
    fn kinds(&self) -> &'static [Kind];
    fn server(&mut self, nth: usize) -> &mut Server;
    /// What is heard of the servers.
    fn ear(&mut self) -> &mut Ear;
    /// The primary that a fault is meant for.
    fn shard(&self, target: usize) -> Result<Shard, String>;
    /// Does what this topology does in its own way; `slot` is that of a lock.
    fn inject_own(&mut self, fault: &Fault, shard: &Shard, slot: u16) -> Result<Done, String>;
    /// Answers with what is not as it should be.
    fn is_whole(&self) -> Result<(), String>;
    /// The hash slots, each with the port of its primary.
    fn routes(&self) -> Result<Vec<(RangeInclusive<u16>, u16)>, String>;
    /// All replicas of a primary, when everything is whole.
    fn replicas(&self) -> u32;
}

/// The ports of all primaries.
pub fn primaries(routes: &[(RangeInclusive<u16>, u16)]) -> BTreeSet<u16> {
    routes.iter().map(|(_, port)| *port).collect()
}

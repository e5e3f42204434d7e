//! A cluster of real servers for one test, and what happens to clusters.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use crate::server::{Control, Server, has_listener};
use crate::{eventually, ms};

/// Three primaries, each with a replica if asked for. Node `n + 3` is the first replica of node `n`.
pub struct Cluster {
    nodes: Vec<Node>,
}

struct Node {
    server: Server,
    id: String,
}

/// After that long without an answer a node counts as failed.
pub const NODE_TIMEOUT: Duration = Duration::from_secs(1);

impl Cluster {
    pub async fn start(replicas: bool) -> Self {
        Self::start_with(replicas, &[]).await
    }

    pub async fn start_with(replicas: bool, settings: &[&str]) -> Self {
        Self::start_on(false, replicas, settings, 0).await
    }

    /// Without replicas, whose nodes have a port for TLS too, over which they talk with each other if the settings say
    /// so.
    pub async fn start_with_tls(settings: &[&str]) -> Self {
        Self::start_on(true, false, settings, 0).await
    }

    /// Three primaries of which another one has the first third of the slots.
    pub async fn start_shifted(shift: usize) -> Self {
        Self::start_on(false, false, &[], shift).await
    }

    async fn start_on(tls: bool, replicas: bool, settings: &[&str], shift: usize) -> Self {
        let count = if replicas { 6 } else { 3 };
        let nodes: Vec<Node> = (0..count).map(|_| Node::start(tls, settings)).collect();
        let cluster = Self { nodes };
        for (nth, range) in [(0, 5460), (5461, 10922), (10923, 16383)]
            .iter()
            .enumerate()
        {
            let mut control = cluster.control((nth + shift) % 3);
            // Redis 6.2 knows no ranges.
            let numbers: Vec<String> = (range.0..=range.1)
                .map(|slot: u16| slot.to_string())
                .collect();
            let mut words = vec!["CLUSTER", "ADDSLOTS"];
            words.extend(numbers.iter().map(String::as_str));
            control.run(&words);
        }
        cluster.introduce(0).await;
        for nth in 3..count {
            let primary = cluster.nodes[nth - 3].id.clone();
            let replicate = || {
                let words = ["CLUSTER", "REPLICATE", &primary];
                cluster.control(nth).try_run(&words).is_ok()
            };
            eventually("a replica knows its primary", ms(10_000), replicate).await;
        }
        let synced = |nth: usize| {
            cluster
                .info(nth, "REPLICATION")
                .contains("master_link_status:up")
        };
        for nth in 3..count {
            eventually("a replica has its data", ms(20_000), || synced(nth)).await;
        }
        cluster.works().await;
        if replicas {
            let known = |nth: usize| {
                let nodes = cluster.control(nth).run(&["CLUSTER", "NODES"]);
                nodes.matches(" slave ").count() + nodes.matches(",slave ").count() == 3
            };
            for nth in 0..count {
                eventually("everybody knows the replicas", ms(10_000), || known(nth)).await;
            }
        }
        cluster
    }

    /// Makes the nodes from this one on known to the first. It forgets one that does not answer within the node timeout,
    /// so MEET is repeated.
    async fn introduce(&self, from: usize) {
        for nth in from..self.nodes.len() {
            // Nodes that meet in the same epoch fight about it.
            let epoch = (nth + 1).to_string();
            let _ = self
                .control(nth)
                .try_run(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]);
        }
        let mut meets_at = Instant::now();
        eventually("the nodes know each other", ms(20_000), || {
            if (0..self.nodes.len()).all(|nth| self.knows_all(nth)) {
                return true;
            }
            if meets_at <= Instant::now() {
                meets_at = Instant::now() + ms(2_000);
                for node in self.nodes.iter().skip(from.max(1)) {
                    let port = node.server.tls_port.unwrap_or(node.server.port).to_string();
                    self.control(0)
                        .run(&["CLUSTER", "MEET", "127.0.0.1", &port]);
                }
            }
            false
        })
        .await;
    }

    fn knows_all(&self, nth: usize) -> bool {
        let nodes = self.control(nth).run(&["CLUSTER", "NODES"]);
        let is_known = |line: &&str| line.contains(" connected") && !line.contains("handshake");
        nodes.lines().filter(is_known).count() == self.nodes.len()
    }

    /// Waits until every running node sees the cluster working.
    pub async fn works(&self) {
        for nth in 0..self.nodes.len() {
            eventually("the cluster works", ms(20_000), || self.is_working(nth)).await;
        }
    }

    pub fn is_working(&self, nth: usize) -> bool {
        let info = self.control(nth).run(&["CLUSTER", "INFO"]);
        info.contains("cluster_state:ok")
    }

    /// Adds an empty primary; answers its number.
    pub async fn add_primary(&mut self) -> usize {
        self.nodes.push(Node::start(false, &[]));
        let nth = self.nodes.len() - 1;
        self.introduce(nth).await;
        eventually("it works", ms(10_000), || self.is_working(nth)).await;
        nth
    }

    /// Gives an empty node another identity, and makes it known to the others again.
    pub async fn reset_hard(&mut self, nth: usize) {
        let old = self.nodes[nth].id.clone();
        self.control(nth).run(&["CLUSTER", "RESET", "HARD"]);
        for other in (0..self.nodes.len()).filter(|other| *other != nth) {
            self.control(other).run(&["CLUSTER", "FORGET", &old]);
        }
        self.nodes[nth].id = self.control(nth).run(&["CLUSTER", "MYID"]);
        self.introduce(nth).await;
        eventually("it works", ms(10_000), || self.is_working(nth)).await;
    }

    /// How many connections of a client of this name have carried a script last.
    pub fn script_connections(&self, nth: usize, name: &str) -> usize {
        let list = self.control(nth).run(&["CLIENT", "LIST"]);
        let name = format!(" name={name} ");
        let lines = list.lines().filter(|line| line.contains(&name));
        lines.filter(|line| line.contains(" cmd=eval")).count()
    }

    pub fn url(&self) -> String {
        let ports: Vec<u16> = self.nodes.iter().map(|node| node.server.port).collect();
        let rest: Vec<String> = ports[1..]
            .iter()
            .map(|port| format!("node=127.0.0.1:{port}"))
            .collect();
        format!("redis-cluster://127.0.0.1:{}?{}", ports[0], rest.join("&"))
    }

    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub fn port(&self, nth: usize) -> u16 {
        self.nodes[nth].server.port
    }

    pub fn tls_port(&self, nth: usize) -> u16 {
        self.nodes[nth].server.tls_port.expect("started with one")
    }

    pub fn server(&mut self, nth: usize) -> &mut Server {
        &mut self.nodes[nth].server
    }

    pub fn control(&self, nth: usize) -> Control {
        self.nodes[nth].server.control()
    }

    fn info(&self, nth: usize, section: &str) -> String {
        self.control(nth).run(&["INFO", section])
    }

    /// Whether somebody listens for releases of this lock, at whichever node.
    pub fn has_listener(&self, key: &str) -> bool {
        let mut nodes = (0..self.nodes.len()).filter_map(|nth| self.try_control(nth));
        nodes.any(|mut control| has_listener(&mut control, key))
    }

    /// The node that has the slot of this key, as the first node that answers says.
    pub fn owner(&self, key: &str) -> usize {
        let slot = slot(key);
        self.owner_of_slot(slot)
    }

    pub fn owner_of_slot(&self, slot: u16) -> usize {
        // One that is slow answers a later question.
        let mut nodes = (0..10).flat_map(|_| 0..self.nodes.len());
        nodes
            .find(|&nth| self.has(nth, slot))
            .expect("a node has it")
    }

    fn has(&self, nth: usize, slot: u16) -> bool {
        self.slots(nth).is_some_and(|slots| is_in(&slots, slot))
    }

    /// The slots of a primary, by its own word. `None`: it does not answer, or is none.
    fn slots(&self, nth: usize) -> Option<Vec<RangeInclusive<u16>>> {
        let nodes = self.try_control(nth)?.try_run(&["CLUSTER", "NODES"]).ok()?;
        let own = nodes.lines().find(|line| line.contains("myself,master"))?;
        let ranges = own.split(' ').skip(8).filter_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            // A slot on its way is written otherwise: `[93-<-id]`.
            Some(first.parse().ok()?..=last.parse().ok()?)
        });
        Some(ranges.collect())
    }

    fn try_control(&self, nth: usize) -> Option<Control> {
        let client = redis::Client::open(self.nodes[nth].server.url()).ok()?;
        let connection = client
            .get_connection_with_timeout(Duration::from_millis(300))
            .ok()?;
        let _ = connection.set_read_timeout(Some(Duration::from_millis(300)));
        Some(Control { connection })
    }

    /// A key of a slot that this node has.
    pub fn key_at(&self, nth: usize, name: &str) -> String {
        // One that is slow answers a later question.
        let slots = (0..10).find_map(|_| self.slots(nth));
        let slots = slots.expect("the node answers and is still a primary");
        assert!(!slots.is_empty(), "node {nth} has no slots");
        let mut keys = (0..).map(|salt| format!("{name}:{salt}"));
        keys.find(|key| is_in(&slots, slot(key))).expect("a key")
    }

    /// Begins to move a slot: both sides know, no key has gone yet.
    pub fn begin_to_move(&self, slot: u16, from: usize, to: usize) {
        let number = slot.to_string();
        let (source, target) = (self.nodes[from].id.clone(), self.nodes[to].id.clone());
        let importing = ["CLUSTER", "SETSLOT", &number, "IMPORTING", &source];
        self.control(to).run(&importing);
        let migrating = ["CLUSTER", "SETSLOT", &number, "MIGRATING", &target];
        self.control(from).run(&migrating);
    }

    /// Moves the keys that are in the slot now.
    pub fn move_keys(&self, slot: u16, from: usize, to: usize) {
        let (number, port) = (slot.to_string(), self.port(to).to_string());
        let mut control = self.control(from);
        let keys = control.run(&["CLUSTER", "GETKEYSINSLOT", &number, "1000"]);
        for key in keys.split(' ').filter(|key| !key.is_empty()) {
            // It may have been released meanwhile.
            control.run(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
        }
    }

    /// Hands the slot over. What was released into it under way is moved first.
    pub fn end_move(&self, slot: u16, from: usize, to: usize) {
        let (number, target) = (slot.to_string(), self.nodes[to].id.clone());
        let words = ["CLUSTER", "SETSLOT", &number, "NODE", &target];
        self.control(to).run(&words);
        self.move_keys(slot, from, to);
        self.control(from).run(&words);
        for nth in (0..self.nodes.len()).filter(|nth| *nth != from && *nth != to) {
            // A replica learns it from its primary.
            if let Some(mut control) = self.try_control(nth) {
                let _ = control.try_run(&words);
            }
        }
    }

    /// Moves a slot with all its keys.
    pub fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_to_move(slot, from, to);
        self.move_keys(slot, from, to);
        self.end_move(slot, from, to);
    }

    /// Makes a replica the primary, as an operator does; waits until it is.
    pub async fn fail_over_to(&self, replica: usize) {
        self.control(replica).run(&["CLUSTER", "FAILOVER"]);
        self.is_primary(replica, ms(10_000)).await;
    }

    pub async fn is_primary(&self, nth: usize, time_limit: Duration) {
        let is_primary = || {
            self.try_control(nth)
                .and_then(|mut control| control.try_run(&["ROLE"]).ok())
                .is_some_and(|role| role.starts_with("master"))
        };
        eventually("the replica is the primary", time_limit, is_primary).await;
    }

    /// Everything that is in any primary, as `key` per node.
    pub fn keys(&self) -> Vec<String> {
        let mut keys = Vec::new();
        for nth in 0..self.nodes.len() {
            let Some(mut control) = self.try_control(nth) else {
                continue;
            };
            let is_primary = control
                .try_run(&["ROLE"])
                .is_ok_and(|role| role.starts_with("master"));
            if is_primary {
                let found = control.run(&["KEYS", "*"]);
                keys.extend(
                    found
                        .split(' ')
                        .filter(|key| !key.is_empty())
                        .map(str::to_owned),
                );
            }
        }
        keys
    }
}

impl Node {
    fn start(tls: bool, settings: &[&str]) -> Self {
        let timeout = NODE_TIMEOUT.as_millis().to_string();
        let mut words = vec![
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            &timeout,
            "--repl-diskless-sync-delay",
            "0",
        ];
        words.extend(settings);
        // A port without room for that of the bus, ten thousand above, costs another try.
        let server = Server::start_on(tls, &words);
        let id = server.control().run(&["CLUSTER", "MYID"]);
        Self { server, id }
    }
}

fn is_in(slots: &[RangeInclusive<u16>], slot: u16) -> bool {
    slots.iter().any(|range| range.contains(&slot))
}

/// The slot of a key: the CRC16 of the part in the first braces, or of all of it.
pub fn slot(key: &str) -> u16 {
    let bytes = key.as_bytes();
    let tag = bytes
        .iter()
        .position(|byte| *byte == b'{')
        .and_then(|open| {
            let inside = &bytes[open + 1..];
            let close = inside.iter().position(|byte| *byte == b'}')?;
            (close > 0).then(|| &inside[..close])
        });
    let crc = tag.unwrap_or(bytes).iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            }
        })
    });
    crc % 16_384
}

//! Nodes of a cluster that report what a test wants: old maps, old epochs, lies that last, nothing at all.
//!
//! Each is a proxy in front of a plain server of its own, which executes the scripts. The proxy answers what
//! is about the cluster, and sends clients on that ask for slots of other nodes.

use std::sync::{Arc, Mutex, MutexGuard};

use crate::cluster::slot;
use crate::proxy::{Proxy, Scripted};
use crate::server::{Control, Server};

/// Three nodes, each with a third of the slots, unless a test changes what they report.
pub struct FakeCluster {
    nodes: Vec<FakeNode>,
}

struct FakeNode {
    server: Server,
    proxy: Proxy,
    /// Another address of the same server.
    alias: Proxy,
    view: Arc<Mutex<NodeView>>,
}

/// What a node reports, and how it serves.
#[derive(Clone)]
pub struct NodeView {
    pub id: String,
    pub epoch: u64,
    /// Which node has the slots from each of these on, in ascending order. The first is 0.
    pub owners: Vec<(u16, usize)>,
    /// Identity and port of each node, as it names them.
    pub nodes: Vec<(String, u16)>,
    /// Slots whose clients it sends to these nodes, whatever its table says.
    pub moved: Vec<(u16, usize)>,
    /// Slots that it sends on with ASK.
    pub ask: Vec<(u16, usize)>,
    /// Text in the names of sharded channels that it refuses, and what it says.
    pub refused_channel: Option<(&'static str, &'static str)>,
    /// What it answers to a question about sharded channels, of which Redis 6.2 knows nothing.
    pub no_shards: Option<&'static str>,
    /// It accepts connections and does not respond.
    pub silent: bool,
    /// Its user may ask for the identity of the node.
    pub may_ask_id: bool,
    /// Number of this node.
    itself: usize,
}

impl NodeView {
    fn owner(&self, slot: u16) -> usize {
        let moved = self.moved.iter().find(|(moved, _)| *moved == slot);
        let owners = self.owners.iter().rev();
        let by_table = owners.clone().find(|(first, _)| *first <= slot);
        moved.or(by_table).expect("the first is 0").1
    }

    /// One slot more has another owner.
    pub fn give(&mut self, slot: u16, to: usize) {
        let next = self.owner(slot + 1);
        self.owners
            .retain(|(first, _)| ![slot, slot + 1].contains(first));
        self.owners.extend([(slot, to), (slot + 1, next)]);
        self.owners.sort_unstable();
    }

    fn slots(&self) -> String {
        let ends = self.owners[1..].iter().map(|(first, _)| first - 1);
        let ranges = self.owners.iter().zip(ends.chain([16_383]));
        let range = |((first, owner), last): (&(u16, usize), u16)| {
            let (id, port) = &self.nodes[*owner];
            format!("{{{first},{last},{{'127.0.0.1',{port},'{id}'}}}}")
        };
        let ranges: Vec<_> = ranges.map(range).collect();
        format!("return {{{}}}", ranges.join(","))
    }

    fn react(&self, words: &[String], asking: bool) -> Scripted {
        let word = |nth: usize| words.get(nth).map_or("", |word| word);
        if self.silent {
            return Scripted::Silence;
        }
        match (word(0), word(1)) {
            ("CLUSTER", "INFO") => Scripted::Answer(format!(
                "return 'cluster_state:ok\\r\\ncluster_current_epoch:{}\\r\\n'",
                self.epoch
            )),
            ("CLUSTER", "MYID") if self.may_ask_id => {
                Scripted::Answer(format!("return '{}'", self.id))
            }
            ("CLUSTER", "MYID") => error("NOPERM this user has no permissions to run it"),
            ("CLUSTER", "SLOTS") => Scripted::Answer(self.slots()),
            ("PUBSUB", "SHARDNUMSUB") => self.no_shards.map_or(Scripted::Pass, error),
            ("SSUBSCRIBE", channel) => match self.refused_channel {
                Some((part, said)) if channel.contains(part) => Scripted::Refuse(said.to_owned()),
                _ => Scripted::Pass,
            },
            ("ASKING", _) => Scripted::Answer("return redis.status_reply('OK')".to_owned()),
            ("EVAL" | "EVALSHA", _) if word(2) != "0" => self.serve(slot(word(3)), asking),
            _ => Scripted::Pass,
        }
    }

    fn serve(&self, slot: u16, asking: bool) -> Scripted {
        let there = |kind: &str, owner: usize| {
            let port = self.nodes[owner].1;
            error(&format!("{kind} {slot} 127.0.0.1:{port}"))
        };
        if let Some((_, to)) = self.ask.iter().find(|(asked, _)| *asked == slot) {
            return there("ASK", *to);
        }
        match self.owner(slot) {
            owner if owner == self.itself || asking => Scripted::Pass,
            owner => there("MOVED", owner),
        }
    }
}

impl FakeCluster {
    pub async fn start() -> Self {
        Self::start_named("").await
    }

    /// The same with other identities.
    pub async fn start_named(name: &str) -> Self {
        let mut nodes = Vec::new();
        for _ in 0..3 {
            let server = Server::start();
            let (proxy, alias) = (
                Proxy::start(server.port).await,
                Proxy::start(server.port).await,
            );
            nodes.push((server, proxy, alias));
        }
        let known: Vec<_> = (0..3)
            .zip(&nodes)
            .map(|(nth, (_, proxy, _))| (format!("{name:a<39}{nth}"), proxy.port))
            .collect();
        let nodes = (0..3).zip(nodes).map(|(nth, (server, proxy, alias))| {
            let view = NodeView {
                id: known[nth].0.clone(),
                epoch: 3,
                owners: vec![(0, 0), (5_461, 1), (10_923, 2)],
                nodes: known.clone(),
                moved: Vec::new(),
                ask: Vec::new(),
                refused_channel: None,
                no_shards: None,
                silent: false,
                may_ask_id: true,
                itself: nth,
            };
            let view = Arc::new(Mutex::new(view));
            for proxy in [&proxy, &alias] {
                let (view, asking) = (Arc::clone(&view), Mutex::new(false));
                proxy.script(move |words| {
                    let is_asking = words[0] == "ASKING";
                    let asked = std::mem::replace(&mut *lock(&asking), is_asking);
                    lock(&view).react(words, asked)
                });
            }
            FakeNode {
                server,
                proxy,
                alias,
                view,
            }
        });
        Self {
            nodes: nodes.collect(),
        }
    }

    /// An address that begins with this node.
    pub fn url_from(&self, first: usize) -> String {
        let port = |nth: usize| self.nodes[nth % 3].proxy.port;
        let (one, two) = (port(first + 1), port(first + 2));
        format!(
            "redis-cluster://127.0.0.1:{}?node=127.0.0.1:{one}&node=127.0.0.1:{two}",
            port(first)
        )
    }

    /// Changes what a node reports.
    pub fn change_at(&self, nth: usize, change: impl FnOnce(&mut NodeView)) {
        change(&mut lock(&self.nodes[nth].view));
    }

    /// Changes what all nodes report.
    pub fn change(&self, mut change: impl FnMut(&mut NodeView)) {
        (0..self.nodes.len()).for_each(|nth| self.change_at(nth, &mut change));
    }

    pub fn proxy(&self, nth: usize) -> &Proxy {
        &self.nodes[nth].proxy
    }

    /// Another address of the same server.
    pub fn alias(&self, nth: usize) -> &Proxy {
        &self.nodes[nth].alias
    }

    /// From now on a node hangs: it keeps its connections, and does not respond.
    pub fn hang(&self, nth: usize) {
        self.change_at(nth, |view| view.silent = true);
        let node = &self.nodes[nth];
        node.proxy.hold_replies(true);
        node.alias.hold_replies(true);
    }

    /// The data of a node.
    pub fn control(&self, nth: usize) -> Control {
        self.nodes[nth].server.control()
    }

    /// A lock whose slot a node has.
    pub fn key_at(&self, nth: usize, name: &str) -> String {
        let view = lock(&self.nodes[nth].view);
        let mut keys = (0..).map(|salt| format!("{name}:{salt}"));
        keys.find(|key| view.owner(slot(key)) == nth)
            .expect("a key")
    }
}

fn error(text: &str) -> Scripted {
    Scripted::Answer(format!("return redis.error_reply(\"{text}\")"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("unpoisoned")
}

//! Servers of a scenario's own: a cluster, or a primary and its replicas behind sentinels.

use redisson_lock::Announce;
use test_support::{Cluster, Control, SERVICE, Sentinels, eventually, has_listener, ms};

use crate::party::Several;
use crate::stored::Queue;

/// Which servers a scenario is played on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topology {
    One,
    /// Three primaries, each with a replica.
    Cluster,
    /// A primary and two replicas behind three sentinels.
    Sentinel,
}

impl Topology {
    /// The word for it on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Cluster => "cluster",
            Self::Sentinel => "sentinel",
        }
    }
}

pub enum Servers {
    Cluster(Cluster),
    Sentinels(Sentinels),
}

impl Servers {
    pub async fn start(topology: Topology) -> Self {
        match topology {
            Topology::Sentinel => Self::Sentinels(Sentinels::start().await),
            Topology::One | Topology::Cluster => {
                // So that replicas do not replace a primary that is merely slow on a busy machine.
                let settings = [
                    "--cluster-announce-ip",
                    "127.0.0.1",
                    "--cluster-node-timeout",
                    "15000",
                ];
                Self::Cluster(Cluster::start_with(true, &settings).await)
            }
        }
    }

    /// The addresses that each side is given. `is_old`: this Redisson subscribes to classic channels only.
    pub fn several(&self, topology: Topology, is_old: bool) -> Several {
        let kind = topology.word();
        match self {
            Self::Cluster(cluster) => Several {
                rust: cluster.url(),
                java: format!("redis://127.0.0.1:{}", cluster.port(0)),
                kind,
                name: String::new(),
                announce: match is_old && knows_sharded(&mut cluster.control(0)) {
                    true => Announce::Both,
                    false => Announce::Auto,
                },
            },
            Self::Sentinels(sentinels) => Several {
                rust: sentinels.url(),
                java: sentinels.addresses(),
                kind,
                name: SERVICE.to_owned(),
                announce: Announce::Auto,
            },
        }
    }

    /// A name at each primary.
    pub fn names(&self, name: &str) -> Vec<String> {
        match self {
            Self::Cluster(cluster) => (0..3).map(|nth| cluster.key_at(nth, name)).collect(),
            Self::Sentinels(_) => vec![name.to_owned()],
        }
    }

    /// A connection to the primary that has this lock, as long as nothing has moved.
    pub fn control(&self, name: &str) -> Control {
        match self {
            Self::Cluster(cluster) => cluster.control(cluster.owner(name)),
            Self::Sentinels(sentinels) => sentinels.control(0),
        }
    }

    /// Waits until a client has subscribed to the unlock channel, classic or sharded, at any node.
    pub async fn wait_for_waiter(&self, name: &str) {
        let home = &mut self.control(name);
        let (what, limit) = ("a client has subscribed", ms(20_000));
        match (self, name.starts_with("fair/")) {
            (Self::Cluster(cluster), true) => {
                let nodes = (0..cluster.len()).map(|nth| cluster.control(nth));
                let mut nodes: Vec<_> = nodes.collect();
                Queue::of(name).waits_in(home, &mut nodes, 1).await;
            }
            (Self::Sentinels(_), true) => Queue::of(name).waits(home, 1).await,
            (Self::Cluster(cluster), false) => {
                eventually(what, limit, || cluster.has_listener(name)).await;
            }
            (Self::Sentinels(_), false) => {
                eventually(what, limit, || has_listener(home, name)).await;
            }
        }
        // The second attempt, after subscribing.
        tokio::time::sleep(ms(50)).await;
    }
}

/// Before Redis 7.0 there are no sharded channels.
pub fn knows_sharded(control: &mut Control) -> bool {
    control.try_run(&["PUBSUB", "SHARDNUMSUB"]).is_ok()
}

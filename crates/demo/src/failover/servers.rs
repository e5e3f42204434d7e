//! The servers of the locks, and how they are cut off and fail over.

use std::time::Duration;

use test_support::{Cluster, SERVICE, Sentinels, Server, eventually};

use super::{LOCK, Where};

/// The servers of the locks.
pub enum Servers {
    Cluster(Cluster, usize),
    Sentinel(Sentinels),
}

impl Servers {
    pub async fn start(topology: Where) -> Self {
        match topology {
            Where::Cluster => {
                let cluster = Cluster::start(true).await;
                let primary = cluster.owner(LOCK);
                Self::Cluster(cluster, primary)
            }
            Where::Sentinel => Self::Sentinel(Sentinels::start().await),
        }
    }

    pub fn url(&self) -> String {
        match self {
            Self::Cluster(cluster, _) => cluster.url(),
            Self::Sentinel(sentinels) => sentinels.url(),
        }
    }

    /// The primary of the lock.
    fn primary(&mut self) -> &mut Server {
        match self {
            Self::Cluster(cluster, primary) => cluster.server(*primary),
            Self::Sentinel(sentinels) => sentinels.server(0),
        }
    }

    fn each_replica(&mut self, mut visit: impl FnMut(&mut Server)) {
        match self {
            Self::Cluster(cluster, primary) => visit(cluster.server(*primary + 3)),
            Self::Sentinel(sentinels) => (1..3).for_each(|nth| visit(sentinels.server(nth))),
        }
    }

    /// Whether every replica has what the primary has said so far.
    pub fn replicas_know_all(&mut self) -> bool {
        let offset = |server: &mut Server, name: &str| {
            let info = server.control().run(&["INFO", "REPLICATION"]);
            let line = info.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|offset| offset.trim().parse::<u64>().ok())
        };
        let said = offset(self.primary(), "master_repl_offset:");
        let mut know_all = said.is_some();
        self.each_replica(|replica| know_all &= offset(replica, "slave_repl_offset:") >= said);
        know_all
    }

    /// From here on no replica hears anything.
    pub fn cut(&mut self) {
        self.each_replica(|replica| replica.pause());
        let mut control = self.primary().control();
        control.run(&["CLIENT", "KILL", "TYPE", "replica"]);
    }

    /// Kills the primary and has a replica take over. Then it is started again, with nothing in it: not before
    /// every client has heard of the other one, or some would go on using it.
    pub async fn fail_over(&mut self) {
        self.primary().kill();
        self.each_replica(|replica| replica.resume());
        let dead = self.primary().port.to_string();
        match self {
            Self::Cluster(cluster, primary) => cluster.is_primary(*primary + 3, TAKEN_OVER).await,
            Self::Sentinel(sentinels) => {
                let announced = |nth| {
                    let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE];
                    let address = sentinels
                        .sentinel(nth)
                        .and_then(|mut one| one.try_run(&words).ok());
                    address.is_some_and(|address| !address.ends_with(&dead))
                };
                eventually("a failover is announced", TAKEN_OVER, || {
                    (0..3).all(announced)
                })
                .await;
                tokio::time::sleep(HEARD).await;
            }
        }
        self.primary().start_again();
    }
}

/// A replica has taken over by then.
const TAKEN_OVER: Duration = Duration::from_secs(30);

/// How long after the announcement every client has received it.
const HEARD: Duration = Duration::from_secs(2);

//! A cluster in the place of the server of a test.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use redisson_lock::{LockClient, LockClientBuilder};
use tokio::runtime::Handle;

use crate::cluster::Cluster;
use crate::kinds::is_token;
use crate::server::Control;
use crate::test_server::leaks;
use crate::{eventually, ms};

/// Three primaries, used as a [`TestServer`](crate::TestServer) is: its server is the one that has [`KEY`].
pub struct TestCluster {
    cluster: Cluster,
    /// The number of the primary that has the key.
    home: usize,
    tasks: usize,
}

/// The lock of the tests that run on one server and in a cluster.
const KEY: &str = "a";

impl TestCluster {
    /// Starts a cluster in which the primary that has the key goes by the name of the test.
    pub fn new() -> Self {
        let tasks = Handle::current().metrics().num_alive_tasks();
        let mut hasher = DefaultHasher::new();
        std::thread::current().name().hash(&mut hasher);
        let shift = usize::try_from(hasher.finish() % 3).expect("small");
        let starting = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime
                .expect("a runtime")
                .block_on(Cluster::start_shifted(shift))
        });
        let cluster = starting.join().expect("it starts");
        let home = cluster.owner(KEY);
        Self {
            cluster,
            home,
            tasks,
        }
    }

    pub async fn client(&self) -> LockClient {
        self.client_with(|builder| builder).await
    }

    pub async fn client_with(
        &self,
        set: impl FnOnce(LockClientBuilder) -> LockClientBuilder,
    ) -> LockClient {
        set(LockClient::builder())
            .connect(&self.cluster.url())
            .await
            .expect("the cluster answers")
    }

    /// A connection to the primary that has the key.
    pub fn control(&self) -> Control {
        self.cluster.control(self.home)
    }

    /// Whether somebody listens for releases of this lock, at whichever node.
    pub fn has_listener(&self, key: &str) -> bool {
        self.cluster.has_listener(key)
    }

    /// Proves that nothing is left at any primary, and no connection and no task of the clients.
    pub async fn finish(self, clients: impl IntoIterator<Item = LockClient>) {
        let servers = (0..self.cluster.len()).map(|nth| self.cluster.control(nth));
        let clients = clients.into_iter().collect();
        let limit = Duration::from_secs(10);
        let left = leaks(servers.collect(), clients, self.tasks, limit).await;
        assert!(left.is_empty(), "left behind: {left:?}");
    }
}

/// No key but tokens is left in a cluster, and its clients have left no hold.
pub async fn nothing_is_left(cluster: &Cluster, clients: impl IntoIterator<Item = LockClient>) {
    let is_left = || cluster.keys().iter().any(|key| !is_token(key));
    eventually("no key but tokens is left", ms(10_000), || !is_left()).await;
    for client in clients {
        let report = client.close(Duration::ZERO).await;
        assert!(report.abandoned.is_empty(), "{report:?}");
    }
}

//! The simulated server with the oracle that looks on.

use std::ops::Deref;
use std::sync::Arc;

use redisson_lock_test::sim::{Access, Latency, Observer, Server};
use tokio::time::Instant;

use crate::oracle::Oracle;

pub struct World {
    pub oracle: Arc<Oracle>,
    server: Arc<Server>,
}

impl World {
    /// Not running yet: see [`Self::spawn`].
    pub fn new(seed: u64, latency: Latency) -> Arc<Self> {
        Self::with(|observer| Server::new(seed, latency, observer))
    }

    /// The same with a cluster.
    pub fn cluster(seed: u64, latency: Latency) -> Arc<Self> {
        Self::with(|observer| Server::cluster(seed, latency, observer))
    }

    fn with(server: impl FnOnce(Arc<dyn Observer>) -> Arc<Server>) -> Arc<Self> {
        let oracle = Arc::new(Oracle::new(Instant::now()));
        let server = server(Arc::<Oracle>::clone(&oracle));
        Arc::new(Self { oracle, server })
    }

    /// Has the server run, in a task of its own.
    pub fn spawn(&self) -> tokio::task::JoinHandle<()> {
        tokio::spawn(Arc::clone(&self.server).run())
    }

    /// What client `nth` connects over.
    pub fn access(&self, nth: usize) -> Arc<Access> {
        Arc::new(Access::new(&self.server, nth))
    }
}

impl Deref for World {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

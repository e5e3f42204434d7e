//! The simulated server with the oracle that looks on.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redisson_lock_test::sim::{Access, Latency, Observer, Server};
use tokio::time::Instant;

use crate::oracle::Oracle;

/// The longest round trip of a schedule without a fault, with what has to be undone before another call is sent.
const ANSWERED_WITHIN: Duration = Duration::from_millis(200);

pub struct World {
    pub oracle: Arc<Oracle>,
    server: Arc<Server>,
    unheard: Unheard,
}

/// By client and key: when a call last ended at its limit, before the answer to what it had sent.
#[derive(Default)]
pub(crate) struct Unheard(Mutex<BTreeMap<(usize, String), Instant>>);

impl Unheard {
    pub(crate) fn note(&self, client: usize, key: &str) {
        let mut ends = self.0.lock();
        ends.insert((client, key.to_owned()), Instant::now());
    }

    /// Whether a call that began then, and was not sent, may know no more than that.
    pub(crate) fn excuses(&self, client: usize, key: &str, began: Instant) -> bool {
        let ends = self.0.lock();
        let end = ends.get(&(client, key.to_owned()));
        end.is_some_and(|end| began <= *end + ANSWERED_WITHIN)
    }
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
        let unheard = Unheard::default();
        Arc::new(Self {
            oracle,
            server,
            unheard,
        })
    }

    pub(crate) fn unheard(&self) -> &Unheard {
        &self.unheard
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

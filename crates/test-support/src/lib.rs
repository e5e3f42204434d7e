//! What the tests of this repository share: a server of their own, a proxy that does harm, facts to
//! wait for, and the proof that nothing is left.

#![allow(
    missing_docs,
    missing_debug_implementations,
    clippy::missing_panics_doc,
    clippy::missing_errors_doc,
    clippy::new_without_default,
    reason = "only tests use it, and a panic is how a test fails"
)]

mod cluster;
mod commands;
mod pair;
pub mod peer;
mod proxy;
mod replies;
mod scripts;
mod sentinel;
mod server;
mod stillness;
mod test_cluster;
mod test_server;

use std::time::{Duration, Instant};

pub use cluster::{Cluster, NODE_TIMEOUT, slot};
pub use pair::ProxiedPair;
pub use proxy::{Fate, Proxy};
pub use scripts::{
    ACQUIRE, FORCE_UNLOCK, INSPECT, PASS, RELEASE, RENEW, acquire_to, is_script, release_to,
};
pub use sentinel::{DOWN_AFTER, SERVICE, Sentinels};
pub use server::{Control, Monitor, Server, has_listener, stalls};
pub use stillness::Stillness;
pub use test_cluster::TestCluster;
pub use test_server::TestServer;

/// Waits for a fact. The budget is a bound, not a wait.
pub async fn eventually(what: &str, budget: Duration, mut fact: impl FnMut() -> bool) {
    let limit = Instant::now() + budget;
    while !fact() {
        assert!(Instant::now() < limit, "not within {budget:?}: {what}");
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

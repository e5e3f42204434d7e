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

// The attributes of its own tests name it.
extern crate self as test_support;
#[cfg(test)]
#[macro_use]
extern crate test_macros;

mod cluster;
mod commands;
pub mod contract;
mod events;
mod fake_cluster;
pub mod kinds;
mod limit;
mod pair;
pub mod peer;
mod proxy;
mod replies;
pub mod resource;
mod rolls;
pub mod script_text;
mod scripts;
mod sentinel;
mod server;
mod stalls;
mod steps;
mod test_cluster;
mod test_server;

use std::time::{Duration, Instant};

pub use cluster::{Cluster, NODE_TIMEOUT, slot};
pub use events::Events;
pub use fake_cluster::{FakeCluster, NodeView};
pub use limit::{LIMIT, Limited, begins, may_take};
pub use pair::ProxiedPair;
pub use proxy::{Fate, Proxy, Scripted};
pub use rolls::Rolls;
pub use scripts::{
    ACQUIRE, FORCE_UNLOCK, INSPECT, PASS, RELEASE, RENEW, TOUCH, acquire_to, is_script, release_to,
};
pub use sentinel::{DOWN_AFTER, SERVICE, Sentinels};
pub use server::{Control, Monitor, Server, has_listener, temporary_folder};
pub use stalls::{processor_time, stalls};
pub use steps::{Steps, drop_at_each_poll};
pub use tempfile::TempDir;
pub use test_cluster::{TestCluster, nothing_is_left};
pub use test_macros::test;
pub use test_server::{TestServer, replicas_of};

/// What tests use in the place of tokio, so that `#[tokio::test]` has a time limit.
pub mod tokio {
    pub use ::test_macros::tokio_test as test;
    pub use ::tokio::*;
}

/// Waits for a fact. The budget is a bound, not a wait, and is for a machine that runs.
pub async fn eventually(what: &str, budget: Duration, mut fact: impl FnMut() -> bool) {
    let start = Instant::now();
    while !fact() {
        assert!(is_within(budget, start), "not within {budget:?}: {what}");
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

/// Waits for a future, with a budget of the same kind. `None`: it was not ready in time.
pub async fn within<F: Future>(budget: Duration, future: F) -> Option<F::Output> {
    let (start, mut future) = (Instant::now(), std::pin::pin!(future));
    while is_within(budget, start) {
        tokio::select! {
            biased;
            output = &mut future => return Some(output),
            () = tokio::time::sleep(Duration::from_millis(3)) => {}
        }
    }
    None
}

/// Whether no more than this has passed, the time left out in which something had to wait for a processor.
fn is_within(budget: Duration, start: Instant) -> bool {
    let took = start.elapsed();
    took < budget || took < budget + stalls(start).min(8 * budget)
}

/// Acquires a lock that is free, and releases it.
pub async fn lock_and_unlock(lock: &redisson_lock::Lock) {
    let guard = lock.lock().await.expect("free");
    guard.unlock().await.expect("held");
}

pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Tests that call one function, each with what it is given.
#[macro_export]
macro_rules! cases {
    ($run:path; $($(#[$about:meta])* fn $name:ident($($given:expr),*);)*) => {
        $(
            $(#[$about])*
            #[$crate::tokio::test]
            async fn $name() {
                $run($($given),*).await;
            }
        )*
    };
}

/// Asserts that a value has this form, and shows it if it has not.
#[macro_export]
macro_rules! assert_matches {
    ($value:expr, $form:pat $(if $guard:expr)? $(,)?) => {
        $crate::assert_matches!($value, $form $(if $guard)?, "found")
    };
    ($value:expr, $form:pat $(if $guard:expr)?, $($what:tt)+) => {
        match &$value {
            value => ::core::assert!(
                ::core::matches!(*value, $form $(if $guard)?),
                "{}: {value:?}",
                ::core::format_args!($($what)+)
            ),
        }
    };
}

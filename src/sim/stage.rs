//! The ground of a trace: one client, a server whose network is moved by hand, and Java.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::actors::ms;
use super::network::Latency;
use super::program::ClientPlan;
use super::run::{connect, runtime};
use super::server::World;
use super::watch::Terms;
use crate::client::LockClient;
use crate::error::Error;
use crate::guard::LockGuard;
use crate::lock::Lock;
use crate::redis::Role;

pub(super) const KEY: &str = "stock";
pub(super) const JAVA: &str = "java:1";

pub(super) struct Stage {
    pub(super) world: Arc<World>,
    pub(super) client: LockClient,
}

impl Stage {
    pub(super) async fn set(fence: bool) -> Self {
        let world = World::new(
            1,
            Latency {
                least: 0,
                usual: 1,
                seldom: 1,
                seldom_percent: 0,
            },
        );
        tokio::spawn(Arc::clone(&world).on_client_runtime());
        let client = connect(&world, 0, ms(30_000), ms(1_000), &ClientPlan::simple(fence)).await;
        world.by_hand();
        let terms = Terms {
            watchdog_timeout: ms(30_000),
            command_timeout: ms(1_000),
            clients: vec![client.id().to_owned()],
            fenced: vec![fence],
            one_lane: vec![true],
            healthy: false,
            answers_in_time: false,
            wake_up: ms(30_000),
        };
        let stage = Self { world, client };
        // Every script is known to the server, so that from here on one command is one call.
        let warm = stage.client.lock("warm");
        let (outer, inner) = (
            warm.lock().await.expect("free"),
            warm.lock().await.expect("held"),
        );
        inner.unlock().await.expect("held");
        outer.unlock().await.expect("held");
        warm.lock().await.expect("free").detach();
        assert_eq!(warm.force_unlock().await.ok(), Some(true));
        assert!(warm.unlock().await.is_err(), "it was forced");
        stage.world.watch.begin(terms, true);
        stage
    }

    /// The lock as task `nth` uses it.
    pub(super) fn task(&self, nth: i64) -> Lock {
        self.client
            .lock(KEY)
            .owned_by(&self.client.owner_with_id(-1 - nth))
    }

    pub(super) fn server(&self) -> Option<(String, i64)> {
        self.world.with_keyspace(|keyspace| {
            keyspace
                .holder(KEY)
                .map(|(field, count)| (field.to_owned(), count))
        })
    }

    pub(super) fn count(&self) -> i64 {
        self.server().map_or(0, |(_, count)| count)
    }

    /// Java takes the lock, adding one to whatever it has.
    pub(super) fn java_locks(&self, field: &str) -> bool {
        self.world.with_keyspace(|keyspace| {
            if keyspace
                .holder(KEY)
                .is_some_and(|(holder, _)| holder != field)
            {
                return false;
            }
            for words in [
                ["hincrby", KEY, field, "1"].as_slice(),
                &["pexpire", KEY, "30000"],
            ] {
                let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
                keyspace.call(&words).expect("allowed");
            }
            true
        })
    }

    pub(super) fn java_unlocks(&self) {
        self.world.with_keyspace(|keyspace| keyspace.delete(KEY));
    }

    pub(super) fn hold_commands(&self) {
        self.world.hold_commands(0, true);
    }

    /// The connection is lost; what it had not delivered is late.
    pub(super) fn lose_connection(&self) {
        self.world.cut(0, Role::Commands, true);
    }

    pub(super) async fn rest(&self) {
        tokio::time::sleep(ms(3_000)).await;
        assert_eq!(self.client.stats().releasing, 0);
        self.nobody_is_wrong();
    }

    pub(super) fn nobody_is_wrong(&self) {
        self.world.look();
        if let Some(violation) = self.world.watch.violation() {
            panic!("{}\n{violation}", self.world.watch.history().join("\n"));
        }
    }

    /// A guard in the hands of its caller: what it believes is compared from here on.
    pub(super) fn believe(&self, guard: &LockGuard) {
        self.world
            .watch
            .taken(0, KEY, guard.held(), tokio::time::Instant::now());
    }
}

pub(super) fn play<F: Future<Output = ()>>(fence: bool, trace: impl FnOnce(Stage) -> F) {
    let played = runtime().block_on(async {
        let trace = async {
            let stage = Stage::set(fence).await;
            trace(stage).await;
        };
        tokio::time::timeout(Duration::from_secs(600), trace).await
    });
    assert!(played.is_ok(), "somebody waits for ever");
}

/// Runs a call beside the trace, and lets it hand its command over.
pub(super) async fn begin<T: Send + 'static>(
    call: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    let task = tokio::spawn(call);
    tokio::time::sleep(ms(5)).await;
    task
}

pub(super) async fn end<T>(task: JoinHandle<T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), task)
        .await
        .expect("it ends")
        .expect("no panic")
}

pub(super) fn lock(
    lock: &Lock,
) -> impl Future<Output = Result<LockGuard, Error>> + Send + 'static + use<> {
    let lock = lock.clone();
    async move { lock.lock().await }
}

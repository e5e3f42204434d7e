//! What a trace plays with: one client, a server whose network is moved by hand, and Java.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use redisson_lock::{Error, Lock, LockClient, LockGuard};
use redisson_lock_test::sim::Latency;
use sim::oracle::Terms;
use sim::workload::{ClientPlan, World, connect, ms, runtime};
use tokio::task::JoinHandle;

pub(crate) const KEY: &str = "stock";
pub(crate) const JAVA: &str = "java:1";

pub(crate) struct Fixture {
    pub(crate) world: Arc<World>,
    pub(crate) client: LockClient,
}

impl Fixture {
    pub(crate) async fn new(fence: bool) -> Self {
        let world = World::new(
            1,
            Latency {
                least: 0,
                usual: 1,
                seldom: 1,
                seldom_percent: 0,
            },
        );
        world.spawn();
        let client = connect(&world, 0, ms(30_000), ms(1_000), &ClientPlan::simple(fence)).await;
        world.by_hand();
        let terms = Terms {
            watchdog_timeout: ms(30_000),
            command_timeout: ms(1_000),
            cluster: false,
            silent: Vec::new(),
            strings: Vec::new(),
            fair: Vec::new(),
            read_write: Vec::new(),
            fair_wait: ms(300_000),
            given_back: true,
            clients: vec![client.id().to_owned()],
            fenced: vec![fence],
            one_lane: vec![true],
            healthy: false,
            answers_in_time: false,
            wake_up: ms(30_000),
        };
        let fixture = Self { world, client };
        // Every script is known to the server, so that from here on one command is one call.
        let warm = fixture.client.lock("warm");
        let (outer, inner) = (
            warm.lock().await.expect("free"),
            warm.lock().await.expect("held"),
        );
        inner.unlock().await.expect("held");
        outer.unlock().await.expect("held");
        let first = warm.lock().await.expect("free");
        let next = begin(lock(&warm.owned_by(&fixture.client.owner_with_id(-99)))).await;
        first.unlock().await.expect("held");
        end(next)
            .await
            .expect("handed over")
            .unlock()
            .await
            .expect("held");
        warm.lock().await.expect("free").detach();
        assert_eq!(warm.force_unlock().await.ok(), Some(true));
        assert!(warm.unlock().await.is_err(), "it was forced");
        fixture.world.oracle.begin(terms, true);
        fixture
    }

    /// The lock as task `nth` uses it.
    pub(crate) fn task(&self, nth: i64) -> Lock {
        self.client
            .lock(KEY)
            .owned_by(&self.client.owner_with_id(-1 - nth))
    }

    pub(crate) fn server(&self) -> Option<(String, i64)> {
        self.world.with_keyspace(|keyspace| {
            keyspace
                .holder(KEY)
                .map(|(field, count)| (field.to_owned(), count))
        })
    }

    pub(crate) fn count(&self) -> i64 {
        self.server().map_or(0, |(_, count)| count)
    }

    /// Java takes the lock, adding one to whatever it has.
    pub(crate) fn java_locks(&self, field: &str) -> bool {
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

    pub(crate) fn java_unlocks(&self) {
        self.world.with_keyspace(|keyspace| keyspace.delete(KEY));
    }

    pub(crate) fn hold_commands(&self) {
        self.world.hold_commands(0, true);
    }

    /// The connection is lost; what it had not delivered is late.
    pub(crate) fn lose_connection(&self) {
        self.world.cut(0, true);
    }

    pub(crate) async fn rest(&self) {
        tokio::time::sleep(ms(3_000)).await;
        assert_eq!(self.client.stats().releasing, 0);
        self.nobody_is_wrong();
    }

    pub(crate) fn nobody_is_wrong(&self) {
        self.world.observe();
        if let Some(violation) = self.world.oracle.violation() {
            panic!("{}\n{violation}", self.world.oracle.history().join("\n"));
        }
    }

    /// A guard in the hands of its caller: what it believes is compared from here on.
    pub(crate) fn believe(&self, guard: &LockGuard) {
        self.world
            .oracle
            .taken(0, KEY, guard.handle(), tokio::time::Instant::now());
    }
}

pub(crate) fn play<F: Future<Output = ()>>(fence: bool, trace: impl FnOnce(Fixture) -> F) {
    let played = runtime().block_on(async {
        let trace = async {
            let fixture = Fixture::new(fence).await;
            trace(fixture).await;
        };
        tokio::time::timeout(Duration::from_secs(600), trace).await
    });
    assert!(played.is_ok(), "somebody waits for ever");
}

/// Runs a call beside the trace, and lets it hand its command over.
pub(crate) async fn begin<T: Send + 'static>(
    call: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    let task = tokio::spawn(call);
    tokio::time::sleep(ms(5)).await;
    task
}

pub(crate) async fn end<T>(task: JoinHandle<T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), task)
        .await
        .expect("it ends")
        .expect("no panic")
}

pub(crate) fn lock(
    lock: &Lock,
) -> impl Future<Output = Result<LockGuard, Error>> + Send + 'static + use<> {
    let lock = lock.clone();
    async move { lock.lock().await }
}

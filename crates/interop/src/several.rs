//! Scenarios on a cluster of three primaries, and on servers behind Sentinel.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::fixture::{Fixture, Load, QUICK, Scenario, channel, eventually};
use crate::party::{Party, Several};
use crate::waiting::{begin, is_woken_by};
use test_support::{Cluster, Control, SERVICE, Sentinels, ms};

/// In a cluster they listen at a node where a release by `Announce::Auto` does not find them; `Both` reaches
/// them.
const OLD: &[&str] = &["3.6.5", "3.12.5"];

pub fn scenarios() -> Vec<Scenario> {
    let process = |scenario: Scenario| scenario.load(Load::Process);
    [
        Scenario::new("cluster_exclusion", exclusion),
        Scenario::new("cluster_nested", nested),
        Scenario::new("cluster_woken_by_unlock", woken_by_unlock)
            .short()
            .not_second(OLD),
        Scenario::new("cluster_woken_by_force_unlock", woken_by_force_unlock).not_second(OLD),
        Scenario::new("cluster_watchdog", watchdog),
        Scenario::new("cluster_mixed_workers", mixed_workers),
        Scenario::new("cluster_failover_under_a_waiter", failover_under_a_waiter)
            .not_first(OLD)
            .not_second(OLD),
        Scenario::new("sentinel_failover_under_a_waiter", sentinel_failover).short(),
    ]
    .into_iter()
    .map(process)
    .collect()
}

/// A cluster, with a client of each party.
struct Field {
    cluster: Cluster,
    first: Party,
    second: Party,
}

impl Field {
    async fn open(fixture: &Fixture, replicas: bool, watchdog: std::time::Duration) -> Self {
        let cluster = Cluster::start_with(replicas, &["--cluster-announce-ip", "127.0.0.1"]).await;
        let servers = Several {
            rust: cluster.url(),
            java: format!("redis://127.0.0.1:{}", cluster.port(0)),
            kind: "cluster",
            name: String::new(),
        };
        let first = fixture.first.of_several(&servers, watchdog).await;
        let second = fixture.second.of_several(&servers, watchdog).await;
        Self {
            cluster,
            first,
            second,
        }
    }

    /// A name at each primary.
    fn names(&self, fixture: &Fixture) -> Vec<String> {
        let name = |nth| self.cluster.key_at(nth, &fixture.name);
        (0..3).map(name).collect()
    }

    /// Waits until somebody listens, on whichever kind of channel, wherever.
    async fn somebody_waits(&self, name: &str) {
        let channel = channel(name);
        let listens = || {
            (0..self.cluster.len()).any(|nth| {
                let mut control = self.cluster.control(nth);
                ["NUMSUB", "SHARDNUMSUB"]
                    .into_iter()
                    .any(|kind| has_listener(&mut control, kind, &channel))
            })
        };
        eventually("somebody listens", listens).await;
        // The second attempt, after subscribing.
        tokio::time::sleep(ms(50)).await;
    }

    async fn close(self) {
        self.first.close().await;
        self.second.close().await;
    }
}

/// Before Redis 7.0 there are no sharded channels.
fn has_listener(control: &mut Control, kind: &str, channel: &str) -> bool {
    let listeners = control.try_run(&["PUBSUB", kind, channel]);
    listeners.is_ok_and(|listeners| listeners.ends_with(" 1"))
}

async fn exclusion(fixture: Fixture) {
    let field = Field::open(&fixture, false, ms(30_000)).await;
    let (one, other) = (field.first.worker(), field.second.worker());
    for name in field.names(&fixture) {
        for _ in 0..3 {
            one.lock(&name, None).await.expect("free");
            assert_eq!(other.try_lock(&name, None, None).await, Ok(false));
            assert!(other.is_locked(&name).await);
            one.unlock(&name).await.expect("held");
            assert_eq!(other.try_lock(&name, None, None).await, Ok(true));
            assert_eq!(one.try_lock(&name, None, None).await, Ok(false));
            other.unlock(&name).await.expect("held");
        }
    }
    field.close().await;
}

async fn nested(fixture: Fixture) {
    let field = Field::open(&fixture, false, ms(30_000)).await;
    let (one, other) = (field.first.worker(), field.second.worker());
    for (nth, name) in field.names(&fixture).into_iter().enumerate() {
        let mut control = field.cluster.control(nth);
        for depth in 1..=3 {
            one.lock(&name, None).await.expect("ours");
            assert_eq!(control.count(&name), depth);
        }
        for depth in (0..3).rev() {
            assert_eq!(other.try_lock(&name, None, None).await, Ok(false));
            one.unlock(&name).await.expect("held");
            assert_eq!(control.count(&name), depth);
        }
    }
    field.close().await;
}

async fn woken_by_unlock(fixture: Fixture) {
    let field = Field::open(&fixture, false, ms(30_000)).await;
    let (one, other) = (field.first.worker(), field.second.worker());
    for name in field.names(&fixture) {
        one.lock(&name, Some(ms(30_000))).await.expect("free");
        let waiting = begin(&other, &name);
        field.somebody_waits(&name).await;
        is_woken_by(waiting, one.unlock(&name)).await;
        other.unlock(&name).await.expect("held");
    }
    field.close().await;
}

async fn woken_by_force_unlock(fixture: Fixture) {
    let field = Field::open(&fixture, false, ms(30_000)).await;
    let (one, other, third) = (
        field.first.worker(),
        field.second.worker(),
        field.first.worker(),
    );
    for name in field.names(&fixture) {
        one.lock(&name, Some(ms(30_000))).await.expect("free");
        let waiting = begin(&other, &name);
        field.somebody_waits(&name).await;
        is_woken_by(waiting, third.force_unlock(&name)).await;
        one.unlock_too_late(&name).await;
        other.unlock(&name).await.expect("held");
    }
    field.close().await;
}

/// Thirty locks in as many slots are kept for three leases.
async fn watchdog(fixture: Fixture) {
    let field = Field::open(&fixture, false, QUICK).await;
    let (one, other) = (field.first.worker(), field.second.worker());
    let names: Vec<_> = (0..30)
        .map(|nth| format!("{}:{nth}", fixture.name))
        .collect();
    for name in &names {
        one.lock(name, None).await.expect("free");
    }
    tokio::time::sleep(QUICK * 3).await;
    for name in &names {
        assert_eq!(
            other.try_lock(name, None, None).await,
            Ok(false),
            "{name} was renewed"
        );
        one.unlock(name).await.expect("held");
    }
    field.close().await;
}

/// Workers of both sides at one lock of each primary: one at a time is inside.
async fn mixed_workers(fixture: Fixture) {
    const WORKERS: usize = 4;
    const SECTIONS: usize = 15;
    let field = Field::open(&fixture, false, ms(30_000)).await;
    let mut tasks = tokio::task::JoinSet::new();
    for name in field.names(&fixture) {
        let inside = Arc::<AtomicI64>::default();
        for nth in 0..2 * WORKERS {
            let party = [&field.first, &field.second][nth % 2];
            let (worker, name, inside) = (party.worker(), name.clone(), Arc::clone(&inside));
            tasks.spawn(async move {
                for _ in 0..SECTIONS {
                    worker.lock(&name, None).await.expect("in the end");
                    let before = inside.fetch_add(1, Ordering::AcqRel);
                    assert_eq!(before, 0, "somebody else is inside");
                    tokio::time::sleep(ms(1)).await;
                    inside.fetch_sub(1, Ordering::AcqRel);
                    worker.unlock(&name).await.expect("held");
                }
            });
        }
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("no panic");
    }
    field.close().await;
}

async fn failover_under_a_waiter(fixture: Fixture) {
    let field = Field::open(&fixture, true, ms(30_000)).await;
    let (one, other) = (field.first.worker(), field.second.worker());
    let name = field.cluster.key_at(0, &fixture.name);
    one.lock(&name, None).await.expect("free");
    let waiting = begin(&other, &name);
    field.somebody_waits(&name).await;
    field.cluster.fail_over_to(3).await;
    let channel = channel(&name);
    let mut control = field.cluster.control(3);
    let mut listens = || {
        ["NUMSUB", "SHARDNUMSUB"]
            .into_iter()
            .any(|kind| has_listener(&mut control, kind, &channel))
    };
    eventually("it listens at the new primary", &mut listens).await;
    tokio::time::sleep(ms(50)).await;
    is_woken_by(waiting, one.unlock(&name)).await;
    other.unlock(&name).await.expect("held");
    field.close().await;
}

async fn sentinel_failover(fixture: Fixture) {
    let sentinels = Sentinels::start().await;
    let servers = Several {
        rust: sentinels.url(),
        java: sentinels.addresses(),
        kind: "sentinel",
        name: SERVICE.to_owned(),
    };
    let first = fixture.first.of_several(&servers, ms(30_000)).await;
    let second = fixture.second.of_several(&servers, ms(30_000)).await;
    let (one, other, name) = (first.worker(), second.worker(), &fixture.name);
    one.lock(name, None).await.expect("free");
    let waiting = begin(&other, name);
    let channel = channel(name);
    // A server whose role changes closes its connections.
    let listens = |nth| {
        let listeners = sentinels.try_run(nth, &["PUBSUB", "NUMSUB", &channel]);
        listeners.is_some_and(|listeners| listeners.ends_with(" 1"))
    };
    eventually("it listens", || listens(0)).await;
    sentinels.fail_over().await;
    let primary = sentinels.new_primary(0, ms(20_000)).await;
    // A client that has not heard yet goes on at the former primary, where what it unlocks is unlocked for
    // nobody. When that one is a replica its connections are closed.
    let demoted = || {
        let role = sentinels.try_run(0, &["ROLE"]);
        role.is_some_and(|role| role.starts_with("slave"))
    };
    eventually("the former primary is a replica", demoted).await;
    eventually("it listens at the new primary", || listens(primary)).await;
    // Redisson attempts again only some time after it has subscribed again.
    tokio::time::sleep(ms(2_000)).await;
    is_woken_by(waiting, one.unlock(name)).await;
    other.unlock(name).await.expect("held");
    first.close().await;
    second.close().await;
}

//! Scenarios on a cluster of three primaries and their replicas, and on servers behind Sentinel.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::fixture::{Fixture, QUICK, Scenario, Topology, eventually};
use crate::party::{Party, Several};
use crate::read_write;
use crate::stored::{Queue, channel};
use crate::waiting::{begin, is_woken_by};
use crate::worker::Part::{Read, Write};
use crate::worker::{Fail, Worker};
use redisson_lock::Announce;
use test_support::{Cluster, Control, SERVICE, Sentinels, has_listener, ms, slot};

/// In a cluster they listen at a node where a release by `Announce::Auto` does not find them: beside them our clients
/// have `Both`. They do not hear of a new primary within 20 s, beside no client of ours either.
const OLD: &[&str] = &["3.6.5", "3.12.5"];

/// They cannot wait for a lock whose slot moves: since 3.24 none subscribes again on the new owner, whichever side
/// releases, and 3.20.0 listens at the old one, where a release by `Announce::Auto` does not find it.
const STAYING: &[&str] = &["3.6.5", "3.12.5", "3.20.0", "3.24.3", "3.52.0", "4.7.0"];

/// Its `unlock` does not return after the slot of the lock has moved.
const STUCK: &[&str] = &["3.12.5"];

pub fn scenarios() -> Vec<Scenario> {
    use Topology::{Cluster, Sentinel};
    let mut all = [Cluster, Sentinel].map(on_both).concat();
    all.extend([
        on(Cluster, "woken_by_unlock", woken_by_unlock).short(),
        on(Sentinel, "woken_by_unlock", woken_by_unlock),
        on(Cluster, "failover_under_a_waiter", |f, _| {
            cluster_failover(f)
        })
        .not_first(OLD)
        .not_second(OLD),
        on(Sentinel, "failover_under_a_waiter", |f, _| {
            sentinel_failover(f)
        })
        .short(),
        on(Cluster, "slot_moves_under_a_waiter", |f, _| slot_moves(f))
            .not_first(STUCK)
            .not_second(STAYING),
        on(Cluster, "rw_watchdog_rw", |f, here| {
            watchdog(f.of_parts(Read, Write), here)
        }),
    ]);
    all
}

/// A scenario on these servers, with their word in front of its name.
fn on<F: Future<Output = ()> + Send + 'static>(
    topology: Topology,
    what: &str,
    play: impl Fn(Fixture, Topology) -> F + Send + Sync + 'static,
) -> Scenario {
    let name = format!("{}_{what}", topology.word());
    Scenario::new(name, move |fixture| play(fixture, topology)).on(topology)
}

fn on_both(topology: Topology) -> Vec<Scenario> {
    [
        on(topology, "exclusion", exclusion),
        on(topology, "nested", nested),
        on(topology, "woken_by_force_unlock", woken_by_force_unlock),
        on(topology, "watchdog", watchdog),
        on(topology, "mixed_workers", mixed_workers),
        on(topology, "fair_woken_by_unlock", |f, here| {
            woken_by_unlock(f.of_kind("fair"), here)
        }),
        on(topology, "fair_mixed_workers", |f, here| {
            mixed_workers(f.of_kind("fair"), here)
        }),
        on(topology, "rw_woken_by_unlock_wr", |f, here| {
            woken_by_unlock(f.of_parts(Write, Read), here)
        }),
        on(topology, "rw_woken_by_unlock_rw", |f, here| {
            woken_by_unlock(f.of_parts(Read, Write), here)
        }),
        on(topology, "rw_storm", |f, here| {
            storm(f.of_parts(Read, Read), here)
        }),
    ]
    .into()
}

/// Servers of a scenario's own.
enum Servers {
    Cluster(Cluster),
    Sentinels(Sentinels),
}

/// Servers, with a client of each party.
struct Field {
    servers: Servers,
    first: Party,
    second: Party,
}

impl Field {
    async fn open(fixture: &Fixture, topology: Topology, watchdog: Duration) -> Self {
        let servers = match topology {
            Topology::Sentinel => Servers::Sentinels(Sentinels::start().await),
            Topology::One | Topology::Cluster => {
                let settings = ["--cluster-announce-ip", "127.0.0.1"];
                Servers::Cluster(Cluster::start_with(true, &settings).await)
            }
        };
        let is_sharded = match &servers {
            Servers::Cluster(cluster) => knows_sharded(&mut cluster.control(0)),
            Servers::Sentinels(_) => false,
        };
        let announce = match is_sharded && OLD.contains(&fixture.version()) {
            true => Announce::Both,
            false => Announce::Auto,
        };
        let several = match &servers {
            Servers::Cluster(cluster) => Several {
                rust: cluster.url(),
                java: format!("redis://127.0.0.1:{}", cluster.port(0)),
                kind: topology.word(),
                name: String::new(),
                announce,
            },
            Servers::Sentinels(sentinels) => Several {
                rust: sentinels.url(),
                java: sentinels.addresses(),
                kind: topology.word(),
                name: SERVICE.to_owned(),
                announce,
            },
        };
        let first = fixture.first.of_several(&several, watchdog).await;
        let second = fixture.second.of_several(&several, watchdog).await;
        Self {
            servers,
            first,
            second,
        }
    }

    /// A name at each primary.
    fn names(&self, fixture: &Fixture) -> Vec<String> {
        match &self.servers {
            Servers::Cluster(cluster) => (0..3)
                .map(|nth| cluster.key_at(nth, &fixture.name))
                .collect(),
            Servers::Sentinels(_) => vec![fixture.name.clone()],
        }
    }

    /// A connection to the primary that has this lock, as long as nothing has moved.
    fn control(&self, name: &str) -> Control {
        match &self.servers {
            Servers::Cluster(cluster) => cluster.control(cluster.owner(name)),
            Servers::Sentinels(sentinels) => sentinels.control(0),
        }
    }

    /// Waits until somebody listens, on whichever kind of channel, wherever.
    async fn somebody_waits(&self, name: &str) {
        let listens = || match &self.servers {
            Servers::Cluster(cluster) => cluster.has_listener(name),
            Servers::Sentinels(_) => has_listener(&mut self.control(name), name),
        };
        match name.starts_with("fair/") {
            true => {
                let mut nodes = match &self.servers {
                    Servers::Cluster(cluster) => {
                        (0..cluster.len()).map(|nth| cluster.control(nth)).collect()
                    }
                    Servers::Sentinels(_) => Vec::new(),
                };
                let home = &mut self.control(name);
                Queue::of(name).waits_in(home, &mut nodes, 1).await;
            }
            false => eventually("somebody listens", listens).await,
        }
        // The second attempt, after subscribing.
        tokio::time::sleep(ms(50)).await;
    }

    async fn close(self) {
        self.first.close().await;
        self.second.close().await;
    }
}

async fn exclusion(fixture: Fixture, topology: Topology) {
    let field = Field::open(&fixture, topology, ms(30_000)).await;
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

async fn nested(fixture: Fixture, topology: Topology) {
    let field = Field::open(&fixture, topology, ms(30_000)).await;
    let (one, other) = (field.first.worker(), field.second.worker());
    for name in field.names(&fixture) {
        let mut control = field.control(&name);
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

async fn woken_by_unlock(fixture: Fixture, topology: Topology) {
    let field = Field::open(&fixture, topology, ms(30_000)).await;
    let (one, other) = (field.first.worker(), field.second.worker());
    for name in field.names(&fixture) {
        one.lock(&name, Some(ms(30_000))).await.expect("free");
        let waiting = begin(&other, &name);
        field.somebody_waits(&name).await;
        if fixture.is_read_write {
            other.sleeps().await;
        }
        is_woken_by(waiting, one.unlock(&name)).await;
        other.unlock(&name).await.expect("held");
    }
    field.close().await;
}

async fn woken_by_force_unlock(fixture: Fixture, topology: Topology) {
    let field = Field::open(&fixture, topology, ms(30_000)).await;
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
async fn watchdog(fixture: Fixture, topology: Topology) {
    let field = Field::open(&fixture, topology, QUICK).await;
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
async fn mixed_workers(fixture: Fixture, topology: Topology) {
    const WORKERS: usize = 4;
    const SECTIONS: usize = 15;
    let field = Field::open(&fixture, topology, ms(30_000)).await;
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

/// Readers and writers of both sides at one lock of each primary.
async fn storm(fixture: Fixture, topology: Topology) {
    let field = Field::open(&fixture, topology, ms(read_write::storm::WATCHDOG)).await;
    let mut locks = tokio::task::JoinSet::new();
    for name in field.names(&fixture) {
        let parties = [field.first.clone(), field.second.clone()];
        locks.spawn(async move { read_write::storm::work(&parties, &name, 8).await });
    }
    while let Some(done) = locks.join_next().await {
        done.expect("no panic");
    }
    for name in field.names(&fixture) {
        let left = field.control(&name).hash(&name);
        assert_eq!(left, "", "{name}: nothing is left");
    }
    field.close().await;
}

async fn cluster_failover(fixture: Fixture) {
    let field = Field::open(&fixture, Topology::Cluster, ms(30_000)).await;
    let Servers::Cluster(cluster) = &field.servers else {
        unreachable!("it was asked for")
    };
    let (one, other) = (field.first.worker(), field.second.worker());
    let name = cluster.key_at(0, &fixture.name);
    one.lock(&name, None).await.expect("free");
    let waiting = begin(&other, &name);
    field.somebody_waits(&name).await;
    cluster.fail_over_to(3).await;
    let mut control = cluster.control(3);
    // Ours hears classic messages, which go to every node, at whichever node it likes.
    let hears_all = field.second.is_rust() && !knows_sharded(&mut control);
    let listens = || hears_all && cluster.has_listener(&name) || has_listener(&mut control, &name);
    eventually("it hears of the new primary", listens).await;
    tokio::time::sleep(ms(50)).await;
    is_woken_by(waiting, unlock_moved(&one, &name)).await;
    other.unlock(&name).await.expect("held");
    field.close().await;
}

/// A JVM that is sent on to a primary which it does not know yet fails after its retries, and has released nothing.
async fn unlock_moved(worker: &Worker, name: &str) -> Result<(), Fail> {
    loop {
        match worker.unlock(name).await {
            Err(Fail::Other(text)) if text.contains("redirect=MOVED") => {}
            released => return released,
        }
    }
}

/// Before Redis 7.0 there are no sharded channels.
fn knows_sharded(control: &mut Control) -> bool {
    control.try_run(&["PUBSUB", "SHARDNUMSUB"]).is_ok()
}

/// A message that was published before a client has found the slot again is heard by nobody, so it may be a while.
async fn slot_moves(fixture: Fixture) {
    let field = Field::open(&fixture, Topology::Cluster, ms(30_000)).await;
    let Servers::Cluster(cluster) = &field.servers else {
        unreachable!("it was asked for")
    };
    let (one, other) = (field.first.worker(), field.second.worker());
    let name = cluster.key_at(0, &fixture.name);
    one.lock(&name, None).await.expect("free");
    let waiting = begin(&other, &name);
    field.somebody_waits(&name).await;
    cluster.move_slot(slot(&name), 0, 1);
    one.unlock(&name).await.expect("held");
    // The map is asked for every 5 s at the latest.
    let woken = tokio::time::timeout(ms(5_000 + 1_000), waiting).await;
    let (taken, _) = woken
        .expect("long before the lease ends")
        .expect("no panic");
    taken.expect("free");
    other.unlock(&name).await.expect("held");
    field.close().await;
}

async fn sentinel_failover(fixture: Fixture) {
    let field = Field::open(&fixture, Topology::Sentinel, ms(30_000)).await;
    let Servers::Sentinels(sentinels) = &field.servers else {
        unreachable!("it was asked for")
    };
    let (one, other, name) = (field.first.worker(), field.second.worker(), &fixture.name);
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
    field.close().await;
}

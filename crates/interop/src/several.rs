//! Scenarios on a cluster of three primaries and their replicas, and on servers behind Sentinel.

use std::time::Duration;

use crate::fixture::{Fixture, QUICK, Scenario, eventually};
use crate::primaries::{Servers, Topology, knows_sharded};
use crate::stored::channel;
use crate::waiting::{begin, is_woken_by};
use crate::worker::Part::{Read, Write};
use crate::worker::{Fail, Worker};
use crate::{contention, holding, read_write, waiting};
use test_support::{has_listener, ms, slot};

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
        at_each(Cluster, "woken_by_unlock", plain, waiting::woken_by_unlock).short(),
        at_each(Sentinel, "woken_by_unlock", plain, waiting::woken_by_unlock),
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

fn plain(fixture: Fixture) -> Fixture {
    fixture
}

fn fair(fixture: Fixture) -> Fixture {
    fixture.of_kind("fair")
}

fn on_both(topology: Topology) -> Vec<Scenario> {
    [
        at_each(topology, "exclusion", plain, holding::exclusion),
        at_each(topology, "nested", plain, holding::nested_holds),
        at_each(
            topology,
            "woken_by_force_unlock",
            plain,
            waiting::woken_by_force_unlock,
        ),
        on(topology, "watchdog", watchdog),
        on(topology, "mixed_workers", mixed_workers),
        at_each(
            topology,
            "fair_woken_by_unlock",
            fair,
            waiting::woken_by_unlock,
        ),
        on(topology, "fair_mixed_workers", |f, here| {
            mixed_workers(fair(f), here)
        }),
        at_each(
            topology,
            "rw_woken_by_unlock_wr",
            |fixture| fixture.of_parts(Write, Read),
            waiting::woken_by_unlock,
        ),
        at_each(
            topology,
            "rw_woken_by_unlock_rw",
            |fixture| fixture.of_parts(Read, Write),
            waiting::woken_by_unlock,
        ),
        on(topology, "rw_storm", |f, here| {
            storm(f.of_parts(Read, Read), here)
        }),
    ]
    .into()
}

/// A scenario of one server, at each primary of these.
fn at_each<F: Future<Output = ()> + Send + 'static>(
    topology: Topology,
    what: &str,
    set: fn(Fixture) -> Fixture,
    play: fn(Fixture) -> F,
) -> Scenario {
    on(topology, what, move |fixture, here| async move {
        let field = open(&set(fixture), here, ms(30_000)).await;
        for name in field.names() {
            play(field.with_name(name)).await;
        }
        field.close().await;
    })
}

/// The same scenario with clients of servers of its own.
async fn open(fixture: &Fixture, topology: Topology, watchdog: Duration) -> Fixture {
    let servers = Servers::start(topology).await;
    let is_old = OLD.contains(&fixture.version());
    let several = servers.several(topology, is_old);
    let first = fixture.first.of_several(&several, watchdog).await;
    let second = fixture.second.of_several(&several, watchdog).await;
    fixture.on_several(servers, first, second)
}

/// Thirty locks in as many slots are kept for three leases.
async fn watchdog(fixture: Fixture, topology: Topology) {
    let field = open(&fixture, topology, QUICK).await;
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
    let field = open(&fixture, topology, ms(30_000)).await;
    let mut locks = tokio::task::JoinSet::new();
    for name in field.names() {
        locks.spawn(contention::a_few_mixed_workers(field.with_name(name)));
    }
    while let Some(done) = locks.join_next().await {
        done.expect("no panic");
    }
    field.close().await;
}

/// Readers and writers of both sides at one lock of each primary.
async fn storm(fixture: Fixture, topology: Topology) {
    let field = open(&fixture, topology, ms(read_write::storm::WATCHDOG)).await;
    let mut locks = tokio::task::JoinSet::new();
    for name in field.names() {
        let parties = [field.first.clone(), field.second.clone()];
        locks.spawn(async move { read_write::storm::work(&parties, &name, 8).await });
    }
    while let Some(done) = locks.join_next().await {
        done.expect("no panic");
    }
    for name in field.names() {
        let left = field.with_name(name.clone()).control().hash(&name);
        assert_eq!(left, "", "{name}: nothing is left");
    }
    field.close().await;
}

async fn cluster_failover(fixture: Fixture) {
    let field = open(&fixture, Topology::Cluster, ms(30_000)).await;
    let cluster = field.cluster();
    let (one, other) = (field.first.worker(), field.second.worker());
    let name = cluster.key_at(0, &fixture.name);
    one.lock(&name, None).await.expect("free");
    let waiting = begin(&other, &name);
    field.wait_for_waiter(&name).await;
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

/// A message that was published before a client has found the slot again is heard by nobody, so it may be a while.
async fn slot_moves(fixture: Fixture) {
    let field = open(&fixture, Topology::Cluster, ms(30_000)).await;
    let cluster = field.cluster();
    let (one, other) = (field.first.worker(), field.second.worker());
    let name = cluster.key_at(0, &fixture.name);
    one.lock(&name, None).await.expect("free");
    let waiting = begin(&other, &name);
    field.wait_for_waiter(&name).await;
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
    let field = open(&fixture, Topology::Sentinel, ms(30_000)).await;
    let sentinels = field.sentinels();
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

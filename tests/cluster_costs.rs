//! What locks cost the nodes of a cluster: connections, memory, script calls, processor time, and messages
//! between nodes for each way to announce a release. `docs/operations.md` plans with these figures.
//!
//! `HEAVY_SECS` says for how long locks are held; with 30 or more of them there are 20,000 locks.

use std::time::Duration;

use redisson_lock::{Announce, LockClient, LockGuard};
use test_support::{Cluster, LIMIT, eventually, lock_and_unlock, may_take, ms, tokio};

const NODES: usize = 6;
const PRIMARIES: usize = 3;
const WATCHDOG: Duration = Duration::from_secs(6);

fn heavy_secs() -> u64 {
    let secs = std::env::var("HEAVY_SECS").ok();
    let secs = secs.and_then(|secs| secs.parse().ok()).unwrap_or(4);
    // For two kinds of names, and three ways to announce a release.
    may_take(LIMIT + Duration::from_secs(6 * secs));
    secs
}

/// A figure of `INFO` or `CLUSTER INFO`, of all these nodes together.
fn sum(cluster: &Cluster, nodes: usize, words: &[&str], name: &str) -> f64 {
    let figure = |nth| {
        let text = cluster.control(nth).run(words);
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.map_or(0.0, |value| {
            let value = value.trim_start_matches(':').trim();
            value.parse().expect("a number")
        })
    };
    (0..nodes).map(figure).sum()
}

/// Seconds of the processors that the primaries have used.
fn cpu(cluster: &Cluster) -> f64 {
    let of = |name| sum(cluster, PRIMARIES, &["INFO", "cpu"], name);
    of("used_cpu_user:") + of("used_cpu_sys:")
}

fn calls(cluster: &Cluster) -> i64 {
    let of = |nth| cluster.control(nth).calls("evalsha") + cluster.control(nth).calls("eval");
    (0..PRIMARIES).map(of).sum()
}

async fn connect(cluster: &Cluster, announce: Announce) -> LockClient {
    LockClient::builder()
        .watchdog_timeout(WATCHDOG)
        .announce(announce)
        .connect(&cluster.url())
        .await
        .expect("the cluster answers")
}

#[tokio::test]
async fn connections_of_a_client() {
    let mut cluster = Cluster::start(true).await;
    let before: Vec<_> = (0..NODES)
        .map(|nth| cluster.control(nth).connections())
        .collect();
    let client = connect(&cluster, Announce::Auto).await;
    let mut opened = Vec::new();
    for stage in [
        "connected",
        "a lock in each primary",
        "a waiter in each primary",
    ] {
        if stage != "connected" {
            for nth in 0..PRIMARIES {
                let key = cluster.key_at(nth, "lock");
                let lock = client.lock(key.clone());
                if stage == "a lock in each primary" {
                    lock_and_unlock(&lock).await;
                } else {
                    // Another client's.
                    cluster.control(nth).run(&["HSET", &key, "other:1", "1"]);
                    cluster.control(nth).run(&["PEXPIRE", &key, "600"]);
                    let late = lock.lock().await.expect("its lease is soon over");
                    late.unlock().await.expect("held");
                }
            }
        }
        let more: Vec<_> = (0..NODES)
            .map(|nth| cluster.control(nth).connections() - before[nth])
            .collect();
        println!("{stage}: {more:?} connections to each node");
        opened.push(more.iter().sum::<usize>());
    }
    // The map; a connection to each primary that has been used, of which one is tried at first.
    assert_eq!(opened, [2, 1 + PRIMARIES, 1 + PRIMARIES]);
    client.close(Duration::ZERO).await;

    let last = cluster.server(2).port;
    let connections = |nth: usize| cluster.control(nth).connections();
    let before: Vec<_> = (0..PRIMARIES).map(connections).collect();
    let client = LockClient::connect(&format!("redis-cluster://127.0.0.1:{last}")).await;
    let client = client.expect("the cluster answers");
    let more: Vec<_> = (0..PRIMARIES)
        .map(|nth| connections(nth) - before[nth])
        .collect();
    println!("given the address of the last primary: {more:?} connections to each primary");
    // The map comes from the address that was given, and the primary of the first slots is tried.
    assert_eq!(more, [1, 0, 1]);
    client.close(Duration::ZERO).await;
}

#[tokio::test]
async fn held_locks() {
    let secs = heavy_secs();
    let count = if secs < 30 { 1_000 } else { 20_000 };
    let cluster = Cluster::start(true).await;
    for (what, tags) in [("names anywhere", None), ("100 to a hash tag", Some(100))] {
        let client = connect(&cluster, Announce::Auto).await;
        let memory = sum(&cluster, PRIMARIES, &["INFO", "memory"], "used_memory:");
        let mut guards: Vec<LockGuard> = Vec::new();
        for nth in 0..count {
            let name = match tags {
                None => format!("orders:stock:{nth}"),
                Some(tags) => format!("orders:{{{}}}:stock:{nth}", nth / tags),
            };
            guards.push(client.lock(name).lock().await.expect("free"));
        }
        let per_lock = sum(&cluster, PRIMARIES, &["INFO", "memory"], "used_memory:") - memory;
        let (before, used) = (calls(&cluster), cpu(&cluster));
        tokio::time::sleep(Duration::from_secs(secs)).await;
        let (made, used) = ((calls(&cluster) - before) as f64, cpu(&cluster) - used);
        let renewed = count as f64 * secs as f64 / (WATCHDOG.as_secs_f64() / 3.0);
        println!(
            "{count} held locks, {what}: {:.0} bytes each; {:.1} of them to a renewal call; {:.1} µs of a primary's \
             processor for each renewed lock",
            per_lock / count as f64,
            renewed / made,
            used * 1e6 / renewed,
        );
        // The first and the last renewal may lie on either side.
        let to_a_call = renewed / made;
        match tags {
            None => assert!(to_a_call < 4.0, "{to_a_call}"),
            // At most 25, if the server is older than Redis 7.2; otherwise 100.
            Some(_) => assert!(to_a_call > 10.0, "{to_a_call}"),
        }
        assert_eq!(client.stats().lost_total, 0);
        for guard in guards {
            guard.unlock().await.expect("held");
        }
        client.close(Duration::ZERO).await;
    }
}

#[tokio::test]
async fn announced_releases() {
    let rounds = if heavy_secs() < 30 { 100 } else { 2_000 };
    let cluster = Cluster::start(true).await;
    let sent = |kind: &str| {
        let name = format!("cluster_stats_messages_{kind}_sent:");
        sum(&cluster, NODES, &["CLUSTER", "INFO"], &name)
    };
    // With `Auto` the classic channels of these clients are where no release counts them as listeners.
    let ways = [
        (Announce::Sharded, 0, 0.0, 1.0),
        (Announce::Sharded, 1, 0.0, 1.0),
        (Announce::Auto, 0, 0.0, 1.0),
        (Announce::Auto, 1, 0.0, 1.0),
        (Announce::Auto, 2, 0.0, 1.0),
        (Announce::Classic, 1, 5.0, 0.0),
        (Announce::Both, 1, 5.0, 1.0),
    ];
    for (announce, primary, classic, sharded) in ways {
        let clients = [
            connect(&cluster, announce).await,
            connect(&cluster, announce).await,
        ];
        let name = cluster.key_at(primary, &format!("stock:{announce:?}"));
        let locks = clients.each_ref().map(|client| client.lock(name.clone()));
        let mut guard = locks[0].lock().await.expect("free");
        let (messages, used) = ([sent("publish"), sent("publishshard")], cpu(&cluster));
        for round in 1..=rounds {
            let (next, client) = (locks[round % 2].clone(), &clients[round % 2]);
            let waiter = tokio::spawn(async move { next.lock().await });
            let waits = || client.stats().waiting == 1 && client.stats().subscriptions == 1;
            eventually("the other waits", ms(5_000), waits).await;
            guard.unlock().await.expect("held");
            guard = waiter.await.expect("no panic").expect("handed over");
        }
        let for_each = |before: f64, now: f64| (now - before) / rounds as f64;
        let (publish, shard) = (
            for_each(messages[0], sent("publish")),
            for_each(messages[1], sent("publishshard")),
        );
        println!(
            "{announce:?}, a lock of primary {primary}: {publish:.2} messages to other nodes and {shard:.2} to replicas for each release; {:.0} µs of the \
             primaries' processors for each hand-off",
            used_since(&cluster, used) * 1e6 / rounds as f64
        );
        guard.unlock().await.expect("held");
        assert!((publish - classic).abs() < 0.5, "{announce:?}: {publish}");
        assert!((shard - sharded).abs() < 0.5, "{announce:?}: {shard}");
        for client in clients {
            client.close(Duration::ZERO).await;
        }
    }
}

fn used_since(cluster: &Cluster, before: f64) -> f64 {
    cpu(cluster) - before
}

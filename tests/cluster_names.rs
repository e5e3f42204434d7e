//! Servers of a cluster that change their names or identities while locks are held there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redisson_lock::{ConnectionFence, HoldState, LockClient};
use test_support::{Cluster, eventually, ms, slot, tokio};

async fn connect(url: &str, name: &str) -> LockClient {
    LockClient::builder()
        .watchdog_timeout(ms(6_000))
        .command_timeout(ms(900))
        .client_name(name)
        .connect(url)
        .await
        .expect("the cluster responds")
}

fn set(cluster: &Cluster, name: &str, value: &str) {
    for nth in 0..cluster.len() {
        let words = ["CONFIG", "SET", name, value];
        cluster.control(nth).run(&words);
    }
}

/// One connection for commands a client and server, whatever the server is called.
fn is_one_server_each(cluster: &Cluster, name: &str) {
    for nth in 0..cluster.len() {
        let connections = cluster.script_connections(nth, name);
        assert!(connections <= 1, "{connections} connections to node {nth}");
    }
}

/// The servers are called by their address, then by a host name, then by none at all.
#[tokio::test]
async fn names_that_change_under_load_cost_no_hold_and_no_call() {
    let cluster = Arc::new(Cluster::start(false).await);
    let client = connect(&cluster.url(), "renamed").await;
    let keys: Vec<String> = (0..3).map(|nth| cluster.key_at(nth, "load")).collect();
    let (stop, sections) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let workers: Vec<_> = (0..9)
        .map(|nth| {
            let lock = client.lock(keys[nth % 3].clone());
            let (stop, sections) = (Arc::clone(&stop), Arc::clone(&sections));
            tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let guard = lock.lock().await.expect("nothing fails");
                    guard.unlock().await.expect("nothing fails");
                    sections.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let mut held = Vec::new();
    for nth in 0..20 {
        held.push(
            client
                .lock(format!("held:{nth}"))
                .lock()
                .await
                .expect("free"),
        );
    }
    let moved = cluster.key_at(0, "moves");
    set(&cluster, "cluster-announce-hostname", "localhost");
    for (nth, kind) in ["hostname", "unknown-endpoint", "ip"]
        .into_iter()
        .enumerate()
    {
        set(&cluster, "cluster-preferred-endpoint-type", kind);
        // Sends clients on, by the name of the time.
        let (from, to) = (nth % 2, 1 - nth % 2);
        cluster.move_slot(slot(&moved), from, to);
        let guard = client.lock(&*moved).lock().await.expect("it is followed");
        assert_eq!(cluster.control(to).count(&moved), 1);
        guard.unlock().await.expect("held");
        // A connection that is made now uses that name.
        let before = client.stats().reconnects_total;
        cluster
            .control(to)
            .run(&["CLIENT", "KILL", "TYPE", "normal"]);
        let reconnected = || client.stats().reconnects_total > before;
        eventually("it is replaced", ms(5_000), reconnected).await;
        let at = sections.load(Ordering::SeqCst);
        let goes_on = || sections.load(Ordering::SeqCst) > at + 30;
        eventually("the work goes on", ms(10_000), goes_on).await;
        is_one_server_each(&cluster, "renamed");
    }
    stop.store(true, Ordering::SeqCst);
    for worker in workers {
        worker.await.expect("no panic");
    }
    let stats = client.stats();
    assert_eq!((stats.nodes, stats.failovers_total), (3, 0), "{stats:?}");
    assert_eq!(
        (stats.lost_total, stats.connection_fence),
        (0, ConnectionFence::Active)
    );
    for guard in held {
        assert_eq!(guard.state(), HoldState::Held);
        guard.unlock().await.expect("held");
    }
    client.close(Duration::ZERO).await;
}

/// The seeds are two names of the same servers, and each node knows the others by the name that it is asked by.
#[tokio::test]
async fn two_seeds_that_name_servers_differently_lead_to_one_server_each() {
    let settings = ["--cluster-preferred-endpoint-type", "unknown-endpoint"];
    let mut cluster = Cluster::start_with(false, &settings).await;
    let url = format!(
        "redis-cluster://localhost:{}?node=127.0.0.1:{}",
        cluster.port(0),
        cluster.port(1)
    );
    let client = connect(&url, "seeded").await;
    let keys: Vec<String> = (0..3).map(|nth| cluster.key_at(nth, "lock")).collect();
    for _ in 0..3 {
        for key in &keys {
            let guard = client.lock(&**key).lock().await.expect("free");
            guard.unlock().await.expect("held");
        }
        // The next report may come from the other seed.
        for nth in 0..3 {
            cluster
                .control(nth)
                .run(&["CLIENT", "KILL", "TYPE", "normal"]);
        }
        eventually("it is connected", ms(5_000), || client.is_connected()).await;
        is_one_server_each(&cluster, "seeded");
    }
    // After a restart a node has its identity again, and none of its data.
    cluster.server(1).kill();
    cluster.server(1).start_again();
    cluster.works().await;
    // The client asks again within a second, which is longer than its command timeout.
    eventually("it is connected", ms(5_000), || client.is_connected()).await;
    let guard = client.lock(&*keys[1]).lock().await.expect("free");
    guard.unlock().await.expect("held");
    is_one_server_each(&cluster, "seeded");
    let stats = client.stats();
    assert_eq!((stats.nodes, stats.failovers_total), (3, 0), "{stats:?}");
    assert_eq!(stats.connection_fence, ConnectionFence::Active);
    client.close(Duration::ZERO).await;
}

#[tokio::test]
async fn a_node_that_was_reset_is_followed_under_its_next_identity() {
    let mut cluster = Cluster::start(false).await;
    let added = cluster.add_primary().await;
    // It would become a replica without its last slot.
    set(&cluster, "cluster-allow-replica-migration", "no");
    let client = connect(&cluster.url(), "reset").await;
    let key = cluster.key_at(0, "moves");
    for _ in 0..2 {
        cluster.move_slot(slot(&key), 0, added);
        let guard = client.lock(&*key).lock().await.expect("it is followed");
        assert_eq!(cluster.control(added).count(&key), 1);
        guard.unlock().await.expect("held");
        cluster.move_slot(slot(&key), added, 0);
        let guard = client.lock(&*key).lock().await.expect("it is followed");
        guard.unlock().await.expect("held");
        cluster.reset_hard(added).await;
    }
    is_one_server_each(&cluster, "reset");
    assert_eq!(client.stats().connection_fence, ConnectionFence::Active);
    client.close(Duration::ZERO).await;
}

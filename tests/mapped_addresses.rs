//! Servers that announce addresses at which this client does not reach them: containers, NAT.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redisson_lock::{ConnectionFence, Error, HoldState, LockClient, LockClientBuilder};
use test_support::{Cluster, Proxy, Sentinels, eventually, ms, slot, tokio, within};

fn builder() -> LockClientBuilder {
    LockClient::builder()
        .watchdog_timeout(ms(6_000))
        .command_timeout(ms(900))
}

/// Port 1, 2 or 3, where nothing listens. The nodes reach each other over the ports of their bus.
fn announced(nth: usize) -> String {
    format!("127.0.0.1:{}", nth + 1)
}

/// The nodes announce ports at which nothing listens.
async fn cluster_behind_nat() -> Cluster {
    let cluster = Cluster::start(false).await;
    for nth in 0..cluster.len() {
        let (bus, port) = (cluster.port(nth) + 10_000, nth + 1);
        let bus = ["cluster-announce-bus-port", &bus.to_string()];
        let port = ["cluster-announce-port", &port.to_string()];
        for setting in [bus, port] {
            let words = [&["CONFIG", "SET"], &setting[..]].concat();
            cluster.control(nth).run(&words);
        }
    }
    for nth in 0..cluster.len() {
        let announces_all = || {
            let slots = cluster.control(nth).run(&["CLUSTER", "SLOTS"]);
            (1..=3).all(|port| slots.contains(&format!("127.0.0.1 {port} ")))
        };
        eventually(
            "all know what the others announce",
            ms(10_000),
            announces_all,
        )
        .await;
    }
    cluster.works().await;
    cluster
}

fn entries(cluster: &Cluster) -> Vec<(String, String)> {
    let real = |nth| format!("127.0.0.1:{}", cluster.port(nth));
    (0..cluster.len())
        .map(|nth| (announced(nth), real(nth)))
        .collect()
}

/// Locks on each node, a contended hand-off, and a slot that moves, with what the servers announce all the time.
async fn works_with(cluster: &Cluster, client: LockClient, other: LockClient) {
    for nth in 0..cluster.len() {
        let key = cluster.key_at(nth, "node");
        let guard = client.lock(&*key).lock().await.expect("free");
        assert_eq!(cluster.control(nth).count(&key), 1);
        // The other client waits for the message of the release.
        let lock = other.lock(&*key);
        let waiter = tokio::spawn(async move { lock.lock().await });
        eventually("it waits", ms(5_000), || other.stats().waiting == 1).await;
        guard.unlock().await.expect("held");
        let woken = within(ms(5_000), waiter).await.expect("it is woken");
        let guard = woken.expect("no panic").expect("free");
        guard.unlock().await.expect("held");
    }
    let moved = cluster.key_at(0, "moves");
    let held = client.lock(&*moved).lock().await.expect("free");
    for (from, to) in [(0, 1), (1, 2)] {
        cluster.move_slot(slot(&moved), from, to);
        let nested = client.lock(&*moved).lock().await.expect("it is followed");
        nested.unlock().await.expect("held");
        assert_eq!(cluster.control(to).count(&moved), 1);
        assert_eq!(held.state(), HoldState::Held);
    }
    // While a slot moves, commands go where ASK leads.
    let number = slot(&moved);
    cluster.begin_to_move(number, 2, 0);
    cluster.move_keys(number, 2, 0);
    let nested = client.lock(&*moved).lock().await.expect("ASK is followed");
    nested.unlock().await.expect("held");
    cluster.end_move(number, 2, 0);
    held.unlock().await.expect("held");
    for client in [client, other] {
        let stats = client.stats();
        assert_eq!((stats.nodes, stats.lost_total), (3, 0), "{stats:?}");
        assert_eq!(stats.connection_fence, ConnectionFence::Active);
        client.close(Duration::ZERO).await;
    }
    assert_eq!(cluster.keys(), [""; 0]);
}

#[tokio::test]
async fn a_cluster_that_announces_other_addresses_is_reached_through_the_map() {
    let cluster = cluster_behind_nat().await;
    let error = builder().connect(&cluster.url()).await;
    let error = error.expect_err("nothing listens there").to_string();
    assert!(error.contains("`map_addresses` can replace it"), "{error}");

    let connect = async || {
        let builder = builder().address_map(entries(&cluster));
        let connected = builder.connect(&cluster.url()).await;
        connected.expect("it is reached")
    };
    works_with(&cluster, connect().await, connect().await).await;
}

#[tokio::test]
async fn a_function_maps_what_entries_map() {
    let cluster = cluster_behind_nat().await;
    let map: BTreeMap<u16, u16> = (1..).zip((0..3).map(|nth| cluster.port(nth))).collect();
    let client = builder().map_addresses(move |host, port| {
        assert_eq!(host, "127.0.0.1", "addresses of the URL are not mapped");
        Some(("localhost".to_owned(), *map.get(&port)?))
    });
    let client = client.connect(&cluster.url()).await.expect("reached");
    let key = cluster.key_at(1, "lock");
    let guard = client.lock(&*key).lock().await.expect("free");
    guard.unlock().await.expect("held");
    client.close(Duration::ZERO).await;
}

/// A host name that only the servers know, with the IP address that a table has beside it.
#[tokio::test]
async fn unknown_host_names_give_way_to_the_ip_addresses_beside_them() {
    let cluster = Cluster::start(false).await;
    for nth in 0..cluster.len() {
        let name = format!("node-{nth}.invalid");
        let mut control = cluster.control(nth);
        control.run(&["CONFIG", "SET", "cluster-announce-hostname", &name]);
        let kind = "cluster-preferred-endpoint-type";
        control.run(&["CONFIG", "SET", kind, "hostname"]);
    }
    for nth in 0..cluster.len() {
        let announces_all = || {
            let slots = cluster.control(nth).run(&["CLUSTER", "SLOTS"]);
            (0..3).all(|nth| slots.contains(&format!("node-{nth}.invalid")))
        };
        eventually("all know the names", ms(10_000), announces_all).await;
    }
    let connect = async || {
        let connected = builder().connect(&cluster.url()).await;
        connected.expect("it is reached")
    };
    works_with(&cluster, connect().await, connect().await).await;

    // The same by entries, of which one has the name, and another the IP address.
    let port = |nth| cluster.port(nth);
    let by_ip = [1, 2].map(|nth| format!("127.0.0.1:{}", port(nth)));
    let names = [
        ("node-0.invalid".to_owned(), "localhost".to_owned()),
        (by_ip[0].clone(), by_ip[0].clone()),
        (by_ip[1].clone(), by_ip[1].clone()),
    ];
    let connect = async || {
        let builder = builder().address_map(names.clone());
        let connected = builder.connect(&cluster.url()).await;
        connected.expect("it is reached")
    };
    works_with(&cluster, connect().await, connect().await).await;
}

/// Sentinels and servers reach each other directly, and the client the servers only through proxies.
#[tokio::test]
async fn what_sentinels_announce_is_mapped_also_after_a_failover() {
    let sentinels = Sentinels::start().await;
    let mut proxies = BTreeMap::new();
    for nth in 0..3 {
        let port = sentinels.port(nth);
        proxies.insert(port, Proxy::start(port).await);
    }
    let ports: BTreeMap<u16, u16> = proxies
        .iter()
        .map(|(port, proxy)| (*port, proxy.port))
        .collect();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&asked);
    let connect = async || {
        let (ports, noted) = (ports.clone(), Arc::clone(&noted));
        builder()
            .watchdog_timeout(ms(60_000))
            .map_addresses(move |host, port| {
                noted.lock().push(port);
                Some((host.to_owned(), *ports.get(&port)?))
            })
            // One alone: the others are learned from it.
            .connect(&sentinels.url_of(0))
            .await
            .expect("the sentinel knows the primary")
    };
    let (client, other) = (connect().await, connect().await);
    let held = client.lock("stock").lock().await.expect("free");
    let lock = other.lock("stock");
    let waiter = tokio::spawn(async move { lock.lock().await });
    eventually("it waits", ms(5_000), || other.stats().waiting == 1).await;
    assert!(!proxies[&sentinels.port(0)].script_calls().is_empty());
    sentinels.fail_over().await;
    let primary = sentinels.new_primary(0, ms(15_000)).await;
    let switched = || client.stats().failovers_total >= 1;
    eventually("it is noticed", ms(15_000), switched).await;
    held.unlock().await.expect("the replica had it");
    let woken = within(ms(5_000), waiter).await.expect("it is woken");
    let guard = woken.expect("no panic").expect("free");
    guard.unlock().await.expect("held");
    assert!(!proxies[&sentinels.port(primary)].script_calls().is_empty());
    for nth in [1, 2] {
        let is_asked = || asked.lock().contains(&sentinels.sentinel_port(nth));
        eventually("another sentinel is mapped", ms(15_000), is_asked).await;
    }
    for client in [client, other] {
        client.close(Duration::ZERO).await;
    }
    for proxy in proxies.into_values() {
        proxy.stop().await;
    }
}

#[tokio::test]
async fn an_entry_that_is_no_address_is_refused_before_anything_is_asked() {
    let builder = builder().address_map([("172.20.0.2:7001", "redis://docker.example:7001")]);
    let refused = builder.connect("redis-cluster://127.0.0.1:1").await;
    let error = refused.expect_err("no address");
    assert!(matches!(
        error,
        Error::InvalidConfig {
            what: "address_map",
            ..
        }
    ));
}

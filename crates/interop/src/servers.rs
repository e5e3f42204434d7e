//! Scenarios with a server of their own: one that fails, forgets, tells of its keys, or is a node
//! of a cluster.

use std::time::Duration;

use crate::fixture::{Fixture, Messages, QUICK, Scenario, eventually, listen};
use crate::party::{Party, Several};
use crate::worker::Fail;
use redisson_lock::Announce;
use test_support::{Server, ms};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario::new("lk04_testRedisFailed", lk04).not_first(&["3.12.5"]),
        Scenario::new("lk11_testInCluster", lk11),
        Scenario::new("lk17_testLockFailoverInCluster", lk17),
        Scenario::new("lk26_testLockListener", lk26),
        Scenario::new("e01_lockAfterTimeout", e01),
    ]
}

/// Without a server an attempt is an error, not a refusal, and it comes in time.
async fn lk04(fixture: Fixture) {
    let server = Server::start();
    let worker = fixture
        .first
        .another(&server.url(), ms(30_000), &[])
        .await
        .worker();
    worker.lock(&fixture.name, None).await.expect("free");
    worker.unlock(&fixture.name).await.expect("held");
    drop(server);
    let tried = worker
        .try_lock(&fixture.name, Some(ms(5_000)), Some(ms(10_000)))
        .await;
    assert!(matches!(tried, Err(Fail::Other(_))), "{tried:?}");
}

/// A cluster of one node.
async fn cluster(fixture: &Fixture, watchdog: Duration) -> (Server, [Party; 2]) {
    let server = Server::start_with(&[
        "--cluster-enabled",
        "yes",
        "--cluster-announce-ip",
        "127.0.0.1",
    ]);
    let slots: Vec<String> = (0..16_384).map(|slot| slot.to_string()).collect();
    let mut control = server.control();
    control.run(
        &[
            &["CLUSTER", "ADDSLOTS"],
            &*slots.iter().map(String::as_str).collect::<Vec<_>>(),
        ]
        .concat(),
    );
    let works = || {
        control
            .run(&["CLUSTER", "INFO"])
            .contains("cluster_state:ok")
    };
    eventually("the cluster works", works).await;
    let servers = Several {
        rust: server.url().replacen("redis://", "redis-cluster://", 1),
        java: server.url(),
        kind: "cluster",
        name: "true".to_owned(),
        announce: Announce::Auto,
    };
    let first = fixture.first.of_several(&servers, watchdog).await;
    let second = fixture.second.of_several(&servers, watchdog).await;
    (server, [first, second])
}

async fn lk11(fixture: Fixture) {
    let (_server, [first, second]) = cluster(&fixture, QUICK).await;
    let (holder, other, name) = (first.worker(), second.worker(), &fixture.name);
    for _ in 0..3 {
        holder.lock(name, None).await.expect("free");
        assert!(holder.is_locked(name).await && other.is_locked(name).await);
        assert_eq!(other.try_lock(name, None, None).await, Ok(false));
        holder.unlock(name).await.expect("held");
        assert!(!holder.is_locked(name).await && !other.is_locked(name).await);
    }
    // Fifty together, in as many slots, for longer than their leases.
    let names: Vec<_> = (0..50).map(|nth| format!("{name}:{nth}")).collect();
    for name in &names {
        holder.lock(name, None).await.expect("free");
    }
    tokio::time::sleep(QUICK * 3).await;
    for name in &names {
        assert_eq!(
            other.try_lock(name, None, None).await,
            Ok(false),
            "{name} was renewed"
        );
        holder.unlock(name).await.expect("held");
    }
    first.close().await;
    second.close().await;
}

async fn lk17(fixture: Fixture) {
    let (_server, [first, second]) = cluster(&fixture, ms(30_000)).await;
    let (one, other, name) = (first.worker(), second.worker(), &fixture.name);
    for nth in 0..30 {
        let worker = if nth % 2 == 0 { &one } else { &other };
        assert_eq!(worker.try_lock(name, None, None).await, Ok(true));
        worker.unlock(name).await.expect("held");
    }
    first.close().await;
    second.close().await;
}

/// A subscriber to Redis' own key events, such as Redisson's listeners, receives each end
/// of a hold once: of a key that was deleted, or of one that has expired.
async fn lk26(fixture: Fixture) {
    let server = Server::start_with(&["--notify-keyspace-events", "Egx"]);
    let first = fixture.first.another(&server.url(), QUICK, &[]).await;
    let second = fixture.second.another(&server.url(), QUICK, &[]).await;
    let (holder, other, name) = (first.worker(), second.worker(), &fixture.name);
    let ends = ["del", "expired"].map(|kind| format!("__keyevent@0__:{kind}"));
    let events = &mut listen(server.port, ends.to_vec());

    for _ in 0..2 {
        holder.lock(name, None).await.expect("free, or its own");
    }
    for _ in 0..2 {
        holder.unlock(name).await.expect("held");
    }
    assert_eq!(
        next_end(events, name).await,
        "del",
        "the last unlock, and no other"
    );
    holder.lock(name, None).await.expect("free");
    other.force_unlock(name).await.expect("answered");
    assert_eq!(next_end(events, name).await, "del", "the forced unlock");
    holder.unlock_too_late(name).await;
    other.lock(name, None).await.expect("free");
    other.unlock(name).await.expect("held");
    assert_eq!(
        next_end(events, name).await,
        "del",
        "nothing came in between"
    );
    holder.lock(name, None).await.expect("free");
    first.close().await;
    assert_eq!(
        next_end(events, name).await,
        "expired",
        "nobody gave it back"
    );
    second.close().await;
}

/// How a key ended next.
async fn next_end(events: &mut Messages, name: &str) -> String {
    loop {
        let event = tokio::time::timeout(ms(20_000), events.recv())
            .await
            .expect("an event in time");
        let (kind, key) = event.expect("the server runs");
        if key == name {
            return kind.rsplit(':').next().expect("a kind").to_owned();
        }
    }
}

/// A server that comes back empty: what was held is lost, and what is taken then is renewed.
async fn e01(fixture: Fixture) {
    let mut server = Server::start();
    let first = fixture.first.another(&server.url(), QUICK, &[]).await;
    let second = fixture.second.another(&server.url(), QUICK, &[]).await;
    let (holder, other, name) = (first.worker(), second.worker(), &fixture.name);
    holder.lock(name, None).await.expect("free");
    server.lose_everything();
    tokio::time::sleep(ms(2_000)).await;
    holder.unlock_too_late(name).await;
    for _ in 0..2 {
        holder.lock(name, None).await.expect("free");
        tokio::time::sleep(QUICK * 2).await;
        assert_eq!(
            other.try_lock(name, None, None).await,
            Ok(false),
            "it was renewed"
        );
        holder.unlock(name).await.expect("held");
    }
    first.close().await;
    second.close().await;
}

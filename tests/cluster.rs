//! Three primaries and their replicas: locks in every slot, slots that move, failovers.

use std::time::{Duration, Instant};

use redisson_lock::{HoldState, LockClient, LockClientBuilder, LossReason};
use test_support::{Cluster, eventually, ms, slot};

fn brisk(builder: LockClientBuilder) -> LockClientBuilder {
    builder.watchdog_timeout(ms(6_000)).command_timeout(ms(900))
}

async fn connect(cluster: &Cluster) -> LockClient {
    brisk(LockClient::builder())
        .connect(&cluster.url())
        .await
        .expect("the cluster answers")
}

async fn nothing_is_left(cluster: &Cluster, clients: impl IntoIterator<Item = LockClient>) {
    eventually("no key is left", ms(10_000), || cluster.keys().is_empty()).await;
    for client in clients {
        let report = client.close(Duration::ZERO).await;
        assert!(report.abandoned.is_empty(), "{report:?}");
    }
}

#[tokio::test]
async fn locks_are_taken_nested_and_released_in_every_part_of_the_cluster() {
    let cluster = Cluster::start(false).await;
    let client = connect(&cluster).await;
    assert_eq!(client.stats().nodes, 3);
    let mut seen = [0; 3];
    for nth in 0..60 {
        let name = format!("lock:{nth}");
        let lock = client.lock(name.clone());
        let outer = lock.lock().await.expect("free");
        let inner = lock.lock().await.expect("ours");
        let owner = cluster.owner(&name);
        seen[owner] += 1;
        assert_eq!(cluster.control(owner).count(&name), 2);
        inner.unlock().await.expect("held");
        outer.unlock().await.expect("held");
    }
    assert!(seen.iter().all(|&times| times > 5), "{seen:?}");
    assert_eq!(client.stats().redirects_total, 0);
    nothing_is_left(&cluster, [client]).await;
}

#[tokio::test]
async fn a_name_whose_channel_is_in_another_slot_is_refused_before_anything_is_sent() {
    let cluster = Cluster::start(false).await;
    let client = connect(&cluster).await;
    for name in ["a{b", "a}b", "{}x", "}a", "a{}b{c}"] {
        let refused = client.lock(name).try_lock().await.expect_err("refused");
        assert!(
            refused.to_string().contains("different slots"),
            "{name}: {refused}"
        );
    }
    for name in ["a", "{t}:a", "a}b{c}", "a{b}c{d", "{{t}}", "x{y}z{w}"] {
        let guard = client.lock(name).try_lock().await.expect("accepted");
        guard.expect("free").unlock().await.expect("held");
    }
    nothing_is_left(&cluster, [client]).await;
}

#[tokio::test]
async fn a_slot_that_has_moved_is_followed() {
    let cluster = Cluster::start(false).await;
    let client = connect(&cluster).await;
    let key = cluster.key_at(0, "moves");
    let guard = client.lock(key.clone()).lock().await.expect("free");
    cluster.move_slot(slot(&key), 0, 1);
    let nested = client.lock(key.clone()).lock().await.expect("ours");
    assert_eq!(cluster.control(1).count(&key), 2, "it has followed");
    nested.unlock().await.expect("held");
    guard.unlock().await.expect("held");
    assert!(client.stats().redirects_total >= 1);
    nothing_is_left(&cluster, [client]).await;
}

#[tokio::test]
async fn a_slot_that_is_on_its_way_is_asked_for() {
    let cluster = Cluster::start(false).await;
    let (client, other) = (connect(&cluster).await, connect(&cluster).await);
    let key = cluster.key_at(0, "moves");
    cluster.begin_to_move(slot(&key), 0, 1);
    // A key that is not there is made at the target.
    let guard = client.lock(key.clone()).lock().await.expect("free");
    let asked = cluster.control(0).try_run(&["EXISTS", &key]);
    assert!(asked.is_err(), "the source sends everybody on: {asked:?}");
    assert!(
        other
            .lock(key.clone())
            .try_lock()
            .await
            .expect("an answer")
            .is_none()
    );
    let nested = client.lock(key.clone()).lock().await.expect("ours");
    nested.unlock().await.expect("held");
    cluster.end_move(slot(&key), 0, 1);
    assert_eq!(cluster.control(1).count(&key), 1);
    guard.unlock().await.expect("held");
    nothing_is_left(&cluster, [client, other]).await;
}

#[tokio::test]
async fn a_planned_failover_loses_nothing() {
    let cluster = Cluster::start(true).await;
    let client = connect(&cluster).await;
    let key = cluster.key_at(0, "held");
    let guard = client.lock(key.clone()).lock().await.expect("free");
    cluster.fail_over_to(3).await;
    let switched = || client.stats().failovers_total == 1;
    eventually("it is noticed", ms(7_000), switched).await;
    let nested = client.lock(key.clone()).lock().await.expect("ours");
    nested.unlock().await.expect("held");
    assert_eq!(guard.state(), HoldState::Held);
    guard.unlock().await.expect("held");
    nothing_is_left(&cluster, [client]).await;
}

#[tokio::test]
async fn a_killed_primary_is_replaced_and_what_was_not_replicated_is_told() {
    let mut cluster = Cluster::start(true).await;
    let client = connect(&cluster).await;
    let kept = cluster.key_at(0, "kept");
    let lost = cluster.key_at(0, "lost");
    let elsewhere = cluster.key_at(1, "elsewhere");
    let kept_guard = client.lock(kept.clone()).lock().await.expect("free");
    let elsewhere_guard = client.lock(elsewhere).lock().await.expect("free");
    let replicated = || cluster.control(3).count_on_replica(&kept) == 1;
    eventually("it is replicated", ms(5_000), replicated).await;
    // From here on the replica hears nothing.
    cluster.server(3).pause();
    cluster
        .control(0)
        .run(&["CLIENT", "KILL", "TYPE", "replica"]);
    let lost_guard = client.lock(lost).lock().await.expect("free");
    cluster.server(0).kill();
    cluster.server(3).resume();
    cluster.is_primary(3, ms(15_000)).await;
    let promoted = Instant::now();
    let reason = tokio::time::timeout(ms(2_000), lost_guard.lost()).await;
    assert_eq!(reason, Ok(LossReason::Gone), "told within two seconds");
    println!("told {:?} after the promotion", promoted.elapsed());
    assert_eq!(kept_guard.state(), HoldState::Held);
    assert_eq!(elsewhere_guard.state(), HoldState::Held);
    drop(lost_guard);
    kept_guard.unlock().await.expect("held");
    elsewhere_guard.unlock().await.expect("held");
    nothing_is_left(&cluster, [client]).await;
}

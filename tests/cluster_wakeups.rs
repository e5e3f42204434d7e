//! Waiters in a cluster: woken over classic and sharded channels, whichever client releases, and wherever the slot goes.

use std::time::{Duration, Instant};

use redisson_lock::{Announce, Error, Lock, LockClient, LockGuard};
use test_support::{Cluster, Control, FakeCluster, eventually, ms, slot, stalls, tokio};
use tokio::task::JoinHandle;

const OTHER: &str = "11111111-1111-4111-8111-111111111111:1";

async fn connect(cluster: &Cluster, announce: Announce) -> LockClient {
    LockClient::builder()
        .watchdog_timeout(ms(30_000))
        .command_timeout(ms(900))
        .announce(announce)
        .connect(&cluster.url())
        .await
        .expect("the cluster answers")
}

fn wait_for(client: &LockClient, key: &str) -> JoinHandle<(Instant, Result<LockGuard, Error>)> {
    wait_for_lock(client.lock(key))
}

fn wait_for_lock(lock: Lock) -> JoinHandle<(Instant, Result<LockGuard, Error>)> {
    tokio::spawn(async move {
        let guard = lock.lock().await;
        (Instant::now(), guard)
    })
}

/// Waits until the client waits, with every subscription that it wants.
async fn is_waiting(cluster: &Cluster, client: &LockClient, key: &str, announce: Announce) {
    eventually("it waits", ms(5_000), || client.stats().waiting == 1).await;
    let channel = format!("redisson_lock__channel:{{{key}}}");
    if announce != Announce::Classic {
        let subscribed = || {
            let mut owner = cluster.control(cluster.owner(key));
            owner
                .run(&["PUBSUB", "SHARDNUMSUB", &channel])
                .ends_with(" 1")
        };
        eventually("it listens at the owner", ms(5_000), subscribed).await;
    }
    if announce != Announce::Sharded {
        let subscribed = || {
            (0..3).any(|nth| {
                let listeners = cluster.control(nth).run(&["PUBSUB", "NUMSUB", &channel]);
                listeners.ends_with(" 1")
            })
        };
        eventually("it listens somewhere", ms(5_000), subscribed).await;
    }
}

async fn woken(
    waiter: JoinHandle<(Instant, Result<LockGuard, Error>)>,
    released: Instant,
    within: Duration,
) {
    let (at, guard) = tokio::time::timeout(within + ms(20_000), waiter)
        .await
        .expect("before the lease is over")
        .expect("no panic");
    guard.expect("free").unlock().await.expect("held");
    let took = at.saturating_duration_since(released);
    assert!(took <= within + stalls(released), "woken after {took:?}");
}

/// What another program does that holds the lock: taken without a message, freed without one.
fn take(control: &mut Control, key: &str) {
    control.run(&["HINCRBY", key, OTHER, "1"]);
    control.run(&["PEXPIRE", key, "30000"]);
}

#[tokio::test]
async fn every_way_of_announcing_wakes_those_who_listen_for_it() {
    let cluster = Cluster::start(false).await;
    let ways = [
        (Announce::Auto, Announce::Auto),
        (Announce::Auto, Announce::Sharded),
        (Announce::Both, Announce::Classic),
        (Announce::Both, Announce::Sharded),
        (Announce::Classic, Announce::Auto),
        (Announce::Sharded, Announce::Auto),
        (Announce::Sharded, Announce::Sharded),
        (Announce::Classic, Announce::Classic),
    ];
    for (nth, (releasing, listening)) in ways.into_iter().enumerate() {
        let key = cluster.key_at(nth % 3, &format!("woken{nth}"));
        let (holder, other) = (
            connect(&cluster, releasing).await,
            connect(&cluster, listening).await,
        );
        let guard = holder.lock(key.clone()).lock().await.expect("free");
        let waiter = wait_for(&other, &key);
        is_waiting(&cluster, &other, &key, listening).await;
        let released = Instant::now();
        guard.unlock().await.expect("held");
        woken(waiter, released, ms(250)).await;
        holder.close(Duration::ZERO).await;
        other.close(Duration::ZERO).await;
    }
}

#[tokio::test]
async fn releases_of_redissons_of_both_eras_are_heard() {
    let cluster = Cluster::start(false).await;
    let client = connect(&cluster, Announce::Auto).await;
    for (nth, publish) in ["SPUBLISH", "PUBLISH"].into_iter().enumerate() {
        let key = cluster.key_at(nth, "era");
        let channel = format!("redisson_lock__channel:{{{key}}}");
        let mut control = cluster.control(nth);
        take(&mut control, &key);
        let waiter = wait_for(&client, &key);
        is_waiting(&cluster, &client, &key, Announce::Auto).await;
        let released = Instant::now();
        control.run(&["DEL", &key]);
        control.run(&[publish, &channel, "0"]);
        woken(waiter, released, ms(250)).await;
    }
    client.close(Duration::ZERO).await;
}

/// An old Redisson listens at the primary that has the slot.
#[tokio::test]
async fn an_old_listener_at_the_owner_is_found_by_the_release() {
    let cluster = Cluster::start(false).await;
    let client = connect(&cluster, Announce::Auto).await;
    let key = cluster.key_at(1, "old");
    let channel = format!("redisson_lock__channel:{{{key}}}");
    let mut control = cluster.control(1);
    let mut heard = control.connection.as_pubsub();
    heard.subscribe(&channel).expect("subscribed");
    let guard = client.lock(key).lock().await.expect("free");
    guard.unlock().await.expect("held");
    heard
        .set_read_timeout(Some(Duration::from_secs(5)))
        .expect("set");
    let message = heard.get_message().expect("it is published");
    assert_eq!(message.get_payload::<String>().expect("text"), "0");
    client.close(Duration::ZERO).await;
}

/// The release is executed at the node that takes over its slot; the listener is at the other one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_listener_is_found_by_a_release_of_a_slot_on_its_way() {
    let cluster = Cluster::start(false).await;
    let client = connect(&cluster, Announce::Auto).await;
    let key = cluster.key_at(1, "old");
    let channel = format!("redisson_lock__channel:{{{key}}}");
    let mut control = cluster.control(1);
    let mut heard = control.connection.as_pubsub();
    heard.subscribe(&channel).expect("subscribed");
    cluster.begin_to_move(slot(&key), 1, 2);
    let guard = client.lock(key).lock().await.expect("free");
    guard.unlock().await.expect("held");
    heard
        .set_read_timeout(Some(Duration::from_secs(5)))
        .expect("set");
    let message = heard.get_message().expect("it is published");
    assert_eq!(message.get_payload::<String>().expect("text"), "0");
    client.close(Duration::ZERO).await;
}

/// The map is the same before and behind, and the subscription is gone all the same.
#[tokio::test]
async fn a_subscription_that_is_gone_without_a_change_of_the_map_is_noticed() {
    let cluster = Cluster::start(false).await;
    for other in ["a", "z"] {
        let client = connect(&cluster, Announce::Sharded).await;
        there_and_back(&cluster, client, other).await;
    }
}

async fn there_and_back(cluster: &Cluster, client: LockClient, other: &str) {
    let other = cluster.key_at(0, other);
    take(&mut cluster.control(0), &other);
    let waits_on = wait_for(&client, &other);
    is_waiting(cluster, &client, &other, Announce::Sharded).await;
    let key = cluster.key_at(0, "there-and-back");
    take(&mut cluster.control(0), &key);
    let waiter = wait_for(&client, &key);
    let channel = format!("redisson_lock__channel:{{{key}}}");
    let subscribed = || {
        let listeners = cluster.control(0).run(&["PUBSUB", "SHARDNUMSUB", &channel]);
        listeners.ends_with(" 1")
    };
    eventually("it listens", ms(7_000), subscribed).await;
    cluster.move_slot(slot(&key), 0, 1);
    cluster.move_slot(slot(&key), 1, 0);
    eventually("it listens again", ms(7_000), subscribed).await;
    let released = Instant::now();
    cluster.control(0).run(&["DEL", &key]);
    cluster.control(0).run(&["SPUBLISH", &channel, "0"]);
    woken(waiter, released, ms(250)).await;
    cluster.control(0).run(&["DEL", &other]);
    let other = format!("redisson_lock__channel:{{{other}}}");
    let released = Instant::now();
    cluster.control(0).run(&["SPUBLISH", &other, "0"]);
    woken(waits_on, released, ms(250)).await;
    client.close(Duration::ZERO).await;
}

/// A message that was published between the loss of a subscription and the next one is heard by nobody.
#[tokio::test]
async fn a_message_that_nobody_has_heard_costs_no_lease() {
    let cluster = Cluster::start(false).await;
    let client = connect(&cluster, Announce::Sharded).await;
    let key = cluster.key_at(0, "unheard");
    take(&mut cluster.control(0), &key);
    let waiter = wait_for(&client, &key);
    is_waiting(&cluster, &client, &key, Announce::Sharded).await;
    cluster.move_slot(slot(&key), 0, 1);
    cluster.move_slot(slot(&key), 1, 0);
    let channel = format!("redisson_lock__channel:{{{key}}}");
    let released = Instant::now();
    cluster.control(0).run(&["DEL", &key]);
    cluster.control(0).run(&["SPUBLISH", &channel, "0"]);
    woken(waiter, released, ms(5_000)).await;
    client.close(Duration::ZERO).await;
}

/// The connections with sharded channels at the first node, as the list of its clients begins them.
fn ids_of_listeners(cluster: &Cluster) -> Vec<String> {
    let list = cluster.control(0).run(&["CLIENT", "LIST"]);
    let listening = list.lines().filter(|line| line.contains(" ssub=1 "));
    let id = |line: &str| line.split(' ').next().map(|id| format!("{id} "));
    listening.filter_map(id).collect()
}

#[tokio::test]
async fn a_slot_that_nobody_has_for_a_while_is_listened_to_again() {
    let settings = ["--cluster-require-full-coverage", "no"];
    let cluster = Cluster::start_with(false, &settings).await;
    let client = connect(&cluster, Announce::Sharded).await;
    let key = cluster.key_at(0, "nobody");
    let (number, channel) = (
        slot(&key).to_string(),
        format!("redisson_lock__channel:{{{key}}}"),
    );
    take(&mut cluster.control(0), &key);
    // An attempt while nobody has the slot fails.
    let waiter = wait_for_lock(client.lock(&key).retry_for(ms(60_000)));
    is_waiting(&cluster, &client, &key, Announce::Sharded).await;
    for nth in 0..3 {
        cluster.control(nth).run(&["CLUSTER", "DELSLOTS", &number]);
    }
    let is_refused = || {
        let stats = cluster.control(0).run(&["INFO", "commandstats"]);
        let mut lines = stats.lines();
        let line = lines.find(|line| line.starts_with("cmdstat_ssubscribe:"));
        line.is_some_and(|line| !line.contains("rejected_calls=0,"))
    };
    eventually("the client asks again", ms(7_000), is_refused).await;
    // The others learn of it from this one.
    cluster.control(0).run(&["CLUSTER", "ADDSLOTS", &number]);
    let subscribed = || {
        let mut owner = cluster.control(0);
        let listeners = owner.try_run(&["PUBSUB", "SHARDNUMSUB", &channel]);
        listeners.is_ok_and(|listeners| listeners.ends_with(" 1"))
    };
    eventually("it listens again", ms(12_000), subscribed).await;
    let released = Instant::now();
    cluster.control(0).run(&["DEL", &key]);
    cluster.control(0).run(&["SPUBLISH", &channel, "0"]);
    woken(waiter, released, ms(1_500)).await;
    client.close(Duration::ZERO).await;
}

#[tokio::test]
async fn without_old_listeners_nothing_is_published_to_every_node() {
    let cluster = Cluster::start(false).await;
    let client = connect(&cluster, Announce::Auto).await;
    for nth in 0..30 {
        let guard = client
            .lock(format!("quiet:{nth}"))
            .lock()
            .await
            .expect("free");
        guard.unlock().await.expect("held");
    }
    let calls =
        |command: &str| -> i64 { (0..3).map(|nth| cluster.control(nth).calls(command)).sum() };
    assert_eq!((calls("spublish"), calls("publish")), (30, 0));
    client.close(Duration::ZERO).await;
}

/// Its classic channel is at another primary than its lock's, which counts who listens.
#[tokio::test]
async fn a_waiter_with_auto_does_not_count_as_an_old_listener() {
    let cluster = Cluster::start(false).await;
    let (holder, other) = (
        connect(&cluster, Announce::Auto).await,
        connect(&cluster, Announce::Auto).await,
    );
    for nth in 0..3 {
        let key = cluster.key_at(nth, "own");
        let guard = holder.lock(key.clone()).lock().await.expect("free");
        let waiter = wait_for(&other, &key);
        is_waiting(&cluster, &other, &key, Announce::Auto).await;
        let released = Instant::now();
        guard.unlock().await.expect("held");
        woken(waiter, released, ms(250)).await;
    }
    let published: i64 = (0..3)
        .map(|nth| cluster.control(nth).calls("publish"))
        .sum();
    assert_eq!(published, 0);
    for client in [holder, other] {
        client.close(Duration::ZERO).await;
    }
}

#[tokio::test]
async fn a_waiter_is_woken_at_every_stage_of_a_migration() {
    let cluster = Cluster::start(false).await;
    let (holder, other) = (
        connect(&cluster, Announce::Auto).await,
        connect(&cluster, Announce::Auto).await,
    );
    stages(&cluster, holder, other).await;
}

#[tokio::test]
async fn a_cluster_is_spoken_to_by_the_newer_version_of_the_protocol() {
    let cluster = Cluster::start(false).await;
    let (holder, other) = (
        connect(&cluster, Announce::Auto).await,
        connect(&cluster, Announce::Auto).await,
    );
    for nth in 0..3 {
        let key = cluster.key_at(nth, "resp3");
        let guard = holder.lock(key.clone()).lock().await.expect("free");
        let nested = holder.lock(key.clone()).lock().await.expect("ours");
        assert_eq!(cluster.control(nth).count(&key), 2);
        nested.unlock().await.expect("held");
        let waiter = wait_for(&other, &key);
        is_waiting(&cluster, &other, &key, Announce::Auto).await;
        let released = Instant::now();
        guard.unlock().await.expect("held");
        woken(waiter, released, ms(250)).await;
        let list = cluster.control(nth).run(&["CLIENT", "LIST"]);
        let is_of_the_test =
            |line: &&str| line.contains("name=control") || line.contains("cmd=pubsub");
        let mut ours = list.lines().filter(|line| !is_of_the_test(line));
        // Redis 6.2 does not show it.
        let speaks = |line: &str| line.contains(" resp=3") || !line.contains(" resp=");
        assert!(ours.clone().count() >= 2 && ours.all(speaks), "{list}");
    }
    stages(&cluster, holder, other).await;
}

async fn stages(cluster: &Cluster, holder: LockClient, other: LockClient) {
    // Before anything moves; while the slot is on its way, the key at the source or at the target; and behind.
    for stage in 0..4 {
        let key = cluster.key_at(0, &format!("stage{stage}"));
        let slot = slot(&key);
        let guard = holder.lock(key.clone()).lock().await.expect("free");
        let waiter = wait_for(&other, &key);
        is_waiting(cluster, &other, &key, Announce::Auto).await;
        if stage >= 1 {
            cluster.begin_to_move(slot, 0, 1);
        }
        if stage >= 2 {
            cluster.move_keys(slot, 0, 1);
        }
        if stage >= 3 {
            cluster.end_move(slot, 0, 1);
        }
        let released = Instant::now();
        guard.unlock().await.expect("held");
        woken(waiter, released, ms(5_000)).await;
        println!(
            "stage {stage}: woken {:?} after the unlock began",
            released.elapsed()
        );
        if (1..3).contains(&stage) {
            cluster.end_move(slot, 0, 1);
        }
    }
    for client in [holder, other] {
        client.close(Duration::ZERO).await;
    }
}

/// The connection that it has left serves the channels that stay.
#[tokio::test]
async fn a_subscription_that_went_with_its_slot_is_made_anew() {
    let cluster = Cluster::start(false).await;
    let client = connect(&cluster, Announce::Sharded).await;
    let stays = cluster.key_at(0, "stays");
    take(&mut cluster.control(0), &stays);
    let waits_on = wait_for(&client, &stays);
    is_waiting(&cluster, &client, &stays, Announce::Sharded).await;
    let key = cluster.key_at(0, "moves");
    take(&mut cluster.control(0), &key);
    let waiter = wait_for(&client, &key);
    let channel = format!("redisson_lock__channel:{{{key}}}");
    let subscribed_at = |nth: usize| {
        let words = ["PUBSUB", "SHARDNUMSUB", &channel];
        cluster.control(nth).run(&words).ends_with(" 1")
    };
    eventually("it listens", ms(5_000), || subscribed_at(0)).await;
    let heartbeats = || cluster.control(0).calls("ping");
    let before = heartbeats();
    eventually("a heartbeat", ms(5_000), || heartbeats() > before).await;
    cluster.move_slot(slot(&key), 0, 1);
    // The client hears of it from the server and by a refused call.
    let free = client.lock(&*key).try_lock().await.expect("answered");
    assert!(free.is_none());
    eventually("it listens at the new owner", ms(7_000), || {
        subscribed_at(1)
    })
    .await;
    let listening = ids_of_listeners(&cluster);
    assert_eq!(listening.len(), 1);
    let before = heartbeats();
    eventually("two heartbeats", ms(5_000), || heartbeats() >= before + 2).await;
    assert_eq!(ids_of_listeners(&cluster), listening, "it was replaced");
    let released = Instant::now();
    cluster.control(1).run(&["DEL", &key]);
    cluster.control(1).run(&["SPUBLISH", &channel, "0"]);
    woken(waiter, released, ms(250)).await;
    let released = Instant::now();
    cluster.control(0).run(&["DEL", &stays]);
    let channel = format!("redisson_lock__channel:{{{stays}}}");
    cluster.control(0).run(&["SPUBLISH", &channel, "0"]);
    woken(waits_on, released, ms(250)).await;
    client.close(Duration::ZERO).await;
}

#[tokio::test]
async fn a_failover_under_a_waiter_loses_neither_lock_nor_wake_up() {
    let cluster = Cluster::start(true).await;
    let (holder, other) = (
        connect(&cluster, Announce::Auto).await,
        connect(&cluster, Announce::Auto).await,
    );
    let key = cluster.key_at(0, "failover");
    let guard = holder.lock(key.clone()).lock().await.expect("free");
    let waiter = wait_for(&other, &key);
    is_waiting(&cluster, &other, &key, Announce::Auto).await;
    cluster.fail_over_to(3).await;
    let channel = format!("redisson_lock__channel:{{{key}}}");
    let subscribed = || {
        let listeners = cluster.control(3).run(&["PUBSUB", "SHARDNUMSUB", &channel]);
        listeners.ends_with(" 1")
    };
    eventually("it listens at the new primary", ms(10_000), subscribed).await;
    let released = Instant::now();
    guard.unlock().await.expect("held");
    woken(waiter, released, ms(250)).await;
    for client in [holder, other] {
        client.close(Duration::ZERO).await;
    }
}

/// Its connection there was opened before, so that nothing but the change of the slots says that channels can be asked for.
#[tokio::test]
async fn a_waiter_listens_at_a_server_that_takes_over_from_one_that_is_gone() {
    // One after the other: servers that are stopped keep the thread.
    for announce in [Announce::Classic, Announce::Sharded, Announce::Auto] {
        taken_over(announce).await;
    }
}

async fn taken_over(announce: Announce) {
    let cluster = FakeCluster::start().await;
    let builder = LockClient::builder().command_timeout(ms(900));
    let builder = builder.announce(announce);
    let client = builder.connect(&cluster.url_from(1)).await;
    let client = client.expect("it answers");
    for nth in 0..3 {
        let lock = client.lock(cluster.key_at(nth, "any"));
        let guard = lock.lock().await.expect("free");
        guard.unlock().await.expect("held");
    }
    let key = cluster.key_at(0, "a");
    let channel = format!("redisson_lock__channel:{{{key}}}");
    let mut controls = [0, 1, 2].map(|nth| cluster.control(nth));
    for control in &mut controls {
        control.run(&["HSET", &key, OTHER, "1"]);
        control.run(&["PEXPIRE", &key, "60000"]);
    }
    let waiter = wait_for(&client, &key);
    // With `Auto` the classic part is somewhere else.
    let way = match announce {
        Announce::Classic => "NUMSUB",
        _ => "SHARDNUMSUB",
    };
    let listens = |control: &mut Control| control.run(&["PUBSUB", way, &channel]).ends_with(" 1");
    eventually("it listens", ms(5_000), || listens(&mut controls[0])).await;
    let takes_over = match controls[2].run(&["PUBSUB", "NUMSUB", &channel]) {
        classic if classic.ends_with(" 1") => 1,
        _ => 2,
    };
    cluster.proxy(0).refuse(true);
    cluster.proxy(0).cut_all();
    // It has asked in vain by then.
    eventually("a server is gone", ms(5_000), || !client.stats().connected).await;
    cluster.change(|view| {
        view.epoch += 1;
        view.owners = vec![(0, takes_over), (5_461, 1), (10_923, 2)];
    });
    let control = &mut controls[takes_over];
    eventually("it listens again", ms(7_000), || listens(control)).await;
    let released = Instant::now();
    control.run(&["DEL", &key]);
    let publish = match announce {
        Announce::Classic => "PUBLISH",
        _ => "SPUBLISH",
    };
    control.run(&[publish, &channel, "0"]);
    woken(waiter, released, ms(1_000)).await;
    client.close(Duration::ZERO).await;
}

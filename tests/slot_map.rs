//! What nodes of a cluster report that are stale, silent, of another cluster, or known by two addresses.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use redisson_lock::{
    Announce, ConnectionFence, Error, HoldState, LockClient, LockClientBuilder, LockGuard,
    LossReason, RefusedKind,
};
use test_support::{
    ACQUIRE, Control, Events, FakeCluster, Fate, RELEASE, assert_matches, eventually, has_listener,
    is_script, lock_and_unlock, ms, slot, stalls, tokio,
};
use tracing::Level;

fn brisk(builder: LockClientBuilder) -> LockClientBuilder {
    builder
        .watchdog_timeout(ms(9_000))
        .command_timeout(ms(1_500))
}

async fn connect(url: &str) -> LockClient {
    brisk(LockClient::builder())
        .connect(url)
        .await
        .expect("it responds")
}

/// What an operator hears of each change.
const CHANGED: &str = "the servers of locks have changed";

/// How long something took, without the time in which this machine stood still.
fn took(since: Instant) -> Duration {
    since.elapsed().saturating_sub(stalls(since))
}

/// An unlock is left on a connection that is lost, and the owner takes the lock again by another address of the
/// same server. `change` gives it that address, or that identity.
async fn a_late_unlock_is_not_executed(change: impl FnOnce(&FakeCluster)) {
    let cluster = FakeCluster::start().await;
    let client = connect(&cluster.url_from(0)).await;
    let key = cluster.key_at(1, "late");
    let guard = client.lock(&*key).lock().await.expect("free");
    let by_first = cluster.proxy(1);
    by_first.rule(Fate::Late, 1, |words| is_script(words, RELEASE));
    change(&cluster);
    guard.unlock().await.expect("it is sent again");
    assert_eq!(by_first.kept(), 1, "the first copy is on its way");
    let again = client.lock(&*key).lock().await.expect("free");
    by_first.deliver().await;
    assert_eq!(cluster.control(1).count(&key), 1, "it is still held");
    assert_eq!(client.stats().connection_fence, ConnectionFence::Active);
    assert_eq!(client.stats().nodes, 3);
    again.unlock().await.expect("held");
    client.close(Duration::ZERO).await;
}

#[tokio::test]
async fn a_server_that_gets_another_address_is_fenced_from_its_last_one() {
    a_late_unlock_is_not_executed(|cluster| {
        let port = cluster.alias(1).port;
        cluster.change(|view| view.nodes[1].1 = port);
        // What is opened from now on uses the new one.
        cluster.proxy(1).refuse(true);
    })
    .await;
}

/// After `CLUSTER RESET HARD` a process has another identity, and its connections stay.
#[tokio::test]
async fn a_server_that_gets_another_identity_is_fenced_from_its_last_one() {
    a_late_unlock_is_not_executed(|cluster| {
        let id = format!("{:b<40}", "reset");
        cluster.change(|view| view.nodes[1].0.clone_from(&id));
        cluster.change_at(1, |view| view.id = id);
    })
    .await;
}

#[tokio::test]
async fn a_redirect_to_another_address_of_a_server_uses_its_connection() {
    let cluster = FakeCluster::start().await;
    let client = connect(&cluster.url_from(2)).await;
    let key = cluster.key_at(0, "moves");
    let there = client.lock(cluster.key_at(1, "there"));
    let held = there.lock().await.expect("free");
    let moved = slot(&key);
    let port = cluster.alias(1).port;
    // The others do not know yet what the owner of the slot says.
    cluster.change_at(0, |view| {
        view.nodes[1].1 = port;
        view.give(moved, 1);
    });
    cluster.change_at(1, |view| view.give(moved, 1));
    let guard = client.lock(&*key).lock().await.expect("free");
    assert_eq!(cluster.control(1).count(&key), 1);
    assert!(client.stats().redirects_total >= 1);
    let by_alias = cluster.alias(1).script_calls();
    assert!(by_alias.is_empty(), "{by_alias:?}");
    assert_eq!(client.stats().connection_fence, ConnectionFence::Active);
    guard.unlock().await.expect("held");
    held.unlock().await.expect("held");
    client.close(Duration::ZERO).await;
}

/// Without the permission to ask for its identity, a server that no table names may be a known one.
#[tokio::test]
async fn a_server_that_nobody_identifies_counts_as_unfenced() {
    let cluster = FakeCluster::start().await;
    cluster.change(|view| view.may_ask_id = false);
    let client = connect(&cluster.url_from(2)).await;
    let key = cluster.key_at(0, "moves");
    let guard = client.lock(&*key).lock().await.expect("free");
    let before = cluster.control(0).run(&["HKEYS", &key]);
    guard.unlock().await.expect("held");
    assert_eq!(client.stats().connection_fence, ConnectionFence::Active);
    let port = cluster.alias(1).port;
    cluster.change_at(0, |view| {
        view.moved.push((slot(&key), 1));
        view.nodes[1].1 = port;
    });
    cluster.change_at(1, |view| view.moved.push((slot(&key), 1)));
    let guard = client.lock(&*key).lock().await.expect("free");
    guard.unlock().await.expect("held");
    assert_eq!(
        client.stats().connection_fence,
        ConnectionFence::NotPermitted
    );
    let guard = client.lock(&*key).lock().await.expect("free");
    let after = cluster.control(1).run(&["HKEYS", &key]);
    assert_ne!(after, before, "a thread id that was never used before");
    guard.unlock().await.expect("held");
    cluster.change(|view| view.moved.clear());
    let is_active = || client.stats().connection_fence == ConnectionFence::Active;
    eventually("only servers in use count", ms(20_000), is_active).await;
    client.close(Duration::ZERO).await;
}

/// A seed belongs to another cluster by now, with a higher epoch.
#[tokio::test]
async fn another_cluster_is_not_followed_although_nobody_else_responds() {
    let (events, _here) = Events::of_this_thread();
    let (own, other) = (
        FakeCluster::start().await,
        FakeCluster::start_named("other").await,
    );
    other.change(|view| view.epoch = 99);
    let url = format!("{}&node=127.0.0.1:{}", own.url_from(0), other.proxy(0).port);
    other.proxy(0).refuse(true);
    let client = connect(&url).await;
    other.proxy(0).refuse(false);
    let guard = client.lock("a").lock().await.expect("free");
    (0..3).for_each(|nth| own.hang(nth));
    let start = Instant::now();
    while start.elapsed() < ms(7_000) {
        let failed = client.lock("b").try_lock().await;
        assert_matches!(failed, Err(Error::NoAnswer { .. }));
    }
    let text = "a server belongs to another cluster";
    events.comes(Level::WARN, text).await;
    assert_eq!(events.count(Level::WARN, text), 1);
    assert!(events.has(Level::WARN, &format!("127.0.0.1:{}", other.proxy(0).port)));
    for nth in 0..3 {
        assert_eq!(other.control(nth).run(&["DBSIZE"]), "0");
    }
    assert_eq!(client.stats().failovers_total, 0);
    drop(guard);
    client.close(Duration::ZERO).await;
}

fn asks_for_slots(words: &[String]) -> bool {
    words.len() == 2 && words[1] == "SLOTS"
}

/// One of them belongs to another cluster by now, and answers first.
#[tokio::test]
async fn seeds_of_two_clusters_fail_connect() {
    let (own, other) = (
        FakeCluster::start().await,
        FakeCluster::start_named("other").await,
    );
    other.change(|view| view.epoch = 1);
    let port = |cluster: &FakeCluster| cluster.proxy(0).port;
    let (mine, foreign) = (port(&own), port(&other));
    for (first, second) in [(mine, foreign), (foreign, mine)] {
        own.proxy(0).hold_commands(asks_for_slots);
        let questions = || {
            let seen = other.proxy(0).seen();
            seen.iter().filter(|words| asks_for_slots(words)).count()
        };
        let before = questions();
        let is_asked = || questions() > before;
        let url = format!("redis-cluster://127.0.0.1:{first}?node=127.0.0.1:{second}");
        let connecting = async move { brisk(LockClient::builder()).connect(&url).await };
        let connecting = tokio::spawn(connecting);
        eventually("the other one answers", ms(5_000), is_asked).await;
        own.proxy(0).let_commands_go();
        let refused = connecting.await.expect("no panic");
        let Err(Error::InvalidConfig { what, problem }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(what, "URL");
        for port in [mine, foreign] {
            let named = format!("127.0.0.1:{port}");
            assert!(problem.contains(&named), "{problem}");
        }
    }
}

/// Nodes are waited for only while they do not answer.
#[tokio::test]
async fn a_client_connects_without_a_pause_when_all_seeds_answer() {
    let cluster = FakeCluster::start().await;
    let mut shortest = Duration::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        let client = connect(&cluster.url_from(0)).await;
        shortest = shortest.min(took(start));
        client.close(Duration::ZERO).await;
    }
    assert!(shortest < ms(200), "{shortest:?}");
}

/// A node that was cut off from the others goes on reporting the slots of its time, in the same epoch.
#[tokio::test]
async fn a_stale_node_does_not_take_a_slot_back() {
    let (events, _here) = Events::of_this_thread();
    let cluster = FakeCluster::start().await;
    let client = connect(&cluster.url_from(2)).await;
    let key = cluster.key_at(0, "moves");
    let moved = slot(&key);
    cluster.change_at(0, |view| view.give(moved, 1));
    cluster.change_at(1, |view| view.give(moved, 1));
    let before = events.count(Level::INFO, CHANGED);
    let start = Instant::now();
    let mut sections = 0;
    // Shorter than the time for which a stale node is not believed.
    while start.elapsed() < ms(4_000) {
        let guard = client.lock(&*key).lock().await.expect("free");
        guard.unlock().await.expect("it responds");
        sections += 1;
    }
    assert!(sections > 10, "{sections}");
    let stats = client.stats();
    assert!(stats.redirects_total <= 2, "{stats:?}");
    let lines = || events.count(Level::INFO, CHANGED) - before;
    assert!(lines() <= 1, "{} lines", lines());
    eventually("it is logged", ms(15_000), || lines() > 0).await;
    client.close(Duration::ZERO).await;
}

/// What a former primary reports that was resumed a moment ago: a lower epoch, in which it has all slots.
fn is_stale(cluster: &FakeCluster, nth: usize) {
    cluster.change_at(nth, |view| {
        view.epoch = 1;
        view.owners = vec![(0, nth)];
    });
}

#[tokio::test]
async fn a_stale_node_is_not_believed_although_no_other_responds_but_for_long_enough_it_is() {
    let cluster = FakeCluster::start().await;
    let client = connect(&cluster.url_from(0)).await;
    let key = cluster.key_at(0, "a");
    is_stale(&cluster, 2);
    cluster.hang(0);
    cluster.hang(1);
    let start = Instant::now();
    while start.elapsed() < ms(3_000) {
        // Every failure casts doubt on the map.
        let failed = client.lock(&*key).try_lock().await;
        assert!(failed.is_err(), "{failed:?}");
    }
    assert_eq!(client.stats().failovers_total, 0);
    let followed = || client.stats().failovers_total == 2;
    eventually("it is followed", ms(15_000), followed).await;
    let guard = client.lock(&*key).lock().await.expect("free");
    assert_eq!(cluster.control(2).count(&key), 1);
    guard.unlock().await.expect("held");
    client.close(Duration::ZERO).await;
}

#[tokio::test]
async fn a_lower_epoch_is_followed_immediately_if_all_nodes_report_it() {
    let cluster = FakeCluster::start().await;
    let client = connect(&cluster.url_from(0)).await;
    (0..3).for_each(|nth| is_stale(&cluster, nth));
    cluster.change(|view| view.owners = vec![(0, 1)]);
    let followed = || client.stats().failovers_total == 2;
    // Nothing is held, so the nodes are asked every five seconds.
    eventually("it is followed", ms(7_000), followed).await;
    client.close(Duration::ZERO).await;
}

/// What is published by the node that imports a slot is not heard by those who listen to its owner.
#[tokio::test]
async fn a_lock_whose_slot_is_being_imported_is_tried_every_second_and_each_ask_counts_as_a_redirection()
 {
    let cluster = FakeCluster::start().await;
    // The heartbeat of sharded channels wakes waiters too.
    let client = brisk(LockClient::builder())
        .announce(Announce::Classic)
        .connect(&cluster.url_from(0))
        .await
        .expect("it responds");
    let key = cluster.key_at(0, "moves");
    cluster.change_at(0, |view| view.ask.push((slot(&key), 1)));
    let mut control = cluster.control(1);
    control.run(&["HSET", &key, "other:1", "1"]);
    control.run(&["PEXPIRE", &key, "60000"]);
    let lock = client.lock(&*key);
    let waiting = tokio::spawn(async move { lock.lock().await });
    let attempts = || {
        let calls = cluster.proxy(1).script_calls();
        calls
            .iter()
            .filter(|words| is_script(words, ACQUIRE))
            .count()
    };
    // One before it subscribes, one after that, and one each second.
    eventually("it is tried again", ms(4_000), || attempts() >= 3).await;
    control.run(&["DEL", &key]);
    let start = Instant::now();
    let guard = waiting.await.expect("no panic").expect("free");
    let took = took(start);
    assert!(took < ms(1_500), "{took:?}");
    let stats = client.stats();
    assert_eq!(stats.redirects_total, attempts() as u64, "{stats:?}");
    guard.unlock().await.expect("held");
    client.close(Duration::ZERO).await;
}

/// Its connection carries what is held there.
#[tokio::test]
async fn a_node_that_imports_its_first_slot_keeps_its_connection_while_the_map_changes() {
    let (events, _here) = Events::of_this_thread();
    let cluster = FakeCluster::start().await;
    cluster.change(|view| view.owners = vec![(0, 0), (8_000, 1)]);
    let client = connect(&cluster.url_from(0)).await;
    let key = cluster.key_at(0, "moves");
    cluster.change_at(0, |view| view.ask.push((slot(&key), 2)));
    let lock = client.lock(&*key);
    let guard = lock.lock().await.expect("free");
    let mut control = cluster.control(2);
    let mut connections = || {
        let clients = control.run(&["CLIENT", "LIST"]);
        let ids = clients.lines().filter(|line| line.contains("cmd=eval"));
        let id = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
        ids.map(id).collect::<Vec<_>>()
    };
    let before = connections();
    assert_eq!(before.len(), 1);
    for nth in 0..2 {
        let changes = events.count(Level::INFO, CHANGED);
        cluster.change(|view| {
            view.epoch += 1;
            view.give(100 + 10 * nth, 1);
        });
        let is_known = || events.count(Level::INFO, CHANGED) > changes;
        eventually("the map is read again", ms(15_000), is_known).await;
    }
    tokio::time::sleep(ms(100)).await;
    assert_eq!(connections(), before);
    guard.unlock().await.expect("held");
    client.close(Duration::ZERO).await;
}

/// Whether a call failed because its cluster did not serve the lock.
fn is_down(failed: &Result<Option<LockGuard>, Error>) -> bool {
    let kind = RefusedKind::ClusterDown;
    matches!(failed, Err(Error::Refused { kind: refused, .. }) if *refused == kind)
}

/// A send follows 8 redirections, and the call has time for others, each of which begins after a pause. Without the pauses
/// there are thousands.
fn is_no_flood(redirects: u64, took: Duration) {
    let most = 9 + 8 * (took.as_millis() / 100) as u64;
    assert!(
        (2..=most).contains(&redirects),
        "{redirects} redirections in {took:?}"
    );
}

/// Two nodes that send each other's clients back, for a while: neither a flood of messages nor of commands.
#[tokio::test]
async fn nodes_that_disagree_about_a_slot_are_not_asked_without_a_pause() {
    let (events, _here) = Events::of_this_thread();
    let cluster = FakeCluster::start().await;
    let client = connect(&cluster.url_from(2)).await;
    let key = cluster.key_at(0, "circle");
    cluster.change_at(0, |view| view.moved.push((slot(&key), 1)));
    let before = events.count(Level::INFO, CHANGED);
    let start = Instant::now();
    let failed = client.lock(&*key).try_lock().await;
    let took = start.elapsed();
    assert!(is_down(&failed), "{failed:?}");
    let redirects = client.stats().redirects_total;
    is_no_flood(redirects, took);
    assert!(took >= ms(300), "{redirects} redirections in {took:?}");
    let lines = events.count(Level::INFO, CHANGED) - before;
    assert!(lines <= 1, "{lines} lines");
    cluster.change_at(0, |view| view.moved.clear());
    // Each says that the slot is on its way to the other.
    cluster.change_at(0, |view| view.ask.push((slot(&key), 1)));
    cluster.change_at(1, |view| view.ask.push((slot(&key), 0)));
    let before = client.stats().redirects_total;
    let start = Instant::now();
    let failed = client.lock(&*key).try_lock().await;
    assert!(failed.is_err(), "{failed:?}");
    is_no_flood(client.stats().redirects_total - before, start.elapsed());
    cluster.change(|view| view.ask.clear());
    let guard = client.lock(&*key).lock().await.expect("free");
    guard.unlock().await.expect("held");
    client.close(Duration::ZERO).await;
}

#[tokio::test]
async fn a_client_connects_while_two_of_three_nodes_hang() {
    let cluster = FakeCluster::start().await;
    cluster.hang(0);
    cluster.hang(1);
    let start = Instant::now();
    let client = LockClient::connect(&cluster.url_from(0))
        .await
        .expect("one responds");
    let took = took(start);
    assert!(took < ms(1_500), "{took:?}");
    let key = cluster.key_at(2, "lock");
    let guard = client.lock(&*key).lock().await.expect("free");
    guard.unlock().await.expect("held");
    client.close(Duration::ZERO).await;
}

#[tokio::test]
async fn a_waiter_is_served_within_a_second_while_two_other_nodes_hang() {
    for announce in [Announce::Classic, Announce::Auto] {
        served_while_others_hang(&FakeCluster::start().await, announce).await;
    }
}

#[tokio::test]
async fn a_waiter_is_served_within_a_second_while_one_of_two_nodes_hangs() {
    for announce in [Announce::Classic, Announce::Auto] {
        let cluster = FakeCluster::start().await;
        cluster.change(|view| view.owners = vec![(0, 0), (10_923, 2)]);
        served_while_others_hang(&cluster, announce).await;
    }
}

/// A lock at the third node that another client holds.
async fn held_elsewhere(
    cluster: &FakeCluster,
    builder: LockClientBuilder,
) -> (LockClient, String, Control) {
    let client = builder.connect(&cluster.url_from(0)).await;
    let key = cluster.key_at(2, "lock");
    let mut control = cluster.control(2);
    control.run(&["HSET", &key, "other:1", "1"]);
    control.run(&["PEXPIRE", &key, "60000"]);
    (client.expect("all respond"), key, control)
}

async fn served_while_others_hang(cluster: &FakeCluster, announce: Announce) {
    let builder = LockClient::builder().announce(announce);
    let (client, key, mut control) = held_elsewhere(cluster, builder).await;
    // With `Auto` its classic channel is at one of them.
    cluster.hang(0);
    cluster.hang(1);
    let start = Instant::now();
    let lock = client.lock(&*key);
    let waiting = tokio::spawn(async move { lock.lock().await });
    eventually("it listens where a node responds", ms(5_000), || {
        has_listener(&mut control, &key)
    })
    .await;
    control.run(&["DEL", &key]);
    control.run(&["PUBLISH", &format!("redisson_lock__channel:{{{key}}}"), "0"]);
    let guard = waiting.await.expect("no panic").expect("free");
    let took = took(start);
    assert!(took < ms(1_000), "{took:?}");
    guard.unlock().await.expect("held");
    client.close(Duration::ZERO).await;
}

/// With `Auto` a classic channel is at another node than its lock. Left before the node has answered, the connection may be
/// dead, and nothing else is sent over it.
#[tokio::test]
async fn a_connection_that_confirms_no_channel_is_replaced_although_the_channel_has_left() {
    let cluster = FakeCluster::start().await;
    let builder = brisk(LockClient::builder()).announce(Announce::Auto);
    let (client, key, mut control) = held_elsewhere(&cluster, builder).await;
    for nth in [0, 1] {
        let subscribes = |words: &[String]| words[0] == "SUBSCRIBE";
        cluster.proxy(nth).rule(Fate::Silence, 1, subscribes);
    }
    let is_silent = || (0..2).any(|nth| cluster.proxy(nth).hit.load(Ordering::Relaxed) > 0);
    let lock = client.lock(&*key);
    let waiting = tokio::spawn(async move { lock.lock().await });
    eventually("another node was asked", ms(5_000), is_silent).await;
    eventually("the connection is replaced", ms(6_000), || {
        client.stats().reconnects_total > 0
    })
    .await;
    eventually("it listens where its lock is", ms(5_000), || {
        has_listener(&mut control, &key)
    })
    .await;
    let channel = format!("redisson_lock__channel:{{{key}}}");
    control.run(&["DEL", &key]);
    // The sharded channel is where the lock is all the time.
    control.run(&["SPUBLISH", &channel, "0"]);
    let guard = waiting.await.expect("no panic").expect("free");
    guard.unlock().await.expect("held");
    client.close(Duration::ZERO).await;
}

/// How often the nodes were asked for their slots (`SLOTS`), or their epoch (`INFO`).
fn asked(cluster: &FakeCluster, what: &str) -> usize {
    let is_it = |words: &&Vec<String>| words[0] == "CLUSTER" && words[1] == what;
    let seen = |nth| cluster.proxy(nth).seen().iter().filter(is_it).count();
    (0..3).map(seen).sum()
}

/// Whether a waiter listens to sharded channels at nodes that answer so to a question about them.
async fn listens_to_sharded(announce: Announce, answer: &'static str) -> Result<bool, Error> {
    let cluster = FakeCluster::start().await;
    cluster.change(|view| view.no_shards = Some(answer));
    let builder = brisk(LockClient::builder()).announce(announce);
    let client = builder.connect(&cluster.url_from(0)).await?;
    let key = cluster.key_at(0, "a");
    let mut control = cluster.control(0);
    control.run(&["HSET", &key, "other:1", "1"]);
    control.run(&["PEXPIRE", &key, "60000"]);
    // From here on the server knows the script.
    let taken = client.lock(&*key).try_lock().await?;
    assert!(taken.is_none());
    let attempts = || cluster.proxy(0).script_calls().len();
    let before = attempts();
    let lock = client.lock(&*key);
    let waiting = tokio::spawn(async move { lock.lock().await });
    // The second one follows when it has subscribed to all that it listens to.
    eventually("it attempts again", ms(5_000), || attempts() >= before + 2).await;
    waiting.abort();
    client.close(Duration::ZERO).await;
    let seen = cluster.proxy(0).seen();
    Ok(seen.iter().any(|words| words[0] == "SSUBSCRIBE"))
}

#[tokio::test]
async fn nodes_without_sharded_channels_are_listened_to_by_classic_ones_unless_others_are_wanted() {
    let unknown = "ERR unknown subcommand 'shardnumsub'";
    let (old, new) = (
        "NOPERM this user has no permissions to run the 'pubsub' command",
        "NOPERM this user has no permissions to run the 'pubsub|shardnumsub' command",
    );
    for (announce, answer, expected) in [
        (Announce::Auto, unknown, false),
        (Announce::Auto, old, false),
        (Announce::Auto, new, true),
        (Announce::Sharded, new, true),
    ] {
        let found = listens_to_sharded(announce, answer).await;
        assert_eq!(
            found.expect("it serves"),
            expected,
            "{announce:?}, {answer}"
        );
    }
    for answer in [unknown, old] {
        let refused = listens_to_sharded(Announce::Sharded, answer).await;
        assert_matches!(
            refused,
            Err(Error::InvalidConfig {
                what: "announce",
                ..
            })
        );
    }
}

/// A primary that hangs keeps its connections, so nothing but silence shows that another one has taken over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn losses_are_reported_within_three_seconds_after_a_primary_that_hangs_was_replaced() {
    const HOLDS: usize = 5_000;
    let cluster = FakeCluster::start().await;
    // Nothing of it is renewed in this time.
    let client = LockClient::connect(&cluster.url_from(0))
        .await
        .expect("all respond");
    let mut guards = Vec::new();
    let mut names = (0..).map(|nth| format!("held:{nth}"));
    while guards.len() < HOLDS {
        let name = names.next().expect("endless");
        if slot(&name) < 5_461 {
            guards.push(client.lock(name).lock().await.expect("free"));
        }
    }
    // The client has just asked for the slots, and does so every five seconds.
    let before = asked(&cluster, "SLOTS");
    let asks = || asked(&cluster, "SLOTS") > before;
    eventually("it asks for the slots", ms(10_000), asks).await;
    cluster.hang(0);
    let start = Instant::now();
    cluster.change(|view| {
        view.epoch += 1;
        view.owners = vec![(0, 1), (10_923, 2)];
    });
    for guard in &guards {
        let reason = tokio::time::timeout(ms(10_000), guard.lost()).await;
        assert_eq!(reason.expect("reported"), LossReason::Gone);
    }
    let took = took(start);
    // A second until the next look, its limit, a map from another node, and the renewals.
    assert!(took < ms(3_000), "{took:?}");
    assert!(guards.iter().all(|guard| guard.state() != HoldState::Held));
    drop(guards);
    client.close(Duration::ZERO).await;
}

/// A vote raises the epoch, and the slots change hands later: in the epoch that was seen, or because it was looked at too
/// early.
#[tokio::test]
async fn a_promotion_is_noticed_within_three_seconds_although_its_epoch_was_seen_before() {
    let cluster = FakeCluster::start().await;
    // No renewal finds it out before.
    let client = LockClient::builder().watchdog_timeout(ms(90_000));
    let client = client.connect(&cluster.url_from(0)).await;
    let client = client.expect("all respond");
    let guard = client.lock(cluster.key_at(0, "held")).lock().await;
    let guard = guard.expect("free");
    // The epoch of the first map is no new one.
    let first = Instant::now();
    let is_long_ago = || first.elapsed() > ms(6_000);
    eventually("nothing happens", ms(10_000), is_long_ago).await;
    // No server is silent: while one is, the client reads the map every second, whatever the epoch.
    cluster.change(|view| view.epoch += 1);
    let before = asked(&cluster, "SLOTS");
    let asks = || asked(&cluster, "SLOTS") > before;
    eventually("it asks because of the vote", ms(10_000), asks).await;
    // A vote may be repeated before one succeeds.
    tokio::time::sleep(ms(1_500)).await;
    assert_eq!(guard.state(), HoldState::Held);
    let start = Instant::now();
    cluster.change(|view| view.owners = vec![(0, 1), (10_923, 2)]);
    let reason = tokio::time::timeout(ms(10_000), guard.lost()).await;
    assert_eq!(reason.expect("reported"), LossReason::Gone);
    let took = took(start);
    assert!(took < ms(3_000), "{took:?}");
    drop(guard);
    client.close(Duration::ZERO).await;
}

/// No number says that it may be replaced.
#[tokio::test]
async fn while_a_server_is_silent_the_slots_are_asked_for_every_second() {
    let cluster = FakeCluster::start().await;
    let client = LockClient::connect(&cluster.url_from(0)).await;
    let client = client.expect("all respond");
    let lock = client.lock(cluster.key_at(0, "a"));
    lock_and_unlock(&lock).await;
    let first = Instant::now();
    let is_long_ago = || first.elapsed() > ms(6_000);
    eventually("nothing happens", ms(10_000), is_long_ago).await;
    cluster.hang(0);
    let calling = tokio::spawn(async move { lock.try_lock_for(ms(20_000)).await });
    // After the question because of the doubt, and after the one that is due every five seconds.
    for _ in 0..2 {
        let before = asked(&cluster, "SLOTS");
        let asks = || asked(&cluster, "SLOTS") > before;
        eventually("it asks out of doubt", ms(10_000), asks).await;
    }
    let start = Instant::now();
    cluster.change(|view| view.owners = vec![(0, 1), (10_923, 2)]);
    let taken = calling.await.expect("no panic").expect("answered");
    let took = took(start);
    assert!(took < ms(3_000), "{took:?}");
    taken.expect("free").unlock().await.expect("held");
    client.close(Duration::ZERO).await;
}

/// Each server that a call was sent to has lost the slot before it has answered.
#[tokio::test]
async fn a_call_follows_a_slot_that_changes_hands_again_and_again() {
    let cluster = FakeCluster::start().await;
    let client = LockClient::builder().command_timeout(ms(9_000));
    let client = client.connect(&cluster.url_from(0)).await;
    let client = client.expect("all respond");
    let lock = client.lock(cluster.key_at(0, "a"));
    lock_and_unlock(&lock).await;
    // So that there is a connection before it hangs, and the script is known there.
    lock_and_unlock(&client.lock(cluster.key_at(1, "b"))).await;
    let calls = |nth: usize| cluster.control(nth).calls("evalsha");
    let before = [calls(0), calls(1)];
    for nth in [0, 1] {
        cluster.proxy(nth).hold_replies(true);
    }
    let calling = tokio::spawn(async move { lock.lock().await });
    for owner in [1, 2] {
        let nth = owner - 1;
        let is_sent = || calls(nth) > before[nth];
        eventually("it is sent there", ms(10_000), is_sent).await;
        cluster.change(|view| view.owners = vec![(0, owner), (10_923, 2)]);
    }
    let guard = calling.await.expect("no panic");
    guard
        .expect("the last one answers")
        .unlock()
        .await
        .expect("held");
    client.close(Duration::ZERO).await;
}

/// A new connection to a node takes more round trips than a question over the last one, and is given more time at each
/// attempt.
#[tokio::test]
async fn a_map_is_read_from_nodes_that_are_far_away() {
    let (events, _here) = Events::of_this_thread();
    let cluster = FakeCluster::start().await;
    let client = connect(&cluster.url_from(0)).await;
    for nth in 0..3 {
        cluster.proxy(nth).slow_down(ms(200));
    }
    let moved = slot(&cluster.key_at(0, "moves"));
    cluster.change(|view| {
        view.epoch += 1;
        view.give(moved, 1);
    });
    let before = events.count(Level::INFO, CHANGED);
    for nth in 0..3 {
        cluster.proxy(nth).cut_all();
    }
    let is_known = || events.count(Level::INFO, CHANGED) > before;
    eventually("the map is read", ms(20_000), is_known).await;
    client.close(Duration::ZERO).await;
}

/// Two nodes send the clients of a slot to each other. Each redirect changes the map, and what is held there is renewed.
#[tokio::test]
async fn a_circle_of_redirects_is_logged_once_for_each_hold_and_reason() {
    let (events, _here) = Events::of_this_thread();
    let cluster = FakeCluster::start().await;
    let client = connect(&cluster.url_from(0)).await;
    let tag = cluster.key_at(0, "circle");
    let mut held = Vec::new();
    for nth in 0..3 {
        let lock = client.lock(format!("{{{tag}}}:{nth}"));
        held.push(lock.lock().await.expect("free"));
    }
    let circling = slot(&tag);
    cluster.change_at(0, |view| view.moved.push((circling, 1)));
    cluster.change_at(1, |view| view.moved.push((circling, 0)));
    let redirected = || client.stats().redirects_total > 400;
    eventually("it goes round", ms(40_000), redirected).await;
    let logged = events.count(Level::WARN, "renewal failed");
    // No answer in time, and no node that serves it.
    assert!((1..=2 * held.len()).contains(&logged), "{logged} events");
    drop(held);
    client.close(Duration::ZERO).await;
}

/// New connections are refused, and the map is as old as the last one.
#[tokio::test]
async fn nodes_that_refuse_a_client_are_warned_of() {
    let (events, _here) = Events::of_this_thread();
    let cluster = FakeCluster::start().await;
    let client = connect(&cluster.url_from(0)).await;
    for nth in 0..3 {
        let mut control = cluster.control(nth);
        control.run(&["CONFIG", "SET", "requirepass", "changed"]);
        cluster.proxy(nth).cut_all();
    }
    let warning = "no node of the cluster reports its slots";
    events.comes(Level::WARN, warning).await;
    client.close(Duration::ZERO).await;
}

//! Sharded channels that a node refuses, or confirms too late.

use std::time::{Duration, Instant};

use redisson_lock::{Announce, Error, LockClient, LockGuard};
use test_support::{Events, FakeCluster, assert_matches, eventually, ms, slot, stalls, tokio};
use tokio::task::JoinHandle;
use tracing::Level;

const COMMAND_TIMEOUT: Duration = ms(1_500);

async fn connect(cluster: &FakeCluster, command_timeout: Duration) -> LockClient {
    LockClient::builder()
        .watchdog_timeout(ms(90_000))
        .announce(Announce::Sharded)
        .command_timeout(command_timeout)
        .connect(&cluster.url_from(0))
        .await
        .expect("all respond")
}

/// Another program has the lock, at a node.
fn take(cluster: &FakeCluster, nth: usize, key: &str) {
    let mut control = cluster.control(nth);
    control.run(&["HSET", key, "other:1", "1"]);
    control.run(&["PEXPIRE", key, "60000"]);
}

fn release(cluster: &FakeCluster, nth: usize, key: &str) {
    let mut control = cluster.control(nth);
    control.run(&["DEL", key]);
    control.run(&[
        "SPUBLISH",
        &format!("redisson_lock__channel:{{{key}}}"),
        "0",
    ]);
}

fn wait_for(client: &LockClient, key: &str) -> JoinHandle<Result<LockGuard, Error>> {
    let lock = client.lock(key);
    tokio::spawn(async move { lock.lock().await })
}

async fn is_woken(waiter: JoinHandle<Result<LockGuard, Error>>, within: Duration) {
    let start = Instant::now();
    let guard = waiter.await.expect("no panic").expect("free");
    let took = start.elapsed();
    assert!(took <= within + stalls(start), "woken after {took:?}");
    guard.unlock().await.expect("held");
}

fn subscriptions(cluster: &FakeCluster, nth: usize, key: &str) -> usize {
    let seen = cluster.proxy(nth).seen();
    let is_one = |words: &&Vec<String>| words[0] == "SSUBSCRIBE" && words[1].contains(key);
    seen.iter().filter(is_one).count()
}

/// The scripts go to this node, and its channels are on their way: neither a failed call nor a flood of commands.
#[tokio::test]
async fn a_channel_that_is_sent_elsewhere_is_subscribed_to_again_until_it_is_there() {
    let cluster = FakeCluster::start().await;
    let client = connect(&cluster, COMMAND_TIMEOUT).await;
    for (nth, said) in [
        "MOVED 1 127.0.0.1:1",
        "ASK 1 127.0.0.1:1",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "CLUSTERDOWN Hash slot not served",
    ]
    .into_iter()
    .enumerate()
    {
        let key = cluster.key_at(0, &format!("elsewhere{nth}"));
        take(&cluster, 0, &key);
        cluster.change_at(0, |view| view.refused_channel = Some(("elsewhere", said)));
        let start = Instant::now();
        let waiter = wait_for(&client, &key);
        let asked = || subscriptions(&cluster, 0, &key);
        eventually(said, ms(5_000), || asked() >= 4).await;
        let most = 2 + start.elapsed().as_millis() / 50;
        assert!(asked() as u128 <= most, "{said}: {} times", asked());
        cluster.change_at(0, |view| view.refused_channel = None);
        eventually("it listens", ms(5_000), || listens(&cluster, 0, &key)).await;
        release(&cluster, 0, &key);
        is_woken(waiter, ms(1_000)).await;
    }
    client.close(Duration::ZERO).await;
}

/// Of two channels of a connection one is refused. The other one keeps it.
async fn the_other_keeps_its_connection(
    said: &'static str,
    meets: impl AsyncFnOnce(&FakeCluster, &LockClient, &str),
) {
    let (events, _here) = Events::of_this_thread();
    let cluster = FakeCluster::start().await;
    let client = connect(&cluster, ms(300)).await;
    cluster.change_at(0, |view| view.refused_channel = Some(("refused", said)));
    let (refused, other) = (cluster.key_at(0, "refused"), cluster.key_at(0, "other"));
    take(&cluster, 0, &refused);
    take(&cluster, 0, &other);
    let waiter = wait_for(&client, &other);
    let asked = || subscriptions(&cluster, 0, &other);
    eventually("it listens", ms(5_000), || asked() > 0).await;
    meets(&cluster, &client, &refused).await;
    let heartbeats = || {
        let seen = cluster.proxy(0).seen();
        seen.iter().filter(|words| words[0] == "PING").count()
    };
    let before = heartbeats();
    eventually("three heartbeats", ms(10_000), || {
        heartbeats() >= before + 3
    })
    .await;
    assert!(!events.has(Level::WARN, "command connection lost, reconnecting"));
    release(&cluster, 0, &other);
    is_woken(waiter, ms(1_000)).await;
    client.close(Duration::ZERO).await;
}

#[tokio::test]
async fn a_channel_that_is_refused_does_not_end_its_connection() {
    let said =
        "NOPERM this user has no permissions to access one of the channels used as arguments";
    the_other_keeps_its_connection(said, async |_, client, refused| {
        let failed = client.lock(refused).lock().await;
        assert_matches!(failed, Err(Error::PermissionDenied { .. }));
    })
    .await;
}

#[tokio::test]
async fn a_channel_that_moves_before_it_is_confirmed_does_not_end_its_connection() {
    let said = "MOVED 1 127.0.0.1:1";
    the_other_keeps_its_connection(said, async |cluster, client, moves| {
        take(cluster, 1, moves);
        let waiter = wait_for(client, moves);
        let asked = |nth| subscriptions(cluster, nth, moves);
        eventually("it is refused", ms(5_000), || asked(0) > 0).await;
        cluster.change(|view| {
            view.epoch += 1;
            view.give(slot(moves), 1);
        });
        eventually("it follows", ms(10_000), || asked(1) > 0).await;
        release(cluster, 1, moves);
        is_woken(waiter, ms(1_000)).await;
    })
    .await;
}

/// A slot moves while its channel is subscribed to. The former owner confirms it, the lock is released at the new one
/// without a subscriber, and then the new one confirms it as well.
#[tokio::test]
async fn a_release_between_two_confirmations_is_not_missed() {
    let cluster = FakeCluster::start().await;
    // Longer than the test: no heartbeat looks after what was missed.
    let client = connect(&cluster, ms(20_000)).await;
    let key = cluster.key_at(0, "moves");
    let moved = slot(&key);
    take(&cluster, 0, &key);
    take(&cluster, 1, &key);
    for nth in [0, 1] {
        cluster
            .proxy(nth)
            .hold_commands(|words| words[0] == "SSUBSCRIBE");
    }
    let waiter = wait_for(&client, &key);
    eventually("the first is asked", ms(5_000), || {
        cluster.proxy(0).stuck() == 1
    })
    .await;
    cluster.change(|view| {
        view.epoch += 1;
        view.give(moved, 1);
    });
    eventually("the second is asked", ms(15_000), || {
        cluster.proxy(1).stuck() == 1
    })
    .await;
    cluster.proxy(0).let_commands_go();
    let confirmed = || {
        let channel = format!("redisson_lock__channel:{{{key}}}");
        let listeners = cluster.control(0).run(&["PUBSUB", "SHARDNUMSUB", &channel]);
        subscriptions(&cluster, 0, &key) == 1 && listeners.ends_with(" 0")
    };
    eventually(
        "the first has confirmed, and was left",
        ms(5_000),
        confirmed,
    )
    .await;
    release(&cluster, 1, &key);
    cluster.proxy(1).let_commands_go();
    is_woken(waiter, ms(3_000)).await;
    client.close(Duration::ZERO).await;
}

/// Its server has other slots still, and neither ends the subscription nor the connection.
#[tokio::test]
async fn a_channel_is_subscribed_to_where_its_slot_has_gone() {
    let cluster = FakeCluster::start().await;
    let client = connect(&cluster, COMMAND_TIMEOUT).await;
    let (stays, moves) = (cluster.key_at(0, "stays"), cluster.key_at(0, "moves"));
    take(&cluster, 0, &stays);
    for nth in [0, 1] {
        take(&cluster, nth, &moves);
    }
    let (waits_on, waiter) = (wait_for(&client, &stays), wait_for(&client, &moves));
    eventually("it listens to both", ms(5_000), || {
        listens(&cluster, 0, &stays) && listens(&cluster, 0, &moves)
    })
    .await;
    cluster.change(|view| view.give(slot(&moves), 1));
    // It hears of it from a call, which is redirected.
    let free = client.lock(&*moves).try_lock().await;
    assert!(free.expect("answered").is_none());
    eventually("it listens at the new owner", ms(5_000), || {
        listens(&cluster, 1, &moves)
    })
    .await;
    assert!(listens(&cluster, 0, &stays));
    release(&cluster, 1, &moves);
    is_woken(waiter, ms(1_000)).await;
    release(&cluster, 0, &stays);
    is_woken(waits_on, ms(1_000)).await;
    client.close(Duration::ZERO).await;
}

fn listens(cluster: &FakeCluster, nth: usize, key: &str) -> bool {
    let channel = format!("redisson_lock__channel:{{{key}}}");
    let mut control = cluster.control(nth);
    let listeners = control.run(&["PUBSUB", "SHARDNUMSUB", &channel]);
    listeners.ends_with(" 1")
}

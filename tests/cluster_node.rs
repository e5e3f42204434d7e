//! A server that is a node of a cluster: it refuses a call whose keys are in different slots.

use std::time::{Duration, Instant};

use redisson_lock::{HoldState, LockClient, LockClientBuilder, LockGuard, LossReason};
use test_support::{
    Control, Proxy, RENEW, Server, TestServer, eventually, is_script, ms, tokio, within,
};

const WATCHDOG: u64 = 1500;
const PERIOD: u64 = WATCHDOG / 3;

fn brisk(builder: LockClientBuilder) -> LockClientBuilder {
    builder
        .watchdog_timeout(ms(WATCHDOG))
        .command_timeout(ms(450))
}

/// A node with every slot.
async fn node() -> TestServer {
    let server = TestServer::with(&["--cluster-enabled", "yes"]);
    let mut control = server.control();
    control.run(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    works(&mut control).await;
    server
}

async fn works(control: &mut Control) {
    let works = || {
        control
            .run(&["CLUSTER", "INFO"])
            .contains("cluster_state:ok")
    };
    eventually("the cluster works", ms(10_000), works).await;
}

async fn take(client: &LockClient, names: impl Iterator<Item = String>) -> Vec<LockGuard> {
    let mut guards = Vec::new();
    for name in names {
        guards.push(client.lock(name).lock().await.expect("free"));
    }
    guards
}

async fn all_held_for(guards: &[LockGuard], time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        let lost: Vec<_> = guards
            .iter()
            .filter(|guard| guard.state() != HoldState::Held)
            .collect();
        assert!(
            lost.is_empty(),
            "{} of {} not held: {:?}",
            lost.len(),
            guards.len(),
            lost[0]
        );
        tokio::time::sleep(ms(10)).await;
    }
}

async fn release_all(guards: Vec<LockGuard>) {
    for guard in guards {
        guard.unlock().await.expect("held");
    }
}

#[tokio::test]
async fn fifty_locks_in_fifty_slots_are_all_kept() {
    let server = node().await;
    let client = server.client_with(brisk).await;
    let guards = take(&client, (0..50).map(|nth| format!("lock:{nth}"))).await;
    all_held_for(&guards, ms(3 * WATCHDOG)).await;
    assert_eq!(client.stats().lost_total, 0);
    let renewed = client.stats().renewed_total;
    assert!(
        renewed >= 50 * 7,
        "renewed every third of the watchdog timeout, not {renewed} times"
    );
    release_all(guards).await;
    server.finish([client]).await;
}

#[tokio::test]
async fn locks_of_one_slot_are_renewed_together() {
    let server = node().await;
    let proxy = Proxy::start(server.port).await;
    let client = brisk(LockClient::builder())
        .connect(&proxy.url())
        .await
        .expect("the server answers");
    let names = (0..20)
        .map(|nth| format!("lock:{nth}"))
        .chain((0..20).map(|nth| format!("{{tag}}:{nth}")));
    let guards = take(&client, names).await;
    eventually("three rounds", ms(10 * PERIOD), || {
        client.stats().renewed_total >= 3 * 40
    })
    .await;
    let calls = proxy.script_calls();
    // The keys of each renewal; those taken on a busy machine may fall due in several beats.
    let keys =
        |words: &[String]| words[3..3 + words[2].parse::<usize>().expect("a number")].to_vec();
    let renewals: Vec<_> = calls
        .iter()
        .filter(|words| is_script(words, RENEW))
        .map(|words| keys(words))
        .collect();
    let is_tagged = |key: &String| key.starts_with("{tag}");
    let mixed = renewals
        .iter()
        .filter(|keys| keys.len() > 1 && !keys.iter().all(is_tagged))
        .count();
    assert!((1..=2).contains(&mixed), "{mixed} calls that were refused");
    let tagged: Vec<_> = renewals
        .iter()
        .filter(|keys| keys.iter().all(is_tagged))
        .map(Vec::len)
        .collect();
    assert!(
        tagged.len() * 3 < tagged.iter().sum(),
        "renewed together: {tagged:?}"
    );
    release_all(guards).await;
    client.close(Duration::ZERO).await;
    proxy.stop().await;
    server.finish([]).await;
}

#[tokio::test]
async fn many_slots_do_not_mean_as_many_calls_at_once() {
    const AT_ONCE: usize = 64;
    let server = node().await;
    let proxy = Proxy::start(server.port).await;
    // Long enough for the delayed renewals to come in time, however busy the machine is.
    let client = LockClient::builder()
        .watchdog_timeout(4 * ms(WATCHDOG))
        .command_timeout(ms(1_500))
        .connect(&proxy.url())
        .await
        .expect("the server answers");
    let guards = take(&client, (0..300).map(|nth| format!("lock:{nth}"))).await;
    let renewals = || {
        proxy
            .script_calls()
            .iter()
            .filter(|words| is_script(words, RENEW))
            .count()
    };
    eventually("a first round", ms(8 * PERIOD), || {
        client.stats().renewed_total >= 300
    })
    .await;
    let before = renewals();
    proxy.hold_replies(true);
    eventually("the second begins", ms(8 * PERIOD), || {
        renewals() >= before + AT_ONCE
    })
    .await;
    tokio::time::sleep(ms(50)).await;
    assert_eq!(
        renewals(),
        before + AT_ONCE,
        "the others wait for an answer"
    );
    proxy.hold_replies(false);
    eventually("the second ends", ms(8 * PERIOD), || {
        client.stats().renewed_total >= 600
    })
    .await;
    assert_eq!(client.stats().lost_total, 0);
    release_all(guards).await;
    client.close(Duration::ZERO).await;
    proxy.stop().await;
    server.finish([]).await;
}

#[tokio::test]
async fn a_slot_that_has_moved_away_costs_no_other_slot_its_locks() {
    let server = node().await;
    let proxy = Proxy::start(server.port).await;
    let client = brisk(LockClient::builder())
        .connect(&proxy.url())
        .await
        .expect("the server answers");
    let mut guards = take(&client, (0..20).map(|nth| format!("lock:{nth}"))).await;
    let moved = guards.remove(10);
    let other = Server::start_with(&["--cluster-enabled", "yes"]);
    let (mut control, mut other_control) = (server.control(), other.control());
    let its_id = other_control.run(&["CLUSTER", "MYID"]);
    control.run(&["CLUSTER", "MEET", "127.0.0.1", &other.port.to_string()]);
    eventually("they know each other", ms(10_000), || {
        control.run(&["CLUSTER", "NODES"]).lines().any(|line| {
            line.starts_with(&its_id) && line.contains("connected") && !line.contains("handshake")
        })
    })
    .await;
    let slot = control.run(&["CLUSTER", "KEYSLOT", "lock:10"]);
    // A slot is given away when it is empty.
    control.run(&["DEL", "lock:10"]);
    control.run(&["CLUSTER", "SETSLOT", &slot, "NODE", &its_id]);
    let reason = within(ms(2 * WATCHDOG), moved.lost()).await;
    let reason = reason.expect("told in time");
    assert!(
        matches!(reason, LossReason::NotRenewed | LossReason::Gone),
        "{reason}"
    );
    // Tried again every thirtieth of the watchdog timeout, and not as fast as it is refused.
    let is_of_it =
        |words: &&Vec<String>| is_script(words, RENEW) && words.contains(&"lock:10".to_owned());
    let calls = proxy.script_calls().iter().filter(is_of_it).count();
    assert!(calls <= 2 * 30, "{calls} renewals of one lock");
    all_held_for(&guards, ms(WATCHDOG)).await;
    assert_eq!(client.stats().lost_total, 1);
    drop(moved);
    release_all(guards).await;
    drop(other);
    client.close(Duration::ZERO).await;
    proxy.stop().await;
    server.finish([]).await;
}

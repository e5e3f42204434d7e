//! Readers that were killed beside readers that keep the lock, and what the keys of a call cost a server that reports changes.

use redisson_lock::{LockClient, LockKind};
use test_support::{Cluster, Control, TestServer, eventually, ms, nothing_is_left, tokio};

async fn connect(cluster: &Cluster) -> LockClient {
    LockClient::builder()
        .connect(&cluster.url())
        .await
        .expect("it answers")
}

/// For each script call since this was asked last, how many keys it had.
fn keys_of_calls(control: &mut Control) -> Vec<usize> {
    let log = control.run(&["SLOWLOG", "GET", "10000"]);
    for words in [
        &["CONFIG", "SET", "slowlog-log-slower-than", "0"][..],
        &["CONFIG", "SET", "slowlog-max-len", "10000"],
        &["SLOWLOG", "RESET"],
    ] {
        control.run(words);
    }
    let calls = log.split("EVALSHA ").skip(1);
    let keys = calls.filter_map(|call| call.split(' ').nth(1)?.parse().ok());
    keys.collect()
}

/// Of processes that were killed, beside readers that keep the lock.
fn leave_dead_readers(cluster: &Cluster, key: &str, count: usize) {
    let of = |nth| {
        [
            format!("4b786772-3910-43dd-89e5-4372b13673fc:{nth}"),
            "1".to_owned(),
        ]
    };
    let fields: Vec<_> = (0..count).flat_map(of).collect();
    let words = ["HSET", key].into_iter();
    let words: Vec<_> = words.chain(fields.iter().map(String::as_str)).collect();
    cluster.control(0).run(&words);
}

/// A server before Redis 7.2 tracks all keys of a call at each command that reads, so a call with a key of each of them would
/// take seconds.
#[tokio::test]
async fn dead_readers_are_asked_for_in_small_calls_and_once() {
    const DEAD: usize = 3_000;
    let cluster = Cluster::start(false).await;
    let clients = [connect(&cluster).await, connect(&cluster).await];
    let key = cluster.key_at(0, "lock");
    let mut control = cluster.control(0);
    let [first, second] = clients
        .each_ref()
        .map(|client| client.lock_of(LockKind::Read, key.clone()));
    for force in [false, true] {
        let stays = second.lock().await.expect("free");
        let leaves = first.lock().await.expect("shared");
        leave_dead_readers(&cluster, &key, DEAD);
        keys_of_calls(&mut control);
        let found = clients[1].rw_lock(key.clone()).inspect().await;
        assert_eq!(found.expect("asked").expect("held").readers.len(), DEAD + 2);
        if force {
            assert!(first.force_unlock().await.expect("asked"));
        } else {
            leaves.unlock().await.expect("held");
            assert_eq!(control.run(&["HLEN", &key]), "2", "it stays");
            let calls = keys_of_calls(&mut control);
            let most = calls.iter().max().copied().unwrap_or(0);
            // The others are those of a client that finds out what has changed.
            let calls = calls.iter().filter(|keys| **keys > 10).count();
            println!("{calls} calls with {most} keys at most");
            assert!(most <= 60, "{most} keys in one call");
            assert!(calls <= DEAD / 50, "{calls} calls");
            let again = first.lock().await.expect("shared");
            again.unlock().await.expect("held");
            let calls = keys_of_calls(&mut control);
            let are_small = calls.iter().all(|keys| *keys <= 10);
            assert!(are_small, "they are asked for again: {calls:?}");
            stays.unlock().await.expect("held");
        }
        let calls = keys_of_calls(&mut control);
        assert!(calls.iter().all(|keys| *keys <= 60), "{calls:?}");
        assert_eq!(control.run(&["EXISTS", &key]), "0", "{force}");
    }
    nothing_is_left(&cluster, clients).await;
}

/// What is left of a lock whose last reader was killed.
#[tokio::test]
async fn a_forced_unlock_frees_a_lock_that_only_dead_readers_have() {
    let cluster = Cluster::start(false).await;
    let client = connect(&cluster).await;
    let key = cluster.key_at(0, "lock");
    let mut control = cluster.control(0);
    for count in [1, 49, 50, 51, 120] {
        leave_dead_readers(&cluster, &key, count);
        control.run(&["HSET", &key, "mode", "read"]);
        control.run(&["PEXPIRE", &key, "60000"]);
        let writes = client.lock_of(LockKind::Write, key.clone());
        let forced = writes.force_unlock().await;
        assert!(forced.is_ok_and(|was_locked| was_locked), "{count}");
        let guard = writes.try_lock().await.expect("asked");
        guard.expect("it is free").unlock().await.expect("held");
    }
    nothing_is_left(&cluster, [client]).await;
}

/// Its keys are all needed to tell whether it is dead.
#[tokio::test]
async fn a_dead_reader_with_many_holds_is_no_obstacle_and_more_are_refused() {
    let cluster = Cluster::start(false).await;
    let client = connect(&cluster).await;
    let key = cluster.key_at(0, "lock");
    let reads = client.lock_of(LockKind::Read, key.clone());
    let leaves = reads.lock().await.expect("free");
    let mut control = cluster.control(0);
    let dead = "4b786772-3910-43dd-89e5-4372b13673fc:1";
    control.run(&["HSET", &key, dead, "300"]);
    leaves.unlock().await.expect("held");
    assert_eq!(control.run(&["EXISTS", &key]), "0");
    let leaves = reads.lock().await.expect("free");
    // Alive by its first key, each of the others being gone.
    for nth in 1..=2 {
        let reader = format!("4b786772-3910-43dd-89e5-4372b13673fc:{nth}");
        control.run(&["HSET", &key, &reader, "300"]);
        let covers = format!("{{{key}}}:{reader}:rwlock_timeout:1");
        control.run(&["SET", &covers, "1", "PX", "2000"]);
    }
    let refused = leaves.unlock().await.expect_err("too many");
    assert!(refused.is_retryable(), "{refused}");
    let text = "too many keys of nested read holds of this lock are gone";
    assert!(refused.to_string().contains(text), "{refused}");
    nothing_is_left(&cluster, [client]).await;
}

#[tokio::test]
async fn a_renewal_of_many_read_holds_is_in_small_calls() {
    const HOLDS: u64 = 300;
    let server = TestServer::new();
    let client = server
        .client_with(|builder| builder.watchdog_timeout(ms(6_000)))
        .await;
    let mut guards = Vec::new();
    for nth in 0..HOLDS {
        let lock = client.lock_of(LockKind::Read, format!("lock:{nth}"));
        guards.push(lock.lock().await.expect("free"));
    }
    let mut control = server.control();
    keys_of_calls(&mut control);
    let before = client.stats().renewed_total;
    let are_renewed = || client.stats().renewed_total >= before + HOLDS;
    eventually("they are renewed", ms(10_000), are_renewed).await;
    let calls = keys_of_calls(&mut control);
    assert!(calls.iter().all(|keys| *keys <= 50), "{calls:?}");
    drop(guards);
    server.finish([client]).await;
}

//! Waiting: wake-ups, deadlines, subscriptions, and the local queue. What holds for every kind of channel is in
//! `tests/channels.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redisson_lock::{Error, LockClient, LockClientBuilder};
use test_support::{Fate, Proxy, TestServer, eventually, ms, stalls, tokio};

/// Those that fit a cluster too: see `tests/cluster_rows.rs`.
#[path = "rows/waiting.rs"]
mod rows;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_hand_overs_between_two_clients_lose_no_wake_up() {
    let server = TestServer::new();
    let clients = [server.client().await, server.client().await];
    let slowest = Arc::new(std::sync::Mutex::new(Duration::ZERO));
    let turns = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for client in &clients {
        // Two tasks a client, so that each side always has a waiter while the other holds.
        for _ in 0..2 {
            let lock = client.lock("a");
            let (slowest, turns) = (Arc::clone(&slowest), Arc::clone(&turns));
            tasks.spawn(async move {
                while turns.fetch_add(1, Ordering::SeqCst) < 10_000 {
                    let start = Instant::now();
                    let guard = lock.lock().await.expect("taken");
                    let took = start.elapsed();
                    guard.unlock().await.expect("held");
                    let mut slowest = slowest.lock().expect("unpoisoned");
                    *slowest = (*slowest).max(took);
                }
            });
        }
    }
    while let Some(task) = tasks.join_next().await {
        task.expect("no panic");
    }
    let slowest = *slowest.lock().expect("unpoisoned");
    assert!(
        slowest < Duration::from_secs(2) + stalls(start),
        "a lost wake-up would wait for the lease: {slowest:?}"
    );
    server.finish(clients).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_thousand_names_are_waited_for_over_one_connection() {
    const NAMES: usize = 5000;
    let server = TestServer::new();
    // All of them send at the same time, and a busy machine takes long to answer the last.
    let patient = |builder: LockClientBuilder| {
        let builder = builder.watchdog_timeout(Duration::from_secs(600));
        builder.command_timeout(Duration::from_secs(120))
    };
    let client = server.client_with(patient).await;
    let mut control = server.control();
    let each = |what: &str| {
        format!(
            "for n = 0, {} do local key = 'a' .. n {what} end",
            NAMES - 1
        )
    };
    let take = each("redis.call('hset', key, 'java:1', 1) redis.call('pexpire', key, 600000)");
    control.run(&["EVAL", &take, "0"]);
    let connections = control.connections();
    let mut tasks = tokio::task::JoinSet::new();
    for nth in 0..NAMES {
        let lock = client.lock(format!("a{nth}"));
        tasks.spawn(async move { lock.lock().await.expect("taken").unlock().await });
    }
    eventually("all want a channel", Duration::from_secs(30), || {
        client.stats().subscriptions == NAMES
    })
    .await;
    eventually("all are subscribed", Duration::from_secs(30), || {
        let last = format!("redisson_lock__channel:{{a{}}}", NAMES - 1);
        control.run(&["PUBSUB", "NUMSUB", &last]).ends_with('1')
            && control.run(&["PUBSUB", "CHANNELS"]).split(' ').count() == NAMES
    })
    .await;
    assert_eq!(control.connections(), connections);
    let free = "redis.call('del', key) redis.call('publish', 'redisson_lock__channel:{' .. key .. '}', '0')";
    control.run(&["EVAL", &each(free), "0"]);
    while let Some(task) = tasks.join_next().await {
        task.expect("no panic").expect("held");
    }
    server.finish([client]).await;
}

#[tokio::test]
async fn a_call_whose_connection_falls_silent_when_it_subscribes_waits_on_its_replacement() {
    let server = TestServer::new();
    let theirs = server.client().await;
    let proxy = Proxy::start(server.port).await;
    let command_timeout = ms(1000);
    let ours = LockClient::builder()
        .command_timeout(command_timeout)
        .connect(&proxy.url())
        .await;
    let ours = ours.expect("the server answers");
    let mut control = server.control();
    let guard = theirs.lock("a").lock().await.expect("free");
    // From its first SUBSCRIBE on, the old connection swallows everything, in both directions.
    proxy.rule(Fate::Silence, 1, |words| words[0] == "SUBSCRIBE");
    let lock = ours.lock("a");
    let start = Instant::now();
    let waiter = tokio::spawn(async move { lock.lock().await?.unlock().await });
    eventually("it waits", command_timeout + stalls(start), || {
        control
            .run(&["PUBSUB", "NUMSUB", "redisson_lock__channel:{a}"])
            .ends_with('1')
    })
    .await;
    assert!(
        start.elapsed() >= command_timeout / 2,
        "the first connection was silent"
    );
    guard.unlock().await.expect("held");
    waiter.await.expect("no panic").expect("taken");
    ours.close(Duration::ZERO).await;
    proxy.stop().await;
    server.finish([theirs]).await;
}

#[tokio::test]
async fn without_the_right_to_subscribe_a_waiter_is_told_which_and_connections_get_rarer() {
    let server = TestServer::new();
    let mut control = server.control();
    for (missing, named) in [
        ("-subscribe", "+subscribe"),
        ("resetchannels", "&redisson_lock__channel:{a}"),
    ] {
        control.run(&[
            "ACL", "SETUSER", "u", "reset", "on", ">p", "~*", "&*", "+@all",
        ]);
        let url = format!("redis://u:p@127.0.0.1:{}", server.port);
        let client = LockClient::connect(&url).await.expect("the server answers");
        control.run(&["ACL", "SETUSER", "u", missing]);
        control.run(&["HSET", "a", "java:1", "1"]);
        let connections = |control: &mut test_support::Control| {
            let info = control.run(&["INFO", "stats"]);
            let line = info
                .lines()
                .find_map(|line| line.strip_prefix("total_connections_received:"));
            line.and_then(|number| number.trim().parse::<usize>().ok())
                .expect("a number")
        };
        let before = connections(&mut control);
        let start = Instant::now();
        while start.elapsed() < ms(2500) {
            match client.lock("a").lock().await.map(drop) {
                Err(Error::PermissionDenied { permission, .. }) => {
                    assert_eq!(permission, named, "{missing}")
                }
                other => panic!("{missing}: {other:?}"),
            }
        }
        let made = connections(&mut control) - before;
        assert!(
            made <= 15,
            "{missing}: {made} connections in {:?}",
            start.elapsed()
        );
        // Granted again, it waits; and an unlock wakes it.
        control.run(&["ACL", "SETUSER", "u", "+@all", "&*"]);
        let lock = client.lock("a");
        let waiter = tokio::spawn(async move { lock.lock().await.expect("taken").unlock().await });
        eventually("it waits", ms(2500) + stalls(start), || {
            control
                .run(&["PUBSUB", "NUMSUB", "redisson_lock__channel:{a}"])
                .ends_with('1')
        })
        .await;
        control.run(&["DEL", "a"]);
        control.run(&["PUBLISH", "redisson_lock__channel:{a}", "0"]);
        waiter.await.expect("no panic").expect("held");
        client.close(Duration::ZERO).await;
    }
    server.finish([]).await;
}

/// Each client is seen through a proxy of its own. A pause that is cut short by chance shows whatever the machine does,
/// which can only make pauses longer.
#[tokio::test]
async fn clients_that_lost_a_server_together_do_not_come_back_together() {
    const CLIENTS: usize = 8;
    let server = TestServer::new();
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let proxy = Proxy::start(server.port).await;
        let client = LockClient::connect(&proxy.url()).await;
        clients.push((proxy, client.expect("the server answers")));
    }
    let start = Instant::now();
    for (proxy, _) in &clients {
        proxy.refuse(true);
        proxy.cut_all();
    }
    // From here on each attempts once a second at most.
    let settled = start + ms(1_400);
    let is_cut_short = |proxy: &Proxy| {
        let arrivals = proxy.arrivals();
        let mut pairs = arrivals.windows(2).filter(|pair| pair[0] > settled);
        pairs.any(|pair| pair[1] - pair[0] < ms(900))
    };
    eventually(
        "most come before a second is over",
        Duration::from_secs(20),
        || {
            let early = clients.iter().filter(|(proxy, _)| is_cut_short(proxy));
            early.count() > CLIENTS / 2
        },
    )
    .await;
    for (proxy, client) in clients {
        proxy.refuse(false);
        eventually("back", Duration::from_secs(10), || {
            client.stats().reconnects_total > 0
        })
        .await;
        client.close(Duration::ZERO).await;
        proxy.stop().await;
    }
    server.finish([]).await;
}

#[tokio::test]
async fn a_silent_connection_whose_waiters_left_costs_no_later_call_its_time() {
    let server = TestServer::new();
    let theirs = server.client().await;
    let proxy = Proxy::start(server.port).await;
    let command_timeout = ms(1000);
    let ours = LockClient::builder()
        .command_timeout(command_timeout)
        .connect(&proxy.url())
        .await;
    let ours = ours.expect("the server answers");
    let guard = theirs.lock("a").lock().await.expect("free");
    let before = proxy.arrivals().len();
    // The only waiter leaves before the silence is noticed, so nobody asks anything of the
    // replacement.
    proxy.rule(Fate::Silence, 1, |words| words[0] == "SUBSCRIBE");
    assert!(
        ours.lock("a")
            .try_lock_for(ms(200))
            .await
            .expect("answered")
            .is_none()
    );
    eventually("it is replaced", ms(5000), || {
        proxy.arrivals().len() > before
    })
    .await;
    eventually("nothing is listened to", ms(5000), || {
        ours.stats().subscriptions == 0
    })
    .await;
    // Long after that the replacement falls silent as well.
    tokio::time::sleep(2 * command_timeout).await;
    proxy.rule(Fate::Silence, 1, |words| words[0] == "SUBSCRIBE");
    let lock = ours.lock("a");
    let waiter = tokio::spawn(async move { lock.lock().await?.unlock().await });
    let mut control = server.control();
    eventually("it waits or has failed", ms(5000), || {
        waiter.is_finished()
            || control
                .run(&["PUBSUB", "NUMSUB", "redisson_lock__channel:{a}"])
                .ends_with('1')
    })
    .await;
    guard.unlock().await.expect("held");
    waiter
        .await
        .expect("no panic")
        .expect("it waited on the next connection");
    ours.close(Duration::ZERO).await;
    proxy.stop().await;
    server.finish([theirs]).await;
}

//! Waiting: wake-ups, deadlines, subscriptions, and the local queue.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::proxy::Proxy;
use common::{Bed, eventually, ms, stalls};
use redisson_lock::LockClient;

#[tokio::test]
async fn an_unlock_wakes_a_waiter_long_before_the_lease_ends() {
    let bed = Bed::new();
    let (ours, theirs) = (bed.client().await, bed.client().await);
    let mut control = bed.control();
    for _ in 0..20 {
        let guard = theirs.lock("a").lock().await.expect("free");
        let waiter = tokio::spawn({
            let lock = ours.lock("a");
            async move { lock.lock().await.expect("taken").unlock().await }
        });
        eventually("subscribed", ms(2000), || {
            control.run(&["PUBSUB", "NUMSUB", "redisson_lock__channel:{a}"]).ends_with('1')
        })
        .await;
        let start = Instant::now();
        guard.unlock().await.expect("held");
        waiter.await.expect("no panic").expect("held");
        assert!(start.elapsed() < ms(250) + stalls(start), "{:?}", start.elapsed());
    }
    bed.finish([ours, theirs]).await;
}

#[tokio::test]
async fn a_message_between_attempt_and_subscription_is_not_missed() {
    // The subscriber's replies come late, so that the unlock falls between attempt and confirmation.
    let bed = Bed::new();
    let theirs = bed.client().await;
    for hold in [0, 1, 3, 5, 8, 13] {
        let proxy = Proxy::start(bed.server.port).await;
        let ours = LockClient::connect(&proxy.url()).await.expect("the server answers");
        let guard = theirs.lock("a").lock().await.expect("free");
        let waiter = tokio::spawn({
            let lock = ours.lock("a");
            async move { lock.lock().await.expect("taken").unlock().await }
        });
        while proxy.script_calls().is_empty() {
            tokio::task::yield_now().await;
        }
        proxy.hold_replies(true);
        tokio::time::sleep(ms(hold)).await;
        guard.unlock().await.expect("held");
        proxy.hold_replies(false);
        let start = Instant::now();
        waiter.await.expect("no panic").expect("held");
        assert!(start.elapsed() < ms(1000) + stalls(start), "{:?}", start.elapsed());
        ours.close(Duration::ZERO).await;
        proxy.stop().await;
    }
    bed.finish([theirs]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_waiters_of_one_client_all_get_it_once() {
    let bed = Bed::new();
    let client = bed.client().await;
    let mut control = bed.control();
    let first = client.lock("a").lock().await.expect("free");
    let (inside, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..1000 {
        let lock = client.lock("a");
        let (inside, done) = (Arc::clone(&inside), Arc::clone(&done));
        tasks.spawn(async move {
            let guard = lock.lock().await.expect("taken");
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "alone");
            done.fetch_add(1, Ordering::SeqCst);
            inside.fetch_sub(1, Ordering::SeqCst);
            guard.unlock().await.expect("held");
        });
    }
    eventually("all wait", ms(5000), || client.stats().waiting == 1000).await;
    let before = control.calls("evalsha");
    first.unlock().await.expect("held");
    while let Some(task) = tasks.join_next().await {
        task.expect("no panic");
    }
    assert_eq!(done.load(Ordering::SeqCst), 1000);
    let calls = control.calls("evalsha") - before;
    assert!(calls <= 2050, "only the head talks to Redis: {calls} script calls for 1000 sections");
    bed.finish([client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_hand_overs_between_two_clients_lose_no_wake_up() {
    let bed = Bed::new();
    let clients = [bed.client().await, bed.client().await];
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
    bed.finish(clients).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_thousand_names_are_waited_for_over_one_subscriber_connection() {
    const NAMES: usize = 5000;
    let bed = Bed::new();
    let client = bed.client_with(|builder| builder.command_timeout(Duration::from_secs(9))).await;
    let mut control = bed.control();
    let each = |what: &str| format!("for n = 0, {} do local key = 'a' .. n {what} end", NAMES - 1);
    let take = each("redis.call('hset', key, 'java:1', 1) redis.call('pexpire', key, 60000)");
    control.run(&["EVAL", &take, "0"]);
    let connections = control.connections();
    let mut tasks = tokio::task::JoinSet::new();
    for nth in 0..NAMES {
        let lock = client.lock(format!("a{nth}"));
        tasks.spawn(async move { lock.lock().await.expect("taken").unlock().await });
    }
    eventually("all want a channel", Duration::from_secs(30), || client.stats().subscriptions == NAMES).await;
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
    bed.finish([client]).await;
}

#[tokio::test]
async fn a_crashed_holder_is_waited_out_by_its_lease() {
    let bed = Bed::new();
    let client = bed.client().await;
    let mut control = bed.control();
    control.run(&["HSET", "a", "dead:1", "1"]);
    control.run(&["PEXPIRE", "a", "700"]);
    let start = Instant::now();
    let guard = client.lock("a").lock().await.expect("taken");
    let took = start.elapsed();
    assert!(took > ms(600) && took < ms(950) + stalls(start), "{took:?}");
    guard.unlock().await.expect("held");
    bed.finish([client]).await;
}

#[tokio::test]
async fn a_key_without_expiry_is_looked_at_every_watchdog_timeout() {
    let bed = Bed::new();
    let client = bed.client_with(|builder| builder.watchdog_timeout(ms(600)).command_timeout(ms(150))).await;
    let mut control = bed.control();
    control.run(&["HSET", "a", "strange:1", "1"]);
    let waiter = tokio::spawn({
        let lock = client.lock("a");
        async move { lock.lock().await.expect("taken").unlock().await }
    });
    eventually("it waits", ms(2000), || client.stats().subscriptions == 1).await;
    // Freed in silence: nobody publishes.
    control.run(&["DEL", "a"]);
    let start = Instant::now();
    waiter.await.expect("no panic").expect("held");
    assert!(start.elapsed() < ms(900) + stalls(start), "{:?}", start.elapsed());
    bed.finish([client]).await;
}

#[tokio::test]
async fn a_reconnect_of_the_subscriber_wakes_everyone() {
    let bed = Bed::new();
    let client = bed.client().await;
    let mut control = bed.control();
    for name in ["a", "b", "c"] {
        control.run(&["HSET", name, "java:1", "1"]);
        control.run(&["PEXPIRE", name, "60000"]);
    }
    let mut tasks = tokio::task::JoinSet::new();
    for name in ["a", "b", "c"] {
        let lock = client.lock(name);
        tasks.spawn(async move { lock.lock().await.expect("taken").unlock().await });
    }
    eventually("all wait", ms(2000), || control.run(&["PUBSUB", "CHANNELS"]).split(' ').count() == 3).await;
    // The holders vanish in silence while the subscriber is away: only the wake-up after it can help.
    control.run(&["MULTI"]);
    control.run(&["DEL", "a", "b", "c"]);
    control.run(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    control.run(&["EXEC"]);
    let start = Instant::now();
    while let Some(task) = tasks.join_next().await {
        task.expect("no panic").expect("held");
    }
    assert!(start.elapsed() < ms(1500) + stalls(start), "{:?}", start.elapsed());
    bed.finish([client]).await;
}

#[tokio::test]
async fn a_lagging_message_stream_wakes_everyone() {
    let bed = Bed::new();
    let client = bed.client().await;
    let mut control = bed.control();
    control.run(&["HSET", "a", "java:1", "1"]);
    control.run(&["PEXPIRE", "a", "60000"]);
    let lock = client.lock("a");
    let waiter = tokio::spawn(async move { lock.lock().await.expect("taken").unlock().await });
    eventually("it waits", ms(2000), || !control.run(&["PUBSUB", "CHANNELS"]).is_empty()).await;
    // One thread runs everything here: while it is busy the stream overflows, the unlock message first of all.
    control.run(&["DEL", "a"]);
    let flood =
        "redis.call('publish', KEYS[1], '0') for n = 1, 20000 do redis.call('publish', KEYS[2], '0') end";
    control.run(&["EVAL", flood, "2", "redisson_lock__channel:{a}", "redisson_lock__channel:{a}"]);
    let start = Instant::now();
    waiter.await.expect("no panic").expect("held");
    assert!(start.elapsed() < ms(2000) + stalls(start), "{:?}", start.elapsed());
    bed.finish([client]).await;
}

#[tokio::test]
async fn false_messages_neither_hand_out_the_lock_nor_end_the_wait() {
    let bed = Bed::new();
    let client = bed.client().await;
    let mut control = bed.control();
    control.run(&["HSET", "a", "java:1", "1"]);
    control.run(&["PEXPIRE", "a", "60000"]);
    let lock = client.lock("a");
    let waiter = tokio::spawn(async move { lock.try_lock_for(ms(400)).await });
    let start = Instant::now();
    while start.elapsed() < ms(300) {
        control.run(&["PUBLISH", "redisson_lock__channel:{a}", "nonsense"]);
        tokio::time::sleep(ms(1)).await;
    }
    assert!(waiter.await.expect("no panic").expect("asked").is_none());
    assert!(start.elapsed() >= ms(400) && start.elapsed() < ms(500) + stalls(start));
    control.run(&["DEL", "a"]);
    bed.finish([client]).await;
}

#[tokio::test]
async fn the_local_queue_is_first_in_first_out_and_a_re_entry_never_queues() {
    let bed = Bed::new();
    let client = bed.client().await;
    let lock = client.lock("a");
    let owners: Vec<_> = (0..6).map(|_| client.owner()).collect();
    let first = lock.owned_by(&owners[0]).lock().await.expect("free");
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = tokio::task::JoinSet::new();
    for (nth, owner) in owners.iter().enumerate().skip(1) {
        let (lock, order) = (lock.owned_by(owner), Arc::clone(&order));
        tasks.spawn(async move {
            let guard = lock.lock().await.expect("taken");
            order.lock().expect("unpoisoned").push(nth);
            guard.unlock().await.expect("held");
        });
        eventually("queued", ms(1000), || client.stats().waiting == nth).await;
    }
    let nested = lock.owned_by(&owners[0]).lock().await.expect("a re-entry passes the queue");
    nested.unlock().await.expect("held");
    first.unlock().await.expect("held");
    while let Some(task) = tasks.join_next().await {
        task.expect("no panic");
    }
    assert_eq!(*order.lock().expect("unpoisoned"), [1, 2, 3, 4, 5]);
    bed.finish([client]).await;
}

#[tokio::test]
async fn the_local_queue_keeps_its_order_beside_a_task_that_tries_all_the_time() {
    let bed = Bed::new();
    let client = bed.client().await;
    let lock = client.lock("a");
    let first = lock.lock().await.expect("free");
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = tokio::task::JoinSet::new();
    for nth in 1..=5 {
        let (lock, order) = (lock.clone(), Arc::clone(&order));
        tasks.spawn(async move {
            let guard = lock.lock().await.expect("taken");
            order.lock().expect("unpoisoned").push(nth);
            tokio::task::yield_now().await;
            guard.unlock().await.expect("held");
        });
        eventually("queued", ms(1000), || client.stats().waiting == nth).await;
    }
    let tried = Arc::new(AtomicUsize::new(0));
    let poller = tokio::spawn({
        let (lock, tried) = (lock.clone(), Arc::clone(&tried));
        async move {
            loop {
                // It may well get in between; it must not change who comes next. A moment without a hold is left to the
                // queue, because this is about its order.
                if let Some(guard) = lock.try_lock().await.expect("asked") {
                    guard.unlock().await.expect("held");
                    tokio::time::sleep(ms(2)).await;
                }
                tried.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    eventually("it tries", ms(2000), || tried.load(Ordering::SeqCst) >= 10).await;
    first.unlock().await.expect("held");
    tokio::time::timeout(Duration::from_secs(20), tasks.join_all()).await.expect("all of them are served");
    poller.abort();
    let _ = poller.await;
    assert_eq!(*order.lock().expect("unpoisoned"), [1, 2, 3, 4, 5]);
    bed.finish([client]).await;
}

#[tokio::test]
async fn when_an_owner_gets_the_lock_its_other_callers_are_served_next() {
    let bed = Bed::new();
    let client = bed.client().await;
    let lock = client.lock("a");
    let (a, b) = (client.owner(), client.owner());
    let first = lock.owned_by(&b).lock().await.expect("free");
    // Queue: a, b's other task, a again. Both of a are inside together; b comes after both.
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = tokio::task::JoinSet::new();
    let c = client.owner();
    for (nth, owner) in [&a, &c, &a].into_iter().enumerate() {
        let (lock, order) = (lock.owned_by(owner), Arc::clone(&order));
        tasks.spawn(async move {
            let guard = lock.lock().await.expect("taken");
            order.lock().expect("unpoisoned").push(nth);
            tokio::time::sleep(ms(50)).await;
            guard.unlock().await.expect("held");
        });
        eventually("queued", ms(1000), || client.stats().waiting == nth + 1).await;
    }
    first.unlock().await.expect("held");
    while let Some(task) = tasks.join_next().await {
        task.expect("no panic");
    }
    assert_eq!(*order.lock().expect("unpoisoned"), [0, 2, 1]);
    bed.finish([client]).await;
}

#[tokio::test]
async fn a_waiter_that_goes_away_leaves_its_turn_to_the_next() {
    let bed = Bed::new();
    let (ours, theirs) = (bed.client().await, bed.client().await);
    for _ in 0..20 {
        let guard = theirs.lock("a").lock().await.expect("free");
        let (head, next) = (ours.lock("a"), ours.lock("a"));
        let head = tokio::spawn(async move { head.lock().await.map(drop) });
        eventually("queued", ms(1000), || ours.stats().waiting == 1).await;
        let next = tokio::spawn(async move { next.lock().await.expect("taken").unlock().await });
        eventually("queued", ms(1000), || ours.stats().waiting == 2).await;
        guard.unlock().await.expect("held");
        head.abort();
        let start = Instant::now();
        next.await.expect("no panic").expect("held");
        assert!(start.elapsed() < ms(1000) + stalls(start), "{:?}", start.elapsed());
        let _ = head.await;
    }
    bed.finish([ours, theirs]).await;
}

#[tokio::test]
async fn a_waiter_without_a_command_in_flight_rides_through_a_reconnect() {
    let bed = Bed::new();
    let theirs = bed.client().await;
    let proxy = Proxy::start(bed.server.port).await;
    let ours = LockClient::connect(&proxy.url()).await.expect("the server answers");
    let mut control = bed.control();
    let guard = theirs.lock("a").lock().await.expect("free");
    let lock = ours.lock("a");
    let waiter = tokio::spawn(async move { lock.lock().await.expect("taken").unlock().await });
    eventually("it waits", ms(2000), || !control.run(&["PUBSUB", "CHANNELS"]).is_empty()).await;
    proxy.refuse(true);
    proxy.cut_all();
    tokio::time::sleep(ms(500)).await;
    assert!(!waiter.is_finished());
    proxy.refuse(false);
    eventually("it waits again", ms(4000), || !control.run(&["PUBSUB", "CHANNELS"]).is_empty()).await;
    guard.unlock().await.expect("held");
    waiter.await.expect("no panic").expect("held");
    ours.close(Duration::ZERO).await;
    proxy.stop().await;
    bed.finish([theirs]).await;
}

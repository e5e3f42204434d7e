//! Waiting, on one server and in a cluster: wake-ups, deadlines, and the local queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use test_support::{eventually, ms, stalls, tokio};

use super::TestServer;

#[tokio::test]
async fn an_unlock_wakes_a_waiter_long_before_the_lease_ends() {
    let server = TestServer::new();
    let (ours, theirs) = (server.client().await, server.client().await);
    for _ in 0..20 {
        let guard = theirs.lock("a").lock().await.expect("free");
        let waiter = tokio::spawn({
            let lock = ours.lock("a");
            async move { lock.lock().await.expect("taken").unlock().await }
        });
        let subscribed = || server.has_listener("a");
        eventually("subscribed", ms(2000), subscribed).await;
        let start = Instant::now();
        guard.unlock().await.expect("held");
        waiter.await.expect("no panic").expect("held");
        assert!(
            start.elapsed() < ms(250) + stalls(start),
            "{:?}",
            start.elapsed()
        );
    }
    server.finish([ours, theirs]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_waiters_of_one_client_all_get_it_once() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
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
    assert!(
        calls <= 2050,
        "only the head talks to Redis: {calls} script calls for 1000 sections"
    );
    server.finish([client]).await;
}

#[tokio::test]
async fn a_crashed_holder_is_waited_out_by_its_lease() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    control.run(&["HSET", "a", "dead:1", "1"]);
    control.run(&["PEXPIRE", "a", "700"]);
    let start = Instant::now();
    let guard = client.lock("a").lock().await.expect("taken");
    let took = start.elapsed();
    assert!(took > ms(600) && took < ms(950) + stalls(start), "{took:?}");
    guard.unlock().await.expect("held");
    server.finish([client]).await;
}

#[tokio::test]
async fn a_key_without_expiry_is_looked_at_every_watchdog_timeout() {
    let server = TestServer::new();
    let client = server
        .client_with(|builder| builder.watchdog_timeout(ms(600)).command_timeout(ms(150)))
        .await;
    let mut control = server.control();
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
    assert!(
        start.elapsed() < ms(900) + stalls(start),
        "{:?}",
        start.elapsed()
    );
    server.finish([client]).await;
}

#[tokio::test]
async fn false_messages_neither_hand_out_the_lock_nor_end_the_wait() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
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
    server.finish([client]).await;
}

#[tokio::test]
async fn the_local_queue_is_first_in_first_out_and_a_re_entry_never_queues() {
    let server = TestServer::new();
    let client = server.client().await;
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
    let nested = lock
        .owned_by(&owners[0])
        .lock()
        .await
        .expect("a re-entry passes the queue");
    nested.unlock().await.expect("held");
    first.unlock().await.expect("held");
    while let Some(task) = tasks.join_next().await {
        task.expect("no panic");
    }
    assert_eq!(*order.lock().expect("unpoisoned"), [1, 2, 3, 4, 5]);
    server.finish([client]).await;
}

#[tokio::test]
async fn the_local_queue_keeps_its_order_beside_a_task_that_tries_all_the_time() {
    let server = TestServer::new();
    // Between passes the lock is never free.
    let client = server.client_with(|builder| builder.handoff(false)).await;
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
                // It may well get in between; it must not change who comes next, nor keep them from
                // it.
                if let Some(guard) = lock.try_lock().await.expect("asked") {
                    guard.unlock().await.expect("held");
                }
                tried.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    eventually("it tries", ms(2000), || tried.load(Ordering::SeqCst) >= 10).await;
    first.unlock().await.expect("held");
    tokio::time::timeout(Duration::from_secs(20), tasks.join_all())
        .await
        .expect("all of them are served");
    poller.abort();
    let _ = poller.await;
    assert_eq!(*order.lock().expect("unpoisoned"), [1, 2, 3, 4, 5]);
    server.finish([client]).await;
}

#[tokio::test]
async fn when_an_owner_gets_the_lock_its_other_callers_are_served_next() {
    let server = TestServer::new();
    let client = server.client().await;
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
    server.finish([client]).await;
}

#[tokio::test]
async fn a_waiter_that_goes_away_leaves_its_turn_to_the_next() {
    let server = TestServer::new();
    let (ours, theirs) = (server.client().await, server.client().await);
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
        assert!(
            start.elapsed() < ms(1000) + stalls(start),
            "{:?}",
            start.elapsed()
        );
        let _ = head.await;
    }
    server.finish([ours, theirs]).await;
}

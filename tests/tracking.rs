//! Locks that somebody else takes away, and what servers report of that.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use redisson_lock::{Error, HoldState, LockClient, LockGuard, LossReason};
use test_support::kinds::{KINDS, delete};
use test_support::{
    Control, Events, Proxy, TestServer, eventually, lock_and_unlock, ms, replicas_of, tokio, within,
};
use tracing::Level;

/// Those that fit a cluster too: see `tests/cluster_rows.rs`.
#[path = "rows/tracking.rs"]
mod rows;

use rows::{SOON, lost};

/// Without a report nothing is noticed before this has passed.
const WATCHDOG: Duration = Duration::from_secs(600);

async fn patient(server: &TestServer) -> LockClient {
    let set = |builder: redisson_lock::LockClientBuilder| builder.watchdog_timeout(WATCHDOG);
    server.client_with(set).await
}

/// How many scripts the server has run.
fn scripts(control: &mut Control) -> i64 {
    control.calls("evalsha") + control.calls("eval")
}

/// Waits until no script is run any more. Returns how many were.
async fn settled(control: &mut Control) -> i64 {
    loop {
        let before = scripts(control);
        tokio::time::sleep(ms(150)).await;
        if scripts(control) == before {
            return before;
        }
    }
}

#[tokio::test]
async fn a_flush_is_noticed_by_all_who_hold() {
    let server = TestServer::new();
    let clients = [patient(&server).await, patient(&server).await];
    let mut control = server.control();
    for flush in [&["FLUSHALL"], &["FLUSHDB"]] {
        let mut guards = Vec::new();
        for (nth, client) in clients.iter().enumerate() {
            for lock in 0..300 {
                let lock = client.lock(format!("{nth} {lock}"));
                guards.push(lock.lock().await.expect("free"));
            }
        }
        control.run(flush);
        for guard in &guards {
            assert_eq!(lost(guard, flush[0]).await, LossReason::Gone);
        }
    }
    server.finish(clients).await;
}

#[tokio::test]
async fn another_database_is_not_looked_at_by_mistake() {
    let server = TestServer::new();
    let client = patient(&server).await;
    let mut control = server.control();
    let guard = client.lock("a").lock().await.expect("free");
    let before = settled(&mut control).await;
    control.run(&["SELECT", "1"]);
    control.run(&["SET", "a", "1", "PX", "10000"]);
    control.run(&["DEL", "a"]);
    control.run(&["SELECT", "0"]);
    let looks = settled(&mut control).await - before;
    // It is reported although it is another key.
    assert!((1..=2).contains(&looks), "{looks}");
    assert_eq!(guard.state(), HoldState::Held);
    // After SWAPDB the lock is gone, and that is not reported.
    control.run(&["SWAPDB", "0", "1"]);
    assert_eq!(settled(&mut control).await - before, looks);
    assert_eq!(guard.state(), HoldState::Held);
    control.run(&["SWAPDB", "0", "1"]);
    guard.unlock().await.expect("held");
    server.finish([client]).await;
}

#[tokio::test]
async fn a_change_between_an_acquire_and_its_answer_is_noticed() {
    let server = TestServer::new();
    let client = patient(&server).await;
    let mut control = server.control();
    let lock = client.lock("a");
    // The server learns the script, so the next acquire is one command.
    lock_and_unlock(&lock).await;
    type Locking<'a> = Pin<Box<dyn Future<Output = Result<LockGuard, Error>> + 'a>>;
    let mut call: Locking<'_> = Box::pin(async { lock.lock().await });
    let mut context = Context::from_waker(Waker::noop());
    assert!(call.as_mut().poll(&mut context).is_pending());
    eventually("it has executed", ms(5_000), || control.count("a") == 1).await;
    control.run(&["DEL", "a"]);
    let before = scripts(&mut control);
    tokio::time::sleep(ms(200)).await;
    assert_eq!(scripts(&mut control), before, "nothing is held yet");
    let guard = call.await.expect("its answer says so");
    assert_eq!(
        lost(&guard, "deleted before the answer was read").await,
        LossReason::Gone
    );
    drop(guard);
    server.finish([client]).await;
}

/// The other reader is looked at meanwhile, and finds its own loss.
#[tokio::test]
async fn a_change_before_an_answer_is_noticed_beside_another_reader() {
    let server = TestServer::new();
    let client = patient(&server).await;
    let mut control = server.control();
    let read = || client.rw_lock("a").read().owned_by(&client.owner());
    let other = read().lock().await.expect("no writer");
    let lock = read();
    type Locking<'a> = Pin<Box<dyn Future<Output = Result<LockGuard, Error>> + 'a>>;
    let mut call: Locking<'_> = Box::pin(async { lock.lock().await });
    let mut context = Context::from_waker(Waker::noop());
    assert!(call.as_mut().poll(&mut context).is_pending());
    // Both fields, and how the lock is held.
    eventually("it has executed", ms(5_000), || {
        control.number(&["HLEN", "a"]) == 3
    })
    .await;
    delete(&mut control, "a");
    let reason = lost(&other, "deleted before the answer was read").await;
    assert_eq!(reason, LossReason::Gone);
    let guard = call.await.expect("its answer says so");
    let reason = lost(&guard, "deleted before the answer was read").await;
    assert_eq!(reason, LossReason::Gone);
    drop((other, guard));
    server.finish([client]).await;
}

/// A connection does not report its own writes to itself: that would cost a look each time.
#[tokio::test]
async fn what_a_client_changes_itself_is_not_looked_at() {
    let mut costs = Vec::new();
    for tracking in [false, true] {
        let server = TestServer::new();
        let set = |builder: redisson_lock::LockClientBuilder| {
            builder
                .tracking(tracking)
                .connections(1)
                .watchdog_timeout(ms(1_500))
        };
        let client = server.client_with(set).await;
        let mut control = server.control();
        for kind in KINDS {
            let before = scripts(&mut control) - client.stats().renewed_total as i64;
            let lock = client.lock_of(kind, format!("{kind}").replace(' ', "-"));
            let guard = lock.lock().await.expect("free");
            let renewals = || client.stats().renewed_total;
            let begun = renewals();
            eventually("renewals", ms(5_000), || renewals() >= begun + 2).await;
            guard.unlock().await.expect("held");
            let guard = lock.lease(ms(60_000)).lock().await.expect("free");
            guard.extend(ms(90_000)).await.expect("held");
            // Without NOLOOP each of these is a report of its own.
            tokio::time::sleep(ms(100)).await;
            guard.unlock().await.expect("held");
            let calls = scripts(&mut control) - client.stats().renewed_total as i64 - before;
            costs.push((kind, tracking, calls));
        }
        server.finish([client]).await;
    }
    let (without, with) = costs.split_at(KINDS.len());
    for ((kind, _, without), (_, _, with)) in without.iter().zip(with) {
        assert_eq!(with, without, "{kind}: beside its renewals");
    }
}

#[tokio::test]
async fn a_new_connection_reports_too_and_what_the_last_one_missed_is_looked_at() {
    let server = TestServer::new();
    let proxy = Proxy::start(server.port).await;
    let builder = LockClient::builder()
        .watchdog_timeout(WATCHDOG)
        .connections(2);
    let client = builder.connect(&proxy.url()).await.expect("it answers");
    let mut control = server.control();
    let mut guards = Vec::new();
    for nth in 0..20 {
        let lock = client.lock(format!("{nth}"));
        guards.push(lock.lock().await.expect("free"));
    }
    proxy.cut_all();
    eventually("it is connected again", SOON, || {
        client.stats().reconnects_total >= 2 && client.is_connected()
    })
    .await;
    settled(&mut control).await;
    for nth in 0..10 {
        control.run(&["DEL", &nth.to_string()]);
    }
    for guard in &guards[..10] {
        assert_eq!(
            lost(guard, "reported by the new connection").await,
            LossReason::Gone
        );
    }
    proxy.refuse(true);
    proxy.cut_all();
    for nth in 10..20 {
        control.run(&["DEL", &nth.to_string()]);
    }
    proxy.refuse(false);
    for guard in &guards[10..] {
        assert_eq!(
            lost(guard, "missed by the last connection").await,
            LossReason::Gone
        );
    }
    drop(guards);
    client.close(SOON).await;
    proxy.stop().await;
    server.finish([]).await;
}

#[tokio::test]
async fn a_client_that_is_not_to_ask_for_reports_does_not() {
    let server = TestServer::new();
    let set = |builder: redisson_lock::LockClientBuilder| {
        builder.tracking(false).watchdog_timeout(WATCHDOG)
    };
    let client = server.client_with(set).await;
    let mut control = server.control();
    assert_eq!(control.calls("client|tracking"), 0);
    let guard = client.lock("a").lock().await.expect("free");
    control.run(&["DEL", "a"]);
    assert!(within(ms(300), guard.lost()).await.is_none());
    drop(guard);
    server.finish([client]).await;
}

/// Without the right, and without the command.
#[tokio::test]
async fn a_server_that_does_not_report_is_mentioned_once_and_all_else_works() {
    for settings in [&[][..], &["--rename-command", "HELLO", ""]] {
        let (events, _guard) = Events::of_this_thread();
        let server = TestServer::with(settings);
        let mut control = server.control();
        if settings.is_empty() {
            control.run(&["ACL", "SETUSER", "default", "-client|tracking"]);
        }
        let set = |builder: redisson_lock::LockClientBuilder| {
            builder.connections(3).watchdog_timeout(ms(1_500))
        };
        let client = server.client_with(set).await;
        let guard = client.lock("a").lock().await.expect("free");
        control.run(&["DEL", "a"]);
        assert_eq!(lost(&guard, "by the renewal").await, LossReason::Gone);
        let text = "the server does not report changes of locks";
        assert_eq!(events.count(Level::INFO, text), 1);
        drop(guard);
        server.finish([client]).await;
    }
}

#[tokio::test]
async fn a_look_writes_nothing_and_readers_do_not_keep_each_other_busy() {
    let server = TestServer::new();
    let clients = [
        patient(&server).await,
        patient(&server).await,
        patient(&server).await,
    ];
    let mut control = server.control();
    let mut guards = Vec::new();
    for client in &clients {
        for _ in 0..5 {
            let read = client.rw_lock("a").read().owned_by(&client.owner());
            guards.push(read.lock().await.expect("no writer"));
        }
    }
    let before = settled(&mut control).await;
    let written = control.calls("pexpire") + control.calls("hset") + control.calls("hincrby");
    // The last look of one must not be a change for another.
    tokio::time::sleep(ms(500)).await;
    assert_eq!(scripts(&mut control), before);
    control.run(&["PEXPIRE", "a", "600000"]);
    let looks = settled(&mut control).await - before;
    assert!((3..=6).contains(&looks), "{looks}: one call of each client");
    let after = control.calls("pexpire") + control.calls("hset") + control.calls("hincrby");
    assert_eq!(after, written + 1, "the control's");
    for guard in guards {
        guard.unlock().await.expect("held");
    }
    server.finish(clients).await;
}

#[tokio::test]
async fn a_lock_that_is_changed_all_the_time_is_looked_at_twenty_times_a_second() {
    let server = TestServer::new();
    let client = patient(&server).await;
    let mut control = server.control();
    let guard = client.lock("a").lock().await.expect("free");
    let before = settled(&mut control).await;
    let start = Instant::now();
    while start.elapsed() < ms(1_000) {
        control.run(&["PEXPIRE", "a", "600000"]);
        tokio::task::yield_now().await;
    }
    let looks = settled(&mut control).await - before;
    let most = start.elapsed().as_millis() as i64 / 50 + 1;
    assert!((5..=most).contains(&looks), "{looks} of {most}");
    assert_eq!(guard.state(), HoldState::Held);
    control.run(&["DEL", "a"]);
    assert_eq!(lost(&guard, "the last change").await, LossReason::Gone);
    drop(guard);
    server.finish([client]).await;
}

#[tokio::test]
async fn more_changes_than_can_be_looked_at_are_left_to_the_renewals() {
    let (events, _guard) = Events::of_this_thread();
    let server = TestServer::new();
    let client = patient(&server).await;
    let mut control = server.control();
    let mut guards = Vec::new();
    for nth in 0..2_500 {
        guards.push(client.lock(format!("{nth}")).lock().await.expect("free"));
    }
    let before = settled(&mut control).await;
    // All in one command, which one script call is.
    let all =
        "for _, key in ipairs(redis.call('keys', '*')) do redis.call('pexpire', key, 600000) end";
    control.run(&["EVAL", all, "0"]);
    events
        .comes(Level::WARN, "faster than they can be looked at")
        .await;
    let looks = settled(&mut control).await - before - 1;
    assert!(looks <= 25, "{looks} calls");
    control.run(&["DEL", "7"]);
    assert_eq!(settled(&mut control).await - before - 1, looks, "it pauses");
    assert_eq!(guards[7].state(), HoldState::Held);
    assert_eq!(
        events.count(Level::WARN, "faster than they can be looked at"),
        1
    );
    // A new connection may have missed reports, pause or not: what was dropped is looked at with all others.
    control.run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    control.run(&["DEL", "7", "2400"]);
    for nth in [7, 2_400] {
        // To look at all of them takes more than a second.
        let reason = within(ms(10_000), guards[nth].lost()).await;
        assert_eq!(reason, Some(LossReason::Gone), "{nth}");
    }
    assert_eq!(
        events.count(Level::WARN, "faster than they can be looked at"),
        1
    );
    drop(guards);
    let is_released = || client.stats().releasing == 0;
    eventually("all are released", ms(30_000), is_released).await;
    server.finish([client]).await;
}

/// The field of the one that leaves was written last.
#[tokio::test]
async fn a_reader_that_leaves_does_not_end_the_reports_for_the_others_of_its_client() {
    let server = TestServer::new();
    let client = patient(&server).await;
    let mut control = server.control();
    let read = || client.rw_lock("a").read().owned_by(&client.owner());
    let stays = read().lock().await.expect("no writer");
    let leaves = read().lock().await.expect("no writer");
    leaves.unlock().await.expect("held");
    delete(&mut control, "a");
    let reason = lost(&stays, "after another reader has left").await;
    assert_eq!(reason, LossReason::Gone);
    drop(stays);
    server.finish([client]).await;
}

#[tokio::test]
async fn a_flush_is_noticed_over_each_of_several_connections() {
    const HOLDS: usize = 1_500;
    let server = TestServer::new();
    let set = |builder: redisson_lock::LockClientBuilder| {
        builder.watchdog_timeout(WATCHDOG).connections(4)
    };
    let client = server.client_with(set).await;
    let mut guards = Vec::new();
    for nth in 0..HOLDS {
        guards.push(client.lock(format!("{nth}")).lock().await.expect("free"));
    }
    server.control().run(&["FLUSHALL"]);
    // A look at all of them takes three quarters of a second.
    eventually("all are lost", ms(5_000), || {
        client.stats().lost_total == HOLDS as u64
    })
    .await;
    drop(guards);
    server.finish([client]).await;
}

#[tokio::test]
async fn a_look_without_an_answer_is_repeated() {
    let (events, _collecting) = Events::of_this_thread();
    let server = TestServer::new();
    let set = |builder: redisson_lock::LockClientBuilder| {
        builder.watchdog_timeout(WATCHDOG).command_timeout(ms(300))
    };
    let client = server.client_with(set).await;
    let guard = client.lock("a").lock().await.expect("free");
    let port = server.port;
    let busy = std::thread::spawn(move || {
        let mut control = Control::connect(port);
        // Then other scripts are refused.
        control.run(&["CONFIG", "SET", "lua-time-limit", "50"]);
        let until = "redis.call('del', KEYS[1]) local ends = redis.call('time')[1] + 2 \
                     while redis.call('time')[1] + 0 < ends do end";
        control.run(&["EVAL", until, "1", "a"]);
    });
    let reason = within(ms(8_000), guard.lost()).await;
    assert_eq!(reason, Some(LossReason::Gone));
    busy.join().expect("no panic");
    assert!(!events.has(Level::WARN, "renewal failed"));
    drop(guard);
    server.finish([client]).await;
}

#[tokio::test]
async fn locks_are_looked_at_in_the_order_of_their_reports() {
    let server = TestServer::new();
    let (client, other) = (patient(&server).await, patient(&server).await);
    let mut guards = Vec::new();
    for _ in 0..150 {
        let read = client.rw_lock("a").read().owned_by(&client.owner());
        guards.push(read.lock().await.expect("no writer"));
    }
    let guard = client.lock("b").lock().await.expect("free");
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let busy = tokio::spawn(async move {
        while !stopped.load(Ordering::SeqCst) {
            let read = other.rw_lock("a").read().lock().await;
            read.expect("no writer").unlock().await.expect("held");
            tokio::time::sleep(ms(10)).await;
        }
        other
    });
    tokio::time::sleep(ms(300)).await;
    server.control().run(&["DEL", "b"]);
    let reason = lost(&guard, "beside one that is always reported").await;
    assert_eq!(reason, LossReason::Gone);
    stop.store(true, Ordering::SeqCst);
    let other = busy.await.expect("no panic");
    for guard in guards {
        guard.unlock().await.expect("held");
    }
    drop(guard);
    server.finish([client, other]).await;
}

/// Replicas are asked by a write over another connection of the client, which its own connection reports.
#[tokio::test]
async fn the_writes_for_replicas_do_not_end_the_reports() {
    let (events, _guard) = Events::of_this_thread();
    let server = TestServer::new();
    let replicas = replicas_of(&server, 1).await;
    let set = |builder: redisson_lock::LockClientBuilder| {
        builder
            .watchdog_timeout(WATCHDOG)
            .command_timeout(ms(9_000))
            .sync_replicas(1, ms(2_000))
    };
    let client = server.client_with(set).await;
    let mut tasks = tokio::task::JoinSet::new();
    for nth in 0..4_000 {
        // With 4,000 at the same time, some wait for their replica for longer than two seconds.
        let lock = client.lock(format!("{nth}")).owned_by(&client.owner());
        let lock = lock.retry_for(ms(40_000));
        tasks.spawn(async move { lock.lock().await.expect("free") });
    }
    let guards = tasks.join_all().await;
    tokio::time::sleep(ms(1_000)).await;
    assert_eq!(
        events.count(Level::WARN, "faster than they can be looked at"),
        0
    );
    for guard in guards {
        guard.unlock().await.expect("held");
    }
    drop(replicas);
    server.finish([client]).await;
}

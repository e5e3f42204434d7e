//! What burns the processor or measures time, one after the other: `cargo xtask test` runs this
//! file by itself.
//!
//! `HEAVY_SECS` says how long locks are held (default 12; the figures in docs/testing.md are from
//! 60).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redisson_lock::{HoldState, LockClient, LockGuard};
use test_support::{LIMIT, TestServer, eventually, may_take, ms, processor_time, stalls, tokio};

/// Waits until none of the other tests runs, however the test runner is called.
async fn alone() -> tokio::sync::MutexGuard<'static, ()> {
    static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    // The one that runs has a limit.
    may_take(Duration::MAX);
    let alone = ALONE.lock().await;
    may_take(LIMIT + heavy_time());
    alone
}

fn heavy_time() -> Duration {
    let secs = std::env::var("HEAVY_SECS")
        .ok()
        .and_then(|secs| secs.parse().ok());
    Duration::from_secs(secs.unwrap_or(12))
}

const LOCKS: usize = 10_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_locks_of_ten_thousand_owners_are_kept_with_few_script_calls() {
    let _alone = alone().await;
    let kept = keep_ten_thousand().await;
    println!("{kept:?}");
    assert_eq!(kept.keys, LOCKS);
    assert_eq!(
        kept.bad_keys, 0,
        "count 1, and a TTL above a third of the lease"
    );
    assert_eq!((kept.held, kept.lost), (LOCKS, 0));
    // 25 locks a call, if the server is older than Redis 7.2; otherwise 100.
    assert!(kept.calls_per_period <= 450.0 && kept.calls_at_most <= 450);
}

/// Long enough that a machine that is busy with something else has the time to renew ten thousand.
const WATCHDOG: Duration = Duration::from_secs(15);
/// How often each lock is renewed.
const PERIOD: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Kept {
    keys: usize,
    bad_keys: usize,
    held: usize,
    lost: u64,
    calls_per_period: f64,
    calls_at_most: i64,
}

/// Acquires this number of locks, each as an owner of its own, 200 at a time.
async fn take_renewed(client: &LockClient, count: usize) -> Vec<LockGuard> {
    let mut taking = tokio::task::JoinSet::new();
    let in_flight = Arc::new(tokio::sync::Semaphore::new(200));
    for nth in 0..count {
        let permit = Arc::clone(&in_flight).acquire_owned().await.expect("open");
        let lock = client.lock(format!("a{nth}")).owned_by(&client.owner());
        taking.spawn(async move {
            let guard = lock.lock().await;
            drop(permit);
            guard
        });
    }
    taking.join_all().await.into_iter().flatten().collect()
}

/// Takes the locks, keeps them for a while, looks at every key, and releases them.
async fn keep_ten_thousand() -> Kept {
    let server = TestServer::new();
    let client = server
        .client_with(|builder| {
            builder
                .watchdog_timeout(WATCHDOG)
                .command_timeout(ms(2_000))
        })
        .await;
    let mut control = server.control();
    let start = Instant::now();
    let guards = take_renewed(&client, LOCKS).await;
    println!("{} locks taken in {:?}", guards.len(), start.elapsed());

    // Whole periods, so that what was sent in them can be counted.
    let periods = heavy_time().as_secs().div_ceil(PERIOD.as_secs()) as u32;
    let (calls, start) = (control.calls("evalsha"), Instant::now());
    let mut calls_at_most = 0;
    for period in 1..=periods {
        let calls = control.calls("evalsha");
        tokio::time::sleep_until((start + PERIOD * period).into()).await;
        calls_at_most = calls_at_most.max(control.calls("evalsha") - calls);
    }
    let calls = control.calls("evalsha") - calls;
    let (least, most) = (WATCHDOG.as_millis() / 3, WATCHDOG.as_millis());
    let script = format!(
        "local bad = 0 for _, key in ipairs(redis.call('keys', 'a*')) do \
         local left = redis.call('pttl', key) \
         if redis.call('hvals', key)[1] ~= '1' or left < {least} or left > {most} then bad = bad + 1 end end \
         return bad"
    );
    let kept = Kept {
        keys: control.number(&["DBSIZE"]) as usize,
        bad_keys: control.number(&["EVAL", &script, "0"]) as usize,
        held: guards
            .iter()
            .filter(|guard| guard.state() == HoldState::Held)
            .count(),
        lost: client.stats().lost_total,
        calls_per_period: calls as f64 / f64::from(periods),
        calls_at_most,
    };
    drop(guards);
    eventually("released", Duration::from_secs(20), || {
        control.run(&["DBSIZE"]) == "0"
    })
    .await;
    server.finish([client]).await;
    kept
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_thousand_renewals_that_fail_cost_little_and_no_lock() {
    const LOCKS: usize = 20_000;
    let _alone = alone().await;
    let server = TestServer::new();
    let client = server
        .client_with(|builder| {
            builder
                .watchdog_timeout(WATCHDOG)
                .command_timeout(ms(1_000))
        })
        .await;
    let guards = take_renewed(&client, LOCKS).await;
    assert_eq!(guards.len(), LOCKS);
    // Each is due at least once meanwhile.
    let before = processor_time();
    server.pause();
    tokio::time::sleep(PERIOD + ms(1_000)).await;
    server.resume();
    tokio::time::sleep(PERIOD + ms(1_000)).await;
    let spent = processor_time() - before;
    println!("{LOCKS} locks whose renewals fail cost {spent:?}");
    assert!(spent < Duration::from_secs(9), "{spent:?}");
    assert_eq!(client.stats().lost_total, 0);
    tokio::time::sleep(WATCHDOG).await;
    assert_eq!(client.stats().lost_total, 0);
    drop(guards);
    eventually("released", Duration::from_secs(20), || {
        client.stats().releasing == 0
    })
    .await;
    server.finish([client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn healthy_holding_under_two_busy_cores_signals_no_loss() {
    let _alone = alone().await;
    let server = TestServer::new();
    let client = server
        .client_with(|builder| {
            builder
                .watchdog_timeout(Duration::from_secs(3))
                .command_timeout(ms(900))
        })
        .await;
    let stop = Arc::new(AtomicBool::new(false));
    let burners: Vec<_> = (0..2)
        .map(|_| {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || while !stop.load(Ordering::Relaxed) {})
        })
        .collect();
    let mut guards = Vec::new();
    for nth in 0..200 {
        let lock = client.lock(format!("a{nth}"));
        let lock = if nth % 4 == 0 {
            lock.lease(Duration::from_secs(600))
        } else {
            lock
        };
        guards.push(lock.lock().await.expect("free"));
    }
    let start = Instant::now();
    while start.elapsed() < heavy_time() {
        tokio::time::sleep(ms(100)).await;
        let held = guards
            .iter()
            .filter(|guard| guard.state() == HoldState::Held)
            .count();
        if held < guards.len() {
            let stood_still = stalls(start);
            panic!(
                "{held} of {} are held; the machine stood still for {stood_still:?}",
                guards.len()
            );
        }
    }
    stop.store(true, Ordering::Relaxed);
    for burner in burners {
        burner.join().expect("no panic");
    }
    assert_eq!(client.stats().lost_total, 0);
    for guard in guards {
        guard.unlock().await.expect("held");
    }
    server.finish([client]).await;
}

/// Acquires this number of locks, each as an owner of its own and with a lease that outlasts the test.
async fn take(client: &LockClient, locks: std::ops::Range<usize>) -> Vec<LockGuard> {
    let mut guards = Vec::with_capacity(locks.len());
    let mut calls = tokio::task::JoinSet::new();
    for nth in locks {
        let lock = client
            .lock(format!("lock:{nth}"))
            .lease(Duration::from_secs(600));
        calls.spawn(async move { lock.lock().await.expect("free") });
        if calls.len() >= 32 {
            guards.extend(
                calls
                    .join_next()
                    .await
                    .map(|guard| guard.expect("no panic")),
            );
        }
    }
    guards.extend(calls.join_all().await);
    guards
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statistics_cost_the_same_however_many_locks_are_held() {
    let _alone = alone().await;
    let server = TestServer::new();
    let client = server.client().await;
    let median = || {
        let mut times: Vec<_> = std::iter::repeat_with(|| {
            let start = Instant::now();
            std::hint::black_box(client.stats());
            start.elapsed()
        })
        .take(101)
        .collect();
        times.sort();
        times[50]
    };
    let mut guards = take(&client, 0..200).await;
    let few = median();
    guards.extend(take(&client, 200..20_000).await);
    let many = median();
    println!("stats() takes {few:?} at 200 locks and {many:?} at 20000");
    assert_eq!(client.stats().held, 20_000);
    assert!(many < few * 10, "{few:?} at 200 locks, {many:?} at 20000");
    drop(guards);
    eventually("all released", Duration::from_secs(60), || {
        client.stats().releasing == 0
    })
    .await;
    assert_eq!(client.stats().held, 0);
    server.finish([client]).await;
}

#[tokio::test]
async fn closing_waits_for_background_releases_for_as_long_as_they_progress() {
    let _alone = alone().await;
    for grace in [0, 10].map(Duration::from_secs) {
        let server = TestServer::new();
        let client = server
            .client_with(|builder| builder.command_timeout(ms(200)))
            .await;
        let guards = take(&client, 0..LOCKS).await;
        // On one thread: nothing is sent before the last of them was dropped.
        drop(guards);
        assert_eq!(client.stats().releasing, LOCKS);
        let start = Instant::now();
        let report = client.close(grace).await;
        println!("close({grace:?}) took {:?}: {report:?}", start.elapsed());
        assert_eq!(report.unconfirmed, 0, "with a grace of {grace:?}");
        assert_eq!(
            server.control().run(&["DBSIZE"]),
            "0",
            "with a grace of {grace:?}"
        );
        server.finish([]).await;
    }
}

/// How often a caller that queues gets the lock beside this number of tasks that poll for it with
/// `try_lock`.
async fn taken_beside_pollers(queued: &LockClient, polling: &LockClient) -> u32 {
    const POLLERS: usize = 128;
    let stop = Arc::new(AtomicBool::new(false));
    let mut pollers = tokio::task::JoinSet::new();
    for _ in 0..POLLERS {
        let (lock, stop) = (polling.lock("a"), Arc::clone(&stop));
        pollers.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                if let Some(guard) = lock.try_lock().await.expect("answered") {
                    tokio::time::sleep(ms(1)).await;
                    guard.unlock().await.expect("held");
                }
            }
        });
    }
    let lock = queued.lock("a");
    let mut taken = 0;
    let end = tokio::time::Instant::now() + Duration::from_secs(5);
    while let Ok(guard) = tokio::time::timeout_at(end, lock.lock()).await {
        guard.expect("taken").unlock().await.expect("held");
        taken += 1;
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(poller) = pollers.join_next().await {
        poller.expect("no panic");
    }
    taken
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queued_caller_gets_as_much_beside_pollers_of_its_own_client_as_beside_those_of_another()
{
    let _alone = alone().await;
    let server = TestServer::new();
    let (ours, theirs) = (server.client().await, server.client().await);
    // By turns, so that both have the same machine.
    let (mut own, mut others) = (0, 0);
    for _ in 0..2 {
        others += taken_beside_pollers(&ours, &theirs).await;
        own += taken_beside_pollers(&ours, &ours).await;
    }
    println!("taken {own} times beside pollers of its own client, {others} times beside another's");
    assert!(own * 2 >= others, "{own} against {others}");
    server.finish([ours, theirs]).await;
}

/// What this number of lock/unlock cycles costs here and on the server, 64 at a time, each of a name that has not been used.
async fn pairs(client: &LockClient, names: std::ops::Range<usize>) -> Duration {
    let before = processor_time();
    let each = names.len() / 64;
    let mut tasks = tokio::task::JoinSet::new();
    for nth in 0..64 {
        let client = client.clone();
        let first = names.start + nth * each;
        tasks.spawn(async move {
            for name in first..first + each {
                let lock = client.lock(format!("name:{name}"));
                let guard = lock.lock().await.expect("free");
                guard.unlock().await.expect("held");
            }
        });
    }
    tasks.join_all().await;
    processor_time() - before
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pair_costs_the_same_beside_50_000_held_locks_and_behind_100_000_names() {
    const BATCH: usize = 6_400;
    let _alone = alone().await;
    // A minute of processor time.
    may_take(3 * LIMIT);
    let server = TestServer::new();
    // Long enough that no hold is looked at meanwhile: on a slow machine that would be more a batch.
    let client = server
        .client_with(|builder| builder.watchdog_timeout(Duration::from_secs(3_600)))
        .await;
    let mut used = 0;
    let mut batch = || {
        used += BATCH;
        pairs(&client, used - BATCH..used)
    };
    // The least of three: whatever else the machine does only adds to it.
    let mut few = Duration::MAX;
    for _ in 0..3 {
        few = few.min(batch().await);
    }
    let guards = take(&client, 0..50_000).await;
    let mut many = Duration::MAX;
    for nth in 0..13 {
        let took = batch().await;
        if nth >= 10 {
            many = many.min(took);
        }
    }
    println!(
        "{BATCH} pairs take {few:?} of a processor at first, {many:?} beside 50,000 locks, after {used} names"
    );
    assert!(used >= 100_000 && client.stats().held == 50_000);
    // What grows with the number of either would be several times as much.
    assert!(many < few * 3 / 2, "{few:?} at first, {many:?} then");
    drop(guards);
    eventually("all released", Duration::from_secs(120), || {
        client.stats().releasing == 0
    })
    .await;
    server.finish([client]).await;
}

/// The p50 and the p99 of some times.
fn p50_and_p99(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_deleted_is_usually_reported_within_five_milliseconds() {
    const SAMPLES: usize = 1_000;
    let _alone = alone().await;
    let server = TestServer::new();
    let client = server
        .client_with(|builder| builder.watchdog_timeout(Duration::from_secs(3_600)))
        .await;
    let mut control = server.control();
    let mut times = Vec::new();
    for nth in 0..SAMPLES {
        let name = format!("deleted:{nth}");
        let guard = client.lock(&name).lock().await.expect("free");
        let start = Instant::now();
        control.run(&["DEL", &name]);
        guard.lost().await;
        times.push(start.elapsed());
    }
    let (p50, p99) = p50_and_p99(times);
    println!("from DEL to lost(): p50 {p50:?}, p99 {p99:?}");
    // Beside four busy loops it waits for the processor.
    assert!(p50 < ms(5), "{p50:?}");
    server.finish([client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_lock_takes_little_room_on_a_server_that_reports_its_changes() {
    let _alone = alone().await;
    let mut bytes = Vec::new();
    for tracking in [false, true] {
        let server = TestServer::new();
        let client = server
            .client_with(|builder| builder.tracking(tracking))
            .await;
        let mut control = server.control();
        let mut used = || {
            let info = control.run(&["INFO", "memory"]);
            let mut lines = info.lines();
            let used = lines.find_map(|line| line.strip_prefix("used_memory:"));
            used.and_then(|used| used.parse::<i64>().ok())
                .expect("a number")
        };
        // What grows by doubling has done so at the same point of both.
        let first = take(&client, 0..16_384).await;
        let before = used();
        let second = take(&client, 16_384..32_768).await;
        bytes.push((used() - before) / 16_384);
        drop((first, second));
        eventually("all released", Duration::from_secs(60), || {
            client.stats().releasing == 0
        })
        .await;
        server.finish([client]).await;
    }
    println!(
        "bytes a held lock at the server: {} without reports, {} with them",
        bytes[0], bytes[1]
    );
    assert!(bytes[1] < bytes[0] + 400, "{bytes:?}");
}

/// How many holds are renewed, and how many scripts the server runs for it, in a time.
async fn renewals(tracking: bool) -> (u64, i64) {
    const READERS: usize = 5;
    let server = TestServer::new();
    let mut clients = Vec::new();
    for nth in 0..=READERS {
        let connections = if nth == 0 { 4 } else { 1 };
        let set = |builder: redisson_lock::LockClientBuilder| {
            builder
                .watchdog_timeout(WATCHDOG)
                .connections(connections)
                .tracking(tracking)
        };
        clients.push(server.client_with(set).await);
    }
    let mut guards = Vec::new();
    for nth in 0..LOCKS {
        let lock = clients[0].lock(format!("kept:{nth}"));
        guards.push(lock.lock().await.expect("free"));
    }
    for nth in 0..50 {
        let client = &clients[1 + nth % READERS];
        let read = client.rw_lock("read").read().owned_by(&client.owner());
        guards.push(read.lock().await.expect("no writer"));
    }
    let mut control = server.control();
    let mut seen = || {
        let renewed = clients.iter().map(|client| client.stats().renewed_total);
        (renewed.sum::<u64>(), control.calls("evalsha"))
    };
    let (renewed, calls) = seen();
    tokio::time::sleep(heavy_time()).await;
    let (renewed, calls) = (seen().0 - renewed, seen().1 - calls);
    let is_held = |guard: &LockGuard| guard.state() == HoldState::Held;
    let other = guards.iter().find(|guard| !is_held(guard));
    assert!(other.is_none(), "{other:?}");
    drop(guards);
    eventually("all released", Duration::from_secs(60), || {
        clients.iter().all(|client| client.stats().releasing == 0)
    })
    .await;
    server.finish(clients).await;
    (renewed, calls)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_of_changes_cause_no_renewals() {
    let _alone = alone().await;
    may_take(LIMIT + 3 * heavy_time());
    let without = renewals(false).await;
    let with = renewals(true).await;
    println!("renewals and scripts without reports {without:?}, with them {with:?}");
    let server = TestServer::new();
    let is_new = server
        .control()
        .run(&["CLIENT", "INFO"])
        .contains("lib-name=");
    server.finish([]).await;
    // A server before Redis 7.2 that reports changes gets a quarter of the locks in a call.
    let calls = if is_new { without.1 } else { 4 * without.1 };
    let periods = (heavy_time().as_secs() / PERIOD.as_secs() + 1) as i64;
    let a_period = LOCKS as u64 + 50;
    assert!(with.0 <= without.0 + a_period, "{without:?} {with:?}");
    // Each renewal of a read hold may cost the other four clients a look.
    let looks = 50 * 4 * periods;
    assert!(
        with.1 <= calls + calls / periods + looks,
        "{without:?} {with:?}"
    );
}

//! Locks that replicas are to have: taken only with enough of them, and never handed out otherwise.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redisson_lock::{Error, HoldState, Lock, LockClient, LockGuard, LossReason};
use test_support::{
    Cluster, Control, Fate, Monitor, Proxy, Server, Steps, TOUCH, TestServer, assert_matches,
    eventually, is_script, ms, replicas_of, slot, stalls, tokio,
};
use tokio::task::JoinSet;

/// A primary with two replicas that have its data.
async fn with_replicas() -> (TestServer, Vec<Server>) {
    let primary = TestServer::new();
    let replicas = replicas_of(&primary, 2).await;
    (primary, replicas)
}

fn holds(control: &mut Control, key: &str) -> bool {
    control.run(&["EXISTS", key]) == "1"
}

#[tokio::test]
async fn a_lock_that_too_few_replicas_have_is_released_again() {
    let (primary, replicas) = with_replicas().await;
    let client = primary.client().await;
    replicas[0].pause();
    // Its connection has written nothing: WAIT by itself would say immediately that all replicas have everything.
    let both = client.lock("both").sync_replicas(2, ms(100));
    let refused = both.lock().await.expect_err("one is silent");
    match &refused {
        Error::TooFewReplicas {
            lock,
            wanted,
            acknowledged,
            released,
        } => assert_eq!(
            (lock.as_str(), *wanted, *acknowledged, *released),
            ("both", 2, 1, true)
        ),
        other => panic!("{other:?}"),
    }
    assert!(refused.is_retryable());
    assert!(!holds(&mut primary.control(), "both"), "it was released");
    let one = client.lock("one").sync_replicas(1, ms(500));
    one.lock()
        .await
        .expect("the other has it")
        .unlock()
        .await
        .expect("held");
    replicas[0].resume();
    let both = client.lock("both").sync_replicas(2, ms(2_000));
    both.lock()
        .await
        .expect("both have it")
        .unlock()
        .await
        .expect("held");
    client.close(Duration::ZERO).await;
}

#[tokio::test]
async fn what_is_nested_or_released_is_not_asked_about() {
    let (primary, replicas) = with_replicas().await;
    // No renewal is due for ten seconds.
    let client = primary.client().await;
    let lock = client.lock("stock").sync_replicas(2, ms(2_500));
    let outer = lock.lock().await.expect("both have it");
    let waits = primary.control().calls("wait");
    assert!(waits >= 1);
    for replica in &replicas {
        replica.pause();
    }
    let nested = lock.lock().await.expect("ours");
    nested.unlock().await.expect("held");
    outer.unlock().await.expect("held");
    assert_eq!(primary.control().calls("wait"), waits);
    for replica in &replicas {
        replica.resume();
    }
    client.close(Duration::ZERO).await;
}

#[tokio::test]
async fn sixty_four_takers_and_a_silent_replica_delay_no_other_lock() {
    let (primary, replicas) = with_replicas().await;
    let client = LockClient::builder()
        .watchdog_timeout(ms(1_500))
        .command_timeout(ms(450))
        .connect(&primary.url())
        .await
        .expect("it answers");
    // Due every 500 ms, and at risk without a renewal for a second.
    let kept = client.lock("kept").lock().await.expect("free");
    replicas[0].pause();
    let takers: Vec<_> = (0..64)
        .map(|nth| {
            let lock = client.lock(format!("slow:{nth}")).sync_replicas(2, ms(400));
            tokio::spawn(async move { lock.lock().await.map(drop) })
        })
        .collect();
    let (mut control, mut shortest) = (primary.control(), i64::MAX);
    let (mut longest, start) = (Duration::ZERO, Instant::now());
    while takers.iter().any(|taker| !taker.is_finished()) {
        let before = Instant::now();
        let guard = client.lock("other").lock().await.expect("free");
        guard.unlock().await.expect("held");
        longest = longest.max(before.elapsed().saturating_sub(stalls(before)));
        // What a renewal may be late by, a busy machine adds to.
        let busy = stalls(Instant::now() - ms(500)).as_millis() as i64;
        shortest = shortest.min(control.number(&["PTTL", "kept"]) + busy);
        assert_eq!(kept.state(), HoldState::Held, "it is renewed as ever");
    }
    let all = start.elapsed();
    println!(
        "64 takers took {all:?}, another lock {longest:?} at most; {shortest} ms were left to a renewed one at least"
    );
    // A WAIT on the connection of commands would have stopped each of them, and the renewals, for 400 ms.
    assert!(longest < ms(320), "{longest:?}");
    assert!(shortest > 680, "renewed {shortest} ms before its end");
    kept.unlock().await.expect("held");
    for taker in takers {
        let refused = taker.await.expect("no panic").expect_err("one is silent");
        assert_matches!(refused, Error::TooFewReplicas { .. });
    }
    // They share what they wait for: one after the other would take half a minute.
    assert!(all < ms(6_000), "{all:?}");
    replicas[0].resume();
    client.close(Duration::ZERO).await;
}

type Taker = tokio::task::JoinHandle<Result<LockGuard, Error>>;

fn taker(lock: &Lock) -> Taker {
    let lock = lock.clone();
    tokio::spawn(async move { lock.lock().await })
}

async fn ended(taker: Taker) -> Result<LockGuard, Error> {
    let ended = tokio::time::timeout(ms(10_000), taker).await;
    ended.expect("it ends").expect("no panic")
}

/// Somebody is waited for at this moment.
fn is_waiting(control: &mut Control) -> bool {
    let clients = control.run(&["CLIENT", "LIST"]);
    clients
        .lines()
        .any(|line| line.contains("cmd=wait") && line.contains("flags=b"))
}

fn acknowledged(refused: &Error) -> u32 {
    match refused {
        Error::TooFewReplicas { acknowledged, .. } => *acknowledged,
        other => panic!("{other:?}"),
    }
}

/// Has the connection replaced over which replicas are waited for.
async fn end_waiting_connection(control: &mut Control, client: &LockClient) {
    let clients = control.run(&["CLIENT", "LIST"]);
    let asked = clients.lines().find(|line| line.contains("cmd=wait"));
    let id = asked.and_then(|line| {
        line.split_whitespace()
            .find_map(|word| word.strip_prefix("id="))
    });
    control.run(&["CLIENT", "KILL", "ID", id.expect("it is there")]);
    let replaced = || client.stats().reconnects_total == 1;
    eventually("it is replaced", ms(5_000), replaced).await;
}

/// As after a restart without data, when another lock was taken at the server that has come back.
#[tokio::test]
async fn a_lock_that_the_server_does_not_have_is_not_confirmed_by_another() {
    let (primary, replicas) = with_replicas().await;
    let client = primary.client().await;
    let mut control = primary.control();
    let lock = |name: &str| client.lock(name).sync_replicas(2, ms(2_500));
    replicas[0].pause();
    let first = taker(&lock("first"));
    eventually("somebody waits", ms(5_000), || is_waiting(&mut control)).await;
    // These are asked about together, the one that is there before the other.
    let there = taker(&lock("there"));
    eventually("taken", ms(2_000), || holds(&mut control, "there")).await;
    let gone = taker(&lock("gone"));
    eventually("taken", ms(2_000), || holds(&mut control, "gone")).await;
    control.run(&["DEL", "gone"]);
    replicas[0].resume();
    for confirmed in [first, there] {
        let guard = ended(confirmed).await.expect("both have it");
        guard.unlock().await.expect("held");
    }
    let refused = ended(gone).await.expect_err("nobody has it");
    assert_eq!(acknowledged(&refused), 0);
    client.close(Duration::ZERO).await;
}

/// The server may have been started again meanwhile, or be another one.
#[tokio::test]
async fn a_connection_that_was_opened_behind_a_taking_confirms_nothing_of_it() {
    let (primary, _replicas) = with_replicas().await;
    let client = primary.client().await;
    let mut control = primary.control();
    let synced = client.lock("stock").sync_replicas(2, ms(2_500));
    let warm = synced.lock().await.expect("both have it");
    warm.unlock().await.expect("held");
    let giver = client.lock("stock").owned_by(&client.owner());
    let giver = giver.lock().await.expect("free");
    let mut call = pin!(synced.lock());
    while client.stats().waiting == 0 {
        let polled = tokio::time::timeout(ms(20), call.as_mut()).await;
        assert!(polled.is_err(), "it is held");
    }
    // Handed over, which the call does not see: it is not polled.
    giver.unlock().await.expect("held");
    assert_eq!(client.stats().passes_total, 1);
    end_waiting_connection(&mut control, &client).await;
    let refused = call.await.expect_err("nobody can say where it is");
    assert_eq!(acknowledged(&refused), 0);
    assert!(!holds(&mut control, "stock"), "it was released");
    // A call that waits for longer than a connection lives is not refused for that.
    let giver = client.lock("stock").owned_by(&client.owner());
    let giver = giver.lock().await.expect("free");
    let call = taker(&synced);
    eventually("it waits", ms(5_000), || client.stats().waiting == 1).await;
    let clients = control.run(&["CLIENT", "LIST"]);
    let lines = clients
        .lines()
        .filter(|line| !line.contains("cmd=client|list") && line.contains("flags=N"));
    let waiting = lines.filter(|line| line.contains("cmd=client|kill"));
    for line in waiting {
        let id = line
            .split_whitespace()
            .find_map(|word| word.strip_prefix("id="));
        control.run(&["CLIENT", "KILL", "ID", id.expect("it is there")]);
    }
    let replaced = || client.stats().reconnects_total == 2;
    eventually("it is replaced again", ms(5_000), replaced).await;
    giver.unlock().await.expect("held");
    let guard = ended(call).await.expect("both have it");
    guard.unlock().await.expect("held");
    client.close(Duration::ZERO).await;
}

/// Another server may have its address by then.
#[tokio::test]
async fn a_confirmation_that_is_read_after_its_connection_was_replaced_does_not_count() {
    let (primary, replicas) = with_replicas().await;
    let client = primary.client().await;
    let mut control = primary.control();
    let synced = client.lock("stock").sync_replicas(2, ms(2_500));
    replicas[0].pause();
    let mut call = pin!(synced.lock());
    while !is_waiting(&mut control) {
        let polled = tokio::time::timeout(ms(20), call.as_mut()).await;
        assert!(polled.is_err(), "one replica does not respond");
    }
    // From here on the call is not polled.
    replicas[0].resume();
    // Its confirmation has been read: the next one came over the same connection.
    let next = client.lock("next").sync_replicas(2, ms(2_500));
    let next = ended(taker(&next)).await.expect("both have it");
    next.unlock().await.expect("held");
    end_waiting_connection(&mut control, &client).await;
    let refused = call.await.expect_err("it is not confirmed");
    assert_eq!(acknowledged(&refused), 0);
    assert!(!holds(&mut control, "stock"), "it was released");
    client.close(Duration::ZERO).await;
}

#[tokio::test]
async fn a_call_that_may_try_again_outlasts_a_silent_replica() {
    let (primary, replicas) = with_replicas().await;
    let client = primary.client().await;
    let mut control = primary.control();
    for way in 0..3 {
        replicas[0].pause();
        let waits = control.calls("wait");
        let lock = client.lock("stock").sync_replicas(2, ms(100));
        let count = primary.control();
        let call = tokio::spawn(async move {
            let mut count = count;
            // Nothing of the attempts that failed is left.
            let mut once = || assert_eq!(count.count("stock"), 1);
            match way {
                0 => lock.retry_for(ms(20_000)).lock().await.map(|_guard| once()),
                1 => {
                    let taken = lock.try_lock_for(ms(20_000)).await?;
                    drop(taken.expect("free"));
                    Ok(())
                }
                _ => {
                    let led = |_held| {
                        once();
                        std::future::ready(Ok::<_, Error>(()))
                    };
                    lock.lead(led).await
                }
            }
        });
        let tried = || control.calls("wait") >= waits + 3;
        let tried =
            tokio::time::timeout(ms(10_000), eventually("it tries again", ms(10_000), tried));
        tried.await.expect("three times");
        replicas[0].resume();
        let ended = tokio::time::timeout(ms(10_000), call).await;
        let taken = ended.expect("it ends").expect("no panic");
        taken.unwrap_or_else(|error| panic!("way {way}: {error}"));
        eventually("it is released", ms(5_000), || {
            !holds(&mut control, "stock")
        })
        .await;
    }
    client.close(Duration::ZERO).await;
}

#[tokio::test]
async fn who_waits_for_less_does_not_wait_for_more() {
    let (primary, replicas) = with_replicas().await;
    let client = primary.client().await;
    // All connections are there.
    for number in [1, 2] {
        let lock = client.lock("warm").sync_replicas(number, ms(2_500));
        let guard = lock.lock().await.expect("both have it");
        guard.unlock().await.expect("held");
    }
    replicas[0].pause();
    let slow = |nth| {
        client
            .lock(format!("slow:{nth}"))
            .sync_replicas(2, ms(2_500))
    };
    let takers: Vec<_> = (0..64).map(|nth| taker(&slow(nth))).collect();
    let mut control = primary.control();
    eventually("they wait", ms(5_000), || is_waiting(&mut control)).await;
    let fewer = client.lock("fewer").sync_replicas(1, ms(500));
    let start = Instant::now();
    let guard = fewer.lock().await.expect("the other one has it");
    let fewer = start.elapsed().saturating_sub(stalls(start));
    let shorter = client.lock("shorter").sync_replicas(2, ms(100));
    let start = Instant::now();
    shorter.lock().await.expect_err("one is silent");
    let shorter = start.elapsed().saturating_sub(stalls(start));
    println!("one replica in {fewer:?}, not two within 100 ms in {shorter:?}");
    assert!(fewer < ms(150), "{fewer:?}");
    assert!(shorter < ms(250), "{shorter:?}");
    guard.unlock().await.expect("held");
    // And a call that needs more does not return too early.
    replicas[0].resume();
    for taker in takers {
        let guard = ended(taker).await.expect("both have it");
        guard.unlock().await.expect("held");
    }
    client.close(Duration::ZERO).await;
}

/// A server that is silent itself neither confirms nor releases.
#[tokio::test]
async fn an_error_does_not_say_that_a_lock_was_released_if_nobody_knows() {
    let (primary, replicas) = with_replicas().await;
    let client = primary
        .client_with(|builder| builder.command_timeout(ms(600)))
        .await;
    replicas[0].pause();
    let lock = client.lock("stock").sync_replicas(2, ms(400));
    let call = taker(&lock);
    let mut control = primary.control();
    eventually("it waits", ms(5_000), || is_waiting(&mut control)).await;
    primary.pause();
    let refused = ended(call).await.expect_err("one is silent");
    let text = refused.to_string();
    primary.resume();
    replicas[0].resume();
    assert_eq!(acknowledged(&refused), 0);
    assert!(text.contains("has not confirmed its release"), "{text}");
    eventually("it is released", ms(5_000), || {
        !holds(&mut control, "stock")
    })
    .await;
    client.close(Duration::ZERO).await;
}

/// A machine that stands still for a second makes none of its primaries a replica.
async fn without_failovers() -> Cluster {
    Cluster::start_with(true, &["--cluster-node-timeout", "30000"]).await
}

#[tokio::test]
async fn a_slot_on_its_way_fails_no_taking_in_another() {
    let mut cluster = without_failovers().await;
    let client = LockClient::connect(&cluster.url())
        .await
        .expect("it answers");
    let keys = ["first", "moving", "staying"].map(|name| cluster.key_at(0, name));
    let lock = |key: &String| client.lock(key).sync_replicas(1, ms(2_500));
    // The replica has only just come.
    let warm = lock(&keys[0]).retry_for(ms(20_000)).lock().await;
    warm.expect("it has it").unlock().await.expect("held");
    cluster.server(3).pause();
    let first = taker(&lock(&keys[0]));
    let mut control = cluster.control(0);
    eventually("somebody waits", ms(5_000), || is_waiting(&mut control)).await;
    let moving = slot(&keys[1]);
    cluster.begin_to_move(moving, 0, 1);
    // These are asked about together, the one that is refused before the other.
    let refused = taker(&lock(&keys[1]));
    let mut target = cluster.control(1);
    let taken = || client.stats().redirects_total > 0 && target.run(&["DBSIZE"]) != "0";
    eventually("taken where it goes", ms(2_000), taken).await;
    let confirmed = taker(&lock(&keys[2]));
    eventually("taken", ms(2_000), || holds(&mut control, &keys[2])).await;
    cluster.server(3).resume();
    for taker in [first, confirmed] {
        let guard = ended(taker).await.expect("its replica has it");
        guard.unlock().await.expect("held");
    }
    let refused = ended(refused).await.expect_err("its slot is on its way");
    assert_eq!(acknowledged(&refused), 0);
    cluster.end_move(moving, 0, 1);
    client.close(Duration::ZERO).await;
}

/// What a WAIT overtakes it does not confirm.
#[tokio::test]
async fn every_lock_is_written_to_before_it_is_asked_about() {
    const MORE: usize = 300;
    let (primary, replicas) = with_replicas().await;
    let client = primary.client().await;
    let mut control = primary.control();
    replicas[0].pause();
    let lock = |nth| {
        client
            .lock(format!("all:{nth}"))
            .sync_replicas(2, ms(2_500))
    };
    let mut takers = vec![taker(&lock(0))];
    eventually("somebody waits", ms(5_000), || is_waiting(&mut control)).await;
    takers.extend((1..=MORE).map(|nth| taker(&lock(nth))));
    let all = || control.number(&["DBSIZE"]) == 1 + MORE as i64;
    eventually("all are taken", ms(2_000), all).await;
    let monitor = Monitor::start(primary.port);
    replicas[0].resume();
    let mut guards = Vec::new();
    for taker in takers {
        guards.push(ended(taker).await.expect("both have it"));
    }
    let said = monitor.take(&mut control);
    let written: Vec<_> = said
        .iter()
        .map(|line| line.to_lowercase())
        .filter(|line| !line.contains(" lua]"))
        .filter_map(
            |line| match (line.contains("-- touch.lua"), line.contains("\"wait\"")) {
                (true, _) => Some(1),
                (_, true) => Some(0),
                _ => None,
            },
        )
        .collect();
    assert_eq!(written.iter().sum::<usize>(), MORE);
    assert_eq!(written.len(), MORE + 1, "one WAIT for all of them");
    assert_eq!(written.last(), Some(&0), "behind them");
    for guard in guards {
        guard.unlock().await.expect("held");
    }
    client.close(Duration::ZERO).await;
}

/// Where a lock may be handed over, a connection is there before.
#[tokio::test]
async fn who_waits_while_a_slot_moves_is_confirmed_at_its_new_owner() {
    let cluster = without_failovers().await;
    let client = LockClient::connect(&cluster.url())
        .await
        .expect("it answers");
    let key = cluster.key_at(0, "moving");
    let synced = client.lock(&key).sync_replicas(1, ms(2_500));
    // The replica has only just come.
    let warm = synced.retry_for(ms(20_000)).lock().await;
    warm.expect("it has it").unlock().await.expect("held");
    let giver = client.lock(&key).owned_by(&client.owner());
    let giver = giver.lock().await.expect("free");
    let call = taker(&synced);
    eventually("it waits", ms(5_000), || client.stats().waiting == 1).await;
    let mut target = cluster.control(1);
    let before = target.connections();
    cluster.move_slot(slot(&key), 0, 1);
    assert!(client.lock(&key).is_locked().await.expect("answered"));
    // For commands, and to ask about replicas.
    let opened = || target.connections() >= before + 2;
    eventually("they are opened", ms(5_000), opened).await;
    tokio::time::sleep(ms(100)).await;
    giver.unlock().await.expect("held");
    let guard = ended(call).await.expect("its replica has it");
    guard.unlock().await.expect("held");
    client.close(Duration::ZERO).await;
}

/// Also between the queue and the first attempt, while the connection for WAIT is being opened.
#[tokio::test]
async fn a_call_that_is_dropped_at_any_stage_keeps_nobody_out() {
    let (primary, _replicas) = with_replicas().await;
    for polls in 0..24 {
        let client = primary.client().await;
        let lock = client.lock("stock").sync_replicas(2, ms(2_500));
        let call = lock.clone();
        drop(
            Steps::of(async move { call.lock().await })
                .times(polls)
                .await,
        );
        // The same owner: an operation of it that is never over would stop this one.
        let guard = lock.lock().await.expect("nobody has it");
        guard.unlock().await.expect("held");
        eventually("nothing is left", ms(5_000), || client.stats().entries == 0).await;
        client.close(Duration::ZERO).await;
    }
}

#[tokio::test]
async fn the_end_of_the_client_ends_those_who_wait_for_replicas() {
    let (primary, replicas) = with_replicas().await;
    let client = primary.client().await;
    replicas[0].pause();
    let takers: Vec<_> = (0..3)
        .map(|nth| {
            let lock = client
                .lock(format!("ends:{nth}"))
                .sync_replicas(2, ms(2_500));
            tokio::spawn(async move { lock.lock().await.map(drop) })
        })
        .collect();
    let asked = || {
        primary
            .control()
            .run(&["CLIENT", "LIST"])
            .contains("cmd=wait")
    };
    eventually("somebody is waited for", ms(5_000), asked).await;
    client.close(Duration::ZERO).await;
    for taker in takers {
        let ended = tokio::time::timeout(ms(5_000), taker).await;
        let refused = ended.expect("it ends").expect("no panic");
        refused.expect_err("the client is closed, or a replica is silent");
    }
    replicas[0].resume();
}

/// Its place in the queue comes with the right to attempt, which nobody else has until it is given back.
#[tokio::test]
async fn a_call_that_cannot_ask_replicas_leaves_the_lock_to_others() {
    let server = TestServer::new();
    let client = server
        .client_with(|builder| builder.command_timeout(ms(400)))
        .await;
    let mut control = server.control();
    // There is no room for the connection that replicas are waited for on.
    let connections = control.connections() + 1;
    control.run(&["CONFIG", "SET", "maxclients", &connections.to_string()]);
    let owner = client.owner();
    let lock = client.lock("stock").owned_by(&owner);
    let synced = lock.sync_replicas(1, ms(100));
    let refused = synced.try_lock().await.expect_err("nobody can be asked");
    assert!(refused.is_retryable(), "{refused:?}");
    let others = client.lock("stock").owned_by(&client.owner());
    for free in [&lock, &others, &lock] {
        // In this order: the attempt begins while the connection is opened.
        let (given_up, taken) = tokio::join!(
            tokio::time::timeout(ms(50), synced.lock()),
            others.try_lock()
        );
        assert!(given_up.is_err(), "it waits for the connection");
        let guard = taken.expect("answered").expect("nobody queues");
        guard.unlock().await.expect("held");
        let guard = free.try_lock().await.expect("answered").expect("free");
        guard.unlock().await.expect("held");
    }
    control.run(&["CONFIG", "SET", "maxclients", "10000"]);
    server.finish([client]).await;
}

/// The counterpart of a lock that is lost because its replica has never heard of it.
#[tokio::test]
async fn what_was_handed_out_is_not_handed_out_again_after_the_primary_is_lost() {
    let mut cluster = Cluster::start(true).await;
    let connect = async || {
        LockClient::builder()
            // No renewal is due for twenty seconds.
            .watchdog_timeout(ms(60_000))
            .command_timeout(ms(900))
            .connect(&cluster.url())
            .await
            .expect("the cluster answers")
    };
    let (client, other) = (connect().await, connect().await);
    let tag = cluster.key_at(0, "taken");
    let stop = Arc::<AtomicBool>::default();
    let handed_out = Arc::<AtomicUsize>::default();
    let refused = Arc::<AtomicUsize>::default();
    let takers: Vec<_> = (0..8)
        .map(|taker| {
            let (client, tag, stop) = (client.clone(), tag.clone(), Arc::clone(&stop));
            let (handed_out, refused) = (Arc::clone(&handed_out), Arc::clone(&refused));
            tokio::spawn(async move {
                let mut guards = Vec::new();
                for nth in 0.. {
                    let lock = client.lock(format!("{{{tag}}}:{taker}:{nth}"));
                    match lock.sync_replicas(1, ms(300)).lock().await {
                        Ok(guard) => {
                            guards.push(guard);
                            handed_out.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(_) => drop(refused.fetch_add(1, Ordering::Relaxed)),
                    }
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    tokio::time::sleep(ms(5)).await;
                }
                guards
            })
        })
        .collect();
    let so_many = |counter: &Arc<AtomicUsize>, number| {
        let counter = Arc::clone(counter);
        move || counter.load(Ordering::Relaxed) >= number
    };
    eventually("some are taken", ms(10_000), so_many(&handed_out, 100)).await;
    // In the middle of it the replica hears nothing any more.
    cluster.server(3).pause();
    let mut primary = cluster.control(0);
    primary.run(&["CLIENT", "KILL", "TYPE", "replica"]);
    eventually("others are refused", ms(10_000), so_many(&refused, 16)).await;
    cluster.server(0).kill();
    cluster.server(3).resume();
    cluster.is_primary(3, ms(15_000)).await;
    let switched = || client.stats().failovers_total == 1;
    eventually("it is noticed", ms(7_000), switched).await;
    stop.store(true, Ordering::Relaxed);
    let mut guards = Vec::new();
    for taker in takers {
        guards.extend(taker.await.expect("no panic"));
    }
    println!(
        "{} handed out, {} not",
        guards.len(),
        refused.load(Ordering::Relaxed)
    );
    for guard in &guards {
        let again = other.lock(guard.name()).try_lock().await;
        let again = again.expect("the new primary answers");
        assert!(again.is_none(), "{} is handed out twice", guard.name());
        assert_eq!(guard.state(), HoldState::Held);
    }
    for guard in guards {
        guard.unlock().await.expect("held");
    }
    client.close(Duration::ZERO).await;
    other.close(Duration::ZERO).await;
}

/// Locks of one primary are asked about together. One in a slot on its way is not there, but at the other node:
/// it does not answer for the others, and they do not for it.
#[tokio::test]
async fn a_slot_on_its_way_neither_refuses_the_locks_of_others_nor_is_confirmed_by_them() {
    let mut cluster = Cluster::start(true).await;
    let client = LockClient::connect(&cluster.url()).await.expect("up");
    let moving = cluster.key_at(0, "moves");
    cluster.begin_to_move(slot(&moving), 0, 1);
    for moves_first in [true, false] {
        let lock = |name: &str| client.lock(name.to_owned()).sync_replicas(1, ms(2_500));
        let take = |tasks: &mut JoinSet<_>, name: &str| {
            let lock = lock(name);
            tasks.spawn(async move { lock.lock().await.map(drop) });
        };
        // The question about this one is on its way when the others come.
        cluster.server(3).pause();
        let keys = |cluster: &Cluster| {
            let count = |nth| cluster.control(nth).number(&["DBSIZE"]);
            count(0) + count(1)
        };
        let (mut stay, mut moves) = (JoinSet::new(), JoinSet::new());
        let stays = [0, 1, 2, 3, 4].map(|nth| cluster.key_at(0, &format!("stays:{nth}")));
        take(&mut stay, &cluster.key_at(0, "first"));
        eventually("taken", ms(3_000), || keys(&cluster) == 1).await;
        let mut taken = 1;
        for moves_now in [moves_first, !moves_first] {
            for (nth, stays) in stays.iter().enumerate() {
                match moves_now {
                    true => take(&mut moves, &format!("{{{moving}}}:{nth}")),
                    false => take(&mut stay, stays),
                }
            }
            taken += 5;
            eventually("taken", ms(3_000), || keys(&cluster) == taken).await;
        }
        cluster.server(3).resume();
        while let Some(taken) = stay.join_next().await {
            taken.expect("no panic").expect("its replica has it");
        }
        while let Some(taken) = moves.join_next().await {
            let refused = taken
                .expect("no panic")
                .expect_err("nobody was asked about it");
            assert_matches!(refused, Error::TooFewReplicas { .. });
        }
        eventually("released", ms(3_000), || keys(&cluster) == 0).await;
    }
    cluster.end_move(slot(&moving), 0, 1);
}

#[tokio::test]
async fn numbers_and_times_out_of_bounds_are_refused() {
    let server = TestServer::new();
    let client = server.client().await;
    for (replicas, within) in [(0, ms(100)), (9, ms(100)), (1, ms(9)), (1, ms(3_001))] {
        let lock = client.lock("stock").sync_replicas(replicas, within);
        let refused = lock.lock().await.expect_err("out of bounds");
        assert_matches!(
            refused,
            Error::InvalidConfig { .. } | Error::InvalidDuration { .. }
        );
        let builder = LockClient::builder().sync_replicas(replicas, within);
        let refused = builder.connect(&server.url()).await;
        refused.expect_err("out of bounds");
    }
    server.finish([client]).await;
}

/// A client whose leases end within a test.
async fn brisk(primary: &TestServer, lease: Duration) -> LockClient {
    primary
        .client_with(|builder| builder.watchdog_timeout(lease).command_timeout(ms(900)))
        .await
}

const LEASE: Duration = Duration::from_secs(3);

/// From now on the replica receives nothing: not what is sent, nor what waits in its socket.
fn cut(primary: &mut Control, replica: &Server) {
    replica.pause();
    primary.run(&["CLIENT", "KILL", "TYPE", "replica"]);
}

/// The replica that is promoted knows only the lease that it received before it was cut off.
#[tokio::test]
async fn a_hold_is_lost_before_a_replica_that_was_away_for_a_lease_lets_another_in() {
    let (mut primary, replicas) = with_replicas().await;
    let client = brisk(&primary, LEASE).await;
    let lock = |name: &str| client.lock(name).sync_replicas(2, ms(900));
    let taken = lock("taken").lock().await.expect("both have it");
    let giver = lock("passed").owned_by(&client.owner());
    let giver = giver.lock().await.expect("both have it");
    let waiter = taker(&lock("passed"));
    eventually("it waits", ms(5_000), || client.stats().waiting == 1).await;
    giver.unlock().await.expect("held");
    let passed = ended(waiter).await.expect("both have it");
    assert_eq!(client.stats().passes_total, 1);
    // A nested hold renews the lease on the primary alone.
    let nested = lock("taken").lock().await.expect("ours");

    let start = Instant::now();
    cut(&mut primary.control(), &replicas[0]);
    let is_over = || start.elapsed() > LEASE;
    eventually("what the replica knows is over", ms(10_000), is_over).await;
    primary.kill();
    replicas[0].resume();
    replicas[0].control().run(&["REPLICAOF", "NO", "ONE"]);
    let other = LockClient::connect(&replicas[0].url()).await;
    let other = other.expect("it answers");
    for (name, holds) in [("taken", [&taken, &nested]), ("passed", [&passed, &passed])] {
        let second = other.lock(name).try_lock().await.expect("answered");
        let second = second.expect("the replica has let its lease expire");
        for hold in holds {
            let lost = HoldState::Lost(LossReason::NotRenewed);
            assert_eq!(hold.state(), lost, "{name}, which another client holds");
        }
        second.unlock().await.expect("held");
    }
    other.close(Duration::ZERO).await;
    client.close(Duration::ZERO).await;
}

/// They go away just before a renewal, when a third of the lease is over.
#[tokio::test]
async fn replicas_that_are_away_for_less_than_two_thirds_of_a_lease_end_no_hold() {
    let (primary, replicas) = with_replicas().await;
    // Renewed at least every three seconds, and not before 2.7 s.
    let client = brisk(&primary, LEASE * 3).await;
    let lock = client.lock("stock").sync_replicas(2, ms(900));
    let guard = lock.lock().await.expect("both have it");
    let first = guard.valid_until();
    let is_confirmed = || guard.valid_until() > first;
    eventually("it is confirmed", ms(10_000), is_confirmed).await;
    let (start, known) = (Instant::now(), guard.valid_until());
    let is_near = || start.elapsed() > ms(2_500);
    eventually("the next renewal is near", ms(10_000), is_near).await;
    for replica in &replicas {
        cut(&mut primary.control(), replica);
    }
    let cut_at = Instant::now();
    assert_eq!(guard.valid_until(), known, "it comes after the cut");
    // Six seconds, less the command timeout and the second after which a replica connects again.
    let is_over = || cut_at.elapsed() > ms(4_000);
    eventually("they are to return", ms(10_000), is_over).await;
    assert_eq!(guard.state(), HoldState::AtRisk);
    assert_eq!(guard.valid_until(), known, "no replica has confirmed it");
    replicas.iter().for_each(Server::resume);
    let is_confirmed = || guard.valid_until() > known;
    eventually("it is confirmed again", ms(10_000), is_confirmed).await;
    assert_eq!(client.stats().lost_total, 0);
    guard.unlock().await.expect("held");
    client.close(Duration::ZERO).await;
}

#[tokio::test]
async fn replicas_that_are_slow_end_no_hold() {
    let (primary, replicas) = with_replicas().await;
    let client = brisk(&primary, LEASE).await;
    let lock = client.lock("stock").sync_replicas(2, ms(900));
    let guard = lock.lock().await.expect("both have it");
    let start = Instant::now();
    while start.elapsed() < LEASE * 3 {
        replicas.iter().for_each(Server::pause);
        tokio::time::sleep(ms(400)).await;
        replicas.iter().for_each(Server::resume);
        tokio::time::sleep(ms(20)).await;
        assert!(!guard.is_lost());
    }
    assert_eq!(client.stats().lost_total, 0);
    guard.unlock().await.expect("held");
    client.close(Duration::ZERO).await;
}

#[tokio::test]
async fn one_wait_confirms_a_batch_of_renewals() {
    const LOCKS: u64 = 300;
    let (primary, _replicas) = with_replicas().await;
    let client = brisk(&primary, LEASE).await;
    let mut guards = Vec::new();
    for nth in 0..LOCKS {
        let lock = client.lock(format!("held:{nth}"));
        let lock = lock.sync_replicas(2, ms(900));
        guards.push(lock.lock().await.expect("both have it"));
    }
    let plain = client.lock("plain").lock().await.expect("free");
    let mut control = primary.control();
    let (waits, renewed) = (control.calls("wait"), client.stats().renewed_total);
    let start = Instant::now();
    eventually("some are over", ms(10_000), || start.elapsed() > LEASE * 2).await;
    let renewed = client.stats().renewed_total - renewed;
    let waits = control.calls("wait") - waits;
    println!("{renewed} renewals, {waits} times WAIT");
    assert!(renewed >= LOCKS * 4, "{renewed}");
    assert!(waits > 0, "somebody was asked");
    // A server before Redis 7.2 gets 25 locks in a call.
    assert!(waits * 10 < renewed as i64, "{waits} for {renewed}");
    assert!(guards.iter().all(|guard| !guard.is_lost()));
    assert!(!plain.is_lost());
    client.close(Duration::ZERO).await;
}

/// What a nested hold asks for only the primary has at first.
#[tokio::test]
async fn a_nested_hold_outlives_an_outer_one_with_a_shorter_lease() {
    let (primary, _replicas) = with_replicas().await;
    // Renewed every two seconds: after the outer hold has ended.
    let client = brisk(&primary, LEASE * 2).await;
    let lock = client.lock("stock").sync_replicas(2, ms(900));
    let outer = lock.lease(ms(1_500)).lock().await.expect("both have it");
    let renewed = lock.lock().await.expect("ours");
    let leased = lock.lease(ms(8_000)).lock().await.expect("ours");
    let lease_over = HoldState::Lost(LossReason::LeaseOver);
    let is_over = || outer.is_lost();
    eventually("the outer one is over", ms(5_000), is_over).await;
    assert_eq!(outer.state(), lease_over);
    renewed.unlock().await.expect("held");
    let is_over = || leased.is_lost();
    eventually("its own lease is over", ms(20_000), is_over).await;
    assert_eq!(leased.state(), lease_over);
    client.close(Duration::ZERO).await;
}

#[tokio::test]
async fn an_extended_lease_counts_when_its_replicas_have_it() {
    let (primary, replicas) = with_replicas().await;
    let client = brisk(&primary, LEASE).await;
    let lock = client.lock("stock").sync_replicas(2, ms(900));
    let guard = lock.lease(ms(6_000)).lock().await.expect("both have it");
    let known = guard.valid_until();
    cut(&mut primary.control(), &replicas[0]);
    let refused = guard.extend(ms(60_000)).await.expect_err("one is silent");
    assert_matches!(refused, Error::NoAnswer { .. });
    assert!(refused.is_retryable());
    assert_eq!(guard.valid_until(), known);
    replicas[0].resume();
    let mut control = primary.control();
    let both = || control.number(&["WAIT", "2", "100"]) == 2;
    eventually("both are there again", ms(5_000), both).await;
    guard.extend(ms(60_000)).await.expect("both have it");
    assert!(guard.valid_until() > known + ms(30_000));
    guard.unlock().await.expect("held");
    client.close(Duration::ZERO).await;
}

/// The connection for WAIT stays open, and nothing passes on it any more.
#[tokio::test]
async fn a_silent_connection_to_the_primary_ends_no_hold() {
    let (primary, _replicas) = with_replicas().await;
    let proxy = Proxy::start(primary.port).await;
    let client = LockClient::builder()
        .watchdog_timeout(LEASE * 2)
        .command_timeout(ms(1_900))
        .connect(&proxy.url())
        .await
        .expect("it answers");
    let lock = client.lock("stock").sync_replicas(2, ms(900));
    let guard = lock.lock().await.expect("both have it");
    let known = guard.valid_until();
    proxy.rule(Fate::Silence, 1, |words| is_script(words, TOUCH));
    let is_confirmed = || guard.is_lost() || guard.valid_until() > known;
    eventually("it is confirmed", LEASE * 3, is_confirmed).await;
    assert_eq!(proxy.hit.load(Ordering::SeqCst), 1, "a renewal was not");
    assert!(!guard.is_lost());
    guard.unlock().await.expect("held");
    client.close(Duration::ZERO).await;
    proxy.stop().await;
}

/// The second call nests into a hold that is not handed out yet.
#[tokio::test]
async fn a_call_that_nests_into_an_unconfirmed_hold_is_asked_about_too() {
    let (primary, replicas) = with_replicas().await;
    let client = primary.client().await;
    replicas[0].pause();
    let lock = client.lock("stock").sync_replicas(2, ms(400));
    let (first, second) = tokio::join!(lock.lock(), lock.lock());
    for refused in [first, second] {
        let refused = refused.expect_err("one replica has neither");
        assert!(acknowledged(&refused) < 2);
    }
    assert!(!holds(&mut primary.control(), "stock"), "both are released");
    replicas[0].resume();
    client.close(Duration::ZERO).await;
}

/// Each slot has renewals of its own; each primary has replicas of its own.
#[tokio::test]
async fn replicas_of_one_primary_that_are_away_end_no_hold_of_another() {
    let mut cluster = Cluster::start(true).await;
    let client = LockClient::builder()
        .watchdog_timeout(ms(4_000))
        .command_timeout(ms(900))
        .connect(&cluster.url())
        .await
        .expect("the cluster answers");
    let mut guards = [Vec::new(), Vec::new(), Vec::new()];
    for (nth, guards) in guards.iter_mut().enumerate() {
        for of_node in 0..20 {
            let key = cluster.key_at(nth, &format!("held:{of_node}"));
            let lock = client.lock(key).sync_replicas(1, ms(900));
            let guard = lock.retry_for(ms(20_000)).lock().await;
            guards.push(guard.expect("its replica has it"));
        }
    }
    let start = Instant::now();
    let is_over = || start.elapsed() > ms(5_000);
    eventually("their leases were renewed", ms(10_000), is_over).await;
    assert!(guards.iter().flatten().all(|guard| !guard.is_lost()));
    let start = Instant::now();
    cut(&mut cluster.control(0), cluster.server(3));
    let is_over = || start.elapsed() > ms(5_000);
    eventually("what the replica knows is over", ms(10_000), is_over).await;
    cluster.server(0).kill();
    cluster.server(3).resume();
    cluster.is_primary(3, ms(15_000)).await;
    let other = LockClient::connect(&cluster.url())
        .await
        .expect("it answers");
    let name = guards[0][0].name().to_owned();
    let taken = other.lock(name).try_lock_for(ms(10_000)).await;
    let taken = taken.expect("answered").expect("its lease is over");
    for guard in &guards[0] {
        assert_eq!(guard.state(), HoldState::Lost(LossReason::NotRenewed));
    }
    for guard in guards[1..].iter().flatten() {
        assert!(!guard.is_lost(), "{guard:?}");
    }
    taken.unlock().await.expect("held");
    client.close(Duration::ZERO).await;
    other.close(Duration::ZERO).await;
}

//! Locks that replicas are to have: taken only with enough of them, and never handed out otherwise.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use redisson_lock::{Error, HoldState, LockClient};
use test_support::{Cluster, Control, Server, TestServer, eventually, ms};

/// A primary with two replicas that have its data.
async fn with_replicas() -> (TestServer, Vec<Server>) {
    let primary = TestServer::with(&["--repl-diskless-sync-delay", "0"]);
    let port = primary.port.to_string();
    let replicas: Vec<Server> = (0..2)
        .map(|_| Server::start_with(&["--replicaof", "127.0.0.1", &port]))
        .collect();
    let mut control = primary.control();
    let both = || {
        control
            .run(&["INFO", "REPLICATION"])
            .matches("state=online")
            .count()
            == 2
    };
    eventually("both have the data", ms(20_000), both).await;
    // A replica that has just come acknowledges for the first time within a second.
    control.run(&["SET", "warm", "1"]);
    control.run(&["DEL", "warm"]);
    let both = || control.number(&["WAIT", "2", "100"]) == 2;
    eventually("both acknowledge", ms(20_000), both).await;
    // And what WAIT itself has sent to them.
    let all = || {
        let info = control.run(&["INFO", "REPLICATION"]);
        let offset = info
            .lines()
            .find_map(|line| line.trim_end().strip_prefix("master_repl_offset:"));
        let offset = format!(",offset={},", offset.expect("it is there"));
        info.matches(&offset).count() == 2
    };
    eventually("both have everything", ms(20_000), all).await;
    (primary, replicas)
}

fn holds(control: &mut Control, key: &str) -> bool {
    control.run(&["EXISTS", key]) == "1"
}

#[tokio::test]
async fn a_lock_is_handed_out_when_its_replicas_have_it() {
    let (primary, replicas) = with_replicas().await;
    let client = primary.client().await;
    let lock = client.lock("stock").sync_replicas(2, ms(2_500));
    for _ in 0..20 {
        let guard = lock.lock().await.expect("both have it");
        for replica in &replicas {
            assert!(holds(&mut replica.control(), "stock"), "it has it already");
        }
        guard.unlock().await.expect("held");
    }
    client.close(Duration::ZERO).await;
}

#[tokio::test]
async fn a_lock_that_too_few_replicas_have_is_released_again() {
    let (primary, replicas) = with_replicas().await;
    let client = primary.client().await;
    replicas[0].pause();
    // Its connection has written nothing: WAIT by itself would say at once that all replicas have everything.
    let both = client.lock("both").sync_replicas(2, ms(100));
    let refused = both.lock().await.expect_err("one is silent");
    match &refused {
        Error::TooFewReplicas {
            lock,
            wanted,
            acknowledged,
        } => assert_eq!((lock.as_str(), *wanted, *acknowledged), ("both", 2, 1)),
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
async fn what_is_nested_renewed_or_released_is_not_asked_about() {
    let (primary, replicas) = with_replicas().await;
    let client = primary
        .client_with(|builder| builder.watchdog_timeout(ms(1_500)).command_timeout(ms(450)))
        .await;
    let lock = client.lock("stock").sync_replicas(2, ms(400));
    let outer = lock.lock().await.expect("both have it");
    let waits = primary.control().calls("wait");
    assert!(waits >= 1);
    for replica in &replicas {
        replica.pause();
    }
    let nested = lock.lock().await.expect("ours");
    // Due every 500 ms: nothing else makes its lease longer.
    let (mut control, mut least) = (primary.control(), i64::MAX);
    let renewed = || {
        let left = control.pttl("stock");
        least = least.min(left);
        left > least + 200
    };
    eventually("it is renewed", ms(5_000), renewed).await;
    nested.unlock().await.expect("held");
    outer.unlock().await.expect("held");
    assert_eq!(control.calls("wait"), waits);
    for replica in &replicas {
        replica.resume();
    }
    client.close(Duration::ZERO).await;
}

#[tokio::test]
async fn a_lock_that_is_handed_over_inside_the_client_is_asked_about_too() {
    let (primary, _replicas) = with_replicas().await;
    let client = primary.client().await;
    let waits = primary.control().calls("wait");
    let lock = client.lock("stock").sync_replicas(2, ms(2_500));
    let first = lock.lock().await.expect("both have it");
    let waiter = {
        let lock = lock.clone();
        tokio::spawn(async move { lock.lock().await })
    };
    eventually("it waits", ms(5_000), || client.stats().waiting == 1).await;
    first.unlock().await.expect("held");
    let guard = waiter.await.expect("no panic").expect("both have it");
    assert_eq!(client.stats().passes_total, 1);
    assert_eq!(
        primary.control().calls("wait") - waits,
        2,
        "one for each owner"
    );
    guard.unlock().await.expect("held");
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
        longest = longest.max(before.elapsed());
        shortest = shortest.min(control.number(&["PTTL", "kept"]));
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
        assert!(
            matches!(refused, Error::TooFewReplicas { .. }),
            "{refused:?}"
        );
    }
    // They share what they wait for: one after the other would take half a minute.
    assert!(all < ms(6_000), "{all:?}");
    replicas[0].resume();
    client.close(Duration::ZERO).await;
}

/// Also between the queue and the first attempt, while the connection for WAIT is being opened.
#[tokio::test]
async fn a_call_that_is_dropped_at_any_stage_keeps_nobody_out() {
    let (primary, _replicas) = with_replicas().await;
    for polls in 0..24 {
        let client = primary.client().await;
        let lock = client.lock("stock").sync_replicas(2, ms(2_500));
        {
            let (mut call, mut polled) = (pin!(lock.lock()), 0);
            poll_fn(|context| {
                let is_over = polled == polls || call.as_mut().poll(context).is_ready();
                polled += 1;
                if is_over {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            })
            .await;
        }
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
    for _ in 0..2 {
        let given_up = tokio::time::timeout(ms(50), synced.lock()).await;
        assert!(given_up.is_err(), "it waits for the connection");
        let guard = lock.try_lock().await.expect("answered").expect("free");
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

#[tokio::test]
async fn numbers_and_times_out_of_bounds_are_refused() {
    let server = TestServer::new();
    let client = server.client().await;
    for (replicas, within) in [(0, ms(100)), (9, ms(100)), (1, ms(9)), (1, ms(3_001))] {
        let lock = client.lock("stock").sync_replicas(replicas, within);
        let refused = lock.lock().await.expect_err("out of bounds");
        assert!(
            matches!(
                refused,
                Error::InvalidConfig { .. } | Error::InvalidDuration { .. }
            ),
            "{refused:?}"
        );
        let builder = LockClient::builder().sync_replicas(replicas, within);
        let refused = builder.connect(&server.url()).await;
        refused.expect_err("out of bounds");
    }
    server.finish([client]).await;
}

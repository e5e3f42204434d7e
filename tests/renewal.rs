//! Keeping a lock, and being told that it is lost.

use std::time::{Duration, Instant};

use redisson_lock::{Error, HoldState, LockClient, LockClientBuilder, LossReason};
use test_support::{
    Control, Monitor, TestServer, assert_matches, eventually, lock_and_unlock, ms, stalls, tokio,
};

/// Those that fit a cluster too: see `tests/cluster_rows.rs`.
#[path = "rows/renewal.rs"]
mod rows;

use rows::{COMMAND, PERIOD, WATCHDOG, brisk, expiry, told};

/// What a busy machine may take to run a task that is ready. No promise about time is shorter than
/// this.
const SCHEDULING: u64 = 50;

#[tokio::test]
async fn short_nested_leases_do_not_keep_the_watchdog_from_renewing() {
    let server = TestServer::new();
    let client = brisk(&server).await;
    let lock = client.lock("a");
    let guard = lock.lock().await.expect("free");
    let start = Instant::now();
    while start.elapsed() < ms(2 * WATCHDOG) {
        // Shorter than a period, and far longer than the section.
        let nested = lock.lease(ms(PERIOD - 50)).lock().await.expect("nested");
        tokio::time::sleep(ms(20)).await;
        nested.unlock().await.expect("held");
        assert_eq!(guard.state(), HoldState::Held);
    }
    assert!(
        client.stats().renewed_total >= 3,
        "renewed every third of the watchdog timeout"
    );
    assert!(server.control().pttl("a") > (WATCHDOG / 2) as i64);
    guard.unlock().await.expect("held");
    server.finish([client]).await;
}

#[tokio::test]
async fn a_long_lease_beside_a_watchdog_hold_is_renewed_once_a_period_and_no_oftener() {
    let server = TestServer::new();
    let client = brisk(&server).await;
    let lock = client.lock("a");
    let long = lock
        .lease(Duration::from_secs(600))
        .lock()
        .await
        .expect("free");
    let guard = lock.lock().await.expect("nested");
    tokio::time::sleep(ms(4 * PERIOD + PERIOD / 2)).await;
    let renewed = client.stats().renewed_total;
    assert!(
        (3..=6).contains(&renewed),
        "{renewed} renewals in four and a half periods"
    );
    guard.unlock().await.expect("held");
    long.unlock().await.expect("held");
    server.finish([client]).await;
}

/// Redisson's read locks leaked here until 4.7.0 (its tests
/// `shouldHaveNoThreadsAfter…AcquireAndRelease`).
#[tokio::test]
async fn the_registry_is_empty_after_as_many_unlocks_as_locks() {
    let server = TestServer::new();
    let client = brisk(&server).await;
    let lock = client.lock("a");
    for depth in [1, 2, 5] {
        let mut guards = Vec::new();
        for _ in 0..depth {
            guards.push(lock.lock().await.expect("reentrant"));
            assert_eq!(
                client.stats().renewals,
                1,
                "one timer for all holds of an owner"
            );
        }
        while let Some(guard) = guards.pop() {
            assert_eq!(client.stats().renewals, 1, "renewed as long as one is left");
            guard.unlock().await.expect("held");
        }
        assert_eq!(
            client.stats().renewals,
            0,
            "the last unlock takes it off, and not a moment later"
        );
    }
    server.finish([client]).await;
}

/// One hold of the model.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Watchdog,
    Fixed(u64),
}

impl Kind {
    fn lease(self) -> u64 {
        match self {
            Self::Watchdog => 30,
            Self::Fixed(secs) => secs,
        }
    }
}

/// What the lease of the key must be, in seconds: creating writes it, everything else only raises
/// it.
#[derive(Default)]
struct Model {
    held: Vec<(usize, Kind)>,
    lease: u64,
}

impl Model {
    fn take(&mut self, nth: usize, kind: Kind) {
        self.lease = if self.held.is_empty() {
            kind.lease()
        } else {
            self.lease.max(kind.lease())
        };
        self.held.push((nth, kind));
    }

    fn release_all(&mut self, nth: usize) {
        self.held.retain(|(held, _)| *held != nth);
        let promised = self.held.iter().map(|(_, kind)| kind.lease()).max();
        self.lease = promised.map_or(0, |promised| self.lease.max(promised));
    }
}

#[tokio::test]
async fn no_script_lowers_a_lease_whatever_the_order_of_mixed_holds() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    let kinds = [Kind::Watchdog, Kind::Fixed(5), Kind::Fixed(90)];
    let orders = [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ];
    let lock = client.lock("a");
    let mut check = |model: &Model, what: &str| {
        assert_eq!(control.count("a"), model.held.len() as i64, "{what}");
        let lease = if model.held.is_empty() {
            0
        } else {
            (control.pttl("a") + 999) as u64 / 1000
        };
        assert_eq!(lease, model.lease, "{what}");
    };
    for case in 0..27 {
        for order in orders {
            let case = [kinds[case % 3], kinds[case / 3 % 3], kinds[case / 9]];
            let mut model = Model::default();
            let mut guards = Vec::new();
            for (nth, kind) in case.into_iter().enumerate() {
                let lock = match kind {
                    Kind::Watchdog => lock.clone(),
                    Kind::Fixed(secs) => lock.lease(Duration::from_secs(secs)),
                };
                guards.push(Some(lock.lock().await.expect("reentrant")));
                model.take(nth, kind);
                check(&model, &format!("{case:?} taken {nth}"));
            }
            for nth in order {
                guards[nth]
                    .take()
                    .expect("held")
                    .unlock()
                    .await
                    .expect("held");
                model.release_all(nth);
                check(&model, &format!("{case:?} {order:?} released {nth}"));
            }
        }
    }
    server.finish([client]).await;
}

#[tokio::test]
async fn the_clients_max_hold_is_that_of_every_lock_that_does_not_say_otherwise() {
    let server = TestServer::new();
    let set = |builder: LockClientBuilder| {
        builder
            .watchdog_timeout(ms(WATCHDOG))
            .command_timeout(ms(COMMAND))
            .max_hold(ms(WATCHDOG / 2))
    };
    let client = server.client_with(set).await;
    let mut control = server.control();
    let guard = client.lock("a").lock().await.expect("free");
    assert!(
        control.pttl("a") <= (WATCHDOG / 2) as i64,
        "no lease reaches past it"
    );
    let own = client
        .lock("b")
        .max_hold(Duration::from_secs(60))
        .lock()
        .await
        .expect("free");
    assert_eq!(told(&guard, ms(WATCHDOG)).await, LossReason::MaxHold);
    assert_eq!(own.state(), HoldState::Held, "this one has said otherwise");
    own.unlock().await.expect("held");
    drop(guard);
    server.finish([client]).await;
}

#[tokio::test]
async fn the_renewals_of_a_lock_go_over_the_connection_that_has_its_other_commands() {
    const NAMES: usize = 12;
    let server = TestServer::new();
    let set = |builder: LockClientBuilder| {
        builder
            .watchdog_timeout(ms(WATCHDOG))
            .command_timeout(ms(COMMAND))
            .connections(4)
    };
    let client = server.client_with(set).await;
    let mut control = server.control();
    // The first call of each script is an EVAL, which shows its source and not its name.
    lock_and_unlock(&client.lock("a")).await;
    let monitor = Monitor::start(server.port);
    let mut guards = Vec::new();
    for nth in 0..NAMES {
        guards.push(client.lock(format!("a{nth}")).lock().await.expect("free"));
    }
    eventually("all are renewed", ms(2 * WATCHDOG), || {
        client.stats().renewed_total >= NAMES as u64
    })
    .await;
    for guard in guards {
        guard.unlock().await.expect("held");
    }
    let seen = monitor.take(&mut control);
    // Whose commands a connection carried: `… [0 127.0.0.1:4711] "EVALSHA" "sha" "1" "a0" …`.
    let mut connections =
        std::collections::BTreeMap::<String, std::collections::BTreeSet<&str>>::new();
    for line in seen.iter().filter(|line| line.contains("\"EVAL")) {
        let (_, rest) = line.split_once("[0 ").expect("an address");
        let (address, command) = rest.split_once(']').expect("an address");
        for nth in 0..NAMES {
            let name = format!("a{nth}");
            if command.contains(&format!("\"{name}\"")) {
                connections.entry(name).or_default().insert(address);
            }
        }
    }
    assert!(
        connections.len() == NAMES && connections.values().all(|of| of.len() == 1),
        "{connections:#?}"
    );
    let used: std::collections::BTreeSet<_> = connections.values().flatten().collect();
    assert!(used.len() > 1, "several connections are in use");
    server.finish([client]).await;
}

#[tokio::test]
async fn every_harm_to_the_key_is_told_with_its_reason() {
    let server = TestServer::new();
    let client = brisk(&server).await;
    let mut control = server.control();
    type Harm = fn(&mut Control);
    let harms: [(&str, LossReason, Harm); 5] = [
        ("deleted", LossReason::Gone, |control| {
            drop(control.run(&["DEL", "a"]))
        }),
        ("flushed", LossReason::Gone, |control| {
            drop(control.run(&["FLUSHALL"]))
        }),
        ("taken", LossReason::Taken, |control| {
            control.run(&["DEL", "a"]);
            control.run(&["HSET", "a", "java:1", "1"]);
            control.run(&["PEXPIRE", "a", "60000"]);
        }),
        ("replaced", LossReason::Changed, |control| {
            drop(control.run(&["SET", "a", "text"]))
        }),
        ("field deleted", LossReason::Gone, |control| {
            let field = control.run(&["HKEYS", "a"]);
            control.run(&["HDEL", "a", &field]);
        }),
    ];
    for (what, reason, harm) in harms {
        for lease in [None, Some(Duration::from_secs(60))] {
            let lock = client.lock("a");
            let lock = lease.map_or_else(|| lock.clone(), |lease| lock.lease(lease));
            let guard = lock.lock().await.expect("free");
            let nested = lock.lock().await.expect("nested");
            harm(&mut control);
            let start = Instant::now();
            assert_eq!(
                told(&guard, ms(2000)).await,
                reason,
                "{what}, lease {lease:?}"
            );
            assert!(
                start.elapsed() < ms(PERIOD + COMMAND + SCHEDULING) + stalls(start),
                "{what}: {:?}",
                start.elapsed()
            );
            assert_eq!(told(&nested, ms(10)).await, reason);
            assert_eq!(guard.ended().await, Some(reason));
            assert_matches!(
                lock.try_lock().await,
                Err(Error::Lost { .. }),
                "a re-entry is an error"
            );
            assert_matches!(guard.unlock().await, Err(Error::Lost { reason: told, .. }) if told == reason);
            drop(nested);
            control.run(&["DEL", "a"]);
        }
    }
    server.finish([client]).await;
}

#[tokio::test]
async fn an_unlock_after_the_key_is_gone_says_lost_also_without_a_renewal_between() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    for (harm, reason) in [("DEL", LossReason::Gone), ("RENAME", LossReason::Gone)] {
        let guard = client.lock("a").lock().await.expect("free");
        match harm {
            "DEL" => control.run(&["DEL", "a"]),
            _ => control.run(&["RENAME", "a", "b"]),
        };
        assert_matches!(guard.unlock().await, Err(Error::Lost { reason: told, .. }) if told == reason);
        control.run(&["DEL", "b"]);
    }
    let guard = client.lock("a").lock().await.expect("free");
    control.run(&["SET", "a", "text"]);
    assert_matches!(
        guard.unlock().await,
        Err(Error::Lost {
            reason: LossReason::Changed,
            ..
        })
    );
    assert_eq!(control.run(&["GETDEL", "a"]), "text");
    server.finish([client]).await;
}

#[tokio::test]
async fn of_a_hundred_locks_the_three_that_were_harmed_are_told_and_the_rest_live_on() {
    let server = TestServer::new();
    let client = brisk(&server).await;
    let mut control = server.control();
    let mut guards = Vec::new();
    for nth in 0..100 {
        guards.push(client.lock(format!("a{nth}")).lock().await.expect("free"));
    }
    control.run(&["SET", "a10", "text"]);
    control.run(&["DEL", "a20"]);
    control.run(&["DEL", "a30"]);
    control.run(&["HSET", "a30", "java:1", "1"]);
    let start = Instant::now();
    for (nth, reason) in [
        (10, LossReason::Changed),
        (20, LossReason::Gone),
        (30, LossReason::Taken),
    ] {
        assert_eq!(told(&guards[nth], ms(WATCHDOG)).await, reason);
    }
    assert!(
        start.elapsed() < ms(PERIOD + SCHEDULING) + stalls(start),
        "within a period: {:?}",
        start.elapsed()
    );
    tokio::time::sleep(ms(2 * WATCHDOG)).await;
    let alive = guards
        .iter()
        .filter(|guard| guard.state() == HoldState::Held)
        .count();
    assert_eq!(alive, 97);
    let keys = (0..100)
        .filter(|nth| control.pttl(&format!("a{nth}")) > (WATCHDOG / 2) as i64)
        .count();
    assert_eq!(keys, 97);
    for guard in guards {
        let _ = guard.unlock().await;
    }
    control.run(&["DEL", "a10", "a20", "a30"]);
    server.finish([client]).await;
}

/// A hundred locks are one call, and those that come after a hundred share calls too. A server before Redis 7.2 that reports
/// changes tracks all keys of a call at each read, so that there 25 are one call.
#[tokio::test]
async fn renewals_that_fall_due_together_share_their_calls() {
    const LOCKS: u64 = 450;
    for tracking in [true, false] {
        let server = TestServer::new();
        let set = |builder: LockClientBuilder| {
            let builder = builder.connections(1).tracking(tracking);
            builder.watchdog_timeout(ms(9_000))
        };
        let client = server.client_with(set).await;
        let mut control = server.control();
        // The connection for replicas does not report, and says nothing of the server.
        let replicated = client.lock("replicated").sync_replicas(1, ms(50));
        let refused = replicated.try_lock().await;
        assert!(matches!(refused, Err(Error::TooFewReplicas { .. })));
        let mut guards = Vec::new();
        for nth in 0..LOCKS {
            guards.push(client.lock(format!("{nth}")).lock().await.expect("free"));
        }
        let renewed = || client.stats().renewed_total;
        let (begun, before) = (renewed(), control.calls("evalsha"));
        eventually("two periods", ms(20_000), || renewed() >= begun + 2 * LOCKS).await;
        let calls = control.calls("evalsha") - before;
        let is_new = control.run(&["CLIENT", "INFO"]).contains("lib-name=");
        // Ten or 36, and some more if they were acquired slowly.
        let expected = if tracking && !is_new { 36..100 } else { 9..36 };
        assert!(expected.contains(&calls), "{tracking}: {calls} calls");
        drop(guards);
        server.finish([client]).await;
    }
}

#[tokio::test]
async fn when_the_server_falls_silent_every_hold_is_told_before_its_expiry_there() {
    let server = TestServer::new();
    let client = server
        .client_with(|builder| builder.watchdog_timeout(ms(3000)).command_timeout(ms(900)))
        .await;
    let mut control = server.control();
    let mut holds = Vec::new();
    for nth in 0..20 {
        let lock = client.lock(format!("a{nth}"));
        let lock = if nth % 2 == 0 {
            lock
        } else {
            lock.lease(ms(2800))
        };
        holds.push(lock.lock().await.expect("free"));
        tokio::time::sleep(ms(7)).await;
    }
    let expiries: Vec<_> = (0..20)
        .map(|nth| expiry(&mut control, &format!("a{nth}")))
        .collect();
    server.pause();
    let deadlines: Vec<_> = holds.iter().map(|hold| hold.valid_until()).collect();
    for (deadline, expiry) in deadlines.iter().zip(&expiries) {
        assert!(
            deadline <= expiry,
            "the local deadline lies before the server's own"
        );
    }
    let mut watchers = tokio::task::JoinSet::new();
    for (nth, guard) in holds.iter().enumerate() {
        let lost = guard.lost();
        watchers.spawn(async move { (nth, lost.await, Instant::now()) });
    }
    while let Some(watched) = watchers.join_next().await {
        let (nth, reason, at) = watched.expect("no panic");
        let expected = if nth % 2 == 0 {
            LossReason::NotRenewed
        } else {
            LossReason::LeaseOver
        };
        assert_eq!(reason, expected);
        assert!(
            at <= expiries[nth] + stalls(deadlines[nth]),
            "hold {nth} was told {:?} after the expiry",
            at - expiries[nth]
        );
        assert!(holds[nth].valid_until() <= Instant::now());
    }
    server.resume();
    drop(holds);
    server.finish([client]).await;
}

#[tokio::test]
async fn a_hold_is_at_risk_before_it_is_lost_and_safe_again_when_renewed() {
    let server = TestServer::new();
    let client = server
        .client_with(|builder| builder.watchdog_timeout(ms(3000)).command_timeout(ms(250)))
        .await;
    let guard = client.lock("a").lock().await.expect("free");
    server.pause();
    eventually("at risk", ms(2600), || guard.state() == HoldState::AtRisk).await;
    server.resume();
    eventually("renewed", ms(900), || guard.state() == HoldState::Held).await;
    guard.unlock().await.expect("held all the time");
    server.finish([client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_normal_unlock_never_signals_a_loss() {
    let server = TestServer::new();
    let client = server
        .client_with(|builder| builder.watchdog_timeout(ms(900)).command_timeout(ms(290)))
        .await;
    let mut tasks = tokio::task::JoinSet::new();
    for nth in 0..8 {
        let lock = client.lock(format!("a{nth}"));
        tasks.spawn(async move {
            let start = Instant::now();
            let (mut hold, mut answered) = (0, 0);
            while start.elapsed() < ms(4000) {
                // A busy machine may take longer than the command timeout: then there is no answer,
                // and no loss either.
                let guard = match lock.lock().await {
                    Err(Error::NoAnswer { .. }) => continue,
                    taken => taken.expect("free"),
                };
                let (lost, ended) = (guard.lost(), guard.ended());
                hold = (hold + 47) % 350; // around the moment of a renewal
                tokio::time::sleep(ms(hold)).await;
                match guard.unlock().await {
                    Err(Error::NoAnswer { .. }) => {}
                    released => answered += released.map(|()| 1).expect("held"),
                }
                assert_eq!(ended.await, None);
                assert!(
                    tokio::time::timeout(Duration::ZERO, lost).await.is_err(),
                    "never after an unlock"
                );
            }
            assert!(answered >= 5, "{answered} unlocks were answered");
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.expect("no panic");
    }
    assert_eq!(client.stats().lost_total, 0);
    server.finish([client]).await;
}

#[tokio::test]
async fn run_drops_its_body_when_the_lock_is_lost() {
    let server = TestServer::new();
    let client = brisk(&server).await;
    let mut control = server.control();
    let lock = client.lock("a");
    let (dropped, was_dropped) = std::sync::mpsc::channel();
    struct OnDrop(std::sync::mpsc::Sender<()>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }
    let run = lock.run(|_held| async move {
        let _on_drop = OnDrop(dropped);
        tokio::time::sleep(Duration::from_secs(60)).await;
        Ok(())
    });
    let harm = async {
        eventually("held", ms(1000), || control.run(&["EXISTS", "a"]) == "1").await;
        control.run(&["DEL", "a"]);
    };
    let (ran, ()) = tokio::join!(run, harm);
    assert_matches!(
        ran,
        Err(Error::Lost {
            reason: LossReason::Gone,
            ..
        })
    );
    was_dropped.try_recv().expect("the body was dropped");
    server.finish([client]).await;
}

#[tokio::test]
async fn a_lost_detached_hold_is_told_by_the_next_unlock() {
    let server = TestServer::new();
    let client = brisk(&server).await;
    let mut control = server.control();
    let lock = client.lock("a");
    let guard = lock.lock().await.expect("free");
    let ended = guard.ended();
    guard.detach();
    control.run(&["DEL", "a"]);
    assert_eq!(ended.await, Some(LossReason::Gone));
    assert_matches!(
        lock.lock().await,
        Err(Error::Lost { .. }),
        "until it is asked for"
    );
    assert_matches!(
        lock.unlock().await,
        Err(Error::Lost {
            reason: LossReason::Gone,
            ..
        })
    );
    lock_and_unlock(&lock).await;
    server.finish([client]).await;
}

#[tokio::test]
async fn one_name_that_the_server_refuses_costs_no_other_its_lease() {
    let server = TestServer::new();
    let mut control = server.control();
    control.run(&["ACL", "SETUSER", "u", "on", ">p", "~*", "&*", "+@all"]);
    let url = format!("redis://u:p@127.0.0.1:{}", server.port);
    let client = LockClient::builder()
        .watchdog_timeout(ms(WATCHDOG))
        .command_timeout(ms(COMMAND))
        .connect(&url)
        .await
        .expect("the server answers");
    let mut guards = Vec::new();
    for nth in 0..30 {
        guards.push(client.lock(format!("a{nth}")).lock().await.expect("free"));
    }
    let bad = client.lock("bad").lock().await.expect("free");
    control.run(&["ACL", "SETUSER", "u", "resetkeys", "~a*"]);
    assert_eq!(
        told(&bad, ms(WATCHDOG + SCHEDULING)).await,
        LossReason::NotRenewed
    );
    tokio::time::sleep(ms(WATCHDOG)).await;
    assert!(guards.iter().all(|guard| guard.state() == HoldState::Held));
    let stats = control.run(&["INFO", "commandstats"]);
    let evalsha = stats.split("cmdstat_evalsha:").nth(1).expect("it ran");
    let rejected = evalsha.split("rejected_calls=").nth(1).expect("a count");
    let rejected: u32 = rejected.split(',').next().expect("it").parse().expect("it");
    // In each beat some that are halved; alone it is not sent again before the next.
    assert!((1..100).contains(&rejected), "{rejected}");
    control.run(&["ACL", "SETUSER", "u", "~*"]);
    for guard in guards {
        guard.unlock().await.expect("held");
    }
    drop(bad);
    server.finish([client]).await;
}

#[tokio::test]
async fn a_lease_that_an_operator_changed_is_repaired_by_the_next_renewal() {
    let server = TestServer::new();
    let client = brisk(&server).await;
    let mut control = server.control();
    let guard = client.lock("a").lock().await.expect("free");
    for harm in [["PERSIST", "a", ""], ["PEXPIRE", "a", "700"]] {
        let words: Vec<&str> = harm.into_iter().filter(|word| !word.is_empty()).collect();
        control.run(&words);
        let valid_until = guard.valid_until();
        assert!(
            valid_until > Instant::now(),
            "the local deadline is its own"
        );
        let renewed = 800..=WATCHDOG as i64;
        eventually("repaired", ms(2 * PERIOD), || {
            renewed.contains(&control.pttl("a"))
        })
        .await;
    }
    assert_eq!(guard.state(), HoldState::Held);
    guard.unlock().await.expect("held");
    server.finish([client]).await;
}

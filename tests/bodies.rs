//! Code that runs with a lock or with a client, calls that try again, and what tells whether the server
//! is there.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redisson_lock::{Error, HoldState, LockClient, LossReason, Operation, TryLock};
use test_support::{
    ProxiedPair, Server, TestServer, assert_matches, eventually, has_listener, ms, stalls, test,
    tokio,
};

/// An error of a program that uses locks.
#[derive(Debug)]
enum Failed {
    Lock(Error),
    Body,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

#[tokio::test]
async fn a_body_runs_with_the_lock_and_its_error_goes_on_behind_the_release() {
    let server = TestServer::new();
    let client = server.client().await;
    let lock = client.lock("a");
    let held = lock.run(async |held| Ok::<_, Failed>(held.state())).await;
    assert_matches!(held, Ok(HoldState::Held));
    let failed: Result<(), Failed> = lock.run(|_| async { Err(Failed::Body) }).await;
    assert_matches!(failed, Err(Failed::Body));
    eventually("released", ms(2_000), || {
        server.control().number(&["EXISTS", "a"]) == 0
    })
    .await;
    let bad: Result<(), Failed> = client.lock("").run(|_| async { Ok(()) }).await;
    assert_matches!(bad, Err(Failed::Lock(Error::InvalidName { .. })));
    server.finish([client]).await;
}

#[tokio::test]
async fn a_body_that_only_runs_if_the_lock_is_free_does_not_run_beside_a_holder() {
    let server = TestServer::new();
    let (client, other) = (server.client().await, server.client().await);
    let lock = client.lock("a");
    let ran = lock.try_run(async |_| Ok::<_, Error>(7)).await;
    assert_matches!(ran, Ok(Some(7)));
    let guard = other.lock("a").lock().await.expect("free");
    let body = async |_| -> Result<(), Error> { panic!("it runs beside its holder") };
    assert_matches!(lock.try_run(body).await, Ok(None));
    let start = Instant::now();
    assert_matches!(lock.try_run_for(ms(200), body).await, Ok(None));
    assert!(start.elapsed() >= ms(200));
    guard.unlock().await.expect("held");
    let ran = lock
        .try_run_for(Duration::from_secs(5), async |_| Ok::<_, Error>(8))
        .await;
    assert_matches!(ran, Ok(Some(8)));
    server.finish([client, other]).await;
}

#[tokio::test]
async fn of_those_that_run_serially_one_is_inside_at_a_time() {
    let server = TestServer::new();
    let clients = [server.client().await, server.client().await];
    let inside = Arc::new(AtomicUsize::new(0));
    let tasks = (0..20).map(|nth| {
        let (client, inside) = (clients[nth % 2].clone(), Arc::clone(&inside));
        tokio::spawn(async move {
            let body = async || {
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                tokio::task::yield_now().await;
                assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                Ok::<_, Error>(())
            };
            client.serial("account:7", body).await
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("no panic").expect("answered");
    }
    server.finish(clients).await;
}

/// The lock is gone as soon as `scope` is ready, whichever way its body ends.
#[test]
fn behind_a_scope_nothing_is_held() {
    let server = Server::start();
    let url = server.url();
    let mut control = server.control();
    let mut locked_by = |body: fn(redisson_lock::LockGuard) -> Result<(), Failed>| {
        let url = url.clone();
        // A program: when its main ends, its runtime does.
        let program = std::thread::spawn(move || {
            // Without threads of its own, so that nothing is sent after `block_on` has returned.
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(LockClient::scope(&url, async |client| {
                body(client.lock("a").lock().await?)
            }))
        });
        let ended = program.join();
        assert_eq!(control.number(&["EXISTS", "a"]), 0, "left behind");
        ended
    };
    let ended = locked_by(|guard| {
        drop(guard);
        Ok(())
    });
    assert_matches!(ended, Ok(Ok(())));
    assert_matches!(locked_by(|_guard| Err(Failed::Body)), Ok(Err(Failed::Body)));
    let detached = locked_by(|guard| {
        guard.detach();
        Ok(())
    });
    assert_matches!(detached, Ok(Ok(())));
    let panicked = locked_by(|_guard| panic!("on purpose"));
    assert_eq!(
        panicked.expect_err("it goes on").downcast_ref(),
        Some(&"on purpose")
    );
}

/// A task that unlocks only when the client has been closing for much longer than a command may take.
#[tokio::test]
async fn a_spawned_task_has_the_close_grace_to_release_its_lock() {
    let server = TestServer::new();
    let outcome_with = async |grace: Option<Duration>| {
        let mut builder = LockClient::builder().command_timeout(ms(200));
        if let Some(grace) = grace {
            builder = builder.close_grace(grace);
        }
        let body = async |client: LockClient| {
            let guard = client.lock("a").lock().await?;
            Ok::<_, Error>(tokio::spawn(async move {
                let other = client.owner();
                let waited = client.lock("a").owned_by(&other).lock().await;
                assert_matches!(waited, Err(Error::Closed), "it does not close");
                tokio::time::sleep(ms(700)).await;
                guard.unlock().await
            }))
        };
        let task = builder.scope(&server.url(), body).await.expect("connected");
        task.await.expect("no panic")
    };
    let released = outcome_with(Some(Duration::from_secs(20))).await;
    assert!(released.is_ok(), "{released:?}");
    assert_eq!(server.control().number(&["EXISTS", "a"]), 0);

    let lost = outcome_with(None).await;
    assert_matches!(
        lost,
        Err(Error::Lost {
            reason: LossReason::Closed,
            ..
        })
    );
    server.control().run(&["DEL", "a"]);
    server.finish([]).await;
}

/// Two processes; the one whose lock is taken away stops before the other one leads.
#[tokio::test]
async fn a_leader_stops_when_its_lock_is_lost_and_leads_again_later() {
    let server = TestServer::new();
    let client = server
        .client_with(|builder| builder.watchdog_timeout(ms(900)))
        .await;
    let terms = Arc::new(AtomicUsize::new(0));
    let leader = tokio::spawn({
        let (lock, terms) = (client.lock("leader"), Arc::clone(&terms));
        async move {
            let body = |_| async {
                match terms.fetch_add(1, Ordering::SeqCst) {
                    0 => std::future::pending().await,
                    term => Ok::<_, Error>(term),
                }
            };
            lock.lead(body).await
        }
    });
    eventually("it leads", ms(2_000), || terms.load(Ordering::SeqCst) == 1).await;
    server.control().run(&["DEL", "leader"]);
    let term = leader.await.expect("no panic");
    assert_matches!(term, Ok(1));
    server.finish([client]).await;
}

#[tokio::test]
async fn a_leader_whose_server_is_away_stops_and_waits_for_it() {
    let pair = ProxiedPair::with(|builder| builder.watchdog_timeout(ms(900))).await;
    let running = Arc::new(AtomicUsize::new(0));
    let leader = tokio::spawn({
        let (lock, running) = (pair.ours.lock("leader"), Arc::clone(&running));
        async move {
            let body = |_| async {
                running.fetch_add(1, Ordering::SeqCst);
                std::future::pending::<Result<(), Error>>().await
            };
            lock.lead(body).await
        }
    });
    eventually("it leads", ms(2_000), || {
        running.load(Ordering::SeqCst) == 1
    })
    .await;
    pair.proxy.refuse(true);
    pair.proxy.cut_all();
    eventually("it is away", ms(2_000), || !pair.ours.is_connected()).await;
    eventually("it has stopped", ms(5_000), || pair.ours.stats().held == 0).await;
    pair.proxy.refuse(false);
    eventually("it leads again", ms(10_000), || {
        running.load(Ordering::SeqCst) == 2
    })
    .await;
    leader.abort();
    assert!(leader.await.expect_err("aborted").is_cancelled());
    pair.finish().await;
}

/// To the server a leader that is cut off for good has crashed.
#[tokio::test]
async fn after_a_crash_a_standby_leads_once_the_lease_is_over() {
    let watchdog = ms(3_000);
    let pair = ProxiedPair::with(|builder| builder.watchdog_timeout(watchdog)).await;
    let lock = pair.ours.lock("leader");
    let leader = tokio::spawn(async move {
        let work = |_| std::future::pending::<Result<(), Error>>();
        lock.lead(work).await
    });
    eventually("it leads", ms(2_000), || pair.ours.stats().held == 1).await;
    let lock = pair.theirs.lock("leader");
    let standby = tokio::spawn(async move {
        let work = async |_| Ok::<_, Error>(Instant::now());
        lock.lead(work).await
    });
    eventually("it waits", ms(2_000), || pair.theirs.stats().waiting == 1).await;
    pair.proxy.refuse(true);
    pair.proxy.cut_all();
    let crashed = Instant::now();
    leader.abort();
    let leads = standby.await.expect("no panic").expect("it leads");
    let took = leads.duration_since(crashed);
    let limit = watchdog + ms(300) + stalls(crashed);
    assert!(took <= limit, "{took:?}");
    pair.proxy.refuse(false);
    pair.finish().await;
}

#[tokio::test]
async fn who_finds_a_lock_held_learns_by_whom() {
    let server = TestServer::new();
    let (client, other) = (server.client().await, server.client().await);
    let owner = other.owner_with_id(-7);
    let lease = Duration::from_secs(60);
    let guard = other
        .lock("a")
        .owned_by(&owner)
        .lease(lease)
        .lock()
        .await
        .expect("free");
    let found = client
        .lock("a")
        .try_lock_or_holder()
        .await
        .expect("answered");
    let TryLock::Busy { holder: Some(by) } = found else {
        panic!("{found:?}")
    };
    assert_eq!(by.owner, owner.to_string());
    let left = by.lease_left;
    assert!(
        left.is_some_and(|left| left > ms(50_000) && left <= lease),
        "{left:?}"
    );
    guard.unlock().await.expect("held");
    let taken = client
        .lock("a")
        .try_lock_or_holder()
        .await
        .expect("answered");
    let TryLock::Acquired(guard) = taken else {
        panic!("{taken:?}")
    };
    guard.unlock().await.expect("held");
    server.finish([client, other]).await;
}

/// It does not overtake, and only looks.
#[tokio::test]
async fn an_attempt_at_a_lock_that_others_queue_for_says_who_holds_it() {
    let server = TestServer::new();
    let (client, other) = (server.client().await, server.client().await);
    let theirs = other.lock("a").lock().await.expect("free");
    let queued = client.lock("a");
    let queued = tokio::spawn(async move { queued.lock().await });
    eventually("it queues", ms(2_000), || {
        has_listener(&mut server.control(), "a")
    })
    .await;
    let attempts = || server.control().calls("evalsha");
    // One by its hash that was not known, and those before and after it subscribed.
    eventually("it has asked twice", ms(2_000), || attempts() == 3).await;
    let taken = client.lock("a").try_lock().await.expect("answered");
    assert!(taken.is_none());
    assert_eq!(attempts(), 3, "Redis is not asked");
    let found = client.lock("a").try_lock_or_holder().await;
    let found = found.expect("answered");
    let TryLock::Busy { holder: Some(by) } = found else {
        panic!("{found:?}")
    };
    assert_eq!(by.owner, theirs.owner().to_string());
    assert_eq!(attempts(), 4, "it is looked at");
    theirs.unlock().await.expect("held");
    let guard = queued.await.expect("no panic").expect("free");
    // A re-entry never queues.
    let again = client.lock("a").owned_by(guard.owner()).try_lock().await;
    drop(again.expect("answered").expect("re-entered"));
    guard.unlock().await.expect("held");
    server.finish([client, other]).await;
}

/// An outage that is shorter than what the caller is ready to wait.
#[tokio::test]
async fn a_wait_outlasts_an_outage() {
    let pair = ProxiedPair::with(|builder| builder.command_timeout(ms(300))).await;
    pair.proxy.refuse(true);
    pair.proxy.cut_all();
    eventually("it is away", ms(2_000), || !pair.ours.is_connected()).await;
    let (lock, long) = (pair.ours.lock("a"), Duration::from_secs(20));
    let start = Instant::now();
    let once = lock.lock().await.expect_err("one attempt");
    assert!(once.is_retryable() && start.elapsed() < ms(5_000), "{once}");
    let once = lock.try_lock().await.expect_err("one attempt");
    assert!(once.is_retryable(), "{once}");
    let short = lock
        .try_lock_for(ms(700))
        .await
        .expect_err("the server is away");
    assert!(short.is_retryable(), "{short}");
    let patient = lock.retry_for(long);
    // Locks of their own: in one queue the second attempts when the first has failed.
    let at_length = async |name: &str, wait| {
        let guard = pair.ours.lock(name).try_lock_for(wait).await?;
        guard.expect("in time").unlock().await
    };
    let ten_years = Duration::from_secs(10 * 365 * 24 * 60 * 60);
    let (within, for_ten_years, without_end, until_it_is_back, ()) = tokio::join!(
        at_length("a", long),
        at_length("b", ten_years),
        at_length("c", Duration::MAX),
        async {
            let owner = pair.ours.owner();
            patient.owned_by(&owner).lock().await?.unlock().await
        },
        async {
            // It began after theirs, with the same command timeout: the first attempt of both has failed too.
            let once = pair.ours.lock("d").try_lock().await;
            assert!(once.is_err_and(|error| error.is_retryable()));
            pair.proxy.refuse(false);
        },
    );
    within.expect("the server was back");
    for_ten_years.expect("the server was back");
    without_end.expect("the server was back");
    until_it_is_back.expect("the server was back");
    pair.finish().await;
}

#[tokio::test]
async fn whether_the_server_is_there_is_known_and_can_be_asked() {
    let pair = ProxiedPair::with(|builder| builder.command_timeout(ms(300))).await;
    let client = &pair.ours;
    assert!(client.is_connected() && client.stats().connected);
    assert!(client.ping().await.expect("it answers") < ms(300));
    pair.proxy.refuse(true);
    pair.proxy.cut_all();
    eventually("it is away", ms(2_000), || !client.is_connected()).await;
    assert!(!client.stats().connected);
    let error = client.ping().await.expect_err("away");
    let is_ping = matches!(
        &error,
        Error::NoAnswer {
            while_doing: Operation::Pinging,
            ..
        }
    );
    assert!(is_ping, "{error:?}");
    pair.proxy.refuse(false);
    eventually("it is back", ms(5_000), || client.is_connected()).await;
    client.ping().await.expect("it answers");
    client.close(Duration::ZERO).await;
    assert!(!client.is_connected());
    assert_matches!(client.ping().await, Err(Error::Closed));
    pair.finish().await;
}

/// A task that the body has spawned keeps the client and a guard.
#[tokio::test]
async fn a_scope_that_is_dropped_closes_its_client_in_the_background() {
    let server = Server::start();
    let mut control = server.control();
    let url = server.url();
    let builder = LockClient::builder().close_grace(ms(100));
    let scope = builder.scope(&url, async |client| {
        let lock = client.lock("a");
        // Renewed for as long as its client is open.
        let guard = lock.lock().await?;
        tokio::spawn(async move {
            let lost = guard.lost().await;
            drop((lost, client, guard));
        });
        std::future::pending::<Result<(), Error>>().await
    });
    assert!(tokio::time::timeout(ms(300), scope).await.is_err());
    let closed = || control.connections() == 0;
    eventually("the client is closed", ms(5_000), closed).await;
}

//! Clients whose runtime is not the caller's: it ends, or is not driven for a while.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use redisson_lock::{Error, LockClient, LossReason};
use test_support::kinds::{KINDS, against};
use test_support::{Server, TestServer, ms, stalls, test};
use tokio::runtime::{Builder, Runtime};

const COMMAND: u64 = 300;

/// A client on `home`, with a command timeout that can be waited for.
fn client_on(home: &Runtime) -> (TestServer, LockClient) {
    home.block_on(async {
        let server = TestServer::new();
        let client = server
            .client_with(|builder| builder.command_timeout(ms(COMMAND)))
            .await;
        (server, client)
    })
}

#[test]
fn when_the_clients_runtime_ends_holders_and_waiters_elsewhere_are_notified_immediately() {
    let home = Runtime::new().expect("runtime");
    let away = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("runtime");
    let (server, client) = client_on(&home);
    let guard = home.block_on(client.lock("a").lock()).expect("free");
    let (told, tells) = mpsc::channel();
    let lost = guard.lost();
    away.spawn({
        let told = told.clone();
        async move { told.send(format!("{:?}", lost.await)) }
    });
    for _ in 0..2 {
        let (lock, told) = (client.lock("a"), told.clone());
        away.spawn(async move {
            let failed = lock.lock().await.map(drop);
            let no_runtime = matches!(failed, Err(Error::NoRuntime));
            told.send(if no_runtime {
                "NoRuntime".to_owned()
            } else {
                format!("{failed:?}")
            })
        });
    }
    away.block_on(test_support::eventually(
        "both are queued",
        ms(2000),
        || client.stats().waiting == 2,
    ));
    let start = Instant::now();
    home.shutdown_timeout(Duration::from_secs(1));
    let mut all: Vec<String> = (0..3)
        .map(|_| tells.recv_timeout(Duration::from_secs(5)).expect("told"))
        .collect();
    all.sort();
    assert_eq!(all, ["Closed", "NoRuntime", "NoRuntime"]);
    assert!(
        start.elapsed() < Duration::from_secs(2) + stalls(start),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(
        guard.state(),
        redisson_lock::HoldState::Lost(LossReason::Closed)
    );
    drop((guard, client, server));
}

#[test]
fn a_call_from_elsewhere_waits_until_the_clients_runtime_is_driven() {
    let home = Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("runtime");
    let (server, client) = client_on(&home);
    let owner = client.owner();
    let held = home
        .block_on(client.lock("held").owned_by(&owner).lock())
        .expect("free");
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    // Read before the driver begins to sleep: this thread may be scheduled later than that.
    let start = Instant::now();
    let driver = std::thread::spawn(move || {
        std::thread::sleep(ms(COMMAND / 2));
        home.block_on(async { _ = stopped.await });
        home
    });
    // No timers of its own.
    let away = Builder::new_current_thread().build().expect("runtime");
    away.block_on(async {
        let guard = client.lock("a").lock().await.expect("free");
        assert!(start.elapsed() >= ms(COMMAND / 2), "{:?}", start.elapsed());
        guard.unlock().await.expect("held");
        let waited = client.lock("held").try_lock_for(ms(COMMAND)).await;
        assert!(waited.expect("answered").is_none(), "another owner has it");
    });
    drop(stop);
    let home = driver.join().expect("no panic");
    home.block_on(held.unlock()).expect("held");
    home.block_on(server.finish([client]));
}

/// The caller's runtime has sockets but no timers: all that `lead` waits with are the client's.
#[test]
fn a_leader_on_a_runtime_without_timers_leads_and_stops_when_the_clients_runtime_ends() {
    let away = Builder::new_current_thread()
        .enable_io()
        .build()
        .expect("runtime");
    let connected = away.block_on(LockClient::connect("redis://127.0.0.1:1"));
    assert!(matches!(connected, Err(Error::NoRuntime)), "{connected:?}");

    let home = Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("runtime");
    let (server, client) = client_on(&home);
    let lock = client.lock("leader");
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let driver = std::thread::spawn(move || {
        home.block_on(async { _ = stopped.await });
    });
    let led = away.block_on(lock.lead(async |_| Ok::<_, Error>(7)));
    assert!(matches!(led, Ok(7)), "{led:?}");
    // The first line of the body ends the client's runtime.
    let mut stop = Some(stop);
    let led = away.block_on(lock.lead(|_| {
        drop(stop.take().expect("it leads once"));
        std::future::pending::<Result<(), Error>>()
    }));
    assert!(matches!(led, Err(Error::NoRuntime)), "{led:?}");

    driver.join().expect("no panic");
    server.control().run(&["DEL", "leader"]);
    drop((lock, client));
    away.block_on(server.finish([]));
}

/// A timer that is polled while its runtime ends panics.
#[test]
fn no_call_on_another_runtime_panics_when_the_clients_ends() {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // Of the other tests too: each prints its own.
        if panic.to_string().contains("shutdown") {
            PANICS.fetch_add(1, Ordering::SeqCst);
        }
        hook(panic);
    }));
    let server = Server::start();
    let away = Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("runtime");
    let start = Instant::now();
    let mut rounds = 0;
    while start.elapsed() < Duration::from_secs(4) && PANICS.load(Ordering::SeqCst) == 0 {
        rounds += 1;
        let home = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("runtime");
        let client = home.block_on(LockClient::connect(&server.url()));
        let client = client.expect("it responds");
        let tasks: Vec<_> = (0..16)
            .map(|nth| {
                let lock = client.lock(format!("l{}", nth % 8));
                let lock = lock.owned_by(&client.owner());
                away.spawn(async move {
                    loop {
                        match lock.try_lock_for(ms(2)).await {
                            Ok(Some(guard)) => _ = guard.unlock().await,
                            Ok(None) => {}
                            Err(_) => return,
                        }
                    }
                })
            })
            .collect();
        std::thread::sleep(ms(3 + rounds % 7));
        match rounds % 2 {
            0 => drop(home),
            _ => home.shutdown_background(),
        }
        for task in tasks {
            let ended = async { tokio::time::timeout(ms(10_000), task).await };
            assert!(away.block_on(ended).is_ok(), "a call hangs");
        }
    }
    assert_eq!(PANICS.load(Ordering::SeqCst), 0, "in {rounds} rounds");
}

/// It waits when the client closes, and is not polled before the client's runtime has ended.
#[test]
fn a_call_that_is_polled_after_close_and_after_the_end_of_the_runtime_fails_without_a_panic() {
    for kind in KINDS {
        let home = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("runtime");
        let away = Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("runtime");
        let (server, client) = client_on(&home);
        let held = home.block_on(server.client());
        let held = home.block_on(held.lock_of(kind, "a").lock()).expect("free");
        let lock = client.lock_of(against(kind), "a").owned_by(&client.owner());
        let mut waiting = Box::pin(async move { lock.lock().await.map(drop) });
        away.block_on(async {
            let contends = async {
                while client.stats().contended_total == 0 {
                    tokio::time::sleep(ms(1)).await;
                }
            };
            tokio::select! {
                biased;
                () = contends => {}
                locked = &mut waiting => panic!("{locked:?}"),
            }
            // Into the wait for its next attempt.
            let pending = tokio::time::timeout(ms(200), &mut waiting).await;
            assert!(pending.is_err(), "{pending:?}");
        });
        home.block_on(client.close(Duration::ZERO));
        drop(held);
        home.shutdown_timeout(Duration::from_secs(2));
        let failed = away.block_on(waiting);
        assert!(matches!(failed, Err(Error::Closed)), "{failed:?}");
    }
}

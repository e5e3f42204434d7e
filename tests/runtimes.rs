//! Clients whose runtime is not the caller's: it ends, or nobody drives it.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use redisson_lock::{Error, LockClient, LossReason};
use test_support::{TestServer, ms, stalls, test};
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
fn when_the_clients_runtime_ends_holders_and_waiters_elsewhere_are_told_at_once() {
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
        away.spawn(async move { told.send(format!("{:?}", lock.lock().await.map(drop))) });
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
    assert_eq!(all, ["Closed", "Err(NoRuntime)", "Err(NoRuntime)"]);
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
fn a_call_from_elsewhere_does_not_hang_when_nobody_drives_the_clients_runtime() {
    let home = Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("runtime");
    let (server, client) = client_on(&home);
    let owner = client.owner();
    let held = home
        .block_on(client.lock("held").owned_by(&owner).lock())
        .expect("free");
    // No timers of its own.
    let away = Builder::new_current_thread().build().expect("runtime");
    away.block_on(async {
        let start = Instant::now();
        assert!(matches!(
            client.lock("a").lock().await,
            Err(Error::NoRuntime)
        ));
        assert!(matches!(
            client.lock("a").is_locked().await,
            Err(Error::NoRuntime)
        ));
        assert!(matches!(
            client.lock("held").lock().await,
            Err(Error::NoRuntime)
        ));
        assert!(
            start.elapsed() >= ms(3 * COMMAND),
            "a slow answer is waited for: {:?}",
            start.elapsed()
        );
        assert!(
            start.elapsed() < Duration::from_secs(5) + stalls(start),
            "{:?}",
            start.elapsed()
        );
    });
    // A client that cannot send does not claim that nothing was held.
    let (other_bed, other) = client_on(&home);
    let other_guard = home.block_on(other.lock("a").lock()).expect("free");
    let report = away.block_on(other.close(ms(10)));
    assert_eq!(report.abandoned.len(), 1, "{report:?}");
    assert_eq!(
        other_guard.state(),
        redisson_lock::HoldState::Lost(LossReason::Closed)
    );
    drop((other_guard, other, other_bed));
    // Driven again, it works off what was left, and serves calls from elsewhere, waits included.
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let driver = std::thread::spawn(move || {
        home.block_on(async { _ = stopped.await });
        home
    });
    away.block_on(async {
        let lock = client.lock("a");
        let guard = lock.lock().await.expect("free again");
        guard.unlock().await.expect("held");
        let waited = client.lock("held").try_lock_for(ms(4 * COMMAND)).await;
        assert!(
            waited.expect("answered").is_none(),
            "somebody else holds it, and the runtime runs"
        );
    });
    drop(stop);
    let home = driver.join().expect("no panic");
    home.block_on(held.unlock()).expect("held");
    home.block_on(server.finish([client]));
}

/// The caller's runtime has sockets but no timers: all that `lead` waits with are the client's.
#[test]
fn a_leader_on_a_runtime_without_timers_leads_and_stops_when_nobody_drives_the_clients_runtime() {
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
    let never = async |_| -> Result<(), Error> { panic!("nobody could have asked for the lock") };
    let led = away.block_on(lock.lead(never));
    assert!(matches!(led, Err(Error::NoRuntime)), "{led:?}");

    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let driver = std::thread::spawn(move || {
        home.block_on(async { _ = stopped.await });
        home
    });
    let led = away.block_on(lock.lead(async |_| Ok::<_, Error>(7)));
    assert!(matches!(led, Ok(7)), "{led:?}");
    // From the first line of the body on nobody drives the client's runtime.
    let mut stop = Some(stop);
    let led = away.block_on(lock.lead(|_| {
        drop(stop.take().expect("it leads once"));
        std::future::pending::<Result<(), Error>>()
    }));
    assert!(matches!(led, Err(Error::NoRuntime)), "{led:?}");

    let home = driver.join().expect("no panic");
    home.block_on(async {
        client.close(Duration::from_secs(5)).await;
        server.control().run(&["DEL", "leader"]);
        server.finish([]).await;
    });
}

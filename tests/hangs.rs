//! A server that stands still for longer than a lease, and goes on: what was sent before is executed then, and what it
//! takes is released, whatever the client's clock says.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redisson_lock::{Error, Lock, LockClient, LockClientBuilder, LockKind, MultiLock, RedLock};
use test_support::kinds::{KINDS, is_token, load_scripts};
use test_support::{
    Control, Fate, Proxy, TestServer, assert_matches, eventually, ms, release_to, stalls, tokio,
};

const LEASE: Duration = ms(3_000);

/// More than have a release in flight within a lease: the client sends 64 at a time, and waits for this long for each.
const NAMES: usize = 300;
const COMMAND: Duration = ms(900);

fn short(builder: LockClientBuilder) -> LockClientBuilder {
    let builder = builder.watchdog_timeout(LEASE).command_timeout(COMMAND);
    builder.fair_wait(LEASE)
}

/// Attempts on this many new names fail, because no server answers.
async fn attempts(client: &LockClient, kind: LockKind) {
    let attempts = (0..NAMES).map(async |nth| {
        let lock = client.lock_of(kind, format!("{kind}:{nth}"));
        let attempt = lock.try_lock();
        let no_answer = matches!(attempt.await, Err(Error::NoAnswer { .. }));
        assert!(no_answer, "{kind}: nothing answers");
    });
    join_all(attempts).await;
}

/// Stays until a lease has passed since the last attempt: the client still knows of what is under way.
async fn longer_than_a_lease(since: Instant, clients: &[&LockClient]) {
    tokio::time::sleep_until((since + 2 * LEASE).into()).await;
    for client in clients {
        let stats = client.stats();
        assert!(stats.releasing > 0 && stats.entries > 0, "{stats:?}");
    }
}

fn keys(control: &mut Control) -> Vec<String> {
    let keys = control.run(&["KEYS", "*"]);
    let keys = keys.split(' ').filter(|key| !key.is_empty());
    keys.filter(|key| !is_token(key))
        .map(str::to_owned)
        .collect()
}

/// As soon as the client says that it releases nothing any more, nothing is there.
async fn nothing_stands(server: &TestServer, clients: &[&LockClient], what: &str) {
    eventually(what, ms(20_000), || {
        clients.iter().all(|client| client.stats().releasing == 0)
    })
    .await;
    let left = keys(&mut server.control());
    assert!(left.is_empty(), "{what}: {} keys, {left:?}", left.len());
}

#[tokio::test]
async fn after_a_hang_of_several_leases_no_name_of_any_kind_is_locked_by_no_owner() {
    join_all(KINDS.map(async |kind| {
        let server = TestServer::new();
        load_scripts(&mut server.control());
        let client = server.client_with(short).await;
        let stopped = Instant::now();
        server.pause();
        attempts(&client, kind).await;
        longer_than_a_lease(stopped, &[&client]).await;
        server.resume();
        nothing_stands(&server, &[&client], &kind.to_string()).await;
        client.close(Duration::ZERO).await;
    }))
    .await;
}

#[tokio::test]
async fn after_a_hang_of_several_leases_no_place_is_left_in_a_queue() {
    let server = TestServer::new();
    load_scripts(&mut server.control());
    let client = server.client_with(short).await;
    let other = server.client().await;
    let fair: Vec<Lock> = (0..20)
        .map(|nth| client.fair_lock(format!("fair:{nth}")))
        .collect();
    let held = join_all(fair.iter().map(async |lock| {
        let lock = other.fair_lock(lock.name());
        lock.lock().await
    }))
    .await;
    let stopped = Instant::now();
    server.pause();
    attempts(&client, LockKind::Plain).await;
    join_all(fair.iter().map(async |lock| {
        let attempt = lock.owned_by(&client.owner()).lock().await;
        assert_matches!(attempt, Err(Error::NoAnswer { .. }));
    }))
    .await;
    longer_than_a_lease(stopped, &[&client]).await;
    server.resume();
    eventually("all is released", ms(20_000), || {
        client.stats().releasing == 0
    })
    .await;
    let left = keys(&mut server.control());
    assert_eq!(
        left.len(),
        held.len(),
        "only what another client holds: {left:?}"
    );
    for guard in held {
        guard.expect("free").unlock().await.expect("held");
    }
    server.finish([client, other]).await;
}

/// The lease of the receiver is short and the one of the giver is not, so the hand-off finds the lock when it is executed.
#[tokio::test]
async fn after_a_hang_a_lock_that_was_handed_over_in_it_is_released() {
    let server = TestServer::new();
    load_scripts(&mut server.control());
    let client = server.client_with(short).await;
    let mut given = Vec::new();
    for nth in 0..20 {
        let lock = client.lock(format!("given:{nth}"));
        let giver = lock.lease(ms(60_000)).owned_by(&client.owner());
        let guard = giver.lock().await.expect("free");
        let receiver = lock.lease(LEASE).owned_by(&client.owner());
        given.push((guard, tokio::spawn(async move { receiver.lock().await })));
    }
    eventually("they wait", ms(5_000), || client.stats().waiting == 20).await;
    let stopped = Instant::now();
    server.pause();
    let unlocks = given.into_iter().map(async |(guard, waiting)| {
        let unlocked = guard.unlock().await;
        assert_matches!(unlocked, Err(Error::NoAnswer { .. }));
        waiting.abort();
        assert!(waiting.await.is_err(), "it was not handed over");
    });
    tokio::join!(join_all(unlocks), attempts(&client, LockKind::Plain));
    longer_than_a_lease(stopped, &[&client]).await;
    server.resume();
    nothing_stands(&server, &[&client], "handed over").await;
    server.finish([client]).await;
}

#[tokio::test]
async fn after_a_hang_nothing_is_left_of_several_locks_as_one() {
    let servers = [(); 3].map(|()| TestServer::new());
    let mut clients = Vec::new();
    for server in &servers {
        load_scripts(&mut server.control());
        clients.push(server.client_with(short).await);
    }
    let member = |nth: usize, name: String| clients[nth].lock(name);
    let stopped = Instant::now();
    servers[0].pause();
    servers[1].pause();
    let multi = (0..NAMES / 2).map(|nth| {
        let members = [2, 1, 0].map(|server| member(server, format!("multi:{nth}")));
        async move { MultiLock::new(members)?.try_lock().await.map(drop) }
    });
    let red = (0..NAMES / 2).map(|nth| {
        let members = [0, 1, 2].map(|server| member(server, format!("red:{nth}")));
        async move { RedLock::new(members)?.try_lock().await.map(drop) }
    });
    let (multi, red) = tokio::join!(join_all(multi), join_all(red));
    for failed in multi.into_iter().chain(red) {
        assert_matches!(failed, Err(Error::NoAnswer { .. }));
    }
    // Those at the first server are asked by the red locks alone.
    attempts(&clients[0], LockKind::Plain).await;
    longer_than_a_lease(stopped, &[&clients[0], &clients[1]]).await;
    nothing_stands(&servers[2], &[&clients[2]], "the server that answers").await;
    for server in &servers[..2] {
        server.resume();
    }
    for (server, client) in servers.iter().zip(&clients) {
        nothing_stands(server, &[client], "several locks").await;
    }
    for client in clients {
        client.close(Duration::ZERO).await;
    }
}

/// The client's side of the connection ends, and the server has still what was sent over it.
#[tokio::test]
async fn what_a_server_executes_of_a_lost_connection_is_released_over_the_next_one() {
    let server = TestServer::new();
    load_scripts(&mut server.control());
    let proxy = Proxy::start(server.port).await;
    let client = short(LockClient::builder()).connect(&proxy.url()).await;
    let client = client.expect("it answers");
    let stopped = Instant::now();
    server.pause();
    attempts(&client, LockKind::Plain).await;
    proxy.refuse(true);
    proxy.cut_all();
    longer_than_a_lease(stopped, &[&client]).await;
    server.resume();
    proxy.refuse(false);
    nothing_stands(&server, &[&client], "of a lost connection").await;
    client.close(Duration::ZERO).await;
    proxy.stop().await;
    server.finish([]).await;
}

/// What was sent before is over with the next connection: the lease begins there at the latest, wherever a release is when
/// that is opened.
#[tokio::test]
async fn a_release_that_is_refused_after_a_hang_is_given_up_a_lease_later() {
    const STEPS: u32 = 12;
    let server = TestServer::new();
    load_scripts(&mut server.control());
    let proxy = Proxy::start(server.port).await;
    let client = short(LockClient::builder()).connect(&proxy.url()).await;
    let client = client.expect("it answers");
    let stopped = Instant::now();
    server.pause();
    let attempts = (0..STEPS).map(async |nth| {
        tokio::time::sleep(nth * COMMAND / STEPS).await;
        let attempt = client.lock(format!("a:{nth}")).try_lock().await;
        let no_answer = matches!(attempt, Err(Error::NoAnswer { .. }));
        assert!(no_answer, "{attempt:?}");
    });
    join_all(attempts).await;
    proxy.refuse(true);
    proxy.cut_all();
    longer_than_a_lease(stopped, &[&client]).await;
    assert_eq!(client.stats().given_up_total, 0);
    let resumed = Instant::now();
    server.resume();
    let refusal = "-NOREPLICAS Not enough good replicas to write.";
    proxy.rule(Fate::Instead(refusal), usize::MAX, release_to(0));
    proxy.refuse(false);
    let given_up = || client.stats().given_up_total;
    eventually("it gives up", ms(15_000), || given_up() > 0).await;
    let took = resumed.elapsed();
    assert!(took >= LEASE, "{took:?}");
    eventually("all do", ms(15_000), || given_up() == u64::from(STEPS)).await;
    let left = keys(&mut server.control());
    assert!(left.is_empty(), "the lease is over: {left:?}");
    assert_eq!(client.stats().entries, 0);
    client.close(Duration::ZERO).await;
    proxy.stop().await;
    server.finish([]).await;
}

/// It is told of nothing any more, so the lease ends what is there.
#[tokio::test]
async fn a_client_that_is_closed_in_a_hang_does_not_wait_for_its_end() {
    let server = TestServer::new();
    let client = server.client_with(short).await;
    let stopped = Instant::now();
    server.pause();
    attempts(&client, LockKind::Plain).await;
    longer_than_a_lease(stopped, &[&client]).await;
    let closing = Instant::now();
    let report = client.close(COMMAND).await;
    let took = closing.elapsed();
    assert_eq!(report.unconfirmed, NAMES);
    assert!(took < 4 * COMMAND + stalls(closing), "{took:?}");
    server.resume();
    server.finish([]).await;
}

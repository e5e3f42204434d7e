//! What a hold answers after its end: `valid_until` is an instant that has passed, and stays the same, however it
//! ended and whichever handle answers.

use std::time::{Duration, Instant};

use redisson_lock::{HoldState, Lock, LockClient, LossReason, MultiLock, RedLock};
use test_support::{Control, TestServer, eventually, ms, test, tokio, within};

/// Far more than anything here takes; a bound, not a wait.
const LONG: Duration = Duration::from_secs(20);

/// The caller reads its clock first, as one does that writes only while it holds: `Instant::now() < valid_until`.
fn has_passed(what: &str, valid_until: impl Fn() -> Instant) -> Instant {
    let known = valid_until();
    for _ in 0..50 {
        let now = Instant::now();
        let until = valid_until();
        assert!(now >= until, "{what}: {:?} ahead", until - now);
        assert_eq!(until, known, "{what}: it moves");
    }
    known
}

/// A loss, what to do before the lock is taken, and what makes it happen.
struct Loss {
    reason: LossReason,
    take: fn(&Lock) -> Lock,
    cause: fn(&TestServer, &mut Control),
}

const LOSSES: [Loss; 6] = [
    Loss {
        reason: LossReason::LeaseOver,
        take: |lock| lock.lease(ms(100)),
        cause: |_, _| {},
    },
    Loss {
        reason: LossReason::MaxHold,
        take: |lock| lock.max_hold(ms(100)),
        cause: |_, _| {},
    },
    Loss {
        reason: LossReason::Gone,
        take: Lock::clone,
        cause: |_, control| _ = control.run(&["DEL", "a"]),
    },
    Loss {
        reason: LossReason::Taken,
        take: Lock::clone,
        cause: |_, control| {
            control.run(&["DEL", "a"]);
            control.run(&["HSET", "a", "another:1", "1"]);
        },
    },
    Loss {
        reason: LossReason::Changed,
        take: Lock::clone,
        cause: |_, control| _ = control.run(&["SET", "a", "text"]),
    },
    Loss {
        reason: LossReason::NotRenewed,
        take: Lock::clone,
        cause: |server, _| server.pause(),
    },
];

async fn client(server: &TestServer) -> LockClient {
    server
        .client_with(|builder| builder.watchdog_timeout(ms(1_500)).command_timeout(ms(450)))
        .await
}

#[tokio::test]
async fn a_lost_hold_answers_the_deadline_that_it_had_or_when_it_was_lost() {
    for Loss {
        reason,
        take,
        cause,
    } in LOSSES
    {
        let server = TestServer::new();
        let client = client(&server).await;
        let lock = take(&client.lock("a"));
        let guard = lock.lock().await.expect("free");
        let (handle, before) = (guard.handle(), guard.valid_until());
        let asked = Instant::now();
        cause(&server, &mut server.control());
        assert_eq!(within(LONG, guard.lost()).await, Some(reason));
        let name = format!("{reason:?}");
        let known = has_passed(&name, || guard.valid_until());
        assert_eq!(has_passed(&name, || handle.valid_until()), known);
        match reason {
            LossReason::LeaseOver | LossReason::MaxHold => assert_eq!(known, before),
            LossReason::NotRenewed => assert!(known >= before, "{name}"),
            _ => assert!((asked..).contains(&known), "{name}"),
        }
        server.resume();
        let unlocked = guard.unlock().await;
        assert!(unlocked.is_err(), "{name}: it was lost");
        assert_eq!(has_passed(&name, || handle.valid_until()), known);
        assert_eq!(handle.state(), HoldState::Lost(reason));
        let mut control = server.control();
        control.run(&["DEL", "a"]);
        drop(handle);
        server.finish([client]).await;
    }
}

#[tokio::test]
async fn a_released_hold_answers_when_it_was_released_also_while_its_unlock_is_under_way() {
    let server = TestServer::new();
    let client = client(&server).await;
    let lock = client.lock("a");

    let guard = lock.lock().await.expect("free");
    let handle = guard.handle();
    let before = Instant::now();
    guard.unlock().await.expect("held");
    let known = has_passed("unlocked", || handle.valid_until());
    assert!(known >= before);
    drop(handle);

    let guard = lock.lock().await.expect("free");
    let handle = guard.handle();
    drop(guard);
    has_passed("dropped", || handle.valid_until());
    drop(handle);

    let guard = lock.lock().await.expect("free");
    let handle = guard.handle();
    guard.detach();
    assert!(
        handle.valid_until() > Instant::now(),
        "held, without a guard"
    );
    lock.unlock().await.expect("the detached hold");
    has_passed("detached and unlocked", || handle.valid_until());
    drop(handle);

    // The outer hold goes on.
    let outer = lock.lock().await.expect("free");
    let inner = lock.lock().await.expect("nested");
    let handle = inner.handle();
    inner.unlock().await.expect("held");
    has_passed("nested", || handle.valid_until());
    drop(handle);
    assert!(outer.valid_until() > Instant::now());

    let handle = outer.handle();
    server.pause();
    let unlock = tokio::spawn(outer.unlock());
    eventually("it is being released", LONG, || {
        client.stats().releasing == 1
    })
    .await;
    let known = has_passed("while it is released", || handle.valid_until());
    server.resume();
    within(LONG, unlock)
        .await
        .expect("answered")
        .expect("no panic")
        .expect("held");
    assert_eq!(has_passed("unlocked", || handle.valid_until()), known);
    drop(handle);
    server.finish([client]).await;
}

#[tokio::test]
async fn a_hold_of_a_closed_client_answers_when_it_was_closed() {
    let server = TestServer::new();
    let client = client(&server).await;
    let guard = client.lock("a").lock().await.expect("free");
    let before = Instant::now();
    client.close(Duration::ZERO).await;
    assert_eq!(guard.state(), HoldState::Lost(LossReason::Closed));
    let known = has_passed("closed", || guard.valid_until());
    assert!(known >= before);
    let handle = guard.handle();
    drop(guard);
    assert_eq!(
        has_passed("closed, and dropped", || handle.valid_until()),
        known
    );
}

#[tokio::test]
async fn several_locks_answer_the_end_of_the_first_that_ended() {
    let (one, two) = (TestServer::new(), TestServer::new());
    let clients = [client(&one).await, client(&two).await];
    let multi = MultiLock::new([clients[0].lock("a"), clients[1].lock("b")]).expect("two locks");

    let guard = multi.lock().await.expect("free");
    let members: Vec<_> = guard.members().iter().map(|hold| hold.handle()).collect();
    two.control().run(&["DEL", "b"]);
    within(LONG, guard.lost()).await.expect("lost");
    let known = has_passed("one is lost", || guard.valid_until());
    assert!(members[0].valid_until() > Instant::now(), "it is held");
    let unlocked = guard.unlock().await;
    assert!(unlocked.is_err(), "one was lost");
    let first = members.iter().map(|hold| hold.valid_until()).min();
    assert_eq!(first, Some(known));
    drop(members);

    let (before, mut seen) = (Instant::now(), None);
    let ran = multi.run(async |held| {
        seen = Some(held);
        Ok::<_, redisson_lock::Error>(())
    });
    ran.await.expect("free");
    let held = seen.expect("it ran");
    assert_eq!(held.state(), HoldState::Released);
    assert!(has_passed("released", || held.valid_until()) >= before);
    drop(held);

    let guard = multi.lease(ms(100)).lock().await.expect("free");
    let until = guard.valid_until();
    within(LONG, guard.lost()).await.expect("its leases end");
    assert_eq!(
        has_passed("its leases are over", || guard.valid_until()),
        until
    );
    drop(guard);
    let [first, second] = clients;
    two.finish([second, first]).await;
    one.finish([]).await;
}

#[tokio::test]
async fn a_red_lock_answers_when_its_quorum_was_over() {
    let servers = [TestServer::new(), TestServer::new(), TestServer::new()];
    let mut clients = Vec::new();
    for server in &servers {
        clients.push(client(server).await);
    }
    let red = RedLock::new(clients.iter().map(|client| client.lock("a"))).expect("three servers");

    // A lease that ends by itself, and that no step may have noticed.
    // Short, and longer than a busy machine needs for a quorum.
    let guard = red.lease(ms(1_000)).lock().await.expect("free");
    let until = guard.valid_until();
    within(LONG, guard.lost()).await.expect("its leases end");
    let known = has_passed("its leases are over", || guard.valid_until());
    // A member that answers late may have more.
    assert!(known >= until);
    drop(guard);

    let guard = red.lock().await.expect("free");
    eventually("all have it", LONG, || guard.servers() == 3).await;
    let before = Instant::now();
    servers[0].control().run(&["DEL", "a"]);
    eventually("two have it", LONG, || guard.servers() == 2).await;
    assert!(guard.valid_until() > Instant::now(), "a quorum has it");
    servers[1].control().run(&["DEL", "a"]);
    within(LONG, guard.lost()).await.expect("lost");
    let known = has_passed("the quorum is gone", || guard.valid_until());
    assert!(known >= before);
    let unlocked = guard.unlock().await;
    assert!(unlocked.is_err(), "it was lost");

    let (before, mut seen) = (Instant::now(), None);
    let ran = red.run(async |held| {
        seen = Some(held);
        Ok::<_, redisson_lock::Error>(())
    });
    ran.await.expect("free");
    let held = seen.expect("it ran");
    assert_eq!(held.state(), HoldState::Released);
    assert!(has_passed("released", || held.valid_until()) >= before);
    drop(held);
    let [first, second, third] = servers;
    third.finish(clients).await;
    drop((first, second));
}

#[test]
fn the_blocking_guards_answer_the_same() {
    use redisson_lock::blocking::{MultiLock, RedLock};

    let server = test_support::Server::start();
    let builder = LockClient::builder();
    let client = builder.connect_blocking(&server.url()).expect("it answers");
    let lock = client.lock("a").lease(ms(100));
    let guard = lock.lock().expect("free");
    let until = guard.valid_until();
    assert!(guard.lost_within(LONG).expect("waited").is_some());
    assert_eq!(has_passed("a lock", || guard.valid_until()), until);

    let multi = MultiLock::new([client.lock("b"), client.lock("c")]).expect("two locks");
    let guard = multi.lease(ms(100)).lock().expect("free");
    let until = guard.valid_until();
    assert!(guard.lost_within(LONG).expect("waited").is_some());
    assert_eq!(has_passed("two locks", || guard.valid_until()), until);

    let servers = [0, 1].map(|_| test_support::Server::start());
    let others = servers.each_ref().map(|server| {
        let builder = LockClient::builder();
        builder.connect_blocking(&server.url()).expect("it answers")
    });
    let members = others.iter().chain([&client]);
    let red = RedLock::new(members.map(|client| client.lock("d"))).expect("three servers");
    let guard = red.lease(ms(1_000)).lock().expect("free");
    let until = guard.valid_until();
    assert!(guard.lost_within(LONG).expect("waited").is_some());
    // A member that answers late may have more.
    assert!(has_passed("a red lock", || guard.valid_until()) >= until);
}

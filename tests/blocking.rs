//! The blocking client: every verb on plain threads, what it does inside of a tokio runtime, and that
//! a program that ends leaves no lock behind.

use std::cell::RefCell;
use std::net::TcpListener;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::time::{Duration, Instant};

use redisson_lock::LockClientBuilder;
use redisson_lock::blocking::{
    DistributedLock, HeldLock, Lock, LockClient, LockGuard, MultiLock, RedLock,
};
use redisson_lock::{Error, HoldState, LockKind, LossReason, TryLock};
use test_support::kinds::{NESTED, against};
use test_support::{Proxy, RELEASE, Server, assert_matches, is_script, ms, stalls, test};
use tokio::runtime::{Builder, Runtime};

const COMMAND: u64 = 1000;

/// Far more than anything here takes; a bound, not a wait.
const LONG: Duration = Duration::from_secs(20);

fn builder() -> LockClientBuilder {
    redisson_lock::LockClient::builder()
}

fn client(server: &Server) -> LockClient {
    client_with(server, |builder| builder)
}

fn client_with(
    server: &Server,
    set: impl FnOnce(LockClientBuilder) -> LockClientBuilder,
) -> LockClient {
    let connected = set(builder()).connect_blocking(&server.url());
    connected.expect("the server answers")
}

fn until(what: &str, mut fact: impl FnMut() -> bool) {
    let limit = Instant::now() + LONG;
    while !fact() {
        assert!(Instant::now() < limit, "not within {LONG:?}: {what}");
        std::thread::sleep(ms(3));
    }
}

/// Runs a part of a test on a thread of its own, with a limit: what hangs fails.
fn bounded<T: Send + 'static>(part: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, ends) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let value = part();
        let _ = done.send(());
        value
    });
    if let Err(mpsc::RecvTimeoutError::Timeout) = ends.recv_timeout(LONG) {
        panic!("not within {LONG:?}");
    }
    thread.join().expect("no panic")
}

#[test]
fn public_types_are_send_sync_and_static() {
    fn check<T: Send + Sync + 'static>() {}
    check::<LockClient>();
    check::<LockClientBuilder>();
    check::<Lock>();
    check::<LockGuard>();
}

#[test]
fn a_lock_is_taken_nested_and_released_by_one_thread_with_a_field_as_java_writes_it() {
    let server = Server::start();
    let mut control = server.control();
    let client = client(&server);
    let stock = client.lock("stock:42");
    assert_eq!(stock.name(), "stock:42");
    assert!(!stock.is_locked().expect("answered"));

    let outer = stock.lock().expect("free");
    let field = outer.owner().to_string();
    assert_eq!(control.hash("stock:42"), format!("{field} 1"));
    let (id, thread) = field.split_once(':').expect("id:threadId");
    assert_eq!(id, client.id());
    assert_eq!(id.len(), 36);
    assert_eq!(thread.parse(), Ok(outer.owner().thread_id()));
    assert!(outer.owner().thread_id() > 0, "a Java thread id is a long");
    assert!((25_000..=30_000).contains(&control.pttl("stock:42")));

    let inner = stock.try_lock().expect("answered").expect("re-entered");
    assert_eq!(inner.owner(), outer.owner());
    assert_eq!(stock.hold_count().expect("answered"), 2);
    assert!(stock.is_held().expect("answered"));
    assert!(stock.lease_left().expect("answered").expect("a lease") > Duration::from_secs(20));
    let holder = stock.inspect().expect("answered").expect("held");
    assert_eq!((holder.owner, holder.hold_count), (field, 2));
    assert_eq!(stock.check().expect("answered"), [""; 0]);

    inner.unlock().expect("held");
    assert_eq!(control.count("stock:42"), 1);
    outer.unlock().expect("held");
    assert_eq!(control.hash("stock:42"), "");
    assert_eq!(client.stats().held, 0);
    assert!(!stock.is_held().expect("answered"));
}

#[test]
fn two_threads_exclude_each_other() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 50;
    let server = Server::start();
    let client = client(&server);
    // Read and written apart: it counts right only if nobody comes in between.
    let sum = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (lock, sum) = (client.lock("sum"), Arc::clone(&sum));
            move || {
                for _ in 0..ROUNDS {
                    let guard = lock.lock().expect("acquired");
                    let before = sum.load(Ordering::Relaxed);
                    std::thread::yield_now();
                    sum.store(before + 1, Ordering::Relaxed);
                    guard.unlock().expect("held");
                }
            }
        })
        .map(std::thread::spawn)
        .collect();
    bounded(move || {
        for thread in threads {
            thread.join().expect("no panic");
        }
    });
    assert_eq!(sum.load(Ordering::Relaxed), THREADS * ROUNDS);
    assert_eq!(client.stats().acquired_total, THREADS * ROUNDS);
}

#[test]
fn another_thread_finds_the_lock_held_waits_for_it_and_gives_up_in_time() {
    let server = Server::start();
    let client = client(&server);
    let lock = client.lock("a");
    let guard = lock.lock().expect("free");
    let elsewhere = lock.clone();
    bounded(move || {
        assert!(elsewhere.try_lock().expect("answered").is_none());
        assert!(!elsewhere.is_held().expect("answered"), "another thread");
        assert_matches!(elsewhere.unlock(), Err(Error::NotHeld { .. }));
        let start = Instant::now();
        let waited = elsewhere.try_lock_for(ms(300)).expect("answered");
        assert!(waited.is_none());
        assert!(start.elapsed() >= ms(300));
        let deadline = Instant::now() + ms(300);
        let waited = elsewhere.try_lock_until(deadline).expect("answered");
        assert!(waited.is_none());
        assert!(Instant::now() >= deadline);
    });
    let (done, acquires) = mpsc::channel();
    let waiter = std::thread::spawn(move || {
        let guard = lock.try_lock_for(LONG).expect("answered");
        let _ = done.send(());
        guard.expect("in time").unlock()
    });
    until("it waits", || client.stats().waiting == 1);
    assert!(acquires.try_recv().is_err(), "it is held");
    guard.unlock().expect("held");
    acquires.recv_timeout(LONG).expect("woken");
    waiter.join().expect("no panic").expect("held");
}

#[test]
fn the_server_is_asked_who_holds_whether_it_is_there_and_what_is_permitted() {
    let server = Server::start();
    let (ours, theirs) = (
        client_with(&server, |builder| builder.client_name("ours")),
        client(&server),
    );
    let lock = ours.lock("a").retry_for(ms(10));
    let TryLock::Acquired(held) = lock.try_lock_or_holder().expect("asked") else {
        panic!("it is free")
    };
    let busy = theirs.lock("a").try_lock_or_holder().expect("asked");
    let TryLock::Busy { holder: Some(by) } = busy else {
        panic!("{busy:?}")
    };
    assert_eq!(by.owner, held.owner().to_string());
    held.unlock().expect("held");
    assert!(ours.is_connected() && ours.ping().expect("it answers") < LONG);
    assert_eq!(ours.check("a").expect("answered"), Vec::<String>::new());
    let connections = server.control().run(&["CLIENT", "LIST"]);
    assert_eq!(
        connections.matches(" name=ours ").count(),
        1,
        "{connections}"
    );
}

#[test]
fn owners_that_are_given_are_the_same_for_every_thread() {
    let server = Server::start();
    let client = client(&server);
    let owner = client.owner_with_id(-7);
    let lock = client.lock("a").owned_by(&owner);
    let guard = lock.lock().expect("free");
    assert_eq!(guard.owner(), &owner);
    let elsewhere = lock.clone();
    bounded(move || {
        let inner = elsewhere.try_lock().expect("answered").expect("re-entered");
        assert_eq!(elsewhere.hold_count().expect("answered"), 2);
        inner.detach();
    });
    let other = client.lock("a").owned_by(&client.owner());
    assert!(other.try_lock().expect("answered").is_none());
    guard.unlock().expect("held");
    lock.unlock().expect("the detached hold");
    assert!(!lock.is_locked().expect("answered"));
}

#[test]
fn a_fixed_lease_ends_is_extended_and_its_loss_is_waited_for() {
    let server = Server::start();
    let mut control = server.control();
    let client = client(&server);
    let lock = client.lock("a");
    let guard = lock.lease(ms(250)).lock().expect("free");
    assert!(control.pttl("a") <= 250);
    assert!(!guard.is_lost());
    assert_eq!(guard.lost_within(Duration::ZERO).expect("waited"), None);
    let reason = guard.lost_within(LONG).expect("waited");
    assert_eq!(reason, Some(LossReason::LeaseOver));
    assert!(guard.is_lost());
    assert!(guard.valid_until() <= Instant::now());
    let unlocked = guard.unlock();
    assert_matches!(unlocked, Err(Error::Lost { .. }));

    let guard = lock.lease(Duration::from_secs(5)).lock().expect("free");
    guard.extend(Duration::from_secs(60)).expect("held");
    assert!(control.pttl("a") > 50_000);
    guard.unlock().expect("held");
    let watched = lock.lock().expect("free");
    let extended = watched.extend(ms(500));
    assert_matches!(extended, Err(Error::Misuse { .. }));
    let short = lock.lease(ms(1)).try_lock();
    assert_matches!(short, Err(Error::InvalidDuration { .. }));
    watched.unlock().expect("held");
}

#[test]
fn the_watchdog_renews_while_the_thread_is_busy() {
    let server = Server::start();
    let mut control = server.control();
    let client = client_with(&server, |builder| {
        builder.watchdog_timeout(ms(1500)).command_timeout(ms(450))
    });
    let guard = client.lock("a").lock().expect("free");
    // The worker of the client's own runtime does it, while this thread does nothing for it.
    until("renewed past the first lease", || {
        client.stats().renewed_total >= 4
    });
    assert_eq!(guard.state(), HoldState::Held);
    assert!(control.pttl("a") > 0);
    guard.unlock().expect("held");
}

#[test]
fn the_token_of_a_fenced_lock_grows_from_thread_to_thread() {
    let server = Server::start();
    let client = client(&server);
    let fenced = client.fenced_lock("a");
    assert_eq!(fenced.kind(), LockKind::Fenced);
    let outer = fenced.lock().expect("free");
    let inner = fenced.try_lock().expect("answered").expect("nested");
    assert_eq!(inner.token(), outer.token(), "of one thread");
    let first = outer.token();
    let elsewhere = fenced.clone();
    let waiter = std::thread::spawn(move || elsewhere.lock().expect("its turn").token());
    until("it waits", || client.stats().waiting == 1);
    inner.unlock().expect("held");
    outer.unlock().expect("held");
    let second = bounded(move || waiter.join().expect("no panic"));
    assert!(second > first, "{first} {second}");
    let third = fenced.run(|held| Ok::<_, Error>(held.token()));
    assert!(third.expect("it ran") > second);
}

#[test]
fn each_kind_excludes_other_threads_and_nests_in_its_own_or_refuses_to() {
    let server = Server::start();
    let mut control = server.control();
    let client = client(&server);
    let lock_of = |kind: LockKind| client.lock_of(kind, kind.to_string());
    let once = NESTED.map(|kind| lock_of(kind).non_reentrant());
    let once = once.into_iter().chain([client.string_lock("string")]);
    let nests = [
        client.lock("plain"),
        client.spin_lock("spin"),
        lock_of(LockKind::Fenced),
        client.fair_lock("fair"),
        client.rw_lock("read").read(),
        client.rw_lock("write").write(),
    ];
    assert_eq!(nests.each_ref().map(Lock::kind), NESTED);
    for (lock, nests) in nests
        .into_iter()
        .map(|lock| (lock, true))
        .chain(once.map(|lock| (lock, false)))
    {
        let (name, kind) = (lock.name().to_owned(), lock.kind());
        let guard = lock.lock().expect("free");
        let before = control.calls("evalsha");
        match lock.try_lock() {
            Ok(Some(nested)) if nests => nested.unlock().expect("held"),
            Err(Error::AlreadyHeld { .. }) if !nests => {
                assert_eq!(control.calls("evalsha"), before, "nothing was sent");
            }
            again => panic!("{kind}: {again:?}"),
        }
        let theirs = client.lock_of(against(kind), &*name);
        let elsewhere = theirs.clone();
        let busy = bounded(move || elsewhere.try_lock().expect("answered").is_none());
        assert!(busy, "{kind}");
        let waiter = std::thread::spawn(move || theirs.lock()?.unlock());
        until("it waits", || client.stats().waiting == 1);
        let queued = usize::from(kind == LockKind::Fair);
        let queue = || client.lock_of(kind, &name).queue().expect("asked").len();
        until("the server knows it", || queue() == queued);
        guard.unlock().expect("held");
        bounded(move || waiter.join().expect("no panic").expect("its turn"));
        assert_eq!(control.number(&["EXISTS", &name]), 0, "{kind}");
    }
}

#[test]
fn threads_read_beside_each_other_and_one_writes() {
    let server = Server::start();
    let client = client(&server);
    let report = client.rw_lock("report");
    assert_eq!(report.name(), "report");
    assert_eq!(report.inspect().expect("asked"), None);
    let reads = report.read().lock().expect("free");
    let elsewhere = report.clone();
    let (beside, writes) = bounded(move || {
        let beside = elsewhere.read().lock().expect("beside it");
        let holders = elsewhere.inspect().expect("asked").expect("held");
        beside.unlock().expect("held");
        let writes = elsewhere.write().try_lock().expect("asked");
        (holders, writes.is_some())
    });
    assert_eq!((beside.readers.len(), beside.writer), (2, None));
    assert!(!writes);
    let refused = report.write().lock();
    assert_matches!(refused, Err(Error::WouldDeadlock { .. }));
    reads.unlock().expect("held");
    let writes = report.write().lock().expect("free");
    let holders = report.inspect().expect("asked").expect("held");
    let writer = holders.writer.expect("it writes").owner;
    assert_eq!(writer, format!("{}:write", writes.owner()));
    writes.unlock().expect("held");
}

#[test]
fn several_locks_of_several_clients_are_one_for_a_thread() {
    let (server, second) = (Server::start(), Server::start());
    let (one, two) = (client(&server), client(&second));
    let both = MultiLock::new([one.lock("a"), two.lock("b")]).expect("two locks");
    let outer = both.lock().expect("free");
    let inner = both.lock().expect("nested by the same thread");
    inner.unlock().expect("held");
    let other = both.clone();
    let busy = bounded(move || other.try_lock().expect("asked").is_none());
    assert!(busy, "another thread");
    let owner = one.owner();
    assert!(both.owned_by(&owner).try_lock().expect("asked").is_none());
    outer.unlock().expect("held");
    let ran = both.run(|held| Ok::<_, Error>(held.members().len()));
    assert_eq!(ran.expect("ran"), 2);
    let leased = both.lease(ms(400)).try_lock_for(LONG).expect("asked");
    let leased = leased.expect("free");
    leased.extend(ms(500)).expect("held");
    assert_eq!(leased.lost_within(ms(20)).expect("waited"), None);
    let loss = leased.lost_within(LONG).expect("waited").expect("over");
    assert_eq!(loss.reason, LossReason::LeaseOver);
    assert_matches!(leased.unlock(), Err(Error::Lost { .. }));
    let swept = both.try_run(|_| Ok::<_, Error>(()));
    assert!(swept.expect("asked").is_some());
    drop(both.try_lock_until(Instant::now() + LONG).expect("asked"));
    drop((both, one, two));
    for (server, key) in [(&server, "a"), (&second, "b")] {
        assert_eq!(server.control().count(key), 0, "the last handle has waited");
    }
}

#[test]
fn one_lock_at_several_servers_is_one_for_a_thread() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let clients: Vec<_> = servers.iter().map(client).collect();
    let red = RedLock::new(clients.iter().map(|client| client.lock("red"))).expect("three");
    let guard = red.lock().expect("free");
    assert!(guard.servers() >= 2);
    assert_matches!(red.try_lock(), Err(Error::AlreadyHeld { .. }));
    let reversed = clients.iter().rev().map(|client| client.lock("red"));
    let reversed = RedLock::new(reversed).expect("three");
    let again = reversed.try_lock();
    assert_matches!(again, Err(Error::AlreadyHeld { .. }));
    let other = red.clone();
    assert!(bounded(move || other.try_lock().expect("asked").is_none()));
    guard.unlock().expect("held");
    let ran = red.run(|held| Ok::<_, Error>(held.is_lost()));
    assert!(!ran.expect("ran"));
    let leased = red.lease(ms(400)).try_lock_for(LONG).expect("asked");
    let leased = leased.expect("free");
    leased.extend(ms(500)).expect("held");
    assert_eq!(leased.lost_within(ms(20)).expect("waited"), None);
    let reason = leased.lost_within(LONG).expect("waited");
    assert_eq!(reason, Some(LossReason::LeaseOver));
    assert_matches!(leased.unlock(), Err(Error::Lost { .. }));
    // Its client releases what the lease has ended in the background.
    until("it is free", || {
        let count = |server: &Server| server.control().count("red");
        servers.iter().map(count).sum::<i64>() == 0
    });
    let owned = red.member_timeout(ms(900)).owned_by(&clients[1].owner());
    let ran = owned.try_run(|_| Ok::<_, Error>(()));
    assert!(ran.expect("asked").is_some());
    drop(owned.try_lock_until(Instant::now() + LONG).expect("asked"));
    drop((red, reversed, owned, clients));
    for server in &servers {
        assert_eq!(
            server.control().count("red"),
            0,
            "the last handles have waited"
        );
    }
}

/// A thread cannot be stopped: the body sees the loss and returns, and what it returned is discarded.
#[test]
fn a_leader_that_has_lost_its_lock_leads_again_and_only_the_body_of_a_holder_ends_it() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let clients: Vec<_> = servers.iter().map(client).collect();
    let locks = |name: &str| -> Vec<_> { clients.iter().map(|client| client.lock(name)).collect() };
    let (multi, red) = (MultiLock::new(locks("multi")), RedLock::new(locks("red")));
    let (single, multi, red) = (
        clients[0].lock("one"),
        multi.expect("locks"),
        red.expect("three"),
    );
    let ends = |name: &str| {
        for lock in locks(name) {
            let _ = lock.force_unlock();
        }
    };
    macro_rules! leads {
        ($lock:expr, $name:literal) => {{
            let mut begun = 0;
            let led = $lock.lead(|held| {
                begun += 1;
                if begun < 3 {
                    ends($name);
                    assert!(held.lost_within(LONG)?.is_some(), $name);
                }
                match begun {
                    1 => Err(Error::Closed),
                    begun => Ok(begun),
                }
            });
            assert_eq!(led.expect("the third body is a holder's"), 3, $name);
            assert!(
                $lock
                    .try_run_for(ms(500), |_| Ok::<_, Error>(()))
                    .expect("asked")
                    .is_some()
            );
        }};
    }
    leads!(single, "one");
    leads!(multi, "multi");
    leads!(red, "red");
}

/// What each lock does for code that does not know which it is.
fn takes_any<L: DistributedLock>(lock: &L, name: &str) {
    assert_eq!(lock.name(), name);
    let guard = lock.lock().expect("free");
    assert_eq!(
        (HeldLock::name(&guard), HeldLock::state(&guard)),
        (name, HoldState::Held)
    );
    let lost = HeldLock::lost_within(&guard, ms(10));
    assert_eq!(lost.expect("waited"), None);
    HeldLock::unlock(guard).expect("held");
    drop(lock.try_lock().expect("asked").expect("free"));
    let guard = lock.try_lock_for(LONG).expect("asked");
    HeldLock::unlock(guard.expect("free")).expect("held");
}

#[test]
fn code_that_takes_any_lock_takes_each_of_them() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let clients: Vec<_> = servers.iter().map(client).collect();
    let locks = || clients.iter().map(|client| client.lock("any"));
    takes_any(&clients[0].lock("any"), "any");
    takes_any(&MultiLock::new(locks()).expect("three"), "any, any, any");
    takes_any(&RedLock::new(locks()).expect("three"), "any");
}

#[test]
fn a_lock_that_needs_replicas_is_refused_where_there_are_none() {
    let server = Server::start();
    let client = client(&server);
    let refused = client
        .lock("a")
        .sync_replicas(1, ms(50))
        .try_lock_for(ms(300));
    assert_matches!(refused, Err(Error::TooFewReplicas { .. }));
}

#[test]
fn a_guard_of_several_locks_keeps_all_their_clients() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let counts = |key| servers.each_ref().map(|server| server.control().count(key));

    type Set<L> = fn(L, &LockClient) -> L;
    let ways: [Set<MultiLock>; 3] = [
        |multi, _| multi,
        |multi, _| multi.lease(LONG),
        |multi, client| multi.owned_by(&client.owner()),
    ];
    for (nth, way) in ways.into_iter().enumerate() {
        let clients: Vec<_> = servers.iter().map(client).collect();
        let multi = MultiLock::new(clients.iter().map(|client| client.lock("multi")));
        let multi = way(multi.expect("three"), &clients[0]);
        drop(clients);
        let guard = multi.lock().expect("free");
        drop(multi);
        assert_eq!(guard.lost_within(ms(50)).expect("waited"), None, "{nth}");
        assert_eq!(counts("multi"), [1; 3], "{nth}");
        drop(guard);
        let left = counts("multi");
        assert_eq!(left, [0; 3], "{nth}: the last handles have waited");
    }
    let ways: [Set<RedLock>; 4] = [
        |red, _| red,
        |red, _| red.lease(LONG),
        |red, _| red.member_timeout(ms(900)),
        |red, client| red.owned_by(&client.owner()),
    ];
    for (nth, way) in ways.into_iter().enumerate() {
        let clients: Vec<_> = servers.iter().map(client).collect();
        let red = RedLock::new(clients.iter().map(|client| client.lock("red")));
        let red = way(red.expect("three"), &clients[0]);
        drop(clients);
        let guard = red.lock().expect("free");
        until("all have it", || guard.servers() == 3);
        drop(red);
        assert_eq!(guard.lost_within(ms(50)).expect("waited"), None, "{nth}");
        assert_eq!(guard.servers(), 3, "{nth}");
        drop(guard);
        let left = counts("red");
        assert_eq!(left, [0; 3], "{nth}: the last handles have waited");
    }
}

#[test]
fn a_guard_dropped_in_another_thread_releases_the_hold_of_its_own() {
    let server = Server::start();
    let mut control = server.control();
    let client = client(&server);
    let lock = client.lock("a");
    let (outer, inner) = (lock.lock().expect("free"), lock.lock().expect("free"));
    let own = outer.owner().clone();
    bounded(move || drop(inner));
    until("released", || control.hash("a") == format!("{own} 1"));
    assert_eq!(outer.state(), HoldState::Held);
    bounded(move || outer.unlock()).expect("held");
    assert_eq!(control.hash("a"), "");
    // A thread that has ended leaves its guard, and nobody else is taken for it.
    let guard = bounded({
        let lock = lock.clone();
        move || lock.lock().expect("free")
    });
    assert!(lock.try_lock().expect("answered").is_none());
    drop(guard);
    until("released", || control.hash("a").is_empty());
}

#[test]
fn run_returns_the_value_reports_a_loss_and_releases_when_the_body_panics() {
    let server = Server::start();
    let mut control = server.control();
    let client = client(&server);
    let lock = client.lock("a");
    let nested = lock.run(|held| {
        assert_eq!(held.state(), HoldState::Held);
        lock.run(|_| lock.hold_count())
    });
    assert_eq!(nested.expect("answered"), 2);
    assert_eq!(control.hash("a"), "");

    // The body continues after the loss, which it sees, and its value is discarded.
    let finished = AtomicBool::new(false);
    let lost = lock.lease(ms(200)).run(|held| {
        until("lost", || held.is_lost());
        finished.store(true, Ordering::Relaxed);
        Ok::<_, Error>(())
    });
    assert!(finished.load(Ordering::Relaxed));
    let reason = match lost {
        Err(Error::Lost { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(reason, LossReason::LeaseOver);

    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        lock.run::<(), Error, _>(|_| panic!("as it should"))
    }));
    assert!(panicked.is_err());
    until("released", || control.hash("a").is_empty());
    let guard = client
        .lock("b")
        .owned_by(&client.owner())
        .lock()
        .expect("free");
    let body = |_: &redisson_lock::blocking::LockGuard| -> Result<(), Error> {
        panic!("it runs beside its holder")
    };
    assert_matches!(client.lock("b").try_run(body), Ok(None));
    assert_matches!(client.lock("b").try_run_for(ms(50), body), Ok(None));
    drop(guard);
    let ran = lock.try_run(|_| Ok::<_, Error>(7)).expect("answered");
    assert_eq!(ran, Some(7), "free again");
    let failed: Result<(), Error> = lock.run(|_| Err(Error::Closed));
    assert_matches!(failed, Err(Error::Closed), "the body's own error");
}

#[test]
fn a_forced_unlock_is_a_loss_and_close_ends_waiters_and_reports_open_guards() {
    let server = Server::start();
    let client = client(&server);
    let lock = client.lock("a");
    let guard = lock.lock().expect("free");
    assert!(lock.force_unlock().expect("answered"));
    let reason = guard.lost_within(LONG).expect("waited");
    assert_eq!(reason, Some(LossReason::Gone));
    drop(guard);

    let held = lock.lock().expect("free");
    let elsewhere = lock.clone();
    let waiter = std::thread::spawn(move || elsewhere.lock().map(drop));
    until("it waits", || client.stats().waiting == 1);
    let report = client.close(Duration::ZERO).expect("closed");
    assert_eq!(report.abandoned.len(), 1, "{report:?}");
    assert_eq!(report.abandoned[0].owner, held.owner().to_string());
    let waited = waiter.join().expect("no panic");
    assert_matches!(waited, Err(Error::Closed));
    assert_matches!(lock.try_lock(), Err(Error::Closed));
    assert_eq!(held.state(), HoldState::Lost(LossReason::Closed));
    let again = client.close(LONG).expect("closed");
    assert_eq!(again, Default::default());
}

/// Calls everything that waits, and says what did not fail as it should.
fn every_entry_point(server: &str, client: &LockClient, lock: &Lock, guards: [LockGuard; 2]) {
    fn refused<T: std::fmt::Debug>(what: &str, result: Result<T, Error>) {
        match result {
            Err(error @ Error::InsideRuntime) => {
                let text = error.to_string();
                assert!(text.contains("spawn_blocking"), "{text}");
                assert!(!text.ends_with('.'), "{text}");
            }
            other => panic!("{what}: {other:?}"),
        }
    }
    refused("connect", LockClient::connect(server));
    refused("builder", builder().connect_blocking(server));
    #[cfg(feature = "fred")]
    {
        let fred = fred::types::Builder::default_centralized().build();
        let fred = fred.expect("a client");
        refused("from_fred", builder().from_fred_blocking(&fred));
    }
    refused("close", client.close(Duration::ZERO));
    refused("lock", lock.lock());
    refused("try_lock", lock.try_lock());
    refused("try_lock_for", lock.try_lock_for(ms(1)));
    refused("try_lock_until", lock.try_lock_until(Instant::now()));
    refused("try_lock_or_holder", lock.try_lock_or_holder());
    refused("ping", client.ping());
    refused("check", client.check("a"));
    refused("run", lock.run::<(), Error, _>(|_| panic!("it is not run")));
    refused("unlock", lock.unlock());
    refused("force_unlock", lock.force_unlock());
    refused("is_locked", lock.is_locked());
    refused("is_held", lock.is_held());
    refused("hold_count", lock.hold_count());
    refused("lease_left", lock.lease_left());
    refused("inspect", lock.inspect());
    let [first, second] = guards;
    refused("extend", first.extend(LONG));
    refused("lost_within", first.lost_within(ms(1)));
    refused("guard.unlock", first.unlock());
    // What does not wait works.
    assert_eq!(second.state(), HoldState::Held);
    assert_eq!(client.stats().waiting, 0);
    drop(second);
}

fn runtimes() -> [Runtime; 2] {
    [
        Builder::new_current_thread().enable_all().build(),
        Builder::new_multi_thread().enable_all().build(),
    ]
    .map(|runtime| runtime.expect("runtime"))
}

#[test]
fn inside_of_a_runtime_every_call_fails_with_a_sentence_and_dropping_everything_is_fine() {
    let server = Server::start();
    let mut control = server.control();
    for (spawned, runtime) in [(false, 0), (false, 1), (true, 0), (true, 1)] {
        let [current, multi] = runtimes();
        let runtime = if runtime == 0 { current } else { multi };
        let (url, client) = (server.url(), client(&server));
        let lock = client.lock("a");
        let guards = [lock.lock().expect("free"), lock.lock().expect("free")];
        // The task has the last handles: it drops the client, and its runtime, inside of another.
        let calls = async move { every_entry_point(&url, &client, &lock, guards) };
        if spawned {
            let task = runtime.spawn(calls);
            runtime.block_on(task).expect("no panic");
        } else {
            runtime.block_on(calls);
        }
        until("released all the same", || control.hash("a").is_empty());
        until("its connections are closed", || control.connections() == 0);
    }
}

/// A server that does not respond would keep the thread of the runtime.
#[test]
fn the_last_handle_that_is_dropped_inside_of_a_runtime_does_not_wait() {
    let server = Server::start();
    let [current, _] = runtimes();
    let client = client(&server);
    let guard = client.lock("a").lock().expect("free");
    server.pause();
    let start = Instant::now();
    current.block_on(async move { drop((guard, client)) });
    let waited = start.elapsed();
    server.resume();
    assert!(waited < ms(COMMAND) / 2 + stalls(start), "{waited:?}");
}

#[test]
fn unpolled_threads_of_a_runtime_may_wait() {
    let server = Server::start();
    let mut control = server.control();
    let [_, multi] = runtimes();
    let client = client(&server);
    let sells = |client: LockClient| {
        move || {
            client
                .lock("a")
                .run(|_| Ok::<_, Error>(1))
                .expect("acquired")
        }
    };
    let (a, b) = (sells(client.clone()), sells(client.clone()));
    multi.block_on(async move {
        assert_eq!(tokio::task::spawn_blocking(a).await.expect("no panic"), 1);
        let waits = tokio::spawn(async move { tokio::task::block_in_place(b) });
        assert_eq!(waits.await.expect("no panic"), 1);
    });
    // A runtime that is entered, but does not poll.
    let _entered = multi.enter();
    let guard = client.lock("a").lock().expect("free");
    // The last handle of a client waits there, too.
    drop(client);
    drop(guard);
    assert_eq!(control.hash("a"), "");
}

#[test]
fn in_an_unconstrained_future_a_call_keeps_the_thread() {
    let server = Server::start();
    let client = client(&server);
    for runtime in runtimes() {
        let lock = client.lock("a");
        let called = runtime.block_on(tokio::task::unconstrained(async move { lock.lock() }));
        called.expect("free").unlock().expect("held");
    }
    client.lock("a").run(|_| Ok::<_, Error>(())).expect("free");
}

#[test]
fn a_server_that_is_away_is_an_error_in_time_and_the_end_does_not_wait_forever() {
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("redis://{}", nobody.local_addr().expect("an address"));
    drop(nobody);
    let builder = || {
        builder()
            .command_timeout(ms(COMMAND))
            .watchdog_timeout(ms(20 * COMMAND))
    };
    let start = Instant::now();
    let connected = builder().connect_blocking(&url);
    assert_matches!(connected, Err(Error::NoAnswer { .. }));
    assert!(start.elapsed() < LONG / 2, "{:?}", start.elapsed());
    let connected = builder().connect_blocking("http://127.0.0.1");
    assert_matches!(connected, Err(Error::InvalidConfig { .. }));

    let server = Server::start();
    let client = builder()
        .connect_blocking(&server.url())
        .expect("it answers");
    let guard = client.lock("a").lock().expect("free");
    server.pause();
    let start = Instant::now();
    let called = client.lock("b").lock();
    assert_matches!(called, Err(Error::NoAnswer { .. }));
    let called = client.lock("b").is_locked();
    assert_matches!(called, Err(Error::NoAnswer { .. }));
    drop(guard);
    // The last handle: it waits for releases that are not answered, as long as it is documented.
    let dropped = Instant::now();
    drop(client);
    let waited = dropped.elapsed();
    assert!(
        waited >= ms(2 * COMMAND),
        "it waits for an answer: {waited:?}"
    );
    assert!(waited < ms(4 * COMMAND) + stalls(dropped), "{waited:?}");
    assert!(start.elapsed() < LONG / 2, "{:?}", start.elapsed());
    server.resume();
}

#[test]
fn the_last_handle_waits_until_the_releases_are_answered() {
    const LOCKS: usize = 200;
    let server = Server::start();
    let mut control = server.control();
    let client = client(&server);
    let take = |n| client.lock(format!("l{n}")).lock().expect("free");
    let mut guards: Vec<LockGuard> = (0..LOCKS).map(take).collect();
    client.lock("detached").lock().expect("free").detach();
    assert_eq!(control.number(&["DBSIZE"]), LOCKS as i64 + 1);
    let last = guards.pop().expect("one");
    drop(client);
    drop(guards);
    assert!(!last.is_lost(), "a guard keeps its client");
    drop(last);
    // No waiting: all of it was answered before the drop returned.
    assert_eq!(control.number(&["DBSIZE"]), 0);
}

#[test]
fn the_last_handle_waits_for_longer_than_a_command_timeout_while_releases_are_answered() {
    const LOCKS: u64 = 2_500;
    // At most 256 releases are under way, so each is answered in time.
    const PASSING: u64 = 50;
    const TICK: u64 = 50;
    let server = Server::start();
    let mut control = server.control();
    let mut runtime = Builder::new_multi_thread();
    let runtime = runtime
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let proxy = runtime.block_on(Proxy::start(server.port));
    let builder = builder().command_timeout(ms(COMMAND));
    let client = builder.connect_blocking(&proxy.url()).expect("it responds");
    let take = |n| client.lock(format!("l{n}")).lock().expect("free");
    let guards: Vec<LockGuard> = (0..LOCKS).map(take).collect();
    // From here on the server knows the script.
    drop(take(LOCKS));
    until("released", || control.number(&["DBSIZE"]) == LOCKS as i64);
    let (pass, done) = (Arc::new(AtomicU64::new(0)), AtomicBool::new(false));
    let hold_unless_it_may_pass = || {
        let pass = Arc::clone(&pass);
        proxy.hold_commands(move |words| {
            let may_pass = |left: u64| left.checked_sub(1);
            let order = Ordering::SeqCst;
            is_script(words, RELEASE) && pass.fetch_update(order, order, may_pass).is_err()
        });
    };
    hold_unless_it_may_pass();
    drop(client);
    let start = Instant::now();
    let waited = std::thread::scope(|threads| {
        threads.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                std::thread::sleep(ms(TICK));
                pass.fetch_add(PASSING, Ordering::SeqCst);
                hold_unless_it_may_pass();
            }
        });
        drop(guards);
        done.store(true, Ordering::SeqCst);
        start.elapsed()
    });
    assert_eq!(control.number(&["DBSIZE"]), 0, "within {waited:?}");
    assert!(waited > ms(2 * COMMAND), "they took {waited:?}");
}

#[test]
fn threads_that_drop_a_client_together_leave_nothing() {
    let server = Server::start();
    let mut control = server.control();
    for _ in 0..10 {
        let client = client(&server);
        let together = Arc::new(Barrier::new(4));
        let drops = |n: usize| {
            let guard = client.lock(format!("l{n}")).lock().expect("free");
            let together = Arc::clone(&together);
            std::thread::spawn(move || {
                together.wait();
                drop(guard);
            })
        };
        let threads: Vec<_> = (0..4).map(drops).collect();
        drop(client);
        for thread in threads {
            thread.join().expect("no panic");
        }
        assert_eq!(control.number(&["DBSIZE"]), 0);
        until("its connections are closed", || control.connections() == 0);
    }
}

thread_local! {
    static KEPT: RefCell<Option<LockGuard>> = const { RefCell::new(None) };
}

#[test]
fn a_thread_that_ends_drops_the_last_handle_with_its_own_data() {
    let server = Server::start();
    let mut control = server.control();
    // What a thread uses first is dropped last: once tokio's own data are gone by then, once not.
    for ours_first in [true, false] {
        let url = server.url();
        bounded(move || {
            let keep = || KEPT.with_borrow_mut(|_| ());
            if ours_first {
                keep();
            }
            let client = LockClient::connect(&url).expect("the server answers");
            let guard = client.lock("a").lock().expect("free");
            KEPT.with_borrow_mut(|kept| *kept = Some(guard));
        });
        until("released", || control.hash("a").is_empty());
        until("its connections are closed", || control.connections() == 0);
    }
}

/// How the program of the next test ends, and where its server is.
const ENDS: &str = "REDISSON_LOCK_TEST_ENDS";
const URL: &str = "REDISSON_LOCK_TEST_URL";

/// Started again as a program of its own, which ends with a lock held.
#[test]
fn a_program_that_ends_releases_its_locks() -> Result<(), Error> {
    if let Ok(ends) = std::env::var(ENDS) {
        let url = std::env::var(URL).expect("given");
        return holds_until_its_end(&url, &ends);
    }
    let server = Server::start();
    let mut control = server.control();
    for (ends, succeeds, left) in [
        ("at its end", true, 0),
        ("by ?", false, 0),
        ("by a panic", false, 0),
        ("closed", true, 0),
        // Nothing is dropped: this is what the others are told apart from.
        ("exit", true, 1),
    ] {
        let output = ends_as(ends, &server);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("held"), "{ends}: {output:?}");
        assert_eq!(output.status.success(), succeeds, "{ends}: {output:?}");
        assert_eq!(control.number(&["EXISTS", "held"]), left, "{ends}");
        assert_eq!(control.number(&["EXISTS", "nested"]), left, "{ends}");
        control.run(&["DEL", "held", "nested"]);
    }
    Ok(())
}

fn ends_as(ends: &str, server: &Server) -> Output {
    let program = std::env::current_exe().expect("this binary");
    let mut program = Command::new(program);
    program.args(["--exact", "a_program_that_ends_releases_its_locks"]);
    // With one thread the test is run by the main thread, and its end is the end of `main`.
    program.args(["--nocapture", "--test-threads=1"]);
    program.env(ENDS, ends).env(URL, server.url());
    let output = bounded(move || program.output());
    output.expect("started")
}

fn holds_until_its_end(url: &str, ends: &str) -> Result<(), Error> {
    let client = LockClient::connect(url)?;
    let _held = client.lock("held").lock()?;
    let nested = client.lock("nested");
    let _outer = nested.lock()?;
    let _inner = nested.lock()?;
    println!("held: {}", nested.is_held()?);
    match ends {
        "at its end" => Ok(()),
        "by ?" => client.lock("").lock().map(drop),
        "by a panic" => panic!("as it should"),
        "exit" => std::process::exit(0),
        "closed" => {
            // As in a program whose client is in a `static`: what it has open is released here.
            drop((_held, _inner, _outer));
            let report = client.close(LONG)?;
            assert_eq!(report.unconfirmed, 0);
            std::process::exit(0)
        }
        other => unreachable!("{other}"),
    }
}

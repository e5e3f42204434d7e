//! One lock across several servers: with a quorum and never without, whatever stops, comes back or answers late.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use redisson_lock::{
    AnyLock, DistributedLock, Error, HeldLock, HoldState, Lock, LockClient, LockClientBuilder,
    LossReason, MultiLock, RedGuard, RedLock,
};
use test_support::kinds::load_scripts;
use test_support::tokio::sync::mpsc;
use test_support::{
    Monitor, Proxy, Steps, TestServer, assert_matches, eventually, may_take, ms, stalls, test,
    tokio, within,
};

/// Far more than a round takes, also on a machine that is busy.
const MEMBER: Duration = Duration::from_millis(1_000);

/// Independent servers, with a client of each for us and for others.
struct Servers {
    servers: Vec<TestServer>,
    ours: Vec<LockClient>,
    theirs: Vec<LockClient>,
}

impl Servers {
    async fn new(count: usize) -> Self {
        Self::with(count, |builder| builder.command_timeout(ms(2_000))).await
    }

    async fn with(count: usize, set: fn(LockClientBuilder) -> LockClientBuilder) -> Self {
        let servers: Vec<_> = (0..count).map(|_| TestServer::new()).collect();
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for server in &servers {
            for clients in [&mut ours, &mut theirs] {
                clients.push(server.client_with(set).await);
            }
        }
        Self {
            servers,
            ours,
            theirs,
        }
    }

    fn red(clients: &[LockClient]) -> RedLock {
        let members = clients.iter().map(|client| client.lock("red"));
        RedLock::new(members)
            .expect("servers of their own")
            .member_timeout(MEMBER)
    }

    fn lock(&self) -> RedLock {
        Self::red(&self.ours)
    }

    fn other(&self) -> RedLock {
        Self::red(&self.theirs)
    }

    /// At how many servers the key is.
    fn keys(&self) -> i64 {
        let exists = |server: &TestServer| server.control().number(&["EXISTS", "red"]);
        self.servers.iter().map(exists).sum()
    }

    /// How many script calls all of them have had.
    fn calls(&self) -> i64 {
        let calls = |server: &TestServer| server.control().calls("evalsha");
        self.servers.iter().map(calls).sum()
    }

    /// Waits until no client releases anything.
    async fn idle(&self) {
        let releases = |client: &LockClient| client.stats().releasing > 0;
        eventually("all is released", ms(10_000), || {
            !self.ours.iter().any(releases)
        })
        .await;
    }

    /// Waits until no server has anything of an earlier call, or is asked by one.
    async fn settled(&self) {
        let clients = || self.ours.iter().chain(&self.theirs);
        eventually("no client has anything to do", ms(10_000), || {
            clients().all(|client| client.is_connected() && client.stats().entries == 0)
        })
        .await;
        eventually("nothing is left", ms(10_000), || self.keys() == 0).await;
    }

    async fn finish(mut self) {
        eventually("nothing is left", ms(10_000), || self.keys() == 0).await;
        let last = self.servers.pop().expect("servers");
        last.finish(self.ours.into_iter().chain(self.theirs)).await;
    }
}

/// Clients of three servers, of which two do not say who they are: `INFO` does not arrive, on a connection of its own.
struct Nameless {
    clients: Vec<LockClient>,
    proxies: Vec<Proxy>,
}

impl Nameless {
    async fn two_of(servers: &Servers) -> Self {
        let (mut clients, mut proxies) = (servers.ours.clone(), Vec::new());
        for (client, server) in clients.iter_mut().zip(&servers.servers).take(2) {
            let proxy = Proxy::start(server.port).await;
            let builder = LockClient::builder().command_timeout(ms(4_000));
            let connected = builder.connect(&proxy.url()).await;
            *client = connected.expect("it answers");
            proxy.hold_commands(|words| words[0] == "INFO");
            proxies.push(proxy);
        }
        Self { clients, proxies }
    }

    async fn close(self) {
        for client in &self.clients[..2] {
            client.close(ms(1_000)).await;
        }
        for proxy in self.proxies {
            proxy.stop().await;
        }
    }
}

async fn taken(lock: &RedLock) -> RedGuard {
    lock.try_lock().await.expect("asked").expect("free")
}

#[tokio::test]
async fn it_is_taken_with_a_quorum_and_never_without() {
    may_take(Duration::from_secs(180));
    for count in [3, 5] {
        let servers = Servers::new(count).await;
        let (lock, other) = (servers.lock(), servers.other());
        let quorum = count / 2 + 1;
        // Each alone is stopped.
        for nth in 0..count {
            servers.servers[nth].pause();
            let start = Instant::now();
            let guard = taken(&lock).await;
            let took = start.elapsed();
            let limit = MEMBER + ms(100) + stalls(start);
            assert!(took < limit, "without {nth} of {count}: {took:?}");
            assert!(other.try_lock().await.expect("asked").is_none());
            guard.unlock().await.expect("a quorum confirms");
            servers.servers[nth].resume();
            servers.settled().await;
        }
        // None is stopped, then one, and so on.
        for stopped in 0..=count {
            if stopped > 0 {
                servers.servers[stopped - 1].pause();
            }
            let start = Instant::now();
            let found = lock.try_lock().await;
            let took = start.elapsed();
            let limit = MEMBER + ms(100) + stalls(start);
            assert!(took < limit, "{stopped} of {count}: {took:?}");
            if count - stopped < quorum {
                assert_matches!(found, Err(Error::NoAnswer { .. }), "{stopped} of {count}");
                continue;
            }
            let guard = found.expect("a quorum answers").expect("free");
            assert!(guard.servers() >= quorum);
            assert!(guard.valid_until() > Instant::now() + ms(25_000));
            assert!(
                other.try_lock().await.expect("asked").is_none(),
                "{stopped} of {count}"
            );
            let start = Instant::now();
            guard.unlock().await.expect("a quorum confirms");
            assert!(
                start.elapsed() < limit + stalls(start),
                "{:?}",
                start.elapsed()
            );
        }
        servers.servers.iter().for_each(|server| server.resume());
        let guard = within(ms(10_000), lock.lock())
            .await
            .expect("in time")
            .expect("all answer");
        guard.unlock().await.expect("held");
        servers.finish().await;
    }
}

#[tokio::test]
async fn whichever_server_is_killed_the_lock_is_held_by_the_others() {
    may_take(Duration::from_secs(180));
    for count in [3, 5] {
        let mut servers = Servers::new(count).await;
        let (lock, other) = (servers.lock(), servers.other());
        for nth in 0..count {
            let guard = within(ms(10_000), lock.lock())
                .await
                .expect("in time")
                .expect("free");
            // With exactly a quorum, the loss of one of it leaves too few to confirm the unlock.
            eventually("all have it", ms(10_000), || guard.servers() == count).await;
            servers.servers[nth].kill();
            assert!(other.try_lock().await.expect("a quorum answers").is_none());
            assert_eq!(guard.state(), HoldState::Held);
            guard.unlock().await.expect("a quorum confirms");
            let start = Instant::now();
            let theirs = within(ms(10_000), other.lock()).await.expect("in time");
            let took = start.elapsed();
            let limit = MEMBER + ms(100) + stalls(start);
            assert!(took < limit, "without {nth} of {count}: {took:?}");
            let theirs = theirs.expect("a quorum answers");
            theirs.unlock().await.expect("held");
            servers.servers[nth].start_again();
            servers.settled().await;
        }
        servers.finish().await;
    }
}

#[tokio::test]
async fn what_a_failed_round_has_is_given_back_and_waited_for() {
    let servers = Servers::new(3).await;
    let lock = servers.lock();
    let theirs = taken(&servers.other()).await;
    assert!(lock.try_lock().await.expect("asked").is_none());
    assert!(lock.try_lock_for(ms(300)).await.expect("asked").is_none());
    theirs.unlock().await.expect("held");
    eventually("free", ms(5_000), || servers.keys() == 0).await;
    // Another client holds one member alone: a quorum is free.
    let single = servers.theirs[0].lock("red").lock().await.expect("free");
    let guard = taken(&lock).await;
    assert_eq!(guard.servers(), 2);
    single.unlock().await.expect("held");
    eventually("the member is taken later", ms(5_000), || {
        guard.servers() == 3
    })
    .await;
    let waiting = tokio::spawn({
        let other = servers.other();
        async move { other.lock().await }
    });
    tokio::time::sleep(ms(200)).await;
    assert!(!waiting.is_finished());
    guard.unlock().await.expect("held");
    let theirs = within(ms(5_000), waiting).await.expect("in time");
    drop(theirs.expect("no panic").expect("free"));
    servers.finish().await;
}

#[tokio::test]
async fn a_server_that_answers_late_joins_and_after_the_end_is_released() {
    let servers = Servers::new(3).await;
    let lock = servers.lock();
    // So that the servers are known, and only the answer is late.
    taken(&lock).await.unlock().await.expect("held");
    // The quorum has confirmed that, and the third may not have been asked for long.
    eventually("free", ms(5_000), || {
        servers.ours.iter().all(|ours| ours.stats().entries == 0)
    })
    .await;
    servers.servers[2].pause();
    let guard = taken(&lock).await;
    assert_eq!(guard.servers(), 2);
    servers.servers[2].resume();
    eventually("it joins", ms(5_000), || guard.servers() == 3).await;
    assert_eq!(servers.keys(), 3);
    guard.unlock().await.expect("held");
    eventually("free", ms(5_000), || servers.keys() == 0).await;

    servers.servers[2].pause();
    let guard = taken(&lock).await;
    guard.unlock().await.expect("a quorum confirms");
    servers.servers[2].resume();
    // The question was executed when the server went on.
    eventually("it is released", ms(5_000), || {
        let stats = servers.ours[2].stats();
        stats.held + stats.releasing + stats.entries == 0
    })
    .await;
    servers.finish().await;
}

#[tokio::test]
async fn a_member_that_is_lost_is_taken_again_and_a_lost_quorum_is_final() {
    let servers = Servers::new(3).await;
    let watch = |client: &LockClient| client.lock("red").max_hold(ms(60_000));
    let short: Vec<_> = {
        let mut clients = Vec::new();
        for server in &servers.servers {
            clients.push(
                server
                    .client_with(|builder| builder.watchdog_timeout(ms(900)))
                    .await,
            );
        }
        clients
    };
    let lock = RedLock::new(short.iter().map(watch)).expect("three servers");
    let guard = taken(&lock).await;
    eventually("all have it", ms(5_000), || guard.servers() == 3).await;
    let before = servers.servers[0].control().run(&["HKEYS", "red"]);
    servers.servers[0].control().run(&["DEL", "red"]);
    eventually("it is taken again", ms(5_000), || {
        let now = servers.servers[0].control().run(&["HKEYS", "red"]);
        !now.is_empty() && now != before
    })
    .await;
    eventually("it is known", ms(5_000), || guard.servers() == 3).await;
    assert_eq!(guard.state(), HoldState::Held);

    // Two that another one has: the quorum is gone.
    for server in &servers.servers[..2] {
        let mut control = server.control();
        control.run(&["DEL", "red"]);
        control.run(&["HSET", "red", "another:1", "1"]);
        control.run(&["PEXPIRE", "red", "2500"]);
    }
    assert!(!guard.is_lost());
    let reason = within(ms(5_000), guard.lost()).await.expect("in time");
    assert!(guard.is_lost());
    assert_eq!(guard.state(), HoldState::Lost(reason));
    eventually("the third is released", ms(5_000), || {
        servers.servers[2].control().number(&["EXISTS", "red"]) == 0
    })
    .await;
    eventually("they are free again", ms(5_000), || servers.keys() == 0).await;
    tokio::time::sleep(ms(300)).await;
    assert_eq!(servers.keys(), 0, "a loss is final");
    assert_matches!(guard.extend(ms(5_000)).await, Err(Error::Lost { .. }));
    assert_matches!(guard.unlock().await, Err(Error::Lost { .. }));
    for client in short {
        client.close(Duration::ZERO).await;
    }
    servers.finish().await;
}

#[tokio::test]
async fn a_member_that_is_lost_is_taken_again_although_others_of_the_process_wait() {
    let servers = Servers::with(3, |builder| builder.watchdog_timeout(ms(900))).await;
    let lock = servers.lock();
    let guard = taken(&lock).await;
    eventually("all have it", ms(5_000), || guard.servers() == 3).await;
    // If each were in its way for a command timeout, it would be taken too late.
    let others = (0..8).map(|_| {
        let other = lock.owned_by(&servers.ours[0].owner());
        tokio::spawn(async move { other.lock().await?.unlock().await })
    });
    let others: Vec<_> = others.collect();
    tokio::time::sleep(ms(50)).await;
    assert!(!others.iter().any(tokio::task::JoinHandle::is_finished));
    let mut control = servers.servers[0].control();
    let before = control.run(&["HKEYS", "red"]);
    control.run(&["DEL", "red"]);
    eventually("it is taken again", ms(5_000), || {
        let now = control.run(&["HKEYS", "red"]);
        !now.is_empty() && now != before
    })
    .await;
    eventually("it is known", ms(5_000), || guard.servers() == 3).await;
    guard.unlock().await.expect("held");
    for other in others {
        let other = within(ms(5_000), other).await.expect("in time");
        other.expect("no panic").expect("free, and then held");
    }
    servers.finish().await;
}

#[tokio::test]
async fn a_quorum_of_which_some_are_at_risk_is_held_at_risk() {
    let set = |builder: LockClientBuilder| {
        let builder = builder.watchdog_timeout(ms(6_000));
        builder.command_timeout(ms(500))
    };
    let servers = Servers::with(3, set).await;
    let guard = taken(&servers.lock()).await;
    eventually("all have it", ms(2_000), || guard.servers() == 3).await;
    let silent = &servers.servers[..2];
    silent.iter().for_each(|server| server.pause());
    let state = || guard.state() == HoldState::AtRisk;
    eventually("at risk", ms(5_200), state).await;
    assert!(!guard.is_lost());
    assert_eq!(guard.servers(), 3, "those at risk have it too");
    silent.iter().for_each(|server| server.resume());
    let state = || guard.state() == HoldState::Held;
    eventually("renewed", ms(1_800), state).await;
    guard.unlock().await.expect("held all the time");
    servers.finish().await;
}

#[tokio::test]
async fn a_fixed_lease_ends_is_extended_by_a_quorum_and_is_not_by_a_minority() {
    let servers = Servers::new(3).await;
    let lock = servers.lock().lease(ms(4_000));
    let guard = taken(&lock).await;
    eventually("all have it", ms(3_000), || guard.servers() == 3).await;
    servers.servers[0].pause();
    guard.extend(ms(20_000)).await.expect("a quorum");
    let until = guard.valid_until();
    assert!(until > Instant::now() + ms(15_000));
    for server in &servers.servers[1..] {
        let left = server.control().pttl("red");
        assert!((15_000..=20_000).contains(&left), "{left}");
    }
    servers.servers[1].pause();
    let failed = guard.extend(ms(40_000)).await;
    assert_matches!(failed, Err(Error::NoAnswer { .. }));
    // The second longest of the three is one of the two that the quorum has confirmed.
    let moved = guard.valid_until().saturating_duration_since(until);
    assert!(moved < ms(2_000), "{moved:?}");
    servers.servers[..2]
        .iter()
        .for_each(|server| server.resume());
    guard.unlock().await.expect("a quorum");

    let start = Instant::now();
    let guard = within(ms(5_000), servers.lock().lease(ms(800)).lock()).await;
    let guard = guard.expect("in time").expect("free");
    let reason = within(ms(5_000), guard.lost()).await.expect("in time");
    assert_eq!(reason, LossReason::LeaseOver);
    assert!(
        start.elapsed() < ms(2_500) + stalls(start),
        "{:?}: not taken again",
        start.elapsed()
    );
    drop(guard);
    servers.finish().await;
}

#[tokio::test]
async fn tasks_of_one_process_queue_and_an_owner_has_it_once() {
    let servers = Servers::new(3).await;
    let lock = servers.lock();
    let guard = lock.lock().await.expect("free");
    for again in [lock.lock().await.map(Some), lock.try_lock().await] {
        assert_matches!(again, Err(Error::AlreadyHeld { .. }));
    }
    // The last server may still be asked.
    eventually("a hold waits for nothing", ms(5_000), || {
        servers
            .ours
            .iter()
            .all(|client| client.stats().waiting == 0)
    })
    .await;
    // Another one of the same set of locks, whatever its order.
    let mut reversed: Vec<_> = servers
        .ours
        .iter()
        .map(|client| client.lock("red"))
        .collect();
    reversed.reverse();
    let reversed = RedLock::new(reversed).expect("three servers");
    let again = within(ms(2_000), reversed.lock()).await.expect("in time");
    assert_matches!(again, Err(Error::AlreadyHeld { .. }));
    let calls = |servers: &Servers| -> i64 {
        let calls = |server: &TestServer| server.control().calls("evalsha");
        servers.servers.iter().map(calls).sum()
    };
    let before = calls(&servers);
    let owner = servers.ours[1].owner();
    assert!(
        reversed
            .owned_by(&owner)
            .try_lock()
            .await
            .expect("asked")
            .is_none()
    );
    assert_eq!(
        calls(&servers),
        before,
        "nothing is sent from behind another caller"
    );
    let inside = Arc::new(AtomicUsize::new(0));
    let task = |nth: usize| {
        let lock = if nth.is_multiple_of(2) {
            lock.clone()
        } else {
            reversed.clone()
        };
        let inside = Arc::clone(&inside);
        tokio::spawn(async move {
            for _ in 0..5 {
                let guard = lock.lock().await.expect("its turn comes");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "alone");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.unlock().await.expect("held");
            }
        })
    };
    let tasks: Vec<_> = (0..8).map(task).collect();
    guard.unlock().await.expect("held");
    for task in tasks {
        within(ms(20_000), task)
            .await
            .expect("in time")
            .expect("no panic");
    }
    servers.finish().await;
}

/// Four callers take turns for this long, two of each process.
async fn are_never_inside_together(locks: [RedLock; 2], time: Duration) {
    let inside = Arc::new(AtomicUsize::new(0));
    let end = Instant::now() + time;
    let task = |lock: RedLock| {
        let inside = Arc::clone(&inside);
        tokio::spawn(async move {
            let mut turns = 0;
            while Instant::now() < end {
                let guard = lock.lock().await.expect("its turn comes");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "alone");
                tokio::time::sleep(ms(2)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.unlock().await.expect("held");
                turns += 1;
            }
            turns
        })
    };
    let tasks: Vec<_> = (0..4).map(|nth| task(locks[nth % 2].clone())).collect();
    let mut turns = Vec::new();
    for task in tasks {
        turns.push(task.await.expect("no panic"));
    }
    println!("turns {turns:?}");
    assert!(turns.iter().all(|turns| *turns > 0), "{turns:?}");
}

#[tokio::test]
async fn callers_of_two_processes_are_never_inside_together() {
    let servers = Servers::new(3).await;
    are_never_inside_together([servers.lock(), servers.other()], ms(5_000)).await;
    servers.finish().await;
}

#[tokio::test]
async fn callers_of_two_processes_with_string_locks_are_never_inside_together() {
    let servers = Servers::new(3).await;
    let strings = [&servers.ours, &servers.theirs].map(|clients| {
        let members = clients.iter().map(|client| client.string_lock("red"));
        RedLock::new(members).expect("servers of their own")
    });
    are_never_inside_together(strings, ms(3_000)).await;
    servers.finish().await;
}

#[tokio::test]
async fn it_is_waited_for_until_a_deadline() {
    let servers = Servers::new(3).await;
    let lock = servers.lock();
    let theirs = taken(&servers.other()).await;
    let start = Instant::now();
    let found = lock.try_lock_until(start + ms(200)).await.expect("asked");
    let took = start.elapsed();
    assert!(found.is_none() && took >= ms(200), "{took:?}: {found:?}");
    assert!(took < ms(300) + MEMBER + stalls(start), "{took:?}");
    theirs.unlock().await.expect("held");
    let found = lock.try_lock_until(Instant::now() + ms(10_000)).await;
    let guard = found.expect("asked").expect("free");
    guard.unlock().await.expect("held");
    servers.finish().await;
}

/// A client whose user may not ask is taken to be at a server of its own.
#[tokio::test]
async fn servers_that_may_not_be_asked_who_they_are_are_counted_by_their_answers() {
    let servers = Servers::new(3).await;
    for server in &servers.servers {
        server
            .control()
            .run(&["ACL", "SETUSER", "default", "-info"]);
    }
    let guard = taken(&servers.lock()).await;
    eventually("all have it", ms(5_000), || guard.servers() == 3).await;
    guard.unlock().await.expect("held");
    servers.settled().await;
    // Two of these are at one server, which grants it to one of the two.
    let members = [&servers.ours[0], &servers.theirs[0], &servers.ours[1]];
    let lock = RedLock::new(members.map(|client| client.lock("red"))).expect("three clients");
    let guard = taken(&lock.member_timeout(MEMBER)).await;
    assert_eq!(guard.servers(), 2);
    guard.unlock().await.expect("both confirm");
    servers.settled().await;
    for server in &servers.servers {
        server
            .control()
            .run(&["ACL", "SETUSER", "default", "+info"]);
    }
    servers.finish().await;
}

/// Members may bring owners of their own. They say nothing about who calls.
#[tokio::test]
async fn owners_of_the_members_do_not_say_who_calls() {
    let servers = Servers::new(3).await;
    let red = |owners: bool| {
        let members = servers.ours.iter().map(|client| match owners {
            true => client.lock("red").owned_by(&client.owner()),
            false => client.lock("red"),
        });
        RedLock::new(members.collect::<Vec<_>>()).expect("three servers")
    };
    let (one, other) = (red(true), red(true));
    let guard = taken(&one).await;
    for lock in [&one, &other, &red(false)] {
        let again = within(ms(5_000), lock.try_lock()).await.expect("in time");
        assert_matches!(again, Err(Error::AlreadyHeld { .. }));
    }
    // Two tasks with one lock, whose members have one owner each, are two callers.
    let lock = one.clone();
    let task = tokio::spawn(async move { lock.try_lock().await });
    let found = task.await.expect("no panic").expect("asked");
    assert!(found.is_none(), "{found:?}");
    guard.unlock().await.expect("held");
    servers.finish().await;
}

/// The owners in the acquisitions that a server has executed.
fn acquiring_owners(lines: &[String]) -> Vec<String> {
    let acquires = lines
        .iter()
        .filter(|line| line.contains("\"EVALSHA\"") && !line.contains("redisson_lock__channel"));
    // The words in quotes: EVALSHA, its hash, the number of keys, the key, the owner.
    let owner = |line: &String| line.split('"').nth(9).expect("an owner").to_owned();
    acquires.map(owner).collect()
}

/// A slow server executes the question of an earlier round after that round was given back.
#[tokio::test]
async fn what_a_slow_server_grants_to_an_earlier_round_is_not_joined() {
    let servers = Servers::new(3).await;
    let lock = servers.lock().member_timeout(ms(200));
    taken(&lock).await.unlock().await.expect("held");
    servers.settled().await;
    let rival = servers.theirs[1].lock("red").lock().await.expect("free");
    let mut control = servers.servers[2].control();
    let monitor = Monitor::start(servers.servers[2].port);
    servers.servers[2].pause();
    let first = lock.try_lock().await.expect("two have answered");
    assert!(first.is_none(), "{first:?}");
    rival.unlock().await.expect("held");
    eventually("it is given back", ms(5_000), || {
        let two = &servers.ours[..2];
        two.iter().all(|ours| ours.stats().entries == 0)
    })
    .await;
    let guard = taken(&lock).await;
    assert_eq!(guard.servers(), 2);
    servers.servers[2].resume();
    eventually("it joins", ms(5_000), || guard.servers() == 3).await;
    // The first one is that of the earlier round.
    let owners = acquiring_owners(&monitor.take(&mut control));
    let joined = control.run(&["HKEYS", "red"]);
    assert!(owners.contains(&joined), "{joined} of {owners:?}");
    assert_ne!(owners[0], joined, "of {owners:?}");
    guard.unlock().await.expect("held");
    servers.finish().await;
}

#[tokio::test]
async fn servers_and_kinds_that_do_not_fit_are_refused() {
    let servers = Servers::new(3).await;
    let [one, two, three] = &servers.ours[..] else {
        panic!("three");
    };
    let refused = |members: Vec<Lock>| {
        let made = RedLock::new(members);
        assert_matches!(made, Err(Error::InvalidConfig { .. }));
    };
    refused(vec![one.lock("a"), two.lock("a")]);
    refused(vec![one.lock("a"), two.lock("a"), one.lock("b")]);
    refused(vec![one.lock("a"), two.lock("a"), three.spin_lock("a")]);
    // Two clients of one server: only the server can say so. Without the other server both have to vote.
    servers.servers[1].pause();
    let made = RedLock::new([one.lock("a"), two.lock("a"), servers.theirs[0].lock("b")]);
    let found = made.expect("made without a question").try_lock().await;
    assert_matches!(found, Err(Error::InvalidConfig { .. }));
    servers.servers[1].resume();
    // String locks, and a body that runs with them.
    let strings = [one, two, three].map(|client| client.string_lock("red"));
    let red = RedLock::new(strings).expect("three servers");
    let ran = red
        .run(|held| async move { Ok::<_, Error>(held.state()) })
        .await;
    assert_eq!(ran.expect("ran"), HoldState::Held);
    let ran = red.try_run(|_held| async { Ok::<_, Error>(1) }).await;
    assert_eq!(ran.expect("ran"), Some(1));
    servers.finish().await;
}

#[tokio::test]
async fn dropped_at_any_poll_it_leaves_nothing() {
    let servers = Servers::new(3).await;
    let lock = servers.lock();
    taken(&lock).await.unlock().await.expect("held");
    let mut finished = 0;
    for polls in 1..14 {
        let locking = lock.clone();
        let mut locking = Steps::of(async move { locking.lock().await });
        if let Some(guard) = locking.times(polls).await {
            drop(guard.expect("free").unlock());
            finished += 1;
        }
        drop(locking);
        let busy = || {
            servers.ours.iter().any(|client| {
                let stats = client.stats();
                stats.held + stats.waiting + stats.releasing + stats.entries > 0
            })
        };
        eventually("nothing is left", ms(5_000), || !busy()).await;
        assert_eq!(servers.keys(), 0, "{polls} polls");
    }
    assert!((1..13).contains(&finished), "{finished} of 13 were ready");
    servers.finish().await;
}

#[tokio::test]
async fn a_leader_leads_through_a_rolling_restart_of_all_servers() {
    may_take(Duration::from_secs(180));
    let mut servers = Servers::new(5).await;
    let mut clients = Vec::new();
    for server in &servers.servers {
        clients.push(
            server
                .client_with(|builder| builder.watchdog_timeout(ms(6_000)).command_timeout(ms(800)))
                .await,
        );
    }
    let lock = Servers::red(&clients);
    let (terms, held) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let leading = tokio::spawn({
        let (terms, held) = (Arc::clone(&terms), Arc::clone(&held));
        async move {
            lock.lead(|hold| {
                terms.fetch_add(1, Ordering::SeqCst);
                let held = Arc::clone(&held);
                async move {
                    loop {
                        held.store(hold.servers(), Ordering::SeqCst);
                        tokio::time::sleep(ms(10)).await;
                    }
                    #[allow(unreachable_code)]
                    Ok::<(), Error>(())
                }
            })
            .await
        }
    });
    let all = || held.load(Ordering::SeqCst) == 5;
    eventually("all have it", ms(10_000), all).await;
    for nth in 0..5 {
        servers.servers[nth].lose_everything();
        let mut control = servers.servers[nth].control();
        eventually("it is taken again", ms(15_000), || {
            control.number(&["EXISTS", "red"]) == 1
        })
        .await;
        eventually("it is known", ms(5_000), all).await;
    }
    assert_eq!(terms.load(Ordering::SeqCst), 1, "one term");
    leading.abort();
    for client in clients {
        client.close(ms(2_000)).await;
    }
    servers.finish().await;
}

/// One server has promised far more than the others.
#[tokio::test]
async fn a_term_is_over_when_the_first_renewals_are_overdue() {
    let servers = Servers::new(3).await;
    let mut clients = vec![servers.ours[0].clone()];
    for server in &servers.servers[1..] {
        let client = server.client_with(|builder| builder.watchdog_timeout(ms(6_000)));
        clients.push(client.await);
    }
    let lock = Servers::red(&clients);
    let (begun, mut begins) = mpsc::unbounded_channel();
    // The first is one of the quorum that the term begins with.
    servers.servers[1].pause();
    let leading = tokio::spawn(async move {
        lock.lead(|hold| {
            let _ = begun.send(hold);
            std::future::pending::<Result<(), Error>>()
        })
        .await
    });
    let hold = within(ms(5_000), begins.recv()).await.expect("in time");
    let hold = hold.expect("it leads");
    servers.servers[1].resume();
    let pauses = servers.servers[1..].iter();
    pauses.for_each(|server| server.pause());
    eventually("the term is over", ms(15_000), || {
        !matches!(hold.state(), HoldState::Held | HoldState::AtRisk)
    })
    .await;
    assert_eq!(hold.state(), HoldState::Released, "not before it was lost");
    leading.abort();
    let pauses = servers.servers[1..].iter();
    pauses.for_each(|server| server.resume());
    for client in &clients[1..] {
        client.close(ms(5_000)).await;
    }
    servers.finish().await;
}

#[tokio::test]
async fn a_pair_is_two_script_calls_a_server() {
    let servers = Servers::new(3).await;
    for lock in [servers.lock(), servers.lock().lease(ms(20_000))] {
        let mut controls: Vec<_> = servers
            .servers
            .iter()
            .map(|server| server.control())
            .collect();
        controls.iter_mut().for_each(load_scripts);
        let monitors: Vec<_> = servers
            .servers
            .iter()
            .map(|server| Monitor::start(server.port))
            .collect();
        // One answers its first call when that has ended: nothing is sent by its text then.
        servers.servers[2].pause();
        taken(&lock).await.unlock().await.expect("held");
        servers.servers[2].resume();
        // A quorum has said who it is; the others are asked in the background.
        for (monitor, control) in monitors.iter().zip(&mut controls) {
            eventually("it was asked who it is", ms(5_000), || {
                let lines = monitor.take(control);
                lines.iter().any(|line| line.contains("\"INFO\""))
            })
            .await;
        }
        servers.idle().await;
        for (monitor, control) in monitors.iter().zip(&mut controls) {
            monitor.take(control);
        }
        for _ in 0..100 {
            let guard = taken(&lock).await;
            within(ms(5_000), async {
                while guard.servers() < 3 {
                    tokio::task::yield_now().await;
                }
            })
            .await
            .expect("all answer");
            guard.unlock().await.expect("held");
            // Of a server that has not answered yet, the next round would find the hold.
            servers.idle().await;
        }
        tokio::time::sleep(ms(100)).await;
        for (monitor, control) in monitors.into_iter().zip(&mut controls) {
            let mut lines = monitor.take(control);
            lines.retain(|line| !line.contains(" lua]"));
            let is_script = |line: &&String| line.contains("\"EVALSHA\"");
            let scripts = lines.iter().filter(is_script).count();
            assert_eq!((scripts, lines.len()), (200, 200), "{lines:#?}");
        }
    }
    servers.finish().await;
}

/// Those that have answered after the quorum count too.
#[tokio::test]
async fn every_server_that_extends_the_lease_has_extended_it() {
    let mut servers = Servers::new(3).await;
    let guard = taken(&servers.lock().lease(ms(1_500))).await;
    eventually("all have it", ms(1_000), || guard.servers() == 3).await;
    servers.servers[2].pause();
    guard.extend(ms(20_000)).await.expect("two answer");
    servers.servers[2].resume();
    let first_end = Instant::now() + ms(1_500);
    eventually("the first leases are over", ms(5_000), || {
        Instant::now() > first_end + ms(300)
    })
    .await;
    let lost: u64 = servers.ours.iter().map(|c| c.stats().lost_total).sum();
    assert_eq!(lost, 0);
    assert_eq!(guard.servers(), 3);
    servers.servers[0].kill();
    assert_eq!(guard.state(), HoldState::Held);
    assert!(guard.valid_until() > Instant::now() + ms(10_000));
    guard.unlock().await.expect("two confirm");
    servers.servers[0].start_again();
    servers.finish().await;
}

#[tokio::test]
async fn the_next_caller_has_its_turn_when_the_quorum_is_lost() {
    let servers = Servers::new(3).await;
    let lock = servers.lock().lease(ms(500));
    let guard = taken(&lock).await;
    let reason = within(ms(5_000), guard.lost()).await.expect("in time");
    assert_eq!(reason, LossReason::LeaseOver);
    let again = lock.try_lock().await;
    assert_matches!(again, Err(Error::AlreadyHeld { .. }));
    let other = lock.owned_by(&servers.ours[0].owner());
    let next = within(ms(3_000), other.lock()).await.expect("in time");
    next.expect("free").unlock().await.expect("held");
    drop(guard);
    servers.finish().await;
}

/// The first acquisition asks the servers who they are, and two that have granted it say so only after its lease.
#[tokio::test]
async fn what_is_lost_during_the_first_check_is_not_returned() {
    let servers = Servers::new(3).await;
    let nameless = Nameless::two_of(&servers).await;
    let (start, lease) = (Instant::now(), ms(600));
    let lock = Servers::red(&nameless.clients).lease(lease);
    let found = lock.try_lock().await;
    assert!(start.elapsed() > lease, "it has not waited for the check");
    let found = found.expect("a quorum answers");
    assert!(found.is_none(), "its lease was over: {found:?}");
    // A call that waits makes another round, after the check.
    nameless.proxies.iter().for_each(Proxy::let_commands_go);
    let guard = within(ms(10_000), lock.lock()).await.expect("in time");
    guard
        .expect("a quorum answers")
        .unlock()
        .await
        .expect("held");
    drop(lock);
    nameless.close().await;
    servers.finish().await;
}

/// Only votes that count are waited for.
#[tokio::test]
async fn a_server_that_is_away_holds_up_no_first_call() {
    let servers = Servers::new(3).await;
    servers.servers[2].pause();
    let start = Instant::now();
    taken(&servers.lock()).await.unlock().await.expect("held");
    let took = start.elapsed();
    assert!(took < MEMBER / 2 + stalls(start), "{took:?}");
    servers.servers[2].resume();
    servers.finish().await;
}

#[tokio::test]
async fn a_server_that_was_away_says_who_it_is_when_it_is_back() {
    let servers = Servers::new(4).await;
    let members = servers.ours.iter().chain(&servers.theirs[3..]);
    let lock = RedLock::new(members.map(|client| client.lock("red"))).expect("five clients");
    let lock = lock.member_timeout(ms(500));
    servers.servers[3].pause();
    for _ in 0..2 {
        let start = Instant::now();
        taken(&lock).await.unlock().await.expect("three of five");
        let took = start.elapsed();
        assert!(took < ms(400) + stalls(start), "{took:?}");
        eventually("free", ms(5_000), || {
            let three = &servers.ours[..3];
            three.iter().all(|ours| ours.stats().entries == 0)
        })
        .await;
    }
    servers.servers[3].resume();
    let refused = refused_as_one_server(&lock).await;
    assert_matches!(refused, Error::InvalidConfig { .. });
    servers.finish().await;
}

/// What a call gets once the servers have said who they are, which a quorum does not wait for.
async fn refused_as_one_server(lock: &RedLock) -> Error {
    let refused = within(ms(10_000), async {
        loop {
            match lock.try_lock().await {
                Ok(guard) => drop(guard),
                Err(error) => return error,
            }
            tokio::time::sleep(ms(50)).await;
        }
    });
    refused.await.expect("two of them are at one server")
}

/// An address may lead to the wrong server for a while: a name that resolves late, a proxy that is set up in two steps.
#[tokio::test]
async fn members_that_were_at_one_server_are_asked_again_by_the_next_call() {
    let servers = Servers::new(3).await;
    let proxy = Proxy::start(servers.servers[0].port).await;
    let third = LockClient::builder().command_timeout(ms(2_000));
    let third = third.connect(&proxy.url()).await.expect("it answers");
    let members = [&servers.ours[0], &servers.ours[1], &third];
    let lock = RedLock::new(members.map(|client| client.lock("red"))).expect("three clients");
    let lock = lock.member_timeout(MEMBER);
    let refused = refused_as_one_server(&lock).await;
    assert_matches!(refused, Error::InvalidConfig { .. });
    proxy.lead_to(servers.servers[2].port);
    proxy.cut_all();
    eventually("it leads to the third", ms(10_000), || {
        third.stats().reconnects_total > 0 && third.is_connected()
    })
    .await;
    let guard = taken(&lock).await;
    guard.unlock().await.expect("held");
    drop(lock);
    within(ms(10_000), third.close(ms(0)))
        .await
        .expect("closed");
    proxy.stop().await;
    servers.settled().await;
    servers.finish().await;
}

#[tokio::test]
async fn one_member_that_fails_for_good_does_not_end_a_call_beside_an_outage() {
    let servers = Servers::new(3).await;
    servers.servers[0].control().run(&["SET", "red", "x"]);
    servers.servers[1].pause();
    let waiting = tokio::spawn({
        let lock = servers.lock();
        async move { lock.try_lock_for(ms(20_000)).await }
    });
    let paused = Instant::now() + ms(2_000);
    eventually("it has waited for some rounds", ms(5_000), || {
        Instant::now() > paused
    })
    .await;
    servers.servers[1].resume();
    let found = within(ms(10_000), waiting).await.expect("in time");
    let guard = found.expect("no panic").expect("two answer").expect("free");
    guard.unlock().await.expect("held");
    // Two of them make a quorum impossible.
    servers.servers[1].control().run(&["SET", "red", "x"]);
    for wait in [ms(200), ms(20_000)] {
        let failed = servers.lock().try_lock_for(wait).await;
        assert_matches!(failed, Err(Error::NotALock { .. }));
    }
    for server in &servers.servers[..2] {
        server.control().run(&["DEL", "red"]);
    }
    servers.finish().await;
}

#[tokio::test]
async fn durations_without_sense_are_refused_or_cut() {
    let servers = Servers::new(3).await;
    // Cut to a millisecond, in which a quorum may answer or not.
    let hasty = servers.lock().member_timeout(Duration::ZERO);
    let in_time = |ended: &Result<(), Error>| {
        assert_matches!(ended, Ok(()) | Err(Error::NoAnswer { .. }));
    };
    match within(ms(5_000), hasty.try_lock()).await.expect("cut") {
        Ok(Some(guard)) => in_time(&guard.unlock().await),
        tried => in_time(&tried.map(drop)),
    }
    servers.settled().await;
    // Cut to what a clock can count.
    let patient = servers.lock().member_timeout(Duration::MAX);
    let guard = taken(&patient).await;
    guard.unlock().await.expect("a quorum confirms");
    servers.settled().await;
    for lease in [Duration::ZERO, Duration::MAX] {
        let lock = servers.lock().lease(lease);
        let found = within(ms(5_000), lock.try_lock_for(ms(20_000))).await;
        let found = found.expect("immediately");
        assert_matches!(found, Err(Error::InvalidDuration { .. }));
    }
    servers.finish().await;
}

#[tokio::test]
async fn max_hold_bounds_the_hold_although_members_are_taken_again() {
    let servers = Servers::with(3, |builder| builder.watchdog_timeout(ms(900))).await;
    let members = servers.ours.iter().map(|client| client.lock("red"));
    let lock = RedLock::new(members.map(|lock| lock.max_hold(ms(3_000)))).expect("three servers");
    let start = Instant::now();
    let guard = taken(&lock).await;
    for (server, at) in servers.servers.iter().zip([800, 1_800]) {
        // So that what is taken again would end a second later, and another one later still.
        eventually("all have it", ms(2_000), || {
            guard.servers() == 3 && start.elapsed() > ms(at)
        })
        .await;
        let mut control = server.control();
        control.run(&["DEL", "red"]);
        let mut exists = || control.number(&["EXISTS", "red"]) == 1;
        eventually("it is taken again", ms(2_000), &mut exists).await;
    }
    let reason = within(ms(6_000), guard.lost()).await.expect("in time");
    let took = start.elapsed();
    assert!(took < ms(3_400) + stalls(start), "{took:?}: {reason}");
    drop(guard);
    servers.finish().await;
}

/// As the calls of `unpolled.rs`.
#[tokio::test]
async fn a_call_that_is_not_polled_keeps_nothing() {
    let servers = Servers::with(3, |builder| builder.command_timeout(ms(400))).await;
    let lock = servers.lock();
    let mut locking = Box::pin(lock.lock());
    let mut context = Context::from_waker(Waker::noop());
    assert!(locking.as_mut().poll(&mut context).is_pending());
    eventually("all have it", ms(2_000), || servers.keys() == 3).await;
    let start = Instant::now();
    eventually("it is given back", ms(10_000), || servers.keys() == 0).await;
    let took = start.elapsed();
    let limit = MEMBER + ms(400) + ms(1_000) + stalls(start);
    assert!(took < limit, "{took:?}");
    // It goes on when it is polled.
    let found = within(ms(5_000), locking).await.expect("in time");
    if let Ok(guard) = found {
        assert_eq!(guard.state(), HoldState::Held);
    }
    servers.finish().await;
}

/// The quorum confirms neither the unlock nor a loss.
#[tokio::test]
async fn a_lock_that_one_server_has_lost_is_not_lost() {
    let servers = Servers::new(3).await;
    for is_unlock in [false, true] {
        let guard = taken(&servers.lock().lease(ms(20_000))).await;
        eventually("all have it", ms(2_000), || guard.servers() == 3).await;
        servers.servers[0].control().run(&["DEL", "red"]);
        servers.servers[1].pause();
        let failed = if is_unlock {
            guard.unlock().await
        } else {
            let failed = guard.extend(ms(30_000)).await;
            drop(guard);
            failed
        };
        assert_matches!(failed, Err(Error::NoAnswer { .. }));
        servers.servers[1].resume();
        eventually("nothing is left", ms(10_000), || servers.keys() == 0).await;
    }
    servers.finish().await;
}

/// Another one has it when the call begins, and most of the servers hang when its time is over.
#[tokio::test]
async fn an_outage_at_the_deadline_is_no_holder() {
    let servers = Servers::new(3).await;
    let held = taken(&servers.other()).await;
    let lock = servers.lock().member_timeout(ms(300));
    let before = servers.calls();
    let call = tokio::spawn(async move { lock.try_lock_for(ms(1_800)).await });
    eventually("it is asked again", ms(1_000), || {
        servers.calls() >= before + 6
    })
    .await;
    let hang = &servers.servers[..2];
    hang.iter().for_each(|server| server.pause());
    let found = within(ms(5_000), call).await.expect("in time");
    let failed = found.expect("no panic");
    assert_matches!(failed, Err(Error::NoAnswer { .. }));
    hang.iter().for_each(|server| server.resume());
    held.unlock().await.expect("held");
    servers.finish().await;
}

/// Another one has it when the call begins; then most of the servers refuse, and hang when its time is over.
#[tokio::test]
async fn an_outage_after_a_refusal_is_no_holder() {
    let servers = Servers::new(3).await;
    let held = taken(&servers.other()).await;
    let lock = servers.lock().member_timeout(ms(600));
    let before = servers.calls();
    let call = tokio::spawn(async move { lock.try_lock_for(ms(2_500)).await });
    eventually("it is asked again", ms(1_000), || {
        servers.calls() >= before + 6
    })
    .await;
    let most = &servers.servers[..2];
    let need_replicas = |replicas| {
        for server in most {
            let words = ["CONFIG", "SET", "min-replicas-to-write", replicas];
            server.control().run(&words);
        }
    };
    need_replicas("1");
    let before = servers.calls();
    eventually("they have refused", ms(1_000), || {
        servers.calls() >= before + 6
    })
    .await;
    most.iter().for_each(|server| server.pause());
    let found = within(ms(5_000), call).await.expect("in time");
    let failed = found.expect("no panic");
    most.iter().for_each(|server| server.resume());
    assert!(failed.is_err(), "{failed:?}");
    need_replicas("0");
    held.unlock().await.expect("held");
    servers.finish().await;
}

/// What the servers have said to the caller before it, who has the lock or waits for it, is its answer too.
#[tokio::test]
async fn who_has_no_turn_in_time_is_answered_what_the_one_before_it_was() {
    let servers = Servers::new(3).await;
    let lock = servers.lock();
    let second = lock.owned_by(&servers.ours[0].owner());
    let first = taken(&lock).await;
    let found = second.try_lock_for(ms(100)).await;
    assert_matches!(found, Ok(None));
    first.unlock().await.expect("held");
    // The next locks have a queue of their own.
    drop((lock, second));
    servers.settled().await;
    let other = taken(&servers.other()).await;
    let lock = servers.lock();
    // An owner of any of its clients.
    let second = lock.owned_by(&servers.ours[1].owner());
    let before = servers.calls();
    let first = tokio::spawn(async move { lock.lock().await });
    eventually("it is asked again", ms(5_000), || {
        servers.calls() >= before + 6
    })
    .await;
    let found = second.try_lock_for(ms(100)).await;
    assert_matches!(found, Ok(None));
    other.unlock().await.expect("held");
    let first = within(ms(5_000), first).await.expect("in time");
    let first = first.expect("no panic").expect("free");
    first.unlock().await.expect("held");
    drop(second);
    servers.finish().await;
}

/// One is away, and another one hangs: that the first is away is not alone why too few have answered.
#[tokio::test]
async fn what_is_known_of_a_minority_is_no_reason_for_a_missing_quorum() {
    let mut servers = Servers::new(3).await;
    servers.servers[0].kill();
    servers.servers[1].pause();
    let first = &servers.ours[0];
    eventually("it is noticed", ms(5_000), || !first.is_connected()).await;
    let failed = servers.lock().try_lock().await;
    let failed = failed.expect_err("one is no quorum");
    assert_matches!(failed, Error::NoAnswer { .. });
    let text = format!("{failed:?}");
    let address = |nth: usize| format!("127.0.0.1:{}", servers.servers[nth].port);
    let both = [address(0), address(1)];
    assert!(both.iter().all(|it| text.contains(it)), "{text}");
    assert!(text.contains("(1 of 3 servers answered"), "{text}");
    // Less time than a round takes.
    let failed = servers.lock().try_lock_for(ms(200)).await;
    assert_matches!(failed, Err(Error::NoAnswer { .. }));
    servers.servers[1].resume();
    servers.servers[0].start_again();
    servers.finish().await;
}

/// The lock is busy, and the last round of a call is too short for two that hang: the third says nothing of them.
#[tokio::test]
async fn a_minority_that_is_away_is_not_why_a_last_round_is_too_short() {
    let mut servers = Servers::new(3).await;
    let held = taken(&servers.other()).await;
    servers.servers[0].kill();
    let first = &servers.ours[0];
    eventually("it is noticed", ms(5_000), || !first.is_connected()).await;
    let lock = servers.lock();
    let hang = &servers.servers[1..];
    let calls = || -> Vec<i64> {
        let calls = |server: &TestServer| server.control().calls("evalsha");
        hang.iter().map(calls).collect()
    };
    let before = calls();
    // Each of its rounds is shorter than a member's time.
    let call = tokio::spawn(async move { lock.try_lock_for(MEMBER * 4 / 5).await });
    eventually("both have said that it is busy", ms(5_000), || {
        calls()
            .iter()
            .zip(&before)
            .all(|(now, before)| now > before)
    })
    .await;
    // Servers that are silent for a whole call are no slow ones.
    tokio::time::sleep(MEMBER / 5).await;
    hang.iter().for_each(|server| server.pause());
    let found = call.await.expect("no panic");
    assert_matches!(found, Ok(None));
    hang.iter().for_each(|server| server.resume());
    servers.servers[0].start_again();
    drop(held);
    servers.finish().await;
}

/// An outage that has ended, because the servers have said that another one holds it, is not counted with the next one.
#[tokio::test]
async fn retry_for_begins_again_with_an_answer_of_a_quorum() {
    let servers = Servers::new(3).await;
    let (retry_for, outage) = (ms(3_000), ms(1_200));
    let members = servers.ours.iter().map(|client| client.lock("red"));
    let lock = RedLock::new(members.map(|lock| lock.retry_for(retry_for))).expect("three");
    let lock = lock.member_timeout(ms(300));
    let held = taken(&servers.other()).await;
    let hang = &servers.servers[..2];
    hang.iter().for_each(|server| server.pause());
    let call = tokio::spawn(async move { lock.lock().await });
    tokio::time::sleep(outage).await;
    hang.iter().for_each(|server| server.resume());
    // The servers answer all the time.
    tokio::time::sleep(retry_for).await;
    hang.iter().for_each(|server| server.pause());
    tokio::time::sleep(outage).await;
    hang.iter().for_each(|server| server.resume());
    held.unlock().await.expect("held");
    let guard = within(ms(6_000), call).await.expect("in time");
    let guard = guard.expect("no panic");
    let guard = guard.expect("each outage was shorter than its retry_for");
    guard.unlock().await.expect("held");
    servers.finish().await;
}

/// A client ends with its last handle, and what only tells of a hold is none.
#[tokio::test]
async fn a_hold_that_has_ended_keeps_no_client() {
    let servers = Servers::new(3).await;
    let mut clients = Vec::new();
    for server in &servers.servers {
        clients.push(server.client().await);
    }
    let guard = taken(&Servers::red(&clients)).await;
    let held = guard.clone();
    guard.unlock().await.expect("held");
    let mut control = servers.servers[0].control();
    let mut connections = || control.run(&["CLIENT", "LIST"]).lines().count();
    let before = connections();
    drop(clients);
    eventually("it has ended", ms(5_000), || connections() < before).await;
    assert_eq!(held.state(), HoldState::Released);
    drop(held);
    servers.finish().await;
}

/// A server that is away makes each round that splits the votes wait for its limit, those of rivals as well: so that
/// they do not go on in step, each pauses for 16 ms at least, after the first such round already.
#[tokio::test]
async fn after_a_round_that_has_split_the_votes_it_pauses() {
    const ROUND: Duration = ms(20);
    const CALL: Duration = ms(140);
    // One begins at the deadline.
    let most = CALL.as_millis().div_ceil((ROUND + ms(16)).as_millis()) as usize + 1;
    let servers = Servers::new(3).await;
    let lock = servers.lock();
    taken(&lock).await.unlock().await.expect("held");
    eventually("free", ms(5_000), || servers.keys() == 0).await;
    let rival = servers.theirs[1].lock("red").lock().await.expect("free");
    servers.servers[2].pause();
    let mut control = servers.servers[0].control();
    // A call may hold fewer rounds beside a load, and never more.
    let mut of_several = 0;
    for _ in 0..20 {
        let monitor = Monitor::start(servers.servers[0].port);
        let split = lock.member_timeout(ROUND).try_lock_for(CALL).await;
        assert!(split.expect("two have answered").is_none());
        let rounds = acquiring_owners(&monitor.take(&mut control)).len();
        assert!(rounds <= most, "{rounds} of {most}");
        of_several += usize::from(rounds > 1);
        if of_several == 3 {
            break;
        }
    }
    assert!(of_several > 0, "no call had a second round");
    servers.servers[2].resume();
    rival.unlock().await.expect("held");
    servers.finish().await;
}

/// A task may be in a scope of any of the clients.
#[tokio::test]
async fn a_scope_of_any_client_says_who_calls() {
    let servers = Servers::new(3).await;
    let lock = servers.lock();
    for client in &servers.ours {
        let [one, other] = [client.owner(), client.owner()];
        let guard = one.scope(taken(&lock)).await;
        let again = one.scope(lock.try_lock()).await;
        assert_matches!(again, Err(Error::AlreadyHeld { .. }));
        let found = other.scope(lock.try_lock()).await.expect("asked");
        assert!(found.is_none());
        guard.unlock().await.expect("held");
    }
    servers.finish().await;
}

/// A lease that is over before the others have answered is no silence: it is waited for.
#[tokio::test]
async fn a_lease_that_is_over_before_the_quorum_is_no_missing_answer() {
    let servers = Servers::new(3).await;
    servers.servers[1].pause();
    servers.servers[2]
        .control()
        .run(&["HSET", "red", "another:1", "1"]);
    servers.servers[2]
        .control()
        .run(&["PEXPIRE", "red", "30000"]);
    let lock = servers.lock().lease(ms(200));
    let found = lock.try_lock().await.expect("two have answered");
    assert!(found.is_none());
    servers.servers[1].resume();
    servers.servers[2].control().run(&["DEL", "red"]);
    servers.finish().await;
}

#[tokio::test]
async fn a_name_that_is_not_valid_is_refused() {
    let servers = Servers::new(3).await;
    let members = servers.ours.iter().enumerate();
    let members = members.map(|(nth, client)| client.lock(if nth == 2 { "" } else { "red" }));
    let lock = RedLock::new(members).expect("three clients");
    let refused = lock.try_lock().await;
    assert_matches!(refused, Err(Error::InvalidName { .. }));
    servers.finish().await;
}

#[tokio::test]
async fn a_shorter_extension_shortens_nothing() {
    let servers = Servers::new(3).await;
    let guard = taken(&servers.lock().lease(ms(5_000))).await;
    eventually("all have it", ms(5_000), || guard.servers() == 3).await;
    guard.extend(ms(100)).await.expect("held");
    servers.servers[0].control().run(&["DEL", "red"]);
    tokio::time::sleep(ms(300)).await;
    assert_eq!(guard.state(), HoldState::Held);
    // It is taken again for what is left of the first lease.
    eventually("it is taken again", ms(5_000), || guard.servers() == 3).await;
    guard.unlock().await.expect("held");
    servers.finish().await;
}

#[tokio::test]
async fn what_is_lost_behind_the_first_lease_is_taken_again_for_what_is_left_of_the_extended_one() {
    let servers = Servers::new(3).await;
    let guard = taken(&servers.lock().lease(ms(2_000))).await;
    let first_end = Instant::now() + ms(2_000);
    eventually("all have it", ms(2_000), || guard.servers() == 3).await;
    guard.extend(ms(30_000)).await.expect("held");
    let is_over = || Instant::now() > first_end;
    eventually("the first leases are over", ms(5_000), is_over).await;
    let mut control = servers.servers[0].control();
    control.run(&["DEL", "red"]);
    eventually("it is taken again", ms(5_000), || {
        control.number(&["EXISTS", "red"]) == 1
    })
    .await;
    let left = control.pttl("red");
    assert!((10_000..=30_000).contains(&left), "{left}");
    guard.unlock().await.expect("held");
    servers.finish().await;
}

/// Its release may be on its way when the next call asks.
#[tokio::test]
async fn a_call_that_was_dropped_is_not_in_the_way_of_the_next() {
    let servers = Servers::new(3).await;
    let lock = servers.lock();
    taken(&lock).await.unlock().await.expect("held");
    let mut guard = Some(taken(&lock).await);
    for _ in 0..100 {
        let start = Instant::now();
        drop(guard.take());
        guard = lock.try_lock().await.expect("asked");
        let waited = stalls(start);
        assert!(guard.is_some() || waited > ms(20), "{waited:?}");
        servers.idle().await;
    }
    drop(guard);
    servers.finish().await;
}

/// Something deletes its key at one server all the time.
#[tokio::test]
async fn a_member_that_is_lost_each_time_is_asked_once_in_a_second() {
    let servers = Servers::with(3, |builder| builder.watchdog_timeout(ms(1_500))).await;
    let guard = taken(&servers.lock()).await;
    let scripts = || servers.servers[0].control().calls("evalsha");
    let (start, before) = (Instant::now(), scripts());
    let mut control = servers.servers[0].control();
    while start.elapsed() < ms(6_000) {
        control.run(&["DEL", "red"]);
        tokio::time::sleep(ms(5)).await;
    }
    let asked = scripts() - before;
    // Taken, and renewed once: it is gone.
    let most = 2 * (u64::try_from(start.elapsed().as_millis()).expect("short") / 1_000 + 2);
    assert!(
        u64::try_from(asked).expect("a count") <= most,
        "{asked} of {most}"
    );
    // A machine that does nothing for a second renews nothing.
    let held = guard.unlock().await;
    let stalled = stalls(start);
    assert!(held.is_ok() || stalled > ms(500), "{held:?}, {stalled:?}");
    servers.finish().await;
}

/// It has no task any more that could ask its server.
#[test]
fn a_member_whose_runtime_has_ended_is_a_server_that_is_away() {
    let [away, home] = [(), ()].map(|()| tokio::runtime::Runtime::new().expect("threads"));
    let mut servers = away.block_on(Servers::new(3));
    let url = servers.servers[2].url();
    let connected = home.block_on(LockClient::connect(&url));
    servers.ours[2] = connected.expect("it answers");
    home.shutdown_timeout(ms(1_000));
    let lock = servers.lock();
    let (report, reported) = std::sync::mpsc::channel();
    away.spawn(async move {
        let taken = lock.try_lock().await;
        let _ = report.send(taken.is_ok_and(|guard| guard.is_some()));
    });
    assert_eq!(reported.recv_timeout(ms(8_000)), Ok(true));
}

/// Nor has it a queue.
#[tokio::test]
async fn a_member_whose_client_was_closed_is_a_server_that_is_away() {
    let servers = Servers::new(3).await;
    let lock = servers.lock();
    servers.ours[2].close(Duration::ZERO).await;
    let guard = taken(&lock).await;
    assert_eq!(guard.servers(), 2);
    let other = lock.owned_by(&servers.ours[0].owner());
    let mut next = std::pin::pin!(other.lock());
    let early = within(ms(50), next.as_mut()).await;
    assert!(early.is_none(), "it waits");
    guard.unlock().await.expect("held");
    let next = within(ms(5_000), next).await.expect("in time");
    next.expect("free").unlock().await.expect("held");
    servers.finish().await;
}

/// Holds of this client are waited for, but never for longer than a round.
#[tokio::test]
async fn an_own_lock_is_no_missing_answer_however_short_a_round_is() {
    let servers = Servers::new(3).await;
    let lock = servers.lock();
    taken(&lock).await.unlock().await.expect("held");
    let own = servers.ours[..2].iter().map(|client| client.lock("red"));
    let mut held = Vec::new();
    for lock in own {
        held.push(lock.lock().await.expect("free"));
    }
    for member_timeout in [30, 200] {
        let found = lock.member_timeout(ms(member_timeout)).try_lock().await;
        assert_matches!(found, Ok(None), "{member_timeout}");
    }
    drop(held);
    servers.finish().await;
}

/// They run scripts, and their new connections hang.
#[tokio::test]
async fn servers_that_never_say_who_they_are_delay_one_round() {
    let servers = Servers::new(3).await;
    let nameless = Nameless::two_of(&servers).await;
    let lock = Servers::red(&nameless.clients);
    for nth in 0..4 {
        let start = Instant::now();
        taken(&lock).await.unlock().await.expect("held");
        let took = start.elapsed();
        assert!(nth == 0 || took < MEMBER / 2 + stalls(start), "{took:?}");
    }
    // Its first round is lost during the check; it makes another.
    let short = Servers::red(&nameless.clients).lease(ms(600));
    let guard = within(ms(5_000), short.lock()).await.expect("in time");
    guard.expect("a quorum").unlock().await.expect("held");
    drop((lock, short));
    nameless.close().await;
    servers.finish().await;
}

#[tokio::test]
async fn the_innermost_scope_of_its_clients_says_who_calls() {
    let servers = Servers::new(3).await;
    let lock = servers.lock();
    let outer = servers.ours.iter().map(LockClient::owner);
    for outer in outer {
        for client in &servers.ours {
            let [one, other] = [client.owner(), client.owner()];
            outer
                .scope(Box::pin(async {
                    let guard = one.scope(taken(&lock)).await;
                    let found = other.scope(lock.try_lock()).await;
                    assert_matches!(found, Ok(None), "another owner");
                    guard.unlock().await.expect("held");
                }))
                .await;
        }
    }
    servers.finish().await;
}

/// A server that nothing was sent to has not answered, although others of its client are before.
#[tokio::test]
async fn servers_that_are_away_are_no_answers_although_calls_of_their_clients_queue() {
    let set = |builder: LockClientBuilder| builder.command_timeout(ms(500)).retry_for(ms(1_000));
    let servers = Servers::with(3, set).await;
    let lock = servers.lock().member_timeout(ms(300));
    taken(&lock).await.unlock().await.expect("held");
    let mut waiting = Vec::new();
    for nth in [1, 2] {
        servers.servers[nth].pause();
        let plain = servers.ours[nth].lock("red").retry_for(ms(60_000));
        waiting.push(tokio::spawn(async move { plain.lock().await.map(drop) }));
        let waits = || servers.ours[nth].stats().waiting == 1;
        eventually("a plain call waits", ms(5_000), waits).await;
    }
    let found = lock.try_lock().await;
    assert_matches!(found, Err(Error::NoAnswer { .. }));
    let found = within(ms(8_000), lock.lock()).await.expect("in time");
    assert_matches!(found, Err(Error::NoAnswer { .. }));
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    for nth in [1, 2] {
        servers.servers[nth].resume();
    }
    servers.finish().await;
}

/// Calls of its client queue for it: it is asked who holds it, and that is its answer.
#[tokio::test]
async fn a_server_for_which_calls_of_its_client_queue_answers() {
    let servers = Servers::new(3).await;
    let lock = servers.lock();
    let (mut held, mut waiting) = (Vec::new(), Vec::new());
    for theirs in &servers.theirs[..2] {
        held.push(theirs.lock("red").lock().await.expect("free"));
    }
    for ours in &servers.ours[..2] {
        let plain = ours.lock("red");
        waiting.push(tokio::spawn(async move { plain.lock().await.map(drop) }));
        eventually("it waits", ms(5_000), || ours.stats().waiting == 1).await;
    }
    assert!(lock.try_lock().await.expect("all answer").is_none());
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    drop(held);
    servers.finish().await;
}

/// It could not be asked before, so the first round that it answers waits for it.
#[tokio::test]
async fn a_server_that_is_back_is_compared_before_its_vote_counts() {
    let servers = Servers::new(2).await;
    let proxy = Proxy::start(servers.servers[0].port).await;
    let again = LockClient::connect(&proxy.url()).await.expect("it answers");
    let members = [
        servers.ours[0].lock("red"),
        again.lock("another"),
        servers.ours[1].lock("red"),
    ];
    let lock = RedLock::new(members).expect("three clients");
    let lock = lock.member_timeout(MEMBER);
    proxy.refuse(true);
    proxy.cut_all();
    eventually("it is away", ms(5_000), || !again.is_connected()).await;
    taken(&lock).await.unlock().await.expect("two of three");
    proxy.refuse(false);
    eventually("it is back", ms(5_000), || again.is_connected()).await;
    // A server that has not said who it is is asked once a second.
    tokio::time::sleep(ms(1_100)).await;
    servers.servers[1]
        .control()
        .run(&["HSET", "red", "another:1", "1"]);
    let refused = lock.try_lock().await;
    assert_matches!(refused, Err(Error::InvalidConfig { .. }));
    servers.servers[1].control().run(&["DEL", "red"]);
    again.close(ms(1_000)).await;
    proxy.stop().await;
    drop((lock, again));
    servers.finish().await;
}

/// What each lock does for code that does not know which it is.
async fn takes_any<L: DistributedLock>(lock: L, name: &str, clients: &[LockClient]) {
    assert_eq!(lock.name(), name);
    let guard = lock.lock().await.expect("free");
    assert_eq!((guard.name(), guard.state()), (name, HoldState::Held));
    guard.unlock().await.expect("held");
    let guard = lock.try_lock_for(ms(5_000)).await.expect("asked");
    let guard = guard.expect("free");
    let lost = guard.lost();
    for client in clients {
        let _ = client.lock("any").force_unlock().await;
    }
    let reason = within(ms(5_000), lost).await.expect("in time");
    assert_eq!(guard.state(), HoldState::Lost(reason));
    assert_matches!(guard.unlock().await, Err(Error::Lost { .. }));
    drop(lock.try_lock().await.expect("asked"));
}

#[tokio::test]
async fn code_that_takes_any_lock_takes_each_of_them() {
    let servers = Servers::new(3).await;
    let ours = &servers.ours;
    let locks = || ours.iter().map(|client| client.lock("any"));
    let multi = || MultiLock::new(locks()).expect("three locks");
    let red = || RedLock::new(locks()).expect("three servers");
    takes_any(ours[0].lock("any"), "any", ours).await;
    takes_any(multi(), "any, any, any", ours).await;
    takes_any(red(), "any", ours).await;
    takes_any(AnyLock::new(ours[0].lock("any")), "any", ours).await;
    takes_any(AnyLock::new(multi()), "any, any, any", ours).await;
    takes_any(AnyLock::new(red()), "any", ours).await;
    servers.finish().await;
}

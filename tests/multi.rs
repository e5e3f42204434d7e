//! Several locks as one: all or none, no waiting while one is held, and what a loss or a dead server does.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use redisson_lock::{
    Error, HoldState, Lock, LockClient, LockClientBuilder, LockKind, LossReason, MultiGuard,
    MultiLock,
};
use test_support::kinds::load_scripts;
use test_support::{
    Monitor, Proxy, Steps, TestServer, assert_matches, cases, eventually, may_take, ms, stalls,
    tokio, within,
};

/// Two servers with a client each, and another client of both.
struct Servers {
    one: TestServer,
    two: TestServer,
    clients: [LockClient; 2],
    others: [LockClient; 2],
}

impl Servers {
    async fn new() -> Self {
        Self::with_timeout(ms(3_000)).await
    }

    async fn with_timeout(command: Duration) -> Self {
        let (one, two) = (TestServer::new(), TestServer::new());
        let client =
            async |server: &TestServer| server.client_with(|b| b.command_timeout(command)).await;
        Self {
            clients: [client(&one).await, client(&two).await],
            others: [one.client().await, two.client().await],
            one,
            two,
        }
    }

    fn members(&self) -> [Lock; 2] {
        [self.clients[0].lock("a"), self.clients[1].lock("b")]
    }

    fn multi(&self) -> MultiLock {
        MultiLock::new(self.members()).expect("two locks")
    }

    fn keys(&self) -> (String, String) {
        let keys = |server: &TestServer| server.control().run(&["KEYS", "*"]);
        (keys(&self.one), keys(&self.two))
    }

    async fn finish(self) {
        let [c1, c2] = self.clients;
        let [o1, o2] = self.others;
        // Tasks are counted from before each server: the later one first.
        self.two.finish([c2, o2, c1, o1]).await;
        self.one.finish([]).await;
    }
}

#[tokio::test]
async fn locks_of_any_kinds_and_clients_are_taken_together_and_released_together() {
    let servers = Servers::new().await;
    let [one, two] = &servers.clients;
    let multi = MultiLock::new([
        one.lock("plain"),
        one.fenced_lock("fenced").into(),
        two.string_lock("string"),
        two.spin_lock("spin"),
        two.fair_lock("fair"),
        two.rw_lock("read").read(),
        two.rw_lock("write").write(),
    ])
    .expect("seven locks");
    let before = Instant::now();
    let guard = multi.lock().await.expect("free");
    assert_eq!(guard.state(), HoldState::Held);
    let names: Vec<_> = guard.members().iter().map(|hold| hold.name()).collect();
    assert_eq!(
        names,
        ["plain", "fenced", "string", "spin", "fair", "read", "write"]
    );
    assert!(guard.valid_until() > before + ms(28_000));
    for (client, kind, name) in [
        (&servers.others[0], LockKind::Plain, "plain"),
        (&servers.others[0], LockKind::Fenced, "fenced"),
        (&servers.others[1], LockKind::String, "string"),
        (&servers.others[1], LockKind::Spin, "spin"),
        (&servers.others[1], LockKind::Fair, "fair"),
        (&servers.others[1], LockKind::Write, "read"),
        (&servers.others[1], LockKind::Read, "write"),
    ] {
        let lock = client.lock_of(kind, name);
        assert!(lock.try_lock().await.expect("asked").is_none(), "{kind}");
    }
    let held = guard.clone();
    guard.unlock().await.expect("held");
    assert_eq!(held.state(), HoldState::Released);
    drop(held);
    assert_eq!(
        servers.one.control().run(&["EXISTS", "plain", "fenced"]),
        "0"
    );
    assert_eq!(servers.two.control().run(&["KEYS", "*"]), "");
    drop(multi.try_lock().await.expect("asked").expect("free"));
    eventually("a drop frees all", ms(5_000), || {
        servers.two.control().run(&["KEYS", "*"]).is_empty()
    })
    .await;
    servers.finish().await;
}

#[tokio::test]
async fn one_owner_nests_and_another_one_waits() {
    let servers = Servers::new().await;
    let multi = servers.multi();
    let outer = multi.lock().await.expect("free");
    let inner = multi.lock().await.expect("nested");
    assert_eq!(servers.one.control().count("a"), 2);
    inner.unlock().await.expect("held");
    let owners = [servers.clients[0].owner(), servers.clients[1].owner()];
    let other = multi.owned_by(&owners[0]).owned_by(&owners[1]);
    assert!(other.try_lock().await.expect("asked").is_none());
    let stranger = servers.others[0].owner();
    let misuse = multi.owned_by(&stranger).try_lock().await;
    assert_matches!(misuse, Err(Error::Misuse { .. }));
    outer.unlock().await.expect("held");
    let guard = other.lock().await.expect("free");
    let shown: Vec<_> = guard
        .members()
        .iter()
        .map(|hold| hold.owner().clone())
        .collect();
    assert_eq!(shown, owners);
    guard.unlock().await.expect("held");
    servers.finish().await;
}

#[tokio::test]
async fn if_one_is_busy_none_is_kept() {
    let servers = Servers::new().await;
    let multi = servers.multi();
    for (nth, name) in ["a", "b"].into_iter().enumerate() {
        let theirs = servers.others[nth].lock(name).lock().await.expect("free");
        assert!(multi.try_lock().await.expect("asked").is_none());
        assert!(multi.try_lock_for(ms(300)).await.expect("asked").is_none());
        let server = [&servers.two, &servers.one][nth];
        eventually("the other one is free", ms(2_000), || {
            server.control().run(&["KEYS", "*"]).is_empty()
        })
        .await;
        let start = Instant::now();
        let found = multi.try_lock_until(start + ms(200)).await.expect("asked");
        let took = start.elapsed();
        assert!(found.is_none() && took >= ms(200), "{took:?}: {found:?}");
        assert!(took < ms(1_200) + stalls(start), "{took:?}");
        theirs.unlock().await.expect("held");
        let found = multi.try_lock_until(Instant::now() + ms(10_000)).await;
        let guard = found.expect("asked").expect("free");
        guard.unlock().await.expect("held");
    }
    servers.finish().await;
}

/// The busy one is waited for with nothing in hand, by its message.
#[tokio::test]
async fn a_busy_one_is_waited_for_while_nothing_is_held() {
    let servers = Servers::new().await;
    let theirs = servers.others[1].lock("b").lock().await.expect("free");
    let waiting = tokio::spawn({
        let multi = servers.multi();
        async move { (multi.lock().await, Instant::now()) }
    });
    eventually("it waits", ms(5_000), || servers.two.has_listener("b")).await;
    for _ in 0..20 {
        assert_eq!(servers.keys().0, "", "nothing is held");
        tokio::time::sleep(ms(10)).await;
    }
    let passer = servers.others[0].lock("a").try_lock().await.expect("asked");
    passer.expect("free").unlock().await.expect("held");
    let unlocked = Instant::now();
    theirs.unlock().await.expect("held");
    let (guard, at) = waiting.await.expect("no panic");
    let waited = at.saturating_duration_since(unlocked);
    assert!(waited < ms(500) + stalls(unlocked), "{waited:?}");
    guard.expect("free").unlock().await.expect("held");
    servers.finish().await;
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_named_in_time_and_the_others_are_released() {
    let timeout = ms(500);
    let servers = Servers::with_timeout(timeout).await;
    let multi = servers.multi();
    for (dead, name) in [(&servers.two, "b"), (&servers.one, "a")] {
        dead.pause();
        let start = Instant::now();
        let failed = multi.lock().await.expect_err("one is dead");
        let took = start.elapsed();
        assert_matches!(failed, Error::NoAnswer { .. });
        assert_eq!(failed.lock(), Some(name));
        assert!(
            failed.to_string().contains(&format!("lock `{name}`")),
            "{failed}"
        );
        assert!(took < timeout + ms(100) + stalls(start), "{took:?}");
        let alive = [&servers.one, &servers.two][usize::from(name == "a")];
        eventually("the other one is free", ms(2_000), || {
            alive.control().run(&["KEYS", "*"]).is_empty()
        })
        .await;
        dead.resume();
        // What the attempt has left at the dead server is undone when it is back.
        multi
            .try_lock_for(ms(5_000))
            .await
            .expect("answered")
            .expect("free")
            .unlock()
            .await
            .expect("held");
    }
    // A call with a deadline waits for the server to come back.
    servers.two.pause();
    let waiting = tokio::spawn({
        let multi = multi.clone();
        async move { multi.try_lock_for(ms(20_000)).await }
    });
    tokio::time::sleep(2 * timeout).await;
    servers.two.resume();
    let guard = waiting
        .await
        .expect("no panic")
        .expect("answered")
        .expect("free");
    guard.unlock().await.expect("held");
    servers.finish().await;
}

#[tokio::test]
async fn the_same_lock_twice_is_refused() {
    let servers = Servers::new().await;
    let (one, same) = (&servers.clients[0], &servers.others[0]);
    let refused = |made: Result<MultiLock, Error>| {
        assert_matches!(made, Err(Error::InvalidConfig { .. }));
    };
    refused(MultiLock::new([]));
    refused(MultiLock::new([
        one.lock("a"),
        one.lock("b"),
        one.lock("a"),
    ]));
    // Two kinds of lock on one key are one key.
    refused(MultiLock::new([one.lock("a"), one.string_lock("a")]));
    // Two clients of one server, which only the server can tell.
    let prefixed = servers
        .one
        .client_with(|builder| builder.key_prefix("x:"))
        .await;
    for twice in [
        [one.lock("a"), same.lock("a")],
        [one.lock("x:a"), prefixed.lock("a")],
    ] {
        let multi = MultiLock::new(twice).expect("made without a question");
        let failed = multi.try_lock().await;
        assert_matches!(&failed, Err(Error::InvalidConfig { .. }));
        assert_eq!(servers.keys().0, "", "nothing was taken");
    }
    // A user that may not ask is not told: the call waits for itself, until its deadline, and nothing is kept.
    let info = |way: &str| {
        let words = ["ACL", "SETUSER", "default", way];
        _ = servers.one.control().run(&words);
    };
    info("-info");
    let multi = MultiLock::new([one.lock("a"), same.lock("a")]).expect("two locks");
    assert!(multi.try_lock().await.expect("asked").is_none());
    let start = Instant::now();
    let found = multi.try_lock_until(start + ms(300)).await.expect("asked");
    let took = start.elapsed();
    assert!(found.is_none() && took >= ms(300), "{took:?}: {found:?}");
    assert!(took < ms(1_300) + stalls(start), "{took:?}");
    eventually("nothing is kept", ms(5_000), || servers.keys().0.is_empty()).await;
    info("+info");
    // The same name at another server, in another database, or under a prefix is another lock.
    let url = format!("{}/1", servers.one.url());
    let elsewhere = LockClient::connect(&url).await.expect("connected");
    for (other, name) in [
        (&servers.clients[1], "a"),
        (&elsewhere, "a"),
        (&prefixed, "a"),
    ] {
        let multi = MultiLock::new([one.lock("a"), other.lock(name)]).expect("two locks");
        let guard = multi.try_lock().await.expect("asked").expect("free");
        guard.unlock().await.expect("held");
    }
    prefixed.close(Duration::ZERO).await;
    elsewhere.close(Duration::ZERO).await;
    servers.finish().await;
}

#[tokio::test]
async fn leases_end_together_and_are_extended_together() {
    let servers = Servers::new().await;
    // The second is slow to be had: the first lease would end well before it.
    servers.two.pause();
    let waiting = tokio::spawn({
        let leased = servers.multi().lease(ms(5_000));
        async move { leased.lock().await }
    });
    let mut first = servers.one.control();
    eventually("the first is held for a second", ms(5_000), || {
        (1..4_000).contains(&first.pttl("a"))
    })
    .await;
    servers.two.resume();
    let guard = waiting.await.expect("no panic").expect("free");
    let left = || {
        [
            servers.one.control().pttl("a"),
            servers.two.control().pttl("b"),
        ]
    };
    let [one, two] = left();
    assert!(one.abs_diff(two) < 200, "{one} {two}");
    guard.extend(ms(60_000)).await.expect("held");
    assert!(left().iter().all(|left| *left > 55_000), "{:?}", left());
    guard.unlock().await.expect("held");
    // A limit that comes before the end of the lease stays.
    let [a, b] = servers.members();
    let limited = MultiLock::new([a.max_hold(ms(4_000)), b]).expect("two locks");
    let guard = limited.lease(ms(5_000)).lock().await.expect("free");
    assert!(guard.valid_until() < Instant::now() + ms(4_001));
    guard.unlock().await.expect("held");
    servers.finish().await;
}

#[tokio::test]
async fn the_first_loss_is_the_loss_and_names_its_lock() {
    let servers = Servers::new().await;
    let [a, b] = servers.members();
    // `b` ends first, and `a` after it.
    let multi = MultiLock::new([a.lease(ms(900)), b.lease(ms(300))]).expect("two locks");
    let guard = multi.lock().await.expect("free");
    assert!(!guard.is_lost());
    let lost = within(ms(3_000), guard.lost()).await.expect("in time");
    assert!(guard.is_lost());
    assert_eq!(
        (lost.lock.as_str(), lost.reason),
        ("b", LossReason::LeaseOver)
    );
    assert_eq!(
        guard.members()[0].state(),
        HoldState::Held,
        "the other one is kept"
    );
    assert_eq!(servers.one.control().count("a"), 1);
    eventually("the other one is lost too", ms(3_000), || {
        guard.members()[0].is_lost()
    })
    .await;
    assert_eq!(guard.loss().as_ref(), Some(&lost));
    assert_eq!(guard.lost().await, lost);
    assert_eq!(guard.state(), HoldState::Lost(LossReason::LeaseOver));
    let failed = guard.unlock().await.expect_err("lost");
    assert_eq!(failed.lock(), Some("b"), "{failed}");

    // The state is not read before both are lost.
    let guards = [multi.lock().await, multi.lock().await].map(|guard| guard.expect("free"));
    let all_lost = Instant::now() + ms(1_200);
    eventually("both leases are over", ms(5_000), || {
        Instant::now() > all_lost
    })
    .await;
    let [one, two] = guards;
    assert_eq!(one.lost().await.lock, "b");
    drop(one);
    let failed = two.unlock().await.expect_err("lost");
    assert_eq!(failed.lock(), Some("b"), "{failed}");

    // A body is dropped at the first loss.
    let mut dropped = Arc::new(());
    let body = Arc::clone(&dropped);
    let ran: Result<(), Error> = multi
        .run(|_held| async move {
            let _body = body;
            std::future::pending().await
        })
        .await;
    assert_matches!(&ran, Err(Error::Lost { lock, .. }) if lock == "b");
    assert!(Arc::get_mut(&mut dropped).is_some());
    servers.finish().await;
}

const NAMES: [&str; 3] = ["a", "b", "c"];

/// Whichever of three it is that ends first or is lost.
#[tokio::test]
async fn what_is_known_of_all_is_what_is_known_of_the_worst() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    let lock = |name| client.lock(name).lease(ms(5_000));
    for worst in NAMES {
        let members = NAMES.map(|name| match name == worst {
            true => lock(name),
            false => client.lock(name),
        });
        let multi = MultiLock::new(members).expect("three locks");
        let guard = multi.lock().await.expect("free");
        assert!(guard.valid_until() <= Instant::now() + ms(5_000), "{worst}");
        control.run(&["DEL", worst]);
        let loss = within(ms(3_000), guard.lost()).await.expect(worst);
        assert_eq!((&*loss.lock, loss.reason), (worst, LossReason::Gone));
        assert_eq!(guard.state(), HoldState::Lost(LossReason::Gone));
        let unlocked = guard.unlock().await;
        assert_matches!(unlocked, Err(Error::Lost { .. }));
    }
    let multi = MultiLock::new(NAMES.map(lock)).expect("three locks");
    let guard = multi.lock().await.expect("free");
    guard.extend(ms(60_000)).await.expect("held");
    for name in NAMES {
        assert!(control.pttl(name) > 30_000, "{name}");
    }
    guard.unlock().await.expect("held");
    drop(multi);
    server.finish([client]).await;
}

#[tokio::test]
async fn all_are_at_risk_while_one_of_them_is() {
    for silent in [0, 1] {
        let servers = [TestServer::new(), TestServer::new()];
        let set = |builder: LockClientBuilder| {
            let builder = builder.watchdog_timeout(ms(3_000));
            builder.command_timeout(ms(250))
        };
        let [one, two] = [
            servers[0].client_with(set).await,
            servers[1].client_with(set).await,
        ];
        let multi = MultiLock::new([one.lock("a"), two.lock("b")]).expect("two locks");
        let guard = multi.lock().await.expect("free");
        servers[silent].pause();
        let state = || guard.state() == HoldState::AtRisk;
        eventually("at risk", ms(2_600), state).await;
        servers[silent].resume();
        let state = || guard.state() == HoldState::Held;
        eventually("renewed", ms(900), state).await;
        guard.unlock().await.expect("held all the time");
        drop(multi);
        let [first, second] = servers;
        first.finish([one, two]).await;
        second.finish([]).await;
    }
}

/// One server has no answer, and at the other the lock has been taken away.
#[tokio::test]
async fn an_unlock_that_finds_a_loss_reports_it_beside_a_server_without_an_answer() {
    for silent in [0, 1] {
        let servers = [TestServer::new(), TestServer::new()];
        let mut clients = Vec::new();
        for server in &servers {
            // It is not to hear of the loss before.
            let set = |b: LockClientBuilder| b.tracking(false).command_timeout(ms(500));
            clients.push(server.client_with(set).await);
        }
        let members = [clients[0].lock("a"), clients[1].lock("b")];
        let guard = MultiLock::new(members).expect("two locks").lock().await;
        let guard = guard.expect("free");
        let lost = ["b", "a"][silent];
        servers[1 - silent].control().run(&["DEL", lost]);
        servers[silent].pause();
        match guard.unlock().await {
            Err(error @ Error::Lost { .. }) => assert_eq!(error.lock(), Some(lost)),
            other => panic!("{other:?}"),
        }
        servers[silent].resume();
        let [one, two] = servers;
        let two_client = clients.pop().expect("two");
        let one_client = clients.pop().expect("two");
        two.finish([two_client, one_client]).await;
        one.finish([]).await;
    }
}

#[tokio::test]
async fn bodies_run_with_all_locks_and_a_leader_leads_again_after_a_loss() {
    let servers = Servers::new().await;
    let multi = servers.multi();
    let ran = multi
        .run(|held| async move {
            assert_eq!(held.state(), HoldState::Held);
            Ok::<_, Error>(held.members().len())
        })
        .await;
    assert_eq!(ran.expect("ran"), 2);
    assert_eq!(servers.keys(), (String::new(), String::new()));
    let theirs = servers.others[1].lock("b").lock().await.expect("free");
    let ran = multi.try_run(|_held| async { Ok::<_, Error>(()) }).await;
    assert_eq!(ran.expect("asked"), None);
    theirs.unlock().await.expect("held");

    let short = |server: &TestServer| {
        let builder = LockClient::builder().watchdog_timeout(ms(900));
        let url = server.url();
        async move { builder.connect(&url).await.expect("connected") }
    };
    let (one, two) = (short(&servers.one).await, short(&servers.two).await);
    let multi = MultiLock::new([one.lock("a"), two.lock("b")]).expect("two locks");
    let terms = Arc::new(AtomicUsize::new(0));
    let leading = tokio::spawn({
        let terms = Arc::clone(&terms);
        async move {
            multi
                .lead(|_held| {
                    let term = terms.fetch_add(1, Ordering::SeqCst);
                    async move {
                        if term == 0 {
                            std::future::pending::<()>().await;
                        }
                        Ok::<_, Error>(term)
                    }
                })
                .await
        }
    });
    eventually("it leads", ms(5_000), || terms.load(Ordering::SeqCst) == 1).await;
    servers.two.control().run(&["DEL", "b"]);
    let led = within(ms(10_000), leading).await.expect("in time");
    assert_eq!(led.expect("no panic").expect("led"), 1);
    one.close(Duration::ZERO).await;
    two.close(Duration::ZERO).await;
    servers.finish().await;
}

#[tokio::test]
async fn dropped_at_any_poll_it_leaves_nothing() {
    let servers = Servers::new().await;
    let multi = servers.multi().lease(ms(20_000));
    let mut finished = 0;
    for polls in 1..24 {
        let locking = multi.clone();
        let mut locking = Steps::of(async move { locking.lock().await });
        if let Some(guard) = locking.times(polls).await {
            guard.expect("free").unlock().await.expect("held");
            finished += 1;
        }
        drop(locking);
        let busy = || {
            servers.clients.iter().any(|client| {
                let stats = client.stats();
                stats.held + stats.waiting + stats.releasing + stats.entries > 0
            })
        };
        eventually("nothing is left", ms(5_000), || !busy()).await;
        assert_eq!(
            servers.keys(),
            (String::new(), String::new()),
            "{polls} polls"
        );
    }
    assert!(
        (1..23).contains(&finished),
        "{finished} of 23 were ready: each poll is a point"
    );
    servers.finish().await;
}

/// Tasks of one client that take one lock again and again, so that others of it always queue.
struct Crowd {
    over: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<u32>>,
}

impl Crowd {
    fn of(client: &LockClient, name: &str, tasks: usize) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let task = |_| {
            let (lock, over) = (client.lock(name), Arc::clone(&over));
            tokio::spawn(async move {
                let mut turns = 0;
                while !over.load(Ordering::SeqCst) {
                    let guard = lock.lock().await.expect("its turn comes");
                    tokio::time::sleep(ms(5)).await;
                    guard.unlock().await.expect("held");
                    turns += 1;
                }
                turns
            })
        };
        let tasks = (0..tasks).map(task).collect();
        Self { over, tasks }
    }

    async fn leave(self) -> Vec<u32> {
        self.over.store(true, Ordering::SeqCst);
        let mut turns = Vec::new();
        for task in self.tasks {
            turns.push(task.await.expect("no panic"));
        }
        turns
    }
}

#[tokio::test]
async fn it_does_not_starve_beside_crowds_that_always_queue() {
    let servers = Servers::new().await;
    let crowds = [
        Crowd::of(&servers.clients[0], "a", 8),
        Crowd::of(&servers.clients[1], "b", 8),
    ];
    tokio::time::sleep(ms(100)).await;
    for _ in 0..2 {
        let start = Instant::now();
        let guard = within(ms(5_000), servers.multi().lock()).await;
        let guard = guard.expect("it gets in").expect("held");
        println!("in after {:?}", start.elapsed());
        guard.unlock().await.expect("held");
    }
    for crowd in crowds {
        let turns = crowd.leave().await;
        assert!(turns.iter().all(|turns| *turns > 0), "{turns:?}");
    }
    servers.finish().await;
}

/// The short queue brings it to the front long before the long one does.
async fn it_gets_in_beside_a_long_and_a_short_queue(tasks: [usize; 2]) {
    let servers = Servers::with_timeout(ms(300)).await;
    let [one, two] = &servers.clients;
    let crowds = [Crowd::of(one, "a", tasks[0]), Crowd::of(two, "b", tasks[1])];
    tokio::time::sleep(ms(100)).await;
    for _ in 0..3 {
        let start = Instant::now();
        let guard = within(ms(5_000), servers.multi().lock()).await;
        let guard = guard.expect("it gets in").expect("held");
        println!("{tasks:?}: in after {:?}", start.elapsed());
        guard.unlock().await.expect("held");
    }
    for crowd in crowds {
        let turns = crowd.leave().await;
        assert!(turns.iter().all(|turns| *turns > 0), "{turns:?}");
    }
    servers.finish().await;
}

cases! {
    it_gets_in_beside_a_long_and_a_short_queue;
    fn it_does_not_starve_beside_a_long_queue_and_a_short_one([2, 40]);
    fn it_does_not_starve_beside_a_short_queue_and_a_long_one([40, 2]);
}

/// For 10 s, or as many as `MULTI_STORM_SECS` says.
#[tokio::test]
async fn twenty_tasks_over_five_names_in_any_order_neither_block_nor_starve() {
    let secs = std::env::var("MULTI_STORM_SECS").map_or(10, |secs| secs.parse().expect("seconds"));
    may_take(Duration::from_secs(secs + 60));
    let servers = Servers::new().await;
    let end = Instant::now() + Duration::from_secs(secs);
    let inside: Arc<[AtomicUsize; 5]> = Arc::default();
    let task = |nth: u64| {
        // Half of them through other clients, which have queues of their own.
        let [one, two] = [&servers.clients, &servers.others][usize::from(nth % 2 == 1)];
        let locks: Vec<_> = (0..5)
            .map(|name| [one, two][name % 2].lock(format!("n{name}")))
            .collect();
        let inside = Arc::clone(&inside);
        tokio::spawn(async move {
            let mut state = nth + 1;
            let mut random = move |below: usize| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as usize % below
            };
            let (mut turns, mut longest) = (0, Duration::ZERO);
            while Instant::now() < end {
                let mut names: Vec<usize> = (0..5).collect();
                (0..5).for_each(|nth| names.swap(nth, nth + random(5 - nth)));
                names.truncate(2 + random(2));
                let multi = MultiLock::new(names.iter().map(|name| locks[*name].clone()));
                let start = Instant::now();
                let guard = multi
                    .expect("different locks")
                    .lock()
                    .await
                    .expect("its turn comes");
                longest = longest.max(start.elapsed().saturating_sub(stalls(start)));
                for name in &names {
                    assert_eq!(inside[*name].fetch_add(1, Ordering::SeqCst), 0, "alone");
                }
                tokio::time::sleep(ms(2)).await;
                names
                    .iter()
                    .for_each(|name| _ = inside[*name].fetch_sub(1, Ordering::SeqCst));
                guard.unlock().await.expect("held");
                turns += 1;
            }
            (turns, longest)
        })
    };
    let tasks: Vec<_> = (0..20).map(task).collect();
    let (mut turns, mut longest) = (Vec::new(), Duration::ZERO);
    for task in tasks {
        let (taken, waited) = task.await.expect("no panic");
        turns.push(taken);
        longest = longest.max(waited);
    }
    println!("turns {turns:?}, longest wait {longest:?}");
    assert!(longest < ms(5_000), "{longest:?}, turns {turns:?}");
    assert!(turns.iter().all(|turns| *turns > 0), "{turns:?}");
    servers.finish().await;
}

#[tokio::test]
async fn a_pair_is_two_script_calls_a_lock_and_one_more_for_each_lease_but_the_last() {
    let servers = Servers::new().await;
    for (multi, calls) in [
        (servers.multi(), [200, 200]),
        (servers.multi().lease(ms(20_000)), [300, 200]),
    ] {
        multi
            .lock()
            .await
            .expect("free")
            .unlock()
            .await
            .expect("held");
        let controls = [servers.one.control(), servers.two.control()];
        let monitors = [
            Monitor::start(servers.one.port),
            Monitor::start(servers.two.port),
        ];
        for _ in 0..100 {
            multi
                .lock()
                .await
                .expect("free")
                .unlock()
                .await
                .expect("held");
        }
        for ((monitor, mut control), calls) in monitors.into_iter().zip(controls).zip(calls) {
            let mut lines = monitor.take(&mut control);
            lines.retain(|line| !line.contains(" lua]"));
            let is_script = |line: &&String| line.contains("\"EVALSHA\"");
            let scripts = lines.iter().filter(is_script).count();
            assert_eq!((scripts, lines.len()), (calls, calls), "{lines:#?}");
        }
    }
    servers.finish().await;
}

/// Sections of tasks of one client over the same two locks, each of which a task takes as it is told; with how long they took.
async fn sections<F>(section: impl Fn(usize) -> F + Clone + Send + 'static) -> Duration
where
    F: Future<Output = ()> + Send,
{
    let start = Instant::now();
    let tasks: Vec<_> = (0..TASKS)
        .map(|nth| {
            let section = section.clone();
            tokio::spawn(async move {
                for _ in 0..ROUNDS {
                    section(nth).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    start.elapsed()
}

const TASKS: usize = 8;
const ROUNDS: usize = 25;

/// Each waits in the queues of its client, and asks when it is the first: what it takes is not given back in vain.
async fn contended_in_one_client_it_costs_little_more_than_two_script_calls_a_lock() {
    let server = TestServer::new();
    load_scripts(&mut server.control());
    let client = server.client().await;
    let owners: Arc<[_]> = (0..TASKS).map(|_| client.owner()).collect();
    let locks = ["a", "b"].map(|name| client.lock(name));
    let inside = Arc::new(AtomicUsize::new(0));
    let works = async |inside: &AtomicUsize| {
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "alone");
        tokio::task::yield_now().await;
        inside.fetch_sub(1, Ordering::SeqCst);
    };
    let members = move |nth: usize| locks.each_ref().map(|lock| lock.owned_by(&owners[nth]));
    let calls = || server.control().calls("evalsha");
    let mut measured = Vec::new();
    // In either order: half of the tasks in the other one.
    for orders in [1, 2] {
        let before = calls();
        let (members, inside) = (members.clone(), Arc::clone(&inside));
        let took = sections(move |nth: usize| {
            let mut members = members(nth);
            if nth % orders == 1 {
                members.reverse();
            }
            let inside = Arc::clone(&inside);
            async move {
                let multi = MultiLock::new(members).expect("two locks");
                let guard = multi.lock().await.expect("its turn comes");
                works(&inside).await;
                guard.unlock().await.expect("held");
            }
        })
        .await;
        measured.push((calls() - before, took));
    }
    let before = calls();
    let took = sections(move |nth: usize| {
        let (members, inside) = (members(nth), Arc::clone(&inside));
        async move {
            let first = members[0].lock().await.expect("its turn comes");
            let second = members[1].lock().await.expect("its turn comes");
            works(&inside).await;
            let (first, second) = tokio::join!(first.unlock(), second.unlock());
            first.and(second).expect("held");
        }
    })
    .await;
    println!("multi {measured:?}, sorted {:?}", (calls() - before, took));
    let least = (4 * TASKS * ROUNDS) as i64;
    for (calls, _) in measured {
        assert!(
            calls <= least + least / 4,
            "{calls} calls, {least} at least"
        );
    }
    server.finish([client]).await;
}

/// Each waits with nothing in hand, from its first busy answer on, where others of its client do: it does not take the one
/// lock over and over to find the other one busy.
#[tokio::test]
async fn neighbours_of_one_client_in_a_ring_give_little_back_in_vain() {
    let server = TestServer::new();
    load_scripts(&mut server.control());
    let client = server.client().await;
    let owners: Arc<[_]> = (0..TASKS).map(|_| client.owner()).collect();
    let locks = ["a", "b", "c", "d"].map(|name| client.lock(name));
    let took = sections(move |nth: usize| {
        let members = [0, 1].map(|of| locks[(nth + of) % 4].owned_by(&owners[nth]));
        async move {
            let multi = MultiLock::new(members).expect("two locks");
            let guard = multi.lock().await.expect("its turn comes");
            tokio::task::yield_now().await;
            guard.unlock().await.expect("held");
        }
    })
    .await;
    let calls = server.control().calls("evalsha");
    println!("ring {calls} calls, {took:?}");
    let least = (4 * TASKS * ROUNDS) as i64;
    assert!(
        calls <= least + 3 * least / 8,
        "{calls} calls, {least} at least"
    );
    server.finish([client]).await;
}

#[tokio::test]
async fn contended_on_one_thread_it_costs_little_more_than_two_script_calls_a_lock() {
    contended_in_one_client_it_costs_little_more_than_two_script_calls_a_lock().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contended_on_two_threads_it_costs_little_more_than_two_script_calls_a_lock() {
    contended_in_one_client_it_costs_little_more_than_two_script_calls_a_lock().await;
}

/// Its places in the queues are passed over meanwhile, and come back.
#[tokio::test]
async fn a_call_that_was_not_polled_while_it_queued_for_all_goes_on_when_it_is() {
    let servers = Servers::with_timeout(ms(1_500)).await;
    let [one, two] = &servers.clients;
    let theirs = servers.others[1].lock("b").lock().await.expect("free");
    let multi = servers.multi();
    let mut locking = Box::pin(multi.lock());
    let polled = async |locking: &mut Pin<Box<_>>, what: &str, fact: &mut dyn FnMut() -> bool| {
        tokio::select! {
            biased;
            locked = locking => panic!("{what}: {locked:?}"),
            () = eventually(what, ms(10_000), fact) => {}
        }
    };
    let other = |client: &LockClient, name: &str| client.lock(name).owned_by(&client.owner());
    let waits_for_b = &mut || servers.two.has_listener("b");
    polled(&mut locking, "it waits for b", waits_for_b).await;
    let holder = other(one, "a").lock().await.expect("given back");
    let next_holder = tokio::spawn({
        let lock = other(two, "b");
        async move { lock.lock().await }
    });
    let impatient_at = Instant::now() + ms(1_100);
    polled(&mut locking, "it is impatient", &mut || {
        Instant::now() > impatient_at && two.stats().waiting == 2
    })
    .await;
    theirs.unlock().await.expect("held");
    polled(&mut locking, "it queues for both", &mut || {
        next_holder.is_finished() && one.stats().waiting == 1 && two.stats().waiting == 1
    })
    .await;
    // Not polled from here on.
    let after_it = [(one, "a"), (two, "b")].map(|(client, name)| {
        let lock = other(client, name);
        tokio::spawn(async move { lock.lock().await?.unlock().await })
    });
    eventually("others queue", ms(10_000), || {
        one.stats().waiting == 2 && two.stats().waiting == 2
    })
    .await;
    holder.unlock().await.expect("held");
    let next_holder = within(ms(10_000), next_holder).await.expect("its turn");
    let next_holder = next_holder.expect("no panic").expect("free");
    next_holder.unlock().await.expect("held");
    for served in after_it {
        let served = within(ms(10_000), served).await.expect("it passes over");
        served.expect("no panic").expect("it had the lock");
    }
    let guard = within(ms(10_000), locking).await.expect("it goes on");
    guard.expect("free").unlock().await.expect("held");
    servers.finish().await;
}

/// A call is in the queues of `a`, which another owner holds, and of `b`, where it has its turn. Then the client of one of
/// them ends.
async fn it_ends_in_the_queues_with_client(nth: usize, is_runtime: bool) {
    let home = tokio::runtime::Runtime::new().expect("runtime");
    let mut servers = Servers::new().await;
    let url = [&servers.one, &servers.two][nth].url();
    let ending = home.spawn(async move { LockClient::connect(&url).await });
    let ending = ending.await.expect("no panic").expect("connected");
    let replaced = std::mem::replace(&mut servers.clients[nth], ending.clone());
    replaced.close(Duration::ZERO).await;
    let [one, two] = &servers.clients;
    let theirs = servers.others[1].lock("b").lock().await.expect("free");
    let locking = tokio::spawn({
        let multi = servers.multi();
        async move { multi.lock().await }
    });
    eventually("it waits for b", ms(5_000), || {
        servers.two.has_listener("b")
    })
    .await;
    let impatient_at = Instant::now() + ms(1_100);
    let holder = one.lock("a").owned_by(&one.owner()).lock().await;
    let holder = holder.expect("given back");
    eventually("it is impatient", ms(5_000), || {
        Instant::now() > impatient_at
    })
    .await;
    theirs.unlock().await.expect("held");
    eventually("it queues for both", ms(5_000), || {
        one.stats().waiting == 1 && two.stats().waiting == 1 && servers.keys().1.is_empty()
    })
    .await;
    let start = Instant::now();
    let closing = match is_runtime {
        true => {
            home.shutdown_background();
            None
        }
        false => {
            let closing = async move { ending.close(ms(20_000)).await };
            Some((tokio::spawn(closing), home))
        }
    };
    let ended = within(ms(5_000), locking).await.expect("it ends");
    let ended = ended.expect("no panic").expect_err("without its client");
    let took = start.elapsed();
    assert!(took < ms(1_000) + stalls(start), "{took:?}");
    let is_typed = match is_runtime {
        true => matches!(ended, Error::NoRuntime),
        false => matches!(ended, Error::Closed),
    };
    assert!(is_typed, "{ended:?}");
    drop(holder);
    if is_runtime {
        // Its client can release nothing, and nothing counts down what it had.
        _ = servers.one.control().run(&["DEL", "a"]);
        servers.clients[nth] = [&servers.one, &servers.two][nth].client().await;
    }
    if let Some((closing, home)) = closing {
        closing.await.expect("no panic");
        home.shutdown_background();
    }
    servers.finish().await;
}

#[tokio::test]
async fn it_ends_in_the_queues_when_a_client_is_closed() {
    it_ends_in_the_queues_with_client(0, false).await;
    it_ends_in_the_queues_with_client(1, false).await;
}

#[tokio::test]
async fn it_ends_in_the_queues_when_the_runtime_of_a_client_ends() {
    it_ends_in_the_queues_with_client(0, true).await;
    it_ends_in_the_queues_with_client(1, true).await;
}

#[tokio::test]
async fn the_question_whether_two_locks_are_one_waits_and_retries_as_the_call_does() {
    let servers = Servers::with_timeout(ms(500)).await;
    let [one, two] = &servers.clients;
    let same_name = || MultiLock::new([one.lock("a"), two.lock("a")]).expect("two locks");
    servers.two.pause();
    let start = Instant::now();
    let found = same_name().try_lock_for(ms(100)).await;
    let took = start.elapsed();
    let failed = found.expect_err("it does not know who has them");
    assert_matches!(failed, Error::NoAnswer { .. });
    assert_eq!(failed.lock(), Some("a"));
    assert!(took < ms(300) + stalls(start), "{took:?}");
    let waiting = tokio::spawn({
        let multi = same_name();
        async move { multi.try_lock_for(ms(20_000)).await }
    });
    let leading = tokio::spawn({
        let multi = same_name();
        async move { multi.lead(|_held| async { Ok::<_, Error>(7) }).await }
    });
    let failed = same_name().try_lock().await;
    assert_matches!(failed, Err(Error::NoAnswer { .. }));
    servers.two.resume();
    let guard = waiting.await.expect("no panic").expect("answered");
    guard.expect("free").unlock().await.expect("held");
    assert_eq!(leading.await.expect("no panic").expect("led"), 7);

    // One connection for each of the locks.
    let url = format!("{}/1", servers.one.url());
    let elsewhere = LockClient::connect(&url).await.expect("connected");
    let mut control = servers.one.control();
    let mut connections = || -> u32 {
        let stats = control.run(&["INFO", "stats"]);
        let (_, count) = stats
            .split_once("total_connections_received:")
            .expect("it counts");
        let end = count.find(|digit: char| !digit.is_ascii_digit());
        count[..end.unwrap_or(count.len())]
            .parse()
            .expect("a count")
    };
    let before = connections();
    let three = [one.lock("c"), two.lock("c"), elsewhere.lock("c")];
    let guard = MultiLock::new(three).expect("three locks").lock().await;
    guard.expect("free").unlock().await.expect("held");
    assert_eq!(connections() - before, 2);
    elsewhere.close(Duration::ZERO).await;
    servers.finish().await;
}

#[tokio::test]
async fn a_question_that_is_not_polled_holds_up_no_other_call() {
    let servers = Servers::new().await;
    let [one, two] = &servers.clients;
    let multi = MultiLock::new([one.lock("a"), two.lock("a")]).expect("two locks");
    let mut kept = Box::pin(multi.try_lock());
    let mut context = Context::from_waker(Waker::noop());
    assert!(kept.as_mut().poll(&mut context).is_pending());
    let guard = within(ms(2_000), multi.try_lock()).await.expect("in time");
    guard
        .expect("asked")
        .expect("free")
        .unlock()
        .await
        .expect("held");
    drop(kept);
    servers.finish().await;
}

#[tokio::test]
async fn the_question_is_asked_again_for_as_long_as_the_lock_of_a_silent_server_says() {
    let servers = Servers::with_timeout(ms(500)).await;
    let one = servers.clients[0].lock("x:a");
    let prefixed = |builder: LockClientBuilder| builder.command_timeout(ms(500)).key_prefix("x:");
    let prefixed = servers.two.client_with(prefixed).await;
    let silent = prefixed.lock("a");
    servers.two.pause();
    let patient = MultiLock::new([one.retry_for(ms(50)), silent.retry_for(ms(20_000))]);
    let patient = tokio::spawn({
        let patient = patient.expect("two locks");
        async move { patient.lock().await }
    });
    for (other, silent, most) in [
        (one.retry_for(ms(20_000)), silent.clone(), ms(1_000)),
        (one.clone(), silent.retry_for(ms(1_000)), ms(2_500)),
    ] {
        let multi = MultiLock::new([other, silent]).expect("two locks");
        let start = Instant::now();
        let failed = within(ms(5_000), multi.lock()).await.expect("in time");
        let failed = failed.expect_err("no answer");
        assert_matches!(failed, Error::NoAnswer { .. });
        assert_eq!(failed.lock(), Some("a"));
        let took = start.elapsed();
        assert!(took < most + stalls(start), "{took:?}");
        assert!(most < ms(2_000) || took > ms(1_000), "{took:?}");
    }
    servers.two.resume();
    let guard = within(ms(5_000), patient).await.expect("in time");
    let guard = guard.expect("no panic").expect("answered");
    guard.unlock().await.expect("held");
    prefixed.close(Duration::ZERO).await;
    servers.finish().await;
}

#[tokio::test]
async fn no_attempt_begins_after_the_deadline() {
    let servers = Servers::new().await;
    let multi = servers.multi();
    let warm = multi.try_lock().await.expect("asked").expect("free");
    warm.unlock().await.expect("held");
    let mut second = servers.two.control();
    let before = second.calls("evalsha");
    servers.one.pause();
    let failed = multi.try_lock_for(ms(300)).await;
    let failed = failed.expect_err("its first attempt has no answer");
    assert_matches!(failed, Error::NoAnswer { .. });
    servers.one.resume();
    let released = || servers.clients[0].stats().releasing == 0;
    eventually("the attempt is undone", ms(5_000), released).await;
    assert_eq!(second.calls("evalsha"), before);
    eventually("nothing is kept", ms(5_000), || servers.keys().0.is_empty()).await;
    servers.finish().await;
}

/// `a` is taken, and `b` on the way; then the server of `a` hangs.
/// A call with a deadline has all locks in the end. Another one fails with the name of the first. Nothing is left of either.
async fn taken_or_failed(
    servers: &Servers,
    locked: Result<Option<MultiGuard>, Error>,
    has_deadline: bool,
) -> Option<Error> {
    assert_eq!(locked.is_ok(), has_deadline, "{locked:?}");
    let failed = match locked {
        Ok(guard) => {
            let guard = guard.expect("free");
            assert_eq!(guard.state(), HoldState::Held);
            guard.unlock().await.expect("held");
            None
        }
        Err(error) => {
            assert_eq!(error.lock(), Some("a"));
            Some(error)
        }
    };
    let is_free = || servers.keys() == (String::new(), String::new());
    eventually("nothing is left", ms(5_000), is_free).await;
    failed
}

#[tokio::test]
async fn what_fails_while_leases_are_made_to_end_together_is_tried_again() {
    let servers = Servers::with_timeout(ms(700)).await;
    let multi = servers.multi().lease(ms(20_000));
    for has_deadline in [false, true] {
        servers.two.pause();
        let multi = multi.clone();
        let locking = tokio::spawn(async move {
            match has_deadline {
                true => multi.try_lock_for(ms(20_000)).await,
                false => multi.lock().await.map(Some),
            }
        });
        let mut first = servers.one.control();
        eventually("the first is held", ms(5_000), || first.count("a") == 1).await;
        servers.one.pause();
        servers.two.resume();
        let mut second = servers.two.control();
        eventually("the second is held", ms(5_000), || second.count("b") == 1).await;
        // Its extension has no answer, and the round is given back.
        eventually("all is given back", ms(5_000), || second.count("b") == 0).await;
        servers.one.resume();
        let locked = within(ms(10_000), locking).await.expect("in time");
        let failed = taken_or_failed(&servers, locked.expect("no panic"), has_deadline).await;
        assert_matches!(failed, None | Some(Error::NoAnswer { .. }));
    }
    servers.finish().await;
}

#[tokio::test]
async fn what_is_lost_before_all_are_taken_is_taken_again_or_is_the_error() {
    let servers = Servers::new().await;
    let [a, b] = servers.members();
    let multi = MultiLock::new([a.lease(ms(300)), b]).expect("two locks");
    for has_deadline in [false, true] {
        servers.two.pause();
        let multi = multi.clone();
        let locking = tokio::spawn(async move {
            match has_deadline {
                true => multi.try_lock_for(ms(20_000)).await,
                false => multi.lock().await.map(Some),
            }
        });
        let mut first = servers.one.control();
        eventually("the first is held", ms(5_000), || first.count("a") == 1).await;
        eventually("it is over", ms(5_000), || first.count("a") == 0).await;
        servers.two.resume();
        let locked = locking.await.expect("no panic");
        let failed = taken_or_failed(&servers, locked, has_deadline).await;
        assert_matches!(failed, None | Some(Error::Lost { .. }));
    }
    servers.finish().await;
}

/// Each round of `b` takes longer than the lease of `a`, whose server may be silent in the end.
async fn it_ends_within_the_retry_for_of_what_is_lost(is_silent: bool) -> Error {
    let servers = Servers::with_timeout(ms(500)).await;
    let proxy = Proxy::start(servers.two.port).await;
    let slow = LockClient::connect(&proxy.url()).await.expect("connected");
    proxy.slow_down(ms(300));
    let retry_for = ms(3_000);
    let a = servers.clients[0].lock("a").lease(ms(200));
    let both = [a.retry_for(retry_for), slow.lock("b").retry_for(ms(60_000))];
    let multi = MultiLock::new(both).expect("two locks");
    let start = Instant::now();
    let locking = tokio::spawn(async move { multi.lock().await });
    if is_silent {
        tokio::time::sleep(ms(2_500)).await;
        servers.one.pause();
    }
    let failed = within(ms(15_000), locking).await.expect("it ends");
    let failed = failed.expect("no panic").expect_err("no round is quick");
    // The first round before that is over, and one may be under way then.
    let most = retry_for + ms(2_500) + stalls(start);
    assert!(start.elapsed() < most, "{:?}", start.elapsed());
    assert_eq!(failed.lock(), Some("a"));
    servers.one.resume();
    proxy.slow_down(Duration::ZERO);
    slow.close(ms(5_000)).await;
    proxy.stop().await;
    servers.finish().await;
    failed
}

#[tokio::test]
async fn what_is_lost_in_each_round_is_taken_again_for_as_long_as_retry_for_says() {
    let failed = it_ends_within_the_retry_for_of_what_is_lost(false).await;
    assert_matches!(failed, Error::Lost { .. });
}

#[tokio::test]
async fn what_was_lost_is_waited_for_within_the_same_retry_for() {
    let failed = it_ends_within_the_retry_for_of_what_is_lost(true).await;
    assert_matches!(failed, Error::NoAnswer { .. });
}

/// An outage that has ended, because its lock was held and taken, is not counted with the next one.
#[tokio::test]
async fn retry_for_begins_again_when_a_lock_that_failed_is_acquired() {
    let servers = [TestServer::new(), TestServer::new()];
    let (mut proxies, mut clients) = (Vec::new(), Vec::new());
    for server in &servers {
        let proxy = Proxy::start(server.port).await;
        let builder = LockClient::builder().command_timeout(ms(300));
        clients.push(builder.connect(&proxy.url()).await.expect("it answers"));
        proxies.push(proxy);
    }
    let away = |nth: usize| {
        proxies[nth].refuse(true);
        proxies[nth].cut_all();
    };
    // Longer than an attempt, so the next one waits.
    let outage = ms(500);
    let retry_for = ms(1_500);
    let locks = [clients[0].lock("a"), clients[1].lock("b")];
    let both = MultiLock::new(locks.map(|lock| lock.retry_for(retry_for))).expect("two");
    both.lock()
        .await
        .expect("free")
        .unlock()
        .await
        .expect("held");
    let other = servers[1].client().await;
    let held = other.lock("b").lock().await.expect("free");
    away(1);
    let call = tokio::spawn({
        let both = both.clone();
        async move { both.lock().await }
    });
    tokio::time::sleep(outage).await;
    proxies[1].refuse(false);
    // Its server answers all the time.
    tokio::time::sleep(retry_for + ms(500)).await;
    away(0);
    held.unlock().await.expect("held");
    tokio::time::sleep(outage).await;
    away(1);
    proxies[0].refuse(false);
    tokio::time::sleep(outage).await;
    proxies[1].refuse(false);
    let guard = within(ms(6_000), call).await.expect("in time");
    let guard = guard.expect("no panic");
    let guard = guard.expect("each outage was shorter than its retry_for");
    guard.unlock().await.expect("held");
    for client in &clients {
        client.close(ms(1_000)).await;
    }
    for proxy in proxies {
        proxy.stop().await;
    }
    drop((both, clients));
    let [_, last] = servers;
    last.finish([other]).await;
}

/// What one server says of its lock is no answer of another one.
#[tokio::test]
async fn a_lock_whose_server_has_never_answered_is_not_busy() {
    let servers = Servers::with_timeout(ms(900)).await;
    let [ours, second] = &servers.clients;
    let held = servers.others[0].lock("b").lock().await.expect("free");
    let three = [ours.lock("a"), ours.lock("b"), second.lock("c")];
    let multi = MultiLock::new(three).expect("three locks");
    servers.two.pause();
    let call = tokio::spawn(async move { multi.try_lock_for(ms(1_800)).await });
    tokio::time::sleep(ms(1_500)).await;
    // It takes `a` and `b`, and asks for `c` with less time than tells that its server is silent.
    held.unlock().await.expect("held");
    let found = call.await.expect("no panic");
    assert_matches!(found, Err(Error::NoAnswer { .. }));
    servers.two.resume();
    servers.finish().await;
}

/// A call of its client is in the way, and has begun so late that the server is not silent for long.
#[tokio::test]
async fn a_lock_behind_a_call_without_an_answer_is_not_busy() {
    let servers = Servers::with_timeout(ms(900)).await;
    let [first, second] = servers.members();
    let other = servers.clients.each_ref().map(LockClient::owner);
    servers.two.pause();
    let held = first.owned_by(&other[0]).lock().await.expect("free");
    let multi = servers.multi();
    let call = tokio::spawn(async move { multi.try_lock_for(ms(600)).await });
    tokio::time::sleep(ms(250)).await;
    let asks = second.owned_by(&other[1]);
    let asks = tokio::spawn(async move { asks.lock().await.map(drop) });
    tokio::task::yield_now().await;
    held.unlock().await.expect("held");
    let found = call.await.expect("no panic");
    assert_matches!(found, Err(Error::NoAnswer { .. }));
    asks.abort();
    _ = asks.await;
    servers.two.resume();
    servers.finish().await;
}

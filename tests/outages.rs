//! A call that was never sent, because another one of its client is under way, reports an outage as one, and not as another
//! owner.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use redisson_lock::{
    DistributedLock, Error, LockClient, LockGuard, LockKind, MultiLock, RedGuard, RedLock,
};
use test_support::kinds::{KINDS, against};
use test_support::{
    Fate, Proxy, TestServer, assert_matches, eventually, lock_and_unlock, ms, tokio,
};

async fn client(server: &TestServer) -> LockClient {
    server
        .client_with(|builder| builder.command_timeout(ms(900)))
        .await
}

fn is_outage<G>(found: &Result<Option<G>, Error>) -> bool {
    matches!(found, Err(Error::NoAnswer { .. }))
}

/// How a hold ends while the server hangs.
#[derive(Debug, Clone, Copy)]
enum End {
    Dropped,
    UnlockUnderWay,
    UnlockFailed,
}

impl End {
    async fn of(self, guard: LockGuard) -> Option<tokio::task::JoinHandle<Result<(), Error>>> {
        match self {
            Self::Dropped => drop(guard),
            Self::UnlockUnderWay => return Some(tokio::spawn(guard.unlock())),
            Self::UnlockFailed => {
                let unlocked = guard.unlock().await;
                assert_matches!(unlocked, Err(Error::NoAnswer { .. }));
            }
        }
        None
    }
}

/// The latest that the server has said is that this client has the lock. Returns what was wrong.
async fn after(kind: LockKind, end: End) -> Vec<String> {
    let server = TestServer::new();
    let client = client(&server).await;
    let (first, second) = (client.owner(), client.owner());
    let guard = client.lock_of(kind, "a").owned_by(&first).lock().await;
    let guard = guard.expect("free");
    server.pause();
    let unlocking = end.of(guard).await;
    tokio::task::yield_now().await;
    let mut wrong = Vec::new();
    for (owner, wait) in [(&first, 300), (&second, 300), (&second, 1_500)] {
        let lock = client.lock_of(against(kind), "a").owned_by(owner);
        let found = lock.try_lock_for(ms(wait)).await;
        if !is_outage(&found) {
            wrong.push(format!("{kind}, {end:?}, {wait} ms: {found:?}"));
        }
    }
    server.resume();
    if let Some(unlocking) = unlocking {
        _ = unlocking.await;
    }
    server.finish([client]).await;
    wrong
}

#[tokio::test]
async fn after_a_hold_whose_release_has_no_answer() {
    let mut all = tokio::task::JoinSet::new();
    for kind in KINDS {
        for end in [End::Dropped, End::UnlockUnderWay, End::UnlockFailed] {
            all.spawn(after(kind, end));
        }
    }
    let wrong = all.join_all().await.concat();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn behind_a_call_of_the_same_client_that_has_no_answer() {
    let mut wrong = Vec::new();
    for kind in KINDS {
        let server = TestServer::new();
        let client = client(&server).await;
        let (first, second) = (client.owner(), client.owner());
        let lock = client.lock_of(against(kind), "a");
        let guard = lock.lock().await.expect("free");
        // While it is there, so is what the client knows of the lock.
        let handle = guard.handle();
        guard.unlock().await.expect("held");
        server.pause();
        let asks = lock.owned_by(&first);
        let asks = tokio::spawn(async move { asks.lock().await.map(drop) });
        tokio::task::yield_now().await;
        let found = lock.owned_by(&second).try_lock_for(ms(300)).await;
        if !is_outage(&found) {
            wrong.push(format!("{kind}: {found:?}"));
        }
        assert_matches!(asks.await.expect("no panic"), Err(Error::NoAnswer { .. }));
        server.resume();
        drop(handle);
        server.finish([client]).await;
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Calls without a deadline, begun while no server answers. Returns what was wrong.
async fn many<L: DistributedLock>(locks: impl IntoIterator<Item = L>, what: String) -> Vec<String> {
    let call = |lock: L| tokio::spawn(async move { lock.lock().await.map(drop) });
    let calls: Vec<_> = locks.into_iter().map(call).collect();
    let limit = tokio::time::Instant::now() + ms(9_000);
    let mut wrong = Vec::new();
    for mut call in calls {
        match tokio::time::timeout_at(limit, &mut call).await {
            Err(_) => wrong.push(format!("{what}: it waits")),
            Ok(Ok(Err(Error::NoAnswer { .. }))) => {}
            Ok(found) => wrong.push(format!("{what}: {found:?}")),
        }
        call.abort();
    }
    wrong
}

/// Each of them may try again for this long, whether it is its turn to ask the server or not.
#[tokio::test]
async fn many_calls_without_a_deadline_end_as_one_does() {
    let mut all = tokio::task::JoinSet::new();
    for (kind, goes_on) in KINDS.iter().flat_map(|kind| [(*kind, 0), (*kind, 2_000)]) {
        all.spawn(async move {
            let server = TestServer::new();
            let client = client(&server).await;
            let lock = client.lock_of(kind, "a").retry_for(ms(goes_on));
            server.pause();
            // One after the other they would take 11 s.
            let locks = (0..12).map(|_| lock.owned_by(&client.owner()));
            let wrong = many(locks, format!("{kind}, retry_for {goes_on} ms")).await;
            server.resume();
            server.finish([client]).await;
            wrong
        });
    }
    let wrong = all.join_all().await.concat();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Each of them wakes the one that waits.
#[tokio::test]
async fn short_calls_of_its_owner_keep_no_call_waiting() {
    let server = TestServer::new();
    let client = client(&server).await;
    let lock = client.lock("a");
    let held = lock.owned_by(&client.owner()).lock().await.expect("free");
    let mine = lock.owned_by(&client.owner());
    server.pause();
    drop(held);
    let short = tokio::spawn({
        let mine = mine.clone();
        async move {
            loop {
                let _ = mine.try_lock_for(ms(20)).await;
                tokio::time::sleep(ms(200)).await;
            }
        }
    });
    let wrong = many([mine], "a lock".to_owned()).await;
    short.abort();
    server.resume();
    server.finish([client]).await;
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn many_calls_of_several_locks_without_a_deadline_end_as_one_does() {
    let servers = [(); 3].map(|()| TestServer::new());
    let mut clients = Vec::new();
    for server in &servers {
        clients.push(client(server).await);
    }
    let members = || {
        clients
            .iter()
            .map(|client| client.lock("a").retry_for(ms(0)))
    };
    let multi = MultiLock::new(members()).expect("three locks");
    let red = RedLock::new(members()).expect("three servers");
    servers.iter().for_each(|server| server.pause());
    let mut wrong = Vec::new();
    // The second time behind what the first calls have left to be undone.
    for time in ["first", "second"] {
        let multis = (0..4).map(|_| multi.owned_by(&clients[0].owner()));
        wrong.extend(many(multis, format!("several locks, the {time} time")).await);
    }
    let reds = (0..4).map(|_| red.owned_by(&clients[0].owner()));
    wrong.extend(many(reds, "a red lock".to_owned()).await);
    servers.iter().for_each(|server| server.resume());
    for client in clients {
        client.close(ms(5_000)).await;
    }
    for server in servers {
        server.finish([]).await;
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The hold that they have waited for ends in the outage, and nobody knows whether the server has released it.
#[tokio::test]
async fn calls_without_a_deadline_that_queue_when_the_outage_begins_end_too() {
    let server = TestServer::new();
    let client = client(&server).await;
    let lock = client.lock("b").retry_for(ms(0));
    let multi = MultiLock::new([client.lock("a").retry_for(ms(0)), lock.clone()]).expect("two");
    let mut wrong = Vec::new();
    for of_several in [false, true] {
        let before = client.stats().acquired_total;
        let guard = lock.lock().await.expect("free");
        let calls = tokio::spawn({
            let owners: Vec<_> = (0..3).map(|_| client.owner()).collect();
            let (lock, multi) = (lock.clone(), multi.clone());
            async move {
                match of_several {
                    true => {
                        let multis = owners.iter().map(|owner| multi.owned_by(owner));
                        many(multis, "several locks".to_owned()).await
                    }
                    false => {
                        let locks = owners.iter().map(|owner| lock.owned_by(owner));
                        many(locks, "a lock".to_owned()).await
                    }
                }
            }
        });
        // Of several locks, one was taken and given back: the other one is waited for.
        let acquired = 1 + u64::from(of_several);
        eventually("they queue", ms(5_000), || {
            let stats = client.stats();
            let none_under_way = stats.held == 1 && stats.releasing == 0;
            none_under_way && stats.waiting >= 3 && stats.acquired_total >= before + acquired
        })
        .await;
        server.pause();
        drop(guard);
        wrong.extend(calls.await.expect("no panic"));
        server.resume();
        eventually("it is free again", ms(10_000), || {
            client.stats().releasing == 0
        })
        .await;
    }
    server.finish([client]).await;
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// It waits in the queue of its client for a lock that another client held before the server was lost.
#[tokio::test]
async fn of_several_locks_in_the_queue_of_their_client() {
    let mut server = TestServer::new();
    let (ours, theirs) = (client(&server).await, server.client().await);
    let held = theirs.lock("b").lock().await.expect("free");
    let queues = ours.lock("b").retry_for(ms(60_000));
    let queues = tokio::spawn(async move { queues.lock().await.map(drop) });
    let multi = MultiLock::new([ours.lock("a"), ours.lock("b")]).expect("two");
    let waiting = tokio::spawn(async move { multi.try_lock_for(ms(4_000)).await });
    eventually("both queue", ms(2_000), || ours.stats().waiting >= 2).await;
    server.kill();
    let found = waiting.await.expect("no panic");
    assert!(is_outage(&found), "{found:?}");
    queues.abort();
    drop((held, ours, theirs));
}

/// A server that has never said anything of its lock.
#[tokio::test]
async fn of_several_locks_with_a_silent_server() {
    let (one, two) = (TestServer::new(), TestServer::new());
    let (first, second) = (client(&one).await, client(&two).await);
    two.pause();
    let asks = second.lock("b").retry_for(ms(60_000));
    let asks = tokio::spawn(async move { asks.lock().await.map(drop) });
    tokio::task::yield_now().await;
    for wait in [300, 2_000] {
        let multi = MultiLock::new([first.lock("a"), second.lock("b")]).expect("two");
        let found = multi.try_lock_for(ms(wait)).await;
        assert!(is_outage(&found), "{wait} ms: {found:?}");
    }
    asks.abort();
    _ = asks.await;
    two.resume();
    first.close(ms(5_000)).await;
    second.close(ms(5_000)).await;
    one.finish([]).await;
    two.finish([]).await;
}

#[tokio::test]
async fn of_a_red_lock_behind_a_round_without_an_answer() {
    let servers = [(); 3].map(|()| TestServer::new());
    let mut clients = Vec::new();
    for server in &servers {
        clients.push(client(server).await);
    }
    let red = RedLock::new(clients.iter().map(|client| client.lock("red"))).expect("three");
    let guard = red.lock().await.expect("free");
    guard.unlock().await.expect("held");
    servers.iter().for_each(|server| server.pause());
    let asks = red.owned_by(&clients[0].owner());
    let asks = tokio::spawn(async move { asks.lock().await.map(drop) });
    tokio::task::yield_now().await;
    let second = red.owned_by(&clients[0].owner());
    let found = second.try_lock_for(ms(300)).await;
    assert!(is_outage(&found), "{found:?}");
    asks.abort();
    _ = asks.await;
    servers.iter().for_each(|server| server.resume());
    for client in clients {
        client.close(ms(5_000)).await;
    }
    for server in servers {
        server.finish([]).await;
    }
}

/// How long after `began` each call without a deadline has ended, in command timeouts of half a second. Each reports the
/// outage.
async fn timeouts_until_the_outage_is_seen<L: DistributedLock>(
    locks: impl IntoIterator<Item = L>,
    began: Instant,
) -> Vec<f64> {
    let call = |lock: L| {
        tokio::spawn(async move {
            let found = tokio::time::timeout(ms(9_000), lock.lock()).await;
            let failed = found.map_or_else(|_| None, Result::err);
            (began.elapsed(), failed)
        })
    };
    let calls: Vec<_> = locks.into_iter().map(call).collect();
    let mut ended = Vec::new();
    for call in calls {
        let (after, failed) = call.await.expect("no panic");
        assert_matches!(failed, Some(Error::NoAnswer { .. }), "after {after:?}");
        ended.push(after.as_secs_f64() / 0.5);
    }
    ended
}

/// Three servers of which each has a client with a command timeout of half a second.
async fn three_servers() -> ([TestServer; 3], Vec<LockClient>) {
    let servers = [(); 3].map(|()| TestServer::new());
    let mut clients = Vec::new();
    for server in &servers {
        let client = server.client_with(|builder| builder.command_timeout(ms(500)));
        clients.push(client.await);
    }
    (servers, clients)
}

async fn finish(servers: [TestServer; 3], clients: Vec<LockClient>) {
    servers.iter().for_each(|server| server.resume());
    for client in clients {
        client.close(ms(5_000)).await;
    }
    for server in servers {
        server.finish([]).await;
    }
}

/// However many there are, and whatever the first of them does.
#[tokio::test]
async fn red_locks_without_a_deadline_end_within_four_command_timeouts() {
    for (is_behind_a_deadline, retry_for) in [(false, 0), (true, 0), (true, 1_000)] {
        let (servers, clients) = three_servers().await;
        let members = clients
            .iter()
            .map(|client| client.lock("red").retry_for(ms(retry_for)));
        let red = RedLock::new(members).expect("three servers");
        let guard = red.lock().await.expect("free");
        guard.unlock().await.expect("held");
        servers.iter().for_each(|server| server.pause());
        let began = Instant::now();
        let other = red.owned_by(&clients[0].owner());
        let first = tokio::spawn(async move {
            if is_behind_a_deadline {
                _ = other.try_lock_for(ms(14_000)).await;
            }
        });
        tokio::task::yield_now().await;
        let calls = (0..12).map(|_| red.owned_by(&clients[0].owner()));
        let ended = timeouts_until_the_outage_is_seen(calls, began).await;
        first.abort();
        _ = first.await;
        finish(servers, clients).await;
        let what = format!("behind a deadline: {is_behind_a_deadline}, retry_for {retry_for} ms");
        println!("{what}: {ended:.2?}");
        // One more round and its pause are under way when the time is over.
        let most = if retry_for == 0 { 4.3 } else { 8.3 };
        assert!(ended.iter().all(|ended| *ended < most), "{what}: {ended:?}");
    }
}

/// The first caller gives the servers less time than they need, and goes on; or another client has the lock.
#[tokio::test]
async fn red_locks_without_a_deadline_wait_behind_one_that_is_too_short_or_finds_it_busy() {
    let (servers, direct) = three_servers().await;
    let (mut proxies, mut clients) = (Vec::new(), Vec::new());
    for server in &servers {
        let proxy = Proxy::start(server.port).await;
        let builder = LockClient::builder().command_timeout(ms(900));
        let client = builder.connect(&proxy.url()).await.expect("connected");
        let opened = client.lock("opened").lock().await.expect("free");
        opened.unlock().await.expect("held");
        proxy.slow_down(ms(80));
        clients.push(client);
        proxies.push(proxy);
    }
    let red = RedLock::new(clients.iter().map(|client| client.lock("red"))).expect("three");
    let second = || {
        let red = red.owned_by(&clients[0].owner());
        tokio::spawn(async move { red.lock().await })
    };
    let short = red.member_timeout(ms(20)).owned_by(&clients[0].owner());
    let short = tokio::spawn(async move { short.try_lock_for(ms(2_500)).await });
    tokio::task::yield_now().await;
    let behind = second();
    let found = short.await.expect("no panic");
    assert!(is_outage(&found), "{found:?}");
    let held = behind.await.expect("no panic").expect("the servers answer");
    // It waits for this one, and then the next.
    let behind = second();
    tokio::time::sleep(ms(2_500)).await;
    assert!(!behind.is_finished());
    held.unlock().await.expect("held");
    let held = behind.await.expect("no panic").expect("it is released");
    held.unlock().await.expect("held");
    for (client, proxy) in clients.into_iter().zip(proxies) {
        proxy.slow_down(ms(0));
        client.close(ms(5_000)).await;
        proxy.stop().await;
    }
    finish(servers, direct).await;
}

/// Another call is in the way, so the silent server is not asked, and its lock is busy only as far as the client knows.
#[tokio::test]
async fn retry_for_of_several_locks_ends_although_a_call_of_the_client_is_in_the_way() {
    let (servers, clients) = three_servers().await;
    let held = clients[1].lock("b").owned_by(&clients[1].owner());
    let held = held.lock().await.expect("free");
    servers[1].pause();
    let began = Instant::now();
    drop(held);
    let queues = clients[1].lock("b").owned_by(&clients[1].owner());
    let queues = tokio::spawn(async move { queues.try_lock_for(ms(14_000)).await.map(drop) });
    tokio::time::sleep(ms(20)).await;
    let both = [clients[0].lock("a"), clients[1].lock("b")];
    let multi = MultiLock::new(both.map(|lock| lock.retry_for(ms(1_000)))).expect("two locks");
    let ended = timeouts_until_the_outage_is_seen([multi], began).await;
    queues.abort();
    _ = queues.await;
    finish(servers, clients).await;
    // A look takes up to two and a half, and begins when the one before has ended.
    assert!(ended[0] < 8.3, "{ended:?}");
}

/// One server says busy, another one has no lock there, and the third does not answer.
#[tokio::test]
async fn a_red_lock_of_which_one_server_alone_has_said_busy_is_not_busy() {
    let (servers, clients) = three_servers().await;
    let theirs = servers[0].client().await;
    let held = theirs.lock("red").lock().await.expect("free");
    servers[1].control().run(&["RPUSH", "red", "no lock"]);
    servers[2].pause();
    let red = RedLock::new(clients.iter().map(|client| client.lock("red"))).expect("three");
    for wait in [0, 1_500] {
        let found = match wait {
            0 => red.try_lock().await,
            wait => red.try_lock_for(ms(wait)).await,
        };
        assert!(is_outage(&found), "{wait} ms: {found:?}");
    }
    held.unlock().await.expect("held");
    theirs.close(ms(1_000)).await;
    servers[1].control().run(&["DEL", "red"]);
    finish(servers, clients).await;
}

/// Owners of the other kinds do not wait for each other in their client.
fn waits_in_the_client(kind: LockKind) -> bool {
    !matches!(kind, LockKind::Read | LockKind::Fair | LockKind::Spin)
}

/// A server that is slow has not hung: others of the client have the lock in turn.
#[tokio::test]
async fn behind_callers_of_a_slow_server_the_lock_is_busy() {
    for kind in KINDS.into_iter().filter(|kind| waits_in_the_client(*kind)) {
        let server = TestServer::new();
        let proxy = Proxy::start(server.port).await;
        let client = LockClient::connect(&proxy.url()).await.expect("connected");
        let lock = client.lock_of(kind, "a");
        proxy.slow_down(ms(60));
        let loops = (0..16).map(|_| {
            let lock = lock.owned_by(&client.owner());
            tokio::spawn(async move {
                loop {
                    let guard = lock.lock().await.expect("no outage");
                    guard.unlock().await.expect("held");
                }
            })
        });
        let loops: Vec<_> = loops.collect();
        eventually("they queue", ms(5_000), || client.stats().waiting >= 14).await;
        for _ in 0..3 {
            let found = lock.owned_by(&client.owner()).try_lock_for(ms(400)).await;
            assert_matches!(found, Ok(None), "{kind}");
        }
        loops.iter().for_each(tokio::task::JoinHandle::abort);
        proxy.slow_down(ms(0));
        client.close(ms(5_000)).await;
        proxy.stop().await;
        server.finish([]).await;
    }
}

/// Nothing was heard by a call that was too short for an answer, and the next one is under way: no outage, for those that
/// wait.
#[tokio::test]
async fn calls_without_a_deadline_wait_for_one_whose_answer_is_slow() {
    let servers = [(); 3].map(|()| TestServer::new());
    let (mut proxies, mut clients) = (Vec::new(), Vec::new());
    for server in &servers {
        let proxy = Proxy::start(server.port).await;
        let client = LockClient::connect(&proxy.url()).await.expect("connected");
        let opened = client.lock("opened").lock().await.expect("free");
        opened.unlock().await.expect("held");
        proxy.slow_down(ms(200));
        clients.push(client);
        proxies.push(proxy);
    }
    // One that is too short, and one that is answered.
    let others = |nth: usize, name: &'static str| {
        let [short, slow] =
            [(); 2].map(|()| clients[nth].lock(name).owned_by(&clients[nth].owner()));
        async move {
            let found = short.try_lock_for(ms(60)).await;
            assert!(is_outage(&found), "{name}: {found:?}");
            let held = slow.lock().await.expect("it is released");
            held.unlock().await.expect("held");
        }
    };
    let several = ["first", "second"].map(|name| clients[0].lock(name));
    let several = MultiLock::new(several.to_vec()).expect("two locks");
    let several = async {
        let held = several.lock().await;
        held.expect("the server answers")
            .unlock()
            .await
            .expect("held");
    };
    tokio::join!(several, others(0, "second"));
    let red: Vec<_> = clients.iter().map(|client| client.lock("red")).collect();
    let red = RedLock::new(red).expect("three servers");
    let red = async {
        tokio::time::sleep(ms(100)).await;
        let held = red.lock().await;
        held.expect("the servers answer")
            .unlock()
            .await
            .expect("held");
    };
    tokio::join!(red, others(0, "red"), others(1, "red"));
    for (client, proxy) in clients.into_iter().zip(proxies) {
        proxy.slow_down(ms(0));
        client.close(ms(5_000)).await;
        proxy.stop().await;
    }
    for server in servers {
        server.finish([]).await;
    }
}

/// The process stalls while a call that had no time for an answer is under way. What it did not hear says nothing of the
/// server, although it ends late.
#[tokio::test]
async fn a_stall_at_the_deadline_is_no_outage() {
    const STALL: u64 = 80;
    let server = TestServer::new();
    let proxy = Proxy::start(server.port).await;
    let ours = LockClient::connect(&proxy.url()).await.expect("connected");
    let theirs = server.client().await;
    let held = theirs.lock("a").lock().await.expect("free");
    let deadline = Instant::now() + ms(400);
    // The first listens to the lock until it gives up; the second has its turn then, and 10 ms; the others queue.
    let calls = (0..20).map(|nth: u64| {
        let lock = ours.lock("a").owned_by(&ours.owner());
        let until = deadline + if nth == 0 { ms(0) } else { ms(10) };
        tokio::spawn(async move { lock.try_lock_until(until).await.map(|got| got.is_some()) })
    });
    let calls: Vec<_> = calls.collect();
    let mut control = server.control();
    let waits = || {
        control
            .run(&["PUBSUB", "NUMSUB", "redisson_lock__channel:{a}"])
            .ends_with(" 1")
    };
    eventually("the first waits", ms(300), waits).await;
    // Longer than the second has.
    proxy.slow_down(ms(30));
    tokio::time::sleep_until((deadline + ms(4)).into()).await;
    std::thread::sleep(ms(STALL));
    for (nth, call) in calls.into_iter().enumerate() {
        let found = call.await.expect("no panic");
        // Nothing was heard by the second itself.
        let is_right = matches!(found, Ok(false)) || nth == 1 && found.is_err();
        assert!(is_right, "call {nth}: {found:?}");
    }
    held.unlock().await.expect("held");
    proxy.slow_down(ms(0));
    ours.close(ms(5_000)).await;
    proxy.stop().await;
    server.finish([theirs]).await;
}

/// No thread of the runtime does anything for a while. What has arrived meanwhile is read before a call says that the server
/// is silent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stall_of_the_runtime_is_no_outage() {
    let server = TestServer::new();
    let (ours, theirs) = (server.client().await, server.client().await);
    let held = theirs.lock("a").lock().await.expect("free");
    let listens = ours.lock("a").owned_by(&ours.owner());
    let listens = tokio::spawn(async move { listens.lock().await?.unlock().await });
    eventually("it waits", ms(5_000), || ours.stats().waiting == 1).await;
    // Something is always sent.
    let others = (0..4).map(|nth| {
        let lock = ours.lock(format!("b{nth}"));
        tokio::spawn(async move {
            loop {
                lock.lock()
                    .await
                    .expect("free")
                    .unlock()
                    .await
                    .expect("held");
            }
        })
    });
    let others: Vec<_> = others.collect();
    let mut wrong = Vec::new();
    for round in 0..12 {
        let calls: Vec<_> = (0..50)
            .map(|_| {
                let lock = ours.lock("a").owned_by(&ours.owner());
                tokio::spawn(async move { lock.try_lock_for(ms(60)).await.map(drop) })
            })
            .collect();
        tokio::time::sleep(ms(12)).await;
        let all = Arc::new(std::sync::Barrier::new(2));
        for _ in 0..2 {
            let all = Arc::clone(&all);
            tokio::spawn(async move {
                all.wait();
                std::thread::sleep(ms(150));
            });
        }
        for call in calls {
            let found = call.await.expect("no panic");
            wrong.extend(found.err().map(|error| format!("round {round}: {error}")));
        }
    }
    others.iter().for_each(|other| other.abort());
    held.unlock().await.expect("held");
    listens.await.expect("no panic").expect("free and held");
    ours.close(ms(5_000)).await;
    server.finish([theirs]).await;
    // Beside other programs the server may be silent itself for as long as a call waits.
    assert!(
        wrong.len() <= 10,
        "{} of 600: {:?}",
        wrong.len(),
        wrong.first()
    );
}

/// Three servers at which another process has the lock `red`, and a red lock of ours there; through proxies, if answers are
/// to be slow.
struct HeldRed {
    servers: [TestServer; 3],
    proxies: Vec<Proxy>,
    clients: Vec<LockClient>,
    ours: RedLock,
}

impl HeldRed {
    async fn new(slow: bool) -> (Self, RedGuard) {
        let servers = [(); 3].map(|()| TestServer::new());
        let (mut proxies, mut clients) = (Vec::new(), Vec::new());
        for server in &servers {
            if slow {
                let proxy = Proxy::start(server.port).await;
                clients.push(LockClient::connect(&proxy.url()).await.expect("connected"));
                proxies.push(proxy);
            } else {
                clients.push(server.client().await);
            }
        }
        for server in &servers {
            clients.push(server.client().await);
        }
        let red = |clients: &[LockClient]| {
            RedLock::new(clients.iter().map(|client| client.lock("red"))).expect("three servers")
        };
        let (ours, theirs) = (red(&clients[..3]), red(&clients[3..]));
        // Where its servers are is known from the first call on.
        ours.lock()
            .await
            .expect("free")
            .unlock()
            .await
            .expect("held");
        let held = theirs.lock().await.expect("free");
        let this = Self {
            servers,
            proxies,
            clients,
            ours,
        };
        (this, held)
    }

    async fn finish(self, held: RedGuard) {
        held.unlock().await.expect("held");
        for client in self.clients {
            client.close(ms(5_000)).await;
        }
        for proxy in self.proxies {
            proxy.stop().await;
        }
        finish(self.servers, Vec::new()).await;
    }
}

/// Its last round has no time to be answered, but the one before it was.
#[tokio::test]
async fn a_red_lock_at_slow_servers_is_busy() {
    let (red, held) = HeldRed::new(true).await;
    let mut found = Vec::new();
    let (loads, loading) = (Arc::new(AtomicBool::new(false)), "-LOADING not yet");
    let refuses = Arc::clone(&loads);
    red.proxies[0].rule(Fate::Instead(loading), usize::MAX, move |words| {
        refuses.load(Ordering::Relaxed) && words[0].starts_with("EVAL")
    });
    for nth in 0..10 {
        // What one of three says is no reason either.
        let is_loading = nth >= 5;
        loads.store(is_loading, Ordering::Relaxed);
        let slow = &red.proxies[usize::from(is_loading)..];
        let wait = 700 + nth % 5 * 60;
        slow.iter().for_each(|proxy| proxy.slow_down(ms(80)));
        found.push(red.ours.try_lock_for(ms(wait)).await.map(drop));
        slow.iter().for_each(|proxy| proxy.slow_down(ms(0)));
        loads.store(false, Ordering::Relaxed);
        let is_idle = |client: &LockClient| client.stats().entries == 0;
        eventually("nothing is under way", ms(5_000), || {
            red.clients[..3].iter().all(is_idle)
        })
        .await;
    }
    red.finish(held).await;
    assert!(found.iter().all(Result::is_ok), "{found:?}");
}

/// This process stands still while the last answers arrive.
#[tokio::test]
async fn a_stall_at_the_deadline_is_no_outage_for_several_locks_or_a_red_one() {
    let (red, held) = HeldRed::new(false).await;
    let client = &red.clients[0];
    let mut wrong = Vec::new();
    let mut check = |what: &str, found: Result<bool, Error>| {
        wrong.extend(found.err().map(|error| format!("{what}: {error}")));
    };
    for wait in [0, 30, 60, 200] {
        for _ in 0..5 {
            let ours = red.ours.owned_by(&client.owner());
            let call = async move { Ok(ours.try_lock_for(ms(wait)).await?.is_some()) };
            let call = tokio::spawn(call);
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
            std::thread::sleep(ms(wait + 60));
            check("red", call.await.expect("no panic"));

            // The second is asked when the first is there.
            let several = MultiLock::new([client.lock("a"), client.lock("red")]);
            let several = several.expect("two").owned_by(&client.owner());
            let before = client.stats().acquired_total;
            let call = async move { Ok(several.try_lock_for(ms(wait)).await?.is_some()) };
            let call = tokio::spawn(call);
            while client.stats().acquired_total == before && !call.is_finished() {
                tokio::task::yield_now().await;
            }
            std::thread::sleep(ms(wait + 60));
            check("several", call.await.expect("no panic"));
        }
    }
    red.finish(held).await;
    assert!(
        wrong.is_empty(),
        "{} of 40: {:?}",
        wrong.len(),
        wrong.first()
    );
}

/// The call has asked nothing, so no answer about the lock would come and end what it has concluded.
#[tokio::test]
async fn an_outage_that_a_call_concludes_at_its_deadline_is_over_when_the_server_answers() {
    let mut wrong = Vec::new();
    use LockKind::{Fair, Fenced, Plain, Read, Write};
    for kind in [Plain, Fenced, Fair, Read, Write] {
        let server = TestServer::new();
        let (ours, theirs) = (client(&server).await, server.client().await);
        let lock = || ours.lock_of(kind, "a").owned_by(&ours.owner());
        let held = theirs.lock_of(against(kind), "a").lock().await;
        let held = held.expect("free");
        let waits = lock();
        let waits = tokio::spawn(async move { lock_and_unlock(&waits).await });
        eventually("it waits", ms(5_000), || ours.stats().contended_total == 1).await;
        // The connection owes an answer.
        server.pause();
        let other = ours.lock("b");
        let other = tokio::spawn(async move { other.lock().await?.unlock().await });
        eventually("it is sent", ms(5_000), || ours.stats().entries == 2).await;
        let mut hangs = lock().try_lock_for(ms(60)).await;
        if hangs.is_ok() {
            // It read what the server had answered before it hung.
            hangs = lock().try_lock_for(ms(60)).await;
        }
        server.resume();
        other.await.expect("no panic").expect("free");
        let [at_once, soon] = [lock().try_lock().await, lock().try_lock_for(ms(100)).await];
        if !(is_outage(&hangs) && matches!((&at_once, &soon), (Ok(None), Ok(None)))) {
            wrong.push(format!("{kind}: {hangs:?}, {at_once:?}, {soon:?}"));
        }
        held.unlock().await.expect("held");
        waits.await.expect("no panic");
        server.finish([ours, theirs]).await;
    }
    assert_eq!(wrong, Vec::<String>::new());
}

//! Fair locks: owners of all clients get one in the order in which they asked for it.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

use redisson_lock::{Error, HoldState, Lock, LockClient, LockGuard, LockKind, TryLock};
use test_support::kinds::acquires;
use test_support::{Control, Fate, Proxy, Rolls, TestServer, eventually, ms, stalls, tokio};
use tokio::task::JoinHandle;

const QUEUE: &str = "redisson_lock_queue:{fair}";
const TIMEOUTS: &str = "redisson_lock_timeout:{fair}";

fn queued(control: &mut Control) -> i64 {
    const ALIKE: &str = "local list = redis.call('llen', KEYS[1])\n\
        return list == redis.call('zcard', KEYS[2]) and list or -1";
    let queued = control.number(&["EVAL", ALIKE, "2", QUEUE, TIMEOUTS]);
    assert_ne!(queued, -1, "the list and the set differ");
    queued
}

/// Two clients at one server.
struct Two {
    server: TestServer,
    clients: [LockClient; 2],
    control: Control,
}

impl Two {
    async fn new() -> Self {
        let server = TestServer::new();
        let clients = [server.client().await, server.client().await];
        let control = server.control();
        Self {
            server,
            clients,
            control,
        }
    }

    async fn queued(&mut self, owners: i64) {
        let control = &mut self.control;
        eventually("they queue", ms(20_000), || queued(control) == owners).await;
    }

    fn lock(&self, client: usize) -> Lock {
        self.clients[client].fair_lock("fair")
    }

    async fn held(&self) -> LockGuard {
        self.lock(0).lock().await.expect("free")
    }

    /// A call of this client that waits as the last of this many owners.
    async fn waits(
        &mut self,
        client: usize,
        owners: usize,
    ) -> JoinHandle<Result<LockGuard, Error>> {
        let lock = self.lock(client);
        let waiting = tokio::spawn(async move { lock.lock().await });
        self.queued(i64::try_from(owners).expect("few")).await;
        waiting
    }

    /// A client's calls wait and are dropped, or end with it: what all calls that take them out cost the server, and the
    /// longest of these.
    async fn leave_together(&mut self, waiters: usize, closes: bool) -> Duration {
        let client = self.server.client().await;
        let before = self.control.calls("evalsha");
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..waiters {
            let lock = client.fair_lock("fair");
            waiting.spawn(async move { lock.lock().await.map(drop) });
        }
        // Each attempts again when it hears its channel.
        let control = &mut self.control;
        let attempts = || control.calls("evalsha") - before >= 2 * waiters as i64;
        eventually("all wait", ms(30_000), attempts).await;
        self.queued(i64::try_from(waiters).expect("few")).await;
        script_calls(&mut self.control);
        let before = processor_time(&mut self.control);
        if closes {
            let report = client.close(ms(2_000)).await;
            assert_eq!(report.unconfirmed, 0);
        }
        drop(waiting);
        self.queued(0).await;
        let spent = processor_time(&mut self.control) - before;
        let [calls, most] = script_calls(&mut self.control);
        assert!(calls < 50, "{calls} calls");
        // The script's name, three keys with their number, the channel, the way, and two words for each owner.
        assert!((400..=408).contains(&most), "{most} words");
        client.close(ms(100)).await;
        println!("{calls} calls, {most} words at most, {spent:?}");
        spent
    }

    async fn finish(mut self) {
        self.queued(0).await;
        self.server.finish(self.clients).await;
    }
}

#[tokio::test]
async fn owners_of_four_clients_get_it_in_their_order() {
    const WAITERS: usize = 200;
    let mut two = Two::new().await;
    let more = [two.server.client().await, two.server.client().await];
    let held = two.held().await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = tokio::task::JoinSet::new();
    for nth in 0..WAITERS {
        let clients = [&two.clients[0], &two.clients[1], &more[0], &more[1]];
        let (lock, order) = (clients[nth % 4].fair_lock("fair"), Arc::clone(&order));
        waiters.spawn(async move {
            let guard = lock.lock().await.expect("its turn");
            order.lock().expect("unpoisoned").push(nth);
            guard.unlock().await.expect("held");
        });
        two.queued(i64::try_from(nth).expect("few") + 1).await;
    }
    let start = Instant::now();
    held.unlock().await.expect("held");
    waiters.join_all().await;
    let took = start.elapsed();
    assert!(took < Duration::from_secs(20) + stalls(start), "{took:?}");
    let order = order.lock().expect("unpoisoned").clone();
    assert_eq!(order, (0..WAITERS).collect::<Vec<_>>());
    for client in more {
        client.close(ms(100)).await;
    }
    two.finish().await;
}

#[tokio::test]
async fn a_waiter_that_is_dropped_leaves_no_place_and_the_next_is_told() {
    let mut two = Two::new().await;
    let held = two.held().await;
    let mut waiters = Vec::new();
    for nth in 0..3 {
        waiters.push(two.waits(nth % 2, nth + 1).await);
    }
    for dropped in [1, 0] {
        waiters.remove(dropped).abort();
    }
    two.queued(1).await;
    held.unlock().await.expect("held");
    let guard = waiters
        .remove(0)
        .await
        .expect("no panic")
        .expect("its turn");
    assert_eq!(guard.state(), HoldState::Held);
    guard.unlock().await.expect("held");
    two.finish().await;
}

#[tokio::test]
async fn an_attempt_takes_no_place_and_does_not_overtake() {
    let mut two = Two::new().await;
    let one = two.lock(0);
    let held = one.lock().await.expect("free");
    let stranger = one.owned_by(&two.clients[0].owner());
    assert!(stranger.try_lock().await.expect("asked").is_none());
    two.queued(0).await;
    let waiting = two.waits(1, 1).await;
    let nested = one.lock().await.expect("nested");
    nested.unlock().await.expect("held");
    held.unlock().await.expect("held");
    let next = waiting.await.expect("no panic").expect("its turn");
    assert!(stranger.try_lock().await.expect("asked").is_none());
    assert!(
        stranger
            .try_lock_for(ms(300))
            .await
            .expect("asked")
            .is_none()
    );
    two.queued(0).await;
    next.unlock().await.expect("held");
    stranger
        .try_lock()
        .await
        .expect("asked")
        .expect("free")
        .unlock()
        .await
        .expect("held");
    two.finish().await;
}

#[tokio::test]
async fn a_closed_client_leaves_its_places() {
    let mut two = Two::new().await;
    let held = two.held().await;
    let mut waiters = Vec::new();
    for nth in 0..20 {
        waiters.push(two.waits(1, nth + 1).await);
    }
    let report = two.clients[1].close(ms(2_000)).await;
    assert_eq!(report.unconfirmed, 0);
    for waiter in waiters {
        let refused = waiter.await.expect("no panic");
        assert!(matches!(refused, Err(Error::Closed)), "{refused:?}");
    }
    two.queued(0).await;
    held.unlock().await.expect("held");
    two.finish().await;
}

/// A `RedissonMultiLock` with a lease gives it to all three keys of a fair lock that it has taken. With the queue the
/// places would end of all that still wait, and a newcomer would overtake them.
#[tokio::test]
async fn an_expiry_that_another_program_gave_the_queue_ends_with_the_next_attempt() {
    let mut two = Two::new().await;
    let held = two.held().await;
    let first = two.waits(0, 1).await;
    let second = two.waits(1, 2).await;
    for key in [QUEUE, TIMEOUTS] {
        assert_eq!(two.control.run(&["PEXPIRE", key, "600000"]), "1");
    }
    held.unlock().await.expect("held");
    let first = first.await.expect("no panic").expect("its turn");
    for key in [QUEUE, TIMEOUTS] {
        assert_eq!(two.control.pttl(key), -1, "{key}");
    }
    for key in [QUEUE, TIMEOUTS] {
        assert_eq!(two.control.run(&["PEXPIRE", key, "600000"]), "1");
    }
    let third = two.waits(0, 2).await;
    for key in [QUEUE, TIMEOUTS] {
        assert_eq!(two.control.pttl(key), -1, "{key}");
    }
    first.unlock().await.expect("held");
    for waiter in [second, third] {
        let guard = waiter.await.expect("no panic").expect("its turn");
        guard.unlock().await.expect("held");
    }
    two.finish().await;
}

/// The script calls since the last one of these: how many, and the most words that one had.
fn script_calls(control: &mut Control) -> [i64; 2] {
    // The log shows 32 words of a call; the last of them tells how many there are beyond.
    const READ: &str = "local calls, most = 0, 0\n\
        for _, entry in ipairs(redis.call('slowlog', 'get', 100000)) do\n\
            local words = entry[4]\n\
            if string.find(string.lower(words[1]), '^evalsha') then\n\
                local beyond = string.match(words[#words], '^%.%.%. %((%d+) more arguments%)$')\n\
                calls, most = calls + 1, math.max(most, #words + (beyond and beyond - 1 or 0))\n\
            end\n\
        end\n\
        return calls .. ' ' .. most";
    let read = control.run(&["EVAL", READ, "0"]);
    control.run(&["SLOWLOG", "RESET"]);
    let numbers = read
        .split(' ')
        .map(|number| number.parse().expect("a number"));
    let numbers: Vec<i64> = numbers.collect();
    numbers.try_into().expect("two numbers")
}

/// Processor time that the server has used, which does not grow while the machine does something else.
fn processor_time(control: &mut Control) -> Duration {
    let info = control.run(&["INFO", "cpu"]);
    let of = |name| {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        let seconds = line.expect("shown").trim().parse();
        Duration::from_secs_f64(seconds.expect("a number"))
    };
    of("used_cpu_user:") + of("used_cpu_sys:")
}

/// A thousand owners leave together: in few calls, none of which is for more than 200 of them, so that no other client waits
/// long.
#[tokio::test]
async fn a_thousand_that_leave_together_share_calls() {
    const WAITERS: usize = 1_000;
    let mut two = Two::new().await;
    for (name, value) in [
        ("slowlog-max-len", "100000"),
        ("slowlog-log-slower-than", "0"),
    ] {
        two.control.run(&["CONFIG", "SET", name, value]);
    }
    let held = two.held().await;
    for closes in [false, true] {
        let spent = two.leave_together(WAITERS, closes).await;
        assert!(spent < ms(150), "{spent:?}");
    }
    held.unlock().await.expect("held");
    two.finish().await;
}

#[tokio::test]
async fn waiters_that_are_cancelled_at_random_leave_no_place() {
    const WAITERS: usize = 1_000;
    let two = Two::new().await;
    let mut rolls = Rolls(31);
    let held = two.held().await;
    let mut waiters = Vec::new();
    for nth in 0..WAITERS {
        let lock = two.lock(nth % 2);
        waiters.push(tokio::spawn(async move {
            if let Ok(guard) = lock.lock().await {
                tokio::task::yield_now().await;
                guard.unlock().await.expect("held");
            }
        }));
        if rolls.below(4) == 0 {
            let nth = rolls.below(waiters.len());
            waiters[nth].abort();
        }
        if rolls.below(50) == 0 {
            tokio::task::yield_now().await;
        }
    }
    held.unlock().await.expect("held");
    while waiters.iter().any(|waiter| !waiter.is_finished()) {
        let nth = rolls.below(waiters.len());
        waiters[nth].abort();
        tokio::task::yield_now().await;
    }
    two.finish().await;
}

/// A process that is cut off: its places hold up the others until they end, one after the other.
#[tokio::test]
async fn places_of_a_client_that_is_gone_end_one_after_the_other() {
    const WAITERS: usize = 5;
    let wait = Duration::from_secs(1);
    let mut two = Two::new().await;
    let proxy = Proxy::start(two.server.port).await;
    let gone = redisson_lock::LockClient::builder().fair_wait(wait);
    let gone = gone.connect(&proxy.url()).await.expect("reachable");
    // A place lasts `wait` longer than the lease that its owner has seen.
    let lease = Duration::from_secs(1);
    let held = two.lock(0).lease(lease).lock().await.expect("free");
    let mut waiters = Vec::new();
    for nth in 0..WAITERS {
        let lock = gone.fair_lock("fair");
        waiters.push(tokio::spawn(async move { lock.lock().await.map(drop) }));
        two.queued(i64::try_from(nth).expect("few") + 1).await;
    }
    let next = two.waits(1, WAITERS + 1).await;
    proxy.refuse(true);
    proxy.cut_all();
    let start = Instant::now();
    drop(held);
    let guard = next.await.expect("no panic").expect("its turn");
    let took = start.elapsed();
    let limit = lease + wait * 5 + ms(500) + stalls(start);
    assert!(took < limit, "{took:?}");
    assert!(took > wait, "{took:?}: nothing held it up");
    guard.unlock().await.expect("held");
    proxy.refuse(false);
    for waiter in waiters {
        waiter.abort();
    }
    gone.close(ms(2_000)).await;
    proxy.stop().await;
    two.finish().await;
}

#[tokio::test]
async fn a_call_that_tries_again_after_an_outage_keeps_its_place() {
    let mut two = Two::new().await;
    let proxy = Proxy::start(two.server.port).await;
    let first = redisson_lock::LockClient::builder()
        .command_timeout(ms(300))
        .retry_for(Duration::from_secs(30));
    let first = first.connect(&proxy.url()).await.expect("reachable");
    let held = two.held().await;
    let lock = first.fair_lock("fair");
    let owner = first.owner();
    let field = owner.to_string();
    let waiting = tokio::spawn(async move { lock.owned_by(&owner).lock().await });
    two.queued(1).await;
    let second = two.waits(1, 2).await;
    proxy.refuse(true);
    proxy.cut_all();
    // The attempts of the outage fail, each after a command timeout.
    let start = Instant::now();
    eventually("it asks in vain", ms(10_000), || start.elapsed() > ms(900)).await;
    assert_eq!(first.stats().waiting, 1);
    proxy.refuse(false);
    let queue = two.lock(0).queue().await.expect("asked");
    assert_eq!(queue.len(), 2, "{queue:?}");
    assert_eq!(queue[0].owner, field, "{queue:?}");
    held.unlock().await.expect("held");
    let guard = waiting.await.expect("no panic").expect("its turn");
    assert!(!second.is_finished());
    guard.unlock().await.expect("held");
    let next = second.await.expect("no panic").expect("its turn");
    next.unlock().await.expect("held");
    first.close(ms(100)).await;
    proxy.stop().await;
    two.finish().await;
}

/// The server answers, and refuses attempts: a place that the call had given up would be at the end. Its pauses grow, and a
/// call that asks for nothing for two command timeouts after it was told of its turn counts as one that is not polled.
#[tokio::test]
async fn a_call_that_tries_again_after_refusals_keeps_its_place() {
    for (command_timeout, refusals) in [(ms(3_000), 1), (ms(150), 8)] {
        is_refused_and_keeps_its_place(command_timeout, refusals).await;
    }
}

async fn is_refused_and_keeps_its_place(command_timeout: Duration, refusals: usize) {
    let mut two = Two::new().await;
    let proxy = Proxy::start(two.server.port).await;
    let first = redisson_lock::LockClient::builder()
        .command_timeout(command_timeout)
        .retry_for(Duration::from_secs(60));
    let first = first.connect(&proxy.url()).await.expect("reachable");
    let held = two.held().await;
    let owner = first.owner();
    let field = owner.to_string();
    let lock = first.fair_lock("fair").owned_by(&owner);
    let waiting = tokio::spawn(async move { lock.lock().await });
    two.queued(1).await;
    eventually("it listens", ms(5_000), || {
        first.stats().contended_total == 1
    })
    .await;
    let second = two.waits(1, 2).await;
    let refusal = Fate::Instead("-LOADING Redis is loading the dataset in memory");
    proxy.rule(refusal, refusals, acquires(LockKind::Fair, 1));
    let channel = format!("redisson_lock__channel:{{fair}}:{field}");
    let control = &mut two.control;
    eventually("its attempts are refused", ms(15_000), || {
        control.run(&["PUBLISH", &channel, "0"]);
        proxy.hit.load(Ordering::SeqCst) == refusals
    })
    .await;
    let attempts = proxy.script_calls().len();
    eventually("it tries again", ms(5_000), || {
        proxy.script_calls().len() > attempts
    })
    .await;
    let queue = two.lock(0).queue().await.expect("asked");
    assert_eq!(queue.len(), 2, "{queue:?}");
    assert_eq!(queue[0].owner, field, "{queue:?}");
    held.unlock().await.expect("held");
    let guard = waiting.await.expect("no panic").expect("its turn");
    assert!(!second.is_finished());
    guard.unlock().await.expect("held");
    let next = second.await.expect("no panic").expect("its turn");
    next.unlock().await.expect("held");
    first.close(ms(100)).await;
    proxy.stop().await;
    two.finish().await;
}

/// The server does not know the script of an attempt that a closing client has undone: its text would leave a place.
#[tokio::test]
async fn an_attempt_that_was_undone_is_not_sent_with_its_text() {
    let mut two = Two::new().await;
    let proxy = Proxy::start(two.server.port).await;
    let client = LockClient::connect(&proxy.url()).await.expect("there");
    let held = two.held().await;
    let wait = || {
        let lock = client.fair_lock("fair");
        tokio::spawn(async move { lock.lock().await })
    };
    // From here on the server knows how an owner leaves.
    let leaves = wait();
    two.queued(1).await;
    leaves.abort();
    two.queued(0).await;
    let keeps_it_open = client.lock("kept").lock().await.expect("free");
    let unknown = Fate::Instead("-NOSCRIPT No matching script. Please use EVAL.");
    proxy.rule(unknown, 1, acquires(LockKind::Fair, 1));
    proxy.hold_replies(true);
    let waiting = wait();
    eventually("its attempt is refused", ms(5_000), || {
        proxy.hit.load(Ordering::SeqCst) == 1
    })
    .await;
    let before = two.control.calls("evalsha");
    let closes = client.clone();
    let closing = tokio::spawn(async move { closes.close(Duration::from_secs(20)).await });
    let control = &mut two.control;
    eventually("it is undone", ms(5_000), || {
        control.calls("evalsha") > before
    })
    .await;
    proxy.hold_replies(false);
    let waited = waiting.await.expect("no panic");
    assert!(matches!(waited, Err(Error::Closed)), "{waited:?}");
    keeps_it_open.unlock().await.expect("held");
    let report = closing.await.expect("no panic");
    assert_eq!(report.unconfirmed, 0, "{report:?}");
    assert_eq!(queued(&mut two.control), 0, "a place is left");
    held.unlock().await.expect("held");
    proxy.stop().await;
    two.finish().await;
}

#[tokio::test]
async fn the_queue_is_shown_in_its_order() {
    let mut two = Two::new().await;
    assert_eq!(two.lock(0).queue().await.expect("asked"), []);
    let held = two.held().await;
    assert_eq!(two.lock(0).queue().await.expect("asked"), []);
    let waiters = [two.waits(0, 1).await, two.waits(1, 2).await];
    let queue = two.lock(0).queue().await.expect("asked");
    for (waiting, client) in queue.iter().zip(&two.clients) {
        assert!(waiting.owner.starts_with(client.id()), "{queue:?}");
        let left = waiting.place_left.expect("it ends");
        assert!(left > Duration::from_secs(290), "{queue:?}");
    }
    assert_eq!(queue.len(), 2);
    two.control.run(&["ZREM", TIMEOUTS, &queue[1].owner]);
    two.control.run(&["ZADD", TIMEOUTS, "1", &queue[0].owner]);
    let queue = two.lock(0).queue().await.expect("asked");
    let left: Vec<_> = queue.iter().map(|waiting| waiting.place_left).collect();
    assert_eq!(left, [Some(Duration::ZERO), None]);
    let plain = two.clients[0].lock("plain");
    assert_eq!(plain.queue().await.expect("no queue"), []);
    two.control.run(&["SET", "fair-no-lock", "text"]);
    let wrong = two.clients[0].fair_lock("fair-no-lock").queue().await;
    assert!(matches!(wrong, Err(Error::NotALock { .. })), "{wrong:?}");
    two.control.run(&["DEL", "fair-no-lock"]);
    for waiter in waiters {
        waiter.abort();
    }
    held.unlock().await.expect("held");
    two.finish().await;
}

/// The calls of one owner have one place, which stays while one of them waits.
#[tokio::test]
async fn calls_of_one_owner_share_its_place() {
    let mut two = Two::new().await;
    let held = two.held().await;
    let owner = two.clients[1].owner();
    let mut calls = Vec::new();
    for _ in 0..3 {
        let lock = two.lock(1).owned_by(&owner);
        calls.push(tokio::spawn(async move { lock.lock().await }));
        two.queued(1).await;
    }
    let behind = two.waits(0, 2).await;
    for call in calls.drain(..2) {
        call.abort();
    }
    two.queued(2).await;
    held.unlock().await.expect("held");
    let call = calls.pop().expect("one is left");
    let guard = call.await.expect("no panic").expect("its turn");
    assert!(!behind.is_finished());
    guard.unlock().await.expect("held");
    let next = behind.await.expect("no panic").expect("its turn");
    next.unlock().await.expect("held");
    two.finish().await;
}

/// An owner that is told of its turn and not polled gives it up after two command timeouts: told by the release, or by the
/// next one's look when a lease has ended.
#[tokio::test]
async fn a_turn_of_a_call_that_is_not_polled_goes_to_the_next() {
    for expires in [false, true] {
        a_turn_that_is_not_polled_goes_to_the_next(expires).await;
    }
}

async fn a_turn_that_is_not_polled_goes_to_the_next(expires: bool) {
    let mut two = Two::new().await;
    let impatient = |builder: redisson_lock::LockClientBuilder| builder.command_timeout(ms(200));
    let client = two.server.client_with(impatient).await;
    let lease = ms(if expires { 2_000 } else { 0 });
    let held = match expires {
        true => {
            // By another program, which has died: no message tells of its end.
            two.control.run(&["HSET", "fair", "another:1", "1"]);
            two.control.run(&["PEXPIRE", "fair", "2000"]);
            None
        }
        false => Some(two.held().await),
    };
    let lock = client.fair_lock("fair");
    let mut unpolled = Box::pin(lock.lock());
    let polled = tokio::time::timeout(ms(500), unpolled.as_mut()).await;
    assert!(polled.is_err(), "it is held");
    two.queued(1).await;
    let next = two.waits(1, 2).await;
    let start = Instant::now();
    if let Some(held) = held {
        held.unlock().await.expect("held");
    }
    let next = tokio::time::timeout(ms(20_000), next).await;
    let guard = next.expect("in time").expect("no panic").expect("its turn");
    let took = start.elapsed();
    assert!(took < lease + ms(1_500) + stalls(start), "{took:?}");
    let lost = tokio::time::timeout(ms(100), unpolled.as_mut()).await;
    assert!(lost.is_err(), "it queues again");
    two.queued(1).await;
    guard.unlock().await.expect("held");
    let guard = unpolled.await.expect("its turn");
    guard.unlock().await.expect("held");
    client.close(ms(100)).await;
    two.finish().await;
}

/// Polls a call until its first attempt is at the server, and not again.
async fn polled_until_it_queues<F: Future>(mut call: Pin<&mut F>, control: &mut Control) {
    eventually("it is sent", ms(5_000), || {
        queued(control) == 1 || {
            // Each poll goes as far as it can.
            let mut poll = std::pin::pin!(poll_fn(|cx| {
                let _ = call.as_mut().poll(cx);
                Poll::Ready(())
            }));
            let waker = std::task::Waker::noop();
            let _ = poll
                .as_mut()
                .poll(&mut std::task::Context::from_waker(waker));
            false
        }
    })
    .await;
}

/// It has not subscribed yet, so it is not told either. Its own client has no other call.
#[tokio::test]
async fn a_first_attempt_that_is_not_polled_keeps_no_turn_and_a_close_no_place() {
    let mut two = Two::new().await;
    for closes in [false, true] {
        let impatient =
            |builder: redisson_lock::LockClientBuilder| builder.command_timeout(ms(500));
        let client = two.server.client_with(impatient).await;
        let held = two.held().await;
        let lock = client.fair_lock("fair");
        let mut unpolled = Box::pin(lock.lock());
        polled_until_it_queues(unpolled.as_mut(), &mut two.control).await;
        if closes {
            let report = client.close(ms(100)).await;
            assert_eq!(report.unconfirmed, 0);
            two.queued(0).await;
            held.unlock().await.expect("held");
            continue;
        }
        let next = two.lock(1);
        let next = tokio::spawn(async move { next.lock().await });
        held.unlock().await.expect("held");
        let start = Instant::now();
        let guard = next.await.expect("no panic").expect("its turn");
        let took = start.elapsed();
        assert!(took < ms(2_500) + stalls(start), "{took:?}");
        guard.unlock().await.expect("held");
        drop(unpolled);
        client.close(ms(1_000)).await;
    }
    two.finish().await;
}

#[tokio::test]
async fn the_first_in_the_queue_of_a_free_lock_is_no_holder() {
    let mut two = Two::new().await;
    two.control.run(&["RPUSH", QUEUE, "ghost"]);
    two.control
        .run(&["ZADD", TIMEOUTS, "99999999999999", "ghost"]);
    let found = two.lock(0).try_lock_or_holder().await.expect("asked");
    assert!(matches!(found, TryLock::Busy { holder: None }), "{found:?}");
    two.control.run(&["DEL", QUEUE, TIMEOUTS]);
    two.finish().await;
}

/// A dropped `try_lock` may have used up the place of its owner's other call, which asks again then.
#[tokio::test]
async fn a_dropped_attempt_at_a_free_lock_leaves_no_call_of_its_owner_without_a_place() {
    let mut two = Two::new().await;
    let proxy = Proxy::start(two.server.port).await;
    let client = LockClient::connect(&proxy.url()).await.expect("there");
    two.control.run(&["HSET", "fair", "another:1", "1"]);
    two.control.run(&["PEXPIRE", "fair", "60000"]);
    let lock = client.fair_lock("fair").owned_by(&client.owner());
    let (waits, tries) = (lock.clone(), lock);
    let before = two.control.calls("evalsha");
    let waits = tokio::spawn(async move { waits.lock().await });
    let control = &mut two.control;
    eventually("it listens, and attempts again", ms(5_000), || {
        control.calls("evalsha") == before + 2
    })
    .await;
    // Its reply comes before this one.
    tries.inspect().await.expect("asked");
    // Free without a message, as after an expiry.
    two.control.run(&["DEL", "fair"]);
    proxy.hold_replies(true);
    let tries = tokio::spawn(async move { tries.try_lock().await });
    let control = &mut two.control;
    eventually("taken", ms(5_000), || {
        control.number(&["EXISTS", "fair"]) == 1
    })
    .await;
    tries.abort();
    let _ = tries.await;
    proxy.hold_replies(false);
    let start = Instant::now();
    let guard = waits.await.expect("no panic").expect("its turn");
    let took = start.elapsed();
    assert!(took < ms(5_000) + stalls(start), "{took:?}");
    guard.unlock().await.expect("held");
    client.close(ms(1_000)).await;
    proxy.stop().await;
    two.finish().await;
}

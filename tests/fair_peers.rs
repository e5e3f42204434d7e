//! Fair locks beside other programs in the same queue: how long a place counts, an owner that takes the lock without a
//! message, and keys of the queue that hold something else.

use std::time::{Duration, Instant};

use redisson_lock::{Error, Lock, LockClient};
use test_support::{Control, TestServer, eventually, ms, stalls, tokio};

const QUEUE: &str = "redisson_lock_queue:{fair}";
const TIMEOUTS: &str = "redisson_lock_timeout:{fair}";
/// An owner in a program that is no client of ours.
const JAVA: &str = "java:1";

struct Peers {
    server: TestServer,
    client: LockClient,
    control: Control,
}

impl Peers {
    async fn new() -> Self {
        let server = TestServer::new();
        let (client, control) = (server.client().await, server.control());
        Self {
            server,
            client,
            control,
        }
    }

    fn lock(&self) -> Lock {
        self.client.fair_lock("fair")
    }

    fn clock(&mut self) -> i64 {
        let time = self.control.run(&["TIME"]);
        let (seconds, micros) = time.split_once(' ').expect("two numbers");
        let number = |text: &str| text.parse::<i64>().expect("a number");
        number(seconds) * 1_000 + number(micros) / 1_000
    }

    /// When the place of this owner ends.
    fn ends(&mut self, owner: &str) -> i64 {
        self.control.number(&["ZSCORE", TIMEOUTS, owner])
    }

    fn has_place(&mut self, owner: &str) -> bool {
        self.control.run(&["ZSCORE", TIMEOUTS, owner]) != "(nil)"
    }

    /// The other program takes the lock out of nothing, for this lease.
    fn is_held(&mut self, lease_ms: &str) {
        self.control.run(&["HSET", "fair", "holder:1", "1"]);
        self.control.run(&["PEXPIRE", "fair", lease_ms]);
    }

    /// Its owner queues as Redisson does: after the last place, or the lease.
    fn queues(&mut self, wait: i64) -> i64 {
        const QUEUES: &str = "local last = redis.call('lindex', KEYS[2], -1)\n\
            local ends = last and redis.call('zscore', KEYS[3], last) or ARGV[3] + redis.call('pttl', KEYS[1])\n\
            redis.call('zadd', KEYS[3], string.format('%d', ends + ARGV[2]), ARGV[1])\n\
            redis.call('rpush', KEYS[2], ARGV[1])\n\
            return tonumber(redis.call('zscore', KEYS[3], ARGV[1]))";
        let (wait, now) = (wait.to_string(), self.clock().to_string());
        let call = [
            "EVAL", QUEUES, "3", "fair", QUEUE, TIMEOUTS, JAVA, &wait, &now,
        ];
        self.control.number(&call)
    }

    /// As Redisson before 3.11.1: 5 s after the first place.
    fn queues_by_the_first(&mut self, owner: &str) -> i64 {
        let first = self.control.run(&["LINDEX", QUEUE, "0"]);
        let ends = self.ends(&first) + 5_000;
        let score = ends.to_string();
        self.control.run(&["ZADD", TIMEOUTS, &score, owner]);
        self.control.run(&["RPUSH", QUEUE, owner]);
        ends
    }

    /// It takes the free lock in its turn.
    fn takes(&mut self, lease_ms: &str) {
        self.control.run(&["LPOP", QUEUE]);
        self.control.run(&["ZREM", TIMEOUTS, JAVA]);
        self.control.run(&["HSET", "fair", JAVA, "1"]);
        self.control.run(&["PEXPIRE", "fair", lease_ms]);
    }
}

/// The holder's lease ends in silence, and so does that of the owner before this one, which takes the lock after this
/// one has looked.
#[tokio::test]
async fn a_waiter_beside_a_free_lock_looks_again_soon() {
    let mut peers = Peers::new().await;
    peers.is_held("1000");
    peers.queues(300_000);
    let lock = peers.lock();
    let waiting = tokio::spawn(async move { lock.lock().await });
    let control = &mut peers.control;
    let gone = || control.number(&["EXISTS", "fair"]) == 0;
    eventually("the lease ends", ms(5_000), gone).await;
    let before = control.calls("evalsha");
    let looked = || control.calls("evalsha") > before;
    eventually("it has looked", ms(5_000), looked).await;
    let start = Instant::now();
    peers.takes("1000");
    let guard = waiting.await.expect("no panic").expect("its turn");
    let took = start.elapsed();
    assert!(took >= ms(900), "{took:?}: it has overtaken the holder");
    assert!(took < ms(3_500) + stalls(start), "{took:?}");
    guard.unlock().await.expect("held");
    peers.server.finish([peers.client]).await;
}

#[tokio::test]
async fn a_place_counts_for_what_its_call_waits() {
    let mut peers = Peers::new().await;
    peers.is_held("20000");
    let owner = peers.client.owner();
    let field = owner.to_string();
    let lock = peers.lock().owned_by(&owner);
    let wait = Duration::from_secs(10);
    let waiting = tokio::spawn(async move { lock.try_lock_for(wait).await });
    eventually("it queues", ms(5_000), || peers.has_place(&field)).await;
    let lease_over = peers.clock() + peers.control.number(&["PTTL", "fair"]);
    let after = peers.ends(&field) - lease_over;
    assert!(
        (9_900..=10_100).contains(&after),
        "{after} ms after the lease"
    );
    // Those after it count on from there.
    let java = peers.queues(60_000);
    waiting.abort();
    eventually("it leaves", ms(5_000), || !peers.has_place(&field)).await;
    let earlier = java - peers.ends(JAVA);
    assert!((9_900..=10_100).contains(&earlier), "{earlier} ms earlier");
    peers.control.run(&["DEL", "fair", QUEUE, TIMEOUTS]);
    peers.server.finish([peers.client]).await;
}

/// The other program's place counts for what was asked for there, and not for this client's `fair_wait`.
#[tokio::test]
async fn a_place_after_another_programs_counts_from_where_that_ends() {
    let mut peers = Peers::new().await;
    peers.is_held("20000");
    let java = peers.queues(3_000);
    let owner = peers.client.owner();
    let field = owner.to_string();
    let lock = peers.lock().owned_by(&owner);
    let waiting = tokio::spawn(async move { lock.lock().await });
    eventually("it queues", ms(5_000), || peers.has_place(&field)).await;
    assert_eq!(peers.ends(&field) - java, 300_000);
    // It looks again when it hears something.
    let channel = format!("redisson_lock__channel:{{fair}}:{field}");
    let before = peers.control.calls("evalsha");
    eventually("it looks again", ms(5_000), || {
        peers.control.run(&["PUBLISH", &channel, "0"]);
        peers.control.calls("evalsha") > before + 1
    })
    .await;
    assert_eq!(peers.ends(&field) - java, 300_000);
    peers.control.run(&["DEL", "fair", QUEUE, TIMEOUTS]);
    peers.control.run(&["PUBLISH", &channel, "0"]);
    let guard = waiting.await.expect("no panic").expect("its turn");
    guard.unlock().await.expect("held");
    peers.server.finish([peers.client]).await;
}

/// Its place ends before that of the owner before it, so that it must not end earlier when the first leaves.
#[tokio::test]
async fn a_place_that_counts_from_the_first_stays_while_others_are_before_it() {
    let mut peers = Peers::new().await;
    peers.is_held("20000");
    let owners = [peers.client.owner(), peers.client.owner()];
    let mut waiting = Vec::new();
    for owner in &owners {
        let (lock, field) = (peers.lock().owned_by(owner), owner.to_string());
        waiting.push(tokio::spawn(async move { lock.lock().await }));
        eventually("it queues", ms(5_000), || peers.has_place(&field)).await;
    }
    let java = peers.queues_by_the_first(JAVA);
    let other = peers.queues_by_the_first("java:2");
    peers.control.run(&["DEL", "fair"]);
    let channel = format!("redisson_lock__channel:{{fair}}:{}", owners[0]);
    peers.control.run(&["PUBLISH", &channel, "0"]);
    let first = waiting.remove(0).await.expect("no panic");
    let first = first.expect("its turn");
    assert_eq!((peers.ends(JAVA), peers.ends("java:2")), (java, other));
    first.unlock().await.expect("held");
    let next = waiting.remove(0).await.expect("no panic");
    next.expect("its turn").unlock().await.expect("held");
    assert!(peers.has_place(JAVA), "its turn");
    peers.control.run(&["DEL", QUEUE, TIMEOUTS]);
    peers.server.finish([peers.client]).await;
}

/// The first in the queue waits on and prolongs its place: those after it have their turns later.
#[tokio::test]
async fn a_place_that_is_prolonged_takes_none_of_the_time_of_those_after_it() {
    let mut peers = Peers::new().await;
    peers.is_held("200");
    let owner = peers.client.owner();
    let field = owner.to_string();
    let lock = peers.lock().owned_by(&owner);
    let waiting = tokio::spawn(async move { lock.lock().await });
    eventually("it queues", ms(5_000), || peers.has_place(&field)).await;
    peers.queues(5_000);
    peers.control.run(&["PEXPIRE", "fair", "60000"]);
    let channel = format!("redisson_lock__channel:{{fair}}:{field}");
    let known = peers.ends(&field);
    eventually("its place is prolonged", ms(10_000), || {
        peers.control.run(&["PUBLISH", &channel, "0"]);
        peers.ends(&field) > known + 1_000
    })
    .await;
    let (own, java) = (peers.ends(&field), peers.ends(JAVA));
    assert!(
        (4_900..=5_100).contains(&(java - own)),
        "{} ms after it",
        java - own
    );
    peers.control.run(&["DEL", "fair"]);
    peers.control.run(&["PUBLISH", &channel, "0"]);
    let guard = waiting.await.expect("no panic").expect("its turn");
    let left = peers.ends(JAVA) - peers.clock();
    assert!(left > 3_500, "{left} ms are left of its 5 s");
    peers.control.run(&["DEL", QUEUE, TIMEOUTS]);
    guard.unlock().await.expect("held");
    peers.server.finish([peers.client]).await;
}

/// What is wrong with the queue says nothing of the hold: the release is tried again until the key is repaired.
#[tokio::test]
async fn a_queue_that_is_something_else_is_named_and_ends_no_hold() {
    let mut peers = Peers::new().await;
    for wrong in [QUEUE, TIMEOUTS] {
        for drops in [false, true] {
            let guard = peers.lock().lock().await.expect("free");
            // The scores are read once an owner waits.
            peers.control.run(&["RPUSH", QUEUE, JAVA]);
            peers.control.run(&["SET", wrong, "text"]);
            let names = |error: Error| match error {
                Error::NotALock { key, .. } => assert_eq!(key, wrong),
                other => panic!("{wrong}: {other}"),
            };
            names(peers.lock().queue().await.expect_err("no queue"));
            names(peers.lock().force_unlock().await.expect_err("no queue"));
            let another = peers.lock().owned_by(&peers.client.owner());
            names(another.try_lock().await.expect_err("no queue"));
            assert_eq!(guard.state(), redisson_lock::HoldState::Held, "{wrong}");
            match drops {
                true => drop(guard),
                false => names(guard.unlock().await.expect_err("no queue")),
            }
            tokio::time::sleep(ms(100)).await;
            assert_eq!(peers.control.number(&["EXISTS", "fair"]), 1, "{wrong}");
            peers.control.run(&["DEL", QUEUE, TIMEOUTS]);
            let control = &mut peers.control;
            let freed = || control.number(&["EXISTS", "fair"]) == 0;
            eventually("it is released", ms(5_000), freed).await;
        }
    }
    let stats = peers.client.stats();
    assert_eq!(stats.lost_total, 0);
    peers.server.finish([peers.client]).await;
}

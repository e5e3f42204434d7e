//! A limit holds whatever the server does; and `None` says that another owner has the lock, never that Redis is away.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use redisson_lock::{
    DistributedLock, Error, Lock, LockClient, LockGuard, LockKind, MultiLock, RedLock, blocking,
};
use test_support::kinds::{KINDS, against, is_token};
use test_support::{Proxy, TestServer, assert_matches, eventually, ms, stalls, tokio};

/// How much later than its limit a call may answer, on a machine that runs.
const LATE: Duration = Duration::from_millis(50);

/// How long the answer to a first attempt is waited for at least.
const FIRST_ANSWER: Duration = Duration::from_millis(40);

/// Whether it got the lock. What it got it has released.
type Answer = Result<bool, Error>;

struct Call {
    what: String,
    kind: LockKind,
    name: String,
    wait: Duration,
    answer: Pin<Box<dyn Future<Output = Answer> + Send>>,
}

/// Three servers, with a client of each for us and for others, and one that blocks.
struct Scene {
    servers: Vec<TestServer>,
    ours: Vec<LockClient>,
    theirs: Vec<LockClient>,
    blocking: Vec<blocking::LockClient>,
}

/// A lock of its own for each call.
fn name_of(what: &str, wait: Duration) -> String {
    format!("{what} {wait:?}").replace(' ', "-")
}

async fn on_a_thread<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    let ran = tokio::task::spawn_blocking(run).await;
    ran.expect("no panic")
}

fn got<G>(found: Result<Option<G>, Error>) -> Answer {
    found.map(|guard| guard.is_some())
}

impl Scene {
    async fn new() -> Self {
        let servers: Vec<_> = (0..3).map(|_| TestServer::new()).collect();
        let (mut ours, mut theirs, mut blocking) = (Vec::new(), Vec::new(), Vec::new());
        for server in &servers {
            ours.push(server.client().await);
            theirs.push(server.client().await);
            let url = server.url();
            let connected = on_a_thread(move || blocking::LockClient::connect(&url)).await;
            blocking.push(connected.expect("the server answers"));
        }
        Self {
            servers,
            ours,
            theirs,
            blocking,
        }
    }

    /// A call of every verb and kind with each of these waits, each for a lock of its own.
    async fn calls(&self, waits: &[u64]) -> Vec<Call> {
        let mut calls = Vec::new();
        for wait in waits.iter().map(|wait| ms(*wait)) {
            calls.extend(self.calls_of_one(wait));
            calls.extend(self.calls_of_several(wait));
            // It knows that its servers are two.
            let what = "multi that was taken before";
            let name = name_of(what, wait);
            let lock = self.multi(&name);
            let guard = lock.try_lock().await.expect("asked").expect("free");
            guard.unlock().await.expect("held");
            calls.push(Call {
                what: what.to_owned(),
                kind: LockKind::Plain,
                name,
                wait,
                answer: Box::pin(async move { got(lock.try_lock_for(wait).await) }),
            });
        }
        calls
    }

    fn multi(&self, name: &str) -> MultiLock {
        let members = self.ours[..2].iter().map(|client| client.lock(name));
        MultiLock::new(members).expect("two locks")
    }

    fn calls_of_one(&self, wait: Duration) -> Vec<Call> {
        let mut calls = Vec::new();
        let mut add = |what: String, kind, call: fn(Lock, Duration) -> BoxedAnswer| {
            let name = name_of(&what, wait);
            let lock = self.ours[0].lock_of(kind, &*name);
            calls.push(Call {
                what,
                kind,
                name,
                wait,
                answer: call(lock, wait),
            });
        };
        for kind in KINDS {
            add(format!("try_lock_for {kind}"), kind, |lock, wait| {
                Box::pin(async move { got(lock.try_lock_for(wait).await) })
            });
        }
        let plain = LockKind::Plain;
        add("try_lock_until".to_owned(), plain, |lock, wait| {
            Box::pin(async move { got(lock.try_lock_until(Instant::now() + wait).await) })
        });
        add("try_run_for".to_owned(), plain, |lock, wait| {
            Box::pin(async move {
                let body = async |_| Ok::<_, Error>(());
                got(lock.try_run_for(wait, body).await)
            })
        });
        add("sync_replicas".to_owned(), plain, |lock, wait| {
            let lock = lock.sync_replicas(1, ms(100));
            Box::pin(async move { got(lock.try_lock_for(wait).await) })
        });
        let behind: fn(Lock, Duration) -> BoxedAnswer = |lock, wait| {
            Box::pin(async move {
                let before = lock.clone();
                let before = tokio::spawn(async move { before.lock().await.map(drop) });
                tokio::task::yield_now().await;
                let found = got(lock.try_lock_for(wait).await);
                before.abort();
                found
            })
        };
        add("behind its own call".to_owned(), plain, |lock, wait| {
            Box::pin(async move {
                let before = async {
                    loop {
                        let _ = lock.lock().await;
                    }
                };
                tokio::select! {
                    biased;
                    () = before => unreachable!("it goes on calling"),
                    found = lock.try_lock_for(wait) => got(found),
                }
            })
        });
        // Without a wait it is busy immediately.
        if !wait.is_zero() {
            add("behind another call".to_owned(), plain, behind);
        }
        calls.extend(self.blocking_calls_of_one(wait));
        calls
    }

    fn blocking_calls_of_one(&self, wait: Duration) -> Vec<Call> {
        type Verb = fn(&blocking::Lock, Duration) -> Answer;
        let verbs: [(&str, Verb); 3] = [
            ("blocking try_lock_for", |lock, wait| {
                got(lock.try_lock_for(wait))
            }),
            ("blocking try_lock_until", |lock, wait| {
                got(lock.try_lock_until(Instant::now() + wait))
            }),
            ("blocking try_run_for", |lock, wait| {
                got(lock.try_run_for(wait, |_| Ok::<_, Error>(())))
            }),
        ];
        let verbs = verbs.into_iter().map(|(what, verb)| {
            let name = name_of(what, wait);
            let lock = self.blocking[0].lock(&*name);
            Call {
                what: what.to_owned(),
                kind: LockKind::Plain,
                name,
                wait,
                answer: Box::pin(on_a_thread(move || verb(&lock, wait))),
            }
        });
        verbs.collect()
    }

    /// A multi lock of two servers, and a red lock of three.
    fn calls_of_several(&self, wait: Duration) -> Vec<Call> {
        let mut calls = Vec::new();
        let mut add = |what: &str, call: &dyn Fn(&str) -> BoxedAnswer| {
            let name = name_of(what, wait);
            calls.push(Call {
                what: what.to_owned(),
                answer: call(&name),
                kind: LockKind::Plain,
                name,
                wait,
            });
        };
        let red = |name: &str| {
            let members = self.ours.iter().map(|client| client.lock(name));
            RedLock::new(members).expect("three servers")
        };
        let on_threads = |name: &str| {
            let members = self.blocking.iter().map(|client| client.lock(name));
            members.collect::<Vec<_>>()
        };
        add("multi try_lock_for", &|name| {
            let lock = self.multi(name);
            Box::pin(async move { got(lock.try_lock_for(wait).await) })
        });
        add("multi try_lock_until", &|name| {
            let lock = self.multi(name).lease(ms(20_000));
            Box::pin(async move { got(lock.try_lock_until(Instant::now() + wait).await) })
        });
        add("red try_lock_for", &|name| {
            let lock = red(name);
            Box::pin(async move { got(lock.try_lock_for(wait).await) })
        });
        add("red try_lock_until", &|name| {
            let lock = red(name);
            Box::pin(async move { got(lock.try_lock_until(Instant::now() + wait).await) })
        });
        add("blocking multi", &|name| {
            let lock = blocking::MultiLock::new(on_threads(name)).expect("locks");
            Box::pin(on_a_thread(move || got(lock.try_lock_for(wait))))
        });
        add("blocking red", &|name| {
            let lock = blocking::RedLock::new(on_threads(name)).expect("three servers");
            Box::pin(on_a_thread(move || got(lock.try_lock_for(wait))))
        });
        calls
    }

    /// Another client takes what these calls lock, at each server.
    async fn hold(&self, calls: &[Call]) -> Vec<LockGuard> {
        let mut guards = Vec::new();
        for (kind, name) in calls.iter().map(|call| (call.kind, &call.name)) {
            for client in &self.theirs {
                let guard = client.lock_of(against(kind), &**name).lock().await;
                guards.push(guard.expect("free"));
            }
        }
        guards
    }

    /// Proves that nothing is left.
    async fn finish(self) {
        let blocking = self.blocking;
        on_a_thread(move || drop(blocking)).await;
        for client in self.ours.iter().chain(&self.theirs) {
            eventually("nothing is under way", ms(10_000), || {
                client.is_connected() && client.stats().entries == 0
            })
            .await;
        }
        let mut servers = self.servers;
        for server in &servers {
            let mut control = server.control();
            eventually("no key is left", ms(10_000), || {
                let keys = control.run(&["KEYS", "*"]);
                keys.split(' ').all(|key| key.is_empty() || is_token(key))
            })
            .await;
        }
        let last = servers.pop().expect("servers");
        last.finish(self.ours.into_iter().chain(self.theirs)).await;
    }
}

type BoxedAnswer = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// Runs all of them at the same time. Returns what each answered that is not as it should be.
async fn wrong(calls: Vec<Call>, is_right: fn(&Answer) -> bool) -> Vec<String> {
    let mut tasks = tokio::task::JoinSet::new();
    for call in calls {
        tasks.spawn(async move {
            let start = Instant::now();
            let answer = call.answer.await;
            let took = start.elapsed();
            let is_late = took > call.wait.max(FIRST_ANSWER) + LATE + stalls(start);
            (is_late || !is_right(&answer)).then(|| {
                let Call { what, wait, .. } = call;
                format!("{what}, for {wait:?}: {answer:?} after {took:?}")
            })
        });
    }
    let mut wrong = Vec::new();
    while let Some(task) = tasks.join_next().await {
        wrong.extend(task.expect("no panic"));
    }
    wrong.sort();
    wrong
}

/// That of a server which does not answer. A call that got no answer says so.
fn is_outage(answer: &Answer) -> bool {
    matches!(answer, Err(Error::NoAnswer { .. }))
}

fn is_busy(answer: &Answer) -> bool {
    matches!(answer, Ok(false))
}

fn assert_none(wrong: &[String]) {
    assert!(wrong.is_empty(), "{:#?}", wrong);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_server_is_down_each_call_answers_at_its_limit_and_says_so() {
    let mut scene = Scene::new().await;
    let without_time = scene.calls(&[0, 1]).await;
    let calls = scene.calls(&[20, 100, 1_000, 5_000]).await;
    scene.servers.iter_mut().for_each(|server| server.kill());
    let wrong = [
        wrong(without_time, is_outage).await,
        wrong(calls, is_outage).await,
    ];
    scene
        .servers
        .iter_mut()
        .for_each(|server| server.start_again());
    assert_none(&wrong.concat());
    scene.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_server_hangs_each_call_answers_at_its_limit_and_what_it_sent_is_undone() {
    let scene = Scene::new().await;
    let without_time = scene.calls(&[0, 1]).await;
    let calls = scene.calls(&[20, 100, 1_000, 5_000]).await;
    scene.servers.iter().for_each(|server| server.pause());
    let wrong = [
        wrong(without_time, is_outage).await,
        wrong(calls, is_outage).await,
    ];
    scene.servers.iter().for_each(|server| server.resume());
    assert_none(&wrong.concat());
    scene.finish().await;
}

/// The server answers that another client has the lock; then it is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_lost_during_a_wait_is_no_holder() {
    let mut scene = Scene::new().await;
    let calls = scene.calls(&[1_500, 5_000]).await;
    let guards = scene.hold(&calls).await;
    let all = calls.len();
    let waiting = tokio::spawn(wrong(calls, is_outage));
    eventually("all wait", ms(1_000), || {
        let waits = |client: &LockClient| client.stats().waiting;
        scene.ours.iter().map(waits).sum::<usize>() >= all / 2
    })
    .await;
    tokio::time::sleep(ms(200)).await;
    scene.servers.iter_mut().for_each(|server| server.kill());
    let wrong = waiting.await.expect("no panic");
    scene
        .servers
        .iter_mut()
        .for_each(|server| server.start_again());
    assert_none(&wrong);
    drop(guards);
    scene.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_another_client_holds_is_busy_at_the_limit() {
    let scene = Scene::new().await;
    // Long enough for an answer on a busy machine.
    let calls = scene.calls(&[3_000]).await;
    let guards = scene.hold(&calls).await;
    let wrong = wrong(calls, is_busy).await;
    assert_none(&wrong);
    drop(guards);
    scene.finish().await;
}

/// As `tryLock` of Redisson: the first attempt is answered, however short the wait is.
#[tokio::test]
async fn a_wait_that_is_shorter_than_a_round_trip_makes_an_attempt() {
    let server = TestServer::new();
    let proxy = Proxy::start(server.port).await;
    let ours = LockClient::connect(&proxy.url()).await.expect("connected");
    let theirs = server.client().await;
    proxy.slow_down(ms(3));
    // A token stays.
    let kinds = KINDS.into_iter().filter(|kind| *kind != LockKind::Fenced);
    for (kind, wait) in kinds.flat_map(|kind| [(kind, ms(0)), (kind, ms(1))]) {
        let [one, other] = ["one", "other"].map(|name| format!("{kind} {name} {wait:?}"));
        let lock = ours.lock_of(kind, &*one);
        let start = Instant::now();
        let guard = lock.try_lock_for(wait).await;
        let is_slow = |start| stalls(start) > ms(10);
        assert!(got(guard).is_ok_and(|taken| taken) || is_slow(start));
        let theirs = theirs.lock_of(against(kind), &*other);
        let held = theirs.lock().await.expect("free");
        let lock = ours.lock_of(kind, &*other);
        let start = Instant::now();
        let found = got(lock.try_lock_for(wait).await);
        assert!(is_busy(&found) || is_slow(start), "{kind}: {found:?}");
        held.unlock().await.expect("held");
    }
    let members = ["a", "b"].map(|name| ours.lock(name));
    let multi = MultiLock::new(members).expect("two locks");
    let start = Instant::now();
    let found = got(multi.try_lock_for(ms(1)).await);
    assert!(
        matches!(found, Ok(true)) || !stalls(start).is_zero(),
        "{found:?}"
    );
    ours.close(ms(5_000)).await;
    proxy.stop().await;
    server.finish([theirs]).await;
}

/// The answer at a limit is what the client knows by then: whom it has given the lock itself, and what was never answered.
#[tokio::test]
async fn what_this_client_holds_itself_is_known_without_an_answer() {
    let server = TestServer::new();
    let client = server.client().await;
    let (first, second) = (client.owner(), client.owner());
    let plain = client.lock("plain");
    let (read, write) = (
        client.lock_of(LockKind::Read, "both"),
        client.lock_of(LockKind::Write, "both"),
    );
    let held = plain.owned_by(&first).lock().await.expect("free");
    let reads = read.owned_by(&first).lock().await.expect("free");
    server.pause();
    for (what, lock, owner, is_right) in [
        (
            "of another owner",
            &plain,
            &second,
            is_busy as fn(&Answer) -> bool,
        ),
        ("nested", &plain, &first, is_outage),
        ("beside a reader", &read, &second, is_outage),
        ("against a reader", &write, &second, is_busy),
    ] {
        let start = Instant::now();
        let found = got(lock.owned_by(owner).try_lock_for(ms(100)).await);
        let took = start.elapsed();
        assert!(is_right(&found), "{what}: {found:?}");
        assert!(took < ms(100) + LATE + stalls(start), "{what}: {took:?}");
    }
    server.resume();
    held.unlock().await.expect("held");
    reads.unlock().await.expect("held");
    server.finish([client]).await;
}

/// A server that is only slow has not said who has the lock. What it grants too late is released.
#[tokio::test]
async fn an_answer_that_comes_after_the_limit_is_undone() {
    let server = TestServer::new();
    let proxy = Proxy::start(server.port).await;
    let client = LockClient::connect(&proxy.url()).await.expect("connected");
    proxy.hold_replies(true);
    let start = Instant::now();
    let found = got(client.lock("slow").try_lock_for(ms(100)).await);
    let took = start.elapsed();
    assert!(is_outage(&found), "{found:?}");
    assert!(took < ms(100) + LATE + stalls(start), "{took:?}");
    proxy.hold_replies(false);
    let mut control = server.control();
    eventually("it is released", ms(5_000), || {
        client.stats().entries == 0 && control.run(&["EXISTS", "slow"]) == "0"
    })
    .await;
    client.close(Duration::ZERO).await;
    proxy.stop().await;
    server.finish([]).await;
}

/// It says that the server is there: who is not sent meanwhile, because another caller of the client is, finds the lock
/// busy.
#[tokio::test]
async fn an_answer_that_comes_too_late_is_no_outage_for_other_callers() {
    let server = TestServer::new();
    let proxy = Proxy::start(server.port).await;
    let client = LockClient::connect(&proxy.url()).await.expect("connected");
    let lock = client.lock("slow");
    let held = lock.lock().await.expect("free");
    // While it is there, so is what the client knows of the lock.
    let handle = held.handle();
    held.unlock().await.expect("held");
    let owners = [(); 3].map(|()| client.owner());
    let [late, asks, queues] = owners.each_ref().map(|owner| lock.owned_by(owner));
    proxy.slow_down(ms(100));
    let found = got(late.lease(ms(50)).try_lock().await);
    assert!(is_outage(&found), "{found:?}");
    let (asked, found) = tokio::join!(asks.try_lock_for(ms(5_000)), queues.try_lock_for(ms(150)));
    let found = got(found);
    assert!(is_busy(&found), "{found:?}");
    asked
        .expect("answered")
        .expect("it is released")
        .unlock()
        .await
        .expect("held");
    proxy.slow_down(Duration::ZERO);
    drop(handle);
    client.close(ms(5_000)).await;
    proxy.stop().await;
    server.finish([]).await;
}

/// Calls that have the same deadline. Returns the answers that are not busy. After a stall of this process, as long as one
/// that makes a server count as silent, they are made again.
async fn until_the_same_deadline<L: DistributedLock + Clone>(lock: L, calls: usize) -> Vec<Answer> {
    loop {
        let begun = Instant::now();
        let deadline = begun + ms(1_000);
        let call = |_| {
            let lock = lock.clone();
            tokio::spawn(async move {
                lock.try_lock_for(deadline - Instant::now())
                    .await
                    .map(|got| got.map(drop))
            })
        };
        let calls: Vec<_> = (0..calls).map(call).collect();
        let mut wrong = Vec::new();
        for call in calls {
            let found = got(call.await.expect("no panic"));
            wrong.extend((!is_busy(&found)).then_some(found));
        }
        if wrong.is_empty() || stalls(begun) < ms(200) {
            return wrong;
        }
    }
}

/// Each has its turn when those before it have given up, and no time left for an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_whose_turn_comes_at_their_deadline_find_the_lock_busy() {
    let scene = Scene::new().await;
    let locks = |clients: &[LockClient]| {
        let locks = clients.iter().map(|client| client.lock("a"));
        locks.collect::<Vec<_>>()
    };
    let theirs = RedLock::new(locks(&scene.theirs)).expect("three servers");
    let guard = theirs.lock().await.expect("free");
    // A quorum may be without the first.
    eventually("all have it", ms(5_000), || guard.servers() == 3).await;
    let ours = locks(&scene.ours);
    let mut control = scene.servers[0].control();
    let before = control.calls("evalsha");
    for _ in 0..5 {
        let wrong = until_the_same_deadline(ours[0].clone(), 300).await;
        assert!(wrong.is_empty(), "{} of 300: {:?}", wrong.len(), wrong[0]);
    }
    let sent = control.calls("evalsha") - before;
    assert!(sent < 100, "{sent} scripts, for answers that come too late");
    let multi = MultiLock::new(ours.clone()).expect("three locks");
    let wrong = until_the_same_deadline(multi, 100).await;
    assert!(wrong.is_empty(), "several: {}, {:?}", wrong.len(), wrong[0]);
    let red = RedLock::new(ours).expect("three servers");
    let wrong = until_the_same_deadline(red, 100).await;
    assert!(wrong.is_empty(), "red: {}, {:?}", wrong.len(), wrong[0]);
    guard.unlock().await.expect("held");
    scene.finish().await;
}

/// There is no replica, so that the question to them takes as long as it may.
#[tokio::test]
async fn replicas_are_waited_for_until_the_limit() {
    let server = TestServer::new();
    let client = server.client().await;
    let lock = client.lock("copied").sync_replicas(1, ms(2_000));
    let start = Instant::now();
    let failed = lock.try_lock_for(ms(300)).await.expect_err("no replica");
    let took = start.elapsed();
    assert_matches!(
        failed,
        Error::TooFewReplicas {
            wanted: 1,
            acknowledged: 0,
            ..
        }
    );
    assert!(took < ms(300) + LATE + stalls(start), "{took:?}");
    server.finish([client]).await;
}

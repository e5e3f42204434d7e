//! A peer that loses, doubles or swaps whole replies: from then on each reply may belong to another command. Within
//! three command timeouts every call is answered again, and with the truth.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redisson_lock::{Error, LockClient, LockClientBuilder};
use test_support::{Events, Fate, Proxy, TestServer, cases, eventually, ms, stalls, tokio};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tracing::Level;

/// What becomes of some replies on the connection for scripts.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Harm {
    Lost,
    Doubled,
    /// With the next one.
    Swapped,
}

/// The replies in flight that are harmed.
#[derive(Debug, Clone)]
struct Plan {
    in_flight: usize,
    harmed: std::ops::Range<usize>,
    harm: Harm,
}

impl Plan {
    /// These replies as they pass on.
    fn apply(&self, mut replies: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let harmed = self.harmed.clone();
        match self.harm {
            Harm::Lost => drop(replies.drain(harmed)),
            Harm::Doubled => {
                let again = replies[harmed].iter_mut();
                again.for_each(|reply| *reply = reply.repeat(2));
            }
            Harm::Swapped => harmed.for_each(|nth| replies.swap(nth, nth + 1)),
        }
        replies
    }
}

type Planned = Arc<Mutex<Option<Plan>>>;

/// Between a client and its server.
struct Peer {
    port: u16,
    /// `None` again once it is done.
    plan: Planned,
    task: JoinHandle<()>,
}

impl Peer {
    async fn start(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let plan = Planned::default();
        let planned = Arc::clone(&plan);
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(("127.0.0.1", to)).await else {
                    return;
                };
                _ = (client.set_nodelay(true), server.set_nodelay(true));
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                let has_scripts = Arc::new(AtomicBool::new(false));
                let plan = Arc::clone(&planned);
                let known = Arc::clone(&has_scripts);
                connections.spawn(async move {
                    tokio::select! {
                        () = pass_commands(from_client, to_server, &known) => {}
                        () = pass_replies(from_server, to_client, &has_scripts, &plan) => {}
                    }
                });
            }
        });
        Self { port, plan, task }
    }

    fn is_done(&self) -> bool {
        self.plan.lock().expect("unpoisoned").is_none()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass_commands(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, has_scripts: &AtomicBool) {
    let mut bytes = vec![0; 65_536];
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        let is_script = bytes[..read].windows(4).any(|word| word == b"EVAL");
        has_scripts.fetch_or(is_script, Ordering::SeqCst);
        if to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}

async fn pass_replies(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    has_scripts: &AtomicBool,
    plan: &Planned,
) {
    let (mut bytes, mut arrived, mut kept) = (vec![0; 65_536], Vec::new(), Vec::new());
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        arrived.extend_from_slice(&bytes[..read]);
        let mut passing = Vec::new();
        while let Some(length) = length(&arrived) {
            let reply: Vec<u8> = arrived.drain(..length).collect();
            let mut plan = plan.lock().expect("unpoisoned");
            match &mut *plan {
                Some(todo) if has_scripts.load(Ordering::SeqCst) && reply[0] != b'>' => {
                    kept.push(reply);
                    if kept.len() == todo.in_flight {
                        let kept = std::mem::take(&mut kept);
                        passing.extend(todo.apply(kept).concat());
                        *plan = None;
                    }
                }
                _ => passing.extend(reply),
            }
        }
        if to.write_all(&passing).await.is_err() {
            return;
        }
    }
}

/// How many bytes the first reply has, if it is there completely.
fn length(bytes: &[u8]) -> Option<usize> {
    let line = bytes.windows(2).position(|end| end == b"\r\n")? + 2;
    let number = || {
        let text = std::str::from_utf8(&bytes[1..line - 2]).expect("a number");
        text.parse::<i64>().expect("a number")
    };
    let length = match bytes[0] {
        b'$' | b'=' | b'!' => match number() {
            -1 => line,
            length => line + usize::try_from(length).expect("a length") + 2,
        },
        kind @ (b'*' | b'~' | b'>' | b'%') => {
            let items = if kind == b'%' { 2 * number() } else { number() };
            (0..items).try_fold(line, |at, _| Some(at + length(&bytes[at..])?))?
        }
        _ => line,
    };
    (length <= bytes.len()).then_some(length)
}

static ROUNDS: AtomicUsize = AtomicUsize::new(0);

/// What calls say of locks is true: of one that is free, and of one that another client holds.
async fn round(client: &LockClient, caller: &str) -> Result<(), String> {
    let owner = client.owner();
    let attempt = |name: &str| client.lock(name).owned_by(&owner);
    // Another each time: an answer that belonged to another call may have left a lock behind for its lease.
    let nth = ROUNDS.fetch_add(1, Ordering::Relaxed);
    let taken = attempt(&format!("free:{caller}:{nth}")).try_lock().await;
    let guard = taken.map_err(|error| format!("a free lock: {error:?}"))?;
    let guard = guard.ok_or("a free lock is busy")?;
    let taken = attempt("theirs").try_lock().await;
    let other = taken.map_err(|error| format!("another's lock: {error:?}"))?;
    if other.is_some() {
        return Err("another's lock is taken".to_owned());
    }
    let released = guard.unlock().await;
    released.map_err(|error| format!("a release: {error:?}"))
}

/// Replies are harmed, and then callers go on without a pause.
async fn recovers(server: u16, plan: Plan, callers: usize) {
    let peer = Peer::start(server).await;
    let url = format!("redis://127.0.0.1:{}", peer.port);
    let builder = LockClient::builder().command_timeout(TIMEOUT);
    let client = builder.connect(&url).await.expect("the server answers");
    client.ping().await.expect("the server answers");
    let name = |caller: usize| format!("{}:{caller}", peer.port);
    round(&client, &name(0))
        .await
        .expect("nothing is harmed yet");
    let in_flight = plan.in_flight;
    *peer.plan.lock().expect("unpoisoned") = Some(plan.clone());
    let mut harmed = JoinSet::new();
    for nth in 0..in_flight {
        let lock = client.lock(format!("harmed:{}", name(nth)));
        let lock = lock.owned_by(&client.owner());
        harmed.spawn(async move { drop(lock.try_lock().await) });
    }
    eventually("replies are harmed", ms(5_000), || peer.is_done()).await;
    let start = Instant::now();
    let expected = u64::from(plan.harm != Harm::Swapped);
    let mut calling = JoinSet::new();
    for caller in 0..callers {
        let (client, name) = (client.clone(), name(caller));
        let what = format!("{plan:?}, caller {caller} of {callers}");
        calling.spawn(async move {
            let mut last = Ok(());
            let is_replaced = || client.stats().reconnects_total == expected;
            while !is_replaced() && start.elapsed() < 3 * TIMEOUT + stalls(start) {
                last = round(&client, &name).await;
                // As one that asks again in a while.
                if last.is_err() {
                    tokio::time::sleep(ms(5)).await;
                }
            }
            for _ in 0..3 {
                let said = round(&client, &name).await;
                assert_eq!(said, Ok(()), "{what}, before: {last:?}");
            }
        });
    }
    while let Some(called) = calling.join_next().await {
        called.expect("answered with the truth");
    }
    harmed.join_all().await;
    let replaced = client.stats().reconnects_total;
    assert_eq!(replaced, expected, "connections: {plan:?}");
    client.close(ms(1_000)).await;
}

fn ended(run: Option<Result<(), JoinError>>) {
    if let Some(Err(panicked)) = run {
        std::panic::resume_unwind(panicked.into_panic());
    }
}

async fn each_harm(harm: Harm, callers: usize) {
    let server = TestServer::new();
    let theirs = server.client().await;
    let held = theirs.lock("theirs").lock().await.expect("free");
    let mut plans = Vec::new();
    for in_flight in 1..=4_usize {
        let harmed = if harm == Harm::Swapped {
            in_flight - 1
        } else {
            in_flight
        };
        plans.extend((0..harmed).map(|nth| (in_flight, nth..nth + 1)));
        plans.extend((harmed > 1).then_some((in_flight, 0..harmed)));
    }
    // Callers without a pause keep the machine busy.
    let at_once = if callers > 1 { 2 } else { plans.len() };
    let mut running = JoinSet::new();
    for (in_flight, harmed) in plans {
        if running.len() == at_once {
            ended(running.join_next().await);
        }
        let plan = Plan {
            in_flight,
            harmed,
            harm,
        };
        running.spawn(recovers(server.port, plan, callers));
    }
    while !running.is_empty() {
        ended(running.join_next().await);
    }
    held.unlock().await.expect("held");
    let leaks = server.leaks([theirs], ms(2_000)).await;
    // The lock of a caller that got another's reply, which said busy, stays for its lease.
    let is_expected = |leak: &String| callers > 1 && leak.starts_with("keys ");
    assert!(leaks.iter().all(is_expected), "left behind: {leaks:?}");
}

/// Each call gets the reply to the one before it, when that is of no use any more.
async fn goes_on<T>(call: impl AsyncFn(&LockClient) -> Option<T>) {
    let server = TestServer::new();
    let peer = Peer::start(server.port).await;
    let url = format!("redis://127.0.0.1:{}", peer.port);
    let builder = LockClient::builder().command_timeout(TIMEOUT);
    let client = builder.connect(&url).await.expect("the server answers");
    let first = client.lock("first").lock().await.expect("free");
    first.unlock().await.expect("held");
    *peer.plan.lock().expect("unpoisoned") = Some(Plan {
        in_flight: 2,
        harmed: 0..1,
        harm: Harm::Lost,
    });
    let start = Instant::now();
    _ = tokio::join!(call(&client), call(&client));
    assert!(peer.is_done(), "a reply is lost");
    while call(&client).await.is_none() {
        assert!(start.elapsed() < 3 * TIMEOUT + stalls(start), "no answer");
    }
    assert_eq!(client.stats().reconnects_total, 1);
    client.close(ms(1_000)).await;
}

#[tokio::test]
async fn pings_after_a_lost_reply_are_answered() {
    goes_on(async |client| client.ping().await.ok()).await;
}

/// They leave before their time is over.
#[tokio::test]
async fn callers_that_leave_after_a_lost_reply_have_the_connection_replaced() {
    let limit = TIMEOUT / 8;
    goes_on(async |client| tokio::time::timeout(limit, client.ping()).await.ok()?.ok()).await;
}

#[tokio::test]
async fn locks_are_taken_after_a_lost_reply() {
    goes_on(async |client| {
        let nth = ROUNDS.fetch_add(1, Ordering::Relaxed);
        let lock = client.lock(format!("{nth}"));
        lock.try_lock().await.ok()
    })
    .await;
}

/// Shifted replies that fit, each of them in time, and never a moment without a command in flight.
#[tokio::test]
async fn a_lost_reply_is_noticed_under_endless_traffic() {
    let server = TestServer::new();
    let theirs = server.client().await;
    let peer = Peer::start(server.port).await;
    let url = format!("redis://127.0.0.1:{}", peer.port);
    let builder = LockClient::builder().command_timeout(TIMEOUT);
    let client = builder.connect(&url).await.expect("the server answers");
    let name = |nth: usize| format!("theirs:{nth}");
    let mut held = Vec::new();
    for nth in 0..8 {
        held.push(theirs.lock(name(nth)).lock().await.expect("free"));
    }
    let mut traffic = JoinSet::new();
    for nth in 0..8 {
        let lock = client.lock(name(nth));
        traffic.spawn(async move {
            loop {
                _ = lock.try_lock().await;
            }
        });
    }
    // The server knows the script: from now on all replies are alike.
    tokio::time::sleep(ms(50)).await;
    *peer.plan.lock().expect("unpoisoned") = Some(Plan {
        in_flight: 4,
        harmed: 0..1,
        harm: Harm::Lost,
    });
    eventually("a reply is lost", ms(5_000), || peer.is_done()).await;
    let is_replaced = || client.stats().reconnects_total > 0;
    eventually("another connection", 3 * TIMEOUT, is_replaced).await;
    traffic.shutdown().await;
    client.close(ms(1_000)).await;
    for guard in held {
        guard.unlock().await.expect("held");
    }
}

/// The caller goes on for longer than until a connection without an idle moment is doubted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_with_idle_moments_costs_no_ping() {
    let server = TestServer::new();
    let timeout = ms(2_000);
    let set = |builder: LockClientBuilder| builder.command_timeout(timeout);
    let client = server.client_with(set).await;
    let before = server.control().calls("ping");
    let start = Instant::now();
    while start.elapsed() < timeout {
        let guard = client.lock("a").lock().await.expect("free");
        guard.unlock().await.expect("held");
    }
    assert_eq!(server.control().calls("ping"), before);
    server.finish([client]).await;
}

/// Longer than until its connections are doubted.
#[tokio::test]
async fn a_server_that_stalls_keeps_its_connections() {
    let server = TestServer::new();
    let set = |builder: LockClientBuilder| builder.command_timeout(TIMEOUT);
    let client = server.client_with(set).await;
    server.pause();
    let calls = (0..16).map(|nth| {
        let client = client.clone();
        async move { client.lock(format!("{nth}")).try_lock().await.map(drop) }
    });
    let calls: JoinSet<_> = calls.collect();
    tokio::time::sleep(TIMEOUT * 3 / 4).await;
    server.resume();
    calls.join_all().await;
    client.ping().await.expect("the server answers");
    assert_eq!(client.stats().reconnects_total, 0);
    server.finish([client]).await;
}

const TIMEOUT: Duration = Duration::from_millis(800);

cases! {
    each_harm;
    fn a_lost_reply_costs_one_caller_at_a_time_no_more_than_three_command_timeouts(Harm::Lost, 1);
    fn a_lost_reply_costs_many_callers_no_more_than_three_command_timeouts(Harm::Lost, 16);
    fn a_doubled_reply_costs_one_caller_at_a_time_no_more_than_three_command_timeouts(Harm::Doubled, 1);
    fn a_doubled_reply_costs_many_callers_no_more_than_three_command_timeouts(Harm::Doubled, 16);
}

#[tokio::test]
async fn replies_that_are_swapped_shift_no_later_one() {
    each_harm(Harm::Swapped, 1).await;
    each_harm(Harm::Swapped, 16).await;
}

#[tokio::test]
async fn connections_that_end_soon_are_replaced_after_pauses() {
    const CONNECTIONS: usize = 20;
    let server = TestServer::new();
    let proxy = Proxy::start(server.port).await;
    let client = LockClient::connect(&proxy.url()).await;
    let client = client.expect("it answers");
    let (start, before) = (Instant::now(), proxy.arrivals().len());
    while proxy.arrivals().len() < before + CONNECTIONS {
        let guard = client.lock("a").lock().await.expect("it is sent again");
        guard.unlock().await.expect("held");
        proxy.cut_all();
    }
    let took = start.elapsed();
    assert!(took >= ms(200), "{CONNECTIONS} connections in {took:?}");
    client.close(Duration::ZERO).await;
    proxy.stop().await;
}

/// A push confirms a subscription: what comes in its place is the reply of another command.
#[tokio::test]
async fn a_subscription_that_has_an_impossible_reply_is_reported_as_out_of_step() {
    let (events, _here) = Events::of_this_thread();
    let server = TestServer::new();
    let mut control = server.control();
    control.run(&["HSET", "a", "other:1", "1"]);
    control.run(&["PEXPIRE", "a", "60000"]);
    let proxy = Proxy::start(server.port).await;
    let builder = LockClient::builder().command_timeout(ms(900));
    let client = builder.connect(&proxy.url()).await.expect("it answers");
    let subscribes = |words: &[String]| words[0] == "SUBSCRIBE";
    proxy.rule(Fate::Instead(":0"), usize::MAX, subscribes);
    let (start, before) = (Instant::now(), proxy.arrivals().len());
    let Err(error @ Error::NoAnswer { .. }) = client.lock("a").lock().await else {
        panic!("nothing was confirmed")
    };
    let took = start.elapsed();
    assert!(format!("{error:?}").contains("out of step"), "{error:?}");
    // At most one in a command timeout.
    let most = 2 + took.as_millis() as usize / 900;
    let opened = proxy.arrivals().len() - before;
    assert!(opened <= most, "{opened} connections in {took:?}");
    let out_of_step = "replies are out of step with their commands: the connection is replaced";
    assert!(events.count(Level::WARN, out_of_step) > 0);
    let apart =
        "connections end when channels are subscribed to: channels get a connection of their own";
    assert_eq!(events.count(Level::WARN, apart), 0);
    client.close(Duration::ZERO).await;
    proxy.stop().await;
}

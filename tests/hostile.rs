//! A peer that cuts, holds back, repeats or invents the bytes of replies: what a call then says of its lock is true, and
//! no call waits for longer than its time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redisson_lock::{LockClient, LockClientBuilder};
use test_support::{Control, TestServer, ms, stalls, tokio};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

#[cfg(feature = "tls-rustls")]
#[path = "tls/certificates.rs"]
mod certificates;

/// What becomes of the replies on a connection, once this many of their bytes have passed.
#[derive(Debug, Clone, Copy)]
enum Harm {
    /// The connection is closed.
    Cut,
    /// It stays open, and nothing comes any more.
    HalfOpen,
    /// Every further byte comes alone, after a pause.
    Drips,
    /// These come in between.
    Inserted(&'static [u8]),
    /// So does a list in a list in a list …
    Deep,
    /// A line that does not end.
    Endless,
}

/// Which byte it is.
#[derive(Debug, Clone, Copy)]
enum At {
    /// Of all on the connection.
    Byte(usize),
    /// Of those that come once the client is connected.
    Connected(usize),
}

/// What a peer has done, and is to do.
#[derive(Default)]
struct Plan {
    at: AtomicUsize,
    passed: AtomicUsize,
    is_done: AtomicBool,
    /// Bytes of the endless line that the client took.
    taken: AtomicUsize,
}

/// Between a client and its server.
struct Peer {
    port: u16,
    plan: Arc<Plan>,
    task: JoinHandle<()>,
}

impl Peer {
    /// Harms the first connection, at this byte. All later ones are let through.
    async fn start(to: u16, at: At, harm: Harm) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let plan = Arc::new(Plan::default());
        let byte = match at {
            At::Byte(byte) => byte,
            At::Connected(_) => usize::MAX,
        };
        plan.at.store(byte, Ordering::SeqCst);
        let planned = Arc::clone(&plan);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            let mut first = Some(harm);
            while let Ok((client, _)) = listener.accept().await {
                let (harm, plan) = (first.take(), Arc::clone(&planned));
                connections.spawn(async move {
                    let Ok(server) = TcpStream::connect(("127.0.0.1", to)).await else {
                        return;
                    };
                    let (from_client, to_client) = client.into_split();
                    let (from_server, to_server) = server.into_split();
                    let requests = tokio::spawn(pass(from_client, to_server));
                    match harm {
                        None => _ = pass(from_server, to_client).await,
                        Some(harm) => hurt(from_server, to_client, harm, &plan).await,
                    }
                    requests.abort();
                });
            }
        });
        Self { port, plan, task }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    _ = tokio::io::copy(&mut from, &mut to).await;
}

async fn hurt(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, harm: Harm, plan: &Plan) {
    let mut buffer = [0; 4096];
    loop {
        let Ok(read @ 1..) = from.read(&mut buffer).await else {
            return;
        };
        let (at, passed) = (
            plan.at.load(Ordering::SeqCst),
            plan.passed.load(Ordering::SeqCst),
        );
        let before = read.min(at - passed);
        if to.write_all(&buffer[..before]).await.is_err() {
            return;
        }
        plan.passed.fetch_add(before, Ordering::SeqCst);
        if before == read {
            continue;
        }
        plan.is_done.store(true, Ordering::SeqCst);
        let rest = &buffer[before..read];
        let inserted = match harm {
            Harm::Cut => return,
            Harm::HalfOpen => std::future::pending().await,
            Harm::Drips => {
                for byte in rest {
                    tokio::time::sleep(ms(2)).await;
                    if to.write_all(&[*byte]).await.is_err() {
                        return;
                    }
                }
                &b""[..]
            }
            Harm::Inserted(bytes) => bytes,
            Harm::Deep => &b"*1\r\n".repeat(100_000),
            Harm::Endless => {
                let line = vec![b'a'; 1 << 16];
                _ = to.write_all(b"+").await;
                while let Ok(written) = to.write(&line).await {
                    plan.taken.fetch_add(written, Ordering::SeqCst);
                }
                return;
            }
        };
        if to.write_all(inserted).await.is_err() {
            return;
        }
        if !matches!(harm, Harm::Drips) && to.write_all(rest).await.is_err() {
            return;
        }
        return pass(from, to).await;
    }
}

/// The server that the peer leads to, and how a client connects.
struct Route {
    server: u16,
    scheme: &'static str,
    builder: LockClientBuilder,
}

impl Route {
    fn plain(server: u16) -> Self {
        Self {
            server,
            scheme: "redis",
            builder: LockClient::builder(),
        }
    }
}

/// Connects, takes a lock and releases it over a peer. What was said is what the server has. Returns what the
/// peer has done.
async fn works_or_fails(control: &mut Control, route: &Route, at: At, harm: Harm) -> Arc<Plan> {
    let peer = Peer::start(route.server, at, harm).await;
    let (start, plan) = (Instant::now(), Arc::clone(&peer.plan));
    let in_time = |start: Instant, what: &str| {
        let took = start.elapsed().saturating_sub(stalls(start));
        let most = TIMEOUT * 2 + ms(500);
        assert!(took < most, "{what} took {took:?}: {harm:?} at {at:?}");
    };
    let url = format!("{}://127.0.0.1:{}", route.scheme, peer.port);
    let builder = route.builder.clone().command_timeout(TIMEOUT);
    let connected = builder.connect(&url).await;
    in_time(start, "connecting");
    let Ok(client) = connected else {
        return plan;
    };
    if let At::Connected(byte) = at {
        let passed = plan.passed.load(Ordering::SeqCst);
        plan.at.store(passed + byte, Ordering::SeqCst);
    }
    let start = Instant::now();
    let locked = client.lock("a").try_lock().await;
    in_time(start, "the attempt");
    if let Ok(Some(guard)) = locked {
        let held = control.run(&["HLEN", "a"]);
        assert_eq!(held, "1", "{harm:?} at {at:?}: it is held");
        let start = Instant::now();
        let released = guard.unlock().await;
        in_time(start, "the release");
        if released.is_ok() {
            let left = control.run(&["EXISTS", "a"]);
            assert_eq!(left, "0", "{harm:?} at {at:?}: it is free");
        }
    }
    client.close(Duration::ZERO).await;
    control.run(&["DEL", "a"]);
    plan
}

/// Of these places nearly all are before the end of what a server sends.
async fn works_or_fails_at_each(
    control: &mut Control,
    route: &Route,
    places: impl Iterator<Item = At>,
    harm: Harm,
) {
    let (mut tried, mut done) = (0, 0);
    for at in places {
        let plan = works_or_fails(control, route, at, harm).await;
        (tried, done) = (
            tried + 1,
            done + usize::from(plan.is_done.load(Ordering::SeqCst)),
        );
    }
    assert!(done * 10 >= tried * 9, "{harm:?}: {done} of {tried}");
}

/// While the client connects, and then while the lock is taken and released.
fn places(step: usize, from: usize) -> impl Iterator<Item = At> {
    let connecting = (from..CONNECTING).step_by(step).map(At::Byte);
    connecting.chain((0..CONNECTED).map(At::Connected))
}

#[tokio::test]
async fn a_connection_may_end_at_every_byte() {
    let server = TestServer::new();
    let (mut control, route) = (server.control(), Route::plain(server.port));
    works_or_fails_at_each(&mut control, &route, places(1, 0), Harm::Cut).await;
}

#[tokio::test]
async fn what_no_server_sends_ends_the_connection_and_nothing_else() {
    let server = TestServer::new();
    let (mut control, route) = (server.control(), Route::plain(server.port));
    let harms = [
        Harm::Deep,
        Harm::Drips,
        Harm::Inserted(b"?"),
        Harm::Inserted(b"\r\n"),
        Harm::Inserted(b"$99999999999\r\n"),
        Harm::Inserted(b"*99999999999\r\n"),
        Harm::Inserted(b"$-7\r\n"),
        Harm::Inserted(b"-ERR not asked for\r\n"),
    ];
    for (nth, harm) in harms.into_iter().enumerate() {
        let places = places(harms.len() * 3, nth);
        works_or_fails_at_each(&mut control, &route, places, harm).await;
    }
}

#[tokio::test]
async fn silence_at_any_byte_costs_no_call_more_than_its_time() {
    let server = TestServer::new();
    let (mut control, route) = (server.control(), Route::plain(server.port));
    works_or_fails_at_each(&mut control, &route, places(41, 0), Harm::HalfOpen).await;
}

#[tokio::test]
async fn a_line_that_does_not_end_does_not_fill_the_memory() {
    let server = TestServer::new();
    let (mut control, route) = (server.control(), Route::plain(server.port));
    let at = At::Connected(0);
    let plan = works_or_fails(&mut control, &route, at, Harm::Endless).await;
    let taken = plan.taken.load(Ordering::SeqCst);
    assert!(taken > 1 << 20, "it was in the way: {taken} bytes");
    // What the sockets keep comes on top.
    assert!(taken < 80 << 20, "{taken} bytes");
}

/// The same peer between a client and a server that speak TLS: it can read nothing but still do harm.
#[cfg(feature = "tls-rustls")]
mod by_tls {
    use redisson_lock::Tls;
    use test_support::{Server, tokio};

    use super::certificates::{Folder, NOW, address, server_for};
    use super::*;

    async fn server() -> (Server, Route, Folder) {
        let (server, authority, folder) = server_for(&["127.0.0.1"], NOW);
        let tls = Tls::new().ca(authority.pem());
        let route = Route {
            server: server.tls_port.expect("started with one"),
            scheme: "rediss",
            builder: LockClient::builder().tls(tls),
        };
        let url = address("127.0.0.1", &server);
        let client = route.builder.clone().connect(&url).await;
        client.expect("without a peer").close(Duration::ZERO).await;
        (server, route, folder)
    }

    fn places(step: usize) -> impl Iterator<Item = At> {
        let connecting = (0..CONNECTING).step_by(step).map(At::Byte);
        connecting.chain((0..CONNECTED).step_by(step / 4 + 1).map(At::Connected))
    }

    #[tokio::test]
    async fn a_connection_may_end_at_any_byte() {
        let (server, route, _folder) = server().await;
        let mut control = server.control();
        works_or_fails_at_each(&mut control, &route, places(5), Harm::Cut).await;
    }

    #[tokio::test]
    async fn what_was_not_encrypted_for_the_client_ends_the_connection_and_nothing_else() {
        let (server, route, _folder) = server().await;
        let mut control = server.control();
        // A message, an alert that it is over, and a record that nobody can decrypt.
        let harms = [
            Harm::Inserted(b":1\r\n"),
            Harm::Inserted(b"\x15\x03\x03\x00\x02\x01\x00"),
            Harm::Inserted(b"\x17\x03\x03\x00\x18aaaaaaaaaaaaaaaaaaaaaaaa"),
        ];
        for harm in harms {
            works_or_fails_at_each(&mut control, &route, places(61), harm).await;
        }
    }

    #[tokio::test]
    async fn records_that_arrive_byte_by_byte_are_read() {
        let (server, route, _folder) = server().await;
        let mut control = server.control();
        works_or_fails_at_each(&mut control, &route, places(97), Harm::Drips).await;
    }

    #[tokio::test]
    async fn silence_at_any_byte_costs_no_call_more_than_its_time() {
        let (server, route, _folder) = server().await;
        let mut control = server.control();
        works_or_fails_at_each(&mut control, &route, places(97), Harm::HalfOpen).await;
    }

    /// About as many bytes as a server sends while a client connects.
    const CONNECTING: usize = 2_250;

    /// As many as it sends for an attempt and a release.
    const CONNECTED: usize = 52;
}

const TIMEOUT: Duration = Duration::from_millis(400);

/// About as many bytes as a server answers while a client connects.
const CONNECTING: usize = 440;

/// As many as it answers to an attempt and a release.
const CONNECTED: usize = 8;

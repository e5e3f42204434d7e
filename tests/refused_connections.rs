//! A server that refuses connections before any command says why, and closes them: callers get that reason.

use std::net::TcpStream as Held;
use std::time::Duration;

use redisson_lock::{Error, LockClient, RefusedKind};
use test_support::{TestServer, eventually, ms, tokio};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

const FULL: &str = "-ERR max number of clients reached\r\n";
const PROTECTED: &str =
    "-DENIED Redis is running in protected mode because protected mode is enabled\r\n";

fn is_full(error: &Error) -> bool {
    let full = RefusedKind::TooManyClients;
    matches!(error, Error::Refused { kind, .. } if *kind == full)
}

fn is_protected(error: &Error) -> bool {
    let text = error.to_string();
    matches!(error, Error::Refused { .. }) && text.contains("it is in protected mode")
}

/// When it says so.
#[derive(Debug, Clone, Copy)]
enum When {
    /// And closes.
    Immediately,
    /// And resets the connection when the first command is there.
    ThenResets,
    /// Once the first command is there.
    Asked,
}

/// What a server does with each connection.
async fn refusing(says: &'static str, when: When) -> (u16, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let port = listener.local_addr().expect("bound").port();
    let serving = tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.expect("accepted");
            tokio::spawn(async move {
                if matches!(when, When::Asked) {
                    let _ = socket.read(&mut [0; 4096]).await;
                }
                let _ = socket.write_all(says.as_bytes()).await;
                if matches!(when, When::ThenResets) {
                    // What it has not read is answered by a reset when it closes.
                    let _ = socket.readable().await;
                }
            });
        }
    });
    (port, serving)
}

#[tokio::test]
async fn why_a_connection_is_refused_is_said_whenever_it_arrives() {
    for when in [When::Immediately, When::ThenResets, When::Asked] {
        for (says, is_said) in [
            (FULL, is_full as fn(&Error) -> bool),
            (PROTECTED, is_protected),
        ] {
            let (port, serving) = refusing(says, when).await;
            for (scheme, rest) in [
                ("redis", ""),
                ("redis-cluster", ""),
                ("redis-sentinel", "?sentinelServiceName=main"),
            ] {
                for credentials in ["", "user:secret@"] {
                    let url = format!("{scheme}://{credentials}127.0.0.1:{port}{rest}");
                    for _ in 0..3 {
                        let refused = LockClient::connect(&url).await.expect_err("refused");
                        assert!(is_said(&refused), "{when:?}, {url}: {refused:?}");
                    }
                }
            }
            serving.abort();
        }
    }
}

fn connections(port: u16, count: usize) -> Vec<Held> {
    let connect = |_| Held::connect(("127.0.0.1", port)).expect("accepted");
    (0..count).map(connect).collect()
}

#[tokio::test]
async fn a_server_without_room_for_a_connection_says_so() {
    let server = TestServer::with(&["--maxclients", "20"]);
    let client = server.client().await;
    let mut control = server.control();
    let full = connections(server.port, 30);
    for _ in 0..5 {
        let refused = LockClient::connect(&server.url()).await;
        let refused = refused.expect_err("there is no room");
        assert!(is_full(&refused), "{refused:?}");
    }
    // The client loses its connections, and others take their room.
    control.run(&["CONFIG", "SET", "maxclients", "1"]);
    control.run(&["CLIENT", "KILL", "SKIPME", "yes"]);
    drop(full);
    eventually("the client is refused", ms(5_000), || {
        !client.is_connected()
    })
    .await;
    let lock = client.lock("a");
    for _ in 0..3 {
        let refused = lock.try_lock_for(ms(700)).await.expect_err("no room");
        assert!(is_full(&refused), "{refused:?}");
    }
    control.run(&["CONFIG", "SET", "maxclients", "1000"]);
    let guard = lock.try_lock_for(ms(10_000)).await.expect("answered");
    guard.expect("free").unlock().await.expect("held");
    client.close(Duration::from_secs(5)).await;
    server.finish([]).await;
}

/// A connection is lost while channels are on it.
#[tokio::test]
async fn a_server_without_room_for_one_that_waits_says_so() {
    let server = TestServer::new();
    let (ours, theirs) = (server.client().await, server.client().await);
    let held = theirs.lock("a").lock().await.expect("free");
    let lock = ours.lock("a");
    assert!(lock.try_lock_for(ms(200)).await.expect("asked").is_none());
    let mut control = server.control();
    control.run(&["CONFIG", "SET", "maxclients", "1"]);
    control.run(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    let waiting = tokio::time::timeout(ms(10_000), lock.lock()).await;
    let refused = waiting.expect("answered").expect_err("no room");
    assert!(is_full(&refused), "{refused:?}");
    control.run(&["CONFIG", "SET", "maxclients", "1000"]);
    held.unlock().await.expect("held");
    server.finish([ours, theirs]).await;
}

//! The helper that proves that nothing is left has tests of its own: one deliberate leak of each
//! kind is seen.

use std::time::Duration;
use test_support::{TestServer, eventually, lock_and_unlock, ms, tokio};

/// Long enough for a lingering subscription to end.
const PATIENCE: Duration = Duration::from_millis(1300);

fn is_seen(leaks: &[String], what: &str) -> bool {
    leaks.iter().any(|leak| leak.contains(what))
}

#[tokio::test]
async fn nothing_is_seen_where_nothing_is_left() {
    let server = TestServer::new();
    let client = server.client().await;
    lock_and_unlock(&client.lock("a")).await;
    assert_eq!(server.leaks([client], PATIENCE).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_hold_its_timer_and_its_key_are_seen() {
    let server = TestServer::new();
    let client = server.client().await;
    client.lock("a").lock().await.expect("free").detach();
    let leaks = server.leaks([client], PATIENCE).await;
    assert!(
        is_seen(&leaks, "held: 1") && is_seen(&leaks, "renewals: 1") && is_seen(&leaks, "keys a"),
        "{leaks:?}"
    );
}

#[tokio::test]
async fn a_forgotten_guard_is_seen() {
    let server = TestServer::new();
    let client = server.client().await;
    std::mem::forget(client.lock("a").lock().await.expect("free"));
    assert!(is_seen(&server.leaks([client], PATIENCE).await, "held: 1"));
}

#[tokio::test]
async fn a_waiter_and_its_subscription_are_seen() {
    let server = TestServer::new();
    let client = server.client().await;
    server.control().run(&["HSET", "a", "java:1", "1"]);
    let lock = client.lock("a");
    let waiter = tokio::spawn(async move { lock.lock().await });
    let mut control = server.control();
    eventually("it waits", ms(2000), || {
        !control.run(&["PUBSUB", "CHANNELS"]).is_empty()
    })
    .await;
    let leaks = server.leaks([client], PATIENCE).await;
    assert!(
        is_seen(&leaks, "waiting: 1") && is_seen(&leaks, "channels redisson_lock__channel:{a}"),
        "{leaks:?}"
    );
    waiter.abort();
}

#[tokio::test]
async fn an_entry_of_which_nothing_else_is_left_is_seen() {
    let server = TestServer::new();
    let client = server.client().await;
    let guard = client.lock("a").lease(ms(300)).lock().await.expect("free");
    guard.lost().await;
    let mut control = server.control();
    eventually("only the lost guard is left", ms(2000), || {
        client.stats().releasing == 0 && control.run(&["KEYS", "*"]).is_empty()
    })
    .await;
    let leaks = server.leaks([client], PATIENCE).await;
    assert!(
        is_seen(&leaks, "held: 0") && is_seen(&leaks, "entries: 1"),
        "{leaks:?}"
    );
    drop(guard);
}

#[tokio::test]
async fn a_release_that_does_not_end_is_seen() {
    let server = TestServer::new();
    let client = server
        .client_with(|builder| builder.command_timeout(ms(200)))
        .await;
    let mut control = server.control();
    let guard = client.lock("a").lock().await.expect("free");
    control.run(&["CLIENT", "PAUSE", "2500", "WRITE"]);
    drop(guard);
    let leaks = server.leaks([client], ms(300)).await;
    assert!(is_seen(&leaks, "releasing: 1"), "{leaks:?}");
}

#[tokio::test]
async fn a_foreign_key_a_connection_and_a_task_are_seen() {
    let server = TestServer::new();
    let client = server.client().await;
    server.control().run(&["SET", "stray", "x"]);
    let kept = server.client().await;
    let leaks = server.leaks([client], PATIENCE).await;
    assert!(is_seen(&leaks, "keys stray"), "{leaks:?}");
    assert!(is_seen(&leaks, "1 connections"), "{leaks:?}");
    assert!(is_seen(&leaks, "tasks"), "{leaks:?}");
    kept.close(Duration::ZERO).await;
}

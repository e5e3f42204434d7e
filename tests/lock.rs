//! What every lock does: exclude, nest, release, and what a client makes of its settings.

use test_support::{TestServer, ms, tokio};

/// Those that fit a cluster too: see `tests/cluster_rows.rs`.
#[path = "rows/lock.rs"]
mod rows;

#[tokio::test]
async fn a_key_prefix_is_part_of_the_raw_name() {
    let server = TestServer::new();
    let client = server
        .client_with(|builder| builder.key_prefix("shop:"))
        .await;
    let lock = client.lock("a");
    let guard = lock.lock().await.expect("free");
    assert_eq!(lock.name(), "a");
    assert_eq!(server.control().count("shop:a"), 1);
    guard.unlock().await.expect("held");
    server.finish([client]).await;
}

#[tokio::test]
async fn several_connections_share_the_locks_by_name() {
    let server = TestServer::new();
    let client = server.client_with(|builder| builder.connections(4)).await;
    assert_eq!(server.control().connections(), 4);
    let mut guards = Vec::new();
    for nth in 0..40 {
        guards.push(client.lock(format!("a{nth}")).lock().await.expect("free"));
    }
    for guard in guards {
        guard.unlock().await.expect("held");
    }
    server.finish([client]).await;
}

#[tokio::test]
async fn a_guard_shows_its_lock_its_owner_and_how_it_stands() {
    let server = TestServer::new();
    let client = server.client().await;
    let guard = client.lock("stock").lock().await.expect("free");
    let shown = format!("{guard:?}");
    for part in ["stock", &guard.owner().to_string(), "Held"] {
        assert!(shown.contains(part), "{part} is missing in {shown}");
    }
    guard.unlock().await.expect("held");
    server.finish([client]).await;
}

#[tokio::test]
async fn closing_does_not_take_for_progress_that_releases_give_up() {
    const LOCKS: usize = 1_000;
    let server = TestServer::new();
    let lease = ms(1500);
    let client = server
        .client_with(|builder| builder.watchdog_timeout(lease).command_timeout(ms(450)))
        .await;
    let mut guards = Vec::new();
    for nth in 0..LOCKS {
        guards.push(
            client
                .lock(format!("lock:{nth}"))
                .lock()
                .await
                .expect("free"),
        );
    }
    server.pause();
    drop(guards);
    let start = std::time::Instant::now();
    let report = client.close(2 * lease).await;
    let took = start.elapsed();
    server.resume();
    assert!(
        took < 3 * lease,
        "a close with a grace of {:?} took {took:?}: {report:?}",
        2 * lease
    );
    server.finish([]).await;
}

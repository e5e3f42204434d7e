//! A client made from the settings of a fred client, whatever that client is and whatever becomes of it.

mod common;

use std::time::Duration;

use common::{Bed, ms};
use fred::prelude::*;
use redisson_lock::LockClient;

fn config(bed: &Bed) -> Config {
    Config::from_url(&bed.server.url()).expect("a valid address")
}

async fn works(client: &LockClient) {
    let lock = client.lock("a");
    let guard = lock.lock().await.expect("free");
    let nested = lock.lock().await.expect("nested");
    assert_eq!(lock.hold_count().await.expect("asked"), 2);
    nested.unlock().await.expect("held");
    guard.unlock().await.expect("held");
}

#[tokio::test]
async fn a_client_without_a_reconnect_policy_is_never_used_or_connected() {
    let bed = Bed::new();
    let theirs = Builder::from_config(config(&bed)).build().expect("valid settings");
    let client = LockClient::from_fred(&theirs).await.expect("the server answers");
    works(&client).await;
    assert!(!theirs.is_connected());
    assert_eq!(bed.control().connections(), 2, "ours alone");
    bed.finish([client]).await;
}

#[tokio::test]
async fn a_clients_own_retries_do_not_double_a_hold() {
    use common::proxy::{Fate, Proxy, acquire_to};
    let bed = Bed::new();
    let proxy = Proxy::start(bed.server.port).await;
    let mut builder = Builder::from_config(Config::from_url(&proxy.url()).expect("a valid address"));
    builder
        .set_policy(ReconnectPolicy::new_constant(0, 1))
        .with_connection_config(|connection| connection.max_command_attempts = 5);
    let theirs = builder.build().expect("valid settings");
    let client = LockClient::from_fred(&theirs).await.expect("the server answers");
    works(&client).await;
    proxy.rule(Fate::LoseReply, 1, acquire_to(1));
    let guard = client.lock("a").lock().await.expect("repeated by us, once");
    assert_eq!(bed.control().count("a"), 1);
    guard.unlock().await.expect("held");
    client.close(Duration::ZERO).await;
    proxy.stop().await;
    bed.finish([]).await;
}

#[tokio::test]
async fn a_pool_gives_its_settings() {
    let bed = Bed::new();
    let pool = Builder::from_config(config(&bed)).build_pool(3).expect("valid settings");
    let task = pool.init().await.expect("connected");
    let client = LockClient::builder()
        .watchdog_timeout(Duration::from_secs(9))
        .command_timeout(ms(500))
        .from_fred(&pool)
        .await
        .expect("the server answers");
    works(&client).await;
    assert_eq!(bed.control().connections(), 3 + 2);
    pool.quit().await.expect("quit");
    let _ = task.await;
    bed.finish([client]).await;
}

#[tokio::test]
async fn a_client_that_is_quit_while_locks_are_held_takes_none_of_them_along() {
    let bed = Bed::new();
    let theirs = Builder::from_config(config(&bed)).build().expect("valid settings");
    let task = theirs.init().await.expect("connected");
    let client = LockClient::builder()
        .watchdog_timeout(ms(900))
        .command_timeout(ms(250))
        .from_fred(&theirs)
        .await
        .expect("the server answers");
    let guard = client.lock("a").lock().await.expect("free");
    theirs.quit().await.expect("quit");
    let _ = task.await;
    tokio::time::sleep(ms(1200)).await;
    assert_eq!(guard.state(), redisson_lock::HoldState::Held, "renewed over a connection of its own");
    guard.unlock().await.expect("held");
    works(&client).await;
    bed.finish([client]).await;
}

#[tokio::test]
async fn resp3_works_as_well() {
    let bed = Bed::new();
    let mut config = config(&bed);
    config.version = fred::types::RespVersion::RESP3;
    let theirs = Builder::from_config(config).build().expect("valid settings");
    let client = LockClient::from_fred(&theirs).await.expect("the server answers");
    works(&client).await;
    let other = bed.client().await;
    let held = other.lock("a").lock().await.expect("free");
    let waiter = tokio::spawn({
        let lock = client.lock("a");
        async move { lock.lock().await.expect("taken").unlock().await }
    });
    let mut control = bed.control();
    common::eventually("it waits", ms(2000), || !control.run(&["PUBSUB", "CHANNELS"]).is_empty()).await;
    held.unlock().await.expect("held");
    let woken = tokio::time::timeout(ms(1000), waiter).await.expect("woken");
    woken.expect("no panic").expect("held");
    bed.finish([client, other]).await;
}

#[tokio::test]
async fn a_clustered_client_is_refused_with_a_sentence() {
    let config = Config::from_url("redis-cluster://127.0.0.1:7000").expect("a valid address");
    let theirs = Builder::from_config(config).build().expect("valid settings");
    let error = LockClient::from_fred(&theirs).await.expect_err("not supported yet");
    assert!(error.to_string().contains("not supported yet"));
}

//! A name behind which the server changes: it stops being the primary, or its credentials change.

use std::time::{Duration, Instant};

use redisson_lock::{Error, LockClient, RefusedKind};
use test_support::{
    Proxy, Server, TestServer, assert_matches, eventually, lock_and_unlock, ms, stalls, tokio,
    within,
};

/// A primary and its replica, in step, and a name that leads to the primary.
async fn primary_and_replica() -> (TestServer, Server, Proxy) {
    let (primary, replica) = (TestServer::new(), Server::start());
    let mut control = replica.control();
    control.run(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()]);
    eventually("the replica is in step", Duration::from_secs(20), || {
        control
            .run(&["INFO", "replication"])
            .contains("master_link_status:up")
    })
    .await;
    let proxy = Proxy::start(primary.port).await;
    (primary, replica, proxy)
}

/// The replica becomes the primary of the old one, and the name leads there. Connections that are
/// open stay where they are.
async fn fail_over(old: &TestServer, new: &Server, name: &Proxy) {
    new.control().run(&["REPLICAOF", "NO", "ONE"]);
    let mut control = old.control();
    control.run(&["REPLICAOF", "127.0.0.1", &new.port.to_string()]);
    eventually(
        "the old primary is a replica",
        Duration::from_secs(20),
        || {
            control
                .run(&["INFO", "replication"])
                .contains("master_link_status:up")
        },
    )
    .await;
    name.lead_to(new.port);
}

#[tokio::test]
async fn after_a_failover_behind_a_name_the_client_finds_the_new_primary() {
    let (old, new, name) = primary_and_replica().await;
    let client = LockClient::connect(&name.url())
        .await
        .expect("the server answers");
    let lock = client.lock("a");
    lock_and_unlock(&lock).await;
    fail_over(&old, &new, &name).await;
    let start = Instant::now();
    let guard = loop {
        match lock.lock().await {
            Ok(guard) => break guard,
            Err(Error::Refused {
                kind: RefusedKind::ReadOnly,
                ..
            }) => {}
            Err(other) => panic!("{other:?}"),
        }
        assert!(
            start.elapsed() < ms(2000) + stalls(start),
            "READONLY for ever"
        );
        tokio::time::sleep(ms(5)).await;
    };
    assert_eq!(new.control().count("a"), 1, "it is held at the new primary");
    guard.unlock().await.expect("held");
    client.close(Duration::ZERO).await;
    name.stop().await;
    drop((old, new));
}

#[tokio::test]
async fn a_waiter_follows_to_the_new_primary() {
    let (old, new, name) = primary_and_replica().await;
    let client = LockClient::connect(&name.url())
        .await
        .expect("the server answers");
    fail_over(&old, &new, &name).await;
    // The old one is cut off from the new one, so that no message reaches it any more.
    old.control().run(&["REPLICAOF", "127.0.0.1", "1"]);
    let mut control = new.control();
    control.run(&["HSET", "a", "java:1", "1"]);
    control.run(&["PEXPIRE", "a", "60000"]);
    let start = Instant::now();
    let waiter = loop {
        let lock = client.lock("a");
        let waiter = tokio::spawn(async move { lock.lock().await });
        let listens = || new.control().run(&["PUBSUB", "CHANNELS"]) == "redisson_lock__channel:{a}";
        while !waiter.is_finished() && !listens() {
            assert!(
                start.elapsed() < ms(5000) + stalls(start),
                "nobody listens to the new primary"
            );
            tokio::time::sleep(ms(5)).await;
        }
        if !waiter.is_finished() {
            break waiter;
        }
        let refused = waiter.await.expect("no panic");
        assert_matches!(
            refused,
            Err(Error::Refused {
                kind: RefusedKind::ReadOnly,
                ..
            })
        );
    };
    control.run(&["DEL", "a"]);
    control.run(&["PUBLISH", "redisson_lock__channel:{a}", "0"]);
    let woken = within(ms(3000), waiter).await;
    let woken = woken.expect("woken by the message");
    woken
        .expect("no panic")
        .expect("free")
        .unlock()
        .await
        .expect("held");
    client.close(Duration::ZERO).await;
    name.stop().await;
    drop((old, new));
}

#[tokio::test]
async fn a_replica_that_stays_one_is_not_met_by_a_connection_for_each_call() {
    let (old, replica, name) = primary_and_replica().await;
    name.lead_to(replica.port);
    let client = LockClient::connect(&name.url())
        .await
        .expect("the server answers");
    let before = replica.control().run(&["INFO", "stats"]);
    let connections = |info: &str| -> i64 {
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix("total_connections_received:"));
        line.expect("stands there")
            .trim()
            .parse()
            .expect("a number")
    };
    let (start, mut calls) = (Instant::now(), 0);
    while start.elapsed() < ms(2500) {
        let refused = client.lock("a").try_lock().await;
        assert_matches!(
            refused,
            Err(Error::Refused {
                kind: RefusedKind::ReadOnly,
                ..
            })
        );
        calls += 1;
    }
    let made = connections(&replica.control().run(&["INFO", "stats"])) - connections(&before);
    // Two for each replacement, in ever longer pauses, and one of the looks.
    assert!(
        calls > 100 && (3..=30).contains(&made),
        "{made} connections for {calls} calls"
    );
    client.close(Duration::ZERO).await;
    name.stop().await;
    drop((old, replica));
}

#[tokio::test]
async fn after_a_change_of_the_password_calls_say_so() {
    let server = TestServer::new();
    let mut control = server.control();
    control.run(&["ACL", "SETUSER", "u", "on", ">before", "~*", "&*", "+@all"]);
    let url = format!("redis://u:before@127.0.0.1:{}", server.port);
    let client = LockClient::builder()
        .command_timeout(ms(400))
        .connect(&url)
        .await
        .expect("accepted");
    let lock = client.lock("a");
    lock_and_unlock(&lock).await;
    control.run(&["ACL", "SETUSER", "u", "<before", ">after"]);
    control.run(&["CLIENT", "KILL", "USER", "u"]);
    let start = Instant::now();
    loop {
        let ended = lock.try_lock().await;
        match ended {
            Err(Error::Auth { source }) => {
                assert!(source.to_string().starts_with("WRONGPASS"), "{source}");
                break;
            }
            // The call that was cut off itself may find no connection at all.
            Err(Error::NoAnswer { .. }) => {}
            other => panic!("{other:?}"),
        }
        assert!(start.elapsed() < ms(3000) + stalls(start), "never told");
    }
    // And back again.
    control.run(&["ACL", "SETUSER", "u", ">before"]);
    let start = Instant::now();
    while lock.try_lock().await.is_err() {
        assert!(
            start.elapsed() < ms(3000) + stalls(start),
            "it does not come back"
        );
    }
    eventually("released", ms(2000), || {
        control.run(&["EXISTS", "a"]) == "0"
    })
    .await;
    server.finish([client]).await;
}

#[tokio::test]
async fn a_waiter_is_told_when_the_password_is_not_the_right_one_any_more() {
    let server = TestServer::new();
    let mut control = server.control();
    control.run(&["ACL", "SETUSER", "u", "on", ">before", "~*", "&*", "+@all"]);
    let url = format!("redis://u:before@127.0.0.1:{}", server.port);
    let client = LockClient::builder()
        .command_timeout(ms(400))
        .connect(&url)
        .await
        .expect("accepted");
    control.run(&["HSET", "a", "java:1", "1"]);
    // A waiter that leaves again: its channel tells the connection that is to be lost.
    assert!(
        client
            .lock("a")
            .try_lock_for(ms(300))
            .await
            .expect("answered")
            .is_none()
    );
    control.run(&["ACL", "SETUSER", "u", "<before", ">after"]);
    assert_eq!(control.run(&["CLIENT", "KILL", "TYPE", "pubsub"]), "1");
    let error = client
        .lock("a")
        .lock()
        .await
        .expect_err("there is nothing to wait on");
    assert_matches!(error, Error::Auth { .. });
    // And back again.
    control.run(&["ACL", "SETUSER", "u", ">before"]);
    let start = Instant::now();
    while client.lock("a").try_lock_for(ms(500)).await.is_err() {
        assert!(
            start.elapsed() < ms(3000) + stalls(start),
            "it does not come back"
        );
    }
    control.run(&["DEL", "a"]);
    server.finish([client]).await;
}

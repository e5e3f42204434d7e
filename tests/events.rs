//! What an operator sees: each documented event is provoked once, and none comes with an
//! uncontended lock.

use std::time::Duration;

use redisson_lock::{Error, HoldState, LockClient, LossReason};
use test_support::{
    Events, Fate, Proxy, Server, TestServer, acquire_to, eventually, lock_and_unlock, ms,
    release_to, test, tokio,
};
use tokio::runtime::Runtime;
use tracing::Level;

/// One collector for the whole binary: events come from background tasks on any thread, so the
/// tests here share it and look for names of their own.
fn collected() -> &'static Events {
    static COLLECTED: std::sync::OnceLock<Events> = std::sync::OnceLock::new();
    COLLECTED.get_or_init(Events::of_all_threads)
}

#[tokio::test]
async fn a_standby_that_waits_for_long_logs_no_warning() {
    let events = collected();
    let server = TestServer::new();
    let client = server
        .client_with(|builder| builder.watchdog_timeout(ms(900)).command_timeout(ms(250)))
        .await;
    let mut control = server.control();
    control.run(&["HSET", "standby", "java:1", "1"]);
    control.run(&["PEXPIRE", "standby", "2000"]);
    let led = client
        .lock("standby")
        .lead(async |_| Ok::<_, Error>(7))
        .await;
    assert!(matches!(led, Ok(7)), "{led:?}");
    assert!(!events.has(Level::WARN, "lock=standby"));
    server.finish([client]).await;
}

#[tokio::test]
async fn every_documented_event_comes_and_an_uncontended_lock_is_silent() {
    let events = collected();
    let server = TestServer::new();

    // Silence first: a hundred uncontended pairs.
    let client = server
        .client_with(|builder| builder.watchdog_timeout(ms(900)).command_timeout(ms(250)))
        .await;
    let owner = client.owner();
    for _ in 0..100 {
        let guard = client
            .lock("quiet")
            .owned_by(&owner)
            .lock()
            .await
            .expect("free");
        guard.unlock().await.expect("held");
    }
    assert!(
        !["INFO", "WARN", "ERROR"]
            .iter()
            .any(|level| events.has(level.parse().expect("a level"), "lock=quiet"))
    );

    assert!(events.has(Level::DEBUG, "lock=quiet"), "its life is there");

    // A re-entry by the task id alone.
    tokio::spawn({
        let lock = client.lock("nested");
        async move {
            let _outer = lock.lock().await.expect("free");
            let _inner = lock.lock().await.expect("nested");
        }
    })
    .await
    .expect("no panic");
    events
        .comes(Level::DEBUG, "re-entry by task id alone")
        .await;

    // Waiting long.
    let mut control = server.control();
    control.run(&["HSET", "long", "java:1", "1"]);
    control.run(&["PEXPIRE", "long", "2000"]);
    client
        .lock("long")
        .lock()
        .await
        .expect("taken")
        .unlock()
        .await
        .expect("held");
    events
        .comes(Level::WARN, "waiting long for a lock lock=long")
        .await;
    assert!(events.has(Level::WARN, "holder=\"java:1\""));

    // The lock is free, and the next in its queue has crashed.
    let time = control.run(&["TIME"]);
    let (seconds, _) = time.split_once(' ').expect("and microseconds");
    let until = (seconds.parse::<u64>().expect("a number") + 3) * 1_000;
    control.run(&["RPUSH", "redisson_lock_queue:{queued}", "java:1"]);
    let places = "redisson_lock_timeout:{queued}";
    control.run(&["ZADD", places, &until.to_string(), "java:1"]);
    let guard = client.fair_lock("queued").lock().await.expect("taken");
    guard.unlock().await.expect("held");
    let behind = "waiting long for the next in the queue of a fair lock lock=queued";
    events.comes(Level::WARN, behind).await;
    assert!(events.has(Level::WARN, "next_in_queue=\"java:1\" place_left="));

    // Held without a lease, which a string lock's peer may do; named once, although it looks again and again.
    control.run(&["SET", "endless", "a peer"]);
    let waiting = client.string_lock("endless");
    let waited = waiting.try_lock_for(ms(300)).await;
    assert!(waited.expect("answered").is_none());
    let endless = "waiting for a lock whose key has no expiry lock=endless";
    events.comes(Level::WARN, endless).await;
    assert!(events.has(Level::WARN, "holder=\"a peer\""));
    assert_eq!(events.count(Level::WARN, endless), 1);
    control.run(&["DEL", "endless"]);

    // Lost, with the reason.
    let guard = client.lock("lost").lock().await.expect("free");
    control.run(&["DEL", "lost"]);
    guard.lost().await;
    events.comes(Level::WARN, "lock lost").await;
    assert!(events.has(Level::WARN, "lock=lost"));
    assert!(events.has(Level::WARN, "reason=its key is gone"));
    drop(guard);

    // Renewal failed, and overdue.
    let guard = client.lock("overdue").lock().await.expect("free");
    server.pause();
    events.comes(Level::WARN, "renewal failed").await;
    events.comes(Level::WARN, "renewal overdue").await;
    guard.lost().await;
    assert!(!events.has(Level::WARN, "locks=0"));
    server.resume();
    drop(guard);

    // Reconnects.
    eventually("well again", ms(3000), || client.stats().releasing == 0).await;
    control.run(&["CLIENT", "KILL", "TYPE", "normal"]);
    let mut control = server.control();
    control.run(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    let lost = "command connection lost, reconnecting";
    events.comes(Level::WARN, lost).await;
    let replaced = "command connection replaced";
    events.comes(Level::INFO, replaced).await;
    assert!(events.has(Level::INFO, "connection_fence=active"));

    // The fence is not active.
    let off = server
        .client_with(|builder| builder.connection_fence(false))
        .await;
    events
        .comes(Level::WARN, "the connection fence is not active")
        .await;

    // An outcome that was unknown is reconciled in the background.
    let proxy = Proxy::start(server.port).await;
    let behind = LockClient::connect(&proxy.url())
        .await
        .expect("the server answers");
    let guard = behind.lock("unknown").lock().await.expect("free");
    proxy.rule(Fate::LoseReply, 1, release_to(0));
    drop(guard);
    events
        .comes(Level::INFO, "outcome reconciled lock=unknown")
        .await;

    // A reply that its command cannot have.
    proxy.rule(Fate::Replaced(":7"), 1, acquire_to(1));
    let guard = behind.lock("odd").lock().await.expect("free");
    guard.unlock().await.expect("held");
    let odd = "replies are out of step with their commands: the connection is replaced";
    events.comes(Level::WARN, odd).await;
    events
        .comes(Level::WARN, "command=\"acquire\" reply=\"a number\"")
        .await;

    // A background release that cannot succeed.
    control.run(&["ACL", "SETUSER", "u", "on", ">p", "~*", "&*", "+@all"]);
    let denied = LockClient::connect(&format!("redis://u:p@127.0.0.1:{}", server.port)).await;
    let denied = denied.expect("the server answers");
    let guard = denied.lock("denied").lock().await.expect("free");
    control.run(&["ACL", "SETUSER", "u", "-del"]);
    drop(guard);
    events
        .comes(
            Level::WARN,
            "background release failed: the lease frees the lock lock=denied",
        )
        .await;
    assert_eq!(denied.stats().given_up_total, 1);
    control.run(&["DEL", "denied"]);

    // The same behind a body, whose caller gets its value.
    control.run(&["ACL", "SETUSER", "u", "+del"]);
    let section = denied.lock("section");
    let ended = section.run(async |_held| {
        control.run(&["ACL", "SETUSER", "u", "-del"]);
        Ok::<_, Error>(7)
    });
    assert_eq!(ended.await.expect("the body ended"), 7);
    events
        .comes(
            Level::WARN,
            "release failed: the lease frees the lock lock=section error=the Redis user lacks permission `+del`",
        )
        .await;
    control.run(&["DEL", "section"]);

    // A pass that may not be, behind which the release goes through.
    control.run(&["ACL", "SETUSER", "u", "+@all", "-hdel"]);
    let guard = denied.lock("passed").lock().await.expect("free");
    let lock = denied.lock("passed");
    let waiter = tokio::spawn(async move { lock.lock().await.expect("taken").unlock().await });
    eventually("it waits", ms(2000), || denied.stats().waiting == 1).await;
    guard.unlock().await.expect("held");
    waiter.await.expect("no panic").expect("held");
    let refused = "locks are no longer handed over inside this client: a permission is missing";
    events
        .comes(Level::WARN, &format!("{refused} permission=+hdel"))
        .await;

    behind.close(Duration::ZERO).await;
    proxy.stop().await;
    server.finish([client, off, denied]).await;
}

#[test]
fn the_end_of_a_runtime_that_leaves_locks_behind_is_an_event() {
    let events = collected();
    let server = Server::start();
    let url = server.url();
    let end = |leaves: bool, closes: bool| {
        let runtime = Runtime::new().expect("a runtime");
        let guard = runtime.block_on(async {
            let client = LockClient::connect(&url).await.expect("it answers");
            let guard = client.lock("left").lock().await.expect("free");
            if leaves {
                return Some(guard);
            }
            guard.unlock().await.expect("held");
            if closes {
                client.close(Duration::ZERO).await;
            }
            None
        });
        drop(runtime);
        drop(guard);
    };
    let text = "the runtime has ended with locks that nobody releases";
    end(false, true);
    end(false, false);
    assert!(!events.has(Level::WARN, text));
    end(true, false);
    assert!(events.has(Level::WARN, text) && events.has(Level::WARN, "held=1"));
}

/// Named one by one: its caller has no report of the close.
#[tokio::test]
async fn what_a_scope_leaves_behind_is_an_event() {
    let events = collected();
    let server = TestServer::new();
    let builder = || LockClient::builder().command_timeout(ms(200));
    let url = server.url();
    let scope = builder()
        .close_grace(Duration::ZERO)
        .scope(&url, async |client| {
            let guard = client.lock("left:open").lock().await?;
            Ok::<_, Error>(guard)
        });
    let guard = scope.await.expect("it answers");
    let lost = format!("lock lost lock=left:open owner={}", guard.owner());
    assert!(events.has(Level::WARN, &lost));
    assert!(events.has(Level::WARN, "reason=the client was closed"));
    drop(guard);

    // A release without an answer.
    let scope = builder().scope(&url, async |client| {
        let guard = client.lock("left:unanswered").lock().await?;
        server.pause();
        drop(guard);
        Ok::<_, Error>(())
    });
    scope.await.expect("it answers");
    let unanswered =
        "the client was closed without an answer to a release: the lease frees the lock";
    assert!(events.has(Level::WARN, &format!("{unanswered} lock=left:unanswered")));
    server.resume();
    let mut control = server.control();
    control.run(&["DEL", "left:open", "left:unanswered"]);
    server.finish([]).await;
}

#[tokio::test]
async fn a_renewal_without_replicas_is_silent() {
    let events = collected();
    let server = TestServer::new();
    let client = server
        .client_with(|builder| builder.watchdog_timeout(ms(900)))
        .await;
    let guard = client.lock("renewed").lock().await.expect("free");
    let renewed = || client.stats().renewed_total >= 2;
    eventually("it is renewed", ms(5_000), renewed).await;
    guard.unlock().await.expect("held");
    assert!(!events.has(Level::WARN, "0 of 0 replicas"));
    server.finish([client]).await;
}

#[tokio::test]
async fn stats_count_what_happened() {
    collected();
    let server = TestServer::new();
    let client = server.client().await;
    let other = server.client().await;
    let lock = client.lock("a");
    for _ in 0..3 {
        lock_and_unlock(&lock).await;
    }
    let held = other.lock("a").lock().await.expect("free");
    assert!(lock.try_lock_for(ms(300)).await.expect("asked").is_none());
    held.unlock().await.expect("held");
    let guard = lock.lock().await.expect("free");
    let nested = lock.lock().await.expect("nested");
    let stats = client.stats();
    assert_eq!((stats.held, stats.renewals, stats.waiting), (2, 1, 0));
    assert_eq!(
        (
            stats.acquired_total,
            stats.released_total,
            stats.contended_total
        ),
        (5, 3, 1)
    );
    server.control().run(&["DEL", "a"]);
    assert!(guard.unlock().await.is_err());
    drop(nested);
    assert_eq!(
        client.stats().lost_total,
        2,
        "both went with the key: the unlock found one"
    );
    assert_eq!(client.stats().released_total, 3);
    server.finish([client, other]).await;
}

/// How a hold has ended is known when its release is answered, whether a caller waits for that or a guard was dropped.
#[tokio::test]
async fn a_loss_that_a_release_finds_is_reported_as_one() {
    let events = collected();
    let server = TestServer::new();
    let client = server.client().await;
    for (nth, how) in (1..).zip(["found-by-unlock", "found-by-drop"]) {
        let guard = client.lock(how).lock().await.expect("free");
        let (ended, held) = (guard.ended(), guard.handle());
        server.control().run(&["DEL", how]);
        match nth {
            1 => assert!(matches!(guard.unlock().await, Err(Error::Lost { .. }))),
            _ => drop(guard),
        }
        assert_eq!(ended.await, Some(LossReason::Gone), "{how}");
        assert_eq!(held.state(), HoldState::Lost(LossReason::Gone), "{how}");
        let stats = client.stats();
        assert_eq!((stats.lost_total, stats.released_total), (nth, 0), "{how}");
        events.comes(Level::WARN, &format!("lock={how}")).await;
    }
    let guard = client.lock("kept").lock().await.expect("free");
    let ended = guard.ended();
    drop(guard);
    assert_eq!(ended.await, None);
    let stats = client.stats();
    assert_eq!((stats.lost_total, stats.released_total), (2, 1));
    server.finish([client]).await;
}

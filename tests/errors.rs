//! Every error, provoked and printed; bad inputs and hostile states of a single server.

use std::error::Error as _;
use std::time::{Duration, Instant};

use redisson_lock::{Error, HoldState, LockClient, LockGuard, LossReason, Operation, RefusedKind};
use test_support::{
    Proxy, Server, TestServer, assert_matches, eventually, lock_and_unlock, ms, tokio,
};

/// Says the sentence, and checks that it says this level only.
fn sentence(error: &Error) -> String {
    let text = error.to_string();
    if let Some(source) = error.source() {
        assert!(
            !text.contains(&source.to_string()),
            "{text}: Display repeats its source"
        );
    }
    assert!(!text.ends_with('.') && text.len() > 20, "{text}");
    println!("{text}");
    text
}

fn failed(result: Result<LockGuard, Error>) -> Error {
    result.expect_err("refused")
}

#[tokio::test]
async fn names_that_cannot_be_used_are_refused_by_the_first_verb_and_strange_ones_work() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    for name in [String::new(), "x".repeat(65_537)] {
        let lock = client.lock(name);
        let error = failed(lock.lock().await);
        assert_matches!(error, Error::InvalidName { .. });
        assert!(sentence(&error).len() < 200);
        assert_matches!(lock.is_locked().await, Err(Error::InvalidName { .. }));
        assert_matches!(lock.unlock().await, Err(Error::InvalidName { .. }));
    }
    let strange = [
        "a{b",
        "{}x",
        "x{y}z",
        "}{q}",
        "{t}:k",
        "a:b:c",
        "with space",
        "quo\"te'",
        "a\0b",
        "a\r\nb",
        "*",
        "?",
        "[x]",
        "🔒",
        "مرحبا",
        "\u{feff}bom",
        "é",
        "e\u{301}",
        "%s%n",
        "../..",
    ];
    for name in strange {
        let lock = client.lock(name);
        let outer = lock
            .lock()
            .await
            .unwrap_or_else(|error| panic!("{name:?}: {error}"));
        let inner = lock.lock().await.expect("nested");
        assert_eq!(control.count(name), 2, "{name:?} is the key, byte for byte");
        inner.unlock().await.expect("held");
        outer.unlock().await.expect("held");
    }
    let (composed, decomposed) = (
        client.lock("é").lock().await,
        client.lock("e\u{301}").try_lock().await,
    );
    assert!(
        composed.is_ok() && decomposed.expect("asked").is_some(),
        "two spellings are two locks"
    );
    let longest = client.lock("x".repeat(65_536));
    lock_and_unlock(&longest).await;
    drop(composed);
    server.finish([client]).await;
}

#[tokio::test]
async fn durations_out_of_bounds_are_refused_before_anything_is_sent() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    let before = control.calls("evalsha") + control.calls("eval");
    let bad = [
        Duration::ZERO,
        Duration::from_nanos(1),
        ms(9),
        Duration::from_secs(315_360_001),
        Duration::MAX,
    ];
    for duration in bad {
        let error = failed(client.lock("a").lease(duration).lock().await);
        assert_matches!(error, Error::InvalidDuration { what: "lease", .. });
        sentence(&error);
        let error = failed(client.lock("a").max_hold(duration).lock().await);
        assert_matches!(
            error,
            Error::InvalidDuration {
                what: "max_hold",
                ..
            }
        );
    }
    assert_eq!(control.calls("evalsha") + control.calls("eval"), before);
    for duration in [ms(10), Duration::from_secs(315_360_000)] {
        match client.lock("a").lease(duration).lock().await {
            Ok(guard) => drop(guard),
            // The shortest lease may be over before its answer is there.
            Err(error) => assert!(
                matches!(error, Error::NoAnswer { .. }) && duration == ms(10),
                "{error:?}"
            ),
        }
    }
    // An endless wait is a wait.
    let guard = client
        .lock("a")
        .try_lock_for(Duration::MAX)
        .await
        .expect("asked")
        .expect("free");
    guard.unlock().await.expect("held");
    server.finish([client]).await;
}

#[tokio::test]
async fn times_at_the_end_of_the_clock_are_times_without_end() {
    let server = TestServer::new();
    let (client, other) = (server.client().await, server.client().await);
    let now = Instant::now();
    let mut end = now;
    let mut step = Duration::MAX;
    while !step.is_zero() {
        match end.checked_add(step) {
            Some(later) => end = later,
            None => step /= 2,
        }
    }
    for back in [
        Duration::ZERO,
        Duration::from_nanos(1),
        Duration::from_secs(1),
        ms(3_600_000),
    ] {
        for until in [true, false] {
            let held = other.lock("a").lock().await.expect("free");
            let lock = client.lock("a");
            let waiter = tokio::spawn(async move {
                match until {
                    true => lock.try_lock_until(end - back).await,
                    false => lock.try_lock_for(end - back - Instant::now()).await,
                }
            });
            eventually("it waits", ms(5000), || client.stats().subscriptions == 1).await;
            held.unlock().await.expect("held");
            let guard = waiter
                .await
                .expect("no panic")
                .expect("answered")
                .expect("free by now");
            guard.unlock().await.expect("held");
        }
    }
    for grace in [Duration::MAX, end - now] {
        server.client().await.close(grace).await;
    }
    server.finish([client, other]).await;
}

#[tokio::test]
async fn settings_out_of_bounds_are_refused_before_anything_is_opened() {
    let builder = LockClient::builder;
    let nowhere = "redis://127.0.0.1:1";
    let secs = Duration::from_secs;
    let bad = [
        builder().watchdog_timeout(ms(299)),
        builder().watchdog_timeout(secs(86_401)),
        builder().command_timeout(Duration::ZERO),
        builder().command_timeout(secs(10)),
        builder().watchdog_timeout(secs(3)).command_timeout(secs(1)),
        builder().connections(0),
        builder().connections(17),
        builder().max_hold(ms(1)),
    ];
    for builder in bad {
        let refused = |error: Error| {
            assert_matches!(
                error,
                Error::InvalidDuration { .. } | Error::InvalidConfig { .. }
            );
            sentence(&error);
        };
        let connected = builder.clone().connect(nowhere).await;
        refused(connected.expect_err("refused"));
        #[cfg(feature = "fred")]
        {
            let theirs = fred::prelude::Builder::default_centralized().build();
            let connected = builder.from_fred(&theirs.expect("valid settings")).await;
            refused(connected.expect_err("refused"));
        }
    }
    let bad_urls = [
        "",
        "127.0.0.1",
        "http://127.0.0.1",
        "redis://",
        "redis-cluster://127.0.0.1:7000?node=nowhere",
        "redis://[::1",
        "redis-sentinel://127.0.0.1:26379",
        "redis://127.0.0.1:99999",
        "redis://h:1/x/y",
        "valkey-cluster://127.0.0.1:7000/1",
        #[cfg(not(feature = "tls-rustls"))]
        "rediss://127.0.0.1:7000",
    ];
    for url in bad_urls {
        let error = LockClient::connect(url).await.expect_err(url);
        assert_matches!(error, Error::InvalidConfig { what: "URL", .. }, "{url}");
        sentence(&error);
    }
}

#[tokio::test]
async fn where_nobody_answers_connecting_ends_in_time() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = closed.local_addr().expect("an address").port();
    // It accepts and never answers.
    let error = LockClient::builder()
        .command_timeout(ms(300))
        .connect(&format!("redis://127.0.0.1:{port}"))
        .await
        .expect_err("silent");
    assert_matches!(
        error,
        Error::NoAnswer {
            while_doing: Operation::Connecting,
            ..
        }
    );
    drop(closed);
    let start = std::time::Instant::now();
    let url = format!("redis://127.0.0.1:{port}");
    let error = LockClient::connect(&url).await.expect_err("nobody there");
    assert_matches!(error, Error::NoAnswer { .. });
    assert!(start.elapsed() < Duration::from_secs(4));
    sentence(&error);
}

#[tokio::test]
async fn what_is_not_held_cannot_be_unlocked_and_nothing_changes() {
    let server = TestServer::new();
    let (ours, theirs) = (server.client().await, server.client().await);
    let mut control = server.control();
    let guard = theirs.lock("a").lock().await.expect("free");
    let before = (control.hash("a"), control.calls("publish"));
    let error = ours.lock("a").unlock().await.expect_err("not ours");
    assert_matches!(error, Error::NotHeld { .. });
    sentence(&error);
    assert_eq!((control.hash("a"), control.calls("publish")), before);
    guard.unlock().await.expect("held");
    server.finish([ours, theirs]).await;
}

#[tokio::test]
async fn lost_says_why() {
    for reason in [
        LossReason::LeaseOver,
        LossReason::NotRenewed,
        LossReason::Gone,
        LossReason::Taken,
        LossReason::Changed,
        LossReason::MaxHold,
        LossReason::Closed,
    ] {
        println!("{reason}");
    }
    let server = TestServer::new();
    let client = server.client().await;
    let guard = client.lock("a").lock().await.expect("free");
    server.control().run(&["FLUSHALL"]);
    let error = guard.unlock().await.expect_err("flushed");
    assert_matches!(
        error,
        Error::Lost {
            reason: LossReason::Gone,
            ..
        }
    );
    assert!(sentence(&error).contains("flushed"));
    server.finish([client]).await;
}

/// The outer hold was believed in until the next renewal.
#[tokio::test]
async fn an_unlock_that_finds_no_lock_ends_the_outer_holds_too() {
    let server = TestServer::new();
    let client = server.client().await;
    let lock = client.lock("a");
    let outer = lock.lock().await.expect("free");
    let inner = lock.lock().await.expect("held");
    server.control().run(&["SET", "a", "a string"]);
    let error = inner.unlock().await.expect_err("replaced");
    assert_matches!(
        error,
        Error::Lost {
            reason: LossReason::Changed,
            ..
        }
    );
    assert_eq!(outer.state(), HoldState::Lost(LossReason::Changed));
    drop(outer);
    assert_eq!(server.control().run(&["GET", "a"]), "a string");
    server.control().run(&["DEL", "a"]);
    server.finish([client]).await;
}

#[tokio::test]
async fn a_key_that_is_no_lock_is_named_and_left_alone() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    control.run(&["SET", "text", "x"]);
    control.run(&["RPUSH", "list", "x"]);
    control.run(&["HSET", "rw", "mode", "read", "java:1", "1"]);
    control.run(&["HSET", "odd", "java:1", "many"]);
    for name in ["text", "list", "rw"] {
        let error = failed(client.lock(name).lock().await);
        assert_matches!(error, Error::NotALock { .. }, "{name}");
        sentence(&error);
        assert_matches!(
            client.lock(name).inspect().await,
            Err(Error::NotALock { .. }),
            "{name}"
        );
        assert_matches!(
            client.lock(name).force_unlock().await,
            Err(Error::NotALock { .. }),
            "{name}"
        );
    }
    assert_matches!(
        client.lock("odd").inspect().await,
        Err(Error::NotALock { .. })
    );
    // Our own field, written over by somebody.
    let owner = client.owner_with_id(-7);
    let outer = client
        .lock("own")
        .owned_by(&owner)
        .lock()
        .await
        .expect("free");
    control.run(&["HSET", "own", &owner.to_string(), "many"]);
    let error = failed(client.lock("own").owned_by(&owner).lock().await);
    assert_matches!(error, Error::NotALock { .. });
    outer
        .unlock()
        .await
        .expect("the last release needs no count");
    assert_eq!(control.run(&["DEL", "text", "list", "rw", "odd"]), "4");
    server.finish([client]).await;
}

#[tokio::test]
async fn a_holder_that_is_not_text_is_shown_and_forced_like_any_other() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    let lock = client.lock("a");
    redis::cmd("HSET")
        .arg("a")
        .arg(b"caf\xe9:\xff\x00".as_slice())
        .arg(2)
        .exec(&mut control.connection)
        .expect("free");
    control.run(&["PEXPIRE", "a", "60000"]);
    let holder = lock.inspect().await.expect("answered").expect("held");
    assert_eq!(
        (&*holder.owner, holder.hold_count),
        (r"caf\xe9:\xff\x00", 2)
    );
    assert!(lock.is_locked().await.expect("answered"));
    assert!(!lock.is_held().await.expect("answered"));
    assert!(lock.try_lock().await.expect("answered").is_none());
    assert!(lock.force_unlock().await.expect("answered"));
    assert_eq!(
        control.run(&["EXISTS", "a"]),
        "0",
        "`true` means that it was freed"
    );
    lock_and_unlock(&lock).await;
    server.finish([client]).await;
}

#[tokio::test]
async fn nesting_deeper_than_any_program_means_is_refused() {
    let server = TestServer::new();
    let client = server.client().await;
    let owner = client.owner();
    let lock = client.lock("a").owned_by(&owner);
    let mut guards = Vec::new();
    for _ in 0..10_000 {
        guards.push(lock.lock().await.expect("nested"));
    }
    let error = failed(lock.lock().await);
    assert_matches!(error, Error::TooDeep { depth: 10_000, .. });
    sentence(&error);
    assert_eq!(server.control().count("a"), 10_000);
    drop(guards);
    server.finish([client]).await;
}

#[tokio::test]
async fn a_closed_client_says_so() {
    let server = TestServer::new();
    let client = server.client().await;
    client.close(Duration::ZERO).await;
    let lock = client.lock("a");
    let error = failed(lock.lock().await);
    assert_matches!(error, Error::Closed);
    sentence(&error);
    assert_matches!(lock.try_lock().await, Err(Error::Closed));
    assert_matches!(lock.unlock().await, Err(Error::Closed));
    assert_matches!(lock.force_unlock().await, Err(Error::Closed));
    assert_matches!(lock.inspect().await, Err(Error::Closed));
    sentence(&Error::NoRuntime);
    server.finish([]).await;
}

#[tokio::test]
async fn wrong_credentials_are_told_without_the_password() {
    let server = Server::start();
    server
        .control()
        .run(&["CONFIG", "SET", "requirepass", "right"]);
    let url = format!("redis://:p-wrong-secret@127.0.0.1:{}", server.port);
    let no_password = format!("redis://127.0.0.1:{}", server.port);
    for url in [url, no_password] {
        let error = LockClient::connect(&url).await.expect_err("refused");
        assert_matches!(error, Error::Auth { .. });
        let shown = format!("{} {error:?} {error:#?}", sentence(&error));
        assert!(!shown.contains("p-wrong-secret"));
    }
}

#[tokio::test]
async fn no_secret_is_shown_by_anything_public() {
    let server = Server::start();
    server
        .control()
        .run(&["CONFIG", "SET", "requirepass", "p-right-secret"]);
    let url = format!("redis://:p-right-secret@127.0.0.1:{}", server.port);
    let client = LockClient::connect(&url).await.expect("the server answers");
    let lock = client.lock("a");
    let guard = lock.lock().await.expect("free");
    let shown = format!(
        "{client:?} {lock:?} {guard:?} {:?} {:?} {:?} {:?} {:?}",
        guard.owner(),
        guard.lost(),
        guard.ended(),
        client.stats(),
        LockClient::builder()
    );
    assert!(!shown.contains("p-right-secret"), "{shown}");
    guard.unlock().await.expect("held");
    client.close(Duration::ZERO).await;
}

#[tokio::test]
async fn each_missing_right_is_named_as_acl_writes_it() {
    let server = TestServer::new();
    let mut control = server.control();
    let url = format!("redis://u:p@127.0.0.1:{}", server.port);
    let user = |control: &mut test_support::Control, missing: &str| {
        control.run(&[
            "ACL", "SETUSER", "u", "reset", "on", ">p", "~*", "&*", "+@all",
        ]);
        if !missing.is_empty() {
            control.run(&["ACL", "SETUSER", "u", missing]);
        }
    };
    user(&mut control, "");
    let client = LockClient::connect(&url).await.expect("the server answers");
    let right_of = |error: &Error| match error {
        Error::PermissionDenied { permission, .. } => permission.clone(),
        other => panic!("{other:?}"),
    };
    let lock = client.lock("a");
    for (missing, named) in [
        ("-evalsha", "+evalsha"),
        ("-hget", "+hget"),
        ("-pexpire", "+pexpire"),
        ("-exists", "+exists"),
    ] {
        user(&mut control, missing);
        let error = failed(lock.lock().await);
        assert_eq!(right_of(&error), named);
        sentence(&error);
        assert_eq!(control.run(&["KEYS", "*"]), "");
    }
    user(&mut control, "-hincrby");
    assert_eq!(right_of(&failed(lock.lock().await)), "+hincrby");
    user(&mut control, "resetkeys");
    let strange = client.lock("a[?*\\]");
    let spaced = client.lock("a b\n\0");
    for (lock, named) in [
        (&lock, "~a"),
        (&strange, r"~a\[\?\*\\\]"),
        (&spaced, "~a?b??"),
    ] {
        let error = failed(lock.lock().await);
        assert_eq!(right_of(&error), named);
        // As it is written, it is what was missing.
        control.run(&["ACL", "SETUSER", "u", named]);
        lock.lock()
            .await
            .expect("granted")
            .unlock()
            .await
            .expect("held");
        user(&mut control, "resetkeys");
    }

    for (missing, named) in [
        ("-publish", "+publish"),
        ("resetchannels", "&redisson_lock__channel:{b}"),
        ("-del", "+del"),
    ] {
        user(&mut control, "");
        let guard = client.lock("b").lock().await.expect("free");
        user(&mut control, missing);
        let error = guard.unlock().await.expect_err("refused");
        assert_eq!(right_of(&error), named, "{missing}");
        assert_eq!(control.count("b"), 1, "nothing changed: the lease frees it");
        control.run(&["DEL", "b"]);
    }

    // A waiter that may not subscribe is told, instead of sleeping for ever.
    user(&mut control, "resetchannels");
    control.run(&["HSET", "c", "java:1", "1"]);
    control.run(&["PEXPIRE", "c", "60000"]);
    let error = failed(client.lock("c").lock().await);
    assert_eq!(right_of(&error), "&redisson_lock__channel:{c}");
    // Replies are in step: with the right, waiting works.
    user(&mut control, "");
    assert!(
        client
            .lock("c")
            .try_lock_for(ms(300))
            .await
            .expect("asked")
            .is_none()
    );
    control.run(&["DEL", "c"]);
    server.finish([client]).await;
}

#[tokio::test]
async fn the_documented_rights_are_enough() {
    let server = TestServer::new();
    let mut control = server.control();
    let page = include_str!("../docs/operations.md");
    let recipe = page
        .split("```acl\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .expect("a recipe");
    let words: Vec<&str> = recipe
        .lines()
        .flat_map(|line| {
            line.split('#')
                .next()
                .unwrap_or_default()
                .split_whitespace()
        })
        .collect();
    control.run(&words);
    let url = format!("redis://locker:SECRET@127.0.0.1:{}", server.port);
    let client = LockClient::connect(&url).await.expect("the server answers");
    assert_eq!(
        client.stats().connection_fence,
        redisson_lock::ConnectionFence::Active
    );
    let lock = client.lock("lock:a");
    let outer = lock.lock().await.expect("free");
    let inner = lock.lock().await.expect("nested");
    assert!(
        lock.owned_by(&client.owner())
            .try_lock_for(ms(300))
            .await
            .expect("asked")
            .is_none()
    );
    assert_eq!(lock.hold_count().await.expect("asked"), 2);
    inner.unlock().await.expect("held");
    outer.unlock().await.expect("held");
    let other = client.lock("lock:b").lock().await.expect("free");
    assert!(
        client
            .lock("lock:b")
            .force_unlock()
            .await
            .expect("answered")
    );
    drop(other);
    assert_matches!(
        client.lock("elsewhere").lock().await,
        Err(Error::PermissionDenied { .. })
    );
    server.finish([client]).await;
}

#[tokio::test]
async fn refusals_of_the_server_have_a_kind_and_change_nothing() {
    let server = TestServer::with(&[
        "--busy-reply-threshold",
        "50",
        "--enable-protected-configs",
        "yes",
    ]);
    let client = server.client().await;
    let mut control = server.control();
    let kind = |error: Error| {
        sentence(&error);
        match error {
            Error::Refused { kind, .. } => kind,
            other => panic!("{other:?}"),
        }
    };
    lock_and_unlock(&client.lock("warm")).await;

    control.run(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    assert_eq!(
        kind(failed(client.lock("a").lock().await)),
        RefusedKind::NotEnoughReplicas
    );
    control.run(&["CONFIG", "SET", "min-replicas-to-write", "0"]);

    let primary = Server::start();
    control.run(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()]);
    test_support::eventually("attached", Duration::from_secs(10), || {
        control
            .run(&["INFO", "replication"])
            .contains("master_link_status:up")
    })
    .await;
    assert_eq!(
        kind(failed(client.lock("a").lock().await)),
        RefusedKind::ReadOnly
    );
    control.run(&["CONFIG", "SET", "replica-serve-stale-data", "no"]);
    drop(primary);
    test_support::eventually("cut off", Duration::from_secs(10), || {
        control
            .run(&["INFO", "replication"])
            .contains("master_link_status:down")
    })
    .await;
    assert_eq!(
        kind(failed(client.lock("a").lock().await)),
        RefusedKind::MasterDown
    );
    control.run(&["REPLICAOF", "NO", "ONE"]);

    let port = server.port;
    let busy = std::thread::spawn(move || {
        let client =
            redis::Client::open(format!("redis://127.0.0.1:{port}")).expect("a valid address");
        let mut connection = client.get_connection().expect("the server answers");
        let _ = redis::cmd("EVAL")
            .arg("while true do end")
            .arg(0)
            .query::<()>(&mut connection);
    });
    test_support::eventually("the script runs", Duration::from_secs(5), || {
        let answered = control.try_run(&["PING"]);
        answered.is_err_and(|error| error.to_string().contains("BUSY"))
    })
    .await;
    assert_eq!(
        kind(failed(client.lock("a").lock().await)),
        RefusedKind::Busy
    );
    control.run(&["SCRIPT", "KILL"]);
    busy.join().expect("no panic");

    // Its data cannot be saved: the folder takes no files.
    let folder = control
        .run(&["CONFIG", "GET", "dir"])
        .replacen("dir ", "", 1);
    control.run(&["CONFIG", "SET", "save", "3600 1"]);
    control.run(&["CONFIG", "SET", "dir", "/proc"]);
    control.run(&["SET", "something", "x"]);
    let _ = control.try_run(&["BGSAVE"]);
    test_support::eventually("saving failed", Duration::from_secs(5), || {
        control
            .run(&["INFO", "persistence"])
            .contains("rdb_last_bgsave_status:err")
    })
    .await;
    assert_eq!(
        kind(failed(client.lock("a").lock().await)),
        RefusedKind::Misconf
    );
    control.run(&["CONFIG", "SET", "save", ""]);
    control.run(&["CONFIG", "SET", "dir", &folder]);

    control.run(&["CONFIG", "SET", "maxclients", "1"]);
    let refused = LockClient::connect(&server.url())
        .await
        .expect_err("too many");
    assert_matches!(
        refused,
        Error::Refused {
            kind: RefusedKind::TooManyClients,
            ..
        }
    );
    control.run(&["CONFIG", "SET", "maxclients", "1000"]);

    control.run(&["DEL", "something"]);
    assert_eq!(control.run(&["EXISTS", "a"]), "0");
    client
        .lock("a")
        .lock()
        .await
        .expect("well again")
        .unlock()
        .await
        .expect("held");
    server.finish([client]).await;
}

#[tokio::test]
async fn a_server_that_loads_its_data_says_so() {
    let server = TestServer::with(&["--enable-debug-command", "yes"]);
    let client = server.client().await;
    let mut control = server.control();
    control.run(&[
        "EVAL",
        "for n = 1, 3000 do redis.call('set', 'k' .. n, ('x'):rep(3000)) end",
        "0",
    ]);
    // A millisecond for each key, with a look at the connections in between.
    control.run(&[
        "CONFIG",
        "SET",
        "key-load-delay",
        "1000",
        "loading-process-events-interval-bytes",
        "1024",
    ]);
    let port = server.port;
    let loading = std::thread::spawn(move || {
        let client =
            redis::Client::open(format!("redis://127.0.0.1:{port}")).expect("a valid address");
        let mut connection = client.get_connection().expect("the server answers");
        redis::cmd("DEBUG")
            .arg("RELOAD")
            .query::<()>(&mut connection)
            .expect("reloaded");
    });
    test_support::eventually("loading", Duration::from_secs(10), || {
        control.run(&["INFO", "persistence"]).contains("loading:1")
    })
    .await;
    let error = failed(client.lock("a").lock().await);
    assert_matches!(
        error,
        Error::Refused {
            kind: RefusedKind::Loading,
            ..
        }
    );
    sentence(&error);
    control.run(&["CONFIG", "SET", "key-load-delay", "0"]);
    loading.join().expect("no panic");
    control.run(&["FLUSHALL"]);
    client
        .lock("a")
        .lock()
        .await
        .expect("well again")
        .unlock()
        .await
        .expect("held");
    server.finish([client]).await;
}

#[tokio::test]
async fn an_answer_that_no_script_gives_is_reported_cut_short() {
    // Another program in Redis's place: it answers everything with the same long text.
    let server = TestServer::new();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let imposter = tokio::spawn(imposter(listener, server.port));
    let url = format!("redis://127.0.0.1:{port}");
    let client = LockClient::connect(&url).await.expect("connected");
    let error = failed(client.lock("a").lock().await);
    let Error::UnexpectedReply {
        script: "acquire",
        reply,
    } = &error
    else {
        panic!("{error:?}")
    };
    assert!(reply.len() <= 200);
    sentence(&error);
    assert_eq!(client.stats().held, 0);
    client.close(Duration::ZERO).await;
    imposter.abort();
    server.control().run(&["FLUSHALL"]);
    let _ = imposter.await;
    server.finish([]).await;
}

/// Passes everything on, but answers scripts by itself.
async fn imposter(listener: tokio::net::TcpListener, to: u16) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut links = tokio::task::JoinSet::new();
    loop {
        let Ok((mut client, _)) = listener.accept().await else {
            return;
        };
        links.spawn(async move {
            let mut server = tokio::net::TcpStream::connect(("127.0.0.1", to))
                .await
                .expect("connected");
            let (mut up, mut down) = (vec![0; 65_536], vec![0; 65_536]);
            loop {
                tokio::select! {
                    read = client.read(&mut up) => match read {
                        Ok(0) | Err(_) => return,
                        Ok(read) if up[..read].windows(4).any(|word| word == b"EVAL") => {
                            let text = "nonsense ".repeat(100);
                            let reply = format!("${}\r\n{text}\r\n", text.len());
                            let _ = client.write_all(reply.as_bytes()).await;
                        }
                        Ok(read) => { let _ = server.write_all(&up[..read]).await; }
                    },
                    read = server.read(&mut down) => match read {
                        Ok(0) | Err(_) => return,
                        Ok(read) => { let _ = client.write_all(&down[..read]).await; }
                    },
                }
            }
        });
    }
}

#[tokio::test]
async fn a_database_index_and_a_user_come_from_the_address() {
    let server = TestServer::new();
    let mut control = server.control();
    control.run(&["ACL", "SETUSER", "u", "on", ">p%w", "~*", "&*", "+@all"]);
    let url = format!("redis://u:p%25w@127.0.0.1:{}/3", server.port);
    let client = LockClient::connect(&url).await.expect("the server answers");
    let guard = client.lock("a").lock().await.expect("free");
    control.run(&["SELECT", "3"]);
    assert_eq!(control.count("a"), 1);
    guard.unlock().await.expect("held");
    let error = LockClient::connect(&format!("redis://127.0.0.1:{}/99", server.port)).await;
    let error = error.expect_err("no such database");
    assert!(sentence(&error).contains("`databases`"));
    let kind = RefusedKind::NoSuchDatabase;
    assert_matches!(&error, Error::Refused { kind: found, .. } if *found == kind);
    assert!(!error.is_retryable(), "it will not be there later either");
    server.finish([client]).await;
}

/// What is held when no answer comes depends on what was asked, and the sentence says it.
#[tokio::test]
async fn a_missing_answer_says_what_it_means_for_the_lock() {
    let server = TestServer::new();
    let client = server
        .client_with(|builder| builder.command_timeout(ms(300)))
        .await;
    let lock = client.lock("a").lease(Duration::from_secs(60));
    let guard = lock.lock().await.expect("free");
    server.pause();
    let asked = [
        (Operation::Extending, guard.extend(ms(90_000)).await),
        (Operation::Inspecting, lock.is_locked().await.map(drop)),
        (Operation::Inspecting, lock.force_unlock().await.map(drop)),
        (Operation::Unlocking, guard.unlock().await),
        (
            Operation::Acquiring,
            client.lock("b").lock().await.map(drop),
        ),
    ];
    server.resume();
    for (operation, result) in asked {
        let error = result.expect_err("the server stands still");
        let text = sentence(&error);
        let found =
            matches!(&error, Error::NoAnswer { while_doing, .. } if *while_doing == operation);
        assert!(found && error.is_retryable(), "{operation}: {error:?}");
        let is_held = matches!(operation, Operation::Extending);
        assert_eq!(
            text.contains("is held"),
            is_held || operation == Operation::Acquiring,
            "{text}"
        );
        assert_eq!(
            text.contains("nothing new is held"),
            operation == Operation::Acquiring,
            "{text}"
        );
    }
    server.finish([client]).await;
}

/// The error says where, its source what happened there, in words; the password is nowhere.
#[tokio::test]
async fn an_address_that_leads_nowhere_useful_says_why() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0");
    let listener = listener.await.expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let url = format!("redis://:hidden@127.0.0.1:{port}");
    let hangs_up = tokio::spawn(async move {
        // As a server does that expects TLS.
        while let Ok((connection, _)) = listener.accept().await {
            drop(connection);
        }
    });
    let connect = || LockClient::builder().command_timeout(ms(500)).connect(&url);
    let told = |error: &Error| {
        let source = error.source().expect("a source").to_string();
        println!("{error}: {source}");
        let start = format!("no answer from Redis at 127.0.0.1:{port} while connecting; ");
        assert!(sentence(error).starts_with(&start), "{error}");
        let shown = format!("{error} {error:?}");
        assert!(
            !shown.contains("hidden") && !shown.contains("Os {"),
            "{shown}"
        );
        source
    };
    let closed = connect().await.expect_err("it hangs up");
    assert!(told(&closed).contains("rediss://"));
    hangs_up.abort();
    let _ = hangs_up.await;
    let refused = connect().await.expect_err("nobody there");
    assert!(told(&refused).to_lowercase().contains("connection refused"));
}

/// A server that starts after its clients, as containers do.
#[tokio::test]
async fn connecting_is_repeated_for_as_long_as_is_said_and_no_error_that_stays() {
    let server = TestServer::new();
    let proxy = Proxy::start(server.port).await;
    proxy.refuse(true);
    let builder = LockClient::builder().command_timeout(ms(300));
    let once = builder.clone().connect(&proxy.url()).await;
    assert_matches!(once, Err(Error::NoAnswer { .. }), "by default");
    let url = proxy.url();
    let patient = builder.clone().connect_for(ms(20_000));
    let connecting = tokio::spawn(async move { patient.connect(&url).await });
    let before = proxy.arrivals().len();
    eventually("it tries again", ms(5_000), || {
        proxy.arrivals().len() > before + 2
    })
    .await;
    proxy.refuse(false);
    let client = connecting.await.expect("no panic").expect("it has started");

    // The last error, when the time is over.
    let start = std::time::Instant::now();
    let limited = builder.clone().connect_for(ms(700));
    let gone = limited.clone().connect("redis://127.0.0.1:1").await;
    assert_matches!(gone, Err(Error::NoAnswer { .. }));
    assert!((ms(700)..ms(4_000)).contains(&start.elapsed()));
    // One that stays is not repeated.
    let start = std::time::Instant::now();
    let denied = builder.connect_for(ms(20_000));
    let url = format!("redis://nobody:wrong@127.0.0.1:{}", server.port);
    let denied = denied.connect(&url).await;
    assert_matches!(denied, Err(Error::Auth { .. }));
    assert!(start.elapsed() < ms(5_000));
    client.close(ms(1_000)).await;
    proxy.stop().await;
    server.finish([]).await;
}

//! Guarded writes: a script runs while the lock is held in Redis, and not otherwise.

use std::future::IntoFuture;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redisson_lock::{
    Error, GuardedWrite, HoldState, Lock, LockClient, LockGuard, LockKind, LossReason, Once,
    Operation, RefusedKind, Script, Value,
};
use test_support::kinds::{KINDS, delete, holder, rob};
use test_support::{
    Cluster, Fate, Monitor, ProxiedPair, TestServer, assert_matches, eventually, ms, slot, test,
    tokio, within,
};

const NO_ARGS: [&str; 0] = [];
const MINUTE: Duration = Duration::from_secs(60);

fn script(source: &str) -> Script {
    Script::new(source).expect("it is whole")
}

/// Counts how often it ran.
fn counting() -> Script {
    script("return redis.call('incr', KEYS[1])")
}

/// Counts, unless a write with this id has run.
async fn count_once(guard: &LockGuard, id: &str) -> Result<Once, Error> {
    let write = guard.eval(&counting(), &["n"], &NO_ARGS);
    write.once(id, MINUTE).await
}

/// Runs a write, with an id if it is to run once.
async fn run(write: GuardedWrite, once: bool) -> Result<(), Error> {
    match once {
        false => write.await.map(drop),
        true => write.once("7", MINUTE).await.map(drop),
    }
}

/// A command that runs a guarded write with this argument.
fn with_mark(words: &[String]) -> bool {
    words[0].starts_with("EVAL") && words.last().is_some_and(|word| word == "mark")
}

async fn lost(guard: &LockGuard) -> LossReason {
    let lost = within(ms(1_000), guard.lost()).await;
    lost.expect("the loss is reported immediately")
}

/// The write is refused because of a loss, which is reported by every means.
async fn is_lost(guard: LockGuard, write: Result<Value, Error>, wanted: LossReason, what: &str) {
    match write {
        Err(Error::Lost { reason, .. }) => assert_eq!(reason, wanted, "{what}"),
        other => panic!("{what}: {other:?}"),
    }
    assert_eq!(guard.state(), HoldState::Lost(wanted), "{what}");
    assert_eq!(lost(&guard).await, wanted, "{what}");
    let unlocked = guard.unlock().await;
    assert_matches!(unlocked, Err(Error::Lost { .. }), "{what}");
}

async fn finish(server: TestServer, clients: impl IntoIterator<Item = LockClient>) {
    server.control().run(&["DEL", "n", "text"]);
    server.finish(clients).await;
}

#[tokio::test]
async fn a_script_runs_while_the_lock_is_held() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    let script = script(
        "local n = redis.call('incr', KEYS[1]) return {n, KEYS[1], ARGV[1], ARGV[2], #KEYS, #ARGV}",
    );
    for kind in KINDS {
        let lock = client.lock_of(kind, kind.to_string());
        control.run(&["DEL", "n"]);
        let guard = lock.lock().await.expect("free");
        for nth in 1..=3 {
            let value = guard.eval(&script, &["n", "m"], &["x", ""]).await;
            let text = |text: &str| Value::Text(text.to_owned());
            let wanted = vec![
                Value::Int(nth),
                text("n"),
                text("x"),
                text(""),
                Value::Int(2),
                Value::Int(2),
            ];
            assert_eq!(value.expect("held"), Value::List(wanted), "{kind}");
        }
        guard.unlock().await.expect("held");
    }
    // Bodies have it too.
    let lock = client.lock("a");
    let value = lock.run(async |held| held.eval(&counting(), &["n"], &NO_ARGS).await);
    assert_eq!(value.await.expect("held").as_int(), Some(4));
    let value = lock.lead(async |leader| leader.eval(&counting(), &["n"], &NO_ARGS).await);
    assert_eq!(value.await.expect("held").as_int(), Some(5));
    finish(server, [client]).await;
}

#[tokio::test]
async fn nothing_runs_when_the_lock_is_not_held_and_the_loss_is_told() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    for kind in KINDS {
        let lock = client.lock_of(kind, kind.to_string());
        let key = lock.name().to_owned();
        for reason in [LossReason::Gone, LossReason::Taken, LossReason::Changed] {
            for once in [false, true] {
                let guard = lock.lock().await.expect("free");
                control.run(&["DEL", &key]);
                match reason {
                    LossReason::Taken => rob(&mut control, kind, &key),
                    LossReason::Changed => _ = control.run(&["LPUSH", &key, "x"]),
                    _ => {}
                }
                let write = guard.eval(&counting(), &["n"], &NO_ARGS);
                let write = match once {
                    false => write.await,
                    true => write.once("1", MINUTE).await.map(|once| panic!("{once:?}")),
                };
                let what = format!("{kind}, once: {once}");
                is_lost(guard, write, reason, &what).await;
                assert_eq!(control.run(&["EXISTS", "n"]), "0", "{what}: nothing ran");
                assert_eq!(control.run(&["KEYS", "redisson_lock_once*"]), "", "{what}");
                delete(&mut control, &key);
            }
        }
    }
    finish(server, [client]).await;
}

#[tokio::test]
async fn a_fenced_holder_needs_the_latest_token() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    let token = "redisson_lock_token:{a}";
    for (words, reason) in [
        (&["INCR", token][..], LossReason::Taken),
        (&["SET", token, "9007199254740993"], LossReason::Taken),
        (&["DEL", token], LossReason::Changed),
        (&["SET", token, "x"], LossReason::Changed),
        (&["LPUSH", "list", "x"], LossReason::Changed),
    ] {
        let lock = client.fenced_lock("a");
        let guard = lock.lock().await.expect("free");
        let value = guard.eval(&counting(), &["n"], &NO_ARGS).await;
        assert_eq!(value.expect("held").as_int(), Some(1));
        control.run(words);
        if words[1] == "list" {
            control.run(&["RENAME", "list", token]);
        }
        // The field of the holder is there.
        assert_eq!(control.count("a"), 1);
        let write = guard.eval(&counting(), &["n"], &NO_ARGS).await;
        match write {
            Err(Error::Lost { reason: found, .. }) => assert_eq!(found, reason, "{words:?}"),
            other => panic!("{words:?}: {other:?}"),
        }
        assert_eq!(guard.state(), HoldState::Lost(reason));
        assert_eq!(control.run(&["GET", "n"]), "1", "nothing ran");
        drop(guard);
        eventually("it is released", ms(5_000), || client.stats().entries == 0).await;
        // The field is there until its lease ends.
        control.run(&["DEL", "a", token, "n"]);
    }
    // A nested hold has the token of the outer one.
    let lock = client.fenced_lock("a");
    let (outer, inner) = (
        lock.lock().await.expect("free"),
        lock.lock().await.expect("ours"),
    );
    for guard in [outer, inner] {
        let write = guard.eval(&counting(), &["n"], &NO_ARGS).await;
        assert!(write.is_ok(), "{write:?}");
        guard.unlock().await.expect("held");
    }
    finish(server, [client]).await;
}

#[tokio::test]
async fn a_hold_that_has_ended_here_sends_nothing() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    for kind in KINDS {
        let lock = client.lock_of(kind, kind.to_string());
        let guard = lock.lease(ms(100)).lock().await.expect("free");
        let held = guard.handle();
        assert_eq!(lost(&guard).await, LossReason::LeaseOver);
        eventually("the loss is through", ms(5_000), || {
            client.stats().releasing == 0
        })
        .await;
        let monitor = Monitor::start(server.port);
        for write in [
            held.eval(&counting(), &["n"], &NO_ARGS).await.map(|_| ()),
            count_once(&guard, "1").await.map(|_| ()),
        ] {
            let reason = LossReason::LeaseOver;
            assert_matches!(write, Err(Error::Lost { reason: found, .. }) if found == reason, "{kind}");
        }
        assert_eq!(monitor.take(&mut control), Vec::<String>::new(), "{kind}");
        drop(guard);
        let guard = lock.lock().await.expect("free");
        let held = guard.handle();
        guard.unlock().await.expect("held");
        let monitor = Monitor::start(server.port);
        let write = held.eval(&counting(), &["n"], &NO_ARGS).await;
        assert_matches!(write, Err(Error::Misuse { .. }), "{kind}");
        assert_eq!(monitor.take(&mut control), Vec::<String>::new(), "{kind}");
    }
    let guard = client.lock("a").lock().await.expect("free");
    for keep in [Duration::ZERO, ms(5_999), Duration::MAX] {
        let write = guard
            .eval(&counting(), &["n"], &NO_ARGS)
            .once("1", keep)
            .await;
        assert_matches!(write, Err(Error::InvalidDuration { .. }));
    }
    let write = count_once(&guard, "").await;
    assert_matches!(write, Err(Error::Misuse { .. }));
    let held = guard.handle();
    guard.unlock().await.expect("held");
    assert_eq!(control.run(&["EXISTS", "n"]), "0", "nothing ran");
    client.close(Duration::ZERO).await;
    let write = held.eval(&counting(), &["n"], &NO_ARGS).await;
    assert_matches!(write, Err(Error::Closed));
    drop(held);
    server.finish([]).await;
}

/// The next hold of its owner has the same field, and a copy that goes out after a refusal is not ordered with the release.
#[tokio::test]
async fn a_write_of_a_hold_that_has_ended_is_not_sent_again() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    for kind in KINDS {
        for once in [false, true] {
            let lock = client.lock_of(kind, kind.to_string());
            let guard = lock.lock().await.expect("free");
            let held = guard.handle();
            // It is sent by its hash, refused, and not polled when the answer comes.
            control.run(&["SCRIPT", "FLUSH"]);
            let write = held.eval(&counting(), &["n"], &NO_ARGS);
            let mut write = Box::pin(run(write, once));
            poll_once(&mut write).await;
            guard.unlock().await.expect("held");
            let next = lock.lock().await.expect("free");
            let what = format!("{kind}, once: {once}");
            let ended = write.await;
            assert_matches!(ended, Err(Error::Misuse { .. }), "{what}");
            assert_eq!(next.state(), HoldState::Held, "{what}");
            assert_eq!(control.run(&["EXISTS", "n"]), "0", "{what}");
            next.unlock().await.expect("held");
        }
    }
    finish(server, [client]).await;
}

#[tokio::test]
async fn in_a_cluster_a_write_of_a_hold_that_has_ended_does_not_follow_the_slot() {
    let cluster = Cluster::start(false).await;
    let client = LockClient::connect(&cluster.url()).await;
    let client = client.expect("it answers");
    for kind in KINDS {
        let tag = cluster.key_at(0, &kind.to_string());
        let counter = format!("n:{{{tag}}}");
        let lock = client.lock_of(kind, tag.clone());
        let guard = lock.lock().await.expect("free");
        let held = guard.handle();
        let write = held.eval(&counting(), &[&counter], &NO_ARGS).await;
        assert_eq!(write.expect("held").as_int(), Some(1), "{kind}");
        epochs_agree(&cluster).await;
        cluster.move_slot(slot(&tag), 0, 1);
        let write = held.eval(&counting(), &[&counter], &NO_ARGS);
        let mut write = Box::pin(run(write, false));
        poll_once(&mut write).await;
        guard.unlock().await.expect("held");
        let next = lock.lock().await.expect("free");
        let ended = write.await;
        assert!(ended.is_err(), "{kind}: it was released");
        assert_eq!(cluster.control(1).run(&["GET", &counter]), "1", "{kind}");
        next.unlock().await.expect("held");
    }
    client.close(Duration::ZERO).await;
}

async fn poll_once(future: &mut std::pin::Pin<Box<impl Future>>) {
    let polled = std::future::poll_fn(|context| {
        std::task::Poll::Ready(future.as_mut().poll(context).is_ready())
    });
    assert!(!polled.await, "it waits for an answer");
}

/// Where scripts may replace their callers' environment, that of this crate's would be replaced for all clients.
#[tokio::test]
async fn a_script_has_no_callers() {
    let server = TestServer::new();
    let client = server.client().await;
    let guard = client.lock("a").lock().await.expect("free");
    let meddling = script(
        "local env = {redis = {call = function() return 1 end}}
        local function try() for level = 2, 9 do pcall(setfenv or error, level, env) end end
        try()
        local raised = setmetatable({}, {__tostring = function() try() return '' end})
        if ARGV[1] == 'raise' then error(raised) end
        return 1",
    );
    for way in ["raise", "return"] {
        let _ = guard.eval(&meddling, &["n"], &[way]).await;
    }
    let other = server.client().await;
    let others = other.lock("b").lock().await.expect("free");
    let write = others.eval(&counting(), &["n"], &NO_ARGS).await;
    assert_eq!(write.expect("held").as_int(), Some(1));
    server.control().run(&["DEL", "b"]);
    let write = others.eval(&counting(), &["n"], &NO_ARGS).await;
    assert_matches!(write, Err(Error::Lost { .. }));
    assert_eq!(server.control().run(&["GET", "n"]), "1");
    drop(others);
    guard.unlock().await.expect("held");
    finish(server, [client, other]).await;
}

#[tokio::test]
async fn a_write_is_one_script_call_of_these_words() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    for kind in KINDS {
        let name = kind.to_string();
        let guard = client
            .lock_of(kind, name.clone())
            .lock()
            .await
            .expect("free");
        let script = counting();
        guard.eval(&script, &["n"], &["x"]).await.expect("held");
        let owner = holder(&mut control, &name).expect("held");
        let (token_key, token) = match kind {
            LockKind::Fenced => (format!(" \"redisson_lock_token:{{{name}}}\""), "1"),
            _ => (String::new(), ""),
        };
        let own = 1 + usize::from(kind == LockKind::Fenced);
        let text = script.source();
        let monitor = Monitor::start(server.port);
        guard.eval(&script, &["n"], &["x"]).await.expect("held");
        let once = guard.eval(&script, &["n"], &["x"]).once("7", MINUTE);
        assert_matches!(once.await, Ok(Once::Ran(_)));
        let lines = monitor.take(&mut control);
        let sent: Vec<_> = lines
            .iter()
            .filter(|line| !line.contains(" lua]"))
            .collect();
        let [plain, once] = &sent[..] else {
            panic!("{lines:#?}")
        };
        let words = |keys: usize, id: &str, keep: u32, own: usize| {
            format!("{keys} \"{name}\"{token_key}{id} \"n\" \"{owner}\" \"{keep}\" \"{own}\" \"{text}\" \"{token}\" \"x\"")
                .replacen(&keys.to_string(), &format!("\"{keys}\""), 1)
        };
        assert!(plain.ends_with(&words(own + 1, "", 0, own)), "{plain}");
        let id = format!(" \"redisson_lock_once:{{{name}}}:7\"");
        assert!(
            once.ends_with(&words(own + 2, &id, 60_000, own + 1)),
            "{once}"
        );
        for line in [plain, once] {
            assert!(line.contains("\"EVALSHA\""), "{line}");
        }
        let id = format!("redisson_lock_once:{{{name}}}:7");
        assert_eq!(control.run(&["GET", &id]), owner);
        assert!((55_000..=60_000).contains(&control.pttl(&id)));
        control.run(&["DEL", &id, "n"]);
        // A server that has forgotten the script is sent its text.
        control.run(&["SCRIPT", "FLUSH"]);
        guard.eval(&script, &["n"], &["x"]).await.expect("held");
        assert_eq!(control.run(&["GET", "n"]), "1", "once");
        guard.unlock().await.expect("held");
        control.run(&["DEL", "n"]);
    }
    finish(server, [client]).await;
}

#[tokio::test]
async fn values_are_those_that_redis_makes_of_luas() {
    let server = TestServer::new();
    let client = server.client().await;
    values_are_right(&client).await;
    finish(server, [client]).await;
}

async fn values_are_right(client: &LockClient) {
    let guard = client.lock("a").lock().await.expect("free");
    let text = |text: &str| Value::Text(text.to_owned());
    let texts = |items: &[&str]| Value::List(items.iter().copied().map(text).collect());
    for (source, wanted) in [
        ("", Value::Nil),
        ("return nil", Value::Nil),
        ("return false", Value::Nil),
        ("return true", Value::Int(1)),
        ("return -3.9", Value::Int(-3)),
        ("return 1, 2", Value::Int(1)),
        ("return 'ran'", text("ran")),
        ("return ARGV[1]", Value::Bytes(vec![0xff, 0, b'\n'])),
        (
            "return redis.call('set', KEYS[1], 'x', 'px', 1000)",
            text("OK"),
        ),
        ("return redis.status_reply('FINE')", text("FINE")),
        ("return redis.status_reply('QUEUED')", text("QUEUED")),
        ("return {}", Value::List(vec![])),
        // A field `err` of a map, or one that is not returned, is no error.
        (
            "redis.call('del', KEYS[1]) redis.call('hset', KEYS[1], 'err', 'x') redis.setresp(3)
            return redis.call('hgetall', KEYS[1])",
            Value::List(vec![text("err"), text("x")]),
        ),
        (
            "return {map = {err = 'x'}}",
            Value::List(vec![text("err"), text("x")]),
        ),
        (
            "return {set = {err = true}}",
            Value::List(vec![text("err")]),
        ),
        // What Redis does not return is no error either.
        (
            "return {set = {a = {err = 'x'}}}",
            Value::List(vec![text("a")]),
        ),
        ("return {ok = 'fine', {err = 'x'}}", text("fine")),
        ("local t = {ok = 'fine'} t[1] = t return t", text("fine")),
        ("return {double = 1.5, {err = 'x'}}", text("1.5")),
        // Which look like messages of a channel.
        (
            "return {'message', 'a', 'b'}",
            texts(&["message", "a", "b"]),
        ),
        (
            "return {'smessage', 'a', 'b'}",
            texts(&["smessage", "a", "b"]),
        ),
        (
            "return {'pmessage', 'a', 'b', 'c'}",
            texts(&["pmessage", "a", "b", "c"]),
        ),
        (
            "return {'pubsub', 'a', 'b', 'c'}",
            texts(&["pubsub", "a", "b", "c"]),
        ),
        (
            "return {'pubsub', 'message', 'a', 'b'}",
            texts(&["pubsub", "message", "a", "b"]),
        ),
        (
            "return {{'message', 'a', 'b'}}",
            Value::List(vec![texts(&["message", "a", "b"])]),
        ),
        // For which a map of the newer protocol has no place.
        (
            "return {map = {[{1}] = 2}}",
            Value::List(vec![Value::List(vec![Value::Int(1)]), Value::Int(2)]),
        ),
        (
            "return {1, 2, meta = {err = 'x'}}",
            Value::List(vec![Value::Int(1), Value::Int(2)]),
        ),
        (
            "return {1, nil, {err = 'x'}}",
            Value::List(vec![Value::Int(1)]),
        ),
        ("redis.setresp(3) return false", Value::Int(0)),
        ("redis.setresp(3) return true", Value::Int(1)),
        (
            "return {1, {'a', {}}, nil, 2}",
            Value::List(vec![
                Value::Int(1),
                Value::List(vec![text("a"), Value::List(vec![])]),
            ]),
        ),
        (
            "if ARGV[1] then return 'early' end return 'late'",
            text("early"),
        ),
        ("return type(KEYS) .. #KEYS -- a comment", text("table1")),
        (
            "local function f(n) if n == 0 then return 'deep' end return f(n - 1) end return f(100)",
            text("deep"),
        ),
        // What it sees of the script around it is nothing.
        (
            "return tostring(pcall(function() return look end))",
            text("false"),
        ),
        (
            "return tostring(pcall(function() return part end))",
            text("false"),
        ),
    ] {
        let value = guard.eval(&script(source), &["text"], &[b"\xff\0\n"]).await;
        assert_eq!(value.expect("it runs"), wanted, "{source}");
    }
    let deep = |levels: u32| format!("local t = 7 for _ = 1, {levels} do t = {{t}} end return t");
    let nested = (0..32).fold(Value::Int(7), |value, _| Value::List(vec![value]));
    let value = guard.eval(&script(&deep(32)), &[], &NO_ARGS).await;
    assert_eq!(value.expect("it runs"), nested);
    let value = guard.eval(&script(&deep(33)), &[], &NO_ARGS).await;
    assert_matches!(value, Err(Error::ScriptFailed { .. }));
    let many: Vec<String> = (0..10_000).map(|nth| nth.to_string()).collect();
    let value = guard.eval(&script("return ARGV[#ARGV]"), &[], &many).await;
    assert_eq!(value.expect("it runs"), text("9999"));
    guard.unlock().await.expect("held");
}

/// Whatever the error looks like, it is the user's: nothing is sent again, and the lock is held.
#[tokio::test]
async fn a_script_that_fails_is_no_loss_and_is_not_sent_again() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    let guard = client.lock("a").lock().await.expect("free");
    for (then, text) in [
        ("error('boo')", "boo"),
        ("error({})", "table"),
        ("error()", "an error without a text: nil"),
        ("error(7)", "7"),
        ("coroutine.yield(7)", "yielded"),
        ("return redis.call('hget', KEYS[1], 'x')", "WRONGTYPE"),
        ("return redis.call('nonsense')", "nknown"),
        ("return redis.pcall('hget', KEYS[1], 'x')", "WRONGTYPE"),
        ("return redis.error_reply('READONLY no')", "READONLY no"),
        ("return redis.error_reply('NOSCRIPT no')", "NOSCRIPT no"),
        ("error({err = 'MOVED 1 127.0.0.1:1'})", "MOVED 1"),
        (
            "return {1, {redis.error_reply('LOADING no')}}",
            "LOADING no",
        ),
        (
            "return {map = {a = redis.error_reply('CLUSTERDOWN no')}}",
            "CLUSTERDOWN no",
        ),
        (
            "return {map = {a = {redis.error_reply('CLUSTERDOWN no')}}}",
            "CLUSTERDOWN no",
        ),
        (
            "return {set = {[redis.error_reply('ASK 1 127.0.0.1:1')] = true}}",
            "ASK 1",
        ),
        // An error whose own `err` is no text.
        ("error({err = redis.pcall('nonsense')})", "table"),
        (
            "error({err = redis.error_reply('MOVED 1 127.0.0.1:1')})",
            "table",
        ),
        ("error({err = redis.error_reply('READONLY no')})", "table"),
        ("error({err = true})", "table"),
        ("error({err = {}})", "table"),
        ("error({err = 7})", "table"),
        (
            "error(setmetatable({}, {__tostring = function() return {err = 'MOVED 1 127.0.0.1:1'} end}))",
            "an error without a text",
        ),
        (
            "error(setmetatable({}, {__index = function() error({err = 'MOVED 1 127.0.0.1:1'}) end}))",
            "an error without a text",
        ),
        (
            "local t = {} setmetatable(t, {__index = function() error(t) end}) error(t)",
            "an error without a text",
        ),
        ("local t = {} t[1] = t return t", "nested too deeply"),
        (
            "local function f() return 1 + f() end return f()",
            "stack overflow",
        ),
        (
            "return setmetatable({}, {__index = function() error('boo') end})",
            "metatable",
        ),
        // Redis would see a map with an error, which this script does not.
        (
            "return setmetatable({}, {__index = {map = {}}, __metatable = false})",
            "metatable",
        ),
        (
            "return {1, {setmetatable({}, {__index = {err = 'TRYAGAIN no'}})}}",
            "metatable",
        ),
        (
            "local t = {} for _ = 1, 5000 do t = {t} end return t",
            "nested too deeply",
        ),
        ("return look", "look"),
    ] {
        for once in [false, true] {
            let script = script(&format!("redis.call('incr', KEYS[1]) {then}"));
            let write = guard.eval(&script, &["n"], &NO_ARGS);
            let write = run(write, once).await;
            let Err(error @ Error::ScriptFailed { .. }) = write else {
                panic!("{then}: {write:?}")
            };
            assert!(error.to_string().contains(text), "{then}: {error}");
            assert_eq!((error.lock(), error.is_retryable()), (Some("a"), false));
            assert_eq!(control.run(&["GET", "n"]), "1", "{then}: once");
            assert_eq!(control.run(&["KEYS", "redisson_lock_once*"]), "", "{then}");
            assert_eq!(guard.state(), HoldState::Held, "{then}");
            assert_eq!(client.stats().reconnects_total, 0, "{then}");
            control.run(&["DEL", "n"]);
        }
    }
    // No Lua: the server finds it before any of it runs. The line is that of the user's text.
    for (text, line) in [
        ("local a = 1\nreturn a +", "user_script:2"),
        ("return 1 end redis.call('incr', 'n') do", "user_script:1"),
        (
            "return 1\nend\nredis.call('incr', 'n')\nlocal look = function()",
            "user_script:2",
        ),
        ("if a then return 1", "user_script:1"),
        ("return 'a", "user_script:1"),
        ("redis.call('incr', 'n') --[[", "user_script:1"),
        ("\u{1b}Lua", "user_script:1"),
        (", redis.call('incr', 'n')", "user_script:1"),
        ("; return 1", "user_script:1"),
    ] {
        let write = guard.eval(&script(text), &["n"], &NO_ARGS);
        let once = guard
            .eval(&script(text), &["n"], &NO_ARGS)
            .once("1", MINUTE);
        for write in [write.await.map(|_| ()), once.await.map(|_| ())] {
            let Err(error @ Error::ScriptFailed { .. }) = write else {
                panic!("{text}: {write:?}")
            };
            assert!(error.to_string().contains(line), "{text}: {error}");
            assert_eq!(error.lock(), Some("a"));
            assert_eq!(control.run(&["EXISTS", "n"]), "0", "{text}");
            assert_eq!(control.run(&["KEYS", "redisson_lock_once*"]), "", "{text}");
        }
    }
    guard.unlock().await.expect("held");
    finish(server, [client]).await;
}

#[test]
fn a_text_with_flags_makes_no_script() {
    let made = Script::new("#!lua\nreturn 1");
    assert_matches!(made, Err(Error::InvalidConfig { what: "script", .. }));
}

#[tokio::test]
async fn without_an_answer_it_is_not_sent_again() {
    for kind in KINDS {
        for (fate, ran) in [
            (Fate::LoseReply, "1"),
            (Fate::LoseCommand, "0"),
            (Fate::Late, "0"),
        ] {
            let mut pair = ProxiedPair::new().await;
            let guard = pair.ours.lock_of(kind, "a").lock().await.expect("free");
            let script = script("return redis.call('incr', KEYS[1])");
            guard
                .eval(&script, &["other"], &["first"])
                .await
                .expect("held");
            pair.proxy.rule(fate, 1, with_mark);
            let write = guard.eval(&script, &["n"], &["mark"]).await;
            let what = format!("{kind}, {fate:?}");
            let doing = Operation::Writing;
            assert_matches!(write, Err(Error::NoAnswer { while_doing, .. }) if while_doing == doing, "{what}");
            assert_eq!(pair.proxy.hit.load(Ordering::SeqCst), 1, "{what}");
            // The lock is held, and the next write goes over the next connection, after the fence.
            let write = guard.eval(&script, &["other"], &["next"]).await;
            assert_eq!(write.expect("held").as_int(), Some(2), "{what}");
            pair.proxy.deliver().await;
            let n = pair.control.run(&["GET", "n"]).replace("(nil)", "0");
            assert_eq!(n, ran, "{what}");
            let sent = pair.proxy.script_calls();
            let sent = sent.iter().filter(|words| with_mark(words)).count();
            assert_eq!(sent, 1, "{what}");
            guard.unlock().await.expect("held");
            pair.control
                .run(&["DEL", "n", "other", "redisson_lock_token:{a}"]);
            pair.finish().await;
        }
    }
}

#[tokio::test]
async fn with_an_id_it_is_sent_again_and_runs_once() {
    for kind in KINDS {
        for fate in [Fate::LoseReply, Fate::LoseCommand, Fate::Late, Fate::Twice] {
            let mut pair = ProxiedPair::new().await;
            let guard = pair.ours.lock_of(kind, "a").lock().await.expect("free");
            let script = counting();
            guard
                .eval(&script, &["other"], &["first"])
                .await
                .expect("held");
            pair.proxy.rule(fate, 1, with_mark);
            let write = guard
                .eval(&script, &["n"], &["mark"])
                .once("7", MINUTE)
                .await;
            let what = format!("{kind}, {fate:?}");
            match (fate, write) {
                (Fate::LoseCommand | Fate::Late, Ok(Once::Ran(Value::Int(1)))) => {}
                (
                    Fate::LoseReply | Fate::Twice,
                    Ok(Once::DoneBefore | Once::Ran(Value::Int(1))),
                ) => {}
                (_, other) => panic!("{what}: {other:?}"),
            }
            assert_eq!(pair.proxy.hit.load(Ordering::SeqCst), 1, "{what}");
            pair.proxy.deliver().await;
            assert_eq!(
                pair.control.run(&["GET", "n"]),
                "1",
                "{what}: once in total"
            );
            let again = count_once(&guard, "7").await;
            assert_eq!(again.expect("held"), Once::DoneBefore, "{what}");
            guard.unlock().await.expect("held");
            // So it is for a later holder, and the id is of this lock alone.
            let guard = pair.theirs.lock_of(kind, "a").lock().await.expect("free");
            let again = count_once(&guard, "7").await;
            assert_eq!(again.expect("held"), Once::DoneBefore, "{what}");
            guard.unlock().await.expect("held");
            let guard = pair.theirs.lock_of(kind, "b").lock().await.expect("free");
            let other = count_once(&guard, "7").await;
            assert_eq!(other.expect("held"), Once::Ran(Value::Int(2)), "{what}");
            guard.unlock().await.expect("held");
            pair.control.run(&["FLUSHDB"]);
            pair.finish().await;
        }
    }
}

/// Names and ids may have colons and braces.
#[tokio::test]
async fn an_id_is_of_one_lock_whatever_both_look_like() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    for kind in KINDS {
        for [(one, id), (other, other_id)] in [
            [("{t}:a", "b:7"), ("{t}:a:b", "7")],
            [("{t}:a", ":7"), ("{t}:a:", "7")],
            [("a", "b}:7"), ("a}:b", "7")],
            [("a", "7"), ("{a}", "7")],
            [("a", ":7"), ("{a}:", "7")],
            [("a", ":"), ("a", "%3A")],
            [("a", "%"), ("a", "%25")],
        ] {
            let write = async |name: &str, id: &str| {
                let guard = taken(&client.lock_of(kind, name)).await;
                let once = count_once(&guard, id).await.expect("held");
                guard.unlock().await.expect("held");
                once
            };
            let what = format!("{kind}: {one} {id}, {other} {other_id}");
            let first = write(one, id).await;
            assert_eq!(first, Once::Ran(Value::Int(1)), "{what}");
            let second = write(other, other_id).await;
            assert_eq!(second, Once::Ran(Value::Int(2)), "{what}");
            assert_eq!(write(one, id).await, Once::DoneBefore, "{what}");
            assert_eq!(write(other, other_id).await, Once::DoneBefore, "{what}");
            control.run(&["FLUSHDB"]);
        }
    }
    finish(server, [client]).await;
}

/// The refusal is that of the last copy: it says nothing about the one before.
#[tokio::test]
async fn a_refusal_does_not_say_that_an_earlier_copy_changed_nothing() {
    for refusal in [
        "-NOREPLICAS Not enough good replicas to write.",
        "-NOPERM User u has no permissions to run the 'exists' command",
        "-OOM command not allowed when used memory > 'maxmemory'.",
        "-WRONGTYPE Operation against a key holding the wrong kind of value",
    ] {
        let mut pair = ProxiedPair::new().await;
        let guard = taken(&pair.ours.lock("a")).await;
        let first = guard.eval(&counting(), &["other"], &["first"]).await;
        first.expect("held");
        pair.proxy.rule(Fate::LoseReply, 1, with_mark);
        pair.proxy.rule(Fate::Instead(refusal), 1, with_mark);
        let write = guard.eval(&counting(), &["n"], &["mark"]);
        let write = write.once("7", MINUTE).await;
        let Err(Error::NoAnswer { source, .. }) = &write else {
            panic!("{refusal}: {write:?}")
        };
        assert!(source.to_string().contains(&refusal[1..8]), "{source}");
        assert_eq!(pair.proxy.hit.load(Ordering::SeqCst), 2, "{refusal}");
        assert_eq!(pair.control.run(&["GET", "n"]), "1", "{refusal}");
        let again = count_once(&guard, "7").await;
        assert_eq!(again.expect("held"), Once::DoneBefore, "{refusal}");
        guard.unlock().await.expect("held");
        pair.control.run(&["FLUSHDB"]);
        pair.finish().await;
    }
}

#[tokio::test]
async fn a_hold_that_ends_between_two_copies_is_named_as_the_reason() {
    let mut pair = ProxiedPair::new().await;
    let guard = pair.ours.lock("a").lease(ms(500)).lock().await;
    let guard = guard.expect("free");
    pair.proxy.rule(Fate::Silence, 1, with_mark);
    let write = guard.eval(&counting(), &["n"], &["mark"]);
    let write = write.once("7", MINUTE).await;
    let Err(Error::NoAnswer { source, .. }) = &write else {
        panic!("{write:?}")
    };
    let wanted = "the hold ended before a copy was answered";
    assert!(source.to_string().contains(wanted), "{source}");
    assert_eq!(lost(&guard).await, LossReason::LeaseOver);
    assert_eq!(pair.control.run(&["EXISTS", "n"]), "0");
    drop(guard);
    pair.finish().await;
}

/// A replica has the lock too, and only a write of the script itself finds that it takes none.
#[tokio::test]
async fn a_script_that_finds_a_replica_has_its_connection_replaced() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    let guard = taken(&client.lock("a")).await;
    control.run(&["REPLICAOF", "127.0.0.1", "1"]);
    let failed = guard.eval(&counting(), &["n"], &NO_ARGS).await;
    let Err(error @ Error::ScriptFailed { .. }) = failed else {
        panic!("{failed:?}")
    };
    assert!(error.to_string().contains("READONLY"), "{error}");
    eventually("it is replaced", ms(5_000), || {
        client.stats().reconnects_total > 0
    })
    .await;
    assert_eq!(guard.state(), HoldState::Held);
    control.run(&["REPLICAOF", "NO", "ONE"]);
    // With an id, in case it is being replaced again.
    let write = count_once(&guard, "7").await.expect("held");
    let ran = [Once::Ran(Value::Int(1)), Once::DoneBefore];
    assert!(ran.contains(&write), "{write:?}");
    assert_eq!(control.run(&["GET", "n"]), "1");
    guard.unlock().await.expect("held");
    control.run(&["FLUSHDB"]);
    finish(server, [client]).await;
}

#[tokio::test]
async fn a_server_without_its_replicas_fails_the_script_or_refuses_the_id() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    let guard = taken(&client.lock("a")).await;
    control.run(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let failed = guard.eval(&counting(), &["n"], &NO_ARGS).await;
    assert_matches!(failed, Err(Error::ScriptFailed { .. }));
    let refused = count_once(&guard, "7").await;
    let wanted = RefusedKind::NotEnoughReplicas;
    assert_matches!(refused, Err(Error::Refused { kind, .. }) if kind == wanted);
    assert_eq!(client.stats().reconnects_total, 0);
    control.run(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    let write = count_once(&guard, "7").await;
    assert_eq!(write.expect("held"), Once::Ran(Value::Int(1)), "once");
    guard.unlock().await.expect("held");
    control.run(&["FLUSHDB"]);
    finish(server, [client]).await;
}

/// The server answers no command meanwhile.
#[tokio::test]
async fn a_script_that_outlasts_the_command_timeout_runs_once_and_no_hold_is_lost() {
    let server = TestServer::new();
    let set = |builder: redisson_lock::LockClientBuilder| builder.command_timeout(ms(600));
    let client = server.client_with(set).await;
    let mut control = server.control();
    let (guard, other) = (
        taken(&client.lock("a")).await,
        taken(&client.lock("b")).await,
    );
    let slow = script(
        "redis.call('incr', KEYS[1])
        -- TIME stands still inside of a script from Redis 7.2 on; os.clock is not there before.
        local function time() local time = redis.call('time') return time[1] + time[2] / 1e6 end
        local has_clock, clock = pcall(function() return os.clock end)
        local now = has_clock and clock or time
        local start = now()
        repeat until now() - start > 1.5",
    );
    let write = guard.eval(&slow, &["n"], &NO_ARGS).once("7", MINUTE);
    let write = write.await;
    assert_matches!(write, Err(Error::NoAnswer { .. }) | Ok(Once::DoneBefore));
    // The server answers again when it has ended.
    assert_eq!(control.run(&["GET", "n"]), "1");
    let again = async || guard.eval(&slow, &["n"], &NO_ARGS).once("7", MINUTE).await;
    let mut answer = again().await;
    for _ in 0..5 {
        if matches!(answer, Err(Error::NoAnswer { .. })) {
            answer = again().await;
        }
    }
    assert_eq!(answer.expect("held"), Once::DoneBefore);
    assert_eq!(control.run(&["GET", "n"]), "1");
    for guard in [guard, other] {
        assert_eq!(guard.state(), HoldState::Held);
        guard.unlock().await.expect("held");
    }
    control.run(&["FLUSHDB"]);
    finish(server, [client]).await;
}

#[tokio::test]
async fn a_lost_lock_comes_before_the_id() {
    let mut pair = ProxiedPair::new().await;
    for kind in KINDS {
        let lock = pair.ours.lock_of(kind, format!("{kind}"));
        let guard = lock.lock().await.expect("free");
        let write = count_once(&guard, "7").await;
        assert_matches!(write, Ok(Once::Ran(_)), "{kind}");
        pair.control.run(&["DEL", lock.name()]);
        let write = count_once(&guard, "7").await;
        assert_matches!(write, Err(Error::Lost { .. }), "{kind}");
        drop(guard);
        // A copy has run, its answer is lost, and then the lock: what is known is that it ran.
        let script = self::script("redis.call('incr', KEYS[1]) redis.call('del', KEYS[2])");
        let guard = lock.lock().await.expect("free");
        // The server is to know it.
        let keys = ["other", "other"];
        guard.eval(&script, &keys, &NO_ARGS).await.expect("held");
        pair.proxy.rule(Fate::LoseReply, 1, with_mark);
        let keys = ["n", lock.name()];
        let write = guard
            .eval(&script, &keys, &["mark"])
            .once("8", MINUTE)
            .await;
        assert_eq!(write.expect("it ran"), Once::DoneBefore, "{kind}");
        assert_eq!(lost(&guard).await, LossReason::Gone);
        assert_eq!(pair.control.run(&["GET", "n"]), "2", "{kind}");
        drop(guard);
        // That copy has failed and taken its id back: what it wrote stays, and nothing else tells of it.
        let script =
            self::script("redis.call('incr', KEYS[1]) redis.call('del', KEYS[2]) error('boo')");
        let guard = lock.lock().await.expect("free");
        let failed = guard.eval(&script, &["other", "other"], &NO_ARGS).await;
        assert_matches!(failed, Err(Error::ScriptFailed { .. }), "{kind}");
        pair.proxy.rule(Fate::LoseReply, 1, with_mark);
        let write = guard.eval(&script, &keys, &["mark"]);
        let write = write.once("9", MINUTE).await;
        assert_matches!(write, Err(Error::Lost { .. }), "{kind}");
        assert_eq!(pair.control.run(&["GET", "n"]), "3", "{kind}");
        drop(guard);
        pair.control.run(&["FLUSHDB"]);
    }
    pair.finish().await;
}

#[tokio::test]
async fn a_script_that_fails_takes_its_id_back_and_what_it_wrote_stays() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    for kind in KINDS {
        let guard = client
            .lock_of(kind, kind.to_string())
            .lock()
            .await
            .expect("free");
        let script = script(
            "redis.call('incr', KEYS[1]) if ARGV[1] == 'fail' then error('boo') end return 'fine'",
        );
        let write = |arg| guard.eval(&script, &["n"], &[arg]).once("7", MINUTE);
        for n in ["1", "2"] {
            let failed = write("fail").await;
            assert_matches!(failed, Err(Error::ScriptFailed { .. }), "{kind}");
            assert_eq!(control.run(&["GET", "n"]), n, "{kind}: what it wrote stays");
            assert_eq!(control.run(&["KEYS", "redisson_lock_once*"]), "", "{kind}");
        }
        let ran = Once::Ran(Value::Text("fine".to_owned()));
        assert_eq!(write("").await.expect("held"), ran, "{kind}");
        assert_eq!(
            write("fail").await.expect("held"),
            Once::DoneBefore,
            "{kind}"
        );
        assert_eq!(control.run(&["GET", "n"]), "3", "{kind}");
        guard.unlock().await.expect("held");
        let id = control.run(&["KEYS", "redisson_lock_once*"]);
        assert!(control.pttl(&id) > 0, "{kind}: {id}");
        control.run(&["DEL", "n", &id]);
    }
    finish(server, [client]).await;
}

#[tokio::test]
async fn a_write_whose_future_is_dropped_runs_at_most_once() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    let lock = client.lock("a");
    // The server is to know the scripts, so that each is executed by the first command that is sent.
    let guard = lock.lock().await.expect("free");
    let write = guard.eval(&counting(), &["n"], &NO_ARGS);
    write.await.expect("held");
    count_once(&guard, "0").await.expect("held");
    guard.unlock().await.expect("held");
    control.run(&["FLUSHDB"]);
    let mut ran = 0;
    for polls in 0..6 {
        for once in [false, true] {
            let guard = lock.lock().await.expect("free");
            let write = guard.eval(&counting(), &["n"], &NO_ARGS);
            let mut write = Box::pin(run(write, once));
            for _ in 0..polls {
                let done = std::future::poll_fn(|context| {
                    std::task::Poll::Ready(write.as_mut().poll(context).is_ready())
                });
                if done.await {
                    break;
                }
                tokio::task::yield_now().await;
            }
            drop(write);
            assert_eq!(guard.state(), HoldState::Held);
            // Whatever was sent comes before it on the connection.
            guard.unlock().await.expect("held");
            let n = control.run(&["GET", "n"]);
            match polls {
                0 => assert_eq!(n, "(nil)", "never polled"),
                _ => assert!(["(nil)", "1"].contains(&n.as_str()), "{polls}: {n}"),
            }
            ran += u32::from(n == "1");
            for key in control.run(&["KEYS", "redisson_lock*"]).split_whitespace() {
                assert!(control.pttl(key) > 0, "{key}");
                assert!(once, "{key}");
            }
            control.run(&["FLUSHDB"]);
        }
    }
    assert!(ran > 0, "some were sent");
    finish(server, [client]).await;
}

/// A client whose user has all rights but these.
async fn without(server: &TestServer, missing: &[&str]) -> LockClient {
    let user = ["ACL", "SETUSER", "u", "reset", "on", ">p", "&*", "+@all"];
    server.control().run(&[&user, missing].concat());
    let url = server.url().replace("redis://", "redis://u:p@");
    let client = LockClient::connect(&url).await;
    client.expect("it may connect")
}

async fn taken(lock: &Lock) -> LockGuard {
    lock.lock().await.expect("free")
}

#[tokio::test]
async fn a_missing_right_is_the_scripts_or_changes_nothing() {
    let server = TestServer::new();
    let mut control = server.control();
    for kind in KINDS {
        let look = match kind {
            LockKind::String => "+get",
            _ => "+hexists",
        };
        for (missing, once, denied) in [
            (&["~*", "-incr"][..], false, None),
            (&["~*", "-incr"], true, None),
            (&["~*", "-set"], true, Some("+set")),
            (&["~*", "-exists"], true, Some("+exists")),
            (&["~*", "-pexpire"], true, Some("+pexpire")),
            (&["~redisson*", "~a"], false, Some("~n")),
            (
                &["~redisson_lock_token*", "~a", "~n"],
                true,
                Some("~redisson_lock_once:{a}:7"),
            ),
            (&["~*", &look.replace('+', "-")], false, Some(look)),
        ] {
            let client = without(&server, &["~*"]).await;
            let guard = taken(&client.lock_of(kind, "a")).await;
            let all = ["ACL", "SETUSER", "u", "resetkeys"];
            control.run(&[&all, missing].concat());
            let write = guard.eval(&counting(), &["n"], &NO_ARGS);
            let write = run(write, once).await;
            let what = format!("{kind} without {missing:?}, once: {once}: {write:?}");
            match (&write, denied) {
                (Err(Error::ScriptFailed { message, .. }), None) => {
                    let known = ["permission", "can't run"];
                    assert!(known.iter().any(|it| message.contains(it)), "{what}");
                }
                (Err(Error::PermissionDenied { permission, .. }), Some(denied)) => {
                    assert!(permission.split(' ').any(|part| part == denied), "{what}");
                }
                _ => panic!("{what}"),
            }
            assert_eq!(control.run(&["EXISTS", "n"]), "0", "{what}");
            assert_eq!(control.run(&["KEYS", "redisson_lock_once*"]), "", "{what}");
            assert_eq!(guard.state(), HoldState::Held, "{what}");
            control.run(&["ACL", "SETUSER", "u", "~*", "+@all"]);
            guard.unlock().await.expect("held");
            client.close(Duration::ZERO).await;
        }
    }
    server.finish([]).await;
}

#[tokio::test]
async fn in_a_cluster_the_keys_are_in_the_slot_of_the_lock() {
    let cluster = Cluster::start(false).await;
    let client = LockClient::connect(&cluster.url()).await;
    let client = client.expect("it answers");
    for kind in KINDS {
        let name = format!("{}:{kind}", cluster.key_at(0, "a"));
        let beside = format!("n:{{{name}}}");
        let guard = taken(&client.lock_of(kind, name.clone())).await;
        let before: i64 = (0..3)
            .map(|nth| cluster.control(nth).calls("evalsha"))
            .sum();
        for keys in [&["elsewhere"][..], &[&beside, "elsewhere"]] {
            let write = guard.eval(&counting(), keys, &NO_ARGS).await;
            let Err(Error::OtherSlot { lock, key }) = write else {
                panic!("{kind}: {write:?}")
            };
            assert_eq!((&*lock, &*key), (&*name, "elsewhere"));
        }
        let after: i64 = (0..3)
            .map(|nth| cluster.control(nth).calls("evalsha"))
            .sum();
        assert_eq!(before, after, "{kind}: nothing was sent");
        let write = guard.eval(&counting(), &[&beside], &NO_ARGS);
        let once = write.once("7", MINUTE).await;
        assert_eq!(once.expect("held"), Once::Ran(Value::Int(1)), "{kind}");
        guard.unlock().await.expect("held");
    }
    // The key of an id cannot be in the slot of each name.
    for (kind, name, id_key) in [
        (LockKind::Spin, "a}b", "redisson_lock_once:{a}b}:7"),
        (LockKind::String, "a{b", "redisson_lock_once:a{b::7"),
    ] {
        let guard = taken(&client.lock_of(kind, name)).await;
        let write = guard.eval(&counting(), &[name; 0], &NO_ARGS);
        let write = write.once("7", MINUTE).await;
        assert_matches!(&write, Err(Error::OtherSlot { key, .. }) if key == id_key);
        guard.unlock().await.expect("held");
    }
    client.close(Duration::ZERO).await;
}

/// Two nodes that take over a slot before they have heard of each other's epoch choose the same: then one of them may
/// get the slot back.
async fn epochs_agree(cluster: &Cluster) {
    eventually("the epochs agree", ms(10_000), || {
        let epochs = (0..3).map(|nth| {
            let info = cluster.control(nth).run(&["CLUSTER", "INFO"]);
            let epoch = info.split("cluster_current_epoch:").nth(1);
            let epoch = epoch.and_then(|rest| rest.split_whitespace().next());
            epoch.expect("a number").to_owned()
        });
        let epochs: Vec<_> = epochs.collect();
        epochs.iter().all(|epoch| *epoch == epochs[0])
    })
    .await;
}

#[tokio::test]
async fn in_a_cluster_a_write_follows_the_slot() {
    let cluster = Cluster::start(false).await;
    let client = LockClient::connect(&cluster.url()).await;
    let client = client.expect("it answers");
    for kind in KINDS {
        let tag = cluster.key_at(0, &kind.to_string());
        let counter = format!("n:{{{tag}}}");
        let guard = taken(&client.lock_of(kind, tag.clone())).await;
        let write = async |wanted| {
            let value = guard.eval(&counting(), &[&counter], &NO_ARGS).await;
            assert_eq!(value.expect("held").as_int(), Some(wanted), "{kind}");
        };
        write(1).await;
        // MOVED.
        epochs_agree(&cluster).await;
        cluster.move_slot(slot(&tag), 0, 1);
        write(2).await;
        // ASK: the target has the keys, and the source still has the slot.
        epochs_agree(&cluster).await;
        cluster.begin_to_move(slot(&tag), 1, 2);
        cluster.move_keys(slot(&tag), 1, 2);
        let redirects = client.stats().redirects_total;
        write(3).await;
        assert!(client.stats().redirects_total > redirects, "{kind}");
        // A key that does not exist yet is at neither node: nothing runs until the slot has moved.
        let once = || {
            let write = guard.eval(&counting(), &[&counter], &NO_ARGS);
            write.once("7", ms(10_000)).into_future()
        };
        let refused = once().await.expect_err("TRYAGAIN");
        let down = RefusedKind::ClusterDown;
        assert_matches!(&refused, Error::Refused { kind, .. } if *kind == down, "{kind}");
        cluster.end_move(slot(&tag), 1, 2);
        // An answer that was read while the map changed counts as none: the id makes it safe to call again.
        let mut answer = once().await;
        for _ in 0..5 {
            if matches!(answer, Err(Error::NoAnswer { .. })) {
                answer = once().await;
            }
        }
        let answer = answer.expect("held");
        let ran = [Once::Ran(Value::Int(4)), Once::DoneBefore];
        assert!(ran.contains(&answer), "{kind}: {answer:?}");
        assert_eq!(cluster.control(2).run(&["GET", &counter]), "4", "{kind}");
        guard.unlock().await.expect("held");
    }
    client.close(Duration::ZERO).await;
}

#[cfg(feature = "blocking")]
#[test]
fn blocking_guards_write_too() {
    let server = test_support::Server::start();
    let client = redisson_lock::blocking::LockClient::connect(&server.url()).expect("it answers");
    let guard = client.lock("a").lock().expect("free");
    let value = guard.eval(&counting(), &["n"], &NO_ARGS).expect("held");
    assert_eq!(value.as_int(), Some(1));
    for wanted in [Once::Ran(Value::Int(2)), Once::DoneBefore] {
        let once = guard.eval_once(&counting(), &["n"], &NO_ARGS, "7", MINUTE);
        assert_eq!(once.expect("held"), wanted);
    }
    server.control().run(&["DEL", "a"]);
    let write = guard.eval(&counting(), &["n"], &NO_ARGS);
    assert_matches!(write, Err(Error::Lost { .. }));
    assert_eq!(
        guard.lost_within(MINUTE).expect("asked"),
        Some(LossReason::Gone)
    );
    assert_eq!(server.control().run(&["GET", "n"]), "2");
}

#[cfg(feature = "blocking")]
#[test]
fn the_body_of_a_blocking_run_writes_and_has_its_token() {
    let server = test_support::Server::start();
    let client = redisson_lock::blocking::LockClient::connect(&server.url()).expect("it answers");
    let lock = client.fenced_lock("a");
    let wrote = lock.run(|held| {
        let value = held.eval(&counting(), &["n"], &NO_ARGS)?;
        Ok::<_, Error>((held.token(), value.as_int()))
    });
    assert_eq!(wrote.expect("held"), (1, Some(1)));
    let lost = lock.try_run(|held| {
        server.control().run(&["DEL", "a"]);
        held.eval(&counting(), &["n"], &NO_ARGS)
    });
    assert_matches!(lost, Err(Error::Lost { .. }));
    assert_eq!(server.control().run(&["GET", "n"]), "1");
}

//! Each right of the documented recipe taken away, one at a time: which calls say so, and how they
//! name it.

use std::time::Duration;

use redisson_lock::{ConnectionFence, Error, Lock, LockClient, LockKind, Once, Script};
use test_support::kinds::{KINDS, NESTED, count, holder, rob};
use test_support::{
    Control, Proxy, Scripted, TestServer, assert_matches, cases, eventually, lock_and_unlock, ms,
    tokio,
};

/// The words of the n-th block of `docs/operations.md`.
fn block(nth: usize) -> Vec<&'static str> {
    let page = include_str!("../docs/operations.md");
    let block = page
        .split("```acl\n")
        .nth(nth + 1)
        .and_then(|rest| rest.split("```").next())
        .expect("a block");
    let words = block.lines().flat_map(|line| {
        let line = line.split('#').next().unwrap_or_default();
        line.split_whitespace()
    });
    words.collect()
}

/// What the user of a lock with a token needs besides, and what a write with an id needs.
fn besides(nth: usize) -> Vec<&'static str> {
    let words = block(nth);
    assert_eq!(words[..3], ["ACL", "SETUSER", "locker"]);
    words[3..].to_vec()
}

const OF_TOKENS: usize = 1;
const OF_IDS: usize = 2;
const OF_QUEUES: usize = 3;
const OF_READS: usize = 4;

/// The words that make the user of locks of this kind.
fn recipe(kind: LockKind) -> Vec<&'static str> {
    match kind {
        LockKind::Plain => block(0),
        LockKind::Spin => block(5),
        LockKind::Fenced => [block(0), besides(OF_TOKENS)].concat(),
        LockKind::String => block(6),
        LockKind::Fair => {
            let mut words = [block(0), besides(OF_QUEUES)].concat();
            words.retain(|word| *word != "+hdel");
            words
        }
        LockKind::Read | LockKind::Write => {
            let mut words = [block(0), besides(OF_READS)].concat();
            words.retain(|word| *word != "&redisson_lock__channel:{lock:*");
            words
        }
        _ => unreachable!("a kind without a recipe: {kind}"),
    }
}

/// Those of the words that are rights.
fn rights(words: &[&'static str]) -> Vec<&'static str> {
    let words = words.iter().copied();
    let rights = words.filter(|word| word.starts_with(['+', '~', '&']));
    rights.collect()
}

/// Gives the user every right of these words but one.
fn grant(control: &mut Control, words: &[&str], missing: &str) {
    let words = words.iter().copied().filter(|word| *word != missing);
    let mut words: Vec<&str> = words.collect();
    assert_eq!(words[..3], ["ACL", "SETUSER", "locker"]);
    words.insert(3, "reset");
    control.run(&words);
}

/// Gives the user every right of its recipe but one.
fn grant_all_but(control: &mut Control, kind: LockKind, missing: &str) {
    grant(control, &recipe(kind), missing);
}

/// What a call says: nothing, a right, or something that it should not say.
fn said<T>(result: &Result<T, Error>) -> String {
    match result {
        Ok(_) => String::new(),
        Err(Error::PermissionDenied { permission, .. }) => permission.clone(),
        Err(other) => format!("{other:?}"),
    }
}

/// Besides connecting.
const CALLS: [&str; 10] = [
    "lock",
    "lock again",
    "wait",
    "inspect",
    "queue",
    "extend",
    "unlock one",
    "unlock",
    "force_unlock",
    "new server",
];

/// Those that a lock of this kind has.
fn calls(kind: LockKind) -> impl Iterator<Item = &'static str> {
    let nests = NESTED.contains(&kind);
    let nested = ["lock again", "unlock one"];
    let calls = CALLS.into_iter();
    let calls = calls.filter(move |call| nests || !nested.contains(call));
    calls.filter(move |call| kind == LockKind::Fair || *call != "queue")
}

/// Has the server learn every script, so that no call but the first of a new server sends its text.
async fn teach(lock: &Lock) {
    let held = lock.lease(ms(10_000)).lock().await.expect("free");
    held.extend(ms(20_000)).await.expect("held");
    lock.inspect().await.expect("answered");
    lock.queue().await.expect("answered");
    assert!(lock.force_unlock().await.expect("answered"));
    drop(held);
    lock_and_unlock(lock).await;
}

/// One call without one right. The state before it is made with all of them.
async fn call_without(
    missing: &str,
    call: &str,
    server: &TestServer,
    client: &LockClient,
    kind: LockKind,
) -> String {
    let mut control = server.control();
    let (mut ours, mut other) = (server.control(), server.control());
    let mut take_away = || grant_all_but(&mut ours, kind, missing);
    let mut release_all = || grant_all_but(&mut other, kind, "");
    // A name of its own: a channel is listened to for a while after its last waiter has left.
    let name = format!("lock:{call}");
    let lock = client.lock_of(kind, &name);
    let said = match call {
        "connect" => {
            take_away();
            let url = format!("redis://locker:SECRET@127.0.0.1:{}/1", server.port);
            let connected = LockClient::builder()
                .command_timeout(ms(400))
                .connect(&url)
                .await;
            let said = match &connected {
                Ok(client) if client.stats().connection_fence != ConnectionFence::Active => {
                    format!("{:?}", client.stats().connection_fence)
                }
                connected => said(connected),
            };
            if let Ok(client) = connected {
                client.close(ms(0)).await;
            }
            said
        }
        "lock" => {
            take_away();
            said(&lock.lock().await)
        }
        "lock again" => {
            let outer = lock.lock().await.expect("free");
            take_away();
            let said = said(&lock.lock().await);
            release_all();
            outer.unlock().await.expect("held");
            said
        }
        "wait" => {
            rob(&mut control, kind, &name);
            take_away();
            said(&lock.try_lock_for(ms(600)).await)
        }
        "inspect" => {
            let _held = lock.lock().await.expect("free");
            take_away();
            let said = said(&lock.inspect().await);
            release_all();
            said
        }
        "queue" => {
            let _held = lock.lock().await.expect("free");
            take_away();
            let said = said(&lock.queue().await);
            release_all();
            said
        }
        "extend" => {
            let held = lock.lease(ms(10_000)).lock().await.expect("free");
            take_away();
            let said = said(&held.extend(ms(20_000)).await);
            release_all();
            said
        }
        "unlock one" => {
            let _outer = lock.lock().await.expect("free");
            let inner = lock.lock().await.expect("nested");
            take_away();
            let said = said(&inner.unlock().await);
            release_all();
            said
        }
        "unlock" => {
            let held = lock.lock().await.expect("free");
            take_away();
            said(&held.unlock().await)
        }
        "force_unlock" => {
            rob(&mut control, kind, &name);
            take_away();
            said(&lock.force_unlock().await)
        }
        "new server" => {
            control.run(&["SCRIPT", "FLUSH"]);
            take_away();
            said(&lock.lock().await)
        }
        other => unreachable!("{other}"),
    };
    release_all();
    eventually("nothing under way", ms(5000), || {
        client.stats().releasing + client.stats().held == 0
    })
    .await;
    control.run(&["DEL", &name]);
    said
}

/// What the line `connection` of a table stands for.
const OF_CONNECTION: &str = "
    +client|info connect
    +client|kill connect
    +client|tracking
    +hello
    +auth
    +select      connect
    +info
";

/// Which calls of a plain lock need which right. Those that no call needs are for other versions of the server, or not
/// looked at by it.
const OF_PLAIN: &str = "
    +evalsha     all
    +eval        new server
    +hget        lock, lock again, wait, inspect, unlock one, unlock, force_unlock, new server
    +hincrby     lock, lock again, unlock one, new server
    // Without it nothing is handed over: `tests/handoff.rs`.
    +hdel
    +hlen        wait, inspect, force_unlock
    +hkeys       wait, inspect, force_unlock
    +hexists     extend, force_unlock
    +exists      lock, wait, new server
    +pttl        lock again, wait, inspect, extend, unlock one, force_unlock
    +pexpire     lock, lock again, extend, unlock one, new server
    +del         unlock, force_unlock
    +publish     unlock, force_unlock
    // Without it a forced unlock has no limit: `tests/outcomes.rs`.
    +time
    +subscribe   wait
    +unsubscribe
    // Its refusal is a sign of life too.
    +ping
    connection
    ~lock:*      all
    &redisson_lock__channel:{lock:* wait, unlock, force_unlock
";

/// And which of a fenced lock need those of its token.
const OF_FENCED: &str = "
    +get     lock, lock again, new server
    +incr    lock, new server
    +persist lock, lock again, new server
    ~redisson_lock_token:{lock:* lock, lock again, wait, inspect, new server
";

/// The calls of a fenced lock that name the key of the token too.
const OF_TWO_KEYS: [&str; 5] = ["lock", "lock again", "wait", "inspect", "new server"];

const OF_STRING: &str = "
    +evalsha     all
    +eval        new server
    +get         all
    +set         lock, new server
    +exists
    +pttl        wait, inspect, extend, force_unlock
    +pexpire     extend
    +del         unlock, force_unlock
    +time
    +ping
    connection
    ~lock:*      all
";

/// Those of a fair lock that name the keys of the queue too.
const OF_QUEUE: [&str; 8] = [
    "lock",
    "lock again",
    "wait",
    "queue",
    "unlock one",
    "unlock",
    "force_unlock",
    "new server",
];

/// Of a fair lock with an empty queue.
const OF_FAIR: &str = "
    +evalsha     all
    +eval        new server
    +hget        lock, lock again, wait, inspect, queue, unlock one, unlock, force_unlock, new server
    +hincrby     lock, lock again, unlock one, new server
    +hlen        wait, inspect, queue, force_unlock
    +hkeys       wait, inspect, queue, force_unlock
    +hexists     extend, force_unlock
    +exists
    +pttl        lock, lock again, wait, inspect, queue, extend, unlock one, force_unlock, new server
    +pexpire     lock, lock again, extend, unlock one, new server
    +del         unlock, force_unlock
    // The next owner is told: there is none.
    +publish
    +time        lock, wait, queue, unlock one, unlock, force_unlock, new server
    +subscribe   wait
    +unsubscribe
    +ping
    connection
    ~lock:*      all
    &redisson_lock__channel:{lock:* wait
    +lindex      lock, wait, unlock, force_unlock, new server
    +lpos        lock, wait, new server
    +lrange      wait, queue
    +lrem        wait
    +persist     wait
    +rpush       wait
    +zscore      lock, wait, new server
    +zrange      wait
    +zadd        wait
    +zrem        wait
    ~redisson_lock_queue:{lock:* lock, lock again, wait, queue, unlock one, unlock, force_unlock, new server
    ~redisson_lock_timeout:{lock:* lock, lock again, wait, queue, unlock one, unlock, force_unlock, new server
";

const OF_READ: &str = "
    +evalsha     all
    +eval        new server
    +hget        all
    +hincrby
    +hdel        lock, lock again, unlock one, new server
    +hlen
    +hkeys       wait
    +hexists     wait
    +exists
    +pttl        all
    +pexpire     lock, lock again, extend, unlock one, new server
    +del         unlock one, unlock, force_unlock
    +publish     unlock, force_unlock
    +time        inspect, force_unlock
    +subscribe   wait
    +unsubscribe
    +ping
    connection
    ~lock:*      all
    +hset        lock, lock again, unlock one, new server
    +hgetall     inspect, unlock, force_unlock
    +set         lock, lock again, unlock one, new server
    ~{lock:*     lock, lock again, wait, inspect, extend, unlock one, unlock, new server
    &redisson_rwlock:{lock:* wait, unlock, force_unlock
";

const OF_WRITE: &str = "
    +evalsha     all
    +eval        new server
    +hget        lock, lock again, wait, inspect, unlock one, unlock, force_unlock, new server
    +hincrby
    +hdel
    +hlen        unlock
    +hkeys       wait
    +hexists     wait, extend
    +exists
    +pttl        lock, lock again, wait, inspect, extend, unlock one, force_unlock, new server
    +pexpire     lock, lock again, extend, unlock one, new server
    +del         unlock, force_unlock
    +publish     unlock, force_unlock
    +time        inspect, force_unlock
    +subscribe   wait
    +unsubscribe
    +ping
    connection
    ~lock:*      all
    +hset        lock, lock again, unlock one, new server
    +hgetall     inspect, force_unlock
    +set
    ~{lock:*
    &redisson_rwlock:{lock:* wait, unlock, force_unlock
";

/// Each right, and the calls that need it.
type Needs = Vec<(&'static str, Vec<&'static str>)>;

/// A line of a table is a right and the calls that need it.
fn needs(table: &'static str) -> Needs {
    let lines = table.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("//"));
    let rows = lines.flat_map(|line| match line.split_once(' ') {
        None if line == "connection" => needs(OF_CONNECTION),
        None => vec![(line, vec![])],
        Some((right, calls)) if calls.trim() == "all" => vec![(right, CALLS.to_vec())],
        Some((right, calls)) => vec![(right, calls.split(',').map(str::trim).collect())],
    });
    rows.collect()
}

fn needed_by(kind: LockKind) -> Needs {
    match kind {
        LockKind::Plain => needs(OF_PLAIN),
        LockKind::Spin => {
            let recipe = recipe(kind);
            let mut rows = needs(OF_PLAIN);
            rows.retain(|(right, _)| recipe.contains(right));
            rows
        }
        LockKind::Fenced => [needs(OF_PLAIN), needs(OF_FENCED)].concat(),
        LockKind::String => needs(OF_STRING),
        LockKind::Fair => needs(OF_FAIR),
        LockKind::Read => needs(OF_READ),
        LockKind::Write => needs(OF_WRITE),
        _ => unreachable!("a kind without its rights: {kind}"),
    }
}

/// What is said without a right: as ACL writes it, for this lock alone, and nothing else. The fence says it by its
/// state.
fn named(kind: LockKind, right: &str, call: &str) -> String {
    // A rule has no blanks.
    let name = format!("lock:{call}").replace(' ', "?");
    match right {
        "+client|info" | "+client|kill" => "NotPermitted".to_owned(),
        // The server does not say which of the keys it is.
        right
            if right.starts_with('~')
                && kind == LockKind::Fenced
                && OF_TWO_KEYS.contains(&call) =>
        {
            format!("~{name} ~redisson_lock_token:{{{name}}}")
        }
        // The script of this renewal has the key of the lock alone.
        right if right.starts_with('~') && kind == LockKind::Write && call == "extend" => {
            format!("~{name}")
        }
        right if right.starts_with('~') && [LockKind::Read, LockKind::Write].contains(&kind) => {
            format!("~{name} ~{{{name}}}:*")
        }
        // It looks at the holder first.
        "~lock:*" if call == "force_unlock" => format!("~{name}"),
        right if right.starts_with('~') && kind == LockKind::Fair && OF_QUEUE.contains(&call) => {
            let [queue, places] = ["queue", "timeout"].map(|what| format!("~redisson_lock_{what}"));
            format!("~{name} {queue}:{{{name}}} {places}:{{{name}}}")
        }
        right => checked(kind, right, &name),
    }
}

/// What `fenced/acquire.lua` catches: up to Redis 7.0 such an error does not say which command it was.
const CAUGHT: &str = "+get +incr";

async fn each_right_is_named_by_every_call_that_needs_it(kind: LockKind) {
    let server = TestServer::new();
    let mut wrong = Vec::new();
    let rows = needed_by(kind);
    let with_all = ("no right at all", vec![]);
    for (missing, needed_by) in [&with_all].into_iter().chain(&rows) {
        grant_all_but(&mut server.control(), kind, "");
        let url = format!("redis://locker:SECRET@127.0.0.1:{}", server.port);
        let client = LockClient::builder()
            .command_timeout(ms(400))
            .connect(&url)
            .await
            .expect("permitted");
        teach(&client.lock_of(kind, "lock:warm")).await;
        for call in ["connect"].into_iter().chain(calls(kind)) {
            let said = call_without(missing, call, &server, &client, kind).await;
            let expected = match needed_by.contains(&call) {
                true => named(kind, missing, call),
                false => String::new(),
            };
            let is_caught = said == CAUGHT && CAUGHT.split(' ').any(|right| right == expected);
            if said != expected && !is_caught {
                wrong.push(format!("{call} without {missing} says {said:?}"));
            }
        }
        client.close(ms(0)).await;
    }
    assert!(wrong.is_empty(), "{kind}: {wrong:#?}");
    let tried: Vec<_> = rows.iter().map(|(right, _)| *right).collect();
    let recipe = rights(&recipe(kind));
    assert_eq!(recipe, tried, "every right of the recipe was tried");
    // Tokens stay, and keys of read holds whose release was refused; these have blanks in their names.
    let forget = "for _, key in ipairs(redis.call('keys', ARGV[1])) do redis.call('del', key) end";
    for keys in ["redisson_lock_token:*", "*:rwlock_timeout:*"] {
        server.control().run(&["EVAL", forget, "0", keys]);
    }
    server.finish([]).await;
}

cases! {
    each_right_is_named_by_every_call_that_needs_it;
    fn each_right_of_the_recipe_is_named_by_every_call_that_needs_it(LockKind::Plain);
    fn each_right_of_the_recipe_of_spin_locks_is_named(LockKind::Spin);
    fn each_right_of_the_recipe_of_fenced_locks_is_named(LockKind::Fenced);
    fn each_right_of_the_recipe_of_fair_locks_is_named(LockKind::Fair);
    fn each_right_of_the_recipe_of_read_locks_is_named(LockKind::Read);
    fn each_right_of_the_recipe_of_write_locks_is_named(LockKind::Write);
    fn each_right_of_the_recipe_of_string_locks_is_named(LockKind::String);
}

#[tokio::test]
async fn a_write_with_an_id_names_each_right_of_the_recipe_of_ids() {
    const NOTHING: [&str; 0] = [];
    let server = TestServer::new();
    let mut control = server.control();
    let script = Script::new("return 1").expect("it is whole");
    for kind in KINDS {
        let words = [recipe(kind), besides(OF_IDS)].concat();
        grant(&mut control, &words, "");
        let url = format!("redis://locker:SECRET@127.0.0.1:{}", server.port);
        let client = LockClient::connect(&url).await.expect("permitted");
        let name = format!("lock:{kind}");
        let rights = rights(&besides(OF_IDS));
        for (id, missing) in [""].into_iter().chain(rights).enumerate() {
            let guard = client.lock_of(kind, &name).lock().await.expect("free");
            let key = format!("redisson_lock_once:{{{name}}}:{id}");
            grant(&mut control, &words, missing);
            let write = guard.eval(&script, &NOTHING, &NOTHING);
            let write = write.once(id.to_string(), Duration::from_secs(60)).await;
            let token = match kind {
                LockKind::Fenced => format!(" ~redisson_lock_token:{{{name}}}"),
                _ => String::new(),
            };
            let expected = match missing {
                right if right.starts_with('~') => format!("~{name}{token} ~{key}"),
                right => right.to_owned(),
            };
            assert_eq!(said(&write), expected, "{kind} without {missing:?}");
            let ran = matches!(write, Ok(Once::Ran(_)));
            assert_eq!(ran, missing.is_empty(), "{kind} without {missing:?}");
            assert_eq!(control.run(&["DEL", &key]), i64::from(ran).to_string());
            grant(&mut control, &words, "");
            guard.unlock().await.expect("held");
        }
        client.close(ms(0)).await;
    }
    server.finish([]).await;
}

/// What every server permits whatever its ACL says.
const ALWAYS: [&str; 2] = ["+hello", "+auth"];

/// How `check` has to name a right of the recipe.
fn checked(kind: LockKind, right: &str, name: &str) -> String {
    match right {
        "~redisson_lock_token:{lock:*" => format!("~redisson_lock_token:{{{name}}}"),
        "~redisson_lock_queue:{lock:*" => format!("~redisson_lock_queue:{{{name}}}"),
        "~redisson_lock_timeout:{lock:*" => format!("~redisson_lock_timeout:{{{name}}}"),
        "~{lock:*" => format!("~{{{name}}}:*"),
        "&redisson_rwlock:{lock:*" => format!("&redisson_rwlock:{{{name}}}"),
        right if right.starts_with('~') => format!("~{name}"),
        // Owners of a fair lock have channels of their own.
        right if right.starts_with('&') && kind == LockKind::Fair => {
            format!("&redisson_lock__channel:{{{name}}}:*")
        }
        right if right.starts_with('&') => format!("&redisson_lock__channel:{{{name}}}"),
        right => right.to_owned(),
    }
}

#[tokio::test]
async fn a_check_names_every_missing_right_and_changes_nothing() {
    let server = TestServer::new();
    let mut control = server.control();
    let mut wrong = Vec::new();
    for kind in KINDS {
        let rights = rights(&recipe(kind));
        let missing: Vec<&str> = [""].into_iter().chain(rights).collect();
        for nth in 0..2 * missing.len() {
            let (held, missing) = (nth % 2 == 1, missing[nth / 2]);
            // A name of its own: a channel is listened to for a while.
            let name = format!("lock:{kind}:{nth}");
            grant_all_but(&mut control, kind, "");
            let url = format!("redis://locker:SECRET@127.0.0.1:{}/0", server.port);
            let client = LockClient::connect(&url).await.expect("permitted");
            if held {
                rob(&mut control, kind, &name);
            }
            let before = (holder(&mut control, &name), count(&mut control, &name));
            // A script that the server knows needs no EVAL.
            control.run(&["SCRIPT", "FLUSH"]);
            grant_all_but(&mut control, kind, missing);
            let said = client.lock_of(kind, &name).check().await;
            let said = said.expect("answered");
            let expected = match missing {
                "" => vec![],
                missing if ALWAYS.contains(&missing) => vec![],
                missing => vec![checked(kind, missing, &name)],
            };
            if said != expected {
                wrong.push(format!("{kind} without {missing:?}, held {held}: {said:?}"));
            }
            let after = (holder(&mut control, &name), count(&mut control, &name));
            assert_eq!(after, before, "{kind} without {missing:?}");
            let left = control.number(&["PTTL", &name]);
            assert_eq!(left > 20_000, held, "{kind} without {missing:?}: {left}");
            control.run(&["DEL", &name]);
            grant_all_but(&mut control, kind, "");
            client.close(ms(0)).await;
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    server.finish([]).await;
}

/// Neither is needed for the other's sake: not for a script that the server knows, nor for one that it does not.
#[tokio::test]
async fn a_check_names_both_ways_to_run_a_script_whether_the_server_knows_it_or_not() {
    let server = TestServer::new();
    let mut control = server.control();
    grant_all_but(&mut control, LockKind::Plain, "");
    let url = format!("redis://locker:SECRET@127.0.0.1:{}", server.port);
    let client = LockClient::connect(&url).await.expect("permitted");
    for known in [false, true] {
        for missing in [&["+eval"][..], &["+evalsha"], &["+evalsha", "+eval"]] {
            if known {
                let said = client.check("lock:known").await.expect("answered");
                assert_eq!(said, [""; 0]);
            } else {
                control.run(&["SCRIPT", "FLUSH"]);
            }
            for right in missing {
                let taken = right.replace('+', "-");
                control.run(&["ACL", "SETUSER", "locker", &taken]);
            }
            let said = client.check("lock:known").await.expect("answered");
            assert_eq!(said, missing, "known: {known}");
            grant_all_but(&mut control, LockKind::Plain, "");
        }
    }
    server.finish([client]).await;
}

/// Each set of rights that is taken away, whatever hides behind what: without EVAL no script runs that could look, and
/// without the key no command says that it lacks more.
#[tokio::test]
async fn a_check_names_all_of_the_recipe_that_is_missing_in_one_run() {
    let server = TestServer::new();
    let mut control = server.control();
    grant_all_but(&mut control, LockKind::Plain, "");
    let builder = LockClient::builder().client_name("tested");
    control.run(&["ACL", "SETUSER", "locker", "+client|setname"]);
    let url = format!("redis://locker:SECRET@127.0.0.1:{}/3", server.port);
    let client = builder.connect(&url).await.expect("permitted");
    let all: Vec<&str> = rights(&recipe(LockKind::Plain))
        .into_iter()
        .filter(|word| !ALWAYS.contains(word))
        .chain(["+client|setname"])
        .collect();
    let without = |left: &[&'static str]| {
        let taken = all.iter().filter(|right| !left.contains(right));
        taken.copied().collect::<Vec<_>>()
    };
    let of = |kind: char| {
        all.iter()
            .copied()
            .filter(move |right| right.starts_with(kind))
    };
    let table = [
        vec!["+evalsha", "+eval"],
        vec!["+evalsha", "+eval", "+publish", "+hdel", "+client|kill"],
        vec!["+subscribe", "+unsubscribe", "+ping"],
        vec!["+unsubscribe", "+ping", "&redisson_lock__channel:{lock:*"],
        vec!["+ping", "+select", "+info", "+client|setname", "~lock:*"],
        of('+').collect(),
        // What shows a key and a channel that are not permitted.
        without(&["+hget", "+subscribe"]),
        without(&["+eval", "+subscribe"]),
        without(&["+evalsha", "+subscribe", "+ping"]),
        without(&["+pexpire", "+subscribe", "+unsubscribe"]),
    ];
    for (nth, missing) in table.iter().enumerate() {
        let name = format!("lock:set:{nth}");
        let words = recipe(LockKind::Plain);
        let words = words.into_iter().filter(|word| !missing.contains(word));
        let mut words: Vec<&str> = words.collect();
        words.insert(3, "reset");
        if !missing.contains(&"+client|setname") {
            words.push("+client|setname");
        }
        control.run(&words);
        let mut said = client.check(&name).await.expect("answered");
        let mut expected: Vec<_> = missing
            .iter()
            .map(|right| checked(LockKind::Plain, right, &name))
            .collect();
        said.sort();
        expected.sort();
        assert_eq!(said, expected, "{missing:?}");
    }
    grant_all_but(&mut control, LockKind::Plain, "");
    control.run(&["ACL", "SETUSER", "locker", "+client|setname"]);
    server.finish([client]).await;
}

#[tokio::test]
async fn a_check_that_is_dropped_leaves_no_connection() {
    let server = TestServer::new();
    let client = server.client().await;
    let mut control = server.control();
    for lived in [0, 1, 3, 10, 30] {
        let checking = client.check("lock:dropped");
        let _ = tokio::time::timeout(ms(lived), checking).await;
    }
    server.pause();
    let checking = client.check("lock:dropped");
    let dropped = tokio::time::timeout(ms(50), checking).await;
    assert!(dropped.is_err(), "it has no answer yet");
    server.resume();
    eventually("the others are gone", ms(5_000), || {
        control.connections() == 1
    })
    .await;
    server.finish([client]).await;
}

#[tokio::test]
async fn a_check_names_all_that_is_missing_at_once() {
    let server = TestServer::new();
    let mut control = server.control();
    grant_all_but(&mut control, LockKind::Plain, "");
    let url = format!("redis://locker:SECRET@127.0.0.1:{}", server.port);
    let client = LockClient::connect(&url).await.expect("permitted");
    control.run(&[
        "ACL",
        "SETUSER",
        "locker",
        "-publish",
        "-hdel",
        "resetchannels",
    ]);
    let said = client.check("lock:many").await.expect("answered");
    let channel = "&redisson_lock__channel:{lock:many}";
    assert_eq!(said, ["+hdel", "+publish", channel]);
    grant_all_but(&mut control, LockKind::Plain, "");
    control.run(&[
        "ACL",
        "SETUSER",
        "locker",
        "resetkeys",
        "~other",
        "resetchannels",
    ]);
    let said = client.check("[odd]*").await.expect("answered");
    assert_eq!(
        said,
        [r"~\[odd\]\*", r"&redisson_lock__channel:{\[odd\]\*}"]
    );
    assert!(
        client
            .check("")
            .await
            .is_err_and(|error| matches!(error, Error::InvalidName { .. }))
    );
    client.close(ms(0)).await;
    assert_matches!(client.check("lock:many").await, Err(Error::Closed));
    server.finish([]).await;
}

/// A server may refuse to a script what it grants by itself. The check changes nothing, whatever the lock is.
#[tokio::test]
async fn a_command_that_is_refused_to_scripts_alone_is_named_by_a_check() {
    for kind in KINDS {
        let server = TestServer::new();
        let proxy = Proxy::start(server.port).await;
        let client = LockClient::connect(&proxy.url()).await.expect("connected");
        let lock = client.lock_of(kind, "a");
        let guard = lock.lock().await.expect("free");
        let mut control = server.control();
        let mut state = || {
            let keys = control.run(&["KEYS", "*"]);
            let mut keys: Vec<_> = keys.split_whitespace().map(str::to_owned).collect();
            keys.sort();
            let mut dump = |key: &String| control.run(&["DUMP", key]);
            keys.iter()
                .map(|key| (key.clone(), dump(key)))
                .collect::<Vec<_>>()
        };
        let before = state();
        assert_eq!(lock.check().await.expect("asked"), [""; 0], "{kind}");
        assert_eq!(state(), before, "{kind}");
        proxy.script(|words| {
            // What calls the commands that it is given.
            let is_asked = words[0] == "EVAL" && words[1].contains("pcall(unpack(words))");
            if !is_asked {
                return Scripted::Pass;
            }
            let is_pttl = |nth: &usize| words[*nth] == "PTTL";
            let mut answers = Vec::new();
            let mut at = 4;
            while let Some(count) = words.get(at).and_then(|word| word.parse::<usize>().ok()) {
                answers.push(match is_pttl(&(at + 1)) {
                    true => "'ERR This Redis command is not allowed from script'",
                    false => "''",
                });
                at += count + 1;
            }
            Scripted::Answer(format!("return {{{}}}", answers.join(",")))
        });
        assert_eq!(lock.check().await.expect("asked"), ["+pttl"], "{kind}");
        guard.unlock().await.expect("held");
        client.close(ms(0)).await;
        proxy.stop().await;
        server.control().run(&["FLUSHALL"]);
        server.finish([]).await;
    }
}

/// `rename-command`, as hosted servers have it: not a right, but calls fail in the same way.
#[tokio::test]
async fn a_command_that_the_server_lacks_is_named_by_a_check_and_no_other_program_is_suspected() {
    for command in ["del", "subscribe", "hlen", "time", "publish"] {
        let server = TestServer::with(&["--rename-command", command, ""]);
        let client = server.client().await;
        let missing = client.check("a").await.expect("asked");
        assert_eq!(missing, [format!("+{command}")]);
        client.close(ms(0)).await;
        server.finish([]).await;
    }
    let server = TestServer::with(&["--rename-command", "PUBLISH", ""]);
    let client = server.client().await;
    let lock = client.lock("a").lease(ms(1_000));
    let guard = lock.lock().await.expect("free");
    let error = guard.unlock().await.expect_err("it publishes");
    assert_matches!(error, Error::Refused { .. });
    assert!(error.to_string().contains("lacks a command"), "{error}");
    client.close(ms(0)).await;
    server.finish([]).await;
}

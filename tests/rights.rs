//! Each right of the documented recipe taken away, one at a time: which calls say so, and how they
//! name it.

use redisson_lock::{ConnectionFence, Error, LockClient};
use test_support::{Control, TestServer, eventually, ms, tokio};

/// The words that make the user, as `docs/operations.md` has them.
fn recipe() -> Vec<&'static str> {
    let page = include_str!("../docs/operations.md");
    let recipe = page
        .split("```acl\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .expect("a recipe");
    recipe
        .lines()
        .flat_map(|line| {
            line.split('#')
                .next()
                .unwrap_or_default()
                .split_whitespace()
        })
        .collect()
}

/// Gives the user every right but one.
fn grant_all_but(control: &mut Control, missing: &str) {
    let words = recipe();
    assert_eq!(words[..3], ["ACL", "SETUSER", "locker"]);
    let words = words.iter().filter(|word| **word != missing).copied();
    let words: Vec<&str> = words
        .clone()
        .take(3)
        .chain(["reset"])
        .chain(words.skip(3))
        .collect();
    control.run(&words);
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
const CALLS: [&str; 9] = [
    "lock",
    "lock again",
    "wait",
    "inspect",
    "extend",
    "unlock one",
    "unlock",
    "force_unlock",
    "new server",
];

/// Has the server learn every script, so that no call but the first of a new server sends its text.
async fn teach(client: &LockClient) {
    let lock = client.lock("lock:warm");
    let held = lock.lease(ms(10_000)).lock().await.expect("free");
    held.extend(ms(20_000)).await.expect("held");
    assert!(lock.force_unlock().await.expect("answered"));
    drop(held);
    lock.lock()
        .await
        .expect("free")
        .unlock()
        .await
        .expect("held");
}

/// One call without one right. The state before it is made with all of them.
async fn call_without(
    missing: &str,
    call: &str,
    server: &TestServer,
    client: &LockClient,
) -> String {
    let mut control = server.control();
    let (mut ours, mut other) = (server.control(), server.control());
    let mut take_away = || grant_all_but(&mut ours, missing);
    let mut release_all = || grant_all_but(&mut other, "");
    // A name of its own: a channel is listened to for a while after its last waiter has left.
    let name = format!("lock:{call}");
    let lock = client.lock(&name);
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
            control.run(&["HSET", &name, "java:1", "1"]);
            control.run(&["PEXPIRE", &name, "60000"]);
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
            control.run(&["HSET", &name, "java:1", "1"]);
            control.run(&["PEXPIRE", &name, "60000"]);
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

/// Which calls need which right. Those that no call needs are for other versions of the server, or
/// not looked at by it.
const NEEDED_BY: [(&str, &[&str]); 26] = [
    ("+evalsha", &CALLS),
    ("+eval", &["new server"]),
    (
        "+hget",
        &[
            "lock",
            "lock again",
            "wait",
            "inspect",
            "unlock one",
            "unlock",
            "force_unlock",
            "new server",
        ],
    ),
    (
        "+hincrby",
        &["lock", "lock again", "unlock one", "new server"],
    ),
    // Without it nothing is handed over: `tests/handoff.rs`.
    ("+hdel", &[]),
    ("+hlen", &["wait", "inspect", "force_unlock"]),
    ("+hkeys", &["wait", "inspect", "force_unlock"]),
    ("+hexists", &["extend", "force_unlock"]),
    ("+exists", &["lock", "wait", "new server"]),
    (
        "+pttl",
        &[
            "lock again",
            "wait",
            "inspect",
            "extend",
            "unlock one",
            "force_unlock",
        ],
    ),
    (
        "+pexpire",
        &["lock", "lock again", "extend", "unlock one", "new server"],
    ),
    ("+del", &["unlock", "force_unlock"]),
    ("+publish", &["unlock", "force_unlock"]),
    // Without it a forced unlock has no limit: `tests/outcomes.rs`.
    ("+time", &[]),
    ("+subscribe", &["wait"]),
    ("+unsubscribe", &[]),
    ("+ping", &["wait"]),
    ("+client|id", &[]),
    ("+client|info", &["connect"]),
    ("+client|kill", &["connect"]),
    ("+hello", &[]),
    ("+auth", &[]),
    ("+select", &["connect"]),
    ("+info", &[]),
    ("~lock:*", &CALLS),
    (
        "&redisson_lock__channel:{lock:*",
        &["wait", "unlock", "force_unlock"],
    ),
];

/// What is said without a right: as ACL writes it, for this lock alone, and nothing else. The fence says it by its
/// state.
fn named(right: &str, call: &str) -> String {
    match right {
        "+client|info" | "+client|kill" => "NotPermitted".to_owned(),
        // A rule has no blanks.
        right => checked(right, &format!("lock:{call}").replace(' ', "?")),
    }
}

#[tokio::test]
async fn each_right_of_the_recipe_is_named_by_every_call_that_needs_it() {
    let server = TestServer::new();
    let rights: Vec<_> = recipe()
        .into_iter()
        .filter(|word| word.starts_with(['+', '~', '&']))
        .collect();
    let mut wrong = Vec::new();
    let with_all = ("no right at all", &[][..]);
    for (missing, needed_by) in std::iter::once(with_all).chain(NEEDED_BY) {
        grant_all_but(&mut server.control(), "");
        let url = format!("redis://locker:SECRET@127.0.0.1:{}", server.port);
        let client = LockClient::builder()
            .command_timeout(ms(400))
            .connect(&url)
            .await
            .expect("permitted");
        teach(&client).await;
        for call in ["connect"].into_iter().chain(CALLS) {
            let said = call_without(missing, call, &server, &client).await;
            let expected = match needed_by.contains(&call) {
                true => named(missing, call),
                false => String::new(),
            };
            if said != expected {
                wrong.push(format!("{call} without {missing} says {said:?}"));
            }
        }
        client.close(ms(0)).await;
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(
        rights,
        NEEDED_BY.map(|(right, _)| right),
        "every right of the recipe was tried"
    );
    server.finish([]).await;
}

/// What every server permits whatever its ACL says.
const ALWAYS: [&str; 2] = ["+hello", "+auth"];

/// How `check` has to name a right of the recipe.
fn checked(right: &str, name: &str) -> String {
    match right {
        right if right.starts_with('~') => format!("~{name}"),
        right if right.starts_with('&') => format!("&redisson_lock__channel:{{{name}}}"),
        right => right.to_owned(),
    }
}

#[tokio::test]
async fn a_check_names_every_missing_right_and_changes_nothing() {
    let server = TestServer::new();
    let mut control = server.control();
    let rights = recipe();
    let rights: Vec<_> = rights
        .iter()
        .filter(|word| word.starts_with(['+', '~', '&']))
        .collect();
    let mut wrong = Vec::new();
    for held in [false, true] {
        for (nth, missing) in [&""].into_iter().chain(rights.iter().copied()).enumerate() {
            // A name of its own: a channel is listened to for a while.
            let name = format!("lock:check:{held}:{nth}");
            grant_all_but(&mut server.control(), "");
            let url = format!("redis://locker:SECRET@127.0.0.1:{}/0", server.port);
            let client = LockClient::connect(&url).await.expect("permitted");
            if held {
                control.run(&["HSET", &name, "java:1", "1"]);
                control.run(&["PEXPIRE", &name, "60000"]);
            }
            // A script that the server knows needs no EVAL.
            control.run(&["SCRIPT", "FLUSH"]);
            grant_all_but(&mut server.control(), missing);
            let said = client.check(&name).await.expect("answered");
            let expected = match *missing {
                "" => vec![],
                missing if ALWAYS.contains(&missing) => vec![],
                missing => vec![checked(missing, &name)],
            };
            if said != expected {
                wrong.push(format!("without {missing:?}, held {held}: {said:?}"));
            }
            let expected = if held { "java:1 1" } else { "" };
            assert_eq!(control.hash(&name), expected, "{missing}");
            let left = control.number(&["PTTL", &name]);
            assert_eq!(left > 50_000, held, "{missing}: {left}");
            control.run(&["DEL", &name]);
            grant_all_but(&mut server.control(), "");
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
    grant_all_but(&mut control, "");
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
            grant_all_but(&mut control, "");
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
    grant_all_but(&mut control, "");
    let builder = LockClient::builder().client_name("tested");
    control.run(&["ACL", "SETUSER", "locker", "+client|setname"]);
    let url = format!("redis://locker:SECRET@127.0.0.1:{}/3", server.port);
    let client = builder.connect(&url).await.expect("permitted");
    let all: Vec<&str> = recipe()
        .into_iter()
        .filter(|word| word.starts_with(['+', '~', '&']) && !ALWAYS.contains(word))
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
        vec![
            "+ping",
            "+select",
            "+info",
            "+client|id",
            "+client|setname",
            "~lock:*",
        ],
        of('+').collect(),
        // What shows a key and a channel that are not permitted.
        without(&["+hget", "+subscribe"]),
        without(&["+eval", "+subscribe"]),
        without(&["+evalsha", "+subscribe", "+ping"]),
        without(&["+pexpire", "+subscribe", "+unsubscribe"]),
    ];
    for (nth, missing) in table.iter().enumerate() {
        let name = format!("lock:set:{nth}");
        let words = recipe();
        let words = words.into_iter().filter(|word| !missing.contains(word));
        let mut words: Vec<&str> = words.collect();
        words.insert(3, "reset");
        if !missing.contains(&"+client|setname") {
            words.push("+client|setname");
        }
        control.run(&words);
        let mut said = client.check(&name).await.expect("answered");
        let mut expected: Vec<_> = missing.iter().map(|right| checked(right, &name)).collect();
        said.sort();
        expected.sort();
        assert_eq!(said, expected, "{missing:?}");
    }
    grant_all_but(&mut control, "");
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
    // One for commands, one for channels.
    eventually("the others are gone", ms(5_000), || {
        control.connections() == 2
    })
    .await;
    server.finish([client]).await;
}

#[tokio::test]
async fn a_check_names_all_that_is_missing_at_once() {
    let server = TestServer::new();
    let mut control = server.control();
    grant_all_but(&mut control, "");
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
    grant_all_but(&mut control, "");
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
    assert!(matches!(
        client.check("lock:many").await,
        Err(Error::Closed)
    ));
    server.finish([]).await;
}

//! The Lua files of string locks, each alone on a real server: the table of states, every row also with the script
//! sent twice and with another party between the copies, and every right that a script needs taken away. And of every
//! kind: random calls, once against twice.

use redisson_lock::LockKind;
use test_support::kinds::{HANDED_OVER, STRING, Scripts, scripts, token_key};
use test_support::{Control, Rolls, Server, test};

/// What stands under the key before a script runs.
#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Absent,
    /// Our value with 20 s left.
    Ours,
    /// Another value with 20 s left.
    Theirs,
    /// Another value, and no expiry.
    Endless,
    /// A lock of another kind with 20 s left.
    Hash,
}

const STATES: [State; 5] = [
    State::Absent,
    State::Ours,
    State::Theirs,
    State::Endless,
    State::Hash,
];

impl State {
    fn set(self, control: &mut Control) {
        control.run(&["DEL", "k"]);
        match self {
            Self::Absent => return,
            Self::Ours => control.run(&["SET", "k", "me:1", "PX", "20000"]),
            Self::Theirs => control.run(&["SET", "k", "you:1", "PX", "20000"]),
            Self::Endless => control.run(&["SET", "k", "you:1"]),
            Self::Hash => {
                control.run(&["HSET", "k", "me:1", "1"]);
                control.run(&["PEXPIRE", "k", "20000"])
            }
        };
    }
}

/// The value or another type, and the lease rounded to seconds; "" if there is no key.
fn seen(control: &mut Control) -> String {
    let seconds = (control.pttl("k") + 999) / 1000;
    match control.run(&["TYPE", "k"]).as_str() {
        "none" => String::new(),
        "string" => format!("{} {seconds}", control.run(&["GET", "k"])),
        other => format!("{other} {seconds}"),
    }
}

const WRONG_TYPE: &str = "WRONGTYPE";

/// A script, and its ARGV.
struct Call(&'static str, Vec<&'static str>);

fn run(control: &mut Control, call: &Call) -> String {
    let words = ["EVAL", call.0, "1", "k"].into_iter();
    let words: Vec<&str> = words.chain(call.1.iter().copied()).collect();
    let answer = match control.try_run(&words).map_err(|error| error.to_string()) {
        Ok(answer) => answer,
        Err(error) if error.contains(WRONG_TYPE) => WRONG_TYPE.to_owned(),
        Err(error) => format!("error: {error}"),
    };
    match answer.split_once(' ') {
        // Milliseconds that are left, after some have passed.
        Some((left, holder)) if left.starts_with("19") => format!("20000 {holder}"),
        _ => answer,
    }
}

/// Runs a call in each state, twice: state, first answer, second answer, state after both.
fn rows(call: &Call, table: [(State, &str, &str, &str); 5]) {
    let server = Server::start();
    let control = &mut server.control();
    assert_eq!(table.map(|row| row.0), STATES);
    for (state, first, second, after) in table {
        state.set(control);
        assert_eq!(run(control, call), first, "{state:?}");
        let once = seen(control);
        assert_eq!(run(control, call), second, "{state:?} again");
        assert_eq!(seen(control), after, "{state:?}");
        assert_eq!(once, after, "{state:?}: the second copy changed something");
    }
}

#[test]
fn acquire_of_a_string_takes_a_free_key_and_raises_its_own_lease() {
    use State::{Absent, Endless, Hash, Ours, Theirs};
    rows(
        &Call(STRING.acquire, vec!["me:1", "1", "5000"]),
        [
            (Absent, "1", "1", "me:1 5"),
            (Ours, "1", "1", "me:1 20"),
            (Theirs, "20000 you:1", "20000 you:1", "you:1 20"),
            (Endless, "-1 you:1", "-1 you:1", "you:1 0"),
            (Hash, WRONG_TYPE, WRONG_TYPE, "hash 20"),
        ],
    );
    rows(
        &Call(STRING.acquire, vec!["me:1", "2", "30000"]),
        [
            (Absent, "0", "0", ""),
            (Ours, "1", "1", "me:1 30"),
            (Theirs, "0", "0", "you:1 20"),
            (Endless, "0", "0", "you:1 0"),
            (Hash, WRONG_TYPE, WRONG_TYPE, "hash 20"),
        ],
    );
}

#[test]
fn release_of_a_string_deletes_its_own_value_alone() {
    use State::{Absent, Endless, Hash, Ours, Theirs};
    rows(
        &Call(STRING.release, vec!["me:1", "0", "1000"]),
        [
            (Absent, "0", "0", ""),
            (Ours, "1", "0", ""),
            (Theirs, "-1", "-1", "you:1 20"),
            (Endless, "-1", "-1", "you:1 0"),
            (Hash, WRONG_TYPE, WRONG_TYPE, "hash 20"),
        ],
    );
    for (lease, kept) in [("30000", "me:1 30"), ("5000", "me:1 20")] {
        rows(
            &Call(STRING.release, vec!["me:1", "1", lease]),
            [
                (Absent, "0", "0", ""),
                (Ours, "1", "1", kept),
                (Theirs, "-1", "-1", "you:1 20"),
                (Endless, "-1", "-1", "you:1 0"),
                (Hash, WRONG_TYPE, WRONG_TYPE, "hash 20"),
            ],
        );
    }
}

#[test]
fn pass_of_a_string_replaces_its_own_value_alone() {
    use State::{Absent, Endless, Hash, Ours, Theirs};
    rows(
        &Call(STRING.pass, vec!["me:1", "me:2", "5000"]),
        [
            (Absent, "0", "0", ""),
            (Ours, "1", "1", "me:2 5"),
            (Theirs, "-1", "-1", "you:1 20"),
            (Endless, "-1", "-1", "you:1 0"),
            (Hash, WRONG_TYPE, WRONG_TYPE, "hash 20"),
        ],
    );
}

#[test]
fn renew_of_a_string_extends_its_own_value_and_says_what_became_of_it() {
    use State::{Absent, Endless, Hash, Ours, Theirs};
    for (lease, seconds) in [("30000", 30), ("5000", 20), ("0", 20)] {
        rows(
            &Call(STRING.renew, vec!["me:1", lease]),
            [
                (Absent, "0", "0", ""),
                (Ours, "1", "1", &format!("me:1 {seconds}")),
                (Theirs, "-1", "-1", "you:1 20"),
                (Endless, "-1", "-1", "you:1 0"),
                (Hash, "-2", "-2", "hash 20"),
            ],
        );
    }
}

/// What stands under these keys: ours, theirs, a hash, and nothing.
fn four_keys(control: &mut Control) {
    control.run(&["SET", "ours", "me:1", "PX", "20000"]);
    control.run(&["SET", "theirs", "you:1", "PX", "20000"]);
    control.run(&["HSET", "hash", "me:1", "1"]);
    control.run(&["PEXPIRE", "hash", "20000"]);
}

#[test]
fn renew_of_strings_goes_through_all_of_them_whatever_stands_before() {
    let server = Server::start();
    let control = &mut server.control();
    four_keys(control);
    let keys = ["EVAL", STRING.renew, "4", "hash", "none", "theirs", "ours"];
    let words = [&keys[..], &["me:1", "30000"].repeat(4)].concat();
    for copy in 1..=2 {
        assert_eq!(control.run(&words), "-2 0 -1 1", "copy {copy}");
        let extended = ["hash", "theirs", "ours"].map(|key| control.pttl(key) > 20_000);
        assert_eq!(extended, [false, false, true], "copy {copy}");
        assert_eq!(control.run(&["EXISTS", "none"]), "0", "copy {copy}");
    }
}

#[test]
fn force_unlock_of_a_string_deletes_the_named_value_until_its_limit() {
    use State::{Absent, Endless, Hash, Ours, Theirs};
    for limit in ["0", "99999999999999"] {
        rows(
            &Call(STRING.force_unlock, vec!["you:1", limit]),
            [
                (Absent, "0", "0", ""),
                (Ours, "0", "0", "me:1 20"),
                (Theirs, "1", "0", ""),
                (Endless, "1", "0", ""),
                (Hash, WRONG_TYPE, WRONG_TYPE, "hash 20"),
            ],
        );
    }
    rows(
        &Call(STRING.force_unlock, vec!["you:1", "1"]),
        [
            (Absent, "-1", "-1", ""),
            (Ours, "-1", "-1", "me:1 20"),
            (Theirs, "-1", "-1", "you:1 20"),
            (Endless, "-1", "-1", "you:1 0"),
            (Hash, "-1", "-1", "hash 20"),
        ],
    );
}

#[test]
fn inspect_of_a_string_shows_its_value() {
    use State::{Absent, Endless, Hash, Ours, Theirs};
    rows(
        &Call(STRING.inspect, vec![]),
        [
            (Absent, "(nil)", "(nil)", ""),
            (Ours, "20000 me:1 1 -1", "20000 me:1 1 -1", "me:1 20"),
            (Theirs, "20000 you:1 1 -1", "20000 you:1 1 -1", "you:1 20"),
            (Endless, "-1 you:1 1 -1", "-1 you:1 1 -1", "you:1 0"),
            (Hash, WRONG_TYPE, WRONG_TYPE, "hash 20"),
        ],
    );
    let server = Server::start();
    let control = &mut server.control();
    State::Ours.set(control);
    let seconds = |control: &mut Control| {
        let time = control.run(&["TIME"]);
        let seconds = time.split(' ').next().expect("two numbers");
        seconds.parse::<u64>().expect("a number")
    };
    let call = Call(STRING.inspect, vec!["time"]);
    let before = seconds(control);
    let shown = run(control, &call);
    let after = seconds(control);
    let clock = shown.strip_prefix("20000 me:1 1 ").expect("held");
    let clock: u64 = clock.parse().expect("milliseconds");
    assert!((before..=after).contains(&(clock / 1000)), "{clock}");
    // It is no right that a look needs.
    control.run(&["ACL", "SETUSER", "default", "-time"]);
    assert_eq!(run(control, &call), "20000 me:1 1 -1");
}

/// An empty value, and one that is too long to be shown, with bytes that no text has.
#[test]
fn a_value_of_any_bytes_is_compared_as_a_whole_and_shown_in_part() {
    let server = Server::start();
    let control = &mut server.control();
    let long = [&b"\xff\0\r\n"[..], &[b'x'; 300]].concat();
    for value in [&b""[..], &long] {
        let mut call = |script: &str, args: &[&[u8]]| {
            let mut command = redis::cmd("EVAL");
            command.arg(script).arg(1).arg("k").arg(args);
            let answer = command.query::<redis::Value>(&mut control.connection);
            answer.expect("answered")
        };
        let bytes = |bytes: &[u8]| redis::Value::BulkString(bytes.to_vec());
        call("return redis.call('set', KEYS[1], ARGV[1])", &[value]);
        let second = |answer: redis::Value| match answer {
            redis::Value::Array(items) => items[1].clone(),
            other => panic!("{other:?}"),
        };
        let busy = call(STRING.acquire, &[b"me:1", b"1", b"5000"]);
        assert_eq!(second(busy), bytes(&value[..value.len().min(200)]));
        let inspected = call(STRING.inspect, &[]);
        assert_eq!(second(inspected), bytes(value));
        for other in [
            &[value, b"x"].concat()[..],
            &value[..value.len() / 2],
            b"\xff",
        ] {
            if other != value {
                let forced = call(STRING.force_unlock, &[other, b"0"]);
                assert_eq!(forced, redis::Value::Int(0), "{other:?}");
            }
        }
        let forced = call(STRING.force_unlock, &[value, b"0"]);
        assert_eq!(forced, redis::Value::Int(1));
    }
}

/// Each of these leaves all as it was; only one of ours is written.
#[test]
fn touch_of_a_string_writes_its_own_value_as_it_is() {
    use State::{Absent, Endless, Hash, Ours, Theirs};
    rows(
        &Call(STRING.touch, vec!["me:1"]),
        [
            (Absent, "0", "0", ""),
            (Ours, "1", "1", "me:1 20"),
            (Theirs, "0", "0", "you:1 20"),
            (Endless, "0", "0", "you:1 0"),
            (Hash, WRONG_TYPE, WRONG_TYPE, "hash 20"),
        ],
    );
    let server = Server::start();
    let control = &mut server.control();
    four_keys(control);
    for (keys, answer) in [
        (["none", "theirs"], "0"),
        (["theirs", "ours"], "1"),
        (["ours", "none"], "1"),
    ] {
        let before = control.calls("set");
        let words = [
            &["EVAL", STRING.touch, "2"][..],
            &keys[..],
            &["me:1", "me:1"],
        ]
        .concat();
        assert_eq!(control.run(&words), answer, "{keys:?}");
        let written = control.calls("set") - before;
        assert_eq!(written.to_string(), answer, "{keys:?}");
        assert_eq!(control.run(&["GET", "ours"]), "me:1");
        assert!((1..=20_000).contains(&control.pttl("ours")));
    }
}

#[test]
fn each_refused_right_leaves_a_string_as_it_was_or_complete() {
    let server = Server::start();
    let control = &mut server.control();
    let calls = [
        Call(STRING.acquire, vec!["me:1", "1", "30000"]),
        Call(STRING.release, vec!["me:1", "0", "1000"]),
        Call(STRING.release, vec!["me:1", "1", "30000"]),
        Call(STRING.pass, vec!["me:1", "me:2", "5000"]),
        Call(STRING.renew, vec!["me:1", "30000"]),
        Call(STRING.force_unlock, vec!["me:1", "0"]),
        Call(STRING.force_unlock, vec!["me:1", "99999999999999"]),
        Call(STRING.touch, vec!["me:1"]),
    ];
    for right in ["get", "set", "pttl", "pexpire", "del", "time"] {
        let mut refused = 0;
        for state in STATES {
            for call in &calls {
                state.set(control);
                let before = seen(control);
                let complete = {
                    run(control, call);
                    let after = seen(control);
                    state.set(control);
                    after
                };
                control.run(&["ACL", "SETUSER", "default", &format!("-{right}")]);
                let answer = run(control, call);
                control.run(&["ACL", "SETUSER", "default", &format!("+{right}")]);
                let after = seen(control);
                let failed = answer.starts_with("error");
                refused += usize::from(failed);
                let what = format!("-{right} {state:?} {}", call.0);
                assert!(
                    after == before || after == complete,
                    "{what}: {before} -> {after}"
                );
                assert!(failed || after == complete, "{what}: a false yes, {after}");
            }
        }
        assert!(refused > 0, "-{right}: nothing was refused");
    }
}

/// A copy that comes after another party has been there takes nothing from it.
#[test]
fn another_party_between_two_copies_keeps_what_it_has() {
    use State::{Absent, Ours, Theirs};
    let acquire = Call(STRING.acquire, vec!["me:1", "1", "5000"]);
    let release = Call(STRING.release, vec!["me:1", "0", "1000"]);
    let stays = Call(STRING.release, vec!["me:1", "1", "30000"]);
    let pass = Call(STRING.pass, vec!["me:1", "me:2", "5000"]);
    let renew = Call(STRING.renew, vec!["me:1", "30000"]);
    let force = Call(STRING.force_unlock, vec!["me:1", "0"]);
    // call, state, first answer, what stands there when the copy comes, second answer, state after both
    let table = [
        (&acquire, Absent, "1", Theirs, "20000 you:1", "you:1 20"),
        (&acquire, Absent, "1", Absent, "1", "me:1 5"),
        (&acquire, Theirs, "20000 you:1", Absent, "1", "me:1 5"),
        (&release, Ours, "1", Theirs, "-1", "you:1 20"),
        (&release, Theirs, "-1", Absent, "0", ""),
        (&stays, Ours, "1", Theirs, "-1", "you:1 20"),
        (&stays, Ours, "1", Absent, "0", ""),
        (&pass, Ours, "1", Theirs, "-1", "you:1 20"),
        (&pass, Ours, "1", Absent, "0", ""),
        (&pass, Theirs, "-1", Absent, "0", ""),
        (&renew, Ours, "1", Theirs, "-1", "you:1 20"),
        (&renew, Ours, "1", Absent, "0", ""),
        (&renew, Theirs, "-1", Absent, "0", ""),
        (&force, Ours, "1", Theirs, "0", "you:1 20"),
        (&force, Theirs, "0", Absent, "0", ""),
    ];
    let server = Server::start();
    let control = &mut server.control();
    for (call, state, first, between, second, after) in table {
        let what = format!("{state:?}, then {between:?}: {}", call.0);
        state.set(control);
        assert_eq!(run(control, call), first, "{what}");
        between.set(control);
        assert_eq!(run(control, call), second, "{what}");
        assert_eq!(seen(control), after, "{what}");
    }
}

/// What stands under a lock and its token: type, fields or value, lease, token, and the expiry of that.
const LOOK: &str = "\
local kind = redis.call('type', KEYS[1]).ok
local held = kind == 'hash' and table.concat(redis.call('hgetall', KEYS[1]), ' ') or redis.call('get', KEYS[1])
return {kind, held, redis.call('pttl', KEYS[1]), redis.call('get', KEYS[2]), redis.call('pttl', KEYS[2])}";

const COUNTS: [&str; 4] = ["0", "1", "2", "3"];

/// A random call: its script, and whether it names the token's key; or no script, for a lease that ends.
fn roll(rolls: &mut Rolls, kind: LockKind) -> (Option<&'static str>, bool, Vec<&'static str>) {
    let Scripts {
        acquire,
        release,
        pass,
        renew,
        force_unlock: force,
        ..
    } = scripts(kind);
    let owner = rolls.of(&["me:1", "me:2", "you:1"]);
    // Far apart from each other: the moments between two calls do not matter.
    let lease = rolls.of(&["100000", "200000", "300000", "400000"]);
    let (counts, channel, has_token) = match kind {
        LockKind::Plain => (4, "c", false),
        LockKind::Spin => (4, "", false),
        LockKind::Fenced => (4, "c", true),
        LockKind::String => (2, "c", false),
        _ => unreachable!("a kind without random calls: {kind}"),
    };
    let targets = &COUNTS[..counts];
    match rolls.below(12) {
        0..=3 => {
            let target = rolls.of(&targets[1..]);
            (Some(acquire), has_token, vec![owner, target, lease])
        }
        4..=6 => {
            let target = rolls.of(targets);
            (Some(release), false, vec![owner, target, lease, channel])
        }
        7..=8 => {
            let to = if owner == "me:1" { "me:2" } else { "me:1" };
            (Some(pass), has_token, vec![owner, to, lease, channel])
        }
        9 => (Some(renew), false, vec![owner, lease]),
        10 => (Some(force), false, vec![owner, "0", channel]),
        _ => (None, false, Vec::new()),
    }
}

/// An answer or a state, with times rounded up to the hundred seconds of which they are what is left.
fn rounded(value: &redis::Value) -> String {
    match value {
        redis::Value::Int(left @ 1_000..) => format!("{}", (left + 99_999) / 100_000 * 100_000),
        redis::Value::Array(items) => {
            let items: Vec<String> = items.iter().map(rounded).collect();
            items.join(" ")
        }
        other => format!("{other:?}"),
    }
}

/// One world in which each call is sent once, and one in which it is sent twice: what the first copies answer and what
/// they leave is the same.
#[test]
fn of_twenty_thousand_random_calls_of_each_kind_a_second_copy_changes_nothing() {
    const CALLS: usize = 20_000;
    const AT_ONCE: usize = 100;
    let server = Server::start();
    let mut control = server.control();
    // Those of fair locks are in `fair_scripts.rs`.
    for kind in HANDED_OVER {
        let mut rolls = Rolls(0x9E37_79B9_7F4A_7C15 + kind as u64);
        let (mut taken, mut last_token) = (0, 0);
        for batch in 0..CALLS / AT_ONCE {
            let mut pipe = redis::pipe();
            let mut calls = Vec::new();
            for _ in 0..AT_ONCE {
                let (script, has_token, args) = roll(&mut rolls, kind);
                for (key, copies) in [("once", 1), ("twice", 2)] {
                    let keys = [key.to_owned(), token_key(key)];
                    for _ in 0..copies {
                        match script {
                            Some(script) => {
                                let named = 1 + usize::from(has_token);
                                let call = pipe.cmd("EVAL").arg(script).arg(named);
                                call.arg(&keys[..named]).arg(&args)
                            }
                            None => pipe.cmd("DEL").arg(key),
                        };
                    }
                    pipe.cmd("EVAL").arg(LOOK).arg(2).arg(&keys);
                }
                calls.push((script.map(|it| it.lines().next()), args));
            }
            let answers: Vec<redis::Value> = pipe
                .query(&mut control.connection)
                .expect("every call is answered");
            for (nth, answers) in answers.chunks(5).enumerate() {
                let what = format!("{kind}, call {nth} of batch {batch}: {:?}", calls[nth]);
                let [once, state, first, _, after_both] = answers else {
                    panic!("{what}: {answers:?}")
                };
                assert_eq!(rounded(once), rounded(first), "{what}");
                assert_eq!(rounded(state), rounded(after_both), "{what}");
                let redis::Value::Array(seen) = state else {
                    panic!("{what}: {state:?}")
                };
                let [_, held, left, token, token_left] = &seen[..] else {
                    panic!("{what}: {seen:?}")
                };
                if let redis::Value::BulkString(held) = held {
                    taken += 1;
                    let fields = String::from_utf8_lossy(held).split(' ').count();
                    assert!(fields <= 2, "{what}: two holders");
                    assert!(matches!(left, redis::Value::Int(1..)), "{what}: no lease");
                }
                if let redis::Value::BulkString(token) = token {
                    let token = String::from_utf8_lossy(token).parse().expect("a number");
                    assert!(
                        (last_token..=last_token + 1).contains(&token),
                        "{what}: {token}"
                    );
                    last_token = token;
                    assert_eq!(token_left, &redis::Value::Int(-1), "{what}");
                }
            }
        }
        assert!(taken > CALLS / 4, "{kind}: held after {taken} calls");
        assert_eq!(last_token > 1_000, kind == LockKind::Fenced, "{last_token}");
        control.run(&["FLUSHALL"]);
    }
}

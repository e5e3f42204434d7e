//! The Lua files of string locks, each alone on a real server: the table of states, every row also with the script
//! sent twice and with another party between the copies, and every right that a script needs taken away. And of every
//! kind: random calls, once against twice.

use redisson_lock::LockKind;
use test_support::contract::{
    Call, Contract, RANDOM_CALLS, RandomCalls, clock, eval, items, lease, lines, rounded,
};
use test_support::kinds::{HANDED_OVER, STRING, Scripts, scripts, token_key};
use test_support::{Control, Rolls, Server, test};

/// No lock, ours, another owner's, one without an expiry, and a lock of another kind.
const STATES: [&str; 5] = ["", "me:1 20", "you:1 20", "you:1 -1", "hash 20"];

/// Makes the state that [`seen`] shows.
fn set(control: &mut Control, state: &str) {
    control.run(&["DEL", "k"]);
    match state.split_once(' ') {
        None => {}
        Some(("hash", _)) => {
            control.run(&["HSET", "k", "me:1", "1"]);
            control.run(&["PEXPIRE", "k", "200000"]);
        }
        Some((value, "-1")) => {
            control.run(&["SET", "k", value]);
        }
        Some((value, left)) => {
            control.run(&["SET", "k", value, "PX", &format!("{left}0000")]);
        }
    }
}

/// The value or another type, and the units left of the lease; "" if there is no key.
fn seen(control: &mut Control) -> String {
    let left = lease(control.pttl("k"));
    match control.run(&["TYPE", "k"]).as_str() {
        "none" => String::new(),
        "string" => format!("{} {left}", control.run(&["GET", "k"])),
        other => format!("{other} {left}"),
    }
}

const WRONG_TYPE: &str = "WRONGTYPE";

fn run(control: &mut Control, call: Call<'_>) -> String {
    match eval(control, call, &["k"]) {
        answer if answer.contains(WRONG_TYPE) => WRONG_TYPE.to_owned(),
        answer => answer,
    }
}

/// Makes a call twice in each of [`STATES`], of which each has its line.
fn rows(call: Call<'_>, table: &str) {
    let states = lines(table).map(|row| row[0]);
    assert!(states.eq(STATES), "{table}");
    CONTRACT.rows(call, table);
}

#[test]
fn acquire_of_a_string_takes_a_free_key_and_raises_its_own_lease() {
    rows(
        Call(STRING.acquire, &["me:1", "1", "50000"]),
        "
                 | 1         | me:1 5
        me:1 20  | 1         | =
        you:1 20 | 20 you:1  | =
        you:1 -1 | -1 you:1  | =
        hash 20  | WRONGTYPE | =
        ",
    );
    rows(
        Call(STRING.acquire, &["me:1", "2", "300000"]),
        "
                 | 0         | =
        me:1 20  | 1         | me:1 30
        you:1 20 | 0         | =
        you:1 -1 | 0         | =
        hash 20  | WRONGTYPE | =
        ",
    );
}

#[test]
fn release_of_a_string_deletes_its_own_value_alone() {
    rows(
        Call(STRING.release, &["me:1", "0", "10000"]),
        "
                 | 0         | 0         | =
        me:1 20  | 1         | 0         |
        you:1 20 | -1        | -1        | =
        you:1 -1 | -1        | -1        | =
        hash 20  | WRONGTYPE | WRONGTYPE | =
        ",
    );
    for (lease, kept) in [("300000", "me:1 30"), ("50000", "=")] {
        rows(
            Call(STRING.release, &["me:1", "1", lease]),
            &format!(
                "
                 | 0         | =
        me:1 20  | 1         | {kept}
        you:1 20 | -1        | =
        you:1 -1 | -1        | =
        hash 20  | WRONGTYPE | =
        "
            ),
        );
    }
}

#[test]
fn pass_of_a_string_replaces_its_own_value_alone() {
    rows(
        Call(STRING.pass, &["me:1", "me:2", "50000"]),
        "
                 | 0         | =
        me:1 20  | 1         | me:2 5
        you:1 20 | -1        | =
        you:1 -1 | -1        | =
        hash 20  | WRONGTYPE | =
        ",
    );
}

#[test]
fn renew_of_a_string_extends_its_own_value_and_says_what_became_of_it() {
    for (lease, kept) in [("300000", "me:1 30"), ("50000", "="), ("0", "=")] {
        rows(
            Call(STRING.renew, &["me:1", lease]),
            &format!(
                "
                 | 0  | =
        me:1 20  | 1  | {kept}
        you:1 20 | -1 | =
        you:1 -1 | -1 | =
        hash 20  | -2 | =
        "
            ),
        );
    }
}

/// What stands under these keys: ours, theirs, a hash, and nothing.
fn four_keys(control: &mut Control) {
    control.run(&["SET", "ours", "me:1", "PX", "200000"]);
    control.run(&["SET", "theirs", "you:1", "PX", "200000"]);
    control.run(&["HSET", "hash", "me:1", "1"]);
    control.run(&["PEXPIRE", "hash", "200000"]);
}

#[test]
fn renew_of_strings_goes_through_all_of_them_whatever_stands_before() {
    let server = Server::start();
    let control = &mut server.control();
    four_keys(control);
    let keys = ["EVAL", STRING.renew, "4", "hash", "none", "theirs", "ours"];
    let words = [&keys[..], &["me:1", "300000"].repeat(4)].concat();
    for copy in 1..=2 {
        assert_eq!(control.run(&words), "-2 0 -1 1", "copy {copy}");
        let extended = ["hash", "theirs", "ours"].map(|key| control.pttl(key) > 200_000);
        assert_eq!(extended, [false, false, true], "copy {copy}");
        assert_eq!(control.run(&["EXISTS", "none"]), "0", "copy {copy}");
    }
}

#[test]
fn force_unlock_of_a_string_deletes_the_named_value_until_its_limit() {
    for limit in ["0", "99999999999999"] {
        rows(
            Call(STRING.force_unlock, &["you:1", limit]),
            "
                 | 0         | 0         | =
        me:1 20  | 0         | 0         | =
        you:1 20 | 1         | 0         |
        you:1 -1 | 1         | 0         |
        hash 20  | WRONGTYPE | WRONGTYPE | =
        ",
        );
    }
    rows(
        Call(STRING.force_unlock, &["you:1", "1"]),
        "
                 | -1 | =
        me:1 20  | -1 | =
        you:1 20 | -1 | =
        you:1 -1 | -1 | =
        hash 20  | -1 | =
        ",
    );
}

#[test]
fn inspect_of_a_string_shows_its_value() {
    rows(
        Call(STRING.inspect, &[]),
        "
                 | nil           | =
        me:1 20  | 20 me:1 1 -1  | =
        you:1 20 | 20 you:1 1 -1 | =
        you:1 -1 | -1 you:1 1 -1 | =
        hash 20  | WRONGTYPE     | =
        ",
    );
    let server = Server::start();
    let control = &mut server.control();
    set(control, "me:1 20");
    let before = clock(control);
    let shown = control.run(&["EVAL", STRING.inspect, "1", "k", "time"]);
    let after = clock(control);
    let shown = shown.split_once(" me:1 1 ").expect("held").1;
    let shown: i64 = shown.parse().expect("milliseconds");
    assert!((before..=after).contains(&shown), "{shown}");
    // It is no right that a look needs.
    control.run(&["ACL", "SETUSER", "default", "-time"]);
    let call = Call(STRING.inspect, &["time"]);
    assert_eq!(run(control, call), "20 me:1 1 -1");
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
        let busy = call(STRING.acquire, &[b"me:1", b"1", b"50000"]);
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
    rows(
        Call(STRING.touch, &["me:1"]),
        "
                 | 0         | =
        me:1 20  | 1         | =
        you:1 20 | 0         | =
        you:1 -1 | 0         | =
        hash 20  | WRONGTYPE | =
        ",
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
        assert!((1..=200_000).contains(&control.pttl("ours")));
    }
}

const TAKES: Call<'_> = Call(STRING.acquire, &["me:1", "1", "50000"]);
const ENDS: Call<'_> = Call(STRING.release, &["me:1", "0", "10000"]);
const STAYS: Call<'_> = Call(STRING.release, &["me:1", "1", "300000"]);
const PASSES: Call<'_> = Call(STRING.pass, &["me:1", "me:2", "50000"]);
const RENEWS: Call<'_> = Call(STRING.renew, &["me:1", "300000"]);
const FORCED: Call<'_> = Call(STRING.force_unlock, &["me:1", "0"]);

const CONTRACT: Contract<'_> = Contract {
    calls: &[
        Call(STRING.acquire, &["me:1", "1", "300000"]),
        ENDS,
        STAYS,
        PASSES,
        RENEWS,
        FORCED,
        Call(STRING.force_unlock, &["me:1", "99999999999999"]),
        Call(STRING.touch, &["me:1"]),
    ],
    states: &STATES,
    set,
    run,
    seen,
    without_own_lease: str::to_owned,
};

#[test]
fn each_refused_right_leaves_a_string_as_it_was_or_complete() {
    CONTRACT.holds_without_a_right("get set pttl pexpire del time", 9);
}

/// A copy that comes after another party has been there takes nothing from it.
#[test]
fn another_party_between_two_copies_keeps_what_it_has() {
    let takes = "redis.call('set', KEYS[1], 'you:1', 'px', 200000) return 1";
    let calls = [
        ("TAKES", TAKES),
        ("ENDS", ENDS),
        ("STAYS", STAYS),
        ("PASSES", PASSES),
        ("RENEWS", RENEWS),
        ("FORCED", FORCED),
        ("you:1 takes", Call(takes, &[])),
        ("free", Call(FREES, &[])),
    ];
    CONTRACT.rows_between(
        &calls,
        "
        TAKES  |          | 1        | you:1 takes | 20 you:1 | you:1 20
        TAKES  |          | 1        | free        | 1        | me:1 5
        TAKES  | you:1 20 | 20 you:1 | free        | 1        | me:1 5
        ENDS   | me:1 20  | 1        | you:1 takes | -1       | you:1 20
        ENDS   | you:1 20 | -1       | free        | 0        |
        STAYS  | me:1 20  | 1        | you:1 takes | -1       | you:1 20
        STAYS  | me:1 20  | 1        | free        | 0        |
        PASSES | me:1 20  | 1        | you:1 takes | -1       | you:1 20
        PASSES | me:1 20  | 1        | free        | 0        |
        PASSES | you:1 20 | -1       | free        | 0        |
        RENEWS | me:1 20  | 1        | you:1 takes | -1       | you:1 20
        RENEWS | me:1 20  | 1        | free        | 0        |
        RENEWS | you:1 20 | -1       | free        | 0        |
        FORCED | me:1 20  | 1        | you:1 takes | 0        | you:1 20
        FORCED | you:1 20 | 0        | free        | 0        |
        ",
    );
}

/// The lease ends.
const FREES: &str = "redis.call('del', KEYS[1]) return 1";

/// What stands under a lock and its token: type, fields or value, lease, token, and the expiry of that.
const LOOK: &str = "\
local kind = redis.call('type', KEYS[1]).ok
local held = kind == 'hash' and table.concat(redis.call('hgetall', KEYS[1]), ' ') or redis.call('get', KEYS[1])
return {kind, held, redis.call('pttl', KEYS[1]), redis.call('get', KEYS[2]), redis.call('pttl', KEYS[2])}";

const COUNTS: [&str; 4] = ["0", "1", "2", "3"];

/// A random call.
fn roll(rolls: &mut Rolls, kind: LockKind) -> (&'static str, Vec<&'static str>) {
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
    let (counts, channel) = match kind {
        LockKind::Plain | LockKind::Fenced => (4, "c"),
        LockKind::Spin => (4, ""),
        LockKind::String => (2, "c"),
        _ => unreachable!("a kind without random calls: {kind}"),
    };
    let targets = &COUNTS[..counts];
    match rolls.below(12) {
        0..=3 => (acquire, vec![owner, rolls.of(&targets[1..]), lease]),
        4..=6 => (release, vec![owner, rolls.of(targets), lease, channel]),
        7..=8 => {
            let to = if owner == "me:1" { "me:2" } else { "me:1" };
            (pass, vec![owner, to, lease, channel])
        }
        9 => (renew, vec![owner, lease]),
        10 => (force, vec![owner, "0", channel]),
        _ => (FREES, Vec::new()),
    }
}

/// The key of the token is for those who raise it.
fn keys(kind: LockKind, name: &str, call: Call<'_>) -> Vec<String> {
    let Scripts { acquire, pass, .. } = scripts(kind);
    let raises = kind == LockKind::Fenced && [acquire, pass].contains(&call.0);
    let token = (raises || call.0 == LOOK).then(|| token_key(name));
    [name.to_owned()].into_iter().chain(token).collect()
}

/// One world in which each call is sent once, and one in which it is sent twice: what the first copies answer and what
/// they leave is the same.
#[test]
fn of_twenty_thousand_random_calls_of_each_kind_a_second_copy_changes_nothing() {
    let server = Server::start();
    let mut control = server.control();
    // Those of fair locks are in `fair_scripts.rs`.
    for kind in HANDED_OVER {
        let (mut taken, mut last_token) = (0, 0);
        let calls = RandomCalls {
            seed: 0x9E37_79B9_7F4A_7C15 + kind as u64,
            roll: &|rolls| roll(rolls, kind),
            keys: &|name, call| keys(kind, name, call),
            look: LOOK,
            slack: 0,
        };
        calls.send(&mut control, |sent| {
            let what = format!("{kind}, {}", sent.what);
            assert_eq!(rounded(sent.once, 0), rounded(sent.twice, 0), "{what}");
            let [_, held, left, token, token_left] = items(sent.once) else {
                panic!("{what}: {:?}", sent.once)
            };
            if let redis::Value::BulkString(held) = held {
                taken += 1;
                let fields = String::from_utf8_lossy(held).split(' ').count();
                assert!(fields <= 2, "{what}: two holders");
                assert!(matches!(left, redis::Value::Int(1..)), "{what}: no lease");
            }
            if let redis::Value::BulkString(token) = token {
                let token = String::from_utf8_lossy(token).parse().expect("a number");
                let may_be = last_token..=last_token + 1;
                assert!(may_be.contains(&token), "{what}: {token}");
                last_token = token;
                assert_eq!(token_left, &redis::Value::Int(-1), "{what}");
            }
        });
        assert!(taken > RANDOM_CALLS / 4, "{kind}: held after {taken} calls");
        assert_eq!(last_token > 1_000, kind == LockKind::Fenced, "{last_token}");
        control.run(&["FLUSHALL"]);
    }
}

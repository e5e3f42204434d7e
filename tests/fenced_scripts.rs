//! The Lua files of fenced locks, each alone on a real server: the table of states of the lock and of its token, every
//! row also with the script sent twice and with another party between the copies, and every right taken away in every
//! state.

use test_support::kinds::{State, token_key};
use test_support::{Control, RELEASE, Server, test};

const ACQUIRE: &str = include_str!("../lua/fenced/acquire.lua");
const PASS: &str = include_str!("../lua/fenced/pass.lua");

const CHANNEL: &str = "redisson_lock__channel:{k}";

const STATES: [State; 4] = [State::Absent, State::Ours(1), State::Ours(2), State::Theirs];

/// What stands under the key of the token.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Token {
    None,
    Number(&'static str),
    /// The number 7 with an expiry, as a MultiLock of JVMs leaves it.
    Expires,
    List,
}

impl Token {
    fn set(self, control: &mut Control) {
        let key = &token_key("k");
        control.run(&["DEL", key]);
        match self {
            Self::None => String::new(),
            Self::Number(number) => control.run(&["SET", key, number]),
            Self::Expires => control.run(&["SET", key, "7", "PX", "50000"]),
            Self::List => control.run(&["RPUSH", key, "7"]),
        };
    }
}

/// Field, count, and the lease rounded to seconds; "" if there is no key.
fn lock(control: &mut Control) -> String {
    match control.hash("k").as_str() {
        "" => String::new(),
        fields => format!("{fields} {}", (control.pttl("k") + 999) / 1000),
    }
}

/// The number, with a `~` if it expires; "" if there is no key, "list" if it is one.
fn token(control: &mut Control) -> String {
    let key = &token_key("k");
    match control.run(&["TYPE", key]).as_str() {
        "none" => String::new(),
        "list" => "list".to_owned(),
        _ if control.pttl(key) > 0 => format!("{}~", control.run(&["GET", key])),
        _ => control.run(&["GET", key]),
    }
}

fn call(control: &mut Control, script: &str, args: &[&str]) -> String {
    let key = token_key("k");
    let words = [&["EVAL", script, "2", "k", &key], args].concat();
    let answer = control.try_run(&words);
    let answer = answer.unwrap_or_else(|error| format!("error: {error}"));
    match answer.split_once(' ') {
        // Milliseconds that are left, after some have passed.
        Some((left, holder)) if left.starts_with("19") => format!("20000 {holder}"),
        _ => answer,
    }
}

const SEVEN: Token = Token::Number("7");
const LAST: Token = Token::Number("9223372036854775807");

/// A row: lock, token, answer, lock after, token after.
type Row = (State, Token, &'static str, &'static str, &'static str);

/// Runs a call once and twice in each state. The second copy answers the same, and changes nothing.
fn rows(script: &str, args: &[&str], table: &[Row]) {
    let server = Server::start();
    let control = &mut server.control();
    for (state, number, answer, after, token_after) in table {
        let what = format!("{state:?} {number:?} {args:?}");
        state.set(control);
        number.set(control);
        for copy in 1..=2 {
            assert_eq!(call(control, script, args), *answer, "{what}, copy {copy}");
            assert_eq!(lock(control), *after, "{what}, copy {copy}");
            assert_eq!(token(control), *token_after, "{what}, copy {copy}");
        }
    }
}

#[test]
fn acquire_raises_the_token_of_a_free_lock_once_and_reads_it_in_its_own() {
    use State::{Absent, Ours, Theirs};
    let table = [
        (Absent, Token::None, "1", "me:1 1 5", "1"),
        (Absent, SEVEN, "8", "me:1 1 5", "8"),
        (Absent, Token::Expires, "8", "me:1 1 5", "8"),
        (
            Absent,
            Token::Number("9007199254740993"),
            "9007199254740994",
            "me:1 1 5",
            "9007199254740994",
        ),
        (Ours(1), SEVEN, "7", "me:1 1 20", "7"),
        (Ours(1), Token::Expires, "7", "me:1 1 20", "7"),
        (Ours(3), SEVEN, "7", "me:1 1 20", "7"),
        (Theirs, SEVEN, "20000 you:1", "you:1 1 20", "7"),
        (Theirs, Token::None, "20000 you:1", "you:1 1 20", ""),
        // Without a token the lock is not taken, and a hold is not changed.
        (Absent, Token::Number("many"), "-4 no integer", "", "many"),
        (Absent, Token::List, "-4 no integer", "", "list"),
        (Absent, LAST, "-4 no integer", "", "9223372036854775807"),
        (Ours(1), Token::None, "-4 no token", "me:1 1 20", ""),
        (Ours(1), Token::List, "-4 no token", "me:1 1 20", "list"),
        (
            Ours(1),
            Token::Number("many"),
            "-4 no token",
            "me:1 1 20",
            "many",
        ),
        (
            Ours(1),
            Token::Number("-5"),
            "-4 no token",
            "me:1 1 20",
            "-5",
        ),
        (Ours(1), Token::Number("0"), "-4 no token", "me:1 1 20", "0"),
    ];
    rows(ACQUIRE, &["me:1", "1", "5000"], &table);
    let nested = [
        (Ours(1), SEVEN, "7", "me:1 2 30", "7"),
        (Ours(2), Token::Expires, "7", "me:1 2 30", "7"),
        // The outer hold is gone: there is nothing to nest in, and the token belongs to others.
        (Absent, SEVEN, "0", "", "7"),
        (Absent, Token::Expires, "0", "", "7~"),
        (Theirs, SEVEN, "0", "you:1 1 20", "7"),
        (Ours(1), Token::None, "-4 no token", "me:1 1 20", ""),
    ];
    rows(ACQUIRE, &["me:1", "2", "30000"], &nested);
}

/// Each attempt raises a number below 1, and takes nothing until it is one.
#[test]
fn a_number_below_one_is_no_token() {
    let server = Server::start();
    let control = &mut server.control();
    for script in [ACQUIRE, PASS] {
        let (state, args, refused) = match script {
            ACQUIRE => (
                State::Absent,
                ["me:1", "1", "5000", ""],
                "-4 a number below 1",
            ),
            _ => (State::Ours(1), ["me:1", "me:2", "5000", CHANNEL], "-4"),
        };
        state.set(control);
        Token::Number("-2").set(control);
        let before = lock(control);
        for _ in 0..2 {
            assert_eq!(call(control, script, &args), refused);
            assert_eq!(lock(control), before);
        }
        assert_eq!(call(control, script, &args), "1");
        assert_eq!(token(control), "1");
    }
}

#[test]
fn pass_raises_the_token_once_for_its_receiver() {
    use State::{Absent, Ours, Theirs};
    let table = [
        (Absent, SEVEN, "0", "", "7"),
        (Ours(1), SEVEN, "8", "me:2 1 5", "8"),
        (Ours(3), SEVEN, "8", "me:2 1 5", "8"),
        (Ours(1), Token::Expires, "8", "me:2 1 5", "8"),
        (Ours(1), Token::None, "1", "me:2 1 5", "1"),
        (
            Ours(1),
            Token::Number("9007199254740993"),
            "9007199254740994",
            "me:2 1 5",
            "9007199254740994",
        ),
        (Theirs, SEVEN, "-1", "you:1 1 20", "7"),
        // The receiver can have no token: nothing is moved.
        (Ours(1), Token::Number("many"), "-4", "me:1 1 20", "many"),
        (Ours(1), Token::List, "-4", "me:1 1 20", "list"),
        (Ours(1), LAST, "-4", "me:1 1 20", "9223372036854775807"),
    ];
    rows(PASS, &["me:1", "me:2", "5000", CHANNEL], &table);
    // An earlier copy has moved it: its token is read, its lease is not lowered.
    let moved = [
        (Theirs, SEVEN, "7", "you:1 1 30", "7"),
        (Theirs, Token::None, "-4", "you:1 1 20", ""),
        (Theirs, Token::List, "-4", "you:1 1 20", "list"),
        (Theirs, Token::Number("-5"), "-4", "you:1 1 20", "-5"),
    ];
    rows(PASS, &["me:1", "you:1", "30000", CHANNEL], &moved);
}

/// An application's hash, which no lease ends.
#[test]
fn what_is_no_fenced_lock_is_reported_and_left_alone() {
    let server = Server::start();
    let control = &mut server.control();
    for count in ["many", "-1", "1.5", "99999999999999999999"] {
        control.run(&["DEL", "k"]);
        control.run(&["HSET", "k", "name", count]);
        for target in ["1", "2"] {
            let found = call(control, ACQUIRE, &["me:1", target, "20000"]);
            assert_eq!(found, "-3 a non-numeric hold count", "{count}");
        }
        assert_eq!(control.hash("k"), format!("name {count}"));
        assert_eq!(control.pttl("k"), -1);
        assert_eq!(token(control), "", "it is not raised");
    }
}

#[test]
fn inspect_shows_the_token_if_there_is_one_that_may_be_read() {
    let server = Server::start();
    let control = &mut server.control();
    control.run(&["ACL", "SETUSER", "u", "on", "nopass", "~*", "+@all", "-get"]);
    let user = &mut server.control();
    user.run(&["AUTH", "u", "x"]);
    let script = include_str!("../lua/fenced/inspect.lua");
    for (state, number, shown) in [
        (State::Absent, SEVEN, "(nil)"),
        (State::Ours(2), SEVEN, "me:1 2 -1 7"),
        (State::Theirs, Token::Expires, "you:1 1 -1 7"),
        (State::Theirs, Token::Number("many"), "you:1 1 -1 many"),
        (State::Ours(1), Token::None, "me:1 1 -1 (nil)"),
        (State::Ours(1), Token::List, "me:1 1 -1 (nil)"),
    ] {
        state.set(control);
        number.set(control);
        let before = (lock(control), token(control));
        let found = call(control, script, &[]);
        assert_eq!(
            found.trim_start_matches("20000 "),
            shown,
            "{state:?} {number:?}"
        );
        // It is no right that a look needs.
        let found = call(user, script, &[]);
        assert!(
            !found.contains("error") && !found.ends_with(" 7"),
            "{found}"
        );
        assert_eq!((lock(control), token(control)), before);
    }
}

/// What another party does between two copies of a script.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Between {
    /// It attempts.
    Attempts,
    /// The holder, if there is one, releases it.
    Frees,
    /// The same, and another owner takes it.
    Takes,
    /// The same, and that owner frees it again.
    TakesAndFrees,
}

impl Between {
    fn act(self, control: &mut Control) {
        if self != Self::Attempts {
            control.run(&["DEL", "k"]);
        }
        if self != Self::Frees {
            call(control, ACQUIRE, &["you:1", "1", "20000"]);
        }
        if self == Self::TakesAndFrees {
            control.run(&["DEL", "k"]);
        }
    }
}

/// A copy that comes later finds what another party has left: it never makes a second holder, and never answers with
/// a token that somebody else has had.
#[test]
fn another_party_between_two_copies_is_neither_joined_nor_repeated() {
    use Between::{Attempts, Frees, Takes, TakesAndFrees};
    let acquire: (&str, &[&str]) = (ACQUIRE, &["me:1", "1", "5000"]);
    let nested: (&str, &[&str]) = (ACQUIRE, &["me:1", "2", "5000"]);
    let pass: (&str, &[&str]) = (PASS, &["me:1", "me:2", "5000", CHANNEL]);
    // call, state, first answer, what comes between, second answer, lock and token after both
    let table = [
        (acquire, State::Absent, "8", Attempts, "8", "me:1 1 5", "8"),
        (acquire, State::Absent, "8", Frees, "9", "me:1 1 5", "9"),
        (
            acquire,
            State::Absent,
            "8",
            Takes,
            "20000 you:1",
            "you:1 1 20",
            "9",
        ),
        (
            acquire,
            State::Absent,
            "8",
            TakesAndFrees,
            "10",
            "me:1 1 5",
            "10",
        ),
        (
            acquire,
            State::Theirs,
            "20000 you:1",
            Frees,
            "8",
            "me:1 1 5",
            "8",
        ),
        (
            acquire,
            State::Theirs,
            "20000 you:1",
            Takes,
            "20000 you:1",
            "you:1 1 20",
            "8",
        ),
        (nested, State::Ours(1), "7", Attempts, "7", "me:1 2 20", "7"),
        (nested, State::Ours(1), "7", Frees, "0", "", "7"),
        (nested, State::Ours(1), "7", Takes, "0", "you:1 1 20", "8"),
        (nested, State::Ours(1), "7", TakesAndFrees, "0", "", "8"),
        (pass, State::Ours(1), "8", Attempts, "8", "me:2 1 5", "8"),
        (pass, State::Ours(1), "8", Frees, "0", "", "8"),
        (pass, State::Ours(1), "8", Takes, "-1", "you:1 1 20", "9"),
        (pass, State::Ours(1), "8", TakesAndFrees, "0", "", "9"),
        (pass, State::Theirs, "-1", Frees, "0", "", "7"),
        (pass, State::Theirs, "-1", Takes, "-1", "you:1 1 20", "8"),
        (pass, State::Absent, "0", Takes, "-1", "you:1 1 20", "8"),
    ];
    let server = Server::start();
    let control = &mut server.control();
    for ((script, args), state, first, between, second, after, number) in table {
        let what = format!("{state:?} {args:?}, between: {between:?}");
        state.set(control);
        SEVEN.set(control);
        assert_eq!(call(control, script, args), first, "{what}");
        between.act(control);
        assert_eq!(call(control, script, args), second, "{what}");
        assert_eq!(lock(control), after, "{what}");
        assert_eq!(token(control), number, "{what}");
    }
}

/// The calls of a fenced lock. Those of its release take the key of the token for an argument more, which is none of
/// theirs.
const CALLS: [(&str, &str, &[&str]); 7] = [
    ("acquire", ACQUIRE, &["me:1", "1", "5000"]),
    ("acquire", ACQUIRE, &["me:1", "2", "5000"]),
    ("acquire", ACQUIRE, &["me:1", "2", "30000"]),
    ("pass", PASS, &["me:1", "me:2", "5000", CHANNEL]),
    ("pass", PASS, &["me:1", "me:2", "30000", CHANNEL]),
    ("pass", PASS, &["me:1", "you:1", "30000", CHANNEL]),
    ("release", RELEASE, &["me:1", "0", "1000", CHANNEL]),
];

/// Without counts and leases of our own hold: a step that is refused may have raised the lease before.
fn without_lease(lock: &str) -> &str {
    lock.rsplit_once(' ').map_or("", |pair| pair.0)
}

#[test]
fn whichever_right_is_missing_the_lock_is_unchanged_or_complete_and_no_token_is_lost() {
    let server = Server::start();
    let admin = &mut server.control();
    let commands =
        "hget hincrby hlen hkeys hexists hdel exists pttl pexpire publish del get incr persist";
    let missing = commands.split(' ').map(|command| format!("-{command}"));
    let (mut refused, mut runs) = (0, 0);
    for missing in missing.chain(["resetchannels".to_owned()]) {
        let all = ["reset", "on", "nopass", "~*", "&*", "+@all", &missing];
        admin.run(&[&["ACL", "SETUSER", "u"], &all[..]].concat());
        let user = &mut server.control();
        user.run(&["AUTH", "u", "x"]);
        for (name, script, args) in CALLS {
            for state in STATES {
                for number in [Token::None, SEVEN, Token::Expires] {
                    let what = format!("{missing}: {name} {args:?} of {state:?} {number:?}");
                    let set = |control: &mut Control| {
                        state.set(control);
                        number.set(control);
                        (lock(control), token(control))
                    };
                    set(admin);
                    call(admin, script, args);
                    let complete = (lock(admin), token(admin));
                    let before = set(admin);
                    let answer = call(user, script, args);
                    let after = (lock(admin), token(admin));
                    let failed = answer.starts_with("error");
                    (runs, refused) = (runs + 1, refused + usize::from(failed));
                    let same_hold = without_lease(&after.0) == without_lease(&before.0);
                    assert!(
                        after.0 == before.0 || after.0 == complete.0 || same_hold,
                        "{what}: {before:?} -> {after:?}, complete is {complete:?}"
                    );
                    assert!(
                        failed || after == complete,
                        "{what}: a false yes, {after:?}"
                    );
                    // A number that is raised and not used does no harm; one that is lowered, or ends, would.
                    let [was, is] = [&before.1, &after.1].map(|token| {
                        let number = token.trim_end_matches('~').parse::<i64>();
                        number.unwrap_or_default()
                    });
                    assert!(
                        is == was || is == was + 1,
                        "{what}: {before:?} -> {after:?}"
                    );
                    let has_new_holder = without_lease(&after.0) != without_lease(&before.0)
                        && after.0.starts_with("me:")
                        && name != "release";
                    assert!(
                        !has_new_holder || after.1 == complete.1,
                        "{what}: held without its token, {after:?}"
                    );
                    let left = if after.0.is_empty() {
                        1
                    } else {
                        admin.pttl("k")
                    };
                    assert!(left > 0, "{what}: a lock without a lease");
                }
            }
        }
    }
    assert!(refused > runs / 8, "{refused} of {runs} runs were refused");
}

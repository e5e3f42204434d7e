//! The Lua files of string locks, each alone on a real server: the table of states, every row also with the script
//! sent twice and with another party between the copies, and every right that a script needs taken away. And of every
//! kind: random calls, once against twice.

use test_support::kinds::{KINDS, token_key};
use test_support::{Control, Server, test};

use redisson_lock::LockKind;

const ACQUIRE: &str = include_str!("../lua/string/acquire.lua");
const RELEASE: &str = include_str!("../lua/string/release.lua");
const PASS: &str = include_str!("../lua/string/pass.lua");

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
}

const STATES: [State; 4] = [State::Absent, State::Ours, State::Theirs, State::Endless];

impl State {
    fn set(self, control: &mut Control) {
        control.run(&["DEL", "k"]);
        match self {
            Self::Absent => return,
            Self::Ours => control.run(&["SET", "k", "me:1", "PX", "20000"]),
            Self::Theirs => control.run(&["SET", "k", "you:1", "PX", "20000"]),
            Self::Endless => control.run(&["SET", "k", "you:1"]),
        };
    }
}

/// The value, and the lease rounded to seconds; "" if there is no key.
fn seen(control: &mut Control) -> String {
    match control.try_run(&["GET", "k"]).as_deref() {
        Ok("(nil)") | Err(_) => String::new(),
        Ok(value) => format!("{value} {}", (control.pttl("k") + 999) / 1000),
    }
}

/// A script, and its ARGV.
struct Call(&'static str, Vec<&'static str>);

fn run(control: &mut Control, call: &Call) -> String {
    let words = ["EVAL", call.0, "1", "k"].into_iter();
    let words: Vec<&str> = words.chain(call.1.iter().copied()).collect();
    let answer = control.try_run(&words);
    let answer = answer.unwrap_or_else(|error| format!("error: {error}"));
    match answer.split_once(' ') {
        // Milliseconds that are left, after some have passed.
        Some((left, holder)) if left.starts_with("19") => format!("20000 {holder}"),
        _ => answer,
    }
}

/// Runs a call in each state, twice: state, first answer, second answer, state after both.
fn rows(call: &Call, table: [(State, &str, &str, &str); 4]) {
    let server = Server::start();
    let control = &mut server.control();
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
    use State::{Absent, Endless, Ours, Theirs};
    rows(
        &Call(ACQUIRE, vec!["me:1", "1", "5000"]),
        [
            (Absent, "1", "1", "me:1 5"),
            (Ours, "1", "1", "me:1 20"),
            (Theirs, "20000 you:1", "20000 you:1", "you:1 20"),
            (Endless, "-1 you:1", "-1 you:1", "you:1 0"),
        ],
    );
    rows(
        &Call(ACQUIRE, vec!["me:1", "2", "30000"]),
        [
            (Absent, "0", "0", ""),
            (Ours, "1", "1", "me:1 30"),
            (Theirs, "0", "0", "you:1 20"),
            (Endless, "0", "0", "you:1 0"),
        ],
    );
}

#[test]
fn release_of_a_string_deletes_its_own_value_alone() {
    use State::{Absent, Endless, Ours, Theirs};
    rows(
        &Call(RELEASE, vec!["me:1", "0", "1000"]),
        [
            (Absent, "0", "0", ""),
            (Ours, "1", "0", ""),
            (Theirs, "-1", "-1", "you:1 20"),
            (Endless, "-1", "-1", "you:1 0"),
        ],
    );
    rows(
        &Call(RELEASE, vec!["me:1", "1", "30000"]),
        [
            (Absent, "0", "0", ""),
            (Ours, "1", "1", "me:1 30"),
            (Theirs, "-1", "-1", "you:1 20"),
            (Endless, "-1", "-1", "you:1 0"),
        ],
    );
}

#[test]
fn pass_of_a_string_replaces_its_own_value_alone() {
    use State::{Absent, Endless, Ours, Theirs};
    rows(
        &Call(PASS, vec!["me:1", "me:2", "5000"]),
        [
            (Absent, "0", "0", ""),
            (Ours, "1", "1", "me:2 5"),
            (Theirs, "-1", "-1", "you:1 20"),
            (Endless, "-1", "-1", "you:1 0"),
        ],
    );
}

#[test]
fn each_refused_right_leaves_a_string_as_it_was_or_complete() {
    let server = Server::start();
    let control = &mut server.control();
    let calls = [
        Call(ACQUIRE, vec!["me:1", "1", "30000"]),
        Call(RELEASE, vec!["me:1", "0", "1000"]),
        Call(RELEASE, vec!["me:1", "1", "30000"]),
        Call(PASS, vec!["me:1", "me:2", "5000"]),
    ];
    for right in ["get", "set", "pttl", "pexpire", "del"] {
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
                run(control, call);
                control.run(&["ACL", "SETUSER", "default", &format!("+{right}")]);
                let after = seen(control);
                assert!(
                    after == before || after == complete,
                    "{right} {state:?} {}: {before} -> {after}",
                    call.0
                );
            }
        }
    }
}

/// A copy that comes after another party has been there takes nothing from it.
#[test]
fn another_party_between_two_copies_keeps_what_it_has() {
    use State::{Absent, Ours, Theirs};
    let acquire = Call(ACQUIRE, vec!["me:1", "1", "5000"]);
    let release = Call(RELEASE, vec!["me:1", "0", "1000"]);
    let stays = Call(RELEASE, vec!["me:1", "1", "30000"]);
    let pass = Call(PASS, vec!["me:1", "me:2", "5000"]);
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

/// The scripts of a kind, by what they do: acquire, release, pass, renew, force_unlock.
fn scripts(kind: LockKind) -> [&'static str; 5] {
    let plain = [
        test_support::ACQUIRE,
        test_support::RELEASE,
        test_support::PASS,
        test_support::RENEW,
        test_support::FORCE_UNLOCK,
    ];
    match kind {
        LockKind::Fenced => {
            let [_, release, _, renew, force] = plain;
            let acquire = include_str!("../lua/fenced/acquire.lua");
            let pass = include_str!("../lua/fenced/pass.lua");
            [acquire, release, pass, renew, force]
        }
        LockKind::String => [
            ACQUIRE,
            RELEASE,
            PASS,
            include_str!("../lua/string/renew.lua"),
            include_str!("../lua/string/force_unlock.lua"),
        ],
        _ => plain,
    }
}

/// What stands under a lock and its token: type, fields or value, lease, token, and the expiry of that.
const LOOK: &str = "\
local kind = redis.call('type', KEYS[1]).ok
local held = kind == 'hash' and table.concat(redis.call('hgetall', KEYS[1]), ' ') or redis.call('get', KEYS[1])
return {kind, held, redis.call('pttl', KEYS[1]), redis.call('get', KEYS[2]), redis.call('pttl', KEYS[2])}";

/// Numbers that look random, the same in each run.
struct Rolls(u64);

impl Rolls {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).expect("small")
    }

    fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }
}

/// A random call: its script, and whether it names the token's key; or no script, for a lease that ends.
fn roll(rolls: &mut Rolls, kind: LockKind) -> (Option<&'static str>, bool, Vec<&'static str>) {
    let [acquire, release, pass, renew, force] = scripts(kind);
    let owner = rolls.of(&["me:1", "me:2", "you:1"]);
    // Far apart from each other: the moments between two calls do not matter.
    let lease = rolls.of(&["100000", "200000", "300000", "400000"]);
    let targets: &[&str] = match kind {
        LockKind::String => &["0", "1"],
        _ => &["0", "1", "2", "3"],
    };
    let channel = if kind == LockKind::Spin { "" } else { "c" };
    let has_token = kind == LockKind::Fenced;
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
    for kind in KINDS {
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

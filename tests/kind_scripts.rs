//! The Lua files of the other kinds, each alone on a real server: the table of states, every row also with the
//! script sent twice, and every right that a script needs taken away.

use test_support::{Control, Server, test};

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

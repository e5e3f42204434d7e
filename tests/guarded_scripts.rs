//! The Lua files of guarded writes, each alone on a real server: what each look finds, and what `guarded.lua` answers to
//! a write and to its copy, whether its id is there or not, and with another holder between the two.

use redisson_lock::LockKind;
use test_support::kinds::{FENCED, KINDS, scripts, token_key};
use test_support::{Control, Server, test};

const GUARDED: &str = include_str!("../lua/guarded.lua");

/// A part of a user: counts how often it ran.
const COUNTS: &str = "return redis.call('incr', KEYS[1])";

/// It counts, and then fails.
const FAILS: &str = "redis.call('incr', KEYS[1]) error({err = ARGV[1]})";

const ID: &str = "redisson_lock_once:{k}:7";

/// What stands under the key of the lock.
#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Absent,
    /// Ours with 20 s left.
    Ours,
    /// Another owner's with 20 s left.
    Theirs,
    List,
}

impl State {
    fn set(self, control: &mut Control, kind: LockKind) {
        control.run(&["DEL", "k"]);
        let holder = match self {
            Self::Absent => return,
            Self::Ours => "me:1",
            Self::Theirs => "you:1",
            Self::List => {
                control.run(&["RPUSH", "k", "me:1"]);
                return;
            }
        };
        match kind {
            LockKind::String => control.run(&["SET", "k", holder]),
            _ => control.run(&["HSET", "k", holder, "1"]),
        };
        control.run(&["PEXPIRE", "k", "20000"]);
    }
}

/// The lock as it is stored, without the rest of its lease.
fn seen(control: &mut Control) -> String {
    control.try_run(&["DUMP", "k"]).expect("answered")
}

/// The key of the token, and the number of the hold, of a kind that has one.
fn token(kind: LockKind) -> Option<(String, &'static str)> {
    (kind == LockKind::Fenced).then(|| (token_key("k"), "7"))
}

/// Runs a text with the inputs of a guarded write, of the key `n` with the argument `x`.
fn run(control: &mut Control, text: &str, part: &str, kind: LockKind, id: Option<&str>) -> String {
    let token = token(kind);
    let token_key = token.as_ref().map(|(key, _)| &**key);
    let mut keys: Vec<&str> = [Some("k"), token_key, id].into_iter().flatten().collect();
    let own = keys.len().to_string();
    keys.push("n");
    let count = keys.len().to_string();
    let keep = if id.is_some() { "60000" } else { "0" };
    let number = token.as_ref().map_or("", |token| token.1);
    let words = [
        &["EVAL", text, &count][..],
        &keys,
        &["me:1", keep, &own, part, number, "x"],
    ];
    control.run(&words.concat())
}

/// What a client sends.
fn text(kind: LockKind) -> String {
    let look = scripts(kind).look;
    format!("local look = function() {look}\nend\n{GUARDED}")
}

/// How often the part ran, and whether the id is there.
fn left(control: &mut Control) -> String {
    let n = control.run(&["GET", "n"]);
    let id = control.run(&["EXISTS", ID]);
    format!("{} {id}", if n == "(nil)" { "0" } else { &n })
}

/// Whose token is the latest: that of the hold, whatever the kind.
fn set(control: &mut Control, kind: LockKind, state: State, has_id: bool) {
    control.run(&["DEL", "n", ID]);
    state.set(control, kind);
    if let Some((key, number)) = token(kind) {
        control.run(&["SET", &key, number]);
    }
    if has_id {
        control.run(&["SET", ID, "me:1", "PX", "60000"]);
    }
}

#[test]
fn each_look_says_whether_the_lock_is_held_and_changes_nothing() {
    use State::{Absent, List, Ours, Theirs};
    let server = Server::start();
    let control = &mut server.control();
    for kind in KINDS {
        for (state, answer) in [(Absent, "0"), (Ours, "1"), (Theirs, "-1"), (List, "-2")] {
            set(control, kind, state, false);
            let before = seen(control);
            for copy in 1..=2 {
                let found = run(control, scripts(kind).look, COUNTS, kind, None);
                assert_eq!(found, answer, "{kind} {state:?}, copy {copy}");
                assert_eq!(seen(control), before, "{kind} {state:?}, copy {copy}");
            }
        }
    }
}

#[test]
fn the_look_of_a_fenced_lock_compares_the_token_of_the_hold_with_the_latest() {
    use State::{Absent, List, Ours, Theirs};
    let server = Server::start();
    let control = &mut server.control();
    let key = token_key("k");
    for (state, latest, answer) in [
        (Ours, "7", "1"),
        (Ours, "8", "-1"),
        (Ours, "70", "-1"),
        (Ours, "6", "-1"),
        // No number that a holder can have.
        (Ours, "0", "-2"),
        (Ours, "-7", "-2"),
        (Ours, "07", "-2"),
        (Ours, "many", "-2"),
        (Ours, "", "-2"),
        (Theirs, "7", "-1"),
        (Absent, "7", "0"),
        (List, "7", "-2"),
    ] {
        set(control, LockKind::Fenced, state, false);
        control.run(&["SET", &key, latest]);
        let found = run(control, FENCED.look, COUNTS, LockKind::Fenced, None);
        assert_eq!(found, answer, "{state:?}, the latest is {latest:?}");
        assert_eq!(control.run(&["GET", &key]), latest);
    }
    for other in [&["DEL", &*key][..], &["RPUSH", &*key, "7"]] {
        set(control, LockKind::Fenced, Ours, false);
        control.run(&["DEL", &key]);
        control.run(other);
        let found = run(control, FENCED.look, COUNTS, LockKind::Fenced, None);
        assert_eq!(found, "-2", "{other:?}");
    }
}

#[test]
fn a_write_runs_while_the_lock_is_held_and_with_an_id_once() {
    use State::{Absent, List, Ours, Theirs};
    let (with, without) = (Some(ID), None);
    // lock, id, whether it is there, first answer, answer to the copy, runs and id after both
    let table = [
        (Ours, without, false, "ran 1", "ran 2", "2 0"),
        (Ours, with, false, "ran 1", "done", "1 1"),
        (Ours, with, true, "done", "done", "0 1"),
        (Absent, without, false, "lost 0 0", "lost 0 0", "0 0"),
        (Absent, with, false, "lost 0 0", "lost 0 0", "0 0"),
        (Absent, with, true, "lost 0 1", "lost 0 1", "0 1"),
        (Theirs, without, false, "lost -1 0", "lost -1 0", "0 0"),
        (Theirs, with, false, "lost -1 0", "lost -1 0", "0 0"),
        (Theirs, with, true, "lost -1 1", "lost -1 1", "0 1"),
        (List, with, false, "lost -2 0", "lost -2 0", "0 0"),
        (List, with, true, "lost -2 1", "lost -2 1", "0 1"),
    ];
    let server = Server::start();
    let control = &mut server.control();
    for kind in KINDS {
        let text = text(kind);
        for (state, id, is_there, first, second, after) in table {
            let what = format!("{kind} {state:?}, id {id:?}, there: {is_there}");
            set(control, kind, state, is_there);
            let before = seen(control);
            assert_eq!(run(control, &text, COUNTS, kind, id), first, "{what}");
            assert_eq!(
                run(control, &text, COUNTS, kind, id),
                second,
                "{what}, again"
            );
            assert_eq!(left(control), after, "{what}");
            assert_eq!(seen(control), before, "{what}");
            if id.is_some() && after.ends_with('1') {
                assert!((1..=60_000).contains(&control.pttl(ID)), "{what}");
            }
        }
    }
}

/// A copy that comes after another holder has been there.
#[test]
fn another_holder_between_two_copies_is_written_over_by_none() {
    use State::{Absent, List, Ours, Theirs};
    let (with, without) = (Some(ID), None);
    // lock, id, first answer, what stands there when the copy comes, its answer, runs and id after both
    let table = [
        (Ours, without, "ran 1", Theirs, "lost -1 0", "1 0"),
        (Ours, without, "ran 1", Absent, "lost 0 0", "1 0"),
        (Ours, with, "ran 1", Theirs, "lost -1 1", "1 1"),
        (Ours, with, "ran 1", Absent, "lost 0 1", "1 1"),
        (Ours, with, "ran 1", List, "lost -2 1", "1 1"),
        (Theirs, with, "lost -1 0", Absent, "lost 0 0", "0 0"),
        (Absent, with, "lost 0 0", Theirs, "lost -1 0", "0 0"),
    ];
    let server = Server::start();
    let control = &mut server.control();
    for kind in KINDS {
        let text = text(kind);
        for (state, id, first, between, second, after) in table {
            let what = format!("{kind} {state:?}, id {id:?}, then {between:?}");
            set(control, kind, state, false);
            assert_eq!(run(control, &text, COUNTS, kind, id), first, "{what}");
            between.set(control, kind);
            let before = seen(control);
            assert_eq!(run(control, &text, COUNTS, kind, id), second, "{what}");
            assert_eq!(left(control), after, "{what}");
            assert_eq!(seen(control), before, "{what}");
        }
    }
    // The same owner has it again: its token tells that others have had it.
    let (kind, key) = (LockKind::Fenced, token_key("k"));
    set(control, kind, Ours, false);
    let text = text(kind);
    assert_eq!(run(control, &text, COUNTS, kind, None), "ran 1");
    control.run(&["SET", &key, "9"]);
    assert_eq!(run(control, &text, COUNTS, kind, None), "lost -1 0");
    assert_eq!(left(control), "1 0");
}

#[test]
fn a_part_that_fails_keeps_what_it_wrote_and_forgets_its_id() {
    let server = Server::start();
    let control = &mut server.control();
    for kind in KINDS {
        let text = text(kind);
        set(control, kind, State::Ours, false);
        for runs in 1..=2 {
            let failed = run(control, &text, FAILS, kind, Some(ID));
            assert_eq!(failed, "failed x", "{kind}");
            assert_eq!(left(control), format!("{runs} 0"), "{kind}");
        }
    }
}

//! Each Lua file alone, on a real server: the whole table of states, every row also with the script
//! sent twice, and every right that a script needs taken away in every state.

use test_support::contract::{Call, Contract, Listener, clock, eval, seen_hash, set_hash, units};
use test_support::{
    ACQUIRE, Control, FORCE_UNLOCK, INSPECT, Monitor, PASS, RELEASE, RENEW, Server, TOUCH, test,
};

const CHANNEL: &str = "redisson_lock__channel:{k}";

fn acquire(control: &mut Control, target: u32, lease: &str) -> String {
    run(
        control,
        Call(ACQUIRE, &["me:1", &target.to_string(), lease]),
    )
}

fn release(control: &mut Control, target: u32, lease: &str) -> String {
    run(
        control,
        Call(RELEASE, &["me:1", &target.to_string(), lease, CHANNEL]),
    )
}

fn run(control: &mut Control, call: Call<'_>) -> String {
    eval(control, call, &["k"])
}

/// Makes the state that [`seen`] shows.
fn set(control: &mut Control, state: &str) {
    let mut pipe = redis::pipe();
    set_hash(&mut pipe, "k", state);
    pipe.exec(&mut control.connection).expect("set");
}

/// Fields, and the units left of the lease; "" if there is no key.
fn seen(control: &mut Control) -> String {
    seen_hash(control, "k")
}

#[test]
fn acquire_goes_to_its_target_and_says_what_it_found_also_when_sent_twice() {
    CONTRACT.rows(
        Call(ACQUIRE, &["me:1", "1", "50000"]),
        "
                   | 1        | me:1 1 5
        me:1 1 20  | 1        | =
        me:1 3 20  | 1        | me:1 1 20
        you:1 1 20 | 20 you:1 | =
        ",
    );
    CONTRACT.rows(
        Call(ACQUIRE, &["me:1", "2", "50000"]),
        "
                   | 0 | =
        me:1 1 20  | 1 | me:1 2 20
        you:1 1 20 | 0 | =
        ",
    );
    CONTRACT.rows(
        Call(ACQUIRE, &["me:1", "2", "300000"]),
        "me:1 1 20 | 1 | me:1 2 30",
    );
    CONTRACT.rows(
        Call(ACQUIRE, &["me:1", "4", "300000"]),
        "me:1 3 20 | 1 | me:1 4 30",
    );
}

#[test]
fn release_goes_to_its_target_and_publishes_only_the_last_one() {
    let server = Server::start();
    let control = &mut server.control();
    let mut listens = server.control();
    let mut listener = Listener::of(&mut listens);
    // state, target, lease in ms, first answer, second answer, state after, messages of the first
    let table = [
        ("", 0, "1", "0", "0", "", 0),
        ("", 1, "50000", "0", "0", "", 0),
        // One has heard it.
        ("me:1 1 20", 0, "1", "2", "0", "", 1),
        ("me:1 3 20", 0, "1", "2", "0", "", 1),
        ("me:1 2 20", 1, "50000", "1", "1", "me:1 1 20", 0),
        ("me:1 2 20", 1, "300000", "1", "1", "me:1 1 30", 0),
        ("me:1 1 20", 1, "50000", "1", "1", "me:1 1 20", 0),
        ("me:1 1 20", 2, "50000", "1", "1", "me:1 2 20", 0),
        ("you:1 1 20", 0, "1", "-1", "-1", "you:1 1 20", 0),
        ("you:1 1 20", 1, "50000", "-1", "-1", "you:1 1 20", 0),
    ];
    for (state, target, lease, first, second, after, published) in table {
        set(control, state);
        assert_eq!(
            release(control, target, lease),
            first,
            "{state:?} release to {target}"
        );
        assert_eq!(seen(control), after, "{state:?} release to {target}");
        assert_eq!(
            release(control, target, lease),
            second,
            "{state:?} release to {target} again"
        );
        assert_eq!(seen(control), after, "{state:?} release to {target} again");
        let messages = vec![(CHANNEL.to_owned(), "0".to_owned()); published];
        assert_eq!(
            listener.heard(),
            messages,
            "{state:?} release to {target}: messages of both copies"
        );
    }
}

#[test]
fn pass_moves_the_hold_with_a_lease_of_its_own_also_when_sent_twice() {
    let server = Server::start();
    let control = &mut server.control();
    let pass = |control: &mut Control, to: &str, lease: &str| {
        run(control, Call(PASS, &["me:1", to, lease, "c"]))
    };
    // state, receiver, lease in ms, answer, state after
    let table = [
        ("", "me:2", "50000", "0", ""),
        ("me:1 1 20", "me:2", "50000", "1", "me:2 1 5"),
        ("me:1 1 20", "me:2", "300000", "1", "me:2 1 30"),
        ("me:1 3 20", "me:2", "50000", "1", "me:2 1 5"),
        ("you:1 1 20", "me:2", "50000", "-1", "you:1 1 20"),
        // An earlier copy has done it: the lease is not lowered.
        ("you:1 1 20", "you:1", "50000", "1", "you:1 1 20"),
        ("you:1 1 20", "you:1", "300000", "1", "you:1 1 30"),
    ];
    for (state, to, lease, answer, after) in table {
        for copies in 1..=2 {
            set(control, state);
            let messages = control.calls("publish");
            let answers: Vec<_> = (0..copies).map(|_| pass(control, to, lease)).collect();
            let what = format!("{state:?} passed to {to}, sent {copies} times");
            // Told once: to those who wait for the end of a longer lease.
            let shorter = state.starts_with("me:1") && lease == "50000";
            assert_eq!(
                control.calls("publish") - messages,
                i64::from(shorter),
                "{what}"
            );
            assert_eq!(answers, vec![answer; copies], "{what}");
            assert_eq!(seen(control), after, "{what}");
        }
    }
    control.run(&["DEL", "k"]);
    control.run(&["SET", "k", "text"]);
    assert!(pass(control, "me:2", "50000").contains("WRONGTYPE"));
}

/// A key that somebody else has made to last: its waiters were told that it has no end.
#[test]
fn pass_tells_of_a_lease_where_there_was_none() {
    let server = Server::start();
    let control = &mut server.control();
    set(control, "me:1 1 20");
    control.run(&["PERSIST", "k"]);
    let messages = control.calls("publish");
    control.run(&["EVAL", PASS, "1", "k", "me:1", "me:2", "50000", CHANNEL]);
    assert_eq!(seen(control), "me:2 1 5");
    assert_eq!(control.calls("publish") - messages, 1);
}

/// The first command writes nothing, and counts as a write all the same.
#[test]
fn pass_works_on_a_server_that_is_out_of_memory() {
    let server = Server::start();
    let control = &mut server.control();
    set(control, "me:1 1 20");
    control.run(&["CONFIG", "SET", "maxmemory", "1"]);
    let refused = control.try_run(&["HSET", "other", "field", "1"]);
    let refused = refused.expect_err("no memory").to_string();
    assert!(refused.contains("OOM"), "{refused}");
    let answer = run(control, Call(PASS, &["me:1", "me:2", "50000", "c"]));
    assert_eq!((answer.as_str(), seen(control).as_str()), ("1", "me:2 1 5"));
}

#[test]
fn renew_answers_for_each_key_and_never_shortens() {
    let server = Server::start();
    let control = &mut server.control();
    for (key, field, ttl) in [
        ("a", "me:1", "50000"),
        ("b", "me:1", "600000"),
        ("d", "you:1", "50000"),
    ] {
        control.run(&["HSET", key, field, "1"]);
        control.run(&["PEXPIRE", key, ttl]);
    }
    control.run(&["SET", "e", "text"]);
    let mut words = vec!["EVAL", RENEW, "6", "a", "b", "c", "d", "e", "f"];
    control.run(&["HSET", "f", "me:1", "1"]);
    control.run(&["PEXPIRE", "f", "50000"]);
    for lease in ["300000", "300000", "300000", "300000", "300000", "0"] {
        words.extend(["me:1", lease]);
    }
    assert_eq!(control.run(&words), "1 1 0 -1 -2 1");
    let left = ["a", "b", "d", "f"].map(|key| units(control.pttl(key)));
    assert_eq!(
        left,
        [30, 60, 5, 5],
        "raised, not lowered, not ours, looked at only"
    );
}

#[test]
fn force_unlock_frees_the_named_owner_only_and_only_until_its_limit() {
    let server = Server::start();
    let control = &mut server.control();
    let now = clock(control);
    let (past, soon) = ((now - 1).to_string(), (now + 600_000).to_string());
    // state, limit, first answer, second answer, state after
    let table = [
        ("", "0", "0", "0", ""),
        ("", &soon, "0", "0", ""),
        ("", &past, "-1", "-1", ""),
        ("me:1 2 20", "0", "1", "0", ""),
        ("me:1 2 20", &soon, "1", "0", ""),
        ("me:1 2 20", &past, "-1", "-1", "me:1 2 20"),
        ("you:1 1 20", "0", "0", "0", "you:1 1 20"),
        ("you:1 1 20", &soon, "0", "0", "you:1 1 20"),
        ("you:1 1 20", &past, "-1", "-1", "you:1 1 20"),
    ];
    for (state, limit, first, second, after) in table {
        set(control, state);
        let messages = control.calls("publish");
        let words = ["EVAL", FORCE_UNLOCK, "1", "k", "me:1", limit, CHANNEL];
        let answers = [control.run(&words), control.run(&words)];
        let what = format!("{state:?} forced until {limit}, now is {now}");
        assert_eq!(answers, [first, second], "{what}");
        assert_eq!(seen(control), after, "{what}");
        let published = control.calls("publish") - messages;
        assert_eq!(published, i64::from(first == "1"), "{what}");
    }
}

#[test]
fn inspect_shows_the_holder_and_the_clock_to_those_who_may_read_it() {
    let server = Server::start();
    let control = &mut server.control();
    control.run(&[
        "ACL", "SETUSER", "u", "on", "nopass", "~*", "+@all", "-time",
    ]);
    let mut user = server.control();
    user.run(&["AUTH", "u", "x"]);
    for with in [&["time"][..], &[]] {
        let words = [&["EVAL", INSPECT, "1", "k"], with].concat();
        set(control, "");
        assert_eq!(control.run(&words), "(nil)");
        set(control, "me:1 2 20");
        let before = clock(control);
        let shown = control.run(&words);
        let after = clock(control);
        let shown = shown.split_once(" me:1 2 ").expect("the holder").1;
        let shown = shown.parse::<i64>().expect("milliseconds");
        let expected = if with.is_empty() {
            -1..=-1
        } else {
            before..=after
        };
        assert!(expected.contains(&shown), "{expected:?}: {shown}");
        assert!(user.run(&words).ends_with(" me:1 2 -1"), "it may not");
    }
}

#[test]
fn what_is_no_lock_is_reported_and_left_alone() {
    let server = Server::start();
    let control = &mut server.control();
    control.run(&["SET", "k", "text"]);
    assert!(acquire(control, 1, "50000").contains("WRONGTYPE"));
    assert!(release(control, 0, "1").contains("WRONGTYPE"));
    assert_eq!(control.run(&["GET", "k"]), "text");

    control.run(&["DEL", "k"]);
    control.run(&["HSET", "k", "mode", "read", "java:1", "1"]);
    assert_eq!(acquire(control, 1, "50000"), "-3 a hash of another kind");
    assert_eq!(
        control.run(&["EVAL", INSPECT, "1", "k"]),
        "-3 a hash of another kind"
    );
    assert_eq!(control.hash("k"), "mode read java:1 1");

    for count in ["many", "-1", "1.5", "99999999999999999999"] {
        control.run(&["DEL", "k"]);
        control.run(&["HSET", "k", "me:1", count]);
        assert_eq!(acquire(control, 2, "50000"), "-3 a non-numeric hold count");
        assert_eq!(release(control, 1, "50000"), "-3");
        assert_eq!(control.hash("k"), format!("me:1 {count}"));
        assert_eq!(
            release(control, 0, "1"),
            "1",
            "the last release needs no count"
        );
        // Another field: an application's hash, which no lease ends.
        control.run(&["HSET", "k", "name", count]);
        for target in [1, 2] {
            let found = acquire(control, target, "50000");
            assert_eq!(found, "-3 a non-numeric hold count", "{count}");
        }
        assert_eq!(control.hash("k"), format!("name {count}"));
        assert_eq!(control.pttl("k"), -1);
    }
}

#[test]
fn a_lease_that_the_server_refuses_leaves_nothing_behind() {
    let server = Server::start();
    let control = &mut server.control();
    for lease in ["9223372036854775807", "nonsense"] {
        set(control, "");
        assert!(acquire(control, 1, lease).starts_with("error"));
        assert_eq!(seen(control), "");
        set(control, "me:1 1 20");
        assert!(acquire(control, 2, lease).starts_with("error"));
        assert_eq!(seen(control), "me:1 1 20");
    }
}

#[test]
fn touch_writes_to_the_first_lock_that_is_held_and_changes_nothing() {
    let server = Server::start();
    let control = &mut server.control();
    let monitor = Monitor::start(server.port);
    // state, count of another key with our field, answer, the key that is written to
    let table = [
        ("me:1 2 20", 0, "1", Some("k")),
        ("me:1 2 20", 3, "1", Some("k")),
        ("you:1 1 20", 3, "1", Some("other")),
        ("", 3, "1", Some("other")),
        ("you:1 1 20", 0, "0", None),
    ];
    for (state, other, answer, written) in table {
        for _ in 0..2 {
            set(control, state);
            control.run(&["DEL", "other"]);
            if other > 0 {
                control.run(&["HSET", "other", "me:2", &other.to_string()]);
            }
            let (before, other_before) = (seen(control), control.hash("other"));
            monitor.take(control);
            let words = ["EVAL", TOUCH, "2", "k", "other", "me:1", "me:2"];
            assert_eq!(control.run(&words), answer, "{state:?}");
            let writes: Vec<String> = monitor.take(control);
            let writes = writes.iter().filter(|line| line.contains("\"hincrby\""));
            let keys: Vec<_> = writes.filter_map(|line| line.split('"').nth(3)).collect();
            assert_eq!(keys, written.as_slice(), "{state:?}");
            assert_eq!(seen(control), before, "{state:?}");
            assert_eq!(control.hash("other"), other_before, "{state:?}");
        }
    }
}

const CONTRACT: Contract<'_> = Contract {
    calls: &[
        Call(ACQUIRE, &["me:1", "1", "50000"]),
        Call(ACQUIRE, &["me:1", "2", "300000"]),
        Call(ACQUIRE, &["me:1", "2", "50000"]),
        Call(RELEASE, &["me:1", "0", "1", CHANNEL]),
        Call(RELEASE, &["me:1", "1", "300000", CHANNEL]),
        Call(PASS, &["me:1", "me:2", "300000", CHANNEL]),
        Call(PASS, &["me:1", "me:2", "50000", CHANNEL]),
        Call(PASS, &["me:1", "you:1", "300000", CHANNEL]),
        Call(RENEW, &["me:1", "300000"]),
        Call(RENEW, &["me:1", "0"]),
        Call(FORCE_UNLOCK, &["me:1", "0", CHANNEL]),
        Call(FORCE_UNLOCK, &["me:1", "9999999999999", CHANNEL]),
        Call(INSPECT, &[]),
        Call(INSPECT, &["time"]),
        Call(TOUCH, &["me:1"]),
    ],
    states: &["", "me:1 1 20", "me:1 2 20", "you:1 1 20"],
    set,
    run,
    seen,
    without_own_lease,
};

/// Setting our own lease again without changing the count is harmless.
fn without_own_lease(state: &str) -> String {
    match state.rsplit_once(' ') {
        Some((holder, _)) if holder.starts_with("me:1") => holder.to_owned(),
        _ => state.to_owned(),
    }
}

#[test]
fn whichever_right_is_missing_the_state_is_unchanged_or_complete() {
    CONTRACT.holds_without_a_right(
        "hget hincrby hlen hkeys exists pttl pexpire publish del hexists hdel time resetchannels",
        6,
    );
}

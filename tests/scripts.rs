//! Each Lua file alone, on a real server: the whole table of states, every row also with the script
//! sent twice, and every right that a script needs taken away in every state.

use test_support::kinds::State;
use test_support::{
    ACQUIRE, Control, FORCE_UNLOCK, INSPECT, Monitor, PASS, RELEASE, RENEW, Server, TOUCH, ms, test,
};

const CHANNEL: &str = "redisson_lock__channel:{k}";

fn acquire(control: &mut Control, target: u32, lease: &str) -> String {
    shown(control.try_run(&[
        "EVAL",
        ACQUIRE,
        "1",
        "k",
        "me:1",
        &target.to_string(),
        lease,
    ]))
}

fn release(control: &mut Control, target: u32, lease: &str) -> String {
    shown(control.try_run(&[
        "EVAL",
        RELEASE,
        "1",
        "k",
        "me:1",
        &target.to_string(),
        lease,
        CHANNEL,
    ]))
}

fn shown(answer: Result<String, redis::RedisError>) -> String {
    answer.unwrap_or_else(|error| format!("error: {error}"))
}

/// Fields, and the lease rounded to seconds; "" if there is no key.
fn seen(control: &mut Control) -> String {
    match control.hash("k").as_str() {
        "" => String::new(),
        fields => format!("{fields} {}", (control.pttl("k") + 999) / 1000),
    }
}

#[test]
fn acquire_goes_to_its_target_and_says_what_it_found_also_when_sent_twice() {
    let server = Server::start();
    let control = &mut server.control();
    // state, target, lease in ms, answer, state after
    let table = [
        (State::Absent, 1, "5000", "1", "me:1 1 5"),
        (State::Absent, 2, "5000", "0", ""),
        (State::Ours(1), 1, "5000", "1", "me:1 1 20"),
        (State::Ours(1), 2, "5000", "1", "me:1 2 20"),
        (State::Ours(1), 2, "30000", "1", "me:1 2 30"),
        (State::Ours(3), 1, "5000", "1", "me:1 1 20"),
        (State::Ours(3), 4, "30000", "1", "me:1 4 30"),
        (State::Theirs, 1, "5000", "20 you:1", "you:1 1 20"),
        (State::Theirs, 2, "5000", "0", "you:1 1 20"),
    ];
    for (state, target, lease, answer, after) in table {
        for copies in 1..=2 {
            state.set(control);
            let mut answers: Vec<_> = (0..copies)
                .map(|_| acquire(control, target, lease))
                .collect();
            for answer in &mut answers {
                // The time left in a busy answer, rounded to seconds.
                if let Some((left, holder)) = answer.clone().split_once(' ') {
                    let left: i64 = left.parse().expect("milliseconds");
                    *answer = format!("{} {holder}", (left + 999) / 1000);
                }
            }
            assert_eq!(
                answers,
                vec![answer; copies],
                "{state:?} acquire to {target}"
            );
            assert_eq!(
                seen(control),
                after,
                "{state:?} acquire to {target}, sent {copies} times"
            );
        }
    }
}

#[test]
fn release_goes_to_its_target_and_publishes_only_the_last_one() {
    let server = Server::start();
    let control = &mut server.control();
    let mut listener = server.control();
    let mut messages = listener.connection.as_pubsub();
    messages.subscribe(CHANNEL).expect("subscribed");
    messages.set_read_timeout(Some(ms(20))).expect("set");
    // state, target, lease in ms, first answer, second answer, state after, messages of the first
    let table = [
        (State::Absent, 0, "1", "0", "0", "", 0),
        (State::Absent, 1, "5000", "0", "0", "", 0),
        // One has heard it.
        (State::Ours(1), 0, "1", "2", "0", "", 1),
        (State::Ours(3), 0, "1", "2", "0", "", 1),
        (State::Ours(2), 1, "5000", "1", "1", "me:1 1 20", 0),
        (State::Ours(2), 1, "30000", "1", "1", "me:1 1 30", 0),
        (State::Ours(1), 1, "5000", "1", "1", "me:1 1 20", 0),
        (State::Ours(1), 2, "5000", "1", "1", "me:1 2 20", 0),
        (State::Theirs, 0, "1", "-1", "-1", "you:1 1 20", 0),
        (State::Theirs, 1, "5000", "-1", "-1", "you:1 1 20", 0),
    ];
    for (state, target, lease, first, second, after, published) in table {
        state.set(control);
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
        let mut heard = 0;
        while let Ok(message) = messages.get_message() {
            assert_eq!(message.get_payload::<String>().expect("text"), "0");
            heard += 1;
        }
        assert_eq!(
            heard, published,
            "{state:?} release to {target}: messages of both copies"
        );
    }
}

#[test]
fn pass_moves_the_hold_with_a_lease_of_its_own_also_when_sent_twice() {
    let server = Server::start();
    let control = &mut server.control();
    let pass = |control: &mut Control, to: &str, lease: &str| {
        shown(control.try_run(&["EVAL", PASS, "1", "k", "me:1", to, lease, "c"]))
    };
    // state, receiver, lease in ms, answer, state after
    let table = [
        (State::Absent, "me:2", "5000", "0", ""),
        (State::Ours(1), "me:2", "5000", "1", "me:2 1 5"),
        (State::Ours(1), "me:2", "30000", "1", "me:2 1 30"),
        (State::Ours(3), "me:2", "5000", "1", "me:2 1 5"),
        (State::Theirs, "me:2", "5000", "-1", "you:1 1 20"),
        // An earlier copy has done it: the lease is not lowered.
        (State::Theirs, "you:1", "5000", "1", "you:1 1 20"),
        (State::Theirs, "you:1", "30000", "1", "you:1 1 30"),
    ];
    for (state, to, lease, answer, after) in table {
        for copies in 1..=2 {
            state.set(control);
            let messages = control.calls("publish");
            let answers: Vec<_> = (0..copies).map(|_| pass(control, to, lease)).collect();
            let what = format!("{state:?} passed to {to}, sent {copies} times");
            // Told once: to those who wait for the end of a longer lease.
            let shorter = matches!(state, State::Ours(_)) && lease == "5000";
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
    assert!(pass(control, "me:2", "5000").contains("WRONGTYPE"));
}

/// A key that somebody else has made to last: its waiters were told that it has no end.
#[test]
fn pass_tells_of_a_lease_where_there_was_none() {
    let server = Server::start();
    let control = &mut server.control();
    State::Ours(1).set(control);
    control.run(&["PERSIST", "k"]);
    let messages = control.calls("publish");
    control.run(&["EVAL", PASS, "1", "k", "me:1", "me:2", "5000", CHANNEL]);
    assert_eq!(seen(control), "me:2 1 5");
    assert_eq!(control.calls("publish") - messages, 1);
}

/// The first command writes nothing, and counts as a write all the same.
#[test]
fn pass_works_on_a_server_that_is_out_of_memory() {
    let server = Server::start();
    let control = &mut server.control();
    State::Ours(1).set(control);
    control.run(&["CONFIG", "SET", "maxmemory", "1"]);
    let refused = shown(control.try_run(&["HSET", "other", "field", "1"]));
    assert!(refused.contains("OOM"), "{refused}");
    let answer = shown(control.try_run(&["EVAL", PASS, "1", "k", "me:1", "me:2", "5000", "c"]));
    assert_eq!((answer.as_str(), seen(control).as_str()), ("1", "me:2 1 5"));
}

#[test]
fn renew_answers_for_each_key_and_never_shortens() {
    let server = Server::start();
    let control = &mut server.control();
    for (key, field, ttl) in [
        ("a", "me:1", "5000"),
        ("b", "me:1", "60000"),
        ("d", "you:1", "5000"),
    ] {
        control.run(&["HSET", key, field, "1"]);
        control.run(&["PEXPIRE", key, ttl]);
    }
    control.run(&["SET", "e", "text"]);
    let mut words = vec!["EVAL", RENEW, "6", "a", "b", "c", "d", "e", "f"];
    control.run(&["HSET", "f", "me:1", "1"]);
    control.run(&["PEXPIRE", "f", "5000"]);
    for lease in ["30000", "30000", "30000", "30000", "30000", "0"] {
        words.extend(["me:1", lease]);
    }
    assert_eq!(control.run(&words), "1 1 0 -1 -2 1");
    let left = ["a", "b", "d", "f"].map(|key| (control.pttl(key) + 999) / 1000);
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
    let (past, soon) = ((now - 1).to_string(), (now + 60_000).to_string());
    // state, limit, first answer, second answer, state after
    let table = [
        (State::Absent, "0", "0", "0", ""),
        (State::Absent, &soon, "0", "0", ""),
        (State::Absent, &past, "-1", "-1", ""),
        (State::Ours(2), "0", "1", "0", ""),
        (State::Ours(2), &soon, "1", "0", ""),
        (State::Ours(2), &past, "-1", "-1", "me:1 2 20"),
        (State::Theirs, "0", "0", "0", "you:1 1 20"),
        (State::Theirs, &soon, "0", "0", "you:1 1 20"),
        (State::Theirs, &past, "-1", "-1", "you:1 1 20"),
    ];
    for (state, limit, first, second, after) in table {
        state.set(control);
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

/// The milliseconds of the server's clock.
fn clock(control: &mut Control) -> i64 {
    let time = control.run(&["TIME"]);
    let (seconds, micros) = time.split_once(' ').expect("two numbers");
    let number = |text: &str| text.parse::<i64>().expect("a number");
    number(seconds) * 1_000 + number(micros) / 1_000
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
        State::Absent.set(control);
        assert_eq!(control.run(&words), "(nil)");
        State::Ours(2).set(control);
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
    assert!(acquire(control, 1, "5000").contains("WRONGTYPE"));
    assert!(release(control, 0, "1").contains("WRONGTYPE"));
    assert_eq!(control.run(&["GET", "k"]), "text");

    control.run(&["DEL", "k"]);
    control.run(&["HSET", "k", "mode", "read", "java:1", "1"]);
    assert_eq!(acquire(control, 1, "5000"), "-3 a hash of another kind");
    assert_eq!(
        control.run(&["EVAL", INSPECT, "1", "k"]),
        "-3 a hash of another kind"
    );
    assert_eq!(control.hash("k"), "mode read java:1 1");

    for count in ["many", "-1", "1.5", "99999999999999999999"] {
        control.run(&["DEL", "k"]);
        control.run(&["HSET", "k", "me:1", count]);
        assert_eq!(acquire(control, 2, "5000"), "-3 a non-numeric hold count");
        assert_eq!(release(control, 1, "5000"), "-3");
        assert_eq!(control.hash("k"), format!("me:1 {count}"));
        assert_eq!(
            release(control, 0, "1"),
            "1",
            "the last release needs no count"
        );
        // Another field: an application's hash, which no lease ends.
        control.run(&["HSET", "k", "name", count]);
        for target in [1, 2] {
            let found = acquire(control, target, "5000");
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
        State::Absent.set(control);
        assert!(acquire(control, 1, lease).starts_with("error"));
        assert_eq!(seen(control), "");
        State::Ours(1).set(control);
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
        (State::Ours(2), 0, "1", Some("k")),
        (State::Ours(2), 3, "1", Some("k")),
        (State::Theirs, 3, "1", Some("other")),
        (State::Absent, 3, "1", Some("other")),
        (State::Theirs, 0, "0", None),
    ];
    for (state, other, answer, written) in table {
        for _ in 0..2 {
            state.set(control);
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

#[test]
fn whichever_right_is_missing_the_state_is_unchanged_or_complete() {
    let server = Server::start();
    let admin = &mut server.control();
    let rights = [
        "hget", "hincrby", "hlen", "hkeys", "exists", "pttl", "pexpire", "publish", "del",
        "hexists", "hdel", "time",
    ];
    let states = [State::Absent, State::Ours(1), State::Ours(2), State::Theirs];
    let scripts: [(&str, Vec<&str>); 15] = [
        (ACQUIRE, vec!["me:1", "1", "5000"]),
        (ACQUIRE, vec!["me:1", "2", "30000"]),
        (ACQUIRE, vec!["me:1", "2", "5000"]),
        (RELEASE, vec!["me:1", "0", "1", CHANNEL]),
        (RELEASE, vec!["me:1", "1", "30000", CHANNEL]),
        (PASS, vec!["me:1", "me:2", "30000", CHANNEL]),
        (PASS, vec!["me:1", "me:2", "5000", CHANNEL]),
        (PASS, vec!["me:1", "you:1", "30000", CHANNEL]),
        (RENEW, vec!["me:1", "30000"]),
        (RENEW, vec!["me:1", "0"]),
        (FORCE_UNLOCK, vec!["me:1", "0", CHANNEL]),
        (FORCE_UNLOCK, vec!["me:1", "9999999999999", CHANNEL]),
        (INSPECT, vec![]),
        (INSPECT, vec!["time"]),
        (TOUCH, vec!["me:1"]),
    ];
    let (mut refused, mut runs) = (0, 0);
    for missing in rights
        .map(|right| format!("-{right}"))
        .into_iter()
        .chain(["resetchannels".to_owned()])
    {
        admin.run(&[
            "ACL", "SETUSER", "u", "reset", "on", "nopass", "~k", "&*", "+@all",
        ]);
        admin.run(&["ACL", "SETUSER", "u", &missing]);
        let user = &mut server.control();
        user.run(&["AUTH", "u", "x"]);
        for (script, args) in &scripts {
            for state in states {
                // What the script does with every right, for comparison.
                state.set(admin);
                let words = [vec!["EVAL", script, "1", "k"], args.clone()].concat();
                let _ = admin.try_run(&words);
                let complete = seen(admin);

                state.set(admin);
                let before = seen(admin);
                let answer = user.try_run(&words);
                let after = seen(admin);
                runs += 1;
                refused += usize::from(answer.is_err());
                // Setting our own lease again without changing the count is harmless.
                let only_lease = before.rsplit_once(' ').map(|pair| pair.0)
                    == after.rsplit_once(' ').map(|pair| pair.0)
                    && matches!(state, State::Ours(_));
                assert!(
                    after == before || after == complete || only_lease,
                    "{missing}, {state:?}, {args:?}: {before:?} became {after:?}, complete is {complete:?}"
                );
                assert!(
                    answer.is_err() || after == complete,
                    "{missing}, {state:?}, {args:?}: a false yes"
                );
                if !after.is_empty() {
                    assert!(
                        admin.pttl("k") > 0,
                        "{missing}, {state:?}, {args:?}: a lock without a lease"
                    );
                }
            }
        }
    }
    assert!(
        refused > runs / 6,
        "the test bites: {refused} of {runs} runs were refused"
    );
}

//! The Lua files of fenced locks, each alone on a real server: the table of states of the lock and of its token, every
//! row also with the script sent twice and with another party between the copies, and every right taken away in every
//! state.

use test_support::contract::{Attempt, Call, Contract, eval, seen_hash, set_hash};
use test_support::kinds::token_key;
use test_support::{Control, RELEASE, Server, test};

const ACQUIRE: &str = include_str!("../lua/fenced/acquire.lua");
const PASS: &str = include_str!("../lua/fenced/pass.lua");

const CHANNEL: &str = "redisson_lock__channel:{k}";

/// Makes the state that [`seen`] shows.
fn set(control: &mut Control, state: &str) {
    let key = &token_key("k");
    let (lock, token) = state.split_once('/').expect("lock / token");
    let mut pipe = redis::pipe();
    set_hash(&mut pipe, "k", lock);
    pipe.cmd("DEL").arg(key);
    match token.trim() {
        "" => {}
        // As a MultiLock of JVMs leaves it.
        "7~" => {
            pipe.cmd("SET").arg(key).arg(&["7", "PX", "500000"]);
        }
        "list" => {
            pipe.cmd("RPUSH").arg(key).arg("7");
        }
        number => {
            pipe.cmd("SET").arg(key).arg(number);
        }
    };
    pipe.exec(&mut control.connection).expect("set");
}

/// "me:1 1 20 / 7": field, count, and the units left of the lease; and the token, with a `~` if it expires, or "list" if
/// it is one.
fn seen(control: &mut Control) -> String {
    let lock = seen_hash(control, "k");
    format!("{lock} / {}", token(control)).trim().to_owned()
}

fn token(control: &mut Control) -> String {
    let key = &token_key("k");
    match control.run(&["TYPE", key]).as_str() {
        "none" => String::new(),
        "list" => "list".to_owned(),
        _ if control.pttl(key) > 0 => format!("{}~", control.run(&["GET", key])),
        _ => control.run(&["GET", key]),
    }
}

fn run(control: &mut Control, call: Call<'_>) -> String {
    eval(control, call, &["k", &token_key("k")])
}

const TAKES: Call<'_> = Call(ACQUIRE, &["me:1", "1", "50000"]);
const NESTS: Call<'_> = Call(ACQUIRE, &["me:1", "2", "300000"]);
const NESTS_SHORTER: Call<'_> = Call(ACQUIRE, &["me:1", "2", "50000"]);
const PASSES: Call<'_> = Call(PASS, &["me:1", "me:2", "50000", CHANNEL]);
const PASSES_TO_ANOTHER: Call<'_> = Call(PASS, &["me:1", "you:1", "300000", CHANNEL]);

#[test]
fn acquire_raises_the_token_of_a_free_lock_once_and_reads_it_in_its_own() {
    CONTRACT.rows(
        TAKES,
        "
        /                     | 1                | me:1 1 5 / 1
        / 7                   | 8                | me:1 1 5 / 8
        / 7~                  | 8                | me:1 1 5 / 8
        / 9007199254740993    | 9007199254740994 | me:1 1 5 / 9007199254740994
        me:1 1 20 / 7         | 7                | =
        me:1 1 20 / 7~        | 7                | me:1 1 20 / 7
        me:1 3 20 / 7         | 7                | me:1 1 20 / 7
        you:1 1 20 / 7        | 20 you:1         | =
        you:1 1 20 /          | 20 you:1         | =
        // Without a token the lock is not taken, and a hold is not changed.
        / many                | -4 no integer    | =
        / list                | -4 no integer    | =
        / 9223372036854775807 | -4 no integer    | =
        me:1 1 20 /           | -4 no token      | =
        me:1 1 20 / list      | -4 no token      | =
        me:1 1 20 / many      | -4 no token      | =
        me:1 1 20 / -5        | -4 no token      | =
        me:1 1 20 / 0         | -4 no token      | =
        ",
    );
    CONTRACT.rows(
        NESTS,
        "
        me:1 1 20 / 7  | 7           | me:1 2 30 / 7
        me:1 2 20 / 7~ | 7           | me:1 2 30 / 7
        // The outer hold is gone: there is nothing to nest in, and the token belongs to others.
        / 7            | 0           | =
        / 7~           | 0           | =
        you:1 1 20 / 7 | 0           | =
        me:1 1 20 /    | -4 no token | =
        ",
    );
}

/// Each attempt raises a number below 1, and takes nothing until it is one.
#[test]
fn a_number_below_one_is_no_token() {
    let server = Server::start();
    let control = &mut server.control();
    for (call, lock, refused) in [
        (TAKES, "", "-4 a number below 1"),
        (PASSES, "me:1 1 20", "-4"),
    ] {
        set(control, &format!("{lock} / -2"));
        for _ in 0..2 {
            assert_eq!(run(control, call), refused);
            assert_eq!(seen_hash(control, "k"), lock);
        }
        assert_eq!(run(control, call), "1");
        assert_eq!(token(control), "1");
    }
}

#[test]
fn pass_raises_the_token_once_for_its_receiver() {
    CONTRACT.rows(
        PASSES,
        "
        / 7                             | 0                | =
        me:1 1 20 / 7                   | 8                | me:2 1 5 / 8
        me:1 3 20 / 7                   | 8                | me:2 1 5 / 8
        me:1 1 20 / 7~                  | 8                | me:2 1 5 / 8
        me:1 1 20 /                     | 1                | me:2 1 5 / 1
        me:1 1 20 / 9007199254740993    | 9007199254740994 | me:2 1 5 / 9007199254740994
        you:1 1 20 / 7                  | -1               | =
        // The receiver can have no token: nothing is moved.
        me:1 1 20 / many                | -4               | =
        me:1 1 20 / list                | -4               | =
        me:1 1 20 / 9223372036854775807 | -4               | =
        ",
    );
    // An earlier copy has moved it: its token is read, its lease is not lowered.
    CONTRACT.rows(
        PASSES_TO_ANOTHER,
        "
        you:1 1 20 / 7    | 7  | you:1 1 30 / 7
        you:1 1 20 /      | -4 | =
        you:1 1 20 / list | -4 | =
        you:1 1 20 / -5   | -4 | =
        ",
    );
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
            let found = run(control, Call(ACQUIRE, &["me:1", target, "200000"]));
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
    let inspect = Call(include_str!("../lua/fenced/inspect.lua"), &[]);
    for (state, shown) in [
        ("/ 7", "nil"),
        ("me:1 2 20 / 7", "20 me:1 2 -1 7"),
        ("you:1 1 20 / 7~", "20 you:1 1 -1 7"),
        ("you:1 1 20 / many", "20 you:1 1 -1 many"),
        ("me:1 1 20 /", "20 me:1 1 -1 nil"),
        ("me:1 1 20 / list", "20 me:1 1 -1 nil"),
    ] {
        set(control, state);
        assert_eq!(run(control, inspect), shown, "{state}");
        // It is no right that a look needs.
        let found = run(user, inspect);
        assert!(
            !found.contains("error") && !found.ends_with(" 7"),
            "{found}"
        );
        assert_eq!(seen(control), state);
    }
}

/// A copy that comes later finds what another party has left: it never makes a second holder, and never answers with
/// a token that somebody else has had.
#[test]
fn another_party_between_two_copies_is_neither_joined_nor_repeated() {
    let calls = [
        ("TAKES", TAKES),
        ("NESTS", NESTS_SHORTER),
        ("PASSES", PASSES),
        ("you:1 attempts", Call(ACQUIRE, &["you:1", "1", "200000"])),
        ("free", Call("redis.call('del', KEYS[1]) return 1", &[])),
    ];
    CONTRACT.rows_between(
        &calls,
        "
        TAKES  | / 7            | 8        | you:1 attempts             | 8        | me:1 1 5 / 8
        TAKES  | / 7            | 8        | free                       | 9        | me:1 1 5 / 9
        TAKES  | / 7            | 8        | free, you:1 attempts       | 20 you:1 | you:1 1 20 / 9
        TAKES  | / 7            | 8        | free, you:1 attempts, free | 10       | me:1 1 5 / 10
        TAKES  | you:1 1 20 / 7 | 20 you:1 | free                       | 8        | me:1 1 5 / 8
        TAKES  | you:1 1 20 / 7 | 20 you:1 | free, you:1 attempts       | 20 you:1 | you:1 1 20 / 8
        NESTS  | me:1 1 20 / 7  | 7        | you:1 attempts             | 7        | me:1 2 20 / 7
        NESTS  | me:1 1 20 / 7  | 7        | free                       | 0        | / 7
        NESTS  | me:1 1 20 / 7  | 7        | free, you:1 attempts       | 0        | you:1 1 20 / 8
        NESTS  | me:1 1 20 / 7  | 7        | free, you:1 attempts, free | 0        | / 8
        PASSES | me:1 1 20 / 7  | 8        | you:1 attempts             | 8        | me:2 1 5 / 8
        PASSES | me:1 1 20 / 7  | 8        | free                       | 0        | / 8
        PASSES | me:1 1 20 / 7  | 8        | free, you:1 attempts       | -1       | you:1 1 20 / 9
        PASSES | me:1 1 20 / 7  | 8        | free, you:1 attempts, free | 0        | / 9
        PASSES | you:1 1 20 / 7 | -1       | free                       | 0        | / 7
        PASSES | you:1 1 20 / 7 | -1       | free, you:1 attempts       | -1       | you:1 1 20 / 8
        PASSES | / 7            | 0        | free, you:1 attempts       | -1       | you:1 1 20 / 8
        ",
    );
}

/// Those of a fenced lock. Those of its release take the key of the token for an argument more, which is none of theirs.
const CONTRACT: Contract<'_> = Contract {
    calls: &[
        TAKES,
        NESTS_SHORTER,
        NESTS,
        PASSES,
        Call(PASS, &["me:1", "me:2", "300000", CHANNEL]),
        PASSES_TO_ANOTHER,
        Call(RELEASE, &["me:1", "0", "10000", CHANNEL]),
    ],
    states: &[
        "/",
        "/ 7",
        "/ 7~",
        "me:1 1 20 /",
        "me:1 1 20 / 7",
        "me:1 1 20 / 7~",
        "me:1 2 20 /",
        "me:1 2 20 / 7",
        "me:1 2 20 / 7~",
        "you:1 1 20 /",
        "you:1 1 20 / 7",
        "you:1 1 20 / 7~",
    ],
    set,
    run,
    seen,
    without_own_lease: str::to_owned,
};

/// A step that is refused may have raised the lease before.
fn without_lease(lock: &str) -> &str {
    lock.rsplit_once(' ').map_or("", |pair| pair.0)
}

#[test]
fn whichever_right_is_missing_the_lock_is_unchanged_or_complete_and_no_token_is_lost() {
    let rights = "hget hincrby hlen hkeys hexists hdel exists pttl pexpire publish del get incr persist resetchannels";
    CONTRACT.without_each_right(rights, 8, |attempt| {
        let Attempt {
            what,
            before,
            after,
            complete,
            ..
        } = attempt;
        assert!(
            attempt.failed || after == complete,
            "{what}: a false yes, {after}"
        );
        let parts = |state: &str| {
            let (lock, token) = state.split_once('/').expect("lock / token");
            (lock.trim().to_owned(), token.trim().to_owned())
        };
        let [(lock, was), (now, is), (complete, complete_token)] =
            [parts(before), parts(after), parts(complete)];
        let same_hold = without_lease(&now) == without_lease(&lock);
        assert!(
            same_hold || now == complete,
            "{what}: {after}, complete is {complete}"
        );
        // A number that is raised and not used does no harm; one that is lowered, or ends, would.
        let [before, raised] = [&was, &is].map(|token| {
            let number = token.trim_end_matches('~').parse::<i64>();
            number.unwrap_or_default()
        });
        assert!(raised == before || raised == before + 1, "{what}: {after}");
        let has_new_holder = !same_hold && now.starts_with("me:") && attempt.call.0 != RELEASE;
        assert!(
            !has_new_holder || is == complete_token,
            "{what}: held without its token, {after}"
        );
    });
}

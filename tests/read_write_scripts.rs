//! The Lua files of read-write locks, each alone on a real server: the table of states of the lock and the keys of its read
//! holds, every row also with the script sent twice and with another party between the copies, and every right taken away
//! in every state. And random calls, once against twice.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use test_support::contract::{
    Call, Contract, Listener, RANDOM_CALLS, RandomCalls, eval, items, lease, number, rounded,
    shown, text, units,
};
use test_support::kinds;
use test_support::{Control, Rolls, Server, test};

const READ_ACQUIRE: &str = kinds::READ.acquire;
const READ_RELEASE: &str = kinds::READ.release;
const READ_RENEW: &str = kinds::READ.renew;
const WRITE_ACQUIRE: &str = kinds::WRITE.acquire;
const WRITE_RELEASE: &str = kinds::WRITE.release;
const FORCE_UNLOCK: &str = kinds::WRITE.force_unlock;
const INSPECT: &str = kinds::WRITE.inspect;
const WRITE_RENEW: &str = test_support::RENEW;

const CHANNEL: &str = "redisson_rwlock:{k}";

/// The key of an owner's read hold.
fn hold_key(name: &str, owner: &str, nth: usize) -> String {
    format!("{{{name}}}:{owner}:rwlock_timeout:{nth}")
}

/// The keys of a call about this lock.
fn keys(name: &str, call: Call<'_>) -> Vec<String> {
    let mut keys = vec![name.to_owned()];
    if [READ_ACQUIRE, READ_RELEASE, READ_RENEW].contains(&call.0) {
        keys.push(hold_key(name, call.1[0], 1));
    }
    keys
}

fn run(control: &mut Control, call: Call<'_>) -> String {
    eval(control, call, &keys("k", call))
}

/// The lock, and the keys of read holds with the milliseconds left of each.
const LOOK: &str = "\
local found = {}
for _, key in ipairs(redis.call('keys', '{' .. KEYS[1] .. '}:*')) do
  found[#found + 1] = key
  found[#found + 1] = redis.call('pttl', key)
end
return {redis.call('pttl', KEYS[1]), redis.call('hgetall', KEYS[1]), found}";

/// What stands under the keys of a lock.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    left: i64,
    fields: BTreeMap<String, String>,
    /// By owner and number, the milliseconds left.
    holds: BTreeMap<(String, usize), i64>,
}

impl Seen {
    fn read(value: &redis::Value) -> Self {
        let [left, fields, found] = items(value) else {
            panic!("{value:?}")
        };
        let fields = items(fields).chunks(2);
        let holds = items(found).chunks(2).map(|pair| {
            let key = text(&pair[0]);
            let (owner, nth) = key
                .split_once("}:")
                .and_then(|(_, rest)| rest.split_once(":rwlock_timeout:"))
                .expect("the key of a read hold");
            let nth = nth.parse().expect("a number");
            ((owner.to_owned(), nth), number(&pair[1]))
        });
        Self {
            left: number(left),
            fields: fields
                .map(|pair| (text(&pair[0]), text(&pair[1])))
                .collect(),
            holds: holds.collect(),
        }
    }

    /// "read 20: me:1 2 [20 _] you:1 1 [30]": mode ("none" if there is no field for it) and units left, then each owner,
    /// its count, and the units left of the keys of its holds, `_` where one is missing. After a `+` the keys of an owner
    /// that has no field. "" if there is nothing.
    fn shown(&self) -> String {
        let mut shown = String::new();
        if self.left != -2 {
            let mode = self.fields.get("mode").map_or("none", String::as_str);
            write!(shown, "{mode} {}:", lease(self.left)).expect("written");
        }
        let owners = self.fields.keys().filter(|field| *field != "mode").cloned();
        let strays = self.holds.keys().map(|(owner, _)| owner.clone());
        let owners: BTreeSet<String> = owners.chain(strays).collect();
        for owner in owners {
            match self.fields.get(&owner) {
                Some(count) => write!(shown, " {owner} {count}"),
                None => write!(shown, " + {owner}"),
            }
            .expect("written");
            let last = self.holds.keys().filter(|(of, _)| *of == owner);
            let last = last.map(|(_, nth)| *nth).max().unwrap_or(0);
            let count = self.fields.get(&owner).and_then(|count| count.parse().ok());
            let count = count.filter(|_| !owner.ends_with(":write")).unwrap_or(0);
            let holds = (1..=last.max(count)).map(|nth| {
                let left = self.holds.get(&(owner.clone(), nth));
                left.map_or_else(|| "_".to_owned(), |left| lease(*left).to_string())
            });
            let holds: Vec<String> = holds.collect();
            if !holds.is_empty() {
                write!(shown, " [{}]", holds.join(" ")).expect("written");
            }
        }
        shown.trim_start().to_owned()
    }
}

fn seen(control: &mut Control) -> String {
    let mut command = redis::cmd("EVAL");
    let look = command.arg(LOOK).arg(1).arg("k");
    let value = look.query(&mut control.connection).expect("answered");
    Seen::read(&value).shown()
}

/// Makes the state that [`Seen::shown`] shows.
fn set(control: &mut Control, state: &str) {
    let mut pipe = redis::pipe();
    pipe.cmd("FLUSHALL");
    let (lock, holders) = state.split_once(':').unwrap_or_default();
    let (mode, left) = lock.split_once(' ').unwrap_or_default();
    // The state of an owner that has no field has no colon of its own.
    let holders = if state.starts_with('+') {
        state
    } else {
        holders
    };
    if !["", "none"].contains(&mode) && !state.starts_with('+') {
        pipe.cmd("HSET").arg(&["k", "mode", mode]);
    }
    let holders = holders.replace('[', "[ ").replace(']', " ]");
    let mut words = holders.split_whitespace();
    let mut owner = "";
    while let Some(word) = words.next() {
        if word == "[" {
            let holds = words.by_ref().take_while(|word| *word != "]");
            for (nth, left) in (1..).zip(holds) {
                let key = hold_key("k", owner, nth);
                match left.parse::<i64>() {
                    Ok(-1) => {
                        pipe.cmd("SET").arg(key).arg("1");
                    }
                    Ok(left) => {
                        let seconds = format!("{left}0");
                        pipe.cmd("SET").arg(key).arg(&["1", "EX", &seconds]);
                    }
                    Err(_) => {}
                }
            }
        } else if word == "+" {
            owner = words.next().expect("an owner");
        } else {
            owner = word;
            let count = words.next().expect("a count");
            pipe.cmd("HSET").arg(&["k", owner, count]);
        }
    }
    if left.parse::<i64>().is_ok_and(|left| left > 0) {
        pipe.cmd("EXPIRE").arg("k").arg(format!("{left}0"));
    }
    pipe.exec(&mut control.connection).expect("set");
}

const READ: Call<'_> = Call(READ_ACQUIRE, &["me:1", "1", "300000"]);
const READ_AGAIN: Call<'_> = Call(READ_ACQUIRE, &["me:1", "2", "300000"]);
const WRITE: Call<'_> = Call(WRITE_ACQUIRE, &["me:1:write", "1", "300000"]);
const WRITE_AGAIN: Call<'_> = Call(WRITE_ACQUIRE, &["me:1:write", "2", "300000"]);
const READ_ENDS: Call<'_> = Call(READ_RELEASE, &["me:1", "0", "1", CHANNEL]);
const READ_STAYS: Call<'_> = Call(READ_RELEASE, &["me:1", "1", "100000", CHANNEL]);
const WRITE_ENDS: Call<'_> = Call(WRITE_RELEASE, &["me:1:write", "0", "1", CHANNEL]);
const WRITE_STAYS: Call<'_> = Call(WRITE_RELEASE, &["me:1:write", "1", "300000", CHANNEL]);
const RENEW: Call<'_> = Call(READ_RENEW, &["me:1", "300000"]);
const FORCED: Call<'_> = Call(FORCE_UNLOCK, &["me:1", "0", CHANNEL, "publish"]);
const WRITE_FORCED: Call<'_> = Call(FORCE_UNLOCK, &["me:1:write", "0", CHANNEL, "publish"]);

#[test]
fn read_acquire_joins_readers_and_an_own_writer() {
    CONTRACT.rows(
        READ,
        "
                                              | 2                         | read 30: me:1 1 [30]
        read 20: you:1 1 [20]                 | 2                         | read 30: me:1 1 [30] you:1 1 [20]
        read 60: you:1 1 [60]                 | 2                         | read 60: me:1 1 [30] you:1 1 [60]
        write 20: me:1:write 1                | 1                         | write 30: me:1 1 [30] me:1:write 1
        write 20: you:1:write 1               | 20 you:1:write            | =
        write 20: you:1 1 [20] you:1:write 1  | 20 you:1:write            | =
        write -1: you:1:write 1               | -1 you:1:write            | =
        // An earlier copy has taken it, or an outer hold.
        read 20: me:1 1 [20]                  | 2                         | read 30: me:1 1 [30]
        read 60: me:1 1 [60]                  | 2                         | =
        read 20: me:1 3 [10 20 20]            | 2                         | read 30: me:1 1 [30]
        read 20: me:1 2 [60 20]               | 2                         | read 30: me:1 1 [60]
        write 20: me:1 2 [20 20] me:1:write 1 | 1                         | write 30: me:1 1 [30] me:1:write 1
        // A hold that had lost its key has one again.
        read 20: me:1 1 [_]                   | 2                         | read 30: me:1 1 [30]
        // What an earlier lock has left.
        + me:1 [60]                           | 2                         | read 30: me:1 1 [60]
        + me:1 [10]                           | 2                         | read 30: me:1 1 [30]
        none 20: me:1 1 [_]                   | -3 a hash of another kind | =
        ",
    );
    CONTRACT.rows(
        READ_AGAIN,
        "
                                           | 0 | =
        read 20: you:1 1 [20]              | 0 | =
        write 20: me:1:write 1             | 0 | =
        read 20: me:1 1 [20] you:1 1 [20]  | 2 | read 30: me:1 2 [20 30] you:1 1 [20]
        read 60: me:1 1 [60]               | 2 | read 60: me:1 2 [60 30]
        // The key of the last hold covers all.
        read 20: me:1 1 [_]                | 2 | read 30: me:1 2 [_ 30]
        write 20: me:1 1 [20] me:1:write 1 | 1 | write 30: me:1 2 [20 30] me:1:write 1
        ",
    );
}

#[test]
fn read_release_leaves_the_lock_to_those_who_have_live_keys() {
    CONTRACT.rows(
        READ_ENDS,
        "
                                                           | 0  | 0  | =
        read 20: you:1 1 [20]                              | -1 | -1 | =
        write 20: me:1:write 1                             | -1 | -1 | =
        read 20: me:1 1 [20]                               | 1  | 0  |
        read 20: me:1 3 [20 10 20]                         | 1  | 0  |
        read 20: me:1 2 [_ 20]                             | 1  | 0  |
        // The lease was promised to this owner: others have what their longest key has.
        read 90: me:1 1 [90] you:1 2 [20 40] your:1 1 [30] | 1  | -1 | read 40: you:1 2 [20 40] your:1 1 [30]
        // A JVM that reads has lowered it.
        read 5: me:1 1 [5] you:1 1 [40]                    | 1  | -1 | read 40: you:1 1 [40]
        read -1: me:1 1 [90] you:1 1 [40]                  | 1  | -1 | read 40: you:1 1 [40]
        read 90: me:1 1 [90] you:1 2 [_ 40]                | 1  | -1 | read 40: you:1 2 [_ 40]
        // A key without an expiry does not end.
        read 90: me:1 1 [90] you:1 1 [-1]                  | 1  | -1 | read 90: you:1 1 [-1]
        // Readers that are dead keep nothing.
        read 90: me:1 1 [90] you:1 1 [_]                   | 1  | 0  |
        read 90: me:1 1 [90] you:1 2 [_ _] you:2 1 [40]    | 1  | -1 | read 40: you:1 2 [_ _] you:2 1 [40]
        write 20: me:1 2 [20 20] me:1:write 1              | 1  | -1 | write 20: me:1:write 1
        none 20: me:1 1 [_]                                | -3 | -3 | =
        ",
    );
    CONTRACT.rows(
        READ_STAYS,
        "
                                               | 0  | =
        read 20: you:1 1 [20]                  | -1 | =
        read 20: me:1 2 [20 20]                | 1  | read 20: me:1 1 [20]
        // The last one that stays has what is promised.
        read 20: me:1 2 [5 20]                 | 1  | read 20: me:1 1 [10]
        read 5: me:1 2 [5 5]                   | 1  | read 10: me:1 1 [10]
        read 20: me:1 2 [_ 20]                 | 1  | read 20: me:1 1 [10]
        read 20: me:1 1 [20]                   | 1  | =
        write 20: me:1 3 [20 5 5] me:1:write 1 | 1  | write 20: me:1 1 [20] me:1:write 1
        read 90: me:1 2 [5 90] you:1 1 [90]    | 1  | read 90: me:1 1 [10] you:1 1 [90]
        ",
    );
    CONTRACT.rows(
        Call(READ_RELEASE, &["me:1", "2", "100000", CHANNEL]),
        "
        read 20: me:1 3 [5 5 20] | 1 | read 20: me:1 2 [5 10]
        read 20: me:1 3 [20 5 5] | 1 | read 20: me:1 2 [20 10]
        read 20: me:1 3 [_ 5 5]  | 1 | read 20: me:1 2 [_ 10]
        read 20: me:1 1 [20]     | 1 | read 20: me:1 2 [20 10]
        ",
    );
}

#[test]
fn write_acquire_takes_a_free_lock_alone() {
    CONTRACT.rows(
        WRITE,
        "
                                             | 1                         | write 30: me:1:write 1
        write 20: me:1:write 1               | 1                         | write 30: me:1:write 1
        write 60: me:1:write 3               | 1                         | write 60: me:1:write 1
        write 20: me:1 1 [20] me:1:write 1   | 1                         | write 30: me:1 1 [20] me:1:write 1
        write 20: you:1:write 1              | 20 you:1:write            | =
        write 20: you:1 1 [20] you:1:write 1 | 20 you:1:write            | =
        read 20: you:1 1 [20]                | 20 you:1                  | =
        // Also where its key is gone: the hash is what excludes.
        read 20: you:1 1 [_]                 | 20 you:1                  | =
        // It would wait for itself.
        read 20: me:1 1 [20] you:1 1 [20]    | -6 20                     | =
        none 20: me:1 1 [_]                  | -3 a hash of another kind | =
        ",
    );
    CONTRACT.rows(
        WRITE_AGAIN,
        "
                                | 0 | =
        read 20: me:1 1 [20]    | 0 | =
        write 20: you:1:write 1 | 0 | =
        write 20: me:1:write 1  | 1 | write 30: me:1:write 2
        write 60: me:1:write 1  | 1 | write 60: me:1:write 2
        ",
    );
}

#[test]
fn write_release_frees_the_lock_or_leaves_it_to_the_own_read_holds() {
    CONTRACT.rows(
        WRITE_ENDS,
        "
                                              | 0  | 0  | =
        read 20: me:1 1 [20]                  | -1 | -1 | =
        write 20: you:1:write 1               | -1 | -1 | =
        write 20: me:1:write 1                | 1  | 0  |
        write 20: me:1:write 3                | 1  | 0  |
        // A downgrade.
        write 20: me:1 2 [20 10] me:1:write 1 | 1  | -1 | read 20: me:1 2 [20 10]
        none 20: me:1:write 1                 | -3 | -3 | =
        ",
    );
    CONTRACT.rows(
        WRITE_STAYS,
        "
                                           | 0  | =
        write 20: me:1:write 2             | 1  | write 30: me:1:write 1
        write 60: me:1 1 [20] me:1:write 2 | 1  | write 60: me:1 1 [20] me:1:write 1
        write 20: you:1:write 1            | -1 | =
        ",
    );
}

#[test]
fn read_renew_raises_the_lock_and_the_key_of_each_hold() {
    CONTRACT.rows(
        RENEW,
        "
                                               | 0  | =
        read 20: you:1 1 [20]                  | -1 | =
        read 20: me:1 3 [20 60 _] you:1 1 [20] | 1  | read 30: me:1 3 [30 60 30] you:1 1 [20]
        write 20: me:1 1 [20] me:1:write 1     | 1  | write 30: me:1 1 [30] me:1:write 1
        read 60: me:1 1 [60]                   | 1  | =
        none 20: me:1 1 [_]                    | -2 | =
        ",
    );
    CONTRACT.rows(
        Call(READ_RENEW, &["me:1", "0"]),
        "
        read 20: me:1 2 [20 _] | 1 | =
        read -1: me:1 1 [-1]   | 1 | =
        ",
    );
    CONTRACT.rows(
        Call(WRITE_RENEW, &["me:1:write", "300000"]),
        "
        write 20: me:1 1 [20] me:1:write 1 | 1  | write 30: me:1 1 [20] me:1:write 1
        read 20: me:1 1 [20]               | -1 | =
        ",
    );
}

#[test]
fn read_renew_goes_through_all_of_them_whatever_stands_before() {
    let server = Server::start();
    let control = &mut server.control();
    set(control, "read 20: me:1 1 [20]");
    control.run(&["SET", "text", "text"]);
    let first = |name| hold_key(name, "me:1", 1);
    let keys = ["text", "none", "k"].map(|name| [name.to_owned(), first(name)]);
    for copy in 1..=2 {
        let mut command = redis::cmd("EVAL");
        command.arg(READ_RENEW).arg(6).arg(keys.concat());
        let args = ["me:1", "300000"].repeat(3);
        let answer = command.arg(args).query(&mut control.connection);
        assert_eq!(shown(&answer.expect("answered")), "-2 0 1", "copy {copy}");
        assert_eq!(seen(control), "read 30: me:1 1 [30]", "copy {copy}");
    }
}

#[test]
fn force_unlock_removes_the_named_holders_alone_until_its_limit() {
    let forced = ["me:1", "0", CHANNEL, "publish", "my:1", "me:1:write"];
    CONTRACT.rows(
        Call(FORCE_UNLOCK, &forced),
        "
                                                         | 0 | 0 | =
        read 20: you:1 1 [20]                            | 0 | 0 | =
        read 20: me:1 2 [20 10] my:1 1 [20]              | 1 | 0 |
        read 90: me:1 2 [90 10] my:1 1 [20] you:1 1 [40] | 2 | 0 | read 40: you:1 1 [40]
        read 90: me:1 1 [90] you:1 1 [_]                 | 1 | 0 |
        write 20: me:1 1 [20] me:1:write 1               | 1 | 0 |
        write 20: me:1:write 1                           | 1 | 0 |
        write 20: you:1 1 [20] you:1:write 1             | 0 | 0 | =
        none 20: me:1 1 [_]                              | 0 | 0 | =
        ",
    );
    // The write hold alone, and the read holds alone.
    CONTRACT.rows(
        WRITE_FORCED,
        "
        write 90: me:1 1 [20] me:1:write 1 | 2 | 0 | read 20: me:1 1 [20]
        write 90: me:1 1 [_] me:1:write 1  | 1 | 0 |
        ",
    );
    CONTRACT.rows(
        FORCED,
        "
        write 90: me:1 1 [20] me:1:write 1 | 2 | 0 | write 90: me:1:write 1
        ",
    );
    CONTRACT.rows(
        Call(FORCE_UNLOCK, &["me:1", "1", CHANNEL, "publish"]),
        "
        read 20: me:1 1 [20] | -1 | =
        ",
    );
}

#[test]
fn inspect_shows_the_mode_and_all_holders() {
    let server = Server::start();
    let control = &mut server.control();
    for (state, shown) in [
        ("", "nil"),
        ("read 20: me:1 2 [20 10]", "20 me:1 2 now read me:1 2 20"),
        (
            "read 20: me:1 1 [20] you:1 1 [_]",
            "20 me:1 1 now read me:1 1 20 you:1 1 -2",
        ),
        (
            "write 90: me:1 1 [20] me:1:write 3",
            "90 me:1:write 3 now write me:1 1 20 me:1:write 3 90",
        ),
        (
            "write -1: me:1:write 1",
            "-1 me:1:write 1 now write me:1:write 1 -1",
        ),
        ("none 20: me:1 1 [_]", "-3 a hash of another kind"),
        ("read 20: me:1 many", "-3 a non-numeric hold count"),
    ] {
        set(control, state);
        assert_eq!(run(control, Call(INSPECT, &[])), shown, "{state}");
        assert_eq!(seen(control), state);
    }
}

/// Keys of other types, and counts that no client of ours writes.
#[test]
fn what_is_no_read_write_lock_is_reported_and_left_alone() {
    let server = Server::start();
    let control = &mut server.control();
    set(control, "");
    control.run(&["SET", "k", "text"]);
    let refused = [
        READ,
        WRITE,
        READ_ENDS,
        READ_STAYS,
        WRITE_ENDS,
        Call(INSPECT, &[]),
        FORCED,
    ];
    for call in refused {
        assert!(run(control, call).contains("WRONGTYPE"), "{:?}", call.1);
        assert_eq!(control.run(&["KEYS", "*"]), "k", "{:?}", call.1);
    }
    for count in ["many", "-1", "1.5", "999999"] {
        let state = format!("read 20: me:1 {count}");
        set(control, &state);
        for call in [READ, READ_AGAIN] {
            assert_eq!(run(control, call), "-3 a non-numeric hold count");
        }
        for (call, answer) in [(READ_STAYS, "-3"), (READ_ENDS, "-3"), (RENEW, "-2")] {
            assert_eq!(run(control, call), answer, "{state}");
        }
        let fields = control.run(&["HGETALL", "k"]);
        assert_eq!(fields, format!("mode read me:1 {count}"));
        assert_eq!(control.run(&["KEYS", "*"]), "k", "{state}");
    }
    for count in ["many", "-1", "1.5", "99999999999999999999"] {
        let state = format!("write 20: me:1:write {count}");
        set(control, &state);
        assert_eq!(run(control, WRITE_AGAIN), "-3 a non-numeric hold count");
        assert_eq!(run(control, WRITE_STAYS), "-3");
        assert_eq!(seen(control), state);
        // Other fields: an application's hash, which no lease ends.
        for fields in [
            ["mode", "write", "name", count],
            ["mode", "write", "name:write", count],
            ["mode", "read", "name", count],
        ] {
            set(control, "");
            control.run(&[&["HSET", "k"], &fields[..]].concat());
            for call in [READ, WRITE] {
                let found = run(control, call);
                let is_refused = ["-3 a non-numeric hold count", "-3 no writer"];
                assert!(is_refused.contains(&&*found), "{fields:?}: {found}");
            }
            assert_eq!(control.run(&["HGETALL", "k"]), fields.join(" "));
            assert_eq!(
                (control.pttl("k"), control.run(&["KEYS", "*"])),
                (-1, "k".into())
            );
        }
    }
}

#[test]
fn a_lease_that_the_server_refuses_leaves_nothing_behind() {
    let server = Server::start();
    let control = &mut server.control();
    for lease in ["9223372036854775807", "nonsense"] {
        for state in [
            "",
            "read 20: you:1 1 [20]",
            "read 20: me:1 1 [20]",
            "write 20: me:1:write 1",
        ] {
            for (script, owner) in [(READ_ACQUIRE, "me:1"), (WRITE_ACQUIRE, "me:1:write")] {
                set(control, state);
                let answer = run(control, Call(script, &[owner, "1", lease]));
                let is_busy = script == WRITE_ACQUIRE && state.starts_with("read");
                assert!(answer.starts_with("error") || is_busy, "{state}: {answer}");
                assert_eq!(seen(control), state, "{owner}");
            }
        }
    }
}

#[test]
fn a_release_is_announced_to_those_whom_it_lets_in() {
    let server = Server::start();
    let control = &mut server.control();
    let mut listens = server.control();
    let mut listener = Listener::of(&mut listens);
    // call, state, answer, messages
    let table = [
        (READ_ENDS, "read 20: me:1 1 [20]", "2", "0"),
        (READ_ENDS, "read 20: me:1 1 [20] you:1 1 [_]", "2", "0"),
        (READ_ENDS, "read 20: me:1 1 [20] you:1 1 [20]", "1", ""),
        (READ_ENDS, "write 20: me:1 1 [20] me:1:write 1", "1", ""),
        (READ_ENDS, "", "0", ""),
        (READ_STAYS, "read 20: me:1 2 [20 20]", "1", ""),
        // Readers of Redisson since 3.8.2 wake up by a 1; those before know the 0 alone.
        (WRITE_ENDS, "write 20: me:1:write 1", "2", "1 0"),
        (WRITE_ENDS, "write 20: me:1 1 [20] me:1:write 1", "2", "1 0"),
        (WRITE_ENDS, "write 20: you:1:write 1", "-1", ""),
        (WRITE_STAYS, "write 20: me:1:write 2", "1", ""),
        (FORCED, "read 20: me:1 1 [20]", "1", "1 0"),
        (WRITE_FORCED, "write 20: me:1:write 1", "1", "1 0"),
        (
            WRITE_FORCED,
            "write 20: me:1 1 [20] me:1:write 1",
            "2",
            "1 0",
        ),
        (FORCED, "write 20: me:1 1 [20] me:1:write 1", "2", ""),
        (FORCED, "write 20: you:1:write 1", "0", ""),
    ];
    for (call, state, answer, told) in table {
        set(control, state);
        let what = format!("{state}: {:?}", call.1);
        assert_eq!(run(control, call), answer, "{what}");
        let heard = listener.heard().into_iter().map(|(channel, message)| {
            assert_eq!(channel, CHANNEL);
            message
        });
        assert_eq!(heard.collect::<Vec<_>>().join(" "), told, "{what}");
    }
}

/// A copy that comes after another party has been there: no hold of another owner ends, none is left without its key, and no
/// reader is beside another owner's writer.
#[test]
fn another_party_between_two_copies_keeps_what_it_has() {
    let calls = [
        ("READ", READ),
        ("READ_AGAIN", READ_AGAIN),
        ("READ_ENDS", READ_ENDS),
        ("READ_STAYS", READ_STAYS),
        ("WRITE", WRITE),
        ("WRITE_ENDS", WRITE_ENDS),
        ("WRITE_STAYS", WRITE_STAYS),
        ("RENEW", RENEW),
        ("FORCED", FORCED),
        ("you:1 reads", Call(READ_ACQUIRE, &["you:1", "1", "400000"])),
        (
            "its read ends",
            Call(READ_RELEASE, &["you:1", "0", "1", CHANNEL]),
        ),
        (
            "you:1 writes",
            Call(WRITE_ACQUIRE, &["you:1:write", "1", "400000"]),
        ),
        (
            "its write ends",
            Call(WRITE_RELEASE, &["you:1:write", "0", "1", CHANNEL]),
        ),
        ("all expires", Call("redis.call('flushall') return 1", &[])),
    ];
    CONTRACT.rows_between(
        &calls,
        "
        READ        |                                    | 2              | you:1 reads    | 2  | read 40: me:1 1 [30] you:1 1 [40]
        READ        |                                    | 2              | you:1 writes   | 2  | read 30: me:1 1 [30]
        READ        |                                    | 2              | all expires    | 2  | read 30: me:1 1 [30]
        READ        | read 20: you:1 1 [20]              | 2              | its read ends  | 2  | read 30: me:1 1 [30]
        READ        | write 20: you:1:write 1            | 20 you:1:write | its write ends | 2  | read 30: me:1 1 [30]
        // The write hold, inside of which it is, ends between: what remains is a read hold alone.
        READ        | write 20: me:1:write 1             | 1              | WRITE_ENDS     | 2  | read 30: me:1 1 [30]
        READ        | write 20: me:1:write 1             | 1              | all expires    | 2  | read 30: me:1 1 [30]
        READ_AGAIN  | read 20: me:1 1 [20]               | 2              | all expires    | 0  |
        READ_ENDS   | read 20: me:1 1 [20]               | 1              | you:1 reads    | -1 | read 40: you:1 1 [40]
        READ_ENDS   | read 20: me:1 1 [20]               | 1              | you:1 writes   | -1 | write 40: you:1:write 1
        READ_ENDS   | read 20: me:1 1 [20] you:1 1 [20]  | 1              | its read ends  | 0  |
        READ_ENDS   | write 20: me:1 1 [20] me:1:write 1 | 1              | WRITE_ENDS     | 0  |
        READ_STAYS  | read 20: me:1 2 [20 20]            | 1              | you:1 reads    | 1  | read 40: me:1 1 [20] you:1 1 [40]
        READ_STAYS  | read 20: me:1 2 [20 20]            | 1              | all expires    | 0  |
        WRITE       |                                    | 1              | you:1 writes   | 1  | write 30: me:1:write 1
        WRITE       |                                    | 1              | all expires    | 1  | write 30: me:1:write 1
        WRITE       | read 20: you:1 1 [20]              | 20 you:1       | its read ends  | 1  | write 30: me:1:write 1
        WRITE       | write 20: you:1:write 1            | 20 you:1:write | its write ends | 1  | write 30: me:1:write 1
        WRITE_ENDS  | write 20: me:1:write 1             | 1              | you:1 writes   | -1 | write 40: you:1:write 1
        WRITE_ENDS  | write 20: me:1:write 1             | 1              | you:1 reads    | -1 | read 40: you:1 1 [40]
        WRITE_ENDS  | write 20: me:1 1 [20] me:1:write 1 | 1              | you:1 reads    | -1 | read 40: me:1 1 [20] you:1 1 [40]
        WRITE_ENDS  | write 20: me:1 1 [20] me:1:write 1 | 1              | READ_ENDS      | 0  |
        WRITE_STAYS | write 20: me:1:write 2             | 1              | all expires    | 0  |
        RENEW       | read 20: me:1 1 [20]               | 1              | you:1 reads    | 1  | read 40: me:1 1 [30] you:1 1 [40]
        RENEW       | read 20: me:1 1 [20]               | 1              | all expires    | 0  |
        FORCED      | read 20: me:1 1 [20]               | 1              | you:1 reads    | 0  | read 40: you:1 1 [40]
        FORCED      | read 20: me:1 1 [20]               | 1              | you:1 writes   | 0  | write 40: you:1:write 1
        ",
    );
}

const STATES: [&str; 13] = [
    "",
    "read 20: me:1 1 [20]",
    "read 20: me:1 3 [20 20 20]",
    "read 20: me:1 1 [_]",
    "read 20: me:1 3 [5 _ 20]",
    "read 90: me:1 1 [90] you:1 1 [40]",
    "read 90: me:1 1 [90] you:1 1 [_]",
    "read 20: you:1 2 [20 20]",
    "write 20: you:1:write 1",
    "write 20: me:1:write 1",
    "write 20: me:1:write 2",
    "write 20: me:1 1 [20] me:1:write 1",
    "write 20: me:1 2 [20 20] me:1:write 2",
];

const CALLS: [Call<'_>; 14] = [
    READ,
    READ_AGAIN,
    Call(READ_ACQUIRE, &["me:1", "2", "100000"]),
    READ_ENDS,
    READ_STAYS,
    Call(READ_RELEASE, &["me:1", "1", "300000", CHANNEL]),
    RENEW,
    WRITE,
    WRITE_AGAIN,
    WRITE_ENDS,
    WRITE_STAYS,
    Call(
        FORCE_UNLOCK,
        &["me:1", "0", CHANNEL, "publish", "me:1:write"],
    ),
    WRITE_FORCED,
    Call(INSPECT, &[]),
];

/// Without the lease of the lock: a call that is refused after it has raised that of its own hold does no harm.
fn without_own_lease(state: &str) -> String {
    let without = match state.split_once(':') {
        Some((_, holders)) if holders.contains(" me:1") => holders,
        _ => state,
    };
    without.to_owned()
}

const CONTRACT: Contract<'_> = Contract {
    calls: &CALLS,
    states: &STATES,
    set,
    run,
    seen,
    without_own_lease,
};

#[test]
fn whichever_right_is_missing_the_lock_and_its_keys_are_unchanged_or_complete() {
    CONTRACT.holds_without_a_right(
        "hget hset hdel hgetall hkeys hlen hexists exists pttl pexpire set del publish time resetchannels",
        5,
    );
}

#[test]
fn the_scripts_work_on_a_server_that_is_out_of_memory() {
    CONTRACT.holds_without_memory();
}

/// A random call, or a piece of Lua for what happens without one.
fn roll(rolls: &mut Rolls) -> (&'static str, Vec<&'static str>) {
    const OWNERS: [[&str; 2]; 3] = [
        ["me:1", "me:1:write"],
        ["me:2", "me:2:write"],
        ["you:1", "you:1:write"],
    ];
    // Far apart from each other: the moments between two calls do not matter.
    let lease = rolls.of(&["100000", "200000", "300000", "400000"]);
    let [reader, writer] = OWNERS[rolls.below(3)];
    let up = rolls.of(&["1", "1", "1", "2", "3"]);
    let down = rolls.of(&["0", "0", "0", "1", "2"]);
    match rolls.below(20) {
        0..=4 => (READ_ACQUIRE, vec![reader, up, lease]),
        5..=8 => (READ_RELEASE, vec![reader, down, lease, "c"]),
        9 => (READ_RENEW, vec![reader, lease]),
        10..=12 => (WRITE_ACQUIRE, vec![writer, up, lease]),
        13..=15 => (WRITE_RELEASE, vec![writer, down, lease, "c"]),
        16 => (WRITE_RENEW, vec![writer, lease]),
        17 => (FORCE_UNLOCK, vec![reader, "0", "c", "publish", writer]),
        // A reader is dead: its keys end before the lock, which others keep.
        18 => (DIES, vec![reader]),
        // The lease ends, and no key lasts longer.
        _ => (LAPSES, Vec::new()),
    }
}

const DIES: &str = "\
for n = 1, 3 do redis.call('del', '{' .. KEYS[1] .. '}:' .. ARGV[1] .. ':rwlock_timeout:' .. n) end
return 1";
const LAPSES: &str = "\
for _, key in ipairs(redis.call('keys', '{' .. KEYS[1] .. '}:*')) do redis.call('del', key) end
redis.call('del', KEYS[1])
return 1";

impl Seen {
    /// With times in hundreds of seconds.
    fn rounded(&self) -> Self {
        let round = |left: i64| (left + 99_999) / 100_000;
        let holds = self.holds.iter();
        Self {
            left: round(self.left),
            fields: self.fields.clone(),
            holds: holds
                .map(|(hold, left)| (hold.clone(), round(*left)))
                .collect(),
        }
    }

    /// `dead` are the owners whose keys have ended, and who have said nothing since.
    fn check(&self, dead: &BTreeSet<String>, what: &str) {
        assert_eq!(self.fields.is_empty(), self.left == -2, "{what}: no lease");
        let mode = self.fields.get("mode").map(String::as_str);
        let owners = self.fields.keys().filter(|field| *field != "mode");
        let (writers, readers): (Vec<_>, Vec<_>) = owners.partition(|it| it.ends_with(":write"));
        let has_mode = match mode {
            Some("read") => writers.is_empty() && !readers.is_empty(),
            Some("write") => writers.len() == 1,
            other => other.is_none() && self.fields.is_empty(),
        };
        assert!(has_mode, "{what}: {self:?}");
        for writer in writers {
            let alone = readers
                .iter()
                .all(|reader| format!("{reader}:write") == *writer);
            assert!(
                alone,
                "{what}: a reader beside another owner's writer, {self:?}"
            );
        }
        for reader in readers {
            let count: usize = self.fields[reader].parse().expect("a number");
            for nth in 1..=count {
                let left = self.holds.get(&(reader.clone(), nth));
                // The key of the last hold covers all.
                let covered =
                    left.map_or(nth < count, |left| *left > 0 && *left <= self.left + 1_000);
                let fine = covered || dead.contains(reader);
                assert!(fine, "{what}: hold {nth} of {reader}, {self:?}");
            }
        }
        for ((owner, nth), left) in &self.holds {
            assert!(*left > 0, "{what}: a key without an expiry");
            let count = self.fields.get(owner).and_then(|count| count.parse().ok());
            assert!(
                count >= Some(*nth),
                "{what}: a key without a hold, {self:?}"
            );
        }
    }
}

/// One world in which each call is sent once, and one in which it is sent twice: what the first copies answer and what
/// they leave is the same.
#[test]
fn of_twenty_thousand_random_calls_a_second_copy_changes_nothing() {
    let server = Server::start();
    let mut dead = BTreeSet::new();
    let (mut several, mut both) = (0, 0);
    let calls = RandomCalls {
        seed: 0x9E37_79B9_7F4A_7C15,
        roll: &roll,
        keys: &keys,
        look: LOOK,
        slack: 0,
    };
    calls.send(&mut server.control(), |sent| {
        let (what, Call(script, args)) = (&sent.what, sent.call);
        let [once, twice] = [sent.once, sent.twice].map(Seen::read);
        assert_eq!(once.rounded(), twice.rounded(), "{what}");
        if script == DIES {
            dead.insert(args[0].to_owned());
        } else if [READ_ACQUIRE, READ_RENEW, READ_RELEASE].contains(&script)
            && rounded(sent.answer, 0).contains(['1', '2'])
        {
            dead.remove(args[0]);
        }
        dead.retain(|owner| once.fields.contains_key(owner));
        once.check(&dead, what);
        twice.check(&dead, what);
        several += usize::from(once.fields.len() > 2);
        both += usize::from(once.fields.len() > 2 && once.fields["mode"] == "write");
    });
    assert!(
        several > RANDOM_CALLS / 10 && both > RANDOM_CALLS / 50,
        "several readers {several}, both halves {both}"
    );
}

/// Commands that the scripts of a server have called since this was asked last.
fn commands_called(control: &mut Control) -> u64 {
    let stats = control.run(&["INFO", "COMMANDSTATS"]);
    control.run(&["CONFIG", "RESETSTAT"]);
    let calls = stats.lines().filter(|line| line.starts_with("cmdstat_"));
    let calls = calls.filter_map(|line| {
        line.split_once("calls=")?
            .1
            .split(',')
            .next()?
            .parse::<u64>()
            .ok()
    });
    calls.sum()
}

/// Another program may have written any count: it costs no more than 300 keys. As not all of them were read, neither
/// the lock nor its lease is taken from that reader.
#[test]
fn a_count_without_keys_costs_a_bounded_number_of_commands() {
    let server = Server::start();
    let control = &mut server.control();
    let forced = ["me:1", "0", CHANNEL, "publish"];
    let theirs = ["you:1", "0", CHANNEL, "publish"];
    for (call, answer, left) in [
        (READ_ENDS, "1", "read 90: you:1 99999"),
        (Call(FORCE_UNLOCK, &forced), "2", "read 90: you:1 99999"),
        (Call(FORCE_UNLOCK, &theirs), "2", "read 90: me:1 1 [90]"),
    ] {
        control.run(&["FLUSHALL"]);
        control.run(&["HSET", "k", "mode", "read", "me:1", "1", "you:1", "99999"]);
        control.run(&["EXPIRE", "k", "900"]);
        control.run(&["SET", &hold_key("k", "me:1", 1), "1", "EX", "900"]);
        commands_called(control);
        assert_eq!(run(control, call), answer, "{:?}", call.1);
        let called = commands_called(control);
        assert!(called < 700, "{:?}: {called} commands", call.1);
        let shown = seen(control);
        let shown = shown.split(" [_").next().expect("a state");
        assert_eq!(shown, left, "{:?}", call.1);
    }
    commands_called(control);
    run(control, Call(INSPECT, &[]));
    let called = commands_called(control);
    assert!(called < 400, "{called} commands");
    // The longest key is among those of the last 300 holds: nothing else is known to last longer.
    control.run(&["FLUSHALL"]);
    control.run(&["HSET", "k", "mode", "read", "me:1", "1", "you:1", "300"]);
    control.run(&["EXPIRE", "k", "900"]);
    control.run(&["SET", &hold_key("k", "you:1", 1), "1", "EX", "400"]);
    assert_eq!(run(control, READ_ENDS), "1");
    assert_eq!(units(control.pttl("k")), 40, "all keys were read");
    // Of those that are not read one may last longer than those that are.
    for (call, answer) in [(READ_ENDS, "1"), (Call(FORCE_UNLOCK, &forced), "2")] {
        control.run(&["FLUSHALL"]);
        control.run(&["HSET", "k", "mode", "read", "me:1", "1", "you:1", "301"]);
        control.run(&["EXPIRE", "k", "900"]);
        control.run(&["SET", &hold_key("k", "you:1", 301), "1", "EX", "400"]);
        assert_eq!(run(control, call), answer, "{:?}", call.1);
        assert_eq!(units(control.pttl("k")), 90, "{:?}", call.1);
    }
}

/// In a cluster, which it recognizes by more keys. Otherwise the call that follows would find none that it is to remove, and
/// leave a lock that nobody has.
#[test]
fn a_forced_unlock_that_lacks_keys_keeps_one_that_it_names() {
    let server = Server::start();
    let control = &mut server.control();
    control.run(&[
        "HSET", "k", "mode", "read", "me:1", "1", "me:2", "1", "you:1", "1",
    ]);
    control.run(&["EXPIRE", "k", "900"]);
    let [mine, second, theirs] = ["me:1", "me:2", "you:1"].map(|owner| hold_key("k", owner, 1));
    let args = ["me:1", "0", CHANNEL, "publish", "me:2"];
    let mut force = |keys: &[&str]| {
        let count = keys.len().to_string();
        let words = ["EVAL", FORCE_UNLOCK, &count].into_iter();
        let words: Vec<_> = words.chain(keys.iter().copied()).chain(args).collect();
        control.run(&words)
    };
    let wanted = force(&["k", &mine, &second]);
    assert_eq!(wanted, format!("-7 {theirs}"));
    let fields = fields_of_k(&server);
    assert!(["me:1", "me:2"].iter().any(|named| fields.contains(named)));
    assert!(fields.contains("you:1"), "{fields}");
    let wanted = force(&["k", &theirs]);
    assert!(wanted.starts_with("-7 "), "{wanted}");
    assert_eq!(force(&["k", &mine, &second]), "1");
}

fn fields_of_k(server: &Server) -> String {
    server.control().run(&["HKEYS", "k"])
}

/// However many holds there are inside, one more costs the same.
#[test]
fn a_nested_read_costs_the_same_whatever_its_depth() {
    let server = Server::start();
    let control = &mut server.control();
    let mut costs = Vec::new();
    for depth in (1..=300).chain((0..300).rev()) {
        let depth = depth.to_string();
        let last = costs.len() >= 300;
        let args = match last {
            false => vec!["me:1", &depth, "300000"],
            true => vec!["me:1", &depth, "300000", CHANNEL],
        };
        let script = if last { READ_RELEASE } else { READ_ACQUIRE };
        commands_called(control);
        run(control, Call(script, &args));
        costs.push(commands_called(control));
    }
    let most = costs.iter().max();
    assert!(most < Some(&25), "{costs:?}");
    assert_eq!(seen(control), "");
}

//! The scripts of fair and read-write locks.

use std::collections::BTreeSet;

use fastrand::Rng;

use super::compare::{compare, once_against_twice};
use super::{Act, FIELDS, KEYS, channel, channels_of_locks};

/// A script of a fair lock with the part about the queue before it, as it is sent.
macro_rules! fair {
    ($name:literal) => {
        concat!(
            include_str!("../../../../../lua/fair/queue.lua"),
            include_str!(concat!("../../../../../lua/fair/", $name, ".lua"))
        )
    };
}

macro_rules! read_write {
    ($name:literal) => {
        include_str!(concat!("../../../../../lua/read_write/", $name, ".lua"))
    };
}

/// One that reads the keys of read holds, with the part about them before it, as it is sent.
macro_rules! with_reads {
    ($name:literal) => {
        concat!(read_write!("keys"), read_write!($name))
    };
}

const RENEW: &str = include_str!("../../../../../lua/renew.lua");
const TIMES: [&str; 3] = ["100000", "200000", "300000"];
const WAYS: [&str; 5] = ["publish", "publish", "spublish", "both", "auto"];
/// One of each more often, so that releases find their holds.
const OFTEN: [&str; 4] = [KEYS[0], KEYS[0], KEYS[0], KEYS[1]];
const OWNERS: [&str; 5] = [FIELDS[0], FIELDS[0], FIELDS[0], FIELDS[1], FIELDS[2]];
/// None, one that is over, and one that is not.
const LIMITS: [&str; 3] = ["0", "1", "9999999999999"];

/// Another program's owner.
const UNKNOWN: &str = "another:1";

fn one_of<T: Copy>(rng: &mut Rng, list: &[T]) -> T {
    list[rng.usize(0..list.len())]
}

fn script(source: &'static str, keys: Vec<String>, args: &[&str]) -> Act {
    Act::Script {
        source,
        keys,
        args: args.iter().map(|&word| word.to_owned()).collect(),
    }
}

fn fair_keys(key: &str) -> Vec<String> {
    let queue = ["redisson_lock_queue", "redisson_lock_timeout"];
    let queue = queue.map(|prefix| channel(prefix, key));
    [vec![key.to_owned()], queue.to_vec()].concat()
}

fn fair(rng: &mut Rng) -> Act {
    let (key, field) = (one_of(rng, &OFTEN), one_of(rng, &OWNERS));
    let (lease, wait) = (one_of(rng, &TIMES), one_of(rng, &TIMES));
    let (channel, way) = (channel("redisson_lock__channel", key), one_of(rng, &WAYS));
    let (keys, flag) = (fair_keys(key), one_of(rng, &["0", "1", "1"]));
    let (queue, timeouts) = (keys[1].clone(), keys[2].clone());
    match rng.u8(0..200) {
        0..90 => {
            let target = one_of(rng, &["1", "1", "1", "2", "3"]);
            // A place that is prolonged by a millisecond would end at one server and not yet at the other.
            let stays = if flag == "0" { flag } else { wait };
            let args = [field, target, lease, wait, stays, &channel, way];
            script(fair!("acquire"), keys, &args)
        }
        90..140 => {
            let target = one_of(rng, &["0", "0", "1", "2"]);
            let args = [field, target, lease, &channel, way, wait, flag];
            script(fair!("release"), keys, &args)
        }
        140..150 => {
            let mut fields = FIELDS;
            rng.shuffle(&mut fields);
            let mut args = vec![channel.as_str(), way];
            for field in &fields[..rng.usize(1..=FIELDS.len())] {
                args.extend([*field, one_of(rng, &TIMES)]);
            }
            script(fair!("leave"), keys, &args)
        }
        150..158 => {
            let args = [field, one_of(rng, &LIMITS), &channel, way];
            script(fair!("force_unlock"), keys, &args)
        }
        158..168 => script(
            include_str!("../../../../../lua/fair/inspect.lua"),
            keys,
            &[],
        ),
        168..174 => script(RENEW, vec![key.to_owned()], &[field, lease]),
        // A place is over, or has no score, or is that of somebody who is not known.
        174..184 => Act::plain(&["ZADD", &timeouts, "XX", "1", field]),
        184..187 => Act::plain(&["ZREM", &timeouts, field]),
        187 => Act::plain(&["RPUSH", &queue, UNKNOWN]),
        188 => Act::plain(&["SET", one_of(rng, &[&queue, &timeouts]), "text"]),
        189..191 => Act::plain(&["DEL", &queue, &timeouts]),
        191..194 => Act::plain(&["DEL", key]),
        194 => Act::plain(&["HSET", key, field, "many"]),
        195 => Act::plain(&["HSET", key, "mode", "read"]),
        196 => Act::plain(&["PERSIST", key]),
        _ => Act::RunOut(key.to_owned()),
    }
}

#[test]
fn the_scripts_of_fair_locks_run_as_on_a_real_server() {
    let of_unknown = KEYS.map(|key| {
        let channel = channel("redisson_lock__channel", key);
        format!("{channel}:{UNKNOWN}")
    });
    let channels = [channels_of_locks(), of_unknown.to_vec()].concat();
    let seen = compare(0..700, 40, &channels, fair);
    assert!(seen.scripts > 10_000, "{seen:?}");
    assert!(seen.errors > 100 && seen.messages > 200, "{seen:?}");
    assert!(
        seen.keys["list"] > 1_000 && seen.keys["zset"] > 1_000,
        "{seen:?}"
    );
}

#[test]
fn a_second_copy_of_a_script_of_fair_locks_changes_nothing() {
    let seen = once_against_twice(0..seeds(), 60, fair);
    println!("{seen:?}");
    assert!(
        seen.keys["list"] > 1_000 && seen.keys["zset"] > 1_000,
        "{seen:?}"
    );
}

#[test]
fn a_second_copy_of_a_script_of_read_write_locks_changes_nothing() {
    let seen = once_against_twice(0..seeds(), 60, read_write);
    println!("{seen:?}");
    assert!(
        seen.keys["string"] > 1_000 && seen.keys["hash"] > 1_000,
        "{seen:?}"
    );
}

/// Of a run in the first tier, unless `TWICE_SEEDS` says another number.
fn seeds() -> u64 {
    let wanted = std::env::var("TWICE_SEEDS").ok();
    wanted.map_or(150, |seeds| seeds.parse().expect("a number"))
}

/// The key of a read hold.
fn hold_key(key: &str, field: &str, nth: usize) -> String {
    match key.contains('{') {
        true => format!("{key}:{field}:rwlock_timeout:{nth}"),
        false => format!("{{{key}}}:{field}:rwlock_timeout:{nth}"),
    }
}

fn read_write(rng: &mut Rng) -> Act {
    let (key, field) = (one_of(rng, &OFTEN), one_of(rng, &OWNERS));
    let (lease, way) = (one_of(rng, &TIMES), one_of(rng, &WAYS));
    let channel = channel("redisson_rwlock", key);
    let (lock, hold) = (vec![key.to_owned()], hold_key(key, field, rng.usize(1..4)));
    let first = vec![key.to_owned(), hold_key(key, field, 1)];
    let writer = format!("{field}:write");
    let target = one_of(rng, &["1", "1", "2", "3"]);
    let lower = one_of(rng, &["0", "0", "1", "2"]);
    match rng.u8(0..200) {
        0..44 => script(with_reads!("read_acquire"), first, &[field, target, lease]),
        44..72 => script(
            read_write!("write_acquire"),
            lock,
            &[&writer, target, lease],
        ),
        72..112 => {
            let args = [field, lower, lease, &channel, way];
            script(with_reads!("read_release"), first, &args)
        }
        112..142 => {
            let args = [&writer, lower, lease, &channel, way];
            script(read_write!("write_release"), lock, &args)
        }
        142..154 => {
            let (mut keys, mut args) = (Vec::new(), Vec::new());
            for key in &KEYS[..rng.usize(1..=2)] {
                let field = one_of(rng, &FIELDS);
                keys.extend([(*key).to_owned(), hold_key(key, field, 1)]);
                args.extend([field, one_of(rng, &["0", TIMES[0], TIMES[2]])]);
            }
            script(with_reads!("read_renew"), keys, &args)
        }
        154..158 => script(RENEW, lock, &[&writer, lease]),
        158..168 => {
            let named = BTreeSet::from([field.to_owned(), writer, one_of(rng, &FIELDS).to_owned()]);
            let named: Vec<&str> = named.iter().map(String::as_str).collect();
            let mut args = vec![named[0], one_of(rng, &LIMITS), &channel, way];
            args.extend(&named[1..rng.usize(1..=named.len())]);
            script(with_reads!("force_unlock"), lock, &args)
        }
        168..178 => script(with_reads!("inspect"), lock, &[]),
        178..183 => Act::plain(&["DEL", key]),
        183 => Act::plain(&["SET", key, "text"]),
        184 => Act::plain(&["HSET", key, field, "many"]),
        185 => Act::plain(&[
            "HSET",
            key,
            "mode",
            one_of(rng, &["read", "write", "other"]),
        ]),
        186 => Act::plain(&["HDEL", key, "mode"]),
        187..190 => Act::plain(&["PERSIST", one_of(rng, &[key, &hold])]),
        190..192 => Act::plain(&["DEL", &hold]),
        192 => Act::plain(&["RPUSH", &hold, "item"]),
        193..196 => Act::RunOut(key.to_owned()),
        _ => Act::RunOut(hold),
    }
}

#[test]
fn the_scripts_of_read_write_locks_run_as_on_a_real_server() {
    let channels = KEYS.map(|key| channel("redisson_rwlock", key));
    let seen = compare(0..700, 40, &channels, read_write);
    assert!(seen.scripts > 10_000, "{seen:?}");
    assert!(seen.errors > 100 && seen.messages > 250, "{seen:?}");
    assert!(
        seen.keys["string"] > 1_000 && seen.keys["hash"] > 1_000,
        "{seen:?}"
    );
}

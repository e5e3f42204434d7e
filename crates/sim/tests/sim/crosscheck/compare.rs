//! Two servers, the same calls: replies, keys, times and messages.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use fastrand::Rng;
use parking_lot::Mutex;
use redisson_lock::test_util::Reply;
use redisson_lock_test::sim::{Answer, Interpreter, Keyspace};
use test_support::{Control, Server};

use super::Act;

/// What was compared.
#[derive(Debug, Default)]
pub(super) struct Compared {
    pub(super) scripts: u32,
    pub(super) errors: u32,
    pub(super) messages: usize,
    /// How often a key of each type was seen.
    pub(super) keys: BTreeMap<String, u32>,
}

/// Has both servers do the same from each seed, up to this many times. One connection of each is subscribed to these channels.
pub(super) fn compare(
    seeds: Range<u64>,
    most: u32,
    channels: &[String],
    roll: fn(&mut Rng) -> Act,
) -> Compared {
    let server = Server::start();
    let mut real = Real::new(&server, channels);
    let mut compared = Compared::default();
    for seed in seeds {
        let rng = &mut Rng::with_seed(seed);
        real.control.run(&["FLUSHALL"]);
        let mut simulated = Simulated::new(channels, clock(&mut real.control));
        for step in 0..rng.u32(5..most) {
            let act = roll(rng);
            // No two steps are in the same millisecond of either server: one may be compared with the other.
            let before = millis(&mut real.control);
            while millis(&mut real.control) == before {}
            simulated.keyspace.lock().now += 1;
            let (ours, theirs) = (simulated.act(&act), real.act(&act));
            let same = match (&ours, &theirs) {
                (Ok(ours), Ok(theirs)) => agree(ours, theirs),
                (ours, theirs) => ours == theirs,
            };
            let at = || format!("seed {seed}, step {step}, {}", act.shown());
            assert!(same, "{}: simulated {ours:?}, real {theirs:?}", at());
            compared.scripts += u32::from(matches!(act, Act::Script { .. }));
            compared.errors += u32::from(ours.is_err());

            let (ours, theirs) = (simulated.messages(), real.messages());
            assert_eq!(ours, theirs, "{}: messages, simulated and real", at());
            compared.messages += ours.len();
            let (ours, theirs) = (simulated.keys(), real.keys());
            let same = ours.len() == theirs.len()
                && ours
                    .iter()
                    .zip(&theirs)
                    .all(|(one, other)| one.agrees(other));
            assert!(same, "{}: simulated {ours:#?}, real {theirs:#?}", at());
            for key in ours {
                *compared.keys.entry(key.kind).or_default() += 1;
            }
        }
    }
    compared
}

/// Has one real server run each script once and another one twice: the second copy changes nothing. Answers how many.
pub(super) fn once_against_twice(
    seeds: Range<u64>,
    most: u32,
    roll: fn(&mut Rng) -> Act,
) -> Compared {
    let servers = [Server::start(), Server::start()];
    let [mut once, mut twice] = servers.each_ref().map(|server| Real::new(server, &[]));
    let mut compared = Compared::default();
    for seed in seeds {
        let rng = &mut Rng::with_seed(seed);
        for server in [&mut once, &mut twice] {
            server.control.run(&["FLUSHALL"]);
        }
        for step in 0..rng.u32(5..most) {
            let act = roll(rng);
            let (one, other) = (once.act(&act), twice.act(&act));
            let at = || format!("seed {seed}, step {step}, {}", act.shown());
            let same = match (&one, &other) {
                (Ok(one), Ok(other)) => agree(one, other),
                (one, other) => one == other,
            };
            assert!(same, "{}: {one:?} and {other:?}", at());
            if matches!(act, Act::Script { .. }) {
                compared.scripts += 1;
                compared.errors += u32::from(one.is_err());
                // Its own reply may be another one: a lock that the first copy has released is gone.
                let _ = twice.act(&act);
            }
            let (one, other) = (once.keys(), twice.keys());
            let same = one.len() == other.len()
                && one.iter().zip(&other).all(|(one, other)| one.agrees(other));
            assert!(same, "{}: once {one:#?}, twice {other:#?}", at());
            for key in one {
                *compared.keys.entry(key.kind).or_default() += 1;
            }
        }
    }
    compared
}

/// A key with what it holds.
#[derive(Debug)]
struct Key {
    name: String,
    kind: String,
    left: i64,
    shown: String,
}

impl Key {
    fn agrees(&self, other: &Self) -> bool {
        let words = |key: &Self| {
            let words: Vec<&str> = key.shown.split(' ').collect();
            let is_sorted_set = key.kind == "zset";
            // Times that are equal on one server may differ on the other, and so may the order of their members.
            let items = words.chunks(if is_sorted_set { 2 } else { words.len() });
            let mut items: Vec<Vec<String>> = items
                .map(|item| item.iter().map(|&word| word.to_owned()).collect())
                .collect();
            items.sort();
            items.concat()
        };
        let (ours, theirs) = (words(self), words(other));
        let number = |word: &str| word.parse().map_or_else(|_| Reply::Nil, Reply::Number);
        let same = |one: &String, other: &String| {
            // The scores of a sorted set are times.
            one == other || self.kind == "zset" && is_about(&number(one), &number(other))
        };
        self.name == other.name
            && self.kind == other.kind
            && agree(&Reply::Number(self.left), &Reply::Number(other.left))
            && ours.len() == theirs.len()
            && ours
                .iter()
                .zip(&theirs)
                .all(|(one, other)| same(one, other))
    }
}

/// Times differ by what the test itself takes; nothing else may.
fn agree(one: &Reply, other: &Reply) -> bool {
    match (one, other) {
        (Reply::List(one), Reply::List(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| agree(one, other))
        }
        _ => one == other || is_about(one, other),
    }
}

fn is_about(one: &Reply, other: &Reply) -> bool {
    match (one, other) {
        (Reply::Number(one), Reply::Number(other)) => {
            one.unsigned_abs() > 60_000 && one.abs_diff(*other) < 40_000
        }
        _ => false,
    }
}

struct Simulated {
    keyspace: Arc<Mutex<Keyspace>>,
    lua: Interpreter,
}

impl Simulated {
    fn new(channels: &[String], clock: u64) -> Self {
        let keyspace = Arc::new(Mutex::new(Keyspace::default()));
        {
            let mut keyspace = keyspace.lock();
            keyspace.clock = clock;
            let listeners = channels.iter().map(|channel| (channel.clone(), 1));
            keyspace.listeners = listeners.collect();
        }
        let lua = Interpreter::new(&keyspace);
        Self { keyspace, lua }
    }

    fn act(&mut self, act: &Act) -> Result<Reply, String> {
        match act {
            Act::Script { source, keys, args } => {
                let sha = self.lua.load(source);
                self.lua.run(&sha, keys, args)
            }
            Act::Plain(words) => {
                let mut keyspace = self.keyspace.lock();
                match &words[..] {
                    [set, key, text] if set == "SET" => keyspace.set_text(key, text),
                    // It changes nothing of a key of another type.
                    words => drop(keyspace.call(words)),
                }
                Ok(Reply::Nil)
            }
            Act::RunOut(key) => {
                let mut keyspace = self.keyspace.lock();
                let words = ["pexpire", key, "1"].map(str::to_owned);
                keyspace.call(&words).expect("allowed");
                keyspace.now += 2;
                keyspace.expire();
                Ok(Reply::Nil)
            }
        }
    }

    fn messages(&self) -> Vec<(String, String)> {
        std::mem::take(&mut self.keyspace.lock().published)
    }

    fn keys(&self) -> Vec<Key> {
        let mut keyspace = self.keyspace.lock();
        let names: Vec<String> = keyspace.keys().map(str::to_owned).collect();
        let keys = names.into_iter().map(|name| {
            let mut ask = |command: &str| keyspace.call(&[command.to_owned(), name.clone()]);
            let (kind, left) = (ask("type"), ask("pttl"));
            let (Ok(Answer::Status(kind)), Ok(Answer::Number(left))) = (&kind, &left) else {
                panic!("{kind:?}, {left:?}")
            };
            let (kind, left, shown) = ((*kind).to_owned(), *left, keyspace.shown(&name));
            Key {
                name,
                kind,
                left,
                shown,
            }
        });
        keys.collect()
    }
}

struct Real {
    control: Control,
    subscriber: redis::Connection,
}

impl Real {
    fn new(server: &Server, channels: &[String]) -> Self {
        let client = redis::Client::open(server.url()).expect("a good address");
        let mut subscriber = client.get_connection().expect("it runs");
        let mut subscribe = redis::cmd("SUBSCRIBE");
        let subscribe = subscribe.arg(channels).arg(END).get_packed_command();
        subscriber.send_packed_command(&subscribe).expect("it runs");
        for _ in 0..=channels.len() {
            subscriber.recv_response().expect("allowed");
        }
        let control = server.control();
        Self {
            control,
            subscriber,
        }
    }

    fn act(&mut self, act: &Act) -> Result<Reply, String> {
        let control = &mut self.control;
        match act {
            Act::Script { source, keys, args } => {
                let mut command = redis::cmd("EVAL");
                command.arg(source).arg(keys.len()).arg(keys).arg(args);
                match command.query::<redis::Value>(&mut control.connection) {
                    Ok(value) => Ok(reply(value)),
                    Err(error) => {
                        let (code, detail) = (
                            error.code().unwrap_or("ERR"),
                            error.detail().unwrap_or_default(),
                        );
                        Err(format!("{code} {detail}"))
                    }
                }
            }
            Act::Plain(words) => {
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                let done = control.try_run(&words);
                // A command for another type changes nothing on either side.
                drop(done);
                Ok(Reply::Nil)
            }
            Act::RunOut(key) => {
                control.run(&["PEXPIRE", key, "1"]);
                while control.run(&["EXISTS", key]) == "1" {
                    std::thread::yield_now();
                }
                Ok(Reply::Nil)
            }
        }
    }

    /// What was published since this was last called.
    fn messages(&mut self) -> Vec<(String, String)> {
        self.control.run(&["PUBLISH", END, "0"]);
        let mut messages = Vec::new();
        loop {
            let pushed = self.subscriber.recv_response().expect("it runs");
            let words: Vec<String> = redis::from_redis_value(pushed).expect("texts");
            match &words[..] {
                [_, channel, _] if channel == END => return messages,
                [_, channel, message] => messages.push((channel.clone(), message.clone())),
                other => panic!("{other:?}"),
            }
        }
    }

    fn keys(&mut self) -> Vec<Key> {
        type Row = (String, String, i64, Vec<String>);
        let mut look = redis::cmd("EVAL");
        let look = look.arg(LOOK).arg(0);
        let rows: Vec<Row> = look.query(&mut self.control.connection).expect("allowed");
        let mut keys: Vec<Key> = rows.into_iter().map(Key::from).collect();
        keys.sort_by(|one, other| one.name.cmp(&other.name));
        keys
    }
}

impl From<(String, String, i64, Vec<String>)> for Key {
    fn from((name, kind, left, words): (String, String, i64, Vec<String>)) -> Self {
        let words = words.join(" ");
        let shown = match kind.as_str() {
            "string" => format!("text {words}"),
            _ => words,
        };
        Self {
            name,
            kind,
            left,
            shown,
        }
    }
}

/// All keys, each with its type, the milliseconds that are left of it, and what it holds.
const LOOK: &str = "\
local found = {}
for _, key in ipairs(redis.call('keys', '*')) do
  local kind, held = redis.call('type', key).ok, nil
  if kind == 'string' then held = {redis.call('get', key)} end
  if kind == 'hash' then held = redis.call('hgetall', key) end
  if kind == 'list' then held = redis.call('lrange', key, 0, -1) end
  if kind == 'zset' then held = redis.call('zrange', key, 0, -1, 'withscores') end
  found[#found + 1] = {key, kind, redis.call('pttl', key), held}
end
return found";

/// What is published on it comes after everything before.
const END: &str = "end of a step";

fn reply(value: redis::Value) -> Reply {
    match value {
        redis::Value::Nil => Reply::Nil,
        redis::Value::Int(number) => Reply::Number(number),
        redis::Value::BulkString(bytes) => {
            Reply::Text(String::from_utf8_lossy(&bytes).into_owned())
        }
        redis::Value::Array(items) => Reply::List(items.into_iter().map(reply).collect()),
        other => Reply::Text(format!("{other:?}")),
    }
}

fn clock(control: &mut Control) -> u64 {
    millis(control) / 1_000 * 1_000
}

fn millis(control: &mut Control) -> u64 {
    let time = control.run(&["TIME"]);
    let (seconds, micros) = time.split_once(' ').expect("two numbers");
    let number = |word: &str| word.parse::<u64>().expect("a number");
    number(seconds) * 1_000 + number(micros) / 1_000
}

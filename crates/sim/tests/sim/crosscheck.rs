//! The simulated server against a real one: the same random calls, the same replies, the same
//! state.

mod rights;

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use parking_lot::Mutex;
use redisson_lock::Error;
use redisson_lock::test_util::{self, Arg, Reply, ScriptCall};
use redisson_lock_test::sim::{Answer, Interpreter, Keyspace};
use test_support::kinds::{KINDS, token_key};
use test_support::{Control, Server};

/// One thing that is done to both.
enum Act {
    Script {
        source: &'static str,
        keys: Vec<String>,
        args: Vec<String>,
    },
    Plain(Vec<&'static str>),
    /// The time of a key is over.
    RunOut(&'static str),
}

const KEYS: [&str; 2] = ["a", "{b}:c"];
const FIELDS: [&str; 3] = ["me:1", "me:2", "you:1"];
/// Far above the time that the test itself takes.
const LEASES: [u64; 3] = [100_000, 200_000, 300_000];
/// None, and one that is over, and one that is not.
const LIMITS: [Option<Duration>; 3] = [
    None,
    Some(Duration::from_millis(1)),
    Some(Duration::from_secs(9_999_999_999)),
];

impl Act {
    fn roll(rng: &mut Rng) -> Self {
        let key = KEYS[rng.usize(0..KEYS.len())];
        let field = FIELDS[rng.usize(0..FIELDS.len())];
        let lease = Duration::from_millis(LEASES[rng.usize(0..LEASES.len())]);
        let kind = KINDS[rng.usize(0..KINDS.len())];
        let call = |call: Result<ScriptCall, Error>| Self::script(&call.expect("a good name"));
        match rng.u8(0..100) {
            0..30 => call(test_util::acquire_of(
                kind,
                key,
                field,
                rng.u32(1..4),
                lease,
            )),
            30..48 => call(test_util::release_of(
                kind,
                key,
                field,
                rng.u32(0..4),
                lease,
            )),
            48..55 => {
                let to = FIELDS[rng.usize(0..FIELDS.len())];
                call(test_util::pass_of(kind, key, field, to, lease))
            }
            55..68 => {
                let renewals: Vec<_> = KEYS[..rng.usize(1..=2)]
                    .iter()
                    .map(|&key| {
                        let field = FIELDS[rng.usize(0..FIELDS.len())];
                        (key, field, rng.bool().then_some(lease))
                    })
                    .collect();
                Self::script(&test_util::renew_of(kind, &renewals))
            }
            68..74 => {
                let limit = LIMITS[rng.usize(0..LIMITS.len())];
                call(test_util::force_unlock_of(
                    kind,
                    key,
                    field.as_bytes(),
                    limit,
                ))
            }
            74..84 => call(test_util::inspect_of(kind, key, rng.bool())),
            84..87 => Self::Plain(vec!["DEL", key]),
            87..89 => Self::Plain(vec!["SET", key, "text"]),
            89..91 => Self::Plain(vec!["HSET", key, "me:1", "many"]),
            91..93 => Self::Plain(vec!["HSET", key, "mode", "read"]),
            93..95 => Self::Plain(vec!["HSET", key, "me:2", "9223372036854775807"]),
            95..97 => Self::Plain(vec!["PERSIST", key]),
            _ => Self::RunOut(key),
        }
    }

    fn script(call: &ScriptCall) -> Self {
        let text = |arg: &Arg| match arg {
            Arg::Text(text) => text.to_string(),
            Arg::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Arg::Fixed(text) => (*text).to_owned(),
            Arg::Number(number) => number.to_string(),
        };
        Self::Script {
            source: call.source,
            keys: call.keys.iter().map(|key| key.to_string()).collect(),
            args: call.args.iter().map(text).collect(),
        }
    }
}

struct Simulated {
    keyspace: Arc<Mutex<Keyspace>>,
    lua: Interpreter,
    published: usize,
}

impl Simulated {
    fn act(&mut self, act: &Act) -> Result<Reply, String> {
        match act {
            Act::Script { source, keys, args } => {
                let sha = self.lua.load(source);
                let reply = self.lua.run(&sha, keys, args);
                self.published += std::mem::take(&mut self.keyspace.lock().published).len();
                reply
            }
            Act::Plain(words) => {
                let mut keyspace = self.keyspace.lock();
                match words[..] {
                    ["DEL", key] => keyspace.delete(key),
                    ["SET", key, text] => keyspace.set_text(key, text),
                    ["HSET", key, field, value] => keyspace.set_field(key, field, value),
                    ["PERSIST", key] => keyspace.persist(key),
                    _ => unreachable!("not rolled"),
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

    fn state(&self, key: &str) -> (String, i64) {
        let mut keyspace = self.keyspace.lock();
        let left = keyspace
            .call(&["pttl".to_owned(), key.to_owned()])
            .expect("allowed");
        let left = match left {
            Answer::Number(left) => left,
            other => panic!("{other:?}"),
        };
        (keyspace.shown(key), left)
    }
}

fn act(control: &mut Control, act: &Act) -> Result<Reply, String> {
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
            let done = control.try_run(words);
            // HSET on a key of another type changes nothing on either side.
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

fn reply(value: redis::Value) -> Reply {
    match value {
        redis::Value::Nil => Reply::Nil,
        redis::Value::Int(number) => Reply::Number(number),
        redis::Value::BulkString(bytes) => {
            Reply::Text(String::from_utf8_lossy(&bytes).into_owned())
        }
        redis::Value::Array(items) => Reply::List(items.into_iter().map(reply).collect()),
        other => Reply::Other(format!("{other:?}")),
    }
}

fn clock(control: &mut Control) -> u64 {
    let time = control.run(&["TIME"]);
    let seconds = time.split(' ').next().expect("two numbers");
    seconds.parse::<u64>().expect("a number") * 1_000
}

/// Times differ by what the test itself takes; nothing else may.
fn agree(one: &Reply, other: &Reply) -> bool {
    match (one, other) {
        (Reply::Number(one), Reply::Number(other)) => {
            one == other || *one > 60_000 && (one - other).abs() < 40_000
        }
        (Reply::List(one), Reply::List(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| agree(one, other))
        }
        _ => one == other,
    }
}

#[test]
fn the_simulated_server_answers_as_a_real_one() {
    let server = Server::start();
    let control = &mut server.control();
    let mut errors = 0;
    for seed in 0..500 {
        let rng = &mut Rng::with_seed(seed);
        control.run(&["FLUSHALL"]);
        let keyspace = Arc::new(Mutex::new(Keyspace::default()));
        keyspace.lock().clock = clock(control);
        let mut simulated = Simulated {
            lua: Interpreter::new(&keyspace),
            keyspace,
            published: 0,
        };
        let published_before = control.calls("publish");
        for step in 0..rng.u32(5..40) {
            let next = Act::roll(rng);
            let (ours, theirs) = (simulated.act(&next), act(control, &next));
            let same = match (&ours, &theirs) {
                (Ok(ours), Ok(theirs)) => agree(ours, theirs),
                (ours, theirs) => ours == theirs,
            };
            assert!(
                same,
                "seed {seed}, step {step}: simulated {ours:?}, real {theirs:?}"
            );
            errors += usize::from(ours.is_err());
            for key in KEYS
                .into_iter()
                .flat_map(|key| [key.to_owned(), token_key(key)])
            {
                let key = key.as_str();
                let (shown, left) = simulated.state(key);
                let kind = control.run(&["TYPE", key]);
                let real = match kind.as_str() {
                    "string" => format!("text {}", control.run(&["GET", key])),
                    _ => control.hash(key),
                };
                assert_eq!(shown, real, "seed {seed}, step {step}, {key}");
                let real = control.pttl(key);
                let same = left == real || left > 60_000 && (left - real).abs() < 40_000;
                assert!(
                    same,
                    "seed {seed}, step {step}, {key}: {left} ms left, really {real}"
                );
            }
        }
        let published = control.calls("publish") - published_before;
        assert_eq!(
            i64::try_from(simulated.published),
            Ok(published),
            "seed {seed}: messages"
        );
    }
    assert!(errors > 100, "refusals were compared too: {errors}");
}

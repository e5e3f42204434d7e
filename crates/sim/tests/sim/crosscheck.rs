//! The simulated server against a real one: the same random calls, the same replies, the same
//! state.

mod compare;
mod queues;
mod rights;

use std::time::Duration;

use fastrand::Rng;
use redisson_lock::Error;
use redisson_lock::test_util::{self, Arg, ScriptCall};
use test_support::kinds::KINDS;

use compare::compare;

/// One thing that is done to both.
enum Act {
    Script {
        source: &'static str,
        keys: Vec<String>,
        args: Vec<String>,
    },
    Plain(Vec<String>),
    /// The time of a key is over.
    RunOut(String),
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
        // Both parts of read-write locks, which come last, are compared in `queues`.
        let kind = KINDS[rng.usize(0..KINDS.len() - 2)];
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
            84..87 => Self::plain(&["DEL", key]),
            87..89 => Self::plain(&["SET", key, "text"]),
            89..91 => Self::plain(&["HSET", key, "me:1", "many"]),
            91..93 => Self::plain(&["HSET", key, "mode", "read"]),
            93..95 => Self::plain(&["HSET", key, "me:2", "9223372036854775807"]),
            95..97 => Self::plain(&["PERSIST", key]),
            _ => Self::RunOut(key.to_owned()),
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::Script { source, args, .. } => {
                let names = source.lines().filter_map(|line| {
                    let (name, _) = line.strip_prefix("-- ")?.split_once(".lua: ")?;
                    Some(name)
                });
                format!("{:?} {args:?}", names.collect::<Vec<_>>())
            }
            Self::Plain(words) => format!("{words:?}"),
            Self::RunOut(key) => format!("{key} runs out"),
        }
    }

    fn plain(words: &[&str]) -> Self {
        Self::Plain(words.iter().map(|&word| word.to_owned()).collect())
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

#[test]
fn the_simulated_server_answers_as_a_real_one() {
    let seen = compare(0..500, 40, &channels_of_locks(), Act::roll);
    assert!(
        seen.errors > 100,
        "refusals were compared too: {}",
        seen.errors
    );
}

/// The channels of the locks, of whatever kind.
fn channels_of_locks() -> Vec<String> {
    let channels = KEYS.iter().flat_map(|key| {
        let channel = channel("redisson_lock__channel", key);
        let of_owners = FIELDS.map(|field| format!("{channel}:{field}"));
        [vec![channel], of_owners.to_vec()].concat()
    });
    channels.collect()
}

/// Braces are added unless the name has an opening one.
fn channel(prefix: &str, key: &str) -> String {
    match key.contains('{') {
        true => format!("{prefix}:{key}"),
        false => format!("{prefix}:{{{key}}}"),
    }
}

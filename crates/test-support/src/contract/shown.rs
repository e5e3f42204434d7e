//! Answers and states as text. Times that are left are in units of ten seconds, rounded up: a machine may stand still for
//! seconds.

use redis::Value;

use super::Call;
use crate::ms;
use crate::server::Control;

const UNIT: i64 = 10_000;

pub fn units(left: i64) -> i64 {
    left.div_euclid(UNIT) + i64::from(left.rem_euclid(UNIT) > 0)
}

/// What `PTTL` answers, in units: -1 for a key without an expiry, -2 for none.
pub fn lease(left: i64) -> i64 {
    if left < 0 { left } else { units(left) }
}

/// Lists with spaces, and times that are left in units.
pub fn shown(value: &Value) -> String {
    match value {
        Value::Nil => "nil".to_owned(),
        // A clock.
        Value::Int(1_000_000_000_000..) => "now".to_owned(),
        Value::Int(left) if left.abs() > 999 => units(*left).to_string(),
        Value::Int(number) => number.to_string(),
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::Array(items) if items.is_empty() => "[]".to_owned(),
        Value::Array(items) => items.iter().map(shown).collect::<Vec<_>>().join(" "),
        other => format!("{other:?}"),
    }
}

/// Sends a script; its answer as [`shown`] has it, or `error: ` and why.
pub fn eval<K: AsRef<str>>(control: &mut Control, call: Call<'_>, keys: &[K]) -> String {
    let mut command = redis::cmd("EVAL");
    command.arg(call.0).arg(keys.len());
    command.arg(keys.iter().map(K::as_ref).collect::<Vec<_>>());
    let answer = command.arg(call.1).query(&mut control.connection);
    answer.map_or_else(|error| format!("error: {error}"), |answer| shown(&answer))
}

/// The hundreds of seconds of which this is what is left, give or take the slack.
pub fn hundreds(left: i64, slack: i64) -> i64 {
    (left.max(0) + 99_999 - slack) / 100_000
}

/// With times in [`hundreds`].
pub fn rounded(value: &Value, slack: i64) -> String {
    match value {
        Value::Int(left @ 1_000..) => format!("{} s", hundreds(*left, slack) * 100),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| rounded(item, slack)).collect();
            items.join(" ")
        }
        other => format!("{other:?}"),
    }
}

pub fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => panic!("{other:?}"),
    }
}

pub fn number(value: &Value) -> i64 {
    match value {
        Value::Int(number) => *number,
        other => panic!("{other:?}"),
    }
}

pub fn items(value: &Value) -> &[Value] {
    match value {
        Value::Array(items) => items,
        other => panic!("{other:?}"),
    }
}

/// Writes a hash: its fields with their values, and the units left of its lease, -1 for none. "" is no key.
pub fn set_hash(pipe: &mut redis::Pipeline, key: &str, state: &str) {
    pipe.cmd("DEL").arg(key);
    let words: Vec<&str> = state.split_whitespace().collect();
    if let Some((left, fields)) = words.split_last() {
        pipe.cmd("HSET").arg(key).arg(fields);
        if *left != "-1" {
            pipe.cmd("PEXPIRE").arg(key).arg(format!("{left}0000"));
        }
    }
}

/// The state that [`set_hash`] writes.
pub fn seen_hash(control: &mut Control, key: &str) -> String {
    match control.hash(key).as_str() {
        "" => String::new(),
        fields => format!("{fields} {}", lease(control.pttl(key))),
    }
}

/// The milliseconds of the server's clock.
pub fn clock(control: &mut Control) -> i64 {
    let time = control.run(&["TIME"]);
    let (seconds, micros) = time.split_once(' ').expect("two numbers");
    let number = |text: &str| text.parse::<i64>().expect("a number");
    number(seconds) * 1_000 + number(micros) / 1_000
}

/// What the channels of a server have got.
pub struct Listener<'a>(redis::PubSub<'a>);

impl<'a> Listener<'a> {
    pub fn of(control: &'a mut Control) -> Self {
        let mut messages = control.connection.as_pubsub();
        messages.psubscribe("*").expect("subscribed");
        messages.set_read_timeout(Some(ms(20))).expect("set");
        Self(messages)
    }

    /// The channels since the last look, each with its message.
    pub fn heard(&mut self) -> Vec<(String, String)> {
        let messages = std::iter::from_fn(|| self.0.get_message().ok()).map(|message| {
            let text = message.get_payload().expect("text");
            (message.get_channel_name().to_owned(), text)
        });
        messages.collect()
    }
}

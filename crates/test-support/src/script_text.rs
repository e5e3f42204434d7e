//! The check that some hosted clusters make of a script's text before they run it.

use std::collections::BTreeSet;

use crate::{Proxy, Scripted, slot};

/// What Alibaba Cloud and Tencent Cloud answer to a script that does not pass.
pub const NOT_ACCEPTED: &str = "ERR bad lua script for redis cluster, all the keys that the script uses should be passed using the KEYS array, and KEYS should not be in expression";

/// Commands without a key. Channels are not keys.
const WITHOUT_KEYS: [&str; 4] = ["time", "publish", "spublish", "pubsub"];

/// Commands whose arguments are all keys.
const ONLY_KEYS: [&str; 2] = ["del", "exists"];

/// Whether each call of Redis in a Lua text names its command as a literal and its keys literally as `KEYS[n]`.
///
/// # Errors
///
/// The first call that does not.
pub fn names_its_keys(source: &str) -> Result<(), String> {
    let lines = source.lines().map(|line| match line.find("--") {
        Some(at) => &line[..at],
        None => line,
    });
    let code = lines.collect::<Vec<_>>().join("\n");
    for (at, _) in code.match_indices("redis.") {
        let rest = &code[at + "redis.".len()..];
        let Some(rest) = rest
            .strip_prefix("call")
            .or_else(|| rest.strip_prefix("pcall"))
        else {
            continue;
        };
        let line = code[at..].lines().next().unwrap_or_default();
        let passes = rest
            .strip_prefix('(')
            .is_some_and(|rest| is_literal(&arguments(rest)));
        if !passes {
            return Err(line.to_owned());
        }
    }
    Ok(())
}

fn is_literal(arguments: &[String]) -> bool {
    let [command, others @ ..] = arguments else {
        return false;
    };
    let Some(command) = command
        .strip_prefix('\'')
        .and_then(|rest| rest.strip_suffix('\''))
    else {
        return false;
    };
    let keys = match command {
        _ if WITHOUT_KEYS.contains(&command) => 0,
        _ if ONLY_KEYS.contains(&command) => others.len(),
        _ => 1,
    };
    others.len() >= keys && others[..keys].iter().all(|key| is_key(key))
}

fn is_key(text: &str) -> bool {
    let number = text
        .strip_prefix("KEYS[")
        .and_then(|rest| rest.strip_suffix(']'));
    number.is_some_and(|number| number.parse::<usize>().is_ok())
}

/// The arguments of a call, without the blanks around them. The text begins after the opening bracket.
fn arguments(text: &str) -> Vec<String> {
    let (mut arguments, mut depth, mut quote) = (vec![String::new()], 0, None);
    for letter in text.chars() {
        match (letter, quote) {
            (letter, Some(end)) if letter == end => quote = None,
            (_, Some(_)) => {}
            ('\'' | '"', None) => quote = Some(letter),
            ('(' | '[' | '{', None) => depth += 1,
            (')', None) if depth == 0 => break,
            (')' | ']' | '}', None) => depth -= 1,
            (',', None) if depth == 0 => {
                arguments.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(argument) = arguments.last_mut() {
            argument.push(letter);
        }
    }
    for argument in &mut arguments {
        *argument = argument.trim().to_owned();
    }
    arguments
}

/// What it answers to a call whose keys are in several slots.
const OTHER_SLOT: &str = "ERR eval/evalsha command keys must be in same slot";

/// What it answers to a call without a key.
const NO_KEY: &str = "ERR for redis cluster, eval/evalsha number of keys can't be negative or zero";

/// The error with which such a cluster refuses a command: it looks at the text of a script, and at the keys of a call.
fn refusal(words: &[String]) -> Option<&'static str> {
    let is = |nth: usize, word: &str| {
        let found = words.get(nth);
        found.is_some_and(|found| found.eq_ignore_ascii_case(word))
    };
    let text = match () {
        () if is(0, "EVAL") => words.get(1),
        () if is(0, "SCRIPT") && is(1, "LOAD") => words.get(2),
        () => None,
    };
    if text.is_some_and(|text| names_its_keys(text).is_err()) {
        return Some(NOT_ACCEPTED);
    }
    if !is(0, "EVAL") && !is(0, "EVALSHA") {
        return None;
    }
    let count = words.get(2).and_then(|count| count.parse().ok());
    let keys = words.iter().skip(3).take(count.unwrap_or(0));
    let slots: BTreeSet<u16> = keys.map(|key| slot(key)).collect();
    match slots.len() {
        0 => Some(NO_KEY),
        1 => None,
        _ => Some(OTHER_SLOT),
    }
}

impl Proxy {
    /// From now on it refuses script calls as such a cluster does. A server that already knows a script runs it.
    pub fn checks_scripts(&self) {
        self.script(|words| match refusal(words) {
            None => Scripted::Pass,
            Some(error) => Scripted::Answer(format!("return redis.error_reply(\"{error}\")")),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_keys_pass_and_whatever_else_does_not() {
        for passes in [
            "return redis.call('get', KEYS[1])",
            "-- redis.call('get', key)\nreturn redis.pcall('del', KEYS[1], KEYS[12])",
            "redis.call('publish', channel .. ',', '0') redis.call('hget', KEYS[1], f(a, ')'))",
            "return redis.error_reply('no') or redis.call( 'time' )",
        ] {
            assert_eq!(names_its_keys(passes), Ok(()), "{passes}");
        }
        for refused in [
            "local key = KEYS[1] return redis.call('get', key)",
            "return redis.call('get', KEYS[n])",
            "return redis.call('get', KEYS[1] .. ':a')",
            "return redis.call('get', ARGV[1])",
            "return redis.call('del', KEYS[1], 'a')",
            "return redis.call(ARGV[1], KEYS[1])",
            "return redis.call('get')",
            "local try = redis.pcall",
            "return redis.pcall(unpack(words))",
        ] {
            assert!(names_its_keys(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn texts_are_read_and_the_keys_of_a_call_are_in_one_slot() {
        let refused = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
            refusal(&words)
        };
        let bad = "return redis.call('get', key)";
        assert_eq!(refused(&["GET", "a"]), None);
        assert_eq!(refused(&["SCRIPT", "EXISTS", "f00"]), None);
        assert_eq!(refused(&["EVALSHA", "f00", "2", "{a}1", "{a}2", "b"]), None);
        assert_eq!(
            refused(&["EVALSHA", "f00", "2", "a", "b"]),
            Some(OTHER_SLOT)
        );
        assert_eq!(refused(&["EVALSHA", "f00", "0", "a"]), Some(NO_KEY));
        assert_eq!(refused(&["EVAL", bad, "1", "a"]), Some(NOT_ACCEPTED));
        assert_eq!(refused(&["script", "load", bad]), Some(NOT_ACCEPTED));
    }
}

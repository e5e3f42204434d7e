//! The error for a script that the server refused, and the permission that the script lacks, as `ACL SETUSER` takes
//! it.
//!
//! An error inside a script carries a line number, which identifies the refused command: no line of a script calls
//! two.

use std::sync::Arc;

use crate::error::{
    Cause, Denied, Error, RefusalKind, line_in_script, missing_channel, pattern_of, shorten,
};
use crate::names::wire;
use crate::redis::ServerScript;

/// Returns the error, and whether the script may have been executed: an error that is not Redis' own may come from
/// a proxy, which does not know what the server did.
pub(super) fn refused(
    script: &ServerScript,
    keys: &[Arc<str>],
    source: Box<Cause>,
) -> (Error, bool) {
    let key = || key_of(script, keys, &source.text);
    let not_a_lock = |found| (Error::not_a_lock(key(), found), false);
    match &source.refusal {
        Some(RefusalKind::WrongType) => not_a_lock("a key of another type"),
        Some(RefusalKind::NotANumber) => not_a_lock("a non-numeric hold count"),
        Some(
            kind @ (RefusalKind::NoScript
            | RefusalKind::NotCompiled
            | RefusalKind::NotExecuted
            | RefusalKind::Other),
        ) => {
            let (script, reply) = (script.name, shorten(&source.text));
            let maybe_executed = *kind == RefusalKind::Other;
            (Error::UnexpectedReply { script, reply }, maybe_executed)
        }
        _ => {
            let permission = |denied: &Denied| missing(script, keys, denied);
            (Error::refused(source, permission), false)
        }
    }
}

/// The key of the command that was refused: that of the lock, unless the text has the line of a command on another one.
fn key_of<'a>(script: &ServerScript, keys: &'a [Arc<str>], text: &str) -> &'a str {
    let line = line_in_script(text).and_then(|nth| script.source.lines().nth(nth.checked_sub(1)?));
    let nth = line.and_then(|line| {
        let (_, rest) = line.split_once("call('")?;
        let argument = rest.split_once("', ")?.1;
        let name = argument.split([',', ')']).next()?;
        key_number(name).or_else(|| assigned_key(script.source, name))
    });
    let key = nth.and_then(|nth| keys.get(nth.checked_sub(1)?));
    key.or_else(|| keys.first()).map_or("", |key| &**key)
}

/// The number in `KEYS[2]`.
fn key_number(word: &str) -> Option<usize> {
    word.strip_prefix("KEYS[")?.strip_suffix(']')?.parse().ok()
}

/// The number of the key that a script calls so: `local lock, queue = KEYS[1], KEYS[2]`.
fn assigned_key(source: &str, name: &str) -> Option<usize> {
    source.lines().find_map(|line| {
        let (names, values) = line
            .trim_start()
            .strip_prefix("local ")?
            .split_once(" = ")?;
        let nth = names.split(", ").position(|known| known == name)?;
        key_number(values.split(", ").nth(nth)?)
    })
}

/// The permission that a call lacks: of its key or its channel that of this lock, and no other.
fn missing(script: &ServerScript, keys: &[Arc<str>], denied: &Denied) -> String {
    let mut lines = script.source.lines();
    let line = match denied {
        Denied::Channel => {
            let channel = |key: &Arc<str>| match script.name.starts_with("read_write/") {
                true => wire::faces_channel(key),
                false => wire::channel(key),
            };
            let channel = keys.first().map(channel);
            let is_of_each_owner = script.name.starts_with("fair/");
            return missing_channel(&channel.unwrap_or_default(), is_of_each_owner);
        }
        // The server does not say which of them.
        Denied::Key => {
            let is_of_faces = script.name.starts_with("read_write/");
            // The keys of read holds follow that of their lock.
            let keys = keys
                .iter()
                .filter(|key| !is_of_faces || !wire::is_read(key));
            let patterns = keys.flat_map(|key| {
                let reads = is_of_faces.then(|| wire::all_reads(key));
                [Some(format!("~{}", pattern_of(key))), reads]
            });
            return patterns.flatten().collect::<Vec<_>>().join(" ");
        }
        Denied::Command(command) => return command.clone(),
        Denied::Line(nth) => nth.checked_sub(1).and_then(|nth| lines.nth(nth)),
        // Only an error that `pcall` has caught has no line.
        Denied::Unnamed => {
            let caught = script.source.lines();
            let caught = caught.filter(|line| line.contains("pcall('"));
            let mut caught: Vec<String> = caught.flat_map(commands).collect();
            caught.dedup();
            return caught.join(" ");
        }
    };
    let command = line.and_then(|line| commands(line).next());
    command.unwrap_or_else(|| all_commands(script))
}

/// If a server does not say which one it refused: with all of them the script runs.
fn all_commands(script: &ServerScript) -> String {
    let mut all: Vec<String> = commands(script.source).collect();
    all.sort();
    all.dedup();
    all.join(" ")
}

/// The commands that a text of a script calls, as permissions.
pub(crate) fn commands(text: &str) -> impl Iterator<Item = String> {
    let calls = text.split("call('").skip(1);
    let names = calls.filter_map(|rest| rest.split('\'').next());
    names.map(|name| format!("+{name}"))
}

#[cfg(test)]
mod tests;

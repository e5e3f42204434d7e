//! The error for a script that the server refused, and the permission that the script lacks, as `ACL SETUSER` takes
//! it.
//!
//! An error inside a script carries a line number, which identifies the refused command: no line of a script calls
//! two.

use std::sync::Arc;

use crate::error::{Cause, Denied, Error, RefusalKind, missing_channel, pattern_of, shorten};
use crate::redis::Script;
use crate::wire;

/// Returns the error, and whether the script may have been executed: an error that is not Redis' own may come from
/// a proxy, which does not know what the server did.
pub(super) fn refused(script: &Script, keys: &[Arc<str>], source: Box<Cause>) -> (Error, bool) {
    let key = keys.first().map_or("", |key| &**key);
    let not_a_lock = |found| (Error::not_a_lock(key, found), false);
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

/// The permission that a call lacks: of its key or its channel that of this lock, and no other.
fn missing(script: &Script, keys: &[Arc<str>], denied: &Denied) -> String {
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
fn all_commands(script: &Script) -> String {
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

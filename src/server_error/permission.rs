//! Which permission the server misses, as `ACL SETUSER` takes it.
//!
//! An error inside a script carries a line number, which identifies the refused command: no line of a script calls
//! two.

use crate::script::Script;
use crate::wire;

/// Whether a permission is missing.
pub(crate) fn is_permission(text: &str) -> bool {
    text.starts_with("NOPERM")
}

/// What a user lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Denied {
    Command,
    Key,
    Channel,
}

/// What the user of a script lacks; `None`: the text is about something else.
pub(crate) fn denied(text: &str) -> Option<Denied> {
    let in_script =
        text.contains("user executing the script") || text.contains("ACL failure in script");
    if !is_permission(text) && !in_script {
        return None;
    }
    // `run this command`, `run the 'publish' command`.
    Some(if text.contains(" run th") {
        Denied::Command
    } else if text.contains("channel") {
        Denied::Channel
    } else if text.contains("keys") || text.contains("No permissions to access a key") {
        Denied::Key
    } else {
        Denied::Command
    })
}

/// The permission that a call lacks: of its key or its channel that of this lock, and no other.
pub(super) fn missing(script: &Script, key: &str, text: &str) -> Option<String> {
    Some(match denied(text)? {
        Denied::Channel => format!("&{}", pattern_of(&wire::channel(key))),
        Denied::Key => format!("~{}", pattern_of(key)),
        Denied::Command => {
            let command = quoted_command(text).or_else(|| command_at(script, text));
            command.unwrap_or_else(|| all_commands(script))
        }
    })
}

/// `… to run the 'client|kill' command` names the permission itself.
pub(crate) fn quoted_command(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("run the '")?;
    let (command, _) = rest.split_once('\'')?;
    Some(format!("+{command}"))
}

/// The command that the script calls on the line of the error. Only an error caught by `pcall` has
/// no line.
fn command_at(script: &Script, text: &str) -> Option<String> {
    let mut lines = script.source.lines();
    let line = match text.rsplit_once("@user_script:") {
        Some((_, rest)) => {
            // Up to Redis 6.2 the place is said twice, once with a space.
            let digits = rest.trim_start().chars();
            let digits: String = digits.take_while(char::is_ascii_digit).collect();
            lines.nth(digits.parse::<usize>().ok()?.checked_sub(1)?)
        }
        None => lines.find(|line| line.contains("pcall('")),
    };
    commands(line?).next()
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

/// The pattern that matches this text, and nothing else unless the text contains what a rule of an ACL cannot: ASCII
/// whitespace and NUL. `?` stands for each of these.
pub(crate) fn pattern_of(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '*' | '?' | '[' | ']' | '\\' => pattern.extend(['\\', letter]),
            '\0' | '\t'..='\r' | ' ' => pattern.push('?'),
            _ => pattern.push(letter),
        }
    }
    pattern
}

#[cfg(test)]
mod tests;

//! Maps the server's error texts to [`Error`]. No I/O.
//!
//! Redis returns errors as text in which only the first word is stable. An error inside a script
//! carries a line number, which identifies the refused command and so the missing permission.

use crate::error::{Error, Operation, RefusedKind, Source, TlsProblem, shorten};
use crate::script::Script;

/// The error for a script that the server refused.
pub(crate) fn of_script(script: &Script, key: &str, text: &str) -> Error {
    let source = || Source::from(text.to_owned());
    if let Some(kind) = kind(text) {
        return Error::Refused {
            kind,
            source: source(),
        };
    }
    if is_auth(text) {
        return Error::Auth { source: source() };
    }
    if let Some(permission) = missing_permission(script, text) {
        return Error::PermissionDenied {
            permission,
            source: source(),
        };
    }
    if text.contains("WRONGTYPE") {
        return Error::NotALock {
            key: key.to_owned(),
            found: "a key of another type".to_owned(),
        };
    }
    if text.contains("hash value is not an integer") || text.contains("would overflow") {
        return Error::NotALock {
            key: key.to_owned(),
            found: "a non-numeric hold count".to_owned(),
        };
    }
    Error::UnexpectedReply {
        script: script.name,
        reply: shorten(text),
    }
}

/// Whether the script was not executed, or changed nothing. Any other error may come from a proxy,
/// which says nothing about what the server did.
pub(crate) fn is_certain(error: &Error, text: &str) -> bool {
    let is_known = !matches!(error, Error::UnexpectedReply { .. });
    is_known || NOT_EXECUTED.iter().any(|start| text.starts_with(start))
}

/// The error for a connection, or a subscription, that the server refused.
pub(crate) fn of_connection(while_doing: Operation, permission: &str, text: &str) -> Error {
    let source = || Source::from(text.to_owned());
    if let Some(kind) = kind(text) {
        Error::Refused {
            kind,
            source: source(),
        }
    } else if is_auth(text) {
        Error::Auth { source: source() }
    } else if is_permission(text) {
        let permission = quoted_command(text).unwrap_or_else(|| permission.to_owned());
        Error::PermissionDenied {
            permission,
            source: source(),
        }
    } else if is_from_server(text) {
        Error::Refused {
            kind: RefusedKind::Other,
            source: source(),
        }
    } else if let Some(problem) = TlsProblem::of(text) {
        let source = TlsProblem::cause(text).into();
        Error::Tls { problem, source }
    } else {
        Error::no_answer(while_doing, source())
    }
}

/// Whether the text is the server's: its errors start with an upper-case word, those of a client
/// library do not. Up to Redis 6.2 what `pcall` has caught starts with the place in the script.
pub(crate) fn is_from_server(text: &str) -> bool {
    if text.starts_with("@user_script:") {
        return true;
    }
    let word = text.split(' ').next().unwrap_or_default();
    word.len() >= 2 && word.bytes().all(|byte| byte.is_ascii_uppercase())
}

/// Whether the server accepts no writes and another one may: the connection led to the wrong
/// server.
pub(crate) fn is_misplaced(text: &str) -> bool {
    matches!(
        kind(text),
        Some(RefusedKind::ReadOnly | RefusedKind::MasterDown)
    )
}

/// Whether a client library may end the connection because of this error.
pub(crate) fn may_end_the_connection(text: &str) -> bool {
    text.starts_with("CLUSTERDOWN")
        || is_auth(text)
        || kind(text).is_some_and(|kind| {
            use RefusedKind::{Busy, Loading, MasterDown, Misconf, NotEnoughReplicas, ReadOnly};
            matches!(
                kind,
                ReadOnly | Loading | MasterDown | Misconf | Busy | NotEnoughReplicas
            )
        })
}

/// Whether a permission is missing.
pub(crate) fn is_permission(text: &str) -> bool {
    text.starts_with("NOPERM")
}

fn kind(text: &str) -> Option<RefusedKind> {
    // Before Redis 7 an error inside a script is prefixed with "ERR Error running script …: ".
    let in_old_script = text.starts_with("ERR Error running script");
    KINDS
        .iter()
        .find(|(start, _)| {
            text.starts_with(start)
                || in_old_script
                    && (text.contains(&format!(": -{start}"))
                        || text.contains(&format!(": {start}")))
        })
        .map(|&(_, kind)| kind)
}

fn is_auth(text: &str) -> bool {
    ["NOAUTH", "WRONGPASS", "ERR invalid password", "ERR AUTH"]
        .iter()
        .any(|start| text.starts_with(start))
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

fn missing_permission(script: &Script, text: &str) -> Option<String> {
    Some(match denied(text)? {
        Denied::Channel => "&redisson_lock__channel:*".to_owned(),
        Denied::Key => "~ with a pattern for the lock's key".to_owned(),
        Denied::Command => {
            let command = quoted_command(text).or_else(|| command_at(script, text));
            command.unwrap_or_else(|| "+@scripting".to_owned())
        }
    })
}

/// `… to run the 'client|kill' command` names the permission itself.
fn quoted_command(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("run the '")?;
    let (command, _) = rest.split_once('\'')?;
    Some(format!("+{command}"))
}

/// The command that the script calls on the line of the error. Only an error caught by `pcall` has
/// no line.
fn command_at(script: &Script, text: &str) -> Option<String> {
    let line = match text.rsplit_once("@user_script:") {
        Some((_, rest)) => {
            // Up to Redis 6.2 the place is said twice, once with a space.
            let digits = rest.trim_start().chars();
            let digits: String = digits.take_while(char::is_ascii_digit).collect();
            script
                .source
                .lines()
                .nth(digits.parse::<usize>().ok()?.checked_sub(1)?)?
        }
        None => script
            .source
            .lines()
            .find(|line| line.contains("pcall('"))?,
    };
    // A line with two calls yields both commands: one is refused, the other is needed as well.
    let commands: Vec<_> = line
        .split("call('")
        .skip(1)
        .filter_map(|rest| rest.split('\'').next())
        .map(|command| format!("+{command}"))
        .collect();
    (!commands.is_empty()).then(|| commands.join(" "))
}

const KINDS: [(&str, RefusedKind); 15] = [
    ("READONLY", RefusedKind::ReadOnly),
    ("OOM", RefusedKind::OutOfMemory),
    ("NOREPLICAS", RefusedKind::NotEnoughReplicas),
    ("LOADING", RefusedKind::Loading),
    ("BUSY ", RefusedKind::Busy),
    ("MASTERDOWN", RefusedKind::MasterDown),
    ("MISCONF", RefusedKind::Misconf),
    ("ERR max number of clients", RefusedKind::TooManyClients),
    ("CLUSTERDOWN", RefusedKind::ClusterDown),
    ("MOVED", RefusedKind::Cluster),
    ("ASK ", RefusedKind::Cluster),
    ("CROSSSLOT", RefusedKind::Cluster),
    ("TRYAGAIN", RefusedKind::ClusterDown),
    ("ERR SELECT is not allowed in cluster", RefusedKind::Cluster),
    ("ERR DB index is out of range", RefusedKind::NoSuchDatabase),
];

/// Prefixes of errors that a server returns before it runs a script.
const NOT_EXECUTED: [&str; 4] = [
    "NOSCRIPT",
    "ERR unknown command",
    "ERR wrong number of arguments",
    "ERR Error compiling script",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script;
    use crate::wire::LockName;

    #[test]
    fn a_command_that_a_script_may_not_call_is_named() {
        let name = LockName::new("", "a").expect("a name");
        let field = "f".into();
        let script = script::pass(
            &name,
            &field,
            &field,
            std::time::Duration::from_secs(1),
            crate::wire::Announce::Classic,
        )
        .script;
        let line = script.source.lines().position(|line| line.contains("hdel"));
        let line = line.expect("it deletes") + 1;
        let why = "The user executing the script can't run this command or subcommand";
        for text in [
            // Redis 6.2, and 7.0 or later.
            format!(
                "ERR Error running script (call to f_0): @user_script:{line}: @user_script: {line}: {why}"
            ),
            format!("ERR {why} script: 0, on @user_script:{line}."),
        ] {
            let error = of_script(script, "a", &text);
            assert!(
                matches!(&error, Error::PermissionDenied { permission, .. } if permission == "+hdel"),
                "{error:?}"
            );
        }
    }

    #[test]
    fn an_error_of_the_server_is_no_error_of_the_connection() {
        for (text, from_server) in [
            ("ERR unknown command", true),
            (
                "@user_script: 17: The user executing the script can't run this command or subcommand",
                true,
            ),
            ("Connection reset by peer", false),
            ("", false),
        ] {
            assert_eq!(is_from_server(text), from_server, "{text}");
        }
    }

    #[test]
    fn what_is_missing_is_a_command_a_key_or_a_channel() {
        for (text, missing) in [
            (
                "ERR The user executing the script can't run this command or subcommand script: 0",
                Some(Denied::Command),
            ),
            (
                "ERR ACL failure in script: User locker has no permissions to run the 'publish' command",
                Some(Denied::Command),
            ),
            (
                "NOPERM this user has no permissions to run the 'evalsha' command",
                Some(Denied::Command),
            ),
            (
                "ERR The user executing the script can't access at least one of the keys mentioned in the command arguments",
                Some(Denied::Key),
            ),
            (
                "ERR ACL failure in script: No permissions to access a key",
                Some(Denied::Key),
            ),
            (
                "NOPERM this user has no permissions to access one of the keys used as arguments",
                Some(Denied::Key),
            ),
            (
                "ERR The user executing the script can't publish to the channel mentioned in the command",
                Some(Denied::Channel),
            ),
            (
                "ERR ACL failure in script: No permissions to access a channel",
                Some(Denied::Channel),
            ),
            ("ERR value is not an integer or out of range", None),
            (
                "WRONGTYPE Operation against a key holding the wrong kind of value",
                None,
            ),
        ] {
            assert_eq!(denied(text), missing, "{text}");
        }
    }

    #[test]
    fn what_was_refused_unread_is_certain_and_what_nobody_knows_is_not() {
        let script = script::inspect(&LockName::new("", "a").expect("a name"), false).script;
        let certain = |text| is_certain(&of_script(script, "a", text), text);
        for text in [
            "NOSCRIPT No matching script. Please use EVAL.",
            // Redis 6.2 puts the name in backticks.
            "ERR unknown command `EVALSHA`, with args beginning with: `x`, `1`, `a`, ",
            "ERR unknown command 'EVALSHA', with args beginning with: 'x' '1' 'a' ",
            "ERR wrong number of arguments for 'evalsha' command",
            "ERR Error compiling script (new function): user_script:1: '=' expected",
            "READONLY You can't write against a read only replica.",
            "ERR Error running script (call to f_0): @user_script:22: @user_script: 22: -OOM command not allowed",
            "NOAUTH Authentication required.",
            "NOPERM this user has no permissions to run the 'evalsha' command",
            "BUSY Valkey is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        ] {
            assert!(certain(text), "{text}");
        }
        for text in [
            "ERR upstream failure",
            "ERR Script killed by user with SCRIPT KILL.",
            "UPSTREAM gone",
            "",
        ] {
            assert!(!certain(text), "{text}");
        }
    }
}

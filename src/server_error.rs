//! Maps the server's error texts to [`Error`]. No I/O.
//!
//! Redis returns errors as text in which only the first word is stable.

mod permission;

use crate::error::{Cause, Error, Operation, RefusedKind, TlsProblem, shorten};
use crate::script::Script;

#[cfg(test)]
pub(crate) use permission::commands;
pub(crate) use permission::{Denied, denied, is_permission, pattern_of, quoted_command};

/// The error for a script that the server refused.
pub(crate) fn of_script(script: &Script, key: &str, source: Box<Cause>) -> Error {
    let text = &*source.text;
    if let Some(kind) = kind(text).or_else(|| runs_no_scripts(text)) {
        return Error::Refused { kind, source };
    }
    if is_auth(text) {
        return Error::Auth { source };
    }
    if let Some(permission) = permission::missing(script, key, text) {
        return Error::PermissionDenied { permission, source };
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
pub(crate) fn is_certain(error: &Error) -> bool {
    match error {
        Error::UnexpectedReply { reply, .. } => {
            NOT_EXECUTED.iter().any(|start| reply.starts_with(start))
        }
        _ => true,
    }
}

/// The error for a connection, or a subscription, that the server refused.
pub(crate) fn of_connection(
    while_doing: Operation,
    permission: &str,
    mut source: Box<Cause>,
) -> Error {
    let text = &*source.text;
    if let Some(kind) = kind(text) {
        Error::Refused { kind, source }
    } else if is_auth(text) {
        Error::Auth { source }
    } else if is_permission(text) {
        let permission = quoted_command(text).unwrap_or_else(|| permission.to_owned());
        Error::PermissionDenied { permission, source }
    } else if is_from_server(text) {
        let kind = RefusedKind::Other;
        Error::Refused { kind, source }
    } else if let Some(problem) = TlsProblem::of(text) {
        source.text = TlsProblem::cause(text).to_owned();
        Error::Tls { problem, source }
    } else {
        Error::no_answer(while_doing, source)
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

/// What answers there is no server for locks: a sentinel perhaps.
fn runs_no_scripts(text: &str) -> Option<RefusedKind> {
    let command = text.strip_prefix("ERR unknown command ")?;
    let command = command.trim_start_matches(['\'', '`']);
    command.starts_with("EVAL").then_some(RefusedKind::Other)
}

fn is_auth(text: &str) -> bool {
    ["NOAUTH", "WRONGPASS", "ERR invalid password", "ERR AUTH"]
        .iter()
        .any(|start| text.starts_with(start))
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
    fn what_was_refused_unread_is_certain_and_what_nobody_knows_is_not() {
        let script = script::inspect(&LockName::new("", "a").expect("a name"), false).script;
        let certain = |text| is_certain(&of_script(script, "a", Cause::new(None, text)));
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

//! The sentences of errors about a server: which one, what happened, and what to do.

use super::cause::{Cause, Quorum, Source, cause, is_late, lock, refusal};
use super::operation::Operation;
use super::refusal::RefusalKind;
use super::refused::RefusedKind;

/// The server of an error as its sentence names it.
pub(super) fn redis(source: &Source) -> String {
    format!("Redis{}", at(source))
}

fn at(source: &Source) -> String {
    let Some(Cause {
        server: Some(server),
        others,
        quorum,
        ..
    }) = cause(source)
    else {
        return String::new();
    };
    let others: Vec<&str> = others.iter().map(|(server, _)| &**server).collect();
    let others = others.join(", ");
    match quorum {
        Some(Quorum {
            answered,
            asked,
            needed,
        }) => {
            let others = match others.is_empty() {
                true => others,
                false => format!(" and {others}"),
            };
            format!(
                " at {server}{others} ({answered} of {asked} servers answered, {needed} are needed)"
            )
        }
        None if others.is_empty() => format!(" at {server}"),
        None => format!(" at {server} (also tried: {others})"),
    }
}

pub(super) fn no_answer(while_doing: Operation, source: &Source) -> String {
    let (redis, consequence) = (redis(source), while_doing.consequence());
    let to = match while_doing {
        Operation::Subscribing => " for",
        _ => "",
    };
    let lock = lock(source).map_or_else(String::new, |lock| format!("{to} lock `{lock}`"));
    match is_late(source) {
        false => {
            let announced = cause(source).and_then(|cause| cause.announced_by);
            let announced = announced.map_or_else(String::new, |who| {
                format!(", which {who} announced (`map_addresses` can replace it),")
            });
            format!("no answer from {redis}{announced} while {while_doing}{lock}; {consequence}")
        }
        // To look for the server would not help.
        true => format!(
            "the answer from {redis} came too late while {while_doing}{lock}; nothing new is held"
        ),
    }
}

pub(super) fn auth(source: &Source) -> String {
    let redis = redis(source);
    let has_none = refusal(source) == Some(&RefusalKind::NoPassword);
    let is_sentinel = cause(source).is_some_and(|cause| cause.is_sentinel);
    match (has_none, is_sentinel) {
        (true, false) => {
            format!("{redis} asks for a password: put it before the host in the URL")
        }
        (true, true) => {
            format!(
                "{redis} asks for a password: sentinels have one of their own, `sentinelPassword`"
            )
        }
        (false, false) => {
            format!("{redis} did not accept the credentials: check user and password of the client")
        }
        (false, true) => format!(
            "{redis} did not accept the credentials: check `sentinelUsername` and `sentinelPassword`"
        ),
    }
}

/// Why the server refused, and what to do about it. A server of a different kind than the address says has a
/// sentence of its own.
pub(super) fn refused(kind: RefusedKind, source: &Source) -> String {
    let sentence = match refusal(source) {
        Some(RefusalKind::UnknownCommand(command)) => match &**command {
            "CLUSTER" => {
                "it is not a node of a cluster; if it is a sentinel, connect with redis-sentinel://"
            }
            "SENTINEL" => {
                "it is not a sentinel; give the port of one, usually 26379, or connect with redis:// or redis-cluster://"
            }
            "EVALSHA" | "EVAL" => {
                "it runs no scripts; if it is a sentinel, connect with redis-sentinel://"
            }
            "SUBSCRIBE" | "SSUBSCRIBE" => {
                "it has no channels, so no call can wait for this lock; use `spin_lock` or `string_lock`, which need none"
            }
            _ => return kind.to_string(),
        },
        Some(RefusalKind::UnknownCommandInScript(_)) => {
            "it lacks a command that the scripts of this lock call; `check` names it"
        }
        Some(RefusalKind::ScriptNotAccepted) => {
            "it runs no scripts that compute names of keys, as those of read-write locks do; use a different kind of lock, connect to Redis itself, without a proxy that checks scripts, or turn the check off: `script_check_enable` 0 on Alibaba Cloud, `--default_lua_flags=allow-undeclared-keys` of Dragonfly"
        }
        Some(RefusalKind::NoOwner) => {
            "no node of its cluster has the slots that are needed; assign them, or try again after a failover"
        }
        Some(RefusalKind::TooManyKeys) => {
            "too many keys of nested read holds of this lock are gone; try again when those holds have ended"
        }
        Some(RefusalKind::NoPort) => {
            "it was announced with port 0; see `port`, `tls-port` and, in a cluster, `cluster-announce-port`, with Sentinel `replica-announce-port` there"
        }
        Some(RefusalKind::WebServer) => "it is a web server; check the port",
        Some(RefusalKind::NoClusterNode) => "it is not a node of a cluster; connect with redis://",
        Some(RefusalKind::ProtectedMode) => {
            "it is in protected mode; set a password there, or connect from its own machine"
        }
        _ => return kind.to_string(),
    };
    sentence.to_owned()
}

pub(super) fn denied(permission: &str, source: &Source) -> String {
    let at = at(source);
    format!("the Redis user lacks permission `{permission}`{at}: grant it with ACL SETUSER")
}

//! The source of an error about a server: which server it was, and what it said or did.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use super::operation::Operation;
use super::refusal::RefusalKind;
use super::refused::RefusedKind;

/// The cause of an error, for people and logs.
pub(crate) type Source = Box<dyn StdError + Send + Sync>;

/// What a server said, or what became of the connection to it. The error of which this is the source names the
/// server.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cause {
    /// Host and port, or the path of a socket. `None`: no server was chosen yet.
    server: Option<Arc<str>>,
    /// What the text means, if it is a refusal.
    pub(crate) refusal: Option<RefusalKind>,
    pub(crate) text: String,
    /// There was an answer, but it came too late.
    is_late: bool,
    /// Of several locks that are taken together, the one that it is about.
    pub(super) lock: Option<Arc<str>>,
    /// The other servers that were tried, and what became of that.
    others: Vec<(Arc<str>, String)>,
    /// Who has announced the address of a server that is not reached, if it was not given.
    announced_by: Option<&'static str>,
    /// The server is a sentinel, which has credentials of its own.
    pub(super) is_sentinel: bool,
}

impl Cause {
    pub(crate) fn new(server: Option<Arc<str>>, text: impl Into<String>) -> Box<Self> {
        Box::new(Self {
            server,
            text: text.into(),
            ..Self::default()
        })
    }

    pub(crate) fn at(server: &Arc<str>, text: impl Into<String>) -> Box<Self> {
        Self::new(Some(Arc::clone(server)), text)
    }

    pub(crate) fn refused(server: &Arc<str>, kind: RefusalKind, text: String) -> Box<Self> {
        Box::new(Self {
            refusal: Some(kind),
            ..*Self::at(server, text)
        })
    }

    /// Adds the other servers that were tried.
    pub(crate) fn among(self, others: Vec<(Arc<str>, String)>) -> Box<Self> {
        Box::new(Self { others, ..self })
    }

    /// Adds who has announced the address, to which there is no connection.
    pub(crate) fn announced(self, by: Option<&'static str>) -> Box<Self> {
        Box::new(Self {
            announced_by: by,
            ..self
        })
    }

    /// The answer came, but too late.
    pub(crate) fn late(server: Option<Arc<str>>, text: &str) -> Box<Self> {
        Box::new(Self {
            is_late: true,
            ..*Self::new(server, text)
        })
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.server {
            Some(server) if !self.others.is_empty() => write!(f, "{server}: {}", self.text)?,
            _ => f.write_str(&self.text)?,
        }
        let mut others = self.others.iter();
        others.try_for_each(|(server, text)| write!(f, "; {server}: {text}"))
    }
}

impl StdError for Cause {}

/// The server of an error as its sentence names it.
pub(super) fn redis(source: &Source) -> String {
    format!("Redis{}", at(source))
}

fn at(source: &Source) -> String {
    let Some(Cause {
        server: Some(server),
        others,
        ..
    }) = cause(source)
    else {
        return String::new();
    };
    let others: Vec<&str> = others.iter().map(|(server, _)| &**server).collect();
    match others.is_empty() {
        true => format!(" at {server}"),
        false => format!(" at {server} (also tried: {})", others.join(", ")),
    }
}

/// Whether an answer came, but too late.
pub(super) fn is_late(source: &Source) -> bool {
    cause(source).is_some_and(|cause| cause.is_late)
}

pub(super) fn no_answer(while_doing: Operation, source: &Source) -> String {
    let (redis, consequence) = (redis(source), while_doing.consequence());
    let lock = lock(source).map_or_else(String::new, |lock| format!(" lock `{lock}`"));
    match is_late(source) {
        false => {
            let announced = cause(source).and_then(|cause| cause.announced_by);
            let announced =
                announced.map_or_else(String::new, |who| format!(", which {who} announced,"));
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
            format!("{redis} asks for a password: put it before the host in the address")
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
            "it runs no scripts that compute names of keys; connect to Redis itself, without a proxy that checks them, or start Dragonfly with `--default_lua_flags=allow-undeclared-keys`"
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

/// The lock that the error is about, if it says which.
pub(super) fn lock(source: &Source) -> Option<&str> {
    cause(source)?.lock.as_deref()
}

/// Adds the lock that the error is about.
pub(super) fn about(source: Source, lock: &Arc<str>) -> Source {
    let known = match source.downcast::<Cause>() {
        Ok(cause) => *cause,
        Err(other) => *Cause::new(None, other.to_string()),
    };
    Box::new(Cause {
        lock: Some(Arc::clone(lock)),
        ..known
    })
}

/// What the server said.
pub(super) fn refusal(source: &Source) -> Option<&RefusalKind> {
    cause(source)?.refusal.as_ref()
}

pub(super) fn cause(source: &Source) -> Option<&Cause> {
    let source: &(dyn StdError + 'static) = &**source;
    source.downcast_ref()
}

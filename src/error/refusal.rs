//! The meaning of a server's error. It is read once, where replies arrive, and no caller searches its text.
//!
//! Redis returns errors as text in which only the first word is stable.

use super::refused::RefusedKind::{
    self, Busy, Cluster, ClusterDown, Loading, MasterDown, Misconf, NoSuchDatabase,
    NotEnoughReplicas, OutOfMemory, ReadOnly, TooManyClients,
};
use RefusalKind::{
    Known, NoClusterNode, NoPassword, NoScript, NoSuchPrimary, NotCompiled, NotExecuted,
    PasswordNotWanted, ProtectedMode, TryAgain, WrongPassword,
};

/// The meaning of a refusal for the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RefusalKind {
    /// The server does not know the script with this hash.
    NoScript,
    /// The slot belongs to another node. Without a host it is on the host of the node that says so.
    Moved {
        host: String,
        port: u16,
    },
    /// The slot is moving to another node, and this one does not have the key.
    Ask {
        host: String,
        port: u16,
    },
    /// A node that was named by one of the two was not reached in time.
    NotReached,
    /// The slot is moving, and each of two nodes has some of the keys.
    TryAgain,
    /// Not sent, because too many keys of read holds are gone.
    TooManyKeys,
    /// Any other refusal that users see by its kind.
    Known(RefusedKind),
    /// The server wants a password and got none.
    NoPassword,
    WrongPassword,
    /// It got one and wants none.
    PasswordNotWanted,
    NoPermission(Denied),
    /// The script may run, and a command that it calls may not.
    NoPermissionInScript(Denied),
    WrongType,
    NotANumber,
    UnknownCommand(String),
    /// The server lacks a command that a script calls, or forbids it there: the name if it says which, or the line of the
    /// script.
    UnknownCommandInScript(Denied),
    /// The server runs no script whose text names its keys like this.
    ScriptNotAccepted,
    /// The text of a script is no Lua.
    NotCompiled,
    /// Refused before the script ran, for a reason that needs no distinction.
    NotExecuted,
    /// A sentinel knows no primary by this name.
    NoSuchPrimary,
    NoClusterNode,
    /// The nodes of a cluster that answer know none that has a slot.
    NoOwner,
    /// It was announced without a port.
    NoPort,
    /// The answer did not come from Redis.
    WebServer,
    ProtectedMode,
    Other,
}

/// The command, key or channel that the user of a connection may not use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Denied {
    Key,
    Channel,
    /// A command, as `ACL SETUSER` writes it.
    Command(String),
    /// The command on this line of the script, counted from 1.
    Line(usize),
    /// A command that the server does not identify.
    Unnamed,
}

/// Whether the text is a server's: its errors start with an upper-case word, those of a client
/// library do not. Up to Redis 6.2 an error that `pcall` has caught starts with its place in the script.
pub(crate) fn is_from_server(text: &str) -> bool {
    if text.starts_with("@user_script:") {
        return true;
    }
    let word = text.split(' ').next().unwrap_or_default();
    word.len() >= 2 && word.bytes().all(|byte| byte.is_ascii_uppercase())
}

/// Whether a script of the user failed because its server takes no writes. More than the first word, which the script
/// may use for an error of its own: then the connection is fine.
pub(crate) fn is_of_a_replica(text: &str) -> bool {
    text.contains("READONLY You can't write")
}

impl RefusalKind {
    pub(crate) fn read(text: &str) -> Self {
        // Before Redis 7 an error inside a script is prefixed with "ERR Error running script …: ".
        let in_old_script = text.starts_with("ERR Error running script");
        let says = |word: &str| {
            text.starts_with(word)
                || in_old_script
                    && (text.contains(&format!(": -{word}")) || text.contains(&format!(": {word}")))
        };
        if let Some((_, kind)) = KINDS.iter().find(|(word, _)| says(word)) {
            return kind.clone();
        }
        if let Some((_, kind)) = IN_SCRIPTS.iter().find(|(words, _)| text.contains(words)) {
            return match kind {
                Self::UnknownCommandInScript(_) => Self::UnknownCommandInScript(command(text)),
                kind => kind.clone(),
            };
        }
        redirect(text)
            .or_else(|| unknown_command(text))
            .or_else(|| no_permission(text))
            .unwrap_or_else(|| match text {
                _ if text.contains("WRONGTYPE") => Self::WrongType,
                _ if text.contains("hash value is not an integer") => Self::NotANumber,
                _ if text.contains("would overflow") => Self::NotANumber,
                _ => Self::Other,
            })
    }

    /// The public kind of a refusal that has no error of its own.
    pub(crate) fn shown(&self) -> RefusedKind {
        match self {
            Self::Known(kind) => *kind,
            Self::TryAgain | Self::TooManyKeys | Self::NotReached | Self::NoOwner => ClusterDown,
            Self::Moved { .. } | Self::Ask { .. } => Cluster,
            _ => RefusedKind::Other,
        }
    }

    /// Whether the server accepts no writes and another one may: the connection led to the wrong
    /// server.
    pub(crate) fn is_misplaced(&self) -> bool {
        matches!(self, Self::Known(ReadOnly | MasterDown))
    }

    /// Whether the state of the server or of the connection is the reason, and not the command.
    pub(crate) fn is_of_the_server(&self) -> bool {
        match self {
            Self::NoPassword | Self::WrongPassword | Self::ProtectedMode => true,
            Self::Known(kind) => matches!(
                kind,
                ClusterDown
                    | ReadOnly
                    | Loading
                    | MasterDown
                    | Misconf
                    | Busy
                    | NotEnoughReplicas
                    | TooManyClients
            ),
            _ => false,
        }
    }
}

/// `MOVED 3999 10.0.0.2:7001`. The host may be an IPv6 address without brackets.
fn redirect(text: &str) -> Option<RefusalKind> {
    let mut words = text.split_ascii_whitespace();
    let word = words.next()?;
    let (host, port) = words.nth(1)?.rsplit_once(':')?;
    let (host, port) = (host.to_owned(), port.parse().ok()?);
    match word {
        "MOVED" => Some(RefusalKind::Moved { host, port }),
        "ASK" => Some(RefusalKind::Ask { host, port }),
        _ => None,
    }
}

/// Up to Redis 6.2 the name of the command is in backticks. Alibaba Cloud says `ERR command eval not support for normal
/// user`.
fn unknown_command(text: &str) -> Option<RefusalKind> {
    if let Some(rest) = text.strip_prefix("ERR command ")
        && let Some((name, _)) = rest.split_once(" not support")
    {
        return Some(RefusalKind::UnknownCommand(name.to_uppercase()));
    }
    let rest = text.strip_prefix("ERR unknown command ")?;
    let name = rest.split(['\'', '`']).nth(1)?;
    Some(RefusalKind::UnknownCommand(name.to_owned()))
}

fn no_permission(text: &str) -> Option<RefusalKind> {
    let is_direct = text.starts_with("NOPERM");
    let in_script =
        text.contains("user executing the script") || text.contains("ACL failure in script");
    if !is_direct && !in_script {
        return None;
    }
    // `run this command`, `run the 'publish' command`.
    let is_command = text.contains(" run th");
    let is_key = text.contains("keys") || text.contains("No permissions to access a key");
    let denied = match text {
        _ if !is_command && text.contains("channel") => Denied::Channel,
        _ if !is_command && is_key => Denied::Key,
        _ => command(text),
    };
    Some(match is_direct {
        true => RefusalKind::NoPermission(denied),
        false => RefusalKind::NoPermissionInScript(denied),
    })
}

/// Which command was denied. An error in a script has the line of the call, unless `pcall` has caught it; up to
/// Redis 6.2 twice, once with a space.
fn command(text: &str) -> Denied {
    let quoted = || text.split_once("run the '")?.1.split_once('\'');
    match (quoted(), line_in_script(text)) {
        (Some((name, _)), _) => Denied::Command(format!("+{name}")),
        (None, Some(line)) => Denied::Line(line),
        (None, None) => Denied::Unnamed,
    }
}

/// The line of a script, counted from 1, on which a command has failed.
pub(crate) fn line_in_script(text: &str) -> Option<usize> {
    let (_, rest) = text.rsplit_once("@user_script:")?;
    let rest = rest.trim_start();
    let end = rest.find(|letter: char| !letter.is_ascii_digit());
    rest[..end.unwrap_or(rest.len())].parse().ok()
}

/// The pattern of an ACL that matches this text, and nothing else unless the text contains what a rule cannot: ASCII
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

/// The permission for a lock's channel; for a fair lock, whose owners have channels of their own, for those of all owners.
pub(crate) fn missing_channel(channel: &str, is_of_each_owner: bool) -> String {
    let owners = if is_of_each_owner { ":*" } else { "" };
    format!("&{}{owners}", pattern_of(channel))
}

static KINDS: [(&str, RefusalKind); 25] = [
    ("READONLY", Known(ReadOnly)),
    ("OOM", Known(OutOfMemory)),
    ("NOREPLICAS", Known(NotEnoughReplicas)),
    ("LOADING", Known(Loading)),
    ("BUSY ", Known(Busy)),
    ("MASTERDOWN", Known(MasterDown)),
    ("MISCONF", Known(Misconf)),
    ("CLUSTERDOWN", Known(ClusterDown)),
    ("CROSSSLOT", Known(Cluster)),
    ("TRYAGAIN", TryAgain),
    ("NOSCRIPT", NoScript),
    ("NOAUTH", NoPassword),
    ("WRONGPASS", WrongPassword),
    ("ERR invalid password", WrongPassword),
    // Since 6.0, and before.
    (
        "ERR AUTH <password> called without any password configured",
        PasswordNotWanted,
    ),
    (
        "ERR Client sent AUTH, but no password is set",
        PasswordNotWanted,
    ),
    ("ERR AUTH", WrongPassword),
    ("ERR max number of clients", Known(TooManyClients)),
    ("ERR DB index is out of range", Known(NoSuchDatabase)),
    ("ERR SELECT is not allowed in cluster", Known(Cluster)),
    ("ERR wrong number of arguments", NotExecuted),
    ("ERR Error compiling script", NotCompiled),
    ("ERR No such master", NoSuchPrimary),
    ("ERR This instance has cluster support", NoClusterNode),
    ("DENIED", ProtectedMode),
];

/// What servers say of a script that has begun, or that they read before they run it, in the words of any version. In a
/// slot that moves key by key a key is *non local* that this node does not have.
static IN_SCRIPTS: [(&str, RefusalKind); 6] = [
    (
        "command called from",
        RefusalKind::UnknownCommandInScript(Denied::Unnamed),
    ),
    (
        "command is not allowed from script",
        RefusalKind::UnknownCommandInScript(Denied::Unnamed),
    ),
    ("attempted to access a non local key", TryAgain),
    // Alibaba Cloud, of a call whose keys its cluster has on several servers.
    ("must be in same slot", Known(Cluster)),
    // Alibaba Cloud, and Dragonfly.
    ("bad lua script", RefusalKind::ScriptNotAccepted),
    (
        "tried accessing undeclared key",
        RefusalKind::ScriptNotAccepted,
    ),
];

#[cfg(test)]
mod tests;

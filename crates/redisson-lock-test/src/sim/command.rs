//! A command as the server sees it.

use std::time::Duration;

use redisson_lock::test_util::Arg;

pub(super) enum Command {
    Script {
        sha: String,
        /// With EVAL.
        source: Option<String>,
        keys: Vec<String>,
        args: Vec<String>,
    },
    /// A command of the scripts, sent by itself.
    Direct(Vec<String>),
    /// One without a visible effect, by its permission.
    Without(&'static str),
    /// With the version of the protocol that is asked for.
    Hello(Option<String>),
    Tracking,
    Info,
    Asking,
    ClusterInfo,
    ClusterId,
    ClusterSlots,
    /// With what it brings back.
    Ping(String),
    Wait {
        replicas: i64,
        within: Duration,
    },
    Kill {
        id: i64,
        address: String,
    },
    /// Of one channel.
    Change {
        name: String,
        channel: String,
    },
}

impl Command {
    pub(super) fn parse(words: Vec<String>) -> Self {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let text = |text: &&str| (*text).to_owned();
        match words.as_slice() {
            ["HELLO", version @ ..] => Self::Hello(version.first().map(text)),
            ["CLIENT", "INFO"] => Self::Info,
            ["CLIENT", "TRACKING", "ON", "NOLOOP"] => Self::Tracking,
            ["CLIENT", "TRACKING", ..] => Self::Without("client|tracking"),
            ["CLIENT", "SETNAME", _] => Self::Without("client|setname"),
            ["ASKING"] => Self::Asking,
            ["CLUSTER", "INFO"] => Self::ClusterInfo,
            ["CLUSTER", "MYID"] => Self::ClusterId,
            ["CLUSTER", "SLOTS"] => Self::ClusterSlots,
            ["PING"] => Self::Ping("PONG".to_owned()),
            ["PING", nonce] => Self::Ping(text(nonce)),
            ["WAIT", replicas, ms] => Self::Wait {
                replicas: replicas.parse().expect("a number"),
                within: Duration::from_millis(ms.parse().expect("a time")),
            },
            ["INFO", ..] => Self::Without("info"),
            ["PUBSUB", "SHARDNUMSUB"] => Self::Without("pubsub|shardnumsub"),
            [
                "HGET" | "HINCRBY" | "HDEL" | "HLEN" | "HKEYS" | "HEXISTS" | "EXISTS" | "PTTL"
                | "PEXPIRE" | "DEL" | "PUBLISH" | "SPUBLISH" | "TIME",
                ..,
            ] => {
                let mut words: Vec<String> = words.iter().map(text).collect();
                words[0] = words[0].to_ascii_lowercase();
                Self::Direct(words)
            }
            [
                "SUBSCRIBE" | "UNSUBSCRIBE" | "SSUBSCRIBE" | "SUNSUBSCRIBE",
                channel,
            ] => Self::Change {
                name: words[0].to_ascii_lowercase(),
                channel: text(channel),
            },
            ["CLIENT", "KILL", "ID", id, address @ ..] => Self::Kill {
                id: id.parse().expect("a number"),
                address: address.last().map(text).unwrap_or_default(),
            },
            [name @ ("EVALSHA" | "EVAL"), script, keys, rest @ ..] => {
                let keys: usize = keys.parse().expect("a number of keys");
                let is_source = *name == "EVAL";
                Self::Script {
                    sha: match is_source {
                        true => sha1_smol::Sha1::from(script).digest().to_string(),
                        false => text(script),
                    },
                    source: is_source.then(|| text(script)),
                    keys: rest[..keys].iter().map(text).collect(),
                    args: rest[keys..].iter().map(text).collect(),
                }
            }
            other => panic!("the simulated server does not know {other:?}"),
        }
    }

    /// What the right to it is called. `None`: it is several commands.
    pub(super) fn name(&self) -> Option<&'static str> {
        Some(match self {
            Self::Script { source: None, .. } => "evalsha",
            Self::Script { .. } => "eval",
            Self::Info => "client|info",
            Self::Asking => "asking",
            Self::ClusterInfo => "cluster|info",
            Self::ClusterId => "cluster|myid",
            Self::ClusterSlots => "cluster|slots",
            Self::Without(name) => name,
            Self::Tracking => "client|tracking",
            Self::Ping(_) => "ping",
            Self::Wait { .. } => "wait",
            Self::Kill { .. } => "client|kill",
            // Checked where it is executed; HELLO needs no right.
            Self::Direct(_) | Self::Change { .. } | Self::Hello(_) => return None,
        })
    }
}

/// A word of a command as the server reads it.
pub(super) fn text(arg: &Arg) -> String {
    match arg {
        Arg::Text(text) => text.to_string(),
        Arg::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Arg::Fixed(text) => (*text).to_owned(),
        Arg::Number(number) => number.to_string(),
    }
}

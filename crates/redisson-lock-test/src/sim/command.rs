//! A command as the server sees it.

use std::sync::Arc;
use std::time::Duration;

use redisson_lock::test_util::{Arg, Change};

pub(super) enum Command {
    Script {
        sha: String,
        /// With EVAL.
        source: Option<&'static str>,
        keys: Vec<String>,
        args: Vec<String>,
    },
    /// A command of the scripts, sent by itself.
    Direct(Vec<String>),
    /// One without a visible effect, by its permission.
    Without(&'static str),
    Info,
    Asking,
    ClusterInfo,
    ClusterId,
    ClusterSlots,
    /// With what it brings back.
    Ping(Arc<str>),
    Wait {
        replicas: i64,
        within: Duration,
    },
    Kill {
        id: i64,
        address: String,
    },
    Change {
        change: Change,
        channels: Vec<Arc<str>>,
    },
}

impl Command {
    pub(super) fn parse(name: &'static str, args: Vec<Arg>) -> Self {
        let words: Vec<String> = args.iter().map(text).collect();
        match (name, args.as_slice()) {
            ("CLIENT", [Arg::Fixed("INFO")]) => Self::Info,
            ("ASKING", []) => Self::Asking,
            ("CLUSTER", [Arg::Fixed("INFO")]) => Self::ClusterInfo,
            ("CLUSTER", [Arg::Fixed("MYID")]) => Self::ClusterId,
            ("CLUSTER", [Arg::Fixed("SLOTS")]) => Self::ClusterSlots,
            ("CLIENT", [Arg::Fixed("SETNAME"), _]) => Self::Without("client|setname"),
            ("PING", []) => Self::Ping("PONG".into()),
            ("PING", [Arg::Text(nonce)]) => Self::Ping(Arc::clone(nonce)),
            ("WAIT", [Arg::Number(replicas), Arg::Number(ms)]) => Self::Wait {
                replicas: *replicas,
                within: Duration::from_millis(u64::try_from(*ms).expect("a time")),
            },
            ("CLIENT", [Arg::Fixed("TRACKING"), ..]) => Self::Without("client|tracking"),
            ("INFO", _) => Self::Without("info"),
            (
                "HGET" | "HINCRBY" | "HDEL" | "HLEN" | "HKEYS" | "HEXISTS" | "EXISTS" | "PTTL"
                | "PEXPIRE" | "DEL" | "PUBLISH" | "TIME",
                _,
            ) => Self::Direct([vec![name.to_ascii_lowercase()], words].concat()),
            (
                "CLIENT",
                [
                    Arg::Fixed("KILL"),
                    Arg::Fixed("ID"),
                    Arg::Number(id),
                    Arg::Fixed("ADDR"),
                    _,
                ],
            ) => Self::Kill {
                id: *id,
                address: words[4].clone(),
            },
            ("CLIENT", [Arg::Fixed("KILL"), Arg::Fixed("ID"), Arg::Number(id)]) => Self::Kill {
                id: *id,
                address: String::new(),
            },
            ("EVALSHA" | "EVAL", [Arg::Fixed(script), Arg::Number(keys), ..]) => {
                let first_arg = 2 + usize::try_from(*keys).expect("a number of keys");
                let is_source = name == "EVAL";
                Self::Script {
                    sha: if is_source {
                        sha1_smol::Sha1::from(script).digest().to_string()
                    } else {
                        words[0].clone()
                    },
                    source: is_source.then_some(*script),
                    keys: words[2..first_arg].to_vec(),
                    args: words[first_arg..].to_vec(),
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
            Self::Ping(_) => "ping",
            Self::Wait { .. } => "wait",
            Self::Kill { .. } => "client|kill",
            // Checked where it is executed.
            Self::Direct(_) | Self::Change { .. } => return None,
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

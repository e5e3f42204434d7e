//! One side of a scenario: our client, or Redisson, with the same methods.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redisson_lock::{Error, LockClient, LossReason};
use test_support::peer::Peer;

use crate::worker::{Side, Worker};

/// What went wrong, in words that both sides share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fail {
    /// Not held by the caller: IllegalMonitorStateException in Java.
    NotHeld,
    /// Held before, and lost. Java does not tell the two apart.
    Lost(LossReason),
    Other(String),
}

impl Fail {
    pub fn is_not_held(&self) -> bool {
        matches!(self, Self::NotHeld | Self::Lost(_))
    }
}

/// How each side is told of a cluster, or of servers behind Sentinel.
pub struct Several {
    pub rust: String,
    /// One node of a cluster, or all sentinels.
    pub java: String,
    /// `cluster` or `sentinel`.
    pub kind: &'static str,
    /// What the sentinels call the primary.
    pub name: String,
}

/// A client of one side.
#[derive(Clone)]
pub enum Party {
    Rust(LockClient),
    Java { peer: Peer, client: String },
}

impl Party {
    pub async fn rust(url: &str, watchdog: Duration) -> Self {
        Self::rust_prefixed(url, watchdog, "").await
    }

    async fn rust_prefixed(url: &str, watchdog: Duration, prefix: &str) -> Self {
        let builder = LockClient::builder()
            .watchdog_timeout(watchdog)
            .command_timeout(watchdog / 4)
            .key_prefix(prefix);
        Self::Rust(builder.connect(url).await.expect("the server answers"))
    }

    /// A client in a JVM, with settings of the peer's `open`.
    pub async fn java(
        peer: &Peer,
        url: &str,
        watchdog: Duration,
        settings: &[(&str, String)],
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let name = format!("client {}", NEXT.fetch_add(1, Ordering::Relaxed));
        let mut values = vec![
            ("client", name.clone()),
            ("address", url.to_owned()),
            ("watchdog", watchdog.as_millis().to_string()),
        ];
        values.extend(settings.iter().cloned());
        let opened = peer.call("open", &values).await;
        assert!(opened.is_ok(), "{opened:?}");
        Self::Java {
            peer: peer.clone(),
            client: name,
        }
    }

    /// One more client of this side. The settings are for one in a JVM.
    pub async fn another(
        &self,
        url: &str,
        watchdog: Duration,
        settings: &[(&str, String)],
    ) -> Self {
        match self {
            Self::Rust(_) => Self::rust(url, watchdog).await,
            Self::Java { peer, .. } => Self::java(peer, url, watchdog, settings).await,
        }
    }

    /// One more client of this side, which puts this before the name of each lock.
    pub async fn prefixed(&self, url: &str, watchdog: Duration, prefix: &str) -> Self {
        match self {
            Self::Rust(_) => Self::rust_prefixed(url, watchdog, prefix).await,
            Self::Java { peer, .. } => {
                let settings = [("prefix", prefix.to_owned())];
                let settings = &settings[usize::from(prefix.is_empty())..];
                Self::java(peer, url, watchdog, settings).await
            }
        }
    }

    /// One more client of this side, of several servers.
    pub async fn of_several(&self, servers: &Several, watchdog: Duration) -> Self {
        match self {
            Self::Rust(_) => Self::rust(&servers.rust, watchdog).await,
            Self::Java { peer, .. } => {
                let settings = [(servers.kind, servers.name.clone())];
                Self::java(peer, &servers.java, watchdog, &settings).await
            }
        }
    }

    pub fn is_rust(&self) -> bool {
        matches!(self, Self::Rust(_))
    }

    /// A new worker: an owner in Rust, a thread of its own in Java.
    pub fn worker(&self) -> Worker {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let side = match self {
            Self::Rust(client) => Side::Rust {
                client: client.clone(),
                owner: client.owner(),
                guards: Arc::default(),
            },
            Self::Java { peer, client } => {
                let number = NEXT.fetch_add(1, Ordering::Relaxed);
                Side::Java {
                    peer: peer.clone(),
                    client: client.clone(),
                    number,
                }
            }
        };
        Worker {
            side,
            by_thread_id: false,
        }
    }

    /// A worker that calls the asynchronous forms, with a thread id of its own. Ours are
    /// asynchronous anyway.
    pub fn async_worker(&self) -> Worker {
        Worker {
            by_thread_id: true,
            ..self.worker()
        }
    }

    pub async fn close(self) {
        match self {
            Self::Rust(client) => drop(client.close(Duration::ZERO).await),
            Self::Java { peer, client } => drop(peer.call("close", &[("client", client)]).await),
        }
    }
}

pub fn fail(error: &Error) -> Fail {
    match error {
        Error::NotHeld { .. } => Fail::NotHeld,
        Error::Lost { reason, .. } => Fail::Lost(*reason),
        other => Fail::Other(other.to_string()),
    }
}

pub fn exception((kind, text): (String, String)) -> Fail {
    if ["IllegalMonitorStateException", "NotHeld"].contains(&kind.as_str()) {
        Fail::NotHeld
    } else {
        Fail::Other(format!("{kind}: {text}"))
    }
}

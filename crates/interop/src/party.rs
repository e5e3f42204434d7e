//! One side of a scenario: our client, or Redisson, with the same methods.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redisson_lock::{Announce, LockClient, LockClientBuilder};
use test_support::peer::Peer;

use crate::worker::{Part, Side, Worker, named};

/// How each side is told of a cluster, or of servers behind Sentinel.
pub struct Several {
    pub rust: String,
    /// One node of a cluster, or all sentinels.
    pub java: String,
    /// `cluster` or `sentinel`.
    pub kind: &'static str,
    /// What the sentinels call the primary.
    pub name: String,
    /// How our clients announce releases.
    pub announce: Announce,
}

/// A client of one side, whose workers take one part of read-write locks, or locks of another kind.
#[derive(Clone)]
pub struct Party {
    pub client: Client,
    part: Option<Part>,
}

#[derive(Clone)]
pub enum Client {
    Rust(LockClient),
    Java { peer: Peer, client: String },
}

impl From<Client> for Party {
    fn from(client: Client) -> Self {
        Self { client, part: None }
    }
}

impl Party {
    pub async fn rust(url: &str, watchdog: Duration) -> Self {
        Self::built(url, watchdog, |builder| builder).await
    }

    async fn built(
        url: &str,
        watchdog: Duration,
        set: impl FnOnce(LockClientBuilder) -> LockClientBuilder,
    ) -> Self {
        let builder = LockClient::builder()
            .watchdog_timeout(watchdog)
            .command_timeout(watchdog / 4);
        let client = set(builder).connect(url).await;
        Client::Rust(client.expect("the server answers")).into()
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
        let peer = peer.clone();
        Client::Java { peer, client: name }.into()
    }

    /// The same client, whose workers take this part of read-write locks.
    pub fn of_part(&self, part: Option<Part>) -> Self {
        let client = self.client.clone();
        Self { client, part }
    }

    /// The part of read-write locks that the workers of another take.
    pub fn like(&self, other: &Self) -> Self {
        self.of_part(other.part)
    }

    /// The name of a lock, after its kind.
    pub fn named(&self, name: &str) -> String {
        named(self.part, name)
    }

    /// One more client of this side. The settings are for one in a JVM.
    pub async fn another(
        &self,
        url: &str,
        watchdog: Duration,
        settings: &[(&str, String)],
    ) -> Self {
        let another = match &self.client {
            Client::Rust(_) => Self::rust(url, watchdog).await,
            Client::Java { peer, .. } => Self::java(peer, url, watchdog, settings).await,
        };
        another.like(self)
    }

    /// One more client of this side, which puts this before the name of each lock.
    pub async fn prefixed(&self, url: &str, watchdog: Duration, prefix: &str) -> Self {
        let prefixed = match &self.client {
            Client::Rust(_) => {
                Self::built(url, watchdog, |builder| builder.key_prefix(prefix)).await
            }
            Client::Java { peer, .. } => {
                let settings = [("prefix", prefix.to_owned())];
                let settings = &settings[usize::from(prefix.is_empty())..];
                Self::java(peer, url, watchdog, settings).await
            }
        };
        prefixed.like(self)
    }

    /// One more client of this side, of several servers.
    pub async fn of_several(&self, servers: &Several, watchdog: Duration) -> Self {
        let client = match &self.client {
            Client::Rust(_) => {
                let announced = |builder: LockClientBuilder| builder.announce(servers.announce);
                Self::built(&servers.rust, watchdog, announced).await
            }
            Client::Java { peer, .. } => {
                let settings = [(servers.kind, servers.name.clone())];
                Self::java(peer, &servers.java, watchdog, &settings).await
            }
        };
        client.like(self)
    }

    pub fn is_rust(&self) -> bool {
        matches!(self.client, Client::Rust(_))
    }

    /// A new worker: an owner in Rust, a thread of its own in Java.
    pub fn worker(&self) -> Worker {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let side = match &self.client {
            Client::Rust(client) => Side::Rust {
                client: client.clone(),
                owner: client.owner(),
                guards: Arc::default(),
            },
            Client::Java { peer, client } => {
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
            part: self.part,
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

    /// A new worker that takes the read part of locks.
    pub fn reader(&self) -> Worker {
        self.worker().reads()
    }

    /// A new worker that takes the write part of locks.
    pub fn writer(&self) -> Worker {
        self.worker().writes()
    }

    pub async fn close(self) {
        match self.client {
            Client::Rust(client) => drop(client.close(Duration::ZERO).await),
            Client::Java { peer, client } => drop(peer.call("close", &[("client", client)]).await),
        }
    }
}

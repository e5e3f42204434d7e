//! A client's end of a simulated connection: what stands in for fred.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::server::{Opened, World};
use crate::redis::{Change, ConnectionError, End, PubSubEvent, Reply, Role};
use crate::script::Arg;

/// Where a simulated client connects to, and as whom.
#[derive(Clone)]
pub(crate) struct Access {
    pub(super) world: Arc<World>,
    pub(super) client: usize,
}

impl Access {
    /// Opens a connection; its task ends with it, and ends it when it is dropped.
    pub(crate) async fn open(
        &self,
        role: Role,
        limit: Duration,
    ) -> Result<(Connection, JoinHandle<End>), ConnectionError> {
        let (delay, opened) = self.world.connect(self.client, role);
        // Cancel safety of the simulation itself: a connection that nobody waits for any more is
        // closed.
        let closing = opened
            .as_ref()
            .map(|opened| CloseOnDrop(Arc::clone(&self.world), opened.serial));
        tokio::time::sleep(delay.min(limit)).await;
        let (Some(opened), Some(closing)) = (opened, closing) else {
            return Err(ConnectionError::Lost("connection refused".to_owned()));
        };
        if delay > limit {
            return Err(ConnectionError::Timeout(
                "connecting took too long".to_owned(),
            ));
        }
        let Opened {
            serial,
            ended,
            heard,
        } = opened;
        let task = tokio::spawn(async move {
            let _closing = closing;
            ended.cancelled().await;
            Ok(())
        });
        Ok((
            Connection {
                world: Arc::clone(&self.world),
                serial,
                heard: Mutex::new(Some(heard)),
            },
            task,
        ))
    }
}

struct CloseOnDrop(Arc<World>, u64);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close(self.1);
    }
}

/// A command as the server sees it.
pub(super) enum Command {
    Script {
        /// Under which right it runs: evalsha or eval.
        name: &'static str,
        sha: String,
        source: Option<&'static str>,
        keys: Vec<String>,
        args: Vec<String>,
    },
    Info,
    Ping,
    Kill {
        id: i64,
        address: String,
    },
    Barrier {
        change: Change,
        nonce: String,
    },
}

pub(crate) struct Connection {
    world: Arc<World>,
    serial: u64,
    heard: Mutex<Option<mpsc::UnboundedReceiver<PubSubEvent>>>,
}

impl Connection {
    pub(crate) async fn command(
        &self,
        name: &'static str,
        args: Vec<Arg>,
        timeout: Duration,
    ) -> Result<Reply, ConnectionError> {
        self.exchange(parse(name, args), timeout).await
    }

    pub(crate) async fn barrier(
        &self,
        change: Change,
        nonce: String,
        timeout: Duration,
    ) -> Result<String, ConnectionError> {
        match self
            .exchange(Command::Barrier { change, nonce }, timeout)
            .await?
        {
            Reply::Text(echo) => Ok(echo),
            other => panic!("a barrier answers with its nonce: {other:?}"),
        }
    }

    pub(crate) fn messages(&self) -> mpsc::UnboundedReceiver<PubSubEvent> {
        self.heard
            .lock()
            .take()
            .expect("a connection is listened to once")
    }

    async fn exchange(
        &self,
        command: Command,
        timeout: Duration,
    ) -> Result<Reply, ConnectionError> {
        // fred hands a command over when its future is polled for the first time, and it then goes
        // its way whatever becomes of the future.
        let answered = self.world.write(self.serial, command);
        let patient = async {
            match answered.await {
                Ok(answered) => answered,
                // Nobody is left to answer. Whoever waits is told by the end of the connection, or
                // by the clock.
                Err(_) => std::future::pending().await,
            }
        };
        match tokio::time::timeout(timeout, patient).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(text)) => Err(ConnectionError::Refused(text)),
            Err(_) => Err(ConnectionError::Timeout("no answer in time".to_owned())),
        }
    }
}

fn parse(name: &'static str, args: Vec<Arg>) -> Command {
    let text = |arg: &Arg| match arg {
        Arg::Text(text) => text.to_string(),
        Arg::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Arg::Fixed(text) => (*text).to_owned(),
        Arg::Number(number) => number.to_string(),
    };
    let words: Vec<String> = args.iter().map(text).collect();
    match (name, args.as_slice()) {
        ("CLIENT", [Arg::Fixed("INFO")]) => Command::Info,
        ("PING", []) => Command::Ping,
        (
            "CLIENT",
            [
                Arg::Fixed("KILL"),
                Arg::Fixed("ID"),
                Arg::Number(id),
                Arg::Fixed("ADDR"),
                _,
            ],
        ) => Command::Kill {
            id: *id,
            address: words[4].clone(),
        },
        ("CLIENT", [Arg::Fixed("KILL"), Arg::Fixed("ID"), Arg::Number(id)]) => Command::Kill {
            id: *id,
            address: String::new(),
        },
        ("EVALSHA" | "EVAL", [Arg::Fixed(script), Arg::Number(keys), ..]) => {
            let first_arg = 2 + usize::try_from(*keys).expect("a number of keys");
            let is_source = name == "EVAL";
            Command::Script {
                name: if is_source { "eval" } else { "evalsha" },
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

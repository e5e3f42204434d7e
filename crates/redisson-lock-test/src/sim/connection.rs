//! A client's end of a simulated connection: what stands in for fred.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redisson_lock::test_util::{
    Arg, BoxFuture, Change, ConnectionError, PubSubEvent, Reply, Report, Role, Transport,
    TransportConnection,
};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::sync::CancellationToken;

use super::cluster;
use super::command::Command;
use super::network::Opened;
use super::server::Server;

/// Where a simulated client connects to, and as whom.
#[derive(Clone)]
pub struct Access {
    server: Arc<Server>,
    client: usize,
    node: usize,
}

impl Access {
    pub fn new(server: &Arc<Server>, client: usize) -> Self {
        Self {
            server: Arc::clone(server),
            client,
            node: 0,
        }
    }

    async fn connect(&self, role: Role, limit: Duration) -> Result<Connection, ConnectionError> {
        let (delay, opened) = self.server.connect(self.client, self.node, role);
        // Cancel safety of the simulation itself: a connection that nobody waits for any more is
        // closed.
        let closing = opened
            .as_ref()
            .map(|opened| CloseOnDrop(Arc::clone(&self.server), opened.serial));
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
            received,
        } = opened;
        Ok(Connection {
            server: Arc::clone(&self.server),
            serial,
            ended,
            closing: Mutex::new(Some(closing)),
            received: Mutex::new(Some(received)),
        })
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access")
            .field("client", &self.client)
            .finish_non_exhaustive()
    }
}

impl Transport for Access {
    fn open(
        &self,
        role: Role,
        limit: Duration,
    ) -> BoxFuture<'_, Result<Box<dyn TransportConnection>, ConnectionError>> {
        Box::pin(async move {
            let connection = self.connect(role, limit).await?;
            Ok(Box::new(connection) as Box<dyn TransportConnection>)
        })
    }

    fn nodes(&self) -> Vec<(String, u16)> {
        match self.server.keyspaces.len() {
            1 => Vec::new(),
            nodes => (0..nodes).map(cluster::address).collect(),
        }
    }

    fn leading_to(&self, _host: &str, port: u16) -> Arc<dyn Transport> {
        Arc::new(Self {
            node: cluster::node_at(port),
            ..self.clone()
        })
    }
}

struct CloseOnDrop(Arc<Server>, u64);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close(self.1);
    }
}

struct Connection {
    server: Arc<Server>,
    serial: u64,
    ended: CancellationToken,
    closing: Mutex<Option<CloseOnDrop>>,
    received: Mutex<Option<UnboundedReceiver<PubSubEvent>>>,
}

impl TransportConnection for Connection {
    fn command(
        &self,
        name: &'static str,
        args: Vec<Arg>,
        timeout: Duration,
    ) -> BoxFuture<'_, Result<Reply, ConnectionError>> {
        let command = Command::parse(name, args);
        let delay = self.server.reply_delay(&command);
        Box::pin(self.exchange(command, timeout, delay))
    }

    fn change(
        &self,
        change: Change,
        channels: Vec<Arc<str>>,
        timeout: Duration,
    ) -> BoxFuture<'_, Vec<Result<(), ConnectionError>>> {
        Box::pin(async move {
            let count = channels.len();
            let change = Command::Change { change, channels };
            // Without a delay: a message that comes after the answer would overtake it.
            let answers = match self.exchange(change, timeout, None).await {
                Ok(Reply::List(answers)) => answers.into_iter(),
                Ok(other) => panic!("an answer for each channel: {other:?}"),
                Err(problem) => return vec![Err(problem); count],
            };
            let answers = answers.map(|answer| match answer {
                Reply::Text(refused) => Err(ConnectionError::refused(refused)),
                _ => Ok(()),
            });
            answers.collect()
        })
    }

    fn messages(&self) -> UnboundedReceiver<PubSubEvent> {
        self.received
            .lock()
            .take()
            .expect("a connection is listened to once")
    }

    fn track(&self, report: Report) -> bool {
        self.server.track(self.serial, report)
    }

    fn closed(&self) -> BoxFuture<'static, ()> {
        let (closing, ended) = (self.closing.lock().take(), self.ended.clone());
        Box::pin(async move {
            // Dropped with this future, ready or not.
            let _closing = closing;
            ended.cancelled().await;
        })
    }
}

impl Connection {
    async fn exchange(
        &self,
        command: Command,
        timeout: Duration,
        delay: Option<Duration>,
    ) -> Result<Reply, ConnectionError> {
        // A command is handed over when its future is polled for the first time, and it then goes
        // its way whatever becomes of the future.
        let answered = self.server.write(self.serial, command);
        let patient = async {
            match answered.await {
                Ok(answered) => {
                    if let Some(delay) = delay {
                        tokio::time::sleep(delay).await;
                    }
                    answered
                }
                // Nothing is left to answer. The end of the connection reaches a waiting caller of the connection, or
                // by the clock.
                Err(_) => std::future::pending().await,
            }
        };
        match tokio::time::timeout(timeout, patient).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(text)) => Err(ConnectionError::refused(text)),
            Err(_) => Err(ConnectionError::Timeout("no answer in time".to_owned())),
        }
    }
}

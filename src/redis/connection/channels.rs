//! A connection for channels: subscriptions, and the messages on them.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use super::multiplexed::Multiplexed;
use super::pushes::{MessageSink, PushReceiver};
use super::requests::Replying;
use super::task::Task;
use crate::redis::connection::answers::Answer;
use crate::redis::settings::{Settings, Target};
use crate::redis::transport::{Arg, Change, ConnectionError, Delivery, Reply, permitted};
#[cfg(feature = "test-util")]
use crate::redis::transport::{PubSubEvent, Role, TransportConnection};

/// A connection for channels, or what a test has in its place.
pub(in crate::redis) enum ChannelConnection {
    Multiplexed(Multiplexed),
    #[cfg(feature = "test-util")]
    Custom(Arc<dyn TransportConnection>),
}

impl ChannelConnection {
    /// Connects within the command timeout. The connection lives as long as its task, whose `ended` is to be polled.
    pub(in crate::redis) async fn open(
        settings: &Settings,
        heard: MessageSink,
    ) -> Result<(Self, Task), ConnectionError> {
        settings.check_port()?;
        let timeout = settings.command_timeout;
        let until = Instant::now() + timeout;
        match &settings.target {
            Target::Server(server) => {
                let name = settings.client_name.as_ref();
                let (connection, task) = Multiplexed::open(server, name, until).await?;
                connection.receive_pushes(PushReceiver::Channels(heard));
                // In the older version of the protocol a connection with channels accepts little else, no password either.
                let hello = connection.send("HELLO", &[Arg::Number(3)], until, None);
                permitted(by(until, hello).await)?;
                Ok((Self::Multiplexed(connection), task))
            }
            #[cfg(feature = "test-util")]
            Target::Custom(transport) => {
                let connection = transport.open(Role::Messages, timeout).await?;
                let (closed, mut messages) = (connection.closed(), connection.messages());
                let ended = async move {
                    let hear = async {
                        while let Some(event) = messages.recv().await {
                            match event {
                                PubSubEvent::End => return,
                                event => heard(event),
                            }
                        }
                    };
                    tokio::select! {
                        biased;
                        () = closed => {}
                        () = hear => {}
                    }
                };
                let task = Task::custom(Box::pin(ended));
                Ok((Self::Custom(connection.into()), task))
            }
        }
    }

    /// Changes each of these channels. Each has an answer of its own.
    pub(in crate::redis) async fn change(
        &self,
        change: Change,
        delivery: Delivery,
        channels: &[Arc<str>],
        timeout: Duration,
    ) -> Vec<Result<(), ConnectionError>> {
        let connection = match self {
            Self::Multiplexed(connection) => connection,
            #[cfg(feature = "test-util")]
            Self::Custom(connection) => {
                return connection.change(change, channels.to_vec(), timeout).await;
            }
        };
        let (until, words) = (Instant::now() + timeout, words(change, delivery));
        let sent = channels.iter();
        let sent: Vec<Replying> = sent
            .map(|channel| connection.change(words, channel, until))
            .collect();
        let mut answers = Vec::with_capacity(sent.len());
        for answer in sent {
            answers.push(by(until, answer).await.map(drop));
        }
        answers
    }

    /// Asks for a sign of life.
    pub(in crate::redis) async fn ping(&self, timeout: Duration) -> Result<(), ConnectionError> {
        let nonce: Arc<str> = Uuid::new_v4().simple().to_string().into();
        let args = [Arg::Text(Arc::clone(&nonce))];
        let pong = match self {
            Self::Multiplexed(connection) => connection.command("PING", &args, timeout).await,
            #[cfg(feature = "test-util")]
            Self::Custom(connection) => connection.command("PING", args.to_vec(), timeout).await,
        };
        let echo = match pong? {
            // So a server of the older version answers beside channels.
            Reply::List(items) => items.into_iter().next_back(),
            pong => Some(pong),
        };
        match echo {
            Some(Reply::Text(echo)) if *echo == *nonce => Ok(()),
            _ => Err(ConnectionError::out_of_step()),
        }
    }
}

async fn by(until: Instant, answer: Replying) -> Answer {
    let answer = timeout_at(until, answer).await;
    answer.unwrap_or_else(|_| Err(ConnectionError::silent()))
}

/// The command, and the first word of its confirmation.
fn words(change: Change, delivery: Delivery) -> (&'static str, &'static str) {
    match (change, delivery) {
        (Change::Subscribe, Delivery::Classic) => ("SUBSCRIBE", "subscribe"),
        (Change::Subscribe, Delivery::Sharded) => ("SSUBSCRIBE", "ssubscribe"),
        (Change::Unsubscribe, Delivery::Classic) => ("UNSUBSCRIBE", "unsubscribe"),
        (Change::Unsubscribe, Delivery::Sharded) => ("SUNSUBSCRIBE", "sunsubscribe"),
    }
}

#[cfg(test)]
mod tests {
    use test_support::{stalls, tokio};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// A server that takes its time for each step of the opening does not get the limit for each of them.
    #[tokio::test]
    async fn opening_has_one_time_limit() {
        const LIMIT: Duration = Duration::from_millis(1_000);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let serve = async {
            let (mut stream, _) = listener.accept().await.expect("connected");
            let mut words = vec![0; 1_000];
            loop {
                let read = stream.read(&mut words).await;
                assert!(read.expect("open") > 0, "it was closed before its limit");
                tokio::time::sleep(LIMIT * 7 / 10).await;
                // It may have been closed meanwhile.
                _ = stream.write_all(b"+OK\r\n").await;
            }
        };
        let url = format!("redis://:password@127.0.0.1:{port}");
        let settings = Settings::from_url(&url, None, LIMIT, true).expect("valid");
        let settings = settings.with_client_name(Some("orders"));
        let start = Instant::now().into_std();
        let opened = tokio::select! {
            () = serve => unreachable!("it goes on"),
            opened = ChannelConnection::open(&settings, Arc::new(|_| {})) => opened,
        };
        let took = start.elapsed();
        assert!(matches!(opened, Err(ConnectionError::Timeout(_))));
        assert!(took < LIMIT * 13 / 10 + stalls(start), "{took:?}");
    }
}

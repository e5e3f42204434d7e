//! A connection for channels: subscriptions, and the messages on them.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::multiplexed::Multiplexed;
use super::pushes::{MessageSink, Pushes};
use super::requests::Replying;
use super::task::Task;
use crate::redis::connection::answers::Answer;
use crate::redis::settings::{Settings, Target};
use crate::redis::transport::{Arg, Change, ConnectionError, Reply, permitted};
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
        match &settings.target {
            Target::Server(server) => {
                let (connection, task) = Multiplexed::open(server, timeout).await?;
                connection.tell(Pushes::Channels(heard));
                if let Some(name) = &settings.client_name {
                    let words = [Arg::Fixed("SETNAME"), Arg::Text(Arc::clone(name))];
                    let named = connection.command("CLIENT", &words, timeout);
                    named.await?.into_text()?;
                }
                // In the older version of the protocol a connection with channels accepts little else, no password either.
                let hello = connection.command("HELLO", &[Arg::Number(3)], timeout);
                permitted(hello.await)?;
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

    /// Sends a change of the channels and a PING; returns the PING's echo. The first refusal is the error of all.
    pub(in crate::redis) async fn barrier(
        &self,
        change: Change,
        nonce: String,
        timeout: Duration,
    ) -> Result<String, ConnectionError> {
        let connection = match self {
            Self::Multiplexed(connection) => connection,
            #[cfg(feature = "test-util")]
            Self::Custom(connection) => return connection.barrier(change, nonce, timeout).await,
        };
        let until = Instant::now() + timeout;
        let (words, channels) = match change {
            Change::None => (SUBSCRIBE, Vec::new()),
            Change::Subscribe(channels) => (SUBSCRIBE, channels),
            Change::Unsubscribe(channels) => (UNSUBSCRIBE, channels),
        };
        let changes = channels.iter();
        let changes = changes.map(|channel| connection.change(words, channel, until));
        let changes: Vec<Replying> = changes.collect();
        let ping = connection.send("PING", &[Arg::Text(nonce.into())], until, None);
        let mut refused = Ok(());
        for change in changes {
            match by(until, change).await {
                Ok(_) => {}
                Err(refusal @ ConnectionError::Refused(_)) => refused = refused.and(Err(refusal)),
                Err(problem) => return Err(problem),
            }
        }
        let pong = by(until, ping).await;
        refused?;
        let echo = match pong? {
            // So a server of the older version answers beside channels.
            Reply::List(items) => items.into_iter().next_back(),
            pong => Some(pong),
        };
        let echo = echo.map(Reply::into_text).transpose()?;
        Ok(echo.flatten().unwrap_or_default())
    }

    /// Subscribes to sharded channels. Each has an answer of its own: how many of them this connection has now.
    pub(in crate::redis) async fn subscribe_sharded(
        &self,
        channels: &[Arc<str>],
        timeout: Duration,
    ) -> Vec<Result<i64, ConnectionError>> {
        let connection = match self {
            Self::Multiplexed(connection) => connection,
            #[cfg(feature = "test-util")]
            Self::Custom(_) => {
                let lost = || ConnectionError::Lost("no sharded channels".to_owned());
                return channels.iter().map(|_| Err(lost())).collect();
            }
        };
        let until = Instant::now() + timeout;
        let sent = channels.iter();
        let sent = sent.map(|channel| connection.change(SSUBSCRIBE, channel, until));
        let mut answers = Vec::new();
        for answer in sent.collect::<Vec<_>>() {
            answers.push(by(until, answer).await.map(count));
        }
        answers
    }

    pub(in crate::redis) async fn unsubscribe_sharded(
        &self,
        channel: &Arc<str>,
        timeout: Duration,
    ) -> Result<(), ConnectionError> {
        match self {
            Self::Multiplexed(connection) => {
                let until = Instant::now() + timeout;
                let answer = connection.change(SUNSUBSCRIBE, channel, until);
                by(until, answer).await.map(|_| ())
            }
            #[cfg(feature = "test-util")]
            Self::Custom(_) => Ok(()),
        }
    }
}

async fn by(until: Instant, answer: Replying) -> Answer {
    let answer = timeout_at(until, answer).await;
    answer.unwrap_or_else(|_| Err(ConnectionError::silent()))
}

/// The last part of `["ssubscribe", name, count]`.
fn count(confirmation: Reply) -> i64 {
    match confirmation {
        Reply::List(items) => match items.last() {
            Some(Reply::Number(count)) => *count,
            _ => 0,
        },
        _ => 0,
    }
}

/// A command, and the first word of its confirmation.
const SUBSCRIBE: (&str, &str) = ("SUBSCRIBE", "subscribe");
const UNSUBSCRIBE: (&str, &str) = ("UNSUBSCRIBE", "unsubscribe");
const SSUBSCRIBE: (&str, &str) = ("SSUBSCRIBE", "ssubscribe");
const SUNSUBSCRIBE: (&str, &str) = ("SUNSUBSCRIBE", "sunsubscribe");

//! A connection for channels, which fred makes: subscriptions, and the messages on them.

use std::future::Future;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use fred::error::ErrorKind;
use fred::interfaces::{ClientLike, EventInterface, PubsubInterface};
use fred::prelude::Client;
use fred::types::config::Options;
use fred::types::{CustomCommand, Message, Value};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use super::failed::{TOO_LONG, without_arguments};
use super::task::Task;
use crate::error::is_from_server;
use crate::redis::settings::{Settings, Target};
use crate::redis::transport::{Change, ConnectionError, PubSubEvent};
#[cfg(feature = "test-util")]
use crate::redis::transport::{Role, TransportConnection};

/// A connection for channels, or what a test has in its place.
pub(in crate::redis) enum ChannelConnection {
    Fred(Client),
    #[cfg(feature = "test-util")]
    Custom(Arc<dyn TransportConnection>),
}

impl ChannelConnection {
    /// Connects within the command timeout. The connection lives as long as its task.
    pub(in crate::redis) async fn open(
        settings: &Settings,
    ) -> Result<(Self, Task), ConnectionError> {
        settings.check_port()?;
        match &settings.target {
            Target::Server(server) => {
                let client = server.client()?;
                let task = init(&client, settings.command_timeout).await?;
                if let Some(name) = &settings.client_name {
                    let words = vec!["SETNAME", name];
                    let command = CustomCommand::new_static("CLIENT", None::<u16>, false);
                    let named: Value = client
                        .with_options(&options(settings.command_timeout))
                        .custom(command, words)
                        .await?;
                    debug_assert!(named.as_str().is_some(), "it is OK");
                }
                Ok((Self::Fred(client), task))
            }
            #[cfg(feature = "test-util")]
            Target::Custom(transport) => {
                let connection = transport
                    .open(Role::Messages, settings.command_timeout)
                    .await?;
                let task = Task::custom(connection.closed());
                Ok((Self::Custom(connection.into()), task))
            }
        }
    }

    /// Sends a change of the channels and a PING in one pipeline; returns the PING's echo.
    pub(in crate::redis) async fn barrier(
        &self,
        change: Change,
        nonce: String,
        timeout: Duration,
    ) -> Result<String, ConnectionError> {
        match self {
            Self::Fred(client) => {
                // The time limit of a pipeline is that of its first command.
                let (pipeline, options) = (client.pipeline(), options(timeout));
                let first = pipeline.with_options(&options);
                match change {
                    Change::None => {}
                    Change::Subscribe(channels) => first.subscribe(names(&channels)).await?,
                    Change::Unsubscribe(channels) => first.unsubscribe(names(&channels)).await?,
                }
                let _: Value = pipeline.with_options(&options).ping(Some(nonce)).await?;
                let pong: Value = pipeline.last().await?;
                let echo = match &pong {
                    Value::Array(items) => items.last().and_then(Value::as_string),
                    other => other.as_string(),
                };
                Ok(echo.unwrap_or_default())
            }
            #[cfg(feature = "test-util")]
            Self::Custom(connection) => connection.barrier(change, nonce, timeout).await,
        }
    }

    /// Subscribes to sharded channels, each by a command of its own in one pipeline, so that each has an answer
    /// of its own: how many of them this connection has now.
    pub(in crate::redis) async fn subscribe_sharded(
        &self,
        channels: &[Arc<str>],
        timeout: Duration,
    ) -> Vec<Result<i64, ConnectionError>> {
        match self {
            Self::Fred(client) => {
                let pipeline = client.pipeline();
                for channel in channels {
                    let command = CustomCommand::new_static("SSUBSCRIBE", None::<u16>, false);
                    let queued: Result<Value, _> = pipeline
                        .with_options(&options(timeout))
                        .custom(command, vec![channel.to_string()])
                        .await;
                    debug_assert!(queued.is_ok(), "it is only queued");
                }
                let answers = pipeline.try_all::<Value>().await.into_iter();
                answers.map(|answer| Ok(count(answer?))).collect()
            }
            #[cfg(feature = "test-util")]
            Self::Custom(_) => {
                let lost = || ConnectionError::Lost("no sharded channels".to_owned());
                channels.iter().map(|_| Err(lost())).collect()
            }
        }
    }

    /// Unsubscribes from a sharded channel. Only this command of fred's reads the answer as what it is.
    pub(in crate::redis) async fn unsubscribe_sharded(
        &self,
        channel: &str,
    ) -> Result<(), ConnectionError> {
        match self {
            Self::Fred(client) => Ok(client.sunsubscribe(channel).await?),
            #[cfg(feature = "test-util")]
            Self::Custom(_) => Ok(()),
        }
    }

    /// Messages on this connection's channels from now on.
    pub(in crate::redis) fn messages(&self) -> Messages {
        match self {
            Self::Fred(client) => Messages::Fred(client.message_rx()),
            #[cfg(feature = "test-util")]
            Self::Custom(connection) => Messages::Custom(connection.messages()),
        }
    }
}

/// The message stream of a connection.
pub(in crate::redis) enum Messages {
    Fred(Receiver<Message>),
    #[cfg(feature = "test-util")]
    Custom(tokio::sync::mpsc::UnboundedReceiver<PubSubEvent>),
}

impl Messages {
    /// The next message, or a gap.
    pub(in crate::redis) async fn next(&mut self) -> PubSubEvent {
        match self {
            Self::Fred(receiver) => match receiver.recv().await {
                Ok(message) => PubSubEvent::Message(message.channel.to_string()),
                Err(RecvError::Lagged(count)) => PubSubEvent::Missed(count),
                Err(RecvError::Closed) => PubSubEvent::End,
            },
            #[cfg(feature = "test-util")]
            Self::Custom(receiver) => receiver.recv().await.unwrap_or(PubSubEvent::End),
        }
    }
}

/// Connects and starts the task that drives the connection, within `limit`.
///
/// fred's own `init` leaves its task running when it is dropped.
async fn init(client: &Client, limit: Duration) -> Result<Task, ConnectionError> {
    let mut connected = std::pin::pin!(client.wait_for_connect());
    // Its first poll registers for the outcome; the outcome of a faster connection would be missed.
    let early = std::future::poll_fn(|context| Poll::Ready(connected.as_mut().poll(context))).await;
    debug_assert!(early.is_pending(), "nothing is connected yet");
    let mut task = Task::of(client.connect());
    tokio::select! {
        biased;
        connected = tokio::time::timeout(limit, connected) => match connected {
            Ok(Ok(())) => Ok(task),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(ConnectionError::Timeout(TOO_LONG.to_owned())),
        },
        problem = panicked(&mut task) => Err(problem),
    }
}

async fn panicked(task: &mut Task) -> ConnectionError {
    match task.has_panicked().await {
        true => ConnectionError::NoSockets,
        // fred notifies those who wait for the connection.
        false => std::future::pending().await,
    }
}

/// One write, and a timeout that also stops a late first write.
fn options(timeout: Duration) -> Options {
    Options {
        max_attempts: Some(1),
        timeout: Some(timeout),
        ..Options::default()
    }
}

fn names(channels: &[Arc<str>]) -> Vec<String> {
    channels.iter().map(|channel| channel.to_string()).collect()
}

/// The last part of `["ssubscribe", name, count]`.
fn count(answer: Value) -> i64 {
    match answer {
        Value::Array(items) => items.last().and_then(Value::as_i64).unwrap_or(0),
        _ => 0,
    }
}

impl From<fred::error::Error> for ConnectionError {
    fn from(error: fred::error::Error) -> Self {
        let text = without_arguments(error.details()).to_owned();
        match error.kind() {
            _ if is_from_server(&text) => Self::refused(text),
            ErrorKind::Timeout => Self::Timeout(text),
            _ => Self::Lost(text),
        }
    }
}

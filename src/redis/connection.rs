//! One connection as the rest of `redis/` sees it: commands with a timeout, channels, messages, its
//! end.
//!
//! Besides the settings, only this file uses fred. It returns our own types: a [`Reply`], or a
//! [`ConnectionError`] that distinguishes a refusal by the server from a connection without a
//! reply.

mod cluster;
mod failed;

use std::fmt::Write as _;
use std::future::Future;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use fred::bytes::{Bytes, BytesMut};
use fred::error::ErrorKind;
use fred::interfaces::{ClientLike, EventInterface, PubsubInterface};
use fred::prelude::Client;
use fred::types::config::Options;
use fred::types::{ConnectHandle, CustomCommand, Message, Value};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use super::settings::{Settings, Target};
#[cfg(feature = "test-util")]
use super::transport::TransportConnection;
use super::transport::{
    Arg, BoxFuture, Change, ConnectionError, NO_LIMIT, PubSubEvent, Reply, Role,
};
use crate::error::is_from_server;

pub(super) use failed::{Failed, connect_error};

/// One connection to a server, or to what a test has in its place.
pub(super) enum Connection {
    Fred(Client),
    #[cfg(feature = "test-util")]
    Custom(Arc<dyn TransportConnection>),
}

impl Connection {
    /// Connects within the command timeout. The connection lives as long as its task.
    pub(super) async fn open(
        settings: &Settings,
        role: Role,
    ) -> Result<(Self, Task), ConnectionError> {
        let (connection, task) = match &settings.target {
            Target::Server(server) => {
                let client = server.client(role)?;
                let task = init(&client, settings.command_timeout).await?;
                (Self::Fred(client), task)
            }
            #[cfg(feature = "test-util")]
            Target::Custom(transport) => {
                let connection = transport.open(role, settings.command_timeout).await?;
                let task = Task(Some(Driver::Custom(connection.closed())));
                (Self::Custom(connection.into()), task)
            }
        };
        if let Some(name) = &settings.client_name {
            let words = [Arg::Fixed("SETNAME"), Arg::Text(Arc::clone(name))];
            let named = connection.command("CLIENT", &words, settings.command_timeout);
            named.await?.into_text()?;
        }
        Ok((connection, task))
    }

    /// Sends one command, once, and waits for its reply. The first poll hands it over; from then on
    /// it is executed even if this future is dropped. If it is not written by the timeout, it is
    /// not written later either. With `NO_LIMIT` it is written for as long as the connection lives.
    ///
    /// On the heap: fred's future would make those of all callers many times larger, also while they
    /// only wait for the lock.
    pub(super) fn command(
        &self,
        name: &'static str,
        args: &[Arg],
        timeout: Duration,
    ) -> BoxFuture<'static, Result<Reply, ConnectionError>> {
        match self {
            Self::Fred(client) => {
                let (client, args) = (client.clone(), words(args));
                Box::pin(async move {
                    let options = options(timeout);
                    let command = CustomCommand::new_static(name, None::<u16>, false);
                    let answer: Value = client.with_options(&options).custom(command, args).await?;
                    Ok(answer.into())
                })
            }
            #[cfg(feature = "test-util")]
            Self::Custom(connection) => {
                let (connection, args) = (Arc::clone(connection), args.to_vec());
                Box::pin(async move { connection.command(name, args, timeout).await })
            }
        }
    }

    /// Sends a change of the channels and a PING in one pipeline; returns the PING's echo.
    pub(super) async fn barrier(
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

    /// Messages on this connection's channels from now on.
    pub(super) fn messages(&self) -> Messages {
        match self {
            Self::Fred(client) => Messages::Fred(client.message_rx()),
            #[cfg(feature = "test-util")]
            Self::Custom(connection) => Messages::Custom(connection.messages()),
        }
    }
}

/// The message stream of a connection.
pub(super) enum Messages {
    Fred(Receiver<Message>),
    #[cfg(feature = "test-util")]
    Custom(tokio::sync::mpsc::UnboundedReceiver<PubSubEvent>),
}

impl Messages {
    /// The next message, or a gap.
    pub(super) async fn next(&mut self) -> PubSubEvent {
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

impl From<fred::error::Error> for ConnectionError {
    fn from(error: fred::error::Error) -> Self {
        let text = error.details();
        // What follows are names that a log need not have.
        let (text, _) = text
            .split_once(", with args beginning with")
            .unwrap_or((text, ""));
        let text = text.to_owned();
        match error.kind() {
            _ if is_from_server(&text) => Self::refused(text),
            ErrorKind::Timeout => Self::Timeout(text),
            _ => Self::Lost(text),
        }
    }
}

/// What drives a connection. It ends with the connection, and dropping it ends the connection.
pub(super) struct Task(Option<Driver>);

enum Driver {
    Fred(ConnectHandle),
    #[cfg(feature = "test-util")]
    Custom(BoxFuture<'static, ()>),
}

impl Task {
    /// Waits for the end of the connection.
    pub(super) async fn ended(&mut self) {
        match &mut self.0 {
            Some(Driver::Fred(task)) => _ = task.await,
            #[cfg(feature = "test-util")]
            Some(Driver::Custom(closed)) => closed.await,
            None => {}
        }
        self.0 = None;
    }

    /// Waits for a task to which tokio refuses a socket. tokio panics then, and there is no way to
    /// check beforehand.
    async fn panicked(&mut self) -> ConnectionError {
        let Some(Driver::Fred(task)) = &mut self.0 else {
            return std::future::pending().await;
        };
        let ended = task.await;
        self.0 = None;
        match ended {
            Err(error) if error.is_panic() => ConnectionError::NoSockets,
            // fred notifies those who wait for the connection.
            Ok(_) | Err(_) => std::future::pending().await,
        }
    }

    /// Ends the connection, and waits until its socket is closed, which happens when fred's task is
    /// dropped.
    pub(super) async fn end(mut self) {
        if let Some(Driver::Fred(task)) = &self.0 {
            task.abort();
            self.ended().await;
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(Driver::Fred(task)) = &self.0 {
            task.abort();
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
    let mut task = Task(Some(Driver::Fred(client.connect())));
    tokio::select! {
        biased;
        connected = tokio::time::timeout(limit, connected) => match connected {
            Ok(Ok(())) => Ok(task),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(ConnectionError::Timeout(TOO_LONG.to_owned())),
        },
        problem = task.panicked() => Err(problem),
    }
}

/// One write, and a timeout that also stops a late first write.
fn options(timeout: Duration) -> Options {
    // fred treats zero as no timeout, and the absence of a timeout as its default.
    let is_limited = timeout != NO_LIMIT;
    Options {
        max_attempts: Some(1),
        timeout: Some(if is_limited { timeout } else { Duration::ZERO }),
        ..Options::default()
    }
}

pub(super) fn slot_of(key: &str) -> u16 {
    fred::util::redis_keyslot(key.as_bytes())
}

fn names(channels: &[Arc<str>]) -> Vec<String> {
    channels.iter().map(|channel| channel.to_string()).collect()
}

/// The words of a command, cut from one buffer: each by itself would be two allocations, and a renewal
/// has up to two hundred.
fn words(args: &[Arg]) -> Vec<Value> {
    let length = args.iter().map(|arg| match arg {
        Arg::Text(text) => text.len(),
        Arg::Bytes(bytes) => bytes.len(),
        Arg::Fixed(_) => 0,
        Arg::Number(_) => DIGITS,
    });
    let mut buffer = BytesMut::with_capacity(length.sum());
    let mut word = |arg: &Arg| {
        match arg {
            Arg::Text(text) => buffer.extend_from_slice(text.as_bytes()),
            Arg::Bytes(bytes) => buffer.extend_from_slice(bytes),
            Arg::Fixed(text) => return Bytes::from_static(text.as_bytes()),
            // It grows if it has to, so this cannot fail.
            Arg::Number(number) => _ = write!(buffer, "{number}"),
        }
        buffer.split().freeze()
    };
    args.iter().map(|arg| Value::Bytes(word(arg))).collect()
}

/// Of nearly every number that a script is given.
const DIGITS: usize = 8;

impl From<Value> for Reply {
    fn from(value: Value) -> Self {
        match value {
            Value::Null => Self::Nil,
            Value::Integer(number) => Self::Number(number),
            Value::Array(items) => {
                let added = usize::from(looks_like_a_message(&items));
                Self::List(items.into_iter().skip(added).map(Self::from).collect())
            }
            Value::String(text) => Self::Text(text.to_string()),
            Value::Bytes(bytes) => match std::str::from_utf8(&bytes) {
                Ok(text) => Self::Text(text.to_owned()),
                Err(_) => Self::Bytes((&*bytes).into()),
            },
            Value::Queued => Self::Other("QUEUED".to_owned()),
            // Of the newer protocol.
            other => Self::Other(format!("{other:?}")),
        }
    }
}

/// Whether fred's codec has put a word before this list: it takes one such as `message`, a channel and a text for a
/// message, wherever it is in a reply.
fn looks_like_a_message(items: &[Value]) -> bool {
    let word = |nth: usize| items.get(nth).and_then(Value::as_str);
    word(0).as_deref() == Some("pubsub")
        && match word(1).as_deref() {
            Some("message" | "smessage") => items.len() == 4,
            Some("pmessage") => items.len() == 5,
            _ => false,
        }
}

const TOO_LONG: &str = "connecting took too long";

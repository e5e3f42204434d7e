//! Values that pass over a connection, whichever library makes it: words, replies, errors, messages. And the seam
//! through which a test puts connections of its own in the place of real ones.

#![cfg_attr(
    not(feature = "test-util"),
    allow(
        unreachable_pub,
        reason = "public with the feature `test-util` alone, through `test_util`"
    )
)]

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use smallvec::SmallVec;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::error::{self, Cause, Error, Operation, RefusalKind};

/// A word of a command.
#[derive(Debug, Clone)]
pub enum Arg {
    /// A text that was put together.
    Text(Arc<str>),
    /// A text that may not be UTF-8.
    Bytes(Arc<[u8]>),
    /// A text that is part of the program: a subcommand, a script, a hash.
    Fixed(&'static str),
    /// A whole number.
    Number(i64),
}

/// The words of a command: as many as most have.
pub(crate) type CommandWords = SmallVec<[Arg; 8]>;

/// The reply to a command.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// Nothing.
    Nil,
    /// A whole number.
    Number(i64),
    /// A text.
    Text(String),
    /// A text that is not UTF-8.
    Bytes(Arc<[u8]>),
    /// Several of them.
    List(Vec<Self>),
}

impl Reply {
    /// A text as it is, whatever it is made of.
    pub(crate) fn bytes(&self) -> Option<Arc<[u8]>> {
        match self {
            Self::Text(text) => Some(text.as_bytes().into()),
            Self::Bytes(bytes) => Some(Arc::clone(bytes)),
            Self::Nil | Self::Number(_) | Self::List(_) => None,
        }
    }

    /// The text of a reply that has to be one; `None` if it is not UTF-8.
    pub(crate) fn into_text(self) -> Result<Option<String>, ConnectionError> {
        match self {
            Self::Text(text) => Ok(Some(text)),
            Self::Bytes(_) => Ok(None),
            Self::Nil | Self::Number(_) | Self::List(_) => Err(ConnectionError::out_of_step()),
        }
    }

    /// Its shape, whatever its values.
    pub(crate) fn shape(&self) -> &'static str {
        match self {
            Self::Nil => "nil",
            Self::Number(_) => "a number",
            Self::Text(_) | Self::Bytes(_) => "a text",
            Self::List(_) => "a list",
        }
    }

    /// For an error message.
    pub(crate) fn shown(&self) -> String {
        error::shorten(&match self {
            Self::Nil => "nil".to_owned(),
            Self::Number(number) => number.to_string(),
            Self::Text(text) => format!("{text:?}"),
            Self::Bytes(bytes) => format!("{:?}", String::from_utf8_lossy(bytes)),
            Self::List(items) => {
                let items: Vec<_> = items.iter().take(8).map(Self::shown).collect();
                format!("[{}]", items.join(", "))
            }
        })
    }
}

/// A future on the heap.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The bytes of a connection, in both directions.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// A change of the channels that a connection listens to.
#[derive(Debug, Clone, Copy)]
pub(super) enum Change {
    /// These as well.
    Subscribe,
    /// These no more.
    Unsubscribe,
}

/// How the messages of a channel are delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Delivery {
    /// To all nodes of a cluster.
    Classic,
    /// Within a shard of a cluster.
    Sharded,
}

/// What was heard of a channel.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ChannelEvent {
    /// There is a message.
    Message(Delivery, String),
    /// The subscription to this sharded channel has ended.
    Ended(String),
}

/// Called with each. It is called by the reader of the connection, so it waits for nothing.
pub(super) type MessageSink = Arc<dyn Fn(ChannelEvent) + Send + Sync>;

/// An error that a server returned; or what this client found out about a server that it cannot use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub(crate) kind: RefusalKind,
    /// The server's message, or a sentence of this client.
    pub(crate) text: String,
}

/// Why a command has no reply.
#[derive(Debug, Clone)]
pub enum ConnectionError {
    /// The server refused.
    Refused(Box<Refusal>),
    /// Nothing of it was written, and nothing will be.
    NotSent(String),
    /// No answer in time.
    Timeout(String),
    /// The connection is gone, or was never there.
    Lost(String),
    /// The runtime has no sockets.
    NoSockets,
}

impl ConnectionError {
    /// A reply was one that its command cannot have: the connection is of no use.
    pub(crate) fn out_of_step() -> Self {
        Self::Lost("replies are out of step with their commands".to_owned())
    }

    /// The server refuses the command, and others it may accept.
    pub(crate) fn is_about_the_command(&self) -> bool {
        matches!(self, Self::Refused(refusal) if !refusal.kind.is_of_the_server())
    }

    /// Returns the error of a server that did not accept the connection. It is about no command.
    pub(crate) fn of_a_connection(self) -> Self {
        match self.is_about_the_command() {
            true => Self::Lost(self.to_string()),
            false => self,
        }
    }

    pub(crate) fn silent() -> Self {
        Self::Timeout("no answer".to_owned())
    }

    /// The server does not let this client in, or does not serve it, until an operator changes that.
    pub(super) fn is_lasting(&self) -> bool {
        use RefusalKind::{
            NoPassword, NoPermission, NoSuchPrimary, PasswordNotWanted, UnknownCommand,
            WrongPassword,
        };
        let Self::Refused(refusal) = self else {
            return false;
        };
        matches!(
            refusal.kind,
            NoPassword
                | WrongPassword
                | PasswordNotWanted
                | NoPermission(_)
                | UnknownCommand(_)
                | NoSuchPrimary
        )
    }

    /// No node of a cluster has the slots that are needed.
    pub(super) fn no_owner() -> Self {
        Self::unusable(
            RefusalKind::NoOwner,
            "the nodes that answer report no owner",
        )
    }

    /// Reads an error message of a server.
    pub fn refused(text: impl Into<String>) -> Self {
        let text = text.into();
        Self::unusable(RefusalKind::read(&text), text)
    }

    /// A server that this client cannot use, although it answers.
    pub(crate) fn unusable(kind: RefusalKind, text: impl Into<String>) -> Self {
        let text = text.into();
        Self::Refused(Box::new(Refusal { kind, text }))
    }

    /// The error of an operation that had a connection for itself.
    pub(super) fn into_error(self, doing: Operation, server: &Arc<str>) -> Error {
        match self {
            Self::NoSockets => Error::NoRuntime,
            problem => Error::of_connection(doing, "+@connection", problem.into_cause(server)),
        }
    }

    pub(crate) fn into_cause(self, server: &Arc<str>) -> Box<Cause> {
        match self {
            Self::Refused(refusal) => Cause::refused(server, refusal.kind, refusal.text),
            Self::NotSent(text) | Self::Timeout(text) | Self::Lost(text) => Cause::at(server, text),
            Self::NoSockets => Cause::at(server, self.to_string()),
        }
    }
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refused(refusal) => &refusal.text,
            Self::NotSent(text) | Self::Timeout(text) | Self::Lost(text) => text,
            Self::NoSockets => "the runtime has no sockets",
        })
    }
}

/// The answer; `None` if the server has no such command, or no permission for it. A server that cannot serve at present
/// has said nothing about the command: taken for a missing permission, it would let the next connection be used beside
/// what is left of the previous one.
pub(super) fn permitted(
    answer: Result<Reply, ConnectionError>,
) -> Result<Option<Reply>, ConnectionError> {
    match answer {
        Ok(reply) => Ok(Some(reply)),
        Err(problem) if problem.is_about_the_command() => Ok(None),
        Err(problem) => Err(problem),
    }
}

/// Makes the byte streams of a client in the place of sockets.
#[cfg(feature = "test-util")]
pub trait Transport: Send + Sync + 'static {
    /// Connects to the server. Dropping the future closes what it has opened.
    fn open(&self) -> BoxFuture<'_, Result<Box<dyn ByteStream>, ConnectionError>>;

    /// Waited for before a script is handed over that may not be wanted any more: its thread may stand still.
    fn before_hand_over(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Waited for between the arrival of a reply and its caller: a task that is ready may be polled late.
    fn later(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    /// The nodes that are known of a cluster: hosts and ports. None: it is one server.
    fn nodes(&self) -> Vec<(String, u16)> {
        Vec::new()
    }

    /// As this transport, for another node.
    fn leading_to(&self, host: &str, port: u16) -> Arc<dyn Transport> {
        unreachable!("one server does not name {host}:{port}")
    }
}

#[cfg(test)]
mod tests {
    use super::{ConnectionError, permitted};

    /// Such an error is the reply to every command in flight.
    #[test]
    fn what_ends_the_connection_is_no_missing_permission() {
        for (text, about) in [
            (
                "NOPERM User u has no permissions to run the 'client|kill' command",
                true,
            ),
            (
                "ERR unknown command 'CLIENT', with args beginning with: 'KILL'",
                true,
            ),
            (
                "ERR Unknown subcommand or wrong number of arguments for 'INFO'",
                true,
            ),
            ("CLUSTERDOWN The cluster is down", false),
            ("LOADING Redis is loading the dataset in memory", false),
        ] {
            let answer = permitted(Err(ConnectionError::refused(text)));
            assert_eq!(answer.is_ok(), about, "{text}");
        }
    }
}

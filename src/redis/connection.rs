//! One connection as the rest of `redis/` sees it: commands with a timeout, channels, messages, its
//! end.
//!
//! What it returns is a [`Reply`], or a [`ConnectionError`] that distinguishes a refusal by the server from a connection
//! without a reply.

pub(super) mod answers;
mod channels;
mod driver;
mod failed;
mod multiplexed;
mod pushes;
mod replies;
#[cfg(any(test, feature = "test-util"))]
mod reply_path;
mod requests;
mod stream;
mod task;

#[cfg(feature = "test-util")]
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::reports::{LaneReports, TrackedCalls};
use super::settings::{Settings, Target};
use super::transport::{Arg, BoxFuture, ConnectionError, Reply};
#[cfg(feature = "test-util")]
use super::transport::{NO_LIMIT, Role, TransportConnection};
use crate::error::RefusalKind;
use crate::redis::connection::answers::ExpectedReply;

pub(super) use channels::ChannelConnection;
pub(super) use failed::{Failed, connect_error, explained};
use multiplexed::Multiplexed;
pub(super) use pushes::MessageSink;
use pushes::PushReceiver;
#[cfg(feature = "test-util")]
pub(crate) use reply_path::check_reply_path;
pub(super) use requests::Replying;
pub(super) use task::Task;

/// A connection for commands, or what a test has in its place.
pub(super) enum Connection {
    Multiplexed(Multiplexed),
    #[cfg(feature = "test-util")]
    Custom(Arc<dyn TransportConnection>),
}

impl Connection {
    /// Connects within the command timeout. The connection lives as long as its task.
    pub(super) async fn open(settings: &Settings) -> Result<(Self, Task), ConnectionError> {
        settings.check_port()?;
        match &settings.target {
            Target::Server(server) => {
                let until = Instant::now() + settings.command_timeout;
                let opened = Multiplexed::open(server, settings.client_name.as_ref(), until);
                let (connection, task) = opened.await?;
                Ok((Self::Multiplexed(connection), task))
            }
            #[cfg(feature = "test-util")]
            Target::Custom(transport) => {
                let opened = transport.open(Role::Commands, settings.command_timeout);
                let connection = opened.await?;
                let task = Task::custom(connection.closed());
                Ok((Self::Custom(connection.into()), task))
            }
        }
    }

    #[cfg(test)]
    pub(super) fn unopened() -> Self {
        Self::Multiplexed(Multiplexed::default())
    }

    /// Sends one command, once, and waits for its reply. The first poll hands it over; from then on
    /// it is executed even if this future is dropped. If it is not written by the timeout, it is
    /// not written later either.
    pub(super) fn command(
        &self,
        name: &'static str,
        args: &[Arg],
        timeout: Duration,
    ) -> BoxFuture<'static, Result<Reply, ConnectionError>> {
        let args = args.to_vec();
        match self {
            Self::Multiplexed(connection) => {
                let connection = connection.clone();
                Box::pin(async move { connection.command(name, &args, timeout).await })
            }
            #[cfg(feature = "test-util")]
            Self::Custom(connection) => {
                let connection = Arc::clone(connection);
                Box::pin(async move { connection.command(name, args, timeout).await })
            }
        }
    }

    /// Sends a command whose caller decides how long it waits: `until` bounds the write alone. The reply is
    /// judged when it arrives, whether the caller still waits or not.
    pub(super) fn send(
        &self,
        name: &'static str,
        args: &[Arg],
        until: Instant,
        expected: ExpectedReply,
    ) -> Replying {
        match self {
            Self::Multiplexed(connection) => connection.send(name, args, until, Some(expected)),
            #[cfg(feature = "test-util")]
            Self::Custom(connection) => {
                let (connection, args) = (Arc::clone(connection), args.to_vec());
                Replying::Boxed(Box::pin(async move {
                    let answer = connection.command(name, args, NO_LIMIT).await;
                    judged(answer, &expected)
                }))
            }
        }
    }

    /// Sends ASKING and a command, with nothing between them: a node that takes over a slot executes the one command
    /// after it as if the slot were its own already.
    pub(super) fn asking(
        &self,
        name: &'static str,
        args: &[Arg],
        until: Instant,
        expected: ExpectedReply,
    ) -> Replying {
        match self {
            Self::Multiplexed(connection) => {
                let [asked, reply] = match connection.asking(name, args, until, expected) {
                    Ok(replies) => replies,
                    Err(why) => return why.into(),
                };
                Replying::Boxed(Box::pin(async move {
                    match (asked.await, reply.await) {
                        // Sent back to where the call came from: the reply to ASKING says why.
                        (Err(refused), Err(ConnectionError::Refused(back)))
                            if matches!(back.kind, RefusalKind::Moved { .. }) =>
                        {
                            Err(refused)
                        }
                        (_, answer) => answer,
                    }
                }))
            }
            #[cfg(feature = "test-util")]
            Self::Custom(connection) => {
                let (connection, args) = (Arc::clone(connection), args.to_vec());
                Replying::Boxed(Box::pin(async move {
                    let asking = connection.command("ASKING", Vec::new(), NO_LIMIT);
                    let command = connection.command(name, args, NO_LIMIT);
                    let (_, answer) = tokio::join!(asking, command);
                    judged(answer, &expected)
                }))
            }
        }
    }

    /// Has the server report which of the keys that are read over this connection others change.
    pub(super) async fn track(
        &self,
        reports: LaneReports,
        timeout: Duration,
    ) -> Result<TrackedCalls, ConnectionError> {
        match self {
            Self::Multiplexed(connection) => {
                connection.receive_pushes(PushReceiver::Reports(reports))
            }
            #[cfg(feature = "test-util")]
            Self::Custom(connection) => {
                let report = move |key: Option<&str>| reports.add(key);
                return match connection.track(Arc::new(report)) {
                    true => Ok(TrackedCalls::AsRead),
                    false => {
                        let kind = RefusalKind::UnknownCommand("CLIENT".to_owned());
                        Err(ConnectionError::unusable(kind, "no reports"))
                    }
                };
            }
        }
        // Only in this version of the protocol they come over the connection that has read the keys.
        let hello = self.command("HELLO", &[Arg::Number(3)], timeout).await?;
        if !matches!(hello, Reply::List(_)) {
            return Err(ConnectionError::out_of_step());
        }
        let words = ["TRACKING", "ON", "NOLOOP"].map(Arg::Fixed);
        let tracking = self.command("CLIENT", &words, timeout).await?;
        tracking.into_text()?;
        Ok(TrackedCalls::by(hello_field(&hello, "version")))
    }
}

/// A text in the reply to `HELLO`.
pub(super) fn hello_field<'a>(reply: &'a Reply, name: &str) -> Option<&'a str> {
    let Reply::List(items) = reply else {
        return None;
    };
    items.chunks(2).find_map(|field| match field {
        [Reply::Text(found), Reply::Text(value)] if found == name => Some(value.as_str()),
        _ => None,
    })
}

/// The answers of a test's connection.
#[cfg(feature = "test-util")]
fn judged(
    answer: Result<Reply, ConnectionError>,
    expected: &ExpectedReply,
) -> Result<Reply, ConnectionError> {
    expected.judge.note_idle();
    match answer {
        Ok(_) | Err(ConnectionError::Refused(_)) => expected.judged(answer)?,
        Err(_) => answer,
    }
}

/// The hash slot of a key, which decides its node in a cluster.
pub(crate) fn slot_of(key: &str) -> u16 {
    fred::util::redis_keyslot(key.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_hello_is_the_text_after_its_name() {
        let text = |text: &str| Reply::Text(text.to_owned());
        let hello = Reply::List(["server", "version", "version", "7.2"].map(text).into());
        assert_eq!(hello_field(&hello, "server"), Some("version"));
        assert_eq!(hello_field(&hello, "version"), Some("7.2"));
        assert_eq!(hello_field(&hello, "mode"), None);
        assert_eq!(hello_field(&Reply::List(vec![text("mode")]), "mode"), None);
        assert_eq!(hello_field(&Reply::Nil, "mode"), None);
    }

    /// The answer of a server's CLUSTER KEYSLOT.
    #[test]
    fn a_slot_is_that_of_the_tag_or_of_the_whole_key() {
        for (key, slot) in [
            ("a", 15495),
            ("foo", 12182),
            ("123456789", 12739),
            ("lock:{42}", 8000),
            ("42", 8000),
            ("{42}:lock:{43}", 8000),
            ("a{}b{c}", 7353),
            ("a{b", 13340),
            ("a}b{c}", 7365),
            ("{{a}}", 10276),
            ("{a", 10276),
            ("stück 一", 4873),
        ] {
            assert_eq!(slot_of(key), slot, "{key:?}");
        }
    }
}

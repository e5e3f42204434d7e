//! A connection that all callers share: their commands go out in the order of their first polls, many in
//! one write.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::answers::Answer;
use super::driver::{DriverShared, drive};
use super::failed::TOO_LONG;
use super::pushes::PushReceiver;
use super::requests::{Command, Confirmation, Replying};
use super::stream;
use super::task::Task;
use crate::base::runtime::{Lately, event};
use crate::error::RefusalKind;
use crate::redis::connection::answers::ExpectedReply;
use crate::redis::settings::Server;
use crate::redis::transport::{Arg, CommandWords, ConnectionError};

#[derive(Clone)]
#[cfg_attr(test, derive(Default))]
pub(in crate::redis) struct Multiplexed(Arc<DriverShared>);

impl Multiplexed {
    /// Connects by `until`, with the credentials and the database of the settings, and with this name. The connection lives
    /// as long as its task, which dropping this future ends too.
    pub(super) async fn open(
        server: &Server,
        name: Option<&Arc<str>>,
        until: Instant,
    ) -> Result<(Self, Task), ConnectionError> {
        let shared = Arc::new(DriverShared::default());
        let (opened, outcome) = oneshot::channel();
        // In its task, because tokio panics where a runtime has no sockets.
        let task = tokio::spawn({
            let (server, shared) = (server.clone(), Arc::clone(&shared));
            async move {
                match stream::open(&server).await {
                    Ok(stream) => {
                        _ = opened.send(Ok(()));
                        let _renewing = server.refresh_interval().map(|pause| {
                            let connection = Self(Arc::clone(&shared));
                            let renewing = renew_credentials(connection, server, pause);
                            AbortOnDropHandle::new(tokio::spawn(renewing))
                        });
                        drive(stream, shared).await;
                    }
                    Err(problem) => _ = opened.send(Err(problem)),
                }
            }
        });
        let mut task = Task::of(task);
        match timeout_at(until, outcome).await {
            Ok(Ok(opened)) => opened?,
            Ok(Err(_)) if task.has_panicked().await => return Err(ConnectionError::NoSockets),
            Ok(Err(_)) => return Err(ConnectionError::Lost("the runtime has ended".to_owned())),
            Err(_) => return Err(too_long()),
        }
        let connection = Self(shared);
        let settled = timeout_at(until, connection.settle(server, name, until)).await;
        settled.map_err(|_| too_long())??;
        Ok((connection, task))
    }

    /// Who the client is, and which database it means.
    async fn settle(
        &self,
        server: &Server,
        name: Option<&Arc<str>>,
        until: Instant,
    ) -> Result<(), ConnectionError> {
        self.authenticate(server, until).await?;
        if let Some(database) = server.database() {
            let words = CommandWords::from_iter([Arg::Number(database.into())]);
            self.send("SELECT", &words, until, None).await?;
        }
        if let Some(name) = name {
            let words = [Arg::Fixed("SETNAME"), Arg::Text(Arc::clone(name))];
            let named = self.send("CLIENT", &words, until, None).await?;
            named.into_text()?;
        }
        Ok(())
    }

    async fn authenticate(&self, server: &Server, until: Instant) -> Result<(), ConnectionError> {
        let Some(words) = server.credentials().await? else {
            return Ok(());
        };
        match self.send("AUTH", &words, until, None).await {
            // A server that asks for no password serves a client that has one.
            Err(ConnectionError::Refused(refusal))
                if refusal.kind == RefusalKind::PasswordNotWanted => {}
            answer => _ = answer?,
        }
        Ok(())
    }

    /// Sets the receiver of the server's pushes.
    pub(super) fn receive_pushes(&self, pushes: PushReceiver) {
        self.0.receive_pushes(pushes);
    }

    /// The reply has until then too.
    pub(super) async fn command(&self, name: &str, args: &[Arg], timeout: Duration) -> Answer {
        let until = Instant::now() + timeout;
        let reply = self.send(name, args, until, None);
        let answer = timeout_at(until, reply).await;
        answer.unwrap_or_else(|_| Err(ConnectionError::Timeout("no answer in time".to_owned())))
    }

    /// Not written by then, it is not written. The reply is waited for as long as the connection lives.
    pub(super) fn send(
        &self,
        name: &str,
        args: &[Arg],
        until: Instant,
        expected: Option<ExpectedReply>,
    ) -> Replying {
        let command = Command {
            name,
            args,
            expected,
            confirmation: None,
        };
        self.add(command, until)
    }

    /// A change of one channel, which a push confirms.
    pub(super) fn change(
        &self,
        (name, kind): (&str, &'static str),
        channel: &Arc<str>,
        until: Instant,
    ) -> Replying {
        let channel = Arc::clone(channel);
        let command = Command {
            name,
            args: &[Arg::Text(Arc::clone(&channel))],
            expected: None,
            confirmation: Some(Confirmation { kind, channel }),
        };
        self.add(command, until)
    }

    fn add(&self, command: Command<'_>, until: Instant) -> Replying {
        match self.0.add([command], until) {
            Ok([reply]) => reply.into(),
            Err(why) => why.into(),
        }
    }

    /// ASKING and a command, with nothing between them. Both have a reply.
    pub(super) fn asking(
        &self,
        name: &str,
        args: &[Arg],
        until: Instant,
        expected: ExpectedReply,
    ) -> Result<[Replying; 2], ConnectionError> {
        let asking = Command {
            name: "ASKING",
            args: &[],
            expected: None,
            confirmation: None,
        };
        let command = Command {
            name,
            args,
            expected: Some(expected),
            confirmation: None,
        };
        let replies = self.0.add([asking, command], until)?;
        Ok(replies.map(Into::into))
    }
}

/// Sends the credentials of a provider again, each time that it wants.
async fn renew_credentials(connection: Multiplexed, server: Server, pause: Duration) {
    let lately = Lately::default();
    loop {
        tokio::time::sleep(pause).await;
        let until = Instant::now() + server.command_timeout();
        if let Err(problem) = connection.authenticate(&server, until).await
            && lately.is_news(problem.to_string())
        {
            event!(WARN, %problem, "the credentials of a connection could not be renewed");
        }
    }
}

fn too_long() -> ConnectionError {
    ConnectionError::Timeout(TOO_LONG.to_owned())
}

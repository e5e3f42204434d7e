//! A connection that all callers share: their commands go out in the order of their first polls, many in
//! one write.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::answers::Answer;
use super::driver::{DriverShared, Gate, OPEN, drive, lost};
use super::failed::TOO_LONG;
use super::pushes::PushReceiver;
use super::requests::{
    AnswerCallback, AnswerForm, AnswerLimits, Command, Completion, Confirmation, Encoded,
};
use super::stream;
use crate::base::runtime::{Lately, event};
use crate::error::RefusalKind;
use crate::redis::connection::answers::ExpectedReply;
use crate::redis::settings::server::Server;
use crate::redis::settings::{Settings, Target};
#[cfg(feature = "test-util")]
use crate::redis::transport::Transport;
use crate::redis::transport::{
    Arg, BoxFuture, Change, ConnectionError, Delivery, Reply, permitted,
};

/// A connection: commands, and the channels that are subscribed to over it.
#[derive(Clone)]
#[cfg_attr(test, derive(Default))]
pub(in crate::redis) struct Connection {
    driver: Arc<DriverShared>,
    /// Over whose byte stream it goes, if that is one of a test.
    #[cfg(feature = "test-util")]
    transport: Option<Arc<dyn Transport>>,
}

impl Connection {
    /// Connects within the command timeout, with the credentials, the database and the name of the settings. The connection
    /// lives as long as its task, which dropping this future ends too.
    pub(in crate::redis) async fn open(
        settings: &Settings,
    ) -> Result<(Self, Task), ConnectionError> {
        settings.check_port()?;
        let until = Instant::now() + settings.command_timeout;
        let connection = Self {
            driver: Arc::default(),
            #[cfg(feature = "test-util")]
            transport: settings.transport(),
        };
        let (opened, outcome) = oneshot::channel();
        // In its task, because tokio panics where a runtime has no sockets.
        let task = tokio::spawn({
            let (target, connection) = (settings.target.clone(), connection.clone());
            async move {
                match stream::open(&target).await {
                    Ok(stream) => {
                        _ = opened.send(Ok(()));
                        let driver = Arc::clone(&connection.driver);
                        let _renewing = connection.renewing(&target);
                        drive(stream, driver).await;
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
        let settled = timeout_at(until, connection.settle(settings, until)).await;
        settled.map_err(|_| too_long())??;
        Ok((connection, task))
    }

    #[cfg(test)]
    pub(in crate::redis) fn unopened() -> Self {
        Self::default()
    }

    /// Who the client is, and which database it means: all in one round trip.
    async fn settle(&self, settings: &Settings, until: Instant) -> Result<(), ConnectionError> {
        let words = match settings.target.server() {
            Some(server) => server.credentials().await?,
            None => None,
        };
        let password = words.map(|words| self.send("AUTH", &words, until, NO_LIMITS));
        let database = settings.database().map(|number| {
            let words = [Arg::Number(number.into())];
            self.send("SELECT", &words, until, NO_LIMITS)
        });
        let name = settings.client_name.as_ref().map(|name| {
            let words = [Arg::Fixed("SETNAME"), Arg::Text(Arc::clone(name))];
            self.send("CLIENT", &words, until, NO_LIMITS)
        });
        if let Some(answer) = password {
            accepted(answer.await)?;
        }
        if let Some(answer) = database {
            answer.await?;
        }
        if let Some(answer) = name {
            answer.await?.into_text()?;
        }
        Ok(())
    }

    /// What sends the credentials of a provider again, each time that it wants.
    fn renewing(self, target: &Target) -> Option<AbortOnDropHandle<()>> {
        let server = target.server()?.clone();
        let pause = server.refresh_interval()?;
        let renewing = tokio::spawn(renew_credentials(self, server, pause));
        Some(AbortOnDropHandle::new(renewing))
    }

    /// Asks for the version of the protocol in which the server sends messages and reports beside replies. `None`: it knows
    /// the older one alone.
    pub(in crate::redis) async fn greet(
        &self,
        timeout: Duration,
    ) -> Result<Option<Reply>, ConnectionError> {
        let hello = self.command("HELLO", &[Arg::Number(3)], timeout).await;
        match permitted(hello)? {
            Some(hello @ Reply::List(_)) => Ok(Some(hello)),
            Some(_) => Err(ConnectionError::out_of_step()),
            None => Ok(None),
        }
    }

    /// Sets the receiver of what the server sends by itself, before it is asked for any of that.
    pub(in crate::redis) fn receive(&self, pushes: PushReceiver) {
        self.driver.receive_pushes(pushes);
    }

    /// Sends one command, once, and waits for its reply. The first poll hands it over; from then on
    /// it is executed even if this future is dropped. If it is not written by the timeout, it is
    /// not written later either.
    pub(in crate::redis) fn command(
        &self,
        name: &'static str,
        args: &[Arg],
        timeout: Duration,
    ) -> BoxFuture<'static, Answer> {
        let (connection, args) = (self.clone(), args.to_vec());
        Box::pin(async move {
            let until = Instant::now() + timeout;
            let reply = connection.send(name, &args, until, NO_LIMITS);
            let answer = timeout_at(until, reply).await;
            answer.unwrap_or_else(|_| Err(ConnectionError::Timeout("no answer in time".to_owned())))
        })
    }

    /// Sends a command: `until` bounds the write alone, and the limits the wait for the answer. The reply is judged when it
    /// arrives, whether the caller still waits or not.
    pub(in crate::redis) fn send(
        &self,
        name: &str,
        args: &[Arg],
        until: Instant,
        wanted: (Option<ExpectedReply>, AnswerLimits),
    ) -> impl Future<Output = Answer> + Send + use<> {
        self.send_through(OPEN, name, args, until, wanted)
    }

    /// The same, if this has it entered.
    pub(in crate::redis) fn send_through(
        &self,
        gate: Gate<'_>,
        name: &str,
        args: &[Arg],
        until: Instant,
        (expected, limits): (Option<ExpectedReply>, AnswerLimits),
    ) -> impl Future<Output = Answer> + Send + use<> {
        let command = Command {
            expected,
            limits,
            ..Command::new(name, args)
        };
        let added = self.driver.add_through(gate, [command], until);
        self.found_by_its_caller(async { replied(added?).await })
    }

    /// Sends ASKING and a command, with nothing between them, if this has both entered: a node that takes over a slot
    /// executes the one command after it as if the slot were its own already.
    pub(in crate::redis) fn asking(
        &self,
        gate: Gate<'_>,
        name: &str,
        args: &[Arg],
        until: Instant,
        (expected, limits): (ExpectedReply, AnswerLimits),
    ) -> impl Future<Output = Answer> + Send + use<> {
        let command = Command {
            expected: Some(expected),
            limits,
            ..Command::new(name, args)
        };
        let asking = Command {
            limits,
            ..Command::new("ASKING", &[])
        };
        let added = self.driver.add_through(gate, [asking, command], until);
        self.found_by_its_caller(async {
            let [asked, reply] = added?;
            match (replied([asked]).await, replied([reply]).await) {
                // Sent back to where the call came from: the reply to ASKING says why.
                (Err(refused), Err(ConnectionError::Refused(back)))
                    if matches!(back.kind, RefusalKind::Moved { .. }) =>
                {
                    Err(refused)
                }
                (_, answer) => answer,
            }
        })
    }

    /// Changes one channel: a push confirms that, and an error refuses it.
    pub(in crate::redis) fn change(
        &self,
        change: Change,
        delivery: Delivery,
        channel: &Arc<str>,
        until: Instant,
    ) -> impl Future<Output = Answer> + Send + use<> {
        let args = [Arg::Text(Arc::clone(channel))];
        let command = changing(change, delivery, channel, &args);
        let added = self.driver.add([command], until);
        async { replied(added?).await }
    }

    /// Subscribes to a channel. The reader of the connection calls `told` with the answer, before it reads on; if nothing
    /// is sent, this call does.
    pub(in crate::redis) fn subscribe(
        &self,
        delivery: Delivery,
        channel: &Arc<str>,
        until: Instant,
        (told, (expected, limits)): (AnswerCallback, (ExpectedReply, AnswerLimits)),
    ) {
        let args = [Arg::Text(Arc::clone(channel))];
        let mut command = Command {
            expected: Some(expected),
            limits,
            completion: Completion::Callback(told),
            ..changing(Change::Subscribe, delivery, channel, &args)
        };
        if let Err(why) = self
            .driver
            .hand_over(std::slice::from_mut(&mut command), until, OPEN)
        {
            command.completion.complete(Err(why));
        }
    }

    /// Unsubscribes from a channel. That it was refused is of no use to know: what goes on being heard is ignored.
    ///
    /// A server that gives a slot away ends the subscriptions to its channels, which looks like the confirmation of
    /// `SUNSUBSCRIBE`, and then refuses that. So `PING` with this text goes behind it: what is refused before its reply, and
    /// is not about `PING`, is the other.
    pub(in crate::redis) fn unsubscribe(
        &self,
        delivery: Delivery,
        channel: &Arc<str>,
        (nonce, expected): (Arc<str>, ExpectedReply),
    ) {
        // However late: in its place among the commands it does no harm.
        let until = Instant::now() + DAY;
        let args = [Arg::Text(Arc::clone(channel))];
        let mut command = changing(Change::Unsubscribe, delivery, channel, &args);
        // It is not handed over only if the connection has ended, or its server has read nothing for very long.
        match delivery {
            Delivery::Classic => {
                _ = self
                    .driver
                    .hand_over(std::slice::from_mut(&mut command), until, OPEN);
            }
            Delivery::Sharded => {
                command.form = AnswerForm::IfRefused {
                    channel: Arc::clone(channel),
                    has_ended: false,
                };
                let nonce = [Arg::Text(nonce)];
                let ping = Command {
                    expected: Some(expected),
                    ..Command::new("PING", &nonce)
                };
                _ = self.driver.hand_over(&mut [command, ping], until, OPEN);
            }
        }
    }

    async fn authenticate(&self, server: &Server, until: Instant) -> Result<(), ConnectionError> {
        let Some(words) = server.credentials().await? else {
            return Ok(());
        };
        accepted(self.send("AUTH", &words, until, NO_LIMITS).await)
    }

    /// Enters a command, to be handed over by [`Unflushed::flush`]: it goes out in the order of the calls of this. `None`: the
    /// connection accepts none.
    pub(in crate::redis) fn enter(
        &self,
        name: &str,
        args: &[Arg],
        until: Instant,
        (expected, limits, route): (ExpectedReply, AnswerLimits, Option<u16>),
        completion: impl FnOnce() -> AnswerCallback,
    ) -> Option<Unflushed> {
        let command = Command {
            expected: Some(expected),
            limits,
            route,
            ..Command::new(name, args)
        };
        let entered = self.driver.enter(command, until, completion).ok()?;
        let driver = Arc::clone(&self.driver);
        Some(Unflushed { driver, entered })
    }

    /// Another server has got these routes: what was sent on them has no answer.
    pub(in crate::redis) fn abandon(&self, is_lost: impl Fn(u16) -> bool) {
        let lost = {
            let mut requests = self.driver.requests.lock();
            requests.abandon(is_lost);
            requests.take_answers()
        };
        lost.send();
    }

    /// Ends the wait for answers whose time is over: see [`DriverShared::keep_limits`].
    pub(in crate::redis) async fn keep_limits(&self, every: Duration, looked: impl Fn(bool)) {
        self.driver.keep_limits(every, looked).await;
    }

    /// There will be no more replies.
    pub(in crate::redis) fn has_ended(&self) -> bool {
        self.driver.has_ended()
    }

    /// Ends the connection for those who wait for answers.
    pub(in crate::redis) fn end(&self) {
        self.driver.end(&lost("connection lost"));
    }

    /// In a test a thread may stand still before it hands a command over.
    #[cfg(feature = "test-util")]
    pub(in crate::redis) async fn stands_still(&self) {
        if let Some(transport) = &self.transport {
            transport.before_hand_over().await;
        }
    }

    /// An answer as its caller finds it: in a test perhaps late.
    fn found_by_its_caller<F: Future<Output = Answer> + Send>(
        &self,
        answer: F,
    ) -> impl Future<Output = Answer> + Send + use<F> {
        #[cfg(feature = "test-util")]
        let transport = self.transport.clone();
        async move {
            let answer = answer.await;
            #[cfg(feature = "test-util")]
            if let Some(transport) = transport {
                transport.later().await;
            }
            answer
        }
    }
}

/// The task that drives a connection. It ends with the connection, and dropping it ends the connection.
pub(in crate::redis) struct Task {
    /// Whether it has panicked. `None`: it has ended.
    ended: Option<BoxFuture<'static, bool>>,
    abort: AbortHandle,
}

impl Task {
    fn of<T: Send + 'static>(task: JoinHandle<T>) -> Self {
        let abort = task.abort_handle();
        let ended = async move { task.await.is_err_and(|error| error.is_panic()) };
        Self {
            ended: Some(Box::pin(ended)),
            abort,
        }
    }

    /// Waits for the end of the connection.
    pub(in crate::redis) async fn ended(&mut self) {
        self.has_panicked().await;
    }

    /// Waits for the end of the connection. `true`: its task has panicked, as tokio does where a runtime has no
    /// sockets. There is no way to check beforehand.
    async fn has_panicked(&mut self) -> bool {
        let has_panicked = match &mut self.ended {
            Some(ended) => ended.await,
            None => false,
        };
        self.ended = None;
        has_panicked
    }

    /// Ends the connection, and waits until its socket is closed, which happens when its task is dropped.
    pub(in crate::redis) async fn end(mut self) {
        self.abort.abort();
        self.ended().await;
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.abort.abort();
    }
}

/// A command that was entered into its connection, and is to be handed over.
#[must_use]
pub(crate) struct Unflushed {
    driver: Arc<DriverShared>,
    entered: Encoded,
}

impl Unflushed {
    pub(crate) fn flush(self) {
        self.driver.flush(self.entered);
    }
}

/// The reply to a command that was handed over. Dropped, the command is executed all the same.
async fn replied([reply]: [oneshot::Receiver<Answer>; 1]) -> Answer {
    let closed = |_| Err(lost("the connection was closed"));
    reply.await.unwrap_or_else(closed)
}

/// The answer to AUTH. A server that asks for no password serves a client that has one.
fn accepted(answer: Answer) -> Result<(), ConnectionError> {
    match answer {
        Err(ConnectionError::Refused(refusal))
            if refusal.kind == RefusalKind::PasswordNotWanted =>
        {
            Ok(())
        }
        answer => answer.map(drop),
    }
}

/// The command that changes a channel, and the push that confirms it.
fn changing<'a>(
    change: Change,
    delivery: Delivery,
    channel: &Arc<str>,
    args: &'a [Arg],
) -> Command<'a> {
    let (name, kind) = match (change, delivery) {
        (Change::Subscribe, Delivery::Classic) => ("SUBSCRIBE", "subscribe"),
        (Change::Subscribe, Delivery::Sharded) => ("SSUBSCRIBE", "ssubscribe"),
        (Change::Unsubscribe, Delivery::Classic) => ("UNSUBSCRIBE", "unsubscribe"),
        (Change::Unsubscribe, Delivery::Sharded) => ("SUNSUBSCRIBE", "sunsubscribe"),
    };
    let channel = Arc::clone(channel);
    Command {
        form: AnswerForm::ByPush(Confirmation { kind, channel }),
        ..Command::new(name, args)
    }
}

/// Sends the credentials of a provider again, each time that it wants.
async fn renew_credentials(connection: Connection, server: Server, pause: Duration) {
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

/// Of a command whose caller decides how long it waits.
const NO_LIMITS: (Option<ExpectedReply>, AnswerLimits) = (
    None,
    AnswerLimits {
        until: None,
        doubt_at: None,
    },
);

const DAY: Duration = Duration::from_secs(24 * 3_600);

fn too_long() -> ConnectionError {
    ConnectionError::Timeout(TOO_LONG.to_owned())
}

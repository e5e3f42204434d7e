//! One connection that carries scripts: sends each command once, and distinguishes a slow reply
//! from a dead connection.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::Either;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::fence::Identity;
use super::hearing::ChannelRecord;
use crate::base::runtime::{Lately, event};
use crate::error::{Cause, RefusalKind};
use crate::names::wire::Announce;
use crate::redis::call::{Call, OUTDATED};
use crate::redis::connection::answers::{
    Answer, ExpectedReply, Fits, ImpossibleReplies, ImpossibleReply, NEVER, ReplyChecker,
};
use crate::redis::connection::{AnswerCallback, AnswerLimits, Connection, STALL, Unflushed};
use crate::redis::transport::{Arg, CommandWords, ConnectionError, Delivery, Reply};

/// A connection that may carry scripts.
pub(crate) struct Link {
    connection: Connection,
    /// Where it leads to, for errors.
    pub(in crate::redis) server: Arc<str>,
    /// Channels can be subscribed to over it.
    pub(in crate::redis) hears: bool,
    /// A channel is asked for.
    pub(in crate::redis) subscribes: Notify,
    pub(in crate::redis) heard: Arc<ChannelRecord>,
    judge: Arc<ReplyChecker>,
    pub(in crate::redis) identity: Option<Identity>,
    /// A command has waited for long, and has no reply.
    pub(in crate::redis) doubt: Notify,
    /// The connection is to be replaced.
    pub(in crate::redis) broken: Notify,
    /// The server reported that it accepts no writes: the connection leads to the wrong server.
    pub(in crate::redis) not_writable: Notify,
    pub(in crate::redis) opened_at: Instant,
    lately: Lately,
}

/// Why a send has no reply.
#[derive(Debug)]
pub(crate) enum SendError {
    /// It was never handed over, so it is not executed.
    NotSent(Box<Cause>),
    /// Handed over, and nothing of it was written before the connection ended or the time was over: it is not executed.
    Unwritten(Box<Cause>),
    /// Not handed over: the server refuses the connection with this error.
    NotAccepted(Box<Cause>),
    /// It may have been executed, and until the fence it may still be.
    Unknown(Box<Cause>),
    /// As above, whatever the server has answered: another one has the lock now.
    TakenOver(Box<Cause>),
    /// The server answered with this error.
    Refused(Box<Cause>),
    Closed,
    NoRuntime,
}

/// How long a send may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    /// No caller waits for the reply beyond this.
    pub(crate) until: Instant,
    /// A connection that is silent for this long is doubted.
    pub(crate) silence: Duration,
}

/// How a script is named in a command.
#[derive(Clone, Copy)]
enum ScriptForm {
    Sha,
    Source,
    SourceAfterAsking,
}

impl ScriptForm {
    fn command(self) -> &'static str {
        match self {
            Self::Sha => "EVALSHA",
            Self::Source | Self::SourceAfterAsking => "EVAL",
        }
    }
}

impl Link {
    pub(in crate::redis) fn new(
        connection: Connection,
        hears: bool,
        identity: Option<Identity>,
        server: Arc<str>,
        misfits: Arc<ImpossibleReplies>,
    ) -> Self {
        Self {
            connection,
            server,
            hears,
            subscribes: Notify::new(),
            heard: Arc::default(),
            judge: Arc::new(ReplyChecker::new(misfits)),
            identity,
            doubt: Notify::new(),
            broken: Notify::new(),
            not_writable: Notify::new(),
            opened_at: Instant::now(),
            lately: Lately::default(),
        }
    }

    /// Makes the cause of an error on this connection.
    pub(crate) fn cause(&self, text: impl Into<String>) -> Box<Cause> {
        Cause::at(&self.server, text)
    }

    /// Whether no reply came for as long as the oldest command since the last one gives the server.
    pub(in crate::redis) fn is_silent(&self) -> bool {
        self.judge.silent_at() <= self.judge.micros(Instant::now())
    }

    /// Since when a command has waited and no reply has come.
    pub(in crate::redis) fn silent_since(&self) -> Option<Instant> {
        self.judge.waits_since()
    }

    /// Waits until this connection is silent, a command having no reply. After a stall of this process, which has not
    /// read what has arrived, that counts from now.
    pub(in crate::redis) async fn silent(&self, silence: Duration) {
        loop {
            let now = Instant::now();
            let noted = self.judge.note_sent(self.judge.micros(now + silence));
            let silent_at = self.judge.instant(noted);
            if now < silent_at {
                tokio::time::sleep_until(silent_at).await;
            } else if now <= silent_at + STALL {
                return;
            } else {
                self.judge.postpone(noted, self.judge.micros(now + silence));
            }
        }
    }

    /// The answer for which this connection is to be replaced: its command cannot have it.
    pub(in crate::redis) fn misfit(&self) -> Option<ImpossibleReply> {
        self.judge.misfit()
    }

    /// There will be no more replies.
    pub(in crate::redis) fn has_ended(&self) -> bool {
        self.connection.has_ended()
    }

    /// Ends the connection for those who wait for answers.
    pub(in crate::redis) fn end(&self) {
        self.connection.end();
    }

    /// Keeps the limits of all commands, so that no caller needs a timer, and doubts the connection when one has waited for
    /// a while, whether its caller still waits or not; and when there was always one for as long: were replies out of step,
    /// each of them would come in time. Never ready.
    pub(in crate::redis) async fn keep_limits(&self, timeout: Duration) {
        let long = u64::try_from((timeout / 2).as_micros()).unwrap_or(NEVER);
        let looked = |is_doubtful| {
            let now = self.judge.micros(Instant::now());
            if self.judge.is_long_busy(now, long) || is_doubtful {
                self.doubt.notify_one();
            }
        };
        self.connection.keep_limits(timeout / LOOKS, looked).await;
    }

    /// The server accepts no writes: the connection is replaced.
    pub(crate) fn note_misplaced(&self) {
        self.not_writable.notify_one();
    }

    /// Sends a script once and waits for its answer within `limit`, NOSCRIPT made invisible.
    ///
    /// Answers with the instant before the send.
    pub(crate) async fn run<T: 'static>(
        &self,
        call: &Call<T>,
        limit: Limit,
    ) -> Result<(Reply, Instant), SendError> {
        if call.is_unknown {
            return Box::pin(self.send(ScriptForm::Source, call, limit)).await;
        }
        match self.send(ScriptForm::Sha, call, limit).await {
            // Not executed, so the same script may go out again; EVAL also loads it for the next
            // call.
            Err(SendError::Refused(cause)) if cause.refusal == Some(RefusalKind::NoScript) => {
                Box::pin(self.send(ScriptForm::Source, call, limit)).await
            }
            answered => answered,
        }
    }

    /// Runs the call at a node that is importing the slot of its keys, after ASKING. It sends the source: a server that does not know
    /// the script would use the ASKING up for saying so.
    pub(in crate::redis) async fn run_asking<T: 'static>(
        &self,
        call: &Call<T>,
        limit: Limit,
    ) -> Result<(Reply, Instant), SendError> {
        Box::pin(self.send(ScriptForm::SourceAfterAsking, call, limit)).await
    }

    async fn send<T: 'static>(
        &self,
        form: ScriptForm,
        call: &Call<T>,
        limit: Limit,
    ) -> Result<(Reply, Instant), SendError> {
        let sent_at = Instant::now();
        if limit.until <= sent_at {
            return Err(SendError::NotSent(self.cause("no time left to send")));
        }
        #[cfg(feature = "test-util")]
        if call.still.is_some() {
            self.connection.stands_still().await;
        }
        let answer = self.hand_over(form, call, (sent_at, limit))?;
        Ok((self.outcome(answer.await)?, sent_at))
    }

    /// Hands a script over, if it is still wanted at that moment; from then on it is executed, whatever happens to the future
    /// of its answer.
    fn hand_over<T: 'static>(
        &self,
        form: ScriptForm,
        call: &Call<T>,
        (sent_at, limit): (Instant, Limit),
    ) -> Result<impl Future<Output = Answer> + Send + use<T>, SendError> {
        let is_wanted = Cell::new(true);
        let gate = |enter: &mut dyn FnMut()| match &call.still {
            Some(still) => is_wanted.set(still.if_wanted(enter)),
            None => enter(),
        };
        let (words, until) = (words_of(form, call), limit.until);
        let (expected, limits) = (self.expected_of(form, call), self.limits(sent_at, limit));
        let answer = match form {
            ScriptForm::Sha | ScriptForm::Source => {
                let wanted = (Some(expected), limits);
                let name = form.command();
                let sending = &self.connection;
                Either::Left(sending.send_through(&gate, name, &words, until, wanted))
            }
            ScriptForm::SourceAfterAsking => {
                let wanted = (expected, limits);
                let asking = &self.connection;
                Either::Right(asking.asking(&gate, form.command(), &words, until, wanted))
            }
        };
        match is_wanted.get() {
            true => Ok(answer),
            false => Err(SendError::NotSent(self.cause(OUTDATED))),
        }
    }

    /// What became of a script that was sent.
    pub(in crate::redis) fn outcome(&self, answer: Answer) -> Result<Reply, SendError> {
        match answer {
            Ok(reply) => Ok(reply),
            Err(ConnectionError::Refused(refusal)) => {
                let is_misplaced = refusal.kind.is_misplaced();
                let source = Cause::refused(&self.server, refusal.kind, refusal.text);
                if is_misplaced {
                    self.note_misplaced();
                }
                Err(SendError::Refused(source))
            }
            Err(ConnectionError::NotSent(why)) => Err(SendError::Unwritten(self.cause(why))),
            Err(problem) => Err(self.unknown(problem)),
        }
    }

    /// Enters a script into the connection, under the name that the server may know, and is done with its answer. `None`: the
    /// connection accepts none.
    pub(in crate::redis) fn enter<T: 'static>(
        &self,
        call: Call<T>,
        (sent_at, limit): (Instant, Limit),
        route: Option<u16>,
        done: impl FnOnce(Call<T>) -> AnswerCallback,
    ) -> Option<Unflushed> {
        let form = ScriptForm::Sha;
        let (words, expected) = (words_of(form, &call), self.expected_of(form, &call));
        let wanted = (expected, self.limits(sent_at, limit), route);
        self.connection
            .enter(form.command(), &words, limit.until, wanted, || done(call))
    }

    /// Other servers have got these routes: what was sent on them has no answer.
    pub(in crate::redis) fn abandon(&self, is_lost: impl Fn(u16) -> bool) {
        self.connection.abandon(is_lost);
    }

    /// Sends a command whose answer has to have this shape.
    fn command(
        &self,
        name: &'static str,
        words: &[Arg],
        limit: Limit,
        expected: ExpectedReply,
    ) -> impl Future<Output = Answer> + Send + use<> {
        let limits = self.limits(Instant::now(), limit);
        self.connection
            .send(name, words, limit.until, (Some(expected), limits))
    }

    /// Of a command that is sent now.
    fn limits(&self, sent_at: Instant, limit: Limit) -> AnswerLimits {
        let doubt_at = sent_at + limit.silence;
        self.judge.note_sent(self.judge.micros(doubt_at));
        self.judge.note_begun(self.judge.micros(sent_at));
        AnswerLimits {
            until: Some(limit.until),
            doubt_at: Some(doubt_at),
        }
    }

    /// Sends a script once, by its text, whatever the server knows.
    pub(in crate::redis) async fn run_text<T: 'static>(
        &self,
        call: &Call<T>,
        limit: Limit,
    ) -> Result<Reply, SendError> {
        let (reply, _) = self.send(ScriptForm::Source, call, limit).await?;
        Ok(reply)
    }

    /// How many replicas have everything that this connection has written, after `within` at the latest.
    pub(in crate::redis) async fn wait_for_replicas(
        &self,
        replicas: u32,
        within: Duration,
        limit: Limit,
    ) -> Option<u32> {
        let within = i64::try_from(within.as_millis()).unwrap_or(i64::MAX);
        let words = CommandWords::from_iter([Arg::Number(replicas.into()), Arg::Number(within)]);
        let expected = self.expected("WAIT", is_number);
        match self.command("WAIT", &words, limit, expected).await {
            Ok(Reply::Number(acknowledged)) => u32::try_from(acknowledged).ok(),
            Ok(_) => None,
            Err(problem) => {
                if self.lately.is_news(problem.to_string()) {
                    event!(WARN, %problem, "waiting for replicas failed");
                }
                None
            }
        }
    }

    /// Publishes on a sharded channel. Without an answer its listeners wait for the lease. `Auto` publishes on the
    /// classic one too: its script has asked another node whether a client listens.
    pub(in crate::redis) async fn announce(
        &self,
        channel: &Arc<str>,
        announce: Announce,
        limit: Limit,
    ) {
        let ways: &[_] = match announce {
            Announce::Auto => &["SPUBLISH", "PUBLISH"],
            // Of `Both` the classic message has reached every node.
            _ => &["SPUBLISH"],
        };
        let words = [Arg::Text(Arc::clone(channel)), Arg::Fixed("0")];
        for way in ways {
            let expected = self.expected(way, is_number);
            if let Err(problem) = self.command(way, &words, limit, expected).await {
                event!(DEBUG, %problem, "a release was not announced at the owner of its slot");
            }
        }
    }

    /// Waits for the answer to a command that does nothing, which no other command has. A refusal is an answer.
    pub(in crate::redis) async fn ping(&self, limit: Limit) -> Result<(), SendError> {
        let (nonce, expected) = self.pong();
        let words = [Arg::Text(nonce)];
        match self.command("PING", &words, limit, expected).await {
            Ok(_) | Err(ConnectionError::Refused(_)) => Ok(()),
            Err(problem) => Err(self.unknown(problem)),
        }
    }

    /// The argument of a PING, and the reply that it has.
    fn pong(&self) -> (Arc<str>, ExpectedReply) {
        let nonce = self.judge.nonce();
        let expected = ExpectedReply {
            nonce: Some(Arc::clone(&nonce)),
            ..self.expected("PING", |reply| matches!(reply, Reply::Text(_)))
        };
        (nonce, expected)
    }

    /// Subscribes to a channel. `told` is called with the answer; without one the connection is doubted.
    pub(in crate::redis) fn subscribe(
        &self,
        delivery: Delivery,
        channel: &Arc<str>,
        limit: Limit,
        told: AnswerCallback,
    ) {
        let doubt_at = Instant::now() + limit.silence;
        self.judge.note_sent(self.judge.micros(doubt_at));
        self.heard.note_asked();
        self.subscribes.notify_one();
        let limits = AnswerLimits {
            until: None,
            doubt_at: Some(doubt_at),
        };
        let expected = (self.expected("SUBSCRIBE", |_| true), limits);
        self.connection
            .subscribe(delivery, channel, limit.until, (told, expected));
    }

    /// Unsubscribes from a channel.
    pub(in crate::redis) fn unsubscribe(&self, delivery: Delivery, channel: &Arc<str>) {
        self.connection.unsubscribe(delivery, channel, self.pong());
    }

    /// One step through the keys of this server: those that are hashes and match, and where the next step begins.
    pub(in crate::redis) async fn scan(
        &self,
        cursor: &Arc<str>,
        pattern: &Arc<str>,
        limit: Limit,
    ) -> Result<KeysFound, SendError> {
        let words = [
            Arg::Text(Arc::clone(cursor)),
            Arg::Fixed("MATCH"),
            Arg::Text(Arc::clone(pattern)),
            Arg::Fixed("COUNT"),
            Arg::Number(KEYS_IN_A_STEP),
            Arg::Fixed("TYPE"),
            Arg::Fixed("hash"),
        ];
        let expected = self.expected("SCAN", |reply| KeysFound::of(reply).is_some());
        match self.command("SCAN", &words, limit, expected).await {
            Ok(reply) => {
                let found = KeysFound::of(&reply);
                found.ok_or_else(|| self.unknown(ConnectionError::out_of_step()))
            }
            Err(ConnectionError::Refused(refusal)) => {
                let source = Cause::refused(&self.server, refusal.kind, refusal.text);
                Err(SendError::Refused(source))
            }
            Err(problem) => Err(self.unknown(problem)),
        }
    }

    fn unknown(&self, problem: ConnectionError) -> SendError {
        SendError::Unknown(problem.into_cause(&self.server))
    }

    /// The expected shape of the reply to a script.
    fn expected_of<T: 'static>(&self, form: ScriptForm, call: &Call<T>) -> ExpectedReply {
        ExpectedReply {
            command: call.script.name,
            by_hash: matches!(form, ScriptForm::Sha),
            nonce: None,
            fits: Fits::Script {
                fits: call.reads.fits,
                keys: call.keys.len(),
                may_want: call.others.is_some(),
            },
            judge: Arc::clone(&self.judge),
        }
    }

    /// The expected shape of the reply to a command without a script.
    fn expected(&self, command: &'static str, fits: fn(&Reply) -> bool) -> ExpectedReply {
        ExpectedReply {
            command,
            by_hash: false,
            nonce: None,
            fits: Fits::Command(fits),
            judge: Arc::clone(&self.judge),
        }
    }
}

/// The words of a command behind its name.
fn words_of<T>(form: ScriptForm, call: &Call<T>) -> CommandWords {
    let script = match form {
        ScriptForm::Sha => call.script.sha_word(),
        ScriptForm::Source | ScriptForm::SourceAfterAsking => call.script.source_word(),
    };
    let mut words = CommandWords::new();
    let others = call.others.as_deref();
    let keys = call.keys.len() + others.map_or(0, <[Arg]>::len);
    words.push(script);
    words.push(Arg::Number(keys as i64));
    for key in &call.keys {
        words.push(Arg::Text(key.clone()));
    }
    if let Some(others) = others {
        words.extend(others.iter().cloned());
    }
    for arg in &call.args {
        words.push(arg.clone());
    }
    words
}

/// The reply to SCAN.
pub(in crate::redis) struct KeysFound {
    /// `None`: all keys have been seen.
    pub(in crate::redis) next: Option<Arc<str>>,
    /// Without those that are not text, which are the name of no lock.
    pub(in crate::redis) keys: Vec<String>,
}

impl KeysFound {
    fn of(reply: &Reply) -> Option<Self> {
        let Reply::List(parts) = reply else {
            return None;
        };
        let [Reply::Text(next), Reply::List(keys)] = parts.as_slice() else {
            return None;
        };
        let keys = keys.iter().filter_map(|key| match key {
            Reply::Text(key) => Some(key.clone()),
            _ => None,
        });
        Some(Self {
            next: (next != "0").then(|| next.as_str().into()),
            keys: keys.collect(),
        })
    }
}

/// How many keys of the keyspace a step of SCAN looks at, about.
const KEYS_IN_A_STEP: i64 = 100;

fn is_number(reply: &Reply) -> bool {
    matches!(reply, Reply::Number(_))
}

/// How many looks at the limits of commands there are in a command timeout.
const LOOKS: u32 = 16;

//! The requests of one connection, in the order of their first polls: what is not written yet, and whose replies are
//! awaited.
//!
//! It neither reads nor writes. What the socket has accepted counts as written: it may reach the server whatever happens
//! next. A request of which nothing was accepted by its deadline is taken back, and is never written.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::base::runtime::isolated;
use crate::error::{Denied, RefusalKind, RefusedKind};
use crate::redis::connection::answers::{Answer, ExpectedReply, ReplyChecker};
use crate::redis::connection::encode::encode;
use crate::redis::transport::{Arg, ConnectionError, Reply};

/// A command, and what is expected of its reply. `None`: anything.
pub(super) struct Command<'a> {
    pub(super) name: &'a str,
    pub(super) args: &'a [Arg],
    pub(super) expected: Option<ExpectedReply>,
    pub(super) form: AnswerForm,
    pub(super) limits: AnswerLimits,
    pub(super) completion: Completion,
    /// On which it is sent, if that is to end its wait when another server gets it.
    pub(super) route: Option<u16>,
}

impl<'a> Command<'a> {
    pub(super) fn new(name: &'a str, args: &'a [Arg]) -> Self {
        Self {
            name,
            args,
            expected: None,
            form: AnswerForm::ByReply,
            limits: AnswerLimits::default(),
            completion: Completion::Nothing,
            route: None,
        }
    }

    /// Returns what gets the answer.
    pub(super) fn receiver(&mut self) -> oneshot::Receiver<Answer> {
        let (answer, reply) = oneshot::channel();
        self.completion = Completion::Future(answer);
        reply
    }
}

/// How long an answer is waited for. `None`: for as long as the connection lives.
#[derive(Clone, Copy, Default)]
pub(in crate::redis) struct AnswerLimits {
    /// From then on there is none; if one comes, it keeps its place among the others.
    pub(in crate::redis) until: Option<Instant>,
    /// Without one by then the connection is doubted.
    pub(in crate::redis) doubt_at: Option<Instant>,
}

/// What is done with an answer, once.
#[derive(Default)]
pub(in crate::redis) enum Completion {
    #[default]
    Nothing,
    /// Its receiver may have gone.
    Future(oneshot::Sender<Answer>),
    Callback(AnswerCallback),
}

/// Called by what ends the wait for an answer, most often by the reader before it reads on: it waits for nothing.
pub(crate) type AnswerCallback = Box<dyn FnOnce(Answer) + Send>;

impl Completion {
    pub(in crate::redis) fn complete(self, answer: Answer) {
        isolated(|| match self {
            Self::Nothing => {}
            Self::Future(receiver) => _ = receiver.send(answer),
            Self::Callback(callback) => callback(answer),
        });
    }
}

/// How a server answers a command.
pub(super) enum AnswerForm {
    ByReply,
    /// It is refused by a reply, and confirmed by a push.
    ByPush(Confirmation),
    /// SUNSUBSCRIBE: it is refused by a reply, or not answered. PING goes behind it.
    IfRefused {
        channel: Arc<str>,
        /// The server has said since that the subscription has ended, at its request or by itself.
        has_ended: bool,
    },
}

/// The push that confirms a change of one channel.
pub(super) struct Confirmation {
    /// The command's name in small letters.
    pub(super) kind: &'static str,
    pub(super) channel: Arc<str>,
}

impl Confirmation {
    fn is(&self, push: &Reply) -> bool {
        is_about(push, self.kind, &self.channel)
    }
}

fn is_about(push: &Reply, kind: &str, channel: &str) -> bool {
    let Reply::List(items) = push else {
        return false;
    };
    let word = |nth, word: &str| matches!(items.get(nth), Some(Reply::Text(text)) if text == word);
    word(0, kind) && word(1, channel)
}

impl AnswerForm {
    /// Whether the next reply may be that of a command with this form; otherwise it is that of the next. `Err`: it can be
    /// neither.
    fn may_have(&self, next: &Answer) -> Result<bool, ConnectionError> {
        use RefusalKind::{
            Ask, Known, Moved, NoPermission, NoPermissionInScript, NoScript, TryAgain,
            UnknownCommand, UnknownCommandInScript,
        };
        let refusal = match next {
            Ok(_) => None,
            Err(ConnectionError::Refused(refusal)) => Some(&refusal.kind),
            Err(_) => return Ok(true),
        };
        match (self, refusal) {
            (Self::ByReply, _) => Ok(true),
            // A push says that it was executed, and no script has anything to do with it.
            (
                Self::ByPush(_),
                None | Some(NoScript | NoPermissionInScript(_) | UnknownCommandInScript(_)),
            ) => Err(ConnectionError::out_of_step()),
            (Self::ByPush(_), Some(_)) => Ok(true),
            (Self::IfRefused { .. }, None) => Ok(false),
            (Self::IfRefused { has_ended, .. }, Some(kind)) => match kind {
                // PING has no slot.
                Moved { .. } | Ask { .. } | TryAgain | Known(RefusedKind::ClusterDown) => Ok(true),
                NoPermission(Denied::Command(name)) => Ok(name != "+ping"),
                UnknownCommand(name) => Ok(name != "PING"),
                _ if !has_ended => Ok(true),
                // What a server that cannot serve refuses of the two is PING.
                Known(RefusedKind::Misconf | RefusedKind::Loading | RefusedKind::MasterDown) => {
                    Ok(false)
                }
                _ => Err(ConnectionError::out_of_step()),
            },
        }
    }
}

/// The requests that have no reply yet.
#[derive(Default)]
pub(super) struct Requests {
    /// The bytes of `unwritten`, but for those of the first that were written.
    buffer: BytesMut,
    unwritten: VecDeque<Unwritten>,
    /// Completely written.
    awaited: VecDeque<Awaited>,
    /// Of requests that have ended without a reply.
    answers: Answers,
    /// There was a reply: the server has accepted the connection.
    was_answered: bool,
    /// Judges the connection, once a command of a lane was answered.
    judge: Option<Arc<ReplyChecker>>,
    /// Why there will be no more replies.
    end: Option<ConnectionError>,
    /// Their limits are looked at until nothing is under way.
    is_watched: bool,
    /// A request was added since the last look.
    was_used: bool,
}

/// Answers for callers. They are sent when the requests are not locked: the waker of a caller is not this crate's code.
#[derive(Default)]
pub(super) struct Answers(Vec<(Completion, Answer)>);

impl Answers {
    pub(super) fn send(self) {
        let answers = self.0.into_iter();
        answers.for_each(|(completion, answer)| completion.complete(answer));
    }
}

/// Commands that are to be written.
#[must_use]
pub(super) struct Encoded {
    /// Nothing else was under way.
    pub(super) is_alone: bool,
    /// A look at their limits is to be asked for.
    pub(super) is_to_be_looked_at: bool,
}

/// What a look at the limits of the answers has found.
pub(super) struct Look {
    pub(super) is_doubtful: bool,
    /// The next limit, if there is any.
    pub(super) next: Option<Instant>,
    /// Nothing is under way, nor was since the last look: the next request asks for another one.
    pub(super) is_over: bool,
}

struct Unwritten {
    /// How many of its bytes are in the buffer.
    length: usize,
    /// Whether the socket has accepted some of its bytes, or of those of the command that it goes with.
    is_begun: bool,
    /// It is never without the command before it.
    follows_previous: bool,
    deadline: Instant,
    awaited: Awaited,
}

/// Who gets a reply.
pub(super) struct Awaited {
    completion: Completion,
    expected: Option<ExpectedReply>,
    form: AnswerForm,
    limits: AnswerLimits,
    route: Option<u16>,
}

impl Awaited {
    /// Returns the reply if it counts. `Err`: its command cannot have this one, so that replies are out of step.
    pub(super) fn judged(&self, reply: Answer) -> Result<Answer, ConnectionError> {
        match &self.expected {
            Some(expected) => expected.judged(reply),
            None => Ok(reply),
        }
    }

    pub(super) fn answer(self, answer: Answer) {
        self.completion.complete(answer);
    }
}

impl Requests {
    /// Enters commands that are written one directly after the other. Each word is encoded once, into the buffer. `Err`: they
    /// keep their completions.
    pub(super) fn enter(
        &mut self,
        commands: &mut [Command<'_>],
        deadline: Instant,
    ) -> Result<Encoded, ConnectionError> {
        if let Some(end) = &self.end {
            return Err(not_sent_after(end));
        }
        let unanswered = self.awaited.len() + self.unwritten.len();
        if self.buffer.len() >= UNWRITTEN_MAX || unanswered >= UNANSWERED_MAX {
            let text = "the server accepts no commands at present";
            return Err(ConnectionError::NotSent(text.to_owned()));
        }
        let is_alone = self.is_idle();
        let mut follows_previous = false;
        for command in commands {
            let before = self.buffer.len();
            encode(&mut self.buffer, command.name, command.args);
            let awaited = Awaited {
                completion: std::mem::take(&mut command.completion),
                expected: command.expected.take(),
                form: std::mem::replace(&mut command.form, AnswerForm::ByReply),
                limits: command.limits,
                route: command.route,
            };
            self.unwritten.push_back(Unwritten {
                length: self.buffer.len() - before,
                is_begun: false,
                follows_previous: std::mem::replace(&mut follows_previous, true),
                deadline,
                awaited,
            });
        }
        self.was_used = true;
        Ok(Encoded {
            is_alone,
            is_to_be_looked_at: !std::mem::replace(&mut self.is_watched, true),
        })
    }

    /// Enters a command, whose completion is made if it is entered.
    pub(super) fn enter_with(
        &mut self,
        mut command: Command<'_>,
        deadline: Instant,
        completion: impl FnOnce() -> AnswerCallback,
    ) -> Result<Encoded, ConnectionError> {
        let entered = self.enter(std::slice::from_mut(&mut command), deadline)?;
        if let Some(request) = self.unwritten.back_mut() {
            request.awaited.completion = Completion::Callback(completion());
        }
        Ok(entered)
    }

    /// Another server has got these routes: what was sent on them has no answer.
    pub(super) fn abandon(&mut self, is_lost: impl Fn(u16) -> bool) {
        let unwritten = self.unwritten.iter_mut();
        let unwritten = unwritten.map(|request| &mut request.awaited);
        for awaited in self.awaited.iter_mut().chain(unwritten) {
            if awaited.route.take_if(|route| is_lost(*route)).is_some() {
                let completion = std::mem::take(&mut awaited.completion);
                let lost = ConnectionError::Lost("another server has taken over".to_owned());
                self.answers.0.push((completion, Err(lost)));
            }
        }
    }

    /// Enters commands, and returns what gets their answers.
    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn add<const N: usize>(
        &mut self,
        mut commands: [Command<'_>; N],
        deadline: Instant,
    ) -> Result<[oneshot::Receiver<Answer>; N], ConnectionError> {
        let replies = commands.each_mut().map(Command::receiver);
        self.enter(&mut commands, deadline).map(|_| replies)
    }

    /// Ends the wait for answers whose time is over.
    pub(super) fn look(&mut self, now: Instant) -> Look {
        let late = |request: &Unwritten| !request.is_begun && request.deadline <= now;
        if self.unwritten.iter().any(late) {
            self.take_back(late);
        }
        let mut look = Look {
            is_doubtful: false,
            next: None,
            is_over: self.is_idle() && !self.was_used,
        };
        let unwritten = self.unwritten.iter_mut();
        let unwritten = unwritten.map(|request| &mut request.awaited);
        for awaited in self.awaited.iter_mut().chain(unwritten) {
            let AnswerLimits { until, doubt_at } = &mut awaited.limits;
            look.is_doubtful |= doubt_at.take_if(|at| *at <= now).is_some();
            if until.take_if(|at| *at <= now).is_some() {
                let completion = std::mem::take(&mut awaited.completion);
                let late = ConnectionError::Timeout("no answer in time".to_owned());
                self.answers.0.push((completion, Err(late)));
            }
            look.next = [look.next, *until, *doubt_at].into_iter().flatten().min();
        }
        self.was_used = false;
        self.is_watched = !look.is_over;
        look
    }

    /// What is to be written now: without the requests whose deadline has passed.
    pub(super) fn unwritten(&mut self, now: Instant) -> &[u8] {
        let is_late = |request: &Unwritten| !request.is_begun && request.deadline <= now;
        if self.unwritten.iter().any(is_late) {
            self.take_back(is_late);
        }
        &self.buffer
    }

    fn take_back(&mut self, is_late: impl Fn(&Unwritten) -> bool) {
        let mut bytes = std::mem::take(&mut self.buffer);
        for request in std::mem::take(&mut self.unwritten) {
            let bytes = bytes.split_to(request.length);
            if is_late(&request) {
                let late = ConnectionError::NotSent("it was not written in time".to_owned());
                self.answers.0.push((request.awaited.completion, Err(late)));
            } else {
                self.buffer.extend_from_slice(&bytes);
                self.unwritten.push_back(request);
            }
        }
    }

    /// The socket has accepted this many bytes.
    pub(super) fn written(&mut self, mut count: usize) {
        self.buffer.advance(count);
        give_back(&mut self.buffer);
        while let Some(first) = self.unwritten.front_mut() {
            if count < first.length {
                first.is_begun |= count > 0;
                first.length -= count;
                let is_begun = first.is_begun;
                // The rest is written, so the command that goes with it is too.
                if let Some(next) = self.unwritten.get_mut(1) {
                    next.is_begun |= is_begun && next.follows_previous;
                }
                return;
            }
            count -= first.length;
            let first = self.unwritten.pop_front();
            if let Some(next) = self.unwritten.front_mut() {
                next.is_begun |= next.follows_previous;
            }
            self.awaited.extend(first.map(|first| first.awaited));
        }
        shorten(&mut self.unwritten);
    }

    /// Nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.unwritten.is_empty() && self.awaited.is_empty()
    }

    /// Whether the commands that are not written are a quarter of those without a reply, and more than one. If all of
    /// them went in one write, client and server would wait for each other in turn.
    pub(super) fn should_flush(&self) -> bool {
        let (unwritten, awaited) = (self.unwritten.len(), self.awaited.len());
        unwritten > 1 && 4 * unwritten >= unwritten + awaited
    }

    pub(super) fn is_written(&self) -> bool {
        self.unwritten.is_empty()
    }

    /// Whether the server may still refuse the connection.
    pub(super) fn is_unanswered(&self) -> bool {
        !self.was_answered
    }

    /// Who gets the next reply. `Err`: no request awaits one, so that replies are out of step. But an error before any
    /// reply is why the server refuses the connection, which it then closes.
    pub(super) fn next_awaited(&mut self, next: &Answer) -> Result<Awaited, ConnectionError> {
        let is_first = !std::mem::replace(&mut self.was_answered, true);
        let may_have = |first: &Awaited| first.form.may_have(next);
        let awaited = match self.awaited.front().map(may_have).transpose() {
            // It was not refused, and this is the answer to the PING behind it.
            Ok(Some(false)) => {
                self.awaited.pop_front();
                self.awaited.pop_front()
            }
            Ok(_) => self.awaited.pop_front(),
            // It stays, and is told so when the connection ends.
            Err(why) => {
                self.note_impossible(next);
                return Err(why);
            }
        };
        if let (true, None, Err(refused)) = (is_first, &awaited, next) {
            return Err(refused.clone().of_a_connection());
        }
        shorten(&mut self.awaited);
        if awaited.is_none() {
            self.note_impossible(next);
        }
        self.note_answered(awaited.as_ref());
        awaited.ok_or_else(ConnectionError::out_of_step)
    }

    /// The first of those that await a reply cannot have this one, or none awaits any.
    fn note_impossible(&self, answer: &Answer) {
        let expected = self.awaited.front().map(|first| first.expected.as_ref());
        match (expected, &self.judge) {
            (Some(Some(expected)), _) => expected.judge.note_misfit(expected.command, answer),
            (_, Some(judge)) => judge.note_misfit("none", answer),
            (_, None) => {}
        }
    }

    /// Whose confirmation a push is. `None`: no request awaits it next.
    pub(super) fn next_confirmed(&mut self, push: &Reply) -> Option<Awaited> {
        match &mut self.awaited.front_mut()?.form {
            AnswerForm::ByPush(confirmation) if confirmation.is(push) => {}
            AnswerForm::IfRefused { channel, has_ended } => {
                *has_ended |= is_about(push, "sunsubscribe", channel);
                return None;
            }
            _ => return None,
        }
        self.was_answered = true;
        let awaited = self.awaited.pop_front();
        shorten(&mut self.awaited);
        self.note_answered(awaited.as_ref());
        awaited
    }

    /// The server has answered this one.
    fn note_answered(&mut self, request: Option<&Awaited>) {
        let expected = request.and_then(|request| request.expected.as_ref());
        if let (None, Some(expected)) = (&self.judge, expected) {
            self.judge = Some(Arc::clone(&expected.judge));
        }
        let Some(judge) = &self.judge else { return };
        if self.is_idle() {
            judge.note_idle();
        }
        // The reply to a renewed password has no judge, but it shows that the server answers.
        if expected.is_none() {
            judge.note_reply();
        }
    }

    /// The answers of requests that have ended without a reply.
    pub(super) fn take_answers(&mut self) -> Answers {
        std::mem::take(&mut self.answers)
    }

    /// There will be no more replies.
    pub(super) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// The connection has ended. What was not written is not executed; of the rest the outcome is unknown.
    pub(super) fn end(&mut self, why: &ConnectionError) {
        if self.end.is_some() {
            return;
        }
        self.end = Some(why.clone());
        for awaited in self.awaited.drain(..) {
            self.answers.0.push((awaited.completion, Err(why.clone())));
        }
        for request in self.unwritten.drain(..) {
            let why = match request.is_begun {
                true => why.clone(),
                false => not_sent_after(why),
            };
            self.answers.0.push((request.awaited.completion, Err(why)));
        }
        self.buffer = BytesMut::new();
    }
}

/// An empty buffer that has become long gives its memory back. Its length of before is no longer known, but whether so
/// much room can be made without allocating.
pub(super) fn give_back(buffer: &mut BytesMut) {
    if buffer.is_empty() && buffer.try_reclaim(BUFFER_KEPT + 1) {
        *buffer = BytesMut::new();
    }
}

/// Gives back the memory of an empty queue that has grown.
fn shorten<T>(queue: &mut VecDeque<T>) {
    if queue.is_empty() && queue.capacity() > QUEUE_KEPT {
        *queue = VecDeque::new();
    }
}

/// A connection that was refused says so to each caller.
fn not_sent_after(end: &ConnectionError) -> ConnectionError {
    match end {
        ConnectionError::Refused(_) => end.clone(),
        _ => ConnectionError::NotSent(end.to_string()),
    }
}

/// A server that answers nothing is asked no more than this.
const UNANSWERED_MAX: usize = 1 << 17;

/// An empty queue that has been longer does not keep its memory.
const QUEUE_KEPT: usize = 1 << 10;

/// A server that reads nothing is given no more than this, so that what waits for it does not fill the memory.
const UNWRITTEN_MAX: usize = 16 << 20;

/// An empty buffer that has been longer does not keep its memory.
const BUFFER_KEPT: usize = 64 << 10;

#[cfg(test)]
mod tests;

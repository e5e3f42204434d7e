//! The answers to the commands in flight on a connection, judged in the order of the commands.
//!
//! Replies carry no names. A proxy that repeats or drops one gives every later reply to the wrong command, and
//! a lock that others hold looks free. A reply that its command cannot have reveals this: a *misfit*. After it
//! no answer on the connection counts.
//!
//! Replies arrive in the order of the commands, but callers are polled in any order, and some are dropped.
//! Therefore the first caller that is polled with its reply also polls for the commands before its own.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use tokio::task::unconstrained;
use tokio::time::Instant;

use super::transport::{BoxFuture, ConnectionError, Reply};
use crate::error::RefusalKind;

type Answer = Result<Reply, ConnectionError>;

/// What is expected of the reply to a command.
pub(super) struct Expected {
    /// The command, or the script.
    pub(super) command: &'static str,
    /// Whether it calls a script that the server may not know.
    pub(super) by_hash: bool,
    pub(super) fits: Box<dyn Fn(&Reply) -> bool + Send>,
}

impl Expected {
    /// Of a command without a script.
    pub(super) fn of(command: &'static str, fits: fn(&Reply) -> bool) -> Self {
        Self {
            command,
            by_hash: false,
            fits: Box::new(fits),
        }
    }

    /// What makes an answer one that the command cannot have.
    fn misfit(&self, answer: &Answer) -> Option<Misfit> {
        let shape = match answer {
            Ok(reply) if !(self.fits)(reply) => reply.shape(),
            Err(ConnectionError::Refused(refusal))
                if refusal.kind == RefusalKind::NoScript && !self.by_hash =>
            {
                "an error for an unknown script"
            }
            Ok(_) | Err(_) => return None,
        };
        let command = self.command;
        Some(Misfit { command, shape })
    }
}

/// An answer that its command cannot have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Misfit {
    pub(super) command: &'static str,
    pub(super) shape: &'static str,
}

/// The misfits for which connections of a lane were replaced. If the next connection has the same one, that is
/// what the server answers.
#[derive(Default)]
pub(super) struct Misfits(Mutex<SmallVec<[(Misfit, Instant); 1]>>);

impl Misfits {
    /// Whether this misfit is the server's own answer: an earlier connection had it too, not long ago, and the
    /// command has had no answer that fits since then.
    fn is_of_server(&self, misfit: Misfit) -> bool {
        let (mut known, now) = (self.0.lock(), Instant::now());
        known.retain(|(_, seen_at)| now.duration_since(*seen_at) < KEPT);
        let seen = known.iter_mut().find(|(known, _)| *known == misfit);
        let is_known = seen.is_some();
        match seen {
            Some((_, seen_at)) => *seen_at = now,
            None => known.push((misfit, now)),
        }
        is_known
    }

    fn fits(&self, command: &'static str) {
        self.0.lock().retain(|(known, _)| known.command != command);
    }
}

/// The commands under way on a connection.
pub(super) struct Answers {
    state: Mutex<State>,
    misfits: Arc<Misfits>,
}

#[derive(Default)]
struct State {
    /// How many commands were handed over so far.
    sent: u64,
    awaited: BTreeMap<u64, Awaited>,
    /// Answers that fit, of callers that are to be polled.
    judged: BTreeMap<u64, Answer>,
    /// The answer after which none counts.
    misfit: Option<Misfit>,
}

struct Awaited {
    reply: BoxFuture<'static, Answer>,
    expected: Expected,
    /// `None`: its caller has gone, and only later answers need to know whether this one fits.
    caller: Option<Waker>,
}

impl Answers {
    pub(super) fn new(misfits: Arc<Misfits>) -> Self {
        Self {
            state: Mutex::default(),
            misfits,
        }
    }

    /// The answer to a command that the first poll hands over.
    pub(super) fn to(
        &self,
        reply: BoxFuture<'static, Answer>,
        expected: Expected,
    ) -> Answering<'_> {
        Answering {
            answers: self,
            command: Command::New(reply, expected),
        }
    }

    /// The answer after which no other one counts.
    pub(super) fn misfit(&self) -> Option<Misfit> {
        self.state.lock().misfit
    }

    /// Reads the replies that have arrived and that no caller has read. Returns whether there were any.
    pub(super) fn catch_up(&self) -> Result<bool, ConnectionError> {
        let mut state = self.state.lock();
        let read = state.read_before(self, u64::MAX);
        read.map_err(|misfit| ended_by(misfit, state))
    }

    /// Returns the answer if it counts.
    fn judge(&self, answer: Answer, expected: &Expected) -> Result<Answer, Misfit> {
        match expected.misfit(&answer) {
            Some(misfit) if !self.misfits.is_of_server(misfit) => return Err(misfit),
            Some(_) => {}
            None if answer.is_ok() => self.misfits.fits(expected.command),
            None => {}
        }
        Ok(answer)
    }
}

impl State {
    /// The number of a command. It is handed over under the same lock, so that this order is the
    /// connection's.
    fn nth(&mut self, command: Command) -> u64 {
        match command {
            Command::Sent(nth) => nth,
            Command::New(reply, expected) if self.misfit.is_none() => {
                let awaited = Awaited {
                    reply,
                    expected,
                    caller: None,
                };
                self.awaited.insert(self.sent, awaited);
                self.sent += 1;
                self.sent - 1
            }
            // Nothing is handed over any more.
            Command::New(..) | Command::Answered => u64::MAX,
        }
    }

    /// Polls for the answer of a command. The replies before it are there when its own is.
    fn poll(
        &mut self,
        answers: &Answers,
        nth: u64,
        context: &mut Context<'_>,
    ) -> Poll<Result<Answer, Misfit>> {
        if let Some(answer) = self.judged.remove(&nth) {
            return Poll::Ready(Ok(answer));
        }
        let Some(awaited) = self.awaited.get_mut(&nth) else {
            return Poll::Ready(Ok(Err(ConnectionError::out_of_step())));
        };
        let is_same = |waker: &Waker| waker.will_wake(context.waker());
        if !awaited.caller.as_ref().is_some_and(is_same) {
            awaited.caller = Some(context.waker().clone());
        }
        let answer = ready!(awaited.reply.as_mut().poll(context));
        if let Err(misfit) = self.read_before(answers, nth) {
            return Poll::Ready(Err(misfit));
        }
        let Some(Awaited { expected, .. }) = self.awaited.remove(&nth) else {
            return Poll::Ready(Ok(answer));
        };
        Poll::Ready(answers.judge(answer, &expected))
    }

    /// Reads the replies to the commands before this one, up to the first that is not there. Returns whether there
    /// were any.
    fn read_before(&mut self, answers: &Answers, nth: u64) -> Result<bool, Misfit> {
        let mut any = false;
        while let Some((&first, _)) = self.awaited.range(..nth).next() {
            match self.read(answers, first) {
                Poll::Ready(Ok(())) => any = true,
                Poll::Ready(Err(misfit)) => return Err(misfit),
                Poll::Pending => break,
            }
        }
        Ok(any)
    }

    /// Reads the reply to a command on behalf of its caller, if it is there.
    fn read(&mut self, answers: &Answers, nth: u64) -> Poll<Result<(), Misfit>> {
        let Some(awaited) = self.awaited.get_mut(&nth) else {
            return Poll::Pending;
        };
        let caller = awaited.caller.as_ref().unwrap_or(Waker::noop());
        let mut context = Context::from_waker(caller);
        // What is there is read, however much this task has done.
        let reply = unconstrained(&mut awaited.reply);
        let answer = ready!(std::pin::pin!(reply).poll(&mut context));
        let Some(Awaited {
            expected, caller, ..
        }) = self.awaited.remove(&nth)
        else {
            return Poll::Pending;
        };
        let answer = answers.judge(answer, &expected)?;
        // The reply itself has woken its caller.
        if caller.is_some() {
            self.judged.insert(nth, answer);
        }
        Poll::Ready(Ok(()))
    }
}

/// Waits for the answer to a command. Dropped, the command is executed all the same, and its answer is
/// still judged.
pub(super) struct Answering<'a> {
    answers: &'a Answers,
    command: Command,
}

enum Command {
    New(BoxFuture<'static, Answer>, Expected),
    Sent(u64),
    Answered,
}

impl Future for Answering<'_> {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        let answers = self.answers;
        let command = std::mem::replace(&mut self.command, Command::Answered);
        let mut state = answers.state.lock();
        let nth = state.nth(command);
        match state.poll(answers, nth, context) {
            Poll::Pending => {
                self.command = Command::Sent(nth);
                Poll::Pending
            }
            Poll::Ready(Ok(answer)) => Poll::Ready(answer),
            Poll::Ready(Err(misfit)) => Poll::Ready(Err(ended_by(misfit, state))),
        }
    }
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        if let Command::Sent(nth) = self.command {
            let mut state = self.answers.state.lock();
            let answer = state.judged.remove(&nth);
            let awaited = state.awaited.get_mut(&nth);
            let caller = awaited.and_then(|awaited| awaited.caller.take());
            drop(state);
            drop((answer, caller));
        }
    }
}

/// Notes the answer after which none counts.
fn ended_by(misfit: Misfit, mut state: MutexGuard<'_, State>) -> ConnectionError {
    state.misfit = Some(misfit);
    let unanswered = std::mem::take(&mut state.awaited);
    drop(state);
    // The end of the connection reaches their callers.
    drop(unanswered);
    ConnectionError::out_of_step()
}

/// How long a misfit is known after it was last seen. Longer than until the next connection, which may be a
/// command timeout later, of up to ten seconds.
const KEPT: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests;

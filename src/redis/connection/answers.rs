//! Whether a reply is one that its command can have.
//!
//! Replies carry no names. A proxy that repeats or drops one gives every later reply to the wrong command, and
//! a lock that others hold looks free. A reply that its command cannot have reveals this: a *misfit*. After it
//! no answer on the connection counts. So each is judged when it arrives, that of a caller that has gone too.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::time::Instant;
use uuid::Uuid;

use crate::error::RefusalKind;
use crate::redis::call::wanted_in;
use crate::redis::transport::{ConnectionError, Reply};

pub(crate) type Answer = Result<Reply, ConnectionError>;

/// The expected shape of the reply to a command.
pub(in crate::redis) struct ExpectedReply {
    /// The command, or the script.
    pub(in crate::redis) command: &'static str,
    /// Whether it calls a script that the server may not know.
    pub(in crate::redis) by_hash: bool,
    /// The argument of a PING, which only its own reply contains.
    pub(in crate::redis) nonce: Option<Arc<str>>,
    pub(in crate::redis) fits: Fits,
    pub(in crate::redis) judge: Arc<ReplyChecker>,
}

/// Which replies a command can have.
#[derive(Clone, Copy)]
pub(in crate::redis) enum Fits {
    /// Those of which this says so.
    Command(fn(&Reply) -> bool),
    /// A script that was called with this many keys, of which it may ask for more.
    Script {
        fits: fn(&Reply, usize) -> bool,
        keys: usize,
        may_want: bool,
    },
}

impl Fits {
    fn allow(self, reply: &Reply) -> bool {
        match self {
            Self::Command(fits) => fits(reply),
            Self::Script {
                fits,
                keys,
                may_want,
            } => may_want && wanted_in(reply).is_some() || fits(reply, keys),
        }
    }
}

impl ExpectedReply {
    /// Returns the reply of a server if it counts. `Err`: none on its connection does any more.
    pub(in crate::redis) fn judged(&self, answer: Answer) -> Result<Answer, ConnectionError> {
        let judge = &self.judge;
        judge.note_reply();
        match self.misfit(&answer) {
            Some(misfit) if self.is_shifted(&answer) || !judge.misfits.is_of_server(misfit) => {
                // The first one ends the connection.
                _ = judge.misfit.set(misfit);
                return Err(ConnectionError::out_of_step());
            }
            Some(_) => {}
            None if answer.is_ok() => judge.misfits.fits(self.command),
            None => {}
        }
        Ok(answer)
    }

    /// Returns why the command cannot have this answer.
    fn misfit(&self, answer: &Answer) -> Option<ImpossibleReply> {
        let shape = match answer {
            Ok(reply) if self.is_shifted(answer) || !self.fits.allow(reply) => reply.shape(),
            Err(ConnectionError::Refused(refusal))
                if refusal.kind == RefusalKind::NoScript && !self.by_hash =>
            {
                "an error for an unknown script"
            }
            Ok(_) | Err(_) => return None,
        };
        let command = self.command;
        Some(ImpossibleReply { command, shape })
    }

    /// Whether this is surely the answer to another command: a PING has brought it back, or this is one.
    fn is_shifted(&self, answer: &Answer) -> bool {
        match (&self.nonce, answer) {
            (Some(nonce), Ok(Reply::Text(text))) => **nonce != **text,
            (Some(_), Ok(_)) => true,
            (None, Ok(Reply::Text(text))) => text.starts_with(&*self.judge.token),
            (_, _) => false,
        }
    }
}

/// Judges a connection by its replies.
pub(in crate::redis) struct ReplyChecker {
    misfits: Arc<ImpossibleReplies>,
    /// The answer after which no other one counts.
    misfit: OnceLock<ImpossibleReply>,
    /// The prefix of each nonce of this connection.
    token: String,
    nonces: AtomicU64,
    created_at: Instant,
    /// Since when there was always a command without a reply, in microseconds since `created_at`. `NEVER`: there is
    /// none. If a reply is lost, there is one from then on.
    busy_since: AtomicU64,
    /// When the connection counts as silent, in the same way: the oldest command that was sent since the last reply has
    /// waited long enough. `NEVER` if there is none.
    silent_at: AtomicU64,
    /// Since when a command has waited and no reply has come, in the same way: when the oldest was sent, or the last reply
    /// came while others were awaited.
    waits_since: AtomicU64,
}

impl ReplyChecker {
    pub(in crate::redis) fn new(misfits: Arc<ImpossibleReplies>) -> Self {
        Self {
            misfits,
            misfit: OnceLock::new(),
            token: Uuid::new_v4().simple().to_string(),
            nonces: AtomicU64::new(0),
            created_at: Instant::now(),
            busy_since: AtomicU64::new(NEVER),
            silent_at: AtomicU64::new(NEVER),
            waits_since: AtomicU64::new(NEVER),
        }
    }

    /// The answer after which no other one counts.
    pub(in crate::redis) fn misfit(&self) -> Option<ImpossibleReply> {
        self.misfit.get().copied()
    }

    /// No command can have had this answer.
    pub(super) fn note_misfit(&self, command: &'static str, answer: &Answer) {
        let shape = match answer {
            Ok(reply) => reply.shape(),
            Err(_) => "an error",
        };
        _ = self.misfit.set(ImpossibleReply { command, shape });
    }

    /// A text that no other answer on this connection has.
    pub(in crate::redis) fn nonce(&self) -> Arc<str> {
        let nth = self.nonces.fetch_add(1, Ordering::Relaxed);
        format!("{}:{nth}", self.token).into()
    }

    /// Since when a command has waited and no reply has come. `None`: no command waits, as far as is known.
    pub(in crate::redis) fn waits_since(&self) -> Option<Instant> {
        let since = self.waits_since.load(Ordering::Relaxed);
        (since != NEVER).then(|| self.instant(since))
    }

    pub(in crate::redis) fn micros(&self, at: Instant) -> u64 {
        let since = at.duration_since(self.created_at);
        u64::try_from(since.as_micros()).unwrap_or(NEVER)
    }

    pub(in crate::redis) fn instant(&self, micros: u64) -> Instant {
        self.created_at + Duration::from_micros(micros)
    }

    /// A command is sent now.
    pub(in crate::redis) fn note_begun(&self, now: u64) {
        for since in [&self.waits_since, &self.busy_since] {
            _ = since.compare_exchange(NEVER, now, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Whether there was always a command without a reply for this long; then that counts from now.
    pub(in crate::redis) fn is_long_busy(&self, now: u64, long: u64) -> bool {
        let since = self.busy_since.load(Ordering::Relaxed);
        let is_long = since.saturating_add(long) <= now;
        if is_long {
            // Unless it has been idle since.
            let relaxed = Ordering::Relaxed;
            _ = self
                .busy_since
                .compare_exchange(since, now, relaxed, relaxed);
        }
        is_long
    }

    /// No command is without a reply.
    pub(in crate::redis) fn note_idle(&self) {
        self.busy_since.store(NEVER, Ordering::Relaxed);
    }

    pub(in crate::redis) fn silent_at(&self) -> u64 {
        self.silent_at.load(Ordering::Relaxed)
    }

    /// The connection counts as silent from then on, unless it does earlier. Returns when.
    pub(in crate::redis) fn note_sent(&self, silent_at: u64) -> u64 {
        self.replace(NEVER, silent_at).err().unwrap_or(silent_at)
    }

    /// Later than it was noted, if no reply has come since.
    pub(in crate::redis) fn postpone(&self, noted: u64, silent_at: u64) {
        _ = self.replace(noted, silent_at);
    }

    fn replace(&self, noted: u64, silent_at: u64) -> Result<u64, u64> {
        let relaxed = Ordering::Relaxed;
        self.silent_at
            .compare_exchange(noted, silent_at, relaxed, relaxed)
    }

    /// For commands that are still without a reply the connection counts as silent from the next send. That they wait
    /// counts from now: a reply that is read late must not hide that the server hangs.
    pub(in crate::redis) fn note_reply(&self) {
        let is_idle = self.busy_since.load(Ordering::Relaxed) == NEVER;
        let waits_since = if is_idle {
            NEVER
        } else {
            self.micros(Instant::now())
        };
        self.silent_at.store(NEVER, Ordering::Relaxed);
        self.waits_since.store(waits_since, Ordering::Relaxed);
    }
}

/// An answer that its command cannot have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::redis) struct ImpossibleReply {
    pub(in crate::redis) command: &'static str,
    pub(in crate::redis) shape: &'static str,
}

/// The misfits for which connections of a lane were replaced. If the next connection has the same one, that is
/// what the server answers.
#[derive(Default)]
pub(in crate::redis) struct ImpossibleReplies(Mutex<SmallVec<[(ImpossibleReply, Instant); 1]>>);

impl ImpossibleReplies {
    /// Whether this misfit is the server's own answer: an earlier connection had it too, not long ago, and the
    /// command has had no answer that fits since then.
    fn is_of_server(&self, misfit: ImpossibleReply) -> bool {
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

/// How long a misfit is known after it was last seen. Longer than until the next connection, which may be a
/// command timeout later, of up to ten seconds.
const KEPT: Duration = Duration::from_secs(20);

/// No time since a connection was opened.
pub(in crate::redis) const NEVER: u64 = u64::MAX;

#[cfg(test)]
mod tests;

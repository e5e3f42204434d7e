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

use super::transport::{ConnectionError, Reply};
use crate::error::RefusalKind;

type Answer = Result<Reply, ConnectionError>;

/// What is expected of the reply to a command.
pub(super) struct Expected {
    /// The command, or the script.
    pub(super) command: &'static str,
    /// Whether it calls a script that the server may not know.
    pub(super) by_hash: bool,
    pub(super) fits: Box<dyn Fn(&Reply) -> bool + Send>,
    pub(super) judge: Arc<Judge>,
}

impl Expected {
    /// Returns the reply of a server if it counts. `Err`: none on its connection does any more.
    pub(super) fn judged(&self, answer: Answer) -> Result<Answer, ConnectionError> {
        let judge = &self.judge;
        judge.note_reply();
        match self.misfit(&answer) {
            Some(misfit) if !judge.misfits.is_of_server(misfit) => {
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

/// What the replies on a connection say of it.
pub(super) struct Judge {
    misfits: Arc<Misfits>,
    /// The answer after which no other one counts.
    misfit: OnceLock<Misfit>,
    /// Replies that have arrived. While this grows, a missing reply is only slow.
    replies: AtomicU64,
    /// When the oldest command without a reply casts doubt on the connection, in microseconds since it
    /// was opened; `NEVER` if there is none. Its caller may leave before; then a later one doubts.
    doubt_at: AtomicU64,
}

impl Judge {
    pub(super) fn new(misfits: Arc<Misfits>) -> Self {
        Self {
            misfits,
            misfit: OnceLock::new(),
            replies: AtomicU64::new(0),
            doubt_at: AtomicU64::new(NEVER),
        }
    }

    /// The answer after which no other one counts.
    pub(super) fn misfit(&self) -> Option<Misfit> {
        self.misfit.get().copied()
    }

    pub(super) fn replies(&self) -> u64 {
        self.replies.load(Ordering::Relaxed)
    }

    /// A command casts doubt from then on. Returns when an earlier one does, if that has no reply either.
    pub(super) fn note_sent(&self, doubt_at: u64) -> Option<u64> {
        let unset = NEVER;
        let noted =
            self.doubt_at
                .compare_exchange(unset, doubt_at, Ordering::Relaxed, Ordering::Relaxed);
        noted.err()
    }

    /// Commands that are still without a reply count from the next send.
    fn note_reply(&self) {
        self.replies.fetch_add(1, Ordering::Relaxed);
        self.doubt_at.store(NEVER, Ordering::Relaxed);
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

/// How long a misfit is known after it was last seen. Longer than until the next connection, which may be a
/// command timeout later, of up to ten seconds.
const KEPT: Duration = Duration::from_secs(20);

/// No time since a connection was opened.
pub(super) const NEVER: u64 = u64::MAX;

#[cfg(test)]
mod tests;

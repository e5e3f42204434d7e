//! The state of an acquire from one attempt to the next, and its answer if it does not get the lock.

use std::sync::Arc;
use std::time::Duration;

use redisson_lock_core::{Claimed, Terms};
use tokio::time::Instant;

use super::replicas::ReplicaCheck;
use super::waiter::{NOT_IN_TIME, Retries, Wait, Waiter, has_time};
use crate::base::runtime::event;
use crate::error::{Error, Operation};
use crate::names::owner::Origin;
use crate::names::try_lock::TryLock;
use crate::script;
use crate::state::entry::{Entry, ReplicaLink, WaitingCall};

/// The arguments of an acquire.
pub(super) struct Request<'a> {
    pub(super) entry: Arc<Entry>,
    pub(super) call: Arc<WaitingCall>,
    pub(super) terms: &'a Terms,
    pub(super) wait: Wait,
    pub(super) began: Instant,
}

impl Request<'_> {
    /// Queues for it.
    pub(super) fn waiter(&self) -> Waiter {
        let warns_since = Some(self.began).filter(|_| !matches!(self.wait, Wait::Standby));
        let has_no_end = matches!(self.wait, Wait::Forever);
        let waits = (warns_since, has_no_end);
        Waiter::new(&self.entry, &self.call, *self.terms, waits)
    }

    /// See [`Entry::catches_up`].
    pub(super) fn catches_up(&self) -> Option<Duration> {
        self.entry.catches_up(self.wait, self.began)
    }

    /// Of an acquire that went to this count.
    pub(super) fn log_re_entry(&self, target: u32) {
        let owner = &self.call.owner;
        if target > 1 && owner.origin() == Origin::Task {
            let lock = self.entry.name.given();
            event!(DEBUG, %lock, %owner, "re-entry by task id alone: branches of one join! or select! share it, see Owner::scope");
        }
    }

    /// As `catches_up`, for a call that goes no further by itself.
    pub(super) async fn catch_up(&self) {
        if let Some(more) = self.catches_up() {
            Box::pin(tokio::time::sleep(more)).await;
        }
    }
}

/// The state of an acquire, from one attempt to the next.
pub(super) struct AcquireContext {
    /// Of the attempts that have failed. Boxed: nearly no call needs it.
    retries: Option<Box<Retries>>,
    /// Boxed: nearly no call asks.
    pub(super) confirming: Option<Box<ReplicaCheck>>,
    /// [`CallStage::GoesOn`].
    goes_on: bool,
}

/// Where an attempt stands in the call that makes it, which may make several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallStage {
    /// It is all of it.
    Only,
    /// An earlier one has found a lock busy, and the server of this one has answered the call.
    AfterBusy,
    /// The call goes on when others of its client are in its way, and finds out by itself whether the server answers.
    GoesOn,
}

impl AcquireContext {
    pub(super) fn new(confirming: Option<Box<ReplicaCheck>>, stage: CallStage) -> Self {
        Self {
            retries: None,
            confirming,
            goes_on: matches!(stage, CallStage::GoesOn),
        }
    }

    /// The connection on which replicas are asked, if they must confirm what it takes.
    pub(super) fn link(&self) -> Option<Arc<ReplicaLink>> {
        Some(Arc::clone(&self.confirming.as_ref()?.link))
    }

    /// Before an attempt, and before a wait that may end with the lock: a connection that is opened behind a taking may lead to
    /// another server.
    pub(super) async fn prepare(&self, request: &Request<'_>) -> Result<(), Error> {
        let Some(confirming) = &self.confirming else {
            return Ok(());
        };
        let now = Some(Instant::now());
        let replace = |at| {
            request
                .call
                .attempts(|attempts| std::mem::replace(&mut attempts.asked_at, at))
        };
        let asked_at = replace(now);
        let link = Arc::clone(&confirming.link);
        Box::pin(async move { link.prepare(&request.entry).await }).await?;
        replace(asked_at);
        Ok(())
    }

    /// Logs what became of the call. An error is its caller's to log.
    pub(super) fn log<G>(&self, request: &Request<'_>, outcome: &Result<TryLock<G>, Error>) {
        let waited = || request.began.elapsed();
        let attempts = request.call.attempts(|attempts| attempts.asked);
        match outcome {
            Ok(TryLock::Acquired(_)) => {
                event!(DEBUG, waited = ?waited(), attempts, "lock acquired");
            }
            Ok(TryLock::Busy { holder }) => {
                let holder = holder.as_ref().map(|holder| &*holder.owner);
                event!(
                    DEBUG,
                    waited = ?waited(),
                    attempts,
                    holder,
                    "lock not acquired: another owner has it"
                );
            }
            Err(_) => {}
        }
    }

    /// Whether it has made an attempt that the server had the time to answer.
    fn has_asked(request: &Request<'_>) -> bool {
        let limit = request.wait.answered_by(request.began);
        let asked_at = request.call.attempts(|attempts| attempts.asked_at);
        asked_at.is_some_and(|at| has_time(at, limit))
    }

    /// Lets the other calls of the client know that an attempt was not answered, or refused for a while. A late answer does
    /// not come here, because it says who had the lock. Nor does a call that only concludes an outage at its deadline: no
    /// answer about the lock would end that mark.
    pub(super) fn attempt_failed(entry: &Entry, error: &Error) {
        if matches!(error, Error::NoAnswer { .. } | Error::Refused { .. }) {
            entry.latest.failed();
        }
    }

    /// A hold has begun.
    pub(super) fn taken(&mut self, claimed: &Claimed, entry: &Entry) {
        if let Some(confirming) = &mut self.confirming {
            let sent_at = entry.shared().clock.instant(claimed.sent_at);
            confirming.taken(sent_at, claimed.lease);
        }
    }

    /// Whether the server has answered since the latest attempt that failed: then the next failure is the first of another
    /// outage.
    fn note_answers(&mut self, request: &Request<'_>) -> bool {
        let was_answered = request.call.attempts(|attempts| attempts.was_answered);
        if let Some(retries) = self.retries.as_mut().filter(|_| was_answered) {
            retries.answered();
        }
        was_answered
    }

    /// After an attempt, or a wait for one, that failed: pauses; or hands the error back, if it does not pass or there is no time left.
    pub(super) async fn again(
        &mut self,
        request: &Request<'_>,
        retries: impl FnOnce() -> Box<Retries>,
        error: Error,
    ) -> Result<(), Error> {
        self.note_answers(request);
        request
            .call
            .attempts(|attempts| attempts.was_answered = false);
        let retries = self.retries.get_or_insert_with(retries);
        retries.failed_at = Some(Instant::now());
        retries.again(request.entry.shared(), error).await
    }

    /// What a call answers that has not got the lock in time: busy if that is the latest that the server has said of the
    /// lock, and otherwise what went wrong.
    pub(super) fn not_in_time<G>(
        &mut self,
        request: &Request<'_>,
        waiter: Option<&Waiter>,
    ) -> Result<TryLock<G>, Error> {
        let confirming = self.confirming.as_deref();
        if let Some(error) = confirming.and_then(|check| check.unconfirmed(&request.entry)) {
            return Err(error);
        }
        match self.problem(request) {
            None => Ok(waiter.map_or(TryLock::Busy { holder: None }, Waiter::busy)),
            Some(error) => {
                if Self::has_asked(request) {
                    request.entry.latest.failed();
                }
                Err(error)
            }
        }
    }

    /// Why it is not known that another owner has the lock. `None`: one has it.
    fn problem(&mut self, request: &Request<'_>) -> Option<Error> {
        let entry = &request.entry;
        let owner = request.call.key();
        let was_answered = self.note_answers(request);
        let has_asked_once = request
            .call
            .attempts(|attempts| attempts.asked_at.is_some());
        if self.goes_on && !has_asked_once || entry.peek(|core| core.is_excluded(owner)) {
            return None;
        }
        let latest = &entry.latest;
        let mut was_answered_since = false;
        if let Some(retries) = &mut self.retries
            && let Some(error) = retries.take_failure()
        {
            // By then to another call of this client.
            was_answered_since = retries
                .failed_at
                .is_some_and(|at| latest.answered_since(entry.shared().clock.time(at)));
            if !was_answered_since {
                return Some(error);
            }
        }
        // The first connection may be about to be opened: one that finds others in the queue does not wait for that.
        let is_over = |limit: Instant| limit <= Instant::now();
        let is_immediate = !has_asked_once
            && matches!(request.wait, Wait::Never(limit) if !limit.is_some_and(is_over));
        if is_immediate && latest.answered_at().is_none() && !latest.has_failed() {
            return None;
        }
        if let Some(problem) = entry.outage(request.wait, request.began) {
            return Some(script::send_error(problem, Operation::Acquiring));
        }
        let is_busy = match Self::has_asked(request) {
            true => was_answered || was_answered_since,
            false => latest.answered_at().is_some(),
        };
        match is_busy && !latest.has_failed() {
            true => None,
            false => Some(entry.route().no_answer(Operation::Acquiring, NOT_IN_TIME)),
        }
    }
}

//! A lock as one of several that are taken together, with a place in its queue.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use redisson_lock_core::input::PlacePolled;
use redisson_lock_core::{Life, Order, WaiterId};
use tokio::time::Instant;

use super::waiter::{NOT_IN_TIME, Retries};
use super::{Lock, Wait};
use crate::base::backoff::Backoff;
use crate::error::{Error, Operation};
use crate::lock::hold_handle::Hold;
use crate::lock::renewal::extend;
use crate::names::owner::Owner;
use crate::redis::Location;
use crate::script::send_error;
use crate::state::entry::{Entry, WaitingCall};
use crate::state::shared::Shared;

impl<K> Lock<K> {
    /// Returns this lock with the owner of this call, whatever polls it later.
    pub(crate) fn of_this_call(&self) -> Result<Self, Error> {
        let owner = self.current_owner()?;
        Ok(self.owned_by(&owner))
    }

    /// Its key with the prefix. `None`: the name is not valid.
    pub(crate) fn key(&self) -> Option<&str> {
        Some(self.name.as_ref().ok()?.key())
    }

    pub(crate) fn is_of_client_of<M>(&self, other: &Lock<M>) -> bool {
        Arc::ptr_eq(self.client.shared(), other.client.shared())
    }

    /// Whether its client made this owner.
    pub(crate) fn knows(&self, owner: &Owner) -> bool {
        owner.is_of(&self.client.shared().client_id)
    }

    /// The server and the database that have it now. `None`: the user may not ask.
    pub(crate) async fn location(&self) -> Result<Option<Location>, Error> {
        let name = self.valid_name()?;
        self.on_runtime(self.route(&name).location()).await
    }

    /// Whether a call that waits so tries again after an error that passes.
    pub(crate) fn retries(&self, wait: Wait) -> bool {
        match wait {
            Wait::Never(_) => false,
            Wait::Until(_) | Wait::Standby => true,
            Wait::Forever => self.retry_for.is_some_and(|left| !left.is_zero()),
        }
    }

    /// Returns this lock with what is left of its `retry_for`.
    pub(crate) fn failing_since(&self, since: Instant) -> Self {
        let left = |retry_for: Duration| retry_for.saturating_sub(since.elapsed());
        Self {
            retry_for: self.retry_for.map(left),
            ..self.clone()
        }
    }

    /// The pauses of a caller that is not woken.
    pub(crate) fn pauses(&self) -> Backoff {
        self.client.shared().redis.pauses()
    }

    /// Returns this lock for a new owner, with the lease as asked.
    pub(crate) fn of_fresh_owner(&self) -> Self {
        self.owned_by(&Owner::fresh(self.client_id()))
    }

    /// Whether its name and its durations are valid.
    pub(crate) fn check_terms(&self) -> Result<(), Error> {
        self.valid_name()?;
        self.terms().map(drop)
    }

    /// The fixed lease, or the watchdog timeout of its client.
    pub(crate) fn lease_asked(&self) -> Duration {
        let watchdog_timeout = || self.client.shared().watchdog_timeout();
        self.lease.unwrap_or_else(watchdog_timeout)
    }

    /// Returns this lock with holds of at most this long.
    pub(crate) fn at_most(&self, left: Duration) -> Self {
        match self.lease {
            Some(_) => self.lease(left),
            None => self.max_hold(left),
        }
    }

    pub(crate) fn client_id(&self) -> &str {
        &self.client.shared().client_id
    }

    /// That of its client.
    pub(crate) fn command_timeout(&self) -> Duration {
        self.client.shared().command_timeout()
    }

    /// Spawns a task on the client's runtime.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.client.shared().runtime.spawn(task);
    }

    /// The repetitions of a call that waits so.
    pub(crate) fn retry(&self, wait: Wait) -> Retry<'_> {
        Retry {
            shared: self.client.shared(),
            retries: Retries::new(wait, self.retry_for),
        }
    }

    /// Those of one that has waited for long.
    pub(crate) fn short_pauses(&self) -> Backoff {
        self.client.shared().redis.short_pauses()
    }

    /// Runs a future with timers in the client's runtime.
    pub(crate) async fn on_runtime<T>(
        &self,
        future: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        self.client.shared().on_client_runtime(pin!(future)).await
    }

    /// Why its server cannot be asked about it now, if it cannot, for a call that waits so since then.
    pub(crate) fn outage(&self, wait: Wait, began: Instant) -> Option<Error> {
        let problem = self.entry().ok()?.outage(wait, began)?;
        Some(send_error(problem, Operation::Acquiring).about(self.name()))
    }

    /// See [`Entry::catches_up`].
    pub(crate) fn catches_up(&self, wait: Wait, began: Instant) -> Option<Duration> {
        self.entry().ok()?.catches_up(wait, began)
    }

    /// Why it is not known that another owner has it, for a call that waits so since then, which its server has answered or
    /// not. As for a call for this lock alone that is still in the queue.
    pub(crate) fn not_known_busy(
        &self,
        wait: Wait,
        began: Instant,
        has_answered: bool,
    ) -> Option<Error> {
        let (entry, owner) = match (self.entry(), self.current_owner()) {
            (Ok(entry), Ok(owner)) => (entry, owner.key(self.kind.face())),
            (Err(error), _) | (_, Err(error)) => return Some(error.about(self.name())),
        };
        if entry.peek(|core| core.is_excluded(owner)) {
            return None;
        }
        let latest = &entry.latest;
        let is_known = has_answered || latest.answered_at().is_some();
        let none = || (!is_known || latest.has_failed()).then(|| self.not_in_time());
        self.outage(wait, began).or_else(none)
    }

    /// Ends with an error when this client waits for an answer about it, and its server gives none for a command timeout.
    pub(crate) async fn silence(&self) -> Error {
        loop {
            tokio::time::sleep(self.command_timeout()).await;
            let answers = async {
                let owner = self.current_owner()?.key(self.kind.face());
                self.entry()?.server_answers(owner).await
            };
            if let Err(error) = answers.await {
                return error.about(self.name());
            }
        }
    }

    /// The error of a call that had no time left to hear of this lock.
    pub(crate) fn not_in_time(&self) -> Error {
        let error = match self.valid_name() {
            Ok(name) => self
                .route(&name)
                .no_answer(Operation::Acquiring, NOT_IN_TIME),
            Err(error) => error,
        };
        error.about(self.name())
    }

    /// Whether other owners of this client hold the lock or queue for it.
    pub(crate) fn is_contended(&self) -> Result<bool, Error> {
        let owner = self.current_owner()?.key(self.kind.face());
        Ok(self.entry()?.peek(|core| core.is_contended(owner)))
    }

    /// Queues for the lock with the other callers of this client, without ever taking it.
    pub(crate) fn place(&self) -> Result<MemberPlace, Error> {
        let (entry, owner) = (self.entry()?, self.current_owner()?);
        let owner = (owner, self.kind.face());
        let call = Arc::new(WaitingCall::new(owner, (Order::Queued, None)));
        let id = entry.register_place(&call, self.terms()?);
        Ok(MemberPlace { entry, id, call })
    }
}

/// A place in the queue of a lock. It is left when this is dropped.
///
/// It does not ask for the lock, so it has no field that the lock could be handed to: a release that comes to this place
/// frees the lock. The queue waits for it for a command timeout from the beginning of its turn on.
pub(crate) struct MemberPlace {
    entry: Arc<Entry>,
    id: WaiterId,
    call: Arc<WaitingCall>,
}

impl MemberPlace {
    /// Whether `try_lock` of its owner would not find others of this client before it. If it was passed over, it is back:
    /// nothing else takes it back.
    pub(crate) fn poll_turn(&self) -> bool {
        let call = self.id;
        self.entry.step(PlacePolled { call })
    }

    /// Fails when the client has ended.
    pub(crate) fn is_open(&self) -> Result<(), Error> {
        match self.entry.shared().life() {
            Life::Open => Ok(()),
            Life::Gone => Err(Error::NoRuntime),
            Life::Closing | Life::Closed => Err(Error::Closed),
        }
    }

    /// Waits until one of both may have changed.
    pub(crate) async fn woken(&self) {
        self.call.notify.notified().await;
    }
}

impl Drop for MemberPlace {
    fn drop(&mut self) {
        self.entry.leave(self.id);
    }
}

/// When a call whose attempts fail tries again.
pub(crate) struct Retry<'a> {
    shared: &'a Shared,
    retries: Box<Retries>,
}

impl Retry<'_> {
    /// See [`Retries::take_failure`].
    pub(crate) fn take_failure(&mut self) -> Option<Error> {
        self.retries.take_failure()
    }

    /// See [`Retries::answered`].
    pub(crate) fn answered(&mut self) {
        self.retries.answered();
    }

    /// Pauses; or hands the error back, if it does not pass or there is no time left.
    pub(crate) async fn failed(&mut self, error: Error) -> Result<(), Error> {
        self.retries.again(self.shared, error).await
    }
}

/// Extends the fixed lease of a hold; see [`LockGuard::extend`](super::LockGuard::extend).
pub(crate) async fn extend_hold(hold: &Hold, lease: Duration) -> Result<(), Error> {
    let Hold {
        entry, id, status, ..
    } = hold;
    let extending = extend(entry, hold.key(), *id, status, lease);
    entry.shared().on_client_runtime(pin!(extending)).await
}

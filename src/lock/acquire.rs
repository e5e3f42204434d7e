//! An acquire, as its caller sees it: the call joins the queue, goes on by itself, and claims the lock that is granted to it.

use std::pin::pin;
use std::sync::Arc;
#[cfg(feature = "macros")]
use std::time::Duration;

use futures_util::TryFutureExt;
use redisson_lock_core::{Face, LeaseKind, Order, Terms};
use tokio::time::Instant;

use super::Lock;
use super::context::{AcquireContext, CallStage, Request};
use super::guard::LockGuard;
use super::verbs::Lockable;
use super::waiter::{Next, Retries, Wait, Waiter};
use crate::base::runtime::{InSpan, by_deadline_or_later, in_span, span};
use crate::error::Error;
use crate::names::owner::Owner;
use crate::names::try_lock::TryLock;
use crate::names::wire::LockName;
use crate::state::bounds::check_lease;
use crate::state::entry::{Entry, WaitingCall};
use crate::state::hold_status::Taken;
use crate::state::measure::Acquiring;

impl<K> Lockable for Lock<K> {
    type Guard = LockGuard<K>;

    fn lock_name(&self) -> &str {
        self.name()
    }

    /// Not `async`: that future would keep another copy of the arguments.
    fn acquire(
        &self,
        wait: Wait,
    ) -> impl Future<Output = Result<Option<LockGuard<K>>, Error>> + Send {
        let found = self.acquire_or_find(wait, CallStage::Only);
        found.map_ok(TryLock::acquired)
    }

    #[cfg(feature = "blocking")]
    fn of_this_thread(&self) -> Self {
        match &self.owner {
            Some(_) => self.clone(),
            None => self.owned_by(&Owner::of_thread(self.client_id())),
        }
    }
}

impl<K> Lock<K> {
    /// As [`try_lock_for`](Self::try_lock_for), with what the latest attempt found, if there was one. A wait of zero is
    /// [`try_lock`](Self::try_lock).
    #[cfg(feature = "macros")]
    pub(crate) async fn try_lock_for_or_find(
        &self,
        wait: Duration,
    ) -> Result<TryLock<LockGuard<K>>, Error> {
        let wait = match wait {
            Duration::ZERO => Wait::Never(None),
            wait => Wait::of(wait),
        };
        self.acquire_or_find(wait, CallStage::Only).await
    }

    /// Cancel safety, and the deadline: what is under way when the future of the attempts is dropped is undone in the
    /// background.
    pub(crate) fn acquire_or_find(
        &self,
        wait: Wait,
        stage: CallStage,
    ) -> impl Future<Output = Result<TryLock<LockGuard<K>>, Error>> {
        self.acquire_from(wait, stage, None)
    }

    /// The same; or takes the lock over from this owner, in one attempt.
    pub(super) async fn acquire_from(
        &self,
        wait: Wait,
        stage: CallStage,
        from: Option<&Arc<str>>,
    ) -> Result<TryLock<LockGuard<K>>, Error> {
        let mut measured = Acquiring::begin(self.class);
        // The owner is the caller's, so it is looked up before the client's own runtime is entered.
        let owner = self.current_owner()?;
        let mut terms = self.terms()?;
        if let Some(limit) = wait.deadline() {
            terms.wait = (limit - Instant::now()).min(terms.wait);
        }
        let span = span!("acquire", lock = %self.name(), %owner, kind = self.kind.unless_plain());
        let span = span.map(|span| Arc::new(*span));
        let entry = self.entry()?;
        let mut context = AcquireContext::new(self.confirming()?, stage);
        let order = from.map_or_else(|| wait.order(), |_| Order::First);
        let call = WaitingCall::new((owner, self.kind.face()), (order, wait.deadline()));
        let request = Request {
            entry,
            call: Arc::new(call.of(from, context.link(), span.as_ref())),
            terms: &terms,
            wait,
            began: Instant::now(),
        };
        request
            .call
            .attempts(|attempts| attempts.was_answered = stage == CallStage::AfterBusy);
        // Dropped after the attempts: what its acquire has taken, or may have, is given up with its place.
        let mut waiter = None;
        let in_time = {
            let attempts = pin!(async {
                loop {
                    let taken = acquire(&request, &mut context, &mut waiter).await;
                    // A call that tries again keeps its place in the server's queue.
                    if taken.is_ok() || !self.kind.has_queue() {
                        waiter = None;
                    }
                    let failed = match taken {
                        Ok(TryLock::Busy { holder }) => return Ok(TryLock::Busy { holder }),
                        Ok(TryLock::Acquired(taken)) => {
                            let owner = (request.call.owner.clone(), request.call.face);
                            let guard = self.guard(&request.entry, owner, taken);
                            let Some(confirming) = &mut context.confirming else {
                                return Ok(TryLock::Acquired(guard));
                            };
                            match Box::pin(confirming.confirm(guard, request.wait.deadline())).await
                            {
                                Ok(guard) => return Ok(TryLock::Acquired(guard)),
                                Err(error) => error,
                            }
                        }
                        Err(error) => error,
                    };
                    let retries = || Retries::new(request.wait, self.retry_for);
                    Box::pin(context.again(&request, retries, failed)).await?;
                }
            });
            let more = || request.catches_up();
            let answered_by = request.wait.answered_by(request.began);
            let mut attempts = pin!(by_deadline_or_later(answered_by, more, attempts));
            measured.waits();
            let attempts = self.client.shared().on_client_runtime(attempts.as_mut());
            in_span(span.as_deref(), pin!(attempts)).await
        };
        let acquired = in_time.and_then(|in_time| {
            let late = || context.not_in_time(&request, waiter.as_ref());
            in_time.map_or_else(late, Ok)
        });
        measured.ended(&acquired);
        let _inside = InSpan::enter(span.as_deref());
        context.log(&request, &acquired);
        acquired.map_err(|error| error.about(self.name()))
    }

    /// Tries to take it. Also returns whether its server has answered meanwhile, this call or another one of its client.
    pub(crate) async fn acquire_and_look(
        &self,
        wait: Wait,
        stage: CallStage,
    ) -> Result<(Option<LockGuard<K>>, bool), Error> {
        // While it is there, so is what the client has heard of the lock.
        let entry = self.entry()?;
        let began = entry.shared().clock.now();
        let found = self.acquire_or_find(wait, stage).await?;
        Ok((found.acquired(), entry.latest.answered_since(began)))
    }

    pub(super) fn guard(
        &self,
        entry: &Arc<Entry>,
        owner: (Owner, Face),
        taken: Taken,
    ) -> LockGuard<K> {
        let (client, entry) = (Arc::clone(&self.client), Arc::clone(entry));
        LockGuard::new(client, entry, owner, taken, self.class)
    }

    pub(super) fn entry(&self) -> Result<Arc<Entry>, Error> {
        self.client.locks.get(&self.valid_name()?)
    }

    /// The name, or what is wrong with it.
    pub(super) fn valid_name(&self) -> Result<Arc<LockName>, Error> {
        match &self.name {
            Ok(name) => Ok(Arc::clone(name)),
            Err(invalid) => {
                let found = self.client.shared().lock_name(self.kind, invalid);
                found.map(Arc::new)
            }
        }
    }

    /// The terms of a call: a fixed lease, or the watchdog's.
    pub(super) fn terms(&self) -> Result<Terms, Error> {
        let (shared, lease, limit) = (self.client.shared(), self.lease, self.max_hold);
        limit.map_or(Ok(()), |limit| check_lease("max_hold", limit))?;
        lease.map_or(Ok(()), |lease| check_lease("lease", lease))?;
        let kind = if lease.is_some() {
            LeaseKind::Fixed
        } else {
            LeaseKind::Watchdog
        };
        let asked = lease.unwrap_or_else(|| shared.watchdog_timeout());
        let lease = limit.map_or(asked, |limit| limit.min(asked));
        let replicas = self.replicas.map_or(0, |wanted| wanted.replicas);
        Ok(Terms {
            lease,
            kind,
            limit,
            replicas,
            reentrant: self.reentrant,
            wait: shared.config.rules.fair_wait,
        })
    }

    pub(crate) fn current_owner(&self) -> Result<Owner, Error> {
        let client_id = &self.client.shared().client_id;
        match &self.owner {
            None => Ok(Owner::current(client_id)),
            Some(owner) if owner.is_of(client_id) => Ok(owner.clone()),
            Some(_) => {
                let problem = "the owner belongs to another client; use an owner of the client that made this lock";
                Err(Error::Misuse { problem })
            }
        }
    }
}

/// Takes the lock. Otherwise the call does not wait, or its deadline has come: no other attempt begins.
async fn acquire(
    request: &Request<'_>,
    context: &mut AcquireContext,
    waiter: &mut Option<Waiter>,
) -> Result<TryLock<Taken>, Error> {
    let entry = &request.entry;
    // Before it queues: as the first in the queue it would keep others from the lock while a connection is opened.
    context.prepare(request).await?;
    if let Some(waiter) = waiter {
        waiter.ask_again();
    }
    let waiter = waiter.get_or_insert_with(|| request.waiter());
    let next = match &mut context.confirming {
        None => waiter.next().await?,
        Some(confirming) => Box::pin(confirming.next(waiter)).await?,
    };
    match next {
        Next::Hold((claimed, status)) => {
            request.log_re_entry(claimed.target);
            context.taken(&claimed, entry);
            Ok(TryLock::Acquired((claimed.hold, status)))
        }
        Next::Busy => Ok(waiter.busy()),
        Next::NotInTime => {
            request.catch_up().await;
            context.not_in_time(request, Some(waiter))
        }
    }
}

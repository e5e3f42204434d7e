//! The acquire loop: attempt, subscribe and wait for the confirmation, attempt again, wait.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::TryFutureExt;
use tokio::time::Instant;

use super::Lock;
use crate::base::runtime::{InSpan, by_deadline_or_later, event, in_span, span};
use crate::core::{
    Effects, HeldBy, HoldId, LeaseKind, LockCore, Permit, Rejected, Terms, Time, Token, Untaken,
};
use crate::error::{Error, Operation};
use crate::names::owner::{Origin, Owner};
use crate::names::try_lock::TryLock;
use crate::names::wire::LockName;
use crate::redis::{Call, Still};
use crate::script::{self, Acquired, CallError, QueuePlace};
use crate::state::bounds::check_lease;
use crate::state::entry::Entry;
use crate::state::hold_status::Taken;
use crate::state::measure::Acquiring;

use super::context::{AcquireContext, CallStage, Request};
use super::guard::LockGuard;
use super::stray::{is_stray_hold, release_stray_hold};
use super::verbs::Lockable;
use super::waiter::{Next, Retries, Wait, Waiter, needed, rejection};
use super::waking::Waking;

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
    pub(crate) async fn acquire_or_find(
        &self,
        wait: Wait,
        stage: CallStage,
    ) -> Result<TryLock<LockGuard<K>>, Error> {
        let mut measured = Acquiring::begin(self.class);
        // The owner is the caller's, so it is looked up before the client's own runtime is entered.
        let owner = self.current_owner()?;
        let mut terms = self.terms()?;
        if let Some(limit) = wait.deadline() {
            terms.wait = (limit - Instant::now()).min(terms.wait);
        }
        let span = span!("acquire", lock = %self.given, %owner, kind = self.kind.unless_plain());
        let request = Request {
            entry: self.entry()?,
            owner: &owner,
            face: self.kind.face(),
            terms: &terms,
            wait,
            began: Instant::now(),
        };
        let mut context = AcquireContext::new(self.confirming()?, stage);
        // Dropped after the attempts, and so after the permit of one: first the core hears that its outcome is unknown,
        // then that the call has left the queue.
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
                            let guard = self.guard(&request, taken);
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
                    Box::pin(context.again(&request.entry, retries, failed)).await?;
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
            let late = || context.not_in_time(&request, waiter.as_mut());
            in_time.map_or_else(late, Ok)
        });
        measured.ended(&acquired);
        let _inside = InSpan::enter(span.as_deref());
        context.log(&request, &acquired);
        acquired
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

    fn guard(&self, request: &Request<'_>, taken: Taken) -> LockGuard<K> {
        request.entry.note_answer();
        let (client, entry) = (Arc::clone(&self.client), Arc::clone(&request.entry));
        let owner = (request.owner.clone(), request.face);
        LockGuard::new(client, entry, owner, taken, self.class)
    }

    pub(super) fn entry(&self) -> Result<Arc<Entry>, Error> {
        self.client.locks.get(&self.valid_name()?)
    }

    /// The name, or what is wrong with it.
    pub(super) fn valid_name(&self) -> Result<Arc<LockName>, Error> {
        match &self.name {
            Some(name) => Ok(Arc::clone(name)),
            None => self
                .client
                .shared()
                .lock_name(self.kind, &self.given)
                .map(Arc::new),
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
    let (entry, deadline) = (&request.entry, request.wait.deadline());
    // Before it queues: as the first in the queue it would keep others from the lock while a connection is opened.
    context.prepare(entry).await?;
    let waiter = waiter.get_or_insert_with(|| request.waiter());
    let mut waking = Waking::default();
    loop {
        // Not bound to a name, under which every later wait would keep room for it.
        let permit = match match &mut context.confirming {
            None => waiter.next(deadline).await?,
            Some(confirming) => Box::pin(confirming.next(waiter, deadline)).await?,
        } {
            Some(Next::Attempt(permit)) => permit,
            Some(Next::Granted(permit, sent_at)) => {
                let taken = AcquirePermit::granted(entry, permit, sent_at, context)?;
                let Some(taken) = taken else { continue };
                return Ok(TryLock::Acquired(taken));
            }
            None => {
                request.catch_up().await;
                return context.not_in_time(request, Some(waiter));
            }
        };
        // Read before the attempt: whatever is heard from here on puts a "busy" out of date.
        let mut seen = waking.version();
        let attempt = {
            let mut permit = AcquirePermit::new(Arc::clone(entry), permit);
            context.note_attempt();
            permit.attempt(request, context).await?
        };
        let (left, sent_at) = match attempt {
            Attempt::Taken(taken) => return Ok(TryLock::Acquired(taken)),
            Attempt::TakenOver => continue,
            Attempt::Busy(busy) if matches!(request.wait, Wait::Never(_)) => {
                entry.note_answer();
                let holder = Some(*busy.holder).filter(|_| !busy.is_free);
                return Ok(TryLock::Busy { holder });
            }
            Attempt::Busy(busy) => {
                context.answered(entry);
                let left = busy.holder.lease_left;
                let soon = waking.looks_soon(entry.shared(), busy.is_free);
                // A message published on the target of a moving slot may not arrive here.
                let most = busy.is_on_the_way.then_some(ON_THE_WAY);
                let sent_at = busy.sent_at;
                waiter.note_found(busy.holder, busy.is_free);
                (left.into_iter().chain(soon).chain(most).min(), sent_at)
            }
        };
        if entry.name.kind().has_queue() {
            waking.listens_to(|| waiter.channel());
        }
        let mut longest = waking.longest_wait(entry.shared(), entry.name.kind(), left);
        if longest.is_none()
            && let Some(version) = waking.subscribe(entry, waiter, sent_at).await?
        {
            seen = version;
            longest = waking.longest_wait(entry.shared(), entry.name.kind(), left);
        }
        if let Some(longest) = longest {
            let again = Instant::now() + longest;
            let limit = deadline.map_or(again, |limit| limit.min(again));
            waiter.until_retry(waking.listening(), seen, limit).await;
        }
        if deadline.is_some_and(|limit| limit <= Instant::now()) {
            request.catch_up().await;
            return context.not_in_time(request, Some(waiter));
        }
    }
}

/// For how long at most a lock is waited for whose slot is on its way to another node.
const ON_THE_WAY: Duration = Duration::from_secs(1);

/// The core's step for a reply that says taken.
type TakenStep = fn(
    &mut LockCore,
    Time,
    &Permit,
    Time,
    &mut Effects,
) -> Result<(HoldId, Option<Token>), Rejected>;

/// The right to run one acquire for one owner. However it ends, the core hears of it: dropped after
/// its script was sent, it leaves the rest to a job.
struct AcquirePermit {
    entry: Arc<Entry>,
    permit: Permit,
    sent: AtomicBool,
    open: bool,
}

/// Whether an attempt is still its call's.
struct StillAttempting {
    entry: Arc<Entry>,
    permit: Permit,
    /// It was not when it was looked at.
    is_over: AtomicBool,
}

impl Still for StillAttempting {
    fn is_wanted(&self) -> bool {
        let is_wanted = self.entry.peek(|core| core.is_attempting(&self.permit));
        self.is_over.fetch_or(!is_wanted, Ordering::Relaxed);
        is_wanted
    }
}

enum Attempt {
    Taken(Taken),
    Busy(Busy),
    /// It asks again: its call was not polled, and others wait; or its field was used before.
    TakenOver,
}

/// The answer to an attempt that did not take the lock.
struct Busy {
    holder: Box<HeldBy>,
    /// The lock is free, and it is the turn of that owner.
    is_free: bool,
    /// Its slot is on its way to another node.
    is_on_the_way: bool,
    sent_at: Instant,
}

impl AcquirePermit {
    fn new(entry: Arc<Entry>, permit: Permit) -> Self {
        Self {
            entry,
            permit,
            sent: AtomicBool::new(false),
            open: true,
        }
    }

    /// Checked before each send, also after a server has refused one: a job may have undone the attempt.
    fn still(&self) -> Arc<StillAttempting> {
        Arc::new(StillAttempting {
            entry: Arc::clone(&self.entry),
            permit: self.permit.clone(),
            is_over: AtomicBool::new(false),
        })
    }

    /// The next copy of the call, if its field was not used in the meantime.
    fn call(&self, request: &Request<'_>, still: &Arc<StillAttempting>) -> Option<Call<Acquired>> {
        if self.has_a_used_field(request.owner) {
            still.is_over.store(true, Ordering::Relaxed);
            return None;
        }
        let permit = &self.permit;
        let name = self.entry.name_of(permit.owner);
        let place = QueuePlace {
            wait: permit.place_wait,
            stays: permit
                .queues_up
                .then(|| needed(permit, request.wait.deadline())),
        };
        let place = (place, self.entry.shared().redis.announce());
        let mut call = script::acquire(
            name,
            &permit.field,
            permit.target,
            permit.terms.lease,
            place,
        );
        call.still = Some(Arc::clone(still) as Arc<dyn Still>);
        Some(call)
    }

    /// One run of `acquire.lua`, one more if an orphaned hold of this client stood in the way.
    async fn attempt(
        &mut self,
        request: &Request<'_>,
        context: &mut AcquireContext,
    ) -> Result<Attempt, Error> {
        let (entry, owner) = (Arc::clone(&self.entry), request.owner);
        context.prepare(&entry).await?;
        let shared = entry.shared();
        self.log_re_entry(owner);
        let mut strays = 0;
        let still = self.still();
        loop {
            let answer = script::call_noting(
                entry.route(),
                Operation::Acquiring,
                shared.retry(),
                &self.sent,
                |_| self.call(request, &still),
            )
            .await;
            let answer = match answer {
                Ok(answer) => answer,
                Err(error) => {
                    let is_over = still.is_over.load(Ordering::Relaxed);
                    let failed = self.unanswered(owner, is_over, error);
                    return failed
                        .inspect_err(|error| AcquireContext::attempt_failed(&entry, error));
                }
            };
            let sent_at = answer.sent_at;
            match &answer.value {
                Acquired::Taken(token) => {
                    return self.answered(context, sent_at, *token, LockCore::taken);
                }
                Acquired::Outside => {
                    return self.answered(context, sent_at, None, LockCore::taken_outside);
                }
                Acquired::OwnRead => return self.own_read(context),
                Acquired::Lost => {
                    let rejected = self.untaken(Untaken::OuterGone);
                    return Err(rejection(&entry, self.permit.owner, rejected));
                }
                Acquired::NotALock(found) => {
                    self.untaken(Untaken::NotExecuted);
                    return Err(Error::not_a_lock(entry.name.key(), found));
                }
                Acquired::NoToken(found) => {
                    // The field may be there, if its token was deleted.
                    self.untaken(Untaken::Unknown);
                    let key = entry.name.token().unwrap_or_else(|| entry.name.key());
                    return Err(Error::not_a_lock(key, found));
                }
                Acquired::Busy { holder, .. } if strays == 0 && is_stray_hold(&entry, holder) => {
                    strays += 1;
                    Box::pin(release_stray_hold(&entry, holder)).await;
                }
                Acquired::Busy {
                    left,
                    holder,
                    is_free,
                } => {
                    self.untaken(Untaken::Busy);
                    let (owner, lease_left) = (holder.clone(), *left);
                    return Ok(Attempt::Busy(Busy {
                        holder: Box::new(HeldBy { owner, lease_left }),
                        is_free: *is_free,
                        is_on_the_way: answer.way.is_on_the_way(),
                        sent_at: answer.sent_at,
                    }));
                }
            }
        }
    }

    fn log_re_entry(&self, owner: &Owner) {
        if self.permit.target > 1 && owner.origin() == Origin::Task {
            let lock = self.entry.name.given();
            event!(DEBUG, %lock, %owner, "re-entry by task id alone: branches of one join! or select! share it, see Owner::scope");
        }
    }

    /// The server has given it to the owner.
    fn answered(
        &mut self,
        context: &mut AcquireContext,
        sent_at: Instant,
        token: Option<Token>,
        step: TakenStep,
    ) -> Result<Attempt, Error> {
        context.taken(&self.permit, sent_at);
        let sent_at = self.entry.shared().clock.time(sent_at);
        let taken = self.taken(sent_at, token, step)?;
        Ok(taken.map_or(Attempt::TakenOver, Attempt::Taken))
    }

    /// The server has a read hold of the owner, which has none here: a job releases it, and the call asks again. If that
    /// has not helped, another client has this owner too.
    fn own_read(&mut self, context: &mut AcquireContext) -> Result<Attempt, Error> {
        self.untaken(Untaken::OwnRead);
        match std::mem::replace(&mut context.has_found_own_read, true) {
            true => Err(rejection(&self.entry, self.permit.owner, Rejected::OwnRead)),
            false => {
                context.answered(&self.entry);
                Ok(Attempt::TakenOver)
            }
        }
    }

    /// Passed over after it was sent, it fails like each other attempt: if it took its place again, it would for ever
    /// while its server does not answer.
    fn unanswered(
        &mut self,
        owner: &Owner,
        is_over: bool,
        error: CallError,
    ) -> Result<Attempt, Error> {
        let asks_again = is_over || self.has_a_used_field(owner);
        self.untaken(match error.maybe_executed {
            true => Untaken::Unknown,
            false => Untaken::NotExecuted,
        });
        match asks_again {
            true => Ok(Attempt::TakenOver),
            false => Err(error.error),
        }
    }

    /// Whether a late release of an earlier hold may remove the field of a new one: a connection was replaced
    /// without a fence since the attempt began. It then begins again, with a field of its own.
    fn has_a_used_field(&self, owner: &Owner) -> bool {
        let Permit { field, target, .. } = &self.permit;
        let is_used = *target == 1 && field == owner.field() && self.entry.route().unfenced() > 0;
        // A hold inside another one shares its field.
        is_used && !self.entry.peek(|core| core.is_inside(&self.permit))
    }

    /// The hold that was handed over to this call.
    fn granted(
        entry: &Arc<Entry>,
        permit: Permit,
        sent_at: Time,
        context: &mut AcquireContext,
    ) -> Result<Option<Taken>, Error> {
        let mut permit = Self::new(Arc::clone(entry), permit);
        let sent = entry.shared().clock.instant(sent_at);
        context.taken(&permit.permit, sent);
        permit.taken(sent_at, None, LockCore::taken)
    }

    /// A hold, unless the attempt was taken over from its call.
    fn taken(
        &mut self,
        sent_at: Time,
        token: Option<Token>,
        step: TakenStep,
    ) -> Result<Option<Taken>, Error> {
        self.open = false;
        let (entry, permit) = (&self.entry, &self.permit);
        let taken = entry.step_to_hold(token, |core, now, out| {
            step(core, now, permit, sent_at, out)
        });
        match taken {
            Ok(taken) => Ok(Some(taken)),
            Err(Rejected::TakenOver) => Ok(None),
            Err(rejected) => Err(rejection(entry, self.permit.owner, rejected)),
        }
    }

    fn untaken(&mut self, outcome: Untaken) -> Rejected {
        self.open = false;
        let permit = &self.permit;
        self.entry
            .step(|core, now, out| core.untaken(now, permit, outcome, out))
    }
}

impl Drop for AcquirePermit {
    fn drop(&mut self) {
        // Cancel safety: a script that was handed over is executed although no call waits for it any
        // more.
        if self.open {
            let sent = self.sent.load(Ordering::Acquire);
            self.untaken(if sent {
                Untaken::Unknown
            } else {
                Untaken::NotExecuted
            });
        }
    }
}

//! The one acquire loop: attempt, subscribe and have it confirmed, attempt again, wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::core::{
    Admission, HoldId, Order, Permit, Rejected, Renewed, Terms, Time, Untaken, WaiterId,
};
use crate::entry::Entry;
use crate::error::Error;
use crate::event::event;
use crate::hold_status::HoldStatus;
use crate::lease::{LEASE_MAX, check_lease};
use crate::owner::{Origin, Owner, next_own_id};
use crate::script::{self, Acquired, CallError};
use crate::server_error;
use crate::shared::{Shared, Totals};
use crate::wait::Subscription;
use crate::wire;

/// A hold that was just taken.
pub(crate) type Taken = (HoldId, Arc<HoldStatus>);

/// Takes the lock for `owner`. `None`: the deadline came first.
pub(crate) async fn acquire(
    entry: &Arc<Entry>,
    owner: &Owner,
    terms: Terms,
    wait: Wait,
) -> Result<Option<Taken>, Error> {
    let shared = entry.shared();
    let deadline = wait.deadline();
    let mut waiter = Waiter::new(entry, owner, terms, wait.order());
    let mut subscription: Option<Subscription> = None;
    loop {
        let Some(permit) = waiter.next(deadline).await? else {
            return Ok(None);
        };
        // Read before the attempt: whatever is heard from here on puts a "busy" out of date.
        let seen = subscription.as_ref().map_or(0, Subscription::version);
        let left = match permit.attempt(owner).await? {
            Attempt::Taken(taken) => return Ok(Some(taken)),
            Attempt::Busy { .. } if matches!(wait, Wait::Never) => return Ok(None),
            Attempt::Busy { left } => left,
        };
        let Some(listening) = subscription
            .as_ref()
            .filter(|listening| !listening.is_refused())
        else {
            // Attempt again after subscribing: an unlock between the attempt above and the
            // subscription was announced to nobody.
            Totals::add(&shared.totals.contended, 1);
            match Box::pin(subscribe(entry, deadline)).await? {
                Some(confirmed) => subscription = Some(confirmed),
                None => return Ok(None),
            }
            continue;
        };
        let watchdog_timeout = shared.watchdog_timeout();
        let lease_over = left.map_or(watchdog_timeout, |left| left + Duration::from_millis(1));
        let again = Instant::now() + lease_over.min(watchdog_timeout);
        let limit = deadline.map_or(again, |deadline| deadline.min(again));
        waiter.until_retry(listening, seen, limit).await;
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Ok(None);
        }
    }
}

/// How long a caller is ready to wait.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wait {
    Never,
    Until(Instant),
    Forever,
}

impl Wait {
    /// Long before the end of the clock's range, where timers cannot be made any more, a wait is one
    /// without end.
    pub(crate) fn of(wait: Duration) -> Self {
        match wait {
            Duration::ZERO => Self::Never,
            wait if wait < LEASE_MAX => Self::Until(Instant::now() + wait),
            _ => Self::Forever,
        }
    }

    fn deadline(self) -> Option<Instant> {
        match self {
            Self::Until(deadline) => Some(deadline),
            Self::Never | Self::Forever => None,
        }
    }

    fn order(self) -> Order {
        match self {
            Self::Never => Order::AtOnce,
            Self::Until(_) | Self::Forever => Order::Queued,
        }
    }
}

/// What a call asks for: a fixed lease, or the watchdog's.
pub(crate) fn terms(
    shared: &Shared,
    lease: Option<Duration>,
    limit: Option<Duration>,
) -> Result<Terms, Error> {
    limit.map_or(Ok(()), |limit| check_lease("max_hold", limit))?;
    lease.map_or(Ok(()), |lease| check_lease("lease", lease))?;
    let renewed = if lease.is_some() {
        Renewed::Never
    } else {
        Renewed::ByWatchdog
    };
    let asked = lease.unwrap_or_else(|| shared.watchdog_timeout());
    let lease = limit.map_or(asked, |limit| limit.min(asked));
    Ok(Terms {
        lease,
        renewed,
        limit,
    })
}

/// A call that wants the lock; it leaves the queue when it is dropped.
struct Waiter {
    entry: Arc<Entry>,
    id: WaiterId,
    /// Notified when it may be able to go on.
    notify: Arc<Notify>,
    owner: Owner,
    field: Arc<str>,
    since: Instant,
    warned: bool,
}

impl Waiter {
    fn new(entry: &Arc<Entry>, owner: &Owner, terms: Terms, order: Order) -> Self {
        let (id, notify) = entry.enqueue(owner.id(), order, terms);
        let (entry, field) = (Arc::clone(entry), owner.field());
        Self {
            entry,
            id,
            notify,
            owner: owner.clone(),
            field,
            since: Instant::now(),
            warned: false,
        }
    }

    /// Waits until this call may talk to Redis. `None`: the deadline came first.
    async fn next(&mut self, deadline: Option<Instant>) -> Result<Option<AcquirePermit>, Error> {
        let mut behind_since = None;
        loop {
            let (limit, behind) = match self.admit()? {
                Admission::Permit(permit) => {
                    return Ok(Some(AcquirePermit::new(Arc::clone(&self.entry), permit)));
                }
                Admission::Queued { again } => {
                    behind_since = None;
                    (again, false)
                }
                // The earlier operation waits for Redis: that is waited for as long as a command is.
                // However many there are before this one, each has as long.
                Admission::OwnerBusy { since } => {
                    let now = self.entry.shared().clock.now();
                    let since = since.max(*behind_since.get_or_insert(now));
                    (Some(since + self.entry.shared().command_timeout()), true)
                }
            };
            let limit = limit.map(|limit| self.entry.shared().clock.instant(limit));
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Ok(None);
            }
            if behind && limit.is_some_and(|limit| limit <= Instant::now()) {
                let source = "an earlier operation of this owner on this lock has no answer yet";
                return Err(Error::no_answer("acquiring", source));
            }
            self.notified([limit, deadline]).await;
        }
    }

    fn admit(&self) -> Result<Admission, Error> {
        // After a reconnect without a fence a late send of an earlier hold may still be executed, so
        // every hold begun since then has a field of its own.
        let shared = self.entry.shared();
        let unfenced = self.entry.route().unfenced() > 0;
        let own = unfenced.then(|| wire::field(&shared.client_id, next_own_id()));
        let field = own.as_ref().unwrap_or(&self.field);
        let admission = self
            .entry
            .step(|core, now, out| core.admit(now, self.id, field, out));
        admission.map_err(|rejected| self.rejected(rejected))
    }

    fn rejected(&self, rejected: Rejected) -> Error {
        rejection(&self.entry, rejected)
    }

    /// Waits until something changed in this process, or one of the limits is reached.
    async fn notified(&mut self, limits: [Option<Instant>; 2]) {
        let long = self.since + self.entry.shared().watchdog_timeout();
        let limit = limits.into_iter().flatten().min();
        tokio::select! {
            biased;
            () = self.notify.notified() => {}
            () = sleep_until(limit) => {}
            () = tokio::time::sleep_until(long), if !self.warned => self.warn_long_wait(),
        }
    }

    /// Waits, after an attempt found the lock held, until another one makes sense: more was heard on
    /// the channel than `before`, `limit` is reached, or this owner itself got or lost the lock.
    async fn until_retry(&mut self, subscription: &Subscription, before: u64, limit: Instant) {
        loop {
            let clock = self.entry.shared().clock;
            let stuck = self
                .entry
                .read(|core, _| core.next_stuck())
                .map(|at| clock.instant(at));
            tokio::select! {
                biased;
                () = subscription.changed_since(before) => return,
                () = tokio::time::sleep_until(limit) => break,
                // An unlock of this client is not polled any more; asking has the background take
                // it over.
                () = sleep_until(stuck) => return,
                () = self.notify.notified() => {
                    // Its own attempts are among what it is woken for; they are no news.
                    if self.entry.read(|core, _| core.has_reason_to_retry(self.id)) {
                        return;
                    }
                }
            }
        }
        self.warn_long_wait();
    }

    /// Logs once that this call has been waiting for long.
    fn warn_long_wait(&mut self) {
        let waited = self.since.elapsed();
        if !self.warned && waited >= self.entry.shared().watchdog_timeout() {
            self.warned = true;
            let lock = self.entry.name.given();
            event!(WARN, %lock, owner = %self.owner, ?waited, "waiting long for a lock");
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.entry.leave(self.id);
    }
}

/// The right to run one acquire for one owner. However it ends, the core hears of it: dropped after
/// its script was sent, it leaves the rest to a job.
struct AcquirePermit {
    entry: Arc<Entry>,
    permit: Permit,
    sent: AtomicBool,
    open: bool,
}

enum Attempt {
    Taken(Taken),
    Busy { left: Option<Duration> },
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

    /// One run of `acquire.lua`, one more if an orphaned hold of this client stood in the way.
    async fn attempt(mut self, owner: &Owner) -> Result<Attempt, Error> {
        let entry = Arc::clone(&self.entry);
        let shared = entry.shared();
        if self.permit.target > 1 && owner.origin() == Origin::Task {
            let lock = entry.name.given();
            event!(DEBUG, %lock, %owner, "re-entry by task id alone: branches of one join! or select! share it, see Owner::scope");
        }
        let mut strays = 0;
        loop {
            let Permit {
                field,
                target,
                terms,
                ..
            } = &self.permit;
            let call = || script::acquire(&entry.name, field, *target, terms.lease);
            let answer =
                script::call_noting(entry.route(), "acquiring", shared.retry(), &self.sent, call)
                    .await;
            let answer = match answer {
                Ok(answer) => answer,
                Err(CallError {
                    error,
                    maybe_executed,
                }) => {
                    let unknown = if maybe_executed {
                        Untaken::Unknown
                    } else {
                        Untaken::NotExecuted
                    };
                    self.untaken(unknown);
                    return Err(error);
                }
            };
            match &answer.value {
                Acquired::Taken => return self.taken(shared.clock.time(answer.sent_at)),
                Acquired::Lost => {
                    let rejected = self.untaken(Untaken::OuterGone);
                    return Err(rejection(&entry, rejected));
                }
                Acquired::NotALock(found) => {
                    self.untaken(Untaken::NotExecuted);
                    return Err(Error::not_a_lock(entry.name.key(), found));
                }
                Acquired::Busy { holder, .. } if strays == 0 && is_stray_hold(&entry, holder) => {
                    strays += 1;
                    Box::pin(release_stray_hold(&entry, holder)).await;
                }
                Acquired::Busy { left, .. } => {
                    self.untaken(Untaken::NotExecuted);
                    return Ok(Attempt::Busy { left: *left });
                }
            }
        }
    }

    fn taken(mut self, sent_at: Time) -> Result<Attempt, Error> {
        self.open = false;
        let (entry, permit) = (&self.entry, &self.permit);
        let taken = entry.step_to_hold(|core, now, out| core.taken(now, permit, sent_at, out));
        taken
            .map(Attempt::Taken)
            .map_err(|rejected| rejection(entry, rejected))
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
        // Cancel safety: a script that was handed over is executed although nobody waits for it any
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

fn rejection(entry: &Entry, rejected: Rejected) -> Error {
    let lock = entry.name.given();
    match rejected {
        Rejected::Closed => Error::Closed,
        Rejected::NoRuntime => Error::NoRuntime,
        Rejected::Lost(reason) => Error::lost(lock, reason),
        Rejected::TooDeep(depth) => Error::TooDeep {
            lock: lock.to_string(),
            depth,
        },
        Rejected::TooLate => Error::no_answer(
            "acquiring",
            "the answer came when the lease was already over",
        ),
    }
}

/// Whether a busy lock is held by a field of this client that nobody holds or works with.
fn is_stray_hold(entry: &Entry, holder: &str) -> bool {
    let shared = entry.shared();
    entry.route().unfenced() > 0
        && wire::is_field_of(&shared.client_id, holder)
        && entry.read(|core, _| core.owner_of(holder).is_none())
}

/// Frees the lock from a field of this client that nobody holds: a late send from a connection that
/// was replaced without a fence.
async fn release_stray_hold(entry: &Entry, holder: &str) {
    let shared = entry.shared();
    let field: Arc<str> = holder.into();
    let call = || script::release(&entry.name, &field, 0, Duration::from_millis(1));
    let released = script::call(entry.route(), "releasing", shared.retry(), call)
        .await
        .is_ok();
    let lock = entry.name.given();
    event!(
        INFO, %lock, owner = holder, released,
        "outcome reconciled: a late send of an earlier hold was released"
    );
}

/// Subscribes and has it confirmed. `None`: the deadline came first.
async fn subscribe(
    entry: &Entry,
    deadline: Option<Instant>,
) -> Result<Option<Subscription>, Error> {
    let shared = entry.shared();
    let timeout = Instant::now() + shared.command_timeout();
    let refused = |text: &str| {
        let permission = format!("&{}", entry.name.channel());
        server_error::of_connection("subscribing", &permission, text)
    };
    let subscription = shared.subscriptions.subscribe(entry.name.channel());
    tokio::select! {
        biased;
        confirmed = subscription.confirmed() => match confirmed {
            Ok(()) => {}
            Err(text) => return Err(refused(&text)),
        },
        // Nobody is left to confirm it.
        () = shared.gone.cancelled() => return Err(Error::Closed),
        () = sleep_until(deadline) => return Ok(None),
        () = tokio::time::sleep_until(timeout) => {
            let problem = shared.subscriptions.problem();
            return Err(refused(problem.as_deref().unwrap_or("the subscription was not confirmed")));
        }
    }
    Ok(Some(subscription))
}

/// Sleeps until then, or for ever.
async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

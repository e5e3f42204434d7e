//! The public verbs, and the one acquire loop behind them.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant as StdInstant};

use tokio::time::Instant;

use crate::client::ClientHandle;
use crate::entry::{Entries, EntryRef, Place, sleep_until};
use crate::error::Error;
use crate::guard::{Held, HoldState, LockGuard, give_back};
use crate::owner::Owner;
use crate::refusal;
use crate::script::{self, Acquired, Inspected};
use crate::shared::{Shared, Totals};
use crate::slot::{Mode, local_end};
use crate::wait::Subscription;
use crate::wire::{self, LockName};

/// A lock by its name. Cheap to clone, does no I/O by itself, and remembers no hold.
///
/// Without [`lease`](Self::lease) a hold is kept by the watchdog: its lease is the client's watchdog timeout and is
/// renewed every third of it, until the hold is given back. The lock is reentrant by [`Owner`].
///
/// Not for: mutual exclusion that must survive the failover of an unreplicated server, or a resource that cannot
/// bear two writers for a moment; see `docs/guarantees.md`.
///
/// # Examples
///
/// ```no_run
/// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
/// let stock = client.lock("stock:42");
/// let outer = stock.lock().await?;
/// let inner = stock.lock().await?; // the same task: hold count 2
/// inner.unlock().await?;
/// outer.unlock().await
/// # }
/// ```
#[derive(Clone)]
pub struct Lock {
    client: Arc<ClientHandle>,
    given: Arc<str>,
    lease: Option<Duration>,
    max_hold: Option<Duration>,
    owner: Option<Owner>,
}

impl Lock {
    pub(crate) fn new(client: Arc<ClientHandle>, name: String) -> Self {
        Self { max_hold: client.shared.config.max_hold, client, given: name.into(), lease: None, owner: None }
    }

    /// The name as given, without the key prefix.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: redisson_lock::LockClient) {
    /// assert_eq!(client.lock("stock:42").name(), "stock:42");
    /// # }
    /// ```
    pub fn name(&self) -> &str {
        &self.given
    }

    /// The same lock with a fixed lease instead of the watchdog: 10 milliseconds to ten years.
    ///
    /// The hold ends when the lease is over, however long the section takes; the lock is then given back and the
    /// guard is lost with [`LossReason::LeaseOver`](crate::LossReason::LeaseOver). A bad lease is the error of the first verb.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// let guard = client.lock("stock:42").lease(Duration::from_secs(10)).lock().await?;
    /// # guard.unlock().await }
    /// ```
    #[must_use]
    pub fn lease(&self, lease: Duration) -> Self {
        Self { lease: Some(lease), ..self.clone() }
    }

    /// The same lock with a limit on each hold, from its taking on: 10 milliseconds to ten years; default: the
    /// client's [`max_hold`](crate::LockClientBuilder::max_hold).
    ///
    /// The watchdog renews up to the limit; there the hold is lost with [`LossReason::MaxHold`](crate::LossReason::MaxHold) and its lease
    /// ends. Nothing is taken away from under a running section.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn run(client: redisson_lock::LockClient) {
    /// let lock = client.lock("stock:42").max_hold(Duration::from_secs(300));
    /// # }
    /// ```
    #[must_use]
    pub fn max_hold(&self, limit: Duration) -> Self {
        Self { max_hold: Some(limit), ..self.clone() }
    }

    /// The same lock for a given owner, whatever task calls it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// let owner = client.owner();
    /// let guard = client.lock("stock:42").owned_by(&owner).lock().await?;
    /// # guard.unlock().await }
    /// ```
    #[must_use]
    pub fn owned_by(&self, owner: &Owner) -> Self {
        Self { owner: Some(owner.clone()), ..self.clone() }
    }

    /// Takes the lock, waiting for as long as another owner holds it.
    ///
    /// If this owner already holds it, one more hold is added at once. Waiting costs one subscription for the
    /// whole process and no polling.
    ///
    /// # Errors
    ///
    /// Those of a failed attempt: [`Error::NoAnswer`] (the caller holds nothing), [`Error::Refused`],
    /// [`Error::PermissionDenied`], [`Error::Auth`], [`Error::NotALock`]; [`Error::Lost`] if an outer hold of this
    /// owner was lost and its guard is still open; [`Error::TooDeep`]; [`Error::InvalidName`],
    /// [`Error::InvalidDuration`], [`Error::InvalidConfig`]; [`Error::Closed`], [`Error::NoRuntime`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no hold, no subscription and no timer. An attempt that is on its way is undone
    /// as soon as the connection lets it; until then others find the lock taken, and this owner's next call
    /// waits for it. The place in the queue is lost.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// let guard = client.lock("stock:42").lock().await?;
    /// guard.unlock().await
    /// # }
    /// ```
    pub async fn lock(&self) -> Result<LockGuard, Error> {
        let taken = self.acquire(Wait::Forever).await?;
        // Without a deadline the loop only ends with a hold or an error.
        taken.ok_or(Error::Closed)
    }

    /// Takes the lock if that is possible right now: one attempt, past the local queue. `None`: it is held.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// match client.lock("stock:42").try_lock().await? {
    ///     Some(guard) => guard.unlock().await?,
    ///     None => println!("somebody else is at it"),
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn try_lock(&self) -> Result<Option<LockGuard>, Error> {
        self.acquire(Wait::Never).await
    }

    /// Takes the lock, waiting at most this long. `None`: it was held all the time.
    ///
    /// A wait of zero makes one attempt. A reply that is under way when the time is over is still awaited, at
    /// most for the command timeout.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// if let Some(guard) = client.lock("stock:42").try_lock_for(Duration::from_secs(2)).await? {
    ///     guard.unlock().await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn try_lock_for(&self, wait: Duration) -> Result<Option<LockGuard>, Error> {
        // A wait beyond the clock's range is a wait without end.
        match Instant::now().checked_add(wait) {
            _ if wait.is_zero() => self.acquire(Wait::Never).await,
            Some(deadline) => self.acquire(Wait::Until(deadline)).await,
            None => self.acquire(Wait::Forever).await,
        }
    }

    /// Takes the lock, waiting until `deadline`. `None`: it was held all the time.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::{Duration, Instant};
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// let deadline = Instant::now() + Duration::from_secs(2);
    /// let guard = client.lock("stock:42").try_lock_until(deadline).await?;
    /// # Ok(()) }
    /// ```
    pub async fn try_lock_until(&self, deadline: StdInstant) -> Result<Option<LockGuard>, Error> {
        let deadline = Instant::from_std(deadline);
        if deadline <= Instant::now() {
            return self.acquire(Wait::Never).await;
        }
        self.acquire(Wait::Until(deadline)).await
    }

    /// Runs `body` with the lock held, and drops it if the lock is lost.
    ///
    /// The body's value is returned if the hold was alive at its end, also when the unlock then has no answer: a
    /// finished section is not spoiled by that. If the body panics, the lock is given back and the panic goes on.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock); [`Error::Lost`] if the lock was lost before the body had ended.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body and gives the lock back in the background.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn sell() -> u32 { 1 }
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// let sold = client.lock("stock:42").run(|_held| async move { sell().await }).await?;
    /// # Ok(()) }
    /// ```
    pub async fn run<F, Fut>(&self, body: F) -> Result<Fut::Output, Error>
    where
        F: FnOnce(Held) -> Fut,
        Fut: Future,
    {
        let guard = self.lock().await?;
        let value = tokio::select! {
            biased;
            reason = guard.lost() => return Err(Error::lost(&self.given, reason)),
            value = body(guard.held()) => value,
        };
        if let HoldState::Lost(reason) = guard.state() {
            return Err(Error::lost(&self.given, reason));
        }
        match guard.unlock().await {
            Err(error @ Error::Lost { .. }) => Err(error),
            Ok(()) | Err(_) => Ok(value),
        }
    }

    /// Gives back one [detached](LockGuard::detach) hold of the current owner.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] if this owner has no detached hold; otherwise as [`LockGuard::unlock`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the hold back in the background, exactly once; dropped before it was polled, it
    /// does nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(lock: redisson_lock::Lock) -> Result<(), redisson_lock::Error> {
    /// lock.lock().await?.detach();
    /// lock.unlock().await
    /// # }
    /// ```
    pub async fn unlock(&self) -> Result<(), Error> {
        let shared = &self.client.shared;
        shared
            .drive(async {
                let owner = self.current_owner()?;
                let entry = self.entry()?;
                let Some(ticket) = entry.detached(owner.thread_id()) else {
                    if shared.is_closed() {
                        return Err(Error::Closed);
                    }
                    return Err(Error::NotHeld { lock: self.given.to_string(), owner: owner.to_string() });
                };
                give_back(&entry, owner.thread_id(), &ticket, || ()).await
            })
            .await
    }

    /// Frees the lock whoever holds it, and wakes a waiter. `true`: it was locked.
    ///
    /// The holder is told by its next renewal, at the latest within a third of its watchdog timeout. The holder
    /// is read first and named to the script, which is never sent twice: a holder that comes later is not hit.
    ///
    /// # Errors
    ///
    /// [`Error::NoAnswer`] if the answer is lost: the lock may or may not be free. Otherwise the refusals of
    /// [`lock`](Self::lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may or may not have freed the lock.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(lock: redisson_lock::Lock) -> Result<(), redisson_lock::Error> {
    /// let was_locked = lock.force_unlock().await?;
    /// # Ok(()) }
    /// ```
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        let shared = &self.client.shared;
        shared
            .drive(async {
                let entry = self.entry()?;
                for _ in 0..FORCE_ATTEMPTS {
                    let Inspected::Held { field, .. } = self.look(&entry).await? else {
                        return Ok(false);
                    };
                    let field: Arc<str> = field.into();
                    let patience = script::Patience { copies: 1, ..shared.patience() };
                    let sent = AtomicBool::new(false);
                    let forced = script::ask(&shared.redis, entry.lane, "forcing", patience, &sent, || {
                        script::force_unlock(&entry.name, &field)
                    })
                    .await;
                    let forced = match forced {
                        Ok(forced) => forced.value,
                        Err(unanswered) => {
                            if unanswered.perhaps {
                                // Once this is answered, by the same connection or by one behind the fence, the
                                // copy without an answer cannot be executed any more.
                                let _ = self.look(&entry).await;
                            }
                            return Err(unanswered.error);
                        }
                    };
                    if forced {
                        entry.lose_field(&field);
                        return Ok(true);
                    }
                }
                // It changed hands at every look: whoever was meant has given it back.
                Ok(true)
            })
            .await
    }

    /// Whether anybody holds the lock. Asks Redis.
    ///
    /// # Errors
    ///
    /// As a failed attempt of [`lock`](Self::lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(lock: redisson_lock::Lock) -> Result<(), redisson_lock::Error> {
    /// println!("{}", lock.is_locked().await?);
    /// # Ok(()) }
    /// ```
    pub async fn is_locked(&self) -> Result<bool, Error> {
        Ok(self.inspect().await?.is_some())
    }

    /// Whether the current owner holds the lock. Asks Redis.
    ///
    /// # Errors
    ///
    /// As a failed attempt of [`lock`](Self::lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(lock: redisson_lock::Lock) -> Result<(), redisson_lock::Error> {
    /// println!("{}", lock.is_held().await?);
    /// # Ok(()) }
    /// ```
    pub async fn is_held(&self) -> Result<bool, Error> {
        Ok(self.hold_count().await? > 0)
    }

    /// How often the current owner holds the lock. Asks Redis.
    ///
    /// # Errors
    ///
    /// As a failed attempt of [`lock`](Self::lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(lock: redisson_lock::Lock) -> Result<(), redisson_lock::Error> {
    /// println!("{}", lock.hold_count().await?);
    /// # Ok(()) }
    /// ```
    pub async fn hold_count(&self) -> Result<u32, Error> {
        let shared = &self.client.shared;
        shared
            .drive(async {
                let owner = self.current_owner()?;
                let entry = self.entry()?;
                let own = entry.field_in_redis(&owner);
                Ok(match self.look(&entry).await? {
                    Inspected::Held { field, count, .. } if *field == *own => count,
                    _ => 0,
                })
            })
            .await
    }

    /// How long the lease runs still; `None` if the lock is free, or has no expiry. Asks Redis.
    ///
    /// # Errors
    ///
    /// As a failed attempt of [`lock`](Self::lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(lock: redisson_lock::Lock) -> Result<(), redisson_lock::Error> {
    /// println!("{:?}", lock.lease_left().await?);
    /// # Ok(()) }
    /// ```
    pub async fn lease_left(&self) -> Result<Option<Duration>, Error> {
        Ok(self.inspect().await?.and_then(|holder| holder.lease_left))
    }

    /// Who holds the lock, Java's owners too. Asks Redis.
    ///
    /// # Errors
    ///
    /// As a failed attempt of [`lock`](Self::lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(lock: redisson_lock::Lock) -> Result<(), redisson_lock::Error> {
    /// if let Some(holder) = lock.inspect().await? {
    ///     println!("held {} times by {}", holder.hold_count, holder.owner);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn inspect(&self) -> Result<Option<Holder>, Error> {
        let shared = &self.client.shared;
        shared
            .drive(async {
                let entry = self.entry()?;
                Ok(match self.look(&entry).await? {
                    Inspected::Held { left, field, count } => {
                        Some(Holder { owner: field, hold_count: count, lease_left: left })
                    }
                    Inspected::Free | Inspected::NotALock(_) => None,
                })
            })
            .await
    }

    async fn acquire(&self, wait: Wait) -> Result<Option<LockGuard>, Error> {
        // The owner is the caller's, so it is looked up before the client's own runtime is entered.
        let owner = self.current_owner();
        self.client.shared.drive(self.acquire_as(owner, wait)).await
    }

    /// Takes the lock for `owner`. `None`: the deadline came first.
    async fn acquire_as(&self, owner: Result<Owner, Error>, wait: Wait) -> Result<Option<LockGuard>, Error> {
        let owner = owner?;
        self.terms()?;
        let entry = self.entry()?;
        let deadline = wait.deadline();
        let mut turn = entry.queue_up(&owner, matches!(wait, Wait::Never));
        let mut subscription: Option<Subscription> = None;
        loop {
            let Some(place) = turn.next(deadline).await? else { return Ok(None) };
            // Read before the attempt: whatever is heard from here on puts a "busy" out of date.
            let heard = subscription.as_ref().map_or(0, Subscription::heard);
            let left = match self.attempt(&entry, &owner, place).await? {
                Attempt::Taken(guard) => return Ok(Some(guard)),
                Attempt::Busy { .. } if matches!(wait, Wait::Never) => return Ok(None),
                Attempt::Busy { left } => left,
            };
            let Some(listening) = &subscription else {
                // Attempt again after subscribing: an unlock between the attempt above and the subscription
                // was told to nobody.
                Totals::add(&self.client.shared.totals.contended, 1);
                match self.subscribe(&entry, deadline).await? {
                    Some(confirmed) => subscription = Some(confirmed),
                    None => return Ok(None),
                }
                continue;
            };
            let watchdog_timeout = self.client.shared.config.watchdog_timeout;
            let lease_over = left.map_or(watchdog_timeout, |left| left + Duration::from_millis(1));
            let again = Instant::now() + lease_over.min(watchdog_timeout);
            let limit = deadline.map_or(again, |deadline| deadline.min(again));
            turn.worth_trying(listening, heard, limit).await;
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Ok(None);
            }
        }
    }

    /// One run of `acquire.lua`, one more if a ghost of this client stood in the way.
    async fn attempt(&self, entry: &EntryRef, owner: &Owner, place: Place) -> Result<Attempt, Error> {
        let shared = &self.client.shared;
        let (lease, mode) = self.terms()?;
        let mut ghosts = 0;
        loop {
            let answer =
                script::ask(&shared.redis, entry.lane, "acquiring", shared.patience(), &place.sent, || {
                    script::acquire(&entry.name, &place.field, place.target, lease)
                })
                .await;
            let answer = match answer {
                Ok(answer) => answer,
                Err(unanswered) => {
                    place.leave_unknown(unanswered.perhaps);
                    return Err(unanswered.error);
                }
            };
            match &answer.value {
                Acquired::Taken => {
                    let ticket = place.take(&answer, lease, |sent_at| mode.begin(sent_at, lease))?;
                    let client = Arc::clone(&self.client);
                    let guard = LockGuard::new(client, entry.clone(), owner.clone(), ticket);
                    return Ok(Attempt::Taken(guard));
                }
                Acquired::Lost => return Err(place.leave_lost()),
                Acquired::NotALock(found) => {
                    place.leave();
                    return Err(self.not_a_lock(found));
                }
                Acquired::Busy { holder, .. } if ghosts == 0 && is_ghost(shared, entry, holder) => {
                    ghosts += 1;
                    self.give_back_ghost(entry, holder).await;
                }
                Acquired::Busy { left, .. } => {
                    let left = *left;
                    place.leave();
                    return Ok(Attempt::Busy { left });
                }
            }
        }
    }

    /// Frees the lock from a field of this client that nobody holds: a late copy from a connection that was
    /// replaced without a fence.
    async fn give_back_ghost(&self, entry: &EntryRef, holder: &str) {
        let shared = &self.client.shared;
        let field: Arc<str> = holder.into();
        let sent = AtomicBool::new(false);
        let patience = shared.patience();
        let released = script::ask(&shared.redis, entry.lane, "releasing", patience, &sent, || {
            script::release(&entry.name, &field, 0, Duration::from_millis(1))
        });
        let released = released.await.is_ok();
        tracing::info!(
            target: "redisson_lock",
            lock = %self.given, owner = holder, released,
            "outcome reconciled: a late copy of an earlier hold was given back"
        );
    }

    /// Subscribes and has it confirmed. `None`: the deadline came first.
    async fn subscribe(
        &self,
        entry: &EntryRef,
        deadline: Option<Instant>,
    ) -> Result<Option<Subscription>, Error> {
        let shared = &self.client.shared;
        let timeout = Instant::now() + shared.config.command_timeout;
        let subscription = shared.waits.subscribe(entry.name.channel());
        tokio::select! {
            confirmed = subscription.confirmed() => match confirmed {
                Ok(()) => {}
                Err(text) => {
                    let right = format!("&{}", entry.name.channel());
                    return Err(refusal::explain_plain("subscribing", &right, &text));
                }
            },
            () = sleep_until(deadline) => return Ok(None),
            () = tokio::time::sleep_until(timeout) => {
                return Err(Error::no_answer("subscribing", "the subscription was not confirmed"));
            }
        }
        Ok(Some(subscription))
    }

    /// One run of `inspect.lua`.
    async fn look(&self, entry: &EntryRef) -> Result<Inspected, Error> {
        let shared = &self.client.shared;
        if shared.is_closed() {
            return Err(Error::Closed);
        }
        let sent = AtomicBool::new(false);
        let call = || script::inspect(&entry.name);
        let inspected = script::ask(&shared.redis, entry.lane, "inspecting", shared.patience(), &sent, call)
            .await
            .map_err(|unanswered| unanswered.error)?
            .value;
        match inspected {
            Inspected::NotALock(found) => Err(self.not_a_lock(&found)),
            inspected => Ok(inspected),
        }
    }

    fn entry(&self) -> Result<EntryRef, Error> {
        let shared = &self.client.shared;
        let name = LockName::new(&shared.config.key_prefix, &self.given)?;
        Ok(Entries::get(shared, &name))
    }

    fn current_owner(&self) -> Result<Owner, Error> {
        let client_id = &self.client.shared.client_id;
        match &self.owner {
            None => Ok(Owner::current(client_id)),
            Some(owner) if owner.is_of(client_id) => Ok(owner.clone()),
            Some(_) => Err(Error::InvalidConfig {
                what: "owner",
                problem: "it belongs to another client; use an owner of the client that made this lock"
                    .to_owned(),
            }),
        }
    }

    /// The lease to ask for, and what becomes of the hold.
    fn terms(&self) -> Result<(Duration, Terms), Error> {
        let watchdog_timeout = self.client.shared.config.watchdog_timeout;
        let limit = self.max_hold;
        if let Some(limit) = limit {
            check_lease("max_hold", limit)?;
        }
        let (lease, fixed) = match self.lease {
            Some(lease) => {
                check_lease("lease", lease)?;
                (lease, true)
            }
            None => (watchdog_timeout, false),
        };
        Ok((limit.map_or(lease, |limit| limit.min(lease)), Terms { fixed, limit }))
    }

    fn not_a_lock(&self, found: &str) -> Error {
        Error::NotALock { lock: self.given.to_string(), found: found.to_owned() }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("name", &self.given)
            .field("lease", &self.lease)
            .field("max_hold", &self.max_hold)
            .field("owner", &self.owner)
            .finish()
    }
}

/// Who holds a lock, as Redis has it.
///
/// # Examples
///
/// ```no_run
/// # async fn run(lock: redisson_lock::Lock) -> Result<(), redisson_lock::Error> {
/// let holder: Option<redisson_lock::Holder> = lock.inspect().await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The owner's field, `clientId:threadId`; written by Rust or Java, and not taken apart.
    pub owner: String,
    /// How often it holds the lock.
    pub hold_count: u32,
    /// How long the lease runs still; `None` if the key has no expiry.
    pub lease_left: Option<Duration>,
}

/// How long a caller is ready to wait.
#[derive(Debug, Clone, Copy)]
enum Wait {
    Never,
    Until(Instant),
    Forever,
}

impl Wait {
    fn deadline(self) -> Option<Instant> {
        match self {
            Self::Until(deadline) => Some(deadline),
            Self::Never | Self::Forever => None,
        }
    }
}

enum Attempt {
    Taken(LockGuard),
    Busy { left: Option<Duration> },
}

/// What becomes of a hold after it was taken.
#[derive(Debug, Clone, Copy)]
struct Terms {
    fixed: bool,
    limit: Option<Duration>,
}

impl Terms {
    fn begin(self, sent_at: Instant, lease: Duration) -> Mode {
        let limit = self.limit.map(|limit| local_end(sent_at, limit));
        if self.fixed {
            Mode::Fixed { until: local_end(sent_at, lease), limit }
        } else {
            Mode::Watchdog { limit }
        }
    }
}

/// Whether a busy lock is held by a field of this client that nobody holds or works with.
fn is_ghost(shared: &Shared, entry: &EntryRef, holder: &str) -> bool {
    shared.redis.unfenced(entry.lane) > 0
        && wire::is_field_of(&shared.client_id, holder)
        && !entry.knows_field(holder)
}

/// Leases and limits have the same bounds.
pub(crate) fn check_lease(what: &'static str, given: Duration) -> Result<(), Error> {
    if (LEASE_MIN..=LEASE_MAX).contains(&given) {
        return Ok(());
    }
    Err(Error::InvalidDuration {
        what,
        given,
        problem: "it must be at least 10 milliseconds and at most ten years",
    })
}

const LEASE_MIN: Duration = Duration::from_millis(10);
const LEASE_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// A lock that changes hands at each of so many looks is in lively use.
const FORCE_ATTEMPTS: u32 = 8;

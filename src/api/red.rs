//! One lock across several independent servers, held by the caller that has most of them.

mod guard;
mod queue;
mod quorum_hold;
mod rule;

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::base::backoff::Backoff;
use crate::base::runtime::{in_span, sleep_until, span};
use crate::error::{Error, Operation, Quorum};
use crate::kind::LockKind;
use crate::lock::verbs::{Lockable, verbs};
use crate::lock::{Lock, Retry, Wait, has_time};
use crate::names::owner::Owner;
use crate::state::bounds::LEASE_MAX;

pub use guard::{RedGuard, RedHold, RedLost};
use queue::{Checked, FailedRounds, RedCaller, RedQueue, too_few};
use quorum_hold::{Round, RoundOutcome, TooFew};

/// One lock across several independent servers: it is held while a quorum of them (more than half) has it. Cheap to
/// clone, and stores no hold.
///
/// # What it does not promise
///
/// *Kleppmann*: a holder may pause, for garbage collection or a slow disk, until its leases are over, and then write
/// although another client holds the lock. Only a resource that refuses the older of two writers prevents that, and
/// independent servers have no common number to order them by. The algorithm also needs clocks that do not jump: a jump
/// may end a lease early, and give a second holder a quorum.
///
/// *antirez*: the elapsed time is checked after the quorum was reached, so a delay before that is harmless, and a delay
/// after it affects every lock with an expiry. Clocks need not be right, only run at about the same rate, and operators
/// can keep them from jumping. A resource that can compare numbers could also compare each holder's unique value.
///
/// Use it where two simultaneous holders cost work but no data. A [fenced lock](crate::FencedLock) on one server
/// protects a resource that can compare; `sync_replicas` survives a failover.
///
/// A server that restarts without its data forgets its holders, and could give a second one a quorum. Keep it out of
/// service for one lease (30 s by default), because this crate cannot see that it forgot.
///
/// # How it works
///
/// A round asks all members at the same time, for new owners. The caller waits until a quorum has the lock, for up to
/// [`member_timeout`](Self::member_timeout); each lease counts from before its request, less 1 % and 2 ms for clock
/// drift. Without a quorum everything is released, and another round follows after a pause of up to 128 ms. While a
/// quorum holds, members that respond late, were busy or were lost are taken again, never for longer than the first
/// holds of a quorum: their `lease`, as extended, or their `max_hold`. Callers in one process that use the same clients
/// and names queue, so that they do not split the votes.
///
/// The first acquisition asks the servers for their identity (`INFO server`). A client whose user may not ask counts as
/// connected to a separate server, so two clients of one server would be two votes. The same applies to a server that
/// answers the round but not this question: one round waits for it, up to the `member_timeout`, and if the answer then
/// shows a duplicate, the next call is refused. A server that joins a hold later is not compared. Keep one `RedLock`
/// and clone it, because a new one asks again.
///
/// The timers of a `RedLock` run on the runtime of the first lock's client, whichever task calls it.
///
/// There is no `try_lock_or_holder`, because each server may have a different holder: call [`Lock::inspect`] on each
/// member instead.
///
/// Members are plain locks, as in Redisson's `RedissonRedLock`, or string locks, as in most other programs. The lock
/// does not nest: a second call by an owner that has a guard of it, or waits for it, fails with [`Error::AlreadyHeld`],
/// whatever order the locks were given in. Other callers in the process continue as soon as the quorum is lost.
///
/// # Examples
///
/// ```no_run
/// # async fn bill() -> Result<(), redisson_lock::Error> { Ok(()) }
/// # async fn run(clients: Vec<redisson_lock::LockClient>) -> Result<(), redisson_lock::Error> {
/// use redisson_lock::RedLock;
/// // One client for each of five servers.
/// let lock = RedLock::new(clients.iter().map(|client| client.lock("billing")))?;
/// let guard = lock.lock().await?;
/// bill().await?;
/// guard.unlock().await
/// # }
/// ```
#[derive(Clone)]
pub struct RedLock {
    members: Vec<Lock>,
    /// Whose call it is, in the queue of this process.
    owner: Option<Owner>,
    member_timeout: Option<Duration>,
    queue: Arc<RedQueue>,
    /// Whether the servers were asked if two of them are the same.
    checked: Arc<Checked>,
}

impl RedLock {
    /// Combines these locks, each on its own server, into one.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidConfig`] with fewer than three, with two of one client, or with a kind that is neither
    /// plain nor string.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(clients: Vec<redisson_lock::LockClient>) -> Result<(), redisson_lock::Error> {
    /// let lock = redisson_lock::RedLock::new(clients.iter().map(|client| client.string_lock("leader")))?;
    /// # Ok(()) }
    /// ```
    pub fn new(members: impl IntoIterator<Item = Lock>) -> Result<Self, Error> {
        let members: Vec<Lock> = members.into_iter().collect();
        if members.len() < 3 {
            return Err(invalid("it needs at least three servers".to_owned()));
        }
        let is_other = |lock: &&Lock| !matches!(lock.kind(), LockKind::Plain | LockKind::String);
        if let Some(other) = members.iter().find(is_other) {
            let (name, kind) = (other.name(), other.kind());
            return Err(invalid(format!(
                "`{name}` is a {kind} lock; use plain or string locks"
            )));
        }
        for (nth, lock) in members.iter().enumerate() {
            if members[..nth]
                .iter()
                .any(|other| lock.is_of_client_of(other))
            {
                return Err(same_server(lock));
            }
        }
        Ok(Self {
            queue: RedQueue::of(&members),
            members,
            owner: None,
            member_timeout: None,
            checked: Arc::default(),
        })
    }

    /// Returns this lock with a fixed lease instead of the watchdogs of its clients: 10 milliseconds to ten years.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn run(lock: redisson_lock::RedLock) -> Result<(), redisson_lock::Error> {
    /// let guard = lock.lease(Duration::from_secs(10)).lock().await?;
    /// # guard.unlock().await }
    /// ```
    #[must_use]
    pub fn lease(&self, lease: Duration) -> Self {
        Self {
            members: self.members.iter().map(|lock| lock.lease(lease)).collect(),
            ..self.clone()
        }
    }

    /// Returns this lock with a limit for the servers' responses to one round, an `extend`, or an unlock. Default: a
    /// tenth of the shortest lease of its locks, and at most the first client's command timeout; at least 1 ms. A
    /// minority of servers that do not respond does not slow down an acquisition while no other process wants the lock:
    /// a round waits for them only if the others do not have a quorum.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn run(lock: redisson_lock::RedLock) {
    /// let lock = lock.member_timeout(Duration::from_millis(200));
    /// # }
    /// ```
    #[must_use]
    pub fn member_timeout(&self, member_timeout: Duration) -> Self {
        Self {
            member_timeout: Some(member_timeout),
            ..self.clone()
        }
    }

    /// Returns this lock for a given owner of any of its clients, whichever task calls it. On the servers each round
    /// has its own owners, and owners given to the members are ignored.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(client: redisson_lock::LockClient, lock: redisson_lock::RedLock) -> Result<(), redisson_lock::Error> {
    /// let owner = client.owner();
    /// let guard = lock.owned_by(&owner).lock().await?;
    /// # guard.unlock().await }
    /// ```
    #[must_use]
    pub fn owned_by(&self, owner: &Owner) -> Self {
        Self {
            owner: Some(owner.clone()),
            ..self.clone()
        }
    }

    /// Why no quorum of the servers can be asked now, if none can, for a call that waits so since then: the error of one,
    /// and which it is.
    fn outage(&self, wait: Wait, began: Instant) -> Option<(usize, Error)> {
        let outage = |(nth, member): (usize, &Lock)| Some((nth, member.outage(wait, began)?));
        let mut problems = self.members.iter().enumerate().filter_map(outage);
        problems.nth(self.members.len() - rule::quorum(self.members.len()))
    }

    /// Why too few servers have answered a round of a call that waits so since then. `Err`: nothing but the time is known to
    /// have been too short.
    fn too_few(
        &self,
        (wait, called): (Wait, Instant),
        TooFew {
            mut errors,
            mut answered,
        }: TooFew,
        retry: &mut Retry<'_>,
    ) -> Result<Error, Error> {
        let (asked, needed) = (self.members.len(), rule::quorum(self.members.len()));
        // Of a round that has ended before nothing is known.
        errors.resize_with(asked, || None);
        answered.resize(asked, false);
        let lasting = errors
            .iter()
            .flatten()
            .filter(|error| !error.is_retryable());
        // An error that passes, unless the others alone make a quorum impossible.
        let passes = asked - lasting.count() >= needed;
        let is_shown =
            |it: &Option<Error>| it.as_ref().is_some_and(|it| it.is_retryable() == passes);
        let failed = errors.iter().flatten().count();
        // Without those that have failed there is no quorum. Otherwise the others have had no time.
        let is_decisive = asked - failed < needed;
        let shown = errors.iter().position(is_shown);
        let shown = shown.and_then(|nth| Some((nth, errors[nth].take()?)));
        let outage = (!is_decisive).then(|| self.outage(wait, called)).flatten();
        let is_known = is_decisive || outage.is_some();
        if let Some(earlier) = (!is_known).then(|| retry.take_failure()).flatten() {
            return Ok(earlier);
        }
        let shown = outage.or(shown);
        let silent = |nth: usize| self.members[nth].not_in_time();
        let (shown, error) = shown.unwrap_or_else(|| {
            let nth = answered.iter().position(|it| !it).unwrap_or_default();
            (nth, silent(nth))
        });
        let others = (0..asked).filter(|nth| *nth != shown && !answered[*nth]);
        let others = others.map(|nth| errors[nth].take().unwrap_or_else(|| silent(nth)));
        let quorum = Quorum {
            answered: answered.iter().filter(|it| **it).count(),
            asked,
            needed,
        };
        let error = error.of_quorum(quorum, others);
        if is_known { Ok(error) } else { Err(error) }
    }

    /// For how long a call, or a round, that waits so since then goes on when its time is over: see
    /// [`Lock::catches_up`].
    fn catches_up(&self, wait: Wait, began: Instant) -> Option<Duration> {
        let more = self
            .members
            .iter()
            .filter_map(|it| it.catches_up(wait, began));
        more.max()
    }

    /// The error of a call before which rounds have failed one after the other, if there is an outage. One round that fails
    /// is none: this process may have stalled. Neither are those in which slow servers had too little time to answer.
    fn outage_by(&self, failed: FailedRounds) -> Option<Error> {
        let home = self.home();
        let enough = self.member_timeout_or_default().min(home.command_timeout());
        if failed.ended - failed.since < enough {
            return None;
        }
        let none = || too_few(Operation::Acquiring, home.name());
        let had_time = failed.ended - failed.began >= enough;
        self.outage(Wait::Never(None), Instant::now())
            .map(|(_, error)| error)
            .or_else(|| had_time.then(none))
    }

    /// One round after the other, until one has a quorum.
    async fn rounds(
        &self,
        (wait, called): (Wait, Instant),
        (caller, turn): (RedCaller, OwnedSemaphorePermit),
        mut retry: Retry<'_>,
    ) -> Result<Option<RedGuard>, Error> {
        let home = self.home();
        let member_timeout = self.member_timeout_or_default();
        let unpolled = member_timeout + home.command_timeout();
        let mut pauses = home.pauses();
        let is_over = |deadline: Instant| deadline <= Instant::now();
        let ends = wait.answered_by(Instant::now());
        let has_time = has_time(Instant::now(), ends);
        let mut was_busy = !has_time && self.queue.is_known_busy();
        loop {
            self.checked.begin(&self.members);
            let (round, job) = Round::begin(&self.members, member_timeout, unpolled);
            let began = Instant::now();
            let answered_by = began + member_timeout;
            let limit = ends.map_or(answered_by, |end| end.min(answered_by));
            home.spawn(job);
            let found = self.found(&round, limit, || self.catches_up(wait, began));
            match found.await? {
                RoundOutcome::Taken => {
                    self.queue.note_answer();
                    let (quorum_hold, home) = (round.kept(turn), home.clone());
                    return Ok(Some(RedGuard::new(
                        quorum_hold,
                        home,
                        caller,
                        member_timeout,
                    )));
                }
                RoundOutcome::Busy => {
                    drop(round);
                    retry.answered();
                    self.queue.note_answer();
                    was_busy = true;
                    if matches!(wait, Wait::Never(_)) || wait.deadline().is_some_and(is_over) {
                        return Ok(None);
                    }
                    let again = next_round(&mut pauses, limit);
                    let deadline = wait.deadline().into_iter();
                    sleep_until(deadline.chain([again]).min()).await;
                    if wait.deadline().is_some_and(is_over) {
                        return Ok(None);
                    }
                }
                RoundOutcome::TooFew(found) => {
                    drop(round);
                    let error = match self.too_few((wait, called), found, &mut retry) {
                        Ok(error) => error,
                        // The last round, in which too few servers had the time to answer.
                        Err(_) if was_busy && limit < answered_by => return Ok(None),
                        Err(error) => error,
                    };
                    if has_time {
                        self.queue.note_failure(began);
                    }
                    retry.failed(error).await?;
                }
            }
        }
    }

    /// Waits for the outcome of a round until `limit`, or a little later.
    async fn found(
        &self,
        round: &Round,
        limit: Instant,
        more: impl FnOnce() -> Option<Duration>,
    ) -> Result<RoundOutcome, Error> {
        let (found, answered) = round.found(limit, more).await;
        let checked = self.checked.check(&answered, limit).await;
        checked.map_err(|nth| same_server(&self.members[nth]))?;
        // What was found is old when the check has taken long.
        Ok(match found {
            RoundOutcome::Taken if !round.take() => RoundOutcome::Busy,
            found => found,
        })
    }

    /// The member whose client has the timers of this lock.
    fn home(&self) -> &Lock {
        &self.members[0]
    }

    /// Who calls, as far as this process is concerned.
    fn caller(&self) -> Result<Owner, Error> {
        match &self.owner {
            None => {
                let current = || Owner::current(self.first_client_id());
                Ok(self.scope_owner().unwrap_or_else(current))
            }
            Some(owner) if self.members.iter().any(|lock| lock.knows(owner)) => Ok(owner.clone()),
            // It says what is wrong with the owner.
            Some(owner) => self.home().owned_by(owner).current_owner(),
        }
    }

    /// The owner of the innermost scope of one of its clients.
    fn scope_owner(&self) -> Option<Owner> {
        Owner::of_scope(|owner| self.members.iter().any(|lock| lock.knows(owner)))
    }

    /// Independent of the order of the members, so that a caller is the same owner of each such lock.
    fn first_client_id(&self) -> &str {
        let ids = self.members.iter().map(Lock::client_id);
        ids.min().unwrap_or_else(|| self.home().client_id())
    }

    fn member_timeout_or_default(&self) -> Duration {
        let longest = self.home().command_timeout();
        let default = || {
            let leases = self.members.iter().map(Lock::lease_asked);
            leases
                .min()
                .map_or(longest, |lease| lease / 10)
                .min(longest)
        };
        self.member_timeout
            .unwrap_or_else(default)
            .clamp(Duration::from_millis(1), LEASE_MAX)
    }
}

impl Lockable for RedLock {
    type Guard = RedGuard;

    fn lock_name(&self) -> &str {
        self.home().name()
    }

    async fn acquire(&self, wait: Wait) -> Result<Option<RedGuard>, Error> {
        let home = self.home();
        let span = span!("acquire_red", lock = %home.name(), servers = self.members.len());
        let acquiring = pin!(async {
            let owner = self.caller()?;
            self.members.iter().try_for_each(Lock::check_terms)?;
            home.on_runtime(async {
                let (began, mut retry) = (Instant::now(), home.retry(wait));
                let outage = |failed| self.outage_by(failed);
                let turn = self
                    .queue
                    .turn_unless_away(owner, (wait, home), &mut retry, outage);
                match turn.await? {
                    Some(turn) => self.rounds((wait, began), turn, retry).await,
                    // Those before it may have no answer either.
                    None => {
                        if let Some(more) = self.catches_up(wait, began) {
                            tokio::time::sleep(more).await;
                        }
                        let outage = self.outage(wait, began);
                        outage.map_or(Ok(None), |(_, error)| Err(error))
                    }
                }
            })
            .await
        });
        in_span(span.as_deref(), acquiring).await
    }

    #[cfg(feature = "blocking")]
    fn of_this_thread(&self) -> Self {
        match &self.owner {
            Some(_) => self.clone(),
            None => {
                let thread = || Owner::of_thread(self.first_client_id());
                self.owned_by(&self.scope_owner().unwrap_or_else(thread))
            }
        }
    }
}

verbs! {
    impl[] RedLock: RedGuard, RedHold; "redisson_lock::RedLock";

    /// Acquires the lock, waiting while others hold it.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoAnswer`], or a server's error with the name of its lock, if fewer than a quorum respond; the
    /// call retries for the first lock's `retry_for`. A call that queues in its process fails in the same way when the
    /// rounds of those before it fail, one after the other. Also [`Error::AlreadyHeld`], and [`Error::InvalidConfig`]
    /// if two clients are connected to the same server.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no hold: holds that servers have granted, or grant later, are released in the
    /// background.
    lock;

    /// Acquires the lock in one round. Returns `None` if others hold it, or if callers in this process are first.
    ///
    /// # Errors
    ///
    /// See [`lock`](Self::lock). The call does not retry.
    ///
    /// # Cancel safety
    ///
    /// See [`lock`](Self::lock).
    try_lock;

    /// Acquires the lock, waiting for at most `wait`. Returns `None` if others had it in the latest round that a quorum
    /// answered.
    ///
    /// A round that fails temporarily ([`Error::is_retryable`]) is repeated until then. The last one ends at the
    /// deadline, even if the `member_timeout` is longer; the first has 40 ms, as with [`Lock::try_lock_for`].
    ///
    /// # Errors
    ///
    /// See [`lock`](Self::lock). At the deadline also returns the error of the latest round, if that failed, and
    /// [`Error::NoAnswer`] if a quorum answered none: see [`Lock::try_lock_for`].
    ///
    /// # Cancel safety
    ///
    /// See [`lock`](Self::lock).
    try_lock_for;
}

impl fmt::Debug for RedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedLock")
            .field("members", &self.members)
            .field("member_timeout", &self.member_timeout)
            .finish()
    }
}

/// Returns when the next round begins, after one that was busy, or split until its `limit`.
fn next_round(pauses: &mut Backoff, limit: Instant) -> Instant {
    let mut pause = pauses.next();
    while Instant::now() >= limit && pause < SPLIT_PAUSE {
        pause = pauses.next();
    }
    Instant::now() + pause
}

fn same_server(lock: &Lock) -> Error {
    let name = lock.name();
    invalid(format!(
        "two of its locks (`{name}`) are on the same server; each needs its own"
    ))
}

fn invalid(problem: String) -> Error {
    Error::InvalidConfig {
        what: "red lock",
        problem,
    }
}

/// The least pause after a round that has waited for its limit: others have probably waited as long, with a part of the
/// servers each.
const SPLIT_PAUSE: Duration = Duration::from_millis(16);

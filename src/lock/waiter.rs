//! A waiting call: for its permit, in the queue of its lock, and between failed attempts.

use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redisson_lock_core::{
    Admission, Claimed, Face, Order, OwnerKey, Permit, Rejected, Terms, WaiterId,
};
use tokio::time::Instant;

use crate::base::backoff::Backoff;
use crate::base::runtime::{event, sleep_until};
use crate::error::{Error, HeldBy, Operation};
use crate::names::owner::{Owner, next_own_id};
use crate::names::try_lock::TryLock;
use crate::names::wire;
use crate::redis::SendError;
use crate::redis::channels::Subscription;
use crate::script;
use crate::state::bounds::LEASE_MAX;
use crate::state::entry::{AttemptEnd, CallFinds, Entry, WaitingCall};
use crate::state::hold_status::HoldStatus;
use crate::state::shared::Shared;

/// A call that wants the lock; it leaves the queue when it is dropped.
pub(super) struct Waiter {
    entry: Arc<Entry>,
    id: WaiterId,
    call: Arc<WaitingCall>,
    face: Face,
    since: Instant,
    /// Nothing is logged, or nothing more, however long it waits.
    warned: bool,
    /// Nothing but the lock ends its wait, unless the server does not answer.
    has_no_end: bool,
    /// The holder that the latest attempt found.
    found: Option<Box<HeldBy>>,
    /// It was no holder, but the owner whose turn it is.
    found_free: bool,
    /// An acquire of it is under way.
    is_asking: bool,
    /// What it had heard before its latest acquire.
    heard: u64,
}

impl Waiter {
    pub(super) fn new(
        entry: &Arc<Entry>,
        (owner, face): (&Owner, Face),
        terms: Terms,
        (wait, order): (Wait, Order),
        from: Option<&Arc<str>>,
    ) -> Self {
        let call = WaitingCall::new(wait.deadline(), owner.clone(), from);
        let id = entry.enqueue(owner.key(face), order, terms, &call);
        Self {
            entry: Arc::clone(entry),
            id,
            call,
            face,
            since: Instant::now(),
            warned: matches!(wait, Wait::Standby),
            has_no_end: matches!(wait, Wait::Forever),
            found: None,
            found_free: false,
            is_asking: false,
            heard: 0,
        }
    }

    pub(super) fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    pub(super) fn id(&self) -> WaiterId {
        self.id
    }

    pub(super) fn thread(&self) -> i64 {
        self.call.owner.thread_id()
    }

    fn key(&self) -> OwnerKey {
        self.call.owner.key(self.face)
    }

    /// The channel on which it hears that the lock may be free for it.
    pub(super) fn channel(&self) -> Arc<str> {
        let name = &self.entry.name;
        if !name.kind().has_queue() {
            return Arc::clone(name.channel());
        }
        let field = self.entry.peek(|core| core.field(self.key()));
        name.channel_of(field.as_ref().unwrap_or_else(|| self.call.owner.field()))
    }

    /// Waits until the lock is granted to this call, or an acquire of it has ended without it. `None`: others queue, and it
    /// does not wait, or no longer. `has_heard`: how much it has heard by now. `is_ready`: whether it may begin an acquire.
    pub(super) async fn next(
        &mut self,
        asked: &mut Attempts,
        has_heard: impl Fn() -> u64,
        is_ready: impl Fn() -> bool,
    ) -> Result<Option<Next>, Error> {
        let (mut behind_since, mut looks_at, mut look) = (None, None, None);
        loop {
            if !self.is_asking {
                if !is_ready() {
                    return Ok(Some(Next::Prepare));
                }
                // Before the acquire: whatever is heard from here on puts a "busy" out of date.
                self.heard = has_heard();
            }
            let admission = match self.ask()? {
                CallFinds::Hold(claimed, status) => return Ok(Some(Next::Hold(claimed, status))),
                CallFinds::Ended(end) => {
                    self.is_asking = false;
                    return Ok(Some(Next::Ended(end)));
                }
                CallFinds::Admission(admission) => admission,
            };
            let is_asking = admission == Admission::Sent;
            if !std::mem::replace(&mut self.is_asking, is_asking) && is_asking {
                asked.begins();
            }
            let (limit, behind) = match admission {
                // Its answer has a limit, which its connection keeps.
                Admission::Sent => {
                    self.call.notify.notified().await;
                    continue;
                }
                // It was granted in the step that has just ended what was in its way.
                Admission::Granted => continue,
                Admission::Queued { again } => {
                    behind_since = None;
                    looks_at = looks_at.or_else(|| self.has_no_end.then(|| self.next_look()));
                    (again, false)
                }
                // A caller that polls without a pause waits for no reply here, and would keep its thread to itself.
                Admission::Busy => {
                    tokio::task::yield_now().await;
                    return Ok(None);
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
            if behind && is_over(limit) {
                return Err(self.entry.route().no_answer(Operation::Acquiring, NOT_OVER));
            }
            if is_over(self.call.deadline) {
                return Ok(None);
            }
            if is_over(looks_at) {
                // It goes on however often this call is woken: other calls of its owner may come and go all the time.
                let answers = look.get_or_insert_with(|| self.look());
                tokio::select! {
                    biased;
                    () = self.call.notify.notified() => continue,
                    answers = answers.as_mut() => answers?,
                }
                (looks_at, look) = (None, None);
                continue;
            }
            let limits = [limit, self.call.deadline, looks_at];
            self.notified(limits.into_iter().flatten().min()).await;
        }
    }

    /// Whether the server answers.
    fn look(&self) -> Pin<Box<impl Future<Output = Result<(), Error>> + Send + use<>>> {
        let (entry, owner) = (Arc::clone(&self.entry), self.key());
        Box::pin(async move { entry.server_answers(owner).await })
    }

    fn next_look(&self) -> Instant {
        Instant::now() + self.entry.shared().command_timeout()
    }

    /// What it had heard before its latest acquire.
    pub(super) fn heard(&self) -> u64 {
        self.heard
    }

    fn ask(&self) -> Result<CallFinds, Error> {
        // Before the field is chosen: one that was used before a later reconnect counts as older than that.
        let reconnects = self.entry.route().unfenced();
        let field = field(&self.entry, &self.call.owner);
        let (has_queue, owner) = (self.entry.name.kind().has_queue(), self.key());
        let found = self.entry.ask(self.id, |core, now, out| {
            if !has_queue {
                return core.admit(now, self.id, &field, out);
            }
            core.admit_to_place(now, (self.id, owner), &field, reconnects, out)
        });
        found.map_err(|rejected| rejection(&self.entry, owner, rejected))
    }

    pub(super) fn note_found(&mut self, busy: Box<HeldBy>, is_free: bool) {
        let had_lease = |found: &HeldBy| found.lease_left.is_some();
        self.found_free = is_free;
        let lock = self.entry.name.given();
        event!(TRACE, holder = %busy.owner, lease_left = ?busy.lease_left, is_free, "lock busy");
        if !had_lease(&busy)
            && self.found.as_deref().is_none_or(had_lease)
            && self.entry.shared().no_expiry.is_news(lock)
        {
            let holder = &busy.owner;
            event!(WARN, %lock, owner = %self.call.owner, holder, "waiting for a lock whose key has no expiry");
        }
        self.found = Some(busy);
    }

    /// Not acquired in time: what the latest attempt found, if there was one.
    pub(super) fn busy<G>(&mut self) -> TryLock<G> {
        let found = self.found.take().filter(|_| !self.found_free);
        let holder = found.map(|found| *found);
        TryLock::Busy { holder }
    }

    /// Waits until something changed in this process, or the limit is reached.
    async fn notified(&mut self, limit: Option<Instant>) {
        event!(TRACE, "queued in this client");
        let long = self.since + self.entry.shared().watchdog_timeout();
        let long = Some(long).filter(|_| !self.warned);
        tokio::select! {
            biased;
            () = self.call.notify.notified() => {}
            () = sleep_until(limit.into_iter().chain(long).min()) => self.warn_long_wait(),
        }
    }

    /// Waits, after an attempt found the lock held, until another one makes sense: more was heard on the
    /// channel than `before`, `limit` is reached, or this owner itself got or lost the lock.
    /// Not `async`: that future would keep another copy of the arguments.
    pub(super) fn until_retry(
        &mut self,
        listening: Option<&Subscription>,
        before: u64,
        limit: Instant,
    ) -> impl Future<Output = ()> {
        let until = self.entry.shared().clock.time(limit);
        self.entry
            .step(|core, now, out| core.waits(now, self.id, until, out));
        async move {
            // It may have been woken for that while its acquire was under way.
            if self.has_reason_to_retry() {
                return;
            }
            let heard = async || match listening {
                Some(listening) => listening.changed_since(before).await,
                None => std::future::pending().await,
            };
            loop {
                tokio::select! {
                    biased;
                    () = heard() => return,
                    () = tokio::time::sleep_until(limit) => break,
                    () = self.call.notify.notified() => {
                        // Its own attempts are among what it is woken for; they are no news.
                        if self.has_reason_to_retry() {
                            return;
                        }
                    }
                }
            }
            self.warn_long_wait();
        }
    }

    /// Waits until something in this client makes another attempt worth while.
    pub(super) async fn until_reason(&self) {
        while !self.has_reason_to_retry() {
            self.call.notify.notified().await;
        }
    }

    fn has_reason_to_retry(&self) -> bool {
        self.entry.peek(|core| core.has_reason_to_retry(self.id))
    }

    /// Logs once that this call has been waiting for long.
    fn warn_long_wait(&mut self) {
        let waited = self.since.elapsed();
        if !self.warned && waited >= self.entry.shared().watchdog_timeout() {
            self.warned = true;
            let lock = self.entry.name.given();
            let found = self.found.as_deref();
            let holder = found.map_or("another caller of this client", |found| &found.owner);
            let left = found.and_then(|found| found.lease_left);
            if self.found_free {
                event!(WARN, %lock, owner = %self.call.owner, ?waited, next_in_queue = holder, place_left = ?left, "waiting long for the next in the queue of a fair lock");
            } else {
                event!(WARN, %lock, owner = %self.call.owner, ?waited, holder, lease_left = ?left, "waiting long for a lock");
            }
        }
    }
}

fn is_over(limit: Option<Instant>) -> bool {
    limit.is_some_and(|limit| limit <= Instant::now())
}

const NOT_OVER: &str = "an earlier operation of this owner on this lock has no answer yet";

/// The acquires of a call.
#[derive(Default)]
pub(super) struct Attempts {
    pub(super) count: u32,
    /// When it was its turn to ask the server, the last time.
    pub(super) at: Option<Instant>,
}

impl Attempts {
    fn begins(&mut self) {
        self.count += 1;
        self.at = Some(Instant::now());
    }
}

/// What a waiter has come to.
pub(super) enum Next {
    Hold(Claimed, Arc<HoldStatus>),
    /// Its acquire has ended without the lock.
    Ended(AttemptEnd),
    /// It is to be made ready for an acquire.
    Prepare,
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.entry.leave(self.id);
    }
}

/// The field under which a hold of this owner would appear in Redis.
///
/// After a reconnect without a fence a late send of an earlier hold may still be executed, so every
/// hold begun since then has a field of its own. A kind whose acquisitions have a value each has a new one whenever a
/// call asks: an earlier one may still be released in the background.
fn field(entry: &Entry, owner: &Owner) -> Arc<str> {
    if entry.name.kind().has_value_per_hold() || entry.route().unfenced() > 0 {
        wire::field(&entry.shared().client_id, next_own_id())
    } else {
        Arc::clone(owner.field())
    }
}

pub(super) fn rejection(entry: &Entry, owner: OwnerKey, rejected: Rejected) -> Error {
    let lock = entry.name.given();
    let late = |text| entry.route().late(Operation::Acquiring, text);
    match rejected {
        Rejected::Closed => Error::Closed,
        Rejected::NoRuntime => Error::NoRuntime,
        Rejected::Lost(reason) => entry.lost(owner, reason),
        Rejected::TooDeep(depth) => Error::TooDeep {
            lock: lock.to_string(),
            depth,
        },
        Rejected::AlreadyHeld => Error::AlreadyHeld {
            lock: lock.to_string(),
        },
        Rejected::OwnRead => Error::WouldDeadlock {
            lock: lock.to_string(),
        },
        Rejected::TooLate => late("the lease was already over; use a longer one"),
        Rejected::GivenBack => late("the call was not polled; poll its future until it is ready"),
    }
}

/// How long the answer to the first attempt is waited for, however short the wait is.
pub(super) const SHORTEST_ANSWER: Duration = Duration::from_millis(40);

/// Whether the server has the time to answer by `limit` what is sent then. An attempt right before the deadline says nothing
/// of the server, however late this process notices that the deadline has passed.
pub(crate) fn has_time(sent_at: Instant, limit: Option<Instant>) -> bool {
    limit.is_none_or(|limit| sent_at + SHORTEST_ANSWER / 2 <= limit)
}

/// How long what has arrived may take to be read.
const CATCH_UP: Duration = Duration::from_millis(10);

impl Entry {
    /// Why the server cannot be asked about the lock now, if it cannot, or says nothing. A call for whose whole wait it has
    /// been silent finds that out as soon as an attempt of its own would; otherwise a slow answer may still come.
    pub(super) fn outage(&self, wait: Wait, began: Instant) -> Option<SendError> {
        let (now, half) = (Instant::now(), self.shared().command_timeout() / 2);
        let answered = || self.latest.answered_since(self.shared().clock.time(began));
        let may_be_slow = matches!(wait, Wait::Never(_)) || answered();
        self.route().problem(|since| {
            let may_be_slow = may_be_slow || since > began + SHORTEST_ANSWER;
            now >= since + if may_be_slow { half } else { SHORTEST_ANSWER }
        })
    }

    /// For how long a call that waits so since then goes on at its deadline, if it has heard nothing of the lock and an
    /// answer is on its way, or the server seems silent: this process may have stood still, and not have read what has
    /// arrived.
    pub(super) fn catches_up(&self, wait: Wait, began: Instant) -> Option<Duration> {
        let was_answered = self.latest.answered_since(self.shared().clock.time(began));
        let is_owed = Cell::new(false);
        self.route().problem(|_| {
            is_owed.set(true);
            false
        });
        let is_silent = || matches!(self.outage(wait, began), Some(SendError::Unknown(_)));
        (is_owed.get() && (!was_answered || is_silent())).then_some(CATCH_UP)
    }

    /// Fails if an operation of this client is in the way of this owner, and the server has given no answer for a command
    /// timeout: what the operation has left behind may keep the lock from others until the server answers again. A
    /// connection is waited for as before an attempt.
    pub(super) async fn server_answers(&self, owner: OwnerKey) -> Result<(), Error> {
        let is_behind = || self.peek(|core| core.is_behind_an_operation(owner));
        if !is_behind() {
            return Ok(());
        }
        let (route, timeout) = (self.route(), self.shared().command_timeout());
        let problem = || route.problem(|since| Instant::now() >= since + timeout);
        let mut found = problem();
        if matches!(found, Some(SendError::Unknown(_))) {
            // In doubt it is sent a PING.
            tokio::time::sleep(timeout / 2).await;
            found = problem();
        }
        let problem = match found {
            None => return Ok(()),
            Some(silent @ SendError::Unknown(_)) => silent,
            Some(_) => match route.ready(Instant::now() + timeout).await {
                Ok(_) => return Ok(()),
                Err(problem) => problem,
            },
        };
        match is_behind() {
            true => Err(script::send_error(problem, Operation::Acquiring)),
            false => Ok(()),
        }
    }
}

/// How long a caller is ready to wait.
#[derive(Debug, Clone, Copy)]
#[allow(unnameable_types, unreachable_pub)]
pub enum Wait {
    /// One attempt, which ends then if not before. Without a limit it ends as a command does.
    Never(Option<Instant>),
    Until(Instant),
    Forever,
    /// A long wait is nothing to warn of, and an outage ends it as little as a holder does.
    Standby,
}

impl Wait {
    /// A wait has a deadline however long it is: attempts that fail are repeated until then. It is cut long
    /// before the end of the clock's range, where timers cannot be made any more.
    pub(crate) fn of(wait: Duration) -> Self {
        let now = Instant::now();
        match wait {
            Duration::ZERO => Self::Never(Some(now + SHORTEST_ANSWER)),
            wait => Self::Until(now + wait.min(LEASE_MAX)),
        }
    }

    /// The wait that ends at this deadline. One that has passed is a wait of zero.
    pub(crate) fn by(deadline: std::time::Instant) -> Self {
        let deadline = Instant::from_std(deadline);
        Self::of(deadline.saturating_duration_since(Instant::now()))
    }

    pub(crate) fn deadline(self) -> Option<Instant> {
        match self {
            Self::Until(deadline) => Some(deadline),
            Self::Never(limit) => limit,
            Self::Forever | Self::Standby => None,
        }
    }

    /// Until when a call that was begun at that time waits for answers: one with a short wait makes an attempt too, as
    /// Redisson does.
    pub(crate) fn answered_by(self, begun: Instant) -> Option<Instant> {
        match self {
            Self::Until(deadline) => Some(deadline.max(begun + SHORTEST_ANSWER)),
            wait => wait.deadline(),
        }
    }

    pub(super) fn order(self) -> Order {
        match self {
            Self::Never(_) => Order::Immediate,
            Self::Until(_) | Self::Forever | Self::Standby => Order::Queued,
        }
    }
}

/// For how long from now on a call needs its owner's place: until its deadline at most.
pub(super) fn needed(permit: &Permit, deadline: Option<Instant>) -> Duration {
    let left = deadline.map(|limit| limit.saturating_duration_since(Instant::now()));
    let needed = left.map_or(permit.terms.wait, |left| left.min(permit.terms.wait));
    needed.max(Duration::from_millis(1))
}

/// Whether a call whose attempt has failed makes another one.
pub(crate) struct Retries {
    wait: Wait,
    retry_for: Option<Duration>,
    /// When the first of the attempts that failed one after the other did.
    since: Option<Instant>,
    backoff: Option<Backoff>,
    /// How the latest attempt failed.
    failure: Option<Error>,
    /// And when it did.
    pub(super) failed_at: Option<Instant>,
}

impl Retries {
    /// On the heap: nearly no call needs it.
    pub(crate) fn new(wait: Wait, retry_for: Option<Duration>) -> Box<Self> {
        Box::new(Self {
            wait,
            retry_for,
            since: None,
            backoff: None,
            failure: None,
            failed_at: None,
        })
    }

    /// The server is there: a failure after this is the first of another outage.
    pub(crate) fn answered(&mut self) {
        (self.since, self.backoff, self.failure) = (None, None, None);
    }

    /// How the latest attempt failed, if the next one had no time to end.
    pub(crate) fn take_failure(&mut self) -> Option<Error> {
        self.failure.take()
    }

    /// Pauses; or hands the error back, if it does not pass or there is no time left.
    pub(crate) async fn again(&mut self, shared: &Shared, error: Error) -> Result<(), Error> {
        let now = Instant::now();
        let limit = match (self.wait, self.retry_for) {
            (Wait::Standby, _) => None,
            (Wait::Until(deadline), _) => Some(deadline),
            (Wait::Forever, Some(retry_for)) => {
                self.since.get_or_insert(now).checked_add(retry_for)
            }
            (Wait::Never(_), _) | (Wait::Forever, None) => return Err(error),
        };
        let left = limit.map_or(Duration::MAX, |limit| limit.saturating_duration_since(now));
        if !error.is_retryable() || left < SHORTEST_RETRY {
            return Err(error);
        }
        self.failure = Some(error);
        let backoff = self.backoff.get_or_insert_with(|| shared.redis.backoff());
        // At most half of the time that is left, so that there is some for the last attempt. At a fair lock a call has
        // two command timeouts in which to ask once its turn is announced, the pause included.
        let most = shared.command_timeout().min(left / 2);
        let _ = tokio::time::timeout(most, backoff.wait()).await;
        Ok(())
    }
}

/// With less time left no other attempt is made.
const SHORTEST_RETRY: Duration = Duration::from_millis(20);

/// The cause of an error when a call's time was over before an answer came.
pub(crate) const NOT_IN_TIME: &str = "no answer before the call's deadline";

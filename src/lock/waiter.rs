//! A waiting call: for its permit, in the queue of its lock, and between failed attempts.

use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redisson_lock_core::{Claimed, Order, OwnerKey, Permit, Rejected, Terms, WaiterId};
use tokio::time::Instant;

use crate::base::backoff::Backoff;
use crate::base::runtime::{event, sleep_until};
use crate::error::{Error, Operation};
use crate::names::try_lock::TryLock;
use crate::redis::SendError;
use crate::script;
use crate::state::bounds::LEASE_MAX;
use crate::state::entry::{CallEnd, CallFinds, Entry, WaitingCall};
use crate::state::hold_status::HoldStatus;
use crate::state::shared::Shared;

/// A call that wants the lock; it leaves the queue when it is dropped.
pub(super) struct Waiter {
    entry: Arc<Entry>,
    id: WaiterId,
    call: Arc<WaitingCall>,
    /// Since when its call waits. `None`: nothing is logged, or nothing more, however long that is.
    warns_since: Option<Instant>,
    /// Nothing but the lock ends its wait, unless the server does not answer.
    has_no_end: bool,
}

impl Waiter {
    pub(super) fn new(
        entry: &Arc<Entry>,
        call: &Arc<WaitingCall>,
        terms: Terms,
        (warns_since, has_no_end): (Option<Instant>, bool),
    ) -> Self {
        Self {
            entry: Arc::clone(entry),
            id: entry.register(call, terms),
            call: Arc::clone(call),
            warns_since,
            has_no_end,
        }
    }

    /// One that does not ask for the lock: it is to be handed over to it.
    pub(super) fn receiver(entry: &Arc<Entry>, call: &Arc<WaitingCall>, terms: Terms) -> Self {
        Self {
            entry: Arc::clone(entry),
            id: entry.register_place(call, terms),
            call: Arc::clone(call),
            warns_since: None,
            has_no_end: false,
        }
    }

    pub(super) fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    pub(super) fn id(&self) -> WaiterId {
        self.id
    }

    /// Makes another attempt, at the place that it has kept.
    pub(super) fn ask_again(&self) {
        self.entry.ask_again(self.id);
    }

    fn poll(&self, is_woken: bool) -> Result<CallFinds, Error> {
        let finds = self.entry.poll((self.id, &self.call), is_woken);
        finds.map_err(|rejected| rejection(&self.entry, self.call.key(), rejected))
    }

    /// What is handed over to it. `None`: nothing is.
    pub(super) async fn received(&self) -> Result<Option<Won>, Error> {
        let mut is_woken = false;
        loop {
            match self.poll(is_woken)? {
                CallFinds::Hold(claimed, status) => return Ok(Some((claimed, status))),
                CallFinds::Ended(_) | CallFinds::Nothing { is_asking: false } => return Ok(None),
                CallFinds::Nothing { is_asking: true } => self.call.notify.notified().await,
            }
            is_woken = true;
        }
    }

    /// Waits until the lock is granted to this call, or it is over.
    pub(super) async fn next(&mut self) -> Result<Next, Error> {
        let (mut looks_at, mut look) = (None, None);
        let mut is_woken = false;
        loop {
            let finds = self.poll(std::mem::replace(&mut is_woken, true))?;
            match finds {
                CallFinds::Hold(claimed, status) => return Ok(Next::Hold((claimed, status))),
                CallFinds::Ended(end) => return self.ended(end).await,
                // Its answer has a limit, which its connection keeps.
                CallFinds::Nothing { is_asking: true } => {
                    self.call.notify.notified().await;
                    continue;
                }
                CallFinds::Nothing { is_asking: false } => {}
            }
            if is_over(looks_at) {
                let answers = look.get_or_insert_with(|| self.look());
                tokio::select! {
                    biased;
                    () = self.call.notify.notified() => continue,
                    answers = answers.as_mut() => answers?,
                }
                (looks_at, look) = (None, None);
                continue;
            }
            looks_at = looks_at.or_else(|| self.has_no_end.then(|| self.next_look()));
            self.notified(looks_at).await;
        }
    }

    async fn ended(&self, end: CallEnd) -> Result<Next, Error> {
        match end {
            CallEnd::Busy => Ok(Next::Busy),
            // A caller that polls without a pause waits for no reply here, and would keep its thread to itself.
            CallEnd::Queued => {
                tokio::task::yield_now().await;
                Ok(Next::NotInTime)
            }
            CallEnd::Rejected(Rejected::NotInTime) => Ok(Next::NotInTime),
            CallEnd::Rejected(rejected) => Err(rejection(&self.entry, self.call.key(), rejected)),
            CallEnd::Failed(error) => Err(error),
        }
    }

    /// Whether the server answers.
    fn look(&self) -> Pin<Box<impl Future<Output = Result<(), Error>> + Send + use<>>> {
        let (entry, owner) = (Arc::clone(&self.entry), self.call.key());
        Box::pin(async move { entry.server_answers(owner).await })
    }

    fn next_look(&self) -> Instant {
        Instant::now() + self.entry.shared().command_timeout()
    }

    /// Not acquired in time: what the latest attempt found, if there was one.
    pub(super) fn busy<G>(&self) -> TryLock<G> {
        let found = self.call.attempts(|attempts| {
            let found = attempts.found.take();
            found.filter(|_| !attempts.found_free)
        });
        let holder = found.map(|found| *found);
        TryLock::Busy { holder }
    }

    /// Waits until it is woken, or the limit is reached.
    async fn notified(&mut self, limit: Option<Instant>) {
        let had_timer = self
            .call
            .attempts(|attempts| std::mem::replace(&mut attempts.has_timer, true));
        if !had_timer {
            event!(TRACE, "queued in this client");
        }
        let long = self.entry.shared().watchdog_timeout();
        let long = self.warns_since.map(|since| since + long);
        tokio::select! {
            biased;
            () = self.call.notify.notified() => {}
            () = sleep_until(limit.into_iter().chain(long).min()) => self.warn_long_wait(),
        }
    }

    /// Logs once that this call has been waiting for long.
    fn warn_long_wait(&mut self) {
        let waited = self.warns_since.map(|since| since.elapsed());
        let long = self.entry.shared().watchdog_timeout();
        let Some(waited) = waited.filter(|waited| *waited >= long) else {
            return;
        };
        self.warns_since = None;
        let lock = self.entry.name.given();
        let (found, is_free) = self
            .call
            .attempts(|attempts| (attempts.found.clone(), attempts.found_free));
        let found = found.as_deref();
        let holder = found.map_or("another caller of this client", |found| &found.owner);
        let left = found.and_then(|found| found.lease_left);
        if is_free {
            event!(WARN, %lock, owner = %self.call.owner, ?waited, next_in_queue = holder, place_left = ?left, "waiting long for the next in the queue of a fair lock");
        } else {
            event!(WARN, %lock, owner = %self.call.owner, ?waited, holder, lease_left = ?left, "waiting long for a lock");
        }
    }
}

fn is_over(limit: Option<Instant>) -> bool {
    limit.is_some_and(|limit| limit <= Instant::now())
}

/// A hold that a call has claimed.
pub(super) type Won = (Claimed, Arc<HoldStatus>);

/// What a waiter has come to.
pub(super) enum Next {
    Hold(Won),
    /// The server has said that another owner has the lock, and the call does not wait.
    Busy,
    /// It does not wait, or no longer.
    NotInTime,
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.entry.leave(self.id);
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
        Rejected::NoAnswer => {
            let text = "an earlier operation of this owner on this lock has no answer yet";
            entry.route().no_answer(Operation::Acquiring, text)
        }
        Rejected::Unconfirmed => entry.not_subscribed(owner),
        // Its caller says so in another way.
        Rejected::NotInTime => entry.route().no_answer(Operation::Acquiring, NOT_IN_TIME),
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

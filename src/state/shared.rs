//! What all handles of one client share, below its locks; and what a hold and its guard share.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio_util::sync::CancellationToken;

use crate::base::runtime::{Clock, Lately, Runtime};
use crate::core::{Counts, Ending, HoldId, Life, LossReason, Rules, Time, Token, Total};
use crate::error::{Error, shorten};
use crate::kind::LockKind;
use crate::names::wire::LockName;
use crate::redis::channels::wait::Channels;
use crate::redis::{REPLICAS_MAX, Redis, SyncReplicas, slot_of};
use crate::script::RetryPolicy;

pub(crate) struct Shared {
    pub(crate) client_id: Arc<str>,
    pub(crate) config: Config,
    pub(crate) clock: Clock,
    /// The runtime that the client was made on: its connections, timers and background work live
    /// there.
    pub(crate) runtime: Runtime,
    pub(crate) redis: Redis,
    pub(crate) channels: Channels,
    pub(crate) totals: Totals,
    pub(crate) tally: Tally,
    /// The user of the connection lacks a permission that a pass needs and a release does not.
    pub(crate) cannot_pass: AtomicBool,
    pub(crate) lately: Lately,
    life: AtomicU8,
    /// Cancelled when the client's tasks are gone, by closing or with their runtime.
    pub(crate) gone: CancellationToken,
    /// Read while a call is polled. With the runtime its timers end, and a timer that is polled then panics.
    polled: RwLock<()>,
}

/// The settings that locks look at.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) key_prefix: Arc<str>,
    pub(crate) rules: Arc<Rules>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) retry_for: Option<Duration>,
    pub(crate) replicas: Option<SyncReplicas>,
}

impl Shared {
    pub(crate) fn new(client_id: Arc<str>, config: Config, runtime: Runtime, redis: Redis) -> Self {
        Self {
            client_id,
            config,
            clock: Clock::start(),
            runtime,
            channels: Channels::new(redis.announce()),
            redis,
            totals: Totals::default(),
            tally: Tally::default(),
            cannot_pass: AtomicBool::new(false),
            lately: Lately::default(),
            life: AtomicU8::new(Life::Open as u8),
            gone: CancellationToken::new(),
            polled: RwLock::new(()),
        }
    }

    /// Runs a future of this crate in the client's runtime, wherever the caller polls it from.
    ///
    /// Timers bind to the runtime they are made in; the caller's may have none, or may not be
    /// tokio's. The future stays where the caller pinned it, because moving it in here would store
    /// it twice. It waits while nothing drives the client's runtime.
    pub(crate) async fn on_client_runtime<T, F>(&self, mut future: Pin<&mut F>) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        Handle::try_current().map_err(|_| Error::NoRuntime)?;
        std::future::poll_fn(|context| {
            // A timer of a runtime that has ended must not be polled.
            let _polled = self.polled.read_recursive();
            match (self.gone.is_cancelled(), self.is_closed()) {
                (true, false) => return Poll::Ready(Err(Error::NoRuntime)),
                // What had its outcome before the end still returns it.
                (true, true) if self.runtime.has_ended() => return Poll::Ready(Err(Error::Closed)),
                _ => {}
            }
            let _entered = self.runtime.enter();
            future.as_mut().poll(context)
        })
        .await
    }

    /// The name of a lock, if it is a good one here.
    pub(crate) fn lock_name(&self, kind: LockKind, given: &str) -> Result<LockName, Error> {
        let name = LockName::new(kind, &self.config.key_prefix, given)?;
        let is_elsewhere = |other: &str| slot_of(other) != slot_of(name.key());
        if self.redis.is_cluster()
            && (kind.announces() && is_elsewhere(&name.channel_text())
                || name.token().is_some_and(|token| is_elsewhere(token)))
        {
            return Err(Error::InvalidName {
                name: shorten(given),
                problem: "in a cluster its key and its unlock channel would be in different slots; use braces in pairs \
                          with a text inside, or none",
            });
        }
        Ok(name)
    }

    /// The client's tasks end, maybe with their runtime. Waits until no call is polled that does not know it, unless
    /// that poll is what has ended the runtime.
    pub(crate) fn gone(&self) {
        self.gone.cancel();
        drop(self.polled.try_write_for(POLL_MAX));
    }

    pub(crate) fn life(&self) -> Life {
        match self.life.load(Ordering::Acquire) {
            0 => Life::Open,
            1 => Life::Closing,
            2 => Life::Gone,
            _ => Life::Closed,
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.life() == Life::Closed
    }

    /// The client's life only goes forward.
    pub(crate) fn set_life(&self, life: Life) {
        self.life.fetch_max(life as u8, Ordering::AcqRel);
    }

    pub(crate) fn command_timeout(&self) -> Duration {
        self.config.rules.command_timeout
    }

    pub(crate) fn watchdog_timeout(&self) -> Duration {
        self.config.rules.watchdog_timeout
    }

    /// One re-send within the command timeout.
    pub(crate) fn retry(&self) -> RetryPolicy {
        RetryPolicy {
            timeout: self.command_timeout(),
            sends: 2,
        }
    }

    /// Nothing but the first send.
    pub(crate) fn no_retry(&self) -> RetryPolicy {
        RetryPolicy {
            timeout: self.command_timeout(),
            sends: 1,
        }
    }
}

/// The sum over all locks of a client. It is written where a lock changes, under that lock's mutex,
/// so that no caller has to count, and `close` misses nothing.
#[derive(Default)]
pub(crate) struct Tally {
    sum: Mutex<Sum>,
    progress: Notify,
}

#[derive(Default)]
struct Sum {
    counts: Counts,
    /// Release jobs that have begun so far, and acquires and releases that have ended.
    moves: u64,
}

impl Tally {
    pub(crate) fn counts(&self) -> Counts {
        self.sum.lock().counts
    }

    /// Release jobs that have begun so far, and acquires and releases that have ended: whether it grows
    /// tells slow from stuck.
    pub(crate) fn moves(&self) -> u64 {
        self.sum.lock().moves
    }

    /// A release job runs for the first time. Thousands of them that are spawned together keep the
    /// runtime busy before the first of their sends is answered.
    pub(crate) fn job_begins(&self) {
        self.sum.lock().moves += 1;
    }

    /// Ready when something has become less after this call.
    pub(crate) fn progress(&self) -> Notified<'_> {
        self.progress.notified()
    }

    /// Replaces the part of one lock. Answers whether something has become less, for
    /// [`announce`](Self::announce).
    pub(crate) fn change(&self, before: Counts, after: Counts) -> bool {
        let Sum { counts, moves } = &mut *self.sum.lock();
        counts.replace(before, after);
        let acquires = before.acquiring.saturating_sub(after.acquiring);
        let releases = before.releasing.saturating_sub(after.releasing);
        *moves += u64::from(acquires + releases);
        acquires + releases > 0 || after.guarded < before.guarded
    }

    /// Wakes those who wait until something has become less, when the lock's mutex is free.
    pub(crate) fn announce(&self) {
        self.progress.notify_waiters();
    }
}

/// Running totals for [`ClientStats`](crate::ClientStats).
#[derive(Debug, Default)]
pub(crate) struct Totals([AtomicU64; Total::COUNT]);

impl Totals {
    pub(crate) fn count(&self, total: Total, amount: u64) {
        self.0[total as usize].fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn of(&self, total: Total) -> u64 {
        self.0[total as usize].load(Ordering::Relaxed)
    }
}

/// Whether these are a watchdog timeout and a command timeout that go together.
pub(crate) fn check_timeouts(watchdog: Duration, command: Duration) -> Result<(), Error> {
    let (what, given, problem) = if !(WATCHDOG_MIN..=WATCHDOG_MAX).contains(&watchdog) {
        let problem = "it must be at least 300 milliseconds and at most one day";
        ("watchdog_timeout", watchdog, problem)
    } else if command.is_zero() || command >= watchdog / 3 {
        let problem = "it must be above zero and below a third of the watchdog timeout";
        ("command_timeout", command, problem)
    } else {
        return Ok(());
    };
    Err(Error::InvalidDuration {
        what,
        given,
        problem,
    })
}

/// How long the end of a runtime waits for a poll.
const POLL_MAX: Duration = Duration::from_millis(500);

const WATCHDOG_MIN: Duration = Duration::from_millis(300);
const WATCHDOG_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Whether `sync_replicas` takes this number and time.
pub(crate) fn check_replicas(wanted: SyncReplicas, command_timeout: Duration) -> Result<(), Error> {
    let SyncReplicas { replicas, within } = wanted;
    if !(1..=REPLICAS_MAX).contains(&replicas) {
        return Err(Error::InvalidConfig {
            what: "sync_replicas",
            problem: format!("{replicas} is not between 1 and {REPLICAS_MAX}"),
        });
    }
    if !(LEASE_MIN..=command_timeout).contains(&within) {
        return Err(Error::InvalidDuration {
            what: "sync_replicas timeout",
            given: within,
            problem: "it must be at least 10 milliseconds and at most the command timeout",
        });
    }
    Ok(())
}

/// Whether a lease, or a limit, is one that Redis and two clocks can keep.
pub(crate) fn check_lease(what: &'static str, given: Duration) -> Result<(), Error> {
    if (LEASE_MIN..=LEASE_MAX).contains(&given) {
        return Ok(());
    }
    let problem = "it must be at least 10 milliseconds and at most ten years";
    Err(Error::InvalidDuration {
        what,
        given,
        problem,
    })
}

/// Whether the id of a guarded write can be kept for this time: as long as copies of the call are sent, at least.
pub(crate) fn check_keep(given: Duration, command_timeout: Duration) -> Result<(), Error> {
    match (command_timeout * 2..=LEASE_MAX).contains(&given) {
        true => Ok(()),
        false => Err(Error::InvalidDuration {
            what: "keep",
            given,
            problem: "it must be at least two command timeouts and at most ten years",
        }),
    }
}

const LEASE_MIN: Duration = Duration::from_millis(10);

/// Far from the end of the clock's range, where timers cannot be made any more.
pub(crate) const LEASE_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// A hold that was just taken.
pub(crate) type Taken = (HoldId, Arc<HoldStatus>);

/// How many holds were lost.
static LOSSES: AtomicU32 = AtomicU32::new(0);

/// What a hold and its guard share: whether and how the hold has ended. It ends once.
#[derive(Debug, Default)]
pub(crate) struct HoldStatus {
    token: Option<Token>,
    end: Mutex<End>,
}

#[derive(Debug, Default)]
struct End {
    ending: Option<Ending>,
    /// Of a hold that its owner does not have any more.
    valid_until: Option<Time>,
    /// Of a loss: its number among those of the process. Smaller than the time.
    nth: u32,
    /// Made for the first who waits for the end: hardly any call does.
    reported: Option<CancellationToken>,
}

impl HoldStatus {
    pub(crate) fn new(token: Option<Token>) -> Self {
        Self {
            token,
            ..Self::default()
        }
    }

    /// What its fenced lock has given to the hold.
    pub(crate) fn token(&self) -> Option<Token> {
        self.token
    }

    pub(crate) fn ending(&self) -> Option<Ending> {
        self.end.lock().ending
    }

    /// Until when it was valid, once its owner does not have it any more: an instant that has passed.
    pub(crate) fn valid_until(&self) -> Time {
        self.end.lock().valid_until.unwrap_or(Time::START)
    }

    /// Why it was lost, and the number of that loss: one that was seen later has a larger one.
    pub(crate) fn loss(&self) -> Option<(LossReason, u32)> {
        let end = self.end.lock();
        match end.ending {
            Some(Ending::Lost(reason)) => Some((reason, end.nth)),
            Some(Ending::Released) | None => None,
        }
    }

    /// Cancelled after the hold has ended, in whichever way.
    pub(crate) fn ended(&self) -> CancellationToken {
        let mut end = self.end.lock();
        let reported = end.reported.get_or_insert_default().clone();
        let has_ended = end.ending.is_some();
        drop(end);
        if has_ended {
            reported.cancel();
        }
        reported
    }

    pub(crate) fn set_valid_until(&self, valid_until: Time) {
        self.end.lock().valid_until = Some(valid_until);
    }

    /// Writes down how it ended. It wakes no task: it is done under the mutex of the lock.
    pub(crate) fn set_ending(&self, ending: Ending) {
        let mut end = self.end.lock();
        debug_assert!(end.ending.is_none(), "I5: a hold ends once");
        if end.ending.is_none() {
            end.ending = Some(ending);
            if matches!(ending, Ending::Lost(_)) {
                end.nth = LOSSES.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Wakes those who wait for the end, when the mutexes are free.
    pub(crate) fn wake(&self) {
        let reported = self.end.lock().reported.clone();
        if let Some(reported) = reported {
            reported.cancel();
        }
    }
}

//! The release protocol: unlocks whose callers wait, and the background jobs that go on when nobody
//! does.
//!
//! Both run the same script, and each of their sends goes to the count of its moment: a later release
//! is never undone by a late one, and whatever happened before is included. At most one job works for
//! an owner and lock. It ends when Redis has confirmed the count, or when the lease is over and has
//! done the work.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;

use crate::core::{
    Ending, HoldId, JobStep, LossReason, NoReply, OpId, ReleaseAnswer, ReleaseSend, ThreadId,
    Total, Unlock,
};
use crate::entry::{Entry, UnlockStart};
use crate::error::{Error, Operation};
use crate::redis::Bulk;
use crate::runtime::event;
use crate::script::{self, Answer, CallError, Released, RetryPolicy};
use crate::shared::HoldStatus;
use crate::shared::Shared;

/// A hold as those see it who can end it. Dropped while it is open, it has the hold released in the
/// background.
pub(crate) struct OpenHold {
    entry: Arc<Entry>,
    owner: ThreadId,
    hold: HoldId,
    open: bool,
}

impl Drop for OpenHold {
    fn drop(&mut self) {
        if self.open {
            let (owner, hold) = (self.owner, self.hold);
            self.entry
                .step(|core, now, out| core.drop_hold(now, owner, hold, out));
        }
    }
}

impl OpenHold {
    pub(crate) fn new(entry: Arc<Entry>, owner: ThreadId, hold: HoldId) -> Self {
        Self {
            entry,
            owner,
            hold,
            open: true,
        }
    }

    /// Leaves the hold to an unlock without a guard.
    pub(crate) fn detach(mut self) {
        self.open = false;
        let (owner, hold) = (self.owner, self.hold);
        self.entry
            .step(|core, now, out| core.detach(now, owner, hold, out));
    }

    /// Releases the hold. From the moment when it is out of the books, dropping the future leaves
    /// the rest to a job; before, it drops the hold.
    pub(crate) async fn unlock(mut self, status: Option<Arc<HoldStatus>>) -> Result<(), Error> {
        let entry = Arc::clone(&self.entry);
        let start = entry.shared().clock.now();
        let unlock = loop {
            if entry.shared().is_closed()
                && status
                    .as_ref()
                    .is_some_and(|status| status.ending().is_none())
            {
                return Err(Error::Closed);
            }
            match entry.unlock_or_wait(self.owner, self.hold) {
                Ok(UnlockStart::Send(unlock)) => break unlock,
                Ok(UnlockStart::NotHeld) => {
                    self.open = false;
                    return Err(match status.and_then(|status| status.ending()) {
                        Some(Ending::Lost(reason)) => Error::lost(entry.name.given(), reason),
                        Some(Ending::Released) | None => Error::not_held(
                            entry.name.given(),
                            &entry.shared().client_id,
                            self.owner.0,
                        ),
                    });
                }
                // A nested acquire is under way. Its caller may have stopped polling it, so it is not
                // waited for longer than for a command: the hold is then dropped, and a job goes on
                // when that call ends.
                Ok(UnlockStart::Wait { since, acquire }) => {
                    let limit = since.max(start) + entry.shared().command_timeout();
                    let limit = entry.shared().clock.instant(limit);
                    if tokio::time::timeout_at(limit, acquire).await.is_err() {
                        let text = "an acquire by the same owner is still in flight; is its future being polled?";
                        return Err(entry.route().no_answer(Operation::Unlocking, text));
                    }
                }
                Err(reason) => {
                    self.open = false;
                    return Err(Error::lost(entry.name.given(), reason));
                }
            }
        };
        self.open = false;
        OpenUnlock {
            entry,
            unlock,
            open: true,
        }
        .send()
        .await
    }
}

/// An unlock that is under way. Dropped before it is answered, it leaves the rest to a job.
struct OpenUnlock {
    entry: Arc<Entry>,
    unlock: Unlock,
    open: bool,
}

impl OpenUnlock {
    async fn send(mut self) -> Result<(), Error> {
        let entry = Arc::clone(&self.entry);
        let (owner, field) = (self.unlock.owner, Arc::clone(&self.unlock.field));
        let (op, retry) = (self.unlock.op, entry.shared().retry());
        let doing = Operation::Unlocking;
        let sending = pin!(send(&entry, (owner, op), &field, doing, retry));
        let Some(answer) = self.unless_taken_over(sending).await else {
            let text = "no answer within the command timeout, or its future was not polled for that long; a background task continues the release";
            return Err(entry.route().no_answer(doing, text));
        };
        let lost = |reason| Error::lost(entry.name.given(), reason);
        let CallError {
            error,
            maybe_executed,
        } = match answer {
            Ok(answer) => {
                self.open = false;
                let unlock = &self.unlock;
                return entry
                    .step(|core, now, out| core.unlocked(now, unlock, answer, out))
                    .map_err(lost);
            }
            Err(error) => error,
        };
        let hopeless = matches!(error, Error::PermissionDenied { .. });
        self.unanswered(if hopeless && !maybe_executed {
            NoReply::GiveUp
        } else {
            NoReply::GoOn
        });
        Err(error)
    }

    /// Polls `future`, but not any more when a job has taken this unlock over: a send would not be in
    /// order with the job's. `None`: it was taken over.
    async fn unless_taken_over<F: Future>(&self, mut future: Pin<&mut F>) -> Option<F::Output> {
        std::future::poll_fn(|context| {
            if self.entry.peek(|core| core.is_taken_over(&self.unlock)) {
                return Poll::Ready(None);
            }
            future.as_mut().poll(context).map(Some)
        })
        .await
    }

    fn unanswered(&mut self, then: NoReply) {
        if std::mem::take(&mut self.open) {
            let unlock = &self.unlock;
            self.entry
                .step(|core, now, out| core.not_unlocked(now, unlock, then, out));
        }
    }
}

impl Drop for OpenUnlock {
    fn drop(&mut self) {
        // Cancel safety: whatever was sent so far, a job brings the count to what is left.
        self.unanswered(NoReply::GoOn);
    }
}

/// Runs `release.lua` for one release of an owner, each send with the count of its moment; or
/// `pass.lua`, if another caller of this client gets the lock. A pass that is refused has moved nothing,
/// and becomes the release that it replaced, in the time that is left.
async fn send(
    entry: &Arc<Entry>,
    (owner, op): (ThreadId, OpId),
    field: &Arc<str>,
    doing: Operation,
    retry: RetryPolicy,
) -> Result<ReleaseAnswer, CallError> {
    let (route, shared) = (entry.route(), entry.shared());
    let announce = shared.redis.announce();
    let limit = Instant::now() + retry.timeout;
    let (mut may_pass, mut denied) = (true, None::<String>);
    loop {
        let timeout = limit.saturating_duration_since(Instant::now());
        let retry = RetryPolicy { timeout, ..retry };
        let (mut target, mut passes, mut built) = (0, false, false);
        let call = || {
            let safe = route.is_fenced() && !shared.cannot_pass.load(Ordering::Relaxed);
            let may_pass = may_pass && safe;
            let said =
                entry.step(|core, now, out| core.release_sent(now, owner, op, may_pass, out))?;
            (passes, built) = (matches!(said, ReleaseSend::Pass { .. }), true);
            Some(match said {
                ReleaseSend::Count {
                    target: count,
                    lease,
                } => {
                    target = count;
                    script::release(&entry.name, field, count, lease, announce)
                }
                ReleaseSend::Pass { to, lease } => {
                    script::pass(&entry.name, field, &to, lease, announce)
                }
            })
        };
        let error = match script::call(route, doing, retry, call).await {
            Ok(answer) => {
                if let Some(permission) = denied {
                    never_passes_again(shared, &permission);
                }
                return Ok(release_answer(entry, target, passes, &answer));
            }
            Err(error) => error,
        };
        if matches!(error.error, Error::NotALock { .. }) {
            // The key is not even a hash.
            let now = shared.clock.now();
            return Ok(ReleaseAnswer {
                target,
                gone: Some(LossReason::Changed),
                first_sent_at: now,
                sent_at: now,
                others_listen: false,
            });
        }
        if error.maybe_executed {
            return Err(error);
        }
        // What was never built has nothing to be undone, and is none of the sends that were.
        if built {
            entry.step(|core, now, out| core.release_not_executed(now, owner, op, target, out));
        }
        match &error.error {
            Error::PermissionDenied { permission, .. } if passes => {
                denied = Some(permission.clone());
            }
            Error::Refused { .. } | Error::UnexpectedReply { .. } if passes => {}
            _ => return Err(error),
        }
        may_pass = false;
    }
}

/// A pass lacks a permission, and the release behind it did not: that will be so each time.
fn never_passes_again(shared: &Shared, permission: &str) {
    if !shared.cannot_pass.swap(true, Ordering::Relaxed) {
        event!(WARN, %permission, "locks are not handed over inside this client any more: the permission is missing");
    }
}

fn release_answer(
    entry: &Entry,
    target: u32,
    passes: bool,
    answer: &Answer<Released>,
) -> ReleaseAnswer {
    let (shared, channel) = (entry.shared(), entry.name.channel());
    let (gone, receivers) = match answer.value {
        Released::Done { receivers } => (None, receivers),
        Released::Gone => (Some(LossReason::Gone), 0),
        Released::Taken => (Some(LossReason::Taken), 0),
        Released::NotALock => (Some(LossReason::Changed), 0),
    };
    // The registry of channels is asked only if somebody listens. Of a cluster the server that answers does
    // not know who listens at the others.
    let others_listen =
        || shared.redis.is_cluster() || receivers > shared.channels.own_listeners(channel);
    ReleaseAnswer {
        target,
        gone,
        first_sent_at: shared.clock.time(answer.first_sent_at),
        sent_at: shared.clock.time(answer.sent_at),
        others_listen: !passes && (receivers > 0 || shared.redis.is_cluster()) && others_listen(),
    }
}

/// Spawns the release job of an owner. If the runtime is gone, so is the job: the lease frees the
/// lock.
pub(crate) fn start_job(entry: Arc<Entry>, owner: ThreadId, id: OpId) {
    let runtime = entry.shared().runtime.clone();
    runtime.spawn(
        ReleaseJob {
            entry,
            owner,
            id,
            open: true,
        }
        .run(),
    );
}

/// A release job. Dropped with its runtime, or before it could be spawned, it says so to the core.
struct ReleaseJob {
    entry: Arc<Entry>,
    owner: ThreadId,
    id: OpId,
    open: bool,
}

impl ReleaseJob {
    async fn run(mut self) {
        let shared = Arc::clone(self.entry.shared());
        shared.tally.job_begins();
        let mut pause = PAUSE_MIN;
        // Why it is not done yet: a send that failed, or no place for one.
        let (mut failed, mut no_place) = (None, None);
        loop {
            let (owner, id) = (self.owner, self.id);
            let step = self
                .entry
                .step(|core, now, out| core.job_step(now, owner, id, out));
            let JobStep::Send { field, give_up_at } = step else {
                self.open = false;
                return;
            };
            // Read each time: an unlock that has joined moves it.
            let give_up_at = shared.clock.instant(give_up_at);
            let error: Option<&Error> = failed.as_ref().or(no_place.as_ref());
            if let Some(error) = error.filter(|_| Instant::now() >= give_up_at) {
                return self.give_up(&field, error);
            }
            let (route, doing) = (self.entry.route(), Operation::Releasing);
            let permit = route.bulk(Bulk::Releases);
            let Ok(permit) = tokio::time::timeout_at(give_up_at, permit).await else {
                no_place = Some(route.no_answer(doing, "earlier releases have no answer yet"));
                continue;
            };
            let retry = shared.no_retry();
            let answer = send(&self.entry, (owner, id), &field, doing, retry).await;
            drop(permit);
            let error = match answer {
                Ok(answer) => {
                    self.entry
                        .step(|core, now, out| core.job_answered(now, owner, id, answer, out));
                    if failed.take().is_some() {
                        self.reconciled(&field, answer.target);
                    }
                    continue;
                }
                Err(CallError { error, .. }) => error,
            };
            if error.is_final() {
                return self.give_up(&field, &error);
            }
            failed = Some(error);
            let left = give_up_at.saturating_duration_since(Instant::now());
            tokio::time::sleep(pause.min(left)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn reconciled(&self, field: &str, count: u32) {
        self.entry.shared().totals.count(Total::Reconciled, 1);
        let lock = self.entry.name.given();
        event!(INFO, %lock, owner = %field, count, "outcome reconciled");
    }

    fn give_up(self, field: &str, error: &Error) {
        let lock = Arc::clone(self.entry.name.given());
        // The core first: it does not wait for a subscriber.
        drop(self);
        event!(WARN, %lock, owner = %field, %error, "background release failed: the lease frees the lock");
    }
}

impl Drop for ReleaseJob {
    fn drop(&mut self) {
        if self.open {
            let (owner, id) = (self.owner, self.id);
            self.entry
                .step(|core, now, out| core.job_gone(now, owner, id, out));
        }
    }
}

const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

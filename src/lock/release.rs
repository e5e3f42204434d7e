//! The release protocol: unlocks that wait for an outcome, and the one job that sends a release.
//!
//! Each attempt sets the hold count of its moment, so a delayed one never rolls back a later release, and includes
//! whatever happened before. The first enters its connection in the step that begins the release, and the task that reads
//! the reply completes it (`release/entered.rs`). Only what is left then takes a job. The job ends when Redis has
//! confirmed the count or refused it permanently, or when the lease has expired and freed the lock. It does not end while an
//! attempt may still be executed, as by a server that hangs and then continues. Nothing needs the caller to be polled.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::oneshot::error::RecvError;
use tokio::time::Instant;

mod entered;

use super::leave::leave;
use crate::base::runtime::event;
use crate::core::{
    Ending, Face, HoldId, LossReason, OpId, OwnerKey, ReleaseAnswer, ReleaseSend, ReleaseStep,
    Time, Total, WaiterId,
};
use crate::error::{Error, Operation};
use crate::redis::{BackgroundClass, Call, Carrier, Route};
use crate::script::{self, CallError, Released, RetryPolicy, ScriptAnswer, SendOutcome};
use crate::state::entry::{BegunUnlock, Entry, Outcome, Releases, Settled};
use crate::state::hold_status::HoldStatus;
use crate::state::shared::Shared;

/// A hold as those see it who can end it. Dropped while it is open, it has the hold released in the
/// background.
pub(crate) struct OpenHold {
    entry: Arc<Entry>,
    owner: OwnerKey,
    hold: HoldId,
    open: bool,
}

impl Drop for OpenHold {
    fn drop(&mut self) {
        if self.open {
            let (owner, hold) = (self.owner, self.hold);
            let was_held = self
                .entry
                .step(|core, now, out| core.drop_hold(now, owner, hold, out));
            if was_held {
                let (lock, client) = (self.entry.name.given(), &self.entry.shared().client_id);
                let owner = format_args!("{client}:{}", owner.thread.0);
                event!(DEBUG, %lock, %owner, "guard dropped: the lock is released in the background");
            }
        }
    }
}

impl OpenHold {
    pub(crate) fn new(entry: Arc<Entry>, owner: OwnerKey, hold: HoldId) -> Self {
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

    /// Leaves the hold to its lease.
    pub(crate) fn leave(mut self) {
        self.open = false;
        let (owner, hold) = (self.owner, self.hold);
        self.entry
            .step(|core, now, out| core.leave_to_lease(now, owner, hold, out));
    }

    /// Releases the hold. From the first poll on, dropping the future changes nothing: the release goes on.
    /// Before, it drops the hold.
    pub(crate) async fn unlock(self, status: Option<Arc<HoldStatus>>) -> Result<(), Error> {
        let (owner, hold) = (self.owner, self.hold);
        let unlock = |entry: &Arc<Entry>| entry.unlock(owner, hold);
        self.end(status, unlock).await
    }

    /// Hands a write hold to a call of its owner that waits to read. It is released if that is not possible, or nobody
    /// waits for the outcome any more.
    pub(super) async fn downgrade(
        self,
        status: Arc<HoldStatus>,
        to: WaiterId,
    ) -> Result<(), Error> {
        let (owner, hold) = (self.owner, self.hold);
        let unlock = |entry: &Arc<Entry>| entry.downgrade(owner, hold, to);
        self.end(Some(status), unlock).await
    }

    async fn end(
        mut self,
        status: Option<Arc<HoldStatus>>,
        unlock: impl FnOnce(&Arc<Entry>) -> BegunUnlock,
    ) -> Result<(), Error> {
        let entry = Arc::clone(&self.entry);
        let (shared, lock) = (entry.shared(), entry.name.given());
        let ending = status.as_ref().and_then(|status| status.ending());
        if shared.is_closed() && status.is_some() && ending.is_none() {
            return Err(Error::Closed);
        }
        let unlock = unlock(&entry);
        self.open = false;
        match unlock {
            Ok(Some(unlock)) => {
                let owner = self.owner;
                let unlocked = match unlock.has_joined {
                    true => Box::pin(behind_another(&entry, owner, unlock.outcome)).await,
                    false => settled(&entry, owner, unlock.outcome.await),
                };
                unlocked.map_err(|error| error.about(lock))
            }
            Err(reason) => Err(entry.lost(self.owner, reason)),
            Ok(None) => Err(match status.and_then(|status| status.ending()) {
                Some(Ending::Lost(reason)) => entry.lost(self.owner, reason),
                Some(Ending::Released) | None => {
                    Error::not_held(lock, &shared.client_id, self.owner.thread.0)
                }
            }),
        }
    }
}

/// The outcome of an unlock.
fn settled(
    entry: &Entry,
    owner: OwnerKey,
    outcome: Result<Settled, RecvError>,
) -> Result<(), Error> {
    // Its release is gone, with its runtime.
    let gone = |_| match entry.shared().is_closed() {
        true => Error::Closed,
        false => Error::NoRuntime,
    };
    let settled = outcome.map_err(gone)??;
    settled.map_err(|reason| entry.lost(owner, reason))
}

/// Waits for the outcome of an unlock that has joined what was under way for its owner: for a command timeout, and as long
/// for each such operation, as a nested acquire whose caller may not be polled.
async fn behind_another(
    entry: &Arc<Entry>,
    owner: OwnerKey,
    mut outcome: Outcome,
) -> Result<(), Error> {
    let shared = entry.shared();
    let mut since = shared.clock.now();
    loop {
        let timeout = shared.command_timeout();
        let limit = shared.clock.instant(since + timeout) + timeout / 16 + ERROR_GRACE;
        if let Ok(outcome) = tokio::time::timeout_at(limit, &mut outcome).await {
            return settled(entry, owner, outcome);
        }
        match entry.peek(|core| core.op_changed_at(owner)) {
            // It is known, and on its way.
            None => return settled(entry, owner, outcome.await),
            Some(moved) if moved > since => since = moved,
            Some(_) => break,
        }
    }
    let text = match entry.peek(|core| core.waits_for_acquire(owner)) {
        true => "an acquire by the same owner is still in flight; is its future being polled?",
        false => "no answer within the command timeout; a background task continues the release",
    };
    Err(entry.route().no_answer(Operation::Unlocking, text))
}

/// What a job has to report when its time is over says more than a caller's own time limit. A connection notices that at the
/// latest after a sixteenth of it.
const ERROR_GRACE: Duration = Duration::from_millis(50);

/// Runs `release.lua` for one release of an owner, each send with the count of its moment, which is
/// returned with the answer; or `pass.lua`, if another caller of this client gets the lock. A pass that is
/// refused has moved nothing, and becomes the release that it replaced, in the time that is left.
async fn send(
    entry: &Arc<Entry>,
    (owner, op): (OwnerKey, OpId),
    field: &Arc<str>,
    (doing, retry): (Operation, RetryPolicy),
    mut first: Option<FirstSend>,
) -> Result<(ReleaseAnswer, u32), CallError> {
    let (route, shared) = (entry.route(), entry.shared());
    let limit = Instant::now() + retry.timeout;
    let (mut may_pass, mut denied) = (true, None::<String>);
    // Who writes passes its hold only to itself.
    let is_downgrade = owner.face == Face::Write;
    loop {
        let timeout = limit.saturating_duration_since(Instant::now());
        let retry = RetryPolicy { timeout, ..retry };
        let (mut passes, mut count, sent) = (false, 0, AtomicBool::new(false));
        let first = first.take().map(|first| {
            (passes, count) = (first.passes, first.count);
            first.sent
        });
        let call = |unwritten| {
            if unwritten {
                entry.step(|core, now, out| core.release_unwritten(now, owner, op, out));
            }
            let safe = route.is_fenced() && !shared.cannot_pass.load(Ordering::Relaxed);
            let may_pass = may_pass && safe;
            let said =
                entry.step(|core, now, out| core.release_sent(now, owner, op, may_pass, out))?;
            match said {
                ReleaseSend::Count { target, .. } => (passes, count) = (false, target),
                ReleaseSend::Pass { .. } => passes = true,
            }
            Some(call_of(entry, owner, field, said))
        };
        let error = match script::call_after(first, route, (doing, retry), &sent, call).await {
            // Nothing was moved: the lock is released instead.
            Ok(ScriptAnswer {
                value: Released::NoToken,
                ..
            }) => {
                entry.step(|core, now, out| core.release_not_executed(now, owner, op, out));
                may_pass = false;
                continue;
            }
            Ok(answer) => {
                if let Some(permission) = denied {
                    never_passes_again(shared, &permission);
                }
                let answer = release_answer(entry, &answer.value, answer.sent_at);
                return Ok((answer, count));
            }
            Err(error) => error,
        };
        match &error.error {
            // The key is not even a hash. If another key of the lock has another type, it says nothing of the hold.
            Error::NotALock { key, .. } if **key == **entry.name.key() => {
                return Ok((changed(shared), count));
            }
            _ if error.maybe_executed || !passes => return Err(error),
            // A downgrade runs other commands than a hand-off.
            Error::PermissionDenied { permission, .. } => {
                denied = (!is_downgrade).then(|| permission.clone());
            }
            Error::Refused { .. } | Error::UnexpectedReply { .. } => {}
            _ => return Err(error),
        }
        may_pass = false;
        if is_downgrade {
            // Who moves its own hold is told why that was refused.
            entry.release_failed(owner, op, false, false, error.error);
        } else {
            entry.step(|core, now, out| core.release_not_executed(now, owner, op, out));
        }
    }
}

fn call_of(entry: &Entry, owner: OwnerKey, field: &Arc<str>, said: ReleaseSend) -> Call<Released> {
    let shared = entry.shared();
    match said {
        ReleaseSend::Count {
            target,
            lease,
            leaves,
        } => {
            let (name, announce) = (entry.name_of(owner), shared.redis.announce());
            script::release(name, field, target, lease, (leaves, announce))
        }
        ReleaseSend::Pass { to, lease } => {
            let (name, announce) = (entry.name_of(owner), shared.redis.announce());
            script::pass(name, field, &to, lease, announce)
        }
    }
}

fn changed(shared: &Shared) -> ReleaseAnswer {
    ReleaseAnswer {
        gone: Some(LossReason::Changed),
        sent_at: shared.clock.now(),
        others_listen: false,
        token: None,
    }
}

/// A pass lacks a permission, and the release after it did not: that will be so each time.
fn never_passes_again(shared: &Shared, permission: &str) {
    if !shared.cannot_pass.swap(true, Ordering::Relaxed) {
        event!(WARN, %permission, "locks are no longer handed over inside this client: a permission is missing");
    }
}

fn release_answer(entry: &Entry, released: &Released, sent_at: Instant) -> ReleaseAnswer {
    let (shared, channel) = (entry.shared(), entry.name.channel());
    let mut token = None;
    let (gone, receivers) = match *released {
        Released::Done {
            receivers,
            token: received,
        } => {
            token = received;
            (None, receivers)
        }
        Released::Gone => (Some(LossReason::Gone), 0),
        Released::Taken => (Some(LossReason::Taken), 0),
        Released::NotALock | Released::NoToken => (Some(LossReason::Changed), 0),
    };
    // The registry of channels is asked only if a client listens. Of a cluster the server that answers does
    // not know who listens at the others, and without messages no server knows who waits.
    let others_listen = shared.redis.is_cluster()
        || !entry.name.kind().announces()
        || receivers > 0 && receivers > shared.redis.channels().own_listeners(channel);
    ReleaseAnswer {
        gone,
        sent_at: shared.clock.time(sent_at),
        others_listen,
        token,
    }
}

/// How releases are sent.
pub(crate) const RELEASES: Releases = Releases {
    enter: entered::enter,
    job: |entry, owner, id| Box::pin(ReleaseJob::new(entry, owner, id).run(None)),
};

/// The job of a release. Dropped with its runtime, or before it could be spawned, it says so to the core: the lease frees the
/// lock.
struct ReleaseJob {
    entry: Arc<Entry>,
    owner: OwnerKey,
    id: OpId,
    open: bool,
}

/// What became of the send that was entered by the step that has begun a release.
struct FirstSend {
    step: ReleaseStep,
    sent: SendOutcome<Released>,
    passes: bool,
    count: u32,
}

impl ReleaseJob {
    fn new(entry: Arc<Entry>, owner: OwnerKey, id: OpId) -> Self {
        let open = true;
        Self {
            entry,
            owner,
            id,
            open,
        }
    }

    async fn run(mut self, mut first: Option<FirstSend>) {
        let entry = Arc::clone(&self.entry);
        let (shared, owner, id) = (entry.shared(), self.owner, self.id);
        if first.is_none() {
            shared.tally.release_begins();
        }
        let (mut pause, mut before) = (PAUSE_MIN, Before::default());
        let mut failed = None::<String>;
        loop {
            let may_run = before.may_run(entry.route());
            let step =
                || entry.step(|core, now, out| core.release_step(now, owner, id, may_run, out));
            let step = first.as_ref().map_or_else(step, |first| first.step.clone());
            self.open = matches!(step, ReleaseStep::Send { .. });
            let ReleaseStep::Send {
                field,
                give_up_at,
                awaited,
                leaves,
            } = step
            else {
                return;
            };
            // Read each time: a release that has joined moves it.
            let give_up_at = shared.clock.instant(give_up_at);
            let is_over = || awaited.is_none() && Instant::now() >= give_up_at;
            if let Some(problem) = failed.as_ref().filter(|_| is_over()) {
                return self.give_up(&field, problem);
            }
            let attempt = self.attempt(&field, (awaited, leaves), first.take());
            let Some(answer) = attempt.await else {
                continue;
            };
            let CallError {
                error,
                maybe_executed,
            } = match answer {
                Ok((answer, count)) => {
                    entry.latest.reached();
                    self.open = entry
                        .step(|core, now, out| core.release_answered(now, owner, id, answer, out));
                    if failed.take().is_some() {
                        self.reconciled(&field, count);
                    }
                    if self.open {
                        continue;
                    }
                    return;
                }
                Err(error) => error,
            };
            before.note_failed(entry.route(), &error);
            let (text, is_final) = (error.to_string(), error.is_final());
            let (reported, is_over) =
                entry.release_failed(owner, id, maybe_executed, is_final, error);
            self.open = !is_over;
            if is_over {
                // A caller that has the error needs no event.
                return match reported {
                    true => {}
                    false => self.give_up(&field, &text),
                };
            }
            if is_final {
                continue;
            }
            failed = Some(text);
            self.pause(&mut pause, give_up_at).await;
        }
    }

    /// One call. The count that it said is returned with the answer. `None`: a caller has joined the release before it was
    /// sent.
    async fn attempt(
        &self,
        field: &Arc<str>,
        (awaited, leaves): (Option<Time>, bool),
        first: Option<FirstSend>,
    ) -> Option<Result<(ReleaseAnswer, u32), CallError>> {
        let (entry, owner, id) = (&self.entry, self.owner, self.id);
        // A release that a caller waits for does not queue with the others, and leaves with none.
        let waits_for_place = awaited.is_none() && !leaves && first.is_none();
        let _permit = match waits_for_place {
            true => self.place().await?,
            false => None,
        };
        if leaves
            && first.is_none()
            && let Some(left) = Box::pin(leave(entry, owner, id)).await
        {
            return Some(left.map(|answer| (answer, 0)));
        }
        let how = how_to_send(entry.shared(), awaited);
        Some(send(entry, (owner, id), field, how, first).await)
    }

    /// Waits for a place among the releases under way. `None`: a caller has joined the release.
    async fn place(&self) -> Option<Option<OwnedSemaphorePermit>> {
        let place = self.entry.route().bulk(BackgroundClass::Releases);
        self.until_joined(place).await
    }

    async fn pause(&self, pause: &mut Duration, limit: Instant) {
        let limit = limit.min(Instant::now() + *pause);
        self.until_joined(tokio::time::sleep_until(limit)).await;
        *pause = (*pause * 2).min(PAUSE_MAX);
    }

    /// Waits, unless a caller joins the release.
    async fn until_joined<T>(&self, wait: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = wait => Some(done),
            () = self.entry.joined(self.owner) => None,
        }
    }

    fn reconciled(&self, field: &str, count: u32) {
        self.entry.shared().totals.count(Total::Reconciled, 1);
        let lock = self.entry.name.given();
        event!(INFO, %lock, owner = %field, count, "outcome reconciled");
    }

    fn give_up(self, field: &str, error: &str) {
        let name = Arc::clone(&self.entry.name);
        let lock = name.given();
        // The core first: it does not wait for a subscriber.
        drop(self);
        event!(WARN, %lock, owner = %field, %error, "background release failed: the lease frees the lock");
    }
}

/// What was sent before a release, for its owner: an acquire without an answer, or a hand-off. It is executed when the server
/// comes to it, however late, and its lease begins then. So no clock ends the release while it may be.
#[derive(Default)]
struct Before {
    /// The connection that may carry it still, once the release has failed.
    carrier: Option<Option<Carrier>>,
    /// All of it has been answered.
    is_answered: bool,
    is_over: bool,
}

impl Before {
    /// Whether it may have been executed, or may still be, since this was asked last.
    fn may_run(&mut self, route: Route<'_>) -> bool {
        let may_run = !self.is_over;
        if let Some(carrier) = self.carrier.filter(|_| may_run) {
            let now = route.carrier();
            self.is_over = self.is_answered || now.is_some() && now != carrier;
        }
        may_run
    }

    /// An attempt of the release has failed. A refusal over a connection is the answer to all that was sent over it before,
    /// unless it is that of the next connection.
    fn note_failed(&mut self, route: Route<'_>, error: &Error) {
        self.carrier.get_or_insert_with(|| route.carrier());
        let is_answer = !matches!(error, Error::NoAnswer { .. });
        self.is_answered |= is_answer && route.carrier().is_some();
    }
}

/// While callers wait, a send is repeated in the time that they have left.
fn how_to_send(shared: &Shared, awaited: Option<Time>) -> (Operation, RetryPolicy) {
    let Some(since) = awaited else {
        return (Operation::Releasing, shared.no_retry());
    };
    let limit = since + shared.command_timeout();
    let timeout = limit.since(shared.clock.now());
    let retry = RetryPolicy {
        timeout,
        ..shared.retry()
    };
    (Operation::Unlocking, retry)
}

impl Drop for ReleaseJob {
    fn drop(&mut self) {
        if self.open {
            let (owner, id) = (self.owner, self.id);
            self.entry
                .step(|core, now, out| core.release_gone(now, owner, id, out));
        }
    }
}

const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

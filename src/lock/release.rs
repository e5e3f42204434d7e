//! The release protocol: unlocks that wait for an outcome, and how a release is sent.
//!
//! Each send sets the hold count of its moment, so a delayed one never rolls back a later release, and includes
//! whatever happened before. It enters its connection in the step that decides it, and the task that reads
//! the reply completes it (`release/entered.rs`). What cannot go that way takes a task ([`LongWay`]) for this send alone: when
//! the next one is made, and when the release gives up, is the core's (`core/release.rs`). Nothing needs the caller to be
//! polled.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use redisson_lock_core::input::{
    HoldDetached, HoldDropped, HoldLeft, PassNotExecuted, ReleaseAnswered, ReleaseBegins,
    ReleaseChanges, ReleaseDropped, ReleaseFailed, ReleaseHasRoom, ReleaseRefused, ReleaseSent,
    ReleaseUnwritten, ReleaseWaits,
};
use redisson_lock_core::{
    Ending, Face, FailedSend, HoldId, LossReason, OpId, OwnerKey, ReleaseAnswer, ReleaseSend,
    ReleaseStep, Time, WaiterId,
};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::oneshot::error::RecvError;
use tokio::time::Instant;

pub(super) mod entered;

use super::leave::leave;
use crate::base::runtime::event;
use crate::error::{Error, Operation};
use crate::redis::{BackgroundClass, Call};
use crate::script::{self, CallError, Released, RetryPolicy, ScriptAnswer, SendOutcome};
use crate::state::entry::{BegunUnlock, Entry, Settled};
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
            let was_held = self.entry.step(HoldDropped { owner, hold });
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
        self.entry.step(HoldDetached { owner, hold });
    }

    /// Leaves the hold to its lease.
    pub(crate) fn leave(mut self) {
        self.open = false;
        let (owner, hold) = (self.owner, self.hold);
        self.entry.step(HoldLeft { owner, hold });
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
            Ok(Some(outcome)) => {
                let unlocked = settled(&entry, self.owner, outcome.await);
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

/// Runs `release.lua` for one release of an owner, each copy with the count of its moment; or `pass.lua`, if another caller
/// of this client gets the lock. A pass that is refused has moved nothing, and becomes the release that it replaced, in the
/// time that is left.
async fn send(
    entry: &Arc<Entry>,
    (owner, op): (OwnerKey, OpId),
    field: &Arc<str>,
    (doing, retry): (Operation, RetryPolicy),
    mut first: Option<FirstSend>,
) -> Result<ReleaseAnswer, CallError> {
    let (route, shared) = (entry.route(), entry.shared());
    let limit = Instant::now() + retry.timeout;
    let (mut may_pass, mut denied) = (true, None::<String>);
    // Who writes passes its hold only to itself.
    let is_downgrade = owner.face == Face::Write;
    loop {
        let timeout = limit.saturating_duration_since(Instant::now());
        let retry = RetryPolicy { timeout, ..retry };
        let mut passes = false;
        let first = first.take().map(|first| {
            passes = first.passes;
            first.sent
        });
        let call = |unwritten| {
            if unwritten {
                entry.step(ReleaseUnwritten { owner, op });
            }
            let safe = route.is_fenced() && !shared.cannot_pass.load(Ordering::Relaxed);
            let may_pass = may_pass && safe;
            let said = entry.step(ReleaseSent {
                owner,
                op,
                may_pass,
            })?;
            passes = matches!(said, ReleaseSend::Pass { .. });
            Some(call_of(entry, owner, field, said))
        };
        let error = match script::call_after(first, route, (doing, retry), call).await {
            // Nothing was moved: the lock is released instead.
            Ok(ScriptAnswer {
                value: Released::NoToken,
                ..
            }) => {
                entry.step(PassNotExecuted { owner, op });
                may_pass = false;
                continue;
            }
            Ok(answer) => {
                if let Some(permission) = denied {
                    never_passes_again(shared, &permission);
                }
                return Ok(release_answer(entry, &answer.value, answer.sent_at));
            }
            Err(error) => error,
        };
        match &error.error {
            // The key is not even a hash. If another key of the lock has another type, it says nothing of the hold.
            Error::NotALock { key, .. } if **key == **entry.name.key() => {
                return Ok(changed(shared));
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
            entry.fail_unlocks(&error.error, ReleaseChanges { owner, op });
        } else {
            entry.step(PassNotExecuted { owner, op });
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

/// A send of a release that could not go, or has not gone, the short way. Dropped with its runtime, or before it could be
/// spawned, it says so to the core: the lease frees the lock.
pub(super) struct LongWay {
    entry: Arc<Entry>,
    owner: OwnerKey,
    id: OpId,
    open: bool,
}

/// What became of the send that was entered by a step.
pub(super) struct FirstSend {
    step: ReleaseStep,
    sent: SendOutcome<Released>,
    sent_at: Instant,
    passes: bool,
}

impl LongWay {
    pub(super) fn new(entry: Arc<Entry>, owner: OwnerKey, id: OpId) -> Self {
        let open = true;
        Self {
            entry,
            owner,
            id,
            open,
        }
    }

    pub(super) async fn run(mut self, mut first: Option<FirstSend>) {
        let mut place = None;
        loop {
            let step = first.as_ref().map(|first| first.step.clone());
            let step = step.unwrap_or_else(|| self.step());
            self.open = matches!(step, ReleaseStep::Send { .. });
            let ReleaseStep::Send {
                field,
                awaited,
                leaves,
                is_first,
            } = step
            else {
                return;
            };
            if first.is_none() {
                self.entry.shared().tally.release_moves(is_first);
            }
            // A release that a caller waits for does not queue with the others, and one that leaves does so with others.
            if awaited.is_none() && !leaves && first.is_none() && place.is_none() {
                place = self.place().await;
                if place.is_none() {
                    return;
                }
                // What is said is that of this moment.
                continue;
            }
            let sent = self.send(&field, (awaited, leaves), first.take()).await;
            return self.ended(&field, sent);
        }
    }

    /// A send begins.
    fn step(&self) -> ReleaseStep {
        let (owner, op, carrier) = (self.owner, self.id, self.entry.route().carrier());
        self.entry.step(ReleaseBegins { owner, op, carrier })
    }

    /// Waits for a place among the releases under way. `None`: the release did not wait for it any more.
    async fn place(&mut self) -> Option<Option<OwnedSemaphorePermit>> {
        let (entry, owner, op) = (Arc::clone(&self.entry), self.owner, self.id);
        if let Some(place) = entry.route().try_bulk(BackgroundClass::Releases) {
            return Some(Some(place));
        }
        // A caller that joins it has it sent immediately. With the runtime the core ends what waits.
        self.open = false;
        entry.step(ReleaseWaits { owner, op });
        let place = entry.route().bulk(BackgroundClass::Releases).await;
        self.open = entry.step(ReleaseHasRoom { owner, op });
        self.open.then_some(place)
    }

    /// One call. The count that it said is returned with the answer.
    async fn send(
        &self,
        field: &Arc<str>,
        (awaited, leaves): (Option<Time>, bool),
        first: Option<FirstSend>,
    ) -> Result<ReleaseAnswer, CallError> {
        let (entry, owner, id) = (&self.entry, self.owner, self.id);
        if leaves
            && first.is_none()
            && let Some(left) = Box::pin(leave(entry, owner, id)).await
        {
            return left;
        }
        let now = entry.shared().clock.now();
        let began = first.as_ref().map(|first| first.sent_at);
        let began = began.map_or(now, |began| entry.shared().clock.time(began));
        let how = how_to_send(entry.shared(), (awaited, began), now);
        send(entry, (owner, id), field, how, first).await
    }

    /// The core hears what became of the send, and says what comes next.
    fn ended(mut self, field: &Arc<str>, sent: Result<ReleaseAnswer, CallError>) {
        let (entry, owner, op) = (Arc::clone(&self.entry), self.owner, self.id);
        self.open = false;
        let CallError {
            error,
            maybe_executed,
        } = match sent {
            Ok(answer) => {
                entry.latest.reached();
                return entry.step(ReleaseAnswered { owner, op, answer });
            }
            Err(error) => error,
        };
        if error.is_final() {
            let refused = ReleaseRefused {
                owner,
                op,
                maybe_executed,
            };
            let (is_reported, is_over) = entry.fail_unlocks(&error, refused);
            // A caller that has the error needs no event.
            if !is_reported && is_over {
                entry.log_given_up(field, &error.to_string());
            }
            return;
        }
        let failed = FailedSend {
            maybe_executed,
            is_refusal: !matches!(error, Error::NoAnswer { .. }),
            text: error.to_string().into(),
            carrier: entry.route().carrier(),
        };
        entry.fail_unlocks(&error, ReleaseFailed { owner, op, failed });
    }
}

/// A send that callers wait for may be repeated until their command timeout ends. A background send ends one command timeout after
/// its first copy: an unlock that joins it has its own command timeout after that.
fn how_to_send(
    shared: &Shared,
    (awaited, began): (Option<Time>, Time),
    now: Time,
) -> (Operation, RetryPolicy) {
    let (doing, since, retry) = match awaited {
        Some(since) => (Operation::Unlocking, since, shared.retry()),
        None => (Operation::Releasing, began, shared.no_retry()),
    };
    let limit = since + shared.command_timeout();
    let timeout = limit.since(now);
    (doing, RetryPolicy { timeout, ..retry })
}

impl Drop for LongWay {
    fn drop(&mut self) {
        if self.open {
            let (owner, op) = (self.owner, self.id);
            self.entry.step(ReleaseDropped { owner, op });
        }
    }
}

//! One attempt of an acquire: its script, and what becomes of its answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redisson_lock_core::{Effects, HoldId, LockCore, Permit, Rejected, Time, Token, Untaken};
use tokio::time::Instant;

use super::context::{AcquireContext, Request};
use super::stray::{is_stray_hold, release_stray_hold};
use super::waiter::{needed, rejection};
use crate::base::runtime::event;
use crate::error::{Error, HeldBy, Operation};
use crate::names::owner::{Origin, Owner};
use crate::redis::{Call, Still};
use crate::script::{self, Acquired, CallError, QueuePlace};
use crate::state::entry::Entry;
use crate::state::hold_status::Taken;

/// The core's step for a reply that says taken.
type TakenStep = fn(
    &mut LockCore,
    Time,
    &Permit,
    Time,
    &mut Effects,
) -> Result<(HoldId, Option<Token>), Rejected>;

/// The right to run one acquire for one owner. However it ends, the core hears of it: dropped after
/// its script was sent, it leaves the rest to a release.
pub(super) struct AcquirePermit {
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
    fn if_wanted(&self, enter: &mut dyn FnMut()) -> bool {
        // Under the lock's mutex: what undoes the attempt comes behind it on the connection.
        let is_wanted = self.entry.peek(|core| {
            let is_wanted = core.is_attempting(&self.permit);
            if is_wanted {
                enter();
            }
            is_wanted
        });
        self.is_over.fetch_or(!is_wanted, Ordering::Relaxed);
        is_wanted
    }
}

pub(super) enum Attempt {
    Taken(Taken),
    Busy(Busy),
    /// It asks again: its call was not polled, and others wait; or its field was used before.
    TakenOver,
}

/// The answer to an attempt that did not take the lock.
pub(super) struct Busy {
    pub(super) holder: Box<HeldBy>,
    /// The lock is free, and it is the turn of that owner.
    pub(super) is_free: bool,
    /// Its slot is on its way to another node.
    pub(super) is_on_the_way: bool,
    pub(super) sent_at: Instant,
}

impl AcquirePermit {
    pub(super) fn new(entry: Arc<Entry>, permit: Permit) -> Self {
        Self {
            entry,
            permit,
            sent: AtomicBool::new(false),
            open: true,
        }
    }

    /// Checked before each send, also after a server has refused one: a release may have undone the attempt.
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
        let (field, lease) = (&permit.field, permit.terms.lease);
        let mut call = match request.from {
            None => script::acquire(name, field, permit.target, lease, place),
            Some(from) => script::take_over(name, field, lease, place, from)?,
        };
        call.still = Some(Arc::clone(still) as Arc<dyn Still>);
        Some(call)
    }

    /// One run of `acquire.lua`, one more if an orphaned hold of this client stood in the way.
    pub(super) async fn attempt(
        &mut self,
        request: &Request<'_>,
        context: &mut AcquireContext,
    ) -> Result<Attempt, Error> {
        let (entry, owner) = (Arc::clone(&self.entry), request.owner);
        context.prepare(&entry).await?;
        self.check_takes_over(request)?;
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

    /// An owner that already holds the lock has nothing to take over.
    fn check_takes_over(&mut self, request: &Request<'_>) -> Result<(), Error> {
        if request.from.is_none() || self.permit.target == 1 {
            return Ok(());
        }
        self.untaken(Untaken::NotExecuted);
        let (owner, held) = (self.permit.owner, Rejected::AlreadyHeld);
        Err(rejection(&self.entry, owner, held))
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

    /// The server has a read hold of the owner, which has none here: it is released, and the call asks again. If that
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
    pub(super) fn granted(
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
        let taken = entry.step_to_hold((permit.waiter, token), |core, now, out| {
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

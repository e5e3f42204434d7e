//! One acquire: its script, and what becomes of its answer. Nothing of it waits for a poll of its call, which only claims the
//! lock that the answer grants to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redisson_lock_core::input::{AcquireEnters, AcquireTakes};
use redisson_lock_core::{
    Effects, LockCore, OpId, OwnerKey, Permit, Rejected, Time, Token, Untaken,
};
use tokio::time::Instant;

use super::context::AcquireContext;
use super::found::FoundBusy;
use super::release::{LongWay, entered};
use super::stray::{is_stray_hold, release_stray_hold};
use super::waiter::needed;
use crate::error::{Error, HeldBy, Operation};
use crate::redis::{Answer, Call, Received, RoutedLink, Still};
use crate::script::{self, Acquired, CallError, QueuePlace, SendOutcome};
use crate::state::entry::{AfterAttempt, CallEnd, CallOf, Entry, SendWay, Sends, WaitingCall};

/// Enters an acquire. It goes the long way if there is no connection now, or it may need more than one command.
pub(super) fn enter(
    entry: &Arc<Entry>,
    (core, now, out): (&mut LockCore, Time, &mut Effects),
    calls: CallOf<'_>,
    permit: Permit,
) -> SendWay {
    let (shared, route) = (entry.shared(), entry.route());
    let Some(of) = calls(permit.waiter) else {
        return SendWay::Nothing;
    };
    // Its script may ask for more keys.
    let is_split = route.is_in_cluster() && entry.name.kind().has_faces();
    let Some(way) = route.now().filter(|_| !is_split) else {
        return SendWay::Long;
    };
    let has_replicas = of.replicas.as_ref();
    if has_a_used_field(entry, core, &permit, of)
        || has_replicas.is_some_and(|link| !link.is_current(entry))
    {
        return SendWay::Long;
    }
    let Some(call) = call_of(entry, &permit, of) else {
        return SendWay::Long;
    };
    let (retry, sent_at) = (shared.retry(), shared.clock.instant(now));
    let limit = retry.limit(sent_at);
    let (owner, op) = (permit.owner, permit.op);
    let unflushed = route.enter(way, call, (sent_at, limit), |way, call| {
        let entered = EnteredAcquire {
            way_on: AcquireWay::new(Arc::clone(entry), permit, Arc::clone(of)),
            way,
            call,
            sent_at,
        };
        Box::new(|answer| entered.completed(answer))
    });
    match unflushed {
        Some(unflushed) => {
            core.tell(now, AcquireEnters { owner, op }, out);
            SendWay::Short(unflushed)
        }
        None => SendWay::Long,
    }
}

/// The next copy of an acquire. `None`: this kind of lock cannot be taken over.
fn call_of(entry: &Entry, permit: &Permit, of: &WaitingCall) -> Option<Call<Acquired>> {
    let name = entry.name_of(permit.owner);
    let place = QueuePlace {
        wait: permit.place_wait,
        stays: permit.queues_up.then(|| needed(permit, of.deadline)),
    };
    let place = (place, entry.shared().redis.announce());
    let (field, lease) = (&permit.field, permit.terms.lease);
    match &of.from {
        None => Some(script::acquire(name, field, permit.target, lease, place)),
        Some(from) => script::take_over(name, field, lease, place, from),
    }
}

/// Whether a late release of an earlier hold may remove the field of a new one: a connection was replaced
/// without a fence since the attempt began. It then begins again, with a field of its own.
fn has_a_used_field(entry: &Entry, core: &LockCore, permit: &Permit, of: &WaitingCall) -> bool {
    let Permit { field, target, .. } = permit;
    let is_used = *target == 1 && field == of.owner.field() && entry.route().unfenced() > 0;
    // A hold inside another one shares its field.
    is_used && !core.is_inside(permit)
}

/// An acquire that has entered its connection.
struct EnteredAcquire {
    way_on: AcquireWay,
    way: RoutedLink,
    call: Call<Acquired>,
    sent_at: Instant,
}

impl EnteredAcquire {
    /// Called while no mutex of a lock is held.
    fn completed(self, answer: Answer) {
        let Self {
            mut way_on,
            way,
            call,
            sent_at,
        } = self;
        let entry = Arc::clone(&way_on.entry);
        let outcome = entry.route().outcome(&way, answer);
        if let Ok(reply) = &outcome
            && let Some(acquired) = (call.reads.decode)(reply, call.keys.len())
        {
            if let Some(stray) = way_on.answered(&acquired, sent_at, &way) {
                way_on.stray = Some(stray);
                entry.shared().runtime.spawn(way_on.run(None));
            }
            return;
        }
        let outcome = outcome.map(|reply| Received {
            reply,
            sent_at,
            way,
        });
        let first = (SendOutcome { call, outcome }, sent_at);
        entry.shared().runtime.spawn(way_on.run(Some(first)));
    }
}

/// An acquire that could not go, or has not gone, the short way. The core hears how it ends, unless that is with its runtime:
/// then its call ends.
pub(super) struct AcquireWay {
    entry: Arc<Entry>,
    permit: Permit,
    of: Arc<WaitingCall>,
    /// What stands in the way of it is a hold of this client that no owner knows of.
    stray: Option<Box<str>>,
    has_met_stray: bool,
}

/// Whether an acquire is still wanted when a copy of it enters its connection.
struct StillAttempting {
    entry: Arc<Entry>,
    owner: OwnerKey,
    op: OpId,
    /// It was not when it was looked at.
    is_over: AtomicBool,
}

impl Still for StillAttempting {
    fn if_wanted(&self, enter: &mut dyn FnMut()) -> bool {
        // Under the lock's mutex: what undoes the attempt comes after it on the connection.
        let (owner, op) = (self.owner, self.op);
        let is_wanted = self.entry.steps(|core, now, out| {
            let is_wanted = core.tell(now, AcquireEnters { owner, op }, out);
            if is_wanted {
                enter();
            }
            is_wanted
        });
        self.is_over.fetch_or(!is_wanted, Ordering::Relaxed);
        is_wanted
    }
}

impl AcquireWay {
    pub(super) fn new(entry: Arc<Entry>, permit: Permit, of: Arc<WaitingCall>) -> Self {
        Self {
            entry,
            permit,
            of,
            stray: None,
            has_met_stray: false,
        }
    }

    pub(super) async fn run(mut self, first: Option<(SendOutcome<Acquired>, Instant)>) {
        let entry = Arc::clone(&self.entry);
        let still = Arc::new(StillAttempting {
            entry: Arc::clone(&entry),
            owner: self.permit.owner,
            op: self.permit.op,
            is_over: AtomicBool::new(false),
        });
        if let Some(link) = self.of.replicas.clone()
            && let Err(error) = link.prepare(&entry).await
        {
            return self.ends(Untaken::NotExecuted, || failed(error));
        }
        let mut retry = entry.shared().retry();
        let mut first = first.map(|(first, sent_at)| {
            retry.timeout = retry.timeout.saturating_sub(sent_at.elapsed());
            first
        });
        loop {
            if let Some(stray) = self.stray.take() {
                self.has_met_stray = true;
                release_stray_hold(&entry, &stray).await;
            }
            let how = (Operation::Acquiring, retry);
            let call = |_| self.call(&still);
            let answer = script::call_after(first.take(), entry.route(), how, call).await;
            let answer = match answer {
                Ok(answer) => answer,
                Err(error) => {
                    return self.unanswered(still.is_over.load(Ordering::Relaxed), error);
                }
            };
            self.stray = self.answered(&answer.value, answer.sent_at, &answer.way);
            if self.stray.is_none() {
                return;
            }
            retry = entry.shared().retry();
        }
    }

    /// The next copy of the call, if its field was not used in the meantime.
    fn call(&self, still: &Arc<StillAttempting>) -> Option<Call<Acquired>> {
        let (entry, owner, op) = (&self.entry, self.permit.owner, self.permit.op);
        let says = entry.peek(|core| {
            let permit = core.acquire_says(owner, op)?;
            (!has_a_used_field(entry, core, &permit, &self.of)).then_some(permit)
        });
        let replicas = self.of.replicas.as_ref();
        let says = says.filter(|_| replicas.is_none_or(|link| link.is_current(entry)));
        let Some(mut call) = says.and_then(|permit| call_of(entry, &permit, &self.of)) else {
            still.is_over.store(true, Ordering::Relaxed);
            return None;
        };
        call.still = Some(Arc::clone(still) as Arc<dyn Still>);
        Some(call)
    }

    /// The server has answered. `Some`: a hold of this client stands in the way that no owner knows of.
    fn answered(
        &self,
        acquired: &Acquired,
        sent_at: Instant,
        way: &RoutedLink,
    ) -> Option<Box<str>> {
        let entry = Arc::clone(&self.entry);
        match acquired {
            Acquired::Taken(token) => self.taken(sent_at, *token, false),
            Acquired::Outside => self.taken(sent_at, None, true),
            Acquired::OwnRead => self.own_read(),
            Acquired::Lost => self.ends(Untaken::OuterGone, || AfterAttempt::Lost),
            Acquired::NotALock(found) => {
                let error = Error::not_a_lock(entry.name.key(), found);
                self.ends(Untaken::NotExecuted, || failed(error));
            }
            Acquired::NoToken(found) => {
                // The field may be there, if its token was deleted.
                let key = entry.name.token().unwrap_or_else(|| entry.name.key());
                let error = Error::not_a_lock(key, found);
                self.ends(Untaken::Unknown, || failed(error));
            }
            Acquired::Busy { holder, .. }
                if !self.has_met_stray && is_stray_hold(&entry, holder) =>
            {
                return Some(holder.as_str().into());
            }
            Acquired::Busy {
                left,
                holder,
                is_free,
            } => {
                let (owner, lease_left) = (holder.clone(), *left);
                let found = FoundBusy {
                    holder: HeldBy { owner, lease_left },
                    is_free: *is_free,
                    is_on_the_way: way.is_on_the_way(),
                };
                let after = found.seen_by(&entry, &self.of);
                self.ends(Untaken::Busy, || after);
            }
        }
        None
    }

    /// The server has a read hold of the owner, which has none here: it is released, and the call asks again. If that has not
    /// helped, another client has this owner too.
    fn own_read(&self) {
        self.entry.note_answer();
        let has_found = self.of.attempts(|attempts| {
            attempts.was_answered = true;
            std::mem::replace(&mut attempts.has_found_own_read, true)
        });
        self.ends(Untaken::OwnRead, || match has_found {
            true => AfterAttempt::Ends(CallEnd::Rejected(Rejected::OwnRead)),
            false => AfterAttempt::AsksAgain,
        });
    }

    /// The server has given it to the owner.
    fn taken(&self, sent_at: Instant, token: Option<Token>, is_outside: bool) {
        let (entry, permit) = (&self.entry, &self.permit);
        entry.take(AcquireTakes {
            permit: permit.clone(),
            sent_at: entry.shared().clock.time(sent_at),
            token,
            is_outside,
        });
    }

    /// An acquire without an answer fails, unless it was never to be sent.
    fn unanswered(&self, is_over: bool, error: CallError) {
        let (entry, permit) = (Arc::clone(&self.entry), self.permit.clone());
        let is_used = entry.peek(|core| has_a_used_field(&entry, core, &permit, &self.of));
        let untaken = match error.maybe_executed {
            true => Untaken::Unknown,
            false => Untaken::NotExecuted,
        };
        if is_over || is_used {
            return self.ends(untaken, || AfterAttempt::AsksAgain);
        }
        AcquireContext::attempt_failed(&entry, &error.error);
        self.ends(untaken, || failed(error.error));
    }

    fn ends(&self, untaken: Untaken, after: impl FnOnce() -> AfterAttempt) {
        self.entry.end_attempt(&self.permit, untaken, after);
    }
}

fn failed(error: Error) -> AfterAttempt {
    AfterAttempt::Ends(CallEnd::Failed(error))
}

/// How acquires and releases are sent.
pub(crate) const SENDS: Sends = Sends {
    enter: |entry, (core, now, out), call, (owner, op)| match core.acquire_says(owner, op) {
        Some(permit) => enter(entry, (core, now, out), call, permit),
        None => entered::enter(entry, (core, now, out), owner, op),
    },
    long_way: |entry, owner, op| match entry.says(owner, op) {
        Some((permit, call)) => Box::pin(AcquireWay::new(entry, permit, call).run(None)),
        None => Box::pin(LongWay::new(entry, owner, op).run(None)),
    },
};

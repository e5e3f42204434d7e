//! The watchdog: one task that sleeps until the first timer fires, and renews what is due. And
//! `extend`, which asks for the same by hand.
//!
//! What falls due within a tenth of the period is renewed together, up to 100 locks a script call, the
//! calls side by side. A node of a cluster takes only keys of one slot in a call: then each slot has
//! calls of its own. Timers do not keep entries alive; a timer whose hold is gone means nothing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::task::{JoinSet, coop};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::core::{
    Effects, Ending, Generation, HoldId, LeasePolicy, Life, LockCore, LossReason, RenewOutcome,
    RenewalAsk, ThreadId, local_deadline,
};
use crate::entry::{Entry, Locks};
use crate::error::{Error, Operation, RefusedKind};
use crate::redis::{Bulk, slot_of};
use crate::runtime::event;
use crate::script::{self, Answer, CallError, RenewReply, RenewalKey, RetryPolicy};
use crate::shared::HoldStatus;
use crate::shared::{Shared, Totals, check_lease};
use crate::timers::FiredTimer;

/// Dropped with the renewal task, when the client ends or its runtime does: nobody renews the holds
/// any more, or would notice that they are lost.
struct EndsHolds {
    locks: Weak<Locks>,
}

impl Drop for EndsHolds {
    fn drop(&mut self) {
        let Some(locks) = self.locks.upgrade() else {
            return;
        };
        // Kept until their holds are lost: a detached hold's entry has nobody else once the client is
        // gone.
        let entries = locks.all();
        warn_of_what_is_left(&locks.shared);
        // In this order: those who are woken find that the client is gone.
        locks.shared.gone.cancel();
        locks.timers.end();
        locks.set_life(Life::Gone);
        for entry in entries {
            entry.step(|core, now, out| core.lose_all(now, LossReason::Closed, out));
        }
    }
}

/// A runtime that ends releases nothing.
fn warn_of_what_is_left(shared: &Shared) {
    let counts = shared.tally.counts();
    let under_way = counts.acquiring + counts.releasing;
    if !shared.is_closed() && counts.held + under_way > 0 {
        event!(
            WARN,
            held = counts.held,
            under_way,
            "the runtime has ended with locks that nobody releases: their leases free them; close the client before"
        );
    }
}

/// The renewal task. It ends with `stop`, with the client, or with its runtime.
pub(crate) fn run(locks: &Arc<Locks>, stop: CancellationToken) -> impl Future<Output = ()> + use<> {
    let ends_holds = EndsHolds {
        locks: Arc::downgrade(locks),
    };
    async move {
        let locks = &ends_holds.locks;
        let by_slot = Arc::new(AtomicBool::new(false));
        let mut calls = JoinSet::new();
        loop {
            let batches = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                fired = next_fired(locks) => match fired {
                    Some((locks, fired)) => due(&locks, fired, by_slot.load(Ordering::Relaxed)),
                    None => return,
                },
                Some(again) = calls.join_next(), if !calls.is_empty() => again.unwrap_or_default(),
            };
            for batch in batches {
                calls.spawn(renew(batch, Arc::clone(&by_slot)));
            }
        }
    }
}

async fn next_fired(locks: &Weak<Locks>) -> Option<(Arc<Locks>, Vec<FiredTimer<Entry>>)> {
    // Unconstrained: tokio would hand out 128 timers at a time, and a beat would fall apart into
    // small calls. The loop inside ends when no timer is due any more.
    coop::unconstrained(std::future::poll_fn(|context| {
        // Upgraded for each poll only: a sleeping watchdog does not keep its client alive.
        let Some(locks) = locks.upgrade() else {
            return Poll::Ready(None);
        };
        match locks.timers.poll_fired(context) {
            Poll::Ready(fired) => Poll::Ready(Some((locks, fired))),
            Poll::Pending => Poll::Pending,
        }
    }))
    .await
}

/// One key of a batch, and whom its answer concerns. Dropped without an answer, it says so to the
/// core.
struct BatchItem {
    entry: Arc<Entry>,
    owner: ThreadId,
    generation: Generation,
    renewal: RenewalKey,
    answered: bool,
}

/// The locks of one call, all of one connection.
struct Batch {
    items: Vec<BatchItem>,
    /// By then its outcome is reported, so that the timer of a hold need not run while its renewal is
    /// under way.
    limit: Instant,
}

/// What is due of the fired timers, in batches that each go over one connection.
fn due(locks: &Locks, fired: Vec<FiredTimer<Entry>>, by_slot: bool) -> Vec<Batch> {
    let shared = &locks.shared;
    let limit = Instant::now() + shared.command_timeout() * 2;
    let mut routes: BTreeMap<usize, Vec<BatchItem>> = BTreeMap::new();
    for FiredTimer { lock, owner, .. } in fired {
        let Some(entry) = lock.upgrade() else {
            continue;
        };
        let request = entry.step(|core, now, out| core.timer_fired(now, owner, out));
        let Some(request) = request else { continue };
        let key = Arc::clone(entry.name.key());
        let group = routes.entry(entry.route().number()).or_default();
        let renewal = RenewalKey {
            key,
            field: request.field,
            asked: request.asked,
        };
        group.push(BatchItem {
            entry,
            owner,
            generation: request.generation,
            renewal,
            answered: false,
        });
    }
    routes
        .into_values()
        .flat_map(|items| batches(items, by_slot, limit))
        .collect()
}

/// Cuts what goes over one connection into calls.
fn batches(items: Vec<BatchItem>, by_slot: bool, limit: Instant) -> Vec<Batch> {
    let mut groups: BTreeMap<u16, Vec<BatchItem>> = BTreeMap::new();
    for item in items {
        let group = if by_slot {
            slot_of(&item.renewal.key)
        } else {
            0
        };
        groups.entry(group).or_default().push(item);
    }
    let parts = groups.into_values().flat_map(|items| cut(items, BATCH_MAX));
    parts.map(|items| Batch { items, limit }).collect()
}

/// Parts of at most that length, each with room for what it has and no more; every item is moved once.
/// Of a cluster there may be a part for each slot, of a few locks.
fn cut<T>(items: Vec<T>, length: usize) -> impl Iterator<Item = Vec<T>> {
    let mut items = items.into_iter();
    std::iter::from_fn(move || {
        let mut part = Vec::with_capacity(length.min(items.len()));
        part.extend(items.by_ref().take(length));
        Some(part).filter(|part| !part.is_empty())
    })
}

/// Renews one batch. What was refused for the company it was in comes back, in smaller batches that
/// are to be sent at once: by slot if the server is a node of a cluster; halved if it may be because
/// of a key, so that one bad name costs no other its lease.
async fn renew(batch: Batch, by_slot: Arc<AtomicBool>) -> Vec<Batch> {
    let Batch { mut items, limit } = batch;
    let Some(first) = items.first() else {
        return Vec::new();
    };
    let shared = Arc::clone(first.entry.shared());
    match call(&shared, &items, limit).await {
        Ok(answer) if answer.value.len() == items.len() => {
            Totals::add(&shared.totals.renewed, items.len() as u64);
            let sent_at = shared.clock.time(answer.sent_at);
            for (item, renewed) in items.iter_mut().zip(answer.value) {
                item.report(match renewed {
                    RenewReply::Held => RenewOutcome::Held {
                        sent_at,
                        asked: item.renewal.asked,
                    },
                    RenewReply::Gone => RenewOutcome::Lost(LossReason::Gone),
                    RenewReply::Taken => RenewOutcome::Lost(LossReason::Taken),
                    RenewReply::Changed => RenewOutcome::Lost(LossReason::Changed),
                });
            }
        }
        Err(failed) if is_about_slots(&failed.error) && has_many_slots(&items) => {
            by_slot.store(true, Ordering::Relaxed);
            return batches(items, true, limit);
        }
        Err(failed) if items.len() > 1 && is_about_a_key(&failed.error) => {
            let other = items.split_off(items.len() / 2);
            return vec![
                Batch { items, limit },
                Batch {
                    items: other,
                    limit,
                },
            ];
        }
        answer => {
            let problem = answer.err().map(|failed| failed.error.to_string());
            items
                .iter_mut()
                .for_each(|item| item.report(RenewOutcome::Unknown));
            event!(WARN, locks = items.len(), problem, "renewal failed");
        }
    }
    Vec::new()
}

/// One call, as soon as there are few enough others.
async fn call(
    shared: &Shared,
    items: &[BatchItem],
    limit: Instant,
) -> Result<Answer<Vec<RenewReply>>, CallError> {
    let entry = &items[0].entry;
    let timeout = shared.command_timeout();
    let permit = entry.route().bulk(Bulk::Renewals);
    let Ok(_permit) = tokio::time::timeout_at(limit - timeout, permit).await else {
        let error = Error::no_answer(Operation::Renewing, "earlier renewals have no answer yet");
        return Err(CallError {
            error,
            maybe_executed: false,
        });
    };
    let renewals: Vec<_> = items.iter().map(|item| item.renewal.clone()).collect();
    let timeout = timeout.min(limit.saturating_duration_since(Instant::now()));
    let retry = RetryPolicy { timeout, sends: 1 };
    script::call(entry.route(), Operation::Renewing, retry, || {
        Some(script::renew(&renewals))
    })
    .await
}

/// Whether the server may have refused the whole call because its keys are in different slots: a slot
/// that it does not serve, or keys that are not all in one.
fn is_about_slots(error: &Error) -> bool {
    matches!(
        error,
        Error::Refused {
            kind: RefusedKind::Cluster,
            ..
        }
    )
}

fn has_many_slots(items: &[BatchItem]) -> bool {
    let mut slots = items.iter().map(|item| slot_of(&item.renewal.key));
    let first = slots.next();
    slots.any(|slot| Some(slot) != first)
}

/// Whether the server may have refused the whole call because of one of its keys.
fn is_about_a_key(error: &Error) -> bool {
    matches!(
        error,
        Error::PermissionDenied { .. } | Error::NotALock { .. }
    )
}

impl BatchItem {
    fn report(&mut self, outcome: RenewOutcome) {
        self.answered = true;
        let (owner, generation) = (self.owner, self.generation);
        self.entry
            .step(|core, now, out| core.renewed(now, owner, generation, outcome, out));
    }
}

impl Drop for BatchItem {
    fn drop(&mut self) {
        if !self.answered {
            self.report(RenewOutcome::Unknown);
        }
    }
}

/// Moves the end of a fixed lease.
pub(crate) async fn extend(
    entry: &Arc<Entry>,
    owner: ThreadId,
    hold: HoldId,
    status: &HoldStatus,
    lease: Duration,
) -> Result<(), Error> {
    check_lease("lease", lease)?;
    let shared = entry.shared();
    let lost = || match status.ending() {
        Some(Ending::Lost(reason)) => Error::lost(entry.name.given(), reason),
        Some(Ending::Released) | None => Error::lost(entry.name.given(), LossReason::Gone),
    };
    if shared.is_closed() {
        return Err(Error::Closed);
    }
    let found = entry.step(|core, now, out| {
        core.tick(now, out);
        Some((now, core.snapshot(now, owner, hold)?, core.field(owner)?))
    });
    let (now, snapshot, field) = found.ok_or_else(lost)?;
    let LeasePolicy::Fixed { limit, .. } = snapshot.policy else {
        let problem =
            "the watchdog renews this hold; only a hold with a fixed lease can be extended"
                .to_owned();
        return Err(Error::InvalidConfig {
            what: "extend",
            problem,
        });
    };
    if limit.is_some_and(|limit| local_deadline(now, lease) > limit) {
        let problem = "it reaches past the max_hold of this hold";
        return Err(Error::InvalidDuration {
            what: "lease",
            given: lease,
            problem,
        });
    }
    // Before it is sent: a job that releases the lock without an answer has to know of it.
    let extending =
        |core: &mut LockCore, now, out: &mut Effects| core.extending(now, owner, hold, lease, out);
    entry.step(extending).ok_or_else(lost)?;
    let asked = RenewalAsk::Extend(lease);
    let renewal = [RenewalKey {
        key: Arc::clone(entry.name.key()),
        field,
        asked,
    }];
    let call = || Some(script::renew(&renewal));
    let answer = script::call(entry.route(), Operation::Extending, shared.retry(), call).await;
    let answer = answer.map_err(|error| error.error)?;
    let sent_at = shared.clock.time(answer.sent_at);
    let reason = match answer.value.first() {
        Some(RenewReply::Held) => None,
        Some(RenewReply::Taken) => Some(LossReason::Taken),
        Some(RenewReply::Changed) => Some(LossReason::Changed),
        Some(RenewReply::Gone) | None => Some(LossReason::Gone),
    };
    let held = entry.step(|core, now, out| {
        match reason {
            None => core.extended(now, owner, hold, sent_at, lease, out),
            // It may have ended meanwhile, and its owner may have begun another one.
            Some(reason) if core.snapshot(now, owner, hold).is_some() => {
                core.lose_owner(now, owner, None, reason, out);
            }
            Some(_) => {}
        }
        core.snapshot(now, owner, hold).is_some()
    });
    if held { Ok(()) } else { Err(lost()) }
}

/// Locks in one script call.
const BATCH_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use super::cut;

    #[test]
    fn parts_have_room_for_what_they_have_and_no_more() {
        let all: Vec<_> = (0..1_050).collect();
        let parts: Vec<_> = cut(all.clone(), 100).collect();
        assert_eq!((parts.len(), parts.concat()), (11, all));
        let room: usize = parts.iter().map(Vec::capacity).sum();
        assert_eq!(room, 1_050);
        assert_eq!(cut(Vec::<u8>::new(), 100).count(), 0);
    }
}

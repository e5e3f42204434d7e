//! The watchdog: one task that sleeps until the first timer fires, and renews what is due.
//!
//! Holds that fall due within a tenth of the period are renewed together, up to 100 locks per script call (25
//! read holds; 25 locks if a server before Redis 7.2 reports changes), with concurrent calls. Timers do not keep entries alive, and a timer whose hold is gone does nothing.
//!
//! The client checks locks that servers report as changed by others.
//!
//! After a failover the client checks all affected locks immediately: those that were not replicated are lost, and it
//! notifies their holders.

mod batch;
mod extend;
mod looks;

use std::hash::Hash;
use std::sync::{Arc, Weak};
use std::task::Poll;

use redisson_lock_core::input::{ClientEnds, TimerFires};
use redisson_lock_core::{Life, LossReason, RenewOutcome, Total};
use tokio::task::{JoinSet, coop};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::base::runtime::event;
use crate::base::timers::FiredTimer;
use crate::error::{Error, Operation, RefusalKind, RefusedKind};
use crate::redis::{BackgroundClass, ReplicaProbe};
use crate::script::{self, CallError, RenewalKey, RetryPolicy, ScriptAnswer};
use crate::state::entry::{Entry, Locks};
use crate::state::shared::Shared;

use batch::{Batch, BatchItem, PART, Recheck, Renewals, report};
pub(crate) use extend::extend;
use looks::Looks;

/// Dropped with the renewal task, when the client ends or its runtime does: nothing renews the holds
/// any more, or would notice that they are lost.
struct EndsHolds {
    locks: Weak<Locks>,
}

impl Drop for EndsHolds {
    fn drop(&mut self) {
        let Some(locks) = self.locks.upgrade() else {
            return;
        };
        // Kept until their holds are lost: a detached hold's entry has no other reference once the client is
        // gone.
        let entries = locks.all();
        warn_unreleased(&locks.shared);
        // In this order: those who are woken find that the client is gone.
        locks.shared.gone();
        locks.timers.end();
        locks.set_life(Life::Gone);
        for entry in entries {
            let reason = LossReason::Closed;
            entry.step(ClientEnds { reason });
        }
    }
}

/// A runtime that ends releases nothing.
fn warn_unreleased(shared: &Shared) {
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
        let (switches, reports) = match locks.upgrade() {
            Some(locks) => {
                let redis = &locks.shared.redis;
                (redis.switches(), Arc::clone(redis.reports()))
            }
            None => return,
        };
        let mut calls = JoinSet::new();
        let (mut recheck, mut looks) = (Recheck::default(), Looks::default());
        loop {
            let batches = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                due = next_due(locks) => match due {
                    Some(due) => due,
                    None => return,
                },
                routes = switches.next() => match locks.upgrade() {
                    Some(locks) => {
                        recheck.begin(&locks, &routes);
                        Vec::new()
                    }
                    None => return,
                },
                Some(again) = calls.join_next(), if !calls.is_empty() => again.unwrap_or_default(),
                () = recheck.log_is_due() => {
                    recheck.log(None);
                    Vec::new()
                }
                // Not beside a recheck, which is of more interest: reports may come without a pause.
                changed = reports.next(), if !recheck.is_under_way() => match locks.upgrade() {
                    Some(locks) => {
                        looks.add(&locks, changed);
                        looks.take(&locks)
                    }
                    None => return,
                },
                () = looks.are_due() => match locks.upgrade() {
                    Some(locks) => looks.take(&locks),
                    None => return,
                },
                // What was begun goes on in between.
                () = tokio::task::yield_now(), if recheck.is_under_way() => recheck.go_on(),
            };
            for batch in batches {
                calls.spawn(renew(batch));
            }
        }
    }
}

/// Waits for the renewals that fall due, in batches that each go over one connection.
async fn next_due(locks: &Weak<Locks>) -> Option<Vec<Batch>> {
    // Unconstrained: tokio would hand out 128 timers at a time, and a beat would fall apart into
    // small calls. The loop inside ends when no timer is due any more.
    coop::unconstrained(std::future::poll_fn(|context| {
        // Upgraded for each poll only: a sleeping watchdog does not keep its client alive.
        let Some(locks) = locks.upgrade() else {
            return Poll::Ready(None);
        };
        let limit = || Instant::now() + locks.shared.command_timeout() * 2;
        let mut due = None;
        // In parts: what a lock's timer has brought into the caches is there when the lock is asked.
        while let Poll::Ready(fired) = locks.timers.poll_fired(context, PART) {
            let is_last = fired.len() < PART;
            let (_, due) = due.get_or_insert_with(|| (limit(), Renewals::default()));
            add_due(due, fired);
            if is_last {
                break;
            }
        }
        match due {
            Some((limit, due)) => Poll::Ready(Some(due.batches(limit))),
            None => Poll::Pending,
        }
    }))
    .await
}

fn add_due(due: &mut Renewals, fired: Vec<FiredTimer<Entry>>) {
    for FiredTimer { lock: entry, owner } in fired {
        let request = entry.step(TimerFires { owner });
        if let Some(request) = request {
            due.add(&entry, owner, request);
        }
    }
}

/// Renews one batch. What was refused for the company it was in comes back, in smaller batches that
/// are to be sent immediately: halved if it may be because of a key, so that one bad name costs no other its
/// lease.
async fn renew(batch: Batch) -> Vec<Batch> {
    let Batch { mut items, limit } = batch;
    let Some(first) = items.first() else {
        return Vec::new();
    };
    let (entry, replicas) = (Arc::clone(&first.entry), first.replicas);
    let shared = entry.shared();
    let confirming =
        RenewalCheck::prepare(&entry, replicas, limit - shared.command_timeout()).await;
    match call(shared, &items, limit).await {
        Ok(answer) if answer.value.len() == items.len() => {
            let renewals = renewals(&items);
            shared.totals.count(Total::Renewals, renewals as u64);
            let renewed = items.iter_mut().zip(&answer.value);
            report(
                renewed.filter_map(|(item, renewed)| {
                    Some((item, RenewOutcome::Lost((*renewed).err()?)))
                }),
            );
            items.retain(|item| !item.is_answered());
            if items.is_empty() {
                return Vec::new();
            }
            let held = items.iter().map(|item| &item.renewal);
            let until = limit.min(Instant::now() + shared.command_timeout());
            let acknowledged = confirming.acknowledged(&entry, held, answer.sent_at, until);
            let acknowledged = tokio::time::timeout_at(limit, acknowledged).await;
            let acknowledged = acknowledged.unwrap_or(0);
            if acknowledged < replicas {
                let problem = format!("{acknowledged} of {replicas} replicas have confirmed it");
                failed(&items, acknowledged, Some(problem));
            }
            let sent_at = shared.clock.time(answer.sent_at);
            report(items.iter_mut().map(|item| {
                let asked = item.renewal.asked;
                let held = RenewOutcome::Held {
                    sent_at,
                    asked,
                    acknowledged,
                };
                (item, held)
            }));
        }
        Err(failed) if items.len() > 1 && may_succeed_alone(&failed.error) => {
            let alone = items.into_iter().map(|item| vec![item]);
            return alone.map(|items| Batch { items, limit }).collect();
        }
        Err(failed) if items.len() > 1 && is_about_a_key(&failed.error) => {
            let other = items.split_off(items.len() / 2);
            return [items, other].map(|items| Batch { items, limit }).into();
        }
        answer => {
            let problem = answer.err().map(|failed| failed.error);
            // The text names the server too, and of several in turn it would be another reason each time.
            let refused = problem.as_ref().and_then(Error::refused_as);
            let reason = (problem.as_ref().map(std::mem::discriminant), refused);
            let unknown = items.iter_mut();
            report(unknown.map(|item| (item, RenewOutcome::Unknown)));
            failed(&items, reason, problem.map(|problem| problem.to_string()));
        }
    }
    Vec::new()
}

fn failed(items: &[BatchItem], reason: impl Hash, problem: Option<String>) {
    let is_news = |item: &&BatchItem| {
        let lately = &item.entry.shared().failed_renewals;
        lately.is_news((&item.renewal.key, &item.renewal.field, &reason))
    };
    // The next renewal finds out what a look has not.
    let locks = items.iter().filter(|item| !item.is_look);
    let locks = locks.filter(is_news).count();
    if locks > 0 {
        event!(WARN, locks, problem, "renewal failed");
    }
}

fn renewals(items: &[BatchItem]) -> usize {
    items.iter().filter(|item| !item.is_look).count()
}

/// One call, as soon as there are few enough others.
async fn call(
    shared: &Shared,
    items: &[BatchItem],
    limit: Instant,
) -> Result<ScriptAnswer<Vec<Result<(), LossReason>>>, CallError> {
    let entry = &items[0].entry;
    let timeout = shared.command_timeout();
    let permit = entry.route().bulk(BackgroundClass::Renewals);
    let Ok(_permit) = tokio::time::timeout_at(limit - timeout, permit).await else {
        let text = "earlier renewals have no answer yet";
        let error = entry.route().no_answer(Operation::Renewing, text);
        return Err(CallError {
            error,
            maybe_executed: false,
        });
    };
    let renewals = items.iter().map(|item| &item.renewal);
    let timeout = timeout.min(limit.saturating_duration_since(Instant::now()));
    let retry = RetryPolicy { timeout, sends: 1 };
    script::call(entry.route(), Operation::Renewing, retry, || {
        Some(script::renew(renewals.clone()))
    })
    .await
}

/// Who confirms the renewals of one call.
struct RenewalCheck {
    replicas: u32,
    /// `None`: none of them needs to, or there is no connection.
    confirmer: Option<ReplicaProbe>,
}

impl RenewalCheck {
    /// Before the call: a connection that is opened after it may lead to another server.
    async fn prepare(entry: &Entry, replicas: u32, limit: Instant) -> Self {
        let confirmer = match replicas {
            0 => None,
            _ => {
                let replica_route = entry.route().waiting_for(replicas);
                replica_route.confirmer(limit).await.ok()
            }
        };
        Self {
            replicas,
            confirmer,
        }
    }

    /// After it: how many replicas have what was sent then about these locks, which one server has; `until` at the
    /// latest, or as late as Redis notices that.
    async fn acknowledged(
        &self,
        entry: &Entry,
        held: impl Iterator<Item = &RenewalKey>,
        sent_at: Instant,
        until: Instant,
    ) -> u32 {
        let Some(confirmer) = &self.confirmer else {
            return 0;
        };
        let replica_route = entry.route().waiting_for(self.replicas);
        // One write is enough for all of them: the server that makes it has executed the call before.
        let holds = held.map(|held| (&held.key, &held.field));
        let touch = script::touch(entry.name.kind(), holds);
        confirmer
            .acknowledged(replica_route, touch, sent_at, until)
            .await
    }
}

/// Whether the server takes each of the keys by itself. Of those of a slot that is on its way, some are at one node and some
/// at the other; or too many are gone; or a proxy of a cluster wants the keys of a call in one slot.
fn may_succeed_alone(error: &Error) -> bool {
    matches!(
        error.refusal(),
        Some(
            RefusalKind::TryAgain
                | RefusalKind::TooManyKeys
                | RefusalKind::Known(RefusedKind::Cluster)
        )
    )
}

/// Whether the server may have refused the whole call because of one of its keys.
fn is_about_a_key(error: &Error) -> bool {
    matches!(
        error,
        Error::PermissionDenied { .. } | Error::NotALock { .. }
    )
}

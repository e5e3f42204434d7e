//! The watchdog: which holds are kept alive, and when each is looked at again.
//!
//! One timer for every owner that holds a lock, in one queue; one task that sleeps until the first
//! of them. Who falls due within a tenth of the period is renewed together, up to 100 locks a
//! script call, the calls side by side. A node of a cluster takes only keys of one slot in a call:
//! then each slot has calls of its own. The timers do not keep entries alive; a timer whose hold is
//! gone means nothing.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::{JoinSet, coop};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::time::{DelayQueue, delay_queue};

use crate::entry::{Entries, EntryRef, RenewalOutcome};
use crate::error::{Error, LossReason, RefusedKind};
use crate::redis::{Bulk, slot_of};
use crate::runtime::Runtime;
use crate::script::{self, Answer, CallError, Renewal, Renewed, RetryPolicy};
use crate::shared::{Shared, ShutdownOnDrop, Totals};

/// The timers of a client.
pub(crate) struct Renewals {
    timers: Mutex<Timers>,
    period: Duration,
    epoch: Instant,
    /// Timers are made in here, because guards may be looked at and dropped anywhere.
    runtime: Runtime,
    /// No timer is made or moved any more: the task that works them off is gone.
    over: AtomicBool,
    /// The server has shown that it is a node of a cluster.
    by_slot: AtomicBool,
}

#[derive(Default)]
struct Timers {
    queue: DelayQueue<Due>,
    /// By generation. A key of the queue is used again once its timer has fired, so nobody else may
    /// keep one.
    keys: HashMap<u64, delay_queue::Key>,
}

/// Whose timer it is.
#[derive(Debug)]
struct Due {
    key: Arc<str>,
    owner: i64,
    generation: u64,
}

impl Renewals {
    pub(crate) fn new(watchdog_timeout: Duration, runtime: Runtime) -> Self {
        Self {
            timers: Mutex::default(),
            period: watchdog_timeout / 3,
            epoch: Instant::now(),
            runtime,
            over: AtomicBool::new(false),
            by_slot: AtomicBool::new(false),
        }
    }

    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// Moves the timer of a generation, or makes it.
    pub(crate) fn set(
        &self,
        generation: u64,
        at: Instant,
        whose: impl FnOnce() -> (Arc<str>, i64),
    ) {
        if self.over.load(Ordering::Acquire) {
            return;
        }
        let _entered = self.runtime.enter();
        let mut timers = self.timers.lock();
        let Timers { queue, keys } = &mut *timers;
        match keys.get(&generation) {
            Some(timer) => queue.reset_at(timer, at),
            None => {
                let (key, owner) = whose();
                let timer = queue.insert_at(
                    Due {
                        key,
                        owner,
                        generation,
                    },
                    at,
                );
                keys.insert(generation, timer);
            }
        }
    }

    /// Removes the timer of a generation. The last one is left to fire for nothing: removing it
    /// would wake the renewal task, and so would the next lock, on every single uncontended pair.
    pub(crate) fn remove(&self, generation: u64) {
        let mut timers = self.timers.lock();
        if let Some(timer) = timers.keys.remove(&generation)
            && timers.queue.len() > 1
            && !self.over.load(Ordering::Acquire)
        {
            timers.queue.remove(&timer);
        }
    }

    /// Owners that have a timer.
    pub(crate) fn len(&self) -> usize {
        self.timers.lock().keys.len()
    }

    /// The timers that have fired.
    fn poll_fired(&self, context: &mut Context<'_>) -> Poll<Vec<Due>> {
        let mut timers = self.timers.lock();
        let Timers { queue, keys } = &mut *timers;
        let mut fired = Vec::new();
        while let Poll::Ready(Some(due)) = queue.poll_expired(context) {
            fired.push(due.into_inner());
        }
        if fired.is_empty() {
            return Poll::Pending;
        }
        for due in &fired {
            keys.remove(&due.generation);
        }
        Poll::Ready(fired)
    }

    /// Moves a renewal forward to the last beat before it, so that all that fall due within a tenth
    /// of the period have their timers at the same instant and are renewed together.
    pub(crate) fn on_beat(&self, due: Instant) -> Instant {
        let beat = self.slack().as_nanos();
        let since = due.saturating_duration_since(self.epoch).as_nanos();
        let early = u64::try_from(since % beat).unwrap_or(0);
        due - Duration::from_nanos(early)
    }

    fn slack(&self) -> Duration {
        self.period / 10
    }
}

/// The renewal task. It ends with `stop`, with the client, or with its runtime.
pub(crate) async fn run(shutdown: ShutdownOnDrop, stop: CancellationToken) {
    let shared = &shutdown.shared;
    let mut calls = JoinSet::new();
    loop {
        let chunks = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            fired = next_fired(shared) => match fired {
                Some((shared, fired)) => due(&shared, fired),
                None => return,
            },
            Some(again) = calls.join_next(), if !calls.is_empty() => again.unwrap_or_default(),
        };
        let Some(shared) = shared.upgrade() else {
            return;
        };
        for chunk in chunks {
            calls.spawn(renew(Arc::clone(&shared), chunk));
        }
    }
}

async fn next_fired(shared: &Weak<Shared>) -> Option<(Arc<Shared>, Vec<Due>)> {
    // Unconstrained: tokio would hand out 128 timers at a time, and a beat would fall apart into
    // small calls. The loop inside ends when no timer is due any more.
    coop::unconstrained(std::future::poll_fn(|context| {
        // Upgraded for each poll only: a sleeping watchdog does not keep its client alive.
        let Some(shared) = shared.upgrade() else {
            return Poll::Ready(None);
        };
        match shared.renewals.poll_fired(context) {
            Poll::Ready(fired) => Poll::Ready(Some((shared, fired))),
            Poll::Pending => Poll::Pending,
        }
    }))
    .await
}

/// One key of a chunk, and whom its answer concerns.
struct Item {
    entry: EntryRef,
    owner: i64,
    generation: u64,
    renewal: Renewal,
}

/// The locks of one call, all of one connection.
struct Chunk {
    items: Vec<Item>,
    /// By then its outcome is reported, so that the timer of a hold need not run while its renewal
    /// is under way.
    limit: Instant,
}

/// What is due of the fired timers, in chunks that each go over one connection.
fn due(shared: &Arc<Shared>, fired: Vec<Due>) -> Vec<Chunk> {
    let now = Instant::now();
    let slack = shared.renewals.slack();
    let mut lanes: Vec<Vec<Item>> = Vec::new();
    for Due {
        key,
        owner,
        generation,
    } in fired
    {
        let Some(entry) = Entries::find(shared, &key) else {
            continue;
        };
        let Some(due) = entry.due(owner, generation, now, slack) else {
            continue;
        };
        if lanes.len() <= entry.lane {
            lanes.resize_with(entry.lane + 1, Vec::new);
        }
        let renewal = Renewal {
            key,
            field: due.field,
            lease: due.lease,
        };
        lanes[entry.lane].push(Item {
            entry,
            owner,
            generation,
            renewal,
        });
    }
    let by_slot = shared.renewals.by_slot.load(Ordering::Relaxed);
    let limit = now + shared.config.command_timeout * 2;
    lanes
        .into_iter()
        .flat_map(|items| chunks(items, by_slot, limit))
        .collect()
}

/// Cuts what goes over one connection into calls.
fn chunks(items: Vec<Item>, by_slot: bool, limit: Instant) -> Vec<Chunk> {
    let mut groups: BTreeMap<u16, Vec<Item>> = BTreeMap::new();
    for item in items {
        let group = if by_slot {
            slot_of(&item.renewal.key)
        } else {
            0
        };
        groups.entry(group).or_default().push(item);
    }
    let mut chunks = Vec::new();
    for mut items in groups.into_values() {
        while !items.is_empty() {
            let rest = items.split_off(items.len().min(CHUNK));
            chunks.push(Chunk {
                items: std::mem::replace(&mut items, rest),
                limit,
            });
        }
    }
    chunks
}

/// Renews one chunk. What was refused for the company it was in comes back, in smaller chunks that
/// are to be sent at once: by slot if the server is a node of a cluster; halved if it may be
/// because of a key, so that one bad name costs no other its lease.
async fn renew(shared: Arc<Shared>, chunk: Chunk) -> Vec<Chunk> {
    let Chunk { mut items, limit } = chunk;
    match call(&shared, &items, limit).await {
        Ok(answer) if answer.value.len() == items.len() => {
            Totals::add(&shared.totals.renewed, items.len());
            for (item, renewed) in items.iter().zip(answer.value) {
                item.report(match renewed {
                    Renewed::Held => RenewalOutcome::Renewed {
                        sent_at: answer.sent_at,
                        lease: item.renewal.lease,
                    },
                    Renewed::Gone => RenewalOutcome::Lost(LossReason::Gone),
                    Renewed::Taken => RenewalOutcome::Lost(LossReason::Taken),
                    Renewed::Changed => RenewalOutcome::Lost(LossReason::Changed),
                });
            }
        }
        Err(unanswered) if is_about_slots(&unanswered.error) && has_many_slots(&items) => {
            shared.renewals.by_slot.store(true, Ordering::Relaxed);
            return chunks(items, true, limit);
        }
        Err(unanswered) if items.len() > 1 && is_about_a_key(&unanswered.error) => {
            let other = items.split_off(items.len() / 2);
            return vec![
                Chunk { items, limit },
                Chunk {
                    items: other,
                    limit,
                },
            ];
        }
        answer => {
            let problem = answer.err().map(|unanswered| unanswered.error.to_string());
            tracing::warn!(target: "redisson_lock", locks = items.len(), problem, "renewal failed");
            for item in &items {
                item.report(RenewalOutcome::Unknown);
            }
        }
    }
    Vec::new()
}

/// One call, as soon as there are few enough others.
async fn call(
    shared: &Shared,
    items: &[Item],
    limit: Instant,
) -> Result<Answer<Vec<Renewed>>, CallError> {
    let timeout = shared.config.command_timeout;
    let lane = items[0].entry.lane;
    let place = tokio::time::timeout_at(limit - timeout, shared.redis.place(lane, Bulk::Renewals));
    let Ok(_place) = place.await else {
        let source = "earlier renewals have no answer yet";
        return Err(CallError {
            error: Error::no_answer("renewing", source),
            maybe_executed: false,
        });
    };
    let renewals: Vec<_> = items.iter().map(|item| item.renewal.clone()).collect();
    let timeout = timeout.min(limit.saturating_duration_since(Instant::now()));
    let sent = AtomicBool::new(false);
    let copy = || script::renew(&renewals);
    script::call(
        &shared.redis,
        lane,
        "renewing",
        RetryPolicy { timeout, sends: 1 },
        &sent,
        copy,
    )
    .await
}

/// Whether the server may have refused the whole call because its keys are in different slots: a
/// slot that it does not serve, or keys that are not all in one.
fn is_about_slots(error: &Error) -> bool {
    matches!(
        error,
        Error::Refused {
            kind: RefusedKind::Cluster,
            ..
        }
    )
}

fn has_many_slots(items: &[Item]) -> bool {
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

impl Item {
    fn report(&self, outcome: RenewalOutcome) {
        self.entry.renewed(self.owner, self.generation, outcome);
    }
}

/// Locks in one script call.
const CHUNK: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    fn whose() -> (Arc<str>, i64) {
        ("a".into(), 1)
    }

    #[tokio::test(start_paused = true)]
    async fn timers_of_one_beat_fire_together() {
        let renewals = Renewals::new(
            Duration::from_secs(30),
            Runtime::current().expect("in a runtime"),
        );
        let now = Instant::now();
        for (generation, ms) in [(1, 10_100), (2, 10_900), (3, 11_000)] {
            renewals.set(
                generation,
                renewals.on_beat(now + Duration::from_millis(ms)),
                whose,
            );
        }
        let fired = std::future::poll_fn(|context| renewals.poll_fired(context)).await;
        assert_eq!(fired.len(), 2);
        assert_eq!(now.elapsed(), Duration::from_secs(10));
        assert_eq!(renewals.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_timer_is_left_to_fire_and_a_moved_one_is_not_made_again() {
        let renewals = Renewals::new(
            Duration::from_secs(30),
            Runtime::current().expect("in a runtime"),
        );
        let at = |secs| Instant::now() + Duration::from_secs(secs);
        renewals.set(1, at(1), whose);
        renewals.set(2, at(2), whose);
        renewals.remove(1);
        renewals.set(2, at(3), || unreachable!("it is moved, not made"));
        renewals.remove(2);
        assert_eq!(renewals.len(), 0);
        assert_eq!(
            renewals.timers.lock().queue.len(),
            1,
            "nobody is woken for the last one"
        );
    }
}

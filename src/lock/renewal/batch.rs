//! The batches of renewals: the holds that fall due, or must be checked, at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use redisson_lock_core::input::{RenewalEnds, ServerChanges};
use redisson_lock_core::{Face, Generation, OwnerKey, RenewOutcome, RenewalRequest};
use tokio::time::Instant;

use crate::base::runtime::{Throttle, event, sleep_until};
use crate::kind::LockKind;
use crate::redis::slot_of;
use crate::script::{RenewalKey, renewed_by};
use crate::state::entry::{Entry, Locks};

/// One key of a batch, and whom its answer concerns. Dropped without an answer, it says so to the
/// core.
pub(super) struct BatchItem {
    pub(super) entry: Arc<Entry>,
    owner: OwnerKey,
    generation: Generation,
    pub(super) renewal: RenewalKey,
    /// How many replicas must confirm it.
    pub(super) replicas: u32,
    /// It renews nothing: others have changed the lock, and only a loss is of interest.
    pub(super) is_look: bool,
    answered: bool,
}

/// The locks of one call: all of one connection, renewed by one script, and confirmed by the same number of replicas.
pub(super) struct Batch {
    pub(super) items: Vec<BatchItem>,
    /// By then its outcome is reported, so that the timer of a hold need not run while its renewal is
    /// under way.
    pub(super) limit: Instant,
}

/// Holds to look at, by what can be sent together.
#[derive(Default)]
pub(super) struct Renewals {
    routes: BTreeMap<(usize, u32, &'static str), Vec<Vec<BatchItem>>>,
    count: usize,
}

impl Renewals {
    pub(super) fn add(&mut self, entry: &Arc<Entry>, owner: OwnerKey, request: RenewalRequest) {
        self.push(entry, owner, request, false);
    }

    pub(super) fn add_look(
        &mut self,
        entry: &Arc<Entry>,
        owner: OwnerKey,
        request: RenewalRequest,
    ) {
        self.push(entry, owner, request, true);
    }

    fn push(
        &mut self,
        entry: &Arc<Entry>,
        owner: OwnerKey,
        request: RenewalRequest,
        is_look: bool,
    ) {
        let renewal = RenewalKey::new(entry.name_of(owner), &request.field, request.asked);
        let script = renewed_by(renewal.kind);
        let calls = self
            .routes
            .entry((entry.route().number(), request.replicas, script))
            .or_default();
        let item = BatchItem {
            entry: Arc::clone(entry),
            owner,
            generation: request.generation,
            renewal,
            replicas: request.replicas,
            is_look,
            answered: false,
        };
        self.count += 1;
        match calls.last_mut() {
            Some(items) if items.len() < batch_max(entry, item.renewal.kind) => items.push(item),
            Some(_) | None => calls.push(vec![item]),
        }
    }

    fn len(&self) -> usize {
        self.count
    }

    /// The calls of what goes over one connection, and waits for as many replicas.
    pub(super) fn batches(self, limit: Instant) -> Vec<Batch> {
        let calls = self.routes.into_values().flatten();
        calls.map(|items| Batch { items, limit }).collect()
    }
}

impl BatchItem {
    pub(super) fn is_answered(&self) -> bool {
        self.answered
    }

    fn report(&mut self, outcome: RenewOutcome, timers: &mut ChangedTimers) {
        self.answered = true;
        match outcome {
            // Without an answer it is not tracked any more.
            RenewOutcome::Unknown if self.is_look => {
                let reports = self.entry.shared().redis.reports();
                return reports.add_again(self.entry.name.key());
            }
            RenewOutcome::Held { .. } if self.is_look => return,
            RenewOutcome::Held { .. } | RenewOutcome::Unknown | RenewOutcome::Lost(_) => {}
        }
        let (owner, generation) = (self.owner, self.generation);
        let ended = RenewalEnds {
            owner,
            generation,
            outcome,
        };
        self.entry.step_of_batch(&mut timers.0, ended);
    }
}

/// Notes what came of the renewals of a batch.
pub(super) fn report<'a>(outcomes: impl Iterator<Item = (&'a mut BatchItem, RenewOutcome)>) {
    let mut timers = ChangedTimers::default();
    outcomes.for_each(|(item, outcome)| item.report(outcome, &mut timers));
}

/// Timers that are set when this is dropped, all at one time.
#[derive(Default)]
struct ChangedTimers(Vec<(Arc<Entry>, OwnerKey)>);

impl Drop for ChangedTimers {
    fn drop(&mut self) {
        if let Some((entry, _)) = self.0.first() {
            let timers = self.0.iter();
            let timers = timers.map(|(entry, owner)| (entry, *owner));
            entry.locks.timers.set(timers);
        }
    }
}

impl Drop for BatchItem {
    fn drop(&mut self) {
        if !self.answered {
            self.report(RenewOutcome::Unknown, &mut ChangedTimers::default());
        }
    }
}

/// Locks in one script call: fewer where a call costs its keys times the commands that read. A hundred locks are 4 ms of a
/// server with Redis 7.0 then, four times 25 are 1.6 ms. A read hold has two keys and four such commands.
fn batch_max(entry: &Entry, kind: LockKind) -> usize {
    match kind.face() {
        Face::Read => BATCH_MAX / 4,
        _ if entry.shared().redis.reports().track_whole_calls() => BATCH_MAX / 4,
        _ => BATCH_MAX,
    }
}

const BATCH_MAX: usize = 100;

/// The holds that are still to be looked at because other servers have taken over, whether their renewal is due or
/// not. Ten thousand together would use up the time that each has for its answer before the first is sent, so they
/// are looked at in parts.
#[derive(Default)]
pub(super) struct Recheck {
    /// What can be sent together is side by side; the last is the next.
    entries: Vec<Weak<Entry>>,
    /// How many holds were looked at so far.
    holds: usize,
    log: Throttle,
}

impl Recheck {
    /// Begins with the locks of these routes. Their waiters attempt again: the new server may know nothing of a
    /// hold, and a message of the old one may be lost.
    pub(super) fn begin(&mut self, locks: &Locks, routes: &BTreeSet<u16>) {
        // The channel of a lock is in the slot of its key.
        let is_cluster = locks.shared.redis.is_cluster();
        let channels = locks.shared.redis.channels();
        channels.missed_of(|name| !is_cluster || routes.contains(&slot_of(name)));
        let is_of_them = |entry: &Arc<Entry>| routes.contains(&entry.route().group());
        let mut entries = locks.all();
        entries.retain(is_of_them);
        entries.sort_by_cached_key(|entry| entry.route().number());
        self.entries.extend(entries.iter().map(Arc::downgrade));
    }

    pub(super) fn is_under_way(&self) -> bool {
        !self.entries.is_empty()
    }

    /// The next part, as calls to be sent.
    pub(super) fn go_on(&mut self) -> Vec<Batch> {
        let mut rechecked = Renewals::default();
        let (mut last, mut of_last) = (None, 0);
        let mut limit = None;
        while let Some(entry) = self.entries.last() {
            let Some(entry) = entry.upgrade() else {
                self.entries.pop();
                continue;
            };
            let route = entry.route().number();
            // Not in the middle of what goes in one call.
            let is_between = last != Some(route) || of_last >= BATCH_MAX;
            if rechecked.len() >= PART && is_between {
                break;
            }
            if is_between {
                (last, of_last) = (Some(route), 0);
            }
            self.entries.pop();
            let timeout = entry.shared().command_timeout() * 2;
            limit.get_or_insert_with(|| Instant::now() + timeout);
            let requests = entry.step(ServerChanges {});
            for (owner, request) in requests {
                rechecked.add(&entry, owner, request);
                of_last += 1;
            }
        }
        self.holds += rechecked.len();
        if self.entries.is_empty() {
            let holds = std::mem::take(&mut self.holds);
            self.log(Some(holds).filter(|holds| *holds > 0));
        }
        let limit = limit.unwrap_or_else(Instant::now);
        rechecked.batches(limit)
    }

    /// When there is something to log that was held back.
    pub(super) async fn log_is_due(&self) {
        sleep_until(self.log.due()).await;
    }

    /// Logs how many holds were looked at, at most one line in five seconds. `None`: only what was held back.
    pub(super) fn log(&mut self, holds: Option<usize>) {
        if let Some(holds) = self.log.add(holds) {
            event!(
                WARN,
                holds,
                "failover detected: the holds on the new servers are checked"
            );
        }
    }
}

/// How many holds are looked at one after the other.
pub(super) const PART: usize = 200;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use test_support::{Server, tokio};

    use super::*;
    use crate::api::client::LockClient;

    /// Two servers of a cluster may be lost one after the other.
    #[tokio::test]
    async fn what_another_takeover_adds_comes_beside_what_is_still_to_be_looked_at() {
        let server = Server::start();
        let url = format!("redis://127.0.0.1:{}", server.port);
        let client = LockClient::connect(&url).await.expect("it answers");
        let guard = client.lock("a").lock().await.expect("free");
        let locks = &client.handle.locks;
        let group = guard.entry.route().group();
        let mut recheck = Recheck::default();
        recheck.begin(locks, &[group].into());
        recheck.begin(locks, &[group + 1].into());
        let looked_at: usize = recheck.go_on().iter().map(|batch| batch.items.len()).sum();
        assert_eq!(looked_at, 1);
        assert!(!recheck.is_under_way());
        guard.unlock().await.expect("held");
        client.close(Duration::from_secs(1)).await;
    }

    #[tokio::test]
    async fn a_call_has_a_hundred_locks_or_a_quarter_of_that_in_read_holds() {
        let server = Server::start();
        let url = format!("redis://127.0.0.1:{}", server.port);
        let builder = LockClient::builder().connections(1).tracking(false);
        let client = builder.connect(&url).await.expect("it answers");
        let mut guards = Vec::new();
        for nth in 0..=100 {
            let guard = client.lock(nth.to_string()).lock().await;
            guards.push(guard.expect("free"));
        }
        for nth in 0..=25 {
            let guard = client.rw_lock(format!("read {nth}")).read().lock().await;
            guards.push(guard.expect("no writer"));
        }
        let mut recheck = Recheck::default();
        let group = guards[0].entry.route().group();
        recheck.begin(&client.handle.locks, &[group].into());
        let batches = recheck.go_on();
        let mut calls: Vec<usize> = batches.iter().map(|batch| batch.items.len()).collect();
        calls.sort_unstable();
        assert_eq!(calls, [1, 1, 25, 100]);
        drop((batches, guards));
        client.close(Duration::from_secs(5)).await;
    }

    /// Their calls would use up the time of each other's answers.
    #[tokio::test]
    async fn many_holds_are_looked_at_in_parts_and_counted_once() {
        let server = Server::start();
        let url = format!("redis://127.0.0.1:{}", server.port);
        let builder = LockClient::builder().connections(1).tracking(false);
        let client = builder.connect(&url).await.expect("it answers");
        let mut guards = Vec::new();
        for nth in 0..PART * 2 {
            let guard = client.lock(nth.to_string()).lock().await;
            guards.push(guard.expect("free"));
        }
        let mut recheck = Recheck::default();
        let group = guards[0].entry.route().group();
        for _ in 0..2 {
            recheck.begin(&client.handle.locks, &[group].into());
            let mut parts: Vec<usize> = Vec::new();
            while recheck.is_under_way() {
                let batches = recheck.go_on();
                parts.push(batches.iter().map(|batch| batch.items.len()).sum());
            }
            assert_eq!(parts, [PART, PART]);
            assert_eq!(recheck.holds, 0, "they are in the log");
        }
        assert!(recheck.log.due().is_some(), "the first were logged");
        drop(guards);
        client.close(Duration::from_secs(5)).await;
    }
}

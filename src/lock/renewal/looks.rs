//! Checks locks that servers report as changed by others.
//!
//! A check only reads: it asks for a renewal with a lease of 0. A write would be reported to every other client with a
//! read hold of the lock, which would then check in turn.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redisson_lock_core::LockCore;
use tokio::time::Instant;

use super::batch::{Batch, Renewals};
use crate::base::runtime::{event, sleep_until};
use crate::redis::Changed;
use crate::state::entry::{Entry, Locks};

/// What is still to be looked at, in the order of the reports. In each window a lock is read at most once, no more holds
/// are than the window allows, and all locks are gone through at most once: what comes above it waits.
#[derive(Default)]
pub(super) struct Looks {
    waiting: VecDeque<Waiting>,
    /// The names of those.
    names: BTreeSet<Box<str>>,
    /// How many of those were reported one by one.
    reported: usize,
    /// Reported again in the window in which they were looked at.
    again: BTreeMap<Box<str>, Weak<Entry>>,
    /// Connections of these numbers may have missed reports.
    lanes: BTreeSet<usize>,
    /// When this window ends. `None`: nothing was looked at yet.
    until: Option<Instant>,
    /// Looked at in this window.
    seen: BTreeSet<Box<str>>,
    /// How many holds were, less what earlier windows allowed.
    holds: usize,
}

struct Waiting {
    name: Box<str>,
    entry: Weak<Entry>,
    /// It was reported by its name, and not with everything.
    is_reported: bool,
}

impl Looks {
    /// Others have changed these. What is not held here, or not any more, is of no interest.
    pub(super) fn add(&mut self, locks: &Locks, changed: Changed) {
        self.lanes.extend(changed.lanes);
        for name in changed.keys {
            let Some(entry) = locks.table.find(&name) else {
                continue;
            };
            if !entry.note_report() {
                continue;
            }
            // Replicas are asked by a write of this client over another connection, which is reported too.
            let is_reported = !entry.asks_replicas();
            self.push(name, Arc::downgrade(&entry), is_reported);
        }
        if self.reported > REPORTED_MAX {
            self.waiting.retain(|waiting| {
                if waiting.is_reported {
                    self.names.remove(&waiting.name);
                }
                !waiting.is_reported
            });
            self.reported = 0;
            locks.shared.redis.reports().pause(PAUSE);
            event!(
                WARN,
                pause = ?PAUSE,
                "others change held locks faster than they can be looked at: until then only renewals do"
            );
        }
    }

    fn push(&mut self, name: Box<str>, entry: Weak<Entry>, is_reported: bool) {
        if self.seen.contains(&name) {
            self.again.insert(name, entry);
        } else if self.names.insert(name.clone()) {
            self.reported += usize::from(is_reported);
            self.waiting.push_back(Waiting {
                name,
                entry,
                is_reported,
            });
        }
    }

    /// Everything that is held over connections that may have missed reports, once in a window: to find it takes a walk
    /// through all locks.
    fn push_lanes(&mut self, locks: &Locks) {
        let lanes = std::mem::take(&mut self.lanes);
        if lanes.is_empty() {
            return;
        }
        let mut entries = locks.all();
        entries.retain(|entry| lanes.contains(&entry.route().lane()) && entry.note_report());
        // What can be sent together is side by side.
        entries.sort_by_cached_key(|entry| entry.route().number());
        for entry in entries {
            self.push((**entry.name.key()).into(), Arc::downgrade(&entry), false);
        }
    }

    /// Waits until something is to be looked at that was held back.
    pub(super) async fn are_due(&self) {
        let is_behind =
            !(self.waiting.is_empty() && self.again.is_empty() && self.lanes.is_empty());
        sleep_until(self.until.filter(|_| is_behind)).await;
    }

    /// Takes the looks that may be sent now, as calls.
    pub(super) fn take(&mut self, locks: &Locks) -> Vec<Batch> {
        let now = Instant::now();
        if self.until.is_none_or(|until| until <= now) {
            self.until = Some(now + WINDOW);
            self.seen.clear();
            self.holds = self.holds.saturating_sub(HOLDS_A_WINDOW);
            for (name, entry) in std::mem::take(&mut self.again) {
                self.push(name, entry, true);
            }
            self.push_lanes(locks);
        }
        let mut looks = Renewals::default();
        while self.holds < HOLDS_A_WINDOW
            && let Some(next) = self.waiting.pop_front()
        {
            self.names.remove(&next.name);
            self.reported -= usize::from(next.is_reported);
            let Some(entry) = next.entry.upgrade() else {
                continue;
            };
            self.seen.insert(next.name);
            let requests = entry.peek(LockCore::looks);
            self.holds += requests.len();
            for (owner, request) in requests {
                looks.add_look(&entry, owner, request);
            }
        }
        looks.batches(now + locks.shared.command_timeout() * 2)
    }
}

/// How long a window is.
const WINDOW: Duration = Duration::from_millis(50);

/// 2,000 a second.
const HOLDS_A_WINDOW: usize = 100;

/// More locks than are looked at in a second.
const REPORTED_MAX: usize = 2_000;

const PAUSE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use test_support::{Server, tokio};

    use super::*;
    use crate::api::client::LockClient;
    use crate::lock::LockGuard;

    /// A client that holds this many locks.
    async fn holding(server: &Server, count: usize) -> (LockClient, Vec<LockGuard>) {
        let url = format!("redis://127.0.0.1:{}", server.port);
        let client = LockClient::connect(&url).await.expect("it answers");
        let mut guards = Vec::new();
        for nth in 0..count {
            let guard = client.lock(nth.to_string()).lock().await;
            guards.push(guard.expect("free"));
        }
        (client, guards)
    }

    fn looked_at(batches: &[Batch]) -> usize {
        batches.iter().map(|batch| batch.items.len()).sum()
    }

    #[tokio::test]
    async fn what_is_reported_again_is_looked_at_in_each_window_that_follows() {
        let server = Server::start();
        let (client, guards) = holding(&server, HOLDS_A_WINDOW).await;
        let locks = &client.handle.locks;
        let mut looks = Looks::default();
        for window in 0..4 {
            let keys = guards.iter().map(|guard| (**guard.entry.name.key()).into());
            let (keys, lanes) = (keys.collect(), BTreeSet::new());
            looks.add(locks, Changed { keys, lanes });
            let mut taken = looked_at(&looks.take(locks));
            if taken == 0 {
                looks.are_due().await;
                taken = looked_at(&looks.take(locks));
            }
            assert_eq!(taken, HOLDS_A_WINDOW, "window {window}");
            assert_eq!(looks.reported, 0, "all are looked at");
        }
        drop(guards);
        client.close(Duration::from_secs(5)).await;
    }

    /// To find what is held over a connection takes a walk through all locks.
    #[tokio::test]
    async fn what_is_held_over_a_connection_is_looked_at_once_for_each_report_and_not_all_the_time()
    {
        let server = Server::start();
        let (client, guards) = holding(&server, 1).await;
        let locks = &client.handle.locks;
        let lane = guards[0].entry.route().lane();
        let mut looks = Looks::default();
        let (keys, lanes) = (BTreeSet::new(), BTreeSet::from([lane + 1]));
        looks.add(locks, Changed { keys, lanes });
        assert_eq!(looked_at(&looks.take(locks)), 0, "another connection");
        let mut looks = Looks::default();
        let report = |looks: &mut Looks| {
            let (keys, lanes) = (BTreeSet::new(), BTreeSet::from([lane]));
            looks.add(locks, Changed { keys, lanes });
        };
        let start = Instant::now();
        report(&mut looks);
        assert_eq!(looked_at(&looks.take(locks)), 1);
        report(&mut looks);
        assert_eq!(looked_at(&looks.take(locks)), 0);
        looks.are_due().await;
        assert_eq!(looked_at(&looks.take(locks)), 1);
        assert!(start.elapsed() >= WINDOW, "{:?}", start.elapsed());
        let again = tokio::time::timeout(WINDOW * 10, looks.are_due());
        assert!(again.await.is_err(), "nothing was reported since");
        drop(guards);
        client.close(Duration::from_secs(5)).await;
    }
}

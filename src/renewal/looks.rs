//! Looks at locks that others have changed, as servers report it.
//!
//! A look reads: it asks for a renewal with a lease of 0. A write would be reported to every other client that holds a
//! read hold of the lock, which would look in turn.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::batch::{Batch, Renewals};
use crate::core::LockCore;
use crate::entry::{Entry, Locks};
use crate::redis::Changed;
use crate::runtime::{event, sleep_until};

/// What is still to be looked at. In each window a lock is looked at once, and no more holds than that window allows:
/// what comes above it waits.
#[derive(Default)]
pub(super) struct Looks {
    reported: BTreeMap<Box<str>, Weak<Entry>>,
    /// What is held over a connection that may have missed reports.
    unsure: Vec<Weak<Entry>>,
    /// When this window ends. `None`: nothing was looked at in the last one.
    until: Option<Instant>,
    /// Looked at in this window.
    seen: BTreeSet<Box<str>>,
    /// How many holds were, less what earlier windows allowed.
    holds: usize,
}

impl Looks {
    /// Others have changed these. What nobody here holds is of no interest.
    pub(super) fn add(&mut self, locks: &Locks, changed: Changed) {
        for key in changed.keys {
            let Some(entry) = locks.table.find(&key) else {
                continue;
            };
            if entry.note_report() {
                self.reported.insert(key, Arc::downgrade(&entry));
            }
        }
        if !changed.lanes.is_empty() {
            let mut entries = locks.all();
            entries.retain(|entry| {
                changed.lanes.contains(&entry.route().lane()) && entry.note_report()
            });
            // What can be sent together is side by side.
            entries.sort_by_cached_key(|entry| entry.route().number());
            self.unsure = entries.iter().map(Arc::downgrade).collect();
        }
        if self.reported.len() > REPORTED_MAX {
            self.reported.clear();
            locks.shared.redis.reports().pause(PAUSE);
            event!(
                WARN,
                pause = ?PAUSE,
                "others change held locks faster than they can be looked at: until then only renewals do"
            );
        }
    }

    /// Waits until something is to be looked at that was held back.
    pub(super) async fn are_due(&self) {
        sleep_until(self.until.filter(|_| self.is_behind())).await;
    }

    fn is_behind(&self) -> bool {
        !self.reported.is_empty() || !self.unsure.is_empty()
    }

    /// What is to be looked at now, as calls to be sent.
    pub(super) fn take(&mut self) -> Vec<Batch> {
        let now = Instant::now();
        if self.until.is_none_or(|until| until <= now) {
            self.until = Some(now + WINDOW);
            self.seen.clear();
            self.holds = self.holds.saturating_sub(HOLDS_A_WINDOW);
        }
        let (mut looks, mut limit) = (Renewals::default(), now);
        while let Some(entry) = self.next() {
            limit = now + entry.shared().command_timeout() * 2;
            let requests = entry.peek(LockCore::looks);
            self.holds += requests.len();
            for (owner, request) in requests {
                looks.add_look(&entry, owner, request);
            }
        }
        looks.batches(limit)
    }

    fn next(&mut self) -> Option<Arc<Entry>> {
        while self.holds < HOLDS_A_WINDOW {
            let seen = &self.seen;
            let reported = self.reported.keys().find(|key| !seen.contains(*key));
            let entry = match reported.cloned() {
                Some(key) => {
                    let entry = self.reported.remove(&key);
                    self.seen.insert(key);
                    entry
                }
                None => self.unsure.pop(),
            };
            match entry?.upgrade() {
                Some(entry) => return Some(entry),
                None => continue,
            }
        }
        None
    }
}

/// A lock is looked at once in this time.
const WINDOW: Duration = Duration::from_millis(50);

/// 2,000 a second.
const HOLDS_A_WINDOW: usize = 100;

/// More locks than are looked at in a second.
const REPORTED_MAX: usize = 2_000;

const PAUSE: Duration = Duration::from_secs(60);

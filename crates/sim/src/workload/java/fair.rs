//! Java in the queue of a fair lock, as Redisson since 3.11.1 does it: a place counts from the end of the one before it,
//! and an owner that leaves the queue moves all others forward.

use std::time::Duration;

use redisson_lock::LockKind;
use redisson_lock_test::sim::{Answer, Keyspace};
use tokio::time::Instant;

use super::{Java, PAUSE, field, number};
use crate::oracle::{channel, channel_of, parts_channel, queue_keys};
use crate::workload::program::LOCKS;

impl Java {
    pub(super) fn is_fair(&self, key: &str) -> bool {
        let kinds = LOCKS.iter().zip(self.kinds);
        kinds
            .into_iter()
            .any(|(lock, kind)| *lock == key && kind == LockKind::Fair)
    }

    /// Whether it may take the lock now. If not, it has a place in the queue afterwards.
    pub(super) fn has_its_turn(&self, keyspace: &mut Keyspace, key: &str) -> bool {
        let [list, set] = queue_keys(key);
        self.evict(keyspace, key);
        let queue = keyspace.list(&list).to_vec();
        let is_first = queue.first().is_none_or(|head| *head == self.field);
        if keyspace.holder(key).is_none() && is_first {
            self.take_out(keyspace, key);
            return true;
        }
        if !queue.contains(&self.field) {
            let clock = keyspace.clock;
            let left = match queue.last() {
                Some(last) => ends(keyspace, &set, last).saturating_sub(clock),
                None => u64::try_from(number(keyspace, &["pttl", key])).unwrap_or(0),
            };
            let ends = (clock + left + self.place_ms).to_string();
            number(keyspace, &["zadd", &set, &ends, &self.field]);
            number(keyspace, &["rpush", &list, &self.field]);
        }
        false
    }

    /// Places at the front that are over.
    fn evict(&self, keyspace: &mut Keyspace, key: &str) {
        let [list, set] = queue_keys(key);
        while let Some(head) = keyspace.list(&list).first().cloned() {
            if ends(keyspace, &set, &head) > keyspace.clock {
                return;
            }
            number(keyspace, &["zrem", &set, &head]);
            number(keyspace, &["lrem", &list, "1", &head]);
        }
    }

    /// The turns of those after it come earlier.
    fn take_out(&self, keyspace: &mut Keyspace, key: &str) {
        let [list, set] = queue_keys(key);
        let queue = keyspace.list(&list).to_vec();
        let Some(at) = queue.iter().position(|field| *field == self.field) else {
            return;
        };
        number(keyspace, &["lrem", &list, "1", &self.field]);
        number(keyspace, &["zrem", &set, &self.field]);
        let earlier = format!("-{}", self.place_ms);
        for after in &queue[at + 1..] {
            let words = ["zincrby", &set, &earlier, after].map(str::to_owned);
            let moved = keyspace.call(&words);
            assert!(matches!(moved, Ok(Answer::Text(_))), "{moved:?}");
        }
    }

    /// Its patience is over.
    pub(super) fn leaves_queue(&self, key: &str) {
        if self.is_fair(key) {
            self.world
                .with_home(key, |keyspace| self.take_out(keyspace, key));
            self.world
                .oracle
                .say(|| format!("Java leaves the queue of {key}"));
            self.world.observe();
        }
    }

    /// Its place stays.
    pub(super) fn die_in_queue(&mut self, key: &str) {
        if self.acquire(key) {
            self.release(key);
            return;
        }
        self.world
            .oracle
            .say(|| format!("Java dies in the queue of {key}"));
        self.field = field(self.world.now(), self.number);
    }

    /// Tells the next one that the lock is free, or all who wait if it has no queue.
    pub(super) fn announce(&self, key: &str) {
        let channel = match self.is_fair(key) {
            true => {
                let [list, _] = queue_keys(key);
                let head = self.world.with_home(key, |keyspace| {
                    self.evict(keyspace, key);
                    keyspace.list(&list).first().cloned()
                });
                let Some(head) = head else { return };
                channel_of(key, &head)
            }
            false if self.is_read_write(key) => parts_channel(key),
            false => channel(key),
        };
        self.world.oracle.tell(&channel);
        self.world.publish(&channel);
        // Places that it has taken out are out for the oracle too.
        self.world.observe();
    }

    /// In a queue, until it is told that it may have the lock, or for a second.
    pub(super) async fn until_retry(&self, key: &str, limit: Instant) {
        if !self.is_fair(key) {
            return tokio::time::sleep(PAUSE).await;
        }
        let own = channel_of(key, &self.field);
        let told = self.world.oracle.told(&own);
        let limit = limit.min(Instant::now() + Duration::from_secs(1));
        while self.world.oracle.told(&own) == told && Instant::now() < limit {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// By the server's clock.
fn ends(keyspace: &Keyspace, set: &str, field: &str) -> u64 {
    let members = keyspace.sorted_set(set).iter();
    let mut members = members.filter(|(_, member)| member == field);
    members.next().map_or(u64::MAX, |(score, _)| *score as u64)
}

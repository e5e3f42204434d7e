//! How the slots of a cluster change their nodes, and what everybody is told.

use std::time::Duration;

use redisson_lock::test_util;
use tokio::time::Instant;

use super::{Gossip, Promoted, SPARE};
use crate::sim::keyspace::Keyspace;
use crate::sim::network::Network;
use crate::sim::server::Server;

/// What happens to the slots.
impl Server {
    /// Begins to move the slot of a key, key by key. False: something else is changing, or it has been
    /// there.
    pub fn begin_to_move(&self, key: &str, to: usize) -> bool {
        let mut state = self.state.lock();
        let slot = test_util::slot_of(key);
        let Some(cluster) = &mut state.cluster else {
            return false;
        };
        let may = cluster.is_settled() && cluster.may_take(slot, to);
        if may {
            cluster.moving = Some((slot, to));
        }
        may
    }

    /// Moves these keys of the slot of a key, if it is moving.
    pub fn move_keys(&self, key: &str, which: impl Fn(&str) -> bool) {
        let state = self.state.lock();
        let moving = state.cluster.as_ref().and_then(|cluster| cluster.moving);
        if let (Some((slot, to)), Some(cluster)) = (moving, &state.cluster)
            && slot == test_util::slot_of(key)
        {
            let from = cluster.slots.owner(slot);
            let goes = |key: &str| slot == test_util::slot_of(key) && which(key);
            let moved = self.with_keyspace_of(from, |keyspace| keyspace.take(goes));
            self.with_keyspace_of(to, |keyspace| keyspace.put(moved));
        }
    }

    /// The slot has moved.
    pub fn end_move(&self, key: &str, gossip: Gossip) {
        self.move_keys(key, |_| true);
        let mut state = self.state.lock();
        if let Some(cluster) = &mut state.cluster
            && let Some((slot, to)) = cluster.moving
            && slot == test_util::slot_of(key)
        {
            cluster.moving = None;
            cluster.give(slot, to, gossip);
        }
        self.changed.notify_one();
    }

    /// From now on the replica of a node gets nothing any more. False: something else is changing.
    pub fn cut_replica_off(&self, node: usize) -> bool {
        let mut state = self.state.lock();
        let copy = self.with_keyspace_of(node, |keyspace| keyspace.copy());
        let Some(cluster) = &mut state.cluster else {
            return false;
        };
        let spare = !cluster.slots.starts.values().any(|owner| *owner == SPARE)
            && !cluster.past.iter().any(|(_, had)| *had == SPARE);
        let has_slots = cluster.slots.starts.values().any(|owner| *owner == node);
        let may = cluster.is_settled() && spare && has_slots;
        if may {
            cluster.replica = Some((node, copy));
        }
        may
    }

    /// The replica that was cut off takes over. The former primary goes on answering for a while, or is
    /// gone immediately. Answers how each of these locks has changed. `None`: no replica was cut off.
    pub fn promote(&self, stale: Duration, keys: &[&str]) -> Option<Vec<Promoted>> {
        let mut state = self.state.lock();
        let cluster = state.cluster.as_mut()?;
        let (from, mut copy) = cluster.replica.take()?;
        let had = |node: usize, key: &str| {
            self.with_keyspace_of(node, |keyspace| {
                let holder = keyspace.holder(key);
                let holder = holder.map(|(field, count)| (field.to_owned(), count));
                (holder, keyspace.expires_at(key))
            })
        };
        let before = cluster.slots.clone();
        let mut promoted = Vec::new();
        for &key in keys {
            let slot = test_util::slot_of(key);
            if before.owner(slot) == from {
                cluster.past.insert((slot, from));
                promoted.push((key, had(from, key)));
            }
        }
        let owners = cluster.slots.starts.values_mut();
        owners
            .filter(|owner| **owner == from)
            .for_each(|owner| *owner = SPARE);
        cluster.slots.epoch += 1;
        let now = Instant::now();
        if stale.is_zero() {
            state.down_until[from] = now + GONE;
            state.cut_all_of(from);
        } else {
            cluster.behind.insert(from, (now + stale, before));
        }
        // Keys that ran out on the former primary since the observer last looked.
        copy.expired = std::mem::take(&mut self.keyspaces[from].lock().expired);
        *self.keyspaces[SPARE].lock() = copy;
        self.changed.notify_one();
        let with = |(key, (before, expiry_before)): (&str, _)| {
            let (after, expiry_after) = had(SPARE, key);
            Promoted {
                key: key.to_owned(),
                before,
                after,
                expiry_before,
                expiry_after,
            }
        };
        Some(promoted.into_iter().map(with).collect())
    }

    /// No slot is served for a while.
    pub fn no_slot_is_served_for(&self, time: Duration) {
        let mut state = self.state.lock();
        let Some(cluster) = &mut state.cluster else {
            return;
        };
        cluster.down_until = Instant::now() + time;
        self.changed.notify_one();
    }

    /// The locks as they count: each where it is now.
    pub(in crate::sim) fn merged(&self, state: &Network) -> Option<Keyspace> {
        let cluster = state.cluster.as_ref()?;
        let mut merged = Keyspace::default();
        merged.now = self.now();
        for (node, keyspace) in self.keyspaces.iter().enumerate() {
            let mut keyspace = keyspace.lock();
            keyspace.now = merged.now;
            keyspace.expire();
            merged.take_in(&mut keyspace, |key| cluster.counts(node, key));
        }
        Some(merged)
    }

    /// The node that has a key, or would create it.
    pub(in crate::sim) fn home(&self, state: &Network, key: &str) -> usize {
        let Some(cluster) = &state.cluster else {
            return 0;
        };
        let slot = test_util::slot_of(key);
        let owner = cluster.slots.owner(slot);
        match cluster.moving {
            Some((moving, to)) if moving == slot => {
                let is_here = self.with_keyspace_of(owner, |keyspace| keyspace.has(key));
                if is_here { owner } else { to }
            }
            Some(_) | None => owner,
        }
    }
}

impl Network {
    fn cut_all_of(&mut self, node: usize) {
        let of_node = self.wires.iter().filter(|(_, wire)| wire.node == node);
        let serials: Vec<u64> = of_node.map(|(&serial, _)| serial).collect();
        for serial in serials {
            self.cut(serial, true);
        }
    }
}

/// A primary that was taken over from is away for this time.
const GONE: Duration = Duration::from_secs(3);

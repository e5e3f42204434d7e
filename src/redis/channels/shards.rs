//! Sharded channels of a cluster: each is subscribed to at the primary that has its slot.
//!
//! One task assigns channels to primaries and follows the map; each primary with channels has a task with
//! a connection of its own. A server that gives a slot away ends the subscriptions to its channels, and says so.

mod shard;

use std::collections::BTreeMap;
use std::pin::{Pin, pin};
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::base::runtime::{event, sleep_until};
use crate::redis::channels::wait::Subscriptions;
use crate::redis::connection::slot_of;
use crate::redis::node::Node;
use crate::redis::topology::map::Map;

use shard::{Common, Shard};

/// Starts what serves the sharded channels.
pub(in crate::redis) fn open(map: &Arc<Map>, subscriptions: Arc<Subscriptions>) {
    let assigner = Assigner {
        map: Arc::clone(map),
        common: Arc::new(Common {
            subscriptions,
            lost: Notify::new(),
        }),
        shards: BTreeMap::new(),
        assigned: BTreeMap::new(),
    };
    map.context.spawn(assigner.run());
}

/// Assigns channels to primaries.
struct Assigner {
    map: Arc<Map>,
    common: Arc<Common>,
    shards: BTreeMap<u16, Shard>,
    /// The number of the primary of each channel.
    assigned: BTreeMap<Arc<str>, u16>,
}

impl Assigner {
    async fn run(mut self) {
        let map = Arc::clone(&self.map);
        let mut switched = pin!(map.switched());
        loop {
            self.turn(&map, switched.as_mut()).await;
        }
    }

    /// Brings the channels to where they belong, and waits until that may have changed.
    async fn turn<'a>(&mut self, map: &'a Map, mut switched: Pin<&mut Notified<'a>>) {
        self.take_back();
        self.assign();
        self.unsubscribe();
        let subscriptions = &self.common.subscriptions;
        let linger_over = sleep_until(subscriptions.next_unwanted());
        tokio::select! {
            () = subscriptions.changed() => {}
            () = linger_over => {}
            () = self.common.lost.notified() => {}
            () = switched.as_mut() => {
                // Made before the map is read, so that no change is missed in between.
                switched.set(map.switched());
                self.follow();
            }
        }
    }

    /// Takes channels back that are not subscribed to any more.
    fn take_back(&mut self) {
        let mut forgotten = Vec::new();
        for (number, shard) in &self.shards {
            for name in std::mem::take(&mut shard.work.orders.lock().lost) {
                if self.assigned.get(&name) == Some(number) {
                    forgotten.push(name);
                }
            }
        }
        self.subscribe_again(forgotten);
    }

    /// Takes channels back whose slot has another primary now. Looks through all of them.
    fn follow(&mut self) {
        let in_use = self.map.numbers();
        self.shards.retain(|number, _| in_use.contains(number));
        let mut moved = Vec::new();
        for (name, number) in &self.assigned {
            // A primary may have its slots again by now, but its task has gone.
            let is_served = self.shards.contains_key(number);
            let owner = self.owner(name);
            if owner.is_some_and(|(owner, _)| owner != *number || !is_served) {
                if let Some(shard) = self.shards.get(number) {
                    shard
                        .work
                        .order(|orders| orders.ended.push(Arc::clone(name)));
                }
                moved.push(Arc::clone(name));
            }
        }
        self.subscribe_again(moved);
    }

    fn subscribe_again(&mut self, forgotten: Vec<Arc<str>>) {
        for name in &forgotten {
            self.assigned.remove(name);
        }
        if !forgotten.is_empty() {
            event!(
                INFO,
                channels = forgotten.len(),
                "sharded channels are subscribed to again"
            );
            self.common.subscriptions.forgotten(forgotten);
        }
    }

    fn assign(&mut self) {
        for name in self.common.subscriptions.take_wanted(usize::MAX) {
            let Some((number, node)) = self.owner(&name) else {
                // No node has the slot: it is wanted again when the map has changed.
                self.assigned.insert(name, u16::MAX);
                continue;
            };
            self.assigned.insert(Arc::clone(&name), number);
            let (map, common) = (&self.map, &self.common);
            let shard = self
                .shards
                .entry(number)
                .or_insert_with(|| Shard::start(map, common, &node));
            shard.work.order(|orders| orders.subscribe(name));
        }
    }

    fn unsubscribe(&mut self) {
        for name in self.common.subscriptions.take_unwanted(usize::MAX) {
            let number = self.assigned.remove(&name);
            if let Some(shard) = number.and_then(|number| self.shards.get(&number)) {
                shard.work.order(|orders| orders.unsubscribe(name));
            }
        }
    }

    fn owner(&self, name: &str) -> Option<(u16, Arc<Node>)> {
        self.map.owner(slot_of(name))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use test_support::tokio;

    use super::*;
    use crate::base::runtime::Runtime;
    use crate::redis::node::lane::ConnectionContext;
    use crate::redis::settings::address::Address;
    use crate::redis::settings::{Expected, Settings};
    use crate::redis::topology::map::RouteTable;

    /// Of a cluster of which nothing is known. No server listens there.
    fn assigner() -> Assigner {
        let url = "redis-cluster://127.0.0.1:1";
        let settings = Settings::from_url(url, None, Duration::from_millis(1_500), true);
        let settings = Arc::new(settings.expect("valid"));
        let context = ConnectionContext::new(&Runtime::current().expect("in a runtime"));
        Assigner {
            map: Map::new(settings, Expected::WorkingCluster, 16_384, 1, context),
            common: Arc::new(Common {
                subscriptions: Arc::default(),
                lost: Notify::new(),
            }),
            shards: BTreeMap::new(),
            assigned: BTreeMap::new(),
        }
    }

    #[tokio::test]
    async fn a_channel_whose_slot_no_server_has_is_assigned_once_one_has_it() {
        let mut assigner = assigner();
        let name: Arc<str> = "stock".into();
        let _waiter = assigner.common.subscriptions.subscribe(&name);
        let map = Arc::clone(&assigner.map);
        let mut switched = pin!(map.switched());
        assigner.turn(&map, switched.as_mut()).await;
        assert!(assigner.shards.is_empty());
        let server = Address::new("127.0.0.1", 1);
        assigner.map.apply(&RouteTable {
            source: None,
            epoch: 1,
            routes: vec![(0..=16_383, server.into())],
            members: BTreeSet::new(),
        });
        let assigned = async {
            while assigner.assigned.get(&name) == Some(&u16::MAX) || assigner.shards.is_empty() {
                assigner.turn(&map, switched.as_mut()).await;
            }
        };
        let assigned = tokio::time::timeout(Duration::from_secs(5), assigned);
        assigned.await.expect("the change of the map is followed");
        assert_eq!(assigner.assigned.get(&name), Some(&0));
        assert!(assigner.shards.contains_key(&0));
        // It had lost its slots, and has them again.
        assigner.shards.clear();
        assigner.follow();
        assert_eq!(assigner.assigned.get(&name), None);
        assigner.map.context.end();
    }
}

//! Who may say that replicas have a lock: the server that took or renewed it, over a connection that was opened
//! before.

use std::sync::Arc;

use tokio::time::Instant;

use super::map::{Map, RoutedLink};
use crate::redis::call::Call;
use crate::redis::node::link::{Link, SendError};
use crate::redis::node::replicas::Replicas;

/// Where a lock waits for this number of replicas.
#[derive(Clone, Copy)]
pub(crate) struct ReplicaRoute<'a> {
    pub(in crate::redis) map: &'a Map,
    pub(in crate::redis) group: u16,
    pub(in crate::redis) lane: usize,
    pub(in crate::redis) replicas: u32,
}

impl ReplicaRoute<'_> {
    /// Waits until `limit` for the connection.
    pub(crate) async fn confirmer(self, limit: Instant) -> Result<ReplicaProbe, SendError> {
        Ok(ReplicaProbe {
            way: self.map.ready(self.group, self.lane, limit).await?,
            since: Instant::now(),
        })
    }

    /// The connection at the server that has the lock now, if it is the one with this number.
    fn at(self, number: u16) -> Option<(Arc<Link>, Arc<Replicas>)> {
        let (owner, node) = self.map.owner(self.group)?;
        let link = node.lane(self.lane, &self.map.context).now()?;
        (owner == number).then(|| (link, node.replicas(self.replicas)))
    }
}

/// Asks whether replicas have what was sent after this was made.
#[derive(Clone)]
pub(crate) struct ReplicaProbe {
    /// To the server that has the lock.
    way: RoutedLink,
    since: Instant,
}

impl ReplicaProbe {
    /// Whether it can be asked about what is sent from now on: its server has the lock, and there is a
    /// connection.
    pub(crate) fn is_current(&self, replica_route: ReplicaRoute<'_>) -> bool {
        replica_route.at(self.way.node).is_some()
    }

    /// Waits until another server has the lock.
    pub(crate) async fn outdated(&self, replica_route: ReplicaRoute<'_>) {
        replica_route.map.lost(replica_route.group, &self.way).await;
    }

    /// How many replicas have the locks that `touch` is about as they were sent then, after `until` at the
    /// latest. 0 if that cannot be determined.
    ///
    /// Dropped, it leaves nothing but a question that no call waits for.
    pub(crate) async fn acknowledged(
        &self,
        replica_route: ReplicaRoute<'_>,
        touch: Call<bool>,
        sent_at: Instant,
        until: Instant,
    ) -> u32 {
        let Some((link, replicas)) = replica_route.at(self.way.node) else {
            return 0;
        };
        // What was found or opened after the send may lead to a server that never executed it: one that was
        // started again, or another one, which may even have an older lock of the same owner to write to.
        if self.since.max(link.opened_at) > sent_at {
            return 0;
        }
        let question = (Arc::clone(&link), touch, until);
        let acknowledged =
            replicas.acknowledged(&replica_route.map.context, replica_route.replicas, question);
        let acknowledged = acknowledged.await;
        match replica_route.at(self.way.node) {
            Some((now, _)) if Arc::ptr_eq(&now, &link) => acknowledged,
            _ => 0,
        }
    }
}

//! All access to Redis: runs scripts, subscribes to channels, reports outcomes. Apart from the
//! signature of `from_fred`, only this module uses fred, and within it only `connection.rs` and
//! `settings`.
//!
//! A lane is one command connection at a time; all commands of one lock use the same lane, in
//! order, as long as one server has that lock; which one that is the map knows. The subscriber has its own
//! connection, because a refused SUBSCRIBE shifts the replies of everything that shares its connection.
//! fred never reconnects or resends anything on either, and knows nothing of clusters or Sentinel: the
//! sender of a command decides what happens when its connection is lost, or leads to the wrong server.

mod address;
mod answers;
mod backoff;
mod call;
mod cluster;
mod confirmer;
mod connection;
mod endpoint;
mod fence;
mod identity;
mod lane;
mod link;
mod map;
mod node;
mod permissions;
mod probe;
mod replicas;
mod seeds;
mod sentinel;
mod settings;
mod shards;
mod slots;
mod subscriber;
mod topology;
pub(crate) mod transport;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

#[cfg(feature = "test-util")]
use tokio::sync::Notify;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::error::{Cause, Error, Operation};
use crate::runtime::Runtime;
use crate::wait::Channels;
use crate::wire::Announce;

pub(crate) use backoff::Backoff;
pub(crate) use call::{Args, Call, MadeScript, Script, ScriptRef};
pub(crate) use confirmer::{ReplicaProbe, ReplicaRoute};
pub use fence::ConnectionFence;
pub(crate) use identity::Location;
pub(crate) use map::{Nodes, Received, RoutedLink, Switches};
pub(crate) use node::BackgroundClass;
pub(crate) use replicas::{REPLICAS_MAX, SyncReplicas};
#[cfg(not(feature = "tls-rustls"))]
pub(crate) use settings::Tls;
#[cfg(feature = "tls-rustls")]
pub use settings::Tls;
pub(crate) use settings::{Credentials, Settings};
pub(crate) use transport::{Arg, Reply};

use lane::ConnectionContext;
pub(crate) use link::{Limit, SendError};
use topology::Topology;

/// Connections and their supervisors.
pub(crate) struct Redis {
    topology: Topology,
    around: ConnectionContext,
    /// Whether pauses are scattered.
    scattered: bool,
    connections: usize,
}

impl Redis {
    /// Opens the command connections of one server; of several, learns who they are. Fails if the first
    /// attempt of any fails.
    pub(crate) async fn connect(
        settings: &Arc<Settings>,
        connections: usize,
        runtime: &Runtime,
    ) -> Result<Self, Error> {
        let around = ConnectionContext::new(runtime);
        // Cancel safety: dropping this future stops what was opened so far.
        let stop_on_drop = StopOnDrop(Some(around.clone()));
        let topology = Topology::open(settings, connections, &around).await?;
        stop_on_drop.keep();
        Ok(Self {
            topology,
            around,
            scattered: settings.is_scattered(),
            connections,
        })
    }

    /// Opens what serves these channels.
    pub(crate) async fn subscribe_with(
        &self,
        settings: &Arc<Settings>,
        channels: &Channels,
    ) -> Result<(), Error> {
        let source = match self.topology.map() {
            None => subscriber::Source::One(Arc::clone(settings)),
            Some(map) => subscriber::Source::Several(Arc::clone(map)),
        };
        if let Some(classic) = &channels.classic {
            subscriber::open(source, settings, Arc::clone(classic), &self.around).await?;
        }
        if let (Some(sharded), Some(map)) = (&channels.sharded, self.topology.map()) {
            shards::open(map, Arc::clone(sharded));
        }
        Ok(())
    }

    /// From now on `in_use` says whether the client holds a lock or waits for one.
    pub(crate) fn set_in_use(&self, in_use: impl Fn() -> bool + Send + Sync + 'static) {
        // It is set once.
        let _ = self.around.in_use.set(Box::new(in_use));
    }

    /// How releases are announced.
    pub(crate) fn announce(&self) -> Announce {
        match &self.topology {
            Topology::Cluster(_, announce) => *announce,
            Topology::One(_) | Topology::Sentinel(_) => Announce::Classic,
        }
    }

    /// Notified when the subscriber's connection leads to the wrong server.
    #[cfg(feature = "test-util")]
    pub(crate) fn moved(&self) -> &Notify {
        &self.around.moved
    }

    /// The way of every command of this key.
    pub(crate) fn route(&self, key: &str) -> Route<'_> {
        let by_hash = || {
            let hash = key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
            (hash % self.connections as u64) as usize
        };
        let (group, lane) = match &self.topology {
            Topology::One(_) | Topology::Sentinel(_) => (0, by_hash()),
            Topology::Cluster(..) => {
                // What goes to one slot can go in one call, so it takes one connection.
                let slot = slot_of(key);
                (slot, usize::from(slot) % self.connections)
            }
        };
        Route {
            redis: self,
            group,
            lane,
        }
    }

    /// Whether the keys of a call have to be in one slot, and a lock's channel in the slot of its key.
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.topology, Topology::Cluster(..))
    }

    /// Routes that have got another server; `None`: they never do.
    pub(crate) fn switches(&self) -> Option<Arc<Switches>> {
        self.topology.map().map(|map| Arc::clone(&map.switches))
    }

    /// The servers that commands go to, and how often that has changed.
    pub(crate) fn nodes(&self) -> Nodes {
        match self.topology.map() {
            None => Nodes::one(),
            Some(map) => map.figures(),
        }
    }

    /// How many times command connections were replaced.
    pub(crate) fn reconnects(&self) -> u64 {
        let mut reconnects = 0;
        self.topology
            .each_lane(|lane| reconnects += lane.reconnects());
        reconnects
    }

    /// The pauses of a caller that tries again.
    pub(crate) fn backoff(&self) -> Backoff {
        Backoff::new(self.scattered)
    }

    /// The pauses of a caller that is not woken by a message.
    pub(crate) fn pauses(&self) -> Backoff {
        Backoff::between_attempts(self.scattered)
    }

    /// Those of one that has waited for long.
    pub(crate) fn short_pauses(&self) -> Backoff {
        Backoff::short(self.scattered)
    }

    /// Whether every server has the connections that are used.
    pub(crate) fn is_connected(&self) -> bool {
        self.topology.is_connected()
    }

    /// Asks every server on every lane for an answer, one after the other.
    pub(crate) async fn ping(&self, limit: Limit) -> Result<(), SendError> {
        self.topology.ping(&self.around, limit).await
    }

    /// The weakest fence of the servers in use.
    pub(crate) fn connection_fence(&self) -> ConnectionFence {
        let mut weakest = ConnectionFence::Active;
        self.topology.each_lane(|lane| {
            if lane.is_wanted() {
                weakest = weakest.max(lane.fence());
            }
        });
        weakest
    }

    /// Ends every connection and waits until their tasks are gone.
    pub(crate) async fn shut_down(&self) {
        self.around.end();
        self.around.tasks.ended().await;
    }
}

/// The way of the commands of one key: all of them go over the same connection, in order.
#[derive(Clone, Copy)]
pub(crate) struct Route<'a> {
    redis: &'a Redis,
    /// The slot in a cluster.
    group: u16,
    lane: usize,
}

impl<'a> Route<'a> {
    /// What can be sent together has the same number.
    pub(crate) fn number(self) -> usize {
        usize::from(self.group) * self.redis.connections + self.lane
    }

    /// The slot in a cluster, and 0 elsewhere.
    pub(crate) fn group(self) -> u16 {
        self.group
    }

    /// The error for a call without an answer. It names the server that has the lock now.
    pub(crate) fn no_answer(self, while_doing: Operation, text: &str) -> Error {
        Error::no_answer(while_doing, Cause::new(self.server(), text))
    }

    /// The same for an answer that came too late.
    pub(crate) fn late(self, while_doing: Operation, text: &str) -> Error {
        Error::no_answer(while_doing, Cause::late(self.server(), text))
    }

    fn server(self) -> Option<Arc<str>> {
        Some(Arc::clone(&self.settings()?.address))
    }

    /// Those of the server that has the lock now.
    fn settings(self) -> Option<Arc<Settings>> {
        match &self.redis.topology {
            Topology::One(node) => Some(node.settings()),
            Topology::Cluster(map, _) | Topology::Sentinel(map) => {
                Some(map.owner(self.group)?.1.settings())
            }
        }
    }

    /// Waits until `limit` for a connection that may carry scripts.
    pub(crate) async fn ready(self, limit: Instant) -> Result<RoutedLink, SendError> {
        match &self.redis.topology {
            Topology::One(node) => {
                let lane = node.lane(self.lane, &self.redis.around);
                lane.ready(limit).await.map(RoutedLink::only)
            }
            Topology::Cluster(map, _) | Topology::Sentinel(map) => {
                Box::pin(map.ready(self.group, self.lane, limit)).await
            }
        }
    }

    /// Sends a script once and waits for its answer within `limit`. Among several servers it follows where
    /// it is sent, which counts as nothing: what was redirected was not executed.
    ///
    /// `sent` is set just before it is handed over.
    pub(crate) async fn run<T: 'static>(
        self,
        way: RoutedLink,
        call: &Call<T>,
        limit: Limit,
        sent: &AtomicBool,
    ) -> Result<Received, SendError> {
        match &self.redis.topology {
            Topology::One(_) => self.run_there(way, call, limit, sent).await,
            Topology::Cluster(map, _) | Topology::Sentinel(map) => {
                Box::pin(map.run(self.group, self.lane, way, call, limit, sent)).await
            }
        }
    }

    /// The same, and it goes to no other server: one that redirects has refused it.
    pub(crate) async fn run_there<T: 'static>(
        self,
        way: RoutedLink,
        call: &Call<T>,
        limit: Limit,
        sent: &AtomicBool,
    ) -> Result<Received, SendError> {
        match &self.redis.topology {
            Topology::One(_) => {
                let (reply, sent_at) = way.link.run(call, limit, sent).await?;
                Ok(Received {
                    reply,
                    sent_at,
                    way,
                })
            }
            Topology::Cluster(map, _) | Topology::Sentinel(map) => {
                Box::pin(map.run_there(self.group, self.lane, way, call, limit, sent)).await
            }
        }
    }

    /// Where calls wait for this number of replicas.
    pub(crate) fn waiting_for(self, replicas: u32) -> ReplicaRoute<'a> {
        ReplicaRoute {
            topology: &self.redis.topology,
            around: &self.redis.around,
            group: self.group,
            // Behind those for commands.
            lane: self.redis.connections + replicas as usize - 1,
            replicas,
        }
    }

    /// Waits for a turn among the calls of this kind. Thousands that are sent at once would all be
    /// answered late; their timeouts then make more of them.
    pub(crate) async fn bulk(self, kind: BackgroundClass) -> Option<OwnedSemaphorePermit> {
        match &self.redis.topology {
            Topology::One(node) => Some(node.bulk(self.lane, kind).await),
            Topology::Cluster(map, _) | Topology::Sentinel(map) => {
                // Without a server nothing is sent.
                let (_, node) = map.owner(self.group)?;
                Some(node.bulk(self.lane, kind).await)
            }
        }
    }

    /// Whether no send of this client comes later than a connection's replacement, now and so far. Without
    /// that a pass is not safe: a late copy of it takes the lock from a later hold. A command of a key may have gone
    /// over any lane where slots move, so it is asked of all.
    pub(crate) fn is_fenced(self) -> bool {
        self.redis.around.fences.are_active()
    }

    /// How many times a connection of this client was replaced without a fence.
    pub(crate) fn unfenced(self) -> u64 {
        self.redis.around.fences.replaced_without()
    }
}

/// Stops what was opened if connecting fails or is given up.
struct StopOnDrop(Option<ConnectionContext>);

impl StopOnDrop {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        if let Some(around) = &self.0 {
            around.end();
        }
    }
}

/// The hash slot of a key, which decides its node in a cluster.
pub(crate) fn slot_of(key: &str) -> u16 {
    connection::slot_of(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a server's CLUSTER KEYSLOT answers.
    #[test]
    fn a_slot_is_that_of_the_tag_or_of_the_whole_key() {
        for (key, slot) in [
            ("a", 15495),
            ("foo", 12182),
            ("123456789", 12739),
            ("lock:{42}", 8000),
            ("42", 8000),
            ("{42}:lock:{43}", 8000),
            ("a{}b{c}", 7353),
            ("a{b", 13340),
            ("a}b{c}", 7365),
            ("{{a}}", 10276),
            ("{a", 10276),
            ("stück 一", 4873),
        ] {
            assert_eq!(slot_of(key), slot, "{key:?}");
        }
    }
}

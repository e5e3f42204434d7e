//! All access to Redis: runs scripts, subscribes to channels, reports outcomes. Apart from the
//! signature of `from_fred`, only this module uses fred, and within it only `settings` and what makes
//! connections for channels.
//!
//! A lane is one command connection at a time; all commands of one lock use the same lane, in
//! order, as long as one server has that lock; which one that is the map knows. The subscriber has its own
//! connection, because a refused SUBSCRIBE shifts the replies of everything that shares its connection.
//! Neither reconnects or resends anything by itself, or knows of clusters and Sentinel: the
//! sender of a command decides what happens when its connection is lost, or leads to the wrong server.

mod call;
pub(crate) mod channels;
mod connection;
mod node;
mod permissions;
mod reports;
mod settings;
mod topology;
pub(crate) mod transport;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use futures_util::future::try_join_all;
#[cfg(feature = "test-util")]
use tokio::sync::Notify;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::base::backoff::Backoff;
use crate::base::runtime::Runtime;
use crate::error::{Cause, Error, Operation};
use crate::names::wire::Announce;
use crate::redis::channels::wait::Channels;

pub(crate) use call::{Args, Call, OUTDATED, Reads, Script, Still, reads, wanted_in};
#[cfg(feature = "test-util")]
pub(crate) use connection::check_reply_path;
pub(crate) use node::BackgroundClass;
pub use node::fence::ConnectionFence;
pub(crate) use node::identity::Location;
pub(crate) use node::replicas::{REPLICAS_MAX, SyncReplicas};
pub(crate) use reports::{Changed, Reports};
#[cfg(not(feature = "tls-rustls"))]
pub(crate) use settings::Tls;
#[cfg(feature = "tls-rustls")]
pub use settings::Tls;
pub(crate) use settings::{Credentials, Settings};
pub(crate) use topology::confirmer::{ReplicaProbe, ReplicaRoute};
pub(crate) use topology::map::{Nodes, Received, RoutedLink, Switches};
pub(crate) use transport::{Arg, Reply};

use node::lane::{ConnectionContext, Lane};
pub(crate) use node::link::{Limit, SendError};
use settings::Kind;
use topology::map::Map;

/// Connections and their supervisors.
pub(crate) struct Redis {
    map: Arc<Map>,
    announce: Announce,
    is_cluster: bool,
}

impl Redis {
    /// Opens the command connections of one server; of several, learns who they are. Fails if the first
    /// attempt of any fails.
    pub(crate) async fn connect(
        settings: &Arc<Settings>,
        connections: usize,
        runtime: &Runtime,
    ) -> Result<Self, Error> {
        let reporting = if settings.tracking { connections } else { 0 };
        let context = ConnectionContext::new(runtime).with_reports(reporting);
        // Cancel safety: dropping this future stops what was opened so far.
        let stop_on_drop = StopOnDrop(Some(context.clone()));
        let (map, announce) = topology::open(settings, connections, &context).await?;
        stop_on_drop.keep();
        Ok(Self {
            map,
            announce,
            is_cluster: matches!(settings.kind, Kind::Cluster(_)),
        })
    }

    /// Opens what serves these channels.
    pub(crate) async fn subscribe_with(&self, channels: &Channels) -> Result<(), Error> {
        if let Some(classic) = &channels.classic {
            channels::subscriber::open(&self.map, Arc::clone(classic)).await?;
        }
        if let Some(sharded) = &channels.sharded {
            channels::shards::open(&self.map, Arc::clone(sharded));
        }
        Ok(())
    }

    /// From now on `in_use` says whether the client holds a lock or waits for one.
    pub(crate) fn set_in_use(&self, in_use: impl Fn() -> bool + Send + Sync + 'static) {
        // It is set once.
        let _ = self.map.context.in_use.set(Box::new(in_use));
    }

    /// How releases are announced.
    pub(crate) fn announce(&self) -> Announce {
        self.announce
    }

    /// Notified when the subscriber's connection leads to the wrong server.
    #[cfg(feature = "test-util")]
    pub(crate) fn moved(&self) -> &Notify {
        &self.map.context.moved
    }

    /// The way of every command of this key.
    pub(crate) fn route(&self, key: &str) -> Route<'_> {
        let connections = self.map.connections;
        let (group, lane) = if self.is_cluster {
            // What goes to one slot can go in one call, so it takes one connection.
            let slot = slot_of(key);
            (slot, usize::from(slot) % connections)
        } else {
            let hash = key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
            (0, (hash % connections as u64) as usize)
        };
        Route {
            redis: self,
            group,
            lane,
        }
    }

    /// Whether the keys of a call have to be in one slot, and a lock's channel in the slot of its key.
    pub(crate) fn is_cluster(&self) -> bool {
        self.is_cluster
    }

    /// Routes that have got another server.
    pub(crate) fn switches(&self) -> Arc<Switches> {
        Arc::clone(&self.map.switches)
    }

    /// Keys that others have changed.
    pub(crate) fn reports(&self) -> &Arc<Reports> {
        &self.map.context.reports
    }

    /// The servers that commands go to, and how often that has changed.
    pub(crate) fn nodes(&self) -> Nodes {
        self.map.stats()
    }

    /// How many times command connections were replaced.
    pub(crate) fn reconnects(&self) -> u64 {
        let mut reconnects = 0;
        self.map.each_lane(|lane| reconnects += lane.reconnects());
        reconnects
    }

    /// The pauses of a caller that tries again.
    pub(crate) fn backoff(&self) -> Backoff {
        Backoff::new(self.map.settings.is_scattered())
    }

    /// Those of a caller that looks at a free lock while it is another owner's turn.
    pub(crate) fn looks(&self) -> Backoff {
        Backoff::between_looks(self.map.settings.is_scattered())
    }

    /// The pauses of a caller that is not woken by a message.
    pub(crate) fn pauses(&self) -> Backoff {
        Backoff::between_attempts(self.map.settings.is_scattered())
    }

    /// Those of one that has waited for long.
    pub(crate) fn short_pauses(&self) -> Backoff {
        Backoff::short(self.map.settings.is_scattered())
    }

    /// Whether every server has the connections that are used.
    pub(crate) fn is_connected(&self) -> bool {
        let nodes = self.map.nodes();
        nodes.iter().flat_map(|node| node.lanes()).all(Lane::is_up)
    }

    /// Asks every server on every lane for an answer, all servers at the same time.
    pub(crate) async fn ping(&self, limit: Limit) -> Result<(), SendError> {
        let nodes = self.map.nodes();
        let pings = nodes.iter().map(|node| node.ping(&self.map.context, limit));
        try_join_all(pings).await.map(|_| ())
    }

    /// The weakest fence of the servers in use.
    pub(crate) fn connection_fence(&self) -> ConnectionFence {
        let mut weakest = ConnectionFence::Active;
        self.map.each_lane(|lane| {
            if lane.is_wanted() {
                weakest = weakest.max(lane.fence());
            }
        });
        weakest
    }

    /// Ends every connection and waits until their tasks are gone.
    pub(crate) async fn shut_down(&self) {
        self.map.context.end();
        self.map.context.tasks.ended().await;
    }
}

/// A connection, among all that have carried the commands of a key. Once there is another one, nothing that was sent before
/// is executed any more: its predecessor was killed, or without a fence is taken to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Carrier {
    server: u16,
    nth: u64,
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
    /// The number of its connection among those to one server.
    pub(crate) fn lane(self) -> usize {
        self.lane
    }

    /// What can be sent together has the same number.
    pub(crate) fn number(self) -> usize {
        usize::from(self.group) * self.redis.map.connections + self.lane
    }

    /// Whether its server may be one of several, between which keys move.
    pub(crate) fn is_in_cluster(self) -> bool {
        self.redis.is_cluster
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
        Some(self.redis.map.owner(self.group)?.1.settings())
    }

    /// The same for an operation that needs them.
    fn settings_for(self, doing: Operation) -> Result<Arc<Settings>, Error> {
        let settings = self.settings();
        let map = &self.redis.map;
        settings.ok_or_else(|| Error::of_connection(doing, "", map.no_owner()))
    }

    /// Why no script can be sent now, if none can, or the server has been silent for too long.
    pub(crate) fn problem(self, is_long: impl Fn(Instant) -> bool) -> Option<SendError> {
        match self.redis.map.owner(self.group) {
            Some((_, node)) => node.problem(self.lane, is_long),
            None => Some(SendError::NotAccepted(self.redis.map.no_owner())),
        }
    }

    /// Waits until `limit` for a connection that may carry scripts.
    pub(crate) async fn ready(self, limit: Instant) -> Result<RoutedLink, SendError> {
        let map = &self.redis.map;
        match map.only.get() {
            Some(node) => {
                let lane = node.lane(self.lane, &map.context);
                lane.ready(limit).await.map(RoutedLink::only)
            }
            None => Box::pin(map.ready(self.group, self.lane, limit)).await,
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
        let map = &self.redis.map;
        match map.only.get() {
            Some(_) => self.run_there(way, call, limit, sent).await,
            None => Box::pin(map.run(self.group, self.lane, way, call, limit, sent)).await,
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
        let map = &self.redis.map;
        match map.only.get() {
            Some(_) => {
                let (reply, sent_at) = way.link.run(call, limit, sent).await?;
                Ok(Received {
                    reply,
                    sent_at,
                    way,
                })
            }
            None => Box::pin(map.run_there(self.group, self.lane, way, call, limit, sent)).await,
        }
    }

    /// Where calls wait for this number of replicas.
    pub(crate) fn waiting_for(self, replicas: u32) -> ReplicaRoute<'a> {
        ReplicaRoute {
            map: &self.redis.map,
            group: self.group,
            // Behind those for commands.
            lane: self.redis.map.connections + replicas as usize - 1,
            replicas,
        }
    }

    /// Waits for a turn among the calls of this kind. Thousands that are sent together would all be
    /// answered late; their timeouts then make more of them.
    pub(crate) async fn bulk(self, kind: BackgroundClass) -> Option<OwnedSemaphorePermit> {
        // Without a server nothing is sent.
        let (_, node) = self.redis.map.owner(self.group)?;
        Some(node.bulk(self.lane, kind).await)
    }

    /// The connection that carries the commands of this key now. `None`: there is none at present.
    pub(crate) fn carrier(self) -> Option<Carrier> {
        let map = &self.redis.map;
        let (server, node) = map.owner(self.group)?;
        let lane = node.lane(self.lane, &map.context);
        let nth = lane.reconnects();
        lane.is_up().then_some(Carrier { server, nth })
    }

    /// Whether no send of this client comes later than a connection's replacement, now and so far. Without
    /// that a pass is not safe: a late copy of it takes the lock from a later hold. A command of a key may have gone
    /// over any lane where slots move, so it is asked of all.
    pub(crate) fn is_fenced(self) -> bool {
        self.redis.map.context.fences.are_active()
    }

    /// How many times a connection of this client was replaced without a fence.
    pub(crate) fn unfenced(self) -> u64 {
        self.redis.map.context.fences.replaced_without()
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
        if let Some(context) = &self.0 {
            context.end();
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

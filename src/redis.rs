//! All access to Redis: runs scripts, subscribes to channels, reports outcomes.
//!
//! A lane is one connection at a time; all commands of one lock use the same lane, in order, and its channels are
//! subscribed to over it, as long as one server has that lock; which one that is the map knows. A lane neither resends
//! anything by itself, nor knows of clusters and Sentinel: the sender of a command decides what happens when its connection
//! is lost, or leads to the wrong server.

mod call;
pub(crate) mod channels;
mod connection;
mod node;
mod permissions;
mod reports;
mod settings;
mod topology;
pub(crate) mod transport;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;

use crate::base::backoff::Backoff;
use crate::base::runtime::Runtime;
use crate::error::Error;
use crate::names::wire::Announce;
use crate::redis::channels::Channels;

pub(crate) use call::{Args, Call, OUTDATED, Reads, ServerScript, Still, reads, wanted_in};
pub(crate) use connection::answers::Answer;
#[cfg(feature = "test-util")]
pub(crate) use connection::check_reply_path;
pub(crate) use connection::{Unflushed, slot_of};
pub(crate) use node::BackgroundClass;
pub use node::fence::ConnectionFence;
pub(crate) use node::replicas::{REPLICAS_MAX, SyncReplicas};
pub(crate) use reports::{Changed, Reports};
#[cfg(not(feature = "tls-rustls"))]
pub(crate) use settings::Tls;
#[cfg(feature = "tls-rustls")]
pub use settings::Tls;
pub(crate) use settings::{AddressMap, Settings};
pub use settings::{Credentials, CredentialsProvider};
pub(crate) use topology::confirmer::{ReplicaProbe, ReplicaRoute};
pub(crate) use topology::identity::Location;
pub(crate) use topology::map::{Nodes, Received, RoutedLink, Switches, not_reached};
pub(crate) use topology::route::Route;
pub(crate) use transport::{Arg, Reply};

use node::lane::{ConnectionContext, Lane};
pub(crate) use node::link::{Limit, SendError};
use settings::Kind;
use topology::map::Map;

/// Connections and their supervisors.
pub(crate) struct Redis {
    map: Arc<Map>,
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
        let map = topology::open(settings, connections, &context).await?;
        stop_on_drop.keep();
        Ok(Self {
            map,
            is_cluster: matches!(settings.kind, Kind::Cluster(_)),
        })
    }

    /// From now on `in_use` says whether the client holds a lock or waits for one.
    pub(crate) fn set_in_use(&self, in_use: impl Fn() -> bool + Send + Sync + 'static) {
        // It is set once.
        let _ = self.map.context.in_use.set(Box::new(in_use));
    }

    /// How releases are announced.
    pub(crate) fn announce(&self) -> Announce {
        self.channels().announce()
    }

    /// The channels on which releases are announced.
    pub(crate) fn channels(&self) -> &Channels {
        &self.map.context.channels
    }

    /// The way of every command of this key.
    pub(crate) fn route(&self, key: &str) -> Route<'_> {
        Route::new(&self.map, self.is_cluster, key)
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

    /// The keys of every server that are hashes and match.
    pub(crate) async fn keys(
        &self,
        pattern: &Arc<str>,
        timeout: Duration,
    ) -> Result<BTreeSet<String>, SendError> {
        let nodes = self.map.nodes();
        let context = &self.map.context;
        let found = nodes
            .iter()
            .map(|node| node.keys(context, pattern, timeout));
        // While a slot moves, a key may be seen at two.
        Ok(try_join_all(found).await?.into_iter().flatten().collect())
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

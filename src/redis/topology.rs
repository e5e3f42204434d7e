//! What the address leads to, and how it is opened: one server, a cluster, or servers behind Sentinel.

use std::sync::Arc;

use futures_util::future::try_join_all;

use super::address::Address;
use super::cluster::SlotMapRefresher;
use super::endpoint::Endpoint;
use super::lane::{ConnectionContext, Lane};
use super::link::{Limit, SendError};
use super::map::Map;
use super::node::Node;
use super::sentinel::Sentinels;
use super::settings::{Expected, Kind, Settings};
use crate::error::Error;
use crate::wire::Announce;

/// Which server serves which lock.
pub(super) enum Topology {
    /// One server: a map that never changes.
    One(Node),
    /// And how its clients tell each other that a lock is free.
    Cluster(Arc<Map>, Announce),
    Sentinel(Arc<Map>),
}

impl Topology {
    /// Opens the connections to one server; of several, learns who they are, and starts what goes on
    /// learning.
    pub(super) async fn open(
        settings: &Arc<Settings>,
        connections: usize,
        around: &ConnectionContext,
    ) -> Result<Self, Error> {
        let map = |expected, routes| {
            let settings = Arc::clone(settings);
            Map::new(settings, expected, routes, connections, around.clone())
        };
        Ok(match &settings.kind {
            Kind::Server => {
                let settings = Arc::clone(settings);
                let endpoint = Endpoint::new(Address::default(), settings, None, None);
                let node = Node::new(endpoint, connections, BULK_MAX);
                node.open(around).await?;
                Self::One(node)
            }
            Kind::Cluster(known) => {
                let map = map(Expected::WorkingCluster, SLOTS);
                let mut refresher = SlotMapRefresher::new(settings);
                refresher.begin(&map, known).await?;
                let announce = refresher.announce(settings.announce).await?;
                refresher.keep(&map, known.clone());
                Self::Cluster(map, announce)
            }
            Kind::Sentinel(known, service) => {
                let map = map(Expected::Primary, 1);
                let sentinels = Sentinels::new(settings, known, service);
                sentinels.begin(&map).await?;
                sentinels.keep(&map);
                Self::Sentinel(map)
            }
        })
    }

    /// The map of several servers.
    pub(super) fn map(&self) -> Option<&Arc<Map>> {
        match self {
            Self::One(_) => None,
            Self::Cluster(map, _) | Self::Sentinel(map) => Some(map),
        }
    }

    /// Visits every lane that has been used.
    pub(super) fn each_lane(&self, mut visit: impl FnMut(&Lane)) {
        match self {
            Self::One(node) => node.lanes().for_each(visit),
            Self::Cluster(map, _) | Self::Sentinel(map) => {
                map.each_node(|node| node.lanes().for_each(&mut visit));
            }
        }
    }

    /// Whether every server has the connections that are used.
    pub(super) fn is_connected(&self) -> bool {
        match self {
            Self::One(node) => node.lanes().all(Lane::is_up),
            Self::Cluster(map, _) | Self::Sentinel(map) => {
                let nodes = map.nodes();
                nodes.iter().flat_map(|node| node.lanes()).all(Lane::is_up)
            }
        }
    }

    /// Asks every server on every lane for an answer, all servers at the same time.
    pub(super) async fn ping(
        &self,
        around: &ConnectionContext,
        limit: Limit,
    ) -> Result<(), SendError> {
        match self {
            Self::One(node) => node.ping(around, limit).await,
            Self::Cluster(map, _) | Self::Sentinel(map) => {
                let nodes = map.nodes();
                let pings = nodes.iter().map(|node| node.ping(around, limit));
                try_join_all(pings).await.map(|_| ())
            }
        }
    }
}

/// The slots of a cluster.
const SLOTS: usize = 16_384;

/// The maximum number of calls of a kind in flight on a lane.
const BULK_MAX: usize = 64;

//! The topology behind a URL, and how it is opened: one server, a cluster, or servers behind Sentinel.

pub(super) mod cluster;
pub(super) mod confirmer;
pub(super) mod identity;
pub(super) mod map;
pub(super) mod route;
pub(super) mod seeds;
pub(super) mod sentinel;

use std::sync::Arc;

use super::node::Node;
use super::settings::{Expected, Kind, Settings};
use crate::error::Error;
use crate::names::wire::Announce;
use crate::redis::node::endpoint::Endpoint;
use crate::redis::node::lane::ConnectionContext;
use crate::redis::settings::address::Address;
use crate::redis::topology::cluster::SlotMapRefresher;
use crate::redis::topology::map::Map;
use crate::redis::topology::sentinel::Sentinels;

/// Opens the connections to one server; of several, learns who they are, and starts what goes on learning. Returns
/// which server serves which lock, and how clients tell each other that a lock is free.
pub(super) async fn open(
    settings: &Arc<Settings>,
    connections: usize,
    context: &ConnectionContext,
) -> Result<(Arc<Map>, Announce), Error> {
    let map = |expected, routes| {
        let settings = Arc::clone(settings);
        Map::new(settings, expected, routes, connections, context.clone())
    };
    Ok(match &settings.kind {
        Kind::Server => {
            let endpoint = Endpoint::new(Address::default(), Arc::clone(settings), None, None);
            let node = Node::new(endpoint, connections, BULK_MAX);
            node.open(context).await?;
            let map = map(settings.expected, 1);
            map.fix(node);
            (map, Announce::Classic)
        }
        Kind::Cluster(known) => {
            let map = map(Expected::WorkingCluster, SLOTS);
            let mut refresher = SlotMapRefresher::new(settings);
            refresher.begin(&map, known).await?;
            let announce = refresher.announce(settings.announce).await?;
            refresher.keep(&map, known.clone());
            (map, announce)
        }
        Kind::Sentinel(known, service) => {
            let map = map(Expected::Primary, 1);
            let sentinels = Sentinels::new(settings, known, service);
            sentinels.begin(&map).await?;
            sentinels.keep(&map);
            (map, Announce::Classic)
        }
    })
}

/// The slots of a cluster.
const SLOTS: usize = 16_384;

/// The maximum number of calls of a kind in flight on a lane.
const BULK_MAX: usize = 64;

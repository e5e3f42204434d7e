//! The topology behind a URL, and how it is opened: one server, a cluster, or servers behind Sentinel.

pub(super) mod cluster;
pub(super) mod confirmer;
pub(super) mod identity;
mod listening;
pub(super) mod map;
pub(super) mod route;
pub(super) mod seeds;
pub(super) mod sentinel;

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use super::connection::{Failed, connect_error};
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
/// which server serves which lock.
pub(super) async fn open(
    settings: &Arc<Settings>,
    connections: usize,
    context: &ConnectionContext,
) -> Result<Arc<Map>, Error> {
    let map = |expected, routes| {
        let settings = Arc::clone(settings);
        Map::new(settings, expected, routes, connections, context.clone())
    };
    let (map, announce) = match &settings.kind {
        Kind::Server => {
            let endpoint = Endpoint::new(Address::default(), Arc::clone(settings), None, None);
            let node = Node::new(0, endpoint, connections, BULK_MAX);
            let opened = node.open(context).await;
            opened.map_err(|problem| connect_error(settings, problem))?;
            let map = map(settings.expected, 1);
            map.fix(node);
            (map, Announce::Classic)
        }
        Kind::Cluster(known) => {
            let map = map(Expected::WorkingCluster, SLOTS);
            let mut refresher = SlotMapRefresher::new(settings);
            refresher.begin(&map, known).await?;
            let announce = refresher.announce(settings.announce).await?;
            reach(&map).await?;
            refresher.keep(&map, known.clone());
            (map, announce)
        }
        Kind::Sentinel(known, service) => {
            let map = map(Expected::Primary, 1);
            let sentinels = Sentinels::new(settings, known, service);
            sentinels.begin(&map).await?;
            reach(&map).await?;
            sentinels.keep(&map);
            (map, Announce::Classic)
        }
    };
    context
        .channels
        .set_announce(announce, settings.command_timeout);
    listening::keep(&map);
    Ok(map)
}

/// Opens a connection to one of the servers that were learned: their addresses may lead nowhere from here. The next is tried
/// beside one that does not respond.
async fn reach(map: &Map) -> Result<(), Error> {
    let nodes = map.nodes();
    let mut left = nodes.iter();
    let mut opening = FuturesUnordered::new();
    let announced_by = nodes
        .first()
        .and_then(|node| node.settings().expected.announced_by());
    let mut failed = Failed::announced(announced_by);
    let mut next_at = Instant::now();
    loop {
        tokio::select! {
            biased;
            Some((node, opened)) = opening.next() => {
                let node: &Node = node;
                match opened {
                    Ok(()) => return Ok(()),
                    Err(problem) => failed.add(Arc::clone(&node.settings().address), problem),
                }
                next_at = Instant::now();
            }
            () = tokio::time::sleep_until(next_at), if left.len() > 0 => {
                if let Some(node) = left.next() {
                    opening.push(async { (&**node, node.open_lane(0, &map.context).await) });
                }
                next_at = Instant::now() + HEDGE_AFTER;
            }
            else => return Err(failed.into_error(&map.settings)),
        }
    }
}

/// The next server is tried beside one that has not responded by then.
const HEDGE_AFTER: Duration = Duration::from_millis(250);

/// The slots of a cluster.
const SLOTS: usize = 16_384;

/// The maximum number of calls of a kind in flight on a lane.
const BULK_MAX: usize = 64;

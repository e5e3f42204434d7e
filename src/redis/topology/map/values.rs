//! The arguments and results of the map.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::error::{Cause, RefusalKind};
use crate::redis::node::endpoint::ServerId;
use crate::redis::node::link::{Link, SendError};
use crate::redis::node::slots::Named;
use crate::redis::transport::Reply;

/// Who has which routes, as one source says.
pub(in crate::redis) struct RouteTable {
    /// The server that says so, if it is one of them.
    pub(in crate::redis) source: Option<ServerId>,
    pub(in crate::redis) epoch: u64,
    pub(in crate::redis) routes: Vec<(RangeInclusive<u16>, Named)>,
    /// All servers that it names, replicas too.
    pub(in crate::redis) members: BTreeSet<ServerId>,
}

/// The numbers of the servers of all routes.
pub(in crate::redis) struct RouteOwners {
    pub(super) numbers: Vec<Option<u16>>,
    /// Those that have a route.
    pub(in crate::redis) in_use: BTreeSet<u16>,
}

impl RouteOwners {
    pub(in crate::redis) fn of(&self, route: u16) -> Option<u16> {
        self.numbers[usize::from(route)]
    }
}

/// Routes whose server has changed, until the renewal task asks for them.
#[derive(Default)]
pub(crate) struct Switches {
    routes: Mutex<BTreeSet<u16>>,
    notify: Notify,
}

impl Switches {
    pub(super) fn add(&self, routes: impl IntoIterator<Item = u16>) {
        self.routes.lock().extend(routes);
        self.notify.notify_one();
    }

    /// Waits for routes whose server has changed. Cancel safe.
    pub(crate) async fn next(&self) -> BTreeSet<u16> {
        loop {
            let routes = std::mem::take(&mut *self.routes.lock());
            if !routes.is_empty() {
                return routes;
            }
            self.notify.notified().await;
        }
    }
}

/// A connection, and the number of the server that it leads to.
#[derive(Clone)]
pub(crate) struct RoutedLink {
    pub(crate) link: Arc<Link>,
    pub(in crate::redis) node: u16,
    /// The node that still has the slot, if this one is about to take it over.
    pub(super) migrating_from: Option<u16>,
}

impl RoutedLink {
    /// The way to the only server.
    pub(in crate::redis) fn only(link: Arc<Link>) -> Self {
        Self {
            link,
            node: 0,
            migrating_from: None,
        }
    }

    /// The way to the server of this number.
    pub(in crate::redis) fn to(node: u16, link: Arc<Link>) -> Self {
        Self {
            node,
            ..Self::only(link)
        }
    }

    /// Whether its server is about to take over the slot: what is published there may not be heard yet.
    pub(crate) fn is_on_the_way(&self) -> bool {
        self.migrating_from.is_some()
    }
}

/// The reply to a script.
pub(crate) struct Received {
    pub(crate) reply: Reply,
    /// Before the answered send.
    pub(crate) sent_at: Instant,
    /// Where it came from.
    pub(crate) way: RoutedLink,
}

/// The servers that commands go to, and how often that has changed.
pub(crate) struct Nodes {
    pub(crate) nodes: usize,
    pub(crate) redirects: u64,
    pub(crate) failovers: u64,
}

/// A refusal that could not be followed in time. It says that the cluster is about to change, and not that the
/// address leads to the wrong server.
pub(crate) fn not_reached(mut cause: Box<Cause>) -> SendError {
    if let Some(RefusalKind::Moved { .. } | RefusalKind::Ask { .. }) = cause.refusal {
        cause.refusal = Some(RefusalKind::NotReached);
        cause.text = format!("the node was not reached in time: {}", cause.text);
    }
    SendError::Refused(cause)
}

/// How many servers can have numbers; with addresses that change every day they last for decades. The last number is
/// nobody's.
pub(in crate::redis::topology::map) const NODES_MAX: usize =
    if cfg!(test) { 100 } else { u16::MAX as usize };

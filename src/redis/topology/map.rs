//! Which of several servers serves which lock, and what is done when that changes.
//!
//! A lock has a route: its slot in a cluster, and 0 elsewhere. A route leads to a server, which may
//! change at any time, and the map learns of it late. Four rules follow. A refusal that says where a
//! command belongs is followed, and does not count as a send: the command was not executed. An answer
//! counts only if its server still has the route when the answer is read: a former primary may go on
//! answering, over data that are about to be thrown away. A route whose server has changed is reported to
//! those who hold locks there. And a server is one server under all of its names: its connections are
//! fenced from each other only if they are known to lead to the same one.

mod registry;
mod send;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use crate::base::runtime::{Throttle, event, isolated};
use crate::redis::node::Node;
use crate::redis::node::endpoint::{Endpoint, Identified, ServerId};
use crate::redis::node::lane::{ConnectionContext, Lane};
use crate::redis::node::slots::Named;
use crate::redis::settings::address::Address;
use crate::redis::settings::{Expected, Settings};

use registry::{NumberOutcome, Registry};
pub(in crate::redis) use send::is_followed;
pub(crate) use values::{Nodes, Received, RoutedLink, Switches, not_reached};
pub(in crate::redis) use values::{RouteOwners, RouteTable};

/// The map.
pub(in crate::redis) struct Map {
    pub(in crate::redis) settings: Arc<Settings>,
    expected: Expected,
    /// Connections to each server.
    pub(in crate::redis) connections: usize,
    pub(in crate::redis) context: ConnectionContext,
    /// The server of every route, if there is no other: commands to it look nothing up.
    pub(in crate::redis) only: OnceLock<Arc<Node>>,
    state: Mutex<MapState>,
    /// Notified when a route has got another server.
    changed: Notify,
    /// Routes that got another server, for those who hold locks there.
    pub(in crate::redis) switches: Arc<Switches>,
    redirects: AtomicU64,
    failovers: AtomicU64,
    itself: Weak<Self>,
}

struct MapState {
    registry: Registry,
    /// For each route the number of its server.
    owners: Vec<Option<u16>>,
    /// The numbers of the servers that have a route.
    in_use: BTreeSet<u16>,
    /// Servers that take over a route, and when that was last said.
    importing: BTreeMap<u16, Instant>,
    /// The next owner of a route, as its last one has said.
    moved: BTreeMap<u16, Moved>,
    /// Of the last table.
    epoch: u64,
    /// Routes that have changed since that was logged last.
    log: Throttle,
}

/// The last owner of a route knows best who has it now. Other nodes may hear of it later.
struct Moved {
    to: u16,
    /// Of the last table at that time: a later epoch knows more.
    epoch: u64,
    at: Instant,
}

/// The changes that `enter` has made.
#[derive(Default)]
struct Entered {
    /// Routes that have another server than before.
    switched: BTreeSet<u16>,
    any: bool,
}

impl Map {
    /// A map of `routes` routes, of which nothing is known yet.
    pub(in crate::redis) fn new(
        settings: Arc<Settings>,
        expected: Expected,
        routes: usize,
        connections: usize,
        context: ConnectionContext,
    ) -> Arc<Self> {
        let state = MapState {
            registry: Registry::default(),
            owners: vec![None; routes],
            in_use: BTreeSet::new(),
            importing: BTreeMap::new(),
            moved: BTreeMap::new(),
            epoch: 0,
            log: Throttle::default(),
        };
        Arc::new_cyclic(|itself| Self {
            settings,
            expected,
            connections,
            context,
            only: OnceLock::new(),
            state: Mutex::new(state),
            changed: Notify::new(),
            switches: Arc::default(),
            redirects: AtomicU64::new(0),
            failovers: AtomicU64::new(0),
            itself: Weak::clone(itself),
        })
    }

    /// From now on this is the only server, whatever is learned.
    pub(in crate::redis) fn fix(&self, node: Node) {
        let mut state = self.state.lock();
        let number = state.registry.add(node);
        state.owners.fill(Some(number));
        state.in_use.insert(number);
        // It is set once.
        let _ = self.only.set(Arc::clone(state.registry.node(number)));
    }

    /// The server of a route, with its number.
    pub(in crate::redis) fn owner(&self, route: u16) -> Option<(u16, Arc<Node>)> {
        let state = self.state.lock();
        let number = state.owners[usize::from(route)]?;
        Some((number, Arc::clone(state.registry.node(number))))
    }

    pub(in crate::redis) fn node(&self, number: u16) -> Arc<Node> {
        Arc::clone(self.state.lock().registry.node(number))
    }

    /// A server that takes over a slot, and may have none yet: it is to have connections even so.
    fn importing(&self, address: &Address) -> Option<(u16, Arc<Node>)> {
        let mut state = self.state.lock();
        let number = self.find(&mut state, &address.clone().into())?;
        state.importing.insert(number, Instant::now());
        let node = Arc::clone(state.registry.node(number));
        node.set_wanted(true);
        Some((number, node))
    }

    fn find(&self, state: &mut MapState, server: &Named) -> Option<u16> {
        let make = |number, server: &Named| self.make(number, server);
        let found = state.registry.find(server, &BTreeSet::new(), make)?;
        Some(found.number)
    }

    fn make(&self, number: u16, server: &Named) -> Node {
        let settings = Arc::new(self.settings.at(&server.address, self.expected));
        let map = Weak::clone(&self.itself);
        let identify = move |id: Option<&ServerId>| match map.upgrade() {
            Some(map) => map.identify(number, id),
            None => Identified::Same,
        };
        let (address, id) = (server.address.clone(), server.id.clone());
        let endpoint = Endpoint::new(address, settings, id, Some(Box::new(identify)));
        let bulk_max = BULK_MAX / self.connections;
        Node::new(number, endpoint, self.connections, bulk_max)
    }

    /// A connection of this number leads to a server that reports this identity.
    fn identify(&self, number: u16, reported: Option<&ServerId>) -> Identified {
        let by_table = self.expected == Expected::WorkingCluster;
        let (outcome, change) = {
            let mut state = self.state.lock();
            let outcome = state.registry.identified(number, reported, by_table);
            let owner = match outcome {
                NumberOutcome::Alias(other) => other,
                _ => number,
            };
            let mut change = Entered::default();
            if matches!(outcome, NumberOutcome::Alias(_) | NumberOutcome::Restarted) {
                change.replace(&mut state, number, owner);
            }
            if owner != number {
                // What this address leads to has just been seen to work.
                let address = state.registry.node(number).endpoint.address();
                self.moves_to(state.registry.node(owner), &address);
            }
            (outcome, self.settle(&mut state, change))
        };
        self.announce(change);
        match outcome {
            NumberOutcome::Same | NumberOutcome::Restarted => Identified::Same,
            NumberOutcome::Unknown => Identified::Unknown,
            NumberOutcome::Other | NumberOutcome::Alias(_) => Identified::Other,
        }
    }

    /// The next connection to a server uses this address.
    fn moves_to(&self, node: &Node, address: &Address) {
        let settings = || self.settings.at(address, self.expected);
        node.endpoint.set_address(address, settings);
    }

    /// The server of a route says that another one has it now. Only its owner knows that; any other may have
    /// heard of it late.
    fn moved(&self, route: u16, from: u16, address: Address) {
        let change = {
            let mut state = self.state.lock();
            if state.owners[usize::from(route)] != Some(from) {
                return;
            }
            let server = Named::from(address);
            let mut found = self.find(&mut state, &server);
            if found == Some(from) {
                // It does not redirect to itself, so another server has this address now.
                state.registry.forget_address(&server.address);
                found = self.find(&mut state, &server);
            }
            let Some(to) = found else { return };
            let (epoch, at) = (state.epoch, Instant::now());
            state.moved.insert(route, Moved { to, epoch, at });
            let mut change = Entered::default();
            change.enter(&mut state, route, to, false);
            self.settle(&mut state, change)
        };
        self.announce(change);
    }

    /// Enters what a table says. The routes that are not in it keep their servers: one that is gone without a
    /// successor may come back. `false`: the table contradicts what an owner has said, so that another one
    /// should be asked.
    pub(in crate::redis) fn apply(&self, table: &RouteTable) -> bool {
        let mut contradicted = false;
        let change = {
            let mut state = self.state.lock();
            state.epoch = state.epoch.max(table.epoch);
            let now = Instant::now();
            state
                .moved
                .retain(|_, moved| now - moved.at < TRUST_OWNER_FOR);
            let source = table.source.as_ref();
            let mut change = Entered::default();
            // By their numbers. The first range of a server tells, and is followed by others.
            let mut replaced = BTreeSet::new();
            for (routes, server) in &table.routes {
                let make = |number, server: &Named| self.make(number, server);
                let found = state.registry.find(server, &table.members, make);
                let Some(found) = found else { continue };
                if let Some(alias) = found.alias {
                    change.replace(&mut state, alias, found.number);
                }
                let node = state.registry.node(found.number);
                self.moves_to(node, &server.address);
                if found.replaced {
                    node.replace_connections();
                    replaced.insert(found.number);
                }
                let is_replaced = replaced.contains(&found.number);
                let last = state.owners.len() - 1;
                for route in routes.clone().filter(|route| usize::from(*route) <= last) {
                    if let Some(moved) = state.moved.get(&route)
                        && moved.to != found.number
                        && table.epoch <= moved.epoch
                        && source.is_none_or(|id| state.id_of(moved.to).as_ref() != Some(id))
                    {
                        contradicted = true;
                        continue;
                    }
                    change.enter(&mut state, route, found.number, is_replaced);
                }
            }
            self.settle(&mut state, change)
        };
        self.announce(change);
        !contradicted
    }

    /// Which servers are to have connections now.
    fn settle(&self, state: &mut MapState, change: Entered) -> Entered {
        if !change.any {
            return change;
        }
        let after = state.owners.iter().copied().flatten().collect();
        let before = std::mem::replace(&mut state.in_use, after);
        state
            .importing
            .retain(|_, said| said.elapsed() < TAKING_OVER);
        let after = &state.in_use;
        for (number, node) in state.registry.nodes() {
            node.set_wanted(after.contains(&number) || state.importing.contains_key(&number));
        }
        // A server that had routes and has none any more was taken over from.
        let failovers = before.difference(after).count() as u64;
        self.failovers.fetch_add(failovers, Ordering::Relaxed);
        change
    }

    fn announce(&self, change: Entered) {
        if !change.any {
            return;
        }
        isolated(|| self.changed.notify_waiters());
        self.abandon(&change.switched);
        self.log(Some(change.switched.len()));
        if !change.switched.is_empty() {
            self.switches.add(change.switched);
        }
    }

    /// Logs that routes have changed, at most one line in five seconds. `None`: only what is still to be logged.
    pub(in crate::redis) fn log(&self, switched: Option<usize>) {
        let (nodes, switched) = {
            let mut state = self.state.lock();
            (state.in_use.len(), state.log.add(switched))
        };
        if let Some(switched) = switched {
            event!(INFO, nodes, switched, "the servers of locks have changed");
        }
    }

    /// The addresses of servers that have a route by the word of its last owner: their tables know of it.
    pub(in crate::redis) fn newest(&self) -> Vec<Address> {
        let state = self.state.lock();
        let numbers: BTreeSet<u16> = state.moved.values().map(|moved| moved.to).collect();
        let nodes = numbers.iter().map(|number| state.registry.node(*number));
        nodes.map(|node| node.endpoint.address()).collect()
    }

    /// The servers that have a route.
    pub(in crate::redis) fn nodes(&self) -> Vec<Arc<Node>> {
        let state = self.state.lock();
        let in_use = state.in_use.iter();
        in_use
            .map(|&number| Arc::clone(state.registry.node(number)))
            .collect()
    }

    /// The servers of all routes.
    pub(in crate::redis) fn owners(&self) -> RouteOwners {
        let state = self.state.lock();
        RouteOwners {
            numbers: state.owners.clone(),
            in_use: state.in_use.clone(),
        }
    }

    /// The numbers of the servers that have a route.
    pub(in crate::redis) fn numbers(&self) -> BTreeSet<u16> {
        self.state.lock().in_use.clone()
    }

    /// Ready when a route has got another server after this call.
    pub(in crate::redis) fn switched(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Visits every lane that has been used, of every server that was ever named.
    pub(in crate::redis) fn each_lane(&self, mut visit: impl FnMut(&Lane)) {
        let state = self.state.lock();
        let nodes = state.registry.nodes();
        nodes.for_each(|(_, node)| node.lanes().for_each(&mut visit));
    }

    pub(in crate::redis) fn stats(&self) -> Nodes {
        Nodes {
            nodes: self.state.lock().in_use.len(),
            redirects: self.redirects.load(Ordering::Relaxed),
            failovers: self.failovers.load(Ordering::Relaxed),
        }
    }
}

impl MapState {
    fn id_of(&self, number: u16) -> Option<ServerId> {
        self.registry.node(number).endpoint.id()
    }
}

impl Entered {
    /// A route has this server. `replaced`: not the one that it was, although it has the same number.
    fn enter(&mut self, state: &mut MapState, route: u16, number: u16, replaced: bool) {
        let before = state.owners[usize::from(route)].replace(number);
        let is_new = before != Some(number);
        self.any |= is_new || replaced;
        if before.is_some() && (is_new || replaced) {
            self.switched.insert(route);
        }
    }

    /// Everything of a number is another one's, which is the same server, or its own again after a restart.
    fn replace(&mut self, state: &mut MapState, number: u16, owner: u16) {
        self.any = true;
        for route in 0..=state.owners.len() as u16 - 1 {
            if state.owners[usize::from(route)] == Some(number) {
                self.enter(state, route, owner, true);
            }
        }
        if owner == number {
            return;
        }
        if let Some(said) = state.importing.remove(&number) {
            state.importing.insert(owner, said);
        }
        let moved = state.moved.values_mut();
        let to_it = moved.filter(|moved| moved.to == number);
        to_it.for_each(|moved| moved.to = owner);
        // It was never a server of its own, so no other has taken over from it.
        state.in_use.remove(&number);
    }
}

/// A server that was named as taking over a route, and has still none after this, keeps no connections.
const TAKING_OVER: Duration = Duration::from_secs(60);

/// For this long a node that has not heard of a route's new owner is not believed about it.
const TRUST_OWNER_FOR: Duration = Duration::from_secs(5);

/// The maximum number of calls of a kind in flight at a server.
const BULK_MAX: usize = 256;

#[cfg(test)]
mod tests;

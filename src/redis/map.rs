//! Which of several servers serves which lock, and what is done when that changes.
//!
//! A lock has a route: its slot in a cluster, and 0 behind Sentinel. A route leads to a server, which may
//! change at any time, and the map learns of it late. Three rules follow. A refusal that says where a
//! command belongs is followed, and does not count as a send: the command was not executed. An answer
//! counts only if its server still has the route when the answer is read: a former primary may go on
//! answering, over data that are about to be thrown away. And a route whose server has changed is told to
//! those who hold locks there.

mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use super::address::Address;
use super::lane::Surroundings;
use super::link::{Limit, SendError};
use super::node::Node;
use super::redirect::Redirect;
use super::settings::{Expected, Settings};
use crate::runtime::event;
use crate::script::Call;

use values::{NODES_MAX, not_reached};
pub(crate) use values::{Nodes, Received, RoutedLink, Switches};

/// The map.
pub(super) struct Map {
    pub(super) settings: Arc<Settings>,
    expected: Expected,
    /// Connections to each server.
    connections: usize,
    pub(super) around: Surroundings,
    state: Mutex<State>,
    /// Notified when a route has got another server.
    changed: Notify,
    /// Routes that got another server, for those who hold locks there.
    pub(super) switches: Arc<Switches>,
    redirects: AtomicU64,
    failovers: AtomicU64,
}

struct State {
    /// Every server that was ever named, in the order of their appearance. None is forgotten: its last
    /// connection is to be fenced when it comes back, and answers under way are judged by its number.
    nodes: Vec<Arc<Node>>,
    /// For each route the number of its server.
    owners: Vec<Option<u16>>,
    /// The numbers of the servers that have a route.
    in_use: BTreeSet<u16>,
    /// Servers that take over a route, and when that was last said.
    taking_over: BTreeMap<u16, Instant>,
}

impl Map {
    /// A map of `routes` routes, of which nothing is known yet.
    pub(super) fn new(
        settings: Arc<Settings>,
        expected: Expected,
        routes: usize,
        connections: usize,
        around: Surroundings,
    ) -> Self {
        let state = State {
            nodes: Vec::new(),
            owners: vec![None; routes],
            in_use: BTreeSet::new(),
            taking_over: BTreeMap::new(),
        };
        Self {
            settings,
            expected,
            connections,
            around,
            state: Mutex::new(state),
            changed: Notify::new(),
            switches: Arc::default(),
            redirects: AtomicU64::new(0),
            failovers: AtomicU64::new(0),
        }
    }

    /// Waits until `limit` for a connection to the server of a route.
    pub(super) async fn ready(
        &self,
        route: u16,
        nth: usize,
        limit: Instant,
    ) -> Result<RoutedLink, SendError> {
        loop {
            let mut changed = pin!(self.changed.notified());
            // Registered before the map is read, so that no change is missed in between.
            changed.as_mut().enable();
            let Some((number, node)) = self.owner(route) else {
                // It may have got one since the map was read.
                self.around.outdated.notify_one();
                let again = limit.min(Instant::now() + NOBODY);
                let changed = tokio::time::timeout_at(again, changed).await;
                if changed.is_err() && again == limit {
                    let source = "no server of the cluster has the slot of this lock";
                    return Err(SendError::NotSent(source.into()));
                }
                continue;
            };
            tokio::select! {
                biased;
                link = node.lane(nth, &self.around).ready(limit) => {
                    let link = link?;
                    return Ok(RoutedLink { node: number, ..RoutedLink::only(link) });
                }
                () = changed => {}
            }
        }
    }

    /// Sends a script to the server of a route, wherever that goes meanwhile, and waits for its answer.
    pub(super) async fn run<T: 'static>(
        &self,
        route: u16,
        nth: usize,
        mut way: RoutedLink,
        call: &Call<T>,
        limit: Limit,
        sent: &AtomicBool,
    ) -> Result<Received, SendError> {
        let mut redirections = 0;
        loop {
            let number = way.node;
            let text = match self.run_there(route, nth, way, call, limit, sent).await {
                Err(SendError::Refused(text)) => text,
                answered => return answered,
            };
            let asked = self.node(number);
            let Some(redirect) = Redirect::read(&text, &asked.address) else {
                return Err(SendError::Refused(text));
            };
            self.around.outdated.notify_one();
            let next = match redirect {
                Redirect::Moved(_) | Redirect::Ask(_) if redirections == REDIRECTIONS_MAX => {
                    return Err(not_reached(text));
                }
                Redirect::Moved(address) => {
                    redirections += 1;
                    self.redirects.fetch_add(1, Ordering::Relaxed);
                    self.apply(&[(route..=route, address)]);
                    self.ready(route, nth, limit.until).await
                }
                Redirect::Ask(address) => {
                    redirections += 1;
                    self.redirects.fetch_add(1, Ordering::Relaxed);
                    let Some((node, target)) = self.taking_over(&address) else {
                        return Err(not_reached(text));
                    };
                    let lane = target.lane(nth, &self.around);
                    lane.ready(limit.until).await.map(|link| RoutedLink {
                        link,
                        node,
                        taken_over_from: Some(number),
                    })
                }
                Redirect::Later(pause) => {
                    tokio::time::sleep_until((Instant::now() + pause).min(limit.until)).await;
                    self.ready(route, nth, limit.until).await
                }
            };
            way = match next {
                Ok(way) if Instant::now() < limit.until => way,
                // What the last server said tells more than that the time is over.
                Ok(_) | Err(SendError::NotSent(_)) => return Err(not_reached(text)),
                Err(error) => return Err(error),
            };
        }
    }

    /// Sends once. What a server has answered that does not have the route any more is not known.
    pub(super) async fn run_there<T: 'static>(
        &self,
        route: u16,
        nth: usize,
        way: RoutedLink,
        call: &Call<T>,
        limit: Limit,
        sent: &AtomicBool,
    ) -> Result<Received, SendError> {
        let sent_at = Instant::now();
        let answer = async {
            match way.taken_over_from {
                None => way.link.run(call, limit, sent).await,
                Some(_) => way.link.run_asking(call, limit, sent).await,
            }
        };
        let answer = tokio::select! {
            biased;
            answer = answer => match answer {
                Ok(_) if !self.has(route, &way) => None,
                answer => Some(answer),
            },
            () = self.lost(route, &way) => None,
        };
        let (reply, sent_at) = answer.unwrap_or_else(|| {
            let source = "another server has taken over";
            Err(SendError::Unknown {
                source: source.into(),
                sent_at,
            })
        })?;
        if way.is_on_the_way()
            && let Some((channel, announce)) = &call.announced
            && let Some((_, owner)) = self.owner(route)
        {
            owner.announce(nth, &self.around, (channel, *announce), limit);
        }
        Ok(Received {
            reply,
            sent_at,
            way,
        })
    }

    /// Whether the server of this way has the route, or is about to take it over from the one that has.
    fn has(&self, route: u16, way: &RoutedLink) -> bool {
        let owner = self.state.lock().owners[usize::from(route)];
        owner == Some(way.node) || owner.is_some() && owner == way.taken_over_from
    }

    /// Waits until the server of this way does not have the route any more.
    pub(super) async fn lost(&self, route: u16, way: &RoutedLink) {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if !self.has(route, way) {
                return;
            }
            changed.await;
        }
    }

    /// The server of a route, with its number.
    pub(super) fn owner(&self, route: u16) -> Option<(u16, Arc<Node>)> {
        let state = self.state.lock();
        let number = state.owners[usize::from(route)]?;
        Some((number, Arc::clone(&state.nodes[usize::from(number)])))
    }

    pub(super) fn node(&self, number: u16) -> Arc<Node> {
        Arc::clone(&self.state.lock().nodes[usize::from(number)])
    }

    /// A server that takes over a slot, and may have none yet: it is to have connections even so.
    fn taking_over(&self, address: &Address) -> Option<(u16, Arc<Node>)> {
        let mut state = self.state.lock();
        let number = self.number_of(&mut state, address)?;
        state.taking_over.insert(number, Instant::now());
        let node = Arc::clone(&state.nodes[usize::from(number)]);
        node.set_wanted(true);
        Some((number, node))
    }

    /// The number of a server, which it keeps for good: an answer under way is judged by it. `None`: there are no
    /// more, and what is said of that server is not followed.
    fn number_of(&self, state: &mut State, address: &Address) -> Option<u16> {
        let known = state.nodes.iter().position(|node| node.address == *address);
        let number = known.unwrap_or(state.nodes.len());
        if number == NODES_MAX {
            event!(DEBUG, server = %address, "too many servers were named");
            return None;
        }
        if known.is_none() {
            let settings = Arc::new(self.settings.at(address, self.expected));
            let bulk = BULK_MAX / self.connections;
            let node = Node::new(address.clone(), settings, self.connections, bulk);
            state.nodes.push(Arc::new(node));
        }
        Some(number as u16)
    }

    /// Enters what is known of some routes. The others keep their servers: one that is gone without a
    /// successor may come back.
    pub(super) fn apply(&self, found: &[(RangeInclusive<u16>, Address)]) {
        let (nodes, switched, failovers) = {
            let mut state = self.state.lock();
            let mut changed = false;
            let mut switched = BTreeSet::new();
            for (routes, address) in found {
                let Some(number) = self.number_of(&mut state, address) else {
                    continue;
                };
                let last = state.owners.len() - 1;
                for route in routes.clone().filter(|route| usize::from(*route) <= last) {
                    let owner = state.owners[usize::from(route)].replace(number);
                    changed |= owner != Some(number);
                    if owner.is_some_and(|owner| owner != number) {
                        switched.insert(route);
                    }
                }
            }
            if !changed {
                return;
            }
            let after = state.owners.iter().copied().flatten().collect();
            let before = std::mem::replace(&mut state.in_use, after);
            state
                .taking_over
                .retain(|_, said| said.elapsed() < TAKING_OVER);
            let after = &state.in_use;
            for (number, node) in state.nodes.iter().enumerate() {
                let number = number as u16;
                node.set_wanted(after.contains(&number) || state.taking_over.contains_key(&number));
            }
            // A server that had routes and has none any more was taken over from.
            let failovers = before.difference(after).count() as u64;
            self.failovers.fetch_add(failovers, Ordering::Relaxed);
            (after.len(), switched, failovers)
        };
        self.changed.notify_waiters();
        event!(
            INFO,
            nodes,
            switched = switched.len(),
            "the servers of locks have changed"
        );
        if !switched.is_empty() {
            // In a cluster every node hears every message, but one that has no slots any more may be leaving.
            if failovers > 0 {
                self.around.moved.notify_one();
            }
            self.switches.add(switched);
        }
    }

    /// The servers that have a route.
    pub(super) fn nodes(&self) -> Vec<Arc<Node>> {
        let state = self.state.lock();
        let in_use = state.in_use.iter();
        in_use
            .map(|&number| Arc::clone(&state.nodes[usize::from(number)]))
            .collect()
    }

    /// The numbers of the servers that have a route.
    pub(super) fn numbers(&self) -> BTreeSet<u16> {
        self.state.lock().in_use.clone()
    }

    /// Ready when a route has got another server after this call, if it is enabled.
    pub(super) fn switched(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Visits every server that was ever named.
    pub(super) fn each_node(&self, visit: impl FnMut(&Arc<Node>)) {
        self.state.lock().nodes.iter().for_each(visit);
    }

    pub(super) fn figures(&self) -> Nodes {
        Nodes {
            nodes: self.state.lock().in_use.len(),
            redirects: self.redirects.load(Ordering::Relaxed),
            failovers: self.failovers.load(Ordering::Relaxed),
        }
    }
}

/// A server that was named as taking over a route, and has still none after this, keeps no connections.
const TAKING_OVER: Duration = Duration::from_secs(60);

/// A slot that nobody has is asked for again after this.
const NOBODY: Duration = Duration::from_millis(100);

/// One more is a circle.
const REDIRECTIONS_MAX: u32 = 8;

/// The maximum number of calls of a kind in flight at a server.
const BULK_MAX: usize = 256;

#[cfg(test)]
mod tests;

//! Sends a script to the server of its lock, wherever that goes meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::Map;
use super::values::{Received, RoutedLink, not_reached};
use crate::error::RefusalKind::{self, Ask, Known, Moved};
use crate::error::{Cause, RefusedKind};
use crate::redis::call::Call;
use crate::redis::node::Node;
use crate::redis::node::lane::Lane;
use crate::redis::node::link::{Limit, SendError};
use crate::redis::settings::address::Address;
use crate::redis::transport::ConnectionError;

impl Map {
    /// Why nothing is sent on a route that no server has.
    pub(in crate::redis) fn no_owner(&self) -> Box<Cause> {
        ConnectionError::no_owner().into_cause(&self.settings.address)
    }

    /// Waits until `limit` for a connection to the server of a route.
    pub(in crate::redis) async fn ready(
        &self,
        route: u16,
        nth: usize,
        limit: Instant,
    ) -> Result<RoutedLink, SendError> {
        self.reach(nth, limit, || self.owner(route)).await
    }

    /// Waits for a connection to the server that `which` leads to at each look: the owner may change meanwhile.
    async fn reach(
        &self,
        nth: usize,
        limit: Instant,
        which: impl Fn() -> Option<(u16, Arc<Node>)>,
    ) -> Result<RoutedLink, SendError> {
        loop {
            let mut changed = pin!(self.changed.notified());
            // Registered before the map is read, so that no change is missed in between.
            changed.as_mut().enable();
            let Some((number, node)) = which() else {
                // It may have got one since the map was read.
                self.context.outdated.notify_one();
                let again = limit.min(Instant::now() + NO_OWNER);
                let changed = tokio::time::timeout_at(again, changed).await;
                if changed.is_err() && again == limit {
                    return Err(SendError::NotAccepted(self.no_owner()));
                }
                continue;
            };
            tokio::select! {
                biased;
                link = node.lane(nth, &self.context).ready(limit) => {
                    return Ok(RoutedLink::to(number, link?));
                }
                () = changed => {}
            }
        }
    }

    /// Sends a script to the server of a route, wherever that goes meanwhile, and waits for its answer.
    pub(in crate::redis) async fn run<T: 'static>(
        &self,
        route: u16,
        nth: usize,
        mut way: RoutedLink,
        call: &Call<T>,
        limit: Limit,
    ) -> Result<Received, SendError> {
        let mut redirections = 0;
        loop {
            let number = way.node;
            let cause = match self.run_there(route, nth, way, call, limit).await {
                Err(SendError::Refused(cause)) => cause,
                answered => return answered,
            };
            // None of these was executed. Any other refusal is about the command.
            let Some(pause) = cause.refusal.as_ref().and_then(pause_before) else {
                return Err(SendError::Refused(cause));
            };
            self.context.outdated.notify_one();
            let named = |host, port| self.named_by(number, host, port);
            let next = match &cause.refusal {
                Some(Moved { .. } | Ask { .. }) if redirections == REDIRECTIONS_MAX => {
                    return Err(not_reached(cause));
                }
                Some(Moved { host, port }) => {
                    redirections += 1;
                    self.redirects.fetch_add(1, Ordering::Relaxed);
                    self.moved(route, number, named(host, *port));
                    if redirections > 2 {
                        // Two nodes that send each other's clients back are about to hear of each other.
                        tokio::time::sleep_until(
                            limit.until.min(Instant::now() + REDIRECT_LOOP_PAUSE),
                        )
                        .await;
                    }
                    self.ready(route, nth, limit.until).await
                }
                Some(Ask { host, port }) => {
                    redirections += 1;
                    self.redirects.fetch_add(1, Ordering::Relaxed);
                    let address = named(host, *port);
                    let target = || self.importing(&address);
                    let found = self.reach(nth, limit.until, target).await;
                    found.map(|to| RoutedLink {
                        migrating_from: Some(number),
                        ..to
                    })
                }
                // The server does not take it at the moment, and the map may be about to change.
                _ => {
                    tokio::time::sleep_until((Instant::now() + pause).min(limit.until)).await;
                    self.ready(route, nth, limit.until).await
                }
            };
            way = match next {
                Ok(way) if Instant::now() < limit.until => way,
                // What the last server said tells more than that the time is over.
                Ok(_) | Err(SendError::NotSent(_)) => return Err(not_reached(cause)),
                Err(error) => return Err(error),
            };
        }
    }

    /// Sends once. What a server has answered that does not have the route any more is not known.
    pub(in crate::redis) async fn run_there<T: 'static>(
        &self,
        route: u16,
        nth: usize,
        way: RoutedLink,
        call: &Call<T>,
        limit: Limit,
    ) -> Result<Received, SendError> {
        let answer = async {
            match way.migrating_from {
                None => way.link.run(call, limit).await,
                Some(_) => way.link.run_asking(call, limit).await,
            }
        };
        let (reply, sent_at) = tokio::select! {
            biased;
            answer = answer => self.counted(route, &way, answer),
            () = self.lost(route, &way) => Err(taken_over(&way)),
        }?;
        if way.is_on_the_way()
            && let Some((channel, announce)) = &call.announced
            && let Some((_, owner)) = self.owner(route)
        {
            owner.announce(nth, &self.context, (channel, *announce), limit);
        }
        Ok(Received {
            reply,
            sent_at,
            way,
        })
    }

    /// A node that this one has named, whose IP address a table may have had beside its name.
    fn named_by(&self, number: u16, host: &str, port: u16) -> Address {
        let asked = self.node(number).endpoint.address();
        self.settings.learned.address(host, port, None, &asked)
    }

    /// Notes where a refusal sends what was entered, so that its next send goes there.
    pub(in crate::redis) fn note_refusal(
        &self,
        route: u16,
        way: &RoutedLink,
        refusal: &RefusalKind,
    ) {
        if !is_followed(refusal) {
            return;
        }
        self.context.outdated.notify_one();
        if let Moved { host, port } = refusal {
            self.redirects.fetch_add(1, Ordering::Relaxed);
            self.moved(route, way.node, self.named_by(way.node, host, *port));
        }
    }

    /// An answer, if its server still has the route.
    pub(in crate::redis) fn counted<T>(
        &self,
        route: u16,
        way: &RoutedLink,
        answer: Result<T, SendError>,
    ) -> Result<T, SendError> {
        match answer {
            // The connection of a server that has lost all its slots ends.
            Ok(_) | Err(SendError::Unknown(_)) if !self.has(route, way) => Err(taken_over(way)),
            answer => answer,
        }
    }

    /// Ends the wait for what was entered on these routes at a server that does not have them any more.
    pub(super) fn abandon(&self, switched: &BTreeSet<u16>) {
        let (links, owners) = {
            let state = self.state.lock();
            let owners = switched.iter();
            let owners = owners.map(|route| (*route, state.owners[usize::from(*route)]));
            let nodes = state.registry.nodes();
            let links = nodes.flat_map(|(number, node)| {
                let links = node.lanes().filter_map(Lane::now);
                links.map(move |link| (number, link)).collect::<Vec<_>>()
            });
            (
                links.collect::<Vec<_>>(),
                owners.collect::<BTreeMap<_, _>>(),
            )
        };
        for (number, link) in links {
            link.abandon(|route| {
                owners
                    .get(&route)
                    .is_some_and(|owner| *owner != Some(number))
            });
        }
    }

    /// Whether the server of this way has the route, or is about to take it over from the one that has.
    fn has(&self, route: u16, way: &RoutedLink) -> bool {
        let owner = self.state.lock().owners[usize::from(route)];
        owner == Some(way.node) || owner.is_some() && owner == way.migrating_from
    }

    /// Waits until the server of this way does not have the route any more.
    pub(in crate::redis) async fn lost(&self, route: u16, way: &RoutedLink) {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if !self.has(route, way) {
                return;
            }
            changed.await;
        }
    }
}

fn taken_over(way: &RoutedLink) -> SendError {
    SendError::TakenOver(way.link.cause("another server has taken over"))
}

/// Whether a command that was refused so goes on to another server, or to the same one a moment later.
pub(in crate::redis) fn is_followed(refusal: &RefusalKind) -> bool {
    pause_before(refusal).is_some()
}

/// How long a command that was refused so waits before it goes on.
fn pause_before(refusal: &RefusalKind) -> Option<Duration> {
    Some(match refusal {
        Moved { .. } | Ask { .. } => Duration::ZERO,
        Known(RefusedKind::ReadOnly) => READ_ONLY,
        Known(RefusedKind::Loading | RefusedKind::MasterDown | RefusedKind::ClusterDown) => {
            SERVER_DOWN_PAUSE
        }
        _ => return None,
    })
}

/// The pause for a replica that is about to be the primary, or a primary that has become a replica.
const READ_ONLY: Duration = Duration::from_millis(50);

/// The pause for a server that is loading, or sees its cluster or its primary down.
const SERVER_DOWN_PAUSE: Duration = Duration::from_millis(100);

/// A slot without an owner is asked for again after this.
pub(super) const NO_OWNER: Duration = Duration::from_millis(100);

/// One more is a circle.
const REDIRECTIONS_MAX: u32 = 8;

/// Before a command that was sent on twice is sent on again.
const REDIRECT_LOOP_PAUSE: Duration = Duration::from_millis(50);

//! The way of the commands of one key.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::confirmer::ReplicaRoute;
use super::map::{Map, Received, RoutedLink, is_followed};
use crate::error::{Cause, Error, Operation, RefusalKind};
use crate::redis::call::Call;
use crate::redis::channels::{ChannelRoute, Subscription, UNCONFIRMED};
use crate::redis::connection::answers::Answer;
use crate::redis::connection::{AnswerCallback, Unflushed, slot_of};
use crate::redis::node::BackgroundClass;
use crate::redis::node::link::{Limit, SendError};
use crate::redis::settings::Settings;
use crate::redis::transport::Reply;

/// The way of the commands of one key: all of them go over the same connection, in order.
#[derive(Clone, Copy)]
pub(crate) struct Route<'a> {
    map: &'a Map,
    is_in_cluster: bool,
    /// The slot in a cluster.
    group: u16,
    lane: usize,
}

impl<'a> Route<'a> {
    pub(in crate::redis) fn new(map: &'a Map, is_in_cluster: bool, key: &str) -> Self {
        let connections = map.connections;
        let (group, lane) = if is_in_cluster {
            // What goes to one slot can go in one call, so it takes one connection.
            let slot = slot_of(key);
            (slot, usize::from(slot) % connections)
        } else {
            let hash = key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
            (0, (hash % connections as u64) as usize)
        };
        Self {
            map,
            is_in_cluster,
            group,
            lane,
        }
    }

    /// The number of its connection among those to one server.
    pub(crate) fn lane(self) -> usize {
        self.lane
    }

    /// Calls that can be sent together have the same number.
    pub(crate) fn number(self) -> usize {
        usize::from(self.group) * self.map.connections + self.lane
    }

    /// Whether its server may be one of several, between which keys move.
    pub(crate) fn is_in_cluster(self) -> bool {
        self.is_in_cluster
    }

    /// The slot in a cluster, and 0 elsewhere.
    pub(crate) fn group(self) -> u16 {
        self.group
    }

    /// The error for a call without an answer. It names the server that has the lock now.
    pub(crate) fn no_answer(self, while_doing: Operation, text: &str) -> Error {
        Error::no_answer(while_doing, Cause::new(self.server(), text))
    }

    /// The error for an answer that came too late.
    pub(crate) fn late(self, while_doing: Operation, text: &str) -> Error {
        Error::no_answer(while_doing, Cause::late(self.server(), text))
    }

    pub(in crate::redis) fn server(self) -> Option<Arc<str>> {
        Some(Arc::clone(&self.settings()?.address))
    }

    /// Those of the server that has the lock now.
    pub(in crate::redis) fn settings(self) -> Option<Arc<Settings>> {
        Some(self.map.owner(self.group)?.1.settings())
    }

    /// The settings of that server, or the error of an operation that needs them.
    pub(in crate::redis) fn settings_for(self, doing: Operation) -> Result<Arc<Settings>, Error> {
        let settings = self.settings();
        let map = self.map;
        settings.ok_or_else(|| Error::of_connection(doing, "", map.no_owner()))
    }

    /// Why no script can be sent now, if none can, or the server has been silent for too long.
    pub(crate) fn problem(self, is_long: impl Fn(Instant) -> bool) -> Option<SendError> {
        match self.map.owner(self.group) {
            Some((_, node)) => node.problem(self.lane, is_long),
            None => Some(SendError::NotAccepted(self.map.no_owner())),
        }
    }

    /// Waits until `limit` for a connection that may carry scripts.
    pub(crate) async fn ready(self, limit: Instant) -> Result<RoutedLink, SendError> {
        let map = self.map;
        match map.only.get() {
            Some(node) => {
                let lane = node.lane(self.lane, &map.context);
                lane.ready(limit).await.map(RoutedLink::only)
            }
            None => Box::pin(map.ready(self.group, self.lane, limit)).await,
        }
    }

    /// The connection that may carry scripts now, if there is one.
    pub(crate) fn now(self) -> Option<RoutedLink> {
        let map = self.map;
        match map.only.get() {
            Some(node) => node.link(self.lane).map(RoutedLink::only),
            None => {
                let (node, server) = map.owner(self.group)?;
                Some(RoutedLink::to(node, server.link(self.lane)?))
            }
        }
    }

    /// Enters a script into the connection of this way, which is flushed later. `done` makes what is called once with the
    /// answer, for [`outcome`](Self::outcome), by the task that reads it, or that finds that there is none. `None`: the
    /// connection accepts no command.
    pub(crate) fn enter<T: 'static>(
        self,
        way: RoutedLink,
        call: Call<T>,
        sent: (Instant, Limit),
        done: impl FnOnce(RoutedLink, Call<T>) -> AnswerCallback,
    ) -> Option<Unflushed> {
        let route = self.map.only.get().is_none().then_some(self.group);
        let link = Arc::clone(&way.link);
        link.enter(call, sent, route, |call| done(way, call))
    }

    /// What became of a script that was entered.
    pub(crate) fn outcome(self, way: &RoutedLink, answer: Answer) -> Result<Reply, SendError> {
        let outcome = way.link.outcome(answer);
        match self.map.only.get() {
            Some(_) => outcome,
            None => {
                if let Err(SendError::Refused(cause)) = &outcome
                    && let Some(refusal) = &cause.refusal
                {
                    self.map.note_refusal(self.group, way, refusal);
                }
                self.map.counted(self.group, way, outcome)
            }
        }
    }

    /// Whether a refusal is followed by another send, because nothing was executed.
    pub(crate) fn follows(self, refusal: Option<&RefusalKind>) -> bool {
        let is_only = self.map.only.get().is_some();
        match refusal {
            Some(RefusalKind::NoScript) => true,
            Some(kind) => !is_only && is_followed(kind),
            None => false,
        }
    }

    /// Sends a script once and waits for its answer within `limit`. Among several servers it follows where
    /// it is sent, which counts as nothing: what was redirected was not executed.
    pub(crate) async fn run<T: 'static>(
        self,
        way: RoutedLink,
        call: &Call<T>,
        limit: Limit,
    ) -> Result<Received, SendError> {
        let map = self.map;
        match map.only.get() {
            Some(_) => self.run_there(way, call, limit).await,
            None => Box::pin(map.run(self.group, self.lane, way, call, limit)).await,
        }
    }

    /// Runs the call at this server alone: a redirection counts as a refusal.
    pub(crate) async fn run_there<T: 'static>(
        self,
        way: RoutedLink,
        call: &Call<T>,
        limit: Limit,
    ) -> Result<Received, SendError> {
        let map = self.map;
        match map.only.get() {
            Some(_) => {
                let (reply, sent_at) = way.link.run(call, limit).await?;
                Ok(Received {
                    reply,
                    sent_at,
                    way,
                })
            }
            None => Box::pin(map.run_there(self.group, self.lane, way, call, limit)).await,
        }
    }

    /// Joins a channel of the lock, and asks for it unless that was done already.
    pub(crate) fn subscribe(self, channel: &Arc<str>) -> Subscription {
        let route = ChannelRoute {
            group: self.group,
            lane: self.lane,
        };
        let (subscription, wanted) = self.map.context.channels.join(channel, route);
        wanted.iter().for_each(|request| self.map.ask(request));
        subscription
    }

    /// Why a channel of the lock was not confirmed, if the server has not said so.
    pub(crate) fn deafness(self) -> Box<Cause> {
        let owner = self.map.owner(self.group);
        match owner.and_then(|(_, node)| node.deafness(self.lane)) {
            Some(
                SendError::NotSent(cause)
                | SendError::NotAccepted(cause)
                | SendError::Unknown(cause),
            ) => cause,
            _ => Cause::new(self.server(), UNCONFIRMED),
        }
    }

    /// Where calls wait for this number of replicas.
    pub(crate) fn waiting_for(self, replicas: u32) -> ReplicaRoute<'a> {
        ReplicaRoute {
            map: self.map,
            group: self.group,
            // Behind those for commands.
            lane: self.map.connections + replicas as usize - 1,
            replicas,
        }
    }

    /// Waits for a turn among the calls of this kind. Thousands that are sent together would all be
    /// answered late; their timeouts then make more of them.
    pub(crate) async fn bulk(self, kind: BackgroundClass) -> Option<OwnedSemaphorePermit> {
        // Without a server nothing is sent.
        let (_, node) = self.map.owner(self.group)?;
        Some(node.bulk(self.lane, kind).await)
    }

    /// A turn among the calls of this kind, if there is one now.
    pub(crate) fn try_bulk(self, kind: BackgroundClass) -> Option<OwnedSemaphorePermit> {
        let (_, node) = self.map.owner(self.group)?;
        node.try_bulk(self.lane, kind)
    }

    /// The connection that carries the commands of this key now, among all that have: by server, and how often it was
    /// replaced. `None`: there is none at present. Once there is another one, nothing that was sent before is executed any
    /// more: its predecessor was killed, or without a fence is taken to be.
    pub(crate) fn carrier(self) -> Option<(u16, u64)> {
        let map = self.map;
        let (server, node) = map.owner(self.group)?;
        let lane = node.lane(self.lane, &map.context);
        let nth = lane.reconnects();
        lane.is_up().then_some((server, nth))
    }

    /// Whether no send of this client comes later than a connection's replacement, now and so far. Without
    /// that a pass is not safe: a late copy of it takes the lock from a later hold. A command of a key may have gone
    /// over any lane where slots move, so it is asked of all.
    pub(crate) fn is_fenced(self) -> bool {
        self.map.context.fences.are_active()
    }

    /// How many times a connection of this client was replaced without a fence.
    pub(crate) fn unfenced(self) -> u64 {
        self.map.context.fences.replaced_without()
    }
}

//! Subscribes to channels, over the connections that carry the scripts of their locks.
//!
//! The first listener subscribes, and the reader of the connection notes the answer. One task does the rest: it subscribes
//! again after a lost connection, a moved slot or a refusal that passes, and unsubscribes from channels without listeners.

use std::pin::pin;
use std::sync::Arc;

use tokio::time::Instant;

use super::map::{Map, RouteOwners};
use crate::base::runtime::sleep_until;
use crate::error::{Cause, RefusalKind, RefusedKind};
use crate::redis::channels::{ChannelPart, ChannelRequest, LaneId};
use crate::redis::connection::AnswerCallback;
use crate::redis::node::Node;
use crate::redis::node::link::{Limit, Link};
use crate::redis::transport::ConnectionError;

/// Starts the task.
pub(in crate::redis) fn keep(map: &Arc<Map>) {
    map.context.spawn(keep_on(Arc::clone(map)));
}

async fn keep_on(map: Arc<Map>) {
    let channels = &map.context.channels;
    let mut switched = pin!(map.switched());
    loop {
        map.leave(channels.unused());
        map.leave(channels.not_confirmed_elsewhere());
        channels.due().iter().for_each(|request| map.ask(request));
        tokio::select! {
            biased;
            () = channels.changed() => {}
            () = sleep_until(channels.next_due()) => {}
            () = switched.as_mut() => {
                // Made before the map is read, so that no change is missed in between.
                switched.set(map.switched());
                let owners = map.owners();
                let moved = channels.moved(|request, lane| stays(&owners, request, lane));
                map.leave(moved);
            }
        }
    }
}

impl Map {
    /// Asks for a channel, if its connection is there. Otherwise the task does when it is.
    pub(in crate::redis) fn ask(&self, request: &ChannelRequest) {
        let Some((_, node)) = self.home(request) else {
            self.context.outdated.notify_one();
            return;
        };
        let Some((lane, link)) = node.hearing(request.route.lane, &self.context) else {
            return;
        };
        let part = &request.part;
        let _writing = self.context.channels.writing();
        if let Some(number) = self.context.channels.asked(part, lane) {
            let told = self.noting(part, number, &link);
            link.subscribe(part.delivery, &part.name, self.limit(), told);
        }
    }

    /// Notes the answer to what was asked for with this number.
    fn noting(&self, part: &ChannelPart, number: u64, link: &Link) -> AnswerCallback {
        let channels = Arc::clone(&self.context.channels);
        let outdated = Arc::clone(&self.context.outdated);
        let (part, server) = (part.clone(), Arc::clone(&link.server));
        let heard = Arc::clone(&link.heard);
        Box::new(move |answer| match answer {
            Ok(_) => {
                heard.note_answered();
                channels.confirmed(&part, number);
            }
            Err(ConnectionError::Refused(refusal)) => {
                heard.note_answered();
                let (is_elsewhere, is_of_the_server) =
                    (is_elsewhere(&refusal.kind), refusal.kind.is_of_the_server());
                let cause = Cause::refused(&server, refusal.kind, refusal.text);
                if is_elsewhere {
                    outdated.notify_one();
                    channels.failed(&part, number, None);
                } else if is_of_the_server {
                    channels.failed(&part, number, Some(cause));
                } else {
                    channels.refused(&part, number, *cause);
                }
            }
            // It may have ended before this was asked, or its server reads nothing.
            Err(ConnectionError::NotSent(_)) => channels.failed(&part, number, None),
            // The end of the connection has all of its channels wanted again.
            Err(problem) => channels.unanswered(&part, number, problem.into_cause(&server)),
        })
    }

    /// Ends subscriptions, and asks again for those that are wanted again.
    fn leave(&self, leaving: Vec<(ChannelPart, LaneId)>) {
        for (part, lane) in leaving {
            if let Some(link) = self.node(lane.node).link(lane.nth) {
                let _writing = self.context.channels.writing();
                link.unsubscribe(part.delivery, &part.name);
            }
            if let Some(request) = self.context.channels.left(&part) {
                self.ask(&request);
            }
        }
    }

    fn limit(&self) -> Limit {
        let timeout = self.settings.command_timeout;
        Limit {
            until: Instant::now() + timeout,
            silence: timeout / 2,
        }
    }

    /// The server where a channel is to be subscribed to. `None`: none has its slot.
    fn home(&self, request: &ChannelRequest) -> Option<(u16, Arc<Node>)> {
        let (owner, node) = self.owner(request.route.group)?;
        if !request.is_elsewhere {
            return Some((owner, node));
        }
        let mut others = self.numbers();
        others.remove(&owner);
        let nth = usize::from(request.route.group) % others.len().max(1);
        let number = others.into_iter().nth(nth).unwrap_or(owner);
        Some((number, self.node(number)))
    }
}

/// Whether a channel may stay where it is subscribed to, by the servers of all slots.
fn stays(owners: &RouteOwners, request: &ChannelRequest, lane: LaneId) -> bool {
    let Some(owner) = owners.of(request.route.group) else {
        return true;
    };
    match request.is_elsewhere {
        true => {
            owners.in_use.contains(&lane.node) && (lane.node != owner || owners.in_use.len() == 1)
        }
        false => lane.node == owner,
    }
}

/// Whether another node has the slot, or none has it at the moment.
fn is_elsewhere(refusal: &RefusalKind) -> bool {
    use RefusalKind::{Ask, Known, Moved, TryAgain};
    matches!(
        refusal,
        Moved { .. } | Ask { .. } | TryAgain | Known(RefusedKind::ClusterDown)
    )
}

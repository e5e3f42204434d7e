//! One server: its connections, and how many calls of a kind it is given at a time.

pub(super) mod endpoint;
pub(super) mod fence;
pub(super) mod hearing;
pub(super) mod lane;
pub(super) mod link;
pub(super) mod probe;
pub(super) mod replicas;
pub(super) mod slots;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::settings::Settings;
use crate::names::wire::Announce;
use crate::redis::channels::LaneId;
use crate::redis::node::endpoint::Endpoint;
use crate::redis::node::hearing::Hearing;
use crate::redis::node::lane::{ConnectionContext, Lane, LanePlace, Purpose};
use crate::redis::node::link::{Limit, Link, SendError};
use crate::redis::node::replicas::{REPLICAS_MAX, Replicas};
use crate::redis::transport::ConnectionError;

/// A server.
pub(super) struct Node {
    pub(super) endpoint: Arc<Endpoint>,
    /// The number of the server among those of the client.
    number: u16,
    /// Those for scripts, behind them one for each number of replicas that may be waited for, and the one for messages.
    lanes: Box<[OnceLock<Lane>]>,
    hearing: Arc<Hearing>,
    /// Whether there are to be connections.
    wanted: Mutex<bool>,
    replicas: [Arc<Replicas>; REPLICAS_MAX as usize],
    /// For each lane, the permits for bulk calls.
    bulk: Box<[[Arc<Semaphore>; 2]]>,
}

/// Calls that no caller waits for; there may be one per lock at the same time.
#[derive(Debug, Clone, Copy)]
pub(crate) enum BackgroundClass {
    Renewals = 0,
    Releases = 1,
}

impl Node {
    /// A server whose connections are opened on their first use.
    pub(super) fn new(number: u16, endpoint: Endpoint, lanes: usize, bulk_max: usize) -> Self {
        let bulk = || [bulk_max; 2].map(|max| Arc::new(Semaphore::new(max)));
        Self {
            endpoint: Arc::new(endpoint),
            number,
            lanes: std::iter::repeat_with(OnceLock::new)
                .take(lanes + REPLICAS_MAX as usize + 1)
                .collect(),
            hearing: Arc::default(),
            wanted: Mutex::new(true),
            replicas: Default::default(),
            bulk: std::iter::repeat_with(bulk).take(lanes).collect(),
        }
    }

    /// Opens every connection for scripts, one after the other; fails if the first attempt of any fails.
    pub(super) async fn open(&self, context: &ConnectionContext) -> Result<(), ConnectionError> {
        for nth in 0..self.commands() {
            self.open_lane(nth, context).await?;
        }
        Ok(())
    }

    /// Opens a connection that has not been used; fails if the first attempt fails.
    pub(super) async fn open_lane(
        &self,
        nth: usize,
        context: &ConnectionContext,
    ) -> Result<(), ConnectionError> {
        let opened = Lane::open(self.place(nth), context).await?;
        // It is not set yet: the client, whose calls would use it, is still being made.
        _ = self.lanes[nth].set(opened);
        Ok(())
    }

    fn place(&self, nth: usize) -> LanePlace {
        let purpose = match nth {
            nth if nth < self.commands() => Purpose::Scripts,
            nth if nth == self.lanes.len() - 1 => Purpose::Messages,
            _ => Purpose::Replicas,
        };
        LanePlace {
            endpoint: Arc::clone(&self.endpoint),
            id: LaneId {
                node: self.number,
                nth,
            },
            purpose,
            hearing: Arc::clone(&self.hearing),
        }
    }

    pub(super) fn settings(&self) -> Arc<Settings> {
        self.endpoint.settings()
    }

    /// What was opened leads to a server that is not the one any more.
    pub(super) fn replace_connections(&self) {
        for link in self.lanes().filter_map(Lane::now) {
            link.broken.notify_one();
        }
    }

    pub(super) fn lane(&self, nth: usize, context: &ConnectionContext) -> &Lane {
        let lane = &self.lanes[nth];
        lane.get().unwrap_or_else(|| {
            // Who says otherwise meanwhile would not find the lane yet.
            let wanted = self.wanted.lock();
            lane.get_or_init(|| {
                let lane = Lane::start(self.place(nth), context);
                lane.set_wanted(*wanted);
                lane
            })
        })
    }

    /// Why no script can be sent now over this lane, if it has been used and none can, or the server has been silent on it
    /// for too long.
    pub(super) fn problem(
        &self,
        nth: usize,
        is_long: impl Fn(Instant) -> bool,
    ) -> Option<SendError> {
        self.lanes[nth].get()?.problem(is_long)
    }

    /// How many lanes are for scripts.
    fn commands(&self) -> usize {
        self.lanes.len() - REPLICAS_MAX as usize - 1
    }

    /// The connection of a lane now, if it has been used and there is one.
    pub(super) fn link(&self, nth: usize) -> Option<Arc<Link>> {
        self.lanes[nth].get()?.now()
    }

    /// The connection over which channels are subscribed to whose locks use this lane. `None`: there is none at present.
    pub(super) fn hearing(
        &self,
        nth: usize,
        context: &ConnectionContext,
    ) -> Option<(LaneId, Arc<Link>)> {
        let node = self.number;
        let link = self.lane(nth, context).now();
        if !self.is_apart(link.as_ref()) {
            return Some((LaneId { node, nth }, link?));
        }
        let nth = self.lanes.len() - 1;
        let link = self.lane(nth, context).now()?;
        Some((LaneId { node, nth }, link))
    }

    fn is_apart(&self, link: Option<&Arc<Link>>) -> bool {
        self.hearing.is_apart() || link.is_some_and(|link| !link.hears)
    }

    /// Why no channel can be asked for now whose lock uses this lane, if none can, or the server has been silent on it.
    pub(super) fn deafness(&self, nth: usize) -> Option<SendError> {
        let link = self.link(nth);
        match self.is_apart(link.as_ref()) {
            true => self.problem(self.lanes.len() - 1, |_| true),
            false => self.problem(nth, |_| true),
        }
    }

    /// The question about this number of replicas.
    pub(super) fn replicas(&self, number: u32) -> Arc<Replicas> {
        Arc::clone(&self.replicas[number as usize - 1])
    }

    /// Publishes, in the background, what was published at the node that takes over a slot: that is not heard here,
    /// where the listeners are.
    pub(super) fn announce(
        self: Arc<Self>,
        nth: usize,
        context: &ConnectionContext,
        (channel, announce): (&Arc<str>, Announce),
        limit: Limit,
    ) {
        let (channel, lanes) = (Arc::clone(channel), context.clone());
        context.spawn(async move {
            if let Ok(link) = self.lane(nth, &lanes).ready(limit.until).await {
                link.announce(&channel, announce, limit).await;
            }
        });
    }

    /// The lanes that have been used.
    pub(super) fn lanes(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter().filter_map(OnceLock::get)
    }

    /// Whether there are to be connections.
    pub(super) fn set_wanted(&self, wanted: bool) {
        let mut is_wanted = self.wanted.lock();
        *is_wanted = wanted;
        self.lanes().for_each(|lane| lane.set_wanted(wanted));
    }

    /// Asks for an answer on every lane, one after the other.
    pub(super) async fn ping(
        &self,
        context: &ConnectionContext,
        limit: Limit,
    ) -> Result<(), SendError> {
        for nth in 0..self.commands() {
            let lane = self.lane(nth, context);
            lane.ready(limit.until).await?.ping(limit).await?;
        }
        Ok(())
    }

    /// The keys of this server that are hashes and match. Each step has the command timeout.
    pub(super) async fn keys(
        &self,
        context: &ConnectionContext,
        pattern: &Arc<str>,
        timeout: Duration,
    ) -> Result<Vec<String>, SendError> {
        let (lane, mut found, mut next) = (self.lane(0, context), Vec::new(), Some("0".into()));
        while let Some(cursor) = next {
            let limit = Limit {
                until: Instant::now() + timeout,
                silence: timeout / 2,
            };
            let link = lane.ready(limit.until).await?;
            let step = link.scan(&cursor, pattern, limit).await?;
            found.extend(step.keys);
            next = step.next;
        }
        Ok(found)
    }

    /// A turn among the calls of this kind, if there is one now.
    pub(super) fn try_bulk(
        &self,
        nth: usize,
        kind: BackgroundClass,
    ) -> Option<OwnedSemaphorePermit> {
        let semaphore = Arc::clone(&self.bulk[nth][kind as usize]);
        semaphore.try_acquire_owned().ok()
    }

    /// Waits for a turn among the calls of this kind.
    pub(super) async fn bulk(&self, nth: usize, kind: BackgroundClass) -> OwnedSemaphorePermit {
        let semaphore = Arc::clone(&self.bulk[nth][kind as usize]);
        let permit = semaphore.acquire_owned().await;
        permit.unwrap_or_else(|_| unreachable!("never closed"))
    }
}

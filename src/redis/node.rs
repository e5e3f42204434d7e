//! One server: its connections, and how many calls of a kind it is given at a time.

pub(super) mod endpoint;
pub(super) mod fence;
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
use crate::error::Error;
use crate::names::wire::Announce;
use crate::redis::node::endpoint::Endpoint;
use crate::redis::node::lane::{ConnectionContext, Lane};
use crate::redis::node::link::{Limit, SendError};
use crate::redis::node::replicas::{REPLICAS_MAX, Replicas};

/// A server.
pub(super) struct Node {
    pub(super) endpoint: Arc<Endpoint>,
    /// Those for commands, and behind them one for each number of replicas that may be waited for.
    lanes: Box<[OnceLock<Lane>]>,
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
    pub(super) fn new(endpoint: Endpoint, lanes: usize, bulk_max: usize) -> Self {
        let bulk = || [bulk_max; 2].map(|max| Arc::new(Semaphore::new(max)));
        Self {
            endpoint: Arc::new(endpoint),
            lanes: std::iter::repeat_with(OnceLock::new)
                .take(lanes + REPLICAS_MAX as usize)
                .collect(),
            wanted: Mutex::new(true),
            replicas: Default::default(),
            bulk: std::iter::repeat_with(bulk).take(lanes).collect(),
        }
    }

    /// Opens every connection for commands, one after the other; fails if the first attempt of any fails.
    pub(super) async fn open(&self, context: &ConnectionContext) -> Result<(), Error> {
        for (nth, lane) in self.lanes.iter().enumerate().take(self.commands()) {
            let opened = Lane::open(&self.endpoint, nth, context).await?;
            // It is empty: the node is not shared yet.
            let _ = lane.set(opened);
        }
        Ok(())
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
                let lane = Lane::start(&self.endpoint, nth, context);
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

    /// How many lanes are for commands.
    fn commands(&self) -> usize {
        self.lanes.len() - REPLICAS_MAX as usize
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

    /// Waits for a turn among the calls of this kind.
    pub(super) async fn bulk(&self, nth: usize, kind: BackgroundClass) -> OwnedSemaphorePermit {
        let semaphore = Arc::clone(&self.bulk[nth][kind as usize]);
        let permit = semaphore.acquire_owned().await;
        permit.unwrap_or_else(|_| unreachable!("never closed"))
    }
}

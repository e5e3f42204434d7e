//! All access to Redis: runs scripts, subscribes to channels, reports outcomes. Apart from the
//! signature of `from_fred`, only this module uses fred, and within it only `connection.rs` and
//! `settings.rs`.
//!
//! A lane is one command connection at a time; all commands of one lock use the same lane, in
//! order. The subscriber has its own connection, because a refused SUBSCRIBE shifts the replies of
//! everything that shares its connection. fred never reconnects or resends anything on either: the
//! sender of a command decides what happens when its connection is lost.

mod connection;
mod fence;
mod lane;
mod link;
mod settings;
mod subscriber;
pub(crate) mod transport;

use std::sync::Arc;

use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::runtime::{Runtime, Tasks};
use crate::wait::Subscriptions;

pub(crate) use connection::Backoff;
pub use fence::ConnectionFence;
pub(crate) use settings::Settings;
pub(crate) use transport::{Arg, Reply};

use lane::Lane;
pub(crate) use link::{Limit, Link, SendError};

/// Connections and their supervisors.
pub(crate) struct Redis {
    lanes: Vec<Lane>,
    /// Notified with `notify_one` when the server turns out to be the wrong one: the subscriber
    /// reconnects.
    pub(crate) moved: Arc<Notify>,
    /// For each lane, the permits for bulk calls.
    bulk: Vec<[Semaphore; 2]>,
    /// Whether pauses are scattered.
    scattered: bool,
    stop: CancellationToken,
    tasks: Tasks,
}

impl Redis {
    /// Opens every command connection; fails if the first attempt of any fails.
    pub(crate) async fn connect(
        settings: &Arc<Settings>,
        lanes: usize,
        runtime: &Runtime,
    ) -> Result<Self, Error> {
        let redis = Self {
            lanes: Vec::new(),
            bulk: std::iter::repeat_with(|| [BULK_MAX; 2].map(Semaphore::new))
                .take(lanes)
                .collect(),
            moved: Arc::default(),
            scattered: settings.is_scattered(),
            stop: CancellationToken::new(),
            tasks: Tasks::new(runtime.clone()),
        };
        // Cancel safety: dropping this future drops `redis`, which stops what was opened so far.
        let mut redis = StopOnDrop(Some(redis));
        if let Some(redis) = redis.0.as_mut() {
            for nth in 0..lanes {
                let lane =
                    Lane::open(settings, nth, &redis.stop, &redis.tasks, &redis.moved).await?;
                redis.lanes.push(lane);
            }
        }
        Ok(redis
            .0
            .take()
            .unwrap_or_else(|| unreachable!("only taken here")))
    }

    /// Opens the subscriber connection, which serves `subscriptions`.
    pub(crate) async fn subscribe_with(
        &self,
        settings: &Arc<Settings>,
        subscriptions: Arc<Subscriptions>,
    ) -> Result<(), Error> {
        subscriber::open(
            settings,
            subscriptions,
            Arc::clone(&self.moved),
            &self.stop,
            &self.tasks,
        )
        .await
    }

    /// The way of every command of this key.
    pub(crate) fn route(&self, key: &str) -> Route<'_> {
        let hash = key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Route {
            redis: self,
            lane: (hash % self.lanes.len() as u64) as usize,
        }
    }

    /// How many times command connections were replaced.
    pub(crate) fn reconnects(&self) -> u64 {
        self.lanes.iter().map(Lane::reconnects).sum()
    }

    /// The pauses of a caller that tries again.
    pub(crate) fn backoff(&self) -> Backoff {
        Backoff::new(self.scattered)
    }

    /// Whether every lane has a connection.
    pub(crate) fn is_connected(&self) -> bool {
        self.lanes.iter().all(Lane::is_up)
    }

    /// Asks the server on every lane for an answer, one after the other.
    pub(crate) async fn ping(&self, limit: Limit) -> Result<(), SendError> {
        for lane in &self.lanes {
            lane.ready(limit.until).await?.ping(limit).await?;
        }
        Ok(())
    }

    /// The weakest fence of all lanes.
    pub(crate) fn connection_fence(&self) -> ConnectionFence {
        self.lanes
            .iter()
            .map(Lane::fence)
            .max()
            .unwrap_or(ConnectionFence::Active)
    }

    /// Ends every connection and waits until their tasks are gone.
    pub(crate) async fn shut_down(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.ended().await;
    }

    /// Ends every connection without waiting.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
    }
}

/// The way of the commands of one key: all of them go over the same connection, in order.
#[derive(Clone, Copy)]
pub(crate) struct Route<'a> {
    redis: &'a Redis,
    lane: usize,
}

impl<'a> Route<'a> {
    /// What can be sent together has the same number.
    pub(crate) fn number(self) -> usize {
        self.lane
    }

    /// Waits until `limit` for a connection that may carry scripts.
    pub(crate) async fn ready(self, limit: Instant) -> Result<Arc<Link>, SendError> {
        self.redis.lanes[self.lane].ready(limit).await
    }

    /// Waits for a turn among the calls of this kind. Thousands that are sent at once would all be
    /// answered late; their timeouts then make more of them.
    pub(crate) async fn bulk(self, kind: Bulk) -> SemaphorePermit<'a> {
        let permit = self.redis.bulk[self.lane][kind as usize].acquire().await;
        permit.unwrap_or_else(|_| unreachable!("never closed"))
    }

    /// Whether no send on this way comes later than a connection's replacement, now and so far. Without
    /// that a pass is not safe: a late copy of it takes the lock from a later hold.
    pub(crate) fn is_fenced(self) -> bool {
        let lane = &self.redis.lanes[self.lane];
        lane.fence() == ConnectionFence::Active && lane.unfenced() == 0
    }

    /// How many times a connection on this way was replaced without a fence.
    pub(crate) fn unfenced(self) -> u64 {
        self.redis.lanes[self.lane].unfenced()
    }
}

/// Calls that no caller waits for; there may be one per lock at the same time.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bulk {
    Renewals = 0,
    Releases = 1,
}

struct StopOnDrop(Option<Redis>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        if let Some(redis) = &self.0 {
            redis.stop();
        }
    }
}

/// The hash slot of a key, which decides its node in a cluster.
pub(crate) fn slot_of(key: &str) -> u16 {
    connection::slot_of(key)
}

/// The maximum number of calls of a kind in flight on a lane.
const BULK_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// What a server's CLUSTER KEYSLOT answers.
    #[test]
    fn a_slot_is_that_of_the_tag_or_of_the_whole_key() {
        for (key, slot) in [
            ("a", 15495),
            ("foo", 12182),
            ("123456789", 12739),
            ("lock:{42}", 8000),
            ("42", 8000),
            ("{42}:lock:{43}", 8000),
            ("a{}b{c}", 7353),
            ("a{b", 13340),
            ("a}b{c}", 7365),
            ("{{a}}", 10276),
            ("{a", 10276),
            ("stück 一", 4873),
        ] {
            assert_eq!(slot_of(key), slot, "{key:?}");
        }
    }
}

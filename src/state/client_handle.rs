//! How a client is kept running, how it ends, and what that reports.

use std::sync::Arc;
use std::time::Duration;

use redisson_lock_core::input::{ClientEnds, DetachedDropped};
use redisson_lock_core::{Counts, Life, LockCore, LossReason};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::base::runtime::event;
use crate::state::bounds::LEASE_MAX;
use crate::state::entry::{Entry, Locks};
use crate::state::shared::Shared;

/// Clients, locks and guards have one, background tasks do not.
pub(crate) struct ClientHandle {
    pub(crate) locks: Arc<Locks>,
    pub(crate) stop: CancellationToken,
}

impl ClientHandle {
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.locks.shared
    }

    /// Closes the client; see [`LockClient::close`](crate::LockClient::close).
    pub(crate) async fn close(&self, grace: Duration) -> CloseReport {
        let (locks, shared) = (&self.locks, self.shared());
        locks.set_life(Life::Closing);
        // No caller waits any longer than this.
        let grace = Instant::now() + grace.min(LEASE_MAX);
        let guards_gone = wait_until(shared, |counts| counts.guarded == 0);
        let _ = tokio::time::timeout_at(grace, guards_gone).await;

        let mut report = CloseReport::default();
        if !shared.is_closed() {
            report.released = drop_detached(locks);
            report.unconfirmed = finish_work(shared, grace).await;
            if report.unconfirmed > 0 {
                log_unconfirmed(locks);
            }
        }
        report.abandoned = abandon(locks);
        end(locks, &self.stop).await;
        report
    }

    /// Closes a client that can send nothing any more, here or in its own tasks.
    pub(crate) fn close_without_runtime(&self) -> CloseReport {
        self.locks.set_life(Life::Closing);
        CloseReport {
            abandoned: abandon(&self.locks),
            ..CloseReport::default()
        }
    }
}

impl Drop for ClientHandle {
    fn drop(&mut self) {
        let (locks, stop) = (Arc::clone(&self.locks), self.stop.clone());
        // On a runtime that is gone this does nothing, and nothing is left to do.
        self.shared().runtime.spawn(async move {
            locks.set_life(Life::Closing);
            // No owner is left that could release a detached hold.
            drop_detached(&locks);
            let idle = |counts: &Counts| counts.acquiring + counts.releasing == 0;
            let _ = tokio::time::timeout(LAST_WORK, wait_until(&locks.shared, idle)).await;
            end(&locks, &stop).await;
        });
    }
}

/// Releases every detached hold in the background; answers how many.
fn drop_detached(locks: &Locks) -> usize {
    let drop_all = |entry: &Arc<Entry>| entry.step(DetachedDropped {});
    locks.all().iter().map(drop_all).sum()
}

/// Names the locks of which a release, or an acquire to be undone, has no answer: the report has their number, and
/// a caller that drops it has nothing.
fn log_unconfirmed(locks: &Locks) {
    for entry in locks.all() {
        let counts = entry.peek(LockCore::counts);
        if counts.acquiring + counts.releasing > 0 {
            let lock = entry.name.given();
            event!(WARN, %lock, "the client was closed without an answer to a release: the lease frees the lock");
        }
    }
}

/// Ends the holds that are left, and says which.
fn abandon(locks: &Locks) -> Vec<AbandonedHold> {
    let (mut abandoned, reason) = (Vec::new(), LossReason::Closed);
    for entry in locks.all() {
        let lock = entry.name.given().to_string();
        let fields = entry.step(ClientEnds { reason });
        let holds = fields.into_iter().map(|(field, face)| AbandonedHold {
            lock: lock.clone(),
            owner: entry.name.of_face(face).counted_in(&field).to_string(),
        });
        abandoned.extend(holds);
    }
    abandoned
}

/// Waits until the counts of the client are as wished.
async fn wait_until(shared: &Shared, wished: impl Fn(&Counts) -> bool) {
    loop {
        let progress = shared.tally.progress();
        if wished(&shared.tally.counts()) {
            return;
        }
        progress.await;
    }
}

/// Waits until nothing is under way any more: within `grace`, and past it for as long as there is
/// progress. Answers how much is left.
async fn finish_work(shared: &Shared, grace: Instant) -> usize {
    // An acquire that is on its way takes the lock although no call wants it any more: it is undone
    // too.
    let under_way = |counts: &Counts| counts.acquiring + counts.releasing;
    let mut limit = Instant::now() + shared.command_timeout();
    loop {
        let before = shared.tally.moves();
        let finished = wait_until(shared, |counts| under_way(counts) == 0);
        if tokio::time::timeout_at(limit, finished).await.is_ok() {
            return 0;
        }
        let now = Instant::now();
        limit = now + shared.command_timeout();
        if shared.tally.moves() == before {
            if now >= grace {
                return under_way(&shared.tally.counts()) as usize;
            }
            limit = limit.min(grace);
        }
    }
}

/// Closes what is still open.
async fn end(locks: &Arc<Locks>, stop: &CancellationToken) {
    locks.set_life(Life::Closed);
    stop.cancel();
    locks.shared.redis.shut_down().await;
    locks.shared.redis.channels().end();
    let reason = LossReason::Closed;
    for entry in locks.all() {
        entry.step(ClientEnds { reason });
    }
}

/// How long the end of a client that was dropped waits for its last releases.
const LAST_WORK: Duration = Duration::from_millis(700);

/// The result of [`LockClient::close`](crate::LockClient::close).
///
/// # Examples
///
/// ```no_run
/// # use std::time::Duration;
/// # async fn run(client: redisson_lock::LockClient) {
/// let report: redisson_lock::CloseReport = client.close(Duration::ZERO).await;
/// # }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct CloseReport {
    /// Detached holds that were released.
    pub released: usize,
    /// Releases, and acquires to be undone, that Redis had not answered by the end; their leases
    /// free those locks.
    pub unconfirmed: usize,
    /// Locks, with their owners, whose guards were still open. Their leases last for up to the
    /// watchdog timeout, or their fixed lease.
    pub abandoned: Vec<AbandonedHold>,
}

/// A lock that was still held when its client was closed.
///
/// # Examples
///
/// ```no_run
/// # fn run(hold: redisson_lock::AbandonedHold) {
/// println!("{} is still held by {}", hold.lock, hold.owner);
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct AbandonedHold {
    /// The lock's name.
    pub lock: String,
    /// The owner's field, as [`Holder::owner`](crate::Holder::owner).
    pub owner: String,
}

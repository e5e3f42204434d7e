//! Client statistics, and the report of a shutdown. Plain data.

use crate::redis::ConnectionFence;

/// Client statistics.
///
/// # Examples
///
/// ```no_run
/// # fn run(client: redisson_lock::LockClient) {
/// let stats: redisson_lock::ClientStats = client.stats();
/// println!("{} held, {} waiting, fence {}", stats.held, stats.waiting, stats.connection_fence);
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientStats {
    /// Current holds, counting nested ones.
    pub held: usize,
    /// Calls currently waiting for a lock.
    pub waiting: usize,
    /// Channels currently subscribed; one lingers for a second after its last waiter.
    pub subscriptions: usize,
    /// Owners whose holds are currently renewed or checked.
    pub renewals: usize,
    /// Releases currently in flight, in the background or by an unlock.
    pub releasing: usize,
    /// Locks that the client currently tracks: held, waited for, being released, or lost with a
    /// guard still open.
    pub entries: usize,
    /// Whether lost connections are killed at the server before their replacements are used.
    pub connection_fence: ConnectionFence,
    /// Holds acquired.
    pub acquired_total: u64,
    /// Holds released.
    pub released_total: u64,
    /// Locks handed from one caller of this client to the next without being freed in between.
    pub passes_total: u64,
    /// Holds lost.
    pub lost_total: u64,
    /// Calls that found the lock held and had to wait.
    pub contended_total: u64,
    /// Renewals answered, counted per lock.
    pub renewed_total: u64,
    /// Outcomes that were unknown at first and were reconciled in the background.
    pub reconciled_total: u64,
    /// Background releases that gave up; the lease freed the lock.
    pub given_up_total: u64,
    /// Command connections that were replaced.
    pub reconnects_total: u64,
}

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
#[non_exhaustive]
pub struct AbandonedHold {
    /// The lock's name.
    pub lock: String,
    /// The owner's field.
    pub owner: String,
}

//! What a client tells of itself: numbers, and how its closing went. Plain data.

use crate::redis::ConnectionFence;

/// What a client holds and does.
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
    /// Holds now, nested ones counted.
    pub held: usize,
    /// Calls that want a lock now.
    pub waiting: usize,
    /// Channels listened to now; one lingers for a second after its last waiter.
    pub subscriptions: usize,
    /// Owners whose holds are renewed or looked at now.
    pub renewals: usize,
    /// Releases under way now, in the background or by an unlock.
    pub releasing: usize,
    /// Locks that the client remembers now: held, wanted, being released, or lost with a guard that
    /// is still open.
    pub entries: usize,
    /// Whether commands of a lost connection are known to be over before its replacement is used.
    pub connection_fence: ConnectionFence,
    /// Holds taken.
    pub acquired_total: u64,
    /// Holds given back.
    pub released_total: u64,
    /// Holds lost.
    pub lost_total: u64,
    /// Calls that found the lock held and went to wait.
    pub contended_total: u64,
    /// Renewals answered, one for each lock.
    pub renewed_total: u64,
    /// Outcomes that were unknown at first and were reconciled in the background.
    pub reconciled_total: u64,
    /// Background releases that were given up; the lease freed the lock.
    pub given_up_total: u64,
    /// Command connections that were replaced.
    pub reconnects_total: u64,
}

/// What [`LockClient::close`](crate::LockClient::close) found.
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
    /// Releases, and acquires to be undone, that Redis had not answered by the end; those locks are
    /// freed by their leases.
    pub unconfirmed: usize,
    /// Owners that still held with an open guard. Their leases go on for up to the watchdog
    /// timeout, or their fixed lease.
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

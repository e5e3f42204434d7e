//! A read-write lock: two locks with one name, one for each part.

use redisson_lock_core::Face;

use super::Lock;
use super::inspect::{Holder, holder};
use crate::error::Error;
use crate::names::wire;

/// A lock with two parts: any number of owners read, or one writes. Redisson's `getReadWriteLock`, returned by
/// [`rw_lock`](crate::LockClient::rw_lock).
///
/// Each part is a [`Lock`], with all its methods.
///
/// # Downgrade
///
/// [`downgrade`](crate::LockGuard::downgrade) makes a write hold a read hold, and no writer gets in between. The owner
/// that writes may also read: if it then releases the write hold, other readers can join it.
///
/// # Upgrade
///
/// There is none: two readers that both wait to write would wait for each other. An owner that calls for the write part
/// while it reads gets [`Error::WouldDeadlock`]. Release the read hold, lock the write part, and check again what was read.
///
/// # Readers and writers
///
/// * A reader overtakes waiting writers. While readers of any client overlap, a writer waits; among the readers of its
///   own client it takes the first moment without one. If a writer must get in eventually, make the readers pause.
/// * A read hold is guaranteed only ([`valid_until`](crate::Hold::valid_until)) for one watchdog timeout after its last
///   confirmation, even with a longer fixed [`lease`](Lock::lease), because readers in Java may shorten the lock's
///   lease. The watchdog restores it at each third. All clients, in Rust and Java, should have the same watchdog
///   timeout.
/// * When the lock becomes free, the first waiting reader and the first waiting writer of each client attempt; in the
///   client that freed it, the one that has waited longer goes first. A reader that gets in brings in the others of its
///   client.
/// * The names `x` and `{x}` share the keys of read holds, as in Redisson: use only one of them.
///
/// # Examples
///
/// ```no_run
/// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
/// let report = client.rw_lock("report");
/// let writes = report.write().lock().await?;
/// let reads = writes.downgrade().await?; // others may read now
/// reads.unlock().await
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct RwLock {
    read: Lock,
    write: Lock,
}

impl RwLock {
    pub(crate) fn new(read: Lock, write: Lock) -> Self {
        Self { read, write }
    }

    /// Returns the part that any number of owners can hold at the same time.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// let guard = client.rw_lock("report").read().lock().await?;
    /// # guard.unlock().await }
    /// ```
    pub fn read(&self) -> Lock {
        self.read.clone()
    }

    /// Returns the part that one owner holds alone. A call for it waits while other owners read, in any client.
    ///
    /// An owner that calls for it while it reads gets [`Error::WouldDeadlock`], and nothing is sent.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// let guard = client.rw_lock("report").write().lock().await?;
    /// # guard.unlock().await }
    /// ```
    pub fn write(&self) -> Lock {
        self.write.clone()
    }

    /// Returns the name as given, without the key prefix.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(client: redisson_lock::LockClient) {
    /// assert_eq!(client.rw_lock("report").name(), "report");
    /// # }
    /// ```
    pub fn name(&self) -> &str {
        self.read.name()
    }

    /// Returns all holders of both parts, in Rust or Java, or `None` if the lock is free. Asks Redis.
    ///
    /// # Errors
    ///
    /// Returns the errors of a failed [`lock`](Lock::lock) attempt.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// if let Some(holders) = client.rw_lock("report").inspect().await? {
    ///     println!("{} owners read", holders.readers.len());
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn inspect(&self) -> Result<Option<RwHolders>, Error> {
        let (seen, _) = self.read.all_seen(false).await?;
        let mut holders = RwHolders {
            writer: None,
            readers: Vec::new(),
        };
        let is_free = seen.is_empty();
        for seen in seen {
            match wire::face_in_lock(&seen.field) {
                Face::Write => holders.writer = Some(holder(seen, None)),
                Face::Only | Face::Read => holders.readers.push(holder(seen, None)),
            }
        }
        Ok((!is_free).then_some(holders))
    }
}

/// The holders of a read-write lock, as stored in Redis.
///
/// # Examples
///
/// ```no_run
/// # async fn run(lock: redisson_lock::RwLock) -> Result<(), redisson_lock::Error> {
/// let holders: Option<redisson_lock::RwHolders> = lock.inspect().await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct RwHolders {
    /// The owner that writes. Then only the same owner may be among the readers.
    pub writer: Option<Holder>,
    /// The owners that read, in no order.
    pub readers: Vec<Holder>,
}

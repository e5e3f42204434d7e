//! Who has a lock, as an answer or an error says it.

use std::time::Duration;

/// Who has the lock, as an attempt found it.
///
/// # Examples
///
/// ```no_run
/// # async fn run(lock: redisson_lock::Lock) -> Result<(), redisson_lock::Error> {
/// use redisson_lock::TryLock;
/// if let TryLock::Busy { holder: Some(by) } = lock.try_lock_or_holder().await? {
///     println!("held by {}, {:?} left", by.owner, by.lease_left);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct HeldBy {
    /// The field of the holder, `clientId:threadId`, as written by Rust or Java; of a string lock the value. One that is
    /// not UTF-8 is escaped: `\xac\xed`.
    pub owner: String,
    /// Time left on its lease; `None` if the key has no expiry.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub lease_left: Option<Duration>,
}

//! The verbs that look at a lock from outside, and the one that forces it open.

use std::pin::pin;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::Lock;
use crate::entry::EntryRef;
use crate::error::{Error, LossReason};
use crate::script::{self, Inspected};

impl Lock {
    /// Frees the lock whoever holds it, and wakes a waiter. `true`: it was locked.
    ///
    /// The holder is told by its next renewal, at the latest within a third of its watchdog
    /// timeout. The holder is read first and named to the script, which is never sent twice: a
    /// holder that comes later is not hit.
    ///
    /// # Errors
    ///
    /// [`Error::NoAnswer`] if the answer is lost: the lock may or may not be free. Otherwise the
    /// refusals of [`lock`](Self::lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may or may not have freed the lock.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(lock: redisson_lock::Lock) -> Result<(), redisson_lock::Error> {
    /// let was_locked = lock.force_unlock().await?;
    /// # Ok(()) }
    /// ```
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        let shared = &self.client.shared;
        shared
            .on_client_runtime(pin!(async {
                let entry = self.entry()?;
                for _ in 0..FORCE_ATTEMPTS {
                    let Inspected::Held { field, .. } = self.look(&entry).await? else {
                        return Ok(false);
                    };
                    let patience = script::RetryPolicy {
                        sends: 1,
                        ..shared.patience()
                    };
                    let sent = AtomicBool::new(false);
                    let mut meant = None;
                    let forced = script::call(
                        &shared.redis,
                        entry.lane,
                        "forcing",
                        patience,
                        &sent,
                        || {
                            // A field of this client is text.
                            meant = std::str::from_utf8(&field)
                                .ok()
                                .and_then(|field| entry.taking_of(field));
                            script::force_unlock(&entry.name, &field)
                        },
                    )
                    .await;
                    let forced = match forced {
                        Ok(forced) => forced.value,
                        Err(unanswered) => {
                            if unanswered.maybe_executed {
                                // Once this is answered, by the same connection or by one behind
                                // the fence, the copy without an answer cannot be executed any
                                // more.
                                let _ = self.look(&entry).await;
                            }
                            return Err(unanswered.error);
                        }
                    };
                    if forced {
                        // By now the same owner may have taken the lock anew.
                        if let Some((owner, generation)) = meant {
                            entry.lose_owner(owner, Some(generation), LossReason::Gone);
                        }
                        return Ok(true);
                    }
                }
                // It changed hands at every look, be it between takings of one owner: whoever was
                // meant has given it back.
                Ok(true)
            }))
            .await
    }

    /// Whether anybody holds the lock. Asks Redis.
    ///
    /// # Errors
    ///
    /// As a failed attempt of [`lock`](Self::lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(lock: redisson_lock::Lock) -> Result<(), redisson_lock::Error> {
    /// println!("{}", lock.is_locked().await?);
    /// # Ok(()) }
    /// ```
    pub async fn is_locked(&self) -> Result<bool, Error> {
        Ok(self.inspect().await?.is_some())
    }

    /// Whether the current owner holds the lock. Asks Redis.
    ///
    /// # Errors
    ///
    /// As a failed attempt of [`lock`](Self::lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(lock: redisson_lock::Lock) -> Result<(), redisson_lock::Error> {
    /// println!("{}", lock.is_held().await?);
    /// # Ok(()) }
    /// ```
    pub async fn is_held(&self) -> Result<bool, Error> {
        Ok(self.hold_count().await? > 0)
    }

    /// How often the current owner holds the lock. Asks Redis.
    ///
    /// # Errors
    ///
    /// As a failed attempt of [`lock`](Self::lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(lock: redisson_lock::Lock) -> Result<(), redisson_lock::Error> {
    /// println!("{}", lock.hold_count().await?);
    /// # Ok(()) }
    /// ```
    pub async fn hold_count(&self) -> Result<u32, Error> {
        let shared = &self.client.shared;
        shared
            .on_client_runtime(pin!(async {
                let owner = self.current_owner()?;
                let entry = self.entry()?;
                let own = entry.field_in_redis(&owner);
                Ok(match self.look(&entry).await? {
                    Inspected::Held { field, count, .. } if *field == *own.as_bytes() => count,
                    _ => 0,
                })
            }))
            .await
    }

    /// How long the lease runs still; `None` if the lock is free, or has no expiry. Asks Redis.
    ///
    /// # Errors
    ///
    /// As a failed attempt of [`lock`](Self::lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(lock: redisson_lock::Lock) -> Result<(), redisson_lock::Error> {
    /// println!("{:?}", lock.lease_left().await?);
    /// # Ok(()) }
    /// ```
    pub async fn lease_left(&self) -> Result<Option<Duration>, Error> {
        Ok(self.inspect().await?.and_then(|holder| holder.lease_left))
    }

    /// Who holds the lock, Java's owners too. Asks Redis.
    ///
    /// # Errors
    ///
    /// As a failed attempt of [`lock`](Self::lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(lock: redisson_lock::Lock) -> Result<(), redisson_lock::Error> {
    /// if let Some(holder) = lock.inspect().await? {
    ///     println!("held {} times by {}", holder.hold_count, holder.owner);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn inspect(&self) -> Result<Option<Holder>, Error> {
        let shared = &self.client.shared;
        shared
            .on_client_runtime(pin!(async {
                let entry = self.entry()?;
                Ok(match self.look(&entry).await? {
                    Inspected::Held { left, field, count } => {
                        let owner = String::from_utf8_lossy(&field).into_owned();
                        Some(Holder {
                            owner,
                            hold_count: count,
                            lease_left: left,
                        })
                    }
                    Inspected::Free | Inspected::NotALock(_) => None,
                })
            }))
            .await
    }

    /// One run of `inspect.lua`.
    async fn look(&self, entry: &EntryRef) -> Result<Inspected, Error> {
        let shared = &self.client.shared;
        if shared.is_closed() {
            return Err(Error::Closed);
        }
        let sent = AtomicBool::new(false);
        let call = || script::inspect(&entry.name);
        let inspected = script::call(
            &shared.redis,
            entry.lane,
            "inspecting",
            shared.patience(),
            &sent,
            call,
        )
        .await
        .map_err(|unanswered| unanswered.error)?
        .value;
        match inspected {
            Inspected::NotALock(found) => Err(not_a_lock(entry, &found)),
            inspected => Ok(inspected),
        }
    }
}

pub(super) fn not_a_lock(entry: &EntryRef, found: &str) -> Error {
    Error::NotALock {
        key: entry.name.key().to_string(),
        found: found.to_owned(),
    }
}

/// Who holds a lock, as Redis has it.
///
/// # Examples
///
/// ```no_run
/// # async fn run(lock: redisson_lock::Lock) -> Result<(), redisson_lock::Error> {
/// let holder: Option<redisson_lock::Holder> = lock.inspect().await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The owner's field, `clientId:threadId`; written by Rust or Java, and not taken apart. What
    /// is not UTF-8 in the field of another program is shown as `\u{fffd}`.
    pub owner: String,
    /// How often it holds the lock.
    pub hold_count: u32,
    /// How long the lease runs still; `None` if the key has no expiry.
    pub lease_left: Option<Duration>,
}

/// A lock that changes hands at each of so many looks is in lively use.
const FORCE_ATTEMPTS: u32 = 8;

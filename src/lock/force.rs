//! `force_unlock`: frees a lock, no matter who holds it.

use std::pin::pin;

use super::Lock;
use crate::core::LossReason;
use crate::error::{Error, Operation};
use crate::script::{self, Inspected};

impl Lock {
    /// Frees the lock, no matter who holds it, and wakes a waiter. Returns whether it was locked.
    ///
    /// The loss is reported to the holder by its next renewal, within a third of its watchdog
    /// timeout. The holder is read first and passed to the script, which is never sent twice: a
    /// later holder is not affected.
    ///
    /// # Errors
    ///
    /// [`Error::NoAnswer`] if the reply is lost: the lock may or may not be free. Otherwise the
    /// refusals of [`lock`](Self::lock).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock may or may not have been freed.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(lock: redisson_lock::Lock) -> Result<(), redisson_lock::Error> {
    /// let was_locked = lock.force_unlock().await?;
    /// # Ok(()) }
    /// ```
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        let shared = self.client.shared();
        shared
            .on_client_runtime(pin!(async {
                let entry = self.entry()?;
                for _ in 0..FORCE_ATTEMPTS {
                    let Inspected::Held { field, .. } = self.inspect_once(&entry).await? else {
                        return Ok(false);
                    };
                    let mut meant = None;
                    let call = || {
                        // A field of this client is text.
                        let text = std::str::from_utf8(&field).ok();
                        meant = text.and_then(|field| entry.peek(|core| core.owner_of(field)));
                        Some(script::force_unlock(
                            &entry.name,
                            &field,
                            shared.redis.announce(),
                        ))
                    };
                    let retry = shared.no_retry();
                    let forced = script::call(entry.route(), Operation::Forcing, retry, call).await;
                    let forced = match forced {
                        Ok(forced) => forced.value,
                        Err(unanswered) => {
                            if unanswered.maybe_executed {
                                // Once this is answered, by the same connection or by one behind
                                // the fence, the send without a reply can no longer be executed.
                                let _ = self.inspect_once(&entry).await;
                            }
                            return Err(unanswered.error);
                        }
                    };
                    if forced {
                        // By now the same owner may have acquired the lock again.
                        if let Some((owner, generation)) = meant {
                            let (generation, reason) = (Some(generation), LossReason::Gone);
                            entry.step(|core, now, out| {
                                core.lose_owner(now, owner, generation, reason, out);
                            });
                        }
                        return Ok(true);
                    }
                }
                // The lock changed hands after every look, possibly between acquisitions of one
                // owner: the holder that was meant has released it.
                Ok(true)
            }))
            .await
    }
}

/// How often `force_unlock` tries again when the lock changes hands between reading and forcing.
const FORCE_ATTEMPTS: u32 = 8;

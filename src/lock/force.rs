//! `force_unlock`: frees a lock, no matter who holds it.
//!
//! Its script must not run after the call, because the same owner may hold the lock again by then. No client can wait
//! for a server that hangs, so the script has a limit by the server's own clock, which was read with the holder. The
//! script uses the connection of that read, because another server has another clock.

use std::pin::pin;
use std::sync::Arc;

use redisson_lock_core::input::OwnerLost;
use redisson_lock_core::{Face, Generation, LossReason, OwnerKey, on_another_clock};
use tokio::time::Instant;

use super::Lock;
use crate::error::{Error, Operation, RefusedKind};
use crate::names::wire::{self, LockName};
use crate::script::{self, CallError, Forced, Inspected, ScriptAnswer};
use crate::state::entry::Entry;

impl<K> Lock<K> {
    /// Frees the lock, no matter who holds it, and wakes a waiter. Returns whether it was locked. On a read-write lock
    /// it frees both parts.
    ///
    /// The loss is reported to the holder within two round trips, or by its next renewal, within a third of its
    /// watchdog timeout. The holder is read first and passed to the script, which is never sent twice: a later holder
    /// is not affected. The script does nothing once, by the server's clock, the command timeout has passed since the
    /// holder was read.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoAnswer`] if a reply is lost. If it is the reply to the script, the lock may or may not be
    /// free, and the call returns only when the command timeout has passed since the holder was read, so that the
    /// script can no longer take effect. If it is the reply that names the holder, the script was not sent.
    /// [`Error::NoRuntime`] if the client's runtime ends during the call, which then does not wait. Otherwise the
    /// refusals of [`lock`](Self::lock).
    ///
    /// Without the permission `+time` there is no such limit. The call then checks that a new
    /// connection has replaced the one without a reply, but a server that hangs may still free a later
    /// hold of the same owner when it continues.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock may or may not be freed, at the latest when the command timeout has passed.
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
                let name = self.valid_name()?;
                self.client.locks.find(&name)?;
                let mut redirected = None;
                for _ in 0..FORCE_ATTEMPTS {
                    let seen = self.look(&name, true).await?;
                    match self.force_seen(&name, seen).await {
                        Ok(Some(was_locked)) => return Ok(was_locked),
                        Ok(None) => redirected = None,
                        Err(error) if is_elsewhere(&error) => redirected = Some(error),
                        Err(error) => return Err(error),
                    }
                }
                // The lock changed hands after every look, possibly between acquisitions of one
                // owner: the holder that was meant has released it.
                redirected.map_or(Ok(true), Err)
            }))
            .await
    }

    /// Frees the lock if the holder that was seen still has it. `None`: it has not.
    async fn force_seen(
        &self,
        name: &LockName,
        seen: ScriptAnswer<Inspected>,
    ) -> Result<Option<bool>, Error> {
        let shared = self.client.shared();
        let timeout = shared.command_timeout();
        let Inspected::Held { holders, clock, .. } = seen.value else {
            return Ok(Some(false));
        };
        // The server read its clock before this instant, so its limit comes first.
        let over = Instant::now() + timeout;
        let limit = clock.map(|clock| clock + on_another_clock(timeout));
        let mut fields = holders.iter().map(|holder| &holder.field);
        let meant = self.meant(name, fields.clone())?;
        let Some(first) = fields.next() else {
            return Ok(Some(false));
        };
        let announce = shared.redis.announce();
        let call = script::force_unlock(name, first, fields.map(Arc::clone), limit, announce);
        let (route, doing) = (self.route(name), Operation::Forcing);
        match script::call_there(route, seen.way, doing, timeout, call).await {
            Ok(ScriptAnswer { value, way, .. }) => match value {
                Forced::Freed | Forced::Removed => {
                    let reason = match value {
                        Forced::Removed => LossReason::Taken,
                        _ => LossReason::Gone,
                    };
                    // By now the same owner may have acquired the lock again.
                    for (owner, generation) in meant.owners {
                        meant.entry.iter().for_each(|entry| {
                            entry.step(OwnerLost {
                                owner,
                                generation: Some(generation),
                                reason,
                            });
                        });
                    }
                    Ok(Some(true))
                }
                Forced::NotHeld => Ok(None),
                Forced::TooLate => Err(Error::no_answer(doing, way.link.cause(TOO_LATE))),
            },
            Err(CallError {
                error,
                maybe_executed,
            }) => {
                match limit {
                    _ if !maybe_executed => {}
                    Some(_) => tokio::time::sleep_until(over).await,
                    // Once this is answered, by the same connection or by one after the fence, the
                    // send without a reply can no longer be executed.
                    None => _ = self.look(name, false).await,
                }
                Err(error)
            }
        }
    }

    /// The owners of this client that hold the lock under these fields.
    fn meant<'a>(
        &self,
        name: &LockName,
        fields: impl Iterator<Item = &'a Arc<[u8]>>,
    ) -> Result<Meant, Error> {
        let entry = self.client.locks.find(name)?;
        let mut owners = Vec::new();
        if let Some(entry) = &entry {
            // A field of this client is text.
            let fields = fields.filter_map(|field| std::str::from_utf8(field).ok());
            let fields = fields.map(|field| match name.kind().has_faces() {
                true => wire::owner_in_lock(field),
                false => (field, Face::Only),
            });
            owners.extend(
                fields.filter_map(|(field, face)| entry.peek(|core| core.owner_of(field, face))),
            );
        }
        Ok(Meant { entry, owners })
    }
}

/// Whose holds `force_unlock` ends.
struct Meant {
    entry: Option<Arc<Entry>>,
    owners: Vec<(OwnerKey, Generation)>,
}

/// Whether the server that was asked does not have the lock any more, and so has done nothing.
fn is_elsewhere(error: &Error) -> bool {
    use RefusedKind::{Cluster, ClusterDown};
    matches!(error, Error::Refused { kind, .. } if matches!(kind, Cluster | ClusterDown))
}

/// How often `force_unlock` tries again when the lock changes hands, or servers, after the look.
const FORCE_ATTEMPTS: u32 = 8;

const TOO_LATE: &str = "the server executed it after its time limit, and so changed nothing";

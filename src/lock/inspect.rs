//! The methods that inspect a lock from outside, and check the permissions for it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use redisson_lock_core::Token;

use super::Lock;
use crate::error::{Error, HeldBy, Operation};
use crate::names::owner::Owner;
use crate::names::wire::{self, LockName};
use crate::redis::{Call, Route};
use crate::script::{self, Inspected, ScriptAnswer, Seen};

impl<K> Lock<K> {
    /// Returns whether the lock is held, by any owner; for a read-write lock, this part of it. Asks Redis.
    ///
    /// # Errors
    ///
    /// Returns the errors of a failed [`lock`](Self::lock) attempt.
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
        Ok(!self.seen(false).await?.0.is_empty())
    }

    /// Returns whether the current owner holds the lock. Asks Redis.
    ///
    /// # Errors
    ///
    /// Returns the errors of a failed [`lock`](Self::lock) attempt.
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

    /// Returns the current owner's hold count. Asks Redis.
    ///
    /// # Errors
    ///
    /// Returns the errors of a failed [`lock`](Self::lock) attempt.
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
        let shared = self.client.shared();
        shared
            .on_client_runtime(pin!(async {
                let owner = self.current_owner()?;
                let name = self.valid_name()?;
                let entry = self.client.locks.find(&name)?;
                let key = owner.key(name.kind().face());
                let own = entry.and_then(|entry| entry.peek(|core| core.field(key)));
                let by_owner =
                    || (!name.kind().has_value_per_hold()).then(|| Arc::clone(owner.field()));
                let own = own.or_else(by_owner).map(|own| name.counted_in(&own));
                let seen = self.look(&name, false).await?.value;
                Ok(own.map_or(0, |own| seen.count_of(own.as_bytes())))
            }))
            .await
    }

    /// Returns the time left on the lease, or `None` if the lock is free or has no expiry. For readers it is the
    /// longest of their leases. Asks Redis.
    ///
    /// # Errors
    ///
    /// Returns the errors of a failed [`lock`](Self::lock) attempt.
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
        let holders = self.seen(false).await?.0;
        Ok(holders.iter().filter_map(|holder| holder.left).max())
    }

    /// Returns the holder of the lock, in Rust or Java, or `None` if it is free. For the readers of a read-write lock
    /// it is any one of them; [`RwLock::inspect`](crate::RwLock::inspect) returns all. Asks Redis.
    ///
    /// # Errors
    ///
    /// Returns the errors of a failed [`lock`](Self::lock) attempt.
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
        let (holders, token) = self.seen(true).await?;
        Ok(holders.into_iter().next().map(|seen| holder(seen, token)))
    }

    /// Returns the owners that wait for a fair lock, in Rust or Java, the next one first. Empty for locks of other
    /// kinds, whose waiters the server does not know. Asks Redis.
    ///
    /// # Errors
    ///
    /// Returns the errors of a failed [`lock`](Self::lock) attempt.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// for waiting in client.fair_lock("checkout").queue().await? {
    ///     println!("{} waits", waiting.owner);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn queue(&self) -> Result<Vec<QueuedOwner>, Error> {
        let shared = self.client.shared();
        let reading = async {
            let name = self.valid_name()?;
            if shared.is_closed() {
                return Err(Error::Closed);
            }
            let call = || script::inspect_queue(&name);
            if call().is_none() {
                return Ok(Vec::new());
            }
            let doing = Operation::Inspecting;
            let answer = script::call(self.route(&name), doing, shared.retry(), call).await;
            let queue = answer.map_err(|failed| failed.error)?.value;
            let queue = queue.map_err(|found| Error::not_a_lock(name.key(), &found))?;
            let shown = |(owner, left): script::Queued| QueuedOwner {
                owner,
                place_left: left.map(|left| Duration::from_millis(left.max(0).unsigned_abs())),
            };
            Ok(queue.into_iter().map(shown).collect())
        };
        shared.on_client_runtime(pin!(reading)).await
    }

    /// The holders of this part, and the token.
    async fn seen(&self, with_token: bool) -> Result<(Vec<Seen>, Option<Token>), Error> {
        let (mut holders, token) = self.all_seen(with_token).await?;
        if self.kind.has_faces() {
            holders.retain(|holder| wire::face_in_lock(&holder.field) == self.kind.face());
        }
        Ok((holders, token))
    }

    /// The holders of all parts, and the token.
    pub(super) async fn all_seen(
        &self,
        with_token: bool,
    ) -> Result<(Vec<Seen>, Option<Token>), Error> {
        let shared = self.client.shared();
        let looking = async {
            let name = self.valid_name()?;
            let call = || {
                let with_token = script::inspect_with_token(&name).filter(|_| with_token);
                with_token.unwrap_or_else(|| script::inspect(&name, false))
            };
            Ok(match self.ask(&name, call).await?.value {
                Inspected::Held { holders, token, .. } => (holders.into_vec(), token),
                Inspected::Free | Inspected::NotALock(_) => (Vec::new(), None),
            })
        };
        shared.on_client_runtime(pin!(looking)).await
    }

    /// Lists the permissions that the client's user lacks for this lock, as `ACL SETUSER` takes them; see
    /// [`LockClient::check`](crate::LockClient::check). It raises the token of a fenced lock that is free.
    ///
    /// # Errors
    ///
    /// See [`LockClient::check`](crate::LockClient::check).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// assert!(client.fenced_lock("ledger").check().await?.is_empty());
    /// # Ok(()) }
    /// ```
    pub async fn check(&self) -> Result<Vec<String>, Error> {
        let shared = self.client.shared();
        let checking = async {
            let name = self.valid_name()?;
            if shared.is_closed() {
                return Err(Error::Closed);
            }
            // The field of a new owner is no name that exists.
            let absent = Owner::fresh(&shared.client_id);
            let script = script::inspect(&name, false).script;
            let asks_replicas = self.replicas.is_some();
            let redis = &shared.redis;
            redis
                .missing_permissions(script, &name, absent.field(), asks_replicas)
                .await
        };
        shared.on_client_runtime(pin!(checking)).await
    }

    /// Who holds the lock, for a call that has not attempted.
    pub(super) async fn held_by(&self) -> Result<Option<HeldBy>, Error> {
        let (holders, _) = self.all_seen(false).await?;
        Ok(holders.into_iter().next().map(|seen| HeldBy {
            owner: script::shown(&seen.field),
            lease_left: seen.left,
        }))
    }

    pub(super) fn route<'a>(&'a self, name: &LockName) -> Route<'a> {
        self.client.shared().redis.route(name.key())
    }

    /// One run of `inspect.lua`. It needs no entry: a look does not make the name one that is in use.
    pub(super) async fn look(
        &self,
        name: &LockName,
        with_clock: bool,
    ) -> Result<ScriptAnswer<Inspected>, Error> {
        self.ask(name, || script::inspect(name, with_clock)).await
    }

    async fn ask(
        &self,
        name: &LockName,
        call: impl Fn() -> Call<Inspected>,
    ) -> Result<ScriptAnswer<Inspected>, Error> {
        let shared = self.client.shared();
        if shared.is_closed() {
            return Err(Error::Closed);
        }
        let call = || Some(call());
        let doing = Operation::Inspecting;
        let answer = script::call(self.route(name), doing, shared.retry(), call).await;
        let answer = answer.map_err(|failed| failed.error)?;
        match &answer.value {
            Inspected::NotALock(found) => Err(Error::not_a_lock(name.key(), found)),
            Inspected::Held { .. } | Inspected::Free => Ok(answer),
        }
    }
}

pub(super) fn holder(seen: Seen, token: Option<Token>) -> Holder {
    Holder {
        owner: script::shown(&seen.field),
        hold_count: seen.count,
        lease_left: seen.left,
        token: token.map(Token::number),
    }
}

/// An owner that waits for a fair lock, as stored in Redis.
///
/// # Examples
///
/// ```no_run
/// # async fn run(lock: redisson_lock::Lock) -> Result<(), redisson_lock::Error> {
/// let next: Option<redisson_lock::QueuedOwner> = lock.queue().await?.into_iter().next();
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct QueuedOwner {
    /// The owner's field; see [`Holder::owner`].
    pub owner: String,
    /// Time until its place ends by itself, by the server's clock. Zero: it has ended, and is removed when it is first.
    /// `None`: Redis has no end for it yet; it gets one when it is first.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub place_left: Option<Duration>,
}

/// The holder of a lock, as stored in Redis.
///
/// # Examples
///
/// ```no_run
/// # async fn run(lock: redisson_lock::Lock) -> Result<(), redisson_lock::Error> {
/// let holder: Option<redisson_lock::Holder> = lock.inspect().await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Holder {
    /// The owner's field as Rust or Java wrote it, not parsed: `clientId:threadId`, `clientId:threadId:write` for the
    /// writer of a read-write lock, or the value of a string lock. Text that is not UTF-8 is escaped: `\xac\xed`.
    pub owner: String,
    /// Its hold count.
    pub hold_count: u32,
    /// Time left on the lease; `None` if the key has no expiry. For a reader it is the reader's own lease, which the
    /// lock may outlast: zero if it has ended.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub lease_left: Option<Duration>,
    /// The token of a fenced lock's holder; `None` for other kinds, and if its key has none or may not be read. For a
    /// holder in Java it is the latest that it has taken.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub token: Option<u64>,
}

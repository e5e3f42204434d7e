//! Locks that replicas must acknowledge before the caller gets them.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Lock;
use super::guard::LockGuard;
use super::waiter::{Next, Waiter};
use crate::error::Error;
use crate::redis::SyncReplicas;
use crate::script;
use crate::state::bounds::check_replicas;
use crate::state::entry::{Entry, ReplicaLink};
use redisson_lock_core::input::{HoldHandedOut, ReplicasAnswer};

impl<K> Lock<K> {
    /// Returns this lock with a replication requirement: a call gets the lock only after `replicas` replicas, 1
    /// to 8, have acknowledged it within `within`, 10 ms to the command timeout. Otherwise the lock is released,
    /// and the call tries again as after an attempt without an answer ([`retry_for`](Self::retry_for),
    /// [`try_lock_for`](Self::try_lock_for), [`lead`](Self::lead)), or fails with [`Error::TooFewReplicas`].
    /// Default: the client's [`sync_replicas`](crate::LockClientBuilder::sync_replicas).
    ///
    /// When a primary dies, what its replicas do not have yet is lost. Only a lock that *all* replicas have survives
    /// every promotion. The [`valid_until`](crate::Hold::valid_until) of such a hold moves only to a lease that this
    /// many replicas have confirmed: if they are away for a whole lease, the hold is
    /// [lost](crate::LossReason::NotRenewed), and after two thirds of a lease minus the command timeout it may be,
    /// because renewals are sent every third. The same applies while a new primary has too few replicas after a
    /// failover.
    ///
    /// Renewals of nested holds ask for the replicas of the outermost one. While those have not confirmed it, a nested
    /// call waits for as many as its own handle asks for, and afterwards for none.
    ///
    /// It costs one more round trip for each acquisition, one `WAIT` for each batch of renewals, and one more
    /// connection to each primary for each number of replicas. Redisson waits for all replicas by default, is
    /// content with one, and does not wait for renewals.
    ///
    /// `WAIT`s for the same number of replicas run one at a time on each primary, and calls that arrive in the meantime
    /// share the next one, so set `within` to at least twice what replicas need. The client waits for replicas at most
    /// 200 ms longer than `within`, and not beyond the deadline of a `try_lock_for`. If too few confirm, the release
    /// that follows takes up to another command timeout when the primary does not respond; at a deadline it continues
    /// in the background.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// let lock = client.lock("stock:42").sync_replicas(2, Duration::from_millis(100));
    /// let guard = lock.lock().await?; // two replicas have it
    /// # guard.unlock().await }
    /// ```
    #[must_use]
    pub fn sync_replicas(&self, replicas: u32, within: Duration) -> Self {
        Self {
            replicas: Some(SyncReplicas { replicas, within }),
            ..self.clone()
        }
    }

    /// The check of replicas that a taking needs, if any.
    pub(super) fn confirming(&self) -> Result<Option<Box<ReplicaCheck>>, Error> {
        let Some(wanted) = self.replicas else {
            return Ok(None);
        };
        check_replicas(wanted, self.client.shared().command_timeout())?;
        Ok(Some(Box::new(ReplicaCheck {
            wanted,
            link: ReplicaLink::new(wanted.replicas),
            taken: None,
            unconfirmed: None,
        })))
    }
}

/// How many replicas are to have a lock, and the connection that asks.
pub(crate) struct ReplicaCheck {
    wanted: SyncReplicas,
    pub(super) link: Arc<ReplicaLink>,
    /// The latest taking: when it was sent, and its lease.
    taken: Option<(Instant, Duration)>,
    /// How many replicas have a taking for which that is not enough yet.
    unconfirmed: Option<u32>,
}

impl ReplicaCheck {
    /// What a call has come to, which may be a hold that was handed over. While it waits, a connection is opened to each server
    /// that takes over. What is wrong with it the next attempt says.
    pub(super) async fn next(&mut self, waiter: &mut Waiter) -> Result<Next, Error> {
        let (entry, link) = (Arc::clone(waiter.entry()), &self.link);
        let follow = async {
            let mut backoff = entry.shared().redis.backoff();
            loop {
                if let Some(probe) = link.probe() {
                    probe.outdated(link.route(&entry)).await;
                }
                if link.prepare(&entry).await.is_err() {
                    backoff.wait().await;
                }
            }
        };
        tokio::select! {
            biased;
            next = waiter.next() => next,
            never = follow => never,
        }
    }

    pub(super) fn taken(&mut self, sent_at: Instant, lease: Duration) {
        self.taken = Some((sent_at, lease));
    }

    /// After a taking: returns the guard if enough replicas have the lock by the deadline. They are not asked about a
    /// hold that is nested into one which they have confirmed.
    ///
    /// Dropped here, the guard is dropped too, and released in the background.
    pub(super) async fn confirm<K>(
        &mut self,
        guard: LockGuard<K>,
        deadline: Option<Instant>,
    ) -> Result<LockGuard<K>, Error> {
        let (entry, owner, hold) = (Arc::clone(&guard.entry), guard.key(), guard.id);
        let (field, is_confirmed) =
            entry.peek(|core| (core.field(owner), core.is_confirmed(owner)));
        if is_confirmed {
            entry.step(HoldHandedOut { owner, hold });
            return Ok(guard);
        }
        let SyncReplicas { replicas, within } = self.wanted;
        let mut acknowledged = 0;
        self.unconfirmed = Some(acknowledged);
        if let (Some(confirmer), Some((sent_at, lease)), Some(field)) =
            (self.link.probe(), self.taken, field)
        {
            let name = entry.name_of(owner);
            let field = name.counted_in(&field);
            let touch = script::touch(name.kind(), [(name.key(), &field)].into_iter());
            let within = Instant::now() + within;
            let until = deadline.map_or(within, |deadline| deadline.min(within));
            acknowledged = confirmer
                .acknowledged(self.link.route(&entry), touch, sent_at, until)
                .await;
            let leased = (entry.shared().clock.time(sent_at), lease);
            entry.step(ReplicasAnswer {
                owner,
                hold,
                leased,
                acknowledged,
            });
        }
        if acknowledged >= replicas {
            self.unconfirmed = None;
            return Ok(guard);
        }
        self.unconfirmed = Some(acknowledged);
        // Before another attempt. Without an answer it goes on in the background; a loss is no worse than it.
        let released = guard.unlock().await;
        self.unconfirmed = None;
        let is_released = matches!(released, Ok(()) | Err(Error::Lost { .. }));
        Err(self.too_few(&entry, acknowledged, is_released))
    }

    /// The error of a call whose time is over before enough replicas have what it took.
    pub(super) fn unconfirmed(&self, entry: &Entry) -> Option<Error> {
        Some(self.too_few(entry, self.unconfirmed?, false))
    }

    fn too_few(&self, entry: &Entry, acknowledged: u32, released: bool) -> Error {
        Error::TooFewReplicas {
            lock: entry.name.given().to_string(),
            wanted: self.wanted.replicas,
            acknowledged,
            released,
        }
    }
}

//! A lock that replicas are to have before its caller does.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Lock;
use super::waiter::{Next, Waiter};
use crate::entry::Entry;
use crate::error::{Error, Operation};
use crate::guard::LockGuard;
use crate::redis::{Confirmer, Site, Wanted};
use crate::script;
use crate::shared::check_replicas;

impl Lock {
    /// The same lock, which at least so many replicas must have before its caller gets it: 1 to 8, within 10 ms
    /// to the command timeout. Otherwise it is released again, and the call tries again as after an attempt
    /// without an answer ([`retry_for`](Self::retry_for), [`try_lock_for`](Self::try_lock_for),
    /// [`lead`](Self::lead)), or fails with [`Error::TooFewReplicas`]. Default: the client's
    /// [`sync_replicas`](crate::LockClientBuilder::sync_replicas).
    ///
    /// A primary that dies takes with it what its replicas do not have yet. Only a lock that *all* replicas have
    /// survives every promotion. What is asked about is the first taking of a lock, handed over inside of this
    /// client or not; nested takings, renewals and unlocks are not. It costs a round trip more, and one more
    /// connection for each number of replicas. Redisson waits for all replicas by default and is content with one.
    ///
    /// Calls that need as many replicas are asked about one after the other, those that come meanwhile
    /// together: let `within` be at least twice what replicas need. It is not exceeded by more than 100 ms, as
    /// late as Redis may notice its end, and the way there and back; a lock that `try_lock_for` took just
    /// before its deadline is asked about beyond it.
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
            replicas: Some(Wanted { replicas, within }),
            ..self.clone()
        }
    }

    /// What has to be asked about a taking, if anything.
    pub(super) fn confirming(&self) -> Result<Option<Box<Confirming>>, Error> {
        let Some(wanted) = self.replicas else {
            return Ok(None);
        };
        check_replicas(wanted, self.client.shared().command_timeout())?;
        Ok(Some(Box::new(Confirming {
            wanted,
            confirmer: None,
            taken_at: None,
        })))
    }
}

/// How many replicas are to have a lock, and who asks them.
pub(crate) struct Confirming {
    wanted: Wanted,
    confirmer: Option<Confirmer>,
    /// When what was taken was sent. `None`: it is nested.
    taken_at: Option<Instant>,
}

impl Confirming {
    fn site<'a>(&self, entry: &'a Entry) -> Site<'a> {
        entry.route().waiting_for(self.wanted.replicas)
    }

    /// Before an attempt: a connection that is opened behind a taking may lead to another server.
    pub(super) async fn prepare(&mut self, entry: &Entry) -> Result<(), Error> {
        let site = self.site(entry);
        let usable = self.confirmer.as_ref();
        if usable.is_some_and(|confirmer| confirmer.is_current(site)) {
            return Ok(());
        }
        let limit = Instant::now() + entry.shared().command_timeout();
        let confirmer = site.confirmer(limit).await;
        let unsent = |error| script::unsent(error, Operation::Acquiring);
        self.confirmer = Some(confirmer.map_err(unsent)?);
        Ok(())
    }

    /// What a call may do next, which may be to take what was handed over.
    pub(super) async fn next(
        &mut self,
        waiter: &mut Waiter,
        deadline: Option<Instant>,
    ) -> Result<Option<Next>, Error> {
        let entry = Arc::clone(waiter.entry());
        self.prepare(&entry).await?;
        tokio::select! {
            biased;
            next = waiter.next(deadline) => next,
            never = self.follow(&entry) => match never {},
        }
    }

    /// While a call waits: has a connection opened to each server that takes over, where the lock may be
    /// handed over. What is wrong with it the next attempt says.
    async fn follow(&mut self, entry: &Entry) -> Infallible {
        let mut backoff = entry.shared().redis.backoff();
        loop {
            if let Some(confirmer) = &self.confirmer {
                confirmer.outdated(self.site(entry)).await;
            }
            if self.prepare(entry).await.is_err() {
                backoff.wait().await;
            }
        }
    }

    pub(super) fn taken(&mut self, is_first: bool, sent_at: Instant) {
        self.taken_at = is_first.then_some(sent_at);
    }

    /// Behind a taking: the guard, if it is nested or there are enough replicas that have it.
    ///
    /// Dropped here, the guard is dropped too, and released in the background.
    pub(super) async fn confirm(&mut self, guard: LockGuard) -> Result<LockGuard, Error> {
        let Some(taken_at) = self.taken_at else {
            return Ok(guard);
        };
        let Wanted { replicas, within } = self.wanted;
        let (entry, owner) = (Arc::clone(guard.entry()), guard.owner().clone());
        let field = entry.peek(|core| core.field(owner.id()));
        let acknowledged = match (&self.confirmer, field) {
            (Some(confirmer), Some(field)) => {
                let touch = script::touch(&entry.name, &field);
                confirmer
                    .acknowledged(self.site(&entry), touch, taken_at, within)
                    .await
            }
            _ => 0,
        };
        if acknowledged >= replicas {
            return Ok(guard);
        }
        // Before another attempt. Without an answer it goes on in the background; a loss is no worse than it.
        let released = guard.unlock().await;
        Err(Error::TooFewReplicas {
            lock: entry.name.given().to_string(),
            wanted: replicas,
            acknowledged,
            released: matches!(released, Ok(()) | Err(Error::Lost { .. })),
        })
    }
}

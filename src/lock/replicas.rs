//! A lock that replicas are to have before its caller does.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Lock;
use crate::entry::Entry;
use crate::error::{Error, Operation};
use crate::guard::LockGuard;
use crate::redis::{Confirmer, Wanted};
use crate::script;
use crate::shared::check_replicas;

impl Lock {
    /// The same lock, which at least so many replicas must have before its caller gets it: 1 to 8, within 10 ms
    /// to the command timeout. Otherwise it is released again, and the call fails with
    /// [`Error::TooFewReplicas`]. Default: the client's
    /// [`sync_replicas`](crate::LockClientBuilder::sync_replicas).
    ///
    /// A primary that dies takes with it what its replicas do not have yet. Only a lock that *all* replicas have
    /// survives every promotion. What is asked about is the first taking of a lock, handed over inside of this
    /// client or not; nested takings, renewals and unlocks are not. It costs a round trip more, and Redis notices
    /// the end of `within` up to 100 ms late. Redisson waits for all replicas by default and is content with one.
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
        })))
    }
}

/// How many replicas are to have a lock, and who asks them.
pub(crate) struct Confirming {
    wanted: Wanted,
    confirmer: Option<Confirmer>,
}

impl Confirming {
    /// Before an attempt: a connection that is opened behind a taking may lead to another server.
    pub(super) async fn prepare(&mut self, entry: &Entry) -> Result<(), Error> {
        let route = entry.route();
        let usable = self.confirmer.as_ref();
        if usable.is_some_and(|confirmer| confirmer.is_current(route)) {
            return Ok(());
        }
        let limit = Instant::now() + entry.shared().command_timeout();
        let confirmer = route.confirmer(limit).await;
        let unsent = |error| script::unsent(error, Operation::Acquiring);
        self.confirmer = Some(confirmer.map_err(unsent)?);
        Ok(())
    }

    /// Behind a taking: the guard, if there are enough replicas that have it.
    ///
    /// Dropped here, the guard is dropped too, and released in the background.
    pub(super) async fn confirm(mut self: Box<Self>, guard: LockGuard) -> Result<LockGuard, Error> {
        let Wanted { replicas, .. } = self.wanted;
        let (entry, owner) = (Arc::clone(guard.entry()), guard.owner().clone());
        // A wait in the queue may have outlived the connection. Another server is asked for the lock too.
        self.prepare(&entry).await?;
        let field = entry.peek(|core| core.field(owner.id()));
        let acknowledged = match (&self.confirmer, field) {
            (Some(confirmer), Some(field)) => {
                let touch = script::touch(&entry.name, &field);
                confirmer
                    .acknowledged(entry.route(), touch, self.wanted)
                    .await
            }
            _ => 0,
        };
        if acknowledged >= replicas {
            return Ok(guard);
        }
        // It goes on in the background if it has no answer; a loss is no worse than the release.
        let _ = guard.unlock().await;
        Err(Error::TooFewReplicas {
            lock: entry.name.given().to_string(),
            wanted: replicas,
            acknowledged,
        })
    }
}

//! A job that several processes start at about the same time, and only one runs.

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use redisson_lock_core::Face;
use tokio::time::Instant;

use super::hold_handle::HoldHandle;
use super::verbs::{Held, note_released, settled};
use super::{Lock, LockGuard};
use crate::base::runtime::until;
use crate::error::Error;
use crate::names::owner::Owner;

impl<K: 'static> Lock<K> {
    /// Runs `body` unless a process has started it within the last `period`: for jobs that every instance of a service
    /// starts on time, but only one should run. Returns `None` without running the body if another one has started it,
    /// or holds the lock.
    ///
    /// The lock is kept for 95 % of the period from the attempt that acquires it, however soon the body ends, even if it
    /// fails, the future is dropped, the client is closed or the process is killed. So the clocks of the instances
    /// may differ by up to that time, and the job can run again one period later. It runs at most once in a period, not
    /// at least once: if a run starts later than the one before by more than 5 % of the period, the next attempt finds the
    /// lock still held. A body that fails is not run again within the period: let it retry. A body that takes longer keeps the lock
    /// until it ends, and is dropped if the lock is lost, as with [`run`](Self::run). If the process is killed in the last
    /// third of that time, the lock stays up to a third longer.
    ///
    /// Each call has its own owner, so other holds of the caller do not count. Use a separate name for each job,
    /// because the lock cannot serve other purposes in the meantime.
    ///
    /// # Errors
    ///
    /// Returns the errors of `body` and of [`try_lock`](Self::try_lock); [`Error::InvalidDuration`] for a period that
    /// is not a valid lease; [`Error::Misuse`] for the read part of a read-write lock, which several would get;
    /// [`Error::Lost`] if the lock was lost before the body ended.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body. The lock is kept as after the body's end.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn clean_up() -> Result<(), redisson_lock::Error> { Ok(()) }
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// let job = client.lock("jobs:clean-up");
    /// if job.once_per(Duration::from_secs(60), |_held| clean_up()).await?.is_none() {
    ///     println!("another instance has run it");
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn once_per<T, E, F, Fut>(&self, period: Duration, body: F) -> Result<Option<T>, E>
    where
        E: From<Error>,
        F: FnOnce(HoldHandle<K>) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        if self.kind.face() == Face::Read {
            let problem =
                "several owners may hold the reading part: use the writing part, or another lock";
            return Err(Error::Misuse { problem }.into());
        }
        let kept = period - period / 20;
        let owner = Owner::fresh(&self.client.shared().client_id);
        let began = Instant::now();
        let lock = Self {
            max_hold: None,
            ..self.owned_by(&owner).lease(kept)
        };
        let Some(guard) = lock.try_lock().await? else {
            return Ok(None);
        };
        let mut kept = Kept {
            ends: began + kept,
            extended: kept / 3,
            leased_until: began + kept,
            guard: Some(guard),
            is_last: false,
        };
        let value = kept.run(body).await?;
        let released = kept.end().await;
        note_released(self.name(), &released);
        settled(value, released).map(Some)
    }
}

/// A lock that stays for its period, whatever becomes of the call.
struct Kept<K: 'static> {
    /// Until then it is kept in any case.
    ends: Instant,
    /// By how much a longer body extends the lease each time.
    extended: Duration,
    leased_until: Instant,
    guard: Option<LockGuard<K>>,
    /// There is no call any more. If this is dropped too, with its runtime, the lease frees the lock.
    is_last: bool,
}

impl<K: 'static> Kept<K> {
    /// Runs the body under the lock, and extends the lease while it takes longer.
    async fn run<F, Fut>(&mut self, body: F) -> Result<Fut::Output, Error>
    where
        F: FnOnce(HoldHandle<K>) -> Fut,
        Fut: Future,
    {
        let Some(guard) = &self.guard else {
            return Err(Error::Closed);
        };
        guard.not_lost()?;
        let span = guard.span(false);
        let running = until(guard.until_lost(), span.as_deref(), || body(guard.hold()));
        let (step, leased_until) = (self.extended, &mut self.leased_until);
        let extending = async {
            loop {
                tokio::time::sleep_until(*leased_until - step).await;
                match guard.extend(2 * step).await {
                    Ok(()) => *leased_until += step,
                    // Until the lease is over, which ends the body.
                    Err(_) => tokio::time::sleep(step / 10).await,
                }
            }
        };
        let ended: Result<_, Infallible> = tokio::select! {
            biased;
            ended = running => Ok(ended),
            never = extending => Err(never),
        };
        let Ok(ended) = ended;
        ended.map_err(|loss| guard.lost_by(loss))
    }

    /// After the body: the lock stays for the rest of its time, and no longer.
    async fn end(&mut self) -> Result<(), Error> {
        let is_extended = self.leased_until > self.ends;
        if is_extended {
            tokio::time::sleep_until(self.ends).await;
        }
        match self.guard.take() {
            Some(guard) if is_extended => guard.unlock().await,
            Some(guard) => {
                let lost = guard.not_lost();
                guard.leave();
                lost
            }
            None => Ok(()),
        }
    }
}

impl<K: 'static> Drop for Kept<K> {
    fn drop(&mut self) {
        let Some(guard) = self.guard.take() else {
            return;
        };
        if self.is_last || self.leased_until <= self.ends {
            return guard.leave();
        }
        // The lease was extended for the body, beyond the time for which the lock is to stay.
        let client = guard.client();
        let mut rest = Self {
            guard: Some(guard),
            is_last: true,
            ..*self
        };
        client.shared().runtime.spawn(async move {
            _ = rest.end().await;
        });
    }
}

//! Code that runs with a lock or with a client, and what is released after it.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;

use crate::api::builder::LockClientBuilder;
use crate::api::client::LockClient;
use crate::base::runtime::{sleep_until, span, until};
use crate::error::Error;
use crate::lock::hold_handle::{HoldHandle, HoldState};
use crate::lock::{Lock, LockGuard, Wait};

impl<K> Lock<K> {
    /// Runs `body` with the lock held, and drops it if the lock is lost.
    ///
    /// The body's value is returned if the lock was still held at its end: a failed unlock does not
    /// discard the value of a completed body, unless it reports a loss. If the body fails or panics, the
    /// lock is released, and its error or the panic goes on.
    ///
    /// # Errors
    ///
    /// The body's; those of [`lock`](Self::lock); [`Error::Lost`] if the lock was lost before the body
    /// had ended.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body and releases the lock in the background.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn sell() -> Result<u32, redisson_lock::Error> { Ok(1) }
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// let sold = client.lock("stock:42").run(|_held| sell()).await?;
    /// # Ok(()) }
    /// ```
    pub async fn run<T, E, F, Fut>(&self, body: F) -> Result<T, E>
    where
        E: From<Error>,
        F: FnOnce(HoldHandle<K>) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        section(self.lock().await?, body).await
    }

    /// Runs `body` if the lock is free now. Returns `None`, and the body does not run, where
    /// [`try_lock`](Self::try_lock) does.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn sweep() -> Result<(), redisson_lock::Error> { Ok(()) }
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// if client.lock("sweep").try_run(|_held| sweep()).await?.is_none() {
    ///     println!("another instance sweeps");
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn try_run<T, E, F, Fut>(&self, body: F) -> Result<Option<T>, E>
    where
        E: From<Error>,
        F: FnOnce(HoldHandle<K>) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        match self.try_lock().await? {
            Some(guard) => section(guard, body).await.map(Some),
            None => Ok(None),
        }
    }

    /// Runs `body` when the lock is free, waiting at most `wait` for it. Returns `None`, and the body does not run, where
    /// [`try_lock_for`](Self::try_lock_for) does. How long the body takes is not limited.
    ///
    /// # Errors
    ///
    /// The body's; those of [`try_lock_for`](Self::try_lock_for); [`Error::Lost`] if the lock was lost before the body
    /// had ended.
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn sell() -> Result<u32, redisson_lock::Error> { Ok(1) }
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// let stock = client.lock("stock:42");
    /// let sold = stock.try_run_for(Duration::from_secs(2), |_held| sell()).await?;
    /// # Ok(()) }
    /// ```
    pub async fn try_run_for<T, E, F, Fut>(&self, wait: Duration, body: F) -> Result<Option<T>, E>
    where
        E: From<Error>,
        F: FnOnce(HoldHandle<K>) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        match self.try_lock_for(wait).await? {
            Some(guard) => section(guard, body).await.map(Some),
            None => Ok(None),
        }
    }

    /// Leader election: acquires the lock, runs `body`, and repeats both until the body returns.
    ///
    /// The body is the leader's work, and runs again each time this process becomes the leader. It is dropped as soon
    /// as the lock is at risk, which is before another process can have it. The lock is then released, and acquired
    /// again once Redis has confirmed that or the lease is over. While the server is away, this call waits; a standby
    /// that waits for long logs no warning.
    ///
    /// # Taking over
    ///
    /// A leader that shuts down ends this future (for example in a `select!`) or its body: the lock is released, and
    /// a standby takes over immediately. After a crash the lock stays until its lease is over, which is at most the
    /// [`watchdog_timeout`](crate::LockClientBuilder::watchdog_timeout) later and, as the leader renews at every third
    /// of it, usually at least two thirds: 20 to 30 s by default. A shorter `watchdog_timeout` shortens that, and with
    /// it the outage of Redis that a leader survives.
    ///
    /// # Errors
    ///
    /// The body's; and those of [`lock`](Self::lock) that do not pass by waiting
    /// ([`Error::is_retryable`]).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body and releases the lock in the background.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn bill_everybody() -> Result<(), redisson_lock::Error> { Ok(()) }
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// let leader = client.lock("billing:leader");
    /// leader.lead(|_held| bill_everybody()).await
    /// # }
    /// ```
    pub async fn lead<T, E, F, Fut>(&self, mut body: F) -> Result<T, E>
    where
        E: From<Error>,
        F: FnMut(HoldHandle<K>) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        loop {
            let guard = self.acquire(Wait::Standby).await?.ok_or(Error::Closed)?;
            let span = span!("lead", lock = %guard.name(), owner = %guard.owner(), kind = guard.kind().unless_plain());
            let (at_risk, leading) = (at_risk(guard.handle()), || body(guard.handle()));
            let ended = until(at_risk, span.as_deref(), leading).await;
            // Answered, or left to the background: the next acquire of this owner waits for that.
            let _ = guard.unlock().await;
            if let Ok(ended) = ended {
                return ended;
            }
        }
    }
}

/// Resolves when the hold is not sure any more: its renewal is overdue, or it was lost.
pub(crate) async fn at_risk<K>(handle: HoldHandle<K>) {
    let look = || (handle.state(), handle.overdue_at());
    let watching = pin!(until_at_risk(handle.lost(), look));
    // When the client's runtime has ended, nothing renews the hold either.
    let _ = handle.entry.shared().on_client_runtime(watching).await;
}

/// The same, by how the hold stands: its state, and when its renewal is overdue, which each renewal moves.
pub(crate) async fn until_at_risk(
    lost: impl Future,
    look: impl Fn() -> (HoldState, Option<Instant>),
) -> Result<(), Error> {
    let mut lost = pin!(lost);
    while let (HoldState::Held, overdue) = look() {
        tokio::select! {
            biased;
            _ = &mut lost => break,
            () = sleep_until(overdue) => {}
        }
    }
    Ok(())
}

/// What becomes of the value of a body when its lock is released: a loss discards it.
pub(crate) fn settled<T, E: From<Error>>(
    ended: Result<T, E>,
    released: Result<(), Error>,
) -> Result<T, E> {
    match released {
        // Why the body failed says more than what became of its lock.
        Err(error @ Error::Lost { .. }) if ended.is_ok() => Err(error.into()),
        Ok(()) | Err(_) => ended,
    }
}

/// Runs the body with the hold, and releases it.
async fn section<K, T, E, F, Fut>(guard: LockGuard<K>, body: F) -> Result<T, E>
where
    E: From<Error>,
    F: FnOnce(HoldHandle<K>) -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    let (ended, released) = guard.run(body).await?;
    settled(ended, released)
}

impl LockClient {
    /// Runs `body` with the lock of this name held: [`lock(name).run(body)`](Lock::run), in one line.
    ///
    /// Only one process at a time runs the body for a given name.
    ///
    /// # Errors
    ///
    /// As [`Lock::run`].
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::run`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn pay() -> Result<u32, redisson_lock::Error> { Ok(1) }
    /// # async fn run(client: redisson_lock::LockClient) -> Result<(), redisson_lock::Error> {
    /// let paid = client.serial("account:7", pay).await?;
    /// # Ok(()) }
    /// ```
    pub async fn serial<T, E, F, Fut>(&self, name: impl Into<String>, body: F) -> Result<T, E>
    where
        E: From<Error>,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        self.lock(name).run(|_held| body()).await
    }

    /// Connects, runs `body` with the client, and closes the client afterwards: when this future is
    /// ready, what the body has locked is released.
    ///
    /// The end of a runtime cannot release anything: a guard that is dropped at the end of `main`
    /// leaves its lock for its whole lease. Here the client is closed while the runtime still runs,
    /// also after a `?` or a panic of the body. For a client with other settings there is
    /// [`LockClientBuilder::scope`](crate::LockClientBuilder::scope).
    ///
    /// Tasks that the body has spawned have the command timeout to release what they hold, or the
    /// [`close_grace`](crate::LockClientBuilder::close_grace) of the builder. What is then still held is lost with
    /// [`LossReason::Closed`](crate::LossReason::Closed), and its lease frees it. The events of [`close`](Self::close)
    /// name each lock that is left, at the level WARN. Let the body wait for its tasks; or use
    /// [`connect`](Self::connect) and `close`, which returns a report.
    ///
    /// # Errors
    ///
    /// Those of [`connect`](Self::connect), and the body's.
    ///
    /// # Panics
    ///
    /// Resumes a panic of `body` after closing the client.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body, and closes the client in the background.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run() -> Result<(), redisson_lock::Error> {
    /// use redisson_lock::{Error, LockClient};
    /// LockClient::scope("redis://127.0.0.1:6379", async |client| {
    ///     let guard = client.lock("stock:42").lock().await?;
    ///     guard.unlock().await
    /// })
    /// .await
    /// # }
    /// ```
    pub async fn scope<T, E, F, Fut>(url: &str, body: F) -> Result<T, E>
    where
        E: From<Error>,
        F: FnOnce(Self) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        Self::builder().scope(url, body).await
    }

    /// Runs `body`, and closes the client afterwards, whichever way the body ends.
    async fn run_and_close<Fut: Future>(
        self,
        body: impl FnOnce(Self) -> Fut,
        grace: Duration,
    ) -> Fut::Output {
        let mut closes = ClosesClient {
            client: self.clone(),
            grace: Some(grace),
        };
        let outcome = {
            let client = self.clone();
            let mut running = pin!(async { body(client).await });
            std::future::poll_fn(|context| {
                let polled = catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(context)));
                match polled {
                    Ok(Poll::Pending) => Poll::Pending,
                    Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
                    Err(panic) => Poll::Ready(Err(panic)),
                }
            })
            .await
        };
        // What its report would say was said by events.
        self.close(grace).await;
        closes.grace = None;
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

/// Closes the client in the background if the future is dropped that runs its body.
struct ClosesClient {
    client: LockClient,
    grace: Option<Duration>,
}

impl Drop for ClosesClient {
    fn drop(&mut self) {
        if let Some(grace) = self.grace {
            let client = self.client.clone();
            let closing = async move { _ = client.close(grace).await };
            self.client.handle.shared().runtime.spawn(closing);
        }
    }
}

impl LockClientBuilder {
    /// How long [`scope`](Self::scope) waits, when its body has ended, for guards that are still open: those of spawned
    /// tasks. Default: the command timeout; any length is accepted. Nothing else uses it: [`LockClient::close`] takes a
    /// grace of its own, and a blocking client ends when no guard is left.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// let builder = redisson_lock::LockClient::builder().close_grace(Duration::from_secs(20));
    /// ```
    pub fn close_grace(mut self, close_grace: Duration) -> Self {
        self.close_grace = Some(close_grace);
        self
    }

    /// Connects, runs `body` with the client, and closes the client afterwards: see
    /// [`LockClient::scope`].
    ///
    /// # Errors
    ///
    /// Those of [`connect`](Self::connect), and the body's.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body, and closes the client in the background.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run() -> Result<(), redisson_lock::Error> {
    /// use redisson_lock::LockClient;
    /// let builder = LockClient::builder().key_prefix("shop:");
    /// builder
    ///     .scope("redis://127.0.0.1:6379", async |client| {
    ///         client.lock("stock:42").lock().await?.unlock().await
    ///     })
    ///     .await
    /// # }
    /// ```
    pub async fn scope<T, E, F, Fut>(self, url: &str, body: F) -> Result<T, E>
    where
        E: From<Error>,
        F: FnOnce(LockClient) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let default = self.command_timeout_or_default();
        let grace = self.close_grace.unwrap_or(default);
        let client = self.connect(url).await?;
        client.run_and_close(body, grace).await
    }
}

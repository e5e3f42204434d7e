//! Runs code with a client, and closes the client afterwards.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::api::builder::LockClientBuilder;
use crate::api::client::LockClient;
use crate::error::Error;

impl LockClient {
    /// Runs `body` with the lock of this name held: [`lock(name).run(body)`](crate::Lock::run), in one line.
    ///
    /// Only one process at a time runs the body for a given name.
    ///
    /// # Errors
    ///
    /// See [`Lock::run`](crate::Lock::run).
    ///
    /// # Cancel safety
    ///
    /// See [`Lock::run`](crate::Lock::run).
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

    /// Connects, runs `body` with the client, and closes the client afterwards. When this future is ready, the locks of
    /// the body are released.
    ///
    /// Shutting down a runtime cannot release anything: a guard that is dropped at the end of `main` leaves its lock
    /// held for a whole lease. Here the client is closed while the runtime still runs, even after `?` or a panic of the
    /// body. For other settings use [`LockClientBuilder::scope`](crate::LockClientBuilder::scope).
    ///
    /// Tasks that the body has spawned have the command timeout, or the builder's
    /// [`close_grace`](crate::LockClientBuilder::close_grace), to release their locks. Any lock still held then is lost
    /// with [`LossReason::Closed`](crate::LossReason::Closed), and freed by its lease. The events of
    /// [`close`](Self::close) name each of them, at the level WARN. Make the body wait for its tasks, or use
    /// [`connect`](Self::connect) and `close`, which returns a report.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`connect`](Self::connect) and of `body`.
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
    /// Sets how long [`scope`](Self::scope) waits, after its body has ended, for open guards of spawned tasks. Default:
    /// the command timeout; any length is accepted. Nothing else uses it: [`LockClient::close`] takes its own grace,
    /// and a blocking client ends when no guard is left.
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
    /// Returns the errors of [`connect`](Self::connect) and of `body`.
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

//! The functions that `#[locked]` expands to. Hidden, and outside of semantic versioning: only the attribute of the
//! same release uses them.

use std::future::Future;
use std::time::Duration;

use crate::api::client::LockClient;
use crate::error::Error;
use crate::kind::LockKind;
use crate::lock::{LockGuard, verbs};
use crate::names::try_lock::TryLock;

/// The options of the attribute.
#[derive(Debug)]
pub struct Options {
    /// The lock's name, formatted.
    pub name: String,
    /// A kind that there is: the attribute accepts no other. `None`: plain.
    pub kind: Option<&'static str>,
    /// A fixed lease, instead of the watchdog.
    pub lease: Option<Duration>,
    /// How long to wait at most.
    pub wait: Option<Duration>,
    /// For how long an attempt without an answer is repeated, if there is no `wait`.
    pub retry_for: Option<Duration>,
}

/// The result of a function with `#[locked]`.
#[diagnostic::on_unimplemented(
    message = "a function with `#[locked]` returns a `Result`, but this one returns `{Self}`",
    label = "write `Result<{Self}, redisson_lock::Error>`, or an error type `E` with `E: From<redisson_lock::Error>`"
)]
pub trait Fallible {
    /// The error of the lock, as the function's.
    fn failed(error: Error) -> Self;

    /// Whether the function itself failed.
    fn is_failed(&self) -> bool;
}

impl<T, E: From<Error>> Fallible for Result<T, E> {
    fn failed(error: Error) -> Self {
        Err(error.into())
    }

    fn is_failed(&self) -> bool {
        self.is_err()
    }
}

/// The result of a function with `#[locked(busy = "skip")]`.
#[diagnostic::on_unimplemented(
    message = "a function with `busy = \"skip\"` returns `Result<Option<T>, E>`, but this one returns `{Self}`",
    label = "write `Result<Option<…>, …>`: it is `Ok(None)` when the lock is not free in time"
)]
pub trait Skippable: Fallible {
    /// The lock was not free in time.
    fn skipped() -> Self;
}

impl<T, E: From<Error>> Skippable for Result<Option<T>, E> {
    fn skipped() -> Self {
        Ok(None)
    }
}

/// The client of a function without `client = …`.
pub fn default_client() -> Result<LockClient, Error> {
    LockClient::of_this_task()
}

/// Runs a function's body with its lock held. A lock that is not free in time is an error.
pub async fn run<R, F, Fut>(client: Result<LockClient, Error>, options: Options, body: F) -> R
where
    R: Fallible,
    F: FnOnce() -> Fut,
    Fut: Future<Output = R>,
{
    match acquire(client, &options).await {
        Ok(TryLock::Acquired(guard)) => returned(verbs::run(guard, |_| body()).await),
        Ok(TryLock::Busy { holder }) => R::failed(Error::Busy {
            lock: options.name,
            waited: options.wait.unwrap_or_default(),
            found: holder.map(Box::new),
        }),
        Err(error) => R::failed(error),
    }
}

/// As [`run`], but a lock that is not free in time skips the body.
pub async fn run_or_skip<R, F, Fut>(
    client: Result<LockClient, Error>,
    options: Options,
    body: F,
) -> R
where
    R: Skippable,
    F: FnOnce() -> Fut,
    Fut: Future<Output = R>,
{
    match acquire(client, &options).await {
        Ok(TryLock::Acquired(guard)) => returned(verbs::run(guard, |_| body()).await),
        Ok(TryLock::Busy { .. }) => R::skipped(),
        Err(error) => R::failed(error),
    }
}

async fn acquire(
    client: Result<LockClient, Error>,
    options: &Options,
) -> Result<TryLock<LockGuard>, Error> {
    let kind = options.kind.map_or(Ok(LockKind::Plain), str::parse)?;
    let mut lock = client?.lock_of(kind, options.name.as_str());
    if let Some(lease) = options.lease {
        lock = lock.lease(lease);
    }
    if let Some(retry_for) = options.retry_for {
        lock = lock.retry_for(retry_for);
    }
    match options.wait {
        Some(wait) => lock.try_lock_for_or_find(wait).await,
        None => lock.lock().await.map(TryLock::Acquired),
    }
}

/// Not async: each async function around a body holds a second copy of its arguments.
fn returned<R: Fallible>(ended: Result<(R, Result<(), Error>), Error>) -> R {
    match ended {
        // Why the body failed says more than what became of its lock.
        Ok((value, Err(error @ Error::Lost { .. }))) if !value.is_failed() => R::failed(error),
        Ok((value, _)) => value,
        Err(error) => R::failed(error),
    }
}

//! The methods of every lock: how long a call waits for it, and what runs while it is held. A lock defines how it is
//! acquired ([`Lockable`]) and what its guard knows ([`Held`]); `verbs!` writes the methods.

// Sealed: application code has `DistributedLock` and `HeldLock`, which every lock and guard of these has too.
#![allow(unnameable_types, unreachable_pub)]

use std::future::Future;
use std::pin::pin;
#[cfg(feature = "blocking")]
use std::time::Duration;

use redisson_lock_core::LossReason;
use tokio::time::Instant;
use tracing::Span;

use super::Wait;
use super::hold_handle::HoldState;
use crate::base::runtime::{event, sleep_until, until};
use crate::error::Error;
#[cfg(feature = "blocking")]
use crate::names::owner::Owner;

/// A lock, whatever it is made of.
pub trait Lockable: Sized {
    type Guard: Held;

    fn lock_name(&self) -> &str;

    /// Acquires it within `wait`. Without a deadline this ends with a guard or an error.
    fn acquire(
        &self,
        wait: Wait,
    ) -> impl Future<Output = Result<Option<Self::Guard>, Error>> + Send;

    /// This lock, with the owner that it was given or else that of the calling thread.
    #[cfg(feature = "blocking")]
    fn of_this_thread(&self) -> Self;
}

/// The settings that every lock has, by the methods of each.
#[cfg(feature = "blocking")]
pub trait Adjustable: Lockable {
    fn leased(&self, lease: Duration) -> Self;
    fn with_owner(&self, owner: &Owner) -> Self;
}

/// The guard of such a lock.
pub trait Held: Sized {
    /// The argument of a section's body: it cannot release anything.
    type Hold;
    /// The report of a loss.
    type Loss: Send;
    /// The target of a blocking guard's `Deref`.
    #[cfg(feature = "blocking")]
    type Known;

    fn lock_name(&self) -> &str;

    fn hold_state(&self) -> HoldState;

    fn hold(&self) -> Self::Hold;

    #[cfg(feature = "blocking")]
    fn known(&self) -> &Self::Known;

    /// An error if it was lost.
    fn not_lost(&self) -> Result<(), Error>;

    /// Resolves when it is lost.
    fn until_lost(&self) -> impl Future<Output = Self::Loss> + Send + use<Self>;

    fn reason(loss: Self::Loss) -> LossReason;

    fn lost_by(&self, loss: Self::Loss) -> Error;

    /// Resolves when the hold is not sure any more: its renewal is overdue, or it was lost.
    fn at_risk(&self) -> impl Future<Output = ()> + Send;

    fn release(self) -> impl Future<Output = Result<(), Error>> + Send;

    #[cfg(feature = "blocking")]
    fn extended(&self, lease: Duration) -> impl Future<Output = Result<(), Error>> + Send;

    /// The span of a section, or of a leader's work.
    fn span(&self, _leads: bool) -> Option<Box<Span>> {
        None
    }
}

/// Runs `body` until it ends or the hold is lost, which drops it and is an error; a body whose lock is lost
/// already does not begin. Then releases the hold: with the body's value comes whether it was held until now.
pub(crate) async fn run<G, F, Fut>(
    guard: G,
    body: F,
) -> Result<(Fut::Output, Result<(), Error>), Error>
where
    G: Held,
    F: FnOnce(G::Hold) -> Fut,
    Fut: Future,
{
    guard.not_lost()?;
    let span = guard.span(false);
    let ended = until(guard.until_lost(), span.as_deref(), || body(guard.hold())).await;
    let value = ended.map_err(|loss| guard.lost_by(loss))?;
    let released = match guard.not_lost() {
        Ok(()) => released(guard).await,
        lost => lost,
    };
    Ok((value, released))
}

/// Releases a hold whose caller does not see why that fails.
async fn released<G: Held>(guard: G) -> Result<(), Error> {
    let lock = guard.lock_name().to_owned();
    let released = guard.release().await;
    note_released(&lock, &released);
    released
}

/// Logs why a hold is not released, for a caller that does not see it. Of a loss it is told, or has ended for it; and after
/// an error that passes the release goes on, and logs how it ends.
pub(crate) fn note_released(lock: &str, released: &Result<(), Error>) {
    if let Err(error) = released
        && !matches!(error, Error::Lost { .. })
        && !error.is_retryable()
    {
        event!(WARN, %lock, %error, "release failed: the lease frees the lock");
    }
}

/// Runs a body under a guard and releases it. If the hold is lost, the body's value is discarded.
pub(crate) async fn section<G, T, E, F, Fut>(guard: G, body: F) -> Result<T, E>
where
    G: Held,
    E: From<Error>,
    F: FnOnce(G::Hold) -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    let (ended, released) = run(guard, body).await?;
    settled(ended, released)
}

/// Acquires the lock, runs `body` until the hold is at risk, and repeats both until the body ends.
pub(crate) async fn lead<L, T, E, F, Fut>(lock: &L, mut body: F) -> Result<T, E>
where
    L: Lockable,
    E: From<Error>,
    F: FnMut(<L::Guard as Held>::Hold) -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    loop {
        let guard = lock.acquire(Wait::Standby).await?.ok_or(Error::Closed)?;
        let span = guard.span(true);
        let ended = until(guard.at_risk(), span.as_deref(), || body(guard.hold())).await;
        // Answered, or left to the background: the next acquire of this owner waits for that.
        let _ = released(guard).await;
        if let Ok(ended) = ended {
            return ended;
        }
    }
}

/// Decides about the value of a body when its lock is released: a loss discards it.
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

/// Resolves when a hold is at risk, by how it stands: its state, and when its renewal is overdue, which each renewal
/// moves.
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

/// Writes the verbs of a lock: `verbs!(impl[K] Lock<K>: LockGuard<K>, HoldHandle<K>; "redisson_lock::Lock"; …)`, with
/// what is special about the first three before their names.
macro_rules! verbs {
    (
        impl[$($k:ident)?] $lock:ty: $guard:ty, $hold:ty; $path:literal;
        $(#[$about_lock:meta])* lock;
        $(#[$about_try_lock:meta])* try_lock;
        $(#[$about_try_lock_for:meta])* try_lock_for;
    ) => {
        #[cfg(feature = "blocking")]
        impl<$($k)?> $crate::lock::verbs::Adjustable for $lock {
            fn leased(&self, lease: Duration) -> Self {
                self.lease(lease)
            }

            fn with_owner(&self, owner: &Owner) -> Self {
                self.owned_by(owner)
            }
        }

        impl<$($k)?> $lock {
            $(#[$about_lock])*
            ///
            /// # Examples
            ///
            /// ```no_run
            #[doc = concat!("# async fn run(lock: ", $path, ") -> Result<(), redisson_lock::Error> {")]
            /// let guard = lock.lock().await?;
            /// guard.unlock().await
            /// # }
            /// ```
            pub async fn lock(&self) -> Result<$guard, Error> {
                let acquired = $crate::lock::verbs::Lockable::acquire(self, Wait::Forever).await?;
                acquired.ok_or(Error::Closed)
            }

            $(#[$about_try_lock])*
            ///
            /// # Examples
            ///
            /// ```no_run
            #[doc = concat!("# async fn run(lock: ", $path, ") -> Result<(), redisson_lock::Error> {")]
            /// match lock.try_lock().await? {
            ///     Some(guard) => guard.unlock().await?,
            ///     None => println!("held, or others are first"),
            /// }
            /// # Ok(()) }
            /// ```
            pub async fn try_lock(&self) -> Result<Option<$guard>, Error> {
                $crate::lock::verbs::Lockable::acquire(self, Wait::Never(None)).await
            }

            $(#[$about_try_lock_for])*
            ///
            /// # Examples
            ///
            /// ```no_run
            /// # use std::time::Duration;
            #[doc = concat!("# async fn run(lock: ", $path, ") -> Result<(), redisson_lock::Error> {")]
            /// if let Some(guard) = lock.try_lock_for(Duration::from_secs(2)).await? {
            ///     guard.unlock().await?;
            /// }
            /// # Ok(()) }
            /// ```
            pub async fn try_lock_for(&self, wait: Duration) -> Result<Option<$guard>, Error> {
                $crate::lock::verbs::Lockable::acquire(self, Wait::of(wait)).await
            }

            /// Acquires like [`try_lock_for`](Self::try_lock_for), until `deadline`. A deadline that has passed is a
            /// wait of zero.
            ///
            /// # Errors
            ///
            /// See [`try_lock_for`](Self::try_lock_for).
            ///
            /// # Cancel safety
            ///
            /// See [`lock`](Self::lock).
            ///
            /// # Examples
            ///
            /// ```no_run
            /// # use std::time::{Duration, Instant};
            #[doc = concat!("# async fn run(lock: ", $path, ") -> Result<(), redisson_lock::Error> {")]
            /// let deadline = Instant::now() + Duration::from_secs(2);
            /// let guard = lock.try_lock_until(deadline).await?;
            /// # Ok(()) }
            /// ```
            pub async fn try_lock_until(
                &self,
                deadline: std::time::Instant,
            ) -> Result<Option<$guard>, Error> {
                $crate::lock::verbs::Lockable::acquire(self, Wait::by(deadline)).await
            }

            /// Runs `body` with the lock held, and drops it if the lock is lost.
            ///
            /// Returns the body's value if the lock was still held at its end: a failed unlock does not discard the
            /// value of a completed body, unless it reports a loss; otherwise it is an event. If the body fails, the lock is
            /// released and the error returned. If it panics, the lock is released in the background.
            ///
            /// # Errors
            ///
            /// Returns the errors of `body` and of [`lock`](Self::lock), and [`Error::Lost`] if the lock was lost
            /// before the body ended.
            ///
            /// # Cancel safety
            ///
            /// Dropping the future drops the body and releases the lock in the background.
            ///
            /// # Examples
            ///
            /// ```no_run
            /// # async fn sell() -> Result<u32, redisson_lock::Error> { Ok(1) }
            #[doc = concat!("# async fn run(lock: ", $path, ") -> Result<(), redisson_lock::Error> {")]
            /// let sold = lock.run(|_held| sell()).await?;
            /// # Ok(()) }
            /// ```
            pub async fn run<T, E, F, Fut>(&self, body: F) -> Result<T, E>
            where
                E: From<Error>,
                F: FnOnce($hold) -> Fut,
                Fut: Future<Output = Result<T, E>>,
            {
                $crate::lock::verbs::section(self.lock().await?, body).await
            }

            /// Runs `body` if the lock is free now. Returns `None` without running the body where
            /// [`try_lock`](Self::try_lock) does.
            ///
            /// # Errors
            ///
            /// See [`run`](Self::run).
            ///
            /// # Cancel safety
            ///
            /// See [`run`](Self::run).
            ///
            /// # Examples
            ///
            /// ```no_run
            /// # async fn sweep() -> Result<(), redisson_lock::Error> { Ok(()) }
            #[doc = concat!("# async fn run(lock: ", $path, ") -> Result<(), redisson_lock::Error> {")]
            /// if lock.try_run(|_held| sweep()).await?.is_none() {
            ///     println!("another instance sweeps");
            /// }
            /// # Ok(()) }
            /// ```
            pub async fn try_run<T, E, F, Fut>(&self, body: F) -> Result<Option<T>, E>
            where
                E: From<Error>,
                F: FnOnce($hold) -> Fut,
                Fut: Future<Output = Result<T, E>>,
            {
                match self.try_lock().await? {
                    Some(guard) => $crate::lock::verbs::section(guard, body).await.map(Some),
                    None => Ok(None),
                }
            }

            /// Runs `body` when the lock is free, waiting at most `wait` for it. Returns `None` without running the
            /// body where [`try_lock_for`](Self::try_lock_for) does. The duration of the body is not limited.
            ///
            /// # Errors
            ///
            /// Returns the errors of `body` and of [`try_lock_for`](Self::try_lock_for), and [`Error::Lost`] if the
            /// lock was lost before the body ended.
            ///
            /// # Cancel safety
            ///
            /// See [`run`](Self::run).
            ///
            /// # Examples
            ///
            /// ```no_run
            /// # use std::time::Duration;
            /// # async fn sell() -> Result<u32, redisson_lock::Error> { Ok(1) }
            #[doc = concat!("# async fn run(lock: ", $path, ") -> Result<(), redisson_lock::Error> {")]
            /// let sold = lock.try_run_for(Duration::from_secs(2), |_held| sell()).await?;
            /// # Ok(()) }
            /// ```
            pub async fn try_run_for<T, E, F, Fut>(&self, wait: Duration, body: F) -> Result<Option<T>, E>
            where
                E: From<Error>,
                F: FnOnce($hold) -> Fut,
                Fut: Future<Output = Result<T, E>>,
            {
                match self.try_lock_for(wait).await? {
                    Some(guard) => $crate::lock::verbs::section(guard, body).await.map(Some),
                    None => Ok(None),
                }
            }

            /// Leader election: acquires the lock, runs `body`, and repeats both until the body returns.
            ///
            /// The body is the leader's work, and runs again each time this process becomes the leader. It is dropped
            /// as soon as the lock is at risk, which is before another process can have it. The lock is then released,
            /// and acquired again once Redis has confirmed that or the lease is over. While the server is away, this
            /// call waits; a standby that waits a long time logs no warning.
            ///
            /// # Taking over
            ///
            /// To shut down, a leader ends this future (for example in a `select!`) or its body: the lock is released,
            /// and a standby takes over immediately. After a crash the lock stays until its lease is over: at most one
            /// [`watchdog_timeout`](crate::LockClientBuilder::watchdog_timeout) and, because the leader renews at every
            /// third of it, usually at least two thirds, 20 to 30 s by default. A shorter `watchdog_timeout` shortens
            /// that, and also the Redis outage that a leader survives.
            ///
            /// # Errors
            ///
            /// Returns the errors of `body`, and those of [`lock`](Self::lock) that are not temporary
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
            #[doc = concat!("# async fn run(lock: ", $path, ") -> Result<(), redisson_lock::Error> {")]
            /// lock.lead(|_held| bill_everybody()).await
            /// # }
            /// ```
            pub async fn lead<T, E, F, Fut>(&self, body: F) -> Result<T, E>
            where
                E: From<Error>,
                F: FnMut($hold) -> Fut,
                Fut: Future<Output = Result<T, E>>,
            {
                $crate::lock::verbs::lead(self, body).await
            }
        }
    };
}

pub(crate) use verbs;

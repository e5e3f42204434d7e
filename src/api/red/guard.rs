//! A red lock as its holder sees it: its state, extending and releasing it.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt};
use redisson_lock_core::LossReason;
use tokio::sync::oneshot;
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::queue::{RedCaller, too_few};
use super::quorum_hold::{QuorumHold, RedEnding};
use super::rule::quorum;
use crate::error::{Error, Operation, Quorum};
use crate::lock::hold_handle::HoldState;
use crate::lock::verbs::{Held, until_at_risk};
use crate::lock::{Lock, NOT_IN_TIME, extend_hold};
use crate::state::entry::Entry;

/// A [`RedLock`](crate::RedLock) that is held. Release it with [`unlock`](Self::unlock), or drop it to release it in the
/// background.
///
/// # Examples
///
/// ```no_run
/// # async fn step() {}
/// # async fn run(lock: redisson_lock::RedLock) -> Result<(), redisson_lock::Error> {
/// let guard = lock.lock().await?;
/// tokio::select! {
///     () = step() => guard.unlock().await?,
///     reason = guard.lost() => eprintln!("stopped: {reason}"),
/// }
/// # Ok(()) }
/// ```
#[must_use = "dropping a guard releases the lock immediately"]
pub struct RedGuard {
    hold: RedHold,
    home: Lock,
    member_timeout: Duration,
    _caller: RedCaller,
}

impl RedGuard {
    pub(super) fn new(
        quorum_hold: Arc<QuorumHold>,
        home: Lock,
        caller: RedCaller,
        member_timeout: Duration,
    ) -> Self {
        Self {
            hold: RedHold { quorum_hold },
            home,
            member_timeout,
            _caller: caller,
        }
    }

    /// Releases the lock on every server, and returns when a quorum has responded, or after the
    /// [`member_timeout`](crate::RedLock::member_timeout). The other releases continue in the background.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Lost`] if the quorum was already lost. Otherwise, if a quorum does not confirm in time, returns
    /// a server's error or [`Error::NoAnswer`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the lock in the background, exactly once.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(lock: redisson_lock::RedLock) -> Result<(), redisson_lock::Error> {
    /// lock.lock().await?.unlock().await
    /// # }
    /// ```
    pub async fn unlock(self) -> Result<(), Error> {
        let quorum_hold = &self.hold.quorum_hold;
        // A quorum that is gone by now is noted first.
        let _ = quorum_hold.state();
        let guards = quorum_hold.end(RedEnding::Released);
        if let Some(RedEnding::Lost(reason)) = quorum_hold.ending() {
            return Err(self.lost_by(reason));
        }
        let limit = self.limit();
        let unlocks = guards.into_iter().map(|guard| async move {
            let entry = Arc::clone(&guard.entry);
            let unlock = guard.unlock();
            in_time(limit, &entry, Operation::Unlocking, unlock).await
        });
        self.confirmed(unlocks, Operation::Unlocking).await
    }

    /// Extends a fixed lease to at least `lease` from now on a quorum of the servers, and on the others if they
    /// respond.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Lost`] if the quorum was lost. If fewer than a quorum confirm within the
    /// [`member_timeout`](crate::RedLock::member_timeout), returns a server's error (see
    /// [`LockGuard::extend`](crate::LockGuard::extend)) or [`Error::NoAnswer`]; [`valid_until`](RedHold::valid_until)
    /// still returns what a quorum has confirmed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop it: each server that was asked may or may not extend its lease.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn run(lock: redisson_lock::RedLock) -> Result<(), redisson_lock::Error> {
    /// let guard = lock.lease(Duration::from_secs(10)).lock().await?;
    /// guard.extend(Duration::from_secs(60)).await?;
    /// # guard.unlock().await }
    /// ```
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.not_lost()?;
        let quorum_hold = &self.hold.quorum_hold;
        let limit = self.limit();
        let extending = quorum_hold.handles().into_iter().map(|handle| {
            let entry = Arc::clone(&handle.entry);
            let (quorum_hold, (report, reported)) = (Arc::clone(quorum_hold), oneshot::channel());
            let runtime = handle.entry.shared().runtime.clone();
            // A task of its client: what comes after the answers of a quorum counts too.
            runtime.spawn(async move {
                let extended = extend_hold(&handle, lease).await;
                if extended.is_ok() {
                    quorum_hold.extended();
                }
                let _ = report.send(extended);
            });
            async move {
                let extended = async { reported.await.unwrap_or(Err(Error::NoRuntime)) };
                in_time(limit, &entry, Operation::Extending, extended).await
            }
        });
        self.confirmed(extending, Operation::Extending).await
    }

    /// Waits until a quorum has confirmed what it was asked for.
    async fn confirmed(
        &self,
        calls: impl ExactSizeIterator<Item = impl Future<Output = Result<(), Error>>>,
        doing: Operation,
    ) -> Result<(), Error> {
        let confirmed = first(calls, quorum(self.hold.quorum_hold.servers));
        let none = || too_few(doing, self.home.name());
        let confirmed = async { confirmed.await.map_err(|error| error.unwrap_or_else(none)) };
        self.home.on_runtime(confirmed).await
    }

    /// Until when the servers have time to answer what they are asked for now.
    fn limit(&self) -> tokio::time::Instant {
        tokio::time::Instant::now() + self.member_timeout
    }
}

/// The answer of one server; an error says which.
async fn in_time(
    limit: tokio::time::Instant,
    entry: &Entry,
    doing: Operation,
    call: impl Future<Output = Result<(), Error>>,
) -> Result<(), Error> {
    let none = |_| Err(entry.route().no_answer(doing, NOT_IN_TIME));
    let answer = tokio::time::timeout_at(limit, call).await;
    answer
        .unwrap_or_else(none)
        .map_err(|error| error.about(entry.name.given()))
}

impl Held for RedGuard {
    type Hold = RedHold;
    type Loss = LossReason;
    #[cfg(feature = "blocking")]
    type Known = RedHold;

    fn lock_name(&self) -> &str {
        self.home.name()
    }

    fn hold_state(&self) -> HoldState {
        self.state()
    }

    fn hold(&self) -> RedHold {
        self.hold.clone()
    }

    #[cfg(feature = "blocking")]
    fn known(&self) -> &RedHold {
        &self.hold
    }

    fn not_lost(&self) -> Result<(), Error> {
        match self.hold.state() {
            HoldState::Lost(reason) => Err(self.lost_by(reason)),
            _ => Ok(()),
        }
    }

    fn until_lost(&self) -> impl Future<Output = LossReason> + Send + use<> {
        self.lost()
    }

    fn reason(loss: LossReason) -> LossReason {
        loss
    }

    fn lost_by(&self, reason: LossReason) -> Error {
        Error::lost(self.home.name(), self.home.kind(), reason)
    }

    async fn at_risk(&self) {
        let look = || {
            // Those of members that are at risk already have passed.
            let soon = tokio::time::Instant::now() + LOOK_AGAIN;
            let overdue = self.hold.overdue_at();
            (self.hold.state(), overdue.map(|at| at.max(soon)))
        };
        let watching = until_at_risk(self.lost(), look);
        // When the client's runtime has ended, nothing renews the hold either.
        let _ = self.home.on_runtime(watching).await;
    }

    fn release(self) -> impl Future<Output = Result<(), Error>> + Send {
        self.unlock()
    }

    #[cfg(feature = "blocking")]
    fn extended(&self, lease: Duration) -> impl Future<Output = Result<(), Error>> + Send {
        self.extend(lease)
    }
}

/// How often a hold is looked at whose renewals are overdue at a minority of its servers.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

impl Drop for RedGuard {
    fn drop(&mut self) {
        // After an unlock there is nothing left of it. The guards are dropped here: their clients release them.
        drop(self.hold.quorum_hold.end(RedEnding::Released));
        self.hold.quorum_hold.leave_turn();
    }
}

impl Deref for RedGuard {
    type Target = RedHold;

    fn deref(&self) -> &RedHold {
        &self.hold
    }
}

impl fmt::Debug for RedGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedGuard")
            .field("hold", &self.hold)
            .finish()
    }
}

/// Waits until `needed` of them have succeeded. Otherwise all have ended, and this is why: a loss if the others are too few,
/// or what the servers that have not answered met.
///
/// Cancel safety: those that are left are dropped with the future.
async fn first(
    calls: impl ExactSizeIterator<Item = impl Future<Output = Result<(), Error>>>,
    needed: usize,
) -> Result<(), Option<Error>> {
    let asked = calls.len();
    let mut calls: FuturesUnordered<_> = calls.collect();
    let (mut done, mut lost, mut failed) = (0, Vec::new(), Vec::new());
    while let Some(outcome) = calls.next().await {
        match outcome {
            Ok(()) => done += 1,
            Err(error @ Error::Lost { .. }) => lost.push(error),
            Err(error) => failed.push(error),
        }
        if done == needed {
            return Ok(());
        }
    }
    let answered = done + lost.len();
    let is_lost = asked - lost.len() < needed;
    let quorum = Quorum {
        answered,
        asked,
        needed,
    };
    let (mut lost, mut failed) = (lost.into_iter(), failed.into_iter());
    let first = failed.next();
    let failed = first.map(|error| error.of_quorum(quorum, failed));
    Err(match is_lost {
        true => lost.next().or(failed),
        false => failed,
    })
}

/// A hold of a [`RedLock`](crate::RedLock), from local information: the argument of a
/// [`RedLock::run`](crate::RedLock::run) body, and the `Deref` target of a [`RedGuard`]. It cannot release the lock.
///
/// # Examples
///
/// ```no_run
/// # fn run(guard: redisson_lock::RedGuard) {
/// println!("{:?} until {:?} at {} servers", guard.state(), guard.valid_until(), guard.servers());
/// # }
/// ```
#[derive(Clone)]
pub struct RedHold {
    quorum_hold: Arc<QuorumHold>,
}

impl RedHold {
    /// Returns the current state: *held* while a quorum of the servers certainly has it, *lost* when fewer than a
    /// quorum have it. A loss is final, whatever responses follow.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(guard: redisson_lock::RedGuard) {
    /// assert_eq!(guard.state(), redisson_lock::HoldState::Held);
    /// # }
    /// ```
    pub fn state(&self) -> HoldState {
        self.quorum_hold.state()
    }

    /// Returns whether the quorum was lost.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(guard: redisson_lock::RedGuard) { assert!(!guard.is_lost()) }
    /// ```
    pub fn is_lost(&self) -> bool {
        matches!(self.state(), HoldState::Lost(_))
    }

    /// Returns the instant up to which a quorum is guaranteed without another renewal: if three servers are a quorum,
    /// the third longest of what the servers have promised. After the end it no longer changes, and has passed.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(guard: redisson_lock::RedGuard) {
    /// let left = guard.valid_until().saturating_duration_since(std::time::Instant::now());
    /// # }
    /// ```
    pub fn valid_until(&self) -> Instant {
        self.quorum_hold.valid_until()
    }

    /// Returns how many servers have it, as far as this process knows. A server that does not answer counts until its
    /// lease is over.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(guard: redisson_lock::RedGuard) { println!("{} servers", guard.servers()) }
    /// ```
    pub fn servers(&self) -> usize {
        self.quorum_hold.held()
    }

    /// Resolves with a member's reason when the quorum is lost, and never after a normal unlock.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(guard: redisson_lock::RedGuard) {
    /// let lost = guard.lost();
    /// tokio::spawn(async move { eprintln!("lost: {}", lost.await) });
    /// # }
    /// ```
    pub fn lost(&self) -> RedLost {
        RedLost {
            lost: Box::pin(self.quorum_hold.lost.clone().cancelled_owned()),
            hold: self.clone(),
        }
    }

    /// When the renewal of the first member is overdue: not before that can the quorum be at risk.
    pub(super) fn overdue_at(&self) -> Option<tokio::time::Instant> {
        let handles = self.quorum_hold.handles();
        handles.iter().filter_map(|hold| hold.overdue_at()).min()
    }
}

impl fmt::Debug for RedHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedHold")
            .field("members", &self.quorum_hold.members())
            .field("servers", &self.servers())
            .finish()
    }
}

/// The future of [`RedHold::lost`].
///
/// # Examples
///
/// ```no_run
/// # async fn run(guard: redisson_lock::RedGuard) {
/// let lost: redisson_lock::RedLost = guard.lost();
/// # }
/// ```
#[must_use = "futures do nothing unless polled"]
pub struct RedLost {
    hold: RedHold,
    lost: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Future for RedLost {
    type Output = LossReason;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<LossReason> {
        match self.lost.as_mut().poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => match self.hold.quorum_hold.ending() {
                Some(RedEnding::Lost(reason)) => Poll::Ready(reason),
                Some(RedEnding::Released) | None => Poll::Pending,
            },
        }
    }
}

impl fmt::Debug for RedLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedLost").field("hold", &self.hold).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use test_support::tokio;

    use super::*;
    use crate::kind::LockKind;

    /// What the others of a quorum answered counts in every order: two of three that had lost the lock are a loss, whatever
    /// the third says.
    #[tokio::test]
    async fn a_loss_is_reported_if_the_servers_without_one_are_no_quorum() {
        const LOST: fn() -> Error = || Error::lost("red", LockKind::Plain, LossReason::Gone);
        const FAILED: fn() -> Error = || Error::Closed;
        let orders = [
            [0, 1, 2],
            [0, 2, 1],
            [1, 0, 2],
            [1, 2, 0],
            [2, 0, 1],
            [2, 1, 0],
        ];
        for order in orders {
            let outcome = async |outcomes: [Option<fn() -> Error>; 3]| {
                let calls =
                    order.map(|nth| ready(outcomes[nth].map_or(Ok(()), |error| Err(error()))));
                first(calls.into_iter(), 2).await
            };
            let is_lost = |outcome| matches!(outcome, Err(Some(Error::Lost { .. })));
            assert!(is_lost(
                outcome([Some(FAILED), Some(LOST), Some(LOST)]).await
            ));
            assert!(is_lost(outcome([None, Some(LOST), Some(LOST)]).await));
            let failed = outcome([Some(FAILED), Some(FAILED), Some(LOST)]).await;
            assert!(matches!(failed, Err(Some(Error::Closed))), "{failed:?}");
            let failed = outcome([None, Some(FAILED), Some(LOST)]).await;
            assert!(matches!(failed, Err(Some(Error::Closed))), "{failed:?}");
            assert!(outcome([None, None, Some(LOST)]).await.is_ok());
        }
    }
}

//! Several holds as their owner sees them: their common state, loss and release.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::future::{join_all, select_all};
use redisson_lock_core::LossReason;

use crate::error::Error;
use crate::kind::LockKind;
use crate::lock::hold_handle::{HoldHandle, HoldState, Lost};
use crate::lock::verbs::Held;
use crate::lock::{LockGuard, at_risk};

/// Several locks that are held together. Release them with [`unlock`](Self::unlock), or drop the guard to release them
/// in the background.
///
/// Each lock is released as its own guard would release it: see [`LockGuard`]. If one of them is lost, the others are
/// held and renewed until the guard is unlocked or dropped.
///
/// # Examples
///
/// ```no_run
/// # async fn step() {}
/// # async fn run(both: redisson_lock::MultiLock) -> Result<(), redisson_lock::Error> {
/// let guard = both.lock().await?;
/// tokio::select! {
///     () = step() => guard.unlock().await?,
///     loss = guard.lost() => eprintln!("stopped: {loss}"),
/// }
/// # Ok(()) }
/// ```
#[must_use = "dropping a guard releases the locks immediately"]
pub struct MultiGuard {
    hold: MultiHold,
    guards: Vec<LockGuard>,
    name: Arc<str>,
}

impl MultiGuard {
    pub(super) fn new(guards: Vec<LockGuard>, name: Arc<str>) -> Self {
        let members = guards.iter().map(|guard| guard.handle()).collect();
        let hold = MultiHold {
            members,
            loss: Arc::default(),
        };
        Self { hold, guards, name }
    }

    /// Releases all of them concurrently, and reports whether all were held until now.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Lost`] with the name of the lock that was lost first; otherwise the first
    /// [unlock](LockGuard::unlock) error, which names its lock. The others are still released.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases all of them in the background, each exactly once.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(both: redisson_lock::MultiLock) -> Result<(), redisson_lock::Error> {
    /// both.lock().await?.unlock().await
    /// # }
    /// ```
    pub async fn unlock(self) -> Result<(), Error> {
        let Self { hold, guards, .. } = self;
        let first = hold.loss();
        let unlocks = guards.into_iter().map(|guard| async {
            let name = Arc::clone(&guard.entry.name);
            guard
                .unlock()
                .await
                .map_err(|error| error.about(name.given()))
        });
        let failed = join_all(unlocks).await.into_iter().filter_map(Result::err);
        let mut failed: Vec<Error> = failed.collect();
        if let Some(loss) = first {
            return Err(loss.error());
        }
        let is_lost = |error: &Error| matches!(error, Error::Lost { .. });
        let worst = failed.iter().position(is_lost).unwrap_or(0);
        match failed.is_empty() {
            true => Ok(()),
            false => Err(failed.swap_remove(worst)),
        }
    }

    /// Extends each fixed lease to at least `lease` from now; never shortens one.
    ///
    /// # Errors
    ///
    /// See [`LockGuard::extend`]. Returns the error of the first lock that fails; the leases of others may have been
    /// extended.
    ///
    /// # Cancel safety
    ///
    /// See [`LockGuard::extend`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn run(both: redisson_lock::MultiLock) -> Result<(), redisson_lock::Error> {
    /// let guard = both.lease(Duration::from_secs(10)).lock().await?;
    /// guard.extend(Duration::from_secs(60)).await?;
    /// # guard.unlock().await }
    /// ```
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        let extending = self.guards.iter().map(|guard| async move {
            let extended = guard.extend(lease).await;
            extended.map_err(|error| error.about(guard.entry.name.given()))
        });
        join_all(extending).await.into_iter().collect()
    }
}

impl Held for MultiGuard {
    type Hold = MultiHold;
    type Loss = MemberLoss;
    #[cfg(feature = "blocking")]
    type Known = MultiHold;

    fn lock_name(&self) -> &str {
        &self.name
    }

    fn hold_state(&self) -> HoldState {
        self.state()
    }

    fn hold(&self) -> MultiHold {
        self.hold.clone()
    }

    #[cfg(feature = "blocking")]
    fn known(&self) -> &MultiHold {
        &self.hold
    }

    fn not_lost(&self) -> Result<(), Error> {
        self.loss().map_or(Ok(()), |loss| Err(loss.error()))
    }

    fn until_lost(&self) -> impl Future<Output = MemberLoss> + Send + use<> {
        self.lost()
    }

    fn reason(loss: MemberLoss) -> LossReason {
        loss.reason
    }

    fn lost_by(&self, loss: MemberLoss) -> Error {
        loss.error()
    }

    async fn at_risk(&self) {
        let members = self.members().iter();
        select_all(members.map(|hold| Box::pin(at_risk(hold)))).await;
    }

    fn release(self) -> impl Future<Output = Result<(), Error>> + Send {
        self.unlock()
    }

    #[cfg(feature = "blocking")]
    fn extended(&self, lease: Duration) -> impl Future<Output = Result<(), Error>> + Send {
        self.extend(lease)
    }
}

impl Deref for MultiGuard {
    type Target = MultiHold;

    fn deref(&self) -> &MultiHold {
        &self.hold
    }
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiGuard")
            .field("members", &self.hold.members)
            .finish()
    }
}

/// Several holds, from local information: the argument of a [`MultiLock::run`](crate::MultiLock::run) body, and the
/// `Deref` target of a [`MultiGuard`]. It cannot release them.
///
/// # Examples
///
/// ```no_run
/// # fn run(guard: redisson_lock::MultiGuard) {
/// println!("{:?} until {:?}", guard.state(), guard.valid_until());
/// # }
/// ```
#[derive(Clone)]
pub struct MultiHold {
    members: Arc<[HoldHandle]>,
    /// The first that was seen.
    loss: Arc<OnceLock<MemberLoss>>,
}

impl MultiHold {
    /// Returns the holds of the single locks, in the order given to [`MultiLock::new`](crate::MultiLock::new).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(guard: redisson_lock::MultiGuard) {
    /// for hold in guard.members() {
    ///     println!("{}: {:?}", hold.name(), hold.state());
    /// }
    /// # }
    /// ```
    pub fn members(&self) -> &[HoldHandle] {
        &self.members
    }

    /// Returns the current state of all of them: *lost* if one is lost, *at risk* if one is.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(guard: redisson_lock::MultiGuard) {
    /// assert_eq!(guard.state(), redisson_lock::HoldState::Held);
    /// # }
    /// ```
    pub fn state(&self) -> HoldState {
        if let Some(loss) = self.loss() {
            return HoldState::Lost(loss.reason);
        }
        let states = self.members.iter().map(|hold| hold.state());
        let worst = |state: &HoldState| match state {
            HoldState::Held => 0,
            HoldState::AtRisk => 1,
            HoldState::Released => 2,
            HoldState::Lost(_) => 3,
        };
        states.max_by_key(worst).unwrap_or(HoldState::Released)
    }

    /// Returns whether one of them was lost.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(guard: redisson_lock::MultiGuard) { assert!(!guard.is_lost()) }
    /// ```
    pub fn is_lost(&self) -> bool {
        self.loss().is_some()
    }

    /// Returns the first loss that was seen, or `None` if none is lost.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(guard: redisson_lock::MultiGuard) {
    /// if let Some(loss) = guard.loss() {
    ///     eprintln!("{} is gone: {}", loss.lock, loss.reason);
    /// }
    /// # }
    /// ```
    pub fn loss(&self) -> Option<MemberLoss> {
        let known = self.loss.get().cloned();
        known.or_else(|| {
            let losses = self.members.iter().filter_map(|hold| {
                let (reason, at) = hold.loss()?;
                Some((at, hold, reason))
            });
            let (_, hold, reason) = losses.min_by_key(|(at, ..)| *at)?;
            Some(self.note(hold, reason))
        })
    }

    /// Returns the instant up to which all of them are guaranteed without another renewal: the earliest of theirs.
    /// After the end it no longer changes, and has passed.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(guard: redisson_lock::MultiGuard) {
    /// let left = guard.valid_until().saturating_duration_since(std::time::Instant::now());
    /// # }
    /// ```
    pub fn valid_until(&self) -> Instant {
        let others = self.members[1..].iter().map(|hold| hold.valid_until());
        others.fold(self.members[0].valid_until(), Instant::min)
    }

    /// Resolves with the lock's name when one of them is lost, and never after a normal unlock. The future borrows
    /// nothing.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(guard: redisson_lock::MultiGuard) {
    /// let lost = guard.lost();
    /// tokio::spawn(async move { eprintln!("lost: {}", lost.await) });
    /// # }
    /// ```
    pub fn lost(&self) -> MultiLost {
        MultiLost {
            losses: self.members.iter().map(|hold| hold.lost()).collect(),
            hold: self.clone(),
        }
    }

    /// The first loss is the loss, whatever is lost after it.
    fn note(&self, hold: &HoldHandle, reason: LossReason) -> MemberLoss {
        let loss = || MemberLoss {
            lock: hold.name().to_owned(),
            kind: hold.kind(),
            reason,
        };
        self.loss.get_or_init(loss).clone()
    }
}

impl fmt::Debug for MultiHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiHold")
            .field("members", &self.members)
            .finish()
    }
}

/// The loss of one of several locks.
///
/// # Examples
///
/// ```no_run
/// # async fn run(guard: redisson_lock::MultiGuard) {
/// let loss: redisson_lock::MemberLoss = guard.lost().await;
/// eprintln!("{} was lost: {}", loss.lock, loss.reason);
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberLoss {
    /// The name of the lock, without the key prefix.
    pub lock: String,
    /// The kind of the lock; for a read-write lock, the part whose hold was lost.
    pub kind: LockKind,
    /// The reason why its hold ended.
    pub reason: LossReason,
}

impl MemberLoss {
    pub(super) fn error(&self) -> Error {
        Error::lost(&self.lock, self.kind, self.reason)
    }
}

impl fmt::Display for MemberLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}lock `{}`: {}",
            self.kind.part(),
            self.lock,
            self.reason
        )
    }
}

/// The future of [`MultiHold::lost`].
///
/// # Examples
///
/// ```no_run
/// # async fn run(guard: redisson_lock::MultiGuard) {
/// let lost: redisson_lock::MultiLost = guard.lost();
/// # }
/// ```
#[must_use = "futures do nothing unless polled"]
pub struct MultiLost {
    hold: MultiHold,
    losses: Vec<Lost>,
}

impl Future for MultiLost {
    type Output = MemberLoss;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<MemberLoss> {
        let Self { hold, losses } = &mut *self;
        let mut is_lost = false;
        for lost in losses {
            is_lost |= Pin::new(lost).poll(context).is_ready();
        }
        // The one that was lost first, if several are.
        match hold.loss().filter(|_| is_lost) {
            Some(loss) => Poll::Ready(loss),
            None => Poll::Pending,
        }
    }
}

impl fmt::Debug for MultiLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiLost")
            .field("hold", &self.hold)
            .finish()
    }
}

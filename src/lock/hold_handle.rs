//! An owner's view of its hold: its state, how long it is guaranteed, and when it ends.
//!
//! Local information only; nothing here asks Redis.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use redisson_lock_core::{Ending, Face, HoldId, HoldSnapshot, LossReason, OwnerKey, Time, Token};
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::error::Error;
use crate::kind::{Fenced, LockKind, Unfenced};
use crate::names::owner::Owner;
use crate::state::entry::Entry;
use crate::state::hold_status::HoldStatus;

/// A hold, from local information: nothing here asks Redis. Guards and handles dereference to it.
///
/// # Examples
///
/// ```no_run
/// # fn run(guard: redisson_lock::LockGuard) {
/// println!("{} is held by {}: {:?}", guard.name(), guard.owner(), guard.state());
/// # }
/// ```
pub struct Hold {
    pub(crate) entry: Arc<Entry>,
    pub(crate) owner: Owner,
    pub(crate) face: Face,
    pub(crate) id: HoldId,
    pub(crate) status: Arc<HoldStatus>,
}

impl Hold {
    /// Returns the name of the lock, without the key prefix.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(hold: redisson_lock::Hold) { println!("{}", hold.name()) }
    /// ```
    pub fn name(&self) -> &str {
        self.entry.name.given()
    }

    /// Returns the owner of the hold.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(hold: redisson_lock::Hold) { println!("{}", hold.owner()) }
    /// ```
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    pub(crate) fn kind(&self) -> LockKind {
        self.entry.name_of(self.key()).kind()
    }

    /// As its lock knows its owner.
    pub(crate) fn key(&self) -> OwnerKey {
        self.owner.key(self.face)
    }

    /// Returns the current state of the hold.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(hold: redisson_lock::Hold) {
    /// assert_eq!(hold.state(), redisson_lock::HoldState::Held);
    /// # }
    /// ```
    pub fn state(&self) -> HoldState {
        // Compared with the clock, which no step may have looked at for long: a process that stood still must not
        // read "Held". Nothing is changed by that.
        let (snapshot, now) = self.snapshot();
        match snapshot {
            Some(HoldSnapshot {
                over: Some(reason), ..
            }) => HoldState::Lost(reason),
            Some(found) if found.at_risk_from.is_some_and(|from| from <= now) => HoldState::AtRisk,
            Some(_) => HoldState::Held,
            None => match self.status.ending() {
                Some(Ending::Lost(reason)) => HoldState::Lost(reason),
                Some(Ending::Released) | None => HoldState::Released,
            },
        }
    }

    /// Returns whether the hold was lost.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(hold: redisson_lock::Hold) { assert!(!hold.is_lost()) }
    /// ```
    pub fn is_lost(&self) -> bool {
        matches!(self.state(), HoldState::Lost(_))
    }

    /// The error for the loss of this hold.
    pub(crate) fn lost_by(&self, reason: LossReason) -> Error {
        self.entry.lost(self.key(), reason)
    }

    /// An error if it was lost.
    pub(crate) fn not_lost(&self) -> Result<(), Error> {
        match self.state() {
            HoldState::Lost(reason) => Err(self.lost_by(reason)),
            _ => Ok(()),
        }
    }

    /// Returns the instant up to which the hold is guaranteed without another renewal; always before the server-side
    /// expiry. It moves with each renewal that Redis confirms, and for a hold taken with
    /// [`sync_replicas`](crate::Lock::sync_replicas) only when that many replicas have confirmed it. For a read hold it
    /// is at most one watchdog timeout ahead (see [`RwLock`](crate::RwLock)). After the end it no longer changes: it
    /// stays at its last value, or at the instant when the hold was released or lost, if that was earlier.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(hold: redisson_lock::Hold) {
    /// let left = hold.valid_until().saturating_duration_since(std::time::Instant::now());
    /// # }
    /// ```
    pub fn valid_until(&self) -> Instant {
        let (snapshot, _) = self.snapshot();
        let until = snapshot.map_or_else(|| self.status.valid_until(), |found| found.valid_until());
        self.entry.shared().clock.instant(until).into_std()
    }

    /// Why it is lost, with what sorts losses by time: those that no step has seen yet come last.
    pub(crate) fn loss(&self) -> Option<(LossReason, (Option<Instant>, u32))> {
        match self.snapshot().0 {
            Some(found) => found
                .over
                .map(|reason| (reason, (Some(self.valid_until()), 0))),
            None => self
                .status
                .loss()
                .map(|(reason, nth)| (reason, (None, nth))),
        }
    }

    /// When it is over whatever its server says.
    pub(crate) fn ends(&self) -> Option<tokio::time::Instant> {
        let ends = self.snapshot().0?.ends?;
        Some(self.entry.shared().clock.instant(ends))
    }

    /// From when on its renewal is overdue. `None`: nothing renews it.
    pub(crate) fn overdue_at(&self) -> Option<tokio::time::Instant> {
        let at = self.snapshot().0?.at_risk_from?;
        Some(self.entry.shared().clock.instant(at))
    }

    fn snapshot(&self) -> (Option<HoldSnapshot>, Time) {
        self.entry
            .read(|core, now| (core.snapshot(now, self.key(), self.id), now))
    }

    /// Of a hold of a fenced lock: others have none.
    pub(crate) fn token(&self) -> u64 {
        self.status.token().map_or(0, Token::number)
    }

    pub(crate) fn again(&self) -> Self {
        Self {
            entry: Arc::clone(&self.entry),
            owner: self.owner.clone(),
            face: self.face,
            id: self.id,
            status: Arc::clone(&self.status),
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("lock", &self.entry.name.given())
            .field("owner", &self.owner)
            .field("state", &self.state())
            .finish()
    }
}

/// A [`Hold`] that can be awaited: the argument of a [`Lock::run`](crate::Lock::run) body, and the `Deref` target of a
/// [`LockGuard`](crate::LockGuard). It cannot release the hold.
///
/// # Examples
///
/// ```no_run
/// # async fn run(lock: redisson_lock::Lock) -> Result<(), redisson_lock::Error> {
/// lock.run(|held| async move {
///     println!("valid until {:?}", held.valid_until());
///     Ok(())
/// }).await
/// # }
/// ```
pub struct HoldHandle<K = Unfenced> {
    pub(crate) hold: Hold,
    marker: PhantomData<fn() -> K>,
}

impl HoldHandle<Fenced> {
    /// Returns the token of the hold: larger than those of all earlier holders, in Rust or Java, and the same for all
    /// holds of this owner. See [`FencedLock`](crate::FencedLock) for how a resource uses it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(guard: redisson_lock::FencedGuard) { println!("{}", guard.token()) }
    /// ```
    pub fn token(&self) -> u64 {
        self.hold.token()
    }
}

impl<K> HoldHandle<K> {
    pub(crate) fn of(hold: Hold) -> Self {
        Self {
            hold,
            marker: PhantomData,
        }
    }

    /// Returns another handle of the same hold, which can be moved to another task.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(guard: redisson_lock::LockGuard) {
    /// let held = guard.handle();
    /// tokio::spawn(async move { println!("{:?}", held.state()) });
    /// # }
    /// ```
    #[must_use]
    pub fn handle(&self) -> Self {
        Self::of(self.hold.again())
    }

    /// Resolves with the reason when the hold is lost, and never after a normal unlock.
    ///
    /// The loss is reported no later than [`valid_until`](Hold::valid_until), which precedes the server-side expiry.
    /// The future does not borrow the handle.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(guard: redisson_lock::LockGuard) {
    /// let lost = guard.lost();
    /// tokio::spawn(async move { eprintln!("lost: {}", lost.await) });
    /// # }
    /// ```
    pub fn lost(&self) -> Lost {
        Lost {
            ending: Watch::new(&self.hold.status),
        }
    }

    /// Resolves when the hold has ended: `Some` with the reason if it was lost, `None` if it was
    /// released.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(guard: redisson_lock::LockGuard) {
    /// let ended = guard.ended();
    /// tokio::spawn(async move {
    ///     if let Some(reason) = ended.await {
    ///         eprintln!("lost: {reason}");
    ///     }
    /// });
    /// # }
    /// ```
    pub fn ended(&self) -> Ended {
        Ended {
            ending: Watch::new(&self.hold.status),
        }
    }
}

impl<K> Deref for HoldHandle<K> {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.hold
    }
}

impl<K> fmt::Debug for HoldHandle<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hold.fmt(f)
    }
}

/// The state of a hold, from local information.
///
/// # Examples
///
/// ```
/// use redisson_lock::{HoldState, LossReason};
/// assert_ne!(HoldState::Held, HoldState::Lost(LossReason::Gone));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HoldState {
    /// Held, and confirmed recently.
    Held,
    /// Still held, but no renewal was confirmed for two thirds of the watchdog timeout: stop side
    /// effects.
    AtRisk,
    /// No longer held.
    Lost(LossReason),
    /// Released.
    Released,
}

/// The future of [`HoldHandle::lost`](HoldHandle::lost).
///
/// # Examples
///
/// ```no_run
/// # async fn run(guard: redisson_lock::LockGuard) {
/// let lost: redisson_lock::Lost = guard.lost();
/// # }
/// ```
#[must_use = "a future does nothing unless it is awaited"]
#[derive(Debug)]
pub struct Lost {
    ending: Watch,
}

impl Future for Lost {
    type Output = LossReason;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<LossReason> {
        match self.ending.poll_ended(context) {
            Poll::Ready(Ending::Lost(reason)) => Poll::Ready(reason),
            // Released: nothing is left to lose.
            Poll::Ready(Ending::Released) | Poll::Pending => Poll::Pending,
        }
    }
}

/// The future of [`HoldHandle::ended`](HoldHandle::ended).
///
/// # Examples
///
/// ```no_run
/// # async fn run(guard: redisson_lock::LockGuard) {
/// let ended: redisson_lock::Ended = guard.ended();
/// # }
/// ```
#[must_use = "a future does nothing unless it is awaited"]
#[derive(Debug)]
pub struct Ended {
    ending: Watch,
}

impl Future for Ended {
    type Output = Option<LossReason>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<LossReason>> {
        self.ending.poll_ended(context).map(|ending| match ending {
            Ending::Lost(reason) => Some(reason),
            Ending::Released => None,
        })
    }
}

struct Watch {
    status: Arc<HoldStatus>,
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.status.ending().fmt(f)
    }
}

impl Watch {
    fn new(status: &Arc<HoldStatus>) -> Self {
        Self {
            status: Arc::clone(status),
            ended: Box::pin(status.ended().cancelled_owned()),
        }
    }

    fn poll_ended(&mut self, context: &mut Context<'_>) -> Poll<Ending> {
        if let Some(ending) = self.status.ending() {
            return Poll::Ready(ending);
        }
        match self.ended.as_mut().poll(context) {
            Poll::Ready(()) => self.status.ending().map_or(Poll::Pending, Poll::Ready),
            Poll::Pending => Poll::Pending,
        }
    }
}

//! A hold in the hands of its owner: giving it back, extending it, letting go of it.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::client::ClientHandle;
use crate::entry::{Begun, EntryRef, Release};
use crate::error::{Error, LossReason};
use crate::hold::{Ending, HoldStatus, LeasePolicy};
use crate::hold_handle::{Ended, HoldHandle, HoldState, Lost};
use crate::lock::check_lease;
use crate::owner::Owner;
use crate::script::{self, Renewal, Renewed};
use crate::slot::local_deadline;

/// One hold of a lock. Give it back with [`unlock`](Self::unlock), or drop it to have that done in
/// the background.
///
/// A guard remembers its owner, so it may be moved to another task and given back there. It
/// protects nothing by itself: a holder that must not act after the lock was lost watches
/// [`lost`](Self::lost), or asks [`state`](Self::state) before each step.
///
/// # Dropping
///
/// The hold counts as given back from the moment of the drop. A release is sent in the background
/// and repeated until Redis confirms it, at most until the lease is over. If the runtime ends
/// first, the lease frees the lock; [`LockClient::close`](crate::LockClient::close) waits for such
/// releases. Dropping never blocks and never panics. A guard that is forgotten (`mem::forget`)
/// keeps its lock for as long as the client lives.
///
/// # Examples
///
/// ```no_run
/// # async fn step() {}
/// # async fn run(lock: redisson_lock::Lock) -> Result<(), redisson_lock::Error> {
/// let guard = lock.lock().await?;
/// tokio::select! {
///     () = step() => guard.unlock().await?,
///     reason = guard.lost() => eprintln!("stopped: {reason}"),
/// }
/// # Ok(()) }
/// ```
#[must_use = "a dropped guard gives the lock back at once"]
pub struct LockGuard {
    held: HoldHandle,
    /// Keeps the client running.
    client: Arc<ClientHandle>,
    open: bool,
}

impl LockGuard {
    pub(crate) fn new(
        client: Arc<ClientHandle>,
        entry: EntryRef,
        owner: Owner,
        status: Arc<HoldStatus>,
    ) -> Self {
        Self {
            held: HoldHandle {
                entry: Arc::new(entry),
                owner,
                status,
            },
            client,
            open: true,
        }
    }

    /// Gives this hold back, and says whether it was there until now.
    ///
    /// The guard is used up in every case: a hold whose release has no answer is not renewed any
    /// more, and its release goes on in the background.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the hold had ended before; [`Error::NoAnswer`], [`Error::Refused`] and
    /// [`Error::PermissionDenied`] if Redis did not confirm the release: the lock is then free at
    /// the latest when its lease ends; [`Error::Closed`], [`Error::NoRuntime`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the hold back in the background, exactly once. A future that was
    /// begun and is kept without being polled is taken over by the background after the command
    /// timeout, and then ends with [`Error::NoAnswer`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(lock: redisson_lock::Lock) -> Result<(), redisson_lock::Error> {
    /// let guard = lock.lock().await?;
    /// guard.unlock().await
    /// # }
    /// ```
    pub async fn unlock(mut self) -> Result<(), Error> {
        let entry = Arc::clone(&self.held.entry);
        let (owner, status) = (self.held.owner.thread_id(), Arc::clone(&self.held.status));
        let open = &mut self.open;
        entry
            .shared
            .on_client_runtime(pin!(give_back(&entry, owner, &status, || *open = false)))
            .await
    }

    /// Ready when the hold is lost, with the reason; never after a normal unlock.
    ///
    /// The loss is told at the latest at [`valid_until`](Self::valid_until), which lies before the
    /// server's own expiry. The future does not borrow the guard.
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
        self.held.lost()
    }

    /// Ready when the hold has ended: `Some` with the reason if it was lost, `None` if it was given
    /// back.
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
        self.held.ended()
    }

    /// How it stands with the hold, by local knowledge: nothing is asked over the network.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(guard: redisson_lock::LockGuard) {
    /// assert_eq!(guard.state(), redisson_lock::HoldState::Held);
    /// # }
    /// ```
    pub fn state(&self) -> HoldState {
        self.held.state()
    }

    /// Until when the hold is certain unless it is renewed: always before the server's own expiry.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(guard: redisson_lock::LockGuard) {
    /// let left = guard.valid_until().saturating_duration_since(std::time::Instant::now());
    /// # }
    /// ```
    pub fn valid_until(&self) -> Instant {
        self.held.valid_until()
    }

    /// Who holds: the owner that took this hold.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(guard: redisson_lock::LockGuard) {
    /// println!("held by {}", guard.owner());
    /// # }
    /// ```
    pub fn owner(&self) -> &Owner {
        &self.held.owner
    }

    /// Moves the end of a fixed lease: at least `lease` from now, never less than before.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the hold has ended; [`Error::InvalidConfig`] if the watchdog keeps it;
    /// [`Error::InvalidDuration`] if `lease` is out of bounds (10 ms to ten years) or reaches past
    /// the hold's [`max_hold`](crate::Lock::max_hold); [`Error::NoAnswer`] and the server's
    /// refusals: the lease then ends where it did before, or later.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave the longer lease at the server; the guard goes by the shorter
    /// one.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn run(lock: redisson_lock::Lock) -> Result<(), redisson_lock::Error> {
    /// let guard = lock.lease(Duration::from_secs(10)).lock().await?;
    /// guard.extend(Duration::from_secs(60)).await?;
    /// # guard.unlock().await }
    /// ```
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        let HoldHandle {
            entry,
            owner,
            status,
        } = &self.held;
        check_lease("lease", lease)?;
        entry
            .shared
            .on_client_runtime(pin!(extend(entry, owner.thread_id(), status, lease)))
            .await
    }

    /// Lets go of the guard and keeps the hold: unless it has a fixed lease it is renewed until
    /// [`Lock::unlock`](crate::Lock::unlock) by the same owner gives it back, or
    /// [`LockClient::close`](crate::LockClient::close), or the drop of the client's last handle.
    ///
    /// If such a hold is lost, that unlock says so; until then its owner cannot take the lock anew.
    /// With a fixed lease or a `max_hold` it need not be given back: when it has ended it is
    /// forgotten, an unlock finds nothing ([`Error::NotHeld`]), and a lease that has run out counts
    /// as no loss. So `lease(d)`, `try_lock` and `detach` together do something at most once in
    /// `d`, for as long as the client lives.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(lock: redisson_lock::Lock) -> Result<(), redisson_lock::Error> {
    /// lock.lock().await?.detach();
    /// lock.unlock().await
    /// # }
    /// ```
    pub fn detach(mut self) {
        self.open = false;
        self.held
            .entry
            .detach(self.held.owner.thread_id(), &self.held.status);
    }

    pub(crate) fn held(&self) -> HoldHandle {
        self.held.clone()
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if std::mem::take(&mut self.open) {
            self.held
                .entry
                .drop_hold(self.held.owner.thread_id(), &self.held.status);
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("lock", &self.held.entry.name.given())
            .field("owner", &self.held.owner)
            .field("state", &self.state())
            .field("client", &self.client.shared.client_id)
            .finish()
    }
}

/// Gives a hold back: shared by guards and by [`Lock::unlock`](crate::Lock::unlock).
///
/// `begun` is called when the hold is out of the books and dropping its guard must do nothing more.
pub(crate) async fn give_back(
    entry: &EntryRef,
    owner: i64,
    status: &Arc<HoldStatus>,
    begun: impl FnOnce(),
) -> Result<(), Error> {
    let lost = |reason| Error::lost(entry.name.given(), reason);
    let start = tokio::time::Instant::now();
    let release = loop {
        if entry.shared.is_closed() && status.ending().is_none() {
            return Err(Error::Closed);
        }
        match entry.begin_release(owner, status) {
            Ok(Begun::Release(release)) => break release,
            Ok(Begun::NotHeld) => return Err(not_held(entry, owner)),
            // A nested acquire is under way. Its caller may have stopped polling it, so it is not
            // waited for longer than for a command: the guard is then dropped, and the background
            // goes on when that call ends.
            Ok(Begun::Wait { place, since }) => {
                let patience = since.max(start) + entry.shared.config.command_timeout;
                if tokio::time::timeout_at(patience, place).await.is_err() {
                    let source = "an acquire of the same owner is still under way; is its future being polled?";
                    return Err(Error::no_answer("unlocking", source));
                }
            }
            Err(reason) => {
                begun();
                return Err(lost(reason));
            }
        }
    };
    begun();
    send_release(release)
        .await
        .map_err(|error| error.unwrap_or_else(lost))
}

pub(crate) fn not_held(entry: &EntryRef, owner: i64) -> Error {
    let client_id = &entry.shared.client_id;
    Error::NotHeld {
        lock: entry.name.given().to_string(),
        owner: format!("{client_id}:{owner}"),
    }
}

/// A refusal of the server, or what ended the hold.
enum ReleaseError {
    Server(Error),
    Lost(LossReason),
}

impl ReleaseError {
    fn unwrap_or_else(self, lost: impl FnOnce(LossReason) -> Error) -> Error {
        match self {
            Self::Server(error) => error,
            Self::Lost(reason) => lost(reason),
        }
    }
}

async fn send_release(release: Release) -> Result<(), ReleaseError> {
    let (entry, owner) = (release.entry.clone(), release.owner);
    let field = Arc::clone(&release.field);
    let sent = AtomicBool::new(false);
    let mut target = 0;
    let patience = entry.shared.patience();
    // Every copy goes to the count of its moment, so that a later release of the same owner is
    // never undone.
    let asking = script::call(
        &entry.shared.redis,
        entry.lane,
        "unlocking",
        patience,
        &sent,
        || {
            let (count, lease) = entry.release_target(owner);
            target = count;
            script::release(&entry.name, &field, count, lease)
        },
    );
    let Some(answer) = release.unless_taken_over(pin!(asking)).await else {
        let source = "its future was not polled for longer than a command may take; the background went on with it";
        return Err(ReleaseError::Server(Error::no_answer("unlocking", source)));
    };
    match answer {
        Ok(answer) => release
            .answered(target, &answer)
            .map_err(ReleaseError::Lost),
        Err(unanswered) => {
            let hopeless = matches!(
                unanswered.error,
                Error::PermissionDenied { .. } | Error::NotALock { .. }
            );
            if hopeless && !unanswered.maybe_executed {
                release.unanswered(false);
            } else {
                release.unanswered(true);
            }
            Err(match unanswered.error {
                // The key holds something else: the hold ended when it was replaced.
                Error::NotALock { .. } => ReleaseError::Lost(LossReason::Changed),
                error => ReleaseError::Server(error),
            })
        }
    }
}

async fn extend(
    entry: &EntryRef,
    owner: i64,
    status: &Arc<HoldStatus>,
    lease: Duration,
) -> Result<(), Error> {
    let lost = |reason| Error::lost(entry.name.given(), reason);
    let ended = || match status.ending() {
        Some(Ending::Lost(reason)) => reason,
        Some(Ending::Released) | None => LossReason::Gone,
    };
    if entry.shared.is_closed() {
        return Err(Error::Closed);
    }
    entry.view(owner, status).ok_or_else(|| lost(ended()))?;
    let (field, mode) = entry.hold(owner, status).ok_or_else(|| lost(ended()))?;
    let LeasePolicy::Fixed { limit, .. } = mode else {
        return Err(Error::InvalidConfig {
            what: "extend",
            problem: "the watchdog keeps this hold; only a hold with a fixed lease is extended"
                .to_owned(),
        });
    };
    if limit.is_some_and(|limit| local_deadline(tokio::time::Instant::now(), lease) > limit) {
        return Err(Error::InvalidDuration {
            what: "lease",
            given: lease,
            problem: "it reaches past the max_hold of this hold",
        });
    }
    let renewal = [Renewal {
        key: Arc::clone(entry.name.key()),
        field,
        lease: Some(lease),
    }];
    let sent = AtomicBool::new(false);
    let patience = entry.shared.patience();
    let answer = script::call(
        &entry.shared.redis,
        entry.lane,
        "extending",
        patience,
        &sent,
        || script::renew(&renewal),
    )
    .await
    .map_err(|unanswered| unanswered.error)?;
    let reason = match answer.value.first() {
        Some(Renewed::Held) => {
            entry.extended(owner, status, answer.sent_at, lease);
            return entry
                .view(owner, status)
                .map(|_| ())
                .ok_or_else(|| lost(ended()));
        }
        Some(Renewed::Taken) => LossReason::Taken,
        Some(Renewed::Changed) => LossReason::Changed,
        Some(Renewed::Gone) | None => LossReason::Gone,
    };
    if status.ending().is_none() {
        entry.lose_owner(owner, None, reason);
    }
    Err(lost(ended()))
}

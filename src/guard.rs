//! A hold as its owner sees it: releasing, extending and detaching it.

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

/// One hold of a lock. Release it with [`unlock`](Self::unlock), or drop it to release it in the
/// background.
///
/// A guard remembers its owner, so it can be moved to another task and released there. It protects
/// nothing by itself: a holder that must not act after the lock is lost watches
/// [`lost`](Self::lost), or checks [`state`](Self::state) before each step.
///
/// # Dropping
///
/// The hold counts as released from the moment of the drop. A release is sent in the background and
/// retried until Redis confirms it, at most until the lease ends. If the runtime ends first, the
/// lease frees the lock; [`LockClient::close`](crate::LockClient::close) waits for such releases.
/// Dropping never blocks and never panics. A forgotten guard (`mem::forget`) keeps its lock for as
/// long as the client lives.
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
#[must_use = "dropping a guard releases the lock at once"]
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

    /// Releases this hold, and reports whether it was held until now.
    ///
    /// The guard is consumed in every case: a hold whose release has no answer is no longer
    /// renewed, and its release continues in the background.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the hold had already ended; [`Error::NoAnswer`], [`Error::Refused`] and
    /// [`Error::PermissionDenied`] if Redis did not confirm the release: the lock is then free no
    /// later than the end of its lease; [`Error::Closed`], [`Error::NoRuntime`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the hold in the background, exactly once. If a started future
    /// is kept without being polled, a background task takes over the release after the command
    /// timeout, and the future then fails with [`Error::NoAnswer`].
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

    /// Resolves when the hold is lost, with the reason; never after a normal unlock.
    ///
    /// The loss is reported by [`valid_until`](Self::valid_until), which precedes the server-side
    /// expiry. The future does not borrow the guard.
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
        self.held.ended()
    }

    /// Current state of the hold, from local information; no network round trip.
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

    /// The instant up to which the hold is guaranteed without another renewal; always before the
    /// server-side expiry.
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

    /// The owner of this hold.
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

    /// Extends a fixed lease to at least `lease` from now; never shortens it.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the hold has ended; [`Error::InvalidConfig`] if the watchdog renews it;
    /// [`Error::InvalidDuration`] if `lease` is out of bounds (10 ms to ten years) or reaches past
    /// the hold's [`max_hold`](crate::Lock::max_hold); [`Error::NoAnswer`] and the server's
    /// refusals: the lease then ends when it did before, or later.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave the longer lease at the server; the guard assumes the shorter
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

    /// Consumes the guard without releasing the hold: unless it has a fixed lease, it is renewed
    /// until [`Lock::unlock`](crate::Lock::unlock) by the same owner,
    /// [`LockClient::close`](crate::LockClient::close), or the drop of the client's last handle
    /// releases it.
    ///
    /// If such a hold is lost, that unlock says so; until then its owner cannot acquire the lock
    /// again. With a fixed lease or a `max_hold` it need not be released: when it ends it is
    /// forgotten, an unlock then returns [`Error::NotHeld`], and an expired lease is not a loss. So
    /// `lease(d)`, `try_lock` and `detach` together do something at most once per `d`, for as long
    /// as the client lives.
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

/// Releases a hold: shared by guards and by [`Lock::unlock`](crate::Lock::unlock).
///
/// `begun` is called once the hold is removed from the entry and dropping its guard must do nothing
/// more.
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
            // A nested acquire is in flight. Its caller may have stopped polling it, so the wait is
            // limited to the command timeout: the guard is then dropped, and the background
            // releases the hold when that call ends.
            Ok(Begun::Wait { place, since }) => {
                let patience = since.max(start) + entry.shared.config.command_timeout;
                if tokio::time::timeout_at(patience, place).await.is_err() {
                    let source = "an acquire by the same owner is still in flight; is its future being polled?";
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

/// A refusal by the server, or what ended the hold.
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
    // Every send targets the count at that moment, so that a later release of the same owner is
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
        let source = "its future was not polled for longer than the command timeout; a background task continued the release";
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
            problem:
                "the watchdog renews this hold; only a hold with a fixed lease can be extended"
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

//! A hold as its owner sees it: releasing, extending and detaching it.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use redisson_lock_core::{Face, LossReason, WaiterId};
use tracing::Span;

use super::member::extend_hold;
use super::release::OpenHold;
use super::verbs::{Held, until_at_risk};
use crate::base::runtime::{event, span};
use crate::error::Error;
use crate::kind::{Fenced, Unfenced};
use crate::lock::hold_handle::{Hold, HoldHandle, HoldState};
use crate::names::owner::Owner;
use crate::state::client_handle::ClientHandle;
use crate::state::entry::Entry;
use crate::state::hold_status::Taken;
use crate::state::measure::{Class, Holding};

/// One hold of a lock. Release it with [`unlock`](Self::unlock), or drop it to release it in the
/// background.
///
/// A guard remembers its owner, so it can be moved to another task and released there. It protects
/// nothing by itself: a holder that must not act after the lock is lost watches
/// [`lost`](HoldHandle::lost), or checks [`state`](Hold::state) before each step.
///
/// # Dropping
///
/// The hold counts as released from the moment of the drop. A release is sent in the background and
/// retried until Redis confirms it, or refuses it for a whole lease. If the runtime ends first, the
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
#[must_use = "dropping a guard releases the lock immediately"]
pub struct LockGuard<K = Unfenced> {
    handle: HoldHandle<K>,
    open: OpenHold,
    measured: Holding,
    /// Keeps the client running.
    client: Arc<ClientHandle>,
}

/// The guard of a [`FencedLock`](crate::FencedLock).
pub type FencedGuard = LockGuard<Fenced>;

impl<K> LockGuard<K> {
    pub(crate) fn new(
        client: Arc<ClientHandle>,
        entry: Arc<Entry>,
        (owner, face): (Owner, Face),
        (hold, status): Taken,
        class: Class,
    ) -> Self {
        let open = OpenHold::new(Arc::clone(&entry), owner.key(face), hold);
        let measured = Holding::begin(class, &status);
        let hold = Hold {
            entry,
            owner,
            face,
            id: hold,
            status,
        };
        Self {
            handle: HoldHandle::of(hold),
            open,
            measured,
            client,
        }
    }

    /// Releases this hold, and reports whether it was held until now.
    ///
    /// The guard is consumed in every case: a hold whose release gets no response is no longer renewed, and its release
    /// continues in the background.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Lost`] if the hold had already ended. Returns [`Error::NoAnswer`], [`Error::Refused`] or
    /// [`Error::PermissionDenied`] if Redis did not confirm the release: the lock is then free no later than its lease
    /// ends, unless an outer hold of the owner keeps it. Also [`Error::Closed`] and [`Error::NoRuntime`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the hold in the background, exactly once. The first poll sends the release, and nothing
    /// after it needs another one.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(lock: redisson_lock::Lock) -> Result<(), redisson_lock::Error> {
    /// let guard = lock.lock().await?;
    /// guard.unlock().await
    /// # }
    /// ```
    pub async fn unlock(self) -> Result<(), Error> {
        let Self {
            handle:
                HoldHandle {
                    hold:
                        Hold {
                            entry,
                            owner,
                            status,
                            ..
                        },
                    ..
                },
            open,
            measured,
            client: _client,
        } = self;
        let unlocking = pin!(open.unlock(Some(status)));
        let unlocked = entry.shared().on_client_runtime(unlocking).await;
        if unlocked.is_ok() {
            let lock = entry.name.given();
            event!(DEBUG, %lock, %owner, held = ?measured.held(), "lock released");
        }
        unlocked
    }

    /// Extends a fixed lease to at least `lease` from now; never shortens it.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Lost`] if the hold has ended, [`Error::Misuse`] if the watchdog renews it, and
    /// [`Error::InvalidDuration`] if `lease` is out of bounds (10 ms to ten years) or exceeds the hold's
    /// [`max_hold`](crate::Lock::max_hold). After [`Error::NoAnswer`], also if too few replicas confirm the lease
    /// within the command timeout ([`sync_replicas`](crate::Lock::sync_replicas)), and after the server's refusals, the
    /// lease ends when it did before, or later.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave the longer lease on the server; the guard assumes the shorter one.
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
        extend_hold(self, lease).await
    }

    /// Consumes the guard without releasing the hold: unless it has a fixed lease, it is renewed
    /// until [`Lock::unlock`](crate::Lock::unlock) by the same owner,
    /// [`LockClient::close`](crate::LockClient::close), or the drop of the client's last handle
    /// releases it.
    ///
    /// If such a hold is lost, that unlock reports it; until then its owner cannot acquire the lock again. With a fixed
    /// lease or a `max_hold` it need not be released: it is forgotten when it ends, an unlock then returns
    /// [`Error::NotHeld`], and an expired lease is not a loss. So `lease(d)`, `try_lock` and `detach` together do
    /// something at most once per `d`, for as long as the client lives.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn run(lock: redisson_lock::Lock) -> Result<(), redisson_lock::Error> {
    /// lock.lock().await?.detach();
    /// lock.unlock().await
    /// # }
    /// ```
    pub fn detach(self) {
        self.open.detach();
        self.measured.detached();
    }
}

impl<K> LockGuard<K> {
    pub(super) fn client(&self) -> Arc<ClientHandle> {
        Arc::clone(&self.client)
    }

    /// Why it is gone, if the server has said that it is.
    pub(super) fn lost_by_now(&self) -> Error {
        self.handle.lost_by(LossReason::Taken)
    }

    /// Hands a write hold to a call of its owner that waits to read.
    pub(super) async fn hand_to(self, to: WaiterId) -> Result<(), Error> {
        let status = Arc::clone(&self.status);
        let Self {
            open,
            client: _client,
            ..
        } = self;
        open.downgrade(status, to).await
    }

    /// Leaves the hold to its fixed lease, also when the client ends before that.
    pub(super) fn leave(self) {
        self.open.leave();
        self.measured.detached();
    }
}

impl<K> Held for LockGuard<K> {
    type Hold = HoldHandle<K>;
    type Loss = LossReason;
    #[cfg(feature = "blocking")]
    type Known = Hold;

    fn lock_name(&self) -> &str {
        self.name()
    }

    fn hold_state(&self) -> HoldState {
        self.state()
    }

    fn hold(&self) -> HoldHandle<K> {
        self.handle()
    }

    #[cfg(feature = "blocking")]
    fn known(&self) -> &Hold {
        self
    }

    fn not_lost(&self) -> Result<(), Error> {
        self.handle.not_lost()
    }

    fn until_lost(&self) -> impl Future<Output = LossReason> + Send + use<K> {
        self.lost()
    }

    fn reason(reason: LossReason) -> LossReason {
        reason
    }

    fn lost_by(&self, reason: LossReason) -> Error {
        self.handle.lost_by(reason)
    }

    async fn at_risk(&self) {
        at_risk(&self.handle).await;
    }

    fn release(self) -> impl Future<Output = Result<(), Error>> + Send {
        self.unlock()
    }

    #[cfg(feature = "blocking")]
    fn extended(&self, lease: Duration) -> impl Future<Output = Result<(), Error>> + Send {
        self.extend(lease)
    }

    fn span(&self, leads: bool) -> Option<Box<Span>> {
        let (lock, owner, kind) = (self.name(), self.owner(), self.kind().unless_plain());
        match leads {
            true => span!("lead", %lock, %owner, kind),
            false => span!("run", %lock, %owner, kind),
        }
    }
}

/// Resolves when the hold is not sure any more: its renewal is overdue, or it was lost.
pub(crate) async fn at_risk<K>(handle: &HoldHandle<K>) {
    let look = || (handle.state(), handle.overdue_at());
    let watching = pin!(until_at_risk(handle.lost(), look));
    // When the client's runtime has ended, nothing renews the hold either.
    let _ = handle.entry.shared().on_client_runtime(watching).await;
}

impl<K> Deref for LockGuard<K> {
    type Target = HoldHandle<K>;

    fn deref(&self) -> &HoldHandle<K> {
        &self.handle
    }
}

impl<K> fmt::Debug for LockGuard<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("lock", &self.entry.name.given())
            .field("owner", &self.owner)
            .field("state", &self.state())
            .field("client", &self.client.shared().client_id)
            .finish()
    }
}

//! The bundle of doors that a client put together; everything below it finds the others here.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::entry::{Entries, Tally};
use crate::error::{Error, LossReason};
use crate::redis::Redis;
use crate::renewal::Renewals;
use crate::runtime::Runtime;
use crate::script::RetryPolicy;
use crate::wait::Subscriptions;

/// What all handles of one client share.
pub(crate) struct Shared {
    pub(crate) client_id: Arc<str>,
    pub(crate) config: Config,
    /// The runtime that the client was made on: its connections, timers and background work live
    /// there.
    pub(crate) runtime: Runtime,
    pub(crate) redis: Redis,
    pub(crate) subscriptions: Arc<Subscriptions>,
    pub(crate) entries: Entries,
    pub(crate) renewals: Renewals,
    pub(crate) totals: Totals,
    phase: AtomicU8,
    /// Cancelled when the client's tasks are gone, be it by closing or with their runtime.
    pub(crate) gone: CancellationToken,
    pub(crate) tally: Arc<Tally>,
}

/// The settings that locks look at.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) key_prefix: Arc<str>,
    pub(crate) watchdog_timeout: Duration,
    pub(crate) command_timeout: Duration,
    pub(crate) max_hold: Option<Duration>,
}

impl Shared {
    pub(crate) fn new(
        client_id: Arc<str>,
        config: Config,
        runtime: Runtime,
        redis: Redis,
        subscriptions: Arc<Subscriptions>,
    ) -> Self {
        Self {
            client_id,
            renewals: Renewals::new(config.watchdog_timeout, runtime.clone()),
            config,
            runtime,
            redis,
            subscriptions,
            entries: Entries::default(),
            totals: Totals::default(),
            phase: AtomicU8::new(Phase::Open as u8),
            gone: CancellationToken::new(),
            tally: Arc::default(),
        }
    }

    /// Runs a future of this crate in the client's runtime, wherever the caller polls it from.
    ///
    /// Timers bind to the runtime they are made in; the caller's may have none, or may not be
    /// tokio's. The future stays where the caller pinned it, because moving it in here would store
    /// it twice.
    pub(crate) async fn on_client_runtime<T, F>(&self, mut future: Pin<&mut F>) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let Ok(caller) = Handle::try_current() else {
            return Err(Error::NoRuntime);
        };
        let limit = self.config.command_timeout;
        let foreign = !self.runtime.is(&caller);
        let mut stands_still = foreign.then(|| Box::pin(self.runtime.stands_still(limit)));
        std::future::poll_fn(|context| -> Poll<Result<T, Error>> {
            // A timer of a runtime that has ended must not be polled.
            if self.gone.is_cancelled() && !self.is_closed() {
                return Poll::Ready(Err(Error::NoRuntime));
            }
            let polled = {
                let _entered = self.runtime.enter();
                future.as_mut().poll(context)
            };
            // Nobody drives the client's runtime: what the call subscriptions for will never come.
            if polled.is_pending()
                && let Some(stands_still) = &mut stands_still
                && stands_still.as_mut().poll(context).is_ready()
            {
                return Poll::Ready(Err(Error::NoRuntime));
            }
            polled
        })
        .await
    }

    pub(crate) fn is_open(&self) -> bool {
        self.phase.load(Ordering::Acquire) == Phase::Open as u8
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.phase.load(Ordering::Acquire) == Phase::Closed as u8
    }

    /// Phases only go forward.
    pub(crate) fn enter_phase(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::AcqRel);
    }

    /// One re-send within the command timeout.
    pub(crate) fn patience(&self) -> RetryPolicy {
        RetryPolicy {
            timeout: self.config.command_timeout,
            sends: 2,
        }
    }
}

/// Dropped with the task that keeps the holds of a client: when the client ends, or its runtime
/// does.
pub(crate) struct ShutdownOnDrop {
    pub(crate) shared: Weak<Shared>,
}

impl ShutdownOnDrop {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::downgrade(shared),
        }
    }
}

impl Drop for ShutdownOnDrop {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else {
            return;
        };
        // In this order: whoever is told finds that the client is gone.
        shared.gone.cancel();
        shared.renewals.end();
        for entry in Entries::all(&shared) {
            // Nobody renews them any more, or would notice that they are lost.
            entry.lose_all(LossReason::Closed);
            entry.tell_all();
        }
    }
}

/// The life of a client.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Phase {
    Open = 0,
    /// No new holds; those there are kept and can be given back.
    Closing = 1,
    /// Nothing is sent any more.
    Closed = 2,
}

/// Running totals for [`ClientStats`](crate::ClientStats).
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) acquired: AtomicU64,
    pub(crate) released: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) renewed: AtomicU64,
    pub(crate) contended: AtomicU64,
    pub(crate) reconciled: AtomicU64,
    pub(crate) gave_up: AtomicU64,
}

impl Totals {
    pub(crate) fn add(total: &AtomicU64, amount: usize) {
        total.fetch_add(amount as u64, Ordering::Relaxed);
    }
}

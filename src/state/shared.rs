//! The state that all handles of one client share, below its locks.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::Poll;
use std::time::Duration;

use parking_lot::RwLock;
use redisson_lock_core::{Life, Rules};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::base::runtime::{Clock, Lately, Runtime};
use crate::error::{Error, shorten};
use crate::kind::LockKind;
use crate::names::wire::LockName;
use crate::redis::{Redis, SyncReplicas, slot_of};
use crate::script::RetryPolicy;
use crate::state::tally::{Tally, Totals};

pub(crate) struct Shared {
    pub(crate) client_id: Arc<str>,
    pub(crate) config: Config,
    pub(crate) clock: Clock,
    /// The runtime that the client was made on: its connections, timers and background work live
    /// there.
    pub(crate) runtime: Runtime,
    pub(crate) redis: Redis,
    pub(crate) totals: Totals,
    pub(crate) tally: Tally,
    /// The user of the connection lacks a permission that a pass needs and a release does not.
    pub(crate) cannot_pass: AtomicBool,
    /// Renewals that failed, by hold and reason.
    pub(crate) failed_renewals: Lately,
    /// Locks that are waited for and have no expiry.
    pub(crate) no_expiry: Lately,
    life: AtomicU8,
    /// Cancelled when the client's tasks are gone, by closing or with their runtime.
    pub(crate) gone: CancellationToken,
    /// Read while a call is polled. With the runtime its timers end, and a timer that is polled then panics.
    polled: RwLock<()>,
}

/// The settings that locks look at.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) key_prefix: Arc<str>,
    pub(crate) rules: Arc<Rules>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) retry_for: Option<Duration>,
    pub(crate) replicas: Option<SyncReplicas>,
}

impl Shared {
    pub(crate) fn new(client_id: Arc<str>, config: Config, runtime: Runtime, redis: Redis) -> Self {
        Self {
            client_id,
            config,
            clock: Clock::start(),
            runtime,
            redis,
            totals: Totals::default(),
            tally: Tally::default(),
            cannot_pass: AtomicBool::new(false),
            failed_renewals: Lately::default(),
            no_expiry: Lately::default(),
            life: AtomicU8::new(Life::Open as u8),
            gone: CancellationToken::new(),
            polled: RwLock::new(()),
        }
    }

    /// Runs a future of this crate in the client's runtime, wherever the caller polls it from.
    ///
    /// Timers bind to the runtime they are made in; the caller's may have none, or may not be
    /// tokio's. The future stays where the caller pinned it, because moving it in here would store
    /// it twice. It waits while nothing drives the client's runtime.
    pub(crate) async fn on_client_runtime<T, F>(&self, mut future: Pin<&mut F>) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        Handle::try_current().map_err(|_| Error::NoRuntime)?;
        std::future::poll_fn(|context| {
            // A timer of a runtime that has ended must not be polled.
            let _polled = self.polled.read_recursive();
            match (self.gone.is_cancelled(), self.is_closed()) {
                (true, false) => return Poll::Ready(Err(Error::NoRuntime)),
                // What had its outcome before the end still returns it.
                (true, true) if self.runtime.has_ended() => return Poll::Ready(Err(Error::Closed)),
                _ => {}
            }
            let _entered = self.runtime.enter();
            future.as_mut().poll(context)
        })
        .await
    }

    /// The name of a lock, if it is a good one here.
    pub(crate) fn lock_name(&self, kind: LockKind, given: &str) -> Result<LockName, Error> {
        let name = LockName::new(kind, &self.config.key_prefix, given)?;
        let is_elsewhere = |other: &str| slot_of(other) != slot_of(name.key());
        if self.redis.is_cluster()
            && (kind.announces() && is_elsewhere(&name.channel_text())
                || name.token().is_some_and(|token| is_elsewhere(token)))
        {
            return Err(Error::InvalidName {
                name: shorten(given),
                problem: "in a cluster its key and its unlock channel would be in different slots; use braces in pairs \
                          with a text inside, or none",
            });
        }
        Ok(name)
    }

    /// The client's tasks end, maybe with their runtime. Waits until no call is polled that does not know it, unless
    /// that poll is what has ended the runtime.
    pub(crate) fn gone(&self) {
        self.gone.cancel();
        drop(self.polled.try_write_for(POLL_MAX));
    }

    pub(crate) fn life(&self) -> Life {
        match self.life.load(Ordering::Acquire) {
            0 => Life::Open,
            1 => Life::Closing,
            2 => Life::Gone,
            _ => Life::Closed,
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.life() == Life::Closed
    }

    /// The client's life only goes forward.
    pub(crate) fn set_life(&self, life: Life) {
        self.life.fetch_max(life as u8, Ordering::AcqRel);
    }

    pub(crate) fn command_timeout(&self) -> Duration {
        self.config.rules.command_timeout
    }

    pub(crate) fn watchdog_timeout(&self) -> Duration {
        self.config.rules.watchdog_timeout
    }

    /// One re-send within the command timeout.
    pub(crate) fn retry(&self) -> RetryPolicy {
        RetryPolicy {
            timeout: self.command_timeout(),
            sends: 2,
        }
    }

    /// Nothing but the first send.
    pub(crate) fn no_retry(&self) -> RetryPolicy {
        RetryPolicy {
            timeout: self.command_timeout(),
            sends: 1,
        }
    }
}

/// How long the end of a runtime waits for a poll.
const POLL_MAX: Duration = Duration::from_millis(500);

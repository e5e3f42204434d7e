//! The server's latest answer about a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redisson_lock_core::Time;

/// What became of the latest attempt of any call of this client, so that a call which was never sent can tell a holder
/// from an outage.
///
/// When the server has last said whether the lock is held, in nanoseconds; the lowest bit says that an attempt has failed
/// since, and no release was answered after it. Each lock that is held has room for it.
#[derive(Default)]
pub(crate) struct LatestAnswer(AtomicU64);

impl LatestAnswer {
    /// The server has said whether the lock is held.
    pub(crate) fn answered(&self, now: Time) {
        let nanos = u64::try_from(now.since_start().as_nanos()).unwrap_or(u64::MAX);
        // The next even number: not before that time, and never zero.
        let at = (nanos | 1).saturating_add(1) & !FAILED;
        self.0.store(at, Ordering::Relaxed);
    }

    /// An attempt was not answered, or refused for a while.
    pub(crate) fn failed(&self) {
        self.0.fetch_or(FAILED, Ordering::Relaxed);
    }

    /// The server has answered a release: it was reached since, and has not said who holds the lock now.
    pub(crate) fn reached(&self) {
        self.0.fetch_and(!FAILED, Ordering::Relaxed);
    }

    /// When it has last said so.
    pub(crate) fn answered_at(&self) -> Option<Time> {
        let at = self.0.load(Ordering::Relaxed) & !FAILED;
        (at > 0).then(|| Time::after_start(Duration::from_nanos(at)))
    }

    /// Whether it has since then.
    pub(crate) fn answered_since(&self, then: Time) -> bool {
        self.answered_at().is_some_and(|at| then <= at)
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.0.load(Ordering::Relaxed) & FAILED > 0
    }
}

const FAILED: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_known_from_its_time_on_and_ends_a_failure() {
        let latest = LatestAnswer::default();
        let at = |nanos| Time::after_start(Duration::from_nanos(nanos));
        assert!(latest.answered_at().is_none() && !latest.has_failed());
        latest.failed();
        assert!(latest.answered_at().is_none() && latest.has_failed());
        for nanos in [0, 1, 2, 7, 1_000_000] {
            latest.answered(at(nanos));
            assert!(latest.answered_since(at(nanos)) && !latest.answered_since(at(nanos + 3)));
            assert!(!latest.has_failed());
            latest.failed();
            assert!(latest.answered_since(at(nanos)) && latest.has_failed());
            latest.reached();
            assert!(latest.answered_since(at(nanos)) && !latest.answered_since(at(nanos + 3)));
            assert!(!latest.has_failed());
            latest.failed();
        }
    }
}

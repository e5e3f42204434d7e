//! What servers report: keys that others than the connection which has read them have changed.
//!
//! A report is a hint, as every message is: what it is about is looked at. It may be late, and there is none of what was
//! changed while the connection was down, so each new connection has all that is held over it looked at.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::transport::{ConnectionError, Reply};
use crate::base::runtime::{event, sleep_until};

/// Reported keys, until the renewal task takes them.
#[derive(Default)]
pub(crate) struct Reports {
    /// How many connections to each server are to report. None: they are not wanted.
    lanes: usize,
    reported: Mutex<Reported>,
    notify: Notify,
    filter: OnceLock<Box<Filter>>,
    /// That a server does not report was said.
    is_refusal_known: AtomicBool,
    /// By the server of the latest connection that reports.
    track_whole_calls: AtomicBool,
}

/// Notes that a key was changed, and returns whether it is to be looked at.
type Filter = dyn Fn(&str) -> bool + Send + Sync;

#[derive(Default)]
struct Reported {
    changed: Changed,
    /// Keys of which a look had no answer, and when they are looked at again.
    again: BTreeSet<Box<str>>,
    again_at: Option<Instant>,
    /// Single keys that are reported before are dropped.
    paused_until: Option<Instant>,
}

/// The keys that others have changed.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Changed {
    pub(crate) keys: BTreeSet<Box<str>>,
    /// Connections of these numbers, to any server, report no single keys: all may have changed.
    pub(crate) lanes: BTreeSet<usize>,
}

/// When a server that reports changes notes the keys of a script call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TrackedCalls {
    /// Each key as it is read.
    AsRead,
    /// All keys of the call at each command that reads, as before Redis 7.2.
    Whole,
}

impl TrackedCalls {
    /// By the version that the server reports. Those that are compatible with Redis report the Redis version, or one of
    /// their own that is higher, as Valkey does.
    pub(super) fn by(version: Option<&str>) -> Self {
        let mut numbers = version.unwrap_or_default().split('.').map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (7_u32, 2_u32) => Self::AsRead,
            _ => Self::Whole,
        }
    }
}

impl Reports {
    pub(super) fn new(lanes: usize) -> Self {
        Self {
            lanes,
            ..Self::default()
        }
    }

    /// Sets what is asked about each key as its report is read: a release is reported to every connection over which a call
    /// waits for the lock, and would wake the renewal task of each client.
    pub(crate) fn set_filter(&self, filter: impl Fn(&str) -> bool + Send + Sync + 'static) {
        // It is set once.
        _ = self.filter.set(Box::new(filter));
    }

    fn passes(&self, key: &str) -> bool {
        self.filter.get().is_none_or(|passes| passes(key))
    }

    /// Whether connections of this number are to report.
    pub(super) fn are_wanted(&self, lane: usize) -> bool {
        lane < self.lanes
    }

    /// A server reports over a new connection. All servers of a client have the same version, but for a while.
    pub(super) fn note_server(&self, calls: TrackedCalls) {
        let is_whole = calls == TrackedCalls::Whole;
        self.track_whole_calls.store(is_whole, Ordering::Relaxed);
    }

    /// Whether a call costs the server its keys times its commands that read, so that calls with fewer keys cost less.
    pub(crate) fn track_whole_calls(&self) -> bool {
        self.track_whole_calls.load(Ordering::Relaxed)
    }

    /// A server does not report. It is said once.
    pub(super) fn refused(&self, server: &str, problem: &ConnectionError) {
        if !self.is_refusal_known.swap(true, Ordering::Relaxed) {
            event!(
                INFO,
                server,
                %problem,
                "the server does not report changes of locks: a lock that is taken away is noticed at its next renewal"
            );
        }
    }

    /// A lock whose key was changed.
    pub(crate) fn add(&self, key: &str) {
        let mut reported = self.reported.lock();
        if reported
            .paused_until
            .is_some_and(|until| Instant::now() < until)
        {
            return;
        }
        let changed = &mut reported.changed;
        changed.keys.insert(key.into());
        // They would fill the memory.
        if changed.keys.len() > KEYS_MAX {
            changed.keys.clear();
            changed.lanes.extend(0..self.lanes);
        }
        drop(reported);
        self.notify.notify_one();
    }

    /// Everything that is held over connections of this number may have changed.
    pub(super) fn add_lane(&self, lane: usize) {
        self.reported.lock().changed.lanes.insert(lane);
        self.notify.notify_one();
    }

    /// A look at this key had no answer: it is reported again after a while.
    pub(crate) fn add_again(&self, key: &str) {
        let mut reported = self.reported.lock();
        reported.again.insert(key.into());
        let at = Instant::now() + AGAIN_AFTER;
        reported.again_at.get_or_insert(at);
        drop(reported);
        self.notify.notify_one();
    }

    /// Drops what is reported of single keys until this time has passed.
    pub(crate) fn pause(&self, pause: Duration) {
        let mut reported = self.reported.lock();
        reported.changed.keys.clear();
        reported.paused_until = Some(Instant::now() + pause);
    }

    /// Waits for what others have changed. Cancel safe.
    pub(crate) async fn next(&self) -> Changed {
        loop {
            let again_at = {
                let mut reported = self.reported.lock();
                if reported.again_at.is_some_and(|at| at <= Instant::now()) {
                    reported.again_at = None;
                    let again = std::mem::take(&mut reported.again);
                    reported.changed.keys.extend(again);
                }
                let changed = std::mem::take(&mut reported.changed);
                if changed != Changed::default() {
                    return changed;
                }
                reported.again_at
            };
            tokio::select! {
                () = self.notify.notified() => {}
                () = sleep_until(again_at) => {}
            }
        }
    }
}

/// The reports of the connections of one number.
pub(super) struct LaneReports {
    pub(super) reports: Arc<Reports>,
    pub(super) lane: usize,
}

impl LaneReports {
    /// A key was changed; without one, everything may have been.
    pub(super) fn add(&self, key: Option<&str>) {
        match key {
            Some(key) => self.reports.add(key),
            None => self.reports.add_lane(self.lane),
        }
    }

    /// Reads what a server has sent by itself.
    pub(super) fn read(&self, push: &Reply) {
        let Reply::List(items) = push else { return };
        match items.as_slice() {
            [Reply::Text(kind), about] if kind == "invalidate" => match about {
                Reply::List(keys) => keys.iter().for_each(|key| match key {
                    Reply::Text(key) if key.len() <= KEY_MAX && self.reports.passes(key) => {
                        self.add(Some(key));
                    }
                    // No name of a lock, or none of interest.
                    _ => {}
                }),
                // The server has thrown everything away.
                _ => self.add(None),
            },
            _ => {}
        }
    }
}

/// As long as a server may be busy with something else.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Changed keys that are remembered one by one.
const KEYS_MAX: usize = 10_000;

/// No name of a lock is longer.
const KEY_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use test_support::tokio;

    use super::*;

    fn text(text: &str) -> Reply {
        Reply::Text(text.to_owned())
    }

    fn reports_of(lane: usize) -> LaneReports {
        let reports = Arc::new(Reports::new(2));
        LaneReports { reports, lane }
    }

    #[test]
    fn calls_are_tracked_whole_before_redis_7_2_and_by_a_server_that_does_not_tell_its_version() {
        for (version, tracked) in [
            ("6.2.14", TrackedCalls::Whole),
            ("7.0.15", TrackedCalls::Whole),
            ("7", TrackedCalls::Whole),
            ("7.x", TrackedCalls::Whole),
            ("", TrackedCalls::Whole),
            ("7.2.0", TrackedCalls::AsRead),
            ("7.10", TrackedCalls::AsRead),
            ("8.0.1", TrackedCalls::AsRead),
            ("255.255.255", TrackedCalls::AsRead),
        ] {
            assert_eq!(TrackedCalls::by(Some(version)), tracked, "{version}");
        }
        assert_eq!(TrackedCalls::by(None), TrackedCalls::Whole);
    }

    #[tokio::test]
    async fn keys_are_read_one_by_one_and_a_flush_is_everything() {
        let lane = reports_of(1);
        let no_name = text(&"x".repeat(KEY_MAX + 1));
        let no_text = Reply::Bytes([0xff].as_slice().into());
        let keys = vec![text("b"), no_name, no_text, text("a")];
        lane.read(&Reply::List(vec![text("invalidate"), Reply::List(keys)]));
        lane.read(&Reply::List(vec![text("message"), text("c")]));
        lane.read(&Reply::Nil);
        let changed = lane.reports.next().await;
        let keys: Vec<_> = changed.keys.iter().map(|key| &**key).collect();
        assert_eq!((keys, changed.lanes.len()), (vec!["a", "b"], 0));
        lane.read(&Reply::List(vec![text("invalidate"), Reply::Nil]));
        let changed = lane.reports.next().await;
        assert_eq!(
            (changed.keys.len(), changed.lanes),
            (0, BTreeSet::from([1]))
        );
    }

    #[tokio::test]
    async fn what_is_reported_of_a_lock_that_is_not_held_is_dropped() {
        let lane = reports_of(0);
        lane.reports.set_filter(|key| key == "held");
        let report = |key| Reply::List(vec![text("invalidate"), Reply::List(vec![text(key)])]);
        lane.read(&report("free"));
        assert!(lane.reports.next().now_or_never().is_none());
        lane.read(&report("held"));
        assert!(lane.reports.next().await.keys.contains("held"));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_reported_during_a_pause_is_dropped() {
        let reports = Reports::new(1);
        reports.add("a");
        reports.pause(Duration::from_secs(60));
        reports.add("b");
        let next = tokio::time::timeout(Duration::from_secs(59), reports.next()).await;
        assert!(next.is_err());
        tokio::time::advance(Duration::from_secs(2)).await;
        reports.add("c");
        assert!(reports.next().await.keys.contains("c"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_drops_no_flush() {
        let reports = Reports::new(1);
        reports.pause(Duration::from_secs(60));
        reports.add_lane(0);
        assert_eq!(reports.next().await.lanes, BTreeSet::from([0]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_without_an_answer_is_asked_for_again_after_a_while() {
        let reports = Reports::new(1);
        reports.add_again("a");
        let start = Instant::now();
        assert!(reports.next().await.keys.contains("a"));
        assert_eq!(start.elapsed(), AGAIN_AFTER);
    }

    #[tokio::test(start_paused = true)]
    async fn looks_that_fail_one_after_the_other_put_none_off_and_each_is_repeated_once() {
        let reports = Reports::new(1);
        let start = Instant::now();
        reports.add_again("a");
        tokio::time::advance(AGAIN_AFTER / 2).await;
        reports.add_again("b");
        let changed = reports.next().await;
        assert_eq!((changed.keys.len(), start.elapsed()), (2, AGAIN_AFTER));
        reports.add_again("c");
        let changed = reports.next().await;
        assert_eq!((changed.keys.len(), start.elapsed()), (1, AGAIN_AFTER * 2));
        let more = tokio::time::timeout(AGAIN_AFTER * 10, reports.next()).await;
        assert!(more.is_err(), "{more:?}");
    }

    #[tokio::test]
    async fn a_server_that_reports_without_end_fills_no_memory() {
        let reports = Reports::new(2);
        for nth in 0..=KEYS_MAX {
            reports.add(&nth.to_string());
        }
        let changed = reports.next().await;
        assert_eq!((changed.keys.len(), changed.lanes.len()), (0, 2));
        // Afterwards they are remembered one by one again.
        reports.add("a");
        let changed = reports.next().await;
        assert!(changed.keys.contains("a") && changed.lanes.is_empty());
    }
}

//! The time limit of each test. A test that hangs is named, and its process aborts.
//!
//! `#[test]` and `#[tokio::test]` of this crate call [`begins`] first. Another thread cannot be made to panic, so the
//! whole process aborts, after the servers that it has started are killed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use crate::stalls::{self, stalls};

/// How long a test may run, unless `TEST_LIMIT_MS` says something else.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Work that has a time limit until this is dropped.
pub struct Limited(u64);

#[derive(Clone)]
struct Running {
    name: String,
    since: Instant,
    limit: Duration,
}

thread_local! {
    /// The test that this thread runs. It ends with its thread, and so after its runtime.
    static TEST: RefCell<Option<Limited>> = const { RefCell::new(None) };
}

/// Starts the time limit of the test that runs on this thread.
pub fn begins(test: &str) {
    TEST.set(Some(Limited::new(test)));
}

/// Gives the test that runs on this thread another time limit, from now on.
pub fn may_take(limit: Duration) {
    TEST.with_borrow(|test| {
        let test = test.as_ref().expect("a test runs on this thread");
        let mut running = running();
        let running = running.get_mut(&test.0).expect("it runs");
        (running.since, running.limit) = (Instant::now(), limit);
    });
}

impl Limited {
    pub fn new(name: impl Into<String>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        stalls::watch();
        let limit = std::env::var("TEST_LIMIT_MS").ok();
        let limit = limit.and_then(|limit| limit.parse().ok());
        let this = Self(NEXT.fetch_add(1, Ordering::Relaxed));
        let work = Running {
            name: name.into(),
            since: Instant::now(),
            limit: limit.map_or(LIMIT, Duration::from_millis),
        };
        running().insert(this.0, work);
        this
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        running().remove(&self.0);
    }
}

fn running() -> MutexGuard<'static, BTreeMap<u64, Running>> {
    static RUNNING: OnceLock<Mutex<BTreeMap<u64, Running>>> = OnceLock::new();
    let running = RUNNING.get_or_init(|| {
        std::thread::spawn(|| {
            loop {
                std::thread::sleep(Duration::from_millis(50));
                let over = running().values().find(|work| work.is_over()).cloned();
                if let Some(work) = over {
                    work.end();
                }
            }
        });
        Mutex::default()
    });
    running.lock().expect("unpoisoned")
}

impl Running {
    fn is_over(&self) -> bool {
        let took = self.since.elapsed();
        took > self.limit && took > with_stalls(self.limit, stalls(self.since))
    }

    fn end(&self) {
        // What `eprintln!` prints goes to the captured output of the test that started this thread.
        let _ = writeln!(
            std::io::stderr(),
            "\n{} hangs: it has run for {:?}, and may take {:?}",
            self.name,
            self.since.elapsed(),
            self.limit
        );
        // Outside Linux none is found, and they stay.
        for child in stalls::children("self") {
            let _ = Command::new("kill").args(["-KILL", &child]).status();
        }
        std::process::abort();
    }
}

/// The limit on a machine that kept the test waiting for this long.
fn with_stalls(limit: Duration, stalled: Duration) -> Duration {
    limit.saturating_add(stalled.min(limit.saturating_mul(3)))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::tokio;

    /// What the test is to do in the process that it starts.
    const WAY: &str = "HANGS";

    /// Runs the calling test again, in a process of its own.
    fn again(test: &str, way: &str) -> std::process::Output {
        let program = std::env::current_exe().expect("this binary");
        let mut program = Command::new(program);
        program.args(["--exact", &format!("limit::tests::{test}")]);
        program.env(WAY, way).env("TEST_LIMIT_MS", "500");
        // It ends when the pipes are closed, of which each process that the test starts has a copy.
        program.output().expect("started")
    }

    #[tokio::test]
    async fn a_test_that_hangs_is_named_and_ended_with_what_it_has_started() {
        let for_ever = Duration::from_secs(3_600);
        if let Ok(way) = std::env::var(WAY) {
            #[allow(clippy::zombie_processes, reason = "that is what is seen to")]
            let _child = Command::new("sleep").arg("3600").spawn().expect("started");
            match way.as_str() {
                "a future" => std::future::pending().await,
                "a thread" => std::thread::sleep(for_ever),
                "the end of a runtime" => {
                    tokio::task::spawn_blocking(move || std::thread::sleep(for_ever));
                    // Otherwise it never begins.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                other => unreachable!("{other}"),
            }
            return;
        }
        let name = "a_test_that_hangs_is_named_and_ended_with_what_it_has_started";
        for way in ["a future", "a thread", "the end of a runtime"] {
            let output = again(name, way);
            let said = String::from_utf8_lossy(&output.stderr);
            let named = format!("test_support::limit::tests::{name} hangs");
            assert!(said.contains(&named), "{way}: {output:?}");
            assert!(!output.status.success(), "{way}: {output:?}");
        }
    }

    #[test]
    fn a_test_may_take_longer_if_it_says_so() {
        if std::env::var_os(WAY).is_some() {
            may_take(LIMIT);
            return std::thread::sleep(Duration::from_millis(1_000));
        }
        let output = again("a_test_may_take_longer_if_it_says_so", "not");
        assert!(output.status.success(), "{output:?}");
    }

    #[test]
    fn what_a_busy_machine_takes_is_given_up_to_four_times_the_limit() {
        let [one, two, four, ten] = [1, 2, 4, 10].map(Duration::from_secs);
        assert_eq!(with_stalls(one, Duration::ZERO), one);
        assert_eq!(with_stalls(one, one), two);
        assert_eq!(with_stalls(one, ten), four);
        assert_eq!(with_stalls(Duration::MAX, ten), Duration::MAX);
    }
}

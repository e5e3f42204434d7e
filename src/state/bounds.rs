//! The bounds of the durations and numbers that callers give.

use std::time::Duration;

use crate::error::Error;
use crate::redis::{REPLICAS_MAX, SyncReplicas};

/// Whether these are a watchdog timeout and a command timeout that go together.
pub(crate) fn check_timeouts(watchdog: Duration, command: Duration) -> Result<(), Error> {
    let (what, given, problem) = if !(WATCHDOG_MIN..=WATCHDOG_MAX).contains(&watchdog) {
        let problem = "it must be at least 300 milliseconds and at most one day";
        ("watchdog_timeout", watchdog, problem)
    } else if command.is_zero() || command >= watchdog / 3 {
        let problem = "it must be above zero and below a third of the watchdog timeout";
        ("command_timeout", command, problem)
    } else {
        return Ok(());
    };
    Err(Error::InvalidDuration {
        what,
        given,
        problem,
    })
}

const WATCHDOG_MIN: Duration = Duration::from_millis(300);
const WATCHDOG_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Whether `sync_replicas` takes this number and time.
pub(crate) fn check_replicas(wanted: SyncReplicas, command_timeout: Duration) -> Result<(), Error> {
    let SyncReplicas { replicas, within } = wanted;
    if !(1..=REPLICAS_MAX).contains(&replicas) {
        return Err(Error::InvalidConfig {
            what: "sync_replicas",
            problem: format!("{replicas} is not between 1 and {REPLICAS_MAX}"),
        });
    }
    if !(LEASE_MIN..=command_timeout).contains(&within) {
        return Err(Error::InvalidDuration {
            what: "sync_replicas timeout",
            given: within,
            problem: "it must be at least 10 milliseconds and at most the command timeout",
        });
    }
    Ok(())
}

/// Whether a lease, or a limit, is one that Redis and two clocks can keep.
pub(crate) fn check_lease(what: &'static str, given: Duration) -> Result<(), Error> {
    if (LEASE_MIN..=LEASE_MAX).contains(&given) {
        return Ok(());
    }
    let problem = "it must be at least 10 milliseconds and at most ten years";
    Err(Error::InvalidDuration {
        what,
        given,
        problem,
    })
}

/// Whether the id of a guarded write can be kept for this time: as long as copies of the call are sent, at least.
pub(crate) fn check_keep(given: Duration, command_timeout: Duration) -> Result<(), Error> {
    match (command_timeout * 2..=LEASE_MAX).contains(&given) {
        true => Ok(()),
        false => Err(Error::InvalidDuration {
            what: "keep",
            given,
            problem: "it must be at least two command timeouts and at most ten years",
        }),
    }
}

pub(crate) const LEASE_MIN: Duration = Duration::from_millis(10);

/// Far from the end of the clock's range, where timers cannot be made any more.
pub(crate) const LEASE_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

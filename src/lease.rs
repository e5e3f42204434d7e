//! The bounds of every lease and limit that a caller gives.

use std::time::Duration;

use crate::error::Error;

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

const LEASE_MIN: Duration = Duration::from_millis(10);

/// Far from the end of the clock's range, where timers cannot be made any more.
pub(crate) const LEASE_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

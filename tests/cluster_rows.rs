//! The rows of other files that fit a cluster, over three primaries.
//!
//! Each has a cluster of its own. Which of the primaries has its lock goes by the name of the row, so that each of
//! the three has some.

use test_support::TestCluster as TestServer;

#[path = "rows/lock.rs"]
mod lock;
#[path = "rows/renewal.rs"]
mod renewal;
#[path = "rows/tracking.rs"]
mod tracking;
#[path = "rows/waiting.rs"]
mod waiting;

//! The memory of a client: an entry for each lock, and the state that all of them share.

pub(crate) mod bounds;
pub(crate) mod client_handle;
#[cfg(feature = "test-util")]
pub(crate) mod effects_hook;
pub(crate) mod entry;
pub(crate) mod hold_status;
pub(crate) mod measure;
pub(crate) mod shared;
pub(crate) mod tally;

//! Helpers for tokio and for time, without knowledge of locks.

pub(crate) mod backoff;
pub(crate) mod connected;
pub(crate) mod runtime;
pub(crate) mod table;
pub(crate) mod timers;

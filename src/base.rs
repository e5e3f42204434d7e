//! What the layers above need of tokio and of time, without knowing a lock.

pub(crate) mod backoff;
pub(crate) mod runtime;
pub(crate) mod table;
pub(crate) mod timers;

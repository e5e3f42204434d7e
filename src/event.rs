//! How this crate logs.
//!
//! A subscriber is the user's code: it may call back into the client, and it may panic. So nothing is
//! logged while a mutex is held, and a panic ends with the event.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code that is not ours. What it panics with was printed by the panic hook; nobody else's
/// wake-up, job or lease is to be lost by it.
pub(crate) fn isolated(foreign: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(foreign));
}

/// `tracing::event!` for this crate.
macro_rules! event {
    ($level:ident, $($rest:tt)+) => {
        $crate::event::isolated(|| {
            ::tracing::event!(target: "redisson_lock", ::tracing::Level::$level, $($rest)+)
        })
    };
}

pub(crate) use event;

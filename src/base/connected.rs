//! Metrics of connections. Without the feature `metrics` nothing is measured.

#[cfg(feature = "metrics")]
use metrics::Unit;

#[cfg(feature = "metrics")]
use crate::base::runtime::isolated;

#[cfg(feature = "metrics")]
const CONNECTED: &str = "redisson_lock_connected";
#[cfg(feature = "metrics")]
const RECONNECTS: &str = "redisson_lock_reconnects_total";

#[cfg(feature = "metrics")]
pub(crate) fn describe() {
    metrics::describe_gauge!(CONNECTED, Unit::Count, "Command connections that are open");
    metrics::describe_counter!(
        RECONNECTS,
        Unit::Count,
        "Command connections that replaced a lost one"
    );
    metrics::counter!(RECONNECTS).increment(0);
}

/// Another connection replaced a lost one.
pub(crate) fn reconnected() {
    #[cfg(feature = "metrics")]
    isolated(|| metrics::counter!(RECONNECTS).increment(1));
}

/// An open connection, for as long as this lives.
pub(crate) struct CountedConnection(());

impl CountedConnection {
    pub(crate) fn opened() -> Self {
        #[cfg(feature = "metrics")]
        isolated(|| metrics::gauge!(CONNECTED).increment(1));
        Self(())
    }

    pub(crate) fn closed(self) {}
}

#[cfg(feature = "metrics")]
impl Drop for CountedConnection {
    fn drop(&mut self) {
        isolated(|| metrics::gauge!(CONNECTED).decrement(1));
    }
}

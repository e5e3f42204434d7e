//! Metrics of connections. Without the feature `metrics` nothing is measured.

#[cfg(feature = "metrics")]
mod with_metrics {
    use metrics::Unit;

    use crate::base::runtime::isolated;

    const CONNECTED: &str = "redisson_lock_connected";
    const RECONNECTS: &str = "redisson_lock_reconnects_total";

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
        isolated(|| metrics::counter!(RECONNECTS).increment(1));
    }

    /// An open connection, for as long as this lives.
    pub(crate) struct CountedConnection(());

    impl CountedConnection {
        pub(crate) fn opened() -> Self {
            isolated(|| metrics::gauge!(CONNECTED).increment(1));
            Self(())
        }

        pub(crate) fn closed(self) {}
    }

    impl Drop for CountedConnection {
        fn drop(&mut self) {
            isolated(|| metrics::gauge!(CONNECTED).decrement(1));
        }
    }
}

#[cfg(not(feature = "metrics"))]
mod without {
    pub(crate) fn reconnected() {}

    pub(crate) struct CountedConnection;

    impl CountedConnection {
        pub(crate) fn opened() -> Self {
            Self
        }

        pub(crate) fn closed(self) {}
    }
}

#[cfg(feature = "metrics")]
pub(crate) use with_metrics::{CountedConnection, describe, reconnected};
#[cfg(not(feature = "metrics"))]
pub(crate) use without::{CountedConnection, reconnected};

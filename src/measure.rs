//! What is measured of calls and holds for the crate `metrics`, by the class that the caller names. Without the
//! feature nothing is, and nothing is kept.
//!
//! A recorder is the user's code: it is called in the caller's own task, where no mutex is held, and a panic of it ends
//! with the measurement.

#[cfg(feature = "metrics")]
pub(crate) use with_metrics::{Acquiring, Class, Holding};
#[cfg(not(feature = "metrics"))]
pub(crate) use without::{Acquiring, Class, Holding};

#[cfg(feature = "metrics")]
mod with_metrics {
    use std::sync::Arc;
    use tokio::time::Instant;

    use crate::core::Ending;
    use crate::runtime::isolated;
    use crate::shared::HoldStatus;

    /// What the locks of one purpose are called together.
    #[derive(Clone, Copy)]
    pub(crate) struct Class(pub(crate) &'static str);

    impl Class {
        pub(crate) const DEFAULT: Self = Self("default");
    }

    /// A call that acquires. Dropped while it waits, it was cancelled.
    pub(crate) struct Acquiring {
        class: Class,
        since: Instant,
        outcome: &'static str,
    }

    impl Acquiring {
        pub(crate) fn begin(class: Class) -> Self {
            Self {
                class,
                since: Instant::now(),
                outcome: "failed",
            }
        }

        pub(crate) fn waits(&mut self) {
            self.outcome = "cancelled";
        }

        pub(crate) fn ended<T, B, E>(mut self, outcome: &Result<Result<T, B>, E>) {
            self.outcome = match outcome {
                Ok(Ok(_)) => "acquired",
                Ok(Err(_)) => "busy",
                Err(_) => "failed",
            };
        }
    }

    impl Drop for Acquiring {
        fn drop(&mut self) {
            isolated(|| {
                let (class, outcome) = (self.class.0, self.outcome);
                metrics::counter!("redisson_lock_acquires_total", "class" => class, "outcome" => outcome)
                    .increment(1);
                if outcome == "acquired" {
                    metrics::histogram!("redisson_lock_wait_seconds", "class" => class)
                        .record(self.since.elapsed());
                }
            });
        }
    }

    /// A hold, for as long as somebody has its guard.
    pub(crate) struct Holding {
        class: Class,
        since: Instant,
        status: Arc<HoldStatus>,
        detached: bool,
    }

    impl Holding {
        pub(crate) fn begin(class: Class, status: &Arc<HoldStatus>) -> Self {
            Self {
                class,
                since: Instant::now(),
                status: Arc::clone(status),
                detached: false,
            }
        }

        pub(crate) fn detached(mut self) {
            self.detached = true;
        }
    }

    impl Drop for Holding {
        fn drop(&mut self) {
            isolated(|| {
                let class = self.class.0;
                let outcome = match self.status.ending() {
                    Some(Ending::Lost(_)) => "lost",
                    _ if self.detached => "detached",
                    Some(Ending::Released) | None => "released",
                };
                metrics::counter!("redisson_lock_holds_total", "class" => class, "outcome" => outcome)
                    .increment(1);
                metrics::histogram!("redisson_lock_hold_seconds", "class" => class)
                    .record(self.since.elapsed());
            });
        }
    }
}

#[cfg(not(feature = "metrics"))]
mod without {
    use std::sync::Arc;

    use crate::shared::HoldStatus;

    #[derive(Clone, Copy)]
    pub(crate) struct Class;

    impl Class {
        pub(crate) const DEFAULT: Self = Self;
    }

    pub(crate) struct Acquiring;

    impl Acquiring {
        pub(crate) fn begin(_: Class) -> Self {
            Self
        }

        pub(crate) fn waits(&mut self) {}

        pub(crate) fn ended<T, B, E>(self, _: &Result<Result<T, B>, E>) {}
    }

    pub(crate) struct Holding;

    impl Holding {
        pub(crate) fn begin(_: Class, _: &Arc<HoldStatus>) -> Self {
            Self
        }

        pub(crate) fn detached(self) {}
    }
}

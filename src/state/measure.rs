//! Values for the crate `metrics`: calls and holds, by the class that the caller names, and totals to alert on.
//! Without the feature nothing is measured, and nothing is kept.
//!
//! A recorder is the user's code: it is called where no mutex is held, and a panic of it ends with the measurement.

#[cfg(feature = "metrics")]
pub(crate) use with_metrics::{Acquiring, Class, Holding, count, describe};
#[cfg(not(feature = "metrics"))]
pub(crate) use without::{Acquiring, Class, Holding, count, describe};

#[cfg(feature = "metrics")]
mod with_metrics {
    use std::sync::Arc;
    use std::time::Duration;

    use metrics::{Label, Unit};
    use tokio::time::Instant;

    use crate::base::connected;
    use crate::base::runtime::isolated;
    use crate::kind::LockKind;
    use crate::names::try_lock::TryLock;
    use crate::state::hold_status::HoldStatus;
    use redisson_lock_core::{Ending, Total};

    const ACQUIRES: &str = "redisson_lock_acquires_total";
    const WAITING: &str = "redisson_lock_waiting";
    const WAIT: &str = "redisson_lock_wait_seconds";
    const HOLDS: &str = "redisson_lock_holds_total";
    const HELD: &str = "redisson_lock_held";
    const HOLD: &str = "redisson_lock_hold_seconds";
    const LOST: &str = "redisson_lock_lost_total";
    const GIVEN_UP: &str = "redisson_lock_given_up_total";

    /// Describes every metric. The totals without labels are there from now on: a counter that appears with its
    /// first loss shows no increase.
    pub(crate) fn describe() {
        isolated(|| {
            metrics::describe_counter!(
                ACQUIRES,
                Unit::Count,
                "Calls that acquire a lock, nested ones included, by class and outcome"
            );
            metrics::describe_gauge!(
                WAITING,
                Unit::Count,
                "Calls waiting for a lock now, by class"
            );
            metrics::describe_histogram!(
                WAIT,
                Unit::Seconds,
                "How long successful calls waited for the lock, by class"
            );
            metrics::describe_counter!(
                HOLDS,
                Unit::Count,
                "Holds that have ended, by class and outcome"
            );
            metrics::describe_gauge!(HELD, Unit::Count, "Locks held now, by class");
            metrics::describe_histogram!(HOLD, Unit::Seconds, "How long locks were held, by class");
            metrics::describe_counter!(LOST, Unit::Count, "Holds that were lost");
            metrics::describe_counter!(
                GIVEN_UP,
                Unit::Count,
                "Background releases that gave up and left the lock to its lease"
            );
            connected::describe();
            for name in [LOST, GIVEN_UP] {
                metrics::counter!(name).increment(0);
            }
        });
    }

    /// Counts what is worth an alert.
    pub(crate) fn count(total: Total, amount: u64) {
        let name = match total {
            Total::Lost => LOST,
            Total::GaveUp => GIVEN_UP,
            _ => return,
        };
        isolated(|| metrics::counter!(name).increment(amount));
    }

    /// The common name of the locks of one purpose.
    #[derive(Clone, Copy)]
    pub(crate) struct Class {
        name: &'static str,
        /// Of the default class alone: another one says what its locks are.
        kind: LockKind,
    }

    impl Class {
        pub(crate) const fn default_of(kind: LockKind) -> Self {
            let name = "default";
            Self { name, kind }
        }

        pub(crate) const fn named(name: &'static str) -> Self {
            let kind = LockKind::Plain;
            Self { name, kind }
        }

        fn labels(self, outcome: Option<&'static str>) -> Vec<Label> {
            let labels = [
                ("class", Some(self.name)),
                ("kind", self.kind.unless_plain()),
                ("outcome", outcome),
            ];
            let labels = labels.into_iter();
            labels
                .filter_map(|(key, value)| Some(Label::from_static_parts(key, value?)))
                .collect()
        }
    }

    /// One more of a gauge, for as long as this lives.
    struct Gauged(&'static str, Class);

    impl Gauged {
        fn new(name: &'static str, class: Class) -> Self {
            isolated(|| metrics::gauge!(name, class.labels(None)).increment(1));
            Self(name, class)
        }
    }

    impl Drop for Gauged {
        fn drop(&mut self) {
            isolated(|| metrics::gauge!(self.0, self.1.labels(None)).decrement(1));
        }
    }

    /// A call that acquires. Dropped while it waits, it was cancelled.
    pub(crate) struct Acquiring {
        class: Class,
        since: Instant,
        outcome: &'static str,
        waiting: Option<Gauged>,
    }

    impl Acquiring {
        pub(crate) fn begin(class: Class) -> Self {
            Self {
                class,
                since: Instant::now(),
                outcome: "failed",
                waiting: None,
            }
        }

        pub(crate) fn waits(&mut self) {
            self.outcome = "cancelled";
            self.waiting = Some(Gauged::new(WAITING, self.class));
        }

        pub(crate) fn ended<T, E>(mut self, outcome: &Result<TryLock<T>, E>) {
            self.outcome = match outcome {
                Ok(TryLock::Acquired(_)) => "acquired",
                Ok(TryLock::Busy { .. }) => "busy",
                Err(_) => "failed",
            };
        }
    }

    impl Drop for Acquiring {
        fn drop(&mut self) {
            isolated(|| {
                let labels = self.class.labels(Some(self.outcome));
                metrics::counter!(ACQUIRES, labels).increment(1);
                if self.outcome == "acquired" {
                    let labels = self.class.labels(None);
                    metrics::histogram!(WAIT, labels).record(self.since.elapsed());
                }
            });
        }
    }

    /// A hold, for as long as its guard is kept.
    pub(crate) struct Holding {
        class: Class,
        since: Instant,
        status: Arc<HoldStatus>,
        detached: bool,
        _held: Gauged,
    }

    impl Holding {
        pub(crate) fn begin(class: Class, status: &Arc<HoldStatus>) -> Self {
            Self {
                class,
                since: Instant::now(),
                status: Arc::clone(status),
                detached: false,
                _held: Gauged::new(HELD, class),
            }
        }

        pub(crate) fn detached(mut self) {
            self.detached = true;
        }

        pub(crate) fn held(&self) -> Duration {
            self.since.elapsed()
        }
    }

    impl Drop for Holding {
        fn drop(&mut self) {
            isolated(|| {
                let outcome = match self.status.ending() {
                    Some(Ending::Lost(_)) => "lost",
                    _ if self.detached => "detached",
                    Some(Ending::Released) | None => "released",
                };
                let labels = self.class.labels(Some(outcome));
                metrics::counter!(HOLDS, labels).increment(1);
                let labels = self.class.labels(None);
                metrics::histogram!(HOLD, labels).record(self.since.elapsed());
            });
        }
    }
}

#[cfg(not(feature = "metrics"))]
mod without {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::time::Instant;

    use crate::kind::LockKind;
    use crate::names::try_lock::TryLock;
    use crate::state::hold_status::HoldStatus;
    use redisson_lock_core::Total;

    pub(crate) fn describe() {}

    pub(crate) fn count(_: Total, _: u64) {}

    #[derive(Clone, Copy)]
    pub(crate) struct Class;

    impl Class {
        pub(crate) const fn default_of(_: LockKind) -> Self {
            Self
        }
    }

    pub(crate) struct Acquiring;

    impl Acquiring {
        pub(crate) fn begin(_: Class) -> Self {
            Self
        }

        pub(crate) fn waits(&mut self) {}

        pub(crate) fn ended<T, E>(self, _: &Result<TryLock<T>, E>) {}
    }

    pub(crate) struct Holding(Instant);

    impl Holding {
        pub(crate) fn begin(_: Class, _: &Arc<HoldStatus>) -> Self {
            Self(Instant::now())
        }

        pub(crate) fn detached(self) {}

        pub(crate) fn held(&self) -> Duration {
            self.0.elapsed()
        }
    }
}

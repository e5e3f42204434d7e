//! The client's clock: tokio's instants as times since the client was made, and back.

use tokio::time::Instant;

use crate::core::Time;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    pub(crate) fn now(&self) -> Time {
        self.time(Instant::now())
    }

    pub(crate) fn time(&self, at: Instant) -> Time {
        Time::after_start(at.saturating_duration_since(self.start))
    }

    pub(crate) fn instant(&self, time: Time) -> Instant {
        self.start + time.since_start()
    }
}

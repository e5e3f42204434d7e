//! The line on stderr while a lock is waited for.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use redisson_lock::{Lock, LockClient};

use super::{inspect, text};

/// The line; gone when this is dropped.
pub(crate) struct Progress {
    is_shown: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { is_shown: false }
    }

    /// Shows once a second who holds the lock, until the future is dropped. Without a terminal it
    /// shows nothing.
    pub(crate) async fn show<K>(
        &mut self,
        client: &LockClient,
        lock: &Lock<K>,
        limit: Option<Duration>,
    ) {
        if !std::io::stderr().is_terminal() {
            return std::future::pending().await;
        }
        let start = Instant::now();
        loop {
            // A lock that is free needs no line, nor does one that is free soon.
            tokio::time::sleep(BETWEEN).await;
            // What goes wrong here goes wrong for the waiting too, which says so.
            let Ok(Some(holder)) = inspect::holder(client, lock).await else {
                continue;
            };
            let limit =
                limit.map_or_else(String::new, |limit| format!(" of {}", text::seconds(limit)));
            let line = format!(
                "waiting for {} since {}{limit}: {}",
                text::plain(lock.name()),
                text::seconds(start.elapsed()),
                inspect::held(&holder)
            );
            let (dim, plain) = match text::may_colour() {
                true => ("\x1b[2m", "\x1b[0m"),
                false => ("", ""),
            };
            self.is_shown = true;
            let _ = write!(std::io::stderr(), "{CLEAR}{dim}{line}{plain}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown {
            let _ = write!(std::io::stderr(), "{CLEAR}");
        }
    }
}

/// To the start of the line, and delete to its end.
const CLEAR: &str = "\r\x1b[K";

const BETWEEN: Duration = Duration::from_secs(1);

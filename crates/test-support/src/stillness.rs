//! For how long the machine itself stood still.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Measures for how long the machine itself stood still, by a thread that sleeps a little at a
/// time.
pub struct Stillness {
    stop: Arc<AtomicBool>,
    watcher: JoinHandle<Duration>,
}

impl Stillness {
    pub fn watch() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let watcher = std::thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while !stopped.load(Ordering::Relaxed) {
                let start = Instant::now();
                std::thread::sleep(Duration::from_millis(5));
                longest = longest.max(start.elapsed());
            }
            longest
        });
        Self { stop, watcher }
    }

    /// The longest time between two looks.
    pub fn longest(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        self.watcher.join().expect("no panic")
    }
}

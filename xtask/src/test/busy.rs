//! A busy machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Threads that do nothing, as fast as they can, until they are dropped: what a test promises about
/// time, it promises on a busy machine.
pub struct BusyLoops {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl BusyLoops {
    pub fn start(count: usize) -> Self {
        if count > 0 {
            println!("beside {count} busy loops\n");
        }
        let stop = Arc::new(AtomicBool::new(false));
        let spin = |stop: Arc<AtomicBool>| move || while !stop.load(Ordering::Relaxed) {};
        let threads = (0..count)
            .map(|_| std::thread::spawn(spin(Arc::clone(&stop))))
            .collect();
        Self { stop, threads }
    }
}

impl Drop for BusyLoops {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_loops_end_when_they_are_dropped() {
        let loops = BusyLoops::start(2);
        let stop = Arc::clone(&loops.stop);
        assert_eq!(Arc::strong_count(&stop), 4, "two threads have it");
        drop(loops);
        assert_eq!(Arc::strong_count(&stop), 1);
    }
}

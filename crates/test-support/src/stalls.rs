//! For how long the machine kept tests and their servers from running.
//!
//! A bound of time is for a machine that runs. What counts is the time in which it stood still as a
//! whole, and the time in which a thread of this process or of one of its servers was ready and had to
//! wait for a processor.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// For how long in all something had to wait for the machine since this moment. A bound is widened by
/// what was in the wait in question, and by nothing that was before: never by more than the whole of it.
pub fn stalls(since: Instant) -> Duration {
    let watch = watch().lock().expect("unpoisoned");
    let ended: Duration = watch
        .windows
        .iter()
        .rev()
        .take_while(|(ended, _)| *ended >= since)
        .map(|(ended, waited)| (*waited).min(*ended - since))
        .sum();
    let (now, begun) = (Instant::now(), watch.begun.max(since));
    // The watcher may be waiting at this very moment.
    let still = watch.still + watch.observed_at.elapsed().saturating_sub(LOOK_EVERY);
    let queued = Usage::in_all().queued.saturating_sub(watch.queued);
    ended + still.max(queued).min(now.saturating_duration_since(begun))
}

pub(crate) struct StallWatch {
    observed_at: Instant,
    /// Since when there is no window yet, and the counts of that moment.
    begun: Instant,
    still: Duration,
    queued: Duration,
    /// When each ended, and for how long something had to wait in it.
    windows: Vec<(Instant, Duration)>,
}

const LOOK_EVERY: Duration = Duration::from_millis(5);
const WINDOW: Duration = Duration::from_millis(50);
/// A timer is a little late on any machine.
const LATE: Duration = Duration::from_millis(1);

/// A thread that sleeps a little at a time, and sees how much longer it took.
pub(crate) fn watch() -> &'static Mutex<StallWatch> {
    static WATCH: OnceLock<Mutex<StallWatch>> = OnceLock::new();
    WATCH.get_or_init(|| {
        std::thread::spawn(|| {
            loop {
                std::thread::sleep(LOOK_EVERY);
                let mut watch = watch().lock().expect("unpoisoned");
                let now = Instant::now();
                let still = (now - watch.observed_at).saturating_sub(LOOK_EVERY);
                if still > LATE {
                    watch.still += still;
                }
                watch.observed_at = now;
                let length = now - watch.begun;
                if length < WINDOW {
                    continue;
                }
                let queued = Usage::in_all().queued;
                let waited = watch.still.max(queued.saturating_sub(watch.queued));
                if waited > LATE {
                    watch.windows.push((now, waited.min(length)));
                }
                (watch.begun, watch.still, watch.queued) = (now, Duration::ZERO, queued);
            }
        });
        let now = Instant::now();
        Mutex::new(StallWatch {
            observed_at: now,
            begun: now,
            still: Duration::ZERO,
            queued: Usage::in_all().queued,
            windows: Vec::new(),
        })
    })
}

/// The processor time of this process and of what it started, but for threads that have ended. Where the system does not
/// report it, the time of the clock.
pub fn processor_time() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    let of_the_clock = START.get_or_init(Instant::now).elapsed();
    Some(Usage::in_all().ran)
        .filter(|ran| !ran.is_zero())
        .unwrap_or(of_the_clock)
}

/// What the threads of a process did that run now.
#[derive(Clone, Copy, Default)]
struct Usage {
    ran: Duration,
    /// They were ready, and had no processor.
    queued: Duration,
}

impl Usage {
    /// Of this process, and of what it started. Nothing where the system does not report it.
    fn in_all() -> Self {
        Self::of("self")
    }

    fn of(process: &str) -> Self {
        let threads = threads(process).map(|thread| {
            let counts = read(&thread, "schedstat");
            let mut counts = counts
                .split_whitespace()
                .map(|count| count.parse().unwrap_or(0));
            let mut next = || Duration::from_nanos(counts.next().unwrap_or(0));
            Self {
                ran: next(),
                queued: next(),
            }
        });
        let of_threads = threads.fold(Self::default(), Self::and);
        let children = children(process);
        let of_children = children.iter().map(|child| Self::of(child));
        of_children.fold(of_threads, Self::and)
    }

    fn and(self, other: Self) -> Self {
        Self {
            ran: self.ran + other.ran,
            queued: self.queued + other.queued,
        }
    }
}

/// The processes that this one has started. None where the system does not report them.
pub(crate) fn children(process: &str) -> Vec<String> {
    let of_threads = threads(process).map(|thread| read(&thread, "children"));
    let ids = of_threads.collect::<Vec<_>>().join(" ");
    ids.split_whitespace().map(str::to_owned).collect()
}

/// The folders of its threads.
fn threads(process: &str) -> impl Iterator<Item = PathBuf> + use<> {
    let threads = fs::read_dir(format!("/proc/{process}/task"));
    let threads = threads.into_iter().flatten().flatten();
    threads.map(|thread| thread.path())
}

fn read(thread: &Path, file: &str) -> String {
    fs::read_to_string(thread.join(file)).unwrap_or_default()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Loops that take every processor from one another.
    fn beside_busy_loops(time: Duration) -> Instant {
        let stop = AtomicBool::new(false);
        let start = Instant::now();
        std::thread::scope(|scope| {
            let processors = std::thread::available_parallelism().map_or(1, usize::from);
            for _ in 0..4 * processors {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            std::thread::sleep(time);
            stop.store(true, Ordering::Relaxed);
        });
        start
    }

    #[test]
    fn the_wait_for_a_processor_counts_and_no_more_than_the_time() {
        stalls(Instant::now());
        let start = beside_busy_loops(Duration::from_millis(400));
        let (seen, took) = (stalls(start), start.elapsed());
        assert!(seen > took / 2, "{seen:?} of {took:?}");
        assert!(seen <= took, "{seen:?} of {took:?}");
        let later = Instant::now();
        assert!(stalls(later) <= later.elapsed(), "what was before counts");
    }
}

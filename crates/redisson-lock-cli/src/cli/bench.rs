//! `bench`: how many pairs of lock and unlock a second, and how long one takes.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redisson_lock::{Error, Lock};
use tokio::task::JoinSet;

use super::args::Bench;
use super::exit::{self, Problem};
use super::signals::Signals;
use super::{CLOSE_GRACE, connect, text};

pub(crate) async fn run(arguments: &Bench) -> Result<u8, Problem> {
    let mut signals = Signals::ending_ones()?;
    let client = tokio::select! {
        biased;
        signal = signals.ending() => return Ok(exit::by_signal(signal)),
        client = connect(&arguments.server.url) => client?,
    };
    // The id of a client is random: so are the names, and nobody else's.
    let name = |task: u32| format!("redisson-lock-bench:{}:{task}", client.id());
    let locks = (0..arguments.tasks).map(|task| client.lock(name(task)));
    let time = Duration::from_secs(arguments.seconds);
    let stop = Arc::new(AtomicBool::new(false));
    let measuring = measure(locks.collect(), time, Arc::clone(&stop));
    let mut measuring = pin!(measuring);
    let (measured, ended_by) = tokio::select! {
        biased;
        signal = signals.ending() => {
            // Every task ends its pair, so no lock is left.
            stop.store(true, Ordering::Relaxed);
            (measuring.await, Some(signal))
        }
        measured = &mut measuring => (measured, None),
    };
    // A release without an answer goes on in the background, and this waits for it.
    client.close(CLOSE_GRACE).await;
    let shown = measured?.shown(arguments.tasks);
    text::print(&shown)?;
    Ok(ended_by.map_or(0, exit::by_signal))
}

/// What all tasks together did.
struct Measured {
    took: Duration,
    /// Microseconds of each pair, sorted.
    pairs: Vec<u32>,
}

/// Each lock is taken and released by a task of its own, until the time is over or `stop` is set.
async fn measure(
    locks: Vec<Lock>,
    time: Duration,
    stop: Arc<AtomicBool>,
) -> Result<Measured, Error> {
    let mut tasks = JoinSet::new();
    let start = Instant::now();
    for lock in locks {
        let stop = Arc::clone(&stop);
        tasks.spawn(async move {
            let mut pairs = Vec::new();
            while start.elapsed() < time && !stop.load(Ordering::Relaxed) {
                let before = Instant::now();
                lock.lock().await?.unlock().await?;
                pairs.push(u32::try_from(before.elapsed().as_micros()).unwrap_or(u32::MAX));
            }
            Ok::<_, Error>(pairs)
        });
    }
    // All are waited for, also behind an error: a pair that is dropped may leave its lock.
    let mut pairs = Vec::new();
    let mut failed = None;
    for task in tasks.join_all().await {
        match task {
            Ok(measured) => pairs.extend(measured),
            Err(error) => failed = Some(error),
        }
    }
    pairs.sort_unstable();
    match failed {
        Some(error) => Err(error),
        None => Ok(Measured {
            took: start.elapsed(),
            pairs,
        }),
    }
}

impl Measured {
    fn shown(&self, tasks: u32) -> String {
        let rate = self.pairs.len() as f64 / self.took.as_secs_f64();
        format!(
            "{tasks} tasks, a lock each, {}: {rate:.0} pairs per second, p50 {} µs, p99 {} µs\n",
            text::seconds(self.took),
            self.percentile(50),
            self.percentile(99)
        )
    }

    fn percentile(&self, percent: usize) -> u32 {
        let at = (self.pairs.len() * percent / 100).min(self.pairs.len().saturating_sub(1));
        self.pairs.get(at).copied().unwrap_or(0)
    }
}

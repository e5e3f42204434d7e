//! What was measured of one system in one round, and what many rounds say together.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::process::Cpu;

pub const ACQUISITIONS: &str = "acquisitions";
pub const PER_SECOND: &str = "per_second";
pub const P50: &str = "p50_us";
pub const P99: &str = "p99_us";
pub const LONGEST: &str = "longest_ms";
pub const LONGEST_TO_MEAN: &str = "longest_to_mean";
pub const FAIRNESS: &str = "fairness";
pub const SCRIPTS: &str = "script_calls_per_acquisition";
pub const CPU: &str = "cpu_ms_per_second";
pub const CALLS: &str = "script_calls_per_second";
pub const HEAP: &str = "heap_bytes_per_lock";
pub const RSS: &str = "resident_bytes_per_lock";
pub const LOST: &str = "lost";
pub const TAKE: &str = "seconds_to_take_all";
pub const CLIENT: &str = "client_us_per_acquisition";
pub const KERNEL: &str = "client_kernel_us_per_acquisition";
pub const SERVER: &str = "server_us_per_acquisition";
pub const CORES: &str = "busy_cores";
pub const READS: &str = "reads_per_second";
pub const READ_P50: &str = "read_p50_us";
pub const READ_P99: &str = "read_p99_us";
pub const WRITES: &str = "writes_per_second";
pub const WRITE_P50: &str = "write_p50_us";
pub const WRITE_P99: &str = "write_p99_us";
pub const LONGEST_WRITE: &str = "longest_write_ms";

/// One system in one round.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Sample {
    #[serde(flatten)]
    pub figures: BTreeMap<&'static str, f64>,
    /// Every latency in nanoseconds, in order of size.
    #[serde(skip)]
    pub nanos: Vec<u64>,
}

impl Sample {
    /// From the latencies of each task, one for each acquisition.
    pub fn of_tasks(tasks: Vec<Vec<u64>>, took: Duration) -> Self {
        let counts: Vec<usize> = tasks.iter().map(Vec::len).collect();
        let mut nanos = tasks.concat();
        nanos.sort_unstable();
        let total = nanos.len() as f64;
        let micros = |share: f64| quantile(&nanos, share) as f64 / 1e3;
        let sum: f64 = nanos.iter().map(|nanos| *nanos as f64 / 1e3).sum();
        let mut figures = BTreeMap::from([
            (ACQUISITIONS, total),
            (PER_SECOND, total / took.as_secs_f64()),
            (P50, micros(0.5)),
            (P99, micros(0.99)),
            (LONGEST, micros(1.0) / 1e3),
            (LONGEST_TO_MEAN, micros(1.0) * total / sum),
        ]);
        if counts.len() > 1 {
            figures.insert(FAIRNESS, jain(&counts));
        }
        Self { figures, nanos }
    }

    /// The same where the first of the tasks read, with figures for the calls of either.
    pub fn of_readers(readers: usize, mut tasks: Vec<Vec<u64>>, took: Duration) -> Self {
        let mut all = Self::of_tasks(tasks.clone(), took);
        if readers == 0 {
            return all;
        }
        let writers = tasks.split_off(readers);
        let [read, write] = [tasks, writers].map(|tasks| Self::of_tasks(tasks, took).figures);
        all.figures.remove(FAIRNESS);
        all.figures.extend([
            (READS, read[PER_SECOND]),
            (READ_P50, read[P50]),
            (READ_P99, read[P99]),
        ]);
        if write[PER_SECOND] > 0.0 {
            all.figures.extend([
                (WRITES, write[PER_SECOND]),
                (WRITE_P50, write[P50]),
                (WRITE_P99, write[P99]),
                (LONGEST_WRITE, write[LONGEST]),
            ]);
        }
        all
    }

    /// Adds the script calls of the round.
    pub fn with_scripts(mut self, calls: i64) -> Self {
        let total = self.figures.get(ACQUISITIONS).copied().unwrap_or(0.0);
        self.figures.insert(SCRIPTS, calls as f64 / total);
        self
    }

    /// Adds the processor time of the round, of the client and of the server.
    pub fn with_cpu(mut self, client: Cpu, server: Cpu, took: Duration) -> Self {
        let total = self.figures.get(ACQUISITIONS).copied().unwrap_or(0.0);
        let all = (client.sum() + server.sum()) / 1e3;
        self.figures.extend([
            (CLIENT, client.user * 1e3 / total),
            (KERNEL, client.system * 1e3 / total),
            (SERVER, server.sum() * 1e3 / total),
            (CORES, all / took.as_secs_f64()),
        ]);
        self
    }

    pub fn without_cpu(self) -> Self {
        [CLIENT, KERNEL, SERVER]
            .into_iter()
            .fold(self, Self::without)
    }

    pub fn without(mut self, figure: &str) -> Self {
        self.figures.remove(figure);
        self
    }
}

/// The smallest value that so large a share of all does not exceed.
pub fn quantile(sorted: &[u64], share: f64) -> u64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or_default()
}

/// Jain's index: 1 if all have had as much, 1/n if one has had it all.
pub fn jain(counts: &[usize]) -> f64 {
    let sum: f64 = counts.iter().map(|count| *count as f64).sum();
    let squares: f64 = counts.iter().map(|count| (*count as f64).powi(2)).sum();
    sum * sum / (counts.len() as f64 * squares)
}

/// The middle of several values, and how far they lie apart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Spread {
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values
            .into_iter()
            .filter(|value| value.is_finite())
            .collect();
        values.sort_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        let half = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[half]
        } else {
            f64::midpoint(values[half - 1], values[half])
        };
        Some(Self {
            median,
            least,
            most,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_occurred() {
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!(quantile(&hundred, 0.5), 50);
        assert_eq!(quantile(&hundred, 0.99), 99);
        assert_eq!(quantile(&hundred, 1.0), 100);
        assert_eq!(quantile(&[7], 0.5), 7);
        assert_eq!(quantile(&[], 0.5), 0);
    }

    #[test]
    fn fairness_is_one_for_equals_and_a_share_for_a_hog() {
        assert_eq!(jain(&[5, 5, 5, 5]), 1.0);
        assert_eq!(jain(&[8, 0, 0, 0]), 0.25);
    }

    #[test]
    fn a_spread_has_its_middle_and_its_ends() {
        let spread = Spread::of([3.0, 1.0, 2.0, 10.0]).expect("four values");
        assert_eq!((spread.median, spread.least, spread.most), (2.5, 1.0, 10.0));
        assert_eq!(Spread::of([f64::NAN]), None);
    }

    #[test]
    fn the_figures_of_a_round_are_those_of_its_latencies() {
        let tasks = vec![vec![1_000, 3_000], vec![2_000, 4_000_000]];
        let sample = Sample::of_tasks(tasks, Duration::from_secs(2)).with_scripts(8);
        let figure = |name: &str| sample.figures[name];
        assert_eq!(figure(PER_SECOND), 2.0);
        assert_eq!((figure(P50), figure(LONGEST)), (2.0, 4.0));
        assert_eq!(figure(LONGEST_TO_MEAN), 4_000.0 / (4_006.0 / 4.0));
        assert_eq!((figure(FAIRNESS), figure(SCRIPTS)), (1.0, 2.0));
    }

    #[test]
    fn processor_time_is_by_the_acquisition_and_by_the_second() {
        let cpu = |user, system| Cpu { user, system };
        let took = Duration::from_secs(2);
        let sample = Sample::of_tasks(vec![vec![1_000; 100]], took);
        let sample = sample.with_cpu(cpu(10.0, 20.0), cpu(500.0, 470.0), took);
        let figure = |name: &str| sample.figures[name];
        assert_eq!((figure(CLIENT), figure(KERNEL)), (100.0, 200.0));
        assert_eq!((figure(SERVER), figure(CORES)), (9_700.0, 0.5));
    }
}

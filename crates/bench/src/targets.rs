//! What each scenario is meant to reach, beside what it has reached.

use std::fmt::Write as _;

use crate::fair::TURNS;
use crate::handoff;
use crate::herd::PASS_FRED;
use crate::jvm;
use crate::results::{Outcome, number};
use crate::sample::{self, Spread};
use crate::scenario::{FRED, FRED_DEFAULT, OURS, REDIS};

/// One figure of one system, or ours divided by that of another one.
struct Target {
    scenario: &'static str,
    text: &'static str,
    figure: &'static str,
    of: &'static str,
    /// Whose figure it is divided by.
    to: Option<&'static str>,
    bound: Bound,
}

#[derive(Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

use Bound::{AtLeast, AtMost};

impl Target {
    const fn own(
        scenario: &'static str,
        text: &'static str,
        figure: &'static str,
        bound: Bound,
    ) -> Self {
        Self {
            scenario,
            text,
            figure,
            of: OURS,
            to: None,
            bound,
        }
    }

    const fn ratio(
        scenario: &'static str,
        text: &'static str,
        figure: &'static str,
        to: &'static str,
        bound: Bound,
    ) -> Self {
        let own = Self::own(scenario, text, figure, bound);
        Self {
            to: Some(to),
            ..own
        }
    }

    const fn of(self, of: &'static str) -> Self {
        Self { of, ..self }
    }

    fn measured(&self, outcomes: &[Outcome]) -> Option<f64> {
        let outcome = outcomes
            .iter()
            .find(|outcome| outcome.scenario.name == self.scenario)?;
        let spread = match self.to {
            None => outcome.row(self.of)?.spread(self.figure),
            Some(to) => Spread::of(outcome.ratios(outcome.row(to)?, self.figure)),
        };
        Some(spread?.median)
    }
}

const RATE: &str = sample::PER_SECOND;

// Formatted, each would take up seven lines.
#[rustfmt::skip]
const TARGETS: [Target; 32] = [
    Target::ratio("solo", "rate to the floor", RATE, FRED, AtLeast(0.98)),
    Target::ratio("solo", "rate to Redisson", RATE, jvm::NAME, AtLeast(1.4)),
    Target::ratio("spread64", "rate to the floor with fred's own sockets", RATE, FRED_DEFAULT, AtLeast(1.0)),
    Target::ratio("spread64", "rate to the floor with redis-rs", RATE, REDIS, AtLeast(0.8)),
    Target::ratio("spread64", "rate to Redisson", RATE, jvm::NAME, AtLeast(5.0)),
    Target::ratio("contend16", "rate to the floor", RATE, PASS_FRED, AtLeast(1.05)),
    Target::ratio("contend16", "rate to Redisson", RATE, jvm::NAME, AtLeast(3.0)),
    Target::own("contend16", "scripts each", sample::SCRIPTS, AtMost(1.1)),
    Target::own("contend16", "fairness", sample::FAIRNESS, AtLeast(0.95)),
    Target::own("contend16", "longest wait, in mean waits", sample::LONGEST_TO_MEAN, AtMost(20.0)),
    Target::ratio("contend4x4", "rate to Redisson", RATE, jvm::NAME, AtLeast(2.0)),
    Target::own("contend4x4", "p99 of a wait, µs", sample::P99, AtMost(100_000.0)),
    Target::own("beside-jvm", "p99 of our waits, µs", sample::P99, AtMost(100_000.0)),
    Target::own("beside-jvm", "p99 of the JVM's waits, µs", sample::P99, AtMost(100_000.0)).of(jvm::NAME),
    Target::ratio("handoff", "p50 to the floor", sample::P50, handoff::BARE, AtMost(1.0)),
    Target::ratio("herd1000", "rate to the floor", RATE, PASS_FRED, AtLeast(0.8)),
    Target::ratio("herd1000", "rate to Redisson", RATE, jvm::NAME, AtLeast(10.0)),
    Target::own("herd1000", "scripts each", sample::SCRIPTS, AtMost(1.1)),
    Target::ratio("fair16", "rate to the floor", RATE, TURNS, AtLeast(0.85)),
    Target::ratio("fair16", "rate to Redisson", RATE, jvm::NAME, AtLeast(2.0)),
    Target::own("fair16", "scripts each", sample::SCRIPTS, AtMost(4.1)),
    Target::own("fair16", "fairness", sample::FAIRNESS, AtLeast(0.95)),
    Target::ratio("readers16", "rate of reads to Redisson", sample::READS, jvm::NAME, AtLeast(2.0)),
    Target::ratio("readers16", "rate of writes to Redisson", sample::WRITES, jvm::NAME, AtLeast(2.0)),
    Target::ratio("hold10k", "CPU to Redisson", sample::CPU, jvm::NAME, AtMost(0.25)),
    Target::own("hold10k", "heap a lock, bytes", sample::HEAP, AtMost(700.0)),
    Target::own("hold10k", "RSS a lock, bytes", sample::RSS, AtMost(2_048.0)),
    Target::own("hold10k", "lost", sample::LOST, AtMost(0.0)),
    Target::ratio("hold50k", "CPU to Redisson", sample::CPU, jvm::NAME, AtMost(1.1)),
    Target::own("hold50k", "heap a lock, bytes", sample::HEAP, AtMost(700.0)),
    Target::own("hold50k", "RSS a lock, bytes", sample::RSS, AtMost(2_048.0)),
    Target::own("hold50k", "lost", sample::LOST, AtMost(0.0)),
];

/// Every target that was measured, in Markdown.
pub fn table(outcomes: &[Outcome]) -> String {
    let mut text =
        "| scenario | what | target | measured | |\n|---|---|---:|---:|---|\n".to_owned();
    for target in &TARGETS {
        let Some(measured) = target.measured(outcomes) else {
            continue;
        };
        let (sign, bound, met) = match target.bound {
            AtLeast(bound) => ("≥", bound, measured >= bound),
            AtMost(bound) => ("≤", bound, measured <= bound),
        };
        let digits = |value: f64| if value < 100.0 { 2 } else { 0 };
        let (bound, measured) = (
            number(bound, digits(bound)),
            number(measured, digits(measured)),
        );
        let met = if met { "" } else { "**missed**" };
        let (scenario, what) = (target.scenario, target.text);
        let _ = writeln!(
            text,
            "| {scenario} | {what} | {sign} {bound} | {measured} | {met} |"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::results::Row;
    use crate::sample::Sample;
    use crate::scenario::SCENARIOS;

    #[test]
    fn a_target_is_met_or_missed_by_the_median_of_its_rounds() {
        let row = |system, micros: u64| Row {
            system,
            rounds: vec![Sample::of_tasks(
                vec![vec![1_000; micros as usize]],
                Duration::from_secs(1),
            )],
        };
        let outcome = Outcome {
            scenario: SCENARIOS[0],
            rows: vec![row(OURS, 15), row(FRED, 20), row(jvm::NAME, 10)],
        };
        let table = table(&[outcome]);
        assert!(table.contains("| solo | rate to the floor | ≥ 0.98 | 0.75 | **missed** |\n"));
        assert!(table.contains("| solo | rate to Redisson | ≥ 1.40 | 1.50 |  |\n"));
        assert_eq!(
            table.lines().count(),
            4,
            "what was not measured is left out"
        );
    }

    #[test]
    fn every_target_is_about_a_scenario() {
        let named = |target: &Target| SCENARIOS.iter().any(|known| known.name == target.scenario);
        assert!(TARGETS.iter().all(named));
    }
}

//! All that was measured, and its tables.

use std::fmt::Write as _;

use serde::Serialize;

use crate::sample::{self, Sample, Spread};
use crate::scenario::{OURS, Scenario};

/// One system in all rounds of a scenario.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    pub system: &'static str,
    pub rounds: Vec<Sample>,
}

impl Row {
    /// Over all rounds.
    pub fn spread(&self, figure: &str) -> Option<Spread> {
        Spread::of(
            self.rounds
                .iter()
                .filter_map(|round| round.figures.get(figure).copied()),
        )
    }

    /// Every latency of every round, in order of size.
    pub fn nanos(&self) -> Vec<u64> {
        let mut all: Vec<u64> = self
            .rounds
            .iter()
            .flat_map(|round| round.nanos.iter().copied())
            .collect();
        all.sort_unstable();
        all
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    #[serde(flatten)]
    pub scenario: Scenario,
    #[serde(rename = "systems")]
    pub rows: Vec<Row>,
}

impl Outcome {
    pub fn row(&self, system: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.system == system)
    }

    /// How many locks of ours were lost, in all rounds: none may be.
    pub fn lost(&self) -> f64 {
        let rounds = self.row(OURS).into_iter().flat_map(|ours| &ours.rounds);
        rounds
            .filter_map(|round| round.figures.get(sample::LOST))
            .sum()
    }

    /// Ours divided by the other, in each round by itself.
    pub fn ratios(&self, other: &Row, figure: &str) -> Vec<f64> {
        let ours = self.row(OURS).filter(|ours| ours.system != other.system);
        let rounds = ours.into_iter().flat_map(|ours| &ours.rounds);
        let of = |sample: &Sample| sample.figures.get(figure).copied();
        rounds
            .zip(&other.rounds)
            .filter_map(|(ours, other)| Some(of(ours)? / of(other)?))
            .collect()
    }
}

/// A column: its head, the figure, and how many digits follow the point.
type Column = (&'static str, &'static str, usize);

const TAKEN: [Column; 10] = [
    ("per second", sample::PER_SECOND, 0),
    ("p50 µs", sample::P50, 0),
    ("p99 µs", sample::P99, 0),
    ("longest ms", sample::LONGEST, 1),
    ("fairness", sample::FAIRNESS, 2),
    ("scripts each", sample::SCRIPTS, 2),
    ("client µs", sample::CLIENT, 1),
    ("kernel µs", sample::KERNEL, 1),
    ("server µs", sample::SERVER, 1),
    ("cores", sample::CORES, 2),
];

const READ_AND_WRITTEN: [Column; 12] = [
    ("reads/s", sample::READS, 0),
    ("writes/s", sample::WRITES, 0),
    ("read p50 µs", sample::READ_P50, 0),
    ("read p99 µs", sample::READ_P99, 0),
    ("write p50 µs", sample::WRITE_P50, 0),
    ("write p99 µs", sample::WRITE_P99, 0),
    ("longest write ms", sample::LONGEST_WRITE, 1),
    ("scripts each", sample::SCRIPTS, 2),
    ("client µs", sample::CLIENT, 1),
    ("kernel µs", sample::KERNEL, 1),
    ("server µs", sample::SERVER, 1),
    ("cores", sample::CORES, 2),
];

const KEPT: [Column; 6] = [
    ("CPU ms/s", sample::CPU, 1),
    ("scripts/s", sample::CALLS, 0),
    ("heap B/lock", sample::HEAP, 0),
    ("RSS B/lock", sample::RSS, 0),
    ("lost", sample::LOST, 0),
    ("s to take all", sample::TAKE, 2),
];

/// The table, in Markdown that can be read as it is: locks taken, then those that are also read, then locks kept.
pub fn table(outcomes: &[Outcome]) -> String {
    let columns = |scenario: &Scenario| -> &[Column] {
        match scenario.name {
            name if name.starts_with("hold") => &KEPT,
            name if name.starts_with("readers") => &READ_AND_WRITTEN,
            _ => &TAKEN,
        }
    };
    let parts = [&TAKEN[..], &READ_AND_WRITTEN, &KEPT].map(|wanted| {
        let has = |outcome: &&Outcome| columns(&outcome.scenario) == wanted;
        part(&outcomes.iter().filter(has).collect::<Vec<_>>(), wanted)
    });
    parts.into_iter().flatten().collect::<Vec<_>>().join("\n")
}

fn part(outcomes: &[&Outcome], columns: &[Column]) -> Option<String> {
    if outcomes.is_empty() {
        return None;
    }
    let mut head = vec!["scenario".to_owned(), "system".to_owned()];
    head.extend(columns.iter().map(|(head, ..)| (*head).to_owned()));
    head.push("ours / it, median (least to most of the rounds)".to_owned());
    let mut lines = vec![head];
    for outcome in outcomes {
        for row in &outcome.rows {
            let mut cells = vec![outcome.scenario.name.to_owned(), row.system.to_owned()];
            for (_, figure, digits) in columns {
                let spread = row.spread(figure);
                cells
                    .push(spread.map_or_else(String::new, |spread| number(spread.median, *digits)));
            }
            cells.push(compared(outcome, row));
            lines.push(cells);
        }
    }
    Some(aligned(&lines))
}

/// `per second 1.52 (1.49 to 1.60), p50 …`
fn compared(outcome: &Outcome, row: &Row) -> String {
    let ratios = outcome.scenario.compared.iter().filter_map(|figure| {
        let ratio = Spread::of(outcome.ratios(row, figure))?;
        let name = [&TAKEN[..], &READ_AND_WRITTEN, &KEPT]
            .concat()
            .into_iter()
            .find(|column| column.1 == *figure)?;
        let name = name
            .0
            .split(" µs")
            .next()
            .and_then(|name| name.split(" B/").next());
        let Spread {
            median,
            least,
            most,
        } = ratio;
        Some(format!(
            "{} {median:.2} ({least:.2} to {most:.2})",
            name.unwrap_or_default()
        ))
    });
    ratios.collect::<Vec<_>>().join(", ")
}

/// With commas between thousands.
pub fn number(value: f64, digits: usize) -> String {
    let text = format!("{:.digits$}", value.abs());
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = String::new();
    for (position, digit) in whole.chars().enumerate() {
        if position > 0 && (whole.len() - position) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let sign = if value < 0.0 { "-" } else { "" };
    format!("{sign}{grouped}{rest}")
}

/// Numbers to the right, names to the left.
fn aligned(lines: &[Vec<String>]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let is_left = |column: usize| column < 2 || column + 1 == columns;
    let width = |column: usize| {
        let widths = lines.iter().map(|line| line[column].chars().count());
        widths.max().unwrap_or(0).max(3)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        for (column, cell) in line.iter().enumerate() {
            let gap = " ".repeat(widths[column] - cell.chars().count());
            let _ = if is_left(column) {
                write!(text, "| {cell}{gap} ")
            } else {
                write!(text, "| {gap}{cell} ")
            };
        }
        text.push_str("|\n");
        if number == 0 {
            for (column, width) in widths.iter().enumerate() {
                let end = if is_left(column) { "-" } else { ":" };
                let _ = write!(text, "|{}{end}", "-".repeat(width + 1));
            }
            text.push_str("|\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::scenario::SCENARIOS;

    fn outcome() -> Outcome {
        let sample = |micros: u64| {
            let task = vec![micros * 1_000; 4];
            Sample::of_tasks(vec![task], Duration::from_secs(1))
        };
        Outcome {
            scenario: SCENARIOS[0],
            rows: vec![
                Row {
                    system: OURS,
                    rounds: vec![sample(20), sample(30)],
                },
                Row {
                    system: "other",
                    rounds: vec![sample(10), sample(10)],
                },
            ],
        }
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        let outcome = outcome();
        assert_eq!(outcome.ratios(&outcome.rows[1], sample::P50), [2.0, 3.0]);
        assert!(outcome.ratios(&outcome.rows[0], sample::P50).is_empty());
        assert!(
            table(&[outcome]).contains("per second 1.00 (1.00 to 1.00), p50 2.50 (2.00 to 3.00)")
        );
    }

    #[test]
    fn each_scenario_is_in_the_table_with_its_columns() {
        let named = |name| {
            *SCENARIOS
                .iter()
                .find(|one| one.name == name)
                .expect("known")
        };
        let played = ["readers16", "hold10k", "fair16"].map(|name| Outcome {
            scenario: named(name),
            ..outcome()
        });
        let table = table(&played);
        let heads: Vec<&str> = table
            .lines()
            .filter(|line| line.contains("system"))
            .collect();
        let has = [
            ("fair16", "per second"),
            ("readers16", "writes/s"),
            ("hold10k", "lost"),
        ];
        assert_eq!(heads.len(), has.len());
        let mut parts = table.split("\n\n");
        for (name, column) in has {
            let part = parts.next().expect("a part");
            assert!(part.contains(name) && part.contains(column), "{part}");
        }
    }

    #[test]
    fn every_line_of_the_table_is_as_long() {
        let table = table(&[outcome()]);
        let lengths: Vec<usize> = table.lines().map(|line| line.chars().count()).collect();
        assert!(lengths.len() == 4 && lengths.iter().all(|length| *length == lengths[0]));
    }

    #[test]
    fn thousands_are_apart() {
        assert_eq!(number(1_234_567.0, 0), "1,234,567");
        assert_eq!(number(123.456, 1), "123.5");
        assert_eq!(number(-1_000.0, 0), "-1,000");
    }
}

//! What the parts of a run have shown: times, counts, and whether everything passed.

use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Problem, cargo};

/// Which parts belong together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Tier {
    #[default]
    First,
    Rest,
}

impl Tier {
    /// The heading of its times.
    pub fn heading(self) -> &'static str {
        match self {
            Self::First => "First tier: `cargo xtask test`",
            Self::Rest => "Second tier: what `cargo xtask test --all` adds",
        }
    }
}

/// What the parts have shown so far.
#[derive(Default)]
pub struct Report {
    tier: Tier,
    parts: Vec<Part>,
    /// How long each tier took: less than its parts, some of which run side by side.
    tiers: Vec<(Tier, Duration)>,
}

pub struct Part {
    tier: Tier,
    pub name: String,
    pub took: Duration,
    /// `5 passed, 0 failed`, `ok` or `FAILED`.
    pub result: String,
    passed: u32,
    failed: u32,
}

impl Report {
    /// Runs the parts of a tier.
    pub fn run(&mut self, tier: Tier, parts: impl FnOnce(&mut Self)) {
        let start = Instant::now();
        self.tier = tier;
        parts(self);
        self.tiers.push((tier, start.elapsed()));
    }

    /// A part that passes or fails as a whole.
    pub fn check(&mut self, name: &str, command: &mut Command) {
        println!("== {name}");
        let start = Instant::now();
        let passed = command.status().is_ok_and(|status| status.success());
        self.whole(name, start.elapsed(), passed);
    }

    /// The same for a part of this program.
    pub fn ran(&mut self, name: &str, part: impl FnOnce() -> Result<(), Problem>) {
        println!("== {name}");
        let start = Instant::now();
        let done = part();
        if let Err(problem) = &done {
            println!("{}", problem.text);
        }
        self.whole(name, start.elapsed(), done.is_ok());
    }

    /// A part that cargo test counts.
    pub fn tests(
        &mut self,
        name: &str,
        server: &Path,
        selected: &[&str],
        variables: &[(&str, &str)],
    ) {
        let cargo = cargo(&TEST);
        let Tested(took, passed, failed) =
            Tested::by(cargo, name, server, selected, variables, || ());
        self.counted(name, took, passed, failed);
    }

    /// How long one tier took, or all, and how many tests passed and failed.
    pub fn sum(&self, tier: Option<Tier>) -> (Duration, u32, u32) {
        let is_one = |of| tier.is_none_or(|tier| tier == of);
        let tiers = self.tiers.iter().filter(|(of, _)| is_one(*of));
        let took = tiers.map(|(_, took)| *took).sum();
        let parts = self.parts.iter().filter(|part| is_one(part.tier));
        parts.fold((took, 0, 0), |(took, passed, failed), part| {
            (took, passed + part.passed, failed + part.failed)
        })
    }

    /// The parts of a tier.
    pub fn parts(&self, tier: Tier) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(move |part| part.tier == tier)
    }

    /// Prints what the parts have shown. `Err`: not everything passed.
    pub fn reported(&self, start: Instant, remarks: &str) -> Result<(), Problem> {
        let line = |name: &str, took: Duration| format!("{name:<42} {:>7.1} s", took.as_secs_f64());
        for tier in [Tier::First, Tier::Rest] {
            if self.parts(tier).next().is_none() {
                continue;
            }
            println!();
            for part in self.parts(tier) {
                println!("{}  {}", line(&part.name, part.took), part.result);
            }
            let (took, ..) = self.sum(Some(tier));
            println!("{}", line("from begin to end", took));
        }
        let (_, passed, failed) = self.sum(None);
        println!("\n{}\n", line("all", start.elapsed()));
        println!("{passed} passed, {failed} failed{remarks}");
        if failed > 0 {
            Err(Problem::failed("not everything passed"))
        } else {
            Ok(())
        }
    }

    /// A part that passed or failed as a whole.
    pub fn whole(&mut self, name: &str, took: Duration, passed: bool) {
        let result = if passed { "ok" } else { "FAILED" };
        self.add(name, took, result, (passed.into(), (!passed).into()));
    }

    /// A part of which this many passed and failed.
    pub fn counted(&mut self, name: &str, took: Duration, passed: u32, failed: u32) {
        let result = format!("{passed} passed, {failed} failed");
        self.add(name, took, &result, (passed, failed));
    }

    fn add(&mut self, name: &str, took: Duration, result: &str, (passed, failed): (u32, u32)) {
        self.parts.push(Part {
            tier: self.tier,
            name: name.to_owned(),
            took,
            result: result.to_owned(),
            passed,
            failed,
        });
    }
}

/// What cargo is told before tests are selected.
pub const TEST: [&str; 2] = ["test", "--no-fail-fast"];

/// How long tests took, how many of them passed, and how many failed.
pub struct Tested(pub Duration, pub u32, pub u32);

impl Tested {
    /// `cargo`: with [`TEST`], and anything before it. `begun`: everything is built, and the first tests run.
    pub fn by(
        mut cargo: Command,
        name: &str,
        server: &Path,
        selected: &[&str],
        variables: &[(&str, &str)],
        begun: impl FnOnce(),
    ) -> Self {
        println!("== {name}");
        let start = Instant::now();
        let output = cargo
            .args(selected)
            .env("REDIS_SERVER_BIN", server)
            .env("RUST_BACKTRACE", "0")
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .spawn()
            .and_then(|cargo| read(cargo, begun));
        let (passed, failed) = match &output {
            Ok((text, succeeded)) => {
                let (passed, failed) = counts(text);
                text.lines()
                    .filter(|line| line.contains(" schedules, "))
                    .for_each(|line| println!("{line}"));
                if !succeeded {
                    println!("{text}");
                }
                // A part that broke off before it could count has failed all the same.
                (passed, failed.max(u32::from(!succeeded)))
            }
            Err(error) => {
                println!("cargo does not run: {error}");
                (0, 1)
            }
        };
        // A part that ran nothing proves nothing.
        let failed = failed.max(u32::from(passed == 0));
        Self(start.elapsed(), passed, failed)
    }
}

/// What the tests print, and whether they succeeded. Cargo itself prints nothing there.
fn read(mut cargo: Child, begun: impl FnOnce()) -> io::Result<(String, bool)> {
    let mut printed = Vec::new();
    if let Some(pipe) = cargo.stdout.take() {
        let mut pipe = BufReader::new(pipe);
        pipe.read_until(b'\n', &mut printed)?;
        begun();
        pipe.read_to_end(&mut printed)?;
    }
    let text = String::from_utf8_lossy(&printed).into_owned();
    Ok((text, cargo.wait()?.success()))
}

/// Adds up the lines `test result: ok. 5 passed; 0 failed; …`.
fn counts(output: &str) -> (u32, u32) {
    let number = |line: &str, word: &str| -> u32 {
        let before = line.split(word).next().unwrap_or_default();
        before
            .split_whitespace()
            .last()
            .and_then(|number| number.parse().ok())
            .unwrap_or(0)
    };
    output
        .lines()
        .filter(|line| line.starts_with("test result:"))
        .fold((0, 0), |(passed, failed), line| {
            (
                passed + number(line, " passed"),
                failed + number(line, " failed"),
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_several_binaries_are_added_up() {
        let output = "test result: ok. 5 passed; 0 failed; 1 ignored\nnoise\ntest result: FAILED. 7 passed; 2 failed;";
        assert_eq!(counts(output), (12, 2));
        assert_eq!(counts("error: could not compile"), (0, 0));
    }

    #[test]
    fn each_tier_has_a_sum_of_its_own() {
        let mut report = Report::default();
        let second = Duration::from_secs(1);
        report.run(Tier::First, |report| {
            report.counted("a part", second * 2, 5, 1);
            report.counted("beside it", second * 2, 1, 0);
        });
        report.run(Tier::Rest, |report| report.whole("another", second, true));
        let first = report.sum(Some(Tier::First));
        let rest = report.sum(Some(Tier::Rest));
        assert_eq!((first.1, first.2), (6, 1));
        assert_eq!((rest.1, rest.2), (1, 0));
        assert_eq!(report.sum(None), (first.0 + rest.0, 7, 1));
        assert!(first.0 < second, "from begin to end, not the sum");
    }
}

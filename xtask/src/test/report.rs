//! What the parts of a run have shown: times, counts, and whether everything passed.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Problem, cargo};

/// What the parts have shown so far.
#[derive(Default)]
pub struct Report {
    pub lines: Vec<String>,
    /// The same for a page.
    pub rows: Vec<String>,
    pub passed: u32,
    pub failed: u32,
}

impl Report {
    /// A part that passes or fails as a whole.
    pub fn check(&mut self, name: &str, command: &mut Command) {
        println!("== {name}");
        let start = Instant::now();
        let passed = command.status().is_ok_and(|status| status.success());
        self.passed += u32::from(passed);
        self.failed += u32::from(!passed);
        self.line(name, start.elapsed(), if passed { "ok" } else { "FAILED" });
    }

    /// The same for a part of this program.
    pub fn ran(&mut self, name: &str, part: impl FnOnce() -> Result<(), Problem>) {
        println!("== {name}");
        let start = Instant::now();
        let done = part();
        if let Err(problem) = &done {
            println!("{}", problem.text);
        }
        self.passed += u32::from(done.is_ok());
        self.failed += u32::from(done.is_err());
        let result = if done.is_ok() { "ok" } else { "FAILED" };
        self.line(name, start.elapsed(), result);
    }

    /// A part that cargo test counts.
    pub fn tests(
        &mut self,
        name: &str,
        server: &Path,
        selected: &[&str],
        variables: &[(&str, &str)],
    ) {
        println!("== {name}");
        let start = Instant::now();
        let output = cargo(&["test", "--no-fail-fast"])
            .args(selected)
            .env("REDIS_SERVER_BIN", server)
            .env("RUST_BACKTRACE", "0")
            .envs(variables.iter().copied())
            .stderr(Stdio::inherit())
            .output();
        let (passed, failed) = match &output {
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stdout);
                let (passed, failed) = counts(&text);
                text.lines()
                    .filter(|line| line.contains(" schedules, "))
                    .for_each(|line| println!("{line}"));
                if !output.status.success() {
                    println!("{text}");
                }
                // A part that broke off before it could count has failed all the same.
                (passed, failed.max(u32::from(!output.status.success())))
            }
            Err(error) => {
                println!("cargo does not run: {error}");
                (0, 1)
            }
        };
        // A part that ran nothing proves nothing.
        let failed = failed.max(u32::from(passed == 0));
        self.passed += passed;
        self.failed += failed;
        self.line(
            name,
            start.elapsed(),
            &format!("{passed} passed, {failed} failed"),
        );
    }

    /// Says what the parts have shown. `Err`: not everything passed.
    pub fn reported(&self, start: Instant, left_out: &str) -> Result<(), Problem> {
        println!("\n{}", self.lines.join("\n"));
        println!("{:<42} {:>7.1} s\n", "all", start.elapsed().as_secs_f64());
        println!("{} passed, {} failed{left_out}", self.passed, self.failed);
        if self.failed > 0 {
            Err(Problem::failed("not everything passed"))
        } else {
            Ok(())
        }
    }

    pub fn line(&mut self, name: &str, took: Duration, result: &str) {
        let seconds = took.as_secs_f64();
        self.rows
            .push(format!("| {name} | {seconds:.0} s | {result} |"));
        self.lines.push(format!(
            "{name:<42} {:>7.1} s  {result}",
            took.as_secs_f64()
        ));
    }
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
    use super::counts;

    #[test]
    fn results_of_several_binaries_are_added_up() {
        let output = "test result: ok. 5 passed; 0 failed; 1 ignored\nnoise\ntest result: FAILED. 7 passed; 2 failed;";
        assert_eq!(counts(output), (12, 2));
        assert_eq!(counts("error: could not compile"), (0, 0));
    }
}

//! The page with the times of a run: `cargo xtask test --record`.

use std::path::Path;

use super::Report;
use crate::{Problem, interop, page};

const FILE: &str = "docs/test-times.md";

pub fn record(report: &Report, server: &Path, seconds: f64, left_out: &str) -> Result<(), Problem> {
    let server = server_name(&interop::reported(server));
    let run = format!("{}, {server}{left_out}", page::when_and_where());
    let text = text(report, &run, seconds);
    page::write(
        FILE,
        "Times of the tests",
        "cargo xtask test --record",
        &text,
    )
}

fn text(report: &Report, run: &str, seconds: f64) -> String {
    format!(
        "One run of `cargo xtask test`, {run}. Compiling is included in the part\n\
         that does it; [`testing.md`][testing.md#the-parts] says what each part shows.\n\n\
         [testing.md#the-parts]: testing.md#the-parts\n\n\
         | part | time | result |\n|---|---:|---|\n{}\n| all | {seconds:.0} s | {} passed, {} failed |",
        report.rows.join("\n"),
        report.passed,
        report.failed
    )
}

/// `Redis server v=7.0.15 sha=…` without what follows the version.
fn server_name(reported: &str) -> String {
    let words: Vec<&str> = reported.split(' ').take(3).collect();
    words.join(" ").replace("server v=", "")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_part_has_its_row_and_the_last_one_is_the_sum() {
        let mut report = Report::default();
        report.line("a part", Duration::from_millis(2600), "5 passed, 0 failed");
        report.passed = 5;
        let text = text(&report, "today", 3.0);
        let rows: Vec<&str> = text
            .lines()
            .skip_while(|line| !line.starts_with("|---"))
            .skip(1)
            .collect();
        assert_eq!(
            rows,
            [
                "| a part | 3 s | 5 passed, 0 failed |",
                "| all | 3 s | 5 passed, 0 failed |"
            ]
        );
    }

    #[test]
    fn a_server_is_named_with_its_version() {
        let said = "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64";
        assert_eq!(server_name(said), "Redis 7.0.15");
        assert_eq!(server_name(""), "");
    }
}

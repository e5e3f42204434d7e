//! The page with the times of a run: `cargo xtask test --all --record`.

use std::path::Path;

use super::report::{Report, Tier};
use crate::{Problem, interop, page, tools};

const FILE: &str = "docs/test-times.md";

/// Writes the page. A tier that was not run keeps its times.
pub fn record(report: &Report, server: &Path, remarks: &str) -> Result<(), Problem> {
    let server = server_name(&interop::reported(server));
    let run = format!("{}, {server}{remarks}", page::when_and_where());
    let before = std::fs::read_to_string(tools::root().join(FILE)).unwrap_or_default();
    page::write(
        FILE,
        "Times of the tests",
        "cargo xtask test --all --record",
        &text(report, &run, &before),
    )
}

fn text(report: &Report, run: &str, before: &str) -> String {
    let mut text = "Compiling is included in the part that does it; [`testing.md`][testing.md#the-parts] says what each part shows.\n\n\
                    [testing.md#the-parts]: testing.md#the-parts"
        .to_owned();
    for tier in [Tier::First, Tier::Rest] {
        let heading = format!("## {}", tier.heading());
        let section = if report.parts(tier).next().is_some() {
            times(report, tier, run)
        } else {
            let kept = before.split_once(&heading).map_or("", |(_, after)| after);
            kept.split("\n## ")
                .next()
                .unwrap_or_default()
                .trim()
                .to_owned()
        };
        if !section.is_empty() {
            text += &format!("\n\n{heading}\n\n{section}");
        }
    }
    text
}

fn times(report: &Report, tier: Tier, run: &str) -> String {
    let rows: String = report
        .parts(tier)
        .map(|part| {
            let seconds = part.took.as_secs_f64();
            format!("| {} | {seconds:.0} s | {} |\n", part.name, part.result)
        })
        .collect();
    let (took, passed, failed) = report.sum(Some(tier));
    let seconds = took.as_secs_f64();
    format!(
        "{run}.\n\n| part | time | result |\n|---|---:|---|\n{rows}| from begin to end | {seconds:.0} s | {passed} passed, {failed} failed |"
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
    fn each_part_has_its_row_and_the_last_one_is_the_whole_run() {
        let mut report = Report::default();
        report.run(Tier::First, |report| {
            report.counted("a part", Duration::from_millis(2600), 5, 0);
        });
        let text = text(&report, "today", "");
        let rows: Vec<&str> = text
            .lines()
            .skip_while(|line| !line.starts_with("|---"))
            .skip(1)
            .collect();
        assert_eq!(
            rows,
            [
                "| a part | 3 s | 5 passed, 0 failed |",
                "| from begin to end | 0 s | 5 passed, 0 failed |"
            ]
        );
    }

    #[test]
    fn a_tier_that_was_not_run_keeps_its_times() {
        let mut both = Report::default();
        both.whole("early", Duration::from_secs(1), true);
        both.run(Tier::Rest, |both| {
            both.whole("late", Duration::from_secs(2), true);
        });
        let before = text(&both, "yesterday", "");
        assert_eq!(text(&Report::default(), "today", &before), before);

        let mut rest = Report::default();
        rest.run(Tier::Rest, |rest| {
            rest.whole("late", Duration::from_secs(7), true);
        });
        let after = text(&rest, "today", &before);
        assert!(after.contains("yesterday") && after.contains("| early | 1 s | ok |"));
        assert!(after.contains("| late | 7 s | ok |") && !after.contains("| late | 2 s"));
    }

    #[test]
    fn a_server_is_named_with_its_version() {
        let said = "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64";
        assert_eq!(server_name(said), "Redis 7.0.15");
        assert_eq!(server_name(""), "");
    }
}

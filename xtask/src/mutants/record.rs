//! The page with the planted bugs and what found them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use crate::{Problem, page, tools};

const FILE: &str = "docs/planted-bugs.md";

/// What became of one bug.
pub struct Row {
    pub bug: String,
    pub found: bool,
    /// What found it, or that nothing did.
    pub by: String,
    pub schedules: String,
    pub took: Duration,
}

/// Rows of bugs that this run has not planted stay as they are, if there still is such a bug.
pub fn record(planted: Vec<Row>, there_is: impl Fn(&str) -> bool) -> Result<(), Problem> {
    let page = std::fs::read_to_string(tools::root().join(FILE)).unwrap_or_default();
    let rows = merged(&page, planted, there_is);
    let text = format!(
        "{} of {} planted bugs found, {}, {:.0} s of one processor after the other. Each is a file in `mutants/`;\n\
         [`testing.md`](testing.md#planted-bugs) says how they are planted. Schedules are those that the simulator needed.\n\n{}",
        rows.iter().filter(|row| row.found).count(),
        rows.len(),
        page::when_and_where(),
        rows.iter()
            .map(|row| row.took)
            .sum::<Duration>()
            .as_secs_f64(),
        table(&rows)
    );
    page::write(FILE, "Planted bugs", "cargo xtask mutants", text.trim_end())
}

fn merged(page: &str, planted: Vec<Row>, there_is: impl Fn(&str) -> bool) -> Vec<Row> {
    let rows: BTreeMap<String, Row> = page
        .lines()
        .filter_map(read)
        .filter(|row| there_is(&row.bug))
        .chain(planted)
        .map(|row| (row.bug.clone(), row))
        .collect();
    rows.into_values().collect()
}

fn read(line: &str) -> Option<Row> {
    let mut cells = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ");
    let (bug, by) = (cells.next()?.to_owned(), cells.next()?.to_owned());
    let (schedules, took) = match (cells.next()?, cells.next()) {
        (schedules, Some(took)) => (schedules.to_owned(), took),
        (took, None) => (String::new(), took.trim_start_matches("| ")),
    };
    let seconds = took.trim().strip_suffix(" s")?.parse().ok()?;
    Some(Row {
        found: !by.starts_with("NOT FOUND"),
        bug,
        by,
        schedules: schedules.trim().to_owned(),
        took: Duration::from_secs(seconds),
    })
}

fn table(rows: &[Row]) -> String {
    let mut text = "| bug | found by | schedules | time |\n|---|---|---:|---:|\n".to_owned();
    for row in rows {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:.0} s |",
            row.bug,
            row.by,
            row.schedules,
            row.took.as_secs_f64()
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bug_has_its_row() {
        let row = |bug: &str, schedules: &str| Row {
            bug: bug.to_owned(),
            found: true,
            by: "seeds".to_owned(),
            schedules: schedules.to_owned(),
            took: Duration::from_millis(1600),
        };
        let table = table(&[row("a", "12"), row("b", "")]);
        let rows: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(rows, ["| a | seeds | 12 | 2 s |", "| b | seeds |  | 2 s |"]);
        let mut b = row("b", "7");
        b.by = "explorer".to_owned();
        let page =
            format!("{table}| c | NOT FOUND by seeds |  | 122 s |\n| d | seeds | 1 | 9 s |\n");
        let rows = merged(&page, vec![b], |bug| bug != "d");
        let found: Vec<(&str, bool, &str)> = rows
            .iter()
            .map(|row| (row.bug.as_str(), row.found, row.schedules.as_str()))
            .collect();
        assert_eq!(
            found,
            [("a", true, "12"), ("b", true, "7"), ("c", false, "")]
        );
    }
}

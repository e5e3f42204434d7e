//! The page with the planted bugs and what found them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use crate::{Problem, page, tools};

const FILE: &str = "docs/planted-bugs.md";

/// What became of one bug.
pub struct Row {
    pub bug: String,
    /// What found it, or that nothing did.
    pub by: String,
    pub schedules: String,
    pub took: Duration,
}

/// What has to find each bug, by its name.
pub type Finders = BTreeMap<String, String>;

/// All other bugs keep their rows.
pub fn record(planted: Row, finders: &Finders) -> Result<(), Problem> {
    let page = std::fs::read_to_string(tools::root().join(FILE)).unwrap_or_default();
    let rows = merged(&page, planted, finders);
    // A row from before the bug was to be found by something else proves nothing.
    let found = rows.iter().filter(|row| finders[&row.bug] == row.by);
    let text = format!(
        "{} of {} bugs found, each when it was last planted; the latest run: {}. Each is a file in `mutants/`;\n\
         [`testing.md`][testing.md#planted-bugs] says how they are planted. Schedules are those that the simulator needed.\n\n\
         [testing.md#planted-bugs]: testing.md#planted-bugs\n\n{}",
        found.count(),
        finders.len(),
        page::when_and_where(),
        table(&rows)
    );
    page::write(FILE, "Planted bugs", "cargo xtask mutants", text.trim_end())
}

fn merged(page: &str, planted: Row, finders: &Finders) -> Vec<Row> {
    let rows: BTreeMap<String, Row> = page
        .lines()
        .filter_map(read)
        .chain([planted])
        .filter(|row| finders.contains_key(&row.bug))
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
        let finders = ["a", "b", "c"].map(|bug| (bug.to_owned(), "seeds".to_owned()));
        let rows = merged(&page, b, &Finders::from(finders));
        let found: Vec<(&str, &str, &str)> = rows
            .iter()
            .map(|row| (row.bug.as_str(), row.by.as_str(), row.schedules.as_str()))
            .collect();
        assert_eq!(
            found,
            [
                ("a", "seeds", "12"),
                ("b", "explorer", "7"),
                ("c", "NOT FOUND by seeds", "")
            ]
        );
    }
}

//! The page with the planted bugs and what found them, of a run with all of them.

use std::fmt::Write as _;
use std::time::Duration;

use crate::{Problem, page};

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

pub fn record(rows: &[Row], took: Duration) -> Result<(), Problem> {
    let text = format!(
        "{} of {} planted bugs found, {}, {:.0} s. Each is a file in `mutants/`;\n\
         [`testing.md`](testing.md#planted-bugs) says how they are planted. Schedules are those that the simulator needed.\n\n{}",
        rows.iter().filter(|row| row.found).count(),
        rows.len(),
        page::when_and_where(),
        took.as_secs_f64(),
        table(rows)
    );
    page::write(FILE, "Planted bugs", "cargo xtask mutants", text.trim_end())
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
    }
}

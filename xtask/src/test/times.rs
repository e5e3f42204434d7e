//! The page with the times of a run: `cargo xtask test --record`.

use std::path::Path;

use super::Report;
use crate::{Problem, interop, page};

const FILE: &str = "docs/test-times.md";

pub fn record(report: &Report, server: &Path, seconds: f64, left_out: &str) -> Result<(), Problem> {
    let text = format!(
        "One run of `cargo xtask test`, {}, {}{left_out}. Compiling is included in the part\n\
         that does it; [`testing.md`](testing.md#the-parts) says what each part shows.\n\n\
         | part | time | result |\n|---|---:|---|\n{}\n| all | {seconds:.0} s | {} passed, {} failed |",
        page::when_and_where(),
        server_name(&interop::reported(server)),
        report.rows.join("\n"),
        report.passed,
        report.failed
    );
    page::write(
        FILE,
        "Times of the tests",
        "cargo xtask test --record",
        &text,
    )
}

/// `Redis server v=7.0.15 sha=…` without what follows the version.
fn server_name(reported: &str) -> String {
    let words: Vec<&str> = reported.split(' ').take(3).collect();
    words.join(" ").replace("server v=", "")
}

#[cfg(test)]
mod tests {
    use super::server_name;

    #[test]
    fn a_server_is_named_with_its_version() {
        let said = "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64";
        assert_eq!(server_name(said), "Redis 7.0.15");
        assert_eq!(server_name(""), "");
    }
}

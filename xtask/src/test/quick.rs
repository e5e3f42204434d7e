//! `cargo xtask test --quick`: what can be known within a minute, once everything is built.

use std::path::Path;
use std::time::Instant;

use super::{DENY, Report};
use crate::{Problem, cargo, sim};

/// How many simulated schedules.
const SCHEDULES: &str = "300";

/// Nothing here starts a server; what does, names this in its failure.
const NO_SERVER: &str = "no-server-in-the-quick-loop";

pub fn run() -> Result<(), Problem> {
    let start = Instant::now();
    let mut report = Report::default();
    report.check("formatting", &mut cargo(&["fmt", "--all", "--check"]));
    let mut lints = cargo(&["clippy", "--workspace", "--all-targets"]);
    report.check("lints", lints.args(DENY));
    let server = Path::new(NO_SERVER);
    for (name, selected, variables) in parts() {
        report.tests(name, server, &selected, variables);
    }
    report.reported(start, "; only the quick ones were run")
}

/// What is run with `cargo test`: names, what is selected, and variables.
type Part = (
    &'static str,
    Vec<&'static str>,
    &'static [(&'static str, &'static str)],
);

/// A new test target that is quick and needs no server gets a line here.
fn parts() -> [Part; 3] {
    [
        ("unit tests", vec!["--workspace", "--lib", "--bins"], &[]),
        ("explorer", sim::EXPLORER.to_vec(), &[]),
        (
            "simulator: schedules",
            [
                &sim::BUILD[..],
                &[sim::TEST, "--", "--exact", "--nocapture"],
            ]
            .concat(),
            &[("SIM_SEEDS", SCHEDULES)],
        ),
    ]
}

//! `cargo xtask test --quick`: what can be known within a minute, once everything is built.

use std::path::Path;
use std::time::Instant;

use super::first::UNITS;
use super::lints;
use super::report::Report;
use crate::{Problem, cargo, sim};

/// How many simulated schedules.
const SCHEDULES: &str = "300";

/// Nothing here starts a server; what does, names this in its failure.
const NO_SERVER: &str = "no-server-in-the-quick-loop";

pub fn run() -> Result<(), Problem> {
    let start = Instant::now();
    let mut report = Report::default();
    report.check("formatting", &mut cargo(&["fmt", "--all", "--check"]));
    report.check("lints", &mut lints());
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
        ("unit tests", UNITS.to_vec(), &[]),
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

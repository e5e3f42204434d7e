//! The first tier: what finds most bugs for the time that it takes.

use std::process::Command;
use std::time::{Duration, Instant};

use super::busy::BusyLoops;
use super::parts::FIRST;
use super::report::Report;
use super::{Machine, lints, no_run};
use crate::tools::EVERYTHING;
use crate::{cargo, java, sim, tools};

/// How many simulated schedules on one server, and how many in a cluster.
const SCHEDULES: &str = "1000";

/// The unit tests of all members of the workspace.
pub const UNITS: [&str; 4] = [EVERYTHING[0], EVERYTHING[1], "--lib", "--bins"];

/// Builds tests with the lowest priority.
fn in_the_background(selected: &[&str]) -> (Duration, bool) {
    let start = Instant::now();
    let build = no_run(selected);
    let mut nice = Command::new("nice");
    nice.args(["-n", "19"])
        .arg(build.get_program())
        .args(build.get_args())
        .current_dir(tools::root());
    let passed = nice.status().is_ok_and(|status| status.success());
    (start.elapsed(), passed)
}

impl Report {
    pub(super) fn first(&mut self, machine: &Machine) {
        let server = &machine.server;
        self.check("formatting", &mut cargo(&["fmt", "--all", "--check"]));
        self.check("lints", &mut lints());
        let files = FIRST.iter().flat_map(|part| part.files);
        let tests = files.flat_map(|file| ["--test", *file]);
        let tests: Vec<&str> = UNITS.into_iter().chain(tests).collect();
        self.check("tests build", &mut no_run(&tests));
        if machine.java.is_some() {
            self.ran("the program for Java builds", || {
                tools::program("interop").map(drop)
            });
        }
        // Nothing is promised about the time of compiling, so the loops begin after it.
        let busy_loops = BusyLoops::start(machine.busy);
        self.tests("unit tests", server, &UNITS, &[]);
        // These tests wait for most of their time.
        let building = std::thread::spawn(|| in_the_background(&sim::ALL));
        self.files(server, &FIRST, 2);
        let (took, passed) = building.join().expect("it does not panic");
        self.whole("the simulator builds, beside these", took, passed);
        self.tests(
            "simulator: schedules, traces, cancellation",
            server,
            &[&sim::BUILD[..], &["--", "--nocapture"]].concat(),
            &[("SIM_SEEDS", SCHEDULES)],
        );
        self.tests("explorer", server, &sim::EXPLORER, &[]);
        self.tests("real threads at one lock", server, &sim::THREADS, &[]);
        let docs = [&EVERYTHING[..], &["--doc"]].concat();
        self.tests("doc tests", server, &docs, &[]);
        // From 3.8.1 to 4.3.x a reader renews the keys of others.
        let three = [java::VERSIONS[0], "3.20.0", java::newest()];
        self.redissons(machine, "Java: three versions, in short", &three, &three);
        drop(busy_loops);
    }
}

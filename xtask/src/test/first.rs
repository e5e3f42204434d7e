//! The first tier: what finds most bugs for the time that it takes.

use std::path::Path;
use std::process::Command;

use super::busy::BusyLoops;
use super::parts::FIRST;
use super::report::{Report, TEST, Tested};
use super::{Machine, lints, no_run};
use crate::tools::EVERYTHING;
use crate::{cargo, java, sim, tools};

/// How many simulated schedules on one server, and how many in a cluster.
const SCHEDULES: &str = "1000";

/// The unit tests of all members of the workspace.
pub const UNITS: [&str; 4] = [EVERYTHING[0], EVERYTHING[1], "--lib", "--bins"];

/// What is simulated waits for nothing and knows no time but its own: it takes what the tests beside it leave of the CPUs.
fn simulated(server: &Path) -> [(&'static str, Tested); 2] {
    let schedules = [&sim::BUILD[..], &["--", "--nocapture"]].concat();
    let parts = [
        ("simulator: schedules, traces, cancellation", &schedules[..]),
        ("explorer", &sim::EXPLORER[..]),
    ];
    let seeds = [("SIM_SEEDS", SCHEDULES)];
    parts.map(|(name, selected)| {
        let cargo = gently(&cargo(&TEST));
        (name, Tested::by(cargo, name, server, selected, &seeds))
    })
}

/// A command with the lowest priority.
fn gently(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "19"])
        .arg(command.get_program())
        .args(command.get_args())
        .current_dir(tools::root());
    nice
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
        self.check("the simulator builds", &mut no_run(&sim::all()));
        if machine.java.is_some() {
            self.ran("the program for Java builds", || {
                tools::program("interop").map(drop)
            });
        }
        // Nothing is promised about the time of compiling, so the loops begin after it.
        let busy_loops = BusyLoops::start(machine.busy);
        self.tests("unit tests", server, &UNITS, &[]);
        // These tests wait for most of their time.
        let simulated = std::thread::spawn({
            let server = server.clone();
            move || simulated(&server)
        });
        self.files(server, &FIRST, 2);
        let docs = [&EVERYTHING[..], &["--doc"]].concat();
        self.tests("doc tests", server, &docs, &[]);
        // From 3.8.1 to 4.3.x a reader renews the keys of others.
        let three = [java::VERSIONS[0], "3.20.0", java::newest()];
        self.redissons(machine, "Java: three versions, in short", &three, &three);
        for (name, tested) in simulated.join().expect("it does not panic") {
            let Tested(took, passed, failed) = tested;
            self.counted(name, took, passed, failed);
        }
        self.tests("real threads at one lock", server, &sim::THREADS, &[]);
        drop(busy_loops);
    }
}

//! The first tier: what finds most bugs for the time that it takes.

use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::busy::BusyLoops;
use super::parts::FIRST;
use super::report::{Report, TEST, Tested};
use super::{DENY, Machine, no_run, redissons};
use crate::published::PUBLISHED;
use crate::tools::EVERYTHING;
use crate::{cargo, java, sim, tools};

/// How many parts run at a time.
const LANES: usize = 2;

/// The most steps of a world of the explorer: 81 of 121 worlds have fewer. The second tier explores all of them.
const STEPS: &str = "100000";

/// The unit tests of the libraries and of the programs that users and CI run.
pub const UNITS: [&str; 7] = [
    EVERYTHING[0],
    EVERYTHING[1],
    "--lib",
    "--bin",
    "redisson-lock",
    "--bin",
    "xtask",
];

/// The lints of what is published, without its tests.
fn lints_of_published() -> Command {
    let packages = PUBLISHED.iter().flat_map(|name| ["--package", *name]);
    let mut lints = cargo(&["clippy", "--all-features"]);
    lints.args(packages).args(DENY);
    lints
}

/// What is simulated waits for nothing and knows no time but its own. So it takes what the tests beside it leave of the
/// CPUs, but a fair share beside busy loops, which leave nothing.
struct Simulated {
    build: (Duration, bool),
    tested: [(&'static str, Tested); 2],
}

impl Simulated {
    fn run(server: &Path, is_busy: bool) -> Self {
        let with = |command: Command| if is_busy { command } else { gently(&command) };
        println!("== {SIMULATOR}");
        let start = Instant::now();
        let built = with(build_simulator()).status();
        let build = (start.elapsed(), built.is_ok_and(|status| status.success()));
        let schedules = [&sim::BUILD[..], &["--", "--nocapture"]].concat();
        let parts = [
            ("simulator: schedules, traces, cancellation", &schedules[..]),
            ("explorer", &sim::EXPLORER[..]),
        ];
        let limits = [("EXPLORE_AT_MOST", STEPS)];
        let tested = parts.map(|(name, selected)| {
            let cargo = with(cargo(&TEST));
            (
                name,
                Tested::by(cargo, name, server, selected, &limits, || ()),
            )
        });
        Self { build, tested }
    }
}

const SIMULATOR: &str = "the simulator builds";

fn build_simulator() -> Command {
    no_run(&sim::with(&[sim::EXPLORER, sim::THREADS]))
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
        self.check("lints of what is published", &mut lints_of_published());
        let files = FIRST.iter().flat_map(|part| part.files);
        let tests = files.flat_map(|file| ["--test", *file]);
        let tests: Vec<&str> = UNITS.into_iter().chain(tests).collect();
        self.check("tests build", &mut no_run(&tests));
        if machine.java.is_some() {
            self.ran("the program for Java builds", || {
                tools::program("interop").map(drop)
            });
        }
        let is_busy = machine.busy > 0;
        if is_busy {
            self.check(SIMULATOR, &mut build_simulator());
        }
        // Nothing is promised about the time of compiling, so the loops begin after it.
        let busy_loops = BusyLoops::start(machine.busy);
        self.tests("unit tests", server, &UNITS, &[]);
        // Cargo builds one thing at a time. Once tests run in each lane, none of them needs it for minutes.
        let (begun, has_begun) = mpsc::channel();
        let simulated = std::thread::spawn({
            let server = server.clone();
            move || {
                (0..LANES).for_each(|_| _ = has_begun.recv());
                Simulated::run(&server, is_busy)
            }
        });
        // These tests wait for most of their time, and so do the JVMs.
        std::thread::scope(|scope| {
            let name = "Java: three versions, in short";
            // From 3.8.1 to 4.3.x a reader renews the keys of others.
            let three = [java::VERSIONS[0], "3.20.0", java::newest()];
            let java = scope.spawn(move || redissons(machine, name, &three, &three));
            self.files(server, &FIRST, LANES, || _ = begun.send(()));
            let docs = [&EVERYTHING[..], &["--doc"]].concat();
            self.tests("doc tests", server, &docs, &[]);
            if let Some((took, played)) = java.join().expect("it does not panic") {
                self.cells(name, took, played);
            }
        });
        let simulated = simulated.join().expect("it does not panic");
        let (took, is_built) = simulated.build;
        self.whole(SIMULATOR, took, is_built);
        for (name, Tested(took, passed, failed)) in simulated.tested {
            self.counted(name, took, passed, failed);
        }
        self.tests("real threads at one lock", server, &sim::THREADS, &[]);
        drop(busy_loops);
    }
}

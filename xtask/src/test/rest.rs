//! What `--all` adds to the first tier: what takes long, and what is seldom wrong.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::busy::BusyLoops;
use super::parts::{ALONE, LIBRARY, REST};
use super::report::Report;
use super::{DENY, Machine, examples, lints, no_run};
use crate::demo::beside_java;
use crate::java::{self, Java};
use crate::tools::{self, EVERYTHING, Server};
use crate::{Problem, bench, cargo, docs, features, mutants, release, sim};

/// How many simulated schedules of each kind, on one server and in a cluster; the first tier has 100.
const SCHEDULES: &str = "1000";

/// The unit tests of programs that the first tier does not build.
const PROGRAMS: [&str; 6] = [
    EVERYTHING[0],
    EVERYTHING[1],
    "--bin",
    "bench",
    "--bin",
    "chaos",
];

impl Report {
    /// `long`: locks are held for a minute, and callers of several storm for one.
    pub(super) fn rest(&mut self, machine: &Machine, long: bool) {
        let server = &machine.server;
        let mut alone = cargo(&["clippy", "--package", "redisson-lock", "--all-targets"]);
        self.check("lints of the library alone", alone.args(DENY));
        self.check("lints", &mut lints());
        self.ran("each feature by itself", features::each);
        self.ran("docs and their links", docs::run);
        self.ran("packages build from their tarballs", release::packages);
        self.ran("nothing breaks users of the last release", || {
            release::compatible(machine.install)
        });
        self.ran("planted bugs are found", mutants::run_few);
        self.check("the library alone builds", &mut no_run(&LIBRARY));
        let files = REST.iter().chain([&ALONE]).flat_map(|part| part.files);
        let files = files.flat_map(|file| ["--test", *file]);
        let files: Vec<&str> = EVERYTHING.into_iter().chain(files).collect();
        self.check("tests build", &mut no_run(&files));
        self.check(
            "the simulator builds",
            &mut no_run(&sim::with(&[sim::EXPLORER, sim::WAITERS])),
        );
        self.ran("programs build", || {
            ["bench", "demo", "interop"]
                .iter()
                .try_for_each(|program| tools::program(program).map(drop))
        });

        let busy_loops = BusyLoops::start(machine.busy);
        self.tests("unit tests of the programs", server, &PROGRAMS, &[]);
        self.tests("the library alone", server, &LIBRARY, &[]);
        self.files(server, &REST, 1, || ());
        self.ran("examples", || examples::run(server));
        let full = [java::VERSIONS[0], java::newest()];
        let mut short = java::VERSIONS.to_vec();
        short.retain(|version| !full.contains(version));
        self.redissons(machine, "Java: all Redissons", &java::VERSIONS, &short);
        self.peers(machine);
        self.benchmarks(machine.java.as_ref(), server);
        let seconds = [("HEAVY_SECS", if long { "60" } else { "12" })];
        self.tests(ALONE.name, server, &ALONE.selected(), &seconds);
        let schedules = [&sim::BUILD[..], &["schedules::", "--", "--nocapture"]].concat();
        let seeds = [("SIM_SEEDS", SCHEDULES)];
        self.tests("simulator: more schedules", server, &schedules, &seeds);
        self.tests("explorer: every world", server, &sim::EXPLORER, &[]);
        self.tests("alone: many waiters", server, &sim::WAITERS, &[]);
        if long {
            let storm = ["--test", "multi", "twenty_tasks"];
            let storm: Vec<&str> = EVERYTHING.into_iter().chain(storm).collect();
            let minute = [("MULTI_STORM_SECS", "60")];
            self.tests("several locks: a minute", server, &storm, &minute);
        }
        drop(busy_loops);
        self.demo_without_its_lock(server);
        self.demo_without_its_replicas(server);
        self.demo_of_the_kinds(machine);
    }

    /// A moment of every scenario: its counts must be right. Without Java, Redisson is left out.
    fn benchmarks(&mut self, java: Option<&Java>, server: &Path) {
        let name = "benchmarks: smoke";
        match bench::smoke(java, server) {
            Ok(mut command) => self.check(name, &mut command),
            Err(problem) => {
                println!("{}", problem.text);
                self.whole(name, Duration::ZERO, false);
            }
        }
        let mut pairs = bench::smoke_of_pairs(server);
        self.check("benchmarks: smoke, a pair of each kind", &mut pairs);
    }

    /// The demo must go wrong when the lock calls of its last row are taken out.
    fn demo_without_its_lock(&mut self, server: &Path) {
        let failed_as_it_should = || {
            let program = tools::program("demo")?;
            let server = Server::start(server)?;
            let words = ["--only", "redisson-lock", "--take-out-the-lock"];
            is_not_exact(
                Command::new(program)
                    .args(["--url", &server.url])
                    .args(words),
                1,
            )
        };
        self.ran("demo fails without its lock", failed_as_it_should);
    }

    /// Beyond one server it must go wrong when nothing waits for the replicas.
    fn demo_without_its_replicas(&mut self, server: &Path) {
        let failed_as_it_should = || {
            let program = tools::program("demo")?;
            for topology in ["--cluster", "--sentinel"] {
                let mut demo = Command::new(&program);
                demo.env("REDIS_SERVER_BIN", server);
                is_not_exact(demo.args([topology, "--take-out-the-replicas"]), 1)?;
            }
            Ok(())
        };
        self.ran("demo fails without its replicas", failed_as_it_should);
    }

    /// Late writes are refused, owners get a fair lock in order, and readers see no half of a report. Without the checks
    /// none of it is so. Without Java, the JVMs are left out.
    fn demo_of_the_kinds(&mut self, machine: &Machine) {
        let demo = || {
            let program = tools::program("demo")?;
            let mut demo = Command::new(&program);
            demo.env("REDIS_SERVER_BIN", &machine.server).arg("--kinds");
            match &machine.java {
                Some(java) => beside_java(&mut demo, java)?,
                None => _ = demo.env_remove("DEMO_JAVA"),
            }
            let output = demo.output()?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr);
                return Err(Problem::failed(format!("{}: {said}", output.status)));
            }
            is_not_exact(demo.arg("--take-out-the-checks"), 4)
        };
        self.ran("demo of the kinds, which fails without its checks", demo);
    }
}

/// Whether the demo ends with a stock that was not sold exactly in this many of its rows.
fn is_not_exact(demo: &mut Command, rows: usize) -> Result<(), Problem> {
    let output = demo.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(1) && said.matches("is not exact").count() == rows {
        Ok(())
    } else {
        Err(Problem::failed(format!("{}: {said}", output.status)))
    }
}

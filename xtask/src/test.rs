//! `cargo xtask test`: what CI runs, part by part, each with its time and its counts.

mod busy;
mod examples;
mod parts;
mod quick;
mod report;
mod times;

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use self::busy::BusyLoops;
pub use self::parts::features;
use self::parts::{OPTIONAL, PARTS, at_once};
use self::report::Report;
use crate::java::{self, Java};
use crate::tools::{self, Server};
use crate::{Problem, bench, cargo, demo, docs, features, interop, mutants, sim};

struct Options {
    long: bool,
    with_java: bool,
    /// How many busy loops run beside the tests.
    busy: usize,
    /// Whether the page with the times is written.
    record: bool,
}

impl Options {
    fn parse(arguments: &[&str]) -> Result<Self, Problem> {
        let (mut long, mut with_java, mut busy, mut record) = (false, true, 0, false);
        let mut rest = arguments;
        while !rest.is_empty() {
            rest = match rest {
                ["--long", rest @ ..] => {
                    long = true;
                    rest
                }
                ["--record", rest @ ..] => {
                    record = true;
                    rest
                }
                ["--without", "java", rest @ ..] => {
                    with_java = false;
                    rest
                }
                ["--busy", loops, rest @ ..]
                    if loops.parse().is_ok_and(|loops: usize| loops <= BUSY_MAX) =>
                {
                    busy = loops.parse().unwrap_or(0);
                    rest
                }
                _ => return Err(Problem::to_do(USAGE)),
            };
        }
        Ok(Self {
            long,
            with_java,
            busy,
            record,
        })
    }
}

pub fn run(arguments: &[&str], install: bool) -> Result<(), Problem> {
    if arguments == ["--quick"] {
        return quick::run();
    }
    let Options {
        long,
        with_java,
        busy,
        record,
    } = Options::parse(arguments)?;
    let server = tools::redis_server(install)?;
    let java = if with_java {
        Some(java::find(install)?)
    } else {
        None
    };
    println!("testing with {}\n", server.display());
    let start = Instant::now();
    let mut report = Report::default();
    report.sources();
    report.planted_bugs();
    // Compiling promises nothing about time: the loops begin with the tests.
    report.builds();
    let busy_loops = BusyLoops::start(busy);
    report.without_java(&server);
    if let Some(java) = &java {
        report.java(java, &server);
    }
    report.benchmarks(java.as_ref(), &server);
    let seconds = if long { "60" } else { "12" };
    report.tests(
        "alone",
        &server,
        &["--package", "redisson-lock", "--test", "alone"],
        &[("HEAVY_SECS", seconds)],
    );
    report.tests("alone: many waiters", &server, &sim::WAITERS, &[]);
    drop(busy_loops);
    report.demo_without_its_lock(&server);
    report.demo_without_its_replicas(&server);

    let left_out = if with_java {
        ""
    } else {
        "; the tests with Java (jvm_*) were left out"
    };
    let beside = if busy > 0 {
        format!("; the tests beside {busy} busy loops")
    } else {
        String::new()
    };
    let left_out = format!("{left_out}{beside}");
    let seconds = start.elapsed().as_secs_f64();
    report.reported(start, &left_out)?;
    if record {
        times::record(&report, &server, seconds, &left_out)?;
    }
    Ok(())
}

const USAGE: &str = "usage: cargo xtask test [--long] [--busy LOOPS] [--without java] [--record] [--no-install]\n       \
                     cargo xtask test --quick";

/// Behind what clippy is given.
pub const DENY: [&str; 4] = ["--quiet", "--", "-D", "warnings"];

/// More is a slip of the finger.
const BUSY_MAX: usize = 64;

/// How many simulated schedules.
const SCHEDULES: &str = "2000";

impl Report {
    /// What can be said without running a test.
    fn sources(&mut self) {
        self.check("formatting", &mut cargo(&["fmt", "--all", "--check"]));
        let mut lints = cargo(&["clippy", "--workspace", "--all-targets"]);
        self.check("lints", lints.args(DENY));
        // In the workspace the library has its feature `test-util`, as its users do not.
        let mut alone = cargo(&["clippy", "--package", "redisson-lock", "--all-targets"]);
        self.check("lints of the library alone", alone.args(DENY));
        let mut optional = cargo(&["clippy", "--package", "redisson-lock", "--all-targets"]);
        optional.arg("--all-features").args(DENY);
        self.check("lints of all features", &mut optional);
        self.ran("each feature by itself", features::each);
        self.ran("docs and their links", || docs::run(&[]));
        self.check("package builds from its own tarball", &mut package());
    }

    /// The library with its tests and benches by itself, without `test-util`; then the rest.
    fn builds(&mut self) {
        let no_run = ["test", "--no-run", "--quiet"];
        let mut alone = cargo(&no_run);
        alone.args(["--package", "redisson-lock", "--all-targets"]);
        self.check("the library alone builds", &mut alone);
        let mut rest = cargo(&no_run);
        rest.args(["--workspace", "--lib", "--bins"]);
        self.check("tests build", &mut rest);
        self.check("the simulator builds", cargo(&no_run).args(sim::BUILD));
    }

    /// Every test that needs no Java, but those that run alone.
    fn without_java(&mut self, server: &Path) {
        let units = ["--workspace", "--lib", "--bins"];
        self.tests("unit tests", server, &units, &[]);
        let alone = ["--package", "redisson-lock", "--lib"];
        self.tests("unit tests of the library alone", server, &alone, &[]);
        let optional = [&alone[..], &["--features", OPTIONAL]].concat();
        self.tests("unit tests of optional features", server, &optional, &[]);
        let simulator = [&sim::BUILD[..], &["--", "--nocapture"]].concat();
        let schedules = [("SIM_SEEDS", SCHEDULES)];
        self.tests(
            "simulator: schedules, traces, cancellation",
            server,
            &simulator,
            &schedules,
        );
        self.tests("explorer", server, &sim::EXPLORER, &[]);
        self.tests("real threads at one lock", server, &sim::THREADS, &[]);
        for (name, features, files) in PARTS {
            let mut selected = vec!["--package", "redisson-lock"];
            selected.extend(features.iter().flat_map(|feature| ["--features", feature]));
            selected.extend(files.iter().flat_map(|file| ["--test", file]));
            let at_once = at_once(files).map(|threads| ("RUST_TEST_THREADS", threads));
            self.tests(name, server, &selected, at_once.as_slice());
        }
        let kit = ["--package", "redisson-lock-test", "--tests"];
        self.tests("test kit", server, &kit, &[]);
        self.ran("examples", || examples::run(server));
        let service = ["--package", "service", "--test", "service"];
        self.tests("service", server, &service, &[]);
        let cli = ["--package", "redisson-lock-cli", "--test", "cli"];
        self.tests("command line", server, &cli, &[]);
        let attribute = ["--package", "redisson-lock-macros", "--tests"];
        self.tests("attribute", server, &attribute, &[]);
        let docs = [
            "--doc",
            "--package",
            "redisson-lock",
            "--package",
            "redisson-lock-macros",
            "--package",
            "redisson-lock-test",
            "--features",
            "redisson-lock/blocking,redisson-lock/metrics,redisson-lock/serde,redisson-lock/tls-rustls",
        ];
        self.tests("doc tests", server, &docs, &[]);
    }

    /// A few bugs are planted, and must be found.
    fn planted_bugs(&mut self) {
        self.ran("planted bugs are found", mutants::run_few);
    }

    /// The oldest and the newest Redisson in full, the others in short.
    fn java(&mut self, java: &Java, server: &Path) {
        let name = "Java peers";
        println!("== {name}");
        let start = Instant::now();
        let (oldest, newest) = (
            interop::VERSIONS[0],
            interop::VERSIONS[interop::VERSIONS.len() - 1],
        );
        let short: Vec<&str> = interop::VERSIONS
            .into_iter()
            .filter(|version| *version != oldest && *version != newest)
            .collect();
        let played = interop::VERSIONS
            .iter()
            .try_for_each(|version| java.build(version))
            .and_then(|()| interop::play(java, server, &interop::VERSIONS, &short, None));
        let (passed, planned) = match &played {
            Ok(cells) => cells.iter().fold((0, 0), |sum, cell| {
                (sum.0 + cell.passed, sum.1 + cell.planned)
            }),
            Err(problem) => {
                println!("{}", problem.text);
                (0, 1)
            }
        };
        self.passed += passed;
        self.failed += planned - passed;
        self.line(
            name,
            start.elapsed(),
            &format!("{passed} passed, {} failed", planned - passed),
        );
    }

    /// A moment of every scenario: its counts must be right. Without Java, Redisson is left out.
    fn benchmarks(&mut self, java: Option<&Java>, server: &Path) {
        let name = "benchmarks: smoke";
        match bench::smoke(java, server) {
            Ok(mut command) => self.check(name, &mut command),
            Err(problem) => {
                println!("{}", problem.text);
                self.failed += 1;
                self.line(name, std::time::Duration::ZERO, "FAILED");
            }
        }
    }

    /// The demo must go wrong when the lock calls of its last row are taken out.
    fn demo_without_its_lock(&mut self, server: &Path) {
        let failed_as_it_should = || {
            let program = demo::build()?;
            let server = Server::start(server)?;
            let words = ["--only", "redisson-lock", "--take-out-the-lock"];
            is_not_exact(
                Command::new(program)
                    .args(["--url", &server.url])
                    .args(words),
            )
        };
        self.ran("demo fails without its lock", failed_as_it_should);
    }

    /// Beyond one server it must go wrong when nobody waits for the replicas.
    fn demo_without_its_replicas(&mut self, server: &Path) {
        let failed_as_it_should = || {
            let program = demo::build()?;
            for topology in ["--cluster", "--sentinel"] {
                let mut demo = Command::new(&program);
                demo.env("REDIS_SERVER_BIN", server);
                is_not_exact(demo.args([topology, "--take-out-the-replicas"]))?;
            }
            Ok(())
        };
        self.ran("demo fails without its replicas", failed_as_it_should);
    }
}

/// Whether the demo ends with a stock that was not sold exactly.
fn is_not_exact(demo: &mut Command) -> Result<(), Problem> {
    let output = demo
        .output()
        .map_err(|error| Problem::failed(error.to_string()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(1) && said.contains("is not exact") {
        Ok(())
    } else {
        Err(Problem::failed(format!("{}: {said}", output.status)))
    }
}

fn package() -> Command {
    // Packages what is in the working tree, also before it is committed. The library needs the
    // attribute, which may not be published yet.
    cargo(&[
        "package",
        "--quiet",
        "--allow-dirty",
        "--package",
        "redisson-lock-macros",
        "--package",
        "redisson-lock",
    ])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_file_of_tests_is_in_one_part() {
        let files = std::fs::read_dir(tools::root().join("tests")).expect("it is there");
        let files: BTreeSet<String> = files
            .filter_map(|file| file.ok()?.file_name().into_string().ok())
            .filter_map(|file| Some(file.strip_suffix(".rs")?.to_owned()))
            .collect();
        let parts = PARTS.iter().flat_map(|(_, _, files)| files.iter().copied());
        let listed: Vec<&str> = parts.chain(["alone"]).collect();
        let once: BTreeSet<String> = listed.iter().map(|file| (*file).to_owned()).collect();
        assert_eq!(files, once);
        assert_eq!(listed.len(), once.len(), "one is listed twice");
    }
}

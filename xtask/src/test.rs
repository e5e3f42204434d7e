//! `cargo xtask test`: what CI runs, in two tiers, part by part, each with its time and its counts.

mod busy;
mod examples;
mod first;
mod parts;
mod quick;
mod report;
mod rest;
mod times;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use self::report::{Report, TEST, Tested, Tier};
use crate::java::{self, Java};
use crate::{Problem, cargo, interop, peers, tools};

#[derive(clap::Args)]
pub struct Options {
    /// What can be known within a minute: formatting, lints, unit tests, the explorer, 300 schedules
    #[arg(long, exclusive = true)]
    quick: bool,
    /// Both tiers: also the library alone, the package, the kit, the examples, six Redissons, planted bugs, the
    /// benchmarks and the demo
    #[arg(long, conflicts_with = "rest")]
    all: bool,
    /// Only what --all adds
    #[arg(long)]
    rest: bool,
    /// 10,000 locks are held for a minute instead of 12 s; runs both tiers
    #[arg(long)]
    long: bool,
    /// The tests run beside this many busy loops, at most 64
    #[arg(long, value_name = "LOOPS", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=64))]
    busy: u8,
    /// What is left out
    #[arg(long, value_parser = ["java"])]
    without: Option<String>,
    /// Writes docs/test-times.md when everything has passed
    #[arg(long)]
    record: bool,
}

impl Options {
    fn tiers(&self) -> &'static [Tier] {
        match self {
            Self { rest: true, .. } => &[Tier::Rest],
            // Only the second tier holds locks for a minute.
            Self { all, long, .. } if *all || *long => &[Tier::First, Tier::Rest],
            _ => &[Tier::First],
        }
    }
}

/// What the parts run on.
struct Machine {
    server: PathBuf,
    java: Option<Java>,
    /// How many busy loops run beside the tests.
    busy: usize,
    /// Whether what is missing may be installed.
    install: bool,
}

pub fn run(options: &Options, install: bool) -> Result<(), Problem> {
    if options.quick {
        return quick::run();
    }
    let with_java = options.without.is_none();
    let machine = Machine {
        server: tools::redis_server(install)?,
        java: with_java.then(|| java::find(install)).transpose()?,
        busy: options.busy.into(),
        install,
    };
    println!("testing with {}\n", machine.server.display());
    let start = Instant::now();
    let mut report = Report::default();
    for tier in options.tiers() {
        report.run(*tier, |report| match tier {
            Tier::First => report.first(&machine),
            Tier::Rest => report.rest(&machine, options.long),
        });
    }
    let mut remarks = String::new();
    if !with_java {
        remarks += "; the tests with Java were left out";
    }
    if options.busy > 0 {
        remarks += &format!("; the tests beside {} busy loops", options.busy);
    }
    report.reported(start, &remarks)?;
    if options.record {
        times::record(&report, &machine.server, &remarks)?;
    }
    Ok(())
}

/// The arguments that turn warnings of clippy into errors.
pub const DENY: [&str; 4] = ["--quiet", "--", "-D", "warnings"];

/// The lints of everything, with every feature.
fn lints() -> Command {
    let mut lints = cargo(&["clippy", "--all-targets"]);
    lints.args(tools::EVERYTHING).args(DENY);
    lints
}

/// Compiles tests without running them.
fn no_run(selected: &[&str]) -> Command {
    let mut build = cargo(&["test", "--no-run", "--quiet"]);
    build.args(selected);
    build
}

/// The cells of a matrix, or why it could not be played.
type Played = Result<Vec<interop::Cell>, Problem>;

/// Plays these versions of Redisson, some of them in short, unless Java is left out.
fn redissons(
    machine: &Machine,
    name: &str,
    versions: &[&str],
    short: &[&str],
) -> Option<(Duration, Played)> {
    let java = machine.java.as_ref()?;
    println!("== {name}");
    let start = Instant::now();
    let played = versions
        .iter()
        .try_for_each(|version| java.build(version))
        .and_then(|()| interop::play(Some(java), &machine.server, versions, short, None));
    Some((start.elapsed(), played))
}

impl Report {
    /// Real Redisson JVMs: these versions, some of them in short.
    fn redissons(&mut self, machine: &Machine, name: &str, versions: &[&str], short: &[&str]) {
        if let Some((took, played)) = redissons(machine, name, versions, short) {
            self.cells(name, took, played);
        }
    }

    /// Redis locks of other libraries, beside string locks.
    fn peers(&mut self, machine: &Machine) {
        let name = "string locks: redis-py, redsync, Spring's commands";
        println!("== {name}");
        let start = Instant::now();
        let played = peers::prepare(machine.install)
            .and_then(|()| interop::play(None, &machine.server, &peers::PEERS, &[], Some("one")));
        self.cells(name, start.elapsed(), played);
    }

    fn cells(&mut self, name: &str, took: Duration, played: Played) {
        let (passed, planned) = match &played {
            Ok(cells) => cells.iter().fold((0, 0), |sum, cell| {
                (sum.0 + cell.passed, sum.1 + cell.planned)
            }),
            Err(problem) => {
                println!("{}", problem.text);
                (0, 1)
            }
        };
        self.counted(name, took, passed, planned - passed);
    }

    /// Files of tests, with every feature of the workspace: this many parts at a time. `begun`: the tests of a part run.
    fn files(
        &mut self,
        server: &Path,
        parts: &[parts::Part],
        lanes: usize,
        begun: impl Fn() + Sync,
    ) {
        let next = AtomicUsize::new(0);
        let lane = || {
            let tested = std::iter::from_fn(|| {
                let nth = next.fetch_add(1, Ordering::Relaxed);
                let part = parts.get(nth)?;
                let threads = part.at_once.map(|threads| ("RUST_TEST_THREADS", threads));
                let (name, selected) = (part.name, part.selected());
                let tested = Tested::by(
                    cargo(&TEST),
                    name,
                    server,
                    &selected,
                    threads.as_slice(),
                    &begun,
                );
                Some((nth, name, tested))
            });
            tested.collect::<Vec<_>>()
        };
        let mut tested = std::thread::scope(|scope| {
            let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(lane)).collect();
            let lanes = lanes.into_iter();
            let tested = lanes.flat_map(|lane| lane.join().expect("a lane does not panic"));
            tested.collect::<Vec<_>>()
        });
        // The report has them in the order of the list, whichever ended first.
        tested.sort_by_key(|(nth, ..)| *nth);
        for (_, name, Tested(took, passed, failed)) in tested {
            self.counted(name, took, passed, failed);
        }
    }
}

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
use std::time::Instant;

use self::report::{Report, Tested, Tier};
use crate::java::{self, Java};
use crate::{Problem, cargo, interop, peers, tools};

#[derive(Debug, PartialEq, Eq)]
struct Options {
    tiers: &'static [Tier],
    long: bool,
    with_java: bool,
    /// How many busy loops run beside the tests.
    busy: usize,
    /// Whether the page with the times is written.
    record: bool,
}

impl Options {
    fn parse(arguments: &[&str]) -> Result<Self, Problem> {
        let mut options = Self {
            tiers: &[Tier::First],
            long: false,
            with_java: true,
            busy: 0,
            record: false,
        };
        let mut rest = arguments;
        while !rest.is_empty() {
            rest = match rest {
                ["--all", rest @ ..] => {
                    options.tiers = &[Tier::First, Tier::Rest];
                    rest
                }
                ["--rest", rest @ ..] => {
                    options.tiers = &[Tier::Rest];
                    rest
                }
                ["--long", rest @ ..] => {
                    options.long = true;
                    rest
                }
                ["--record", rest @ ..] => {
                    options.record = true;
                    rest
                }
                ["--without", "java", rest @ ..] => {
                    options.with_java = false;
                    rest
                }
                ["--busy", loops, rest @ ..]
                    if loops.parse().is_ok_and(|loops: usize| loops <= BUSY_MAX) =>
                {
                    options.busy = loops.parse().unwrap_or(0);
                    rest
                }
                _ => return Err(Problem::to_do(USAGE)),
            };
        }
        // Only the second tier holds locks for a minute.
        if options.long && options.tiers == [Tier::First] {
            options.tiers = &[Tier::First, Tier::Rest];
        }
        Ok(options)
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

pub fn run(arguments: &[&str], install: bool) -> Result<(), Problem> {
    if arguments == ["--quick"] {
        return quick::run();
    }
    let options = Options::parse(arguments)?;
    let machine = Machine {
        server: tools::redis_server(install)?,
        java: options.with_java.then(|| java::find(install)).transpose()?,
        busy: options.busy,
        install,
    };
    println!("testing with {}\n", machine.server.display());
    let start = Instant::now();
    let mut report = Report::default();
    for tier in options.tiers {
        report.run(*tier, |report| match tier {
            Tier::First => report.first(&machine),
            Tier::Rest => report.rest(&machine, options.long),
        });
    }
    let mut remarks = String::new();
    if !options.with_java {
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

const USAGE: &str = "usage: cargo xtask test [--all | --rest] [--long] [--busy LOOPS] [--without java] [--record] [--no-install]\n       \
                     cargo xtask test --quick";

/// The arguments that turn warnings of clippy into errors.
pub const DENY: [&str; 4] = ["--quiet", "--", "-D", "warnings"];

/// A larger number is a typo.
const BUSY_MAX: usize = 64;

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

impl Report {
    /// Real Redisson JVMs: these versions, some of them in short.
    fn redissons(&mut self, machine: &Machine, name: &str, versions: &[&str], short: &[&str]) {
        let Some(java) = &machine.java else { return };
        println!("== {name}");
        let start = Instant::now();
        let played = versions
            .iter()
            .try_for_each(|version| java.build(version))
            .and_then(|()| interop::play(Some(java), &machine.server, versions, short, None));
        self.cells(name, start, played);
    }

    /// Redis locks of other libraries, beside string locks.
    fn peers(&mut self, machine: &Machine) {
        let name = "string locks: redis-py, redsync, Spring's commands";
        println!("== {name}");
        let start = Instant::now();
        let played = peers::prepare(machine.install)
            .and_then(|()| interop::play(None, &machine.server, &peers::PEERS, &[], Some("one")));
        self.cells(name, start, played);
    }

    fn cells(&mut self, name: &str, start: Instant, played: Result<Vec<interop::Cell>, Problem>) {
        let (passed, planned) = match &played {
            Ok(cells) => cells.iter().fold((0, 0), |sum, cell| {
                (sum.0 + cell.passed, sum.1 + cell.planned)
            }),
            Err(problem) => {
                println!("{}", problem.text);
                (0, 1)
            }
        };
        self.counted(name, start.elapsed(), passed, planned - passed);
    }

    /// Files of tests, with every feature of the workspace: this many parts at a time.
    fn files(&mut self, server: &Path, parts: &[parts::Part], lanes: usize) {
        let next = AtomicUsize::new(0);
        let lane = || {
            let tested = std::iter::from_fn(|| {
                let nth = next.fetch_add(1, Ordering::Relaxed);
                let part = parts.get(nth)?;
                let threads = part.at_once.map(|threads| ("RUST_TEST_THREADS", threads));
                let (name, selected) = (part.name, part.selected());
                Some((
                    nth,
                    name,
                    Tested::by_cargo(name, server, &selected, threads.as_slice()),
                ))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_tier_is_the_default_and_a_long_run_needs_both() {
        let tiers = |words: &[&str]| Options::parse(words).expect("known").tiers;
        assert_eq!(tiers(&[]), [Tier::First]);
        assert_eq!(tiers(&["--busy", "2", "--record"]), [Tier::First]);
        assert_eq!(tiers(&["--all"]), [Tier::First, Tier::Rest]);
        assert_eq!(tiers(&["--rest", "--long"]), [Tier::Rest]);
        assert_eq!(tiers(&["--long"]), [Tier::First, Tier::Rest]);
    }

    #[test]
    fn options_are_read_and_others_are_refused() {
        let words = ["--long", "--busy", "2", "--without", "java", "--record"];
        assert_eq!(
            Options::parse(&words).expect("known"),
            Options {
                tiers: &[Tier::First, Tier::Rest],
                long: true,
                with_java: false,
                busy: 2,
                record: true,
            }
        );
        for wrong in [&["--busy"][..], &["--busy", "65"], &["--without", "redis"]] {
            assert_eq!(Options::parse(wrong).expect_err("refused").status, 2);
        }
    }
}

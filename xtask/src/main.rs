//! The commands of this repository. `cargo xtask` says what there is.
//!
//! Nothing here is needed to use the library. Each command finds or installs what it needs, says so
//! first, and touches nothing outside the repository, its target folder and temporary folders but
//! the system packages that it announces.

#![allow(unreachable_pub, reason = "a program, not a library")]

#[cfg(test)]
#[macro_use]
extern crate test_support;

mod bench;
mod chaos;
mod demo;
mod docs;
mod features;
mod fuzz;
mod interop;
mod java;
mod msrv;
mod mutants;
mod packages;
mod page;
mod pair;
mod peers;
mod published;
mod release;
mod sim;
mod test;
mod tools;
mod weight;

use std::process::{Command, ExitCode};

use clap::{Parser, Subcommand};

/// The commands of this repository. Each finds or installs what it needs, and says so first.
#[derive(Parser)]
#[command(
    bin_name = "cargo xtask",
    after_help = "With --no-install a command does not install anything: it says what is missing and stops."
)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Sell a stock of 1,000 eight ways and see which lock holds
    Demo(demo::Options),
    /// The tests, in two tiers: the first finds most bugs for its time, with three Redissons in short
    Test(test::Options),
    /// Our client and real Redisson JVMs in every pairing
    Interop(interop::Options),
    /// What a lock costs, beside Redisson, rslock and the bare scripts
    ///
    /// Prints a table and writes target/bench/results.json and docs/benchmarks.md with its plots, in about 40 minutes.
    Bench(bench::Options),
    /// Simulated schedules, on one server, or in a cluster whose slots move and whose primaries fail over
    Sim(sim::Options),
    /// Every order of steps of small worlds of the core, to the end
    Explore(sim::Explore),
    /// Kills, stops, moves and fails over servers of its own under load, and judges what the locks did
    Chaos(chaos::Options),
    /// Bytes that a fuzzer chooses in place of replies
    Fuzz(fuzz::Options),
    /// Which files and how many functions of src an uncontended lock and unlock enter, by valgrind
    Pair,
    /// The documentation into target/doc, and whether the links of the Markdown files and of the guide lead somewhere
    Docs,
    /// Whether the library builds with every two of its optional features
    Features,
    /// Whether the declared Rust version is enough for the newest dependencies
    Msrv,
    /// Whether this commit could be released, without publishing anything
    ///
    /// Packages every published crate, builds the documentation as docs.rs does, and compares with the last release.
    Release,
    /// What a program that takes one lock costs to build, beside rslock and a bare client
    ///
    /// Its part of README.md is written.
    Weight,
    /// Plants bugs in a copy of the tree, and sees whether the tests find them
    ///
    /// The rows of the bugs in docs/planted-bugs.md are written.
    Mutants(mutants::Options),
}

fn main() -> ExitCode {
    // It may stand anywhere, also among the words that a command hands on.
    let (no_install, words): (Vec<String>, Vec<String>) =
        std::env::args().partition(|word| word == "--no-install");
    let install = no_install.is_empty();
    let done = match Arguments::parse_from(words).task {
        Task::Demo(options) => demo::run(&options, install),
        Task::Test(options) => test::run(&options, install),
        Task::Interop(options) => interop::run(&options, install),
        Task::Bench(options) => bench::run(&options, install),
        Task::Sim(options) => sim::run(&options),
        Task::Explore(options) => sim::explore(&options),
        Task::Chaos(options) => chaos::run(&options.words, install),
        Task::Fuzz(options) => fuzz::run(&options, install),
        Task::Pair => pair::run(install),
        Task::Docs => docs::run(),
        Task::Features => features::run(),
        Task::Msrv => msrv::run(),
        Task::Release => release::run(install),
        Task::Weight => weight::run(),
        Task::Mutants(options) => mutants::run(&options, install),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("\n{}", problem.text);
            ExitCode::from(problem.status)
        }
    }
}

/// A cargo command in the root of the repository.
fn cargo(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args(words).current_dir(tools::root());
    command
}

/// Waits until a command has ended. `failed` says what it means that it did not succeed.
fn ended(command: &mut Command, failed: impl Into<String>) -> Result<(), Problem> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        // It has said what is wrong with its arguments.
        Ok(status) if status.code() == Some(2) => Err(Problem::to_do("nothing was run")),
        Ok(_) => Err(Problem::failed(failed)),
        Err(error) => {
            let program = command.get_program().display();
            Err(Problem::failed(format!("{program} does not run: {error}")))
        }
    }
}

/// Why a command stops: status 1 for a failure, 2 for something that the caller has to do first.
#[derive(Debug)]
pub struct Problem {
    text: String,
    status: u8,
}

/// Those of files name the file.
impl From<std::io::Error> for Problem {
    fn from(error: std::io::Error) -> Self {
        Self::failed(error.to_string())
    }
}

impl Problem {
    /// Something went wrong.
    pub fn failed(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            status: 1,
        }
    }

    /// The caller has to do something first.
    pub fn to_do(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            status: 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_fit_each_other() {
        Arguments::command().debug_assert();
    }
}

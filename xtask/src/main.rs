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
mod lines;
mod msrv;
mod mutants;
mod page;
mod pair;
mod peers;
mod sim;
mod test;
mod tools;

use std::process::{Command, ExitCode};

const USAGE: &str = "\
usage: cargo xtask COMMAND

  demo [--only WAY] [--with-java] [--svg]
                      sell a stock of 1,000 eight ways and see which lock holds;
                      --with-java: every other seller is a JVM with Redisson;
                      --svg: the result also as docs/demo.svg
  demo --cluster | --sentinel
                      the same stock while a primary is killed of whose lock no replica knows: what is
                      sold without sync_replicas, and with it
  demo --kinds [--without-java]
                      the same stock under a fenced lock, with guarded writes, and under a red lock: what
                      becomes of the late write of a stopped holder, and of a sale in which one of five
                      servers is killed; owners of a Rust and a JVM client get a fair lock in the order in
                      which they came; readers of both see no half of a report that is updated
  test --quick        what can be known within a minute: formatting, lints, unit tests, the
                      explorer, 300 schedules
  test [--all | --rest] [--long] [--busy LOOPS] [--without java] [--record]
                      the first tier: what finds most bugs for its time, with three Redissons in short
                      --all also runs the rest: the library alone, the package, the kit, the
                      examples, six Redissons, planted bugs, the benchmarks and the demo
                      --rest runs only what --all adds
                      --long holds 10,000 locks for a minute instead of 12 s, and runs both tiers
                      --busy runs the tests beside this many busy loops
                      --record writes docs/test-times.md when everything has passed
  interop [--topology one|cluster|sentinel] [--redisson VERSION]... [--server NAME]... [--all]
                      our client and real Redisson JVMs in every pairing; --all is the full matrix,
                      --planted sees whether planted bugs are found; --peers: string locks with
                      redis-py, redsync, and the commands that Spring sends, instead of JVMs

  bench [--quick | --smoke] [--only SCENARIO]...
                      what a lock costs, beside Redisson, rslock and the bare scripts: a table,
                      target/bench/results.json, and docs/benchmarks.md with its plots, in about
                      40 minutes; --quick: three short rounds in about four minutes, docs/ is not
                      written; --smoke: a moment of each, for its counts; --only fair16 --only readers16
                      writes their part of the page

  sim [--topology cluster | --kind KIND] [--first SEED] [--seeds N | --seconds T]
                      simulated schedules, on one server, or in a cluster whose slots move and whose
                      primaries fail over: 10,000 seeds from 1 on, N seeds, or as many as T seconds
                      allow; --first: from this seed on; --kind: with spin, fenced or string locks,
                      or multi: with callers that take several
  sim [--topology cluster | --kind KIND] --seed SEED
                      one of them again, with its history
  chaos --topology cluster|sentinel [--seconds N] [--seed S] [--log FILE]
                      kills, stops, moves and fails over servers of its own under load, for 60 s or
                      N seconds, and judges what the locks did; --log: the events of the clients
  explore [--deep] [--browse WORLD]
                      every order of steps of small worlds of the core, to the end; --deep: larger
                      ones; --browse: one of them, step by step, at http://127.0.0.1:3000
  fuzz [--seconds N]  bytes that a fuzzer chooses in place of replies, for 60 s or N seconds
  lines               counts the Rust lines of each folder, and the code without unit tests
  pair                which files and how many functions of src an uncontended lock and unlock
                      enter, by valgrind
  docs                the documentation into target/doc, and whether the links of the README, of the
                      front page and of the guide lead somewhere
  features            whether the library builds with every two of its optional features
  msrv                whether the declared Rust version is enough for the newest dependencies
  mutants [NAME]... [--check | --build]
                      plants bugs in a copy of the tree, and sees whether the tests find them; when
                      none is named, all of them; their rows in docs/planted-bugs.md are written;
                      --check only sees whether they can be planted

  --no-install        do not install anything; say what is missing and stop";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments
        .iter()
        .map(String::as_str)
        .filter(|word| *word != "--no-install")
        .collect();
    let install = words.len() == arguments.len();
    let done = match words.split_first() {
        Some((&"demo", rest)) => demo::run(rest, install),
        Some((&"test", rest)) => test::run(rest, install),
        Some((&"interop", rest)) => interop::run(rest, install),
        Some((&"bench", rest)) => bench::run(rest, install),
        Some((&"chaos", rest)) => chaos::run(rest, install),
        Some((&"sim", rest)) => sim::run(rest),
        Some((&"explore", rest)) => sim::explore(rest),
        Some((&"mutants", rest)) => mutants::run(rest, install),
        Some((&"fuzz", rest)) => fuzz::run(rest, install),
        Some((&"lines", rest)) => lines::run(rest),
        Some((&"pair", rest)) => pair::run(rest, install),
        Some((&"docs", rest)) => docs::run(rest),
        Some((&"features", rest)) => features::run(rest),
        Some((&"msrv", rest)) => msrv::run(rest),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
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

/// Why a command stops: status 1 for a failure, 2 for something that the caller has to do first.
#[derive(Debug)]
pub struct Problem {
    text: String,
    status: u8,
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

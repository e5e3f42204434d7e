//! What a lock costs: this crate beside Redisson, rslock, and its own scripts on bare clients.
//!
//! `cargo xtask bench` builds the JVMs' side and runs it. The figures mean something beside each
//! other, on one machine and in one run.

#![allow(unreachable_pub, reason = "a program, not a library")]

#[cfg(test)]
#[macro_use]
extern crate test_support;

mod bare;
mod beside;
mod context;
mod fair;
mod far;
mod handoff;
mod heap;
mod herd;
mod hold;
mod jvm;
mod looping;
mod page;
mod plots;
mod process;
mod readers;
mod results;
mod sample;
mod scenario;
mod scenarios;
mod sweeps;
mod targets;
mod workers;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};

use self::context::{Context, Form};
use self::hold::Plan;
use self::results::Outcome;
use self::scenario::{OWN_PART, SCENARIOS, Scenario};

#[derive(Parser)]
#[command(bin_name = "cargo xtask bench", args_conflicts_with_subcommands = true)]
struct Options {
    /// Three short rounds
    #[arg(long, conflicts_with = "smoke")]
    quick: bool,
    /// A moment of each, for its counts
    #[arg(long)]
    smoke: bool,
    /// One scenario, or several
    #[arg(long, value_name = "SCENARIO", value_parser = SCENARIOS.map(|scenario| scenario.name))]
    only: Vec<String>,
    #[command(subcommand)]
    child: Option<Child>,
}

/// What this program does in a process of its own.
#[derive(Subcommand)]
enum Child {
    #[command(hide = true)]
    HoldLocks {
        port: u16,
        first: usize,
        count: usize,
        millis: u64,
    },
}

impl Options {
    fn form(&self) -> Form {
        match self {
            Self { quick: true, .. } => Form::Quick,
            Self { smoke: true, .. } => Form::Smoke,
            _ => Form::Full,
        }
    }

    fn scenarios(&self) -> impl Iterator<Item = &'static Scenario> {
        let wanted = |name: &str| self.only.is_empty() || self.only.iter().any(|only| only == name);
        SCENARIOS
            .iter()
            .filter(move |scenario| wanted(scenario.name))
    }
}

fn main() {
    let options = Options::parse();
    if let Some(Child::HoldLocks {
        port,
        first,
        count,
        millis,
    }) = options.child
    {
        let time = Duration::from_millis(millis);
        runtime(hold::child(port, Plan { first, count, time }));
    } else {
        runtime(run(options));
    }
}

/// Two workers, as on the machine with two cores that the figures of `docs/benchmarks.md` come
/// from. Work is a task of its own, so that its owners are those of tasks.
fn runtime(work: impl Future<Output = ()> + Send + 'static) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let task = runtime.spawn(work);
    if runtime.block_on(task).is_err() {
        // The panic has been printed.
        std::process::exit(1);
    }
}

async fn run(options: Options) {
    let begin = Instant::now();
    let java = std::env::var_os("BENCH_JAVA").map(PathBuf::from);
    let form = options.form();
    let context = Context::start(form, java);
    if !context.with_java() {
        println!("without Redisson: `cargo xtask bench` builds its side and runs this program");
    }
    let mut outcomes = Vec::new();
    for scenario in options.scenarios() {
        let start = Instant::now();
        // Nothing waits for ever, whatever is broken.
        let limit = Duration::from_secs(60 * form.pick(30, 5, 5));
        let outcome = tokio::time::timeout(limit, scenarios::play(scenario, &context)).await;
        let outcome =
            outcome.unwrap_or_else(|_| panic!("{} is not over after {limit:?}", scenario.name));
        if outcome.rows.is_empty() {
            println!("{:<10} left out: it needs Java", scenario.name);
            continue;
        }
        let seconds = start.elapsed().as_secs_f64();
        // In short there is less of it than the text says.
        let text = form.pick(scenario.text, scenario.text, "");
        println!("{:<10} {seconds:>6.1} s  {text}", scenario.name);
        outcomes.push(outcome);
    }
    let is_whole = form == Form::Full && options.only.is_empty();
    let sweeps = if is_whole {
        sweeps::all(&context).await
    } else {
        Vec::new()
    };
    let seconds = begin.elapsed().as_secs();
    let run = format!("{}, {seconds} s", page::when_and_where(&context));
    if form == Form::Smoke {
        // A moment says nothing about time.
        println!("{} scenarios, every count right; {run}", outcomes.len());
        return;
    }
    println!("\n{}", results::table(&outcomes));
    println!("{}", targets::table(&outcomes));
    page::write_json(&outcomes, &sweeps, form, &run);
    let lost: f64 = outcomes.iter().map(Outcome::lost).sum();
    assert_eq!(lost, 0.0, "locks were lost: docs/ is not written");
    let played = |name: &&str| {
        outcomes
            .iter()
            .any(|outcome| outcome.scenario.name == *name)
    };
    if is_whole {
        page::write(&outcomes, &sweeps, &run);
    } else if form == Form::Full
        && context.with_java()
        && outcomes.len() == OWN_PART.len()
        && OWN_PART.iter().all(played)
    {
        page::write_kinds(&outcomes, &run);
    } else if form == Form::Quick {
        println!(
            "quick: three short rounds, no sweeps; a first impression, and docs/ is not written"
        );
    } else {
        println!("some scenarios only: docs/ is not written");
    }
}

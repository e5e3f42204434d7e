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
mod limits;
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
use std::process::ExitCode;
use std::time::{Duration, Instant};

use self::context::{Context, Form};
use self::hold::Plan;
use self::results::Outcome;
use self::scenario::{OWN_PART, SCENARIOS, Scenario};

const USAGE: &str = "usage: bench [--quick | --smoke] [--only SCENARIO]...";

struct Options {
    form: Form,
    only: Vec<String>,
}

impl Options {
    fn parse(words: &[String]) -> Result<Self, String> {
        let (mut form, mut only) = (Form::Full, Vec::new());
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match (word.as_str(), words.as_slice().first()) {
                ("--quick", _) => form = Form::Quick,
                ("--smoke", _) => form = Form::Smoke,
                ("--only", Some(name)) => {
                    only.push(name.clone());
                    words.next();
                }
                _ => return Err(USAGE.to_owned()),
            }
        }
        let names: Vec<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
        match only.iter().find(|name| !names.contains(&name.as_str())) {
            Some(name) => Err(format!("{name} is none of {}", names.join(", "))),
            None => Ok(Self { form, only }),
        }
    }

    fn scenarios(&self) -> impl Iterator<Item = &'static Scenario> {
        let wanted = |name: &str| self.only.is_empty() || self.only.iter().any(|only| only == name);
        SCENARIOS
            .iter()
            .filter(move |scenario| wanted(scenario.name))
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == hold::CHILD) {
        let numbers: Vec<usize> = words[1..]
            .iter()
            .filter_map(|word| word.parse().ok())
            .collect();
        let [port, first, count, millis] = numbers[..] else {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        };
        let time = Duration::from_millis(millis as u64);
        runtime(hold::child(port as u16, Plan { first, count, time }));
        return ExitCode::SUCCESS;
    }
    match Options::parse(&words) {
        Ok(options) => {
            runtime(run(options));
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::from(2)
        }
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
    let context = Context::start(options.form, java);
    if !context.with_java() {
        println!("without Redisson: `cargo xtask bench` builds its side and runs this program");
    }
    let mut outcomes = Vec::new();
    for scenario in options.scenarios() {
        let start = Instant::now();
        // Nothing waits for ever, whatever is broken.
        let limit = Duration::from_secs(60 * options.form.pick(30, 5, 5));
        let outcome = tokio::time::timeout(limit, scenarios::play(scenario, &context)).await;
        let outcome =
            outcome.unwrap_or_else(|_| panic!("{} is not over after {limit:?}", scenario.name));
        if outcome.rows.is_empty() {
            println!("{:<10} left out: it needs Java", scenario.name);
            continue;
        }
        let seconds = start.elapsed().as_secs_f64();
        // In short there is less of it than the text says.
        let text = options.form.pick(scenario.text, scenario.text, "");
        println!("{:<10} {seconds:>6.1} s  {text}", scenario.name);
        outcomes.push(outcome);
    }
    let is_whole = options.form == Form::Full && options.only.is_empty();
    let sweeps = if is_whole {
        sweeps::all(&context).await
    } else {
        Vec::new()
    };
    let seconds = begin.elapsed().as_secs();
    let run = format!("{}, {seconds} s", page::when_and_where(&context));
    if options.form == Form::Smoke {
        // A moment says nothing about time.
        println!("{} scenarios, every count right; {run}", outcomes.len());
        return;
    }
    println!("\n{}", results::table(&outcomes));
    println!("{}", targets::table(&outcomes));
    page::write_json(&outcomes, &sweeps, options.form, &run);
    let lost: f64 = outcomes.iter().map(Outcome::lost).sum();
    assert_eq!(lost, 0.0, "locks were lost: docs/ is not written");
    let played = |name: &&str| {
        outcomes
            .iter()
            .any(|outcome| outcome.scenario.name == *name)
    };
    if is_whole {
        page::write(&outcomes, &sweeps, &run);
    } else if options.form == Form::Full
        && context.with_java()
        && outcomes.len() == OWN_PART.len()
        && OWN_PART.iter().all(played)
    {
        page::write_kinds(&outcomes, &run);
    } else if options.form == Form::Quick {
        println!(
            "quick: three short rounds, no sweeps; a first impression, and docs/ is not written"
        );
    } else {
        println!("some scenarios only: docs/ is not written");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Options, String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Options::parse(&words)
    }

    #[test]
    fn a_scenario_is_chosen_by_its_name_and_an_unknown_one_names_all() {
        let options = parse(&["--quick", "--only", "solo", "--only", "handoff"]).expect("known");
        let names: Vec<&str> = options.scenarios().map(|scenario| scenario.name).collect();
        assert_eq!(
            (options.form, names),
            (Form::Quick, vec!["solo", "handoff"])
        );
        let problem = parse(&["--only", "nothing"]).err().expect("unknown");
        assert!(problem.contains("nothing is none of solo, spread64"));
        assert!(parse(&["--only"]).is_err() && parse(&["fast"]).is_err());
    }

    #[test]
    fn without_a_choice_all_are_played_in_full() {
        let options = parse(&[]).expect("right");
        assert_eq!(options.form, Form::Full);
        assert_eq!(options.scenarios().count(), SCENARIOS.len());
    }
}

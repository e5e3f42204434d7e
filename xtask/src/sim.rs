//! `cargo xtask sim`: the simulator, for as many schedules as wanted, or for one of them.

#[cfg(test)]
use crate::tools;
use crate::tools::EVERYTHING;
use crate::{Problem, cargo, ended};

#[derive(clap::Args)]
pub struct Options {
    /// A cluster instead of one server
    #[arg(long, value_parser = ["cluster"])]
    topology: Option<String>,
    /// With locks of this kind; multi: with callers that take several
    #[arg(long, value_parser = ["spin", "fenced", "string", "fair", "read-write", "multi"])]
    kind: Option<String>,
    /// From this seed on
    #[arg(long)]
    first: Option<u64>,
    /// How many; under a minute on two cores, in a cluster under two
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    seeds: u64,
    /// As many as this time allows
    #[arg(long, value_name = "T", conflicts_with = "seeds")]
    seconds: Option<u64>,
    /// One of them again, with its history
    #[arg(long, conflicts_with_all = ["first", "seeds", "seconds"])]
    seed: Option<u64>,
}

pub fn run(options: &Options) -> Result<(), Problem> {
    let test = options.test()?;
    let numbers = [
        ("SIM_FIRST", options.first),
        ("SIM_SEED", options.seed),
        ("SIM_SECONDS", options.seconds),
        ("SIM_SEEDS", Some(options.seeds)),
    ];
    let mut command = cargo(&["test", "--quiet"]);
    command
        .args(BUILD)
        .args([&test, "--", "--exact", "--nocapture"])
        .env("RUST_BACKTRACE", "0")
        .envs(
            numbers
                .into_iter()
                .filter_map(|(name, number)| Some((name, number?.to_string()))),
        );
    ended(
        &mut command,
        "a promise was broken: docs/testing.md says how to read the history above",
    )
}

impl Options {
    /// The test to run.
    fn test(&self) -> Result<String, Problem> {
        let kind = self.kind.as_deref();
        let of = match kind {
            None => String::new(),
            Some("multi") => "_with_several_locks".to_owned(),
            Some(kind) => format!("_of_{}_locks", kind.replace('-', "_")),
        };
        let place = match (&self.topology, kind) {
            (None, _) => "",
            (Some(_), None | Some("multi" | "read-write")) => "_in_a_cluster",
            (Some(_), Some(kind)) => {
                return Err(Problem::to_do(format!(
                    "{kind} locks have no schedules in a cluster"
                )));
            }
        };
        Ok(format!(
            "schedules::every_schedule{of}{place}_keeps_the_promises"
        ))
    }
}

/// The test that runs the schedules.
pub const TEST: &str = "schedules::every_schedule_keeps_the_promises";

/// What is ours is built optimised; everything else is what the other tests are built with.
const fn optimised(test: &str) -> [&str; 6] {
    let config = "crates/sim/optimised.toml";
    [
        "--config",
        config,
        EVERYTHING[0],
        EVERYTHING[1],
        "--test",
        test,
    ]
}

/// What is built: the simulator.
pub const BUILD: [&str; 6] = optimised("sim");

/// The explorer of the core.
pub const EXPLORER: [&str; 6] = optimised("explore");

/// Real threads at one lock.
pub const THREADS: [&str; 6] = optimised("threads");

/// What many waiters cost.
pub const WAITERS: [&str; 6] = optimised("waiters");

/// The simulator and these.
pub fn with(others: &[[&'static str; 6]]) -> Vec<&'static str> {
    let others = others.iter().flat_map(|test| ["--test", test[5]]);
    BUILD.into_iter().chain(others).collect()
}

#[derive(clap::Args)]
pub struct Explore {
    /// The larger worlds
    #[arg(long)]
    deep: bool,
    /// One of them, step by step, at http://127.0.0.1:3000
    #[arg(long, value_name = "WORLD", conflicts_with = "deep")]
    browse: Option<String>,
}

/// `cargo xtask explore`: every small world to its end; the larger ones; one of them in a browser.
pub fn explore(options: &Explore) -> Result<(), Problem> {
    let mut command;
    if let Some(world) = &options.browse {
        command = cargo(&[
            "run",
            "--quiet",
            "--config",
            EXPLORER[1],
            "--package",
            "explorer",
        ]);
        command.args(["--example", "browse", "--", world]);
    } else {
        command = cargo(&["test", "--quiet"]);
        command.args(EXPLORER).args(["--", "--nocapture"]);
        command.args(options.deep.then_some("--ignored"));
    }
    ended(
        &mut command,
        "a world has a state that must not be: see above",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name that is none would run no test, and pass.
    #[test]
    fn every_name_is_that_of_a_test_of_the_simulator() {
        let schedules = tools::root().join("crates/sim/tests/sim/schedules.rs");
        let text = std::fs::read_to_string(schedules).expect("it is there");
        let kinds = ["spin", "fenced", "string", "fair", "read-write", "multi"].map(Some);
        for kind in kinds.into_iter().chain([None]) {
            for topology in [None, Some("cluster")] {
                let [kind, topology] = [kind, topology].map(|word| word.map(str::to_owned));
                let options = Options {
                    topology,
                    kind,
                    first: None,
                    seeds: 1,
                    seconds: None,
                    seed: None,
                };
                if let Ok(test) = options.test() {
                    let name = test.trim_start_matches("schedules::");
                    assert!(text.contains(&format!("fn {name}(")), "{name}");
                }
            }
        }
    }
}

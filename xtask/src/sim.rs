//! `cargo xtask sim`: the simulator, for as many schedules as wanted, or for one of them.

use crate::{Problem, cargo};

const USAGE: &str = "usage: cargo xtask sim [--seeds N] [--seed S] [--seconds T]";

/// Under a minute on two cores.
const SEEDS: &str = "10000";

pub fn run(arguments: &[&str]) -> Result<(), Problem> {
    let mut command = cargo(&["test", "--quiet"]);
    command
        .args(BUILD)
        .args([TEST, "--", "--exact", "--nocapture"])
        .env("RUST_BACKTRACE", "0")
        .env("SIM_SEEDS", SEEDS);
    for pair in arguments.chunks(2) {
        let (name, number) = match *pair {
            ["--seeds", number] => ("SIM_SEEDS", number),
            ["--seed", number] => ("SIM_SEED", number),
            ["--seconds", number] => ("SIM_SECONDS", number),
            _ => return Err(Problem::to_do(USAGE)),
        };
        if number.parse::<u64>().is_err() {
            return Err(Problem::to_do(format!("{number} is not a number\n{USAGE}")));
        }
        command.env(name, number);
    }
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(Problem::failed(
            "a promise was broken: docs/testing.md says how to read the history above",
        )),
        Err(error) => Err(Problem::failed(format!("cargo does not run: {error}"))),
    }
}

/// What is built: the simulator, with a profile of its own.
pub const BUILD: [&str; 6] = ["--profile", "sim", "--package", "sim", "--test", "sim"];

/// The test that runs the schedules.
pub const TEST: &str = "schedules::every_schedule_keeps_the_promises";

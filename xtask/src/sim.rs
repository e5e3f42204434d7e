//! `cargo xtask sim`: the simulator, for as many schedules as wanted, or for one of them.

use crate::{Problem, cargo};

const USAGE: &str = "usage: cargo xtask sim [--topology cluster | --kind spin|fenced|string|fair|read-write|multi] [--first SEED] [--seeds N | --seconds T]\n       \
                     cargo xtask sim [--topology cluster | --kind spin|fenced|string|fair|read-write|multi] --seed SEED";

/// Under a minute on two cores; in a cluster under two.
const SEEDS: &str = "10000";

pub fn run(arguments: &[&str]) -> Result<(), Problem> {
    let (test, variables) = parse(arguments)?;
    let mut command = cargo(&["test", "--quiet"]);
    command
        .args(BUILD)
        .args([test, "--", "--exact", "--nocapture"])
        .env("RUST_BACKTRACE", "0")
        .env("SIM_SEEDS", SEEDS)
        .envs(variables);
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(Problem::failed(
            "a promise was broken: docs/testing.md says how to read the history above",
        )),
        Err(error) => Err(Problem::failed(format!("cargo does not run: {error}"))),
    }
}

/// The test to run, and its variables.
type Run<'a> = (&'static str, Vec<(&'static str, &'a str)>);

fn parse<'a>(arguments: &[&'a str]) -> Result<Run<'a>, Problem> {
    let (mut test, mut variables) = (TEST, Vec::new());
    for pair in arguments.chunks(2) {
        let (name, number) = match *pair {
            ["--first", number] => ("SIM_FIRST", number),
            ["--seeds", number] => ("SIM_SEEDS", number),
            ["--seed", number] => ("SIM_SEED", number),
            ["--seconds", number] => ("SIM_SECONDS", number),
            ["--topology", "cluster"] => {
                test = match test {
                    OF_MULTI_LOCKS => OF_MULTI_LOCKS_IN_CLUSTER,
                    OF_READ_WRITE_LOCKS => OF_READ_WRITE_LOCKS_IN_CLUSTER,
                    _ => IN_CLUSTER,
                };
                continue;
            }
            ["--kind", "spin"] => {
                test = OF_SPIN_LOCKS;
                continue;
            }
            ["--kind", "fenced"] => {
                test = OF_FENCED_LOCKS;
                continue;
            }
            ["--kind", "fair"] => {
                test = OF_FAIR_LOCKS;
                continue;
            }
            ["--kind", "read-write"] => {
                test = match test {
                    IN_CLUSTER => OF_READ_WRITE_LOCKS_IN_CLUSTER,
                    _ => OF_READ_WRITE_LOCKS,
                };
                continue;
            }
            ["--kind", "string"] => {
                test = OF_STRING_LOCKS;
                continue;
            }
            ["--kind", "multi"] => {
                test = match test {
                    IN_CLUSTER => OF_MULTI_LOCKS_IN_CLUSTER,
                    _ => OF_MULTI_LOCKS,
                };
                continue;
            }
            _ => return Err(Problem::to_do(USAGE)),
        };
        if number.parse::<u64>().is_err() {
            return Err(Problem::to_do(format!("{number} is not a number\n{USAGE}")));
        }
        variables.push((name, number));
    }
    Ok((test, variables))
}

/// What is built: the simulator, with a profile of its own.
pub const BUILD: [&str; 6] = ["--profile", "sim", "--package", "sim", "--test", "sim"];

/// The test that runs the schedules.
pub const TEST: &str = "schedules::every_schedule_keeps_the_promises";

/// The same in a cluster whose slots move.
const IN_CLUSTER: &str = "schedules::every_schedule_in_a_cluster_keeps_the_promises";

/// The same with locks of another kind.
const OF_SPIN_LOCKS: &str = "schedules::every_schedule_of_spin_locks_keeps_the_promises";
const OF_FENCED_LOCKS: &str = "schedules::every_schedule_of_fenced_locks_keeps_the_promises";
const OF_FAIR_LOCKS: &str = "schedules::every_schedule_of_fair_locks_keeps_the_promises";
const OF_READ_WRITE_LOCKS: &str =
    "schedules::every_schedule_of_read_write_locks_keeps_the_promises";
const OF_READ_WRITE_LOCKS_IN_CLUSTER: &str =
    "schedules::every_schedule_of_read_write_locks_in_a_cluster_keeps_the_promises";
const OF_STRING_LOCKS: &str = "schedules::every_schedule_of_string_locks_keeps_the_promises";

/// The same with locks of several kinds, of which some callers take two or three as one.
const OF_MULTI_LOCKS: &str = "schedules::every_schedule_with_several_locks_keeps_the_promises";
const OF_MULTI_LOCKS_IN_CLUSTER: &str =
    "schedules::every_schedule_with_several_locks_in_a_cluster_keeps_the_promises";

/// The explorer of the core, with the same profile.
pub const EXPLORER: [&str; 6] = ["--profile", "sim", "--package", "sim", "--test", "explore"];

/// Real threads at one lock, with the same profile.
pub const THREADS: [&str; 6] = ["--profile", "sim", "--package", "sim", "--test", "threads"];

/// What many waiters cost, with the same profile.
pub const WAITERS: [&str; 6] = ["--profile", "sim", "--package", "sim", "--test", "waiters"];

/// All of them.
pub const ALL: [&str; 12] = [
    "--profile",
    "sim",
    "--package",
    "sim",
    "--test",
    "sim",
    "--test",
    "explore",
    "--test",
    "threads",
    "--test",
    "waiters",
];

const EXPLORE_USAGE: &str = "usage: cargo xtask explore [--deep] [--browse WORLD]";

/// `cargo xtask explore`: every small world to its end; the larger ones; one of them in a browser.
pub fn explore(arguments: &[&str]) -> Result<(), Problem> {
    let mut command = match *arguments {
        [] => cargo(&["test", "--quiet"]),
        ["--deep"] => cargo(&["test", "--quiet"]),
        ["--browse", world] => {
            let mut command = cargo(&["run", "--quiet", "--profile", "sim", "--package", "sim"]);
            command.args(["--bin", "explore", "--", world]);
            command
        }
        _ => return Err(Problem::to_do(EXPLORE_USAGE)),
    };
    if !matches!(arguments, ["--browse", _]) {
        command.args(EXPLORER).args(["--", "--nocapture"]);
        let deep = arguments == ["--deep"];
        command.args(if deep { &["--ignored"][..] } else { &[] });
    }
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(Problem::failed(
            "a world has a state that must not be: see above",
        )),
        Err(error) => Err(Problem::failed(format!("cargo does not run: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_counted_from_the_first() {
        let (test, variables) = parse(&["--first", "7000000", "--seeds", "5"]).expect("numbers");
        assert_eq!(test, TEST);
        assert_eq!(variables, [("SIM_FIRST", "7000000"), ("SIM_SEEDS", "5")]);
        let (test, variables) = parse(&["--seconds", "9", "--topology", "cluster"]).expect("known");
        assert_eq!(
            (test, &variables[..]),
            (IN_CLUSTER, &[("SIM_SECONDS", "9")][..])
        );
        for wrong in [
            &["--first"][..],
            &["--first", "x"],
            &["--first", "-1"],
            &["--from", "1"],
        ] {
            assert_eq!(parse(wrong).expect_err("refused").status, 2, "{wrong:?}");
        }
    }
}

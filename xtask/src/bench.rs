//! `cargo xtask bench`: what a lock costs, beside Redisson, rslock and the bare scripts.

use std::path::Path;
use std::process::Command;

use crate::java::{self, Java};
use crate::{Problem, cargo, page, tools};

const USAGE: &str =
    "usage: cargo xtask bench [--quick | --smoke] [--only SCENARIO]... [--no-install]";

pub fn run(arguments: &[&str], install: bool) -> Result<(), Problem> {
    let is_known = |words: &[&str]| {
        let mut rest = words;
        loop {
            rest = match rest {
                [] => return true,
                ["--quick" | "--smoke", rest @ ..] => rest,
                ["--only", scenario, rest @ ..] if !scenario.starts_with("--") => rest,
                _ => return false,
            }
        }
    };
    if !is_known(arguments)
        || ["--quick", "--smoke"]
            .iter()
            .all(|form| arguments.contains(form))
    {
        return Err(Problem::to_do(USAGE));
    }
    let server = tools::redis_server(install)?;
    let java = java::find(install)?;
    java.build(java::newest())?;
    let form = if arguments.contains(&"--smoke") {
        println!("building the benchmarks");
        Profile::Dev
    } else {
        println!("building the benchmarks, optimised (the first time takes some minutes)");
        Profile::Release
    };
    let status = command(form, arguments, Some(&java), &server)?.status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) if status.code() == Some(2) => Err(Problem::to_do("nothing was run")),
        Ok(_) => Err(Problem::failed(
            "the benchmarks have failed: see above. Whatever it is, no figure of this run means anything",
        )),
        Err(error) => Err(Problem::failed(format!("cargo does not run: {error}"))),
    }
}

/// How the program is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Profile {
    /// For counts: it is there already when the tests have been built.
    Dev,
    Release,
}

/// A moment of every scenario, for its counts.
pub fn smoke(java: Option<&Java>, server: &Path) -> Result<Command, Problem> {
    if let Some(java) = java {
        java.build(java::newest())?;
    }
    command(Profile::Dev, &["--smoke"], java, server)
}

/// A few pairs of each kind of lock and of its bare scripts.
pub fn smoke_of_pairs(server: &Path) -> Command {
    let mut command = cargo(&["bench", "--quiet", "--profile", "dev"]);
    command
        .args(tools::EVERYTHING)
        .args(["--bench", "uncontended", "--"])
        .args(["--pairs", "20", "--rounds", "1"])
        .env("REDIS_SERVER_BIN", server);
    command
}

fn command(
    profile: Profile,
    words: &[&str],
    java: Option<&Java>,
    server: &Path,
) -> Result<Command, Problem> {
    let mut command = match profile {
        Profile::Dev => Command::new(tools::program("bench")?),
        Profile::Release => cargo(&["run", "--quiet", "--package", "bench", "--release", "--"]),
    };
    command
        .current_dir(tools::root())
        .args(words)
        .env("REDIS_SERVER_BIN", server);
    let mut run = page::when_and_where();
    match java {
        Some(java) => {
            java.apply(&mut command);
            command.env("BENCH_JAVA", java::folder(java::newest()));
            run = format!("{run}, {}", java.reported());
        }
        None => _ = command.env_remove("BENCH_JAVA"),
    }
    command.env("BENCH_RUN", run);
    Ok(command)
}

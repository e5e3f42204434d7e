//! `cargo xtask bench`: what a lock costs, beside Redisson, rslock and the bare scripts.

use std::path::Path;
use std::process::Command;

use crate::java::{self, Java};
use crate::{Problem, cargo, ended, page, tools};

#[derive(clap::Args)]
pub struct Options {
    /// Three short rounds in about four minutes; docs/ is not written
    #[arg(long, conflicts_with = "smoke")]
    quick: bool,
    /// A moment of each, for its counts
    #[arg(long)]
    smoke: bool,
    /// One scenario, or several; fair16 with readers16 writes their part of the page
    #[arg(long, value_name = "SCENARIO")]
    only: Vec<String>,
}

pub fn run(options: &Options, install: bool) -> Result<(), Problem> {
    let server = tools::redis_server(install)?;
    let java = java::find(install)?;
    java.build(java::newest())?;
    let mut words = Vec::new();
    words.extend(options.quick.then_some("--quick"));
    words.extend(options.smoke.then_some("--smoke"));
    words.extend(options.only.iter().flat_map(|name| ["--only", name]));
    let form = if options.smoke {
        println!("building the benchmarks");
        Profile::Dev
    } else {
        println!("building the benchmarks, optimised (the first time takes some minutes)");
        Profile::Release
    };
    ended(
        &mut command(form, &words, Some(&java), &server)?,
        "the benchmarks have failed: see above. Whatever it is, no figure of this run means anything",
    )
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

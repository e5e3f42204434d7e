//! `cargo xtask demo`: a server of its own, the demo, and nothing else.

use std::path::PathBuf;
use std::process::Command;

use crate::java::{self, Java};
use crate::tools::{self, Server};
use crate::{Problem, cargo, ended};

#[derive(clap::Args)]
pub struct Options {
    /// One of the eight ways
    #[arg(long, value_name = "WAY")]
    only: Option<String>,
    /// Every other seller is a JVM with Redisson
    #[arg(long)]
    with_java: bool,
    /// The result also as docs/demo.svg
    #[arg(long, conflicts_with_all = ["only", "with_java"])]
    svg: bool,
    #[command(flatten)]
    other: Other,
    /// The kinds without JVMs
    #[arg(long, requires = "kinds", conflicts_with = "with_java")]
    without_java: bool,
}

/// A demo that starts servers of its own.
#[derive(clap::Args)]
#[group(multiple = false, conflicts_with_all = ["only", "with_java", "svg"])]
struct Other {
    /// The stock while a primary of a cluster is killed of whose lock no replica knows: what is sold without
    /// sync_replicas, and with it
    #[arg(long)]
    cluster: bool,
    /// The same behind Sentinel
    #[arg(long)]
    sentinel: bool,
    /// The stock under a fenced lock, with guarded writes, and under a red lock
    ///
    /// What becomes of the late write of a stopped holder, and of a sale in which one of five servers is killed; owners of
    /// a Rust and a JVM client get a fair lock in the order in which they came; readers of both see no half of a report
    /// that is updated.
    #[arg(long)]
    kinds: bool,
}

pub fn run(options: &Options, install: bool) -> Result<(), Problem> {
    let other = &options.other;
    if other.kinds {
        return of_kinds(!options.without_java, install);
    }
    let server = tools::redis_server(install)?;
    let mut command = Command::new(build()?);
    if other.cluster || other.sentinel {
        let word = if other.cluster {
            "--cluster"
        } else {
            "--sentinel"
        };
        return ended(command.arg(word).env("REDIS_SERVER_BIN", server), FAILED);
    }
    if options.with_java {
        // Half of the sellers are JVMs with the newest Redisson, in the one way that they share
        // with us.
        beside_java(&mut command, &java::find(install)?)?;
        println!(
            "every other seller process is a JVM with Redisson {}",
            java::newest()
        );
        command.args(["--only", "redisson-lock"]);
    }
    if let Some(way) = &options.only {
        command.args(["--only", way]);
    }
    if options.svg {
        command.arg("--svg").arg(tools::root().join(PICTURE));
    }
    let server = Server::start(&server)?;
    ended(command.args(["--url", &server.url]), FAILED)
}

fn of_kinds(with_java: bool, install: bool) -> Result<(), Problem> {
    let server = tools::redis_server(install)?;
    let mut command = Command::new(build()?);
    command.arg("--kinds").env("REDIS_SERVER_BIN", server);
    if with_java {
        let java = java::find(install).map_err(|problem| {
            let instead = "Without Java: cargo xtask demo --kinds --without-java";
            Problem::to_do(format!("{}\n{instead}", problem.text))
        })?;
        beside_java(&mut command, &java)?;
    }
    ended(&mut command, FAILED)
}

/// Has the demo start JVMs with the newest Redisson.
pub fn beside_java(demo: &mut Command, java: &Java) -> Result<(), Problem> {
    let newest = java::newest();
    java.build(newest)?;
    java.apply(demo);
    demo.env("DEMO_JAVA", java::classes(newest));
    Ok(())
}

const FAILED: &str = "the demo has failed";

/// What the README shows.
const PICTURE: &str = "docs/demo.svg";

/// Builds the library and the demo; answers where the program is.
pub fn build() -> Result<PathBuf, Problem> {
    println!("building the demo (the first time takes a minute or two)");
    let mut build = cargo(&["build", "--quiet", "--package", "demo"]);
    ended(&mut build, "the demo does not build")?;
    Ok(tools::built("demo"))
}

//! `cargo xtask demo`: a server of its own, the demo, and nothing else.

use std::path::PathBuf;
use std::process::Command;

use crate::Problem;
use crate::java::{self, Java};
use crate::tools::{self, Server};

pub fn run(arguments: &[&str], install: bool) -> Result<(), Problem> {
    let with_java = arguments.contains(&"--with-java");
    let svg = arguments.contains(&"--svg");
    let rest: Vec<&str> = arguments
        .iter()
        .copied()
        .filter(|word| !["--with-java", "--svg"].contains(word))
        .collect();
    if svg && (with_java || !rest.is_empty()) {
        return Err(Problem::to_do(
            "--svg shows all eight strategies: say it alone",
        ));
    }
    if let ["--kinds", rest @ ..] | [rest @ .., "--kinds"] = arguments
        && (rest.is_empty() || rest == ["--without-java"])
    {
        return of_kinds(rest.is_empty(), install);
    }
    let several = arguments
        .iter()
        .any(|word| ["--cluster", "--sentinel", "--kinds"].contains(word));
    if several && arguments.len() > 1 {
        return Err(Problem::to_do(
            "--cluster, --sentinel and --kinds start servers of their own: say one of them alone, or --kinds with --without-java",
        ));
    }
    let server = tools::redis_server(install)?;
    let mut command = Command::new(build()?);
    if several {
        return ended(command.args(arguments).env("REDIS_SERVER_BIN", server));
    }
    if with_java {
        // Half of the sellers are JVMs with the newest Redisson, in the one way that they share
        // with us.
        beside_java(&mut command, &java::find(install)?)?;
        println!(
            "every other seller process is a JVM with Redisson {}",
            java::newest()
        );
        command.args(["--only", "redisson-lock"]);
    }
    if svg {
        command.arg("--svg").arg(tools::root().join(PICTURE));
    }
    let server = Server::start(&server)?;
    ended(command.args(["--url", &server.url]).args(rest))
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
    ended(&mut command)
}

/// Has the demo start JVMs with the newest Redisson.
pub fn beside_java(demo: &mut Command, java: &Java) -> Result<(), Problem> {
    let newest = java::newest();
    java.build(newest)?;
    java.apply(demo);
    demo.env("DEMO_JAVA", java::classes(newest));
    Ok(())
}

fn ended(demo: &mut Command) -> Result<(), Problem> {
    match demo.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) if status.code() == Some(2) => Err(Problem::to_do("nothing was run")),
        Ok(status) => Err(Problem::failed(format!("the demo ended with {status}"))),
        Err(error) => Err(Problem::failed(format!("the demo does not run: {error}"))),
    }
}

/// What the README shows.
const PICTURE: &str = "docs/demo.svg";

/// Builds the library and the demo; answers where the program is.
pub fn build() -> Result<PathBuf, Problem> {
    println!("building the demo (the first time takes a minute or two)");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--package", "demo"])
        .current_dir(tools::root())
        .status();
    if !built.is_ok_and(|status| status.success()) {
        return Err(Problem::failed("the demo does not build"));
    }
    Ok(tools::built("demo"))
}

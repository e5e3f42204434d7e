//! `cargo xtask demo`: a server of its own, the demo, and nothing else.

use std::path::PathBuf;
use std::process::Command;

use crate::tools::{self, Server};
use crate::{Problem, interop, java};

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
    let several = arguments
        .iter()
        .any(|word| ["--cluster", "--sentinel", "--kinds"].contains(word));
    if several && arguments.len() > 1 {
        return Err(Problem::to_do(
            "--cluster, --sentinel and --kinds start servers of their own: say one of them alone",
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
        let newest = interop::newest();
        let java = java::find(install)?;
        java.build(newest)?;
        java.apply(&mut command);
        println!("every other seller process is a JVM with Redisson {newest}");
        command
            .env("DEMO_JAVA", java::classes(newest))
            .args(["--only", "redisson-lock"]);
    }
    if svg {
        command.arg("--svg").arg(tools::root().join(PICTURE));
    }
    let server = Server::start(&server)?;
    ended(command.args(["--url", &server.url]).args(rest))
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

//! `cargo xtask demo`: a server of its own, the example program, and nothing else.

use std::path::PathBuf;
use std::process::Command;

use crate::Problem;
use crate::tools::{self, Server};

pub fn run(arguments: &[&str], install: bool) -> Result<(), Problem> {
    let server = tools::redis_server(install)?;
    let program = build()?;
    let server = Server::start(&server)?;
    let status = Command::new(program).args(["--url", &server.url]).args(arguments).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) if status.code() == Some(2) => Err(Problem::to_do("nothing was run")),
        Ok(status) => Err(Problem::failed(format!("the demo ended with {status}"))),
        Err(error) => Err(Problem::failed(format!("the demo does not run: {error}"))),
    }
}

/// Builds the library and the example; answers where the program is.
pub fn build() -> Result<PathBuf, Problem> {
    println!("building the demo (the first time takes a minute or two)");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--example", "demo", "--package", "redisson-lock"])
        .current_dir(tools::root())
        .status();
    if !built.is_ok_and(|status| status.success()) {
        return Err(Problem::failed("the demo does not build"));
    }
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| tools::root().join("target"), PathBuf::from);
    Ok(target.join("debug/examples/demo"))
}

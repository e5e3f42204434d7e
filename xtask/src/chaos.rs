//! `cargo xtask chaos`: builds the program, and runs it with a server that is there.

use std::process::Command;

use crate::tools;
use crate::{Problem, cargo};

#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Options {
    /// What the program is given, which says what that is: --help
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<String>,
}

pub fn run(words: &[String], install: bool) -> Result<(), Problem> {
    let server = tools::redis_server(install)?;
    println!("building chaos (the first time takes a minute or two)");
    let built = cargo(&["build", "--quiet", "--package", "chaos"]).status();
    if !built.is_ok_and(|status| status.success()) {
        return Err(Problem::failed("chaos does not build"));
    }
    let status = Command::new(tools::built("chaos"))
        .args(words)
        .env("REDIS_SERVER_BIN", server)
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) if status.code() == Some(2) => Err(Problem::to_do("nothing was run")),
        Ok(_) => Err(Problem::failed(
            "a promise was broken, or the servers did not come back: docs/testing.md says how to read the history above",
        )),
        Err(error) => Err(Problem::failed(format!("chaos does not run: {error}"))),
    }
}

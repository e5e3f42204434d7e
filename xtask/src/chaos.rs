//! `cargo xtask chaos`: builds the program, and runs it with a server that is there.

use std::process::Command;

use crate::tools;
use crate::{Problem, cargo, ended};

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
    let mut build = cargo(&["build", "--quiet", "--package", "chaos"]);
    ended(&mut build, "chaos does not build")?;
    let mut chaos = Command::new(tools::built("chaos"));
    ended(
        chaos.args(words).env("REDIS_SERVER_BIN", server),
        "a promise was broken, or the servers did not come back: docs/testing.md says how to read the history above",
    )
}

//! The commands on Unix.

mod args;
mod bench;
mod check;
mod exit;
mod group;
mod inspect;
mod run;
mod signals;
mod supervise;
mod terminal;
mod text;
mod unlock;
mod waiting;
mod watch;

use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser};
use redisson_lock::LockClient;

use self::args::{Arguments, Command};
use self::exit::Problem;

/// Reads the arguments and does what they say.
pub(crate) fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return not_understood(&error),
    };
    match perform(arguments.command) {
        Ok(code) => ExitCode::from(code),
        Err(problem) => {
            text::say(&problem.sentence);
            ExitCode::from(problem.code)
        }
    }
}

/// Help and the version, or what is wrong with the arguments.
fn not_understood(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    // clap repeats what was given, and that may be an address.
    let sentence = text::without_passwords(&error.render().to_string());
    eprint!("{sentence}");
    ExitCode::from(exit::USAGE)
}

fn perform(command: Command) -> Result<u8, Problem> {
    // Everything but `bench` is one task. `run` needs a single thread: it blocks a signal around a
    // call, and must not be starting the command on another thread meanwhile.
    let mut builder = match command {
        Command::Bench(_) => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    let runtime = builder
        .enable_all()
        .build()
        .map_err(|error| Problem::internal("no runtime can be started", error))?;
    runtime.block_on(async {
        match command {
            Command::Run(arguments) => run::run(&arguments).await,
            Command::Inspect(arguments) => inspect::run(&arguments).await,
            Command::Watch(arguments) => watch::run(&arguments).await,
            Command::Unlock(arguments) => unlock::run(&arguments).await,
            Command::Check(arguments) => check::run(&arguments).await,
            Command::Bench(arguments) => bench::run(&arguments).await,
            Command::Completions { shell } => {
                let mut script = Vec::new();
                let mut command = Arguments::command();
                clap_complete::generate(shell, &mut command, "redisson-lock", &mut script);
                text::print(&String::from_utf8_lossy(&script));
                Ok(0)
            }
        }
    })
}

/// A client with the default settings.
async fn connect(url: &str) -> Result<LockClient, Problem> {
    LockClient::connect(url).await.map_err(Problem::from)
}

/// How long the end of a client waits for its last releases.
const CLOSE_GRACE: Duration = Duration::from_secs(3);

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

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};
use redisson_lock::LockClient;

use self::args::{Arguments, Command};
use self::exit::Problem;

/// Reads the arguments and does what they say.
pub(crate) fn main() -> ExitCode {
    std::panic::set_hook(Box::new(|panic| {
        text::say(&text::of_panic(panic.payload(), panic.location()));
    }));
    let performed = match Arguments::try_parse() {
        Ok(arguments) => perform(arguments.command),
        Err(error) if error.use_stderr() => return not_understood(error),
        // Help, or the version.
        Err(error) => error
            .print()
            .and_then(|()| std::io::stdout().flush())
            .map(|()| 0)
            .map_err(text::unwritable),
    };
    match performed {
        Ok(code) => ExitCode::from(code),
        Err(problem) => {
            text::say(&problem.sentence);
            ExitCode::from(problem.code)
        }
    }
}

/// Says what is wrong with the arguments, without what was given: it may be a part of an address
/// with a password, of which a shell has made several words.
fn not_understood(mut error: clap::Error) -> ExitCode {
    let mut given = vec![ContextKind::InvalidSubcommand];
    // What kinds there are is said beside it.
    if !matches!(error.get(ContextKind::InvalidArg), Some(ContextValue::String(word)) if word.starts_with("--kind"))
    {
        given.push(ContextKind::InvalidValue);
    }
    let is_unknown = error.kind() == ErrorKind::UnknownArgument;
    if is_unknown
        && !matches!(error.get(ContextKind::InvalidArg), Some(ContextValue::String(word)) if is_option(word))
    {
        given.push(ContextKind::InvalidArg);
    }
    for given in given {
        if let Some(ContextValue::String(word)) = error.get(given)
            && !word.is_empty()
        {
            error.insert(given, ContextValue::String("***".to_owned()));
        }
    }
    // "To pass '…' as a value, use '-- …'".
    error.remove(ContextKind::Suggested);
    let _ = write!(std::io::stderr(), "{}", error.render());
    if is_unknown {
        text::say(
            "options follow the subcommand, and `--` precedes a command: redisson-lock run --url URL NAME -- COMMAND",
        );
    }
    ExitCode::from(exit::USAGE)
}

/// Whether the word looks like an option that was mistyped.
fn is_option(word: &str) -> bool {
    word.strip_prefix("--").is_some_and(|name| {
        name.bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte == b'-')
    })
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
                text::print(&String::from_utf8_lossy(&script)).map(|()| 0)
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

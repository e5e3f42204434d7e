//! The arguments, and the texts of `--help`.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use redisson_lock::LockKind;

use super::{exit, text};

/// Redisson-compatible Redis locks for the command line.
#[derive(Parser)]
#[command(name = "redisson-lock", version, after_help = exit::TABLE)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run a command while the lock is held, and end it when the lock is lost
    ///
    /// With --kind fenced the command finds its token in REDISSON_LOCK_TOKEN.
    #[command(after_help = exit::TABLE)]
    Run(Run),
    /// Show who holds locks, how often, and the time left
    ///
    /// Exits with 0 if every lock named is held, with 1 if one is free.
    #[command(after_help = exit::TABLE)]
    Inspect(Inspect),
    /// Show the locks whose names match a pattern, again each second
    #[command(after_help = exit::TABLE)]
    Watch(Watch),
    /// Free a lock, no matter who holds it
    #[command(after_help = exit::TABLE)]
    Unlock(Unlock),
    /// Name the permissions that the user lacks for a lock, without an effect on it
    #[command(after_help = exit::TABLE)]
    Check(Check),
    /// Measure pairs of lock and unlock, each task on a lock of its own
    #[command(after_help = exit::TABLE)]
    Bench(Bench),
    /// Print the completions for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

#[derive(Args)]
pub(crate) struct Server {
    // The value is never shown: it may contain a password.
    /// The server's address: redis://user:password@host:port/database
    #[arg(
        long,
        env = "REDISSON_LOCK_URL",
        hide_env_values = true,
        default_value = "redis://127.0.0.1:6379"
    )]
    pub(crate) url: String,
}

#[derive(Args)]
pub(crate) struct Kind {
    /// The kind of lock: plain, fenced, spin, string, fair, or a part of a read-write lock: read or write
    #[arg(long, value_name = "KIND", default_value_t)]
    pub(crate) kind: LockKind,
}

#[derive(Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) server: Server,
    #[command(flatten)]
    pub(crate) kind: Kind,
    /// How long to wait for the lock: 30s, 500ms, 5m; 0 is one attempt. Without it, for as long
    /// as it takes
    #[arg(long, value_name = "DURATION", value_parser = text::duration)]
    pub(crate) wait: Option<Duration>,
    /// How long Redis keeps the lock when this program is gone. Renewed at every third of it for
    /// as long as the command runs
    #[arg(long, value_name = "DURATION", value_parser = text::lease, default_value = "30s")]
    pub(crate) lease: Duration,
    /// Time between SIGTERM and SIGKILL for the command
    #[arg(long, value_name = "DURATION", value_parser = text::duration, default_value = "10s")]
    pub(crate) grace: Duration,
    /// The lock: the key in Redis, as given to Redisson's getLock
    #[arg(value_parser = text::lock_name)]
    pub(crate) name: String,
    /// The command with its arguments. It is executed as it is, by no shell
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args)]
pub(crate) struct Inspect {
    #[command(flatten)]
    pub(crate) server: Server,
    #[command(flatten)]
    pub(crate) kind: Kind,
    /// Print a JSON array
    #[arg(long)]
    pub(crate) json: bool,
    /// The locks
    #[arg(required = true, value_name = "NAME", value_parser = text::lock_name)]
    pub(crate) names: Vec<String>,
}

#[derive(Args)]
pub(crate) struct Watch {
    #[command(flatten)]
    pub(crate) server: Server,
    /// Print the table once
    #[arg(long)]
    pub(crate) once: bool,
    /// A pattern of SCAN, such as 'stock:*'. The whole keyspace is read in small steps
    pub(crate) pattern: String,
}

#[derive(Args)]
pub(crate) struct Unlock {
    #[command(flatten)]
    pub(crate) server: Server,
    #[command(flatten)]
    pub(crate) kind: Kind,
    /// Say that the holder is meant to lose it
    #[arg(long)]
    pub(crate) force: bool,
    /// The lock
    #[arg(value_parser = text::lock_name)]
    pub(crate) name: String,
}

#[derive(Args)]
pub(crate) struct Check {
    #[command(flatten)]
    pub(crate) server: Server,
    #[command(flatten)]
    pub(crate) kind: Kind,
    /// The lock, which need not exist
    #[arg(value_parser = text::lock_name)]
    pub(crate) name: String,
}

#[derive(Args)]
pub(crate) struct Bench {
    #[command(flatten)]
    pub(crate) server: Server,
    /// How many tasks lock and unlock side by side
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) tasks: u32,
    /// For how long
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) seconds: u64,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_definitions_are_consistent() {
        super::Arguments::command().debug_assert();
    }
}

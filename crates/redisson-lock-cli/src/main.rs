//! `redisson-lock`: runs a command under a lock, and shows, frees and measures locks.

#[cfg(all(test, unix))]
#[macro_use]
extern crate test_support;

#[cfg(unix)]
mod cli;

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    cli::main()
}

#[cfg(not(unix))]
fn main() -> std::process::ExitCode {
    eprintln!("redisson-lock: it needs process groups and signals, so it runs on Unix only");
    // `EX_UNAVAILABLE`, as for a server that cannot be reached.
    std::process::ExitCode::from(69)
}

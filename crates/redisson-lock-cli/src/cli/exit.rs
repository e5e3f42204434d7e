//! The exit codes, and the sentence that goes with those that say why.

use nix::sys::signal::Signal;
use redisson_lock::Error;

/// `inspect`: a lock is free. `unlock`: it was free already.
pub(crate) const FREE: u8 = 1;
/// `EX_USAGE`: arguments, an address or a name that cannot be used.
pub(crate) const USAGE: u8 = 64;
/// `EX_DATAERR`: the key holds something other than a lock.
pub(crate) const NOT_A_LOCK: u8 = 65;
/// `EX_UNAVAILABLE`: Redis did not answer, or refused.
pub(crate) const UNAVAILABLE: u8 = 69;
/// `EX_SOFTWARE`: the operating system refused something, or a bug.
pub(crate) const INTERNAL: u8 = 70;
/// `EX_IOERR`: the output cannot be written.
pub(crate) const UNWRITABLE: u8 = 74;
/// `EX_TEMPFAIL`: the lock was not free in time.
pub(crate) const NOT_IN_TIME: u8 = 75;
/// `EX_NOPERM`: credentials or permissions at the server.
pub(crate) const NOT_PERMITTED: u8 = 77;
/// The lock was lost before it was released. The first code behind those of `sysexits.h`.
pub(crate) const LOST: u8 = 79;
/// As a shell has it: the command was found, but cannot be executed.
pub(crate) const CANNOT_EXECUTE: u8 = 126;
/// As a shell has it: there is no such command.
pub(crate) const NOT_FOUND: u8 = 127;

/// Behind `--help`. The README has the same table.
pub(crate) const TABLE: &str = "\
Exit codes:
    0    done; with `run` the command's own code, 128+n if signal n ended it
    1    inspect: a lock is free; unlock: it was free already
   64    arguments, an address or a name that cannot be used
   65    the key holds something other than a lock
   69    Redis cannot be reached, did not answer, or refused
   70    the operating system refused something
   74    the output cannot be written; what was to be done is done
   75    run: the lock was not free in time; the command was not started
   77    Redis does not accept the credentials, or a permission is missing
   79    run: the lock was lost; a command that still ran was ended
  126    run: the command cannot be executed
  127    run: there is no such command
128+n    run: signal n ended the waiting; the command was not started
         bench: signal n ended it early

The URL may be given in the variable REDISSON_LOCK_URL. A password on a command line can be seen
by everybody on the machine; in the environment it cannot.";

/// Why the program ends with a code of its own.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) code: u8,
    pub(crate) sentence: String,
}

impl Problem {
    pub(crate) fn new(code: u8, sentence: impl Into<String>) -> Self {
        Self {
            code,
            sentence: sentence.into(),
        }
    }

    /// For what only a broken machine refuses.
    pub(crate) fn internal(what: &str, error: impl std::fmt::Display) -> Self {
        Self::new(INTERNAL, format!("{what}: {error}"))
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::InvalidName { .. }
            | Error::InvalidDuration { .. }
            | Error::InvalidConfig { .. } => USAGE,
            Error::NotALock { .. } => NOT_A_LOCK,
            Error::NoAnswer { .. } | Error::Refused { .. } | Error::UnexpectedReply { .. } => {
                UNAVAILABLE
            }
            Error::Auth { .. } | Error::PermissionDenied { .. } | Error::Tls { .. } => {
                NOT_PERMITTED
            }
            Error::Lost { .. } => LOST,
            _ => INTERNAL,
        };
        Self::new(code, with_sources(&error))
    }
}

/// The code of a process that this signal ended.
pub(crate) fn by_signal(signal: Signal) -> u8 {
    128 + signal as u8
}

/// An error with its causes, in one line.
fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text} ({cause})");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_in_the_table() {
        for code in [
            FREE,
            USAGE,
            NOT_A_LOCK,
            UNAVAILABLE,
            INTERNAL,
            UNWRITABLE,
            NOT_IN_TIME,
            NOT_PERMITTED,
            LOST,
            CANNOT_EXECUTE,
            NOT_FOUND,
        ] {
            let row = format!("{code:>5}    ");
            assert!(
                TABLE.lines().any(|line| line.starts_with(&row)),
                "{code} is missing"
            );
        }
    }
}

//! `run`: takes the lock, runs the command, releases the lock.

use std::io::ErrorKind;
use std::time::Duration;

use redisson_lock::{
    Error, FencedGuard, HoldState, Holder, Lock, LockClient, LockGuard, LockKind, LossReason,
};

use super::args::Run;
use super::exit::{self, Problem};
use super::group::Group;
use super::signals::Signals;
use super::supervise::{Ending, supervise};
use super::waiting::Progress;
use super::{CLOSE_GRACE, inspect, text};

pub(crate) async fn run(arguments: &Run) -> Result<u8, Problem> {
    let mut signals = Signals::ending_ones()?;
    let client = tokio::select! {
        biased;
        signal = signals.ending() => return Ok(exit::by_signal(signal)),
        client = connect(arguments) => client?,
    };
    let name = arguments.name.as_str();
    let result = match arguments.kind.kind {
        LockKind::Fenced => {
            let lock = client.fenced_lock(name);
            let token = |guard: &FencedGuard| Some(guard.token());
            with_client(arguments, (&client, &lock), token, &mut signals).await
        }
        kind => {
            let lock = client.lock_of(kind, name);
            with_client(arguments, (&client, &lock), |_| None, &mut signals).await
        }
    };
    // Waits for an attempt that was given up, and for a release without an answer.
    client.close(CLOSE_GRACE).await;
    result
}

async fn connect(arguments: &Run) -> Result<LockClient, Problem> {
    // It has to be below a third of the lease.
    let command_timeout = COMMAND_TIMEOUT.min(arguments.lease / 4);
    let builder = LockClient::builder()
        .watchdog_timeout(arguments.lease)
        .command_timeout(command_timeout);
    Ok(builder.connect(&arguments.server.url).await?)
}

/// How long the sentence about a lock that is not free may wait for the name of its holder.
const HOLDER_WITHIN: Duration = Duration::from_millis(500);

/// The library's own.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(3);

async fn with_client<K>(
    arguments: &Run,
    (client, lock): (&LockClient, &Lock<K>),
    token: impl FnOnce(&LockGuard<K>) -> Option<u64>,
    signals: &mut Signals,
) -> Result<u8, Problem> {
    let mut progress = Progress::new();
    let taken = tokio::select! {
        biased;
        // First: a lock that is granted at the same moment is released unused.
        signal = signals.ending() => return Ok(exit::by_signal(signal)),
        taken = take(lock, arguments.wait) => taken?,
        () = progress.show(client, lock, arguments.wait) => None,
    };
    drop(progress);
    match taken {
        Some(guard) => {
            let token = token(&guard);
            with_lock(arguments, guard, token, signals).await
        }
        None => {
            let holder = tokio::select! {
                biased;
                signal = signals.ending() => return Ok(exit::by_signal(signal)),
                holder = inspect::holder(client, lock) => holder.ok().flatten(),
                () = tokio::time::sleep(HOLDER_WITHIN) => None,
            };
            Err(not_in_time(arguments, holder.as_ref()))
        }
    }
}

/// The lock was not free in time. Whether it is known who holds it now makes no other difference.
fn not_in_time(arguments: &Run, holder: Option<&Holder>) -> Problem {
    let waited = text::seconds(arguments.wait.unwrap_or_default());
    let name = &arguments.name;
    let held = holder.map_or_else(String::new, |holder| format!(": {}", inspect::held(holder)));
    let sentence = format!("lock `{name}` was not free within {waited}{held}");
    Problem::new(exit::NOT_IN_TIME, sentence)
}

async fn take<K>(lock: &Lock<K>, wait: Option<Duration>) -> Result<Option<LockGuard<K>>, Error> {
    match wait {
        None => lock.lock().await.map(Some),
        Some(Duration::ZERO) => lock.try_lock().await,
        Some(wait) => lock.try_lock_for(wait).await,
    }
}

async fn with_lock<K>(
    arguments: &Run,
    guard: LockGuard<K>,
    token: Option<u64>,
    signals: &mut Signals,
) -> Result<u8, Problem> {
    let name = arguments.name.as_str();
    signals.and_those_of_a_job()?;
    // The program may have been stopped for longer than the lease since the lock was granted.
    if let HoldState::Lost(reason) = guard.state() {
        return Err(lost(name, reason, Fate::NotStarted));
    }
    let group = match Group::start(&arguments.command, token) {
        Ok(group) => group,
        Err(error) => {
            release(name, guard, Fate::NotStarted).await?;
            return Err(not_started(arguments, &error));
        }
    };
    match supervise(group, &guard, signals, arguments.grace).await {
        Ending::Ended(code) => {
            release(name, guard, Fate::EndedByItself(code)).await?;
            Ok(code)
        }
        Ending::Lost(reason, None) => Err(lost(name, reason, Fate::WasEnded)),
        Ending::Lost(reason, Some(code)) => Err(lost(name, reason, Fate::EndedByItself(code))),
    }
}

/// What became of the command when the lock was lost.
#[derive(Clone, Copy)]
enum Fate {
    NotStarted,
    /// By this program, because of the loss.
    WasEnded,
    /// With this code, before the loss was noticed.
    EndedByItself(u8),
}

fn lost(name: &str, reason: LossReason, command: Fate) -> Problem {
    let command = match command {
        Fate::NotStarted => "was not started".to_owned(),
        Fate::WasEnded => "was ended".to_owned(),
        Fate::EndedByItself(code) => {
            format!("had ended by itself, with code {code}, before that was noticed")
        }
    };
    let sentence = format!("lock `{name}` was lost: {reason}; the command {command}");
    Problem::new(exit::LOST, sentence)
}

/// Releases the lock. Only a loss is a problem: the command ran, and its code says how it went.
async fn release<K>(name: &str, guard: LockGuard<K>, command: Fate) -> Result<(), Problem> {
    match guard.unlock().await {
        Ok(()) => Ok(()),
        Err(Error::Lost { reason, .. }) => Err(lost(name, reason, command)),
        Err(error) => {
            let error = Problem::from(error).sentence;
            text::say(&format!(
                "lock `{name}` may be held until its lease ends: {error}"
            ));
            Ok(())
        }
    }
}

fn not_started(arguments: &Run, error: &std::io::Error) -> Problem {
    let command = arguments
        .command
        .first()
        .map(|command| command.display().to_string());
    let command = command.unwrap_or_default();
    let code = match error.kind() {
        ErrorKind::NotFound => exit::NOT_FOUND,
        _ => exit::CANNOT_EXECUTE,
    };
    Problem::new(code, format!("`{command}` cannot be executed: {error}"))
}

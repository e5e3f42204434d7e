//! Watches the command, the lock, the signals and the terminal at once, until nothing of the
//! command's group is left.

use std::pin::pin;
use std::time::Duration;

use nix::sys::signal::Signal;
use redisson_lock::{HoldState, LockGuard, LossReason};
use tokio::time::Instant;

use super::group::{Change, Group};
use super::signals::{Event, Signals};
use super::terminal::{self, Terminal};
use super::text;

/// How a command under a lock ended.
pub(crate) enum Ending {
    /// By itself; with its exit code.
    Ended(u8),
    /// The lock was lost; with the command's exit code if it had ended by itself when that was noticed.
    Lost(LossReason, Option<u8>),
}

/// Returns once the group is empty.
pub(crate) async fn supervise(
    group: Group,
    guard: &LockGuard,
    signals: &mut Signals,
    grace: Duration,
) -> Ending {
    let mut job = Job::new(group, grace);
    let mut lost = pin!(guard.lost());
    while !job.is_over() {
        let next = job.next_step();
        tokio::select! {
            biased;
            reason = &mut lost, if job.loss.is_none() => job.lose(reason),
            event = signals.next() => job.on(event, guard),
            () = tokio::time::sleep_until(next) => job.go_on(),
        }
    }
    match (job.loss, job.code) {
        (None, Some(code)) => Ending::Ended(code),
        (Some((reason, own_end)), _) => Ending::Lost(reason, own_end),
        // Not reached: without a loss a job is over when the command has ended.
        (None, None) => Ending::Ended(super::exit::INTERNAL),
    }
}

struct Job {
    group: Group,
    grace: Duration,
    terminal: Option<Terminal>,
    /// The command's exit code, once it has ended.
    code: Option<u8>,
    /// The loss of the lock, and the code that the command had by then.
    loss: Option<(LossReason, Option<u8>)>,
    /// How far the ending of the group has come.
    stage: Stage,
    /// A wish to stop was passed on: when the command stops, so does this program.
    stop_wanted: bool,
}

/// How the group is made to end.
#[derive(Clone, Copy)]
enum Stage {
    /// It is not: the command runs.
    Running,
    /// SIGTERM was sent; SIGKILL follows at this instant.
    Terminated(Instant),
    /// SIGKILL was sent; nobody is waited for beyond this instant.
    Killed(Instant),
    /// Somebody is left whom even SIGKILL did not end.
    Abandoned,
}

impl Job {
    fn new(group: Group, grace: Duration) -> Self {
        let terminal = Terminal::on_stdin();
        if let Some(terminal) = &terminal
            && terminal.hand_over_from_own(group.id())
        {
            // It may have read too early, and stopped for it.
            group.send(Signal::SIGCONT);
        }
        Self {
            group,
            grace,
            terminal,
            code: None,
            loss: None,
            stage: Stage::Running,
            stop_wanted: false,
        }
    }

    fn is_over(&mut self) -> bool {
        matches!(self.stage, Stage::Abandoned) || (self.code.is_some() && self.group.is_empty())
    }

    /// When to see again how things are, if nothing happens before.
    fn next_step(&self) -> Instant {
        let now = Instant::now();
        let limit = match self.stage {
            Stage::Terminated(limit) | Stage::Killed(limit) => limit,
            Stage::Running | Stage::Abandoned => now + FAR,
        };
        // Once the command has ended nobody tells when the group is empty.
        match self.code {
            Some(_) => limit.min(now + BETWEEN),
            None => limit,
        }
    }

    /// The time for a step may have come.
    fn go_on(&mut self) {
        let now = Instant::now();
        match self.stage {
            Stage::Terminated(limit) if limit <= now => {
                self.group.send(Signal::SIGKILL);
                self.stage = Stage::Killed(now + AFTER_KILL);
            }
            Stage::Killed(limit) if limit <= now => {
                text::say("a process of the command does not end, even by SIGKILL");
                self.group.give_up();
                self.stage = Stage::Abandoned;
            }
            _ => {}
        }
    }

    /// Ends the group, unless that has begun.
    fn end_group(&mut self) {
        if matches!(self.stage, Stage::Running) {
            self.group.terminate();
            self.stage = Stage::Terminated(Instant::now() + self.grace);
        }
    }

    fn lose(&mut self, reason: LossReason) {
        // The command may have ended, and nobody has looked yet. That it was stopped makes no difference now.
        for change in self.group.reap() {
            if let Change::Ended(code) = change {
                self.command_ended(code);
            }
        }
        self.loss = Some((reason, self.code));
        self.end_group();
    }

    fn on(&mut self, event: Event, guard: &LockGuard) {
        match event {
            Event::Child => {
                for change in self.group.reap() {
                    match change {
                        Change::Ended(code) => self.command_ended(code),
                        Change::Stopped(signal) => self.command_stopped(signal),
                    }
                }
            }
            Event::Ending(signal) => {
                self.group.send(signal);
                if matches!(signal, Signal::SIGTERM | Signal::SIGHUP) {
                    // One that is stopped is meant to end too.
                    self.group.send(Signal::SIGCONT);
                }
            }
            Event::Stop => {
                self.stop_wanted = true;
                self.group.send(Signal::SIGTSTP);
            }
            Event::Continue => self.resume(guard),
        }
    }

    fn command_ended(&mut self, code: u8) {
        self.code = Some(code);
        if let Some(terminal) = &self.terminal
            && terminal.is_at(self.group.id())
        {
            terminal.hand_to(nix::unistd::getpgrp());
        }
        if !self.group.is_empty() {
            self.end_group();
        }
    }

    /// The command was stopped. Then this program stops too, so that the shell above sees it.
    fn command_stopped(&mut self, signal: Signal) {
        if !matches!(self.stage, Stage::Running) {
            return;
        }
        if let Some(terminal) = &self.terminal
            && matches!(signal, Signal::SIGTTIN | Signal::SIGTTOU)
            && (terminal.hand_over_from_own(self.group.id()) || terminal.is_at(self.group.id()))
        {
            // It wanted the terminal just before it had it.
            self.group.send(Signal::SIGCONT);
            return;
        }
        let wanted = self.terminal.is_some() || self.stop_wanted;
        if wanted && terminal::has_a_shell_above() {
            self.stop_wanted = false;
            terminal::stop_own_group();
            // What follows is the event of SIGCONT.
        } else if self.terminal.is_some() && signal == Signal::SIGTSTP {
            // Nobody could continue it, and nobody could type anything else.
            self.group.send(Signal::SIGCONT);
        }
    }

    /// This program continues, after a stop of any length.
    fn resume(&mut self, guard: &LockGuard) {
        // Not one instruction of the command without the lock.
        if let (HoldState::Lost(reason), None) = (guard.state(), self.loss) {
            self.lose(reason);
            return;
        }
        if let Some(terminal) = &self.terminal {
            terminal.hand_over_from_own(self.group.id());
        }
        self.group.send(Signal::SIGCONT);
    }
}

/// Between two checks whether the group is empty.
const BETWEEN: Duration = Duration::from_millis(20);

/// SIGKILL takes a moment. What lasts longer hangs inside the system.
const AFTER_KILL: Duration = Duration::from_secs(5);

/// Nothing is due.
const FAR: Duration = Duration::from_secs(24 * 60 * 60);

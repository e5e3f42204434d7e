//! Watches the command, the lock, the signals and the terminal, until nothing of the
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
pub(crate) async fn supervise<K>(
    group: Group,
    guard: &LockGuard<K>,
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
    /// The command is stopped, as far as is known.
    is_stopped: bool,
    /// A stop was passed on: if the command stops before this instant, so does this program.
    stops_until: Option<Instant>,
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
            is_stopped: false,
            stops_until: None,
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
        if let Some(Change::Ended(code)) = self.group.reap() {
            self.command_ended(code);
        }
        self.loss = Some((reason, self.code));
        self.end_group();
    }

    fn on<K>(&mut self, event: Event, guard: &LockGuard<K>) {
        if event == Event::Stop {
            self.stops_until = Some(Instant::now() + FOLLOWED);
        }
        // Whatever the event is: SIGCHLD may arrive after what the command does next.
        match self.group.reap() {
            Some(Change::Ended(code)) => self.command_ended(code),
            Some(Change::Stopped(signal)) => self.command_stopped(signal, guard),
            Some(Change::Continued) => self.is_stopped = false,
            None => {}
        }
        if self.notices_loss(guard) {
            return;
        }
        match event {
            Event::Child => {}
            Event::Ending(signal) => {
                let asks_to_end =
                    matches!(signal, Signal::SIGTERM | Signal::SIGINT | Signal::SIGQUIT);
                if self.loss.is_some() && !asks_to_end {
                    // To many programs it means work, such as to read their settings again.
                    return;
                }
                self.group.send(signal);
                if matches!(signal, Signal::SIGTERM | Signal::SIGHUP) {
                    // One that is stopped is meant to end too.
                    self.group.send(Signal::SIGCONT);
                }
            }
            // The program has just stopped and continued, with a command that was seen to be stopped.
            Event::Stop if self.stops_until.is_none() => {}
            Event::Stop => {
                self.group.send(Signal::SIGTSTP);
                // Stopped already, it will not report another stop.
                if self.is_stopped {
                    self.stop();
                }
            }
            Event::Continue => self.resume(guard),
        }
    }

    /// This program may have been stopped for any time, and its loss not be reported yet. Not one
    /// instruction of the command without the lock: called before anything that continues it.
    fn notices_loss<K>(&mut self, guard: &LockGuard<K>) -> bool {
        match (guard.state(), self.loss) {
            (HoldState::Lost(reason), None) => {
                self.lose(reason);
                true
            }
            _ => false,
        }
    }

    fn continue_command<K>(&mut self, guard: &LockGuard<K>) {
        if !self.notices_loss(guard) {
            self.group.send(Signal::SIGCONT);
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

    /// The command was stopped. This program stops too, and so ends its renewals, only if it was asked
    /// to stop, or if a shell waits at the terminal and has to see that its job is stopped.
    fn command_stopped<K>(&mut self, signal: Signal, guard: &LockGuard<K>) {
        self.is_stopped = true;
        if !matches!(self.stage, Stage::Running) {
            return;
        }
        let wants_terminal = matches!(signal, Signal::SIGTTIN | Signal::SIGTTOU);
        let mut at_terminal = false;
        if let Some(terminal) = &self.terminal {
            let has_it = terminal.is_at(self.group.id());
            if wants_terminal && (has_it || terminal.hand_over_from_own(self.group.id())) {
                // It wanted the terminal just before it had it.
                self.continue_command(guard);
                return;
            }
            at_terminal = has_it || wants_terminal;
        }
        let asked = self.stops_until.take();
        let is_wanted = at_terminal || asked.is_some_and(|until| Instant::now() < until);
        if is_wanted && !self.stop() && at_terminal && signal == Signal::SIGTSTP {
            // Nothing could continue it, and nothing else could be typed.
            self.continue_command(guard);
        }
    }

    /// Stops this program until it is continued; the event of SIGCONT follows. Returns `false` if
    /// there is no shell that could continue it.
    fn stop(&mut self) -> bool {
        self.stops_until = None;
        let may_stop = terminal::has_a_shell_above();
        if may_stop {
            terminal::stop_own_group();
        }
        may_stop
    }

    /// This program continues.
    fn resume<K>(&mut self, guard: &LockGuard<K>) {
        self.stops_until = None;
        if let Some(terminal) = &self.terminal {
            terminal.hand_over_from_own(self.group.id());
        }
        self.continue_command(guard);
    }
}

/// Between two checks whether the group is empty.
const BETWEEN: Duration = Duration::from_millis(20);

/// A command that handles SIGTSTP has this long to stop itself.
const FOLLOWED: Duration = Duration::from_secs(3);

/// SIGKILL takes a moment. What lasts longer hangs inside the system.
const AFTER_KILL: Duration = Duration::from_secs(5);

/// Nothing is due.
const FAR: Duration = Duration::from_secs(24 * 60 * 60);

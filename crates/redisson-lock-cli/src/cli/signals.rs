//! The signals that reach this program, as events.

use std::future::poll_fn;
use std::task::{Context, Poll};

use nix::sys::signal::Signal;
use tokio::signal::unix::{Signal as Arrivals, SignalKind, signal};

use super::exit::Problem;

/// Those that end a program which does not handle them, and can be handled.
const ENDING: [Signal; 7] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
];

/// Something happened outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// A child changed its state.
    Child,
    /// A signal that would end this program.
    Ending(Signal),
    /// The terminal, or somebody else, wants this program to stop.
    Stop,
    /// It continues.
    Continue,
}

/// What was received and not yet read. A signal that was ignored when the program began stays
/// ignored, here and in the command, as `nohup` and `&` want it.
pub(crate) struct Signals {
    watched: Vec<(Event, Arrivals)>,
}

impl Signals {
    /// From here on the signals that end a program are events.
    pub(crate) fn ending_ones() -> Result<Self, Problem> {
        let ignored = Ignored::now();
        let mut signals = Self {
            watched: Vec::new(),
        };
        for ending in ENDING
            .into_iter()
            .filter(|ending| !ignored.contains(*ending))
        {
            signals.watch(Event::Ending(ending), ending)?;
        }
        Ok(signals)
    }

    /// From here on children, stopping and continuing are events too. Before, while there is no
    /// command, Ctrl-Z does what it does to any program.
    pub(crate) fn and_those_of_a_job(&mut self) -> Result<(), Problem> {
        self.watch(Event::Child, Signal::SIGCHLD)?;
        // Before `Stop`, which it discards.
        self.watch(Event::Continue, Signal::SIGCONT)?;
        if !Ignored::now().contains(Signal::SIGTSTP) {
            self.watch(Event::Stop, Signal::SIGTSTP)?;
        }
        Ok(())
    }

    fn watch(&mut self, event: Event, kind: Signal) -> Result<(), Problem> {
        let arrivals = signal(SignalKind::from_raw(kind as i32))
            .map_err(|error| Problem::internal("a signal cannot be handled", error))?;
        self.watched.push((event, arrivals));
        Ok(())
    }

    /// The next event. Dropping the future loses none.
    pub(crate) async fn next(&mut self) -> Event {
        poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        let mut event = None;
        for (of, arrivals) in &mut self.watched {
            match event {
                None => event = arrivals.poll_recv(context).is_ready().then_some(*of),
                // SIGCONT discards stops that are pending, as in the kernel. Otherwise the second of
                // two stops would stop a job that was continued after both.
                Some(Event::Continue) if *of == Event::Stop => {
                    let _ = arrivals.poll_recv(context);
                }
                Some(_) => {}
            }
        }
        event.map_or(Poll::Pending, Poll::Ready)
    }

    /// The next signal that ends this program.
    pub(crate) async fn ending(&mut self) -> Signal {
        loop {
            if let Event::Ending(signal) = self.next().await {
                return signal;
            }
        }
    }
}

/// The signals that this program ignores. Only Linux says so without `unsafe`; elsewhere none
/// counts as ignored.
struct Ignored(u64);

impl Ignored {
    fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self(Self::read(&status))
    }

    fn read(status: &str) -> u64 {
        let mut lines = status.lines();
        let mask = lines.find_map(|line| line.strip_prefix("SigIgn:"));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
            .unwrap_or(0)
    }

    fn contains(&self, signal: Signal) -> bool {
        self.0 >> (signal as u32 - 1) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use test_support::tokio;

    use super::*;

    #[tokio::test]
    async fn a_stop_before_a_continuation_is_forgotten() {
        let mut signals = Signals {
            watched: Vec::new(),
        };
        signals.and_those_of_a_job().expect("they can be handled");
        for signal in [Signal::SIGTSTP, Signal::SIGCONT] {
            nix::sys::signal::raise(signal).expect("raised");
        }
        assert_eq!(signals.next().await, Event::Continue);
        nix::sys::signal::raise(Signal::SIGCHLD).expect("raised");
        assert_eq!(signals.next().await, Event::Child);
        nix::sys::signal::raise(Signal::SIGTSTP).expect("raised");
        assert_eq!(signals.next().await, Event::Stop);
    }

    #[test]
    fn ignored_signals_are_read_from_their_mask() {
        let ignored = Ignored(Ignored::read(
            "Name:\tx\nSigIgn:\t0000000000001001\nSigCgt:\t1\n",
        ));
        assert!(ignored.contains(Signal::SIGHUP));
        assert!(ignored.contains(Signal::SIGPIPE));
        assert!(!ignored.contains(Signal::SIGTERM));
        assert_eq!(Ignored::read(""), 0);
    }
}

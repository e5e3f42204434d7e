//! What the steps of a lock are given: settings, the life of the client, and the counts it is asked
//! for.

use std::time::Duration;

use super::ids::Time;

/// The settings that the steps go by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rules {
    pub watchdog_timeout: Duration,
    pub command_timeout: Duration,
    pub handover: HandOver,
}

/// How often in a row a client hands a lock from one of its callers to the next, before it frees the
/// lock for everybody.
///
/// Each pass saves a script call, a wake-up and, unless the next caller's lease is shorter, a message,
/// and lets the other processes wait a little longer. Whichever bound is reached first ends the row: the next release announces the lock as free,
/// and if other processes listen, this client's queue stands back for up to 5 ms.
///
/// # Examples
///
/// ```no_run
/// # use std::time::Duration;
/// use redisson_lock::{HandOver, LockClient};
/// let handover = HandOver { passes: 8, for_at_most: Duration::from_millis(20) };
/// let builder = LockClient::builder().handover(handover);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HandOver {
    /// Passes in a row. Default 32; 0 is off.
    pub passes: u32,
    /// From the first pass of a row to the last. Default 50 ms.
    pub for_at_most: Duration,
}

impl HandOver {
    /// Every release frees the lock for everybody.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use redisson_lock::{HandOver, LockClient};
    /// let builder = LockClient::builder().handover(HandOver::off());
    /// ```
    #[must_use]
    pub const fn off() -> Self {
        Self {
            passes: 0,
            for_at_most: Duration::ZERO,
        }
    }
}

impl Default for HandOver {
    fn default() -> Self {
        Self {
            passes: 32,
            for_at_most: Duration::from_millis(50),
        }
    }
}

impl Rules {
    /// Moves a renewal forward to the last beat before it, so that all that fall due within a tenth
    /// of the period have their timers at the same instant and are renewed together.
    pub(super) fn on_beat(&self, due: Time) -> Time {
        let beat = self.slack().as_nanos().max(1);
        let early = due.since_start().as_nanos() % beat;
        due - Duration::from_nanos(u64::try_from(early).unwrap_or(0))
    }

    /// How much earlier than due a renewal may be sent along with others.
    pub fn slack(&self) -> Duration {
        self.watchdog_timeout / 30
    }
}

/// The life of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Life {
    Open,
    /// No new holds; those there are kept and can be released.
    Closing,
    /// The runtime is gone: nobody is left to renew a hold, or to signal its loss.
    Gone,
    /// Nothing is sent any more.
    Closed,
}

/// Numbers for [`ClientStats`](crate::ClientStats), and for `close`, which waits for them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Counts {
    pub held: usize,
    pub guarded: usize,
    pub waiting: usize,
    pub acquiring: usize,
    pub releasing: usize,
}

impl Counts {
    /// Takes one owner's or lock's part out and puts another one in.
    pub fn replace(&mut self, before: Self, after: Self) {
        let change = |sum: &mut usize, before, after| *sum = *sum + after - before;
        change(&mut self.held, before.held, after.held);
        change(&mut self.guarded, before.guarded, after.guarded);
        change(&mut self.waiting, before.waiting, after.waiting);
        change(&mut self.acquiring, before.acquiring, after.acquiring);
        change(&mut self.releasing, before.releasing, after.releasing);
    }
}

//! The arguments and results of a lock's steps: numbers and instants, settings, the life of the client and
//! its counts, effects.
//!
//! An effect is done when the mutex is free. It may come late, twice, or in another order than it was
//! produced. What may not is a fact, and stands in the core or is written down under the mutex: how a
//! hold ended, when a timer is due, what is under way.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::num::{NonZeroU64, ParseIntError};
use std::ops::{Add, Sub};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

/// Tells the owners of one client apart; the second half of the hash field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadId(pub i64);

/// What of a lock an owner holds: the whole, of each kind of lock that has no parts; of a read-write lock one of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Face {
    Only,
    Read,
    Write,
}

/// One owner of a lock, and what of the lock its holds and its operation are about. Each face has holds and an
/// operation of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerKey {
    pub thread: ThreadId,
    pub face: Face,
}

impl OwnerKey {
    /// As whose the timer of a lock's queue is set. An owner may have this number too: both are asked.
    pub const QUEUE: Self = Self::only(ThreadId(i64::MIN));

    /// An owner of a lock that has no parts.
    pub const fn only(thread: ThreadId) -> Self {
        Self::of(thread, Face::Only)
    }

    pub const fn of(thread: ThreadId, face: Face) -> Self {
        Self { thread, face }
    }

    /// This owner with its other face, if it has two.
    pub(super) const fn other_face(self) -> Option<Self> {
        match self.face {
            Face::Only => None,
            Face::Read => Some(Self::of(self.thread, Face::Write)),
            Face::Write => Some(Self::of(self.thread, Face::Read)),
        }
    }
}

/// A call that wants the lock. Smaller ones came first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WaiterId(pub(super) u64);

/// One hold, from its acquisition until its owner has seen its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HoldId(pub(super) u64);

/// An unbroken time in which one owner holds the lock: what a renewal's answer is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Generation(pub(super) u64);

/// One operation of one owner. An answer that comes for another one is too late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpId(pub(super) u64);

/// Hands out all of these numbers for one lock.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Ids {
    last: u64,
}

/// A number that is larger than those of all holders before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token(NonZeroU64);

impl Token {
    pub fn number(self) -> u64 {
        self.0.get()
    }
}

impl FromStr for Token {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        text.parse().map(Self)
    }
}

/// For the explorer, whose server raises it.
#[cfg(feature = "test-util")]
impl From<NonZeroU64> for Token {
    fn from(number: NonZeroU64) -> Self {
        Self(number)
    }
}

impl Ids {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub(super) fn waiter(&mut self) -> WaiterId {
        WaiterId(self.next())
    }

    pub(super) fn hold(&mut self) -> HoldId {
        HoldId(self.next())
    }

    pub(super) fn generation(&mut self) -> Generation {
        Generation(self.next())
    }

    pub(super) fn op(&mut self) -> OpId {
        OpId(self.next())
    }
}

/// An instant: the nanoseconds since the client was made, plus one. They last for five centuries, and because
/// zero is left over, `Option<Time>` is no larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(NonZeroU64);

impl Time {
    pub const START: Self = Self(NonZeroU64::MIN);

    pub fn after_start(since: Duration) -> Self {
        Self::START + since
    }

    pub fn since_start(self) -> Duration {
        self.since(Self::START)
    }

    /// Zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.get().saturating_sub(earlier.0.get()))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(nanos(time)))
    }
}

impl Sub<Duration> for Time {
    type Output = Self;

    fn sub(self, time: Duration) -> Self {
        let nanos = self.0.get().saturating_sub(nanos(time));
        NonZeroU64::new(nanos).map_or(Self::START, Self)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A [`Duration`] in half the room: each held lock has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Nanos(u64);

impl Nanos {
    pub(super) const ZERO: Self = Self(0);
}

impl From<Duration> for Nanos {
    fn from(time: Duration) -> Self {
        Self(nanos(time))
    }
}

impl From<Nanos> for Duration {
    fn from(Nanos(nanos): Nanos) -> Self {
        Self::from_nanos(nanos)
    }
}

/// What a number is of which only the order counts, or the distance from now. To the explorer, states that differ in nothing
/// else are the same: whatever is hashed, such a number is one `u128`, and nothing else is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Numbered {
    Id,
    Token,
    /// In nanoseconds.
    Time,
}

impl Numbered {
    fn hash<H: Hasher>(self, number: u64, state: &mut H) {
        state.write_u128((self as u128) << 64 | u128::from(number));
    }

    /// What has been hashed as this, and its number.
    #[cfg(feature = "test-util")]
    pub fn of(hashed: u128) -> (Self, u64) {
        let numbered = match hashed >> 64 {
            0 => Self::Id,
            1 => Self::Token,
            _ => Self::Time,
        };
        (numbered, (hashed & u128::from(u64::MAX)) as u64)
    }
}

macro_rules! numbered {
    ($($numbered:ident: $($name:ident),*;)*) => {
        $($(impl Hash for $name {
            fn hash<H: Hasher>(&self, state: &mut H) {
                Numbered::$numbered.hash(self.0.into(), state);
            }
        })*)*
    };
}

numbered! {
    Id: WaiterId, HoldId, Generation, OpId;
    Token: Token;
    Time: Time;
}

/// The last number says nothing of a state.
impl Hash for Ids {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// The settings that the steps go by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rules {
    pub watchdog_timeout: Duration,
    pub command_timeout: Duration,
    pub handoff: HandOff,
    /// For how long a place in the queue of a fair lock lasts after its turn has come.
    pub fair_wait: Duration,
    /// Between two sends of a release, after the first has failed. Each further pause is twice as long, up to 50 times this.
    pub release_pause: Duration,
}

/// What that is outside of tests.
pub const RELEASE_PAUSE: Duration = Duration::from_millis(20);

/// How often in a streak a client hands a lock from one of its callers to the next, before it frees the
/// lock for every client.
///
/// Each pass saves a script call, a wake-up and, unless the next caller's lease is shorter, a message,
/// and lets the other processes wait a little longer. Whichever bound is reached first ends the streak: the
/// next release announces the lock as free, and if other processes listen, this client's queue stands
/// back for up to 5 ms, and the bounds of the next streak are half of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HandOff {
    /// Passes in a streak. Default 32; 0 is off.
    pub passes: u32,
    /// From the first pass of a streak to the last. Default 50 ms.
    pub longest: Duration,
}

impl HandOff {
    /// Every release frees the lock for every client.
    pub const fn off() -> Self {
        Self {
            passes: 0,
            longest: Duration::ZERO,
        }
    }

    /// The bounds, if others than this client listened when the lock was last freed.
    pub(super) fn beside(self, others_listen: bool) -> Self {
        if !others_listen {
            return self;
        }
        Self {
            passes: self.passes.div_ceil(2),
            longest: self.longest / 2,
        }
    }
}

impl From<bool> for HandOff {
    fn from(is_on: bool) -> Self {
        if is_on { Self::default() } else { Self::off() }
    }
}

impl Default for HandOff {
    fn default() -> Self {
        Self {
            passes: 32,
            longest: Duration::from_millis(50),
        }
    }
}

impl Rules {
    /// Moves a renewal forward to the last beat before it, so that all that fall due within a tenth
    /// of the period have their timers at the same instant and are renewed together.
    pub(super) fn on_beat(&self, due: Time, beat: Duration) -> Time {
        let beat = beat.as_nanos().max(1);
        let early = due.since_start().as_nanos() % beat;
        due - Duration::from_nanos(u64::try_from(early).unwrap_or(0))
    }

    /// When a renewal without an answer is repeated: soon enough for a loss at another server to be told in
    /// time, however long the leases are.
    pub(super) fn retry_after(&self) -> Duration {
        self.slack().min(Duration::from_secs(1))
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
    /// The runtime is gone: nothing is left to renew a hold, or to signal its loss.
    Gone,
    /// Nothing is sent any more.
    Closed,
}

/// Numbers for the statistics of a client, and for `close`, which waits for them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Counts {
    pub held: u32,
    pub guarded: u32,
    pub waiting: u32,
    pub acquiring: u32,
    pub releasing: u32,
}

impl Counts {
    /// Takes one owner's or lock's part out and puts another one in.
    pub fn replace(&mut self, before: Self, after: Self) {
        let change = |sum: &mut u32, before, after| *sum = *sum + after - before;
        change(&mut self.held, before.held, after.held);
        change(&mut self.guarded, before.guarded, after.guarded);
        change(&mut self.waiting, before.waiting, after.waiting);
        change(&mut self.acquiring, before.acquiring, after.acquiring);
        change(&mut self.releasing, before.releasing, after.releasing);
    }
}

/// The effects of one step, by kind. Timers are set first; the others follow in the order of the fields.
#[derive(Debug, Default, Clone, PartialEq, Eq, Hash)]
pub struct Effects {
    /// Holds that have ended. How is a fact: the shell writes it down before it frees the mutex, and
    /// wakes those who wait for it afterwards.
    pub ended: SmallVec<[(HoldId, Ending); 1]>,
    /// Holds that their owner does not have any more, and until when each was valid: a fact, written down likewise. A release
    /// takes a hold out before its end is known.
    pub over: SmallVec<[(HoldId, Time); 1]>,
    /// Owners whose timer has changed. When it is due is read when the timer is set.
    pub timers: SmallVec<[OwnerKey; 2]>,
    /// Calls that may be able to go on: see [`LockCore::woken`](super::LockCore::woken).
    pub woken: SmallVec<[WaiterId; 2]>,
    /// Owners, with their fields, for whose calls the client is to hear of the lock.
    pub subscribes: Vec<(OwnerKey, Arc<str>)>,
    /// Unlocks that have their outcome.
    pub unlocked: SmallVec<[(HoldId, Unlocked); 1]>,
    /// Releases whose next send is made: it enters its connection in this step, or a task finds the way for it.
    pub sends: SmallVec<[(OwnerKey, OpId); 1]>,
    pub events: Vec<Event>,
    pub totals: SmallVec<[(Total, u64); 1]>,
    /// A hold has begun of which others may have changed the lock since: it is to be looked at.
    pub is_reported: bool,
}

/// The reason why a hold ended that its owner did not release.
///
/// # Examples
///
/// ```
/// # use redisson_lock_core as redisson_lock;
/// use redisson_lock::LossReason;
/// assert_eq!(LossReason::LeaseOver.to_string(), "its lease expired");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// The fixed lease expired, or any lease before its release was sent.
    LeaseOver,
    /// Redis did not confirm a renewal in time, or too few replicas did for a hold taken with
    /// `sync_replicas`, so the lease may have expired.
    NotRenewed,
    /// The key is gone: deleted, flushed, force-unlocked, or expired.
    Gone,
    /// Another owner holds the lock.
    Taken,
    /// The key holds something else now.
    Changed,
    /// The limit set with `Lock::max_hold` was reached.
    MaxHold,
    /// The client was closed, or the runtime that created it has ended, while the hold was open.
    Closed,
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LeaseOver => "its lease expired",
            Self::NotRenewed => "it could not be renewed in time",
            Self::Gone => "its key is gone (deleted, flushed, force-unlocked or expired)",
            Self::Taken => "another owner holds it",
            Self::Changed => "its key now holds something else",
            Self::MaxHold => "it reached its max_hold",
            Self::Closed => "the client was closed",
        })
    }
}

/// How a hold ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ending {
    Released,
    Lost(LossReason),
}

/// How an unlock ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unlocked {
    Released,
    /// The hold was gone before.
    Lost(LossReason),
    /// It has no answer, was refused, or will not be sent.
    Failed,
}

/// A connection, as the shell numbers those that carry the commands of a lock: by server, and how often it was replaced.
pub type Carrier = (u16, u64);

/// The arguments of a release when it is sent.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ReleaseSend {
    /// The count to go to, and the lease that is still promised to the holds that are left. `leaves`: the owner gives
    /// its place in the server's queue up, which counts for so much.
    Count {
        target: u32,
        lease: Duration,
        leaves: Option<Duration>,
    },
    /// The field that gets the lock instead, and its lease.
    Pass { to: Arc<str>, lease: Duration },
}

/// The answer to a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReleaseAnswer {
    /// `None`: the count is what was asked for. Else why the field is not there any more.
    pub gone: Option<LossReason>,
    /// Before the answered send.
    pub sent_at: Time,
    /// The message was heard by others than this client.
    pub others_listen: bool,
    /// Of the receiver of a pass.
    pub token: Option<Token>,
}

/// What a send of a release is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ReleaseStep {
    Send {
        field: Arc<str>,
        /// Callers wait for its outcome, since then.
        awaited: Option<Time>,
        /// All that is to be done is to leave the server's queue.
        leaves: bool,
        /// It is the first of the release.
        is_first: bool,
    },
    /// There is nothing to send: Redis has the count, or the release has ended, now perhaps.
    Done,
}

/// How a send of a release has failed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FailedSend {
    pub maybe_executed: bool,
    /// The server has refused it.
    pub is_refusal: bool,
    /// In the words of the shell.
    pub text: Arc<str>,
    /// The connection that carries the commands of the lock now.
    pub carrier: Option<Carrier>,
}

/// Something that is logged.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    Lost {
        field: Arc<str>,
        face: Face,
        reason: LossReason,
    },
    RenewalOverdue {
        field: Arc<str>,
        face: Face,
    },
    /// A release gives up, for this reason: the lease frees the lock.
    GaveUp {
        field: Arc<str>,
        text: Arc<str>,
    },
    /// A release whose sends had failed was answered: the server has this count.
    Reconciled {
        field: Arc<str>,
        count: u32,
    },
}

/// A running total of the statistics of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Total {
    Acquired,
    Released,
    Lost,
    GaveUp,
    Passed,
    Renewals,
    Contended,
    Reconciled,
}

impl Total {
    pub const COUNT: usize = Self::Reconciled as usize + 1;
}

impl Effects {
    pub fn wake(&mut self, waiter: WaiterId) {
        self.woken.push(waiter);
    }

    pub(super) fn count(&mut self, total: Total, amount: usize) {
        if amount > 0 {
            self.totals.push((total, amount as u64));
        }
    }
}

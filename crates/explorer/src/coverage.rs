//! Which cases have come while which operation was under way, over all worlds.
//!
//! A pair is noted outside of the state: states that differ only in how they were reached are the
//! same. `unreached.rs` says which of the others cannot be.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};

use redisson_lock_core::Life;

macro_rules! named {
    ($(#[$meta:meta])* $name:ident { $($variant:ident = $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name { $($variant,)* }

        impl $name {
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            pub fn text(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

named! {
    /// What is under way for an owner when it comes; and, beside that, where the client's life
    /// is.
    Row {
        Nothing = "nothing, and it holds nothing",
        Held = "nothing, and it holds",
        Lost = "nothing, and its hold was lost",
        Acquire = "an acquire from the queue",
        Immediate = "an immediate attempt",
        Inside = "a read inside of a write",
        Nested = "a nested acquire",
        NestedImmediate = "a nested immediate attempt",
        NestedThenRelease = "a nested acquire, a release to follow",
        Alone = "a nested acquire, nothing held any more",
        AloneThenRelease = "the same, a release to follow",
        Release = "a release, others are held",
        LastRelease = "a release, nothing held any more",
        ReleaseInSync = "a release with nothing left to do",
        Passes = "a release that hands the lock on",
        Pausing = "a release that waits before its next send",
        Receives = "a lock being handed to it",
        ReceivesThenRelease = "the same, its call has left",
        Given = "a lock that was granted to it",
        Waits = "nothing, and it has a place in the server's queue",
        WaitsReleasing = "a release, it has a place in the server's queue",
        Closing = "whatever, while the client closes",
        Gone = "whatever, after the end of the runtime",
        Closed = "whatever, when the client is closed",
    }
}

named! {
    /// What the core is told.
    Case {
        JoinsQueue = "a call joins the queue",
        JoinsImmediately = "a call attempts immediately",
        AsksQueued = "a call of the queue asks",
        AsksImmediately = "an immediate attempt asks",
        Leaves = "a call leaves",
        Taken = "the acquire: taken",
        TakenLate = "the acquire: taken, the lease over by now",
        Claims = "a call claims what was granted to it",
        NotExecuted = "the acquire: busy, refused or not sent",
        OuterGone = "the acquire: the outer hold is gone",
        AcquireUnknown = "the acquire: no reply, or dropped",
        AcquireLate = "the acquire: an answer after its call has left",
        Unlock = "an unlock",
        UnlockLost = "an unlock of a lost hold",
        UnlockNothing = "an unlock of what another released",
        Drop = "a guard is dropped",
        DropEnded = "a guard of a lost hold is dropped",
        Detach = "a guard is detached",
        DetachLost = "a guard of a lost hold is detached",
        Claim = "a detached hold is claimed",
        ClaimLost = "a detached hold that was lost is claimed",
        ClaimNothing = "a claim of no detached hold",
        DropDetached = "close drops the detached holds",
        ReleaseSteps = "the release: a send begins",
        NoRoom = "the release: there is no room for it",
        Room = "the release: there is room for it",
        ReleaseDone = "the release: done",
        ReleaseGone = "the release: the field is gone",
        ReleaseGoneRepeated = "the same, sent twice",
        ReleaseUnknown = "the release: no reply",
        ReleaseRefused = "the release: refused",
        ReleaseGaveUp = "the release: dropped with its runtime",
        TimerFires = "the timer fires",
        RenewHeld = "the renewal: held",
        RenewLost = "the renewal: lost",
        RenewUnknown = "the renewal: no reply",
        RenewLate = "the renewal: of an earlier hold",
        ExtendBegins = "an extend begins",
        Extended = "the extend: done",
        ExtendLost = "the extend: lost",
        Forced = "a forced unlock",
        ForcedLate = "a forced unlock of an earlier hold",
        TimePasses = "time passes",
        LeaseOver = "a fixed lease ends",
        NotRenewed = "a lease ends that was not renewed",
        MaxHold = "a hold reaches its limit",
        Close = "the client begins to close",
        RuntimeEnds = "the runtime ends",
        Closed = "the client is closed",
        LosesAll = "every hold ends with the client",
    }
}

impl Row {
    /// What the core calls so.
    pub fn of(words: &str) -> Self {
        let row = Self::ALL.iter().find(|row| row.text() == words);
        *row.unwrap_or_else(|| panic!("there is no row for {words}"))
    }

    pub fn of_life(life: Life) -> Option<Self> {
        match life {
            Life::Open => None,
            Life::Closing => Some(Self::Closing),
            Life::Gone => Some(Self::Gone),
            Life::Closed => Some(Self::Closed),
        }
    }
}

/// What a world has reached. All of them are the same: no part of the state that has one.
#[derive(Clone, Copy)]
pub struct Reached(&'static [AtomicBool]);

impl Reached {
    /// It is never freed: a test has some tens.
    pub fn leaked() -> Self {
        let pairs = (0..Row::ALL.len() * Case::ALL.len()).map(|_| AtomicBool::new(false));
        Self(Box::leak(pairs.collect()))
    }

    pub fn note(self, row: Row, case: Case) {
        let pair = &self.0[row as usize * Case::ALL.len() + case as usize];
        // Threads that only read do not take it from each other.
        if !pair.load(Ordering::Relaxed) {
            pair.store(true, Ordering::Relaxed);
        }
    }

    pub fn pairs(self) -> BTreeSet<(Row, Case)> {
        let noted = all_pairs().zip(self.0);
        noted
            .filter(|(_, pair)| pair.load(Ordering::Relaxed))
            .map(|(pair, _)| pair)
            .collect()
    }
}

impl fmt::Debug for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reached")
    }
}

impl PartialEq for Reached {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Reached {}

impl Hash for Reached {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// In the order in which they are kept.
pub fn all_pairs() -> impl Iterator<Item = (Row, Case)> {
    Row::ALL
        .iter()
        .flat_map(|row| Case::ALL.iter().map(|input| (*row, *input)))
}

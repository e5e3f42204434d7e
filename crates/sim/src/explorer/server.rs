//! The server as the core is written for: one lock, and the scripts that change it.
//!
//! This is the specification of `acquire.lua`, `release.lua`, `pass.lua` and `renew.lua` as far as the counts go;
//! the scripts themselves are compared with Redis in `tests/sim/crosscheck.rs`.

use std::time::Duration;

use redisson_lock::test_util::core::{ThreadId, Time};

/// The hash of the lock: whose field it has, the count, and when it expires.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Server {
    pub lock: Option<(Holder, u32, Time)>,
    /// What the replicas have: of all that was replicated, what they have confirmed.
    pub replica: Option<(Holder, u32, Time)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Holder {
    Ours(ThreadId),
    /// Another process.
    Foreign,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Script {
    /// Raise the count of the owner to `target`, and the lease to at least `lease`.
    Acquire {
        owner: ThreadId,
        target: u32,
        lease: Duration,
    },
    /// Lower the count of the owner to `target`, and keep at least `lease`; the last one publishes.
    Release {
        owner: ThreadId,
        target: u32,
        lease: Duration,
    },
    /// Give the field of the owner to another one, with a lease of its own.
    Pass {
        owner: ThreadId,
        to: ThreadId,
        lease: Duration,
    },
    /// Raise the lease of the owner to at least `lease`.
    Renew {
        owner: ThreadId,
        lease: Option<Duration>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reply {
    Done,
    /// The owner has no field there.
    Gone,
    /// Another one has.
    Taken,
    /// Another one has, for this time.
    Busy {
        left: Duration,
    },
    /// The server does not run it, and never will.
    Refused,
}

impl Server {
    /// Runs one script. `true`: an unlock message is published.
    pub fn run(&mut self, now: Time, script: Script) -> (Reply, bool) {
        self.expire(now);
        let (Script::Acquire { owner, .. }
        | Script::Release { owner, .. }
        | Script::Pass { owner, .. }
        | Script::Renew { owner, .. }) = script;
        match (script, &mut self.lock) {
            (Script::Acquire { target: 1, .. }, Some((holder, _, until)))
                if *holder != Holder::Ours(owner) =>
            {
                (
                    Reply::Busy {
                        left: until.since(now),
                    },
                    false,
                )
            }
            (Script::Acquire { .. }, Some((holder, ..))) if *holder != Holder::Ours(owner) => {
                (Reply::Gone, false)
            }
            // An earlier copy has done it.
            (Script::Pass { to, lease, .. }, Some((holder, _, until)))
                if *holder == Holder::Ours(to) =>
            {
                *until = (*until).max(now + lease);
                (Reply::Done, false)
            }
            (_, Some((holder, ..))) if *holder != Holder::Ours(owner) => (Reply::Taken, false),
            // Only an acquire to one creates the field: there is nothing to nest into.
            (
                Script::Acquire {
                    target: 1, lease, ..
                },
                lock @ None,
            ) => {
                *lock = Some((Holder::Ours(owner), 1, now + lease));
                (Reply::Done, false)
            }
            (_, None) => (Reply::Gone, false),
            (Script::Acquire { target, lease, .. }, Some((_, count, until))) => {
                (*count, *until) = (target, (*until).max(now + lease));
                (Reply::Done, false)
            }
            (Script::Pass { to, lease, .. }, lock) => {
                let shorter = lock
                    .as_ref()
                    .is_some_and(|(_, _, until)| *until > now + lease);
                *lock = Some((Holder::Ours(to), 1, now + lease));
                (Reply::Done, shorter)
            }
            (Script::Release { target: 0, .. }, lock) => {
                *lock = None;
                (Reply::Done, true)
            }
            (Script::Release { target, lease, .. }, Some((_, count, until))) => {
                (*count, *until) = (target, (*until).max(now + lease));
                (Reply::Done, false)
            }
            (Script::Renew { lease, .. }, Some((_, _, until))) => {
                *until = (*until).max(now + lease.unwrap_or_default());
                (Reply::Done, false)
            }
        }
    }

    pub fn expire(&mut self, now: Time) {
        for lock in [&mut self.lock, &mut self.replica] {
            lock.take_if(|(_, _, until)| *until <= now);
        }
    }
}

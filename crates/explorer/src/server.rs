//! The server as the core is written for: one lock, and the scripts that change it.
//!
//! This is the specification of `acquire.lua`, `release.lua`, `pass.lua` and `renew.lua` as far as the counts go, and
//! of the same scripts of other kinds: a string lock has a value in the place of the field, and its count is 1.
//! The scripts themselves are compared with Redis in `tests/sim/crosscheck.rs`.

use std::num::NonZeroU64;

use redisson_lock_core::{Face, Time, Token};

use super::read_write::Faces;
use super::script::{DONE, Field, Holder, Reply, Script, Told};

/// The hash of the lock: whose field it has, the count, and when it expires.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Server {
    pub lock: Option<(Holder, u32, Time)>,
    /// Whether the kind of lock has tokens.
    pub has_token: bool,
    /// The one of the latest holder.
    pub token: Option<Token>,
    /// The queue of a fair lock.
    pub queue: Option<Vec<Place>>,
    /// What a read-write lock has in the place of `lock`.
    pub faces: Option<Faces>,
    /// What the replicas have: of all that was replicated, what they have confirmed.
    pub replica: Option<(Holder, u32, Time)>,
}

/// A place in the queue, and until when it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    pub field: Field,
    pub until: Time,
}

impl Server {
    /// Runs one script. A message is published, if the kind of lock has messages.
    pub fn run(&mut self, now: Time, face: Face, script: Script) -> (Reply, Told) {
        self.expire(now);
        if self.queue.is_some() {
            return self.run_fair(now, script);
        }
        let (reply, published) = match &mut self.faces {
            Some(faces) => faces.run(now, face, script),
            None => self.run_hash(now, script),
        };
        (reply, if published { Told::All } else { Told::None })
    }

    /// The script's effect on the hash, and whether it frees the lock or shortens its lease.
    pub(super) fn run_hash(&mut self, now: Time, script: Script) -> (Reply, bool) {
        let (Script::Acquire { field, .. }
        | Script::Release { field, .. }
        | Script::Pass { field, .. }
        | Script::Renew { field, .. }) = script;
        match (script, &mut self.lock) {
            (Script::Acquire { target: 1, .. }, Some((holder, _, until)))
                if *holder != Holder::Ours(field) =>
            {
                (
                    Reply::Busy {
                        left: until.since(now),
                    },
                    false,
                )
            }
            (Script::Acquire { .. }, Some((holder, ..))) if *holder != Holder::Ours(field) => {
                (Reply::Gone, false)
            }
            // An earlier copy has done it, and raised the token.
            (Script::Pass { to, lease, .. }, Some((holder, _, until)))
                if *holder == Holder::Ours(to) =>
            {
                *until = (*until).max(now + lease);
                (self.done_by_the_holder(), false)
            }
            (_, Some((holder, ..))) if *holder != Holder::Ours(field) => (Reply::Taken, false),
            // Only an acquire to one creates the field: there is nothing to nest into.
            (
                Script::Acquire {
                    target: 1, lease, ..
                },
                lock @ None,
            ) => {
                *lock = Some((Holder::Ours(field), 1, now + lease));
                self.raise();
                (self.done_by_the_holder(), false)
            }
            (_, None) => (Reply::Gone, false),
            (Script::Acquire { target, lease, .. }, Some((_, count, until))) => {
                (*count, *until) = (target, (*until).max(now + lease));
                (self.done_by_the_holder(), false)
            }
            (Script::Pass { to, lease, .. }, lock) => {
                let shorter = lock
                    .as_ref()
                    .is_some_and(|(_, _, until)| *until > now + lease);
                *lock = Some((Holder::Ours(to), 1, now + lease));
                self.raise();
                (self.done_by_the_holder(), shorter)
            }
            (Script::Release { target: 0, .. }, lock) => {
                *lock = None;
                (DONE, true)
            }
            (Script::Release { target, lease, .. }, Some((_, count, until))) => {
                (*count, *until) = (target, (*until).max(now + lease));
                (DONE, false)
            }
            (Script::Renew { lease, .. }, Some((_, _, until))) => {
                *until = (*until).max(now + lease.unwrap_or_default());
                (DONE, false)
            }
        }
    }

    /// What a hold of this client has there.
    pub fn field(&self) -> Option<Field> {
        match self.lock {
            Some((Holder::Ours(field), ..)) => Some(field),
            Some((Holder::Foreign, ..)) | None => None,
        }
    }

    /// The holder is another one than before, or the same again after it was gone.
    pub fn raise(&mut self) {
        if self.has_token {
            let latest = self.token.map_or(0, Token::number);
            self.token = NonZeroU64::new(latest + 1).map(Token::from);
        }
    }

    fn done_by_the_holder(&self) -> Reply {
        Reply::Done { token: self.token }
    }

    pub fn expire(&mut self, now: Time) {
        for lock in [&mut self.lock, &mut self.replica] {
            lock.take_if(|(_, _, until)| *until <= now);
        }
        let faces = self.faces.iter_mut();
        faces.for_each(|faces| faces.expire(now));
    }

    pub fn is_free(&self) -> bool {
        self.lock.is_none() && self.faces.as_ref().is_none_or(Faces::is_free)
    }

    /// When its lease ends.
    pub fn ends(&self) -> Option<Time> {
        let faces = self.faces.as_ref();
        let lock = self.lock.map(|(_, _, until)| until);
        lock.or_else(|| faces?.ends())
    }

    /// Another process has it, beside others or not.
    pub fn has_foreign(&self) -> bool {
        let faces = self.faces.as_ref();
        matches!(self.lock, Some((Holder::Foreign, ..))) || faces.is_some_and(Faces::has_foreign)
    }

    pub fn clear(&mut self) {
        self.lock = None;
        let faces = self.faces.iter_mut();
        faces.for_each(Faces::clear);
    }
}

//! What the server has of a read-write lock: one writer, or readers, of which one may be that writer too.
//!
//! This is the specification of the scripts in `lua/read_write` as far as counts, the keys of read holds and the lease
//! go. Write holds are renewed by the script of a plain lock.

use std::collections::BTreeMap;
use std::time::Duration;

use redisson_lock_core::{Face, OwnerKey, Time};

use super::script::{DONE, Field, Holder, Reply, Script};

/// The hash, if it is there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Faces(Option<Hash>);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Hash {
    until: Time,
    writer: Option<(Holder, u32)>,
    readers: BTreeMap<Holder, Keys>,
}

/// The keys of one reader: one for each of its holds, until it ends.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Keys(Vec<Option<Time>>);

impl Keys {
    fn count(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    fn longest(&self) -> Option<Time> {
        self.0.iter().copied().max().flatten()
    }

    /// For this many holds, of which the key of the last one covers all: it lasts at least until then.
    fn cover(&mut self, count: u32, until: Time) {
        self.0.resize(count as usize, None);
        if let Some(last) = self.0.last_mut() {
            *last = (*last).max(Some(until));
        }
    }

    fn raise_all(&mut self, until: Time) {
        for key in &mut self.0 {
            *key = (*key).max(Some(until));
        }
    }

    fn expire(&mut self, now: Time) {
        for key in &mut self.0 {
            key.take_if(|until| *until <= now);
        }
    }
}

impl Hash {
    fn writes(&self, holder: Holder) -> Option<u32> {
        let (writer, count) = self.writer?;
        (writer == holder).then_some(count)
    }

    fn busy(&self, now: Time) -> (Reply, bool) {
        let left = self.until.since(now);
        (Reply::Busy { left }, false)
    }
}

impl Faces {
    /// Runs one script. Whether a message is published.
    pub fn run(&mut self, now: Time, face: Face, script: Script) -> (Reply, bool) {
        match face {
            Face::Read => self.run_read(now, script),
            Face::Only | Face::Write => self.run_write(now, script),
        }
    }

    fn run_read(&mut self, now: Time, script: Script) -> (Reply, bool) {
        match script {
            Script::Acquire {
                field,
                target,
                lease,
                ..
            } => self.read(now, Holder::Ours(field), target, lease),
            Script::Release {
                field,
                target,
                lease,
                ..
            } => self.end_read(now, Holder::Ours(field), target, lease),
            Script::Renew { field, lease } => self.change(|hash| {
                let keys = hash.readers.get_mut(&Holder::Ours(field))?;
                if let Some(lease) = lease {
                    let until = now + lease;
                    keys.raise_all(until);
                    hash.until = hash.until.max(until);
                }
                Some(())
            }),
            Script::Pass { .. } => unreachable!("a read-write lock is not handed over"),
        }
    }

    fn read(&mut self, now: Time, own: Holder, target: u32, lease: Duration) -> (Reply, bool) {
        let until = now + lease;
        if self.0.is_none() && target > 1 {
            return (Reply::Gone, false);
        }
        let hash = self.0.get_or_insert_with(|| Hash {
            until,
            writer: None,
            readers: BTreeMap::new(),
        });
        let writes = hash.writes(own).is_some();
        match hash.readers.contains_key(&own) {
            false if target > 1 => return (Reply::Gone, false),
            false if hash.writer.is_some() && !writes => return hash.busy(now),
            false | true => {}
        }
        let keys = hash.readers.entry(own).or_default();
        keys.cover(target, until);
        hash.until = hash.until.max(until);
        (if writes { DONE } else { Reply::Outside }, false)
    }

    fn end_read(&mut self, now: Time, own: Holder, target: u32, lease: Duration) -> (Reply, bool) {
        let until = now + lease;
        if target > 0 {
            return self.change(|hash| {
                let keys = hash.readers.get_mut(&own)?;
                keys.cover(target, until);
                hash.until = hash.until.max(until);
                Some(())
            });
        }
        let Some(hash) = &mut self.0 else {
            return (Reply::Gone, false);
        };
        if hash.readers.remove(&own).is_none() {
            return (Reply::Taken, false);
        }
        if hash.writer.is_some() {
            return (DONE, false);
        }
        match hash.readers.values().filter_map(Keys::longest).max() {
            // The only time that a lease is lowered.
            Some(longest) => {
                hash.until = longest;
                (DONE, false)
            }
            None => {
                self.0 = None;
                (DONE, true)
            }
        }
    }

    fn run_write(&mut self, now: Time, script: Script) -> (Reply, bool) {
        match script {
            Script::Acquire {
                field,
                target,
                lease,
                ..
            } => self.write(now, Holder::Ours(field), target, lease),
            Script::Release {
                field, target: 0, ..
            } => self.end_write(Holder::Ours(field)),
            Script::Release {
                field,
                target,
                lease,
                ..
            } => self.change(|hash| {
                hash.writes(Holder::Ours(field))?;
                hash.writer = Some((Holder::Ours(field), target));
                hash.until = hash.until.max(now + lease);
                Some(())
            }),
            Script::Renew { field, lease } => self.change(|hash| {
                hash.writes(Holder::Ours(field))?;
                hash.until = hash.until.max(now + lease.unwrap_or_default());
                Some(())
            }),
            Script::Pass { .. } => unreachable!("a read-write lock is not handed over"),
        }
    }

    fn write(&mut self, now: Time, own: Holder, target: u32, lease: Duration) -> (Reply, bool) {
        let until = now + lease;
        match &mut self.0 {
            Some(hash) if hash.writes(own).is_some() => {
                hash.writer = Some((own, target));
                hash.until = hash.until.max(until);
                (DONE, false)
            }
            _ if target > 1 => (Reply::Gone, false),
            Some(hash) if hash.readers.contains_key(&own) => (Reply::OwnRead, false),
            Some(hash) => hash.busy(now),
            free @ None => {
                *free = Some(Hash {
                    until,
                    writer: Some((own, 1)),
                    readers: BTreeMap::new(),
                });
                (DONE, false)
            }
        }
    }

    fn end_write(&mut self, own: Holder) -> (Reply, bool) {
        let Some(hash) = &mut self.0 else {
            return (Reply::Gone, false);
        };
        if hash.writes(own).is_none() {
            return (Reply::Taken, false);
        }
        hash.writer = None;
        self.0.take_if(|hash| hash.readers.is_empty());
        (DONE, true)
    }

    /// Changes what an owner holds. `None` is that it does not.
    fn change(&mut self, change: impl FnOnce(&mut Hash) -> Option<()>) -> (Reply, bool) {
        let reply = match &mut self.0 {
            None => Reply::Gone,
            Some(hash) => change(hash).map_or(Reply::Taken, |()| DONE),
        };
        (reply, false)
    }

    /// The count of an owner, and until when it is certain to last: a read hold as long as its keys.
    pub fn of(&self, owner: OwnerKey, field: Field) -> Option<(u32, Option<Time>)> {
        let (hash, holder) = (self.0.as_ref()?, Holder::Ours(field));
        if owner.face != Face::Read {
            return Some((hash.writes(holder)?, Some(hash.until)));
        }
        let keys = hash.readers.get(&holder)?;
        let until = keys.longest().map(|longest| longest.min(hash.until));
        Some((keys.count(), until))
    }

    /// It is held for reading alone, and others may join.
    pub fn is_read(&self) -> bool {
        self.0.as_ref().is_some_and(|hash| hash.writer.is_none())
    }

    pub fn is_free(&self) -> bool {
        self.0.is_none()
    }

    pub fn ends(&self) -> Option<Time> {
        self.0.as_ref().map(|hash| hash.until)
    }

    pub fn clear(&mut self) {
        self.0 = None;
    }

    pub fn expire(&mut self, now: Time) {
        self.0.take_if(|hash| hash.until <= now);
        let readers = self.0.iter_mut().flat_map(|hash| hash.readers.values_mut());
        readers.for_each(|keys| keys.expire(now));
    }

    /// Another process writes, or reads beside others.
    pub fn take_foreign(&mut self, face: Face, until: Time) {
        let hash = self.0.get_or_insert_with(|| Hash {
            until,
            writer: None,
            readers: BTreeMap::new(),
        });
        match face {
            Face::Read => {
                hash.readers
                    .insert(Holder::Foreign, Keys(vec![Some(until)]));
                hash.until = hash.until.max(until);
            }
            Face::Only | Face::Write => hash.writer = Some((Holder::Foreign, 1)),
        }
    }

    pub fn has_foreign(&self) -> bool {
        let hash = self.0.as_ref();
        hash.is_some_and(|hash| {
            hash.writes(Holder::Foreign).is_some() || hash.readers.contains_key(&Holder::Foreign)
        })
    }

    /// Whether others hear of it.
    pub fn release_foreign(&mut self, now: Time) -> bool {
        let (_, published) = match self.is_read() {
            true => self.end_read(now, Holder::Foreign, 0, Duration::ZERO),
            false => self.end_write(Holder::Foreign),
        };
        published
    }
}

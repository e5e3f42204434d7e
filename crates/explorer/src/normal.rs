//! The normal form of a state: the same for all that differ only in numbers, in the time of the day, and in how long ago is long
//! ago.
//!
//! It is never built. What tells states apart is their hash, and that is derived: [`Renamed`] has each number hashed as what it
//! is among those that the state has. Ids and tokens count in their order, fields of single acquisitions as they are met, and
//! instants from now.

use std::hash::{Hash, Hasher};
use std::ops::{Deref, DerefMut};

use redisson_lock_core::{Numbered, Time};

use super::script::Field;
use super::state::State;
use super::{LONGEST, RULES};

/// A state whose hash is that of its normal form.
#[derive(Debug, Clone, PartialEq)]
pub struct Normal(pub State);

/// No part of the normal form, as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unseen<T>(pub T);

/// The numbers that are in use.
#[derive(Default)]
struct Found {
    ids: Vec<u64>,
    tokens: Vec<u64>,
    takings: Vec<u64>,
}

struct Renamed<'a, H> {
    found: Found,
    now: u64,
    into: &'a mut H,
}

impl Found {
    fn of(state: &State) -> Self {
        let mut found = Self::default();
        state.hash(&mut found);
        for numbers in [&mut found.ids, &mut found.tokens] {
            numbers.sort_unstable();
            numbers.dedup();
        }
        found
    }

    /// Counted as they are met.
    fn taking(&self, taking: u64) -> Option<usize> {
        self.takings.iter().position(|known| *known == taking)
    }
}

impl Hash for Normal {
    fn hash<H: Hasher>(&self, into: &mut H) {
        let Self(state) = self;
        // Timers keep to the beat, which is counted from the start.
        let past = state.now.since_start().as_nanos() % RULES.slack().as_nanos();
        past.hash(into);
        let found = Found::of(state);
        // Of those that are gone, the ones that something may still use.
        let gone = state.gone.iter();
        let used = gone.filter_map(|field| Some((field.owner, found.taking(field.taking)?)));
        let mut used: Vec<_> = used.collect();
        used.sort_unstable();
        used.hash(into);
        let now = number(state.now);
        state.hash(&mut Renamed { found, now, into });
    }
}

/// As what an instant is hashed.
fn number(time: Time) -> u64 {
    struct Only(u64);
    impl Hasher for Only {
        fn write(&mut self, _: &[u8]) {}

        fn write_u128(&mut self, hashed: u128) {
            (_, self.0) = Numbered::of(hashed);
        }

        fn finish(&self) -> u64 {
            self.0
        }
    }
    let mut only = Only(0);
    time.hash(&mut only);
    only.finish()
}

/// Sees all that is hashed.
impl Hasher for Found {
    fn write(&mut self, bytes: &[u8]) {
        if let Some(Field { taking, .. }) = field(bytes).filter(|field| field.taking > 0)
            && self.taking(taking).is_none()
        {
            self.takings.push(taking);
        }
    }

    fn write_u128(&mut self, hashed: u128) {
        match Numbered::of(hashed) {
            (Numbered::Id, id) => self.ids.push(id),
            (Numbered::Token, token) => self.tokens.push(token),
            (Numbered::Time, _) => {}
        }
    }

    fn write_u8(&mut self, _: u8) {}
    fn write_u16(&mut self, _: u16) {}
    fn write_u32(&mut self, _: u32) {}
    fn write_u64(&mut self, _: u64) {}
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        unreachable!("it has no hash")
    }
}

impl<H: Hasher> Hasher for Renamed<'_, H> {
    fn write(&mut self, bytes: &[u8]) {
        let taking = field(bytes).and_then(|field| Some((field, self.found.taking(field.taking)?)));
        match taking {
            Some((field, taking)) => (field.owner, taking).hash(self.into),
            None => self.into.write(bytes),
        }
    }

    fn write_u128(&mut self, hashed: u128) {
        let rank = |known: &[u64], number| known.partition_point(|other| *other < number);
        match Numbered::of(hashed) {
            (Numbered::Id, id) => self.into.write_usize(rank(&self.found.ids, id)),
            (Numbered::Token, token) => self.into.write_usize(rank(&self.found.tokens, token)),
            (Numbered::Time, at) => {
                let longest = u64::try_from(LONGEST.as_nanos()).unwrap_or(u64::MAX);
                self.into.write_u8(u8::from(at >= self.now));
                self.into.write_u64(at.abs_diff(self.now).min(longest));
            }
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.into.write_u8(number);
    }

    fn write_u16(&mut self, number: u16) {
        self.into.write_u16(number);
    }

    fn write_u32(&mut self, number: u32) {
        self.into.write_u32(number);
    }

    fn write_u64(&mut self, number: u64) {
        self.into.write_u64(number);
    }

    fn write_usize(&mut self, number: usize) {
        self.into.write_usize(number);
    }

    fn finish(&self) -> u64 {
        self.into.finish()
    }
}

/// All texts in a state are fields, but for what says why a send has failed.
fn field(bytes: &[u8]) -> Option<Field> {
    Field::found(std::str::from_utf8(bytes).ok()?)
}

impl<T> Hash for Unseen<T> {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl<T> Deref for Unseen<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Unseen<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl Deref for Normal {
    type Target = State;

    fn deref(&self) -> &State {
        &self.0
    }
}

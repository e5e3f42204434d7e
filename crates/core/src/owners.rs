//! The owners of one lock, and by what they are looked for.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};

use super::owner_state::{IndexEntry, OwnerState};
use super::values::{Face, OwnerKey, Time};
use crate::small_map::SmallMap;

/// Every owner that has anything to do with the lock. There is nearly always one; of thousands none is
/// looked for one by one.
#[derive(Debug, Clone, Default)]
pub(super) struct Owners {
    states: SmallMap<OwnerKey, OwnerState>,
    /// While there is more than one, and until all are gone. A single one is looked at itself.
    index: Option<Box<OwnerIndex>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct OwnerIndex {
    expires: BTreeSet<(Time, OwnerKey)>,
    blocks: usize,
    /// How many of those do not only read.
    writers_block: usize,
    held: usize,
    /// How many of those are held for reading.
    read: usize,
}

impl OwnerIndex {
    fn of(states: &SmallMap<OwnerKey, OwnerState>) -> Self {
        let mut index = Self::default();
        for (owner, state) in states.iter() {
            index.add(*owner, state.index_entry());
        }
        index
    }

    fn add(&mut self, owner: OwnerKey, entry: IndexEntry) {
        self.expires.extend(entry.expires.map(|at| (at, owner)));
        for (count, is_one) in self.counts(owner, entry) {
            *count += usize::from(is_one);
        }
    }

    fn remove(&mut self, owner: OwnerKey, entry: IndexEntry) {
        entry.expires.map(|at| self.expires.remove(&(at, owner)));
        for (count, is_one) in self.counts(owner, entry) {
            *count -= usize::from(is_one);
        }
    }

    fn counts(&mut self, owner: OwnerKey, entry: IndexEntry) -> [(&mut usize, bool); 4] {
        let (IndexEntry { blocks, held, .. }, reads) = (entry, owner.face == Face::Read);
        [
            (&mut self.blocks, blocks),
            (&mut self.writers_block, blocks && !reads),
            (&mut self.held, held),
            (&mut self.read, held && reads),
        ]
    }
}

impl Owners {
    #[cfg(all(debug_assertions, feature = "test-util"))]
    pub(super) fn len(&self) -> usize {
        self.states.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    pub(super) fn get(&self, owner: OwnerKey) -> Option<&OwnerState> {
        self.states.get(&owner)
    }

    /// For what no index is about.
    pub(super) fn get_mut(&mut self, owner: OwnerKey) -> Option<&mut OwnerState> {
        self.states.get_mut(&owner)
    }

    /// Puts an owner in, if it is not there.
    pub(super) fn ensure(&mut self, owner: OwnerKey, make: impl FnOnce() -> OwnerState) {
        self.states.get_or_insert_with(owner, make);
        if self.index.is_none() && self.states.len() > 1 {
            self.index = Some(Box::new(OwnerIndex::of(&self.states)));
        }
    }

    /// Changes one, of which there may be nothing left then.
    pub(super) fn change<T>(
        &mut self,
        owner: OwnerKey,
        change: impl FnOnce(&mut OwnerState) -> T,
    ) -> Option<T> {
        let state = self.states.get_mut(&owner)?;
        let before = self.index.is_some().then(|| state.index_entry());
        let answer = change(state);
        if let (Some(index), Some(before)) = (&mut self.index, before) {
            let after = state.index_entry();
            if after != before {
                index.remove(owner, before);
                index.add(owner, after);
            }
        }
        if state.is_spent() {
            self.states.remove(&owner);
            // Not as soon as one is left: owners that come and go beside one that stays would have it built each time.
            if self.states.is_empty() {
                self.index = None;
            }
        }
        Some(answer)
    }

    /// For what no index is about.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut OwnerState> {
        self.states.values_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (OwnerKey, &OwnerState)> {
        self.states.iter().map(|(owner, state)| (*owner, state))
    }

    /// When the next of them has something that is over by the clock.
    pub(super) fn first_expiry(&self) -> Option<(Time, OwnerKey)> {
        match &self.index {
            Some(index) => index.expires.first().copied(),
            None => self.single(OwnerState::expires_at),
        }
    }

    /// Whether any of them keeps the head of the queue from attempting.
    pub(super) fn block(&self) -> bool {
        match &self.index {
            Some(index) => index.blocks > 0,
            None => self.single_is(|_, state| state.blocks()),
        }
    }

    /// Whether any of them keeps readers from attempting too.
    pub(super) fn writers_block(&self) -> bool {
        match &self.index {
            Some(index) => index.writers_block > 0,
            None => self.single_is(|owner, state| owner.face != Face::Read && state.blocks()),
        }
    }

    /// Whether any of them has something under way that keeps the head of the queue from attempting.
    pub(super) fn operate(&self) -> bool {
        match &self.index {
            Some(index) => index.blocks > index.held,
            None => self.single_is(|_, state| state.blocks() && !state.tenure.is_held()),
        }
    }

    /// Whether any of them has the lock.
    pub(super) fn hold(&self) -> bool {
        match &self.index {
            Some(index) => index.held > 0,
            None => self.single_is(|_, state| state.tenure.is_held()),
        }
    }

    /// Whether any of them has it for reading.
    pub(super) fn read(&self) -> bool {
        match &self.index {
            Some(index) => index.read > 0,
            None => {
                self.single_is(|owner, state| owner.face == Face::Read && state.tenure.is_held())
            }
        }
    }

    /// Whether another one than that does so.
    pub(super) fn others_block(&self, owner: OwnerKey) -> bool {
        let own = self.get(owner).is_some_and(OwnerState::blocks);
        match &self.index {
            Some(index) => index.blocks > usize::from(own),
            None => self.block() && !own,
        }
    }

    fn single_is(&self, is: impl Fn(OwnerKey, &OwnerState) -> bool) -> bool {
        let single = self.states.first_entry();
        single.is_some_and(|(owner, state)| is(*owner, state))
    }

    fn single(&self, mark: impl Fn(&OwnerState) -> Option<Time>) -> Option<(Time, OwnerKey)> {
        let (owner, state) = self.states.first_entry()?;
        Some((mark(state)?, *owner))
    }
}

// What is kept twice follows from the owners themselves.
impl PartialEq for Owners {
    fn eq(&self, other: &Self) -> bool {
        self.states == other.states
    }
}

impl Eq for Owners {}

impl Hash for Owners {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.states.hash(state);
    }
}

#[cfg(feature = "test-util")]
impl Owners {
    /// Checks that values which are kept twice agree.
    pub(super) fn check(&self) {
        match &self.index {
            Some(index) => assert_eq!(**index, OwnerIndex::of(&self.states)),
            None => assert!(self.states.len() <= 1, "more than one, and no index"),
        }
    }
}

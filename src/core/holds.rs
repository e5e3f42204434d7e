//! The holds of one owner that have not ended, and what is asked of all of them at each step.
//!
//! One owner may have thousands of them, one for each of its tasks. So the answers are kept. Only the
//! leases that an acquire and a release have to say are looked for among all.

use std::collections::BTreeSet;

use super::hold::{Hold, Keeper};
use super::ids::{HoldId, Time};

/// In the order in which they began.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Holds {
    holds: Vec<Hold>,
    /// How many have a guard.
    guarded: usize,
    /// How many the watchdog renews.
    renewed: usize,
    /// Those that have an end of their own.
    ends: BTreeSet<(Time, HoldId)>,
}

impl Holds {
    pub(super) fn iter(&self) -> std::slice::Iter<'_, Hold> {
        self.holds.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.holds.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }

    /// How many have a guard.
    pub(super) fn guarded(&self) -> usize {
        self.guarded
    }

    /// How many the watchdog renews.
    pub(super) fn renewed(&self) -> usize {
        self.renewed
    }

    /// The earliest end of those that have one of their own.
    pub(super) fn first_end(&self) -> Option<Time> {
        self.ends.first().map(|(at, _)| *at)
    }

    pub(super) fn push(&mut self, hold: Hold) {
        self.count(&hold);
        self.holds.push(hold);
    }

    pub(super) fn remove(&mut self, id: HoldId) -> Option<Hold> {
        let hold = self.holds.remove(self.position(id)?);
        self.uncount(&hold);
        Some(hold)
    }

    /// Changes one of them. `false`: it is not there.
    pub(super) fn change(&mut self, id: HoldId, change: impl FnOnce(&mut Hold)) -> bool {
        let Some(at) = self.position(id) else {
            return false;
        };
        let mut hold = self.holds[at].clone();
        self.uncount(&hold);
        change(&mut hold);
        self.count(&hold);
        self.holds[at] = hold;
        true
    }

    /// The inner holds end first, so they are looked for from the end.
    fn position(&self, id: HoldId) -> Option<usize> {
        self.holds.iter().rposition(|hold| hold.id == id)
    }

    fn count(&mut self, hold: &Hold) {
        self.guarded += usize::from(hold.keeper == Keeper::Guard);
        self.renewed += usize::from(hold.policy.is_renewed());
        self.ends.extend(hold.policy.ends().map(|at| (at, hold.id)));
    }

    fn uncount(&mut self, hold: &Hold) {
        self.guarded -= usize::from(hold.keeper == Keeper::Guard);
        self.renewed -= usize::from(hold.policy.is_renewed());
        if let Some(at) = hold.policy.ends() {
            self.ends.remove(&(at, hold.id));
        }
    }
}

impl FromIterator<Hold> for Holds {
    fn from_iter<I: IntoIterator<Item = Hold>>(holds: I) -> Self {
        let mut all = Self::default();
        holds.into_iter().for_each(|hold| all.push(hold));
        all
    }
}

impl IntoIterator for Holds {
    type Item = Hold;
    type IntoIter = std::vec::IntoIter<Hold>;

    fn into_iter(self) -> Self::IntoIter {
        self.holds.into_iter()
    }
}

#[cfg(feature = "test-util")]
impl Holds {
    /// What is kept twice agrees.
    pub(super) fn check(&self) {
        assert_eq!(*self, self.iter().cloned().collect());
    }

    pub(super) fn visit(&mut self, visitor: &mut impl super::Visitor) {
        let mut holds = std::mem::take(self).holds;
        holds.iter_mut().for_each(|hold| hold.visit(visitor));
        *self = holds.into_iter().collect();
    }
}

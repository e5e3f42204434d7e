//! An ordered map for what is nearly always one: the owner of a lock, its caller, its hold.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

/// An ordered map that keeps a single entry in place, without an allocation, and any number beyond
/// that in a tree: a lock with ten thousand waiters stays as fast as one with ten.
#[derive(Debug, Clone)]
pub struct SmallMap<K, V>(Storage<K, V>);

/// An ordered set of the same kind.
pub type SmallSet<K> = SmallMap<K, ()>;

#[derive(Debug, Clone)]
enum Storage<K, V> {
    One(K, V),
    /// Apart, so that the one in place needs no more room than itself. `None`: there is no entry. A variant of that would need
    /// room for its tag in a map whose entry has a single value to spare, as one with an `Arc` has.
    #[allow(
        clippy::box_collection,
        reason = "a tree takes as much room as the one entry"
    )]
    Many(Option<Box<BTreeMap<K, V>>>),
}

impl<K, V> Default for SmallMap<K, V> {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl<K, V> SmallMap<K, V> {
    pub const EMPTY: Self = Self(Storage::Many(None));
}

impl<K: Ord, V> SmallMap<K, V> {
    pub fn len(&self) -> usize {
        match &self.0 {
            Storage::Many(None) => 0,
            Storage::One(..) => 1,
            Storage::Many(Some(many)) => many.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        match &self.0 {
            Storage::One(one, value) if one.borrow() == key => Some(value),
            Storage::Many(Some(many)) => many.get(key),
            Storage::Many(None) | Storage::One(..) => None,
        }
    }

    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        match &mut self.0 {
            Storage::One(one, value) if (*one).borrow() == key => Some(value),
            Storage::Many(Some(many)) => many.get_mut(key),
            Storage::Many(None) | Storage::One(..) => None,
        }
    }

    /// Puts an entry in; answers with what had this key before.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match &mut self.0 {
            Storage::One(one, before) if *one == key => Some(std::mem::replace(before, value)),
            Storage::Many(Some(many)) => many.insert(key, value),
            Storage::Many(None) => {
                self.0 = Storage::One(key, value);
                None
            }
            Storage::One(..) => {
                let before = std::mem::replace(&mut self.0, Storage::Many(None));
                let mut many = BTreeMap::from([(key, value)]);
                if let Storage::One(one, value) = before {
                    many.insert(one, value);
                }
                self.0 = Storage::Many(Some(Box::new(many)));
                None
            }
        }
    }

    /// The value of this key, made if there is none.
    pub fn get_or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V
    where
        K: Copy,
    {
        if self.get(&key).is_none() {
            self.insert(key, make());
        }
        self.get_mut(&key)
            .unwrap_or_else(|| unreachable!("it was put in above"))
    }

    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        match &mut self.0 {
            Storage::Many(None) => None,
            Storage::Many(Some(many)) => {
                let removed = many.remove(key);
                if many.is_empty() {
                    self.0 = Storage::Many(None);
                }
                removed
            }
            Storage::One(one, _) if (*one).borrow() != key => None,
            Storage::One(..) => match std::mem::replace(&mut self.0, Storage::Many(None)) {
                Storage::One(_, value) => Some(value),
                Storage::Many(_) => None,
            },
        }
    }

    /// The entry with the smallest key.
    pub fn first_entry(&self) -> Option<(&K, &V)> {
        match &self.0 {
            Storage::Many(None) => None,
            Storage::One(one, value) => Some((one, value)),
            Storage::Many(Some(many)) => many.first_key_value(),
        }
    }

    pub fn first(&self) -> Option<&K> {
        self.first_entry().map(|(key, _)| key)
    }

    /// The smallest key that is not less than `from`.
    pub fn first_from(&self, from: K) -> Option<&K> {
        match &self.0 {
            Storage::Many(None) => None,
            Storage::One(one, _) => Some(one).filter(|one| **one >= from),
            Storage::Many(Some(many)) => many.range(from..).next().map(|(key, _)| key),
        }
    }

    /// The keys that are not less than that one, in their order.
    pub fn keys_from(&self, from: K) -> impl Iterator<Item = &K> {
        let (one, many) = match &self.0 {
            Storage::Many(None) => (None, None),
            Storage::One(one, _) => (Some(one).filter(|one| **one >= from), None),
            Storage::Many(Some(many)) => (None, Some(many.range(from..))),
        };
        one.into_iter()
            .chain(many.into_iter().flatten().map(|(key, _)| key))
    }

    /// In the order of the keys.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        let (one, many) = match &self.0 {
            Storage::Many(None) => (None, None),
            Storage::One(key, value) => (Some((key, value)), None),
            Storage::Many(Some(many)) => (None, Some(many.iter())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        let (one, many) = match &mut self.0 {
            Storage::Many(None) => (None, None),
            Storage::One(_, value) => (Some(value), None),
            Storage::Many(Some(many)) => (None, Some(many.values_mut())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for SmallMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut few = Self::default();
        for (key, value) in entries {
            few.insert(key, value);
        }
        few
    }
}

impl<K: Ord, V: PartialEq> PartialEq for SmallMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl<K: Ord, V: Eq> Eq for SmallMap<K, V> {}

impl<K: Ord + Hash, V: Hash> Hash for SmallMap<K, V> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.len().hash(state);
        self.iter().for_each(|entry| entry.hash(state));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything that it does, beside a tree that does the same.
    #[test]
    fn it_is_a_map_whatever_the_number_of_entries() {
        let mut random = 1_u64;
        let (mut few, mut tree) = (SmallMap::default(), BTreeMap::new());
        let mut sizes = [0; 4];
        for step in 0..20_000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let key = (random >> 60) % 4;
            match (random >> 40) % 4 {
                0 => assert_eq!(few.insert(key, step), tree.insert(key, step)),
                1 => assert_eq!(
                    few.get_or_insert_with(key, || step),
                    tree.entry(key).or_insert(step)
                ),
                _ => assert_eq!(few.remove(&key), tree.remove(&key)),
            }
            assert_eq!(few.get(&key), tree.get(&key));
            assert_eq!(few.get_mut(&key), tree.get_mut(&key));
            assert_eq!((few.len(), few.is_empty()), (tree.len(), tree.is_empty()));
            assert_eq!(few.first(), tree.keys().next());
            assert_eq!(few.first_entry(), tree.iter().next());
            assert_eq!(
                few.first_from(key),
                tree.range(key..).next().map(|(key, _)| key)
            );
            assert!(few.iter().eq(tree.iter()) && few.iter().rev().eq(tree.iter().rev()));
            assert!(few.keys().eq(tree.keys()));
            let made: SmallMap<_, _> = tree.clone().into_iter().collect();
            assert_eq!(few, made);
            assert_eq!(hash(&few), hash(&made));
            sizes[few.len().min(3)] += 1;
        }
        assert!(sizes.iter().all(|times| *times > 1_000), "{sizes:?}");
    }

    fn hash(few: &SmallMap<u64, i32>) -> u64 {
        let mut hasher = std::hash::DefaultHasher::new();
        few.hash(&mut hasher);
        hasher.finish()
    }
}

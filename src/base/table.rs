//! Everything that exists once for each name, for as long as anything refers to it.

use std::borrow::Borrow;
use std::collections::BTreeMap;
#[cfg(feature = "test-util")]
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// Weak references by name. Ordered, so that what goes through all of them does so in the same order
/// in every run.
#[derive(Debug)]
pub(crate) struct Table<T, K = Arc<str>> {
    by_name: Mutex<BTreeMap<K, Weak<T>>>,
    #[cfg(feature = "test-util")]
    look_ups: AtomicU64,
}

impl<T, K> Default for Table<T, K> {
    fn default() -> Self {
        Self {
            by_name: Mutex::default(),
            #[cfg(feature = "test-util")]
            look_ups: AtomicU64::new(0),
        }
    }
}

impl<T, K: Borrow<str> + Ord> Table<T, K> {
    /// The one of this name, made under the table's mutex if there is none.
    pub(crate) fn get_or_insert_with(&self, name: K, make: impl FnOnce() -> T) -> Arc<T> {
        self.count_look_up();
        let mut by_name = self.by_name.lock();
        let weak = by_name.entry(name).or_default();
        // One whose last reference is being dropped right now is replaced; it then finds that the
        // name is not its own any more.
        weak.upgrade().unwrap_or_else(|| {
            let made = Arc::new(make());
            *weak = Arc::downgrade(&made);
            made
        })
    }

    /// The one of this name, if anything refers to it.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<T>> {
        self.by_name.lock().get(name).and_then(Weak::upgrade)
    }

    /// Forgets one that is being dropped.
    pub(crate) fn remove(&self, name: &str, dropped: *const T) {
        self.count_look_up();
        let mut by_name = self.by_name.lock();
        let found = by_name.get(name);
        if found.is_some_and(|found| std::ptr::eq(found.as_ptr(), dropped)) {
            by_name.remove(name);
        }
    }

    fn count_look_up(&self) {
        #[cfg(feature = "test-util")]
        self.look_ups.fetch_add(1, Ordering::Relaxed);
    }

    /// How often a name was looked for.
    #[cfg(feature = "test-util")]
    pub(crate) fn look_ups(&self) -> u64 {
        self.look_ups.load(Ordering::Relaxed)
    }

    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        // Dropped by the caller, when the mutex is free: the last reference comes back in here.
        self.by_name
            .lock()
            .values()
            .filter_map(Weak::upgrade)
            .collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_name.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> Arc<str> {
        "a".into()
    }

    #[test]
    fn a_name_that_is_referred_to_has_one_entry() {
        let table = Table::<u8>::default();
        let first = table.get_or_insert_with(name(), || 1);
        let again = table.get_or_insert_with(name(), || unreachable!("there is one"));
        assert!(Arc::ptr_eq(&first, &again));
        assert_eq!((table.len(), table.all().len()), (1, 1));
    }

    #[test]
    fn one_that_is_dropped_late_does_not_take_its_successor_along() {
        let table = Table::<u8>::default();
        let first = table.get_or_insert_with(name(), || 1);
        let dropped = Arc::as_ptr(&first);
        // Its last reference goes here; before it can remove itself, another call asks for the name.
        drop(first);
        let second = table.get_or_insert_with(name(), || 2);
        assert_ne!(dropped, Arc::as_ptr(&second));
        table.remove(&name(), dropped);
        let found = table.get_or_insert_with(name(), || unreachable!("there is one"));
        assert!(Arc::ptr_eq(&second, &found));
        table.remove(&name(), Arc::as_ptr(&second));
        assert_eq!(table.len(), 0);
    }
}

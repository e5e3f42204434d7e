//! State that is nearly always empty.

use std::hash::{Hash, Hasher};
use std::ops::{Deref, DerefMut};

/// A value on the heap, which takes no room in its place while it is empty: from the first change on until
/// [`settle`](Self::settle) finds it empty.
#[derive(Debug, Clone)]
pub(super) struct Apart<T>(Option<Box<T>>);

/// What can be apart.
pub(super) trait Empty: Default + 'static {
    /// The default, for those who read one that is not there.
    const EMPTY: &'static Self;

    /// Whether it is that. Each step asks.
    fn is_empty(&self) -> bool;
}

impl<T> Default for Apart<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Empty> Apart<T> {
    /// Gives the room back, if nothing is in it.
    pub(super) fn settle(&mut self) {
        self.0.take_if(|apart| apart.is_empty());
    }

    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn is_apart(&self) -> bool {
        self.0.is_some()
    }
}

impl<T: Empty> Deref for Apart<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or(T::EMPTY)
    }
}

impl<T: Empty> DerefMut for Apart<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}

impl<T: Empty + PartialEq> PartialEq for Apart<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Empty + Eq> Eq for Apart<T> {}

impl<T: Empty + Hash> Hash for Apart<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

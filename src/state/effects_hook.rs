//! A hook for tests between a step and its effects, with the feature `test-util`.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Has every step wait at random before its effects are applied, for up to this number of microseconds.
pub fn delay_effects(micros: u64) {
    EFFECT_DELAY_MICROS.store(micros, Ordering::Relaxed);
}

static EFFECT_DELAY_MICROS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static BEFORE_EFFECTS: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
}

/// Has this thread do something between its next step and that step's effects.
pub fn before_next_effects(work: impl FnOnce() + 'static) {
    BEFORE_EFFECTS.set(Some(Box::new(work)));
}

pub(crate) fn before_effects() {
    // A thread that ends may drop a guard after this thread local.
    if let Ok(Some(work)) = BEFORE_EFFECTS.try_with(Cell::take) {
        work();
    }
    let most = EFFECT_DELAY_MICROS.load(Ordering::Relaxed);
    if most > 0 {
        // Each state has keys of its own.
        let dice = RandomState::new().hash_one(0);
        std::thread::sleep(Duration::from_micros(dice % most));
    }
}

//! How many bytes are allocated and alive. Counted only once it is switched on: the atomics would
//! slow down what is measured elsewhere.

#![allow(
    unsafe_code,
    reason = "`GlobalAlloc` is an unsafe trait; every call is handed on as it is"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

pub struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;
static IS_ON: AtomicBool = AtomicBool::new(false);
static LIVE: AtomicI64 = AtomicI64::new(0);

/// Counts from now on. What was allocated before and is freed later counts below zero, so only
/// differences mean anything.
pub fn count() {
    IS_ON.store(true, Ordering::Relaxed);
}

/// The bytes that were asked for and not given back, since [`count`].
pub fn live() -> i64 {
    LIVE.load(Ordering::Relaxed)
}

fn add(bytes: i64) {
    if IS_ON.load(Ordering::Relaxed) {
        LIVE.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// No layout is larger than `isize::MAX`.
fn size(layout: Layout) -> i64 {
    layout.size() as i64
}

// SAFETY: every call goes to `System` with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(size(layout));
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        add(-size(layout));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(size(layout));
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        add(new_size as i64 - size(layout));
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

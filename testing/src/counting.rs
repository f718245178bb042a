//! A global allocator that counts, for programs that include this file.

use core::alloc::{GlobalAlloc, Layout};
use core::sync::atomic::{AtomicUsize, Ordering};
use std::alloc::System;

/// The number of allocations so far.
pub(crate) static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

/// The number of bytes that are allocated.
pub(crate) static HELD: AtomicUsize = AtomicUsize::new(0);

/// The maximum of [`HELD`] since the program last set it.
pub(crate) static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

impl Counting {
    fn add(len: usize, freed: usize) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // Large blocks are moved by remapping pages, so they never exist twice.
        HELD.fetch_sub(freed, Ordering::Relaxed);
        let held = HELD.fetch_add(len, Ordering::Relaxed) + len;
        PEAK.fetch_max(held, Ordering::Relaxed);
    }
}

// SAFETY: every call is forwarded to the system's allocator; the caller upholds the contract
// of the same function.
#[allow(unsafe_code, reason = "an allocator can only be implemented so")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::add(layout.size(), 0);
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::add(layout.size(), 0);
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        Self::add(len, layout.size());
        unsafe { System.realloc(pointer, layout, len) }
    }
}

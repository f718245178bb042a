//! Counters for the code under test: heap memory, by a global allocator, and
//! steps, by a hook at each load of instrumented code.

#![allow(
    unsafe_code,
    reason = "an allocator and a hook of the instrumentation cannot be written without"
)]

use core::alloc::{GlobalAlloc, Layout};
use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};
use std::alloc::System;

/// The limit of live bytes per thread, after which allocation fails, to stop
/// runaway code.
const HARD_LIMIT: u64 = 4 << 30;

/// The consumption so far of this thread; `steps` are those of the process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Bytes allocated now.
    pub live_len: u64,
    /// The peak of allocated bytes since [`reset_peak`].
    pub peak_len: u64,
    /// Total bytes of all allocations, including freed ones.
    pub allocated_len: u64,
    /// Loads from memory; 0 without the instrumentation.
    pub steps: u64,
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static USAGE: Cell<Usage> = const { Cell::new(Usage {
        live_len: 0,
        peak_len: 0,
        allocated_len: 0,
        steps: 0,
    }) };
}

static STEPS: AtomicU64 = AtomicU64::new(0);
static STEP_LIMIT: AtomicU64 = AtomicU64::new(u64::MAX);

/// The consumption of this thread.
pub fn usage() -> Usage {
    Usage {
        steps: STEPS.load(Ordering::Relaxed),
        ..USAGE.get()
    }
}

/// Measures the peak from here on.
pub fn reset_peak() {
    let usage = USAGE.get();
    USAGE.set(Usage {
        peak_len: usage.live_len,
        ..usage
    });
}

/// Sets the number of steps after which the process aborts, and returns the
/// former limit.
pub fn limit_steps(limit: u64) -> u64 {
    STEP_LIMIT.swap(limit, Ordering::Relaxed)
}

/// Counts an allocation. Returns false if it exceeds the limit.
fn add(len: usize) -> bool {
    let mut usage = USAGE.get();
    let len = len as u64;
    // A block may be freed by another thread than the one that allocated it.
    usage.live_len = usage.live_len.saturating_add(len);
    if usage.live_len > HARD_LIMIT {
        return false;
    }
    usage.peak_len = usage.peak_len.max(usage.live_len);
    usage.allocated_len = usage.allocated_len.saturating_add(len);
    USAGE.set(usage);
    true
}

fn subtract(len: usize) {
    let usage = USAGE.get();
    USAGE.set(Usage {
        live_len: usage.live_len.saturating_sub(len as u64),
        ..usage
    });
}

// SAFETY: every block comes from `System` with the caller's layout and is
// returned to it with that layout, regardless of the counters. The counters
// neither allocate nor have a destructor, so they can be used here.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !add(layout.size()) {
            return core::ptr::null_mut();
        }
        // SAFETY: the caller's contract is that of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !add(layout.size()) {
            return core::ptr::null_mut();
        }
        // SAFETY: the caller's contract is that of `System`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        subtract(layout.size());
        // SAFETY: the block was allocated by `System` with this layout.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_len: usize) -> *mut u8 {
        // A moved block exists twice for a moment; otherwise only the new bytes
        // count.
        if !add(new_len) {
            return core::ptr::null_mut();
        }
        subtract(layout.size());
        // SAFETY: the block was allocated by `System` with this layout, and the
        // caller's contract for the new length is that of `System`.
        unsafe { System.realloc(block, layout, new_len) }
    }
}

#[cfg(count_steps)]
fn step() {
    // One thread does nearly all of the work, so lost steps are negligible.
    let steps = STEPS.load(Ordering::Relaxed).wrapping_add(1);
    STEPS.store(steps, Ordering::Relaxed);
    if steps > STEP_LIMIT.load(Ordering::Relaxed) {
        too_many_steps();
    }
}

/// The functions called before each load from memory in code compiled with
/// `--cfg count_steps -Cllvm-args=-sanitizer-coverage-trace-loads`. Functions
/// with this name prefix are not instrumented.
macro_rules! hooks {
    ($($name:ident: $loaded:ty,)*) => {$(
        // SAFETY: the instrumentation reserves the name for such a function, and
        // the address that it is called with is not used.
        #[cfg(count_steps)]
        #[unsafe(no_mangle)]
        extern "C" fn $name(_address: *const $loaded) {
            step();
        }
    )*};
}

hooks! {
    __sanitizer_cov_load1: u8,
    __sanitizer_cov_load2: u16,
    __sanitizer_cov_load4: u32,
    __sanitizer_cov_load8: u64,
    __sanitizer_cov_load16: u128,
}

#[cfg(count_steps)]
#[cold]
#[inline(never)]
fn too_many_steps() -> ! {
    // The printing code is instrumented too.
    STEP_LIMIT.store(u64::MAX, Ordering::Relaxed);
    eprintln!("the input takes more steps than its length allows");
    std::process::abort();
}

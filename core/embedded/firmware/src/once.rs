//! Static variables that are borrowed once, for as long as the program runs.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

/// A static variable that is borrowed at most once.
pub struct Once<T> {
    value: UnsafeCell<T>,
    is_taken: AtomicBool,
}

// SAFETY: only one caller of `take` gets the value.
unsafe impl<T: Send> Sync for Once<T> {}

impl<T> Once<T> {
    /// A variable with its initial value.
    pub const fn new(value: T) -> Self {
        Self {
            value: UnsafeCell::new(value),
            is_taken: AtomicBool::new(false),
        }
    }

    /// The variable; `None` after the first call.
    pub fn take(&'static self) -> Option<&'static mut T> {
        if self.is_taken.swap(true, Ordering::Relaxed) {
            return None;
        }
        // SAFETY: there is no other reference, as this is the first call.
        Some(unsafe { &mut *self.value.get() })
    }
}

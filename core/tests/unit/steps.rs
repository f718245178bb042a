//! A counter for the values that a reader passes, for tests that compare the
//! cost of reading independently of the machine.

extern crate std;

use core::cell::Cell;

std::thread_local! {
    static STEPS: Cell<u64> = const { Cell::new(0) };
}

/// Counts one more step of this thread.
pub(crate) fn step() {
    STEPS.set(STEPS.get().wrapping_add(1));
}

/// The number of steps that `work` takes.
pub(crate) fn steps_of<R>(work: impl FnOnce() -> R) -> u64 {
    let before = STEPS.get();
    work();
    STEPS.get().wrapping_sub(before)
}

//! Counts of steps, for tests that compare inputs of different sizes.

/// Counts a step of work.
pub fn step() {
    #[cfg(any(test, feature = "fuzzing"))]
    STEPS.with(|steps| steps.set(steps.get() + 1));
}

#[cfg(any(test, feature = "fuzzing"))]
std::thread_local! {
    /// The steps of this thread.
    pub static STEPS: core::cell::Cell<u64> = const { core::cell::Cell::new(0) };
}

//! Budgets of memory and steps for an input by its length, to detect excessive
//! growth besides crashes.

use std::sync::OnceLock;

use crate::meter;

/// Whether to print the consumption of each input, to choose budgets.
static SHOW: OnceLock<bool> = OnceLock::new();

/// The resources that an input may use: a base and an amount per byte.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Bytes of memory at once.
    pub memory_len: Linear,
    /// Total bytes of all allocations.
    pub allocated_len: Linear,
    /// Loads from memory, which are only counted in builds by `.ci/run`.
    pub steps: Linear,
}

/// An amount that may grow with the length of the input.
#[derive(Clone, Copy, Debug)]
pub struct Linear {
    /// The base amount.
    pub base: u64,
    /// The amount per byte of input.
    pub per_byte: u64,
}

impl Linear {
    const fn at(self, len: usize) -> u64 {
        self.base
            .saturating_add(self.per_byte.saturating_mul(len as u64))
    }
}

impl Budget {
    /// Multiplies the amounts per byte by `factor`.
    #[must_use]
    pub const fn times(self, factor: u64) -> Self {
        const fn scale(linear: Linear, factor: u64) -> Linear {
            Linear {
                base: linear.base,
                per_byte: linear.per_byte.saturating_mul(factor),
            }
        }
        Self {
            memory_len: scale(self.memory_len, factor),
            allocated_len: scale(self.allocated_len, factor),
            steps: scale(self.steps, factor),
        }
    }

    /// Runs `work` on an input of `len` bytes and checks the budget.
    ///
    /// # Panics
    ///
    /// If `work` uses more memory than the budget. If it takes more steps, the
    /// process aborts at once, since `work` might never return.
    pub fn check<R>(&self, len: usize, work: impl FnOnce() -> R) -> R {
        meter::reset_peak();
        let before = meter::usage();
        let limit = self.steps.at(len);
        let outer = meter::limit_steps(before.steps.saturating_add(limit));
        let result = work();
        meter::limit_steps(outer);
        let after = meter::usage();
        let used = [
            (
                "bytes of memory at once",
                after.peak_len.saturating_sub(before.live_len),
                self.memory_len.at(len),
            ),
            (
                "bytes of memory in all",
                after.allocated_len.saturating_sub(before.allocated_len),
                self.allocated_len.at(len),
            ),
        ];
        if *SHOW.get_or_init(|| std::env::var_os("FUZZ_USAGE").is_some()) {
            let steps = after.steps.saturating_sub(before.steps);
            let [(_, memory, _), (_, allocated, _)] = used;
            eprintln!("{len} bytes: {memory} at once, {allocated} in all, {steps} steps");
        }
        for (what, used, limit) in used {
            assert!(
                used <= limit,
                "{len} bytes of input take {used} {what}, more than {limit}"
            );
        }
        result
    }
}

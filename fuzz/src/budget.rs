//! How much memory and how many steps an input may take for its length, so that
//! growth is found and not only crashes.

use std::sync::OnceLock;

use crate::meter;

/// Whether to print what each input takes, by which limits are chosen.
static SHOW: OnceLock<bool> = OnceLock::new();

/// What an input may take: so much in any case, and so much for each of its
/// bytes.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Bytes of memory at once.
    pub memory_len: Linear,
    /// Bytes of all allocations, one after the other.
    pub allocated_len: Linear,
    /// Loads from memory, which are only counted in what `.ci/run` builds.
    pub steps: Linear,
}

/// An amount that may grow with the length of the input.
#[derive(Clone, Copy, Debug)]
pub struct Linear {
    /// Whatever the length.
    pub base: u64,
    /// For each byte.
    pub per_byte: u64,
}

impl Linear {
    const fn at(self, len: usize) -> u64 {
        self.base
            .saturating_add(self.per_byte.saturating_mul(len as u64))
    }
}

impl Budget {
    /// The same with `factor` times as much for each byte.
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

    /// Does `work` on an input of `len` bytes.
    ///
    /// # Panics
    ///
    /// If that takes more memory than the budget. If it takes more steps, the
    /// process aborts at that moment: it might never return.
    pub fn check<R>(&self, len: usize, work: impl FnOnce() -> R) -> R {
        meter::reset_peak();
        let before = meter::taken();
        let limit = self.steps.at(len);
        let outer = meter::limit_steps(before.steps.saturating_add(limit));
        let result = work();
        meter::limit_steps(outer);
        let after = meter::taken();
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

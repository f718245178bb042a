//! Fuzz targets and the functions that they call.

use crate::budget::Budget;

/// A fuzz target and the function that checks its properties.
#[derive(Clone, Copy, Debug)]
pub struct FuzzTarget {
    /// The name of the target and of its corpus.
    pub name: &'static str,
    /// Panics if a property does not hold for an input.
    pub body: fn(&[u8]),
    /// The memory and steps that an input may take; `None` if the function checks
    /// budgets of its own.
    pub budget: Option<Budget>,
}

impl FuzzTarget {
    /// Runs the function of the target called `name`.
    ///
    /// # Panics
    ///
    /// If a property does not hold for `input`, or it takes more than its budget,
    /// or there is no such target.
    pub fn run(targets: &[Self], name: &str, input: &[u8]) {
        let target = targets.iter().find(|target| target.name == name);
        let target = target.expect("a target of this name");
        match target.budget {
            Some(budget) => budget.check(input.len(), || (target.body)(input)),
            None => (target.body)(input),
        }
    }
}

/// Defines the targets of a crate as `TARGETS`, from the names of functions and
/// their budgets, with a test for each that replays its corpus and a test that
/// the manifest has all of them.
#[macro_export]
macro_rules! targets {
    ($($(#[$note:meta])* $name:ident: $budget:expr,)*) => {
        /// All targets of this crate.
        pub const TARGETS: &[$crate::FuzzTarget] = &[
            $($crate::FuzzTarget { name: stringify!($name), body: $name, budget: $budget },)*
        ];

        #[cfg(test)]
        mod replay {
            use super::TARGETS;

            $(
                #[test]
                fn $name() {
                    $crate::corpus::replay(TARGETS, stringify!($name));
                }
            )*

            #[test]
            fn all_targets_are_declared() {
                $crate::corpus::check_targets(env!("CARGO_MANIFEST_DIR"), TARGETS);
            }
        }
    };
}

/// The program of a fuzz target: `target!(daskwire_fuzz::prelude)` runs the
/// target `prelude` of that crate with inputs of libFuzzer.
///
/// Only cargo-fuzz sets `cfg(fuzzing)` and links libFuzzer. In other builds the
/// program prints an error and fails.
#[macro_export]
macro_rules! target {
    ($package:ident::$target:ident) => {
        #[cfg(fuzzing)]
        ::libfuzzer_sys::fuzz_target!(|input: &[u8]| {
            $crate::FuzzTarget::run($package::TARGETS, stringify!($target), input)
        });

        #[cfg(not(fuzzing))]
        fn main() -> ::std::process::ExitCode {
            ::std::eprintln!("build this program with cargo fuzz");
            ::std::process::ExitCode::FAILURE
        }
    };
}

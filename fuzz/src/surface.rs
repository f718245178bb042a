//! Fuzz targets and the functions that they call.

use crate::budget::Budget;

/// A fuzz target and the function that checks its properties.
#[derive(Clone, Copy, Debug)]
pub struct Surface {
    /// The name of the target and of its corpus.
    pub name: &'static str,
    /// Panics if a property does not hold for an input.
    pub body: fn(&[u8]),
    /// The memory and steps that an input may take; `None` if the function checks
    /// budgets of its own.
    pub budget: Option<Budget>,
}

impl Surface {
    /// Runs the function of the surface called `name`.
    ///
    /// # Panics
    ///
    /// If a property does not hold for `input`, or it takes more than its budget,
    /// or there is no such surface.
    pub fn run(surfaces: &[Self], name: &str, input: &[u8]) {
        let surface = surfaces.iter().find(|surface| surface.name == name);
        let surface = surface.expect("a surface of this name");
        match surface.budget {
            Some(budget) => budget.check(input.len(), || (surface.body)(input)),
            None => (surface.body)(input),
        }
    }
}

/// Defines the surfaces of a crate as `SURFACES`, from the names of functions and
/// their budgets, with a test for each that replays its corpus and a test that
/// the manifest has all of them.
#[macro_export]
macro_rules! surfaces {
    ($($(#[$note:meta])* $name:ident: $budget:expr,)*) => {
        /// All surfaces of this crate.
        pub const SURFACES: &[$crate::Surface] = &[
            $($crate::Surface { name: stringify!($name), body: $name, budget: $budget },)*
        ];

        #[cfg(test)]
        mod replay {
            use super::SURFACES;

            $(
                #[test]
                fn $name() {
                    $crate::corpus::replay(SURFACES, stringify!($name));
                }
            )*

            #[test]
            fn every_target_has_a_surface() {
                $crate::corpus::check_targets(env!("CARGO_MANIFEST_DIR"), SURFACES);
            }
        }
    };
}

/// The program of a fuzz target: `target!(daskwire_fuzz::prelude)` runs the
/// surface `prelude` of that crate with inputs of libFuzzer.
///
/// Only cargo-fuzz sets `cfg(fuzzing)` and links libFuzzer. In other builds the
/// program prints an error and fails.
#[macro_export]
macro_rules! target {
    ($package:ident::$surface:ident) => {
        #[cfg(fuzzing)]
        ::libfuzzer_sys::fuzz_target!(|input: &[u8]| {
            $crate::Surface::run($package::SURFACES, stringify!($surface), input)
        });

        #[cfg(not(fuzzing))]
        fn main() -> ::std::process::ExitCode {
            ::std::eprintln!("build this program with cargo fuzz");
            ::std::process::ExitCode::FAILURE
        }
    };
}

//! Schedulers that are killed at any step.

use daskwire_scheduler::state::simulation;

/// Checks that schedulers which are killed at any step lead to what another one leads to, and that nothing
/// is left of their tasks.
///
/// The input: 0 for any events or 1 for a script that also runs undisturbed, and choices.
pub(crate) fn killed_scheduler(input: &[u8]) {
    match input.split_first() {
        Some((kind, choices)) if kind % 2 == 1 => simulation::compare_killed(choices),
        Some((_, choices)) => simulation::kill_and_finish(choices),
        None => {}
    }
}

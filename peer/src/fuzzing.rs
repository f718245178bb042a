//! Access to internals for fuzz targets.

use std::collections::BTreeSet;

use crate::scheduler::state::State;
use crate::{Key, client, worker};

#[cfg(target_os = "linux")]
pub use crate::worker::python_fuzzing::read_from_python;
pub use crate::worker::store_fuzzing::{Spilled, checksum, read_spill_file};

/// Panics if a scheduler's state is inconsistent. Called between events.
pub fn check_scheduler(state: &State) {
    state.check();
}

/// The names of a scheduler's clients, also of those that are not connected.
pub fn client_names(state: &State) -> Vec<String> {
    state.client_names()
}

/// Panics if a client's state is inconsistent; returns the number of holds with
/// handles. Called between events.
pub fn check_client(state: &client::state::State) -> usize {
    state.check();
    state.hold_count()
}

/// Panics if a worker's state is inconsistent, or if it assumes that other keys
/// than `stored` are in the store. Called between events.
pub fn check_worker(state: &worker::state::State, stored: &BTreeSet<Key>) {
    state.check();
    assert_eq!(state.in_memory(), *stored);
}

/// The keys in a worker's state.
pub fn worker_keys(state: &worker::state::State) -> Vec<Key> {
    state.keys()
}

//! Consistency checks of the state machine's redundant data.

use std::collections::HashSet;

use super::{Compact, MAX_RELEASED, State};

impl State {
    /// The number of holds that have handles.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn hold_count(&self) -> usize {
        self.keys.len() + self.ended.len()
    }

    /// Panics if the state is inconsistent. Called between events.
    pub(crate) fn check(&self) {
        let mut numbers = HashSet::new();
        for (key, held) in &self.keys {
            assert!(self.is_connected(), "{key} is held without a connection");
            assert!(held.handle_count > 0, "{key}");
            assert!(held.marks <= self.marks, "{key}");
            assert!(numbers.insert(held.number), "{key}");
        }
        for (number, ended) in &self.ended {
            assert!(ended.handle_count > 0, "{number}");
            assert!(!matches!(ended.status, Compact::Pending), "{number}");
            assert!(numbers.insert(*number), "{number}");
        }
        assert!(numbers.iter().all(|number| *number < self.next_number));
        assert!(self.answered <= self.marks);
        assert!(self.restart_mark <= self.marks);
        assert!(self.release_mark <= self.marks + 1);
        assert!(self.released.len() <= MAX_RELEASED);
        assert!(self.actions.is_empty(), "an action was not taken");
    }
}

//! Consistency checks of the state machine's redundant data.

use std::collections::HashSet;

use super::{MAX_RELEASED, State, Status};

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
            assert!(held.handle_count.0 > 0, "{key}");
            assert!(numbers.insert(held.number), "{key}");
            let has_error = self.errors.contains_key(&held.number);
            assert!(!(held.is_finished && has_error), "{key}");
        }
        let has_key = |number| numbers.contains(number);
        assert!(self.errors.keys().all(has_key), "an error has no key");
        for (number, ended) in &self.ended {
            assert!(ended.handle_count.0 > 0, "{number}");
            assert!(
                !matches!(ended.status, Status::Pending | Status::Finished),
                "{number}"
            );
            assert!(numbers.insert(*number), "{number}");
        }
        assert!(numbers.iter().all(|number| *number < self.next_number));
        assert_eq!(self.unanswered.len() as u64, self.marks - self.answered);
        assert!(self.unanswered.iter().is_sorted());
        assert!(self.unanswered.back() <= Some(&self.next_number));
        assert!(self.restart_mark <= self.marks);
        assert!(self.release_mark <= self.marks + 1);
        assert!(self.released.len() <= MAX_RELEASED);
        assert!(self.actions.is_empty(), "an action was not taken");
    }
}

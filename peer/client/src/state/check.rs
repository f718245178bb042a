//! Consistency checks of the state machine's redundant data.

use std::collections::HashSet;

use super::{Awaited, Hold, MAX_RELEASED, State, Status};

impl State {
    /// The number of holds that have handles.
    #[cfg(feature = "fuzzing")]
    #[doc(hidden)]
    pub fn hold_count(&self) -> usize {
        self.keys.len() + self.ended.len()
    }

    /// Panics if the state is inconsistent. Called between events.
    #[doc(hidden)]
    pub fn check(&self) {
        let mut holds = HashSet::new();
        for (key, held) in &self.keys {
            let hold = Hold { key: key.clone() };
            let is_kept = self.is_connected() || self.keeps_keys && !self.has_ended();
            assert!(is_kept, "{key} is held without a connection");
            assert!(self.is_connected() || !held.is_finished, "{key}");
            assert!(held.handle_count.0 > 0, "{key}");
            let has_error = self.errors.contains_key(&hold);
            assert!(!(held.is_finished && has_error), "{key}");
            holds.insert(hold);
        }
        let is_current = |hold| holds.contains(hold);
        assert!(self.errors.keys().all(is_current), "an error has no key");
        for (hold, ended) in &self.ended {
            assert!(ended.handle_count.0 > 0, "{hold:?}");
            assert!(
                !matches!(ended.status, Status::Pending | Status::Finished),
                "{hold:?}"
            );
            assert!(!holds.contains(hold), "{hold:?}");
        }
        let unanswered: HashSet<&Hold> = self.unanswered.iter().flatten().collect();
        for hold in &holds {
            let awaits_mark = self.keys[&hold.key].awaited == Awaited::Mark;
            assert_eq!(awaits_mark, unanswered.contains(hold), "{hold:?}");
        }
        assert_eq!(self.unanswered.len() as u64, self.marks - self.answered);
        assert!(self.restart_mark <= self.marks);
        assert!(self.release_mark <= self.marks + 1);
        assert!(self.released.len() <= MAX_RELEASED);
        assert!(self.graphs.is_empty() || self.keeps_keys);
        assert!(self.is_connected() || !self.is_returning());
        assert!(self.actions.is_empty(), "an action was not taken");
    }
}

//! The run times that tasks are expected to have.

use core::time::Duration;

/// The work of the tasks that a worker has, sent or in its queue.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Work {
    /// The sum of the known run times.
    known: Duration,
    /// The number of tasks of an unknown run time.
    unknown_count: u32,
}

impl Work {
    pub(super) fn add(&mut self, expected: Option<Duration>) {
        match expected {
            Some(expected) => self.known = self.known.saturating_add(expected),
            None => self.unknown_count += 1,
        }
    }

    pub(super) fn remove(&mut self, expected: Option<Duration>) {
        match expected {
            Some(expected) => self.known = self.known.saturating_sub(expected),
            None => self.unknown_count = self.unknown_count.saturating_sub(1),
        }
    }

    /// The time that one thread needs for the work, in seconds. `pace` is assumed for each task
    /// of an unknown run time.
    pub(super) fn seconds(&self, pace: f64) -> f64 {
        self.known.as_secs_f64() + f64::from(self.unknown_count) * pace
    }
}

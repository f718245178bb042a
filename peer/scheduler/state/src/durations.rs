//! The run times that tasks are expected to have.

use core::time::Duration;
use std::collections::HashMap;

use daskwire_messages::Key;

/// Maximum number of prefixes with a known run time. Keys of any names may have any number of
/// prefixes.
const MAX_COUNT: usize = 1 << 14;

/// Average run times, by the prefix of the tasks' keys.
#[derive(Debug, Default)]
pub(super) struct Durations(HashMap<Box<str>, Duration>);

impl Durations {
    /// Returns the run times that are expected by these prefixes, until a task has ended.
    pub(super) fn new(defaults: &[(String, Duration)]) -> Self {
        let defaults = defaults.iter().take(MAX_COUNT);
        Self(
            defaults
                .map(|(prefix, duration)| (prefix.as_str().into(), *duration))
                .collect(),
        )
    }

    /// The run time that a task is expected to have; `None` until a task with its prefix has
    /// ended.
    pub(super) fn of(&self, key: &Key) -> Option<Duration> {
        self.0.get(&*key.prefix()).copied()
    }

    /// Includes the run time of a task that has ended. As in Dask, it has half of the weight.
    pub(super) fn add(&mut self, key: &Key, took: Duration) {
        let prefix = key.prefix();
        if let Some(average) = self.0.get_mut(&*prefix) {
            *average = (*average + took) / 2;
            return;
        }
        if self.0.len() >= MAX_COUNT {
            self.0.clear();
        }
        self.0.insert(prefix.into(), took);
    }
}

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

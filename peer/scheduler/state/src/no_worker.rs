//! Tasks that have waited too long for a worker, as by `distributed.scheduler.no-workers-timeout`.

use core::time::Duration;
use std::collections::{BTreeSet, HashMap};

use daskwire_messages::Value;
use daskwire_messages::exception::{no_valid_worker, no_worker};

use super::State;
use super::model::TaskId;
use super::submission::Failure;
use crate::steps::step;

/// Maximum number of tasks that fail with one event. Others fail with the next ones.
const PART: usize = 256;

/// The tasks for which no worker qualifies, by the time from which on. Empty without a time limit.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    by_time: BTreeSet<(Duration, TaskId)>,
    since: HashMap<TaskId, Duration>,
}

impl Waiting {
    pub(super) fn insert(&mut self, now: Duration, id: TaskId) {
        let since = *self.since.entry(id).or_insert(now);
        self.by_time.insert((since, id));
    }

    pub(super) fn remove(&mut self, id: TaskId) {
        if let Some(since) = self.since.remove(&id) {
            self.by_time.remove(&(since, id));
        }
    }

    #[cfg(any(test, feature = "checks"))]
    pub(super) fn len(&self) -> usize {
        assert_eq!(self.by_time.len(), self.since.len());
        self.by_time.len()
    }
}

impl State {
    /// Fails tasks that have waited for a worker for longer than
    /// [`Policy::no_worker_timeout`](super::Policy::no_worker_timeout).
    pub(super) fn fail_waiting(&mut self) {
        let Some(timeout) = self.policy.no_worker_timeout else {
            return;
        };
        let waiting = self.waiting.by_time.iter();
        let late = waiting.take_while(|(since, _)| self.now - *since > timeout);
        let late: Vec<TaskId> = late.map(|(_, id)| *id).take(PART).collect();
        if late.is_empty() {
            return;
        }
        let has_workers = self.classes.iter().next().is_some();
        let mut keys = Vec::with_capacity(late.len());
        for id in late {
            step();
            let task = &self.tasks[id];
            let Some(run_spec) = &task.run_spec else {
                continue;
            };
            let demands = &run_spec.demands;
            let exception = match has_workers {
                true => no_valid_worker(&task.key, &demands.workers, &demands.resources.0, timeout),
                false => no_worker(&task.key, timeout),
            };
            keys.push(task.key.to_value());
            let failure = Failure::raised(exception, task.key.clone());
            self.fail(id, &failure);
        }
        let keys = Value::Set(keys.into());
        self.log(
            &["scheduler"],
            "no-workers-timeout-exceeded",
            [("keys", keys)],
        );
    }
}

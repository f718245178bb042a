//! The loss of the connection to the scheduler, and the return with what the worker holds and runs.

use std::collections::BTreeSet;

use daskwire_messages::Key;
use daskwire_messages::protocol::{
    AddKeys, FromWorker, Keys, Returned, ReturnedResult, ReturnedRun, WorkerStatus,
};

use super::event::stimulus;
use super::task::TaskStage;
use super::{Action, State};

/// Maximum number of keys in a message.
const PART: usize = 4096;

impl State {
    /// Whether the worker is registered with a scheduler, as far as the state machine was told.
    pub const fn is_connected(&self) -> bool {
        self.undelivered.is_none()
    }

    /// Drops what the worker has not begun, and goes on with the rest.
    pub(super) fn disconnected(&mut self) {
        if self.undelivered.is_some() {
            return;
        }
        self.undelivered = Some(Vec::new());
        // Whoever wanted that has lost the worker.
        if self.status == WorkerStatus::ClosingGracefully {
            self.status = WorkerStatus::Running;
        }
        let pending = self.tasks.iter();
        let pending = pending.filter(|(_, task)| task.stage != TaskStage::Memory);
        let pending: BTreeSet<Key> = pending.map(|(key, _)| key.clone()).collect();
        for key in &pending {
            let Some(task) = self.tasks.get_mut(key) else {
                continue;
            };
            task.is_acquired = false;
            let computation = task.computation.as_ref();
            match task.stage {
                TaskStage::Waiting | TaskStage::Ready => self.stop_waiting(key),
                // The run that was asked for last has not begun.
                TaskStage::Executing if computation.is_some_and(|it| it.message.is_some()) => {
                    task.computation = None;
                }
                // What arrives is dropped.
                TaskStage::Flight => task.computation = None,
                _ => {}
            }
        }
        for key in &pending {
            self.drop_unless_begun(key);
        }
    }

    fn drop_unless_begun(&mut self, key: &Key) {
        let stage = self.tasks.get(key).map(|task| task.stage);
        let Some(TaskStage::Fetch | TaskStage::Missing | TaskStage::Error) = stage else {
            return;
        };
        self.drop_unless_wanted(key);
    }

    /// Tells a scheduler with which the worker has registered again what it has. If the scheduler
    /// does not take that, the data is reported as replicas, and running tasks are cancelled.
    // ROLES SCHEDULER-17
    pub(super) fn registered(&mut self, returns: bool) {
        let Some(undelivered) = self.undelivered.take() else {
            return;
        };
        match returns {
            true => self.report_all(undelivered),
            false => self.report_data(),
        }
        // It may have changed since the registration.
        self.send_status(self.status.clone());
    }

    fn report_data(&mut self) {
        let held = self.held();
        let executing: Vec<Key> = self.executing.keys().cloned().collect();
        for key in executing {
            let task = self.tasks.get_mut(&key);
            let task = task.filter(|task| task.stage == TaskStage::Executing);
            if task.is_some_and(|task| task.computation.take().is_some()) {
                self.actions.push(Action::Cancel(key));
            }
        }
        let failed = self.tasks.iter();
        let failed = failed.filter(|(_, task)| task.stage == TaskStage::Error);
        let failed: BTreeSet<Key> = failed.map(|(key, _)| key.clone()).collect();
        for key in &failed {
            self.drop_unless_wanted(key);
        }
        for keys in held.chunks(PART) {
            self.send(AddKeys {
                keys: Keys(keys.to_vec()),
                stimulus_id: stimulus("worker-connect", self.now),
                ..AddKeys::default()
            });
        }
    }

    /// The keys of the data in memory, in order.
    fn held(&self) -> Vec<Key> {
        let tasks = self.tasks.iter();
        let held = tasks.filter(|(_, task)| task.stage == TaskStage::Memory);
        let mut held: Vec<Key> = held.map(|(key, _)| key.clone()).collect();
        held.sort_unstable();
        held
    }

    fn report_all(&mut self, mut undelivered: Vec<FromWorker>) {
        let stage = |key: &Key| self.tasks.get(key).map(|task| task.stage);
        let mut ended = BTreeSet::new();
        let mut running = Vec::new();
        undelivered.retain(|message| {
            let (key, run_id, expected) = match message {
                FromWorker::TaskFinished(message) => {
                    (&message.key, message.run_id, TaskStage::Memory)
                }
                FromWorker::TaskErred(message) => (&message.key, message.run_id, TaskStage::Error),
                _ => return false,
            };
            // The data may have been lost since.
            let is_current = stage(key) == Some(expected);
            if is_current {
                ended.insert(key.clone());
                let key = key.clone();
                running.push(ReturnedRun { key, run_id });
            }
            is_current
        });
        let mut seceded = Vec::new();
        for (key, execution) in &self.executing {
            let task = self.tasks.get(key);
            let task = task.filter(|task| task.stage == TaskStage::Executing);
            let computation = task.and_then(|task| task.computation.as_ref());
            let Some(computation) = computation.filter(|it| it.message.is_none()) else {
                continue;
            };
            let run_id = computation.run_id;
            running.push(ReturnedRun {
                key: key.clone(),
                run_id,
            });
            if execution.has_seceded {
                let run_time = self.now.saturating_sub(execution.since);
                seceded.push((key.clone(), run_id, run_time));
            }
        }
        let mut held = self.held();
        held.retain(|key| !ended.contains(key));
        let mut parts: Vec<Returned> = running
            .chunks(PART)
            .map(|running| Returned {
                running: running.to_vec(),
                ..Returned::default()
            })
            .collect();
        for keys in held.chunks(PART) {
            let mut part = Returned::default();
            for key in keys {
                let Some(task) = self.tasks.get(key) else {
                    continue;
                };
                if task.is_actor {
                    part.actors.push(key.clone());
                }
                part.results.push(ReturnedResult {
                    key: key.clone(),
                    nbytes: task.description.nbytes,
                    class: task.description.class.clone(),
                });
            }
            parts.push(part);
        }
        if parts.is_empty() {
            parts.push(Returned::default());
        }
        let count = parts.len();
        for (index, mut part) in parts.into_iter().enumerate() {
            part.is_last = index + 1 == count;
            part.stimulus_id = stimulus("worker-return", self.now);
            self.send(part);
        }
        for message in undelivered {
            // The times in it are those of the scheduler's clock already.
            self.actions.push(Action::Send(Box::new(message)));
        }
        for (key, run_id, run_time) in seceded {
            let task = self.tasks.get_mut(&key);
            if let Some(computation) = task.and_then(|task| task.computation.as_mut()) {
                computation.is_reported_seceded = true;
            }
            self.send_seceded(key, run_id, Some(run_time));
        }
    }
}

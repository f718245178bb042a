//! Freeing data, and returning tasks for other workers.

use daskwire_messages::Key;
use daskwire_messages::protocol::{AddKeys, Keys, ReleaseWorkerData};

use super::task::{Task, TaskStage};
use super::{Action, State};

impl State {
    pub(super) fn on_free_keys(&mut self, key: &Key, stimulus_id: &str) {
        let Some(task) = self.tasks.get_mut(key) else {
            return;
        };
        task.is_acquired = false;
        match task.stage {
            TaskStage::Waiting | TaskStage::Ready => self.stop_waiting(key),
            TaskStage::Executing => {
                let computation = task.computation.take();
                if computation.is_some_and(|computation| computation.message.is_none()) {
                    self.actions.push(Action::Cancel(key.clone()));
                }
            }
            TaskStage::Flight => task.computation = None,
            TaskStage::Memory => self.release(key, stimulus_id),
            TaskStage::Error
            | TaskStage::Fetch
            | TaskStage::Missing
            | TaskStage::Released
            | TaskStage::Forgotten => self.drop_unless_wanted(key),
        }
    }

    /// Stops computing a task that is waiting or ready.
    pub(super) fn stop_waiting(&mut self, key: &Key) {
        self.leave_queues(key);
        let Some(task) = self.tasks.get_mut(key) else {
            return;
        };
        let dependencies = task
            .computation
            .take()
            .map(|computation| computation.dependencies);
        self.unlink(key, &dependencies.unwrap_or_default());
        if self.tasks.get(key).is_some_and(Task::is_wanted) {
            self.fetch(key);
        } else {
            self.remove(key);
        }
    }

    /// Deletes data in memory. Tasks of this worker that need the data fetch it from
    /// other workers.
    pub(super) fn release(&mut self, key: &Key, stimulus_id: &str) {
        self.actions.push(Action::Forget(key.clone()));
        self.send(ReleaseWorkerData {
            key: key.clone(),
            stimulus_id: stimulus_id.to_owned(),
            ..ReleaseWorkerData::default()
        });
        let Some(task) = self.tasks.get_mut(key) else {
            return;
        };
        let dependents: Vec<Key> = task.dependents.iter().cloned().collect();
        if dependents.is_empty() {
            self.remove(key);
            return;
        }
        for dependent in dependents {
            let Some(task) = self.tasks.get_mut(&dependent) else {
                continue;
            };
            if let Some(computation) = &mut task.computation {
                computation.missing_count += 1;
            }
            if task.stage == TaskStage::Ready {
                self.leave_queues(&dependent);
                self.set_phase(&dependent, TaskStage::Waiting);
            }
        }
        self.fetch(key);
    }

    pub(super) fn remove_replicas(&mut self, keys: &Keys, stimulus_id: &str) {
        let mut kept = Vec::new();
        for key in keys {
            match self.tasks.get(key) {
                Some(task) if task.stage != TaskStage::Memory => {}
                Some(task) if !task.dependents.is_empty() => kept.push(key.clone()),
                Some(_) => self.release(key, stimulus_id),
                None => {}
            }
        }
        if !kept.is_empty() {
            self.send(AddKeys {
                keys: Keys(kept),
                stimulus_id: stimulus_id.to_owned(),
                ..AddKeys::default()
            });
        }
    }

    /// Stops computing a task, unless it has started.
    pub(super) fn cancel_unstarted(&mut self, key: &Key) {
        let state = self.steal_state(key);
        if !matches!(state, Some("waiting" | "ready" | "constrained")) {
            return;
        }
        match self.tasks.get_mut(key) {
            // An earlier run still executes.
            Some(task) if task.stage == TaskStage::Executing => task.computation = None,
            _ => self.stop_waiting(key),
        }
    }

    /// Returns the state of a task for the reply to a steal request, with a name that the
    /// scheduler accepts.
    pub(super) fn steal_state(&self, key: &Key) -> Option<&'static str> {
        let task = self.tasks.get(key)?;
        let is_computed = task.computation.is_some();
        let computation = task.computation.as_ref();
        let has_message = computation.is_some_and(|computation| computation.message.is_some());
        match task.stage {
            TaskStage::Ready => {
                let entry = (task.priority, key.clone());
                let is_constrained = self.constrained.contains(&entry);
                Some(if is_constrained {
                    "constrained"
                } else {
                    "ready"
                })
            }
            TaskStage::Executing if !is_computed => Some("cancelled"),
            // The run that was asked for last has not started.
            TaskStage::Executing if has_message => Some("waiting"),
            TaskStage::Waiting | TaskStage::Executing | TaskStage::Memory => {
                Some(task.stage.name())
            }
            TaskStage::Flight if is_computed => Some("resumed"),
            TaskStage::Error
            | TaskStage::Fetch
            | TaskStage::Flight
            | TaskStage::Missing
            | TaskStage::Released
            | TaskStage::Forgotten => None,
        }
    }
}

//! Tasks that workers give back, because they cannot run them.

use std::collections::BTreeSet;

use daskwire_messages::protocol::Reschedule;

use super::model::{TaskId, TaskStage};
use super::submission::Failure;
use super::{State, WorkerId};
use crate::steps::step;

/// The beginning of the stimulus of a worker that gives back a task because it cannot run it, for
/// example a worker in Rust without the function.
const UNSUPPORTED: &str = "task-unsupported";

/// The workers that have given back a task.
#[derive(Debug)]
pub(super) struct GivenBack {
    pub(super) workers: BTreeSet<WorkerId>,
    /// The last of them. The next one in the order of ids is tried next.
    pub(super) last: WorkerId,
}

impl State {
    /// Handles a task that a worker gives back. It runs on another worker, as after an error.
    // ROLES WORKER-7
    pub(super) fn reschedule(&mut self, on: WorkerId, message: &Reschedule) {
        let Some(id) = self.by_key.get(&message.key).copied() else {
            return;
        };
        if self.has_claimed(id, on) {
            self.drop_claim(id, Some(on));
            return;
        }
        if !matches!(self.tasks[id].stage, TaskStage::Processing(worker) if worker == on) {
            return;
        }
        if message.stimulus_id.starts_with(UNSUPPORTED) {
            let returned = self.returned.entry(id).or_insert_with(|| GivenBack {
                workers: BTreeSet::new(),
                last: on,
            });
            returned.workers.insert(on);
            returned.last = on;
            let asked = returned.workers.len();
            if !self.has_other(id) {
                let reason = message.extra.iter();
                let reason = reason.filter(|(name, _)| name.as_str() == Some("reason"));
                let reason = reason.filter_map(|(_, reason)| reason.as_str()).next();
                let reason = reason.map(|reason| format!(": {reason}"));
                let text = format!(
                    "no worker has the function that the task {} calls, or none that has it can \
                     run the rest of the task (workers asked: {asked}){}",
                    message.key,
                    reason.unwrap_or_default()
                );
                let failure = Failure::new("NotImplementedError", &text, Some(message.key.clone()));
                self.fail(id, &failure);
                return;
            }
        } else {
            // Otherwise an idle worker would get the task again at once, again and again.
            self.retried.insert(id, on);
        }
        self.unassign(id);
        self.make_ready(id);
    }

    /// Whether a worker has given back this task.
    pub(super) fn has_returned(&self, id: TaskId, worker: WorkerId) -> bool {
        let returned = self.returned.get(&id);
        returned.is_some_and(|returned| returned.workers.contains(&worker))
    }

    /// Whether a worker that has not given back a task meets its demands, and may run it once it
    /// accepts tasks.
    fn has_other(&self, id: TaskId) -> bool {
        let Some(run_spec) = &self.tasks[id].run_spec else {
            return false;
        };
        let group = &self.groups[run_spec.group];
        self.can_run(id)
            || self.not_running.iter().any(|other| {
                step();
                let worker = self.workers.get(other);
                worker.is_some_and(|worker| self.would_admit(group, worker))
                    && !self.has_returned(id, *other)
            })
    }

    /// Forgets which workers have given back a task, and on which it has failed. They may be asked
    /// again when it runs again.
    pub(super) fn forget_returns(&mut self, id: TaskId) {
        self.returned.remove(&id);
        self.retried.remove(&id);
    }
}

//! Tasks that workers give back, because they cannot run them.

use daskwire_messages::protocol::Reschedule;

use super::model::{Stage, TaskId};
use super::submission::Failure;
use super::{State, WorkerId};

/// The beginning of the stimulus of a worker that gives back a task because it cannot run it, for
/// example a worker in Rust without the function.
const UNSUPPORTED: &str = "task-unsupported";

impl State {
    /// Handles a task that a worker gives back.
    // ROLES WORKER-7
    pub(super) fn reschedule(&mut self, on: WorkerId, message: &Reschedule) {
        let Some(id) = self.by_key.get(&message.key).copied() else {
            return;
        };
        if !matches!(self.tasks[id].stage, Stage::Processing(worker) if worker == on) {
            return;
        }
        if message.stimulus_id.starts_with(UNSUPPORTED) {
            self.returned.entry(id).or_default().insert(on);
            if !self.has_other(id) {
                let asked = self.returned.get(&id).map_or(0, |workers| workers.len());
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
                let failure = Failure::new("NotImplementedError", &text);
                self.todo.failed.push((id, failure));
                return;
            }
        }
        self.unassign(id);
        self.make_ready(id);
    }

    /// Whether a worker has given back this task.
    pub(super) fn has_returned(&self, id: TaskId, worker: WorkerId) -> bool {
        let workers = self.returned.get(&id);
        workers.is_some_and(|workers| workers.contains(&worker))
    }

    /// Whether a worker that has not given back a task meets its demands, and may run it once it
    /// accepts tasks.
    fn has_other(&self, id: TaskId) -> bool {
        let Some(run_spec) = &self.tasks[id].run_spec else {
            return false;
        };
        let demands = &run_spec.demands;
        let mut workers = self.workers.iter();
        workers.any(|(other, worker)| {
            demands.fit(worker)
                && (demands.allow_other_workers || demands.allow(worker))
                && self.may_run(id, run_spec, (*other, worker))
        })
    }

    /// Forgets which workers have given back a task. They may be asked again when it runs again.
    pub(super) fn forget_returns(&mut self, id: TaskId) {
        self.returned.remove(&id);
    }
}

//! Actors: results that stay on the worker that made them, and are used there.
//!
//! Other workers that fetch an actor get a handle for it, which is a replica like others. The actor is
//! lost with its worker, and not made again, since its state would be lost.

use std::sync::Arc;

use daskwire_messages::Key;

use super::model::{Stage, TaskId};
use super::send::erred;
use super::submission::Failure;
use super::{State, WorkerId};

impl State {
    /// Has a task make an actor, unless it has a result already.
    pub(super) fn mark_actor(&mut self, key: &Key) {
        if let Some(id) = self.by_key.get(key).copied() {
            let task = &mut self.tasks[id];
            task.is_actor |= !matches!(task.stage, Stage::Memory);
        }
    }

    /// Whether a worker has an actor, with which it cannot leave.
    pub(super) fn has_actor(&self, worker: WorkerId) -> bool {
        let mut has = self.workers.get(&worker).into_iter().flat_map(|on| &on.has);
        has.any(|task| self.tasks[*task].actor_on == Some(worker))
    }

    /// Handles the loss of an actor with its worker: the task fails, and so do those that need it.
    pub(super) fn lose_actor(&mut self, id: TaskId) {
        self.delete(id);
        let key = self.tasks[id].key.clone();
        let message = "Worker holding Actor was lost";
        let failure = Failure::new("RuntimeError", message, Some(key.clone()));
        self.set_stage(id, Stage::Erred(Arc::clone(&failure)));
        let task = &self.tasks[id];
        let (clients, dependents) = (task.wanted_by.clone(), task.dependents.clone());
        for client in clients {
            self.send_result(client, erred(&key, &failure));
        }
        for dependent in dependents {
            self.wait_for_lost(dependent);
            self.todo.failing.push(dependent);
        }
        self.todo.unneeded.push(id);
    }
}

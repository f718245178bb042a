//! Actors: results that stay on the worker that made them, and are used there.
//!
//! Other workers that fetch an actor get a handle for it, which is a replica like others. The actor is
//! lost with its worker, and not made again, since its state would be lost.

use std::sync::Arc;

use daskwire_messages::Key;

use super::choose::{MAX_COMPARED, some};
use super::model::{TaskId, TaskStage};
use super::send::erred;
use super::submission::Failure;
use super::{State, WorkerId};

impl State {
    /// Has a task make an actor, unless it has a result already.
    pub(super) fn mark_actor(&mut self, key: &Key) {
        if let Some(id) = self.by_key.get(key).copied() {
            let task = &mut self.tasks[id];
            if !matches!(task.stage, TaskStage::Memory) && !task.is_actor {
                task.is_actor = true;
                self.journal_actor(id);
            }
        }
    }

    /// Whether a worker has an actor, with which it cannot leave.
    pub(super) fn has_actor(&self, worker: WorkerId) -> bool {
        let on = self.workers.get(&worker);
        let mut actors = on.into_iter().flat_map(|on| &on.actors);
        actors.any(|task| self.tasks[*task].actor_on == Some(worker))
    }

    /// Counts an actor that a worker has or is to make.
    pub(super) fn add_actor(&mut self, id: TaskId, on: WorkerId) {
        if let Some(worker) = self.workers.get_mut(&on)
            && worker.actors.insert(id)
        {
            self.update_load(on);
        }
    }

    /// Counts an actor no more that a worker had or was to make.
    pub(super) fn remove_actor(&mut self, id: TaskId, on: WorkerId) {
        if let Some(worker) = self.workers.get_mut(&on)
            && worker.actors.remove(&id)
        {
            self.update_load(on);
        }
    }

    /// Chooses a worker for a task that makes an actor: one with the fewest actors, and of these the
    /// one that can start the task first, wherever its dependencies are. The actor stays there, so
    /// that its use counts for more than a transfer, as in Dask.
    ///
    /// Of many workers, [`MAX_COMPARED`] are compared.
    pub(super) fn choose_for_actor(&self, id: TaskId, random: u64) -> Option<WorkerId> {
        let run_spec = self.tasks[id].run_spec.as_ref()?;
        let group = &self.groups[run_spec.group];
        let best = |workers: &mut dyn Iterator<Item = WorkerId>| {
            let workers = workers.filter(|on| !self.has_returned(id, *on));
            let candidates = workers.filter_map(|on| {
                let worker = self.workers.get(&on)?;
                let places = &worker.places;
                let has_failed = self.retried.get(&id) == Some(&on);
                Some((has_failed, places.actor_count, places.start, on))
            });
            candidates.min().map(|(.., on)| on)
        };
        best(&mut some(&group.named, random).copied()).or_else(|| {
            let classes = some(&group.classes, random).map(|class| &self.classes[*class]);
            let members = classes.flat_map(|class| class.by_actors.iter().take(MAX_COMPARED));
            best(&mut members.map(|(_, on)| *on))
        })
    }

    /// Handles the loss of an actor with its worker: the task fails, and so do those that need it.
    pub(super) fn lose_actor(&mut self, id: TaskId) {
        self.delete(id);
        let key = self.tasks[id].key.clone();
        let message = "Worker holding Actor was lost";
        let failure = Failure::new("RuntimeError", message, Some(key.clone()));
        self.set_stage(id, TaskStage::Erred(Arc::clone(&failure)));
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

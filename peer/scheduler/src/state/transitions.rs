//! Transitions of tasks.

use std::sync::Arc;

use daskwire_messages::Key;
use daskwire_rpc::TaskEvent;
use daskwire_rpc::story::TaskChange;

use super::model::{Stage, TaskId};
use super::send::erred;
use super::submission::Failure;
use super::{Action, FIRE_AND_FORGET, State, WorkerId};

impl State {
    /// Changes the stage of a task, and adds the transition to its story.
    pub(super) fn set_stage(&mut self, id: TaskId, stage: Stage) {
        let task = &mut self.tasks[id];
        // Ready tasks are assigned before the event ends, so this stage is not shown.
        let to = match stage {
            Stage::Ready => task.shown,
            _ => stage.name(),
        };
        let is_done = matches!(stage, Stage::Memory | Stage::Erred(_) | Stage::Released);
        task.stage = stage;
        let from = core::mem::replace(&mut task.shown, to);
        if from != to {
            self.last_transition = self.now;
            let key = task.key.clone();
            self.record(key, from, to);
        }
        if is_done {
            self.forget_returns(id);
        }
    }

    fn record(&mut self, key: Key, from: &'static str, to: &'static str) {
        let event = TaskEvent {
            key,
            change: TaskChange::State { from, to },
            stimulus: self.stimulus.clone(),
            time: self.now.as_secs_f64(),
        };
        if self.is_watched {
            self.actions.push(Action::Task(event.clone()));
        }
        self.story.add(event);
    }

    /// Activates a released task and its dependencies.
    pub(super) fn activate(&mut self, id: TaskId) {
        let mut todo = vec![id];
        while let Some(id) = todo.pop() {
            let task = &mut self.tasks[id];
            if !matches!(task.stage, Stage::Released) {
                continue;
            }
            if task.run_spec.is_none() || task.is_orphan {
                self.todo.unrunnable.push(id);
                continue;
            }
            let dependencies = core::mem::take(&mut task.dependencies);
            self.set_stage(id, Stage::Waiting);
            let mut missing_count = 0;
            for dependency in &dependencies {
                let needed = &mut self.tasks[*dependency];
                needed.waiter_count += 1;
                missing_count += u32::from(!matches!(needed.stage, Stage::Memory));
                match &needed.stage {
                    Stage::Released => todo.push(*dependency),
                    Stage::Erred(failure) => {
                        self.todo.failed.push((id, Arc::clone(failure)));
                    }
                    _ => {}
                }
            }
            let task = &mut self.tasks[id];
            task.dependencies = dependencies;
            task.missing_count = missing_count;
            if missing_count == 0 {
                self.make_ready(id);
            }
        }
    }

    /// Handles a task whose dependencies are all in memory.
    pub(super) fn make_ready(&mut self, id: TaskId) {
        self.set_stage(id, Stage::Ready);
        let is_root = self.is_root(id);
        let task = &mut self.tasks[id];
        task.priority.is_root = is_root;
        self.todo.ready.insert((task.priority, id));
    }

    /// Whether a task is one of many that need nothing, or only what many others need, too. If
    /// such tasks ran before those that use their results, the results would fill the memory.
    pub(super) fn is_root(&self, id: TaskId) -> bool {
        /// As in Dask. More dependencies are those of a task that uses results.
        const MAX_DEPENDENCIES: usize = 4;
        let dependencies = &self.tasks[id].dependencies;
        let needed = dependencies.iter().map(|id| &self.tasks[*id]);
        dependencies.len() <= MAX_DEPENDENCIES
            && needed
                .filter(|task| task.run_spec.is_some())
                .all(|task| task.dependents.len() as u64 > 2 * self.thread_count)
    }

    /// Removes a task from the queue or worker that it is assigned to. Returns
    /// the worker that it was sent to, if any. The caller sets the new stage.
    pub(super) fn unassign(&mut self, id: TaskId) -> Option<WorkerId> {
        let task = &self.tasks[id];
        let place = (task.priority, id);
        match task.stage {
            Stage::Ready => {
                self.todo.ready.remove(&place);
            }
            Stage::NoWorker => self.stop_waiting_for_worker(id),
            Stage::Pooled => {
                if let Some(run_spec) = &task.run_spec {
                    self.pool.remove(run_spec.group, &place, task.expected);
                }
            }
            Stage::Queued(on) => {
                if let Some(worker) = self.workers.get_mut(&on) {
                    worker.work.remove(task.expected);
                    self.dequeue(id, on);
                    self.todo.has_room.insert(on);
                }
            }
            Stage::Processing(on) => {
                if let (Some(worker), Some(run_spec)) = (self.workers.get_mut(&on), &task.run_spec)
                {
                    worker.processing.remove(&id);
                    worker.asked.remove(&id);
                    if !worker.long_running.remove(&id) {
                        worker.work.remove(task.expected);
                    }
                    worker.give_resources(&run_spec.demands.resources);
                    self.processing_count -= 1;
                    self.todo.has_room.insert(on);
                    return Some(on);
                }
            }
            _ => {}
        }
        None
    }

    /// Like [`unassign`](Self::unassign), and releases its dependencies.
    pub(super) fn deactivate(&mut self, id: TaskId) -> Option<WorkerId> {
        let on = self.unassign(id);
        let task = &mut self.tasks[id];
        // Not recorded in the story: the caller sets the next stage.
        task.stage = Stage::Released;
        task.missing_count = 0;
        let dependencies = core::mem::take(&mut task.dependencies);
        for dependency in &dependencies {
            let needed = &mut self.tasks[*dependency];
            needed.waiter_count -= 1;
            if needed.waiter_count == 0 && needed.wanted_by.is_empty() {
                self.todo.unneeded.push(*dependency);
            }
        }
        self.tasks[id].dependencies = dependencies;
        on
    }

    /// Handles all consequences of an event.
    pub(super) fn settle(&mut self) {
        loop {
            if let Some((id, failure)) = self.todo.failed.pop() {
                self.fail(id, &failure);
            } else if let Some(id) = self.todo.unrunnable.pop() {
                self.fail_unrunnable(id);
            } else if let Some(id) = self.todo.unneeded.pop() {
                self.release_unneeded(id);
            } else {
                break;
            }
        }
        while let Some((_, id)) = self.todo.ready.pop_first() {
            self.assign(id);
        }
        self.send_tasks();
        self.balance();
    }

    /// Marks a task and its dependents as failed.
    pub(super) fn fail(&mut self, id: TaskId, failure: &Arc<Failure>) {
        let mut todo = vec![id];
        while let Some(id) = todo.pop() {
            if !self
                .tasks
                .get(id)
                .is_some_and(|task| task.stage.is_active())
            {
                continue;
            }
            self.deactivate(id);
            self.set_stage(id, Stage::Erred(Arc::clone(failure)));
            let task = &self.tasks[id];
            todo.extend(&task.dependents);
            let message = erred(&task.key, failure);
            for client in task.wanted_by.clone() {
                self.send_result(client, message.clone());
            }
            self.todo.unneeded.push(id);
        }
    }

    /// Cancels a task that can never be computed, and its dependents.
    pub(super) fn fail_unrunnable(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get(id) else {
            return;
        };
        // The data was stored meanwhile, or the task has failed for another reason.
        if matches!(task.stage, Stage::Memory | Stage::Erred(_)) {
            return;
        }
        let key = task.key.clone();
        for client in task.wanted_by.clone() {
            self.release(client, id);
            self.cancelled(client, vec![key.clone()], "already forgotten", None);
        }
        if self.tasks[id].stage.is_active()
            && let Some(on) = self.deactivate(id)
        {
            self.send_free(on, id);
        }
        self.forget(id);
    }

    /// Releases a task that is not needed, and forgets it if nothing refers to
    /// it.
    pub(super) fn release_unneeded(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get(id) else {
            return;
        };
        if matches!(task.stage, Stage::Memory | Stage::Erred(_)) {
            self.release(FIRE_AND_FORGET.0, id);
        }
        let task = &self.tasks[id];
        if !task.wanted_by.is_empty() || task.waiter_count != 0 {
            return;
        }
        if task.stage.is_active() {
            if let Some(on) = self.deactivate(id) {
                self.send_free(on, id);
            }
        } else {
            self.delete(id);
        }
        self.set_stage(id, Stage::Released);
        let task = &self.tasks[id];
        if task.dependents.is_empty() || task.run_spec.is_none() || task.is_orphan {
            self.forget(id);
        }
    }

    /// Removes a released task. Its dependents can never be computed again, and
    /// drop their dependencies.
    pub(super) fn forget(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        for dependent in core::mem::take(&mut task.dependents) {
            if self.tasks[dependent].stage.is_active()
                && let Some(on) = self.deactivate(dependent)
            {
                self.send_free(on, dependent);
            }
            self.detach(dependent);
            let other = &mut self.tasks[dependent];
            other.is_orphan = true;
            if !matches!(other.stage, Stage::Memory | Stage::Erred(_)) {
                self.todo.unrunnable.push(dependent);
            }
        }
        self.detach(id);
        if let Some(task) = self.tasks.remove(id) {
            self.by_key.remove(&task.key);
            if let Some(run_spec) = &task.run_spec {
                self.leave_group(run_spec.group);
            }
            self.record(task.key, task.shown, "forgotten");
        }
    }

    /// Removes an inactive task from the dependents of its dependencies.
    fn detach(&mut self, id: TaskId) {
        for dependency in core::mem::take(&mut self.tasks[id].dependencies) {
            self.tasks[dependency].dependents.remove(&id);
            self.todo.unneeded.push(dependency);
        }
    }
}

//! Transitions of tasks.

use core::time::Duration;
use std::sync::Arc;

use daskwire_messages::Key;
use daskwire_rpc::TaskEvent;
use daskwire_rpc::story::TaskChange;

use super::model::{TaskId, TaskStage};
use super::send::erred;
use super::submission::Failure;
use super::{Action, FIRE_AND_FORGET, State, Todo, WorkerId};

/// Whole seconds, which fit until 2106.
pub(super) fn seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX)
}

impl State {
    /// Changes the stage of a task, and adds the transition to its story.
    pub(super) fn set_stage(&mut self, id: TaskId, stage: TaskStage) {
        let task = &mut self.tasks[id];
        // Ready tasks are assigned before the event ends, so this stage is not recorded.
        let to = match stage {
            TaskStage::Ready => task.last_recorded_stage,
            _ => stage.state_name(),
        };
        let ends_run = matches!(stage, TaskStage::Erred(_) | TaskStage::Released);
        let failed = match &stage {
            TaskStage::Erred(failure) => Some(Arc::clone(failure)),
            _ => None,
        };
        let had_failed = matches!(task.stage, TaskStage::Erred(_));
        let before = core::mem::replace(&mut task.stage, stage);
        let left = match task.stage {
            TaskStage::Ready => None,
            _ => self.unassigned.take().filter(|(task, _)| *task == id),
        };
        let from = core::mem::replace(&mut task.last_recorded_stage, to);
        if from != to {
            task.changed = seconds(self.now);
            self.last_transition = self.now;
            // The one that it goes to, or else the one that it was at.
            let on = task.stage.worker().or(before.worker());
            let worker = on.and_then(|on| self.workers.get(&on));
            let worker = worker.map(|worker| Arc::clone(&worker.address));
            let worker = worker.or(left.map(|(_, address)| address));
            let key = task.key.clone();
            self.key_groups
                .change(task.key_group, from, to, task.nbytes);
            self.record(key, from.as_str(), to.as_str(), worker);
        }
        if failed.is_some() || had_failed {
            self.journal_failure(id, failed.as_ref());
        }
        if ends_run {
            self.barrier_ended(id);
        }
    }

    fn record(&mut self, key: Key, from: &'static str, to: &'static str, worker: Option<Arc<str>>) {
        let change = TaskChange::State { from, to };
        let stimulus = self.stimulus.clone();
        let mut event = TaskEvent::new(key, change, stimulus, self.now.as_secs_f64());
        event.worker = worker;
        if self.is_watched {
            self.actions.push(Action::Task(event.clone()));
        }
        self.story.add(event);
    }

    /// Has a released task activated, with its dependencies.
    pub(super) fn activate(&mut self, id: TaskId) {
        self.todo.activated.push(id);
    }

    /// Activates a released task if it is needed. Its dependencies follow.
    pub(super) fn activate_next(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        let is_needed = !task.wanted_by.is_empty() || task.waiter_count != 0;
        if !matches!(task.stage, TaskStage::Released) || !is_needed {
            return;
        }
        if task.run_spec.is_none() || task.is_orphan {
            self.todo.unrunnable.push(id);
            return;
        }
        let dependencies = core::mem::take(&mut task.dependencies);
        self.set_stage(id, TaskStage::Waiting);
        let mut missing_count = 0;
        for dependency in &dependencies {
            let needed = &mut self.tasks[*dependency];
            needed.waiter_count += 1;
            missing_count += u32::from(!matches!(needed.stage, TaskStage::Memory));
            match &needed.stage {
                TaskStage::Released => self.todo.activated.push(*dependency),
                TaskStage::Erred(_) => self.todo.failing.push(id),
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

    /// Handles a task whose dependencies are all in memory.
    pub(super) fn make_ready(&mut self, id: TaskId) {
        self.set_stage(id, TaskStage::Ready);
        let is_root = self.is_root(id) && !self.is_output(id);
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
        let on = task.stage.worker().and_then(|on| self.workers.get(&on));
        if let Some(worker) = on {
            self.unassigned = Some((id, Arc::clone(&worker.address)));
        }
        match task.stage {
            TaskStage::Ready => {
                self.todo.ready.remove(&place);
            }
            TaskStage::NoWorker => self.stop_waiting_for_worker(id),
            TaskStage::Pooled => {
                if let Some(run_spec) = &task.run_spec {
                    self.pool.remove(run_spec.group, &place, task.expected);
                }
            }
            TaskStage::Queued(on) => {
                if let Some(worker) = self.workers.get_mut(&on) {
                    worker.work.remove(task.expected);
                    self.dequeue(id, on);
                    self.remove_actor(id, on);
                    self.todo.has_room.push(on);
                }
            }
            TaskStage::Processing(on) => {
                if let (Some(worker), Some(run_spec)) = (self.workers.get_mut(&on), &task.run_spec)
                {
                    worker.processing.remove(&id);
                    worker.asked.remove(&id);
                    if !worker.long_running.remove(&id) {
                        worker.work.remove(task.expected);
                    }
                    worker.give_resources(&run_spec.demands.resources);
                    self.processing_count -= 1;
                    self.remove_actor(id, on);
                    self.todo.has_room.push(on);
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
        self.forget_returns(id);
        self.drop_claim(id, None);
        let task = &mut self.tasks[id];
        // Not recorded in the story: the caller sets the next stage.
        task.stage = TaskStage::Released;
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

    /// Handles the consequences of an event, but not those that earlier events have left, with a
    /// bounded number of steps.
    pub(super) fn settle(&mut self) {
        self.steps_left = self.slice_len;
        while self.take_step() {
            let [failing, unrunnable, unneeded] = self.left_counts;
            let todo = &mut self.todo;
            if todo.recounted.len() > self.left_recounted_count {
                self.recount_next();
            } else if todo.failing.len() > failing
                && let Some(id) = todo.failing.pop()
            {
                self.fail_with_dependency(id);
            } else if todo.unrunnable.len() > unrunnable
                && let Some(id) = todo.unrunnable.pop()
            {
                self.fail_unrunnable(id);
            } else if todo.unneeded.len() > unneeded
                && let Some(id) = todo.unneeded.pop()
            {
                self.release_unneeded(id);
            } else if todo.activated.len() > self.left_activated_count
                && let Some(id) = todo.activated.pop()
            {
                self.activate_next(id);
            } else if !todo.retried.is_empty() {
                self.retry_next();
            } else if let Some(group) = todo.stranded.first().copied() {
                if !self.take_stranded(group) {
                    self.todo.stranded.remove(&group);
                }
            } else {
                break;
            }
        }
        self.steps_left = self.slice_len;
        while !self.todo.ready.is_empty() && self.take_step() {
            if let Some((_, id)) = self.todo.ready.pop_first() {
                self.assign(id);
            }
        }
        self.steps_left = self.slice_len;
        self.send_tasks();
        self.balance();
    }

    /// Whether consequences of events are left.
    pub(super) fn has_consequences(&self) -> bool {
        let Todo {
            recounted,
            failing,
            unrunnable,
            unneeded,
            activated,
            retried,
            stranded,
            ready,
            has_sendable,
            has_room,
            unbalanced,
        } = &self.todo;
        let lists = [failing, unrunnable, unneeded, activated];
        lists.iter().any(|list| !list.is_empty())
            || !recounted.is_empty()
            || !retried.is_empty()
            || !stranded.is_empty()
            || !ready.is_empty()
            || *has_sendable
            || !has_room.is_empty()
            || !unbalanced.is_empty()
    }

    /// Takes one of the steps that are left to this slice. Returns `false` if there are none.
    pub(super) const fn take_step(&mut self) -> bool {
        match self.steps_left {
            0 => false,
            _ => {
                self.steps_left -= 1;
                true
            }
        }
    }

    /// Fails an active task if one of its dependencies has failed.
    fn fail_with_dependency(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get(id).filter(|task| task.stage.is_active()) else {
            return;
        };
        let failure =
            task.dependencies
                .iter()
                .find_map(|dependency| match &self.tasks[*dependency].stage {
                    TaskStage::Erred(failure) => Some(Arc::clone(failure)),
                    _ => None,
                });
        if let Some(failure) = failure {
            self.fail(id, &failure);
        }
    }

    /// Marks an active task as failed. Its dependents follow.
    pub(super) fn fail(&mut self, id: TaskId, failure: &Arc<Failure>) {
        if !self.tasks[id].stage.is_active() {
            return;
        }
        self.log_failed_shuffle(id, failure);
        self.deactivate(id);
        self.set_stage(id, TaskStage::Erred(Arc::clone(failure)));
        let task = &self.tasks[id];
        self.todo.failing.extend(&task.dependents);
        let message = erred(&task.key, failure);
        for client in task.wanted_by.clone() {
            self.send_result(client, message.clone());
        }
        self.todo.unneeded.push(id);
    }

    /// Cancels a task that can never be computed, and its dependents.
    pub(super) fn fail_unrunnable(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get(id) else {
            return;
        };
        // The data was stored meanwhile, or the task has failed for another reason.
        let can_run = task.run_spec.is_some() && !task.is_orphan;
        if can_run || matches!(task.stage, TaskStage::Memory | TaskStage::Erred(_)) {
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
        if matches!(task.stage, TaskStage::Memory | TaskStage::Erred(_)) {
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
            self.drop_claim(id, None);
            self.delete(id);
        }
        self.set_stage(id, TaskStage::Released);
        let task = &self.tasks[id];
        if task.dependents.is_empty() || task.run_spec.is_none() || task.is_orphan {
            self.forget(id);
        }
    }

    /// Removes a released task. Its dependents can never be computed again, and
    /// drop their dependencies.
    pub(super) fn forget(&mut self, id: TaskId) {
        if self.tasks.get(id).is_some() {
            self.barrier_ended(id);
            self.drop_claim(id, None);
        }
        while let Some(task) = self.tasks.get_mut(id)
            && let Some(dependent) = task.dependents.pop_first()
        {
            if self.tasks[dependent].stage.is_active()
                && let Some(on) = self.deactivate(dependent)
            {
                self.send_free(on, dependent);
            }
            self.detach(dependent);
            let other = &mut self.tasks[dependent];
            other.is_orphan = true;
            if !matches!(other.stage, TaskStage::Memory | TaskStage::Erred(_)) {
                self.todo.unrunnable.push(dependent);
            }
            if !self.take_step() {
                // The rest comes with the next slice. Until then the task cannot run again.
                self.tasks[id].is_orphan = true;
                self.todo.unrunnable.push(id);
                return;
            }
        }
        self.detach(id);
        let task = &mut self.tasks[id];
        if task.waiter_count != 0 {
            // A submission refers to it, and releases it at the end.
            task.is_orphan = true;
            self.set_stage(id, TaskStage::Released);
            return;
        }
        self.journal_forgotten(id);
        if let Some(task) = self.tasks.remove(id) {
            self.tasks_len -= task.len();
            self.by_key.remove(&task.key);
            self.key_groups
                .remove(task.key_group, task.last_recorded_stage);
            if let Some(run_spec) = &task.run_spec {
                self.leave_group(run_spec.group);
            }
            if self.metadata.forget(&task.key) {
                self.journal_metadata(core::slice::from_ref(&task.key), None);
            }
            self.shuffles.forget_task(id);
            let from = task.last_recorded_stage.as_str();
            self.record(task.key, from, "forgotten", None);
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

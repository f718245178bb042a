//! Transitions of tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::parts::{Priority, RunSpec, Stage, Task, TaskId, Worker};
use super::{ClientId, FIRE_AND_FORGET, Notice, Output, State, WINDOW, WorkerId, erred, free_keys};
use crate::error::killed_worker;
use crate::protocol::{
    CancelKeys, CancelledKeys, Close, CloseStream, ComputeTask, Field as _, KeyInMemory, Keys,
    LostData, Nullable, RemoveReplicas, RemoveWorker, TaskFinished, ToClient, ToWorker,
    WorkerStatus,
};
use crate::scheduler::submission::Failure;
use crate::story::{TaskChange, TaskEvent};
use crate::{Key, Value};

impl State {
    pub(super) fn send_client(&mut self, client: ClientId, message: impl Into<ToClient>) {
        if client != FIRE_AND_FORGET.0 {
            self.outputs.push(Output::Client(client, message.into()));
        }
    }

    pub(super) fn send_worker(&mut self, worker: WorkerId, message: impl Into<ToWorker>) {
        self.outputs.push(Output::Worker(worker, message.into()));
    }

    /// Changes the stage of a task, and adds that to the story.
    pub(super) fn set_stage(&mut self, id: TaskId, stage: Stage) {
        let task = &mut self.tasks[id];
        // Nothing is ready for longer than an event takes.
        let to = match stage {
            Stage::Ready => task.shown,
            _ => stage.name(),
        };
        task.stage = stage;
        let from = core::mem::replace(&mut task.shown, to);
        if from != to {
            let key = task.key.clone();
            self.record(key, from, to);
        }
    }

    fn record(&mut self, key: Key, from: &'static str, to: &'static str) {
        let event = TaskEvent {
            key,
            change: TaskChange::State { from, to },
            stimulus: self.stimulus.clone(),
            time: self.unix_time,
        };
        if self.is_watched {
            self.outputs.push(Output::Task(event.clone()));
        }
        self.story.add(event);
    }

    pub(super) fn notice(&mut self, notice: Notice) {
        self.outputs.push(Output::Notice(notice));
    }

    pub(super) fn send_close(&mut self, worker: WorkerId, reason: &str) {
        let reason = Some(reason.to_owned());
        self.send_worker(
            worker,
            Close {
                reason,
                extra: Vec::new(),
            },
        );
        self.send_worker(worker, CloseStream::default());
    }

    pub(super) fn worker_at(&mut self, address: &str) -> Option<&mut Worker> {
        let id = self.by_address.get(address)?;
        self.workers.get_mut(id)
    }

    pub(super) fn client_name(&self, id: ClientId) -> String {
        let client = self.clients.get(&id);
        client.map_or_else(String::new, |client| client.name.to_string())
    }

    /// The client that a message is sent for.
    pub(super) fn client_named(&mut self, id: ClientId, name: Option<String>) -> Option<ClientId> {
        let Some(name) = name else {
            return self.clients.contains_key(&id).then_some(id);
        };
        if let Some(named) = self.by_name.get(name.as_str()) {
            return Some(*named);
        }
        if name == FIRE_AND_FORGET.1 {
            self.insert_client(FIRE_AND_FORGET.0, &name);
            return Some(FIRE_AND_FORGET.0);
        }
        let notice = Notice::Ignored {
            peer: self.client_name(id),
            reason: format!("it acts for {name}, which is not registered"),
        };
        self.notice(notice);
        None
    }

    pub(super) fn insert_task(
        &mut self,
        key: Key,
        run_spec: Option<RunSpec>,
        priority: Priority,
    ) -> TaskId {
        let id = self.tasks.insert(Task {
            key: key.clone(),
            run_spec,
            priority,
            stage: Stage::Released,
            shown: Stage::Released.name(),
            dependencies: Vec::new(),
            dependents: BTreeSet::new(),
            waiter_count: 0,
            missing_count: 0,
            wanted_by: Vec::new(),
            who_has: Vec::new(),
            nbytes: 0,
            class: None,
            retries: 0,
            kill_count: 0,
            run_id: 0,
            is_orphan: false,
        });
        self.by_key.insert(key, id);
        id
    }

    pub(super) fn want(&mut self, client: ClientId, task: TaskId) {
        let wanted_by = &mut self.tasks[task].wanted_by;
        if let Err(place) = wanted_by.binary_search(&client)
            && let Some(client_state) = self.clients.get_mut(&client)
        {
            wanted_by.insert(place, client);
            client_state.wants.insert(task);
        }
    }

    pub(super) fn release(&mut self, client: ClientId, task: TaskId) {
        let wanted_by = &mut self.tasks[task].wanted_by;
        if let Ok(place) = wanted_by.binary_search(&client) {
            wanted_by.remove(place);
            self.todo.unneeded.push(task);
            if let Some(client) = self.clients.get_mut(&client) {
                client.wants.remove(&task);
            }
        }
    }

    pub(super) fn desire(&mut self, client: ClientId, keys: Keys) {
        let mut unknown = Vec::new();
        for key in keys {
            let Some(id) = self.by_key.get(&key).copied() else {
                unknown.push(key);
                continue;
            };
            self.want(client, id);
            if matches!(self.tasks[id].stage, Stage::Released) {
                self.activate(id);
            }
            // It may be done already.
            self.todo.unneeded.push(id);
            self.report(client, &key);
        }
        if !unknown.is_empty() {
            self.cancelled(client, unknown, "unknown key", None);
        }
    }

    /// Reports the current state of a key to a client.
    pub(super) fn report(&mut self, client: ClientId, key: &Key) {
        let Some(id) = self.by_key.get(key) else {
            return self.cancelled(client, vec![key.clone()], "unknown key", None);
        };
        let task = &self.tasks[*id];
        match &task.stage {
            Stage::Memory => {
                let message = in_memory(task);
                self.send_client(client, message);
            }
            Stage::Erred(failure) => {
                let message = erred(key, failure);
                self.send_client(client, message);
            }
            _ => {}
        }
    }

    pub(super) fn cancelled(
        &mut self,
        client: ClientId,
        keys: Vec<Key>,
        reason: &str,
        msg: Option<String>,
    ) {
        let reason = Some(reason.to_owned());
        let message = CancelledKeys {
            keys: Keys(keys),
            reason,
            msg,
            extra: Vec::new(),
        };
        self.send_client(client, message);
    }

    /// Cancels keys and their dependents, unless another client wants them.
    pub(super) fn cancel(&mut self, client: ClientId, message: &CancelKeys) {
        let known = message.keys.iter().filter_map(|key| self.by_key.get(key));
        let mut todo: Vec<TaskId> = known.copied().collect();
        let mut seen = BTreeSet::new();
        let mut cancelled: BTreeMap<ClientId, Vec<Key>> = BTreeMap::new();
        while let Some(id) = todo.pop() {
            if !seen.insert(id) {
                continue;
            }
            let task = &self.tasks[id];
            let key = task.key.clone();
            let only_this = task.wanted_by.iter().all(|other| *other == client);
            if message.force || only_this {
                todo.extend(&task.dependents);
            }
            let whose = match message.force {
                true => task.wanted_by.clone(),
                false => vec![client],
            };
            for client in whose {
                if self.tasks[id].wanted_by.binary_search(&client).is_ok() {
                    self.release(client, id);
                    cancelled.entry(client).or_default().push(key.clone());
                }
            }
        }
        for (client, keys) in cancelled {
            let reason = message.reason.0.as_deref().unwrap_or_default();
            self.cancelled(client, keys, reason, message.msg.0.clone());
        }
    }

    /// Handles a worker that starts to take tasks.
    pub(super) fn worker_running(&mut self, id: WorkerId) {
        self.todo.open.insert(id);
        for (priority, task) in core::mem::take(&mut self.no_worker) {
            self.set_stage(task, Stage::Ready);
            self.todo.ready.insert((priority, task));
        }
    }

    pub(super) fn status_changed(&mut self, id: WorkerId, status: WorkerStatus) {
        let Some(worker) = self.workers.get_mut(&id) else {
            return;
        };
        let was_running = worker.is_running;
        worker.is_running = status == WorkerStatus::Running;
        worker.is_leaving |= status.is_closing();
        worker.about.status = status;
        let is_running = worker.is_running;
        if is_running && !was_running {
            self.worker_running(id);
        } else if was_running && !is_running {
            let stack = core::mem::take(&mut worker.stack);
            self.queued_count -= worker.stack_count;
            worker.stack_count = 0;
            for (_, task) in stack.into_values().flatten() {
                self.make_ready(task);
            }
        }
    }

    pub(super) fn drop_worker(&mut self, id: WorkerId, in_peace: bool, reason: &'static str) {
        let Some(worker) = self.workers.remove(&id) else {
            return;
        };
        self.by_address.remove(&worker.address);
        self.worker_names.remove(&worker.name);
        self.todo.open.remove(&id);
        self.queued_count -= worker.stack_count;
        for other in self.workers.keys().copied().collect::<Vec<_>>() {
            let message = RemoveWorker {
                worker: worker.address.clone(),
                stimulus_id: Some("remove-worker".to_owned()),
                ..RemoveWorker::default()
            };
            self.send_worker(other, message);
        }
        self.outputs.push(Output::EndWorker(id));
        for (_, task) in worker.stack.into_values().flatten() {
            self.make_ready(task);
        }
        for task in worker.processing {
            let allowed = self.policy.allowed_failures;
            self.make_ready(task);
            let state = &mut self.tasks[task];
            if in_peace {
                continue;
            }
            state.kill_count += 1;
            if state.kill_count > allowed {
                let exception = killed_worker(&state.key, &worker.address, allowed);
                let failure = Failure {
                    exception: Value::Serialized(exception),
                    traceback: None,
                };
                self.todo.failed.push((task, Arc::new(failure)));
            }
        }
        for task in &worker.has {
            self.tasks[*task].who_has.retain(|other| *other != id);
        }
        for task in worker.has {
            if self.tasks[task].who_has.is_empty() {
                self.lose(task);
            }
        }
        self.notice(Notice::WorkerLeft {
            worker: worker.address,
            reason,
        });
        self.settle();
    }

    /// The task of a key, if the worker is processing it in this run.
    pub(super) fn processed(&mut self, worker: WorkerId, key: &Key, run_id: i64) -> Option<TaskId> {
        let found = self.by_key.get(key).copied();
        if let Some(id) = found {
            let task = &self.tasks[id];
            match task.stage {
                Stage::Processing(on) if on == worker && task.run_id == run_id => return Some(id),
                // An earlier run, which the worker was asked to forget before it
                // got this one.
                Stage::Processing(on) if on == worker => return None,
                Stage::Memory if task.who_has.binary_search(&worker).is_ok() => return None,
                _ => {}
            }
        }
        self.send_worker(worker, free_keys(Keys(vec![key.clone()]), "not-processing"));
        None
    }

    pub(super) fn task_finished(&mut self, id: WorkerId, message: TaskFinished) {
        let Some(task) = self.processed(id, &message.key, message.run_id) else {
            return;
        };
        if let Some(worker) = self.workers.get_mut(&id) {
            let took = message
                .startstops
                .iter()
                .filter(|part| part.action == "compute");
            let took: f64 = took.map(|part| part.stop - part.start).sum();
            if took.is_finite() && took > 0.0 {
                worker.pace = match worker.pace {
                    pace if pace > 0.0 => f64::midpoint(pace, took),
                    _ => took,
                };
            }
        }
        let state = &mut self.tasks[task];
        state.nbytes = message.nbytes;
        state.class = message.class.0;
        self.in_memory(task, id);
    }

    pub(super) fn task_erred(&mut self, id: WorkerId, task: TaskId, failure: Arc<Failure>) {
        // The worker keeps the failed task until it is asked to forget it.
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.deletions.insert(self.tasks[task].key.clone());
        }
        let state = &mut self.tasks[task];
        if let Some(left) = state.retries.checked_sub(1) {
            state.retries = left;
            self.unassign(task);
            self.make_ready(task);
        } else {
            self.todo.failed.push((task, failure));
        }
    }

    pub(super) fn add_keys(&mut self, id: WorkerId, keys: Keys) {
        let mut unwanted = Vec::new();
        for key in keys {
            match self.by_key.get(&key).copied() {
                Some(task) if matches!(self.tasks[task].stage, Stage::Memory) => {
                    self.in_memory(task, id);
                }
                _ => unwanted.push(key),
            }
        }
        if !unwanted.is_empty() {
            let message = RemoveReplicas {
                keys: Keys(unwanted),
                stimulus_id: "redundant-replicas".to_owned(),
                ..RemoveReplicas::default()
            };
            self.send_worker(id, message);
        }
    }

    /// Records that a worker has the result of a task.
    pub(super) fn in_memory(&mut self, id: TaskId, holder: WorkerId) {
        let Some(worker) = self.workers.get_mut(&holder) else {
            return;
        };
        let task = &mut self.tasks[id];
        worker.deletions.remove(&task.key);
        if let Err(place) = task.who_has.binary_search(&holder) {
            task.who_has.insert(place, holder);
            worker.has.insert(id);
            worker.nbytes += u128::from(task.nbytes);
        }
        if matches!(task.stage, Stage::Memory) {
            return;
        }
        if task.stage.is_active()
            && let Some(on) = self.deactivate(id).filter(|on| *on != holder)
        {
            self.send_free(on, id);
        }
        self.set_stage(id, Stage::Memory);
        let task = &mut self.tasks[id];
        let (message, clients) = (in_memory(task), task.wanted_by.clone());
        let dependents = core::mem::take(&mut task.dependents);
        for client in clients {
            self.send_client(client, message.clone());
        }
        #[cfg(test)]
        assert_ne!(self.panics_over.as_ref(), Some(&self.tasks[id].key));
        for dependent in &dependents {
            let task = &mut self.tasks[*dependent];
            if matches!(task.stage, Stage::Waiting) {
                task.missing_count -= 1;
                if task.missing_count == 0 {
                    self.make_ready(*dependent);
                }
            }
        }
        self.tasks[id].dependents = dependents;
        self.todo.unneeded.push(id);
    }

    /// Records that a worker no longer has a result.
    pub(super) fn remove_replica(&mut self, worker: WorkerId, id: TaskId) {
        let task = &mut self.tasks[id];
        let Ok(place) = task.who_has.binary_search(&worker) else {
            return;
        };
        task.who_has.remove(place);
        if let Some(worker) = self.workers.get_mut(&worker) {
            worker.has.remove(&id);
            worker.nbytes -= u128::from(task.nbytes);
            // The worker may have received the data again since, over another
            // connection: that copy is to be deleted too.
            worker.deletions.insert(task.key.clone());
        }
        if task.who_has.is_empty() {
            self.lose(id);
        }
    }

    /// Handles the loss of all copies of a result.
    pub(super) fn lose(&mut self, id: TaskId) {
        self.set_stage(id, Stage::Released);
        let task = &mut self.tasks[id];
        let message = LostData {
            key: task.key.clone(),
            ..LostData::default()
        };
        let clients = task.wanted_by.clone();
        let is_needed = !clients.is_empty() || task.waiter_count != 0;
        let dependents = core::mem::take(&mut task.dependents);
        for client in clients {
            self.send_client(client, message.clone());
        }
        for dependent in &dependents {
            match self.tasks[*dependent].stage {
                Stage::Waiting => self.tasks[*dependent].missing_count += 1,
                Stage::Ready | Stage::NoWorker | Stage::Queued(_) | Stage::Processing(_) => {
                    if let Some(on) = self.unassign(*dependent) {
                        self.send_free(on, *dependent);
                    }
                    self.set_stage(*dependent, Stage::Waiting);
                    self.tasks[*dependent].missing_count = 1;
                }
                Stage::Released | Stage::Memory | Stage::Erred(_) => {}
            }
        }
        self.tasks[id].dependents = dependents;
        if is_needed {
            self.activate(id);
        } else {
            self.todo.unneeded.push(id);
        }
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
        self.todo.ready.insert((self.tasks[id].priority, id));
    }

    /// Removes a task from the queue or worker that it is assigned to. Returns
    /// the worker that it had been sent to. The caller sets the new stage.
    pub(super) fn unassign(&mut self, id: TaskId) -> Option<WorkerId> {
        let task = &self.tasks[id];
        let place = (task.priority, id);
        match task.stage {
            Stage::Ready => {
                self.todo.ready.remove(&place);
            }
            Stage::NoWorker => {
                self.no_worker.remove(&place);
            }
            Stage::Queued(on) => {
                if let (Some(worker), Some(run_spec)) = (self.workers.get_mut(&on), &task.run_spec)
                {
                    worker.remove(&run_spec.demands.resources, task.priority, id);
                    self.queued_count -= 1;
                    self.todo.open.insert(on);
                }
            }
            Stage::Processing(on) => {
                if let (Some(worker), Some(run_spec)) = (self.workers.get_mut(&on), &task.run_spec)
                {
                    worker.processing.remove(&id);
                    worker.long_running.remove(&id);
                    worker.give_resources(&run_spec.demands.resources);
                    self.todo.open.insert(on);
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
        // Not for the story, which is about to tell what becomes of the task.
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

    /// Asks a worker to forget a task that it is processing.
    pub(super) fn send_free(&mut self, on: WorkerId, id: TaskId) {
        if self.workers.contains_key(&on) {
            let keys = Keys(vec![self.tasks[id].key.clone()]);
            self.send_worker(on, free_keys(keys, "cancelled"));
        }
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
        while let Some(id) = self.todo.open.pop_first() {
            self.fill(id);
        }
        self.share();
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
                self.send_client(client, message.clone());
            }
            self.todo.unneeded.push(id);
        }
    }

    /// Cancels a task that can never be computed, and its dependents.
    pub(super) fn fail_unrunnable(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get(id) else {
            return;
        };
        // Saved by data that arrived meanwhile, or failed otherwise.
        if matches!(task.stage, Stage::Memory | Stage::Erred(_)) {
            return;
        }
        let key = task.key.clone();
        for client in task.wanted_by.clone() {
            self.release(client, id);
            self.cancelled(client, vec![key.clone()], "lost dependencies", None);
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

    /// Lets workers delete their copies of a result.
    pub(super) fn delete(&mut self, id: TaskId) {
        let task = &mut self.tasks[id];
        for holder in core::mem::take(&mut task.who_has) {
            if let Some(worker) = self.workers.get_mut(&holder) {
                worker.has.remove(&id);
                worker.nbytes -= u128::from(task.nbytes);
                worker.deletions.insert(task.key.clone());
            }
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
            self.record(task.key, task.shown, "forgotten");
        }
    }

    /// Removes an inactive task from the dependents of others.
    fn detach(&mut self, id: TaskId) {
        for dependency in core::mem::take(&mut self.tasks[id].dependencies) {
            self.tasks[dependency].dependents.remove(&id);
            self.todo.unneeded.push(dependency);
        }
    }

    /// Sends a task to a worker.
    pub(super) fn send(&mut self, id: TaskId, on: WorkerId) {
        let task = &mut self.tasks[id];
        let (Some(worker), Some(run_spec)) = (self.workers.get_mut(&on), &task.run_spec) else {
            return;
        };
        self.run_count += 1;
        task.run_id = self.run_count;
        worker.processing.insert(id);
        worker.take_resources(&run_spec.demands.resources);
        self.set_stage(id, Stage::Processing(on));
        let task = &self.tasks[id];
        let (Some(worker), Some(run_spec)) = (self.workers.get_mut(&on), &task.run_spec) else {
            return;
        };
        let Priority {
            user,
            generation,
            order,
        } = task.priority;
        let demands = &run_spec.demands;
        let resources = demands.resources.0.iter();
        let resources = (!demands.resources.is_empty())
            .then(|| Value::dict(resources.map(|(name, amount)| (name.clone(), *amount))));
        #[expect(clippy::cast_precision_loss, reason = "in order up to 2^53")]
        let mut message = ComputeTask {
            key: task.key.clone(),
            run_id: task.run_id,
            priority: vec![user, generation as f64, order as f64],
            stimulus_id: "compute-task".to_owned(),
            run_spec: run_spec.payload.clone(),
            resource_restrictions: Nullable(resources),
            annotations: Some(demands.annotations.clone()),
            who_has: Vec::with_capacity(task.dependencies.len()),
            nbytes: Vec::with_capacity(task.dependencies.len()),
            actor: false,
            span_id: Nullable(None),
            extra: Vec::new(),
        };
        // Data that the worker has under these keys belongs to an earlier use of
        // them.
        let mut stale = Vec::new();
        if worker.deletions.remove(&message.key) {
            stale.push(message.key.clone());
        }
        let task = &self.tasks[id];
        for dependency in &task.dependencies {
            let dependency = &self.tasks[*dependency];
            let key = &dependency.key;
            let worker = self.workers.get_mut(&on);
            if worker.is_some_and(|worker| worker.deletions.remove(key)) {
                stale.push(key.clone());
            }
            let holders = dependency.who_has.iter();
            let holders = holders.map(|id| self.workers[id].address.clone());
            message.who_has.push((key.clone(), holders.collect()));
            message.nbytes.push((key.clone(), dependency.nbytes));
        }
        if !stale.is_empty() {
            self.send_worker(on, free_keys(Keys(stale), "deletions"));
        }
        let len = message.run_spec.heap_len();
        self.send_worker(on, message);
        if let Some(worker) = self.workers.get_mut(&on) {
            worker.unwritten_len += len;
            if worker.unwritten_len >= WINDOW {
                self.outputs.push(Output::NotifyDrained(on));
            }
        }
    }
}

fn in_memory(task: &Task) -> KeyInMemory {
    KeyInMemory {
        key: task.key.clone(),
        class: task.class.clone().map(Value::Bytes),
        ..KeyInMemory::default()
    }
}

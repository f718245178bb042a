//! Results in the memory of workers.

use std::ops::Bound;

use daskwire_messages::Key;
use daskwire_messages::protocol::LostData;

use super::model::{Priority, TaskId, TaskStage};
use super::send::in_memory;
use super::slices::Job;
use super::{ClientId, State, WorkerId};

/// The stimulus of the deletion of data that is about to be replaced.
pub const REPLACED: &str = "replaced-data";

impl State {
    /// Registers data on workers; `client` holds it, if registered.
    pub(super) fn update_data(
        &mut self,
        client: Option<&str>,
        who_has: Vec<(Key, Vec<String>)>,
        nbytes: Vec<(Key, u64)>,
    ) {
        self.set_stimulus("update-data");
        self.start(Job::StoreData {
            client: client.and_then(|name| self.by_name.get(name).copied()),
            who_has: who_has.into_iter(),
            nbytes: nbytes.into_iter().collect(),
        });
        self.settle();
    }

    /// Registers a datum on workers.
    pub(super) fn store_data(
        &mut self,
        client: Option<ClientId>,
        key: Key,
        addresses: &[String],
        nbytes: u64,
    ) {
        let holders = addresses.iter();
        let holders: Vec<WorkerId> = holders
            .filter_map(|address| self.by_address.get(address).copied())
            .collect();
        if holders.is_empty() {
            return;
        }
        let id = match self.by_key.get(&key) {
            Some(id) => *id,
            None => {
                let id = self.insert_task(key.clone(), None, Priority::default());
                self.journal_task(id);
                id
            }
        };
        if let Some(client) = client {
            self.want(client, self.confirmation_of(client), id);
            if matches!(self.tasks[id].stage, TaskStage::Memory) {
                self.report(client, &key);
            }
        }
        for holder in holders {
            self.tasks[id].nbytes = match self.tasks[id].stage {
                TaskStage::Memory => self.tasks[id].nbytes,
                _ => nbytes,
            };
            self.in_memory(id, holder);
        }
        // The task is released if no client or task needs it.
        self.todo.unneeded.push(id);
    }

    /// Handles a report that a worker lacks results that it should have.
    pub(super) fn missing_data(&mut self, worker: &str, keys: &[Key]) {
        self.set_stimulus("missing-data");
        let Some(worker) = self.by_address.get(worker).copied() else {
            return;
        };
        for key in keys {
            if let Some(task) = self.by_key.get(key).copied() {
                self.remove_replica(worker, task);
            }
        }
        self.settle();
    }

    /// Returns which of `keys` have data on a worker that is to be deleted. `worker` is the
    /// address of the worker. Workers in Python keep such data if new data is sent to them.
    pub fn pending_deletions(&self, worker: &str, keys: &[Key]) -> Vec<Key> {
        let worker = self.by_address.get(worker);
        let worker = worker.and_then(|worker| self.workers.get(worker));
        let keys = keys.iter();
        let pending =
            keys.filter(|key| worker.is_some_and(|worker| worker.deletions.contains(*key)));
        pending.cloned().collect()
    }

    /// Restores deletions of data that a worker could not be asked to delete.
    pub(super) fn restore_deletions(&mut self, worker: &str, keys: Vec<Key>) {
        let Some(id) = self.by_address.get(worker).copied() else {
            return;
        };
        for key in keys {
            let task = self.by_key.get(&key).map(|task| &self.tasks[*task]);
            let is_used = task.is_some_and(|task| {
                task.who_has.contains(&id)
                    || matches!(task.stage, TaskStage::Processing(on) if on == id)
            });
            let claimed = self
                .by_key
                .get(&key)
                .map(|task| self.has_claimed(*task, id));
            let is_used = is_used || claimed == Some(true);
            if !is_used {
                self.add_deletion(id, key);
            }
        }
    }

    /// Cancels pending deletions of these keys on a worker to which data under these keys is
    /// about to be sent.
    pub(super) fn forget_deletions(&mut self, worker: &str, keys: &[Key]) {
        if let Some(worker) = self.worker_at(worker) {
            for key in keys {
                worker.deletions.remove(key);
            }
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
            self.replicas.count(id, task.who_has.len());
            worker.has.insert(id);
            worker.nbytes += u128::from(task.nbytes);
        }
        if matches!(task.stage, TaskStage::Memory) {
            return;
        }
        self.drop_claim(id, Some(holder));
        if self.tasks[id].stage.is_active()
            && let Some(on) = self.deactivate(id).filter(|on| *on != holder)
        {
            self.send_free(on, id);
        }
        self.set_stage(id, TaskStage::Memory);
        let task = &mut self.tasks[id];
        task.actor_on = task.is_actor.then_some(holder);
        if task.is_actor {
            self.add_actor(id, holder);
        }
        for index in 0..self.tasks[id].wanted_by.len() {
            let task = &self.tasks[id];
            let (message, client) = (in_memory(task), task.wanted_by[index]);
            self.send_result(client, message);
        }
        #[cfg(any(test, feature = "fuzzing"))]
        assert_ne!(self.panics_over.as_ref(), Some(&self.tasks[id].key));
        self.todo.unneeded.push(id);
        if self.recount_dependents(id) {
            return;
        }
        let dependents = core::mem::take(&mut self.tasks[id].dependents);
        for dependent in &dependents {
            let task = &mut self.tasks[*dependent];
            if matches!(task.stage, TaskStage::Waiting) {
                task.missing_count -= 1;
                if task.missing_count == 0 {
                    self.make_ready(*dependent);
                }
            }
        }
        self.tasks[id].dependents = dependents;
    }

    /// Has the missing dependencies of a task's dependents counted again in slices, if there are
    /// many dependents. Returns whether it does.
    fn recount_dependents(&mut self, id: TaskId) -> bool {
        // Counts that are not up to date cannot be changed by one.
        let is_needed =
            self.tasks[id].dependents.len() > self.slice_len || !self.todo.recounted.is_empty();
        if is_needed {
            self.todo.recounted.push((id, None));
        }
        is_needed
    }

    /// Counts the missing dependencies of the next dependent.
    pub(super) fn recount_next(&mut self) {
        let Some((id, last)) = self.todo.recounted.last_mut() else {
            return;
        };
        let after = last.map_or(Bound::Unbounded, Bound::Excluded);
        let task = self.tasks.get(*id);
        let mut left = task.map(|task| task.dependents.range((after, Bound::Unbounded)));
        let next = left.as_mut().and_then(|left| left.next()).copied();
        *last = next;
        match next {
            Some(dependent) => self.recount(dependent),
            None => drop(self.todo.recounted.pop()),
        }
    }

    /// The number of dependencies of a task that are not in memory.
    fn missing_count(&self, id: TaskId) -> u32 {
        let dependencies = self.tasks[id].dependencies.iter();
        let missing = dependencies.map(|id| {
            let is_missing = !matches!(self.tasks[*id].stage, TaskStage::Memory);
            u32::from(is_missing)
        });
        missing.sum()
    }

    /// Counts the missing dependencies of an active task, and has it wait for them.
    fn recount(&mut self, id: TaskId) {
        if !self.tasks[id].stage.is_active() {
            return;
        }
        let missing_count = self.missing_count(id);
        match self.tasks[id].stage {
            TaskStage::Waiting => {
                self.tasks[id].missing_count = missing_count;
                if missing_count == 0 {
                    self.make_ready(id);
                }
            }
            _ if missing_count > 0 => {
                self.wait_for_lost(id);
                self.tasks[id].missing_count = missing_count;
            }
            _ => {}
        }
    }

    /// Has a task wait that was about to be sent to a worker, if one of its dependencies was lost
    /// and its count of them is not up to date. Returns whether it does.
    pub(super) fn waits_again(&mut self, id: TaskId, on: WorkerId) -> bool {
        if self.todo.recounted.is_empty() {
            return false;
        }
        let missing_count = self.missing_count(id);
        if missing_count == 0 {
            return false;
        }
        if let Some(worker) = self.workers.get_mut(&on) {
            worker.work.remove(self.tasks[id].expected);
        }
        self.remove_actor(id, on);
        self.set_stage(id, TaskStage::Waiting);
        self.tasks[id].missing_count = missing_count;
        true
    }

    /// Records that a worker no longer has a result.
    pub(super) fn remove_replica(&mut self, worker: WorkerId, id: TaskId) {
        if !self.forget_copy(worker, id) {
            return;
        }
        let is_lost = self.tasks[id].who_has.is_empty();
        // The worker may have received the data again since, over another
        // connection: that copy is deleted, too.
        self.delete_later(worker, id);
        if self.tasks[id].actor_on == Some(worker) {
            self.lose_actor(id);
        } else if is_lost {
            self.lose(id);
        }
    }

    /// Forgets that a worker has a result. Returns false if it does not have it.
    pub(super) fn forget_copy(&mut self, worker: WorkerId, id: TaskId) -> bool {
        let task = &mut self.tasks[id];
        let Ok(place) = task.who_has.binary_search(&worker) else {
            return false;
        };
        task.who_has.remove(place);
        self.replicas.count(id, task.who_has.len());
        if let Some(worker) = self.workers.get_mut(&worker) {
            worker.has.remove(&id);
            worker.nbytes -= u128::from(task.nbytes);
        }
        true
    }

    /// Handles the loss of all copies of a result.
    pub(super) fn lose(&mut self, id: TaskId) {
        self.set_stage(id, TaskStage::Released);
        let task = &mut self.tasks[id];
        let message = LostData {
            key: task.key.clone(),
            ..LostData::default()
        };
        let clients = task.wanted_by.clone();
        let is_needed = !clients.is_empty() || task.waiter_count != 0;
        for client in clients {
            self.send_client(client, message.clone());
        }
        if !self.recount_dependents(id) {
            let dependents = core::mem::take(&mut self.tasks[id].dependents);
            for dependent in &dependents {
                self.wait_for_lost(*dependent);
            }
            self.tasks[id].dependents = dependents;
        }
        if is_needed {
            self.activate(id);
        } else {
            self.todo.unneeded.push(id);
        }
    }

    /// Has an active task wait for one of its dependencies again. A worker may be about to run it.
    pub(super) fn wait_for_lost(&mut self, id: TaskId) {
        match self.tasks[id].stage {
            TaskStage::Waiting => self.tasks[id].missing_count += 1,
            TaskStage::Ready
            | TaskStage::NoWorker
            | TaskStage::Pooled
            | TaskStage::Queued(_)
            | TaskStage::Processing(_) => {
                if let Some(on) = self.unassign(id) {
                    self.send_free(on, id);
                }
                self.barrier_ended(id);
                self.set_stage(id, TaskStage::Waiting);
                self.tasks[id].missing_count = 1;
            }
            TaskStage::Released | TaskStage::Memory | TaskStage::Erred(_) => {}
        }
    }

    /// Schedules the deletion of all copies of a result on workers.
    pub(super) fn delete(&mut self, id: TaskId) {
        self.replicas.count(id, 0);
        if let Some(on) = self.tasks[id].actor_on {
            self.remove_actor(id, on);
        }
        let task = &mut self.tasks[id];
        task.actor_on = None;
        for holder in core::mem::take(&mut task.who_has) {
            if let Some(worker) = self.workers.get_mut(&holder) {
                worker.has.remove(&id);
                worker.nbytes -= u128::from(self.tasks[id].nbytes);
                self.delete_later(holder, id);
            }
        }
    }

    /// Has a worker delete what it has under the key of a task, with the next deletions.
    pub(super) fn delete_later(&mut self, on: WorkerId, id: TaskId) {
        self.add_deletion(on, self.tasks[id].key.clone());
    }

    fn add_deletion(&mut self, on: WorkerId, key: Key) {
        if let Some(worker) = self.workers.get_mut(&on) {
            if worker.deletions.is_empty() {
                worker.deletions_since = self.submission_count;
            }
            worker.deletions.insert(key);
            self.with_deletions.insert(on);
        }
    }
}

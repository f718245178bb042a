//! Operations of clients and workers that change where tasks run, and where data is.

use core::time::Duration;
use std::sync::Arc;

use daskwire_messages::protocol::{Close, Keys, RemoveReplicas};
use daskwire_messages::{Key, Value};

use super::State;
use super::model::{TaskId, TaskStage};
use super::submission::Resources;

/// The time in which workers answer requests to delete copies of results.
pub(super) const DROPPING_AGE: Duration = Duration::from_secs(60);

impl State {
    /// Records copies of results that the worker with this address has fetched.
    pub(super) fn add_replicas(&mut self, worker: &str, keys: Keys) {
        self.set_stimulus("add-keys");
        if let Some(id) = self.by_address.get(worker).copied() {
            self.add_keys(id, keys);
            self.settle();
        }
    }

    /// Has a worker delete copies of results of which other workers have copies, too. A worker that
    /// needs one for a task keeps it, and says so.
    pub(super) fn drop_replicas(&mut self, worker: &str, keys: &[Key]) {
        self.set_stimulus("drop-replicas");
        let Some(id) = self.by_address.get(worker).copied() else {
            return;
        };
        let mut dropped = Vec::new();
        for key in keys {
            let Some(task) = self.by_key.get(key).copied() else {
                continue;
            };
            // The copies of workers that have left may not be removed yet.
            let mut others = self.tasks[task]
                .who_has
                .iter()
                .filter(|other| **other != id);
            let is_copied = others.any(|other| self.workers.contains_key(other));
            let is_actor = self.tasks[task].actor_on.is_some();
            if is_copied && !is_actor && self.forget_copy(id, task) {
                dropped.push(key.clone());
            }
        }
        if !dropped.is_empty() {
            let now = self.now;
            if let Some(worker) = self.workers.get_mut(&id) {
                worker
                    .dropping
                    .retain(|_, since| now - *since <= DROPPING_AGE);
                worker
                    .dropping
                    .extend(dropped.iter().map(|key| (key.clone(), now)));
            }
            let fields = [("keys", Value::list(dropped.iter().map(Key::to_value)))];
            self.log(&[worker], "remove-worker-data", fields);
            let message = RemoveReplicas {
                keys: Keys(dropped),
                stimulus_id: self.stimulus.to_string(),
                ..RemoveReplicas::default()
            };
            self.send_worker(id, message);
        }
        self.settle();
    }

    /// Whether a worker has not yet answered the request to delete copies of these results.
    pub fn is_dropping(&self, worker: &str, keys: &[Key]) -> bool {
        let worker = self.by_address.get(worker);
        let worker = worker.and_then(|worker| self.workers.get(worker));
        worker.is_some_and(|worker| keys.iter().any(|key| worker.dropping.contains_key(key)))
    }

    /// Asks the worker with this address to end. It leaves once it has done so.
    pub(super) fn close_named(&mut self, worker: &str) {
        self.set_stimulus("close-worker");
        if let Some(id) = self.by_address.get(worker).copied() {
            self.log(&[worker], "close-worker", []);
            let reason = Some("scheduler-close-worker".to_owned());
            self.send_worker(
                id,
                Close {
                    reason,
                    ..Close::default()
                },
            );
        }
    }

    /// Replaces amounts of a worker's resources. Tasks that wait for it, or for any worker, are
    /// assigned anew.
    pub(super) fn set_resources(&mut self, worker: &str, amounts: Vec<(String, f64)>) {
        self.set_stimulus("set-resources");
        let Some(id) = self.by_address.get(worker).copied() else {
            return;
        };
        let Some(worker) = self.workers.get_mut(&id) else {
            return;
        };
        let kept = worker.resources.0.iter().cloned();
        let kept: Vec<_> = kept
            .filter(|(name, _)| amounts.iter().all(|(new, _)| new != name))
            .collect();
        let resources = Resources::new(kept.into_iter().chain(amounts));
        let is_running = worker.is_running;
        if is_running {
            // As if it stopped accepting tasks, and started again with the new resources.
            self.stop_running(id);
            self.requeue(id);
        }
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.resources = resources;
        }
        if is_running {
            self.start_running(id);
        }
        self.settle();
    }

    /// Changes the workers on which tasks may run; on any if the list is empty. A task that runs
    /// already is not moved.
    pub(super) fn restrict(&mut self, tasks: Vec<(Key, Vec<String>)>) {
        self.set_stimulus("set-restrictions");
        for (key, workers) in tasks {
            if let Some(id) = self.by_key.get(&key).copied() {
                self.restrict_task(id, workers);
            }
        }
        self.settle();
    }

    /// Changes the workers on which a task may run.
    pub(super) fn restrict_task(&mut self, id: TaskId, mut workers: Vec<String>) {
        let waits = matches!(
            self.tasks[id].stage,
            TaskStage::NoWorker | TaskStage::Pooled | TaskStage::Queued(_)
        );
        if waits {
            self.unassign(id);
        }
        if let Some(run_spec) = &mut self.tasks[id].run_spec {
            workers.sort_unstable();
            Arc::make_mut(&mut run_spec.demands).workers = workers;
            let (demands, group) = (Arc::clone(&run_spec.demands), run_spec.group);
            let calls = self.groups[group].key.calls;
            let new = self.join_group(&demands, calls);
            if let Some(run_spec) = &mut self.tasks[id].run_spec {
                run_spec.group = new;
            }
            self.leave_group(group);
            self.journal_demands(id);
        }
        if waits {
            self.make_ready(id);
        }
    }

    /// Those of the keys whose tasks have failed.
    pub fn failed(&self, keys: &[Key]) -> Vec<Key> {
        let is_failed = |key: &&Key| {
            let id = self.by_key.get(key);
            id.is_some_and(|id| matches!(self.tasks[*id].stage, TaskStage::Erred(_)))
        };
        keys.iter().filter(is_failed).cloned().collect()
    }

    /// The first of these keys that is not that of a task.
    pub fn unknown_key<'k>(&self, keys: impl IntoIterator<Item = &'k Key>) -> Option<&'k Key> {
        let mut keys = keys.into_iter();
        keys.find(|key| !self.by_key.contains_key(key))
    }
}

//! Submissions of clients.

use core::time::Duration;
use std::collections::{BTreeSet, HashSet};

use daskwire_messages::protocol::TaskRetried;
use daskwire_messages::{Key, Value};

use super::model::{Priority, RunSpec, Stage, Task, TaskId};
use super::send::erred;
use super::submission::{Dependency, Refusal, Submission, Submitted};
use super::{ClientId, State};

impl State {
    /// Submits a client's tasks.
    pub(super) fn submit(&mut self, client: ClientId, submission: Submission) {
        self.set_stimulus("update-graph");
        if !self.clients.contains_key(&client) {
            return;
        }
        let Submission {
            tasks,
            keys,
            actors,
            submitting_task,
            fifo_timeout,
        } = submission;
        if self.lacks_dependencies(&tasks, &keys) {
            let known = keys.iter().filter_map(|key| self.by_key.get(key));
            for id in known.copied().collect::<Vec<_>>() {
                self.release(client, id);
            }
            self.cancelled(client, keys, "lost dependencies", None);
            self.log_submission(client, "cancelled");
            self.settle();
            return;
        }
        self.collect_keys(&keys);
        self.submission_count += 1;
        self.log_submission(client, "OK");
        let generation = self.generation_of(submitting_task.as_ref(), fifo_timeout);
        // By index in the graph. Dependencies come before their dependents.
        let mut ids: Vec<TaskId> = Vec::with_capacity(tasks.len());
        self.by_key.reserve(tasks.len());
        for task in tasks {
            if let Some(known) = self.by_key.get(&task.key) {
                ids.push(*known);
                continue;
            }
            let found = task
                .dependencies
                .iter()
                .filter_map(|dependency| match dependency {
                    Dependency::Inside(index) => ids.get(*index).copied(),
                    Dependency::Outside(key) => self.by_key.get(key).copied(),
                });
            let mut dependencies: Vec<TaskId> = found.collect();
            dependencies.sort_unstable();
            dependencies.dedup();
            let priority = Priority {
                user: -task.user_priority,
                is_root: false,
                generation,
                order: task.order,
                submission: self.submission_count,
            };
            let run_spec = RunSpec {
                payload: task.run_spec,
                group: self.join_group(&task.demands, task.calls),
                demands: task.demands,
            };
            let id = self.insert_task(task.key, Some(run_spec), priority);
            for dependency in &dependencies {
                self.tasks[*dependency].dependents.insert(id);
            }
            let new = &mut self.tasks[id];
            new.dependencies = dependencies;
            new.retries = task.retries;
            // The task may not be needed.
            self.todo.unneeded.push(id);
            ids.push(id);
        }
        self.mark_actors(&actors);
        for key in keys {
            let Some(id) = self.by_key.get(&key).copied() else {
                continue;
            };
            self.want(client, id);
            match &self.tasks[id].stage {
                Stage::Released => self.activate(id),
                Stage::Memory | Stage::Erred(_) => self.report(client, &key),
                _ => {}
            }
        }
        self.settle();
    }

    /// Whether wanted keys, or keys that tasks depend on, are unknown.
    // ROLES SCHEDULER-7
    fn lacks_dependencies(&self, tasks: &[Submitted], keys: &[Key]) -> bool {
        let outside = tasks.iter().flat_map(|task| &task.dependencies);
        let is_lost = |dependency: &Dependency| match dependency {
            Dependency::Inside(_) => false,
            Dependency::Outside(key) => !self.by_key.contains_key(key),
        };
        if outside.into_iter().any(is_lost) {
            return true;
        }
        let mut unknown = keys.iter().filter(|key| !self.by_key.contains_key(key));
        let Some(first) = unknown.next() else {
            return false;
        };
        let submitted: HashSet<&Key> = tasks.iter().map(|task| &task.key).collect();
        !submitted.contains(first) || unknown.any(|key| !submitted.contains(key))
    }

    /// Returns the generation of a submission. Tasks of earlier generations run first.
    // ROLES SCHEDULER-8
    fn generation_of(&mut self, submitting_task: Option<&Key>, fifo_timeout: Duration) -> u64 {
        if submitting_task.is_some_and(|key| self.by_key.contains_key(key)) {
            // Before all tasks that no task has submitted.
            return 0;
        }
        let is_alone = self.generation == 0
            || fifo_timeout.is_zero()
            || self.generation_began.saturating_add(fifo_timeout) < self.now;
        if submitting_task.is_none() && is_alone {
            self.generation += 1;
            self.generation_began = self.now;
        }
        self.generation
    }

    /// Refuses a client's submission.
    pub(super) fn refuse(&mut self, client: ClientId, refusal: &Refusal) {
        if !self.clients.contains_key(&client) {
            return;
        }
        self.log_submission(client, "error");
        for key in &refusal.keys {
            self.send_client(client, erred(key, &refusal.failure));
        }
    }

    fn log_submission(&mut self, client: ClientId, status: &str) {
        let name = self.client_name(client);
        let stimulus = Value::from(self.stimulus.to_string());
        let fields = [("stimulus_id", stimulus), ("status", Value::from(status))];
        self.log(&["scheduler", &name], "update-graph", fields);
    }

    /// Retries failed tasks, the failed tasks that they depend on, and the failed tasks that
    /// depend on any of these.
    pub(super) fn retry(&mut self, keys: &[Key]) {
        self.set_stimulus("client-retry");
        let known = keys.iter().filter_map(|key| self.by_key.get(key));
        let mut failed: Vec<TaskId> = known.copied().collect();
        let mut all = BTreeSet::new();
        while let Some(id) = failed.pop() {
            if matches!(self.tasks[id].stage, Stage::Erred(_)) && all.insert(id) {
                failed.extend(&self.tasks[id].dependencies);
            }
        }
        failed.extend(&all);
        while let Some(id) = failed.pop() {
            for dependent in &self.tasks[id].dependents {
                if matches!(self.tasks[*dependent].stage, Stage::Erred(_)) && all.insert(*dependent)
                {
                    failed.push(*dependent);
                }
            }
        }
        for id in &all {
            self.set_stage(*id, Stage::Released);
            self.tasks[*id].kill_count = 0;
        }
        for id in all {
            let task = &self.tasks[id];
            let message = TaskRetried {
                key: task.key.clone(),
                ..TaskRetried::default()
            };
            for client in task.wanted_by.clone() {
                self.send_client(client, message.clone());
            }
            if self.tasks[id].wanted_by.is_empty() {
                self.todo.unneeded.push(id);
            } else {
                self.activate(id);
            }
        }
        self.settle();
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
            expected: None,
            is_orphan: false,
            is_actor: false,
            actor_on: None,
        });
        self.extensions.task_added(&key);
        self.by_key.insert(key, id);
        id
    }
}

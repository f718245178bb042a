//! Submissions of clients.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::model::{Priority, RunSpec, Stage, Task, TaskId};
use super::send::erred;
use super::submission::{Dependency, Refusal, Submission};
use super::{ClientId, State};
use crate::Key;
use crate::protocol::TaskRetried;

impl State {
    /// Submits a client's tasks.
    pub(super) fn submit(&mut self, client: ClientId, submission: Submission) {
        self.set_stimulus("update-graph");
        if !self.clients.contains_key(&client) {
            return;
        }
        self.generation += 1;
        let Submission {
            tasks,
            keys,
            user_priority,
            demands,
            retries,
        } = submission;
        // By index in the graph; `None` for tasks with unknown dependencies.
        // Dependencies come before their dependents.
        let mut ids: Vec<Option<TaskId>> = Vec::with_capacity(tasks.len());
        let mut is_lost = false;
        self.by_key.reserve(tasks.len());
        for task in tasks {
            if let Some(known) = self.by_key.get(&task.key) {
                ids.push(Some(*known));
                continue;
            }
            let found = task.dependencies.iter().map(|dependency| match dependency {
                Dependency::Inside(index) => ids.get(*index).copied().flatten(),
                Dependency::Outside(key) => self.by_key.get(key).copied(),
            });
            let Some(mut dependencies) = found.collect::<Option<Vec<TaskId>>>() else {
                is_lost = true;
                ids.push(None);
                continue;
            };
            dependencies.sort_unstable();
            dependencies.dedup();
            let priority = Priority {
                user: -user_priority,
                is_root: false,
                generation: self.generation,
                order: task.order,
            };
            let run_spec = RunSpec {
                payload: task.run_spec,
                calls: task.calls,
                demands: Arc::clone(&demands),
            };
            let id = self.insert_task(task.key, Some(run_spec), priority);
            for dependency in &dependencies {
                self.tasks[*dependency].dependents.insert(id);
            }
            let new = &mut self.tasks[id];
            new.dependencies = dependencies;
            new.retries = retries;
            // The task may not be needed.
            self.todo.unneeded.push(id);
            ids.push(Some(id));
        }
        let mut cancelled = Vec::new();
        for key in keys {
            let Some(id) = self.by_key.get(&key).copied() else {
                cancelled.push(key);
                continue;
            };
            self.want(client, id);
            match &self.tasks[id].stage {
                Stage::Released => self.activate(id),
                Stage::Memory | Stage::Erred(_) => self.report(client, &key),
                _ => {}
            }
        }
        if !cancelled.is_empty() {
            let reason = if is_lost {
                "lost dependencies"
            } else {
                "unknown key"
            };
            self.cancelled(client, cancelled, reason, None);
        }
        self.settle();
    }

    /// Refuses a client's submission.
    pub(super) fn refuse(&mut self, client: ClientId, refusal: &Refusal) {
        if !self.clients.contains_key(&client) {
            return;
        }
        for key in &refusal.keys {
            self.send_client(client, erred(key, &refusal.failure));
        }
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
        });
        self.by_key.insert(key, id);
        id
    }
}

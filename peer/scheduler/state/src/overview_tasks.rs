//! Tasks, for people who look at them. All tasks are looked through in parts.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use daskwire_messages::{Key, Value};

use super::State;
use super::model::{Task, TaskId, TaskStage};

/// Number of tasks that are looked through at once.
const PART: u32 = 1 << 10;

/// Maximum number of dependencies of a task in a graph.
const MAX_DEPENDENCIES: usize = 32;

/// A task in a list.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TaskOverview {
    /// A number that no other task has at this time.
    pub id: u32,
    /// Its key.
    pub key: Key,
    /// Dask's name of its state.
    pub state: &'static str,
    /// The prefix of its key.
    pub prefix: Arc<str>,
    /// The group of its key.
    pub group: Arc<str>,
    /// The address of the worker that has it or its result; of one of them, if there are more.
    pub worker: Option<String>,
    /// The size of its result in bytes.
    pub nbytes: u64,
}

/// A task with all that is known of it. Lists are cut.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TaskDetails {
    /// What lists have.
    pub overview: TaskOverview,
    /// The names of clients that want it.
    pub wanted_by: Vec<String>,
    /// The addresses of workers that hold its result.
    pub holders: Vec<String>,
    /// The address of the worker that it was sent to.
    pub processing_on: Option<String>,
    /// Its priority, as Dask has it.
    pub priority: (f64, u64, i64),
    /// The workers that it must run on, by names, addresses and hosts; none for any.
    pub workers: Vec<String>,
    /// Whether other workers may run it.
    pub allow_other_workers: bool,
    /// The resources that it needs.
    pub resources: BTreeMap<String, f64>,
    /// Its annotations.
    pub annotations: Value,
    /// How often it is run again if it fails.
    pub retries: u32,
    /// The number of workers that ended while they ran it.
    pub kill_count: u32,
    /// The time of its last change of state, in seconds since 1970.
    pub changed: u32,
    /// The code that has submitted it, if the client has sent it and it is not forgotten.
    pub code: Option<Arc<str>>,
    /// The class of its result, as a pickle.
    pub class: Option<Bytes>,
    /// Why it has failed.
    pub failure: Option<TaskFailure>,
    /// Tasks that it depends on, with Dask's name of their state.
    pub dependencies: Vec<(Key, &'static str)>,
    /// The number of all of them.
    pub dependency_count: usize,
    /// Tasks that depend on it.
    pub dependents: Vec<(Key, &'static str)>,
    /// The number of all of them.
    pub dependent_count: usize,
}

/// Why a task has failed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TaskFailure {
    /// The exception, as a peer has sent it.
    pub exception: Value,
    /// Its traceback.
    pub traceback: Option<Value>,
    /// The task that has raised it.
    pub cause: Option<Key>,
}

/// A task in a graph.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TaskNode {
    /// A number that no other task has at this time.
    pub id: u32,
    /// Its key.
    pub key: Key,
    /// Dask's name of its state.
    pub state: &'static str,
    /// The numbers of tasks that it depends on, at most 32.
    pub dependencies: Vec<u32>,
}

/// A task that runs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RunningTask {
    /// Its key.
    pub key: Key,
    /// The address of its worker.
    pub worker: String,
    /// The time since which it is there, in seconds since 1970.
    pub since: u32,
    /// The run time that was expected, in seconds; `None` if no task with its prefix has ended.
    pub expected: Option<f64>,
    /// Whether it has left its thread.
    pub is_long_running: bool,
}

/// Tasks for which no worker qualifies, and what they demand.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UnmetDemands {
    /// The workers that they must run on, by names, addresses and hosts; none for any.
    pub workers: Vec<String>,
    /// The resources that they need.
    pub resources: BTreeMap<String, f64>,
    /// Whether they call functions of Python.
    pub needs_python: bool,
    /// Whether they call functions of workers in Rust.
    pub needs_rust: bool,
    /// The keys of some of them.
    pub keys: Vec<Key>,
    /// The number of all of them.
    pub count: usize,
}

impl State {
    fn overview_of(&self, id: TaskId, task: &Task) -> TaskOverview {
        let worker = task.stage.worker();
        let worker = worker.or_else(|| task.who_has.first().copied());
        TaskOverview {
            id,
            key: task.key.clone(),
            state: task.stage.name(),
            prefix: Arc::clone(self.key_groups.prefix_name(task.key_group)),
            group: Arc::clone(self.key_groups.name(task.key_group)),
            worker: worker.and_then(|on| self.address_of(on)).map(str::to_owned),
            nbytes: task.nbytes,
        }
    }

    /// Looks through at most 1,024 tasks from a place on, and returns at most `max` that are wanted by
    /// their key and Dask's name of their state, with the place from which to go on; `None` after the
    /// last task. The first place is 0.
    pub fn find_tasks(
        &self,
        from: u32,
        max: usize,
        is_wanted: impl Fn(&Key, &'static str) -> bool,
    ) -> (Vec<TaskOverview>, Option<u32>) {
        let mut found = Vec::new();
        let end = from.saturating_add(PART);
        for id in from..end {
            if found.len() >= max {
                return (found, Some(id));
            }
            let Some(task) = self.tasks.get(id) else {
                continue;
            };
            if is_wanted(&task.key, task.stage.name()) {
                found.push(self.overview_of(id, task));
            }
        }
        let is_last = end as usize >= self.tasks.slot_count();
        (found, (!is_last).then_some(end))
    }

    /// The number of a task, as overviews have it.
    pub fn task_number(&self, key: &Key) -> Option<u32> {
        self.by_key.get(key).copied()
    }

    /// The key of the task with a number.
    pub fn key_of(&self, number: u32) -> Option<Key> {
        self.tasks.get(number).map(|task| task.key.clone())
    }

    /// Looks through at most 1,024 tasks from a place on, and returns those of a group, or all of them,
    /// as nodes of a graph, with the place from which to go on.
    pub fn graph_of_tasks(&self, from: u32, group: Option<&str>) -> (Vec<TaskNode>, Option<u32>) {
        let group = group.map(|name| self.key_groups.id(name));
        let end = from.saturating_add(PART);
        let is_wanted = |task: &&Task| match group {
            None => true,
            Some(group) => group == Some(task.key_group),
        };
        let tasks = (from..end).filter_map(|id| Some((id, self.tasks.get(id).filter(is_wanted)?)));
        let nodes = tasks.map(|(id, task)| TaskNode {
            id,
            key: task.key.clone(),
            state: task.stage.name(),
            dependencies: task
                .dependencies
                .iter()
                .take(MAX_DEPENDENCIES)
                .copied()
                .collect(),
        });
        let nodes = nodes.collect();
        let is_last = end as usize >= self.tasks.slot_count();
        (nodes, (!is_last).then_some(end))
    }

    /// All that is known of a task, with at most `max` entries of each list.
    pub fn task_details(&self, key: &Key, max: usize) -> Option<TaskDetails> {
        let id = *self.by_key.get(key)?;
        let task = &self.tasks[id];
        let demands = task.run_spec.as_ref().map(|run_spec| &run_spec.demands);
        let related = |id: &TaskId| {
            let task = &self.tasks[*id];
            (task.key.clone(), task.stage.name())
        };
        let address = |id| self.address_of(id).map(str::to_owned);
        let wanted_by = task.wanted_by.iter().take(max);
        let holders = task.who_has.iter().take(max);
        let named = demands.map_or(&[][..], |demands| &demands.workers);
        Some(TaskDetails {
            overview: self.overview_of(id, task),
            wanted_by: wanted_by.map(|id| self.client_name(*id)).collect(),
            holders: holders.filter_map(|id| address(*id)).collect(),
            processing_on: match &task.stage {
                TaskStage::Processing(on) => address(*on),
                _ => None,
            },
            priority: (
                task.priority.user,
                task.priority.generation,
                task.priority.order,
            ),
            workers: named.iter().take(max).cloned().collect(),
            allow_other_workers: demands.is_none_or(|demands| demands.allow_other_workers),
            resources: demands
                .map(|demands| demands.resources.0.iter().take(max).cloned().collect())
                .unwrap_or_default(),
            annotations: demands.map_or(Value::None, |demands| demands.annotations.clone()),
            retries: task.retries,
            kill_count: task.kill_count,
            changed: task.changed,
            code: self.codes.of(task.priority.submission).cloned(),
            class: task.class.clone(),
            failure: match &task.stage {
                TaskStage::Erred(failure) => Some(TaskFailure {
                    exception: failure.exception.clone(),
                    traceback: failure.traceback.clone(),
                    cause: failure.cause.clone(),
                }),
                _ => None,
            },
            dependencies: task.dependencies.iter().take(max).map(related).collect(),
            dependency_count: task.dependencies.len(),
            dependents: task.dependents.iter().take(max).map(related).collect(),
            dependent_count: task.dependents.len(),
        })
    }

    /// Some of the tasks that a worker runs, at most `max`.
    pub fn running_tasks(&self, address: &str, max: usize) -> Vec<RunningTask> {
        let worker = self.by_address.get(address);
        let Some(worker) = worker.and_then(|id| self.workers.get(id)) else {
            return Vec::new();
        };
        let tasks = worker.processing.iter().take(max);
        let running = tasks.map(|id| {
            let task = &self.tasks[*id];
            RunningTask {
                key: task.key.clone(),
                worker: worker.address.to_string(),
                since: task.changed,
                expected: task.expected.map(|expected| expected.as_secs_f64()),
                is_long_running: worker.long_running.contains(id),
            }
        });
        running.collect()
    }

    /// Whether tasks of a journal wait for the workers of an earlier scheduler.
    pub const fn is_waiting_for_workers(&self) -> bool {
        self.held.is_some()
    }

    /// The number of tasks for which no worker qualifies.
    pub const fn no_worker_count(&self) -> usize {
        self.no_worker_count
    }

    /// What tasks demand for which no worker qualifies, at most `max` kinds of them, each with at most
    /// as many keys.
    pub fn unmet_demands(&self, max: usize) -> Vec<UnmetDemands> {
        let groups = self.without_worker.iter().take(max);
        let unmet = groups.map(|group| {
            let group = &self.groups[*group];
            let demands = &group.key.demands;
            UnmetDemands {
                workers: demands.workers.iter().take(max).cloned().collect(),
                resources: demands.resources.0.iter().take(max).cloned().collect(),
                needs_python: group.key.calls.python,
                needs_rust: group.key.calls.native,
                keys: group
                    .no_worker
                    .iter()
                    .take(max)
                    .map(|(_, id)| self.tasks[*id].key.clone())
                    .collect(),
                count: group.no_worker.len(),
            }
        });
        unmet.collect()
    }
}

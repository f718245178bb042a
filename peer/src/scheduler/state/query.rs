//! Queries of the state.

use crate::protocol::TaskState;
use std::collections::HashSet;

use super::State;
use super::model::{Stage, Task, Worker};
use crate::protocol::Keys;
use crate::{Key, TaskEvent, Value};

impl State {
    /// The holders of results; of all known results if `keys` is `None`.
    pub fn who_has(&self, keys: Option<&[Key]>) -> Vec<(Key, Vec<String>)> {
        let holders = |task: &Task| {
            let holders = task
                .who_has
                .iter()
                .map(|id| self.workers[id].address.clone());
            (task.key.clone(), holders.collect())
        };
        match keys {
            None => self.tasks.iter().map(holders).collect(),
            Some(keys) => {
                let known = keys.iter().map(|key| match self.by_key.get(key) {
                    Some(id) => holders(&self.tasks[*id]),
                    None => (key.clone(), Vec::new()),
                });
                known.collect()
            }
        }
    }

    /// The addresses of the holders of a result.
    pub(crate) fn holders(&self, key: &Key) -> impl Iterator<Item = &str> {
        let id = self.by_key.get(key);
        let holders = id.map_or(&[][..], |id| &self.tasks[*id].who_has);
        holders.iter().map(|id| &*self.workers[id].address)
    }

    /// Whether a worker holds a result.
    pub(crate) fn is_holder(&self, key: &Key, address: &str) -> bool {
        let (Some(task), Some(worker)) = (self.by_key.get(key), self.by_address.get(address))
        else {
            return false;
        };
        self.tasks[*task].who_has.binary_search(worker).is_ok()
    }

    /// The keys held by workers; by all of them if `workers` is `None`.
    pub fn has_what(&self, workers: Option<&[String]>) -> Vec<(String, Vec<Key>)> {
        self.of_workers(workers, |worker| {
            let keys = worker.has.iter().map(|id| self.tasks[*id].key.clone());
            keys.collect()
        })
    }

    /// The number of threads of workers; of all of them if `workers` is `None`.
    pub fn thread_counts(&self, workers: Option<&[String]>, running: bool) -> Vec<(String, u64)> {
        let mut counts = self.of_workers(workers, |worker| u64::from(worker.thread_count));
        if running {
            counts.retain(|(address, _)| {
                let id = self.by_address.get(address);
                id.is_some_and(|id| self.workers[id].is_running)
            });
        }
        counts
    }

    /// The addresses of the workers on these hosts; of all workers if `hosts` is
    /// `None`.
    pub fn workers_on(&self, hosts: Option<&[String]>) -> Vec<String> {
        let hosts: Option<HashSet<&String>> = hosts.map(|hosts| hosts.iter().collect());
        let is_there = |worker: &&Worker| {
            hosts
                .as_ref()
                .is_none_or(|hosts| hosts.contains(&worker.host))
        };
        let workers = self.workers.values().filter(is_there);
        workers.map(|worker| worker.address.clone()).collect()
    }

    /// The address of a worker's nanny; `None` without a nanny, and for an unknown
    /// worker.
    pub fn nanny(&self, worker: &str) -> Option<String> {
        let id = self.by_address.get(worker)?;
        self.workers.get(id)?.info.nanny.clone()
    }

    /// The sizes of results in bytes; of all results in memory if `keys` is
    /// `None`.
    pub fn nbytes(&self, keys: Option<&[Key]>) -> Vec<(Key, u64)> {
        let is_there = |task: &&Task| matches!(task.stage, Stage::Memory);
        let all = self.tasks.iter().filter(is_there);
        let pair = |task: &Task| (task.key.clone(), task.nbytes);
        match keys {
            None => all.map(pair).collect(),
            Some(keys) => {
                let known = keys.iter().filter_map(|key| self.by_key.get(key));
                let known = known.map(|id| &self.tasks[*id]);
                known.filter(is_there).map(pair).collect()
            }
        }
    }

    /// The state of a task; `None` if it is not known.
    pub fn status(&self, key: &Key) -> Option<TaskState> {
        let id = self.by_key.get(key)?;
        Some(self.tasks[*id].stage.state())
    }

    /// The last events of the tasks with these keys, and those with these stimuli,
    /// oldest first.
    pub fn story<'s>(&'s self, keys_or_stimuli: &'s Keys) -> impl Iterator<Item = &'s TaskEvent> {
        self.story.events(keys_or_stimuli)
    }

    /// The [`story`](Self::story) in the form of Dask's reply.
    pub(in crate::scheduler) fn story_value(&self, keys_or_stimuli: &Keys) -> Value {
        self.story.of_scheduler(keys_or_stimuli)
    }

    /// Whether a worker has this address.
    pub fn has_worker(&self, address: &str) -> bool {
        self.by_address.contains_key(address)
    }

    /// The number of known tasks.
    pub fn task_count(&self) -> usize {
        self.by_key.len()
    }

    /// The number of workers.
    pub fn worker_count(&self) -> usize {
        self.workers.len()
    }

    /// The number of clients that are connected.
    pub fn client_count(&self) -> usize {
        self.clients.keys().filter(|id| id.has_stream()).count()
    }

    /// The total number of threads.
    pub const fn thread_count(&self) -> u64 {
        self.thread_count
    }

    /// The total memory limit of all workers, in bytes.
    pub fn memory_limit(&self) -> u64 {
        let limits = self
            .workers
            .values()
            .filter_map(|worker| worker.info.memory_limit);
        limits.fold(0, u64::saturating_add)
    }

    /// The identities of the first `count` workers, or of all of them, by
    /// address.
    pub fn identities(&self, count: Option<usize>) -> Vec<(String, Value)> {
        let workers = self.workers.values().take(count.unwrap_or(usize::MAX));
        workers.map(identity).collect()
    }

    /// The identity of a worker.
    pub(in crate::scheduler) fn identity_of(&self, address: &str) -> Option<(String, Value)> {
        let id = self.by_address.get(address)?;
        self.workers.get(id).map(identity)
    }

    fn of_workers<T>(
        &self,
        workers: Option<&[String]>,
        what: impl Fn(&Worker) -> T,
    ) -> Vec<(String, T)> {
        let pair = |worker: &Worker| (worker.address.clone(), what(worker));
        match workers {
            None => self.workers.values().map(pair).collect(),
            Some(addresses) => {
                let mut seen = HashSet::new();
                let ids = addresses
                    .iter()
                    .filter_map(|address| self.by_address.get(address));
                let ids = ids.filter(|id| seen.insert(**id));
                ids.map(|id| pair(&self.workers[id])).collect()
            }
        }
    }
}

/// The entry of a worker in the reply to `identity`.
fn identity(worker: &Worker) -> (String, Value) {
    let number = |number: Option<u64>| number.map_or(Value::None, Value::from);
    let string = |string: &Option<String>| string.clone().map_or(Value::None, Value::from);
    let info = &worker.info;
    let resources = worker.resources.0.iter();
    let resources = resources.map(|(name, amount)| (name.clone(), *amount));
    let identity = Value::dict([
        ("type", Value::from("Worker")),
        ("id", string(&info.server_id)),
        ("host", Value::from(worker.host.as_str())),
        ("resources", Value::dict(resources)),
        (
            "local_directory",
            Value::from(info.local_directory.as_str()),
        ),
        ("name", info.name.clone()),
        ("nthreads", Value::from(worker.thread_count)),
        ("memory_limit", number(info.memory_limit)),
        ("last_seen", Value::from(worker.last_seen.as_secs_f64())),
        ("services", info.services.clone()),
        ("metrics", info.metrics.clone()),
        ("status", Value::from(info.status.as_str())),
        ("nanny", string(&info.nanny)),
    ]);
    (worker.address.clone(), identity)
}

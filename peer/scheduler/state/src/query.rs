//! Queries of the state.

use core::ops::Bound;
use core::time::Duration;
use std::collections::{BTreeMap, HashSet};

use daskwire_messages::protocol::{Keys, TaskState, WorkerStatus};
use daskwire_messages::{Key, Value};
use daskwire_rpc::TaskEvent;

use super::few::Few;
use super::groups::GroupId;
use super::model::{Priority, Task, TaskId, TaskStage, Worker};
use super::slices::SLICE;
use super::{State, Totals, WorkerCounts, WorkerId};

/// The tasks that a query is about. All tasks are queried in parts, between which events are
/// handled, so that none of them waits for a query of many tasks.
#[derive(Clone, Copy, Debug)]
pub enum Selection<'k> {
    /// The tasks with these keys.
    Keys(&'k [Key]),
    /// A part of all tasks, at most 1,024 of them. The first is 0; see [`State::part_count`].
    /// A task stays in its part: none is left out that exists all the time, and no key is in two
    /// parts unless its task was forgotten and submitted again meanwhile.
    Part(usize),
}

/// A place in the list of a worker's tasks or results, which is read in parts. Starts before the first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place(Option<(Option<(GroupId, Priority)>, TaskId)>);

impl State {
    /// The current number of parts of all tasks.
    pub const fn part_count(&self) -> usize {
        self.tasks.part_count()
    }

    /// The holders of results.
    pub fn who_has(&self, tasks: Selection<'_>) -> Vec<(Key, Vec<String>)> {
        let holders = |task: &Task| {
            let holders = task
                .who_has
                .iter()
                .filter_map(|id| Some(self.workers.get(id)?.address.to_string()));
            (task.key.clone(), holders.collect())
        };
        match tasks {
            Selection::Part(part) => self.tasks.part(part).map(holders).collect(),
            Selection::Keys(keys) => {
                let known = keys.iter().map(|key| match self.by_key.get(key) {
                    Some(id) => holders(&self.tasks[*id]),
                    None => (key.clone(), Vec::new()),
                });
                known.collect()
            }
        }
    }

    /// The addresses of the holders of a result.
    pub fn holders(&self, key: &Key) -> impl Iterator<Item = &str> {
        let id = self.by_key.get(key);
        let holders = id.map_or(&Few::None, |id| &self.tasks[*id].who_has);
        let holders = holders.iter().filter_map(|id| self.workers.get(id));
        holders.map(|worker| &*worker.address)
    }

    /// Whether a worker holds a result.
    pub fn is_holder(&self, key: &Key, address: &str) -> bool {
        let (Some(task), Some(worker)) = (self.by_key.get(key), self.by_address.get(address))
        else {
            return false;
        };
        self.tasks[*task].who_has.binary_search(worker).is_ok()
    }

    /// Adds a part of the keys that the worker with an address holds, after those of the part before
    /// it. Returns whether these are the last; so are those of an unknown worker, which are none.
    pub fn has_what(&self, worker: &str, place: &mut Place, keys: &mut Vec<Key>) -> bool {
        let Some(id) = self.by_address.get(worker) else {
            return true;
        };
        let after = (place.0).map_or(Bound::Unbounded, |(_, id)| Bound::Excluded(id));
        let part = self.workers[id].has.range((after, Bound::Unbounded));
        let mut count = 0;
        for id in part.take(SLICE) {
            keys.push(self.tasks[*id].key.clone());
            place.0 = Some((None, *id));
            count += 1;
        }
        count < SLICE
    }

    /// Adds a part of the keys of the tasks that wait for the worker with an address, and then of those
    /// that were sent to it, as [`has_what`](Self::has_what). A task that is sent between two parts may be
    /// added twice.
    pub fn processing(&self, worker: &str, place: &mut Place, keys: &mut Vec<Key>) -> bool {
        let Some(id) = self.by_address.get(worker) else {
            return true;
        };
        let worker = &self.workers[id];
        let mut left = SLICE;
        let last = place.0;
        let mut add = |id: TaskId, queue: Option<(GroupId, Priority)>| {
            keys.push(self.tasks[id].key.clone());
            place.0 = Some((queue, id));
        };
        let sent = match last {
            Some((None, id)) => Bound::Excluded(id),
            queued => {
                let last = queued.and_then(|(queue, id)| Some((queue?, id)));
                let from = last.map_or(Bound::Unbounded, |((group, _), _)| Bound::Included(group));
                for (group, queue) in worker.queue.range((from, Bound::Unbounded)) {
                    let after = match last {
                        Some(((last, priority), id)) if last == *group => {
                            Bound::Excluded((priority, id))
                        }
                        _ => Bound::Unbounded,
                    };
                    for (priority, id) in queue.range((after, Bound::Unbounded)).take(left) {
                        add(*id, Some((*group, *priority)));
                        left -= 1;
                    }
                    if left == 0 {
                        return false;
                    }
                }
                Bound::Unbounded
            }
        };
        for id in worker.processing.range((sent, Bound::Unbounded)).take(left) {
            add(*id, None);
            left -= 1;
        }
        left > 0
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
        workers.map(|worker| worker.address.to_string()).collect()
    }

    /// The address of a worker's nanny; `None` without a nanny, and for an unknown
    /// worker.
    pub fn nanny(&self, worker: &str) -> Option<String> {
        let id = self.by_address.get(worker)?;
        self.workers.get(id)?.info.nanny.clone()
    }

    /// The addresses of the nannies of all workers.
    pub fn nannies(&self) -> HashSet<String> {
        let workers = self.workers.values();
        workers
            .filter_map(|worker| worker.info.nanny.clone())
            .collect()
    }

    /// The sizes of results in memory, in bytes.
    pub fn nbytes(&self, tasks: Selection<'_>) -> Vec<(Key, u64)> {
        let is_there = |task: &&Task| matches!(task.stage, TaskStage::Memory);
        let pair = |task: &Task| (task.key.clone(), task.nbytes);
        match tasks {
            Selection::Part(part) => self.tasks.part(part).filter(is_there).map(pair).collect(),
            Selection::Keys(keys) => {
                let known = keys.iter().filter_map(|key| self.by_key.get(key));
                let known = known.map(|id| &self.tasks[*id]);
                known.filter(is_there).map(pair).collect()
            }
        }
    }

    /// Adds the sizes of the results in memory with these keys, in bytes, to sums by the prefix of
    /// their keys.
    pub fn add_nbytes(&self, keys: &[Key], sums: &mut BTreeMap<String, u64>) {
        for (key, len) in self.nbytes(Selection::Keys(keys)) {
            let prefix = key.prefix();
            match sums.get_mut(&*prefix) {
                Some(sum) => *sum = sum.saturating_add(len),
                None => drop(sums.insert(prefix.into_owned(), len)),
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
    pub fn story_value(&self, keys_or_stimuli: &Keys) -> Value {
        self.story.of_scheduler(keys_or_stimuli)
    }

    /// The addresses of workers that are given by addresses or names. Strings that are neither are
    /// returned unchanged.
    pub fn addresses(&self, workers: &[String]) -> Vec<String> {
        let address = |worker: &String| {
            let id = self.worker_names.get(worker);
            id.map_or_else(|| worker.clone(), |id| self.workers[id].address.to_string())
        };
        workers.iter().map(address).collect()
    }

    /// The addresses of the workers with these names.
    pub fn named(&self, names: &[String]) -> Vec<String> {
        let ids = names.iter().filter_map(|name| self.worker_names.get(name));
        ids.map(|id| self.workers[id].address.to_string()).collect()
    }

    /// The id of the worker with this address.
    pub fn worker_id(&self, address: &str) -> Option<WorkerId> {
        self.by_address.get(address).copied()
    }

    /// Whether the worker with this id has joined and not left.
    pub fn is_member(&self, id: WorkerId) -> bool {
        self.workers.contains_key(&id)
    }

    /// Whether a worker has this address.
    pub fn has_worker(&self, address: &str) -> bool {
        self.by_address.contains_key(address)
    }

    /// Whether heartbeats of the worker with this address are answered as usual: it has joined, or
    /// was just asked to end. A worker that is told that it is unknown logs a warning.
    pub fn answers_heartbeats(&self, address: &str) -> bool {
        self.has_worker(address) || self.closing.iter().any(|(_, closing)| closing == address)
    }

    /// The number of known tasks.
    pub fn task_count(&self) -> usize {
        self.by_key.len()
    }

    /// The time since which no task runs, waits for a worker, or has changed; `None` if one runs
    /// or waits.
    pub fn idle_since(&self) -> Option<Duration> {
        let is_busy = self.no_worker_count + self.queued_count + self.processing_count > 0
            || self.pool.len() > 0
            || self.is_pending();
        (!is_busy).then_some(self.last_transition)
    }

    /// Counts since the start.
    pub const fn totals(&self) -> Totals {
        self.totals
    }

    /// The numbers of workers by what they do.
    pub fn worker_counts(&self) -> WorkerCounts {
        let mut counts = WorkerCounts::default();
        for worker in self.workers.values() {
            let (busy, threads) = (worker.busy_count(), worker.thread_count as usize);
            *match worker.info.status {
                WorkerStatus::Paused => &mut counts.paused,
                _ if !worker.is_running => &mut counts.retiring,
                _ if worker.queued_count > 0 || busy > threads => &mut counts.saturated,
                _ if busy == threads => &mut counts.partially_saturated,
                _ => &mut counts.idle,
            } += 1;
        }
        counts
    }

    /// The number of workers.
    pub fn worker_count(&self) -> usize {
        self.workers.len()
    }

    /// The number of clients that are connected.
    pub fn client_count(&self) -> usize {
        let clients = self.clients.values();
        clients.filter(|client| client.stream.is_some()).count()
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

    /// The ids and addresses of all workers, by id.
    pub fn worker_ids(&self) -> impl Iterator<Item = (WorkerId, &str)> {
        let workers = self.workers.iter();
        workers.map(|(id, worker)| (*id, &*worker.address))
    }

    /// The identity of a worker.
    pub fn identity_of(&self, address: &str) -> Option<(String, Value)> {
        let id = self.by_address.get(address)?;
        self.workers.get(id).map(identity)
    }

    fn of_workers<T>(
        &self,
        workers: Option<&[String]>,
        what: impl Fn(&Worker) -> T,
    ) -> Vec<(String, T)> {
        let pair = |worker: &Worker| (worker.address.to_string(), what(worker));
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
pub(super) fn identity(worker: &Worker) -> (String, Value) {
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
    (worker.address.to_string(), identity)
}

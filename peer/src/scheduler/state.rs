//! The scheduler's state machine: events in, messages out.
//!
//! It does no I/O, has no clock, and makes the same decisions for the same events
//! in the same order, so each step can be tested alone. The steps are those of
//! Dask's "Journey of a Task".
//!
//! # Stages of tasks
//!
//! | stage | the task | leaves |
//! | --- | --- | --- |
//! | released | is known, but not needed now | when it is needed |
//! | waiting | needs results that are not in memory | when the last of them is |
//! | ready | may run; only while an event is handled | to a worker at once |
//! | no-worker | may run, but no worker qualifies | when one joins |
//! | queued | waits on its worker's stack in the scheduler | when the worker has
//! a slot |
//! | processing | was sent to its worker | with its result |
//! | memory | has a result, on workers | when the result is not needed, or all
//! copies are lost |
//! | erred | has failed | when no client wants it, or it is retried |
//!
//! # Number of tasks sent to a worker
//!
//! A worker with *n* threads gets *n* tasks, and one more to start with while the
//! scheduler learns that one is done. For tasks shorter than two milliseconds
//! that is not enough to keep it busy: it gets tasks for two milliseconds in
//! advance, at most 16 for each thread. All other tasks stay in the scheduler,
//! where idle workers can take them over.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::submission::Failure;
use crate::Key;
use crate::protocol::{CloseStream, Keys};
use crate::story::{Stimulus, Story};
use parts::{Client, Queue, Table, TaskId, Worker};
use send::free_keys;

pub use action::{Notice, Output};

mod action;
#[cfg(any(test, feature = "fuzzing"))]
mod check;
pub(in crate::scheduler) mod choose;
mod clients;
mod data;
mod parts;
mod query;
mod retire;
mod send;
mod submit;
#[cfg(test)]
mod tests;
mod transitions;
mod workers;

/// The id of a registered client. Ids are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(u64);

/// The id of a registered worker. Ids are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(u64);

/// The client that holds tasks without futures until they are done.
const FIRE_AND_FORGET: (ClientId, &str) = (ClientId(0), "fire-and-forget");

/// The scheduling policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Seed of the random numbers that break ties.
    pub seed: u64,
    /// Interval of the deletions sent to workers. Default: 500 ms.
    pub deletion_interval: Duration,
    /// Number of workers that a task may kill before it fails. Default: 3.
    pub allowed_failures: u32,
    /// Time after which a silent worker is removed, at least ten of its
    /// heartbeats; `None` for never. Dask uses 5 minutes.
    pub worker_ttl: Option<Duration>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            seed: 0,
            deletion_interval: Duration::from_millis(500),
            allowed_failures: 3,
            worker_ttl: Some(Duration::from_secs(300)),
        }
    }
}

/// A scheduler without connections. [`Scheduler`](super::Scheduler) adds them.
///
/// ```
/// use daskwire_peer::graph::{Graph, Task};
/// use daskwire_peer::protocol::{RegisterWorker, ToWorker, UpdateGraph, WorkerStatus};
/// use daskwire_peer::scheduler::{Output, Policy, State};
///
/// let mut state = State::new(Policy::default());
/// let worker = RegisterWorker { address: "tcp://10.0.0.7:1".into(), nthreads: 1,
///     status: WorkerStatus::Running, ..RegisterWorker::default() };
/// state.add_worker(&worker)?;
/// let client = state.add_client("me");
/// let graph: Graph = [Task::new("z", "operator.add", [1, 2])].into_iter().collect();
/// let submitted = UpdateGraph { expr_ser: graph.to_expression()?,
///     keys: ["z"].into_iter().collect(), ..UpdateGraph::default() };
/// state.client_says(client, submitted.into());
/// let sent = state.outputs().find_map(|output| match output {
///     Output::Worker(_, ToWorker::ComputeTask(task)) => Some(task.key.to_string()),
///     _ => None,
/// });
/// assert_eq!(sent.as_deref(), Some("z"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct State {
    policy: Policy,
    now: Duration,
    /// Seconds since 1970, for stories.
    unix_time: f64,
    /// The stimulus of the current event.
    stimulus: Stimulus,
    story: Story,
    is_watched: bool,
    last_deletion: Duration,
    random: u64,
    tasks: Table,
    by_key: HashMap<Key, TaskId>,
    clients: BTreeMap<ClientId, Client>,
    by_name: HashMap<Arc<str>, ClientId>,
    workers: BTreeMap<WorkerId, Worker>,
    by_address: HashMap<String, WorkerId>,
    worker_names: HashSet<String>,
    last_id: u64,
    generation: u64,
    run_count: i64,
    /// Number of tasks on stacks.
    queued_count: usize,
    no_worker: Queue,
    outputs: Vec<Output>,
    /// Follow-up work of the current event.
    todo: Todo,
    /// A result that makes the state machine panic halfway, for tests.
    #[cfg(test)]
    pub(super) panics_over: Option<Key>,
}

#[derive(Debug, Default)]
struct Todo {
    failed: Vec<(TaskId, Arc<Failure>)>,
    /// Tasks that can never be computed.
    unrunnable: Vec<TaskId>,
    /// Tasks that may be unneeded.
    unneeded: Vec<TaskId>,
    ready: Queue,
    /// Workers that may take another task.
    open: BTreeSet<WorkerId>,
}

// Events
impl State {
    /// Returns a state without clients, workers and tasks.
    pub fn new(policy: Policy) -> Self {
        Self {
            random: policy.seed,
            policy,
            now: Duration::ZERO,
            unix_time: 0.0,
            stimulus: Stimulus::here("start", 0.0),
            story: Story::default(),
            is_watched: false,
            last_deletion: Duration::ZERO,
            tasks: Table::default(),
            by_key: HashMap::new(),
            clients: BTreeMap::new(),
            by_name: HashMap::new(),
            workers: BTreeMap::new(),
            by_address: HashMap::new(),
            worker_names: HashSet::new(),
            last_id: 0,
            generation: 0,
            run_count: 0,
            queued_count: 0,
            no_worker: Queue::new(),
            outputs: Vec::new(),
            todo: Todo::default(),
            #[cfg(test)]
            panics_over: None,
        }
    }

    /// Sets the time of the next events, in seconds since 1970. Only
    /// [`story`](Self::story) depends on it.
    pub const fn set_unix_time(&mut self, unix_time: f64) {
        self.unix_time = unix_time;
    }

    /// Turns [`Output::Task`] on or off. Default: off.
    pub const fn watch_tasks(&mut self, is_watched: bool) {
        self.is_watched = is_watched;
    }

    /// Starts an event that originates here.
    fn here(&mut self, what: &'static str) {
        self.stimulus = Stimulus::here(what, self.unix_time);
    }

    /// The outputs of the events so far, each once, in order.
    pub fn outputs(&mut self) -> impl Iterator<Item = Output> {
        self.outputs.drain(..)
    }

    /// Sets the time since the start. Sends deletions that are due, and removes
    /// workers that have been silent for too long.
    pub fn advance(&mut self, now: Duration) {
        self.here("time");
        self.now = self.now.max(now);
        if self.now - self.last_deletion >= self.policy.deletion_interval {
            self.last_deletion = self.now;
            for (id, worker) in &mut self.workers {
                if worker.deletions.is_empty() {
                    continue;
                }
                let keys: Keys = core::mem::take(&mut worker.deletions).into_iter().collect();
                let message = free_keys(keys, "deletions");
                self.outputs.push(Output::Worker(*id, message));
            }
        }
        let Some(ttl) = self.policy.worker_ttl else {
            return;
        };
        let ttl = ttl.max(Duration::from_secs_f64(10.0 * self.heartbeat_interval()));
        let is_silent = |worker: &Worker| self.now - worker.last_seen > ttl;
        let silent = self.workers.iter().filter(|(_, worker)| is_silent(worker));
        let silent: Vec<WorkerId> = silent.map(|(id, _)| *id).collect();
        for id in silent {
            self.send_close(id, "worker-ttl");
            self.drop_worker(id, false, "silent for too long");
        }
    }

    /// Closes the state: asks workers to leave, and ends the streams of clients.
    pub fn close(&mut self) {
        for id in self.workers.keys().copied().collect::<Vec<_>>() {
            self.send_close(id, "scheduler-close");
            self.outputs.push(Output::EndWorker(id));
        }
        for id in self.clients.keys().copied().collect::<Vec<_>>() {
            self.send_client(id, CloseStream::default());
            self.outputs.push(Output::EndClient(id));
        }
    }
}

/// Maximum bytes of tasks sent to a worker before they have been written.
const WINDOW: usize = 64 << 20;

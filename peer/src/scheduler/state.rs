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

use core::fmt;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use daskwire_comm::Address;

use super::step;
use super::submission::{Dependency, Failure, Refusal, Resources, Submission, worker_name};
use crate::event::Level;
use crate::protocol::{
    AcquireReplicas, AdjustHeartbeatInterval, CloseStream, FreeKeys, FromClient, FromWorker, Keys,
    RefreshWhoHas, RegisterWorker, StreamStart, TaskErredForClient, TaskRetried, ToClient,
    ToWorker, WorkerStatus, WorkerStatusChange,
};
use crate::story::{Stimulus, Story};
use crate::{Key, TaskEvent, Value};
use parts::{About, Client, Priority, Queue, RunSpec, Stage, Table, TaskId, Worker};

mod ask;
#[cfg(any(test, feature = "fuzzing"))]
mod check;
pub(in crate::scheduler) mod choose;
mod parts;
mod steps;
#[cfg(test)]
mod tests;

/// The id of a registered client. Ids are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(u64);

/// The id of a registered worker. Ids are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(u64);

/// The client that holds tasks without futures until they are done.
const FIRE_AND_FORGET: (ClientId, &str) = (ClientId(0), "fire-and-forget");

/// An output of the state machine, for the caller to handle.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Output {
    /// A message for a client's stream.
    Client(ClientId, ToClient),
    /// A message for a worker's stream.
    Worker(WorkerId, ToWorker),
    /// Close a client's stream after the messages so far.
    EndClient(ClientId),
    /// Close a worker's stream after the messages so far.
    EndWorker(WorkerId),
    /// Call [`State::drained`] once the messages for a worker so far have been
    /// written. Until then the worker gets no more tasks.
    NotifyDrained(WorkerId),
    /// An event of interest to operators.
    Notice(Notice),
    /// A step of a task; only after [`State::watch_tasks`].
    Task(TaskEvent),
}

/// An event of interest to operators.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Notice {
    /// A peer sent a message with an unknown op, which was ignored.
    UnknownOp {
        /// The client or worker.
        peer: String,
        /// The op of the message.
        op: String,
    },
    /// A peer sent an inconsistent message, which was ignored.
    Ignored {
        /// The client or worker.
        peer: String,
        /// The fault.
        reason: String,
    },
    /// A peer did not read its messages, and its comm was closed.
    NotReading {
        /// The client or worker.
        peer: String,
        /// The limit of queued bytes.
        limit: usize,
    },
    /// The state machine panicked; the scheduler ends.
    Panicked {
        /// The message of the panic.
        reason: String,
    },
    /// A worker published an event.
    Event {
        /// The worker.
        peer: String,
        /// The topic.
        topic: Value,
        /// The event.
        message: Value,
    },
    /// A worker has joined.
    WorkerJoined {
        /// The worker's address.
        worker: String,
    },
    /// A worker has left.
    WorkerLeft {
        /// The worker's address.
        worker: String,
        /// The reason, as far as it is known.
        reason: &'static str,
    },
}

impl Notice {
    /// The importance of the notice in logs.
    pub(in crate::scheduler) const fn level(&self) -> Level {
        match self {
            Self::Event { .. } | Self::WorkerJoined { .. } | Self::WorkerLeft { .. } => Level::Info,
            _ => Level::Warn,
        }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownOp { peer, op } => {
                write!(f, "ignored a message of {peer} with unknown op {op:?}")
            }
            Self::Ignored { peer, reason } => write!(f, "ignored a message of {peer}: {reason}"),
            Self::NotReading { peer, limit } => write!(
                f,
                "closed the comm with {peer}, which did not read: more than {limit} bytes waited"
            ),
            Self::Panicked { reason } => write!(f, "the scheduler panicked: {reason}"),
            Self::Event {
                peer,
                topic,
                message,
            } => write!(f, "{peer} logged on topic {topic}: {message}"),
            Self::WorkerJoined { worker } => write!(f, "the worker {worker} joined"),
            Self::WorkerLeft { worker, reason } => write!(f, "the worker {worker} left: {reason}"),
        }
    }
}

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

    /// Registers a client, which gets `stream-start`. An earlier client of the
    /// same name is removed.
    pub fn add_client(&mut self, name: &str) -> ClientId {
        if let Some(old) = self.by_name.get(name).copied() {
            self.remove_client(old);
        }
        self.last_id += 1;
        let id = ClientId(self.last_id);
        self.insert_client(id, name);
        let start = StreamStart {
            warning: Some(String::new()),
            error: Some(String::new()),
            ..StreamStart::default()
        };
        self.send_client(id, start);
        id
    }

    fn insert_client(&mut self, id: ClientId, name: &str) {
        let name: Arc<str> = name.into();
        self.by_name.insert(Arc::clone(&name), id);
        let wants = BTreeSet::new();
        self.clients.insert(id, Client { name, wants });
    }

    /// Removes a client, and releases what only it wanted.
    pub fn remove_client(&mut self, id: ClientId) {
        self.here("remove-client");
        let Some(client) = self.clients.remove(&id) else {
            return;
        };
        self.by_name.remove(&client.name);
        for task in client.wants {
            self.tasks[task].wanted_by.retain(|other| *other != id);
            self.todo.unneeded.push(task);
        }
        if id != FIRE_AND_FORGET.0 {
            self.outputs.push(Output::EndClient(id));
        }
        self.settle();
    }

    /// Registers a worker.
    ///
    /// # Errors
    ///
    /// Why the worker is refused: its address or name is taken.
    pub fn add_worker(&mut self, worker: &RegisterWorker) -> Result<WorkerId, String> {
        self.here("add-worker");
        let address = worker.address.clone();
        if self.by_address.contains_key(&address) {
            return Err(format!("worker already exists {address}"));
        }
        let name = match &worker.name {
            Value::None => address.clone(),
            name => worker_name(name).ok_or_else(|| format!("the name {name} is not a string"))?,
        };
        if !self.worker_names.insert(name.clone()) {
            return Err(format!("name taken, {name}"));
        }
        self.last_id += 1;
        let id = WorkerId(self.last_id);
        let host = address.parse::<Address>();
        let is_running = worker.status == WorkerStatus::Running;
        self.by_address.insert(address.clone(), id);
        self.outputs.push(Output::Notice(Notice::WorkerJoined {
            worker: address.clone(),
        }));
        let joined = Worker {
            host: host.map_or_else(|_| String::new(), |address| address.host().to_owned()),
            address,
            name,
            about: About {
                name: worker.name.clone(),
                status: worker.status.clone(),
                server_id: worker.server_id.0.clone(),
                memory_limit: worker.memory_limit.0,
                local_directory: worker.local_directory.clone(),
                services: worker.services.clone(),
                nanny: worker.nanny.0.clone(),
                metrics: worker.metrics.clone(),
            },
            is_running,
            is_leaving: false,
            thread_count: u32::try_from(worker.nthreads)
                .unwrap_or(MAX_THREADS)
                .clamp(1, MAX_THREADS),
            resources: Resources::new(worker.resources.iter().cloned()),
            used: HashMap::new(),
            has: BTreeSet::new(),
            nbytes: 0,
            processing: BTreeSet::new(),
            long_running: BTreeSet::new(),
            stack: BTreeMap::new(),
            stack_count: 0,
            pace: 0.0,
            deletions: BTreeSet::new(),
            unwritten_len: 0,
            last_seen: self.now,
        };
        self.workers.insert(id, joined);
        if is_running {
            self.worker_running(id);
        }
        self.settle();
        Ok(id)
    }

    /// Removes a worker after its stream has ended. Its tasks go to other
    /// workers; results that only it had are recomputed if they are needed.
    pub fn remove_worker(&mut self, id: WorkerId) {
        self.here("remove-worker");
        let is_leaving = self
            .workers
            .get(&id)
            .is_some_and(|worker| worker.is_leaving);
        self.drop_worker(id, is_leaving, "stream ended");
    }

    /// Reports that all messages to a worker have been written, as requested by
    /// [`Output::NotifyDrained`].
    pub fn drained(&mut self, id: WorkerId) {
        self.here("drained");
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.unwritten_len = 0;
            self.todo.open.insert(id);
            self.settle();
        }
    }

    /// Handles a worker's heartbeat. Returns `false` if no worker has this
    /// address.
    pub fn heartbeat(&mut self, address: &str, metrics: Value) -> bool {
        let now = self.now;
        let Some(worker) = self.worker_at(address) else {
            return false;
        };
        worker.last_seen = now;
        worker.about.metrics = metrics;
        true
    }

    /// The interval of workers' heartbeats in seconds, which increases with the
    /// number of workers.
    pub fn heartbeat_interval(&self) -> f64 {
        match u32::try_from(self.workers.len()).unwrap_or(u32::MAX) {
            0..=10 => 0.5,
            11..50 => 1.0,
            50..200 => 2.0,
            count => f64::from(count) / 200.0 + 1.0,
        }
    }

    /// Handles a message on a client's stream.
    pub fn client_says(&mut self, id: ClientId, message: FromClient) {
        match message.known_op() {
            Some(op) => self.here(op),
            None => self.here("unknown"),
        }
        match message {
            FromClient::UpdateGraph(message) => match Submission::read(message) {
                Ok(submission) => self.submit(id, submission),
                Err(refusal) => self.refuse(id, &refusal),
            },
            FromClient::ClientDesiresKeys(message) => {
                if let Some(id) = self.client_named(id, message.client) {
                    self.desire(id, message.keys);
                }
            }
            FromClient::ClientReleasesKeys(message) => {
                if let Some(id) = self.client_named(id, message.client) {
                    for key in &message.keys {
                        if let Some(task) = self.by_key.get(key) {
                            self.release(id, *task);
                        }
                    }
                }
            }
            FromClient::ReportKey(message) => self.report(id, &message.key),
            FromClient::CancelKeys(message) => self.cancel(id, &message),
            FromClient::HeartbeatClient(_) => {
                // Ten times the interval of workers.
                let interval = 10.0 * self.heartbeat_interval();
                let message = AdjustHeartbeatInterval {
                    interval,
                    ..AdjustHeartbeatInterval::default()
                };
                self.send_client(id, message);
            }
            // The stream ends soon, which releases the client's keys.
            FromClient::CloseClient(_) => self.remove_client(id),
            FromClient::CloseStream(_) => {}
            FromClient::Unknown(unknown) => {
                let peer = self.client_name(id);
                let op = unknown.op;
                self.notice(Notice::UnknownOp { peer, op });
            }
        }
        self.settle();
    }

    /// Handles a message on a worker's stream.
    pub fn worker_says(&mut self, id: WorkerId, message: FromWorker) {
        let Some(worker) = self.workers.get_mut(&id) else {
            return;
        };
        worker.last_seen = self.now;
        let stimulus = match &message {
            FromWorker::TaskFinished(message) => Some(&message.stimulus_id),
            FromWorker::TaskErred(message) => Some(&message.stimulus_id),
            FromWorker::AddKeys(message) => Some(&message.stimulus_id),
            FromWorker::ReleaseWorkerData(message) => Some(&message.stimulus_id),
            FromWorker::WorkerStatusChange(message) => Some(&message.stimulus_id),
            FromWorker::Reschedule(message) => Some(&message.stimulus_id),
            FromWorker::LongRunning(message) => Some(&message.stimulus_id),
            _ => None,
        };
        self.stimulus = match stimulus {
            Some(text) => Stimulus::of_message(text),
            None => Stimulus::here("worker", self.unix_time),
        };
        match message {
            FromWorker::TaskFinished(message) => self.task_finished(id, message),
            FromWorker::TaskErred(message) => {
                if let Some(task) = self.processed(id, &message.key, message.run_id) {
                    let failure = Arc::new(Failure {
                        exception: match message.exception {
                            // Python clients cannot handle a missing exception.
                            Value::None => Value::from("the worker did not say what went wrong"),
                            exception => exception,
                        },
                        traceback: message.traceback,
                    });
                    self.task_erred(id, task, failure);
                }
            }
            FromWorker::AddKeys(message) => self.add_keys(id, message.keys),
            FromWorker::ReleaseWorkerData(message) => {
                if let Some(task) = self.by_key.get(&message.key).copied() {
                    self.remove_replica(id, task);
                }
            }
            FromWorker::RequestRefreshWhoHas(message) => {
                let who_has = self.who_has(Some(&message.keys));
                let message = RefreshWhoHas {
                    who_has,
                    stimulus_id: message.stimulus_id,
                    ..RefreshWhoHas::default()
                };
                self.send_worker(id, message);
            }
            FromWorker::WorkerStatusChange(message) => self.status_changed(id, message.status),
            FromWorker::Reschedule(message) => {
                if let Some(task) = self.by_key.get(&message.key).copied()
                    && matches!(self.tasks[task].stage, Stage::Processing(on) if on == id)
                {
                    self.unassign(task);
                    self.make_ready(task);
                }
            }
            FromWorker::LongRunning(message) => {
                if let Some(task) = self.processed(id, &message.key, message.run_id)
                    && let Some(worker) = self.workers.get_mut(&id)
                {
                    worker.long_running.insert(task);
                    self.todo.open.insert(id);
                }
            }
            // The scheduler never steals from workers: tasks that cannot start
            // soon wait here.
            FromWorker::StealResponse(_) | FromWorker::KeepAlive(_) => {}
            FromWorker::CloseStream(_) => worker.is_leaving = true,
            FromWorker::LogEvent(message) => {
                let notice = Notice::Event {
                    peer: worker.address.clone(),
                    topic: message.topic,
                    message: message.msg,
                };
                self.notice(notice);
            }
            FromWorker::Unknown(unknown) => {
                let notice = Notice::UnknownOp {
                    peer: worker.address.clone(),
                    op: unknown.op,
                };
                self.notice(notice);
            }
        }
        self.settle();
    }

    /// Submits a client's tasks.
    pub fn submit(&mut self, client: ClientId, submission: Submission) {
        self.here("update-graph");
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
                generation: self.generation,
                order: task.order,
            };
            let run_spec = RunSpec {
                payload: task.run_spec,
                demands: Arc::clone(&demands),
            };
            let id = self.insert_task(task.key, Some(run_spec), priority);
            for dependency in &dependencies {
                self.tasks[*dependency].dependents.insert(id);
            }
            let new = &mut self.tasks[id];
            new.dependencies = dependencies;
            new.retries = retries;
            // It may be unneeded.
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
    pub fn refuse(&mut self, client: ClientId, refusal: &Refusal) {
        for key in &refusal.keys {
            self.send_client(client, erred(key, &refusal.failure));
        }
    }

    /// Registers data on workers; `client` holds it, if registered.
    pub fn update_data(
        &mut self,
        client: Option<&str>,
        who_has: &[(Key, Vec<String>)],
        nbytes: &[(Key, u64)],
    ) {
        self.here("update-data");
        let client = client.and_then(|name| self.by_name.get(name).copied());
        let nbytes: HashMap<&Key, u64> = nbytes.iter().map(|(key, len)| (key, *len)).collect();
        for (key, addresses) in who_has {
            let holders = addresses.iter();
            let holders: Vec<WorkerId> = holders
                .filter_map(|address| self.by_address.get(address).copied())
                .collect();
            if holders.is_empty() {
                continue;
            }
            let id = match self.by_key.get(key) {
                Some(id) => *id,
                None => self.insert_task(key.clone(), None, Priority::default()),
            };
            if let Some(client) = client {
                self.want(client, id);
                if matches!(self.tasks[id].stage, Stage::Memory) {
                    self.report(client, key);
                }
            }
            let nbytes = nbytes.get(key).copied().unwrap_or(0);
            for holder in holders {
                self.tasks[id].nbytes = match self.tasks[id].stage {
                    Stage::Memory => self.tasks[id].nbytes,
                    _ => nbytes,
                };
                self.in_memory(id, holder);
            }
            // It may be unneeded.
            self.todo.unneeded.push(id);
        }
        self.settle();
    }

    /// Handles a report that a worker lacks a result that it should have.
    pub fn missing_data(&mut self, key: &Key, worker: &str) {
        self.here("missing-data");
        let worker = self.by_address.get(worker).copied();
        if let (Some(worker), Some(task)) = (worker, self.by_key.get(key).copied()) {
            self.remove_replica(worker, task);
        }
        self.settle();
    }

    /// Cancels pending deletions of these keys at a worker, which is about to get
    /// data under them.
    pub fn forget_deletions<'k>(&mut self, keys: impl IntoIterator<Item = &'k Key>, worker: &str) {
        if let Some(worker) = self.worker_at(worker) {
            for key in keys {
                worker.deletions.remove(key);
            }
        }
    }

    /// Retries failed tasks, and the failed tasks that they depend on. Returns
    /// those of the keys that had failed.
    pub fn retry(&mut self, keys: &[Key]) -> Vec<Key> {
        self.here("client-retry");
        let mut retried = Vec::new();
        let mut failed = Vec::new();
        for key in keys {
            if let Some(id) = self.by_key.get(key)
                && matches!(self.tasks[*id].stage, Stage::Erred(_))
            {
                retried.push(key.clone());
                failed.push(*id);
            }
        }
        let mut all = BTreeSet::new();
        while let Some(id) = failed.pop() {
            if matches!(self.tasks[id].stage, Stage::Erred(_)) && all.insert(id) {
                failed.extend(&self.tasks[id].dependencies);
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
        retried
    }

    /// Starts retiring a worker: it gets no more tasks, and other workers copy
    /// what only it has. Returns `false` if there is no such worker, or none that
    /// can take the copies.
    pub fn retire(&mut self, address: &str) -> bool {
        self.here("retire-workers");
        let Some(id) = self.by_address.get(address).copied() else {
            return false;
        };
        let stimulus_id = "retire-workers";
        let message = WorkerStatusChange {
            status: WorkerStatus::ClosingGracefully,
            stimulus_id: stimulus_id.to_owned(),
            ..WorkerStatusChange::default()
        };
        self.send_worker(id, message);
        self.status_changed(id, WorkerStatus::ClosingGracefully);
        self.settle();
        self.copy_elsewhere(address)
    }

    /// Cancels the retirement of a worker.
    pub(super) fn cancel_retirement(&mut self, address: &str) {
        self.here("retire-workers");
        if let Some(id) = self.by_address.get(address).copied() {
            let message = WorkerStatusChange {
                status: WorkerStatus::Running,
                stimulus_id: "retire-workers".to_owned(),
                ..WorkerStatusChange::default()
            };
            self.send_worker(id, message);
            self.status_changed(id, WorkerStatus::Running);
            if let Some(worker) = self.workers.get_mut(&id) {
                worker.is_leaving = false;
            }
            self.settle();
        }
    }

    /// Makes others fetch what only this worker has. Returns `false` if there is
    /// such data but no worker to take it.
    pub(super) fn copy_elsewhere(&mut self, address: &str) -> bool {
        let Some(id) = self.by_address.get(address).copied() else {
            return false;
        };
        let mut copies: BTreeMap<WorkerId, AcquireReplicas> = BTreeMap::new();
        let running = self.workers.iter().filter(|(_, worker)| worker.is_running);
        let mut others: Vec<WorkerId> = running.map(|(id, _)| *id).collect();
        let only_here = self.workers[&id].has.iter().map(|id| &self.tasks[*id]);
        let mut only_here = only_here.filter(|task| task.who_has.len() == 1).peekable();
        if only_here.peek().is_none() {
            return true;
        }
        if others.is_empty() {
            return false;
        }
        // A worker that fails to do so is not the only one asked next time.
        let start = choose::next(&mut self.random) % others.len() as u64;
        others.rotate_left(usize::try_from(start).unwrap_or_default());
        for (task, other) in only_here.zip(others.iter().cycle()) {
            let message = copies.entry(*other).or_default();
            let holder = vec![address.to_owned()];
            message.who_has.push((task.key.clone(), holder));
            let nbytes = message.nbytes.get_or_insert_default();
            nbytes.push((task.key.clone(), task.nbytes));
        }
        for (other, mut message) in copies {
            "retire-workers".clone_into(&mut message.stimulus_id);
            self.send_worker(other, message);
        }
        true
    }

    /// Whether a retiring worker can leave: others have copies of its data. Its
    /// unfinished tasks are run again elsewhere.
    pub fn is_retired(&self, address: &str) -> bool {
        self.has_retired(address, &mut None)
    }

    /// Like [`is_retired`](Self::is_retired), for repeated calls. `only_there`
    /// keeps the keys without other copies from the first call on, as in Dask, so
    /// that not everything is checked each time.
    pub(super) fn has_retired(&self, address: &str, only_there: &mut Option<Vec<Key>>) -> bool {
        let Some(id) = self.by_address.get(address) else {
            return true;
        };
        let worker = &self.workers[id];
        let is_only_there = |task: &TaskId| {
            step();
            self.tasks[*task].who_has == [*id]
        };
        let left = only_there.get_or_insert_with(|| {
            let left = worker.has.iter().filter(|task| is_only_there(task));
            left.map(|task| self.tasks[*task].key.clone()).collect()
        });
        while let Some(key) = left.last() {
            if self.by_key.get(key).is_some_and(is_only_there) {
                return false;
            }
            left.pop();
        }
        true
    }

    /// Removes a worker.
    pub fn remove_retired(&mut self, address: &str, close: bool) {
        self.here("retire-workers");
        if let Some(id) = self.by_address.get(address).copied() {
            if close {
                self.send_close(id, "retire-workers");
            }
            self.drop_worker(id, true, "retired");
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

const MAX_THREADS: u32 = 1 << 16;

/// Maximum bytes of tasks sent to a worker before they have been written.
const WINDOW: usize = 64 << 20;

fn free_keys(keys: Keys, why: &str) -> ToWorker {
    let stimulus_id = why.to_owned();
    let extra = Vec::new();
    ToWorker::FreeKeys(FreeKeys {
        keys,
        stimulus_id,
        extra,
    })
}

fn erred(key: &Key, failure: &Failure) -> TaskErredForClient {
    TaskErredForClient {
        key: key.clone(),
        exception: failure.exception.clone(),
        // Python clients expect the field.
        traceback: Some(failure.traceback.clone().unwrap_or_default()),
        ..TaskErredForClient::default()
    }
}

//! The scheduler as a state machine: what happens goes in, messages come out.
//!
//! It does no I/O, has no clock of its own and decides the same whenever the same
//! happens in the same order, so that each step can be looked at alone. The
//! steps are those of Dask's "Journey of a Task".
//!
//! # Where tasks are
//!
//! | stage | the task | leaves |
//! | --- | --- | --- |
//! | released | is known, and nobody needs it now | when somebody does |
//! | waiting | needs results that are not there yet | when the last of them is |
//! | ready | may run; only while an event is handled | to a worker at once |
//! | no-worker | may run, and no worker may run it | when one comes |
//! | queued | waits on the stack of its worker, here | when that has a slot |
//! | processing | has been sent to its worker | with its result |
//! | memory | has a result, on workers | when nobody needs it, or all of them are gone |
//! | erred | has failed | when nobody wants it, or it is tried again |
//!
//! # How much a worker is sent
//!
//! A worker with *n* threads gets *n* tasks, and one more, so that there is one to
//! begin with while the scheduler hears of the one that is done. Where tasks take
//! less than two milliseconds that is not enough to keep it busy: then it gets as
//! much work ahead as takes it two milliseconds, at most 16 tasks for each
//! thread. All others stay here, from where a worker that has nothing to do takes
//! them over.

use core::fmt;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use daskwire_comm::Address;

use super::step;
use super::submission::{Dependency, Failure, Refusal, Resources, Submission, text};
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

/// A client that has registered. No two have the same, ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(u64);

/// A worker that has registered. No two have the same, ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(u64);

/// What holds tasks that nobody waits for, until they are done.
const FIRE_AND_FORGET: (ClientId, &str) = (ClientId(0), "fire-and-forget");

/// Something that is to be done because of what happened.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Output {
    /// A message for the stream of a client.
    Client(ClientId, ToClient),
    /// A message for the stream of a worker.
    Worker(WorkerId, ToWorker),
    /// The stream of a client ends after what was to be said.
    EndClient(ClientId),
    /// The stream of a worker ends after what was to be said.
    EndWorker(WorkerId),
    /// As soon as the messages for a worker so far have been written,
    /// [`State::drained`] is to be called. Until then it gets no more tasks.
    NotifyDrained(WorkerId),
    /// Something that people may want to know.
    Notice(Notice),
    /// A step of a task; only after [`State::watch_tasks`].
    Task(TaskEvent),
}

/// Something that people may want to know.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Notice {
    /// A peer said something that is not known here; it was passed over.
    UnknownOp {
        /// The client or worker.
        peer: String,
        /// What it said.
        op: String,
    },
    /// A peer said something that makes no sense, and was not heeded.
    Ignored {
        /// The client or worker.
        peer: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A peer did not read what it was sent, and its comm was closed.
    NotReading {
        /// The client or worker.
        peer: String,
        /// How many bytes of messages may wait for it.
        limit: usize,
    },
    /// The state machine panicked: the scheduler ends.
    Panicked {
        /// What the panic said.
        reason: String,
    },
    /// A worker wants something to be logged.
    Event {
        /// The worker.
        peer: String,
        /// Under which topic.
        topic: Value,
        /// What.
        message: Value,
    },
    /// A worker has joined.
    WorkerJoined {
        /// Its address.
        worker: String,
    },
    /// A worker is gone.
    WorkerLeft {
        /// Its address.
        worker: String,
        /// Why, as far as it is known.
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

/// What can be chosen about scheduling.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Decides where nothing else does.
    pub seed: u64,
    /// How often workers are told what they may delete: 500 ms.
    pub deletion_interval: Duration,
    /// How many workers a task may take down before it fails: 3.
    pub allowed_failures: u32,
    /// How long a worker may be silent; for ever if `None`. Never less than ten
    /// of its heartbeats. Dask has 5 minutes.
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

/// A scheduler without its connections. [`Scheduler`](super::Scheduler) has both.
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
    /// Seconds since 1970, for the story.
    unix_time: f64,
    /// Why that happens which happens now.
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
    /// How many tasks wait on stacks.
    queued_count: usize,
    no_worker: Queue,
    outputs: Vec<Output>,
    /// What is left to be looked at before an event has been handled.
    todo: Todo,
    /// The result over which it panics, half way through.
    #[cfg(test)]
    pub(super) panics_over: Option<Key>,
}

#[derive(Debug, Default)]
struct Todo {
    failed: Vec<(TaskId, Arc<Failure>)>,
    /// Those that can never be computed.
    unrunnable: Vec<TaskId>,
    /// Those that nobody may need any more.
    unneeded: Vec<TaskId>,
    ready: Queue,
    /// Workers that may take another task.
    open: BTreeSet<WorkerId>,
}

// What happens.
impl State {
    /// One without clients, workers, and tasks.
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

    /// Something is about to happen, so many seconds after 1970. Only what
    /// [`story`](Self::story) tells depends on it.
    pub const fn set_unix_time(&mut self, unix_time: f64) {
        self.unix_time = unix_time;
    }

    /// Turns [`Output::Task`] on or off. Default: off.
    pub const fn watch_tasks(&mut self, is_watched: bool) {
        self.is_watched = is_watched;
    }

    /// Something happens here.
    fn here(&mut self, what: &'static str) {
        self.stimulus = Stimulus::here(what, self.unix_time);
    }

    /// What is to be done because of what happened, each once, in order.
    pub fn outputs(&mut self) -> impl Iterator<Item = Output> {
        self.outputs.drain(..)
    }

    /// Time has passed: so much in all. Deletes what is due, and lets workers go
    /// that have been silent for too long.
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
            self.say_close(id, "worker-ttl");
            self.drop_worker(id, false, "it was silent for too long");
        }
    }

    /// A client has come; it gets `stream-start`. One of the same name is taken for
    /// what was left of it, and goes.
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
        self.tell(id, start);
        id
    }

    fn insert_client(&mut self, id: ClientId, name: &str) {
        let name: Arc<str> = name.into();
        self.by_name.insert(Arc::clone(&name), id);
        let wants = BTreeSet::new();
        self.clients.insert(id, Client { name, wants });
    }

    /// A client is gone: what only it wanted is released.
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

    /// A worker has come.
    ///
    /// # Errors
    ///
    /// Why it is refused: its address or its name is taken.
    pub fn add_worker(&mut self, worker: &RegisterWorker) -> Result<WorkerId, String> {
        self.here("add-worker");
        let address = worker.address.clone();
        if self.by_address.contains_key(&address) {
            return Err(format!("worker already exists {address}"));
        }
        let name = match &worker.name {
            Value::None => address.clone(),
            name => text(name).ok_or_else(|| format!("the name {name} is no text"))?,
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
            self.welcome(id);
        }
        self.settle();
        Ok(id)
    }

    /// The stream of a worker has ended. What it worked on goes to others; results
    /// that only it had are computed again, if anybody needs them.
    pub fn remove_worker(&mut self, id: WorkerId) {
        self.here("remove-worker");
        let is_leaving = self
            .workers
            .get(&id)
            .is_some_and(|worker| worker.is_leaving);
        self.drop_worker(id, is_leaving, "its stream has ended");
    }

    /// Everything has been written that was to be sent to a worker, as
    /// [`Output::NotifyDrained`] asked.
    pub fn drained(&mut self, id: WorkerId) {
        self.here("drained");
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.unwritten_len = 0;
            self.todo.open.insert(id);
            self.settle();
        }
    }

    /// A worker says how it is; `false` if there is none at this address.
    pub fn heartbeat(&mut self, address: &str, metrics: Value) -> bool {
        let now = self.now;
        let Some(worker) = self.worker_at(address) else {
            return false;
        };
        worker.last_seen = now;
        worker.about.metrics = metrics;
        true
    }

    /// How often workers are to say how they are, in seconds: the less often, the
    /// more there are.
    pub fn heartbeat_interval(&self) -> f64 {
        match u32::try_from(self.workers.len()).unwrap_or(u32::MAX) {
            0..=10 => 0.5,
            11..50 => 1.0,
            50..200 => 2.0,
            count => f64::from(count) / 200.0 + 1.0,
        }
    }

    /// A client has said something on its stream.
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
                // Ten times what workers have.
                let interval = 10.0 * self.heartbeat_interval();
                let message = AdjustHeartbeatInterval {
                    interval,
                    ..AdjustHeartbeatInterval::default()
                };
                self.tell(id, message);
            }
            // The stream ends soon, and with it all that the client holds.
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

    /// A worker has said something on its stream.
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
                            // Clients in Python would break over it.
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
                self.order(id, message);
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
            // Nothing is ever asked back from a worker: what it may not begin
            // soon waits here.
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

    /// A client submits tasks.
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
        // By their index in the graph; none where something is not known that they
        // depend on. Those that they depend on come before them.
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
            // Nobody may want it.
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

    /// A client submits what cannot be understood.
    pub fn refuse(&mut self, client: ClientId, refusal: &Refusal) {
        for key in &refusal.keys {
            self.tell(client, erred(key, &refusal.failure));
        }
    }

    /// Data has been put on workers; `client` wants it, if it is there.
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
            // Nobody may want it.
            self.todo.unneeded.push(id);
        }
        self.settle();
    }

    /// A worker turned out not to have a result that it should have.
    pub fn missing_data(&mut self, key: &Key, worker: &str) {
        self.here("missing-data");
        let worker = self.by_address.get(worker).copied();
        if let (Some(worker), Some(task)) = (worker, self.by_key.get(key).copied()) {
            self.remove_replica(worker, task);
        }
        self.settle();
    }

    /// Deletions of these keys at these workers are not to be sent any more: the
    /// workers are about to get data under them.
    pub fn forget_deletions<'k>(&mut self, keys: impl IntoIterator<Item = &'k Key>, worker: &str) {
        if let Some(worker) = self.worker_at(worker) {
            for key in keys {
                worker.deletions.remove(key);
            }
        }
    }

    /// Tries failed tasks again, and those that they failed over. Returns those of
    /// the keys that had failed.
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
                self.tell(client, message.clone());
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

    /// A worker is to leave in peace: it gets no more tasks, and copies of what only
    /// it has are made elsewhere. `false` if there is none at this address, or none
    /// that could take these copies.
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
        self.order(id, message);
        self.status_changed(id, WorkerStatus::ClosingGracefully);
        self.settle();
        self.copy_away(address)
    }

    /// A worker that was to leave stays.
    pub(super) fn keep(&mut self, address: &str) {
        self.here("retire-workers");
        if let Some(id) = self.by_address.get(address).copied() {
            let message = WorkerStatusChange {
                status: WorkerStatus::Running,
                stimulus_id: "retire-workers".to_owned(),
                ..WorkerStatusChange::default()
            };
            self.order(id, message);
            self.status_changed(id, WorkerStatus::Running);
            if let Some(worker) = self.workers.get_mut(&id) {
                worker.is_leaving = false;
            }
            self.settle();
        }
    }

    /// Lets others fetch what only this worker has; `false` if there is something and
    /// no other takes data.
    pub(super) fn copy_away(&mut self, address: &str) -> bool {
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
        // One that does not do it is not asked alone again.
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
            self.order(other, message);
        }
        true
    }

    /// Whether a worker that is to leave may: others have what it has. What it still
    /// works on, they do again.
    pub fn is_retired(&self, address: &str) -> bool {
        self.has_retired(address, &mut None)
    }

    /// The same, asked again and again: `only_there` keeps what no other has of what
    /// no other had when it was first asked, as Dask does, so that not everything is
    /// looked at each time.
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

    /// Lets a worker go.
    pub fn dismiss(&mut self, address: &str, close: bool) {
        if let Some(id) = self.by_address.get(address).copied() {
            if close {
                self.say_close(id, "retire-workers");
            }
            self.drop_worker(id, true, "it was let go");
        }
    }

    /// The end: workers are told to leave, and clients that the stream is over.
    pub fn close(&mut self) {
        for id in self.workers.keys().copied().collect::<Vec<_>>() {
            self.say_close(id, "scheduler-close");
            self.outputs.push(Output::EndWorker(id));
        }
        for id in self.clients.keys().copied().collect::<Vec<_>>() {
            self.tell(id, CloseStream::default());
            self.outputs.push(Output::EndClient(id));
        }
    }
}

const MAX_THREADS: u32 = 1 << 16;

/// How many bytes of tasks are sent to a worker before they have been written.
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
        // Clients in Python expect the field.
        traceback: Some(failure.traceback.clone().unwrap_or_default()),
        ..TaskErredForClient::default()
    }
}

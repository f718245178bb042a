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

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use daskwire_tcp::Address;

use super::submission::{Demands, Dependency, Failure, Refusal, Resources, Submission, text};
use crate::error::killed_worker;
use crate::protocol::{
    AcquireReplicas, AdjustHeartbeatInterval, CancelKeys, CancelledKeys, Close, CloseStream,
    ComputeTask, FreeKeys, FromClient, FromWorker, KeyInMemory, Keys, LostData, Nullable,
    RefreshWhoHas, RegisterWorker, RemoveReplicas, RemoveWorker, StreamStart, TaskErredForClient,
    TaskFinished, TaskRetried, ToClient, ToWorker, WorkerStatusChange,
};
use crate::{Key, Serialized, Value};

#[cfg(test)]
mod check;
pub(in crate::scheduler) mod choose;
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
    /// Something that people may want to know.
    Notice(Notice),
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

/// What can be chosen about scheduling.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Rules {
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

impl Default for Rules {
    fn default() -> Self {
        Self {
            seed: 0,
            deletion_interval: Duration::from_millis(500),
            allowed_failures: 3,
            worker_ttl: Some(Duration::from_secs(300)),
        }
    }
}

/// Which task is done first: the one with the lower value.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Priority {
    /// What the user said, the other way round.
    user: f64,
    /// The number of the submission.
    generation: u64,
    /// The place in its order.
    order: i64,
}

impl Eq for Priority {}

impl PartialOrd for Priority {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Priority {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        let rest = |priority: &Self| (priority.generation, priority.order);
        (self.user.total_cmp(&other.user)).then_with(|| rest(self).cmp(&rest(other)))
    }
}

/// A place in the table of tasks; another task may get it later.
type TaskId = u32;

/// Tasks in the order in which they are to be done.
type Queue = BTreeSet<(Priority, TaskId)>;

#[derive(Clone, Debug)]
enum Stage {
    Released,
    Waiting,
    Ready,
    NoWorker,
    Queued(WorkerId),
    Processing(WorkerId),
    Memory,
    Erred(Arc<Failure>),
}

impl Stage {
    /// Whether the task is on its way to a result, and so needs those that it
    /// depends on.
    const fn is_active(&self) -> bool {
        matches!(
            self,
            Self::Waiting | Self::Ready | Self::NoWorker | Self::Queued(_) | Self::Processing(_)
        )
    }

    /// As Dask calls it.
    const fn name(&self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Waiting => "waiting",
            Self::Ready | Self::NoWorker => "no-worker",
            Self::Queued(_) => "queued",
            Self::Processing(_) => "processing",
            Self::Memory => "memory",
            Self::Erred(_) => "erred",
        }
    }
}

#[derive(Debug)]
struct Task {
    key: Key,
    /// How to compute it; data that was scattered has none.
    recipe: Option<Recipe>,
    priority: Priority,
    stage: Stage,
    dependencies: Vec<TaskId>,
    dependents: BTreeSet<TaskId>,
    /// How many dependents are active.
    waiter_count: u32,
    /// How many dependencies are not in memory; counted while it is waiting.
    missing_count: u32,
    /// In order.
    wanted_by: Vec<ClientId>,
    /// In order.
    who_has: Vec<WorkerId>,
    nbytes: u64,
    class: Option<Bytes>,
    retries: u32,
    /// How many workers were lost while they had it.
    kill_count: u32,
    run_id: i64,
    /// Whether something that it was computed from is forgotten, so that it cannot
    /// be computed again.
    is_orphan: bool,
}

#[derive(Clone, Debug)]
struct Recipe {
    run_spec: Serialized,
    demands: Arc<Demands>,
}

/// Tasks by number; the place of one that is gone is taken by the next that comes.
#[derive(Debug, Default)]
struct Table {
    tasks: Vec<Option<Task>>,
    free: Vec<TaskId>,
}

impl Table {
    fn insert(&mut self, task: Task) -> TaskId {
        match self.free.pop() {
            Some(id) => {
                self.tasks[id as usize] = Some(task);
                id
            }
            None => {
                self.tasks.push(Some(task));
                u32::try_from(self.tasks.len() - 1).expect("so many tasks fit into no memory")
            }
        }
    }

    fn remove(&mut self, id: TaskId) -> Option<Task> {
        let task = self.tasks.get_mut(id as usize)?.take()?;
        self.free.push(id);
        Some(task)
    }

    fn get(&self, id: TaskId) -> Option<&Task> {
        self.tasks.get(id as usize)?.as_ref()
    }

    fn iter(&self) -> impl Iterator<Item = &Task> {
        self.tasks.iter().flatten()
    }
}

/// Numbers of tasks are kept only as long as the tasks are there.
impl core::ops::Index<TaskId> for Table {
    type Output = Task;

    fn index(&self, id: TaskId) -> &Task {
        self.get(id).expect("the task is there")
    }
}

impl core::ops::IndexMut<TaskId> for Table {
    fn index_mut(&mut self, id: TaskId) -> &mut Task {
        let task = self.tasks.get_mut(id as usize).and_then(Option::as_mut);
        task.expect("the task is there")
    }
}

#[derive(Debug)]
struct Client {
    name: Arc<str>,
    wants: BTreeSet<TaskId>,
}

#[derive(Debug)]
struct Worker {
    address: String,
    /// As text, which restrictions have.
    name: String,
    host: String,
    about: About,
    is_running: bool,
    is_leaving: bool,
    thread_count: u32,
    resources: Resources,
    used: HashMap<String, f64>,
    has: BTreeSet<TaskId>,
    nbytes: u128,
    /// Those that were sent to it.
    processing: BTreeSet<TaskId>,
    /// Those of them that have left its threads.
    long_running: BTreeSet<TaskId>,
    /// The stack of those that wait for a slot, by the resources that they take.
    stack: BTreeMap<Resources, Queue>,
    stack_count: usize,
    /// Seconds that tasks take it, the last ones above all.
    pace: f64,
    /// Results that it may delete.
    deletions: BTreeSet<Key>,
    last_seen: Duration,
}

/// What a worker said of itself, for those who ask.
#[derive(Clone, Debug)]
struct About {
    name: Value,
    status: String,
    server_id: Option<String>,
    memory_limit: Option<u64>,
    local_directory: String,
    services: Value,
    nanny: Option<String>,
    metrics: Value,
}

impl Worker {
    /// How many tasks take one of its threads, or wait there for one.
    fn busy_count(&self) -> usize {
        self.processing.len() - self.long_running.len()
    }

    /// How many it is sent at most.
    fn slot_count(&self) -> usize {
        /// Seconds of work that are sent ahead.
        const AHEAD: f64 = 0.002;
        const MOST: f64 = 16.0;
        let threads = self.thread_count as usize;
        if self.pace <= 0.0 {
            return threads + 1;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 0 to 16"
        )]
        let ahead = (AHEAD / self.pace).min(MOST) as usize;
        threads + (ahead * threads).max(1)
    }

    fn is_idle(&self) -> bool {
        self.is_running && self.stack_count == 0 && self.busy_count() < self.thread_count as usize
    }

    fn push(&mut self, resources: &Resources, priority: Priority, id: TaskId) {
        match self.stack.get_mut(resources) {
            Some(queue) => {
                queue.insert((priority, id));
            }
            None => {
                let queue = Queue::from([(priority, id)]);
                self.stack.insert(resources.clone(), queue);
            }
        }
        self.stack_count += 1;
    }

    fn remove(&mut self, resources: &Resources, priority: Priority, id: TaskId) {
        if let Some(queue) = self.stack.get_mut(resources)
            && queue.remove(&(priority, id))
        {
            self.stack_count -= 1;
            if queue.is_empty() {
                self.stack.remove(resources);
            }
        }
    }

    /// Whether it has these resources now.
    fn has_left(&self, resources: &Resources) -> bool {
        resources.0.iter().all(|(name, amount)| {
            let used = self.used.get(name).copied().unwrap_or(0.0);
            // Sums of fractions may be off by a little.
            used + amount <= self.resources.get(name) * (1.0 + 1e-9)
        })
    }

    /// The first of its stack whose resources are there now.
    fn next(&self) -> Option<TaskId> {
        let stacks = self.stack.iter();
        let stacks = stacks.filter(|(resources, _)| self.has_left(resources));
        let first = stacks.filter_map(|(_, queue)| queue.first()).min();
        first.map(|(_, id)| *id)
    }

    fn take_resources(&mut self, resources: &Resources) {
        for (name, amount) in &resources.0 {
            *self.used.entry(name.clone()).or_insert(0.0) += amount;
        }
    }

    fn give_resources(&mut self, resources: &Resources) {
        if self.processing.is_empty() {
            // Nor is anything left of what rounding adds up to.
            self.used.clear();
        }
        for (name, amount) in &resources.0 {
            if let Some(used) = self.used.get_mut(name) {
                *used = (*used - amount).max(0.0);
            }
        }
    }
}

/// A scheduler without its connections. [`Scheduler`](super::Scheduler) has both.
///
/// ```
/// use daskwire_peer::graph::{Graph, Task};
/// use daskwire_peer::protocol::{RegisterWorker, ToWorker, UpdateGraph};
/// use daskwire_peer::scheduler::{Output, Rules, State};
///
/// let mut state = State::new(Rules::default());
/// let worker = RegisterWorker { address: "tcp://10.0.0.7:1".into(), nthreads: 1,
///     status: "running".into(), ..RegisterWorker::default() };
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
    rules: Rules,
    now: Duration,
    last_deletion: Duration,
    random: u64,
    tasks: Table,
    by_key: HashMap<Key, TaskId>,
    clients: BTreeMap<ClientId, Client>,
    by_name: HashMap<Arc<str>, ClientId>,
    workers: BTreeMap<WorkerId, Worker>,
    by_address: HashMap<String, WorkerId>,
    last_id: u64,
    generation: u64,
    run_count: i64,
    /// How many tasks wait on stacks.
    queued_count: usize,
    no_worker: Queue,
    outputs: Vec<Output>,
    /// What is left to be looked at before an event has been handled.
    todo: Todo,
}

#[derive(Debug, Default)]
struct Todo {
    failed: Vec<(TaskId, Arc<Failure>)>,
    /// Those that can never be computed.
    doomed: Vec<TaskId>,
    /// Those that nobody may need any more.
    unneeded: Vec<TaskId>,
    ready: Queue,
    /// Workers that may take another task.
    open: BTreeSet<WorkerId>,
}

// What happens.
impl State {
    /// One without clients, workers, and tasks.
    pub fn new(rules: Rules) -> Self {
        Self {
            random: rules.seed,
            rules,
            now: Duration::ZERO,
            last_deletion: Duration::ZERO,
            tasks: Table::default(),
            by_key: HashMap::new(),
            clients: BTreeMap::new(),
            by_name: HashMap::new(),
            workers: BTreeMap::new(),
            by_address: HashMap::new(),
            last_id: 0,
            generation: 0,
            run_count: 0,
            queued_count: 0,
            no_worker: Queue::new(),
            outputs: Vec::new(),
            todo: Todo::default(),
        }
    }

    /// What is to be done because of what happened, each once, in order.
    pub fn outputs(&mut self) -> impl Iterator<Item = Output> {
        self.outputs.drain(..)
    }

    /// Time has passed: so much in all. Deletes what is due, and lets workers go
    /// that have been silent for too long.
    pub fn advance(&mut self, now: Duration) {
        self.now = self.now.max(now);
        if self.now - self.last_deletion >= self.rules.deletion_interval {
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
        let Some(ttl) = self.rules.worker_ttl else {
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
        let address = worker.address.clone();
        if self.by_address.contains_key(&address) {
            return Err(format!("worker already exists {address}"));
        }
        let name = match &worker.name {
            Value::None => address.clone(),
            name => text(name).ok_or_else(|| format!("the name {name} is no text"))?,
        };
        if self.workers.values().any(|other| other.name == name) {
            return Err(format!("name taken, {name}"));
        }
        self.last_id += 1;
        let id = WorkerId(self.last_id);
        let host = address.parse::<Address>();
        let is_running = worker.status == "running";
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
                .unwrap_or(MOST_THREADS)
                .clamp(1, MOST_THREADS),
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
        let is_leaving = self
            .workers
            .get(&id)
            .is_some_and(|worker| worker.is_leaving);
        self.drop_worker(id, is_leaving, "its stream has ended");
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
        match message {
            FromClient::UpdateGraph(message) => match Submission::read(message) {
                Ok(submission) => self.submit(id, submission),
                Err(refusal) => self.refuse(id, &refusal),
            },
            FromClient::ClientDesiresKeys(message) => {
                if let Some(id) = self.client_named(id, message.client) {
                    self.desire(id, &message.keys);
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
            let recipe = Recipe {
                run_spec: task.run_spec,
                demands: Arc::clone(&demands),
            };
            let id = self.insert_task(task.key, Some(recipe), priority);
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
            self.tasks[*id].stage = Stage::Released;
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
    /// it has are made elsewhere. `false` if there is none at this address.
    pub fn retire(&mut self, address: &str) -> bool {
        let Some(id) = self.by_address.get(address).copied() else {
            return false;
        };
        let stimulus_id = "retire-workers";
        let message = WorkerStatusChange {
            status: "closing_gracefully".to_owned(),
            stimulus_id: stimulus_id.to_owned(),
            ..WorkerStatusChange::default()
        };
        self.order(id, message);
        self.status_changed(id, "closing_gracefully".to_owned());
        self.settle();
        type Copies = (Vec<(Key, Vec<String>)>, Vec<(Key, u64)>);
        let mut copies: BTreeMap<WorkerId, Copies> = BTreeMap::new();
        let running = self.workers.iter().filter(|(_, worker)| worker.is_running);
        let others: Vec<WorkerId> = running.map(|(id, _)| *id).collect();
        let only_here = self.workers[&id].has.iter().map(|id| &self.tasks[*id]);
        let only_here = only_here.filter(|task| task.who_has.len() == 1);
        for (task, other) in only_here.zip(others.iter().cycle()) {
            let (who_has, nbytes) = copies.entry(*other).or_default();
            who_has.push((task.key.clone(), vec![address.to_owned()]));
            nbytes.push((task.key.clone(), task.nbytes));
        }
        for (other, (who_has, nbytes)) in copies {
            let message = AcquireReplicas {
                who_has,
                nbytes: Some(nbytes),
                stimulus_id: stimulus_id.to_owned(),
                ..AcquireReplicas::default()
            };
            self.order(other, message);
        }
        true
    }

    /// Whether a worker that is to leave may: it works on nothing, and others have
    /// what it has.
    pub fn is_retired(&self, address: &str) -> bool {
        let Some(id) = self.by_address.get(address) else {
            return true;
        };
        let worker = &self.workers[id];
        let only_here = |id: &TaskId| self.tasks[*id].who_has.len() == 1;
        worker.processing.is_empty() && !worker.has.iter().any(only_here)
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

const MOST_THREADS: u32 = 1 << 16;

impl Default for Priority {
    fn default() -> Self {
        Self {
            user: 0.0,
            generation: 0,
            order: 0,
        }
    }
}

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

// What is asked.
impl State {
    /// Where results are; of all that are known if `keys` is `None`.
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

    /// What workers have; all of them if `workers` is `None`.
    pub fn has_what(&self, workers: Option<&[String]>) -> Vec<(String, Vec<Key>)> {
        self.of_workers(workers, |worker| {
            let keys = worker.has.iter().map(|id| self.tasks[*id].key.clone());
            keys.collect()
        })
    }

    /// How many threads workers have; all of them if `workers` is `None`.
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

    /// How many bytes results have; all that are in memory if `keys` is `None`.
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

    /// In which stage a task is, as Dask calls it; `None` if it is not known.
    pub fn status(&self, key: &Key) -> Option<&'static str> {
        let id = self.by_key.get(key)?;
        Some(self.tasks[*id].stage.name())
    }

    /// How many tasks are known.
    pub fn task_count(&self) -> usize {
        self.by_key.len()
    }

    /// How many workers are there.
    pub fn worker_count(&self) -> usize {
        self.workers.len()
    }

    /// All threads of all workers.
    pub fn thread_count(&self) -> u64 {
        let counts = self.workers.values().map(|worker| worker.thread_count);
        counts.map(u64::from).sum()
    }

    /// The memory that workers may use in all, in bytes.
    pub fn memory_limit(&self) -> u64 {
        let limits = self
            .workers
            .values()
            .filter_map(|worker| worker.about.memory_limit);
        limits.fold(0, u64::saturating_add)
    }

    /// What is known of the first `count` workers, or all of them, by address, as
    /// `identity` says it.
    pub fn identities(&self, count: Option<usize>) -> Vec<(String, Value)> {
        let workers = self.workers.values().take(count.unwrap_or(usize::MAX));
        let number = |number: Option<u64>| number.map_or(Value::None, Value::from);
        let text = |text: &Option<String>| text.clone().map_or(Value::None, Value::from);
        workers
            .map(|worker| {
                let about = &worker.about;
                let resources = worker.resources.0.iter();
                let resources = resources.map(|(name, amount)| (name.clone(), *amount));
                let identity = Value::dict([
                    ("type", Value::from("Worker")),
                    ("id", text(&about.server_id)),
                    ("host", Value::from(worker.host.as_str())),
                    ("resources", Value::dict(resources)),
                    (
                        "local_directory",
                        Value::from(about.local_directory.as_str()),
                    ),
                    ("name", about.name.clone()),
                    ("nthreads", Value::from(worker.thread_count)),
                    ("memory_limit", number(about.memory_limit)),
                    ("last_seen", Value::from(worker.last_seen.as_secs_f64())),
                    ("services", about.services.clone()),
                    ("metrics", about.metrics.clone()),
                    ("status", Value::from(about.status.as_str())),
                    ("nanny", text(&about.nanny)),
                ]);
                (worker.address.clone(), identity)
            })
            .collect()
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
                let ids = addresses
                    .iter()
                    .filter_map(|address| self.by_address.get(address));
                ids.map(|id| pair(&self.workers[id])).collect()
            }
        }
    }
}

// Its parts.
impl State {
    fn tell(&mut self, client: ClientId, message: impl Into<ToClient>) {
        if client != FIRE_AND_FORGET.0 {
            self.outputs.push(Output::Client(client, message.into()));
        }
    }

    fn order(&mut self, worker: WorkerId, message: impl Into<ToWorker>) {
        self.outputs.push(Output::Worker(worker, message.into()));
    }

    fn notice(&mut self, notice: Notice) {
        self.outputs.push(Output::Notice(notice));
    }

    fn say_close(&mut self, worker: WorkerId, reason: &str) {
        let reason = Some(reason.to_owned());
        self.order(
            worker,
            Close {
                reason,
                extra: Vec::new(),
            },
        );
        self.order(worker, CloseStream::default());
    }

    fn worker_at(&mut self, address: &str) -> Option<&mut Worker> {
        let id = self.by_address.get(address)?;
        self.workers.get_mut(id)
    }

    fn client_name(&self, id: ClientId) -> String {
        let client = self.clients.get(&id);
        client.map_or_else(String::new, |client| client.name.to_string())
    }

    /// Whom a client speaks for.
    fn client_named(&mut self, id: ClientId, name: Option<String>) -> Option<ClientId> {
        let Some(name) = name else {
            return self.clients.contains_key(&id).then_some(id);
        };
        if let Some(named) = self.by_name.get(name.as_str()) {
            return Some(*named);
        }
        if name == FIRE_AND_FORGET.1 {
            self.insert_client(FIRE_AND_FORGET.0, &name);
            return Some(FIRE_AND_FORGET.0);
        }
        let notice = Notice::Ignored {
            peer: self.client_name(id),
            reason: format!("it speaks for {name}, which is not here"),
        };
        self.notice(notice);
        None
    }

    fn insert_task(&mut self, key: Key, recipe: Option<Recipe>, priority: Priority) -> TaskId {
        let id = self.tasks.insert(Task {
            key: key.clone(),
            recipe,
            priority,
            stage: Stage::Released,
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
            is_orphan: false,
        });
        self.by_key.insert(key, id);
        id
    }

    fn want(&mut self, client: ClientId, task: TaskId) {
        let wanted_by = &mut self.tasks[task].wanted_by;
        if let Err(place) = wanted_by.binary_search(&client)
            && let Some(client_state) = self.clients.get_mut(&client)
        {
            wanted_by.insert(place, client);
            client_state.wants.insert(task);
        }
    }

    fn release(&mut self, client: ClientId, task: TaskId) {
        let wanted_by = &mut self.tasks[task].wanted_by;
        if let Ok(place) = wanted_by.binary_search(&client) {
            wanted_by.remove(place);
            self.todo.unneeded.push(task);
            if let Some(client) = self.clients.get_mut(&client) {
                client.wants.remove(&task);
            }
        }
    }

    fn desire(&mut self, client: ClientId, keys: &[Key]) {
        for key in keys {
            if let Some(id) = self.by_key.get(key).copied() {
                self.want(client, id);
                if matches!(self.tasks[id].stage, Stage::Released) {
                    self.activate(id);
                }
                // It may be done already.
                self.todo.unneeded.push(id);
            }
            self.report(client, key);
        }
    }

    /// Tells a client what is known of a key, if there is something to tell.
    fn report(&mut self, client: ClientId, key: &Key) {
        let Some(id) = self.by_key.get(key) else {
            return self.cancelled(client, vec![key.clone()], "unknown key", None);
        };
        let task = &self.tasks[*id];
        match &task.stage {
            Stage::Memory => {
                let message = in_memory(task);
                self.tell(client, message);
            }
            Stage::Erred(failure) => {
                let message = erred(key, failure);
                self.tell(client, message);
            }
            _ => {}
        }
    }

    fn cancelled(&mut self, client: ClientId, keys: Vec<Key>, reason: &str, msg: Option<String>) {
        let reason = Some(reason.to_owned());
        let message = CancelledKeys {
            keys: Keys(keys),
            reason,
            msg,
            extra: Vec::new(),
        };
        self.tell(client, message);
    }

    /// Cancels keys and all that depends on them, as far as no other client wants it.
    fn cancel(&mut self, client: ClientId, message: &CancelKeys) {
        let known = message.keys.iter().filter_map(|key| self.by_key.get(key));
        let mut todo: Vec<TaskId> = known.copied().collect();
        let mut seen = BTreeSet::new();
        let mut cancelled: BTreeMap<ClientId, Vec<Key>> = BTreeMap::new();
        while let Some(id) = todo.pop() {
            if !seen.insert(id) {
                continue;
            }
            let task = &self.tasks[id];
            let key = task.key.clone();
            let only_this = task.wanted_by.iter().all(|other| *other == client);
            if message.force || only_this {
                todo.extend(&task.dependents);
            }
            let whose = match message.force {
                true => task.wanted_by.clone(),
                false => vec![client],
            };
            for client in whose {
                if self.tasks[id].wanted_by.binary_search(&client).is_ok() {
                    self.release(client, id);
                    cancelled.entry(client).or_default().push(key.clone());
                }
            }
        }
        for (client, keys) in cancelled {
            let reason = message.reason.0.as_deref().unwrap_or_default();
            self.cancelled(client, keys, reason, message.msg.0.clone());
        }
    }

    /// A worker takes tasks now.
    fn welcome(&mut self, id: WorkerId) {
        self.todo.open.insert(id);
        for (priority, task) in core::mem::take(&mut self.no_worker) {
            self.tasks[task].stage = Stage::Ready;
            self.todo.ready.insert((priority, task));
        }
    }

    fn status_changed(&mut self, id: WorkerId, status: String) {
        let Some(worker) = self.workers.get_mut(&id) else {
            return;
        };
        let was_running = worker.is_running;
        worker.is_running = status == "running";
        worker.is_leaving |= status.starts_with("closing");
        worker.about.status = status;
        let is_running = worker.is_running;
        if is_running && !was_running {
            self.welcome(id);
        } else if was_running && !is_running {
            let stack = core::mem::take(&mut worker.stack);
            self.queued_count -= worker.stack_count;
            worker.stack_count = 0;
            for (_, task) in stack.into_values().flatten() {
                self.make_ready(task);
            }
        }
    }

    fn drop_worker(&mut self, id: WorkerId, in_peace: bool, reason: &'static str) {
        let Some(worker) = self.workers.remove(&id) else {
            return;
        };
        self.by_address.remove(&worker.address);
        self.todo.open.remove(&id);
        self.queued_count -= worker.stack_count;
        for other in self.workers.keys().copied().collect::<Vec<_>>() {
            let message = RemoveWorker {
                worker: worker.address.clone(),
                stimulus_id: Some("remove-worker".to_owned()),
                ..RemoveWorker::default()
            };
            self.order(other, message);
        }
        self.outputs.push(Output::EndWorker(id));
        for (_, task) in worker.stack.into_values().flatten() {
            self.make_ready(task);
        }
        for task in worker.processing {
            let allowed = self.rules.allowed_failures;
            self.make_ready(task);
            let state = &mut self.tasks[task];
            if in_peace {
                continue;
            }
            state.kill_count += 1;
            if state.kill_count > allowed {
                let exception = killed_worker(&state.key, &worker.address, allowed);
                let failure = Failure {
                    exception: Value::Serialized(exception),
                    traceback: None,
                };
                self.todo.failed.push((task, Arc::new(failure)));
            }
        }
        for task in &worker.has {
            self.tasks[*task].who_has.retain(|other| *other != id);
        }
        for task in worker.has {
            if self.tasks[task].who_has.is_empty() {
                self.lose(task);
            }
        }
        self.notice(Notice::WorkerLeft {
            worker: worker.address,
            reason,
        });
        self.settle();
    }

    /// The task of that key, if that worker has it and this is its run.
    fn processed(&mut self, worker: WorkerId, key: &Key, run_id: i64) -> Option<TaskId> {
        let found = self.by_key.get(key).copied();
        if let Some(id) = found {
            let task = &self.tasks[id];
            match task.stage {
                Stage::Processing(on) if on == worker && task.run_id == run_id => return Some(id),
                // An earlier run, which the worker was told to forget before it
                // got this one.
                Stage::Processing(on) if on == worker => return None,
                Stage::Memory if task.who_has.binary_search(&worker).is_ok() => return None,
                _ => {}
            }
        }
        self.order(worker, free_keys(Keys(vec![key.clone()]), "not-processing"));
        None
    }

    fn task_finished(&mut self, id: WorkerId, message: TaskFinished) {
        let Some(task) = self.processed(id, &message.key, message.run_id) else {
            return;
        };
        if let Some(worker) = self.workers.get_mut(&id) {
            let took = message
                .startstops
                .iter()
                .filter(|part| part.action == "compute");
            let took: f64 = took.map(|part| part.stop - part.start).sum();
            if took.is_finite() && took > 0.0 {
                worker.pace = match worker.pace {
                    pace if pace > 0.0 => f64::midpoint(pace, took),
                    _ => took,
                };
            }
        }
        let state = &mut self.tasks[task];
        state.nbytes = message.nbytes;
        state.class = message.class.0;
        self.in_memory(task, id);
    }

    fn task_erred(&mut self, id: WorkerId, task: TaskId, failure: Arc<Failure>) {
        // The worker keeps what it knows of it until it is told not to.
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.deletions.insert(self.tasks[task].key.clone());
        }
        let state = &mut self.tasks[task];
        if let Some(left) = state.retries.checked_sub(1) {
            state.retries = left;
            self.unassign(task);
            self.make_ready(task);
        } else {
            self.todo.failed.push((task, failure));
        }
    }

    fn add_keys(&mut self, id: WorkerId, keys: Keys) {
        let mut unwanted = Vec::new();
        for key in keys {
            match self.by_key.get(&key).copied() {
                Some(task) if matches!(self.tasks[task].stage, Stage::Memory) => {
                    self.in_memory(task, id);
                }
                _ => unwanted.push(key),
            }
        }
        if !unwanted.is_empty() {
            let message = RemoveReplicas {
                keys: Keys(unwanted),
                stimulus_id: "redundant-replicas".to_owned(),
                ..RemoveReplicas::default()
            };
            self.order(id, message);
        }
    }

    /// A worker has the result of a task.
    fn in_memory(&mut self, id: TaskId, holder: WorkerId) {
        let Some(worker) = self.workers.get_mut(&holder) else {
            return;
        };
        let task = &mut self.tasks[id];
        worker.deletions.remove(&task.key);
        if let Err(place) = task.who_has.binary_search(&holder) {
            task.who_has.insert(place, holder);
            worker.has.insert(id);
            worker.nbytes += u128::from(task.nbytes);
        }
        if matches!(task.stage, Stage::Memory) {
            return;
        }
        if task.stage.is_active()
            && let Some(on) = self.deactivate(id).filter(|on| *on != holder)
        {
            self.free_now(on, id);
        }
        let task = &mut self.tasks[id];
        task.stage = Stage::Memory;
        let (message, clients) = (in_memory(task), task.wanted_by.clone());
        let dependents = core::mem::take(&mut task.dependents);
        for client in clients {
            self.tell(client, message.clone());
        }
        for dependent in &dependents {
            let task = &mut self.tasks[*dependent];
            if matches!(task.stage, Stage::Waiting) {
                task.missing_count -= 1;
                if task.missing_count == 0 {
                    self.make_ready(*dependent);
                }
            }
        }
        self.tasks[id].dependents = dependents;
        self.todo.unneeded.push(id);
    }

    /// A worker does not have a result any more.
    fn remove_replica(&mut self, worker: WorkerId, id: TaskId) {
        let task = &mut self.tasks[id];
        let Ok(place) = task.who_has.binary_search(&worker) else {
            return;
        };
        task.who_has.remove(place);
        if let Some(worker) = self.workers.get_mut(&worker) {
            worker.has.remove(&id);
            worker.nbytes -= u128::from(task.nbytes);
            // If it has got new data since it said so, over another connection,
            // nobody would ever delete that.
            worker.deletions.insert(task.key.clone());
        }
        if task.who_has.is_empty() {
            self.lose(id);
        }
    }

    /// A result is not anywhere any more.
    fn lose(&mut self, id: TaskId) {
        let task = &mut self.tasks[id];
        task.stage = Stage::Released;
        let message = LostData {
            key: task.key.clone(),
            ..LostData::default()
        };
        let clients = task.wanted_by.clone();
        let is_needed = !clients.is_empty() || task.waiter_count != 0;
        let dependents = core::mem::take(&mut task.dependents);
        for client in clients {
            self.tell(client, message.clone());
        }
        for dependent in &dependents {
            match self.tasks[*dependent].stage {
                Stage::Waiting => self.tasks[*dependent].missing_count += 1,
                Stage::Ready | Stage::NoWorker | Stage::Queued(_) | Stage::Processing(_) => {
                    if let Some(on) = self.unassign(*dependent) {
                        self.free_now(on, *dependent);
                    }
                    let task = &mut self.tasks[*dependent];
                    task.stage = Stage::Waiting;
                    task.missing_count = 1;
                }
                Stage::Released | Stage::Memory | Stage::Erred(_) => {}
            }
        }
        self.tasks[id].dependents = dependents;
        if is_needed {
            self.activate(id);
        } else {
            self.todo.unneeded.push(id);
        }
    }

    /// Starts a task that is released, and what it needs.
    fn activate(&mut self, id: TaskId) {
        let mut todo = vec![id];
        while let Some(id) = todo.pop() {
            let task = &mut self.tasks[id];
            if !matches!(task.stage, Stage::Released) {
                continue;
            }
            if task.recipe.is_none() || task.is_orphan {
                self.todo.doomed.push(id);
                continue;
            }
            task.stage = Stage::Waiting;
            let dependencies = core::mem::take(&mut task.dependencies);
            let mut missing_count = 0;
            for dependency in &dependencies {
                let needed = &mut self.tasks[*dependency];
                needed.waiter_count += 1;
                missing_count += u32::from(!matches!(needed.stage, Stage::Memory));
                match &needed.stage {
                    Stage::Released => todo.push(*dependency),
                    Stage::Erred(failure) => {
                        self.todo.failed.push((id, Arc::clone(failure)));
                    }
                    _ => {}
                }
            }
            let task = &mut self.tasks[id];
            task.dependencies = dependencies;
            task.missing_count = missing_count;
            if missing_count == 0 {
                self.make_ready(id);
            }
        }
    }

    /// Nothing keeps a task from running.
    fn make_ready(&mut self, id: TaskId) {
        let task = &mut self.tasks[id];
        task.stage = Stage::Ready;
        self.todo.ready.insert((task.priority, id));
    }

    /// Takes a task away from wherever it waits or runs. Returns the worker that it
    /// had been sent to. The stage is for the caller to set.
    fn unassign(&mut self, id: TaskId) -> Option<WorkerId> {
        let task = &self.tasks[id];
        let place = (task.priority, id);
        match task.stage {
            Stage::Ready => {
                self.todo.ready.remove(&place);
            }
            Stage::NoWorker => {
                self.no_worker.remove(&place);
            }
            Stage::Queued(on) => {
                if let (Some(worker), Some(recipe)) = (self.workers.get_mut(&on), &task.recipe) {
                    worker.remove(&recipe.demands.resources, task.priority, id);
                    self.queued_count -= 1;
                    self.todo.open.insert(on);
                }
            }
            Stage::Processing(on) => {
                if let (Some(worker), Some(recipe)) = (self.workers.get_mut(&on), &task.recipe) {
                    worker.processing.remove(&id);
                    worker.long_running.remove(&id);
                    worker.give_resources(&recipe.demands.resources);
                    self.todo.open.insert(on);
                    return Some(on);
                }
            }
            _ => {}
        }
        None
    }

    /// The same for good: it needs nothing any more.
    fn deactivate(&mut self, id: TaskId) -> Option<WorkerId> {
        let on = self.unassign(id);
        let task = &mut self.tasks[id];
        task.stage = Stage::Released;
        task.missing_count = 0;
        let dependencies = core::mem::take(&mut task.dependencies);
        for dependency in &dependencies {
            let needed = &mut self.tasks[*dependency];
            needed.waiter_count -= 1;
            if needed.waiter_count == 0 && needed.wanted_by.is_empty() {
                self.todo.unneeded.push(*dependency);
            }
        }
        self.tasks[id].dependencies = dependencies;
        on
    }

    /// A worker is to forget a task that it works on.
    fn free_now(&mut self, on: WorkerId, id: TaskId) {
        if self.workers.contains_key(&on) {
            let keys = Keys(vec![self.tasks[id].key.clone()]);
            self.order(on, free_keys(keys, "cancelled"));
        }
    }

    /// Handles all that follows from an event.
    fn settle(&mut self) {
        loop {
            if let Some((id, failure)) = self.todo.failed.pop() {
                self.fail(id, &failure);
            } else if let Some(id) = self.todo.doomed.pop() {
                self.doom(id);
            } else if let Some(id) = self.todo.unneeded.pop() {
                self.tidy(id);
            } else {
                break;
            }
        }
        while let Some((_, id)) = self.todo.ready.pop_first() {
            self.assign(id);
        }
        while let Some(id) = self.todo.open.pop_first() {
            self.fill(id);
        }
        self.share();
    }

    /// A task has failed, and with it all that waits for it.
    fn fail(&mut self, id: TaskId, failure: &Arc<Failure>) {
        let mut todo = vec![id];
        while let Some(id) = todo.pop() {
            if !self
                .tasks
                .get(id)
                .is_some_and(|task| task.stage.is_active())
            {
                continue;
            }
            self.deactivate(id);
            let task = &mut self.tasks[id];
            task.stage = Stage::Erred(Arc::clone(failure));
            todo.extend(&task.dependents);
            let message = erred(&task.key, failure);
            for client in task.wanted_by.clone() {
                self.tell(client, message.clone());
            }
            self.todo.unneeded.push(id);
        }
    }

    /// A task can never be computed, and so nothing that needs it.
    fn doom(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get(id) else {
            return;
        };
        // Saved by data that came meanwhile, or failed otherwise.
        if matches!(task.stage, Stage::Memory | Stage::Erred(_)) {
            return;
        }
        let key = task.key.clone();
        for client in task.wanted_by.clone() {
            self.release(client, id);
            self.cancelled(client, vec![key.clone()], "lost dependencies", None);
        }
        if self.tasks[id].stage.is_active()
            && let Some(on) = self.deactivate(id)
        {
            self.free_now(on, id);
        }
        self.forget(id);
    }

    /// Releases a task that nobody needs, and forgets one that nothing can come of.
    fn tidy(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get(id) else {
            return;
        };
        if matches!(task.stage, Stage::Memory | Stage::Erred(_)) {
            self.release(FIRE_AND_FORGET.0, id);
        }
        let task = &self.tasks[id];
        if !task.wanted_by.is_empty() || task.waiter_count != 0 {
            return;
        }
        if task.stage.is_active() {
            if let Some(on) = self.deactivate(id) {
                self.free_now(on, id);
            }
        } else {
            self.delete(id);
        }
        let task = &mut self.tasks[id];
        task.stage = Stage::Released;
        if task.dependents.is_empty() || task.recipe.is_none() || task.is_orphan {
            self.forget(id);
        }
    }

    /// The workers that have a result may delete it.
    fn delete(&mut self, id: TaskId) {
        let task = &mut self.tasks[id];
        for holder in core::mem::take(&mut task.who_has) {
            if let Some(worker) = self.workers.get_mut(&holder) {
                worker.has.remove(&id);
                worker.nbytes -= u128::from(task.nbytes);
                worker.deletions.insert(task.key.clone());
            }
        }
    }

    /// Removes a task that is released.
    fn forget(&mut self, id: TaskId) {
        let Some(task) = self.tasks.remove(id) else {
            return;
        };
        self.by_key.remove(&task.key);
        for dependency in task.dependencies {
            self.tasks[dependency].dependents.remove(&id);
            self.todo.unneeded.push(dependency);
        }
        for dependent in task.dependents {
            let other = &mut self.tasks[dependent];
            other.dependencies.retain(|dependency| *dependency != id);
            other.is_orphan = true;
            if !matches!(other.stage, Stage::Memory | Stage::Erred(_)) {
                self.todo.doomed.push(dependent);
            }
        }
    }

    /// Sends a task to a worker.
    fn send(&mut self, id: TaskId, on: WorkerId) {
        let task = &mut self.tasks[id];
        let (Some(worker), Some(recipe)) = (self.workers.get_mut(&on), &task.recipe) else {
            return;
        };
        self.run_count += 1;
        task.run_id = self.run_count;
        task.stage = Stage::Processing(on);
        worker.processing.insert(id);
        worker.take_resources(&recipe.demands.resources);
        let Priority {
            user,
            generation,
            order,
        } = task.priority;
        let demands = &recipe.demands;
        let resources = demands.resources.0.iter();
        let resources = (!demands.resources.is_empty())
            .then(|| Value::dict(resources.map(|(name, amount)| (name.clone(), *amount))));
        #[expect(clippy::cast_precision_loss, reason = "in order up to 2^53")]
        let mut message = ComputeTask {
            key: task.key.clone(),
            run_id: task.run_id,
            priority: vec![user, generation as f64, order as f64],
            stimulus_id: "compute-task".to_owned(),
            run_spec: recipe.run_spec.clone(),
            resource_restrictions: Nullable(resources),
            annotations: Some(demands.annotations.clone()),
            ..ComputeTask::default()
        };
        // What it holds under these keys is of an earlier life of theirs.
        let mut stale = Vec::new();
        if worker.deletions.remove(&message.key) {
            stale.push(message.key.clone());
        }
        let task = &self.tasks[id];
        for dependency in &task.dependencies {
            let dependency = &self.tasks[*dependency];
            let key = &dependency.key;
            let worker = self.workers.get_mut(&on);
            if worker.is_some_and(|worker| worker.deletions.remove(key)) {
                stale.push(key.clone());
            }
            let holders = dependency.who_has.iter();
            let holders = holders.map(|id| self.workers[id].address.clone());
            message.who_has.push((key.clone(), holders.collect()));
            message.nbytes.push((key.clone(), dependency.nbytes));
        }
        if !stale.is_empty() {
            self.order(on, free_keys(Keys(stale), "deletions"));
        }
        self.order(on, message);
    }
}

fn in_memory(task: &Task) -> KeyInMemory {
    KeyInMemory {
        key: task.key.clone(),
        class: task.class.clone().map(Value::Bytes),
        ..KeyInMemory::default()
    }
}

//! Workers that run functions in Rust as tasks of a Dask scheduler.
//!
//! A [`Worker`] registers with a scheduler, runs the tasks assigned to it on its
//! threads, fetches their inputs from other workers (in Rust or Python), and
//! serves its own data to workers and clients. Functions that tasks call are
//! looked up by name in the worker's [`Functions`]; unpickling never executes
//! code.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use daskwire_peer::worker::{Functions, Worker};
//!
//! let functions = Functions::python().function("hypot", |x: f64, y: f64| x.hypot(y));
//! let worker = Worker::builder("tcp://10.0.0.7:8786".parse()?)
//!     .functions(functions)
//!     .nthreads(4)
//!     .start()
//!     .await?;
//! println!("{} serves", worker.address());
//! println!("{}", worker.ended().await);
//! # Ok(())
//! # }
//! ```
//!
//! A client in Python calls the function by its name:
//!
//! ```python
//! client.submit(operator.methodcaller("native:hypot"), 3, 4).result()
//! ```

mod diagnostics;
mod evaluate;
mod exception;
mod functions;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod memory;
mod metrics;
mod python;
mod server;
mod state;
mod store;
#[cfg(feature = "fuzzing")]
pub(crate) use store::fuzzing as store_fuzzing;
mod threads;

use core::fmt;
use core::time::Duration;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use daskwire_comm::runtime::{self, Spawner, TaskSet};
use daskwire_comm::{Address, CommOptions, Listener, Traffic, Transports};
use tokio::sync::{Notify, watch};

use crate::batched::{BatchSender, BatchWriter, MAX_QUEUED_LEN};
use crate::channel::{Channel, Ends, Observer, Receiver, within};
use crate::event::{self, Event as _, WorkerEvent, emit};
use crate::failure::Failure;
use crate::graph::Task;
use crate::net::Connector;
use crate::pool::Pool;
use crate::protocol::{
    CloseStream, FromWorker, HeartbeatReply, HeartbeatWorker, KeepAlive, LogEvent, Nullable,
    RegisterWorker, RegisterWorkerReply, ReplyStatus, Request, RetireWorkers, ToWorker, Versions,
    WorkerStatus, WorkerStatusChange,
};
use crate::release::{self, FIRST_FOR_WORKERS};
use crate::value::Serialized;
use crate::{BoxFuture, Key, PeerError, Release, RemoteError, Value};

pub use functions::{Arguments, Function, Functions, Outcome};
pub use memory::MemoryThresholds;
pub use metrics::{TaskCounters, TransferCounters};
pub use store::{Holdings, StoreCounters, Tally};

use diagnostics::{Level, Log, Notifier};
use evaluate::{Evaluated, TaskContext};
use metrics::{TasksDone, Transfers, to_startstops};
use state::{Action, Answer, Event, Executed, Fetched, Limits, Peer, Run, State, stimulus};
use store::{Datum, InUse, SpillDirectory, Steps, Store};
use threads::Queue;

/// Timeout for registering with the scheduler and for leaving it.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(30);

/// Interval of keep-alive messages on the stream to the scheduler.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// Time without heartbeats while the worker retires: longer than retiring mostly
/// takes, and shorter than a scheduler's timeout for heartbeats.
const RETIRE_QUIET: Duration = Duration::from_secs(20);

/// Timeout for reading the scheduler's last messages once writing to it has
/// failed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum number of quick tasks run in place before other futures get a turn.
const MAX_INLINE_TASKS: usize = 64;

/// Configures and starts a [`Worker`].
#[derive(Clone)]
pub struct Builder {
    scheduler: Address,
    listen: Option<Address>,
    name: Option<String>,
    nthreads: usize,
    memory_limit: Option<u64>,
    thresholds: MemoryThresholds,
    local_directory: PathBuf,
    notify: Option<Arc<OnNotice>>,
    resources: BTreeMap<String, f64>,
    functions: Functions,
    options: CommOptions,
    transports: Transports,
    observer: Option<Arc<dyn Observer>>,
    batch_interval: Duration,
}

/// Callback for operator-facing warnings.
type OnNotice = dyn Fn(&str) + Send + Sync;

impl Builder {
    /// Sets the address to listen on; port 0 picks a free port. Default: a free
    /// port of the interface that reaches the scheduler, with the scheduler's
    /// transport.
    #[must_use]
    pub fn listen(mut self, address: Address) -> Self {
        self.listen = Some(address);
        self
    }

    /// Sets the worker's name, which must be unique in the cluster. Default: the
    /// worker's address.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Sets the number of tasks that run at once, at least 1. Default: the number
    /// of processors.
    #[must_use]
    pub fn nthreads(mut self, nthreads: usize) -> Self {
        self.nthreads = nthreads.max(1);
        self
    }

    /// Sets the memory limit in bytes, as reported to the scheduler. Data is
    /// spilled to disk well below it, see [`MemoryThresholds`]. Default: no
    /// limit; all data stays in memory.
    #[must_use]
    pub const fn memory_limit(mut self, memory_limit: u64) -> Self {
        self.memory_limit = Some(memory_limit);
        self
    }

    /// Sets when data is spilled to disk, as fractions of the memory limit.
    /// Default: as in Dask.
    #[must_use]
    pub const fn memory_thresholds(mut self, thresholds: MemoryThresholds) -> Self {
        self.thresholds = thresholds;
        self
    }

    /// Sets the directory for spilled data. The worker makes a private
    /// subdirectory in it. Several workers may share the directory, and it is
    /// created if it does not exist. Default: the system's directory for
    /// temporary files.
    ///
    /// Only the user of this process can read the data. Subdirectories left by
    /// killed workers of the same user are removed.
    #[must_use]
    pub fn local_directory(mut self, path: impl Into<PathBuf>) -> Self {
        self.local_directory = path.into();
        self
    }

    /// Sets a callback for operator-facing warnings, for example that a disk is
    /// full, that a file on it is damaged, or that the scheduler cannot be
    /// reached yet. Once the worker has registered, the scheduler gets the same
    /// warnings as events of the topic `worker-notice`. The callback must not
    /// block.
    #[must_use]
    pub fn on_notice(mut self, notify: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.notify = Some(Arc::new(notify));
        self
    }

    /// Adds a resource that tasks may require, and its amount.
    #[must_use]
    pub fn resource(mut self, name: &str, amount: f64) -> Self {
        self.resources.insert(name.to_owned(), amount);
        self
    }

    /// Sets the functions that tasks may call. Default: [`Functions::python`].
    #[must_use]
    pub fn functions(mut self, functions: Functions) -> Self {
        self.functions = functions;
        self
    }

    /// Sets the options of comms, outgoing and incoming.
    #[must_use]
    pub fn options(mut self, options: CommOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets the transports of all comms. Default: [`transports`](crate::transports); `tls://`
    /// and `quic://` need [`transports_with_tls`](crate::transports_with_tls).
    #[must_use]
    pub fn transports(mut self, transports: Transports) -> Self {
        self.transports = transports;
        self
    }

    /// Sets an observer that sees every message.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Sets how long messages to the scheduler are held back after a batch was
    /// sent, so that they are sent together. With zero, each is sent at once.
    /// Default: 2 milliseconds, as in Dask, which saves a scheduler in Python
    /// work.
    #[must_use]
    pub const fn batch_interval(mut self, interval: Duration) -> Self {
        self.batch_interval = interval;
        self
    }

    /// Registers with the scheduler and starts running tasks.
    ///
    /// # Errors
    ///
    /// * [`PeerError::Release`] if the scheduler is older than 2025.3.0; the
    ///   worker is not registered then;
    /// * [`PeerError::Refused`] if the scheduler refuses the worker, for example
    ///   because its name is taken;
    /// * [`PeerError::Directory`] if there is a memory limit, and the directory
    ///   for spilled data cannot be created;
    /// * [`PeerError::Comm`] if the worker cannot listen or reach the scheduler;
    /// * [`PeerError::Timeout`] if the scheduler does not answer.
    pub async fn start(self) -> Result<Worker, PeerError> {
        start_boxed(self).await
    }
}

fn start_boxed(builder: Builder) -> BoxFuture<'static, Result<Worker, PeerError>> {
    Box::pin(start(builder))
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("scheduler", &self.scheduler)
            .field("name", &self.name)
            .field("nthreads", &self.nthreads)
            .finish_non_exhaustive()
    }
}

/// A running worker.
///
/// Dropping it makes it leave the cluster as [`close`](Self::close) does, without
/// waiting for that.
#[derive(Debug)]
pub struct Worker {
    shared: Arc<Shared>,
    ended: watch::Receiver<Option<Ended>>,
}

/// The reason why a worker stopped.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Ended {
    /// The worker was closed locally.
    Closed,
    /// The scheduler closed the worker.
    ByScheduler {
        /// The reason given by the scheduler.
        reason: String,
    },
    /// The scheduler no longer knows the worker.
    Forgotten,
    /// The connection to the scheduler was lost.
    Lost(PeerError),
    /// The worker panicked, which may have left its state inconsistent.
    Panicked,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the worker was closed"),
            Self::ByScheduler { reason } if reason.is_empty() => {
                f.write_str("the scheduler closed the worker")
            }
            Self::ByScheduler { reason } => {
                write!(f, "the scheduler closed the worker: {reason}")
            }
            Self::Forgotten => f.write_str("the scheduler does not know the worker any more"),
            Self::Lost(error) => write!(f, "the scheduler is gone: {error}"),
            Self::Panicked => f.write_str("the worker panicked"),
        }
    }
}

impl Worker {
    /// Returns a builder of a worker for the scheduler at this address.
    pub fn builder(scheduler: Address) -> Builder {
        let nthreads = std::thread::available_parallelism();
        Builder {
            scheduler,
            listen: None,
            name: None,
            nthreads: nthreads.map_or(1, Into::into),
            memory_limit: None,
            thresholds: MemoryThresholds::default(),
            local_directory: std::env::temp_dir(),
            notify: None,
            resources: BTreeMap::new(),
            functions: Functions::python(),
            options: CommOptions::default(),
            transports: crate::transports(),
            observer: None,
            batch_interval: Duration::from_millis(2),
        }
    }

    /// The address at which other peers reach the worker.
    pub fn address(&self) -> &str {
        &self.shared.address
    }

    /// The worker's name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The worker's status.
    pub fn status(&self) -> WorkerStatus {
        if self.ended.borrow().is_some() {
            return WorkerStatus::Closed;
        }
        self.shared.machine().state.status().clone()
    }

    /// The keys of the data that the worker holds.
    pub fn keys(&self) -> Vec<Key> {
        self.shared.store.keys()
    }

    /// The total size of the worker's data, in bytes as Dask counts them.
    pub fn nbytes(&self) -> u64 {
        self.shared.store.nbytes()
    }

    /// How much of the worker's data is in memory, and how much on disk.
    pub fn holdings(&self) -> Holdings {
        self.shared.store.holdings()
    }

    /// Counters of the data transferred between this worker and its peers.
    pub fn transfers(&self) -> TransferCounters {
        self.shared.transfers.counters()
    }

    /// Counters of the work done for all tasks.
    pub fn total_task_counters(&self) -> TaskCounters {
        self.shared.tasks_done.total()
    }

    /// Counters of the work done for tasks, by the prefix of their keys. The
    /// number of prefixes is bounded: those beyond the limit are counted together
    /// as `other`.
    pub fn task_counters(&self) -> BTreeMap<String, TaskCounters> {
        self.shared.tasks_done.counters()
    }

    /// Counters of the data store: deserialized, spilled, and so on.
    pub fn counters(&self) -> StoreCounters {
        self.shared.store.counters()
    }

    /// The number of known tasks in each state, with Dask's names of the states.
    pub fn task_counts(&self) -> Vec<(&'static str, u64)> {
        self.shared.machine().state.counts().collect()
    }

    /// Leaves the cluster, and waits until that is done. The worker's data is
    /// lost; [`retire`](Self::retire) moves it to other workers first. Running
    /// tasks are not interrupted, and their results are dropped.
    pub async fn close(&self) {
        self.shared.stop.notify_one();
        self.ended().await;
    }

    /// Leaves the cluster once other workers have copies of the data that only
    /// this worker had, and waits until that is done. Returns whether all data
    /// was copied: if no worker can take it, this worker leaves all the same.
    ///
    /// # Errors
    ///
    /// If the scheduler cannot be asked; the worker has left the cluster then
    /// too.
    pub async fn retire(&self) -> Result<bool, PeerError> {
        let shared = &self.shared;
        let request = Request::RetireWorkers(RetireWorkers {
            workers: Some(vec![shared.address.clone()]),
            close_workers: Some(true),
            remove: Some(true),
            reply: Some(true),
            ..RetireWorkers::default()
        });
        let retired = tokio::select! {
            retired = shared.pool.call::<Value>(&shared.scheduler, &request) => retired,
            // If the request to close comes first, it is the answer.
            ended = self.ended() => return Ok(matches!(ended, Ended::ByScheduler { .. })),
        };
        let retired = retired.map(|retired| retired.get(&shared.address).is_some());
        self.close().await;
        retired
    }

    /// Waits until the worker has stopped, for whatever reason.
    pub async fn ended(&self) -> Ended {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(ended)) => ended.clone(),
            // The runtime was shut down, and the worker with it.
            _ => Ended::Closed,
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.stop.notify_one();
    }
}

/// State shared by all parts of a worker.
struct Shared {
    id: String,
    address: String,
    name: String,
    /// Name and address, for log lines and error messages.
    title: String,
    scheduler: Address,
    nthreads: usize,
    memory_limit: Option<u64>,
    thresholds: MemoryThresholds,
    local_directory: PathBuf,
    functions: Functions,
    versions: Value,
    store: Store,
    tasks_done: TasksDone,
    log: Log,
    notify: Notifier,
    machine: Mutex<Machine>,
    queue: Queue<Job>,
    pool: Pool,
    observer: Option<Arc<dyn Observer>>,
    transfers: Transfers,
    failure: Failure,
    runtime: Spawner,
    stop: Notify,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.title)
    }
}

/// The state machine, and the stream on which its messages are sent in the order
/// of its events.
struct Machine {
    state: State,
    stream: Option<BatchSender<FromWorker>>,
    /// Transfers and timers, which end with the worker.
    tasks: TaskSet<()>,
}

impl Machine {
    /// Starts a transfer or a timer, unless the worker leaves.
    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static, runtime: &Spawner) {
        if *self.state.status() == WorkerStatus::Closing {
            return;
        }
        while self.tasks.try_join_next().is_some() {}
        self.tasks.push(runtime.spawn(task));
    }
}

/// A task to run, with its inputs.
struct Job {
    key: Key,
    spec: Spec,
    data: HashMap<Key, Datum>,
    /// Keeps the inputs in memory.
    in_use: Vec<InUse>,
    is_actor: bool,
}

enum Spec {
    Unread(Serialized),
    Read(Task),
}

/// Seconds since 1970.
fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

impl Shared {
    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.failure.check(self.machine.lock())
    }

    /// Puts data into the store and handles events. Returns the jobs to run.
    fn react<'d>(
        self: &Arc<Self>,
        data: impl IntoIterator<Item = (&'d Key, Datum)>,
        events: impl IntoIterator<Item = Event>,
    ) -> Vec<Job> {
        let mut jobs = Vec::new();
        // Freeing much memory takes time, so it is done after the lock is
        // released.
        let mut forgotten = Vec::new();
        // Subscribers may be slow, too.
        let mut reports = Vec::new();
        let _guard = self.failure.guard();
        let mut machine = self.machine();
        if self.failure.is_set() {
            return jobs;
        }
        for (key, datum) in data {
            self.store.insert(key, datum);
        }
        machine.state.set_full(self.store.is_full());
        machine
            .state
            .watch_tasks(WorkerEvent::is_enabled(event::Level::Debug));
        for action in machine.state.handle(now(), events) {
            match action {
                Action::Send(message) => {
                    if let Some(stream) = &machine.stream {
                        stream.send(*message);
                    }
                }
                Action::Forget(key) => forgotten.extend(self.store.remove(&key)),
                Action::Execute(run) => jobs.push(self.job(*run)),
                Action::Fetch { peer, keys } => {
                    let address = Arc::clone(&peer);
                    let fetching = Arc::clone(self).fetch(peer, keys);
                    let fetching = event::in_comm(&address, fetching);
                    machine.spawn(fetching, &self.runtime);
                }
                Action::Report(event) => reports.push(event),
                Action::Disconnect(peer) => {
                    if let Ok(address) = peer.parse() {
                        self.pool.forget(&address);
                    }
                }
                Action::Wake { after, event } => {
                    let shared = Arc::clone(self);
                    let waking = async move {
                        runtime::sleep(after).await;
                        shared.handle([*event]);
                    };
                    machine.spawn(waking, &self.runtime);
                }
            }
        }
        drop(machine);
        for report in &reports {
            emit(event::Level::Debug, || WorkerEvent::Task(report));
        }
        jobs
    }

    /// Handles events.
    fn handle(self: &Arc<Self>, events: impl IntoIterator<Item = Event>) {
        let jobs = self.react([], events);
        self.begin(jobs);
    }

    fn job(&self, run: Run) -> Job {
        let datum = |key: &Key| Some((key.clone(), self.store.get(key)?));
        let data: HashMap<Key, Datum> = run.dependencies.iter().filter_map(datum).collect();
        Job {
            in_use: data.values().map(Datum::in_use).collect(),
            data,
            key: run.key,
            spec: Spec::Unread(run.run_spec),
            is_actor: run.is_actor,
        }
    }

    /// Reports a warning to the callback of the builder, the log, and the
    /// subscribers to the scheduler's events.
    fn notice(&self, text: &str) {
        self.log.add(Level::Warning, text);
        emit(event::Level::Warn, || WorkerEvent::Notice { text });
        self.notify.notify(text);
        if let Some(stream) = &self.machine().stream {
            stream.send(LogEvent {
                topic: "worker-notice".into(),
                msg: Value::dict([("worker", self.title.as_str()), ("text", text)]),
                ..LogEvent::default()
            });
        }
    }

    /// Runs quick tasks in place, and queues others for the threads.
    fn begin(self: &Arc<Self>, jobs: Vec<Job>) {
        let mut jobs = VecDeque::from(jobs);
        let mut left = MAX_INLINE_TASKS;
        while let Some(mut job) = jobs.pop_front() {
            // A panic here comes from reading the task; running it reports that
            // panic.
            let is_quick = left != 0
                && catch_unwind(AssertUnwindSafe(|| self.is_quick(&mut job))).unwrap_or(false);
            if is_quick {
                left -= 1;
                jobs.extend(self.run(job));
            } else {
                self.queue.push(job);
            }
        }
    }

    fn context<'a>(&'a self, data: &'a HashMap<Key, Datum>, steps: &'a Steps) -> TaskContext<'a> {
        TaskContext {
            functions: &self.functions,
            worker: &self.title,
            store: &self.store,
            data,
            steps,
        }
    }

    fn is_quick(&self, job: &mut Job) -> bool {
        /// Longer tasks are not read in place either.
        const MAX_LEN: usize = 1 << 10;
        if let Spec::Unread(run_spec) = &job.spec
            && run_spec.header().len() <= MAX_LEN
            && run_spec.frames().is_empty()
            && !job.is_actor
            && let Ok(task) = Task::read(run_spec, &job.key)
        {
            let steps = Steps::default();
            let is_quick = self.context(&job.data, &steps).is_quick(&task);
            job.spec = Spec::Read(task);
            return is_quick;
        }
        false
    }

    /// Runs a task, and returns the jobs to run next.
    fn run(self: &Arc<Self>, job: Job) -> Vec<Job> {
        let start = now();
        let Job {
            key,
            spec,
            data,
            in_use,
            is_actor,
        } = job;
        let steps = Steps::default();
        let evaluated = catch_unwind(AssertUnwindSafe(|| {
            let _task = event::task(&key);
            self.evaluate(&key, spec, &data, is_actor, &steps)
        }));
        // Any other worker would panic too, so the task fails.
        let result = evaluated.unwrap_or_else(|_| {
            let message = format!("the worker {} panicked over the task", self.title);
            Err(RemoteError::new("RuntimeError", &message))
        });
        let lost = match &result {
            Ok(_) => Vec::new(),
            Err(_) => lost(&data),
        };
        drop(in_use);
        drop(data);
        if !lost.is_empty() {
            return self.react([], [Event::InputsLost { key, lost }]);
        }
        let (datum, outcome) = match result {
            Ok(datum) => {
                let description = metrics::describe(&datum);
                (Some(datum), Ok(description))
            }
            Err(error) => {
                self.log
                    .add(Level::Warning, &format!("the task {key} failed: {error}"));
                let text = error.to_string();
                emit(event::Level::Info, || WorkerEvent::Failed {
                    key: &key,
                    error: &text,
                });
                (None, Err(Box::new(error.to_failure())))
            }
        };
        let steps = steps.take();
        let stop = now();
        self.tasks_done.add(&key.prefix(), stop - start, &steps);
        let executed = Event::Executed(Executed {
            key: key.clone(),
            outcome,
            start,
            stop,
            steps: to_startstops(&steps),
            thread: Some(threads::number()),
        });
        self.react(datum.map(|datum| (&key, datum)), [executed])
    }

    fn evaluate(
        &self,
        key: &Key,
        spec: Spec,
        data: &HashMap<Key, Datum>,
        is_actor: bool,
        steps: &Steps,
    ) -> Result<Datum, RemoteError> {
        if is_actor {
            let message = format!(
                "the worker {} runs functions in Rust, not actors",
                self.title
            );
            return Err(RemoteError::new("NotImplementedError", &message));
        }
        let task = match spec {
            Spec::Unread(run_spec) => Task::read(&run_spec, key)?,
            Spec::Read(task) => task,
        };
        Ok(match self.context(data, steps).evaluate(task)? {
            Evaluated::Value(value) => self.store.made(value),
            Evaluated::Datum(datum) => datum,
        })
    }

    /// Fetches data from a peer.
    async fn fetch(self: Arc<Self>, peer: Peer, keys: Vec<Key>) {
        let _guard = self.failure.guard();
        let start = now();
        let (answer, data) = self.ask(&peer, keys).await;
        let stop = now();
        let (answer, data) = match answer {
            Answered::Data => {
                let descriptions = data
                    .iter()
                    .map(|(key, datum)| (key.clone(), metrics::describe(datum)));
                (Answer::Data(descriptions.collect()), data)
            }
            Answered::Busy => (Answer::Busy, data),
            Answered::Gone => (Answer::Gone, data),
        };
        let fetched = Event::Fetched(Fetched {
            peer,
            answer,
            start,
            stop,
        });
        let data = data.iter().map(|(key, datum)| (key, datum.clone()));
        let jobs = self.react(data, [fetched]);
        self.begin(jobs);
    }

    async fn ask(&self, peer: &str, keys: Vec<Key>) -> (Answered, Vec<(Key, Datum)>) {
        let Ok(address) = peer.parse::<Address>() else {
            return (Answered::Gone, Vec::new());
        };
        let receiving = self.transfers.receiving();
        let who = Some(self.address.clone());
        match self
            .pool
            .get_data_with_extra_count(&address, keys, who)
            .await
        {
            Ok((reply, _)) if reply.status == ReplyStatus::Busy => (Answered::Busy, Vec::new()),
            Ok((reply, unasked_count)) => {
                if unasked_count != 0 {
                    let message = format!(
                        "{peer} sent {unasked_count} keys that it was not asked for; they are ignored"
                    );
                    self.log.add(Level::Warning, &message);
                }
                let data = reply.data.unwrap_or_default().into_iter();
                let data: Vec<(Key, Datum)> = data
                    .map(|(key, serialized)| (key, self.store.received(serialized)))
                    .collect();
                let len = data.iter().map(|(_, datum)| datum.nbytes()).sum();
                receiving.received(peer, len);
                (Answered::Data, data)
            }
            // The peer is reachable, and could not answer the request.
            Err(PeerError::Remote(_)) => (Answered::Data, Vec::new()),
            Err(_) => {
                // Transfers to the peer continue until the scheduler removes it.
                self.pool.close_idle(&address);
                (Answered::Gone, Vec::new())
            }
        }
    }

    /// Sends the pending messages and a farewell to the scheduler, and closes the
    /// stream.
    fn leave(&self) {
        let mut machine = self.machine();
        machine.state.close();
        let Some(stream) = machine.stream.take() else {
            return;
        };
        stream.send(WorkerStatusChange {
            status: WorkerStatus::Closing,
            stimulus_id: stimulus("worker-status-change", now()),
            ..WorkerStatusChange::default()
        });
        stream.send(CloseStream::default());
    }
}

/// The keys of inputs that were lost.
fn lost(data: &HashMap<Key, Datum>) -> Vec<Key> {
    let lost = data.iter().filter(|(_, datum)| datum.is_lost());
    lost.map(|(key, _)| key.clone()).collect()
}

/// The outcome of a request to a peer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answered {
    Data,
    Busy,
    Gone,
}

async fn start(builder: Builder) -> Result<Worker, PeerError> {
    let Builder {
        scheduler,
        listen,
        name,
        nthreads,
        memory_limit,
        thresholds,
        local_directory,
        notify,
        resources,
        functions,
        options,
        transports,
        observer,
        batch_interval,
    } = builder;
    let id = format!("Worker-{}", crate::identifier());
    let party = name.clone().unwrap_or_else(|| "worker".to_owned());
    let transports = transports.separate();
    let notify = Notifier(notify);
    let timeout = options.connect_timeout;
    let retrying = || format!("no connection to {scheduler} yet, retrying");
    let connecting = transports.connect_for(&scheduler, &options, Traffic::Control);
    let comm = match notify.with_notice(retrying, timeout, connecting).await {
        Ok(comm) => comm,
        Err(error) => {
            let what = "a worker in Rust";
            let explained = release::explain(
                error.into(),
                &scheduler,
                &transports,
                &options,
                FIRST_FOR_WORKERS,
                what,
            );
            return Err(explained.await);
        }
    };
    let ends = Ends::new(&party, "scheduler", observer.clone());
    let mut channel = Channel::new(comm, ends);
    let host = own_host(&channel);
    let listen = listen.unwrap_or_else(|| listen_address(&scheduler, &host, &id));
    let listener = transports.bind(&listen, options.clone()).await?;
    let address = listener.local_address()?;
    let address = address.contact(&host).to_string();
    // No retries: data of a peer that does not listen has to come from elsewhere.
    let options = CommOptions {
        connect_retry: false,
        ..options
    };
    let connector = Arc::new(Connector::new(transports.clone(), options));
    let pool = Pool::new(connector, &party, observer.clone());
    // The scheduler's own versions are sent back, to avoid a warning about
    // mismatches.
    let versions = Request::Versions(Versions {
        reply: Some(true),
        ..Versions::default()
    });
    let versions = within(
        REGISTER_TIMEOUT,
        "the versions",
        pool.call::<Value>(&scheduler, &versions),
    );
    let waiting = || format!("{scheduler} does not answer yet, waiting");
    let versions = notify
        .with_notice(waiting, REGISTER_TIMEOUT, versions)
        .await?;
    // A scheduler that is too old must not get to know the worker.
    Release::check(
        Release::of_versions(&versions),
        FIRST_FOR_WORKERS,
        "a worker in Rust",
    )?;
    let versions = match versions {
        versions @ Value::Dict(_) => versions,
        _ => Value::dict([
            ("host", Value::Dict([].into())),
            ("packages", Value::Dict([].into())),
        ]),
    };
    let name = name.unwrap_or_else(|| address.clone());
    let title = if name == address {
        address.clone()
    } else {
        format!("{name} at {address}")
    };
    let limits = Limits {
        nthreads,
        ..Limits::default()
    };
    let state = State::new(&address, limits, resources.clone());
    let (store, store_directory) =
        make_store(memory_limit, thresholds, local_directory, &id).await?;
    let failure = store.failure().clone();
    let shared = Arc::new(Shared {
        id,
        address,
        name,
        title,
        scheduler,
        nthreads,
        memory_limit,
        thresholds,
        local_directory: store_directory,
        functions,
        versions,
        store,
        tasks_done: TasksDone::default(),
        log: Log::default(),
        notify,
        machine: Mutex::new(Machine {
            state,
            stream: None,
            tasks: TaskSet::new(),
        }),
        queue: Queue::new(failure.clone()),
        pool,
        observer,
        transfers: Transfers::default(),
        failure,
        runtime: Spawner::current(),
        stop: Notify::new(),
    });
    start_store(&shared)?;
    let waiting = || {
        format!(
            "{} does not register the worker yet, waiting",
            shared.scheduler
        )
    };
    let registering = shared.register(&mut channel, resources);
    let registering = shared
        .notify
        .with_notice(waiting, REGISTER_TIMEOUT, registering);
    let interval = registering.await?;
    shared.log.add(
        Level::Info,
        &format!("{} works for {}", shared.title, shared.scheduler),
    );
    emit(event::Level::Info, || WorkerEvent::Started {
        worker: &shared.title,
        scheduler: &shared.scheduler,
    });
    let Channel {
        sender, receiver, ..
    } = channel;
    let (stream, writing) = BatchSender::new(sender, batch_interval, MAX_QUEUED_LEN);
    shared.machine().stream = Some(stream);
    threads::start(&shared);
    let (end, ended) = watch::channel(None);
    let parts = Parts {
        transports,
        listener,
        receiver,
        writing,
        interval,
    };
    runtime::spawn(supervise(Arc::clone(&shared), parts, end));
    Ok(Worker { shared, ended })
}

/// Makes a store, and returns the path of its directory, existing or not.
async fn make_store(
    memory_limit: Option<u64>,
    thresholds: MemoryThresholds,
    parent: PathBuf,
    id: &str,
) -> Result<(Store, PathBuf), PeerError> {
    let Some(limit) = memory_limit.filter(|_| thresholds.spills()) else {
        return Ok((Store::default(), parent));
    };
    let id = id.to_owned();
    let made = runtime::spawn_blocking(move || SpillDirectory::new(&parent, &id));
    let made = made
        .await
        .unwrap_or_else(|error| Err(io::Error::other(error.to_string())));
    let directory = made.map_err(|error| PeerError::Directory {
        reason: error.to_string(),
    })?;
    let path = directory.path().to_owned();
    let store = Store::spilling(
        directory,
        thresholds.target_len(limit),
        thresholds.full_len(limit),
    );
    Ok((store, path))
}

/// Starts the store's thread, which moves data to disk.
fn start_store(shared: &Arc<Shared>) -> Result<(), PeerError> {
    // Weak, so that the thread does not keep the worker alive.
    let own: Weak<Shared> = Arc::downgrade(shared);
    let needed = {
        let own = own.clone();
        move || {
            let Some(shared) = own.upgrade() else {
                return Vec::new();
            };
            let needed = shared.machine().state.needed_soon();
            let data = needed.iter().filter_map(|key| shared.store.get(key));
            data.collect()
        }
    };
    let notify = move |text: &str| {
        if let Some(shared) = own.upgrade() {
            shared.notice(text);
        }
    };
    let own = Arc::downgrade(shared);
    let spilled = move |key, len| {
        if let Some(shared) = own.upgrade() {
            let jobs = shared.react([], [Event::Spilled { key, len }]);
            // This thread has data to write.
            jobs.into_iter().for_each(|job| shared.queue.push(job));
        }
    };
    let own = Arc::downgrade(shared);
    let relieved = move || {
        if let Some(shared) = own.upgrade() {
            let handling = Arc::clone(&shared);
            let handling = async move { handling.handle([]) };
            shared.machine().spawn(handling, &shared.runtime);
        }
    };
    shared
        .store
        .start(needed, notify, spilled, relieved)
        .map_err(|error| PeerError::Directory {
            reason: error.to_string(),
        })
}

/// The IP address by which peers on the other side of a comm reach this machine;
/// empty for transports without hosts.
fn own_host(channel: &Channel) -> String {
    let host = channel.local.host();
    let number: Option<IpAddr> = host.parse().ok();
    if !number.is_some_and(|number| number.is_unspecified()) {
        return host.to_owned();
    }
    // A QUIC socket is bound to all interfaces: ask the system for the route's
    // source address, which sends nothing.
    let (peer, port) = (channel.peer.host(), channel.peer.port());
    let any: [IpAddr; 2] = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
    let found = any.into_iter().find_map(|any| {
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect((peer, port)).ok()?;
        Some(socket.local_addr().ok()?.ip().to_canonical().to_string())
    });
    found.unwrap_or_else(|| host.to_owned())
}

fn listen_address(scheduler: &Address, host: &str, id: &str) -> Address {
    let scheme = scheduler.scheme();
    let text = match scheme {
        "inproc" => format!("inproc://{id}"),
        _ if host.is_empty() => {
            let path = std::env::temp_dir().join(format!("{id}.socket"));
            format!("{scheme}://{}", path.display())
        }
        _ if host.contains(':') => format!("{scheme}://[{host}]:0"),
        _ => format!("{scheme}://{host}:0"),
    };
    // If this is not a valid address, binding to the scheduler's own reports why.
    text.parse().unwrap_or_else(|_| scheduler.clone())
}

impl Shared {
    /// Registers with the scheduler, and returns the interval of heartbeats.
    async fn register(
        &self,
        channel: &mut Channel,
        resources: BTreeMap<String, f64>,
    ) -> Result<Duration, PeerError> {
        let time = now();
        let request = Request::RegisterWorker(RegisterWorker {
            address: self.address.clone(),
            status: WorkerStatus::Running,
            server_id: Nullable(Some(self.id.clone())),
            nthreads: self.nthreads as u64,
            name: Value::from(self.name.as_str()),
            now: time,
            resources: resources.into_iter().collect(),
            memory_limit: Nullable(self.memory_limit),
            metrics: self.metrics(),
            services: Value::Dict([].into()),
            local_directory: self.local_directory.display().to_string(),
            versions: self.versions.clone(),
            nanny: Nullable(None),
            extra_information: Value::Dict([].into()),
            stimulus_id: stimulus("worker-connect", time),
            pid: Some(std::process::id().into()),
            reply: Some(false),
            ..RegisterWorker::default()
        });
        let reply = channel.call::<RegisterWorkerReply>(&request);
        let reply = within(REGISTER_TIMEOUT, "registering the worker", reply).await?;
        if reply.status != ReplyStatus::Ok {
            return Err(PeerError::Refused {
                reason: reply.message.unwrap_or_else(|| reply.status.to_string()),
            });
        }
        Ok(interval(reply.heartbeat_interval).unwrap_or(Duration::from_secs(1)))
    }

    /// Sends heartbeats to the scheduler.
    async fn heartbeats(self: Arc<Self>, mut interval: Duration) -> Ended {
        let mut retiring: Option<Instant> = None;
        loop {
            runtime::sleep(interval).await;
            // A scheduler that has just removed a retiring worker complains of
            // heartbeats that the worker sends before it knows.
            if *self.machine().state.status() == WorkerStatus::ClosingGracefully {
                if retiring.get_or_insert_with(Instant::now).elapsed() < RETIRE_QUIET {
                    continue;
                }
            } else {
                retiring = None;
            }
            let executing = {
                let time = now();
                let machine = self.machine();
                let executing = machine.state.executing();
                executing
                    .map(|(key, since)| (key.clone(), time - since))
                    .collect()
            };
            let request = Request::HeartbeatWorker(HeartbeatWorker {
                address: self.address.clone(),
                now: now(),
                metrics: self.metrics(),
                executing,
                extensions: Value::Dict([].into()),
                reply: Some(true),
                ..HeartbeatWorker::default()
            });
            // If the scheduler is gone, the stream reports it.
            let reply: Result<HeartbeatReply, _> = self.pool.call(&self.scheduler, &request).await;
            let Ok(reply) = reply else {
                continue;
            };
            if reply.status == ReplyStatus::Missing {
                return Ended::Forgotten;
            }
            interval = self::interval(reply.heartbeat_interval).unwrap_or(interval);
        }
    }

    async fn keep_alive(self: Arc<Self>) -> Ended {
        loop {
            runtime::sleep(KEEP_ALIVE).await;
            if let Some(stream) = &self.machine().stream {
                stream.send(KeepAlive::default());
            }
        }
    }

    /// Handles the messages of the scheduler.
    async fn handle_stream(self: Arc<Self>, mut receiver: Receiver) -> Ended {
        loop {
            let batch = match receiver.receive_batch::<ToWorker>().await {
                Ok(Some(batch)) => batch,
                Ok(None) => {
                    let peer = self.scheduler.to_string();
                    return Ended::Lost(PeerError::Closed { peer });
                }
                Err(error) => return Ended::Lost(error),
            };
            let mut end = None;
            let events = batch.into_iter().map_while(|message| match message {
                ToWorker::Close(close) => {
                    let reason = close.reason.unwrap_or_default();
                    end = Some(Ended::ByScheduler { reason });
                    None
                }
                ToWorker::CloseStream(_) => {
                    let reason = "the stream ends".to_owned();
                    end = Some(Ended::ByScheduler { reason });
                    None
                }
                message => Some(Event::FromScheduler(message)),
            });
            self.handle(events);
            if let Some(end) = end {
                return end;
            }
        }
    }
}

/// Converts an interval in seconds, if it is valid.
fn interval(seconds: Option<f64>) -> Option<Duration> {
    let duration = Duration::try_from_secs_f64(seconds?).ok()?;
    Some(duration.clamp(Duration::from_millis(10), Duration::from_secs(600)))
}

struct Parts {
    transports: Transports,
    listener: Listener,
    receiver: Receiver,
    writing: BatchWriter,
    interval: Duration,
}

/// Keeps a worker running until something ends it, and makes it leave the
/// cluster.
async fn supervise(shared: Arc<Shared>, parts: Parts, end: watch::Sender<Option<Ended>>) {
    let Parts {
        transports,
        listener,
        receiver,
        mut writing,
        interval,
    } = parts;
    let listener = Arc::new(listener);
    let mut tasks = TaskSet::new();
    let scheduler = shared.scheduler.to_string();
    let stream = Arc::clone(&shared).handle_stream(receiver);
    tasks.spawn(event::in_comm(&scheduler, stream));
    tasks.spawn(Arc::clone(&shared).heartbeats(interval));
    tasks.spawn(Arc::clone(&shared).keep_alive());
    tasks.spawn(Arc::clone(&shared).monitor());
    tasks.spawn(server::serve(Arc::clone(&shared), Arc::clone(&listener)));
    let ended = tokio::select! {
        () = shared.stop.notified() => Ended::Closed,
        () = shared.failure.occurred() => Ended::Panicked,
        ended = tasks.join_next() => match ended {
            Some(Ok(ended)) => ended,
            // The tasks never return otherwise, and nothing aborts them.
            _ => Ended::Panicked,
        },
        written = writing.finished() => match written {
            Err(error) => {
                // The scheduler's last messages may give the reason.
                let last = runtime::timeout(DRAIN_TIMEOUT, tasks.join_next()).await;
                match last {
                    Ok(Some(Ok(ended))) => ended,
                    _ => Ended::Lost(error),
                }
            }
            // The writer returns only after the stream is dropped, or after a
            // panic.
            Ok(()) => Ended::Panicked,
        },
    };
    if shared.failure.is_set() {
        shared
            .log
            .add(Level::Warning, "the worker panicked, and ends");
    }
    shared.leave();
    shared.queue.close();
    // Do not wait for a scheduler that has stopped reading.
    if runtime::timeout(REGISTER_TIMEOUT, writing.finished())
        .await
        .is_err()
    {
        writing.abort();
    }
    tasks.shutdown().await;
    let mut transfers = core::mem::take(&mut shared.machine().tasks);
    transfers.shutdown().await;
    shared.pool.close().await;
    transports.close().await;
    listener.close().await;
    drop(listener);
    let store = Arc::clone(&shared);
    let _ = runtime::spawn_blocking(move || store.store.close()).await;
    emit(event::Level::Info, || WorkerEvent::Ended { reason: &ended });
    // Sending fails only if nobody waits for the result.
    let _ = end.send(Some(ended));
}

#[cfg(test)]
mod tests;

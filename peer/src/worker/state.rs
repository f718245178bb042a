//! The worker's state machine: events in, actions out. It does no I/O and reads
//! no clock, and the same events always lead to the same actions.
//!
//! A task goes through these phases; those in parentheses are for data of other
//! workers:
//!
//! ```text
//! compute-task ─► Waiting ─► Ready ─► Executing ─► Memory or Error
//!                    ▲
//!    (Missing ◄─► Fetch ─► Flight ─► Memory)
//! ```

use core::cmp::Ordering;
use core::time::Duration;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use bytes::Bytes;

use crate::protocol::{
    AddKeys, ComputeTask, FromWorker, Keys, Nullable, ReleaseWorkerData, ReplyStatus,
    RequestRefreshWhoHas, Reschedule, StartStop, StealResponse, TaskErred, TaskFinished, ToWorker,
    WorkerStatus, WorkerStatusChange,
};
use crate::story::{Stimulus, Story, TaskChange, TaskEvent};
use crate::value::Serialized;
use crate::{Key, Value};

/// The address of another worker.
pub(crate) type Peer = Arc<str>;

/// Limits of a worker.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Maximum number of tasks that run at once.
    pub(crate) nthreads: usize,
    /// Maximum number of peers asked for data at once.
    pub(crate) transfer_count: usize,
    /// Maximum number of bytes requested from a peer at once, unless a single
    /// datum is larger.
    pub(crate) transfer_len: u64,
    /// Pause before a busy peer is asked again.
    pub(crate) busy_pause: Duration,
    /// Interval at which the scheduler is asked where missing data is.
    pub(crate) search_interval: Duration,
}

impl Default for Limits {
    /// Dask's defaults, for one thread.
    fn default() -> Self {
        Self {
            nthreads: 1,
            transfer_count: 10,
            transfer_len: 50_000_000,
            busy_pause: Duration::from_millis(150),
            search_interval: Duration::from_secs(1),
        }
    }
}

/// The size and type of a datum.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Description {
    /// Size in bytes as Dask counts it.
    pub(crate) nbytes: u64,
    /// The pickle of the datum's class.
    pub(crate) class: Option<Bytes>,
    /// The name of the datum's class.
    pub(crate) typename: Cow<'static, str>,
}

/// An event that the state machine handles.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A message from the scheduler.
    FromScheduler(ToWorker),
    /// A task has run.
    Executed(Executed),
    /// A task could not run because inputs turned out to be lost.
    InputsLost { key: Key, lost: Vec<Key> },
    /// Data turned out to be lost.
    Lost(Vec<Key>),
    /// The process takes too much memory, or no longer does.
    Paused(bool),
    /// A request for data has ended.
    Fetched(Fetched),
    /// Data sent by a client was put into the store.
    Stored(Vec<(Key, Description)>),
    /// A busy peer may be asked again.
    PeerAvailable(Peer),
    /// It is time to ask the scheduler for missing data again.
    Search,
    /// The data of a key went to disk, which freed `len` bytes of memory.
    Spilled { key: Key, len: u64 },
}

impl Event {
    /// Stimulus of everything that follows from this event.
    fn stimulus(&self, now: f64) -> Stimulus {
        let what = match self {
            Self::FromScheduler(message) => match stimulus_of(message) {
                Ok(text) => return Stimulus::of_message(text),
                Err(op) => op,
            },
            Self::Executed(executed) if executed.outcome.is_err() => "task-erred",
            Self::Executed(_) => "task-finished",
            Self::InputsLost { .. } | Self::Lost(_) => "lost-data",
            Self::Paused(_) => "worker-status-change",
            Self::Fetched(fetched) => match fetched.answer {
                Answer::Data(_) => "gather-dep-success",
                Answer::Busy => "gather-dep-busy",
                Answer::Gone => "gather-dep-network-failure",
            },
            Self::Stored(_) => "update-data",
            Self::PeerAvailable(_) => "retry-busy-worker",
            Self::Search => "find-missing",
            Self::Spilled { .. } => "spill",
        };
        Stimulus::here(what, now)
    }
}

/// The outcome of a task that has run.
#[derive(Clone, Debug)]
pub(crate) struct Executed {
    pub(crate) key: Key,
    /// The description of the result, which is in the store, or the exception.
    pub(crate) outcome: Result<Description, Box<Failure>>,
    /// Start and end, in seconds since 1970.
    pub(crate) start: f64,
    pub(crate) stop: f64,
    /// The steps done on data for the task.
    pub(crate) steps: Vec<StartStop>,
    pub(crate) thread: Option<i64>,
}

/// An exception in the form of `task-erred`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    pub(crate) exception: Value,
    pub(crate) exception_text: String,
    pub(crate) traceback_text: String,
}

/// The outcome of a request for data.
#[derive(Clone, Debug)]
pub(crate) struct Fetched {
    pub(crate) peer: Peer,
    pub(crate) answer: Answer,
    /// Start and end of the request, in seconds since 1970.
    pub(crate) start: f64,
    pub(crate) stop: f64,
}

#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// The data that the peer had is in the store.
    Data(Vec<(Key, Description)>),
    /// The peer is busy.
    Busy,
    /// The peer cannot be reached.
    Gone,
}

/// An action for the caller to do.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Run a task, then report [`Event::Executed`].
    Execute(Box<Run>),
    /// Request data from a peer, put it into the store, then report
    /// [`Event::Fetched`].
    Fetch { peer: Peer, keys: Vec<Key> },
    /// Close all comms with a peer that has left the cluster, which ends pending
    /// requests to it.
    Disconnect(Peer),
    /// Send a message to the scheduler.
    Send(Box<FromWorker>),
    /// Remove a datum from the store.
    Forget(Key),
    /// Report this event after a delay.
    Wake { after: Duration, event: Box<Event> },
    /// Emit an event of a task; only after [`State::watch_tasks`].
    Report(TaskEvent),
}

/// A task to run.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) key: Key,
    pub(crate) run_spec: Serialized,
    /// The keys of its inputs, all of which are in the store.
    pub(crate) dependencies: Vec<Key>,
    pub(crate) is_actor: bool,
}

/// The phase of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Dependencies are missing.
    Waiting,
    /// All dependencies are in the store.
    Ready,
    /// The task is executing.
    Executing,
    /// The result is in the store.
    Memory,
    /// The task failed.
    Error,
    /// The data is queued for fetching.
    Fetch,
    /// The data is being fetched.
    Flight,
    /// The data is to be fetched, but no holder is known.
    Missing,
    /// The task was just added.
    Released,
    /// The task was removed.
    Forgotten,
}

const PHASE_COUNT: usize = 10;

impl Phase {
    /// Dask's name of the phase.
    const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Ready => "ready",
            Self::Executing => "executing",
            Self::Memory => "memory",
            Self::Error => "error",
            Self::Fetch => "fetch",
            Self::Flight => "flight",
            Self::Missing => "missing",
            Self::Released => "released",
            Self::Forgotten => "forgotten",
        }
    }

    const ALL: [Self; PHASE_COUNT] = [
        Self::Waiting,
        Self::Ready,
        Self::Executing,
        Self::Memory,
        Self::Error,
        Self::Fetch,
        Self::Flight,
        Self::Missing,
        Self::Released,
        Self::Forgotten,
    ];
}

/// The priority of a task: the scheduler's three numbers; among equals, the
/// latest comes first.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Priority {
    numbers: [f64; 3],
    generation: i64,
}

impl Eq for Priority {}

impl PartialOrd for Priority {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Priority {
    fn cmp(&self, other: &Self) -> Ordering {
        let numbers = self.numbers.iter().zip(&other.numbers);
        let by_numbers = numbers.map(|(one, another)| one.total_cmp(another));
        by_numbers
            .fold(Ordering::Equal, Ordering::then)
            .then(self.generation.cmp(&other.generation))
    }
}

type Queue = BTreeSet<(Priority, Key)>;

/// Maximum number of peers that a key is queued at. When a holder fails, the key
/// leaves all these queues and enters them again.
const MAX_HOLDERS: usize = 16;

#[derive(Debug)]
struct Task {
    phase: Phase,
    priority: Priority,
    /// The computation that the scheduler requested. Without one, the task exists
    /// for its data, or executes although its result is not wanted any more.
    computation: Option<Box<Computation>>,
    /// Whether the scheduler requested a replica.
    is_acquired: bool,
    /// Tasks that wait for this one, or are ready and need it.
    dependents: BTreeSet<Key>,
    /// The peers to fetch from next, at most [`MAX_HOLDERS`]. While the key waits
    /// to be fetched, it is queued at all of them.
    holders: Vec<Peer>,
    /// Further holders, which replace failed ones.
    reserve: Vec<Peer>,
    description: Description,
}

#[derive(Debug, Default)]
struct Computation {
    run_id: i64,
    /// The task to run, until it starts. The rest of the message is dropped:
    /// there may be very many tasks.
    run_spec: Option<Serialized>,
    is_actor: bool,
    /// The whole message while the key is in flight, which may make running the
    /// task unnecessary.
    message: Option<Box<ComputeTask>>,
    dependencies: Vec<Key>,
    missing_count: usize,
    resources: Vec<(String, f64)>,
    startstops: Vec<StartStop>,
}

impl Task {
    fn is_wanted(&self) -> bool {
        self.is_acquired || !self.dependents.is_empty()
    }
}

#[derive(Debug, Default)]
struct PeerState {
    /// The keys to fetch from this peer.
    keys: Queue,
    /// The keys of the pending request.
    asked: Option<Vec<Key>>,
    is_busy: bool,
}

/// Start time of an executing task, and the resources that it holds.
#[derive(Debug)]
struct Running {
    since: f64,
    resources: Vec<(String, f64)>,
}

/// The state of a worker.
#[derive(Debug)]
pub(crate) struct State {
    address: Peer,
    limits: Limits,
    status: WorkerStatus,
    /// The store is full.
    is_full: bool,
    tasks: HashMap<Key, Task>,
    counts: [u64; PHASE_COUNT],
    ready: Queue,
    /// Ready tasks that need resources.
    constrained: Queue,
    free_resources: BTreeMap<String, f64>,
    executing: BTreeMap<Key, Running>,
    peers: BTreeMap<Peer, PeerState>,
    flight_count: usize,
    missing: BTreeSet<Key>,
    is_searching: bool,
    generation: i64,
    now: f64,
    /// Stimulus of the event that is being handled.
    stimulus: Stimulus,
    story: Story,
    is_watched: bool,
    actions: Vec<Action>,
}

impl State {
    /// Returns the state of a running worker without tasks.
    pub(crate) fn new(
        address: &str,
        limits: Limits,
        resources: impl IntoIterator<Item = (String, f64)>,
    ) -> Self {
        Self {
            address: address.into(),
            limits,
            status: WorkerStatus::Running,
            is_full: false,
            tasks: HashMap::new(),
            counts: [0; PHASE_COUNT],
            ready: Queue::new(),
            constrained: Queue::new(),
            free_resources: resources.into_iter().collect(),
            executing: BTreeMap::new(),
            peers: BTreeMap::new(),
            flight_count: 0,
            missing: BTreeSet::new(),
            is_searching: false,
            generation: 0,
            now: 0.0,
            stimulus: Stimulus::here("start", 0.0),
            story: Story::default(),
            is_watched: false,
            actions: Vec::new(),
        }
    }

    /// Handles events that occur at the same time, `now` seconds after 1970, and
    /// returns the resulting actions.
    pub(crate) fn handle(
        &mut self,
        now: f64,
        events: impl IntoIterator<Item = Event>,
    ) -> Vec<Action> {
        self.now = now;
        for event in events {
            self.stimulus = event.stimulus(now);
            self.apply(event);
        }
        if self.status == WorkerStatus::Running && !self.is_full {
            self.stimulus = Stimulus::here("ensure-communicating", now);
            self.start_transfers();
            self.stimulus = Stimulus::here("ensure-computing", now);
            self.start_tasks();
        }
        self.search();
        core::mem::take(&mut self.actions)
    }

    /// The status of the worker, as the scheduler knows it.
    pub(crate) const fn status(&self) -> &WorkerStatus {
        &self.status
    }

    /// Sets whether the store is full. While it is, no task is started and
    /// nothing is fetched; this is too short to be reported to the scheduler.
    pub(crate) const fn set_full(&mut self, is_full: bool) {
        self.is_full = is_full;
    }

    /// Starts nothing any more.
    pub(crate) fn close(&mut self) {
        self.status = WorkerStatus::Closing;
    }

    /// Turns [`Action::Report`] on or off.
    pub(crate) const fn watch_tasks(&mut self, is_watched: bool) {
        self.is_watched = is_watched;
    }

    /// The last events of all tasks.
    pub(crate) const fn story(&self) -> &Story {
        &self.story
    }

    /// The number of tasks in each state, with Dask's names of the states.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let phases = Phase::ALL.into_iter().zip(self.counts);
        phases
            .filter(|(_, count)| *count != 0)
            .map(|(phase, count)| (phase.name(), count))
    }

    /// The executing tasks, and when they started.
    pub(crate) fn executing(&self) -> impl Iterator<Item = (&Key, f64)> {
        self.executing
            .iter()
            .map(|(key, running)| (key, running.since))
    }

    /// The inputs of the tasks that start next, and of those that start when the
    /// pending requests are answered. Empty unless the worker is running.
    pub(crate) fn needed_soon(&self) -> Vec<Key> {
        if self.status != WorkerStatus::Running {
            return Vec::new();
        }
        let ready = self.ready.iter().map(|(_, key)| key);
        let constrained = self.constrained.iter().map(|(_, key)| key);
        let count = self.limits.nthreads;
        let in_flight = self.peers.values().filter_map(|peer| peer.asked.as_ref());
        let in_flight = in_flight.flatten().filter_map(|key| self.tasks.get(key));
        let waiting = in_flight.flat_map(|task| &task.dependents);
        let next = ready.take(count).chain(constrained.take(count));
        let next = next.chain(waiting.take(count));
        let tasks = next.filter_map(|key| self.tasks.get(key)?.computation.as_ref());
        tasks
            .flat_map(|computation| &computation.dependencies)
            .cloned()
            .collect()
    }

    /// The number of pending requests for data.
    pub(crate) const fn transfer_count(&self) -> usize {
        self.flight_count
    }

    /// The number of bytes requested from peers.
    pub(crate) fn transfer_len(&self) -> u64 {
        let asked = self.peers.values().filter_map(|state| state.asked.as_ref());
        let tasks = asked.flatten().filter_map(|key| self.tasks.get(key));
        tasks.map(|task| task.description.nbytes).sum()
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::FromScheduler(message) => self.handle_message(message),
            Event::Executed(executed) => self.executed(executed),
            Event::InputsLost { key, lost } => self.inputs_lost(&key, &lost),
            Event::Lost(keys) => self.lost(&keys),
            Event::Paused(is_paused) => {
                let (from, to) = if is_paused {
                    (WorkerStatus::Running, WorkerStatus::Paused)
                } else {
                    (WorkerStatus::Paused, WorkerStatus::Running)
                };
                if self.status == from {
                    self.status = to.clone();
                    self.send(WorkerStatusChange {
                        status: to,
                        stimulus_id: stimulus("worker-status-change", self.now),
                        ..WorkerStatusChange::default()
                    });
                }
            }
            Event::Fetched(fetched) => self.fetched(fetched),
            Event::Stored(data) => {
                for (key, description) in data {
                    self.stored(&key, description);
                }
            }
            Event::PeerAvailable(peer) => {
                if let Some(state) = self.peers.get_mut(&peer) {
                    state.is_busy = false;
                }
                self.forget_idle_peer(&peer);
            }
            Event::Search => self.is_searching = false,
            Event::Spilled { key, len } => self.record(key, TaskChange::Spilled { len }),
        }
    }

    fn record(&mut self, key: Key, change: TaskChange) {
        let event = TaskEvent {
            key,
            change,
            stimulus: self.stimulus.clone(),
            time: self.now,
        };
        if self.is_watched {
            self.actions.push(Action::Report(event.clone()));
        }
        self.story.add(event);
    }

    fn handle_message(&mut self, message: ToWorker) {
        match message {
            ToWorker::ComputeTask(message) => self.compute(message),
            ToWorker::FreeKeys(message) => {
                for key in &message.keys {
                    self.free(key, &message.stimulus_id);
                }
            }
            ToWorker::RemoveReplicas(message) => {
                self.remove_replicas(&message.keys, &message.stimulus_id);
            }
            ToWorker::AcquireReplicas(message) => {
                let sizes: HashMap<Key, u64> =
                    message.nbytes.unwrap_or_default().into_iter().collect();
                for (key, holders) in message.who_has {
                    let nbytes = sizes.get(&key).copied().unwrap_or_default();
                    // Replicas come after the inputs of waiting tasks.
                    let priority = self.next_priority(&[1.0, 0.0, 0.0]);
                    let task = self.ensure(&key, nbytes, priority);
                    task.is_acquired = task.phase != Phase::Memory;
                    self.locate(&key, &holders);
                }
            }
            ToWorker::StealRequest(message) => {
                let state = self.steal_state(&message.key);
                self.send(StealResponse {
                    key: message.key.clone(),
                    state: Nullable(state.map(str::to_owned)),
                    stimulus_id: message.stimulus_id.clone(),
                    ..StealResponse::default()
                });
                if matches!(state, Some("waiting" | "ready" | "constrained")) {
                    self.withdraw(&message.key);
                }
            }
            ToWorker::CancelCompute(message) => {
                if matches!(
                    self.steal_state(&message.key),
                    Some("waiting" | "ready" | "constrained")
                ) {
                    self.withdraw(&message.key);
                }
            }
            ToWorker::RefreshWhoHas(message) => {
                for (key, holders) in message.who_has {
                    self.locate(&key, &holders);
                }
            }
            // A worker that has begun to leave does not come back.
            ToWorker::WorkerStatusChange(_) if self.status == WorkerStatus::Closing => {}
            ToWorker::WorkerStatusChange(message) => {
                self.status.clone_from(&message.status);
                self.send(WorkerStatusChange {
                    status: message.status,
                    stimulus_id: message.stimulus_id,
                    ..WorkerStatusChange::default()
                });
            }
            ToWorker::RemoveWorker(message) => {
                self.forget_peer(&message.worker);
                let peer = Peer::from(message.worker);
                self.actions.push(Action::Disconnect(peer));
            }
            // Messages about the stream, or from plugins.
            ToWorker::Close(_) | ToWorker::CloseStream(_) | ToWorker::Unknown(_) => {}
        }
    }

    // Computing

    fn compute(&mut self, message: ComputeTask) {
        let key = message.key.clone();
        let run_id = message.run_id;
        let phase = self
            .tasks
            .get(&key)
            .map_or(Phase::Released, |task| task.phase);
        let state = phase.name();
        self.record(key.clone(), TaskChange::Asked { state });
        match self.tasks.get_mut(&key) {
            Some(task) if task.phase == Phase::Memory => {
                let description = task.description.clone();
                self.send(finished(
                    key,
                    run_id,
                    description,
                    Vec::new(),
                    None,
                    self.now,
                ));
            }
            Some(task) if matches!(task.phase, Phase::Waiting | Phase::Ready) => {
                if let Some(computation) = &mut task.computation {
                    computation.run_id = run_id;
                }
            }
            Some(task) if task.phase == Phase::Executing => match &mut task.computation {
                Some(computation) => computation.run_id = run_id,
                // Freed while executing; its result is wanted again.
                None => {
                    task.computation = Some(Box::new(Computation {
                        run_id,
                        ..Computation::default()
                    }));
                }
            },
            // Computed only if it does not arrive.
            Some(task) if task.phase == Phase::Flight => {
                task.computation = Some(Box::new(Computation {
                    run_id,
                    message: Some(Box::new(message)),
                    ..Computation::default()
                }));
            }
            _ => self.begin(message),
        }
    }

    /// Prepares to compute a task that is new, queued for fetching, or failed.
    fn begin(&mut self, mut message: ComputeTask) {
        let key = message.key.clone();
        let priority = self.next_priority(&message.priority);
        self.leave_queues(&key);
        let mut dependencies = Vec::with_capacity(message.nbytes.len());
        let mut missing_count = 0;
        for (dependency, nbytes) in core::mem::take(&mut message.nbytes) {
            if dependency == key {
                continue;
            }
            let task = self.ensure(&dependency, nbytes, priority);
            if !task.dependents.insert(key.clone()) {
                // The dependency is listed twice.
                continue;
            }
            if task.phase != Phase::Memory {
                missing_count += 1;
            }
            dependencies.push(dependency);
        }
        for (dependency, holders) in core::mem::take(&mut message.who_has) {
            if dependency != key {
                self.locate(&dependency, &holders);
            }
        }
        let resources = resources(&message.resource_restrictions);
        let computation = Box::new(Computation {
            run_id: message.run_id,
            run_spec: Some(message.run_spec),
            is_actor: message.actor,
            dependencies,
            missing_count,
            resources,
            ..Computation::default()
        });
        let task = self.entry(&key, priority);
        task.computation = Some(computation);
        task.priority = priority;
        task.holders = Vec::new();
        task.reserve = Vec::new();
        self.set_phase(&key, Phase::Waiting);
        if missing_count == 0 {
            self.become_ready(&key);
        }
    }

    fn become_ready(&mut self, key: &Key) {
        let Some(task) = self.tasks.get(key) else {
            return;
        };
        let entry = (task.priority, key.clone());
        let needs_resources = task
            .computation
            .as_ref()
            .is_some_and(|computation| !computation.resources.is_empty());
        if needs_resources {
            self.constrained.insert(entry);
        } else {
            self.ready.insert(entry);
        }
        self.set_phase(key, Phase::Ready);
    }

    fn start_tasks(&mut self) {
        while self.executing.len() < self.limits.nthreads {
            let Some((_, key)) = self.next_ready() else {
                break;
            };
            let Some(task) = self.tasks.get_mut(&key) else {
                continue;
            };
            let Some(computation) = &mut task.computation else {
                continue;
            };
            let Some(run_spec) = computation.run_spec.take() else {
                continue;
            };
            let is_actor = computation.is_actor;
            let dependencies = core::mem::take(&mut computation.dependencies);
            let resources = computation.resources.clone();
            for (name, amount) in &resources {
                if let Some(free) = self.free_resources.get_mut(name) {
                    *free -= amount;
                }
            }
            self.set_phase(&key, Phase::Executing);
            // A running task holds its inputs itself, so their keys may be
            // released.
            self.unlink(&key, &dependencies);
            let since = self.now;
            let running = Running { since, resources };
            let before = self.executing.insert(key.clone(), running);
            // The task still executes from before it was stored and freed. The
            // first execution to end frees the resources of both.
            if let (Some(before), Some(now)) = (before, self.executing.get_mut(&key)) {
                now.resources.extend(before.resources);
            }
            self.actions.push(Action::Execute(Box::new(Run {
                key,
                run_spec,
                dependencies,
                is_actor,
            })));
        }
    }

    /// Takes the first ready task; one that needs resources if it comes first and
    /// they are free.
    fn next_ready(&mut self) -> Option<(Priority, Key)> {
        let constrained = self.constrained.first();
        let is_first = match (constrained, self.ready.first()) {
            (Some((constrained, _)), Some((ready, _))) => constrained < ready,
            (constrained, _) => constrained.is_some(),
        };
        let can_run = is_first
            && constrained.is_some_and(|(_, key)| {
                let computation = self
                    .tasks
                    .get(key)
                    .and_then(|task| task.computation.as_ref());
                computation.is_some_and(|computation| {
                    computation.resources.iter().all(|(name, amount)| {
                        let free = self.free_resources.get(name);
                        free.is_some_and(|free| free >= amount)
                    })
                })
            });
        if can_run {
            self.constrained.pop_first()
        } else {
            self.ready.pop_first()
        }
    }

    fn executed(&mut self, executed: Executed) {
        let Executed {
            key,
            outcome,
            start,
            stop,
            steps,
            thread,
        } = executed;
        self.stop_executing(&key);
        let Some(task) = self.tasks.get_mut(&key) else {
            // The task was forgotten.
            self.actions.push(Action::Forget(key));
            return;
        };
        if task.phase != Phase::Executing {
            // The result came from elsewhere, and may have been freed since.
            if task.phase != Phase::Memory {
                self.actions.push(Action::Forget(key));
            }
            return;
        }
        let Some(computation) = task.computation.take() else {
            self.executed_after_free(&key, outcome);
            return;
        };
        let mut startstops = computation.startstops;
        startstops.extend(steps);
        startstops.push(startstop("compute", start, stop, None));
        match outcome {
            Ok(description) => {
                self.arrive(&key, description.clone());
                self.send(finished(
                    key,
                    computation.run_id,
                    description,
                    startstops,
                    thread,
                    self.now,
                ));
            }
            Err(failure) => {
                self.set_phase(&key, Phase::Error);
                // Another worker may have the data that could not be computed
                // here.
                if self.tasks.get(&key).is_some_and(Task::is_wanted) {
                    self.fetch(&key);
                }
                self.send(TaskErred {
                    key,
                    run_id: computation.run_id,
                    status: Some(ReplyStatus::Error),
                    exception: failure.exception,
                    // distributed 2025.4.0 to 2026.3.0 require the field.
                    traceback: Some(Value::None),
                    exception_text: Some(failure.exception_text),
                    traceback_text: Some(failure.traceback_text),
                    startstops: Some(startstops),
                    stimulus_id: stimulus("task-erred", self.now),
                    thread,
                    ..TaskErred::default()
                });
            }
        }
    }

    /// Ends the execution of a task, and frees its resources.
    fn stop_executing(&mut self, key: &Key) {
        if let Some(running) = self.executing.remove(key) {
            for (name, amount) in running.resources {
                if let Some(free) = self.free_resources.get_mut(&name) {
                    *free += amount;
                }
            }
        }
    }

    /// Reports the loss of inputs. The scheduler recomputes them or finds other
    /// copies, and then has the task run, here or elsewhere.
    fn inputs_lost(&mut self, key: &Key, lost: &[Key]) {
        self.stop_executing(key);
        self.lost(lost);
        let Some(task) = self.tasks.get_mut(key) else {
            return;
        };
        if task.phase != Phase::Executing {
            return;
        }
        let is_computed = task.computation.take().is_some();
        if self.tasks.get(key).is_some_and(Task::is_wanted) {
            self.fetch(key);
        } else {
            self.remove(key);
        }
        if is_computed {
            self.send(Reschedule {
                key: key.clone(),
                stimulus_id: stimulus("lost-data", self.now),
                ..Reschedule::default()
            });
        }
    }

    fn lost(&mut self, keys: &[Key]) {
        let stimulus_id = stimulus("lost-data", self.now);
        for key in keys {
            let phase = self.tasks.get(key).map(|task| task.phase);
            if phase == Some(Phase::Memory) {
                self.release(key, &stimulus_id);
            }
        }
    }

    /// Handles the result of a task that was freed while it ran. Another task may
    /// need it.
    fn executed_after_free(&mut self, key: &Key, outcome: Result<Description, Box<Failure>>) {
        let is_wanted = self.tasks.get(key).is_some_and(Task::is_wanted);
        match outcome {
            Ok(description) if is_wanted => {
                self.arrive(key, description);
                self.send_add_keys([key.clone()]);
            }
            Ok(_) => {
                self.actions.push(Action::Forget(key.clone()));
                self.remove(key);
            }
            Err(_) if is_wanted => self.fetch(key),
            Err(_) => self.remove(key),
        }
    }

    // Freeing and stealing

    fn free(&mut self, key: &Key, stimulus_id: &str) {
        let Some(task) = self.tasks.get_mut(key) else {
            return;
        };
        task.is_acquired = false;
        match task.phase {
            Phase::Waiting | Phase::Ready => self.withdraw(key),
            Phase::Executing | Phase::Flight => task.computation = None,
            Phase::Memory => self.release(key, stimulus_id),
            Phase::Error | Phase::Fetch | Phase::Missing | Phase::Released | Phase::Forgotten => {
                self.drop_unless_wanted(key)
            }
        }
    }

    /// Stops computing a task that is waiting or ready.
    fn withdraw(&mut self, key: &Key) {
        self.leave_queues(key);
        let Some(task) = self.tasks.get_mut(key) else {
            return;
        };
        let dependencies = task
            .computation
            .take()
            .map(|computation| computation.dependencies);
        self.unlink(key, &dependencies.unwrap_or_default());
        if self.tasks.get(key).is_some_and(Task::is_wanted) {
            self.fetch(key);
        } else {
            self.remove(key);
        }
    }

    /// Deletes data in memory. Tasks that wait for it here fetch it from other
    /// workers.
    fn release(&mut self, key: &Key, stimulus_id: &str) {
        self.actions.push(Action::Forget(key.clone()));
        self.send(ReleaseWorkerData {
            key: key.clone(),
            stimulus_id: stimulus_id.to_owned(),
            ..ReleaseWorkerData::default()
        });
        let Some(task) = self.tasks.get_mut(key) else {
            return;
        };
        let dependents: Vec<Key> = task.dependents.iter().cloned().collect();
        if dependents.is_empty() {
            self.remove(key);
            return;
        }
        for dependent in dependents {
            let Some(task) = self.tasks.get_mut(&dependent) else {
                continue;
            };
            if let Some(computation) = &mut task.computation {
                computation.missing_count += 1;
            }
            if task.phase == Phase::Ready {
                self.leave_queues(&dependent);
                self.set_phase(&dependent, Phase::Waiting);
            }
        }
        self.fetch(key);
    }

    fn remove_replicas(&mut self, keys: &Keys, stimulus_id: &str) {
        let mut kept = Vec::new();
        for key in keys {
            match self.tasks.get(key) {
                Some(task) if task.phase != Phase::Memory => {}
                Some(task) if !task.dependents.is_empty() => kept.push(key.clone()),
                Some(_) => self.release(key, stimulus_id),
                None => {}
            }
        }
        if !kept.is_empty() {
            self.send(AddKeys {
                keys: Keys(kept),
                stimulus_id: stimulus_id.to_owned(),
                ..AddKeys::default()
            });
        }
    }

    /// The reply to a request to give a task to another worker, in the states
    /// that the scheduler accepts.
    fn steal_state(&self, key: &Key) -> Option<&'static str> {
        let task = self.tasks.get(key)?;
        let is_computed = task.computation.is_some();
        match task.phase {
            Phase::Ready => {
                let entry = (task.priority, key.clone());
                let is_constrained = self.constrained.contains(&entry);
                Some(if is_constrained {
                    "constrained"
                } else {
                    "ready"
                })
            }
            Phase::Executing if !is_computed => Some("cancelled"),
            Phase::Waiting | Phase::Executing | Phase::Memory => Some(task.phase.name()),
            Phase::Flight if is_computed => Some("resumed"),
            Phase::Error
            | Phase::Fetch
            | Phase::Flight
            | Phase::Missing
            | Phase::Released
            | Phase::Forgotten => None,
        }
    }

    // Data

    /// Marks data as stored, and readies the tasks that waited for it.
    fn arrive(&mut self, key: &Key, description: Description) {
        self.leave_queues(key);
        let Some(task) = self.tasks.get_mut(key) else {
            return;
        };
        task.description = description;
        task.holders = Vec::new();
        task.reserve = Vec::new();
        task.is_acquired = false;
        let dependents: Vec<Key> = task.dependents.iter().cloned().collect();
        self.set_phase(key, Phase::Memory);
        for dependent in dependents {
            let Some(task) = self.tasks.get_mut(&dependent) else {
                continue;
            };
            let Some(computation) = &mut task.computation else {
                continue;
            };
            computation.missing_count = computation.missing_count.saturating_sub(1);
            if computation.missing_count == 0 && task.phase == Phase::Waiting {
                self.become_ready(&dependent);
            }
        }
    }

    /// Handles data sent by a client.
    fn stored(&mut self, key: &Key, description: Description) {
        let priority = self.next_priority(&[0.0; 3]);
        let task = self.entry(key, priority);
        if task.phase == Phase::Memory {
            return;
        }
        let computation = task.computation.take();
        if let Some(computation) = &computation {
            let dependencies = computation.dependencies.clone();
            self.unlink(key, &dependencies);
        }
        self.arrive(key, description.clone());
        // The scheduler waits for a computation that is no longer needed.
        if let Some(computation) = computation {
            let startstops = computation.startstops;
            let run_id = computation.run_id;
            self.send(finished(
                key.clone(),
                run_id,
                description,
                startstops,
                None,
                self.now,
            ));
        }
    }

    /// Sets the holders of a key.
    fn locate(&mut self, key: &Key, holders: &[String]) {
        let Some(task) = self.tasks.get(key) else {
            return;
        };
        let phase = task.phase;
        if !matches!(phase, Phase::Fetch | Phase::Flight | Phase::Missing) {
            return;
        }
        self.leave_queues(key);
        let mut known = Vec::with_capacity(holders.len());
        for holder in holders {
            if **holder != *self.address {
                let known_peer = self.peers.get_key_value(holder.as_str());
                known.push(match known_peer {
                    Some((peer, _)) => Arc::clone(peer),
                    None => Peer::from(holder.as_str()),
                });
            }
        }
        if known.len() > MAX_HOLDERS {
            // Each worker starts with different holders.
            let mut hasher = DefaultHasher::new();
            (&self.address, key).hash(&mut hasher);
            let len = known.len() as u64;
            let first = hasher.finish().checked_rem(len).unwrap_or_default();
            known.rotate_left(usize::try_from(first).unwrap_or_default());
        }
        if let Some(task) = self.tasks.get_mut(key) {
            task.reserve = known.split_off(known.len().min(MAX_HOLDERS));
            task.holders = known;
        }
        if phase != Phase::Flight {
            self.fetch(key);
        }
    }

    /// Queues a key at its holders, or as missing if there are none.
    fn fetch(&mut self, key: &Key) {
        let Some(task) = self.tasks.get_mut(key) else {
            return;
        };
        let free_count = MAX_HOLDERS.saturating_sub(task.holders.len());
        let rest = task.reserve.len().saturating_sub(free_count);
        task.holders.extend(task.reserve.drain(rest..));
        let entry = (task.priority, key.clone());
        if task.holders.is_empty() {
            self.missing.insert(key.clone());
            self.set_phase(key, Phase::Missing);
            return;
        }
        for peer in task.holders.clone() {
            let keys = &mut self.peers.entry(peer).or_default().keys;
            keys.insert(entry.clone());
        }
        self.set_phase(key, Phase::Fetch);
    }

    fn start_transfers(&mut self) {
        while self.flight_count < self.limits.transfer_count {
            // Of the peers that have the most urgent key, prefer the one with the
            // fewest keys queued; among equals, each worker prefers a different
            // one.
            let mut best: Option<(&(Priority, Key), usize, u64, &Peer)> = None;
            for (peer, state) in &self.peers {
                let Some(first) = state.keys.first() else {
                    continue;
                };
                if state.asked.is_some() || state.is_busy {
                    continue;
                }
                let chance = self.chance(peer);
                let rank = (first, state.keys.len(), chance, peer);
                if best.is_none_or(|best| rank < best) {
                    best = Some(rank);
                }
            }
            let Some((_, _, _, peer)) = best else {
                return;
            };
            let peer = Arc::clone(peer);
            let mut keys = Vec::new();
            let mut len = 0_u64;
            for (_, key) in &self.peers[&peer].keys {
                let nbytes = self
                    .tasks
                    .get(key)
                    .map_or(0, |task| task.description.nbytes);
                len = len.saturating_add(nbytes);
                if len > self.limits.transfer_len && !keys.is_empty() {
                    break;
                }
                keys.push(key.clone());
            }
            for key in &keys {
                self.leave_queues(key);
                self.set_phase(key, Phase::Flight);
                let peer = Arc::clone(&peer);
                self.record(key.clone(), TaskChange::Requested { peer });
            }
            self.peers.entry(Arc::clone(&peer)).or_default().asked = Some(keys.clone());
            self.flight_count += 1;
            self.actions.push(Action::Fetch { peer, keys });
        }
    }

    /// A hash that differs between pairs of workers.
    fn chance(&self, peer: &Peer) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.address.hash(&mut hasher);
        peer.hash(&mut hasher);
        hasher.finish()
    }

    fn fetched(&mut self, fetched: Fetched) {
        let Fetched {
            peer,
            answer,
            start,
            stop,
        } = fetched;
        let asked = self
            .peers
            .get_mut(&peer)
            .and_then(|state| state.asked.take());
        let Some(asked) = asked else {
            return;
        };
        self.flight_count = self.flight_count.saturating_sub(1);
        let mut data = HashMap::new();
        let mut reason = "it does not have it";
        match answer {
            Answer::Data(received) => data.extend(received),
            Answer::Busy => {
                self.peers.entry(Arc::clone(&peer)).or_default().is_busy = true;
                self.actions.push(Action::Wake {
                    after: self.limits.busy_pause,
                    event: Box::new(Event::PeerAvailable(Arc::clone(&peer))),
                });
                for key in asked {
                    self.not_fetched(&key, &peer, "it is busy");
                }
                return;
            }
            Answer::Gone => {
                reason = "it cannot be reached";
                self.forget_peer(&peer);
            }
        }
        let mut arrived = Vec::new();
        for key in asked {
            let Some(task) = self.tasks.get_mut(&key) else {
                self.actions.push(Action::Forget(key));
                continue;
            };
            // It may have arrived another way, and have been freed since.
            if task.phase != Phase::Flight {
                if task.phase != Phase::Memory {
                    self.actions.push(Action::Forget(key));
                }
                continue;
            }
            let Some(description) = data.remove(&key) else {
                task.holders.retain(|holder| *holder != peer);
                self.not_fetched(&key, &peer, reason);
                continue;
            };
            let computation = task.computation.take();
            if computation.is_none() && !task.is_wanted() {
                self.actions.push(Action::Forget(key.clone()));
                self.remove(&key);
                continue;
            }
            let transfer = startstop("transfer", start, stop, Some(&peer));
            let cause = task.dependents.first().cloned();
            self.arrive(&key, description.clone());
            match computation {
                Some(computation) => {
                    let run_id = computation.run_id;
                    let startstops = vec![transfer];
                    self.send(finished(
                        key,
                        run_id,
                        description,
                        startstops,
                        None,
                        self.now,
                    ));
                }
                None => {
                    // The transfer time counts for one of the tasks that wait for
                    // it.
                    let cause = cause.and_then(|cause| self.tasks.get_mut(&cause));
                    if let Some(cause) = cause.and_then(|task| task.computation.as_mut()) {
                        cause.startstops.push(transfer);
                    }
                    arrived.push(key);
                }
            }
        }
        if !arrived.is_empty() {
            self.send_add_keys(arrived);
        }
        self.forget_idle_peer(&peer);
    }

    /// Handles requested data that did not arrive.
    fn not_fetched(&mut self, key: &Key, peer: &Peer, reason: &'static str) {
        let phase = self.tasks.get(key).map(|task| task.phase);
        if phase != Some(Phase::Flight) {
            return;
        }
        let peer = Arc::clone(peer);
        self.record(key.clone(), TaskChange::NotSent { peer, reason });
        let Some(task) = self.tasks.get_mut(key) else {
            return;
        };
        let computation = task.computation.take();
        let message = computation.and_then(|computation| computation.message);
        match message {
            Some(message) => self.begin(*message),
            None if task.is_wanted() => self.fetch(key),
            None => self.remove(key),
        }
    }

    fn forget_peer(&mut self, peer: &str) {
        let affected: Vec<Key> = match self.peers.get_mut(peer) {
            Some(state) => core::mem::take(&mut state.keys)
                .into_iter()
                .map(|(_, key)| key)
                .collect(),
            None => Vec::new(),
        };
        for key in affected {
            self.leave_queues(&key);
            if let Some(task) = self.tasks.get_mut(&key) {
                task.holders.retain(|holder| **holder != *peer);
            }
            self.fetch(&key);
        }
        // Pending requests to other peers, whose keys may list this one as a
        // holder.
        let asked: Vec<Key> = self
            .peers
            .values()
            .filter_map(|state| state.asked.as_ref())
            .flatten()
            .cloned()
            .collect();
        for key in asked {
            if let Some(task) = self.tasks.get_mut(&key) {
                task.holders.retain(|holder| **holder != *peer);
            }
        }
        self.forget_idle_peer(peer);
    }

    /// Removes a peer without queued keys or pending requests.
    fn forget_idle_peer(&mut self, peer: &str) {
        let is_idle = self
            .peers
            .get(peer)
            .is_some_and(|state| state.keys.is_empty() && state.asked.is_none() && !state.is_busy);
        if is_idle {
            self.peers.remove(peer);
        }
    }

    /// Asks the scheduler for missing data, at intervals.
    fn search(&mut self) {
        if self.missing.is_empty() || self.is_searching {
            return;
        }
        self.is_searching = true;
        let keys = self.missing.iter().cloned().collect();
        self.send(RequestRefreshWhoHas {
            keys: Keys(keys),
            stimulus_id: stimulus("find-missing", self.now),
            ..RequestRefreshWhoHas::default()
        });
        self.actions.push(Action::Wake {
            after: self.limits.search_interval,
            event: Box::new(Event::Search),
        });
    }

    // Tasks

    /// The task of a key; it is queued for fetching if it is new or failed.
    fn ensure(&mut self, key: &Key, nbytes: u64, priority: Priority) -> &mut Task {
        let is_new = !self.tasks.contains_key(key);
        let task = self.entry(key, priority);
        if task.phase != Phase::Memory {
            task.description.nbytes = nbytes;
        }
        let is_useless = is_new || task.phase == Phase::Error;
        let is_more_urgent =
            matches!(task.phase, Phase::Fetch | Phase::Missing) && priority < task.priority;
        if is_useless || is_more_urgent {
            self.leave_queues(key);
            self.entry(key, priority).priority = priority;
            self.fetch(key);
        }
        self.entry(key, priority)
    }

    fn entry(&mut self, key: &Key, priority: Priority) -> &mut Task {
        let counts = &mut self.counts;
        self.tasks.entry(key.clone()).or_insert_with(|| {
            let phase = Phase::Released;
            counts[phase as usize] += 1;
            Task {
                phase,
                priority,
                computation: None,
                is_acquired: false,
                dependents: BTreeSet::new(),
                holders: Vec::new(),
                reserve: Vec::new(),
                description: Description::default(),
            }
        })
    }

    fn set_phase(&mut self, key: &Key, phase: Phase) {
        if let Some(task) = self.tasks.get_mut(key) {
            self.counts[task.phase as usize] -= 1;
            self.counts[phase as usize] += 1;
            let from = core::mem::replace(&mut task.phase, phase);
            self.record_state(key, from, phase);
        }
    }

    fn record_state(&mut self, key: &Key, from: Phase, to: Phase) {
        if from != to {
            let (from, to) = (from.name(), to.name());
            self.record(key.clone(), TaskChange::State { from, to });
        }
    }

    fn remove(&mut self, key: &Key) {
        self.leave_queues(key);
        if let Some(task) = self.tasks.remove(key) {
            self.counts[task.phase as usize] -= 1;
            self.record_state(key, task.phase, Phase::Forgotten);
        }
    }

    /// Removes a key from the queues that its phase puts it in.
    fn leave_queues(&mut self, key: &Key) {
        let Some(task) = self.tasks.get(key) else {
            return;
        };
        match task.phase {
            Phase::Ready => {
                let entry = (task.priority, key.clone());
                if !self.ready.remove(&entry) {
                    self.constrained.remove(&entry);
                }
            }
            Phase::Fetch => {
                let entry = (task.priority, key.clone());
                for holder in &task.holders {
                    if let Some(state) = self.peers.get_mut(holder) {
                        state.keys.remove(&entry);
                        if state.keys.is_empty() && state.asked.is_none() && !state.is_busy {
                            self.peers.remove(holder);
                        }
                    }
                }
            }
            Phase::Missing => {
                self.missing.remove(key);
            }
            _ => {}
        }
    }

    /// Removes a task from the dependents of its dependencies.
    fn unlink(&mut self, key: &Key, dependencies: &[Key]) {
        for dependency in dependencies {
            if let Some(task) = self.tasks.get_mut(dependency) {
                task.dependents.remove(key);
                if matches!(task.phase, Phase::Fetch | Phase::Missing) {
                    self.drop_unless_wanted(dependency);
                }
            }
        }
    }

    fn drop_unless_wanted(&mut self, key: &Key) {
        if !self.tasks.get(key).is_some_and(Task::is_wanted) {
            self.remove(key);
        }
    }

    fn next_priority(&mut self, numbers: &[f64]) -> Priority {
        self.generation -= 1;
        let mut first = [0.0; 3];
        for (to, from) in first.iter_mut().zip(numbers) {
            *to = *from;
        }
        Priority {
            numbers: first,
            generation: self.generation,
        }
    }

    // Messages

    fn send(&mut self, message: impl Into<FromWorker>) {
        self.actions.push(Action::Send(Box::new(message.into())));
    }

    fn send_add_keys(&mut self, keys: impl Into<Vec<Key>>) {
        self.send(AddKeys {
            keys: Keys(keys.into()),
            stimulus_id: stimulus("gather-dep-success", self.now),
            ..AddKeys::default()
        });
    }
}

fn finished(
    key: Key,
    run_id: i64,
    description: Description,
    startstops: Vec<StartStop>,
    thread: Option<i64>,
    now: f64,
) -> TaskFinished {
    TaskFinished {
        key,
        run_id,
        status: Some(ReplyStatus::Ok),
        nbytes: description.nbytes,
        class: Nullable(description.class),
        typename: description.typename.into_owned(),
        startstops,
        stimulus_id: stimulus("task-finished", now),
        thread,
        ..TaskFinished::default()
    }
}

pub(super) fn startstop(action: &str, start: f64, stop: f64, source: Option<&str>) -> StartStop {
    StartStop {
        action: action.to_owned(),
        start,
        stop,
        source: source.map(str::to_owned),
        ..StartStop::default()
    }
}

/// The stimulus id of a message; its op if it has none.
fn stimulus_of(message: &ToWorker) -> Result<&str, &'static str> {
    match message {
        ToWorker::ComputeTask(message) => Ok(&message.stimulus_id),
        ToWorker::FreeKeys(message) => Ok(&message.stimulus_id),
        ToWorker::RemoveReplicas(message) => Ok(&message.stimulus_id),
        ToWorker::AcquireReplicas(message) => Ok(&message.stimulus_id),
        ToWorker::StealRequest(message) => Ok(&message.stimulus_id),
        ToWorker::RefreshWhoHas(message) => Ok(&message.stimulus_id),
        ToWorker::WorkerStatusChange(message) => Ok(&message.stimulus_id),
        ToWorker::RemoveWorker(message) => message.stimulus_id.as_deref().ok_or("remove-worker"),
        ToWorker::CancelCompute(message) => Ok(&message.stimulus_id),
        ToWorker::Close(_) | ToWorker::CloseStream(_) | ToWorker::Unknown(_) => Err("close"),
    }
}

/// A stimulus id in the form of Dask's logs.
pub(super) fn stimulus(what: &str, now: f64) -> String {
    format!("{what}-{now}")
}

fn resources(restrictions: &Nullable<Value>) -> Vec<(String, f64)> {
    let Nullable(Some(Value::Dict(entries))) = restrictions else {
        return Vec::new();
    };
    let amount = |value: &Value| f64::try_from(value.clone()).ok();
    entries
        .iter()
        .filter_map(|(name, value)| Some((name.as_str()?.to_owned(), amount(value)?)))
        .collect()
}

#[cfg(any(test, feature = "fuzzing"))]
mod check;
#[cfg(test)]
mod tests;

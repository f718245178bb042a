//! The worker's state machine: events in, actions out. It does no I/O and reads
//! no clock, and the same events always lead to the same actions.
//!
//! [`Worker`](super::Worker) is a driver for it: it reads the scheduler's messages,
//! runs tasks on threads, fetches data over comms, and keeps data in a store. A
//! program that does these things in another way can drive a [`State`] itself:
//! report each [`WorkerInput`] as it happens, and execute the resulting [`Action`]s.
//!
//! A task goes through these stages; those in parentheses are for data of other
//! workers:
//!
//! ```text
//! compute-task ─► Waiting ─► Ready ─► Executing ─► Memory or Error
//!                    ▲
//!    (Missing ◄─► Fetch ─► Flight ─► Memory)
//! ```
//!
//! # Examples
//!
//! ```
//! use core::time::Duration;
//! use daskwire_messages::protocol::{ComputeTask, FromWorker, ToWorker};
//! use daskwire_worker::state::{Action, Description, WorkerInput, Executed, Limits, State};
//!
//! let mut worker = State::new("tcp://10.0.0.7:4000", Limits::default(), []);
//!
//! // The scheduler asks for a task, which can run at once.
//! let start = Duration::from_secs(1_795_299_067);
//! let message = ToWorker::from(ComputeTask {
//!     key: "x".into(),
//!     run_id: 1,
//!     ..ComputeTask::default()
//! });
//! let mut actions = worker.handle(start, WorkerInput::FromScheduler(message)).into_iter();
//! let Some(Action::Execute(run)) = actions.next() else {
//!     panic!("nothing else is running");
//! };
//!
//! // The driver runs it, puts the result into its store, and reports it.
//! let stop = start + Duration::from_secs(2);
//! let executed = Executed {
//!     key: run.key.clone(),
//!     outcome: Ok(Description {
//!         nbytes: 28,
//!         typename: "int".into(),
//!         class: None,
//!     }),
//!     start,
//!     stop,
//!     steps: Vec::new(),
//!     thread: None,
//! };
//! let mut actions = worker.handle(stop, WorkerInput::Executed(executed)).into_iter();
//!
//! // The result is reported to the scheduler.
//! let Some(Action::Send(message)) = actions.next() else {
//!     panic!("the scheduler waits for it");
//! };
//! let FromWorker::TaskFinished(finished) = *message else {
//!     panic!("the task has finished");
//! };
//! assert_eq!((finished.key, finished.run_id, finished.nbytes), (run.key, 1, 28));
//! assert!(worker.counts().eq([("memory", 1)]));
//! ```

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use daskwire_messages::Key;
use daskwire_messages::protocol::{
    CloseStream, FromWorker, Keys, Nullable, StealResponse, ToWorker, WorkerStatus,
    WorkerStatusChange,
};
use daskwire_rpc::story::{Stimulus, Story, TaskChange, TaskEvent};

mod compute;
mod event;
mod fetch;
mod peers;
mod release;
mod returns;
mod task;

pub(super) use compute::startstop;
pub(super) use event::stimulus;
pub use event::{
    Action, Answer, Description, Executed, Failure, Fetched, Limits, Peer, Run, WorkerInput,
};
use peers::Peers;
use task::{PHASE_COUNT, Queue, Request, Running, Task, TaskStage};

/// The state of a worker: its tasks, their execution, and pending transfers.
///
/// [`handle`](Self::handle) and [`handle_all`](Self::handle_all) are the only ways to
/// change the state.
///
/// # Common issues
///
/// * Each [`Action::Execute`], [`Action::Fetch`] and [`Action::Wake`] must be
///   followed by its event; a task that is never reported occupies one of
///   [`Limits::nthreads`] forever.
/// * Data is put into the store before the event that reports it, so that the
///   actions that follow find it there.
#[derive(Debug)]
pub struct State {
    address: Peer,
    limits: Limits,
    status: WorkerStatus,
    /// The ends of tasks that no scheduler was told of, while the worker has lost its connection.
    undelivered: Option<Vec<FromWorker>>,
    /// Whether the store is full.
    is_full: bool,
    tasks: HashMap<Key, Task>,
    counts: [u64; PHASE_COUNT],
    ready: Queue,
    /// Ready tasks that need resources.
    constrained: Queue,
    resources: BTreeMap<String, f64>,
    free_resources: BTreeMap<String, f64>,
    executing: BTreeMap<Key, Running>,
    /// The number of executing tasks that have seceded.
    seceded_count: usize,
    /// The executing tasks that wait to rejoin, those that wait longest first.
    rejoining: BTreeSet<(Duration, Key)>,
    peers: Peers,
    /// The pending requests for data, by their numbers.
    requests: BTreeMap<u64, Request>,
    /// The number of the next request.
    next_request: u64,
    /// Peers that have left, and that the holders of keys in flight may still contain.
    gone: BTreeSet<Peer>,
    /// Bytes that the pending requests were expected to transfer.
    flight_len: u64,
    missing: BTreeSet<Key>,
    /// For tasks that cannot run here: the number of returns to the scheduler, and the time of
    /// the last one.
    returns: HashMap<Key, (u32, Duration)>,
    is_searching: bool,
    generation: i64,
    /// The time of the event that is being handled, since the Unix epoch.
    now: Duration,
    /// Stimulus of the event that is being handled.
    stimulus: Stimulus,
    story: Story,
    is_watched: bool,
    /// Seconds by which the clock of the scheduler is ahead.
    clock_offset: f64,
    actions: Vec<Action>,
}

impl State {
    /// Returns the state of a running worker without tasks. `address` is the address that is
    /// registered with the scheduler, and `resources` are the amounts of the resources that
    /// tasks may require.
    pub fn new(
        address: &str,
        limits: Limits,
        resources: impl IntoIterator<Item = (String, f64)>,
    ) -> Self {
        let resources: BTreeMap<String, f64> = resources.into_iter().collect();
        Self {
            address: address.into(),
            limits,
            status: WorkerStatus::Running,
            undelivered: None,
            is_full: false,
            tasks: HashMap::new(),
            counts: [0; PHASE_COUNT],
            ready: Queue::new(),
            constrained: Queue::new(),
            free_resources: resources.clone(),
            resources,
            executing: BTreeMap::new(),
            seceded_count: 0,
            rejoining: BTreeSet::new(),
            peers: Peers::new(address.into()),
            requests: BTreeMap::new(),
            next_request: 0,
            gone: BTreeSet::new(),
            flight_len: 0,
            missing: BTreeSet::new(),
            returns: HashMap::new(),
            is_searching: false,
            generation: 0,
            now: Duration::ZERO,
            stimulus: Stimulus::local("start", 0.0),
            story: Story::default(),
            is_watched: false,
            clock_offset: 0.0,
            actions: Vec::new(),
        }
    }

    /// Handles an event, and returns the actions that follow from it, in order.
    /// `now` is the time since the Unix epoch, which messages to the scheduler
    /// contain.
    pub fn handle(&mut self, now: Duration, event: WorkerInput) -> Vec<Action> {
        self.handle_all(now, [event])
    }

    /// Handles events that occur at the same time, as one step: the effects of
    /// an event may be undone by the next, before any task or transfer starts.
    ///
    /// The messages of a batch must be handled in this way: a task that is requested and
    /// freed in the same batch never starts.
    pub fn handle_all(
        &mut self,
        now: Duration,
        events: impl IntoIterator<Item = WorkerInput>,
    ) -> Vec<Action> {
        // Removes the actions of a call that panicked.
        self.actions.clear();
        self.now = now;
        for event in events {
            self.stimulus = event.stimulus(now);
            self.apply(event);
        }
        // Before new tasks, and also while none is started: these tasks hold data.
        self.rejoin_tasks();
        if self.status == WorkerStatus::Running && !self.is_full {
            self.stimulus = Stimulus::local("ensure-communicating", now.as_secs_f64());
            self.start_transfers();
            self.stimulus = Stimulus::local("ensure-computing", now.as_secs_f64());
            self.start_tasks();
        }
        self.search();
        core::mem::take(&mut self.actions)
    }

    /// The status of the worker, as reported to the scheduler.
    pub const fn status(&self) -> &WorkerStatus {
        &self.status
    }

    /// The last events of tasks with one of these keys, or with one of these
    /// stimuli, oldest first.
    ///
    /// The last 10,000 events of all tasks are kept and, while a task is waiting,
    /// executing or being fetched, also the last 16 of its own; both within 2 MiB.
    pub fn story<'s>(&'s self, wanted: &'s Keys) -> impl Iterator<Item = &'s TaskEvent> {
        self.story.events(wanted)
    }

    /// The number of tasks in each state, with Dask's names of the states.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let stages = TaskStage::ALL.into_iter().zip(self.counts);
        stages
            .filter(|(_, count)| *count != 0)
            .map(|(stage, count)| (stage.name(), count))
    }

    /// The executing tasks, and when they started, as the time since the Unix
    /// epoch.
    pub fn executing(&self) -> impl Iterator<Item = (&Key, Duration)> {
        self.executing
            .iter()
            .map(|(key, running)| (key, running.since))
    }

    /// Whether no task is executing, apart from those that have seceded.
    pub fn is_idle(&self) -> bool {
        self.busy_count() == 0
    }

    /// Whether a task is executing, and was not freed since it started.
    pub(super) fn is_computing(&self, key: &Key) -> bool {
        let task = self.tasks.get(key);
        let task = task.filter(|task| task.stage == TaskStage::Executing);
        let computation = task.and_then(|task| task.computation.as_ref());
        computation.is_some_and(|computation| computation.message.is_none())
    }

    /// The inputs of the tasks that start next, and of those that start when the
    /// pending requests are answered. Empty unless the worker is running.
    pub fn needed_soon(&self) -> Vec<Key> {
        if self.status != WorkerStatus::Running {
            return Vec::new();
        }
        let ready = self.ready.iter().map(|(_, key)| key);
        let constrained = self.constrained.iter().map(|(_, key)| key);
        let count = self.limits.nthreads;
        let in_flight = self.requests.values().flat_map(|request| &request.keys);
        let in_flight = in_flight.filter_map(|key| self.tasks.get(key));
        let waiting = in_flight.flat_map(|task| &task.dependents);
        let next = ready.take(count).chain(constrained.take(count));
        let next = next.chain(waiting.take(count));
        let tasks = next.filter_map(|key| self.tasks.get(key)?.computation.as_ref());
        tasks
            .flat_map(|computation| &computation.dependencies)
            .cloned()
            .collect()
    }

    /// The resources of the worker, by name.
    pub const fn resources(&self) -> &BTreeMap<String, f64> {
        &self.resources
    }

    /// The number of pending requests for data.
    pub fn transfer_count(&self) -> usize {
        self.requests.len()
    }

    /// The number of bytes requested from peers.
    pub const fn transfer_len(&self) -> u64 {
        self.flight_len
    }

    fn apply(&mut self, event: WorkerInput) {
        match event {
            WorkerInput::FromScheduler(message) => self.handle_message(message),
            WorkerInput::Executed(executed) => self.executed(executed),
            WorkerInput::Unsupported { executed, reason } => self.unsupported(executed, reason),
            WorkerInput::GiveBack(key) => self.return_unsupported(&key),
            WorkerInput::InputsLost { key, lost } => {
                self.on_data_lost(&lost);
                self.reschedule(&key, "lost-data");
            }
            WorkerInput::Reschedule(key) => self.reschedule(&key, "reschedule"),
            WorkerInput::Seceded { key, run_time } => self.seceded(&key, run_time),
            WorkerInput::Rejoin(key) => {
                if !self.wait_to_rejoin(&key) {
                    self.actions.push(Action::Rejoin(key));
                }
            }
            WorkerInput::Restarted(key) => {
                self.wait_to_rejoin(&key);
            }
            WorkerInput::Lost(keys) => self.on_data_lost(&keys),
            WorkerInput::Resources(resources) => {
                for (name, amount) in resources {
                    let before = self.resources.insert(name.clone(), amount);
                    *self.free_resources.entry(name).or_default() +=
                        amount - before.unwrap_or_default();
                }
            }
            WorkerInput::Paused(is_paused) => {
                let (from, to) = if is_paused {
                    (WorkerStatus::Running, WorkerStatus::Paused)
                } else {
                    (WorkerStatus::Paused, WorkerStatus::Running)
                };
                if self.status == from {
                    self.status = to.clone();
                    self.send_status(to);
                }
            }
            WorkerInput::Fetched(fetched) => self.fetched(fetched),
            WorkerInput::Stored(data) => {
                for (key, description) in data {
                    self.stored(&key, description);
                }
            }
            WorkerInput::PeerAvailable(peer) => {
                if let Some(state) = self.peers.get_mut(&peer) {
                    state.is_busy = false;
                }
                self.peers.remove_if_idle(&peer);
            }
            WorkerInput::Search => self.is_searching = false,
            WorkerInput::StoreFull(is_full) => self.is_full = is_full,
            WorkerInput::Watched(is_watched) => self.is_watched = is_watched,
            WorkerInput::ClockOffset(seconds) => {
                if seconds.is_finite() {
                    self.clock_offset = seconds;
                }
            }
            WorkerInput::Disconnected => self.disconnected(),
            WorkerInput::Registered { returns } => self.registered(returns),
            WorkerInput::Close => self.close(),
            WorkerInput::Spilled { key, len } => self.record(key, TaskChange::Spilled { len }),
        }
    }

    fn close(&mut self) {
        self.status = WorkerStatus::Closing;
        self.send_status(WorkerStatus::Closing);
        self.send(CloseStream::default());
    }

    fn send_status(&mut self, status: WorkerStatus) {
        self.send(WorkerStatusChange {
            status,
            stimulus_id: stimulus("worker-status-change", self.now),
            ..WorkerStatusChange::default()
        });
    }

    fn record(&mut self, key: Key, change: TaskChange) {
        let stimulus = self.stimulus.clone();
        let event = TaskEvent::new(key, change, stimulus, self.now.as_secs_f64());
        if self.is_watched {
            self.actions.push(Action::Report(event.clone()));
        }
        let tasks = &self.tasks;
        let is_pending = |key: &Key| tasks.get(key).is_some_and(|task| task.stage.is_pending());
        self.story.add_and_keep(event, is_pending);
    }

    fn handle_message(&mut self, message: ToWorker) {
        match message {
            ToWorker::ComputeTask(message) => self.compute(message),
            ToWorker::FreeKeys(message) => {
                for key in &message.keys {
                    self.on_free_keys(key, &message.stimulus_id);
                }
            }
            ToWorker::RemoveReplicas(message) => {
                self.remove_replicas(&message.keys, &message.stimulus_id);
            }
            ToWorker::AcquireReplicas(message) => {
                let sizes: HashMap<Key, u64> =
                    message.nbytes.unwrap_or_default().0.into_iter().collect();
                for (key, holders) in message.who_has {
                    let nbytes = sizes.get(&key).copied().unwrap_or_default();
                    // Replicas come after the inputs of waiting tasks.
                    let priority = self.next_priority(&[1.0, 0.0, 0.0]);
                    let task = self.ensure(&key, nbytes, priority);
                    task.is_acquired = task.stage != TaskStage::Memory;
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
                self.cancel_unstarted(&message.key);
            }
            ToWorker::CancelCompute(message) => self.cancel_unstarted(&message.key),
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

    fn send(&mut self, message: impl Into<FromWorker>) {
        let mut message = message.into();
        let times = match &mut message {
            FromWorker::TaskFinished(message) => Some(&mut message.startstops),
            FromWorker::TaskErred(message) => message.startstops.as_mut(),
            _ => None,
        };
        for time in times.into_iter().flatten() {
            time.start += self.clock_offset;
            time.stop += self.clock_offset;
        }
        let is_end = matches!(
            message,
            FromWorker::TaskFinished(_) | FromWorker::TaskErred(_)
        );
        match &mut self.undelivered {
            None => self.actions.push(Action::Send(Box::new(message))),
            Some(undelivered) if is_end => undelivered.push(message),
            // What else there is to say follows from the state, later.
            Some(_) => {}
        }
    }
}

/// Counts a step of work, for tests that compare inputs of different sizes.
fn step() {
    #[cfg(test)]
    tests::STEPS.with(|steps| steps.set(steps.get() + 1));
}

#[cfg(any(test, feature = "fuzzing"))]
mod check;
#[cfg(test)]
mod tests;

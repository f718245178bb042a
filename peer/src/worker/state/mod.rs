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

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::Key;
use crate::protocol::{
    FromWorker, Nullable, StealResponse, ToWorker, WorkerStatus, WorkerStatusChange,
};
use crate::story::{Stimulus, Story, TaskChange, TaskEvent};

mod compute;
mod event;
mod fetch;
mod release;
mod task;

pub(super) use compute::startstop;
pub(super) use event::stimulus;
pub(crate) use event::{
    Action, Answer, Description, Event, Executed, Failure, Fetched, Limits, Peer, Run,
};
use task::{PHASE_COUNT, PeerState, Phase, Queue, Running, Task};

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

    fn send(&mut self, message: impl Into<FromWorker>) {
        self.actions.push(Action::Send(Box::new(message.into())));
    }
}

#[cfg(any(test, feature = "fuzzing"))]
mod check;
#[cfg(test)]
mod tests;

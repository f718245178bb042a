//! The tasks of the worker, their stages, and the queues that contain them.

use core::cmp::Ordering;
use core::time::Duration;
use std::collections::BTreeSet;

use daskwire_messages::protocol::{ComputeTask, StartStop};
use daskwire_messages::value::Serialized;
use daskwire_messages::{Key, Value};
use daskwire_rpc::story::TaskChange;

use super::{Description, Peer, State};

/// The stage of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskStage {
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

pub(super) const PHASE_COUNT: usize = 10;

impl TaskStage {
    /// Dask's name of the stage.
    pub(super) const fn name(self) -> &'static str {
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

    /// Whether a task in this stage waits for something.
    pub(super) const fn is_pending(self) -> bool {
        match self {
            Self::Waiting
            | Self::Ready
            | Self::Executing
            | Self::Fetch
            | Self::Flight
            | Self::Missing => true,
            Self::Memory | Self::Error | Self::Released | Self::Forgotten => false,
        }
    }

    pub(super) const ALL: [Self; PHASE_COUNT] = [
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
/// latest precedes the others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Priority {
    pub(super) numbers: [f64; 3],
    pub(super) generation: i64,
}

// By the order, in which NaN, too, equals itself.
impl PartialEq for Priority {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Priority {}

impl PartialOrd for Priority {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Priority {
    fn cmp(&self, other: &Self) -> Ordering {
        super::step();
        let numbers = self.numbers.iter().zip(&other.numbers);
        let by_numbers = numbers.map(|(one, another)| one.total_cmp(another));
        by_numbers
            .fold(Ordering::Equal, Ordering::then)
            .then(self.generation.cmp(&other.generation))
    }
}

pub(super) type Queue = BTreeSet<(Priority, Key)>;

/// Maximum number of peers that a key is queued at. When a holder fails, the key
/// leaves all these queues and enters them again.
pub(super) const MAX_HOLDERS: usize = 16;

#[derive(Debug)]
pub(super) struct Task {
    pub(super) stage: TaskStage,
    pub(super) priority: Priority,
    /// The computation that the scheduler requested. Without one, the task exists
    /// for its data, or executes although its result is not wanted any more.
    pub(super) computation: Option<Box<Computation>>,
    /// Whether the result is an actor that lives here.
    pub(super) is_actor: bool,
    /// Whether the scheduler requested a replica.
    pub(super) is_acquired: bool,
    /// Tasks that wait for this one, or are ready and need it.
    pub(super) dependents: BTreeSet<Key>,
    /// The peers to fetch from next, at most [`MAX_HOLDERS`]. While the key waits
    /// to be fetched, it is queued at all of them.
    pub(super) holders: Vec<Peer>,
    /// Further holders, which replace failed ones.
    pub(super) reserve: Vec<Peer>,
    pub(super) description: Description,
}

#[derive(Debug, Default)]
pub(super) struct Computation {
    pub(super) run_id: i64,
    /// The task to run, until it starts. The rest of the message is dropped:
    /// there may be very many tasks.
    pub(super) run_spec: Option<Serialized>,
    pub(super) is_actor: bool,
    /// The annotations, if there are any, until the task starts.
    pub(super) annotations: Option<Value>,
    /// Whether the task could not run here, and waits to be returned to the scheduler.
    pub(super) is_unsupported: bool,
    /// The reason why it is not supported, if the scheduler is told.
    pub(super) reason: Option<String>,
    /// Whether this run was reported to the scheduler as one that has seceded.
    pub(super) is_reported_seceded: bool,
    /// The whole message while the task executes for an earlier run, or while the key is in
    /// flight: if the data is received, the task does not run.
    pub(super) message: Option<Box<ComputeTask>>,
    pub(super) dependencies: Vec<Key>,
    pub(super) missing_count: usize,
    pub(super) resources: Vec<(String, f64)>,
    pub(super) startstops: Vec<StartStop>,
}

impl Task {
    pub(super) fn is_wanted(&self) -> bool {
        self.is_acquired || !self.dependents.is_empty()
    }
}

/// A pending request for data.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) peer: Peer,
    pub(super) keys: Vec<Key>,
    /// Expected length of the data when the request was sent, in bytes.
    pub(super) len: u64,
}

/// Start time of an executing task, and the resources that it holds.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) since: Duration,
    pub(super) resources: Vec<(String, f64)>,
    /// Whether the task no longer counts towards the limit of tasks that run at once.
    pub(super) has_seceded: bool,
    /// The time since which a task that has seceded waits to count again.
    pub(super) rejoins_since: Option<Duration>,
}

impl State {
    /// Returns the task of a key, and queues it for fetching if it is new or failed.
    pub(super) fn ensure(&mut self, key: &Key, nbytes: u64, priority: Priority) -> &mut Task {
        let is_new = !self.tasks.contains_key(key);
        let task = self.entry(key, priority);
        if task.stage != TaskStage::Memory {
            task.description.nbytes = nbytes;
        }
        let is_useless = is_new || task.stage == TaskStage::Error;
        let is_more_urgent =
            matches!(task.stage, TaskStage::Fetch | TaskStage::Missing) && priority < task.priority;
        if is_useless || is_more_urgent {
            self.leave_queues(key);
            self.entry(key, priority).priority = priority;
            self.fetch(key);
        }
        self.entry(key, priority)
    }

    pub(super) fn entry(&mut self, key: &Key, priority: Priority) -> &mut Task {
        let counts = &mut self.counts;
        self.tasks.entry(key.clone()).or_insert_with(|| {
            let stage = TaskStage::Released;
            counts[stage as usize] += 1;
            Task {
                stage,
                priority,
                computation: None,
                is_actor: false,
                is_acquired: false,
                dependents: BTreeSet::new(),
                holders: Vec::new(),
                reserve: Vec::new(),
                description: Description::default(),
            }
        })
    }

    pub(super) fn set_phase(&mut self, key: &Key, stage: TaskStage) {
        if let Some(task) = self.tasks.get_mut(key) {
            self.counts[task.stage as usize] -= 1;
            self.counts[stage as usize] += 1;
            let from = core::mem::replace(&mut task.stage, stage);
            self.record_state(key, from, stage);
        }
    }

    pub(super) fn record_state(&mut self, key: &Key, from: TaskStage, to: TaskStage) {
        if from != to {
            let (from, name) = (from.name(), to.name());
            self.record(key.clone(), TaskChange::State { from, to: name });
        }
        if !to.is_pending() {
            self.story.settle(key);
        }
    }

    pub(super) fn remove(&mut self, key: &Key) {
        self.leave_queues(key);
        if let Some(task) = self.tasks.remove(key) {
            self.counts[task.stage as usize] -= 1;
            self.record_state(key, task.stage, TaskStage::Forgotten);
        }
    }

    /// Removes a key from the queues that its stage puts it in.
    pub(super) fn leave_queues(&mut self, key: &Key) {
        let Some(task) = self.tasks.get(key) else {
            return;
        };
        match task.stage {
            TaskStage::Ready => {
                let entry = (task.priority, key.clone());
                if !self.ready.remove(&entry) {
                    self.constrained.remove(&entry);
                }
            }
            TaskStage::Fetch => {
                let entry = (task.priority, key.clone());
                for holder in &task.holders {
                    if let Some(state) = self.peers.get_mut(holder) {
                        state.keys.remove(&entry);
                        self.peers.remove_if_idle(holder);
                    }
                }
            }
            TaskStage::Missing => {
                self.missing.remove(key);
            }
            _ => {}
        }
    }

    /// Removes a task from the dependents of its dependencies.
    pub(super) fn unlink(&mut self, key: &Key, dependencies: &[Key]) {
        for dependency in dependencies {
            if let Some(task) = self.tasks.get_mut(dependency) {
                task.dependents.remove(key);
                if matches!(task.stage, TaskStage::Fetch | TaskStage::Missing) {
                    self.drop_unless_wanted(dependency);
                }
            }
        }
    }

    pub(super) fn drop_unless_wanted(&mut self, key: &Key) {
        if !self.tasks.get(key).is_some_and(Task::is_wanted) {
            self.remove(key);
        }
    }

    pub(super) fn next_priority(&mut self, numbers: &[f64]) -> Priority {
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
}

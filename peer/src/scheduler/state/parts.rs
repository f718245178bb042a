//! What the state is made of.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;

use super::{ClientId, WorkerId};
use crate::protocol::{TaskState, WorkerStatus};
use crate::scheduler::step;
use crate::scheduler::submission::{Demands, Failure, Resources};
use crate::{Key, Serialized, Value};

/// Which task is done first: the one with the lower value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Priority {
    /// What the user said, the other way round.
    pub(super) user: f64,
    /// The number of the submission.
    pub(super) generation: u64,
    /// The place in its order.
    pub(super) order: i64,
}

impl Default for Priority {
    fn default() -> Self {
        Self {
            user: 0.0,
            generation: 0,
            order: 0,
        }
    }
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
pub(super) type TaskId = u32;

/// Tasks in the order in which they are to be done.
pub(super) type Queue = BTreeSet<(Priority, TaskId)>;

#[derive(Clone, Debug)]
pub(super) enum Stage {
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
    pub(super) const fn is_active(&self) -> bool {
        matches!(
            self,
            Self::Waiting | Self::Ready | Self::NoWorker | Self::Queued(_) | Self::Processing(_)
        )
    }

    /// As Dask calls it.
    pub(super) const fn name(&self) -> &'static str {
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

    /// The state that clients are told.
    pub(super) fn state(&self) -> TaskState {
        TaskState::from(self.name())
    }
}

#[derive(Debug)]
pub(super) struct Task {
    pub(super) key: Key,
    /// How to compute it; data that was scattered has none.
    pub(super) run_spec: Option<RunSpec>,
    pub(super) priority: Priority,
    pub(super) stage: Stage,
    /// The name of the last stage but [`Stage::Ready`].
    pub(super) shown: &'static str,
    pub(super) dependencies: Vec<TaskId>,
    pub(super) dependents: BTreeSet<TaskId>,
    /// How many dependents are active.
    pub(super) waiter_count: u32,
    /// How many dependencies are not in memory; counted while it is waiting.
    pub(super) missing_count: u32,
    /// In order.
    pub(super) wanted_by: Vec<ClientId>,
    /// In order.
    pub(super) who_has: Vec<WorkerId>,
    pub(super) nbytes: u64,
    pub(super) class: Option<Bytes>,
    pub(super) retries: u32,
    /// How many workers were lost while they had it.
    pub(super) kill_count: u32,
    pub(super) run_id: i64,
    /// Whether something that it was computed from is forgotten, so that it cannot
    /// be computed again.
    pub(super) is_orphan: bool,
}

/// What a task runs, and what it needs of a worker.
#[derive(Clone, Debug)]
pub(super) struct RunSpec {
    /// As workers are sent it.
    pub(super) payload: Serialized,
    pub(super) demands: Arc<Demands>,
}

/// Tasks by number; the place of one that is gone is taken by the next that comes.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) tasks: Vec<Option<Task>>,
    pub(super) free: Vec<TaskId>,
}

impl Table {
    pub(super) fn insert(&mut self, task: Task) -> TaskId {
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

    pub(super) fn remove(&mut self, id: TaskId) -> Option<Task> {
        let task = self.tasks.get_mut(id as usize)?.take()?;
        self.free.push(id);
        Some(task)
    }

    pub(super) fn get(&self, id: TaskId) -> Option<&Task> {
        step();
        self.tasks.get(id as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: TaskId) -> Option<&mut Task> {
        step();
        self.tasks.get_mut(id as usize)?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Task> {
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
        self.get_mut(id).expect("the task is there")
    }
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) name: Arc<str>,
    pub(super) wants: BTreeSet<TaskId>,
}

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) address: String,
    /// As text, which restrictions have.
    pub(super) name: String,
    pub(super) host: String,
    pub(super) about: About,
    pub(super) is_running: bool,
    pub(super) is_leaving: bool,
    pub(super) thread_count: u32,
    pub(super) resources: Resources,
    pub(super) used: HashMap<String, f64>,
    pub(super) has: BTreeSet<TaskId>,
    pub(super) nbytes: u128,
    /// Those that were sent to it.
    pub(super) processing: BTreeSet<TaskId>,
    /// Those of them that have left its threads.
    pub(super) long_running: BTreeSet<TaskId>,
    /// The stack of those that wait for a slot, by the resources that they take.
    pub(super) stack: BTreeMap<Resources, Queue>,
    pub(super) stack_count: usize,
    /// Seconds that tasks take it, the last ones above all.
    pub(super) pace: f64,
    /// Results that it may delete.
    pub(super) deletions: BTreeSet<Key>,
    /// Bytes of tasks that were sent to it since everything was last known to have
    /// been written.
    pub(super) unwritten_len: usize,
    pub(super) last_seen: Duration,
}

/// What a worker said of itself, for those who ask.
#[derive(Clone, Debug)]
pub(super) struct About {
    pub(super) name: Value,
    pub(super) status: WorkerStatus,
    pub(super) server_id: Option<String>,
    pub(super) memory_limit: Option<u64>,
    pub(super) local_directory: String,
    pub(super) services: Value,
    pub(super) nanny: Option<String>,
    pub(super) metrics: Value,
}

impl Worker {
    /// How many tasks take one of its threads, or wait there for one.
    pub(super) fn busy_count(&self) -> usize {
        self.processing.len() - self.long_running.len()
    }

    /// How many it is sent at most.
    pub(super) fn slot_count(&self) -> usize {
        /// Seconds of work that are sent ahead.
        const AHEAD: f64 = 0.002;
        const MAX_AHEAD: f64 = 16.0;
        let threads = self.thread_count as usize;
        if self.pace <= 0.0 {
            return threads + 1;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 0 to 16"
        )]
        let ahead = (AHEAD / self.pace).min(MAX_AHEAD) as usize;
        threads + (ahead * threads).max(1)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.is_running && self.stack_count == 0 && self.busy_count() < self.thread_count as usize
    }

    pub(super) fn push(&mut self, resources: &Resources, priority: Priority, id: TaskId) {
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

    pub(super) fn remove(&mut self, resources: &Resources, priority: Priority, id: TaskId) {
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
    pub(super) fn has_left(&self, resources: &Resources) -> bool {
        step();
        resources.0.iter().all(|(name, amount)| {
            let used = self.used.get(name).copied().unwrap_or(0.0);
            // Sums of fractions may be off by a little.
            used + amount <= self.resources.get(name) * (1.0 + 1e-9)
        })
    }

    /// The first of its stack whose resources are there now.
    pub(super) fn next(&self) -> Option<TaskId> {
        let stacks = self.stack.iter();
        let stacks = stacks.filter(|(resources, _)| self.has_left(resources));
        let first = stacks.filter_map(|(_, queue)| queue.first()).min();
        first.map(|(_, id)| *id)
    }

    pub(super) fn take_resources(&mut self, resources: &Resources) {
        for (name, amount) in &resources.0 {
            *self.used.entry(name.clone()).or_insert(0.0) += amount;
        }
    }

    pub(super) fn give_resources(&mut self, resources: &Resources) {
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

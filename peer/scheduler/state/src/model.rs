//! The data structures of the state: tasks, workers, clients.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;

use daskwire_messages::graph::Payload;
use daskwire_messages::protocol::{TaskState, WorkerStatus};
use daskwire_messages::{Key, Value};

use super::classes::{ClassId, Places};
use super::durations::Work;
use super::few::Few;
use super::grace::{Graphs, Lost};
use super::groups::GroupId;
use super::key_groups::KeyGroupId;
use super::memory::Unmanaged;
use super::returns::Returning;
use super::submission::{Demands, Failure, Resources};
use super::unknown::UnknownOps;
use super::versions::Packages;
use super::{ClientId, WINDOW, WorkerId};
use crate::steps::step;

/// The priority of a task; lower values run earlier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Priority {
    /// The user's priority, negated.
    pub(super) user: f64,
    /// Whether the task is a [root](super::State::is_root). Tasks that use results run earlier
    /// than those that make more of them.
    pub(super) is_root: bool,
    /// The generation of the submission.
    pub(super) generation: u64,
    /// The position within the submission.
    pub(super) order: i64,
    /// The number of the submission.
    pub(super) submission: u64,
}

impl Default for Priority {
    fn default() -> Self {
        Self {
            user: 0.0,
            is_root: false,
            generation: 0,
            order: 0,
            submission: 0,
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
        let rest = |priority: &Self| {
            let Self {
                user: _,
                is_root,
                generation,
                order,
                submission,
            } = *priority;
            (is_root, generation, order, submission)
        };
        // Nearly all users have the same.
        match self.user.to_bits() == other.user.to_bits() {
            true => rest(self).cmp(&rest(other)),
            false => self.user.total_cmp(&other.user),
        }
    }
}

/// The index of a task in the table, which is reused after the task is removed.
pub(super) type TaskId = u32;

/// Tasks in order of priority.
pub(super) type Queue = BTreeSet<(Priority, TaskId)>;

#[derive(Clone, Debug)]
pub(super) enum TaskStage {
    Released,
    Waiting,
    Ready,
    NoWorker,
    /// In the pool.
    Pooled,
    /// In the queue of a worker.
    Queued(WorkerId),
    Processing(WorkerId),
    Memory,
    Erred(Arc<Failure>),
}

impl TaskStage {
    /// Whether the task is to be computed, and therefore needs its dependencies.
    pub(super) const fn is_active(&self) -> bool {
        matches!(
            self,
            Self::Waiting
                | Self::Ready
                | Self::NoWorker
                | Self::Pooled
                | Self::Queued(_)
                | Self::Processing(_)
        )
    }

    /// The worker that the task was sent to, or in whose queue it is.
    pub(super) const fn worker(&self) -> Option<WorkerId> {
        match self {
            Self::Queued(on) | Self::Processing(on) => Some(*on),
            _ => None,
        }
    }

    /// Dask's state for the stage.
    pub(super) const fn state_name(&self) -> StateName {
        match self {
            Self::Released => StateName::Released,
            Self::Waiting => StateName::Waiting,
            Self::Ready | Self::NoWorker => StateName::NoWorker,
            Self::Pooled | Self::Queued(_) => StateName::Queued,
            Self::Processing(_) => StateName::Processing,
            Self::Memory => StateName::Memory,
            Self::Erred(_) => StateName::Erred,
        }
    }

    /// Dask's name of the stage.
    pub(super) const fn name(&self) -> &'static str {
        self.state_name().as_str()
    }

    /// The stage as reported to clients.
    pub(super) fn state(&self) -> TaskState {
        TaskState::from(self.name())
    }
}

/// Dask's states of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StateName {
    Released,
    Waiting,
    NoWorker,
    Queued,
    Processing,
    Memory,
    Erred,
}

impl StateName {
    /// All states, in the order of a task's life.
    pub(super) const ALL: [Self; 7] = [
        Self::Released,
        Self::Waiting,
        Self::NoWorker,
        Self::Queued,
        Self::Processing,
        Self::Memory,
        Self::Erred,
    ];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Waiting => "waiting",
            Self::NoWorker => "no-worker",
            Self::Queued => "queued",
            Self::Processing => "processing",
            Self::Memory => "memory",
            Self::Erred => "erred",
        }
    }
}

#[derive(Debug)]
pub(super) struct Task {
    pub(super) key: Key,
    /// The payload and demands of the task; `None` for scattered data.
    pub(super) run_spec: Option<RunSpec>,
    pub(super) priority: Priority,
    pub(super) stage: TaskStage,
    /// The state that is recorded for the last stage other than [`TaskStage::Ready`].
    pub(super) last_recorded_stage: StateName,
    /// The time of the last change of that state, in seconds since 1970.
    pub(super) changed: u32,
    /// The group of tasks whose keys have the same name.
    pub(super) key_group: KeyGroupId,
    pub(super) dependencies: Vec<TaskId>,
    pub(super) dependents: BTreeSet<TaskId>,
    /// Number of active dependents, and of unfinished submissions with the task.
    pub(super) waiter_count: u32,
    /// Number of dependencies that are not in memory; maintained while waiting.
    pub(super) missing_count: u32,
    /// The clients that want the result, sorted.
    pub(super) wanted_by: Few<ClientId>,
    /// The workers that hold the result, sorted.
    pub(super) who_has: Few<WorkerId>,
    pub(super) nbytes: u64,
    pub(super) class: Option<Bytes>,
    pub(super) retries: u32,
    /// Number of workers lost while they were processing the task.
    pub(super) kill_count: u32,
    pub(super) run_id: i64,
    /// The run time that was expected when the task was last assigned to a worker.
    pub(super) expected: Option<Duration>,
    /// Whether a dependency was forgotten, so that the task cannot be computed
    /// again.
    pub(super) is_orphan: bool,
    /// Whether the result stays on the worker that made it, as an actor.
    pub(super) is_actor: bool,
    /// The worker with the actor. Others may have handles for it, as replicas.
    pub(super) actor_on: Option<WorkerId>,
}

impl Task {
    /// The memory of the task, as in [`Policy::max_tasks_len`](super::Policy::max_tasks_len).
    pub(super) fn len(&self) -> usize {
        task_len(
            &self.key,
            self.run_spec.as_ref().map_or(0, |spec| spec.payload.len()),
        )
    }
}

/// The memory of a task with a payload of `payload` bytes, as in
/// [`Policy::max_tasks_len`](super::Policy::max_tasks_len).
pub(super) fn task_len(key: &Key, payload: usize) -> usize {
    /// For the task and its places in indexes.
    const FIXED: usize = 1 << 10;
    FIXED
        .saturating_add(key.as_msgpack().len())
        .saturating_add(payload)
}

/// The payload of a task, and its demands on a worker.
#[derive(Clone, Debug)]
pub(super) struct RunSpec {
    /// The `run_spec` sent to workers.
    pub(super) payload: Payload,
    pub(super) demands: Arc<Demands>,
    /// The tasks with the same demands.
    pub(super) group: GroupId,
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) name: Arc<str>,
    /// Its stream; `None` if it is in grace, or has never had one.
    pub(super) stream: Option<ClientId>,
    /// In grace, the time at which its grace is over; after its return, that until which keys are kept
    /// that it has not confirmed.
    pub(super) until: Option<Duration>,
    /// The tasks that it wants, each with the value of `confirmation` when it was last wanted.
    pub(super) wants: BTreeMap<TaskId, u32>,
    /// How often the client has returned.
    pub(super) confirmation: u32,
    /// Why it does not find keys that it had before.
    pub(super) lost: Option<Lost>,
    /// Whether it has announced that it leaves.
    pub(super) is_leaving: bool,
    /// Whether it is told how many of its graphs were accepted.
    pub(super) acknowledges: bool,
    /// Whether it is to be told so with the next tick.
    pub(super) is_unacknowledged: bool,
    pub(super) graphs: Graphs,
    /// The number of graphs that were inserted or refused.
    pub(super) done_count: u64,
    /// Whether the client does not read, and is therefore sent no results.
    pub(super) is_behind: bool,
    /// The first task whose result is to be sent again; `None` if there are none.
    pub(super) unreported: Option<TaskId>,
    pub(super) unknown_ops: UnknownOps,
    pub(super) packages: Packages,
}

impl Client {
    /// Whether it is disconnected, and may return.
    pub(super) const fn is_in_grace(&self) -> bool {
        self.stream.is_none() && self.until.is_some()
    }

    /// Whether it is only a name under which others hold results.
    pub(super) const fn is_holder(&self) -> bool {
        self.stream.is_none() && self.until.is_none()
    }
}

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) address: Arc<str>,
    /// The name as a string, as in restrictions.
    pub(super) name: String,
    pub(super) host: String,
    pub(super) info: WorkerInfo,
    pub(super) packages: Packages,
    pub(super) kind: Kind,
    pub(super) is_running: bool,
    pub(super) is_leaving: bool,
    /// What the worker has returned with, until it has said all of it. It gets no tasks before.
    pub(super) returning: Option<Box<Returning>>,
    /// The tasks that it has returned with, and that are not adopted yet.
    pub(super) claims: BTreeSet<TaskId>,
    /// The status before retirement, to which the worker returns if it cannot leave.
    pub(super) status_before: Option<WorkerStatus>,
    /// How often other workers were asked to copy the worker's data.
    pub(super) retire_rounds: u64,
    pub(super) thread_count: u32,
    /// The number of tasks sent to the worker for each thread, see [`Policy`](super::Policy).
    pub(super) saturation: f64,
    pub(super) resources: Resources,
    pub(super) used: HashMap<String, f64>,
    pub(super) has: BTreeSet<TaskId>,
    pub(super) nbytes: u128,
    /// The tasks whose actors the worker has or is to make.
    pub(super) actors: BTreeSet<TaskId>,
    /// Tasks that were sent to the worker.
    pub(super) processing: BTreeSet<TaskId>,
    /// The running tasks that have left the thread pool (`secede`).
    pub(super) long_running: BTreeSet<TaskId>,
    /// The tasks that the worker was asked to give back.
    pub(super) asked: BTreeSet<TaskId>,
    /// Tasks that wait for a slot, by their group.
    pub(super) queue: BTreeMap<GroupId, Queue>,
    /// The first task of each group in the queue.
    pub(super) heads: BTreeSet<(Priority, TaskId, GroupId)>,
    pub(super) queued_count: usize,
    /// The work of the tasks in the queue, and of those sent that use a thread.
    pub(super) work: Work,
    /// Recent average run time of tasks in seconds; zero until the first has ended.
    pub(super) pace: f64,
    /// Copies of results that the worker was asked to delete on request and has not answered, with
    /// the time; at most those of the last [`DROPPING_AGE`](super::operations::DROPPING_AGE) before
    /// the last request.
    pub(super) dropping: BTreeMap<Key, Duration>,
    /// Results that the worker may delete.
    pub(super) deletions: BTreeSet<Key>,
    /// The number of submissions before the first of the deletions.
    pub(super) deletions_since: u64,
    /// Length in bytes of the tasks sent to the worker since all messages were last known to
    /// be written.
    pub(super) unwritten_len: usize,
    pub(super) last_seen: Duration,
    pub(super) unknown_ops: UnknownOps,
    /// The time at which the index of silent workers has it.
    pub(super) silent_since: Duration,
    /// The classes of workers that it belongs to, sorted; none unless it runs.
    pub(super) classes: Vec<ClassId>,
    /// Where the indexes of workers have it.
    pub(super) places: Places,
    /// Whether its place by the time in which it can start a task is not up to date.
    pub(super) is_start_stale: bool,
    pub(super) unmanaged: Unmanaged,
}

/// The kinds of functions that a worker runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Kind {
    /// Whether it runs functions of Python.
    pub(super) python: bool,
    /// Whether it is a worker in Rust, which runs functions that are registered with it.
    pub(super) native: bool,
    /// Whether it is a small device, which runs nothing else.
    pub(super) embedded: bool,
}

impl Kind {
    /// Reads what a worker registers in `extra`. Dask's workers register nothing there.
    // ROLES WORKER-8
    pub(super) fn read(extra: &Value) -> Self {
        let Some(Value::List(kinds) | Value::Tuple(kinds)) = extra.get("daskwire") else {
            return Self {
                python: true,
                native: false,
                embedded: false,
            };
        };
        let is = |name| kinds.iter().any(|kind| kind.as_str() == Some(name));
        Self {
            python: is("python"),
            native: is("native"),
            embedded: is("embedded"),
        }
    }
}

/// Information that a worker reported about itself.
#[derive(Clone, Debug)]
pub(super) struct WorkerInfo {
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
    /// Number of tasks that use or wait for one of the worker's threads.
    pub(super) fn busy_count(&self) -> usize {
        self.processing.len() - self.long_running.len()
    }

    /// The time in which the worker can start another task, in seconds.
    pub(super) fn busy_seconds(&self) -> f64 {
        let pace = match self.pace {
            pace if pace > 0.0 => pace,
            _ => UNKNOWN_DURATION,
        };
        self.work.seconds(pace) / f64::from(self.thread_count)
    }

    /// Maximum number of tasks sent to the worker.
    pub(super) fn slot_count(&self) -> usize {
        /// Duration of the work that is sent in advance, in seconds.
        const AHEAD: f64 = 0.002;
        const MAX_AHEAD: f64 = 16.0;
        let saturated = (self.saturation * f64::from(self.thread_count)).ceil();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "casts saturate, and the number is at least 1"
        )]
        let saturated = saturated.max(1.0) as usize;
        if self.pace <= 0.0 || self.saturation <= 1.0 {
            return saturated;
        }
        let threads = self.thread_count as usize;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 0 to 16"
        )]
        let ahead = (AHEAD / self.pace).min(MAX_AHEAD) as usize;
        saturated.max(threads + ahead * threads)
    }

    /// Whether the worker can be sent a task.
    pub(super) fn has_slot(&self) -> bool {
        self.is_running && self.busy_count() < self.slot_count() && self.unwritten_len < WINDOW
    }

    /// Whether the worker has a free thread, and is sent a task that is put into its queue.
    pub(super) fn is_idle(&self) -> bool {
        self.is_running
            && self.queued_count == 0
            && self.busy_count() < self.thread_count as usize
            // Tasks would only wait in another queue.
            && self.unwritten_len < WINDOW
    }

    /// The number of tasks for each thread, in parts of 1,024.
    pub(super) const fn share_of(&self, count: usize) -> usize {
        count * 1024 / self.thread_count as usize
    }

    /// Puts a task into the queue. Returns the number of tasks of its group there, before.
    pub(super) fn enqueue(&mut self, group: GroupId, priority: Priority, id: TaskId) -> usize {
        let queue = self.queue.entry(group).or_default();
        let (len, first) = (queue.len(), queue.first().copied());
        if queue.insert((priority, id)) {
            self.queued_count += 1;
            if first.is_none_or(|first| (priority, id) < first) {
                if let Some((priority, id)) = first {
                    self.heads.remove(&(priority, id, group));
                }
                self.heads.insert((priority, id, group));
            }
        }
        len
    }

    /// Takes a task out of the queue. Returns the number of tasks of its group there, before.
    pub(super) fn dequeue(&mut self, group: GroupId, priority: Priority, id: TaskId) -> usize {
        let Some(queue) = self.queue.get_mut(&group) else {
            return 0;
        };
        let len = queue.len();
        let is_first = queue.first() == Some(&(priority, id));
        if queue.remove(&(priority, id)) {
            self.queued_count -= 1;
            if is_first {
                self.heads.remove(&(priority, id, group));
                match queue.first() {
                    Some((priority, id)) => {
                        self.heads.insert((*priority, *id, group));
                    }
                    None => {
                        self.queue.remove(&group);
                    }
                }
            }
        }
        len
    }

    /// Whether the worker has these resources available.
    pub(super) fn has_left(&self, resources: &Resources) -> bool {
        step();
        resources.0.iter().all(|(name, amount)| {
            let used = self.used.get(name).copied().unwrap_or(0.0);
            // Sums of fractions may be slightly inexact.
            used + amount <= self.resources.get(name) * (1.0 + 1e-9)
        })
    }

    pub(super) fn take_resources(&mut self, resources: &Resources) {
        for (name, amount) in &resources.0 {
            *self.used.entry(name.clone()).or_insert(0.0) += amount;
        }
    }

    pub(super) fn give_resources(&mut self, resources: &Resources) {
        if self.processing.is_empty() {
            // Drop accumulated rounding errors.
            self.used.clear();
        }
        for (name, amount) in &resources.0 {
            if let Some(used) = self.used.get_mut(name) {
                *used = (*used - amount).max(0.0);
            }
        }
    }
}

/// Dask's assumption of the run time of tasks until the first has ended, in seconds.
pub(super) const UNKNOWN_DURATION: f64 = 0.5;

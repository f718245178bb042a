//! Superfluous copies of results, as with Dask's Active Memory Manager and its policy
//! `ReduceReplicas`.

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use daskwire_messages::Key;
use daskwire_messages::protocol::{Keys, RemoveReplicas};

use super::model::{TaskId, TaskStage};
use super::{State, WorkerId};

/// Maximum number of copies that are considered with one event, and of tasks that have any. Those of
/// one task are considered together.
const PART: usize = 1 << 10;

/// Maximum number of dependents of a task that are looked at. The copies of tasks with more are
/// kept while a dependent needs them.
const MAX_DEPENDENTS: usize = 64;

/// Interval of Dask's manager, and the default.
pub(super) const INTERVAL: Duration = Duration::from_secs(2);

/// The tasks with several copies, and how far their copies were reduced.
#[derive(Debug, Default)]
pub(super) struct Replicas {
    /// The tasks of which several workers have copies.
    pub(super) replicated: BTreeSet<TaskId>,
    /// The interval at which copies are reduced; `None` while they are not.
    interval: Option<Duration>,
    last_run: Duration,
    /// The next task of the current run.
    next: Option<TaskId>,
}

impl Replicas {
    pub(super) fn new(interval: Option<Duration>) -> Self {
        Self {
            interval,
            ..Self::default()
        }
    }

    /// Notes that the number of copies of a task has changed.
    pub(super) fn count(&mut self, id: TaskId, count: usize) {
        match count {
            0 | 1 => self.replicated.remove(&id),
            _ => self.replicated.insert(id),
        };
    }
}

impl State {
    /// Whether superfluous copies are deleted regularly.
    pub const fn is_reducing_replicas(&self) -> bool {
        self.replicas.interval.is_some()
    }

    /// Starts or stops the regular deletion of superfluous copies.
    pub(super) fn set_reducing_replicas(&mut self, is_reducing: bool) {
        let interval = self.policy.replica_interval.unwrap_or(INTERVAL);
        self.replicas.interval = is_reducing.then_some(interval);
    }

    /// Has workers delete superfluous copies if that is due.
    pub(super) fn reduce_due_replicas(&mut self) {
        let is_due = |interval| self.now - self.replicas.last_run >= interval;
        if self.replicas.next.is_some() {
            self.reduce_next_replicas();
        } else if self.replicas.interval.is_some_and(is_due) {
            self.reduce_replicas();
        }
    }

    /// Has workers delete superfluous copies of all results; the rest with the next ticks, if there
    /// are many.
    pub(super) fn reduce_replicas(&mut self) {
        self.replicas.last_run = self.now;
        self.replicas.next = Some(0);
        self.reduce_next_replicas();
    }

    fn reduce_next_replicas(&mut self) {
        let Some(first) = self.replicas.next.take() else {
            return;
        };
        self.set_stimulus("active_memory_manager");
        let mut left = PART;
        let mut dropped: BTreeMap<WorkerId, Vec<Key>> = BTreeMap::new();
        let mut freed: BTreeMap<WorkerId, u64> = BTreeMap::new();
        let mut tasks = self.replicas.replicated.range(first..).copied();
        let part = tasks.by_ref().take_while(|id| {
            let is_next = left > 0;
            left = left.saturating_sub(self.tasks[*id].who_has.len());
            is_next
        });
        let part: Vec<TaskId> = part.collect();
        let last = part.last().copied();
        let mut after = self
            .replicas
            .replicated
            .range(last.map_or(first, |last| last + 1)..);
        self.replicas.next = after.next().copied();
        for id in part {
            for worker in self.copies_to_drop(id, &freed) {
                self.forget_copy(worker, id);
                let task = &self.tasks[id];
                *freed.entry(worker).or_default() += task.nbytes;
                dropped.entry(worker).or_default().push(task.key.clone());
            }
        }
        for (worker, keys) in dropped {
            let message = RemoveReplicas {
                keys: Keys(keys),
                stimulus_id: self.stimulus.to_string(),
                ..RemoveReplicas::default()
            };
            self.send_worker(worker, message);
        }
    }

    /// The number of copies that are kept: one, or one for each worker that runs a dependent and
    /// each dependent that is not assigned yet.
    fn wanted_copies(&self, id: TaskId) -> usize {
        const FEW: core::ops::Range<u32> = 2..20;
        let task = &self.tasks[id];
        let waiter_count = task.waiter_count;
        if waiter_count > 0 && task.dependents.len() > MAX_DEPENDENTS {
            return usize::MAX;
        }
        if !FEW.contains(&waiter_count) {
            return (waiter_count as usize).max(1);
        }
        let mut places = BTreeSet::new();
        let mut unassigned = 0;
        for dependent in &task.dependents {
            match self.tasks[*dependent].stage {
                TaskStage::Processing(on) | TaskStage::Queued(on) => drop(places.insert(on)),
                ref stage if stage.is_active() => unassigned += 1,
                _ => {}
            }
        }
        places.len() + unassigned
    }

    /// The workers to drop copies from, if there are more than wanted: those that accept no tasks,
    /// then those with the most memory in use. None that runs a dependent. `freed` has the bytes of
    /// the copies that workers are to drop already.
    fn copies_to_drop(&self, id: TaskId, freed: &BTreeMap<WorkerId, u64>) -> Vec<WorkerId> {
        let task = &self.tasks[id];
        // The copies of workers that have left may not be removed yet.
        let holders = task.who_has.iter().copied();
        let holders = holders.filter(|id| self.workers.get(id).is_some());
        let surplus = holders.clone().count();
        let surplus = surplus.saturating_sub(self.wanted_copies(id));
        if task.actor_on.is_some() || surplus == 0 {
            return Vec::new();
        }
        let mut busy = BTreeSet::new();
        if task.waiter_count > 0 {
            for dependent in &task.dependents {
                if let TaskStage::Processing(on) | TaskStage::Queued(on) =
                    self.tasks[*dependent].stage
                {
                    busy.insert(on);
                }
            }
        }
        let is_running = |id: &WorkerId| self.workers.get(id).is_some_and(|it| it.is_running);
        let (kept, mut free): (Vec<WorkerId>, Vec<WorkerId>) =
            holders.partition(|id| busy.contains(id));
        let memory = |id: &WorkerId| {
            let worker = self.workers.get(id);
            let measure = self.policy.replica_measure;
            let used = worker.map_or(0, |worker| worker.memory(measure));
            used.saturating_sub(freed.get(id).copied().unwrap_or(0))
        };
        free.sort_by_cached_key(|id| Reverse((!is_running(id), memory(id))));
        // If the others are about to leave, and their copies with them, one stays.
        let others_leave = !kept.is_empty() && !kept.iter().any(is_running);
        if others_leave && free.last().is_some_and(is_running) {
            free.pop();
        }
        free.truncate(surplus);
        free
    }
}

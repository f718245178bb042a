//! Tasks that may run on any worker, which wait for the first that has a slot.
//!
//! A task that needs no large input of its own is not assigned to a worker in advance, since the
//! tasks that use its result wait until all of their inputs are there: it is sent in the order
//! of priorities across all workers, so that the inputs of a task are made at about the same
//! time, as with Dask's queue of root tasks.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use daskwire_messages::graph::Calls;

use super::durations::Work;
use super::model::{Kind, Priority, Queue, Stage, TaskId, Worker};
use super::{State, WorkerId};

/// Maximum size in bytes of the inputs of a task in the pool. Larger ones decide where it runs, as
/// do those that few tasks need.
const MAX_INPUT: u64 = 1 << 20;

/// Tasks that may run on any worker, by the kinds of functions that they call.
#[derive(Debug, Default)]
pub(super) struct Pool {
    queues: BTreeMap<Calls, Queue>,
    len: usize,
    /// The work of the tasks.
    work: Work,
}

impl Pool {
    /// The number of tasks.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn contains(&self, calls: Calls, place: &(Priority, TaskId)) -> bool {
        let queue = self.queues.get(&calls);
        queue.is_some_and(|queue| queue.contains(place))
    }

    /// The work of the tasks.
    pub(super) const fn work(&self) -> Work {
        self.work
    }

    fn insert(&mut self, calls: Calls, place: (Priority, TaskId), expected: Option<Duration>) {
        if self.queues.entry(calls).or_default().insert(place) {
            self.len += 1;
            self.work.add(expected);
        }
    }

    /// Removes a task. `expected` is the run time that was expected when it was inserted.
    pub(super) fn remove(
        &mut self,
        calls: Calls,
        place: &(Priority, TaskId),
        expected: Option<Duration>,
    ) {
        if let Some(queue) = self.queues.get_mut(&calls)
            && queue.remove(place)
        {
            self.len -= 1;
            self.work.remove(expected);
            if queue.is_empty() {
                self.queues.remove(&calls);
            }
        }
    }

    fn first(&self, calls: Calls) -> Option<(Priority, TaskId)> {
        self.queues.get(&calls)?.first().copied()
    }

    /// The first task of each queue.
    pub(super) fn firsts(&self) -> impl Iterator<Item = (Calls, (Priority, TaskId))> {
        let queues = self.queues.iter();
        queues.filter_map(|(calls, queue)| Some((*calls, *queue.first()?)))
    }
}

/// How long a task that is sent to a worker waits there; less is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Load {
    /// The time until a thread is free; zero if one is.
    pub(super) wait: Duration,
    /// The share of the threads that are busy, in parts of 1,024.
    pub(super) busy: u64,
    /// The bytes in the worker's memory when the load was last determined.
    nbytes: u128,
}

impl Load {
    /// The load of a worker; `None` if it has no slot for a task.
    pub(super) fn of(worker: &Worker) -> Option<Self> {
        let (busy, threads) = (worker.busy_count() as u64, u64::from(worker.thread_count));
        worker.has_slot().then(|| Self {
            wait: match busy < threads {
                true => Duration::ZERO,
                false => {
                    Duration::try_from_secs_f64(worker.busy_seconds()).unwrap_or(Duration::MAX)
                }
            },
            busy: busy.saturating_mul(1024) / threads,
            nbytes: worker.nbytes,
        })
    }
}

/// The workers of one kind that accept tasks.
#[derive(Debug, Default)]
pub(super) struct Running {
    /// Their number.
    pub(super) count: usize,
    /// Those with a slot for a task, by their load.
    pub(super) with_room: BTreeSet<(Load, WorkerId)>,
}

impl State {
    /// Puts a task into the pool if it may run on any worker, and one of a suitable kind runs.
    /// Returns whether it did.
    pub(super) fn put_into_pool(&mut self, id: TaskId) -> bool {
        let Some(calls) = self.calls_anywhere(id).filter(|calls| self.is_run(*calls)) else {
            return false;
        };
        self.set_stage(id, Stage::Pooled);
        let task = &mut self.tasks[id];
        task.expected = self.durations.of(&task.key);
        self.pool.insert(calls, (task.priority, id), task.expected);
        true
    }

    /// What a task calls, if it may run on any worker that runs such functions.
    fn calls_anywhere(&self, id: TaskId) -> Option<Calls> {
        let task = &self.tasks[id];
        let run_spec = task.run_spec.as_ref()?;
        let demands = &run_spec.demands;
        if self.returned.contains_key(&id) {
            return None;
        }
        if !task.priority.is_root || !demands.workers.is_empty() || !demands.resources.is_empty() {
            return None;
        }
        let mut inputs = task.dependencies.iter().map(|id| &self.tasks[*id]);
        let left = inputs.try_fold(MAX_INPUT, |left, input| {
            let is_shared = input.dependents.len() as u64 > 2 * self.thread_count;
            left.checked_sub(input.nbytes).filter(|_| is_shared)
        });
        left.map(|_| run_spec.calls)
    }

    /// Whether a running worker runs the kinds of functions that a task calls.
    pub(super) fn is_run(&self, calls: Calls) -> bool {
        let mut kinds = self.running.iter();
        kinds.any(|(kind, running)| running.count > 0 && self.runs(*kind, calls))
    }

    /// Updates the place of a worker among those with a slot.
    pub(super) fn update_load(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get_mut(&id) else {
            return;
        };
        let load = Load::of(worker);
        let before = core::mem::replace(&mut worker.load, load);
        if before == load {
            return;
        }
        let with_room = &mut self.running.entry(worker.kind).or_default().with_room;
        if let Some(load) = before {
            with_room.remove(&(load, id));
        }
        if let Some(load) = load {
            with_room.insert((load, id));
        }
    }

    /// Counts a worker that starts to accept tasks, or stops to.
    pub(super) fn count_running(&mut self, kind: Kind, is_running: bool) {
        let running = self.running.entry(kind).or_default();
        match is_running {
            true => running.count += 1,
            false => running.count -= 1,
        }
    }

    /// Removes a worker that has left from those with a slot.
    pub(super) fn remove_load(&mut self, id: WorkerId, worker: &Worker) {
        if let (Some(load), Some(running)) = (worker.load, self.running.get_mut(&worker.kind)) {
            running.with_room.remove(&(load, id));
        }
        if worker.is_running {
            self.count_running(worker.kind, false);
        }
    }

    /// Takes tasks out of the pool that no running worker runs any more.
    pub(super) fn empty_pool(&mut self) {
        let calls = self.pool.queues.keys().copied();
        let stranded: Vec<Calls> = calls.filter(|calls| !self.is_run(*calls)).collect();
        for calls in stranded {
            while let Some((_, id)) = self.pool.first(calls) {
                self.unassign(id);
                self.make_ready(id);
            }
        }
    }

    /// The first task of the pool that a worker can run.
    pub(super) fn first_in_pool(&self, kind: Kind) -> Option<(Priority, TaskId)> {
        let firsts = self.pool.firsts();
        let firsts = firsts.filter(|(calls, _)| self.runs(kind, *calls));
        firsts.map(|(_, place)| place).min()
    }

    /// Sends tasks of the pool while a worker has a slot for one, each to that with the least
    /// load.
    pub(super) fn send_pool(&mut self) {
        while let Some((calls, place, on)) = self.next_of_pool() {
            let (_, id) = place;
            self.pool.remove(calls, &place, self.tasks[id].expected);
            self.expect(id, on);
            self.send(id, on);
            self.update_load(on);
        }
    }

    /// Whether a worker has a free thread.
    pub(super) fn has_free_thread(&self) -> bool {
        let firsts = self.running.values();
        let mut firsts = firsts.filter_map(|running| running.with_room.first());
        firsts.any(|(load, _)| load.wait.is_zero())
    }

    fn next_of_pool(&self) -> Option<(Calls, (Priority, TaskId), WorkerId)> {
        let next = self.pool.firsts().filter_map(|(calls, place)| {
            let suitable = self.running.iter();
            let suitable = suitable.filter(|(kind, _)| self.runs(**kind, calls));
            let (_, on) = suitable
                .filter_map(|(_, running)| running.with_room.first())
                .min()?;
            Some((calls, place, *on))
        });
        next.min_by_key(|(_, place, _)| *place)
    }
}

//! The choice of a worker for a task.

use core::cmp::Reverse;
use std::collections::BTreeMap;

use super::model::{RunSpec, Stage, Task, TaskId, Worker};
use super::submission::Demands;
use super::{State, WINDOW, WorkerId};
use crate::scheduler::step;

/// Dask's initial assumption of the bandwidth between workers, in bytes per
/// second.
const BANDWIDTH: f64 = 100e6;

/// Assumed latency of a transfer in seconds.
const LATENCY: f64 = 0.001;

/// Dask's assumption of the run time of tasks until the first has ended, in seconds.
const UNKNOWN_DURATION: f64 = 0.5;

/// Maximum number of tasks of a queue, and of tasks in total, that are considered for idle
/// workers at once. More would take too long for an event, because each task is compared
/// with each idle worker.
const MAX_CANDIDATES: usize = 4;
const MAX_TRIED: usize = 16;

impl Demands {
    fn allow(&self, worker: &Worker) -> bool {
        let compare = |one: &String, other: &String| {
            step();
            one.cmp(other)
        };
        let is_named = |name: &String| {
            let found = self.workers.binary_search_by(|known| compare(known, name));
            found.is_ok()
        };
        self.workers.is_empty()
            || [&worker.address, &worker.name, &worker.host]
                .into_iter()
                .any(is_named)
    }

    /// Whether the worker has these resources in total.
    fn fit(&self, worker: &Worker) -> bool {
        let mut resources = self.resources.0.iter();
        resources.all(|(name, amount)| worker.resources.get(name) >= *amount)
    }

    /// Whether the task is restricted to some workers, of which this is one.
    fn name(&self, worker: &Worker) -> bool {
        !self.workers.is_empty() && self.allow(worker)
    }
}

impl State {
    /// Puts a ready task on the stack of a worker, or records that no worker
    /// qualifies.
    pub(super) fn assign(&mut self, id: TaskId) {
        match self.choose(id) {
            Some(on) => self.queue(id, on),
            None => {
                self.set_stage(id, Stage::NoWorker);
                self.no_worker.insert((self.tasks[id].priority, id));
            }
        }
    }

    pub(super) fn queue(&mut self, id: TaskId, on: WorkerId) {
        let task = &self.tasks[id];
        if let (Some(worker), Some(run_spec)) = (self.workers.get_mut(&on), &task.run_spec) {
            worker.push(&run_spec.demands.resources, task.priority, id);
            self.set_stage(id, Stage::Queued(on));
            self.queued_count += 1;
            self.todo.open.insert(on);
        }
    }

    /// Chooses the worker for a task, by these criteria in order:
    ///
    /// 1. it has one of the task's dependencies, if any worker has one;
    /// 2. the fewest bytes have to be transferred to it;
    /// 3. it is the least busy: the fewest tasks for each thread, then the fewest
    ///    bytes in memory.
    ///
    /// Ties are broken at random. Only running workers that meet the task's demands are
    /// considered; if there is none and the task allows other workers, all running
    /// workers are considered.
    pub(super) fn choose(&mut self, id: TaskId) -> Option<WorkerId> {
        let task = &self.tasks[id];
        let run_spec = task.run_spec.as_ref()?;
        let demands = &run_spec.demands;
        let loose = |worker: &Worker| {
            worker.is_running && demands.fit(worker) && self.has_functions(run_spec, worker)
        };
        let strict = |worker: &Worker| loose(worker) && demands.allow(worker);
        let held = self.held(task);
        let holders = || {
            let found = held
                .iter()
                .filter_map(|(id, held)| Some((id, self.workers.get(id)?, *held)));
            found.map(|(id, worker, held)| (*id, worker, held))
        };
        let all = || self.workers.iter().map(|(id, worker)| (*id, worker, 0));
        let mut random = self.random;
        let mut best = pick(
            holders().filter(|(_, worker, _)| strict(worker)),
            &mut random,
        );
        if best.is_none() {
            best = pick(all().filter(|(_, worker, _)| strict(worker)), &mut random);
        }
        if best.is_none() && demands.allow_other_workers {
            best = pick(
                holders().filter(|(_, worker, _)| loose(worker)),
                &mut random,
            );
            if best.is_none() {
                best = pick(all().filter(|(_, worker, _)| loose(worker)), &mut random);
            }
        }
        self.random = random;
        best
    }

    /// Whether a running worker meets the demands of a task.
    pub(super) fn can_run(&self, id: TaskId) -> bool {
        let run_spec = self.tasks[id].run_spec.as_ref();
        run_spec.is_some_and(|run_spec| {
            let demands = &run_spec.demands;
            let mut running = self.workers.values().filter(|worker| worker.is_running);
            running.any(|worker| {
                demands.fit(worker)
                    && self.has_functions(run_spec, worker)
                    && (demands.allow_other_workers || demands.allow(worker))
            })
        })
    }

    /// Whether a worker runs the kinds of functions that a task calls.
    ///
    /// Workers in Rust have some functions of Python, too. They get such tasks by name, and while
    /// no worker has joined that runs all of Python.
    fn has_functions(&self, run_spec: &RunSpec, worker: &Worker) -> bool {
        let (calls, kind) = (run_spec.calls, worker.kind);
        let has_python = kind.python
            || run_spec.demands.name(worker)
            || (!self.has_seen_python && !kind.embedded);
        let is_replaced = calls.replaceable && kind.native && !kind.embedded;
        match calls.native {
            true => kind.native && (!calls.python || has_python),
            false => has_python || (is_replaced && !calls.python),
        }
    }

    /// Returns the size in bytes of a task's dependencies on each worker that holds any.
    fn held(&self, task: &Task) -> BTreeMap<WorkerId, u128> {
        let mut held = BTreeMap::new();
        for dependency in &task.dependencies {
            let dependency = &self.tasks[*dependency];
            for holder in &dependency.who_has {
                *held.entry(*holder).or_insert(0) += u128::from(dependency.nbytes);
            }
        }
        held
    }

    /// Sends a worker tasks from its stack while it has free slots.
    pub(super) fn fill(&mut self, on: WorkerId) {
        while let Some(worker) = self.workers.get_mut(&on)
            && worker.is_running
            && worker.busy_count() < worker.slot_count()
            && worker.unwritten_len < WINDOW
            && let Some(id) = worker.next()
        {
            let task = &self.tasks[id];
            if let Some(run_spec) = &task.run_spec {
                worker.remove(&run_spec.demands.resources, task.priority, id);
            }
            self.queued_count -= 1;
            self.send(id, on);
        }
    }

    /// Moves tasks from the ends of the longest stacks to idle workers, if fetching
    /// their inputs takes less time than waiting.
    pub(super) fn share(&mut self) {
        while self.queued_count != 0
            && let Some((task, to)) = self.surplus()
        {
            self.unassign(task);
            self.queue(task, to);
            self.todo.open.clear();
            self.fill(to);
        }
    }

    /// Returns one of the last tasks of a long stack, and an idle worker that should take it.
    fn surplus(&self) -> Option<(TaskId, WorkerId)> {
        let idle = self.workers.iter().filter(|(_, worker)| {
            step();
            worker.is_idle()
        });
        let idle: Vec<(WorkerId, &Worker)> = idle.map(|(id, worker)| (*id, worker)).collect();
        if idle.is_empty() {
            return None;
        }
        let load = |worker: &Worker| worker.stack_count * 1024 / worker.thread_count as usize;
        let loaded = self.workers.values().filter(|worker| {
            step();
            worker.stack_count != 0
        });
        let mut victims: Vec<&Worker> = loaded.collect();
        victims.sort_unstable_by_key(|worker| Reverse(load(worker)));
        let candidates = victims.into_iter().flat_map(|victim| {
            let wait = wait(victim);
            let queues = victim
                .stack
                .iter()
                .filter(|(resources, _)| idle.iter().any(|(_, thief)| thief.has_left(resources)));
            let last = queues.flat_map(|(_, queue)| queue.iter().rev().take(MAX_CANDIDATES));
            let mut last: Vec<_> = last.collect();
            last.sort_unstable_by_key(|place| Reverse(*place));
            last.into_iter().map(move |(_, id)| (*id, wait))
        });
        let mut candidates = candidates.take(MAX_TRIED);
        candidates.find_map(|(task, wait)| {
            let mut idle = idle.iter();
            let found = idle.find(|thief| self.is_better_at(task, **thief, wait));
            found.map(|(to, _)| (task, *to))
        })
    }

    /// Whether a worker qualifies for a task, and can fetch its inputs within
    /// `wait` seconds.
    pub(super) fn is_better_at(
        &self,
        id: TaskId,
        (to, thief): (WorkerId, &Worker),
        wait: f64,
    ) -> bool {
        let task = &self.tasks[id];
        let Some(run_spec) = &task.run_spec else {
            return false;
        };
        let demands = &run_spec.demands;
        if !demands.allow(thief)
            || !thief.has_left(&demands.resources)
            || !self.has_functions(run_spec, thief)
        {
            return false;
        }
        let mut seconds = 0.0;
        let dependencies = task.dependencies.iter().map(|id| &self.tasks[*id]);
        let mut missing = dependencies.filter(|task| task.who_has.binary_search(&to).is_err());
        missing.all(|task| {
            seconds += transfer_time(task.nbytes);
            seconds < wait
        })
    }
}

/// Estimates how long the last task of a worker's stack waits, in seconds.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn wait(worker: &Worker) -> f64 {
    let waiting = worker.stack_count + worker.busy_count();
    let pace = match worker.pace {
        pace if pace > 0.0 => pace,
        _ => UNKNOWN_DURATION,
    };
    waiting as f64 * pace / f64::from(worker.thread_count)
}

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn transfer_time(nbytes: u64) -> f64 {
    LATENCY + nbytes as f64 / BANDWIDTH
}

/// Picks the worker that holds the most bytes of dependencies, then the least busy one; at
/// random among equals.
fn pick<'w>(
    workers: impl Iterator<Item = (WorkerId, &'w Worker, u128)>,
    random: &mut u64,
) -> Option<WorkerId> {
    let mut best: Option<(WorkerId, &Worker, u128)> = None;
    let mut equal_count = 1;
    for candidate in workers {
        let order = best.as_ref().map(|best| compare(&candidate, best));
        match order {
            Some(core::cmp::Ordering::Greater) => {}
            Some(core::cmp::Ordering::Equal) => {
                equal_count += 1;
                if next(random).is_multiple_of(equal_count) {
                    best = Some(candidate);
                }
            }
            None | Some(core::cmp::Ordering::Less) => {
                equal_count = 1;
                best = Some(candidate);
            }
        }
    }
    best.map(|(id, ..)| id)
}

/// Compares candidates; less is better.
fn compare(
    (_, one, one_held): &(WorkerId, &Worker, u128),
    (_, other, other_held): &(WorkerId, &Worker, u128),
) -> core::cmp::Ordering {
    let load = |worker: &Worker| (worker.busy_count() + worker.stack_count) as u64;
    let one_load = load(one) * u64::from(other.thread_count);
    let other_load = load(other) * u64::from(one.thread_count);
    // Dependencies on the worker need not be transferred.
    (other_held.cmp(one_held))
        .then(one_load.cmp(&other_load))
        .then(one.nbytes.cmp(&other.nbytes))
}

/// Returns the next number of SplitMix64.
pub(in crate::scheduler) fn next(random: &mut u64) -> u64 {
    *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *random;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

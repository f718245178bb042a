//! The choice of a worker for a task.

use core::cmp::Reverse;
use std::collections::BTreeMap;

use daskwire_messages::graph::Calls;

use super::model::{Kind, RunSpec, Stage, Task, TaskId, Worker};
use super::submission::Demands;
use super::{State, WorkerId};
use crate::step;

/// Dask's initial assumption of the bandwidth between workers, in bytes per
/// second.
const BANDWIDTH: f64 = 100e6;

/// Assumed latency of a transfer in seconds.
const LATENCY: f64 = 0.001;

/// Maximum number of tasks of a queue, and of tasks in total, that are considered for idle
/// workers at once. More would take too long for an event, because each task is compared
/// with each idle worker.
const MAX_CANDIDATES: usize = 4;
const MAX_TRIED: usize = 16;

impl Demands {
    pub(super) fn allow(&self, worker: &Worker) -> bool {
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
    pub(super) fn fit(&self, worker: &Worker) -> bool {
        let mut resources = self.resources.0.iter();
        resources.all(|(name, amount)| worker.resources.get(name) >= *amount)
    }

    /// Whether the task is restricted to some workers, of which this is one.
    fn name(&self, worker: &Worker) -> bool {
        !self.workers.is_empty() && self.allow(worker)
    }
}

impl State {
    /// Puts a ready task into the queue of a worker, or records that no worker
    /// qualifies.
    pub(super) fn assign(&mut self, id: TaskId) {
        if self.put_into_pool(id) {
            return;
        }
        match self.choose(id) {
            Some(on) => self.enqueue(id, on),
            None => {
                self.set_stage(id, Stage::NoWorker);
                self.no_worker.insert((self.tasks[id].priority, id));
            }
        }
    }

    pub(super) fn enqueue(&mut self, id: TaskId, on: WorkerId) {
        self.expect(id, on);
        let task = &self.tasks[id];
        if let (Some(worker), Some(run_spec)) = (self.workers.get_mut(&on), &task.run_spec) {
            worker.enqueue(&run_spec.demands.resources, task.priority, id);
            self.set_stage(id, Stage::Queued(on));
            self.queued_count += 1;
            self.todo.has_room.insert(on);
        }
    }

    /// Adds the run time that a task is expected to have to the work of a worker.
    pub(super) fn expect(&mut self, id: TaskId, on: WorkerId) {
        let expected = self.durations.of(&self.tasks[id].key);
        self.tasks[id].expected = expected;
        if let Some(worker) = self.workers.get_mut(&on) {
            worker.work.add(expected);
        }
    }

    /// Chooses the worker for a task, by these criteria in order:
    ///
    /// 1. it has one of the task's dependencies, if any worker has one;
    /// 2. it can start the task first: its other tasks take a while, and so do transfers of
    ///    dependencies that it lacks;
    /// 3. it has the fewest bytes in memory.
    ///
    /// Ties are broken at random. Only running workers that meet the task's demands are
    /// considered; if there is none and the task allows other workers, all running
    /// workers are considered.
    pub(super) fn choose(&mut self, id: TaskId) -> Option<WorkerId> {
        let task = &self.tasks[id];
        let run_spec = task.run_spec.as_ref()?;
        let demands = &run_spec.demands;
        let loose = |on: WorkerId, worker: &Worker| {
            worker.is_running && demands.fit(worker) && self.may_run(id, run_spec, (on, worker))
        };
        let strict = |on, worker: &Worker| loose(on, worker) && demands.allow(worker);
        let held = self.held(task);
        let needed = task.dependencies.iter().map(|id| &self.tasks[*id]);
        let needed: u128 = needed.map(|task| u128::from(task.nbytes)).sum();
        let candidate = |id, worker: &'_ Worker, held| Candidate {
            id,
            start: worker.busy_seconds() + transfer_time(needed.saturating_sub(held)),
            nbytes: worker.nbytes,
        };
        let holders = || {
            held.iter()
                .filter_map(|(id, held)| Some((*id, self.workers.get(id)?, *held)))
        };
        let all = || self.workers.iter().map(|(id, worker)| (*id, worker, 0));
        let pick = |workers: &mut dyn Iterator<Item = (WorkerId, &Worker, u128)>,
                    random: &mut _| {
            pick(
                workers.map(|(id, worker, held)| candidate(id, worker, held)),
                random,
            )
        };
        let mut random = self.random;
        let mut best = pick(
            &mut holders().filter(|(on, worker, _)| strict(*on, worker)),
            &mut random,
        );
        if best.is_none() {
            best = pick(
                &mut all().filter(|(on, worker, _)| strict(*on, worker)),
                &mut random,
            );
        }
        if best.is_none() && demands.allow_other_workers {
            best = pick(
                &mut holders().filter(|(on, worker, _)| loose(*on, worker)),
                &mut random,
            );
            if best.is_none() {
                best = pick(
                    &mut all().filter(|(on, worker, _)| loose(*on, worker)),
                    &mut random,
                );
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
            let mut running = self.workers.iter().filter(|(_, worker)| worker.is_running);
            running.any(|(on, worker)| {
                demands.fit(worker)
                    && self.may_run(id, run_spec, (*on, worker))
                    && (demands.allow_other_workers || demands.allow(worker))
            })
        })
    }

    /// Whether a worker runs the kinds of functions that a task calls, and has not given the task
    /// back.
    ///
    /// Workers in Rust have some functions of Python, too. They get such tasks by name, and while
    /// no worker has joined that runs all of Python.
    pub(super) fn may_run(
        &self,
        id: TaskId,
        run_spec: &RunSpec,
        (on, worker): (WorkerId, &Worker),
    ) -> bool {
        let kind = Kind {
            python: worker.kind.python || run_spec.demands.name(worker),
            ..worker.kind
        };
        self.runs(kind, run_spec.calls) && !self.has_returned(id, on)
    }

    /// Whether workers of a kind run the kinds of functions that a task calls, see
    /// [`may_run`](Self::may_run).
    pub(super) fn runs(&self, kind: Kind, calls: Calls) -> bool {
        let has_python = kind.python || (!self.has_seen_python && !kind.embedded);
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

    /// Sends tasks to the workers whose load may have changed, and those of the pool to any.
    pub(super) fn send_tasks(&mut self) {
        let touched = core::mem::take(&mut self.todo.has_room);
        for on in &touched {
            self.send_queued(*on);
        }
        if self.pool.len() > 0 {
            self.send_pool();
            // Tasks in their queues may have waited for tasks of the pool.
            for on in &touched {
                self.send_queued(*on);
            }
        }
    }

    /// Sends a worker tasks from its queue while it has free slots, and those of the pool that it
    /// can run come later.
    fn send_queued(&mut self, on: WorkerId) {
        while let Some(worker) = self.workers.get(&on)
            && worker.has_slot()
            && let Some(id) = worker.next_queued()
        {
            let task = &self.tasks[id];
            let first = self.first_in_pool(worker.kind);
            if first.is_some_and(|(priority, _)| priority < task.priority) {
                break;
            }
            let Some(worker) = self.workers.get_mut(&on) else {
                break;
            };
            if let Some(run_spec) = &task.run_spec {
                worker.dequeue(&run_spec.demands.resources, task.priority, id);
            }
            self.queued_count -= 1;
            self.send(id, on);
        }
        self.update_load(on);
    }

    /// Moves tasks from the ends of the longest queues to idle workers, if fetching
    /// their inputs takes less time than waiting.
    pub(super) fn balance(&mut self) {
        while self.policy.is_stealing
            && self.queued_count != 0
            && self.has_free_thread()
            && let Some((task, to)) = self.next_move()
        {
            self.unassign(task);
            self.enqueue(task, to);
            self.send_tasks();
        }
    }

    /// Returns one of the last tasks of a long queue, and an idle worker that should take it.
    fn next_move(&self) -> Option<(TaskId, WorkerId)> {
        let idle = self.workers.iter().filter(|(_, worker)| {
            step();
            worker.is_idle()
        });
        let idle: Vec<(WorkerId, &Worker)> = idle.map(|(id, worker)| (*id, worker)).collect();
        if idle.is_empty() {
            return None;
        }
        let load = |worker: &Worker| worker.queued_count * 1024 / worker.thread_count as usize;
        let loaded = self.workers.values().filter(|worker| {
            step();
            worker.queued_count != 0
        });
        let mut victims: Vec<&Worker> = loaded.collect();
        victims.sort_unstable_by_key(|worker| Reverse(load(worker)));
        let candidates = victims.into_iter().flat_map(|victim| {
            let wait = victim.busy_seconds();
            let queues = victim
                .queue
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
            || !self.may_run(id, run_spec, (to, thief))
        {
            return false;
        }
        let mut seconds = 0.0;
        let dependencies = task.dependencies.iter().map(|id| &self.tasks[*id]);
        let mut missing = dependencies.filter(|task| task.who_has.binary_search(&to).is_err());
        missing.all(|task| {
            seconds += transfer_time(u128::from(task.nbytes));
            seconds < wait
        })
    }
}

/// The time that a transfer takes, in seconds.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn transfer_time(nbytes: u128) -> f64 {
    match nbytes {
        0 => 0.0,
        nbytes => LATENCY + nbytes as f64 / BANDWIDTH,
    }
}

/// A worker that may get a task.
struct Candidate {
    id: WorkerId,
    /// The time in which it can start the task, in seconds.
    start: f64,
    /// Its bytes in memory.
    nbytes: u128,
}

/// Picks the worker that can start a task first, then that with the fewest bytes in memory; at
/// random among equals.
fn pick(workers: impl Iterator<Item = Candidate>, random: &mut u64) -> Option<WorkerId> {
    let mut best: Option<Candidate> = None;
    let mut equal_count = 1;
    for candidate in workers {
        let order = best.as_ref().map(|best| {
            let start = candidate.start.total_cmp(&best.start);
            start.then(candidate.nbytes.cmp(&best.nbytes))
        });
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
    best.map(|best| best.id)
}

/// Returns the next number of SplitMix64.
pub(crate) fn next(random: &mut u64) -> u64 {
    *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *random;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

//! The choice of a worker for a task.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::groups::Group;
use super::model::{Task, TaskId, TaskStage, Worker};
use super::{State, WorkerId};
use crate::steps::step;

/// Dask's initial assumption of the bandwidth between workers, in bytes per
/// second.
const BANDWIDTH: f64 = 100e6;

/// Assumed latency of a transfer in seconds.
const LATENCY: f64 = 0.001;

/// Maximum number of alternatives that are compared: of classes or named workers, of holders of an
/// input, of groups in a queue. Of more, some are compared, another part each time.
pub(super) const MAX_COMPARED: usize = 16;

impl State {
    /// Sends a ready task to a worker, puts it into the queue of one, or records that no worker
    /// qualifies.
    pub(super) fn assign(&mut self, id: TaskId) {
        if self.adopt(id) || self.put_into_pool(id) {
            return;
        }
        match self.choose(id) {
            Some(on) => self.place(id, on),
            None => self.wait_for_worker(id),
        }
    }

    /// Sends a task to a worker, or puts it into the worker's queue until it has a slot.
    pub(super) fn place(&mut self, id: TaskId, on: WorkerId) {
        self.expect(id, on);
        if self.is_next_on(id, on) {
            self.send(id, on);
        } else {
            let task = &self.tasks[id];
            if let (Some(worker), Some(run_spec)) = (self.workers.get_mut(&on), &task.run_spec) {
                let before = worker.enqueue(run_spec.group, task.priority, id);
                self.count_queued(id, on, before);
                self.set_stage(id, TaskStage::Queued(on));
            }
        }
        self.update_load(on);
        self.todo.has_room.push(on);
    }

    /// Whether a worker has a slot for a task, and none of the tasks that wait comes before it.
    fn is_next_on(&self, id: TaskId, on: WorkerId) -> bool {
        let (Some(worker), Some(run_spec)) = (self.workers.get(&on), &self.tasks[id].run_spec)
        else {
            return false;
        };
        worker.queued_count == 0
            && worker.has_slot()
            && worker.has_left(&run_spec.demands.resources)
            && self.comes_before_pool(id, on)
    }

    /// Takes a task out of the queue of a worker.
    pub(super) fn dequeue(&mut self, id: TaskId, on: WorkerId) {
        let task = &self.tasks[id];
        if let (Some(worker), Some(run_spec)) = (self.workers.get_mut(&on), &task.run_spec) {
            let before = worker.dequeue(run_spec.group, task.priority, id);
            self.count_queued(id, on, before);
        }
    }

    /// Counts a change of the queue of a worker, which had `before` tasks of the group of a task.
    fn count_queued(&mut self, id: TaskId, on: WorkerId, before: usize) {
        let (Some(run_spec), Some(worker)) = (&self.tasks[id].run_spec, self.workers.get(&on))
        else {
            return;
        };
        let group = run_spec.group;
        let now = worker.queue.get(&group).map_or(0, |queue| queue.len());
        self.queued_count = self.queued_count + now - before;
        let loaded = &mut self.groups[group].loaded;
        if before > 0 {
            loaded.remove(&(worker.share_of(before), on));
        }
        if now > 0 {
            loaded.insert((worker.share_of(now), on));
        }
        if before == 0 || now == 0 {
            self.update_movable(group);
        }
    }

    /// Whether all tasks of the pool that a worker can run come later than a task.
    fn comes_before_pool(&self, id: TaskId, on: WorkerId) -> bool {
        self.pool.len() == 0
            || self.workers.get(&on).is_none_or(|worker| {
                let first = self.first_in_pool(worker);
                first.is_none_or(|(priority, _)| self.tasks[id].priority <= priority)
            })
    }

    /// Adds the run time that a task is expected to have to the work of a worker.
    pub(super) fn expect(&mut self, id: TaskId, on: WorkerId) {
        if self.tasks[id].is_actor {
            self.add_actor(id, on);
        }
        let expected = self.key_groups.duration(self.tasks[id].key_group);
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
    /// A task that is tried again after an error runs on another worker than before, if another is
    /// among those with its dependencies, or those of which it may run on any.
    ///
    /// Only running workers that meet the task's demands are considered; if there is none and the
    /// task allows other workers, all running workers are considered. Of many holders of a
    /// dependency, and of many workers that a task names, only [`MAX_COMPARED`] are compared.
    pub(super) fn choose(&mut self, id: TaskId) -> Option<WorkerId> {
        let random = next_random(&mut self.random);
        self.update_starts();
        let task = &self.tasks[id];
        let run_spec = task.run_spec.as_ref()?;
        let group = &self.groups[run_spec.group];
        if !group.has_worker() {
            return None;
        }
        if task.is_actor {
            return self.choose_for_actor(id, random);
        }
        let failed_on = self.retried.get(&id);
        let held = match self.is_output(id) {
            true => BTreeMap::new(),
            false => self.held(task, random),
        };
        let mut needed = 0;
        if !held.is_empty() {
            let inputs = task.dependencies.iter().map(|id| &self.tasks[*id]);
            needed = inputs.map(|input| u128::from(input.nbytes)).sum();
        }
        let holders = |admits: &dyn Fn(WorkerId, &Worker) -> bool| {
            let holders = held.iter().filter_map(|(on, held)| {
                let worker = self.workers.get(on)?;
                let is_suitable = admits(*on, worker) && !self.has_returned(id, *on);
                is_suitable.then(|| Candidate {
                    id: *on,
                    has_failed: failed_on == Some(on),
                    start: worker.busy_seconds() + transfer_time(needed.saturating_sub(*held)),
                    nbytes: worker.nbytes,
                })
            });
            pick(holders, random)
        };
        holders(&|on, worker| group.admits(on, worker))
            .or_else(|| match group.is_unnamed() {
                true => None,
                false => self.first_named(id, group, random),
            })
            .or_else(|| holders(&|_, worker| group.admits_unnamed(worker)))
            .or_else(|| self.first_unnamed(id, group, random))
    }

    /// The worker that can start a task first, of those that it names.
    fn first_named(&self, id: TaskId, group: &Group, random: u64) -> Option<WorkerId> {
        if let Some(returned) = self.returned.get(&id) {
            // One after the other, so that no worker is skipped again and again.
            let after = group.named.partition_point(|on| *on <= returned.last);
            let (before, after) = group.named.split_at(after);
            let mut named = after.iter().chain(before);
            return named.find(|on| !returned.workers.contains(on)).copied();
        }
        let failed_on = self.retried.get(&id);
        let named = some(&group.named, random);
        let candidates = named.filter_map(|on| {
            let worker = self.workers.get(on)?;
            Some(Candidate {
                id: *on,
                has_failed: failed_on == Some(on),
                start: worker.busy_seconds(),
                nbytes: worker.nbytes,
            })
        });
        pick(candidates, random)
    }

    /// The worker that can start a task first, of the classes of its group.
    fn first_unnamed(&self, id: TaskId, group: &Group, random: u64) -> Option<WorkerId> {
        if let Some(returned) = self.returned.get(&id) {
            return group.classes.iter().find_map(|class| {
                let members = &self.classes[*class].members;
                let after = members.range((Bound::Excluded(returned.last), Bound::Unbounded));
                let mut members = after.chain(members.range(..=returned.last));
                members.find(|on| !returned.workers.contains(on)).copied()
            });
        }
        let classes = some(&group.classes, random).map(|class| &self.classes[*class]);
        let failed_on = self.retried.get(&id);
        let firsts = classes.flat_map(|class| {
            let firsts = class
                .by_start
                .iter()
                .take(1 + usize::from(failed_on.is_some()));
            firsts.map(|(start, on)| (failed_on == Some(on), *start, *on))
        });
        firsts.min().map(|(.., on)| on)
    }

    /// Whether a running worker meets the demands of a task.
    pub(super) fn can_run(&self, id: TaskId) -> bool {
        let run_spec = self.tasks[id].run_spec.as_ref();
        run_spec.is_some_and(|run_spec| {
            let group = &self.groups[run_spec.group];
            match self.returned.contains_key(&id) {
                true => {
                    self.first_named(id, group, 0).is_some()
                        || self.first_unnamed(id, group, 0).is_some()
                }
                false => group.has_worker(),
            }
        })
    }

    /// Returns the size in bytes of a task's dependencies on workers that hold any. If some have
    /// many holders, at most [`MAX_COMPARED`] workers are returned, those that hold most.
    fn held(&self, task: &Task, random: u64) -> BTreeMap<WorkerId, u128> {
        let mut held = BTreeMap::new();
        let mut has_many = false;
        for dependency in &task.dependencies {
            let dependency = &self.tasks[*dependency];
            has_many |= dependency.who_has.len() > MAX_COMPARED;
            for holder in some(&dependency.who_has, random) {
                step();
                *held.entry(*holder).or_insert(0) += u128::from(dependency.nbytes);
            }
        }
        if !has_many {
            return held;
        }
        let mut most: Vec<(u128, WorkerId)> = held.into_iter().map(|(on, len)| (len, on)).collect();
        most.sort_unstable_by(|one, other| other.cmp(one));
        most.truncate(MAX_COMPARED);
        let inputs = || task.dependencies.iter().map(|id| &self.tasks[*id]);
        let exactly = |on: &WorkerId| {
            let held = inputs().filter(|input| input.who_has.binary_search(on).is_ok());
            held.map(|input| u128::from(input.nbytes)).sum()
        };
        most.iter().map(|(_, on)| (*on, exactly(on))).collect()
    }

    /// Sends tasks to the workers whose load may have changed, and those of the pool to any.
    pub(super) fn send_tasks(&mut self) {
        let mut touched = core::mem::take(&mut self.todo.has_room);
        touched.sort_unstable();
        touched.dedup();
        for on in &touched {
            self.send_queued(*on);
        }
        if self.pool.len() > 0 || self.todo.has_sendable {
            self.send_pool();
            if self.queued_count > 0 {
                // Tasks in their queues may have waited for tasks of the pool.
                for on in &touched {
                    self.send_queued(*on);
                }
            }
        }
        if self.queued_count > 0 {
            self.todo.unbalanced.extend(&touched);
        }
        // Its memory is used again, unless it is much.
        if self.todo.has_room.is_empty() && touched.capacity() <= 1 << 10 {
            touched.clear();
            self.todo.has_room = touched;
        }
    }

    /// Sends a worker tasks from its queue while it has free slots, and those of the pool that it
    /// can run come later.
    fn send_queued(&mut self, on: WorkerId) {
        while let Some(worker) = self.workers.get(&on)
            && worker.has_slot()
            && let Some(id) = self.next_queued(worker)
            && self.comes_before_pool(id, on)
        {
            self.dequeue(id, on);
            self.send(id, on);
        }
        self.update_load(on);
    }

    /// Returns the first task in the queue of a worker whose resources are available. If tasks of
    /// many groups wait for resources, only the first of these groups are considered.
    fn next_queued(&self, worker: &Worker) -> Option<TaskId> {
        let mut heads = worker.heads.iter().take(MAX_COMPARED);
        let next = heads.find(|(_, _, group)| {
            let demands = &self.groups[*group].key.demands;
            worker.has_left(&demands.resources)
        });
        next.map(|(_, id, _)| *id)
    }
}

/// At most [`MAX_COMPARED`] of many items, beginning with a random one.
pub(super) fn some<T>(items: &[T], random: u64) -> impl Iterator<Item = &T> {
    let start = match items.len() {
        0..=MAX_COMPARED => 0,
        len => usize::try_from(random % len as u64).expect("less than the length"),
    };
    let (before, after) = items.split_at(start);
    after.iter().chain(before).take(MAX_COMPARED)
}

/// At most `count` of many items, beginning with those after a random one.
pub(super) fn some_of<T: Ord>(
    items: &BTreeSet<T>,
    after: T,
    count: usize,
) -> impl Iterator<Item = &T> {
    items
        .range(&after..)
        .chain(items.range(..&after))
        .take(count)
}

/// The time that a transfer takes, in seconds.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
pub(super) fn transfer_time(nbytes: u128) -> f64 {
    match nbytes {
        0 => 0.0,
        nbytes => LATENCY + nbytes as f64 / BANDWIDTH,
    }
}

/// A worker that may get a task.
struct Candidate {
    id: WorkerId,
    /// Whether the task has failed there before.
    has_failed: bool,
    /// The time in which it can start the task, in seconds.
    start: f64,
    /// Its bytes in memory.
    nbytes: u128,
}

/// Picks a worker on which the task has not failed, then the one that can start it first, then that
/// with the fewest bytes in memory; at random among equals.
fn pick(workers: impl Iterator<Item = Candidate>, mut random: u64) -> Option<WorkerId> {
    let mut best: Option<Candidate> = None;
    let mut equal_count = 1;
    for candidate in workers {
        step();
        let order = best.as_ref().map(|best| {
            let failed = candidate.has_failed.cmp(&best.has_failed);
            let start = candidate.start.total_cmp(&best.start);
            failed.then(start).then(candidate.nbytes.cmp(&best.nbytes))
        });
        match order {
            Some(core::cmp::Ordering::Greater) => {}
            Some(core::cmp::Ordering::Equal) => {
                equal_count += 1;
                if next_random(&mut random).is_multiple_of(equal_count) {
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
pub const fn next_random(random: &mut u64) -> u64 {
    *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *random;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

//! Tasks that may run on any worker, which wait for the first that has a slot.
//!
//! A task that needs no large input of its own is not assigned to a worker in advance, since the
//! tasks that use its result wait until all of their inputs are there: it is sent in the order
//! of priorities across all workers, so that the inputs of a task are made at about the same
//! time, as with Dask's queue of root tasks.

use core::time::Duration;
use std::collections::BTreeMap;

use super::durations::Work;
use super::groups::GroupId;
use super::line::Line;
use super::model::{Priority, TaskId, TaskStage, Worker};
use super::{State, WorkerId};

/// Maximum size in bytes of the inputs of a task in the pool. Larger ones decide where it runs, as
/// do those that few tasks need.
const MAX_INPUT: u64 = 1 << 20;

/// Tasks that may run on any worker, by their group. The groups differ only in the kinds of
/// functions that their tasks call, so that there are at most eight.
#[derive(Debug, Default)]
pub(super) struct Pool {
    queues: BTreeMap<GroupId, Line>,
    len: usize,
    /// The work of the tasks.
    work: Work,
}

impl Pool {
    /// The number of tasks.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    #[cfg(any(test, feature = "checks"))]
    pub(super) fn contains(&self, group: GroupId, place: &(Priority, TaskId)) -> bool {
        let queue = self.queues.get(&group);
        queue.is_some_and(|queue| queue.contains(place))
    }

    /// The work of the tasks.
    pub(super) const fn work(&self) -> Work {
        self.work
    }

    fn insert(&mut self, group: GroupId, place: (Priority, TaskId), expected: Option<Duration>) {
        if self.queues.entry(group).or_default().insert(place) {
            self.len += 1;
            self.work.add(expected);
        }
    }

    /// Removes a task. `expected` is the run time that was expected when it was inserted.
    pub(super) fn remove(
        &mut self,
        group: GroupId,
        place: &(Priority, TaskId),
        expected: Option<Duration>,
    ) {
        if let Some(queue) = self.queues.get_mut(&group)
            && queue.remove(place)
        {
            self.len -= 1;
            self.work.remove(expected);
            if queue.is_empty() {
                self.queues.remove(&group);
            }
        }
    }

    fn first(&self, group: GroupId) -> Option<(Priority, TaskId)> {
        self.queues.get(&group)?.first().copied()
    }

    /// The first task of each queue.
    pub(super) fn firsts(&self) -> impl Iterator<Item = (GroupId, (Priority, TaskId))> {
        let queues = self.queues.iter();
        queues.filter_map(|(group, queue)| Some((*group, *queue.first()?)))
    }
}

impl State {
    /// Puts a task into the pool if it may run on any worker, and one of a suitable kind runs.
    /// Returns whether it did.
    pub(super) fn put_into_pool(&mut self, id: TaskId) -> bool {
        let group = self.group_anywhere(id);
        let Some(group) = group.filter(|group| !self.groups[*group].classes.is_empty()) else {
            return false;
        };
        self.set_stage(id, TaskStage::Pooled);
        let task = &mut self.tasks[id];
        task.expected = self.key_groups.duration(task.key_group);
        self.pool.insert(group, (task.priority, id), task.expected);
        true
    }

    /// The group of a task that may run on any worker that runs such functions.
    fn group_anywhere(&self, id: TaskId) -> Option<GroupId> {
        let task = &self.tasks[id];
        let run_spec = task.run_spec.as_ref()?;
        let demands = &run_spec.demands;
        if !task.priority.is_root || !demands.workers.is_empty() || !demands.resources.is_empty() {
            return None;
        }
        if task.is_actor || self.returned.contains_key(&id) || self.retried.contains_key(&id) {
            return None;
        }
        let mut inputs = task.dependencies.iter().map(|id| &self.tasks[*id]);
        let left = inputs.try_fold(MAX_INPUT, |left, input| {
            let is_shared = input.dependents.len() as u64 > 2 * self.thread_count;
            left.checked_sub(input.nbytes).filter(|_| is_shared)
        });
        left.map(|_| run_spec.group)
    }

    /// Has the tasks taken out of the pool that no running worker runs any more.
    pub(super) fn empty_pool(&mut self) {
        let groups = self.pool.queues.keys().copied();
        let stranded = groups.filter(|group| self.groups[*group].classes.is_empty());
        self.todo.stranded.extend(stranded);
    }

    /// Takes the first task of a group out of the pool if no running worker runs it. Returns
    /// `false` if there is none.
    pub(super) fn take_stranded(&mut self, group: GroupId) -> bool {
        let classes = self.groups.get(group).map(|group| &group.classes);
        let Some((_, id)) = self.pool.first(group) else {
            return false;
        };
        if classes.is_some_and(|classes| !classes.is_empty()) {
            return false;
        }
        self.unassign(id);
        self.make_ready(id);
        true
    }

    /// The first task of the pool that a worker can run.
    pub(super) fn first_in_pool(&self, worker: &Worker) -> Option<(Priority, TaskId)> {
        let firsts = self.pool.firsts();
        let firsts = firsts.filter(|(group, _)| self.groups[*group].admits_unnamed(worker));
        firsts.map(|(_, place)| place).min()
    }

    /// Sends tasks of the pool while a worker has a slot for one, each to that with the least
    /// load.
    pub(super) fn send_pool(&mut self) {
        self.todo.has_sendable = false;
        while let Some((group, place, on)) = self.next_of_pool() {
            if !self.take_step() {
                self.todo.has_sendable = true;
                break;
            }
            let (_, id) = place;
            self.pool.remove(group, &place, self.tasks[id].expected);
            self.expect(id, on);
            self.send(id, on);
            self.update_load(on);
        }
    }

    fn next_of_pool(&self) -> Option<(GroupId, (Priority, TaskId), WorkerId)> {
        let next = self.pool.firsts().filter_map(|(group, place)| {
            let classes = self.groups[group].classes.iter();
            let (_, on) = classes
                .filter_map(|class| self.classes[*class].with_room.first())
                .min()?;
            Some((group, place, *on))
        });
        next.min_by_key(|(_, place, _)| *place)
    }
}

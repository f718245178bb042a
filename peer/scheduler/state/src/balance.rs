//! Balance: idle workers take over tasks that wait in the queues of others.

use super::choose::{MAX_COMPARED, next_random, some, some_of, transfer_time};
use super::groups::{Group, GroupId};
use super::model::{TaskId, Worker};
use super::{State, WorkerId};

/// Maximum number of tasks of a group in a queue that are considered, from its end, and of queues
/// of a group that an idle worker looks at.
const MAX_LAST: usize = 4;

impl State {
    /// Moves tasks from the ends of the longest queues to idle workers, if fetching
    /// their inputs takes less time than waiting.
    ///
    /// Looks at the workers whose load has changed: an idle one takes over tasks of others, and
    /// one with a queue hands over some of its own.
    pub(super) fn balance(&mut self) {
        while let Some(on) = self.todo.unbalanced.first().copied() {
            if !self.policy.is_stealing || self.movable.is_empty() || self.idle.is_empty() {
                self.todo.unbalanced.clear();
                break;
            }
            if !self.take_step() {
                break;
            }
            self.todo.unbalanced.remove(&on);
            while let Some((task, to)) = self.next_move(on) {
                self.unassign(task);
                self.place(task, to);
                self.send_tasks();
            }
        }
    }

    /// Returns one of the last tasks in a long queue, and an idle worker that should take it: a
    /// task for this worker if it is idle, or a task in its queue.
    fn next_move(&mut self, on: WorkerId) -> Option<(TaskId, WorkerId)> {
        let random = next_random(&mut self.random);
        let worker = self.workers.get(&on)?;
        if worker.places.is_idle {
            let after = u32::try_from(random >> 32).unwrap_or_default();
            let mut groups = some_of(&self.movable, after, MAX_COMPARED);
            return groups.find_map(|group| {
                let found = self.task_for(on, worker, *group)?;
                Some((found, on))
            });
        }
        let wait = worker.busy_seconds();
        let mut queues = worker.heads.iter().take(MAX_COMPARED);
        queues.find_map(|(_, _, group)| {
            if !self.movable.contains(group) {
                return None;
            }
            let mut last = worker.queue.get(group)?.iter().rev().take(MAX_LAST);
            last.find_map(|(_, task)| Some((*task, self.idle_for(*task, wait, random)?)))
        })
    }

    /// Returns one of the last tasks of a group in the longest queues that an idle worker should
    /// take over.
    fn task_for(&self, to: WorkerId, thief: &Worker, group: GroupId) -> Option<TaskId> {
        let of_group = &self.groups[group];
        if !of_group.allows(to, thief) || !thief.has_left(&of_group.key.demands.resources) {
            return None;
        }
        let mut victims = of_group.loaded.iter().rev().take(MAX_LAST);
        victims.find_map(|(_, victim)| {
            let victim = self.workers.get(victim)?;
            let wait = victim.busy_seconds();
            let last = victim.queue.get(&group)?.iter().rev().take(MAX_LAST);
            let mut last = last.map(|(_, task)| *task);
            last.find(|task| self.is_better_at(*task, (to, thief), wait))
        })
    }

    /// Returns an idle worker that a task should be moved to: one that has inputs of the task, or
    /// any that can fetch them within `wait` seconds.
    pub(super) fn idle_for(&self, id: TaskId, wait: f64, random: u64) -> Option<WorkerId> {
        let task = &self.tasks[id];
        let run_spec = task.run_spec.as_ref()?;
        let group = &self.groups[run_spec.group];
        let is_better = |on: &WorkerId| {
            let worker = self.workers.get(on);
            worker.is_some_and(|worker| {
                worker.places.is_idle && self.is_better_at(id, (*on, worker), wait)
            })
        };
        let inputs = task.dependencies.iter().take(MAX_COMPARED);
        let holders = inputs.flat_map(|input| some(&self.tasks[*input].who_has, random));
        let mut holders = holders.take(MAX_COMPARED);
        let holder = holders.find(|on| is_better(on));
        holder
            .or_else(|| self.idle_of(group, random).find(|on| is_better(on)))
            .copied()
    }

    /// Some idle workers that meet the demands of a group, those that it names first.
    fn idle_of<'s>(&'s self, group: &'s Group, random: u64) -> impl Iterator<Item = &'s WorkerId> {
        let named = match group.is_unnamed() {
            true => &[][..],
            false => &group.named,
        };
        let classes = some(&group.classes, random).map(|class| &self.classes[*class].idle);
        let unnamed = classes.flat_map(|idle| idle.iter().take(MAX_LAST));
        some(named, random).chain(unnamed.take(MAX_COMPARED))
    }

    /// Whether a worker qualifies for a task, and can fetch its inputs within
    /// `wait` seconds.
    fn is_better_at(&self, id: TaskId, (to, thief): (WorkerId, &Worker), wait: f64) -> bool {
        let task = &self.tasks[id];
        let Some(run_spec) = &task.run_spec else {
            return false;
        };
        if task.is_actor
            || !self.groups[run_spec.group].allows(to, thief)
            || !thief.has_left(&run_spec.demands.resources)
            || self.has_returned(id, to)
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

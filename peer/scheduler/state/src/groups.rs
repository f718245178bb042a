//! Groups of tasks with the same demands on a worker.
//!
//! Workers are compared with groups, not with tasks: when a worker starts to accept tasks or stops
//! to, and when the first task of a group is submitted. A choice for a task then takes no longer
//! with more workers.

use core::cmp::Ordering;
use core::ops::Bound;
use std::collections::BTreeSet;
use std::sync::Arc;

use daskwire_messages::graph::Calls;

use super::classes::{Class, ClassId};
use super::model::{Kind, Queue, TaskId, TaskStage, Worker};
use super::notice::Notice;
use super::submission::Demands;
use super::{State, WorkerId};
use crate::steps::step;

/// The index of a group in the table.
pub(super) type GroupId = u32;

/// Tasks with the same demands.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) key: GroupKey,
    pub(super) task_count: usize,
    /// The classes whose workers have the resources, and run what the tasks call, sorted. Only if
    /// the tasks may run on workers that they do not name.
    pub(super) classes: Vec<ClassId>,
    /// The running workers that the tasks name, have the resources, and run what the tasks call,
    /// sorted.
    pub(super) named: Vec<WorkerId>,
    /// The tasks for which no worker qualifies.
    pub(super) no_worker: Queue,
    /// The workers in whose queues tasks of the group are, by the number of these for each
    /// thread, in parts of 1,024.
    pub(super) loaded: BTreeSet<(usize, WorkerId)>,
}

/// What the tasks of a group have in common. The annotations are those of one of them, and not
/// compared.
#[derive(Clone, Debug)]
pub(super) struct GroupKey {
    pub(super) demands: Arc<Demands>,
    pub(super) calls: Calls,
}

impl Ord for GroupKey {
    fn cmp(&self, other: &Self) -> Ordering {
        let (one, two) = (&*self.demands, &*other.demands);
        self.calls
            .cmp(&other.calls)
            .then_with(|| one.allow_other_workers.cmp(&two.allow_other_workers))
            .then_with(|| one.resources.cmp(&two.resources))
            .then_with(|| match Arc::ptr_eq(&self.demands, &other.demands) {
                true => Ordering::Equal,
                false => one.workers.cmp(&two.workers),
            })
    }
}

impl PartialOrd for GroupKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for GroupKey {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for GroupKey {}

impl Group {
    /// Whether the tasks may run on workers of any name.
    pub(super) fn is_unnamed(&self) -> bool {
        self.key.demands.workers.is_empty()
    }

    /// Whether a running worker meets the demands.
    pub(super) fn admits(&self, id: WorkerId, worker: &Worker) -> bool {
        match self.is_unnamed() {
            true => self.admits_unnamed(worker),
            false => {
                step();
                self.named.binary_search(&id).is_ok()
            }
        }
    }

    /// Whether a running worker meets the demands, except that they may not name it. `false` if
    /// they must.
    pub(super) fn admits_unnamed(&self, worker: &Worker) -> bool {
        step();
        let mut classes = worker.classes.iter();
        classes.any(|class| self.classes.binary_search(class).is_ok())
    }

    /// Whether a running worker meets the demands, though the tasks may prefer others.
    pub(super) fn allows(&self, id: WorkerId, worker: &Worker) -> bool {
        self.admits(id, worker) || self.admits_unnamed(worker)
    }

    /// Whether a running worker meets the demands.
    pub(super) fn has_worker(&self) -> bool {
        !self.named.is_empty() || !self.classes.is_empty()
    }

    /// Whether a task in the queue of a worker could be moved to another one.
    pub(super) fn is_movable(&self) -> bool {
        let is_loose = !self.classes.is_empty();
        !self.loaded.is_empty() && (self.is_unnamed() || is_loose || self.named.len() > 1)
    }
}

impl Demands {
    /// Whether the tasks name this worker, by its address, its name or its host.
    fn name(&self, worker: &Worker) -> bool {
        names(worker).into_iter().any(|name| {
            step();
            self.workers
                .binary_search_by(|known| known.as_str().cmp(name))
                .is_ok()
        })
    }

    /// Whether the worker has these resources in total.
    pub(super) fn fit(&self, worker: &Worker) -> bool {
        let mut resources = self.resources.0.iter();
        resources.all(|(name, amount)| worker.resources.get(name) >= *amount)
    }
}

/// What a task can name a worker by.
fn names(worker: &Worker) -> [&str; 3] {
    [&worker.address, &worker.name, &worker.host]
}

impl State {
    /// Adds a task to the group of its demands.
    pub(super) fn join_group(&mut self, demands: &Arc<Demands>, calls: Calls) -> GroupId {
        let key = GroupKey {
            demands: Arc::clone(demands),
            calls,
        };
        let id = match self.group_ids.get(&key) {
            Some(id) => *id,
            None => self.insert_group(key),
        };
        self.groups[id].task_count += 1;
        id
    }

    /// Removes a task from its group.
    pub(super) fn leave_group(&mut self, id: GroupId) {
        let group = &mut self.groups[id];
        group.task_count -= 1;
        if group.task_count == 0
            && let Some(group) = self.groups.remove(id)
        {
            self.tasks_len -= group.key.demands.len();
            for name in &group.key.demands.workers {
                if let Some(groups) = self.groups_by_name.get_mut(name) {
                    groups.remove(&id);
                    if groups.is_empty() {
                        self.groups_by_name.remove(name);
                    }
                }
            }
            self.group_ids.remove(&group.key);
        }
    }

    fn insert_group(&mut self, key: GroupKey) -> GroupId {
        self.tasks_len += key.demands.len();
        let id = self.groups.insert(Group {
            key: key.clone(),
            task_count: 0,
            classes: Vec::new(),
            named: Vec::new(),
            no_worker: Queue::new(),
            loaded: BTreeSet::new(),
        });
        for name in &key.demands.workers {
            let groups = self.groups_by_name.entry(name.clone()).or_default();
            groups.insert(id);
        }
        self.group_ids.insert(key, id);
        self.determine_workers(id);
        id
    }

    /// Compares a group with all classes of workers, and with the workers that it names.
    fn determine_workers(&mut self, id: GroupId) {
        let group = &self.groups[id];
        let classes = self.classes.iter();
        let classes = classes.filter(|(_, class)| self.suits(group, class));
        let classes: Vec<ClassId> = classes.map(|(class, _)| class).collect();
        let mut named = BTreeSet::new();
        for name in &group.key.demands.workers {
            let one = [self.by_address.get(name), self.worker_names.get(name)];
            let many = self.by_host.get(name).into_iter().flatten();
            named.extend(one.into_iter().flatten().chain(many).copied().filter(|id| {
                let worker = &self.workers[id];
                worker.is_running && self.suits_named(group, worker)
            }));
        }
        let group = &mut self.groups[id];
        group.classes = classes;
        group.named = named.into_iter().collect();
        self.update_movable(id);
    }

    /// Compares all groups with all workers again, after a change of [`runs`](Self::runs).
    pub(super) fn determine_all_workers(&mut self) {
        let ids: Vec<GroupId> = self.groups.iter().map(|(id, _)| id).collect();
        for id in ids {
            self.determine_workers(id);
        }
    }

    /// Whether the workers of a class meet the demands of a group, without its names.
    fn suits(&self, group: &Group, class: &Class) -> bool {
        let Demands {
            allow_other_workers,
            resources,
            ..
        } = &*group.key.demands;
        let mut amounts = resources.0.iter();
        (group.is_unnamed() || *allow_other_workers)
            && resources.is_empty() == class.resources.is_empty()
            && amounts.all(|(name, amount)| class.resources.get(name) >= *amount)
            && self.runs(class.kind, group.key.calls)
    }

    /// Whether a worker that a group names meets its other demands.
    fn suits_named(&self, group: &Group, worker: &Worker) -> bool {
        // A user who names a worker in Rust knows its functions.
        let kind = Kind {
            python: true,
            ..worker.kind
        };
        group.key.demands.fit(worker) && self.runs(kind, group.key.calls)
    }

    /// Whether a worker meets the demands of a group as soon as it accepts tasks.
    pub(super) fn would_admit(&self, group: &Group, worker: &Worker) -> bool {
        let demands = &group.key.demands;
        match !group.is_unnamed() && demands.name(worker) {
            true => self.suits_named(group, worker),
            false => {
                (group.is_unnamed() || demands.allow_other_workers)
                    && demands.fit(worker)
                    && self.runs(worker.kind, group.key.calls)
            }
        }
    }

    /// Compares a new class of workers with all groups.
    pub(super) fn add_class_to_groups(&mut self, id: ClassId) {
        let class = &self.classes[id];
        let groups = self.groups.iter();
        let groups = groups.filter(|(_, group)| self.suits(group, class));
        let groups: Vec<GroupId> = groups.map(|(group, _)| group).collect();
        for group in groups {
            let classes = &mut self.groups[group].classes;
            if let Err(place) = classes.binary_search(&id) {
                classes.insert(place, id);
                self.update_movable(group);
            }
        }
    }

    pub(super) fn remove_class_from_groups(&mut self, id: ClassId) {
        let mut changed = Vec::new();
        for (number, group) in self.groups.iter_mut() {
            step();
            if let Ok(place) = group.classes.binary_search(&id) {
                group.classes.remove(place);
                changed.push(number);
            }
        }
        for group in changed {
            self.update_movable(group);
        }
    }

    /// The groups that name a worker.
    fn groups_naming(&self, worker: &Worker) -> BTreeSet<GroupId> {
        let groups = names(worker)
            .into_iter()
            .filter_map(|name| self.groups_by_name.get(name));
        groups.flatten().copied().collect()
    }

    /// Adds a worker that starts to accept tasks to the groups that name it.
    pub(super) fn add_to_groups(&mut self, id: WorkerId) {
        let worker = &self.workers[&id];
        let groups = self.groups_naming(worker).into_iter();
        let groups = groups.filter(|group| self.suits_named(&self.groups[*group], worker));
        for group in groups.collect::<Vec<_>>() {
            let named = &mut self.groups[group].named;
            if let Err(place) = named.binary_search(&id) {
                named.insert(place, id);
                self.update_movable(group);
            }
        }
    }

    pub(super) fn remove_from_groups(&mut self, id: WorkerId) {
        for group in self.groups_naming(&self.workers[&id]) {
            let named = &mut self.groups[group].named;
            if let Ok(place) = named.binary_search(&id) {
                named.remove(place);
                self.update_movable(group);
            }
        }
    }

    /// Updates whether tasks of a group may be moved between workers.
    pub(super) fn update_movable(&mut self, id: GroupId) {
        match self.groups[id].is_movable() {
            true => self.movable.insert(id),
            false => self.movable.remove(&id),
        };
    }

    /// Records that no worker qualifies for a task.
    pub(super) fn wait_for_worker(&mut self, id: TaskId) {
        self.set_stage(id, TaskStage::NoWorker);
        let task = &self.tasks[id];
        if let Some(run_spec) = &task.run_spec {
            let group = &mut self.groups[run_spec.group];
            group.no_worker.insert((task.priority, id));
            self.without_worker.insert(run_spec.group);
            self.no_worker_count += 1;
            if self.policy.no_worker_timeout.is_some() {
                self.waiting.insert(self.now, id);
            }
            let is_native = self.groups[run_spec.group].key.calls.native;
            if is_native && !self.has_missed_native && self.has_only_others() {
                self.has_missed_native = true;
                let key = self.tasks[id].key.clone();
                self.notice(Notice::NoWorkerInRust { key });
            }
        }
    }

    /// Removes a task from those for which no worker qualifies.
    pub(super) fn stop_waiting_for_worker(&mut self, id: TaskId) {
        let task = &self.tasks[id];
        if let Some(run_spec) = &task.run_spec {
            let waiting = &mut self.groups[run_spec.group].no_worker;
            if waiting.remove(&(task.priority, id)) {
                self.no_worker_count -= 1;
                self.waiting.remove(id);
                if waiting.is_empty() {
                    self.without_worker.remove(&run_spec.group);
                }
            }
        }
    }

    /// Has tasks tried again for which no worker qualified before this one.
    pub(super) fn retry_without_worker(&mut self, id: WorkerId) {
        let worker = &self.workers[&id];
        let groups = self.without_worker.iter().filter(|group| {
            let group = &self.groups[**group];
            group.admits(id, worker) || group.admits_unnamed(worker)
        });
        let groups = groups.map(|group| (*group, None));
        self.todo.retried.extend(groups);
    }

    /// Has the next task of the first of these groups tried again.
    pub(super) fn retry_next(&mut self) {
        let Some(mut entry) = self.todo.retried.first_entry() else {
            return;
        };
        let waiting = self.groups.get(*entry.key());
        let next = waiting.and_then(|group| match entry.get() {
            None => group.no_worker.first(),
            Some(last) => {
                let after = (Bound::Excluded(last), Bound::Unbounded);
                group.no_worker.range(after).next()
            }
        });
        match next.copied() {
            Some((priority, id)) => {
                *entry.get_mut() = Some((priority, id));
                self.unassign(id);
                self.make_ready(id);
            }
            None => drop(entry.remove()),
        }
    }
}

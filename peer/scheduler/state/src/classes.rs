//! Indexes of the workers that accept tasks, by what they can run and by their load.

use core::time::Duration;
use std::collections::BTreeSet;

use daskwire_messages::graph::Calls;

use super::model::{Kind, Worker};
use super::submission::Resources;
use super::{State, WorkerId};
use crate::steps::step;

/// The index of a class in the table.
pub(super) type ClassId = u32;

/// Running workers that are alike: all those of a kind, or those of a kind with the same resources.
///
/// A worker belongs to the class of its kind, and to a second one if it has resources.
#[derive(Debug)]
pub(super) struct Class {
    pub(super) kind: Kind,
    /// The resources that its workers have in total; none for the class of a kind.
    pub(super) resources: Resources,
    pub(super) members: BTreeSet<WorkerId>,
    /// All members, by the time at which they can start another task.
    pub(super) by_start: BTreeSet<(Start, WorkerId)>,
    /// The members with a slot for a task, by their load.
    pub(super) with_room: BTreeSet<(Load, WorkerId)>,
    /// The members with a free thread and an empty queue.
    pub(super) idle: BTreeSet<WorkerId>,
    /// All members, by the number of their actors.
    pub(super) by_actors: BTreeSet<(usize, WorkerId)>,
}

/// When a worker can start another task; less is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Start {
    /// The time that its tasks take, for each of its threads.
    pub(super) wait: Duration,
    /// The bytes in the worker's memory when the time was last determined.
    nbytes: u128,
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

/// Where the indexes of workers have a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Places {
    pub(super) start: Start,
    /// Its place among the workers with a slot; `None` if it has none.
    pub(super) load: Option<Load>,
    pub(super) is_idle: bool,
    /// Whether it has more tasks than threads, or has tasks though it accepts none any more.
    pub(super) has_surplus: bool,
    pub(super) actor_count: usize,
}

impl Places {
    /// The places that a worker should have.
    pub(super) fn of(worker: &Worker) -> Self {
        let (busy, threads) = (worker.busy_count() as u64, u64::from(worker.thread_count));
        let seconds = worker.busy_seconds();
        let wait = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let nbytes = worker.nbytes;
        Self {
            start: Start { wait, nbytes },
            load: worker.has_slot().then(|| Load {
                wait: match busy < threads {
                    true => Duration::ZERO,
                    false => wait,
                },
                busy: busy.saturating_mul(1024) / threads,
                nbytes,
            }),
            is_idle: worker.is_idle(),
            has_surplus: match worker.is_running {
                true => busy > threads,
                false => busy > 0,
            },
            actor_count: worker.actors.len(),
        }
    }
}

impl State {
    /// Updates the places of a worker in the indexes after a change of its load.
    pub(super) fn update_load(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get_mut(&id) else {
            return;
        };
        let mut places = Places::of(worker);
        let before = worker.places;
        if before.start != places.start {
            // Few tasks are assigned by it.
            if !core::mem::replace(&mut worker.is_start_stale, true) {
                self.stale_starts.push(id);
            }
            places.start = before.start;
        }
        worker.places = places;
        if before == places {
            return;
        }
        for class in &worker.classes {
            let class = &mut self.classes[*class];
            if before.load != places.load {
                if let Some(load) = before.load {
                    class.with_room.remove(&(load, id));
                }
                if let Some(load) = places.load {
                    class.with_room.insert((load, id));
                }
            }
            if before.actor_count != places.actor_count {
                class.by_actors.remove(&(before.actor_count, id));
                class.by_actors.insert((places.actor_count, id));
            }
            if before.is_idle != places.is_idle {
                put(&mut class.idle, id, places.is_idle);
            }
        }
        if before.is_idle != places.is_idle {
            put(&mut self.idle, id, places.is_idle);
        }
        if before.has_surplus != places.has_surplus {
            put(&mut self.with_surplus, id, places.has_surplus);
        }
    }

    /// Updates the places of workers by the time in which they can start a task, before these are
    /// compared.
    pub(super) fn update_starts(&mut self) {
        while let Some(id) = self.stale_starts.pop() {
            let Some(worker) = self.workers.get_mut(&id) else {
                continue;
            };
            worker.is_start_stale = false;
            let start = Places::of(worker).start;
            let before = core::mem::replace(&mut worker.places.start, start);
            for class in &worker.classes {
                let class = &mut self.classes[*class];
                class.by_start.remove(&(before, id));
                class.by_start.insert((start, id));
            }
        }
    }

    /// Adds a worker that starts to accept tasks to the indexes, and has tasks without a worker
    /// tried again that it may run.
    pub(super) fn start_running(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get(&id) else {
            return;
        };
        let (kind, resources) = (worker.kind, worker.resources.clone());
        let mut classes = vec![self.class_of(kind, Resources::default())];
        if !resources.is_empty() {
            classes.push(self.class_of(kind, resources));
        }
        classes.sort_unstable();
        let places = Places::default();
        for class in &classes {
            let class = &mut self.classes[*class];
            class.members.insert(id);
            class.by_start.insert((places.start, id));
            class.by_actors.insert((places.actor_count, id));
        }
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.classes = classes;
            // The only index with workers that do not run.
            worker.places = Places {
                has_surplus: worker.places.has_surplus,
                ..places
            };
        }
        self.update_load(id);
        self.add_to_groups(id);
        self.todo.has_room.push(id);
        self.retry_without_worker(id);
    }

    /// Removes a worker that accepts no more tasks from the indexes.
    pub(super) fn stop_running(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get_mut(&id) else {
            return;
        };
        let places = worker.places;
        for class in core::mem::take(&mut worker.classes) {
            let of_class = &mut self.classes[class];
            of_class.members.remove(&id);
            of_class.by_start.remove(&(places.start, id));
            of_class.by_actors.remove(&(places.actor_count, id));
            if let Some(load) = places.load {
                of_class.with_room.remove(&(load, id));
            }
            of_class.idle.remove(&id);
            if of_class.members.is_empty() {
                self.remove_class(class);
            }
        }
        self.idle.remove(&id);
        self.with_surplus.remove(&id);
        self.remove_from_groups(id);
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.places = Places::default();
        }
    }

    fn class_of(&mut self, kind: Kind, resources: Resources) -> ClassId {
        let key = (kind, resources);
        if let Some(class) = self.class_ids.get(&key) {
            return *class;
        }
        let (kind, resources) = key.clone();
        let class = self.classes.insert(Class {
            kind,
            resources,
            members: BTreeSet::new(),
            by_start: BTreeSet::new(),
            with_room: BTreeSet::new(),
            idle: BTreeSet::new(),
            by_actors: BTreeSet::new(),
        });
        self.class_ids.insert(key, class);
        self.add_class_to_groups(class);
        class
    }

    fn remove_class(&mut self, id: ClassId) {
        if let Some(class) = self.classes.remove(id) {
            self.class_ids.remove(&(class.kind, class.resources));
            self.remove_class_from_groups(id);
        }
    }

    /// Whether there are workers, and none in Rust.
    pub(super) fn has_only_others(&self) -> bool {
        let mut classes = self.classes.iter().peekable();
        classes.peek().is_some() && !classes.any(|(_, class)| class.kind.native)
    }

    /// Whether workers of a kind run the kinds of functions that a task calls.
    ///
    /// Workers in Rust have some functions of Python, too. They get such tasks by name, and while
    /// no worker has joined that runs all of Python.
    pub(super) fn runs(&self, kind: Kind, calls: Calls) -> bool {
        step();
        let has_python = kind.python || (!self.has_seen_python && !kind.embedded);
        let is_replaced = calls.replaceable && kind.native && !kind.embedded;
        match calls.native {
            true => kind.native && (!calls.python || has_python),
            false => has_python || (is_replaced && !calls.python),
        }
    }
}

/// Inserts a worker into a set, or removes it.
fn put(set: &mut BTreeSet<WorkerId>, id: WorkerId, is_in: bool) {
    match is_in {
        true => set.insert(id),
        false => set.remove(&id),
    };
}

//! Consistency checks of the state's redundant data.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::classes::Places;
use super::durations::Work;
use super::model::{Queue, TaskId, TaskStage, Worker};
use super::slices::{Job, LeftWorker};
use super::submit::Submitting;
use super::versions::AllPackages;
use super::{ClientId, FIRE_AND_FORGET, State, WorkerId};

/// What is left of events, by which the state may be inconsistent until it is handled.
#[derive(Default)]
struct Left<'s> {
    failing: HashSet<TaskId>,
    unneeded: HashSet<TaskId>,
    activated: HashSet<TaskId>,
    /// How often unfinished submissions refer to each task.
    held: HashMap<TaskId, u32>,
    unwanted: HashSet<(ClientId, TaskId)>,
    /// The tasks that were in the queues of workers.
    unqueued: HashMap<TaskId, WorkerId>,
    workers: HashMap<WorkerId, &'s LeftWorker>,
}

impl<'s> Left<'s> {
    fn of(state: &'s State) -> Self {
        let set = |list: &[TaskId]| list.iter().copied().collect::<HashSet<TaskId>>();
        let todo = &state.todo;
        let mut left = Self {
            failing: set(&todo.failing),
            unneeded: set(&todo.unneeded),
            activated: &set(&todo.activated) | &set(&todo.unrunnable),
            ..Self::default()
        };
        for id in state.held.iter().flat_map(|held| &held.ids) {
            *left.held.entry(*id).or_default() += 1;
        }
        let submitted = state.submissions().flat_map(|it| &it.ids).flatten();
        for id in submitted {
            *left.held.entry(*id).or_default() += 1;
        }
        for job in state.jobs() {
            match job {
                Job::Resume(held) => {
                    for id in &held.ids {
                        *left.held.entry(*id).or_default() += 1;
                    }
                }
                Job::Unwant(wants) => {
                    for (client, tasks) in wants {
                        left.unwanted
                            .extend(tasks.keys().map(|task| (*client, *task)));
                    }
                }
                Job::Unqueue(on, queue) => {
                    let tasks = queue.values().flatten();
                    left.unqueued.extend(tasks.map(|(_, task)| (*task, *on)));
                }
                Job::WorkerLeft(worker) => left.add_worker(worker),
                _ => {}
            }
        }
        for worker in state.workers.values() {
            let returning = worker.returning.as_ref();
            if let Some(former) = returning.and_then(|it| it.former.as_ref()) {
                left.add_worker(former);
            }
        }
        left
    }

    fn add_worker(&mut self, worker: &'s LeftWorker) {
        let tasks = worker.worker.queue.values().flatten();
        let tasks = tasks.map(|(_, task)| (*task, worker.id));
        self.unqueued.extend(tasks);
        self.workers.insert(worker.id, worker);
    }
}

impl State {
    /// The names of all clients, also of those without a stream.
    #[cfg(feature = "fuzzing")]
    #[doc(hidden)]
    pub fn client_names(&self) -> Vec<String> {
        self.by_name.keys().map(ToString::to_string).collect()
    }

    /// Looks for inconsistencies between all parts of the state, between events and between slices of
    /// work. Takes about as long as all tasks have taken so far.
    ///
    /// # Panics
    ///
    /// If the state is inconsistent, which is a fault of this crate.
    pub fn check(&self) {
        let left = Left::of(self);
        let all: Vec<TaskId> = self.tasks.iter().map(|(id, _)| id).collect();
        assert_eq!(all.len(), self.by_key.len());
        let lens = self.tasks.iter().map(|(_, task)| task.len());
        let shared = self.groups.iter().map(|(_, group)| group.key.demands.len());
        assert_eq!(lens.chain(shared).sum::<usize>(), self.tasks_len);
        let unfinished = self
            .submissions()
            .filter(|it| it.is_unfinished(it.client()));
        let unfinished: BTreeSet<ClientId> = unfinished.map(Submitting::client).collect();
        assert_eq!(unfinished, self.unfinished);
        for (client, paused) in &self.paused {
            assert!(self.clients.contains_key(client) && unfinished.contains(client));
            assert!(paused.is_paused() && paused.reserved == 0);
        }
        let reserved = self.submissions().map(|it| it.reserved);
        assert_eq!(reserved.sum::<usize>(), self.reserved_len);
        assert_eq!(all.len() + self.tasks.free.len(), self.tasks.slot_count());
        for id in &all {
            self.check_task(*id, &left);
        }
        let queued: usize = self
            .workers
            .values()
            .map(|worker| worker.queued_count)
            .sum();
        assert_eq!(queued, self.queued_count);
        assert_eq!(self.by_address.len(), self.workers.len());
        let threads = self.workers.values().map(|worker| worker.thread_count);
        assert_eq!(threads.map(u64::from).sum::<u64>(), self.thread_count);
        let mut packages = AllPackages::default();
        for worker in self.workers.values() {
            packages.add(&worker.packages);
        }
        assert_eq!(packages, self.packages);
        let mut packages = AllPackages::default();
        for client in self.clients.values() {
            packages.add(&client.packages);
        }
        assert_eq!(packages, self.client_packages);
        self.check_key_groups();
        self.check_pool();
        self.check_topics();
        self.check_samplers();
        self.check_graces();
        self.extensions.check();
        self.check_shuffles();
        let replicated = all
            .iter()
            .copied()
            .filter(|id| self.tasks[*id].who_has.len() > 1);
        assert!(replicated.eq(self.replicas.replicated.iter().copied()));
        self.check_classes();
        self.check_groups();
        self.check_claims(&left);
        let processing = self.workers.values().map(|worker| worker.processing.len());
        assert_eq!(processing.sum::<usize>(), self.processing_count);
        for (id, worker) in self.workers.iter() {
            assert_eq!(self.by_address.get(&*worker.address), Some(id));
            assert!(self.by_host[&worker.host].contains(id));
            assert_eq!(self.not_running.contains(id), !worker.is_running);
            assert!(self.by_silence.contains(&(worker.silent_since, *id)));
            assert!(worker.deletions.is_empty() || self.with_deletions.contains(id));
            self.check_worker(*id, worker, &left);
            for task in &worker.has {
                assert!(self.tasks[*task].who_has.contains(id));
            }
            for task in &worker.processing {
                assert!(matches!(self.tasks[*task].stage, TaskStage::Processing(on) if on == *id));
            }
            for (_, task) in worker.queue.values().flatten() {
                assert!(matches!(self.tasks[*task].stage, TaskStage::Queued(on) if on == *id));
            }
            for key in &worker.deletions {
                let task = self.by_key.get(key).map(|task| &self.tasks[*task]);
                let Some(task) = task else { continue };
                assert!(!task.who_has.contains(id), "{key} is about to be deleted");
                assert!(!matches!(task.stage, TaskStage::Processing(on) if on == *id));
                assert!(
                    !worker
                        .claims
                        .contains(&self.by_key.get(key).copied().expect("known"))
                );
            }
        }
        assert_eq!(self.by_silence.len(), self.workers.len());
        let on_hosts = self.by_host.values().map(BTreeSet::len);
        assert_eq!(on_hosts.sum::<usize>(), self.workers.len());
        assert_eq!(self.by_name.len(), self.clients.len());
        for (id, client) in self.clients.iter() {
            assert_eq!(self.by_name.get(&client.name), Some(id));
            for task in client.wants.keys() {
                assert!(self.tasks[*task].wanted_by.contains(id));
            }
            assert!(!client.is_behind || client.unreported.is_some());
        }
    }

    fn check_claims(&self, left: &Left<'_>) {
        for (id, claim) in &self.claims {
            let task = &self.tasks[*id];
            assert!(
                matches!(
                    task.stage,
                    TaskStage::Released | TaskStage::Waiting | TaskStage::Ready
                ),
                "{} is claimed",
                task.key
            );
            let claims = match self.workers.get(&claim.on) {
                Some(worker) => &worker.claims,
                None => &left.workers[&claim.on].worker.claims,
            };
            assert!(claims.contains(id));
        }
        for (id, worker) in self.workers.iter() {
            assert!(worker.returning.is_none() || !worker.is_running);
            for task in &worker.claims {
                assert_eq!(self.claims[task].on, *id);
            }
        }
    }

    fn check_pool(&self) {
        let queued = self.tasks.iter().map(|(_, task)| task);
        let queued: Vec<_> = queued
            .filter(|task| matches!(task.stage, TaskStage::Pooled))
            .collect();
        assert_eq!(queued.len(), self.pool.len());
        let mut work = Work::default();
        for task in queued {
            work.add(task.expected);
        }
        assert_eq!(work, self.pool.work());
        for worker in self.workers.values() {
            assert!(
                self.todo.has_sendable
                    || self.first_in_pool(worker).is_none()
                    || worker.places.load.is_none(),
                "a task of the pool could be sent"
            );
        }
        for id in self.returned.keys().chain(self.retried.keys()) {
            assert!(self.tasks[*id].stage.is_active());
        }
        for (id, _) in self.pool.firsts() {
            let group = &self.groups[id];
            let is_stranded = self.todo.stranded.contains(&id);
            assert!(
                is_stranded || !group.classes.is_empty(),
                "no worker runs {:?}",
                group.key
            );
        }
    }

    fn check_classes(&self) {
        let mut idle = BTreeSet::new();
        let mut with_surplus = BTreeSet::new();
        for (id, worker) in self.workers.iter() {
            let (places, expected) = (worker.places, Places::of(worker));
            // The bytes in memory may have changed since.
            let rest = |places: Places| {
                let wait = |load: super::classes::Load| (load.wait, load.busy);
                let load = places.load.map(wait);
                let wait = (!worker.is_start_stale).then_some(places.start.wait);
                let actors = places.actor_count;
                (wait, load, places.is_idle, places.has_surplus, actors)
            };
            if worker.is_running {
                assert_eq!(rest(places), rest(expected), "{id:?}");
            }
            let is_listed = self.stale_starts.contains(id);
            assert_eq!(worker.is_start_stale, is_listed, "{id:?}");
            if places.is_idle {
                idle.insert(*id);
            }
            if expected.has_surplus {
                with_surplus.insert(*id);
            }
            let has_resources = !worker.resources.is_empty();
            let count = usize::from(worker.is_running) * (1 + usize::from(has_resources));
            assert_eq!(worker.classes.len(), count, "{id:?}");
            for class in &worker.classes {
                let class = &self.classes[*class];
                assert_eq!(class.kind, worker.kind);
                assert!(class.resources.is_empty() || class.resources == worker.resources);
                assert!(class.members.contains(id));
                assert!(class.by_start.contains(&(places.start, *id)));
                assert!(class.by_actors.contains(&(places.actor_count, *id)));
                let load = places.load.map(|load| (load, *id));
                assert!(load.is_none_or(|load| class.with_room.contains(&load)));
                assert_eq!(class.idle.contains(id), places.is_idle);
            }
        }
        assert_eq!(idle, self.idle);
        assert_eq!(with_surplus, self.with_surplus);
        for (id, class) in self.classes.iter() {
            let of_class = |worker: &&Worker| worker.classes.contains(&id);
            let count = self.workers.values().filter(of_class).count();
            assert!(count > 0);
            assert_eq!(class.members.len(), count);
            assert_eq!(class.by_start.len(), count);
            assert_eq!(class.by_actors.len(), count);
            let mut with_room = self.workers.values().filter(of_class);
            let with_room = with_room
                .by_ref()
                .filter(|worker| worker.places.load.is_some());
            assert_eq!(class.with_room.len(), with_room.count());
            let key = (class.kind, class.resources.clone());
            assert_eq!(self.class_ids.get(&key), Some(&id));
        }
        let classes = self.classes.iter().count();
        assert_eq!(self.class_ids.len(), classes);
    }

    fn check_groups(&self) {
        let mut task_counts: HashMap<_, usize> = HashMap::new();
        for (_, task) in self.tasks.iter() {
            if let Some(run_spec) = &task.run_spec {
                *task_counts.entry(run_spec.group).or_default() += 1;
            }
        }
        let held = self.held.iter().flat_map(|held| held.groups.values());
        let of_jobs = self.jobs().filter_map(|job| match job {
            Job::Resume(held) => Some(held.groups.values()),
            _ => None,
        });
        let submitted = self.submissions().flat_map(|it| it.groups.values());
        let submitted = submitted.map(|(_, group)| group);
        for group in held.chain(of_jobs.flatten()).chain(submitted) {
            *task_counts.entry(*group).or_default() += 1;
        }
        let mut no_worker_count = 0;
        for (id, group) in self.groups.iter() {
            assert_eq!(task_counts.remove(&id), Some(group.task_count));
            assert_eq!(self.group_ids.get(&group.key), Some(&id));
            for (on, worker) in self.workers.iter() {
                let is_admitted = group.admits(*on, worker) || group.admits_unnamed(worker);
                let expected = worker.is_running && self.would_admit(group, worker);
                assert_eq!(is_admitted, expected, "{on:?} {:?}", group.key);
            }
            assert_eq!(
                self.without_worker.contains(&id),
                !group.no_worker.is_empty()
            );
            for (_, task) in &group.no_worker {
                assert!(matches!(self.tasks[*task].stage, TaskStage::NoWorker));
                let is_retried = self.todo.retried.contains_key(&id);
                assert!(
                    is_retried || !self.can_run(*task),
                    "{}",
                    self.tasks[*task].key
                );
            }
            no_worker_count += group.no_worker.len();
            assert_eq!(self.movable.contains(&id), group.is_movable());
            let loaded: BTreeSet<(usize, WorkerId)> = self
                .workers
                .iter()
                .filter_map(|(on, worker)| {
                    let queue = worker.queue.get(&id)?;
                    Some((worker.share_of(queue.len()), *on))
                })
                .collect();
            assert_eq!(loaded, group.loaded);
            for name in &group.key.demands.workers {
                assert!(self.groups_by_name[name].contains(&id));
            }
        }
        assert!(task_counts.is_empty());
        assert_eq!(no_worker_count, self.no_worker_count);
        if self.policy.no_worker_timeout.is_some() {
            assert_eq!(no_worker_count, self.waiting.len());
        }
        let by_name = self.groups_by_name.values().flatten();
        for id in by_name.chain(&self.without_worker).chain(&self.movable) {
            assert!(self.groups.get(*id).is_some());
        }
    }

    fn check_task(&self, id: TaskId, left: &Left<'_>) {
        let task = &self.tasks[id];
        let key = &task.key;
        assert_eq!(self.by_key.get(key), Some(&id));
        let active = |id: &&TaskId| self.tasks[**id].stage.is_active();
        let waiter_count = task.dependents.iter().filter(active).count();
        let held_count = left.held.get(&id).copied().unwrap_or(0);
        assert_eq!(
            task.waiter_count,
            waiter_count as u32 + held_count,
            "waiters of {key}"
        );
        for dependent in &task.dependents {
            assert!(self.tasks[*dependent].dependencies.contains(&id));
        }
        for needed in &task.dependencies {
            let dependency = &self.tasks[*needed];
            assert!(dependency.dependents.contains(&id));
            if task.stage.is_active() {
                let stage = &dependency.stage;
                let is_there = match stage {
                    TaskStage::Released => left.activated.contains(needed),
                    TaskStage::Erred(_) => left.failing.contains(&id),
                    _ => true,
                };
                assert!(
                    is_there,
                    "{key} needs {}, which is {stage:?}",
                    dependency.key
                );
            }
        }
        assert!(task.wanted_by.is_sorted() && task.who_has.is_sorted());
        for client in &task.wanted_by {
            let known = self.clients.get(client);
            let is_wanted = known.is_some_and(|client| client.wants.contains_key(&id));
            assert!(is_wanted || left.unwanted.contains(&(*client, id)));
        }
        assert_eq!(
            matches!(task.stage, TaskStage::Memory),
            !task.who_has.is_empty()
        );
        for holder in &task.who_has {
            let has = match self.workers.get(holder) {
                Some(worker) => &worker.has,
                None => &left.workers[holder].worker.has,
            };
            assert!(has.contains(&id));
        }
        let is_there = |id: &&TaskId| matches!(self.tasks[**id].stage, TaskStage::Memory);
        let missing = task.dependencies.len() - task.dependencies.iter().filter(is_there).count();
        let is_recounted = |id: &TaskId| self.todo.recounted.iter().any(|(other, _)| other == id);
        // Whether dependencies were stored or lost of which the task does not know yet.
        let is_recounted = task.dependencies.iter().any(is_recounted);
        let is_needed = !task.wanted_by.is_empty() || task.waiter_count != 0;
        let is_left = left.unneeded.contains(&id) || held_count > 0;
        match &task.stage {
            TaskStage::Released => {
                let is_activated = left.activated.contains(&id);
                assert!(
                    !is_needed || is_activated || held_count > 0,
                    "{key} is released"
                );
                let is_useful = !task.dependents.is_empty();
                assert!(is_useful || is_left || is_activated, "{key} is of no use");
                let can_run = task.run_spec.is_some() && !task.is_orphan;
                assert!(can_run || is_left || is_activated, "{key} cannot run");
            }
            TaskStage::Waiting => {
                let is_exact = task.missing_count as usize == missing && missing != 0;
                assert!(is_recounted || is_exact, "{key} waits for {missing}");
            }
            TaskStage::Ready => {
                assert!(self.todo.ready.contains(&(task.priority, id)));
                assert!(is_recounted || missing == 0);
            }
            TaskStage::NoWorker => {
                let group = task.run_spec.as_ref().expect("it can run").group;
                assert!(self.groups[group].no_worker.contains(&(task.priority, id)));
                assert!(is_recounted || missing == 0);
            }
            TaskStage::Pooled => {
                let group = task.run_spec.as_ref().expect("it can run").group;
                assert!(self.pool.contains(group, &(task.priority, id)));
                assert!(is_recounted || missing == 0);
            }
            TaskStage::Queued(on) => {
                let place = (task.priority, id);
                let worker = self.workers.get(on);
                let is_queued = worker.is_some_and(|worker| {
                    worker.queue.values().any(|queue| queue.contains(&place))
                });
                assert!(is_queued || left.unqueued.get(&id) == Some(on));
                assert!(is_recounted || missing == 0);
            }
            TaskStage::Processing(on) => {
                let processing = match self.workers.get(on) {
                    Some(worker) => &worker.processing,
                    None => &left.workers[on].worker.processing,
                };
                assert!(processing.contains(&id));
                assert!(is_recounted || missing == 0);
            }
            TaskStage::Memory | TaskStage::Erred(_) => {
                let by_none = *task.wanted_by == [FIRE_AND_FORGET.0];
                assert!(!by_none || is_left, "{key} is done");
            }
        }
        if !matches!(task.stage, TaskStage::Released) {
            assert!(
                is_needed || is_left,
                "{key} is not needed, but {}",
                task.stage.name()
            );
        }
    }

    fn check_worker(&self, id: WorkerId, worker: &Worker, left: &Left<'_>) {
        let nbytes = worker
            .has
            .iter()
            .map(|task| u128::from(self.tasks[*task].nbytes));
        assert_eq!(nbytes.sum::<u128>(), worker.nbytes);
        assert_eq!(
            worker.queue.values().map(Queue::len).sum::<usize>(),
            worker.queued_count
        );
        let firsts = worker.queue.iter().map(|(group, queue)| {
            let (priority, id) = queue.first().expect("empty queues are removed");
            (*priority, *id, *group)
        });
        assert_eq!(firsts.collect::<BTreeSet<_>>(), worker.heads);
        assert!(worker.long_running.is_subset(&worker.processing));
        assert!(worker.asked.is_subset(&worker.processing));
        for task in &worker.actors {
            let task = &self.tasks[*task];
            let is_made =
                matches!(task.stage, TaskStage::Processing(on) | TaskStage::Queued(on) if on == id);
            assert!(task.is_actor && (is_made || task.actor_on == Some(id)));
        }
        if !worker.is_running {
            assert_eq!(worker.queued_count, 0);
        }
        let mut work = Work::default();
        let queued = worker.queue.values().flatten().map(|(_, task)| task);
        for task in queued.chain(worker.processing.difference(&worker.long_running)) {
            work.add(self.tasks[*task].expected);
        }
        for (task, on) in &left.unqueued {
            let task = self.tasks.get(*task).filter(|_| *on == id);
            if let Some(task) = task
                && matches!(task.stage, TaskStage::Queued(queued) if queued == id)
            {
                work.add(task.expected);
            }
        }
        assert_eq!(work, worker.work);
        let mut used: HashMap<&str, f64> = HashMap::new();
        for task in &worker.processing {
            let run_spec = self.tasks[*task].run_spec.as_ref().expect("it was sent");
            for (name, amount) in &run_spec.demands.resources.0 {
                *used.entry(name).or_default() += amount;
            }
        }
        for (name, amount) in &worker.used {
            let expected = used.get(name.as_str()).copied().unwrap_or(0.0);
            assert!(
                (amount - expected).abs() <= 1e-6 * expected.max(1.0),
                "{name}: {amount}, not {expected}"
            );
        }
        let resources: BTreeSet<&str> = used.into_keys().collect();
        assert!(resources.iter().all(|name| worker.used.contains_key(*name)));
    }
}

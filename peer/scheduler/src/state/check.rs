//! Consistency checks of the state's redundant data.

use std::collections::{BTreeSet, HashMap};

use super::durations::Work;
use super::model::{Queue, Stage, TaskId, Worker};
use super::pool::Load;
use super::versions::AllPackages;
use super::{FIRE_AND_FORGET, State};

impl State {
    /// The names of all clients, also of those without a stream.
    #[cfg(feature = "fuzzing")]
    #[doc(hidden)]
    pub fn client_names(&self) -> Vec<String> {
        self.by_name.keys().map(ToString::to_string).collect()
    }

    /// Panics if the state is inconsistent. Called between events.
    #[doc(hidden)]
    pub fn check(&self) {
        let all: Vec<TaskId> = (0..self.tasks.tasks.len())
            .map(|id| id as TaskId)
            .filter(|id| self.tasks.get(*id).is_some())
            .collect();
        assert_eq!(all.len(), self.by_key.len());
        assert_eq!(all.len() + self.tasks.free.len(), self.tasks.tasks.len());
        for id in &all {
            self.check_task(*id);
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
        self.check_pool();
        self.check_topics();
        self.extensions.check();
        for (id, worker) in &self.workers {
            assert_eq!(self.by_address.get(&worker.address), Some(id));
            self.check_worker(worker);
            for task in &worker.has {
                assert!(self.tasks[*task].who_has.contains(id));
            }
            for task in &worker.processing {
                assert!(matches!(self.tasks[*task].stage, Stage::Processing(on) if on == *id));
            }
            for (_, task) in worker.queue.values().flatten() {
                assert!(matches!(self.tasks[*task].stage, Stage::Queued(on) if on == *id));
            }
            for key in &worker.deletions {
                let task = self.by_key.get(key).map(|task| &self.tasks[*task]);
                let Some(task) = task else { continue };
                assert!(!task.who_has.contains(id), "{key} is about to be deleted");
                assert!(!matches!(task.stage, Stage::Processing(on) if on == *id));
            }
        }
        for (_, task) in &self.no_worker {
            assert!(matches!(self.tasks[*task].stage, Stage::NoWorker));
        }
        assert_eq!(self.by_name.len(), self.clients.len());
        for (id, client) in &self.clients {
            assert_eq!(self.by_name.get(&client.name), Some(id));
            for task in &client.wants {
                assert!(self.tasks[*task].wanted_by.contains(id));
            }
            assert!(!client.is_behind || client.unreported.is_some());
        }
        let todo = &self.todo;
        assert!(todo.failed.is_empty() && todo.unrunnable.is_empty() && todo.unneeded.is_empty());
        assert!(todo.ready.is_empty() && todo.has_room.is_empty());
    }

    fn check_pool(&self) {
        let queued = self.tasks.iter();
        let queued: Vec<_> = queued
            .filter(|task| matches!(task.stage, Stage::Pooled))
            .collect();
        assert_eq!(queued.len(), self.pool.len());
        let mut work = Work::default();
        for task in queued {
            work.add(task.expected);
        }
        assert_eq!(work, self.pool.work());
        for (id, worker) in &self.workers {
            let load = |load: Load| (load.wait, load.busy);
            let expected = Load::of(worker);
            assert_eq!(worker.load.map(load), expected.map(load), "{id:?}");
            let open = self
                .running
                .get(&worker.kind)
                .map(|running| &running.with_room);
            let place = worker.load.map(|load| (load, *id));
            let is_found = place.is_none_or(|place| open.is_some_and(|open| open.contains(&place)));
            assert!(is_found, "{id:?}");
        }
        for (kind, running) in &self.running {
            let workers = || self.workers.values().filter(|worker| worker.kind == *kind);
            let count = workers().filter(|worker| worker.is_running).count();
            assert_eq!(running.count, count);
            let open = workers().filter(|worker| worker.load.is_some()).count();
            assert_eq!(running.with_room.len(), open);
            let (first, has_open) = (self.first_in_pool(*kind), open > 0);
            assert!(
                first.is_none() || !has_open,
                "a task of the pool could be sent"
            );
        }
        for id in self.returned.keys() {
            assert!(self.tasks[*id].stage.is_active());
        }
        for (calls, _) in self.pool.firsts() {
            assert!(self.is_run(calls), "no worker runs {calls:?}");
        }
    }

    fn check_task(&self, id: TaskId) {
        let task = &self.tasks[id];
        let key = &task.key;
        assert_eq!(self.by_key.get(key), Some(&id));
        let active = |id: &&TaskId| self.tasks[**id].stage.is_active();
        let waiter_count = task.dependents.iter().filter(active).count();
        assert_eq!(task.waiter_count as usize, waiter_count, "waiters of {key}");
        for dependent in &task.dependents {
            assert!(self.tasks[*dependent].dependencies.contains(&id));
        }
        for dependency in &task.dependencies {
            let dependency = &self.tasks[*dependency];
            assert!(dependency.dependents.contains(&id));
            if task.stage.is_active() {
                let stage = &dependency.stage;
                let is_there = stage.is_active() || matches!(stage, Stage::Memory);
                assert!(
                    is_there,
                    "{key} needs {}, which is {stage:?}",
                    dependency.key
                );
            }
        }
        assert!(task.wanted_by.is_sorted() && task.who_has.is_sorted());
        for client in &task.wanted_by {
            assert!(self.clients[client].wants.contains(&id));
        }
        assert_eq!(
            matches!(task.stage, Stage::Memory),
            !task.who_has.is_empty()
        );
        for holder in &task.who_has {
            assert!(self.workers[holder].has.contains(&id));
        }
        let is_there = |id: &&TaskId| matches!(self.tasks[**id].stage, Stage::Memory);
        let missing = task.dependencies.len() - task.dependencies.iter().filter(is_there).count();
        let is_needed = !task.wanted_by.is_empty() || task.waiter_count != 0;
        match &task.stage {
            Stage::Released => {
                assert!(!is_needed, "{key} is released");
                assert!(!task.dependents.is_empty(), "{key} is of no use");
                assert!(task.run_spec.is_some() && !task.is_orphan);
            }
            Stage::Waiting => {
                assert_eq!(task.missing_count as usize, missing);
                assert_ne!(missing, 0, "{key} waits for nothing");
            }
            Stage::Ready => panic!("{key} is still ready between events"),
            Stage::NoWorker => {
                assert!(self.no_worker.contains(&(task.priority, id)));
                assert_eq!(missing, 0);
            }
            Stage::Pooled => {
                let calls = task.run_spec.as_ref().expect("it can run").calls;
                assert!(self.pool.contains(calls, &(task.priority, id)));
                assert_eq!(missing, 0);
            }
            Stage::Queued(on) => {
                let queue = &self.workers[on].queue;
                let place = (task.priority, id);
                assert!(queue.values().any(|queue| queue.contains(&place)));
                assert_eq!(missing, 0);
            }
            Stage::Processing(on) => {
                assert!(self.workers[on].processing.contains(&id));
                assert_eq!(missing, 0);
            }
            Stage::Memory | Stage::Erred(_) => {
                let by_none = task.wanted_by == [FIRE_AND_FORGET.0];
                assert!(!by_none, "{key} is done");
            }
        }
        if !matches!(task.stage, Stage::Released) {
            assert!(is_needed, "{key} is not needed, but {}", task.stage.name());
        }
    }

    fn check_worker(&self, worker: &Worker) {
        let nbytes = worker
            .has
            .iter()
            .map(|task| u128::from(self.tasks[*task].nbytes));
        assert_eq!(nbytes.sum::<u128>(), worker.nbytes);
        assert_eq!(
            worker.queue.values().map(Queue::len).sum::<usize>(),
            worker.queued_count
        );
        assert!(worker.queue.values().all(|queue| !queue.is_empty()));
        assert!(worker.long_running.is_subset(&worker.processing));
        assert!(worker.asked.is_subset(&worker.processing));
        if !worker.is_running {
            assert_eq!(worker.queued_count, 0);
        }
        let mut work = Work::default();
        let queued = worker.queue.values().flatten().map(|(_, task)| task);
        for task in queued.chain(worker.processing.difference(&worker.long_running)) {
            work.add(self.tasks[*task].expected);
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
            assert!(*amount <= worker.resources.get(name) * (1.0 + 1e-6));
        }
        let resources: BTreeSet<&str> = used.into_keys().collect();
        assert!(resources.iter().all(|name| worker.used.contains_key(*name)));
    }
}

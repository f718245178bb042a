//! Schedulers that are killed at any time, and continue from their journals.

use super::*;
use crate::model::TaskStage;

impl Simulation {
    /// Keeps what the state has written to its journal.
    pub(super) fn keep_journal(&mut self) {
        let mut records = Vec::new();
        self.state.take_journal(&mut records);
        if !records.is_empty() {
            self.journal.push(records);
        }
    }

    /// Replaces the records of the journal by those that still matter.
    pub(super) fn merge_journal(&mut self) {
        self.keep_journal();
        self.state.begin_journal_part();
        let mut live = Live::default();
        for batch in &self.journal {
            live.note(batch).expect("it was written");
        }
        let mut merged = Vec::new();
        for batch in &self.journal {
            live.select(batch, &mut merged).expect("it was written");
        }
        self.journal = vec![merged];
    }

    fn restored(&mut self) -> State {
        let mut live = Live::default();
        for batch in &self.journal {
            live.note(batch).expect("it was written");
        }
        let mut restoring = Restoring::new(self.state.policy.clone(), self.now);
        let mut written = Vec::new();
        for batch in &self.journal {
            let mut selected = Vec::new();
            live.select(batch, &mut selected).expect("it was written");
            restoring.add(&selected).expect("it was written");
            restoring.take_journal(&mut written);
        }
        let state = restoring.finish();
        self.journal = vec![written];
        state
    }

    /// The keys that clients want, and whose results workers hold that stay.
    fn finished_keys(&self) -> BTreeSet<Key> {
        let tasks = self.state.tasks.iter().map(|(_, task)| task);
        let finished = tasks.filter(|task| {
            let mut clients = task.wanted_by.iter();
            let is_held = |worker: &Slow| worker.data.contains(&task.key);
            let holders = task.who_has.iter();
            let mut holders = holders.filter_map(|holder| self.workers.get(holder));
            matches!(task.stage, TaskStage::Memory)
                && clients.any(|client| self.state.clients.contains_key(client))
                && holders.any(is_held)
                // Others may have handles for an actor.
                && !task.is_actor
        });
        finished.map(|task| task.key.clone()).collect()
    }

    /// Kills the scheduler. Workers and clients connect to the next one. Returns the number of
    /// results that it has at once.
    fn kill(&mut self) -> usize {
        for id in self.workers.keys().copied().collect::<Vec<_>>() {
            if self.number(6) == 0 {
                self.workers.remove(&id);
            }
        }
        let finished_count = self.kill_scheduler();
        self.return_reader();
        let clients = core::mem::take(&mut self.clients);
        for (client, views) in clients {
            let name = self.names[&client].clone();
            self.return_client(&name, views);
        }
        finished_count
    }

    /// Kills the scheduler. Workers connect to the next one. Returns the number of results that it
    /// has at once.
    pub(super) fn kill_scheduler(&mut self) -> usize {
        self.keep_journal();
        let finished = self.finished_keys();
        let (objects, mut held) = self.shared_objects();
        let slice_len = self.state.slice_len;
        self.state = self.restored();
        self.state.slice_len = slice_len;
        self.state.check();
        let restored = self.shared_objects();
        assert_eq!(restored.0, objects);
        // What a dataset had before it was replaced may be about to be released.
        held.retain(|place| !restored.1.contains(place));
        let is_dataset = |place: &(String, Key)| place.0.starts_with("published-");
        assert!(
            held.iter().all(is_dataset),
            "{held:?} are not held any more"
        );
        self.work.clear();
        self.worker_work.clear();
        let ids: Vec<WorkerId> = self.workers.keys().copied().collect();
        for id in ids {
            self.return_worker(id);
        }
        while self.workers.keys().any(|id| self.is_returning(*id)) {
            let id = self.pick_worker().expect("one returns");
            if self.is_returning(id) {
                self.deliver(id);
            }
            self.proceed();
        }
        // As a server does, unless its time for that is over.
        while self.state.has_returning_workers() {
            self.proceed();
        }
        assert!(self.state.is_held());
        self.handle(SchedulerInput::Resumed);
        while self.state.is_pending() {
            self.proceed();
        }
        for key in &finished {
            let status = self.state.status(key);
            assert_eq!(status, Some(TaskState::Memory), "{key}");
        }
        finished.len()
    }

    /// Whether a worker has not said yet all that it has.
    fn is_returning(&self, id: WorkerId) -> bool {
        let outbox = self.workers.get(&id).map(|worker| &worker.outbox);
        outbox.is_some_and(|outbox| {
            let mut messages = outbox.iter();
            messages.any(|message| matches!(message, FromWorker::Returned(_)))
        })
    }

    fn run_killed(seed: u64) -> usize {
        let mut kept_count = 0;
        let mut simulation = Self::new(seed);
        simulation.is_plain = true;
        simulation.state.policy.client_grace = Duration::from_secs(1);
        // Workers send no heartbeats.
        simulation.state.policy.worker_ttl = None;
        simulation.restart_with_journal();
        simulation.add_worker();
        for _ in 0..400 {
            simulation.step();
            match simulation.number(60) {
                0 => kept_count += simulation.kill(),
                1 => simulation.merge_journal(),
                _ => {}
            }
        }
        simulation.finish(seed);
        // A scheduler that continues now has nothing to do.
        simulation.keep_journal();
        let restored = simulation.restored();
        assert_eq!(restored.task_count(), 0);
        assert_eq!(restored.extensions.objects(), []);
        kept_count
    }

    /// Begins again with a state that keeps a journal.
    pub(super) fn restart_with_journal(&mut self) {
        let slice_len = self.state.slice_len;
        let restoring = Restoring::new(self.state.policy.clone(), self.now);
        self.state = restoring.finish();
        self.state.slice_len = slice_len;
        self.handle(SchedulerInput::Resumed);
        self.clients.clear();
        for name in NAMES {
            self.add_client(name, Some(false));
        }
        self.open_shared();
    }
}

#[test]
fn schedulers_that_are_killed_at_any_time_continue() {
    let kept_count: usize = (0..60).map(Simulation::run_killed).sum();
    assert!(kept_count > 200, "{kept_count}");
}

/// Continues from the journal of a cluster. Returns the new journal.
fn restart(cluster: &mut Cluster, records: &[u8]) -> Vec<u8> {
    let mut live = Live::default();
    live.note(records).expect("they were written");
    let mut selected = Vec::new();
    let selecting = live.select(records, &mut selected);
    selecting.expect("they were written");
    let mut restoring = Restoring::new(Policy::default(), Duration::ZERO);
    restoring.add(&selected).expect("they were written");
    let mut written = Vec::new();
    restoring.take_journal(&mut written);
    cluster.state = restoring.finish();
    cluster.running.clear();
    written
}

#[test]
fn results_that_only_waiting_tasks_need_are_kept() {
    let mut cluster = Cluster::new();
    cluster.state.keep_journal();
    let client = cluster.client("me");
    let worker = cluster.worker("tcp://a:1", 1);
    let keys: Vec<String> = (0..20).map(|number| format!("t-{number}")).collect();
    let mut tasks = vec![add(&keys[0], &[])];
    tasks.extend(keys.windows(2).map(|pair| add(&pair[1], &[&pair[0]])));
    cluster.submit(client, tasks, &["t-19"]);
    for key in &keys[..19] {
        cluster.finish(worker, key);
    }
    let mut records = Vec::new();
    cluster.state.take_journal(&mut records);
    restart(&mut cluster, &records);
    let worker = cluster.worker_with("tcp://a:1", 1, &[]);
    cluster.handle(SchedulerInput::DataStored {
        client: None,
        who_has: vec![(Key::from("t-18"), vec!["tcp://a:1".to_owned()])],
        nbytes: Vec::new(),
    });
    cluster.handle(SchedulerInput::Resumed);
    assert_eq!(cluster.status("t-18"), Some(TaskState::Memory));
    assert_eq!(cluster.assigned_to("t-19"), Some(worker));
    assert_eq!(cluster.running.len(), 1);
}

#[test]
fn workers_are_awaited_until_the_state_is_resumed() {
    let mut cluster = Cluster::new();
    cluster.state.keep_journal();
    cluster.worker("tcp://a:1", 1);
    let mut records = Vec::new();
    cluster.state.take_journal(&mut records);
    // Two schedulers in a row are killed before the worker has returned.
    for _ in 0..2 {
        records = restart(&mut cluster, &records);
        assert!(cluster.state.awaits_workers());
    }
    let worker = cluster.worker("tcp://a:1", 1);
    assert!(!cluster.state.awaits_workers());
    cluster.state.take_journal(&mut records);
    cluster.handle(SchedulerInput::Resumed);
    cluster.lose_worker(worker);
    cluster.state.take_journal(&mut records);
    restart(&mut cluster, &records);
    assert!(!cluster.state.awaits_workers());
}

/// The holder of tasks that nothing waits for has the same number whenever it is there.
#[test]
fn a_holder_that_was_forgotten_and_is_there_again_is_kept_once() {
    let mut cluster = Cluster::new();
    cluster.state.keep_journal();
    let client = cluster.client("me");
    let worker = cluster.worker("tcp://a:1", 1);
    let fire = |cluster: &mut Cluster, key: &str| {
        cluster.submit(client, [add(key, &[])], &[key]);
        let desired = ClientDesiresKeys {
            keys: [key].into_iter().collect(),
            client: Some("fire-and-forget".to_owned()),
            ..ClientDesiresKeys::default()
        };
        cluster.send(client, desired);
        cluster.release(client, &[key]);
    };
    for (second, key) in ["a", "b", "c"].into_iter().enumerate() {
        fire(&mut cluster, key);
        cluster.finish(worker, key);
        let now = Duration::from_secs(second as u64 + 1);
        cluster.state.handle(now, SchedulerInput::Tick);
        assert_eq!(cluster.state.clients.len(), 1, "the holder is forgotten");
    }
    fire(&mut cluster, "d");
    let mut records = Vec::new();
    cluster.state.take_journal(&mut records);
    restart(&mut cluster, &records);
    assert_eq!(cluster.state.clients.len(), 2);
    assert_eq!(cluster.state.task_count(), 1);
    cluster.handle(SchedulerInput::Resumed);
    cluster.worker("tcp://a:1", 1);
    assert_eq!(cluster.status("d"), Some(TaskState::Processing));
}

#[test]
fn metadata_that_is_replaced_or_forgotten_is_not_kept() {
    let mut cluster = Cluster::new();
    cluster.state.keep_journal();
    let set = |cluster: &mut Cluster, path: &[&str], value: i64| {
        cluster.handle(SchedulerInput::MetadataSet {
            path: path.iter().copied().map(Key::from).collect(),
            value: Value::from(value),
        });
    };
    let client = cluster.client("me");
    cluster.submit(client, [add("x", &[])], &["x"]);
    for number in 0..100 {
        set(&mut cluster, &["a", &number.to_string()], number);
        set(&mut cluster, &["x", &number.to_string(), "y"], number);
    }
    set(&mut cluster, &["ab", "c"], 2);
    set(&mut cluster, &["a"], 1);
    set(&mut cluster, &["a", "d"], 3);
    cluster.release(client, &["x"]);
    assert_eq!(cluster.status("x"), None);
    let expected = cluster.state.metadata(&[]);
    assert!(matches!(&expected, Ok(Value::Dict(all)) if all.len() == 2));
    let mut records = Vec::new();
    cluster.state.take_journal(&mut records);
    let records = restart(&mut cluster, &records);
    assert_eq!(cluster.state.metadata(&[]), expected);
    assert!(records.len() < 1000, "{}", records.len());
}

#[test]
fn damaged_records_are_errors() {
    let mut simulation = Simulation::new(3);
    simulation.is_plain = true;
    simulation.restart_with_journal();
    simulation.add_worker();
    for _ in 0..200 {
        simulation.step();
    }
    simulation.keep_journal();
    let records = simulation.journal.concat();
    let read = |records: &[u8]| {
        let mut live = Live::default();
        live.note(records)?;
        let mut selected = Vec::new();
        live.select(records, &mut selected)?;
        let mut restoring = Restoring::new(Policy::default(), Duration::ZERO);
        restoring.add(&selected)?;
        let mut state = restoring.finish();
        state.check();
        state.handle(Duration::ZERO, SchedulerInput::Resumed);
        while state.is_pending() {
            state.proceed(Duration::ZERO);
            state.check();
        }
        Ok::<_, RecordError>(())
    };
    read(&records).expect("they were written");
    let mut error_count = 0;
    for _ in 0..1000 {
        let mut damaged = records.clone();
        let at = simulation.number(damaged.len());
        damaged[at] ^= 1 << simulation.number(8);
        error_count += usize::from(read(&damaged).is_err());
        error_count += usize::from(read(&records[..at]).is_err());
    }
    assert!(error_count > 1000, "{error_count}");
}

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
        let lost_count = match self.number(2) {
            0 => 0,
            _ => self.number(self.journal.len().min(8)),
        };
        let finished_count = self.kill_scheduler(lost_count);
        self.return_reader();
        let clients = core::mem::take(&mut self.clients);
        for (client, views) in clients {
            let name = self.names[&client].clone();
            self.return_client(&name, views);
        }
        finished_count
    }

    /// Kills the scheduler, and loses its last records. Workers connect to the next one. Returns the
    /// number of results that it has at once.
    pub(super) fn kill_scheduler(&mut self, lost_count: usize) -> usize {
        self.keep_journal();
        let mut finished = self.finished_keys();
        let (objects, mut held) = self.shared_objects();
        let slice_len = self.state.slice_len;
        self.journal.truncate(self.journal.len() - lost_count);
        self.state = self.restored();
        self.parts.clear();
        self.state.slice_len = slice_len;
        self.state.check();
        let restored = self.shared_objects();
        if lost_count == 0 {
            assert_eq!(restored.0, objects);
            // What a dataset had before it was replaced may be about to be released.
            held.retain(|place| !restored.1.contains(place));
            let is_dataset = |place: &(String, Key)| place.0.starts_with("published-");
            assert!(
                held.iter().all(is_dataset),
                "{held:?} are not held any more"
            );
        } else {
            let tasks = &self.state.tasks;
            let by_key = &self.state.by_key;
            finished.retain(|key| {
                let known = by_key.get(key).map(|id| &tasks[*id]);
                // It had no clients yet, or had failed.
                known.is_some_and(|task| {
                    !task.wanted_by.is_empty() && !matches!(task.stage, TaskStage::Erred(_))
                })
            });
        }
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

/// Runs a storm in which the scheduler is killed at any time, completes all tasks, and checks that nothing
/// is left of them, neither in the state nor in its journal.
///
/// The input: a byte for each choice. Pseudo-random choices follow.
pub fn kill_and_finish(choices: &[u8]) {
    run(0, choices.into(), choices.len() / 2);
}

/// Returns the number of results that schedulers had at once when they continued.
fn run(seed: u64, choices: Choices, step_count: usize) -> usize {
    let mut kept_count = 0;
    let mut simulation = Simulation::new(seed);
    simulation.choices = choices;
    simulation.state.slice_len = simulation.number(4) + 1;
    simulation.is_plain = true;
    simulation.state.policy.client_grace = Duration::from_secs(1);
    // Workers send no heartbeats.
    simulation.state.policy.worker_ttl = None;
    simulation.restart_with_journal();
    simulation.add_worker();
    for _ in 0..step_count {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedulers_that_are_killed_at_any_time_continue() {
        let kept_count: usize = (0..60).map(|seed| run(seed, seed.into(), 400)).sum();
        assert!(kept_count > 200, "{kept_count}");
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
}

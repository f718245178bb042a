//! Workers that lose their connection, and return.

use super::*;

impl Simulation {
    /// Registers a worker anew, sometimes before the scheduler knows that its connection is lost.
    pub(super) fn return_worker(&mut self, id: WorkerId) {
        let mut worker = self.workers.remove(&id).expect("exists");
        if self.number(2) == 0 {
            self.handle(SchedulerInput::WorkerLeft(id));
        }
        let (mut undelivered, running) = self.disconnect(&mut worker);
        let mut results: Vec<Key> = worker.data.iter().cloned().collect();
        if self.number(2) == 0 {
            results.reverse();
        }
        self.worker_count += 1;
        let id = WorkerId(self.worker_count);
        let registration = Box::new(RegisterWorker {
            extra_information: Value::dict([(
                "daskwire",
                Value::list(["native", "python", "returning"]),
            )]),
            address: worker.address.clone(),
            server_id: Some(worker.address.clone()),
            status: WorkerStatus::Running,
            nthreads: self.number(3) as u64 + 1,
            resources: worker.resources.clone(),
            ..RegisterWorker::default()
        });
        let part_len = self.number(4) + 1;
        let running = running.chunks(part_len).map(|running| Returned {
            running: running.to_vec(),
            ..Returned::default()
        });
        let results = results.chunks(part_len).map(|keys| {
            let results = keys.iter().map(|key| ReturnedResult {
                key: key.clone(),
                nbytes: 1000,
                class: None,
            });
            Returned {
                results: results.collect(),
                // Actors are not told from other data here.
                actors: Keys(
                    keys.iter()
                        .filter(|key| self.state.is_actor(key))
                        .cloned()
                        .collect(),
                ),
                ..Returned::default()
            }
        });
        let parts: Vec<Returned> = running.chain(results).collect();
        worker
            .outbox
            .extend(parts.into_iter().map(FromWorker::from));
        worker.outbox.push_back(FromWorker::from(Returned {
            is_last: true,
            ..Returned::default()
        }));
        worker.outbox.append(&mut undelivered);
        self.workers.insert(id, worker);
        self.handle(SchedulerInput::WorkerJoined { id, registration });
    }

    /// Drops what a worker does not return with. Returns the messages that it could not deliver, and
    /// the runs that it goes on with.
    fn disconnect(&mut self, worker: &mut Slow) -> (VecDeque<FromWorker>, Vec<ReturnedRun>) {
        worker.inbox.clear();
        let lost = self.number(worker.outbox.len() + 1);
        let mut undelivered = worker.outbox.split_off(lost);
        worker.outbox.clear();
        let mut running = Vec::new();
        let data = &worker.data;
        undelivered.retain(|message| {
            let (key, run_id) = match message {
                // The data may have been deleted since.
                FromWorker::TaskFinished(message) if data.contains(&message.key) => {
                    (&message.key, message.run_id)
                }
                FromWorker::TaskErred(message) => (&message.key, message.run_id),
                _ => return false,
            };
            let key = key.clone();
            running.push(ReturnedRun { key, run_id });
            true
        });
        let executing = &worker.executing;
        worker
            .tasks
            .retain(|key, task| executing.get(key) == Some(&task.run_id));
        let tasks = &worker.tasks;
        worker.executing.retain(|key, _| tasks.contains_key(key));
        running.extend(worker.executing.iter().map(|(key, run_id)| ReturnedRun {
            key: key.clone(),
            run_id: *run_id,
        }));
        (undelivered, running)
    }
}

impl State {
    fn is_actor(&self, key: &Key) -> bool {
        let id = self.by_key.get(key);
        id.is_some_and(|id| self.tasks[*id].is_actor)
    }
}

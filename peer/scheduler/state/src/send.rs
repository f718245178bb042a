//! Messages to clients and workers.

use daskwire_messages::graph::opened_safely;
use daskwire_messages::protocol::{
    Close, CloseStream, ComputeTask, Field as _, FreeKeys, KeyInMemory, Keys, Nullable, Sizes,
    TaskErredForClient, ToClient, ToWorker,
};
use daskwire_messages::{Key, Value};

use super::choose::{next_random, some};
use super::model::{Priority, Task, TaskId, TaskStage};
use super::submission::Failure;
use super::{Action, ClientId, Notice, State, WINDOW, WorkerId};

impl State {
    pub(super) fn send_client(&mut self, client: ClientId, message: impl Into<ToClient>) {
        let stream = self.clients.get(&client).and_then(|client| client.stream);
        if let Some(stream) = stream {
            self.actions.push(Action::ToClient(stream, message.into()));
        }
    }

    /// Sends a client the result or the failure of a task that it wants. A client that does not
    /// read gets it later.
    pub(super) fn send_result(&mut self, client: ClientId, message: impl Into<ToClient>) {
        let client = self.clients.get(&client);
        let client = client.filter(|client| !client.is_behind);
        if let Some(stream) = client.and_then(|client| client.stream) {
            self.actions.push(Action::ToClient(stream, message.into()));
        }
    }

    pub(super) fn send_worker(&mut self, worker: WorkerId, message: impl Into<ToWorker>) {
        self.actions.push(Action::ToWorker(worker, message.into()));
    }

    pub(super) fn notice(&mut self, notice: Notice) {
        self.actions.push(Action::Notice(notice));
    }

    pub(super) fn send_close(&mut self, worker: WorkerId, reason: &str) {
        let reason = Some(reason.to_owned());
        self.send_worker(
            worker,
            Close {
                reason,
                extra: Vec::new(),
            },
        );
        self.send_worker(worker, CloseStream::default());
    }

    /// Asks a worker to forget a task that it is processing.
    pub(super) fn send_free(&mut self, on: WorkerId, id: TaskId) {
        if self.workers.contains_key(&on) {
            let keys = Keys(vec![self.tasks[id].key.clone()]);
            self.send_worker(on, free_keys(keys, "cancelled"));
        }
    }

    /// Sends a task to a worker.
    pub(super) fn send(&mut self, id: TaskId, on: WorkerId) {
        if self.waits_again(id, on) {
            return;
        }
        let task = &mut self.tasks[id];
        let (Some(worker), Some(run_spec)) = (self.workers.get_mut(&on), &task.run_spec) else {
            return;
        };
        if self.compute_stimulus.0 != self.now {
            let text = format!("compute-task-{}", self.now.as_secs_f64());
            self.compute_stimulus = (self.now, text);
        }
        self.run_count += 1;
        task.run_id = self.run_count;
        worker.processing.insert(id);
        self.processing_count += 1;
        debug_assert!(worker.has_left(&run_spec.demands.resources));
        worker.take_resources(&run_spec.demands.resources);
        self.set_stage(id, TaskStage::Processing(on));
        let task = &self.tasks[id];
        let (Some(worker), Some(run_spec)) = (self.workers.get_mut(&on), &task.run_spec) else {
            return;
        };
        let Priority {
            user,
            generation,
            order,
            submission,
            ..
        } = task.priority;
        let demands = &run_spec.demands;
        let payload = match worker.kind.native {
            // Workers in Rust open it within the task, and look for the names of functions.
            true => run_spec.payload.to_serialized(),
            false => match run_spec.payload.pickle(&mut self.pickle) {
                Some(pickle) => opened_safely(&mut self.pickle_scratch, pickle, &task.key),
                None => run_spec.payload.to_serialized(),
            },
        };
        let resources = demands.resources.0.iter();
        let resources = (!demands.resources.is_empty())
            .then(|| Value::dict(resources.map(|(name, amount)| (name.clone(), *amount))));
        /// A worker of Dask runs the task that it got last, of those with the same priority. As more
        /// are sent ahead than by Dask, a fraction puts them into the order of submissions.
        const FRACTIONS: u64 = 1 << 20;
        #[expect(clippy::cast_precision_loss, reason = "in order up to 2^32")]
        let order = order as f64 + (submission % FRACTIONS) as f64 / FRACTIONS as f64;
        #[expect(clippy::cast_precision_loss, reason = "in order up to 2^53")]
        let mut message = ComputeTask {
            key: task.key.clone(),
            run_id: task.run_id,
            priority: vec![user, generation as f64, order],
            stimulus_id: self.compute_stimulus.1.clone(),
            run_spec: daskwire_messages::protocol::RunSpec::Payload(payload),
            resource_restrictions: Nullable(resources),
            annotations: Some(demands.annotations.clone()),
            who_has: Vec::with_capacity(task.dependencies.len()),
            nbytes: Sizes(Vec::with_capacity(task.dependencies.len())),
            actor: task.is_actor,
            span_id: Nullable(demands.span_id.as_deref().map(str::to_owned)),
            extra: Vec::new(),
        };
        // Data that the worker has under these keys belongs to an earlier use of
        // them.
        let random = next_random(&mut self.random);
        let mut stale = Vec::new();
        if worker.deletions_since < submission {
            // A worker in Python knows tasks that these results depend on, and their
            // dependencies, which may be others now.
            stale.extend(core::mem::take(&mut worker.deletions));
        } else if worker.deletions.remove(&message.key) {
            stale.push(message.key.clone());
        }
        let task = &self.tasks[id];
        for dependency in &task.dependencies {
            let dependency = &self.tasks[*dependency];
            let key = &dependency.key;
            let worker = self.workers.get_mut(&on);
            if worker.is_some_and(|worker| worker.deletions.remove(key)) {
                stale.push(key.clone());
            }
            // The worker asks for others if it cannot fetch the data from any of these.
            let holders = some(&dependency.who_has, random);
            let holders =
                holders.filter_map(|id| Some((*self.workers.get(id)?.address).to_owned()));
            message.who_has.push((key.clone(), holders.collect()));
            message.nbytes.push((key.clone(), dependency.nbytes));
        }
        if !stale.is_empty() {
            self.send_worker(on, free_keys(Keys(stale), "deletions"));
        }
        let len = message.run_spec.heap_len();
        self.send_worker(on, message);
        if let Some(worker) = self.workers.get_mut(&on) {
            worker.unwritten_len += len;
            if worker.unwritten_len >= WINDOW {
                self.actions.push(Action::NotifyDrained(on));
            }
        }
    }
}

pub(super) fn free_keys(keys: Keys, why: &str) -> ToWorker {
    let stimulus_id = why.to_owned();
    let extra = Vec::new();
    ToWorker::FreeKeys(FreeKeys {
        keys,
        stimulus_id,
        extra,
    })
}

pub(super) fn erred(key: &Key, failure: &Failure) -> TaskErredForClient {
    TaskErredForClient {
        key: key.clone(),
        exception: failure.exception.clone(),
        // Python clients expect the field.
        traceback: Some(failure.traceback.clone().unwrap_or_default()),
        ..TaskErredForClient::default()
    }
}

pub(super) fn in_memory(task: &Task) -> KeyInMemory {
    KeyInMemory {
        key: task.key.clone(),
        class: task.class.clone().map(Value::Bytes),
        ..KeyInMemory::default()
    }
}

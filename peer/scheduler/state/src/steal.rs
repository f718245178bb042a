//! Stealing: tasks move away from workers that have not started them.

use std::cmp::Reverse;

use daskwire_messages::Value;
use daskwire_messages::protocol::{StealRequest, StealResponse};

use super::choose::{next_random, some_of};
use super::model::{TaskId, TaskStage};
use super::{State, WorkerId};

/// The time that a task is assumed to wait on a worker with more tasks than threads, in seconds.
/// It may be moved if its inputs are transferred sooner.
const WAIT: f64 = 0.5;

/// Maximum number of tasks, of workers that have them, and of idle workers that are considered at
/// once.
const MAX_TRIED: usize = 64;

impl State {
    /// Asks workers for tasks that they have not started: those that start no tasks any more, and
    /// those with more tasks than threads while others are idle. A worker's average run time is
    /// not used: its current tasks may take much longer, and others wait for them. Each task is
    /// asked for once.
    // ROLES SCHEDULER-11
    pub(super) fn request_steals(&mut self) {
        let random = next_random(&mut self.random);
        let idle = self.idle.iter().take(MAX_TRIED);
        let idle = idle.filter_map(|id| self.workers.get(id));
        let mut free: usize = idle
            .map(|worker| (worker.thread_count as usize).saturating_sub(worker.busy_count()))
            .sum();
        let mut left = MAX_TRIED;
        let mut asked: Vec<(WorkerId, TaskId, Option<WorkerId>)> = Vec::new();
        let after = self.last_asked;
        for id in some_of(&self.with_surplus, after, MAX_TRIED) {
            self.last_asked = WorkerId(id.0.wrapping_add(1));
            let Some(worker) = self.workers.get(id) else {
                continue;
            };
            let threads = worker.thread_count as usize;
            let surplus = match worker.is_running {
                false => worker.busy_count(),
                true if !self.policy.is_stealing => 0,
                true => free.min(worker.busy_count().saturating_sub(threads)),
            };
            if surplus == 0 {
                continue;
            }
            let tasks = worker.processing.iter().copied();
            let mut tasks: Vec<TaskId> = tasks
                .filter(|task| !worker.long_running.contains(task) && !worker.asked.contains(task))
                .collect();
            // Those sent last are the least likely to have started.
            tasks.sort_unstable_by_key(|task| Reverse(self.tasks[*task].run_id));
            tasks.truncate(left);
            left -= tasks.len();
            let tasks = tasks.into_iter().filter_map(|task| {
                let thief = self.idle_for(task, WAIT, random);
                let is_wanted = match worker.is_running {
                    true => thief.is_some(),
                    false => self.can_run(task),
                };
                is_wanted.then_some((*id, task, thief))
            });
            let before = asked.len();
            asked.extend(tasks.take(surplus));
            if worker.is_running {
                free -= asked.len() - before;
            }
            if left == 0 {
                break;
            }
        }
        if asked.is_empty() {
            return;
        }
        let requests = asked.iter().map(|(on, task, thief)| {
            let expected = self.tasks[*task].expected.unwrap_or_default();
            Value::tuple([
                Value::from(self.now.as_secs_f64()),
                Value::from(0),
                self.tasks[*task].key.to_value(),
                Value::from(expected.as_secs_f64()),
                self.address_value(Some(*on)),
                Value::from(self.workers[on].busy_seconds()),
                self.address_value(*thief),
                Value::from(thief.map_or(0.0, |thief| self.workers[&thief].busy_seconds())),
            ])
        });
        let requests = Value::list(requests.collect::<Vec<_>>());
        self.log_steal([Value::from("request"), requests]);
        for (worker, task, _) in asked {
            if let Some(worker) = self.workers.get_mut(&worker) {
                worker.asked.insert(task);
            }
            let task = &self.tasks[task];
            let message = StealRequest {
                key: task.key.clone(),
                stimulus_id: stimulus(task.run_id),
                ..StealRequest::default()
            };
            self.send_worker(worker, message);
        }
    }

    /// Handles the answer of a worker, which has forgotten the task if it had not started it.
    // ROLES SCHEDULER-11
    pub(super) fn steal_response(&mut self, worker: WorkerId, message: &StealResponse) {
        let state = message.state.0.as_deref();
        let Some(id) = self.by_key.get(&message.key).copied() else {
            return;
        };
        let shown = [
            message.key.to_value(),
            state.map_or(Value::None, Value::from),
            self.address_value(Some(worker)),
        ];
        let cause = Value::from(message.stimulus_id.as_str());
        // The worker may have been sent the task again since.
        let task = &self.tasks[id];
        let is_current = message.stimulus_id == stimulus(task.run_id);
        if !is_current || !matches!(task.stage, TaskStage::Processing(on) if on == worker) {
            let [key, state, worker] = shown;
            return self.log_steal([Value::from("stale-response"), key, state, worker, cause]);
        }
        let [key, state_value, victim] = shown;
        if !matches!(state, Some("waiting" | "ready" | "constrained")) {
            let what = Value::from("already-computing");
            return self.log_steal([what, key, state_value, victim, Value::None, cause]);
        }
        // The worker has some of the inputs, so that it would often be chosen again.
        let random = next_random(&mut self.random);
        let to = self.idle_for(id, WAIT, random);
        let thief = self.address_value(to);
        self.log_steal([
            Value::from("confirm"),
            key,
            state_value,
            victim,
            thief,
            cause,
        ]);
        self.unassign(id);
        match to {
            Some(to) => self.place(id, to),
            None => self.make_ready(id),
        }
    }
}

impl State {
    /// Publishes an event of stealing, in the form of Dask's: a tuple.
    fn log_steal<const N: usize>(&mut self, event: [Value; N]) {
        self.publish(&Value::from("stealing"), &Value::tuple(event));
    }

    /// The address of a worker; none if it is not known yet.
    fn address_value(&self, id: Option<WorkerId>) -> Value {
        let address = id.and_then(|id| self.address_of(id));
        address.map_or(Value::None, Value::from)
    }
}

fn stimulus(run_id: i64) -> String {
    format!("take-back-{run_id}")
}

//! Taking tasks back from workers that have not started them.

use std::cmp::Reverse;

use super::parts::{Stage, TaskId, Worker};
use super::{State, WorkerId};
use crate::protocol::{StealRequest, StealResponse};

/// The time that a task is assumed to wait on a worker with more tasks than threads, in seconds.
/// It may be moved if its inputs are transferred sooner.
const WAIT: f64 = 0.5;

impl State {
    /// Asks workers for tasks that they have not started: those that start no tasks any more, and
    /// those with more tasks than threads while others are idle. The pace of a worker says
    /// nothing of how long its current tasks take, for which others may wait.
    pub(super) fn ask_back(&mut self) {
        /// Maximum number of tasks that are compared with each idle worker at once.
        const MAX_TRIED: usize = 256;
        if !self.workers.values().any(|worker| worker.is_running) {
            return;
        }
        let idle = self.idle_workers();
        let free = |(_, worker): &(WorkerId, &Worker)| {
            (worker.thread_count as usize).saturating_sub(worker.busy_count())
        };
        let mut free: usize = idle.iter().map(free).sum();
        let mut left = MAX_TRIED;
        let mut asked: Vec<(WorkerId, TaskId)> = Vec::new();
        for (id, worker) in &self.workers {
            let threads = worker.thread_count as usize;
            let surplus = match worker.is_running {
                false => worker.busy_count(),
                true => free.min(worker.busy_count().saturating_sub(threads)),
            };
            if surplus == 0 {
                continue;
            }
            let tasks = worker.processing.iter().copied();
            let tasks = tasks.filter(|task| !worker.long_running.contains(task));
            let mut tasks: Vec<TaskId> = tasks.collect();
            // Those sent last are the least likely to have started.
            tasks.sort_unstable_by_key(|task| Reverse(self.tasks[*task].run_id));
            if worker.is_running {
                tasks.truncate(left);
                left -= tasks.len();
                tasks.retain(|task| self.idle_for(*task, &idle).is_some());
                tasks.truncate(surplus);
                free -= tasks.len();
            }
            asked.extend(tasks.into_iter().map(|task| (*id, task)));
        }
        for (worker, task) in asked {
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
    pub(super) fn given_back(&mut self, worker: WorkerId, message: &StealResponse) {
        let state = message.state.0.as_deref();
        if !matches!(state, Some("waiting" | "ready" | "constrained")) {
            return;
        }
        let Some(id) = self.by_key.get(&message.key).copied() else {
            return;
        };
        // The worker may have been sent the task again since.
        let task = &self.tasks[id];
        let is_current = message.stimulus_id == stimulus(task.run_id);
        if !is_current || !matches!(task.stage, Stage::Processing(on) if on == worker) {
            return;
        }
        // Otherwise the worker itself might be chosen again, since it has the inputs.
        let to = self.idle_for(id, &self.idle_workers());
        self.unassign(id);
        match to {
            Some(to) => self.queue(id, to),
            None => self.make_ready(id),
        }
    }

    fn idle_workers(&self) -> Vec<(WorkerId, &Worker)> {
        let workers = self.workers.iter().map(|(id, worker)| (*id, worker));
        workers.filter(|(_, worker)| worker.is_idle()).collect()
    }

    /// Returns an idle worker that a task may be moved to.
    fn idle_for(&self, task: TaskId, idle: &[(WorkerId, &Worker)]) -> Option<WorkerId> {
        let mut idle = idle.iter();
        let found = idle.find(|other| self.is_better_at(task, **other, WAIT));
        found.map(|(id, _)| *id)
    }
}

fn stimulus(run_id: i64) -> String {
    format!("take-back-{run_id}")
}

//! Stealing: tasks move away from workers that have not started them.

use std::cmp::Reverse;

use daskwire_messages::protocol::{StealRequest, StealResponse};

use super::model::{Stage, TaskId, Worker};
use super::{State, WorkerId};

/// The time that a task is assumed to wait on a worker with more tasks than threads, in seconds.
/// It may be moved if its inputs are transferred sooner.
const WAIT: f64 = 0.5;

/// Maximum number of tasks, and of idle workers, that are compared at once. Each task is compared
/// with each idle worker.
const MAX_TRIED: usize = 64;
const MAX_IDLE: usize = 64;

impl State {
    /// Asks workers for tasks that they have not started: those that start no tasks any more, and
    /// those with more tasks than threads while others are idle. A worker's average run time is
    /// not used: its current tasks may take much longer, and others wait for them. Each task is
    /// asked for once.
    pub(super) fn request_steals(&mut self) {
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
                true if !self.policy.is_stealing => 0,
                true => free.min(worker.busy_count().saturating_sub(threads)),
            };
            if surplus == 0 || left == 0 {
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
            tasks.retain(|task| match worker.is_running {
                true => self.idle_for(*task, &idle).is_some(),
                false => self.can_run(*task),
            });
            tasks.truncate(surplus);
            if worker.is_running {
                free -= tasks.len();
            }
            asked.extend(tasks.into_iter().map(|task| (*id, task)));
        }
        for (worker, task) in asked {
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
    pub(super) fn steal_response(&mut self, worker: WorkerId, message: &StealResponse) {
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
        // The worker has some of the inputs, so that it would often be chosen again.
        let to = self.idle_for(id, &self.idle_workers());
        self.unassign(id);
        match to {
            Some(to) => self.enqueue(id, to),
            None => self.make_ready(id),
        }
    }

    /// Returns idle workers, at most [`MAX_IDLE`].
    fn idle_workers(&self) -> Vec<(WorkerId, &Worker)> {
        let workers = self.workers.iter().map(|(id, worker)| (*id, worker));
        let idle = workers.filter(|(_, worker)| worker.is_idle());
        idle.take(MAX_IDLE).collect()
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

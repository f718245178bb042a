//! Taking tasks back from workers that have not started them.

use std::cmp::Reverse;

use super::parts::{Stage, TaskId, Worker};
use super::{State, WorkerId};
use crate::protocol::{StealRequest, StealResponse};

impl State {
    /// Asks workers for tasks that they have not started: those that start no tasks any more, and
    /// those with more tasks than threads while others are idle. The pace of a worker says
    /// nothing of how long its current tasks take, for which others may wait.
    pub(super) fn ask_back(&mut self) {
        /// Maximum number of tasks that are compared with each idle worker at once.
        const MAX_TRIED: usize = 256;
        let mut left = MAX_TRIED;
        let running = self.workers.values().filter(|worker| worker.is_running);
        if running.clone().next().is_none() {
            return;
        }
        let idle: Vec<&Worker> = running.filter(|worker| worker.is_idle()).collect();
        let mut free: usize = idle
            .iter()
            .map(|worker| worker.thread_count as usize - worker.busy_count())
            .sum();
        let mut asked: Vec<(WorkerId, TaskId)> = Vec::new();
        for (id, worker) in &self.workers {
            let surplus = match worker.is_running {
                false => worker.busy_count(),
                true => {
                    let threads = worker.thread_count as usize;
                    free.min(worker.busy_count().saturating_sub(threads))
                }
            };
            if surplus == 0 {
                continue;
            }
            let tasks = worker.processing.iter().copied();
            let tasks = tasks.filter(|task| !worker.long_running.contains(task));
            let mut tasks: Vec<TaskId> = tasks.collect();
            // Those sent last are the least likely to have started.
            tasks.sort_unstable_by_key(|task| Reverse(self.tasks[*task].run_id));
            let is_movable = |task: &TaskId| {
                let run_spec = self.tasks[*task].run_spec.as_ref();
                run_spec.is_some_and(|run_spec| {
                    let demands = &run_spec.demands;
                    let mut idle = idle.iter();
                    idle.any(|other| demands.allow(other) && other.has_left(&demands.resources))
                })
            };
            tasks.truncate(surplus);
            if worker.is_running {
                tasks.truncate(left);
                left -= tasks.len();
                tasks.retain(is_movable);
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
        if is_current && matches!(task.stage, Stage::Processing(on) if on == worker) {
            self.unassign(id);
            self.make_ready(id);
        }
    }
}

fn stimulus(run_id: i64) -> String {
    format!("take-back-{run_id}")
}

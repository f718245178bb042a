//! Numbers of workers for clusters that adapt to their tasks.

use daskwire_messages::Value;

use super::model::{UNKNOWN_DURATION, Worker};
use super::{State, WorkerId};

/// Options of [`State::workers_to_close`], as those of Dask.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct CloseOptions {
    /// The number of workers to close.
    pub count: Option<usize>,
    /// The number of workers to keep, if `count` is not given.
    pub target: Option<usize>,
    /// Minimum number of workers to keep. Default: 0.
    pub minimum: usize,
    /// The memory to keep, as a multiple of the data. Default: 2 without a count and a target.
    pub memory_ratio: Option<f64>,
}

impl CloseOptions {
    daskwire_comm::with_fields! {
        with_count(count: impl Into<Option<usize>>);
        with_target(target: impl Into<Option<usize>>);
        with_minimum(minimum: usize);
        with_memory_ratio(memory_ratio: impl Into<Option<f64>>);
    }
}

impl State {
    /// The workers that can be closed at low cost: those that are idle, with the least data
    /// first. Workers with tasks that have left the thread pool, and those that take part in P2P
    /// shuffles, are never among them.
    pub fn workers_to_close(&self, options: &CloseOptions) -> Vec<WorkerId> {
        let all = self.workers.len();
        let target = options.target.map(|target| all.saturating_sub(target));
        let count = options.count.or(target);
        let memory_ratio = match (count, options.memory_ratio) {
            (None, None) => Some(2.0),
            (_, ratio) => ratio,
        };
        let is_idle = |worker: &Worker| worker.processing.is_empty() && worker.queued_count == 0;
        if count.unwrap_or(0) == 0 && !self.workers.values().any(is_idle) {
            return Vec::new();
        }
        let mut candidates: Vec<(&WorkerId, &Worker)> = self
            .workers
            .iter()
            .filter(|(id, worker)| {
                worker.long_running.is_empty() && !self.shuffles.has_worker(**id)
            })
            .collect();
        candidates.sort_by_key(|(_, worker)| (!is_idle(worker), worker.nbytes));
        let limit = |worker: &Worker| u128::from(worker.info.memory_limit.unwrap_or_default());
        let mut left: u128 = candidates.iter().map(|(_, worker)| limit(worker)).sum();
        let nbytes: u128 = candidates.iter().map(|(_, worker)| worker.nbytes).sum();
        let mut remaining = all;
        let mut chosen = Vec::new();
        for (id, worker) in candidates {
            if count.is_none() && !is_idle(worker) || remaining <= options.minimum {
                break;
            }
            left -= limit(worker);
            #[expect(clippy::cast_precision_loss, reason = "a ratio need not be exact")]
            let has_memory = memory_ratio.is_some_and(|ratio| left as f64 >= ratio * nbytes as f64);
            let is_counted = count.is_some_and(|count| chosen.len() < count);
            if !is_counted && !has_memory {
                break;
            }
            chosen.push(*id);
            remaining -= 1;
        }
        chosen
    }

    /// The address of a worker.
    pub fn address_of(&self, id: WorkerId) -> Option<&str> {
        self.workers.get(&id).map(|worker| &*worker.address)
    }

    /// The name of a worker, as it has registered.
    pub fn name_of(&self, id: WorkerId) -> Option<&Value> {
        self.workers.get(&id).map(|worker| &worker.info.name)
    }

    /// The number of workers that suits the tasks, if all of them are to be done in
    /// `target_duration` seconds. Default: 5.
    pub fn desired_worker_count(&self, target_duration: Option<f64>) -> usize {
        let target_duration = target_duration.filter(|duration| *duration > 0.0);
        let target_duration = target_duration.unwrap_or(5.0);
        let mut tasks = self.no_worker_count + self.pool.len();
        let mut threads = 0;
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let mut work = self.no_worker_count as f64 * UNKNOWN_DURATION;
        work += self.pool.work().seconds(UNKNOWN_DURATION);
        for worker in self.workers.values() {
            tasks += worker.processing.len() + worker.queued_count;
            threads += worker.thread_count as usize;
            work += worker.busy_seconds() * f64::from(worker.thread_count);
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "casts saturate, and the number is not negative"
        )]
        let busy = ((work / target_duration).ceil() as usize).min(tasks);
        let count = self.workers.len();
        let mut wanted = match threads {
            0 => busy.max(usize::from(tasks > 0)),
            threads => busy.saturating_mul(count).div_ceil(threads),
        };
        let limits = self.workers.values();
        let limit: u128 = limits
            .map(|worker| u128::from(worker.info.memory_limit.unwrap_or_default()))
            .sum();
        let used: u128 = self.workers.values().map(|worker| worker.nbytes).sum();
        if limit > 0 && used.saturating_mul(10) > limit.saturating_mul(6) {
            wanted = wanted.max(2 * count);
        }
        match wanted >= count {
            true => wanted,
            false => count - self.workers_to_close(&CloseOptions::default()).len(),
        }
    }
}

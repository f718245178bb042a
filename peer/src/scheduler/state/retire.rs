//! The retirement of workers.

use daskwire::invariant::Ensured;
use std::collections::BTreeMap;

use super::choose;
use super::model::TaskId;
use super::{LeaveReason, State, WorkerId};
use crate::Key;
use crate::protocol::{AcquireReplicas, WorkerStatus, WorkerStatusChange};
use crate::scheduler::step;

impl State {
    /// Starts retiring a worker: it gets no more tasks, and other workers copy
    /// the results that only it has.
    pub(super) fn retire(&mut self, address: &str) {
        self.set_stimulus(STIMULUS);
        let Some(id) = self.by_address.get(address).copied() else {
            return;
        };
        if let Some(worker) = self.workers.get_mut(&id)
            && worker.info.status != WorkerStatus::ClosingGracefully
        {
            worker.status_before = Some(worker.info.status.clone());
            self.request_status(id, WorkerStatus::ClosingGracefully);
            self.settle();
        }
        self.copy_elsewhere(id);
    }

    /// Cancels the retirement of a worker, which returns to its earlier status.
    pub(super) fn cancel_retirement(&mut self, address: &str) {
        self.set_stimulus(STIMULUS);
        // None if the worker was leaving already.
        if let Some(id) = self.by_address.get(address).copied()
            && let Some(worker) = self.workers.get_mut(&id)
            && let Some(status) = worker.status_before.take()
        {
            self.request_status(id, status);
            self.settle();
        }
    }

    fn request_status(&mut self, id: WorkerId, status: WorkerStatus) {
        let message = WorkerStatusChange {
            status: status.clone(),
            stimulus_id: STIMULUS.to_owned(),
            ..WorkerStatusChange::default()
        };
        self.send_worker(id, message);
        self.status_changed(id, status);
    }

    /// Asks other workers to fetch the results that only this worker has.
    fn copy_elsewhere(&mut self, id: WorkerId) {
        let mut copies: BTreeMap<WorkerId, AcquireReplicas> = BTreeMap::new();
        let running = self.workers.iter().filter(|(_, worker)| worker.is_running);
        let mut others: Vec<WorkerId> = running.map(|(id, _)| *id).collect();
        let worker = &self.workers[&id];
        let only_here = worker.has.iter().map(|id| &self.tasks[*id]);
        let mut only_here = only_here.filter(|task| task.who_has.len() == 1).peekable();
        if only_here.peek().is_none() || others.is_empty() {
            return;
        }
        // Starts at a random worker, so that a retry does not depend on a worker that fails
        // to fetch.
        let start = choose::next(&mut self.random) % others.len() as u64;
        others.rotate_left(usize::try_from(start).ensured());
        for (task, other) in only_here.zip(others.iter().cycle()) {
            let message = copies.entry(*other).or_default();
            let holder = vec![worker.address.clone()];
            message.who_has.push((task.key.clone(), holder));
            let nbytes = message.nbytes.get_or_insert_default();
            nbytes.push((task.key.clone(), task.nbytes));
        }
        for (other, mut message) in copies {
            STIMULUS.clone_into(&mut message.stimulus_id);
            self.send_worker(other, message);
        }
    }

    /// Whether the worker with this address exists, and other workers can copy the results
    /// that only it has.
    pub fn can_retire(&self, address: &str) -> bool {
        let Some(id) = self.by_address.get(address) else {
            return false;
        };
        let mut others = self.workers.iter().filter(|(other, _)| *other != id);
        others.any(|(_, worker)| worker.is_running) || self.is_retired(address)
    }

    /// Whether a retiring worker can leave: other workers have copies of its data. Its
    /// unfinished tasks are run again elsewhere.
    pub fn is_retired(&self, address: &str) -> bool {
        self.has_retired(address, &mut None)
    }

    /// Like [`is_retired`](Self::is_retired), for repeated calls. The first call stores the
    /// keys without other copies in `only_there`, as in Dask, so that later calls check only
    /// these.
    pub(in crate::scheduler) fn has_retired(
        &self,
        address: &str,
        only_there: &mut Option<Vec<Key>>,
    ) -> bool {
        let Some(id) = self.by_address.get(address) else {
            return true;
        };
        let worker = &self.workers[id];
        let is_only_there = |task: &TaskId| {
            step();
            self.tasks[*task].who_has == [*id]
        };
        let left = only_there.get_or_insert_with(|| {
            let left = worker.has.iter().filter(|task| is_only_there(task));
            left.map(|task| self.tasks[*task].key.clone()).collect()
        });
        while let Some(key) = left.last() {
            if self.by_key.get(key).is_some_and(is_only_there) {
                return false;
            }
            left.pop();
        }
        true
    }

    /// Removes a worker.
    pub(super) fn remove_retired(&mut self, address: &str, close: bool) {
        self.set_stimulus(STIMULUS);
        if let Some(id) = self.by_address.get(address).copied() {
            if close {
                self.send_close(id, STIMULUS);
            }
            self.drop_worker(id, true, LeaveReason::Retired);
        }
    }
}

/// The stimulus of all messages about retirement, as in Dask.
const STIMULUS: &str = "retire-workers";

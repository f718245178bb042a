//! The retirement of workers.

use std::collections::BTreeMap;

use super::choose;
use super::parts::TaskId;
use super::{State, WorkerId};
use crate::Key;
use crate::protocol::{AcquireReplicas, WorkerStatus, WorkerStatusChange};
use crate::scheduler::step;

impl State {
    /// Starts retiring a worker: it gets no more tasks, and other workers copy
    /// what only it has. Returns `false` if there is no such worker, or none that
    /// can take the copies.
    pub fn retire(&mut self, address: &str) -> bool {
        self.here("retire-workers");
        let Some(id) = self.by_address.get(address).copied() else {
            return false;
        };
        let stimulus_id = "retire-workers";
        let message = WorkerStatusChange {
            status: WorkerStatus::ClosingGracefully,
            stimulus_id: stimulus_id.to_owned(),
            ..WorkerStatusChange::default()
        };
        self.send_worker(id, message);
        self.status_changed(id, WorkerStatus::ClosingGracefully);
        self.settle();
        self.copy_elsewhere(address)
    }

    /// Cancels the retirement of a worker.
    pub(in crate::scheduler) fn cancel_retirement(&mut self, address: &str) {
        self.here("retire-workers");
        if let Some(id) = self.by_address.get(address).copied() {
            let message = WorkerStatusChange {
                status: WorkerStatus::Running,
                stimulus_id: "retire-workers".to_owned(),
                ..WorkerStatusChange::default()
            };
            self.send_worker(id, message);
            self.status_changed(id, WorkerStatus::Running);
            if let Some(worker) = self.workers.get_mut(&id) {
                worker.is_leaving = false;
            }
            self.settle();
        }
    }

    /// Makes others fetch what only this worker has. Returns `false` if there is
    /// such data but no worker to take it.
    pub(in crate::scheduler) fn copy_elsewhere(&mut self, address: &str) -> bool {
        let Some(id) = self.by_address.get(address).copied() else {
            return false;
        };
        let mut copies: BTreeMap<WorkerId, AcquireReplicas> = BTreeMap::new();
        let running = self.workers.iter().filter(|(_, worker)| worker.is_running);
        let mut others: Vec<WorkerId> = running.map(|(id, _)| *id).collect();
        let only_here = self.workers[&id].has.iter().map(|id| &self.tasks[*id]);
        let mut only_here = only_here.filter(|task| task.who_has.len() == 1).peekable();
        if only_here.peek().is_none() {
            return true;
        }
        if others.is_empty() {
            return false;
        }
        // A worker that fails to do so is not the only one asked next time.
        let start = choose::next(&mut self.random) % others.len() as u64;
        others.rotate_left(usize::try_from(start).unwrap_or_default());
        for (task, other) in only_here.zip(others.iter().cycle()) {
            let message = copies.entry(*other).or_default();
            let holder = vec![address.to_owned()];
            message.who_has.push((task.key.clone(), holder));
            let nbytes = message.nbytes.get_or_insert_default();
            nbytes.push((task.key.clone(), task.nbytes));
        }
        for (other, mut message) in copies {
            "retire-workers".clone_into(&mut message.stimulus_id);
            self.send_worker(other, message);
        }
        true
    }

    /// Whether a retiring worker can leave: others have copies of its data. Its
    /// unfinished tasks are run again elsewhere.
    pub fn is_retired(&self, address: &str) -> bool {
        self.has_retired(address, &mut None)
    }

    /// Like [`is_retired`](Self::is_retired), for repeated calls. `only_there`
    /// keeps the keys without other copies from the first call on, as in Dask, so
    /// that not everything is checked each time.
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
    pub fn remove_retired(&mut self, address: &str, close: bool) {
        self.here("retire-workers");
        if let Some(id) = self.by_address.get(address).copied() {
            if close {
                self.send_close(id, "retire-workers");
            }
            self.drop_worker(id, true, "retired");
        }
    }
}

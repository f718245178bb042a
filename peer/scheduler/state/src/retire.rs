//! The retirement of workers.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::ops::Bound;

use daskwire_messages::Key;
use daskwire_messages::protocol::{AcquireReplicas, WorkerStatus, WorkerStatusChange};

use super::model::TaskId;
use super::slices::Job;
use super::{LeaveReason, State, WorkerId};
use crate::steps::step;

impl State {
    /// Starts retiring workers: they get no more tasks, and other workers copy
    /// the results that only they have.
    pub(super) fn retire(&mut self, addresses: &[String]) {
        self.set_stimulus(STIMULUS);
        let ids = addresses
            .iter()
            .filter_map(|address| self.by_address.get(address));
        let ids: Vec<WorkerId> = ids.copied().collect();
        for id in &ids {
            if let Some(worker) = self.workers.get_mut(id)
                && worker.info.status != WorkerStatus::ClosingGracefully
            {
                worker.status_before = Some(worker.info.status.clone());
                worker.retire_rounds = 0;
                self.request_status(*id, WorkerStatus::ClosingGracefully);
                self.settle();
            }
        }
        // None of them copies data of another.
        for id in ids {
            self.copy_elsewhere(id);
        }
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

    /// Whether all workers that have a result are leaving, except perhaps for `own`.
    fn is_leaving(&self, task: TaskId, own: WorkerId) -> bool {
        step();
        let mut others = self.tasks[task].who_has.iter().filter(|id| **id != own);
        others.all(|id| {
            let worker = self.workers.get(id);
            worker.is_none_or(|worker| worker.info.status == WorkerStatus::ClosingGracefully)
        })
    }

    /// Asks other workers to fetch the results that only this worker has, or only workers
    /// that are leaving, too.
    fn copy_elsewhere(&mut self, on: WorkerId) {
        if let Some(worker) = self.workers.get_mut(&on) {
            // Each key is asked of one worker for some rounds: a transfer may take long, and the
            // scheduler does not delete extra copies. Then of the next, since it may fail to fetch.
            let turn = worker.retire_rounds / ROUNDS_OF_A_TURN;
            worker.retire_rounds += 1;
            let last = None;
            self.start(Job::Copy { on, last, turn });
        }
    }

    /// Asks other workers to fetch some of the results after `last`. Returns the last of them, unless
    /// it was the last of all.
    pub(super) fn copy_part(
        &mut self,
        id: WorkerId,
        last: Option<TaskId>,
        turn: u64,
    ) -> Option<TaskId> {
        let mut copies: BTreeMap<WorkerId, AcquireReplicas> = BTreeMap::new();
        let running = self.workers.iter().filter(|(_, worker)| worker.is_running);
        let others: Vec<WorkerId> = running.map(|(id, _)| *id).collect();
        let worker = self.workers.get(&id)?;
        let after = last.map_or(Bound::Unbounded, Bound::Excluded);
        let mut left = worker.has.range((after, Bound::Unbounded)).copied();
        let part: Vec<TaskId> = left.by_ref().take(self.slice_len).collect();
        let last = part.last().filter(|_| left.next().is_some()).copied();
        let only_here = part.iter().filter(|task| self.is_leaving(**task, id));
        for task in only_here.map(|task| &self.tasks[*task]) {
            let mut hasher = DefaultHasher::new();
            task.key.hash(&mut hasher);
            let index = hasher.finish().wrapping_add(turn);
            let index = index.checked_rem(others.len() as u64)?;
            let other = others[usize::try_from(index).expect("an index")];
            let message = copies.entry(other).or_default();
            let holder = vec![worker.address.to_string()];
            message.who_has.push((task.key.clone(), holder));
            let nbytes = message.nbytes.get_or_insert_default();
            nbytes.push((task.key.clone(), task.nbytes));
        }
        for (other, mut message) in copies {
            STIMULUS.clone_into(&mut message.stimulus_id);
            self.send_worker(other, message);
        }
        last
    }

    /// Whether the worker with this address exists, and other workers can copy the results
    /// that only workers have that are leaving.
    pub fn can_retire(&self, address: &str) -> bool {
        let Some(id) = self.by_address.get(address) else {
            return false;
        };
        if self.has_actor(*id) {
            return false;
        }
        let mut others = self.workers.iter().filter(|(other, _)| *other != id);
        others.any(|(_, worker)| worker.is_running) || self.is_retired(address)
    }

    /// Whether a retiring worker can leave: other workers have copies of its data. Its
    /// unfinished tasks are run again elsewhere.
    pub fn is_retired(&self, address: &str) -> bool {
        let mut keys = Vec::new();
        self.update_keys_without_copy(address, &mut keys);
        keys.is_empty()
    }

    /// Updates the keys of a retiring worker's data that no other worker has a copy of; none if it
    /// can leave. `keys` is that of the call before, at first empty: a call checks only these, until
    /// all have copies.
    pub fn update_keys_without_copy(&self, address: &str, keys: &mut Vec<Key>) {
        let Some(id) = self.by_address.get(address) else {
            return keys.clear();
        };
        while let Some(key) = keys.last() {
            if self.is_sole_copy(key, address) {
                return;
            }
            keys.pop();
        }
        // Other workers with copies may have begun to leave.
        let leaving = self.workers[id].has.iter();
        let leaving = leaving.filter(|task| self.is_leaving(**task, *id));
        keys.extend(leaving.map(|task| self.tasks[*task].key.clone()));
    }

    /// Whether the worker with this address has a result that only workers have that are
    /// leaving.
    pub fn is_sole_copy(&self, key: &Key, address: &str) -> bool {
        let (Some(task), Some(id)) = (self.by_key.get(key), self.by_address.get(address)) else {
            return false;
        };
        self.tasks[*task].who_has.contains(id) && self.is_leaving(*task, *id)
    }

    /// Removes the worker with this address.
    pub(super) fn remove_named(&mut self, address: &str, close: bool, reason: LeaveReason) {
        let stimulus = match reason {
            LeaveReason::Retired => STIMULUS,
            _ => "remove-worker",
        };
        self.set_stimulus(stimulus);
        if let Some(id) = self.by_address.get(address).copied() {
            if close {
                self.send_close(id, stimulus);
                self.closing.push_back((self.now, address.to_owned()));
            }
            self.drop_worker(id, reason == LeaveReason::Retired, reason);
        }
    }
}

/// Number of times that one worker is asked to copy a key before another is.
const ROUNDS_OF_A_TURN: u64 = 5;

/// The stimulus of all messages about retirement, as in Dask.
const STIMULUS: &str = "retire-workers";

//! Data: its arrival, its holders, and the requests to them.

use core::mem::take;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use daskwire_messages::Key;
use daskwire_messages::protocol::{AddKeys, Keys, RequestRefreshWhoHas, WorkerStatus};
use daskwire_rpc::story::TaskChange;

use super::compute::startstop;
use super::event::{Answer, Description, Fetched, Peer, stimulus};
use super::task::{Computation, MAX_HOLDERS, Request, TaskStage};
use super::{Action, State, WorkerInput};

/// Total length of pending requests below which their number is not limited, in bytes, as in
/// Dask.
const SMALL_LEN: u64 = 10_000_000;

impl State {
    /// Marks data as stored, and marks tasks as ready that waited for it.
    pub(super) fn arrive(&mut self, key: &Key, description: Description) {
        self.leave_queues(key);
        let Some(task) = self.tasks.get_mut(key) else {
            return;
        };
        task.description = description;
        task.holders = Vec::new();
        task.reserve = Vec::new();
        task.is_acquired = false;
        let dependents: Vec<Key> = task.dependents.iter().cloned().collect();
        self.set_phase(key, TaskStage::Memory);
        for dependent in dependents {
            let Some(task) = self.tasks.get_mut(&dependent) else {
                continue;
            };
            let Some(computation) = &mut task.computation else {
                continue;
            };
            computation.missing_count = computation.missing_count.saturating_sub(1);
            if computation.missing_count == 0 && task.stage == TaskStage::Waiting {
                self.become_ready(&dependent);
            }
        }
    }

    /// Handles data sent by a client.
    pub(super) fn stored(&mut self, key: &Key, description: Description) {
        let priority = self.next_priority(&[0.0; 3]);
        let task = self.entry(key, priority);
        if task.stage == TaskStage::Memory {
            return;
        }
        let computation = task.computation.take();
        if let Some(computation) = &computation {
            let dependencies = computation.dependencies.clone();
            self.unlink(key, &dependencies);
        }
        self.arrive(key, description.clone());
        // The scheduler waits for the result of a computation that is no longer needed.
        if let Some(computation) = computation {
            let Computation {
                run_id, startstops, ..
            } = *computation;
            self.send_finished(key.clone(), run_id, description, startstops, None);
        }
    }

    /// Sets the holders of a key.
    pub(super) fn locate(&mut self, key: &Key, holders: &[String]) {
        let Some(task) = self.tasks.get(key) else {
            return;
        };
        let stage = task.stage;
        if !matches!(
            stage,
            TaskStage::Fetch | TaskStage::Flight | TaskStage::Missing
        ) {
            return;
        }
        self.leave_queues(key);
        let mut known = Vec::with_capacity(holders.len());
        for holder in holders {
            // The scheduler knows it again.
            self.gone.remove(holder.as_str());
            if **holder != *self.address {
                known.push(self.peers.address(holder));
            }
        }
        if known.len() > MAX_HOLDERS {
            // Each worker starts with different holders.
            let mut hasher = DefaultHasher::new();
            (&self.address, key).hash(&mut hasher);
            let len = known.len() as u64;
            let first = hasher.finish() % len;
            known.rotate_left(usize::try_from(first).expect("an index"));
            known.sort_by_key(|peer| self.peers.get(peer).is_some_and(|state| state.is_busy));
        }
        if let Some(task) = self.tasks.get_mut(key) {
            task.reserve = known.split_off(known.len().min(MAX_HOLDERS));
            task.holders = known;
        }
        if stage != TaskStage::Flight {
            self.fetch(key);
        }
    }

    /// Queues a key at its holders, or as missing if there are none.
    pub(super) fn fetch(&mut self, key: &Key) {
        let Some(task) = self.tasks.get_mut(key) else {
            return;
        };
        let free_count = MAX_HOLDERS.saturating_sub(task.holders.len());
        let rest = task.reserve.len().saturating_sub(free_count);
        task.holders.extend(task.reserve.drain(rest..));
        let entry = (task.priority, key.clone());
        if task.holders.is_empty() {
            self.missing.insert(key.clone());
            self.set_phase(key, TaskStage::Missing);
            return;
        }
        for peer in &task.holders {
            self.peers.entry(peer).keys.insert(entry.clone());
        }
        self.set_phase(key, TaskStage::Fetch);
    }

    pub(super) fn start_transfers(&mut self) {
        while self.requests.len() < self.limits.transfer_count || self.flight_len < SMALL_LEN {
            let Some(peer) = self.peers.next() else {
                return;
            };
            let Some(state) = self.peers.get(&peer) else {
                return;
            };
            let mut keys = Vec::new();
            let mut len = 0_u64;
            for (_, key) in &state.keys {
                let nbytes = self
                    .tasks
                    .get(key)
                    .map_or(0, |task| task.description.nbytes);
                let with_this = len.saturating_add(nbytes);
                let total = self.flight_len.saturating_add(with_this);
                let is_single = keys.is_empty();
                let is_only = is_single && self.requests.is_empty();
                if (with_this > self.limits.transfer_len && !is_single)
                    || (total > self.limits.transfer_total_len && !is_only)
                {
                    break;
                }
                len = with_this;
                keys.push(key.clone());
            }
            if keys.is_empty() {
                return;
            }
            let state = self.peers.entry(&peer);
            state.request_count += 1;
            state.flight_len = state.flight_len.saturating_add(len);
            for key in &keys {
                self.leave_queues(key);
                self.set_phase(key, TaskStage::Flight);
                let peer = Arc::clone(&peer);
                self.record(key.clone(), TaskChange::Requested { peer });
            }
            self.flight_len = self.flight_len.saturating_add(len);
            let number = self.next_request;
            self.next_request += 1;
            let request = Request {
                peer: Arc::clone(&peer),
                keys: keys.clone(),
                len,
            };
            self.requests.insert(number, request);
            self.actions.push(Action::Fetch {
                request: number,
                peer,
                keys,
            });
        }
    }

    pub(super) fn fetched(&mut self, fetched: Fetched) {
        let Fetched {
            request,
            answer,
            start,
            stop,
        } = fetched;
        let Some(Request { peer, keys, len }) = self.requests.remove(&request) else {
            return;
        };
        self.drop_gone_holders(&keys);
        if self.requests.is_empty() {
            self.gone.clear();
        }
        self.flight_len = self.flight_len.saturating_sub(len);
        if let Some(state) = self.peers.get_mut(&peer) {
            state.request_count = state.request_count.saturating_sub(1);
            state.flight_len = state.flight_len.saturating_sub(len);
            if state.request_count == 0 {
                state.refuses_second = false;
            }
        }
        let mut data = HashMap::new();
        let mut reason = "it does not have the data";
        match answer {
            Answer::Data(received) => data.extend(received),
            Answer::Busy => {
                let state = self.peers.entry(&peer);
                if state.request_count == 0 {
                    state.is_busy = true;
                    self.actions.push(Action::Wake {
                        after: self.limits.busy_pause,
                        event: Box::new(WorkerInput::PeerAvailable(Arc::clone(&peer))),
                    });
                } else {
                    // The peer is asked again when the other request ends.
                    state.refuses_second = true;
                }
                for key in &keys {
                    self.not_fetched(key, &peer, "it is busy");
                }
                self.ask_for_other_holders(keys);
                return;
            }
            Answer::Gone => {
                reason = "it cannot be reached";
                self.forget_peer(&peer);
            }
        }
        let mut arrived = Vec::new();
        // As in Dask, the transfer is attributed to one task, with all keys.
        let mut transfer = Some(startstop(
            "transfer",
            start.as_secs_f64(),
            stop.as_secs_f64(),
            Some(&peer),
        ));
        for key in keys {
            let Some(task) = self.tasks.get_mut(&key) else {
                self.actions.push(Action::Forget(key));
                continue;
            };
            // The data may have been stored in another way, and been freed since.
            if task.stage != TaskStage::Flight {
                if task.stage != TaskStage::Memory {
                    self.actions.push(Action::Forget(key));
                }
                continue;
            }
            let Some(description) = data.remove(&key) else {
                task.holders.retain(|holder| *holder != peer);
                self.not_fetched(&key, &peer, reason);
                continue;
            };
            let computation = task.computation.take();
            if computation.is_none() && !task.is_wanted() {
                self.actions.push(Action::Forget(key.clone()));
                self.remove(&key);
                continue;
            }
            let cause = task.dependents.first().cloned();
            self.arrive(&key, description.clone());
            match computation {
                Some(computation) => {
                    let startstops = transfer.take().into_iter().collect();
                    self.send_finished(key, computation.run_id, description, startstops, None);
                }
                None => {
                    let cause = cause.and_then(|cause| self.tasks.get_mut(&cause));
                    if let Some(cause) = cause.and_then(|task| task.computation.as_mut()) {
                        cause.startstops.extend(transfer.take());
                    }
                    arrived.push(key);
                }
            }
        }
        if !arrived.is_empty() {
            self.send_add_keys(arrived);
        }
        self.peers.remove_if_idle(&peer);
    }

    /// Handles requested data that did not arrive.
    pub(super) fn not_fetched(&mut self, key: &Key, peer: &Peer, reason: &'static str) {
        let stage = self.tasks.get(key).map(|task| task.stage);
        if stage != Some(TaskStage::Flight) {
            return;
        }
        let peer = Arc::clone(peer);
        self.record(key.clone(), TaskChange::NotSent { peer, reason });
        let Some(task) = self.tasks.get_mut(key) else {
            return;
        };
        let computation = task.computation.take();
        let message = computation.and_then(|computation| computation.message);
        match message {
            Some(message) => self.begin(*message),
            None if task.is_wanted() => self.fetch(key),
            None => self.remove(key),
        }
    }

    pub(super) fn forget_peer(&mut self, peer: &str) {
        let affected: Vec<Key> = match self.peers.get_mut(peer) {
            Some(state) => take(&mut state.keys)
                .into_iter()
                .map(|(_, key)| key)
                .collect(),
            None => Vec::new(),
        };
        for key in affected {
            self.leave_queues(&key);
            if let Some(task) = self.tasks.get_mut(&key) {
                task.holders.retain(|holder| **holder != *peer);
            }
            self.fetch(&key);
        }
        // The keys of pending requests may list the peer as a holder. They are not visited for
        // each peer, since many may leave at once.
        if !self.requests.is_empty() {
            self.gone.insert(peer.into());
        }
        if self.gone.len() as u64 > self.counts[TaskStage::Flight as usize] {
            let requests = take(&mut self.requests);
            for request in requests.values() {
                self.drop_gone_holders(&request.keys);
            }
            self.requests = requests;
            self.gone.clear();
        }
        self.peers.remove_if_idle(peer);
    }

    /// Removes peers that have left from the holders of keys in flight.
    fn drop_gone_holders(&mut self, keys: &[Key]) {
        if self.gone.is_empty() {
            return;
        }
        for key in keys {
            super::step();
            if let Some(task) = self.tasks.get_mut(key) {
                task.holders.retain(|holder| !self.gone.contains(holder));
                task.reserve.retain(|holder| !self.gone.contains(holder));
            }
        }
    }

    /// Asks the scheduler for further holders of those keys whose holders are all busy.
    fn ask_for_other_holders(&mut self, mut keys: Vec<Key>) {
        let is_busy = |peer: &Peer| self.peers.get(peer).is_some_and(|state| state.is_busy);
        keys.retain(|key| {
            let task = self.tasks.get(key);
            let task = task.filter(|task| task.stage == TaskStage::Fetch);
            task.is_some_and(|task| task.holders.iter().all(is_busy))
        });
        if !keys.is_empty() {
            self.send(RequestRefreshWhoHas {
                keys: Keys(keys),
                stimulus_id: stimulus("gather-dep-busy", self.now),
                ..RequestRefreshWhoHas::default()
            });
        }
    }

    /// Asks the scheduler for missing data, at intervals.
    pub(super) fn search(&mut self) {
        let is_needed = !self.missing.is_empty() && self.status != WorkerStatus::Closing;
        if !is_needed || self.is_searching {
            return;
        }
        self.is_searching = true;
        let keys = self.missing.iter().cloned().collect();
        self.send(RequestRefreshWhoHas {
            keys: Keys(keys),
            stimulus_id: stimulus("find-missing", self.now),
            ..RequestRefreshWhoHas::default()
        });
        self.actions.push(Action::Wake {
            after: self.limits.search_interval,
            event: Box::new(WorkerInput::Search),
        });
    }

    pub(super) fn send_add_keys(&mut self, keys: impl Into<Vec<Key>>) {
        self.send(AddKeys {
            keys: Keys(keys.into()),
            stimulus_id: stimulus("gather-dep-success", self.now),
            ..AddKeys::default()
        });
    }
}

//! Workers, and their reports.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use daskwire_comm::Address;
use daskwire_messages::protocol::{
    FromWorker, Keys, LogEvent, RefreshWhoHas, RegisterWorker, RemoveReplicas, RemoveWorker,
    TaskErred, TaskFinished, WorkerStatus,
};
use daskwire_messages::{Key, Value};
use daskwire_rpc::story::Stimulus;

use super::classes::Places;
use super::data::REPLACED;
use super::durations::Work;
use super::groups::GroupId;
use super::memory::Unmanaged;
use super::model::{Kind, Queue, TaskId, TaskStage, Worker, WorkerInfo};
use super::returns::Returning;
use super::send::free_keys;
use super::slices::{Job, LeftWorker};
use super::submission::{Failure, Resources, worker_name};
use super::unknown::UnknownOps;
use super::versions::{self, Packages};
use super::{Action, LeaveReason, LeftTasks, Notice, Selection, State, WorkerId, WorkerRefusal};
use crate::steps::step;

/// The run of a task that a worker has not run, in its reports.
const NO_RUN: i64 = -1;

const MAX_THREADS: u32 = 1 << 16;

/// Longer run times are not those of tasks.
const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 3600);

impl State {
    /// Registers a worker.
    pub(super) fn add_worker(
        &mut self,
        id: WorkerId,
        worker: RegisterWorker,
    ) -> Result<(), WorkerRefusal> {
        self.set_stimulus("add-worker");
        if self.workers.contains_key(&id) {
            return Err(WorkerRefusal::IdTaken);
        }
        versions::check(&worker.versions, "worker").map_err(WorkerRefusal::Release)?;
        let (is_returning, former) = self.returning(&worker);
        let address = worker.address;
        if self.by_address.contains_key(&address) && former.is_none() {
            return Err(WorkerRefusal::AddressTaken { address });
        }
        let name = match &worker.name {
            Value::None => address.clone(),
            name => match worker_name(name) {
                Some(name) => name,
                None => return Err(WorkerRefusal::InvalidName { name: worker.name }),
            },
        };
        let namesake = self.worker_names.get(&name).copied();
        if namesake.is_some() && namesake != former {
            return Err(WorkerRefusal::NameTaken { name });
        }
        let former = former.and_then(|former| self.replace_worker(former));
        // The first action is the reply.
        let replacing = core::mem::take(&mut self.actions);
        let kind = Kind::read(&worker.extra_information);
        self.has_missed_native &= !kind.native;
        if kind.python && !self.has_seen_python {
            // Before any index has the worker.
            self.has_seen_python = true;
            self.determine_all_workers();
        }
        self.worker_names.insert(name.clone(), id);
        let packages = Packages::read(&worker.versions);
        let warning = self.packages.warning(&packages, "This Worker");
        self.packages.add(&packages);
        let host = address.parse::<Address>();
        let is_running = worker.status == WorkerStatus::Running && !is_returning;
        // Those of Dask end with their connection.
        let can_return = worker.extra_information.get("daskwire").is_some();
        self.by_address.insert(address.clone(), id);
        let host = host.map_or_else(|_| String::new(), |address| address.host().to_owned());
        self.by_host.entry(host.clone()).or_default().insert(id);
        self.by_silence.insert((self.now, id));
        let mut joined = Worker {
            host,
            address: address.as_str().into(),
            name: name.clone(),
            info: WorkerInfo {
                name: worker.name,
                status: worker.status,
                server_id: worker.server_id,
                memory_limit: worker.memory_limit.0,
                local_directory: worker.local_directory,
                services: worker.services,
                nanny: worker.nanny.0,
                metrics: shown(worker.metrics),
            },
            packages,
            kind,
            is_running,
            is_leaving: false,
            returning: is_returning.then(|| Box::new(Returning::new(former))),
            claims: BTreeSet::new(),
            status_before: None,
            retire_rounds: 0,
            thread_count: u32::try_from(worker.nthreads)
                .unwrap_or(MAX_THREADS)
                .clamp(1, MAX_THREADS),
            saturation: self.policy.saturation,
            resources: Resources::new(worker.resources),
            used: HashMap::new(),
            has: BTreeSet::new(),
            nbytes: 0,
            actors: BTreeSet::new(),
            processing: BTreeSet::new(),
            long_running: BTreeSet::new(),
            asked: BTreeSet::new(),
            queue: BTreeMap::new(),
            heads: BTreeSet::new(),
            queued_count: 0,
            work: Work::default(),
            pace: 0.0,
            dropping: BTreeMap::new(),
            deletions: BTreeSet::new(),
            deletions_since: 0,
            unwritten_len: 0,
            last_seen: self.now,
            unknown_ops: UnknownOps::default(),
            silent_since: self.now,
            classes: Vec::new(),
            places: Places::default(),
            is_start_stale: false,
            unmanaged: Unmanaged::default(),
        };
        let Worker {
            unmanaged, info, ..
        } = &mut joined;
        unmanaged.update(self.now, &info.metrics, 0);
        self.thread_count += u64::from(joined.thread_count);
        if can_return {
            self.journal_worker(id, &address);
        }
        self.workers.insert(id, joined);
        self.totals.workers_added += 1;
        // The first action, before the events of topics.
        self.actions.push(Action::AcceptWorker {
            id,
            heartbeat_interval: self.heartbeat_interval(),
            warning,
        });
        self.actions.extend(replacing);
        self.log(&[&address], "add-worker", []);
        self.log(
            &["all"],
            "add-worker",
            [("worker", Value::from(address.as_str()))],
        );
        self.actions.push(Action::Notice(Notice::WorkerJoined {
            worker: address,
            name,
        }));
        match is_running {
            true => self.start_running(id),
            false => drop(self.not_running.insert(id)),
        }
        // A first worker that runs Python may have paused.
        self.empty_pool();
        self.settle();
        Ok(())
    }

    /// Removes a worker after its stream has ended. Its tasks are assigned to other
    /// workers; results that only it had are recomputed if they are needed.
    pub(super) fn remove_worker(&mut self, id: WorkerId) {
        self.set_stimulus("remove-worker");
        let is_leaving = self
            .workers
            .get(&id)
            .is_some_and(|worker| worker.is_leaving);
        self.drop_worker(id, is_leaving, LeaveReason::StreamEnded);
    }

    /// Handles the report that all messages to a worker have been written, as requested
    /// by [`Action::NotifyDrained`].
    pub(super) fn drained(&mut self, id: WorkerId) {
        self.set_stimulus("drained");
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.unwritten_len = 0;
            self.todo.has_room.push(id);
            self.settle();
        }
    }

    /// Handles a worker's heartbeat.
    pub(super) fn heartbeat(&mut self, address: &str, metrics: Value) {
        let now = self.now;
        if let Some(worker) = self.worker_at(address) {
            worker.last_seen = now;
            worker.unmanaged.update(now, &metrics, worker.nbytes);
            worker.info.metrics = shown(metrics);
        }
    }

    /// The interval of the workers' heartbeats in seconds, which increases with the
    /// number of workers.
    pub fn heartbeat_interval(&self) -> f64 {
        heartbeat_interval(self.workers.len())
    }

    /// Handles a message on a worker's stream.
    pub(super) fn worker_message(&mut self, id: WorkerId, message: FromWorker) {
        let Some(worker) = self.workers.get_mut(&id) else {
            return;
        };
        worker.last_seen = self.now;
        let stimulus = match &message {
            FromWorker::TaskFinished(message) => Some(&message.stimulus_id),
            FromWorker::TaskErred(message) => Some(&message.stimulus_id),
            FromWorker::AddKeys(message) => Some(&message.stimulus_id),
            FromWorker::ReleaseWorkerData(message) => Some(&message.stimulus_id),
            FromWorker::WorkerStatusChange(message) => Some(&message.stimulus_id),
            FromWorker::Reschedule(message) => Some(&message.stimulus_id),
            FromWorker::Returned(message) => Some(&message.stimulus_id),
            FromWorker::LongRunning(message) => Some(&message.stimulus_id),
            FromWorker::StealResponse(message) => Some(&message.stimulus_id),
            _ => None,
        };
        self.stimulus = match stimulus {
            Some(stimulus) => Stimulus::of_message(stimulus),
            None => Stimulus::local("worker", self.now.as_secs_f64()),
        };
        match message {
            FromWorker::TaskFinished(message) => self.task_finished(id, message),
            FromWorker::TaskErred(message) => {
                let ended = self.ended(id, &message.key, message.run_id);
                let erred = match ended {
                    Some(task) => vec![task],
                    None => self.without_input(id, &message),
                };
                for task in erred {
                    if self.tasks[task].retries == 0 && ended.is_some() {
                        self.record_erred(id, &message);
                    }
                    let failure = Arc::new(Failure {
                        exception: match &message.exception {
                            // Python clients cannot handle a missing exception.
                            Value::None => Value::from("the worker reported no exception"),
                            exception => exception.clone(),
                        },
                        traceback: message.traceback.clone(),
                        cause: Some(self.tasks[task].key.clone()),
                    });
                    self.task_erred(id, task, &failure);
                }
            }
            FromWorker::AddKeys(message) => self.add_keys(id, message.keys),
            // The data that has replaced it, by another connection, may have been counted since.
            FromWorker::ReleaseWorkerData(message) if message.stimulus_id == REPLACED => {}
            FromWorker::ReleaseWorkerData(message) => {
                self.answered_drop(id, &message.key);
                if let Some(task) = self.by_key.get(&message.key).copied() {
                    self.remove_replica(id, task);
                }
            }
            FromWorker::RequestRefreshWhoHas(message) => {
                let keys = message.keys.into_iter();
                let (known, unknown): (Vec<Key>, Vec<Key>) =
                    keys.partition(|key| self.by_key.contains_key(key));
                if !known.is_empty() {
                    let message = RefreshWhoHas {
                        who_has: self.who_has(Selection::Keys(&known)),
                        stimulus_id: message.stimulus_id,
                        ..RefreshWhoHas::default()
                    };
                    self.send_worker(id, message);
                }
                if !unknown.is_empty() {
                    // A worker asks for data without holders again and again.
                    self.send_worker(id, free_keys(Keys(unknown), "unknown-keys"));
                }
            }
            FromWorker::WorkerStatusChange(message) => self.status_changed(id, message.status),
            FromWorker::Reschedule(message) => self.reschedule(id, &message),
            FromWorker::Returned(message) => self.returned(id, message),
            FromWorker::LongRunning(message) => {
                if !self.secede_claimed(id, &message.key, message.run_id)
                    && let Some(task) = self.processed(id, &message.key, message.run_id)
                    && let Some(worker) = self.workers.get_mut(&id)
                    && worker.long_running.insert(task)
                {
                    worker.work.remove(self.tasks[task].expected);
                    self.todo.has_room.push(id);
                }
            }
            FromWorker::StealResponse(message) => self.steal_response(id, &message),
            FromWorker::KeepAlive(_) | FromWorker::CloseStream(_) => {}
            FromWorker::LogEvent(message) => {
                let peer = worker.address.to_string();
                let LogEvent { topic, msg, .. } = message;
                self.publish_of_worker(&peer, &topic, msg.clone());
                self.notice(Notice::Event {
                    peer,
                    topic,
                    message: msg,
                });
            }
            FromWorker::Unknown(unknown) if !worker.unknown_ops.is_new(&unknown.op) => {}
            FromWorker::Unknown(unknown) => {
                let notice = Notice::UnknownOp {
                    peer: worker.address.to_string(),
                    op: unknown.op,
                };
                self.notice(notice);
            }
        }
        self.settle();
    }

    pub(super) fn worker_at(&mut self, address: &str) -> Option<&mut Worker> {
        let id = self.by_address.get(address)?;
        self.workers.get_mut(id)
    }

    pub(super) fn status_changed(&mut self, id: WorkerId, status: WorkerStatus) {
        let Some(worker) = self.workers.get_mut(&id) else {
            return;
        };
        let was_running = worker.is_running;
        worker.is_running = status == WorkerStatus::Running && worker.returning.is_none();
        match status {
            WorkerStatus::ClosingGracefully => worker.is_leaving = true,
            WorkerStatus::Running => worker.is_leaving = false,
            // A worker that ends unasked may have been ended by a task.
            _ => {}
        }
        let before = core::mem::replace(&mut worker.info.status, status);
        let is_running = worker.is_running;
        if worker.info.status != before {
            let (address, status) = (worker.address.to_string(), worker.info.status.as_str());
            let fields = [
                ("prev-status", Value::from(before.as_str())),
                ("status", Value::from(status)),
                ("stimulus_id", Value::from(self.stimulus.to_string())),
            ];
            self.log(&[&address], "worker-status-change", fields);
        }
        if is_running && !was_running {
            self.not_running.remove(&id);
            self.start_running(id);
        } else if was_running && !is_running {
            self.not_running.insert(id);
            self.stop_running(id);
            self.requeue(id);
            self.todo.has_room.push(id);
            self.empty_pool();
        }
    }

    /// Has the tasks in the queue of a worker assigned anew.
    pub(super) fn requeue(&mut self, id: WorkerId) {
        let queue = self.take_queue(id);
        self.start(Job::Unqueue(id, queue));
    }

    /// Takes all tasks out of the queue of a worker.
    fn take_queue(&mut self, id: WorkerId) -> BTreeMap<GroupId, Queue> {
        let Some(worker) = self.workers.get_mut(&id) else {
            return BTreeMap::new();
        };
        worker.heads.clear();
        self.queued_count -= core::mem::take(&mut worker.queued_count);
        let queue = core::mem::take(&mut worker.queue);
        let shares = queue.iter();
        let shares = shares.map(|(group, queue)| (*group, worker.share_of(queue.len())));
        for (group, share) in shares.collect::<Vec<_>>() {
            self.groups[group].loaded.remove(&(share, id));
            self.update_movable(group);
        }
        queue
    }

    pub(super) fn drop_worker(&mut self, id: WorkerId, is_expected: bool, reason: LeaveReason) {
        if let Some(left) = self.take_worker(id, is_expected, reason) {
            self.start(Job::WorkerLeft(left));
            self.settle();
        }
    }

    /// Removes a worker that registers anew. What it had is not lost yet.
    fn replace_worker(&mut self, id: WorkerId) -> Option<Box<LeftWorker>> {
        self.take_worker(id, true, LeaveReason::StreamEnded)
    }

    fn take_worker(
        &mut self,
        id: WorkerId,
        is_expected: bool,
        reason: LeaveReason,
    ) -> Option<Box<LeftWorker>> {
        if !self.workers.contains_key(&id) {
            return None;
        }
        self.stop_running(id);
        let queue = self.take_queue(id);
        let mut worker = self.workers.remove(&id)?;
        self.journal_worker_left(id);
        worker.queue = queue;
        if let Some(former) = worker.returning.take().and_then(|it| it.former) {
            self.start(Job::WorkerLeft(former));
        }
        self.totals.workers_removed += 1;
        self.by_address.remove(&*worker.address);
        self.worker_names.remove(&worker.name);
        if let Some(on_host) = self.by_host.get_mut(&worker.host) {
            on_host.remove(&id);
            if on_host.is_empty() {
                self.by_host.remove(&worker.host);
            }
        }
        self.not_running.remove(&id);
        self.with_deletions.remove(&id);
        self.by_silence.remove(&(worker.silent_since, id));
        self.processing_count -= worker.processing.len();
        self.thread_count -= u64::from(worker.thread_count);
        self.packages.remove(&worker.packages);
        self.todo.has_room.retain(|other| *other != id);
        self.stale_starts.retain(|other| *other != id);
        self.empty_pool();
        for other in self.workers.keys().copied().collect::<Vec<_>>() {
            let message = RemoveWorker {
                worker: worker.address.to_string(),
                stimulus_id: Some("remove-worker".to_owned()),
                ..RemoveWorker::default()
            };
            self.send_worker(other, message);
        }
        self.actions.push(Action::EndWorker(id));
        let mut left = Box::new(LeftWorker {
            id,
            worker,
            is_expected,
            reason,
            tasks: LeftTasks::default(),
        });
        self.restart_shuffles(&mut left);
        Some(left)
    }

    /// Returns the task of a key, if the worker is processing it in this run.
    pub(super) fn processed(&mut self, worker: WorkerId, key: &Key, run_id: i64) -> Option<TaskId> {
        let found = self.by_key.get(key).copied();
        if let Some(id) = found {
            let task = &self.tasks[id];
            match task.stage {
                TaskStage::Processing(on) if on == worker && task.run_id == run_id => {
                    return Some(id);
                }
                // A report of an earlier run
                TaskStage::Processing(on) if on == worker => return None,
                TaskStage::Memory if task.who_has.binary_search(&worker).is_ok() => return None,
                _ => {}
            }
            if self.has_claimed(id, worker) {
                self.drop_claim(id, Some(worker));
            }
        }
        self.send_worker(worker, free_keys(Keys(vec![key.clone()]), "not-processing"));
        None
    }

    /// Like [`processed`](Self::processed), for the report of an end. After the report of an
    /// earlier run, the task runs again.
    fn ended(&mut self, worker: WorkerId, key: &Key, run_id: i64) -> Option<TaskId> {
        if let Some(id) = self.claimed(worker, key, run_id) {
            return Some(id);
        }
        let processed = self.processed(worker, key, run_id);
        if processed.is_none()
            && let Some(id) = self.by_key.get(key).copied()
            && matches!(self.tasks[id].stage, TaskStage::Processing(on) if on == worker)
        {
            // A worker in Python that is asked to forget a task continues to execute it. If
            // the task is sent again meanwhile, the worker reports only the earlier run, which
            // may have been that of another task with this key.
            self.unassign(id);
            self.send_free(worker, id);
            self.make_ready(id);
        }
        processed
    }

    /// Returns the tasks that wait on a worker for data that it cannot read, for example because
    /// it does not have the transport of the holders, or cannot deserialize the data. A worker of
    /// Dask then reports an error of the data, as if it had run the task, and waits for ever.
    fn without_input(&self, worker: WorkerId, message: &TaskErred) -> Vec<TaskId> {
        let data = self.by_key.get(&message.key);
        let data = data.map(|id| &self.tasks[*id]);
        let (Some(data), Some(worker)) = (data, self.workers.get(&worker)) else {
            return Vec::new();
        };
        if message.run_id != NO_RUN || !matches!(data.stage, TaskStage::Memory) {
            return Vec::new();
        }
        let (mut few, many) = (&worker.processing, &data.dependents);
        let is_waiting = |id: &&TaskId| {
            step();
            worker.processing.contains(id) && data.dependents.contains(id)
        };
        if many.len() < few.len() {
            few = many;
        }
        few.iter().filter(is_waiting).copied().collect()
    }

    pub(super) fn task_finished(&mut self, id: WorkerId, message: TaskFinished) {
        let Some(task) = self.ended(id, &message.key, message.run_id) else {
            return;
        };
        self.record_finished(id, &message);
        if let Some(worker) = self.workers.get_mut(&id) {
            let seconds = |action: &str| -> f64 {
                let parts = message.startstops.iter();
                let parts = parts.filter(|part| part.action == action);
                parts.map(|part| part.stop - part.start).sum()
            };
            let duration = |seconds| {
                let duration = Duration::try_from_secs_f64(seconds).ok();
                duration.filter(|duration| *duration < MAX_DURATION)
            };
            let took = seconds("compute");
            let group = self.tasks[task].key_group;
            if let Some(took) = duration(took) {
                self.key_groups.add_duration(group, took);
            }
            if let Some(took) = duration(seconds("transfer")) {
                self.key_groups.add_transfer(group, took);
            }
            if took.is_finite() && took > 0.0 {
                worker.pace = match worker.pace {
                    pace if pace > 0.0 => f64::midpoint(pace, took),
                    _ => took,
                };
            }
        }
        let state = &mut self.tasks[task];
        state.nbytes = message.nbytes;
        state.class = message
            .class
            .0
            .map(|class| self.result_classes.shared(class));
        self.in_memory(task, id);
    }

    pub(super) fn task_erred(&mut self, id: WorkerId, task: TaskId, failure: &Arc<Failure>) {
        // The worker keeps the failed task until `free-keys` for it.
        self.delete_later(id, task);
        if self.has_claimed(task, id) {
            self.claimed_erred(id, task, failure);
            return;
        }
        let state = &mut self.tasks[task];
        if let Some(left) = state.retries.checked_sub(1) {
            state.retries = left;
            self.retried.insert(task, id);
            self.unassign(task);
            self.make_ready(task);
        } else {
            self.fail(task, failure);
        }
    }

    /// Records that a worker has deleted a copy of a result, or has it.
    fn answered_drop(&mut self, id: WorkerId, key: &Key) {
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.dropping.remove(key);
        }
    }

    pub(super) fn add_keys(&mut self, id: WorkerId, keys: Keys) {
        let mut unwanted = Vec::new();
        for key in keys {
            self.answered_drop(id, &key);
            match self.by_key.get(&key).copied() {
                Some(task) if matches!(self.tasks[task].stage, TaskStage::Memory) => {
                    self.in_memory(task, id);
                }
                _ => unwanted.push(key),
            }
        }
        if !unwanted.is_empty() {
            let message = RemoveReplicas {
                keys: Keys(unwanted),
                stimulus_id: "redundant-replicas".to_owned(),
                ..RemoveReplicas::default()
            };
            self.send_worker(id, message);
        }
    }
}

/// The interval of the heartbeats of as many peers, in seconds.
pub(super) fn heartbeat_interval(peer_count: usize) -> f64 {
    match u32::try_from(peer_count).unwrap_or(u32::MAX) {
        0..=10 => 0.5,
        11..50 => 1.0,
        50..200 => 2.0,
        count => f64::from(count) / 200.0 + 1.0,
    }
}

/// The metrics of a worker without the times since the last heartbeat. Their keys are tuples, and
/// clients write the description of a cluster as JSON (`Client.write_scheduler_file`).
fn shown(metrics: Value) -> Value {
    match metrics {
        Value::Dict(fields) => {
            let mut fields = fields.into_vec();
            fields.retain(|(name, _)| name.as_str() != Some("digests_total_since_heartbeat"));
            Value::Dict(fields.into())
        }
        other => other,
    }
}

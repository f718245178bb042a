//! P2P shuffles: data that workers exchange among themselves.
//!
//! The tasks of a shuffle are a *barrier task*, whose key has the id of the shuffle, *transfer
//! tasks*, which the barrier depends on, and *output tasks*, which depend on it. The first transfer
//! task asks for a *run*, which assigns the outputs to workers. Only Python can create one, see
//! [`Action::CreateRun`]. Workers that take part send each other the data; an output task that runs
//! on another worker than that of its output is restricted to that one, and runs again.
//!
//! A run ends when its barrier is released or fails. When a worker leaves that takes part, the run
//! ends as well, and all tasks of the shuffle run again. The rules are those of the plugin of
//! Dask's scheduler (`distributed.shuffle._scheduler_plugin`).

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use daskwire_messages::exception::exception;
use daskwire_messages::protocol::{
    Request, ShuffleGet, ShuffleGetOrCreate, ShuffleRestrictTask, Unknown,
};
use daskwire_messages::{Key, Serialized, Value};

use super::model::{TaskId, TaskStage};
use super::slices::LeftWorker;
use super::submission::Failure;
use super::{Action, Notice, RequestId, State, WorkerId};
use crate::steps::step;

/// A run of a shuffle that is to be created, see [`Action::CreateRun`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NewRun {
    /// The number of the run, higher than all before.
    pub run_id: u64,
    /// The `run_spec` of the barrier task, which describes the shuffle.
    pub barrier: Serialized,
    /// The addresses of the workers that the outputs are assigned to.
    pub workers: Vec<String>,
    /// The pickles of the current runs of other shuffles whose outputs the same tasks use. Equal
    /// outputs must be assigned to the same workers.
    pub others: Vec<Bytes>,
}

/// A run that was created, see [`SchedulerInput::RunCreated`](super::SchedulerInput::RunCreated).
#[derive(Clone, Debug)]
pub struct CreatedRun {
    /// The pickle of the run, for workers.
    pub run_spec: Bytes,
    /// The addresses of the workers that outputs are assigned to.
    pub workers: Vec<String>,
}

/// The reason why a run was not created.
#[derive(Clone, Debug)]
pub struct RunFailure {
    /// The exception for the tasks that have asked for the run.
    pub exception: Serialized,
    /// The exception as a string.
    pub text: String,
}

/// The shuffles that have runs, or wait for one. A shuffle is given by its id.
#[derive(Debug, Default)]
pub(super) struct Shuffles {
    runs: HashMap<Arc<str>, Run>,
    /// The shuffles with runs that each worker takes part in.
    by_worker: BTreeMap<WorkerId, BTreeSet<Arc<str>>>,
    /// Requests for runs that do not exist yet.
    waiting: HashMap<Arc<str>, BTreeMap<RequestId, Waiting>>,
    requests: BTreeMap<RequestId, Arc<str>>,
    /// The shuffles whose runs are to be created, in this order: the next one depends on those
    /// that exist.
    to_create: VecDeque<Arc<str>>,
    creating: Option<Creating>,
    /// The workers that output tasks named before they were restricted.
    restricted: HashMap<TaskId, Vec<String>>,
    last_run: u64,
}

#[derive(Debug)]
struct Run {
    id: u64,
    /// The pickle for workers.
    run_spec: Bytes,
    /// The workers that take part.
    workers: BTreeSet<WorkerId>,
    /// Whether a failed task was reported.
    has_failed: bool,
}

/// A request of a transfer task.
#[derive(Debug)]
struct Waiting {
    key: Key,
    worker: WorkerId,
}

/// The run that is being created.
#[derive(Debug)]
struct Creating {
    run_id: u64,
    shuffle: Arc<str>,
    workers: Vec<WorkerId>,
}

impl Shuffles {
    /// Whether the worker takes part in a run.
    pub(super) fn has_worker(&self, worker: WorkerId) -> bool {
        self.by_worker.contains_key(&worker)
    }

    fn take_part(&mut self, shuffle: &Arc<str>, worker: WorkerId) {
        if let Some(run) = self.runs.get_mut(shuffle)
            && run.workers.insert(worker)
        {
            let shuffles = self.by_worker.entry(worker).or_default();
            shuffles.insert(Arc::clone(shuffle));
        }
    }

    fn remove_run(&mut self, shuffle: &str) -> Option<(Arc<str>, Run)> {
        let (shuffle, run) = self.runs.remove_entry(shuffle)?;
        for worker in &run.workers {
            if let Some(shuffles) = self.by_worker.get_mut(worker) {
                shuffles.remove(&shuffle);
                if shuffles.is_empty() {
                    self.by_worker.remove(worker);
                }
            }
        }
        Some((shuffle, run))
    }

    /// Forgets a task that is not a task any more.
    pub(super) fn forget_task(&mut self, task: TaskId) {
        self.restricted.remove(&task);
    }

    /// Handles that the client of a request has gone. Returns whether the request was waiting for a
    /// run.
    pub(super) fn drop_request(&mut self, id: RequestId) -> bool {
        let Some(shuffle) = self.requests.remove(&id) else {
            return false;
        };
        if let Some(waiting) = self.waiting.get_mut(&shuffle) {
            waiting.remove(&id);
        }
        true
    }
}

impl State {
    /// Handles a request about the run of a shuffle; others are ignored.
    pub(super) fn shuffle_request(&mut self, id: RequestId, request: Request) {
        self.set_stimulus("shuffle");
        let reply = match request {
            Request::ShuffleGet(request) => self.run(&request),
            Request::ShuffleGetOrCreate(request) => match self.run_or_new(id, request) {
                Ok(None) => return,
                Ok(Some(run)) => Ok(run),
                Err(error) => Err(error),
            },
            Request::ShuffleRestrictTask(request) => self.restrict_output(request),
            _ => return,
        };
        let reply = reply.unwrap_or_else(RunError::into_reply);
        self.actions.push(Action::Reply(id, Ok(reply)));
        self.settle();
    }

    /// Returns the current run of a shuffle for a worker, which takes part in it from now on.
    fn run(&mut self, request: &ShuffleGet) -> Result<Value, RunError> {
        let run = self.join_run(&request.id, &request.worker)?;
        run.ok_or_else(|| {
            RunError::Inconsistent(format!("No active shuffle with id='{}' found", request.id))
        })
    }

    fn join_run(&mut self, shuffle: &str, address: &str) -> Result<Option<Value>, RunError> {
        let worker = self.worker_of_run(address)?;
        let shuffles = &mut self.shuffles;
        let Some((shuffle, run)) = shuffles.runs.get_key_value(shuffle) else {
            return Ok(None);
        };
        let (shuffle, reply) = (Arc::clone(shuffle), run.reply());
        shuffles.take_part(&shuffle, worker);
        Ok(Some(reply))
    }

    fn worker_of_run(&self, address: &str) -> Result<WorkerId, RunError> {
        let worker = self.by_address.get(address).copied();
        worker.ok_or_else(|| {
            RunError::Inconsistent(format!("Scheduler is unaware of this worker '{address}'"))
        })
    }

    /// Returns the current run of a shuffle, or `None` if the reply is sent once one is created.
    // ROLES SCHEDULER-13
    fn run_or_new(
        &mut self,
        id: RequestId,
        request: ShuffleGetOrCreate,
    ) -> Result<Option<Value>, RunError> {
        let ShuffleGetOrCreate {
            shuffle_id: shuffle,
            key,
            worker,
            ..
        } = request;
        if let Some(run) = self.join_run(&shuffle, &worker)? {
            return Ok(Some(run));
        }
        self.barrier(&shuffle)?;
        self.check_processing(&key)?;
        let worker = self.worker_of_run(&worker)?;
        let shuffle: Arc<str> = shuffle.into();
        let shuffles = &mut self.shuffles;
        shuffles.requests.insert(id, Arc::clone(&shuffle));
        let waiting = shuffles.waiting.entry(Arc::clone(&shuffle));
        let is_new = matches!(waiting, std::collections::hash_map::Entry::Vacant(_));
        waiting.or_default().insert(id, Waiting { key, worker });
        if is_new {
            shuffles.to_create.push_back(shuffle);
            self.create_next_run();
        }
        Ok(None)
    }

    /// The barrier task of a shuffle.
    fn barrier(&self, shuffle: &str) -> Result<TaskId, RunError> {
        let key = barrier_key(shuffle);
        let known = self.by_key.get(&key).copied();
        known.ok_or_else(|| {
            RunError::Inconsistent(format!(
                "Barrier task with key '{key}' does not exist. This may be caused by task fusion \
                 during graph generation."
            ))
        })
    }

    fn check_processing(&self, key: &Key) -> Result<(), RunError> {
        let Some(id) = self.by_key.get(key) else {
            return Err(RunError::Unknown(key.to_string()));
        };
        match &self.tasks[*id].stage {
            TaskStage::Processing(_) => Ok(()),
            other => {
                let state = other.name();
                Err(RunError::Inconsistent(format!(
                    "Expected <TaskState '{key}' {state}> to be processing, is {state}."
                )))
            }
        }
    }

    /// Has the next run created, if none is being created.
    fn create_next_run(&mut self) {
        while self.shuffles.creating.is_none()
            && let Some(shuffle) = self.shuffles.to_create.pop_front()
        {
            match self.new_run(&shuffle) {
                Ok((new, workers)) => {
                    self.shuffles.creating = Some(Creating {
                        run_id: new.run_id,
                        shuffle,
                        workers,
                    });
                    self.actions.push(Action::CreateRun(Box::new(new)));
                }
                Err(error) => self.reply_without_run(&shuffle, &error),
            }
        }
    }

    /// Describes a new run, for the workers that can run the tasks of the shuffle.
    fn new_run(&mut self, shuffle: &str) -> Result<(NewRun, Vec<WorkerId>), RunError> {
        let id = self.barrier(shuffle)?;
        let barrier = &self.tasks[id];
        let Some(run_spec) = &barrier.run_spec else {
            let message = format!("'{}' is data, and no barrier of a shuffle", barrier.key);
            return Err(RunError::Inconsistent(message));
        };
        let group = &self.groups[run_spec.group];
        let workers = self.workers.iter().map(|(id, worker)| (*id, worker));
        let python = workers.filter(|(_, worker)| {
            step();
            worker.kind.python && worker.is_running
        });
        let (named, unnamed): (Vec<_>, Vec<_>) =
            python.partition(|(id, worker)| group.admits(*id, worker));
        let mut workers = named;
        if workers.is_empty() {
            workers = unnamed;
            workers.retain(|(_, worker)| group.admits_unnamed(worker));
        }
        if workers.is_empty() {
            let waiting = self.shuffles.waiting.get(shuffle);
            let waiting = waiting.into_iter().flat_map(BTreeMap::values);
            let asking: BTreeSet<WorkerId> = waiting.map(|waiting| waiting.worker).collect();
            let asking = asking.into_iter();
            workers = asking
                .filter_map(|id| Some((id, self.workers.get(&id)?)))
                .collect();
        }
        if workers.is_empty() {
            return Err(RunError::Inconsistent(format!(
                "no worker can run the tasks of the shuffle {shuffle}"
            )));
        }
        let run_id = self.shuffles.last_run + 1;
        // Small shuffles at the same time use all workers.
        let count = workers.len();
        workers.rotate_left(usize::try_from(run_id % count as u64).unwrap_or_default());
        let (ids, addresses) = workers
            .into_iter()
            .map(|(id, worker)| (id, worker.address.to_string()))
            .unzip();
        let mut seen = BTreeSet::from([id]);
        let mut others = Vec::new();
        for output in &barrier.dependents {
            for other in &self.tasks[*output].dependencies {
                if seen.insert(*other)
                    && let Some(other) = shuffle_of(&self.tasks[*other].key)
                    && let Some(run) = self.shuffles.runs.get(other)
                {
                    others.push(run.run_spec.clone());
                }
            }
        }
        let new = NewRun {
            run_id,
            barrier: run_spec.payload.to_serialized(),
            workers: addresses,
            others,
        };
        self.shuffles.last_run = run_id;
        Ok((new, ids))
    }

    /// Handles the end of the creation of a run.
    pub(super) fn run_created(&mut self, run_id: u64, run: Result<CreatedRun, RunFailure>) {
        self.set_stimulus("shuffle");
        let creating = &mut self.shuffles.creating;
        let Some(creating) = creating.take_if(|creating| creating.run_id == run_id) else {
            return;
        };
        let Creating {
            shuffle, workers, ..
        } = creating;
        match run {
            Ok(run) => {
                let ids = run.workers.iter();
                let ids = ids.map(|worker| self.by_address.get(worker).copied());
                match ids.collect::<Option<Vec<WorkerId>>>() {
                    Some(ids) => self.start_run(&shuffle, run_id, run.run_spec, ids),
                    None if workers.iter().all(|id| self.workers.contains_key(id)) => {
                        let message = format!("the shuffle {shuffle} has chosen unknown workers");
                        self.reply_without_run(&shuffle, &RunError::Inconsistent(message));
                    }
                    // A worker has left meanwhile.
                    None => self.shuffles.to_create.push_front(shuffle),
                }
            }
            Err(failure) => self.reply_without_run(&shuffle, &RunError::Failed(failure)),
        }
        self.create_next_run();
        self.settle();
    }

    /// Begins a run, and sends it to the workers that have asked for it.
    fn start_run(
        &mut self,
        shuffle: &Arc<str>,
        id: u64,
        run_spec: Bytes,
        workers: impl IntoIterator<Item = WorkerId>,
    ) {
        let is_ended =
            |stage: &TaskStage| matches!(stage, TaskStage::Released | TaskStage::Erred(_));
        match self.barrier(shuffle) {
            Ok(barrier) if is_ended(&self.tasks[barrier].stage) => {
                let key = &self.tasks[barrier].key;
                let state = self.tasks[barrier].stage.name();
                let error = RunError::Inconsistent(format!("the task '{key}' is {state}"));
                return self.reply_without_run(shuffle, &error);
            }
            Ok(_) => {}
            Err(error) => return self.reply_without_run(shuffle, &error),
        }
        let waiting = self.take_waiting(shuffle);
        let (valid, invalid): (Vec<_>, Vec<_>) = waiting
            .into_iter()
            .map(|(request, waiting)| {
                let is_there = self.workers.contains_key(&waiting.worker);
                let checked = match is_there {
                    true => self.check_processing(&waiting.key),
                    false => Err(RunError::Inconsistent("the worker has left".to_owned())),
                };
                (request, checked.map(|()| waiting.worker))
            })
            .partition(|(_, checked)| checked.is_ok());
        for (request, error) in invalid {
            let reply = error.map_or_else(RunError::into_reply, |_| Value::None);
            self.actions.push(Action::Reply(request, Ok(reply)));
        }
        if valid.is_empty() {
            return;
        }
        let run = Run {
            id,
            run_spec,
            workers: BTreeSet::new(),
            has_failed: false,
        };
        let reply = run.reply();
        self.shuffles.runs.insert(Arc::clone(shuffle), run);
        let asking = valid.iter().filter_map(|(_, worker)| worker.as_ref().ok());
        for worker in workers.into_iter().chain(asking.copied()) {
            self.shuffles.take_part(shuffle, worker);
        }
        for (request, _) in valid {
            self.actions.push(Action::Reply(request, Ok(reply.clone())));
        }
    }

    fn take_waiting(&mut self, shuffle: &str) -> BTreeMap<RequestId, Waiting> {
        let waiting = self.shuffles.waiting.remove(shuffle).unwrap_or_default();
        for request in waiting.keys() {
            self.shuffles.requests.remove(request);
        }
        waiting
    }

    fn reply_without_run(&mut self, shuffle: &str, error: &RunError) {
        for request in self.take_waiting(shuffle).into_keys() {
            let reply = error.clone().into_reply();
            self.actions.push(Action::Reply(request, Ok(reply)));
        }
    }

    /// Restricts an output task to the worker that has the output.
    // ROLES SCHEDULER-16
    fn restrict_output(&mut self, request: ShuffleRestrictTask) -> Result<Value, RunError> {
        let ShuffleRestrictTask {
            id: shuffle,
            run_id,
            key,
            worker,
            ..
        } = request;
        let Some(run) = self.shuffles.runs.get(&*shuffle) else {
            return Err(RunError::Unknown(shuffle));
        };
        if run.id != run_id {
            let what = match run.id > run_id {
                true => "stale",
                false => "invalid",
            };
            let run = run.name(&shuffle);
            return Err(RunError::Inconsistent(format!(
                "Request {what}, expected run_id={run_id} for {run}"
            )));
        }
        let Some(id) = self.by_key.get(&key).copied() else {
            return Err(RunError::Unknown(key.to_string()));
        };
        // An output task of several shuffles is restricted once.
        if let Some(run_spec) = &self.tasks[id].run_spec
            && !self.shuffles.restricted.contains_key(&id)
        {
            let named = run_spec.demands.workers.clone();
            self.shuffles.restricted.insert(id, named);
            self.restrict_task(id, vec![worker]);
        }
        Ok(Value::dict([("status", "OK")]))
    }

    /// The addresses of the workers that take part in a run of a shuffle.
    ///
    /// # Errors
    ///
    /// If the shuffle has no current run, or another one: the class and message of Dask's error.
    // ROLES SCHEDULER-14
    pub fn shuffle_workers(
        &self,
        shuffle: &str,
        run_id: u64,
    ) -> Result<Vec<String>, (&'static str, String)> {
        let Some(run) = self.shuffles.runs.get(shuffle) else {
            return Err(("KeyError", shuffle.to_owned()));
        };
        if run.id != run_id {
            let run = run.name(shuffle);
            let message = format!("run_id={run_id} does not match {run}");
            return Err(("ValueError", message));
        }
        let workers = run.workers.iter();
        let workers = workers.filter_map(|id| Some(self.workers.get(id)?.address.to_string()));
        Ok(workers.collect())
    }

    /// Starts a shuffle again, since data was passed to different runs of it.
    // ROLES SCHEDULER-14
    pub(super) fn restart_inconsistent(&mut self, shuffle: &str, run_id: u64) {
        self.set_stimulus("p2p-barrier-inconsistent");
        let run = self.shuffles.runs.get(shuffle);
        if run.is_some_and(|run| run.id == run_id) {
            self.end_run(shuffle, None);
            self.restart_shuffle(shuffle, "data was passed to different runs");
            self.settle();
        }
    }

    /// Starts the shuffles again that a worker took part in, which has left.
    // ROLES SCHEDULER-15
    pub(super) fn restart_shuffles(&mut self, left: &mut LeftWorker) {
        let shuffles = self.shuffles.by_worker.get(&left.id).cloned();
        for shuffle in shuffles.unwrap_or_default() {
            // Tasks that fail are published while their run is current, as in Dask.
            for task in self.tasks_of(&shuffle) {
                if self.is_killed(task, left) {
                    self.stop_processing(task, left);
                }
            }
            let address: &str = &left.worker.address;
            self.end_run(&shuffle, Some(address));
            for task in self.tasks_of(&shuffle) {
                self.leave_task(task, left);
            }
            let cause = format!("the worker {} left", left.worker.address);
            self.restart_shuffle(&shuffle, &cause);
        }
    }

    /// The transfer tasks of a shuffle, its barrier, and its output tasks, in this order.
    fn tasks_of(&self, shuffle: &str) -> Vec<TaskId> {
        let Ok(id) = self.barrier(shuffle) else {
            return Vec::new();
        };
        let barrier = &self.tasks[id];
        let transfers = barrier.dependencies.iter();
        let tasks = transfers.chain([&id]).chain(&barrier.dependents);
        tasks.copied().collect()
    }

    /// Has all tasks of a shuffle run again that are needed, unless one has failed.
    fn restart_shuffle(&mut self, shuffle: &str, cause: &str) {
        let tasks = self.tasks_of(shuffle);
        let mut stages = tasks.iter().map(|id| &self.tasks[*id].stage);
        if tasks.is_empty() || stages.any(|stage| matches!(stage, TaskStage::Erred(_))) {
            return;
        }
        for id in tasks {
            match self.tasks[id].stage {
                // Data that a client has stored cannot be computed.
                TaskStage::Memory if self.tasks[id].run_spec.is_none() => {}
                TaskStage::Memory => {
                    self.delete(id);
                    self.lose(id);
                }
                TaskStage::Processing(_) => {
                    if let Some(on) = self.unassign(id) {
                        self.send_free(on, id);
                    }
                    self.make_ready(id);
                }
                // Runs later anyway, or fails.
                TaskStage::Released
                | TaskStage::Waiting
                | TaskStage::Ready
                | TaskStage::NoWorker
                | TaskStage::Pooled
                | TaskStage::Queued(_)
                | TaskStage::Erred(_) => {}
            }
        }
        self.notice(Notice::ShuffleRestarted {
            shuffle: shuffle.to_owned(),
            cause: cause.to_owned(),
        });
    }

    /// Ends the run of a shuffle whose barrier is released, has failed, or has to wait again.
    pub(super) fn barrier_ended(&mut self, barrier: TaskId) {
        if self.shuffles.runs.is_empty() {
            return;
        }
        if let Some(shuffle) = shuffle_of(&self.tasks[barrier].key) {
            let shuffle = shuffle.to_owned();
            self.end_run(&shuffle, None);
        }
    }

    /// Ends the run of a shuffle, if any: the workers forget it, and its output tasks may run
    /// anywhere.
    // ROLES SCHEDULER-13, SCHEDULER-16
    fn end_run(&mut self, shuffle: &str, left: Option<&str>) {
        let Some((shuffle, run)) = self.shuffles.remove_run(shuffle) else {
            return;
        };
        let name = run.name(&shuffle);
        let message = match left {
            Some(worker) => format!("Worker {worker} left during active {name}"),
            None => format!("{name} forgotten"),
        };
        for worker in &run.workers {
            if self.workers.contains_key(worker) {
                let failed = Unknown::new("shuffle-fail")
                    .field("shuffle_id", &*shuffle)
                    .field("run_id", run.id)
                    .field("message", message.as_str());
                self.send_worker(*worker, failed);
            }
        }
        if self.shuffles.restricted.is_empty() {
            return;
        }
        let Ok(barrier) = self.barrier(&shuffle) else {
            return;
        };
        for output in self.tasks[barrier].dependents.clone() {
            if let Some(workers) = self.shuffles.restricted.remove(&output) {
                self.restrict_task(output, workers);
            }
        }
    }

    /// Whether a task is an output task of a shuffle. It moves to the worker of its output, and
    /// must not wait for that in the pool, or at the worker that ran the barrier.
    pub(super) fn is_output(&self, id: TaskId) -> bool {
        !self.shuffles.runs.is_empty()
            && self.tasks[id].dependencies.iter().any(|needed| {
                step();
                let shuffle = shuffle_of(&self.tasks[*needed].key);
                shuffle.is_some_and(|shuffle| self.shuffles.runs.contains_key(shuffle))
            })
    }

    /// Publishes that a task of a shuffle has failed, once of each run.
    pub(super) fn log_failed_shuffle(&mut self, id: TaskId, failure: &Failure) {
        if self.shuffles.runs.is_empty() || failure.cause.as_ref() != Some(&self.tasks[id].key) {
            return;
        }
        let task = &self.tasks[id];
        let mut tasks = core::iter::once(&id)
            .chain(&task.dependencies)
            .chain(&task.dependents);
        let shuffles = tasks.by_ref().filter_map(|id| {
            step();
            let shuffle = shuffle_of(&self.tasks[*id].key)?;
            let run = self.shuffles.runs.get(shuffle)?;
            (!run.has_failed).then(|| shuffle.to_owned())
        });
        for shuffle in shuffles.collect::<Vec<_>>() {
            if let Some(run) = self.shuffles.runs.get_mut(&*shuffle) {
                run.has_failed = true;
            }
            let fields = [
                ("shuffle", Value::from(shuffle)),
                ("stimulus", Value::from(self.stimulus.to_string())),
            ];
            self.log(&["p2p"], "p2p-failed", fields);
        }
    }

    #[cfg(any(test, feature = "checks"))]
    pub(super) fn check_shuffles(&self) {
        let Shuffles {
            runs,
            by_worker,
            waiting,
            requests,
            to_create,
            creating,
            restricted,
            last_run,
        } = &self.shuffles;
        for (shuffle, run) in runs {
            let barrier = self.barrier(shuffle).expect("a run has a barrier");
            let stage = &self.tasks[barrier].stage;
            assert!(
                !matches!(stage, TaskStage::Released | TaskStage::Erred(_)),
                "{shuffle}"
            );
            assert!(run.id <= *last_run && !run.workers.is_empty());
            for worker in &run.workers {
                assert!(self.workers.contains_key(worker) && by_worker[worker].contains(shuffle));
            }
            assert!(!waiting.contains_key(shuffle));
        }
        for (worker, shuffles) in by_worker {
            assert!(!shuffles.is_empty());
            for shuffle in shuffles {
                assert!(runs[shuffle].workers.contains(worker));
            }
        }
        let count: usize = waiting.values().map(BTreeMap::len).sum();
        assert_eq!(count, requests.len());
        let creating = creating.iter().map(|creating| &creating.shuffle);
        let expected: BTreeSet<&Arc<str>> = to_create.iter().chain(creating).collect();
        assert_eq!(expected, waiting.keys().collect());
        assert!(self.shuffles.creating.is_some() || to_create.is_empty());
        for task in restricted.keys() {
            assert!(self.tasks[*task].run_spec.is_some());
        }
    }
}

impl Run {
    /// The name in Dask's messages.
    fn name(&self, shuffle: &str) -> String {
        format!("SchedulerShuffleState<{shuffle}[{}]>", self.id)
    }

    /// The reply to a worker that asks for the run.
    fn reply(&self) -> Value {
        let run_spec = Serialized::pickled(&self.run_spec);
        Value::dict([
            ("status", Value::from("OK")),
            ("run_spec", Value::Serialized(run_spec)),
        ])
    }
}

/// The reason why a request about a run fails.
#[derive(Clone, Debug)]
enum RunError {
    /// The request does not fit the state of the shuffle; Dask's `P2PConsistencyError`.
    Inconsistent(String),
    /// A shuffle or task is unknown; a `KeyError`, as in Dask.
    Unknown(String),
    /// The run cannot be created.
    Failed(RunFailure),
}

impl RunError {
    /// The reply in the form of Dask's.
    fn into_reply(self) -> Value {
        /// The class that workers expect.
        const INCONSISTENT: &str = "distributed.shuffle._exceptions.P2PConsistencyError";
        let (status, exception, text) = match self {
            Self::Inconsistent(message) => (
                "error",
                exception(INCONSISTENT, &message),
                format!("P2PConsistencyError({message:?})"),
            ),
            Self::Unknown(key) => (
                "uncaught-error",
                exception("KeyError", &key),
                format!("KeyError({key:?})"),
            ),
            Self::Failed(RunFailure { exception, text }) => ("uncaught-error", exception, text),
        };
        Value::dict([
            ("status", Value::from(status)),
            ("exception", Value::Serialized(exception)),
            ("traceback", Value::None),
            ("exception_text", Value::from(text)),
            ("traceback_text", Value::from("")),
        ])
    }
}

/// Whether a request is about the run of a shuffle, and the state replies to it.
pub const fn is_about_run(request: &Request) -> bool {
    matches!(
        request,
        Request::ShuffleGet(_) | Request::ShuffleGetOrCreate(_) | Request::ShuffleRestrictTask(_)
    )
}

/// The key of the barrier task of a shuffle.
fn barrier_key(shuffle: &str) -> Key {
    Key::from(format!("{BARRIER}{shuffle}"))
}

/// The id of the shuffle whose barrier task has this key.
pub(super) fn shuffle_of(key: &Key) -> Option<&str> {
    key.as_str()?.strip_prefix(BARRIER)
}

/// The start of the keys of barrier tasks.
const BARRIER: &str = "shuffle-barrier-";

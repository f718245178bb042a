//! Workers that return with what they hold and run, after they have lost their connection to this
//! scheduler or an earlier one.
//!
//! Such a worker says so when it registers, and gets no tasks until it has said what it has. Then
//! its results are those of their tasks, as if these had just finished, and the tasks that it runs
//! go on there: each is *claimed* until its inputs are in memory, and then *adopted*, which means
//! that it is processing on the worker without being sent there. A task is claimed by one worker,
//! and runs nowhere else meanwhile.
//!
//! If the scheduler has not noticed yet that the connection is lost, the registration ends the
//! former one. What the worker had then is taken for lost only after it has said what it has.

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::vec;

use daskwire_messages::protocol::{
    Keys, RegisterWorker, RemoveReplicas, Returned, ReturnedResult, ReturnedRun, WorkerStatus,
};
use daskwire_messages::{Key, Value};

use super::choose::MAX_COMPARED;
use super::model::{TaskId, TaskStage};
use super::send::free_keys;
use super::shuffles::shuffle_of;
use super::slices::{Job, LeftWorker};
use super::submission::Failure;
use super::{State, WorkerId};
use crate::steps::step;

/// The stimulus of messages about what a worker has returned with.
const STIMULUS: &str = "returned";

/// Higher numbers of runs are not those of a scheduler. Numbers that follow are never exhausted.
const MAX_RUN: i64 = 1 << 53;

/// A task that a worker runs which has returned, until the task is adopted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) on: WorkerId,
    run_id: i64,
    has_seceded: bool,
}

/// What is known of a worker that has not yet said all that it has.
#[derive(Debug)]
pub(super) struct Returning {
    /// Its results. Those of later tasks come first, because a task would otherwise be sent
    /// somewhere as soon as its inputs are there, although its own result is about to follow.
    results: BTreeMap<(Reverse<(u64, i64)>, TaskId), Candidate>,
    /// The worker under its former id, whose connection this one replaces.
    pub(super) former: Option<Box<LeftWorker>>,
}

impl Returning {
    pub(super) fn new(former: Option<Box<LeftWorker>>) -> Self {
        let results = BTreeMap::new();
        Self { results, former }
    }
}

/// A result that may become that of a task.
#[derive(Debug)]
struct Candidate {
    result: ReturnedResult,
    is_actor: bool,
}

/// A message of a worker that returns, and what is still to be handled of it.
#[derive(Debug)]
pub(super) struct Return {
    on: WorkerId,
    running: vec::IntoIter<ReturnedRun>,
    results: vec::IntoIter<ReturnedResult>,
    actors: BTreeSet<Key>,
    is_last: bool,
    /// The tasks that the worker had when it was lost; not known before the last part.
    survived: Option<vec::IntoIter<Key>>,
}

/// The tasks that workers had when they were lost, the latest last. If a worker returns, it has not
/// died of them.
#[derive(Debug, Default)]
pub(super) struct LostTasks(VecDeque<LostWorker>);

#[derive(Debug)]
struct LostWorker {
    since: Duration,
    server_id: String,
    tasks: Vec<Key>,
}

/// Maximum number of lost workers whose tasks are kept.
const MAX_LOST: usize = 1 << 10;

/// Maximum time for which they are kept.
const MAX_LOST_AGE: Duration = Duration::from_secs(600);

impl State {
    /// Whether a worker that registers will say what it has, and the worker that it replaces, if
    /// that has not left yet.
    // ROLES SCHEDULER-17
    pub(super) fn returning(&self, worker: &RegisterWorker) -> (bool, Option<WorkerId>) {
        let kinds = worker.extra_information.get("daskwire");
        let (Value::List(kinds) | Value::Tuple(kinds)) = kinds.unwrap_or(&Value::None) else {
            return (false, None);
        };
        if !kinds.iter().any(|kind| kind.as_str() == Some("returning")) {
            return (false, None);
        }
        let known = self.by_address.get(&worker.address).copied();
        let former = known.filter(|id| {
            let id = self.workers[id].info.server_id.as_ref();
            id.is_some() && id == worker.server_id.as_ref()
        });
        (true, former)
    }

    /// Handles a message of a worker that returns. Those of others are ignored.
    pub(super) fn returned(&mut self, on: WorkerId, message: Returned) {
        let worker = self.workers.get(&on);
        if worker.is_some_and(|worker| worker.returning.is_some()) {
            self.start(Job::Return(Box::new(Return {
                on,
                running: message.running.into_iter(),
                results: message.results.into_iter(),
                actors: message.actors.into_iter().collect(),
                is_last: message.is_last,
                survived: None,
            })));
        }
    }

    /// Returns whether nothing is left.
    pub(super) fn return_slice(&mut self, part: &mut Return) -> bool {
        let on = part.on;
        let mut is_done = false;
        let (mut freed, mut unwanted) = (Vec::new(), Vec::new());
        for _ in 0..self.slice_len {
            step();
            if let Some(run) = part.running.next() {
                if !self.claim(on, &run) {
                    freed.push(run.key);
                }
            } else if let Some(result) = part.results.next() {
                let is_actor = part.actors.contains(&result.key);
                unwanted.extend(self.note_result(on, result, is_actor));
            } else if part.is_last
                && let Some(candidate) = self.next_result(on)
            {
                unwanted.extend(self.take_result(on, candidate));
            } else if part.is_last
                && let Some(key) = self.next_survived(part)
            {
                self.forgive(&key);
            } else {
                is_done = true;
                break;
            }
        }
        if self.workers.get(&on).is_none() {
            return true;
        }
        if !freed.is_empty() {
            self.send_worker(on, free_keys(Keys(freed), STIMULUS));
        }
        if !unwanted.is_empty() {
            let message = RemoveReplicas {
                keys: Keys(unwanted),
                stimulus_id: STIMULUS.to_owned(),
                ..RemoveReplicas::default()
            };
            self.send_worker(on, message);
        }
        if is_done && part.is_last {
            self.end_return(on);
        }
        is_done
    }

    /// Keeps a result until all results of the worker are known. Returns the key of one that is not
    /// that of a task.
    fn note_result(&mut self, on: WorkerId, result: ReturnedResult, is_actor: bool) -> Option<Key> {
        let worker = self.workers.get_mut(&on)?;
        let (Some(id), Some(returning)) = (self.by_key.get(&result.key), &mut worker.returning)
        else {
            return Some(result.key);
        };
        let priority = &self.tasks[*id].priority;
        let place = (Reverse((priority.submission, priority.order)), *id);
        let candidate = Candidate { result, is_actor };
        returning.results.insert(place, candidate);
        None
    }

    fn next_result(&mut self, on: WorkerId) -> Option<Candidate> {
        let returning = self.workers.get_mut(&on)?.returning.as_mut()?;
        let (_, candidate) = returning.results.pop_first()?;
        Some(candidate)
    }

    /// Makes a result that of its task, if it is needed. Returns its key otherwise.
    fn take_result(&mut self, on: WorkerId, candidate: Candidate) -> Option<Key> {
        let Candidate { result, is_actor } = candidate;
        let known = self.by_key.get(&result.key).copied();
        let Some(id) = known.filter(|id| self.suits_result(*id, on, is_actor)) else {
            return Some(result.key);
        };
        let task = &mut self.tasks[id];
        if !matches!(task.stage, TaskStage::Memory) {
            task.nbytes = result.nbytes;
            task.class = result.class.map(|class| self.result_classes.shared(class));
        }
        if is_actor && self.is_actor_of_former(id, on) {
            self.tasks[id].actor_on = Some(on);
            self.add_actor(id, on);
        }
        self.in_memory(id, on);
        None
    }

    /// Whether an actor is that of the worker whose place a worker has taken.
    fn is_actor_of_former(&self, id: TaskId, on: WorkerId) -> bool {
        let worker = self.workers.get(&on);
        let former = worker.and_then(|worker| worker.returning.as_ref()?.former.as_ref());
        former.is_some_and(|former| self.tasks[id].actor_on == Some(former.id))
    }

    /// Whether a result that a worker has is needed as that of a task, or as a further copy.
    fn suits_result(&self, id: TaskId, on: WorkerId, is_actor: bool) -> bool {
        let task = &self.tasks[id];
        match task.stage {
            // Other workers have handles for an actor. Without it, they are of no use.
            TaskStage::Memory if is_actor => {
                task.actor_on == Some(on) || self.is_actor_of_former(id, on)
            }
            TaskStage::Memory => true,
            TaskStage::Erred(_) => false,
            _ if is_actor != task.is_actor => false,
            _ => self.is_needed(id) && !self.is_before_outputs(id),
        }
    }

    fn is_needed(&self, id: TaskId) -> bool {
        let task = &self.tasks[id];
        !task.wanted_by.is_empty() || task.waiter_count != 0
    }

    /// Whether a task is the barrier of a P2P shuffle or transfers data for one. Its result is about
    /// a run of the shuffle, which is not the current one.
    fn is_before_outputs(&self, id: TaskId) -> bool {
        let task = &self.tasks[id];
        let mut dependents = task.dependents.iter().take(MAX_COMPARED);
        shuffle_of(&task.key).is_some() || dependents.any(|id| self.is_barrier(*id))
    }

    fn is_barrier(&self, id: TaskId) -> bool {
        shuffle_of(&self.tasks[id].key).is_some()
    }

    /// Has a task go on that a worker runs. Returns whether it does.
    fn claim(&mut self, on: WorkerId, run: &ReturnedRun) -> bool {
        if !(0..=MAX_RUN).contains(&run.run_id) {
            return false;
        }
        // The number is not that of another run of the task.
        self.run_count = self.run_count.max(run.run_id);
        let Some(id) = self.by_key.get(&run.key).copied() else {
            return false;
        };
        let task = &self.tasks[id];
        let mut inputs = task.dependencies.iter().take(MAX_COMPARED);
        let is_output = inputs.any(|id| self.is_barrier(*id));
        if task.run_spec.is_none()
            || task.is_orphan
            || !self.is_needed(id)
            // The run of a shuffle that the task takes part in is not the current one.
            || is_output
            || self.is_before_outputs(id)
        {
            return false;
        }
        match task.stage {
            TaskStage::Memory | TaskStage::Erred(_) => return false,
            TaskStage::Processing(other) if other == on => {
                if task.run_id == run.run_id {
                    return true;
                }
                self.unassign(id);
                self.make_ready(id);
                return false;
            }
            TaskStage::Processing(other) if self.workers.contains_key(&other) => return false,
            TaskStage::Released | TaskStage::Waiting => {}
            TaskStage::Ready
            | TaskStage::NoWorker
            | TaskStage::Pooled
            | TaskStage::Queued(_)
            | TaskStage::Processing(_) => {
                self.unassign(id);
                self.make_ready(id);
            }
        }
        if let Some(claim) = self.claims.get(&id)
            && self.workers.contains_key(&claim.on)
        {
            let is_same = claim.on == on && claim.run_id == run.run_id;
            if !is_same && claim.on == on {
                self.drop_claim(id, Some(on));
            }
            return is_same;
        }
        if let Some(worker) = self.workers.get_mut(&on) {
            worker.deletions.remove(&run.key);
            worker.claims.insert(id);
            let claim = Claim {
                on,
                run_id: run.run_id,
                has_seceded: false,
            };
            self.claims.insert(id, claim);
        }
        true
    }

    /// Records that a ready task is processing on the worker that goes on with it. Returns whether
    /// there is one.
    pub(super) fn adopt(&mut self, id: TaskId) -> bool {
        let Some(claim) = self.claims.get(&id).copied() else {
            return false;
        };
        let on = claim.on;
        if !self.workers.contains_key(&on) {
            self.claims.remove(&id);
            return false;
        }
        self.expect(id, on);
        if self.waits_again(id, on) {
            return true;
        }
        self.drop_claim(id, Some(on));
        let task = &mut self.tasks[id];
        let (Some(worker), Some(run_spec)) = (self.workers.get_mut(&on), &task.run_spec) else {
            return false;
        };
        task.run_id = claim.run_id;
        worker.processing.insert(id);
        if claim.has_seceded {
            worker.long_running.insert(id);
            worker.work.remove(task.expected);
        }
        worker.take_resources(&run_spec.demands.resources);
        self.processing_count += 1;
        self.set_stage(id, TaskStage::Processing(on));
        self.update_load(on);
        self.todo.has_room.push(on);
        true
    }

    /// The task of a key, if the worker has claimed it with this run.
    pub(super) fn claimed(&self, on: WorkerId, key: &Key, run_id: i64) -> Option<TaskId> {
        if self.claims.is_empty() {
            return None;
        }
        let id = *self.by_key.get(key)?;
        let claim = self.claims.get(&id)?;
        (claim.on == on && claim.run_id == run_id).then_some(id)
    }

    /// Whether a worker has claimed a task.
    pub(super) fn has_claimed(&self, id: TaskId, on: WorkerId) -> bool {
        self.claims.get(&id).is_some_and(|claim| claim.on == on)
    }

    /// Notes that a claimed task has seceded. Returns whether the worker has claimed it.
    pub(super) fn secede_claimed(&mut self, on: WorkerId, key: &Key, run_id: i64) -> bool {
        let claimed = self.claimed(on, key, run_id);
        let claim = claimed.and_then(|id| self.claims.get_mut(&id));
        claim.map(|claim| claim.has_seceded = true).is_some()
    }

    /// Handles the failure of a task that a worker has claimed, and that is not adopted yet.
    pub(super) fn claimed_erred(&mut self, on: WorkerId, id: TaskId, failure: &Arc<Failure>) {
        self.drop_claim(id, Some(on));
        let task = &mut self.tasks[id];
        match task.retries.checked_sub(1) {
            Some(left) => task.retries = left,
            None => self.fail(id, failure),
        }
    }

    /// Ends the claim of a task, whose worker is told to forget it unless it is `knowing`.
    pub(super) fn drop_claim(&mut self, id: TaskId, knowing: Option<WorkerId>) {
        let Some(claim) = self.claims.remove(&id) else {
            return;
        };
        if let Some(worker) = self.workers.get_mut(&claim.on) {
            worker.claims.remove(&id);
            if knowing != Some(claim.on) {
                self.send_free(claim.on, id);
            }
        }
    }

    /// Ends the claim of a task by a worker that has left. It counts as processing.
    pub(super) fn lose_claim(&mut self, id: TaskId, left: &mut LeftWorker) {
        if !self.has_claimed(id, left.id) {
            return;
        }
        self.claims.remove(&id);
        if let Some(task) = self.tasks.get_mut(id) {
            left.tasks.processing.push(task.key.clone());
            if !left.is_expected {
                task.kill_count += 1;
                self.key_groups.suspect(task.key_group);
            }
        }
    }

    /// Keeps which tasks a worker had that was lost, if it may return.
    pub(super) fn keep_lost(&mut self, left: &LeftWorker) {
        while let Some(first) = self.lost.0.front()
            && (self.lost.0.len() >= MAX_LOST || self.now - first.since > MAX_LOST_AGE)
        {
            self.lost.0.pop_front();
        }
        let tasks = &left.tasks.processing;
        if let Some(server_id) = &left.worker.info.server_id
            && left.worker.kind.native
            && !left.is_expected
            && !tasks.is_empty()
        {
            self.lost.0.push_back(LostWorker {
                since: self.now,
                server_id: server_id.clone(),
                tasks: tasks.clone(),
            });
        }
    }

    /// The next task that a worker had when it was lost.
    fn next_survived(&mut self, part: &mut Return) -> Option<Key> {
        if part.survived.is_none() {
            let server_id = self.workers.get(&part.on)?.info.server_id.as_ref()?;
            let lost = &mut self.lost.0;
            let is_it = |lost: &LostWorker| {
                step();
                lost.server_id == *server_id
            };
            let mut tasks = Vec::new();
            while let Some(place) = lost.iter().rposition(is_it)
                && let Some(lost) = lost.remove(place)
            {
                tasks.extend(lost.tasks);
            }
            part.survived = Some(tasks.into_iter());
        }
        part.survived.as_mut()?.next()
    }

    /// Takes back that a worker has died of a task.
    fn forgive(&mut self, key: &Key) {
        let known = self.by_key.get(key).copied();
        if let Some(task) = known.and_then(|id| self.tasks.get_mut(id)) {
            task.kill_count = task.kill_count.saturating_sub(1);
        }
    }

    /// Lets a worker have tasks that has said all that it has.
    fn end_return(&mut self, on: WorkerId) {
        let Some(worker) = self.workers.get_mut(&on) else {
            return;
        };
        let former = worker.returning.take().and_then(|it| it.former);
        if worker.info.status == WorkerStatus::Running && !worker.is_running {
            worker.is_running = true;
            self.not_running.remove(&on);
            self.start_running(on);
        }
        if let Some(former) = former {
            self.start(Job::WorkerLeft(former));
        }
    }
}

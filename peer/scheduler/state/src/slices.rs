//! Work that an event leaves for later, so that no event takes long.
//!
//! An event that touches many tasks is cut into slices. [`State::handle`] executes the first of
//! them, and each [`State::proceed`] one more. Other events may be handled between slices; they are
//! handled at once, and their consequences come before what was left.
//!
//! The documentation of [the module above](super) says what may interleave.

use core::time::Duration;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::vec;

use daskwire_messages::Key;
use daskwire_messages::Value;
use daskwire_messages::exception::killed_worker;
use daskwire_messages::protocol::CancelKeys;
use daskwire_rpc::story::Stimulus;

use super::groups::GroupId;
use super::journal::Held;
use super::model::{Queue, TaskId, TaskStage, Worker};
use super::returns::Return;
use super::submission::Failure;
use super::submit::Submitting;
use super::{Action, ClientId, LeaveReason, LeftTasks, Notice, State, WorkerId};

/// The work of an event that is handled in slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkId(u64);

/// Maximum number of tasks or keys of an event that are handled at once, and maximum number of
/// consequences.
pub(super) const SLICE: usize = 512;

/// The work that is left of an event.
#[derive(Debug)]
pub(super) struct Work {
    id: WorkId,
    stimulus: Stimulus,
    job: Job,
}

/// What is done in slices.
#[derive(Debug)]
pub(super) enum Job {
    Submit(Box<Submitting>),
    /// A client that has returned so often desires keys.
    Desire(ClientId, u32, vec::IntoIter<Key>),
    /// A client releases keys.
    Release(ClientId, vec::IntoIter<Key>),
    /// A client cancels keys; the message has none.
    Cancel(ClientId, vec::IntoIter<Key>, Box<CancelKeys>),
    Retry(vec::IntoIter<Key>),
    /// Data was stored on workers, for a client.
    StoreData {
        client: Option<ClientId>,
        who_has: vec::IntoIter<(Key, Vec<String>)>,
        nbytes: HashMap<Key, u64>,
    },
    /// The tasks of a restored state may run.
    Resume(Box<Held>),
    /// Clients no longer want tasks: they have left, or all tasks are forgotten.
    Unwant(Vec<(ClientId, BTreeMap<TaskId, u32>)>),
    /// A client that has returned so often no longer wants the tasks, from the given one on, that it
    /// has not confirmed.
    Confirm(ClientId, u32, TaskId),
    /// Tasks in the queue of a worker that accepts none any more.
    Unqueue(WorkerId, BTreeMap<GroupId, Queue>),
    WorkerLeft(Box<LeftWorker>),
    /// A worker says what it returns with.
    Return(Box<Return>),
    /// A worker retires: others are to copy its results, beginning after the given one.
    Copy {
        on: WorkerId,
        last: Option<TaskId>,
        turn: u64,
    },
}

/// A worker that has left, and what is still to be handled of it.
#[derive(Debug)]
pub(super) struct LeftWorker {
    pub(super) id: WorkerId,
    /// The worker, without the tasks and results that are done.
    pub(super) worker: Worker,
    pub(super) is_expected: bool,
    pub(super) reason: LeaveReason,
    /// Those that are done.
    pub(super) tasks: LeftTasks,
}

impl State {
    /// Continues the work that [`handle`](Self::handle) has left, with a bounded number of steps,
    /// and returns the actions that follow from it. Repeat it while work
    /// [is pending](Self::is_pending).
    // ROLES SCHEDULER-10
    pub fn proceed(&mut self, now: Duration) -> Vec<Action> {
        self.now = self.now.max(now);
        self.record_slice();
        // Consequences of earlier slices first, so that they do not pile up.
        self.left_counts = [0; 3];
        self.left_activated_count = 0;
        self.left_recounted_count = 0;
        if !self.has_consequences()
            && let Some(mut work) = self.work.pop_front()
        {
            self.stimulus = work.stimulus.clone();
            match self.do_slice(&mut work.job) {
                true => self.pause(work.job),
                false => self.work.push_back(work),
            }
        }
        self.settle();
        self.settle_requests(true);
        self.take_actions()
    }

    /// Whether work is left for [`proceed`](Self::proceed).
    pub fn is_pending(&self) -> bool {
        !self.work.is_empty() || self.has_consequences()
    }

    /// The number of events of which work is left.
    pub fn work_count(&self) -> usize {
        self.work.len()
    }

    /// The work of the latest event that was cut into slices, for [`is_done`](Self::is_done). If it
    /// differs before and after an event, it is that of this event.
    pub const fn latest_work(&self) -> WorkId {
        WorkId(self.last_work)
    }

    /// Whether all of an event was handled, except that its consequences may be pending.
    pub fn is_done(&self, id: WorkId) -> bool {
        self.work.iter().all(|work| work.id != id)
    }

    pub(super) fn jobs(&self) -> impl Iterator<Item = &Job> {
        self.work.iter().map(|work| &work.job)
    }

    /// Does the first slice of some work, and leaves the rest for later.
    pub(super) fn start(&mut self, mut job: Job) {
        if self.do_slice(&mut job) {
            self.pause(job);
        } else {
            self.last_work += 1;
            self.work.push_back(Work {
                id: WorkId(self.last_work),
                stimulus: self.stimulus.clone(),
                job,
            });
        }
    }

    /// Keeps a submission that waits for its next part.
    fn pause(&mut self, job: Job) {
        if let Job::Submit(submitting) = job
            && submitting.is_unfinished(submitting.client())
        {
            self.paused.insert(submitting.client(), submitting);
        }
    }

    /// The submission of a client that is being inserted, and of which parts are missing.
    pub(super) fn unfinished_jobs(
        &mut self,
        client: ClientId,
    ) -> impl Iterator<Item = &mut Submitting> {
        let jobs = self.work.iter_mut().map(|work| &mut work.job);
        jobs.filter_map(move |job| match job {
            Job::Submit(submitting) if submitting.is_unfinished(client) => Some(&mut **submitting),
            _ => None,
        })
    }

    /// The submissions that are being inserted, or wait for their next parts.
    #[cfg(any(test, feature = "checks"))]
    pub(super) fn submissions(&self) -> impl Iterator<Item = &Submitting> {
        let working = self.jobs().filter_map(|job| match job {
            Job::Submit(submitting) => Some(&**submitting),
            _ => None,
        });
        working.chain(self.paused.values().map(|paused| &**paused))
    }

    /// Returns whether nothing is left.
    fn do_slice(&mut self, job: &mut Job) -> bool {
        match job {
            Job::Submit(submitting) => self.submit_slice(submitting),
            Job::Desire(client, confirmation, _) if self.is_submitting(*client, *confirmation) => {
                false
            }
            Job::Desire(client, confirmation, keys) => {
                let part: Vec<Key> = keys.by_ref().take(self.slice_len).collect();
                self.desire_part(*client, *confirmation, part);
                keys.len() == 0
            }
            Job::Release(client, keys) => {
                for key in keys.by_ref().take(self.slice_len) {
                    if let Some(task) = self.by_key.get(&key) {
                        self.release(*client, *task);
                    }
                }
                keys.len() == 0
            }
            Job::Cancel(client, keys, message) => {
                let part: Vec<Key> = keys.by_ref().take(self.slice_len).collect();
                self.cancel_part(*client, &part, message);
                keys.len() == 0
            }
            Job::Retry(keys) => {
                let part: Vec<Key> = keys.by_ref().take(self.slice_len).collect();
                self.retry_part(&part);
                keys.len() == 0
            }
            Job::StoreData {
                client,
                who_has,
                nbytes,
            } => {
                for (key, holders) in who_has.by_ref().take(self.slice_len) {
                    let nbytes = nbytes.get(&key).copied().unwrap_or(0);
                    self.store_data(*client, key, &holders, nbytes);
                }
                who_has.len() == 0
            }
            Job::Resume(held) => self.resume_slice(held),
            Job::Unwant(wants) => self.unwant_slice(wants),
            Job::Confirm(client, confirmation, first) => {
                self.confirm_part(*client, *confirmation, first)
            }
            Job::Unqueue(on, queue) => {
                for _ in 0..self.slice_len {
                    let Some(task) = pop_queued(queue) else {
                        break;
                    };
                    self.unqueue(task, *on);
                }
                queue.is_empty()
            }
            Job::WorkerLeft(left) => self.left_worker_slice(left),
            Job::Return(part) => self.return_slice(part),
            Job::Copy { on, last, turn } => {
                *last = self.copy_part(*on, *last, *turn);
                last.is_none()
            }
        }
    }

    fn unwant_slice(&mut self, wants: &mut Vec<(ClientId, BTreeMap<TaskId, u32>)>) -> bool {
        let mut left = self.slice_len;
        while left > 0
            && let Some((client, tasks)) = wants.last_mut()
        {
            left -= 1;
            let client = *client;
            let Some((id, _)) = tasks.pop_first() else {
                wants.pop();
                continue;
            };
            // The client may want the task again.
            let known = self.clients.get(&client);
            if known.is_some_and(|client| client.wants.contains_key(&id)) {
                continue;
            }
            let is_there = known.is_some();
            if let Some(task) = self.tasks.get_mut(id)
                && let Ok(place) = task.wanted_by.binary_search(&client)
            {
                task.wanted_by.remove(place);
                self.todo.unneeded.push(id);
                if is_there {
                    self.journal_wish(client, id, false);
                }
            }
        }
        wants.is_empty()
    }

    /// Makes a task ready that was taken out of the queue of a worker.
    fn unqueue(&mut self, id: TaskId, on: WorkerId) {
        let task = self.tasks.get(id);
        if task.is_some_and(|task| matches!(task.stage, TaskStage::Queued(queued) if queued == on))
        {
            self.unassign(id);
            self.make_ready(id);
        }
    }

    fn left_worker_slice(&mut self, left: &mut LeftWorker) -> bool {
        let id = left.id;
        for _ in 0..self.slice_len {
            if let Some(task) = pop_queued(&mut left.worker.queue) {
                self.unqueue(task, id);
            } else if let Some(task) = left.worker.processing.pop_first() {
                self.stop_processing(task, left);
            } else if let Some(task) = left.worker.claims.pop_first() {
                self.lose_claim(task, left);
            } else if let Some(task) = left.worker.has.pop_first() {
                self.lose_copy(task, left);
            } else {
                break;
            }
        }
        let worker = &left.worker;
        let is_done = worker.queue.is_empty()
            && worker.processing.is_empty()
            && worker.claims.is_empty()
            && worker.has.is_empty();
        if !is_done {
            return false;
        }
        self.keep_lost(left);
        let tasks = core::mem::take(&mut left.tasks);
        self.log_left(&worker.address, &tasks, left.is_expected);
        self.notice(Notice::WorkerLeft {
            worker: worker.address.to_string(),
            name: worker.name.clone(),
            reason: left.reason,
            tasks,
        });
        true
    }

    /// Handles a task that a worker was processing, or of which it had a copy, when it left.
    pub(super) fn leave_task(&mut self, id: TaskId, left: &mut LeftWorker) {
        self.stop_processing(id, left);
        self.lose_copy(id, left);
    }

    /// Whether a task fails because a worker left that was processing it, and others before.
    pub(super) fn is_killed(&self, id: TaskId, left: &LeftWorker) -> bool {
        let task = &self.tasks[id];
        !left.is_expected
            && task.kill_count >= self.policy.allowed_failures
            && matches!(task.stage, TaskStage::Processing(on) if on == left.id)
    }

    /// Has a task run again that a worker was processing when it left, or fail.
    pub(super) fn stop_processing(&mut self, id: TaskId, left: &mut LeftWorker) {
        let allowed = self.policy.allowed_failures;
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        if !matches!(task.stage, TaskStage::Processing(on) if on == left.id) {
            return;
        }
        left.tasks.processing.push(task.key.clone());
        self.unassigned = Some((id, Arc::clone(&left.worker.address)));
        if !left.is_expected {
            task.kill_count += 1;
            self.key_groups.suspect(task.key_group);
            if task.kill_count > allowed {
                let exception = killed_worker(&task.key, &left.worker.address, allowed, None);
                let failure = Failure {
                    exception: Value::Serialized(exception),
                    traceback: None,
                    cause: Some(task.key.clone()),
                };
                self.fail(id, &Arc::new(failure));
                return;
            }
        }
        self.make_ready(id);
    }

    /// Removes the copy of a result that a worker had when it left.
    fn lose_copy(&mut self, id: TaskId, left: &mut LeftWorker) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        let Ok(place) = task.who_has.binary_search(&left.id) else {
            return;
        };
        task.who_has.remove(place);
        self.replicas.count(id, task.who_has.len());
        if task.actor_on == Some(left.id) {
            left.tasks.lost.push(task.key.clone());
            self.lose_actor(id);
        } else if task.who_has.is_empty() {
            let lost = match task.run_spec {
                Some(_) => &mut left.tasks.recomputed,
                None => &mut left.tasks.lost,
            };
            lost.push(task.key.clone());
            self.lose(id);
        }
    }
}

/// Takes the first task out of queues.
fn pop_queued(queues: &mut BTreeMap<GroupId, Queue>) -> Option<TaskId> {
    let mut first = queues.first_entry()?;
    let task = first.get_mut().pop_first();
    if first.get().is_empty() {
        first.remove();
    }
    task.map(|(_, id)| id)
}

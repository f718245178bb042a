//! Submissions of clients.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::vec;

use daskwire_messages::graph::{Calls, Payload};
use daskwire_messages::protocol::TaskRetried;
use daskwire_messages::{Key, Value};

use super::few::Few;
use super::grace::Graphs;
use super::groups::GroupId;
use super::model::{Priority, RunSpec, StateName, Task, TaskId, TaskStage, task_len};
use super::send::erred;
use super::slices::Job;
use super::submission::{
    Demands, Dependency, Failure, Refusal, Submission, SubmissionPart, Submitted,
};
use super::transitions::seconds;
use super::{ClientId, State};

/// A submission, of which a part is done.
#[derive(Debug)]
pub(super) struct Submitting {
    client: ClientId,
    /// The number of the graph, once its last part is there.
    number: Option<Graphs>,
    /// How often the client had returned.
    confirmation: u32,
    /// The time at which it arrived.
    began: Duration,
    /// The number of tasks that were not known before.
    new_count: usize,
    /// The tasks that are not inserted yet.
    tasks: VecDeque<Submitted>,
    /// The tasks that are not kept any longer once those before are inserted, by index.
    unneeded: VecDeque<usize>,
    /// Whether other parts follow. Until then, tasks run as soon as they are inserted.
    has_more: bool,
    /// Whether it has several parts.
    is_in_parts: bool,
    /// The number of tasks that were measured, and the memory that they would take.
    measured: (usize, usize),
    /// The memory that is kept for its tasks that are not inserted yet.
    pub(super) reserved: usize,
    /// The demands that were measured, as in `groups`.
    measured_demands: BTreeSet<(usize, Calls)>,
    /// The tasks that are, by index in the graph. Each is kept until the end, see
    /// [`Task::waiter_count`], or until it is `None`.
    pub(super) ids: Vec<Option<TaskId>>,
    keys: Vec<Key>,
    /// The tasks that were found of the keys.
    found: Vec<TaskId>,
    /// The number of keys that are wanted, or were refused.
    key_count: usize,
    /// The tasks that make actors and are not marked yet.
    actors: vec::IntoIter<Key>,
    step: Step,
    /// Why its keys fail, if its tasks would need too much memory.
    failure: Option<Arc<Failure>>,
    generation: u64,
    submission: u64,
    /// The groups of the tasks' demands, which are kept so that no others have their addresses.
    pub(super) groups: BTreeMap<(usize, Calls), (Arc<Demands>, GroupId)>,
}

/// What is done of a submission next.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The memory of its tasks is added up and kept for them. One that would take too much is refused
    /// before it takes any, so that the submissions of others between its slices do not fail for it.
    Measure,
    /// It waits for the submissions for which memory is kept: they may insert the same tasks, or end
    /// without all of theirs. Then it is measured again.
    Wait,
    /// Its tasks are inserted.
    Insert,
    /// Those of them that no later part needs are no longer kept.
    Unkeep,
    /// It waits for the next part.
    Pause,
    /// Its keys are looked for.
    Find,
    /// Its actors are marked.
    Mark,
    /// Its keys are wanted.
    Want,
    /// What its keys need is activated, before results of earlier parts are no longer kept.
    Activate,
    /// It is taken back, because a dependency or a key is unknown.
    Cancel,
    /// It is taken back, because its tasks would need more memory than they may.
    Refuse,
    /// Its tasks are no longer kept, unless they are needed.
    End,
    /// It has ended, and its other parts are ignored. The last one counts as the end of the graph.
    Ended,
}

impl Submitting {
    /// Whether it is of a client, and other parts follow.
    pub(super) fn is_unfinished(&self, client: ClientId) -> bool {
        self.has_more && self.client == client
    }

    /// Whether nothing is done until the next part comes.
    #[cfg(any(test, feature = "checks"))]
    pub(super) const fn is_paused(&self) -> bool {
        matches!(self.step, Step::Pause | Step::Ended)
    }

    /// Whether its other parts are ignored.
    const fn has_ended(&self) -> bool {
        matches!(
            self.step,
            Step::Cancel | Step::Refuse | Step::End | Step::Ended
        )
    }

    pub(super) const fn client(&self) -> ClientId {
        self.client
    }

    /// Ends it before its last part. Its tasks are released.
    fn end(&mut self) {
        self.tasks.clear();
        self.unneeded.clear();
        if !self.has_ended() {
            self.step = Step::End;
        }
    }

    /// Whether it is of a client that has returned since.
    pub(super) fn is_before(&self, client: ClientId, confirmation: u32) -> bool {
        self.client == client && self.confirmation < confirmation
    }
}

impl State {
    /// Submits a client's tasks.
    pub(super) fn submit(&mut self, client: ClientId, submission: Submission) {
        self.set_stimulus("update-graph");
        if !self.clients.contains_key(&client) {
            return;
        }
        self.abandon_unfinished(client);
        let Submission {
            part:
                SubmissionPart {
                    tasks,
                    unneeded,
                    has_more,
                },
            keys,
            actors,
            submitting_task,
            fifo_timeout,
            code,
        } = submission;
        self.collect_keys(&keys);
        self.submission_count += 1;
        self.codes.add(self.submission_count, code);
        let submitting = Submitting {
            client,
            number: (!has_more).then(|| self.count_graph(client)),
            confirmation: self.confirmation_of(client),
            began: self.now,
            new_count: 0,
            ids: Vec::with_capacity(tasks.len()),
            tasks: tasks.into(),
            unneeded: unneeded.into(),
            has_more,
            is_in_parts: has_more,
            measured: (0, 0),
            reserved: 0,
            measured_demands: BTreeSet::new(),
            found: Vec::with_capacity(keys.len()),
            keys,
            key_count: 0,
            actors: actors.into_iter(),
            step: self.first_step(),
            failure: None,
            generation: self.generation_of(submitting_task.as_ref(), fifo_timeout),
            submission: self.submission_count,
            groups: BTreeMap::new(),
        };
        if has_more {
            self.unfinished.insert(client);
        }
        self.start(Job::Submit(Box::new(submitting)));
        self.settle();
    }

    /// Adds a part to the submission of a client of which parts are missing. It is ignored if there is
    /// none.
    pub(super) fn continue_submission(&mut self, client: ClientId, part: SubmissionPart) {
        self.set_stimulus("update-graph");
        if !self.unfinished.contains(&client) {
            return;
        }
        let SubmissionPart {
            tasks,
            unneeded,
            has_more,
        } = part;
        let number = (!has_more).then(|| self.count_graph(client));
        let first_step = self.first_step();
        self.change_unfinished(client, |submitting| {
            submitting.has_more = has_more;
            submitting.number = number;
            if submitting.has_ended() {
                return 0;
            }
            match submitting.tasks.is_empty() {
                true => submitting.tasks = tasks.into(),
                false => submitting.tasks.extend(tasks),
            }
            submitting.unneeded.extend(unneeded);
            submitting.step = first_step;
            submitting.measured = (0, 0);
            submitting.measured_demands.clear();
            core::mem::take(&mut submitting.reserved)
        });
        if !has_more {
            self.unfinished.remove(&client);
        }
        self.settle();
    }

    /// Ends the submission of a client of which parts are missing, if there is one. These are ignored.
    pub(super) fn end_unfinished(&mut self, client: ClientId) {
        if self.unfinished.contains(&client) {
            self.change_unfinished(client, |submitting| {
                submitting.end();
                0
            });
        }
    }

    /// Like [`end_unfinished`](Self::end_unfinished), if no other parts come. The graph does not count.
    pub(super) fn abandon_unfinished(&mut self, client: ClientId) {
        if self.unfinished.remove(&client) {
            self.change_unfinished(client, |submitting| {
                submitting.has_more = false;
                submitting.end();
                0
            });
        }
    }

    /// Changes the submission of a client of which parts are missing, and goes on with it. `change` returns
    /// the memory that is no longer kept for it.
    fn change_unfinished(
        &mut self,
        client: ClientId,
        change: impl FnOnce(&mut Submitting) -> usize,
    ) {
        if let Some(mut paused) = self.paused.remove(&client) {
            self.reserved_len -= change(&mut paused);
            return self.start(Job::Submit(paused));
        }
        let unfinished = self.unfinished_jobs(client).next();
        let len = unfinished.map_or(0, change);
        self.reserved_len -= len;
    }

    const fn first_step(&self) -> Step {
        match self.policy.max_tasks_len {
            usize::MAX => Step::Insert,
            _ => Step::Measure,
        }
    }

    /// Continues a submission. Returns whether it is done, or waits for its next part.
    pub(super) fn submit_slice(&mut self, submitting: &mut Submitting) -> bool {
        for _ in 0..self.slice_len {
            submitting.step = match submitting.step {
                Step::Measure => self.measure_submitted(submitting),
                Step::Wait if self.reserved_len > 0 => return false,
                Step::Wait => {
                    submitting.measured = (0, 0);
                    submitting.measured_demands.clear();
                    Step::Measure
                }
                Step::Insert => match submitting.tasks.pop_front() {
                    Some(task) => self.insert_submitted(task, submitting),
                    None => Step::Unkeep,
                },
                // Parts that came meanwhile may depend on these tasks.
                Step::Unkeep if !submitting.tasks.is_empty() => Step::Insert,
                Step::Unkeep => match submitting.unneeded.pop_front() {
                    Some(index) => {
                        let id = submitting.ids.get_mut(index).and_then(Option::take);
                        self.unkeep(id);
                        Step::Unkeep
                    }
                    None if submitting.has_more => Step::Pause,
                    None => Step::Find,
                },
                Step::Pause => {
                    self.reserved_len -= core::mem::take(&mut submitting.reserved);
                    return true;
                }
                Step::Find => match submitting.keys.get(submitting.found.len()) {
                    Some(key) => match self.by_key.get(key) {
                        Some(id) => {
                            submitting.found.push(*id);
                            Step::Find
                        }
                        None => Step::Cancel,
                    },
                    None => {
                        let metrics = self.metrics_of(submitting);
                        self.log_submission(submitting.client, "OK", Some(metrics));
                        Step::Mark
                    }
                },
                Step::Mark => match submitting.actors.next() {
                    Some(key) => {
                        self.mark_actor(&key);
                        Step::Mark
                    }
                    None => Step::Want,
                },
                Step::Want => match submitting.keys.get(submitting.key_count) {
                    Some(key) => {
                        let found = submitting.found.get(submitting.key_count).copied();
                        submitting.key_count += 1;
                        let by = (submitting.client, submitting.confirmation);
                        self.want_submitted(by, key, found);
                        Step::Want
                    }
                    None if submitting.is_in_parts => Step::Activate,
                    None => Step::End,
                },
                Step::Activate if !self.todo.activated.is_empty() => return false,
                Step::Activate => Step::End,
                Step::Cancel => {
                    self.take_back(submitting);
                    Step::End
                }
                Step::Refuse => self.refuse_key(submitting),
                Step::End => match submitting.ids.pop() {
                    Some(id) => {
                        self.unkeep(id);
                        Step::End
                    }
                    None => {
                        let groups = core::mem::take(&mut submitting.groups);
                        for (_, group) in groups.into_values() {
                            self.leave_group(group);
                        }
                        self.reserved_len -= core::mem::take(&mut submitting.reserved);
                        Step::Ended
                    }
                },
                Step::Ended => {
                    if let Some(number) = submitting.number.take() {
                        self.graph_done(submitting.client, number);
                    }
                    return true;
                }
            };
        }
        false
    }

    /// No longer keeps a task of a submission.
    fn unkeep(&mut self, id: Option<TaskId>) {
        if let Some(id) = id {
            self.tasks[id].waiter_count -= 1;
            self.todo.unneeded.push(id);
        }
    }

    /// Adds the memory of the next task to that of the others. Returns what is done next.
    fn measure_submitted(&mut self, submitting: &mut Submitting) -> Step {
        let (count, len) = &mut submitting.measured;
        let next = submitting.tasks.get(*count);
        if let Some(task) = next {
            *count += 1;
            if !self.by_key.contains_key(&task.key) {
                *len = len.saturating_add(task_len(&task.key, task.run_spec.len()));
                let demands = (Arc::as_ptr(&task.demands).addr(), task.calls);
                if submitting.measured_demands.insert(demands) {
                    *len = len.saturating_add(task.demands.len());
                }
            }
        }
        let taken = self.tasks_len.saturating_add(*len);
        if taken > self.policy.max_tasks_len {
            return Step::Refuse;
        }
        if taken.saturating_add(self.reserved_len) > self.policy.max_tasks_len {
            return Step::Wait;
        }
        if next.is_some() {
            return Step::Measure;
        }
        submitting.reserved = *len;
        self.reserved_len += *len;
        Step::Insert
    }

    /// Inserts a task. Returns what is done next.
    // ROLES SCHEDULER-7
    fn insert_submitted(&mut self, task: Submitted, submitting: &mut Submitting) -> Step {
        let found = task.dependencies.iter();
        let found = found.map(|dependency| match dependency {
            Dependency::Inside(index) => submitting.ids.get(*index).copied().flatten(),
            Dependency::Outside(key) => self.by_key.get(key).copied(),
        });
        let Some(mut dependencies) = found.collect::<Option<Vec<TaskId>>>() else {
            return Step::Cancel;
        };
        if let Some(known) = self.by_key.get(&task.key) {
            let known = *known;
            self.tasks[known].waiter_count += 1;
            submitting.ids.push(Some(known));
            return Step::Insert;
        }
        let demands = (Arc::as_ptr(&task.demands).addr(), task.calls);
        let group = submitting.groups.get(&demands).map(|(_, group)| *group);
        // A task that was known when it was measured may be forgotten since.
        let mut len = task_len(&task.key, task.run_spec.len());
        if group.is_none() {
            len = len.saturating_add(task.demands.len());
        }
        let kept = len.min(submitting.reserved);
        let taken = self.tasks_len.saturating_add(self.reserved_len - kept);
        if taken.saturating_add(len) > self.policy.max_tasks_len {
            return Step::Refuse;
        }
        submitting.reserved -= kept;
        self.reserved_len -= kept;
        dependencies.sort_unstable();
        dependencies.dedup();
        let priority = Priority {
            user: -task.user_priority,
            is_root: false,
            generation: submitting.generation,
            order: task.order,
            submission: submitting.submission,
        };
        let group = match group {
            Some(group) => group,
            None => {
                // The submission counts as a task, so that the group exists until the end.
                let group = self.join_group(&task.demands, task.calls);
                let kept = (Arc::clone(&task.demands), group);
                submitting.groups.insert(demands, kept);
                group
            }
        };
        self.groups[group].task_count += 1;
        let spec = (task.run_spec, task.demands, group);
        let id = self.insert_task(task.key, Some(spec), priority);
        for dependency in &dependencies {
            self.add_dependent(*dependency, id);
        }
        let new = &mut self.tasks[id];
        new.dependencies = dependencies;
        new.retries = task.retries;
        new.waiter_count = 1;
        self.journal_task(id);
        submitting.new_count += 1;
        submitting.ids.push(Some(id));
        if submitting.has_more && submitting.actors.len() == 0 {
            self.activate_next(id);
        }
        Step::Insert
    }

    /// Has a key that a client has submitted fail, because the tasks would need too much memory. What
    /// the client already knows of the key stays as it is.
    fn refuse_key(&mut self, submitting: &mut Submitting) -> Step {
        let client = submitting.client;
        let Some(key) = submitting.keys.get(submitting.key_count) else {
            self.log_submission(client, "error", None);
            return Step::End;
        };
        submitting.key_count += 1;
        let known = self.by_key.get(key);
        if known.is_none_or(|task| !self.is_confirmed(client, *task)) {
            let limit = self.policy.max_tasks_len;
            let failure = submitting.failure.get_or_insert_with(|| {
                let message = format!(
                    "the tasks would take more than the {limit} bytes that the scheduler has for \
                     tasks: submit fewer at once, or pass large arguments by `scatter`"
                );
                Failure::new("MemoryError", &message, None)
            });
            let message = erred(key, failure);
            self.send_client(client, message);
        }
        Step::Refuse
    }

    /// Has a client want a key that it has submitted, and whose task was found before.
    fn want_submitted(
        &mut self,
        (client, confirmation): (ClientId, u32),
        key: &Key,
        found: Option<TaskId>,
    ) {
        // It may be forgotten since, or another one.
        let is_same = |id: &TaskId| self.tasks.get(*id).is_some_and(|task| task.key == *key);
        let found = found.filter(is_same);
        let Some(id) = found.or_else(|| self.by_key.get(key).copied()) else {
            return self.cancelled(client, vec![key.clone()], "lost dependencies", None);
        };
        self.want(client, confirmation, id);
        match &self.tasks[id].stage {
            TaskStage::Released => self.activate(id),
            TaskStage::Memory | TaskStage::Erred(_) => self.report(client, key),
            _ => {}
        }
    }

    /// Cancels the keys of a submission.
    fn take_back(&mut self, submitting: &mut Submitting) {
        let keys = core::mem::take(&mut submitting.keys);
        let client = submitting.client;
        let known = keys.iter().filter_map(|key| self.by_key.get(key));
        for id in known.copied().collect::<Vec<_>>() {
            self.release(client, id);
        }
        self.cancelled(client, keys, "lost dependencies", None);
        self.log_submission(client, "cancelled", None);
    }

    /// Returns the generation of a submission. Tasks of earlier generations run first.
    // ROLES SCHEDULER-8
    fn generation_of(&mut self, submitting_task: Option<&Key>, fifo_timeout: Duration) -> u64 {
        if submitting_task.is_some_and(|key| self.by_key.contains_key(key)) {
            // Before all tasks that no task has submitted.
            return 0;
        }
        let is_alone = self.generation == 0
            || fifo_timeout.is_zero()
            || self.generation_began.saturating_add(fifo_timeout) < self.now;
        if submitting_task.is_none() && is_alone {
            self.generation += 1;
            self.generation_began = self.now;
        }
        self.generation
    }

    /// Refuses a client's submission.
    pub(super) fn refuse(&mut self, client: ClientId, refusal: &Refusal) {
        if !self.clients.contains_key(&client) {
            return;
        }
        // Of one that has ended already, the client knows that.
        let has_ended = self.unfinished.contains(&client) && {
            let paused = self.paused.get(&client).map(|paused| paused.has_ended());
            let mut jobs = self.unfinished_jobs(client);
            paused.unwrap_or_else(|| jobs.any(|job| job.has_ended()))
        };
        if !has_ended {
            self.log_submission(client, "error", None);
            for key in &refusal.keys {
                self.send_client(client, erred(key, &refusal.failure));
            }
        }
        if refusal.is_last {
            self.abandon_unfinished(client);
            let number = self.count_graph(client);
            self.graph_done(client, number);
        }
    }

    fn log_submission(&mut self, client: ClientId, status: &str, metrics: Option<Value>) {
        let name = self.client_name(client);
        let topics = ["scheduler", &name];
        let stimulus = ("stimulus_id", Value::from(self.stimulus.to_string()));
        let status = ("status", Value::from(status));
        match metrics {
            Some(metrics) => {
                let metrics = ("metrics", metrics);
                self.log(&topics, "update-graph", [stimulus, metrics, status]);
            }
            None => self.log(&topics, "update-graph", [stimulus, status]),
        }
    }

    /// The numbers of Dask about a submission, without those about Python's graph.
    fn metrics_of(&self, submitting: &Submitting) -> Value {
        let duration = self.now.saturating_sub(submitting.began).as_secs_f64();
        Value::dict([
            ("tasks", Value::from(submitting.ids.len())),
            ("new_tasks", Value::from(submitting.new_count)),
            ("key_collisions", Value::from(0)),
            (
                "start_timestamp_seconds",
                Value::from(submitting.began.as_secs_f64()),
            ),
            ("duration_seconds", Value::from(duration)),
        ])
    }

    /// Retries failed tasks, the failed tasks that they depend on, and the failed tasks that
    /// depend on any of these.
    pub(super) fn retry(&mut self, keys: Vec<Key>) {
        self.set_stimulus("client-retry");
        self.start(Job::Retry(keys.into_iter()));
        self.settle();
    }

    pub(super) fn retry_part(&mut self, keys: &[Key]) {
        let known = keys.iter().filter_map(|key| self.by_key.get(key));
        let mut failed: Vec<TaskId> = known.copied().collect();
        let mut all = BTreeSet::new();
        while let Some(id) = failed.pop() {
            if matches!(self.tasks[id].stage, TaskStage::Erred(_)) && all.insert(id) {
                failed.extend(&self.tasks[id].dependencies);
            }
        }
        failed.extend(&all);
        while let Some(id) = failed.pop() {
            for dependent in &self.tasks[id].dependents {
                if matches!(self.tasks[*dependent].stage, TaskStage::Erred(_))
                    && all.insert(*dependent)
                {
                    failed.push(*dependent);
                }
            }
        }
        for id in &all {
            self.set_stage(*id, TaskStage::Released);
            self.tasks[*id].kill_count = 0;
        }
        for id in all {
            let task = &self.tasks[id];
            let message = TaskRetried {
                key: task.key.clone(),
                ..TaskRetried::default()
            };
            for client in task.wanted_by.clone() {
                self.send_client(client, message.clone());
            }
            let task = &self.tasks[id];
            // Its dependents may not have failed yet.
            if task.wanted_by.is_empty() && task.waiter_count == 0 {
                self.todo.unneeded.push(id);
            } else {
                self.activate(id);
            }
        }
    }

    /// Records that a new task needs another one.
    pub(super) fn add_dependent(&mut self, dependency: TaskId, id: TaskId) {
        let needed = &mut self.tasks[dependency];
        needed.dependents.insert(id);
        let on = needed.key_group;
        self.key_groups.depend(self.tasks[id].key_group, on);
    }

    pub(super) fn insert_task(
        &mut self,
        key: Key,
        spec: Option<(Payload, Arc<Demands>, GroupId)>,
        priority: Priority,
    ) -> TaskId {
        let key_group = self.key_groups.add(&key);
        let run_spec = spec.map(|(mut payload, demands, group)| {
            payload.share(self.key_groups.payload_base(key_group));
            RunSpec {
                payload,
                demands,
                group,
            }
        });
        let id = self.tasks.insert(Task {
            key: key.clone(),
            run_spec,
            priority,
            stage: TaskStage::Released,
            last_recorded_stage: StateName::Released,
            changed: seconds(self.now),
            key_group,
            dependencies: Vec::new(),
            dependents: BTreeSet::new(),
            waiter_count: 0,
            missing_count: 0,
            wanted_by: Few::None,
            who_has: Few::None,
            nbytes: 0,
            class: None,
            retries: 0,
            kill_count: 0,
            run_id: 0,
            expected: None,
            is_orphan: false,
            is_actor: false,
            actor_on: None,
        });
        self.tasks_len += self.tasks[id].len();
        self.extensions.task_added(&key);
        self.by_key.insert(key, id);
        id
    }
}

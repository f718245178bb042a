//! Computing tasks.

use core::time::Duration;

use daskwire_messages::protocol::{
    ComputeTask, LongRunning, Nullable, ReplyStatus, Reschedule, StartStop, TaskErred,
    TaskFinished, WorkerStatus,
};
use daskwire_messages::{Key, Value};
use daskwire_rpc::story::TaskChange;

use super::event::{Description, Executed, Failure, Run, WorkerInput, stimulus};
use super::task::{Computation, Priority, Running, Task, TaskStage};
use super::{Action, State};

impl State {
    pub(super) fn compute(&mut self, message: ComputeTask) {
        let key = message.key.clone();
        let run_id = message.run_id;
        let stage = self
            .tasks
            .get(&key)
            .map_or(TaskStage::Released, |task| task.stage);
        let state = stage.name();
        self.record(key.clone(), TaskChange::ComputeRequested { state });
        match self.tasks.get_mut(&key) {
            Some(task) if task.stage == TaskStage::Memory => {
                let description = task.description.clone();
                self.send_finished(key, run_id, description, Vec::new(), None);
            }
            Some(task) if matches!(task.stage, TaskStage::Waiting | TaskStage::Ready) => {
                if let Some(computation) = &mut task.computation {
                    computation.run_id = run_id;
                }
            }
            Some(task) if task.stage == TaskStage::Executing => {
                let computation = task.computation.as_ref();
                if computation.is_none_or(|computation| computation.run_id != run_id) {
                    self.keep_request(message);
                }
            }
            // Computed only if fetching the data fails.
            Some(task) if task.stage == TaskStage::Flight => {
                task.computation = Some(Box::new(Computation {
                    run_id,
                    message: Some(Box::new(message)),
                    ..Computation::default()
                }));
            }
            _ => self.begin(message),
        }
    }

    /// Keeps the request for a task that still executes for an earlier one, until that
    /// execution ends. Its outcome may not hold for the new run: the key may be that of
    /// another task, or the execution the barrier of an earlier run of a shuffle.
    ///
    /// Dask's workers report the outcome of the earlier run, and the scheduler asks again; but
    /// that ends the shuffle whose barrier it asks for.
    fn keep_request(&mut self, message: ComputeTask) {
        let key = message.key.clone();
        let run_id = message.run_id;
        let running = self.executing.get(&key);
        let has_seceded = running.is_some_and(|running| running.has_seceded);
        if let Some(task) = self.tasks.get_mut(&key) {
            let former = task.computation.replace(Box::new(Computation {
                run_id,
                message: Some(Box::new(message)),
                is_reported_seceded: has_seceded,
                ..Computation::default()
            }));
            if former.is_some_and(|former| former.message.is_none()) {
                self.actions.push(Action::Cancel(key.clone()));
            }
        }
        // The scheduler counts a new run as one that uses a thread.
        if has_seceded {
            self.send_seceded(key, run_id, None);
        }
    }

    /// Handles the end of an execution for an earlier run than the one that the scheduler has
    /// asked for. Returns `false` if there is no later run.
    fn take_up_request(&mut self, key: &Key) -> bool {
        let task = self.tasks.get_mut(key);
        let task = task.filter(|task| task.stage == TaskStage::Executing);
        let computation = task.and_then(|task| task.computation.as_mut());
        let Some(computation) = computation else {
            return false;
        };
        let is_reported_seceded = computation.is_reported_seceded;
        let Some(message) = computation.message.take() else {
            return false;
        };
        self.actions.push(Action::Forget(key.clone()));
        self.begin(*message);
        let computation = self
            .tasks
            .get_mut(key)
            .and_then(|task| task.computation.as_mut());
        if let Some(computation) = computation {
            computation.is_reported_seceded = is_reported_seceded;
        }
        true
    }

    /// Prepares to compute a task that is new, queued for fetching, or failed.
    pub(super) fn begin(&mut self, mut message: ComputeTask) {
        let key = message.key.clone();
        let priority = self.next_priority(&message.priority);
        self.leave_queues(&key);
        // The scheduler has changed its mind if it asked for a replica.
        self.entry(&key, priority).is_acquired = false;
        if self.executing.contains_key(&key) {
            // The data was stored in another way meanwhile, and freed.
            self.set_phase(&key, TaskStage::Executing);
            self.keep_request(message);
            return;
        }
        let mut dependencies = Vec::with_capacity(message.nbytes.len());
        let mut missing_count = 0;
        for (dependency, nbytes) in core::mem::take(&mut message.nbytes.0) {
            if dependency == key {
                continue;
            }
            let task = self.ensure(&dependency, nbytes, priority);
            if !task.dependents.insert(key.clone()) {
                // The dependency is listed twice.
                continue;
            }
            if task.stage != TaskStage::Memory {
                missing_count += 1;
            }
            dependencies.push(dependency);
        }
        for (dependency, holders) in core::mem::take(&mut message.who_has) {
            if dependency != key {
                self.locate(&dependency, &holders);
            }
        }
        let resources = resources(&message.resource_restrictions);
        let computation = Box::new(Computation {
            run_id: message.run_id,
            run_spec: Some(message.take_run_spec()),
            is_actor: message.actor,
            annotations: message
                .annotations
                .take()
                .filter(|of| !matches!(of, Value::Dict(entries) if entries.is_empty())),
            dependencies,
            missing_count,
            resources,
            ..Computation::default()
        });
        let task = self.entry(&key, priority);
        task.computation = Some(computation);
        task.priority = priority;
        task.holders = Vec::new();
        task.reserve = Vec::new();
        self.set_phase(&key, TaskStage::Waiting);
        if missing_count == 0 {
            self.become_ready(&key);
        }
    }

    pub(super) fn become_ready(&mut self, key: &Key) {
        let Some(task) = self.tasks.get(key) else {
            return;
        };
        let entry = (task.priority, key.clone());
        let needs_resources = task
            .computation
            .as_ref()
            .is_some_and(|computation| !computation.resources.is_empty());
        if needs_resources {
            self.constrained.insert(entry);
        } else {
            self.ready.insert(entry);
        }
        self.set_phase(key, TaskStage::Ready);
    }

    pub(super) fn start_tasks(&mut self) {
        while self.busy_count() < self.limits.nthreads {
            let Some((_, key)) = self.next_ready() else {
                break;
            };
            let Some(task) = self.tasks.get_mut(&key) else {
                continue;
            };
            let Some(computation) = &mut task.computation else {
                continue;
            };
            let Some(run_spec) = computation.run_spec.take() else {
                continue;
            };
            let is_actor = computation.is_actor;
            let annotations = computation.annotations.take();
            let dependencies = core::mem::take(&mut computation.dependencies);
            let resources = computation.resources.clone();
            for (name, amount) in &resources {
                if let Some(free) = self.free_resources.get_mut(name) {
                    *free -= amount;
                }
            }
            self.set_phase(&key, TaskStage::Executing);
            // A running task holds its inputs itself, so their keys may be
            // released.
            self.unlink(&key, &dependencies);
            let since = self.now;
            let running = Running {
                since,
                resources,
                has_seceded: false,
                rejoins_since: None,
            };
            self.executing.insert(key.clone(), running);
            self.actions.push(Action::Execute(Box::new(Run {
                key,
                run_spec,
                dependencies,
                is_actor,
                annotations,
            })));
        }
    }

    /// Takes the first ready task whose resources are free.
    pub(super) fn next_ready(&mut self) -> Option<(Priority, Key)> {
        let constrained = self.constrained.first();
        let is_first = match (constrained, self.ready.first()) {
            (Some((constrained, _)), Some((ready, _))) => constrained < ready,
            (constrained, _) => constrained.is_some(),
        };
        let can_run = is_first
            && constrained.is_some_and(|(_, key)| {
                let computation = self
                    .tasks
                    .get(key)
                    .and_then(|task| task.computation.as_ref());
                computation.is_some_and(|computation| {
                    computation.resources.iter().all(|(name, amount)| {
                        let free = self.free_resources.get(name);
                        free.is_some_and(|free| free >= amount)
                    })
                })
            });
        if can_run {
            self.constrained.pop_first()
        } else {
            self.ready.pop_first()
        }
    }

    pub(super) fn executed(&mut self, executed: Executed) {
        let Executed {
            key,
            outcome,
            start,
            stop,
            steps,
            thread,
        } = executed;
        self.stop_executing(&key);
        if self.take_up_request(&key) {
            return;
        }
        let Some(task) = self.tasks.get_mut(&key) else {
            // The task was forgotten.
            self.actions.push(Action::Forget(key));
            return;
        };
        if task.stage != TaskStage::Executing {
            // The result was obtained from elsewhere, and may have been freed since.
            if task.stage != TaskStage::Memory {
                self.actions.push(Action::Forget(key));
            }
            return;
        }
        let Some(computation) = task.computation.take() else {
            self.executed_after_free(&key, outcome);
            return;
        };
        let mut startstops = computation.startstops;
        startstops.extend(steps);
        startstops.push(startstop(
            "compute",
            start.as_secs_f64(),
            stop.as_secs_f64(),
            None,
        ));
        match outcome {
            Ok(description) => {
                self.arrive(&key, description.clone());
                if let Some(task) = self.tasks.get_mut(&key) {
                    task.is_actor = computation.is_actor;
                }
                self.send_finished(key, computation.run_id, description, startstops, thread);
            }
            Err(failure) => {
                self.set_phase(&key, TaskStage::Error);
                // Another worker may have the data that could not be computed
                // here.
                if self.tasks.get(&key).is_some_and(Task::is_wanted) {
                    self.fetch(&key);
                }
                self.send(TaskErred {
                    key,
                    run_id: computation.run_id,
                    status: Some(ReplyStatus::Error),
                    exception: failure.exception,
                    // distributed 2025.4.0 to 2026.3.0 require the field.
                    traceback: Some(failure.traceback),
                    exception_text: Some(failure.exception_text),
                    traceback_text: Some(failure.traceback_text),
                    startstops: Some(startstops),
                    stimulus_id: stimulus("task-erred", self.now),
                    thread,
                    ..TaskErred::default()
                });
            }
        }
    }

    /// Prepares to return a task that cannot run here.
    pub(super) fn unsupported(&mut self, executed: Executed, reason: Option<String>) {
        let key = executed.key.clone();
        let computation = self.tasks.get(&key).and_then(|task| {
            let computation = task.computation.as_ref()?;
            let is_current = task.stage == TaskStage::Executing && computation.message.is_none();
            is_current.then_some(computation)
        });
        if computation.is_none() {
            self.executed(executed);
            return;
        }
        let after = self.next_return(&key);
        self.stop_executing(&key);
        let task = self.tasks.get_mut(&key);
        if let Some(computation) = task.and_then(|task| task.computation.as_mut()) {
            computation.is_unsupported = true;
            computation.reason = reason;
        }
        self.set_phase(&key, TaskStage::Waiting);
        let event = Box::new(WorkerInput::GiveBack(key));
        self.actions.push(Action::Wake { after, event });
    }

    /// Computes the pause before a task is returned, which grows with each return.
    fn next_return(&mut self, key: &Key) -> Duration {
        if self.returns.len() >= MAX_RETURNS && !self.returns.contains_key(key) {
            self.returns.clear();
        }
        let now = self.now;
        let (count, last) = self.returns.entry(key.clone()).or_insert((0, now));
        if now.saturating_sub(*last) > RETURN_AGE {
            *count = 0;
        }
        let pause = FIRST_RETURN.saturating_mul(1_u32.checked_shl(*count).unwrap_or(u32::MAX));
        *count = count.saturating_add(1);
        *last = now;
        pause.min(MAX_RETURN_PAUSE)
    }

    pub(super) fn return_unsupported(&mut self, key: &Key) {
        let computation = self.tasks.get(key).and_then(|task| {
            let is_waiting = task.stage == TaskStage::Waiting;
            task.computation.as_ref().filter(|_| is_waiting)
        });
        // The task may have been freed or stolen meanwhile.
        let Some(computation) = computation.filter(|computation| computation.is_unsupported) else {
            return;
        };
        let reason = computation.reason.clone();
        self.stop_waiting(key);
        // ROLES WORKER-7: a paused status is the only way to make the scheduler choose another
        // worker. Otherwise it may find this one the least busy again.
        let is_running = self.status == WorkerStatus::Running;
        if is_running {
            self.send_status(WorkerStatus::Paused);
        }
        self.send_reschedule(key, "task-unsupported", reason);
        if is_running {
            self.send_status(WorkerStatus::Running);
        }
    }

    /// Whether the result of an executing task is still wanted: not once the worker has begun to
    /// leave.
    pub fn is_wanted(&self, key: &Key) -> bool {
        self.status != WorkerStatus::Closing && self.is_computing(key)
    }

    /// The number of executing tasks that count towards [`Limits::nthreads`](super::Limits).
    pub(super) fn busy_count(&self) -> usize {
        self.executing.len().saturating_sub(self.seceded_count)
    }

    /// Makes a task wait to rejoin, if it has seceded. Returns whether it has.
    pub(super) fn wait_to_rejoin(&mut self, key: &Key) -> bool {
        let running = self.executing.get_mut(key);
        let Some(running) = running.filter(|running| running.has_seceded) else {
            return false;
        };
        if let Some(since) = running.rejoins_since.replace(self.now) {
            self.rejoining.remove(&(since, key.clone()));
        }
        self.rejoining.insert((self.now, key.clone()));
        true
    }

    /// Lets tasks that wait to rejoin continue within the limit, those that wait longest first.
    pub(super) fn rejoin_tasks(&mut self) {
        while self.busy_count() < self.limits.nthreads {
            let Some((_, key)) = self.rejoining.pop_first() else {
                break;
            };
            if let Some(running) = self.executing.get_mut(&key) {
                running.has_seceded = false;
                running.rejoins_since = None;
                self.seceded_count = self.seceded_count.saturating_sub(1);
            }
            self.actions.push(Action::Rejoin(key));
        }
    }

    /// Handles a task that no longer counts towards the limit although it still runs.
    pub(super) fn seceded(&mut self, key: &Key, run_time: Duration) {
        let Some(running) = self.executing.get_mut(key) else {
            return;
        };
        if let Some(since) = running.rejoins_since.take() {
            self.rejoining.remove(&(since, key.clone()));
            self.actions.push(Action::Rejoin(key.clone()));
        }
        if core::mem::replace(&mut running.has_seceded, true) {
            return;
        }
        self.seceded_count += 1;
        let task = self.tasks.get_mut(key);
        let task = task.filter(|task| task.stage == TaskStage::Executing);
        let Some(computation) = task.and_then(|task| task.computation.as_mut()) else {
            return;
        };
        let run_id = computation.run_id;
        // The run time of an earlier run says nothing of this one.
        let run_time = computation.message.is_none().then_some(run_time);
        // Schedulers count each report of a run.
        if !core::mem::replace(&mut computation.is_reported_seceded, true) {
            self.send_seceded(key.clone(), run_id, run_time);
        }
    }

    /// Reports that a task does not use a thread any more. `run_time` is the run time
    /// until then, unless it was reported before.
    pub(super) fn send_seceded(&mut self, key: Key, run_id: i64, run_time: Option<Duration>) {
        self.send(LongRunning {
            key,
            run_id,
            compute_duration: Nullable(run_time.map(|time| time.as_secs_f64())),
            stimulus_id: stimulus("secede", self.now),
            ..LongRunning::default()
        });
    }

    /// Ends the execution of a task, and frees its resources.
    pub(super) fn stop_executing(&mut self, key: &Key) {
        if let Some(running) = self.executing.remove(key) {
            self.seceded_count = self
                .seceded_count
                .saturating_sub(usize::from(running.has_seceded));
            if let Some(since) = running.rejoins_since {
                self.rejoining.remove(&(since, key.clone()));
            }
            for (name, amount) in running.resources {
                if let Some(free) = self.free_resources.get_mut(&name) {
                    *free += amount;
                }
            }
        }
    }

    /// Returns a task to the scheduler, which assigns it again, here or elsewhere.
    pub(super) fn reschedule(&mut self, key: &Key, reason: &str) {
        self.stop_executing(key);
        if self.take_up_request(key) {
            return;
        }
        let Some(task) = self.tasks.get_mut(key) else {
            return;
        };
        if task.stage != TaskStage::Executing {
            return;
        }
        let is_computed = task.computation.take().is_some();
        if self.tasks.get(key).is_some_and(Task::is_wanted) {
            self.fetch(key);
        } else {
            self.remove(key);
        }
        if is_computed {
            self.send_reschedule(key, reason, None);
        }
    }

    fn send_reschedule(&mut self, key: &Key, stimulus_id: &str, reason: Option<String>) {
        let reason = reason.map(|reason| (Value::from("reason"), Value::from(reason)));
        self.send(Reschedule {
            key: key.clone(),
            stimulus_id: stimulus(stimulus_id, self.now),
            extra: reason.into_iter().collect(),
        });
    }

    pub(super) fn on_data_lost(&mut self, keys: &[Key]) {
        let stimulus_id = stimulus("lost-data", self.now);
        for key in keys {
            let stage = self.tasks.get(key).map(|task| task.stage);
            if stage == Some(TaskStage::Memory) {
                self.release(key, &stimulus_id);
            }
        }
    }

    /// Reports that the data of a task is available.
    pub(super) fn send_finished(
        &mut self,
        key: Key,
        run_id: i64,
        description: Description,
        startstops: Vec<StartStop>,
        thread: Option<i64>,
    ) {
        self.send(TaskFinished {
            key,
            run_id,
            status: Some(ReplyStatus::Ok),
            nbytes: description.nbytes,
            class: Nullable(description.class),
            typename: description.typename.into_owned(),
            startstops,
            stimulus_id: stimulus("task-finished", self.now),
            thread,
            ..TaskFinished::default()
        });
    }

    /// Handles the result of a task that was freed while it ran. Another task may
    /// need it.
    pub(super) fn executed_after_free(
        &mut self,
        key: &Key,
        outcome: Result<Description, Box<Failure>>,
    ) {
        let is_wanted = self.tasks.get(key).is_some_and(Task::is_wanted);
        match outcome {
            Ok(description) if is_wanted => {
                self.arrive(key, description);
                self.send_add_keys([key.clone()]);
            }
            Ok(_) => {
                self.actions.push(Action::Forget(key.clone()));
                self.remove(key);
            }
            Err(_) if is_wanted => self.fetch(key),
            Err(_) => self.remove(key),
        }
    }
}

pub(crate) fn startstop(action: &str, start: f64, stop: f64, source: Option<&str>) -> StartStop {
    StartStop {
        action: action.to_owned(),
        start,
        stop,
        source: source.map(str::to_owned),
        ..StartStop::default()
    }
}

/// Maximum number of tasks whose returns are counted.
const MAX_RETURNS: usize = 10_000;

/// Time after which earlier returns of a task no longer lengthen the pause.
const RETURN_AGE: Duration = Duration::from_secs(60);

/// Pause before the first return of a task; it doubles with each.
const FIRST_RETURN: Duration = Duration::from_millis(5);

/// Maximum pause before a return.
const MAX_RETURN_PAUSE: Duration = Duration::from_secs(1);

fn resources(restrictions: &Nullable<Value>) -> Vec<(String, f64)> {
    let Nullable(Some(Value::Dict(entries))) = restrictions else {
        return Vec::new();
    };
    let amount = |value: &Value| f64::try_from(value.clone()).ok();
    entries
        .iter()
        .filter_map(|(name, value)| Some((name.as_str()?.to_owned(), amount(value)?)))
        .collect()
}

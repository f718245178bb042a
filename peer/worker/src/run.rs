//! Runs tasks.

use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use daskwire_messages::graph::{Function, GraphError, Task, Work};
use daskwire_messages::value::Serialized;
use daskwire_messages::{Key, RemoteError, Value};
use daskwire_rpc::event::{self, emit};

use super::context::Execution;
use super::diagnostics::Level;
use super::evaluate::{self, Evaluated, Fault, FusedWith, TaskContext};
use super::event::WorkerEvent;
use super::metrics::{self, to_startstops};
#[cfg(target_os = "linux")]
use super::python::is_for_python;
use super::scheduler_plugin::allowed_workers;
use super::state::{Description, Executed, Failure, Run, WorkerInput};
use super::{Shared, now, threads};
use daskwire_store::{self as store, Datum, InUse, Steps};

/// Maximum number of quick tasks run on the calling thread before other futures are polled.
const MAX_INLINE_TASKS: usize = 64;

/// A task to run, with its inputs.
pub(super) struct Job {
    pub(super) key: Key,
    pub(super) spec: Spec,
    pub(super) data: HashMap<Key, Datum>,
    /// Keeps the inputs in memory.
    pub(super) in_use: Vec<InUse>,
    pub(super) is_actor: bool,
    /// The annotations of the task.
    pub(super) annotations: Option<Value>,
}

/// The outcome of a task that ran.
pub(super) struct Done {
    pub(super) key: Key,
    pub(super) result: Result<(Datum, Description), (String, Failure)>,
    pub(super) start: Duration,
    pub(super) stop: Duration,
    /// Processor time of the thread that ran the function.
    pub(super) processor_time: Duration,
    pub(super) steps: Vec<store::Done>,
    /// The number by which Dask's dashboard distinguishes threads.
    pub(super) thread: i64,
    /// Whether the task needs a feature that this worker lacks.
    pub(super) is_unsupported: bool,
    /// Whether the result is no longer wanted, so that a failure is not reported.
    pub(super) is_cancelled: bool,
    /// The annotations of a task that may be unsupported.
    pub(super) annotations: Option<Value>,
}

pub(super) enum Spec {
    Unread(Serialized),
    Read(Task),
}

impl Shared {
    pub(super) fn job(&self, run: Run) -> Job {
        let datum = |key: &Key| Some((key.clone(), self.store.get(key)?));
        let data: HashMap<Key, Datum> = run.dependencies.iter().filter_map(datum).collect();
        Job {
            in_use: data.values().map(Datum::in_use).collect(),
            data,
            key: run.key,
            spec: Spec::Unread(run.run_spec),
            is_actor: run.is_actor,
            annotations: run.annotations,
        }
    }

    /// Runs quick tasks on the calling thread, and queues others for the threads.
    pub(super) fn begin(self: &Arc<Self>, jobs: Vec<Job>) {
        let mut jobs = VecDeque::from(jobs);
        let mut left = MAX_INLINE_TASKS;
        while let Some(mut job) = jobs.pop_front() {
            // A panic while the task is parsed is ignored here: running the task panics
            // again, and reports it.
            let is_quick = left != 0
                && catch_unwind(AssertUnwindSafe(|| self.is_quick(&mut job))).unwrap_or(false);
            if is_quick {
                left -= 1;
                jobs.extend(self.run(job, true));
            } else {
                self.queue.push(job);
            }
        }
    }

    pub(super) fn is_quick(&self, job: &mut Job) -> bool {
        /// Maximum length in bytes of a task that is parsed on the calling thread.
        const MAX_LEN: usize = 1 << 10;
        let is_short = |job: &Job| match &job.spec {
            Spec::Unread(spec) => spec.header().len() <= MAX_LEN && spec.frames().is_empty(),
            Spec::Read(_) => true,
        };
        #[cfg(target_os = "linux")]
        if self.python.is_some() && !is_short(job) {
            return false;
        }
        #[cfg(target_os = "linux")]
        if self.python.is_some() && is_for_python(job, &self.functions) {
            return false;
        }
        if is_short(job)
            && let Spec::Unread(run_spec) = &job.spec
            && !job.is_actor
            && let Ok(task) = read(run_spec, &job.key, &job.data)
        {
            let is_quick = evaluate::is_quick(&task, &self.functions, &job.data);
            job.spec = Spec::Read(task);
            return is_quick;
        }
        false
    }

    /// Runs a task, and returns the jobs to run next. `is_inline` says that the calling thread is not
    /// one for tasks.
    #[cfg_attr(not(target_os = "linux"), expect(unused_mut, reason = "for Python"))]
    pub(super) fn run(self: &Arc<Self>, mut job: Job, is_inline: bool) -> Vec<Job> {
        #[cfg(target_os = "linux")]
        if let Some(python) = &self.python
            && is_for_python(&mut job, &self.functions)
        {
            return self.run_in_python(python, job);
        }
        let start = now();
        let processor_start = threads::processor_time();
        let Job {
            key,
            spec,
            data,
            in_use,
            is_actor,
            annotations,
        } = job;
        let steps = Steps::default();
        let execution = Execution::new(Arc::clone(self), key.clone(), start, is_inline);
        let execution = Arc::new(execution);
        let evaluated = catch_unwind(AssertUnwindSafe(|| {
            let _task = event::task(&key);
            self.evaluate(&key, spec, &data, is_actor, &steps, &execution)
        }));
        let is_cancelled = execution.end();
        // Another worker would panic too, so the task fails.
        let result = evaluated.unwrap_or_else(|_| {
            let message = format!("the worker {} panicked while it ran the task", self.title);
            Err(RemoteError::new("RuntimeError", &message).into())
        });
        let is_unsupported = matches!(result, Err(Fault::Unsupported(_)));
        let lost = match &result {
            Ok(_) => Vec::new(),
            Err(_) => lost(&data),
        };
        drop(in_use);
        drop(data);
        if !lost.is_empty() {
            return self.react([], [WorkerInput::InputsLost { key, lost }]);
        }
        let result = match result {
            Ok(datum) => {
                let description = metrics::describe(&datum);
                Ok((datum, description))
            }
            Err(fault) => Err((fault.error().to_string(), fault.error().into())),
        };
        let steps = steps.take();
        let stop = now();
        let processor_time = threads::processor_time().saturating_sub(processor_start);
        let start = metrics::start_of_function((start, stop), &steps);
        self.executed(Done {
            key,
            result,
            start,
            stop,
            processor_time,
            steps,
            thread: threads::number(),
            is_unsupported,
            is_cancelled,
            annotations,
        })
    }

    /// Stores and reports the result of a task, or reports its exception. Returns the jobs
    /// to run next.
    pub(super) fn executed(self: &Arc<Self>, done: Done) -> Vec<Job> {
        let Done {
            key,
            result,
            start,
            stop,
            processor_time,
            steps,
            thread,
            is_unsupported,
            is_cancelled,
            annotations,
        } = done;
        let (datum, outcome) = match result {
            Ok((datum, description)) => (Some(datum), Ok(description)),
            Err((message, failure)) => {
                if !is_unsupported && !is_cancelled {
                    self.report_failure(&key, &message);
                }
                (None, Err(Box::new(failure)))
            }
        };
        self.tasks_done.add(
            &key.prefix(),
            (stop.saturating_sub(start), processor_time),
            &steps,
        );
        let executed = Executed {
            key: key.clone(),
            outcome,
            start,
            stop,
            steps: to_startstops(&steps),
            thread: Some(thread),
        };
        if is_unsupported {
            let allowed = allowed_workers(annotations.as_ref());
            let deciding = Arc::clone(self).cannot_run(executed, allowed);
            self.machine().spawn(deciding, &self.runtime);
            return Vec::new();
        }
        let executed = WorkerInput::Executed(executed);
        self.react(datum.map(|datum| (&key, datum)), [executed])
    }

    pub(super) fn report_failure(&self, key: &Key, error: &str) {
        self.log
            .add(Level::Warning, &format!("the task {key} failed: {error}"));
        emit(event::Level::Info, || WorkerEvent::Failed { key, error });
    }

    pub(super) fn evaluate(
        &self,
        key: &Key,
        spec: Spec,
        data: &HashMap<Key, Datum>,
        is_actor: bool,
        steps: &Steps,
        execution: &Arc<Execution>,
    ) -> Result<Datum, Fault> {
        if is_actor {
            let message = format!(
                "the worker {} only runs functions in Rust, not actors",
                self.title
            );
            let error = RemoteError::new("NotImplementedError", &message);
            return Err(Fault::Unsupported(error));
        }
        let task = match spec {
            Spec::Unread(run_spec) => read(&run_spec, key, data)?,
            Spec::Read(task) => task,
        };
        let is_python = is_python(&task);
        let context = TaskContext {
            functions: &self.functions,
            worker: &self.title,
            store: &self.store,
            data,
            steps,
            execution,
            fused_with: &FusedWith::default(),
        };
        let datum = match context.evaluate(task)? {
            Evaluated::Value(value) => self.store.made(value),
            Evaluated::Datum(datum) => datum,
        };
        // Serialized now, since no peer could fetch the result if that failed later.
        if datum.needs_check()
            && let Err(error) = datum.serialize(steps)
        {
            let worker = &self.title;
            let message = format!("the worker {worker} cannot serialize the result: {error}");
            let error = RemoteError::new("TypeError", &message);
            return Err(match is_python {
                true => Fault::Unsupported(error),
                false => Fault::Raised(error),
            });
        }
        Ok(datum)
    }
}

/// Whether workers in Python can run a task.
fn is_python(task: &Task) -> bool {
    let function = |work: &Work| match work {
        Work::Call { function, .. } => matches!(function, Function::Python { .. }),
        Work::Argument(_) => true,
        Work::Fused { .. } => false,
    };
    match &task.work {
        Work::Fused { tasks, .. } => tasks.iter().all(|task| function(&task.work)),
        work => function(work),
    }
}

/// Parses a task with these inputs.
pub(super) fn read(
    run_spec: &Serialized,
    key: &Key,
    data: &HashMap<Key, Datum>,
) -> Result<Task, GraphError> {
    Task::read_with_inputs(run_spec, key, &|key| data.contains_key(key))
}

/// The keys of inputs that were lost.
pub(super) fn lost(data: &HashMap<Key, Datum>) -> Vec<Key> {
    let lost = data.iter().filter(|(_, datum)| datum.is_lost());
    lost.map(|(key, _)| key.clone()).collect()
}

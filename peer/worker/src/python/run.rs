//! Runs tasks in Python processes.

use core::iter;
use core::time::Duration;
use std::sync::Arc;

use daskwire_messages::exception::killed_worker;
use daskwire_messages::graph::{Function, REPLACED_BY, Task, Work};
use daskwire_messages::protocol::{FromPython, PythonErred, PythonFinished, PythonSeceded};
use daskwire_messages::value::Serialized;
use daskwire_messages::{Key, RemoteError, Value};
use daskwire_rpc::event;

use super::{Call, Outcome, PythonProcesses, RunError};
use crate::functions::Functions;
use crate::run::{Done, Job, Spec, lost, read};
use crate::state::{Description, Failure, WorkerInput};
use crate::{Shared, now, threads};
use daskwire_store::{DatumError, Steps};

impl Shared {
    /// Runs a task in a Python process, and returns the jobs to run next.
    pub(crate) fn run_in_python(self: &Arc<Self>, python: &PythonProcesses, job: Job) -> Vec<Job> {
        let start = now();
        let Job {
            key,
            spec,
            data,
            in_use,
            is_actor,
            annotations,
        } = job;
        let _task = event::task(&key);
        let steps = Steps::default();
        let failed = |message: &str| {
            let error = RemoteError::new("RuntimeError", message);
            (error.to_string(), (&error).into())
        };
        let mut deaths: u64 = 0;
        // Actors and shuffles have state, which only the host keeps.
        let mut is_in_host =
            is_actor || matches!(&spec, Spec::Unread(run_spec) if uses_shuffle(run_spec));
        let mut thread = threads::number();
        let mut times = None;
        let result = loop {
            let Spec::Unread(run_spec) = &spec else {
                break Err(failed(
                    "a task that was parsed for Rust cannot run in Python",
                ));
            };
            let call = Call {
                key: &key,
                run_spec,
                data: &data,
                store: &self.store,
                is_actor,
                annotations: annotations.as_ref(),
                is_in_host,
            };
            let on = |message| self.on_python(&key, message);
            match python.run(&call, &steps, on) {
                Ok(Outcome::NeedsHost) => is_in_host = true,
                Ok(Outcome::Finished {
                    result,
                    origin,
                    executor,
                }) => {
                    let PythonFinished {
                        result,
                        nbytes,
                        class,
                        typename,
                        start,
                        stop,
                        cpu,
                        ..
                    } = *result;
                    thread = executor.thread();
                    times = Some((start, stop, cpu));
                    let datum = self.store.computed(result, nbytes, origin);
                    python.finish(executor, &key, &datum);
                    let description = Description {
                        nbytes,
                        class: class.0,
                        typename: typename.into(),
                    };
                    break Ok((datum, description));
                }
                Ok(Outcome::Erred(error)) => {
                    times = Some((error.start, error.stop, error.cpu));
                    break Err((error.exception_text.clone(), to_failure(*error)));
                }
                Ok(Outcome::Reschedule) => {
                    drop(in_use);
                    drop(data);
                    return self.react([], [WorkerInput::Reschedule(key)]);
                }
                Err(RunError::Closed) => return Vec::new(),
                // The task is not the reason: processes could be started before.
                Err(error @ (RunError::Start(_) | RunError::StartAgain)) => {
                    if matches!(error, RunError::Start(_)) {
                        self.notice(&format!("tasks are returned to the scheduler: {error}"));
                    }
                    drop(in_use);
                    drop(data);
                    python.wait_for_idle();
                    return self.react([], [WorkerInput::Reschedule(key)]);
                }
                Err(RunError::Died(how)) => {
                    deaths += 1;
                    let has_failed = deaths > python.allowed_failures;
                    let then = match (self.machine().state.is_computing(&key), has_failed) {
                        (false, _) => "was cancelled".to_owned(),
                        (true, false) => "is run again".to_owned(),
                        (true, true) => format!("fails after {deaths} attempts"),
                    };
                    self.notice(&format!("{how} while it ran the task {key}, which {then}"));
                    if has_failed {
                        let worker = &self.title;
                        let message = match deaths {
                            1 => {
                                format!(
                                    "the worker {worker} has run the task {key} once, and {how}"
                                )
                            }
                            _ => format!(
                                "the worker {worker} has run the task {key} {deaths} times, and \
                                 each time its process ended. The last time {how}"
                            ),
                        };
                        let allowed = u32::try_from(deaths - 1).unwrap_or(u32::MAX);
                        let pickle = killed_worker(&key, &self.address, allowed, Some(&message));
                        let failure = Failure {
                            exception: Value::Serialized(pickle),
                            traceback: Value::None,
                            exception_text: message.clone(),
                            traceback_text: String::new(),
                        };
                        break Err((message, failure));
                    }
                }
                Err(RunError::Input(_, DatumError::Lost)) if !lost(&data).is_empty() => {
                    let lost = lost(&data);
                    drop(in_use);
                    drop(data);
                    return self.react([], [WorkerInput::InputsLost { key, lost }]);
                }
                Err(error) => break Err(failed(&format!("the worker {}: {error}", self.title))),
            }
            // Nobody waits for a task that was freed while it ran.
            if !self.machine().state.is_computing(&key) {
                drop(in_use);
                drop(data);
                return self.react([], [WorkerInput::Reschedule(key)]);
            }
            let jobs = self.react([], [WorkerInput::Restarted(key.clone())]);
            jobs.into_iter().for_each(|job| self.queue.push(job));
        };
        drop(in_use);
        drop(data);
        let time = |seconds: f64| Duration::try_from_secs_f64(seconds).ok();
        let times =
            times.and_then(|(start, stop, cpu)| Some((time(start)?, time(stop)?, time(cpu)?)));
        let (start, stop, processor_time) = times.unwrap_or_else(|| (start, now(), Duration::ZERO));
        let shared = match &result {
            Ok((datum, _)) if python.is_shared() => Some((key.clone(), datum.clone())),
            _ => None,
        };
        let jobs = self.executed(Done {
            key,
            result,
            start,
            stop,
            processor_time,
            steps: steps.take(),
            thread,
            is_unsupported: false,
            is_cancelled: false,
            annotations: None,
        });
        // If the task was cancelled while it ran, nothing refers to the result that its process
        // has.
        if let Some((key, datum)) = shared
            && !self.store.holds(&key, &datum)
        {
            python.forget([&key]);
            python.release_kept(&[key]);
        }
        jobs
    }

    /// Handles a message that a process sends while it runs a task.
    fn on_python(self: &Arc<Self>, running: &Key, message: FromPython) {
        match message {
            FromPython::PythonStream(message) => self.send_from_python(message),
            FromPython::PythonLogged(line) => self.log.add_logged(&line),
            FromPython::PythonSeceded(PythonSeceded {
                key,
                compute_duration,
                ..
            }) if key == *running => {
                // Without another thread, the task continues to occupy its thread.
                if let Err(error) = threads::replace(self) {
                    self.notice(&format!(
                        "no thread can be started for the tasks after {key}: {error}"
                    ));
                    return;
                }
                let run_time = Duration::try_from_secs_f64(compute_duration).unwrap_or_default();
                let jobs = self.react([], [WorkerInput::Seceded { key, run_time }]);
                jobs.into_iter().for_each(|job| self.queue.push(job));
            }
            FromPython::PythonRejoin(_) => {
                let jobs = self.react([], [WorkerInput::Rejoin(running.clone())]);
                jobs.into_iter().for_each(|job| self.queue.push(job));
            }
            // Other messages are replies, or belong to a task that has ended.
            _ => {}
        }
    }
}

fn to_failure(error: PythonErred) -> Failure {
    // Python workers send the pickles as values of bytes.
    let payload = |pickle| Value::Serialized(Serialized::of_bytes(&pickle));
    Failure {
        exception: payload(error.exception),
        traceback: error.traceback.0.map_or(Value::None, payload),
        exception_text: error.exception_text,
        traceback_text: error.traceback_text,
    }
}

/// Whether a task names the module of P2P shuffles, whose state is in the host. A task that
/// uses shuffles without naming the module is moved to the host when it does so.
fn uses_shuffle(run_spec: &Serialized) -> bool {
    contains(run_spec, "distributed.shuffle")
}

fn contains(run_spec: &Serialized, mark: &str) -> bool {
    let mark = mark.as_bytes();
    let mut frames = iter::once(run_spec.header()).chain(run_spec.frames().iter().map(|f| &**f));
    frames.any(|frame| frame.windows(mark.len()).any(|part| part == mark))
}

/// Whether a task has to run in Python: it calls no native function, or one that is not
/// among `functions` and has a fallback. Otherwise stores the parsed task in `job`.
pub(crate) fn is_for_python(job: &mut Job, functions: &Functions) -> bool {
    let Spec::Unread(run_spec) = &job.spec else {
        return false;
    };
    if !contains(run_spec, "native:") {
        return true;
    }
    let may_be_missing = !contains(run_spec, REPLACED_BY);
    let is_here = |name: &str| may_be_missing || functions.contains(name);
    match read(run_spec, &job.key, &job.data) {
        Ok(task) if is_native(&task, is_here) => {
            job.spec = Spec::Read(task);
            false
        }
        // If the task is invalid, Python reports the error.
        _ => true,
    }
}

/// Whether a task calls a native function for which `is_here` returns true. For a fused task,
/// whether all its tasks do.
fn is_native(task: &Task, is_here: impl Fn(&str) -> bool) -> bool {
    let calls_native = |task: &Task| {
        let Work::Call { function, .. } = &task.work else {
            return false;
        };
        let mut function = function;
        while let Function::Partial {
            function: inner, ..
        } = function
        {
            function = inner;
        }
        matches!(function, Function::Native(name) if is_here(name))
    };
    match &task.work {
        Work::Fused { tasks, .. } => tasks.iter().all(calls_native),
        _ => calls_native(task),
    }
}

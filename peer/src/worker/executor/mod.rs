//! Python processes that run the tasks of a worker.
//!
//! Each thread of the worker that runs a task for Python has a process to itself, so
//! that no task waits for the interpreter lock of another. The worker sends a process
//! the task and its inputs as it got them, and stores the result as the process has
//! serialized it: nothing is deserialized here. Long frames stay in shared memory.
//!
//! A process keeps values that it has used or made, within a limit, and the worker
//! knows which. If a process ends while it runs a task, the task is run again in
//! another one; the worker and its data are not affected.

mod link;
mod memory;
mod process;

use core::fmt;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use memory::SharedMemory;
use process::{Executor, Process};

use super::store::{Datum, DatumError, Steps};
use crate::Key;
use crate::failure::lock_counter;
use crate::protocol::{
    FromPython, Nullable, PythonErred, PythonFinished, RunInPython, StartPython,
};
use crate::value::Serialized;

/// Maximum number of processes that a task ends, as Dask's
/// `distributed.scheduler.allowed-failures` of 3 has it.
pub(super) const MAX_DEATHS: usize = 4;

/// The Python processes of a worker.
#[derive(Debug)]
pub(super) struct Executors {
    interpreter: PathBuf,
    start: StartPython,
    memory: Arc<SharedMemory>,
    pool: Mutex<Pool>,
}

#[derive(Debug, Default)]
struct Pool {
    /// The one that ran a task last is the last.
    idle: Vec<Executor>,
    all: Vec<Weak<Process>>,
    is_closed: bool,
}

/// The outcome of a task.
#[derive(Debug)]
pub(super) enum Outcome {
    Finished {
        result: Box<PythonFinished>,
        /// The executor, which keeps the result.
        by: Box<Finisher>,
    },
    Erred(Box<PythonErred>),
    Reschedule,
}

/// The executor of a finished task, before it goes back to the others.
#[derive(Debug)]
pub(super) struct Finisher {
    executor: Executor,
    used: Vec<Key>,
    is_kept: bool,
}

/// Why a task has no outcome.
#[derive(Debug)]
pub(super) enum RunError {
    /// An input cannot be sent.
    Input(Key, DatumError),
    /// No process can be started.
    Start(io::Error),
    /// The process ended, as described.
    Died(String),
    /// The worker ends.
    Closed,
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input(key, error) => write!(f, "the data of {key}: {error}"),
            Self::Start(error) => write!(f, "no Python process: {error}"),
            Self::Died(how) => f.write_str(how),
            Self::Closed => f.write_str("the worker ends"),
        }
    }
}

impl Finisher {
    /// A number by which Dask's dashboard distinguishes threads.
    pub(super) fn thread(&self) -> i64 {
        self.executor.process.id.into()
    }
}

impl Executors {
    /// Returns the executors of a worker, none of which is started yet.
    pub(super) fn new(interpreter: PathBuf, start: StartPython) -> Self {
        Self {
            interpreter,
            start,
            memory: Arc::new(SharedMemory::new()),
            pool: Mutex::default(),
        }
    }

    /// Starts processes in advance, at the same time.
    ///
    /// # Errors
    ///
    /// The error of one of them, if any failed.
    pub(super) fn warm(&self, count: usize) -> io::Result<()> {
        let started = std::thread::scope(|scope| {
            let starting: Vec<_> = (0..count)
                .map(|_| scope.spawn(|| self.start_executor()))
                .collect();
            let started = starting.into_iter().map(|starting| {
                let panicked = |_| Err(RunError::Start(io::Error::other("a panic")));
                starting.join().unwrap_or_else(panicked)
            });
            started.collect::<Result<Vec<Executor>, RunError>>()
        });
        match started {
            Ok(started) => {
                self.lock().idle.extend(started);
                Ok(())
            }
            Err(RunError::Start(error)) => Err(error),
            Err(error) => Err(io::Error::other(error.to_string())),
        }
    }

    /// Runs a task. `on` is called with the messages of the process meanwhile.
    ///
    /// # Errors
    ///
    /// If the task has neither a result nor an exception.
    pub(super) fn run(
        &self,
        key: &Key,
        run_spec: &Serialized,
        data: &HashMap<Key, Datum>,
        steps: &Steps,
        mut on: impl FnMut(FromPython),
    ) -> Result<Outcome, RunError> {
        let mut executor = self.take(data)?;
        let mut inputs = Vec::with_capacity(data.len());
        for (name, datum) in data {
            let payload = if executor.keeps(name, datum) {
                None
            } else {
                let shared = datum.shared(steps, |serialized| self.memory.share(serialized));
                Some(match shared {
                    Ok(payload) => payload,
                    Err(error) => {
                        self.give_back(executor, &[]);
                        return Err(RunError::Input(name.clone(), error));
                    }
                })
            };
            inputs.push((name.clone(), Nullable(payload)));
        }
        let message = RunInPython {
            key: key.clone(),
            run_spec: run_spec.clone(),
            data: inputs,
            ..RunInPython::default()
        };
        let sent = executor.link.send(&message);
        drop(message);
        for (name, datum) in data {
            executor.keep(name, datum);
        }
        let mut answer = sent.and_then(|()| executor.link.receive::<FromPython>());
        loop {
            let used = || data.keys().cloned().collect::<Vec<Key>>();
            answer = match answer {
                Ok(FromPython::PythonFinished(result)) => {
                    let is_kept = !result.gone.contains(key);
                    executor.is_without(&result.gone);
                    let mut used = used();
                    used.push(key.clone());
                    return Ok(Outcome::Finished {
                        result: Box::new(result),
                        by: Box::new(Finisher {
                            executor,
                            used,
                            is_kept,
                        }),
                    });
                }
                Ok(FromPython::PythonErred(error)) => {
                    executor.is_without(&error.gone);
                    self.give_back(executor, &used());
                    return Ok(Outcome::Erred(Box::new(error)));
                }
                Ok(FromPython::PythonReschedule(message)) => {
                    executor.is_without(&message.gone);
                    self.give_back(executor, &used());
                    return Ok(Outcome::Reschedule);
                }
                Ok(message) => {
                    on(message);
                    executor.link.receive()
                }
                Err(error) => {
                    let mut how = executor.process.end();
                    if self.lock().is_closed {
                        return Err(RunError::Closed);
                    }
                    // Errors other than the end of the stream are added to the message.
                    let is_end = matches!(
                        error.kind(),
                        io::ErrorKind::UnexpectedEof
                            | io::ErrorKind::ConnectionReset
                            | io::ErrorKind::BrokenPipe
                    );
                    if !is_end {
                        how = format!("{how}, after {error}");
                    }
                    return Err(RunError::Died(how));
                }
            };
        }
    }

    /// Takes back the executor of a finished task, whose result is `datum`.
    pub(super) fn finish(&self, by: Box<Finisher>, datum: &Datum) {
        let Finisher {
            executor,
            used,
            is_kept,
        } = *by;
        if let Some(key) = used.last().filter(|_| is_kept) {
            executor.keep(key, datum);
        }
        self.give_back(executor, &used);
    }

    /// Has the processes forget values whose data is gone.
    pub(super) fn forget<'k>(&self, keys: impl IntoIterator<Item = &'k Key>) {
        let mut keys = keys.into_iter().peekable();
        if keys.peek().is_none() {
            return;
        }
        let mut pool = self.lock();
        pool.all.retain(|process| process.strong_count() != 0);
        let processes: Vec<Arc<Process>> = pool.all.iter().filter_map(Weak::upgrade).collect();
        for key in keys {
            for process in &processes {
                process.forget(key);
            }
        }
        // A process that fails here is not given a task any more.
        pool.idle
            .retain_mut(|executor| executor.forget_stale(&[]).is_ok());
    }

    /// Memory that the processes take, without that shared with the worker, and the
    /// length of the shared memory, in bytes.
    pub(super) fn memory_len(&self) -> (u64, u64) {
        let all = self.lock().all.clone();
        let processes = all.iter().filter_map(Weak::upgrade);
        let own = processes.map(|process| anonymous(&process.id.to_string()));
        (own.sum(), self.memory.len())
    }

    /// Kills all processes, and refuses further tasks.
    pub(super) fn close(&self) {
        let mut pool = self.lock();
        pool.is_closed = true;
        let idle = core::mem::take(&mut pool.idle);
        let all = core::mem::take(&mut pool.all);
        drop(pool);
        drop(idle);
        for process in all.iter().filter_map(Weak::upgrade) {
            process.end();
        }
    }

    /// The idle executor that keeps most of the inputs, or a new one.
    fn take(&self, data: &HashMap<Key, Datum>) -> Result<Executor, RunError> {
        loop {
            let mut pool = self.lock();
            if pool.is_closed {
                return Err(RunError::Closed);
            }
            let kept = |executor: &Executor| {
                let kept = data.iter().take(MAX_COMPARED);
                kept.filter(|(key, datum)| executor.keeps(key, datum))
                    .count()
            };
            let best = (0..pool.idle.len()).max_by_key(|&index| kept(&pool.idle[index]));
            let Some(index) = best else {
                drop(pool);
                return self.start_executor();
            };
            let executor = pool.idle.remove(index);
            drop(pool);
            // One that ended meanwhile did not end because of this task.
            if !executor.process.has_ended() {
                return Ok(executor);
            }
        }
    }

    fn start_executor(&self) -> Result<Executor, RunError> {
        let started = Executor::start(&self.interpreter, &self.start, &self.memory);
        let executor = started.map_err(RunError::Start)?;
        let mut pool = self.lock();
        if pool.is_closed {
            return Err(RunError::Closed);
        }
        pool.all.push(Arc::downgrade(&executor.process));
        drop(pool);
        Ok(executor)
    }

    fn give_back(&self, mut executor: Executor, used: &[Key]) {
        if executor.forget_stale(used).is_err() {
            return;
        }
        let mut pool = self.lock();
        // There are more while tasks wait for others.
        let is_needed = (pool.idle.len() as u64) < self.start.nthreads;
        if is_needed && !pool.is_closed {
            pool.idle.push(executor);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pool> {
        lock_counter(&self.pool)
    }
}

/// Maximum number of inputs by which executors are compared.
const MAX_COMPARED: usize = 32;

/// Anonymous memory of a process in bytes.
pub(super) fn anonymous(process: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or_default().saturating_mul(1024)
}

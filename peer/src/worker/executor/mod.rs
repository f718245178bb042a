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
//!
//! A task that secedes keeps its process until it ends, and another process is started for the
//! next task. From a number of them on, tasks run in threads of the host instead: thousands of
//! waiting tasks are not thousands of processes.
//!
//! One further process, the [host](host), runs what has state.

mod host;
mod link;
mod memory;
mod plugins;
mod process;

use core::fmt;
use core::time::Duration;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
use std::thread;
use std::time::Instant;

use bytes::Bytes;
use plugins::Plugins;
use process::{Executor, Process};

pub(super) use host::{Host, HostEvent, OnHost};
pub(super) use memory::SharedMemory;

use super::store::{Datum, DatumError, SpillDirectory, Steps};
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
pub(super) struct Executors {
    interpreter: Interpreter,
    start: StartPython,
    memory: Arc<SharedMemory>,
    pool: Mutex<Pool>,
    /// Notified when a process is idle, and when the worker ends.
    changed: Condvar,
    /// The host, if one was started. Never locked for long.
    host: Mutex<Option<Arc<Host>>>,
    /// The last runs of shuffles of hosts that have ended. Locked while a host starts.
    stale_shuffles: Mutex<HashMap<String, u64>>,
    on_host: OnceLock<Arc<OnHost>>,
    plugins: Plugins,
    /// Of a worker that does not spill.
    _directory: Option<SpillDirectory>,
}

/// A task to run.
#[derive(Debug)]
pub(super) struct Call<'a> {
    pub(super) key: &'a Key,
    pub(super) run_spec: &'a Serialized,
    pub(super) data: &'a HashMap<Key, Datum>,
    /// Whether the task makes an actor.
    pub(super) is_actor: bool,
    /// Whether the task runs in the host.
    pub(super) is_in_host: bool,
}

#[derive(Debug, Default)]
struct Pool {
    /// The one that ran a task last is the last.
    idle: Vec<Executor>,
    all: Vec<Weak<Process>>,
    is_closed: bool,
    /// Whether the last process could not be started.
    has_failed: bool,
}

/// How processes are started.
#[derive(Debug)]
pub(super) struct Interpreter {
    pub(super) path: PathBuf,
    /// Variables that are added to the environment.
    pub(super) variables: Vec<(String, String)>,
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
    /// The task has to run in the host.
    NeedsHost,
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
    /// No process can be started, for the first time since one could.
    Start(io::Error),
    /// No process can be started, as before.
    StillStart,
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
            Self::StillStart => f.write_str("no Python process"),
            Self::Died(how) => f.write_str(how),
            Self::Closed => f.write_str("the worker ends"),
        }
    }
}

impl Finisher {
    /// A number by which Dask's dashboard distinguishes threads.
    pub(super) fn thread(&self) -> i64 {
        self.executor.process.running.id.into()
    }
}

impl Executors {
    /// Returns the executors of a worker, none of which is started yet.
    pub(super) fn new(
        interpreter: Interpreter,
        start: StartPython,
        memory: Arc<SharedMemory>,
        directory: Option<SpillDirectory>,
    ) -> Self {
        Self {
            interpreter,
            start,
            memory,
            pool: Mutex::default(),
            changed: Condvar::new(),
            host: Mutex::default(),
            stale_shuffles: Mutex::default(),
            on_host: OnceLock::new(),
            plugins: Plugins::default(),
            _directory: directory,
        }
    }

    /// Sets the callback for events of hosts. Without it, no host starts.
    pub(super) fn on_host(&self, on: impl Fn(HostEvent) + Send + Sync + 'static) {
        // It is set once.
        let _ = self.on_host.set(Arc::new(on));
    }

    /// Adds, replaces or removes a plugin, without having the host set it up.
    pub(super) fn change_plugin(&self, name: &str, plugin: Option<Bytes>) {
        self.plugins.change(name, plugin);
    }

    /// Whether the host has something to set up before a task or a request needs it.
    pub(super) fn needs_host(&self) -> bool {
        self.plugins.needs_host() || !self.start.preload.is_empty()
    }

    /// The host, which is started if there is none.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub(super) fn host(&self) -> Result<Arc<Host>, RunError> {
        let mut stale = lock_counter(&self.stale_shuffles);
        if let Some(host) = self.running_host() {
            if !host.has_ended() {
                return Ok(host);
            }
            stale.extend(host.lost_shuffles());
            *lock_counter(&self.host) = None;
        }
        if self.is_closed() {
            return Err(RunError::Closed);
        }
        let Some(on) = self.on_host.get() else {
            return Err(RunError::Start(io::Error::other("the worker starts")));
        };
        let start = StartPython {
            is_host: true,
            // Its threads keep no values: what is in the host is used once.
            cache_len: 0,
            plugins: self.plugins.all(),
            stale_shuffles: stale.clone().into_iter().collect(),
            ..self.start.clone()
        };
        let started = Host::start(&self.interpreter, &start, &self.memory, Arc::clone(on));
        let host = started.map_err(RunError::Start)?;
        stale.clear();
        *lock_counter(&self.host) = Some(Arc::clone(&host));
        Ok(host)
    }

    /// The last host that was started.
    pub(super) fn running_host(&self) -> Option<Arc<Host>> {
        lock_counter(&self.host).clone()
    }

    /// Whether the worker ends.
    pub(super) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Starts processes in advance, at the same time.
    ///
    /// # Errors
    ///
    /// The error of one of them, if any failed.
    pub(super) fn warm(&self, count: usize) -> io::Result<()> {
        let started = thread::scope(|scope| {
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
        call: &Call<'_>,
        steps: &Steps,
        mut on: impl FnMut(FromPython),
    ) -> Result<Outcome, RunError> {
        let Call { key, data, .. } = *call;
        let mut executor = match call.is_in_host {
            true => self.host()?.executor().map_err(RunError::Start)?,
            false => self.take(data)?,
        };
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
            run_spec: call.run_spec.clone(),
            data: inputs,
            is_actor: call.is_actor,
            ..RunInPython::default()
        };
        let updated = executor.update_plugins(&self.plugins);
        let sent = updated.and_then(|()| executor.link.send(&message));
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
                    executor.process.holds(result.held);
                    if call.is_actor
                        && let Some(host) = &executor.host
                    {
                        host.holds(key.clone());
                    }
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
                Ok(FromPython::PythonNeedsHost(message)) => {
                    executor.is_without(&message.gone);
                    self.give_back(executor, &used());
                    return Ok(Outcome::NeedsHost);
                }
                Ok(message) => {
                    on(message);
                    executor.link.receive()
                }
                Err(error) => {
                    let mut how = executor.process.running.end();
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

    /// Has the processes forget values, and the host actors, that are not needed.
    pub(super) fn release(&self, keys: &[Key]) {
        self.forget(keys);
        if !keys.is_empty()
            && let Some(host) = self.running_host()
        {
            host.release(keys);
        }
    }

    /// Has the processes forget values whose data is not in memory.
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
            .retain_mut(|executor| executor.try_forget_stale().is_ok());
    }

    /// Memory that the processes take, without shared memory, and the length of the
    /// shared memory, with that which processes keep to use it again, in bytes.
    pub(super) fn memory_len(&self) -> (u64, u64) {
        let pool = self.lock();
        let mut ids = Vec::with_capacity(pool.all.len());
        let mut shared = self.memory.len();
        for process in pool.all.iter().filter_map(Weak::upgrade) {
            let mut idle = pool.idle.iter();
            let is_idle = idle.any(|executor| Arc::ptr_eq(&executor.process, &process));
            shared = shared.saturating_add(process.spare_len(is_idle));
            ids.push(process.running.id);
        }
        drop(pool);
        ids.extend(self.running_host().map(|host| host.running.id));
        let own = ids.into_iter().map(|id| anonymous(&id.to_string()));
        (own.sum(), shared)
    }

    /// Ends the idle processes or, if there are none and `is_urgent`, the one that takes
    /// most memory, which may be the host. Returns whether one was ended.
    pub(super) fn relieve(&self, is_urgent: bool) -> bool {
        let mut pool = self.lock();
        let idle = core::mem::take(&mut pool.idle);
        let all = pool.all.clone();
        drop(pool);
        if !idle.is_empty() {
            return true;
        }
        if !is_urgent {
            return false;
        }
        let processes = all.iter().filter_map(Weak::upgrade);
        let processes = processes.map(|process| Arc::clone(&process.running));
        let host = self.running_host().map(|host| Arc::clone(&host.running));
        let running = processes.chain(host).filter(|running| !running.has_ended());
        let largest = running
            .map(|running| (anonymous(&running.id.to_string()), running))
            .max_by_key(|(len, _)| *len);
        let Some((len, running)) = largest else {
            return false;
        };
        running.end_with(&format!(
            ", because it took {} MiB of the worker's memory",
            len >> 20
        ));
        true
    }

    /// Ends all processes, and refuses further tasks. Idle ones have time to end by
    /// themselves, and others are killed.
    pub(super) fn close(&self) {
        let mut pool = self.lock();
        pool.is_closed = true;
        let idle = core::mem::take(&mut pool.idle);
        let all = core::mem::take(&mut pool.all);
        drop(pool);
        self.changed.notify_all();
        let is_idle = |process: &Arc<Process>| {
            let mut idle = idle.iter();
            idle.any(|executor| Arc::ptr_eq(&executor.process, process))
        };
        for process in all.iter().filter_map(Weak::upgrade) {
            if !is_idle(&process) {
                process.running.end();
            }
        }
        for executor in &idle {
            executor.ask_to_end();
        }
        let deadline = Instant::now() + END_TIMEOUT;
        for executor in idle {
            executor.wait(deadline.saturating_duration_since(Instant::now()));
        }
        // One that starts is closed, too.
        drop(lock_counter(&self.stale_shuffles));
        let host = lock_counter(&self.host).take();
        if let Some(host) = host {
            host.close();
        }
    }

    /// Waits until a process is idle or the worker ends, or for a while.
    pub(super) fn wait_for_idle(&self) {
        let pool = self.lock();
        let is_waiting = |pool: &mut Pool| pool.idle.is_empty() && !pool.is_closed;
        // A panic elsewhere ends the worker.
        drop(
            self.changed
                .wait_timeout_while(pool, START_PAUSE, is_waiting),
        );
    }

    /// The idle executor that keeps most of the inputs, or a new one. If there are many, the
    /// new one is a thread of the host.
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
                pool.all.retain(|process| process.strong_count() != 0);
                let count = pool.all.len() as u64;
                drop(pool);
                if count < MAX_PER_THREAD.saturating_mul(self.start.nthreads) {
                    return self.start_executor();
                }
                return self.host()?.executor().map_err(RunError::Start);
            };
            let executor = pool.idle.remove(index);
            drop(pool);
            // One that ended meanwhile did not end because of this task.
            if !executor.process.running.has_ended() {
                return Ok(executor);
            }
        }
    }

    fn start_executor(&self) -> Result<Executor, RunError> {
        let refuse = |message: FromPython| {
            let what = format!("{:?} came before it was ready", message.op());
            Err(io::Error::other(what))
        };
        let started = process::start(&self.interpreter, &self.start, &self.memory, refuse);
        let started = started.map(|(_, link, running)| Executor::new(link, running, None));
        let mut pool = self.lock();
        let has_failed = core::mem::replace(&mut pool.has_failed, started.is_err());
        let executor = started.map_err(|error| match has_failed {
            true => RunError::StillStart,
            false => RunError::Start(error),
        })?;
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
        if let Some(host) = executor.host.take() {
            return host.give_back(executor);
        }
        let mut pool = self.lock();
        if pool.is_closed {
            return;
        }
        pool.idle.push(executor);
        // There are more while tasks wait for others.
        let is_surplus = pool.idle.len() as u64 > self.start.nthreads;
        let surplus = is_surplus.then(|| pool.idle.remove(0));
        drop(pool);
        self.changed.notify_one();
        if let Some(surplus) = surplus {
            surplus.ask_to_end();
            // If there is no thread, it is killed.
            let _ = thread::Builder::new()
                .name("python-end".to_owned())
                .spawn(move || surplus.wait(END_TIMEOUT));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pool> {
        lock_counter(&self.pool)
    }
}

/// Time that a process has to end by itself.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time for which a task is held back when no process can be started.
const START_PAUSE: Duration = Duration::from_secs(1);

/// Number of processes per thread of the worker from which on no more are started.
const MAX_PER_THREAD: u64 = 5;

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

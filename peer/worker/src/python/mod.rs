//! Python processes that run the tasks of a worker.
//!
//! Each thread of the worker that runs a Python task uses a process of its own, so
//! that no task waits for the interpreter lock of another. The worker forwards the task
//! and its inputs in serialized form, and stores the result as the process has
//! serialized it: nothing is deserialized here. Long frames stay in shared memory.
//!
//! A process caches values that it has used or produced, within a limit, and the worker
//! tracks which. If a process ends while it runs a task, the task is run again in
//! another one; the worker and its data are not affected.
//!
//! A task that secedes occupies its process until it ends, and another process is started for
//! the next task. To bound the number of processes, tasks beyond [`MAX_PER_THREAD`] processes
//! per thread run in threads of the host instead.
//!
//! One further process, the [host](host), runs plugins, actors and other code with state. All
//! are forked from a [template].
//!
//! Alternatively, the tasks of all threads [share](shared) a number of processes, all of which
//! are hosts. With one process this is as in Dask's workers.

mod host_comm;
mod run;
mod shared;

use core::fmt;
use core::num::NonZeroUsize;
use core::time::Duration;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
use std::thread;
use std::time::Instant;

use bytes::Bytes;
use daskwire_messages::protocol::{
    FromPython, Nullable, PythonErred, PythonFinished, RejoinedInPython, RunInPython, StartPython,
};
use daskwire_messages::value::Serialized;
use daskwire_messages::{Key, Value};
use daskwire_python::{
    Executor, Host, HostCallback, HostEvent, Interpreter, Link, Plugins, Process, SharedMemory,
    Template, anonymous_memory,
};
use daskwire_rpc::panic_flag::PanicFlag;

pub(super) use host_comm::HostComm;
pub(super) use run::is_for_python;

use shared::SharedHosts;

use daskwire_store::{Datum, DatumError, Origin, SpillDirectory, Steps, Store};

/// The Python processes of a worker.
pub(super) struct PythonProcesses {
    template: Template,
    start: StartPython,
    /// The resources of the worker.
    resources: Mutex<Vec<(String, f64)>>,
    /// Number of processes that may end while they run a task before the task fails.
    pub(super) allowed_failures: u64,
    memory: Arc<SharedMemory>,
    /// Set if a lock here is poisoned; the worker then ends.
    panic_flag: PanicFlag,
    pool: Mutex<Pool>,
    /// The ids of the processes that run tasks, by the keys of the tasks.
    running: Mutex<HashMap<Key, u32>>,
    /// The keys of tasks that wait to rejoin, and the links to their processes.
    rejoining: Mutex<Vec<(Key, Link)>>,
    /// Notified when a process becomes idle, and when the worker ends.
    changed: Condvar,
    /// The host, if one was started. Never locked across blocking calls.
    host: Mutex<Option<Arc<Host>>>,
    /// The hosts that share the tasks, if they do: one for each place. The first is that above.
    shared: Option<SharedHosts>,
    /// The last runs of shuffles, by id, of hosts that have ended. Locked while a host starts.
    stale_shuffles: Mutex<HashMap<String, u64>>,
    on_host: OnceLock<Arc<HostCallback>>,
    plugins: Plugins,
    /// The local directory of a worker that does not spill, removed on drop.
    _directory: Option<SpillDirectory>,
}

/// A task to run.
#[derive(Debug)]
pub(super) struct Call<'a> {
    pub(super) key: &'a Key,
    pub(super) run_spec: &'a Serialized,
    pub(super) data: &'a HashMap<Key, Datum>,
    /// The store of the worker.
    pub(super) store: &'a Store,
    /// Whether the task creates an actor.
    pub(super) is_actor: bool,
    /// The annotations of the task.
    pub(super) annotations: Option<&'a Value>,
    /// Whether the task runs in the host.
    pub(super) is_in_host: bool,
}

#[derive(Debug, Default)]
struct Pool {
    /// Idle executors, the most recently used last.
    idle: Vec<Executor>,
    all: Vec<Weak<Process>>,
    is_closed: bool,
    /// Whether the last attempt to start a process failed.
    has_failed: bool,
}

/// The outcome of a task.
#[derive(Debug)]
pub(super) enum Outcome {
    Finished {
        result: Box<PythonFinished>,
        /// The number of the result, and the process that has it if it cannot be pickled.
        origin: Origin,
        /// The executor, to be returned with [`PythonProcesses::finish`].
        executor: Box<FinishedExecutor>,
    },
    Erred(Box<PythonErred>),
    Reschedule,
    /// The task has to run in the host.
    NeedsHost,
}

/// The executor of a finished task, before it returns to the pool.
#[derive(Debug)]
pub(super) struct FinishedExecutor {
    executor: Executor,
    is_kept: bool,
}

/// The reason why a task has no outcome.
#[derive(Debug)]
pub(super) enum RunError {
    /// An input cannot be sent.
    Input(Key, DatumError),
    /// No process can be started. Later failures in a row are [`RunError::StartAgain`].
    Start(io::Error),
    /// No process can be started, as an earlier [`RunError::Start`] has reported.
    StartAgain,
    /// The process ended. The string describes how.
    Died(String),
    /// The inputs, which cannot be pickled, are not all in the process that runs the task.
    Apart,
    /// The worker is closing.
    Closed,
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input(key, error) => write!(f, "the data of {key} cannot be used: {error}"),
            Self::Start(error) => write!(f, "a Python process cannot be started: {error}"),
            Self::StartAgain => f.write_str("a Python process cannot be started"),
            Self::Died(how) => f.write_str(how),
            Self::Apart => f.write_str(
                "inputs that cannot be pickled are in different Python processes, or not in the \
                 first one, which runs actors and shuffles; with --python-processes 1 there is \
                 only one",
            ),
            Self::Closed => f.write_str("the worker is closing"),
        }
    }
}

impl FinishedExecutor {
    /// The number by which Dask's dashboard distinguishes threads.
    pub(super) fn thread(&self) -> i64 {
        self.executor.thread
    }
}

impl PythonProcesses {
    /// Describes the Python processes of a worker without starting any.
    ///
    /// # Errors
    ///
    /// If the system provides no file in memory.
    pub(super) fn new(
        interpreter: Interpreter,
        start: StartPython,
        allowed_failures: u64,
        memory: Arc<SharedMemory>,
        directory: Option<SpillDirectory>,
        panic_flag: PanicFlag,
        shared_count: Option<NonZeroUsize>,
    ) -> io::Result<Self> {
        let template = Template::new(interpreter, Arc::clone(&memory), panic_flag.clone())?;
        Ok(Self {
            resources: Mutex::new(start.resources.clone()),
            template,
            start,
            allowed_failures,
            memory,
            pool: Mutex::default(),
            running: Mutex::default(),
            rejoining: Mutex::default(),
            changed: Condvar::new(),
            host: Mutex::default(),
            shared: shared_count.map(|count| SharedHosts::new(count, panic_flag.clone())),
            stale_shuffles: Mutex::default(),
            on_host: OnceLock::new(),
            plugins: Plugins::new(panic_flag.clone()),
            panic_flag,
            _directory: directory,
        })
    }

    /// Sets the callback for events of hosts. Without it, no host starts.
    pub(super) fn on_host(&self, on: impl Fn(HostEvent) + Send + Sync + 'static) {
        // An error would mean that it is set already.
        let _ = self.on_host.set(Arc::new(on));
    }

    /// Sets the resources of the worker, for processes that are started later.
    pub(super) fn set_resources(&self, resources: Vec<(String, f64)>) {
        *self.panic_flag.check(self.resources.lock()) = resources;
    }

    /// Records that a plugin was added, replaced or removed. The host is not notified.
    pub(super) fn change_plugin(&self, name: &str, plugin: Option<Bytes>) {
        self.plugins.change(name, plugin);
    }

    /// Whether the host has plugins or preload modules to set up before the first task or
    /// request needs it.
    pub(super) fn needs_host(&self) -> bool {
        self.is_shared() || self.plugins.needs_host() || !self.start.preload.is_empty()
    }

    /// Returns the host, and starts it if none is running.
    ///
    /// # Errors
    ///
    /// If the host cannot be started, or the worker is closing.
    pub(super) fn host(&self) -> Result<Arc<Host>, RunError> {
        let mut stale = self.panic_flag.check(self.stale_shuffles.lock());
        if let Some(host) = self.running_host() {
            if !host.has_ended() {
                return Ok(host);
            }
            for (id, run) in host.lost_shuffles() {
                let last = stale.entry(id).or_default();
                *last = run.max(*last);
            }
            *self.lock_host() = None;
        }
        if self.is_closed() {
            return Err(RunError::Closed);
        }
        let on = self.on_host_event()?;
        let start = StartPython {
            is_host: true,
            has_shuffles: true,
            // Otherwise it caches no values: its tasks use their inputs once.
            cache_len: if self.is_shared() {
                self.start.cache_len
            } else {
                0
            },
            plugins: self.plugins.all(),
            stale_shuffles: stale.clone().into_iter().collect(),
            ..self.start_message()
        };
        let panic_flag = self.panic_flag.clone();
        let start = (&start, 0);
        let started = Host::start(&self.template, start, &self.memory, on, panic_flag);
        let host = started.map_err(RunError::Start)?;
        *self.lock_host() = Some(Arc::clone(&host));
        Ok(host)
    }

    fn on_host_event(&self) -> Result<Arc<HostCallback>, RunError> {
        let on = self.on_host.get().cloned();
        on.ok_or_else(|| RunError::Start(io::Error::other("the worker is still starting")))
    }

    /// The host that was started last, which may have ended.
    pub(super) fn running_host(&self) -> Option<Arc<Host>> {
        self.lock_host().clone()
    }

    /// The id of the process that runs a task.
    pub(super) fn process_of(&self, key: &Key) -> Option<u32> {
        self.lock_running().get(key).copied()
    }

    /// Lets a task continue that waits to rejoin.
    pub(super) fn rejoined(&self, key: &Key) {
        let mut rejoining = self.panic_flag.check(self.rejoining.lock());
        for (_, mut link) in rejoining.extract_if(.., |(waiting, _)| waiting == key) {
            // The process waits for this message, so there is space for it unless it has ended.
            let _ = link.try_send(&RejoinedInPython::default());
        }
    }

    /// Whether the worker is closing.
    pub(super) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Starts `count` processes in advance, concurrently. Hosts that share tasks start once the
    /// worker has the plugins of the scheduler; until then, only their template does.
    ///
    /// # Errors
    ///
    /// The first error, if any process cannot be started.
    pub(super) fn warm(&self, count: usize) -> io::Result<()> {
        if self.is_shared() {
            return self.template.start();
        }
        let started = thread::scope(|scope| {
            let starting: Vec<_> = (0..count)
                .map(|_| scope.spawn(|| self.start_executor()))
                .collect();
            let started = starting.into_iter().map(|starting| {
                let panicked = |_| {
                    Err(RunError::Start(io::Error::other(
                        "the thread that starts it panicked",
                    )))
                };
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

    /// Runs a task. `on` is called with each message that the process sends before its reply.
    ///
    /// # Errors
    ///
    /// If the task has neither a result nor an exception.
    pub(super) fn run(
        &self,
        call: &Call<'_>,
        steps: &Steps,
        on: impl FnMut(FromPython),
    ) -> Result<Outcome, RunError> {
        let executor = match (&self.shared, call.is_in_host) {
            (Some(shared), _) => self.take_shared(shared, call)?,
            (None, true) => self.host()?.executor().map_err(RunError::Start)?,
            (None, false) => self.take(call.data)?,
        };
        let id = executor.process.child.id;
        self.lock_running().insert(call.key.clone(), id);
        let outcome = self.run_with(executor, call, steps, on);
        let mut running = self.lock_running();
        // Another execution of the task may have started.
        if running.get(call.key) == Some(&id) {
            running.remove(call.key);
        }
        drop(running);
        outcome
    }

    fn run_with(
        &self,
        mut executor: Executor,
        call: &Call<'_>,
        steps: &Steps,
        mut on: impl FnMut(FromPython),
    ) -> Result<Outcome, RunError> {
        let Call { key, data, .. } = *call;
        let mut inputs = Vec::with_capacity(data.len());
        let mut nbytes = Vec::new();
        for (name, datum) in data {
            let payload = if executor.keeps(name, datum.origin().number) {
                None
            } else {
                let shared = datum.shared(steps, |serialized| self.memory.share(serialized));
                Some(match shared {
                    Ok(payload) => {
                        // The size of received data is the length of its serialized form.
                        if datum.nbytes() != payload.len() {
                            nbytes.push((name.clone(), datum.nbytes()));
                        }
                        payload
                    }
                    Err(error) => {
                        self.give_back(executor);
                        return Err(RunError::Input(name.clone(), error));
                    }
                })
            };
            inputs.push((name.clone(), Nullable(payload)));
        }
        let result_origin = Origin::unique();
        let host = executor.host.as_ref();
        let mut numbers = Vec::new();
        if let Some(host) = host.filter(|host| host.is_shared()) {
            host.add_cached(data.keys());
            let number = |(name, datum): (&Key, &Datum)| (name.clone(), datum.origin().number);
            numbers = data.iter().map(number).collect();
        }
        let message = RunInPython {
            key: key.clone(),
            run_spec: call.run_spec.clone(),
            data: inputs,
            nbytes,
            is_actor: call.is_actor,
            annotations: Nullable(call.annotations.cloned()),
            command_count: host.map_or(0, |host| host.command_count()),
            number: result_origin.number,
            numbers,
            ..RunInPython::default()
        };
        let updated = executor.update_plugins(&self.plugins);
        let sent = updated.and_then(|is_changed| match is_changed {
            true => executor.link.send_without_timeout(&message),
            false => executor.link.send(&message),
        });
        drop(message);
        for (name, datum) in data {
            executor.keep(name, datum.origin().number);
            // If it was freed before, no other call marks it for removal.
            if !call.store.holds(name, datum) {
                executor.process.forget(name);
                if let Some(host) = &executor.host {
                    host.forget([name]);
                }
            }
        }
        let mut answer = sent.and_then(|()| executor.link.receive::<FromPython>());
        loop {
            answer = match answer {
                Ok(FromPython::PythonFinished(result)) => {
                    let is_kept = !result.gone.contains(key);
                    executor.remove_kept(&result.gone);
                    executor.process.set_kept_memory(result.held);
                    let mut origin = result_origin;
                    if let Some(host) = &executor.host {
                        host.add_cached([key]);
                        if call.is_actor || result.is_kept {
                            host.add_kept(key.clone());
                        }
                        origin.home = result.is_kept.then(|| Arc::downgrade(host));
                    }
                    return Ok(Outcome::Finished {
                        result: Box::new(result),
                        origin,
                        executor: Box::new(FinishedExecutor { executor, is_kept }),
                    });
                }
                Ok(FromPython::PythonErred(error)) => {
                    executor.remove_kept(&error.gone);
                    self.give_back(executor);
                    return Ok(Outcome::Erred(Box::new(error)));
                }
                Ok(FromPython::PythonReschedule(message)) => {
                    executor.remove_kept(&message.gone);
                    self.give_back(executor);
                    return Ok(Outcome::Reschedule);
                }
                Ok(FromPython::PythonNeedsHost(message)) => {
                    executor.remove_kept(&message.gone);
                    self.give_back(executor);
                    return Ok(Outcome::NeedsHost);
                }
                Ok(message @ FromPython::PythonRejoin(_)) => {
                    let waits = match executor.link.try_clone() {
                        Ok(link) => {
                            let mut rejoining = self.panic_flag.check(self.rejoining.lock());
                            rejoining.push((key.clone(), link));
                            drop(rejoining);
                            on(message);
                            Ok(())
                        }
                        // Too many open files: the task continues at once.
                        Err(_) => executor.link.send(&RejoinedInPython::default()),
                    };
                    waits.and_then(|()| executor.link.receive())
                }
                Ok(message) => {
                    on(message);
                    executor.link.receive()
                }
                Err(error) => {
                    // Removes the link of this process, if it has waited to rejoin.
                    self.rejoined(key);
                    let mut how = executor.process.child.end();
                    if self.lock().is_closed {
                        return Err(RunError::Closed);
                    }
                    // Errors other than the end of the stream are appended to the description.
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

    /// Returns the executor of a finished task, whose result is `datum`, to the pool.
    pub(super) fn finish(&self, finished: Box<FinishedExecutor>, key: &Key, datum: &Datum) {
        let FinishedExecutor { executor, is_kept } = *finished;
        if is_kept {
            executor.keep(key, datum.origin().number);
        }
        self.give_back(executor);
    }

    /// Removes those of `keys` from the hosts that only these have: actors, and results that
    /// cannot be pickled.
    pub(super) fn release_kept(&self, keys: &[Key]) {
        if !keys.is_empty() {
            for host in self.running_hosts() {
                host.release(keys);
            }
        }
    }

    /// Removes values from the caches of the processes whose data is not in memory.
    pub(super) fn forget<'k>(&self, keys: impl IntoIterator<Item = &'k Key>) {
        let mut keys = keys.into_iter().peekable();
        if keys.peek().is_none() {
            return;
        }
        if self.is_shared() {
            let keys: Vec<&Key> = keys.collect();
            for host in self.running_hosts() {
                host.forget(keys.iter().copied());
            }
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
        // A process that cannot be written to is dropped, which ends it.
        pool.idle
            .retain_mut(|executor| executor.try_forget_stale().is_ok());
    }

    /// The ids of the processes, without the template.
    pub(super) fn ids(&self) -> Vec<u32> {
        let processes = self.lock().all.clone();
        let processes = processes.iter().filter_map(Weak::upgrade);
        let hosts = self.running_hosts().into_iter().map(|host| host.child.id);
        processes
            .map(|process| process.child.id)
            .chain(hosts)
            .collect()
    }

    /// Measures the memory of the processes.
    pub(super) fn memory(&self) -> ProcessMemory {
        let pool = self.lock();
        let mut ids = Vec::with_capacity(pool.all.len());
        let mut spare = 0_u64;
        for process in pool.all.iter().filter_map(Weak::upgrade) {
            let mut idle = pool.idle.iter();
            let is_idle = idle.any(|executor| Arc::ptr_eq(&executor.process, &process));
            spare = spare.saturating_add(process.spare_len(is_idle));
            ids.push(process.child.id);
        }
        drop(pool);
        ids.extend(self.running_hosts().iter().map(|host| host.child.id));
        let own = ids.into_iter().map(|id| anonymous_memory(&id.to_string()));
        ProcessMemory {
            private: own.sum(),
            shared: self.memory.total_len().saturating_add(spare),
            spare,
        }
    }

    /// Asks the idle processes, and hosts that share the tasks, to return the memory that they
    /// keep for further tasks.
    pub(super) fn return_memory(&self) {
        if self.is_shared() {
            self.running_hosts()
                .iter()
                .for_each(|host| host.return_memory());
        }
        // A process that cannot be written to is dropped, which ends it.
        let mut pool = self.lock();
        pool.idle
            .retain_mut(|executor| executor.return_memory().is_ok());
    }

    /// Frees memory: ends the idle processes or, if there are none and `is_urgent`, the
    /// process that uses the most memory, which may be the host. If not `is_urgent`, only idle
    /// processes are ended that were asked to return memory and had time for this. Returns
    /// whether a process was ended.
    pub(super) fn relieve(&self, is_urgent: bool) -> bool {
        let had_time = |executor: &mut Executor| {
            let asked_at = executor.asked_at;
            is_urgent || asked_at.is_some_and(|at| at.elapsed() >= RETURN_TIME)
        };
        let mut pool = self.lock();
        let idle: Vec<Executor> = pool.idle.extract_if(.., had_time).collect();
        let all = pool.all.clone();
        drop(pool);
        if !idle.is_empty() {
            return true;
        }
        if !is_urgent {
            return false;
        }
        let processes = all.iter().filter_map(Weak::upgrade);
        let processes = processes.map(|process| Arc::clone(&process.child));
        let hosts = self.running_hosts();
        let hosts = hosts.iter().map(|host| Arc::clone(&host.child));
        let children = processes.chain(hosts).filter(|child| !child.has_ended());
        let largest = children
            .map(|child| (anonymous_memory(&child.id.to_string()), child))
            .max_by_key(|(len, _)| *len);
        let Some((len, child)) = largest else {
            return false;
        };
        child.end_with(&format!(
            ", because it took {} MiB of the worker's memory",
            len >> 20
        ));
        true
    }

    /// Ends all processes, and refuses further tasks. Idle ones have [`END_TIMEOUT`] to end by
    /// themselves; others are killed.
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
                process.child.end();
            }
        }
        for executor in &idle {
            executor.ask_to_end();
        }
        let deadline = Instant::now() + END_TIMEOUT;
        for executor in idle {
            executor.wait(deadline.saturating_duration_since(Instant::now()));
        }
        // Wait for a host that is being started, so that it is closed too.
        drop(self.panic_flag.check(self.stale_shuffles.lock()));
        let host = self.lock_host().take();
        let shared = self.shared.iter().flat_map(SharedHosts::take_all);
        let hosts: Vec<Arc<Host>> = shared.chain(host).collect();
        hosts.iter().for_each(|host| host.ask_to_end());
        hosts.iter().for_each(|host| host.close());
    }

    /// Waits until a process is idle, the worker is closing, or [`START_PAUSE`] has passed.
    pub(super) fn wait_for_idle(&self) {
        let pool = self.lock();
        let is_waiting = |pool: &mut Pool| pool.idle.is_empty() && !pool.is_closed;
        let waited = self
            .changed
            .wait_timeout_while(pool, START_PAUSE, is_waiting);
        drop(self.panic_flag.check(waited));
    }

    /// Takes the idle executor that caches most of the inputs, or starts one: a process or, if
    /// there are too many, a thread of the host.
    fn take(&self, data: &HashMap<Key, Datum>) -> Result<Executor, RunError> {
        loop {
            let mut pool = self.lock();
            if pool.is_closed {
                return Err(RunError::Closed);
            }
            let kept = |executor: &Executor| {
                let kept = data.iter().take(MAX_COMPARED);
                kept.filter(|(key, datum)| executor.keeps(key, datum.origin().number))
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
            // A process that ended while idle must not count as ended by this task.
            if !executor.process.child.has_ended() {
                return Ok(executor);
            }
        }
    }

    fn start_message(&self) -> StartPython {
        StartPython {
            resources: self.panic_flag.check(self.resources.lock()).clone(),
            ..self.start.clone()
        }
    }

    fn start_executor(&self) -> Result<Executor, RunError> {
        let (start, panic_flag) = (self.start_message(), self.panic_flag.clone());
        let started = Executor::start(&self.template, &start, &self.memory, panic_flag);
        let mut pool = self.lock();
        let has_failed = core::mem::replace(&mut pool.has_failed, started.is_err());
        let executor = started.map_err(|error| match has_failed {
            true => RunError::StartAgain,
            false => RunError::Start(error),
        })?;
        if pool.is_closed {
            return Err(RunError::Closed);
        }
        pool.all.push(Arc::downgrade(&executor.process));
        drop(pool);
        Ok(executor)
    }

    fn give_back(&self, mut executor: Executor) {
        if executor.forget_stale().is_err() {
            return;
        }
        if let Some(host) = executor.host.take() {
            return host.give_back(executor);
        }
        executor.asked_at = None;
        let mut pool = self.lock();
        if pool.is_closed {
            return;
        }
        pool.idle.push(executor);
        // More processes than threads are started while tasks secede.
        let is_surplus = pool.idle.len() as u64 > self.start.nthreads;
        let surplus = is_surplus.then(|| pool.idle.remove(0));
        drop(pool);
        self.changed.notify_one();
        if let Some(surplus) = surplus {
            surplus.ask_to_end();
            // If no thread can be started, the process is killed on drop.
            let _ = thread::Builder::new()
                .name("python-end".to_owned())
                .spawn(move || surplus.wait(END_TIMEOUT));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pool> {
        self.panic_flag.check(self.pool.lock())
    }

    fn lock_running(&self) -> MutexGuard<'_, HashMap<Key, u32>> {
        self.panic_flag.check(self.running.lock())
    }

    fn lock_host(&self) -> MutexGuard<'_, Option<Arc<Host>>> {
        self.panic_flag.check(self.host.lock())
    }
}

/// Time that a process is given to end by itself before it is killed.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time for which a task is delayed when no process can be started.
const START_PAUSE: Duration = Duration::from_secs(1);

/// Maximum number of processes per thread of the worker.
const MAX_PER_THREAD: u64 = 5;

/// Memory of the Python processes, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessMemory {
    /// Memory without shared memory. What a process shares with the template is counted for
    /// each process.
    pub(super) private: u64,
    /// Shared memory, of all processes and of the worker.
    pub(super) shared: u64,
    /// The part of `shared` that processes keep for reuse.
    pub(super) spare: u64,
}

/// Time in which an idle process returns its memory.
const RETURN_TIME: Duration = Duration::from_millis(200);

/// Maximum number of inputs that are looked up when executors are compared.
const MAX_COMPARED: usize = 32;

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use daskwire_rpc::panic_flag::poison;

    fn processes(panic_flag: &PanicFlag) -> PythonProcesses {
        let interpreter = Interpreter {
            path: PathBuf::from("no-such-python"),
            variables: Vec::new(),
            imports: Vec::new(),
        };
        let memory = Arc::new(SharedMemory::default());
        let start = StartPython::default();
        PythonProcesses::new(
            interpreter,
            start,
            3,
            memory,
            None,
            panic_flag.clone(),
            None,
        )
        .expect("a file in memory")
    }

    #[test]
    fn a_panic_under_a_lock_ends_the_worker() {
        let failures = [
            |python: &PythonProcesses| {
                poison(&python.pool);
                python.close();
            },
            |python: &PythonProcesses| {
                poison(&python.host);
                assert!(python.running_host().is_none());
            },
        ];
        for fail in failures {
            let panic_flag = PanicFlag::default();
            fail(&processes(&panic_flag));
            assert!(panic_flag.is_set());
        }
    }
}

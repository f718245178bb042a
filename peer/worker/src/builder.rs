//! The configuration of a worker.

use core::fmt;
#[cfg(target_os = "linux")]
use core::num::NonZeroUsize;
use core::time::Duration;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use daskwire_comm::{Address, BoxFuture, CommOptions, Transports};
use daskwire_rpc::channel::Observer;

use super::rejoin::FindScheduler;
use super::start::start;
use super::{Functions, MemoryThresholds, StartError, Worker};

/// Configures and starts a [`Worker`].
#[derive(Clone)]
pub struct Builder {
    pub(super) scheduler: Address,
    pub(super) listen: Vec<Address>,
    pub(super) ports: Vec<u16>,
    pub(super) contact: Option<Address>,
    pub(super) name: Option<String>,
    pub(super) number: Option<i64>,
    pub(super) nthreads: usize,
    pub(super) memory_limit: Option<u64>,
    pub(super) thresholds: MemoryThresholds,
    pub(super) local_directory: PathBuf,
    pub(super) notify: Option<Arc<OnNotice>>,
    pub(super) resources: BTreeMap<String, f64>,
    pub(super) services: BTreeMap<String, u16>,
    pub(super) max_spill: Option<u64>,
    pub(super) transfers: TransferLimits,
    pub(super) max_comms: usize,
    pub(super) start_timeout: Option<Duration>,
    pub(super) reconnect_timeout: Duration,
    pub(super) find_scheduler: Option<Arc<FindScheduler>>,
    pub(super) is_restartable: bool,
    pub(super) functions: Functions,
    #[cfg(target_os = "linux")]
    pub(super) python: PythonOptions,
    pub(super) options: CommOptions,
    pub(super) transports: Transports,
    pub(super) observer: Option<Arc<dyn Observer>>,
    pub(super) batch_interval: Duration,
    pub(super) installs_plugin: bool,
}

/// The options for running Python functions.
#[cfg(target_os = "linux")]
#[derive(Clone, Debug)]
pub(super) struct PythonOptions {
    /// The interpreter, or `None` for a worker without Python.
    pub(super) interpreter: Option<PathBuf>,
    /// Variables added to the environment.
    pub(super) variables: Vec<(String, String)>,
    /// Modules that are imported before processes are forked.
    pub(super) imports: Vec<String>,
    pub(super) is_warm: bool,
    /// Number of processes that the tasks share; `None` for a process for each thread.
    pub(super) process_count: Option<NonZeroUsize>,
    pub(super) preload: Vec<String>,
    pub(super) preload_argv: Vec<String>,
    pub(super) allowed_failures: u64,
}

#[cfg(target_os = "linux")]
impl Default for PythonOptions {
    fn default() -> Self {
        Self {
            interpreter: None,
            variables: vec![("PYTHONHASHSEED".to_owned(), "6640".to_owned())],
            imports: Vec::new(),
            is_warm: false,
            process_count: None,
            preload: Vec::new(),
            preload_argv: Vec::new(),
            allowed_failures: 3,
        }
    }
}

/// Limits of the transfers between a worker and its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferLimits {
    /// Maximum number of pending requests for data, if they are for 10,000,000 bytes or
    /// more; small data is not delayed. A peer that is sending 10,000,000 bytes or more
    /// is asked a second time meanwhile. Default: 50, as in Dask.
    pub receiving_count: usize,
    /// Maximum number of requests for data that are answered at once; twice as many of the
    /// same host. A peer that has not acknowledged what it was sent after 30 seconds no
    /// longer counts. Default: 10, as in Dask.
    pub sending_count: u64,
    /// Maximum number of bytes of a request, unless a single datum is larger.
    /// Default: 50,000,000, as in Dask.
    pub message_len: u64,
}

impl TransferLimits {
    daskwire_comm::with_fields! {
        with_receiving_count(receiving_count: usize);
        with_sending_count(sending_count: u64);
        with_message_len(message_len: u64);
    }
}

impl Default for TransferLimits {
    fn default() -> Self {
        Self {
            receiving_count: 50,
            sending_count: 10,
            message_len: 50_000_000,
        }
    }
}

/// Callback for operator-facing warnings.
pub(super) type OnNotice = dyn Fn(&str) + Send + Sync;

impl Builder {
    /// Sets the address to listen on; port 0 picks a free port. Default: a free
    /// port of the interface that reaches the scheduler, with the scheduler's
    /// transport.
    #[must_use]
    pub fn listen(mut self, address: Address) -> Self {
        self.listen = vec![address];
        self
    }

    /// Sets several addresses to try; the worker listens on the first that is not in use.
    /// Overrides [`listen`](Self::listen).
    #[must_use]
    pub fn listen_any(mut self, addresses: impl IntoIterator<Item = Address>) -> Self {
        self.listen = addresses.into_iter().collect();
        self
    }

    /// Sets several ports to try, on the interface that reaches the scheduler; the worker
    /// listens on the first that is not in use. Has no effect if an address to listen on is
    /// set.
    #[must_use]
    pub fn ports(mut self, ports: impl IntoIterator<Item = u16>) -> Self {
        self.ports = ports.into_iter().collect();
        self
    }

    /// Sets the address by which the scheduler and other peers reach the worker. Port 0 is
    /// replaced by the port of the listener, and the name of a host by its address, if it is
    /// one that other hosts reach. Default: the address that the worker listens on.
    #[must_use]
    pub fn contact(mut self, address: Address) -> Self {
        self.contact = Some(address);
        self
    }

    /// Sets the worker's name, which must be unique in the cluster. Default: the
    /// worker's address.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self.number = None;
        self
    }

    /// Sets a number as the worker's name. To a scheduler in Python, 3 and "3" are
    /// different names; `dask worker --name 3` sets the number.
    #[must_use]
    pub fn number(mut self, number: i64) -> Self {
        self.name = Some(number.to_string());
        self.number = Some(number);
        self
    }

    /// Sets the timeout for connecting to the scheduler and registering with it. Default: the
    /// [`connect_timeout`](CommOptions::connect_timeout) of the options for a connection, and
    /// the [`answer_timeout`](CommOptions::answer_timeout) for each answer of a scheduler that
    /// may be busy.
    #[must_use]
    pub const fn start_timeout(mut self, timeout: Duration) -> Self {
        self.start_timeout = Some(timeout);
        self
    }

    /// Sets for how long the worker tries to register again after its connection to the scheduler
    /// was lost. Meanwhile it keeps its data, goes on with the tasks that it runs, and serves other
    /// workers. A scheduler of this project that knows the tasks then takes the results, and the
    /// tasks go on; Dask's has the data deleted that it does not know. With zero, the worker ends at
    /// once. Default: 60 seconds.
    #[must_use]
    pub const fn reconnect_timeout(mut self, timeout: Duration) -> Self {
        self.reconnect_timeout = timeout;
        self
    }

    /// Sets a callback that names the scheduler before each attempt to register again, for example
    /// from a file that the scheduler writes; `None` if it is the one of before. It may block.
    /// Python processes still take the scheduler of before for theirs, for example in
    /// `get_client`. Default: the address of the builder.
    #[must_use]
    pub fn find_scheduler(
        mut self,
        find: impl Fn() -> Option<Address> + Send + Sync + 'static,
    ) -> Self {
        self.find_scheduler = Some(Arc::new(find));
        self
    }

    /// Sets the number of tasks that run at once, at least 1. Default: the number
    /// of processors.
    #[must_use]
    pub fn nthreads(mut self, nthreads: usize) -> Self {
        self.nthreads = nthreads.max(1);
        self
    }

    /// Sets the memory limit in bytes, as reported to the scheduler. Data is
    /// spilled to disk well below it, see [`MemoryThresholds`]. Default: no
    /// limit; all data stays in memory.
    #[must_use]
    pub const fn memory_limit(mut self, memory_limit: u64) -> Self {
        self.memory_limit = Some(memory_limit);
        self
    }

    /// Sets when data is spilled to disk, as fractions of the memory limit.
    /// Default: as in Dask.
    #[must_use]
    pub const fn memory_thresholds(mut self, thresholds: MemoryThresholds) -> Self {
        self.thresholds = thresholds;
        self
    }

    /// Sets the maximum number of bytes on disk. Data beyond that stays in memory.
    /// Default: no limit.
    #[must_use]
    pub const fn max_spill(mut self, max_spill: u64) -> Self {
        self.max_spill = Some(max_spill);
        self
    }

    /// Sets limits of transfers.
    #[must_use]
    pub const fn transfer_limits(mut self, limits: TransferLimits) -> Self {
        self.transfers = limits;
        self
    }

    /// Sets the maximum number of comms that the worker serves at once, at least 1.
    /// Further connections are closed before their handshake, with a
    /// [notice](Self::on_notice). Default: three quarters of
    /// [`descriptor_limit`](daskwire_comm::descriptor_limit), and at most 65,536.
    #[must_use]
    pub fn max_comms(mut self, count: usize) -> Self {
        self.max_comms = count.max(1);
        self
    }

    /// Sets the directory for spilled data. The worker creates a private
    /// subdirectory in it. Several workers may share the directory, and it is
    /// created if it does not exist. Default: the system's directory for
    /// temporary files.
    ///
    /// Only the user of this process can read the data. Subdirectories left by
    /// killed workers of the same user are removed.
    #[must_use]
    pub fn local_directory(mut self, path: impl Into<PathBuf>) -> Self {
        self.local_directory = path.into();
        self
    }

    /// Sets whether the worker installs a small plugin in a scheduler of Dask, which
    /// keeps Python tasks away from this worker: while such a worker is in the cluster, tasks
    /// without restrictions that call `native:NAME` are assigned to workers in Rust, and
    /// others to workers in Python. Default: true.
    ///
    /// Without the plugin, or if the scheduler does not accept it, a task that the
    /// worker cannot run is returned to the scheduler, until another worker gets it.
    #[must_use]
    pub const fn scheduler_plugin(mut self, is_installed: bool) -> Self {
        self.installs_plugin = is_installed;
        self
    }

    /// Sets a callback for operator-facing warnings, for example that a disk is
    /// full, that a file on it is damaged, or that the scheduler cannot be
    /// reached yet. Once the worker has registered, the scheduler gets the same
    /// warnings as events of the topic `worker-notice`. The callback must not
    /// block.
    #[must_use]
    pub fn on_notice(mut self, notify: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.notify = Some(Arc::new(notify));
        self
    }

    /// Adds a resource that tasks may require, and its amount.
    #[must_use]
    pub fn resource(mut self, name: &str, amount: f64) -> Self {
        self.resources.insert(name.to_owned(), amount);
        self
    }

    /// Adds the port of another service of this process, such as `dashboard`. The
    /// scheduler reports it to clients that ask for the services of the worker.
    #[must_use]
    pub fn service(mut self, name: &str, port: u16) -> Self {
        self.services.insert(name.to_owned(), port);
        self
    }

    /// Registers the worker as its own nanny: when a client restarts the cluster, or the
    /// scheduler restarts a worker that does not answer, the worker leaves and
    /// ends with [`Ended::Restart`](super::Ended::Restart). The caller must start it
    /// again then. Default: the worker has no nanny, and is not restarted.
    #[must_use]
    pub const fn restartable(mut self) -> Self {
        self.is_restartable = true;
        self
    }

    /// Sets the functions that tasks may call. Default: [`Functions::builtins`].
    #[must_use]
    pub fn functions(mut self, functions: Functions) -> Self {
        self.functions = functions;
        self
    }

    /// Sets the options of comms, outgoing and incoming.
    #[must_use]
    pub fn options(mut self, options: CommOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets the transports of all comms. Default: [`transports`](daskwire_rpc::transports); `tls://`
    /// and `quic://` need `transports_with_tls`, of the feature `tls`.
    #[must_use]
    pub fn transports(mut self, transports: Transports) -> Self {
        self.transports = transports;
        self
    }

    /// Sets an observer that sees every message.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Sets the minimum interval between batches of messages to the scheduler; messages
    /// within it are sent together. If no task is left to run, results are sent at once.
    /// With zero, each message is. Default: 2 milliseconds, as in Dask, which reduces the
    /// load of a scheduler in Python.
    #[must_use]
    pub const fn batch_interval(mut self, interval: Duration) -> Self {
        self.batch_interval = interval;
        self
    }

    /// Registers with the scheduler and starts running tasks.
    ///
    /// # Errors
    ///
    /// * [`StartError::Release`] if the scheduler is older than 2022.1.0; the
    ///   worker is not registered then;
    /// * [`StartError::Refused`] if the scheduler refuses the worker, for example
    ///   because its name is taken;
    /// * [`StartError::Directory`] if there is a memory limit, and the directory
    ///   for spilled data cannot be created;
    /// * [`StartError::Listen`] if the worker cannot listen;
    /// * [`StartError::Request`] if it cannot reach the scheduler, or the scheduler
    ///   does not answer;
    /// * [`StartError::Thread`] if the system refuses to start a thread.
    pub async fn start(self) -> Result<Worker, StartError> {
        start_boxed(self).await
    }
}

/// Functions in Python.
#[cfg(target_os = "linux")]
impl Builder {
    /// Sets a Python interpreter for the tasks that do not call a [native
    /// function](daskwire_messages::graph::Function::Native): each thread uses a process of its own.
    /// The functions of [`Functions::builtins`] run in Python then, too. Default: none;
    /// such tasks are returned to a scheduler that may have workers with Python.
    ///
    /// One further process answers requests that need Python, such as those of `Client.run`,
    /// and runs actors and shuffles; it is started on demand, and requires tokio as the
    /// executor.
    ///
    /// The interpreter must have `distributed`, of the scheduler's release, and what the
    /// tasks import. The processes end with this process, even if it crashes.
    #[must_use]
    pub fn python(mut self, interpreter: impl Into<PathBuf>) -> Self {
        self.python.interpreter = Some(interpreter.into());
        self
    }

    /// Sets a variable in the environment of the Python processes, such as
    /// `OMP_NUM_THREADS`. Default: the environment of this process, but `PYTHONHASHSEED` is 6640,
    /// as under Dask's nannies: equal strings must have equal hashes on all workers.
    #[must_use]
    pub fn python_variable(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.python.variables.push((name.into(), value.into()));
        self
    }

    /// Adds a module, such as `pandas`, that is imported once, before the Python processes are
    /// forked: they share its memory, and tasks need not wait for its import. Default: only
    /// `distributed` and what it imports are.
    ///
    /// The worker does not start if the import fails. A module that starts threads when it is
    /// imported must support `fork`.
    #[must_use]
    pub fn python_import(mut self, module: impl Into<String>) -> Self {
        self.python.imports.push(module.into());
        self
    }

    /// Sets the number of Python processes in which the tasks of all threads run, as threads of
    /// these processes. Default: each thread has a process of its own.
    ///
    /// With one process, the worker keeps what Dask promises of its workers: tasks find what
    /// functions of `Client.run` and plugins have changed, and results that cannot be pickled are
    /// kept for tasks that use them. On the other hand, tasks wait for each other's interpreter
    /// lock, and if the process ends, all of its tasks run again, and these results are computed
    /// again. With more processes, the first also runs functions of `Client.run`, actors and
    /// shuffles, and a task runs where its inputs that cannot be pickled are.
    #[must_use]
    pub const fn python_processes(mut self, count: NonZeroUsize) -> Self {
        self.python.process_count = Some(count);
        self
    }

    /// Sets whether the Python processes of all threads are started with the worker.
    /// Default: false; one is started with the worker, and each of the others with the
    /// first task that needs it.
    #[must_use]
    pub const fn warm_python(mut self, is_warm: bool) -> Self {
        self.python.is_warm = is_warm;
        self
    }

    /// Sets how many Python processes may end while they run a task, each of which makes the
    /// worker run the task again; the next one fails the task. Default: 3, as in Dask's
    /// setting `distributed.scheduler.allowed-failures`.
    #[must_use]
    pub const fn allowed_failures(mut self, count: u64) -> Self {
        self.python.allowed_failures = count;
        self
    }

    /// Sets what each Python process loads before it is ready, as Dask's option
    /// `--preload` does: names of modules, files that end in `.py`, and URLs. Their
    /// `dask_setup` is called with the object that `get_worker()` returns there, and their
    /// `dask_teardown` when a process ends regularly. Default: nothing.
    ///
    /// `arguments` are for a `dask_setup` that is a command of `click`. If they are empty,
    /// `distributed.worker.preload-argv` of Dask's configuration is used.
    #[must_use]
    pub fn preload(
        mut self,
        modules: impl IntoIterator<Item = String>,
        arguments: impl IntoIterator<Item = String>,
    ) -> Self {
        self.python.preload = modules.into_iter().collect();
        self.python.preload_argv = arguments.into_iter().collect();
        self
    }
}

impl Builder {
    /// Whether the worker will run Python functions.
    pub(super) const fn runs_python(&self) -> bool {
        #[cfg(target_os = "linux")]
        let runs_python = self.python.interpreter.is_some();
        #[cfg(not(target_os = "linux"))]
        let runs_python = false;
        runs_python
    }
}

fn start_boxed(builder: Builder) -> BoxFuture<'static, Result<Worker, StartError>> {
    Box::pin(start(builder))
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("scheduler", &self.scheduler)
            .field("name", &self.name)
            .field("nthreads", &self.nthreads)
            .finish_non_exhaustive()
    }
}

//! A whole cluster in one process.
//!
//! A scheduler and workers, for programs and tests that run without an installed
//! Dask. They exchange the same messages as in a real cluster, over real comms,
//! by default in memory. For a cluster of several machines, use
//! the command `daskwire scheduler`, or Dask's scheduler.
//!
//! Tests of programs can add a worker, make one die ([`LocalCluster::kill_worker`]), and break,
//! stop or slow down the connections of a worker or a client ([`Link`]).

mod link;

use core::fmt;
#[cfg(all(target_os = "linux", feature = "tcp"))]
use core::num::NonZeroUsize;
use core::time::Duration;
#[cfg(all(target_os = "linux", feature = "tcp"))]
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use daskwire_comm::runtime::TaskSet;
#[cfg(feature = "self-signed")]
use daskwire_comm::tls::{Tls, TlsError, TlsSettings};
use daskwire_comm::{Address, BoxFuture, CommError, Transports};

use crate::Client;
use crate::Observer;
use crate::client::{ClientOptions, ConnectError};
use crate::scheduler::{self, Scheduler};
use crate::worker::{self, Ended, Functions, Worker};
use daskwire_rpc::from;

pub use link::Link;

/// The transport of a [`LocalCluster`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ClusterTransport {
    /// Memory of this process.
    #[default]
    Memory,
    /// TCP on the loopback interface.
    #[cfg(feature = "tcp")]
    Tcp,
    /// TLS on the loopback interface, with a certificate made for this cluster.
    #[cfg(feature = "self-signed")]
    Tls,
    /// QUIC on the loopback interface, with a certificate made for this cluster.
    #[cfg(all(feature = "self-signed", feature = "quic"))]
    Quic,
}

impl ClusterTransport {
    /// All transports.
    pub const ALL: &[Self] = &[
        Self::Memory,
        #[cfg(feature = "tcp")]
        Self::Tcp,
        #[cfg(feature = "self-signed")]
        Self::Tls,
        #[cfg(all(feature = "self-signed", feature = "quic"))]
        Self::Quic,
    ];

    /// The enabled transports, with a new certificate if this transport needs one.
    fn transports(self) -> Result<Transports, StartError> {
        match self {
            Self::Memory => Ok(crate::transports()),
            #[cfg(feature = "tcp")]
            Self::Tcp => Ok(crate::transports()),
            #[cfg(feature = "self-signed")]
            _ => Ok(crate::transports_with_tls(&certificate()?)),
        }
    }

    fn address(self) -> Address {
        let address = match self {
            Self::Memory => format!("inproc://daskwire-{}", daskwire_messages::key::identifier()),
            #[cfg(feature = "tcp")]
            Self::Tcp => "tcp://127.0.0.1:0".to_owned(),
            #[cfg(feature = "self-signed")]
            Self::Tls => "tls://127.0.0.1:0".to_owned(),
            #[cfg(all(feature = "self-signed", feature = "quic"))]
            Self::Quic => "quic://127.0.0.1:0".to_owned(),
        };
        address.parse().expect("a valid address")
    }
}

/// The error of [`Builder::start`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The scheduler cannot listen.
    Listen(Arc<CommError>),
    /// The scheduler cannot start.
    Scheduler(scheduler::StartError),
    /// A worker cannot start.
    Worker(worker::StartError),
    /// The certificate cannot be generated.
    #[cfg(feature = "self-signed")]
    Certificate(Arc<rcgen::Error>),
    /// TLS cannot be set up with the certificate.
    #[cfg(feature = "self-signed")]
    Tls(Arc<TlsError>),
}

daskwire_rpc::kinds! {
    StartError: |error| match error {
        Self::Listen(error) => error.kind(),
        Self::Scheduler(error) => error.kind(),
        Self::Worker(error) => error.kind(),
        #[cfg(feature = "self-signed")]
        Self::Certificate(_) | Self::Tls(_) => ErrorKind::System,
    };
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen(error) => write!(f, "the scheduler cannot listen: {error}"),
            Self::Scheduler(error) => error.fmt(f),
            Self::Worker(error) => error.fmt(f),
            #[cfg(feature = "self-signed")]
            Self::Certificate(error) => write!(f, "a certificate cannot be generated: {error}"),
            #[cfg(feature = "self-signed")]
            Self::Tls(error) => write!(f, "TLS cannot be set up with the new certificate: {error}"),
        }
    }
}

impl core::error::Error for StartError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Worker(error) => error.source(),
            _ => None,
        }
    }
}

from! {
    StartError: scheduler::StartError, error => Self::Scheduler(error);
    StartError: worker::StartError, error => Self::Worker(error);
}

/// Configures and starts a [`LocalCluster`].
#[derive(Clone)]
#[must_use = "nothing starts before `start`"]
pub struct Builder {
    worker_count: usize,
    nthreads: usize,
    transport: ClusterTransport,
    transports: Option<Transports>,
    listen: Vec<Address>,
    functions: Functions,
    configure: Option<Arc<Configure>>,
    scheduler: scheduler::Options,
    #[cfg(all(target_os = "linux", feature = "tcp"))]
    python: Option<PathBuf>,
    observer: Option<Arc<dyn Observer>>,
}

/// Callback that sets the options of the worker with this number.
type Configure = dyn Fn(usize, worker::Builder) -> worker::Builder + Send + Sync;

impl Default for Builder {
    fn default() -> Self {
        Self {
            worker_count: 2,
            nthreads: 1,
            transport: ClusterTransport::Memory,
            transports: None,
            listen: Vec::new(),
            functions: Functions::builtins(),
            configure: None,
            scheduler: scheduler::Options::default(),
            #[cfg(all(target_os = "linux", feature = "tcp"))]
            python: None,
            observer: None,
        }
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("worker_count", &self.worker_count)
            .field("nthreads", &self.nthreads)
            .field("transport", &self.transport)
            .finish_non_exhaustive()
    }
}

impl Builder {
    /// Sets the number of workers. Default: 2.
    pub const fn workers(mut self, count: usize) -> Self {
        self.worker_count = count;
        self
    }

    /// Sets the number of threads of each worker. Default: 1.
    pub const fn nthreads(mut self, count: usize) -> Self {
        self.nthreads = count;
        self
    }

    /// Sets the transport. Default: memory.
    pub const fn transport(mut self, transport: ClusterTransport) -> Self {
        self.transport = transport;
        self
    }

    /// Sets the available transports, which must include that of
    /// [`Self::transport`]. Default: those of this crate.
    pub fn transports(mut self, transports: Transports) -> Self {
        self.transports = Some(transports);
        self
    }

    /// Adds an address for the scheduler to listen on, of any available
    /// transport.
    pub fn listen(mut self, address: Address) -> Self {
        self.listen.push(address);
        self
    }

    /// Sets the functions that tasks may call. Default: [`Functions::builtins`].
    pub fn functions(mut self, functions: Functions) -> Self {
        self.functions = functions;
        self
    }

    /// Sets a function that sets options of each worker: a name, threads, resources, a memory
    /// limit, functions, and all else that [`worker::Builder`] has. It gets the number of the worker,
    /// from 0 on, and a builder with the settings of this cluster; those that are
    /// [added](LocalCluster::add_worker) later have the following numbers. Transports and the
    /// observer remain those of the cluster. Default: all workers are alike.
    ///
    /// ```
    /// use daskwire_peer::cluster::LocalCluster;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let cluster = LocalCluster::builder()
    ///     .workers(3)
    ///     .configure_workers(|number, worker| match number {
    ///         0 => worker.name("gpu").resource("GPU", 1.0),
    ///         _ => worker.nthreads(4).memory_limit(1 << 30),
    ///     })
    ///     .start()
    ///     .await?;
    /// let client = cluster.client().await?;
    /// let scaled = client.call("operator.mul").argument(2).argument(21);
    /// let on_gpu = daskwire_peer::client::SubmitOptions::default().resource("GPU", 1.0);
    /// assert_eq!(scaled.with(on_gpu).submit()?.await?.to_string(), "42");
    /// assert_eq!(cluster.workers()[0].keys().len(), 1);
    /// # client.close().await?;
    /// # cluster.close().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn configure_workers(
        mut self,
        configure: impl Fn(usize, worker::Builder) -> worker::Builder + Send + Sync + 'static,
    ) -> Self {
        self.configure = Some(Arc::new(configure));
        self
    }

    /// Sets the options of the scheduler, such as its policy. Its transports are those of the
    /// cluster, and so is its observer, unless the options have one.
    pub fn scheduler(mut self, options: scheduler::Options) -> Self {
        self.scheduler = options;
        self
    }

    /// Sets a Python interpreter for the scheduler and the workers, which then run functions and
    /// modules of Python, and the graphs of collections. The interpreter must have `distributed`,
    /// and what the tasks import. Default: none.
    ///
    /// The threads of a worker share a process, as with Dask; [`configure_workers`] can give them
    /// more with [`python_processes`]. An interpreter in the options of the scheduler replaces this
    /// one there. The transport is TCP in place of memory, which other processes cannot reach. With
    /// QUIC, `get_client`, locks, queues and events do not work in Python tasks.
    ///
    /// ```no_run
    /// use daskwire_peer::cluster::LocalCluster;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let cluster = LocalCluster::builder().python("python3").start().await?;
    /// let client = cluster.client().await?;
    /// let root = client.submit("cmath.sqrt", -1)?;
    /// assert_eq!(root.await?.to_string(), "1j");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`configure_workers`]: Self::configure_workers
    /// [`python_processes`]: worker::Builder::python_processes
    #[cfg(all(target_os = "linux", feature = "tcp"))]
    pub fn python(mut self, interpreter: impl Into<PathBuf>) -> Self {
        self.python = Some(interpreter.into());
        self
    }

    /// Sets an observer that sees every message of every role.
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Starts the scheduler, then the workers.
    ///
    /// # Errors
    ///
    /// * [`StartError::Listen`] if the scheduler cannot listen, for example because no
    ///   port is free;
    /// * [`StartError::Scheduler`] and [`StartError::Worker`] if the scheduler or a
    ///   worker cannot start;
    /// * `StartError::Certificate` and `StartError::Tls` if no certificate can be
    ///   generated, with the feature `self-signed`.
    pub async fn start(self) -> Result<LocalCluster, StartError> {
        self.start_boxed().await
    }

    fn start_boxed(self) -> BoxFuture<'static, Result<LocalCluster, StartError>> {
        Box::pin(self.start_unboxed())
    }

    async fn start_unboxed(mut self) -> Result<LocalCluster, StartError> {
        #[cfg(all(target_os = "linux", feature = "tcp"))]
        if self.python.is_some() && self.transport == ClusterTransport::Memory {
            self.transport = ClusterTransport::Tcp;
        }
        let transports = match self.transports.take() {
            Some(transports) => transports,
            None => self.transport.transports()?,
        };
        let mut options = self.scheduler.clone();
        let mut listeners = Vec::with_capacity(1 + self.listen.len());
        let first = self.transport.address();
        for address in core::iter::once(&first).chain(&self.listen) {
            let listener = transports.bind(address, options.comm.clone()).await;
            listeners.push(listener.map_err(|error| StartError::Listen(Arc::new(error)))?);
        }
        options.transports = transports.clone();
        #[cfg(all(target_os = "linux", feature = "tcp"))]
        if options.python.is_none() {
            options.python = self.python.as_ref().map(scheduler::PythonOptions::new);
        }
        options.observer = options.observer.or_else(|| self.observer.clone());
        let scheduler = Scheduler::start(listeners, options)?;
        let mut cluster = LocalCluster {
            scheduler,
            members: Vec::with_capacity(self.worker_count),
            started_count: 0,
            transports,
            builder: self,
        };
        for _ in 0..cluster.builder.worker_count {
            cluster.start_worker(None).await?;
        }
        Ok(cluster)
    }
}

/// Generates a certificate that all roles of a cluster present and trust.
#[cfg(feature = "self-signed")]
pub(crate) fn certificate() -> Result<Tls, StartError> {
    let made = rcgen::generate_simple_self_signed(["localhost".into(), "127.0.0.1".into()])
        .map_err(|error| StartError::Certificate(Arc::new(error)))?;
    let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    TlsSettings::new(cert.as_str(), cert.as_str())
        .with_key(key)
        .build()
        .map_err(|error| StartError::Tls(Arc::new(error)))
}

/// A scheduler and workers in this process.
///
/// ```
/// use daskwire_peer::cluster::LocalCluster;
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let cluster = LocalCluster::start().await?;
/// let client = cluster.client().await?;
/// let x = client.submit("operator.add", [1, 2])?;
/// let y = client.submit("operator.mul", [7, 6])?;
/// let z = client.submit("operator.add", [&x, &y])?;
/// assert_eq!(i64::try_from(z.result().await?)?, 45);
/// client.close().await?;
/// cluster.close().await;
/// # Ok(())
/// # }
/// ```
#[must_use = "a cluster ends when this is dropped"]
pub struct LocalCluster {
    scheduler: Scheduler,
    members: Vec<Member>,
    /// The number of workers that were started.
    started_count: usize,
    transports: Transports,
    builder: Builder,
}

/// A worker of the cluster.
struct Member {
    /// The worker that runs, or the last one.
    worker: Arc<Mutex<Arc<Worker>>>,
    link: Link,
    /// Starts the worker again when a client restarts the cluster.
    _restarting: TaskSet<()>,
}

impl Member {
    fn worker(&self) -> Arc<Worker> {
        Arc::clone(&lock(&self.worker))
    }
}

/// Locks a worker of a member, which is valid after a panic: a holder replaces it at once.
fn lock(worker: &Mutex<Arc<Worker>>) -> MutexGuard<'_, Arc<Worker>> {
    worker.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a worker again whenever it has ended for a restart.
async fn restart(worker: Arc<Mutex<Arc<Worker>>>, builder: worker::Builder) {
    loop {
        let running = Arc::clone(&lock(&worker));
        let Ended::Restart { .. } = running.ended().await else {
            return;
        };
        // A client that restarts the cluster is told which workers have not come back.
        let Ok(started) = builder.clone().start().await else {
            return;
        };
        *lock(&worker) = Arc::new(started);
    }
}

impl fmt::Debug for LocalCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalCluster")
            .field("scheduler", &self.scheduler)
            .field("workers", &self.workers())
            .finish_non_exhaustive()
    }
}

impl LocalCluster {
    /// Starts a cluster of two workers with one thread each, in memory.
    ///
    /// # Errors
    ///
    /// As [`Builder::start`].
    pub async fn start() -> Result<Self, StartError> {
        Self::builder().start().await
    }

    /// Returns a builder.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The address of the scheduler.
    pub fn address(&self) -> &Address {
        self.scheduler.address()
    }

    /// The scheduler.
    pub const fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// The workers, in the order in which they were started. A restart of the cluster by a client
    /// replaces each of them.
    pub fn workers(&self) -> Vec<Arc<Worker>> {
        self.members.iter().map(Member::worker).collect()
    }

    /// The connections of the worker at an index of [`workers`](Self::workers), to break, stop or
    /// slow them down. `None` if there is no such worker.
    pub fn link(&self, index: usize) -> Option<Link> {
        Some(self.members.get(index)?.link.clone())
    }

    /// Options for clients of the cluster, with its transports and observer.
    pub fn client_options(&self) -> ClientOptions {
        let mut options = ClientOptions::default()
            .with_transports(self.transports.clone())
            .with_interval(Duration::ZERO);
        options.observer = self.builder.observer.clone();
        options
    }

    /// Connects a client.
    ///
    /// # Errors
    ///
    /// As [`Client::connect_with`].
    pub async fn client(&self) -> Result<Client, ConnectError> {
        Client::connect_with(&self.address().to_string(), self.client_options()).await
    }

    /// Starts another worker, with the settings of the builder, and returns it.
    ///
    /// # Errors
    ///
    /// [`StartError::Worker`] if it cannot start.
    pub async fn add_worker(&mut self) -> Result<Arc<Worker>, StartError> {
        self.start_worker(None).await
    }

    /// Starts another worker, after `configure` has changed the settings of the builder, and
    /// returns it.
    ///
    /// # Errors
    ///
    /// [`StartError::Worker`] if it cannot start, for example because its name is taken.
    pub async fn add_worker_with(
        &mut self,
        configure: impl FnOnce(worker::Builder) -> worker::Builder + Send + 'static,
    ) -> Result<Arc<Worker>, StartError> {
        self.start_worker(Some(Box::new(configure))).await
    }

    fn start_worker(
        &mut self,
        configure: Option<Box<dyn FnOnce(worker::Builder) -> worker::Builder + Send>>,
    ) -> BoxFuture<'_, Result<Arc<Worker>, StartError>> {
        let number = self.started_count;
        let settings = &self.builder;
        let mut worker = Worker::builder(self.address().clone())
            .listen(settings.transport.address())
            .name(&format!("worker-{number}"))
            .nthreads(settings.nthreads)
            .functions(settings.functions.clone())
            .restartable()
            .batch_interval(Duration::ZERO);
        #[cfg(all(target_os = "linux", feature = "tcp"))]
        if let Some(interpreter) = &settings.python {
            worker = worker
                .python(interpreter)
                .python_processes(NonZeroUsize::MIN);
        }
        if let Some(configure) = &settings.configure {
            worker = configure(number, worker);
        }
        if let Some(configure) = configure {
            worker = configure(worker);
        }
        let link = Link::new();
        let worker = worker
            .transports(link.transports(&self.transports))
            .observer(link.observer(settings.observer.clone()));
        Box::pin(async move {
            let started = Arc::new(worker.clone().start().await?);
            let running = Arc::new(Mutex::new(Arc::clone(&started)));
            let mut restarting = TaskSet::new();
            restarting.spawn(restart(Arc::clone(&running), worker));
            self.members.push(Member {
                worker: running,
                link,
                _restarting: restarting,
            });
            self.started_count = number + 1;
            Ok(started)
        })
    }

    /// Closes the worker at an index of [`workers`](Self::workers); those after it move up. Its data
    /// is lost, and recomputed if needed. Returns `false` if there is no such worker.
    pub async fn close_worker(&mut self, index: usize) -> bool {
        if index >= self.members.len() {
            return false;
        }
        self.members.remove(index).worker().close().await;
        true
    }

    /// Makes the worker at an index of [`workers`](Self::workers) die, as if its process had been
    /// killed; those after it move up. Its comms break, and it sends no message about that: results
    /// of its tasks, also of those that run, do not arrive, and its data is lost. Returns `false` if
    /// there is no such worker.
    ///
    /// The scheduler learns it from the broken comm, soon after this returns. It runs the tasks
    /// elsewhere, each unless as many workers have died with it as the policy of the scheduler
    /// allows. A function that runs is not interrupted, because threads cannot be; what it does to
    /// files and memory of this process goes on.
    pub fn kill_worker(&mut self, index: usize) -> bool {
        if index >= self.members.len() {
            return false;
        }
        let member = self.members.remove(index);
        member.link.disconnect();
        // It does not try to return. It leaves without being waited for, once it was polled.
        let worker = member.worker();
        let mut closing = core::pin::pin!(worker.close());
        let mut context = core::task::Context::from_waker(core::task::Waker::noop());
        let _ = closing.as_mut().poll(&mut context);
        true
    }

    /// Closes the workers, then the scheduler.
    pub async fn close(self) {
        for member in &self.members {
            member.link.resume();
            member.worker().close().await;
        }
        self.scheduler.close().await;
    }
}

//! A whole cluster in one process.
//!
//! A scheduler and workers, for programs and tests that run without an installed
//! Dask. They exchange the same messages as in a real cluster, over real comms,
//! by default in memory. For a cluster of several machines, use
//! the command `daskwire scheduler`, or Dask's scheduler.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

#[cfg(feature = "self-signed")]
use daskwire_comm::tls::{Tls, TlsError, TlsSettings};
use daskwire_comm::{Address, BoxFuture, CommError, CommOptions, Transports};

use crate::Client;
use crate::Observer;
use crate::client::{ClientOptions, ConnectError};
use crate::scheduler::{self, Scheduler};
use crate::worker::{self, Functions, Worker};
use daskwire_rpc::from;

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
    observer: Option<Arc<dyn Observer>>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            worker_count: 2,
            nthreads: 1,
            transport: ClusterTransport::Memory,
            transports: None,
            listen: Vec::new(),
            functions: Functions::builtins(),
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
    pub const fn threads(mut self, count: usize) -> Self {
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

    async fn start_unboxed(self) -> Result<LocalCluster, StartError> {
        let transports = match self.transports {
            Some(transports) => transports,
            None => self.transport.transports()?,
        };
        let mut listeners = Vec::with_capacity(1 + self.listen.len());
        let first = self.transport.address();
        for address in core::iter::once(&first).chain(&self.listen) {
            let listener = transports.bind(address, CommOptions::default()).await;
            listeners.push(listener.map_err(|error| StartError::Listen(Arc::new(error)))?);
        }
        let settings = scheduler::Options {
            transports: transports.clone(),
            observer: self.observer.clone(),
            ..scheduler::Options::default()
        };
        let scheduler = Scheduler::start(listeners, settings)?;
        let mut workers = Vec::with_capacity(self.worker_count);
        for index in 0..self.worker_count {
            let mut worker = Worker::builder(scheduler.address().clone())
                .listen(self.transport.address())
                .name(&format!("worker-{index}"))
                .nthreads(self.nthreads)
                .functions(self.functions.clone())
                .transports(transports.clone())
                .batch_interval(Duration::ZERO);
            if let Some(observer) = &self.observer {
                worker = worker.observer(Arc::clone(observer));
            }
            workers.push(worker.start().await?);
        }
        Ok(LocalCluster {
            scheduler,
            workers,
            transports,
            observer: self.observer,
        })
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
    workers: Vec<Worker>,
    transports: Transports,
    observer: Option<Arc<dyn Observer>>,
}

impl fmt::Debug for LocalCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalCluster")
            .field("scheduler", &self.scheduler)
            .field("workers", &self.workers)
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

    /// The workers.
    pub fn workers(&self) -> &[Worker] {
        &self.workers
    }

    /// Options for clients of the cluster, with its transports and observer.
    pub fn client_options(&self) -> ClientOptions {
        ClientOptions {
            transports: self.transports.clone(),
            observer: self.observer.clone(),
            interval: Duration::ZERO,
            ..ClientOptions::default()
        }
    }

    /// Connects a client.
    ///
    /// # Errors
    ///
    /// As [`Client::connect_with`].
    pub async fn client(&self) -> Result<Client, ConnectError> {
        Client::connect_with(&self.address().to_string(), self.client_options()).await
    }

    /// Closes a worker. Its data is lost, and recomputed if needed. Returns
    /// `false` if there is no such worker.
    pub async fn close_worker(&mut self, index: usize) -> bool {
        if index >= self.workers.len() {
            return false;
        }
        self.workers.remove(index).close().await;
        true
    }

    /// Closes the workers, then the scheduler.
    pub async fn close(self) {
        for worker in &self.workers {
            worker.close().await;
        }
        self.scheduler.close().await;
    }
}

//! The public handle of a running worker.

use core::fmt;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use daskwire_comm::runtime;
use daskwire_comm::{Address, CommError, CommOptions};
use daskwire_messages::protocol::{Request, RetireWorkers, WorkerStatus};
use daskwire_messages::{Key, Value};
use daskwire_rpc::RequestError;
use tokio::sync::watch;

use super::{
    Builder, Functions, Holdings, MemoryThresholds, Shared, StoreCounters, TaskCounters,
    TransferCounters, TransferLimits,
};

/// Timeout for the scheduler to close a worker that has retired.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A running worker.
///
/// Dropping this handle makes the worker leave the cluster, as [`close`](Self::close)
/// does, but without waiting until it has left.
#[derive(Debug)]
pub struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) ended: watch::Receiver<Option<Ended>>,
}

/// The reason why a worker stopped.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Ended {
    /// The worker was closed locally.
    Closed,
    /// The scheduler closed the worker.
    ByScheduler {
        /// The reason given by the scheduler.
        reason: String,
    },
    /// The scheduler no longer knows the worker.
    Forgotten,
    /// The connection to the scheduler was lost, and the worker has not registered again within
    /// [`Builder::reconnect_timeout`].
    Lost(RequestError),
    /// The listener failed permanently, so that no peer can fetch the worker's data.
    ListenerFailed(Arc<CommError>),
    /// The worker panicked, which may have left its state inconsistent.
    Panicked,
    /// The scheduler asked the worker's nanny to start it again: see
    /// [`Builder::restartable`].
    Restart {
        /// The reason given by the scheduler.
        reason: String,
    },
    /// The process uses more memory than
    /// [`MemoryThresholds::terminate`] allows.
    OutOfMemory {
        /// Memory of the process, in bytes.
        len: u64,
    },
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the worker was closed"),
            Self::ByScheduler { reason } if reason.is_empty() => {
                f.write_str("the scheduler closed the worker")
            }
            Self::ByScheduler { reason } => {
                write!(f, "the scheduler closed the worker: {reason}")
            }
            Self::Forgotten => f.write_str("the scheduler does not know the worker any more"),
            Self::Lost(error) => {
                write!(f, "the connection to the scheduler was lost: {error}")
            }
            Self::ListenerFailed(error) => {
                write!(f, "the worker cannot accept connections any more: {error}")
            }
            Self::Panicked => f.write_str("the worker panicked"),
            Self::Restart { reason } => {
                write!(
                    f,
                    "the scheduler asked for a restart of the worker: {reason}"
                )
            }
            Self::OutOfMemory { len } => write!(
                f,
                "the process takes {} MiB of memory, near its limit",
                len >> 20
            ),
        }
    }
}

impl Worker {
    /// Returns a builder of a worker for the scheduler at this address.
    pub fn builder(scheduler: Address) -> Builder {
        let nthreads = std::thread::available_parallelism();
        Builder {
            scheduler,
            listen: Vec::new(),
            ports: Vec::new(),
            contact: None,
            name: None,
            number: None,
            nthreads: nthreads.map_or(1, Into::into),
            memory_limit: None,
            thresholds: MemoryThresholds::default(),
            local_directory: std::env::temp_dir(),
            notify: None,
            resources: BTreeMap::new(),
            services: BTreeMap::new(),
            max_spill: None,
            transfers: TransferLimits::default(),
            max_comms: daskwire_rpc::channel::max_comms(),
            start_timeout: None,
            reconnect_timeout: super::rejoin::TIMEOUT,
            find_scheduler: None,
            is_restartable: false,
            functions: Functions::builtins(),
            #[cfg(target_os = "linux")]
            python: super::builder::PythonOptions::default(),
            options: CommOptions::default(),
            transports: daskwire_rpc::transports(),
            observer: None,
            batch_interval: Duration::from_millis(2),
            installs_plugin: true,
        }
    }

    /// The address at which other peers reach the worker.
    pub fn address(&self) -> &str {
        &self.shared.address
    }

    /// The worker's name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The number of tasks that run at once.
    pub fn nthreads(&self) -> usize {
        self.shared.nthreads
    }

    /// The memory that this process and its Python processes use, as measured by the system,
    /// in bytes; 0 if it is not known, as on systems other than Linux.
    pub fn process_memory(&self) -> u64 {
        self.shared.memory_len()
    }

    /// The time that the scheduler took to answer the last heartbeat; zero before the
    /// first answer.
    pub fn latency(&self) -> Duration {
        self.shared.transfers.latency()
    }

    /// The worker's status.
    pub fn status(&self) -> WorkerStatus {
        if self.ended.borrow().is_some() {
            return WorkerStatus::Closed;
        }
        self.shared.machine().state.status().clone()
    }

    /// The keys of the data that the worker stores.
    pub fn keys(&self) -> Vec<Key> {
        self.shared.store.keys()
    }

    /// The total size of the worker's data, in bytes as Dask counts them.
    pub fn nbytes(&self) -> u64 {
        self.shared.store.nbytes()
    }

    /// The amount of the worker's data in memory and on disk.
    pub fn holdings(&self) -> Holdings {
        self.shared.store.holdings()
    }

    /// Counters of the data transferred between this worker and its peers.
    pub fn transfers(&self) -> TransferCounters {
        let mut counters = self.shared.transfers.counters();
        let machine = self.shared.machine();
        counters.receiving_count = machine.state.transfer_count() as u64;
        counters.receiving_len = machine.state.transfer_len();
        counters
    }

    /// Counters of the work done for all tasks.
    pub fn total_task_counters(&self) -> TaskCounters {
        self.shared.tasks_done.total()
    }

    /// Counters of the work done for tasks, by the prefix of their keys. The
    /// number of prefixes is bounded: those beyond the limit are counted together
    /// as `other`.
    pub fn task_counters(&self) -> BTreeMap<String, TaskCounters> {
        self.shared.tasks_done.counters()
    }

    /// Counters of the data store: deserialized, spilled, and so on.
    pub fn counters(&self) -> StoreCounters {
        self.shared.store.counters()
    }

    /// The number of known tasks in each state, with Dask's names of the states.
    pub fn task_counts(&self) -> Vec<(&'static str, u64)> {
        self.shared.machine().state.counts().collect()
    }

    /// Leaves the cluster, and waits until that is done. The worker's data is
    /// lost; [`retire`](Self::retire) moves it to other workers first. Running
    /// tasks are not interrupted, and their results are dropped.
    ///
    /// If the future is dropped after its first poll, the worker leaves nevertheless.
    pub async fn close(&self) {
        self.shared.stop.notify_one();
        self.ended().await;
    }

    /// Leaves the cluster after the data that only this worker has is copied to other
    /// workers, and waits until that is done. Returns whether all data was copied: if no
    /// worker can take it, this worker leaves nevertheless.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the request to the scheduler fails. The worker leaves the
    /// cluster nevertheless.
    pub async fn retire(&self) -> Result<bool, RequestError> {
        let shared = &self.shared;
        let scheduler = shared.scheduler();
        if !shared.machine().state.is_connected() {
            self.close().await;
            let peer = scheduler.to_string();
            return Err(RequestError::Closed { peer });
        }
        let request = Request::RetireWorkers(RetireWorkers {
            workers: Some(vec![shared.address.clone()].into()),
            close_workers: Some(true),
            remove: Some(true),
            reply: Some(true),
            ..RetireWorkers::default()
        });
        // A heartbeat in flight, over another comm, may arrive after the scheduler has
        // removed the worker.
        shared.is_retiring.store(true, Ordering::Relaxed);
        let _ = runtime::timeout(CLOSE_TIMEOUT, shared.heartbeat.lock()).await;
        let retired = tokio::select! {
            retired = shared.pool.call::<Value>(&scheduler, &request) => retired,
            // If the request to close arrives first, it counts as the reply.
            ended = self.ended() => return Ok(matches!(ended, Ended::ByScheduler { .. })),
        };
        let retired = retired.map(|retired| retired.get(&shared.address).is_some());
        if matches!(retired, Ok(true)) {
            // The worker keeps the stream open, so that the scheduler's last message does not fail.
            let _ = runtime::timeout(CLOSE_TIMEOUT, self.ended()).await;
        }
        self.close().await;
        retired
    }

    /// Waits until the worker has stopped, and returns the reason.
    pub async fn ended(&self) -> Ended {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(ended)) => ended.clone(),
            // The runtime was shut down, and the worker with it.
            _ => Ended::Closed,
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.stop.notify_one();
    }
}

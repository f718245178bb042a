//! Overviews of the state, for people who look at it. Each takes no longer with more tasks.

use core::ops::Bound;
use core::time::Duration;

use daskwire_messages::Value;
use daskwire_messages::protocol::WorkerStatus;

use super::model::Worker;
use super::{MemoryMeasure, State, WorkerId};

/// A worker, as an overview has it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkerOverview {
    /// Its id.
    pub id: WorkerId,
    /// Its address.
    pub address: String,
    /// Its name.
    pub name: String,
    /// Its host.
    pub host: String,
    /// Its status.
    pub status: WorkerStatus,
    /// Whether it is a worker in Rust.
    pub is_rust: bool,
    /// Its number of threads.
    pub thread_count: u32,
    /// The number of tasks that it was sent.
    pub processing_count: usize,
    /// The number of tasks that wait for it in the scheduler.
    pub queued_count: usize,
    /// The number of results that it holds.
    pub result_count: usize,
    /// The number of running tasks that have left their thread.
    pub long_running_count: usize,
    /// Bytes of results in memory.
    pub managed: u64,
    /// Bytes of results on disk.
    pub spilled: u64,
    /// Bytes of memory that its process uses.
    pub process_memory: u64,
    /// Its memory limit in bytes.
    pub memory_limit: Option<u64>,
    /// Processor use in percent of one processor.
    pub cpu: f64,
    /// Bytes per second that its host receives from the network.
    pub read: f64,
    /// Bytes per second that its host sends to the network.
    pub written: f64,
    /// The time of its last message, since the Unix epoch.
    pub last_seen: Duration,
}

/// A number that a worker reports.
fn number(value: Option<&Value>) -> f64 {
    match value {
        #[expect(clippy::cast_precision_loss, reason = "rates are floating-point")]
        Some(Value::Int(number)) => *number as f64,
        Some(Value::Float(number)) if number.is_finite() => *number,
        _ => 0.0,
    }
}

impl WorkerOverview {
    fn of(id: WorkerId, worker: &Worker) -> Self {
        let metrics = &worker.info.metrics;
        let network = metrics.get("host_net_io");
        let network = |name| number(network.and_then(|network| network.get(name)));
        Self {
            id,
            address: worker.address.to_string(),
            name: worker.name.clone(),
            host: worker.host.clone(),
            status: worker.info.status.clone(),
            is_rust: worker.kind.native,
            thread_count: worker.thread_count,
            processing_count: worker.processing.len(),
            queued_count: worker.queued_count,
            result_count: worker.has.len(),
            long_running_count: worker.long_running.len(),
            managed: worker.memory(MemoryMeasure::Managed),
            spilled: worker.memory(MemoryMeasure::Spilled),
            process_memory: worker.memory(MemoryMeasure::Process),
            memory_limit: worker.info.memory_limit,
            cpu: number(metrics.get("cpu")),
            read: network("read_bps"),
            written: network("write_bps"),
            last_seen: worker.last_seen,
        }
    }
}

/// The bandwidth that a worker has measured.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Rate {
    /// The address of the worker that sends.
    pub from: String,
    /// The address of the worker that receives.
    pub to: String,
    /// Bytes per second.
    pub rate: f64,
}

/// The packages of a worker or a client.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PeerVersions {
    /// Whether it is a worker.
    pub is_worker: bool,
    /// The address of a worker, or the name of a client.
    pub name: String,
    /// Packages of Python with their versions. Peers in Rust have none.
    pub packages: Vec<(String, String)>,
}

impl State {
    /// The bandwidths that at most `count` workers after the one with an id have measured since their
    /// last but one heartbeat, with at most 64 others each. Returns also the id of the last worker;
    /// `None` if there are no more.
    pub fn overview_bandwidths(
        &self,
        after: Option<WorkerId>,
        count: usize,
    ) -> (Vec<Rate>, Option<WorkerId>) {
        const MAX_PEERS: usize = 64;
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let (mut rates, mut last) = (Vec::new(), None);
        for (id, worker) in self.workers.range_after(after).take(count) {
            last = Some(*id);
            let bandwidth = worker.info.metrics.get("bandwidth");
            let Some(Value::Dict(peers)) = bandwidth.and_then(|it| it.get("workers")) else {
                continue;
            };
            rates.extend(peers.iter().take(MAX_PEERS).filter_map(|(peer, rate)| {
                // Dask's workers report the rate, or the sum and the number of rates.
                let rate = match rate {
                    Value::List(parts) | Value::Tuple(parts) => {
                        let (sum, count) = (number(parts.first()), number(parts.get(1)));
                        if count > 0.0 { sum / count } else { 0.0 }
                    }
                    rate => number(Some(rate)),
                };
                (rate > 0.0).then(|| Rate {
                    from: peer.as_str().unwrap_or_default().to_owned(),
                    to: worker.address.to_string(),
                    rate,
                })
            }));
        }
        (rates, last)
    }

    /// The packages of at most `count` workers, and as many clients.
    pub fn overview_versions(&self, count: usize) -> Vec<PeerVersions> {
        let workers = self.workers.values().take(count);
        let workers = workers.map(|worker| PeerVersions {
            is_worker: true,
            name: worker.address.to_string(),
            packages: worker.packages.pairs(),
        });
        let clients = self.clients.values();
        let clients = clients.filter(|client| client.stream.is_some());
        let clients = clients.take(count).map(|client| PeerVersions {
            is_worker: false,
            name: client.name.to_string(),
            packages: client.packages.pairs(),
        });
        workers.chain(clients).collect()
    }

    /// At most `count` workers that have joined after the one with an id, in the order in which they
    /// joined.
    pub fn overview_workers(&self, after: Option<WorkerId>, count: usize) -> Vec<WorkerOverview> {
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let workers = self.workers.range_after(after).take(count);
        workers
            .map(|(id, worker)| WorkerOverview::of(*id, worker))
            .collect()
    }

    /// The worker with an address.
    pub fn overview_worker(&self, address: &str) -> Option<WorkerOverview> {
        let id = self.by_address.get(address)?;
        Some(WorkerOverview::of(*id, &self.workers[id]))
    }
}

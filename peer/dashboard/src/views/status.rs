//! The whole cluster, its workers, and its tasks by prefix.

use core::cmp::Reverse;
use std::borrow::Cow;

use daskwire_messages::protocol::WorkerStatus;
use daskwire_scheduler::state::{State, StateCounts, WorkerOverview};
use serde::{Serialize, Serializer};

use super::{Viewed, cut};

/// Maximum number of workers in a list.
const MAX_WORKERS: usize = 2_000;

/// Maximum number of prefixes in a list.
const MAX_PREFIXES: usize = 100;

/// The numbers of tasks by Dask's name of their state.
#[derive(Clone, Copy, Debug)]
pub(super) struct States(StateCounts);

impl From<StateCounts> for States {
    fn from(counts: StateCounts) -> Self {
        Self(counts)
    }
}

impl Serialize for States {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter())
    }
}

#[derive(Debug, Default, Serialize)]
struct Memory {
    managed: u64,
    unmanaged: u64,
    spilled: u64,
    limit: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct Cluster {
    time: f64,
    id: String,
    address: String,
    version: &'static str,
    started: f64,
    workers: usize,
    threads: u64,
    clients: usize,
    tasks: States,
    memory: Memory,
    cpu: f64,
    read: f64,
    write: f64,
    finished: u64,
}

/// The whole cluster.
pub(super) fn cluster(viewed: &Viewed<'_>) -> Cluster {
    let read = |state: &State| {
        let counts = (state.client_count(), state.thread_count());
        (counts, state.state_counts(), state.finished_count())
    };
    let ((clients, threads), tasks, finished) = viewed.inspect(read);
    let workers = viewed.workers();
    let mut memory = Memory::default();
    for worker in workers {
        memory.managed += worker.managed;
        memory.spilled += worker.spilled;
        memory.unmanaged += unmanaged(worker);
        memory.limit += worker.memory_limit.unwrap_or(0);
    }
    Cluster {
        time: viewed.now,
        id: viewed.scheduler.id().to_owned(),
        address: viewed.scheduler.address().to_string(),
        version: env!("CARGO_PKG_VERSION"),
        started: viewed.scheduler.started().as_secs_f64(),
        workers: workers.len(),
        threads,
        clients,
        tasks: tasks.into(),
        memory,
        cpu: workers.iter().map(|worker| worker.cpu).sum(),
        read: workers.iter().map(|worker| worker.read).sum(),
        write: workers.iter().map(|worker| worker.written).sum(),
        finished,
    }
}

/// Bytes of memory of a worker that are not those of results.
const fn unmanaged(worker: &WorkerOverview) -> u64 {
    worker.process_memory.saturating_sub(worker.managed)
}

#[derive(Debug, Serialize)]
pub(super) struct Workers<'v> {
    workers: Vec<Worker<'v>>,
    total: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct Worker<'v> {
    address: Cow<'v, str>,
    name: Cow<'v, str>,
    status: &'v str,
    host: Cow<'v, str>,
    kind: &'static str,
    threads: u32,
    processing: usize,
    queued: usize,
    in_memory: usize,
    managed: u64,
    spilled: u64,
    unmanaged: u64,
    process_memory: u64,
    limit: Option<u64>,
    cpu: f64,
    read: f64,
    write: f64,
    last_seen: f64,
    long_running: usize,
}

impl<'v> Worker<'v> {
    pub(super) fn of(worker: &'v WorkerOverview, now: f64) -> Self {
        Self {
            address: cut(&worker.address),
            name: cut(&worker.name),
            status: WorkerStatus::as_str(&worker.status),
            host: cut(&worker.host),
            kind: if worker.is_rust { "rust" } else { "python" },
            threads: worker.thread_count,
            processing: worker.processing_count,
            queued: worker.queued_count,
            in_memory: worker.result_count,
            managed: worker.managed,
            spilled: worker.spilled,
            unmanaged: unmanaged(worker),
            process_memory: worker.process_memory,
            limit: worker.memory_limit,
            cpu: worker.cpu,
            read: worker.read,
            write: worker.written,
            last_seen: (now - worker.last_seen.as_secs_f64()).max(0.0),
            long_running: worker.long_running_count,
        }
    }
}

/// The workers, in the order in which they joined.
pub(super) fn workers<'v>(viewed: &'v Viewed<'_>) -> Workers<'v> {
    let workers = viewed.workers();
    let listed = workers.iter().take(MAX_WORKERS);
    Workers {
        workers: listed
            .map(|worker| Worker::of(worker, viewed.now))
            .collect(),
        total: workers.len(),
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Prefixes<'v> {
    prefixes: Vec<Prefix<'v>>,
    others: usize,
}

#[derive(Debug, Serialize)]
struct Prefix<'v> {
    name: Cow<'v, str>,
    states: States,
    nbytes: u128,
    duration: Option<f64>,
}

/// The tasks by the prefix of their keys, those with the most tasks first.
pub(super) fn prefixes<'v>(viewed: &'v Viewed<'_>) -> Prefixes<'v> {
    let mut prefixes: Vec<_> = viewed.prefixes().iter().collect();
    let others = prefixes.len().saturating_sub(MAX_PREFIXES);
    prefixes.sort_by_key(|(_, prefix)| Reverse(prefix.counts.total()));
    let prefixes = prefixes.into_iter().take(MAX_PREFIXES);
    let prefixes = prefixes.map(|(name, prefix)| Prefix {
        name: cut(name),
        states: prefix.counts.into(),
        nbytes: prefix.nbytes,
        duration: prefix.duration.map(|duration| duration.as_secs_f64()),
    });
    Prefixes {
        prefixes: prefixes.collect(),
        others,
    }
}

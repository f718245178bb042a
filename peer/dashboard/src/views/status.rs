//! The whole cluster, its workers, and its tasks by prefix.

use std::borrow::Cow;
use std::collections::BTreeMap;

use daskwire_messages::protocol::WorkerStatus;
use daskwire_scheduler::state::{PrefixCounts, WorkerOverview};
use serde::Serialize;

use super::{Viewed, cut};

/// Maximum number of workers in a list.
const MAX_WORKERS: usize = 2_000;

/// Maximum number of prefixes in a list.
const MAX_PREFIXES: usize = 100;

/// The numbers of tasks by Dask's name of their state.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct States {
    released: u64,
    waiting: u64,
    no_worker: u64,
    queued: u64,
    processing: u64,
    memory: u64,
    erred: u64,
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
    let (clients, threads) = viewed.inspect(|state| (state.client_count(), state.thread_count()));
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
        started: 0.0,
        workers: workers.len(),
        threads,
        clients,
        tasks: States::default(),
        memory,
        cpu: workers.iter().map(|worker| worker.cpu).sum(),
        read: workers.iter().map(|worker| worker.read).sum(),
        write: workers.iter().map(|worker| worker.written).sum(),
        finished: 0,
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
pub(super) struct Prefixes {
    prefixes: Vec<Prefix>,
    others: usize,
}

#[derive(Debug, Serialize)]
struct Prefix {
    name: String,
    states: States,
    nbytes: u64,
    duration: Option<f64>,
}

/// The tasks by the prefix of their keys, those with the most tasks first.
pub(super) fn prefixes(viewed: &Viewed<'_>) -> Prefixes {
    let mut counts = PrefixCounts::new();
    let mut part = 0;
    while viewed.inspect(|state| {
        state.count_prefixes(part, &mut counts);
        part += 1;
        part < state.part_count()
    }) {}
    let mut prefixes: Vec<Prefix> = counts
        .into_iter()
        .map(|(name, counts)| {
            let counts: BTreeMap<&str, u64> = counts.into_iter().collect();
            let count = |name| counts.get(name).copied().unwrap_or_default();
            Prefix {
                name: cut(&name).into_owned(),
                states: States {
                    released: count("released"),
                    waiting: count("waiting"),
                    processing: count("processing"),
                    memory: count("memory"),
                    erred: count("erred"),
                    ..States::default()
                },
                nbytes: 0,
                duration: None,
            }
        })
        .collect();
    let others = prefixes.len().saturating_sub(MAX_PREFIXES);
    prefixes.truncate(MAX_PREFIXES);
    Prefixes { prefixes, others }
}

//! The metrics of a scheduler for Prometheus.

use std::collections::BTreeMap;

use daskwire_peer::scheduler::Scheduler;
use daskwire_scheduler::state::{Selection, State};

use daskwire_dashboard::Metrics;

/// Formats the metrics of a scheduler, named as those of Dask's scheduler where both have
/// them.
#[expect(clippy::cast_precision_loss, reason = "metrics are floating-point")]
pub(super) fn metrics(scheduler: &Scheduler, namespace: &str) -> String {
    let read = |state: &State| {
        (
            (state.client_count(), state.desired_worker_count(None)),
            (state.worker_counts(), state.totals()),
        )
    };
    let ((clients, desired), (workers, totals)) = scheduler.inspect(read);
    let (mut tasks, mut nbytes) = (BTreeMap::new(), BTreeMap::new());
    // In parts, between which the scheduler goes on.
    let mut parts = 0..;
    while scheduler.inspect(|state| {
        let part = parts.next().filter(|part| *part < state.part_count());
        if let Some(part) = part {
            state.count_tasks(part, &mut tasks);
            state.add_nbytes(Selection::Part(part), &mut nbytes);
        }
        part.is_some()
    }) {
        std::thread::yield_now();
    }
    let mut to = Metrics::new(namespace, "scheduler");
    to.gauge("clients", "Number of clients connected", clients as f64);
    to.counter(
        "client_connections_added_total",
        "Total number of client connections added",
        totals.clients_added as f64,
    );
    to.counter(
        "client_connections_removed_total",
        "Total number of client connections removed",
        totals.clients_removed as f64,
    );
    to.gauge(
        "desired_workers",
        "Number of workers scheduler needs for task graph",
        desired as f64,
    );
    let states = [
        ("idle", workers.idle),
        ("partially_saturated", workers.partially_saturated),
        ("saturated", workers.saturated),
        ("paused", workers.paused),
        ("retiring", workers.retiring),
    ];
    let states = states.map(|(state, count)| (Some(("state", state)), count as f64));
    to.add(
        "gauge",
        "workers",
        "Number of workers known by scheduler",
        &states,
    );
    to.counter(
        "workers_added_total",
        "Total number of workers added",
        totals.workers_added as f64,
    );
    to.counter(
        "workers_removed_total",
        "Total number of workers removed",
        totals.workers_removed as f64,
    );
    let states = STATES.map(|state| {
        let count = tasks.get(state).copied().unwrap_or_default();
        (Some(("state", state)), count as f64)
    });
    to.add(
        "gauge",
        "tasks",
        "Number of tasks known by scheduler",
        &states,
    );
    let nbytes: Vec<(Option<(&str, &str)>, f64)> = nbytes
        .iter()
        .map(|(prefix, len)| (Some(("task_prefix_name", &**prefix)), *len as f64))
        .collect();
    to.add(
        "gauge",
        "tasks_output_bytes",
        "Current number of bytes in memory (without duplicates) for each prefix",
        &nbytes,
    );
    to.into_text()
}

/// Dask's states of tasks at a scheduler.
const STATES: [&str; 7] = [
    "released",
    "waiting",
    "no-worker",
    "queued",
    "processing",
    "memory",
    "erred",
];

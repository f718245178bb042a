//! The metrics of a worker for Prometheus.

use daskwire_peer::worker::{Tally, Worker};

use daskwire_dashboard::Metrics;

/// Formats the metrics of a worker, named as those of Dask's workers where both have
/// them.
#[expect(clippy::cast_precision_loss, reason = "metrics are floating-point")]
pub(super) fn metrics(worker: &Worker, namespace: &str) -> String {
    let mut to = Metrics::new(namespace, "worker");
    let holdings = worker.holdings();
    let tasks: Vec<(&str, f64)> = worker
        .task_counts()
        .into_iter()
        .map(|(state, count)| match state {
            "memory" => (state, count.saturating_sub(holdings.disk_count) as f64),
            _ => (state, count as f64),
        })
        .chain([("disk", holdings.disk_count as f64)])
        .filter(|(_, count)| *count > 0.0)
        .collect();
    let tasks = tasks.iter();
    let tasks = tasks.map(|(state, count)| (Some(("state", *state)), *count));
    to.add("gauge", "tasks", "Number of tasks at worker.", tasks);
    let threads = worker.nthreads() as f64;
    to.gauge("threads", "Number of worker threads", threads);
    let latency = worker.latency().as_secs_f64();
    to.gauge("latency_seconds", "Latency of worker connection", latency);
    let process = worker.process_memory();
    let managed = process.min(holdings.memory_len);
    to.add(
        "gauge",
        "memory_bytes",
        "Memory breakdown",
        [
            (Some(("type", "managed")), managed as f64),
            (Some(("type", "unmanaged")), (process - managed) as f64),
            (Some(("type", "spilled")), holdings.disk_len as f64),
        ],
    );
    let transfers = worker.transfers();
    to.gauge(
        "transfer_incoming_bytes",
        "Total size of open data transfers from other workers",
        transfers.receiving_len as f64,
    );
    to.gauge(
        "transfer_incoming_count",
        "Number of open data transfers from other workers",
        transfers.receiving_count as f64,
    );
    to.counter(
        "transfer_incoming_count_total",
        "Total number of data transfers from other workers since the worker was started",
        transfers.received_count as f64,
    );
    to.gauge(
        "transfer_outgoing_bytes",
        "Total size of open data transfers to other workers",
        transfers.sending_len as f64,
    );
    to.gauge(
        "transfer_outgoing_count",
        "Number of open data transfers to other workers",
        transfers.sending_count as f64,
    );
    to.counter(
        "transfer_outgoing_bytes_total",
        "Total size of data transfers to other workers since the worker was started",
        transfers.sent_len as f64,
    );
    to.counter(
        "transfer_outgoing_count_total",
        "Total number of data transfers to other workers since the worker was started",
        transfers.sent_count as f64,
    );
    let counters = worker.counters();
    let activities = [
        (Some(("activity", "disk-write")), counters.spilled),
        (Some(("activity", "disk-read")), counters.unspilled),
    ];
    let mut spill = |name, help, value: fn(Tally) -> f64| {
        let values = activities.map(|(activity, accesses)| (activity, value(accesses)));
        to.add("counter", name, help, values);
    };
    spill(
        "spill_bytes_total",
        "Total size of disk accesses caused by managed data since the worker was started",
        |accesses| accesses.len as f64,
    );
    spill(
        "spill_count_total",
        "Total number of disk accesses caused by managed data since the worker was started",
        |accesses| accesses.count as f64,
    );
    spill(
        "spill_time_seconds_total",
        "Total time spent spilling and unspilling since the worker was started",
        |accesses| accesses.time.as_secs_f64(),
    );
    to.into_text()
}

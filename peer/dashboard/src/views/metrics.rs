//! The metrics of a scheduler for Prometheus.

use daskwire_scheduler::Scheduler;
use daskwire_scheduler::state::State;

use crate::metrics::Metrics;
use crate::views::Viewed;

/// Maximum number of prefixes of tasks with a metric of their own. Those with fewer bytes count
/// together, as `Other`.
const MAX_PREFIXES: usize = 200;

/// Formats the metrics of a scheduler, named as those of Dask's scheduler where both have
/// them.
#[expect(clippy::cast_precision_loss, reason = "metrics are floating-point")]
pub(crate) fn metrics(scheduler: &Scheduler, namespace: &str) -> String {
    let viewed = Viewed::new(scheduler);
    let read = |state: &State| {
        (
            (state.client_count(), state.desired_worker_count(None)),
            (state.worker_counts(), state.totals()),
            state.state_counts(),
        )
    };
    let ((clients, desired), (workers, totals), tasks) = viewed.inspect(read);
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
    let states: Vec<_> = tasks
        .iter()
        .map(|(state, count)| (Some(("state", state)), count as f64))
        .collect();
    to.add(
        "gauge",
        "tasks",
        "Number of tasks known by scheduler",
        &states,
    );
    let groups = viewed.groups();
    to.gauge(
        "task_groups",
        "Number of task groups known by scheduler",
        groups.len() as f64,
    );
    let mut prefixes: Vec<_> = viewed
        .prefixes()
        .iter()
        .filter(|(_, prefix)| prefix.counts.of("memory") > 0)
        .map(|(name, prefix)| (prefix.nbytes, &**name))
        .collect();
    let mut others = 0.0;
    if prefixes.len() > MAX_PREFIXES {
        prefixes.sort_unstable_by(|one, other| other.cmp(one));
        let rest = prefixes.split_off(MAX_PREFIXES);
        others = rest.iter().map(|(nbytes, _)| *nbytes as f64).sum();
    }
    prefixes.sort_unstable_by_key(|(_, name)| *name);
    let sizes = prefixes
        .iter()
        .map(|(nbytes, name)| (*name, *nbytes as f64));
    let others = (others > 0.0).then_some(("Other", others));
    let sizes: Vec<_> = sizes
        .chain(others)
        .map(|(name, nbytes)| (Some(("task_prefix_name", name)), nbytes))
        .collect();
    to.add(
        "gauge",
        "tasks_output_bytes",
        "Current number of bytes in memory (without duplicates) for each prefix",
        &sizes,
    );
    to.into_text()
}

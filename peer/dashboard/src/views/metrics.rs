//! The metrics of a scheduler for Prometheus.

use std::sync::Arc;

use daskwire_scheduler::Scheduler;
use daskwire_scheduler::state::{PrefixTotals, SemaphoreOverview, State};

use super::keys::shown;
use super::{Viewed, cut};
use crate::metrics::Metrics;

/// Maximum number of prefixes of tasks with metrics of their own. The others count together, as
/// `Other`.
const MAX_PREFIXES: u32 = 200;

/// The name of the label for a prefix.
const PREFIX: &str = "task_prefix_name";

/// The prefix of tasks whose prefix has no metrics of its own.
const OTHERS: &str = "Other";

/// Maximum number of semaphores and locks with metrics.
const MAX_SEMAPHORES: usize = 200;

/// Formats the metrics of a scheduler, named as those of Dask's scheduler where both have
/// them.
#[expect(clippy::cast_precision_loss, reason = "metrics are floating-point")]
pub(crate) fn metrics(scheduler: &Scheduler, namespace: &str) -> String {
    let viewed = Viewed::new(scheduler);
    let read = |state: &State| {
        (
            (state.client_count(), state.desired_worker_count(None)),
            (state.worker_counts(), state.totals()),
            (state.state_counts(), state.forgotten_count()),
            state.semaphores(MAX_SEMAPHORES),
        )
    };
    let ((clients, desired), (workers, totals), (tasks, forgotten), semaphores) =
        viewed.inspect(read);
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
    to.add(
        "gauge",
        "workers",
        "Number of workers known by scheduler",
        states.map(|(state, count)| (Some(("state", state)), count as f64)),
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
    let states = tasks.iter();
    to.add(
        "gauge",
        "tasks",
        "Number of tasks known by scheduler",
        states.map(|(state, count)| (Some(("state", state)), count as f64)),
    );
    to.counter(
        "tasks_forgotten_total",
        "Total number of tasks removed from the scheduler",
        forgotten as f64,
    );
    to.gauge(
        "task_groups",
        "Number of task groups known by scheduler",
        viewed.groups().len() as f64,
    );
    add_sizes(&mut to, &viewed);
    add_totals(&mut to, &by_prefix(&viewed));
    let mut of_semaphores = Metrics::new(namespace, "semaphore");
    add_semaphores(&mut of_semaphores, &semaphores);
    to.into_text() + &of_semaphores.into_text()
}

/// The sizes of results in memory by prefix, those with the most bytes.
#[expect(clippy::cast_precision_loss, reason = "metrics are floating-point")]
fn add_sizes(to: &mut Metrics, viewed: &Viewed<'_>) {
    let mut prefixes: Vec<_> = viewed
        .prefixes()
        .iter()
        .filter(|(_, prefix)| prefix.counts.of("memory") > 0)
        .map(|(name, prefix)| (prefix.nbytes, &**name))
        .collect();
    let mut others = 0.0;
    let max = MAX_PREFIXES as usize;
    if prefixes.len() > max {
        prefixes.sort_unstable_by(|one, other| other.cmp(one));
        let rest = prefixes.split_off(max);
        others = rest.iter().map(|(nbytes, _)| *nbytes as f64).sum();
    }
    prefixes.sort_unstable_by_key(|(_, name)| *name);
    let sizes = prefixes
        .iter()
        .map(|(nbytes, name)| (*name, *nbytes as f64));
    let others = (others > 0.0).then_some((OTHERS, others));
    to.add(
        "gauge",
        "tasks_output_bytes",
        "Current number of bytes in memory (without duplicates) for each prefix",
        sizes
            .chain(others)
            .map(|(name, nbytes)| (Some((PREFIX, name)), nbytes)),
    );
}

/// What has happened to tasks by prefix.
fn by_prefix(viewed: &Viewed<'_>) -> Vec<(Arc<str>, PrefixTotals)> {
    let mut all = Vec::new();
    let mut parts = 0..;
    while let Some(part) = parts
        .next()
        .filter(|part| *part < viewed.inspect(State::prefix_part_count))
    {
        all.extend(viewed.inspect(|state| state.prefix_totals(part)));
        viewed.scheduler.give_way();
    }
    bounded(all)
}

/// The prefixes at the first places, and the sum of the others. As a prefix keeps its place, none becomes
/// a part of the sum or the reverse, so that no counter decreases.
fn bounded(
    prefixes: impl IntoIterator<Item = (u32, Arc<str>, PrefixTotals)>,
) -> Vec<(Arc<str>, PrefixTotals)> {
    let mut first = Vec::new();
    let mut others = PrefixTotals::default();
    for (place, name, totals) in prefixes {
        match place {
            1..=MAX_PREFIXES if totals != PrefixTotals::default() => first.push((name, totals)),
            1..=MAX_PREFIXES => {}
            _ => others.add(&totals),
        }
    }
    if others != PrefixTotals::default() {
        first.push((OTHERS.into(), others));
    }
    first
}

/// Adds what has happened to tasks.
#[expect(clippy::cast_precision_loss, reason = "metrics are floating-point")]
fn add_totals(to: &mut Metrics, prefixes: &[(Arc<str>, PrefixTotals)]) {
    let mut add = |name, help, value: fn(&PrefixTotals) -> f64| {
        let values = prefixes.iter();
        let values = values.map(|(name, totals)| (Some((PREFIX, &**name)), value(totals)));
        to.add("counter", name, help, values);
    };
    add(
        "tasks_suspicious_total",
        "Total number of times a task has been marked suspicious",
        |totals| totals.suspicious as f64,
    );
    add(
        "tasks_compute_seconds_total",
        "Total amount of compute time spent in each prefix",
        |totals| totals.compute.as_secs_f64(),
    );
    add(
        "tasks_transfer_seconds_total",
        "Total amount of transfer time spent in each prefix",
        |totals| totals.transfer.as_secs_f64(),
    );
    let entered = prefixes.iter().flat_map(|(name, totals)| {
        let states = totals.entered.iter();
        let states = states.chain([("forgotten", totals.forgotten)]);
        let states = states.filter(|(_, count)| *count > 0);
        states.map(|(state, count)| ([(PREFIX, &**name), ("state", state)], count as f64))
    });
    to.add(
        "counter",
        "prefix_state_totals_total",
        "Accumulated count of task prefix in each state",
        entered,
    );
}

/// Adds semaphores, of which locks are some.
#[expect(clippy::cast_precision_loss, reason = "metrics are floating-point")]
fn add_semaphores(to: &mut Metrics, semaphores: &[SemaphoreOverview]) {
    let names: Vec<String> = semaphores
        .iter()
        .map(|semaphore| cut(&shown(&semaphore.name)).into_owned())
        .collect();
    let mut add = |kind, name, help, value: fn(&SemaphoreOverview) -> f64| {
        let values = names.iter().zip(semaphores);
        let values =
            values.map(|(name, semaphore)| (Some(("name", name.as_str())), value(semaphore)));
        to.add(kind, name, help, values);
    };
    add(
        "gauge",
        "max_leases",
        "Maximum leases allowed per semaphore",
        |semaphore| semaphore.max_leases as f64,
    );
    add(
        "gauge",
        "active_leases",
        "Amount of currently active leases per semaphore",
        |semaphore| semaphore.lease_count as f64,
    );
    add(
        "gauge",
        "pending_leases",
        "Amount of currently pending leases per semaphore",
        |semaphore| semaphore.waiter_count as f64,
    );
    add(
        "counter",
        "acquire_total",
        "Total number of leases acquired per semaphore",
        |semaphore| semaphore.acquired as f64,
    );
    add(
        "counter",
        "release_total",
        "Total number of leases released per semaphore",
        |semaphore| semaphore.released as f64,
    );
    add(
        "gauge",
        "average_pending_lease_time_s",
        "Exponential moving average of the time it took to acquire a lease per semaphore",
        |semaphore| semaphore.mean_wait.as_secs_f64(),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_keep_their_counters() {
        let totals = |forgotten| {
            let mut totals = PrefixTotals::default();
            totals.forgotten = forgotten;
            totals
        };
        // `Other` is at the first place.
        let mut all: Vec<(u32, Arc<str>, PrefixTotals)> = (0..300)
            .map(|place| {
                let name = match place {
                    0 => OTHERS.to_owned(),
                    place => format!("x{place}"),
                };
                // One of the first has had no task yet.
                let forgotten = u64::from(place != 7);
                (place, name.into(), totals(forgotten))
            })
            .collect();
        let find = |found: &[(Arc<str>, PrefixTotals)], name: &str| {
            let mut found = found.iter().filter(|(known, _)| **known == *name);
            let (one, more) = (found.next(), found.next());
            assert!(more.is_none(), "{name}");
            one.map(|(_, totals)| totals.forgotten)
        };
        let found = bounded(all.clone());
        assert_eq!(found.len(), 200);
        assert_eq!((find(&found, "x7"), find(&found, "x201")), (None, None));
        assert_eq!(find(&found, OTHERS), Some(100));
        all[7].2 = totals(1);
        // One of the first is forgotten, and counts for `Other` since.
        all.remove(100);
        all[0].2 = totals(2);
        let found = bounded(all);
        assert_eq!(
            (find(&found, "x7"), find(&found, "x200")),
            (Some(1), Some(1))
        );
        assert_eq!((find(&found, "x100"), find(&found, "x201")), (None, None));
        assert_eq!(find(&found, OTHERS), Some(101));
    }
}

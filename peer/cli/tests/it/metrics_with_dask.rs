//! The metrics of schedulers and workers are those of Dask.

use std::collections::{BTreeMap, BTreeSet};

use daskwire_testing::cluster::Cluster;
use daskwire_testing::{Environment, Peer, address_after, python};

use crate::scheduler_command::{http_port, scheduler};
use crate::support::http::request;

/// Metrics that only Dask's scheduler and worker have, and why.
const ONLY_OF_DASK: [(&str, &str); 13] = [
    (
        "dask_scheduler_gc_collection_seconds_total",
        "there is no garbage collector",
    ),
    (
        "dask_scheduler_last_time_total",
        "it is the time of a measurement of Dask's",
    ),
    (
        "dask_scheduler_tick_count_total",
        "no event loop has ticks that can be measured",
    ),
    (
        "dask_scheduler_tick_duration_maximum_seconds",
        "no event loop has ticks; /health tells whether the scheduler hangs",
    ),
    (
        "dask_stealing_request_cost_total",
        "tasks that wait are not sorted by cost before they are moved",
    ),
    (
        "dask_stealing_request_count_total",
        "tasks that wait are not sorted by cost before they are moved",
    ),
    (
        "dask_worker_gc_collection_seconds_total",
        "there is no garbage collector",
    ),
    (
        "dask_worker_tick_count_total",
        "no event loop has ticks that can be measured",
    ),
    (
        "dask_worker_tick_duration_maximum_seconds",
        "no event loop has ticks that can be measured",
    ),
    ("python_gc_collections_total", "there is no interpreter"),
    (
        "python_gc_objects_collected_total",
        "there is no interpreter",
    ),
    (
        "python_gc_objects_uncollectable_total",
        "there is no interpreter",
    ),
    ("python_info", "there is no interpreter"),
];

/// The kind of each metric, and the names of its labels.
type Metrics = BTreeMap<String, (String, BTreeSet<String>)>;

fn parse(text: &str) -> Metrics {
    let mut metrics = Metrics::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a kind");
            metrics.insert(name.to_owned(), (kind.to_owned(), BTreeSet::new()));
        } else if let Some((name, labels)) = line.split_once('{') {
            let (labels, _) = labels.rsplit_once('}').expect("an end");
            let (_, known) = metrics.get_mut(name).expect("it has a type");
            // No value in this test has a comma.
            let labels = labels.split(',').filter_map(|label| label.split_once('='));
            known.extend(labels.map(|(label, _)| label.to_owned()));
        }
    }
    metrics
}

/// The metrics of a scheduler, and of its only worker, after tasks have run and a lock was taken.
fn measured(scheduler: Peer) -> [Metrics; 2] {
    let port = http_port(&scheduler.log());
    let address = [scheduler.address()];
    let client = Peer::spawn(Environment::Current, "worker_client.py", &address);
    let mut cluster = Cluster { client, scheduler };
    let worker = cluster.python(
        "from distributed import Lock\n\
         client.wait_for_workers(1)\n\
         kept = client.map(operator.neg, range(3), key='some')\nwait(kept)\n\
         Lock('name').acquire()\n\
         [it['services']['dashboard'] for it in client.scheduler_info()['workers'].values()][0]",
    );
    [port, worker].map(|port| {
        // Dask's server would keep the connection.
        let headers = "Connection: close\r\n";
        let (status, metrics) = request(&port, "GET", "/metrics", headers, "");
        assert_eq!(status, "HTTP/1.1 200 OK", "{metrics}");
        parse(&metrics)
    })
}

/// Starts a module of Dask's, and waits for an address in its log.
fn start(module: &str, arguments: &[&str], label: &str) -> Peer {
    let arguments = [&[module, "--host", "127.0.0.1"], arguments].concat();
    let arguments = [&arguments[..], &["--dashboard-address", "127.0.0.1:0"]].concat();
    let interpreter = python(Environment::Current);
    Peer::spawn_dask(&interpreter, module, &arguments, |log| {
        address_after(log, label)
    })
}

#[test]
fn metrics_are_those_of_dask() {
    let of_dask = start(
        "distributed.cli.dask_scheduler",
        &["--port", "0"],
        "Scheduler at:",
    );
    let arguments = [of_dask.address(), "--no-nanny"];
    let worker_of_dask = start(
        "distributed.cli.dask_worker",
        &arguments,
        "Start worker at:",
    );
    let expected = measured(of_dask);
    drop(worker_of_dask);
    let scheduler = scheduler(&["--dashboard-address", "127.0.0.1:0"], &[]);
    let worker = daskwire_testing::rust_worker(
        env!("CARGO_BIN_EXE_daskwire"),
        scheduler.address(),
        "rust",
        Some(&python(Environment::Current)),
        &["--no-nanny", "--dashboard-address", "127.0.0.1:0"],
        &[],
    );
    let found = measured(scheduler);
    drop(worker);
    let mut missing = BTreeSet::new();
    for (expected, found) in expected.iter().zip(&found) {
        assert!(expected.len() > 15, "{expected:?}");
        for (name, (expected_kind, expected_labels)) in expected {
            let Some((kind, labels)) = found.get(name) else {
                missing.insert(name.as_str());
                continue;
            };
            assert_eq!(kind, expected_kind, "{name}");
            // Some have no values there as long as they would be zero.
            let has_values = !expected_labels.is_empty();
            assert!(
                !has_values || labels == expected_labels,
                "{name}: {labels:?}"
            );
        }
    }
    let known = ONLY_OF_DASK.map(|(name, _)| name);
    assert_eq!(missing, BTreeSet::from(known), "{found:?}");
}

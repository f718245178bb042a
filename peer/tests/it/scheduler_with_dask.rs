//! Tests of the embedded scheduler with real Dask workers and a real Dask client.

use std::collections::BTreeSet;

use crate::client_api_table::printed;
use crate::support::embedded::Embedded;
use daskwire_scheduler::state::State;
use daskwire_testing::{Environment, Peer, warnings_except};
use tokio::runtime::Runtime;

fn client(address: &str, steps: &[&str]) -> Peer {
    let arguments = [&[address][..], steps].concat();
    Peer::spawn(Environment::Current, "embedded_client.py", &arguments)
}

/// Starts an embedded scheduler, and returns it with its address.
fn start() -> (Runtime, Embedded, String) {
    let runtime = Runtime::new().expect("a runtime");
    let embedded = runtime.block_on(Embedded::start());
    let address = embedded.scheduler.address().to_string();
    (runtime, embedded, address)
}

/// Parts of the warnings about the tasks that fail on purpose.
const EXPECTED: [&str; 1] = ["Compute Failed"];

#[test]
fn python_computes_for_python() {
    let (runtime, embedded, address) = start();
    let workers = ["worker-0", "worker-1"].map(|name| daskwire_testing::worker(&address, name));
    let steps = [
        "journey",
        "story",
        "data",
        "errors",
        "broadcasts",
        "coroutines",
        "costs_itself",
        "maps",
        "shares",
        "graphs",
        "nests",
        "options",
    ];
    let client = client(&address, &steps);
    assert_eq!(warnings_except(&client.log(), &EXPECTED), [""; 0]);
    // The client has disconnected, which releases its keys.
    let left = embedded.scheduler.inspect(State::task_count);
    assert_eq!(left, 0);
    assert_eq!(runtime.block_on(embedded.close()), [""; 0]);
    // The client that nested tasks have used within a worker may not reach the scheduler any more.
    let expected = [EXPECTED[0], "distributed.client - ERROR"];
    for worker in &workers {
        worker.wait_for_log("End worker");
        assert_eq!(warnings_except(&worker.log(), &expected), [""; 0]);
    }
}

/// Each operation of Dask's scheduler has the same result here.
#[test]
fn operations_have_the_results_of_dask() {
    let dask = daskwire_testing::scheduler_with_workers(2);
    let (_runtime, _embedded, address) = start();
    let _workers = ["worker-0", "worker-1"].map(|name| daskwire_testing::worker(&address, name));
    let addresses = [dask.address(), &*address];
    Peer::spawn(Environment::Current, "operations.py", &addresses);
}

/// A worker that is paused does not start what it was sent in advance.
#[test]
fn a_paused_worker_in_python_gives_tasks_back() {
    let (_runtime, _embedded, address) = start();
    let _workers = ["worker-0", "worker-1"].map(|name| daskwire_testing::worker(&address, name));
    client(&address, &["gives_back"]);
}

#[test]
fn a_task_that_kills_its_workers_fails_as_python_expects() {
    let (_runtime, _embedded, address) = start();
    let _workers: Vec<Peer> = (0..4)
        .map(|number| daskwire_testing::worker(&address, &format!("worker-{number}")))
        .collect();
    client(&address, &["killed"]);
}

/// Workers in Python as `dask worker` starts them.
#[test]
fn nannies_register_and_restart_their_workers() {
    let (runtime, embedded, address) = start();
    let mut nannies =
        ["worker-0", "worker-1"].map(|name| daskwire_testing::worker_under_nanny(&address, name));
    let client = client(&address, &["nannies"]);
    // Its result was on the worker that is killed.
    let expected = ["Couldn't gather 1 keys"];
    assert_eq!(warnings_except(&client.log(), &expected), [""; 0]);
    assert_eq!(runtime.block_on(embedded.close()), [""; 0]);
    for nanny in &mut nannies {
        nanny.wait_for_log("End worker");
        let expected = [
            "Restarting worker",
            "was killed by signal 9",
            // The task that runs at the restart.
            "ended with CancelledError",
            "still alive after",
            // A race in Dask: the worker's process ends while a thread of it waits for a queue.
            "Worker process died unexpectedly",
            "Traceback (most recent call last)",
        ];
        assert_eq!(warnings_except(&nanny.log(), &expected), [""; 0]);
    }
}

/// The tables of `OPERATIONS.md` have all handlers of Dask's scheduler.
#[test]
fn the_tables_have_each_operation_of_dask() {
    const TABLES: &str = include_str!("../../scheduler/OPERATIONS.md");
    let handlers = printed(
        "import asyncio\n\
         from distributed import Scheduler\n\
         async def main():\n    \
             options = {'host': '127.0.0.1', 'port': 0, 'dashboard_address': ':0'}\n    \
             async with Scheduler(**options) as scheduler:\n        \
                 print(*scheduler.handlers, *scheduler.stream_handlers, sep='\\n')\n\
         asyncio.run(main())",
    );
    let rows = TABLES.lines().filter_map(|line| line.strip_prefix("| `"));
    let listed = rows.filter_map(|row| row.split('`').next().map(str::to_owned));
    assert_eq!(listed.collect::<BTreeSet<String>>(), handlers);
}

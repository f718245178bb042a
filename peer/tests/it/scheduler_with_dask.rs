//! Tests of the embedded scheduler with real Dask workers and a real Dask client.

use core::time::Duration;
use std::collections::BTreeSet;

use crate::client_api_table::printed;
use crate::support::embedded::Embedded;
use daskwire_peer::client::SharedValue;
use daskwire_peer::scheduler::{Options, Policy};
use daskwire_peer::{Client, RequestError, Value};
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
        "reduces",
        "errors",
        "broadcasts",
        "coroutines",
        "executors",
        "costs_itself",
        "maps",
        "shares",
        "graphs",
        "nests",
        "actors",
        "operations",
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
    let (handled, published) = TABLES.split_once("\n## Events\n").expect("a section");
    let rows = |section: &'static str| section.lines().filter_map(|line| line.strip_prefix("| `"));
    let handled = handled.split("\n## ");
    let handled = handled.filter(|section| section.contains("| op | here |"));
    let listed = handled.flat_map(rows);
    let listed = listed.filter_map(|row| row.split('`').next().map(str::to_owned));
    assert_eq!(listed.collect::<BTreeSet<String>>(), handlers);
    // The actions are literals in Dask.
    let actions = printed(
        "import inspect, re\n\
         from distributed import scheduler\n\
         source = inspect.getsource(scheduler)\n\
         print(*re.findall(r'\"action\": \"([a-z-]+)\"', source), sep='\\n')",
    );
    let names = rows(published).filter_map(|row| row.split(" | ").next());
    let names = names.flat_map(|names| names.split(", "));
    let names = names.map(|name| name.trim_matches('`').to_owned());
    assert_eq!(names.collect::<BTreeSet<String>>(), actions);
}

/// The client in Rust that meets the step `meets` of the client in Python.
async fn meet(client: &Client) -> Result<(), Box<dyn core::error::Error + Send + Sync>> {
    const WAIT: Option<Duration> = Some(Duration::from_secs(60));
    let variable = client.variable("v")?;
    variable
        .set(Value::dict([("from", Value::from("rust"))]))
        .await?;
    let queue = client.queue("q", Some(2)).await?;
    let lease = client.lock("l").await?.acquire(WAIT).await?;
    // Python sets the variable before it puts the failure.
    let SharedValue::Future(failure) = queue.get(WAIT).await? else {
        return Err("a future was put".into());
    };
    let error = failure.result().await.expect_err("it divides by zero");
    assert!(error.to_string().contains("division by zero"), "{error}");
    let SharedValue::Future(sum) = variable.get(WAIT).await? else {
        return Err("a future was set".into());
    };
    assert_eq!(sum.result().await?, Value::from(3));
    queue.put("rust", WAIT).await?;
    queue
        .put(client.submit("operator.add", (2, 3))?, WAIT)
        .await?;
    assert!(client.event("refused")?.wait(WAIT).await?);
    lease.release().await?;
    assert!(client.event("locked")?.wait(WAIT).await?);
    let lock = client.lock("l").await?;
    let late = lock.acquire(Some(Duration::from_millis(50))).await;
    assert!(
        matches!(late, Err(RequestError::Timeout { .. })),
        "{late:?}"
    );
    client
        .publish_dataset("from-rust", Value::list([7]))
        .await?;
    client.event("refused by python")?.set().await?;
    lock.acquire(WAIT).await?.release().await?;
    assert!(client.event("in a task")?.wait(WAIT).await?);
    assert!(client.event("published")?.wait(WAIT).await?);
    assert_eq!(client.list_datasets().await?.len(), 2);
    let dataset = client.dataset("from-python").await?;
    let dataset = dataset.ok_or("it is published")?;
    assert_eq!(dataset.futures[0].result().await?, Value::from(30));
    client.unpublish_dataset("from-rust").await?;
    client.event("read")?.set().await?;
    queue.close().await?;
    variable.delete().await?;
    Ok(())
}

// ROLES SCHEDULER-18
#[test]
fn a_python_client_finds_results_after_its_connection_broke() {
    let runtime = Runtime::new().expect("a runtime");
    let policy = Policy::default().with_client_grace(Duration::from_secs(60));
    let options = Options::default().with_policy(policy);
    let embedded = runtime.block_on(Embedded::start_with(options));
    let address = embedded.scheduler.address().to_string();
    let worker = daskwire_testing::worker(&address, "worker-0");
    let client = client(&address, &["comes_back"]);
    assert_eq!(warnings_except(&client.log(), &EXPECTED), [""; 0]);
    let left = embedded.scheduler.inspect(State::task_count);
    assert_eq!(left, 0);
    // The client has said that it leaves.
    let left = embedded.scheduler.inspect(State::grace_count);
    assert_eq!(left, 0);
    let totals = embedded.scheduler.inspect(State::totals);
    assert_eq!(totals.clients_added, 2);
    assert_eq!(runtime.block_on(embedded.close()), [""; 0]);
    worker.wait_for_log("End worker");
}

#[test]
fn rust_and_python_share_objects() {
    let (runtime, embedded, address) = start();
    let worker = daskwire_testing::worker(&address, "worker-0");
    let connecting = Client::connect(&address);
    let rust = runtime.block_on(connecting).expect("a client");
    let meeting = runtime.spawn(async move {
        let met = meet(&rust).await;
        rust.close().await.expect("it was connected");
        met
    });
    let client = client(&address, &["meets"]);
    let met = runtime.block_on(meeting).expect("no panic");
    met.expect("all is shared");
    // The task that divides by zero.
    let expected = [EXPECTED[0], "ZeroDivisionError"];
    assert_eq!(warnings_except(&client.log(), &expected), [""; 0]);
    let left = embedded.scheduler.inspect(State::task_count);
    assert_eq!(left, 0, "a result is held");
    let waiting = embedded.scheduler.inspect(State::waiting_request_count);
    assert_eq!(waiting, 0);
    assert_eq!(runtime.block_on(embedded.close()), [""; 0]);
    worker.wait_for_log("End worker");
}

//! Computations on the embedded cluster.

use core::time::Duration;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use daskwire_comm::CommOptions;
use daskwire_peer::client::{
    Connection, OnReconnect, Reconnect, Route, Status, SubmitOptions, TaskError, TaskFuture,
};
use daskwire_peer::cluster::{Builder, ClusterTransport, Link, LocalCluster, StartError};
use daskwire_peer::graph::{Argument, Graph, Task};
use daskwire_peer::scheduler::{Options, Policy, Scheduler};
use daskwire_peer::worker::{Ended, Functions, Worker};
use daskwire_peer::{Array, Client, Key, RemoteError, Value};

// Ten thousand tasks, one after the other, on a machine that is busy with other tests.
const TIMEOUT: Duration = Duration::from_secs(180);

async fn result(future: &TaskFuture) -> Value {
    future.result_within(TIMEOUT).await.expect("a result")
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_tasks_run_in_one_graph_and_one_by_one() {
    let cluster = LocalCluster::builder()
        .nthreads(2)
        .start()
        .await
        .expect("a cluster");
    let client = cluster.client().await.expect("a client");
    let key = |index: i64| Key::list([Key::from("sum"), Key::from(index)]);
    let graph: Graph = (0..10_000)
        .map(|index| match index {
            0 => Task::new(key(0), "operator.add", [0, 1]),
            _ => {
                let before = Argument::from(key(index - 1));
                Task::new(key(index), "operator.add", [before, Argument::from(1)])
            }
        })
        .collect();
    let futures = client
        .submit_graph(&graph, vec![key(9_999)], &SubmitOptions::default())
        .expect("submitted");
    assert_eq!(result(&futures[0]).await, Value::from(10_000));
    let singles: Vec<TaskFuture> = (0..10_000)
        .map(|index| {
            client
                .submit("operator.mul", [index, 2])
                .expect("submitted")
        })
        .collect();
    let values = client.gather(&singles).await.expect("results");
    assert!(
        values
            .into_iter()
            .eq((0..10_000).map(|index| Value::from(2 * index)))
    );
    client.close().await.expect("closed");
    cluster.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_of_rust_are_called_by_their_name() {
    let functions = Functions::builtins()
        .function("hypot", |x: f64, y: f64| x.hypot(y))
        .function("total", |array: Array| -> Result<f64, RemoteError> {
            let elements = array.to_vec::<f64>();
            let elements =
                elements.map_err(|error| RemoteError::new("TypeError", &error.to_string()))?;
            Ok(elements.iter().sum())
        });
    let cluster = LocalCluster::builder()
        .functions(functions)
        .start()
        .await
        .expect("a cluster");
    let client = cluster.client().await.expect("a client");
    let hypot = client.submit("native:hypot", [3, 4]).expect("submitted");
    assert_eq!(result(&hypot).await, Value::from(5.0));
    let array = Array::from_slice(&[4], &[1.0, 2.0, 3.0, 4.5]).expect("four");
    for route in [Route::Scheduler, Route::Direct] {
        let data = [(Key::unique("array"), array.clone())];
        let data = client.scatter_by(data, route).await.expect("scattered");
        let total = client
            .submit("native:total", [&data[0]])
            .expect("submitted");
        assert_eq!(result(&total).await, Value::from(10.5));
        let back = client.gather_by(&data, route).await.expect("gathered");
        assert_eq!(back, [Value::from(array.clone())]);
    }
    let wrong = client.submit("native:total", [1]).expect("submitted");
    let error = wrong
        .result_within(TIMEOUT)
        .await
        .expect_err("it is no array");
    assert!(matches!(error, TaskError::Failed { .. }), "{error}");
    let unknown = client
        .submit("native:no_such_function", [1])
        .expect("submitted");
    let error = unknown
        .result_within(TIMEOUT)
        .await
        .expect_err("there is none");
    assert!(error.to_string().contains("no_such_function"), "{error}");
    client.close().await.expect("closed");
    cluster.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_reach_all_that_depend_on_them() {
    let cluster = LocalCluster::start().await.expect("a cluster");
    let client = cluster.client().await.expect("a client");
    let bad = client
        .submit("operator.truediv", [1, 0])
        .expect("submitted");
    let mut last = bad.clone();
    for _ in 0..10 {
        last = client.submit("operator.neg", [&last]).expect("submitted");
    }
    for future in [&bad, &last] {
        let error = future.result_within(TIMEOUT).await.expect_err("it fails");
        let TaskError::Failed { key, error } = error else {
            panic!("{error}");
        };
        assert_eq!(key, *future.key());
        assert_eq!(error.to_string(), "ZeroDivisionError: division by zero");
        assert!(matches!(future.status(), Status::Error(_)));
    }
    client.close().await.expect("closed");
    cluster.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn recomputes_results_of_a_lost_worker() {
    let mut cluster = LocalCluster::builder()
        .workers(3)
        .start()
        .await
        .expect("a cluster");
    let client = cluster.client().await.expect("a client");
    let first: Vec<TaskFuture> = (0..300)
        .map(|index| {
            client
                .submit("operator.add", [index, 1])
                .expect("submitted")
        })
        .collect();
    client.wait(&first).await;
    assert!(
        cluster
            .workers()
            .iter()
            .all(|worker| !worker.keys().is_empty())
    );
    assert!(cluster.close_worker(1).await);
    let second: Vec<TaskFuture> = first
        .iter()
        .map(|future| client.submit("operator.neg", [future]).expect("submitted"))
        .collect();
    let values = client.gather(&second).await.expect("results");
    assert!(
        values
            .into_iter()
            .eq((0..300).map(|index| Value::from(-index - 1)))
    );
    let values = client
        .gather_by(&first, Route::Direct)
        .await
        .expect("results");
    assert!(
        values
            .into_iter()
            .eq((0..300).map(|index| Value::from(index + 1)))
    );
    client.close().await.expect("closed");
    cluster.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gather_reports_an_error_while_other_tasks_run() {
    let cluster = LocalCluster::builder().start().await.expect("a cluster");
    let client = cluster.client().await.expect("a client");
    let impossible = SubmitOptions::default().resource("missing", 1.0);
    let never = client.call("operator.neg").argument(1).with(impossible);
    let never = never.submit().expect("submitted");
    let failed = client.submit("operator.truediv", [1, 0]);
    let failed = failed.expect("submitted");
    let both = [never, failed];
    // The error does not depend on the order.
    for both in [both.clone(), [both[1].clone(), both[0].clone()]] {
        let gathered = tokio::time::timeout(TIMEOUT, client.gather(&both)).await;
        let error = gathered.expect("in time").expect_err("one of them failed");
        assert!(error.to_string().contains("division by zero"), "{error}");
    }
    client.close().await.expect("closed");
    cluster.close().await;
}

#[tokio::test]
async fn an_address_without_a_transport_is_an_error_of_starting() {
    let address = "unknown://here".parse().expect("an address");
    let error = LocalCluster::builder().listen(address).start().await;
    let error = error.expect_err("there is no transport");
    assert!(matches!(error, StartError::Listen(_)), "{error}");
    let error = daskwire_peer::Error::from(error).to_string();
    assert!(error.contains("no transport for unknown://"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_that_only_some_workers_have_run_there() {
    let address = "inproc://some-functions".parse().expect("an address");
    let transports = daskwire_peer::transports();
    let listener = transports.bind(&address, CommOptions::default()).await;
    let listener = listener.expect("it is free");
    let scheduler = Scheduler::start(vec![listener], Options::default()).expect("a scheduler");
    let address = scheduler.address().clone();
    let functions = [
        Functions::new().function("hypot", |x: f64, y: f64| x.hypot(y)),
        Functions::new().function("double", |x: i64| 2 * x),
        Functions::new(),
    ];
    let mut workers = Vec::new();
    for functions in functions {
        let worker = Worker::builder(address.clone()).functions(functions);
        workers.push(worker.start().await.expect("a worker"));
    }
    let client = Client::connect(&address.to_string()).await;
    let client = client.expect("a client");
    let submit = |function: &str, number: i64| {
        let arguments = match function {
            "native:hypot" => vec![3 * number, 4 * number],
            _ => vec![number],
        };
        client.submit(function, arguments).expect("submitted")
    };
    for number in 0..10 {
        let hypot = submit("native:hypot", number);
        let double = submit("native:double", number);
        let none = submit("native:no_such_function", number);
        assert_eq!(result(&hypot).await, Value::from(5.0 * number as f64));
        assert_eq!(result(&double).await, Value::from(2 * number));
        let error = none
            .result_within(TIMEOUT)
            .await
            .expect_err("no worker has it");
        let error = error.to_string();
        assert!(error.contains("NotImplementedError"), "{error}");
        assert!(error.contains("workers asked: 3"), "{error}");
        assert!(
            error.contains("native:no_such_function, which is not registered with it"),
            "{error}"
        );
    }
    client.close().await.expect("closed");
    drop(workers);
    scheduler.close().await;
}

/// Adds functions to the workers of a cluster: `native:name` returns the name of the worker, and so
/// does `native:wait`, which first sends the name to the receiver, and then takes a time that is
/// longer than a test on `worker-0`.
fn with_names(builder: Builder) -> (Builder, Receiver<String>) {
    let (started, starts) = channel();
    let started = Mutex::new(started);
    let started = Arc::new(move |name: &str| {
        // The test may not wait for it.
        let _ = started.lock().expect("no panic").send(name.to_owned());
    });
    let builder = builder.configure_workers(move |number, worker| {
        let (name, started) = (format!("worker-{number}"), Arc::clone(&started));
        let own = name.clone();
        let functions = Functions::builtins()
            .function("name", move || own.clone())
            .function("wait", move || {
                started(&name);
                if name == "worker-0" {
                    std::thread::sleep(TIMEOUT);
                }
                name.clone()
            });
        // A worker that is lost is lost for good.
        worker
            .functions(functions)
            .reconnect_timeout(Duration::ZERO)
    });
    (builder, starts)
}

/// Waits for the start of a task on a worker.
fn started_on(starts: &Receiver<String>, worker: &str) {
    let started = tokio::task::block_in_place(|| starts.recv_timeout(TIMEOUT));
    assert_eq!(started.as_deref(), Ok(worker));
}

async fn names(client: &Client) -> Vec<(String, u64, u64)> {
    let workers = client.workers().await.expect("an answer").into_iter();
    let mut names: Vec<_> = workers
        .map(|worker| (worker.name, worker.nthreads, worker.memory_limit))
        .collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn each_worker_has_settings_of_its_own() {
    let mut cluster = LocalCluster::builder()
        .nthreads(3)
        .configure_workers(|number, worker| match number {
            0 => worker.name("gpu").resource("GPU", 2.0).nthreads(1),
            1 => worker.memory_limit(1 << 30),
            _ => worker,
        })
        .start()
        .await
        .expect("a cluster");
    let client = cluster.client().await.expect("a client");
    let worker = |name: &str, nthreads, limit| (name.to_owned(), nthreads, limit);
    let first = [worker("gpu", 1, 0), worker("worker-1", 3, 1 << 30)];
    assert_eq!(names(&client).await, first);

    let on_gpu = SubmitOptions::default().resource("GPU", 1.0);
    let calls = client.calls("operator.neg").over(0..10).with(on_gpu);
    let futures = calls.submit().expect("submitted");
    client.gather(&futures).await.expect("results");
    assert_eq!(cluster.workers()[0].keys().len(), 10);

    // Workers that are added later.
    let third = cluster.add_worker().await.expect("a worker");
    assert_eq!((third.name(), third.nthreads()), ("worker-2", 3));
    let fourth = cluster
        .add_worker_with(|worker| worker.name("big").resource("MEMORY", 8.0))
        .await
        .expect("a worker");
    assert_eq!(fourth.name(), "big");
    let in_memory = SubmitOptions::default().resource("MEMORY", 8.0);
    let call = client.call("operator.neg").argument(100).with(in_memory);
    let future = call.submit().expect("submitted");
    assert_eq!(result(&future).await, Value::from(-100));
    assert_eq!(fourth.keys().len(), 1);
    let error = cluster
        .add_worker_with(|worker| worker.name("big"))
        .await
        .expect_err("the name is taken");
    assert!(error.to_string().contains("big"), "{error}");
    assert_eq!(names(&client).await.len(), 4);
    assert_eq!(cluster.workers().len(), 4);
    client.close().await.expect("closed");
    cluster.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_result_of_a_task_arrives_although_its_worker_dies() {
    for transport in [ClusterTransport::Memory, ClusterTransport::Tcp] {
        let (builder, starts) = with_names(LocalCluster::builder().transport(transport));
        let mut cluster = builder.workers(1).start().await.expect("a cluster");
        let client = cluster.client().await.expect("a client");
        let before = client.submit("operator.add", [1, 2]).expect("submitted");
        assert_eq!(result(&before).await, Value::from(3));
        let future = client.submit("native:wait", ()).expect("submitted");
        started_on(&starts, "worker-0");
        let first = Arc::clone(&cluster.workers()[0]);
        cluster.add_worker().await.expect("a worker");
        let link = cluster.link(0).expect("a worker");
        assert!(link.comm_count() > 0, "{link:?}");
        assert!(cluster.kill_worker(0));
        assert_eq!(result(&future).await, Value::from("worker-1"));
        started_on(&starts, "worker-1");
        // What it had is computed again.
        let after = client.submit("operator.neg", [&before]).expect("submitted");
        assert_eq!(result(&after).await, Value::from(-3));
        assert!(matches!(
            first.ended().await,
            Ended::Lost(_) | Ended::Closed
        ));
        assert_eq!(cluster.workers().len(), 1);
        assert!(!cluster.kill_worker(1));
        assert!(cluster.link(1).is_none());
        client.close().await.expect("closed");
        cluster.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scheduler_has_options() {
    let options = Options::default()
        .with_policy(Policy::default().with_allowed_failures(0))
        .with_blocked_ops(vec!["benchmark_hardware".to_owned()]);
    let (builder, starts) = with_names(LocalCluster::builder().scheduler(options));
    let mut cluster = builder.workers(1).start().await.expect("a cluster");
    let client = cluster.client().await.expect("a client");
    let request = daskwire_messages::protocol::Unknown::new("benchmark_hardware");
    let refused = client.request::<Value>(request).await;
    let refused = refused.expect_err("it is blocked");
    assert!(
        refused.to_string().contains("benchmark_hardware"),
        "{refused}"
    );
    let future = client.submit("native:wait", ()).expect("submitted");
    started_on(&starts, "worker-0");
    assert!(cluster.kill_worker(0));
    let error = future.result_within(TIMEOUT).await.expect_err("it died");
    let class = error.remote().map(|error| error.class.clone());
    assert!(
        class.is_some_and(|class| class.ends_with("KilledWorker")),
        "{error}"
    );
    client.close().await.expect("closed");
    cluster.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_workers_and_slow_links_delay_results_only() {
    const DELAY: Duration = Duration::from_millis(100);
    let (builder, _) = with_names(LocalCluster::builder());
    let cluster = builder.start().await.expect("a cluster");
    let client = cluster.client().await.expect("a client");
    let on = |worker: &str| SubmitOptions::default().workers([worker]);
    let timed = async |worker: &str| {
        let call = client.call("native:name").impure().with(on(worker));
        let started = Instant::now();
        let future = call.submit().expect("submitted");
        assert_eq!(result(&future).await, Value::from(worker));
        started.elapsed()
    };
    let link = cluster.link(0).expect("a worker");
    link.delay(DELAY);
    assert!(timed("worker-0").await >= DELAY);
    timed("worker-1").await;
    link.delay(Duration::ZERO);
    timed("worker-0").await;
    cluster.close().await;

    // Of tasks that may run anywhere, a worker with slow functions gets fewer.
    let cluster = LocalCluster::builder()
        .configure_workers(|number, worker| match number {
            0 => worker.functions(Functions::builtins().delayed(DELAY)),
            _ => worker,
        })
        .start()
        .await
        .expect("a cluster");
    let client = cluster.client().await.expect("a client");
    let futures = client.map("operator.neg", 0..50).expect("submitted");
    let values = client.gather(&futures).await.expect("results");
    assert!(values.into_iter().eq((0..50).map(|n| Value::from(-n))));
    let counts = cluster.workers();
    let counts = counts
        .iter()
        .map(|worker| worker.total_task_counters().count);
    let counts: Vec<u64> = counts.collect();
    assert!(counts[0] < counts[1], "{counts:?}");
    client.close().await.expect("closed");
    cluster.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_reconnects_after_its_link_was_cut() {
    let cluster = LocalCluster::start().await.expect("a cluster");
    let link = Link::new();
    // The first attempt of each round fails.
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    let prepare = async move |client: Client, call: usize| match call % 2 {
        0 => Err("not yet".to_owned()),
        _ => {
            let set = client.set_metadata(["prepared"], call as u64).await;
            set.map_err(|error| error.to_string())
        }
    };
    let on_reconnect =
        OnReconnect::new(move |client| prepare(client, counter.fetch_add(1, Ordering::SeqCst)));
    let options = link
        .client_options(cluster.client_options())
        .with_reconnect(Reconnect::Within(TIMEOUT))
        .with_on_reconnect(on_reconnect);
    let address = cluster.address().to_string();
    let client = Client::connect_with(&address, options).await;
    let client = client.expect("a client");
    for round in 0..3 {
        let data = client.scatter([round]).await.expect("scattered");
        let mut connection = client.watch_connection();
        link.cut();
        while connection.changed().await != Some(Connection::Connected) {}
        let Status::Cancelled { reason } = data[0].status() else {
            panic!("{data:?}")
        };
        assert!(reason.contains("it has no client grace"), "{reason}");
        let prepared = client.metadata(["prepared"]).await.expect("set");
        assert_eq!(prepared, Some(Value::from(2 * round + 1)));
    }
    let mut connection = client.watch_connection();
    // While it is down, no attempt succeeds.
    link.disconnect();
    assert_eq!(connection.changed().await, Some(Connection::Reconnecting));
    let other = cluster.client().await.expect("another client");
    other.close().await.expect("closed");
    assert_eq!(link.comm_count(), 0);
    assert_eq!(client.connection(), Connection::Reconnecting);
    link.reconnect();
    assert_eq!(connection.changed().await, Some(Connection::Connected));
    cluster.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_message_breaks_its_comm() {
    // The result does not arrive, and the worker is lost with its stream if it does not return.
    let (builder, _) = with_names(LocalCluster::builder());
    let cluster = builder.start().await.expect("a cluster");
    let client = cluster.client().await.expect("a client");
    let first = Arc::clone(&cluster.workers()[0]);
    cluster.link(0).expect("a worker").lose("task-finished");
    let options = SubmitOptions::default()
        .workers(["worker-0"])
        .allow_other_workers();
    let call = client.call("native:name").with(options);
    let future = call.submit().expect("submitted");
    assert_eq!(result(&future).await, Value::from("worker-1"));
    assert!(matches!(first.ended().await, Ended::Lost(_)));
    client.close().await.expect("closed");
    cluster.close().await;

    // A request for data is repeated, and the workers stay.
    let cluster = LocalCluster::start().await.expect("a cluster");
    let client = cluster.client().await.expect("a client");
    let on = |worker: &str| SubmitOptions::default().workers([worker]);
    let data = client.call("operator.add").argument(1).argument(2);
    let data = data.with(on("worker-1")).submit().expect("submitted");
    client.wait([&data]).await;
    cluster.link(0).expect("a worker").lose("get_data");
    let negated = client.call("operator.neg").argument(&data);
    let negated = negated.with(on("worker-0")).submit().expect("submitted");
    assert_eq!(result(&negated).await, Value::from(-3));
    assert_eq!(names(&client).await.len(), 2);
    client.close().await.expect("closed");
    cluster.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_hangs_goes_on_later() {
    let (builder, starts) = with_names(LocalCluster::builder());
    let cluster = builder.start().await.expect("a cluster");
    let client = cluster.client().await.expect("a client");
    let link = cluster.link(1).expect("a worker");
    link.pause();
    let on = SubmitOptions::default().workers(["worker-1"]);
    let call = client.call("native:wait").with(on);
    let future = call.submit().expect("submitted");
    let short = Duration::from_millis(200);
    let late = future.result_within(short).await;
    assert!(matches!(late, Err(TaskError::Timeout { .. })), "{late:?}");
    assert!(starts.try_recv().is_err());
    link.resume();
    assert_eq!(result(&future).await, Value::from("worker-1"));
    // A cluster can be closed while a worker hangs.
    link.pause();
    client.close().await.expect("closed");
    cluster.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_restarts_the_cluster() {
    let mut cluster = LocalCluster::builder()
        .configure_workers(|number, worker| worker.resource(&format!("R{number}"), 1.0))
        .start()
        .await
        .expect("a cluster");
    let client = cluster.client().await.expect("a client");
    let before = client.submit("operator.add", [1, 2]).expect("submitted");
    assert_eq!(result(&before).await, Value::from(3));
    let old = cluster.workers();
    client.restart(TIMEOUT).await.expect("restarted");
    for worker in &old {
        assert!(matches!(worker.ended().await, Ended::Restart { .. }));
    }
    assert_eq!(before.done().await.name(), "cancelled");
    assert_eq!(names(&client).await.len(), 2);
    // They have the same settings, and are on the same links.
    let with_resource = SubmitOptions::default().resource("R1", 1.0);
    let call = client.call("operator.neg").argument(1).with(with_resource);
    let future = call.submit().expect("submitted");
    assert_eq!(result(&future).await, Value::from(-1));
    assert_eq!(cluster.workers()[1].keys().len(), 1);
    assert!(cluster.kill_worker(0));
    while client.workers().await.expect("an answer").len() > 1 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    client.close().await.expect("closed");
    cluster.close().await;
}

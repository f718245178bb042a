//! Computations on the embedded cluster.

use core::time::Duration;

use daskwire_comm::CommOptions;
use daskwire_peer::client::TaskError;
use daskwire_peer::client::{Route, Status, SubmitOptions, TaskFuture};
use daskwire_peer::cluster::{LocalCluster, StartError};
use daskwire_peer::graph::{Argument, Graph, Task};
use daskwire_peer::scheduler::{Options, Scheduler};
use daskwire_peer::worker::{Functions, Worker};
use daskwire_peer::{Array, Client, Key, RemoteError, Value};

// Ten thousand tasks, one after the other, on a machine that is busy with other tests.
const TIMEOUT: Duration = Duration::from_secs(180);

async fn result(future: &TaskFuture) -> Value {
    future.result_within(TIMEOUT).await.expect("a result")
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_tasks_run_in_one_graph_and_one_by_one() {
    let cluster = LocalCluster::builder()
        .threads(2)
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

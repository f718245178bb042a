//! Tests of the client with a real cluster: a Dask scheduler and two Dask workers, in
//! processes of their own.

use core::time::Duration;
use std::collections::HashSet;

use crate::support::client::client_at;
use daskwire_peer::TaskState;
use daskwire_peer::client::{Route, Status, SubmitError, SubmitOptions, TaskError, TaskFuture};
use daskwire_peer::graph::{Argument, Graph, Task};
use daskwire_peer::{Array, Client, Key, Value};
use daskwire_testing::{Environment, Peer, TLS_PEM, warnings_except};
use serde_json::json;

/// Timeout of a single step; the machine may be busy.
const TIMEOUT: Duration = Duration::from_secs(120);

fn integer(value: Value) -> i64 {
    i64::try_from(value).expect("an integer")
}

/// Computes `count` tasks in one graph, each depending on the previous one.
async fn a_chain_in_one_graph(client: &Client, count: i64) {
    let key = |index: i64| Key::list([Key::from("chain"), Key::from(index)]);
    let graph: Graph = (0..count)
        .map(|index| match index {
            0 => Task::new(key(0), "operator.neg", [-1]),
            _ => Task::new(
                key(index),
                "operator.add",
                [Argument::from(key(index - 1)), Argument::from(1)],
            ),
        })
        .collect();
    let last = vec![key(count - 1)];
    let futures = client
        .submit_graph(&graph, last, &SubmitOptions::default())
        .expect("submitted");
    let result = futures[0].result_within(TIMEOUT).await.expect("a result");
    assert_eq!(integer(result), count);
}

/// Computes a chain whose tasks are submitted one by one.
async fn a_chain_one_by_one(client: &Client) {
    let mut last = client.submit("operator.add", [0, 1]).expect("submitted");
    for _ in 0..99 {
        let next = client
            .submit("operator.add", [Argument::from(&last), Argument::from(1)])
            .expect("submitted");
        last = next;
    }
    assert_eq!(
        integer(last.result_within(TIMEOUT).await.expect("a result")),
        100
    );
}

async fn a_reduction_tree(client: &Client) {
    let key =
        |level: i64, index: i64| Key::list([Key::from("tree"), Key::from(level), Key::from(index)]);
    let mut tasks: Vec<Task> = (0..512)
        .map(|index| Task::new(key(0, index), "operator.mul", [index, 2]))
        .collect();
    let mut width = 512;
    let mut level = 0;
    while width > 1 {
        width /= 2;
        level += 1;
        tasks.extend((0..width).map(|index| {
            let below = [key(level - 1, 2 * index), key(level - 1, 2 * index + 1)];
            Task::new(key(level, index), "operator.add", below)
        }));
    }
    let root = vec![key(level, 0)];
    let graph = Graph { tasks };
    let futures = client
        .submit_graph(&graph, root, &SubmitOptions::default())
        .expect("submitted");
    let result = futures[0].result_within(TIMEOUT).await.expect("a result");
    assert_eq!(
        integer(result),
        (0..512).map(|index| index * 2).sum::<i64>()
    );
}

async fn errors_arrive_with_their_text(client: &Client) {
    let bad = client
        .submit("operator.truediv", [1, 0])
        .expect("submitted");
    let dependent = client.submit("operator.neg", [&bad]).expect("submitted");
    for future in [&bad, &dependent] {
        let error = future.result_within(TIMEOUT).await.expect_err("it fails");
        let TaskError::Failed { error, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(error.class, "ZeroDivisionError");
        assert_eq!(error.message, "division by zero");
        assert!(error.traceback.contains("worker.py"), "{}", error.traceback);
        assert_eq!(future.status().name(), "error");
    }
    // A missing key of a dictionary, formatted as in Python.
    let missing = client
        .call("operator.getitem")
        .argument(Value::dict([("a", 1)]))
        .argument("b")
        .submit()
        .expect("submitted");
    let error = missing.result_within(TIMEOUT).await.expect_err("it fails");
    let shown = format!("the task {} failed: KeyError: 'b'", missing.key());
    assert_eq!(error.to_string(), shown);
    // A function that the scheduler cannot import fails; the client continues.
    let unknown = client
        .submit("no_such_module.function", [1])
        .expect("submitted");
    let error = unknown.result_within(TIMEOUT).await.expect_err("it fails");
    assert!(
        error
            .to_string()
            .contains("deserialization of the task graph"),
        "{error}"
    );
    assert!(error.to_string().contains("no_such_module"), "{error}");
    // The cause names the function.
    let misspelt = client.submit("operator.ad", [1, 2]).expect("submitted");
    let error = misspelt.result_within(TIMEOUT).await.expect_err("it fails");
    let TaskError::Failed { error, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(error.class, "RuntimeError");
    let cause = error.cause.as_deref().expect("what was raised first");
    assert_eq!(cause.class, "AttributeError");
    assert!(cause.message.contains("'ad'"), "{cause}");
    assert!(error.to_string().contains("AttributeError"), "{error}");
}

async fn transfers_arguments_of_every_type(client: &Client) {
    let x = client.submit("operator.add", [40, 2]).expect("submitted");
    let cases: Vec<(TaskFuture, &str)> = vec![
        (
            client
                .call("builtins.repr")
                .argument(Value::list([
                    Value::None,
                    Value::from(true),
                    Value::from(-7),
                    Value::Int(1 << 100),
                    Value::from(2.5),
                    Value::from("häh"),
                    Value::bytes(vec![0, 255]),
                    Value::tuple([1]),
                    Value::Set([Value::from(1)].into()),
                    Value::dict([("a", 1)]),
                    Value::Complex(1.0, -2.0),
                ]))
                .submit()
                .expect("submitted"),
            "\"[None, True, -7, 1267650600228229401496703205376, 2.5, 'häh', b'\\\\x00\\\\xff', \
             (1,), {1}, {'a': 1}, (1-2j)]\"",
        ),
        (
            client
                .call("builtins.sorted")
                .argument(Argument::list([Argument::from(&x), Argument::from(1)]))
                .keyword("reverse", true)
                .submit()
                .expect("submitted"),
            "[42, 1]",
        ),
        (
            client
                .call("builtins.dict")
                .keyword("x", &x)
                .keyword("y", Value::None)
                .submit()
                .expect("submitted"),
            "{'x': 42, 'y': None}",
        ),
        (
            client
                .call("builtins.len")
                .argument(Argument::Dict(vec![(
                    Argument::from("k"),
                    Argument::from(&x),
                )]))
                .submit()
                .expect("submitted"),
            "1",
        ),
    ];
    for (future, expected) in &cases {
        let result = future.result_within(TIMEOUT).await.expect("a result");
        assert_eq!(&result.to_string(), expected, "{future:?}");
    }
}

async fn arrays_go_there_and_back(client: &Client) {
    let values: Vec<f64> = (0..1000).map(f64::from).collect();
    let array = Array::from_slice(&[10, 100], &values).expect("a thousand");
    for route in [Route::Scheduler, Route::Direct] {
        let data = [(Key::unique("array"), array.clone())];
        let scattered = client.scatter_by(data, route).await.expect("exists");
        let doubled = client
            .submit("numpy.add", [&scattered[0], &scattered[0]])
            .expect("submitted");
        let transposed = client
            .submit("numpy.transpose", [&doubled])
            .expect("submitted");
        let results = client
            .gather_by(&[scattered[0].clone(), doubled, transposed], route)
            .await
            .expect("results");
        let arrays: Vec<Array> = results
            .into_iter()
            .map(|value| Array::try_from(value).expect("an array"))
            .collect();
        assert_eq!(arrays[0], array);
        assert_eq!(arrays[2].shape(), [100, 10]);
        let expected: Vec<f64> = values.iter().map(|value| value * 2.0).collect();
        assert_eq!(arrays[1].to_vec::<f64>().expect("floats"), expected);
        let first: Vec<f64> = arrays[2].to_vec().expect("floats");
        assert_eq!(first[..3], [0.0, 200.0, 400.0]);
    }
}

async fn tasks_are_cancelled(client: &Client) {
    let blockers: Vec<TaskFuture> = (0..2)
        .map(|index| {
            let sleep = client
                .call("time.sleep")
                .argument(3)
                .key(format!("block-{index}"));
            sleep.submit().expect("submitted")
        })
        .collect();
    let waiting = client
        .submit("operator.neg", [&blockers[0]])
        .expect("submitted");
    reaches(client, waiting.key(), Some("waiting")).await;
    client.cancel([&waiting], false).expect("sent");
    let error = waiting.result_within(TIMEOUT).await.expect_err("cancelled");
    assert!(matches!(error, TaskError::Cancelled { .. }), "{error}");
    assert_eq!(waiting.status().name(), "cancelled");
    client.cancel(&blockers, true).expect("sent");
    // The scheduler cancels tasks with unknown dependencies.
    let lost = client
        .submit("operator.neg", [Key::from("there-is-no-such-key")])
        .expect("submitted");
    let error = lost.result_within(TIMEOUT).await.expect_err("cancelled");
    assert!(error.to_string().contains("lost dependencies"), "{error}");
}

async fn submission_settings_are_respected(client: &Client) {
    let workers = client.workers().await.expect("workers");
    assert_eq!(workers.len(), 2);
    for worker in &workers {
        let only = SubmitOptions::default().workers([worker.address.as_str()]);
        let futures = (0..5).map(|index| {
            let call = client.call("operator.add").argument(index).argument(1000);
            call.impure()
                .with(only.clone())
                .submit()
                .expect("submitted")
        });
        let futures: Vec<TaskFuture> = futures.collect();
        client.wait(&futures).await;
        for (key, holders) in client.who_has(&futures).await.expect("holders") {
            assert_eq!(holders, [worker.address.as_str()], "{key}");
        }
    }
    // A worker that does not exist is waited for, unless others may run the task.
    let absent = SubmitOptions::default().workers(["tcp://127.0.0.1:1"]);
    let call = client.call("operator.neg").argument(2);
    let waiting = call
        .clone()
        .key("waits-for-its-worker")
        .with(absent.clone());
    let waiting = waiting.submit().expect("submitted");
    reaches(client, waiting.key(), Some("no-worker")).await;
    let elsewhere = call
        .key("runs-elsewhere")
        .with(absent.allow_other_workers());
    let elsewhere = elsewhere.submit().expect("submitted");
    let result = elsewhere.result_within(TIMEOUT).await.expect("a result");
    assert_eq!(result, Value::from(-2));
    assert!(!waiting.is_done());
    // A resource that no worker has, so the task waits.
    let never = client
        .call("operator.neg")
        .argument(1)
        .key("needs-a-resource")
        .with(SubmitOptions::default().resource("UNOBTAINIUM", 1.0))
        .submit()
        .expect("submitted");
    let early = never.result_within(Duration::from_millis(500)).await;
    assert!(matches!(early, Err(TaskError::Timeout { .. })));
    // Equal calls share a task, unless they are impure.
    let one = client.submit("os.urandom", [16]).expect("submitted");
    let same = client.submit("os.urandom", [16]).expect("submitted");
    let other = client
        .call("os.urandom")
        .argument(16)
        .impure()
        .submit()
        .expect("submitted");
    assert_eq!(one.key(), same.key());
    assert_ne!(one.key(), other.key());
    let all = client.gather(&[one, same, other]).await.expect("results");
    assert_eq!(all[0], all[1]);
    assert_ne!(all[0], all[2]);
}

async fn futures_come_as_they_are_done(client: &Client) {
    let fast = client.map("operator.neg", 500..510_i64).expect("submitted");
    let total = client
        .submit("builtins.sum", [Argument::list(&fast)])
        .expect("submitted");
    let half = client
        .submit(
            "operator.truediv",
            [Argument::from(&total), (-10_090).into()],
        )
        .expect("submitted");
    // This task waits for all the others, and then takes longer.
    let slow = client
        .call("time.sleep")
        .argument(&half)
        .impure()
        .submit()
        .expect("submitted");
    let mut completed = client.as_completed([slow.clone()].into_iter().chain(fast));
    let mut order = Vec::new();
    while let Some(completed) = completed.next().await {
        order.push(completed.future.key().clone());
    }
    assert_eq!(order.len(), 11);
    assert_eq!(order.last(), Some(slow.key()));
    let distinct: HashSet<Key> = order.into_iter().collect();
    assert_eq!(distinct.len(), 11);
}

/// Checks that results without futures are deleted.
async fn dropped_futures_release_their_keys(client: &Client) {
    let future = client
        .submit("operator.add", [123_456, 1])
        .expect("submitted");
    future.finished().await.expect("a result");
    let again = future.clone();
    drop(future);
    let held = client
        .who_has(core::slice::from_ref(&again))
        .await
        .expect("holders");
    assert_eq!(held[0].1.len(), 1);
    let key = again.key().clone();
    drop(again);
    reaches(client, &key, None).await;
}

/// Waits until the scheduler reports this state of a task; `None` if it has no such task.
async fn reaches(client: &Client, key: &Key, state: Option<&str>) {
    reaches_one_of(client, key, &[state]).await;
}

/// Like [`reaches`], for any of several states.
async fn reaches_one_of(client: &Client, key: &Key, states: &[Option<&str>]) {
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    loop {
        let status = client.task_status([key.clone()]).await.expect("a status");
        if states.contains(&status[0].1.as_ref().map(TaskState::as_str)) {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "{status:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Runs all of the above on a new cluster.
async fn everything(client: &Client) {
    a_chain_in_one_graph(client, 500).await;
    a_chain_one_by_one(client).await;
    a_reduction_tree(client).await;
    errors_arrive_with_their_text(client).await;
    transfers_arguments_of_every_type(client).await;
    arrays_go_there_and_back(client).await;
    tasks_are_cancelled(client).await;
    submission_settings_are_respected(client).await;
    futures_come_as_they_are_done(client).await;
    dropped_futures_release_their_keys(client).await;
}

fn check_logs(cluster: &Peer) {
    check_logs_except(&[], cluster);
}

/// Asserts that the Python processes have logged no warnings or errors except lines with
/// these parts.
fn check_logs_except(parts: &[&str], cluster: &Peer) {
    for process in core::iter::once(cluster).chain(cluster.workers()) {
        assert_eq!(warnings_except(&process.log(), parts), [""; 0]);
    }
}

async fn rust_client_works_like_a_python_client(protocol: &str) {
    let cluster = daskwire_testing::scheduler_with_workers_over(protocol, 2);
    let client = client_at(cluster.address()).await;
    everything(&client).await;
    client.close().await.expect("closed");
    cluster.wait_for_log("Close client connection");
    // One task divides by zero, and another needs a missing module.
    let deliberate = ["Compute Failed", "Error during deserialization of the task"];
    check_logs_except(&deliberate, &cluster);
}

async fn thousands_of_tasks_run_in_one_graph_and_one_by_one(protocol: &str) {
    let cluster = daskwire_testing::scheduler_with_workers_over(protocol, 2);
    let client = client_at(cluster.address()).await;
    let key = |index: i64| Key::list([Key::from("many"), Key::from(index)]);
    let graph: Graph = (0..2_000)
        .map(|index| Task::new(key(index), "operator.add", [index, 1]))
        .collect();
    let keys = (0..2_000).map(key).collect();
    let futures = client
        .submit_graph(&graph, keys, &SubmitOptions::default())
        .expect("submitted");
    let results = client.gather(&futures).await.expect("results");
    assert!(results.into_iter().map(integer).eq(1..=2_000));
    drop(futures);

    let futures: Vec<TaskFuture> = (0..2_000)
        .map(|index| {
            client
                .submit("operator.sub", [index, 1])
                .expect("submitted")
        })
        .collect();
    let results = client.gather(&futures).await.expect("results");
    assert!(results.into_iter().map(integer).eq(-1..1_999));
    client.close().await.expect("closed");
    check_logs(&cluster);
}

async fn computation_survives_a_killed_worker(protocol: &str) {
    let mut cluster = daskwire_testing::scheduler_with_workers_over(protocol, 2);
    let client = client_at(cluster.address()).await;
    // Results of the first step are on both workers when one of them is killed.
    let first: Vec<TaskFuture> = (0..200)
        .map(|index| {
            client
                .submit("operator.add", [index, 1])
                .expect("submitted")
        })
        .collect();
    client.wait(&first).await;
    let holders = client.who_has(&first).await.expect("holders");
    let distinct: HashSet<&String> = holders.iter().flat_map(|(_, workers)| workers).collect();
    assert_eq!(distinct.len(), 2, "both have some");
    let slow: Vec<TaskFuture> = (0..40)
        .map(|index| {
            let call = client
                .call("time.sleep")
                .argument(0.05 + f64::from(index) * 1e-6);
            call.submit().expect("submitted")
        })
        .collect();
    let second: Vec<TaskFuture> = first
        .iter()
        .map(|future| client.submit("operator.neg", [future]).expect("submitted"))
        .collect();
    // On a loaded machine, the first may have ended.
    let begun = [Some("processing"), Some("memory")];
    reaches_one_of(&client, slow[0].key(), &begun).await;
    cluster.kill_worker(0);
    let results = client.gather(&second).await.expect("results");
    assert!(
        results
            .into_iter()
            .map(integer)
            .eq((0..200).map(|index| -(index + 1)))
    );
    for future in &slow {
        future.result_within(TIMEOUT).await.expect("it slept");
    }
    let results = client
        .gather_by(&first, Route::Direct)
        .await
        .expect("results");
    assert!(results.into_iter().map(integer).eq(1..=200));
    client.close().await.expect("closed");
}

async fn a_gibibyte_is_scattered_and_gathered_directly(protocol: &str) {
    let cluster = daskwire_testing::scheduler_with_workers_over(protocol, 2);
    let client = client_at(cluster.address()).await;
    let pieces: Vec<Array> = (0..16)
        .map(|index: u64| {
            let elements: Vec<u64> = (0..8 << 20).map(|element| element ^ index << 40).collect();
            Array::from_slice(&[8 << 20], &elements).expect("64 MiB")
        })
        .collect();
    let data = pieces
        .iter()
        .map(|piece| (Key::unique("piece"), piece.clone()));
    let scattered = client
        .scatter_by(data, Route::Direct)
        .await
        .expect("scattered");
    let sums: Vec<TaskFuture> = scattered
        .iter()
        .map(|piece| client.submit("numpy.max", [piece]).expect("submitted"))
        .collect();
    let gathered = client
        .gather_by(&scattered, Route::Direct)
        .await
        .expect("gathered");
    for (index, (sent, came)) in pieces.iter().zip(&gathered).enumerate() {
        let Value::Array(came) = came else {
            panic!("an array")
        };
        assert!(sent.bytes() == came.bytes(), "piece {index} is another one");
    }
    for (index, largest) in client
        .gather(&sums)
        .await
        .expect("sums")
        .into_iter()
        .enumerate()
    {
        let expected = (index as i64) << 40 | ((8 << 20) - 1);
        assert_eq!(integer(largest), expected, "piece {index}");
    }
    client.close().await.expect("closed");
    check_logs(&cluster);
}

async fn rust_and_python_clients_share_results(protocol: &str) {
    let cluster = daskwire_testing::scheduler_with_workers_over(protocol, 1);
    let mut python = Peer::spawn(
        Environment::Current,
        "client_beside.py",
        &[cluster.address(), TLS_PEM],
    );
    let client = client_at(cluster.address()).await;
    let mut ask = |question: serde_json::Value| {
        let (answer, _) = python.ask(&question.to_string(), &[]);
        let answer: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
        assert_eq!(answer["ok"], json!(true), "{question}: {answer}");
        answer
    };
    // Computed by Rust, used by Python
    let sum = client
        .call("operator.add")
        .argument(1)
        .argument(2)
        .key("rust-sum");
    let sum = sum.submit().expect("submitted");
    // The scheduler ignores a request for a key whose task it does not have yet.
    sum.finished().await.expect("a result");
    let array = Array::from_slice(&[3], &[1_i64, 2, 3]).expect("three");
    let array = client
        .scatter_by([("rust-array", array)], Route::Direct)
        .await
        .expect("scattered");
    assert_eq!(ask(json!({"op": "read", "key": "rust-sum"}))["value"], "3");
    let read = ask(json!({"op": "read", "key": "rust-array"}));
    assert_eq!(read["value"], "array([1, 2, 3])");
    let string = client.scatter(["some text"]).await.expect("scattered");
    let key = string[0].key().to_string();
    assert_eq!(
        ask(json!({"op": "read", "key": key}))["value"],
        "'some text'"
    );
    // Computed by Python, used by Rust
    ask(json!({"op": "make", "key": "python-list", "value": "[1, 'two', numpy.arange(3)]"}));
    ask(json!({"op": "make", "key": "python-frame", "value": "pandas.DataFrame({'a': [1, 2]})"}));
    ask(
        json!({"op": "submit", "key": "python-sum", "function": "operator.add", "arguments": "(20, 22)"}),
    );
    let list = client.future("python-list").expect("a future");
    let frame = client.future("python-frame").expect("a future");
    let total = client.future("python-sum").expect("a future");
    let Value::List(items) = list.result_within(TIMEOUT).await.expect("a result") else {
        panic!("a list")
    };
    assert_eq!(items[1], Value::from("two"));
    assert_eq!(
        integer(total.result_within(TIMEOUT).await.expect("a result")),
        42
    );
    // Objects without a Rust equivalent can be forwarded.
    let opaque = frame.result_within(TIMEOUT).await.expect("a result");
    let Value::Serialized(_) = &opaque else {
        panic!("{opaque}")
    };
    let again = client
        .scatter_by([("frame-passed-on", opaque)], Route::Scheduler)
        .await
        .expect("scattered");
    let read = ask(json!({"op": "read", "key": "frame-passed-on"}));
    assert_eq!(read["type"], "DataFrame");
    assert_eq!(read["value"], "   a\n0  1\n1  2");
    let shape = client
        .call("builtins.getattr")
        .argument(&again[0])
        .argument("shape")
        .submit()
        .expect("submitted");
    assert_eq!(
        shape.result().await.expect("a result"),
        Value::tuple([2, 1])
    );
    // Results of both clients in one task
    let keys = ["rust-sum", "python-sum"];
    assert_eq!(ask(json!({"op": "sum", "keys": keys}))["value"], "45");
    drop((sum, array, string));
    client.close().await.expect("closed");
    check_logs(&cluster);
}

async fn losing_the_scheduler_ends_all_futures(protocol: &str) {
    let cluster = daskwire_testing::scheduler_with_workers_over(protocol, 1);
    let client = client_at(cluster.address()).await;
    let waiting = client
        .call("time.sleep")
        .argument(60)
        .submit()
        .expect("submitted");
    drop(cluster);
    let error = waiting
        .result_within(TIMEOUT)
        .await
        .expect_err("it is gone");
    assert!(matches!(error, TaskError::Disconnected { .. }), "{error}");
    assert!(matches!(waiting.status(), Status::Disconnected { .. }));
    let error = client.submit("operator.neg", [1]).expect_err("it is gone");
    assert!(matches!(error, SubmitError::Disconnected(_)), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_starts_anew_after_a_cancellation_and_a_restart() {
    let cluster = daskwire_testing::scheduler_with_workers(1);
    let address = cluster.address().to_owned();
    let client = client_at(&address).await;
    let submit = || {
        let call = client.call("operator.neg").argument(1).key("again");
        call.submit().expect("submitted")
    };
    let first = submit();
    let value = first.result_within(TIMEOUT).await.expect("a result");
    assert_eq!(integer(value), -1);
    client.cancel([&first], false).expect("sent");
    let second = submit();
    let value = second.result_within(TIMEOUT).await.expect("a result");
    assert_eq!(integer(value), -1);
    assert_eq!(first.status().name(), "cancelled");
    // The worker has no nanny, so a restart ends it.
    let mut python = Peer::spawn(
        Environment::Current,
        "client_beside.py",
        &[&address, TLS_PEM],
    );
    let (answer, _) = python.ask(r#"{"op": "restart"}"#, &[]);
    assert!(answer.contains("true"), "{answer}");
    daskwire_testing::cluster::until("the restart", || second.status().name() == "cancelled").await;
    let third = submit();
    assert_eq!(third.status().name(), "pending");
    let _worker = daskwire_testing::worker(&address, "late");
    let value = third.result_within(TIMEOUT).await.expect("a result");
    assert_eq!(integer(value), -1);
    assert_eq!(second.status().name(), "cancelled");
    client.close().await.expect("closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn scattered_data_is_lost_with_its_worker() {
    let mut cluster = daskwire_testing::scheduler_with_workers(1);
    let client = client_at(cluster.address()).await;
    assert_eq!(client.scatter([0; 0]).await.expect("no data"), []);
    let data = client.scatter([1]).await.expect("scattered");
    cluster.kill_worker(0);
    let status = tokio::time::timeout(TIMEOUT, async {
        // Fetching the data finds out that the worker has left.
        let error = data[0].result().await.expect_err("it is lost");
        assert!(matches!(error, TaskError::Lost { .. }), "{error}");
        data[0].status()
    });
    assert_eq!(status.await.expect("in time").name(), "lost");
    client.close().await.expect("closed");
}

/// Runs tests over a protocol, each on its own cluster.
macro_rules! clusters {
    ($protocol:ident: $($test:ident)*) => {
        mod $protocol {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    super::$test(stringify!($protocol)).await;
                }
            )*
        }
    };
}

clusters! { tcp:
    rust_client_works_like_a_python_client
    thousands_of_tasks_run_in_one_graph_and_one_by_one
    computation_survives_a_killed_worker
    a_gibibyte_is_scattered_and_gathered_directly
    rust_and_python_clients_share_results
    losing_the_scheduler_ends_all_futures
}

// Without the tests that differ only in the number of tasks or bytes.
clusters! { tls:
    rust_client_works_like_a_python_client
    computation_survives_a_killed_worker
    rust_and_python_clients_share_results
    losing_the_scheduler_ends_all_futures
}

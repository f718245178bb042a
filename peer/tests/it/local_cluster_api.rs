//! The methods of the client that `docs/src/client-api.md` names, on a cluster of this process.

use core::time::Duration;

use daskwire_messages::protocol::Unknown;
use daskwire_peer::client::{
    ProfileOptions, Restarted, Route, ScatterOptions, SharedValue, SubmitOptions, TaskFuture,
    Workers,
};
use daskwire_peer::cluster::LocalCluster;
use daskwire_peer::graph::{Graph, Task};
use daskwire_peer::{Client, Key, RequestError, TaskState, Value};

use crate::client_api_table::rust_names;

const TIMEOUT: Duration = Duration::from_secs(60);
const SHORT: Option<Duration> = Some(Duration::from_millis(50));
const LONG: Option<Duration> = Some(TIMEOUT);

async fn start() -> (LocalCluster, Client) {
    let cluster = LocalCluster::start().await.expect("a cluster");
    let client = cluster.client().await.expect("a client");
    client.connected().await.expect("it is connected");
    (cluster, client)
}

async fn end(cluster: LocalCluster, client: Client) {
    client.close().await.expect("closed");
    cluster.close().await;
}

fn data(value: SharedValue) -> Value {
    Value::try_from(value).expect("data")
}

fn future(value: SharedValue) -> TaskFuture {
    match value {
        SharedValue::Future(future) => future,
        other => panic!("{other:?}"),
    }
}

async fn value(future: &TaskFuture) -> Value {
    future.result_within(TIMEOUT).await.expect("a result")
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks() {
    let (cluster, client) = start().await;
    let call = client.call("operator.add").argument(1).argument(2);
    let options = SubmitOptions::default().priority(2.0).retries(1);
    let sum = call
        .key("sum-1")
        .with(options)
        .submit_when_connected()
        .await;
    let sum = sum.expect("submitted");
    assert_eq!(value(&sum).await, Value::from(3));
    assert_eq!(sum.type_name().as_deref(), Some("int"));
    let error = client
        .call("operator.truediv")
        .argument(1)
        .argument(0)
        .impure();
    let error = error.submit().expect("submitted");
    let exception = error.exception().await.expect("done").expect("it failed");
    assert_eq!(exception.class, "ZeroDivisionError");
    client.retry([&error]).await.expect("retried");
    error.retry().await.expect("retried");
    assert_eq!(error.done().await.name(), "error");

    let negated = client.map("operator.neg", 0..10).expect("submitted");
    let mut results = client.as_completed(negated.clone()).results();
    let mut count = 0;
    while let Some((index, result)) = results.next().await {
        let expected = -i64::try_from(index).expect("small");
        assert_eq!(result.expect("a result"), Value::from(expected));
        count += 1;
    }
    assert_eq!(count, 10);
    let mut completed = client.as_completed(negated.clone());
    completed.add(sum.clone());
    client.wait(&negated).await;
    assert!(
        completed
            .next_batch()
            .await
            .is_some_and(|batch| !batch.is_empty())
    );

    let powers = client.calls("builtins.pow").over([2, 3]).over([10, 2]);
    let powers = powers.submit().expect("submitted");
    let powers = client.gather(&powers).await.expect("results");
    assert_eq!(powers, [1024, 9].map(Value::from));

    let graph: Graph = [
        Task::new("x", "operator.add", [40, 2]),
        Task::new("y", "operator.neg", [Key::from("x")]),
    ]
    .into_iter()
    .collect();
    let futures = client.submit_graph(&graph, vec![Key::from("y")], &SubmitOptions::default());
    let futures = futures.expect("submitted");
    assert_eq!(value(&futures[0]).await, Value::from(-42));

    let slow = client.map("time.sleep", [100.0, 100.5, 101.0]);
    let slow = slow.expect("submitted");
    client.cancel(&slow[..2], false).expect("connected");
    slow[2].cancel().expect("connected");
    for future in &slow {
        assert_eq!(future.done().await.name(), "cancelled");
    }
    // A key outlives its client under another name.
    client.hold_as("archive", &futures).await.expect("held");
    drop(futures);
    let again = client.future("y").expect("a future");
    assert_eq!(value(&again).await, Value::from(-42));
    client.release_as("archive", ["y"]).expect("connected");
    let short = client.submit("operator.neg", [77]).expect("submitted");
    client.fire_and_forget(&short).await.expect("told");
    end(cluster, client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn data_moves() {
    let (cluster, client) = start().await;
    let addresses: Vec<String> = cluster
        .workers()
        .iter()
        .map(|worker| worker.address().to_owned())
        .collect();
    let one = client.scatter([1]).await.expect("scattered");
    for route in [Route::Scheduler, Route::Direct] {
        let there = ScatterOptions::default()
            .route(route)
            .workers(addresses[1].as_str());
        let pieces = (0..4_i64).map(|number| (Key::unique("piece"), number));
        let pieces = client.scatter_with(pieces, &there).await;
        let pieces = pieces.expect("scattered");
        for (_, holders) in client.who_has(&pieces).await.expect("holders") {
            assert_eq!(holders, [addresses[1].as_str()]);
        }
        let gathered = client.gather_by(&pieces, route).await.expect("values");
        assert!(gathered.into_iter().eq((0..4_i64).map(Value::from)));
        let raw = client.gather_serialized(&pieces, route).await;
        assert_eq!(raw.expect("values").len(), 4);
    }
    let more = [(Key::from("named"), "text")];
    let more = client.scatter_by(more, Route::Direct).await;
    let more = more.expect("scattered");
    assert_eq!(
        client.gather(&more).await.expect("values"),
        [Value::from("text")]
    );
    let copies = async || client.who_has(&one).await.expect("holders")[0].1.len();
    assert_eq!(copies().await, 1);
    client
        .replicate(&one, None, Workers::All)
        .await
        .expect("copied");
    assert_eq!(copies().await, 2);
    client
        .replicate(&one, Some(1), Workers::All)
        .await
        .expect("reduced");
    assert_eq!(copies().await, 1);
    client.rebalance(None, Workers::All).await.expect("moved");
    let held = client.has_what(Workers::All).await.expect("keys");
    assert_eq!(held.len(), 2);
    assert!(client.nbytes(["named"]).await.expect("lengths")[0].1 > 0);
    assert!(!client.nbytes_by_prefix().await.expect("lengths").is_empty());
    end(cluster, client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_shared() {
    let (cluster, client) = start().await;
    let other = cluster.client().await.expect("another client");
    let sum = client.submit("operator.add", (20, 22)).expect("submitted");

    let variable = client.variable("v").expect("supported");
    let error = variable.get(SHORT).await.expect_err("it is not set");
    assert!(matches!(error, RequestError::Timeout { .. }), "{error}");
    variable.set(&sum).await.expect("set");
    let theirs = other.variable("v").expect("supported");
    let theirs = future(theirs.get(LONG).await.expect("a future"));
    assert_eq!(value(&theirs).await, Value::from(42));
    variable.delete().await.expect("deleted");

    let queue = client.queue("q", Some(1)).await.expect("opened");
    queue.put("first", LONG).await.expect("put");
    queue.put("second", SHORT).await.expect_err("it is full");
    let theirs = other.queue("q", Some(1)).await.expect("opened");
    assert_eq!(
        data(theirs.get(LONG).await.expect("a value")),
        Value::from("first")
    );
    assert!(queue.is_empty().await.expect("a number"));
    queue.close().await.expect("closed");

    let lock = client.lock("l").await.expect("opened");
    let lease = lock.acquire(LONG).await.expect("acquired");
    let theirs = other.lock("l").await.expect("opened");
    theirs.acquire(SHORT).await.expect_err("it is taken");
    lease.release().await.expect("released");
    drop(theirs.acquire(LONG).await.expect("acquired"));
    let semaphore = client.semaphore("s", 2).await.expect("opened");
    let lease = semaphore.acquire(LONG).await.expect("acquired");
    assert_eq!(semaphore.lease_count().await.expect("a number"), 1);
    drop(lease);
    let event = client.event("e").expect("supported");
    let waiting = other.event("e").expect("supported");
    let waiting = tokio::spawn(async move { waiting.wait(LONG).await });
    event.set().await.expect("set");
    assert!(waiting.await.expect("no panic").expect("an answer"));

    client
        .publish_dataset("numbers", Value::list([1, 2]))
        .await
        .expect("published");
    client
        .publish_futures("sums", core::slice::from_ref(&sum))
        .await
        .expect("published");
    let names = other.list_datasets().await.expect("names");
    assert_eq!(names, ["numbers", "sums"].map(Key::from));
    let sums = other.dataset("sums").await.expect("an answer");
    let sums = sums.expect("it exists");
    assert_eq!(value(&sums.futures[0]).await, Value::from(42));
    client.unpublish_dataset("numbers").await.expect("removed");

    assert_eq!(client.metadata(["a", "b"]).await.expect("metadata"), None);
    client.set_metadata(["a", "b"], 7).await.expect("stored");
    let stored = other.metadata(["a", "b"]).await.expect("metadata");
    assert_eq!(stored, Some(Value::from(7)));

    let mut news = other.subscribe_topic("news").await.expect("subscribed");
    client.log_event("news", 5).await.expect("published");
    assert_eq!(news.next().await.expect("an event").message, Value::from(5));
    assert_eq!(client.events("news").await.expect("events").len(), 1);
    let all = client.all_events().await.expect("events");
    assert!(all.iter().any(|(topic, _)| topic == "news"));
    other.close().await.expect("closed");
    end(cluster, client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cluster_is_described() {
    let (cluster, client) = start().await;
    client
        .wait_for_workers(2, TIMEOUT)
        .await
        .expect("there are two");
    assert_eq!(client.identity().await.expect("an answer").workers.len(), 2);
    let dashboard = client.dashboard_link().await;
    assert_eq!(dashboard.expect("an answer"), None);
    assert_eq!(
        client.nthreads(Workers::All).await.expect("threads").len(),
        2
    );
    let versions = client.versions(["no-such-package"]).await;
    assert_eq!(versions.expect("versions").workers.len(), 2);
    let slow = client.call("time.sleep").argument(2).key("slow-1");
    let slow = slow.submit().expect("submitted");
    loop {
        let processing = client.processing(Workers::All).await.expect("keys");
        if processing.iter().any(|(_, keys)| !keys.is_empty()) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    client.call_stack([&slow]).await.expect("stacks");
    client.call_stacks().await.expect("stacks");
    client
        .profile(ProfileOptions::default())
        .await
        .expect("a profile");
    let states = client.task_states().await.expect("states");
    assert!(
        states.contains_key("slow") || states.contains_key("sleep"),
        "{states:?}"
    );
    client.wait([&slow]).await;
    let status = client.task_status([&slow]).await.expect("an answer");
    assert_eq!(status[0].1, Some(TaskState::Memory));
    let story = client.story([slow.key()]).await.expect("a story");
    assert!(story.iter().any(|step| step.worker.is_some()), "{story:?}");
    client.scheduler_logs(None).await.expect("a log");
    let logs = client.worker_logs(Workers::All, None).await;
    assert_eq!(logs.expect("logs").len(), 2);
    let target: i64 = client
        .request(Unknown::new("adaptive_target"))
        .await
        .expect("a number");
    assert!(target >= 0);
    end(cluster, client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cluster_is_controlled() {
    let (cluster, client) = start().await;
    let first = cluster.workers()[0].address().to_owned();
    let outcomes = client.restart_workers(first.as_str(), TIMEOUT).await;
    assert_eq!(
        outcomes.expect("outcomes"),
        [(first.clone(), Restarted::Ok)]
    );
    client.restart(TIMEOUT).await.expect("restarted");
    let sum = client.submit("operator.add", (1, 2)).expect("submitted");
    assert_eq!(value(&sum).await, Value::from(3));
    let address = cluster.workers()[1].address().to_owned();
    let retired = client.retire_workers([address.as_str()]).await;
    assert_eq!(retired.expect("retired"), [address.as_str()]);
    assert_eq!(value(&sum).await, Value::from(3));
    assert_eq!(
        client.nthreads(Workers::All).await.expect("threads").len(),
        1
    );
    client.shutdown().await.expect("asked");
    cluster.scheduler().closed().await.expect("a peer ended it");
    cluster.close().await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn processes_of_python_reach_a_local_cluster() {
    use daskwire_peer::cluster::ClusterTransport;

    let python = daskwire_testing::python(daskwire_testing::Environment::Current);
    let builder = || LocalCluster::builder().workers(0);
    let memory = ClusterTransport::Memory;
    for builder in [
        builder().python(&python),
        builder().python(&python).transport(memory),
        builder().transport(memory).python(&python),
    ] {
        let cluster = builder.start().await.expect("it starts");
        assert_eq!(cluster.address().scheme(), "tcp");
        cluster.close().await;
    }
}

/// Functions and modules of Python, on a cluster whose workers and scheduler have an interpreter.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn python_runs_on_the_workers() {
    let cluster = crate::support::local::cluster_with_python().await;
    let client = cluster.client().await.expect("a client");
    let numbers = client.submit("numpy.arange", [4]).expect("submitted");
    let sum = client.submit("numpy.sum", [&numbers]).expect("submitted");
    assert_eq!(value(&sum).await.to_string(), "6");
    let module = "def cube(x):\n    return x ** 3\n";
    client.upload("cubes.py", module).await.expect("uploaded");
    let cube = client.submit("cubes.cube", [3]).expect("submitted");
    assert_eq!(value(&cube).await, Value::from(27));
    let path = std::env::temp_dir().join(format!("cubed_{}.py", std::process::id()));
    std::fs::write(&path, module).expect("written");
    client.upload_file(&path).await.expect("uploaded");
    std::fs::remove_file(&path).expect("removed");
    let cubes = client.run("cubes.cube", [2]).await.expect("outcomes");
    assert_eq!(cubes.len(), 2);
    for (_, cube) in cubes {
        assert_eq!(cube.expect("a value"), Value::from(8));
    }
    let address = cluster.workers()[0].address().to_owned();
    let one = client.call("os.getpid").run_on(address.as_str()).await;
    assert_eq!(one.expect("an outcome").len(), 1);
    end(cluster, client).await;
}

/// The methods of the table that are not called above, and why.
const ELSEWHERE: [&str; 9] = [
    // Ways to connect, which need no cluster of a certain kind.
    "connect",
    "connect_with",
    "connect_to_file",
    "from_env",
    "block_on",
    // They need Python in the scheduler.
    "register_plugin",
    "unregister_plugin",
    "run_on_scheduler",
    "start_performance_report",
];

#[test]
fn each_method_of_the_table_is_called() {
    let source = include_str!("local_cluster_api.rs");
    let methods = rust_names("## Methods and properties");
    assert!(methods.len() > 50, "{methods:?}");
    for name in methods {
        let method = name.rsplit("::").next().unwrap_or_default();
        let is_called = source.contains(&format!(".{method}("));
        // Types are named by their first letter.
        let is_type = method.starts_with(char::is_uppercase);
        assert!(
            is_type || is_called != ELSEWHERE.contains(&method),
            "{name}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clones_are_one_client() {
    let (cluster, client) = start().await;
    let clone = client.clone();
    let sum = clone.submit("operator.add", [1, 2]).expect("submitted");
    // The clone's future belongs to both, and outlives the clone.
    let more = client.submit("operator.add", [&sum, &sum]);
    drop(clone);
    assert_eq!(value(&more.expect("submitted")).await, Value::from(6));

    let (one, other) = (client.clone(), client.clone());
    let (first, second) = tokio::join!(one.close(), other.close());
    first.expect("closed");
    second.expect("closed already");
    client
        .submit("operator.neg", [1])
        .expect_err("it is closed");
    client.connected().await.expect_err("it is closed");
    client.close().await.expect("closed already");

    // The connection ends with the last clone, and with it the keys.
    let (client, other) = (cluster.client().await, cluster.client().await);
    let (client, other) = (client.expect("a client"), other.expect("a client"));
    let data = client.scatter([1]).await.expect("stored").remove(0);
    let key = data.key().clone();
    let clone = client.clone();
    drop(client);
    let holders = async || {
        let found = other.who_has([&key]).await;
        found
            .expect("an answer")
            .into_iter()
            .flat_map(|(_, holders)| holders)
            .count()
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(holders().await, 1);
    drop(clone);
    while holders().await > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    end(cluster, other).await;
}

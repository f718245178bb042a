use super::*;

/// x, y, and their sum z.
fn example() -> [Task; 3] {
    let (x, y) = (Key::from("x"), Key::from("y"));
    [
        Task::new("x", "operator.add", [1, 2]),
        Task::new("y", "operator.add", [10, 20]),
        Task::new(
            "z",
            "operator.add",
            [Argument::from(&x), Argument::from(&y)],
        ),
    ]
}

async fn journey(at: &str, workers: [&str; 2]) {
    let scheduler = scheduler(at).await;
    let first = Worker::new(scheduler.address(), workers[0]).await;
    let second = Worker::new(scheduler.address(), workers[1]).await;
    scheduler.wait_for_workers(2).await;
    let mut client = Client::new(scheduler.address(), "me").await;
    let [x, y, z] = example();
    client.submit([x], &["x"]);
    client.submit([y], &["y"]);
    client.submit([z], &["z"]);
    client.wait(&["x", "y", "z"]).await;
    assert_eq!(client.gather("z").await, Value::from(33));
    client.send(ClientReleasesKeys {
        keys: ["x", "y", "z"].into_iter().collect(),
        ..ClientReleasesKeys::default()
    });
    until(|| {
        ["x", "y", "z"]
            .iter()
            .all(|key| !first.has(key) && !second.has(key))
    })
    .await;
    assert_eq!(scheduler.inspect(State::task_count), 0);
    scheduler.close().await;
    assert!(
        client
            .try_next()
            .await
            .is_none_or(|last| last.op() == "close-stream")
    );
}

#[tokio::test]
async fn the_journey_of_a_task_in_memory() {
    let workers = ["inproc://journey-1", "inproc://journey-2"];
    journey("inproc://journey", workers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_journey_of_a_task_over_tcp() {
    journey("tcp://127.0.0.1:0", ["tcp://127.0.0.1:0"; 2]).await;
}

#[tokio::test]
async fn a_result_that_was_lost_with_its_worker_is_computed_again() {
    let scheduler = scheduler("inproc://lost").await;
    let first = Worker::new(scheduler.address(), "inproc://lost-1").await;
    let mut client = Client::new(scheduler.address(), "me").await;
    client.submit(example(), &["z"]);
    client.wait(&["z"]).await;
    let _second = Worker::new(scheduler.address(), "inproc://lost-2").await;
    scheduler.wait_for_workers(2).await;
    first.kill().await;
    let lost = client.next().await;
    assert_eq!(lost.op(), "lost-data");
    client.wait(&["z"]).await;
    assert_eq!(client.gather("z").await, Value::from(33));
}

#[tokio::test]
async fn unreadable_graphs_fail_only_their_keys() {
    let scheduler = scheduler("inproc://unreadable").await;
    let _worker = Worker::new(scheduler.address(), "inproc://unreadable-1").await;
    let mut client = Client::new(scheduler.address(), "me").await;
    client.send(UpdateGraph {
        expr_ser: Serialized::of(&Value::from("no graph")).expect("a plain value"),
        keys: ["a", "b"].into_iter().collect(),
        ..UpdateGraph::default()
    });
    for key in ["a", "b"] {
        let ToClient::TaskErredForClient(erred) = client.next().await else {
            panic!("no error");
        };
        assert_eq!(erred.key, Key::from(key));
        let error = daskwire_messages::RemoteError::of_fields(&erred.exception, None).to_string();
        assert!(
            error.starts_with("RuntimeError: the graph cannot be read"),
            "{error}"
        );
    }
    // The stream stays open.
    client.send(FromClient::Unknown(Unknown {
        op: "something-new".to_owned(),
        ..Unknown::default()
    }));
    client.submit(example(), &["z"]);
    client.wait(&["z"]).await;
}

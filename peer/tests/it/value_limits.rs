//! Tests of task values that are deeply nested or share many parts.

use core::time::Duration;

use daskwire_peer::client::{TaskError, TaskFuture};
use daskwire_peer::cluster::LocalCluster;
use daskwire_peer::graph::Argument;
use daskwire_peer::{Client, Value};

const TIMEOUT: Duration = Duration::from_secs(60);

async fn cluster() -> (LocalCluster, Client) {
    let cluster = LocalCluster::builder().start().await.expect("a cluster");
    let client = cluster.client().await.expect("a client");
    (cluster, client)
}

async fn result(future: &TaskFuture) -> Result<Value, TaskError> {
    future.result_within(TIMEOUT).await
}

#[tokio::test(flavor = "multi_thread")]
async fn results_that_nest_deeper_and_deeper_fail_as_tasks() {
    let (cluster, client) = cluster().await;
    let first = client.submit("builtins.tuple", [Value::list([1])]);
    let mut last = first.expect("sent");
    let mut all = Vec::new();
    for _ in 0..15 {
        let nested = (0..40).fold(Argument::from(&last), |inner, _| {
            Argument::List(vec![inner])
        });
        let next = client.submit("builtins.tuple", [nested]).expect("sent");
        all.push(core::mem::replace(&mut last, next));
    }
    match result(&last).await {
        Err(TaskError::Failed { error, .. }) => {
            assert_eq!(error.class, "RecursionError");
            assert!(error.message.contains("100 levels"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    // The worker is unaffected.
    let sum = client.submit("operator.add", [1, 2]).expect("sent");
    assert_eq!(result(&sum).await.expect("a sum"), Value::from(3));
    client.close().await.expect("closed");
    cluster.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn results_that_double_what_they_share_fail_as_tasks() {
    let (cluster, client) = cluster().await;
    let mut last = client
        .submit("builtins.tuple", [Value::list([1])])
        .expect("sent");
    let mut all = Vec::new();
    for _ in 0..40 {
        let pair = Argument::List(vec![Argument::from(&last), Argument::from(&last)]);
        let next = client.submit("builtins.list", [pair]).expect("sent");
        all.push(core::mem::replace(&mut last, next));
    }
    match result(&last).await {
        Err(TaskError::Failed { error, .. }) => {
            assert!(error.message.contains("67108864"), "{error}")
        }
        other => panic!("{other:?}"),
    }
    client.close().await.expect("closed");
    cluster.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_string_that_is_shared_within_a_result_is_stored_once() {
    let (cluster, client) = cluster().await;
    let string = client
        .submit("operator.mul", [Value::from("x"), (1 << 20).into()])
        .expect("sent");
    let list = Argument::List(vec![Argument::from(&string)]);
    let many = client.call("operator.mul").argument(list).argument(20_000);
    let many = many.submit().expect("sent");
    let count = client.submit("builtins.len", [&many]).expect("sent");
    assert_eq!(result(&count).await.expect("a number"), Value::from(20_000));
    // The value is serialized, and parsed again.
    let Value::List(strings) = result(&many).await.expect("a list") else {
        panic!("a list")
    };
    assert_eq!(strings.len(), 20_000);
    let places = strings
        .iter()
        .map(|string| string.as_str().map(str::as_ptr));
    assert!(
        places
            .clone()
            .zip(places.skip(2))
            .all(|(one, other)| one.is_some() && other.is_some())
    );
    client.close().await.expect("closed");
    cluster.close().await;
}

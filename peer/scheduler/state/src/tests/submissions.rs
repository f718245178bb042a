//! Tests of the generations, the dependencies and the annotations of submissions.

use super::*;

fn submit(cluster: &mut Cluster, client: ClientId, key: &str, by: Option<&str>, timeout: &str) {
    let graph: Graph = [Node::new(key, "operator.neg", [1])].into_iter().collect();
    let message = UpdateGraph {
        expr_ser: graph.to_expression().expect("plain values"),
        keys: [key].into_iter().collect(),
        submitting_task: Nullable(by.map(Key::from)),
        extra: vec![(Value::from("fifo_timeout"), Value::from(timeout))],
        ..UpdateGraph::default()
    };
    cluster.send(client, message);
}

/// The generation of a task that was sent to a worker.
fn generation(cluster: &Cluster, key: &str) -> f64 {
    let mut tasks = cluster.running.values();
    let task = tasks.find(|task| task.key == Key::from(key));
    task.expect("it was sent").priority[1]
}

// ROLES SCHEDULER-8
#[test]
fn tasks_of_tasks_run_before_those_of_clients() {
    let mut cluster = Cluster::new();
    let client = cluster.client("client");
    cluster.worker("tcp://a", 16);
    submit(&mut cluster, client, "parent", None, "0");
    cluster.pass(1);
    submit(&mut cluster, client, "other", None, "0");
    submit(&mut cluster, client, "child", Some("parent"), "0");
    submit(&mut cluster, client, "of-child", Some("child"), "0");
    submit(&mut cluster, client, "of-unknown", Some("unknown"), "0");
    let [parent, other, child, of_child, of_unknown] =
        ["parent", "other", "child", "of-child", "of-unknown"].map(|key| generation(&cluster, key));
    assert!(child < parent && parent < other, "{child} {parent} {other}");
    assert_eq!((of_child, of_unknown), (child, other));
}

// ROLES SCHEDULER-8
#[test]
fn submissions_within_the_fifo_timeout_are_of_one_generation() {
    for (timeout, millis) in [
        ("100 ms", 100),
        ("60s", 60_000),
        ("1.5", 1500),
        ("2 minutes", 120_000),
        ("1ns", 0),
    ] {
        let mut cluster = Cluster::new();
        let client = cluster.client("client");
        cluster.worker("tcp://a", 16);
        submit(&mut cluster, client, "first", None, timeout);
        cluster.pass(millis);
        submit(&mut cluster, client, "second", None, timeout);
        cluster.pass(1);
        submit(&mut cluster, client, "third", None, timeout);
        let [first, second, third] =
            ["first", "second", "third"].map(|key| generation(&cluster, key));
        assert_eq!(second, first, "{timeout}");
        assert_eq!(third, first + 1.0, "{timeout}");
    }
}

// ROLES SCHEDULER-7
#[test]
fn a_graph_with_lost_dependencies_is_cancelled_as_a_whole() {
    let mut cluster = Cluster::new();
    let client = cluster.client("client");
    cluster.worker("tcp://a", 4);
    let needs = |key: &str, other: &str| Node::new(key, "operator.neg", [&Key::from(other)]);
    let one = || Node::new("one", "operator.neg", [1]);
    cluster.submit(client, [one(), needs("two", "lost")], &["one", "two"]);
    let sent = cluster.sent_to_client(client);
    assert_eq!(sent, ["cancelled-keys one two lost dependencies"]);
    assert_eq!(cluster.state.task_count(), 0);
    // What is not wanted may lack dependencies.
    cluster.submit(client, [one(), needs("two", "lost")], &["one"]);
    assert_eq!(cluster.sent_to_client(client), [""; 0]);
    assert_eq!(cluster.state.task_count(), 1);
    // A key that is wanted and neither in the graph nor known.
    cluster.submit(client, [needs("three", "one")], &["three", "four"]);
    let sent = cluster.sent_to_client(client);
    assert_eq!(sent, ["cancelled-keys three four lost dependencies"]);
}

// ROLES SCHEDULER-8
#[test]
fn submissions_of_one_generation_run_in_their_order() {
    let mut cluster = Cluster::new();
    let client = cluster.client("client");
    let worker = cluster.worker("tcp://a", 1);
    let names: Vec<String> = (0..20).map(|number| format!("t-{number}")).collect();
    let keys: Vec<&str> = names.iter().map(String::as_str).collect();
    // The places of earlier tasks are used again, in another order.
    submit(&mut cluster, client, "kept", None, "60s");
    for _ in 0..2 {
        cluster.sent_to_worker(worker);
        for key in &keys {
            submit(&mut cluster, client, key, None, "60s");
        }
        let mut order = Vec::new();
        while let Some((_, key)) = cluster.running.keys().next().cloned() {
            order.extend(cluster.sent_to_worker(worker));
            cluster.finish(worker, &key.to_string());
        }
        order.retain(|op| !op.ends_with("kept"));
        let expected: Vec<String> = keys
            .iter()
            .map(|key| format!("compute-task {key}"))
            .collect();
        order.retain(|op| op.starts_with("compute-task"));
        assert_eq!(order, expected);
        cluster.release(client, &keys[..7]);
        cluster.release(client, &keys[7..]);
        cluster.pass(1000);
    }
}

//! Tests of submissions that are refused.

use daskwire_messages::graph::GraphError;

use super::*;

fn refusal(message: UpdateGraph) -> RefusalReason {
    let refusal = Submission::read(message).expect_err("it is refused");
    assert_eq!(refusal.keys(), [Key::from("x")]);
    let reason = refusal.reason().clone();
    assert_eq!(refusal.to_string(), reason.to_string());
    reason
}

fn message(graph: Serialized) -> UpdateGraph {
    UpdateGraph {
        expr_ser: graph,
        keys: ["x"].into_iter().collect(),
        ..UpdateGraph::default()
    }
}

fn graph(tasks: impl IntoIterator<Item = Node>) -> Serialized {
    let graph: Graph = tasks.into_iter().collect();
    graph.to_expression().expect("plain values")
}

#[test]
fn refusals_have_typed_reasons() {
    let x = || message(graph([add("x", &[])]));
    assert!(Submission::read(x()).is_ok());
    let annotated = |annotations: Value| UpdateGraph {
        annotations: Some(annotations),
        ..x()
    };
    assert_eq!(
        refusal(annotated(Value::list([1]))),
        RefusalReason::AnnotationsType {
            found: "list".to_owned()
        }
    );
    assert_eq!(
        refusal(annotated(Value::dict([("retries", "many")]))),
        RefusalReason::Annotation {
            name: Value::from("retries"),
            value: Value::from("many"),
        }
    );
    let no_graph = Serialized::of(&Value::from("no graph")).expect("a plain value");
    assert!(matches!(
        refusal(message(no_graph)),
        RefusalReason::Graph(GraphError::Unknown { .. } | GraphError::Unexpected { .. })
    ));
    let cycle = [add("x", &["y"]), add("y", &["x"])];
    assert_eq!(refusal(message(graph(cycle))), RefusalReason::Cycle);
}

#[test]
fn cycles_are_refused() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    cluster.submit(client, [add("a", &["b"]), add("b", &["a"])], &["a"]);
    cluster.submit(
        client,
        [add("c", &["a"]), add("a", &["b"]), add("b", &["a"])],
        &["c"],
    );
    for (line, key) in cluster.sent_to_client(client).iter().zip(["a", "c"]) {
        let start = format!("task-erred {key} RuntimeError: ");
        assert!(
            line.starts_with(&start) && line.ends_with("in a cycle"),
            "{line}"
        );
    }
    cluster.assert_empty();
}

#[test]
fn a_submission_beyond_the_memory_of_tasks_fails_and_leaves_nothing() {
    let mut cluster = Cluster::new();
    cluster.state.policy.max_tasks_len = 10 * 1024;
    let client = cluster.client("one");
    cluster.submit(client, [add("a", &[])], &["a"]);
    let before = cluster.state.tasks_len;
    let tasks: Vec<Node> = (0..20).map(|n| add(&format!("t-{n}"), &[])).collect();
    let keys: Vec<String> = (0..20).map(|n| format!("t-{n}")).collect();
    let mut keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    // A key that is known stays as it is.
    keys.push("a");
    cluster.sent_to_client(client);
    cluster.submit(client, tasks, &keys);
    let text = "MemoryError: the tasks would take more than the 10240 bytes that the scheduler has for \
                tasks: submit fewer at once, or pass large arguments by `scatter`";
    let expected = keys[..20]
        .iter()
        .map(|key| format!("task-erred {key} {text}"));
    assert_eq!(cluster.sent_to_client(client), expected.collect::<Vec<_>>());
    assert_eq!(cluster.state.tasks_len, before);
    assert_eq!(cluster.state.task_count(), 1);

    // Annotations count, too.
    let note = ("note", Value::from("x".repeat(9 << 10)));
    cluster.submit_with(client, [add("n", &[])], &["n"], &[note]);
    let expected = [format!("task-erred n {text}")];
    assert_eq!(cluster.sent_to_client(client), expected);
    assert_eq!(cluster.state.tasks_len, before);

    // So do arguments, each for its own task.
    let long = Node::new("long", "len", ["x".repeat(9 << 10)]);
    cluster.submit(client, [long], &["long"]);
    let expected = [format!("task-erred long {text}")];
    assert_eq!(cluster.sent_to_client(client), expected);
    let three: Vec<Node> = (0..3)
        .map(|n| Node::new(format!("p-{n}"), "len", ["x".repeat(3 << 10)]))
        .collect();
    cluster.submit(client, three, &["p-0", "p-1", "p-2"]);
    assert_eq!(cluster.sent_to_client(client).len(), 3);
    assert_eq!(cluster.state.tasks_len, before);

    // A smaller one has room.
    cluster.submit(client, [add("b", &["a"])], &["b"]);
    assert_eq!(cluster.state.task_count(), 2);
    cluster.release(client, &["a", "b"]);
    assert_eq!(cluster.state.tasks_len, 0);
}

#[test]
fn a_submission_beyond_the_memory_of_tasks_costs_only_itself() {
    let mut cluster = Cluster::new();
    cluster.state.policy.max_tasks_len = 10 * 1024;
    cluster.state.slice_len = 1;
    let (client, other) = (cluster.client("one"), cluster.client("two"));
    let tasks: Vec<Node> = (0..20).map(|n| add(&format!("t-{n}"), &[])).collect();
    let graph: Graph = tasks.into_iter().collect();
    let large = UpdateGraph {
        expr_ser: graph.to_expression().expect("plain values"),
        keys: (0..20).map(|n| format!("t-{n}")).collect(),
        ..UpdateGraph::default()
    };
    let now = cluster.now;
    let mut sent = cluster
        .state
        .handle(now, SchedulerInput::FromClient(client, large.into()));
    let mut number = 0;
    while cluster.state.is_pending() {
        sent.extend(cluster.state.proceed(now));
        let graph: Graph = [add(&format!("other-{number}"), &[])].into_iter().collect();
        let small = UpdateGraph {
            expr_ser: graph.to_expression().expect("plain values"),
            keys: [format!("other-{number}")].into_iter().collect(),
            ..UpdateGraph::default()
        };
        if number < 4 {
            let small = SchedulerInput::FromClient(other, small.into());
            sent.extend(cluster.state.handle(now, small));
            number += 1;
        }
        cluster.state.check();
    }
    let failed = |to| {
        let is_failed = |action: &&Action| matches!(action, Action::ToClient(id, ToClient::TaskErredForClient(_)) if *id == to);
        sent.iter().filter(is_failed).count()
    };
    assert_eq!((failed(client), failed(other)), (20, 0));
    assert_eq!(cluster.state.task_count(), 4);
}

#[test]
fn of_two_submissions_without_memory_for_both_one_has_it() {
    assert_eq!(two_submissions(["a", "b"]), [0, 6]);
}

#[test]
fn two_submissions_of_the_same_tasks_take_their_memory_once() {
    assert_eq!(two_submissions(["a", "a"]), [0, 0]);
}

/// Has two clients submit six tasks each at the same time, with memory for nine. Returns how many keys
/// failed for each of them, in order.
fn two_submissions(names: [&str; 2]) -> [usize; 2] {
    let mut cluster = Cluster::new();
    cluster.state.policy.max_tasks_len = 10 * 1024;
    cluster.state.slice_len = 1;
    let clients = [cluster.client("one"), cluster.client("two")];
    let now = cluster.now;
    let mut sent = Vec::new();
    for (client, name) in clients.iter().zip(names) {
        let keys: Vec<String> = (0..6).map(|n| format!("{name}-{n}")).collect();
        let graph: Graph = keys.iter().map(|key| add(key, &[])).collect();
        let message = UpdateGraph {
            expr_ser: graph.to_expression().expect("plain values"),
            keys: keys.iter().map(String::as_str).collect(),
            ..UpdateGraph::default()
        };
        let event = SchedulerInput::FromClient(*client, message.into());
        sent.extend(cluster.state.handle(now, event));
    }
    while cluster.state.is_pending() {
        sent.extend(cluster.state.proceed(now));
        cluster.state.check();
    }
    let mut failed = clients.map(|client| {
        let is_failed = |action: &&Action| matches!(action, Action::ToClient(id, ToClient::TaskErredForClient(_)) if *id == client);
        sent.iter().filter(is_failed).count()
    });
    failed.sort_unstable();
    assert_eq!(cluster.state.task_count(), 6);
    assert_eq!(cluster.state.reserved_len, 0);
    failed
}

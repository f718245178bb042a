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

/// The parts of a graph of 1, 1, 1 and 1 task: `a`, `b` which needs it, `c` which needs `b`, and `d` which
/// needs `b` and `c`.
fn parts(client: ClientId, keys: &[&str]) -> Vec<SchedulerInput> {
    parts_of(client, keys, 1)
}

/// The parts of this graph, with so many tasks each.
fn parts_of(client: ClientId, keys: &[&str], len: usize) -> Vec<SchedulerInput> {
    let needs = |key: &str, others: &[&str]| add(key, others);
    let graph: Graph = [
        Node::new("a", "operator.neg", [1]),
        needs("b", &["a"]),
        needs("c", &["b"]),
        needs("d", &["b", "c"]),
    ]
    .into_iter()
    .collect();
    let message = UpdateGraph {
        expr_ser: graph.to_expression().expect("plain values"),
        keys: keys.iter().copied().collect(),
        ..UpdateGraph::default()
    };
    let submission = Submission::read(message).expect("plain values");
    in_parts(client, submission, || len)
}

/// Checks that a client is told of one failed task, with a message that begins like this.
fn assert_failed(cluster: &mut Cluster, client: ClientId, start: &str) {
    let sent = cluster.sent_to_client(client);
    assert!(sent.len() == 1 && sent[0].starts_with(start), "{sent:?}");
}

// ROLES SCHEDULER-12
#[test]
fn tasks_run_before_the_rest_of_their_graph_is_there() {
    let mut cluster = Cluster::new();
    let client = cluster.client("client");
    let worker = cluster.worker("tcp://a", 1);
    let mut parts = parts(client, &["b", "d"]).into_iter();
    cluster.handle(parts.next().expect("four parts"));
    assert!(!cluster.state.is_pending(), "it waits for the next part");
    assert_eq!(cluster.sent_to_worker(worker), ["compute-task a"]);
    cluster.finish(worker, "a");
    // Kept, since a later part may need it.
    cluster.pass(1000);
    assert_eq!(cluster.sent_to_worker(worker), [""; 0]);
    cluster.handle(parts.next().expect("four parts"));
    assert_eq!(cluster.sent_to_worker(worker), ["compute-task b"]);
    cluster.finish(worker, "b");
    // No later part needs `a`.
    cluster.pass(1000);
    assert_eq!(cluster.sent_to_worker(worker), ["free-keys a"]);
    assert_eq!(cluster.status("a"), Some(TaskState::Released));
    cluster.handle(parts.next().expect("four parts"));
    cluster.finish(worker, "c");
    assert_eq!(cluster.sent_to_client(client), [""; 0]);
    cluster.handle(parts.next().expect("four parts"));
    assert!(parts.next().is_none());
    assert_eq!(cluster.sent_to_client(client), ["key-in-memory b"]);
    cluster.finish(worker, "d");
    assert_eq!(cluster.sent_to_client(client), ["key-in-memory d"]);
    cluster.release(client, &["b", "d"]);
    assert_eq!(cluster.state.task_count(), 0);
}

#[test]
fn a_task_of_an_early_part_may_fail() {
    let mut cluster = Cluster::new();
    let client = cluster.client("client");
    let worker = cluster.worker("tcp://a", 1);
    let mut parts = parts(client, &["d"]).into_iter();
    cluster.handle(parts.next().expect("four parts"));
    cluster.err(worker, "a", "wrong");
    for part in parts {
        cluster.handle(part);
    }
    assert_failed(&mut cluster, client, "task-erred d");
}

#[test]
fn the_rest_of_a_graph_may_be_refused() {
    let mut cluster = Cluster::new();
    let client = cluster.client("client");
    let worker = cluster.worker("tcp://a", 1);
    let mut parts = parts(client, &["d"]).into_iter();
    cluster.handle(parts.next().expect("four parts"));
    let reason = RefusalReason::Helper {
        error: "it has ended".to_owned(),
    };
    let refusal = Refusal::new(vec![Key::from("d")], reason);
    cluster.handle(SchedulerInput::SubmissionRefused(client, refusal));
    assert_failed(&mut cluster, client, "task-erred d RuntimeError");
    assert_eq!(
        cluster.sent_to_worker(worker),
        ["compute-task a", "free-keys a"]
    );
    assert_eq!(cluster.state.task_count(), 0);
    // It is too late for these.
    for part in parts {
        cluster.handle(part);
    }
    assert_eq!(cluster.state.task_count(), 0);
}

#[test]
fn a_client_may_leave_before_its_graph_is_there() {
    for grace in [0, 1] {
        let mut cluster = Cluster::new();
        cluster.state.policy.client_grace = Duration::from_secs(grace);
        let client = cluster.client("client");
        cluster.worker("tcp://a", 1);
        let mut parts = parts(client, &["d"]).into_iter();
        cluster.handle(parts.next().expect("four parts"));
        cluster.handle(parts.next().expect("four parts"));
        cluster.handle(SchedulerInput::ClientLeft(client));
        assert_eq!(cluster.state.task_count(), 0, "grace: {grace}");
        for part in parts {
            cluster.handle(part);
        }
        assert_eq!(cluster.state.task_count(), 0, "grace: {grace}");
    }
}

#[test]
fn parts_of_a_graph_count_together_for_the_memory_of_tasks() {
    let mut cluster = Cluster::new();
    // For two tasks.
    cluster.state.policy.max_tasks_len = 3 << 10;
    let client = cluster.client("client");
    let worker = cluster.worker("tcp://a", 1);
    for part in parts(client, &["d"]) {
        cluster.handle(part);
    }
    assert_failed(&mut cluster, client, "task-erred d MemoryError");
    assert_eq!(
        cluster.sent_to_worker(worker),
        ["compute-task a", "free-keys a"]
    );
    assert_eq!(
        (cluster.state.task_count(), cluster.state.tasks_len),
        (0, 0)
    );
    assert_eq!(cluster.state.reserved_len, 0);
    // The client may submit again.
    let mut parts = parts(client, &["a"]).into_iter();
    cluster.handle(parts.next().expect("one part"));
    assert!(parts.next().is_none());
    cluster.finish(worker, "a");
    assert_eq!(cluster.sent_to_client(client), ["key-in-memory a"]);
}

#[test]
fn results_of_early_parts_are_there_for_the_last_one() {
    let mut cluster = Cluster::new();
    let client = cluster.client("client");
    let worker = cluster.worker("tcp://a", 1);
    let mut parts = parts(client, &["d"]).into_iter();
    cluster.handle(parts.next().expect("four parts"));
    cluster.finish(worker, "a");
    cluster.handle(parts.next().expect("four parts"));
    cluster.finish(worker, "b");
    // Converted again, all tasks follow those of the first parts. `a` is forgotten.
    cluster.pass(1000);
    cluster.sent_to_worker(worker);
    let mut again = parts_of(client, &["d"], 9).into_iter();
    let Some(SchedulerInput::Submitted(_, submission)) = again.next() else {
        panic!("it is whole");
    };
    let mut part = submission.part;
    for dependency in part
        .tasks
        .iter_mut()
        .flat_map(|task| &mut task.dependencies)
    {
        if let submission::Dependency::Inside(index) = dependency {
            *index += 2;
        }
    }
    cluster.handle(SchedulerInput::SubmissionContinued(client, part));
    assert_eq!(cluster.sent_to_worker(worker), ["compute-task c"]);
    cluster.finish(worker, "c");
    cluster.finish(worker, "d");
    assert_eq!(cluster.sent_to_client(client), ["key-in-memory d"]);
    cluster.release(client, &["d"]);
    assert_eq!(cluster.state.task_count(), 0);
}

#[test]
fn a_graph_in_parts_shares_tasks_with_those_of_others() {
    let mut cluster = Cluster::new();
    let [one, other] = ["one", "other"].map(|name| cluster.client(name));
    let worker = cluster.worker("tcp://a", 4);
    let mut first = parts(one, &["d"]).into_iter();
    let mut second = parts(other, &["b", "c"]).into_iter();
    cluster.handle(first.next().expect("four parts"));
    cluster.handle(second.next().expect("three parts"));
    assert_eq!(cluster.sent_to_worker(worker), ["compute-task a"]);
    cluster.finish(worker, "a");
    cluster.handle(first.next().expect("four parts"));
    cluster.handle(SchedulerInput::ClientLeft(one));
    // It runs on for the other client, of which this part is new.
    cluster.handle(second.next().expect("three parts"));
    cluster.finish(worker, "b");
    cluster.handle(second.next().expect("three parts"));
    cluster.finish(worker, "c");
    assert_eq!(
        cluster.sent_to_client(other),
        ["key-in-memory b", "key-in-memory c"]
    );
    cluster.release(other, &["b", "c"]);
    assert_eq!(cluster.state.task_count(), 0);
}

//! Tests of tasks that wait for a worker.

use super::*;

fn cluster(timeout: u64) -> (Cluster, ClientId) {
    let mut cluster = Cluster::new();
    cluster.state =
        State::new(Policy::default().with_no_worker_timeout(Duration::from_secs(timeout)));
    let client = cluster.client("me");
    (cluster, client)
}

#[test]
fn a_task_fails_that_has_waited_too_long_for_any_worker() {
    let (mut cluster, client) = cluster(60);
    cluster.submit(client, [add("x", &[]), add("y", &["x"])], &["x", "y"]);
    cluster.pass(60_000);
    assert_eq!(cluster.status("x"), Some(TaskState::NoWorker));
    cluster.pass(1);
    assert_eq!(cluster.status("x"), Some(TaskState::Erred));
    let expected = "distributed.scheduler.NoWorkerError: ('x', 60.0)";
    let lines = ["x", "y"].map(|key| format!("task-erred {key} {expected}"));
    assert_eq!(cluster.sent_to_client(client), lines);
    // Retried tasks wait for as long again.
    cluster.handle(SchedulerInput::Retry(vec![Key::from("x")]));
    cluster.pass(59_000);
    assert_eq!(cluster.status("x"), Some(TaskState::NoWorker));
    let worker = cluster.worker("tcp://w:1", 1);
    cluster.pass(120_000);
    assert_eq!(cluster.assigned_to("x"), Some(worker));
    cluster.release(client, &["x", "y"]);
    cluster.assert_empty();
}

#[test]
fn a_task_fails_that_has_waited_too_long_for_a_worker_that_it_names() {
    let (mut cluster, client) = cluster(5);
    let worker = cluster.worker("tcp://w:1", 1);
    let annotations = [
        ("workers", Value::list(["absent"])),
        ("resources", Value::dict([("GPU", 1)])),
    ];
    cluster.submit_with(client, [add("x", &[])], &["x"], &annotations);
    cluster.submit(client, [add("y", &[])], &["y"]);
    cluster.pass(5_001);
    let expected = "task-erred x distributed.scheduler.NoValidWorkerError: \
                    ('x', set(), {'absent'}, {'GPU': 1.0}, 5.0)";
    assert_eq!(cluster.sent_to_client(client), [expected]);
    assert_eq!(cluster.assigned_to("y"), Some(worker));
    cluster.release(client, &["x", "y"]);
    cluster.state.check();
}

#[test]
fn tasks_that_wait_together_fail_in_parts() {
    let (mut cluster, client) = cluster(1);
    let keys: Vec<String> = (0..600).map(|number| format!("x-{number}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let tasks: Vec<Node> = keys.iter().map(|key| add(key, &[])).collect();
    cluster.submit(client, tasks, &keys);
    for failed in [256, 256, 88, 0] {
        cluster.pass(1_001);
        assert_eq!(cluster.sent_to_client(client).len(), failed);
    }
}

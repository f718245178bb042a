//! Errors, cancellation, restrictions, resources, and other guarantees.

use daskwire_messages::protocol::TaskState;
use daskwire_messages::protocol::WorkerStatus;

use super::*;

#[test]
fn an_error_goes_to_all_dependents_and_to_the_clients_of_each() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 4);
    let (one, other) = (cluster.client("one"), cluster.client("other"));
    let tasks = [
        add("x", &[]),
        add("y", &["x"]),
        add("z", &["y"]),
        add("fine", &[]),
    ];
    cluster.submit(one, tasks, &["x", "y", "fine"]);
    cluster.submit(other, [add("last", &["y"])], &["last"]);
    cluster.err(worker, "x", "boom");
    assert_eq!(
        cluster.sent_to_client(one),
        [
            "task-erred x Exception: boom",
            "task-erred y Exception: boom"
        ]
    );
    assert_eq!(
        cluster.sent_to_client(other),
        ["task-erred last Exception: boom"]
    );
    // A later client, and a repeated request
    cluster.submit(other, [add("later", &["x"])], &["later"]);
    assert_eq!(
        cluster.sent_to_client(other),
        ["task-erred later Exception: boom"]
    );
    let again = ReportKey {
        key: Key::from("x"),
        ..ReportKey::default()
    };
    cluster.send(one, again);
    assert_eq!(
        cluster.sent_to_client(one),
        ["task-erred x Exception: boom"]
    );
    cluster.finish(worker, "fine");
    cluster.release(one, &["x", "y", "fine"]);
    cluster.release(other, &["last", "later"]);
    cluster.assert_empty();
    // The worker forgets the task too.
    let sent = cluster.sent_to_worker(worker);
    assert!(
        sent.iter().any(|line| line == "free-keys x fine"),
        "{sent:?}"
    );
}

#[test]
fn retries_tasks_with_retries() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    let retries = [("retries", Value::from(2))];
    cluster.submit_with(client, [add("x", &[])], &["x"], &retries);
    for _ in 0..2 {
        cluster.err(worker, "x", "boom");
        assert_eq!(cluster.assigned_to("x"), Some(worker));
        assert!(cluster.sent_to_client(client).is_empty());
    }
    cluster.err(worker, "x", "boom");
    assert_eq!(
        cluster.sent_to_client(client),
        ["task-erred x Exception: boom"]
    );
}

#[test]
fn a_retry_runs_on_another_worker() {
    let mut cluster = Cluster::new();
    let one = cluster.worker("tcp://a:1", 1);
    let two = cluster.worker("tcp://b:1", 1);
    let client = cluster.client("me");
    let named = ("workers", Value::list(["tcp://a:1", "tcp://b:1"]));
    let retries = ("retries", Value::from(3));
    // The second worker has more data, so that the first would be chosen again.
    cluster.scatter("me", "data", 1 << 20, &["tcp://b:1"]);
    for annotations in [&[retries.clone()][..], &[retries.clone(), named]] {
        cluster.submit_with(client, [add("x", &[])], &["x"], annotations);
        let first = cluster.assigned_to("x").expect("a worker is idle");
        let other = if first == one { two } else { one };
        for on in [first, other, first, other] {
            assert_eq!(cluster.assigned_to("x"), Some(on));
            cluster.err(on, "x", "boom");
        }
        cluster.release(client, &["x"]);
    }
    // Unless only that has the inputs.
    let tasks = [add("y", &["data"])];
    cluster.submit_with(client, tasks, &["y"], core::slice::from_ref(&retries));
    cluster.err(two, "y", "boom");
    assert_eq!(cluster.assigned_to("y"), Some(two));
    cluster.finish(two, "y");
    // A later run has no memory of the first.
    assert!(cluster.state.retried.is_empty());
    // Unless there is no other worker.
    cluster.lose_worker(one);
    cluster.submit_with(client, [add("z", &[])], &["z"], &[retries]);
    cluster.err(two, "z", "boom");
    assert_eq!(cluster.assigned_to("z"), Some(two));
}

#[test]
fn tasks_that_prefer_a_worker_move_to_idle_ones_while_it_is_busy() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    let preferred = cluster.worker("tcp://a:1", 1);
    let other = cluster.worker("tcp://b:1", 1);
    let keys: Vec<String> = (0..10).map(|number| format!("x-{number}")).collect();
    let tasks: Vec<Node> = keys.iter().map(|key| add(key, &[])).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let named = ("workers", Value::list(["tcp://a:1"]));
    let others = ("allow_other_workers", Value::Bool(true));
    cluster.submit_with(client, tasks, &keys, &[named, others]);
    let mut counts = [0, 0];
    while !cluster.running.is_empty() {
        // Both take the same time for a task.
        for worker in [preferred, other] {
            let mut keys = cluster.running.keys().filter(|(on, _)| *on == worker);
            if let Some((_, key)) = keys.next().cloned() {
                counts[usize::from(worker == other)] += 1;
                cluster.finish_after(worker, &key.to_string(), 0.1);
            }
        }
    }
    assert!(counts[1] >= 3, "{counts:?}");
    assert_eq!(counts[0] + counts[1], 10);
    // The others take no task if the one that they prefer is idle.
    let annotations = [
        ("workers", Value::list(["tcp://a:1"])),
        ("allow_other_workers", Value::Bool(true)),
    ];
    cluster.submit_with(client, [add("y", &[])], &["y"], &annotations);
    assert_eq!(cluster.assigned_to("y"), Some(preferred));
    cluster.pass(600);
    assert_eq!(cluster.assigned_to("y"), Some(preferred));
}

#[test]
fn retries_failed_tasks_on_request() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    cluster.submit(client, [add("x", &[]), add("y", &["x"])], &["x", "y"]);
    cluster.err(worker, "x", "boom");
    cluster.sent_to_client(client);
    cluster.handle(SchedulerInput::Retry(vec![
        Key::from("y"),
        Key::from("unknown"),
    ]));
    assert_eq!(
        cluster.sent_to_client(client),
        ["task-retried x", "task-retried y"]
    );
    cluster.finish(worker, "x");
    cluster.finish(worker, "y");
    assert_eq!(
        cluster.sent_to_client(client),
        ["key-in-memory x", "key-in-memory y"]
    );
}

#[test]
fn a_retry_includes_dependents() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    let (one, other) = (cluster.client("one"), cluster.client("other"));
    cluster.submit(one, [add("x", &[]), add("y", &["x"])], &["x", "y"]);
    cluster.submit(other, [add("z", &["y"])], &["z"]);
    cluster.err(worker, "x", "boom");
    cluster.sent_to_client(one);
    cluster.sent_to_client(other);
    cluster.handle(SchedulerInput::Retry(vec![Key::from("x")]));
    assert_eq!(
        cluster.sent_to_client(one),
        ["task-retried x", "task-retried y"]
    );
    assert_eq!(cluster.sent_to_client(other), ["task-retried z"]);
    for key in ["x", "y", "z"] {
        cluster.finish(worker, key);
    }
    assert_eq!(cluster.sent_to_client(other), ["key-in-memory z"]);
}

fn cancel(keys: &[&str], force: bool) -> CancelKeys {
    CancelKeys {
        keys: keys.iter().copied().collect(),
        force,
        reason: Nullable(Some("because".to_owned())),
        ..CancelKeys::default()
    }
}

#[test]
fn cancelling_a_key_cancels_what_depends_on_it() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    cluster.submit(client, [add("x", &[]), add("y", &["x"])], &["x", "y"]);
    cluster.sent_to_worker(worker);
    cluster.send(client, cancel(&["x"], false));
    assert_eq!(
        cluster.sent_to_client(client),
        ["cancelled-keys x y because"]
    );
    assert_eq!(cluster.sent_to_worker(worker), ["free-keys x"]);
    cluster.assert_empty();
}

#[test]
fn cancelling_spares_keys_of_other_clients_unless_forced() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    let (one, other) = (cluster.client("one"), cluster.client("other"));
    cluster.submit(one, [add("x", &[])], &["x"]);
    cluster.submit(other, [add("x", &[])], &["x"]);
    cluster.send(one, cancel(&["x"], false));
    assert_eq!(cluster.sent_to_client(one), ["cancelled-keys x because"]);
    assert!(cluster.sent_to_client(other).is_empty());
    assert_eq!(cluster.assigned_to("x"), Some(worker));
    cluster.submit(one, [add("x", &[])], &["x"]);
    cluster.send(one, cancel(&["x"], true));
    assert_eq!(cluster.sent_to_client(other), ["cancelled-keys x because"]);
    cluster.assert_empty();
}

#[test]
fn cancels_keys_with_unknown_dependencies() {
    let mut cluster = Cluster::new();
    cluster.worker("tcp://a:1", 4);
    let client = cluster.client("me");
    let tasks = [add("x", &["gone"]), add("y", &["x"]), add("z", &[])];
    cluster.submit(client, tasks, &["x", "y", "z"]);
    assert_eq!(
        cluster.sent_to_client(client),
        ["cancelled-keys x y z lost dependencies"]
    );
    assert_eq!(cluster.assigned_to("z"), None);
    let desires = ClientDesiresKeys {
        keys: ["gone"].into_iter().collect(),
        ..ClientDesiresKeys::default()
    };
    cluster.send(client, desires);
    assert_eq!(
        cluster.sent_to_client(client),
        ["cancelled-keys gone unknown key"]
    );
}

#[test]
fn a_known_key_is_not_computed_again() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 4);
    let (one, other) = (cluster.client("one"), cluster.client("other"));
    cluster.submit(one, [add("x", &[])], &["x"]);
    cluster.finish(worker, "x");
    cluster.sent_to_worker(worker);
    cluster.submit(other, [Node::new("x", "something.else", [1])], &["x"]);
    assert_eq!(cluster.sent_to_client(other), ["key-in-memory x"]);
    assert!(cluster.sent_to_worker(worker).is_empty());
}

#[test]
fn tasks_that_are_submitted_and_not_wanted_are_not_kept() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 4);
    let client = cluster.client("me");
    cluster.submit(
        client,
        [add("x", &[]), add("y", &["x"]), add("z", &["x"])],
        &["y"],
    );
    assert_eq!(cluster.status("z"), None);
    cluster.finish(worker, "x");
    cluster.finish(worker, "y");
    cluster.release(client, &["y"]);
    cluster.assert_empty();
}

#[test]
fn removed_client_releases_its_keys() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    let tasks = ["a", "b", "c"].map(|key| add(key, &[]));
    cluster.submit(client, tasks, &["a", "b", "c"]);
    cluster.finish(worker, "a");
    cluster.send(client, CloseClient::default());
    assert_eq!(cluster.ended_clients, [client]);
    cluster.assert_empty();
    // The client reconnects before its old stream has ended.
    let first = cluster.client("me");
    let second = cluster.client("me");
    cluster.handle(SchedulerInput::ClientLeft(first));
    cluster.submit(second, [add("z", &[])], &["z"]);
    assert_eq!(cluster.assigned_to("z"), Some(worker));
}

/// As with Dask's scheduler, which makes a client of each name.
#[test]
fn keeps_what_is_held_in_a_name_without_a_client() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    cluster.submit(client, [add("x", &[])], &["x"]);
    let desires = |keys: &[&str]| ClientDesiresKeys {
        keys: keys.iter().copied().collect(),
        client: Some("holder".to_owned()),
        ..ClientDesiresKeys::default()
    };
    cluster.send(client, desires(&["x"]));
    assert_eq!(cluster.state.client_count(), 1);
    cluster.finish(worker, "x");
    cluster.handle(SchedulerInput::ClientLeft(client));
    assert_eq!(cluster.status("x"), Some(TaskState::Memory));
    let client = cluster.client("later");
    // Nothing remains of a name that holds nothing.
    cluster.send(client, desires(&[]));
    cluster.send(
        client,
        ClientReleasesKeys {
            keys: ["x"].into_iter().collect(),
            client: Some("holder".to_owned()),
            ..ClientReleasesKeys::default()
        },
    );
    cluster.handle(SchedulerInput::ClientLeft(client));
    cluster.assert_empty();
    assert!(cluster.state.by_name.is_empty());
}

#[test]
fn keeps_fire_and_forget_tasks_until_done() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    cluster.submit(client, [add("x", &[]), add("y", &[])], &["x", "y"]);
    let desires = ClientDesiresKeys {
        keys: ["x", "y"].into_iter().collect(),
        client: Some("fire-and-forget".to_owned()),
        ..ClientDesiresKeys::default()
    };
    cluster.send(client, desires.clone());
    cluster.release(client, &["x", "y"]);
    cluster.handle(SchedulerInput::ClientLeft(client));
    cluster.finish(worker, "x");
    cluster.err(worker, "y", "boom");
    cluster.assert_empty();
    let client = cluster.client("me");
    cluster.scatter("me", "z", 8, &["tcp://a:1"]);
    cluster.send(
        client,
        ClientDesiresKeys {
            keys: ["z"].into_iter().collect(),
            ..desires
        },
    );
    cluster.release(client, &["z"]);
    cluster.assert_empty();
}

#[test]
fn restrictions_are_respected() {
    let mut cluster = Cluster::new();
    let first = cluster.worker("tcp://10.0.0.1:1", 8);
    let second = cluster.worker("tcp://10.0.0.2:1", 1);
    let client = cluster.client("me");
    let by = |name: &str| [("workers", Value::list([name]))];
    cluster.submit_with(
        client,
        [add("address", &[])],
        &["address"],
        &by("tcp://10.0.0.2:1"),
    );
    cluster.submit_with(client, [add("host", &[])], &["host"], &by("10.0.0.2"));
    cluster.submit_with(client, [add("nowhere", &[])], &["nowhere"], &by("alice"));
    let mut loose = by("alice").to_vec();
    loose.push(("allow_other_workers", Value::from(true)));
    cluster.submit_with(client, [add("rather", &[])], &["rather"], &loose);
    assert_eq!(cluster.assigned_to("address"), Some(second));
    assert_eq!(cluster.assigned_to("host"), Some(second));
    assert_eq!(cluster.status("nowhere"), Some(TaskState::NoWorker));
    assert_eq!(cluster.assigned_to("rather"), Some(first));
    let named = RegisterWorker {
        address: "tcp://10.0.0.3:1".to_owned(),
        name: Value::from("alice"),
        status: WorkerStatus::Running,
        nthreads: 1,
        ..RegisterWorker::default()
    };
    let alice = cluster.join(named).expect("it is new");
    assert_eq!(cluster.assigned_to("nowhere"), Some(alice));
}

#[test]
fn resources_are_taken_while_a_task_runs() {
    let mut cluster = Cluster::new();
    let without = cluster.worker("tcp://a:1", 8);
    let client = cluster.client("me");
    let one = [("resources", Value::dict([("GPU", 1)]))];
    let names = ["a", "b", "c"];
    for name in names {
        cluster.submit_with(client, [add(name, &[])], &[name], &one);
    }
    assert_eq!(cluster.status("a"), Some(TaskState::NoWorker));
    let with = cluster.worker_with("tcp://b:1", 8, &[("GPU", 2.0)]);
    cluster.submit(client, [add("plain", &[])], &["plain"]);
    assert_eq!(cluster.assigned_to("plain"), Some(without));
    assert_eq!(
        cluster.sent_to_worker(with),
        ["compute-task a", "compute-task b"]
    );
    let message = &cluster.running[&(with, Key::from("a"))];
    assert_eq!(
        message.resource_restrictions.0,
        Some(Value::dict([("GPU", 1.0)]))
    );
    cluster.finish(with, "a");
    assert_eq!(cluster.sent_to_worker(with), ["compute-task c"]);
}

#[test]
fn priorities_are_three_numbers_user_submission_order() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 16);
    let client = cluster.client("me");
    cluster.submit(client, [add("b", &["a"]), add("a", &[])], &["b"]);
    let graph: Graph = [add("c", &[])].into_iter().collect();
    let message = UpdateGraph {
        expr_ser: graph.to_expression().expect("plain values"),
        keys: ["c"].into_iter().collect(),
        user_priority: Some(5.0),
        internal_priority: Nullable(Some(vec![(Key::from("c"), 7)])),
        ..UpdateGraph::default()
    };
    cluster.send(client, message);
    cluster.finish(worker, "a");
    let priority = |key: &str| cluster.running[&(worker, Key::from(key))].priority.clone();
    let rounded = |key: &str| {
        priority(key)
            .iter()
            .map(|part| part.floor())
            .collect::<Vec<_>>()
    };
    assert_eq!(rounded("b"), [0.0, 1.0, 1.0]);
    assert_eq!(rounded("c"), [-5.0, 2.0, 7.0]);

    // Of tasks of one generation, a worker of Dask would run that first that it got last.
    let message = |key: &str| UpdateGraph {
        expr_ser: [add(key, &[])]
            .into_iter()
            .collect::<Graph>()
            .to_expression()
            .expect("plain values"),
        keys: [key].into_iter().collect(),
        extra: vec![(Value::from("fifo_timeout"), Value::from("100 ms"))],
        ..UpdateGraph::default()
    };
    for key in ["d", "e"] {
        cluster.send(client, message(key));
    }
    let priority = |key: &str| cluster.running[&(worker, Key::from(key))].priority.clone();
    assert_eq!(priority("d")[..2], priority("e")[..2]);
    assert!(priority("d") < priority("e"));
}

#[test]
fn graphs_are_ordered_depth_first() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    let tasks = [
        add("a", &[]),
        add("b", &[]),
        add("c", &[]),
        add("d", &[]),
        add("ab", &["a", "b"]),
        add("cd", &["c", "d"]),
    ];
    cluster.submit(client, tasks, &["ab", "cd"]);
    let mut order = Vec::new();
    while let Some((_, key)) = cluster.running.keys().min_by_key(|(_, key)| {
        let message = &cluster.running[&(worker, key.clone())];
        message
            .priority
            .iter()
            .map(|part| *part as i64)
            .collect::<Vec<_>>()
    }) {
        let key = key.to_string();
        order.push(key.clone());
        cluster.finish(worker, &key);
    }
    assert_eq!(order, ["a", "b", "ab", "c", "d", "cd"]);
}

#[test]
fn a_worker_that_is_paused_gets_nothing_until_it_runs() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    let tasks = ["a", "b", "c"].map(|key| add(key, &[]));
    cluster.submit(client, tasks, &["a", "b", "c"]);
    let status = |status: &str| WorkerStatusChange {
        status: status.into(),
        ..WorkerStatusChange::default()
    };
    cluster.report(worker, status("paused"));
    assert_eq!(cluster.status("c"), Some(TaskState::NoWorker));
    cluster.finish(worker, "a");
    assert_eq!(cluster.status("c"), Some(TaskState::NoWorker));
    cluster.report(worker, status("running"));
    assert_eq!(cluster.assigned_to("c"), Some(worker));
}

impl Cluster {
    /// Answers the request for a task that was sent to a worker.
    fn give_back(&mut self, worker: WorkerId, key: &str, run_id: i64, state: &str) {
        if state != "executing" {
            self.running.remove(&(worker, key.into()));
        }
        let answer = StealResponse {
            key: key.into(),
            state: Nullable(Some(state.to_owned())),
            stimulus_id: format!("take-back-{run_id}"),
            ..StealResponse::default()
        };
        self.report(worker, answer);
    }
}

// ROLES SCHEDULER-11
#[test]
fn tasks_that_a_paused_worker_has_not_started_run_elsewhere() {
    let mut cluster = Cluster::new();
    let first = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    cluster.submit(client, ["a", "b"].map(|key| add(key, &[])), &["a", "b"]);
    assert_eq!(cluster.assigned_to("b"), Some(first));
    cluster.sent_to_worker(first);
    let paused = WorkerStatusChange {
        status: WorkerStatus::Paused,
        ..WorkerStatusChange::default()
    };
    cluster.report(first, paused);
    // No other worker can run them.
    cluster.pass(500);
    assert_eq!(cluster.sent_to_worker(first), [""; 0]);
    let second = cluster.worker("tcp://b:1", 1);
    cluster.pass(500);
    let run = |cluster: &Cluster, key: &str| cluster.running[&(first, key.into())].run_id;
    let (a, b) = (run(&cluster, "a"), run(&cluster, "b"));
    assert_eq!(
        cluster.sent_to_worker(first),
        ["steal-request b", "steal-request a"]
    );
    // Once for each run
    cluster.pass(500);
    assert_eq!(cluster.sent_to_worker(first), [""; 0]);
    cluster.give_back(first, "a", a, "executing");
    // The answer to an earlier request
    cluster.give_back(first, "b", b - 1, "executing");
    assert_eq!(cluster.assigned_to("b"), Some(first));
    cluster.give_back(first, "b", b, "ready");
    assert_eq!(cluster.assigned_to("b"), Some(second));
    cluster.give_back(first, "b", b, "executing");
    cluster.finish(second, "b");
    cluster.finish(first, "a");
    cluster.release(client, &["a", "b"]);
    cluster.assert_empty();
}

#[test]
fn idle_workers_take_over_tasks_that_wait_for_a_thread() {
    let mut cluster = Cluster::new();
    let first = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    let tasks = ["a", "b", "c"].map(|key| add(key, &[]));
    cluster.submit(client, tasks, &["a", "b", "c"]);
    let second = cluster.worker("tcp://b:1", 1);
    assert_eq!(cluster.assigned_to("c"), Some(second));
    cluster.pass(500);
    let sent = cluster.sent_to_worker(first);
    assert!(!sent.iter().any(|op| op.starts_with("steal")), "{sent:?}");
    cluster.finish(second, "c");
    cluster.pass(500);
    assert_eq!(cluster.sent_to_worker(first), ["steal-request b"]);
    let b = cluster.running[&(first, "b".into())].run_id;
    cluster.give_back(first, "b", b, "waiting");
    assert_eq!(cluster.assigned_to("b"), Some(second));
    cluster.finish(second, "b");
    // A worker that has the inputs would be chosen again.
    cluster.scatter("me", "x", 8, &["tcp://a:1"]);
    cluster.scatter("me", "large", 1 << 40, &["tcp://a:1"]);
    let tasks = [add("d", &["x"]), add("e", &["large"])];
    cluster.submit(client, tasks, &["d", "e"]);
    assert_eq!(cluster.assigned_to("d"), Some(first));
    cluster.sent_to_worker(first);
    cluster.pass(500);
    assert_eq!(cluster.sent_to_worker(first), ["steal-request d"]);
    let d = cluster.running[&(first, "d".into())].run_id;
    cluster.give_back(first, "d", d, "ready");
    assert_eq!(cluster.assigned_to("d"), Some(second));
}

#[test]
fn tasks_that_may_run_anywhere_run_in_order_across_workers() {
    let mut cluster = Cluster::new();
    let first = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    let names: Vec<String> = (0..10).map(|number| format!("t-{number}")).collect();
    let keys: Vec<&str> = names.iter().map(String::as_str).collect();
    cluster.submit(client, keys.iter().map(|key| add(key, &[])), &keys);
    assert_eq!(cluster.status("t-2"), Some(TaskState::Queued));
    let second = cluster.worker("tcp://b:1", 1);
    for (number, key) in keys.iter().enumerate() {
        let on = match number {
            0 | 1 => first,
            // The first worker takes no further one until it has finished one.
            _ => second,
        };
        assert_eq!(cluster.assigned_to(key), Some(on), "{key}");
        if on == second {
            cluster.finish(second, key);
        }
    }
}

#[test]
fn tasks_that_use_results_run_before_tasks_of_the_pool() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    let keys = ["a", "b", "c", "d"];
    cluster.submit(client, keys.map(|key| add(key, &[])), &keys);
    cluster.submit(client, [add("sum", &["a", "b"])], &["sum"]);
    let first = [("priority", Value::from(10))];
    cluster.submit_with(client, [add("urgent", &[])], &["urgent"], &first);
    cluster.sent_to_worker(worker);
    cluster.finish(worker, "a");
    assert_eq!(cluster.sent_to_worker(worker), ["compute-task urgent"]);
    cluster.finish(worker, "b");
    assert_eq!(cluster.sent_to_worker(worker), ["compute-task sum"]);
    cluster.finish(worker, "urgent");
    assert_eq!(cluster.sent_to_worker(worker), ["compute-task c"]);
    // A worker that pauses gets none, and one that returns does.
    let status = |status| WorkerStatusChange {
        status,
        ..WorkerStatusChange::default()
    };
    cluster.report(worker, status(WorkerStatus::Paused));
    assert_eq!(cluster.status("d"), Some(TaskState::NoWorker));
    cluster.finish(worker, "sum");
    cluster.finish(worker, "c");
    assert_eq!(cluster.sent_to_worker(worker), [""; 0]);
    cluster.report(worker, status(WorkerStatus::Running));
    assert_eq!(cluster.sent_to_worker(worker), ["compute-task d"]);
}

#[test]
fn saturation_is_the_number_of_tasks_sent_for_each_thread() {
    for (saturation, threads, expected) in [
        (1.1, 1, 2),
        (1.1, 20, 22),
        (1.0, 4, 4),
        (0.1, 4, 1),
        (f64::INFINITY, 1, 50),
    ] {
        let mut cluster = Cluster::new();
        cluster.state.policy.saturation = saturation;
        let worker = cluster.worker("tcp://a:1", threads);
        let client = cluster.client("me");
        let names: Vec<String> = (0..50).map(|number| format!("t-{number}")).collect();
        let keys: Vec<&str> = names.iter().map(String::as_str).collect();
        cluster.submit(client, keys.iter().map(|key| add(key, &[])), &keys);
        assert_eq!(cluster.running.len(), expected, "{saturation}");
        if saturation <= 1.0 {
            // No tasks in advance, however short they are.
            cluster.finish_after(worker, "t-0", 0.000_01);
            assert_eq!(cluster.running.len(), expected, "{saturation}");
        }
    }
}

#[test]
fn tasks_stay_where_they_are_without_stealing() {
    let mut cluster = Cluster::new();
    cluster.state.policy.is_stealing = false;
    let first = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    let both = [("workers", Value::list(["tcp://a:1", "tcp://b:1"]))];
    let tasks = ["a", "b", "c", "d"].map(|key| add(key, &[]));
    cluster.submit_with(client, tasks, &["a", "b", "c", "d"], &both);
    let second = cluster.worker("tcp://b:1", 1);
    cluster.sent_to_worker(first);
    cluster.pass(1000);
    assert_eq!(cluster.sent_to_worker(first), [""; 0]);
    assert_eq!(cluster.sent_to_worker(second), [""; 0]);
}

#[test]
fn idle_workers_take_over_queued_tasks() {
    let mut cluster = Cluster::new();
    let first = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    let both = [("workers", Value::list(["tcp://a:1", "tcp://b:1"]))];
    let tasks = ["a", "b", "c", "d"].map(|key| add(key, &[]));
    cluster.submit_with(client, tasks, &["a", "b", "c", "d"], &both);
    assert_eq!(cluster.status("d"), Some(TaskState::Queued));
    let second = cluster.worker("tcp://b:1", 1);
    // The last tasks first, because the first start soon.
    assert_eq!(cluster.assigned_to("d"), Some(second));
    assert_eq!(cluster.status("c"), Some(TaskState::Queued));
    cluster.finish(second, "d");
    assert_eq!(cluster.assigned_to("c"), Some(second));
    assert_eq!(cluster.assigned_to("a"), Some(first));
}

#[test]
fn idle_workers_take_over_tasks_of_unknown_duration() {
    let mut cluster = Cluster::new();
    let workers = ["tcp://a:1", "tcp://b:1", "tcp://c:1", "tcp://d:1"];
    let workers = workers.map(|address| cluster.worker(address, 1));
    let client = cluster.client("me");
    cluster.scatter("me", "x", 8, &["tcp://a:1"]);
    let names: Vec<String> = (0..8).map(|number| format!("t-{number}")).collect();
    let keys: Vec<&str> = names.iter().map(String::as_str).collect();
    cluster.submit(client, keys.iter().map(|key| add(key, &["x"])), &keys);
    for worker in workers {
        let mut running = cluster.running.keys();
        assert!(running.any(|(on, _)| *on == worker), "{worker:?}");
    }
}

#[test]
fn idle_workers_skip_tasks_that_must_stay() {
    let mut cluster = Cluster::new();
    cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    let tasks = ["a", "b", "c"].map(|key| add(key, &[]));
    cluster.submit(client, tasks, &["a", "b", "c"]);
    let only = [("workers", Value::from("tcp://a:1"))];
    cluster.submit_with(client, [add("stays", &[])], &["stays"], &only);
    // Another task of the same worker
    let second = cluster.worker("tcp://b:1", 1);
    assert_eq!(cluster.assigned_to("c"), Some(second));
    // A task of another worker, which has fewer
    let names: Vec<String> = (0..5).map(|number| format!("s-{number}")).collect();
    let keys: Vec<&str> = names.iter().map(String::as_str).collect();
    cluster.submit_with(client, keys.iter().map(|key| add(key, &[])), &keys, &only);
    cluster.submit(client, [add("d", &[]), add("e", &[])], &["d", "e"]);
    assert_eq!(cluster.status("e"), Some(TaskState::Queued));
    let third = cluster.worker("tcp://c:1", 1);
    assert_eq!(cluster.assigned_to("e"), Some(third));
}

#[test]
fn does_not_move_tasks_with_expensive_inputs() {
    let mut cluster = Cluster::new();
    cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    cluster.scatter("me", "huge", 10 << 30, &["tcp://a:1"]);
    let tasks = ["a", "b", "c"].map(|key| add(key, &["huge"]));
    cluster.submit(client, tasks, &["a", "b", "c"]);
    let second = cluster.worker("tcp://b:1", 1);
    assert_eq!(cluster.status("c"), Some(TaskState::Queued));
    assert!(cluster.sent_to_worker(second).is_empty());
}

#[test]
fn tasks_go_where_they_can_start_first() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    let (first, second) = (
        cluster.worker("tcp://a:1", 1),
        cluster.worker("tcp://b:1", 1),
    );
    let workers = ["tcp://a:1", "tcp://b:1"];
    let on = |number: usize| [("workers", Value::list([workers[number]]))];
    for (prefix, seconds) in [("short", 0.01), ("long", 10.0)] {
        let key = format!("{prefix}-0");
        cluster.submit_with(client, [add(&key, &[])], &[&key], &on(0));
        cluster.finish_after(first, &key, seconds);
    }
    cluster.scatter("me", "small", 10, &workers[..1]);
    cluster.scatter("me", "large", 100_000_000, &workers[1..]);
    let both = ["small", "large"];
    // Fetching the large input takes longer than one short task, but not than ten.
    let wait = ["short-1", "short-2"].map(|key| add(key, &[]));
    cluster.submit_with(client, wait, &["short-1", "short-2"], &on(1));
    cluster.submit(client, [add("short-3", &both)], &["short-3"]);
    assert_eq!(cluster.status("short-3"), Some(TaskState::Queued));
    cluster.finish_after(second, "short-1", 0.01);
    assert_eq!(cluster.assigned_to("short-3"), Some(second));
    cluster.submit_with(client, [add("long-1", &[])], &["long-1"], &on(1));
    cluster.submit(client, [add("short-4", &both)], &["short-4"]);
    assert_eq!(cluster.assigned_to("short-4"), Some(first));
}

#[test]
fn sends_more_short_tasks_in_advance() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    let names: Vec<String> = (0..40).map(|index| format!("t-{index}")).collect();
    let keys: Vec<&str> = names.iter().map(String::as_str).collect();
    cluster.submit(client, keys.iter().map(|key| add(key, &[])), &keys);
    assert_eq!(cluster.running.len(), 2);
    let (_, key) = cluster.running.keys().next().cloned().expect("it was sent");
    cluster.finish_after(worker, &key.to_string(), 0.000_01);
    assert_eq!(cluster.running.len(), 17);
}

#[test]
fn a_task_that_leaves_the_thread_pool_or_is_given_back_frees_its_slot() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    let tasks = ["a", "b", "c", "d"].map(|key| add(key, &[]));
    cluster.submit(client, tasks, &["a", "b", "c", "d"]);
    let run_id = cluster.running[&(worker, Key::from("a"))].run_id;
    let message = LongRunning {
        key: Key::from("a"),
        run_id,
        ..LongRunning::default()
    };
    cluster.report(worker, message);
    assert_eq!(cluster.assigned_to("c"), Some(worker));
    cluster.finish(worker, "a");
    assert_eq!(cluster.status("d"), Some(TaskState::Queued));
    cluster.running.remove(&(worker, Key::from("b")));
    let message = Reschedule {
        key: Key::from("b"),
        ..Reschedule::default()
    };
    cluster.report(worker, message);
    assert_eq!(cluster.running.len(), 2);
}

#[test]
fn long_chains_take_no_stack() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    let names: Vec<String> = (0..20_000).map(|index| format!("t-{index}")).collect();
    let chain = names.iter().enumerate().map(|(index, name)| {
        let before = index.checked_sub(1).and_then(|before| names.get(before));
        let before: Vec<&str> = before.map(String::as_str).into_iter().collect();
        add(name, &before)
    });
    cluster.submit(client, chain, &["t-19999"]);
    cluster.err(worker, "t-0", "boom");
    assert_eq!(
        cluster.sent_to_client(client),
        ["task-erred t-19999 Exception: boom"]
    );
    cluster.release(client, &["t-19999"]);
    cluster.assert_empty();
}

#[test]
fn large_tasks_are_sent_no_faster_than_a_worker_reads() {
    let mut cluster = Cluster::new();
    let me = cluster.client("me");
    let worker = cluster.worker("tcp://w0:1", 300);
    let names: Vec<String> = (0..300).map(|number| format!("x-{number}")).collect();
    let keys: Vec<&str> = names.iter().map(String::as_str).collect();
    let data = Value::bytes(vec![0; 1 << 20]);
    let tasks = keys
        .iter()
        .map(|key| Node::new(*key, "builtins.len", [data.clone()]));
    cluster.submit(me, tasks, &keys);
    let mut sent = Vec::new();
    while cluster.running.len() < keys.len() {
        assert_eq!(core::mem::take(&mut cluster.undrained), [worker]);
        sent.push(cluster.running.len());
        cluster.handle(SchedulerInput::Drained(worker));
    }
    // 64 MiB at a time
    assert_eq!(sent, [64, 128, 192, 256]);
}

#[test]
fn large_tasks_wait_in_one_queue_until_a_worker_has_read() {
    let mut cluster = Cluster::new();
    let me = cluster.client("me");
    for address in ["tcp://a:1", "tcp://b:1"] {
        cluster.worker(address, 2);
    }
    let data = Value::bytes(vec![0; WINDOW]);
    let keys = ["x", "y", "z"];
    let tasks = keys.map(|key| Node::new(key, "builtins.len", [data.clone()]));
    cluster.submit(me, tasks, &keys);
    assert_eq!(cluster.running.len(), 2);
    let read = cluster.undrained.pop().expect("both have unread tasks");
    cluster.handle(SchedulerInput::Drained(read));
    let sent_to = |on| cluster.running.keys().filter(|(to, _)| *to == on).count();
    assert_eq!((cluster.running.len(), sent_to(read)), (3, 2));
}

#[test]
fn a_client_that_was_behind_is_told_what_it_missed() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    let keys = ["done", "during", "failed", "pending"];
    cluster.submit(client, keys.map(|key| add(key, &[])), &keys);
    cluster.finish(worker, "done");
    assert_eq!(cluster.sent_to_client(client), ["key-in-memory done"]);
    cluster.handle(SchedulerInput::ClientBehind(client));
    cluster.finish(worker, "during");
    cluster.err(worker, "failed", "boom");
    assert_eq!(cluster.sent_to_client(client), [""; 0]);
    cluster.handle(SchedulerInput::ClientDrained(client));
    let mut sent = cluster.sent_to_client(client);
    sent.sort_unstable();
    assert_eq!(
        sent,
        [
            "key-in-memory done",
            "key-in-memory during",
            "task-erred failed Exception: boom"
        ]
    );
    cluster.handle(SchedulerInput::ClientDrained(client));
    assert_eq!(cluster.sent_to_client(client), [""; 0]);
    cluster.finish(worker, "pending");
    assert_eq!(cluster.sent_to_client(client), ["key-in-memory pending"]);
}

#[test]
fn tasks_that_use_results_run_before_those_that_make_more() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    cluster.scatter("me", "data", 10, &["tcp://a:1"]);
    let roots: Vec<String> = (0..8).map(|number| format!("root-{number}")).collect();
    let keys: Vec<&str> = roots.iter().map(String::as_str).collect();
    cluster.submit(client, keys.iter().map(|key| add(key, &["data"])), &keys);
    // Submitted later, as by a client that submits each function alone.
    let pairs: Vec<&[&str]> = keys.chunks(2).collect();
    for (number, pair) in pairs.iter().enumerate() {
        let key = format!("use-{number}");
        cluster.submit(client, [add(&key, pair)], &[&key]);
    }
    let mut order = Vec::new();
    while let Some((_, key)) = cluster.running.keys().next().cloned() {
        // The worker runs what it was sent first.
        let first = cluster.running.values().min_by_key(|task| task.run_id);
        let key = first.map_or(key, |task| task.key.clone()).to_string();
        cluster.finish(worker, &key);
        order.push(key);
    }
    let place = |key: &str| order.iter().position(|found| found == key);
    for number in 0..4 {
        // One task is sent in advance.
        let root = format!("root-{}", 2 * number + 3);
        assert!(
            place(&root).is_none_or(|at| Some(at) > place(&format!("use-{number}"))),
            "{order:?}"
        );
    }
}

//! The steps of the "Journey of a Task", quoted from its documentation.

use daskwire_messages::protocol::TaskState;

use super::*;

/// Data x and y on two workers, and a client.
fn two_workers(x: u64, y: u64) -> (Cluster, ClientId, WorkerId, WorkerId) {
    let mut cluster = Cluster::new();
    let (first, second) = (
        cluster.worker("tcp://a:1", 1),
        cluster.worker("tcp://b:1", 1),
    );
    let client = cluster.client("me");
    cluster.scatter("me", "x", x, &["tcp://a:1"]);
    cluster.scatter("me", "y", y, &["tcp://b:1"]);
    cluster.sent_to_client(client);
    (cluster, client, first, second)
}

#[test]
fn step_2_it_has_to_connect_all_of_those_dependencies() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 4);
    let client = cluster.client("me");
    // One scattered, one computed earlier, one in the same graph
    cluster.scatter("me", "x", 8, &["tcp://a:1"]);
    cluster.submit(client, [add("y", &[])], &["y"]);
    cluster.submit(client, [add("z", &["x", "y", "w"]), add("w", &[])], &["z"]);
    assert_eq!(cluster.status("z"), Some(TaskState::Waiting));
    cluster.finish(worker, "w");
    assert_eq!(cluster.status("z"), Some(TaskState::Waiting));
    cluster.finish(worker, "y");
    assert_eq!(cluster.status("z"), Some(TaskState::Processing));
    cluster.finish(worker, "z");
    let expected = ["key-in-memory x", "key-in-memory y", "key-in-memory z"];
    assert_eq!(cluster.sent_to_client(client), expected);
}

#[test]
fn step_2_the_status_of_the_future_is_pending_until_a_worker_comes() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    cluster.submit(client, [add("z", &[])], &["z"]);
    assert_eq!(cluster.status("z"), Some(TaskState::NoWorker));
    assert!(cluster.sent_to_client(client).is_empty());
    let worker = cluster.worker("tcp://a:1", 1);
    assert_eq!(cluster.assigned_to("z"), Some(worker));
}

#[test]
fn step_3_first_only_those_workers_that_have_either_x_or_y() {
    for _ in 0..10 {
        let (mut cluster, client, first, second) = two_workers(8, 8);
        let idle = cluster.worker("tcp://c:1", 8);
        cluster.submit(client, [add("z", &["x", "y"])], &["z"]);
        let place = cluster.assigned_to("z").expect("it was sent");
        assert!(place == first || place == second);
        assert_ne!(place, idle);
    }
}

#[test]
fn step_3_then_the_worker_that_would_have_to_gather_the_least_bytes() {
    // "if y takes up more bytes than x then we select the machine that holds y"
    let (mut cluster, client, _, second) = two_workers(10, 1000);
    cluster.submit(client, [add("z", &["x", "y"])], &["z"]);
    assert_eq!(cluster.assigned_to("z"), Some(second));
    let (mut cluster, client, first, _) = two_workers(1000, 10);
    cluster.submit(client, [add("z", &["x", "y"])], &["z"]);
    assert_eq!(cluster.assigned_to("z"), Some(first));
}

#[test]
fn step_3_then_the_worker_that_is_the_least_busy() {
    let (mut cluster, client, first, second) = two_workers(10, 10);
    let only = [("workers", Value::from("tcp://a:1"))];
    cluster.submit_with(client, [add("w", &[])], &["w"], &only);
    assert_eq!(cluster.assigned_to("w"), Some(first));
    cluster.submit(client, [add("z", &["x", "y"])], &["z"]);
    assert_eq!(cluster.assigned_to("z"), Some(second));
}

#[test]
fn step_3_least_busy_is_by_threads() {
    let mut cluster = Cluster::new();
    let (small, large) = (
        cluster.worker("tcp://a:1", 1),
        cluster.worker("tcp://b:1", 4),
    );
    let client = cluster.client("me");
    let names: Vec<String> = (0..5).map(|index| format!("t-{index}")).collect();
    for name in &names {
        cluster.submit(client, [add(name, &[])], &[name]);
    }
    let count = |on| {
        names
            .iter()
            .filter(|name| cluster.assigned_to(name) == Some(on))
            .count()
    };
    assert_eq!((count(small), count(large)), (1, 4));
}

#[test]
fn step_3_z_waits_on_a_stack_associated_with_the_chosen_worker() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    let tasks = ["a", "b", "c", "z"].map(|key| add(key, &[]));
    cluster.submit(client, tasks, &["a", "b", "c", "z"]);
    // One for its thread, and one in advance
    assert_eq!(
        cluster.sent_to_worker(worker),
        ["compute-task a", "compute-task b"]
    );
    assert_eq!(cluster.status("z"), Some(TaskState::Queued));
}

#[test]
fn step_4_other_tasks_placed_themselves_on_top_of_the_stack_in_the_meantime() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    let tasks = ["a", "b", "z"].map(|key| add(key, &[]));
    cluster.submit(client, tasks, &["a", "b", "z"]);
    let first = [("priority", Value::from(10))];
    cluster.submit_with(client, [add("urgent", &[])], &["urgent"], &first);
    cluster.sent_to_worker(worker);
    cluster.finish(worker, "a");
    assert_eq!(cluster.sent_to_worker(worker), ["compute-task urgent"]);
    cluster.finish(worker, "b");
    assert_eq!(cluster.sent_to_worker(worker), ["compute-task z"]);
}

#[test]
fn step_4_the_keys_of_its_arguments_and_where_they_are_are_in_the_message() {
    let (mut cluster, client, _, second) = two_workers(10, 1000);
    let both = AddKeys {
        keys: ["x"].into_iter().collect(),
        ..AddKeys::default()
    };
    cluster.report(second, both);
    cluster.submit_with(
        client,
        [add("z", &["x", "y"])],
        &["z"],
        &[
            ("resources", Value::dict([("GPU", 0)])),
            ("mine", Value::from("yes")),
        ],
    );
    let message = &cluster.running[&(second, Key::from("z"))];
    let holders = |key: &str| {
        let found = message
            .who_has
            .iter()
            .find(|(known, _)| *known == Key::from(key));
        found.map(|(_, holders)| holders.clone()).expect("exists")
    };
    assert_eq!(holders("x"), ["tcp://a:1", "tcp://b:1"]);
    assert_eq!(holders("y"), ["tcp://b:1"]);
    assert_eq!(message.nbytes.len(), 2);
    assert!(message.nbytes.contains(&(Key::from("y"), 1000)));
    assert_eq!(message.priority.len(), 3);
    assert_eq!(
        message.annotations.as_ref().and_then(|all| all.get("mine")),
        Some(&Value::from("yes"))
    );
    let task =
        Node::read(message.run_spec.payload().expect("a payload"), &message.key).expect("a task");
    assert_eq!(task, add("z", &["x", "y"]));
}

#[test]
fn step_6_the_worker_has_a_free_core_and_gets_another_task() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    let tasks = ["a", "b", "c"].map(|key| add(key, &[]));
    cluster.submit(client, tasks, &["a", "b", "c"]);
    cluster.sent_to_worker(worker);
    cluster.finish(worker, "a");
    assert_eq!(cluster.sent_to_worker(worker), ["compute-task c"]);
}

#[test]
fn step_6_if_x_or_y_are_no_longer_needed_workers_delete_them() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 4);
    let client = cluster.client("me");
    let tasks = [add("x", &[]), add("y", &[]), add("z", &["x", "y"])];
    cluster.submit(client, tasks, &["z", "y"]);
    for key in ["x", "y", "z"] {
        cluster.finish(worker, key);
    }
    assert_eq!(cluster.status("x"), Some(TaskState::Released));
    cluster.sent_to_worker(worker);
    cluster.pass(500);
    // A client still wants y.
    assert_eq!(cluster.sent_to_worker(worker), ["free-keys x"]);
}

#[test]
fn step_6_it_sends_a_message_to_all_of_the_clients_that_z_is_ready() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    let (one, other, none) = (
        cluster.client("one"),
        cluster.client("other"),
        cluster.client("none"),
    );
    cluster.submit(one, [add("z", &[])], &["z"]);
    let desires = ClientDesiresKeys {
        keys: ["z"].into_iter().collect(),
        ..ClientDesiresKeys::default()
    };
    cluster.send(other, desires);
    cluster.finish(worker, "z");
    assert_eq!(cluster.sent_to_client(one), ["key-in-memory z"]);
    assert_eq!(cluster.sent_to_client(other), ["key-in-memory z"]);
    assert!(cluster.sent_to_client(none).is_empty());
}

#[test]
fn step_7_the_scheduler_checks_who_has_z() {
    let (mut cluster, client, first, _) = two_workers(10, 10);
    cluster.submit(client, [add("z", &["x"])], &["z"]);
    cluster.finish(first, "z");
    let keys = [Key::from("z"), Key::from("unknown")];
    let who_has = cluster.state.who_has(Selection::Keys(&keys));
    assert_eq!(who_has[0].1, ["tcp://a:1"]);
    assert!(who_has[1].1.is_empty());
}

#[test]
fn step_8_a_message_goes_out_which_keys_can_be_deleted() {
    let (mut cluster, client, first, second) = two_workers(10, 10);
    cluster.scatter("me", "w", 10, &["tcp://a:1", "tcp://b:1"]);
    // The interval is that of the policy, which is shorter than that of Dask's document.
    cluster.pass(20);
    cluster.pass(10);
    cluster.release(client, &["x", "w"]);
    assert_eq!(cluster.state.task_count(), 1);
    cluster.pass(9);
    assert!(cluster.sent_to_worker(first).is_empty());
    cluster.release(client, &["y"]);
    cluster.pass(1);
    assert_eq!(cluster.sent_to_worker(first), ["free-keys w x"]);
    assert_eq!(cluster.sent_to_worker(second), ["free-keys w y"]);
    cluster.pass(5000);
    assert!(cluster.sent_to_worker(first).is_empty());
    cluster.assert_empty();
}

#[test]
fn step_8_not_while_another_client_has_a_future_pointing_to_z() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    let (one, other) = (cluster.client("one"), cluster.client("other"));
    cluster.submit(one, [add("z", &[])], &["z"]);
    cluster.submit(other, [add("z", &[])], &["z"]);
    cluster.finish(worker, "z");
    cluster.release(one, &["z"]);
    cluster.release(one, &["z"]);
    assert_eq!(cluster.status("z"), Some(TaskState::Memory));
    cluster.handle(SchedulerInput::ClientLeft(other));
    cluster.assert_empty();
}

#[test]
fn step_8_nor_while_computations_depend_on_z_in_the_immediate_future() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    cluster.submit(client, [add("z", &[]), add("next", &["z"])], &["z", "next"]);
    cluster.finish(worker, "z");
    cluster.release(client, &["z"]);
    assert_eq!(cluster.status("z"), Some(TaskState::Memory));
    cluster.finish(worker, "next");
    assert_eq!(cluster.status("z"), Some(TaskState::Released));
    cluster.release(client, &["next"]);
    cluster.assert_empty();
}

#[test]
fn step_8_the_run_spec_of_z_persists() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 4);
    let client = cluster.client("me");
    cluster.submit(client, [add("z", &[]), add("next", &["z"])], &["next"]);
    cluster.finish(worker, "z");
    cluster.finish(worker, "next");
    cluster.pass(500);
    // The result was deleted, and is requested again.
    cluster.submit(client, [add("other", &["z"])], &["other"]);
    assert_eq!(cluster.assigned_to("z"), Some(worker));
    cluster.finish(worker, "z");
    cluster.finish(worker, "other");
    assert_eq!(cluster.status("other"), Some(TaskState::Memory));
}

#[test]
fn a_worker_deletes_results_before_it_gets_tasks_that_were_submitted_later() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 2);
    let client = cluster.client("me");
    cluster.submit(
        client,
        [add("x", &["w"]), add("w", &[]), add("y", &["x"])],
        &["y"],
    );
    cluster.finish(worker, "w");
    cluster.finish(worker, "x");
    cluster.pass(500);
    cluster.finish(worker, "y");
    cluster.pass(500);
    cluster.release(client, &["y"]);
    cluster.sent_to_worker(worker);
    // A worker in Python knows x and its dependencies as long as it has y: the new x, which has
    // none, would wait for w.
    cluster.submit(client, [add("x", &[]), add("z", &["x"])], &["z"]);
    assert_eq!(
        cluster.sent_to_worker(worker),
        ["free-keys y", "compute-task x"]
    );
    // Results of the same graph are deleted later.
    cluster.finish(worker, "x");
    cluster.finish(worker, "z");
    assert_eq!(cluster.sent_to_worker(worker), ["compute-task z"]);
}

#[test]
fn does_not_delete_data_under_a_reused_key() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    cluster.submit(client, [add("z", &[])], &["z"]);
    cluster.finish(worker, "z");
    cluster.release(client, &["z"]);
    cluster.sent_to_worker(worker);
    cluster.submit(client, [add("z", &[])], &["z"]);
    // The worker's old data may differ from the new z.
    assert_eq!(
        cluster.sent_to_worker(worker),
        ["free-keys z", "compute-task z"]
    );
    cluster.running.insert(
        (worker, Key::from("z")),
        ComputeTask {
            run_id: 2,
            ..ComputeTask::default()
        },
    );
    cluster.finish(worker, "z");
    cluster.pass(500);
    assert!(cluster.sent_to_worker(worker).is_empty());
    // The same for scattered data
    cluster.release(client, &["z"]);
    cluster.scatter("me", "z", 8, &["tcp://a:1"]);
    cluster.pass(500);
    assert!(cluster.sent_to_worker(worker).is_empty());
    assert_eq!(cluster.status("z"), Some(TaskState::Memory));
}

#[test]
fn steps_name_a_worker_that_has_died() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    cluster.submit(client, [add("z", &[])], &["z"]);
    cluster.lose_worker(worker);
    let wanted = ["z"].into_iter().collect();
    let steps = cluster.state.story(&wanted);
    let last = steps.last().expect("steps");
    assert_eq!(last.worker.as_deref(), Some("tcp://a:1"), "{last}");
}

#[test]
fn story_has_stages_and_stimuli() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    cluster.now = Duration::from_millis(1500);
    cluster.submit(client, [add("z", &[])], &["z"]);
    cluster.now = Duration::from_millis(2500);
    let finished = TaskFinished {
        key: "z".into(),
        run_id: cluster.running[&(worker, "z".into())].run_id,
        stimulus_id: "task-finished-2".to_owned(),
        ..TaskFinished::default()
    };
    cluster.report(worker, finished);
    let release = ClientReleasesKeys {
        keys: ["z"].into_iter().collect(),
        ..ClientReleasesKeys::default()
    };
    cluster.send(client, release);
    let story = |wanted: &str| -> Vec<String> {
        let wanted = [wanted].into_iter().collect();
        let events = cluster.state.story(&wanted);
        events.map(ToString::to_string).collect()
    };
    let expected = [
        "released -> waiting (update-graph-1.5)",
        "waiting -> queued (update-graph-1.5)",
        "queued -> processing (update-graph-1.5)",
        "processing -> memory (task-finished-2)",
        "memory -> released (client-releases-keys-2.5)",
        "released -> forgotten (client-releases-keys-2.5)",
    ];
    assert_eq!(story("z"), expected);
    assert_eq!(story("task-finished-2"), expected[3..4]);
    assert!(story("y").is_empty());
    let wanted = ["z"].into_iter().collect();
    let workers = cluster.state.story(&wanted);
    let workers: Vec<Option<&str>> = workers.map(|step| step.worker.as_deref()).collect();
    let on = Some("tcp://a:1");
    assert_eq!(workers, [None, None, on, on, None, None]);
    let prefixes = cluster.state.prefix_totals(0);
    let mut prefixes = prefixes.iter().filter(|(_, name, _)| **name == *"z");
    let (_, _, totals) = prefixes.next().expect("its prefix");
    let entered: Vec<_> = totals
        .entered
        .iter()
        .filter(|(_, count)| *count > 0)
        .collect();
    let once = ["released", "waiting", "queued", "processing", "memory"].map(|name| (name, 1));
    assert_eq!(entered, once);
    assert_eq!((totals.forgotten, cluster.state.forgotten_count()), (1, 1));
}

//! Loss of workers and results.

use daskwire_messages::protocol::TaskState;

use super::*;

#[test]
fn tasks_of_a_lost_worker_move_to_another() {
    let mut cluster = Cluster::new();
    let first = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    let tasks = ["a", "b", "c"].map(|key| add(key, &[]));
    cluster.submit(client, tasks, &["a", "b", "c"]);
    cluster.lose_worker(first);
    let second = cluster.worker("tcp://b:1", 8);
    for key in ["a", "b", "c"] {
        cluster.finish(second, key);
    }
    assert_eq!(cluster.sent_to_client(client).len(), 3);
}

#[test]
fn recomputes_results_that_only_the_lost_worker_had() {
    let mut cluster = Cluster::new();
    let first = cluster.worker("tcp://a:1", 4);
    let client = cluster.client("me");
    let tasks = [add("x", &[]), add("y", &["x"]), add("z", &["y"])];
    cluster.submit(client, tasks, &["z"]);
    for key in ["x", "y", "z"] {
        cluster.finish(first, key);
    }
    assert_eq!(cluster.sent_to_client(client), ["key-in-memory z"]);
    let second = cluster.worker("tcp://b:1", 4);
    cluster.lose_worker(first);
    assert_eq!(cluster.sent_to_client(client), ["lost-data z"]);
    assert_eq!(
        cluster.sent_to_worker(second),
        ["remove-worker tcp://a:1", "compute-task x"]
    );
    for key in ["x", "y", "z"] {
        cluster.finish(second, key);
    }
    assert_eq!(cluster.sent_to_client(client), ["key-in-memory z"]);
    cluster.release(client, &["z"]);
    cluster.assert_empty();
}

#[test]
fn does_not_recompute_replicated_results() {
    let mut cluster = Cluster::new();
    let first = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    cluster.submit(client, [add("x", &[])], &["x"]);
    cluster.finish(first, "x");
    let second = cluster.worker("tcp://b:1", 1);
    let copied = AddKeys {
        keys: ["x", "unknown"].into_iter().collect(),
        ..AddKeys::default()
    };
    cluster.report(second, copied);
    assert_eq!(cluster.sent_to_worker(second), ["remove-replicas unknown"]);
    cluster.sent_to_client(client);
    cluster.lose_worker(first);
    assert!(cluster.sent_to_client(client).is_empty());
    assert_eq!(cluster.status("x"), Some(TaskState::Memory));
}

#[test]
fn task_waits_again_for_lost_dependency() {
    let mut cluster = Cluster::new();
    let first = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    let only = [("workers", Value::from("tcp://b:1"))];
    cluster.submit(client, [add("x", &[])], &["x"]);
    cluster.finish(first, "x");
    let second = cluster.worker("tcp://b:1", 1);
    cluster.submit_with(client, [add("z", &["x"])], &["z"], &only);
    assert_eq!(cluster.assigned_to("z"), Some(second));
    cluster.lose_worker(first);
    // The other task is cancelled, because it cannot continue.
    assert_eq!(cluster.status("z"), Some(TaskState::Waiting));
    let sent = cluster.sent_to_worker(second);
    assert!(sent.contains(&"free-keys z".to_owned()), "{sent:?}");
    cluster.finish(second, "x");
    cluster.finish(second, "z");
    assert_eq!(cluster.status("z"), Some(TaskState::Memory));
}

#[test]
fn task_that_kills_more_than_three_workers_fails() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    cluster.submit(
        client,
        [add("evil", &[]), add("next", &["evil"])],
        &["evil", "next"],
    );
    for number in 0..4 {
        assert_eq!(cluster.status("evil"), Some(TaskState::NoWorker));
        let worker = cluster.worker(&format!("tcp://w{number}:1"), 1);
        assert_eq!(cluster.assigned_to("evil"), Some(worker));
        cluster.lose_worker(worker);
    }
    assert_eq!(cluster.status("evil"), Some(TaskState::Erred));
    let sent = cluster.sent_to_client(client);
    assert_eq!(sent.len(), 2);
    for (line, key) in sent.iter().zip(["evil", "next"]) {
        let expected = format!(
            "task-erred {key} distributed.scheduler.KilledWorker: Attempted to run task 'evil' on \
             4 different workers, but all those workers died while running it. The last worker \
             that attempt to run the task was tcp://w3:1. "
        );
        assert!(line.starts_with(&expected), "{line}");
    }
}

#[test]
fn workers_that_failed_to_retire_count_as_killed() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    cluster.submit(client, [add("evil", &[])], &["evil"]);
    for number in 0..4 {
        assert_eq!(cluster.status("evil"), Some(TaskState::NoWorker));
        let address = format!("tcp://w{number}:1");
        let worker = cluster.worker(&address, 1);
        cluster.handle(SchedulerInput::RetireWorkers(vec![address.clone()]));
        cluster.handle(SchedulerInput::KeepWorker(address));
        // The worker confirms each status after the scheduler has set the next one.
        for status in [WorkerStatus::ClosingGracefully, WorkerStatus::Running] {
            let change = WorkerStatusChange {
                status,
                ..WorkerStatusChange::default()
            };
            cluster.report(worker, change);
        }
        assert_eq!(cluster.assigned_to("evil"), Some(worker));
        cluster.lose_worker(worker);
    }
    assert_eq!(cluster.status("evil"), Some(TaskState::Erred));
}

#[test]
fn losing_scattered_data_cancels_its_dependents() {
    let mut cluster = Cluster::new();
    let first = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    cluster.scatter("me", "x", 8, &["tcp://a:1"]);
    cluster.submit(client, [add("y", &["x"])], &["y"]);
    cluster.finish(first, "y");
    cluster.submit(
        client,
        [add("z", &["x"]), add("last", &["z"])],
        &["z", "last"],
    );
    let second = cluster.worker("tcp://b:1", 1);
    let copied = AddKeys {
        keys: ["y"].into_iter().collect(),
        ..AddKeys::default()
    };
    cluster.report(second, copied);
    cluster.sent_to_client(client);
    cluster.lose_worker(first);
    let mut sent = cluster.sent_to_client(client);
    sent.sort_unstable();
    assert_eq!(
        sent,
        [
            "cancelled-keys last already forgotten",
            "cancelled-keys x already forgotten",
            "cancelled-keys z already forgotten",
            "lost-data x",
        ]
    );
    // The result computed from it is in memory, but cannot be recomputed.
    assert_eq!(cluster.status("y"), Some(TaskState::Memory));
    cluster.lose_worker(second);
    assert_eq!(
        cluster.sent_to_client(client),
        ["lost-data y", "cancelled-keys y already forgotten"]
    );
    cluster.assert_empty();
}

#[test]
fn handles_deletions_by_workers() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    cluster.submit(client, [add("x", &[])], &["x"]);
    cluster.finish(worker, "x");
    cluster.sent_to_client(client);
    let message = ReleaseWorkerData {
        key: Key::from("x"),
        ..ReleaseWorkerData::default()
    };
    cluster.report(worker, message);
    assert_eq!(cluster.sent_to_client(client), ["lost-data x"]);
    cluster.finish(worker, "x");
    cluster.sent_to_client(client);
    cluster.handle(SchedulerInput::DataMissing {
        worker: "tcp://a:1".to_owned(),
        keys: vec![Key::from("x")],
    });
    assert_eq!(cluster.sent_to_client(client), ["lost-data x"]);
}

#[test]
fn a_worker_that_misses_its_heartbeats_is_removed() {
    let mut cluster = Cluster::new();
    cluster.state.policy.worker_ttl = Some(Duration::from_secs(10));
    let (silent, alive) = (
        cluster.worker("tcp://a:1", 1),
        cluster.worker("tcp://b:1", 1),
    );
    for _ in 0..30 {
        cluster.pass(500);
        for address in ["tcp://b:1", "tcp://unknown:1"] {
            cluster.handle(SchedulerInput::Heartbeat {
                worker: address.to_owned(),
                metrics: Value::None,
            });
        }
    }
    assert!(!cluster.state.has_worker("tcp://a:1"));
    assert!(cluster.state.has_worker("tcp://b:1"));
    assert_eq!(cluster.ended_workers, [silent]);
    assert_eq!(cluster.sent_to_worker(silent), ["close", "close-stream"]);
    assert_eq!(cluster.sent_to_worker(alive), ["remove-worker tcp://a:1"]);
}

#[test]
fn sends_holders_to_workers_with_missing_data() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    cluster.client("me");
    cluster.scatter("me", "x", 8, &["tcp://a:1"]);
    let asks = RequestRefreshWhoHas {
        keys: ["x", "gone"].into_iter().collect(),
        ..RequestRefreshWhoHas::default()
    };
    cluster.report(worker, asks);
    let messages = cluster.to_workers.remove(&worker).unwrap_or_default();
    let [
        ToWorker::RefreshWhoHas(message),
        ToWorker::FreeKeys(unknown),
    ] = &messages[..]
    else {
        panic!("{messages:?}");
    };
    let holders = vec!["tcp://a:1".to_owned()];
    assert_eq!(message.who_has, [(Key::from("x"), holders)]);
    assert_eq!(unknown.keys, ["gone"].into_iter().collect());
}

#[test]
fn retiring_worker_gets_no_tasks_and_its_data_is_copied() {
    let mut cluster = Cluster::new();
    let first = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    cluster.scatter("me", "x", 8, &["tcp://a:1"]);
    let second = cluster.worker("tcp://b:1", 1);
    cluster.submit(client, [add("z", &["x"])], &["z"]);
    assert_eq!(cluster.assigned_to("z"), Some(first));
    let retire = || SchedulerInput::RetireWorkers(vec!["tcp://a:1".to_owned()]);
    cluster.handle(retire());
    assert!(cluster.state.can_retire("tcp://a:1"));
    assert!(!cluster.state.is_retired("tcp://a:1"));
    assert_eq!(cluster.sent_to_worker(second), ["acquire-replicas"]);
    // Repeated, the event only asks for the copies.
    cluster.sent_to_worker(first);
    cluster.handle(retire());
    assert_eq!(cluster.sent_to_worker(second), ["acquire-replicas"]);
    assert_eq!(cluster.sent_to_worker(first), [""; 0]);
    cluster.finish(first, "z");
    let copied = AddKeys {
        keys: ["x", "z"].into_iter().collect(),
        ..AddKeys::default()
    };
    cluster.report(second, copied);
    assert!(cluster.state.is_retired("tcp://a:1"));
    cluster.sent_to_client(client);
    cluster.handle(SchedulerInput::RemoveWorker {
        worker: "tcp://a:1".to_owned(),
        close: true,
        reason: LeaveReason::Retired,
    });
    // No other worker can take the data.
    assert!(!cluster.state.can_retire("tcp://b:1"));
    assert!(!cluster.state.can_retire("tcp://a:1"));
    assert!(cluster.sent_to_client(client).is_empty());
    assert_eq!(cluster.status("z"), Some(TaskState::Memory));
}

#[test]
fn a_worker_waits_for_copies_of_data_that_another_leaving_worker_has_too() {
    let mut cluster = Cluster::new();
    for address in ["tcp://a:1", "tcp://b:1"] {
        cluster.worker(address, 1);
    }
    cluster.client("me");
    cluster.scatter("me", "k", 8, &["tcp://a:1", "tcp://b:1"]);
    cluster.scatter("me", "u", 8, &["tcp://a:1"]);
    let other = cluster.worker("tcp://c:1", 1);
    let retire = |address: &str| SchedulerInput::RetireWorkers(vec![address.to_owned()]);
    cluster.handle(retire("tcp://a:1"));
    let mut left = Vec::new();
    let update = |state: &State, left: &mut _| state.update_keys_without_copy("tcp://a:1", left);
    update(&cluster.state, &mut left);
    assert_eq!(left, [Key::from("u")]);
    // The other holder of a key begins to leave later.
    cluster.handle(retire("tcp://b:1"));
    assert!(!cluster.state.is_retired("tcp://b:1"));
    let copied = |key: &str| AddKeys {
        keys: [key].into_iter().collect(),
        ..AddKeys::default()
    };
    cluster.report(other, copied("u"));
    update(&cluster.state, &mut left);
    assert_ne!(left, []);
    cluster.report(other, copied("k"));
    update(&cluster.state, &mut left);
    assert_eq!(left, []);
    assert!(cluster.state.is_retired("tcp://b:1"));
}

#[test]
fn one_worker_is_asked_for_a_copy_until_it_fails_to_fetch() {
    let mut cluster = Cluster::new();
    cluster.worker("tcp://a:1", 1);
    cluster.client("me");
    cluster.scatter("me", "x", 8, &["tcp://a:1"]);
    let others = ["tcp://b:1", "tcp://c:1", "tcp://d:1"].map(|address| cluster.worker(address, 1));
    let mut asked = || {
        cluster.handle(SchedulerInput::RetireWorkers(vec!["tcp://a:1".to_owned()]));
        let asked = others
            .iter()
            .filter(|other| !cluster.sent_to_worker(**other).is_empty());
        asked.copied().collect::<Vec<_>>()
    };
    let first = asked();
    assert_eq!(first.len(), 1);
    for _ in 1..5 {
        assert_eq!(asked(), first);
    }
    let second = asked();
    assert_eq!(second.len(), 1);
    assert_ne!(second, first);
}

#[test]
fn cancelled_retirement_restores_the_status() {
    let mut cluster = Cluster::new();
    let address = || "tcp://a:1".to_owned();
    let worker = cluster.worker(&address(), 1);
    let closing = WorkerStatus::ClosingGracefully;
    let paused = WorkerStatus::Paused;
    for (before, ordered) in [
        (
            WorkerStatus::Running,
            vec![closing.clone(), WorkerStatus::Running],
        ),
        (paused.clone(), vec![closing.clone(), paused]),
        // The worker closes for another reason.
        (closing, Vec::new()),
    ] {
        let change = WorkerStatusChange {
            status: before.clone(),
            ..WorkerStatusChange::default()
        };
        cluster.report(worker, change);
        cluster.to_workers.clear();
        cluster.handle(SchedulerInput::RetireWorkers(vec![address()]));
        cluster.handle(SchedulerInput::KeepWorker(address()));
        let messages = cluster.to_workers.remove(&worker).unwrap_or_default();
        let statuses = messages.into_iter().map(|message| match message {
            ToWorker::WorkerStatusChange(message) => message.status,
            other => panic!("{other:?}"),
        });
        assert_eq!(statuses.collect::<Vec<_>>(), ordered);
        assert_eq!(cluster.state.workers[&worker].info.status, before);
    }
}

#[test]
fn a_restart_forgets_all_tasks_and_informs_clients() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    let other = cluster.client("other");
    cluster.submit(client, [add("x", &[]), add("y", &["x"])], &["x", "y"]);
    cluster.submit(other, [add("z", &[])], &["z"]);
    cluster.finish(worker, "x");
    cluster.sent_to_client(client);
    cluster.handle(SchedulerInput::Restart);
    assert_eq!(cluster.state.task_count(), 0);
    for client in [client, other] {
        assert_eq!(cluster.sent_to_client(client), ["restart"]);
    }
    assert!(cluster.running.is_empty());
    // The clients continue.
    cluster.submit(client, [add("x", &[])], &["x"]);
    assert_eq!(cluster.state.task_count(), 1);
}

#[test]
fn the_notice_of_a_lost_worker_names_its_tasks() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    cluster.submit(client, [add("x", &[]), add("y", &["x"])], &["x", "y"]);
    cluster.finish(worker, "x");
    cluster.handle(SchedulerInput::DataStored {
        client: Some("me".to_owned()),
        who_has: vec![(Key::from("data"), vec!["tcp://a:1".to_owned()])],
        nbytes: vec![(Key::from("data"), 1)],
    });
    cluster.notices.clear();
    cluster.handle(SchedulerInput::WorkerLeft(worker));
    let [notice] = &cluster.notices[..] else {
        panic!("{:?}", cluster.notices);
    };
    assert_eq!(
        notice.to_string(),
        "the worker tcp://a:1 left: stream ended; 1 tasks that it ran: y; \
         1 results that have to be computed again: x; \
         1 lost pieces of data that nothing can compute: data"
    );
}

/// A worker that has no transport to the holder of its input, or cannot deserialize the input.
#[test]
fn tasks_without_readable_input_fail() {
    let mut cluster = Cluster::new();
    let holder = cluster.worker("tls://a:1", 1);
    let client = cluster.client("me");
    cluster.submit(client, [add("x", &[])], &["x"]);
    cluster.finish(holder, "x");
    let reader = cluster.worker("tcp://b:1", 2);
    let on_reader = [("workers", Value::list(["tcp://b:1"]))];
    let tasks = [add("y", &["x"]), add("z", &[])];
    cluster.submit_with(client, tasks, &["y", "z"], &on_reader);
    assert_eq!(cluster.assigned_to("y"), Some(reader));
    cluster.sent_to_client(client);
    let erred = |run_id| TaskErred {
        key: Key::from("x"),
        run_id,
        exception: Value::from("no transport"),
        ..TaskErred::default()
    };
    // The report of an earlier run of the input.
    cluster.report(reader, erred(1));
    assert_eq!(cluster.status("y"), Some(TaskState::Processing));
    cluster.sent_to_worker(reader);
    cluster.report(reader, erred(-1));
    assert_eq!(cluster.status("y"), Some(TaskState::Erred));
    assert_eq!(cluster.status("x"), Some(TaskState::Memory));
    assert_eq!(cluster.status("z"), Some(TaskState::Processing));
    assert_eq!(
        cluster.sent_to_client(client),
        ["task-erred y Exception: no transport"]
    );
    // The worker forgets the error, so that it can try again later.
    assert_eq!(cluster.sent_to_worker(reader), ["free-keys x"]);
    cluster.finish(reader, "z");
    cluster.release(client, &["x", "y", "z"]);
    cluster.assert_empty();
}

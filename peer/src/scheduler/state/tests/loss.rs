//! What is lost: workers, results, and hope.

use super::*;
use crate::protocol::TaskState;

#[test]
fn tasks_of_a_worker_that_is_gone_go_to_another() {
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
    assert_eq!(cluster.told(client).len(), 3);
}

#[test]
fn a_result_that_only_it_had_is_computed_again_with_what_that_needs() {
    let mut cluster = Cluster::new();
    let first = cluster.worker("tcp://a:1", 4);
    let client = cluster.client("me");
    let tasks = [add("x", &[]), add("y", &["x"]), add("z", &["y"])];
    cluster.submit(client, tasks, &["z"]);
    for key in ["x", "y", "z"] {
        cluster.finish(first, key);
    }
    assert_eq!(cluster.told(client), ["key-in-memory z"]);
    let second = cluster.worker("tcp://b:1", 4);
    cluster.lose_worker(first);
    assert_eq!(cluster.told(client), ["lost-data z"]);
    assert_eq!(
        cluster.ordered(second),
        ["remove-worker tcp://a:1", "compute-task x"]
    );
    for key in ["x", "y", "z"] {
        cluster.finish(second, key);
    }
    assert_eq!(cluster.told(client), ["key-in-memory z"]);
    cluster.release(client, &["z"]);
    cluster.assert_empty();
}

#[test]
fn nothing_is_computed_again_that_another_worker_has_too() {
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
    assert_eq!(cluster.ordered(second), ["remove-replicas unknown"]);
    cluster.told(client);
    cluster.lose_worker(first);
    assert!(cluster.told(client).is_empty());
    assert_eq!(cluster.status("x"), Some(TaskState::Memory));
}

#[test]
fn a_task_that_needs_what_is_lost_waits_again() {
    let mut cluster = Cluster::new();
    let first = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    let only = [("workers", Value::from("tcp://b:1"))];
    cluster.submit(client, [add("x", &[])], &["x"]);
    cluster.finish(first, "x");
    let second = cluster.worker("tcp://b:1", 1);
    cluster.submit_with(client, [add("z", &["x"])], &["z"], &only);
    assert_eq!(cluster.place("z"), Some(second));
    cluster.lose_worker(first);
    // The other cannot go on with it, and is told so.
    assert_eq!(cluster.status("z"), Some(TaskState::Waiting));
    let told = cluster.ordered(second);
    assert!(told.contains(&"free-keys z".to_owned()), "{told:?}");
    cluster.finish(second, "x");
    cluster.finish(second, "z");
    assert_eq!(cluster.status("z"), Some(TaskState::Memory));
}

#[test]
fn a_task_that_took_down_more_than_three_workers_fails() {
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
        assert_eq!(cluster.place("evil"), Some(worker));
        cluster.lose_worker(worker);
    }
    assert_eq!(cluster.status("evil"), Some(TaskState::Erred));
    let told = cluster.told(client);
    assert_eq!(told.len(), 2);
    for (words, key) in told.iter().zip(["evil", "next"]) {
        let expected = format!(
            "task-erred {key} distributed.scheduler.KilledWorker: the task evil killed 4 \
             workers, last tcp://w3:1"
        );
        assert_eq!(*words, expected);
    }
}

#[test]
fn a_worker_that_leaves_in_peace_is_no_reproach() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    cluster.submit(client, [add("a", &[])], &["a"]);
    for number in 0..8 {
        let worker = cluster.worker(&format!("tcp://w{number}:1"), 1);
        cluster.report(worker, CloseStream::default());
        cluster.lose_worker(worker);
    }
    assert_eq!(cluster.status("a"), Some(TaskState::NoWorker));
}

#[test]
fn scattered_data_that_is_lost_is_lost_with_all_that_still_needs_it() {
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
    cluster.told(client);
    cluster.lose_worker(first);
    let mut told = cluster.told(client);
    told.sort_unstable();
    assert_eq!(
        told,
        [
            "cancelled-keys last lost dependencies",
            "cancelled-keys x lost dependencies",
            "cancelled-keys z lost dependencies",
            "lost-data x",
        ]
    );
    // What was made of it is still there, and cannot be made again.
    assert_eq!(cluster.status("y"), Some(TaskState::Memory));
    cluster.lose_worker(second);
    assert_eq!(
        cluster.told(client),
        ["lost-data y", "cancelled-keys y lost dependencies"]
    );
    cluster.assert_empty();
}

#[test]
fn a_worker_that_deleted_a_result_by_itself_is_believed() {
    let mut cluster = Cluster::new();
    let worker = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    cluster.submit(client, [add("x", &[])], &["x"]);
    cluster.finish(worker, "x");
    cluster.told(client);
    let message = ReleaseWorkerData {
        key: Key::from("x"),
        ..ReleaseWorkerData::default()
    };
    cluster.report(worker, message);
    assert_eq!(cluster.told(client), ["lost-data x"]);
    cluster.finish(worker, "x");
    cluster.told(client);
    cluster.state.missing_data(&Key::from("x"), "tcp://a:1");
    cluster.listen();
    assert_eq!(cluster.told(client), ["lost-data x"]);
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
        assert!(cluster.state.heartbeat("tcp://b:1", Value::None));
    }
    assert!(!cluster.state.heartbeat("tcp://a:1", Value::None));
    assert_eq!(cluster.state.worker_count(), 1);
    assert_eq!(cluster.ended, [Output::EndWorker(silent)]);
    assert_eq!(cluster.ordered(silent), ["close", "close-stream"]);
    assert_eq!(cluster.ordered(alive), ["remove-worker tcp://a:1"]);
}

#[test]
fn holders_are_told_to_a_worker_that_cannot_find_its_data() {
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
    let [ToWorker::RefreshWhoHas(message)] = &messages[..] else {
        panic!("{messages:?}");
    };
    assert_eq!(
        message.who_has,
        [
            (Key::from("x"), vec!["tcp://a:1".to_owned()]),
            (Key::from("gone"), Vec::new())
        ]
    );
}

#[test]
fn a_worker_that_retires_gets_nothing_more_and_others_copy_what_it_has() {
    let mut cluster = Cluster::new();
    let first = cluster.worker("tcp://a:1", 1);
    let client = cluster.client("me");
    cluster.scatter("me", "x", 8, &["tcp://a:1"]);
    let second = cluster.worker("tcp://b:1", 1);
    cluster.submit(client, [add("z", &["x"])], &["z"]);
    assert_eq!(cluster.place("z"), Some(first));
    assert!(cluster.state.retire("tcp://a:1"));
    cluster.listen();
    assert!(!cluster.state.is_retired("tcp://a:1"));
    assert_eq!(cluster.ordered(second), ["acquire-replicas"]);
    cluster.finish(first, "z");
    let copied = AddKeys {
        keys: ["x", "z"].into_iter().collect(),
        ..AddKeys::default()
    };
    cluster.report(second, copied);
    assert!(cluster.state.is_retired("tcp://a:1"));
    cluster.told(client);
    cluster.state.remove_retired("tcp://a:1", true);
    cluster.listen();
    assert!(cluster.told(client).is_empty());
    assert_eq!(cluster.status("z"), Some(TaskState::Memory));
}

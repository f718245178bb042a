//! Tests of superfluous copies of results.

use super::growth::{Eager, count};
use super::*;

/// A cluster with three workers that have a copy of the data `x`, and a client that wants it.
fn replicated() -> (Cluster, [WorkerId; 3], ClientId) {
    let mut cluster = Cluster::new();
    let names = ["tcp://a:1", "tcp://b:1", "tcp://c:1"];
    let workers = names.map(|name| cluster.worker(name, 1));
    let client = cluster.client("me");
    cluster.scatter("me", "x", 100, &names);
    (cluster, workers, client)
}

fn copies(cluster: &Cluster, key: &str) -> usize {
    cluster.state.tasks[cluster.state.by_key.id(key)]
        .who_has
        .len()
}

#[test]
fn one_copy_is_kept_of_what_no_task_needs() {
    let (mut cluster, workers, client) = replicated();
    // The worker with the most data drops its copy first.
    cluster.scatter("me", "y", 1_000, &["tcp://b:1"]);
    cluster.to_workers.clear();
    cluster.handle(SchedulerInput::ReduceReplicas);
    assert_eq!(copies(&cluster, "x"), 1);
    let sent = workers.map(|worker| cluster.sent_to_worker(worker).join(" "));
    let count = sent
        .iter()
        .filter(|sent| *sent == "remove-replicas x")
        .count();
    assert_eq!(count, 2, "{sent:?}");
    assert_eq!(sent[1], "remove-replicas x");
    // A worker that needs its copy keeps it.
    let keys = ["x"].into_iter().collect();
    let kept = AddKeys {
        keys,
        ..AddKeys::default()
    };
    cluster.report(workers[1], kept);
    assert_eq!(copies(&cluster, "x"), 2);
    // No copy is deleted in another way.
    cluster.pass(500);
    assert!(
        workers
            .map(|worker| cluster.sent_to_worker(worker))
            .concat()
            .is_empty()
    );
    cluster.release(client, &["x", "y"]);
    cluster.assert_empty();
}

#[test]
fn copies_are_kept_where_tasks_need_them() {
    let (mut cluster, workers, client) = replicated();
    for key in ["d1", "d2"] {
        cluster.submit(client, [add(key, &["x"])], &[key]);
    }
    let on = ["d1", "d2"].map(|key| cluster.assigned_to(key).expect("it runs"));
    assert_ne!(on[0], on[1]);
    cluster.handle(SchedulerInput::ReduceReplicas);
    let task = cluster.state.by_key.id("x");
    let mut expected = on.to_vec();
    expected.sort_unstable();
    assert_eq!(*cluster.state.tasks[task].who_has, expected);
    // The copies of workers that are about to leave do not count.
    cluster.finish(on[0], "d1");
    let paused = WorkerStatusChange {
        status: WorkerStatus::Paused,
        ..WorkerStatusChange::default()
    };
    cluster.report(on[1], paused);
    cluster.handle(SchedulerInput::ReduceReplicas);
    let count = copies(&cluster, "x");
    let still_there = cluster.assigned_to("d2") == Some(on[1]);
    assert_eq!(count, if still_there { 2 } else { 1 }, "{workers:?}");
}

#[test]
fn copies_of_tasks_with_many_dependents_stay_while_they_are_needed() {
    let (mut cluster, _, client) = replicated();
    let keys: Vec<String> = (0..100).map(|number| format!("d-{number}")).collect();
    let tasks: Vec<Node> = keys.iter().map(|key| add(key, &["x"])).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    cluster.submit(client, tasks, &keys);
    cluster.handle(SchedulerInput::ReduceReplicas);
    assert_eq!(copies(&cluster, "x"), 3);
}

#[test]
fn copies_are_reduced_regularly() {
    let (mut cluster, _, _) = replicated();
    assert!(cluster.state.is_reducing_replicas());
    cluster.pass(2_000);
    assert_eq!(copies(&cluster, "x"), 1);
    cluster.scatter("me", "x", 100, &["tcp://a:1", "tcp://b:1", "tcp://c:1"]);
    cluster.pass(1_900);
    assert_eq!(copies(&cluster, "x"), 3);
    cluster.handle(SchedulerInput::SetReducingReplicas(false));
    cluster.pass(10_000);
    assert_eq!(copies(&cluster, "x"), 3);
    assert!(!cluster.state.is_reducing_replicas());
    cluster.handle(SchedulerInput::SetReducingReplicas(true));
    cluster.pass(2_000);
    assert_eq!(copies(&cluster, "x"), 1);
}

/// The steps that a tick with which copies are reduced takes more than one without, with this many
/// workers and results, some of which have two copies.
fn steps_of_reduction(workers: usize, results: usize, replicated: usize) -> u64 {
    let mut cluster = Eager::new(0);
    for number in 0..workers {
        cluster.join_with(number, Vec::new());
    }
    cluster.scatter(results, 0);
    cluster.scatter(replicated, 1);
    let mut now = Duration::ZERO;
    // Without what else is due at times.
    cluster
        .state
        .handle(now, SchedulerInput::SetReducingReplicas(false));
    now += Duration::from_secs(10);
    cluster.state.handle(now, SchedulerInput::Tick);
    let without = count(|| drop(cluster.state.handle(now, SchedulerInput::Tick)));
    cluster
        .state
        .handle(now, SchedulerInput::SetReducingReplicas(true));
    count(|| drop(cluster.state.handle(now, SchedulerInput::Tick))) - without
}

#[test]
fn results_with_one_copy_cost_nothing() {
    for (workers, results) in [(4, 10), (4, 1_000), (64, 1_000)] {
        assert_eq!(steps_of_reduction(workers, results, 0), 0);
    }
    let few = steps_of_reduction(4, 100, 10);
    assert_eq!(steps_of_reduction(64, 1_000, 10), few);
}

#[test]
fn many_copies_of_one_result_take_steps_for_each_and_are_reduced_in_parts() {
    let steps = |workers: usize| {
        let mut cluster = Eager::new(workers);
        for number in 0..workers {
            cluster.scatter(3, number);
        }
        let steps = count(|| {
            drop(
                cluster
                    .state
                    .handle(Duration::ZERO, SchedulerInput::ReduceReplicas),
            )
        });
        let left = cluster.state.replicas.replicated.len();
        for _ in 0..3 {
            cluster.handle(SchedulerInput::Tick);
        }
        assert!(cluster.state.replicas.replicated.is_empty());
        (steps as f64, left)
    };
    let (few, left) = steps(100);
    assert_eq!(left, 0);
    let (many, left) = steps(2_000);
    assert_eq!(left, 2);
    assert!(many / 2_000.0 < 1.5 * few / 300.0, "{few}, {many}");
}

#[test]
fn many_copies_are_reduced_in_parts() {
    let mut cluster = Cluster::new();
    let names = ["tcp://a:1", "tcp://b:1"];
    let workers = names.map(|name| cluster.worker(name, 1));
    cluster.client("me");
    for number in 0..1_100 {
        cluster.scatter("me", &format!("x-{number}"), 1, &names);
    }
    cluster.handle(SchedulerInput::ReduceReplicas);
    assert_eq!(cluster.state.replicas.replicated.len(), 1_100 - 512);
    cluster.pass(20);
    cluster.pass(20);
    assert!(cluster.state.replicas.replicated.is_empty());
    // Both have about the same amount of data.
    let counts = workers.map(|worker| cluster.state.workers[&worker].has.len());
    assert!(
        counts.iter().all(|count| (500..=600).contains(count)),
        "{counts:?}"
    );
}

/// The copies of a worker that has left are removed in slices.
#[test]
fn copies_of_a_worker_that_has_left_do_not_count() {
    let mut cluster = Cluster::new();
    let names = ["tcp://a:1", "tcp://b:1"];
    let [_, gone] = names.map(|name| cluster.worker(name, 1));
    cluster.client("me");
    for number in 0..10 {
        cluster.scatter("me", &format!("x-{number}"), 1, &names);
    }
    cluster.state.slice_len = 1;
    for event in [
        SchedulerInput::WorkerLeft(gone),
        SchedulerInput::ReduceReplicas,
    ] {
        let actions = cluster.state.handle(cluster.now, event);
        cluster.act(actions);
    }
    assert!(cluster.state.is_pending());
    cluster.pass(20);
    for number in 0..10 {
        assert_eq!(copies(&cluster, &format!("x-{number}")), 1);
    }
}

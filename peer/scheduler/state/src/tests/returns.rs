//! Workers that return after they have lost their connection.

use super::*;

/// What a worker returns with.
fn returned(results: &[&str], running: &[(&str, i64)], is_last: bool) -> Returned {
    let results = results.iter().map(|key| ReturnedResult {
        key: Key::from(*key),
        nbytes: 100,
        class: None,
    });
    let running = running.iter().map(|(key, run_id)| ReturnedRun {
        key: Key::from(*key),
        run_id: *run_id,
    });
    Returned {
        results: results.collect(),
        running: running.collect(),
        is_last,
        ..Returned::default()
    }
}

impl Cluster {
    fn registration(address: &str, id: &str, is_returning: bool) -> RegisterWorker {
        let kinds: &[&str] = match is_returning {
            true => &["native", "python", "returning"],
            false => &["native", "python"],
        };
        RegisterWorker {
            extra_information: Value::dict([("daskwire", Value::list(kinds.iter().copied()))]),
            address: address.to_owned(),
            server_id: Some(id.to_owned()),
            name: Value::from(address),
            status: WorkerStatus::Running,
            nthreads: 2,
            ..RegisterWorker::default()
        }
    }

    fn named_worker(&mut self, address: &str) -> WorkerId {
        let joined = self.join(Self::registration(address, address, false));
        joined.expect("it is new")
    }

    /// Registers a worker that returns, and has not said yet with what.
    fn returning(&mut self, address: &str) -> WorkerId {
        let joined = self.join(Self::registration(address, address, true));
        joined.expect("it may return")
    }

    fn returns_with(
        &mut self,
        address: &str,
        results: &[&str],
        running: &[(&str, i64)],
    ) -> WorkerId {
        let worker = self.returning(address);
        self.report(worker, returned(results, running, true));
        worker
    }

    /// Reports the end of a run that was not sent by this scheduler, or not on this stream.
    fn finish_run(&mut self, worker: WorkerId, key: &str, run_id: i64) {
        let message = TaskFinished {
            key: Key::from(key),
            run_id,
            nbytes: 28,
            ..TaskFinished::default()
        };
        self.report(worker, message);
    }

    fn fail_run(&mut self, worker: WorkerId, key: &str, run_id: i64) {
        let message = TaskErred {
            key: Key::from(key),
            run_id,
            exception: Value::from("bad"),
            ..TaskErred::default()
        };
        self.report(worker, message);
    }

    fn run_id(&self, worker: WorkerId, key: &str) -> i64 {
        self.running[&(worker, Key::from(key))].run_id
    }
}

#[test]
fn a_worker_that_returns_has_not_died_of_its_tasks() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    cluster.submit(client, [add("x", &[]), add("y", &[])], &["x", "y"]);
    let mut worker = cluster.named_worker("tcp://a:1");
    for _ in 0..10 {
        let run_id = cluster.run_id(worker, "x");
        cluster.lose_worker(worker);
        // It has begun one of the tasks only.
        worker = cluster.returns_with("tcp://a:1", &[], &[("x", run_id)]);
        assert_eq!(cluster.status("y"), Some(TaskState::Processing));
        // For the next loss
        let task = ComputeTask {
            key: Key::from("x"),
            run_id,
            ..ComputeTask::default()
        };
        cluster.running.insert((worker, Key::from("x")), task);
    }
    for key in ["x", "y"] {
        let id = cluster.state.by_key.id(key);
        assert_eq!(cluster.state.tasks[id].kill_count, 0);
    }
    // A worker that does not return has.
    cluster.lose_worker(worker);
    cluster.named_worker("tcp://b:1");
    let x = cluster.state.by_key.id("x");
    assert_eq!(cluster.state.tasks[x].kill_count, 1);
}

// ROLES SCHEDULER-17
#[test]
fn results_of_a_worker_that_returns_are_not_computed_again() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    let first = cluster.named_worker("tcp://a:1");
    let tasks = [add("x", &[]), add("y", &["x"]), add("z", &["y"])];
    cluster.submit(client, tasks, &["x", "z"]);
    cluster.finish(first, "x");
    cluster.finish(first, "y");
    cluster.lose_worker(first);
    cluster.sent_to_client(client);
    assert_eq!(cluster.status("x"), Some(TaskState::NoWorker));
    let second = cluster.returning("tcp://a:1");
    assert_eq!(cluster.assigned_to("x"), None, "it gets no tasks before");
    cluster.report(second, returned(&["x", "y", "other"], &[], true));
    assert_eq!(cluster.sent_to_client(client), ["key-in-memory x"]);
    assert_eq!(
        cluster.sent_to_worker(second),
        ["remove-replicas other", "compute-task z"]
    );
    cluster.finish(second, "z");
    // The result is not needed any more, as if it had been computed now.
    cluster.pass(500);
    assert_eq!(cluster.sent_to_worker(second), ["free-keys y"]);
    cluster.release(client, &["x", "z"]);
    cluster.assert_empty();
}

#[test]
fn no_task_runs_whose_result_is_about_to_follow() {
    for slice_len in [1, 2, 512] {
        let mut cluster = Cluster::new();
        cluster.state.slice_len = slice_len;
        let client = cluster.client("me");
        let tasks = [
            add("a", &[]),
            add("b", &["a"]),
            add("c", &["b"]),
            add("d", &["c"]),
        ];
        cluster.submit(client, tasks, &["d"]);
        let other = cluster.named_worker("tcp://b:1");
        let run_id = cluster.run_id(other, "a");
        // The last part decides, and the results of dependencies come first on the wire.
        let worker = cluster.returning("tcp://a:1");
        cluster.report(worker, returned(&["a", "b"], &[], false));
        assert_eq!(cluster.assigned_to("a"), Some(other));
        cluster.report(worker, returned(&["c"], &[], true));
        assert_eq!(cluster.status("c"), Some(TaskState::Memory));
        let sent = [
            cluster.sent_to_worker(other).join(" "),
            cluster.sent_to_worker(worker).join(" "),
        ];
        assert!(sent[0].contains("free-keys a"), "{sent:?}");
        assert!(!sent.concat().contains("compute-task b"), "{sent:?}");
        assert!(!sent.concat().contains("compute-task c"), "{sent:?}");
        assert!(
            sent[1].contains("remove-replicas b") || sent[1].contains("b a"),
            "{sent:?}"
        );
        // The run elsewhere was cancelled.
        cluster.finish_run(other, "a", run_id);
        assert_eq!(
            cluster.sent_to_worker(other).last().map(String::as_str),
            Some("free-keys a")
        );
        let on = cluster.assigned_to("d").expect("its input is there");
        cluster.finish(on, "d");
        cluster.release(client, &["d"]);
        cluster.assert_empty();
    }
}

#[test]
fn a_result_in_memory_gets_a_copy() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    let first = cluster.named_worker("tcp://a:1");
    cluster.submit(client, [add("x", &[])], &["x"]);
    cluster.finish(first, "x");
    let second = cluster.returns_with("tcp://b:1", &["x", "x"], &[]);
    assert!(cluster.sent_to_worker(second).is_empty());
    cluster.lose_worker(first);
    assert_eq!(cluster.status("x"), Some(TaskState::Memory));
}

#[test]
fn failed_and_released_tasks_need_no_result() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    let first = cluster.named_worker("tcp://a:1");
    let tasks = [add("x", &[]), add("y", &["x"]), add("bad", &[])];
    cluster.submit(client, tasks, &["y", "bad"]);
    cluster.finish(first, "x");
    cluster.finish(first, "y");
    cluster.err(first, "bad", "no");
    assert_eq!(cluster.status("x"), Some(TaskState::Released));
    let second = cluster.returns_with("tcp://b:1", &["bad", "x"], &[]);
    let sent = cluster.sent_to_worker(second);
    assert!(
        sent == ["remove-replicas x bad"] || sent == ["remove-replicas bad x"],
        "{sent:?}"
    );
    assert_eq!(cluster.status("x"), Some(TaskState::Released));
    assert_eq!(cluster.status("bad"), Some(TaskState::Erred));
}

#[test]
fn a_running_task_goes_on() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    let first = cluster.named_worker("tcp://a:1");
    cluster.submit(client, [add("x", &[]), add("y", &["x"])], &["y"]);
    cluster.finish(first, "x");
    let run_id = cluster.run_id(first, "y");
    cluster.lose_worker(first);
    let second = cluster.returns_with("tcp://a:1", &["x"], &[("y", run_id)]);
    assert!(cluster.sent_to_worker(second).is_empty());
    assert_eq!(cluster.status("y"), Some(TaskState::Processing));
    cluster.finish_run(second, "y", run_id);
    assert_eq!(cluster.sent_to_client(client), ["key-in-memory y"]);
    // The worker did not die.
    assert_eq!(
        cluster.state.tasks[cluster.state.by_key.id("y")].kill_count,
        0
    );
    cluster.release(client, &["y"]);
    cluster.assert_empty();
}

#[test]
fn a_run_is_not_mistaken_for_a_later_one() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    cluster.submit(client, [add("x", &[]), add("y", &[])], &["x", "y"]);
    let worker = cluster.returns_with("tcp://a:1", &[], &[("x", 70)]);
    assert_eq!(cluster.sent_to_worker(worker), ["compute-task y"]);
    assert!(cluster.run_id(worker, "y") > 70);
    // The run that the worker has is not that which it reports.
    cluster.finish_run(worker, "x", 69);
    assert_eq!(
        cluster.sent_to_worker(worker),
        ["free-keys x", "compute-task x"]
    );
    for run_id in [i64::MAX, -1] {
        let other = cluster.returns_with(&format!("tcp://{run_id}:1"), &[], &[("x", run_id)]);
        assert_eq!(cluster.sent_to_worker(other), ["free-keys x"]);
    }
}

#[test]
fn a_task_that_runs_waits_for_inputs_that_others_return_with() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    cluster.submit(client, [add("x", &[]), add("y", &["x"])], &["y"]);
    let first = cluster.returns_with("tcp://a:1", &[], &[("y", 7)]);
    // It gets the task that the other one needs.
    assert_eq!(cluster.sent_to_worker(first), ["compute-task x"]);
    assert_eq!(cluster.status("y"), Some(TaskState::Waiting));
    // A second worker does not run it, too.
    let other = cluster.returns_with("tcp://c:1", &[], &[("y", 8)]);
    assert_eq!(cluster.sent_to_worker(other), ["free-keys y"]);
    let second = cluster.returns_with("tcp://b:1", &["x"], &[]);
    assert_eq!(cluster.status("y"), Some(TaskState::Processing));
    assert_eq!(cluster.sent_to_worker(first), ["free-keys x"]);
    assert!(cluster.sent_to_worker(second).is_empty());
    cluster.finish_run(first, "y", 7);
    assert_eq!(cluster.sent_to_client(client), ["key-in-memory y"]);
}

#[test]
fn a_result_may_come_before_the_inputs() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    cluster.submit(client, [add("x", &[]), add("y", &["x"])], &["y"]);
    let first = cluster.returns_with("tcp://a:1", &[], &[("y", 7)]);
    cluster.finish_run(first, "y", 7);
    assert_eq!(cluster.sent_to_client(client), ["key-in-memory y"]);
    let sent = cluster.sent_to_worker(first);
    assert_eq!(sent, ["compute-task x", "free-keys x"]);
    cluster.release(client, &["y"]);
    cluster.assert_empty();
}

#[test]
fn a_run_of_a_task_that_waits_may_fail() {
    for retries in [0, 1] {
        let mut cluster = Cluster::new();
        let client = cluster.client("me");
        let tasks = [add("x", &[]), add("y", &["x"])];
        let retried = [("retries", Value::from(retries))];
        cluster.submit_with(client, tasks, &["y"], &retried);
        let first = cluster.returns_with("tcp://a:1", &[], &[("y", 7)]);
        cluster.fail_run(first, "y", 7);
        if retries == 0 {
            assert_eq!(cluster.status("y"), Some(TaskState::Erred));
        } else {
            assert_eq!(cluster.status("y"), Some(TaskState::Waiting));
            cluster.finish(first, "x");
            assert_eq!(cluster.assigned_to("y"), Some(first));
            assert!(cluster.run_id(first, "y") > 7);
        }
    }
}

#[test]
fn a_run_of_a_task_that_waits_may_be_given_back() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    cluster.submit(client, [add("x", &[]), add("y", &["x"])], &["y"]);
    let first = cluster.returns_with("tcp://a:1", &[], &[("y", 7)]);
    let message = Reschedule {
        key: Key::from("y"),
        ..Reschedule::default()
    };
    cluster.report(first, message);
    cluster.finish(first, "x");
    assert_eq!(cluster.assigned_to("y"), Some(first));
}

#[test]
fn a_task_that_has_seceded_uses_no_thread() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    cluster.submit(client, [add("x", &[]), add("y", &["x"])], &["y"]);
    let first = cluster.returns_with("tcp://a:1", &[], &[("y", 7)]);
    let message = LongRunning {
        key: Key::from("y"),
        run_id: 7,
        ..LongRunning::default()
    };
    cluster.report(first, message);
    cluster.finish(first, "x");
    assert_eq!(cluster.status("y"), Some(TaskState::Processing));
    let worker = &cluster.state.workers[&first];
    assert_eq!((worker.processing.len(), worker.busy_count()), (1, 0));
}

#[test]
fn a_task_that_runs_elsewhere_or_is_unknown_is_cancelled() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    let first = cluster.named_worker("tcp://a:1");
    let tasks = [add("x", &[]), add("y", &[])];
    cluster.submit(client, tasks, &["x", "y"]);
    cluster.finish(first, "x");
    let running = [("x", 1), ("y", 2), ("other", 3)];
    let second = cluster.returns_with("tcp://b:1", &[], &running);
    assert_eq!(cluster.sent_to_worker(second), ["free-keys x y other"]);
    assert_eq!(cluster.assigned_to("y"), Some(first));
}

#[test]
fn a_worker_may_return_before_its_loss_is_noticed() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    let first = cluster.named_worker("tcp://a:1");
    let tasks = ["a", "b", "c", "d", "e"].map(|key| add(key, &[]));
    cluster.submit(client, tasks, &["a", "b", "c", "d", "e"]);
    cluster.finish(first, "a");
    cluster.finish(first, "b");
    let run_id = cluster.run_id(first, "c");
    let other = cluster.named_worker("tcp://b:1");
    cluster.sent_to_client(client);
    cluster.sent_to_worker(other);
    // Another worker cannot take its place.
    let imposter = cluster.join(Cluster::registration("tcp://a:1", "other", true));
    assert!(matches!(imposter, Err(WorkerRefusal::AddressTaken { .. })));
    let second = cluster.returning("tcp://a:1");
    assert_eq!(cluster.ended_workers, [first]);
    // Nothing is lost until the worker has said what it has.
    assert!(cluster.sent_to_client(client).is_empty());
    assert_eq!(cluster.sent_to_worker(other), ["remove-worker tcp://a:1"]);
    cluster.report(second, returned(&["a"], &[("c", run_id)], true));
    assert_eq!(cluster.sent_to_client(client), ["lost-data b"]);
    assert_eq!(cluster.status("a"), Some(TaskState::Memory));
    let c = cluster.state.by_key.id("c");
    assert!(
        matches!(cluster.state.tasks[c].stage, model::TaskStage::Processing(on) if on == second)
    );
    cluster.finish_run(second, "c", run_id);
    for key in ["b", "d", "e"] {
        while cluster.status(key) != Some(TaskState::Memory) {
            cluster.running.retain(|(on, _), _| *on != first);
            let (on, key) = cluster.running.keys().next().expect("it runs").clone();
            cluster.finish(on, &key.to_string());
        }
    }
    cluster.release(client, &["a", "b", "c", "d", "e"]);
    cluster.assert_empty();
}

#[test]
fn what_a_worker_claims_is_lost_with_it() {
    for is_last in [false, true] {
        let mut cluster = Cluster::new();
        let client = cluster.client("me");
        let first = cluster.named_worker("tcp://a:1");
        cluster.submit(client, [add("x", &[]), add("y", &["x"])], &["y"]);
        cluster.running.clear();
        let second = cluster.returning("tcp://a:1");
        assert_eq!(cluster.ended_workers, [first]);
        cluster.report(second, returned(&[], &[("y", 7)], is_last));
        cluster.lose_worker(second);
        let third = cluster.named_worker("tcp://c:1");
        cluster.finish(third, "x");
        cluster.finish(third, "y");
        cluster.release(client, &["y"]);
        cluster.assert_empty();
    }
}

#[test]
fn only_a_worker_that_returns_is_believed_to_have_results() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    let first = cluster.named_worker("tcp://a:1");
    cluster.submit(client, [add("x", &[])], &["x"]);
    let other = cluster.named_worker("tcp://b:1");
    cluster.report(other, returned(&["x"], &[("x", 1)], true));
    assert!(cluster.sent_to_worker(other).is_empty());
    assert_eq!(cluster.assigned_to("x"), Some(first));
    let second = cluster.returns_with("tcp://c:1", &[], &[]);
    cluster.report(second, returned(&["x"], &[], true));
    assert_eq!(cluster.assigned_to("x"), Some(first));
}

#[test]
fn an_actor_keeps_its_place() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    let graph: Graph = [add("x", &[]), add("y", &[])].into_iter().collect();
    let message = UpdateGraph {
        expr_ser: graph.to_expression().expect("plain values"),
        keys: ["x", "y"].into_iter().collect(),
        actors: Actors::Keys(["x"].into_iter().collect()),
        ..UpdateGraph::default()
    };
    cluster.send(client, message);
    // A handle for an actor is none, and what is no actor is not replaced by one.
    let handles = cluster.returning("tcp://a:1");
    let actors = |results: &[&str], actors: &[&str]| Returned {
        actors: actors.iter().copied().collect(),
        ..returned(results, &[], true)
    };
    let part = actors(&["x", "y"], &["y"]);
    cluster.report(handles, part);
    let sent = cluster.sent_to_worker(handles);
    assert!(sent[0].starts_with("remove-replicas"), "{sent:?}");
    assert!(sent[0].contains('x') && sent[0].contains('y'), "{sent:?}");
    let second = cluster.returning("tcp://b:1");
    cluster.report(second, actors(&["x"], &["x"]));
    let x = cluster.state.by_key.id("x");
    assert_eq!(cluster.state.tasks[x].actor_on, Some(second));
    assert!(cluster.sent_to_worker(second).is_empty());
    // Another handle is a copy, another actor is not.
    let third = cluster.returns_with("tcp://c:1", &["x"], &[]);
    assert!(cluster.sent_to_worker(third).is_empty());
    let fourth = cluster.returning("tcp://d:1");
    cluster.report(fourth, actors(&["x"], &["x"]));
    assert_eq!(cluster.sent_to_worker(fourth), ["remove-replicas x"]);
    // It moves on with its worker, whose former connection was not known to be lost.
    let fifth = cluster.returning("tcp://b:1");
    cluster.report(fifth, actors(&["x"], &["x"]));
    assert_eq!(cluster.state.tasks[x].actor_on, Some(fifth));
    assert_eq!(cluster.status("x"), Some(TaskState::Memory));
    // Otherwise it is lost.
    let sixth = cluster.returning("tcp://b:1");
    cluster.report(sixth, returned(&[], &[], true));
    assert_eq!(cluster.status("x"), Some(TaskState::Erred));
}

#[test]
fn a_shuffle_does_not_go_on_with_an_earlier_run() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    let tasks = [
        add("transfer", &[]),
        add("shuffle-barrier-s", &["transfer"]),
        add("output", &["shuffle-barrier-s"]),
        add("other", &["shuffle-barrier-s"]),
    ];
    cluster.submit(client, tasks, &["output", "other"]);
    let results = ["transfer", "shuffle-barrier-s", "output"];
    let worker = cluster.returns_with("tcp://a:1", &results, &[("other", 7)]);
    assert_eq!(cluster.status("output"), Some(TaskState::Memory));
    let sent = cluster.sent_to_worker(worker);
    assert_eq!(sent[0], "free-keys other");
    assert_eq!(
        sent.last().map(String::as_str),
        Some("compute-task transfer")
    );
    let removed = &sent[1];
    assert!(removed.starts_with("remove-replicas"), "{sent:?}");
    assert!(
        removed.contains("transfer") && removed.contains("barrier"),
        "{sent:?}"
    );
}

#[test]
fn a_worker_with_more_tasks_than_it_may_get_keeps_them() {
    let mut cluster = Cluster::new();
    let client = cluster.client("me");
    let keys = ["a", "b", "c", "d"];
    let demand = [("resources", Value::dict([("GPU", 1)]))];
    cluster.submit_with(client, keys.map(|key| add(key, &[])), &keys, &demand);
    let running: Vec<(&str, i64)> = keys.iter().copied().zip(1..).collect();
    let registration = RegisterWorker {
        resources: vec![("GPU".to_owned(), 1.0)],
        ..Cluster::registration("tcp://a:1", "a", true)
    };
    let worker = cluster.join(registration).expect("it is new");
    cluster.report(worker, returned(&[], &running, true));
    assert!(cluster.sent_to_worker(worker).is_empty());
    for (key, run_id) in running {
        assert_eq!(cluster.status(key), Some(TaskState::Processing));
        cluster.finish_run(worker, key, run_id);
    }
    cluster.release(client, &keys);
    cluster.assert_empty();
}

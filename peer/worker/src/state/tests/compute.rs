//! Computing tasks, and the conditions under which none is started.

use super::*;

#[test]
fn a_task_runs_and_its_result_is_kept_until_it_is_freed() {
    let mut worker = Worker::new(1);
    assert_eq!(worker.message(run(7, task("x"))), ["execute x"]);
    assert_eq!(worker.stages(), "executing 1");
    assert_eq!(worker.executed("x"), ["finished x run 7 (compute)"]);
    assert_eq!(worker.stages(), "memory 1");
    assert_eq!(
        worker.free(&["x", "unknown"]),
        ["forget x", "released x for free"]
    );
    assert_eq!(worker.stages(), "");
}

/// `Scheduler.stimulus_task_erred` of distributed 2025.4.0 to 2026.3.0 has
/// parameters without defaults: a scheduler removes a worker whose message lacks
/// one of them.
#[test]
fn task_erred_has_all_required_fields() {
    let mut worker = Worker::new(1);
    worker.message(run(1, task("x")));
    let failed = WorkerInput::Executed(Executed {
        key: "x".into(),
        outcome: Err(Box::new(
            (&daskwire_messages::RemoteError::new("ValueError", "boom")).into(),
        )),
        start: Duration::from_secs(1),
        stop: Duration::from_secs(2),
        steps: Vec::new(),
        thread: None,
    });
    let actions = worker.0.handle(Duration::from_millis(1500), failed);
    let message = actions.into_iter().find_map(|action| match action {
        Action::Send(message) => Some(*message),
        _ => None,
    });
    let Some(FromWorker::TaskErred(message)) = message else {
        panic!("{message:?}");
    };
    assert_eq!((message.key, message.run_id), ("x".into(), 1));
    assert!(matches!(message.exception, Value::Serialized(_)));
    assert_eq!(
        message.exception_text.as_deref(),
        Some("ValueError('boom')")
    );
    assert_eq!(message.traceback, Some(Value::None));
    assert_eq!(message.traceback_text.as_deref(), Some(""));
    assert!(message.stimulus_id.starts_with("task-erred-"));
}

#[test]
fn a_task_that_fails_is_reported_and_can_be_tried_again() {
    let mut worker = Worker::new(1);
    worker.message(run(1, task("x")));
    assert_eq!(worker.failed("x"), ["erred x run 1"]);
    assert_eq!(worker.stages(), "error 1");
    assert_eq!(worker.message(run(2, task("x"))), ["execute x"]);
    assert_eq!(worker.executed("x"), ["finished x run 2 (compute)"]);
    worker.message(run(3, task("y")));
    worker.failed("y");
    assert_eq!(worker.free(&["y"]), [""; 0]);
    assert_eq!(worker.stages(), "memory 1");
}

#[test]
fn runs_most_urgent_task_first_and_latest_of_equals() {
    let mut worker = Worker::new(1);
    let priority = |key, numbers: [f64; 3]| {
        ToWorker::from(ComputeTask {
            priority: numbers.into(),
            ..task(key)
        })
    };
    let batch = vec![
        priority("late", [0.0, 2.0, 0.0]),
        priority("early", [0.0, 1.0, 5.0]),
        priority("first", [-1.0, 9.0, 0.0]),
        priority("equal", [0.0, 2.0, 0.0]),
    ];
    assert_eq!(worker.batch(batch), ["execute first"]);
    assert_eq!(worker.executed("first")[1..], ["execute early"]);
    assert_eq!(worker.executed("early")[1..], ["execute equal"]);
    assert_eq!(worker.executed("equal")[1..], ["execute late"]);
}

#[test]
fn runs_as_many_tasks_as_threads() {
    let mut worker = Worker::new(2);
    let batch = ["a", "b", "c"].map(|key| task(key).into()).into();
    assert_eq!(worker.batch(batch), ["execute c", "execute b"]);
    assert_eq!(worker.stages(), "ready 1, executing 2");
    assert_eq!(
        worker.executed("c"),
        ["finished c run 0 (compute)", "execute a"]
    );
}

#[test]
fn tasks_that_need_resources_wait_for_them() {
    let mut worker = Worker::new(3);
    let needing = |key| {
        ToWorker::from(ComputeTask {
            resource_restrictions: Nullable(Some(Value::dict([("GPU", 1.0)]))),
            ..task(key)
        })
    };
    let batch = vec![needing("g"), needing("h"), task("x").into()];
    assert_eq!(worker.batch(batch), ["execute x", "execute h"]);
    assert_eq!(worker.steal("g"), ["steal g: constrained"]);
    assert_eq!(worker.message(needing_gpu("g")), [""; 0]);
    assert_eq!(worker.executed("h")[1..], ["execute g"]);
    assert_eq!(worker.executed("g").len(), 1);
    assert_eq!(worker.message(needing_gpu("again")), ["execute again"]);
}

fn needing_gpu(key: &str) -> ComputeTask {
    ComputeTask {
        resource_restrictions: Nullable(Some(Value::dict([("GPU", 1)]))),
        ..task(key)
    }
}

#[test]
fn reports_results_in_memory_again() {
    let mut worker = Worker::new(1);
    worker.message(run(1, task("x")));
    worker.executed("x");
    assert_eq!(worker.message(run(2, task("x"))), ["finished x run 2 ()"]);
    // In flight: the data that arrives is the result.
    worker.message(task_with("y", &[("a", &[A])]));
    assert_eq!(worker.message(run(5, task("a"))), [""; 0]);
    assert_eq!(worker.steal("a"), ["steal a: resumed"]);
    assert_eq!(
        worker.received(A, &["a"]),
        ["finished a run 5 (transfer A)", "execute y with a"]
    );
}

#[test]
fn an_execution_counts_for_its_own_run_only() {
    let mut worker = Worker::new(1);
    let batch = vec![run(1, task("other")).into(), run(1, task("x")).into()];
    assert_eq!(worker.batch(batch), ["execute x"]);
    worker.message(run(2, task("other")));
    // The scheduler repeats itself.
    worker.message(run(1, task("x")));
    assert_eq!(
        worker.executed("x"),
        ["finished x run 1 (compute)", "execute other"]
    );
    // Whatever the outcome, the task is run again, as it is requested now.
    worker.free(&["other"]);
    assert_eq!(
        worker.message(run(3, task_with("other", &[("a", &[A])]))),
        [""; 0]
    );
    assert!(!worker.0.is_computing(&"other".into()));
    assert_eq!(worker.executed("other"), ["forget other", "fetch a from A"]);
    assert_eq!(
        worker.received(A, &["a"]),
        ["add-keys a", "execute other with a"]
    );
    // Nor is it completed for a request that it does not count for.
    assert!(worker.0.is_wanted(&"other".into()));
    assert_eq!(worker.message(run(4, task("other"))), ["cancel other"]);
    assert!(!worker.0.is_wanted(&"other".into()));
    assert_eq!(worker.failed("other"), ["forget other", "execute other"]);
    worker.message(run(5, task("other")));
    let ended = worker.event(WorkerInput::Reschedule("other".into()));
    assert_eq!(ended, ["forget other", "execute other"]);
    worker.message(run(6, task("other")));
    let ended = worker.unsupported("other");
    assert_eq!(ended, ["forget other", "execute other"]);
    // The new run has not started, and may run elsewhere.
    worker.message(run(7, task("other")));
    assert_eq!(worker.steal("other"), ["steal other: waiting"]);
    assert_eq!(worker.steal("other"), ["steal other: cancelled"]);
    // The new run is not wanted either.
    worker.message(run(7, task("other")));
    worker.free(&["other"]);
    assert_eq!(worker.executed("other"), ["forget other"]);
    assert_eq!(worker.stages(), "memory 2");
}

#[test]
fn a_task_never_executes_twice_at_once() {
    let mut worker = Worker::new(2);
    worker.message(run(1, task("x")));
    worker.free(&["x"]);
    // Another worker had the result.
    worker.stored("x");
    worker.free(&["x"]);
    assert_eq!(worker.message(run(2, task("x"))), [""; 0]);
    assert_eq!(worker.executed("x"), ["forget x", "execute x"]);
    assert_eq!(worker.executed("x"), ["finished x run 2 (compute)"]);
}

#[test]
fn a_replica_that_became_a_task_is_not_fetched_any_more() {
    let mut worker = Worker::new(1);
    worker.message(acquire(&[("x", &[])]));
    worker.message(task("runs"));
    worker.message(task("x"));
    assert_eq!(worker.steal("x"), ["steal x: ready"]);
    assert_eq!(worker.stages(), "executing 1");
}

#[test]
fn reports_the_latest_run_id_of_a_task_that_waits() {
    let mut worker = Worker::new(1);
    worker.message(run(1, task_with("waits", &[("a", &[A])])));
    worker.message(run(4, task_with("waits", &[("a", &[A])])));
    worker.received(A, &["a"]);
    assert_eq!(
        worker.executed("waits"),
        ["finished waits run 4 (transfer A, compute)"]
    );
}

#[test]
fn paused_worker_starts_nothing_until_resumed() {
    let mut worker = Worker::new(1);
    worker.message(task("runs"));
    assert_eq!(worker.message(status("paused")), ["status paused"]);
    worker.message(task("ready"));
    assert_eq!(worker.message(task_with("x", &[("a", &[A])])), [""; 0]);
    assert_eq!(worker.executed("runs"), ["finished runs run 0 (compute)"]);
    assert_eq!(worker.stages(), "waiting 1, ready 1, memory 1, fetch 1");
    assert_eq!(
        worker.message(status("running")),
        ["status running", "fetch a from A", "execute ready"]
    );
}

#[test]
fn memory_pressure_pauses_only_a_running_worker() {
    let mut worker = Worker::new(1);
    assert_eq!(worker.event(WorkerInput::Paused(false)), [""; 0]);
    assert_eq!(worker.event(WorkerInput::Paused(true)), ["status paused"]);
    assert_eq!(worker.event(WorkerInput::Paused(true)), [""; 0]);
    worker.message(task("x"));
    assert_eq!(
        worker.event(WorkerInput::Paused(false)),
        ["status running", "execute x"]
    );
    worker.message(status("closing_gracefully"));
    assert_eq!(worker.event(WorkerInput::Paused(true)), [""; 0]);
    assert_eq!(worker.event(WorkerInput::Paused(false)), [""; 0]);
    assert_eq!(*worker.0.status(), WorkerStatus::ClosingGracefully);
}

#[test]
fn announces_its_end_and_starts_nothing_after_it() {
    let mut worker = Worker::new(1);
    worker.message(task_with("y", &[("a", &[])]));
    let closing = worker.event(WorkerInput::Close);
    assert_eq!(closing[0], "status closing");
    assert!(closing[1].starts_with("CloseStream"), "{closing:?}");
    assert_eq!(closing.len(), 2);
    assert_eq!(*worker.0.status(), WorkerStatus::Closing);
    // Neither tasks, nor transfers, nor requests for the holders of data
    assert_eq!(worker.message(task("x")), [""; 0]);
    assert_eq!(worker.message(refresh(&[("a", &[A])])), [""; 0]);
    assert_eq!(worker.event(WorkerInput::Search), [""; 0]);
    assert_eq!(worker.message(status("running")), [""; 0]);
}

#[test]
fn starts_nothing_while_the_store_is_full() {
    let mut worker = Worker::new(1);
    assert_eq!(worker.event(WorkerInput::StoreFull(true)), [""; 0]);
    assert_eq!(worker.message(task("x")), [""; 0]);
    assert_eq!(worker.message(task_with("y", &[("a", &[A])])), [""; 0]);
    assert_eq!(worker.events(Vec::new()), [""; 0]);
    assert_eq!(
        worker.event(WorkerInput::StoreFull(false)),
        ["fetch a from A", "execute x"]
    );
}

#[test]
fn needed_soon_has_the_inputs_of_the_next_tasks() {
    let mut worker = Worker::new(1);
    for key in ["a", "b", "c", "d"] {
        worker.stored(key);
    }
    let needed = |worker: &Worker| {
        let mut needed: Vec<String> = worker
            .0
            .needed_soon()
            .iter()
            .map(ToString::to_string)
            .collect();
        needed.sort_unstable();
        needed.join(" ")
    };
    worker.message(task("runs"));
    assert_eq!(needed(&worker), "");
    worker.message(task_with("later", &[("a", &[HERE])]));
    worker.message(task_with("next", &[("b", &[HERE]), ("c", &[HERE])]));
    assert_eq!(needed(&worker), "b c");
    // Tasks that wait for data in flight need their other inputs.
    worker.message(task_with("waits", &[("d", &[HERE]), ("e", &[A])]));
    assert_eq!(needed(&worker), "b c d e");
    worker.event(WorkerInput::Paused(true));
    assert_eq!(needed(&worker), "", "nothing is started");
}
